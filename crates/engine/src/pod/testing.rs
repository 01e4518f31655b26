//! Pods and runtime states in one line each, for tests of decisions.

use crate::pod::container_hash;
use crate::runtime::{
    ContainerRunState, ContainerView, NamespaceMode, RestoredSpec, RuntimePod, SandboxNetwork,
    SandboxState, SandboxView,
};
use api::core::v1::{
    Container, ContainerRestartRule, ContainerRestartRuleOnExitCodes, EphemeralContainer, Pod,
    PodSpec, Probe,
};
use api::ids::{ContainerId, PodUid, SandboxId};
use jiff::Timestamp;

/// containerd's error for a start whose caller went away before there was a process.
pub(crate) const CUT: &str =
    "failed to create containerd task: failed to create shim task: context canceled";

pub(crate) fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(seconds).unwrap()
}

/// A pod from words: `Never`/`OnFailure`/`Always` is the policy, `host` the host network, `deleted` a deletion;
/// `a` a regular container, `i:a` an init container, `s:a` a sidecar, `e:a` an ephemeral one. After the name, `+L`
/// and `+S` add a liveness or startup probe, `=Never` an own policy, `!42` a rule Restart on exit 42, `!!42`
/// RestartAllContainers on it.
pub(crate) fn pod(words: &str) -> Pod {
    let mut pod = Pod::default();
    pod.metadata.name = Some("p".to_owned());
    pod.metadata.namespace = Some("ns".to_owned());
    pod.metadata.uid = Some("u".to_owned());
    pod.metadata.generation = Some(1);
    let mut spec = PodSpec { restart_policy: Some("Always".to_owned()), ..PodSpec::default() };
    for word in words.split_whitespace() {
        match word {
            "Always" | "OnFailure" | "Never" => spec.restart_policy = Some(word.to_owned()),
            "host" => spec.host_network = Some(true),
            "deleted" => {
                pod.metadata.deletion_timestamp = Some(api::machinery::apis::meta::v1::Time(at(0)));
            }
            _ => match word.split_once(':') {
                Some(("i", rest)) => {
                    spec.init_containers.get_or_insert_default().push(container(rest))
                }
                Some(("s", rest)) => {
                    let mut sidecar = container(rest);
                    sidecar.restart_policy = Some("Always".to_owned());
                    spec.init_containers.get_or_insert_default().push(sidecar);
                }
                Some(("e", rest)) => {
                    let full = container(rest);
                    spec.ephemeral_containers.get_or_insert_default().push(EphemeralContainer {
                        name: full.name,
                        image: full.image,
                        ..EphemeralContainer::default()
                    });
                }
                _ => spec.containers.push(container(word)),
            },
        }
    }
    pod.spec = Some(spec);
    pod
}

fn container(word: &str) -> Container {
    let end = word.find(['+', '=', '!']).unwrap_or(word.len());
    let (name, rest) = word.split_at(end);
    let mut container = Container {
        name: name.to_owned(),
        image: Some(format!("image-{name}")),
        ..Container::default()
    };
    container.liveness_probe = rest.contains("+L").then(Probe::default);
    container.startup_probe = rest.contains("+S").then(Probe::default);
    for policy in ["Always", "OnFailure", "Never"] {
        if rest.contains(&format!("={policy}")) {
            container.restart_policy = Some(policy.to_owned());
        }
    }
    if let Some((_, rule)) = rest.split_once('!') {
        let (action, code) = match rule.strip_prefix('!') {
            Some(code) => ("RestartAllContainers", code),
            None => ("Restart", rule),
        };
        container.restart_policy_rules = Some(vec![ContainerRestartRule {
            action: action.to_owned(),
            exit_codes: Some(ContainerRestartRuleOnExitCodes {
                operator: "In".to_owned(),
                values: Some(vec![code.parse().unwrap()]),
            }),
        }]);
    }
    container
}

/// A runtime pod from words: `ready` or `notready` adds a sandbox (older ones first), `host` a ready one in the
/// host network, `noip` a ready one without an address; `a:running`, `a:exited0`, `a:exited3`, `a:created`,
/// `a:unknown`, `a:oom` and `a:cut` (a start that was cut off) add an instance in the newest sandbox, later words
/// being newer; `a:other` runs another image.
pub(crate) fn runtime(words: &str) -> RuntimePod {
    let mut runtime = RuntimePod::empty(PodUid::from("u"), "p", "ns", at(1_000));
    for (index, word) in words.split_whitespace().enumerate() {
        let created_at = at(100 + i64::try_from(index).unwrap());
        let attempt = u32::try_from(runtime.sandboxes.len()).unwrap();
        if let Some((name, state)) = word.split_once(':') {
            let sandbox = runtime.sandboxes.last().map_or("s0".into(), |s| s.id.clone());
            runtime.containers.push(instance(name, state, index, sandbox, created_at));
            continue;
        }
        let ip = if matches!(word, "noip" | "host") { "" } else { "10.0.0.5" };
        runtime.sandboxes.push(SandboxView {
            id: SandboxId::from(format!("s{attempt}")),
            attempt,
            state: if word == "notready" { SandboxState::NotReady } else { SandboxState::Ready },
            created_at,
            network_mode: if word == "host" { NamespaceMode::Node } else { NamespaceMode::Pod },
            pid_mode: NamespaceMode::Container,
            network: Some(SandboxNetwork { ip: ip.to_owned(), additional_ips: Vec::new() }),
            runtime_handler: String::new(),
        });
    }
    runtime.normalise();
    if let Some(ready) = runtime.active_sandbox() {
        runtime.ips = ready.network.as_ref().map(SandboxNetwork::ips).unwrap_or_default();
    }
    runtime
}

fn instance(
    name: &str,
    state: &str,
    index: usize,
    sandbox: SandboxId,
    created_at: Timestamp,
) -> ContainerView {
    let (run_state, exit_code, reason) = match state {
        "created" => (ContainerRunState::Created, 0, ""),
        "running" | "other" => (ContainerRunState::Running, 0, ""),
        "unknown" => (ContainerRunState::Unknown, 0, ""),
        "oom" => (ContainerRunState::Exited, 0, "OOMKilled"),
        "cut" => (ContainerRunState::Exited, 128, "StartError"),
        exited => {
            let code = exited.strip_prefix("exited").unwrap().parse().unwrap();
            (ContainerRunState::Exited, code, if code == 0 { "Completed" } else { "Error" })
        }
    };
    let spec = container(name);
    let other = state == "other";
    let exited = run_state == ContainerRunState::Exited;
    let cut = state == "cut";
    let started = exited && !cut || run_state == ContainerRunState::Running;
    ContainerView {
        id: ContainerId::from(format!("{name}-{index}")),
        sandbox,
        name: name.to_owned(),
        attempt: 0,
        state: run_state,
        created_at,
        started_at: started.then_some(created_at),
        finished_at: exited.then_some(created_at),
        exit_code,
        reason: reason.to_owned(),
        message: if cut { CUT.to_owned() } else { String::new() },
        image: format!("image-{name}"),
        user_image: None,
        image_id: format!("sha256:{name}"),
        image_ref: format!("image-{name}@sha256:{name}"),
        hash: if other { 1 } else { container_hash(&spec) },
        restart_count: 0,
        log_path: String::new(),
        resources: None,
        user: None,
        mounts: Vec::new(),
        stop_signal: None,
        termination_message_path: String::new(),
        termination_message_policy: String::new(),
        restored: RestoredSpec::default(),
    }
}
