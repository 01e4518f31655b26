//! Applying changed resources without a restart.
//!
//! Promises: memory before CPU; for each the pod's limit and request rise before its containers change
//! and fall after them, so that a pod never holds less than its containers; a memory limit is never set
//! below what the pod uses now; every applied step is recorded, so that a crash half-way goes on where
//! it stopped.

use super::PodWorker;
use api::core::v1::{Container, Pod, ResourceRequirements};
use engine::cgroup::pod_ask;
use engine::pod::{Actuated, ContainerUpdate, ResizePlan};
use engine::runtime::RuntimePod;
use proto::cri_v1::{LinuxContainerResources, UpdatePodSandboxResourcesRequest};
use std::collections::BTreeSet;
use std::sync::Arc;

/// One of the two sides of a resource stanza.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Side {
    Limits,
    Requests,
}

/// Which parts of the new resources are in force already.
type Taken = BTreeSet<(Side, &'static str)>;

impl PodWorker {
    /// Walks a resize plan; an error is the text of `ResizeError`.
    pub(super) async fn resize(
        &mut self,
        pod: &Arc<Pod>,
        runtime: &RuntimePod,
        plan: &ResizePlan,
    ) -> Result<(), String> {
        let began = tokio::time::Instant::now();
        let result = self.try_resize(pod, runtime, plan).await;
        self.shared.metrics.resize.carried_out(result.is_ok(), began.elapsed());
        match &result {
            Ok(()) => self.timeline.note("resized", ""),
            Err(error) => self.timeline.note("resize failed", error.clone()),
        }
        self.shared.resizes.actuated(pod, &result);
        result
    }

    async fn try_resize(
        &self,
        pod: &Arc<Pod>,
        runtime: &RuntimePod,
        plan: &ResizePlan,
    ) -> Result<(), String> {
        let old = self.shared.actuated.of(&self.uid);
        self.check_memory(pod, &old, plan).await?;
        let mut taken = Taken::new();
        for (resource, updates) in [("memory", &plan.memory), ("cpu", &plan.cpu)] {
            for side in [Side::Limits, Side::Requests] {
                self.pod_step(pod, runtime, &old, &mut taken, (side, resource), Way::Up).await?;
            }
            let mut with_containers = taken.clone();
            with_containers.extend([(Side::Limits, resource), (Side::Requests, resource)]);
            let changed = staged(pod, &old, &with_containers);
            for update in updates {
                let Some(container) = find(&changed, &update.name) else { continue };
                let settings = &self.shared.config.request.resources;
                let quota = self.quota(pod, Some(container));
                let resources = settings.container(&changed, container, quota);
                let id = update.id.as_str();
                self.shared.runtime.update_container(id, resources).await.map_err(|f| f.text)?;
                self.shared.actuated.record_container(&self.uid, container);
            }
            for side in [Side::Requests, Side::Limits] {
                self.pod_step(pod, runtime, &old, &mut taken, (side, resource), Way::Down).await?;
            }
        }
        self.shared.actuated.record_pod_level(&self.uid, pod);
        Ok(())
    }

    /// Moves one field of the pod's own resources, if it moves that way: runtime first, then cgroup.
    async fn pod_step(
        &self,
        pod: &Arc<Pod>,
        runtime: &RuntimePod,
        old: &Actuated,
        taken: &mut Taken,
        field: (Side, &'static str),
        way: Way,
    ) -> Result<(), String> {
        if taken.contains(&field) {
            return Ok(());
        }
        let settings = &self.shared.config.request.resources;
        let quota = self.quota(pod, None);
        let before = settings.sandbox(&staged(pod, old, taken), quota);
        let mut next = taken.clone();
        next.insert(field);
        let stage = staged(pod, old, &next);
        let after = settings.sandbox(&stage, quota);
        if moves(&before, &after, field) != Some(way) {
            if way == Way::Down {
                *taken = next;
            }
            return Ok(());
        }
        *taken = next;
        self.tell_sandbox(&stage, runtime, &after).await?;
        if let Err(error) = self.shared.cgroups.resize(&stage).await {
            // The runtime should not believe what is not so.
            let _ = self.tell_sandbox(&stage, runtime, &before).await;
            return Err(error.to_string());
        }
        Ok(())
    }

    /// Refuses limits below what is used now (`kubelet: validateMemoryResizeAction`).
    async fn check_memory(
        &self,
        pod: &Pod,
        old: &Actuated,
        plan: &ResizePlan,
    ) -> Result<(), String> {
        let lowered: Vec<&ContainerUpdate> =
            plan.memory.iter().filter(|update| lowers_memory(update)).collect();
        let pod_limit = self.lowered_pod_limit(pod, old);
        if lowered.is_empty() && pod_limit.is_none() {
            return Ok(());
        }
        let Some(usage) = self.shared.cgroups.memory_usage(pod).await else {
            let name = crate::shared::format_pod(pod);
            return Err(format!("unable to read memory usage for pod {name:?}"));
        };
        let mut faults = Vec::new();
        if let Some(limit) = pod_limit.filter(|limit| *limit <= usage) {
            faults.push(format!(
                "attempting to set pod memory limit ({limit}) below current usage ({usage})"
            ));
        }
        for ContainerUpdate { name, id, desired, .. } in lowered {
            let limit = u64::try_from(desired.memory_limit).unwrap_or_default();
            match self.shared.runtime.memory_usage(id.as_str()).await {
                None => faults.push(format!("missing container {name:?} memory usage")),
                // The text has the pod's usage, as upstream's.
                Some(used) if used >= limit => faults.push(format!(
                    "attempting to set container {name:?} memory limit ({limit}) below current usage ({usage})"
                )),
                Some(_) => {}
            }
        }
        match faults.as_slice() {
            [] => Ok(()),
            [one] => Err(format!("cannot decrease memory limits: {one}")),
            many => Err(format!("cannot decrease memory limits: [{}]", many.join(", "))),
        }
    }

    /// The pod's new memory limit, if it is lower than the one in force.
    fn lowered_pod_limit(&self, pod: &Pod, old: &Actuated) -> Option<u64> {
        let pod_level = self.shared.config.request.resources.pod_level_resources;
        let limit = |pod: &Pod| pod_ask(pod, pod_level).memory_limit;
        let before = limit(&staged(pod, old, &Taken::new()));
        let after = limit(pod).filter(|after| before.is_none_or(|before| *after < before));
        after.and_then(|limit| u64::try_from(limit).ok())
    }

    /// Lets the runtime know; one that does not have the call is fine.
    async fn tell_sandbox(
        &self,
        pod: &Pod,
        runtime: &RuntimePod,
        values: &LinuxContainerResources,
    ) -> Result<(), String> {
        let Some(sandbox) = runtime.active_sandbox() else { return Ok(()) };
        let settings = &self.shared.config.request.resources;
        let request = UpdatePodSandboxResourcesRequest {
            pod_sandbox_id: sandbox.id.to_string(),
            overhead: Some(settings.overhead(pod)),
            resources: Some(LinuxContainerResources {
                cpu_period: values.cpu_period,
                cpu_quota: values.cpu_quota,
                cpu_shares: values.cpu_shares,
                memory_limit_in_bytes: values.memory_limit_in_bytes,
                ..LinuxContainerResources::default()
            }),
        };
        match self.shared.runtime.update_sandbox(request).await {
            Err(fault) if !fault.unsupported => Err(fault.text),
            _ => Ok(()),
        }
    }
}

/// Where a value moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Up,
    Down,
}

/// How one field of the pod's values moves; a limit that goes away stays as it is.
fn moves(
    before: &LinuxContainerResources,
    after: &LinuxContainerResources,
    field: (Side, &str),
) -> Option<Way> {
    let (old, new) = match field {
        (Side::Limits, "cpu") => (before.cpu_quota, after.cpu_quota),
        (Side::Limits, _) => (before.memory_limit_in_bytes, after.memory_limit_in_bytes),
        (Side::Requests, "cpu") => (before.cpu_shares, after.cpu_shares),
        // Memory requests are written nowhere.
        (Side::Requests, _) => return None,
    };
    match (old, new) {
        (old, new) if old == new || new <= 0 => None,
        // No limit so far: any limit is less.
        (0, _) => Some(Way::Down),
        (old, new) if new > old => Some(Way::Up),
        _ => Some(Way::Down),
    }
}

/// The pod with its old resources but for the parts that are taken over.
fn staged(pod: &Pod, old: &Actuated, taken: &Taken) -> Pod {
    let mut pod = pod.clone();
    let Some(spec) = &mut pod.spec else { return pod };
    let all = spec.containers.iter_mut().chain(spec.init_containers.iter_mut().flatten());
    for container in all {
        if let Some(before) = old.containers.get(&container.name) {
            container.resources = Some(mixed(before, container.resources.as_ref(), taken));
        }
    }
    // A pod that has none of its own so far may get some.
    if spec.resources.is_some() || old.pod_level.is_some() {
        let before = old.pod_level.clone().unwrap_or_default();
        spec.resources = Some(mixed(&before, spec.resources.as_ref(), taken));
    }
    pod
}

fn mixed(
    old: &ResourceRequirements,
    new: Option<&ResourceRequirements>,
    taken: &Taken,
) -> ResourceRequirements {
    let mut result = old.clone();
    for (side, resource) in taken {
        let (list, source) = match side {
            Side::Limits => (&mut result.limits, new.and_then(|n| n.limits.as_ref())),
            Side::Requests => (&mut result.requests, new.and_then(|n| n.requests.as_ref())),
        };
        match source.and_then(|source| source.get(*resource)) {
            Some(amount) => {
                list.get_or_insert_default().insert((*resource).to_owned(), amount.clone());
            }
            None => {
                if let Some(list) = list {
                    list.remove(*resource);
                }
            }
        }
    }
    result
}

fn lowers_memory(update: &ContainerUpdate) -> bool {
    let (now, then) = (update.desired.memory_limit, update.current.memory_limit);
    now > 0 && (then == 0 || now < then)
}

fn find<'a>(pod: &'a Pod, name: &str) -> Option<&'a Container> {
    let spec = pod.spec.as_ref()?;
    spec.containers.iter().chain(spec.init_containers.iter().flatten()).find(|c| c.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(quota: i64, shares: i64) -> LinuxContainerResources {
        LinuxContainerResources { cpu_quota: quota, cpu_shares: shares, ..Default::default() }
    }

    #[test]
    fn a_first_limit_is_less_and_a_removed_one_stays() {
        let cpu_limit = (Side::Limits, "cpu");
        assert_eq!(moves(&values(0, 2), &values(10_000, 2), cpu_limit), Some(Way::Down));
        assert_eq!(moves(&values(10_000, 2), &values(20_000, 2), cpu_limit), Some(Way::Up));
        assert_eq!(moves(&values(10_000, 2), &values(0, 2), cpu_limit), None);
    }

    #[test]
    fn the_first_resources_of_the_pod_itself_are_a_change() {
        let pod: Pod = serde_json::from_value(serde_json::json!({"spec": {
            "containers": [{"name": "c", "resources": {"requests": {"cpu": "2m"}}}],
            "resources": {"requests": {"cpu": "5m"}, "limits": {"cpu": "25m"}},
        }}))
        .unwrap();
        let old = Actuated::default();
        let own = |taken| staged(&pod, &old, &taken).spec.unwrap().resources.unwrap();
        assert_eq!(own(Taken::new()), ResourceRequirements::default());
        let cpu = Taken::from([(Side::Limits, "cpu"), (Side::Requests, "cpu")]);
        assert_eq!(own(cpu), pod.spec.clone().unwrap().resources.unwrap());
    }

    #[test]
    fn only_what_is_taken_comes_from_the_new_resources() {
        let stanza = |text: &str| serde_json::from_str::<ResourceRequirements>(text).unwrap();
        let old = stanza(r#"{"limits":{"cpu":"100m"},"requests":{"cpu":"100m","memory":"1Mi"}}"#);
        let new = stanza(r#"{"limits":{"cpu":"200m"},"requests":{"cpu":"200m","memory":"2Mi"}}"#);
        let taken = Taken::from([(Side::Limits, "cpu")]);
        assert_eq!(
            mixed(&old, Some(&new), &taken),
            stanza(r#"{"limits":{"cpu":"200m"},"requests":{"cpu":"100m","memory":"1Mi"}}"#)
        );
    }
}
