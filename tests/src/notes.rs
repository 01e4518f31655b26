//! Everything that a kubelet has written somewhere, at one moment: cgroup settings, mounts, firewall rules, files with
//! mode, owner and content, the node and its pods as the API server has them, gauges. One line each.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use testkit::real::{ControlPlane, TestNode};

use crate::exposition;

/// What was noted: a kind and a name, and the value.
pub type Notes = BTreeMap<String, String>;

/// Files of cgroups that can be written and yet count something, or are there to be poked.
const COUNTERS: [&str; 10] = [
    "cgroup.procs",
    "cgroup.threads",
    "tasks",
    "max_usage_in_bytes",
    "failcnt",
    "cpuacct.usage",
    "memory.force_empty",
    "cgroup.event_control",
    "memory.pressure_level",
    ".pressure",
];

/// Pages with gauges.
const PAGES: [&str; 4] = ["/metrics", "/metrics/cadvisor", "/metrics/resource", "/metrics/probes"];

/// Takes all notes of a node.
pub fn take(node: &TestNode, control: &ControlPlane) -> anyhow::Result<Notes> {
    let mut notes = Notes::new();
    for root in node.slot().cgroup_folders() {
        cgroups(&root, &root.display().to_string(), &mut notes);
    }
    mounts(node, &mut notes)?;
    firewall(node, &mut notes);
    files(&node.root_dir(), "file", Content::Counts, &mut notes);
    files(&node.pod_logs_dir(), "log", Content::Moves, &mut notes);
    let shown = control.get(["node", "node1"])?;
    object("node", &shown, &mut notes);
    for pod in control.get(["pods", "-A"])?["items"].as_array().into_iter().flatten() {
        let name = pod["metadata"]["name"].as_str().unwrap_or_default();
        object(&format!("pod {name}"), pod, &mut notes);
    }
    gauges(node, &mut notes)?;
    Ok(notes)
}

/// Settings of a cgroup and all below: what can be written, and devices.
fn cgroups(folder: &Path, shown: &str, notes: &mut Notes) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let Ok(meta) = entry.metadata() else { continue };
        let path = format!("{shown}/{name}");
        if meta.is_dir() {
            notes.insert(format!("cgroup {path}"), "there".to_owned());
            cgroups(&entry.path(), &path, notes);
        } else if (meta.mode() & 0o200 != 0 || name == "devices.list")
            && !COUNTERS.iter().any(|counter| name.ends_with(counter))
            && let Ok(text) = std::fs::read_to_string(entry.path())
        {
            notes.insert(format!("cgroup {path}"), text.trim().to_owned());
        }
    }
}

/// Mounts below the node's folder. One that was made anew has another number.
fn mounts(node: &TestNode, notes: &mut Notes) -> anyhow::Result<()> {
    let root = node.root_dir();
    let mut times: BTreeMap<String, usize> = BTreeMap::new();
    for line in std::fs::read_to_string("/proc/self/mountinfo")?.lines() {
        let mut fields = line.split(' ');
        let id = fields.next().unwrap_or_default();
        let point = fields.clone().nth(3).unwrap_or_default();
        if !Path::new(point).starts_with(&root) {
            continue;
        }
        let again = times.entry(point.to_owned()).or_default();
        *again += 1;
        let options = line.split_once(point).map_or("", |(_, rest)| rest.trim());
        notes.insert(format!("mount {point} #{again}"), format!("{id} {options}"));
    }
    Ok(())
}

/// Rules that are Kubernetes' or about the node's own network.
fn firewall(node: &TestNode, notes: &mut Notes) {
    let subnet = node.slot().subnet();
    let prefix = subnet.rsplit_once('.').map_or("", |(start, _)| start).to_owned();
    for program in ["iptables-save", "ip6tables-save"] {
        let Ok(output) = Command::new(program).output() else { continue };
        let mut table = String::new();
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            if let Some(name) = line.strip_prefix('*') {
                name.clone_into(&mut table);
            }
            let own = line.contains("KUBE-") || (!prefix.is_empty() && line.contains(&prefix));
            if own && !line.starts_with('#') {
                let rule = line.split(" [").next().unwrap_or_default();
                notes.insert(format!("{program} {table} {rule}"), "there".to_owned());
            }
        }
    }
}

/// Whether what is in files is noted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Content {
    Counts,
    Moves,
}

/// Kind, mode, owner and content of everything below a folder; folders of atomic writers by one name.
fn files(top: &Path, kind: &str, content: Content, notes: &mut Notes) {
    let mut left = vec![(top.to_owned(), String::new())];
    while let Some((folder, shown)) = left.pop() {
        for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
            let Ok(meta) = std::fs::symlink_metadata(entry.path()) else { continue };
            let name = undated(&String::from_utf8_lossy(entry.file_name().as_bytes()));
            let path = format!("{shown}/{name}");
            let owner = format!("{:o} {}:{}", meta.mode(), meta.uid(), meta.gid());
            let what = if meta.is_dir() {
                left.push((entry.path(), path.clone()));
                String::new()
            } else if meta.is_symlink() {
                let target = std::fs::read_link(entry.path()).unwrap_or_default();
                undated(&target.display().to_string())
            } else if meta.file_type().is_file() && content == Content::Counts {
                let mut hash = DefaultHasher::new();
                let bytes = std::fs::read(entry.path()).unwrap_or_default();
                bytes.hash(&mut hash);
                format!("{} bytes {:x}", bytes.len(), hash.finish())
            } else {
                format!("socket {}", meta.file_type().is_socket())
            };
            notes.insert(format!("{kind} {path}"), format!("{owner} {what}"));
        }
    }
}

/// A name without the moment at which an atomic writer made it.
fn undated(name: &str) -> String {
    let dated =
        name.strip_prefix("..").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
    if dated { "..dated".to_owned() } else { name.to_owned() }
}

/// Every field of an object. What counts its versions, and when it was last heard of, is left out.
fn object(name: &str, value: &Value, notes: &mut Notes) {
    const MOVING: [&str; 3] = ["resourceVersion", "managedFields", "lastHeartbeatTime"];
    match value {
        Value::Object(fields) => {
            for (key, field) in fields.iter().filter(|(key, _)| !MOVING.contains(&key.as_str())) {
                object(&format!("{name}.{key}"), field, notes);
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                let by = item["type"].as_str().or_else(|| item["name"].as_str());
                let by = by.map_or_else(|| index.to_string(), str::to_owned);
                object(&format!("{name}[{by}]"), item, notes);
            }
        }
        leaf => {
            notes.insert(name.to_owned(), leaf.to_string());
        }
    }
}

/// Gauges that measure: what is used now is no state of the kubelet's.
const MEASURES: [&str; 15] = [
    "container_blkio_",
    "container_cpu_",
    "container_file_descriptors",
    "container_fs_",
    "container_memory_",
    "container_network_",
    "container_pressure_",
    "container_processes",
    "container_sockets",
    "container_threads",
    "container_tasks_state",
    "kubelet_container_log_filesystem_used_bytes",
    "kubelet_pleg_last_seen_seconds",
    "kubelet_volume_stats_",
    "process_",
];

fn is_measure(family: &str) -> bool {
    MEASURES.iter().any(|start| family.starts_with(start)) || family.ends_with("_working_set_bytes")
}

/// Every gauge of every page that is no measure.
fn gauges(node: &TestNode, notes: &mut Notes) -> anyhow::Result<()> {
    for page in PAGES {
        let (code, text) = node.kubelet_get(page)?;
        anyhow::ensure!(code == 200, "{page} answers {code}");
        let families = exposition::read(&text)?;
        for (family, series) in exposition::series(&text)? {
            let gauge = families.get(&family).is_some_and(|family| family.kind == "gauge");
            if gauge && !is_measure(&family) {
                for (labels, value) in series {
                    notes.insert(format!("gauge {page} {family}{labels}"), value.to_string());
                }
            }
        }
    }
    Ok(())
}

/// What is the same in both notes; the rest moves by itself.
#[must_use]
pub fn steady(first: &Notes, second: &Notes) -> Notes {
    let same = |name: &String, value: &String| second.get(name) == Some(value);
    let kept = first.iter().filter(|(name, value)| same(name, value));
    kept.map(|(name, value)| (name.clone(), value.clone())).collect()
}

/// What differs: the name, before, after.
#[must_use]
pub fn differences(before: &Notes, after: &Notes) -> BTreeMap<String, (String, String)> {
    let names: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    let of = |notes: &Notes, name: &String| {
        notes.get(name).cloned().unwrap_or_else(|| "absent".to_owned())
    };
    names
        .into_iter()
        .filter(|name| before.get(*name) != after.get(*name))
        .map(|name| (name.clone(), (of(before, name), of(after, name))))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_moves_by_itself_is_no_difference_and_what_is_gone_is_one() {
        let notes = |pairs: &[(&str, &str)]| -> Notes {
            pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
        };
        let before = steady(&notes(&[("a", "1"), ("b", "1")]), &notes(&[("a", "1"), ("b", "2")]));
        assert_eq!(before, notes(&[("a", "1")]));
        let found = differences(&before, &notes(&[("c", "1")]));
        let found: Vec<_> = found.iter().map(|(name, (b, a))| format!("{name} {b} {a}")).collect();
        assert_eq!(found, ["a 1 absent", "c absent 1"]);
    }

    #[test]
    fn moments_are_no_part_of_names() {
        assert_eq!(undated("..2026_11_18_02_00_00.123"), "..dated");
        assert_eq!(undated("..data"), "..data");
    }
}
