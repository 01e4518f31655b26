//! Applying changed resources without a restart.
//!
//! Promises: memory before CPU; for each the pod's limit and request rise before its containers change
//! and fall after them, so that a pod never holds less than its containers; a memory limit is never set
//! below what the pod uses now; every applied step is recorded, so that a crash half-way goes on where
//! it stopped.

use super::PodWorker;
use api::core::v1::{Container, Pod, ResourceRequirements};
use api::machinery::api::resource::Quantity;
use api::pod::PodExt;
use engine::cgroup::{PodLimitPolicy, pod_ask, pod_limits};
use engine::pod::{Actuated, ContainerUpdate, ResizePlan};
use engine::request::resources::{CpuQuota, PodCgroupValues};
use engine::runtime::RuntimePod;
use ports::CgroupValues;
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
        // The pod's own part may be left of a resize that was over for its containers.
        if result.is_err() || self.shared.resizes.is_under_way(&self.uid) {
            self.shared.resizes.actuated(pod, &result);
        }
        result
    }

    async fn try_resize(
        &self,
        pod: &Arc<Pod>,
        runtime: &RuntimePod,
        plan: &ResizePlan,
    ) -> Result<(), String> {
        let Some(now) = self.shared.cgroups.values(pod).await else {
            let name = pod.display_name();
            return Err(format!("unable to get pod cgroup memory config for pod {name:?}"));
        };
        let wanted = self.wanted_values(pod, now);
        self.check_memory(pod, plan, (now, wanted)).await?;
        let old = self.shared.actuated.of(&self.uid);
        let mut walk = Walk { pod, runtime, old: &old, taken: Taken::new(), now, wanted };
        for (resource, updates) in [("memory", &plan.memory), ("cpu", &plan.cpu)] {
            // What the cgroup shows of a resource that nobody resizes may be rounded: that is no change.
            if updates.is_empty() && !plan.pod && !plan.pod_level {
                continue;
            }
            for side in [Side::Limits, Side::Requests] {
                self.pod_step(&mut walk, (side, resource), Way::Up).await?;
            }
            let mut with_containers = walk.taken.clone();
            with_containers.extend([(Side::Limits, resource), (Side::Requests, resource)]);
            let changed = staged(pod, &old, &with_containers);
            for update in updates {
                let Some(container) = find(&changed, &update.name) else { continue };
                let settings = &self.shared.config.request.resources;
                let quota = self.quota(pod, Some(container));
                let resources = settings.container(&changed, &with_request(container), quota);
                let id = update.id.as_str();
                self.shared.runtime.update_container(id, resources).await.map_err(|f| f.text)?;
                self.shared.actuated.record_container(&self.uid, container);
            }
            for side in [Side::Requests, Side::Limits] {
                self.pod_step(&mut walk, (side, resource), Way::Down).await?;
            }
        }
        self.shared.actuated.record_pod_level(&self.uid, pod);
        Ok(())
    }

    /// The values that the pod's cgroup should have; a limit that is not set stays as it is.
    fn wanted_values(&self, pod: &Pod, now: CgroupValues) -> CgroupValues {
        let settings = &self.shared.config.request.resources;
        let mut ask = pod_ask(pod, settings.pod_level_resources);
        ask.exclusive_cpus = self.quota(pod, None) == CpuQuota::Unlimited;
        let period = settings.cfs_period.map(|period| period.as_micros());
        let policy = PodLimitPolicy {
            cfs_quota: settings.cfs_period.is_some(),
            period_us: period.and_then(|us| u64::try_from(us).ok()).unwrap_or_default(),
            pids: 0,
        };
        let limits = pod_limits(&ask, &policy);
        let number = |value: Option<u64>| value.and_then(|value| i64::try_from(value).ok());
        CgroupValues {
            cpu_period: number(limits.cpu_period_us).filter(|us| *us > 0).unwrap_or(now.cpu_period),
            cpu_quota: limits.cpu_quota_us.unwrap_or(now.cpu_quota),
            cpu_shares: number(limits.cpu_shares).unwrap_or(now.cpu_shares),
            memory: limits.memory_bytes.unwrap_or(now.memory),
        }
    }

    /// Moves one field of the pod's own resources, if it moves that way: runtime first, then cgroup.
    async fn pod_step(
        &self,
        walk: &mut Walk<'_>,
        field: (Side, &'static str),
        way: Way,
    ) -> Result<(), String> {
        if walk.taken.contains(&field) {
            return Ok(());
        }
        let Some((after, actual)) = step(walk.now, walk.wanted, field) else {
            walk.taken.insert(field);
            return Ok(());
        };
        if actual != way {
            return Ok(());
        }
        walk.taken.insert(field);
        let stage = staged(walk.pod, walk.old, &walk.taken);
        self.tell_sandbox(walk, after).await.map_err(|error| {
            let resource = field.1;
            format!(
                "failed to notify runtime for UpdatePodSandboxResources (resource={resource}); \
                 resize rejected: {error}"
            )
        })?;
        if let Err(error) = self.shared.cgroups.resize(&stage).await {
            // The runtime should not believe what is not so.
            let _ = self.tell_sandbox(walk, walk.now).await;
            return Err(error.to_string());
        }
        walk.now = after;
        Ok(())
    }

    /// Refuses limits below what is used now (`kubelet: validateMemoryResizeAction`).
    async fn check_memory(
        &self,
        pod: &Pod,
        plan: &ResizePlan,
        (now, wanted): (CgroupValues, CgroupValues),
    ) -> Result<(), String> {
        if plan.memory.is_empty() && !plan.pod {
            return Ok(());
        }
        let lowered: Vec<&ContainerUpdate> =
            plan.memory.iter().filter(|update| lowers_memory(update)).collect();
        let lower = wanted.memory < now.memory;
        let pod_limit = u64::try_from(wanted.memory).ok().filter(|_| lower);
        if lowered.is_empty() && pod_limit.is_none() {
            return Ok(());
        }
        let Some(usage) = self.shared.cgroups.memory_usage(pod).await else {
            let name = pod.display_name();
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

    /// Lets the runtime know; one that does not have the call is fine.
    async fn tell_sandbox(&self, walk: &Walk<'_>, values: CgroupValues) -> Result<(), String> {
        let Some(sandbox) = walk.runtime.active_sandbox() else { return Ok(()) };
        let values = PodCgroupValues {
            cpu_period: Some(values.cpu_period),
            cpu_quota: Some(values.cpu_quota),
            cpu_shares: Some(values.cpu_shares),
            memory: Some(values.memory),
        };
        let settings = &self.shared.config.request.resources;
        let id = sandbox.id.as_str();
        let request = settings.update_sandbox(id, walk.pod, &values);
        match self.shared.runtime.update_sandbox(request).await {
            Err(fault) if !fault.unsupported => {
                let text = fault.text;
                Err(format!("updatePodSandboxResources failed for sanboxID {id:?}: {text}"))
            }
            _ => Ok(()),
        }
    }
}

/// How far a resize has come.
struct Walk<'a> {
    pod: &'a Pod,
    runtime: &'a RuntimePod,
    old: &'a Actuated,
    taken: Taken,
    now: CgroupValues,
    wanted: CgroupValues,
}

/// Where a value moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Up,
    Down,
}

/// The values after one field has moved, and which way it moves; nothing if it stays.
fn step(
    now: CgroupValues,
    wanted: CgroupValues,
    field: (Side, &str),
) -> Option<(CgroupValues, Way)> {
    let mut after = now;
    let (old, new) = match field {
        (Side::Limits, "cpu") => {
            (after.cpu_quota, after.cpu_period) = (wanted.cpu_quota, wanted.cpu_period);
            (now.cpu_quota, wanted.cpu_quota)
        }
        (Side::Limits, _) => {
            after.memory = wanted.memory;
            (now.memory, wanted.memory)
        }
        (Side::Requests, "cpu") => {
            after.cpu_shares = wanted.cpu_shares;
            (now.cpu_shares, wanted.cpu_shares)
        }
        // Memory requests are written nowhere.
        (Side::Requests, _) => return None,
    };
    // No quota at all is -1, so that a first one is more.
    (old != new).then_some((after, if new > old { Way::Up } else { Way::Down }))
}

/// The container with a request for CPU, if only of nothing: its shares never follow from its limit.
fn with_request(container: &Container) -> Container {
    let mut container = container.clone();
    let requests = container.resources.get_or_insert_default().requests.get_or_insert_default();
    requests.entry("cpu".to_owned()).or_insert_with(|| Quantity("0".to_owned()));
    container
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

    #[test]
    fn a_first_quota_is_more_and_one_that_is_not_wanted_stays() {
        let values = |cpu_quota, memory| CgroupValues {
            cpu_period: 100_000,
            cpu_quota,
            cpu_shares: 2,
            memory,
        };
        let way = |from, to, field| step(from, to, field);
        let (cpu, memory) = ((Side::Limits, "cpu"), (Side::Limits, "memory"));
        let (none, some) = (values(-1, i64::MAX), values(10_000, 1 << 20));
        assert_eq!(way(none, some, cpu), Some((values(10_000, i64::MAX), Way::Up)));
        assert_eq!(way(none, some, memory), Some((values(-1, 1 << 20), Way::Down)));
        assert_eq!(way(some, values(20_000, 1 << 20), cpu).unwrap().1, Way::Up);
        assert_eq!(way(some, some, cpu), None);
    }

    #[test]
    fn shares_of_a_container_without_a_request_do_not_follow_from_its_limit() {
        let container = Container {
            resources: serde_json::from_str(r#"{"limits":{"memory":"1Mi"}}"#).unwrap(),
            ..Container::default()
        };
        let requests = with_request(&container).resources.unwrap().requests.unwrap();
        assert_eq!(requests.get("cpu"), Some(&Quantity("0".to_owned())));
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
