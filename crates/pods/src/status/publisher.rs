//! Sending statuses to the API server.
//!
//! Promises: one write per pod at a time, several pods at once, final phases before readiness before the
//! rest; only the newest version is sent; what somebody else made of a status is set right as soon as
//! the API shows it, and then more and more slowly as long as they go on; a pod is removed from the API only after its containers,
//! volumes and cgroup are gone, and only if it is still the same pod.

use super::StatusCache;
use crate::pod_states::PodStates;
use api::core::v1::{Pod, PodStatus};
use api::ids::PodUid;
use api::pod::{PodExt, PodStatusExt};
use engine::status::cache::Cached;
use engine::status::merge::{differs, may_be_deleted, merge};
use engine::status::patch::status_patch;
use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use ports::{Clock, PodApi, PodApiError, PodsSnapshot};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// How often everything is compared (`kubelet: syncPeriod`), and the longest pause between two
/// corrections of one status.
const COMPARE: Duration = Duration::from_secs(10);
/// Writes under way at the same time.
const PARALLEL: usize = 16;
/// How long the watch may still show an object as it was before a write of ours. After that an older resource version
/// is no delay: the API server's data was restored from a backup, and what it shows is what it has.
const WATCH_DELAY: Duration = Duration::from_secs(30);
/// How long a write may take.
const LIMIT: Duration = Duration::from_secs(30);
/// How long the last writes may take when everything ends.
const FLUSH: Duration = Duration::from_secs(3);

/// What was sent last for an API object.
#[derive(Debug, Clone, Copy)]
struct Sent {
    version: u64,
    ready: bool,
    /// The object's resource version after the write; see [`WATCH_DELAY`] for objects that are older.
    resource_version: Option<u64>,
    at: Instant,
    /// Corrections in a row: sent though the status was not newer.
    corrections: u32,
}

impl Sent {
    /// There is no object any more that could show it.
    fn unseen(version: u64) -> Self {
        let (ready, resource_version) = (false, Some(u64::MAX));
        Self { version, ready, resource_version, at: Instant::now(), corrections: 0 }
    }

    /// Corrections in a row after another one: peace in between ends the row.
    fn corrections_now(&self) -> u32 {
        if self.at.elapsed() > COMPARE * 3 { 1 } else { self.corrections.saturating_add(1) }
    }

    /// When a correction may follow.
    fn next_correction(&self) -> Instant {
        match self.corrections {
            0 => self.at,
            n => self.at + Duration::from_secs(1 << (n - 1).min(4)).min(COMPARE),
        }
    }

    /// Whether the object is as it was before this write, because the watch has not shown the write yet.
    fn is_after(&self, api_pod: &Pod) -> bool {
        match (self.resource_version, resource_version(api_pod)) {
            (Some(sent), Some(seen)) => seen < sent && self.at.elapsed() < WATCH_DELAY,
            _ => false,
        }
    }
}

/// What a comparison of an API object with a version of a status came to.
#[derive(Debug)]
struct Compared {
    api_pod: Arc<Pod>,
    version: u64,
    lacking: bool,
}

/// Order of writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Lane {
    Terminal,
    Readiness,
    Other,
}

/// One write to make.
#[derive(Debug, Clone)]
struct Write {
    lane: Lane,
    uid: PodUid,
    api_uid: PodUid,
    pod: Arc<Pod>,
    cached: Cached,
    could_run: bool,
    /// The API has this version already, or what somebody made of it.
    corrects: bool,
}

#[derive(Debug)]
struct Done {
    write: Write,
    result: Result<Written, PodApiError>,
}

#[derive(Debug, PartialEq, Eq)]
enum Written {
    /// The API has it, at this resource version.
    Sent(Option<u64>),
    Deleted,
    Gone,
}

/// The publisher's task.
#[derive(Debug)]
pub(crate) struct PublisherTask {
    pub(crate) api: Arc<dyn PodApi>,
    pub(crate) status: StatusCache,
    pub(crate) pods: watch::Receiver<PodsSnapshot>,
    pub(crate) pod_states: PodStates,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) timelines: crate::shared::Timelines,
    pub(crate) metrics: crate::metrics::PodMetrics,
}

#[derive(Debug, Default)]
struct Progress {
    /// By UID of the API object: a re-created mirror gets everything again.
    sent: BTreeMap<PodUid, Sent>,
    busy: BTreeSet<PodUid>,
    failures: BTreeMap<PodUid, Failure>,
    /// By UID of the API object: neither side changes often.
    compared: BTreeMap<PodUid, Compared>,
    /// Pods that are still to be looked at in this round of the comparison.
    audit: BTreeSet<PodUid>,
    /// When the next correction is due that had to wait.
    correction: Option<Instant>,
}

impl Progress {
    /// When a write that failed may be tried again. What was due by `now` has been looked at: it is
    /// under way, waits for room, or is wanted no more, so it must not wake us again.
    fn next_try(&self, now: Instant) -> Option<Instant> {
        let failed = self.failures.values().map(|failure| failure.due);
        failed.chain(self.correction).filter(|at| *at > now).min()
    }

    /// Whether the API's object lacks something of this status, by the newest that is known of both.
    fn lacks(&mut self, pod: &Pod, api_pod: &Arc<Pod>, cached: &Cached) -> bool {
        let api_uid = api_pod.uid();
        match self.compared.get(&api_uid) {
            Some(known)
                if Arc::ptr_eq(&known.api_pod, api_pod) && known.version == cached.version =>
            {
                known.lacking
            }
            _ => {
                let shown = api_pod.status.clone().unwrap_or_default();
                let lacking =
                    may_be_deleted(api_pod, cached) || differs(pod, &shown, &cached.status);
                let (api_pod, version) = (Arc::clone(api_pod), cached.version);
                self.compared.insert(api_uid, Compared { api_pod, version, lacking });
                lacking
            }
        }
    }
}

impl PublisherTask {
    pub(crate) async fn run(self, cancel: CancellationToken) {
        let mut changed = self.status.changed();
        let mut pods = self.pods.clone();
        let mut compare = tokio::time::interval(COMPARE);
        compare.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut progress = Progress::default();
        let mut writes: FuturesUnordered<BoxFuture<'static, Done>> = FuturesUnordered::new();
        loop {
            let room = PARALLEL.saturating_sub(writes.len());
            let now = Instant::now();
            for write in self.wanted(&mut progress, now).into_iter().take(room) {
                progress.busy.insert(write.uid.clone());
                progress.audit.remove(&write.uid);
                writes.push(Box::pin(send(Arc::clone(&self.api), write, self.clock.now())));
            }
            let retry = progress.next_try(now);
            tokio::select! {
                () = cancel.cancelled() => break, // cancel-safe: a token
                Ok(()) = changed.changed() => {} // cancel-safe: a watch
                Ok(()) = pods.changed() => {} // cancel-safe: a watch
                _ = compare.tick() => { // cancel-safe: documented by tokio
                    progress.audit = self.status.all().into_iter().map(|(uid, ..)| uid).collect();
                    progress.failures.retain(|uid, _| self.status.get(uid).is_some());
                }
                () = crate::shared::until(retry) => {} // cancel-safe: a timer
                Some(done) = writes.next() => self.done(&mut progress, done), // cancel-safe: the set
            }
        }
        // What is known now should be known to the API too: our successor begins from it.
        let flush = async {
            while let Some(done) = writes.next().await {
                self.done(&mut progress, done);
            }
            progress.audit.clear();
            for write in self.wanted(&mut progress, Instant::now()) {
                let done = send(Arc::clone(&self.api), write, self.clock.now()).await;
                self.done(&mut progress, done);
            }
        };
        // The time limit is the point: an API server that is away must not hold up our end.
        let _ = tokio::time::timeout(FLUSH, flush).await;
    }

    /// Writes to make now, most urgent first.
    fn wanted(&self, progress: &mut Progress, now: Instant) -> Vec<Write> {
        let snapshot = self.pods.borrow().clone();
        let mut writes = Vec::new();
        let mut compared = BTreeSet::new();
        progress.correction = None;
        for (uid, pod, cached) in self.status.all() {
            if progress.busy.contains(&uid)
                || progress.failures.get(&uid).is_some_and(|failure| failure.due > now)
            {
                continue;
            }
            let audited = progress.audit.contains(&uid);
            let entry = snapshot.pods.get(&uid);
            let api_pod = if pod.is_static() {
                match entry.and_then(|e| e.mirror.clone()) {
                    // Its worker goes on from what the mirror shows before we write to it.
                    Some(mirror) if !audited && !self.status.is_own(&uid, Some(&mirror)) => {
                        continue;
                    }
                    Some(mirror) => mirror,
                    // No object to write to.
                    None => continue,
                }
            } else {
                entry.map_or_else(|| Arc::clone(&pod), |e| Arc::clone(&e.pod))
            };
            let api_uid = api_pod.uid();
            let sent = progress.sent.get(&api_uid).copied();
            let in_api = entry.is_some_and(|e| e.mirror.is_some() || e.given.is_some());
            let newer = sent.is_none_or(|sent| sent.version < cached.version);
            if !newer {
                compared.insert(api_uid.clone());
                let lacking = in_api
                    && !sent.is_some_and(|sent| sent.is_after(&api_pod))
                    && progress.lacks(&pod, &api_pod, &cached);
                let due = sent.map(|sent| sent.next_correction()).filter(|at| *at > now);
                if !lacking || due.is_some() {
                    let waits = due.filter(|_| lacking);
                    progress.correction = progress.correction.into_iter().chain(waits).min();
                    progress.audit.remove(&uid);
                    continue;
                }
            }
            let ready = is_ready(&cached.status);
            let lane = if cached.finished || cached.status.is_terminal() {
                Lane::Terminal
            } else if sent.is_none_or(|sent| sent.ready != ready) || shows_ready(&api_pod) != ready
            {
                Lane::Readiness
            } else {
                Lane::Other
            };
            let could_run =
                self.pod_states.ask(|workers| workers.could_have_running_containers(&uid));
            writes.push(Write { lane, uid, api_uid, pod, cached, could_run, corrects: !newer });
        }
        progress.compared.retain(|uid, _| compared.contains(uid));
        // Of those in one lane who wait to be seen ready come first: others send requests to them.
        writes.sort_by_key(|write| (write.lane, !is_ready(&write.cached.status)));
        writes
    }

    fn done(&self, progress: &mut Progress, done: Done) {
        let Done { write, result } = done;
        progress.busy.remove(&write.uid);
        if result.is_ok() {
            self.status.acknowledged(&write.uid, write.cached.version);
        }
        let timeline = self.timelines.of(&write.pod);
        match result {
            Ok(Written::Sent(resource_version)) => {
                progress.failures.remove(&write.uid);
                let took = self.clock.now().duration_since(write.cached.since);
                self.metrics.status_sync.observe(&[], took.as_secs_f64());
                self.metrics.starts.note(|startups| {
                    startups.status_sent(&write.api_uid, &write.cached.status);
                });
                let before = progress.sent.get(&write.api_uid).filter(|_| write.corrects);
                let sent = Sent {
                    version: write.cached.version,
                    ready: is_ready(&write.cached.status),
                    resource_version,
                    at: Instant::now(),
                    corrections: before.map_or(0, Sent::corrections_now),
                };
                progress.sent.insert(write.api_uid, sent);
                timeline.note("status sent", write.cached.status.phase.clone().unwrap_or_default());
            }
            Ok(Written::Deleted) => {
                timeline.note("deleted from the API", "");
                self.forget(progress, &write);
            }
            Ok(Written::Gone) => {
                // Not ours any more; housekeeping drops the status with the pod.
                progress.failures.remove(&write.uid);
                progress.sent.insert(write.api_uid, Sent::unseen(write.cached.version));
            }
            Err(error) => {
                let last = progress.failures.get(&write.uid);
                let failure = Failure::after(last, &error, Instant::now());
                tracing::warn!(podUID = %write.uid, err = %error, "cannot send pod status");
                timeline.note("status not sent", error.to_string());
                progress.failures.insert(write.uid, failure);
            }
        }
    }

    fn forget(&self, progress: &mut Progress, write: &Write) {
        progress.failures.remove(&write.uid);
        progress.sent.insert(write.api_uid.clone(), Sent::unseen(u64::MAX));
        let known: BTreeSet<PodUid> = self.status.all().into_iter().map(|(uid, ..)| uid).collect();
        let snapshot = self.pods.borrow();
        let mirrors: BTreeSet<PodUid> =
            snapshot.pods.values().filter_map(|e| e.mirror.as_ref().map(|m| m.uid())).collect();
        progress.sent.retain(|uid, _| known.contains(uid) || mirrors.contains(uid));
    }
}

/// A write that failed, and when it may be tried again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Failure {
    /// Failures of this kind in a row.
    tries: u32,
    forbidden: bool,
    due: Instant,
}

impl Failure {
    /// Tries of another kind do not count: an API server that is back after an outage may forbid for a moment what its
    /// authorizer has not yet read, and must not be asked as rarely as one that is away.
    fn after(last: Option<&Failure>, error: &PodApiError, now: Instant) -> Failure {
        let forbidden = matches!(error, PodApiError::Forbidden(_));
        let tries = last.filter(|last| last.forbidden == forbidden).map_or(0, |last| last.tries);
        let first = Duration::from_millis(if forbidden { 100 } else { 1000 });
        let pause = (first * (1 << tries.min(7))).min(COMPARE);
        Failure { tries: tries + 1, forbidden, due: now + pause }
    }
}

/// Reads, merges, patches, and deletes if it is time.
async fn send(api: Arc<dyn PodApi>, write: Write, now: jiff::Timestamp) -> Done {
    let result = match tokio::time::timeout(LIMIT, try_send(api, &write, now)).await {
        Ok(result) => result,
        Err(_) => Err(PodApiError::Unavailable(format!("no answer within {LIMIT:?}"))),
    };
    Done { write, result }
}

async fn try_send(
    api: Arc<dyn PodApi>,
    write: &Write,
    now: jiff::Timestamp,
) -> Result<Written, PodApiError> {
    let meta = &write.pod.metadata;
    let name = meta.name.as_deref().unwrap_or_default();
    let namespace = meta.namespace.as_deref().unwrap_or_default();
    let fresh = match api.get(namespace, name).await {
        Ok(fresh) => fresh,
        Err(PodApiError::NotFound(_)) => return Ok(Written::Gone),
        Err(error) => return Err(error),
    };
    if fresh.uid() != write.api_uid {
        return Ok(Written::Gone);
    }
    let old = fresh.status.clone().unwrap_or_default();
    let new = merge(&write.pod, &old, &write.cached.status, write.could_run, now);
    let api_pod = match status_patch(write.api_uid.as_str(), &old, &new) {
        None => fresh,
        Some(patch) => match api.patch_status(namespace, name, &write.api_uid, patch).await {
            Ok(answer) => answer,
            Err(PodApiError::NotFound(_)) => return Ok(Written::Gone),
            Err(error) => return Err(error),
        },
    };
    if !may_be_deleted(&api_pod, &write.cached) {
        return Ok(Written::Sent(resource_version(&api_pod)));
    }
    match api.delete_now(namespace, name, &write.api_uid).await {
        Ok(()) | Err(PodApiError::NotFound(_)) => Ok(Written::Deleted),
        Err(error) => Err(error),
    }
}

fn resource_version(pod: &Pod) -> Option<u64> {
    pod.metadata.resource_version.as_deref()?.parse().ok()
}

fn shows_ready(api_pod: &Pod) -> bool {
    api_pod.status.as_ref().is_some_and(is_ready)
}

fn is_ready(status: &PodStatus) -> bool {
    status.conditions.iter().flatten().any(|c| c.type_ == "Ready" && c.status == "True")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_failed_write_that_is_due_wakes_nobody_a_second_time() {
        let now = Instant::now();
        let later = now + Duration::from_secs(4);
        let mut progress = Progress::default();
        progress
            .failures
            .insert("under-way".into(), Failure { tries: 1, forbidden: false, due: now });
        assert_eq!(progress.next_try(now), None);
        progress
            .failures
            .insert("waits".into(), Failure { tries: 1, forbidden: false, due: later });
        assert_eq!(progress.next_try(now), Some(later));
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_forbidden_for_a_moment_is_sent_soon_after() {
        let now = Instant::now();
        let forbidden = PodApiError::Forbidden("no relationship".into());
        let away = PodApiError::Unavailable("away".into());
        let mut last = None;
        let mut pause = |error: &PodApiError| {
            let failure = Failure::after(last.as_ref(), error, now);
            last = Some(failure);
            (failure.due - now).as_millis()
        };
        assert_eq!([0; 6].map(|_| pause(&away)), [1000, 2000, 4000, 8000, 10_000, 10_000]);
        let soon = [0; 8].map(|_| pause(&forbidden));
        assert_eq!(soon, [100, 200, 400, 800, 1600, 3200, 6400, 10_000], "after an outage too");
    }

    fn sent(resource_version: u64, corrections: u32) -> Sent {
        let at = Instant::now();
        Sent { version: 1, ready: true, resource_version: Some(resource_version), at, corrections }
    }

    #[tokio::test(start_paused = true)]
    async fn corrections_of_one_status_come_at_once_and_then_more_slowly() {
        let pauses: Vec<u64> =
            (0..6).map(|row| (sent(1, row).next_correction() - Instant::now()).as_secs()).collect();
        assert_eq!(pauses, [0, 1, 2, 4, 8, 10]);
        let last = sent(1, 5);
        assert_eq!(last.corrections_now(), 6);
        tokio::time::advance(COMPARE * 4).await;
        assert_eq!(last.corrections_now(), 1, "a long peace begins anew");
    }

    #[tokio::test(start_paused = true)]
    async fn an_object_from_before_the_last_write_is_not_compared() {
        let seen = |version: &str| {
            let mut pod = Pod::default();
            pod.metadata.resource_version = Some(version.to_owned());
            pod
        };
        let last = sent(10, 0);
        assert!(last.is_after(&seen("9")));
        assert!(!last.is_after(&seen("10")) && !last.is_after(&seen("11")));
        assert!(!last.is_after(&seen("")), "what cannot be compared is looked at");
        assert!(Sent::unseen(3).is_after(&seen("999999")), "it is gone");
        tokio::time::advance(WATCH_DELAY).await;
        assert!(!last.is_after(&seen("9")), "the server went back to an older version");
    }
}
