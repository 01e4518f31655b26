//! In-place resizes over random histories, one per seed: wishes that fit, that must wait and that can never be
//! granted, wishes taken back, pods that come and go, and an agent that is killed in between.
//!
//! At every moment: no more is granted than the node has, and each pod has what it wished at some time, as a whole.
//! In the end each pod has what it wishes now, or says why not, and rightly so; nothing was restarted for it.
//!
//! `SEEDS=n` sets how many histories (default 60), `SEED=n` begins with that one.

use crate::simulation::Rng;
use crate::world::{Agent, Sources, World, pod};
use ::api::core::v1::{Pod, PodStatus};
use api::pod::{PodStatusExt, is_terminal_phase};
use engine::admission::resize::ResizePolicy;
use engine::allocation::AllocationState;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Duration;
use testkit::fake_cri::Fault;

/// What the node has, in thousandths of a processor.
const NODE: i64 = 4000;

struct History {
    world: World,
    rng: Rng,
    agent: Option<Agent>,
    /// All that each pod ever wished.
    wishes: BTreeMap<String, Vec<i64>>,
    next: u64,
    /// What was done, for a failure.
    story: Vec<String>,
}

/// A wish: requests alone, or limits as high.
fn resources(milli: i64, guaranteed: bool) -> Value {
    let amount = json!({ "cpu": format!("{milli}m"), "memory": "16Mi" });
    if guaranteed {
        json!({ "requests": amount, "limits": amount })
    } else {
        json!({ "requests": amount })
    }
}

fn milli(resources: Option<&::api::core::v1::ResourceRequirements>) -> Option<i64> {
    let text = &resources?.requests.as_ref()?.get("cpu")?.0;
    text.parse::<units::Quantity>().ok().map(units::Quantity::milli_value)
}

fn wished(pod: &Pod) -> i64 {
    let spec = pod.spec.as_ref().unwrap();
    milli(spec.containers[0].resources.as_ref()).unwrap()
}

fn is_guaranteed(pod: &Pod) -> bool {
    let own = pod.spec.as_ref().unwrap().containers[0].resources.as_ref();
    own.is_some_and(|own| own.limits.is_some())
}

/// Reason and generation of a condition.
type Told = (String, Option<i64>);

fn condition(status: &PodStatus, type_: &str) -> Option<Told> {
    let found = status.conditions.iter().flatten().find(|c| c.type_ == type_)?;
    Some((found.reason.clone().unwrap_or_default(), found.observed_generation))
}

impl History {
    async fn start(&mut self) {
        self.agent = Some(self.world.start(Sources::Api).await);
    }

    async fn crash(&mut self) {
        if let Some(agent) = self.agent.take() {
            agent.crash().await;
        }
    }

    /// What is granted by what is on disk, of pods that are there and not over. Of one that is leaving only while
    /// it runs: its room is free before the API server knows.
    fn granted(&self) -> BTreeMap<String, i64> {
        let path = self.world.roots.kubelet.join("allocated_pods_state");
        let text = sys::fs::read_to_string(path).unwrap_or_default();
        if text.is_empty() {
            return BTreeMap::new();
        }
        let state = AllocationState::from_checkpoint(&text).unwrap();
        let containers = self.world.cri.containers();
        let runs = |pod: &Pod| {
            let uid = pod.metadata.uid.as_deref();
            containers.iter().any(|c| Some(c.pod_uid()) == uid && c.is_running())
        };
        let all = self.world.api.all().into_iter();
        all.filter(|(_, pod)| {
            let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
            !is_terminal_phase(phase) && (pod.metadata.deletion_timestamp.is_none() || runs(pod))
        })
        .filter_map(|(name, pod)| {
            let own = state.get(&pod.metadata.uid.as_deref()?.into())?.containers.get("main")?;
            Some((name, milli(Some(own))?))
        })
        .collect()
    }

    fn look(&self) {
        let granted = self.granted();
        let sum: i64 = granted.values().sum();
        assert!(sum <= NODE, "{granted:?} is more than there is: {:#?}", self.story);
        for (name, amount) in &granted {
            let wishes = &self.wishes[name];
            assert!(wishes.contains(amount), "{name} has {amount} of {wishes:?}");
        }
    }

    async fn pass(&mut self, limit: u64) {
        let time = self.rng.millis(limit);
        if time < Duration::from_millis(100) {
            for _ in 0..time.as_millis() {
                tokio::task::yield_now().await;
            }
            return self.look();
        }
        let end = tokio::time::Instant::now() + time;
        while tokio::time::Instant::now() < end {
            tokio::time::sleep(Duration::from_millis(100)).await;
            self.look();
        }
    }

    fn note(&mut self, what: String) {
        self.story.push(what);
    }

    fn put(&mut self) {
        let name = format!("p{}", self.next);
        self.next += 1;
        let amount = 100 + 100 * i64::try_from(self.rng.below(14)).unwrap();
        let guaranteed = self.rng.below(2) == 0;
        let main =
            json!({ "name": "main", "image": "i:1", "resources": resources(amount, guaranteed) });
        self.wishes.insert(name.clone(), vec![amount]);
        self.note(format!("{name} comes with {amount}"));
        self.world.api.put(pod(&name, json!({ "containers": [main] })));
    }

    fn one(&mut self) -> Option<(String, Pod)> {
        let all = self.world.api.all().into_iter();
        let alive: Vec<(String, Pod)> = all
            .filter(|(_, pod)| {
                let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
                pod.metadata.deletion_timestamp.is_none() && !is_terminal_phase(phase)
            })
            .collect();
        self.rng.of(&alive).cloned()
    }

    /// A pod wishes something else; sometimes what it has, or had.
    fn wish(&mut self) {
        let Some((name, pod)) = self.one() else { return };
        let known = self.wishes[&name].clone();
        let amount = match self.rng.below(6) {
            0 => *self.rng.of(&known).unwrap(),
            1 => 9000,
            2 => 3000 + 100 * i64::try_from(self.rng.below(10)).unwrap(),
            _ => 100 + 100 * i64::try_from(self.rng.below(20)).unwrap(),
        };
        if wished(&pod) == amount {
            return;
        }
        self.note(format!("{name} wishes {amount}"));
        self.wishes.get_mut(&name).unwrap().push(amount);
        let new = resources(amount, is_guaranteed(&pod));
        self.world.api.change(&name, |pod| {
            let container = &mut pod.spec.as_mut().unwrap().containers[0];
            container.resources = serde_json::from_value(new).unwrap();
            pod.metadata.generation = pod.metadata.generation.map(|g| g + 1);
        });
    }

    fn delete(&mut self) {
        let Some((name, _)) = self.one() else { return };
        self.note(format!("{name} is deleted"));
        self.world.api.delete(&name, 2, self.world.clock.now());
    }

    async fn live(&mut self) {
        self.start().await;
        for _ in 0..25 {
            match self.rng.below(10) {
                0 | 1 => self.put(),
                2 => self.delete(),
                3 => {
                    self.note("the agent is killed".to_owned());
                    self.crash().await;
                    if self.rng.below(2) == 0 {
                        self.wish();
                    }
                    self.start().await;
                }
                _ => self.wish(),
            }
            let limit = if self.rng.below(2) == 0 { 90 } else { 8000 };
            self.pass(limit).await;
        }
        for _ in 0..6000 {
            if self.unsettled().is_empty() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let left = self.unsettled();
        assert!(left.is_empty(), "{left:#?} after {:#?}", self.story);
        self.look();
        self.restart_is_no_event().await;
    }

    /// An agent that comes back grants, applies and tells nothing anew.
    async fn restart_is_no_event(&mut self) {
        let (before, shown) = (self.granted(), self.shown());
        self.crash().await;
        self.world.cri.clear_calls();
        self.start().await;
        tokio::time::sleep(Duration::from_secs(200)).await;
        assert_eq!(self.granted(), before, "{:#?}", self.story);
        assert_eq!(self.shown(), shown, "{:#?}", self.story);
        for call in [cri::Call::UpdateContainerResources, cri::Call::CreateContainer] {
            assert_eq!(self.world.cri.count(call), 0, "{call} {:#?}", self.story);
        }
        self.crash().await;
    }

    /// The resize conditions of every pod.
    fn shown(&self) -> BTreeMap<String, [Option<Told>; 2]> {
        let all = self.world.api.all().into_iter();
        all.map(|(name, pod)| {
            let status = pod.status.unwrap_or_default();
            let types = ["PodResizePending", "PodResizeInProgress"];
            (name, types.map(|type_| condition(&status, type_)))
        })
        .collect()
    }

    /// What is not as it should be in the end.
    fn unsettled(&self) -> Vec<String> {
        let granted = self.granted();
        let mut left = Vec::new();
        for (name, pod) in self.world.api.all() {
            if pod.metadata.deletion_timestamp.is_some() {
                left.push(format!("{name} is not gone"));
                continue;
            }
            let status = pod.status.clone().unwrap_or_default();
            if status.is_terminal() {
                continue;
            }
            if let Err(why) = self.is_settled(&name, &pod, &status, &granted) {
                left.push(format!("{name}: {why}"));
            }
        }
        left
    }

    fn is_settled(
        &self,
        name: &str,
        pod: &Pod,
        status: &PodStatus,
        granted: &BTreeMap<String, i64>,
    ) -> Result<(), String> {
        let has = *granted.get(name).ok_or("nothing is granted")?;
        let uid = pod.metadata.uid.as_deref().unwrap();
        let containers = self.world.cri.containers();
        let own: Vec<_> = containers.iter().filter(|c| c.pod_uid() == uid).collect();
        let [only] = own.as_slice() else { return Err(format!("{} instances", own.len())) };
        let applied = only.config.linux.as_ref().and_then(|linux| linux.resources.as_ref());
        let shares = applied.map(|resources| resources.cpu_shares);
        if shares != Some(has * 1024 / 1000) {
            return Err(format!("{has} is granted, shares are {shares:?}"));
        }
        if let Some(progress) = condition(status, "PodResizeInProgress") {
            return Err(format!("still in progress: {progress:?}"));
        }
        let entry = status.container_statuses.as_ref().and_then(|list| list.first());
        let told = entry.and_then(|entry| entry.allocated_resources.as_ref()?.get("cpu"));
        let told = told.and_then(|q| q.0.parse::<units::Quantity>().ok()).map(|q| q.milli_value());
        if told != Some(has) {
            return Err(format!("{has} is granted, {told:?} is told"));
        }
        let wish = wished(pod);
        let waits = condition(status, "PodResizePending");
        let others: i64 = granted.iter().filter(|(other, _)| *other != name).map(|(_, a)| a).sum();
        let never = self.world.resizes.lock().unwrap().exclusive_cpus && is_guaranteed(pod);
        let expected = match wish {
            wish if wish == has => None,
            _ if never => Some("Infeasible"),
            wish if others + wish > NODE => Some("Deferred"),
            _ => return Err(format!("{wish} would fit beside {others}, {waits:?}")),
        };
        let generation = pod.metadata.generation;
        let expected = expected.map(|reason| (reason.to_owned(), generation));
        if waits != expected {
            return Err(format!("{waits:?} is told, not {expected:?}"));
        }
        Ok(())
    }
}

async fn history(seed: u64) {
    let world = World::new();
    let exclusive_cpus = seed.is_multiple_of(3);
    *world.resizes.lock().unwrap() = ResizePolicy { exclusive_cpus, ..ResizePolicy::default() };
    let mut history = History {
        world,
        rng: Rng(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15)),
        agent: None,
        wishes: BTreeMap::new(),
        next: 0,
        story: Vec::new(),
    };
    history.live().await;
}

/// A container that waits for its next try has not got what was granted; that is no reason for haste.
#[tokio::test(start_paused = true)]
async fn a_pod_whose_start_failed_is_resized_without_haste() {
    let world = World::new();
    let fault = Fault::on(cri::Call::StartContainer).always();
    world.cri.inject(fault.fail(cri::Code::Unknown, "no such program"));
    let main = json!({ "name": "main", "image": "i:1", "resources": resources(500, false) });
    world.api.put(pod("p", json!({ "containers": [main] })));
    let agent = world.start(Sources::Api).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    world.api.change("p", |pod| {
        let container = &mut pod.spec.as_mut().unwrap().containers[0];
        container.resources = serde_json::from_value(resources(1500, false)).unwrap();
        pod.metadata.generation = pod.metadata.generation.map(|g| g + 1);
    });
    world.cri.clear_calls();
    for _ in 0..20_000 {
        tokio::task::yield_now().await;
    }
    let calls = world.cri.calls().len();
    assert!(calls < 30, "{calls} calls in no time");
    world.cri.clear_faults();
    tokio::time::sleep(Duration::from_secs(600)).await;
    let all = world.cri.containers();
    let running = all.iter().find(|c| c.is_running()).unwrap();
    let applied = running.config.linux.as_ref().unwrap().resources.as_ref().unwrap();
    assert_eq!(applied.cpu_shares, 1500 * 1024 / 1000);
    agent.crash().await;
}

#[test]
fn every_history_ends_with_what_is_wished_or_why_not() {
    let number = |name: &str, default| {
        std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
    };
    let first: u64 = number("SEED", 1);
    for seed in first..first + number("SEEDS", 60) {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let runtime = builder.enable_all().start_paused(true).build().unwrap();
        let live = std::panic::AssertUnwindSafe(|| runtime.block_on(history(seed)));
        if std::panic::catch_unwind(live).is_err() {
            panic!("SEED={seed} failed, see above");
        }
    }
}
