//! Random histories of requests, outcomes and housekeeping: what no order of them may break.

use super::*;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

#[derive(Debug, Clone)]
enum Event {
    Update { pod: usize, kind: UpdateKind, deleted: bool, grace: i64, kill: bool },
    Runtime(usize),
    Step(usize),
    End { pod: usize, outcome: Outcome },
    Housekeeping(Vec<bool>),
}

fn kinds() -> impl Strategy<Value = UpdateKind> {
    prop::sample::select(vec![
        UpdateKind::Create,
        UpdateKind::Update,
        UpdateKind::Sync,
        UpdateKind::Kill,
    ])
}

fn outcomes() -> impl Strategy<Value = Outcome> {
    prop_oneof![
        4 => Just(Outcome::Done { terminal: false }),
        1 => Just(Outcome::Done { terminal: true }),
        1 => Just(Outcome::Interrupted),
        2 => Just(Outcome::Failed { network_not_ready: false, back_off_until: None }),
    ]
}

fn history() -> impl Strategy<Value = Vec<Event>> {
    let update = (0..3_usize, kinds(), any::<bool>(), 0..40_i64, any::<bool>()).prop_map(
        |(pod, kind, deleted, grace, kill)| Event::Update { pod, kind, deleted, grace, kill },
    );
    let event = prop_oneof![
        4 => update,
        1 => (0..3_usize).prop_map(Event::Runtime),
        5 => (0..3_usize).prop_map(Event::Step),
        5 => (0..3_usize, outcomes()).prop_map(|(pod, outcome)| Event::End { pod, outcome }),
        1 => prop::collection::vec(any::<bool>(), 3).prop_map(Event::Housekeeping),
    ];
    prop::collection::vec(event, 0..60)
}

/// Pods 1 and 2 are static and share a name; pod 0 is of the API.
fn pod(index: usize, deleted: bool, grace: i64) -> Arc<Pod> {
    let mut pod = Pod::default();
    pod.metadata.uid = Some(index.to_string());
    pod.metadata.name = Some(if index == 0 { "api" } else { "static" }.to_owned());
    pod.metadata.namespace = Some("ns".to_owned());
    if index > 0 {
        let source = (api::pod::SOURCE_ANNOTATION.to_owned(), "file".to_owned());
        pod.metadata.annotations = Some([source].into());
    }
    if deleted {
        pod.metadata.deletion_timestamp =
            Some(api::machinery::apis::meta::v1::Time(Timestamp::UNIX_EPOCH));
        pod.metadata.deletion_grace_period_seconds = Some(grace);
    }
    Arc::new(pod)
}

/// What is remembered about the one owner that obeys.
#[derive(Default)]
struct Owner {
    workers: Workers,
    calls: BTreeMap<usize, Call>,
    given: BTreeSet<Completion>,
    returned: BTreeSet<Completion>,
    furthest: BTreeMap<usize, (LifeState, i64)>,
}

impl Owner {
    fn give_back(&mut self, tokens: &[Completion]) {
        for token in tokens {
            assert!(self.given.contains(token), "{token:?} was never given");
            assert!(self.returned.insert(*token), "{token:?} came back twice");
        }
    }

    fn forget(&mut self, index: usize) {
        self.calls.remove(&index);
        self.furthest.remove(&index);
    }

    fn check(&mut self) {
        for index in 0..3 {
            let Some(record) = self.workers.record(&PodUid::from(index.to_string())) else {
                self.furthest.remove(&index);
                continue;
            };
            let now = (record.state(), record.grace_seconds());
            if let Some((state, grace)) = self.furthest.insert(index, now) {
                assert!(now.0 >= state, "life went back: {state:?} -> {:?}", now.0);
                assert!(grace == 0 || now.1 <= grace, "grace grew: {grace} -> {}", now.1);
            }
        }
        let started = |i: usize| {
            let uid = PodUid::from(i.to_string());
            self.workers.record(&uid).is_some_and(|r| {
                r.has_started() && !r.is_finished() && r.state() == LifeState::Syncing
            })
        };
        assert!(!(started(1) && started(2)), "two versions of a static pod run");
    }

    fn happen(&mut self, event: &Event, time: i64) {
        let now = Timestamp::from_second(time).unwrap();
        match event {
            Event::Update { pod: index, kind, deleted, grace, kill } => {
                let token = Completion(u64::try_from(time).unwrap());
                let kill = kill.then(|| KillOptions {
                    completion: Some(token),
                    grace_seconds: Some(*grace),
                    ..KillOptions::default()
                });
                if kill.is_some() {
                    self.given.insert(token);
                }
                let update =
                    PodUpdate { kill, ..PodUpdate::of(*kind, pod(*index, *deleted, *grace)) };
                let answer = self.workers.update(update, true, now);
                self.give_back(&answer.completed);
            }
            Event::Runtime(index) => {
                let running = RunningPod {
                    uid: index.to_string().into(),
                    name: "static".to_owned(),
                    namespace: "ns".to_owned(),
                };
                let answer = self.workers.update(PodUpdate::kill_runtime(running), true, now);
                self.give_back(&answer.completed);
            }
            Event::Step(index) => {
                if self.calls.contains_key(index) {
                    return;
                }
                match self.workers.next(&index.to_string().into(), 0.0, now) {
                    Step::Run(work) => {
                        self.calls.insert(*index, work.call);
                    }
                    Step::Never(tokens) => self.give_back(&tokens),
                    Step::Idle | Step::NotYet(_) => {}
                }
            }
            Event::End { pod: index, outcome } => {
                let Some(call) = self.calls.remove(index) else { return };
                let uid = index.to_string().into();
                let answer = self.workers.complete(&uid, call, outcome, 0.0, now);
                self.give_back(&answer.completed);
            }
            Event::Housekeeping(wanted) => {
                let desired = wanted.iter().enumerate().filter(|(_, w)| **w);
                let desired = desired.map(|(i, _)| i.to_string().into()).collect();
                let found = self.workers.sync_known(&desired, now);
                self.give_back(&found.completed);
                for uid in &found.removed {
                    self.forget(uid.as_str().parse().unwrap());
                }
            }
        }
    }
}

proptest! {
    #[test]
    fn no_history_breaks_the_life_of_a_pod(history in history()) {
        let mut owner = Owner::default();
        for (time, event) in history.iter().enumerate() {
            owner.happen(event, i64::try_from(time).unwrap());
            owner.check();
        }
        // In the end everything is unwanted and every call succeeds: nothing stays, no token is lost.
        for time in 1_000..1_012 {
            owner.happen(&Event::Housekeeping(vec![false; 3]), time);
            for index in 0..3 {
                owner.happen(&Event::Step(index), time);
                let outcome = Outcome::Done { terminal: false };
                owner.happen(&Event::End { pod: index, outcome }, time);
                owner.check();
            }
        }
        prop_assert_eq!(owner.workers.records().count(), 0);
        prop_assert_eq!(owner.given, owner.returned);
    }
}
