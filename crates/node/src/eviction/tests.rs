//! The loop with synthetic usage.

use super::*;
use api::stats::{FsStats, MemoryStats, Moment, NodeStats, PodReference, PodStats, Summary};
use async_trait::async_trait;
use engine::eviction::ThresholdConfig;
use ports::{PodEntry, PodSource, PodsSnapshot, StatsError};
use std::sync::Mutex;
use telemetry::metrics::Registry;
use testkit::paused_clock::PausedClock;

/// A machine whose usage is the sum of its pods' usage.
#[derive(Debug)]
struct FakeNode {
    clock: Arc<PausedClock>,
    /// Bytes used, by pod name.
    used: Mutex<BTreeMap<String, u64>>,
    garbage: Mutex<u64>,
    pods: watch::Sender<PodsSnapshot>,
    recorded: Mutex<Vec<String>>,
    asked: Mutex<Vec<StatsScope>>,
}

const CAPACITY: u64 = 1000 << 20;

impl FakeNode {
    fn new(pods: &[(&str, u64, i32)]) -> Arc<Self> {
        let entries = pods.iter().map(|(name, _, priority)| {
            let pod: Pod = serde_json::from_value(serde_json::json!({
                "metadata": {"name": name, "uid": name, "namespace": "n"},
                "spec": {"priority": priority, "containers": [{"name": "c"}],
                         "terminationGracePeriodSeconds": 30},
            }))
            .unwrap();
            let pod = Arc::new(pod);
            let entry = PodEntry {
                given: Some(Arc::clone(&pod)),
                pod,
                source: PodSource::Api,
                mirror: None,
                life: PodLife::Syncing,
                status: None,
                evicted: false,
            };
            (PodUid::from(*name), entry)
        });
        let snapshot = PodsSnapshot { pods: Arc::new(entries.collect()), sources_ready: true };
        Arc::new(Self {
            clock: Arc::new(PausedClock::new()),
            used: Mutex::new(pods.iter().map(|(n, u, _)| ((*n).to_owned(), *u)).collect()),
            garbage: Mutex::new(0),
            pods: watch::channel(snapshot).0,
            recorded: Mutex::default(),
            asked: Mutex::default(),
        })
    }

    fn tell(&self, text: String) {
        self.recorded.lock().unwrap().push(text);
    }

    fn recorded(&self) -> Vec<String> {
        self.recorded.lock().unwrap().clone()
    }

    fn eviction(
        self: &Arc<Self>,
        thresholds: &[(&str, &str)],
    ) -> (Eviction, watch::Receiver<Vec<PressureCondition>>) {
        let map = thresholds.iter().map(|(s, v)| ((*s).to_owned(), (*v).to_owned())).collect();
        let none = BTreeMap::new();
        let thresholds = ThresholdConfig {
            hard: &map,
            soft: &none,
            soft_grace: &none,
            min_reclaim: &none,
            enforce_pods: false,
        };
        let (pressure, seen) = watch::channel(Vec::new());
        let config = EvictionConfig {
            thresholds: thresholds.parse().unwrap(),
            transition: Duration::from_secs(300),
            grace: GracePolicy { max_pod_seconds: 0 },
            local_storage: true,
            may_be_split: true,
            alarms: None,
            kernel_memory: None,
        };
        let parts = EvictionParts {
            stats: Arc::<Self>::clone(self),
            pods: Arc::<Self>::clone(self),
            reclaim: Arc::<Self>::clone(self),
            events: Arc::<Self>::clone(self),
            clock: Arc::<PausedClock>::clone(&self.clock),
            metrics: EvictionMetrics::new(&Registry::new()),
            pressure,
        };
        (Eviction::new(config, parts), seen)
    }
}

#[async_trait]
impl Stats for FakeNode {
    async fn summary(&self, scope: StatsScope) -> Result<Arc<Summary>, StatsError> {
        self.asked.lock().unwrap().push(scope);
        let time = Moment(self.clock.now());
        let used = self.used.lock().unwrap().clone();
        let garbage = *self.garbage.lock().unwrap();
        let all: u64 = used.values().sum::<u64>() + garbage;
        let fs = FsStats {
            time,
            available_bytes: Some(CAPACITY.saturating_sub(all)),
            capacity_bytes: Some(CAPACITY),
            ..FsStats::default()
        };
        let pods = used.iter().map(|(name, used)| PodStats {
            pod_ref: PodReference { uid: name.clone(), ..PodReference::default() },
            memory: Some(MemoryStats { working_set_bytes: Some(*used), ..MemoryStats::default() }),
            ephemeral_storage: Some(FsStats { used_bytes: Some(*used), ..FsStats::default() }),
            ..PodStats::default()
        });
        Ok(Arc::new(Summary {
            node: NodeStats {
                memory: Some(MemoryStats {
                    time,
                    available_bytes: Some(CAPACITY.saturating_sub(all)),
                    working_set_bytes: Some(all),
                    ..MemoryStats::default()
                }),
                fs: Some(fs),
                ..NodeStats::default()
            },
            pods: pods.filter(|_| scope != StatsScope::Node).collect(),
        }))
    }

    async fn layout(&self) -> Result<StorageLayout, StatsError> {
        Ok(StorageLayout::One)
    }

    async fn resource_metrics(&self) -> String {
        String::new()
    }

    async fn container_metrics(&self) -> ports::Pieces {
        Box::new(std::iter::empty())
    }
}

#[async_trait]
impl Pods for FakeNode {
    fn watch(&self) -> watch::Receiver<PodsSnapshot> {
        self.pods.subscribe()
    }

    async fn kill(&self, uid: &PodUid, request: KillRequest) -> Result<(), String> {
        let condition = request.condition.and_then(|c| c.reason).unwrap_or_default();
        let grace = request.grace_seconds.unwrap_or_default();
        self.tell(format!("kill {uid} grace {grace} {} [{condition}]", request.reason));
        self.used.lock().unwrap().remove(uid.as_str());
        self.pods.send_modify(|snapshot| {
            let mut pods = BTreeMap::clone(&snapshot.pods);
            if let Some(entry) = pods.get_mut(uid) {
                entry.life = PodLife::Finished;
            }
            snapshot.pods = Arc::new(pods);
        });
        tokio::time::advance(Duration::from_secs(1)).await;
        Ok(())
    }
}

#[async_trait]
impl Reclaim for FakeNode {
    async fn dead_containers(&self) -> Result<(), String> {
        self.tell("dead containers".to_owned());
        Ok(())
    }

    async fn unused_images(&self) -> Result<(), String> {
        self.tell("unused images".to_owned());
        *self.garbage.lock().unwrap() = 0;
        Ok(())
    }
}

impl Events for FakeNode {
    fn emit(&self, event: NodeEvent) {
        self.tell(format!("{}: {}", event.reason, event.message));
    }
}

const MIB: u64 = 1 << 20;

#[tokio::test(start_paused = true)]
async fn a_pod_that_was_deleted_by_force_is_not_evicted_while_it_ends() {
    let world = FakeNode::new(&[("forced", 800 * MIB, 0), ("kept", 150 * MIB, 100)]);
    world.pods.send_modify(|snapshot| {
        let mut pods = BTreeMap::clone(&snapshot.pods);
        let forced = pods.get_mut("forced").unwrap();
        (forced.given, forced.life) = (None, PodLife::Terminating);
        snapshot.pods = Arc::new(pods);
    });
    let (mut eviction, _pressure) = world.eviction(&[("memory.available", "100Mi")]);
    assert_eq!(eviction.round().await, Done::Evicted(vec![PodUid::from("kept")]));
}

#[tokio::test(start_paused = true)]
async fn memory_pressure_ends_the_pod_of_lowest_priority_that_uses_most_and_no_other() {
    let world =
        FakeNode::new(&[("big", 400 * MIB, 100), ("low", 300 * MIB, 0), ("lower", 250 * MIB, 0)]);
    let (mut eviction, pressure) = world.eviction(&[("memory.available", "100Mi")]);
    assert_eq!(eviction.round().await, Done::Evicted(vec![PodUid::from("low")]));
    assert_eq!(*pressure.borrow(), [PressureCondition::Memory]);
    assert_eq!(
        world.recorded(),
        [
            "EvictionThresholdMet: Attempting to reclaim memory",
            "Evicted: The node was low on resource: memory. Threshold quantity: 100Mi, available: 50Mi. ",
            "kill low grace 1 Evicted [TerminationByKubelet]",
        ]
    );
    assert_eq!(eviction.round().await, Done::Quiet, "enough is free now");
    assert_eq!(*pressure.borrow(), [PressureCondition::Memory], "the condition stays a while");
    tokio::time::advance(Duration::from_secs(301)).await;
    assert_eq!(eviction.round().await, Done::Quiet);
    assert!(pressure.borrow().is_empty());
}

#[tokio::test(start_paused = true)]
async fn critical_pods_stay_whatever_they_use() {
    let world = FakeNode::new(&[("critical", 950 * MIB, 2_000_000_000)]);
    let (mut eviction, _) = world.eviction(&[("memory.available", "100Mi")]);
    assert_eq!(eviction.round().await, Done::Quiet);
    assert_eq!(world.recorded(), ["EvictionThresholdMet: Attempting to reclaim memory"]);
}

#[tokio::test(start_paused = true)]
async fn garbage_goes_before_pods_when_a_disk_is_full() {
    let world = FakeNode::new(&[("pod", 100 * MIB, 0)]);
    *world.garbage.lock().unwrap() = 850 * MIB;
    let (mut eviction, pressure) = world.eviction(&[("nodefs.available", "10%")]);
    assert_eq!(eviction.round().await, Done::Quiet);
    assert_eq!(*pressure.borrow(), [PressureCondition::Disk]);
    assert_eq!(
        world.recorded(),
        [
            "EvictionThresholdMet: Attempting to reclaim ephemeral-storage",
            "dead containers",
            "unused images",
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn pods_over_their_storage_limit_go_together_without_a_disruption_condition() {
    let world = FakeNode::new(&[("a", 200 * MIB, 0), ("b", 300 * MIB, 0), ("c", 10 * MIB, 0)]);
    world.pods.send_modify(|snapshot| {
        let mut pods = BTreeMap::clone(&snapshot.pods);
        for entry in pods.values_mut() {
            let mut pod = Pod::clone(&entry.pod);
            let limits = serde_json::json!({"limits": {"ephemeral-storage": "100Mi"}});
            let container = &mut pod.spec.as_mut().unwrap().containers[0];
            container.resources = Some(serde_json::from_value(limits).unwrap());
            entry.pod = Arc::new(pod);
        }
        snapshot.pods = Arc::new(pods);
    });
    let (mut eviction, _) = world.eviction(&[]);
    let gone = ["a", "b"].map(PodUid::from).to_vec();
    assert_eq!(eviction.round().await, Done::Evicted(gone));
    let text =
        "Evicted: Pod ephemeral local storage usage exceeds the total limit of containers 100Mi. ";
    let kill = |name| format!("kill {name} grace 1 Evicted []");
    assert_eq!(world.recorded(), [text.to_owned(), kill("a"), text.to_owned(), kill("b")]);
}

#[tokio::test(start_paused = true)]
async fn the_loop_looks_again_at_once_after_an_eviction_and_else_every_ten_seconds() {
    let world = FakeNode::new(&[("a", 600 * MIB, 0), ("b", 500 * MIB, 0), ("c", 10 * MIB, 0)]);
    let (eviction, _pressure) = world.eviction(&[("memory.available", "600Mi")]);
    let cancel = CancellationToken::new();
    let began = tokio::time::Instant::now();
    let run = eviction.run(cancel.clone());
    let watch = async {
        let mut pods = world.pods.subscribe();
        let left = |s: &PodsSnapshot| s.pods.values().filter(|e| e.is_active()).count();
        pods.wait_for(|snapshot| left(snapshot) == 1).await.unwrap();
        assert!(began.elapsed() < PERIOD, "both went in one go");
        world.used.lock().unwrap().insert("c".to_owned(), 900 * MIB);
        tokio::time::advance(PERIOD).await;
        pods.wait_for(|snapshot| left(snapshot) == 0).await.unwrap();
        assert!(began.elapsed() >= PERIOD);
        cancel.cancel();
    };
    tokio::join!(run, watch);
}

#[tokio::test(start_paused = true)]
async fn pods_are_read_only_when_one_has_to_go_or_has_limits() {
    let world = FakeNode::new(&[("small", 100 << 20, 0), ("big", 300 << 20, 0)]);
    let (mut eviction, _) = world.eviction(&[("memory.available", "100Mi")]);
    assert_eq!(eviction.round().await, Done::Quiet);
    assert_eq!(std::mem::take(&mut *world.asked.lock().unwrap()), [StatsScope::Node]);

    world.used.lock().unwrap().insert("big".to_owned(), 850 << 20);
    tokio::time::advance(PERIOD).await;
    assert_eq!(eviction.round().await, Done::Evicted(vec![PodUid::from("big")]));
    let asked = std::mem::take(&mut *world.asked.lock().unwrap());
    assert_eq!(asked, [StatsScope::Node, StatsScope::Fresh]);

    world.pods.send_modify(|snapshot| {
        let mut pods = (*snapshot.pods).clone();
        let mut pod = (*pods[&PodUid::from("small")].pod).clone();
        pod.spec.as_mut().unwrap().volumes = serde_json::from_value(serde_json::json!([
            {"name": "v", "emptyDir": {"sizeLimit": "1Gi"}}
        ]))
        .unwrap();
        pods.get_mut(&PodUid::from("small")).unwrap().pod = Arc::new(pod);
        snapshot.pods = Arc::new(pods);
    });
    world.used.lock().unwrap().insert("big".to_owned(), 0);
    tokio::time::advance(PERIOD).await;
    assert_eq!(eviction.round().await, Done::Quiet);
    assert_eq!(*world.asked.lock().unwrap(), [StatsScope::Fresh]);
}

#[tokio::test(start_paused = true)]
async fn page_cache_evicts_nobody_where_the_kernel_is_asked_what_it_can_hand_out() {
    let world = FakeNode::new(&[("big", 400 * MIB, 0), ("small", 550 * MIB, 1)]);
    let (mut eviction, pressure) = world.eviction(&[("memory.available", "100Mi")]);
    let meminfo = std::env::temp_dir().join(format!("rubelet-meminfo-{}", std::process::id()));
    let say = |available: u64| {
        let text = format!("MemTotal: {} kB\nMemAvailable: {} kB\n", 1000 << 10, available << 10);
        sys::fs::write(&meminfo, text).unwrap();
    };
    say(600);
    eviction.config.kernel_memory =
        Some(KernelMemoryPlaces { meminfo: meminfo.clone(), pods_stat: None });
    assert_eq!(eviction.round().await, Done::Quiet, "by working set only 50Mi are left");
    assert!(pressure.borrow().is_empty());
    say(40);
    tokio::time::advance(PERIOD).await;
    assert_eq!(eviction.round().await, Done::Evicted(vec![PodUid::from("big")]));
    let expected = "Evicted: The node was low on resource: memory. Threshold quantity: 100Mi, available: 40Mi. \
                Measured by what the kernel can free; by working set 50Mi are available. ";
    assert_eq!(world.recorded()[1], expected);
    // If the kernel's files are missing, the usual measure is used.
    world.used.lock().unwrap().insert("small".to_owned(), 950 * MIB);
    sys::fs::write(&meminfo, "MemTotal: 5 kB\n").unwrap();
    tokio::time::advance(PERIOD).await;
    assert_eq!(eviction.round().await, Done::Evicted(vec![PodUid::from("small")]));
    sys::fs::remove_file(&meminfo).unwrap();
}
