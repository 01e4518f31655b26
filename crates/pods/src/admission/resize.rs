//! Resizes: which wait, which are carried out, and what is told about them.
//!
//! Promises: the two resize conditions of a pod change only here; an event is posted when something an
//! operator can see changed, not at every try.

use crate::metrics::resize::{ResizeMetrics, RetryTrigger};
use api::core::v1::{Container, Pod, PodCondition, ResourceClaim};
use api::ids::PodUid;
use api::machinery::api::resource::Quantity;
use api::pod::PodExt;
use engine::admission::Rejection;
use engine::admission::resize::{INFEASIBLE, infeasible_detail};
use engine::status::resize::{PendingReason, ResizeConditions};
use ports::{Clock, EventSeverity, EventTarget, Events, NodeEvent};
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// Resize conditions of all pods. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Resizes {
    by_pod: Arc<Mutex<BTreeMap<PodUid, ResizeConditions>>>,
    clock: Arc<dyn Clock>,
    events: Arc<dyn Events>,
    metrics: ResizeMetrics,
}

/// What an event tells about a resize.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Told<'a> {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    init_containers: Vec<ToldContainer<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    containers: Vec<ToldContainer<'a>>,
    generation: i64,
    #[serde(skip_serializing_if = "str::is_empty")]
    error: &'a str,
}

#[derive(Debug, Serialize)]
struct ToldContainer<'a> {
    name: &'a str,
    resources: ToldResources<'a>,
}

/// Resources with their fields in the order of Go's type.
#[derive(Debug, Default, Serialize)]
struct ToldResources<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    limits: Option<&'a BTreeMap<String, Quantity>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    requests: Option<&'a BTreeMap<String, Quantity>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    claims: Option<&'a Vec<ResourceClaim>>,
}

impl<'a> ToldContainer<'a> {
    fn of(container: &'a Container) -> Self {
        let resources = container.resources.as_ref().map(|own| ToldResources {
            limits: own.limits.as_ref(),
            requests: own.requests.as_ref(),
            claims: own.claims.as_ref(),
        });
        Self { name: &container.name, resources: resources.unwrap_or_default() }
    }
}

/// What a pod asks for, byte for byte as Go writes it.
fn summary(pod: &Pod, error: &str) -> String {
    let spec = pod.spec.as_ref();
    let init = spec.into_iter().flat_map(|spec| spec.init_containers.iter().flatten());
    let regular = spec.into_iter().flat_map(|spec| &spec.containers);
    let told = Told {
        init_containers: init.map(ToldContainer::of).collect(),
        containers: regular.map(ToldContainer::of).collect(),
        generation: pod.metadata.generation.unwrap_or_default(),
        error,
    };
    units::gojson::to_string(&told).unwrap_or_default()
}

impl Resizes {
    pub(crate) fn new(
        clock: Arc<dyn Clock>,
        events: Arc<dyn Events>,
        metrics: ResizeMetrics,
    ) -> Self {
        Self { by_pod: Arc::default(), clock, events, metrics }
    }

    /// The conditions in force.
    pub(crate) fn conditions(&self, uid: &PodUid) -> Vec<PodCondition> {
        self.read(uid, ResizeConditions::list)
    }

    /// Since when a resize waits.
    pub(crate) fn pending_since(&self, uid: &PodUid) -> Option<jiff::Timestamp> {
        self.read(uid, ResizeConditions::pending_since)
    }

    /// Whether a granted resize is not known to be over.
    pub(crate) fn is_under_way(&self, uid: &PodUid) -> bool {
        self.read(uid, ResizeConditions::is_in_progress)
    }

    /// Takes over the conditions that the API has of a pod that is new to us.
    pub(crate) fn seed(&self, pod: &Pod) {
        let Some(status) = &pod.status else { return };
        let conditions = ResizeConditions::from_status(status, self.clock.now());
        if let Ok(mut all) = self.by_pod.lock() {
            all.entry(pod.uid()).or_insert(conditions);
        }
    }

    /// The wish is what the pod has.
    pub(crate) fn settled(&self, uid: &PodUid) {
        self.with(uid, ResizeConditions::clear_pending);
    }

    /// The wish was accepted and will be carried out.
    pub(crate) fn accepted(&self, pod: &Arc<Pod>, trigger: RetryTrigger) {
        let (generation, now) = (pod.metadata.generation, self.clock.now());
        let had_waited =
            |c: &ResizeConditions| c.pending_reason() == Some(PendingReason::Deferred.as_str());
        if self.read(&pod.uid(), had_waited) {
            self.metrics.accepted_at_last(trigger);
        }
        self.with(&pod.uid(), |conditions| {
            conditions.clear_pending();
            conditions.clear_in_progress();
            conditions.set_in_progress(None, generation, now);
        });
        self.tell(pod, EventSeverity::Normal, "ResizeStarted", "Pod resize started", "");
    }

    /// The wish must wait, or can never be granted here; says whether it stays in the queue.
    pub(crate) fn refused(&self, pod: &Arc<Pod>, refusal: &Rejection) -> bool {
        let infeasible = refusal.reason == INFEASIBLE;
        if let Some(detail) = infeasible_detail(refusal) {
            self.metrics.infeasible(detail);
        }
        let (reason, event) = if infeasible {
            (PendingReason::Infeasible, "ResizeInfeasible")
        } else {
            (PendingReason::Deferred, "ResizeDeferred")
        };
        let (generation, now) = (pod.metadata.generation, self.clock.now());
        let due = self.with(&pod.uid(), |conditions| {
            conditions.set_pending(reason, &refusal.message, generation, now)
        });
        if due {
            let prefix = format!("Pod resize {}", refusal.reason);
            self.tell(pod, EventSeverity::Warning, event, &prefix, &refusal.message);
        }
        !infeasible
    }

    /// What the runtime has differs from what was granted; an error says why it still does.
    pub(crate) fn actuated(&self, pod: &Arc<Pod>, result: &Result<(), String>) {
        let (generation, now) = (pod.metadata.generation, self.clock.now());
        let error = result.as_ref().err().map(String::as_str);
        let changed =
            self.with(&pod.uid(), |conditions| conditions.set_in_progress(error, generation, now));
        if let (true, Some(error)) = (changed, error) {
            self.tell(pod, EventSeverity::Warning, "ResizeError", "Pod resize error", error);
        }
    }

    /// The runtime has what was granted; says whether that is news.
    pub(crate) fn completed(&self, pod: &Arc<Pod>) -> bool {
        let uid = pod.uid();
        let generation = self.read(&uid, ResizeConditions::in_progress_generation);
        let news = self.with(&uid, ResizeConditions::clear_in_progress);
        if news {
            let mut told = (**pod).clone();
            told.metadata.generation = generation.or(told.metadata.generation);
            let told = Arc::new(told);
            let text = "Pod resize completed";
            self.tell(&told, EventSeverity::Normal, "ResizeCompleted", text, "");
        }
        news
    }

    /// The pod's containers have stopped for good: nothing waits or is under way any more.
    pub(crate) fn over(&self, uid: &PodUid) {
        if self.read(uid, |conditions| !conditions.list().is_empty()) {
            self.with(uid, |conditions| *conditions = ResizeConditions::default());
        }
    }

    /// Keeps the conditions of these pods.
    pub(crate) fn retain(&self, keep: impl Fn(&PodUid) -> bool) {
        if let Ok(mut all) = self.by_pod.lock() {
            all.retain(|uid, _| keep(uid));
            self.metrics.show(all.values());
        }
    }

    fn read<T: Default>(&self, uid: &PodUid, question: impl FnOnce(&ResizeConditions) -> T) -> T {
        let all = self.by_pod.lock();
        all.ok().and_then(|all| all.get(uid).map(question)).unwrap_or_default()
    }

    fn with<T: Default>(&self, uid: &PodUid, change: impl FnOnce(&mut ResizeConditions) -> T) -> T {
        match self.by_pod.lock() {
            Ok(mut all) => {
                let answer = change(all.entry(uid.clone()).or_default());
                self.metrics.show(all.values());
                answer
            }
            Err(_) => T::default(),
        }
    }

    fn tell(
        &self,
        pod: &Arc<Pod>,
        severity: EventSeverity,
        reason: &'static str,
        prefix: &str,
        error: &str,
    ) {
        let details = summary(pod, error);
        self.events.emit(NodeEvent {
            target: EventTarget::Pod { pod: Arc::clone(pod), field_path: None },
            severity,
            reason,
            message: format!("{prefix}: {details}"),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_resize_is_told_in_the_order_and_with_the_escapes_of_go() {
        let resources = serde_json::json!({ "requests": { "memory": "1Mi", "cpu": "1m" },
            "claims": [{ "name": "gpu" }], "limits": { "cpu": "2m" } });
        let pod: Pod = serde_json::from_value(serde_json::json!({
            "metadata": { "generation": 3 },
            "spec": {
                "initContainers": [{ "name": "i" }],
                "containers": [{ "name": "a", "resources": resources }],
            },
        }))
        .unwrap();
        assert_eq!(
            summary(&pod, "1 < 2 & \"3\""),
            concat!(
                r#"{"initContainers":[{"name":"i","resources":{}}],"containers":[{"name":"a","#,
                r#""resources":{"limits":{"cpu":"2m"},"requests":{"cpu":"1m","memory":"1Mi"},"#,
                r#""claims":[{"name":"gpu"}]}}],"generation":3,"error":"1 \u003c 2 \u0026 \"3\""}"#,
            )
        );
        assert!(!summary(&Pod::default(), "").contains("error"));
    }
}
