//! The task with simulated shutdown signals.

use super::*;
use api::ids::PodUid;
use async_trait::async_trait;
use ports::{PodEntry, PodLife, PodMounts, PodSource, PodsSnapshot, SubPathRequest, VolumeError};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Mutex;
use telemetry::metrics::Registry;
use testkit::paused_clock::PausedClock;
use tokio::time::Instant;

#[derive(Debug)]
struct FakeNode {
    began: Instant,
    recorded: Mutex<Vec<String>>,
    pods: watch::Sender<PodsSnapshot>,
    /// How long each pod takes to end.
    takes: BTreeMap<PodUid, Duration>,
    heard: tokio::sync::Mutex<mpsc::Receiver<bool>>,
    /// How long the API server takes to acknowledge a final status.
    hears: Duration,
}

impl FakeNode {
    fn tell(&self, text: impl std::fmt::Display) {
        let at = self.began.elapsed().as_secs();
        self.recorded.lock().unwrap().push(format!("{at}s {text}"));
    }
}

fn world(pods: &[(&str, i32, i64, u64)], hears: u64) -> (Arc<FakeNode>, mpsc::Sender<bool>) {
    let entries = pods.iter().map(|(name, priority, grace, _)| {
        let pod: Pod = serde_json::from_value(serde_json::json!({
            "metadata": {"name": name, "uid": name},
            "spec": {"priority": priority, "terminationGracePeriodSeconds": grace,
                     "containers": []},
        }))
        .unwrap();
        let entry = PodEntry {
            pod: Arc::new(pod),
            given: None,
            source: PodSource::Api,
            mirror: None,
            life: PodLife::Syncing,
            status: None,
            evicted: false,
        };
        (PodUid::from(*name), entry)
    });
    let snapshot = PodsSnapshot { pods: Arc::new(entries.collect()), sources_ready: true };
    let (announce, heard) = mpsc::channel(4);
    let world = FakeNode {
        began: Instant::now(),
        recorded: Mutex::default(),
        pods: watch::channel(snapshot).0,
        takes: pods
            .iter()
            .map(|(name, _, _, takes)| (PodUid::from(*name), Duration::from_secs(*takes)))
            .collect(),
        heard: tokio::sync::Mutex::new(heard),
        hears: Duration::from_secs(hears),
    };
    (Arc::new(world), announce)
}

#[async_trait]
impl Pods for FakeNode {
    fn watch(&self) -> watch::Receiver<PodsSnapshot> {
        self.pods.subscribe()
    }

    async fn kill(&self, uid: &PodUid, request: KillRequest) -> Result<(), String> {
        let grace = request.grace_seconds.unwrap_or_default();
        self.tell(format!("kill {uid} grace {grace} evict {}", request.evict));
        tokio::time::sleep(self.takes[uid]).await;
        self.tell(format!("{uid} ended"));
        Ok(())
    }

    async fn wait_acknowledged(&self, uid: &PodUid) {
        tokio::time::sleep(self.hears).await;
        self.tell(format!("end of {uid} is known"));
    }
}

#[async_trait]
impl Volumes for FakeNode {
    async fn wait_ready(&self, _: &Arc<Pod>) -> Result<PodMounts, VolumeError> {
        Ok(PodMounts::new())
    }

    async fn wait_released(&self, pod: &Arc<Pod>) -> Result<(), VolumeError> {
        self.tell(format!("volumes of {} released", pod.metadata.name.as_deref().unwrap()));
        Ok(())
    }

    fn in_use(&self, _: &PodUid) -> bool {
        false
    }

    async fn bind_sub_path(&self, _: &SubPathRequest) -> Result<PathBuf, VolumeError> {
        Ok(PathBuf::new())
    }

    async fn clean_sub_paths(&self, _: &PodUid, _: Option<&str>) -> Result<(), VolumeError> {
        Ok(())
    }
}

impl Events for FakeNode {
    fn emit(&self, event: NodeEvent) {
        self.tell(format!("{}: {}", event.reason, event.message));
    }
}

#[derive(Debug)]
struct Announcing(Arc<FakeNode>);

#[async_trait]
impl Announcer for Announcing {
    async fn attach(&self, needed: Duration) -> Result<Box<dyn Attached>, String> {
        self.0.tell(format!("locked for {}s", needed.as_secs()));
        Ok(Box::new(Announcing(Arc::clone(&self.0))))
    }
}

#[async_trait]
impl Attached for Announcing {
    async fn next(&mut self) -> Option<bool> {
        self.0.heard.lock().await.recv().await
    }

    fn release(&mut self) {
        self.0.tell("lock released");
    }

    async fn lock(&mut self) -> Result<(), String> {
        self.0.tell("locked again");
        Ok(())
    }
}

fn shutdown(world: &Arc<FakeNode>, root: &Path) -> (Shutdown, watch::Receiver<bool>, Registry) {
    let (shutting_down, seen) = watch::channel(false);
    let registry = Registry::new();
    let parts = ShutdownParts {
        pods: Arc::<FakeNode>::clone(world),
        volumes: Arc::<FakeNode>::clone(world),
        events: Arc::<FakeNode>::clone(world),
        clock: Arc::new(PausedClock::new()),
        metrics: Some(ShutdownMetrics::new(&registry)),
        shutting_down,
        tasks: Tasks::new(),
    };
    let periods = engine::shutdown::periods(&[], Duration::from_secs(30), Duration::from_secs(10));
    let announcer = Box::new(Announcing(Arc::clone(world)));
    (Shutdown::over(periods, root.to_owned(), announcer, parts), seen, registry)
}

#[tokio::test(start_paused = true)]
async fn pods_end_by_priority_and_a_slow_group_does_not_hold_up_the_next() {
    let root = std::env::temp_dir().join(format!("rubelet-shutdown-{}", std::process::id()));
    sys::fs::create_dir_all(&root, 0o755).unwrap();
    let (world, announce) =
        world(&[("critical", 2_000_000_000, 60, 2), ("quick", 0, 5, 1), ("slow", 0, 60, 25)], 1);
    let (shutdown, mut seen, registry) = shutdown(&world, &root);
    let tasks = shutdown.parts.tasks.clone();
    tasks.spawn("shutdown", OnExit::Fine, shutdown.run());
    announce.send(true).await.unwrap();
    seen.wait_for(|down| *down).await.unwrap();
    announce.send(false).await.unwrap();
    seen.wait_for(|down| !*down).await.unwrap();
    tokio::task::yield_now().await;
    let recorded = world.recorded.lock().unwrap().clone();
    assert_eq!(
        recorded,
        [
            "0s locked for 30s",
            "0s Shutdown: Shutdown manager detected shutdown event",
            "0s kill quick grace 5 evict false",
            "0s kill slow grace 20 evict false",
            "1s quick ended",
            "20s kill critical grace 10 evict false",
            "22s critical ended",
            "22s volumes of critical released",
            "23s end of critical is known",
            "23s end of quick is known",
            "23s end of slow is known",
            "23s lock released",
            "23s Shutdown: Shutdown manager detected shutdown cancellation",
            "23s locked again",
        ]
    );
    let state = sys::fs::read_to_string(root.join("graceful_node_shutdown_state")).unwrap();
    assert_eq!(state, r#"{"startTime":"2023-11-14T22:13:20Z","endTime":"2023-11-14T22:13:42Z"}"#);
    let page = registry.render();
    assert!(page.contains("kubelet_graceful_shutdown_start_time_seconds 1.7e+09"), "{page}");
    tasks.shutdown().await;
    let all = sys::removal::Contents::Everything;
    sys::removal::remove_tree(Path::new("/proc"), &root, all).unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_does_not_answer_holds_up_the_machine_for_seconds_only() {
    let root = std::env::temp_dir().join(format!("rubelet-untold-{}", std::process::id()));
    sys::fs::create_dir_all(&root, 0o755).unwrap();
    let quick: &[(&str, i32, i64, u64)] = &[("critical", 2_000_000_000, 60, 2)];
    let slow: &[(&str, i32, i64, u64)] =
        &[("critical", 2_000_000_000, 60, 90), ("regular", 0, 60, 90)];
    for (pods, released) in [(quick, "7s lock released"), (slow, "31s lock released")] {
        let (world, announce) = world(pods, 1_000_000);
        let (shutdown, mut seen, _) = shutdown(&world, &root);
        let tasks = shutdown.parts.tasks.clone();
        tasks.spawn("shutdown", OnExit::Fine, shutdown.run());
        for begins in [true, false] {
            announce.send(begins).await.unwrap();
            seen.wait_for(|down| *down == begins).await.unwrap();
        }
        let recorded = world.recorded.lock().unwrap().clone();
        assert!(recorded.iter().any(|line| line == released), "{recorded:#?}");
        tasks.shutdown().await;
    }
    let all = sys::removal::Contents::Everything;
    sys::removal::remove_tree(Path::new("/proc"), &root, all).unwrap();
}
