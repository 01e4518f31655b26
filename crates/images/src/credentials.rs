//! Credentials for an image: the pod's pull secrets, then the node's docker configuration, then
//! credential provider plugins.

use super::ensure::Inner;
use engine::image::keyring::{
    Credential, Keyring, look_up_all, of_secrets, parse_config, parse_config_json,
};
use engine::image::reference;
use ports::{EnsureImage, ImageFault};
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Duration;
use tokio::time::Instant;

const NODE_CONFIG_LIFE: Duration = Duration::from_secs(300);

/// Folders in which the node's own docker configuration is looked for, in order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DockerConfigPlaces {
    /// Folders of `config.json`.
    pub config_json: Vec<PathBuf>,
    /// Folders of `.dockercfg`, used when there is no valid `config.json`.
    pub dockercfg: Vec<PathBuf>,
}

impl DockerConfigPlaces {
    /// Upstream's places: root directory, working directory, home, `/`.
    pub fn of_node(kubelet_root: PathBuf, working: PathBuf, home: Option<PathBuf>) -> Self {
        let mut config_json = vec![kubelet_root.clone(), working.clone()];
        let mut dockercfg = vec![kubelet_root, working];
        if let Some(home) = home {
            config_json.push(home.join(".docker"));
            dockercfg.push(home);
        }
        config_json.push("/.docker".into());
        dockercfg.push("/".into());
        Self { config_json, dockercfg }
    }

    fn read(&self) -> Keyring {
        let read = |folder: &PathBuf, name: &str| sys::fs::read(folder.join(name)).ok();
        let found = self
            .config_json
            .iter()
            .find_map(|f| parse_config_json(&read(f, "config.json")?).ok())
            .or_else(|| {
                self.dockercfg.iter().find_map(|f| parse_config(&read(f, ".dockercfg")?).ok())
            });
        let mut keyring = Keyring::default();
        keyring.add(None, &found.unwrap_or_default());
        keyring
    }
}

/// The node's docker configuration, read again when it is old.
#[derive(Debug)]
pub(super) struct NodeKeyring {
    places: DockerConfigPlaces,
    cached: Mutex<Option<(Instant, Keyring)>>,
}

impl NodeKeyring {
    pub(super) fn new(places: DockerConfigPlaces) -> Self {
        Self { places, cached: Mutex::default() }
    }

    async fn get(&self) -> Keyring {
        let now = Instant::now();
        if let Ok(cached) = self.cached.lock()
            && let Some((at, keyring)) = cached.as_ref()
            && now.duration_since(*at) < NODE_CONFIG_LIFE
        {
            return keyring.clone();
        }
        let places = self.places.clone();
        let keyring = sys::blocking::run(move || places.read()).await.unwrap_or_default();
        if let Ok(mut cached) = self.cached.lock() {
            *cached = Some((now, keyring.clone()));
        }
        keyring
    }
}

impl Inner {
    /// Every credential that fits the image, in the order in which they are tried.
    pub(super) async fn credentials(
        &self,
        request: &EnsureImage,
        image: &str,
    ) -> Result<Vec<Credential>, ImageFault> {
        // Upstream shows the raw text as reason and as message.
        let raw = |text: String| ImageFault { reason: text.clone(), message: text };
        let name = reference::parse(image).map_err(|e| {
            raw(format!("couldn't parse image name {}: {e}", units::strconv::quote(image)))
        })?;
        let own = of_secrets(request.secrets.iter().map(AsRef::as_ref))
            .map_err(|e| raw(e.to_string()))?;
        let node = self.node_keyring.get().await;
        let plugins = self.providers.keyring(self, request, &name.repository).await;
        Ok(look_up_all([&own, &node, &plugins], &name.repository))
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "tests make their own files")]
mod tests {
    use super::*;

    #[test]
    fn the_first_valid_file_wins_and_the_old_form_is_the_last_resort() {
        let root = std::env::temp_dir().join(format!("rubelet-docker-{}", std::process::id()));
        let (a, b) = (root.join("a"), root.join("b"));
        for folder in [&a, &b] {
            std::fs::create_dir_all(folder).unwrap();
        }
        let places = DockerConfigPlaces {
            config_json: vec![a.clone(), b.clone()],
            dockercfg: vec![a.clone(), b.clone()],
        };
        let user = || places.read().look_up("r.io/x").into_iter().next().map(|c| c.username);
        assert_eq!(user(), None);
        std::fs::write(b.join(".dockercfg"), r#"{"r.io":{"username":"old"}}"#).unwrap();
        assert_eq!(user().as_deref(), Some("old"));
        std::fs::write(b.join("config.json"), r#"{"auths":{"r.io":{"username":"new"}}}"#).unwrap();
        assert_eq!(user().as_deref(), Some("new"));
        std::fs::write(a.join("config.json"), "broken").unwrap();
        assert_eq!(user().as_deref(), Some("new"));
        std::fs::write(a.join("config.json"), "{}").unwrap();
        assert_eq!(user(), None, "a valid file without entries still wins");
        std::fs::remove_dir_all(root).unwrap();
    }
}
