//! The node protects itself: memory, process id and disk pressure made for real inside bounds of the
//! test's own, garbage collected from a small disk, a shutdown announced over D-Bus.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test on the real machine")]

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use testkit::real::{
    ControlPlane, ControlPlaneOptions, KubeletKind, KubeletOptions, TestNode, eventually_some,
};

const PATIENCE: Duration = Duration::from_secs(150);
const IMAGE: &str = "registry.k8s.io/e2e-test-images/busybox:1.37.0-1";
const MIB: u64 = 1 << 20;

fn pod(node: &str, name: &str, script: &str, volume: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod",
    "metadata": {"name": name, "namespace": "default"},
    "spec": {
        "nodeName": node, "automountServiceAccountToken": false,
        "terminationGracePeriodSeconds": 1, "restartPolicy": "Never",
        "volumes": [{"name": "v", "emptyDir": volume}],
        "containers": [{"name": "c", "image": IMAGE,
            "command": ["sh", "-c", format!("{script}; sleep 3600")],
            "volumeMounts": [{"name": "v", "mountPath": "/v"}]}],
    }})
}

fn phase(control: &ControlPlane, name: &str) -> String {
    let pod = control.get(["pod", name]).unwrap_or_default();
    pod["status"]["phase"].as_str().unwrap_or_default().to_owned()
}

fn wait_running(control: &ControlPlane, name: &str) {
    let runs = || (phase(control, name) == "Running").then_some(());
    eventually_some(PATIENCE, &format!("{name} runs"), runs).unwrap();
}

/// The pod once it was evicted, with its event.
fn wait_evicted(control: &ControlPlane, name: &str) -> (Value, Value) {
    let evicted = || {
        let pod = control.get(["pod", name]).ok()?;
        (pod["status"]["reason"] == "Evicted").then_some(pod)
    };
    let pod = eventually_some(PATIENCE, &format!("{name} is evicted"), evicted).unwrap();
    let event = || {
        let events = control.get(["events"]).ok()?;
        let events = events["items"].as_array().cloned().unwrap_or_default();
        events.into_iter().find(|e| e["reason"] == "Evicted" && e["involvedObject"]["name"] == name)
    };
    (pod, eventually_some(PATIENCE, "an event tells it", event).unwrap())
}

fn condition(object: &Value, kind: &str) -> Value {
    let all = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
    all.into_iter().find(|c| c["type"] == kind).unwrap_or_default()
}

/// What every eviction under pressure leaves: status, condition, events.
fn check_evicted(control: &ControlPlane, node: &str, name: &str, resource: &str, pressure: &str) {
    let (pod, event) = wait_evicted(control, name);
    let message = pod["status"]["message"].as_str().unwrap();
    let start = format!("The node was low on resource: {resource}. Threshold quantity: ");
    assert!(message.starts_with(&start) && message.ends_with(". "), "{message:?}");
    assert_eq!(pod["status"]["phase"], "Failed");
    let target = condition(&pod, "DisruptionTarget");
    assert_eq!(
        (&target["status"], &target["reason"]),
        (&json!("True"), &json!("TerminationByKubelet"))
    );
    assert_eq!(target["message"], message);
    assert_eq!((&event["type"], &event["message"]), (&json!("Warning"), &json!(message)));
    assert_eq!(event["metadata"]["annotations"]["starved_resource"], resource);
    let told = || {
        let events = control.get(["events"]).ok()?;
        let all = events["items"].as_array().cloned().unwrap_or_default();
        all.into_iter()
            .find(|e| e["reason"] == "EvictionThresholdMet" && e["involvedObject"]["name"] == node)
    };
    let told = eventually_some(PATIENCE, "the node tells of its threshold", told).unwrap();
    assert_eq!(told["message"], format!("Attempting to reclaim {resource}"));
    let under = || {
        let node = control.get(["node", node]).ok()?;
        (condition(&node, pressure)["status"] == "True").then_some(())
    };
    eventually_some(PATIENCE, &format!("{pressure} is reported"), under).unwrap();
}

fn start(control: &Arc<ControlPlane>, name: &str, config: Value, disk: Option<u32>) -> TestNode {
    let options = KubeletOptions { node: name.to_owned(), config, ..KubeletOptions::default() };
    let mut builder = TestNode::builder().options(options).join(control);
    if let Some(mebibytes) = disk {
        builder = builder.disk("kubelet", mebibytes);
    }
    builder.kubelet(KubeletKind::from_env().unwrap()).start().unwrap()
}

/// Whether one pod has gone because of a signal.
fn counted(node: &TestNode, signal: &str) {
    let (_, page) = node.kubelet_get("/metrics").unwrap();
    let line = format!("kubelet_evictions{{eviction_signal=\"{signal}\"}} 1");
    assert!(page.lines().any(|l| l == line), "{page}");
}

/// All pods together may have 500 MiB; less than 200 MiB of that left is too little.
fn memory(control: &Arc<ControlPlane>) {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap();
    let kib: u64 = text.split_whitespace().nth(1).unwrap().parse().unwrap();
    let config = json!({
        "systemReserved": {"memory": (kib * 1024 - 500 * MIB).to_string()},
        "evictionHard": {"memory.available": "200Mi"},
        "enforceNodeAllocatable": ["pods"],
    });
    let mut node = start(control, "memory", config, None);
    control
        .create(&json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass",
            "metadata": {"name": "high"}, "value": 1000}))
        .unwrap();
    let fill = |mebibytes: u64| format!("head -c {} /dev/zero > /v/fill", mebibytes * MIB);
    let in_memory = || json!({"medium": "Memory"});
    let mut important = pod("memory", "important", &fill(120), in_memory());
    important["spec"]["priorityClassName"] = json!("high");
    control.create(&important).unwrap();
    control.create(&pod("memory", "small", &fill(30), in_memory())).unwrap();
    wait_running(control, "important");
    wait_running(control, "small");
    control.create(&pod("memory", "big", &fill(180), in_memory())).unwrap();
    check_evicted(control, "memory", "big", "memory", "MemoryPressure");
    let late = pod("memory", "late", "true", json!({}));
    control.create(&late).unwrap();
    let refused = || {
        let pod = control.get(["pod", "late"]).ok()?;
        (pod["status"]["phase"] == "Failed").then_some(pod)
    };
    let refused = eventually_some(PATIENCE, "no best effort pod is taken", refused).unwrap();
    assert_eq!(refused["status"]["reason"], "Evicted");
    assert_eq!(
        refused["status"]["message"],
        "Pod was rejected: The node had condition: [MemoryPressure]. "
    );
    for name in ["important", "small"] {
        assert_eq!(phase(control, name), "Running", "{name} stays");
    }
    counted(&node, "allocatableMemory.available");
    node.stop_kubelet();
}

/// The machine may have 900 processes more than now.
fn pids(control: &Arc<ControlPlane>) {
    let number =
        |file: &str| -> i64 { std::fs::read_to_string(file).unwrap().trim().parse().unwrap() };
    let max = number("/proc/sys/kernel/pid_max").min(number("/proc/sys/kernel/threads-max"));
    let load = std::fs::read_to_string("/proc/loadavg").unwrap();
    let now: i64 =
        load.split_whitespace().nth(3).unwrap().split_once('/').unwrap().1.parse().unwrap();
    let config = json!({"evictionHard": {"pid.available": (max - now - 900).to_string()}});
    let mut node = start(control, "pids", config, None);
    control.create(&pod("pids", "modest", "true", json!({}))).unwrap();
    wait_running(control, "modest");
    let fork = "i=0; while [ $i -lt 1800 ]; do sleep 3600 & i=$((i+1)); done";
    control.create(&pod("pids", "forks", fork, json!({}))).unwrap();
    check_evicted(control, "pids", "forks", "pids", "PIDPressure");
    assert_eq!(phase(control, "modest"), "Running");
    node.stop_kubelet();
}

/// The kubelet's disk has 400 MiB; less than 200 MiB of that left is too little.
fn disk(control: &Arc<ControlPlane>) {
    let config = json!({
        "evictionHard": {"nodefs.available": "200Mi", "imagefs.available": "1%"},
        "volumeStatsAggPeriod": "1s",
    });
    let mut node = start(control, "disk", config, Some(400));
    let write = |mebibytes: u64| {
        let (one, rest) = (mebibytes.min(60), mebibytes.saturating_sub(60));
        format!(
            "head -c {} /dev/zero > /v/a; sleep 5; head -c {} /dev/zero > /v/b",
            one * MIB,
            rest * MIB
        )
    };
    control.create(&pod("disk", "calm", &write(10), json!({}))).unwrap();
    let limited = pod("disk", "limited", &write(20), json!({"sizeLimit": "5Mi"}));
    control.create(&limited).unwrap();
    let (pod_status, event) = wait_evicted(control, "limited");
    let message = "Usage of EmptyDir volume \"v\" exceeds the limit \"5Mi\". ";
    assert_eq!(
        (&pod_status["status"]["message"], &event["message"]),
        (&json!(message), &json!(message))
    );
    assert_eq!(condition(&pod_status, "DisruptionTarget"), Value::Null, "its own fault");
    control.create(&pod("disk", "writer", &write(250), json!({}))).unwrap();
    check_evicted(control, "disk", "writer", "ephemeral-storage", "DiskPressure");
    assert_eq!(phase(control, "calm"), "Running");
    node.stop_kubelet();
}

/// Images and writable layers have a disk of 500 MiB; less than 250 MiB of that left is too little. Who has much on
/// the node's own disk is not the one to go.
fn images(control: &Arc<ControlPlane>) {
    let config = json!({
        "evictionHard": {"nodefs.available": "1%", "imagefs.available": "250Mi"},
        "volumeStatsAggPeriod": "1s",
    });
    let name = "images".to_owned();
    let options = KubeletOptions { node: name, config, ..KubeletOptions::default() };
    let builder = TestNode::builder().options(options).join(control).disk("containerd", 500);
    let mut node = builder.kubelet(KubeletKind::from_env().unwrap()).start().unwrap();
    let elsewhere = format!("head -c {} /dev/zero > /v/a", 100 * MIB);
    control.create(&pod("images", "elsewhere", &elsewhere, json!({}))).unwrap();
    wait_running(control, "elsewhere");
    // The runtime measures layers every ten seconds: by the time that it matters it knows of the first part.
    let script = format!(
        "head -c {} /dev/zero > /a; sleep 25; head -c {} /dev/zero > /b",
        60 * MIB,
        200 * MIB
    );
    control.create(&pod("images", "layers", &script, json!({}))).unwrap();
    check_evicted(control, "images", "layers", "ephemeral-storage", "DiskPressure");
    assert_eq!(phase(control, "elsewhere"), "Running");
    counted(&node, "imagefs.available");
    node.stop_kubelet();
}

/// Little space is borne for a while, and who goes then may end in peace.
fn soft(control: &Arc<ControlPlane>) {
    let config = json!({
        "evictionHard": {"nodefs.available": "1%", "imagefs.available": "1%"},
        "evictionSoft": {"nodefs.available": "200Mi"},
        "evictionSoftGracePeriod": {"nodefs.available": "5s"},
        "evictionMaxPodGracePeriod": 20,
        "volumeStatsAggPeriod": "1s",
    });
    let mut node = start(control, "soft", config, Some(400));
    control.create(&pod("soft", "still", "true", json!({}))).unwrap();
    wait_running(control, "still");
    let script = format!(
        "trap 'sleep 3; exit 7' TERM; head -c {} /dev/zero > /v/a; sleep 3600 & wait; true",
        250 * MIB
    );
    let mut writer = pod("soft", "polite", &script, json!({}));
    writer["spec"]["terminationGracePeriodSeconds"] = json!(60);
    control.create(&writer).unwrap();
    let pressed = || {
        let node = control.get(["node", "soft"]).ok()?;
        (condition(&node, "DiskPressure")["status"] == "True").then_some(())
    };
    eventually_some(PATIENCE, "the pressure is told at once", pressed).unwrap();
    check_evicted(control, "soft", "polite", "ephemeral-storage", "DiskPressure");
    let ended = || {
        let pod = control.get(["pod", "polite"]).ok()?;
        let ended = pod["status"]["containerStatuses"][0]["state"]["terminated"].clone();
        ended.is_object().then_some(ended)
    };
    let ended = eventually_some(PATIENCE, "its container has ended", ended).unwrap();
    assert_eq!(ended["exitCode"], 7, "it had the time it needs: {ended}");
    assert_eq!(phase(control, "still"), "Running");
    counted(&node, "nodefs.available");
    node.stop_kubelet();
}

#[test]
fn the_right_pod_goes_first_when_memory_pids_or_disk_run_short() {
    let options = ControlPlaneOptions {
        nodes: ["memory", "pids", "disk", "soft", "images"].map(str::to_owned).to_vec(),
        ..ControlPlaneOptions::default()
    };
    let control = Arc::new(ControlPlane::start(&options).unwrap());
    type Scene = fn(&Arc<ControlPlane>);
    let scenes: [(&str, Scene); 5] =
        [("memory", memory), ("pids", pids), ("disk", disk), ("soft", soft), ("images", images)];
    let only = std::env::var("SCENE").ok();
    let chosen = scenes.into_iter().filter(|(name, _)| only.as_deref().is_none_or(|o| o == *name));
    let running: Vec<_> = chosen
        .map(|(name, scene)| {
            let control = Arc::clone(&control);
            (name, std::thread::Builder::new().name(name.to_owned()).spawn(move || scene(&control)))
        })
        .collect();
    let outcomes: Vec<_> =
        running.into_iter().map(|(name, thread)| (name, thread.unwrap().join())).collect();
    for (name, outcome) in outcomes {
        assert!(outcome.is_ok(), "{name} failed");
    }
}
