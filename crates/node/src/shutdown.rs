//! Graceful node shutdown: pods end first, by priority, within their grace periods (kubelet:
//! `nodeshutdown`).
//!
//! ```text
//!   attach (lock, listen) ─▶ "shutdown begins" ─▶ not Ready, no admission ─▶ groups end ─▶ statuses acknowledged ─▶ lock released
//!        ▲                          "cancelled" ─▶ Ready again, lock taken again
//!        └── a second after the bus was lost
//! ```
//!
//! Owns: the inhibitor lock and the shutting-down state of the node. Promises: a first attach that
//! fails is logged and not retried; a group that does not end in time does not delay the next; the
//! lock is held until the API server has the final pod statuses, but not for long when it does not
//! respond.

mod announcer;
mod record;
#[cfg(test)]
mod tests;

pub use record::ShutdownMetrics;

use crate::active::active_pods;
use announcer::{Announcer, Attached, Machine};
use api::core::v1::Pod;
use api::pod::PodExt;
use engine::shutdown::{Group, PriorityPeriod, groups, status, total};
use ports::{
    Clock, EventSeverity, EventTarget, Events, KillRequest, NodeEvent, OnExit, Pods, Tasks, Volumes,
};
use record::Record;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

const RECONNECT: Duration = Duration::from_secs(1);
/// How long at most to wait for the API server when all pods have ended…
const ACKNOWLEDGE_AT_MOST: Duration = Duration::from_secs(5);
/// …and at least, when they used all their time.
const ACKNOWLEDGE_AT_LEAST: Duration = Duration::from_secs(1);

/// Settings of graceful shutdown.
#[derive(Debug, Clone)]
pub struct ShutdownConfig {
    /// Time per priority, ascending (`engine::shutdown::periods`); empty disables it.
    pub periods: Vec<PriorityPeriod>,
    /// The kubelet root directory, where the times of the last shutdown are stored.
    pub root: PathBuf,
    /// `/etc`.
    pub etc: PathBuf,
}

/// Dependencies of the shutdown task.
#[derive(Debug)]
pub struct ShutdownParts {
    /// The pods, and how they are killed.
    pub pods: Arc<dyn Pods>,
    /// Their volumes.
    pub volumes: Arc<dyn Volumes>,
    /// Where events go.
    pub events: Arc<dyn Events>,
    /// Wall time.
    pub clock: Arc<dyn Clock>,
    /// The times as metrics, and their file; `None` when they are not recorded.
    pub metrics: Option<ShutdownMetrics>,
    /// Where the shutting-down state is published.
    pub shutting_down: watch::Sender<bool>,
    /// Runs kills that outlast their group.
    pub tasks: Tasks,
}

/// The shutdown task.
#[derive(Debug)]
pub struct Shutdown {
    periods: Vec<PriorityPeriod>,
    announcer: Box<dyn Announcer>,
    record: Option<Record>,
    parts: ShutdownParts,
}

impl Shutdown {
    /// With the machine's logind.
    pub fn new(config: ShutdownConfig, parts: ShutdownParts) -> Self {
        let announcer = Box::new(Machine { etc: config.etc });
        Self::over(config.periods, config.root, announcer, parts)
    }

    fn over(
        periods: Vec<PriorityPeriod>,
        root: PathBuf,
        announcer: Box<dyn Announcer>,
        parts: ShutdownParts,
    ) -> Self {
        let record = parts.metrics.clone().map(|metrics| Record::new(root, metrics));
        Self { periods, announcer, record, parts }
    }

    /// Runs until cancelled; ends at once when it is disabled.
    pub async fn run(self) {
        if self.periods.is_empty() {
            return;
        }
        let cancel = self.parts.tasks.token();
        tokio::select! {
            // Cancel-safe: a token.
            () = cancel.cancelled() => {}
            // Dropped only at the end of the process.
            () = self.watch() => {}
        }
    }

    async fn watch(self) {
        let needed = total(&self.periods);
        let mut attached = match self.announcer.attach(needed).await {
            Ok(attached) => attached,
            Err(error) => {
                tracing::error!(err = error, "Failed to start node shutdown manager");
                return;
            }
        };
        if let Some(record) = &self.record {
            record.restore().await;
        }
        loop {
            self.follow(&mut *attached).await;
            tracing::error!("Ended to watching the node for shutdown events");
            attached = loop {
                tokio::time::sleep(RECONNECT).await;
                match self.announcer.attach(needed).await {
                    Ok(attached) => break attached,
                    Err(error) => {
                        tracing::error!(err = error, "Unable to watch the node for shutdown events")
                    }
                }
            };
        }
    }

    /// Handles shutdown signals until the connection is lost.
    async fn follow(&self, attached: &mut dyn Attached) {
        while let Some(begins) = attached.next().await {
            let what = if begins { "event" } else { "cancellation" };
            self.parts.events.emit(NodeEvent {
                target: EventTarget::Node,
                severity: EventSeverity::Normal,
                reason: "Shutdown",
                message: format!("Shutdown manager detected shutdown {what}"),
            });
            // Node status and admission react at once.
            self.parts.shutting_down.send_replace(begins);
            if begins {
                self.end_pods().await;
                attached.release();
                tracing::info!(
                    "Shutdown manager completed processing shutdown event, node will shutdown shortly"
                );
            } else if let Err(error) = attached.lock().await {
                tracing::error!(err = error, "Failed to take the shutdown lock again");
            }
        }
    }

    async fn end_pods(&self) {
        let (start, began) = (self.parts.clock.now(), Instant::now());
        if let Some(record) = &self.record {
            record.began(start).await;
        }
        let active = active_pods(&*self.parts.pods);
        let pods: Vec<&Pod> = active.iter().map(Arc::as_ref).collect();
        for group in groups(&self.periods, &pods) {
            let ended = self.end_group(&group, &active);
            if tokio::time::timeout(group.period, ended).await.is_err() {
                tracing::info!(
                    gracePeriod = group.period.as_secs(),
                    "Shutdown manager pod killing time out"
                );
            }
        }
        if let Some(record) = &self.record {
            record.ended(start, self.parts.clock.now()).await;
        }
        let left = total(&self.periods).saturating_sub(began.elapsed());
        self.wait_acknowledged(&active, left.clamp(ACKNOWLEDGE_AT_LEAST, ACKNOWLEDGE_AT_MOST))
            .await;
    }

    /// Waits until the API server has the final pod statuses. Otherwise the pods would be shown as
    /// running, and get traffic, until this machine is up again.
    async fn wait_acknowledged(&self, pods: &[Arc<Pod>], limit: Duration) {
        let waits = pods
            .iter()
            .map(|pod| async move { self.parts.pods.wait_acknowledged(&pod.uid()).await });
        if tokio::time::timeout(limit, futures::future::join_all(waits)).await.is_err() {
            tracing::warn!(
                ?limit,
                "Timed out waiting for the API server to acknowledge pod statuses"
            );
        }
    }

    /// Kills the group's pods in parallel and waits for them and for their volumes. The kills
    /// continue when the wait is dropped.
    async fn end_group(&self, group: &Group, active: &[Arc<Pod>]) {
        let chosen =
            group.pods.iter().filter_map(|(index, grace)| Some((active.get(*index)?, grace)));
        let chosen: Vec<(Arc<Pod>, i64)> = chosen.map(|(pod, g)| (Arc::clone(pod), *g)).collect();
        let (done, mut ended) = mpsc::channel::<()>(1);
        for (pod, grace) in &chosen {
            let (pods, pod, grace) = (Arc::clone(&self.parts.pods), Arc::clone(pod), *grace);
            let done = done.clone();
            self.parts.tasks.spawn("shutdown-kill", OnExit::Fine, async move {
                end_pod(&*pods, &pod, grace).await;
                drop(done);
            });
        }
        drop(done);
        // Nothing is ever sent: the channel closes with the last kill.
        ended.recv().await;
        for (pod, _) in &chosen {
            if let Err(error) = self.parts.volumes.wait_released(pod).await {
                tracing::error!(err = %error, pod = pod.metadata.name, "Failed while waiting for all the volumes belonging to Pods in this group to unmount");
            }
        }
    }
}

async fn end_pod(pods: &dyn Pods, pod: &Pod, grace_seconds: i64) {
    let status = status(pod);
    let request = KillRequest {
        evict: false,
        grace_seconds: Some(grace_seconds),
        reason: status.reason,
        message: status.message,
        condition: status.condition,
    };
    let name = pod.name_str();
    tracing::info!(
        pod = name,
        gracePeriod = grace_seconds,
        "Shutdown manager killing pod with gracePeriod"
    );
    match pods.kill(&pod.uid(), request).await {
        Ok(()) => tracing::info!(pod = name, "Shutdown manager finished killing pod"),
        Err(error) => {
            tracing::info!(pod = name, err = error, "Shutdown manager failed killing pod")
        }
    }
}
