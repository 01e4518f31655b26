//! Records of which credentials an image was pulled with, and whether a pod may use an image that is
//! already present.
//!
//! Upstream: `pkg/kubelet/images/pullmanager`. File contents are those of the Go kubelet
//! (`kubelet.config.k8s.io/v1beta1`); either agent reads the other's.

use super::keyring::{Coordinates, Credential, CredentialSource, hex};
use super::reference::without_tag;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use std::collections::{BTreeMap, BTreeSet};

/// The API version we write.
pub const VERSION: &str = "kubelet.config.k8s.io/v1beta1";
const OLD_VERSION: &str = "kubelet.config.k8s.io/v1alpha1";
/// From this many secrets on, a mere match is no longer recorded.
const SECRETS_LIMIT: usize = 100;

/// Why a record file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// Not JSON of the wanted form.
    #[error("malformed record")]
    Json(#[from] serde_json::Error),
    /// Another kind or version.
    #[error("unexpected {kind} of {version}")]
    Kind {
        /// The kind found.
        kind: String,
        /// The version found.
        version: String,
    },
}

/// A pull that was begun: kept until its result is known.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct PullIntent {
    kind: String,
    api_version: String,
    /// The image as the pod spec has it.
    pub image: String,
}

impl PullIntent {
    /// A new intent.
    pub fn new(image: &str) -> Self {
        Self { kind: "ImagePullIntent".into(), api_version: VERSION.into(), image: image.into() }
    }

    /// Reads a file.
    pub fn decode(bytes: &[u8]) -> Result<Self, RecordError> {
        let intent: Self = serde_json::from_slice(bytes)?;
        check(&intent.kind, &intent.api_version, "ImagePullIntent")?;
        Ok(intent)
    }

    /// The file's content.
    pub fn encode(&self) -> Result<Vec<u8>, RecordError> {
        let current = Self { api_version: VERSION.into(), ..self.clone() };
        Ok(format!("{}\n", units::gojson::to_string(&current)?).into_bytes())
    }

    /// Whether the file has the version we write.
    pub fn is_current(&self) -> bool {
        self.api_version == VERSION
    }
}

/// An image the node pulled, and who may use it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct PulledRecord {
    kind: String,
    api_version: String,
    /// When it last changed.
    #[serde(with = "seconds")]
    pub last_updated_time: Timestamp,
    /// The image's id in the runtime.
    pub image_ref: String,
    /// Credentials by image name without tag and digest.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub credential_mapping: BTreeMap<String, PullCredentials>,
}

/// Credentials that had access to an image.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct PullCredentials {
    /// Pull secrets.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub kubernetes_secrets: Vec<PullSecret>,
    /// Service accounts.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub kubernetes_service_accounts: Vec<PullServiceAccount>,
    /// Every pod of the node has access.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub node_pods_accessible: bool,
}

/// A secret that had access.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct PullSecret {
    /// UID of the secret.
    pub uid: String,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Hash of the credentials that were used.
    pub credential_hash: String,
}

/// A service account that had access.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct PullServiceAccount {
    /// UID of the service account.
    pub uid: String,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl PullSecret {
    fn place(&self) -> Coordinates {
        Coordinates {
            namespace: self.namespace.clone(),
            name: self.name.clone(),
            uid: self.uid.clone(),
        }
    }
}

impl PullCredentials {
    /// What to remember of a pull that succeeded with these credentials (`None`: anonymous).
    pub fn of_pull(used: Option<&Credential>) -> Self {
        match used.and_then(|c| c.source.as_ref().map(|s| (c, s))) {
            None => Self { node_pods_accessible: true, ..Self::default() },
            Some((credential, CredentialSource::Secret(at))) => Self {
                kubernetes_secrets: vec![PullSecret {
                    uid: at.uid.clone(),
                    namespace: at.namespace.clone(),
                    name: at.name.clone(),
                    credential_hash: credential.hash.clone(),
                }],
                ..Self::default()
            },
            Some((_, CredentialSource::ServiceAccount(at))) => {
                Self { kubernetes_service_accounts: vec![service_account(at)], ..Self::default() }
            }
        }
    }

    /// Adds other credentials; false when nothing changed.
    fn merge(&mut self, other: &Self) -> bool {
        if self.node_pods_accessible {
            return false;
        }
        if other.node_pods_accessible {
            *self = Self { node_pods_accessible: true, ..Self::default() };
            return true;
        }
        let before = self.clone();
        if other.kubernetes_secrets.is_empty() {
            self.kubernetes_service_accounts.extend(other.kubernetes_service_accounts.clone());
            let key = |a: &PullServiceAccount| (a.namespace.clone(), a.name.clone(), a.uid.clone());
            self.kubernetes_service_accounts.sort_by_key(key);
            self.kubernetes_service_accounts.dedup();
        } else {
            let all = self.kubernetes_secrets.iter().chain(&other.kubernetes_secrets);
            let by_place: BTreeMap<Coordinates, PullSecret> =
                all.map(|s| (s.place(), s.clone())).collect();
            self.kubernetes_secrets = by_place.into_values().collect();
        }
        *self != before
    }
}

impl PulledRecord {
    /// A record without credentials.
    pub fn new(image_ref: &str, now: Timestamp) -> Self {
        Self {
            kind: "ImagePulledRecord".into(),
            api_version: VERSION.into(),
            last_updated_time: now,
            image_ref: image_ref.into(),
            credential_mapping: BTreeMap::new(),
        }
    }

    /// Reads a file.
    pub fn decode(bytes: &[u8]) -> Result<Self, RecordError> {
        let record: Self = serde_json::from_slice(bytes)?;
        check(&record.kind, &record.api_version, "ImagePulledRecord")?;
        Ok(record)
    }

    /// The file's content.
    pub fn encode(&self) -> Result<Vec<u8>, RecordError> {
        let current = Self { api_version: VERSION.into(), ..self.clone() };
        Ok(format!("{}\n", units::gojson::to_string(&current)?).into_bytes())
    }

    /// Whether the file has the version we write.
    pub fn is_current(&self) -> bool {
        self.api_version == VERSION
    }

    /// The record after a pull: `None` when there is nothing to write.
    pub fn with(
        existing: Option<&Self>,
        image: &str,
        image_ref: &str,
        credentials: Option<&PullCredentials>,
        now: Timestamp,
    ) -> Option<Self> {
        let name = without_tag(image).ok()?;
        let Some(existing) = existing else {
            let mut record = Self::new(image_ref, now);
            if let Some(credentials) = credentials {
                record.credential_mapping.insert(name.into(), credentials.clone());
            }
            return Some(record);
        };
        let added = credentials.filter(|c| **c != PullCredentials::default())?;
        let mut record = existing.clone();
        match record.credential_mapping.get_mut(name) {
            Some(known) => known.merge(added).then_some(())?,
            None => {
                record.credential_mapping.insert(name.into(), added.clone());
            }
        }
        record.last_updated_time = now;
        Some(record)
    }
}

/// The file name of a record about `subject`.
pub fn file_name(subject: &str) -> String {
    format!("sha256-{}", hex(&Sha256::digest(subject.as_bytes())))
}

/// Whether a file name is one of a record.
pub fn is_record_file(name: &str) -> bool {
    name.starts_with("sha256-") && !name.ends_with(".tmp")
}

/// `imagePullCredentialsVerificationPolicy`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VerificationPolicy {
    /// Every pod may use images that are present.
    NeverVerify,
    /// Only images that we pulled are checked.
    NeverVerifyPreloadedImages,
    /// All but the listed images are checked.
    NeverVerifyAllowlistedImages(AllowList),
    /// All images are checked.
    AlwaysVerify,
}

impl VerificationPolicy {
    fn requires(&self, image: &str, pulled_by_us: bool) -> bool {
        match self {
            Self::NeverVerify => false,
            Self::NeverVerifyPreloadedImages => pulled_by_us,
            Self::NeverVerifyAllowlistedImages(list) => !list.covers(image),
            Self::AlwaysVerify => true,
        }
    }
}

/// `preloadedImagesVerificationAllowlist`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AllowList {
    exact: BTreeSet<String>,
    prefixes: Vec<String>,
}

impl AllowList {
    /// Reads the patterns; the error is upstream's text.
    pub fn parse(patterns: &[String]) -> Result<Self, String> {
        let mut list = Self::default();
        for pattern in patterns {
            if pattern.trim() != pattern {
                return Err(format!("leading/trailing spaces are not allowed: {pattern}"));
            }
            let prefix = pattern.strip_suffix('*').filter(|p| p.ends_with('/'));
            let body = prefix.unwrap_or(pattern);
            if body.is_empty() {
                return Err(format!("the supplied pattern is too short: {pattern}"));
            }
            if body.contains('*') {
                return Err(format!(
                    "not a valid wildcard pattern, only patterns ending with '/*' are allowed: \
                     {pattern}"
                ));
            }
            if prefix.is_some() {
                if body.len() == 1 {
                    return Err("at least registry hostname is required".into());
                }
                list.prefixes.push(body.into());
            } else {
                let name = without_tag(body)
                    .map_err(|e| format!("failed to parse as an image name: {e}"))?;
                if name != body {
                    return Err(format!(
                        "neither tag nor digest is accepted in an image reference: {pattern}"
                    ));
                }
                list.exact.insert(body.into());
            }
        }
        Ok(list)
    }

    fn covers(&self, image: &str) -> bool {
        let name = without_tag(image).unwrap_or(image);
        self.exact.contains(name) || self.prefixes.iter().any(|p| name.starts_with(p.as_str()))
    }
}

/// Whether an image that is present must be pulled again to prove access.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AccessCheck {
    /// The policy asks for nothing.
    PolicyAllows,
    /// The record shows that the pod has access; new information about it should be recorded.
    RecordFound {
        /// A secret to add to the record.
        remember: Option<PullSecret>,
    },
    /// The pod must prove access by a pull.
    MustAuthenticate,
    /// The pod's credentials decide: look them up and call [`check_credentials`].
    CompareCredentials,
}

/// The part of the check that needs no credentials.
pub fn check_access(
    policy: &VerificationPolicy,
    image: &str,
    record: Option<&PulledRecord>,
    intent: bool,
) -> AccessCheck {
    if !policy.requires(image, record.is_some() || intent) {
        return AccessCheck::PolicyAllows;
    }
    match cached(record, image) {
        None => AccessCheck::MustAuthenticate,
        Some(known) if known.node_pods_accessible => AccessCheck::RecordFound { remember: None },
        Some(known)
            if known.kubernetes_secrets.is_empty()
                && known.kubernetes_service_accounts.is_empty() =>
        {
            AccessCheck::MustAuthenticate
        }
        Some(_) => AccessCheck::CompareCredentials,
    }
}

/// Whether one of the pod's credentials had access before.
pub fn check_credentials(
    image: &str,
    record: Option<&PulledRecord>,
    credentials: &[Credential],
) -> AccessCheck {
    let Some(known) = cached(record, image) else { return AccessCheck::MustAuthenticate };
    let room = known.kubernetes_secrets.len() < SECRETS_LIMIT;
    let mut account = None;
    for credential in credentials {
        match &credential.source {
            Some(CredentialSource::Secret(at)) => {
                let own = PullSecret {
                    uid: at.uid.clone(),
                    namespace: at.namespace.clone(),
                    name: at.name.clone(),
                    credential_hash: credential.hash.clone(),
                };
                for other in &known.kubernetes_secrets {
                    let same_hash = !other.credential_hash.is_empty()
                        && other.credential_hash == own.credential_hash;
                    let same_place = other.place() == own.place();
                    if same_hash {
                        let remember = (!same_place && room).then_some(own);
                        return AccessCheck::RecordFound { remember };
                    }
                    if same_place && room {
                        return AccessCheck::RecordFound { remember: Some(own) };
                    }
                }
            }
            // Only the first service account is checked: a pod has one.
            Some(CredentialSource::ServiceAccount(at)) => {
                account.get_or_insert_with(|| service_account(at));
            }
            None => {}
        }
    }
    if account.is_some_and(|a| known.kubernetes_service_accounts.contains(&a)) {
        return AccessCheck::RecordFound { remember: None };
    }
    AccessCheck::MustAuthenticate
}

fn cached<'a>(record: Option<&'a PulledRecord>, image: &str) -> Option<&'a PullCredentials> {
    record?.credential_mapping.get(without_tag(image).ok()?)
}

fn service_account(at: &Coordinates) -> PullServiceAccount {
    PullServiceAccount {
        uid: at.uid.clone(),
        namespace: at.namespace.clone(),
        name: at.name.clone(),
    }
}

fn check(kind: &str, version: &str, wanted: &str) -> Result<(), RecordError> {
    if kind == wanted && [VERSION, OLD_VERSION].contains(&version) {
        return Ok(());
    }
    Err(RecordError::Kind { kind: kind.into(), version: version.into() })
}

/// Times with whole seconds, as Go's `metav1.Time`.
mod seconds {
    use jiff::Timestamp;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(time: &Timestamp, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(&time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Timestamp, D::Error> {
        let text = Option::<String>::deserialize(d)?;
        let text = text.as_deref().unwrap_or("0001-01-01T00:00:00Z");
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests;
