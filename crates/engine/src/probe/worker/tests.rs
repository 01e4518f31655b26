//! Probe workers: thresholds, delays, what survives a restart.

use super::*;
use crate::pod::testing::{at, pod};
use crate::probe::saved::SavedProbes;
use api::core::v1::{ContainerState, ContainerStateRunning, ContainerStateTerminated};
use api::machinery::apis::meta::v1::Time;

fn numbers(failures: u32, successes: u32) -> ProbeNumbers {
    ProbeNumbers {
        failure_threshold: failures,
        success_threshold: successes,
        ..ProbeNumbers::of(&Probe::default())
    }
}

fn running(id: &str, started: bool, since: i64) -> ContainerStatus {
    ContainerStatus {
        name: "a".to_owned(),
        container_id: Some(format!("containerd://{id}")),
        started: Some(started),
        state: Some(ContainerState {
            running: Some(ContainerStateRunning { started_at: Some(Time(at(since))) }),
            ..ContainerState::default()
        }),
        ..ContainerStatus::default()
    }
}

fn ended(id: &str, code: i32) -> ContainerStatus {
    ContainerStatus {
        state: Some(ContainerState {
            terminated: Some(ContainerStateTerminated {
                exit_code: code,
                ..ContainerStateTerminated::default()
            }),
            ..ContainerState::default()
        }),
        ..running(id, false, 0)
    }
}

struct Bench {
    pod: Pod,
    status: Option<PodStatus>,
    results: ProbeResults,
    worker: ProbeWorker,
    agent_started: Timestamp,
}

impl Bench {
    fn new(kind: ProbeKind, spec: &str, entry: ContainerStatus) -> Self {
        Self {
            pod: pod(spec),
            status: Some(PodStatus {
                phase: Some("Running".to_owned()),
                container_statuses: Some(vec![entry]),
                ..PodStatus::default()
            }),
            results: ProbeResults::default(),
            worker: ProbeWorker::new("a", kind, numbers(3, 1)),
            agent_started: at(0),
        }
    }

    fn show(&mut self, entry: ContainerStatus) {
        self.status.as_mut().unwrap().container_statuses = Some(vec![entry]);
    }

    fn apply(&mut self, change: ResultChange) {
        let kind = self.worker.kind;
        match change {
            ResultChange::Remove(id) => {
                self.results.remove(&id, kind);
            }
            ResultChange::Set(id, outcome) => {
                self.results.set(&id, kind, outcome);
            }
        }
    }

    fn step(&mut self, now: i64) -> Move {
        let view = WorkerView {
            pod: &self.pod,
            status: self.status.as_ref(),
            results: &self.results,
            agent_started: self.agent_started,
            gates: &PodGates::default(),
            change_on_restart: false,
        };
        let step = self.worker.step(&view, at(now));
        step.changes.into_iter().for_each(|c| self.apply(c));
        step.next
    }

    /// One step with this probe result; returns the settled result afterwards.
    fn run(&mut self, run: Run, now: i64) -> Option<ProbeOutcome> {
        if let Move::Probe(_) = self.step(now)
            && let Some(change) = self.worker.judge(run)
        {
            self.apply(change);
        }
        let id = self.worker.watching()?.clone();
        self.results.get(&id, self.worker.kind)
    }
}

#[test]
fn only_failures_in_a_row_count() {
    let mut bench = Bench::new(ProbeKind::Liveness, "a", running("x", true, 10));
    use Run::{Error, Failure, Success};
    for run in [Failure, Failure, Success, Failure, Failure, Error] {
        assert_eq!(bench.run(run, 20), Some(ProbeOutcome::Success), "{run:?}");
    }
    assert_eq!(
        bench.run(Failure, 20),
        Some(ProbeOutcome::Failure),
        "an error does not reset the count"
    );
}

#[test]
fn a_failed_liveness_probe_rests_until_the_container_is_new() {
    let mut bench = Bench::new(ProbeKind::Liveness, "a", running("x", true, 10));
    for _ in 0..3 {
        bench.run(Run::Failure, 20);
    }
    assert_eq!(bench.step(30), Move::Wait);
    bench.show(running("y", true, 40));
    assert_eq!(bench.step(50), Move::Probe("y".into()));
    assert_eq!(bench.results.get(&"x".into(), ProbeKind::Liveness), None);
    assert_eq!(bench.results.get(&"y".into(), ProbeKind::Liveness), Some(ProbeOutcome::Success));
    bench.run(Run::Failure, 51);
    assert_eq!(bench.run(Run::Failure, 52), Some(ProbeOutcome::Success), "the count began anew");
}

#[test]
fn the_startup_probe_comes_first_and_then_rests() {
    let mut liveness = Bench::new(ProbeKind::Liveness, "a", running("x", false, 10));
    assert_eq!(liveness.step(20), Move::Wait);
    let mut startup = Bench::new(ProbeKind::Startup, "a", running("x", false, 10));
    assert_eq!(startup.run(Run::Failure, 20), Some(ProbeOutcome::Unknown));
    assert_eq!(startup.run(Run::Success, 20), Some(ProbeOutcome::Success));
    assert_eq!(startup.step(30), Move::Wait);
    liveness.show(running("x", true, 10));
    assert_eq!(liveness.step(20), Move::Probe("x".into()));
}

#[test]
fn a_container_that_does_not_run_is_unready_at_once() {
    let mut bench = Bench::new(ProbeKind::Readiness, "Never a", running("x", true, 10));
    assert_eq!(bench.run(Run::Success, 20), Some(ProbeOutcome::Success));
    bench.show(ended("x", 1));
    assert_eq!(bench.step(30), Move::Stop, "it never comes back");
    assert_eq!(bench.results.get(&"x".into(), ProbeKind::Readiness), Some(ProbeOutcome::Failure));
    let mut bench = Bench::new(ProbeKind::Readiness, "a", ended("x", 1));
    assert_eq!(bench.step(30), Move::Wait);
}

#[test]
fn workers_wait_stop_or_rest_as_the_pod_says() {
    let mut bench = Bench::new(ProbeKind::Liveness, "a", running("x", true, 10));
    bench.status = None;
    assert_eq!(bench.step(20), Move::Wait, "no status yet");
    let mut bench = Bench::new(ProbeKind::Liveness, "a", running("x", true, 10));
    bench.status.as_mut().unwrap().phase = Some("Failed".to_owned());
    assert_eq!(bench.step(20), Move::Stop, "the pod is over");
    let mut bench = Bench::new(ProbeKind::Liveness, "deleted a", running("x", true, 10));
    assert_eq!(bench.step(20), Move::Stop, "a pod being deleted is not restarted");
    let mut bench = Bench::new(ProbeKind::Readiness, "deleted a", running("x", true, 10));
    assert_eq!(bench.step(20), Move::Probe("x".into()), "but its readiness is still shown");
}

#[test]
fn the_initial_delay_counts_whole_seconds_from_the_start() {
    let mut bench = Bench::new(ProbeKind::Liveness, "a", running("x", true, 10));
    bench.worker.numbers.initial_delay = Duration::from_secs(5);
    assert_eq!(bench.step(14), Move::Wait);
    assert_eq!(bench.step(15), Move::Probe("x".into()));
}

#[test]
fn a_container_older_than_the_agent_keeps_its_result() {
    let mut bench = Bench::new(ProbeKind::Readiness, "a", running("x", true, 10));
    bench.agent_started = at(100);
    assert_eq!(bench.step(101), Move::Probe("x".into()));
    assert_eq!(bench.results.get(&"x".into(), ProbeKind::Readiness), None, "nothing is assumed");
    let mut bench = Bench::new(ProbeKind::Readiness, "a", running("x", true, 95));
    bench.agent_started = at(100);
    bench.step(101);
    assert_eq!(bench.results.get(&"x".into(), ProbeKind::Readiness), Some(ProbeOutcome::Failure));
}

#[test]
fn a_young_container_that_another_agent_found_ready_stays_so() {
    let ready = ContainerStatus { ready: true, ..running("x", true, 95) };
    for kind in [ProbeKind::Readiness, ProbeKind::Startup] {
        let mut bench = Bench::new(kind, "a", ready.clone());
        bench.agent_started = at(100);
        bench.step(101);
        assert_eq!(bench.results.get(&"x".into(), kind), None, "{kind:?}");
    }
}

#[test]
fn results_and_counters_survive_a_restart_of_the_agent() {
    let mut before = Bench::new(ProbeKind::Liveness, "a", running("x", true, 10));
    before.run(Run::Failure, 20);
    before.run(Run::Failure, 21);
    let saved = SavedProbes::of(&before.results, std::iter::once(&before.worker));
    let text = serde_json::to_string(&saved).unwrap();
    let saved: SavedProbes = serde_json::from_str(&text).unwrap();

    let mut after = Bench::new(ProbeKind::Liveness, "a", running("x", true, 10));
    after.agent_started = at(30);
    after.results = saved.results(|_| true);
    saved.resume(&mut after.worker, &"x".into());
    assert_eq!(after.run(Run::Failure, 31), Some(ProbeOutcome::Failure), "the third in a row");

    let gone = saved.results(|_| false);
    assert_eq!(gone.iter().count(), 0, "results of containers that are gone are dropped");
}

#[test]
fn first_probes_are_prompt_even_after_a_restart() {
    let minutes = Duration::from_secs(300);
    assert_eq!(first_delay(minutes, minutes, 0.9), Duration::ZERO);
    assert!(first_delay(minutes, Duration::ZERO, 0.99) < Duration::from_secs(5));
    assert!(first_delay(Duration::from_secs(1), Duration::ZERO, 0.99) < Duration::from_secs(1));
}

#[test]
fn a_slow_probe_is_followed_at_once_and_missed_turns_are_dropped() {
    let period = Duration::from_secs(10);
    assert_eq!(next_due(at(0), period, at(2)), at(10));
    assert_eq!(next_due(at(0), period, at(35)), at(35));
}

#[test]
fn every_probe_of_regular_containers_and_sidecars_gets_a_worker() {
    let found = pod("s:s+S i:x+L a+L+S b");
    let names: Vec<_> = wanted(found.spec.as_ref().unwrap())
        .into_iter()
        .map(|(c, kind)| format!("{}-{}", c.name, kind.as_str()))
        .collect();
    assert_eq!(names, ["a-Startup", "a-Liveness", "s-Startup"]);
}
