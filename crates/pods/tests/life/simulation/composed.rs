//! Pods put together by chance: some init containers and sidecars, some app containers, each with a course of its own,
//! any policy, probes, hooks, volumes and failing starts. What must become of each follows from its parts.

use super::Chance;
use super::kinds::{End, LIVE, POST, PRE, container, ends, exec};
use crate::world::World;
use serde_json::{Value, json};
use testkit::fake_cri::{Behaviour, OnTerm};

/// What a container does when it is left alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Course {
    Runs,
    Ends,
    Fails,
    /// Fails at first.
    Recovers,
}

/// A container that comes before the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Before {
    Init(Course),
    Sidecar(Course),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Policy {
    Always,
    OnFailure,
    Never,
}

/// Puts a pod together; the first of its containers is there already.
pub(super) fn make(world: &World, chance: &mut Chance, name: &str, spec: &mut Value) -> End {
    let policy = *chance.of(&[Policy::Always, Policy::OnFailure, Policy::Never]).unwrap();
    spec["restartPolicy"] = json!(format!("{policy:?}"));
    spec["terminationGracePeriodSeconds"] = json!(1 + chance.below(6));
    let before: Vec<Before> = (0..chance.below(4)).map(|_| draw_before(chance, policy)).collect();
    let mut mains = vec![draw_main(chance)];
    mains.extend((0..chance.below(3)).map(|_| draw_main(chance)));
    let inits: Vec<Value> =
        before.iter().enumerate().map(|(at, what)| first(world, chance, name, at, *what)).collect();
    if !inits.is_empty() {
        spec["initContainers"] = json!(inits);
    }
    let list: Vec<Value> = mains
        .iter()
        .enumerate()
        .map(|(at, course)| main(world, chance, &main_name(name, at), *course, policy))
        .collect();
    spec["containers"] = json!(list);
    if chance.below(3) == 0 {
        spec["volumes"] = json!([{ "name": "scratch", "emptyDir": {} }]);
        spec["containers"][0]["volumeMounts"] = json!([{ "name": "scratch", "mountPath": "/s" }]);
    }
    end(policy, &before, &mains)
}

fn main_name(name: &str, at: usize) -> String {
    if at == 0 { format!("{name}-main") } else { format!("{name}-main{at}") }
}

fn draw_main(chance: &mut Chance) -> Course {
    *chance
        .of(&[Course::Runs, Course::Runs, Course::Ends, Course::Fails, Course::Recovers])
        .unwrap()
}

fn draw_before(chance: &mut Chance, policy: Policy) -> Before {
    match chance.below(5) {
        0 => Before::Sidecar(Course::Runs),
        1 => Before::Sidecar(Course::Recovers),
        2 if policy == Policy::Never => Before::Init(Course::Fails),
        2 => Before::Init(Course::Recovers),
        _ => Before::Init(Course::Ends),
    }
}

/// What becomes of such a pod.
fn end(policy: Policy, before: &[Before], mains: &[Course]) -> End {
    let sidecars = before.iter().filter(|what| matches!(what, Before::Sidecar(_))).count();
    if before.contains(&Before::Init(Course::Fails)) {
        return End::Fails;
    }
    let again = |course: &Course| match policy {
        Policy::Always => *course != Course::Runs,
        Policy::OnFailure => *course == Course::Fails,
        Policy::Never => false,
    };
    if mains.iter().any(again) {
        return End::Restarts;
    }
    let running = mains.iter().filter(|course| **course == Course::Runs).count();
    let failed = mains.iter().any(|course| matches!(course, Course::Fails | Course::Recovers));
    match (running, policy) {
        (0, Policy::Never) if failed => End::Fails,
        (0, _) => End::Succeeds,
        _ => End::Runs(running + sidecars),
    }
}

/// The process of a container that runs until it is told to end.
fn steady(chance: &mut Chance) -> Behaviour {
    let on_term = match chance.below(4) {
        0 => OnTerm::Ignore,
        1 => OnTerm::Exit { after: chance.millis(3000), code: 0 },
        _ => OnTerm::default(),
    };
    Behaviour { on_term, start_takes: chance.millis(300), ..Behaviour::default() }
}

/// The processes of one course, one after the other.
fn turns(chance: &mut Chance, course: Course, last: Behaviour) -> Vec<Behaviour> {
    match course {
        Course::Runs | Course::Ends => vec![last],
        Course::Fails => vec![ends(chance, 1)],
        Course::Recovers => {
            let mut turns: Vec<Behaviour> =
                (0..=chance.below(2)).map(|_| ends(chance, 7)).collect();
            turns.push(last);
            turns
        }
    }
}

fn first(world: &World, chance: &mut Chance, name: &str, at: usize, what: Before) -> Value {
    match what {
        Before::Init(course) => {
            let name = format!("{name}-init{at}");
            let last = ends(chance, 0);
            world.cri.behave_in_turn(&name, turns(chance, course, last));
            container(&name)
        }
        Before::Sidecar(course) => {
            let name = format!("{name}-side{at}");
            let last = steady(chance);
            world.cri.behave_in_turn(&name, turns(chance, course, last));
            let mut sidecar = container(&name);
            sidecar["restartPolicy"] = json!("Always");
            if chance.below(3) == 0 {
                sidecar["startupProbe"] = probe(chance, 30);
            }
            if chance.below(3) == 0 {
                sidecar["readinessProbe"] = probe(chance, 1);
            }
            if chance.below(3) == 0 {
                sidecar["lifecycle"] = json!({ "preStop": exec(PRE) });
            }
            sidecar
        }
    }
}

fn main(world: &World, chance: &mut Chance, name: &str, course: Course, policy: Policy) -> Value {
    let last = if course == Course::Runs { steady(chance) } else { ends(chance, 0) };
    let mut turns = turns(chance, course, last);
    if policy == Policy::Always && chance.below(4) == 0 {
        let start_error = Some("exec: \"nothing\": executable file not found in $PATH".to_owned());
        let failing = Behaviour { start_error, ..Behaviour::default() };
        turns.insert(0, failing);
    }
    world.cri.behave_in_turn(name, turns);
    let mut main = container(name);
    let runs = course == Course::Runs;
    if runs && chance.below(3) == 0 {
        main["readinessProbe"] = probe(chance, 2);
    }
    if runs && policy == Policy::Always {
        if chance.below(3) == 0 {
            let mut liveness = probe(chance, 3);
            liveness["terminationGracePeriodSeconds"] = json!(1 + chance.below(3));
            main["livenessProbe"] = liveness;
        }
        if chance.below(4) == 0 {
            main["startupProbe"] = probe(chance, 30);
        }
        match chance.below(5) {
            0 => main["lifecycle"] = json!({ "postStart": exec(POST) }),
            1 => main["lifecycle"] = json!({ "preStop": exec(PRE) }),
            _ => {}
        }
    }
    main
}

fn probe(chance: &mut Chance, failures: u64) -> Value {
    let mut probe = exec(LIVE);
    probe["periodSeconds"] = json!(1 + chance.below(3));
    probe["initialDelaySeconds"] = json!(chance.below(3));
    probe["failureThreshold"] = json!(failures);
    probe
}
