//! Credential provider plugins: requests and responses.
//!
//! Upstream: `pkg/credentialprovider/plugin`. Running a plugin is the executor's part.

use super::keyring::{DockerConfig, DockerEntry, hex};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;
use units::GoDuration;

const GROUP: &str = "credentialprovider.kubelet.k8s.io";
const V1: &str = "credentialprovider.kubelet.k8s.io/v1";
/// One plugin.
#[derive(Debug, Clone, PartialEq)]
pub struct ProviderConfig {
    /// Name of the executable.
    pub name: String,
    /// Images it is asked about.
    pub match_images: Vec<String>,
    /// How long responses are cached unless they set a duration.
    pub default_cache_duration: Option<GoDuration>,
    /// Version of request and response.
    pub api_version: String,
    /// Arguments.
    pub args: Vec<String>,
    /// Additional environment.
    pub env: Vec<ExecEnv>,
    /// Set when the plugin gets service account tokens.
    pub token_attributes: Option<TokenAttributes>,
}

/// A variable for a plugin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecEnv {
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: String,
}

/// How service account tokens are given to a plugin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenAttributes {
    /// Audience of the token.
    pub service_account_token_audience: String,
    /// `ServiceAccount` or `Token`.
    pub cache_type: String,
    /// Pods without a service account are not asked about.
    pub require_service_account: Option<bool>,
    /// Annotations the service account must have.
    pub required_service_account_annotation_keys: Vec<String>,
    /// Annotations passed on when it has them.
    pub optional_service_account_annotation_keys: Vec<String>,
}

/// The service account a request is made for.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct AccountFacts {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
    /// The annotations the plugin may see.
    pub annotations: BTreeMap<String, String>,
    /// A token for it.
    pub token: String,
}

impl fmt::Debug for AccountFacts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AccountFacts")
            .field("namespace", &self.namespace)
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl TokenAttributes {
    /// The annotations to pass on; `None` when a required one is missing.
    pub fn annotations(
        &self,
        all: Option<&BTreeMap<String, String>>,
    ) -> Option<BTreeMap<String, String>> {
        let get = |key: &String| all.and_then(|a| a.get(key)).map(|v| (key.clone(), v.clone()));
        let mut passed = BTreeMap::new();
        for key in &self.required_service_account_annotation_keys {
            passed.extend([get(key)?]);
        }
        passed.extend(self.optional_service_account_annotation_keys.iter().filter_map(get));
        Some(passed)
    }
}

/// The request's JSON.
pub fn request_json(
    provider: &ProviderConfig,
    image: &str,
    account: Option<&AccountFacts>,
) -> Result<Vec<u8>, serde_json::Error> {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Request<'a> {
        kind: &'a str,
        api_version: &'a str,
        image: &'a str,
        #[serde(skip_serializing_if = "str::is_empty")]
        service_account_token: &'a str,
        #[serde(skip_serializing_if = "BTreeMap::is_empty")]
        service_account_annotations: &'a BTreeMap<String, String>,
    }
    let none = AccountFacts::default();
    let account = account.filter(|_| provider.api_version == V1).unwrap_or(&none);
    let request = Request {
        kind: "CredentialProviderRequest",
        api_version: &provider.api_version,
        image,
        service_account_token: &account.token,
        service_account_annotations: &account.annotations,
    };
    Ok(format!("{}\n", units::gojson::to_string(&request)?).into_bytes())
}

/// What a response is valid for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
enum CacheKeyType {
    Image,
    Registry,
    Global,
}

/// Why a response is not used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ResponseError {
    /// Another version than configured.
    #[error(
        "apiVersion from credential plugin response did not match expected apiVersion:{expected}, \
         actual apiVersion:{actual}"
    )]
    Version {
        /// As configured.
        expected: String,
        /// As answered.
        actual: String,
    },
    /// Not JSON of the wanted form.
    #[error("error decoding credential provider plugin response from stdout")]
    Malformed,
    /// The token came back as password, where it must not be cached.
    #[error(
        "credential provider plugin returned the service account token as the password which is \
         not allowed when service account cache type is not set to 'Token'"
    )]
    TokenAsPassword,
}

/// A usable response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// Credentials by image pattern.
    pub config: DockerConfig,
    /// Cache key and duration; `None` when it must not be cached.
    pub keep: Option<(Vec<u8>, Duration)>,
}

/// Reads a plugin's answer about `image`.
pub fn read_response(
    provider: &ProviderConfig,
    image: &str,
    account: Option<&AccountFacts>,
    stdout: &[u8],
) -> Result<Answer, ResponseError> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Head {
        #[serde(default)]
        api_version: String,
    }
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields, rename_all = "camelCase")]
    struct Body {
        kind: String,
        api_version: String,
        cache_key_type: CacheKeyType,
        cache_duration: Option<GoDuration>,
        #[serde(default)]
        auth: Option<BTreeMap<String, Auth>>,
    }
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Auth {
        #[serde(default)]
        username: String,
        #[serde(default)]
        password: String,
    }
    let head: Head = serde_json::from_slice(stdout).map_err(|_| ResponseError::Malformed)?;
    if head.api_version != provider.api_version {
        return Err(ResponseError::Version {
            expected: provider.api_version.clone(),
            actual: head.api_version,
        });
    }
    let body: Body = serde_json::from_slice(stdout).map_err(|_| ResponseError::Malformed)?;
    let group = body.api_version.split('/').next().unwrap_or_default();
    if body.kind != "CredentialProviderResponse" || group != GROUP {
        return Err(ResponseError::Malformed);
    }
    let token = account.map(|a| a.token.as_str()).unwrap_or_default();
    let auth = body.auth.unwrap_or_default();
    let by_token = provider.token_attributes.as_ref().is_some_and(|t| t.cache_type == "Token");
    if !token.is_empty() && !by_token && auth.values().any(|a| a.password == token) {
        return Err(ResponseError::TokenAsPassword);
    }
    let base = match body.cache_key_type {
        CacheKeyType::Image => image,
        CacheKeyType::Registry => registry(image),
        CacheKeyType::Global => GLOBAL,
    };
    let life = body.cache_duration.or(provider.default_cache_duration);
    let life = life.and_then(|d| u64::try_from(d.as_nanos()).ok()).filter(|n| *n > 0);
    let keep = life.map(|nanos| (cache_key(provider, base, account), Duration::from_nanos(nanos)));
    let config = auth
        .into_iter()
        .map(|(pattern, a)| {
            let entry =
                DockerEntry { username: a.username, password: a.password, email: String::new() };
            (pattern, entry)
        })
        .collect();
    Ok(Answer { config, keep })
}

const GLOBAL: &str = "<global>";

/// Keys under which an earlier response may be cached, the narrowest first.
pub fn cache_keys(
    provider: &ProviderConfig,
    image: &str,
    account: Option<&AccountFacts>,
) -> [Vec<u8>; 3] {
    [image, registry(image), GLOBAL].map(|base| cache_key(provider, base, account))
}

/// Requests with the same key are one request.
pub fn flight_key(image: &str, account: Option<&AccountFacts>) -> Vec<u8> {
    let mut key = Vec::new();
    add_text(&mut key, image);
    if let Some(account) = account {
        add_text(&mut key, &token_hash(&account.token));
        add_annotations(&mut key, &account.annotations);
    }
    key
}

fn cache_key(provider: &ProviderConfig, base: &str, account: Option<&AccountFacts>) -> Vec<u8> {
    let mut own = Vec::new();
    if let Some(account) = account {
        for text in [&account.namespace, &account.name, &account.uid] {
            add_text(&mut own, text);
        }
        add_annotations(&mut own, &account.annotations);
        if provider.token_attributes.as_ref().is_some_and(|t| t.cache_type == "Token") {
            add_text(&mut own, "token");
            add_text(&mut own, &token_hash(&account.token));
        }
    }
    let mut key = Vec::new();
    add_text(&mut key, base);
    add_bytes(&mut key, &own);
    key
}

fn registry(image: &str) -> &str {
    image.split('/').next().unwrap_or_default()
}

fn token_hash(token: &str) -> String {
    match token {
        "" => String::new(),
        token => format!("sha256:{}", hex(&Sha256::digest(token.as_bytes()))),
    }
}

fn add_annotations(key: &mut Vec<u8>, annotations: &BTreeMap<String, String>) {
    key.extend_from_slice(&annotations.len().to_be_bytes());
    for (name, value) in annotations {
        add_text(key, name);
        add_text(key, value);
    }
}

fn add_text(key: &mut Vec<u8>, text: &str) {
    add_bytes(key, text.as_bytes());
}

/// Length first, so that no two lists of texts have the same key.
fn add_bytes(key: &mut Vec<u8>, bytes: &[u8]) {
    key.extend_from_slice(&bytes.len().to_be_bytes());
    key.extend_from_slice(bytes);
}

#[cfg(test)]
mod tests;
