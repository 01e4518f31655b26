//! The files of configMap, secret and downwardAPI volumes.

use super::fields::{AllocatableResources, field_value, resource_value};
use api::core::v1::{ConfigMap, DownwardAPIVolumeFile, KeyToPath, Pod, Secret};
use std::collections::BTreeMap;

/// Upstream's `MaxPathLength` and `MaxFileNameLength`.
const MAX_PATH: usize = 4096;
const MAX_NAME: usize = 255;

/// One file.
#[derive(Clone, PartialEq, Eq)]
pub struct FileContent {
    /// Its bytes; never shown in `Debug`, they may be secret.
    pub bytes: Vec<u8>,
    /// Its permission bits.
    pub mode: u32,
    /// Its owner, if not root.
    pub uid: Option<u32>,
}

impl std::fmt::Debug for FileContent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FileContent")
            .field("len", &self.bytes.len())
            .field("mode", &format_args!("{:o}", self.mode))
            .finish_non_exhaustive()
    }
}

/// All files of a volume by relative path.
pub type Payload = BTreeMap<String, FileContent>;

/// Why a source gives no files. Display is upstream's text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SourceError {
    /// A secret has no such key.
    #[error("references non-existent secret key: {0}")]
    SecretKey(String),
    /// A config map has no such key.
    #[error("configmap references non-existent config key: {0}")]
    ConfigKey(String),
    /// No `defaultMode`; the API server always sets one.
    #[error("no defaultMode used, not even the default value for it")]
    NoDefaultMode,
    /// No such field.
    #[error("unsupported fieldPath: {0}")]
    FieldPath(String),
    /// Only labels and annotations have keys.
    #[error("fieldPath {0:?} does not support subscript")]
    Subscript(String),
    /// No such resource.
    #[error("unsupported container resource : {0}")]
    Resource(String),
    /// No such container.
    #[error("container {0} not found")]
    NoContainer(String),
    /// Several at once.
    #[error("[{}]", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))]
    Several(Vec<SourceError>),
}

/// Why a payload cannot be written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ContentError {
    /// Empty path.
    #[error("invalid path: must not be empty: \"\"")]
    Empty,
    /// Absolute path.
    #[error("invalid path: must be relative path: {0}")]
    Absolute(String),
    /// Too long.
    #[error("invalid path: must be less than or equal to {MAX_PATH} characters")]
    TooLong,
    /// An element is too long.
    #[error("invalid path: filenames must be less than or equal to {MAX_NAME} characters")]
    NameTooLong,
    /// `..` anywhere.
    #[error("invalid path: must not contain '..': {0}")]
    DotDot(String),
    /// Reserved for the writer's own entries.
    #[error("invalid path: must not start with '..': {0}")]
    Reserved(String),
}

fn mode_bits(mode: i32) -> u32 {
    mode.unsigned_abs() & 0o7777
}

/// Adds a file; a later one of the same path wins.
pub fn insert_file(payload: &mut Payload, path: &str, bytes: Vec<u8>, mode: i32) {
    let file = FileContent { bytes, mode: mode_bits(mode), uid: None };
    payload.insert(path.to_owned(), file);
}

/// Checks every path and returns them cleaned.
pub fn check_payload(payload: Payload) -> Result<Payload, ContentError> {
    payload.into_iter().map(|(path, file)| Ok((check_path(&path)?, file))).collect()
}

fn check_path(path: &str) -> Result<String, ContentError> {
    if path.is_empty() {
        return Err(ContentError::Empty);
    }
    if path.starts_with('/') {
        return Err(ContentError::Absolute(path.to_owned()));
    }
    if path.len() > MAX_PATH {
        return Err(ContentError::TooLong);
    }
    let parts: Vec<&str> = path.split('/').filter(|p| !p.is_empty() && *p != ".").collect();
    if parts.contains(&"..") {
        return Err(ContentError::DotDot(path.to_owned()));
    }
    if parts.iter().any(|p| p.len() > MAX_NAME) {
        return Err(ContentError::NameTooLong);
    }
    match parts.first() {
        None => Err(ContentError::Empty),
        Some(first) if first.starts_with("..") => Err(ContentError::Reserved(path.to_owned())),
        Some(_) => Ok(parts.join("/")),
    }
}

/// Files from a config map; `None` stands for a missing optional one.
pub fn config_map_files(
    config_map: Option<&ConfigMap>,
    items: Option<&[KeyToPath]>,
    default_mode: Option<i32>,
    optional: bool,
) -> Result<Payload, SourceError> {
    let default_mode = default_mode.ok_or(SourceError::NoDefaultMode)?;
    let mut all: BTreeMap<&str, &[u8]> = BTreeMap::new();
    if let Some(map) = config_map {
        // A key in both is taken from `binaryData` when all are listed, from `data` by item.
        for (key, text) in map.data.iter().flatten() {
            all.insert(key, text.as_bytes());
        }
        for (key, bytes) in map.binary_data.iter().flatten() {
            let listed = items.is_some_and(|i| !i.is_empty());
            if !(listed && all.contains_key(key.as_str())) {
                all.insert(key, &bytes.0);
            }
        }
    }
    select(&all, items, default_mode, optional, SourceError::ConfigKey)
}

/// Files from a secret; `None` stands for a missing optional one.
pub fn secret_files(
    secret: Option<&Secret>,
    items: Option<&[KeyToPath]>,
    default_mode: Option<i32>,
    optional: bool,
) -> Result<Payload, SourceError> {
    let default_mode = default_mode.ok_or(SourceError::NoDefaultMode)?;
    let all = secret
        .and_then(|s| s.data.as_ref())
        .into_iter()
        .flatten()
        .map(|(key, bytes)| (key.as_str(), bytes.0.as_slice()))
        .collect();
    select(&all, items, default_mode, optional, SourceError::SecretKey)
}

fn select(
    all: &BTreeMap<&str, &[u8]>,
    items: Option<&[KeyToPath]>,
    default_mode: i32,
    optional: bool,
    missing: fn(String) -> SourceError,
) -> Result<Payload, SourceError> {
    let mut payload = Payload::new();
    let items = items.unwrap_or_default();
    if items.is_empty() {
        for (key, bytes) in all {
            insert_file(&mut payload, key, bytes.to_vec(), default_mode);
        }
    }
    for item in items {
        match all.get(item.key.as_str()) {
            Some(bytes) => {
                let mode = item.mode.unwrap_or(default_mode);
                insert_file(&mut payload, &item.path, bytes.to_vec(), mode);
            }
            None if optional => {}
            None => return Err(missing(item.key.clone())),
        }
    }
    Ok(payload)
}

/// Files from the pod's own fields; the error lists all failures.
pub fn downward_files(
    pod: &Pod,
    items: Option<&[DownwardAPIVolumeFile]>,
    default_mode: Option<i32>,
    allocatable: &AllocatableResources,
) -> Result<Payload, SourceError> {
    let default_mode = default_mode.ok_or(SourceError::NoDefaultMode)?;
    let mut payload = Payload::new();
    let mut errors = Vec::new();
    for item in items.unwrap_or_default() {
        let value = if let Some(field) = &item.field_ref {
            field_value(pod, &field.field_path)
        } else if let Some(resource) = &item.resource_field_ref {
            resource_value(pod, resource, allocatable)
        } else {
            Ok(String::new())
        };
        match value {
            Ok(text) => {
                let mode = item.mode.unwrap_or(default_mode);
                insert_file(&mut payload, &item.path, text.into_bytes(), mode);
            }
            Err(e) => errors.push(e),
        }
    }
    match errors.len() {
        0 => Ok(payload),
        1 => Err(errors.remove(0)),
        _ => Err(SourceError::Several(errors)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn items(value: serde_json::Value) -> Vec<KeyToPath> {
        serde_json::from_value(value).unwrap()
    }

    fn map() -> ConfigMap {
        serde_json::from_value(json!({"data": {"a": "1"}, "binaryData": {"b": "AAE="}})).unwrap()
    }

    #[test]
    fn all_keys_or_the_chosen_ones_with_their_modes() {
        let map = map();
        let all = config_map_files(Some(&map), None, Some(0o644), false).unwrap();
        assert_eq!(all.keys().collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(all["b"].bytes, [0, 1]);
        let chosen = items(json!([{"key": "a", "path": "x/y", "mode": 256}]));
        let chosen = config_map_files(Some(&map), Some(&chosen), Some(0o644), false).unwrap();
        assert_eq!(chosen["x/y"].mode, 0o400);
        assert_eq!(chosen.len(), 1);
    }

    #[test]
    fn a_missing_key_is_an_error_unless_optional() {
        let wanted = items(json!([{"key": "z", "path": "z"}]));
        let error = config_map_files(Some(&map()), Some(&wanted), Some(0o644), false).unwrap_err();
        assert_eq!(error.to_string(), "configmap references non-existent config key: z");
        let error = secret_files(None, Some(&wanted), Some(0o644), false).unwrap_err();
        assert_eq!(error.to_string(), "references non-existent secret key: z");
        assert!(secret_files(None, Some(&wanted), Some(0o644), true).unwrap().is_empty());
        assert_eq!(
            secret_files(None, None, None, true).unwrap_err().to_string(),
            "no defaultMode used, not even the default value for it"
        );
    }

    #[test]
    fn paths_cannot_leave_the_volume_nor_touch_the_writers_own_entries() {
        for bad in ["", "/a", "a/../b", "..", "../a", "..data", "..data/x", "..2020/x", "."] {
            assert!(check_path(bad).is_err(), "{bad:?}");
        }
        assert!(check_path(&"a/".repeat(3000)).is_err());
        assert!(check_path(&"a".repeat(256)).is_err());
        for good in ["a", "a/b", "a/..b", ".hidden", "a..b"] {
            assert_eq!(check_path(good).unwrap(), good);
        }
        assert_eq!(check_path("a//./b").unwrap(), "a/b");
    }

    #[test]
    fn bytes_are_never_printed() {
        let file = FileContent { bytes: b"hunter2".to_vec(), mode: 0o600, uid: None };
        assert!(!format!("{file:?}").contains("hunter2"));
    }
}
