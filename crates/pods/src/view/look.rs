//! Questions to the runtime: one pod in full, and all pods in short.

use super::task::Listed;
use super::translate::{self, LABEL_POD_UID};
use super::{settle, termination};
use crate::runtime::{Runtime, RuntimeFault};
use api::ids::PodUid;
use engine::runtime::{ContainerRunState, ContainerView, RuntimePod, SandboxState, SandboxView};
use ports::PodCgroups;
use proto::cri_v1 as cri;
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::time::Instant;

/// Reads one pod, again for as long as its sandbox may just be ending.
pub(super) async fn look(
    runtime: &Runtime,
    cgroups: &dyn PodCgroups,
    blank: RuntimePod,
    before: Option<Arc<RuntimePod>>,
) -> Result<RuntimePod, RuntimeFault> {
    let end = Instant::now() + settle::SANDBOX_LIMIT;
    loop {
        let pod = look_once(runtime, cgroups, blank.clone(), before.clone()).await?;
        let may_end = settle::sandbox_may_end(&pod, before.as_deref());
        if !may_end || Instant::now() >= end {
            return Ok(pod);
        }
        tokio::time::sleep(settle::PAUSE).await;
    }
}

/// Reads one pod (`kubelet: GetPodStatus`).
async fn look_once(
    runtime: &Runtime,
    cgroups: &dyn PodCgroups,
    mut pod: RuntimePod,
    before: Option<Arc<RuntimePod>>,
) -> Result<RuntimePod, RuntimeFault> {
    let labels = BTreeMap::from([(LABEL_POD_UID.to_owned(), pod.uid.to_string())]);
    let sandboxes = runtime.list_sandboxes(labels.clone()).await?;
    let containers = runtime.list_containers(labels).await?;
    for listed in &sandboxes {
        let Some((_, name, namespace)) = translate::sandbox_owner(listed) else { continue };
        (pod.name, pod.namespace) = (name, namespace);
        if let Some(known) = before.as_ref().and_then(|before| unchanged(before, listed)) {
            pod.sandboxes.push(known.clone());
            continue;
        }
        let Some(status) = runtime.sandbox_status(&listed.id).await? else { continue };
        pod.sandboxes.push(translate::sandbox(&status));
    }
    let mut exited = Vec::new();
    for listed in &containers {
        let Some((_, name, namespace)) = translate::container_owner(listed) else { continue };
        if pod.name.is_empty() {
            (pod.name, pod.namespace) = (name, namespace);
        }
        let over = translate::run_state(listed.state) == ContainerRunState::Exited;
        let known = before.as_ref().and_then(|b| {
            b.containers
                .iter()
                .find(|c| c.id.as_str() == listed.id && c.state == ContainerRunState::Exited)
        });
        if let (true, Some(known)) = (over, known) {
            // An exited container does not change any more.
            pod.containers.push(known.clone());
            continue;
        }
        let Some(mut status) = runtime.container_status(&listed.id).await? else { continue };
        if settle::may_change(&status) && cgroups.oom_kills(&pod.uid).await > 0 {
            status = settle::settled(status, || runtime.container_status(&listed.id)).await?;
        }
        let view = translate::container(&status, &listed.pod_sandbox_id);
        if view.state == ContainerRunState::Exited {
            exited.push(view);
        } else {
            pod.containers.push(view);
        }
    }
    pod.containers.extend(with_messages(&pod.uid, exited).await);
    pod.normalise();
    if let Some(sandbox) = pod.active_sandbox() {
        pod.ips = sandbox.network.as_ref().map(|n| n.ips()).unwrap_or_default();
    }
    if let Some(before) = before {
        pod.keep_ips_of(&before);
    }
    Ok(pod)
}

/// What is known of a listed sandbox, if that holds: one that is ready and has its addresses keeps
/// them for as long as it is ready.
fn unchanged<'a>(before: &'a RuntimePod, listed: &cri::PodSandbox) -> Option<&'a SandboxView> {
    let known = before.sandboxes.iter().find(|sandbox| sandbox.id.as_str() == listed.id)?;
    let addressed = known.network.as_ref().is_some_and(|network| !network.ips().is_empty());
    let ready = known.state == SandboxState::Ready
        && listed.state == cri::PodSandboxState::SandboxReady as i32;
    (ready && addressed).then_some(known)
}

async fn with_messages(pod: &PodUid, containers: Vec<ContainerView>) -> Vec<ContainerView> {
    if containers.is_empty() {
        return containers;
    }
    let plain = containers.clone();
    let read = sys::blocking::run_for_pod(pod.as_str(), move || {
        containers
            .into_iter()
            .map(|mut container| {
                termination::add_message(&mut container);
                container
            })
            .collect()
    });
    read.await.unwrap_or(plain)
}

/// All pods with the states of what they have.
pub(super) async fn list_all(runtime: &Runtime) -> Result<BTreeMap<PodUid, Listed>, RuntimeFault> {
    let sandboxes = runtime.list_sandboxes(BTreeMap::new()).await?;
    let containers = runtime.list_containers(BTreeMap::new()).await?;
    let mut pods: BTreeMap<PodUid, Listed> = BTreeMap::new();
    for sandbox in sandboxes {
        let Some((uid, name, namespace)) = translate::sandbox_owner(&sandbox) else { continue };
        let pod = pods.entry(uid).or_default();
        let ready = sandbox.state == cri::PodSandboxState::SandboxReady as i32;
        pod.summary.alive |= ready;
        (pod.summary.name, pod.summary.namespace) = (name, namespace);
        if ready || pod.summary.annotations.is_empty() {
            pod.summary.annotations = sandbox.annotations;
        }
        pod.states.insert(sandbox.id, sandbox.state);
    }
    for container in containers {
        let Some((uid, name, namespace)) = translate::container_owner(&container) else { continue };
        let pod = pods.entry(uid).or_default();
        pod.summary.alive |= container.state == cri::ContainerState::ContainerRunning as i32;
        if pod.summary.name.is_empty() {
            (pod.summary.name, pod.summary.namespace) = (name, namespace);
        }
        if let Some(hash) = container.annotations.get("io.kubernetes.container.hash") {
            let name = container.labels.get(translate::LABEL_CONTAINER_NAME).cloned();
            pod.summary.hashes.insert(name.unwrap_or_default(), hash.clone());
        }
        pod.states.insert(container.id, container.state);
    }
    Ok(pods)
}
