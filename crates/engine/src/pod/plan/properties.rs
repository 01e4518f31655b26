//! Random histories: a small runtime executes each plan while containers crash, sandboxes die and garbage is
//! collected; what must never happen is checked after every step.

use super::*;
use crate::pod::backoff::{BackOff, later};
use crate::pod::testing::{at, pod, runtime};
use crate::pod::{Actuated, PodGates};
use crate::probe::ProbeResults;
use crate::runtime::SandboxState;
use api::core::v1::Pod;
use api::pod::ContainerExt;
use proptest::prelude::*;
use std::time::Duration;

#[derive(Debug, Clone)]
enum Event {
    Exit(usize, i32),
    SandboxDies,
    Reboot,
    Unknown(usize),
    Collect,
    ProbeFails(usize),
    Wait(u64),
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        4 => (0..6_usize, prop_oneof![Just(0), Just(1), Just(42)]).prop_map(|(i, c)| Event::Exit(i, c)),
        1 => Just(Event::SandboxDies),
        1 => Just(Event::Reboot),
        1 => (0..6_usize).prop_map(Event::Unknown),
        1 => Just(Event::Collect),
        1 => (0..6_usize).prop_map(Event::ProbeFails),
        2 => (0..700_u64).prop_map(Event::Wait),
    ];
    prop::collection::vec(event, 0..25)
}

fn specs() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![
        "Always a b",
        "OnFailure a b",
        "Never a b",
        "Never a=Always b=Never!42",
        "Always i:x i:y a",
        "Never i:x s:s a b",
        "OnFailure s:s i:x s:t a",
        "Always s:s s:t a e:d",
    ])
}

/// A runtime that does what plans say.
struct Machine {
    pod: Pod,
    runtime: RuntimePod,
    probes: ProbeResults,
    actuated: Actuated,
    gates: PodGates,
    back_off: BackOff,
    now: Timestamp,
    made: i64,
}

impl Machine {
    fn new(spec: &str) -> Self {
        Self {
            pod: pod(spec),
            runtime: runtime(""),
            probes: ProbeResults::default(),
            actuated: Actuated::default(),
            gates: PodGates::default(),
            back_off: BackOff::default(),
            now: at(10_000),
            made: 0,
        }
    }

    fn view(&self) -> PodView<'_> {
        PodView {
            pod: &self.pod,
            runtime: &self.runtime,
            probes: &self.probes,
            actuated: &self.actuated,
            back_off: &self.back_off,
            restart_all: false,
            gates: &self.gates,
        }
    }

    fn plan(&self) -> PodPlan {
        plan(&self.view(), self.now)
    }

    fn end(&mut self, pick: impl Fn(&ContainerView) -> bool, code: i32) {
        let now = self.now;
        for container in &mut self.runtime.containers {
            let alive = container.state != ContainerRunState::Exited;
            if alive && pick(container) {
                container.state = ContainerRunState::Exited;
                container.exit_code = code;
                container.finished_at = Some(now);
            }
        }
    }

    fn execute(&mut self, plan: &PodPlan) {
        if plan.kill_pod {
            self.end(|_| true, 137);
            self.stop_sandboxes();
        }
        for kill in &plan.kill {
            self.end(|c| c.id == kill.id, 137);
        }
        let gone: Vec<_> = plan.remove.iter().map(|r| r.id.clone()).collect();
        self.runtime.containers.retain(|c| !gone.contains(&c.id));
        if let Some(sandbox) = &plan.create_sandbox {
            let mut made = runtime("ready").sandboxes.remove(0);
            made.id = format!("s{}", sandbox.attempt).into();
            made.attempt = sandbox.attempt;
            made.created_at = self.now;
            self.runtime.sandboxes.push(made);
            self.runtime.normalise();
        }
        for start in &plan.start {
            match &start.gate {
                StartGate::BackOff { .. } | StartGate::Pause { .. } => match start.on_failure {
                    OnFailure::Abort => break,
                    OnFailure::Continue => continue,
                },
                StartGate::Now { previous } => {
                    if let Some((key, finished)) = previous {
                        self.back_off.advance(key, *finished, self.now);
                    }
                }
            }
            self.start(&start.name);
        }
    }

    fn start(&mut self, name: &str) {
        self.made += 1;
        let sandbox = self.runtime.active_sandbox().map(|s| s.id.clone());
        let mut made = runtime(&format!("ready {name}:running")).containers.remove(0);
        made.id = format!("{name}-{}", self.made).into();
        made.sandbox = sandbox.expect("a container starts in a ready sandbox");
        made.created_at = later(at(20_000), Duration::from_secs(self.made.unsigned_abs()));
        self.runtime.containers.push(made);
        self.runtime.normalise();
    }

    fn stop_sandboxes(&mut self) {
        for sandbox in &mut self.runtime.sandboxes {
            sandbox.state = SandboxState::NotReady;
        }
    }

    fn happen(&mut self, event: &Event) {
        let nth = |machine: &Self, i: usize| {
            let running: Vec<_> =
                machine.runtime.containers.iter().filter(|c| c.is_running()).collect();
            running.get(i).map(|c| c.id.clone())
        };
        match event {
            Event::Exit(i, code) => {
                if let Some(id) = nth(self, *i) {
                    self.end(|c| c.id == id, *code);
                }
            }
            Event::SandboxDies => self.stop_sandboxes(),
            Event::Reboot => {
                self.end(|_| true, 255);
                self.stop_sandboxes();
            }
            Event::Unknown(i) => {
                if let Some(id) = nth(self, *i) {
                    for c in self.runtime.containers.iter_mut().filter(|c| c.id == id) {
                        c.state = ContainerRunState::Unknown;
                    }
                }
            }
            Event::Collect => {
                let newest: Vec<_> = self
                    .runtime
                    .containers
                    .iter()
                    .filter_map(|c| Some(self.runtime.newest(&c.name)?.id.clone()))
                    .collect();
                self.runtime
                    .containers
                    .retain(|c| c.state != ContainerRunState::Exited || newest.contains(&c.id));
            }
            Event::ProbeFails(i) => {
                if let Some(id) = nth(self, *i) {
                    self.probes.set(&id, ProbeKind::Liveness, ProbeOutcome::Failure);
                }
            }
            Event::Wait(seconds) => self.now = later(self.now, Duration::from_secs(*seconds)),
        }
    }

    fn check(&self, plan: &PodPlan) {
        let spec = self.pod.spec.as_ref().unwrap();
        let names = spec.containers.iter().chain(spec.init_containers.iter().flatten());
        for container in names {
            let live = self
                .runtime
                .instances(&container.name)
                .filter(|c| !matches!(c.state, ContainerRunState::Exited))
                .count();
            assert!(live <= 1, "two live instances of {}: {plan:?}", container.name);
        }
        let starts_regular =
            plan.start.iter().any(|s| s.kind == ContainerKind::Regular && !plan.kill_pod);
        let none_ran = !spec.containers.iter().any(|c| self.runtime.instances(&c.name).count() > 1);
        if starts_regular && none_ran {
            for init in spec.init_containers.iter().flatten().filter(|c| !c.is_sidecar()) {
                let done = self
                    .runtime
                    .newest(&init.name)
                    .is_none_or(|c| c.state == ContainerRunState::Exited && c.exit_code == 0);
                assert!(done, "regular container started before init {}", init.name);
            }
        }
    }
}

fn any_world() -> impl Strategy<Value = String> {
    let words = prop::sample::select(vec![
        "ready",
        "notready",
        "host",
        "noip",
        "a:running",
        "a:exited0",
        "a:exited42",
        "a:created",
        "a:unknown",
        "a:other",
        "b:running",
        "b:exited1",
        "b:unknown",
        "x:running",
        "x:exited0",
        "x:exited1",
        "x:oom",
        "x:unknown",
        "y:exited0",
        "s:running",
        "s:exited1",
        "s:other",
        "t:unknown",
        "d:exited1",
    ]);
    prop::collection::vec(words, 0..10).prop_map(|words| words.join(" "))
}

proptest! {
    #[test]
    fn any_world_at_all_gets_a_plan_that_makes_sense(
        spec in specs(), world in any_world(), restart_all in any::<bool>()
    ) {
        let mut machine = Machine::new(spec);
        machine.runtime = runtime(&world);
        let view = PodView { restart_all, ..machine.view() };
        let plan = plan(&view, machine.now);
        let stays = plan.sandbox.is_some() != plan.create_sandbox.is_some();
        prop_assert!(plan.start.is_empty() || stays, "nowhere to start: {plan:?}");
        for start in &plan.start {
            let newest = machine.runtime.newest(&start.name);
            let gone = plan.kill_pod || plan.kill.iter().any(|k| Some(&k.id) == newest.map(|c| &c.id));
            let alive = newest.is_some_and(ContainerView::is_running);
            prop_assert!(!alive || gone, "{} starts beside itself", start.name);
        }
        prop_assert!(!plan.kill_pod || (plan.kill.is_empty() && plan.reset.is_empty()));
    }

    #[test]
    fn no_history_makes_two_live_instances_or_skips_init(spec in specs(), history in events()) {
        let mut machine = Machine::new(spec);
        for event in &history {
            machine.happen(event);
            let plan = machine.plan();
            prop_assert_eq!(&plan, &machine.plan(), "the plan depends only on its view");
            machine.execute(&plan);
            machine.check(&plan);
        }
    }

    #[test]
    fn a_plan_carried_out_asks_for_no_kill_of_what_it_started(spec in specs(), history in events()) {
        let mut machine = Machine::new(spec);
        for event in &history {
            machine.happen(event);
            let before = machine.plan();
            machine.execute(&before);
            let after = machine.plan();
            for start in &before.start {
                let again = after.start.iter().any(|s| s.name == start.name);
                let ran = matches!(start.gate, StartGate::Now { .. });
                let alive = machine.runtime.newest(&start.name).is_some_and(ContainerView::is_running);
                prop_assert!(!(ran && alive && again), "{} is started twice", start.name);
            }
            for kill in &after.kill {
                prop_assert!(
                    !before.start.iter().any(|s| machine.runtime.newest(&s.name).map(|c| &c.id) == Some(&kill.id)),
                    "{} is killed right after its start", kill.name
                );
            }
        }
    }

    #[test]
    fn without_events_a_pod_settles(spec in specs(), history in events()) {
        let mut machine = Machine::new(spec);
        for event in &history {
            machine.happen(event);
            let plan = machine.plan();
            machine.execute(&plan);
        }
        let spec = machine.pod.spec.clone().unwrap();
        for _ in 0..12 {
            machine.now = later(machine.now, Duration::from_secs(301));
            for init in spec.init_containers.iter().flatten().filter(|c| !c.is_sidecar()) {
                machine.end(|c| c.name == init.name, 0);
            }
            let plan = machine.plan();
            machine.execute(&plan);
        }
        let last = machine.plan();
        let over = last.kill_pod && machine.runtime.is_dead() && last.create_sandbox.is_none();
        prop_assert!(over || last.is_settled(), "not settled: {last:?}");
    }
}
