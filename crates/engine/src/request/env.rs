//! A container's environment.
//!
//! Upstream: `Kubelet.makeEnvironmentVariables`. Order of what is sent: placement's variables,
//! the container's own, service variables that the container does not set itself; upstream
//! leaves the order within a group open, ours is by name.

use super::RequestError;
use super::downward::{NodeFacts, field_value, resource_value};
use super::env_file::EnvValues;
use super::expand::{expand, unresolved};
use super::services::service_env;
use api::core::v1::{ConfigMap, Container, EnvVarSource, Pod, Secret, Service};
use api::pod::PodExt;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// One variable. Values may be any bytes.
#[derive(Clone, PartialEq, Eq)]
pub struct EnvVariable {
    /// The name.
    pub name: String,
    /// The value.
    pub value: Vec<u8>,
}

impl std::fmt::Debug for EnvVariable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Values may come from secrets.
        write!(f, "{}=({} bytes)", self.name, self.value.len())
    }
}

/// Why a config map or secret could not be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ObjectMiss {
    /// It does not exist; fine for optional references. Holds the API's text.
    NotFound(String),
    /// Anything else.
    Failed(String),
}

impl From<ObjectMiss> for RequestError {
    fn from(miss: ObjectMiss) -> Self {
        match miss {
            ObjectMiss::NotFound(text) | ObjectMiss::Failed(text) => Self::Object(text),
        }
    }
}

/// An environment file that the executor read for a `fileKeyRef`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EnvFile {
    /// Its path on the host, for messages.
    pub host_path: String,
    /// The variables that were looked for in it.
    pub values: EnvValues,
}

/// Everything a container's environment refers to, fetched beforehand: see [`references`].
#[derive(Debug, Clone, Default)]
pub struct EnvObjects {
    /// Config maps of the pod's namespace by name.
    pub config_maps: BTreeMap<String, Result<Arc<ConfigMap>, ObjectMiss>>,
    /// Secrets of the pod's namespace by name.
    pub secrets: BTreeMap<String, Result<Arc<Secret>, ObjectMiss>>,
    /// Environment files by volume name and path; absent when the volume is not mounted.
    pub files: BTreeMap<(String, String), EnvFile>,
}

/// Names of what a container's environment refers to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EnvReferences {
    /// Config maps.
    pub config_maps: BTreeSet<String>,
    /// Secrets.
    pub secrets: BTreeSet<String>,
    /// Variables that are looked for, by volume name and path of an environment file.
    pub files: BTreeMap<(String, String), BTreeSet<String>>,
}

/// What must be fetched before the environment can be built.
pub fn references(container: &Container) -> EnvReferences {
    let mut all = EnvReferences::default();
    for source in container.env_from.iter().flatten() {
        all.config_maps.extend(source.config_map_ref.iter().map(|r| r.name.clone()));
        all.secrets.extend(source.secret_ref.iter().map(|r| r.name.clone()));
    }
    for variable in container.env.iter().flatten() {
        if variable.value.as_deref().is_some_and(|v| !v.is_empty()) {
            continue;
        }
        let Some(from) = &variable.value_from else { continue };
        all.config_maps.extend(from.config_map_key_ref.iter().map(|r| r.name.clone()));
        all.secrets.extend(from.secret_key_ref.iter().map(|r| r.name.clone()));
        if let Some(r) = &from.file_key_ref {
            let file = (r.volume_name.clone(), r.path.clone());
            all.files.entry(file).or_default().insert(r.key.clone());
        }
    }
    all
}

/// The rest of what the environment is built from.
#[derive(Debug, Clone, Copy)]
pub struct EnvInput<'a> {
    /// The pod.
    pub pod: &'a Pod,
    /// The container.
    pub container: &'a Container,
    /// Addresses of the sandbox.
    pub pod_ips: &'a [String],
    /// The node.
    pub node: NodeFacts<'a>,
    /// All services; `None` while they were not listed once (static pods go on without).
    pub services: Option<&'a [Arc<Service>]>,
    /// Whether `fileKeyRef` counts.
    pub env_files: bool,
    /// What the environment refers to.
    pub objects: &'a EnvObjects,
}

/// The container's own variables followed by service variables.
pub fn environment(input: &EnvInput<'_>) -> Result<Vec<EnvVariable>, RequestError> {
    let spec = input.pod.spec.as_ref();
    let links = spec.and_then(|s| s.enable_service_links).ok_or(RequestError::NoServiceLinks)?;
    if input.services.is_none() && !input.pod.is_static() {
        return Err(RequestError::ServicesUnread);
    }
    let namespace = input.pod.namespace_str();
    let services = service_env(input.services.unwrap_or_default(), namespace, links);
    let mut own: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    add_env_from(input, &mut own)?;
    for variable in input.container.env.iter().flatten() {
        let literal = variable.value.as_deref().unwrap_or_default();
        let value = if !literal.is_empty() {
            Some(expand(literal.as_bytes(), |name| {
                own.get(name)
                    .cloned()
                    .or_else(|| services.get(name).map(|v| v.clone().into_bytes()))
                    .unwrap_or_else(|| unresolved(name))
            }))
        } else if let Some(source) = &variable.value_from {
            source_value(input, namespace, source)?
        } else {
            Some(Vec::new())
        };
        if let Some(value) = value {
            own.insert(variable.name.clone(), value);
        }
    }
    let extra: Vec<EnvVariable> = services
        .into_iter()
        .filter(|(name, _)| !own.contains_key(name))
        .map(|(name, value)| EnvVariable { name, value: value.into_bytes() })
        .collect();
    let own = own.into_iter().map(|(name, value)| EnvVariable { name, value });
    Ok(own.chain(extra).collect())
}

fn add_env_from(
    input: &EnvInput<'_>,
    own: &mut BTreeMap<String, Vec<u8>>,
) -> Result<(), RequestError> {
    for source in input.container.env_from.iter().flatten() {
        let prefix = source.prefix.as_deref().unwrap_or_default();
        if let Some(reference) = &source.config_map_ref {
            let found = look_up(&input.objects.config_maps, &reference.name, reference.optional)?;
            for (key, value) in found.iter().flat_map(|m| m.data.iter().flatten()) {
                own.insert(format!("{prefix}{key}"), value.clone().into_bytes());
            }
        } else if let Some(reference) = &source.secret_ref {
            let found = look_up(&input.objects.secrets, &reference.name, reference.optional)?;
            for (key, value) in found.iter().flat_map(|s| s.data.iter().flatten()) {
                own.insert(format!("{prefix}{key}"), value.0.clone());
            }
        }
    }
    Ok(())
}

/// The value of a `valueFrom`; `None` leaves the variable alone.
fn source_value(
    input: &EnvInput<'_>,
    namespace: &str,
    source: &EnvVarSource,
) -> Result<Option<Vec<u8>>, RequestError> {
    if let Some(selector) = &source.field_ref {
        let value = field_value(selector, input.pod, input.pod_ips, &input.node)?;
        return Ok(Some(value.into_bytes()));
    }
    if let Some(selector) = &source.resource_field_ref {
        let value = resource_value(selector, input.pod, Some(input.container), &input.node)?;
        return Ok(Some(value.into_bytes()));
    }
    if let Some(r) = &source.config_map_key_ref {
        let Some(map) = look_up(&input.objects.config_maps, &r.name, r.optional)? else {
            return Ok(None);
        };
        let value = map.data.as_ref().and_then(|d| d.get(&r.key)).map(|v| v.clone().into_bytes());
        return required(value, r.optional, || missing("ConfigMap", &r.key, namespace, &r.name));
    }
    if let Some(r) = &source.secret_key_ref {
        let Some(secret) = look_up(&input.objects.secrets, &r.name, r.optional)? else {
            return Ok(None);
        };
        let value = secret.data.as_ref().and_then(|d| d.get(&r.key)).map(|v| v.0.clone());
        return required(value, r.optional, || missing("Secret", &r.key, namespace, &r.name));
    }
    if let Some(r) = source.file_key_ref.as_ref().filter(|_| input.env_files) {
        let file = input
            .objects
            .files
            .get(&(r.volume_name.clone(), r.path.clone()))
            .ok_or_else(|| RequestError::EnvFileVolume(r.volume_name.clone()))?;
        let value = file.values.get(&r.key).map_err(RequestError::EnvFile)?;
        let value = Some(value.to_vec()).filter(|v| !v.is_empty());
        return required(value, r.optional, || RequestError::EnvFileKey {
            key: r.key.clone(),
            file: file.host_path.clone(),
        });
    }
    Ok(Some(Vec::new()))
}

fn look_up<'a, T>(
    objects: &'a BTreeMap<String, Result<Arc<T>, ObjectMiss>>,
    name: &str,
    optional: Option<bool>,
) -> Result<Option<&'a Arc<T>>, RequestError> {
    match objects.get(name) {
        Some(Ok(object)) => Ok(Some(object)),
        Some(Err(ObjectMiss::NotFound(_))) if optional == Some(true) => Ok(None),
        Some(Err(miss)) => Err(miss.clone().into()),
        None => Err(RequestError::Object(format!("object {name:?} was not fetched"))),
    }
}

fn required<T>(
    value: Option<T>,
    optional: Option<bool>,
    fault: impl FnOnce() -> RequestError,
) -> Result<Option<T>, RequestError> {
    match value {
        None if optional != Some(true) => Err(fault()),
        other => Ok(other),
    }
}

fn missing(kind: &'static str, key: &str, namespace: &str, name: &str) -> RequestError {
    RequestError::MissingKey {
        kind,
        key: key.into(),
        namespace: namespace.into(),
        name: name.into(),
    }
}

#[cfg(test)]
mod tests;
