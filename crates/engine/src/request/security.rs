//! Security contexts of sandboxes and containers, and the namespaces they live in.
//!
//! Upstream: `pkg/securitycontext`, `determineEffectiveSecurityContext`, `verifyRunAsNonRoot`,
//! `NamespacesForPod`, `apparmor.GetProfile`.

use super::RequestError;
use api::core::v1::{
    AppArmorProfile, Container, Pod, PodSecurityContext, SELinuxOptions, SeccompProfile,
    SecurityContext,
};
pub use api::image::ImageUser;
use api::pod::PodExt;
use proto::cri_v1::{
    Capability, IdMapping, Int64Value, LinuxContainerSecurityContext, LinuxSandboxSecurityContext,
    NamespaceMode, NamespaceOption, SeLinuxOption, SecurityProfile, SupplementalGroupsPolicy,
    UserNamespace, security_profile::ProfileType,
};
use std::collections::BTreeSet;

const MASKED: [&str; 12] = [
    "/proc/asound",
    "/proc/acpi",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/sys/firmware",
    "/sys/devices/virtual/powercap",
];
const READONLY: [&str; 5] =
    ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];
const APPARMOR_ANNOTATION: &str = "container.apparmor.security.beta.kubernetes.io/";

/// The range of host ids that a pod with its own user namespace has; the same for users and
/// groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UserNamespaceRange {
    /// The host id that is 0 inside.
    pub host_id: u32,
    /// How many ids.
    pub length: u32,
}

/// Settings of the node for security contexts.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SecuritySettings {
    /// `seccompDefault`.
    pub seccomp_default: bool,
    /// Where Localhost seccomp profiles are (`<root>/seccomp`).
    pub seccomp_root: String,
    /// More masked paths: `/sys/devices/system/cpu/cpu<N>/thermal_throttle` where it exists.
    pub thermal_throttle_paths: Vec<String>,
}

/// The user of an image as its status says.
pub fn image_user(image: Option<&proto::cri_v1::Image>) -> ImageUser {
    match image {
        Some(proto::cri_v1::Image { uid: Some(uid), .. }) => ImageUser::Uid(uid.value),
        Some(image) if !image.username.is_empty() => ImageUser::Name(image.username.clone()),
        _ => ImageUser::Uid(0),
    }
}

/// The namespaces of a pod.
pub fn namespaces(pod: &Pod, userns: Option<UserNamespaceRange>) -> NamespaceOption {
    let spec = pod.spec.as_ref();
    let on = |flag: Option<bool>| flag.unwrap_or(false);
    let node_or_pod = |host: bool| if host { NamespaceMode::Node } else { NamespaceMode::Pod };
    let pid = if on(spec.and_then(|s| s.host_pid)) {
        NamespaceMode::Node
    } else if on(spec.and_then(|s| s.share_process_namespace)) {
        NamespaceMode::Pod
    } else {
        NamespaceMode::Container
    };
    let mapping: Vec<IdMapping> = userns
        .iter()
        .map(|r| IdMapping { host_id: r.host_id, container_id: 0, length: r.length })
        .collect();
    let mode = node_or_pod(userns.is_none());
    NamespaceOption {
        network: node_or_pod(on(spec.and_then(|s| s.host_network))).into(),
        pid: pid.into(),
        ipc: node_or_pod(on(spec.and_then(|s| s.host_ipc))).into(),
        target_id: String::new(),
        userns_options: Some(UserNamespace {
            mode: mode.into(),
            uids: mapping.clone(),
            gids: mapping,
        }),
    }
}

/// Groups of the pod's volumes that its spec does not already list, each once.
pub fn groups_of_volumes(pod: &Pod, of_volumes: impl Iterator<Item = i64>) -> Vec<i64> {
    let context = pod.spec.as_ref().and_then(|s| s.security_context.as_ref());
    let own = context.and_then(|c| c.supplemental_groups.as_deref()).unwrap_or_default();
    let groups: BTreeSet<i64> = of_volumes.filter(|gid| !own.contains(gid)).collect();
    groups.into_iter().collect()
}

/// The sandbox's security context. `extra_groups` come from the pod's volumes.
pub(super) fn sandbox_context(
    pod: &Pod,
    namespaces: NamespaceOption,
    extra_groups: &[i64],
) -> Result<LinuxSandboxSecurityContext, RequestError> {
    let spec = pod.spec.as_ref();
    let mut context = LinuxSandboxSecurityContext {
        privileged: has_privileged(pod),
        seccomp: Some(profile(ProfileType::RuntimeDefault, "")),
        ..LinuxSandboxSecurityContext::default()
    };
    if let Some(own) = spec.and_then(|s| s.security_context.as_ref()) {
        context.run_as_user = own.run_as_user.map(int64);
        context.run_as_group = own.run_as_group.map(int64);
        context.namespace_options = Some(namespaces);
        context.supplemental_groups = own.fs_group.into_iter().collect();
        context.supplemental_groups.extend(extra_groups);
        context.supplemental_groups.extend(own.supplemental_groups.iter().flatten());
        context.supplemental_groups_policy = groups_policy(own)?.into();
        context.selinux_options = own.se_linux_options.as_ref().map(selinux);
    }
    Ok(context)
}

/// The container's security context, after `verify_non_root` passed.
pub(super) fn container_context(
    settings: &SecuritySettings,
    pod: &Pod,
    container: &Container,
    user: &ImageUser,
    namespaces: NamespaceOption,
    extra_groups: &[i64],
) -> Result<LinuxContainerSecurityContext, RequestError> {
    let effective = effective_context(pod, container);
    let pod_context = pod.spec.as_ref().and_then(|s| s.security_context.as_ref());
    let unmasked = effective.proc_mount.as_deref() == Some("Unmasked");
    let paths = |list: &[&str]| -> Vec<String> {
        if unmasked { Vec::new() } else { list.iter().map(ToString::to_string).collect() }
    };
    let mut masked_paths = paths(&MASKED);
    if !unmasked {
        masked_paths.extend(settings.thermal_throttle_paths.iter().cloned());
    }
    let apparmor = apparmor(pod, container)?;
    let mut context = LinuxContainerSecurityContext {
        capabilities: effective.capabilities.as_ref().map(|c| Capability {
            add_capabilities: c.add.clone().unwrap_or_default(),
            drop_capabilities: c.drop.clone().unwrap_or_default(),
            ..Capability::default()
        }),
        privileged: effective.privileged.unwrap_or(false),
        namespace_options: Some(namespaces),
        selinux_options: effective.se_linux_options.as_ref().map(selinux),
        run_as_user: effective.run_as_user.map(int64),
        run_as_group: effective.run_as_group.map(int64),
        readonly_rootfs: effective.read_only_root_filesystem.unwrap_or(false),
        no_new_privs: effective.allow_privilege_escalation == Some(false),
        masked_paths,
        readonly_paths: paths(&READONLY),
        seccomp: Some(seccomp(settings, pod_context, container)?),
        ..LinuxContainerSecurityContext::default()
    };
    if let Some((profile, text)) = apparmor {
        context.apparmor = Some(profile);
        context.apparmor_profile = text;
    }
    if context.run_as_user.is_none() {
        match user {
            ImageUser::Uid(uid) => context.run_as_user = Some(int64(*uid)),
            ImageUser::Name(name) => context.run_as_username.clone_from(name),
        }
    }
    if let Some(own) = pod_context {
        context.supplemental_groups = own.fs_group.into_iter().collect();
        context.supplemental_groups.extend(own.supplemental_groups.iter().flatten());
        context.supplemental_groups_policy = groups_policy(own)?.into();
    }
    context.supplemental_groups.extend(extra_groups);
    Ok(context)
}

/// Refuses a container that must not run as root but would.
pub fn verify_non_root(
    pod: &Pod,
    container: &Container,
    user: &ImageUser,
) -> Result<(), RequestError> {
    let effective = effective_context(pod, container);
    if effective.run_as_non_root != Some(true) {
        return Ok(());
    }
    let (pod, container) = (pod.display_name(), container.name.clone());
    match (effective.run_as_user, user) {
        (Some(0), _) => Err(RequestError::RunAsUserIsRoot { pod, container }),
        (Some(_), _) => Ok(()),
        (None, ImageUser::Name(user)) => {
            Err(RequestError::ImageUserByName { user: user.clone(), pod, container })
        }
        (None, ImageUser::Uid(0)) => Err(RequestError::ImageUserIsRoot { pod, container }),
        (None, ImageUser::Uid(uid)) if !(1..=i64::from(i32::MAX)).contains(uid) => {
            Err(RequestError::ImageUserOutOfRange { uid: *uid, pod, container })
        }
        _ => Ok(()),
    }
}

/// The container's settings over those of the pod.
pub fn effective_context(pod: &Pod, container: &Container) -> SecurityContext {
    let mut effective = container.security_context.clone().unwrap_or_default();
    if let Some(own) = pod.spec.as_ref().and_then(|s| s.security_context.as_ref()) {
        effective.se_linux_options =
            effective.se_linux_options.or_else(|| own.se_linux_options.clone());
        effective.run_as_user = effective.run_as_user.or(own.run_as_user);
        effective.run_as_group = effective.run_as_group.or(own.run_as_group);
        effective.run_as_non_root = effective.run_as_non_root.or(own.run_as_non_root);
    }
    effective
}

fn has_privileged(pod: &Pod) -> bool {
    let Some(spec) = &pod.spec else { return false };
    let own = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    let contexts = own
        .map(|c| c.security_context.as_ref())
        .chain(spec.ephemeral_containers.iter().flatten().map(|c| c.security_context.as_ref()));
    contexts.flatten().any(|c| c.privileged == Some(true))
}

fn seccomp(
    settings: &SecuritySettings,
    pod: Option<&PodSecurityContext>,
    container: &Container,
) -> Result<SecurityProfile, RequestError> {
    let own: Option<&SeccompProfile> = container
        .security_context
        .as_ref()
        .and_then(|c| c.seccomp_profile.as_ref())
        .or_else(|| pod.and_then(|p| p.seccomp_profile.as_ref()));
    let Some(own) = own else {
        let default = if settings.seccomp_default {
            ProfileType::RuntimeDefault
        } else {
            ProfileType::Unconfined
        };
        return Ok(profile(default, ""));
    };
    match own.type_.as_str() {
        "RuntimeDefault" => Ok(profile(ProfileType::RuntimeDefault, "")),
        "Localhost" => match own.localhost_profile.as_deref() {
            Some(name) if !name.is_empty() => {
                let path = format!("{}/{name}", settings.seccomp_root);
                Ok(profile(ProfileType::Localhost, &super::paths::clean(&path)))
            }
            _ => Err(RequestError::SeccompProfile),
        },
        _ => Ok(profile(ProfileType::Unconfined, "")),
    }
}

fn apparmor(
    pod: &Pod,
    container: &Container,
) -> Result<Option<(SecurityProfile, String)>, RequestError> {
    let own = container
        .security_context
        .as_ref()
        .and_then(|c| c.app_armor_profile.clone())
        .or_else(|| apparmor_annotation(pod, &container.name))
        .or_else(|| pod.spec.as_ref()?.security_context.as_ref()?.app_armor_profile.clone());
    let Some(own) = own else { return Ok(None) };
    match own.type_.as_str() {
        "RuntimeDefault" => {
            Ok(Some((profile(ProfileType::RuntimeDefault, ""), "runtime/default".into())))
        }
        "Unconfined" => Ok(Some((profile(ProfileType::Unconfined, ""), "unconfined".into()))),
        "Localhost" => {
            let name = own.localhost_profile.ok_or(RequestError::AppArmorProfile)?;
            Ok(Some((profile(ProfileType::Localhost, &name), format!("localhost/{name}"))))
        }
        other => Err(RequestError::AppArmorType(other.into())),
    }
}

fn apparmor_annotation(pod: &Pod, container: &str) -> Option<AppArmorProfile> {
    let key = format!("{APPARMOR_ANNOTATION}{container}");
    let text = pod.metadata.annotations.as_ref()?.get(&key)?;
    let plain = |type_: &str| AppArmorProfile { type_: type_.into(), localhost_profile: None };
    match text.as_str() {
        "runtime/default" => Some(plain("RuntimeDefault")),
        "unconfined" => Some(plain("Unconfined")),
        other => other.strip_prefix("localhost/").map(|name| AppArmorProfile {
            type_: "Localhost".into(),
            localhost_profile: Some(name.into()),
        }),
    }
}

fn groups_policy(own: &PodSecurityContext) -> Result<SupplementalGroupsPolicy, RequestError> {
    match own.supplemental_groups_policy.as_deref() {
        None | Some("Merge") => Ok(SupplementalGroupsPolicy::Merge),
        Some("Strict") => Ok(SupplementalGroupsPolicy::Strict),
        Some(other) => Err(RequestError::SupplementalGroupsPolicy(other.into())),
    }
}

fn profile(kind: ProfileType, localhost_ref: &str) -> SecurityProfile {
    SecurityProfile { profile_type: kind.into(), localhost_ref: localhost_ref.into() }
}

fn selinux(options: &SELinuxOptions) -> SeLinuxOption {
    SeLinuxOption {
        user: options.user.clone().unwrap_or_default(),
        role: options.role.clone().unwrap_or_default(),
        r#type: options.type_.clone().unwrap_or_default(),
        level: options.level.clone().unwrap_or_default(),
    }
}

fn int64(value: i64) -> Int64Value {
    Int64Value { value }
}

#[cfg(test)]
mod tests;
