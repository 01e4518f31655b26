//! Plugins as real programs.

use super::*;
use engine::image::provider::ExecEnv;
use std::os::unix::fs::PermissionsExt as _;
use std::sync::atomic::{AtomicU32, Ordering};

static NEXT: AtomicU32 = AtomicU32::new(0);

struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("rubelet-plugins-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    /// A plugin that notes each question in a file and prints `answer`.
    fn plugin(&self, answer: &str, exit: u8) -> ProviderSetup {
        let log = self.0.join("asked").display().to_string();
        let text = format!("#!/bin/sh\ncat >>{log}\necho '{answer}'\necho why >&2\nexit {exit}\n");
        let path = self.0.join("plug");
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        let provider = ProviderConfig {
            name: "plug".to_owned(),
            match_images: vec!["*.r.io".to_owned()],
            default_cache_duration: Some("10m".parse().unwrap()),
            api_version: "credentialprovider.kubelet.k8s.io/v1".to_owned(),
            args: Vec::new(),
            env: vec![ExecEnv { name: "A".to_owned(), value: "b".to_owned() }],
            token_attributes: None,
        };
        ProviderSetup {
            providers: vec![provider],
            bin_dir: self.0.clone(),
            hash: "sha256:0".to_owned(),
        }
    }

    fn asked(&self) -> usize {
        std::fs::read_to_string(self.0.join("asked")).map_or(0, |t| t.lines().count())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn answer(life: &str) -> String {
    format!(
        "{{\"kind\":\"CredentialProviderResponse\",\
         \"apiVersion\":\"credentialprovider.kubelet.k8s.io/v1\",\"cacheKeyType\":\"Registry\",\
         \"cacheDuration\":\"{life}\",\"auth\":{{\"a.r.io\":{{\"username\":\"u\",\
         \"password\":\"p\"}}}}}}"
    )
}

fn metrics() -> ImageMetrics {
    ImageMetrics::new(&telemetry::metrics::Registry::new())
}

fn only(setup: ProviderSetup) -> Provider {
    Providers::new(Some(setup), &metrics()).all.pop().unwrap()
}

#[tokio::test]
async fn an_answer_is_kept_for_as_long_as_it_says() {
    let folder = Folder::new();
    let provider = only(folder.plugin(&answer("1h"), 0));
    let config = provider.ask(&metrics(), "a.r.io/x", None).await.unwrap();
    assert_eq!(config["a.r.io"].username, "u");
    assert!(provider.kept("a.r.io/y", None).is_some(), "valid for the registry");
    assert!(provider.kept("b.r.io/y", None).is_none());
    let folder = Folder::new();
    let provider = only(folder.plugin(&answer("0s"), 0));
    provider.ask(&metrics(), "a.r.io/x", None).await.unwrap();
    assert!(provider.kept("a.r.io/x", None).is_none());
    assert_eq!(folder.asked(), 1);
}

#[tokio::test]
async fn a_failing_plugin_is_named_and_counted() {
    let folder = Folder::new();
    let provider = only(folder.plugin("{}", 3));
    let metrics = metrics();
    let why = provider.ask(&metrics, "a.r.io/x", None).await.unwrap_err();
    assert_eq!(
        why,
        "error execing credential provider plugin plug for image a.r.io/x: exit status 3: why\n"
    );
    assert!((metrics.plugin_errors.with(&["plug"]).get() - 1.0).abs() < f64::EPSILON);
}
