//! Updates running containers to the CPUs they should run on.
//!
//! Upstream: `cpumanager.reconcileState`. A container with exclusive CPUs was created on them; the others follow the
//! shared CPUs, which shrink and grow. After a restart every container is updated once.

use super::Cpus;
use api::core::v1::{ContainerStatus, PodStatus};
use api::ids::PodUid;
use async_trait::async_trait;
use ports::{PodEntry, PodsSnapshot};
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use units::CpuSet;

/// The part of the runtime that sets CPUs of running containers. Implementations bound each call by a deadline.
#[async_trait]
pub trait ContainerCpus: Send + Sync + std::fmt::Debug {
    /// Restricts a container to these CPUs; nothing else about it changes.
    async fn set_cpus(&self, container_id: &str, cpus: &str) -> Result<(), String>;
}

/// A container to update.
#[derive(Debug, PartialEq, Eq)]
struct Update {
    who: (String, String),
    id: String,
    cpus: CpuSet,
}

impl Cpus {
    /// Reconciles periodically until cancelled; returns at once under the policy `none`.
    pub async fn run(
        self,
        period: Duration,
        pods: watch::Receiver<PodsSnapshot>,
        runtime: Box<dyn ContainerCpus>,
        cancel: CancellationToken,
    ) {
        if self.inner.held().policy() == "none" {
            return;
        }
        let mut ticks = tokio::time::interval(period);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                // Cancel-safe: no state is held across the wait.
                () = cancel.cancelled() => return,
                // Cancel-safe: a dropped tick is not lost.
                _ = ticks.tick() => {}
            }
            let snapshot = pods.borrow().clone();
            self.reconcile(&snapshot, runtime.as_ref()).await;
        }
    }

    pub(super) async fn reconcile(&self, pods: &PodsSnapshot, runtime: &dyn ContainerCpus) {
        let active = || pods.pods.iter().filter(|(_, entry)| entry.life.may_run());
        if pods.sources_ready {
            let mut uids: BTreeSet<PodUid> = active().map(|(uid, _)| uid.clone()).collect();
            {
                let mut fresh = self.inner.fresh();
                fresh.retain(|uid| !pods.pods.contains_key(uid));
                uids.extend(fresh.iter().cloned());
            }
            self.keep_only(&uids).await;
        }
        let updates: Vec<Update> =
            active().flat_map(|(uid, entry)| self.updates(uid.as_str(), entry)).collect();
        for Update { who, id, cpus } in updates {
            match runtime.set_cpus(&id, &cpus.to_string()).await {
                Ok(()) => {
                    self.inner.applied().insert(who, cpus);
                }
                Err(error) => {
                    let (uid, name) = (&who.0, &who.1);
                    tracing::error!(err = error, podUID = uid, containerName = name, containerID = id, cpuSet = %cpus, "failed to update container");
                }
            }
        }
    }

    fn updates(&self, uid: &str, entry: &PodEntry) -> Vec<Update> {
        let (Some(status), Some(spec)) = (&entry.status, &entry.pod.spec) else {
            return Vec::new();
        };
        let held = self.inner.held();
        let applied = self.inner.applied();
        let containers = spec.init_containers.iter().flatten().chain(&spec.containers);
        let mut updates = Vec::new();
        for container in containers {
            let Some(id) = running_id(status, &container.name) else { continue };
            let cpus = held.state().of_or_shared(uid, &container.name);
            let who = (uid.to_owned(), container.name.clone());
            if !cpus.is_empty() && applied.get(&who) != Some(cpus) {
                updates.push(Update { who, id: id.to_owned(), cpus: cpus.clone() });
            }
        }
        updates
    }
}

/// The id of a running container, without the runtime's name.
fn running_id<'a>(status: &'a PodStatus, name: &str) -> Option<&'a str> {
    let init = status.init_container_statuses.iter().flatten();
    let mut all = init.chain(status.container_statuses.iter().flatten());
    let running = |status: &&ContainerStatus| {
        status.state.as_ref().is_some_and(|state| state.running.is_some())
    };
    let found = all.find(|status| status.name == name).filter(running)?;
    found.container_id.as_deref()?.split_once("://").map(|(_, id)| id)
}
