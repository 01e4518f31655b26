//! The order in which providers are asked, and the message of a refusal.

use super::*;
use engine::topology::{Numa, NumaMask};
use std::collections::BTreeMap;
use std::sync::Mutex;
use telemetry::metrics::Registry;

/// Offers one fixed NUMA node and records its calls.
#[derive(Debug)]
struct Told {
    node: u32,
    refusal: Option<AllocateError>,
    heard: Arc<Mutex<Vec<String>>>,
}

impl Told {
    fn note(&self, text: String) {
        self.heard.lock().unwrap().push(format!("{}:{text}", self.node));
    }

    fn offered(&self) -> ResourceHints {
        let hint = Hint::new(NumaMask::of([self.node]), true);
        BTreeMap::from([("thing".to_owned(), Some(vec![hint]))])
    }
}

#[async_trait]
impl Provider for Told {
    async fn forget_all_but(&self, active: &BTreeSet<PodUid>) {
        self.note(format!("keep {}", active.len()));
    }
    async fn hints(&self, _pod: &Arc<Pod>, container: &Container) -> ResourceHints {
        self.note(format!("hints {}", container.name));
        self.offered()
    }
    async fn pod_hints(&self, _pod: &Arc<Pod>) -> ResourceHints {
        self.note("hints".to_owned());
        self.offered()
    }
    async fn allocate(
        &self,
        _pod: &Arc<Pod>,
        container: &Container,
        affinity: Hint,
    ) -> Result<(), AllocateError> {
        let mask = affinity.affinity.map_or("nil".to_owned(), |mask| mask.to_string());
        self.note(format!("allocate {} {mask}", container.name));
        self.refusal.clone().map_or(Ok(()), Err)
    }
}

fn pod() -> Arc<Pod> {
    Arc::new(
        serde_json::from_value(serde_json::json!({
            "metadata": {"uid": "u", "name": "p"},
            "spec": {"initContainers": [{"name": "i"}], "containers": [{"name": "a"}]},
        }))
        .unwrap(),
    )
}

struct Case {
    kind: PolicyKind,
    scope: Scope,
    nodes: [u32; 2],
    refusal: Option<AllocateError>,
}

async fn admitted(case: Case) -> (Result<(), PlacementRejection>, Vec<String>, Registry) {
    let heard = Arc::new(Mutex::new(Vec::new()));
    let one = |node| Told { node, refusal: case.refusal.clone(), heard: Arc::clone(&heard) };
    let providers: Vec<Arc<dyn Provider>> = case.nodes.map(|n| Arc::new(one(n)) as _).into();
    let numa = Numa { distances: BTreeMap::from([(0, vec![10, 20]), (1, vec![20, 10])]) };
    let policy = Policy::new(case.kind, numa, &BTreeMap::new()).unwrap();
    let config = PlacementConfig { policy, scope: case.scope, pod_level: false, lifts_quota: None };
    let registry = Registry::new();
    let placed = Placed::new(config, providers, PlacementMetrics::new(&registry));
    let active = ActivePods { others: &[], complete: true };
    let verdict = placed.admit(&pod(), active).await.map_err(|not_placed| match not_placed {
        NotPlaced::Refused(refusal) => refusal,
        NotPlaced::Waits(what) => panic!("waits for {what}"),
    });
    let heard = heard.lock().unwrap().clone();
    (verdict, heard, registry)
}

#[tokio::test]
async fn without_a_policy_providers_only_allocate() {
    let case =
        Case { kind: PolicyKind::None, scope: Scope::Container, nodes: [0, 1], refusal: None };
    let (verdict, heard, _) = admitted(case).await;
    assert_eq!(verdict, Ok(()));
    let allocations: [&str; 6] = [
        "0:keep 1",
        "1:keep 1",
        "0:allocate i nil",
        "1:allocate i nil",
        "0:allocate a nil",
        "1:allocate a nil",
    ];
    assert_eq!(heard, allocations);
}

#[tokio::test]
async fn container_scope_merges_per_container_and_pod_scope_once() {
    let case = |scope| Case { kind: PolicyKind::Restricted, scope, nodes: [1, 1], refusal: None };
    let (verdict, heard, _) = admitted(case(Scope::Container)).await;
    assert_eq!(verdict, Ok(()));
    let per_container: [&str; 10] = [
        "1:keep 1",
        "1:keep 1",
        "1:hints i",
        "1:hints i",
        "1:allocate i 10",
        "1:allocate i 10",
        "1:hints a",
        "1:hints a",
        "1:allocate a 10",
        "1:allocate a 10",
    ];
    assert_eq!(heard, per_container);
    let (verdict, heard, _) = admitted(case(Scope::Pod)).await;
    assert_eq!(verdict, Ok(()));
    let once: [&str; 8] = [
        "1:keep 1",
        "1:keep 1",
        "1:hints",
        "1:hints",
        "1:allocate i 10",
        "1:allocate i 10",
        "1:allocate a 10",
        "1:allocate a 10",
    ];
    assert_eq!(heard, once);
}

#[tokio::test]
async fn a_pod_that_cannot_be_aligned_is_refused_before_anything_is_allocated() {
    let case = Case {
        kind: PolicyKind::SingleNumaNode,
        scope: Scope::Container,
        nodes: [0, 1],
        refusal: None,
    };
    let (verdict, heard, registry) = admitted(case).await;
    let refusal = verdict.unwrap_err();
    assert_eq!(refusal.reason, "TopologyAffinityError");
    assert_eq!(refusal.message, "Resources cannot be allocated with Topology locality");
    assert!(!heard.iter().any(|line| line.contains("allocate")));
    let shown = registry.render();
    for line in [
        "kubelet_topology_manager_admission_requests_total 1",
        "kubelet_topology_manager_admission_errors_total 1",
        r#"kubelet_container_aligned_compute_resources_failure_count{boundary="numa_node",scope="container"} 1"#,
        r#"kubelet_container_aligned_compute_resources_count{boundary="numa_node",scope="pod"} 0"#,
    ] {
        assert!(shown.contains(line), "{line} is missing in\n{shown}");
    }
}

#[tokio::test]
async fn a_failed_allocation_is_refused_in_upstreams_words() {
    let refused = |refusal| Case {
        kind: PolicyKind::None,
        scope: Scope::Container,
        nodes: [0, 1],
        refusal: Some(refusal),
    };
    let (verdict, ..) = admitted(refused(AllocateError::Failed("no luck".into()))).await;
    let refusal = verdict.unwrap_err();
    assert_eq!(refusal.reason, "UnexpectedAdmissionError");
    assert_eq!(refusal.message, "Allocate failed due to no luck, which is unexpected");
    let own = AllocateError::Refused { reason: "SMTAlignmentError", message: "odd".into() };
    let (verdict, ..) = admitted(refused(own)).await;
    let refusal = verdict.unwrap_err();
    assert_eq!((refusal.reason.as_str(), refusal.message.as_str()), ("SMTAlignmentError", "odd"));
}
