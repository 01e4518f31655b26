//! A shutdown of the machine, announced by a stand-in for logind on a bus of the test's own.
#![forbid(unsafe_code)]
#![expect(clippy::disallowed_methods, reason = "a test on the real machine")]

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use testkit::real::{
    ControlPlane, ControlPlaneOptions, FakeLogind, KubeletKind, KubeletOptions, Slot, TestNode,
    eventually, eventually_some,
};

const PATIENCE: Duration = Duration::from_secs(90);
const IMAGE: &str = "registry.k8s.io/e2e-test-images/busybox:1.37.0-1";

fn pod(name: &str, script: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod",
    "metadata": {"name": name, "namespace": "default"},
    "spec": {
        "nodeName": "node1", "automountServiceAccountToken": false,
        "terminationGracePeriodSeconds": 2, "restartPolicy": "Always",
        "containers": [{"name": name, "image": IMAGE, "command": ["sh", "-c", script]}],
    }})
}

fn ready(node: &Value) -> Value {
    let all = node["status"]["conditions"].as_array().cloned().unwrap_or_default();
    all.into_iter().find(|c| c["type"] == "Ready").unwrap_or_default()
}

#[test]
fn pods_end_before_the_machine_and_it_is_held_up_until_then() {
    let bus = Slot::take().unwrap();
    let logind = FakeLogind::start(&bus, Duration::from_secs(300)).unwrap();
    let control = Arc::new(ControlPlane::start(&ControlPlaneOptions::default()).unwrap());
    let options = KubeletOptions {
        config: json!({"shutdownGracePeriod": "20s", "shutdownGracePeriodCriticalPods": "10s"}),
        env: vec![("DBUS_SYSTEM_BUS_ADDRESS".to_owned(), logind.address().to_owned())],
        ..KubeletOptions::default()
    };
    let kind = KubeletKind::from_env().unwrap();
    let mut node =
        TestNode::builder().options(options).kubelet(kind).join(&control).start().unwrap();
    let stays = "trap 'exit 1' TERM; sleep 3600 & wait";
    control.create(&pod("regular", stays)).unwrap();
    let mut critical = pod("critical", stays);
    critical["spec"]["priorityClassName"] = json!("system-node-critical");
    control.create(&critical).unwrap();
    for name in ["regular", "critical"] {
        node.wait_running(name, PATIENCE).unwrap();
    }
    let (who, held) = logind.newest_lock().unwrap();
    assert_eq!(who, "shutdown kubelet Kubelet needs time to handle node shutdown delay");
    assert!(held);

    logind.announce(true).unwrap();
    let ended = |name: &'static str| {
        let control = Arc::clone(&control);
        move || {
            let pod = control.get(["pod", name]).ok()?;
            (pod["status"]["reason"] == "Terminated").then_some(pod)
        }
    };
    for name in ["regular", "critical"] {
        let pod = eventually_some(PATIENCE, &format!("{name} is told why"), ended(name)).unwrap();
        let message = "Pod was terminated in response to imminent node shutdown.";
        assert_eq!(
            (&pod["status"]["phase"], &pod["status"]["message"]),
            (&json!("Failed"), &json!(message))
        );
        let conditions = pod["status"]["conditions"].as_array().unwrap();
        let target = conditions.iter().find(|c| c["type"] == "DisruptionTarget").unwrap();
        assert_eq!(
            (&target["reason"], &target["message"]),
            (&json!("TerminationByKubelet"), &json!(message))
        );
    }
    let released = || logind.newest_lock().is_some_and(|(_, held)| !held);
    eventually(PATIENCE, "the machine may go", released).unwrap();
    let down = || {
        let node = control.get(["node", "node1"]).ok()?;
        let ready = ready(&node);
        (ready["status"] == "False").then_some(ready)
    };
    let down = eventually_some(PATIENCE, "the node is not ready", down).unwrap();
    assert_eq!(down["message"], "node is shutting down");
    control.create(&pod("late", stays)).unwrap();
    let refused = || {
        let pod = control.get(["pod", "late"]).ok()?;
        (pod["status"]["phase"] == "Failed").then_some(pod)
    };
    let refused = eventually_some(PATIENCE, "no pod is taken", refused).unwrap();
    assert_eq!(refused["status"]["reason"], "NodeShutdown");
    let (_, page) = node.kubelet_get("/metrics").unwrap();
    let end =
        page.lines().find_map(|l| l.strip_prefix("kubelet_graceful_shutdown_end_time_seconds "));
    assert!(end.is_some_and(|v| v.parse::<f64>().unwrap() > 0.0), "{end:?}");
    let state =
        std::fs::read_to_string(node.root_dir().join("graceful_node_shutdown_state")).unwrap();
    let state: Value = serde_json::from_str(&state).unwrap();
    assert_ne!(state["endTime"], "0001-01-01T00:00:00Z");

    logind.announce(false).unwrap();
    let again = || logind.newest_lock().is_some_and(|(_, held)| held);
    if kind == KubeletKind::Rubelet {
        // The Go kubelet closes the new lock with the number of the old one.
        eventually(PATIENCE, "the machine is held up again", again).unwrap();
    }
    let up = || {
        let node = control.get(["node", "node1"]).ok()?;
        (ready(&node)["status"] == "True").then_some(())
    };
    eventually_some(PATIENCE, "the node is ready again", up).unwrap();
    node.stop_kubelet();
}
