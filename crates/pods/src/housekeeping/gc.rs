//! Removing dead containers and sandboxes (`kubelet: containerGC`).
//!
//! Promises: logs and links go before the runtime's part, so that a failure is tried again. Which go is
//! `engine::housekeeping::garbage`'s choice over what the runtime lists.

use crate::shared::Shared;
use crate::view::translate::{self, LABEL_CONTAINER_NAME};
use api::core::v1::Pod;
use api::ids::PodUid;
use api::pod::PodExt;
use engine::housekeeping::garbage::{
    DeadContainer, GcPolicy, PodEnd, Reach, SandboxEntry, choose_containers, choose_sandboxes,
    is_candidate,
};
use engine::image::keyring::aggregate;
use engine::request::paths;
use engine::runtime::ContainerRunState;
use jiff::Timestamp;
use ports::{EventSeverity, EventTarget, NodeEvent, PodSource, PodsSnapshot};
use proto::cri_v1 as cri;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// How often dead containers are looked for.
const PERIOD: Duration = Duration::from_secs(60);

/// When they are looked for first after all sources have delivered: by then it is known which pods are
/// gone, and what a killed agent left need not wait for the period.
const AFTER_SOURCES: Duration = Duration::from_secs(3);

/// The collector's task.
#[derive(Debug)]
pub(crate) struct ContainerGc {
    pub(crate) shared: Arc<Shared>,
    pub(crate) pods: watch::Receiver<PodsSnapshot>,
}

impl ContainerGc {
    pub(crate) async fn run(self, cancel: CancellationToken) {
        let mut period = tokio::time::interval(PERIOD);
        period.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut sources = self.pods.clone();
        let first = async move {
            if sources.wait_for(|pods| pods.sources_ready).await.is_err() {
                std::future::pending::<()>().await;
            }
            tokio::time::sleep(AFTER_SOURCES).await;
        };
        tokio::pin!(first);
        let mut waits = true;
        loop {
            tokio::select! {
                () = cancel.cancelled() => return, // cancel-safe: a token
                _ = period.tick() => {} // cancel-safe: documented by tokio
                () = self.shared.garbage.notified() => {} // cancel-safe: an untaken permit stays
                () = &mut first, if waits => waits = false, // cancel-safe: pinned outside
            }
            if let Err(error) = self.collect(Reach::DeletedPods).await {
                tracing::error!(err = error, "container garbage collection failed");
                self.shared.events.emit(NodeEvent {
                    target: EventTarget::Node,
                    severity: EventSeverity::Warning,
                    reason: "ContainerGCFailed",
                    message: error,
                });
            }
        }
    }

    /// One pass: a step that fails does not keep the others from being made, and what cannot be removed is tried
    /// again and no failure.
    pub(crate) async fn collect(&self, reach: Reach) -> Result<(), String> {
        let sources_ready = self.pods.borrow().sources_ready;
        let mut faults = Vec::new();
        faults.extend(self.collect_containers(reach, sources_ready).await.err());
        let left = match self.collect_sandboxes(reach).await {
            Ok(left) => Some(left),
            Err(fault) => {
                faults.push(fault);
                None
            }
        };
        if let (true, Some(left)) = (sources_ready, left) {
            match self.remove_log_dirs(&left).await {
                Ok(()) => self.remove_dead_links().await,
                Err(fault) => faults.push(fault),
            }
        } else {
            self.remove_dead_links().await;
        }
        if faults.is_empty() { Ok(()) } else { Err(aggregate(&faults)) }
    }

    /// Whether everything of a pod goes.
    fn is_removable(&self, reach: Reach, uid: &PodUid) -> bool {
        let (content_removable, runtime_removable) = self
            .shared
            .pod_states
            .ask(|w| (w.content_should_be_removed(uid), w.runtime_should_be_removed(uid)));
        let eviction_is_untold = self.is_untold(uid);
        PodEnd { content_removable, runtime_removable, eviction_is_untold }.is_removable(reach)
    }

    /// Whether a pod was evicted and the API server does not know it yet.
    fn is_untold(&self, uid: &PodUid) -> bool {
        let pods = self.pods.borrow();
        pods.pods.get(uid).is_some_and(|entry| {
            let from_api = entry.source == PodSource::Api;
            let shown = entry.given.as_deref().is_none_or(PodExt::is_terminal);
            entry.evicted && from_api && !shown
        })
    }

    async fn collect_containers(&self, reach: Reach, sources_ready: bool) -> Result<(), String> {
        let runtime = &self.shared.runtime;
        let containers =
            runtime.list_containers(BTreeMap::new()).await.map_err(|fault| fault.text)?;
        let policy = self.shared.config.gc;
        let dead = candidates(&containers, self.shared.clock.now(), &policy);
        let removable = |uid: &PodUid| sources_ready && self.is_removable(reach, uid);
        for gone in choose_containers(dead, &policy, removable) {
            if let Err(error) = self.remove_container(&gone).await {
                tracing::error!(err = error, containerID = %gone.id, "Failed to remove container");
            }
        }
        Ok(())
    }

    /// Removes sandboxes; the pods of whom the runtime has something left.
    async fn collect_sandboxes(&self, reach: Reach) -> Result<BTreeSet<PodUid>, String> {
        let runtime = &self.shared.runtime;
        let containers =
            runtime.list_containers(BTreeMap::new()).await.map_err(|fault| fault.text)?;
        let sandboxes =
            runtime.list_sandboxes(BTreeMap::new()).await.map_err(|fault| fault.text)?;
        let entries = sandbox_entries(&sandboxes, &containers);
        let mut left = owners(&sandboxes, &containers);
        for id in choose_sandboxes(entries, |uid| self.is_removable(reach, uid)) {
            let removed = match runtime.stop_sandbox(&id).await {
                Ok(()) => runtime.remove_sandbox(&id).await,
                Err(fault) => Err(fault),
            };
            match removed {
                Ok(()) => drop(left.remove(&id)),
                Err(fault) => {
                    tracing::error!(err = %fault, sandboxID = %id, "Failed to remove sandbox");
                }
            }
        }
        Ok(left.into_values().collect())
    }

    async fn remove_container(&self, gone: &DeadContainer) -> Result<(), String> {
        let runtime = &self.shared.runtime;
        let mut status = runtime.container_status(&gone.id).await.map_err(|fault| fault.text)?;
        if let (ContainerRunState::Unknown, Some(known)) = (gone.state, &status) {
            let view = translate::container(known, "");
            let pod = owner(gone);
            Box::pin(crate::worker::kill_restored(&self.shared, &pod, &view)).await?;
            status = runtime.container_status(&gone.id).await.map_err(|fault| fault.text)?;
        }
        self.shared.placement.container_removed(&gone.id);
        if let Some(status) = status {
            let link = self.shared.config.roots.container_logs.join(paths::log_symlink_name(
                &gone.pod_name,
                &gone.pod_namespace,
                &gone.name,
                &gone.id,
            ));
            let log = PathBuf::from(status.log_path);
            let removed = sys::blocking::run_for_pod(gone.pod.as_str(), move || {
                crate::worker::remove_log_files(&log, &link)
            })
            .await;
            if let Ok(Err(error)) = removed {
                return Err(error.in_go());
            }
        }
        runtime.remove_container(&gone.id).await.map_err(|fault| fault.text)?;
        self.shared.view.look(&gone.pod);
        Ok(())
    }

    /// Links to logs that are gone, unless the container lives: its log may be on its way to another
    /// name just now. Only links into our own folder of logs are ours.
    async fn remove_dead_links(&self) {
        let roots = &self.shared.config.roots;
        let folder = roots.container_logs.clone();
        let found = sys::blocking::run(move || sys::fs::dangling_links(folder)).await;
        for (link, target) in found.ok().and_then(Result::ok).unwrap_or_default() {
            if !target.starts_with(&roots.pod_logs) {
                continue;
            }
            let name = link.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            if let Some(id) = paths::id_of_log_symlink(name)
                && let Ok(Some(status)) = self.shared.runtime.container_status(id).await
                && status.state() != cri::ContainerState::ContainerExited
            {
                continue;
            }
            let removed = sys::blocking::run(move || sys::fs::remove_file(link)).await;
            if let Ok(Err(error)) = removed {
                tracing::warn!(err = %error, "cannot remove a link to a log that is gone");
            }
        }
    }

    /// Log folders of pods whose content may go and of whom the runtime has nothing `left`.
    async fn remove_log_dirs(&self, left: &BTreeSet<PodUid>) -> Result<(), String> {
        let root = self.shared.config.roots.pod_logs.clone();
        let proc = self.shared.config.roots.proc.clone();
        let listed = {
            let root = root.clone();
            sys::blocking::run(move || sys::fs::list_dir(root)).await
        };
        let names = match listed {
            Ok(Ok(names)) => names,
            Ok(Err(error)) => {
                let (root, why) = (root.display(), error.in_go());
                return Err(format!("failed to read podLogsDirectory \"{root}\": {why}"));
            }
            Err(error) => return Err(error.to_string()),
        };
        for name in names {
            let uid = PodUid::from(paths::uid_of_log_dir(&name));
            let removable = self.shared.pod_states.ask(|w| w.content_should_be_removed(&uid));
            if !removable || left.contains(&uid) {
                continue;
            }
            let (proc, path) = (proc.clone(), root.join(&name));
            let removed = sys::blocking::run_for_pod(uid.as_str(), move || {
                sys::removal::remove_tree(&proc, &path, sys::removal::Contents::Everything)
            });
            if let Ok(Err(error)) = removed.await {
                tracing::warn!(err = %error, "cannot remove pod log folder");
            }
        }
        Ok(())
    }
}

/// The pod that a container was of, as far as the runtime knows it.
fn owner(gone: &DeadContainer) -> Arc<Pod> {
    let mut pod = Pod::default();
    pod.metadata.uid = Some(gone.pod.to_string());
    pod.metadata.name = Some(gone.pod_name.clone());
    pod.metadata.namespace = Some(gone.pod_namespace.clone());
    Arc::new(pod)
}

/// The pod of each sandbox and container, by its id; containers go with their sandbox.
fn owners(
    sandboxes: &[cri::PodSandbox],
    containers: &[cri::Container],
) -> BTreeMap<String, PodUid> {
    let of_sandbox = |sandbox: &cri::PodSandbox| {
        let uid = &sandbox.metadata.as_ref()?.uid;
        Some((sandbox.id.clone(), PodUid::from(uid.as_str())))
    };
    let known: BTreeMap<String, PodUid> = sandboxes.iter().filter_map(of_sandbox).collect();
    let lone = containers.iter().filter(|c| !known.contains_key(&c.pod_sandbox_id));
    let lone: Vec<_> =
        lone.filter_map(|c| Some((c.id.clone(), translate::container_owner(c)?.0))).collect();
    known.into_iter().chain(lone).collect()
}

fn candidates(
    containers: &[cri::Container],
    now: Timestamp,
    policy: &GcPolicy,
) -> Vec<DeadContainer> {
    let dead = containers.iter().filter_map(|container| {
        let state = translate::run_state(container.state);
        let (pod, pod_name, pod_namespace) = translate::container_owner(container)?;
        let created = translate::time(container.created_at);
        is_candidate(state, created, now, policy).then(|| DeadContainer {
            id: container.id.clone(),
            name: container.labels.get(LABEL_CONTAINER_NAME).cloned().unwrap_or_default(),
            pod,
            pod_name,
            pod_namespace,
            created,
            attempt: container.metadata.as_ref().map_or(0, |m| m.attempt),
            state,
        })
    });
    dead.collect()
}

fn sandbox_entries(
    sandboxes: &[cri::PodSandbox],
    containers: &[cri::Container],
) -> Vec<SandboxEntry> {
    let used: BTreeSet<&str> = containers.iter().map(|c| c.pod_sandbox_id.as_str()).collect();
    sandboxes
        .iter()
        .filter_map(|sandbox| {
            let (pod, ..) = translate::sandbox_owner(sandbox)?;
            Some(SandboxEntry {
                id: sandbox.id.clone(),
                pod,
                attempt: sandbox.metadata.as_ref().map_or(0, |m| m.attempt),
                created: translate::time(sandbox.created_at),
                ready: sandbox.state == cri::PodSandboxState::SandboxReady as i32,
                used: used.contains(sandbox.id.as_str()),
            })
        })
        .collect()
}
