//! Sandboxes and containers, and the rules by which they change. No time passes in here.

use std::collections::BTreeMap;

use proto::cri_v1::{
    Container, ContainerConfig, ContainerEventResponse, ContainerEventType, ContainerFilter,
    ContainerResources, ContainerState, ContainerStatus, ImageSpec, LinuxPodSandboxStatus,
    Namespace, NamespaceMode, NamespaceOption, PodSandbox, PodSandboxConfig, PodSandboxFilter,
    PodSandboxNetworkStatus, PodSandboxState, PodSandboxStatus,
};
use tonic::Status;

use super::behaviour::Behaviour;
use super::images::Images;
use super::not_found;

/// A sandbox.
#[derive(Debug, Clone, PartialEq)]
pub struct SandboxRecord {
    /// Its id.
    pub id: String,
    /// What it was made from.
    pub config: PodSandboxConfig,
    /// Its runtime handler.
    pub runtime_handler: String,
    /// Whether it is ready.
    pub ready: bool,
    /// When it was made.
    pub created_at: i64,
    /// Its address; empty on the host's network.
    pub ip: String,
}

impl SandboxRecord {
    /// The pod's UID.
    pub fn pod_uid(&self) -> &str {
        self.config.metadata.as_ref().map_or("", |metadata| &metadata.uid)
    }

    fn state(&self) -> PodSandboxState {
        match self.ready {
            true => PodSandboxState::SandboxReady,
            false => PodSandboxState::SandboxNotready,
        }
    }

    fn namespace_options(&self) -> Option<NamespaceOption> {
        let linux = self.config.linux.as_ref()?;
        linux.security_context.as_ref()?.namespace_options.clone()
    }

    pub(super) fn listed(&self) -> PodSandbox {
        PodSandbox {
            id: self.id.clone(),
            metadata: self.config.metadata.clone(),
            state: self.state().into(),
            created_at: self.created_at,
            labels: self.config.labels.clone(),
            annotations: self.config.annotations.clone(),
            runtime_handler: self.runtime_handler.clone(),
        }
    }

    pub(super) fn status(&self) -> PodSandboxStatus {
        let ip = if self.ready { self.ip.clone() } else { String::new() };
        let namespaces = Namespace { options: self.namespace_options() };
        PodSandboxStatus {
            id: self.id.clone(),
            metadata: self.config.metadata.clone(),
            state: self.state().into(),
            created_at: self.created_at,
            network: Some(PodSandboxNetworkStatus { ip, additional_ips: Vec::new() }),
            linux: Some(LinuxPodSandboxStatus { namespaces: Some(namespaces) }),
            labels: self.config.labels.clone(),
            annotations: self.config.annotations.clone(),
            runtime_handler: self.runtime_handler.clone(),
        }
    }
}

/// A container.
#[derive(Debug, Clone, PartialEq)]
pub struct ContainerRecord {
    /// Its id.
    pub id: String,
    /// Its sandbox.
    pub sandbox: String,
    /// What it was made from; resources are kept up to date.
    pub config: ContainerConfig,
    /// Its state.
    pub state: ContainerState,
    /// When it was made.
    pub created_at: i64,
    /// When it was started, or 0.
    pub started_at: i64,
    /// When it ended, or 0.
    pub finished_at: i64,
    /// Its exit code.
    pub exit_code: i32,
    /// Why it ended.
    pub reason: String,
    /// More on why it ended.
    pub message: String,
    /// Its process was begun, even if the runtime says otherwise.
    pub ran: bool,
    /// How it behaves.
    pub behaviour: Behaviour,
    image_id: String,
    image_ref: String,
    image_name: String,
    log_path: String,
}

impl ContainerRecord {
    /// Its name in the pod.
    pub fn name(&self) -> &str {
        self.config.metadata.as_ref().map_or("", |metadata| &metadata.name)
    }

    /// Its attempt.
    pub fn attempt(&self) -> u32 {
        self.config.metadata.as_ref().map_or(0, |metadata| metadata.attempt)
    }

    /// The pod's UID, by label.
    pub fn pod_uid(&self) -> &str {
        self.config.labels.get("io.kubernetes.pod.uid").map_or("", String::as_str)
    }

    /// Whether it runs.
    pub fn is_running(&self) -> bool {
        self.state == ContainerState::ContainerRunning
    }

    /// Where its log is.
    pub fn log_path(&self) -> &str {
        &self.log_path
    }

    pub(super) fn listed(&self) -> Container {
        Container {
            id: self.id.clone(),
            pod_sandbox_id: self.sandbox.clone(),
            metadata: self.config.metadata.clone(),
            image: self.config.image.clone(),
            image_ref: self.image_id.clone(),
            state: self.state.into(),
            created_at: self.created_at,
            labels: self.config.labels.clone(),
            annotations: self.config.annotations.clone(),
            image_id: self.image_id.clone(),
        }
    }

    pub(super) fn status(&self) -> ContainerStatus {
        let image = ImageSpec { image: self.image_name.clone(), ..Default::default() };
        let linux = self.config.linux.as_ref().and_then(|linux| linux.resources.clone());
        ContainerStatus {
            id: self.id.clone(),
            metadata: self.config.metadata.clone(),
            state: self.state.into(),
            created_at: self.created_at,
            started_at: self.started_at,
            finished_at: self.finished_at,
            exit_code: self.exit_code,
            image: Some(image),
            image_ref: self.image_ref.clone(),
            reason: self.reason.clone(),
            message: self.message.clone(),
            labels: self.config.labels.clone(),
            annotations: self.config.annotations.clone(),
            mounts: self.config.mounts.clone(),
            log_path: self.log_path.clone(),
            resources: linux.map(|linux| ContainerResources { linux: Some(linux), windows: None }),
            image_id: self.image_id.clone(),
            user: None,
            stop_signal: self.config.stop_signal,
        }
    }
}

/// How a process ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Exit {
    code: i32,
    reason: &'static str,
}

impl Exit {
    pub(super) fn with_code(code: i32) -> Self {
        Self { code, reason: if code == 0 { "Completed" } else { "Error" } }
    }

    pub(super) fn killed() -> Self {
        Self::with_code(137)
    }

    pub(super) fn oom_killed() -> Self {
        Self { code: 137, reason: "OOMKilled" }
    }
}

/// Everything the runtime knows.
#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) sandboxes: BTreeMap<String, SandboxRecord>,
    pub(super) containers: BTreeMap<String, ContainerRecord>,
    pub(super) images: Images,
    pub(super) behaviours: BTreeMap<String, Vec<Behaviour>>,
    pub(super) network_problem: Option<String>,
    pub(super) runtime_problem: Option<String>,
    made: u64,
}

impl State {
    /// The next id: hex like a real one, and in order of making.
    fn next_id(&mut self) -> String {
        self.made += 1;
        let scattered = self.made.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        format!("{scattered:016x}{:048x}", self.made)
    }

    pub(super) fn run_sandbox(
        &mut self,
        config: PodSandboxConfig,
        runtime_handler: String,
        now: i64,
    ) -> Result<String, Status> {
        let Some(metadata) = config.metadata.clone() else {
            return Err(Status::invalid_argument("sandbox config must include metadata"));
        };
        if let Some(taken) =
            self.sandboxes.values().find(|s| s.config.metadata.as_ref() == Some(&metadata))
        {
            let name = format!(
                "{}_{}_{}_{}",
                metadata.name, metadata.namespace, metadata.uid, metadata.attempt
            );
            return Err(Status::unknown(format!(
                "failed to reserve sandbox name {name:?}: name {name:?} is reserved for {:?}",
                taken.id
            )));
        }
        let id = self.next_id();
        let mut sandbox = SandboxRecord {
            id: id.clone(),
            config,
            runtime_handler,
            ready: true,
            created_at: now,
            ip: String::new(),
        };
        let network = sandbox.namespace_options().map_or(0, |options| options.network);
        if network != i32::from(NamespaceMode::Node) {
            sandbox.ip = format!("10.88.{}.{}", (self.made >> 8) & 0xff, self.made & 0xff);
        }
        self.sandboxes.insert(id.clone(), sandbox);
        Ok(id)
    }

    /// Ends a sandbox; whether it was ready.
    pub(super) fn stop_sandbox(&mut self, sandbox: &str) -> bool {
        let Some(sandbox) = self.sandboxes.get_mut(sandbox) else { return false };
        std::mem::replace(&mut sandbox.ready, false)
    }

    pub(super) fn running_in(&self, sandbox: &str) -> Vec<String> {
        let of_sandbox = self.containers.values().filter(|c| c.sandbox == sandbox);
        of_sandbox.filter(|c| c.is_running()).map(|c| c.id.clone()).collect()
    }

    pub(super) fn create_container(
        &mut self,
        sandbox: &str,
        config: ContainerConfig,
        now: i64,
    ) -> Result<String, Status> {
        let Some(of) = self.sandboxes.get(sandbox) else {
            return Err(Status::not_found(format!(
                "failed to find sandbox id {sandbox:?}: not found"
            )));
        };
        if !of.ready {
            let text =
                format!("failed to get sandbox container task: sandbox {sandbox:?} is not running");
            return Err(Status::unknown(text));
        }
        let Some(metadata) = config.metadata.clone() else {
            return Err(Status::invalid_argument("container config must include metadata"));
        };
        let uid = of.pod_uid().to_owned();
        let same = |c: &&ContainerRecord| {
            c.config.metadata.as_ref() == Some(&metadata)
                && self.sandboxes.get(&c.sandbox).is_some_and(|s| s.pod_uid() == uid)
        };
        if let Some(taken) = self.containers.values().find(same) {
            let name = format!("{}_{uid}_{}", metadata.name, metadata.attempt);
            return Err(Status::unknown(format!(
                "failed to reserve container name {name:?}: name {name:?} is reserved for {:?}",
                taken.id
            )));
        }
        let wanted = config.image.as_ref().map_or("", |image| image.image.as_str());
        let Some(image) = self.images.find(wanted).cloned() else {
            let text = format!("failed to resolve image {wanted:?}: not found");
            return Err(Status::not_found(text));
        };
        let behaviour = self.behaviour_of(&metadata.name, metadata.attempt);
        if let Some(text) = behaviour.create_error {
            return Err(Status::unknown(text));
        }
        let log_path = match (of.config.log_directory.as_str(), config.log_path.as_str()) {
            ("", _) | (_, "") => String::new(),
            (folder, file) => format!("{folder}/{file}"),
        };
        let id = self.next_id();
        let container = ContainerRecord {
            id: id.clone(),
            sandbox: sandbox.to_owned(),
            config,
            state: ContainerState::ContainerCreated,
            created_at: now,
            started_at: 0,
            finished_at: 0,
            exit_code: 0,
            reason: String::new(),
            message: String::new(),
            ran: false,
            behaviour,
            image_name: image
                .repo_tags
                .first()
                .or(image.repo_digests.first())
                .cloned()
                .unwrap_or_default(),
            image_ref: image.repo_digests.first().cloned().unwrap_or_else(|| image.id.clone()),
            image_id: image.id,
            log_path,
        };
        self.containers.insert(id.clone(), container);
        Ok(id)
    }

    /// The behaviour of a container: by name, in turn by attempt.
    fn behaviour_of(&self, name: &str, attempt: u32) -> Behaviour {
        let Some(turns) = self.behaviours.get(name) else { return Behaviour::default() };
        let turn = usize::try_from(attempt).unwrap_or(usize::MAX);
        turns.get(turn).or(turns.last()).cloned().unwrap_or_default()
    }

    /// Starts a made container; gives it back as it is then.
    pub(super) fn start(&mut self, id: &str, now: i64) -> Result<ContainerRecord, Status> {
        let Some(container) = self.containers.get_mut(id) else {
            return Err(not_found("container", id));
        };
        if container.state != ContainerState::ContainerCreated {
            let state = container.state.as_str_name();
            return Err(Status::unknown(format!(
                "failed to set starting state for container {id:?}: container is in {state} state"
            )));
        }
        if let Some(text) = container.behaviour.start_error.clone() {
            container.state = ContainerState::ContainerExited;
            container.finished_at = now;
            container.exit_code = 128;
            container.reason = "StartError".to_owned();
            container.message = text.clone();
            return Err(Status::unknown(text));
        }
        container.state = ContainerState::ContainerRunning;
        container.started_at = now;
        container.ran = true;
        Ok(container.clone())
    }

    /// Ends a container whose start was cancelled by its caller, in containerd's words.
    pub(super) fn give_up_start(&mut self, id: &str, may_have_run: bool, now: i64) {
        let made = ContainerState::ContainerCreated;
        let Some(container) = self.containers.get_mut(id).filter(|c| c.state == made) else {
            return;
        };
        container.ran = may_have_run;
        container.state = ContainerState::ContainerExited;
        container.finished_at = now;
        container.exit_code = 128;
        container.reason = "StartError".to_owned();
        container.message = if may_have_run {
            format!("failed to start containerd task {id:?}: context canceled")
        } else {
            "failed to create containerd task: failed to create shim task: context canceled"
                .to_owned()
        };
    }

    /// Ends a container that runs; gives it back as it is then.
    pub(super) fn finish(&mut self, id: &str, exit: &Exit, now: i64) -> Option<ContainerRecord> {
        let unknown = ContainerState::ContainerUnknown;
        let container =
            self.containers.get_mut(id).filter(|c| c.is_running() || c.state == unknown)?;
        container.state = ContainerState::ContainerExited;
        container.finished_at = now;
        container.exit_code = exit.code;
        container.reason = exit.reason.to_owned();
        Some(container.clone())
    }

    pub(super) fn remove_container(&mut self, id: &str) -> Option<ContainerRecord> {
        self.containers.remove(id)
    }

    pub(super) fn containers_in(&self, sandbox: &str) -> Vec<String> {
        let of_sandbox = self.containers.values().filter(|c| c.sandbox == sandbox);
        of_sandbox.map(|c| c.id.clone()).collect()
    }

    pub(super) fn sandboxes_by_age(&self) -> Vec<SandboxRecord> {
        let mut all: Vec<_> = self.sandboxes.values().cloned().collect();
        all.sort_by(|a, b| (a.created_at, order_of(&a.id)).cmp(&(b.created_at, order_of(&b.id))));
        all
    }

    pub(super) fn containers_by_age(&self) -> Vec<ContainerRecord> {
        let mut all: Vec<_> = self.containers.values().cloned().collect();
        all.sort_by(|a, b| (a.created_at, order_of(&a.id)).cmp(&(b.created_at, order_of(&b.id))));
        all
    }

    pub(super) fn list_sandboxes(&self, filter: &PodSandboxFilter) -> Vec<PodSandbox> {
        let wanted = |s: &&SandboxRecord| {
            s.id.starts_with(&filter.id)
                && filter.state.as_ref().is_none_or(|wanted| wanted.state == i32::from(s.state()))
                && has_labels(&s.config.labels, &filter.label_selector)
        };
        self.sandboxes.values().filter(wanted).map(SandboxRecord::listed).collect()
    }

    pub(super) fn list_containers(&self, filter: &ContainerFilter) -> Vec<Container> {
        let wanted = |c: &&ContainerRecord| {
            c.id.starts_with(&filter.id)
                && c.sandbox.starts_with(&filter.pod_sandbox_id)
                && filter.state.as_ref().is_none_or(|wanted| wanted.state == i32::from(c.state))
                && has_labels(&c.config.labels, &filter.label_selector)
        };
        self.containers.values().filter(wanted).map(ContainerRecord::listed).collect()
    }

    /// An event about a container or a sandbox, with the pod as it is now.
    pub(super) fn event(
        &self,
        kind: ContainerEventType,
        id: &str,
        now: i64,
    ) -> ContainerEventResponse {
        let sandbox = self.containers.get(id).map_or(id, |container| &container.sandbox);
        let of_sandbox = self.containers.values().filter(|c| c.sandbox == sandbox);
        ContainerEventResponse {
            container_id: id.to_owned(),
            container_event_type: kind.into(),
            created_at: now,
            pod_sandbox_status: self.sandboxes.get(sandbox).map(SandboxRecord::status),
            containers_statuses: of_sandbox.map(ContainerRecord::status).collect(),
        }
    }
}

/// The part of an id that grows with each made object.
fn order_of(id: &str) -> &str {
    id.get(16..).unwrap_or(id)
}

pub(super) fn has_labels(
    labels: &BTreeMap<String, String>,
    wanted: &BTreeMap<String, String>,
) -> bool {
    wanted.iter().all(|(key, value)| labels.get(key) == Some(value))
}
