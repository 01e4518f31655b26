//! The task of one probe.

use super::state::{Next, ProbeState, Seen, Settings};
use super::store::Remembered;
use super::{ProbeKey, ProberHandle, ProberParts};
use crate::probe_client::ProbeAnswer;
use crate::probe_client::http::{self, headers_with_defaults};
use crate::probe_client::url::{HttpTarget, resolve_port};
use crate::probe_client::{grpc, tcp};
use api::core::v1::{Container, ContainerStatus, Pod, PodStatus, Probe};
use api::ids::ContainerId;
use engine::request::expand::{expand, unresolved};
use jiff::SignedDuration;
use ports::{EventSeverity, EventTarget, NodeEvent};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

/// Attempts while the prober itself fails.
const ATTEMPTS: usize = 3;
/// Bytes of a command's output that are shown.
const MAX_OUTPUT: usize = 10 << 10;

/// One probe of one container.
#[derive(Debug)]
pub(super) struct ProbeRun {
    pub(super) handle: ProberHandle,
    pub(super) parts: Arc<ProberParts>,
    pub(super) key: ProbeKey,
    pub(super) pod: Arc<Pod>,
    pub(super) container: Container,
    pub(super) probe: Probe,
    pub(super) state: ProbeState,
}

impl ProbeRun {
    pub(super) async fn run(mut self, cancel: CancellationToken, now: Arc<Notify>) {
        let period = seconds(self.probe.period_seconds, 10).max(Duration::from_secs(1));
        let mut ticks = tokio::time::interval(period);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        loop {
            tokio::select! {
                () = cancel.cancelled() => break, // cancel-safe: a token
                () = now.notified() => ticks.reset(), // cancel-safe: an untaken permit stays
                _ = ticks.tick() => {} // cancel-safe: documented by tokio
            }
            let keep = tokio::select! {
                () = cancel.cancelled() => false, // the probe is dropped: nobody wants its answer
                keep = Box::pin(self.step()) => keep,
            };
            if !keep {
                break;
            }
        }
        if !self.parts.tasks.token().is_cancelled()
            && let Some(id) = &self.state.container
        {
            self.handle.forget(id, self.key.kind);
        }
        self.handle.ended(&self.key);
    }

    /// Looks once; `false` ends the probe.
    async fn step(&mut self) -> bool {
        let Some(status) = self.parts.status.get(&self.key.pod) else { return true };
        if matches!(status.phase.as_deref(), Some("Failed" | "Succeeded")) {
            return false;
        }
        let Some(seen) = self.seen(&status) else { return true };
        let settings = self.settings();
        let restored = self.parts.store.get(&seen.id, self.key.kind);
        let (next, effects) = self.state.look(&seen, restored, &settings, self.parts.clock.now());
        for (id, outcome) in effects {
            match outcome {
                Some(outcome) => self.handle.settle(&self.key, &id, outcome),
                None => self.handle.forget(&id, self.key.kind),
            }
        }
        match next {
            Next::Stop => return false,
            Next::Wait => return true,
            Next::Probe => {}
        }
        self.parts.budget.take().await;
        let ip = status.pod_ip.clone().unwrap_or_default();
        let Some(good) = self.judge(&seen.id, &ip).await else { return true };
        let settled = self.state.take(good, &settings);
        let outcome = settled.or_else(|| self.handle.results().get(&seen.id, self.key.kind));
        self.parts.store.set(
            &seen.id,
            self.key.kind,
            Remembered {
                outcome,
                on_hold: self.state.on_hold,
                last: self.state.last,
                run: self.state.run,
            },
        );
        if let Some(outcome) = settled {
            self.handle.settle(&self.key, &seen.id, outcome);
        }
        true
    }

    fn settings(&self) -> Settings {
        let threshold = |value: Option<i32>, default: u32| {
            value.and_then(|v| u32::try_from(v).ok()).filter(|v| *v > 0).unwrap_or(default)
        };
        Settings {
            kind: self.key.kind,
            initial_delay: SignedDuration::from_secs(i64::from(
                self.probe.initial_delay_seconds.unwrap_or_default(),
            )),
            success_threshold: threshold(self.probe.success_threshold, 1),
            failure_threshold: threshold(self.probe.failure_threshold, 3),
            agent_started: self.parts.started_at,
        }
    }

    fn seen(&self, status: &PodStatus) -> Option<Seen> {
        let lists = [&status.container_statuses, &status.init_container_statuses];
        let entry = lists
            .into_iter()
            .flatten()
            .flatten()
            .find(|entry| entry.name == self.container.name)?;
        let id = engine::status::bare_id(entry)?;
        let state = entry.state.as_ref();
        let running = state.and_then(|s| s.running.as_ref());
        Some(Seen {
            id,
            running_since: running
                .map(|r| r.started_at.as_ref().map_or(self.parts.started_at, |started| started.0)),
            started: entry.started == Some(true),
            over: self.is_over(entry),
        })
    }

    fn is_over(&self, entry: &ContainerStatus) -> bool {
        let terminated = entry.state.as_ref().and_then(|s| s.terminated.as_ref());
        let (Some(terminated), Some(spec)) = (terminated, self.pod.spec.as_ref()) else {
            return false;
        };
        let code = terminated.exit_code;
        !engine::pod::restartable(&self.container, spec, code, &self.parts.gates)
    }

    /// Probes; `None` when nothing can be said about the container.
    async fn judge(&self, id: &ContainerId, ip: &str) -> Option<bool> {
        let kind = self.key.kind.as_str();
        let mut error = None;
        for _ in 0..ATTEMPTS {
            match self.attempt(id, ip).await {
                ProbeAnswer::Success => return Some(true),
                ProbeAnswer::Warning(text) => {
                    self.event("ProbeWarning", format!("{kind} probe warning: {text}"));
                    return Some(true);
                }
                ProbeAnswer::Failure(text) => {
                    self.event("Unhealthy", format!("{kind} probe failed: {text}"));
                    return Some(false);
                }
                ProbeAnswer::Error { state, message } => error = Some((state, message)),
            }
        }
        if let Some((state, message)) = error {
            let text = format!("{kind} probe errored and resulted in {state} state: {message}");
            self.event("Unhealthy", text);
        }
        None
    }

    async fn attempt(&self, id: &ContainerId, ip: &str) -> ProbeAnswer {
        let limit = seconds(self.probe.timeout_seconds, 1);
        if let Some(exec) = &self.probe.exec {
            return self.exec(id, exec.command.as_deref().unwrap_or_default(), limit).await;
        }
        if let Some(get) = &self.probe.http_get {
            let target = match HttpTarget::of_action(get, &self.container, ip) {
                Ok(target) => target,
                Err(error) => return ProbeAnswer::error(error),
            };
            let given: Vec<(String, String)> = get
                .http_headers
                .iter()
                .flatten()
                .map(|header| (header.name.clone(), header.value.clone()))
                .collect();
            let headers = headers_with_defaults(&given, &self.parts.user_agent);
            return http::probe(&target, &headers, limit).await;
        }
        if let Some(socket) = &self.probe.tcp_socket {
            let host = socket.host.as_deref().filter(|h| !h.is_empty()).unwrap_or(ip);
            return match resolve_port(&socket.port, &self.container) {
                Ok(port) => tcp::probe(host, port, limit).await,
                Err(error) => ProbeAnswer::error(error),
            };
        }
        if let Some(check) = &self.probe.grpc {
            let Ok(port) = u16::try_from(check.port) else {
                return ProbeAnswer::error(format!("invalid port number: {}", check.port));
            };
            let service = check.service.as_deref().unwrap_or_default();
            return grpc::probe(ip, port, service, &self.parts.user_agent, limit).await;
        }
        ProbeAnswer::error(format!(
            "missing probe handler for {}:{}",
            crate::shared::format_pod(&self.pod),
            self.container.name
        ))
    }

    async fn exec(&self, id: &ContainerId, command: &[String], limit: Duration) -> ProbeAnswer {
        let command: Vec<String> = command.iter().map(|word| self.expanded(word)).collect();
        match self.parts.runtime.exec(id.as_str(), &command, Some(limit)).await {
            Ok(done) if done.exit_code == 0 => ProbeAnswer::Success,
            Ok(done) => {
                let mut output = done.stdout;
                output.extend_from_slice(&done.stderr);
                output.truncate(MAX_OUTPUT);
                ProbeAnswer::Failure(String::from_utf8_lossy(&output).into_owned())
            }
            Err(error) if error.is_deadline() => ProbeAnswer::Failure(error.to_string()),
            Err(error) => ProbeAnswer::error(error.to_string()),
        }
    }

    /// `$(VAR)` with the plain values of the container's own variables only.
    fn expanded(&self, word: &str) -> String {
        let lookup = |name: &str| {
            let known = self.container.env.iter().flatten().rev().find(|var| var.name == name);
            match known {
                Some(var) => var.value.clone().unwrap_or_default().into_bytes(),
                None => unresolved(name),
            }
        };
        String::from_utf8_lossy(&expand(word.as_bytes(), lookup)).into_owned()
    }

    fn event(&self, reason: &'static str, message: String) {
        let init = self.pod.spec.as_ref().is_some_and(|spec| {
            spec.init_containers.iter().flatten().any(|c| c.name == self.container.name)
        });
        let list = if init { "initContainers" } else { "containers" };
        let field_path = Some(format!("spec.{list}{{{}}}", self.container.name));
        self.parts.events.emit(NodeEvent {
            target: EventTarget::Pod { pod: Arc::clone(&self.pod), field_path },
            severity: EventSeverity::Warning,
            reason,
            message,
        });
    }
}

fn seconds(value: Option<i32>, default: u64) -> Duration {
    let given = value.and_then(|v| u64::try_from(v).ok()).filter(|v| *v > 0);
    Duration::from_secs(given.unwrap_or(default))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_or_zero_time_is_the_default() {
        assert_eq!(seconds(None, 10), Duration::from_secs(10));
        assert_eq!(seconds(Some(0), 1), Duration::from_secs(1));
        assert_eq!(seconds(Some(7), 1), Duration::from_secs(7));
    }
}
