//! Whole nodes under bad luck, one per seed: pods of many kinds come, run, fail and go while the agent
//! is killed, calls are slow, fail or lose their answers, and the runtime restarts. What must hold at
//! every moment is looked at after every step; in the end everything is as the pods say.
//!
//! `SEEDS=n` sets how many nodes (default 60), `SEED=n` begins with that one. A failure names its seed.

use crate::world::{Sources, World, pod};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use testkit::fake_cri::{Behaviour, Fault};

/// Small numbers in an order that the seed fixes.
struct Chance(u64);

impl Chance {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }

    fn millis(&mut self, limit: u64) -> Duration {
        Duration::from_millis(self.below(limit))
    }
}

/// What becomes of a pod that nobody deletes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Runs,
    Succeeds,
    Fails,
    Restarts,
}

/// Makes a pod of a random kind; its containers have names of their own.
fn make(world: &World, chance: &mut Chance, name: &str) -> End {
    let main = format!("{name}-main");
    let container = |name: &str| json!({ "name": name, "image": "busybox:1" });
    let ends = |chance: &mut Chance, code| Behaviour::exits_after(chance.millis(4000), code);
    let slow = Behaviour { start_takes: chance.millis(300), ..Behaviour::default() };
    world.cri.behave(&main, slow);
    let mut spec = json!({ "containers": [container(&main)] });
    let end = match chance.below(8) {
        0 => End::Runs,
        1 => {
            world.cri.behave(&main, Behaviour::ignores_term());
            spec["terminationGracePeriodSeconds"] = json!(3);
            End::Runs
        }
        2 => {
            world.cri.behave(&main, ends(chance, 0));
            spec["restartPolicy"] = json!("Never");
            End::Succeeds
        }
        3 => {
            world.cri.behave(&main, ends(chance, 3));
            spec["restartPolicy"] = json!("Never");
            End::Fails
        }
        4 => {
            let turns = vec![ends(chance, 1), ends(chance, 1), ends(chance, 0)];
            world.cri.behave_in_turn(&main, turns);
            spec["restartPolicy"] = json!("OnFailure");
            End::Succeeds
        }
        5 => {
            world.cri.behave(&main, ends(chance, 1));
            End::Restarts
        }
        6 => {
            let init = format!("{name}-init");
            world.cri.behave(&init, ends(chance, 0));
            spec["initContainers"] = json!([container(&init)]);
            End::Runs
        }
        _ => {
            let side = format!("{name}-side");
            let mut sidecar = container(&side);
            sidecar["restartPolicy"] = json!("Always");
            spec["initContainers"] = json!([sidecar]);
            spec["restartPolicy"] = json!("Never");
            world.cri.behave(&main, ends(chance, 0));
            End::Succeeds
        }
    };
    world.api.put(pod(name, spec));
    end
}

/// What was seen so far and must not be undone.
#[derive(Default)]
struct Seen {
    phases: BTreeMap<String, String>,
    starts: BTreeMap<String, BTreeSet<String>>,
    /// What was seen of each pod, one line per change.
    history: BTreeMap<String, Vec<String>>,
}

impl Seen {
    /// Looks at what must hold at any moment.
    fn look(&mut self, world: &World) {
        let mut alive: BTreeMap<(String, String), Vec<String>> = BTreeMap::new();
        let containers = world.cri.containers();
        let boxes = world.cri.sandboxes();
        for container in &containers {
            let key = (container.pod_uid().to_owned(), container.name().to_owned());
            if container.started_at != 0 {
                self.starts.entry(key.1.clone()).or_default().insert(container.id.clone());
            }
            if container.is_running() {
                alive.entry(key).or_default().push(container.id.clone());
            }
        }
        for ((uid, name), ids) in &alive {
            assert_eq!(ids.len(), 1, "{name} runs more than once");
            let pod = uid.trim_start_matches("uid-");
            assert!(!world.api.deleted().iter().any(|gone| gone == pod), "{name} outlived its pod");
        }
        for (name, pod) in world.api.all() {
            let uid = format!("uid-{name}");
            let own = containers.iter().filter(|c| c.pod_uid() == uid);
            let states: Vec<String> = own
                .map(|c| format!("{}#{} {:?}({})", c.name(), c.attempt(), c.state, c.exit_code))
                .collect();
            let boxes: Vec<bool> =
                boxes.iter().filter(|s| s.pod_uid() == uid).map(|s| s.ready).collect();
            let shown = pod.status.as_ref().and_then(|s| s.phase.clone()).unwrap_or_default();
            let line = format!("{shown} sandboxes {boxes:?} {states:?}");
            let history = self.history.entry(name.clone()).or_default();
            if history.last() != Some(&line) {
                history.push(line);
            }
            let phase = pod.status.as_ref().and_then(|s| s.phase.clone()).unwrap_or_default();
            if let Some(before) = self.phases.get(&name)
                && (before == "Succeeded" || before == "Failed")
            {
                assert_eq!(&phase, before, "{name} left its final phase");
            }
            let over = phase == "Succeeded" || phase == "Failed";
            let runs = alive.keys().any(|(uid, _)| uid.trim_start_matches("uid-") == name);
            assert!(!(over && runs), "{name} is {phase} while a container runs");
            self.phases.insert(name, phase);
        }
    }
}

/// Lets time pass in small steps, looking after each.
async fn pass(world: &World, seen: &mut Seen, time: Duration) {
    let end = tokio::time::Instant::now() + time;
    while tokio::time::Instant::now() < end {
        tokio::time::sleep(Duration::from_millis(100)).await;
        seen.look(world);
    }
}

fn disturb(world: &World, chance: &mut Chance) {
    use cri::Call::{
        CreateContainer, ListContainers, ListPodSandbox, PodSandboxStatus, RemovePodSandbox,
        RunPodSandbox, StartContainer, StopContainer, StopPodSandbox,
    };
    let calls = [
        CreateContainer,
        ListContainers,
        ListPodSandbox,
        PodSandboxStatus,
        RemovePodSandbox,
        RunPodSandbox,
        StartContainer,
        StopContainer,
        StopPodSandbox,
    ];
    let index = usize::try_from(chance.below(9)).unwrap_or_default();
    let fault = Fault::on(calls[index]).times(1 + u32::try_from(chance.below(3)).unwrap_or(0));
    let fault = match chance.below(4) {
        0 => fault.delay(chance.millis(3000)),
        1 => fault.fail(cri::Code::Unavailable, "connection lost"),
        2 => fault.fail_after_effect(cri::Code::Unavailable, "connection lost"),
        _ => fault.fail(cri::Code::DeadlineExceeded, "context deadline exceeded"),
    };
    world.cri.inject(fault);
}

async fn node(seed: u64) {
    let mut chance = Chance(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(seed));
    let world = World::new();
    let mut seen = Seen::default();
    let mut ends: BTreeMap<String, End> = BTreeMap::new();
    let mut leaving: BTreeSet<String> = BTreeSet::new();
    let mut agent = world.start(Sources::Api).await;
    for step in 0..12 {
        for _ in 0..chance.below(3) {
            let name = format!("p{}", ends.len());
            let end = make(&world, &mut chance, &name);
            ends.insert(name, end);
        }
        if chance.below(2) == 0 {
            disturb(&world, &mut chance);
        }
        pass(&world, &mut seen, chance.millis(1500)).await;
        match chance.below(6) {
            0..=2 => {
                // Killed: nothing it does from now on has any effect.
                world.cri.down();
                world.api.cut(true);
                agent.crash().await;
                pass(&world, &mut seen, chance.millis(1500)).await;
                world.cri.up();
                world.api.cut(false);
                agent = world.start(Sources::Api).await;
            }
            3 => world.cri.restart(),
            _ => {}
        }
        let index = usize::try_from(chance.below(8)).unwrap_or_default();
        let candidate = ends.keys().nth(index).filter(|name| world.api.pod(name).is_some());
        if let Some(name) = candidate.filter(|_| step > 2).cloned()
            && leaving.insert(name.clone())
        {
            let grace = i64::try_from(chance.below(5)).unwrap_or_default() + 1;
            world.api.delete(&name, grace, world.clock.now());
        }
    }
    world.cri.clear_faults();
    let patience = tokio::time::Instant::now() + Duration::from_secs(1800);
    loop {
        let left = unsettled(&world, &ends, &leaving);
        if left.is_empty() {
            break;
        }
        assert!(tokio::time::Instant::now() < patience, "never settled: {left:#?}");
        tokio::time::sleep(Duration::from_secs(1)).await;
        seen.look(&world);
    }
    pass(&world, &mut seen, Duration::from_secs(5)).await;
    for (name, end) in &ends {
        let starts = seen.starts.get(&format!("{name}-main")).map_or(0, BTreeSet::len);
        if *end == End::Fails {
            let history = seen.history.get(name).cloned().unwrap_or_default();
            assert!(starts <= 1, "{name} was started {starts} times: {history:#?}");
        }
    }
    agent.crash().await;
}

/// Pods that are not yet as they should be in the end, with what there is of them.
fn unsettled(
    world: &World,
    ends: &BTreeMap<String, End>,
    leaving: &BTreeSet<String>,
) -> Vec<String> {
    let containers = world.cri.containers();
    let mut left = Vec::new();
    for (name, end) in ends {
        let uid = format!("uid-{name}");
        let own: Vec<_> = containers.iter().filter(|c| c.pod_uid() == uid).collect();
        let live = own.iter().filter(|c| c.is_running()).count();
        let status = world.api.pod(name).and_then(|pod| pod.status).unwrap_or_default();
        let phase = status.phase.clone().unwrap_or_default();
        let shown = serde_json::to_string(&status).unwrap_or_default();
        let good = if leaving.contains(name) {
            let ready = world.cri.sandboxes().iter().any(|s| s.pod_uid() == uid && s.ready);
            let cgroup = world.cgroups.made.lock().unwrap().contains(&uid);
            world.api.pod(name).is_none() && live == 0 && !ready && !cgroup
        } else {
            match end {
                End::Runs => phase == "Running" && live == 1,
                End::Succeeds => phase == "Succeeded" && live == 0,
                End::Fails => phase == "Failed" && live == 0,
                End::Restarts => {
                    let list = status.container_statuses.unwrap_or_default();
                    list.iter().any(|entry| entry.restart_count > 0)
                }
            }
        };
        if !good {
            let states: Vec<String> = own
                .iter()
                .map(|c| format!("{}#{} {:?} {}", c.name(), c.attempt(), c.state, c.exit_code))
                .collect();
            let leaves = leaving.contains(name);
            left.push(format!("{name}: {end:?}, leaving {leaves}, {states:?}, {shown}"));
        }
    }
    left
}

#[test]
fn no_seed_duplicates_loses_or_forgets_anything() {
    let number = |name: &str, default| {
        std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
    };
    let first: u64 = number("SEED", 1);
    let mut failed: Vec<String> = Vec::new();
    for seed in first..first + number("SEEDS", 60) {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let runtime = builder.enable_all().start_paused(true).build().unwrap();
        let run = std::panic::AssertUnwindSafe(|| runtime.block_on(node(seed)));
        if let Err(cause) = std::panic::catch_unwind(run) {
            let text = cause.downcast_ref::<String>().cloned().unwrap_or_default();
            failed.push(format!("SEED={seed}: {text}"));
        }
    }
    assert!(failed.is_empty(), "{} nodes failed:\n{}", failed.len(), failed.join("\n"));
}
