//! Applying changed resources without a restart.
//!
//! Promises: memory before CPU; a limit is never set below what the pod uses now; every applied step
//! is recorded, so that a crash half-way goes on where it stopped.

use super::PodWorker;
use api::core::v1::{Container, Pod};
use engine::pod::{ContainerUpdate, ResizePlan};
use engine::request::resources::CpuQuota;
use engine::runtime::RuntimePod;
use std::sync::Arc;

impl PodWorker {
    /// Walks a resize plan; an error is the text of `ResizeError`.
    pub(super) async fn resize(
        &mut self,
        pod: &Arc<Pod>,
        runtime: &RuntimePod,
        plan: &ResizePlan,
    ) -> Result<(), String> {
        let result = self.try_resize(pod, runtime, plan).await;
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
        self.check_memory(pod, plan).await?;
        let pod_first = !plan.memory.iter().chain(&plan.cpu).all(shrink);
        if pod_first {
            self.resize_pod(pod).await?;
        }
        for update in plan.memory.iter().chain(&plan.cpu) {
            let Some(container) = find(pod, &update.name) else { continue };
            let settings = &self.shared.config.request.resources;
            let resources = settings.container(pod, container, CpuQuota::Enforced);
            let id = update.id.as_str();
            self.shared.runtime.update_container(id, resources).await.map_err(|f| f.text)?;
            self.shared.actuated.record_container(&self.uid, container);
        }
        if !pod_first {
            self.resize_pod(pod).await?;
        }
        if plan.pod_level {
            self.shared.actuated.record_pod_level(&self.uid, pod);
        }
        self.tell_sandbox(pod, runtime).await;
        Ok(())
    }

    async fn resize_pod(&self, pod: &Pod) -> Result<(), String> {
        self.shared.cgroups.resize(pod).await.map_err(|error| error.to_string())
    }

    async fn check_memory(&self, pod: &Pod, plan: &ResizePlan) -> Result<(), String> {
        let lowered: Vec<&ContainerUpdate> =
            plan.memory.iter().filter(|update| lowers_memory(update)).collect();
        if lowered.is_empty() {
            return Ok(());
        }
        let Some(usage) = self.shared.cgroups.memory_usage(pod).await else {
            let name = crate::shared::format_pod(pod);
            return Err(format!("unable to read memory usage for pod {name:?}"));
        };
        let faults: Vec<String> = lowered
            .into_iter()
            .filter(|u| u64::try_from(u.desired.memory_limit).is_ok_and(|limit| limit <= usage))
            .map(|u| {
                format!(
                    "attempting to set container {:?} memory limit ({}) below current usage ({usage})",
                    u.name, u.desired.memory_limit
                )
            })
            .collect();
        match faults.as_slice() {
            [] => Ok(()),
            [one] => Err(format!("cannot decrease memory limits: {one}")),
            many => Err(format!("cannot decrease memory limits: [{}]", many.join(", "))),
        }
    }

    /// Lets the runtime know; one that does not want to know is fine.
    async fn tell_sandbox(&self, pod: &Pod, runtime: &RuntimePod) {
        let Some(sandbox) = runtime.active_sandbox() else { return };
        let settings = &self.shared.config.request.resources;
        let resources = settings.sandbox(pod, CpuQuota::Enforced);
        let request = proto::cri_v1::UpdatePodSandboxResourcesRequest {
            pod_sandbox_id: sandbox.id.to_string(),
            overhead: Some(settings.overhead(pod)),
            resources: Some(resources),
        };
        if let Err(fault) = self.shared.runtime.update_sandbox(request).await {
            tracing::debug!(podUID = %self.uid, err = %fault, "sandbox was not told about resources");
        }
    }
}

fn lowers_memory(update: &ContainerUpdate) -> bool {
    let (now, then) = (update.desired.memory_limit, update.current.memory_limit);
    now > 0 && (then == 0 || now < then)
}

fn shrink(update: &ContainerUpdate) -> bool {
    let (now, then) = (update.desired, update.current);
    now.cpu_limit_milli <= then.cpu_limit_milli
        && now.memory_limit <= then.memory_limit
        && now.cpu_request_milli <= then.cpu_request_milli
}

fn find<'a>(pod: &'a Pod, name: &str) -> Option<&'a Container> {
    let spec = pod.spec.as_ref()?;
    spec.containers.iter().chain(spec.init_containers.iter().flatten()).find(|c| c.name == name)
}
