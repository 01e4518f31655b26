//! The status that follows from what a worker saw.

use super::PodWorker;
use crate::shared::host_ips;
use api::core::v1::{Pod, PodStatus};
use engine::pod::life::Work;
use engine::runtime::RuntimePod;
use engine::status::{DEADLINE_MESSAGE, Generated, NodeFacts, StatusView, generate};
use futures::FutureExt;
use ports::EventSeverity;
use std::sync::Arc;

/// Whether the pod's containers may run again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Run {
    /// They may.
    Alive,
    /// All were stopped for good.
    Over,
    /// And so that the pod has failed.
    Evicted,
}

impl Run {
    /// How a pod that is stopped ends.
    pub(super) fn end_of(work: &Work) -> Run {
        match &work.status {
            Some(wish) if !wish.keep_succeeded => Run::Evicted,
            _ => Run::Over,
        }
    }
}

impl PodWorker {
    /// The status as of this view.
    pub(super) fn generate_status(
        &self,
        pod: &Arc<Pod>,
        mirror: Option<&Arc<Pod>>,
        runtime: &RuntimePod,
        run: Run,
    ) -> Generated {
        let shared = &self.shared;
        if run != Run::Alive {
            shared.resizes.over(&self.uid);
        }
        let old = shared.status.previous(pod, mirror);
        if !shared.status.is_own(&self.uid, mirror) {
            shared.prober.adopt(&old);
        }
        let probes = shared.prober.results(runtime, Some(&old));
        let actuated = shared.actuated.of(&self.uid);
        let node = NodeFacts {
            runtime_name: shared.config.runtime_name.clone(),
            host_ips: if shared.has_api {
                let ips = host_ips(&shared.node.borrow());
                ips.iter().filter_map(|ip| ip.parse().ok()).collect()
            } else {
                Vec::new()
            },
            ipv6_first: shared.config.node_ips.first().is_some_and(|ip| ip.is_ipv6()),
            recursive_read_only: self.mounts_recursively_read_only(pod, runtime),
        };
        let generated = generate(
            &StatusView {
                pod,
                runtime,
                old: &old,
                probes: &probes,
                start_errors: &self.faults,
                actuated: &actuated,
                cgroup: None,
                resize: &shared.resizes.conditions(&self.uid),
                health: &shared.placement.health(pod),
                terminal: run != Run::Alive,
                evicted: run == Run::Evicted,
                node: &node,
                gates: &shared.config.status_gates,
            },
            shared.clock.now(),
        );
        if generated.deadline_exceeded {
            self.emit(pod, EventSeverity::Normal, "DeadlineExceeded", DEADLINE_MESSAGE.to_owned());
        }
        for id in &generated.probe_now {
            shared.prober.probe_now(&self.uid, id);
        }
        generated
    }

    /// Whether the runtime handler that the pod has, or will have, can mount recursively read-only. A class that
    /// nobody knows yet cannot: a status does not wait for it.
    fn mounts_recursively_read_only(&self, pod: &Pod, runtime: &RuntimePod) -> bool {
        let by_class = || self.runtime_handler(pod).now_or_never()?.ok();
        let by_sandbox = runtime.newest_sandbox().map(|sandbox| sandbox.runtime_handler.clone());
        let handler = by_sandbox.or_else(by_class);
        handler.is_some_and(|handler| self.shared.recursive_read_only(&handler))
    }

    /// Hands a status to the publisher.
    pub(super) fn publish(&self, work: &Work, status: PodStatus) {
        self.shared.status.set(&work.pod, work.mirror.as_ref(), status);
    }
}
