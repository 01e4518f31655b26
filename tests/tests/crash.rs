//! The kubelet killed with SIGKILL at random moments while thirty pods of many kinds start, restart and
//! stop on real parts: by the clock, and at the very moment a call that changes something reaches the
//! runtime. Nothing may run twice, be lost, be started again without need or be left behind, and the
//! API server must know it all.
//!
//! Under either kubelet (`KUBELET=go|rubelet`). `SEED=n` begins with that seed, `SEEDS=n` runs so many
//! (each on a node of its own), `ROUNDS=n` kills so often; `make crash-test` does many.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test on the real machine")]

#[path = "crash/once.rs"]
mod once;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testkit::eventually;
use testkit::real::{
    Call, ControlPlane, ControlPlaneOptions, KubeletKind, KubeletOptions, TestNode,
};
use tests::cluster::{BUSYBOX, Space, condition, status_of};
use tests::leftovers;
use tests::rng::Rng;

/// Each start of a container leaves a line in a file of the pod's that outlives it.
const COUNT: &str = "echo $0 >> /data/starts; ";
const STAYS: &str = "trap 'exit 0' TERM; sleep 3600 & wait";
const STUBBORN: &str = "trap '' TERM; while true; do sleep 1; done";
/// Fails until it was started three times.
const THIRD_TIME: &str = "sleep 0.3; test $(wc -l < /data/starts) -ge 3";

/// What becomes of a pod that nobody deletes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Runs,
    Succeeds,
    Fails,
}

/// A pod of the test.
#[derive(Debug, Clone)]
struct Kind {
    prefix: &'static str,
    count: usize,
    end: End,
    /// How often its main container is started in all.
    starts: usize,
    is_static: bool,
    policy: &'static str,
    script: &'static str,
    init: bool,
}

const fn kind(prefix: &'static str, count: usize, end: End, script: &'static str) -> Kind {
    let (starts, is_static, policy, init) = (1, false, "Always", false);
    Kind { prefix, count, end, starts, is_static, policy, script, init }
}

/// Thirty pods.
fn kinds() -> Vec<Kind> {
    vec![
        kind("stay", 4, End::Runs, STAYS),
        Kind { is_static: true, ..kind("still", 3, End::Runs, STAYS) },
        Kind { init: true, ..kind("deep", 4, End::Runs, STAYS) },
        Kind { policy: "Never", ..kind("end", 4, End::Succeeds, "sleep 1") },
        Kind { policy: "Never", ..kind("fail", 3, End::Fails, "sleep 0.5; exit 3") },
        Kind { policy: "OnFailure", starts: 3, ..kind("retry", 4, End::Succeeds, THIRD_TIME) },
        kind("leave", 4, End::Runs, STAYS),
        Kind { is_static: true, ..kind("leave-still", 2, End::Runs, STAYS) },
        kind("leave-slow", 2, End::Runs, STUBBORN),
    ]
}

impl Kind {
    fn names(&self) -> impl Iterator<Item = String> {
        (0..self.count).map(|index| format!("{}{index}", self.prefix))
    }

    fn leaves(&self) -> bool {
        self.prefix.starts_with("leave")
    }

    /// `starts` is the folder on the node where starts are counted.
    fn pod(&self, name: &str, starts: &Path) -> Value {
        let container = |name: &str, script: &str| {
            json!({
                "name": name,
                "image": BUSYBOX,
                "command": ["sh", "-c", format!("{COUNT}{script}"), name],
                "volumeMounts": [
                    { "name": "data", "mountPath": "/data" },
                    { "name": "scratch", "mountPath": "/scratch" },
                ],
            })
        };
        let mut pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": name, "namespace": "default" },
            "spec": {
                "restartPolicy": self.policy,
                "terminationGracePeriodSeconds": 2,
                "automountServiceAccountToken": false,
                "containers": [container("main", self.script)],
                "volumes": [
                    {
                        "name": "data",
                        "hostPath": { "path": starts.join(name), "type": "DirectoryOrCreate" },
                    },
                    { "name": "scratch", "emptyDir": { "medium": "Memory" } },
                ],
            },
        });
        if self.init {
            let mut side = container("side", STAYS);
            side["restartPolicy"] = "Always".into();
            pod["spec"]["initContainers"] = json!([container("first", "sleep 0.3"), side]);
        }
        if !self.is_static {
            pod["spec"]["nodeName"] = "node1".into();
        }
        pod
    }
}

/// The node under test with its control plane.
struct RecordingNode {
    node: TestNode,
    control: Arc<ControlPlane>,
    kubelet: KubeletKind,
}

impl RecordingNode {
    fn start() -> RecordingNode {
        let kubelet = KubeletKind::from_env().unwrap();
        let control = Arc::new(ControlPlane::start(&ControlPlaneOptions::default()).unwrap());
        let options = KubeletOptions {
            config: json!({ "crashLoopBackOff": { "maxContainerRestartPeriod": "1s" } }),
            ..KubeletOptions::default()
        };
        let builder = TestNode::builder().kubelet(kubelet).options(options).join(&control);
        RecordingNode { node: builder.record().start().unwrap(), control, kubelet }
    }

    fn starts(&self) -> PathBuf {
        self.node.slot().path("starts")
    }

    fn space(&self) -> Space<'_> {
        Space::default_of(&self.control)
    }

    /// Wait for a random moment: some time, or the arrival of some call at the runtime.
    fn wait_for_a_moment(&self, rng: &mut Rng) {
        if rng.below(3) == 0 {
            std::thread::sleep(Duration::from_millis(50 + rng.below(2500)));
            return;
        }
        let calls = || self.node.recorder().unwrap().calls().len();
        let wanted = calls() + 1 + usize::try_from(rng.below(12)).unwrap();
        let patience = Instant::now() + Duration::from_secs(4);
        while calls() < wanted && Instant::now() < patience {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_micros(rng.below(20_000)));
    }

    fn restart_kubelet(&mut self) {
        self.node.kill_kubelet();
        self.node.launch_kubelet(self.kubelet).unwrap();
    }
}

/// Containers by pod and name.
fn containers(node: &TestNode) -> BTreeMap<(String, String), Vec<Value>> {
    let mut found: BTreeMap<_, Vec<Value>> = BTreeMap::new();
    for container in node.containers().unwrap() {
        let pod = container["labels"]["io.kubernetes.pod.name"].as_str().unwrap_or_default();
        let name = container["metadata"]["name"].as_str().unwrap_or_default();
        found.entry((pod.to_owned(), name.to_owned())).or_default().push(container);
    }
    found
}

fn is_running(container: &Value) -> bool {
    container["state"] == "CONTAINER_RUNNING"
}

/// What must hold at any moment.
fn nothing_runs_twice(node: &TestNode, when: &str) {
    for ((pod, name), all) in containers(node) {
        let running: Vec<&Value> = all.iter().filter(|c| is_running(c)).collect();
        assert!(running.len() <= 1, "{when}: {name} of {pod} runs twice: {running:#?}");
    }
}

/// Phases that no pod may leave again.
fn final_phases_stay(space: &Space<'_>, seen: &mut BTreeMap<String, String>, when: &str) {
    for pod in space.get(&["pods"]).unwrap()["items"].as_array().unwrap() {
        let name = pod["metadata"]["name"].as_str().unwrap().to_owned();
        let phase = pod["status"]["phase"].as_str().unwrap_or_default().to_owned();
        if let Some(before) = seen.get(&name)
            && (before == "Succeeded" || before == "Failed")
        {
            assert_eq!(&phase, before, "{when}: {name} left its final phase");
        }
        seen.insert(name, phase);
    }
}

/// The name of a pod in the API: that of a static pod has the node's at its end.
fn api_name(kind: &Kind, name: &str) -> String {
    if kind.is_static { format!("{name}-node1") } else { name.to_owned() }
}

/// Why a pod is not yet as it should be in the end; nothing if it is.
fn unsettled(
    recording_node: &RecordingNode,
    kind: &Kind,
    name: &str,
    pods: &BTreeMap<String, Value>,
    all: &All,
) -> Option<String> {
    let name = api_name(kind, name);
    let own = |container: &str| all.get(&(name.clone(), container.to_owned()));
    let running = ["first", "side", "main"]
        .iter()
        .filter(|c| own(c).is_some_and(|l| l.iter().any(is_running)));
    let running = running.count();
    let Some(pod) = pods.get(&name) else {
        let gone = kind.leaves() && running == 0;
        return (!gone).then(|| format!("{name}: not in the API, {running} running"));
    };
    if kind.leaves() {
        return Some(format!("{name}: still in the API"));
    }
    let phase = pod["status"]["phase"].as_str().unwrap_or_default();
    let good = match kind.end {
        End::Runs => {
            phase == "Running"
                && running == 1 + usize::from(kind.init)
                && condition(pod, "Ready") == "True"
        }
        End::Fails => phase == "Failed" && running == 0,
        _ if kind.policy == "Never" && was_cut_off(recording_node, pod) => {
            phase == "Failed" && running == 0
        }
        End::Succeeds => phase == "Succeeded" && running == 0,
    };
    (!good).then(|| format!("{name}: {running} running, {}", pod["status"]))
}

/// Whether the runtime gave up starting the container, when it may have run, because the kubelet that had asked
/// died: with policy Never that was its only chance. The Go kubelet also gives up what never ran.
fn was_cut_off(recording_node: &RecordingNode, pod: &Value) -> bool {
    let end = &status_of(pod)["state"]["terminated"];
    let message = end["message"].as_str().unwrap_or_default();
    let may_have_run = message.starts_with("failed to start containerd task");
    let given_up = may_have_run || recording_node.kubelet == KubeletKind::Go;
    end["reason"] == "StartError" && message.contains("context canceled") && given_up
}

type All = BTreeMap<(String, String), Vec<Value>>;

/// What a settled pod shows of its life.
fn life_was_right(recording_node: &RecordingNode, kind: &Kind, pod: &Value, all: &All) {
    let name = pod["metadata"]["name"].as_str().unwrap();
    let lists = ["containerStatuses", "initContainerStatuses"];
    for status in lists.iter().filter_map(|list| pod["status"][list].as_array()).flatten() {
        let container = status["name"].as_str().unwrap();
        let Some(own) = all.get(&(name.to_owned(), container.to_owned())) else {
            panic!("{container} of {name} is not in the runtime: {status}")
        };
        let attempt = |c: &Value| c["metadata"]["attempt"].as_u64().unwrap_or_default();
        let newest = own.iter().max_by_key(|c| attempt(c)).unwrap();
        assert_eq!(status["restartCount"], attempt(newest), "{container} of {name}: {own:#?}");
        let id = format!("containerd://{}", newest["id"].as_str().unwrap());
        assert_eq!(status["containerID"], id, "{container} of {name}: {own:#?}");
    }
    let file = recording_node.starts().join(name.trim_end_matches("-node1")).join("starts");
    let starts = std::fs::read_to_string(file).unwrap_or_default();
    let count = |name: &str| starts.lines().filter(|line| *line == name).count();
    // A start that the runtime gave up when its caller died may have run for a moment.
    let right = |container: &str, starts: usize| {
        let least =
            if kind.policy == "Never" && was_cut_off(recording_node, pod) { 0 } else { starts };
        let most = starts + starts_cut_off(recording_node, name, container);
        (least..=most).contains(&count(container))
    };
    assert!(right("main", kind.starts), "{name} was started too often or not: {starts:?}");
    if kind.init {
        assert!(right("first", 1) && right("side", 1), "{name}: {starts:?}");
    }
}

/// How many starts of a container were not answered because the kubelet that had asked was killed.
fn starts_cut_off(recording_node: &RecordingNode, pod: &str, container: &str) -> usize {
    let calls = recording_node.node.recorder().unwrap().calls();
    let created = |call: &&Arc<Call>| {
        call.method == "CreateContainer"
            && call.request["config"]["metadata"]["name"] == container
            && call.request["sandbox_config"]["metadata"]["name"] == pod
    };
    let ids: Vec<&Value> =
        calls.iter().filter(created).map(|call| &call.response["container_id"]).collect();
    let cut = |call: &&Arc<Call>| {
        call.method == "StartContainer"
            && (!call.answered || call.error.is_some())
            && ids.contains(&&call.request["container_id"])
    };
    calls.iter().filter(cut).count()
}

/// Pods with a container that the runtime can never remove: the kubelet was killed while it made the
/// container's task, which the runtime then forgot, and cannot delete as long as it is there.
fn lost_by_the_runtime(recording_node: &RecordingNode) -> BTreeSet<String> {
    let calls = recording_node.node.recorder().unwrap().calls();
    let refused = |call: &&Arc<Call>| {
        let message = call.error.as_ref().map(|(_, message)| message.as_str()).unwrap_or_default();
        call.method == "RemoveContainer" && message.contains("cannot delete running task")
    };
    let refused: BTreeSet<&str> =
        calls.iter().filter(refused).filter_map(|c| c.request["container_id"].as_str()).collect();
    let cut = |id: &str| {
        calls.iter().any(|call| {
            call.method == "StartContainer"
                && call.request["container_id"] == id
                && (!call.answered || call.error.is_some())
        })
    };
    let lost = |call: &&Arc<Call>| {
        let id = call.response["container_id"].as_str().unwrap_or_default();
        call.method == "CreateContainer" && refused.contains(id) && cut(id)
    };
    let uid = |call: &Arc<Call>| {
        call.request["sandbox_config"]["metadata"]["uid"].as_str().map(str::to_owned)
    };
    calls.iter().filter(lost).filter_map(uid).collect()
}

fn pods_by_name(space: &Space<'_>) -> BTreeMap<String, Value> {
    let list = space.get(&["pods"]).unwrap();
    let named = |pod: &Value| (pod["metadata"]["name"].as_str().unwrap().to_owned(), pod.clone());
    list["items"].as_array().unwrap().iter().map(named).collect()
}

fn delete(recording_node: &RecordingNode, kind: &Kind, name: &str) {
    if kind.is_static {
        recording_node.node.remove_manifest(&format!("{name}.json")).unwrap();
    } else {
        recording_node.space().kubectl(&["delete", "pod", name, "--wait=false"]).unwrap();
    }
}

fn one_node(seed: u64, rounds: u64) {
    let mut rng = Rng::new(seed);
    let mut recording_node = RecordingNode::start();
    let kinds = kinds();
    let mut coming: Vec<(Kind, String)> =
        kinds.iter().flat_map(|kind| kind.names().map(|name| (kind.clone(), name))).collect();
    rng.shuffle(&mut coming);
    let mut leaving: Vec<(Kind, String)> =
        coming.iter().filter(|(kind, _)| kind.leaves()).cloned().collect();
    let per_round = coming.len().div_ceil(usize::try_from(rounds.div_ceil(2)).unwrap());
    let mut there: BTreeSet<String> = BTreeSet::new();
    let mut phases = BTreeMap::new();
    for round in 0..rounds {
        let when = format!("SEED={seed} round {round}");
        for (kind, name) in coming.drain(..per_round.min(coming.len())) {
            let pod = kind.pod(&name, &recording_node.starts());
            if kind.is_static {
                recording_node
                    .node
                    .add_manifest(&format!("{name}.json"), &pod.to_string())
                    .unwrap();
            } else {
                recording_node.space().create(pod).unwrap();
            }
            there.insert(name);
        }
        recording_node.wait_for_a_moment(&mut rng);
        if rng.below(2) == 0 {
            // Killed at once after something was taken away.
            take_away(&recording_node, &mut leaving, &there, &mut rng);
            std::thread::sleep(Duration::from_millis(rng.below(300)));
        }
        recording_node.node.kill_kubelet();
        nothing_runs_twice(&recording_node.node, &when);
        final_phases_stay(&recording_node.space(), &mut phases, &when);
        if rng.below(2) == 0 {
            // Taken away while nobody looks.
            take_away(&recording_node, &mut leaving, &there, &mut rng);
        }
        recording_node.node.launch_kubelet(recording_node.kubelet).unwrap();
    }
    for (kind, name) in leaving.drain(..) {
        delete(&recording_node, &kind, &name);
    }
    let each = || kinds.iter().flat_map(|kind| kind.names().map(move |name| (kind, name)));
    let mut left = Vec::new();
    let settled = testkit::real::eventually(Duration::from_secs(240), "every pod settles", || {
        let (pods, all) = (pods_by_name(&recording_node.space()), containers(&recording_node.node));
        left = each()
            .filter_map(|(kind, name)| unsettled(&recording_node, kind, &name, &pods, &all))
            .collect();
        left.is_empty()
    });
    assert!(settled.is_ok(), "SEED={seed}: {left:#?}");
    nothing_runs_twice(&recording_node.node, "in the end");
    let (pods, all) = (pods_by_name(&recording_node.space()), containers(&recording_node.node));
    for (kind, name) in each().filter(|(kind, _)| !kind.leaves()) {
        life_was_right(&recording_node, kind, &pods[&api_name(kind, &name)], &all);
    }
    // All go, once more under a kill; what is left of them goes too.
    for (kind, name) in each().filter(|(kind, _)| !kind.leaves()) {
        if kind.is_static {
            delete(&recording_node, kind, &name);
        }
    }
    recording_node.space().kubectl(&["delete", "pods", "--all", "--wait=false"]).unwrap();
    recording_node.wait_for_a_moment(&mut rng);
    recording_node.restart_kubelet();
    eventually!(90, pods_by_name(&recording_node.space()).is_empty());
    // Dead containers and sandboxes are collected once a minute, and after the start.
    recording_node.restart_kubelet();
    let mut found = Vec::new();
    let clean = testkit::real::eventually(Duration::from_secs(180), "nothing is left", || {
        found = leftovers::of(&recording_node.node).unwrap();
        let lost = lost_by_the_runtime(&recording_node);
        found.retain(|line| !lost.iter().any(|uid| line.contains(uid)));
        found.is_empty()
    });
    assert!(clean.is_ok(), "SEED={seed}: {found:#?}");
}

/// Take one or two of those that leave away, if they have come.
fn take_away(
    recording_node: &RecordingNode,
    leaving: &mut Vec<(Kind, String)>,
    there: &BTreeSet<String>,
    rng: &mut Rng,
) {
    for _ in 0..=rng.below(2) {
        let Some(at) = leaving.iter().position(|(_, name)| there.contains(name)) else { return };
        let (kind, name) = leaving.remove(at);
        delete(recording_node, &kind, &name);
    }
}

#[test]
fn killing_the_kubelet_at_any_moment_duplicates_loses_and_leaves_nothing() {
    let number = |name: &str, default| {
        std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
    };
    let first: u64 = number("SEED", 1);
    for seed in first..first + number("SEEDS", 1) {
        one_node(seed, number("ROUNDS", 5));
        println!("SEED={seed} passed");
    }
}
