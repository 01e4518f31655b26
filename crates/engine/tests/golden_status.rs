//! For every golden: the status computed from its pod and a runtime that holds what the golden's containers show is
//! the status the Go kubelet published.

#![expect(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test binary")]

use api::core::v1::{
    ContainerStateTerminated, ContainerStatus, EphemeralContainer, Pod, PodStatus,
};
use api::ids::{ContainerId, PodUid, SandboxId};
use api::pod::PodStatusExt;
use engine::pod::Actuated;
use engine::probe::{ProbeKind, ProbeOutcome, ProbeResults};
use engine::runtime::{
    ContainerRunState, ContainerView, NamespaceMode, RestoredSpec, RuntimePod, RuntimeUser,
    SandboxNetwork, SandboxState, SandboxView,
};
use engine::status::cache::{Cached, Offer, Taken, take};
use engine::status::{NodeFacts, StartError, StatusGates, StatusView, bare_id, generate, rejected};
use jiff::Timestamp;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::PathBuf;

const POD_IP: &str = "10.88.0.9";
const NODE_IP: &str = "192.0.2.2";
const TIME: &str = "2026-01-02T03:04:05Z";

fn start() -> Timestamp {
    TIME.parse().unwrap()
}

fn load(path: &std::path::Path) -> (Pod, PodStatus) {
    let text = std::fs::read_to_string(path)
        .unwrap()
        .replace("$POD_IP", POD_IP)
        .replace("$NODE_IP", NODE_IP)
        .replace("$TIME", TIME);
    let mut golden: Value = serde_json::from_str(&text).unwrap();
    let mut pod: Pod = serde_json::from_value(golden["pod"].take()).unwrap();
    let status: PodStatus = serde_json::from_value(golden["status_before_delete"].take()).unwrap();
    // What was changed on the running pod: an ephemeral container, a resize, a condition of somebody else.
    pod.metadata.generation = status.observed_generation;
    let spec = pod.spec.as_mut().unwrap();
    for entry in status.ephemeral_container_statuses.iter().flatten() {
        let list = spec.ephemeral_containers.get_or_insert_default();
        if !list.iter().any(|e| e.name == entry.name) {
            list.push(EphemeralContainer {
                name: entry.name.clone(),
                image: Some(entry.image.clone()),
                ..EphemeralContainer::default()
            });
        }
    }
    for entry in entries(&status) {
        let container = spec.containers.iter_mut().find(|c| c.name == entry.name);
        if let (Some(container), Some(_)) = (container, &entry.allocated_resources) {
            container.resources.clone_from(&entry.resources);
        }
    }
    let foreign =
        status.conditions.iter().flatten().filter(|c| !engine::status::is_owned(&c.type_));
    pod.status.as_mut().unwrap().conditions = Some(foreign.cloned().collect());
    (pod, status)
}

fn entries(status: &PodStatus) -> impl Iterator<Item = &ContainerStatus> {
    [
        &status.init_container_statuses,
        &status.container_statuses,
        &status.ephemeral_container_statuses,
    ]
    .into_iter()
    .flatten()
    .flatten()
}

fn instance(entry: &ContainerStatus, id: &str, order: i64) -> ContainerView {
    ContainerView {
        id: ContainerId::from(id.rsplit_once("//").unwrap().1),
        sandbox: SandboxId::from("s0"),
        name: entry.name.clone(),
        attempt: 0,
        state: ContainerRunState::Running,
        created_at: Timestamp::from_second(order).unwrap(),
        started_at: Some(start()),
        finished_at: None,
        exit_code: 0,
        reason: String::new(),
        message: String::new(),
        image: entry.image.clone(),
        user_image: None,
        image_id: String::new(),
        image_ref: entry.image_id.clone(),
        hash: 0,
        restart_count: entry.restart_count,
        log_path: String::new(),
        resources: None,
        user: entry.user.as_ref().and_then(|u| u.linux.as_ref()).map(|u| RuntimeUser {
            uid: u.uid,
            gid: u.gid,
            supplemental_groups: u.supplemental_groups.clone().unwrap_or_default(),
        }),
        mounts: Vec::new(),
        stop_signal: entry.stop_signal.clone(),
        termination_message_path: String::new(),
        termination_message_policy: String::new(),
        restored: RestoredSpec::default(),
    }
}

fn ended(entry: &ContainerStatus, ended: &ContainerStateTerminated, order: i64) -> ContainerView {
    ContainerView {
        state: ContainerRunState::Exited,
        finished_at: Some(start()),
        exit_code: ended.exit_code,
        reason: ended.reason.clone().unwrap_or_default(),
        message: ended.message.clone().unwrap_or_default(),
        ..instance(entry, ended.container_id.as_deref().unwrap(), order)
    }
}

/// A runtime that holds what the entries show, and the start errors that they carry.
fn world(pod: &Pod, status: &PodStatus) -> (RuntimePod, BTreeMap<String, StartError>) {
    let uid = PodUid::from("$UID");
    let mut runtime = RuntimePod::empty(uid, "p", "golden", start());
    let mut errors = BTreeMap::new();
    let condition =
        status.conditions.iter().flatten().find(|c| c.type_ == "PodReadyToStartContainers");
    let ready = condition.is_some_and(|c| c.status == "True");
    let host = pod.spec.as_ref().unwrap().host_network == Some(true);
    let started = entries(status).any(|e| e.container_id.is_some());
    if ready || started {
        runtime.sandboxes.push(SandboxView {
            id: SandboxId::from("s0"),
            attempt: 0,
            state: if ready { SandboxState::Ready } else { SandboxState::NotReady },
            created_at: start(),
            network_mode: if host { NamespaceMode::Node } else { NamespaceMode::Pod },
            pid_mode: NamespaceMode::Container,
            network: Some(SandboxNetwork { ip: POD_IP.to_owned(), additional_ips: Vec::new() }),
            runtime_handler: String::new(),
        });
    }
    if !host {
        runtime.ips = status.pod_ip.iter().cloned().collect();
    }
    for entry in entries(status) {
        let state = entry.state.clone().unwrap_or_default();
        let last = entry.last_state.clone().unwrap_or_default();
        if let Some(before) = &last.terminated {
            runtime.containers.push(ended(entry, before, 1));
        }
        if let Some(now) = &state.terminated {
            runtime.containers.push(ended(entry, now, 2));
        }
        if state.running.is_some() {
            runtime.containers.push(instance(entry, entry.container_id.as_deref().unwrap(), 2));
        }
        if let Some(waiting) = &state.waiting {
            let reason = waiting.reason.clone().unwrap_or_default();
            if !matches!(reason.as_str(), "ContainerCreating" | "PodInitializing") {
                let message = waiting.message.clone().unwrap_or_default();
                errors.insert(entry.name.clone(), StartError { reason, message });
            }
        }
    }
    runtime.normalise();
    (runtime, errors)
}

fn probe_results(status: &PodStatus) -> ProbeResults {
    let mut probes = ProbeResults::default();
    for entry in entries(status) {
        let Some(id) = bare_id(entry) else { continue };
        if entry.started == Some(true) {
            probes.set(&id, ProbeKind::Startup, ProbeOutcome::Success);
        }
        let outcome = if entry.ready { ProbeOutcome::Success } else { ProbeOutcome::Failure };
        probes.set(&id, ProbeKind::Readiness, outcome);
    }
    probes
}

fn actuated(pod: &Pod) -> Actuated {
    let spec = pod.spec.as_ref().unwrap();
    let containers = spec.containers.iter();
    Actuated {
        containers: containers
            .filter_map(|c| Some((c.name.clone(), c.resources.clone()?)))
            .collect(),
        pod_level: spec.resources.clone(),
    }
}

fn cached(taken: Taken) -> Cached {
    match taken {
        Taken::Changed { cached, .. } => cached,
        other => panic!("expected a change, got {other:?}"),
    }
}

/// Times aside, and without the pod-level resources that differ from run to run.
fn comparable(status: &PodStatus) -> Value {
    let mut value = serde_json::to_value(status).unwrap();
    value.as_object_mut().unwrap().remove("resources");
    if let Some(list) = value.get_mut("conditions").and_then(Value::as_array_mut) {
        list.sort_by_key(|c| c["type"].as_str().unwrap_or_default().to_owned());
    }
    without_times(&mut value);
    value
}

fn without_times(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.retain(|name, _| !name.ends_with("Time") && !name.ends_with("At"));
            map.values_mut().for_each(without_times);
        }
        Value::Array(list) => list.iter_mut().for_each(without_times),
        _ => {}
    }
}

fn computed(pod: &Pod, golden: &PodStatus) -> PodStatus {
    let gates = StatusGates::default();
    let api = pod.status.clone().unwrap();
    if golden.conditions.is_none() {
        let message = golden.message.as_deref().unwrap();
        let message = message.strip_prefix("Pod was rejected: ").unwrap();
        let status = rejected(pod, golden.reason.as_deref().unwrap(), message, &gates);
        let offer = Offer::default();
        return cached(take(pod, None, &api, status, offer, &gates, start()))
            .status
            .as_ref()
            .clone();
    }
    let (runtime, start_errors) = world(pod, golden);
    let nothing = RuntimePod::empty(PodUid::from("$UID"), "p", "golden", start());
    let node = NodeFacts {
        runtime_name: "containerd".to_owned(),
        host_ips: vec![NODE_IP.parse().unwrap()],
        ipv6_first: false,
        recursive_read_only: false,
    };
    let first = StatusView {
        pod,
        runtime: &nothing,
        old: &api,
        probes: &ProbeResults::default(),
        start_errors: &BTreeMap::new(),
        actuated: &Actuated::default(),
        cgroup: None,
        resize: &[],
        health: &BTreeMap::new(),
        terminal: false,
        evicted: false,
        node: &node,
        gates: &gates,
    };
    let offered = generate(&first, start()).status;
    let before = cached(take(pod, None, &api, offered, Offer::default(), &gates, start()));
    let second = StatusView {
        runtime: &runtime,
        old: &before.status,
        probes: &probe_results(golden),
        start_errors: &start_errors,
        actuated: &actuated(pod),
        terminal: golden.is_terminal(),
        ..first
    };
    let later = start().checked_add(std::time::Duration::from_secs(100)).unwrap();
    let offered = generate(&second, later).status;
    match take(pod, Some(&before), &api, offered, Offer::default(), &gates, later) {
        Taken::Changed { cached, .. } => cached.status.as_ref().clone(),
        Taken::Same { .. } => before.status.as_ref().clone(),
        Taken::Illegal { message } => panic!("{message}"),
    }
}

#[test]
fn every_golden_status_is_computed_alike() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/golden/pods");
    let mut seen = 0;
    let mut wrong = Vec::new();
    for file in std::fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        let (pod, golden) = load(&path);
        let found = comparable(&computed(&pod, &golden));
        let expected = comparable(&golden);
        seen += 1;
        if found != expected {
            let name = path.file_stem().unwrap().to_string_lossy().into_owned();
            wrong.push(json!({ "golden": name, "expected": expected, "found": found }).to_string());
        }
    }
    assert!(seen > 50, "only {seen} goldens");
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
}
