//! One task per pod: it alone acts for its pod.
//!
//! ```text
//!   wake-ups: update, runtime view changed, probe result, appointment
//!        │
//!        ▼
//!   pod_states.next ──▶ Run(call) ──▶ fresh view ──▶ status ──▶ plan ──▶ execute ──▶ pod_states.complete
//!        ▲                                                                                  │
//!        └──────────────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! Promises: a worker acts only on a view asked for after its own last action ended; a wake-up is
//! only a reason to look again; nothing it waits for can hold up another pod.

mod execute;
mod files;
mod hooks;
mod kill;
mod report;
mod requests;
mod resize;
mod sandbox;
mod secrets;
mod span;
mod start;
mod sync;
mod terminate;

pub(crate) use files::remove_logs as remove_log_files;
pub(crate) use kill::kill_restored;

use crate::pod_states::{Interrupt, WorkerSignals};
use crate::shared::Shared;
use crate::timeline::Timeline;
use crate::view::{Observation, ObservationSeq};
use api::core::v1::{Pod, Secret};
use api::ids::PodUid;
use engine::pod::backoff::BackOff;
use engine::pod::life::{Call, Outcome, Step, UpdateKind, Work};
use engine::runtime::RuntimePod;
use engine::status::StartError;
use futures::future::BoxFuture;
use ports::{EventSeverity, EventTarget, NodeEvent};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use telemetry::traces;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// How long a worker waits for a fresh view before it reports that it has none.
const VIEW_LIMIT: Duration = Duration::from_secs(60);

/// How much longer a call that makes or starts something may take once its pod is to end. The runtime cancels what its
/// caller leaves, and would leave half of it behind for others to remove.
const END_PATIENCE: Duration = Duration::from_secs(5);

/// The task of one pod.
#[derive(Debug)]
pub(crate) struct PodWorker {
    uid: PodUid,
    shared: Arc<Shared>,
    wake: Arc<tokio::sync::Notify>,
    interrupt: watch::Receiver<Interrupt>,
    /// Cancelled when nothing new may begin.
    stopping: CancellationToken,
    follow: watch::Receiver<Option<Observation>>,
    timeline: Timeline,
    /// When our last action ended.
    acted: ObservationSeq,
    /// Version of the view that the last call looked at.
    seen: u64,
    again_at: Option<Instant>,
    back_off: BackOff,
    /// Failed starts by container name.
    faults: BTreeMap<String, StartError>,
    /// The pod with the addresses and grace of the call in progress.
    last_pod: Option<Arc<Pod>>,
    /// The pod's pull secrets, as of the sync in progress.
    pull_secrets: Vec<Arc<Secret>>,
    /// The pod's cgroup was made, with its limits, by this worker.
    knows_cgroup: bool,
}

impl PodWorker {
    pub(crate) fn new(
        uid: PodUid,
        shared: Arc<Shared>,
        signals: WorkerSignals,
        timeline: Timeline,
    ) -> Self {
        let follow = shared.view.subscribe(&uid);
        let stopping = shared.tasks.stopping();
        let back_off = BackOff::new(shared.config.crash_loop);
        Self {
            uid,
            shared,
            wake: signals.wake,
            interrupt: signals.interrupt,
            stopping,
            follow,
            timeline,
            acted: ObservationSeq::default(),
            seen: 0,
            again_at: None,
            back_off,
            faults: BTreeMap::new(),
            last_pod: None,
            pull_secrets: Vec::new(),
            knows_cgroup: false,
        }
    }

    pub(crate) async fn run(mut self) {
        let cancel = self.shared.tasks.token();
        loop {
            if self.stopping.is_cancelled() {
                return;
            }
            match self.shared.pod_states.next(&self.uid) {
                Step::Never(_) => break,
                Step::Run(work) => {
                    // When everything is to end, a call ends by itself before it begins something new with the
                    // runtime, which cancels what its caller does not wait for.
                    let began = Instant::now();
                    self.timeline.appoint(None);
                    let call: BoxFuture<'_, Outcome> = Box::pin(self.call(&work));
                    let outcome = tokio::select! {
                        () = cancel.cancelled() => return, // it had its time
                        outcome = call => outcome,
                    };
                    self.count(&work, &outcome, began.elapsed());
                    let completed = self.shared.pod_states.complete(&self.uid, work.call, &outcome);
                    self.again_at = completed.again_in.map(|wait| Instant::now() + wait);
                    self.keep_deadline(&work.pod);
                    if completed.done {
                        if work.call == Call::TerminatingRuntime {
                            // Nobody asks for what is left of it.
                            self.shared.garbage.notify_one();
                        }
                        break;
                    }
                }
                Step::NotYet(wait) => {
                    self.again_at = Some(Instant::now() + wait);
                    self.timeline.note("waiting for an earlier version of this static pod", "");
                    self.wait().await;
                }
                Step::Idle => self.wait().await,
            }
        }
        self.shared.pod_states.worker_ended(&self.uid, &self.wake);
        drop(self.follow);
        self.shared.view.forget(&self.uid);
    }

    /// Counts a call: how long it took since its cause was seen.
    fn count(&self, work: &Work, outcome: &Outcome, took: Duration) {
        let metrics = &self.shared.metrics;
        let seconds = match work.seen_at {
            Some(seen) => self.shared.clock.now().duration_since(seen).as_secs_f64(),
            None => took.as_secs_f64(),
        };
        if let Some(operation) = work.operation(outcome) {
            metrics.worker_duration.observe(&[operation], seconds);
        }
        if work.first && work.kind == UpdateKind::Create {
            let start = (seconds - took.as_secs_f64()).max(0.0);
            metrics.worker_start.observe(&[], start);
            let spec = work.pod.spec.as_ref();
            let containers = spec.map_or(0, |s| s.containers.len());
            metrics
                .containers_per_pod
                .observe(&[], f64::from(u32::try_from(containers).unwrap_or(u32::MAX)));
        }
    }

    /// An active deadline is an appointment too.
    fn keep_deadline(&mut self, pod: &Pod) {
        let seconds = pod.spec.as_ref().and_then(|s| s.active_deadline_seconds);
        let status = self.shared.status.get(&self.uid);
        let started = status.as_ref().and_then(|s| s.start_time.as_ref());
        let (Some(seconds), Some(started)) = (seconds, started) else { return };
        let passed = self.shared.clock.now().duration_since(started.0).as_secs();
        let Ok(left) = u64::try_from(seconds.saturating_sub(passed)) else { return };
        if left > 0 {
            let end = Instant::now() + Duration::from_secs(left);
            self.again_at = Some(self.again_at.map_or(end, |at| at.min(end)));
        }
    }

    /// Waits for a reason to look again, or for the end of everything.
    async fn wait(&mut self) {
        self.timeline.appoint(self.again_at.map(|at| at.saturating_duration_since(Instant::now())));
        let seen = self.seen;
        let newer = |view: &Option<Observation>| view.as_ref().is_some_and(|o| o.version > seen);
        tokio::select! {
            () = self.stopping.cancelled() => return, // cancel-safe: a token
            () = self.wake.notified() => return, // cancel-safe: an untaken permit stays
            () = crate::shared::until(self.again_at) => {} // cancel-safe: a timer
            _ = self.follow.wait_for(newer), if self.seen > 0 => {} // cancel-safe: a watch
        }
        self.again_at = None;
        self.shared.pod_states.look_again(&self.uid);
    }

    async fn call(&mut self, work: &Work) -> Outcome {
        self.last_pod = Some(Arc::clone(&work.pod));
        let looked = tokio::select! {
            () = self.stopping.cancelled() => return Outcome::Interrupted, // cancel-safe: a token
            // Cancel-safe: a watch.
            looked = self.shared.view.newer(&self.uid, self.acted, VIEW_LIMIT) => looked,
        };
        let runtime = match looked {
            Ok(runtime) => runtime,
            Err(error) => {
                self.note_seen();
                let message = format!("error determining status: {error}");
                self.timeline.note("runtime view failed", error.as_ref());
                if work.call != Call::TerminatingRuntime {
                    self.warn(&work.pod, "FailedSync", message);
                }
                return failed();
            }
        };
        self.note_seen();
        let call: BoxFuture<'_, Outcome> = match work.call {
            Call::Sync => Box::pin(self.sync(work, runtime)),
            Call::Terminating => Box::pin(self.terminating(work, runtime)),
            Call::TerminatingRuntime => Box::pin(self.terminating_runtime(work, runtime)),
            Call::Terminated => Box::pin(self.terminated(work, runtime)),
        };
        traces::record(|| span::opening(work), call, span::closing).await
    }

    /// What a wait of this worker's is left for, from now on.
    fn wait_exit(&self) -> WaitExit {
        WaitExit { interrupt: self.interrupt.clone(), stopping: self.stopping.clone() }
    }

    /// Waits for a call that makes or starts something, unless the pod is to end and the runtime does not come back:
    /// the call is cancelled then, and whatever it made ends with the pod.
    async fn unless_ended<T>(&self, call: impl Future<Output = T>) -> Result<T, Interrupted> {
        let mut interrupt = self.interrupt.clone();
        let ended = async {
            if interrupt.wait_for(|interrupt| interrupt.ending).await.is_err() {
                std::future::pending::<()>().await;
            }
            tokio::time::sleep(END_PATIENCE).await;
        };
        tokio::select! {
            done = call => Ok(done), // dropped only if not wanted
            () = ended => Err(Interrupted::PodEnds), // cancel-safe: a watch and a timer
        }
    }

    /// Nothing new may begin: everything is to end.
    fn is_stopping(&self) -> bool {
        self.stopping.is_cancelled()
    }

    fn note_seen(&mut self) {
        if let Some(observation) = &*self.follow.borrow_and_update() {
            self.seen = observation.version;
        }
    }

    /// Our action ended: whatever was asked before does not count, and somebody should look.
    fn acted(&mut self) {
        self.acted = self.shared.view.next_seq();
        self.shared.view.look(&self.uid);
    }

    /// A view asked for after everything we did so far.
    async fn look_now(&mut self) -> Result<Arc<RuntimePod>, Arc<str>> {
        self.acted();
        self.shared.view.newer(&self.uid, self.acted, VIEW_LIMIT).await
    }

    fn warn(&self, pod: &Arc<Pod>, reason: &'static str, message: impl Into<String>) {
        self.emit(pod, EventSeverity::Warning, reason, message.into());
    }

    fn emit(&self, pod: &Arc<Pod>, severity: EventSeverity, reason: &'static str, message: String) {
        let target = EventTarget::Pod { pod: Arc::clone(pod), field_path: None };
        self.shared.events.emit(NodeEvent { target, severity, reason, message });
    }
}

/// Why a worker does not wait any longer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Interrupted {
    /// The pod is to end.
    PodEnds,
    /// The agent is to end: what is waited for is asked for again after the next start.
    AgentEnds,
}

impl Interrupted {
    fn as_str(self) -> &'static str {
        match self {
            Self::PodEnds => "the pod is to end",
            Self::AgentEnds => "the agent is to end",
        }
    }
}

/// The reasons for which a wait is left. They stay: what happened before the wait began counts too.
struct WaitExit {
    interrupt: watch::Receiver<Interrupt>,
    stopping: CancellationToken,
}

impl WaitExit {
    /// Waits for a reason.
    async fn reason(mut self) -> Interrupted {
        let ends = async {
            if self.interrupt.wait_for(|interrupt| interrupt.ending).await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            () = ends => Interrupted::PodEnds, // cancel-safe: a watch
            () = self.stopping.cancelled() => Interrupted::AgentEnds, // cancel-safe: a token
        }
    }
}

/// A plain failure: try again after the usual pause.
fn failed() -> Outcome {
    Outcome::Failed { network_not_ready: false, back_off_until: None }
}
