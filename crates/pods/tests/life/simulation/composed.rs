//! Pods put together by chance: some init containers and sidecars, some app containers, each with a course of its own,
//! any policy, probes, hooks, volumes and failing starts. What must become of each follows from its parts.

use super::Rng;
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
pub(super) fn make(world: &World, rng: &mut Rng, name: &str, spec: &mut Value) -> End {
    let policy = *rng.of(&[Policy::Always, Policy::OnFailure, Policy::Never]).unwrap();
    spec["restartPolicy"] = json!(format!("{policy:?}"));
    spec["terminationGracePeriodSeconds"] = json!(1 + rng.below(6));
    let before: Vec<Before> = (0..rng.below(4)).map(|_| draw_before(rng, policy)).collect();
    let mut mains = vec![draw_main(rng)];
    mains.extend((0..rng.below(3)).map(|_| draw_main(rng)));
    let inits: Vec<Value> =
        before.iter().enumerate().map(|(at, what)| first(world, rng, name, at, *what)).collect();
    if !inits.is_empty() {
        spec["initContainers"] = json!(inits);
    }
    let list: Vec<Value> = mains
        .iter()
        .enumerate()
        .map(|(at, course)| main(world, rng, &main_name(name, at), *course, policy))
        .collect();
    spec["containers"] = json!(list);
    if rng.below(3) == 0 {
        spec["volumes"] = json!([{ "name": "scratch", "emptyDir": {} }]);
        spec["containers"][0]["volumeMounts"] = json!([{ "name": "scratch", "mountPath": "/s" }]);
    }
    end(policy, &before, &mains)
}

fn main_name(name: &str, at: usize) -> String {
    if at == 0 { format!("{name}-main") } else { format!("{name}-main{at}") }
}

fn draw_main(rng: &mut Rng) -> Course {
    *rng.of(&[Course::Runs, Course::Runs, Course::Ends, Course::Fails, Course::Recovers]).unwrap()
}

fn draw_before(rng: &mut Rng, policy: Policy) -> Before {
    match rng.below(5) {
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
fn steady(rng: &mut Rng) -> Behaviour {
    let on_term = match rng.below(4) {
        0 => OnTerm::Ignore,
        1 => OnTerm::Exit { after: rng.millis(3000), code: 0 },
        _ => OnTerm::default(),
    };
    Behaviour { on_term, start_takes: rng.millis(300), ..Behaviour::default() }
}

/// The processes of one course, one after the other.
fn turns(rng: &mut Rng, course: Course, last: Behaviour) -> Vec<Behaviour> {
    match course {
        Course::Runs | Course::Ends => vec![last],
        Course::Fails => vec![ends(rng, 1)],
        Course::Recovers => {
            let mut turns: Vec<Behaviour> = (0..=rng.below(2)).map(|_| ends(rng, 7)).collect();
            turns.push(last);
            turns
        }
    }
}

fn first(world: &World, rng: &mut Rng, name: &str, at: usize, what: Before) -> Value {
    match what {
        Before::Init(course) => {
            let name = format!("{name}-init{at}");
            let last = ends(rng, 0);
            world.cri.behave_in_turn(&name, turns(rng, course, last));
            container(&name)
        }
        Before::Sidecar(course) => {
            let name = format!("{name}-side{at}");
            let last = steady(rng);
            world.cri.behave_in_turn(&name, turns(rng, course, last));
            let mut sidecar = container(&name);
            sidecar["restartPolicy"] = json!("Always");
            if rng.below(3) == 0 {
                sidecar["startupProbe"] = probe(rng, 30);
            }
            if rng.below(3) == 0 {
                sidecar["readinessProbe"] = probe(rng, 1);
            }
            if rng.below(3) == 0 {
                sidecar["lifecycle"] = json!({ "preStop": exec(PRE) });
            }
            sidecar
        }
    }
}

fn main(world: &World, rng: &mut Rng, name: &str, course: Course, policy: Policy) -> Value {
    let last = if course == Course::Runs { steady(rng) } else { ends(rng, 0) };
    let mut turns = turns(rng, course, last);
    if policy == Policy::Always && rng.below(4) == 0 {
        let start_error = Some("exec: \"nothing\": executable file not found in $PATH".to_owned());
        let failing = Behaviour { start_error, ..Behaviour::default() };
        turns.insert(0, failing);
    }
    world.cri.behave_in_turn(name, turns);
    let mut main = container(name);
    let runs = course == Course::Runs;
    if runs && rng.below(3) == 0 {
        main["readinessProbe"] = probe(rng, 2);
    }
    if runs && policy == Policy::Always {
        if rng.below(3) == 0 {
            let mut liveness = probe(rng, 3);
            liveness["terminationGracePeriodSeconds"] = json!(1 + rng.below(3));
            main["livenessProbe"] = liveness;
        }
        if rng.below(4) == 0 {
            main["startupProbe"] = probe(rng, 30);
        }
        match rng.below(5) {
            0 => main["lifecycle"] = json!({ "postStart": exec(POST) }),
            1 => main["lifecycle"] = json!({ "preStop": exec(PRE) }),
            _ => {}
        }
    }
    main
}

fn probe(rng: &mut Rng, failures: u64) -> Value {
    let mut probe = exec(LIVE);
    probe["periodSeconds"] = json!(1 + rng.below(3));
    probe["initialDelaySeconds"] = json!(rng.below(3));
    probe["failureThreshold"] = json!(failures);
    probe
}
