//! The state file, allocations, and errors at start.

use super::*;
use engine::memory::NodeFacts;
use serde_json::json;
use std::collections::BTreeMap;
use std::path::PathBuf;
use telemetry::metrics::Registry;

struct Dir(PathBuf);

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = sys::fs::remove_file(self.0.join("memory_manager_state"));
        let _ = sys::fs::remove_dir(&self.0);
    }
}

fn start(dir: &Dir, policy: MemoryPolicy, registry: &Registry) -> Result<Memory, String> {
    let metrics = PlacementMetrics::new(registry).with_sources(registry);
    Memory::start(policy, (&dir.0, Entries::Containers), metrics).map_err(|e| e.to_string())
}

fn two_nodes() -> MemoryPolicy {
    let node = |id| NodeFacts { id, memory: 8 << 30, huge_pages: Vec::new() };
    let kept = |id| (id, BTreeMap::from([("memory".to_owned(), 1 << 30)]));
    MemoryPolicy::Static(MemorySetup {
        nodes: vec![node(0), node(1)],
        reserved: [kept(0), kept(1)].into(),
        pod_level_resources: true,
        pod_level_managers: false,
    })
}

fn pod(uid: &str, memory: &str) -> Arc<Pod> {
    let amounts = json!({"cpu": "1", "memory": memory});
    let container = json!({"resources": {"requests": amounts, "limits": amounts}});
    let named = |name: &str| {
        let mut container = container.clone();
        container["name"] = json!(name);
        container
    };
    Arc::new(
        serde_json::from_value(json!({
            "metadata": {"uid": uid, "name": uid},
            "spec": {"initContainers": [named("i")], "containers": [named("a")]},
        }))
        .unwrap(),
    )
}

#[tokio::test]
async fn memory_is_given_remembered_and_taken_back() {
    let path = std::env::temp_dir().join(format!("rubelet-memory-{}", std::process::id()));
    sys::fs::create_dir_all(&path, 0o755).unwrap();
    let (dir, registry) = (Dir(path), Registry::new());
    let memory = start(&dir, two_nodes(), &registry).unwrap();
    let large = pod("p", "10Gi");
    let spec = large.spec.as_ref().unwrap();
    let (init, regular) = (&spec.init_containers.as_ref().unwrap()[0], &spec.containers[0]);
    for container in [init, regular] {
        memory.allocate(&large, container, Hint::default()).await.unwrap();
    }
    let mut extras = ContainerExtras::default();
    memory.extras(&large, regular, &mut extras).await.unwrap();
    assert_eq!(extras.cpuset_mems, "0,1");
    memory.created(&large, regular, "id").await.unwrap();
    let again = start(&dir, two_nodes(), &registry).unwrap();
    assert!(again.own("p", "i").is_empty(), "the init container has ended");
    assert_eq!(again.own("p", "a")[0].nodes, [0, 1]);
    assert_eq!(again.allocatable().len(), 2);
    let much = pod("q", "20Gi");
    let refused =
        again.allocate(&much, &much.spec.as_ref().unwrap().containers[0], Hint::default());
    assert_eq!(
        refused.await.unwrap_err(),
        AllocateError::Failed(
            "[memorymanager] failed to get the default NUMA affinity, no NUMA nodes with enough memory is available".into()
        )
    );
    let shown = registry.render();
    assert!(shown.contains("kubelet_memory_manager_pinning_requests_total 3"), "{shown}");
    assert!(shown.contains("kubelet_memory_manager_pinning_errors_total 1"), "{shown}");
    for line in [
        "resource_manager_allocations_total{resource_name=\"memory\",source=\"node\"} 2\n",
        "resource_manager_allocation_errors_total{resource_name=\"memory\",source=\"node\"} 1\n",
        "resource_manager_container_assignments{assignment_type=\"node_exclusive\",resource_name=\"memory\"} 2\n",
    ] {
        assert!(shown.contains(line), "{shown}");
    }
    again.forget_all_but(&BTreeSet::new()).await;
    assert!(again.own("p", "a").is_empty());
    let error = start(&dir, MemoryPolicy::None, &registry).unwrap_err();
    assert!(
        error.starts_with(
            "start memory manager error: could not restore state from checkpoint: [memorymanager] \
             configured policy \"None\" differs from state checkpoint policy \"Static\", please drain"
        ),
        "{error}"
    );
}
