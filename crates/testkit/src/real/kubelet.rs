//! The kubelet under test: ours or the Go one, behind the same options.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use anyhow::Context;
use serde_json::{Value, json};

use super::process::output_of;
use super::{Parts, Slot, repository_root, reset};

/// Which program to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KubeletKind {
    /// This project's binary, built from this checkout.
    Rubelet,
    /// The Go kubelet of the pinned Kubernetes version.
    Go,
}

impl KubeletKind {
    /// What `KUBELET=go|rubelet` asks for; ours when nothing is said.
    pub fn from_env() -> anyhow::Result<KubeletKind> {
        match std::env::var("KUBELET").as_deref() {
            Ok("go") => Ok(KubeletKind::Go),
            Ok("rubelet") | Err(_) => Ok(KubeletKind::Rubelet),
            Ok(other) => anyhow::bail!("KUBELET is {other:?}; it may be go or rubelet"),
        }
    }

    /// Path of the program; ours is brought up to date first.
    pub fn program(self, parts: &Parts) -> anyhow::Result<PathBuf> {
        match self {
            KubeletKind::Go => parts.bin("kubelet-go"),
            KubeletKind::Rubelet => rubelet_bin(),
        }
    }
}

/// Everything about one kubelet that a test may want otherwise.
#[derive(Debug, Clone)]
pub struct KubeletOptions {
    /// Name of the node.
    pub node: String,
    /// Fields laid over the harness's KubeletConfiguration (objects are merged).
    pub config: Value,
    /// More command-line arguments.
    pub args: Vec<String>,
    /// Give the kubelet a folder for device plugins of its own, in a mount namespace of its own: the path is
    /// the same for every kubelet of a machine.
    pub own_devices: bool,
    /// More environment variables.
    pub env: Vec<(String, String)>,
    /// `--v`: how much it logs.
    pub verbosity: u8,
}

impl Default for KubeletOptions {
    fn default() -> Self {
        KubeletOptions {
            node: "node1".to_owned(),
            config: json!({}),
            args: Vec::new(),
            own_devices: false,
            env: Vec::new(),
            verbosity: 4,
        }
    }
}

/// The ports of one kubelet, kept over its restarts.
#[derive(Debug, Clone, Copy)]
pub(super) struct KubeletPorts {
    pub(super) api: u16,
    pub(super) health: u16,
}

/// Make the slot's cgroup in every hierarchy, ready for pods.
pub(super) fn make_cgroups(slot: &Slot) -> anyhow::Result<()> {
    for hierarchy in reset::hierarchies() {
        let group = hierarchy.join(slot.cgroup());
        std::fs::create_dir_all(&group)
            .with_context(|| format!("cannot make {}", group.display()))?;
        for file in ["cpuset.cpus", "cpuset.mems"] {
            // v1 starts with an empty set, in which nothing can run.
            if let Ok(all) = std::fs::read(hierarchy.join(file))
                && std::fs::read(group.join(file)).is_ok_and(|own| own.trim_ascii().is_empty())
            {
                std::fs::write(group.join(file), all)?;
            }
        }
        let controllers = std::fs::read_to_string(group.join("cgroup.controllers"));
        for name in controllers.unwrap_or_default().split_whitespace() {
            std::fs::write(group.join("cgroup.subtree_control"), format!("+{name}"))?;
        }
    }
    Ok(())
}

/// The configuration file of a kubelet in this slot.
pub(super) fn configuration(
    slot: &Slot,
    runtime_socket: &Path,
    ports: KubeletPorts,
    overlay: &Value,
) -> anyhow::Result<Value> {
    let resolv = slot.write("etc/resolv.conf", "nameserver 10.255.255.53\n")?;
    let manifests = slot.path("manifests");
    std::fs::create_dir_all(&manifests)?;
    let mut config = json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": "127.0.0.1",
        "port": ports.api,
        "healthzPort": ports.health,
        "readOnlyPort": 0,
        "containerRuntimeEndpoint": format!("unix://{}", runtime_socket.display()),
        "staticPodPath": manifests,
        "podLogsDir": slot.path("pod-logs"),
        "resolvConf": resolv,
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": format!("/{}", slot.cgroup()),
        "failCgroupV1": false,
        "failSwapOn": false,
        "serializeImagePulls": false,
        "maxPods": 600,
        "fileCheckFrequency": "20s",
        "authentication": { "anonymous": { "enabled": true }, "webhook": { "enabled": false } },
        "authorization": { "mode": "AlwaysAllow" },
        // A test machine may be full: its images must stay where a test put them.
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "evictionHard": {
            "imagefs.available": "1%",
            "memory.available": "100Mi",
            "nodefs.available": "1%",
            "nodefs.inodesFree": "1%",
        },
        "volumePluginDir": slot.path("volume-plugins"),
    });
    lay_over(&mut config, overlay);
    Ok(config)
}

/// Merge objects field by field; anything else is replaced.
pub(super) fn lay_over(base: &mut Value, overlay: &Value) {
    match (base, overlay) {
        (Value::Object(base), Value::Object(overlay)) => {
            for (key, value) in overlay {
                lay_over(base.entry(key.clone()).or_insert(Value::Null), value);
            }
        }
        (base, overlay) => *base = overlay.clone(),
    }
}

/// Our binary, built once per process so that a test never runs a stale one.
pub fn rubelet_bin() -> anyhow::Result<PathBuf> {
    static BUILT: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    if let Some(given) = std::env::var_os("RUBELET_BIN") {
        return Ok(given.into());
    }
    let built = BUILT.get_or_init(|| build().map_err(|error| format!("{error:#}")));
    built.clone().map_err(anyhow::Error::msg)
}

fn build() -> anyhow::Result<PathBuf> {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(repository_root());
    command.args(["build", "--quiet", "--package", "rubelet", "--message-format", "json"]);
    // What cargo told the test about its own package would build ring anew, and all above it.
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_MANIFEST_") || text.starts_with("CARGO_PKG_") {
            command.env_remove(&name);
        }
    }
    let messages = output_of(command)?;
    messages
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(|message| message["target"]["name"] == "rubelet")
        .find_map(|message| message["executable"].as_str().map(PathBuf::from))
        .context("cargo build named no executable")
}
