//! The life of a worker: updates, grace, static pods that wait, random histories.

use super::*;
use std::collections::BTreeSet;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(seconds).unwrap()
}

fn pod(uid: &str) -> Pod {
    let mut pod = Pod::default();
    pod.metadata.name = Some("p".to_owned());
    pod.metadata.namespace = Some("ns".to_owned());
    pod.metadata.uid = Some(uid.to_owned());
    pod.spec = Some(api::core::v1::PodSpec {
        termination_grace_period_seconds: Some(30),
        ..Default::default()
    });
    pod
}

fn static_pod(uid: &str) -> Arc<Pod> {
    let mut pod = pod(uid);
    pod.metadata.annotations =
        Some([(api::pod::SOURCE_ANNOTATION.to_owned(), "file".to_owned())].into());
    Arc::new(pod)
}

fn with_phase(uid: &str, phase: &str) -> Arc<Pod> {
    let mut pod = pod(uid);
    pod.status =
        Some(api::core::v1::PodStatus { phase: Some(phase.to_owned()), ..Default::default() });
    Arc::new(pod)
}

fn deleted(uid: &str, grace: i64) -> Arc<Pod> {
    let mut pod = pod(uid);
    pod.metadata.deletion_timestamp = Some(api::machinery::apis::meta::v1::Time(at(1)));
    pod.metadata.deletion_grace_period_seconds = Some(grace);
    Arc::new(pod)
}

fn run(step: Step) -> Work {
    match step {
        Step::Run(work) => *work,
        other => panic!("expected work, got {other:?}"),
    }
}

const DONE: Outcome = Outcome::Done { terminal: false };

fn failed() -> Outcome {
    Outcome::Failed { network_not_ready: false, back_off_until: None }
}

/// Runs one step and reports it as done; the call that was made.
fn pass(workers: &mut Workers, uid: &PodUid, now: i64) -> Call {
    let work = run(workers.next(uid, 0.0, at(now)));
    workers.complete(uid, work.call, &DONE, 0.0, at(now));
    work.call
}

#[test]
fn a_pod_goes_through_its_life_once() {
    let mut workers = Workers::default();
    let uid = PodUid::from("u");
    let first = workers.update(PodUpdate::of(UpdateKind::Create, Arc::new(pod("u"))), false, at(0));
    assert!(first.spawn && first.wake && !first.interrupt);
    assert_eq!(pass(&mut workers, &uid, 1), Call::Sync);
    assert!(matches!(workers.next(&uid, 0.0, at(2)), Step::Idle));

    let kill = workers.update(PodUpdate::of(UpdateKind::Update, deleted("u", 5)), true, at(3));
    assert!(!kill.spawn && kill.wake && kill.interrupt);
    assert!(!workers.containers_should_be_terminating(&uid));
    let work = run(workers.next(&uid, 0.0, at(4)));
    assert_eq!((work.call, work.grace_seconds), (Call::Terminating, Some(5)));
    assert!(workers.containers_should_be_terminating(&uid));
    let done = workers.complete(&uid, Call::Terminating, &DONE, 0.0, at(5));
    assert_eq!((done.again_in, done.wake), (Some(Duration::ZERO), true));
    assert!(workers.known_terminated(&uid) && workers.content_should_be_removed(&uid));
    assert_eq!(pass(&mut workers, &uid, 6), Call::Terminated);
    assert!(workers.should_be_finished(&uid));
    assert!(
        !workers.update(PodUpdate::of(UpdateKind::Sync, Arc::new(pod("u"))), false, at(7)).wake
    );
    assert!(matches!(workers.next(&uid, 0.0, at(8)), Step::Never(_)));
}

#[test]
fn grace_only_shrinks_and_is_at_least_one_second() {
    let mut workers = Workers::default();
    let uid = PodUid::from("u");
    workers.update(PodUpdate::of(UpdateKind::Create, Arc::new(pod("u"))), false, at(0));
    for (grace, expected) in [(30, 30), (5, 5), (60, 5), (0, 1)] {
        workers.update(PodUpdate::of(UpdateKind::Update, deleted("u", grace)), false, at(1));
        assert_eq!(workers.record(&uid).unwrap().grace_seconds(), expected, "after {grace}");
    }
    assert_eq!(run(workers.next(&uid, 0.0, at(2))).grace_seconds, Some(1));
}

#[test]
fn a_mirror_that_is_gone_is_not_remembered() {
    let mut workers = Workers::default();
    let uid = PodUid::from("u");
    let with = |kind, mirror: Option<&str>| PodUpdate {
        mirror: mirror.map(|name| Arc::new(pod(name))),
        ..PodUpdate::of(kind, Arc::new(pod("u")))
    };
    let mut seen = |update: Option<PodUpdate>, second| {
        match update {
            Some(update) => drop(workers.update(update, false, at(second))),
            None => assert!(workers.look_again(&uid, at(second))),
        }
        let work = run(workers.next(&uid, 0.0, at(second)));
        workers.complete(&uid, work.call, &DONE, 0.0, at(second));
        work.mirror.is_some()
    };
    assert!(seen(Some(with(UpdateKind::Create, Some("m"))), 1));
    assert!(seen(None, 2));
    assert!(!seen(Some(with(UpdateKind::Update, None)), 3));
    assert!(!seen(None, 4), "the write of a new one may have failed");
    assert!(seen(Some(with(UpdateKind::Update, Some("n"))), 5));
    assert!(!seen(Some(with(UpdateKind::Kill, None)), 6));
    assert!(seen(None, 7), "who ends a pod does not look for its mirror");
}

#[test]
fn only_a_shorter_grace_interrupts() {
    let mut workers = Workers::default();
    workers.update(PodUpdate::of(UpdateKind::Create, Arc::new(pod("u"))), false, at(0));
    let mut interrupt = |grace| {
        workers
            .update(PodUpdate::of(UpdateKind::Update, deleted("u", grace)), true, at(1))
            .interrupt
    };
    assert!(interrupt(30), "becoming terminating");
    assert!(!interrupt(30), "the same again");
    assert!(!interrupt(40), "longer");
    assert!(interrupt(3), "shorter");
}

#[test]
fn an_eviction_never_lengthens_a_shorter_deletion() {
    let mut workers = Workers::default();
    let uid = PodUid::from("u");
    workers.update(PodUpdate::of(UpdateKind::Update, deleted("u", 5)), true, at(0));
    let evict = KillOptions { evict: true, grace_seconds: Some(20), ..KillOptions::default() };
    let update =
        PodUpdate { kill: Some(evict), ..PodUpdate::of(UpdateKind::Kill, deleted("u", 5)) };
    workers.update(update, true, at(1));
    let record = workers.record(&uid).unwrap();
    assert_eq!(record.grace_seconds(), 5);
    assert!(!record.is_evicted(), "it was terminating already");
}

#[test]
fn a_kill_without_a_deletion_uses_the_grace_of_the_spec() {
    let mut workers = Workers::default();
    let uid = PodUid::from("u");
    workers.update(PodUpdate::of(UpdateKind::Kill, Arc::new(pod("u"))), true, at(0));
    assert_eq!(workers.record(&uid).unwrap().grace_seconds(), 30);
}

#[test]
fn a_pod_that_ends_by_itself_is_torn_down_without_override() {
    let mut workers = Workers::default();
    let uid = PodUid::from("u");
    workers.update(PodUpdate::of(UpdateKind::Create, Arc::new(pod("u"))), false, at(0));
    let work = run(workers.next(&uid, 0.0, at(1)));
    let done = workers.complete(&uid, work.call, &Outcome::Done { terminal: true }, 0.0, at(2));
    assert!(done.wake);
    let work = run(workers.next(&uid, 0.0, at(3)));
    assert_eq!((work.call, work.grace_seconds), (Call::Terminating, None));
}

#[test]
fn a_finished_pod_found_at_start_is_only_cleaned_up() {
    let mut workers = Workers::default();
    let uid = PodUid::from("u");
    workers.update(PodUpdate::of(UpdateKind::Create, with_phase("u", "Failed")), false, at(0));
    assert_eq!(pass(&mut workers, &uid, 1), Call::Terminated);

    let uid = PodUid::from("v");
    workers.update(PodUpdate::of(UpdateKind::Create, with_phase("v", "Failed")), true, at(0));
    assert_eq!(pass(&mut workers, &uid, 1), Call::Terminating);
}

#[test]
fn static_pods_of_one_name_start_one_after_another() {
    let mut workers = Workers::default();
    let [v1, v2, v3] = ["1", "2", "3"].map(PodUid::from);
    workers.update(PodUpdate::of(UpdateKind::Create, static_pod("1")), false, at(0));
    assert_eq!(pass(&mut workers, &v1, 1), Call::Sync);
    workers.update(PodUpdate::of(UpdateKind::Create, static_pod("2")), false, at(2));
    workers.update(PodUpdate::of(UpdateKind::Create, static_pod("3")), false, at(3));
    assert!(
        matches!(workers.next(&v2, 0.5, at(4)), Step::NotYet(d) if d == Duration::from_millis(12_500))
    );

    workers.update(PodUpdate::of(UpdateKind::Kill, static_pod("2")), false, at(5));
    assert!(matches!(workers.next(&v2, 0.0, at(6)), Step::Never(_)), "replaced while waiting");
    assert!(matches!(workers.next(&v3, 0.0, at(6)), Step::NotYet(_)), "the first still runs");

    workers.update(PodUpdate::of(UpdateKind::Kill, static_pod("1")), true, at(7));
    assert!(workers.static_is_terminating("p_ns"));
    assert_eq!(pass(&mut workers, &v1, 8), Call::Terminating);
    assert!(matches!(workers.next(&v3, 0.0, at(9)), Step::NotYet(_)), "volumes are still released");
    assert_eq!(pass(&mut workers, &v1, 10), Call::Terminated);
    assert_eq!(pass(&mut workers, &v3, 11), Call::Sync);
}

#[test]
fn a_static_pod_waits_for_a_version_that_ran_before_our_start() {
    let mut workers = Workers::default();
    let [old, new] = ["1", "2"].map(PodUid::from);
    let running = RunningPod { uid: old.clone(), name: "p".into(), namespace: "ns".into() };
    workers.update(PodUpdate::kill_runtime(running), true, at(0));
    workers.update(PodUpdate::of(UpdateKind::Create, static_pod("2")), false, at(1));
    assert!(matches!(workers.next(&new, 0.0, at(2)), Step::NotYet(_)));
    assert_eq!(pass(&mut workers, &old, 3), Call::TerminatingRuntime);
    assert_eq!(pass(&mut workers, &new, 4), Call::Sync);
}

#[test]
fn creating_a_terminating_pod_again_waits_for_its_end() {
    let mut workers = Workers::default();
    let uid = PodUid::from("u");
    workers.update(PodUpdate::of(UpdateKind::Create, static_pod("u")), false, at(0));
    pass(&mut workers, &uid, 1);
    workers.update(PodUpdate::of(UpdateKind::Kill, static_pod("u")), true, at(2));
    let again = workers.update(PodUpdate::of(UpdateKind::Create, static_pod("u")), true, at(3));
    assert_eq!(again, Accepted::default());
    pass(&mut workers, &uid, 4);
    pass(&mut workers, &uid, 5);
    let desired = BTreeSet::from([uid.clone()]);
    let found = workers.sync_known(&desired, at(6));
    assert_eq!(found.removed, std::slice::from_ref(&uid));
    let created = workers.update(PodUpdate::of(UpdateKind::Create, static_pod("u")), false, at(7));
    assert!(created.spawn);
    assert_eq!(pass(&mut workers, &uid, 8), Call::Sync);
}

#[test]
fn a_runtime_only_pod_is_killed_once_and_forgotten() {
    let mut workers = Workers::default();
    let uid = PodUid::from("r");
    let running = RunningPod { uid: uid.clone(), name: "p".to_owned(), namespace: "ns".to_owned() };
    workers.update(PodUpdate::kill_runtime(running), true, at(0));
    let work = run(workers.next(&uid, 0.0, at(1)));
    assert_eq!((work.call, work.grace_seconds), (Call::TerminatingRuntime, Some(1)));
    let done = workers.complete(&uid, work.call, &DONE, 0.0, at(2));
    assert!(done.done);
    assert!(workers.record(&uid).is_none());
}

#[test]
fn appointments_depend_on_how_a_call_ended() {
    let cases = [
        ("success", DONE, 60.0, 90.0),
        ("error", failed(), 10.0, 15.0),
        ("network", Outcome::Failed { network_not_ready: true, back_off_until: None }, 1.0, 1.5),
        (
            "crash loop ends in 3 s",
            Outcome::Failed { network_not_ready: false, back_off_until: Some(at(4)) },
            3.0,
            4.5,
        ),
        (
            "crash loop ends far away",
            Outcome::Failed { network_not_ready: false, back_off_until: Some(at(400)) },
            60.0,
            90.0,
        ),
    ];
    for (name, outcome, low, high) in cases {
        for (chance, expected) in [(0.0, low), (1.0, high)] {
            let mut workers = Workers::default();
            let uid = PodUid::from("u");
            workers.update(PodUpdate::of(UpdateKind::Create, Arc::new(pod("u"))), false, at(0));
            let work = run(workers.next(&uid, 0.0, at(0)));
            let done = workers.complete(&uid, work.call, &outcome, chance, at(1));
            assert_eq!(done.again_in, Some(Duration::from_secs_f64(expected)), "{name}");
        }
    }
}

#[test]
fn tokens_come_back_exactly_once_and_the_last_status_wins() {
    let mut workers = Workers::default();
    let uid = PodUid::from("u");
    workers.update(PodUpdate::of(UpdateKind::Create, Arc::new(pod("u"))), false, at(0));
    pass(&mut workers, &uid, 1);
    for (token, reason) in [(1, "Preempting"), (2, "Evicted")] {
        let kill = KillOptions {
            completion: Some(Completion(token)),
            status: Some(StatusOverride {
                reason: reason.to_owned(),
                message: String::new(),
                condition: None,
                keep_succeeded: false,
            }),
            ..KillOptions::default()
        };
        let update =
            PodUpdate { kill: Some(kill), ..PodUpdate::of(UpdateKind::Kill, Arc::new(pod("u"))) };
        assert!(workers.update(update, true, at(2)).completed.is_empty());
    }
    let work = run(workers.next(&uid, 0.0, at(3)));
    assert_eq!(work.status.map(|s| s.reason), Some("Evicted".to_owned()));
    let retry = workers.complete(&uid, Call::Terminating, &failed(), 0.0, at(4));
    assert!(retry.completed.is_empty());
    workers.look_again(&uid, at(4));
    run(workers.next(&uid, 0.0, at(5)));
    let done = workers.complete(&uid, Call::Terminating, &DONE, 0.0, at(6));
    assert_eq!(done.completed, [Completion(1), Completion(2)]);
    let last = run(workers.next(&uid, 0.0, at(6)));
    assert_eq!(last.call, Call::Terminated);
    assert_eq!(last.status.map(|s| s.reason), Some("Evicted".to_owned()), "it stays so");
    let late = KillOptions { completion: Some(Completion(3)), ..KillOptions::default() };
    let update =
        PodUpdate { kill: Some(late), ..PodUpdate::of(UpdateKind::Kill, Arc::new(pod("u"))) };
    assert_eq!(workers.update(update, false, at(7)).completed, [Completion(3)]);
}

#[test]
fn unknown_pods_may_run_until_housekeeping_has_looked() {
    let mut workers = Workers::default();
    let uid = PodUid::from("u");
    assert!(workers.could_have_running_containers(&uid));
    assert!(!workers.runtime_should_be_removed(&uid));
    workers.sync_known(&BTreeSet::new(), at(0));
    assert!(!workers.could_have_running_containers(&uid));
    assert!(workers.runtime_should_be_removed(&uid));
}

#[test]
fn housekeeping_ends_pods_that_are_no_longer_configured() {
    let mut workers = Workers::default();
    let [started, fresh] = ["s", "f"].map(PodUid::from);
    workers.update(PodUpdate::of(UpdateKind::Create, Arc::new(pod("s"))), false, at(0));
    pass(&mut workers, &started, 1);
    workers.update(PodUpdate::of(UpdateKind::Create, Arc::new(pod("f"))), false, at(2));
    let found = workers.sync_known(&BTreeSet::new(), at(3));
    assert_eq!(found.removed, [fresh]);
    assert_eq!(found.wake, std::slice::from_ref(&started));
    assert!(found.known[&started].orphan);
    let work = run(workers.next(&started, 0.0, at(4)));
    assert_eq!((work.call, work.grace_seconds), (Call::Terminating, None));
}

#[test]
fn work_is_named_by_its_cause_and_only_if_one_was_seen() {
    let mut workers = Workers::default();
    let uid = PodUid::from("u");
    let seen = |kind, pod| PodUpdate { seen_at: Some(at(0)), ..PodUpdate::of(kind, pod) };
    workers.update(seen(UpdateKind::Create, Arc::new(pod("u"))), false, at(0));
    let mut named = |now: i64| {
        let work = run(workers.next(&uid, 0.0, at(now)));
        workers.complete(&uid, work.call, &DONE, 0.0, at(now));
        let deletion = seen(UpdateKind::Update, deleted("u", 5));
        match now {
            1 => drop(workers.look_again(&uid, at(now))),
            2 => drop(workers.update(deletion, true, at(now))),
            _ => {}
        }
        (work.call, work.operation(&DONE))
    };
    assert_eq!(named(1), (Call::Sync, Some("create")));
    assert_eq!(named(2), (Call::Sync, Some("sync")), "something changed in the runtime");
    assert_eq!(named(3), (Call::Terminating, Some("update")), "a deletion is an update");
    assert_eq!(named(4), (Call::Terminated, Some("terminated")), "its containers are gone");
    let mut late = Workers::default();
    late.update(seen(UpdateKind::Create, with_phase("u", "Failed")), false, at(0));
    let work = run(late.next(&uid, 0.0, at(1)));
    assert_eq!((work.call, work.operation(&DONE)), (Call::Terminated, Some("terminated")));
    assert_eq!(work.operation(&failed()), Some("create"));
}
