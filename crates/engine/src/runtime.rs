//! The runtime's state of one pod, as the input of decisions.
//!
//! Owns: the view types and common queries on them (newest instance of a name, newest sandbox, instances
//! of the active sandbox).
//!
//! Promises: lists are ordered (sandboxes newest attempt first, containers newest creation first, and those of one
//! name by their restart counts, whatever their creation times) once [`RuntimePod::normalise`] was called; every
//! look-up relies on that order.
//!
//! Deliberately absent: CRI messages. The runtime client converts them to these types.

use api::ids::{ContainerId, PodUid, SandboxId};
use jiff::Timestamp;
use std::collections::BTreeMap;

/// The runtime's state of one pod at one time.
#[derive(Debug, Clone, PartialEq)]
pub struct RuntimePod {
    /// The pod's UID, from sandbox metadata or container labels.
    pub uid: PodUid,
    /// The pod's name.
    pub name: String,
    /// The pod's namespace.
    pub namespace: String,
    /// All sandboxes, newest first.
    pub sandboxes: Vec<SandboxView>,
    /// All containers over all sandboxes, newest creation first.
    pub containers: Vec<ContainerView>,
    /// IPs of the newest sandbox if it is ready, else those kept from before it stopped.
    pub ips: Vec<String>,
    /// When the runtime was asked: everything here is at least as new as this.
    pub observed_at: Timestamp,
}

impl RuntimePod {
    /// A pod without sandboxes and containers.
    pub fn empty(uid: PodUid, name: &str, namespace: &str, observed_at: Timestamp) -> Self {
        Self {
            uid,
            name: name.to_owned(),
            namespace: namespace.to_owned(),
            sandboxes: Vec::new(),
            containers: Vec::new(),
            ips: Vec::new(),
            observed_at,
        }
    }

    /// Sorts both lists into the order that look-ups rely on, and distinguishes cancelled starts from real exits.
    pub fn normalise(&mut self) {
        for container in &mut self.containers {
            if container.start_was_cut_off() {
                container.state = ContainerRunState::CutOff;
            }
        }
        self.sandboxes.sort_by(|a, b| {
            (b.attempt, b.created_at).cmp(&(a.attempt, a.created_at)).then_with(|| a.id.cmp(&b.id))
        });
        // Instances created at the same time are ordered by their attempt.
        self.containers.sort_by(|a, b| {
            let age = |c: &ContainerView| (c.created_at, c.restart_count);
            age(b).cmp(&age(a)).then_with(|| a.id.cmp(&b.id))
        });
        self.order_instances();
    }

    /// Orders the instances of each name by restart count, within the positions they occupy: a clock that was set
    /// back between two starts must not make the older one the newest.
    fn order_instances(&mut self) {
        let out_of_order = |list: &[ContainerView]| {
            list.iter().enumerate().any(|(at, later)| {
                let earlier = list.iter().take(at);
                let mut same = earlier.filter(|c| c.name == later.name);
                same.any(|c| c.restart_count < later.restart_count)
            })
        };
        if !out_of_order(&self.containers) {
            return;
        }
        let mut by_name: BTreeMap<String, Vec<ContainerView>> = BTreeMap::new();
        let names: Vec<String> = self.containers.iter().map(|c| c.name.clone()).collect();
        for container in std::mem::take(&mut self.containers) {
            by_name.entry(container.name.clone()).or_default().push(container);
        }
        for list in by_name.values_mut() {
            // Stable: instances with equal counts keep their order. Taken from the end.
            list.sort_by_key(|c| std::cmp::Reverse(c.restart_count));
            list.reverse();
        }
        self.containers =
            names.iter().filter_map(|name| by_name.get_mut(name).and_then(Vec::pop)).collect();
    }

    /// The newest instance with this container name, over all sandboxes.
    pub fn newest(&self, name: &str) -> Option<&ContainerView> {
        self.containers.iter().find(|c| c.name == name)
    }

    /// Instances with this container name, newest first.
    pub fn instances<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a ContainerView> {
        self.containers.iter().filter(move |c| c.name == name)
    }

    /// The newest instance with this name that has exited.
    pub fn newest_exited(&self, name: &str) -> Option<&ContainerView> {
        self.containers.iter().find(|c| c.name == name && c.state == ContainerRunState::Exited)
    }

    /// The container with this id.
    pub fn container(&self, id: &ContainerId) -> Option<&ContainerView> {
        self.containers.iter().find(|c| &c.id == id)
    }

    /// The newest sandbox, ready or not.
    pub fn newest_sandbox(&self) -> Option<&SandboxView> {
        self.sandboxes.first()
    }

    /// The newest sandbox if it is ready.
    pub fn active_sandbox(&self) -> Option<&SandboxView> {
        self.newest_sandbox().filter(|s| s.state == SandboxState::Ready)
    }

    /// The first IP of the active sandbox; empty if it has none, as on the host network.
    pub fn own_ip(&self) -> &str {
        let network = self.active_sandbox().and_then(|s| s.network.as_ref());
        network.map_or("", |network| network.first_ip())
    }

    /// Containers of the active sandbox, newest first; none when there is no active one.
    pub fn active_containers(&self) -> impl Iterator<Item = &ContainerView> {
        let sandbox = self.active_sandbox().map(|s| s.id.clone());
        self.containers.iter().filter(move |c| sandbox.as_ref() == Some(&c.sandbox))
    }

    /// Whether some container runs.
    pub fn has_running_container(&self) -> bool {
        self.containers.iter().any(|c| c.state == ContainerRunState::Running)
    }

    /// Whether some sandbox is ready.
    pub fn has_ready_sandbox(&self) -> bool {
        self.sandboxes.iter().any(|s| s.state == SandboxState::Ready)
    }

    /// Whether no container runs and no sandbox is ready.
    pub fn is_dead(&self) -> bool {
        !self.has_running_container() && !self.has_ready_sandbox()
    }

    /// Keeps the IPs of an earlier view when this one lost them only because no sandbox is ready.
    pub fn keep_ips_of(&mut self, earlier: &Self) {
        if self.ips.is_empty() && !self.has_ready_sandbox() {
            self.ips.clone_from(&earlier.ips);
        }
    }
}

/// How containerd shows a container that it could not start.
const START_ERROR: &str = "StartError";
const START_ERROR_CODE: i32 = 128;

/// State of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SandboxState {
    /// Its processes and network are up.
    Ready,
    /// Stopped, or something of it is gone.
    NotReady,
}

/// Whose namespace an object uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum NamespaceMode {
    /// The pod's own.
    #[default]
    Pod,
    /// The container's own.
    Container,
    /// The node's.
    Node,
    /// That of another container.
    Target,
}

/// One sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SandboxView {
    /// Its id.
    pub id: SandboxId,
    /// `metadata.attempt`.
    pub attempt: u32,
    /// Ready or not.
    pub state: SandboxState,
    /// When it was made.
    pub created_at: Timestamp,
    /// Network namespace mode; the pod's own when the runtime does not say.
    pub network_mode: NamespaceMode,
    /// PID namespace mode: `Pod` means that all containers end with the sandbox.
    pub pid_mode: NamespaceMode,
    /// Addresses; `None` when the runtime reports no network status at all.
    pub network: Option<SandboxNetwork>,
    /// Runtime handler (RuntimeClass), empty for the default one.
    pub runtime_handler: String,
}

/// Addresses of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SandboxNetwork {
    /// The primary IP, empty if there is none.
    pub ip: String,
    /// Further IPs.
    pub additional_ips: Vec<String>,
}

impl SandboxNetwork {
    /// The first of [`Self::ips`], empty if there is none.
    pub fn first_ip(&self) -> &str {
        let mut all = std::iter::once(&self.ip).chain(&self.additional_ips);
        all.find(|ip| !ip.is_empty()).map_or("", String::as_str)
    }

    /// All IPs, the primary one first.
    pub fn ips(&self) -> Vec<String> {
        std::iter::once(&self.ip)
            .chain(&self.additional_ips)
            .filter(|ip| !ip.is_empty())
            .cloned()
            .collect()
    }
}

/// State of a container in the runtime.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ContainerRunState {
    /// Made, never started.
    Created,
    /// Its process runs.
    Running,
    /// Its process ended.
    Exited,
    /// The runtime reports it as exited, but it never ran: the caller of its start went away, and the runtime
    /// cancelled the start before there was a process.
    CutOff,
    /// The runtime cannot tell.
    Unknown,
}

impl ContainerRunState {
    /// The word used in messages and labels.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Running => "running",
            // As the runtime calls it.
            Self::Exited | Self::CutOff => "exited",
            Self::Unknown => "unknown",
        }
    }

    /// Whether it was created and has provably never run.
    pub fn never_ran(self) -> bool {
        matches!(self, Self::Created | Self::CutOff)
    }
}

/// One container instance.
/// Many fields: what the runtime says of a container, as plans and statuses need it.
#[derive(Debug, Clone, PartialEq)]
pub struct ContainerView {
    /// Its id, without the runtime's prefix.
    pub id: ContainerId,
    /// The sandbox it lives in.
    pub sandbox: SandboxId,
    /// Container name (label `io.kubernetes.container.name`).
    pub name: String,
    /// `metadata.attempt`.
    pub attempt: u32,
    /// Its state.
    pub state: ContainerRunState,
    /// When it was made.
    pub created_at: Timestamp,
    /// When its process started.
    pub started_at: Option<Timestamp>,
    /// When its process ended.
    pub finished_at: Option<Timestamp>,
    /// Exit code, meaningful when exited.
    pub exit_code: i32,
    /// The runtime's reason, e.g. `Completed`, `Error`, `OOMKilled`.
    pub reason: String,
    /// The runtime's message joined with the termination message ([`join_messages`]).
    pub message: String,
    /// Image as the runtime names it (`status.image`).
    pub image: String,
    /// The image asked for at creation, when the runtime remembers it.
    pub user_image: Option<String>,
    /// The image's local id.
    pub image_id: String,
    /// The image's digest reference (`status.image_ref`): `imageID` in the API.
    pub image_ref: String,
    /// Annotation `io.kubernetes.container.hash`; 0 if missing or unreadable.
    pub hash: u64,
    /// Annotation `io.kubernetes.container.restartCount`.
    pub restart_count: i32,
    /// Log file path on the host.
    pub log_path: String,
    /// Resources in force, if the runtime reports them.
    pub resources: Option<RuntimeResources>,
    /// Effective user, if the runtime reports it.
    pub user: Option<RuntimeUser>,
    /// Mounts; the termination message file is found through these.
    pub mounts: Vec<RuntimeMount>,
    /// Effective stop signal, `None` for the runtime's default.
    pub stop_signal: Option<String>,
    /// Annotation with the path of the termination message in the container.
    pub termination_message_path: String,
    /// Annotation with the termination message policy.
    pub termination_message_policy: String,
    /// What is needed to kill it when its pod's spec is unknown.
    pub restored: RestoredSpec,
}

impl ContainerView {
    /// Whether its process runs.
    pub fn is_running(&self) -> bool {
        self.state == ContainerRunState::Running
    }

    /// Whether its reported exit is a start that was cancelled before its process began. containerd creates the
    /// process first, which then waits, and starts it in a second step: from there on it may have run, and a start
    /// that fails for another reason has another message.
    fn start_was_cut_off(&self) -> bool {
        self.state == ContainerRunState::Exited
            && self.started_at.is_none()
            && self.exit_code == START_ERROR_CODE
            && self.reason == START_ERROR
            && self.message.starts_with("failed to create containerd task: ")
            && self.message.ends_with(": context canceled")
    }

    /// Host path of the termination message file, if it is mounted.
    pub fn termination_file(&self) -> Option<&str> {
        if self.termination_message_path.is_empty() {
            return None;
        }
        // Mounts are made at absolute paths, whatever the pod says.
        let path = self.termination_message_path.trim_start_matches('/');
        self.mounts
            .iter()
            .find(|m| m.container_path.strip_prefix('/') == Some(path))
            .map(|m| m.host_path.as_str())
    }

    /// Whether the end of the log stands in for an empty termination message.
    pub fn falls_back_to_log(&self) -> bool {
        self.termination_message_policy == "FallbackToLogsOnError"
            && self.exit_code != 0
            && self.reason != "ContainerCannotRun"
    }
}

/// The runtime's message and the termination message as one text.
pub fn join_messages(runtime: &str, termination: &str) -> String {
    match (runtime.is_empty(), termination.is_empty()) {
        (true, _) => termination.to_owned(),
        (_, true) => runtime.to_owned(),
        _ => format!("{runtime}: {termination}"),
    }
}

/// Linux resources in force for a container, as the runtime reports them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RuntimeResources {
    /// CPU period in microseconds.
    pub cpu_period: Option<i64>,
    /// CPU quota in microseconds per period.
    pub cpu_quota: Option<i64>,
    /// CPU shares (v1 scale).
    pub cpu_shares: Option<i64>,
    /// Memory limit in bytes.
    pub memory_limit_bytes: Option<i64>,
}

/// Effective Linux user of a container.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RuntimeUser {
    /// Primary uid.
    pub uid: i64,
    /// Primary gid.
    pub gid: i64,
    /// Supplementary groups.
    pub supplemental_groups: Vec<i64>,
}

/// A mount of a container.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RuntimeMount {
    /// Path in the container.
    pub container_path: String,
    /// Path on the host.
    pub host_path: String,
    /// Mounted read-only.
    pub read_only: bool,
}

/// Parts of a container's spec that were written into its annotations at creation.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct RestoredSpec {
    /// `io.kubernetes.pod.deletionGracePeriod`.
    pub deletion_grace_seconds: Option<i64>,
    /// `io.kubernetes.pod.terminationGracePeriod`.
    pub termination_grace_seconds: Option<i64>,
    /// `io.kubernetes.container.preStopHandler`.
    pub pre_stop: Option<api::core::v1::LifecycleHandler>,
    /// `io.kubernetes.container.ports`.
    pub ports: Vec<api::core::v1::ContainerPort>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::testing;

    /// How a start ends in containerd's words, as recorded from real ones.
    fn ended(message: &str) -> ContainerRunState {
        let mut pod = testing::runtime("ready a:exited128");
        let container = &mut pod.containers[0];
        container.started_at = None;
        container.reason = START_ERROR.to_owned();
        container.message = message.to_owned();
        pod.normalise();
        pod.containers[0].state
    }

    #[test]
    fn only_a_start_that_was_cancelled_before_there_was_a_process_never_ran() {
        assert_eq!(ended(testing::CUT), ContainerRunState::CutOff);
        for message in [
            "failed to start containerd task \"a\": context canceled",
            "failed to create containerd task: failed to create shim task: OCI runtime create \
             failed: runc create failed: unable to start container process: exec: \
             \"context canceled\": executable file not found in $PATH",
            "failed to create containerd task: failed to create shim task: context deadline exceeded",
            "context canceled",
            "",
        ] {
            assert_eq!(ended(message), ContainerRunState::Exited, "{message}");
        }
    }

    #[test]
    fn a_clock_that_was_set_back_does_not_make_an_older_instance_the_newest() {
        let mut pod = testing::runtime("ready a:exited1 b:running a:exited2 a:running");
        for (number, created) in [(0, 900), (1, 100), (2, 200)] {
            let code = [1, 2, 0];
            let found =
                pod.containers.iter_mut().find(|c| c.name == "a" && c.exit_code == code[number]);
            let container = found.unwrap();
            container.restart_count = i32::try_from(number).unwrap();
            container.created_at = testing::at(created);
        }
        pod.normalise();
        let numbers: Vec<i32> = pod.instances("a").map(|c| c.restart_count).collect();
        assert_eq!(numbers, [2, 1, 0]);
        assert!(pod.newest("a").unwrap().is_running());
        assert_eq!(pod.containers.len(), 4);
    }

    #[test]
    fn what_has_started_has_run_whatever_is_said_of_its_end() {
        let mut pod = testing::runtime("ready a:exited128");
        let container = &mut pod.containers[0];
        container.reason = START_ERROR.to_owned();
        container.message = "failed to create containerd task: context canceled".to_owned();
        assert!(container.started_at.is_some());
        pod.normalise();
        assert_eq!(pod.containers[0].state, ContainerRunState::Exited);
    }
}
