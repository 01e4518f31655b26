//! What counts as a difference and what does not.

use super::*;
use serde_json::json;

fn observed(golden: &Golden) -> Observed {
    let golden = golden.clone();
    Observed {
        cri: golden.cri,
        steps: golden.steps,
        status: golden.status,
        events: golden.events,
        brief: false,
    }
}

#[test]
fn every_record_equals_itself() {
    for golden in crate::golden::load_all().unwrap().iter().filter(|g| g.is_recorded()) {
        assert_eq!(compare(golden, &observed(golden)), [], "{}", golden.name);
    }
}

#[test]
fn a_changed_request_status_or_event_is_found() {
    let all = crate::golden::load_all().unwrap();
    let basic = all.iter().find(|golden| golden.name == "basic").unwrap();
    let mut ours = observed(basic);
    ours.cri[1]["request"]["config"]["envs"][0]["value"] = "x".into();
    ours.status["phase"] = "Failed".into();
    ours.events.remove(1);
    ours.steps.drain(2..4);
    ours.cri.remove(3);
    ours.cri.push(json!({ "method": "RemovePodSandbox", "request": {} }));
    let at: Vec<_> = compare(basic, &ours).into_iter().map(|found| found.at).collect();
    assert_eq!(
        at,
        [
            "cri",
            "cri[1] CreateContainer/request/config/envs",
            "cri clean-up",
            "steps conditions/ContainersReady",
            "steps conditions/PodReadyToStartContainers",
            "steps conditions/Ready",
            "steps main/main",
            "steps phase",
            "status/phase",
            "events",
        ]
    );
}

/// How many calls of the clean-up differ.
fn clean_up(golden: &[&Value], ours: &[&Value]) -> usize {
    let own = |list: &[&Value]| list.iter().map(|&call| call.clone()).collect::<Vec<_>>();
    let mut found = Vec::new();
    compare_clean_up(&own(golden), &own(ours), &mut found);
    found.len()
}

#[test]
fn a_record_may_end_before_the_sandbox_is_collected() {
    let call = |method: &str| json!({"method": method, "request": {"pod_sandbox_id": "s"}});
    let (stop, remove) = (call("StopPodSandbox"), call("RemovePodSandbox"));
    assert_eq!(clean_up(&[&stop], &[&stop, &stop, &remove]), 0);
    assert_eq!(clean_up(&[&stop], &[&stop, &stop, &remove, &remove]), 1, "twice");
    assert_eq!(clean_up(&[&stop, &remove], &[&stop, &stop, &remove]), 1, "seen, and not so");
    assert_eq!(clean_up(&[], &[&remove]), 1, "a sandbox that is not in the record");
}

#[test]
fn a_record_may_end_before_a_stopped_container_is_removed() {
    let call = |method: &str| json!({"method": method, "request": {"container_id": "c"}});
    let sandbox = json!({"method": "StopPodSandbox", "request": {"pod_sandbox_id": "s"}});
    let (stop, remove) = (call("StopContainer"), call("RemoveContainer"));
    let short = [&stop, &sandbox];
    assert_eq!(clean_up(&short, &[&stop, &sandbox, &remove]), 0);
    assert_eq!(clean_up(&short, &[&stop, &sandbox, &remove, &remove]), 1, "twice");
    assert_eq!(clean_up(&[&sandbox], &[&sandbox, &remove]), 1, "one that ended by itself");
}

#[test]
fn a_course_may_jump_over_a_short_running_only() {
    let waiting = json!(["waiting", "", false, false, 0]);
    let running = json!(["running", "", true, true, 0]);
    let ended = json!(["terminated", "Completed", false, false, 0]);
    let long = [waiting.clone(), running.clone(), ended.clone()];
    let short = [waiting.clone(), ended.clone()];
    let brief = Rule { skip: true, prefix: false };
    assert!(same_course(&long, &short, brief) && same_course(&short, &long, brief));
    assert!(!same_course(&long, &short, Rule::default()), "it ran for long");
    assert!(!same_course(&long, &long[..2], brief));
    assert!(same_course(&long, &long[..2], Rule { skip: false, prefix: true }));
    assert!(!same_course(&long, &long[1..], brief));
    let unready = json!(["running", "", false, true, 0]);
    assert!(!same_course(&long, &[waiting, unready, ended], brief));
}

#[test]
fn order_of_sets_does_not_matter() {
    let mut found = Vec::new();
    diff("x", &json!({ "envs": [1, 2] }), &json!({ "envs": [2, 1] }), &mut found);
    assert_eq!(found, []);
    diff("x", &json!({ "command": [1, 2] }), &json!({ "command": [2, 1] }), &mut found);
    assert_eq!(found.len(), 2);
}

#[test]
fn a_dead_container_may_be_removed_before_or_after_the_last_one_stops() {
    let call = |method: &str, id: &str| json!({"method": method, "request": {"container_id": id}});
    let (start, stop) = (call("StartContainer", "b"), call("StopContainer", "b"));
    let remove = call("RemoveContainer", "a");
    let early = [start.clone(), remove.clone(), stop.clone()];
    let late = [start.clone(), stop.clone(), remove.clone()];
    assert_eq!(removals_last(early.to_vec()), late);
    let between = [remove, start, stop];
    assert_eq!(removals_last(between.to_vec()), between, "something is started after it");
}
