//! Chance, and what it brings upon a node: faults of the runtime, changes by users, deaths from outside.

use super::kinds::{End, LIVE, Made, POST, PRE};
use super::{Node, kinds};
use crate::world::{Agent, World};
use ports::{KillRequest, Pods as _};
use serde_json::json;
use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use testkit::fake_cri::{Behaviour, ExecReply, Fault};

/// Small numbers in an order that the seed fixes.
pub(crate) struct Rng(pub(crate) u64);

impl Rng {
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }

    pub(crate) fn millis(&mut self, limit: u64) -> Duration {
        Duration::from_millis(self.below(limit))
    }

    /// One of these.
    pub(crate) fn of<'a, T>(&mut self, list: &'a [T]) -> Option<&'a T> {
        let index = self.below(u64::try_from(list.len()).unwrap().max(1));
        list.get(usize::try_from(index).unwrap())
    }
}

/// What commands in containers answer.
#[derive(Default)]
pub(super) struct Health {
    /// Containers whose probes fail.
    pub(super) ill: BTreeSet<String>,
    /// Containers whose hook has failed once.
    failed: BTreeSet<String>,
}

/// Sets the answers up.
pub(super) fn commands(world: &World) -> Arc<Mutex<Health>> {
    let health = Arc::<Mutex<Health>>::default();
    let shared = Arc::clone(&health);
    world.cri.on_exec(move |call| {
        let mut health = shared.lock().unwrap();
        match call.command.first().map(String::as_str) {
            Some(LIVE) => ExecReply::exits(i32::from(health.ill.contains(&call.container))),
            Some(POST) => ExecReply::exits(i32::from(health.failed.insert(call.container.clone()))),
            Some(PRE) => ExecReply::exits(0).after(Duration::from_secs(2)),
            _ => ExecReply::exits(127),
        }
    });
    health
}

/// How long a command hangs.
const HANGS: Duration = Duration::from_secs(600);

/// Lets calls of the runtime go wrong.
pub(super) fn disturb(world: &World, rng: &mut Rng) {
    use cri::Call::{
        ContainerStatus, CreateContainer, ExecSync, ListContainers, ListPodSandbox,
        PodSandboxStatus, RemoveContainer, RemovePodSandbox, RunPodSandbox, StartContainer,
        StopContainer, StopPodSandbox, UpdateContainerResources,
    };
    let calls = [
        ContainerStatus,
        CreateContainer,
        ExecSync,
        ListContainers,
        ListPodSandbox,
        PodSandboxStatus,
        RemoveContainer,
        RemovePodSandbox,
        RunPodSandbox,
        StartContainer,
        StopContainer,
        StopPodSandbox,
        UpdateContainerResources,
    ];
    let call = *rng.of(&calls).unwrap();
    let fault = Fault::on(call).times(1 + u32::try_from(rng.below(3)).unwrap());
    let fault = match rng.below(6) {
        0 => fault.delay(rng.millis(3000)),
        1 => fault.fail(cri::Code::Unavailable, "connection lost"),
        2 => fault.fail_after_effect(cri::Code::Unavailable, "connection lost"),
        // A hook has no limit, as with the Go kubelet: for ever would be its pod's fault.
        3 | 4 if call == ExecSync => fault.delay(HANGS).times(1),
        3 => fault.hang().times(1),
        4 => fault.hang_after_effect().times(1),
        _ => fault.fail(cri::Code::DeadlineExceeded, "context deadline exceeded"),
    };
    world.cri.inject(fault);
}

impl Node {
    /// Something happens to one of the pods, or to all.
    pub(super) fn strike(&mut self, step: u64) {
        match self.rng.below(14) {
            13 => self.replace(),
            0 => self.delete(),
            1 => self.delete(),
            2 => self.forget(),
            3 => self.kill_container(),
            4 => self.kill_sandbox(),
            5 => self.sicken(),
            6 => self.resize(),
            7 => self.debug(step),
            8 => self.come_again(),
            9 => self.retag(step),
            _ => self.static_pods(step),
        }
    }

    /// Names of pods of the API that are there and stay.
    fn staying(&self) -> Vec<String> {
        let there =
            |name: &&String| !self.leaving.contains(*name) && self.world.api.pod(name).is_some();
        self.made.keys().filter(there).cloned().collect()
    }

    fn one(&mut self) -> Option<String> {
        let staying = self.staying();
        self.rng.of(&staying).cloned()
    }

    fn made(&mut self, name: &str) -> &mut Made {
        self.made.get_mut(name).unwrap()
    }

    fn delete(&mut self) {
        // Sometimes once more, with less time.
        let again = self.rng.below(3) == 0;
        let leaving: Vec<String> = self
            .leaving
            .iter()
            .filter(|name| self.world.api.pod(name).is_some())
            .cloned()
            .collect();
        let again = if again { self.rng.of(&leaving).cloned() } else { None };
        let grace = i64::try_from(self.rng.below(5)).unwrap() + 1;
        if let Some(name) = again.or_else(|| self.one()) {
            let before = self.world.api.pod(&name).unwrap().metadata.deletion_grace_period_seconds;
            let grace = before.map_or(grace, |before| grace.min(before));
            self.world.api.delete(&name, grace, self.world.clock.now());
            self.leaving.insert(name);
        }
    }

    /// Takes a pod out of the API at once, as a forced deletion does.
    fn forget(&mut self) {
        if let Some(name) = self.one() {
            self.world.api.remove(&name);
            self.leaving.insert(name);
        }
    }

    /// A pod is deleted and made anew under its name, and nobody sees it between.
    fn replace(&mut self) {
        if let Some(name) = self.one() {
            self.world.api.forget(&name);
            self.leaving.insert(name.clone());
            self.make_again(&name);
        }
    }

    /// A pod with the name of one that is gone.
    fn come_again(&mut self) {
        let gone: Vec<String> = self
            .leaving
            .iter()
            .filter(|name| self.world.api.pod(name).is_none())
            .cloned()
            .collect();
        let Some(name) = self.rng.of(&gone).cloned() else { return };
        self.make_again(&name);
    }

    fn make_again(&mut self, name: &str) {
        let uid = format!("{}x", self.made(name).uid);
        let made = kinds::make(&self.world, &mut self.rng, name, &uid);
        let old = self.made.insert(name.to_owned(), made);
        self.former.extend(old.map(|old| old.uid));
        self.leaving.remove(name);
        self.seen.forget(name);
    }

    fn kill_container(&mut self) {
        let Some(name) = self.one() else { return };
        let uid = self.made(&name).uid.clone();
        let running: Vec<String> = self
            .world
            .cri
            .containers()
            .iter()
            .filter(|c| c.is_running() && c.pod_uid() == uid)
            .map(|c| c.id.clone())
            .collect();
        if let Some(id) = self.rng.of(&running) {
            self.world.cri.exit(id, 137);
            self.made(&name).touched = true;
        }
    }

    fn kill_sandbox(&mut self) {
        let Some(name) = self.one() else { return };
        let uid = self.made(&name).uid.clone();
        let own = self.world.cri.sandboxes();
        let own: Vec<&str> =
            own.iter().filter(|s| s.ready && s.pod_uid() == uid).map(|s| s.id.as_str()).collect();
        for id in own {
            self.world.cri.kill_sandbox(id);
            self.made(&name).touched = true;
        }
    }

    fn sicken(&mut self) {
        let mut health = self.health.lock().unwrap();
        if !health.ill.is_empty() {
            health.ill.clear();
            return;
        }
        drop(health);
        if let Some(name) = self.one() {
            self.health.lock().unwrap().ill.insert(format!("{name}-main"));
            self.made(&name).touched = true;
        }
    }

    fn resize(&mut self) {
        let sized: Vec<String> = self
            .staying()
            .into_iter()
            .filter(|name| {
                let spec = self.world.api.pod(name).unwrap().spec.unwrap();
                spec.containers[0].resources.as_ref().is_some_and(|r| r.requests.is_some())
            })
            .collect();
        let Some(name) = self.rng.of(&sized).cloned() else { return };
        let amount = json!({ "cpu": format!("{}m", 100 + 10 * self.rng.below(20)),
            "memory": format!("{}Mi", 64 + self.rng.below(64)) });
        self.world.api.change(&name, |pod| {
            let container = &mut pod.spec.as_mut().unwrap().containers[0];
            // A pod keeps its class.
            let limited = container.resources.as_ref().is_some_and(|r| r.limits.is_some());
            let mut resources = json!({ "requests": amount });
            if limited {
                resources["limits"] = amount;
            }
            container.resources = serde_json::from_value(resources).unwrap();
            pod.metadata.generation = pod.metadata.generation.map(|g| g + 1);
        });
    }

    /// Another image for the first container of a pod, which is restarted for it.
    fn retag(&mut self, step: u64) {
        let Some(name) = self.one() else { return };
        if self.made(&name).never || self.made(&name).own_policy {
            return;
        }
        self.made(&name).touched = true;
        self.world.api.change(&name, |pod| {
            let image = &mut pod.spec.as_mut().unwrap().containers[0].image;
            *image = Some(format!("busybox:1.{step}"));
            pod.metadata.generation = pod.metadata.generation.map(|g| g + 1);
        });
    }

    /// Evicts a pod, as the node does when it runs out of something. Nobody waits long for it.
    pub(super) async fn evict(&mut self, agent: &Agent) {
        let Some(name) = self.one() else { return };
        let uid = self.made(&name).uid.clone();
        self.made(&name).evicted = true;
        self.made(&name).touched = true;
        let request = KillRequest {
            grace_seconds: Some(i64::try_from(self.rng.below(3)).unwrap()),
            evict: true,
            reason: "Evicted".into(),
            message: "The node was low on resource: memory. ".into(),
            condition: None,
        };
        let patience = self.rng.millis(3000);
        // Whether it was carried out in time is no matter.
        let _ =
            tokio::time::timeout(patience, agent.pods.kill(&uid.as_str().into(), request)).await;
    }

    /// Puts an ephemeral container into a pod.
    fn debug(&mut self, step: u64) {
        let Some(name) = self.one() else { return };
        let debugger = format!("{name}-debug{step}");
        let behaviour = Behaviour::exits_after(self.rng.millis(3000), 0);
        self.world.cri.behave(&debugger, behaviour);
        self.world.api.change(&name, |pod| {
            let entry = json!({ "name": debugger, "image": "busybox:1" });
            let list = &mut pod.spec.as_mut().unwrap().ephemeral_containers;
            list.get_or_insert_default().push(serde_json::from_value(entry).unwrap());
            pod.metadata.generation = pod.metadata.generation.map(|g| g + 1);
        });
    }

    /// A manifest comes, changes or goes.
    fn static_pods(&mut self, step: u64) {
        let name = format!("s{}", self.rng.below(3));
        if self.statics.contains(&name) && self.rng.below(3) == 0 {
            self.statics.remove(&name);
            sys::fs::remove_file(self.world.manifests().join(format!("{name}.json"))).unwrap();
        } else {
            let text = kinds::manifest(&name, step, &mut self.rng, &self.world);
            self.world.write_manifest(&format!("{name}.json"), &text);
            self.statics.insert(name);
        }
    }

    /// Everything dies, and the cgroups are gone.
    pub(super) fn reboot(&mut self) {
        for sandbox in self.world.cri.sandboxes() {
            self.world.cri.kill_sandbox(&sandbox.id);
        }
        self.world.cgroups.made.lock().unwrap().clear();
        self.made.values_mut().for_each(|made| made.touched = true);
    }

    /// Somebody sets the clock, by up to ten minutes in either direction.
    pub(super) fn set_clock(&mut self) {
        let seconds = i64::try_from(self.rng.below(1200)).unwrap() - 600;
        self.world.jumps.set(seconds);
    }

    /// Takes our own state away, which may be done at any time.
    pub(super) fn lose_state(&self) {
        let folder = self.world.roots.kubelet.join("rubelet");
        let all = sys::removal::Contents::Everything;
        let _ = sys::removal::remove_tree(std::path::Path::new("/proc"), &folder, all);
    }

    /// All is well again.
    pub(super) fn heal(&self) {
        self.world.cri.clear_faults();
        self.world.cri.lose_events(false);
        self.world.api.mute(false);
        self.world.api.unsteady(None);
        self.world.cgroups.broken.store(false, Ordering::Relaxed);
        self.world.volumes.broken.store(false, Ordering::Relaxed);
        self.world.images.broken.lock().unwrap().clear();
        self.health.lock().unwrap().ill.clear();
        self.world.set_node(|view| view.network_error = None);
        for (name, _) in self.made.iter().filter(|(_, made)| made.again) {
            self.world.cri.behave(&format!("{name}-main"), Behaviour::default());
        }
    }

    /// Whether a pod that should end well may end otherwise after what was done to it.
    pub(super) fn may_fail(made: &Made) -> bool {
        made.touched && made.never && made.end == End::Succeeds
    }
}
