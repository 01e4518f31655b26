//! Which of a pod's volumes some container uses; the others are ignored.

use api::core::v1::{Container, Pod};
use std::collections::BTreeMap;

/// How containers use one volume.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VolumeUse {
    /// Some container mounts it.
    pub mounted: bool,
    /// Some container uses it as a raw device.
    pub device: bool,
}

/// The pod's volumes that some container of any kind uses, by volume name.
pub fn used_volumes(pod: &Pod) -> BTreeMap<String, VolumeUse> {
    let mut used: BTreeMap<String, VolumeUse> = BTreeMap::new();
    let Some(spec) = pod.spec.as_ref() else { return used };
    let mut note = |name: &str, device: bool| {
        let entry = used.entry(name.to_owned()).or_default();
        entry.device |= device;
        entry.mounted |= !device;
    };
    let plain: Vec<&Container> =
        spec.init_containers.iter().flatten().chain(spec.containers.iter()).collect();
    for container in plain {
        for mount in container.volume_mounts.iter().flatten() {
            note(&mount.name, false);
        }
        for device in container.volume_devices.iter().flatten() {
            note(&device.name, true);
        }
    }
    for container in spec.ephemeral_containers.iter().flatten() {
        for mount in container.volume_mounts.iter().flatten() {
            note(&mount.name, false);
        }
        for device in container.volume_devices.iter().flatten() {
            note(&device.name, true);
        }
    }
    let known: std::collections::BTreeSet<&str> =
        spec.volumes.iter().flatten().map(|v| v.name.as_str()).collect();
    used.retain(|name, _| known.contains(name.as_str()));
    used
}

/// Folders inside volume `name` on which containers mount something else; outermost ones only
/// (upstream: `getNestedMountpoints`).
pub fn nested_mount_points(pod: &Pod, name: &str) -> Vec<String> {
    let mut nested = Vec::new();
    let Some(spec) = pod.spec.as_ref() else { return nested };
    let plain = spec.init_containers.iter().flatten().chain(&spec.containers);
    let lists = plain
        .map(|c| c.volume_mounts.as_ref())
        .chain(spec.ephemeral_containers.iter().flatten().map(|c| c.volume_mounts.as_ref()));
    for mounts in lists.flatten() {
        let mut all: Vec<String> = mounts.iter().map(|m| clean(&m.mount_path)).collect();
        all.sort();
        for own in mounts.iter().filter(|m| m.name == name) {
            let prefix = format!("{}/", clean(&own.mount_path));
            let mut previous: Option<String> = None;
            for path in all.iter().filter(|p| p.starts_with(&prefix)) {
                if previous.as_ref().is_some_and(|p| path.starts_with(p)) {
                    continue;
                }
                previous = Some(format!("{path}/"));
                let relative = path.get(prefix.len()..).unwrap_or_default().to_owned();
                let plain = !relative.split('/').any(|part| part == "..");
                if plain && !nested.contains(&relative) {
                    nested.push(relative);
                }
            }
        }
    }
    nested
}

/// The path without empty, `.` and resolvable `..` parts.
fn clean(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            other => parts.push(other),
        }
    }
    format!("/{}", parts.join("/"))
}

/// `runAsUser` if every container has the same one (upstream: `FsUserFrom`).
pub fn common_user(pod: &Pod) -> Option<i64> {
    let spec = pod.spec.as_ref()?;
    let pod_user = spec.security_context.as_ref().and_then(|s| s.run_as_user);
    let plain = spec.init_containers.iter().flatten().chain(&spec.containers);
    let mut contexts = plain
        .map(|c| c.security_context.as_ref())
        .chain(spec.ephemeral_containers.iter().flatten().map(|c| c.security_context.as_ref()))
        .map(|own| own.and_then(|s| s.run_as_user).or(pod_user));
    let first = contexts.next()??;
    contexts.all(|user| user == Some(first)).then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unused_volumes_are_ignored_and_every_kind_of_container_counts() {
        let pod: Pod = serde_json::from_value(serde_json::json!({
            "metadata": {"name": "p"},
            "spec": {
                "volumes": [{"name": "a"}, {"name": "b"}, {"name": "c"}, {"name": "unused"}],
                "initContainers": [{"name": "i", "volumeMounts": [{"name": "a", "mountPath": "/a"}]}],
                "containers": [{"name": "m", "volumeDevices": [{"name": "b", "devicePath": "/b"}]}],
                "ephemeralContainers": [
                    {"name": "e", "volumeMounts": [{"name": "c", "mountPath": "/c"}]}
                ]
            }
        }))
        .unwrap();
        let used = used_volumes(&pod);
        assert_eq!(used.keys().collect::<Vec<_>>(), ["a", "b", "c"]);
        assert!(used["b"].device && !used["b"].mounted);
    }

    #[test]
    fn only_the_outermost_nested_mounts_need_a_folder() {
        let pod: Pod = serde_json::from_value(serde_json::json!({
            "metadata": {},
            "spec": {"containers": [{"name": "m", "volumeMounts": [
                {"name": "v", "mountPath": "/etc/v/"},
                {"name": "a", "mountPath": "/etc/v/a/b"},
                {"name": "b", "mountPath": "/etc/v/a/b/c"},
                {"name": "c", "mountPath": "/etc/vx"},
                {"name": "d", "mountPath": "/etc/v/../../outside"},
                {"name": "e", "mountPath": "/etc/v/z"}
            ]}]}
        }))
        .unwrap();
        assert_eq!(nested_mount_points(&pod, "v"), ["a/b", "z"]);
    }

    #[test]
    fn a_common_user_needs_every_container_to_agree() {
        let pod = |pod_user: Option<i64>, users: &[Option<i64>]| -> Pod {
            let containers: Vec<_> = users
                .iter()
                .map(|u| serde_json::json!({"name": "c", "securityContext": {"runAsUser": u}}))
                .collect();
            serde_json::from_value(serde_json::json!({"metadata": {}, "spec": {
                "securityContext": {"runAsUser": pod_user}, "containers": containers}}))
            .unwrap()
        };
        assert_eq!(common_user(&pod(Some(5), &[None, None])), Some(5));
        assert_eq!(common_user(&pod(Some(5), &[Some(6), None])), None);
        assert_eq!(common_user(&pod(None, &[Some(6), Some(6)])), Some(6));
        assert_eq!(common_user(&pod(None, &[Some(6), None])), None);
    }
}
