//! Input and output of the plan.

use super::backoff::{BackOff, BackOffKey};
use crate::probe::ProbeResults;
use crate::runtime::RuntimePod;
use api::core::v1::{Pod, ResourceRequirements};
use api::ids::{ContainerId, SandboxId};
use jiff::Timestamp;
use std::collections::BTreeMap;
use std::time::Duration;

/// Feature gates that change the plan, resolved once at start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PodGates {
    /// ContainerRestartRules.
    pub container_restart_rules: bool,
    /// RestartAllContainersOnContainerExits.
    pub restart_all_containers: bool,
    /// InPlacePodVerticalScaling.
    pub resize: bool,
    /// InPlacePodVerticalScalingInitContainers.
    pub resize_init_containers: bool,
    /// InPlacePodLevelResourcesVerticalScaling.
    pub resize_pod_level: bool,
}

impl Default for PodGates {
    fn default() -> Self {
        Self {
            container_restart_rules: true,
            restart_all_containers: true,
            resize: true,
            resize_init_containers: true,
            resize_pod_level: true,
        }
    }
}

/// Resources that were last applied to a pod's containers and cgroup.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Actuated {
    /// By container name (init and regular).
    pub containers: BTreeMap<String, ResourceRequirements>,
    /// Of the pod itself.
    pub pod_level: Option<ResourceRequirements>,
}

/// Everything the plan looks at.
#[derive(Debug, Clone, Copy)]
pub struct PodView<'a> {
    /// The pod, with its allocated resources.
    pub pod: &'a Pod,
    /// The runtime's state of it, read after the agent's last action ended.
    pub runtime: &'a RuntimePod,
    /// Settled probe results.
    pub probes: &'a ProbeResults,
    /// Resources last applied.
    pub actuated: &'a Actuated,
    /// Crash-loop back-off of this pod's containers.
    pub back_off: &'a BackOff,
    /// The status of this sync has condition AllContainersRestarting=True.
    pub restart_all: bool,
    /// Feature gates.
    pub gates: &'a PodGates,
}

/// What must change. Walk it in field order.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct PodPlan {
    /// Nothing is done before this time; all other fields are empty then.
    pub hold_until: Option<Timestamp>,
    /// Container ids that CPU, memory and device placement should forget (no longer running).
    pub release: Vec<ContainerId>,
    /// Kill every running container and stop every sandbox (see [`super::kill::plan_pod`]).
    pub kill_pod: bool,
    /// Kill these, one after another; unused when `kill_pod`.
    pub kill: Vec<KillContainer>,
    /// Restart-all: kill (if asked) and remove these keeping logs, in order; unused when `kill_pod`.
    pub reset: Vec<ResetContainer>,
    /// Remove these instances with their logs before anything is started.
    pub remove: Vec<RemoveContainer>,
    /// Make a sandbox.
    pub create_sandbox: Option<CreateSandbox>,
    /// The sandbox to start containers in, when none is made.
    pub sandbox: Option<SandboxId>,
    /// Apply changed resources without a restart.
    pub resize: ResizePlan,
    /// Start these in order: ephemeral, init and sidecar, regular.
    pub start: Vec<StartContainer>,
}

impl PodPlan {
    /// Whether nothing is to be done, back-offs aside.
    pub fn is_settled(&self) -> bool {
        !self.kill_pod
            && self.kill.is_empty()
            && self.reset.is_empty()
            && self.remove.is_empty()
            && self.create_sandbox.is_none()
            && self.resize.is_empty()
            && self.start.iter().all(|s| !matches!(s.gate, StartGate::Now { .. }))
    }

    /// When the earliest back-off ends, if something waits for one.
    pub fn wake_at(&self) -> Option<Timestamp> {
        let held = self.hold_until.into_iter();
        let starts = self.start.iter().filter_map(|s| match &s.gate {
            StartGate::BackOff { until, .. } | StartGate::Pause { until } => Some(*until),
            StartGate::Now { .. } => None,
        });
        held.chain(starts).min()
    }
}

/// Which list of the spec a container is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ContainerKind {
    /// `spec.ephemeralContainers`.
    Ephemeral,
    /// `spec.initContainers` that must end.
    Init,
    /// `spec.initContainers` with restart policy Always.
    Sidecar,
    /// `spec.containers`.
    Regular,
}

impl ContainerKind {
    /// The `fieldPath` of events about this container.
    pub fn field_path(self, name: &str) -> String {
        let list = match self {
            Self::Ephemeral => "ephemeralContainers",
            Self::Init | Self::Sidecar => "initContainers",
            Self::Regular => "containers",
        };
        format!("spec.{list}{{{name}}}")
    }
}

/// A sandbox to make.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CreateSandbox {
    /// `metadata.attempt`.
    pub attempt: u32,
    /// The sandbox it replaces: post `SandboxChanged` first.
    pub replaces: Option<SandboxId>,
}

/// Why a container is killed; probe reasons choose the probe's own grace period.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum KillReason {
    /// The pod ends, or the definition or resources changed.
    Other,
    /// The startup probe failed.
    StartupProbe,
    /// The liveness probe failed.
    LivenessProbe,
    /// The runtime does not know its state.
    Unknown,
}

/// One container to kill.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KillContainer {
    /// Its id.
    pub id: ContainerId,
    /// Its name.
    pub name: String,
    /// Its kind.
    pub kind: ContainerKind,
    /// Message of the `Killing` event.
    pub message: String,
    /// Why.
    pub reason: KillReason,
}

/// One instance to remove for restart-all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResetContainer {
    /// Its id.
    pub id: ContainerId,
    /// Its name.
    pub name: String,
    /// Its kind.
    pub kind: ContainerKind,
    /// Not exited: kill it first with grace 0 (event text `killing`, no preStop).
    pub kill: bool,
}

/// One dead instance to remove with its logs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoveContainer {
    /// Its id.
    pub id: ContainerId,
    /// Its name.
    pub name: String,
}

/// One container to start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StartContainer {
    /// Which list.
    pub kind: ContainerKind,
    /// Index in that list of the spec.
    pub index: usize,
    /// Its name.
    pub name: String,
    /// Whether it may start now.
    pub gate: StartGate,
    /// An instance that was created and has not run: the agent may have crashed while starting it. It is removed
    /// before another is created.
    pub unstarted: Option<UnstartedContainer>,
    /// What a failure (being in back-off is one) means for the rest of the list.
    pub on_failure: OnFailure,
}

/// An instance that was created and has not run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnstartedContainer {
    /// Its id.
    pub id: ContainerId,
    /// A start of it may still be in progress: nothing is started while it exists. Otherwise the next instance
    /// takes another attempt number if this one cannot be removed.
    pub may_yet_run: bool,
}

/// Whether a container may start now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StartGate {
    /// Start it. If it ran before, first call [`BackOff::advance`] with these.
    Now {
        /// Key and end of the previous run.
        previous: Option<(BackOffKey, Timestamp)>,
    },
    /// Do not start it: waiting reason `CrashLoopBackOff`.
    BackOff {
        /// When it may start.
        until: Timestamp,
        /// The whole delay.
        delay: Duration,
        /// Message of the waiting state.
        message: String,
        /// Message of the Warning event `BackOff`.
        event: String,
        /// Key and end of the previous run.
        previous: (BackOffKey, Timestamp),
    },
    /// Do not start it yet: the last start of its instance failed just now.
    Pause {
        /// When it may start.
        until: Timestamp,
    },
}

impl StartGate {
    /// The gate re-evaluated while the plan is executed: an earlier kill or pull may have taken as long as the
    /// container had to wait (upstream evaluates it right before each start).
    #[must_use]
    pub fn at(&self, now: Timestamp) -> Self {
        match self {
            Self::BackOff { until, previous, .. } if now >= *until => {
                Self::Now { previous: Some(previous.clone()) }
            }
            other => other.clone(),
        }
    }
}

/// What a failed start means for the rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnFailure {
    /// Go on with the next entry.
    Continue,
    /// End this sync.
    Abort,
}

/// Resources changed in place.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ResizePlan {
    /// Memory updates, decreases first.
    pub memory: Vec<ContainerUpdate>,
    /// CPU updates, decreases first.
    pub cpu: Vec<ContainerUpdate>,
    /// The pod's cgroup must follow because containers restart with other resources.
    pub pod: bool,
    /// Pod-level resources differ from those applied.
    pub pod_level: bool,
}

impl ResizePlan {
    /// Whether nothing changes.
    pub fn is_empty(&self) -> bool {
        self.memory.is_empty() && self.cpu.is_empty() && !self.pod && !self.pod_level
    }

    /// Whether something changes for the pod or its running containers, not only for one that is about to start.
    /// Once applied, it is not planned again.
    pub fn changes_what_runs(&self) -> bool {
        !self.memory.is_empty() || !self.cpu.is_empty() || self.pod_level
    }
}

/// The resources that can change in place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ResizeResource {
    /// CPU.
    Cpu,
    /// Memory.
    Memory,
}

/// One container whose resources change in place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerUpdate {
    /// Its id.
    pub id: ContainerId,
    /// Its name.
    pub name: String,
    /// Its kind.
    pub kind: ContainerKind,
    /// What it should have.
    pub desired: ResourceAmounts,
    /// What was last applied.
    pub current: ResourceAmounts,
}

/// CPU in milli-units and memory in bytes; 0 means unset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ResourceAmounts {
    /// `requests.cpu`.
    pub cpu_request_milli: i64,
    /// `limits.cpu`.
    pub cpu_limit_milli: i64,
    /// `requests.memory`.
    pub memory_request: i64,
    /// `limits.memory`.
    pub memory_limit: i64,
}
