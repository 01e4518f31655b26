//! Starting one container: image, configuration, create, start, postStart.
//!
//! Promises: upstream's order, events and waiting reasons; an event never shows a container id where
//! a name will do.

use super::execute::{Logs, StartContext, fault};
use super::hooks::{self, HookTarget};
use super::{Interrupted, PodWorker};
use crate::view::translate;
use api::core::v1::Container;
use api::ids::ContainerId;
use engine::pod::{
    ContainerKind, FailedStart, KillContainer, KillReason, StartContainer, StartGate,
    UnstartedContainer, failed_start, kill,
};
use engine::status::{StartError, next_restart_count};
use ports::EventSeverity;
use tokio::time::Instant;

/// Waiting reason of a container whose configuration cannot be made.
const CONFIG_ERROR: &str = "CreateContainerConfigError";
/// Waiting reason of a container that was made and did not start.
const RUN_ERROR: &str = "RunContainerError";

/// Why a container was not started.
#[derive(Debug)]
pub(super) enum NotStarted {
    /// Its status says why.
    Fault(StartError),
    /// Its sandbox is gone, in the runtime's words: nothing is told of it, the pod begins anew in another one.
    SandboxEnded(String),
    /// Nobody waits for it any more.
    Interrupted(Interrupted),
}

impl From<StartError> for NotStarted {
    fn from(fault: StartError) -> Self {
        Self::Fault(fault)
    }
}

impl PodWorker {
    pub(super) async fn start(
        &mut self,
        context: &StartContext<'_>,
        start: &StartContainer,
        gate: &StartGate,
    ) -> Result<(), NotStarted> {
        match gate {
            StartGate::BackOff { message, event, .. } => {
                self.container_event(
                    context.pod,
                    start,
                    EventSeverity::Warning,
                    "BackOff",
                    event.clone(),
                );
                return Err(fault("CrashLoopBackOff", message.clone()).into());
            }
            StartGate::Now { previous: Some((key, finished)) } => {
                let before = self.back_off.clone();
                self.back_off.advance(key, *finished, self.shared.clock.now());
                let result = self.start_now(context, start).await;
                if matches!(result, Err(NotStarted::SandboxEnded(_) | NotStarted::Interrupted(_))) {
                    self.back_off = before;
                }
                return result;
            }
            StartGate::Now { previous: None } => {}
            // What went wrong a moment ago is still the case.
            StartGate::Pause { .. } => {
                let known = self.faults.get(&start.name).cloned();
                return Err(known.unwrap_or_else(|| fault(RUN_ERROR, String::new())).into());
            }
        }
        self.start_now(context, start).await
    }

    async fn start_now(
        &mut self,
        context: &StartContext<'_>,
        start: &StartContainer,
    ) -> Result<(), NotStarted> {
        let Some(container) = Self::definition(context.pod, start) else {
            let message = format!("container {:?} is not in the pod's spec", start.name);
            return Err(fault(CONFIG_ERROR, message).into());
        };
        let kind = match start.kind {
            ContainerKind::Regular => "container",
            ContainerKind::Init | ContainerKind::Sidecar => "init_container",
            ContainerKind::Ephemeral => "ephemeral_container",
        };
        self.shared.metrics.started_containers.inc(&[kind]);
        // All are told, the last one is shown; upstream counts them nowhere.
        let mut missing = Ok(());
        for fault in context.image_volumes.faults_of(&container) {
            missing = Err(self.image_failed(context, start, fault));
        }
        missing?;
        let result = Box::pin(self.start_container(context, start, &container)).await;
        let metrics = &self.shared.metrics;
        let fault = match &result {
            Err(NotStarted::Fault(fault)) => Some(fault),
            _ => None,
        };
        metrics.starts.with_image_volumes(&container, &context.image_volumes.images, fault);
        if let Some(fault) = fault {
            metrics.started_containers_errors.inc(&[kind, &fault.reason]);
        }
        result
    }

    async fn start_container(
        &mut self,
        context: &StartContext<'_>,
        start: &StartContainer,
        container: &Container,
    ) -> Result<(), NotStarted> {
        let discarded = self.discard_unstarted(context, start).await?;
        let image = match self.ensure_image(context, start, container).await {
            Ok(Ok(image)) => image,
            Ok(Err(fault)) => return Err(self.image_failed(context, start, fault).into()),
            Err(left) => return Err(NotStarted::Interrupted(left)),
        };
        let attempt = self.next_attempt(context, discarded, container).await;
        let config = match self.container_config(context, container, attempt, &image).await {
            Ok(config) => config,
            Err(error) => {
                let fault = fault(error.reason, error.message);
                return Err(self.start_failed(context, start, fault).into());
            }
        };
        // From here on it is made, started and told of, unless the pod is to end and the runtime hangs.
        if self.is_stopping() {
            return Err(NotStarted::Interrupted(Interrupted::AgentEnds));
        }
        self.shared.actuated.record_container(&self.uid, container);
        let sandbox = context.sandbox_config.clone();
        let create = self.shared.runtime.create_container(&context.sandbox_id, config, sandbox);
        let id = match self.unless_ended(create).await {
            Ok(Ok(id)) => id,
            Err(left) => return Err(NotStarted::Interrupted(left)),
            Ok(Err(error)) => {
                if self.sandbox_has_ended(context, container).await {
                    return Err(NotStarted::SandboxEnded(error.message));
                }
                let fault = fault("CreateContainerError", error.message);
                return Err(self.start_failed(context, start, fault).into());
            }
        };
        let created = self.shared.placement.container_created(context.pod, container, &id).await;
        if let Err(error) = created {
            let message = format!("Internal PreStartContainer hook failed: {error}");
            self.container_event(context.pod, start, EventSeverity::Warning, "Failed", message);
            return Err(fault("PreStartHookError", error.to_string()).into());
        }
        self.start_event(context, start, "Created", "Container created");
        self.timeline.note_container("created", &container.name, id.as_str());
        let started = self.unless_ended(self.shared.runtime.start_container(&id)).await;
        if let Err(error) = started.map_err(NotStarted::Interrupted)? {
            if self.sandbox_has_ended(context, container).await {
                self.undo(context, container, &id, attempt).await;
                return Err(NotStarted::SandboxEnded(error.message));
            }
            // Alike events must read alike; the status may name the container by its id.
            let told = format!("Error: {}", error.message.replace(&id, &container.name));
            self.container_event(context.pod, start, EventSeverity::Warning, "Failed", told);
            self.back_off.start_failed(id.as_str().into(), self.shared.clock.now());
            return Err(fault(RUN_ERROR, error.message).into());
        }
        self.start_event(context, start, "Started", "Container started");
        self.timeline.note_container("started", &container.name, id.as_str());
        self.link_log(context, container, &id, attempt).await;
        Ok(self.post_start(context, start, container, &id).await?)
    }

    /// Asks about the sandbox of a start that failed, for as long as the rule wants to know.
    async fn sandbox_has_ended(&self, context: &StartContext<'_>, container: &Container) -> bool {
        let last = context.runtime.newest(&container.name);
        let failed_at = Instant::now();
        let mut seen = None;
        loop {
            let passed = failed_at.elapsed();
            match failed_start(last, seen, passed) {
                FailedStart::Fault => return false,
                FailedStart::SandboxEnded => return true,
                FailedStart::LookAfter(pause) => tokio::time::sleep(pause).await,
            }
            let Ok(status) = self.shared.runtime.sandbox_status(&context.sandbox_id).await else {
                return false;
            };
            seen = Some(status.map(|status| translate::sandbox(&status).state));
        }
    }

    /// Takes back what was made in a sandbox that is gone.
    async fn undo(
        &self,
        context: &StartContext<'_>,
        container: &Container,
        id: &str,
        attempt: u32,
    ) {
        let removed = self.remove_container(context.runtime, &id.into(), Logs::Keep).await;
        if let Err(error) = removed {
            tracing::warn!(containerID = id, err = error, "cannot remove container");
            return;
        }
        let log = std::path::PathBuf::from(&context.sandbox_config.log_directory)
            .join(engine::request::paths::container_log_path(&container.name, attempt));
        // Where the log was not begun there is none.
        drop(
            sys::blocking::run_for_pod(self.uid.as_str(), move || sys::fs::remove_file(log)).await,
        );
    }

    /// Removes an instance that was made and never ran, and gives its id if it is gone: its number is free
    /// then. The runtime refuses while somebody's start of it is under way, and two of a name would run if we
    /// went on.
    async fn discard_unstarted<'a>(
        &self,
        context: &StartContext<'_>,
        start: &'a StartContainer,
    ) -> Result<Option<&'a ContainerId>, StartError> {
        let Some(UnstartedContainer { id, may_yet_run }) = &start.unstarted else {
            return Ok(None);
        };
        match self.remove_container(context.runtime, id, Logs::Keep).await {
            Ok(()) => Ok(Some(id)),
            Err(error) if *may_yet_run => Err(fault("CreateContainerError", error)),
            Err(error) => {
                tracing::warn!(containerID = %id, err = error, "cannot remove a container that never ran");
                Ok(None)
            }
        }
    }

    fn start_event(
        &self,
        context: &StartContext<'_>,
        start: &StartContainer,
        reason: &'static str,
        message: &str,
    ) {
        let severity = EventSeverity::Normal;
        self.container_event(context.pod, start, severity, reason, message.to_owned());
    }

    fn start_failed(
        &self,
        context: &StartContext<'_>,
        start: &StartContainer,
        fault: StartError,
    ) -> StartError {
        let message = format!("Error: {}", fault.message);
        self.container_event(context.pod, start, EventSeverity::Warning, "Failed", message);
        fault
    }

    /// Image faults are shown by their reason alone, unless only the image's user could not be had.
    fn image_failed(
        &self,
        context: &StartContext<'_>,
        start: &StartContainer,
        fault: StartError,
    ) -> StartError {
        if fault.reason == CONFIG_ERROR {
            return self.start_failed(context, start, fault);
        }
        let message = format!("Error: {}", fault.reason);
        self.container_event(context.pod, start, EventSeverity::Warning, "Failed", message);
        fault
    }

    async fn post_start(
        &mut self,
        context: &StartContext<'_>,
        start: &StartContainer,
        container: &Container,
        id: &str,
    ) -> Result<(), StartError> {
        let Some(handler) = container.lifecycle.as_ref().and_then(|l| l.post_start.as_ref()) else {
            return Ok(());
        };
        let pod_ip = context.own_ip.as_str();
        let target = HookTarget { pod: context.pod, container, container_id: id, pod_ip };
        // A hook is not begun again after the next start: it is let go with its pod alone.
        let mut ends = self.interrupt.clone();
        let result = tokio::select! {
            result = hooks::run(&self.shared, target, handler) => result, // dropped only if not wanted
            Ok(_) = ends.wait_for(|interrupt| interrupt.ending) => { // cancel-safe: a watch
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
            context.pod,
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
        if let Ok(stop) = kill::plan_container(context.pod, &target, None)
            && let Err(error) =
                self.killer(context.pod, context.runtime).container(&stop, None).await
        {
            tracing::error!(containerName = %container.name, err = %error, "cannot kill container");
        }
        Err(fault("PostStartHookError", error))
    }

    /// Restart count of the next instance: that of one that never ran and was discarded, else one more than
    /// the newest, or than the newest log, or than the status showed.
    async fn next_attempt(
        &self,
        context: &StartContext<'_>,
        discarded: Option<&ContainerId>,
        container: &Container,
    ) -> u32 {
        if let Some(newest) = context.runtime.newest(&container.name) {
            let lived = i32::from(discarded != Some(&newest.id));
            return u32::try_from(newest.restart_count.saturating_add(lived)).unwrap_or_default();
        }
        let folder =
            std::path::PathBuf::from(&context.sandbox_config.log_directory).join(&container.name);
        let names =
            sys::blocking::run_for_pod(self.uid.as_str(), move || sys::fs::list_dir(folder)).await;
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

    async fn link_log(
        &self,
        context: &StartContext<'_>,
        container: &Container,
        id: &str,
        attempt: u32,
    ) {
        let meta = &context.pod.metadata;
        let name = engine::request::paths::log_symlink_name(
            meta.name.as_deref().unwrap_or_default(),
            meta.namespace.as_deref().unwrap_or_default(),
            &container.name,
            id,
        );
        let link = self.shared.config.roots.container_logs.join(name);
        let log = std::path::PathBuf::from(&context.sandbox_config.log_directory)
            .join(engine::request::paths::container_log_path(&container.name, attempt));
        let result = sys::blocking::run_for_pod(self.uid.as_str(), move || {
            super::files::link_log(&log, &link)
        })
        .await;
        if let Ok(Err(error)) = result {
            tracing::debug!(err = %error, "cannot link container log");
        }
    }
}
