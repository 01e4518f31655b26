//! Where each pod is in its life: the request-acceptance policy of the pod workers.
//!
//! ```text
//!   update(Create…)        ┌────────── terminal phase, deletion, kill ──────────┐
//!        │                 │                                                    ▼
//!        ▼   first work  Syncing ───────────────────────────────────────▶ Terminating ──ok──▶ Terminated ──ok──▶ finished
//!     waiting ─────────▶ (resync, back-off)                              (retry on error)    (retry on error)
//! ```
//!
//! Owns: one record per UID, the order of static pods that share a name, and which call a worker makes next.
//!
//! Promises: a pod goes syncing → terminating → terminated exactly once and never back; its grace period only
//! shrinks; every completion token handed in is handed back exactly once. Dropping or repeating wake-ups changes
//! nothing.
//!
//! Deliberately absent: tasks, channels, timers. The owner keeps one task per record and obeys what the methods
//! return. Upstream: `podWorkers`.

mod orphans;
#[cfg(test)]
mod properties;
mod record;
mod static_names;
#[cfg(test)]
mod tests;

pub use orphans::{KnownPod, KnownPods};
pub use record::{LifeState, Record};

use api::core::v1::{Pod, PodCondition};
use api::ids::PodUid;
use api::pod::PodExt;
use jiff::Timestamp;
use static_names::{NameClaim, StaticNames};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// What an update is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum UpdateKind {
    /// The pod is new.
    Create,
    /// Its configuration changed.
    Update,
    /// Sync it again.
    Sync,
    /// End it.
    Kill,
}

impl UpdateKind {
    /// As metrics and traces name it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Update => "update",
            Self::Sync => "sync",
            Self::Kill => "kill",
        }
    }
}

/// Status that a kill puts on the pod before its containers are stopped.
#[derive(Debug, Clone, PartialEq)]
pub struct StatusOverride {
    /// `status.reason`; the phase becomes Failed.
    pub reason: String,
    /// `status.message`.
    pub message: String,
    /// A condition to set, e.g. `DisruptionTarget`.
    pub condition: Option<PodCondition>,
    /// Leave a Succeeded phase alone (node shutdown).
    pub keep_succeeded: bool,
}

/// A token that is handed back once the pod's containers have stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Completion(pub u64);

/// How to end a pod.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct KillOptions {
    /// This is an eviction: content is removed and not only stopped.
    pub evict: bool,
    /// Overrides the grace period (it can only shrink).
    pub grace_seconds: Option<i64>,
    /// Status to show.
    pub status: Option<StatusOverride>,
    /// The token to hand back when its containers have stopped.
    pub completion: Option<Completion>,
}

/// A pod that only the runtime knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunningPod {
    /// Its UID.
    pub uid: PodUid,
    /// Its name.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
}

/// Which pod an update is about.
#[derive(Debug, Clone)]
pub enum Subject {
    /// A configured pod, with its allocated resources.
    Pod(Arc<Pod>),
    /// A pod that only the runtime knows; can only be killed.
    Runtime(RunningPod),
}

/// A request to sync or end a pod.
#[derive(Debug, Clone)]
pub struct PodUpdate {
    /// Why.
    pub kind: UpdateKind,
    /// The pod.
    pub subject: Subject,
    /// The mirror pod of a static pod, if known.
    pub mirror: Option<Arc<Pod>>,
    /// For kills.
    pub kill: Option<KillOptions>,
    /// When the cause was seen, for latency metrics.
    pub seen_at: Option<Timestamp>,
}

impl PodUpdate {
    /// An update of a configured pod without extras.
    pub fn of(kind: UpdateKind, pod: Arc<Pod>) -> Self {
        Self { kind, subject: Subject::Pod(pod), mirror: None, kill: None, seen_at: None }
    }

    /// A kill of a pod that only the runtime knows.
    pub fn kill_runtime(pod: RunningPod) -> Self {
        Self {
            kind: UpdateKind::Kill,
            subject: Subject::Runtime(pod),
            mirror: None,
            kill: Some(KillOptions { grace_seconds: Some(1), ..KillOptions::default() }),
            seen_at: None,
        }
    }
}

/// What the owner must do after [`Workers::update`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Accepted {
    /// Start a worker for this UID.
    pub spawn: bool,
    /// Wake its worker.
    pub wake: bool,
    /// Interrupt the sync in progress: the pod is to end, or sooner than it knew.
    pub interrupt: bool,
    /// Tokens to hand back at once.
    pub completed: Vec<Completion>,
}

/// The call a worker makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Call {
    /// Bring the pod in line with its spec.
    Sync,
    /// Stop its containers.
    Terminating,
    /// Stop the containers of a pod that only the runtime knows.
    TerminatingRuntime,
    /// Release what it held.
    Terminated,
}

/// One piece of work for a worker.
#[derive(Debug, Clone)]
pub struct Work {
    /// Which call.
    pub call: Call,
    /// Why it was woken.
    pub kind: UpdateKind,
    /// The pod (synthesised from runtime metadata for runtime-only pods).
    pub pod: Arc<Pod>,
    /// Its mirror pod, if known.
    pub mirror: Option<Arc<Pod>>,
    /// Grace override for the kill.
    pub grace_seconds: Option<i64>,
    /// Status to set before the kill: the last one registered.
    pub status: Option<StatusOverride>,
    /// This is the worker's first work.
    pub first: bool,
    /// When the cause was seen; absent for what follows from the call before.
    pub seen_at: Option<Timestamp>,
}

impl Work {
    /// The operation label of this work in metrics, by its outcome; `None` if no cause was seen (upstream:
    /// `PodWorkerDuration`).
    pub fn operation(&self, outcome: &Outcome) -> Option<&'static str> {
        self.seen_at?;
        let over = self.call == Call::Terminated && matches!(outcome, Outcome::Done { .. });
        Some(if over { "terminated" } else { self.kind.as_str() })
    }
}

/// What a woken worker does.
#[derive(Debug, Clone)]
pub enum Step {
    /// Nothing is pending.
    Idle,
    /// A static pod that may not start yet because of another one of its name: ask again after this long.
    NotYet(Duration),
    /// It must never start, or there is nothing left to do: end the worker, hand back these tokens.
    Never(Vec<Completion>),
    /// Do this.
    Run(Box<Work>),
}

/// How a call ended.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// It did all it wanted; `terminal` (sync only) says the pod has ended by itself.
    Done {
        /// The pod reached a terminal phase.
        terminal: bool,
    },
    /// It was interrupted.
    Interrupted,
    /// It failed.
    Failed {
        /// The node's network is not ready: try again soon.
        network_not_ready: bool,
        /// When the earliest crash-loop back-off ends.
        back_off_until: Option<Timestamp>,
    },
}

/// What the owner must do after [`Workers::complete`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Completed {
    /// End the worker.
    pub done: bool,
    /// Sync again after this long (replaces an earlier timer).
    pub again_in: Option<Duration>,
    /// Wake it at once: something is pending.
    pub wake: bool,
    /// Tokens to hand back.
    pub completed: Vec<Completion>,
}

/// Periods of the workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LifeConfig {
    /// Time between syncs when nothing happens.
    pub sync_frequency: Duration,
    /// Time before a failed call is repeated.
    pub back_off: Duration,
    /// The same while the node's network is not ready.
    pub network_back_off: Duration,
}

impl Default for LifeConfig {
    fn default() -> Self {
        Self {
            sync_frequency: Duration::from_secs(60),
            back_off: Duration::from_secs(10),
            network_back_off: Duration::from_secs(1),
        }
    }
}

/// All pods' records.
#[derive(Debug, Default)]
pub struct Workers {
    config: LifeConfig,
    records: BTreeMap<PodUid, Record>,
    static_names: StaticNames,
    pods_synced: bool,
}

impl Workers {
    /// No pods yet.
    pub fn new(config: LifeConfig) -> Self {
        Self { config, ..Self::default() }
    }

    /// Accepts a request. `may_run`: the runtime view shows a running container or sandbox of this pod, or is unknown.
    pub fn update(&mut self, update: PodUpdate, may_run: bool, now: Timestamp) -> Accepted {
        let mut answer = Accepted::default();
        let PodUpdate { kind, subject, mirror, kill, seen_at } = update;
        let (uid, full_name, runtime_only) = match &subject {
            Subject::Pod(pod) => (pod.uid(), pod.full_name(), false),
            Subject::Runtime(pod) => {
                if kind != UpdateKind::Kill {
                    answer.completed.extend(kill.and_then(|k| k.completion));
                    return answer;
                }
                (pod.uid.clone(), format!("{}_{}", pod.name, pod.namespace), true)
            }
        };
        let record = self.records.entry(uid.clone()).or_insert_with(|| {
            let ended = match &subject {
                Subject::Pod(pod) => pod.is_terminal() && !may_run,
                Subject::Runtime(_) => false,
            };
            answer.spawn = true;
            Record::new(full_name, ended.then_some(now), now)
        });

        let (pod, runtime_only) = match subject {
            Subject::Pod(pod) => (pod, runtime_only),
            Subject::Runtime(running) => {
                record.observed_runtime = true;
                match record.known_pod() {
                    Some(pod) => (pod, false),
                    None => (Arc::new(synthesise(&running)), true),
                }
            }
        };
        if !answer.spawn && record.termination_requested() && kind == UpdateKind::Create {
            record.restart_requested = true;
            answer.completed.extend(kill.and_then(|k| k.completion));
            return answer;
        }
        if record.finished {
            answer.completed.extend(kill.and_then(|k| k.completion));
            return answer;
        }

        let mut became_terminating = false;
        if !record.termination_requested() {
            let deleted = runtime_only || pod.metadata.deletion_timestamp.is_some();
            if deleted || pod.is_terminal() || kind == UpdateKind::Kill {
                record.deleted |= deleted;
                if !deleted && !pod.is_terminal() {
                    record.evicted |= kill.as_ref().is_some_and(|k| k.evict);
                }
                record.terminating_at = Some(now);
                became_terminating = true;
            }
        }

        let mut shortened = false;
        let mut grace = None;
        match record.state() {
            LifeState::Terminated => {
                answer.completed.extend(kill.and_then(|k| k.completion));
                if runtime_only {
                    return answer;
                }
            }
            LifeState::Terminating => {
                let kill = kill.unwrap_or_default();
                record.completions.extend(kill.completion);
                if kill.status.is_some() {
                    record.status_override = kill.status;
                }
                let effective = record.effective_grace(&pod, kill.grace_seconds);
                shortened = record.grace_seconds != 0 && record.grace_seconds != effective;
                record.grace_seconds = effective;
                grace = Some(effective);
            }
            LifeState::Syncing => answer.completed.extend(kill.and_then(|k| k.completion)),
        }

        if answer.spawn && runtime_only {
            // It may be an earlier version of a static pod, from before the agent's start.
            self.static_names.hold(record.full_name.clone(), uid);
        } else if answer.spawn && pod.is_static() {
            self.static_names.enqueue(record.full_name.clone(), uid);
        }
        let earliest =
            record.pending.as_ref().and_then(|p| p.seen_at).into_iter().chain(seen_at).min();
        record.pending = Some(record::Pending {
            kind,
            pod,
            runtime_only,
            mirror,
            grace_seconds: grace,
            seen_at: earliest,
        });
        answer.wake = true;
        answer.interrupt = became_terminating || shortened;
        answer
    }

    /// What a woken worker does. `chance` in 0..1 adds jitter to the wait of static pods.
    pub fn next(&mut self, uid: &PodUid, chance: f64, now: Timestamp) -> Step {
        let Some(record) = self.records.get_mut(uid) else { return Step::Never(Vec::new()) };
        if record.finished {
            return Step::Never(std::mem::take(&mut record.completions));
        }
        let Some(pending) = record.pending.take() else { return Step::Idle };
        let first = record.started_at.is_none();
        if first && !pending.runtime_only && pending.pod.is_static() {
            let requested = record.termination_requested();
            let name = record.full_name.clone();
            let ended = |uid: &PodUid, records: &BTreeMap<PodUid, Record>| {
                records.get(uid).is_none_or(Record::termination_requested)
            };
            let records = &self.records;
            let turn = if requested {
                NameClaim::Never
            } else {
                self.static_names.ask(&name, uid, |other| ended(other, records))
            };
            let Some(record) = self.records.get_mut(uid) else { return Step::Never(Vec::new()) };
            match turn {
                NameClaim::Now => {}
                NameClaim::Later => {
                    record.pending = Some(pending);
                    return Step::NotYet(spread(self.config.back_off, chance));
                }
                NameClaim::Never => {
                    record.finish(now);
                    let completions = std::mem::take(&mut record.completions);
                    self.static_names.release(&name, uid);
                    return Step::Never(completions);
                }
            }
            return Step::Run(Box::new(record.begin(pending, first, now)));
        }
        Step::Run(Box::new(record.begin(pending, first, now)))
    }

    /// Records how a call ended. `chance` in 0..1 adds jitter to the next sync.
    pub fn complete(
        &mut self,
        uid: &PodUid,
        call: Call,
        outcome: &Outcome,
        chance: f64,
        now: Timestamp,
    ) -> Completed {
        let mut answer = Completed::default();
        let config = self.config;
        let Some(record) = self.records.get_mut(uid) else {
            return Completed { done: true, ..answer };
        };
        record.working = false;
        match (call, outcome) {
            (Call::Terminated, Outcome::Done { .. }) => {
                record.finish(now);
                answer.completed.append(&mut record.completions);
                let name = record.full_name.clone();
                self.static_names.release(&name, uid);
                answer.done = true;
                return answer;
            }
            (Call::TerminatingRuntime, Outcome::Done { .. }) => {
                answer.completed.append(&mut record.completions);
                let name = record.full_name.clone();
                self.records.remove(uid);
                self.static_names.release(&name, uid);
                answer.done = true;
                return answer;
            }
            (Call::Terminating, Outcome::Done { .. }) => {
                record.terminated_at = Some(now);
                answer.completed.append(&mut record.completions);
                record.requeue();
                // The last of its containers is gone, which upstream learns from an event of its runtime view.
                if let Some(pending) = &mut record.pending {
                    pending.seen_at.get_or_insert(now);
                }
                answer.again_in = Some(Duration::ZERO);
            }
            (Call::Sync, Outcome::Done { terminal: true }) => {
                record.terminating_at.get_or_insert(now);
                record.started_terminating = true;
                record.requeue();
                answer.again_in = Some(Duration::ZERO);
            }
            (Call::Sync, Outcome::Done { terminal: false }) => {
                answer.again_in = Some(spread(config.sync_frequency, chance));
            }
            (_, Outcome::Interrupted) => answer.again_in = Some(spread(config.back_off, chance)),
            (_, Outcome::Failed { network_not_ready: true, .. }) => {
                answer.again_in = Some(spread(config.network_back_off, chance));
            }
            (_, Outcome::Failed { back_off_until: Some(until), .. }) => {
                let left = Duration::try_from(until.duration_since(now)).unwrap_or_default();
                answer.again_in = Some(spread(left.min(config.sync_frequency), chance));
            }
            (_, Outcome::Failed { .. }) => answer.again_in = Some(spread(config.back_off, chance)),
        }
        answer.wake = record.pending.is_some();
        answer
    }

    /// Makes a worker repeat its last update, unless something newer is pending; returns whether to wake it. The
    /// time of the cause is `now`.
    pub fn look_again(&mut self, uid: &PodUid, now: Timestamp) -> bool {
        let Some(record) = self.records.get_mut(uid).filter(|record| !record.finished) else {
            return false;
        };
        let wake = record.requeue();
        if let Some(pending) = &mut record.pending {
            pending.seen_at.get_or_insert(now);
        }
        wake
    }

    /// The record of a pod.
    pub fn record(&self, uid: &PodUid) -> Option<&Record> {
        self.records.get(uid)
    }

    /// All records by UID.
    pub fn records(&self) -> impl Iterator<Item = (&PodUid, &Record)> {
        self.records.iter()
    }

    /// Whether housekeeping has compared workers and configuration at least once.
    pub fn pods_synced(&self) -> bool {
        self.pods_synced
    }

    /// Containers of this pod may run.
    pub fn could_have_running_containers(&self, uid: &PodUid) -> bool {
        self.ask(uid, !self.pods_synced, |r| r.terminated_at.is_none())
    }

    /// Nothing of this pod needs its worker any more.
    pub fn should_be_finished(&self, uid: &PodUid) -> bool {
        self.ask(uid, self.pods_synced, |r| r.finished)
    }

    /// The pod was asked to end.
    pub fn termination_requested(&self, uid: &PodUid) -> bool {
        self.ask(uid, false, Record::termination_requested)
    }

    /// The pod's containers have all stopped.
    pub fn known_terminated(&self, uid: &PodUid) -> bool {
        self.ask(uid, false, |r| r.terminated_at.is_some())
    }

    /// The kill of the pod's containers has begun.
    pub fn containers_should_be_terminating(&self, uid: &PodUid) -> bool {
        self.ask(uid, self.pods_synced, |r| r.started_terminating)
    }

    /// What the runtime holds of the pod may be removed.
    pub fn runtime_should_be_removed(&self, uid: &PodUid) -> bool {
        self.ask(uid, self.pods_synced, |r| r.terminated_at.is_some())
    }

    /// Containers and logs of the pod may be removed. The Go kubelet removes those of an evicted pod while others
    /// of its containers still terminate; after a crash nothing would show that the removed ones ever ran.
    pub fn content_should_be_removed(&self, uid: &PodUid) -> bool {
        self.ask(uid, self.pods_synced, |r| (r.evicted || r.deleted) && r.terminated_at.is_some())
    }

    /// A static pod of this full name (`name_namespace`) is ending: its mirror must stay.
    pub fn static_is_terminating(&self, full_name: &str) -> bool {
        self.static_names
            .started(full_name)
            .and_then(|uid| self.records.get(uid))
            .is_some_and(|r| r.termination_requested() && r.terminated_at.is_none())
    }

    fn ask(&self, uid: &PodUid, unknown: bool, question: impl Fn(&Record) -> bool) -> bool {
        self.records.get(uid).map_or(unknown, question)
    }
}

/// A duration lengthened by up to half.
fn spread(base: Duration, chance: f64) -> Duration {
    base.saturating_add(base.mul_f64(0.5 * chance.clamp(0.0, 1.0)))
}

fn synthesise(running: &RunningPod) -> Pod {
    let mut pod = Pod::default();
    pod.metadata.name = Some(running.name.clone());
    pod.metadata.namespace = Some(running.namespace.clone());
    pod.metadata.uid = Some(running.uid.to_string());
    pod
}
