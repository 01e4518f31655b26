//! Statuses: phase, conditions, containers, and the smallest patch.

use super::*;
use crate::pod::testing::{at, pod, runtime};
use api::machinery::api::resource::Quantity;
use api::machinery::apis::meta::v1::Time;

mod writes;

fn node() -> NodeFacts {
    NodeFacts {
        runtime_name: "containerd".to_owned(),
        host_ips: vec!["192.0.2.2".parse().unwrap()],
        ipv6_first: false,
        recursive_read_only: false,
    }
}

struct Fixture {
    pod: Pod,
    runtime: RuntimePod,
    old: PodStatus,
    probes: ProbeResults,
    start_errors: BTreeMap<String, StartError>,
    actuated: Actuated,
    terminal: bool,
    evicted: bool,
    node: NodeFacts,
}

impl Fixture {
    fn new(spec: &str, state: &str) -> Self {
        Self {
            pod: pod(spec),
            runtime: runtime(state),
            old: PodStatus::default(),
            probes: ProbeResults::default(),
            start_errors: BTreeMap::new(),
            actuated: Actuated::default(),
            terminal: false,
            evicted: false,
            node: node(),
        }
    }

    fn generate(&self) -> Generated {
        let view = StatusView {
            pod: &self.pod,
            runtime: &self.runtime,
            old: &self.old,
            probes: &self.probes,
            start_errors: &self.start_errors,
            actuated: &self.actuated,
            cgroup: None,
            resize: &[],
            health: &BTreeMap::new(),
            terminal: self.terminal,
            evicted: self.evicted,
            node: &self.node,
            gates: &StatusGates::default(),
        };
        generate(&view, at(1_000))
    }

    fn phase(&self) -> String {
        self.generate().status.phase.unwrap()
    }
}

fn condition(status: &PodStatus, type_: &str) -> (String, String) {
    let found = status.conditions.iter().flatten().find(|c| c.type_ == type_).unwrap();
    (found.status.clone(), found.reason.clone().unwrap_or_default())
}

fn entry<'a>(status: &'a PodStatus, name: &str) -> &'a ContainerStatus {
    let lists = [
        &status.container_statuses,
        &status.init_container_statuses,
        &status.ephemeral_container_statuses,
    ];
    lists.into_iter().flatten().flatten().find(|e| e.name == name).unwrap()
}

#[test]
fn the_phase_follows_the_table() {
    let cases = [
        ("nothing yet", "a", "", false, "Pending"),
        ("running", "a b", "ready a:running b:running", false, "Running"),
        ("one still waits", "a b", "ready a:running", false, "Pending"),
        ("crashed, Always", "a", "ready a:exited1", false, "Running"),
        ("done, Always", "a", "ready a:exited0", false, "Running"),
        ("done, Never", "Never a", "ready a:exited0", false, "Succeeded"),
        ("failed, Never", "Never a b", "ready a:exited0 b:exited1", false, "Failed"),
        ("failed, OnFailure", "OnFailure a", "ready a:exited1", false, "Running"),
        ("one done, one runs", "Never a b", "ready a:exited1 b:running", false, "Running"),
        ("rule restarts", "Never a=Never!42", "ready a:exited42", false, "Running"),
        ("terminal run, Always, success", "a", "notready a:exited0", true, "Succeeded"),
        ("terminal run, Always, failure", "a", "notready a:exited137", true, "Failed"),
        ("init runs", "i:x a", "ready x:running", false, "Pending"),
        ("init failed, Never", "Never i:x a", "ready x:exited1", false, "Failed"),
        ("init failed, Always", "i:x a", "ready x:exited1", false, "Pending"),
        (
            "sidecar runs, regular done, Never",
            "Never s:s a",
            "ready s:running a:exited0",
            false,
            "Running",
        ),
        ("ephemeral never counts", "Never a e:d", "ready a:exited0 d:running", false, "Succeeded"),
        ("reboot with init goes back to Pending", "i:x a", "notready", false, "Pending"),
    ];
    for (name, spec, state, terminal, expected) in cases {
        let fixture = Fixture { terminal, ..Fixture::new(spec, state) };
        assert_eq!(fixture.phase(), expected, "{name}");
    }
}

#[test]
fn static_pods_keep_running_in_a_terminal_run() {
    let mut fixture = Fixture { terminal: true, ..Fixture::new("a", "notready a:exited0") };
    fixture.pod.metadata.annotations =
        Some([(api::pod::SOURCE_ANNOTATION.to_owned(), "file".to_owned())].into());
    assert_eq!(fixture.phase(), "Running");
}

#[test]
fn an_evicted_pod_has_failed_even_if_its_containers_ended_well() {
    let mut fixture =
        Fixture { terminal: true, evicted: true, ..Fixture::new("a", "notready a:exited0") };
    fixture.old.phase = Some("Failed".to_owned());
    fixture.old.reason = Some("Evicted".to_owned());
    let status = fixture.generate().status;
    assert_eq!(status.phase.as_deref(), Some("Failed"));
    assert_eq!(status.reason.as_deref(), Some("Evicted"));
    assert_eq!(condition(&status, "Ready").1, "PodFailed");
    assert_eq!(condition(&status, "Initialized").1, "");
    assert_eq!(terminated_code(entry(&status, "a")), Some(0), "and shows how they ended");
}

#[test]
fn a_terminal_phase_is_never_left() {
    let mut fixture = Fixture::new("a", "ready a:running");
    fixture.old.phase = Some("Failed".to_owned());
    fixture.old.reason = Some("Evicted".to_owned());
    let status = fixture.generate().status;
    assert_eq!(
        (status.phase.as_deref(), status.reason.as_deref()),
        (Some("Failed"), Some("Evicted"))
    );

    let mut fixture = Fixture { terminal: true, ..Fixture::new("a", "notready a:exited1") };
    fixture.pod.status =
        Some(PodStatus { phase: Some("Succeeded".to_owned()), ..PodStatus::default() });
    assert_eq!(fixture.phase(), "Succeeded", "the API's final phase wins");
}

#[test]
fn reason_and_message_belong_to_their_phase() {
    let mut fixture = Fixture { terminal: true, ..Fixture::new("a", "notready a:exited0") };
    fixture.old.phase = Some("Failed".to_owned());
    fixture.old.reason = Some("Preempting".to_owned());
    let status = fixture.generate().status;
    assert_eq!((status.phase.as_deref(), status.reason), (Some("Succeeded"), None));
}

#[test]
fn the_active_deadline_fails_the_pod() {
    let mut fixture = Fixture::new("a", "ready a:running");
    fixture.pod.spec.as_mut().unwrap().active_deadline_seconds = Some(100);
    fixture.old.start_time = Some(Time(at(901)));
    assert!(!fixture.generate().deadline_exceeded);
    fixture.old.start_time = Some(Time(at(900)));
    let late = fixture.generate();
    assert!(late.deadline_exceeded);
    assert_eq!(late.status.reason.as_deref(), Some("DeadlineExceeded"));
    assert_eq!(condition(&late.status, "Ready"), ("False".to_owned(), "PodFailed".to_owned()));
}

#[test]
fn conditions_say_which_containers_are_missing() {
    let fixture = Fixture::new("i:x a b", "ready x:running");
    let status = fixture.generate().status;
    let message = |type_: &str| {
        status.conditions.iter().flatten().find(|c| c.type_ == type_).unwrap().message.clone()
    };
    assert_eq!(message("Ready").unwrap(), "containers with unready status: [a b]");
    assert_eq!(message("Initialized").unwrap(), "containers with incomplete status: [x]");
    assert_eq!(condition(&status, "PodScheduled").0, "True");
}

#[test]
fn readiness_gates_hold_back_ready_but_not_containers_ready() {
    let mut fixture = Fixture::new("a", "ready a:running");
    fixture.pod.spec.as_mut().unwrap().readiness_gates =
        Some(vec![api::core::v1::PodReadinessGate { condition_type: "x/y".to_owned() }]);
    let status = fixture.generate().status;
    assert_eq!(condition(&status, "Ready").1, "ReadinessGatesNotReady");
    assert_eq!(condition(&status, "ContainersReady").0, "True");
    let foreign = |value: &str| PodStatus {
        conditions: Some(vec![PodCondition {
            type_: "x/y".to_owned(),
            status: value.to_owned(),
            ..PodCondition::default()
        }]),
        ..PodStatus::default()
    };
    fixture.pod.status = Some(foreign("True"));
    let status = fixture.generate().status;
    assert_eq!(condition(&status, "Ready").0, "True");
    assert_eq!(condition(&status, "x/y").0, "True", "the condition of others passes through");
}

#[test]
fn a_lost_container_counts_as_ended() {
    let mut fixture = Fixture::new("a", "ready a:running");
    fixture.old = fixture.generate().status;
    fixture.runtime = runtime("ready");
    let status = fixture.generate().status;
    let lost = entry(&status, "a");
    assert_eq!(lost.restart_count, 1);
    let ended = lost.last_state.as_ref().unwrap().terminated.as_ref().unwrap();
    assert_eq!((ended.exit_code, ended.reason.as_deref()), (137, Some(CONTAINER_STATUS_UNKNOWN)));
    assert_eq!(status.phase.as_deref(), Some("Running"));

    fixture.runtime = runtime("ready a:unknown");
    let status = fixture.generate().status;
    assert_eq!(terminated_code(entry(&status, "a")), Some(137));
}

#[test]
fn start_errors_show_as_waiting_until_the_pod_is_deleted() {
    let mut fixture = Fixture::new("a", "ready a:exited1");
    let error =
        StartError { reason: "CrashLoopBackOff".to_owned(), message: "back-off".to_owned() };
    fixture.start_errors.insert("a".to_owned(), error);
    let status = fixture.generate().status;
    let waiting = entry(&status, "a").state.as_ref().unwrap().waiting.as_ref().unwrap();
    assert_eq!(waiting.reason.as_deref(), Some("CrashLoopBackOff"));
    assert!(entry(&status, "a").last_state.as_ref().unwrap().terminated.is_some());
    assert_eq!(status.phase.as_deref(), Some("Running"));

    fixture.pod = pod("deleted a");
    fixture.runtime = runtime("ready");
    let status = fixture.generate().status;
    let waiting = entry(&status, "a").state.as_ref().unwrap().waiting.as_ref().unwrap();
    assert_eq!(waiting.reason.as_deref(), Some("ContainerCreating"));
}

#[test]
fn an_init_container_that_was_removed_after_success_is_completed() {
    let fixture = Fixture::new("i:x s:s a", "ready s:running a:running");
    let status = fixture.generate().status;
    let gone = entry(&status, "x");
    assert_eq!(terminated_code(gone), Some(0));
    assert!(gone.ready);
    let names: Vec<_> =
        status.init_container_statuses.iter().flatten().map(|e| e.name.as_str()).collect();
    assert_eq!(names, ["x", "s"], "init entries keep the order of the spec");
}

#[test]
fn restart_all_shows_a_condition_until_everything_is_removed() {
    let fixture = Fixture::new("Never a=Never!!42 b", "ready a:exited42 b:running");
    let first = fixture.generate();
    assert!(first.restart_all);
    assert_eq!(
        condition(&first.status, "AllContainersRestarting").1,
        "RestartAllContainersStarted"
    );
    let mut next = Fixture::new("Never a=Never!!42 b", "ready");
    next.old = first.status;
    let second = next.generate();
    assert!(!second.restart_all);
    let removed = entry(&second.status, "b");
    assert_eq!(
        removed.state.as_ref().unwrap().waiting.as_ref().unwrap().reason.as_deref(),
        Some(RESTARTING_ALL)
    );
    assert_eq!(removed.restart_count, 1);
    assert_eq!(second.status.phase.as_deref(), Some("Running"));
}

#[test]
fn a_start_that_was_cut_off_is_no_end() {
    let fixture = Fixture::new("Never a b", "ready a:cut b:exited0");
    let status = fixture.generate().status;
    assert_eq!(status.phase.as_deref(), Some("Pending"), "a has its turn yet");
    assert!(entry(&status, "a").state.as_ref().unwrap().waiting.is_some());
    let given_up = Fixture::new("Never a b", "ready a:exited128 b:exited0").generate().status;
    assert_eq!(given_up.phase.as_deref(), Some("Failed"));
}

#[test]
fn an_instance_that_never_started_is_no_restart() {
    let mut fixture = Fixture::new("a", "ready a:exited1 a:created");
    let newest = |fixture: &mut Fixture| {
        let all = fixture.runtime.containers.iter_mut();
        all.max_by_key(|c| c.created_at).unwrap().restart_count = 1;
    };
    newest(&mut fixture);
    let made = fixture.generate().status;
    assert_eq!(entry(&made, "a").restart_count, 0, "it may never start");
    fixture.old = made;
    fixture.runtime = runtime("ready a:exited1");
    fixture.old = fixture.generate().status;
    assert_eq!(entry(&fixture.old, "a").restart_count, 0, "it was removed again");
    fixture.runtime = runtime("ready a:exited1 a:running");
    newest(&mut fixture);
    assert_eq!(entry(&fixture.generate().status, "a").restart_count, 1);
}

#[test]
fn restarts_go_on_counting_when_runtime_and_logs_have_forgotten() {
    let count = |spec: &str, first: &str, then: Option<&str>| {
        let mut fixture = Fixture::new(spec, first);
        if let Some(then) = then {
            fixture.old = fixture.generate().status;
            fixture.runtime = runtime(then);
        }
        next_restart_count(&fixture.generate().status, "a")
    };
    assert_eq!(count("a", "ready", None), 0, "there was none");
    assert_eq!(count("a", "ready a:exited1", None), 1);
    assert_eq!(count("a", "ready a:exited1", Some("ready")), 1);
    assert_eq!(count("a", "ready a:running", Some("ready")), 1, "the status counts a lost one");
    assert_eq!(count("Never a=Never!!42 b", "ready a:exited42 b:running", Some("ready")), 0);
    assert_eq!(next_restart_count(&PodStatus::default(), "a"), 0);
}

fn with_readiness_probe(spec: &str) -> Pod {
    let mut pod = pod(spec);
    pod.spec.as_mut().unwrap().containers[0].readiness_probe =
        Some(api::core::v1::Probe::default());
    pod
}

#[test]
fn resources_of_a_running_pod_are_those_last_applied() {
    let amounts = |cpu: &str| ResourceRequirements {
        requests: Some([("cpu".to_owned(), Quantity(cpu.to_owned()))].into()),
        limits: Some([("cpu".to_owned(), Quantity(cpu.to_owned()))].into()),
        ..ResourceRequirements::default()
    };
    let mut fixture = Fixture::new("a", "ready a:running");
    fixture.pod.spec.as_mut().unwrap().containers[0].resources = Some(amounts("2"));
    fixture.pod.status =
        Some(PodStatus { phase: Some("Running".to_owned()), ..PodStatus::default() });
    fixture.actuated.containers.insert("a".to_owned(), amounts("1"));
    let status = fixture.generate().status;
    assert_eq!(status.resources, Some(amounts("1")), "not yet what was allocated");
    assert_eq!(entry(&status, "a").resources, Some(amounts("1")));
    fixture.actuated.containers.insert("a".to_owned(), amounts("2"));
    fixture.old = status;
    assert_eq!(fixture.generate().status.resources, Some(amounts("2")));
}

#[test]
fn a_restart_of_the_agent_keeps_what_was_published() {
    for ready in [true, false] {
        let mut fixture = Fixture::new("a", "ready a:running");
        fixture.pod = with_readiness_probe("a");
        fixture.old = fixture.generate().status;
        fixture.old.container_statuses.as_mut().unwrap()[0].ready = ready;
        let found = fixture.generate();
        assert_eq!(entry(&found.status, "a").ready, ready);
        assert_eq!(found.probe_now.len(), 1, "and the probe is asked at once");

        fixture.old.container_statuses.as_mut().unwrap()[0].container_id = None;
        assert!(!entry(&fixture.generate().status, "a").ready, "a new container must prove itself");
    }
}

#[test]
fn a_pod_that_is_over_keeps_its_address() {
    let mut fixture = Fixture::new("Never a", "a:exited0");
    fixture.runtime.ips = vec!["10.0.0.5".to_owned()];
    fixture.old = fixture.generate().status;
    assert_eq!(fixture.old.phase.as_deref(), Some("Succeeded"));
    fixture.runtime.ips.clear();
    assert_eq!(fixture.generate().status.pod_ip.as_deref(), Some("10.0.0.5"));
}

#[test]
fn startup_probes_hold_back_started_and_ready() {
    let mut fixture = Fixture::new("a+S", "ready a:running");
    let status = fixture.generate().status;
    assert_eq!((entry(&status, "a").started, entry(&status, "a").ready), (Some(false), false));
    let id = fixture.runtime.containers[0].id.clone();
    fixture.probes.set(&id, ProbeKind::Startup, ProbeOutcome::Success);
    let status = fixture.generate().status;
    assert_eq!((entry(&status, "a").started, entry(&status, "a").ready), (Some(true), true));
}

#[test]
fn pod_ips_have_one_per_family_primary_first() {
    let mut fixture = Fixture::new("a", "ready a:running");
    fixture.runtime.ips = ["fd00::0005", "10.0.0.5", "10.0.0.6"].map(str::to_owned).to_vec();
    let status = fixture.generate().status;
    let ips = |status: &PodStatus| {
        status.pod_ips.iter().flatten().map(|ip| ip.ip.clone()).collect::<Vec<_>>()
    };
    assert_eq!(ips(&status), ["10.0.0.5", "fd00::5"]);
    fixture.node.ipv6_first = true;
    assert_eq!(ips(&fixture.generate().status), ["fd00::5", "10.0.0.5"]);
    let host = Fixture { runtime: runtime("host a:running"), ..Fixture::new("host a", "") };
    assert_eq!(host.generate().status.pod_ip.as_deref(), Some("192.0.2.2"));
}
