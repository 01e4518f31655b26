//! The task of one probe.

use super::{ProbeKey, ProberHandle, ProberParts};
use api::core::v1::{Container, ContainerStatus, Pod, PodStatus, Probe};
use api::ids::ContainerId;
use api::pod::PodExt;
use engine::probe::worker::{Move, ProbeWorker, ResultChange, Run, Step, WorkerView};
use engine::request::expand::{expand, unresolved};
use ports::{EventSeverity, EventTarget, NodeEvent};
use probes::ProbeAnswer;
use probes::action::{self, resolve_port};
use probes::http::{self, headers_with_defaults};
use probes::{Names, grpc, tcp};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::{Instant, MissedTickBehavior};
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
    pub(super) worker: ProbeWorker,
}

impl ProbeRun {
    pub(super) async fn run(mut self, cancel: CancellationToken, now: Arc<Notify>) {
        let period = self.worker.numbers().period;
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
            && let Some(id) = self.worker.watching()
        {
            self.parts.store.remove(id, self.key.kind);
        }
        for result in ["successful", "failed", "unknown"] {
            self.with_labels(result, |labels| self.parts.metrics.probes.remove(labels));
        }
        self.with_labels("", |labels| {
            let [kind, _, container, pod, namespace, _] = labels;
            let labels = [*kind, *container, *pod, *namespace];
            self.parts.metrics.probe_duration.remove(&labels);
        });
        self.handle.ended(&self.key, self.worker.watching().cloned());
    }

    /// Looks once; `false` ends the probe.
    async fn step(&mut self) -> bool {
        let status = self.parts.status.get(&self.key.pod);
        self.resume(status.as_deref());
        let results = self.parts.store.results(&self.ids(status.as_deref()));
        let view = WorkerView {
            pod: &self.pod,
            status: status.as_deref(),
            results: &results,
            agent_started: self.parts.started_at,
            gates: &self.parts.gates,
            change_on_restart: self.parts.change_on_restart,
        };
        let Step { changes, next } = self.worker.step(&view, self.parts.clock.now());
        for change in changes {
            self.apply(change);
        }
        let id = match next {
            Move::Stop => return false,
            Move::Wait => return true,
            Move::Probe(id) => id,
        };
        self.parts.budget.take().await;
        let ip = status.and_then(|status| status.pod_ip.clone()).unwrap_or_default();
        let began = Instant::now();
        let run = self.judge(&id, &ip).await;
        self.count(run, began.elapsed());
        let settled = self.worker.judge(run);
        self.parts.store.keep(&self.key, &self.worker);
        if let Some(change) = settled {
            self.apply(change);
        }
        true
    }

    /// The containers that this probe may be about.
    fn ids(&self, status: Option<&PodStatus>) -> Vec<ContainerId> {
        let shown = self.shown(status).and_then(engine::status::bare_id);
        shown.into_iter().chain(self.worker.watching().cloned()).collect()
    }

    /// The container's entry in a status.
    fn shown<'a>(&self, status: Option<&'a PodStatus>) -> Option<&'a ContainerStatus> {
        let lists = status.map(|s| [&s.container_statuses, &s.init_container_statuses]);
        let mut entries = lists.into_iter().flatten().flatten().flatten();
        entries.find(|entry| entry.name == self.container.name)
    }

    /// A first look after our restart goes on from what was counted before.
    fn resume(&mut self, status: Option<&PodStatus>) {
        if self.worker.watching().is_some() {
            return;
        }
        if let Some(id) = self.shown(status).and_then(engine::status::bare_id) {
            self.parts.store.resume(&mut self.worker, &id);
        }
    }

    fn count(&self, run: Run, took: Duration) {
        let result = match run {
            Run::Success => "successful",
            Run::Failure => "failed",
            Run::Error => return,
        };
        self.with_labels(result, |labels| {
            self.parts.metrics.probes.inc(labels);
            let [kind, _, container, pod, namespace, _] = labels;
            if run == Run::Success {
                let labels = [*kind, *container, *pod, *namespace];
                self.parts.metrics.probe_duration.observe_duration(&labels, took);
            }
        });
    }

    fn with_labels(&self, result: &str, use_labels: impl FnOnce(&[&str; 6])) {
        let meta = &self.pod.metadata;
        use_labels(&[
            self.key.kind.as_str(),
            result,
            &self.container.name,
            meta.name.as_deref().unwrap_or_default(),
            meta.namespace.as_deref().unwrap_or_default(),
            self.key.pod.as_str(),
        ]);
    }

    fn apply(&self, change: ResultChange) {
        match change {
            ResultChange::Set(id, outcome) => self.handle.settle(&self.key, &id, outcome),
            ResultChange::Remove(id) => self.parts.store.remove(&id, self.key.kind),
        }
    }

    /// Probes and tells what was found.
    async fn judge(&self, id: &ContainerId, ip: &str) -> Run {
        let kind = self.key.kind.as_str();
        let mut error = None;
        for _ in 0..ATTEMPTS {
            match self.attempt(id, ip).await {
                ProbeAnswer::Success => return Run::Success,
                ProbeAnswer::Warning(text) => {
                    self.event("ProbeWarning", format!("{kind} probe warning: {text}"));
                    return Run::Success;
                }
                ProbeAnswer::Failure(text) => {
                    self.event("Unhealthy", format!("{kind} probe failed: {text}"));
                    return Run::Failure;
                }
                ProbeAnswer::Error { state, message } => error = Some((state, message)),
            }
        }
        if let Some((state, message)) = error {
            let text = format!("{kind} probe errored and resulted in {state} state: {message}");
            self.event("Unhealthy", text);
        }
        Run::Error
    }

    async fn attempt(&self, id: &ContainerId, ip: &str) -> ProbeAnswer {
        let limit = self.worker.numbers().timeout;
        if let Some(exec) = &self.probe.exec {
            return self.exec(id, exec.command.as_deref().unwrap_or_default(), limit).await;
        }
        if let Some(get) = &self.probe.http_get {
            let target = match action::target(get, &self.container, ip) {
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
            return http::probe(&self.names(), &target, &headers, limit).await.unless_ours();
        }
        if let Some(socket) = &self.probe.tcp_socket {
            let host = socket.host.as_deref().filter(|h| !h.is_empty()).unwrap_or(ip);
            return match resolve_port(&socket.port, &self.container) {
                Ok(port) => tcp::probe(&self.names(), host, port, limit).await.unless_ours(),
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
            self.pod.display_name(),
            self.container.name
        ))
    }

    fn names(&self) -> Names {
        Names::of(&self.parts.names, self.key.pod.as_str())
    }

    async fn exec(&self, id: &ContainerId, command: &[String], limit: Duration) -> ProbeAnswer {
        let command: Vec<String> = command.iter().map(|word| self.expanded(word)).collect();
        match self.parts.runtime.exec(id.as_str(), &command, Some(limit)).await {
            Ok(done) if done.exit_code == 0 => ProbeAnswer::Success,
            Ok(done) => {
                let mut output = done.stdout;
                output.extend_from_slice(&done.stderr);
                output.truncate(MAX_OUTPUT);
                ProbeAnswer::Failure(units::gojson::text(&output))
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
