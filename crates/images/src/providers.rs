//! Credential provider plugins: executables that know passwords of registries.
//!
//! Each is asked on its standard input and answers on its standard output within a minute. Answers
//! are kept as long as they say; identical questions at one time are one execution. A plugin that
//! fails is logged and counted, and the pull goes on without it.

use super::ensure::Inner;
use super::metrics::ImageMetrics;
use api::pod::PodExt;
use engine::image::keyring::{Coordinates, CredentialSource, DockerConfig, Keyring, matches_image};
use engine::image::provider::{
    AccountFacts, ProviderConfig, cache_keys, flight_key, read_response, request_json,
};
use ports::EnsureImage;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::AsyncWriteExt as _;
use tokio::sync::OnceCell;
use tokio::time::Instant;

const TIMEOUT: Duration = Duration::from_secs(60);
/// Life time asked for service account tokens; the API server's default.
const TOKEN_SECONDS: i64 = 3600;

/// Plugins as configured; who reads the configuration has checked it.
#[derive(Debug, Clone)]
pub struct ProviderSetup {
    /// The plugins, in order.
    pub providers: Vec<ProviderConfig>,
    /// Where their programs are.
    pub bin_dir: PathBuf,
    /// A digest of the configuration's files, for a metric.
    pub hash: String,
}

/// The plugins at work.
#[derive(Debug, Default)]
pub(super) struct Providers {
    all: Vec<Provider>,
}

impl Providers {
    pub(super) fn new(setup: Option<ProviderSetup>, metrics: &ImageMetrics) -> Self {
        let Some(setup) = setup else { return Self::default() };
        metrics.plugin_config.set(&[&setup.hash], 1.0);
        let bin_dir = setup.bin_dir;
        let new = |config: ProviderConfig| Provider {
            path: bin_dir.join(&config.name),
            config,
            kept: Mutex::default(),
            flights: Mutex::default(),
        };
        Self { all: setup.providers.into_iter().map(new).collect() }
    }

    /// What all plugins that know the repository answer.
    pub(super) async fn keyring(
        &self,
        inner: &Inner,
        request: &EnsureImage,
        repository: &str,
    ) -> Keyring {
        let mut keyring = Keyring::default();
        for provider in &self.all {
            let known = provider.config.match_images.iter().any(|m| matches_image(m, repository));
            if !known {
                continue;
            }
            match provider.provide(inner, request, repository).await {
                Ok(Some((config, source))) => keyring.add(source.as_ref(), &config),
                Ok(None) => {}
                Err(why) => {
                    let (provider, image) = (&provider.config.name, repository);
                    tracing::error!(provider, image, err = %why, "no credentials from plugin");
                }
            }
        }
        keyring
    }
}

#[derive(Debug)]
struct Provider {
    config: ProviderConfig,
    path: PathBuf,
    kept: Mutex<BTreeMap<Vec<u8>, CachedCredentials>>,
    flights: Mutex<BTreeMap<Vec<u8>, Flight>>,
}

#[derive(Debug, Clone)]
struct CachedCredentials {
    config: DockerConfig,
    until: Instant,
}

/// An execution that several may wait for.
type Flight = Arc<OnceCell<Result<DockerConfig, String>>>;

impl Provider {
    async fn provide(
        &self,
        inner: &Inner,
        request: &EnsureImage,
        repository: &str,
    ) -> Result<Option<(DockerConfig, Option<CredentialSource>)>, String> {
        let account = match self.account(inner, request).await? {
            Account::Skip => return Ok(None),
            Account::None => None,
            Account::Facts(facts) => Some(facts),
        };
        let source = account.as_ref().map(|a| {
            CredentialSource::ServiceAccount(Coordinates {
                namespace: a.namespace.clone(),
                name: a.name.clone(),
                uid: a.uid.clone(),
            })
        });
        if let Some(config) = self.kept(repository, account.as_ref()) {
            return Ok(Some((config, source)));
        }
        let key = flight_key(repository, account.as_ref());
        let flight = {
            let mut flights = self.flights.lock().map_err(|e| e.to_string())?;
            Arc::clone(flights.entry(key.clone()).or_default())
        };
        let answer = flight
            .get_or_init(|| async {
                let answer = self.ask(&inner.metrics, repository, account.as_ref()).await;
                // Later questions ask anew; those already waiting share this answer.
                if let Ok(mut flights) = self.flights.lock() {
                    flights.remove(&key);
                }
                answer
            })
            .await;
        Ok(Some((answer.clone()?, source)))
    }

    /// The service account to ask for, if the plugin wants one.
    async fn account(&self, inner: &Inner, request: &EnsureImage) -> Result<Account, String> {
        let Some(attributes) = &self.config.token_attributes else { return Ok(Account::None) };
        let pod = &request.pod;
        let name = pod.spec.as_ref().and_then(|s| s.service_account_name.as_deref());
        let Some(name) = name.filter(|n| !n.is_empty()) else {
            let required = attributes.require_service_account.unwrap_or(true);
            return Ok(if required { Account::Skip } else { Account::None });
        };
        let namespace = pod.namespace_str();
        let object = inner.objects.service_account(namespace, name).await;
        let object = object.map_err(|e| format!("failed to get service account: {e}"))?;
        let Some(annotations) = attributes.annotations(object.metadata.annotations.as_ref()) else {
            return Ok(Account::Skip);
        };
        let token = ports::TokenRequest {
            namespace: namespace.into(),
            service_account: name.into(),
            // One of the same name that came after it is somebody else.
            service_account_uid: object.metadata.uid.clone().unwrap_or_default(),
            pod_name: pod.metadata.name.clone().unwrap_or_default(),
            pod_uid: pod.metadata.uid.clone().unwrap_or_default(),
            audiences: vec![attributes.service_account_token_audience.clone()],
            expiration_seconds: TOKEN_SECONDS,
        };
        let token = inner.objects.token(&token).await;
        let token = token.map_err(|e| format!("failed to get service account token: {e}"))?.token;
        Ok(Account::Facts(AccountFacts {
            namespace: namespace.into(),
            name: name.into(),
            uid: object.metadata.uid.clone().unwrap_or_default(),
            annotations,
            token,
        }))
    }

    fn kept(&self, repository: &str, account: Option<&AccountFacts>) -> Option<DockerConfig> {
        let now = Instant::now();
        let mut kept = self.kept.lock().ok()?;
        kept.retain(|_, entry| entry.until > now);
        let keys = cache_keys(&self.config, repository, account);
        keys.iter().find_map(|key| kept.get(key)).map(|entry| entry.config.clone())
    }

    async fn ask(
        &self,
        metrics: &ImageMetrics,
        repository: &str,
        account: Option<&AccountFacts>,
    ) -> Result<DockerConfig, String> {
        let name = &self.config.name;
        let question = request_json(&self.config, repository, account)
            .map_err(|e| format!("failed to encode auth request: {e}"))?;
        let begun = Instant::now();
        let ran = tokio::time::timeout(TIMEOUT, self.run(&question)).await;
        metrics.plugin_duration.observe_duration(&[name], begun.elapsed());
        let ran = ran.unwrap_or_else(|_| Err("context deadline exceeded".into()));
        let stdout = ran.map_err(|why| {
            metrics.plugin_errors.inc(&[name]);
            format!("error execing credential provider plugin {name} for image {repository}: {why}")
        })?;
        let answer =
            read_response(&self.config, repository, account, &stdout).map_err(|e| e.to_string())?;
        if let (Some((key, life)), Ok(mut kept)) = (answer.keep, self.kept.lock()) {
            let until = Instant::now() + life;
            kept.insert(key, CachedCredentials { config: answer.config.clone(), until });
        }
        Ok(answer.config)
    }

    async fn run(&self, question: &[u8]) -> Result<Vec<u8>, String> {
        let mut child = tokio::process::Command::new(&self.path)
            .args(&self.config.args)
            .envs(self.config.env.iter().map(|e| (&e.name, &e.value)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(|e| e.to_string())?;
        if let Some(mut stdin) = child.stdin.take() {
            // A plugin may answer without reading the question.
            let _ = stdin.write_all(question).await;
        }
        let output = child.wait_with_output().await.map_err(|e| e.to_string())?;
        if output.status.success() {
            return Ok(output.stdout);
        }
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        Err(match output.status.code() {
            Some(code) => format!("exit status {code}: {stderr}"),
            None => format!("{}: {stderr}", output.status),
        })
    }
}

enum Account {
    /// The plugin is not asked.
    Skip,
    /// It is asked without an account.
    None,
    /// It is asked for this one.
    Facts(AccountFacts),
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "tests make their own files")]
mod tests;
