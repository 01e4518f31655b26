//! The task with the fake runtime and a synthetic cgroup tree.

use super::*;
use cri::Call;
use cri::api::{
    ContainerConfig, ContainerMetadata, ImageSpec, PodSandboxConfig, PodSandboxMetadata,
};
use serde_json::Value;
use std::path::{Path, PathBuf};
use testkit::fake_cri::{FakeCri, Fault};
use testkit::paused_clock::PausedClock;

/// Every pod has one volume `data`.
#[derive(Debug)]
struct OneVolume;

#[async_trait]
impl VolumeUsages for OneVolume {
    async fn usages(&self, _: &api::ids::PodUid) -> Arc<Vec<ports::VolumeUsage>> {
        Arc::new(vec![ports::VolumeUsage { name: "data".into(), ..Default::default() }])
    }
}

struct Fixture {
    fake: FakeCri,
    root: PathBuf,
    handle: StatsHandle,
    tasks: Tasks,
}

impl Drop for Fixture {
    fn drop(&mut self) {
        let _ = std::process::Command::new("rm").arg("-rf").arg(&self.root).status();
    }
}

fn write(path: &Path, text: &str) {
    sys::fs::create_dir_all(path.parent().unwrap(), 0o755).unwrap();
    sys::fs::write(path, text).unwrap();
}

fn cgroup(root: &Path, path: &str, cpu_usec: u64) {
    let folder = root.join("cgroup").join(path);
    write(&folder.join("cpu.stat"), &format!("usage_usec {cpu_usec}\n"));
    write(&folder.join("memory.stat"), "anon 300\nfile 500\ninactive_file 200\n");
    // The real root has no such file.
    if !path.is_empty() {
        write(&folder.join("memory.current"), "1000\n");
    }
    write(&folder.join("memory.max"), "4000\n");
    write(&folder.join("memory.swap.max"), "0\n");
    write(&folder.join("cgroup.procs"), "");
}

/// A node with one pod `default/web` of one container `c`.
async fn fixture(name: &str) -> Fixture {
    fixture_with(name, false).await
}

async fn fixture_with(name: &str, from_runtime: bool) -> Fixture {
    let root = std::env::temp_dir().join(format!("rubelet-stats-{name}-{}", std::process::id()));
    let clock = Arc::new(PausedClock::new());
    let fake = FakeCri::new(Arc::<PausedClock>::clone(&clock));
    let client = fake.client();
    let image = ImageSpec { image: "registry.example/app:1".into(), ..Default::default() };
    client.pull_image(image.clone(), None, None).await.unwrap();
    let config = PodSandboxConfig {
        metadata: Some(PodSandboxMetadata {
            name: "web".into(),
            namespace: "default".into(),
            uid: "u-1".into(),
            attempt: 0,
        }),
        ..Default::default()
    };
    let sandbox = client.run_pod_sandbox(config.clone(), "").await.unwrap();
    let container = ContainerConfig {
        metadata: Some(ContainerMetadata { name: "c".into(), attempt: 0 }),
        image: Some(image),
        ..Default::default()
    };
    let container = client.create_container(&sandbox, container, config).await.unwrap();
    client.start_container(&container).await.unwrap();
    cgroup(&root, "", 9_000_000);
    for path in ["kubepods", "kubepods/besteffort", "kubepods/besteffort/podu-1"] {
        cgroup(&root, path, 5_000_000);
    }
    cgroup(&root, &format!("kubepods/besteffort/podu-1/{container}"), 3_000_000);
    cgroup(&root, &format!("kubepods/besteffort/podu-1/{sandbox}"), 1_000);
    write(&root.join("logs/default_web_u-1/c/0.log"), "line\n");
    write(&root.join("kubelet/pods/u-1/etc-hosts"), "127.0.0.1 localhost\n");
    let procs = root.join(format!("cgroup/kubepods/besteffort/podu-1/{sandbox}/cgroup.procs"));
    write(&procs, "self\n");
    let config = StatsConfig {
        node_name: "n".into(),
        roots: Roots {
            kubelet: root.join("kubelet"),
            pod_logs: root.join("logs"),
            ..Roots::default()
        },
        cgroups: Arc::new(Cgroups::V2 { root: root.join("cgroup") }),
        driver: Driver::Cgroupfs,
        kubepods: Some("/kubepods".into()),
        kubelet_cgroup: None,
        runtime_cgroup: None,
        misc_cgroup: None,
        machine: Machine { memory_bytes: 1 << 30, cores: 1, ..Machine::default() },
        versions: ("6.1".into(), "Linux".into()),
        boot_time: 1_000,
        started: Moment::from_seconds(2_000),
        measure_volumes: true,
        from_runtime,
    };
    let tasks = Tasks::new();
    let volumes = Arc::new(OneVolume);
    let handle = start(config, StatsDeps { runtime: client, volumes, clock }, &tasks);
    Fixture { fake, root, handle, tasks }
}

/// Keys that `want` has and `got` lacks, as paths; lists are compared by their first elements.
fn missing(want: &Value, got: &Value, path: &str, out: &mut Vec<String>) {
    match (want, got) {
        (Value::Object(want), Value::Object(got)) => {
            for (key, want) in want {
                match got.get(key) {
                    Some(got) => missing(want, got, &format!("{path}.{key}"), out),
                    None => out.push(format!("{path}.{key}")),
                }
            }
        }
        (Value::Array(want), Value::Array(got)) => {
            if let (Some(want), Some(got)) = (want.first(), got.first()) {
                missing(want, got, &format!("{path}[]"), out);
            }
        }
        (Value::String(kind), got) => {
            let right = match kind.as_str() {
                "number" => got.is_number(),
                "string" => got.is_string(),
                _ => true,
            };
            if !right {
                out.push(format!("{path} is no {kind}"));
            }
        }
        _ => out.push(format!("{path} has another kind")),
    }
}

#[tokio::test(start_paused = true)]
async fn the_summary_has_every_field_of_the_recorded_answer() {
    let fixture = fixture("golden").await;
    let summary = fixture.handle.summary(StatsScope::All).await.unwrap();
    let ours = serde_json::to_value(&*summary).unwrap();
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/golden/server/answers.json");
    let golden: Value = serde_json::from_slice(&sys::fs::read(file).unwrap()).unwrap();
    let mut absent = Vec::new();
    missing(&golden["/stats/summary"]["shape"], &ours, "", &mut absent);
    assert_eq!(absent, Vec::<String>::new(), "{ours:#}");
    assert_eq!(ours["pods"][0]["podRef"]["uid"], "u-1");
    assert_eq!(ours["node"]["startTime"], "1970-01-01T00:16:40Z");
    assert_eq!(ours["pods"][0]["containers"][0]["memory"]["workingSetBytes"], 800);
    assert_eq!(ours["pods"][0]["containers"][0]["memory"]["availableBytes"], 3200);
    fixture.tasks.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn callers_within_the_window_share_one_reading() {
    let fixture = fixture("window").await;
    for _ in 0..3 {
        fixture.handle.summary(StatsScope::CpuAndMemory).await.unwrap();
    }
    let lists = |fixture: &Fixture| {
        fixture.fake.calls().iter().filter(|c| c.call == Call::ListContainerStats).count()
    };
    assert_eq!(lists(&fixture), 1);
    tokio::time::advance(WINDOW).await;
    fixture.handle.resource_metrics().await;
    assert_eq!(fixture.fake.count(Call::ListContainerStats), 2);
    fixture.tasks.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_runtime_that_fails_is_an_error_and_a_marked_page() {
    let fixture = fixture("fault").await;
    fixture
        .fake
        .inject(Fault::on(Call::ListPodSandbox).fail(cri::Code::Internal, "broken").always());
    let error = fixture.handle.summary(StatsScope::CpuAndMemory).await.unwrap_err();
    assert!(error.to_string().contains("broken"), "{error}");
    let page = fixture.handle.resource_metrics().await;
    assert!(page.ends_with("resource_scrape_error 1\n"), "{page}");
    let page: String = fixture.handle.container_metrics().await.collect();
    assert!(page.contains("\ncontainer_scrape_error 1\n"), "{page}");
    assert!(page.contains("\nmachine_memory_bytes{"), "{page}");
    fixture.tasks.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn container_metrics_have_the_recorded_families_labels_and_times() {
    let fixture = fixture("cadvisor").await;
    let page: String = fixture.handle.container_metrics().await.collect();
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/golden/server/answers.json");
    let golden: Value = serde_json::from_slice(&sys::fs::read(file).unwrap()).unwrap();
    let families = golden["/metrics/cadvisor"]["families"].as_object().unwrap();
    for (name, want) in families {
        // Quotas, disks and soft limits depend on the machine.
        if name.contains("_cfs_")
            || name.starts_with("container_fs_")
            || name.contains("ulimits")
            || name == "container_spec_cpu_quota"
        {
            continue;
        }
        let kind = format!("# TYPE {name} {}\n", want["type"].as_str().unwrap());
        assert!(page.contains(&kind), "{name} is missing");
        let sample = page
            .lines()
            .find(|l| l.strip_prefix(name.as_str()).is_some_and(|r| r.starts_with(['{', ' '])));
        let sample = sample.unwrap_or_else(|| panic!("{name} has no sample"));
        for label in want["labels"].as_array().unwrap() {
            let label = format!("{}=\"", label.as_str().unwrap());
            assert!(sample.contains(&label), "{sample} lacks {label}");
        }
        let after = sample.rsplit_once('}').map_or(sample, |(_, rest)| rest);
        let words = after.split_whitespace().count() - usize::from(!sample.contains('}'));
        assert_eq!(words == 2, want["timestamps"].as_bool().unwrap(), "{sample}");
    }
    let container = "container=\"c\",id=\"/kubepods/besteffort/podu-1/";
    let line = page.lines().find(|l| l.starts_with("container_memory_rss{container=\"c\""));
    assert!(line.is_some_and(|l| l.contains(container)), "{line:?}");
    fixture.tasks.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_minute_of_looks_at_the_node_is_one_call_to_the_runtime() {
    let fixture = fixture("node").await;
    let before = fixture.fake.calls().len();
    for _ in 0..6 {
        let summary = fixture.handle.summary(StatsScope::Node).await.unwrap();
        let memory = summary.node.memory.as_ref().unwrap();
        assert_eq!(memory.working_set_bytes, Some(600));
        let pods = summary.node.system_containers.iter().find(|c| c.name == "pods").unwrap();
        assert_eq!(pods.memory.as_ref().unwrap().available_bytes, Some(3200));
        assert!(summary.node.fs.as_ref().unwrap().available_bytes.is_some());
        assert!(summary.node.rlimit.is_some() && summary.pods.is_empty());
        tokio::time::advance(Duration::from_secs(10)).await;
    }
    let calls: Vec<Call> = fixture.fake.calls().iter().skip(before).map(|c| c.call).collect();
    assert_eq!(calls, [Call::ImageFsInfo]);
    fixture.tasks.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn the_runtime_is_believed_where_it_is_to_be_asked() {
    let fixture = fixture_with("strict", true).await;
    let summary = fixture.handle.summary(StatsScope::All).await.unwrap();
    let [pod] = summary.pods.as_slice() else { panic!("{:?}", summary.pods) };
    let working_set = |memory: &Option<api::stats::MemoryStats>| {
        memory.as_ref().and_then(|memory| memory.working_set_bytes)
    };
    assert_eq!(working_set(&pod.memory), Some(1 << 20), "not what the cgroup has");
    assert_eq!(working_set(&pod.containers[0].memory), Some(1 << 20));
    assert_eq!(pod.containers[0].memory.as_ref().unwrap().available_bytes, None);
    assert_eq!(pod.containers[0].cpu.as_ref().unwrap().usage_nano_cores, Some(10_000_000));
    assert!(pod.swap.is_none() && pod.network.is_none() && pod.process_stats.is_none());
    assert!(pod.ephemeral_storage.is_some() && pod.containers[0].logs.is_some());
    let few = fixture.handle.summary(StatsScope::CpuAndMemory).await.unwrap();
    let memory = few.pods[0].containers[0].memory.as_ref().unwrap();
    assert_eq!(memory.available_bytes, Some(0), "what is not told is zero");
    assert_eq!(few.pods[0].swap.as_ref().unwrap().swap_usage_bytes, Some(0), "summed up");
    let page: String = fixture.handle.container_metrics().await.collect();
    assert!(page.contains("\nmachine_memory_bytes{"), "{page}");
    assert!(!page.contains("container_") && !page.contains("cadvisor_version_info"), "{page}");
    fixture.tasks.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_runtime_that_tells_nothing_of_pods_is_asked_as_before() {
    let fixture = fixture_with("unimplemented", true).await;
    for call in [Call::ListPodSandboxStats, Call::StreamPodSandboxStats] {
        fixture.fake.inject(Fault::on(call).fail(cri::Code::Unimplemented, "no").always());
    }
    let summary = fixture.handle.summary(StatsScope::All).await.unwrap();
    let memory = summary.pods[0].containers[0].memory.as_ref().unwrap();
    assert_eq!(memory.working_set_bytes, Some(800), "the cgroup's");
    fixture.tasks.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn container_storage_counts_logs_and_the_hosts_file() {
    let fixture = fixture("hosts").await;
    let megabyte = "x".repeat(1 << 20);
    write(&fixture.root.join("kubelet/pods/u-1/etc-hosts"), &megabyte);
    write(&fixture.root.join("logs/default_web_u-1/c/0.log"), &megabyte);
    let summary = fixture.handle.summary(StatsScope::All).await.unwrap();
    let ours = serde_json::to_value(&*summary).unwrap();
    let used = ours["pods"][0]["ephemeral-storage"]["usedBytes"].as_u64().unwrap();
    assert!(used >= 2 << 20, "{used} bytes");
    fixture.tasks.shutdown().await;
}
