//! Starting one container: image, configuration, create, start, postStart.
//!
//! Promises: upstream's order, events and waiting reasons; an event never shows a container id where
//! a name will do.

use super::PodWorker;
use super::execute::{Ground, Logs, fault};
use super::hooks::{self, HookTarget};
use super::requests::NOT_WAITED_FOR;
use api::core::v1::Container;
use engine::pod::{ContainerKind, KillContainer, KillReason, StartContainer, StartGate, kill};
use engine::runtime::ContainerRunState;
use engine::status::{StartError, next_restart_count};
use ports::EventSeverity;
use proto::cri_v1::PodSandboxState;
use std::time::Duration;
use tokio::time::Instant;

/// Waiting reason of a container whose configuration cannot be made.
const CONFIG_ERROR: &str = "CreateContainerConfigError";
/// Waiting reason of a container that was made and did not start.
const RUN_ERROR: &str = "RunContainerError";
/// Of a start that failed because its sandbox is gone: nothing is told of it, the pod begins anew in another one.
pub(super) const SANDBOX_ENDED: &str = "SandboxEnded";
/// How long a sandbox that somebody stops may take to follow the container that was killed first.
const SANDBOX_LIMIT: Duration = Duration::from_millis(400);
const SANDBOX_PAUSE: Duration = Duration::from_millis(50);
/// 128 and the number of SIGKILL.
const KILLED: i32 = 137;

impl PodWorker {
    pub(super) async fn start(
        &mut self,
        ground: &Ground<'_>,
        start: &StartContainer,
        gate: &StartGate,
    ) -> Result<(), StartError> {
        match gate {
            StartGate::BackOff { message, event, .. } => {
                self.container_event(
                    ground.pod,
                    start,
                    EventSeverity::Warning,
                    "BackOff",
                    event.clone(),
                );
                return Err(fault("CrashLoopBackOff", message.clone()));
            }
            StartGate::Now { previous: Some((key, finished)) } => {
                let before = self.back_off.clone();
                self.back_off.advance(key, *finished, self.shared.clock.now());
                let result = self.start_now(ground, start).await;
                if result.as_ref().is_err_and(|fault| fault.reason == SANDBOX_ENDED) {
                    self.back_off = before;
                }
                return result;
            }
            StartGate::Now { previous: None } => {}
            // What went wrong a moment ago is still the case.
            StartGate::Pause { .. } => {
                let known = self.faults.get(&start.name).cloned();
                return Err(known.unwrap_or_else(|| fault(RUN_ERROR, String::new())));
            }
        }
        self.start_now(ground, start).await
    }

    async fn start_now(
        &mut self,
        ground: &Ground<'_>,
        start: &StartContainer,
    ) -> Result<(), StartError> {
        let Some(container) = Self::definition(ground.pod, start) else {
            return Err(fault(
                CONFIG_ERROR,
                format!("container {:?} is not in the pod's spec", start.name),
            ));
        };
        let kind = match start.kind {
            ContainerKind::Regular => "container",
            ContainerKind::Init | ContainerKind::Sidecar => "init_container",
            ContainerKind::Ephemeral => "ephemeral_container",
        };
        self.shared.metrics.started_containers.inc(&[kind]);
        // All are told, the last one is shown; upstream counts them nowhere.
        let mut missing = Ok(());
        for fault in ground.image_volumes.faults_of(&container) {
            missing = Err(self.image_failed(ground, start, fault));
        }
        missing?;
        let result = Box::pin(self.start_container(ground, start, &container)).await;
        let metrics = &self.shared.metrics;
        let fault = result.as_ref().err();
        metrics.starts.with_image_volumes(&container, &ground.image_volumes.images, fault);
        if let Some(fault) = fault.filter(|fault| fault.reason != SANDBOX_ENDED) {
            metrics.started_containers_errors.inc(&[kind, &fault.reason]);
        }
        result
    }

    async fn start_container(
        &mut self,
        ground: &Ground<'_>,
        start: &StartContainer,
        container: &Container,
    ) -> Result<(), StartError> {
        self.discard_half_made(ground, start).await?;
        let image = match self.ensure_image(ground, start, container).await {
            Ok(image) => image,
            Err(fault) => return Err(self.image_failed(ground, start, fault)),
        };
        let attempt = self.next_attempt(ground, start, container).await;
        let config = match self.container_config(ground, container, attempt, &image).await {
            Ok(config) => config,
            Err(error) => {
                let fault = fault(error.reason, error.message);
                return Err(self.start_failed(ground, start, fault));
            }
        };
        self.shared.actuated.record_container(&self.uid, container);
        let sandbox = ground.sandbox_config.clone();
        let created =
            self.shared.runtime.create_container(&ground.sandbox_id, config, sandbox).await;
        let id = match created {
            Ok(id) => id,
            Err(error) => {
                if self.sandbox_has_ended(ground, container).await {
                    return Err(fault(SANDBOX_ENDED, error.message));
                }
                return Err(self.start_failed(
                    ground,
                    start,
                    fault("CreateContainerError", error.message),
                ));
            }
        };
        let created = self.shared.placement.container_created(ground.pod, container, &id).await;
        if let Err(error) = created {
            let message = format!("Internal PreStartContainer hook failed: {error}");
            self.container_event(ground.pod, start, EventSeverity::Warning, "Failed", message);
            return Err(fault("PreStartHookError", error.to_string()));
        }
        self.start_event(ground, start, "Created", "Container created");
        self.timeline.note_container("created", &container.name, id.as_str());
        if let Err(error) = self.shared.runtime.start_container(&id).await {
            if self.sandbox_has_ended(ground, container).await {
                self.undo(ground, container, &id, attempt).await;
                return Err(fault(SANDBOX_ENDED, error.message));
            }
            // Alike events must read alike; the status may name the container by its id.
            let told = format!("Error: {}", error.message.replace(&id, &container.name));
            self.container_event(ground.pod, start, EventSeverity::Warning, "Failed", told);
            self.back_off.start_failed(id.as_str().into(), self.shared.clock.now());
            return Err(fault(RUN_ERROR, error.message));
        }
        self.start_event(ground, start, "Started", "Container started");
        self.timeline.note_container("started", &container.name, id.as_str());
        self.link_log(ground, container, &id, attempt).await;
        self.post_start(ground, start, container, &id).await
    }

    /// Whether a start failed because somebody stops the sandbox. Who does so kills its containers first, and a
    /// reader that looks once a second sees both at once: only after such a kill the sandbox gets a moment to follow.
    async fn sandbox_has_ended(&self, ground: &Ground<'_>, container: &Container) -> bool {
        let last = ground.runtime.newest(&container.name);
        let was_killed = last.is_some_and(|last| {
            last.state == ContainerRunState::Exited
                && last.exit_code == KILLED
                && last.reason == "Error"
        });
        if !was_killed {
            return false;
        }
        let end = Instant::now() + SANDBOX_LIMIT;
        loop {
            match self.shared.runtime.sandbox_status(&ground.sandbox_id).await {
                Ok(Some(status)) if status.state == PodSandboxState::SandboxReady as i32 => {}
                Ok(_) => return true,
                Err(_) => return false,
            }
            if Instant::now() >= end {
                return false;
            }
            tokio::time::sleep(SANDBOX_PAUSE).await;
        }
    }

    /// Takes back what was made in a sandbox that is gone.
    async fn undo(&self, ground: &Ground<'_>, container: &Container, id: &str, attempt: u32) {
        let removed = self.remove_container(ground.runtime, &id.into(), Logs::Keep).await;
        if let Err(error) = removed {
            tracing::warn!(containerID = id, err = error, "cannot remove container");
            return;
        }
        let log = std::path::PathBuf::from(&ground.sandbox_config.log_directory)
            .join(engine::request::paths::container_log_path(&container.name, attempt));
        // Where the log was not begun there is none.
        drop(sys::blocking::run(move || sys::fs::remove_file(log)).await);
    }

    /// Removes an instance that was made and never started. The runtime refuses while somebody's
    /// start of it is under way, and two of a name would run if we went on.
    async fn discard_half_made(
        &self,
        ground: &Ground<'_>,
        start: &StartContainer,
    ) -> Result<(), StartError> {
        let Some(id) = &start.half_made else { return Ok(()) };
        let removed = self.remove_container(ground.runtime, id, Logs::Keep).await;
        removed.map_err(|error| fault("CreateContainerError", error))
    }

    fn start_event(
        &self,
        ground: &Ground<'_>,
        start: &StartContainer,
        reason: &'static str,
        message: &str,
    ) {
        let severity = EventSeverity::Normal;
        self.container_event(ground.pod, start, severity, reason, message.to_owned());
    }

    fn start_failed(
        &self,
        ground: &Ground<'_>,
        start: &StartContainer,
        fault: StartError,
    ) -> StartError {
        let message = format!("Error: {}", fault.message);
        self.container_event(ground.pod, start, EventSeverity::Warning, "Failed", message);
        fault
    }

    /// Image faults are shown by their reason alone, unless only the image's user could not be had; a
    /// pull that nobody waits for any more is none.
    fn image_failed(
        &self,
        ground: &Ground<'_>,
        start: &StartContainer,
        fault: StartError,
    ) -> StartError {
        if fault.reason == CONFIG_ERROR {
            return self.start_failed(ground, start, fault);
        }
        if fault.reason != NOT_WAITED_FOR {
            let message = format!("Error: {}", fault.reason);
            self.container_event(ground.pod, start, EventSeverity::Warning, "Failed", message);
        }
        fault
    }

    async fn post_start(
        &mut self,
        ground: &Ground<'_>,
        start: &StartContainer,
        container: &Container,
        id: &str,
    ) -> Result<(), StartError> {
        let Some(handler) = container.lifecycle.as_ref().and_then(|l| l.post_start.as_ref()) else {
            return Ok(());
        };
        let pod_ip = ground.own_ip.as_str();
        let target = HookTarget { pod: ground.pod, container, container_id: id, pod_ip };
        let mut interrupt = self.interrupt.clone();
        let result = tokio::select! {
            result = hooks::run(&self.shared, target, handler) => result, // dropped only if not wanted
            () = super::sync::interrupted(&mut interrupt) => { // cancel-safe: a watch
                if handler.sleep.is_some() {
                    self.shared.metrics.starts.sleep_early.inc(&[]);
                }
                self.timeline.note_container("postStart hook left: the pod is to end", &container.name, "");
                return Ok(());
            }
        };
        let Err(error) = result else {
            self.timeline.note_container("postStart hook done", &container.name, "");
            return Ok(());
        };
        tracing::error!(containerName = %container.name, err = %error, "PostStart hook failed");
        self.container_event(
            ground.pod,
            start,
            EventSeverity::Warning,
            "FailedPostStartHook",
            "PostStartHook failed".to_owned(),
        );
        let target = KillContainer {
            id: id.into(),
            name: container.name.clone(),
            kind: start.kind,
            message: "FailedPostStartHook".to_owned(),
            reason: KillReason::Other,
        };
        if let Ok(stop) = kill::plan_container(ground.pod, &target, None)
            && let Err(error) = self.killer(ground.pod, ground.runtime).container(&stop, None).await
        {
            tracing::error!(containerName = %container.name, err = %error, "cannot kill container");
        }
        Err(fault("PostStartHookError", error))
    }

    /// Restart count of the next instance: that of one that was made and never started, else one
    /// more than the newest, or than the newest log, or than the status showed.
    async fn next_attempt(
        &self,
        ground: &Ground<'_>,
        start: &StartContainer,
        container: &Container,
    ) -> u32 {
        if let Some(newest) = ground.runtime.newest(&container.name) {
            let lived = i32::from(start.half_made.as_ref() != Some(&newest.id));
            return u32::try_from(newest.restart_count.saturating_add(lived)).unwrap_or_default();
        }
        let folder =
            std::path::PathBuf::from(&ground.sandbox_config.log_directory).join(&container.name);
        let names = sys::blocking::run(move || sys::fs::list_dir(folder)).await;
        let names = names.ok().and_then(Result::ok).unwrap_or_default();
        let logged = names
            .iter()
            .filter_map(|name| engine::request::paths::attempt_of_log(name))
            .max()
            .map_or(0, |newest| newest.saturating_add(1));
        let shown = self.shared.status.get(&self.uid);
        let shown = shown.map_or(0, |shown| next_restart_count(&shown, &container.name));
        logged.max(shown)
    }

    async fn link_log(&self, ground: &Ground<'_>, container: &Container, id: &str, attempt: u32) {
        let meta = &ground.pod.metadata;
        let name = engine::request::paths::log_symlink_name(
            meta.name.as_deref().unwrap_or_default(),
            meta.namespace.as_deref().unwrap_or_default(),
            &container.name,
            id,
        );
        let link = self.shared.config.roots.container_logs.join(name);
        let log = std::path::PathBuf::from(&ground.sandbox_config.log_directory)
            .join(engine::request::paths::container_log_path(&container.name, attempt));
        let result = sys::blocking::run(move || super::files::link_log(&log, &link)).await;
        if let Ok(Err(error)) = result {
            tracing::debug!(err = %error, "cannot link container log");
        }
    }
}
