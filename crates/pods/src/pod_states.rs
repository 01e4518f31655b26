//! The records of all pods' lives, and the signals of their workers.
//!
//! Owns: the pure state machine of `engine::pod::life` behind one short lock, one waker and one
//! interrupt per worker, and the waiting callers of kills.
//!
//! Promises: no lock is held over an await; a kill's caller is told exactly once; a wake-up that
//! comes while the worker is busy is not lost.

use api::core::v1::Pod;
use api::ids::PodUid;
use api::pod::PodExt;
use engine::pod::life::{
    Accepted, Call, Completed, Completion, KillOptions, KnownPods, LifeConfig, LifeState, Outcome,
    PodUpdate, Record, Step, Subject, UpdateKind, Workers,
};
use ports::{Clock, PodLife};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::sync::{Notify, oneshot, watch};
use tokio::time::Instant;

/// What a worker must hear while it is busy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Interrupt {
    /// The pod is to end; it stays so.
    pub(crate) ending: bool,
    /// The grace period in force, once the pod is terminating, and since when.
    pub(crate) grace: Option<(i64, Instant)>,
}

/// A worker's ends of its signals.
#[derive(Debug, Clone)]
pub(crate) struct WorkerSignals {
    /// Something is pending.
    pub(crate) wake: Arc<Notify>,
    /// See [`Interrupt`].
    pub(crate) interrupt: watch::Receiver<Interrupt>,
}

#[derive(Debug)]
struct Signals {
    wake: Arc<Notify>,
    interrupt: watch::Sender<Interrupt>,
}

#[derive(Debug)]
struct Inner {
    workers: Workers,
    signals: BTreeMap<PodUid, Signals>,
    waiting: BTreeMap<u64, oneshot::Sender<()>>,
    next_completion: u64,
}

/// All lives. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct PodStates {
    inner: Arc<Mutex<Inner>>,
    clock: Arc<dyn Clock>,
    jitter: crate::jitter::Jitter,
    /// Counts up with every change that others may want to see.
    changed: watch::Sender<u64>,
}

impl PodStates {
    pub(crate) fn new(
        config: LifeConfig,
        clock: Arc<dyn Clock>,
        jitter: crate::jitter::Jitter,
    ) -> Self {
        let inner = Inner {
            workers: Workers::new(config),
            signals: BTreeMap::new(),
            waiting: BTreeMap::new(),
            next_completion: 0,
        };
        Self { inner: Arc::new(Mutex::new(inner)), clock, jitter, changed: watch::Sender::new(0) }
    }

    /// Takes in an update. Returns the signals of a worker that must be started, if one must.
    pub(crate) fn update(&self, update: PodUpdate, may_run: bool) -> Option<WorkerSignals> {
        let uid = match &update.subject {
            Subject::Pod(pod) => pod.uid(),
            Subject::Runtime(pod) => pod.uid.clone(),
        };
        let mut inner = self.lock();
        let accepted = inner.workers.update(update, may_run, self.clock.now());
        let signals = inner.apply(&uid, &accepted);
        drop(inner);
        self.note_change();
        signals
    }

    /// Ends a pod. The receiver resolves when its containers have stopped.
    pub(crate) fn kill(
        &self,
        pod: Arc<Pod>,
        mut options: KillOptions,
    ) -> (Option<WorkerSignals>, oneshot::Receiver<()>) {
        let (told, wait) = oneshot::channel();
        let completion = {
            let mut inner = self.lock();
            inner.next_completion += 1;
            let number = inner.next_completion;
            inner.waiting.insert(number, told);
            Completion(number)
        };
        options.completion = Some(completion);
        let mut update = PodUpdate::of(UpdateKind::Kill, pod);
        update.kill = Some(options);
        (self.update(update, true), wait)
    }

    /// What the worker does next.
    pub(crate) fn next(&self, uid: &PodUid) -> Step {
        let mut inner = self.lock();
        let step = inner.workers.next(uid, self.jitter.next(), self.clock.now());
        if let Step::Never(completed) = &step {
            inner.tell(completed);
        }
        drop(inner);
        self.note_change();
        step
    }

    /// Takes in how a worker's call ended.
    pub(crate) fn complete(&self, uid: &PodUid, call: Call, outcome: &Outcome) -> Completed {
        let mut inner = self.lock();
        let completed =
            inner.workers.complete(uid, call, outcome, self.jitter.next(), self.clock.now());
        inner.tell(&completed.completed);
        drop(inner);
        self.note_change();
        completed
    }

    /// Asks a pod's worker to look again.
    pub(crate) fn look_again(&self, uid: &PodUid) {
        let mut inner = self.lock();
        if inner.workers.look_again(uid, self.clock.now())
            && let Some(signals) = inner.signals.get(uid)
        {
            signals.wake.notify_one();
        }
    }

    /// Compares records and configuration (`kubelet: SyncKnownPods`).
    pub(crate) fn sync_known(&self, desired: &BTreeSet<PodUid>) -> KnownPods {
        let mut inner = self.lock();
        let found = inner.workers.sync_known(desired, self.clock.now());
        for uid in &found.wake {
            let grace = inner.workers.record(uid).map(Record::grace_seconds);
            if let Some(signals) = inner.signals.get(uid) {
                signals.interrupt.send_if_modified(|i| {
                    let first = i.grace.is_none();
                    if first {
                        i.grace = grace.map(|seconds| (seconds, Instant::now()));
                        i.ending = true;
                    }
                    first
                });
                signals.wake.notify_one();
            }
        }
        for uid in &found.removed {
            if let Some(signals) = inner.signals.remove(uid) {
                signals.wake.notify_one();
            }
        }
        inner.tell(&found.completed);
        drop(inner);
        self.note_change();
        found
    }

    /// Forgets the signals of a worker that has ended, unless its successor has begun already.
    pub(crate) fn worker_ended(&self, uid: &PodUid, wake: &Arc<Notify>) {
        let mut inner = self.lock();
        if inner.signals.get(uid).is_some_and(|signals| Arc::ptr_eq(&signals.wake, wake)) {
            inner.signals.remove(uid);
        }
        drop(inner);
        self.note_change();
    }

    /// Asks the records a question.
    pub(crate) fn ask<T>(&self, question: impl FnOnce(&Workers) -> T) -> T {
        question(&self.lock().workers)
    }

    /// Where a pod is, in the words others use; `None` without a record.
    pub(crate) fn life_of(&self, uid: &PodUid) -> Option<PodLife> {
        self.ask(|workers| workers.record(uid).map(pod_life))
    }

    /// Follows changes of any life.
    pub(crate) fn changed(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    fn note_change(&self) {
        self.changed.send_modify(|count| *count = count.wrapping_add(1));
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        match self.inner.lock() {
            Ok(inner) => inner,
            // The state machine is total: a panic elsewhere left it consistent.
            Err(poisoned) => poisoned.into_inner(),
        }
    }
}

impl Inner {
    fn apply(&mut self, uid: &PodUid, accepted: &Accepted) -> Option<WorkerSignals> {
        let spawned = accepted.spawn.then(|| {
            let (interrupt, heard) = watch::channel(Interrupt::default());
            let wake = Arc::new(Notify::new());
            let ours = Signals { wake: Arc::clone(&wake), interrupt };
            self.signals.insert(uid.clone(), ours);
            WorkerSignals { wake, interrupt: heard }
        });
        let grace = self.workers.record(uid).map(Record::grace_seconds).filter(|g| *g > 0);
        if let Some(signals) = self.signals.get(uid) {
            if accepted.interrupt {
                signals.interrupt.send_modify(|i| {
                    i.ending = true;
                    i.grace = grace.map(|seconds| (seconds, Instant::now()));
                });
            }
            if accepted.wake {
                signals.wake.notify_one();
            }
        }
        self.tell(&accepted.completed);
        spawned
    }

    fn tell(&mut self, completed: &[Completion]) {
        for Completion(number) in completed {
            if let Some(waiting) = self.waiting.remove(number) {
                // A caller that stopped waiting does not mind.
                let _ = waiting.send(());
            }
        }
    }
}

pub(crate) fn pod_life(record: &Record) -> PodLife {
    match record.state() {
        _ if record.is_finished() => PodLife::Finished,
        LifeState::Terminated => PodLife::Terminated,
        LifeState::Terminating => PodLife::Terminating,
        LifeState::Syncing if record.has_started() => PodLife::Syncing,
        LifeState::Syncing => PodLife::Pending,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn whoever_waits_for_the_end_of_a_pod_that_vanished_is_told() {
        let clock = Arc::new(testkit::paused_clock::PausedClock::new());
        let jitter = crate::jitter::Jitter::seeded(1);
        let pod_states = PodStates::new(LifeConfig::default(), clock, jitter);
        let mut pod = Pod::default();
        pod.metadata.uid = Some("u".to_owned());
        let (_signals, mut told) = pod_states.kill(Arc::new(pod), KillOptions::default());
        assert!(told.try_recv().is_err(), "its worker has not begun");
        pod_states.sync_known(&BTreeSet::new());
        assert_eq!(told.try_recv(), Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_pod_that_is_to_end_stays_so_for_whoever_listens_later() {
        let clock = Arc::new(testkit::paused_clock::PausedClock::new());
        let jitter = crate::jitter::Jitter::seeded(1);
        let pod_states = PodStates::new(LifeConfig::default(), clock, jitter);
        let mut pod = Pod::default();
        pod.metadata.uid = Some("u".to_owned());
        let pod = Arc::new(pod);
        let create = PodUpdate::of(UpdateKind::Create, Arc::clone(&pod));
        let signals = pod_states.update(create, false).unwrap();
        assert!(!signals.interrupt.borrow().ending);
        pod_states.kill(pod, KillOptions::default());
        assert!(signals.interrupt.borrow().ending);
    }
}
