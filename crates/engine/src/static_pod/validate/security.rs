//! Security contexts of pods and containers.

use super::faults::{At, Faults};
use super::metadata::{APPARMOR, SECCOMP_CONTAINER, SECCOMP_POD};
use super::text;
use crate::admission::sysctl::{Namespace, namespace, normalise};
use api::core::v1::{
    AppArmorProfile, Pod, PodSecurityContext, PodSpec, SeccompProfile, SecurityContext,
};
use std::collections::BTreeSet;

const MOST_ID: i64 = i32::MAX as i64;
const PROFILE_TYPES: [&str; 3] = ["Localhost", "RuntimeDefault", "Unconfined"];
const NOT_ON_WINDOWS: &str = "cannot be set for a windows pod";

fn check_id(id: Option<i64>, at: &At, list: &mut Faults) {
    if let Some(id) = id {
        list.range(at, id, 0, MOST_ID);
    }
}

pub(super) fn check_container(
    context: &SecurityContext,
    host_users: bool,
    at: &At,
    list: &mut Faults,
) {
    check_id(context.run_as_user, &at.get("runAsUser"), list);
    check_id(context.run_as_group, &at.get("runAsGroup"), list);
    if let Some(mount) = context.proc_mount.as_deref() {
        let at = at.get("procMount");
        list.word_if_set(&at, Some(mount), &["Default", "Unmasked"]);
        if host_users && mount == "Unmasked" {
            list.invalid(&at, mount, "`hostUsers` must be false to use `Unmasked`");
        }
    }
    check_seccomp(context.seccomp_profile.as_ref(), &at.get("seccompProfile"), list);
    if context.allow_privilege_escalation == Some(false) {
        if context.privileged == Some(true) {
            let why = "cannot set `allowPrivilegeEscalation` to false and `privileged` to true";
            list.invalid(at, context, why);
        }
        let added = context.capabilities.as_ref().and_then(|c| c.add.as_deref());
        for _ in added.into_iter().flatten().filter(|name| *name == "CAP_SYS_ADMIN") {
            let why = "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN";
            list.invalid(at, context, why);
        }
    }
    check_apparmor(context.app_armor_profile.as_ref(), &at.get("appArmorProfile"), list);
}

fn check_seccomp(profile: Option<&SeccompProfile>, at: &At, list: &mut Faults) {
    let Some(profile) = profile else { return };
    match profile.type_.as_str() {
        "" => list.required(&at.get("type"), "type is required when seccompProfile is set"),
        other => list.word_if_set(&at.get("type"), Some(other), &PROFILE_TYPES),
    }
    let at = at.get("localhostProfile");
    match (&profile.localhost_profile, profile.type_ == "Localhost") {
        (None, true) => list.required(&at, "must be set when seccomp type is Localhost"),
        (Some(path), true) => list.each(&at, path, text::descending(path)),
        (Some(_), false) => {
            list.invalid(&at, profile, "can only be set when seccomp type is Localhost");
        }
        (None, false) => {}
    }
}

fn check_apparmor(profile: Option<&AppArmorProfile>, at: &At, list: &mut Faults) {
    let Some(profile) = profile else { return };
    let local = profile.localhost_profile.as_deref();
    let at_local = at.get("localhostProfile");
    let missing = "must be set when AppArmor type is Localhost";
    match (profile.type_.as_str(), local) {
        ("Localhost", None) => list.required(&at_local, missing),
        ("Localhost", Some(name)) => {
            if name.trim() != name {
                list.invalid(&at_local, name, "must not be padded with whitespace");
            } else if name.is_empty() {
                list.required(&at_local, missing);
            }
            if name.len() > 4095 {
                list.too_long(&at_local, 4095);
            }
        }
        ("RuntimeDefault" | "Unconfined", Some(name)) => {
            list.invalid(&at_local, name, "can only be set when AppArmor type is Localhost");
        }
        ("RuntimeDefault" | "Unconfined", None) => {}
        ("", _) => list.required(&at.get("type"), "type is required when appArmorProfile is set"),
        (other, _) => list.unsupported(&at.get("type"), other, &PROFILE_TYPES),
    }
}

pub(super) fn check_pod(context: &PodSecurityContext, spec: &PodSpec, at: &At, list: &mut Faults) {
    check_id(context.fs_group, &at.get("fsGroup"), list);
    check_id(context.run_as_user, &at.get("runAsUser"), list);
    check_id(context.run_as_group, &at.get("runAsGroup"), list);
    for (index, group) in context.supplemental_groups.iter().flatten().enumerate() {
        check_id(Some(*group), &at.get("supplementalGroups").nth(index), list);
    }
    if spec.share_process_namespace == Some(true) && spec.host_pid == Some(true) {
        let why = "ShareProcessNamespace and HostPID cannot both be enabled";
        list.invalid(&at.get("shareProcessNamespace"), true, why);
    }
    check_sysctls(context, spec, &at.get("sysctls"), list);
    for (field, value, allowed) in [
        ("fsGroupChangePolicy", &context.fs_group_change_policy, ["Always", "OnRootMismatch"]),
        ("supplementalGroupsPolicy", &context.supplemental_groups_policy, ["Merge", "Strict"]),
        ("seLinuxChangePolicy", &context.se_linux_change_policy, ["MountOption", "Recursive"]),
    ] {
        list.word_if_set(&at.get(field), value.as_deref(), &allowed);
    }
    check_seccomp(context.seccomp_profile.as_ref(), &at.get("seccompProfile"), list);
    check_apparmor(context.app_armor_profile.as_ref(), &at.get("appArmorProfile"), list);
}

fn check_sysctls(context: &PodSecurityContext, spec: &PodSpec, at: &At, list: &mut Faults) {
    let mut names = BTreeSet::new();
    for (index, sysctl) in context.sysctls.iter().flatten().enumerate() {
        let at = at.nth(index).get("name");
        let name = sysctl.name.as_str();
        if name.is_empty() {
            list.required(&at, "");
        } else if !text::is_sysctl(name) {
            let part = "[a-z0-9]([-_a-z0-9]*[a-z0-9])?";
            let why =
                format!("must have at most 253 characters and match regex ^({part}[\\./])*{part}$");
            list.invalid(&at, name, &why);
        } else if names.contains(name) {
            list.duplicate(&at, name);
        }
        names.insert(name);
        match namespace(&normalise(name)) {
            Some(Namespace::Net) if spec.host_network == Some(true) => {
                list.invalid(&at, name, "may not be specified when 'hostNetwork' is true");
            }
            Some(Namespace::Ipc) if spec.host_ipc == Some(true) => {
                list.invalid(&at, name, "may not be specified when 'hostIPC' is true");
            }
            _ => {}
        }
    }
}

/// User namespaces exclude the host's other namespaces.
pub(super) fn check_host_users(spec: &PodSpec, host_network_too: bool, at: &At, list: &mut Faults) {
    if spec.host_users != Some(false) {
        return;
    }
    let why = "when `hostUsers` is false";
    if spec.host_network == Some(true) && !host_network_too {
        list.forbidden(&at.get("hostNetwork"), why);
    }
    if spec.host_pid == Some(true) {
        list.forbidden(&at.get("HostPID"), why);
    }
    if spec.host_ipc == Some(true) {
        list.forbidden(&at.get("HostIPC"), why);
    }
    let lists = [
        ("initContainers", spec.init_containers.as_deref().unwrap_or_default()),
        ("containers", spec.containers.as_slice()),
    ];
    for (field, containers) in lists {
        for (index, container) in containers.iter().enumerate() {
            if container.volume_devices.as_ref().is_some_and(|d| !d.is_empty()) {
                list.forbidden(&at.get(field).nth(index).get("volumeDevices"), why);
            }
        }
    }
}

/// What the other operating system's containers may not have.
pub(super) fn check_os(spec: &PodSpec, at: &At, list: &mut Faults) {
    let Some(os) = &spec.os else { return };
    let at_os = at.get("os");
    match os.name.as_str() {
        "" => list.required(&at_os.get("name"), ""),
        "linux" => check_linux(spec, at, list),
        "windows" => check_windows(spec, at, list),
        other => list.unsupported(&at_os, other, &["linux", "windows"]),
    }
}

fn check_linux(spec: &PodSpec, at: &At, list: &mut Faults) {
    let why = "windows options cannot be set for a linux pod";
    if spec.security_context.as_ref().is_some_and(|c| c.windows_options.is_some()) {
        list.forbidden(&at.get("securityContext").get("windowsOptions"), why);
    }
    let init = spec.init_containers.iter().flatten().enumerate().map(|c| ("initContainers", c));
    let all = init.chain(spec.containers.iter().enumerate().map(|c| ("containers", c)));
    for (field, (index, container)) in all {
        if container.security_context.as_ref().is_some_and(|c| c.windows_options.is_some()) {
            let at = at.get(field).nth(index).get("securityContext").get("windowsOptions");
            list.forbidden(&at, why);
        }
    }
}

fn check_windows(spec: &PodSpec, at: &At, list: &mut Faults) {
    let top = [
        ("hostUsers", spec.host_users.is_some()),
        ("hostPID", spec.host_pid == Some(true)),
        ("hostIPC", spec.host_ipc == Some(true)),
        ("shareProcessNamespace", spec.share_process_namespace.is_some()),
    ];
    for (field, _) in top.into_iter().filter(|(_, set)| *set) {
        list.forbidden(&at.get(field), NOT_ON_WINDOWS);
    }
    let mut forbid = |context: serde_json::Value, at: &At| {
        for (field, value) in context.as_object().into_iter().flatten() {
            let allowed = ["windowsOptions", "runAsNonRoot"].contains(&field.as_str());
            let empty = field == "sysctls" && value.as_array().is_some_and(Vec::is_empty);
            if !allowed && !empty {
                list.forbidden(&at.get(field), NOT_ON_WINDOWS);
            }
        }
    };
    if let Some(context) = &spec.security_context {
        let value = serde_json::to_value(context).unwrap_or_default();
        forbid(value, &at.get("securityContext"));
    }
    let init = spec.init_containers.iter().flatten().enumerate().map(|c| ("initContainers", c));
    let all = init.chain(spec.containers.iter().enumerate().map(|c| ("containers", c)));
    for (field, (index, container)) in all {
        if let Some(context) = &container.security_context {
            let value = serde_json::to_value(context).unwrap_or_default();
            forbid(value, &at.get(field).nth(index).get("securityContext"));
        }
    }
}

/// Profiles may be given twice, by field and by old annotation; then both must say the same.
pub(super) fn check_annotations_match(pod: &Pod, spec: &PodSpec, at: &At, list: &mut Faults) {
    let empty = std::collections::BTreeMap::new();
    let annotations = pod.metadata.annotations.as_ref().unwrap_or(&empty);
    let context = spec.security_context.as_ref();
    let at_pod = at.get("securityContext").get("seccompProfile");
    if let (Some(field), Some(text)) =
        (context.and_then(|c| c.seccomp_profile.as_ref()), annotations.get(SECCOMP_POD))
    {
        let local = field.localhost_profile.as_deref();
        compare("seccomp", &field.type_, local, text, &at_pod, list);
    }
    let init = spec.init_containers.iter().flatten().enumerate().map(|c| ("initContainers", c));
    let all = init.chain(spec.containers.iter().enumerate().map(|c| ("containers", c)));
    for (list_name, (index, container)) in all {
        let own = container.security_context.as_ref();
        let at = at.get(list_name).nth(index).get("securityContext");
        let seccomp = own.and_then(|c| c.seccomp_profile.as_ref());
        let text = annotations.get(&format!("{SECCOMP_CONTAINER}{}", container.name));
        if let (Some(field), Some(text)) = (seccomp, text) {
            let local = field.localhost_profile.as_deref();
            compare("seccomp", &field.type_, local, text, &at.get("seccompProfile"), list);
        }
        let windows = spec.os.as_ref().is_some_and(|os| os.name == "windows");
        let apparmor = own
            .and_then(|c| c.app_armor_profile.as_ref())
            .or_else(|| context.and_then(|c| c.app_armor_profile.as_ref()))
            .filter(|_| !windows);
        let text = annotations.get(&format!("{APPARMOR}{}", container.name));
        if let (Some(field), Some(text)) = (apparmor, text) {
            let local = field.localhost_profile.as_deref();
            compare("apparmor", &field.type_, local, text, &at.get("appArmorProfile"), list);
        }
    }
}

fn compare(
    what: &str,
    kind: &str,
    local: Option<&str>,
    annotation: &str,
    at: &At,
    list: &mut Faults,
) {
    let same = match kind {
        "Unconfined" => annotation == "unconfined",
        "RuntimeDefault" => {
            annotation == "runtime/default" || (what == "seccomp" && annotation == "docker/default")
        }
        "Localhost" => annotation.starts_with("localhost/"),
        _ => true,
    };
    if !same {
        let why = format!("{what} type in annotation and field must match");
        list.forbidden(&at.get("type"), &why);
    } else if kind == "Localhost" && annotation.strip_prefix("localhost/") != local {
        let why = format!("{what} profile in annotation and field must match");
        list.forbidden(&at.get("localhostProfile"), &why);
    }
}
