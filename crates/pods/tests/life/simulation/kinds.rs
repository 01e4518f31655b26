//! The pods of a simulated node: one of many kinds each, with what must become of it.

use super::{Rng, composed};
use crate::world::{World, pod};
use serde_json::{Value, json};
use std::time::Duration;
use testkit::fake_cri::Behaviour;

/// What becomes of a pod that nobody deletes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// Runs with so many containers.
    Runs(usize),
    Succeeds,
    Fails,
    /// Is restarted again and again.
    Restarts,
}

/// One pod of the API.
#[derive(Debug, Clone)]
pub(super) struct Made {
    pub(super) end: End,
    pub(super) uid: String,
    /// Its containers are started once, unless something happens to them.
    pub(super) once: bool,
    /// Killed from outside, or found ill.
    pub(super) touched: bool,
    /// Its policy is never to restart.
    pub(super) never: bool,
    /// Its container has a policy of its own. Like the Go kubelet's, such a pod is left as it is when its
    /// sandbox dies and its own policy is never to restart.
    pub(super) own_policy: bool,
    /// Starts all its containers again and again until it is told to stop that.
    pub(super) again: bool,
    /// Put together by chance.
    pub(super) composed: bool,
    /// Was to be evicted; a crash may have come between.
    pub(super) evicted: bool,
    /// The code that its container must be seen to end with.
    pub(super) code: Option<i32>,
    /// Its container ends by itself and may run once.
    pub(super) runs_once: bool,
}

impl Made {
    /// Nothing that happened so far is a reason to start its containers again, or to call it unready.
    pub(super) fn is_steady(&self) -> bool {
        self.once && !self.touched && !self.evicted
    }
}

/// Ill in one step, well in a later one.
pub(super) const LIVE: &str = "live";
/// Fails on its first run in each pod.
pub(super) const POST: &str = "post";
/// Takes some time.
pub(super) const PRE: &str = "pre";

pub(super) fn container(name: &str) -> Value {
    json!({ "name": name, "image": "busybox:1" })
}

pub(super) fn ends(rng: &mut Rng, code: i32) -> Behaviour {
    let start_takes = rng.millis(400);
    Behaviour { start_takes, ..Behaviour::exits_after(rng.millis(4000), code) }
}

pub(super) fn exec(command: &str) -> Value {
    json!({ "exec": { "command": [command] } })
}

/// Makes a pod of a random kind; its containers have names of their own.
pub(super) fn make(world: &World, rng: &mut Rng, name: &str, uid: &str) -> Made {
    let main = format!("{name}-main");
    let slow = Behaviour { start_takes: rng.millis(300), ..Behaviour::default() };
    world.cri.behave(&main, slow);
    let mut spec = json!({ "containers": [container(&main)] });
    let kind = rng.below(32);
    let end = match kind {
        0..=7 => plain(world, rng, name, &mut spec, kind),
        8..=11 => with_commands(world, rng, name, &mut spec, kind),
        12..=19 => with_others(world, rng, name, &mut spec, kind),
        _ => composed::make(world, rng, name, &mut spec),
    };
    let never = spec["restartPolicy"] == "Never";
    let mut made = pod(name, spec);
    made.metadata.uid = Some(uid.to_owned());
    world.api.put(made);
    let once = matches!(kind, 0 | 1 | 6 | 9 | 13 | 16 | 18);
    Made {
        end,
        uid: uid.to_owned(),
        once,
        touched: false,
        never,
        own_policy: kind == 15,
        again: kind == 19,
        composed: kind > 19,
        evicted: false,
        code: (kind == 2 || kind == 3).then_some(if kind == 2 { 0 } else { 3 }),
        runs_once: kind == 2 || kind == 3,
    }
}

fn plain(world: &World, rng: &mut Rng, name: &str, spec: &mut Value, kind: u64) -> End {
    let main = format!("{name}-main");
    match kind {
        0 => End::Runs(1),
        1 => {
            world.cri.behave(&main, Behaviour::ignores_term());
            spec["terminationGracePeriodSeconds"] = json!(3);
            End::Runs(1)
        }
        2 => {
            world.cri.behave(&main, ends(rng, 0));
            spec["restartPolicy"] = json!("Never");
            End::Succeeds
        }
        3 => {
            world.cri.behave(&main, ends(rng, 3));
            spec["restartPolicy"] = json!("Never");
            End::Fails
        }
        4 => {
            let turns = vec![ends(rng, 1), ends(rng, 1), ends(rng, 0)];
            world.cri.behave_in_turn(&main, turns);
            spec["restartPolicy"] = json!("OnFailure");
            End::Succeeds
        }
        5 => {
            world.cri.behave(&main, ends(rng, 1));
            End::Restarts
        }
        6 => {
            let init = format!("{name}-init");
            world.cri.behave(&init, ends(rng, 0));
            spec["initContainers"] = json!([container(&init)]);
            End::Runs(1)
        }
        _ => {
            let side = format!("{name}-side");
            let mut sidecar = container(&side);
            sidecar["restartPolicy"] = json!("Always");
            spec["initContainers"] = json!([sidecar]);
            spec["restartPolicy"] = json!("Never");
            world.cri.behave(&main, ends(rng, 0));
            End::Succeeds
        }
    }
}

/// Pods in whose containers commands are run.
fn with_commands(world: &World, rng: &mut Rng, name: &str, spec: &mut Value, kind: u64) -> End {
    let main = &mut spec["containers"][0];
    match kind {
        8 => {
            let mut probe = exec(LIVE);
            probe["periodSeconds"] = json!(1);
            probe["failureThreshold"] = json!(2);
            main["livenessProbe"] = probe.clone();
            main["readinessProbe"] = probe;
        }
        9 => {
            main["lifecycle"] = json!({ "preStop": exec(PRE) });
            spec["terminationGracePeriodSeconds"] = json!(5);
        }
        10 => main["lifecycle"] = json!({ "postStart": exec(POST) }),
        _ => {
            let mut probe = exec(LIVE);
            probe["periodSeconds"] = json!(1);
            probe["failureThreshold"] = json!(5);
            main["startupProbe"] = probe;
            let side = format!("{name}-side");
            world
                .cri
                .behave(&side, Behaviour { start_takes: rng.millis(300), ..Behaviour::default() });
            let mut sidecar = container(&side);
            sidecar["restartPolicy"] = json!("Always");
            sidecar["lifecycle"] = json!({ "preStop": exec(PRE) });
            spec["initContainers"] = json!([sidecar]);
            return End::Runs(2);
        }
    }
    End::Runs(1)
}

fn with_others(world: &World, rng: &mut Rng, name: &str, spec: &mut Value, kind: u64) -> End {
    let main = format!("{name}-main");
    let (init, side) = (format!("{name}-init"), format!("{name}-side"));
    match kind {
        12 => {
            let turns = vec![ends(rng, 1), ends(rng, 2), ends(rng, 0)];
            world.cri.behave_in_turn(&init, turns);
            spec["initContainers"] = json!([container(&init)]);
            End::Runs(1)
        }
        13 => {
            world.cri.behave(&init, ends(rng, 0));
            let mut sidecar = container(&side);
            sidecar["restartPolicy"] = json!("Always");
            spec["initContainers"] = json!([sidecar, container(&init)]);
            End::Runs(2)
        }
        14 => {
            world.cri.behave(&init, ends(rng, 1));
            spec["initContainers"] = json!([container(&init)]);
            spec["restartPolicy"] = json!("Never");
            End::Fails
        }
        15 => {
            world.cri.behave_in_turn(&main, vec![ends(rng, 1), ends(rng, 0)]);
            spec["containers"][0]["restartPolicy"] = json!("OnFailure");
            spec["restartPolicy"] = json!("Never");
            End::Succeeds
        }
        16 => {
            // With limits or without: Guaranteed or Burstable.
            let amount = json!({ "cpu": "100m", "memory": "64Mi" });
            spec["containers"][0]["resources"] = if rng.below(2) == 0 {
                json!({ "requests": amount, "limits": amount })
            } else {
                json!({ "requests": amount })
            };
            End::Runs(1)
        }
        17 => {
            spec["activeDeadlineSeconds"] = json!(5 + rng.below(20));
            spec["terminationGracePeriodSeconds"] = json!(2);
            End::Fails
        }
        18 => {
            let image = format!("absent/{name}:1");
            let fault = ("ErrImagePull".to_owned(), "no such host".to_owned());
            world.images.broken.lock().unwrap().insert(image.clone(), fault);
            spec["containers"][0]["image"] = json!(image);
            End::Runs(1)
        }
        _ => {
            // All are started anew while the first says so.
            let other = format!("{name}-other");
            // Nothing slows such a pod down but its own time.
            let runs_for = Duration::from_millis(200) + rng.millis(3800);
            world.cri.behave(&main, Behaviour::exits_after(runs_for, 42));
            let rule = json!({ "action": "RestartAllContainers",
                "exitCodes": { "operator": "In", "values": [42] } });
            spec["containers"][0]["restartPolicy"] = json!("OnFailure");
            spec["containers"][0]["restartPolicyRules"] = json!([rule]);
            spec["containers"].as_array_mut().unwrap().push(container(&other));
            End::Runs(2)
        }
    }
}

/// The manifest of a static pod.
pub(super) fn manifest(name: &str, version: u64, rng: &mut Rng, world: &World) -> String {
    let main = format!("{name}-main");
    world.cri.behave(
        &main,
        if rng.below(3) == 0 { Behaviour::ignores_term() } else { Behaviour::default() },
    );
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": name, "namespace": "default" },
        "spec": {
            "terminationGracePeriodSeconds": 1 + rng.below(4),
            "containers": [{ "name": main, "image": format!("busybox:{version}") }],
        },
    })
    .to_string()
}
