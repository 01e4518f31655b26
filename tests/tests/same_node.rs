//! The node as `kubectl` shows it: the Go kubelet registers it, then ours takes its place, and the two
//! objects are compared field by field.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a test on the real machine")]

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::Value;
use testkit::real::{ControlPlane, ControlPlaneOptions, KubeletKind, TestNode};
use tests::cluster::{Space, condition};

/// What `kubelet` makes of the node when it starts on an empty cluster: the object, what `kubectl
/// describe` shows, and the events about it.
fn registered(kind: KubeletKind) -> (Value, String, BTreeSet<(String, String, String)>) {
    let control = Arc::new(ControlPlane::start(&ControlPlaneOptions::default()).unwrap());
    let mut node = TestNode::builder().kubelet(kind).join(&control).start().unwrap();
    let space = Space::default_of(&control);
    let object = space
        .wait("the node is ready and has its images", || {
            let object = control.get(["node", "node1"]).ok()?;
            let images = object["status"]["images"].as_array().map_or(0, Vec::len);
            (condition(&object, "Ready") == "True" && images == 2).then_some(object)
        })
        .unwrap();
    let lease = ["lease", "node1", "-n", "kube-node-lease"];
    space.wait("the node has a lease", || control.get(lease).ok()).unwrap();
    let described = control.kubectl(["describe", "node", "node1"]).unwrap();
    let events = space
        .wait("the events of a start", || {
            let events: BTreeSet<_> = space.events("node1").ok()?.into_iter().collect();
            let told = |wanted: &str| events.iter().any(|(_, reason, _)| reason == wanted);
            (told("NodeReady") && told("NodeAllocatableEnforced")).then_some(events)
        })
        .unwrap();
    node.stop_kubelet();
    (object, described, events)
}

/// Replace what differs from run to run.
fn settle(node: &mut Value) {
    for field in ["uid", "resourceVersion", "creationTimestamp", "managedFields"] {
        node["metadata"].as_object_mut().unwrap().remove(field);
    }
    // Ours says who it is behind the version that it replaces.
    let version = node["status"]["nodeInfo"]["kubeletVersion"].as_str().unwrap();
    let version = version.split("+rubelet").next().unwrap().to_owned();
    node["status"]["nodeInfo"]["kubeletVersion"] = version.into();
    node["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"] = 0.into();
    for condition in node["status"]["conditions"].as_array_mut().unwrap() {
        for field in ["lastHeartbeatTime", "lastTransitionTime"] {
            assert!(condition[field].is_string(), "{condition}");
            condition[field] = "$TIME".into();
        }
    }
}

/// Lines of a description without times, ports and ids.
fn steady(described: &str) -> Vec<String> {
    let moving = ["CreationTimestamp:", "AcquireTime:", "RenewTime:"];
    let words = |line: &str| {
        let all = line.split_whitespace();
        let steady = all.filter(|word| !word.contains(':') || word.ends_with(':'));
        let words = steady.map(|word| word.split("+rubelet").next().unwrap_or_default());
        words.collect::<Vec<_>>().join(" ")
    };
    let body = described.split("\nEvents:").next().unwrap_or_default();
    body.lines()
        .filter(|line| !moving.iter().any(|start| line.trim_start().starts_with(start)))
        .map(words)
        .collect()
}

#[test]
fn the_node_is_the_one_that_the_go_kubelet_registers() {
    let (mut theirs, their_text, their_events) = registered(KubeletKind::Go);
    let (mut ours, our_text, our_events) = registered(KubeletKind::Rubelet);
    settle(&mut theirs);
    settle(&mut ours);
    for part in ["metadata", "spec", "status"] {
        let fields: BTreeSet<&String> = [&ours, &theirs]
            .into_iter()
            .flat_map(|node| node[part].as_object().unwrap().keys())
            .collect();
        for field in fields {
            assert_eq!(ours[part][field], theirs[part][field], "{part}.{field}");
        }
    }
    assert_eq!(steady(&our_text), steady(&their_text));
    assert_eq!(our_events, their_events);
}
