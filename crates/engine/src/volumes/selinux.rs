//! The SELinux label with which a volume is mounted, so that its files need not be relabelled one by one.
//!
//! A pod that leaves the level to the runtime gets no such mount (upstream chooses a random level, which is
//! not the one that the runtime chooses for the processes).

use super::spec::VolumeSpec;
use super::world::DesiredVolume;
use api::core::v1::{Pod, SELinuxOptions};
use std::collections::BTreeSet;

/// How volumes are labelled on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Labelling {
    user: String,
    role: String,
    kind: String,
    /// Gate `SELinuxMount`: volumes of every access mode, not only `ReadWriteOncePod`.
    every_mode: bool,
}

impl Labelling {
    /// From the policy's file of container contexts; `None` if it has none.
    pub fn read(contexts: &str, every_mode: bool) -> Option<Self> {
        setting(contexts, "process")?;
        let file = setting(contexts, "file")?;
        let mut parts = file.split(':').map(str::to_owned);
        let (user, role, kind) = (parts.next()?, parts.next()?, parts.next()?);
        Some(Self { user, role, kind, every_mode })
    }

    /// The label of files that processes with these options may use; empty if the runtime chooses it.
    fn files(&self, options: &SELinuxOptions) -> String {
        let given = |value: &Option<String>| value.clone().filter(|v| !v.is_empty());
        let Some(level) = given(&options.level) else { return String::new() };
        let user = given(&options.user).unwrap_or_else(|| self.user.clone());
        format!("{user}:{}:{}:{level}", self.role, self.kind)
    }

    /// Whether volumes like this one are mounted with a label at all.
    pub fn covers(&self, spec: &VolumeSpec) -> bool {
        let Some(volume) = spec.as_persistent() else { return false };
        let modes = volume.spec.as_ref().and_then(|s| s.access_modes.as_deref());
        self.every_mode || matches!(modes, Some([only]) if only == "ReadWriteOncePod")
    }
}

/// A setting of the policy's files: `name = "value"`.
pub fn setting<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let lines = text.lines().map(str::trim).filter(|line| !line.starts_with(['#', ';']));
    let mut values = lines.filter_map(|line| line.split_once('='));
    let (_, value) = values.find(|(key, _)| key.trim() == name)?;
    Some(value.trim().trim_matches('"')).filter(|value| !value.is_empty())
}

/// The label of one pod's volume.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VolumeLabel {
    /// The plugin can mount with a label.
    pub possible: bool,
    /// What it would be with every access mode.
    pub wanted: String,
    /// What the volume is mounted with; empty: without any.
    pub mount: String,
}

/// A pod whose containers do not agree on a volume's label.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("multiple SELinux labels found: {}", labels.join(","))]
pub struct LabelsDiffer {
    labels: Vec<String>,
}

/// The label of the pod's volume `name`; `possible` says whether its plugin can mount with one.
pub fn volume_label(
    labelling: &Labelling,
    pod: &Pod,
    name: &str,
    spec: &VolumeSpec,
    possible: bool,
) -> Result<VolumeLabel, LabelsDiffer> {
    let labels: BTreeSet<String> =
        options_of_users(pod, name).into_iter().map(|options| labelling.files(options)).collect();
    if labels.len() > 1 {
        return Err(LabelsDiffer { labels: labels.into_iter().collect() });
    }
    let context = pod.spec.as_ref().and_then(|s| s.security_context.as_ref());
    let recursive = context
        .and_then(|c| c.se_linux_change_policy.as_deref())
        .is_some_and(|policy| policy == "Recursive");
    let wanted = labels.into_iter().next().filter(|_| possible && !recursive).unwrap_or_default();
    let mount = if labelling.covers(spec) { wanted.clone() } else { String::new() };
    Ok(VolumeLabel { possible, wanted, mount })
}

/// Options of every container that mounts the volume and has any.
fn options_of_users<'a>(pod: &'a Pod, name: &str) -> Vec<&'a SELinuxOptions> {
    let Some(spec) = pod.spec.as_ref() else { return Vec::new() };
    let common = spec.security_context.as_ref().and_then(|c| c.se_linux_options.as_ref());
    let plain = spec.init_containers.iter().flatten().chain(&spec.containers);
    let plain = plain.map(|c| (c.volume_mounts.as_ref(), c.security_context.as_ref()));
    let debugging = spec.ephemeral_containers.iter().flatten();
    let debugging = debugging.map(|c| (c.volume_mounts.as_ref(), c.security_context.as_ref()));
    plain
        .chain(debugging)
        .filter(|(mounts, _)| mounts.is_some_and(|all| all.iter().any(|m| m.name == name)))
        .filter_map(|(_, own)| own.and_then(|c| c.se_linux_options.as_ref()).or(common))
        .collect()
}

/// Two pods that want one volume under different labels.
pub fn label_conflict(held: &DesiredVolume, wanted: &DesiredVolume) -> Option<String> {
    let (held, label) = (&held.label.wanted, &wanted.label.wanted);
    (wanted.label.possible && held != label).then(|| {
        let name = &wanted.spec.name;
        format!("conflicting SELinux labels of volume {name}: {held:?} and {label:?}")
    })
}

/// The access mode as metrics of labels show it: the widest.
pub fn widest_mode(spec: &VolumeSpec) -> &'static str {
    let Some(volume) = spec.as_persistent() else { return "inline" };
    let modes = volume.spec.as_ref().and_then(|s| s.access_modes.as_deref()).unwrap_or_default();
    let shown = [
        ("ReadWriteMany", "RWX"),
        ("ReadOnlyMany", "ROX"),
        ("ReadWriteOnce", "RWO"),
        ("ReadWriteOncePod", "RWOP"),
    ];
    let found = shown.into_iter().find(|(mode, _)| modes.iter().any(|m| m == mode));
    found.map(|(_, short)| short).unwrap_or_default()
}

/// The mount option for a label.
pub fn label_option(label: &str) -> Option<String> {
    // Quoted, since a level may have commas.
    (!label.is_empty()).then(|| format!("context={label:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};
    use std::sync::Arc;

    const CONTEXTS: &str = "# of containers\nprocess = \"system_u:system_r:container_t:s0\"\n\
        file = \"system_u:object_r:container_file_t:s0\"\nro_file=\"x\"\n";

    fn labelling(every_mode: bool) -> Labelling {
        Labelling::read(CONTEXTS, every_mode).unwrap()
    }

    fn spec(modes: &[&str]) -> VolumeSpec {
        let volume = serde_json::from_value(json!({
            "metadata": {"name": "pv"},
            "spec": {"accessModes": modes, "csi": {"driver": "d", "volumeHandle": "h"}}
        }));
        VolumeSpec::persistent(Arc::new(volume.unwrap()), Arc::default(), false).unwrap()
    }

    fn pod(context: Value, containers: &[Option<Value>]) -> Pod {
        let containers: Vec<Value> = containers
            .iter()
            .map(|options| {
                let mut container = json!({"name": "c",
                    "volumeMounts": [{"name": "v", "mountPath": "/v"}]});
                if let Some(options) = options {
                    container["securityContext"] = json!({"seLinuxOptions": options});
                }
                container
            })
            .collect();
        serde_json::from_value(json!({"metadata": {},
            "spec": {"securityContext": context, "containers": containers}}))
        .unwrap()
    }

    fn label(pod: &Pod, modes: &[&str], every_mode: bool) -> VolumeLabel {
        volume_label(&labelling(every_mode), pod, "v", &spec(modes), true).unwrap()
    }

    #[test]
    fn a_policy_without_contexts_of_containers_labels_nothing() {
        assert_eq!(Labelling::read("file = \"a:b:c:s0\"", false), None);
        assert_eq!(Labelling::read("process = \"\"\nfile = \"a:b:c:s0\"", false), None);
        assert_eq!(Labelling::read("process = \"p\"\nfile = \"a:b\"", false), None);
    }

    #[test]
    fn only_user_and_level_of_the_process_reach_its_files() {
        let options = json!({"user": "u", "role": "r", "type": "t", "level": "s0:c1,c2"});
        let pod = pod(json!({"seLinuxOptions": options}), &[None, None]);
        let label = label(&pod, &["ReadWriteOncePod"], false);
        assert_eq!(label.mount, "u:object_r:container_file_t:s0:c1,c2");
        assert_eq!(
            label_option(&label.mount).unwrap(),
            "context=\"u:object_r:container_file_t:s0:c1,c2\""
        );
    }

    #[test]
    fn who_gets_a_label_depends_on_modes_gate_policy_and_plugin() {
        let level = json!({"seLinuxOptions": {"level": "s0:c1"}});
        let own = pod(level.clone(), &[None]);
        let full = "system_u:object_r:container_file_t:s0:c1";
        assert_eq!(label(&own, &["ReadWriteOncePod"], false).mount, full);
        let wide = label(&own, &["ReadWriteMany"], false);
        assert_eq!((wide.wanted.as_str(), wide.mount.as_str()), (full, ""));
        assert_eq!(label(&own, &["ReadWriteMany"], true).mount, full);
        let mut recursive = level;
        recursive["seLinuxChangePolicy"] = json!("Recursive");
        assert_eq!(label(&pod(recursive, &[None]), &["ReadWriteOncePod"], false).mount, "");
        let modes = &spec(&["ReadWriteOncePod"]);
        let unable = volume_label(&labelling(false), &own, "v", modes, false).unwrap();
        assert_eq!(unable, VolumeLabel::default());
        // The runtime chooses the level: it is not known before.
        let typed = pod(json!({"seLinuxOptions": {"type": "spc_t"}}), &[None]);
        assert_eq!(label(&typed, &["ReadWriteOncePod"], false).mount, "");
        assert_eq!(label(&pod(json!({}), &[None]), &["ReadWriteOncePod"], false).mount, "");
    }

    #[test]
    fn containers_must_agree_and_their_own_options_come_first() {
        let common = json!({"seLinuxOptions": {"level": "s0:c1"}});
        let same = pod(common.clone(), &[None, Some(json!({"level": "s0:c1"}))]);
        assert!(volume_label(&labelling(false), &same, "v", &spec(&[]), true).is_ok());
        let split = pod(common, &[None, Some(json!({"level": "s0:c9"}))]);
        let error = volume_label(&labelling(false), &split, "v", &spec(&[]), true).unwrap_err();
        assert_eq!(
            error.to_string(),
            "multiple SELinux labels found: system_u:object_r:container_file_t:s0:c1,\
             system_u:object_r:container_file_t:s0:c9"
        );
        // Another volume has no users.
        let other = volume_label(&labelling(false), &split, "w", &spec(&[]), true).unwrap();
        assert_eq!(other.wanted, "");
    }

    #[test]
    fn the_widest_access_mode_is_shown() {
        assert_eq!(widest_mode(&spec(&["ReadWriteOnce", "ReadOnlyMany"])), "ROX");
        assert_eq!(widest_mode(&spec(&["ReadWriteOncePod"])), "RWOP");
        let inline = serde_json::from_value(json!({"name": "v", "emptyDir": {}})).unwrap();
        assert_eq!(widest_mode(&VolumeSpec::inline(&inline).unwrap()), "inline");
    }
}
