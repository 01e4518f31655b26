//! The node's status as a whole, against the recorded node of the Go kubelet.

use super::*;
use serde_json::json;

fn golden() -> Value {
    let text = include_str!("../../../../fixtures/golden/node.json");
    serde_json::from_str(text).unwrap()
}

fn settings() -> NodeSettings {
    NodeSettings {
        node_name: "node1".into(),
        hostname: "node1".into(),
        architecture: "amd64".into(),
        kubelet_version: "v1.36.4".into(),
        controller_attach: true,
        max_pods: 600,
        port: 10250,
        max_images: 50,
        local_storage_isolation: true,
        report_runtime_handlers: true,
        report_features: true,
        report_swap: true,
        declared_features: Some(vec![
            "ExtendWebSocketsToKubelet".into(),
            "InPlacePodLevelResourcesVerticalScaling".into(),
            "InPlacePodVerticalScalingInitContainers".into(),
            "RestartAllContainersOnContainerExits".into(),
        ]),
        reservation: Reservation {
            memory_eviction: Some(Threshold::Amount("100Mi".parse().unwrap())),
            storage_eviction: Some(Threshold::Share(0.01)),
            ..Reservation::default()
        },
        ..NodeSettings::default()
    }
}

fn facts() -> NodeFacts {
    let golden = golden();
    let mut images: Vec<ImageFacts> = Vec::new();
    for (n, image) in golden["status"]["images"].as_array().unwrap().iter().enumerate() {
        let names: Vec<String> = serde_json::from_value(image["names"].clone()).unwrap();
        let (digests, tags) = names.into_iter().partition(|name| name.contains('@'));
        let size_bytes = image["sizeBytes"].as_i64().unwrap();
        images.push(ImageFacts { id: format!("sha256:{n:02}"), size_bytes, digests, tags });
    }
    images.reverse();
    let handler = |name: &str| RuntimeHandlerFacts {
        name: name.into(),
        recursive_read_only_mounts: true,
        user_namespaces: false,
    };
    NodeFacts {
        machine: Some(MachineFacts {
            cores: 2,
            memory_bytes: 24_682_416 * 1024,
            swap_bytes: 0,
            huge_pages: vec![
                HugePageFacts { page_bytes: 2 << 20, count: 0 },
                HugePageFacts { page_bytes: 1 << 30, count: 0 },
            ],
            machine_id: "3d1219c7c4c5404aaa1f6d2a48adfda4".into(),
            system_uuid: "3d1219c7c4c5404aaa1f6d2a48adfda4".into(),
            boot_id: "cb103274-fb3a-485f-b4e0-68afc467faf0".into(),
        }),
        kernel_version: "6.18.44-fc-v445".into(),
        os_image: "Debian GNU/Linux 12 (bookworm)".into(),
        addresses: AddressFacts {
            default_route: Some("192.0.2.2".parse().unwrap()),
            ..AddressFacts::default()
        },
        ephemeral_storage_bytes: Some(264_212_084 * 1024),
        runtime: RuntimeFacts {
            name: "containerd".into(),
            version: Some("2.3.4".into()),
            handlers: vec![handler("runc"), handler("")],
            supplemental_groups_policy: Some(true),
            ..RuntimeFacts::default()
        },
        images,
        ..NodeFacts::default()
    }
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + second).unwrap()
}

fn first() -> NodeUpdate {
    initial_node(&settings(), &facts(), NodeMemory::default(), at(0))
}

fn reasons(update: &NodeUpdate) -> Vec<&'static str> {
    update.events.iter().map(|e| e.reason).collect()
}

#[test]
fn a_new_node_is_the_recorded_one() {
    let update = first();
    assert!(update.faults.is_empty(), "{:?}", update.faults);
    let mut ours = to_value(&update.node);
    let mut theirs = golden();
    for node in [&mut ours, &mut theirs] {
        for condition in node["status"]["conditions"].as_array_mut().unwrap() {
            let condition = condition.as_object_mut().unwrap();
            condition.remove("lastHeartbeatTime");
            condition.remove("lastTransitionTime");
        }
        let metadata = node["metadata"].as_object_mut().unwrap();
        metadata.remove("uid");
        metadata.remove("creationTimestamp");
    }
    pretty(&ours, &theirs);
    let events = ["NodeHasSufficientMemory", "NodeHasNoDiskPressure", "NodeHasSufficientPID"];
    assert_eq!(reasons(&update), events, "a new Ready condition has no event");
}

fn pretty(ours: &Value, theirs: &Value) {
    let (ours, theirs) = (format!("{ours:#}"), format!("{theirs:#}"));
    for (a, b) in ours.lines().zip(theirs.lines()) {
        assert_eq!(a.trim_end_matches(','), b.trim_end_matches(','));
    }
    assert_eq!(ours.lines().count(), theirs.lines().count());
}

#[test]
fn an_unchanged_node_is_not_changed_by_time() {
    let before = first();
    let after = update(&before.node, &settings(), &facts(), before.memory, at(100));
    assert!(!after.changed);
    assert!(after.events.is_empty());
    let patch = status_patch(&before.node, &after.node).unwrap().0;
    let sent = patch["status"]["conditions"].as_array().unwrap();
    assert_eq!(sent.len(), 4, "heartbeat times are all that moved");
    let fields: Vec<&String> = sent[0].as_object().unwrap().keys().collect();
    assert_eq!(fields, ["lastHeartbeatTime", "type"]);
}

#[test]
fn ready_message_changes_without_a_transition_while_not_ready() {
    let mut broken = facts();
    broken.runtime.errors = vec!["container runtime is down".into()];
    let down = update(&first().node, &settings(), &broken, NodeMemory::default(), at(10));
    assert_eq!(reasons(&down), ["NodeNotReady"]);
    let ready = |update: &NodeUpdate| {
        let conditions = update.node.status.as_ref().unwrap().conditions.as_ref().unwrap();
        conditions.iter().find(|c| c.type_ == "Ready").unwrap().clone()
    };
    assert_eq!(ready(&down).message.as_deref(), Some("container runtime is down"));
    broken.runtime.network_error = Some("network state unknown".into());
    let worse = update(&down.node, &settings(), &broken, down.memory.clone(), at(20));
    assert!(worse.changed && worse.events.is_empty());
    let message = ready(&worse).message.unwrap();
    assert_eq!(message, "[container runtime is down, network state unknown]");
    assert_eq!(ready(&worse).last_transition_time, ready(&down).last_transition_time);
}

#[test]
fn pressure_changes_condition_and_posts_an_event() {
    let before = first();
    let mut tight = facts();
    tight.pressure.memory = true;
    let after = update(&before.node, &settings(), &tight, before.memory, at(5));
    assert_eq!(reasons(&after), ["NodeHasInsufficientMemory"]);
    assert!(after.changed);
}

#[test]
fn huge_pages_are_taken_out_of_allocatable_memory() {
    let mut facts = facts();
    facts.machine.as_mut().unwrap().huge_pages[0].count = 512;
    let node = initial_node(&settings(), &facts, NodeMemory::default(), at(0)).node;
    let allocatable = node.status.unwrap().allocatable.unwrap();
    assert_eq!(allocatable["hugepages-2Mi"].0, "1Gi");
    assert_eq!(allocatable["memory"].0, "23531440Ki");
}

#[test]
fn device_resources_follow_their_plugins() {
    let mut with = facts();
    let name = "example.com/gpu".to_owned();
    with.devices.capacity = [(name.clone(), "2".parse().unwrap())].into();
    with.devices.allocatable = [(name.clone(), "1".parse().unwrap())].into();
    let before = initial_node(&settings(), &with, NodeMemory::default(), at(0));
    let status = before.node.status.clone().unwrap();
    assert_eq!(status.capacity.unwrap()[&name].0, "2");
    assert_eq!(status.allocatable.unwrap()[&name].0, "1");
    let mut gone = facts();
    gone.devices.removed = vec![name.clone()];
    let after = update(&before.node, &settings(), &gone, before.memory, at(1));
    let status = after.node.status.unwrap();
    assert_eq!(status.capacity.unwrap()[&name].0, "0");
    assert_eq!(status.allocatable.unwrap()[&name].0, "0");
}

#[test]
fn a_reboot_is_announced_once() {
    let mut old = first().node;
    old.status.as_mut().unwrap().node_info.as_mut().unwrap().boot_id = "before".into();
    let once = update(&old, &settings(), &facts(), NodeMemory::default(), at(1));
    assert_eq!(reasons(&once), ["Rebooted"]);
    let again = update(&old, &settings(), &facts(), once.memory, at(2));
    assert!(again.events.is_empty());
}

#[test]
fn cordoning_is_announced_both_ways() {
    let mut node = first().node;
    node.spec.get_or_insert_default().unschedulable = Some(true);
    let cordoned = update(&node, &settings(), &facts(), NodeMemory::default(), at(1));
    assert_eq!(reasons(&cordoned), ["NodeNotSchedulable"]);
    node.spec.get_or_insert_default().unschedulable = None;
    let free = update(&node, &settings(), &facts(), cordoned.memory, at(2));
    assert_eq!(reasons(&free), ["NodeSchedulable"]);
}

#[test]
fn an_existing_node_keeps_its_own_labels_and_gets_the_default_ones_right() {
    let mut initial = settings();
    initial.labels = [("team".into(), "new".into())].into();
    let initial = initial_node(&initial, &facts(), NodeMemory::default(), at(0)).node;
    let mut existing = first().node;
    let labels = existing.metadata.labels.as_mut().unwrap();
    labels.insert("team".into(), "old".into());
    labels.insert("kubernetes.io/hostname".into(), "other".into());
    let capacity = existing.status.as_mut().unwrap().capacity.as_mut().unwrap();
    let gone = capacity["hugepages-2Mi"].clone();
    capacity.insert("hugepages-64Ki".into(), gone);
    let patch = existing_node_patch(&existing, &initial, &facts()).unwrap().0;
    assert_eq!(
        patch,
        json!({
            "metadata": {"labels": {"kubernetes.io/hostname": "node1"}},
            "status": {"capacity": {"hugepages-64Ki": null}},
        })
    );
    assert_eq!(existing_node_patch(&first().node, &first().node, &facts()), None);
}

#[test]
fn extended_resources_restart_at_zero_in_an_empty_folder_before_the_runtime_is_ready() {
    let mut existing = first().node;
    let status = existing.status.as_mut().unwrap();
    let two = status.capacity.as_ref().unwrap()["cpu"].clone();
    status.capacity.as_mut().unwrap().insert("example.com/gpu".into(), two.clone());
    status.allocatable.as_mut().unwrap().insert("example.com/gpu".into(), two);
    let mut facts = facts();
    let patch = |facts: &NodeFacts| existing_node_patch(&existing, &first().node, facts);
    assert_eq!(patch(&facts), None);
    facts.devices.folder_was_empty = true;
    facts.runtime.was_ready = true;
    assert_eq!(patch(&facts), None, "the socket is there by then");
    facts.runtime.was_ready = false;
    let patch = patch(&facts).unwrap().0;
    assert_eq!(patch["status"]["capacity"], json!({"example.com/gpu": "0"}));
    assert_eq!(patch["status"]["allocatable"], json!({"example.com/gpu": "0"}));
}

#[test]
fn changed_addresses_are_sent_whole_and_removed_conditions_are_marked() {
    let mut old = first().node;
    let status = old.status.as_mut().unwrap();
    status.addresses.as_mut().unwrap()[0].address = "192.0.2.1".into();
    let extra = api::core::v1::NodeCondition {
        type_: "NetworkUnavailable".into(),
        status: "False".into(),
        ..Default::default()
    };
    status.conditions.as_mut().unwrap().push(extra);
    let patch = status_patch(&old, &first().node).unwrap().0;
    assert_eq!(
        patch["status"]["addresses"],
        json!([
            {"type": "InternalIP", "address": "192.0.2.2"},
            {"type": "Hostname", "address": "node1"},
            {"$patch": "replace"}
        ])
    );
    let conditions = patch["status"]["conditions"].as_array().unwrap();
    assert_eq!(conditions, &[json!({"$patch": "delete", "type": "NetworkUnavailable"})]);
}

#[test]
fn conditions_of_others_are_left_alone() {
    let mut old = first().node;
    let extra = api::core::v1::NodeCondition {
        type_: "NetworkUnavailable".into(),
        status: "False".into(),
        ..Default::default()
    };
    old.status.as_mut().unwrap().conditions.as_mut().unwrap().push(extra);
    let after = update(&old, &settings(), &facts(), NodeMemory::default(), at(1));
    assert!(!after.changed);
    let conditions = after.node.status.unwrap().conditions.unwrap();
    assert_eq!(conditions.last().unwrap().type_, "NetworkUnavailable");
}
