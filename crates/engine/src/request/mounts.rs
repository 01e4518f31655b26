//! Mounts and devices of a container.
//!
//! Upstream: `makeMounts` (kubelet_pods.go and kuberuntime_container.go), `makeBlockVolumes`.
//! Binding a `subPath` safely is I/O: [`sub_paths`] says which are needed, the executor binds
//! them and passes the resulting host paths in.

use super::RequestError;
use super::env::EnvVariable;
use super::expand::expand;
use super::hosts::HOSTS_PATH;
use api::core::v1::{Container, VolumeMount};
use proto::cri_v1::{Device, IdMapping, ImageSpec, Mount, MountPropagation};
use std::collections::{BTreeMap, BTreeSet};

/// A volume of the pod, mounted on the host.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VolumeView {
    /// Where it is; for block volumes the link to the device, empty when there is none.
    pub host_path: String,
    /// The volume itself is read-only.
    pub read_only: bool,
    /// The kubelet manages it and it needs an SELinux label.
    pub selinux_relabel: bool,
    /// It is a raw block device.
    pub block: bool,
}

/// What placement (device plugins, DRA, CPU and memory managers) adds to a container.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PlacementExtras {
    /// Environment, in order.
    pub envs: Vec<(String, String)>,
    /// Mounts: host path, container path, read-only.
    pub mounts: Vec<(String, String, bool)>,
    /// Devices: host path, container path, permissions.
    pub devices: Vec<(String, String, String)>,
    /// Annotations.
    pub annotations: Vec<(String, String)>,
    /// CDI device names.
    pub cdi_devices: Vec<String>,
    /// CPUs (`0-1,3`), empty if unset.
    pub cpuset_cpus: String,
    /// NUMA nodes, empty if unset.
    pub cpuset_mems: String,
}

/// A `subPath` that must be bound before the container can be created.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubPath {
    /// Index of the volume mount in the container.
    pub index: usize,
    /// The volume's name.
    pub volume: String,
    /// The path below the volume, expanded and free of `..`.
    pub path: String,
}

/// Everything mounts are made of.
#[derive(Debug, Clone, Copy)]
pub struct MountInput<'a> {
    /// The container.
    pub container: &'a Container,
    /// Mounted volumes by name.
    pub volumes: &'a BTreeMap<String, VolumeView>,
    /// Images of the pod's image volumes by volume name.
    pub image_volumes: &'a BTreeMap<String, ImageSpec>,
    /// All variables of the container, for `subPathExpr`.
    pub envs: &'a [EnvVariable],
    /// Whether the runtime handler can mount recursively read-only.
    pub recursive_read_only: bool,
}

/// The `subPath`s of a container that the executor must bind.
pub fn sub_paths(input: &MountInput<'_>) -> Result<Vec<SubPath>, RequestError> {
    let mut all = Vec::new();
    for (index, mount) in input.container.volume_mounts.iter().flatten().enumerate() {
        let path = sub_path(mount, input.envs)?;
        if !path.is_empty() && !input.image_volumes.contains_key(&mount.name) {
            all.push(SubPath { index, volume: mount.name.clone(), path });
        }
    }
    Ok(all)
}

/// The mounts for the container's `volumeMounts`; `bound` holds the host path of each bound
/// `subPath` by mount index.
pub(super) fn volume_mounts(
    input: &MountInput<'_>,
    bound: &BTreeMap<usize, String>,
) -> Result<Vec<PlannedMount>, RequestError> {
    let mut mounts = Vec::new();
    for (index, mount) in input.container.volume_mounts.iter().flatten().enumerate() {
        let image = input.image_volumes.get(&mount.name);
        let volume = match input.volumes.get(&mount.name) {
            Some(volume) if !volume.block => volume.clone(),
            None if image.is_some() => VolumeView { read_only: true, ..VolumeView::default() },
            _ => {
                return Err(RequestError::VolumeToMount {
                    volume: mount.name.clone(),
                    container: input.container.name.clone(),
                });
            }
        };
        let path = sub_path(mount, input.envs)?;
        let host_path = match (image, path.is_empty()) {
            (Some(_), _) => String::new(),
            (None, true) => volume.host_path.clone(),
            (None, false) => bound.get(&index).cloned().ok_or_else(|| {
                // Only reached when the executor omitted a bind.
                RequestError::SubPathUnbound {
                    volume: mount.name.clone(),
                    container: input.container.name.clone(),
                }
            })?,
        };
        let container_path = if mount.mount_path.starts_with('/') {
            mount.mount_path.clone()
        } else {
            format!("/{}", mount.mount_path)
        };
        let image_sub_path = if input.image_volumes.is_empty() { String::new() } else { path };
        mounts.push(PlannedMount {
            mount: Mount {
                container_path,
                host_path,
                readonly: mount.read_only.unwrap_or(false) || volume.read_only || image.is_some(),
                propagation: propagation(mount)?.into(),
                recursive_read_only: recursive_read_only(mount, input.recursive_read_only)?,
                image: image.cloned(),
                image_sub_path,
                ..Mount::default()
            },
            relabel: volume.selinux_relabel,
        });
    }
    Ok(mounts)
}

/// A mount that may need an SELinux label.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct PlannedMount {
    pub(super) mount: Mount,
    pub(super) relabel: bool,
}

impl PlannedMount {
    /// The mount of a placement extra.
    pub(super) fn extra(host_path: &str, container_path: &str, readonly: bool) -> Self {
        let mount = Mount {
            host_path: host_path.into(),
            container_path: container_path.into(),
            readonly,
            ..Mount::default()
        };
        Self { mount, relabel: false }
    }

    /// The mount of the pod's hosts file.
    pub(super) fn hosts(host_path: String) -> Self {
        Self::file(host_path, HOSTS_PATH.into())
    }

    /// The mount of a file that we made for the container.
    pub(super) fn file(host_path: String, container_path: String) -> Self {
        Self { mount: Mount { host_path, container_path, ..Mount::default() }, relabel: true }
    }

    /// The message, for a node with or without SELinux and a pod with or without its own ids.
    pub(super) fn finish(self, selinux_enabled: bool, ids: &[IdMapping]) -> Mount {
        Mount {
            selinux_relabel: self.relabel && selinux_enabled,
            uid_mappings: ids.to_vec(),
            gid_mappings: ids.to_vec(),
            ..self.mount
        }
    }
}

/// Raw block volumes as devices.
pub(super) fn block_devices(
    container: &Container,
    volumes: &BTreeMap<String, VolumeView>,
) -> Result<Vec<Device>, RequestError> {
    let mut devices = Vec::new();
    for wanted in container.volume_devices.iter().flatten() {
        if !wanted.device_path.starts_with('/') {
            return Err(RequestError::DevicePath(wanted.device_path.clone()));
        }
        let volume = volumes.get(&wanted.name).filter(|v| v.block).ok_or_else(|| {
            RequestError::VolumeToPass {
                volume: wanted.name.clone(),
                container: container.name.clone(),
            }
        })?;
        if !volume.host_path.is_empty() {
            devices.push(Device {
                host_path: volume.host_path.clone(),
                container_path: wanted.device_path.clone(),
                permissions: if volume.read_only { "r" } else { "mrw" }.into(),
            });
        }
    }
    Ok(devices)
}

fn sub_path(mount: &VolumeMount, envs: &[EnvVariable]) -> Result<String, RequestError> {
    let mut path = mount.sub_path.clone().unwrap_or_default();
    if let Some(expression) = mount.sub_path_expr.as_deref().filter(|e| !e.is_empty()) {
        let mut missing = BTreeSet::new();
        let expanded = expand(expression.as_bytes(), |name| {
            let found = envs.iter().rev().find(|e| e.name == name && !e.value.is_empty());
            if found.is_none() {
                missing.insert(name.to_string());
            }
            found.map(|e| e.value.clone()).unwrap_or_default()
        });
        if !missing.is_empty() {
            let names: Vec<_> = missing.into_iter().collect();
            return Err(RequestError::SubPathVariables(names.join(", ")));
        }
        path = String::from_utf8_lossy(&expanded).into_owned();
    }
    if path.starts_with('/') {
        return Err(RequestError::SubPathAbsolute(path));
    }
    if path.split('/').any(|part| part == "..") {
        return Err(RequestError::SubPathBacksteps(path));
    }
    Ok(path)
}

fn propagation(mount: &VolumeMount) -> Result<MountPropagation, RequestError> {
    match mount.mount_propagation.as_deref() {
        None | Some("None") => Ok(MountPropagation::PropagationPrivate),
        Some("HostToContainer") => Ok(MountPropagation::PropagationHostToContainer),
        Some("Bidirectional") => Ok(MountPropagation::PropagationBidirectional),
        Some(other) => Err(RequestError::MountPropagation(other.into())),
    }
}

fn recursive_read_only(mount: &VolumeMount, supported: bool) -> Result<bool, RequestError> {
    let mode = match mount.recursive_read_only.as_deref() {
        None | Some("Disabled") => return Ok(false),
        Some(mode) => mode,
    };
    let volume = &mount.name;
    let refuse = |why: String| Err(RequestError::RecursiveReadOnly(why));
    let asked = format!("volume {volume:?} requested recursive read-only mode, but it is not");
    if mount.read_only != Some(true) {
        return refuse(format!("{asked} read-only"));
    }
    match mount.mount_propagation.as_deref() {
        None | Some("None") => {}
        Some(other) => return refuse(format!("{asked} compatible with propagation {other:?}")),
    }
    match mode {
        "IfPossible" => Ok(supported),
        "Enabled" if supported => Ok(true),
        "Enabled" => refuse(format!("{asked} supported by the runtime")),
        other => refuse(format!("unknown recursive read-only mode {other:?}")),
    }
}

#[cfg(test)]
mod tests;
