//! The state file, updates of running containers, and errors at start.

use super::*;
use crate::placement::Provider;
use api::pod::PodExt;
use engine::cpus::{CpuInfo, CpuOptions, CpuTopology};
use engine::topology::PolicyKind;
use ports::{PodEntry, PodLife, PodSource, PodsSnapshot};
use serde_json::json;
use std::path::PathBuf;
use telemetry::metrics::Registry;

struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("rubelet-cpus-{name}-{}", std::process::id()));
        sys::fs::create_dir_all(&path, 0o755).unwrap();
        Self(path)
    }

    fn file(&self) -> PathBuf {
        self.0.join("cpu_manager_state")
    }

    fn text(&self) -> String {
        sys::fs::read_to_string(self.file()).unwrap()
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = sys::fs::remove_file(self.file());
        let _ = sys::fs::remove_dir(&self.0);
    }
}

/// Four CPUs of one node; CPU 0 is reserved.
fn policy() -> CpuPolicy {
    let info = |cpu: u32| CpuInfo { numa: 0, socket: 0, core: i64::from(cpu), uncore: 0 };
    let topology =
        CpuTopology { cpus: (0..4).map(|cpu| (cpu, info(cpu))).collect(), cores: 4, sockets: 1 };
    CpuPolicy::Static(Box::new(CpuSetup {
        topology,
        options: Ok(CpuOptions::default()),
        reserved_milli: Some(1000),
        reserved: CpuSet::new(),
        policy: PolicyKind::None,
        pod_level_resources: true,
        pod_level_managers: false,
    }))
}

fn start(dir: &Dir, policy: CpuPolicy, registry: &Registry) -> Result<Cpus, String> {
    Cpus::start(
        policy,
        (&dir.0, Entries::Containers),
        &KnownContainers::new(),
        PlacementMetrics::new(registry),
    )
    .map_err(|error| error.to_string())
}

fn pod(uid: &str, cpu: &str) -> Arc<Pod> {
    let amounts = json!({"cpu": cpu, "memory": "1Mi"});
    Arc::new(
        serde_json::from_value(json!({
            "metadata": {"uid": uid, "name": uid},
            "spec": {"containers": [
                {"name": "a", "resources": {"requests": amounts, "limits": amounts}},
            ]},
        }))
        .unwrap(),
    )
}

async fn place(cpus: &Cpus, pod: &Arc<Pod>) -> Result<String, AllocateError> {
    let container = &pod.spec.as_ref().unwrap().containers[0];
    cpus.allocate(pod, container, Hint::default()).await?;
    let mut extras = ContainerExtras::default();
    cpus.extras(pod, container, &mut extras).await.unwrap();
    cpus.created(pod, container, "id").await.unwrap();
    Ok(extras.cpuset_cpus)
}

#[tokio::test]
async fn an_allocation_is_on_disk_and_survives_a_restart() {
    let (dir, registry) = (Dir::new("restart"), Registry::new());
    let cpus = start(&dir, policy(), &registry).unwrap();
    assert_eq!(dir.text(), r#"{"policyName":"static","defaultCpuSet":"0-3","checksum":611748604}"#);
    assert!(!registry.render().contains("allocation_per_numa{"), "nobody has had any");
    assert_eq!(place(&cpus, &pod("own", "2")).await.unwrap(), "1-2");
    assert_eq!(place(&cpus, &pod("shared", "100m")).await.unwrap(), "0,3");
    let before = dir.text();
    assert!(before.contains(r#""entries":{"own":{"a":"1-2"}}"#), "{before}");
    let again = start(&dir, policy(), &registry).unwrap();
    assert_eq!(dir.text(), before);
    assert_eq!(place(&again, &pod("own", "2")).await.unwrap(), "1-2");
    assert_eq!(
        (again.own("own", "a").to_string(), again.allocatable().to_string()),
        ("1-2".into(), "1-3".into())
    );
    assert_eq!(again.exclusive_of(&pod("own", "2")).len(), 1);
    let refused = place(&again, &pod("more", "2")).await.unwrap_err();
    assert_eq!(
        refused,
        AllocateError::Failed(
            "not enough cpus available to satisfy request: requested=2, available=1".into()
        )
    );
    let shown = registry.render();
    for line in [
        "kubelet_cpu_manager_pinning_requests_total 3",
        "kubelet_cpu_manager_pinning_errors_total 1",
        "kubelet_cpu_manager_shared_pool_size_millicores 1000",
        "kubelet_cpu_manager_exclusive_cpu_allocation_count 2",
        r#"kubelet_cpu_manager_allocation_per_numa{numa_node="0"} 2"#,
        r#"kubelet_container_aligned_compute_resources_count{boundary="uncore_cache",scope="container"} 1"#,
    ] {
        assert!(shown.contains(line), "{line} is missing in\n{shown}");
    }
    again.forget_all_but(&BTreeSet::new()).await;
    assert_eq!(dir.text(), r#"{"policyName":"static","defaultCpuSet":"0-3","checksum":611748604}"#);
    assert!(registry.render().contains(r#"allocation_per_numa{numa_node="0"} 0"#));
}

#[tokio::test]
async fn a_file_of_another_policy_or_machine_stops_the_start_and_stays() {
    let (dir, registry) = (Dir::new("refused"), Registry::new());
    start(&dir, CpuPolicy::None, &registry).unwrap();
    let text = dir.text();
    let error = start(&dir, policy(), &registry).unwrap_err();
    assert_eq!(
        error,
        format!(
            "start cpu manager error: could not restore state from checkpoint: configured policy \"static\" \
             differs from state checkpoint policy \"none\", please drain this node and delete the CPU \
             manager checkpoint file {:?} before restarting Kubelet",
            dir.file()
        )
    );
    assert_eq!(dir.text(), text);
    let larger = r#"{"policyName":"static","defaultCpuSet":"0-7","checksum":0}"#;
    sys::fs::write(dir.file(), larger).unwrap();
    assert_eq!(
        start(&dir, policy(), &registry).unwrap_err(),
        r#"start cpu manager error: current set of available CPUs "0-3" doesn't match with CPUs in state "0-7""#
    );
}

#[tokio::test]
async fn a_file_that_says_it_all_is_left_as_it_is() {
    let (dir, registry) = (Dir::new("left"), Registry::new());
    let good = r#"{"policyName":"static","defaultCpuSet":"0-3","checksum":0}"#;
    sys::fs::write(dir.file(), good).unwrap();
    start(&dir, policy(), &registry).unwrap();
    assert_eq!(dir.text(), good);
    let begun = r#"{"policyName":"static"}"#;
    sys::fs::write(dir.file(), begun).unwrap();
    start(&dir, policy(), &registry).unwrap();
    assert!(dir.text().contains(r#""defaultCpuSet":"0-3""#), "{}", dir.text());
}

/// Records the updates; refuses one container.
#[derive(Debug, Default)]
struct RecordedUpdates(Mutex<Vec<(String, String)>>);

#[async_trait]
impl ContainerCpus for RecordedUpdates {
    async fn set_cpus(&self, id: &str, cpus: &str) -> Result<(), String> {
        if id == "broken" {
            return Err("no".to_owned());
        }
        self.0.lock().unwrap().push((id.to_owned(), cpus.to_owned()));
        Ok(())
    }
}

fn running(pod: &Arc<Pod>, id: &str, life: PodLife) -> (PodUid, PodEntry) {
    let status = json!({"containerStatuses": [{
        "name": "a", "containerID": format!("containerd://{id}"), "image": "", "imageID": "",
        "ready": true, "restartCount": 0, "state": {"running": {}},
    }]});
    let entry = PodEntry {
        pod: Arc::clone(pod),
        given: Some(Arc::clone(pod)),
        source: PodSource::File,
        mirror: None,
        life,
        status: Some(Arc::new(serde_json::from_value(status).unwrap())),
        evicted: false,
    };
    (pod.uid(), entry)
}

#[tokio::test]
async fn running_containers_follow_the_shared_cpus_and_are_told_once() {
    let (dir, registry) = (Dir::new("reconcile"), Registry::new());
    let cpus = start(&dir, policy(), &registry).unwrap();
    let (own, shared, broken) = (pod("own", "2"), pod("shared", "100m"), pod("broken", "100m"));
    place(&cpus, &own).await.unwrap();
    let updates = RecordedUpdates::default();
    let look = |pods: Vec<(PodUid, PodEntry)>, sources_ready| PodsSnapshot {
        pods: Arc::new(pods.into_iter().collect()),
        sources_ready,
    };
    let all = || {
        vec![
            running(&own, "o", PodLife::Syncing),
            running(&shared, "s", PodLife::Syncing),
            running(&broken, "broken", PodLife::Syncing),
        ]
    };
    // A snapshot from before the pod was admitted does not release its CPUs.
    cpus.reconcile(&look(Vec::new(), true), &updates).await;
    assert_eq!(cpus.own("own", "a").to_string(), "1-2");
    cpus.reconcile(&look(all(), true), &updates).await;
    cpus.reconcile(&look(all(), true), &updates).await;
    // The exclusive one was created on its CPUs.
    assert_eq!(*updates.0.lock().unwrap(), [("s".to_owned(), "0,3".to_owned())]);
    // Not all sources are ready: a missing pod may only be late.
    cpus.reconcile(&look(vec![running(&shared, "s", PodLife::Syncing)], false), &updates).await;
    assert_eq!(cpus.own("own", "a").to_string(), "1-2");
    let mut ended = all();
    ended[0].1.life = PodLife::Terminated;
    cpus.reconcile(&look(ended, true), &updates).await;
    assert!(cpus.own("own", "a").is_empty());
    assert_eq!(updates.0.lock().unwrap().last(), Some(&("s".to_owned(), "0-3".to_owned())));
}

#[tokio::test]
async fn cpus_of_a_whole_pod_are_on_disk_counted_and_kept() {
    let (dir, registry) = (Dir::new("whole"), Registry::new());
    let begin = || {
        let CpuPolicy::Static(mut setup) = policy() else { panic!("the policy is static") };
        setup.pod_level_managers = true;
        let metrics = PlacementMetrics::new(&registry).with_sources(&registry);
        let place = (dir.0.as_path(), Entries::Pods);
        Cpus::start(CpuPolicy::Static(setup), place, &KnownContainers::new(), metrics).unwrap()
    };
    let (whole, own) = (json!({"cpu": "3", "memory": "1Gi"}), json!({"cpu": "1", "memory": "1Mi"}));
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"uid": "u", "name": "u"},
        "spec": {
            "resources": {"requests": whole, "limits": whole},
            "containers": [
                {"name": "own", "resources": {"requests": own, "limits": own}},
                {"name": "shares"},
            ],
        },
    }))
    .unwrap();
    let pod = Arc::new(pod);
    let cpus = begin();
    cpus.allocate_pod(&pod, Hint::default()).await.unwrap();
    let before = dir.text();
    let entries =
        r#""entries":{"u":{"own":"1","shares":"2-3"}},"podEntries":{"u":{"cpuSet":"1-3"}}"#;
    assert!(before.contains(entries), "{before}");
    assert_eq!(cpus.exclusive_of(&pod), BTreeSet::from(["own".to_owned()]));
    assert!(!cpus.is_exclusive(&pod), "a container shares");
    let again = begin();
    again.allocate_pod(&pod, Hint::default()).await.unwrap();
    assert_eq!(dir.text(), before, "a restart changes nothing");
    let page = registry.render();
    for line in [
        "resource_manager_allocations_total{resource_name=\"cpu\",source=\"pod\"} 2\n",
        "resource_manager_container_assignments{assignment_type=\"pod_exclusive\",resource_name=\"cpu\"} 1\n",
        "resource_manager_container_assignments{assignment_type=\"pod_shared\",resource_name=\"cpu\"} 1\n",
    ] {
        assert!(page.contains(line), "{page}");
    }
    again.forget_all_but(&BTreeSet::new()).await;
    assert!(dir.text().contains(r#""defaultCpuSet":"0-3","checksum""#), "{}", dir.text());
}
