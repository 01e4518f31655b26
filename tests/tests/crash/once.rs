//! Pods that may run once, started while the kubelet is killed (SIGKILL) or stopped (SIGTERM) again and again,
//! mostly while the runtime makes or starts one of their containers. Each appends a line to a file when it runs:
//! none may be lost that provably never ran, and none may run twice. A process that the runtime had begun when the
//! kubelet was killed, and killed for that, may have run: it is cut off, with a line or before it came to write one.
//!
//! `KILLS=n` and `STOPS=n` say how often (default 6 and 4); each end has pods of its own, and all are counted in
//! one line at the end.

use super::{RecordingNode, pods_by_name};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};
use tests::cluster::{BUSYBOX, status_of};
use tests::leftovers;
use tests::rng::Rng;

/// Pods that start in each round.
const PODS: u64 = 4;

/// Pods that are not over yet, at most, before more come: a node has room for so many.
const UNFINISHED: usize = 24;

/// How the kubelet ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    Kill,
    Stop,
}

/// What became of the pods.
#[derive(Debug, Default, PartialEq, Eq)]
struct Count {
    pods: usize,
    succeeded: usize,
    /// Failed without a line in their file, and not because their process was cut off.
    lost: usize,
    /// Failed because the runtime was cut off when it had begun their process: with a line in their file...
    cut_off: usize,
    /// ... and without one.
    cut_off_early: usize,
    twice: usize,
    /// Calls that made or started a container and were not answered before the kubelet was killed.
    interrupted: usize,
    /// The same of a kubelet that was told to stop.
    not_waited_for: usize,
    /// Stops that took longer than they may.
    slow_stops: usize,
}

fn pod(name: &str, folder: &std::path::Path, with_init: bool) -> Value {
    let container = |name: &str| {
        json!({
            "name": name, "image": BUSYBOX,
            "command": ["sh", "-c", "echo $0 >> /data/runs; sleep 0.1", name],
            "volumeMounts": [{ "name": "data", "mountPath": "/data" }],
        })
    };
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": name, "namespace": "default", "labels": { "runs": "once" } },
        "spec": {
            "nodeName": "node1", "restartPolicy": "Never", "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": false,
            "containers": [container("main")],
            "volumes": [{
                "name": "data",
                "hostPath": { "path": folder.join(name), "type": "DirectoryOrCreate" },
            }],
        },
    });
    if with_init {
        pod["spec"]["initContainers"] = json!([container("first")]);
    }
    pod
}

impl RecordingNode {
    fn calls(&self) -> usize {
        self.node.recorder().unwrap().calls().len()
    }

    /// Calls of this kind, of the kubelet that began after so many, that were not answered yet.
    fn under_way(&self, since: usize, methods: &[&str]) -> usize {
        let calls = self.node.recorder().unwrap().calls();
        let is_open = |call: &&std::sync::Arc<testkit::real::Call>| {
            methods.contains(&call.method.as_str()) && !call.answered
        };
        calls.iter().skip(since).filter(is_open).count()
    }

    /// Waits until the runtime works on a call, then a moment longer.
    fn wait_for_a_start(&self, since: usize, rng: &mut Rng) {
        let methods: &[&str] = match rng.below(6) {
            0 => &["RunPodSandbox"],
            1 => &["CreateContainer"],
            _ => &["StartContainer"],
        };
        let patience = Instant::now() + Duration::from_secs(5);
        while self.under_way(since, methods) == 0 && Instant::now() < patience {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_micros(rng.below(200_000)));
    }

    fn end_kubelet(&mut self, since: usize, ending: Ending, count: &mut Count) {
        let open = ["CreateContainer", "StartContainer"];
        let began = Instant::now();
        match ending {
            Ending::Kill => {
                count.interrupted += self.under_way(since, &open);
                self.node.kill_kubelet();
                // What it had written last is noted by the recorder a moment later.
                std::thread::sleep(Duration::from_millis(300));
            }
            Ending::Stop => {
                self.node.stop_kubelet();
                count.not_waited_for += self.under_way(since, &open);
                count.slow_stops += usize::from(began.elapsed() > Duration::from_secs(45));
            }
        }
    }

    fn runs(&self, pod: &str) -> Vec<String> {
        let file = self.starts().join(pod).join("runs");
        let text = std::fs::read_to_string(file).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }
}

fn is_over(pod: &Value) -> bool {
    ["Succeeded", "Failed"].contains(&pod["status"]["phase"].as_str().unwrap_or_default())
}

/// Takes the pods that are over into the count, and deletes them.
fn take_in(recording_node: &RecordingNode, count: &mut Count, told: &mut Vec<String>) {
    let over = pods_by_name(&recording_node.space()).into_values();
    let over: Vec<Value> =
        over.filter(is_over).filter(|pod| pod["metadata"]["deletionTimestamp"].is_null()).collect();
    let mut names = BTreeSet::new();
    for pod in over {
        let name = pod["metadata"]["name"].as_str().unwrap();
        let runs = recording_node.runs(name);
        count.pods += 1;
        let of = |container: &str| runs.iter().filter(|line| *line == container).count();
        if of("main") > 1 || of("first") > 1 {
            count.twice += 1;
            told.push(format!("{name} ran twice: {runs:?}"));
        }
        if pod["status"]["phase"] == "Succeeded" {
            count.succeeded += 1;
        } else {
            let init = &pod["status"]["initContainerStatuses"][0]["state"]["terminated"];
            let first_failed = init.is_object() && init["exitCode"] != 0;
            let (had, end) = if first_failed {
                (of("first"), init.clone())
            } else {
                (of("main"), status_of(&pod)["state"]["terminated"].clone())
            };
            let message = end["message"].as_str().unwrap_or_default();
            let begun = message.starts_with("failed to start containerd task");
            let counted = match had {
                0 if begun => &mut count.cut_off_early,
                0 => &mut count.lost,
                _ => &mut count.cut_off,
            };
            *counted += 1;
            told.push(format!("{name} failed after {had} runs: {end}"));
        }
        names.insert(name.to_owned());
    }
    if !names.is_empty() {
        let mut args = vec!["delete", "pod", "--wait=false"];
        args.extend(names.iter().map(String::as_str));
        recording_node.space().kubectl(&args).unwrap();
    }
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

#[test]
fn a_pod_that_runs_once_is_neither_lost_nor_run_twice() {
    let (kills, stops) = (number("KILLS", 6), number("STOPS", 4));
    let mut rng = Rng::from_env(1);
    let mut endings = vec![Ending::Kill; usize::try_from(kills).unwrap()];
    endings.extend(vec![Ending::Stop; usize::try_from(stops).unwrap()]);
    rng.shuffle(&mut endings);
    let mut recording_node = RecordingNode::start();
    let (mut count, mut told) = (Count::default(), Vec::new());
    let mut since = 0;
    for (round, ending) in endings.into_iter().enumerate() {
        let names = (0..PODS).map(|pod| format!("once{round}-{pod}"));
        let items: Vec<Value> =
            names.map(|name| pod(&name, &recording_node.starts(), rng.below(3) == 0)).collect();
        recording_node
            .control
            .create(&json!({ "apiVersion": "v1", "kind": "List", "items": items }))
            .unwrap();
        recording_node.wait_for_a_start(since, &mut rng);
        recording_node.end_kubelet(since, ending, &mut count);
        since = recording_node.calls();
        recording_node.node.launch_kubelet(recording_node.kubelet).unwrap();
        if round % 5 == 4 {
            let few = || {
                take_in(&recording_node, &mut count, &mut told);
                let pods = pods_by_name(&recording_node.space());
                pods.values().filter(|pod| !is_over(pod)).count() <= UNFINISHED
            };
            testkit::real::eventually(Duration::from_secs(240), "most are over", few).unwrap();
            println!("after {} ends: {count:?}", round + 1);
        }
    }
    let mut left = Vec::new();
    let all_over = testkit::real::eventually(Duration::from_secs(240), "all are over", || {
        take_in(&recording_node, &mut count, &mut told);
        left = pods_by_name(&recording_node.space())
            .into_values()
            .filter(|pod| !is_over(pod))
            .collect();
        left.is_empty()
    });
    take_in(&recording_node, &mut count, &mut told);
    println!("{kills} kills and {stops} stops: {count:?}\n{}", told.join("\n"));
    assert!(all_over.is_ok(), "pods that never end: {left:#?}");
    let gone = Instant::now();
    let mut found = Vec::new();
    let clean = testkit::real::eventually(Duration::from_secs(100), "nothing is left", || {
        found = leftovers::of(&recording_node.node).unwrap();
        let lost = super::lost_by_the_runtime(&recording_node);
        found.retain(|line| !lost.iter().any(|uid| line.contains(uid)));
        found.is_empty()
    });
    println!("nothing left after {:.1?}: {found:#?}", gone.elapsed());
    assert!(clean.is_ok(), "{found:#?}");
    assert_eq!(count.pods, usize::try_from((kills + stops) * PODS).unwrap(), "all are counted");
    assert_eq!((count.lost, count.twice), (0, 0), "{told:#?}");
    assert_eq!((count.not_waited_for, count.slow_stops), (0, 0));
}
