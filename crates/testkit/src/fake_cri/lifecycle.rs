//! Starting, stopping and removing: the parts of a container's life that take time or touch files.

use std::io::Write;
use std::time::Duration;

use proto::cri_v1::{
    ContainerEventType, CreateContainerRequest, ExecSyncRequest, ExecSyncResponse,
    RunPodSandboxRequest,
};
use tonic::Status;

use super::behaviour::OnTerm;
use super::exec::ExecCall;
use super::state::{ContainerRecord, Exit};
use super::{FakeCri, exec, lock, not_found};

const TERMINATION_PATH: &str = "io.kubernetes.container.terminationMessagePath";

impl FakeCri {
    pub(super) fn do_run_sandbox(&self, message: RunPodSandboxRequest) -> Result<String, Status> {
        let now = self.now_nanos();
        let config = message.config.unwrap_or_default();
        let id = lock(&self.inner.state).run_sandbox(config, message.runtime_handler, now)?;
        self.emit(ContainerEventType::ContainerCreatedEvent, &id);
        self.emit(ContainerEventType::ContainerStartedEvent, &id);
        Ok(id)
    }

    pub(super) fn do_remove_sandbox(&self, sandbox: &str) {
        self.stop_sandbox(sandbox);
        let containers = lock(&self.inner.state).containers_in(sandbox);
        for container in containers {
            self.do_remove_container(&container);
        }
        let event = lock(&self.inner.state).event(
            ContainerEventType::ContainerDeletedEvent,
            sandbox,
            self.now_nanos(),
        );
        if lock(&self.inner.state).sandboxes.remove(sandbox).is_some() {
            self.emit_made(event);
        }
    }

    pub(super) fn do_create(&self, message: CreateContainerRequest) -> Result<String, Status> {
        let now = self.now_nanos();
        let config = message.config.unwrap_or_default();
        let id = lock(&self.inner.state).create_container(&message.pod_sandbox_id, config, now)?;
        self.emit(ContainerEventType::ContainerCreatedEvent, &id);
        Ok(id)
    }

    pub(super) async fn do_start(&self, id: &str) -> Result<(), Status> {
        let takes = {
            let state = lock(&self.inner.state);
            state.containers.get(id).map(|container| container.behaviour.start_takes)
        };
        if let Some(takes) = takes.filter(|takes| !takes.is_zero()) {
            // The process is made first, which then waits, and told to go on in a second step. Who goes away
            // meanwhile has the start given up.
            let mut given_up = GivenUp { fake: self, id, step: Step::Making };
            tokio::time::sleep(takes / 2).await;
            given_up.step = Step::Starting;
            tokio::time::sleep(takes / 2).await;
            given_up.step = Step::Done;
        }
        let started = lock(&self.inner.state).start(id, self.now_nanos());
        let container = match started {
            Ok(container) => container,
            Err(status) => {
                self.changed();
                return Err(status);
            }
        };
        write_log(&container);
        self.emit(ContainerEventType::ContainerStartedEvent, id);
        if let Some(runs_for) = container.behaviour.runs_for {
            let exit = Exit::with_code(container.behaviour.exit_code);
            self.schedule_exit(id.to_owned(), runs_for, exit);
        }
        Ok(())
    }

    /// Sends the stop signal, waits for the process to mind it, kills it after the grace. A container that is
    /// not there or does not run is stopped already.
    pub(super) async fn do_stop(&self, id: &str, grace_seconds: i64) {
        let on_term = {
            let state = lock(&self.inner.state);
            let running = state.containers.get(id).filter(|container| container.is_running());
            running.map(|container| container.behaviour.on_term)
        };
        let Some(on_term) = on_term else { return };
        let grace = Duration::from_secs(u64::try_from(grace_seconds).unwrap_or(0));
        let (wait, exit) = match on_term {
            OnTerm::Exit { after, code } if after <= grace && !grace.is_zero() => {
                (after, Exit::with_code(code))
            }
            OnTerm::Exit { .. } | OnTerm::Ignore => (grace, Exit::killed()),
        };
        if !wait.is_zero() {
            // The process may end by itself meanwhile.
            let ended = self.until(|fake| {
                lock(&fake.inner.state).containers.get(id).is_none_or(|c| !c.is_running())
            });
            if tokio::time::timeout(wait, ended).await.is_ok() {
                return;
            }
        }
        self.finish(id, exit);
    }

    pub(super) fn do_remove_container(&self, id: &str) {
        self.finish(id, Exit::killed());
        let event = lock(&self.inner.state).event(
            ContainerEventType::ContainerDeletedEvent,
            id,
            self.now_nanos(),
        );
        if lock(&self.inner.state).remove_container(id).is_some() {
            self.emit_made(event);
        }
    }

    pub(super) async fn do_exec(
        &self,
        message: ExecSyncRequest,
    ) -> Result<ExecSyncResponse, Status> {
        let container = {
            let state = lock(&self.inner.state);
            state.containers.get(&message.container_id).cloned()
        };
        let Some(container) = container else {
            return Err(not_found("container", &message.container_id));
        };
        if !container.is_running() {
            let state = container.state.as_str_name();
            let text = format!("failed to exec in container: container is in {state} state");
            return Err(Status::unknown(text));
        }
        let script = lock(&self.inner.exec).clone();
        let reply = script(&ExecCall {
            container_id: container.id.clone(),
            container: container.name().to_owned(),
            pod_uid: container.pod_uid().to_owned(),
            command: message.cmd.clone(),
        });
        exec::run(&message, reply).await
    }
}

/// How far a start is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Making,
    Starting,
    Done,
}

/// What a start leaves whose caller goes away before it is done: a container that has ended without having
/// started, although its process may have run in the last step.
struct GivenUp<'a> {
    fake: &'a FakeCri,
    id: &'a str,
    step: Step,
}

impl Drop for GivenUp<'_> {
    fn drop(&mut self) {
        if self.step == Step::Done {
            return;
        }
        let may_have_run = self.step == Step::Starting;
        let now = self.fake.now_nanos();
        lock(&self.fake.inner.state).give_up_start(self.id, may_have_run, now);
        self.fake.changed();
    }
}

/// Leaves what the process leaves at its end: its termination message.
#[expect(clippy::disallowed_methods, reason = "a few bytes for a test")]
pub(super) fn write_termination_message(container: &ContainerRecord) {
    let Some(text) = &container.behaviour.termination_message else { return };
    let Some(path) = container.config.annotations.get(TERMINATION_PATH) else { return };
    if let Some(mount) = container.config.mounts.iter().find(|m| &m.container_path == path) {
        // A test without the file has nothing to read it from either.
        let _ = std::fs::write(&mount.host_path, text);
    }
}

/// Writes the process's lines in the form of a CRI log.
fn write_log(container: &ContainerRecord) {
    if container.log_path().is_empty() || container.behaviour.output.is_empty() {
        return;
    }
    let nanos = i128::from(container.started_at);
    let time = jiff::Timestamp::from_nanosecond(nanos).unwrap_or_default();
    let opened = std::fs::OpenOptions::new().create(true).append(true).open(container.log_path());
    // Without the log's folder there is no log.
    let Ok(mut file) = opened else { return };
    for line in &container.behaviour.output {
        let _ = writeln!(file, "{time:.9} stdout F {line}");
    }
}
