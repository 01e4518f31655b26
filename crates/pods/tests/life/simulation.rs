//! Whole nodes under bad luck, one per seed: pods of many kinds come, change, run, fail and go while
//! the agent is killed or stopped, calls are slow, hang, fail or lose their answers, are cancelled because the
//! agent that made them is gone, events are lost, the API server does not answer, containers and sandboxes die,
//! the runtime restarts and the machine too, tasks of the agent panic, and the clock is set.
//! What must hold at every moment is looked at after every step, the values of cgroups among it; in the end everything is as the pods
//! say, and when they are gone nothing of them is left.
//!
//! `SEEDS=n` sets how many nodes (default 40), `SEED=n` begins with that one. A failure names its seed, and so
//! does a node that hangs.

mod composed;
mod faults;
mod guard;
mod kinds;
mod mishaps;
mod seen;
mod sums;

use crate::world::{Agent, FakeCgroups, Sources, World};
pub(crate) use faults::Rng;
use faults::{Health, commands, disturb};
use guard::Story;
use kinds::{End, Made};
use seen::Seen;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use sums::Sums;

/// How often is looked while time passes.
const STEP: Duration = Duration::from_millis(100);

/// One simulated node with its pods.
struct Node {
    world: World,
    rng: Rng,
    seen: Seen,
    sums: Sums,
    health: Arc<Mutex<Health>>,
    made: BTreeMap<String, Made>,
    leaving: BTreeSet<String>,
    /// Pods whose names others have now.
    former: Vec<String>,
    statics: BTreeSet<String>,
    story: Story,
}

impl Node {
    async fn start(&self) -> Agent {
        let agent = self.world.start(Sources::Both).await;
        self.story.agent(&agent);
        agent
    }

    /// Lets time pass in small steps, looking after each. What is shorter than one step is no time at all but
    /// so many turns of the agent: what comes then meets it in the middle of its work.
    async fn pass(&mut self, limit: u64) {
        let time = self.rng.millis(limit);
        if time < STEP {
            for _ in 0..time.as_millis() {
                tokio::task::yield_now().await;
            }
            return self.look();
        }
        let end = tokio::time::Instant::now() + time;
        while tokio::time::Instant::now() < end {
            tokio::time::sleep(STEP).await;
            self.look();
        }
    }

    fn look(&mut self) {
        self.seen.look(&self.world, &self.made, &self.leaving);
        for made in self.made.values_mut().filter(|made| self.seen.given_up.contains(&made.uid)) {
            made.touched = true;
        }
        self.sums.look(&self.world, &self.story);
    }

    /// Small troubles around the agent, until the next step.
    fn surround(&mut self) {
        self.world.cri.lose_events(self.rng.below(5) == 0);
        self.world.api.mute(self.rng.below(6) == 0);
        let luck = (self.rng.below(4) == 0).then(|| self.rng.below(1 << 30));
        self.world.api.unsteady(luck);
        self.world.cgroups.broken.store(self.rng.below(12) == 0, Ordering::Relaxed);
        self.world.volumes.broken.store(self.rng.below(8) == 0, Ordering::Relaxed);
        let problem = (self.rng.below(10) == 0).then(|| "cni plugin not initialized".to_owned());
        self.world.set_node(|view| view.network_error = problem);
        if self.rng.below(3) == 0 {
            self.world.images.broken.lock().unwrap().clear();
        }
    }

    async fn live(&mut self) {
        if self.rng.below(4) == 0 {
            self.world.cri.disable(cri::Call::GetContainerEvents);
        }
        let mut agent = self.start().await;
        for step in 0..14 {
            self.story.at(format!("step {step}"));
            for _ in 0..self.rng.below(3) {
                let name = format!("p{}", self.made.len());
                let uid = format!("uid-{name}");
                let made = kinds::make(&self.world, &mut self.rng, &name, &uid);
                self.made.insert(name, made);
            }
            if self.rng.below(2) == 0 {
                disturb(&self.world, &mut self.rng);
            }
            self.surround();
            self.pass(1500).await;
            mishaps::strike(&agent, &mut self.rng);
            self.pass(100).await;
            if let Some(cause) = agent.tasks.fatal() {
                self.story.at(format!("{cause} in step {step}"));
                self.world.cri.down();
                self.world.api.cut(true);
                agent.crash().await;
                self.world.cri.up();
                self.world.api.cut(false);
                agent = self.start().await;
            }
            match self.rng.below(6) {
                0..=2 => {
                    if self.rng.below(3) == 0 {
                        self.story.at(format!("stop in step {step}"));
                        // What hangs is left in the end.
                        agent.tasks.finish_within(Duration::from_secs(30)).await;
                        self.look();
                    }
                    // Killed: nothing it does from now on has any effect.
                    self.world.cri.down();
                    self.world.api.cut(true);
                    self.story.at(format!("crash in step {step}"));
                    agent.crash().await;
                    self.story.at(format!("step {step} after the crash"));
                    self.pass(1500).await;
                    match self.rng.below(12) {
                        0 => self.reboot(),
                        1 => self.lose_state(),
                        2 => self.strike(step),
                        3 => self.set_clock(),
                        _ => {}
                    }
                    self.world.cri.up();
                    self.world.api.cut(false);
                    agent = self.start().await;
                }
                3 => self.world.cri.restart(),
                4 if self.rng.below(2) == 0 => self.evict(&agent).await,
                5 if self.rng.below(4) == 0 => self.set_clock(),
                _ => {}
            }
            if step > 2 {
                self.strike(step);
            }
        }
        self.heal();
        self.settle("settled", Self::unsettled).await;
        for (name, made) in &self.made {
            self.was_right(name, made);
        }
        self.take_all();
        self.settle("went", Self::left).await;
        self.story.at("last crash");
        agent.crash().await;
    }

    /// Waits until nothing is wrong any more.
    async fn settle(&mut self, what: &str, wrong: impl Fn(&Self) -> Vec<String>) {
        self.story.at(format!("until it {what}"));
        let patience = tokio::time::Instant::now() + Duration::from_secs(3600);
        loop {
            let left = wrong(self);
            if left.is_empty() {
                break;
            }
            let late = tokio::time::Instant::now() >= patience;
            assert!(!late, "never {what}: {left:#?}; {:#?}", self.story.waits());
            tokio::time::sleep(Duration::from_secs(1)).await;
            self.look();
        }
    }

    /// Nothing was started more often than it had to be.
    fn was_right(&self, name: &str, made: &Made) {
        let history = self.seen.history.get(&made.uid);
        let starts = |container: &str| {
            let key = (made.uid.clone(), container.to_owned());
            self.seen.starts.get(&key).map_or(0, BTreeSet::len)
        };
        let main = starts(&format!("{name}-main"));
        if made.runs_once || made.is_steady() {
            assert!(main <= 1, "{name} was started {main} times: {history:#?}");
        }
        let pod = self.world.api.pod(name).unwrap_or_default();
        let failed = pod.status.as_ref().is_some_and(|s| s.phase.as_deref() == Some("Failed"));
        if failed && made.runs_once && !made.touched && !made.evicted {
            assert_eq!(main, 1, "{name} failed and never ran: {history:#?}");
        }
        let shown = pod.status.and_then(|status| status.container_statuses).unwrap_or_default();
        let code = shown
            .first()
            .and_then(|entry| Some(entry.state.as_ref()?.terminated.as_ref()?.exit_code));
        if made.code.is_some() && !made.touched && !self.leaving.contains(name) {
            assert_eq!(code, made.code, "{name} is shown to have ended otherwise: {history:#?}");
        }
        let spec = pod.spec.unwrap_or_default();
        for debugger in spec.ephemeral_containers.into_iter().flatten() {
            let starts = starts(&debugger.name);
            assert!(starts <= 1, "{} was started {starts} times: {history:#?}", debugger.name);
        }
    }

    /// Deletes everything.
    fn take_all(&mut self) {
        for name in std::mem::take(&mut self.statics) {
            sys::fs::remove_file(self.world.manifests().join(format!("{name}.json"))).unwrap();
        }
        for name in self.made.keys() {
            if self.world.api.pod(name).is_some() {
                self.world.api.delete(name, 2, self.world.clock.now());
            }
        }
    }

    /// What is left of pods that are all gone.
    fn left(&self) -> Vec<String> {
        let mut left: Vec<String> = self.world.api.all().into_keys().collect();
        left.extend(self.world.cri.containers().iter().map(|c| format!("container {}", c.name())));
        left.extend(self.world.cri.sandboxes().iter().map(|s| format!("sandbox {}", s.pod_uid())));
        left.extend(self.world.cgroups.made.lock().unwrap().keys().cloned());
        let roots = &self.world.roots;
        for folder in [&roots.kubelet.join("pods"), &roots.pod_logs, &roots.container_logs] {
            let names = std::fs::read_dir(folder).into_iter().flatten();
            left.extend(names.map(|entry| entry.unwrap().path().display().to_string()));
        }
        left
    }

    /// Pods that are not yet as they should be in the end, with what there is of them.
    fn unsettled(&self) -> Vec<String> {
        let containers = self.world.cri.containers();
        let live =
            |uid: &str| containers.iter().filter(|c| c.pod_uid() == uid && c.is_running()).count();
        let is_gone = |uid: &str| {
            let ready = self.world.cri.sandboxes().iter().any(|s| s.pod_uid() == uid && s.ready);
            let cgroup = self.world.cgroups.made.lock().unwrap().contains_key(uid);
            live(uid) == 0 && !ready && !cgroup
        };
        let mut left: Vec<String> =
            self.former.iter().filter(|uid| !is_gone(uid)).cloned().collect();
        for (name, made) in &self.made {
            let pod = self.world.api.pod(name);
            let status = pod.as_ref().and_then(|pod| pod.status.clone()).unwrap_or_default();
            let phase = status.phase.clone().unwrap_or_default();
            let good = if self.leaving.contains(name) {
                pod.is_none() && is_gone(&made.uid)
            } else {
                self.is_settled(name, made, live(&made.uid), &phase)
            };
            if !good {
                let shown = serde_json::to_string(&status).unwrap_or_default();
                let history = self.seen.history.get(&made.uid);
                let leaves = self.leaving.contains(name);
                left.push(format!("{name}: {made:?}, leaving {leaves}, {shown} {history:#?}"));
            }
        }
        for name in ["s0", "s1", "s2"] {
            let live =
                containers.iter().filter(|c| c.is_running() && c.name() == format!("{name}-main"));
            let mirror = self.world.api.phase(&format!("{name}-node"));
            let good = if self.statics.contains(name) {
                live.count() == 1 && mirror.as_deref() == Some("Running")
            } else {
                live.count() == 0 && mirror.is_none()
            };
            if !good {
                left.push(format!("static {name}: mirror {mirror:?}"));
            }
        }
        left
    }

    fn is_settled(&self, name: &str, made: &Made, live: usize, phase: &str) -> bool {
        let over = (phase == "Succeeded" || phase == "Failed") && live == 0;
        if made.evicted && phase == "Failed" {
            return live == 0;
        }
        // What ended well when it was told to has run, unless its pod restarts everything.
        let once = made.never || made.evicted;
        if made.touched && once && made.composed {
            return over || phase == "Running" && live > 0;
        }
        match made.end {
            End::Runs(count) => {
                phase == "Running" && live == count && self.has_its_resources(name, made)
            }
            End::Succeeds if Self::may_fail(made) => over || made.own_policy && live == 0,
            End::Succeeds => phase == "Succeeded" && live == 0,
            End::Fails => phase == "Failed" && live == 0,
            End::Restarts => {
                let status = self.world.api.pod(name).and_then(|pod| pod.status);
                let list = status.and_then(|status| status.container_statuses).unwrap_or_default();
                list.iter().any(|entry| entry.restart_count > 0)
            }
        }
    }

    /// The pod's cgroup and its running container have the CPU that the pod says.
    fn has_its_resources(&self, name: &str, made: &Made) -> bool {
        let pod = self.world.api.pod(name).unwrap_or_default();
        if self.world.cgroups.limits_of(&made.uid) != Some(FakeCgroups::limits_for(&pod)) {
            return false;
        }
        let spec = pod.spec.unwrap_or_default();
        let requests = spec.containers.first().and_then(|c| c.resources.clone()?.requests);
        let Some(cpu) = requests.as_ref().and_then(|requests| requests.get("cpu")) else {
            return true;
        };
        let milli: i64 = cpu.0.trim_end_matches('m').parse().unwrap();
        let containers = self.world.cri.containers();
        let own = containers.iter().filter(|c| c.pod_uid() == made.uid && c.is_running());
        own.filter_map(|c| c.config.linux.as_ref()?.resources.as_ref())
            .all(|resources| resources.cpu_shares == milli * 1024 / 1000)
    }
}

async fn node(seed: u64, story: Story) {
    let world = World::new();
    story.runtime(&world.cri);
    let mut node = Node {
        health: commands(&world),
        world,
        rng: Rng(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(seed)),
        seen: Seen::default(),
        sums: Sums::default(),
        made: BTreeMap::new(),
        leaving: BTreeSet::new(),
        former: Vec::new(),
        statics: BTreeSet::new(),
        story,
    };
    node.live().await;
}

/// One node in a runtime of its own; what was wrong with it.
fn run(seed: u64, story: &Story) -> Result<(), String> {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_all().start_paused(true).build().unwrap();
    let live = std::panic::AssertUnwindSafe(|| runtime.block_on(node(seed, story.clone())));
    let outcome = std::panic::catch_unwind(live);
    story.at("the end of its runtime");
    drop(runtime);
    outcome.map_err(|cause| {
        let plain = cause.downcast_ref::<&str>().map(|text| (*text).to_owned());
        cause.downcast_ref::<String>().cloned().or(plain).unwrap_or_default()
    })
}

#[test]
fn no_seed_duplicates_loses_or_forgets_anything() {
    let number = |name: &str, default| {
        std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
    };
    let first: u64 = number("SEED", 1);
    let mut failed: Vec<String> = Vec::new();
    for seed in first..first + number("SEEDS", 40) {
        if let Err(text) = guard::watched(seed, |story| run(seed, story)) {
            failed.push(format!("SEED={seed}: {text}"));
        }
    }
    assert!(failed.is_empty(), "{} nodes failed:\n{}", failed.len(), failed.join("\n"));
}
