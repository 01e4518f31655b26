//! Sending statuses to the API server.
//!
//! Promises: one write per pod at a time, several pods at once, final phases before readiness before the
//! rest; only the newest version is sent; a pod is removed from the API only after its containers,
//! volumes and cgroup are gone, and only if it is still the same pod.

use super::StatusCache;
use crate::lives::Lives;
use crate::sources::desired::{is_static, uid_of};
use api::core::v1::{Pod, PodStatus};
use api::ids::PodUid;
use engine::status::cache::Cached;
use engine::status::is_terminal;
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

/// How often everything is compared (`kubelet: syncPeriod`).
const COMPARE: Duration = Duration::from_secs(10);
/// Writes under way at the same time.
const PARALLEL: usize = 8;
/// How long a write may take.
const LIMIT: Duration = Duration::from_secs(30);
/// How long the last writes may take when everything ends.
const FLUSH: Duration = Duration::from_secs(3);

/// What was sent last for an API object.
#[derive(Debug, Clone, Copy)]
struct Sent {
    version: u64,
    ready: bool,
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
}

#[derive(Debug)]
struct Done {
    write: Write,
    result: Result<Written, PodApiError>,
}

#[derive(Debug, PartialEq, Eq)]
enum Written {
    Sent,
    Deleted,
    Gone,
}

/// The publisher's task.
#[derive(Debug)]
pub(crate) struct PublisherTask {
    pub(crate) api: Arc<dyn PodApi>,
    pub(crate) status: StatusCache,
    pub(crate) pods: watch::Receiver<PodsSnapshot>,
    pub(crate) lives: Lives,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) timelines: crate::shared::Timelines,
    pub(crate) metrics: crate::metrics::PodMetrics,
}

#[derive(Debug, Default)]
struct Progress {
    /// By UID of the API object: a re-created mirror gets everything again.
    sent: BTreeMap<PodUid, Sent>,
    busy: BTreeSet<PodUid>,
    failures: BTreeMap<PodUid, (u32, Instant)>,
}

impl Progress {
    /// When a write that failed may be tried again. What was due by `now` has been looked at: it is
    /// under way, waits for room, or is wanted no more, so it must not wake us again.
    fn next_try(&self, now: Instant) -> Option<Instant> {
        self.failures.values().map(|(_, at)| *at).filter(|at| *at > now).min()
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
        let mut everything = false;
        loop {
            let room = PARALLEL.saturating_sub(writes.len());
            let now = Instant::now();
            for write in self.wanted(&progress, everything, now).into_iter().take(room) {
                progress.busy.insert(write.uid.clone());
                writes.push(Box::pin(send(Arc::clone(&self.api), write, self.clock.now())));
            }
            everything = false;
            let retry = progress.next_try(now);
            tokio::select! {
                () = cancel.cancelled() => break, // cancel-safe: a token
                Ok(()) = changed.changed() => {} // cancel-safe: a watch
                Ok(()) = pods.changed() => {} // cancel-safe: a watch
                _ = compare.tick() => { // cancel-safe: documented by tokio
                    everything = true;
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
            for write in self.wanted(&progress, false, Instant::now()) {
                let done = send(Arc::clone(&self.api), write, self.clock.now()).await;
                self.done(&mut progress, done);
            }
        };
        // The time limit is the point: an API server that is away must not hold up our end.
        let _ = tokio::time::timeout(FLUSH, flush).await;
    }

    /// Writes to make now, most urgent first.
    fn wanted(&self, progress: &Progress, everything: bool, now: Instant) -> Vec<Write> {
        let snapshot = self.pods.borrow().clone();
        let mut writes = Vec::new();
        for (uid, pod, cached) in self.status.all() {
            if progress.busy.contains(&uid)
                || progress.failures.get(&uid).is_some_and(|(_, at)| *at > now)
            {
                continue;
            }
            let entry = snapshot.pods.get(&uid);
            let api_pod = if is_static(&pod) {
                match entry.and_then(|e| e.mirror.clone()) {
                    // Its worker goes on from what the mirror shows before we write to it.
                    Some(mirror) if !everything && !self.status.is_own(&uid, Some(&mirror)) => {
                        continue;
                    }
                    Some(mirror) => mirror,
                    // No object to write to.
                    None => continue,
                }
            } else {
                entry.map_or_else(|| Arc::clone(&pod), |e| Arc::clone(&e.pod))
            };
            let api_uid = uid_of(&api_pod);
            let sent = progress.sent.get(&api_uid);
            let newer = sent.is_none_or(|sent| sent.version < cached.version);
            let lacking = everything
                && (may_be_deleted(&api_pod, &cached)
                    || differs(&pod, &api_pod.status.clone().unwrap_or_default(), &cached.status));
            if !newer && !lacking {
                continue;
            }
            let ready = is_ready(&cached.status);
            let lane = if cached.finished || is_terminal(cached.status.phase.as_deref()) {
                Lane::Terminal
            } else if sent.is_none_or(|sent| sent.ready != ready) {
                Lane::Readiness
            } else {
                Lane::Other
            };
            let could_run = self.lives.ask(|workers| workers.could_have_running_containers(&uid));
            writes.push(Write { lane, uid, api_uid, pod, cached, could_run });
        }
        writes.sort_by_key(|write| write.lane);
        writes
    }

    fn done(&self, progress: &mut Progress, done: Done) {
        let Done { write, result } = done;
        progress.busy.remove(&write.uid);
        if result.is_ok() {
            self.status.told(&write.uid, write.cached.version);
        }
        let timeline = self.timelines.of(&write.pod);
        match result {
            Ok(Written::Sent) => {
                progress.failures.remove(&write.uid);
                let took = self.clock.now().duration_since(write.cached.since);
                self.metrics.status_sync.observe(&[], took.as_secs_f64());
                self.metrics.starts.note(|startups| {
                    startups.status_sent(&write.api_uid, &write.cached.status);
                });
                let ready = is_ready(&write.cached.status);
                let sent = Sent { version: write.cached.version, ready };
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
                let sent = Sent { version: write.cached.version, ready: false };
                progress.sent.insert(write.api_uid, sent);
            }
            Err(error) => {
                let tries = progress.failures.get(&write.uid).map_or(0, |(tries, _)| *tries);
                let pause = Duration::from_secs(1 << tries.min(3)).min(COMPARE);
                tracing::warn!(podUID = %write.uid, err = %error, "cannot send pod status");
                timeline.note("status not sent", error.to_string());
                progress.failures.insert(write.uid, (tries + 1, Instant::now() + pause));
            }
        }
    }

    fn forget(&self, progress: &mut Progress, write: &Write) {
        progress.failures.remove(&write.uid);
        let sent = Sent { version: u64::MAX, ready: false };
        progress.sent.insert(write.api_uid.clone(), sent);
        let known: BTreeSet<PodUid> = self.status.all().into_iter().map(|(uid, ..)| uid).collect();
        let snapshot = self.pods.borrow();
        let mirrors: BTreeSet<PodUid> =
            snapshot.pods.values().filter_map(|e| e.mirror.as_ref().map(|m| uid_of(m))).collect();
        progress.sent.retain(|uid, _| known.contains(uid) || mirrors.contains(uid));
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
    if uid_of(&fresh) != write.api_uid {
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
        return Ok(Written::Sent);
    }
    match api.delete_now(namespace, name, &write.api_uid).await {
        Ok(()) | Err(PodApiError::NotFound(_)) => Ok(Written::Deleted),
        Err(error) => Err(error),
    }
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
        progress.failures.insert("under-way".into(), (1, now));
        assert_eq!(progress.next_try(now), None);
        progress.failures.insert("waits".into(), (1, later));
        assert_eq!(progress.next_try(now), Some(later));
    }
}
