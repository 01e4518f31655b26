//! Dead containers and sandboxes: which go, and their removal (`kubelet: containerGC`).
//!
//! Promises: the choice is a function of a list; nothing of a running container goes; logs and links go
//! before the runtime's part, so that a failure is tried again.

use crate::config::GcPolicy;
use crate::shared::Shared;
use crate::view::translate::{self, LABEL_CONTAINER_NAME};
use api::core::v1::Pod;
use api::ids::PodUid;
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

/// One dead container.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Dead {
    id: String,
    name: String,
    pod: PodUid,
    pod_name: String,
    pod_namespace: String,
    created: Timestamp,
    /// Tells instances of the same moment apart.
    attempt: u32,
    state: ContainerRunState,
}

/// One sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
struct SandboxEntry {
    id: String,
    pod: PodUid,
    created: Timestamp,
    ready: bool,
    used: bool,
}

/// Whose containers go altogether.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reach {
    /// Those of pods that are deleted or evicted.
    DeletedPods,
    /// Those of every pod that will not run again.
    FinishedPods,
}

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
        self.shared.lives.ask(|w| {
            w.content_should_be_removed(uid) && !self.is_untold(uid)
                || (reach == Reach::FinishedPods && w.runtime_should_be_removed(uid))
        })
    }

    /// Whether a pod was evicted and the API server does not know it yet: the next start of the agent would
    /// know of its end by its containers alone.
    fn is_untold(&self, uid: &PodUid) -> bool {
        let pods = self.pods.borrow();
        pods.pods.get(uid).is_some_and(|entry| {
            let from_api = entry.source == PodSource::Api;
            let shown = entry.given.as_deref().is_none_or(crate::dispatch::api_terminal);
            entry.evicted && from_api && !shown
        })
    }

    async fn collect_containers(&self, reach: Reach, sources_ready: bool) -> Result<(), String> {
        let runtime = &self.shared.runtime;
        let containers =
            runtime.list_containers(BTreeMap::new()).await.map_err(|fault| fault.text)?;
        let policy = self.shared.config.gc;
        let dead = candidates(&containers, self.shared.clock.now(), policy.min_age);
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

    async fn remove_container(&self, gone: &Dead) -> Result<(), String> {
        let runtime = &self.shared.runtime;
        let mut status = runtime.container_status(&gone.id).await.map_err(|fault| fault.text)?;
        if let (ContainerRunState::Unknown, Some(known)) = (gone.state, &status) {
            let view = translate::container(known, "");
            let pod = gone.owner();
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
            let removed =
                sys::blocking::run(move || crate::worker::remove_log_files(&log, &link)).await;
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
            let removable = self.shared.lives.ask(|w| w.content_should_be_removed(&uid));
            if !removable || left.contains(&uid) {
                continue;
            }
            let (proc, path) = (proc.clone(), root.join(&name));
            let removed = sys::blocking::run(move || {
                sys::removal::remove_tree(&proc, &path, sys::removal::Contents::Everything)
            });
            if let Ok(Err(error)) = removed.await {
                tracing::warn!(err = %error, "cannot remove pod log folder");
            }
        }
        Ok(())
    }
}

impl Dead {
    /// The pod it was of, as far as the runtime knows it.
    fn owner(&self) -> Arc<Pod> {
        let mut pod = Pod::default();
        pod.metadata.uid = Some(self.pod.to_string());
        pod.metadata.name = Some(self.pod_name.clone());
        pod.metadata.namespace = Some(self.pod_namespace.clone());
        Arc::new(pod)
    }
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

fn candidates(containers: &[cri::Container], now: Timestamp, min_age: Duration) -> Vec<Dead> {
    let youngest = now.checked_sub(min_age).unwrap_or(Timestamp::MIN);
    containers
        .iter()
        .filter_map(|container| {
            let state = translate::run_state(container.state);
            let (pod, pod_name, pod_namespace) = translate::container_owner(container)?;
            let created = translate::time(container.created_at);
            if state == ContainerRunState::Running || created > youngest {
                return None;
            }
            Some(Dead {
                id: container.id.clone(),
                name: container.labels.get(LABEL_CONTAINER_NAME).cloned().unwrap_or_default(),
                pod,
                pod_name,
                pod_namespace,
                created,
                attempt: container.metadata.as_ref().map_or(0, |m| m.attempt),
                state,
            })
        })
        .collect()
}

/// Which dead containers go.
fn choose_containers(
    dead: Vec<Dead>,
    policy: &GcPolicy,
    removable: impl Fn(&PodUid) -> bool,
) -> Vec<Dead> {
    let mut units: BTreeMap<(PodUid, String), Vec<Dead>> = BTreeMap::new();
    let mut gone = Vec::new();
    for container in dead {
        if removable(&container.pod) {
            gone.push(container);
        } else {
            let unit = (container.pod.clone(), container.name.clone());
            units.entry(unit).or_default().push(container);
        }
    }
    for unit in units.values_mut() {
        let age = |c: &Dead| (c.created, c.attempt);
        unit.sort_by(|a, b| age(b).cmp(&age(a)).then_with(|| a.id.cmp(&b.id)));
        // One that is about to start has not lived: the last one that did still tells how that
        // ended, and how often.
        if unit.first().is_some_and(|newest| newest.state == ContainerRunState::Created) {
            unit.remove(0);
        }
        if let Some(keep) = policy.max_per_container
            && unit.len() > keep
        {
            gone.extend(unit.split_off(keep));
        }
    }
    units.retain(|_, unit| !unit.is_empty());
    let Some(max) = policy.max_containers else { return gone };
    let left: usize = units.values().map(Vec::len).sum();
    if left <= max || units.is_empty() {
        return gone;
    }
    let share = (max / units.len()).max(1);
    for unit in units.values_mut() {
        if unit.len() > share {
            gone.extend(unit.split_off(share));
        }
    }
    let mut rest: Vec<Dead> = units.into_values().flatten().collect();
    if rest.len() > max {
        rest.sort_by_key(|c| std::cmp::Reverse(c.created));
        gone.extend(rest.split_off(max));
    }
    gone
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
                created: translate::time(sandbox.created_at),
                ready: sandbox.state == cri::PodSandboxState::SandboxReady as i32,
                used: used.contains(sandbox.id.as_str()),
            })
        })
        .collect()
}

/// Which sandboxes go: unused ones, but for the newest of a pod that is still wanted.
fn choose_sandboxes(
    sandboxes: Vec<SandboxEntry>,
    removable: impl Fn(&PodUid) -> bool,
) -> Vec<String> {
    let mut by_pod: BTreeMap<PodUid, Vec<SandboxEntry>> = BTreeMap::new();
    for sandbox in sandboxes {
        by_pod.entry(sandbox.pod.clone()).or_default().push(sandbox);
    }
    let mut gone = Vec::new();
    for (pod, mut all) in by_pod {
        all.sort_by_key(|c| std::cmp::Reverse(c.created));
        let keep = usize::from(!removable(&pod));
        let idle = all.into_iter().skip(keep).filter(|s| !s.ready && !s.used);
        gone.extend(idle.map(|s| s.id));
    }
    gone
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dead(id: &str, pod: &str, name: &str, created: i64) -> Dead {
        Dead {
            id: id.into(),
            name: name.into(),
            pod: pod.into(),
            pod_name: pod.into(),
            pod_namespace: "default".into(),
            created: Timestamp::from_second(created).unwrap(),
            attempt: id.parse().unwrap(),
            state: ContainerRunState::Exited,
        }
    }

    fn ids(gone: Vec<Dead>) -> Vec<String> {
        let mut ids: Vec<String> = gone.into_iter().map(|d| d.id).collect();
        ids.sort();
        ids
    }

    #[test]
    fn the_newest_instance_of_each_container_stays() {
        let all = vec![dead("1", "p", "a", 1), dead("2", "p", "a", 2), dead("3", "p", "b", 1)];
        assert_eq!(ids(choose_containers(all, &GcPolicy::default(), |_| false)), ["1"]);
        let twins = vec![dead("10", "p", "a", 1), dead("9", "p", "a", 1)];
        assert_eq!(ids(choose_containers(twins, &GcPolicy::default(), |_| false)), ["9"]);
    }

    #[test]
    fn one_that_is_about_to_start_is_no_successor_yet() {
        let made =
            |id, created| Dead { state: ContainerRunState::Created, ..dead(id, "p", "a", created) };
        let none = GcPolicy { max_per_container: Some(0), ..GcPolicy::default() };
        let all = vec![dead("1", "p", "a", 1), dead("2", "p", "a", 2), made("3", 3)];
        assert_eq!(ids(choose_containers(all.clone(), &GcPolicy::default(), |_| false)), ["1"]);
        assert_eq!(ids(choose_containers(all.clone(), &none, |_| false)), ["1", "2"]);
        assert_eq!(ids(choose_containers(all, &none, |_| true)), ["1", "2", "3"]);
        let passed_over = vec![made("1", 1), dead("2", "p", "a", 2)];
        assert_eq!(ids(choose_containers(passed_over, &GcPolicy::default(), |_| false)), ["1"]);
    }

    #[test]
    fn everything_of_a_removable_pod_goes() {
        let all = vec![dead("1", "p", "a", 1), dead("2", "q", "a", 2)];
        let gone = choose_containers(all, &GcPolicy::default(), |uid| uid.as_str() == "p");
        assert_eq!(ids(gone), ["1"]);
    }

    #[test]
    fn a_bound_over_all_containers_removes_the_oldest() {
        let policy =
            GcPolicy { max_per_container: None, max_containers: Some(2), ..GcPolicy::default() };
        let all = vec![dead("1", "p", "a", 1), dead("2", "q", "a", 2), dead("3", "r", "a", 3)];
        assert_eq!(ids(choose_containers(all, &policy, |_| false)), ["1"]);
    }

    #[test]
    fn the_newest_sandbox_of_a_wanted_pod_stays_and_used_ones_too() {
        let sandbox = |id: &str, pod: &str, created: i64, used: bool| SandboxEntry {
            id: id.into(),
            pod: pod.into(),
            created: Timestamp::from_second(created).unwrap(),
            ready: false,
            used,
        };
        let all = vec![
            sandbox("1", "p", 1, false),
            sandbox("2", "p", 2, true),
            sandbox("3", "p", 3, false),
            sandbox("4", "q", 1, false),
        ];
        assert_eq!(choose_sandboxes(all, |uid| uid.as_str() == "q"), ["1", "4"]);
    }
}
