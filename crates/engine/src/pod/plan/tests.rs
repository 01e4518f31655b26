//! The plan: upstream's cases as a table.

use super::*;
use crate::pod::backoff::BackOff;
use crate::pod::testing::{at, pod, runtime};
use crate::pod::{Actuated, PodGates};
use crate::probe::ProbeResults;
use api::core::v1::{ContainerResizePolicy, Pod, ResourceRequirements};
use api::ids::ContainerId;
use api::machinery::api::resource::Quantity;

/// The plan as words, in field order.
fn words(plan: &PodPlan) -> String {
    let mut out = Vec::new();
    if plan.kill_pod {
        out.push("killpod".to_owned());
    }
    out.extend(plan.kill.iter().map(|k| format!("kill({})", k.message)));
    for reset in &plan.reset {
        let verb = if reset.kill { "kill+reset" } else { "reset" };
        out.push(format!("{verb}({})", reset.id));
    }
    out.extend(plan.remove.iter().map(|r| format!("remove({})", r.id)));
    if let Some(sandbox) = &plan.create_sandbox {
        out.push(format!("sandbox{}", sandbox.attempt));
    }
    for start in &plan.start {
        let wait = !matches!(start.gate, StartGate::Now { .. });
        let half = if start.unstarted.is_some() { "(anew)" } else { "" };
        out.push(format!("{}{half}{}", start.name, if wait { "(waits)" } else { "" }));
    }
    out.join(" ")
}

fn plan_with(pod: &Pod, runtime: &RuntimePod, probes: &ProbeResults, restart_all: bool) -> PodPlan {
    let view = PodView {
        pod,
        runtime,
        probes,
        actuated: &Actuated::default(),
        back_off: &BackOff::default(),
        restart_all,
        gates: &PodGates::default(),
    };
    plan(&view, at(1_000))
}

fn planned(pod_words: &str, runtime_words: &str) -> String {
    words(&plan_with(&pod(pod_words), &runtime(runtime_words), &ProbeResults::default(), false))
}

/// Name, pod, runtime, plan.
const CASES: &[(&str, &str, &str, &str)] = &[
    // Sandbox.
    ("a new pod", "a b", "", "killpod sandbox0 a b"),
    ("everything runs", "a b", "ready a:running b:running", ""),
    ("sandbox up, nothing started", "a b", "ready", "a b"),
    ("two ready sandboxes", "a", "ready ready a:running", "killpod sandbox2 a"),
    (
        "an init container that outlived its sandbox",
        "i:x i:y a",
        "notready x:running ready",
        "kill(Init container x runs in an earlier sandbox) x",
    ),
    ("sandbox died", "a b", "notready a:exited0 b:exited1", "killpod sandbox1 a b"),
    ("network mode changed", "host a", "ready a:running", "killpod sandbox1 a"),
    ("host network stays", "host a", "host a:running", ""),
    ("sandbox lost its address", "a", "noip a:running", "killpod sandbox1 a"),
    ("sandbox died, Never", "Never a", "notready a:exited1", "killpod"),
    ("sandbox died, Never, own Always", "Never a=Always", "notready a:exited1", "killpod"),
    ("sandbox died before any container, Never", "Never a", "notready", "killpod sandbox1 a"),
    (
        "sandbox died before any container started, Never",
        "Never a b",
        "notready a:created",
        "killpod sandbox1 a(anew) b",
    ),
    (
        "sandbox died after one of two started, Never",
        "Never a b",
        "notready a:exited1 b:created",
        "killpod sandbox1 b(anew)",
    ),
    (
        "sandbox died while one of two ran, Never",
        "Never a b",
        "notready a:running",
        "killpod sandbox1 b",
    ),
    (
        "sandbox died under a sidecar, Never",
        "Never s:s a",
        "notready s:exited137",
        "killpod remove(s-1) sandbox1 s",
    ),
    ("sandbox died under all, Never", "Never s:s a", "notready s:exited137 a:exited137", "killpod"),
    (
        "sandbox died after init, Never",
        "Never i:x a",
        "notready x:exited0",
        "killpod remove(x-1) sandbox1 x",
    ),
    ("sandbox died under init, Never", "Never i:x a", "notready x:running", "killpod"),
    ("sandbox killed init, Never", "Never i:x a", "notready x:exited137", "killpod"),
    ("sandbox lost init, Never", "Never i:x a", "notready x:unknown", "killpod"),
    (
        "sandbox killed init, own OnFailure under Never",
        "Never i:x=OnFailure a",
        "notready x:exited137",
        "killpod remove(x-1) sandbox1 x",
    ),
    (
        "sandbox died, OnFailure, one is done",
        "OnFailure a b",
        "notready a:exited0 b:exited1",
        "killpod sandbox1 b",
    ),
    ("sandbox died, OnFailure, all are done", "OnFailure a", "notready a:exited0", "killpod"),
    (
        "sandbox died, own OnFailure is done",
        "a=OnFailure b",
        "notready a:exited0 b:running",
        "killpod sandbox1 b",
    ),
    ("sandbox died, own Never still starts", "a=Never", "notready a:exited1", "killpod sandbox1 a"),
    (
        "sandbox died, init begins anew",
        "i:x a",
        "notready x:exited0 a:exited0",
        "killpod remove(x-1) sandbox1 x",
    ),
    ("sandbox died during deletion", "deleted a", "notready a:exited1", "killpod"),
    // Regular containers.
    ("one crashed, Always", "a b", "ready a:exited1 b:running", "a"),
    ("one done, Always", "a b", "ready a:exited0 b:running", "a"),
    ("one done, OnFailure", "OnFailure a b", "ready a:exited0 b:running", ""),
    ("one crashed, OnFailure", "OnFailure a b", "ready a:exited1 b:running", "a"),
    ("one crashed, Never", "Never a b", "ready a:exited1 b:running", ""),
    ("all crashed, Never", "Never a b", "ready a:exited1 b:exited0", "killpod"),
    ("own Always under Never", "Never a=Always b", "ready a:exited0 b:exited0", "a"),
    ("a rule restarts exit 42", "Never a=Never!42", "ready a:exited42", "a"),
    ("the rule ignores exit 41", "Never a=Never!42", "ready a:exited41", "killpod"),
    ("created but not started", "Never a", "ready a:created", "a(anew)"),
    ("start cut off, Never", "Never a b", "ready a:cut b:running", "a(anew)"),
    ("start cut off, all others are done, Never", "Never a b", "ready a:cut b:exited1", "a(anew)"),
    ("start cut off after a run, Never", "Never a=Never!42", "ready a:exited42 a:cut", "a(anew)"),
    ("start of init cut off, Never", "Never i:x a", "ready x:cut", "x(anew)"),
    ("start of a sidecar cut off, Never", "Never s:s a", "ready s:cut", "s(anew)"),
    ("start cut off after init, Never", "Never i:x a", "ready x:exited0 a:cut", "a(anew)"),
    ("start of a debugger cut off", "a e:d", "ready a:running d:cut", "d(anew)"),
    ("start of a debugger given up", "a e:d", "ready a:running d:exited128", ""),
    (
        "sandbox died after a start was cut off, Never",
        "Never a",
        "notready a:cut",
        "killpod sandbox1 a(anew)",
    ),
    ("start cut off during deletion", "Never deleted a", "ready a:cut", "killpod"),
    (
        "unknown state",
        "Never a",
        "ready a:unknown",
        "kill(Container is in \"unknown\" state, try killing it before restart) a",
    ),
    (
        "image changed, Never",
        "Never a",
        "ready a:other",
        "kill(Container a definition changed, will be restarted) a",
    ),
    ("deleting: nothing restarts", "deleted a b", "ready a:exited1 b:running", ""),
    ("deleting: running ones are left alone", "deleted a b", "ready a:running b:running", ""),
    ("an older instance does not count", "a", "ready a:exited1 a:running", ""),
    // Ephemeral containers.
    ("ephemeral starts once", "a e:d", "ready a:running", "d"),
    ("ephemeral is never restarted", "a e:d", "ready a:running d:exited1", ""),
    ("ephemeral does not keep a pod", "Never a e:d", "ready a:exited0 d:running", "killpod"),
    ("ephemeral starts during init", "i:x a e:d", "ready x:running", "d"),
    ("ephemeral waits for the sandbox", "a e:d", "", "killpod sandbox0 a"),
    // Init containers.
    ("first init", "i:x i:y a", "ready", "x"),
    ("init runs", "i:x i:y a", "ready x:running", ""),
    ("next init", "i:x i:y a", "ready x:exited0", "y"),
    ("all init done", "i:x i:y a b", "ready x:exited0 y:exited0", "a b"),
    ("last init decides when the first is gone", "i:x i:y a", "ready y:exited0", "a"),
    ("init gone, regular runs", "i:x a b", "ready a:running", "b"),
    ("init gone, regular only exited", "i:x a", "ready a:exited0", "x"),
    ("init failed, Always", "i:x a", "ready x:exited1", "x"),
    ("init failed, OnFailure", "OnFailure i:x a", "ready x:exited1", "x"),
    ("init failed, Never", "Never i:x a", "ready x:exited1", "killpod"),
    ("init out of memory with exit 0, Never", "Never i:x a", "ready x:oom", "killpod"),
    ("init failed, own OnFailure under Never", "Never i:x=OnFailure a", "ready x:exited1", "x"),
    ("init created", "i:x a", "ready x:created", "x(anew)"),
    (
        "init created, app made in a sandbox that died",
        "i:x a",
        "notready x:exited0 a:created ready x:created",
        "x(anew)",
    ),
    (
        "no init yet in the new sandbox, what was in the old one could not be removed",
        "i:x i:y a",
        "notready x:exited0 y:exited0 a:exited1 ready",
        "x",
    ),
    (
        "first init done in the new sandbox, the second one in the old one",
        "i:x i:y a",
        "notready x:exited0 y:exited0 a:exited1 ready x:exited0",
        "remove(x-1) y",
    ),
    (
        "sidecar of a sandbox that died",
        "i:x s:y a",
        "notready x:exited0 y:exited0 a:exited1 ready x:running",
        "",
    ),
    (
        "init unknown",
        "i:x a",
        "ready x:unknown",
        "kill(Init container is in \"unknown\" state, try killing it before restart) x",
    ),
    ("init unknown, Never", "Never i:x a", "ready x:unknown", "killpod"),
    ("init image changed while running", "i:x a", "ready x:other", ""),
    (
        "old init instances go",
        "i:x a",
        "ready x:exited1 x:exited1 x:exited1",
        "remove(x-2) remove(x-1) x",
    ),
    // Sidecars.
    ("sidecar first", "s:s i:x a", "ready", "s"),
    ("sidecar started, next init", "s:s i:x a", "ready s:running", "x"),
    ("sidecar runs, init runs", "s:s i:x a", "ready s:running x:running", ""),
    ("sidecar last starts regular", "i:x s:s a", "ready x:exited0 s:running", "a"),
    ("sidecar waits for its startup probe", "s:s+S i:x a", "ready s:running", ""),
    ("sidecar crashed during init", "s:s i:x a", "ready s:exited1 x:running", "s"),
    ("sidecar crashed afterwards", "s:s a", "ready s:exited1 a:running", "s"),
    ("sidecar gone afterwards", "s:s a", "ready a:running", "s"),
    ("sidecar done, Never", "Never s:s a", "ready s:exited0 a:running", "s"),
    (
        "sidecar image changed",
        "s:s a",
        "ready s:other a:running",
        "kill(Init container s definition changed) s",
    ),
    ("sidecar does not keep a pod", "Never s:s a", "ready s:running a:exited0", "killpod"),
    (
        "crashed sidecar comes back before the done pod is seen",
        "Never s:s a",
        "ready s:exited1 a:exited0",
        "s",
    ),
    ("two sidecars crashed: in order", "s:s s:t a", "ready s:exited1 t:exited1 a:running", "s t"),
    (
        "done init is skipped, sidecar kept",
        "i:x s:s i:y a",
        "ready x:exited0 s:exited1 y:running",
        "s",
    ),
];

#[test]
fn plans_as_in_the_table_of_cases() {
    let wrong: Vec<String> = CASES
        .iter()
        .filter_map(|(name, pod, runtime, expected)| {
            let found = planned(pod, runtime);
            (&found != expected).then(|| format!("{name}: expected [{expected}], found [{found}]"))
        })
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn failed_probes_kill_and_restart_by_policy() {
    let cases = [
        (
            "a b",
            "a-1",
            ProbeKind::Liveness,
            "kill(Container a failed liveness probe, will be restarted) a",
        ),
        (
            "a b",
            "a-1",
            ProbeKind::Startup,
            "kill(Container a failed startup probe, will be restarted) a",
        ),
        ("Never a b", "a-1", ProbeKind::Liveness, "kill(Container a failed liveness probe)"),
        ("a=Never b", "a-1", ProbeKind::Liveness, "kill(Container a failed liveness probe)"),
        (
            "Never a=OnFailure b",
            "a-1",
            ProbeKind::Liveness,
            "kill(Container a failed liveness probe, will be restarted) a",
        ),
        ("a b", "a-1", ProbeKind::Readiness, ""),
        ("a b", "gone", ProbeKind::Liveness, ""),
    ];
    for (spec, id, kind, expected) in cases {
        let mut probes = ProbeResults::default();
        probes.set(&ContainerId::from(id), kind, ProbeOutcome::Failure);
        let plan = plan_with(&pod(spec), &runtime("ready a:running b:running"), &probes, false);
        assert_eq!(words(&plan), expected, "{spec} {kind:?}");
    }
}

#[test]
fn the_only_container_failing_under_never_ends_the_pod_without_a_kill_list() {
    let mut probes = ProbeResults::default();
    probes.set(&ContainerId::from("a-1"), ProbeKind::Liveness, ProbeOutcome::Failure);
    let plan = plan_with(&pod("Never a"), &runtime("ready a:running"), &probes, false);
    assert_eq!(words(&plan), "killpod");
}

#[test]
fn sidecar_probes_decide_about_the_sidecar() {
    let cases = [
        ("s:s+S i:x a", "ready s:running", ProbeKind::Startup, ProbeOutcome::Success, "x"),
        ("s:s+S i:x a", "ready s:running", ProbeKind::Startup, ProbeOutcome::Unknown, ""),
        (
            "s:s+S i:x a",
            "ready s:running",
            ProbeKind::Startup,
            ProbeOutcome::Failure,
            "kill(Init container s failed startup probe) s",
        ),
        (
            "s:s+L a",
            "ready s:running a:running",
            ProbeKind::Liveness,
            ProbeOutcome::Failure,
            "kill(Init container s failed liveness probe) s",
        ),
        (
            "s:s+L a",
            "ready s:running",
            ProbeKind::Liveness,
            ProbeOutcome::Failure,
            "kill(Init container s failed liveness probe) s a",
        ),
    ];
    for (spec, state, kind, outcome, expected) in cases {
        let mut probes = ProbeResults::default();
        probes.set(&ContainerId::from("s-1"), kind, outcome);
        let plan = plan_with(&pod(spec), &runtime(state), &probes, false);
        assert_eq!(words(&plan), expected, "{spec} {kind:?} {outcome:?}");
    }
}

#[test]
fn restart_all_removes_every_instance_with_the_cause_last() {
    let spec = "Never i:x s:s a=Never!!42 b";
    let state = "ready x:exited0 s:running a:exited42 b:running b:running";
    let plan = plan_with(&pod(spec), &runtime(state), &ProbeResults::default(), true);
    assert_eq!(
        words(&plan),
        "kill+reset(b-5) kill+reset(b-4) reset(x-1) kill+reset(s-2) reset(a-3)"
    );
}

#[test]
fn a_container_hashed_by_another_version_is_kept_if_the_image_is_the_same() {
    let mut state = runtime("ready a:other");
    state.containers[0].user_image = Some("image-a".to_owned());
    let plan = plan_with(&pod("a"), &state, &ProbeResults::default(), false);
    assert_eq!(words(&plan), "");
    state.containers[0].user_image = Some("image-b".to_owned());
    let plan = plan_with(&pod("a"), &state, &ProbeResults::default(), false);
    assert_eq!(words(&plan), "kill(Container a definition changed, will be restarted) a");
}

#[test]
fn a_crashing_container_waits_for_its_back_off() {
    let spec = pod("a");
    let state = runtime("ready a:exited1");
    let container = &spec.spec.as_ref().unwrap().containers[0];
    let key = BackOffKey::of(&spec, container);
    let finished = state.containers[0].finished_at.unwrap();
    let mut back_off = BackOff::default();
    back_off.advance(&key, finished, finished);
    let view = PodView {
        pod: &spec,
        runtime: &state,
        probes: &ProbeResults::default(),
        actuated: &Actuated::default(),
        back_off: &back_off,
        restart_all: false,
        gates: &PodGates::default(),
    };
    let soon = plan(&view, finished);
    let StartGate::BackOff { until, message, event, .. } = &soon.start[0].gate else {
        panic!("expected a back-off")
    };
    assert_eq!(message, "back-off 10s restarting failed container=a pod=p_ns(u)");
    assert_eq!(event, "Back-off restarting failed container a in pod p_ns(u)");
    assert_eq!(soon.wake_at(), Some(*until));
    assert!(soon.is_settled());
    let later = plan(&view, *until);
    let open = StartGate::Now { previous: Some((key, finished)) };
    assert_eq!(later.start[0].gate, open);
    // Walking the plan took that long.
    let gate = &soon.start[0].gate;
    assert_eq!(gate.at(*until), open);
    assert_eq!(&gate.at(finished), gate);
}

#[test]
fn what_did_not_start_is_made_anew_after_a_pause() {
    let spec = pod("a b");
    let state = runtime("ready a:created");
    let mut back_off = BackOff::default();
    back_off.start_failed(state.containers[0].id.clone(), at(1_000));
    let view = PodView {
        pod: &spec,
        runtime: &state,
        probes: &ProbeResults::default(),
        actuated: &Actuated::default(),
        back_off: &back_off,
        restart_all: false,
        gates: &PodGates::default(),
    };
    let soon = plan(&view, at(1_009));
    assert_eq!(words(&soon), "a(anew)(waits) b", "others are not held up");
    assert_eq!(soon.wake_at(), Some(at(1_010)));
    assert_eq!(words(&plan(&view, at(1_010))), "a(anew) b");
    let other = runtime("ready a:created b:exited0 a:created");
    let view = PodView { runtime: &other, ..view };
    assert_eq!(words(&plan(&view, at(1_009))), "a(anew) b", "another instance is another start");
}

fn resources(cpu: &str, memory: &str) -> ResourceRequirements {
    let list = [("cpu", cpu), ("memory", memory)]
        .map(|(name, value)| (name.to_owned(), Quantity(value.to_owned())));
    ResourceRequirements {
        requests: Some(list.clone().into()),
        limits: Some(list.into()),
        ..ResourceRequirements::default()
    }
}

fn resize_plan(pod: &Pod, actuated: &Actuated) -> PodPlan {
    let view = PodView {
        pod,
        runtime: &runtime("ready a:running b:running"),
        probes: &ProbeResults::default(),
        actuated,
        back_off: &BackOff::default(),
        restart_all: false,
        gates: &PodGates::default(),
    };
    plan(&view, at(1_000))
}

#[test]
fn resources_change_in_place_decreases_first() {
    let mut spec = pod("a b");
    let containers = &mut spec.spec.as_mut().unwrap().containers;
    containers[0].resources = Some(resources("2", "100Mi"));
    containers[1].resources = Some(resources("1", "50Mi"));
    let mut actuated = Actuated::default();
    actuated.containers.insert("a".to_owned(), resources("1", "100Mi"));
    actuated.containers.insert("b".to_owned(), resources("2", "100Mi"));
    let found = resize_plan(&spec, &actuated);
    let names = |list: &[crate::pod::ContainerUpdate]| {
        list.iter().map(|u| u.name.clone()).collect::<Vec<_>>()
    };
    assert_eq!(names(&found.resize.cpu), ["b", "a"]);
    assert_eq!(names(&found.resize.memory), ["b"]);
    assert!(!found.resize.pod && found.start.is_empty() && found.kill.is_empty());
}

#[test]
fn only_what_runs_has_a_resize_in_progress() {
    let granted = resources("2", "100Mi");
    let mut spec = pod("i:x s:s a b");
    let inner = spec.spec.as_mut().unwrap();
    let all = inner.init_containers.iter_mut().flatten().chain(&mut inner.containers);
    all.for_each(|c| c.resources = Some(granted.clone()));
    let applied = |other: &str| {
        let mut actuated = Actuated::default();
        for name in ["x", "s", "a", "b"] {
            let cpu = if name == other { "1" } else { "2" };
            actuated.containers.insert(name.to_owned(), resources(cpu, "100Mi"));
        }
        actuated
    };
    let cases = [
        ("nobody", "ready s:running a:running b:running", false),
        ("a", "ready s:running a:running b:running", true),
        ("a", "ready s:running a:exited0 b:running", false),
        ("a", "ready x:running", false),
        ("s", "ready s:running x:running", true),
        ("x", "ready x:running", false),
    ];
    for (other, state, expected) in cases {
        let found =
            resize::in_progress(&spec, &runtime(state), &applied(other), &PodGates::default());
        assert_eq!(found, expected, "{other} in {state}");
    }
}

#[test]
fn a_pod_level_resize_is_in_progress_until_it_is_applied() {
    let mut spec = pod("a");
    spec.spec.as_mut().unwrap().resources = Some(resources("2", "100Mi"));
    let state = runtime("ready");
    for (applied, expected) in [(None, false), (Some("1"), true), (Some("2"), false)] {
        let pod_level = applied.map(|cpu| resources(cpu, "100Mi"));
        let actuated = Actuated { pod_level, ..Actuated::default() };
        let found = resize::in_progress(&spec, &state, &actuated, &PodGates::default());
        assert_eq!(found, expected, "{applied:?}");
    }
}

#[test]
fn a_resize_policy_can_ask_for_a_restart() {
    let mut spec = pod("a b");
    let containers = &mut spec.spec.as_mut().unwrap().containers;
    containers[0].resources = Some(resources("2", "100Mi"));
    containers[0].resize_policy = Some(vec![ContainerResizePolicy {
        resource_name: "memory".to_owned(),
        restart_policy: "RestartContainer".to_owned(),
    }]);
    let mut actuated = Actuated::default();
    actuated.containers.insert("a".to_owned(), resources("1", "100Mi"));
    let cpu_only = resize_plan(&spec, &actuated);
    assert_eq!((words(&cpu_only).as_str(), cpu_only.resize.cpu.len()), ("", 1));
    actuated.containers.insert("a".to_owned(), resources("1", "50Mi"));
    let memory = resize_plan(&spec, &actuated);
    assert_eq!(words(&memory), "kill(Container a resize requires restart) a");
    assert!(memory.resize.pod && memory.resize.cpu.is_empty());
    let unknown = resize_plan(&spec, &Actuated::default());
    assert_eq!(words(&unknown), "", "without a record nothing is restarted");
    assert_eq!(unknown.resize.memory.len(), 1);
}

#[test]
fn pod_level_resources_are_compared_on_their_own() {
    let mut spec = pod("a b");
    spec.spec.as_mut().unwrap().resources = Some(resources("2", "100Mi"));
    let found = resize_plan(&spec, &Actuated::default());
    assert!(found.resize.pod_level);
    let actuated = Actuated { pod_level: Some(resources("2", "100Mi")), ..Actuated::default() };
    assert!(resize_plan(&spec, &actuated).resize.is_empty());
}
