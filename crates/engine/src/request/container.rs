//! A container as a CRI message.
//!
//! Upstream: `generateContainerConfig`, `applyPlatformSpecificContainerConfig`.

use super::env::EnvVariable;
use super::expand::{expand, unresolved};
use super::hosts::wants_hosts_file;
use super::mounts::{MountInput, PlacementExtras, PlannedMount, block_devices, volume_mounts};
use super::resources::CpuQuota;
use super::security::{
    ImageUser, UserNamespaceRange, container_context, namespaces, verify_non_root,
};
use super::{RequestError, RequestSettings, labels, paths};
use api::core::v1::{Container, EphemeralContainer, Pod};
use proto::cri_v1::{
    CdiDevice, ContainerConfig, ContainerMetadata, CreateContainerRequest, Device, ImageSpec,
    KeyValue, LinuxContainerConfig, Mount, NamespaceMode, PodSandboxConfig, Signal,
};
use std::collections::BTreeMap;

/// What a container is made of besides the settings of the node.
#[derive(Debug, Clone, Copy)]
pub struct ContainerInput<'a> {
    /// The pod with its allocated resources.
    pub pod: &'a Pod,
    /// The container (an ephemeral one through [`as_container`]).
    pub container: &'a Container,
    /// The restart count.
    pub attempt: u32,
    /// The image as the runtime knows it.
    pub image_ref: &'a str,
    /// The user the image names.
    pub image_user: &'a ImageUser,
    /// Addresses of the sandbox.
    pub pod_ips: &'a [String],
    /// The environment with placement's part first (see [`all_variables`]), volumes and images.
    pub mounts: MountInput<'a>,
    /// Host paths of bound `subPath`s by mount index.
    pub bound_sub_paths: &'a BTreeMap<usize, String>,
    /// The host's termination message file; `None` when it could not be made.
    pub termination_file: Option<&'a str>,
    /// What placement adds.
    pub extras: &'a PlacementExtras,
    /// The ids of a pod with its own user namespace.
    pub userns: Option<UserNamespaceRange>,
    /// The container whose processes an ephemeral one joins.
    pub target_id: Option<&'a str>,
    /// Groups that come with the pod's volumes.
    pub extra_groups: &'a [i64],
    /// Whether the container holds CPUs of its own.
    pub cpu_quota: CpuQuota,
}

/// Placement's variables followed by those of the container.
pub fn all_variables(extras: &PlacementExtras, own: Vec<EnvVariable>) -> Vec<EnvVariable> {
    let extra = extras
        .envs
        .iter()
        .map(|(name, value)| EnvVariable { name: name.clone(), value: value.clone().into_bytes() });
    extra.chain(own).collect()
}

/// The configuration of a container.
pub fn container_config(
    settings: &RequestSettings,
    input: &ContainerInput<'_>,
) -> Result<ContainerConfig, RequestError> {
    let ContainerInput { pod, container, extras, .. } = *input;
    let mut devices: Vec<Device> = extras
        .devices
        .iter()
        .map(|(host_path, container_path, permissions)| Device {
            host_path: host_path.clone(),
            container_path: container_path.clone(),
            permissions: permissions.clone(),
        })
        .collect();
    devices.extend(block_devices(container, input.mounts.volumes)?);
    let mounts = mounts(settings, input)?;
    verify_non_root(pod, container, input.image_user)?;
    let values: BTreeMap<&str, &[u8]> =
        input.mounts.envs.iter().map(|e| (e.name.as_str(), e.value.as_slice())).collect();
    let expanded = |texts: Option<&Vec<String>>| -> Result<Vec<String>, RequestError> {
        let one = |text: &String| {
            let bytes = expand(text.as_bytes(), |name| {
                values.get(name).map_or_else(|| unresolved(name), |v| v.to_vec())
            });
            String::from_utf8(bytes).map_err(|_| RequestError::NotText)
        };
        texts.into_iter().flatten().map(one).collect()
    };
    let image = container.image.clone().unwrap_or_default();
    Ok(ContainerConfig {
        metadata: Some(ContainerMetadata { name: container.name.clone(), attempt: input.attempt }),
        image: Some(ImageSpec {
            image: input.image_ref.into(),
            user_specified_image: image,
            ..ImageSpec::default()
        }),
        command: expanded(container.command.as_ref())?,
        args: expanded(container.args.as_ref())?,
        working_dir: container.working_dir.clone().unwrap_or_default(),
        envs: input
            .mounts
            .envs
            .iter()
            .map(|e| KeyValue { key: e.name.clone(), value: e.value.clone() })
            .collect(),
        mounts,
        devices,
        cdi_devices: extras.cdi_devices.iter().map(|n| CdiDevice { name: n.clone() }).collect(),
        labels: labels::container_labels(pod, container),
        annotations: labels::container_annotations(
            pod,
            container,
            input.attempt,
            &extras.annotations,
        ),
        log_path: paths::container_log_path(&container.name, input.attempt),
        stdin: container.stdin.unwrap_or(false),
        stdin_once: container.stdin_once.unwrap_or(false),
        tty: container.tty.unwrap_or(false),
        stop_signal: stop_signal(settings, container).into(),
        linux: Some(linux(settings, input)?),
        ..ContainerConfig::default()
    })
}

/// The request that creates a container.
pub fn create_container(
    sandbox_id: &str,
    config: ContainerConfig,
    sandbox: PodSandboxConfig,
) -> CreateContainerRequest {
    CreateContainerRequest {
        pod_sandbox_id: sandbox_id.into(),
        config: Some(config),
        sandbox_config: Some(sandbox),
    }
}

/// An ephemeral container in the form all containers have here.
pub fn as_container(ephemeral: &EphemeralContainer) -> Container {
    let e = ephemeral.clone();
    Container {
        args: e.args,
        command: e.command,
        env: e.env,
        env_from: e.env_from,
        image: e.image,
        image_pull_policy: e.image_pull_policy,
        lifecycle: e.lifecycle,
        liveness_probe: e.liveness_probe,
        name: e.name,
        ports: e.ports,
        readiness_probe: e.readiness_probe,
        resize_policy: e.resize_policy,
        resources: e.resources,
        restart_policy: e.restart_policy,
        restart_policy_rules: e.restart_policy_rules,
        security_context: e.security_context,
        startup_probe: e.startup_probe,
        stdin: e.stdin,
        stdin_once: e.stdin_once,
        termination_message_path: e.termination_message_path,
        termination_message_policy: e.termination_message_policy,
        tty: e.tty,
        volume_devices: e.volume_devices,
        volume_mounts: e.volume_mounts,
        working_dir: e.working_dir,
    }
}

fn linux(
    settings: &RequestSettings,
    input: &ContainerInput<'_>,
) -> Result<LinuxContainerConfig, RequestError> {
    let ContainerInput { pod, container, extras, .. } = *input;
    let mut resources = settings.resources.container(pod, container, input.cpu_quota);
    resources.cpuset_cpus.clone_from(&extras.cpuset_cpus);
    resources.cpuset_mems.clone_from(&extras.cpuset_mems);
    let mut namespaces = namespaces(pod, input.userns);
    if let (Some(target), NamespaceMode::Container) = (input.target_id, namespaces.pid()) {
        namespaces.set_pid(NamespaceMode::Target);
        namespaces.target_id = target.into();
    }
    let context = container_context(
        &settings.security,
        pod,
        container,
        input.image_user,
        namespaces,
        input.extra_groups,
    )?;
    Ok(LinuxContainerConfig { resources: Some(resources), security_context: Some(context) })
}

fn mounts(
    settings: &RequestSettings,
    input: &ContainerInput<'_>,
) -> Result<Vec<Mount>, RequestError> {
    let ContainerInput { pod, container, extras, .. } = *input;
    let mut all: Vec<PlannedMount> = extras
        .mounts
        .iter()
        .map(|(host, inside, read_only)| PlannedMount::extra(host, inside, *read_only))
        .collect();
    all.extend(volume_mounts(&input.mounts, input.bound_sub_paths)?);
    if wants_hosts_file(pod, container, input.pod_ips) {
        all.push(PlannedMount::hosts(paths::hosts_file(&settings.kubelet_root, pod)));
    }
    let path = container.termination_message_path.as_deref().filter(|p| !p.is_empty());
    if let (Some(path), Some(file)) = (path, input.termination_file) {
        let path = if path.starts_with('/') { path.to_string() } else { format!("/{path}") };
        all.push(PlannedMount::file(file.into(), path));
    }
    let options = namespaces(pod, input.userns).userns_options.unwrap_or_default();
    Ok(all.into_iter().map(|m| m.finish(settings.selinux_enabled, &options.uids)).collect())
}

fn stop_signal(settings: &RequestSettings, container: &Container) -> Signal {
    let wanted = container.lifecycle.as_ref().and_then(|l| l.stop_signal.as_deref());
    match wanted {
        Some(name) if settings.stop_signals => {
            let name = name.replace('+', "PLUS").replace('-', "MINUS");
            Signal::from_str_name(&name).unwrap_or(Signal::RuntimeDefault)
        }
        _ => Signal::RuntimeDefault,
    }
}

#[cfg(test)]
mod tests;
