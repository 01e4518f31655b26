//! The task that asks the runtime: looks at single pods, audits, and the event stream.

use super::look::{list_all, look};
use super::{ListedPod, Observation, ObservationSeq, RuntimePods, ViewHandle, events};
use crate::metrics::PodMetrics;
use crate::runtime::Runtime;
use api::ids::PodUid;
use engine::runtime::{ContainerRunState, RuntimePod, SandboxState};
use ports::{Clock, PodCgroups, Tasks};
use proto::cri_v1 as cri;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;

/// How long the news of a container that was made or started may wait. Pods' workers make and start
/// them, and look when they are done; the news matters only if somebody else did it.
const MADE_OR_STARTED: Duration = Duration::from_secs(1);

/// How soon a look that failed is repeated, and how seldom if it goes on failing.
const FIRST_RETRY: Duration = Duration::from_millis(500);
const LAST_RETRY: Duration = Duration::from_secs(16);

/// Periods and limits of the view.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ViewConfig {
    /// Time between audits while runtime events flow.
    pub audit_with_events: Duration,
    /// Time between audits while they do not.
    pub audit_without_events: Duration,
    /// Limit of a look at one pod.
    pub look_limit: Duration,
    /// Whether to ask for runtime events at all.
    pub use_events: bool,
}

impl Default for ViewConfig {
    fn default() -> Self {
        Self {
            audit_with_events: Duration::from_secs(30),
            audit_without_events: Duration::from_secs(1),
            look_limit: Duration::from_secs(30),
            use_events: true,
        }
    }
}

/// What helpers report to the task.
#[derive(Debug)]
pub(super) enum Report {
    Look {
        uid: PodUid,
        asked: ObservationSeq,
        pod: Result<RuntimePod, String>,
    },
    Audit {
        asked: ObservationSeq,
        pods: Result<BTreeMap<PodUid, Listed>, String>,
    },
    /// Something happened to a pod; what is not urgent is seen by any look within a while.
    Event {
        uid: PodUid,
        urgent: bool,
    },
    /// Something happened to nobody knows whom.
    Missed,
    Stream(bool),
}

/// One pod in a full list.
#[derive(Debug, Default)]
pub(super) struct Listed {
    pub(super) summary: ListedPod,
    /// State by sandbox or container id; what an audit compares.
    pub(super) states: BTreeMap<String, i32>,
}

/// What is remembered of one pod.
#[derive(Debug)]
struct Known {
    observation: Observation,
    states: BTreeMap<String, i32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Looking {
    Once,
    Again,
}

/// The one writer of the view.
/// Many fields: the view, its sources, and when each was last asked.
#[derive(Debug)]
pub(crate) struct ViewTask {
    handle: ViewHandle,
    runtime: Runtime,
    cgroups: Arc<dyn PodCgroups>,
    clock: Arc<dyn Clock>,
    tasks: Tasks,
    config: ViewConfig,
    known: BTreeMap<PodUid, Known>,
    looking: BTreeMap<PodUid, Looking>,
    /// Pods to look at by then, unless somebody wants it sooner.
    due: BTreeMap<PodUid, Instant>,
    /// How often in a row a look at a pod has failed.
    failed: BTreeMap<PodUid, u32>,
    auditing: bool,
    next_audit: Instant,
    reports: mpsc::Sender<Report>,
    inbox: mpsc::Receiver<Report>,
    metrics: PodMetrics,
    last_audit: Option<Instant>,
}

impl ViewTask {
    pub(crate) fn new(
        (runtime, cgroups): (Runtime, Arc<dyn PodCgroups>),
        clock: Arc<dyn Clock>,
        tasks: Tasks,
        config: ViewConfig,
        metrics: PodMetrics,
    ) -> (Self, ViewHandle) {
        let handle = ViewHandle::new();
        let (reports, inbox) = mpsc::channel(256);
        let task = Self {
            handle: handle.clone(),
            runtime,
            cgroups,
            clock,
            tasks,
            config,
            known: BTreeMap::new(),
            looking: BTreeMap::new(),
            due: BTreeMap::new(),
            failed: BTreeMap::new(),
            auditing: false,
            next_audit: Instant::now(),
            reports,
            inbox,
            metrics,
            last_audit: None,
        };
        (task, handle)
    }

    pub(crate) async fn run(mut self) {
        let cancel = self.tasks.token();
        if self.config.use_events {
            let (runtime, reports) = (self.runtime.clone(), self.reports.clone());
            let (metrics, clock) = (self.metrics.events.clone(), Arc::clone(&self.clock));
            let cancelled = cancel.clone();
            self.tasks.spawn_anew("runtime-events", move || {
                let (runtime, reports) = (runtime.clone(), reports.clone());
                let stream = events::follow(runtime, reports, metrics.clone(), Arc::clone(&clock));
                let cancelled = cancelled.clone();
                async move {
                    tokio::select! {
                        () = cancelled.cancelled() => {} // cancel-safe: a token
                        () = stream => {} // dropped with the process: nothing to finish
                    }
                }
            });
        }
        loop {
            let due = self.due.values().min().copied();
            tokio::select! {
                () = cancel.cancelled() => return, // cancel-safe: a token
                // Cancel-safe: a notification that is not taken stays.
                () = self.handle.shared.wanted.notified() => self.take_wishes(),
                report = self.inbox.recv() => { // cancel-safe: documented by tokio
                    let Some(report) = report else { return };
                    self.take(report);
                }
                // Cancel-safe: the moment is a field.
                () = tokio::time::sleep_until(self.next_audit), if !self.auditing => {
                    self.start_audit();
                }
                // Cancel-safe: the moments are a field.
                () = crate::shared::until(due) => self.look_at_due(),
            }
        }
    }

    fn look_at_due(&mut self) {
        let now = Instant::now();
        let due = self.due.iter().filter(|(_, at)| **at <= now);
        for uid in due.map(|(uid, _)| uid.clone()).collect::<Vec<_>>() {
            self.start_look(uid);
        }
    }

    fn take_wishes(&mut self) {
        let wishes = match self.handle.shared.wishes.lock() {
            Ok(mut wishes) => std::mem::take(&mut *wishes),
            Err(_) => return,
        };
        for uid in wishes {
            self.start_look(uid);
        }
    }

    fn take(&mut self, report: Report) {
        match report {
            Report::Look { uid, asked, pod } => self.looked(uid, asked, pod),
            Report::Audit { asked, pods } => self.audited(asked, pods),
            Report::Event { uid, urgent: true } => self.start_look(uid),
            Report::Event { uid, urgent: false } => {
                self.due.entry(uid).or_insert_with(|| Instant::now() + MADE_OR_STARTED);
            }
            Report::Missed => self.next_audit = Instant::now(),
            Report::Stream(up) => {
                let changed = self.handle.shared.health.send_if_modified(|health| {
                    let changed = health.events != up;
                    health.events = up;
                    changed
                });
                if changed {
                    // What happened before the stream was up, or after it broke, was not seen.
                    self.next_audit = Instant::now();
                    tracing::info!(events = up, "runtime event stream");
                }
            }
        }
    }

    fn start_look(&mut self, uid: PodUid) {
        self.due.remove(&uid);
        if let Some(looking) = self.looking.get_mut(&uid) {
            *looking = Looking::Again;
            return;
        }
        self.looking.insert(uid.clone(), Looking::Once);
        let asked = self.handle.next_seq();
        let now = self.clock.now();
        let runtime = self.runtime.clone();
        let cgroups = Arc::clone(&self.cgroups);
        let reports = self.reports.clone();
        let limit = self.config.look_limit;
        let before = self.known.get(&uid).and_then(|k| k.observation.pod.clone().ok());
        let duration = self.metrics.pod_relist.clone();
        let mut blank = RuntimePod::empty(uid.clone(), "", "", now);
        let work = async move {
            let began = Instant::now();
            if let Some(before) = &before {
                blank.name.clone_from(&before.name);
                blank.namespace.clone_from(&before.namespace);
            }
            let pod =
                match tokio::time::timeout(limit, look(&runtime, &*cgroups, blank, before)).await {
                    Ok(result) => result.map_err(|fault| fault.text),
                    Err(_) => Err(format!("the runtime did not answer within {limit:?}")),
                };
            duration.observe_duration(&[], began.elapsed());
            pod
        };
        // Also a look that panicked is over: the pod is looked at again.
        self.tasks.spawn_then("runtime-look", work, move |looked| async move {
            let pod = looked.unwrap_or_else(|panicked| Err(panicked.to_string()));
            // The task is gone only when everything ends.
            let _ = reports.send(Report::Look { uid, asked, pod }).await;
        });
    }

    fn looked(&mut self, uid: PodUid, asked: ObservationSeq, pod: Result<RuntimePod, String>) {
        let again = self.looking.remove(&uid) == Some(Looking::Again);
        self.handle.shared.health.send_if_modified(|health| match &pod {
            Ok(_) => health.stuck.remove(&uid).is_some(),
            Err(reason) => health.stuck.insert(uid.clone(), reason.clone()).is_none(),
        });
        self.plan_retry(&uid, pod.is_err());
        let states = pod.as_ref().map(states_of).unwrap_or_default();
        self.observe(&uid, asked, pod.map(Arc::new).map_err(Arc::from), states);
        self.publish_all(None);
        self.count_running();
        if again {
            self.start_look(uid);
        }
    }

    /// What could not be read is read again soon, and less and less often: nobody may have to act on it for long.
    fn plan_retry(&mut self, uid: &PodUid, failed: bool) {
        if !failed {
            self.failed.remove(uid);
            return;
        }
        let times = self.failed.entry(uid.clone()).or_default();
        let pause = (FIRST_RETRY * 2_u32.saturating_pow(*times)).min(LAST_RETRY);
        *times = times.saturating_add(1);
        self.due.entry(uid.clone()).or_insert_with(|| Instant::now() + pause);
    }

    /// Takes over an answer unless a later question was answered already.
    fn observe(
        &mut self,
        uid: &PodUid,
        asked: ObservationSeq,
        pod: Result<Arc<RuntimePod>, Arc<str>>,
        states: BTreeMap<String, i32>,
    ) {
        let known = self.known.get(uid);
        if known.is_some_and(|k| k.observation.asked >= asked) {
            return;
        }
        let same = known.is_some_and(|k| same_content(&k.observation.pod, &pod));
        let version = known.map_or(1, |k| k.observation.version + u64::from(!same));
        let observation = Observation { asked, version, pod };
        self.handle.with_slot(uid, |slot| slot.send_replace(Some(observation.clone())));
        let empty = states.is_empty() && observation.pod.is_ok();
        if empty {
            // Nothing of it is left: keep no memory of it beyond the slot that somebody follows.
            self.known.remove(uid);
            self.handle.forget(uid);
            if self.handle.is_followed(uid) {
                self.known.insert(uid.clone(), Known { observation, states });
            }
        } else {
            self.known.insert(uid.clone(), Known { observation, states });
        }
    }

    fn start_audit(&mut self) {
        self.auditing = true;
        let asked = self.handle.next_seq();
        let runtime = self.runtime.clone();
        let reports = self.reports.clone();
        let limit = self.config.look_limit;
        let began = Instant::now();
        if let Some(last) = self.last_audit.replace(began) {
            self.metrics.relist_interval.observe_duration(&[], began - last);
        }
        let duration = self.metrics.relist.clone();
        self.next_audit = began + self.audit_period();
        let work = async move {
            let pods = match tokio::time::timeout(limit, list_all(&runtime)).await {
                Ok(result) => result.map_err(|fault| fault.text),
                Err(_) => Err(format!("the runtime did not answer within {limit:?}")),
            };
            duration.observe_duration(&[], began.elapsed());
            pods
        };
        self.tasks.spawn_then("runtime-audit", work, move |audited| async move {
            let pods = audited.unwrap_or_else(|panicked| Err(panicked.to_string()));
            let _ = reports.send(Report::Audit { asked, pods }).await;
        });
    }

    fn audit_period(&self) -> Duration {
        if self.handle.shared.health.borrow().events {
            self.config.audit_with_events
        } else {
            self.config.audit_without_events
        }
    }

    fn audited(&mut self, asked: ObservationSeq, pods: Result<BTreeMap<PodUid, Listed>, String>) {
        self.auditing = false;
        let now = Instant::now();
        let period = self.audit_period();
        // A wish that came meanwhile stays due; otherwise the period begins at the end.
        if self.next_audit > now {
            self.next_audit = now + period;
        }
        let pods = match pods {
            Ok(pods) => pods,
            Err(error) => {
                self.next_audit = self.next_audit.min(now + self.config.audit_without_events);
                self.handle.shared.health.send_if_modified(|health| {
                    let changed = health.audit_error.as_deref() != Some(&error);
                    health.audit_error = Some(error);
                    changed
                });
                return;
            }
        };
        self.handle.shared.health.send_if_modified(|health| {
            let changed = !health.audited || health.audit_error.is_some();
            health.audited = true;
            health.audit_error = None;
            changed
        });
        let followed = self.handle.followed();
        for uid in self.known.keys().cloned().chain(followed).collect::<Vec<_>>() {
            if !pods.contains_key(&uid) {
                let gone = RuntimePod::empty(uid.clone(), "", "", self.clock.now());
                self.observe_gone(&uid, asked, gone);
            }
        }
        let mut listed = BTreeMap::new();
        for (uid, pod) in pods {
            match self.known.get(&uid) {
                // What is known stays as old as it is: a list does not tell all that a look does, and whoever
                // waits for the outcome of an action looks.
                Some(known) if known.observation.pod.is_ok() && known.states == pod.states => {}
                _ => self.start_look(uid.clone()),
            }
            listed.insert(uid, pod.summary);
        }
        self.publish_all(Some((asked, listed)));
        self.count_running();
    }

    fn count_running(&self) {
        let seconds = self.clock.now().as_second();
        #[expect(clippy::cast_precision_loss, reason = "a gauge")]
        self.metrics.last_seen.set(&[], seconds as f64);
        let mut containers: BTreeMap<&'static str, u32> = BTreeMap::new();
        let mut ready = 0_u32;
        for pod in self.known.values().filter_map(|k| k.observation.pod.as_ref().ok()) {
            ready += u32::from(pod.has_ready_sandbox());
            for container in &pod.containers {
                *containers.entry(container.state.as_str()).or_default() += 1;
            }
        }
        self.metrics.running_pods.set(&[], f64::from(ready));
        for (state, count) in containers {
            self.metrics.running_containers.set(&[state], f64::from(count));
        }
    }

    fn observe_gone(&mut self, uid: &PodUid, asked: ObservationSeq, mut gone: RuntimePod) {
        self.failed.remove(uid);
        let health = &self.handle.shared.health;
        health.send_if_modified(|health| health.stuck.remove(uid).is_some());
        if let Some(Ok(before)) = self.known.get(uid).map(|k| k.observation.pod.clone()) {
            gone.name.clone_from(&before.name);
            gone.namespace.clone_from(&before.namespace);
            gone.keep_ips_of(&before);
        }
        self.observe(uid, asked, Ok(Arc::new(gone)), BTreeMap::new());
    }

    fn publish_all(&self, audit: Option<(ObservationSeq, BTreeMap<PodUid, ListedPod>)>) {
        let before = Arc::clone(&self.handle.shared.all.borrow());
        let pods = self
            .known
            .iter()
            .filter(|(_, known)| !known.states.is_empty())
            .filter_map(|(uid, known)| {
                known.observation.pod.as_ref().ok().map(|pod| (uid.clone(), Arc::clone(pod)))
            })
            .collect();
        let (audited, listed) = match audit {
            Some((asked, listed)) => (Some(asked), Arc::new(listed)),
            None => (before.audited, Arc::clone(&before.listed)),
        };
        self.handle.shared.all.send_replace(Arc::new(RuntimePods { pods, listed, audited }));
    }
}

/// Equal but for the time at which the runtime was asked.
fn same_content(
    a: &Result<Arc<RuntimePod>, Arc<str>>,
    b: &Result<Arc<RuntimePod>, Arc<str>>,
) -> bool {
    match (a, b) {
        (Ok(a), Ok(b)) => {
            Arc::ptr_eq(a, b)
                || (a.sandboxes == b.sandboxes && a.containers == b.containers && a.ips == b.ips)
        }
        (Err(a), Err(b)) => a == b,
        _ => false,
    }
}

fn states_of(pod: &RuntimePod) -> BTreeMap<String, i32> {
    let sandboxes = pod.sandboxes.iter().map(|s| {
        let state = match s.state {
            SandboxState::Ready => cri::PodSandboxState::SandboxReady as i32,
            SandboxState::NotReady => cri::PodSandboxState::SandboxNotready as i32,
        };
        (s.id.to_string(), state)
    });
    let containers = pod.containers.iter().map(|c| {
        let state = match c.state {
            ContainerRunState::Created => cri::ContainerState::ContainerCreated,
            ContainerRunState::Running => cri::ContainerState::ContainerRunning,
            ContainerRunState::Exited | ContainerRunState::CutOff => {
                cri::ContainerState::ContainerExited
            }
            ContainerRunState::Unknown => cri::ContainerState::ContainerUnknown,
        };
        (c.id.to_string(), state as i32)
    });
    sandboxes.chain(containers).collect()
}
