//! What the cache accepts, the merge with the API's copy, and the patch.

use super::super::cache::{Cached, Offer, Taken, equal, final_status, take, with_readiness};
use super::super::merge::{differs, may_be_deleted, merge};
use super::super::patch::status_patch;
use super::*;
use crate::pod::life::StatusOverride;
use proptest::prelude::*;
use serde_json::{Value, json};
use std::sync::Arc;

fn offer(pod: &Pod, before: Option<&Cached>, status: PodStatus, now: i64) -> Taken {
    let none = PodStatus::default();
    take(pod, before, &none, status, Offer::default(), &StatusGates::default(), at(now))
}

fn changed(taken: Taken) -> Cached {
    match taken {
        Taken::Changed { cached, .. } => cached,
        other => panic!("expected a change: {other:?}"),
    }
}

#[test]
fn transition_times_move_only_with_the_status() {
    let fixture = Fixture::new("a", "ready");
    let first = changed(offer(&fixture.pod, None, fixture.generate().status, 10));
    let time = |cached: &Cached, type_: &str| {
        let list = cached.status.conditions.as_ref().unwrap();
        list.iter().find(|c| c.type_ == type_).unwrap().last_transition_time.as_ref().unwrap().0
    };
    assert_eq!(time(&first, "Ready"), at(10));
    let up = Fixture::new("a", "ready a:running");
    let second = changed(offer(&up.pod, Some(&first), up.generate().status, 20));
    assert_eq!(time(&second, "Ready"), at(20));
    assert_eq!(time(&second, "PodScheduled"), at(10));
    assert_eq!((second.version, second.since), (2, at(10)));
    assert_eq!(second.status.start_time.as_ref().unwrap().0, at(10), "start time is set once");
    assert!(matches!(offer(&up.pod, Some(&second), up.generate().status, 30), Taken::Same { .. }));
}

#[test]
fn a_container_does_not_come_back_from_the_dead() {
    let ended = Fixture::new("Never a b", "ready a:exited1 b:running");
    let before = changed(offer(&ended.pod, None, ended.generate().status, 1));
    let back = Fixture::new("Never a b", "ready a:running b:running");
    assert!(matches!(
        offer(&back.pod, Some(&before), back.generate().status, 2),
        Taken::Illegal { message } if message.contains("terminated container a attempted")
    ));
    let allowed = Fixture::new("OnFailure a b", "ready a:running b:running");
    assert!(matches!(
        offer(&allowed.pod, Some(&before), allowed.generate().status, 2),
        Taken::Changed { .. }
    ));
}

#[test]
fn long_messages_are_shared_out() {
    let mut fixture = Fixture::new("a b c", "ready a:exited1");
    fixture.runtime.containers[0].message = "x".repeat(20_000);
    let cached = changed(offer(&fixture.pod, None, fixture.generate().status, 1));
    let ended = entry(&cached.status, "a").state.as_ref().unwrap().terminated.as_ref().unwrap();
    assert_eq!(ended.message.as_ref().unwrap().len(), 4096);
}

#[test]
fn ended_containers_are_counted_once() {
    let fixture = Fixture::new("a", "ready a:exited3");
    let Taken::Changed { cached, terminated } =
        offer(&fixture.pod, None, fixture.generate().status, 1)
    else {
        panic!("expected a change")
    };
    assert_eq!(terminated.len(), 1);
    let Taken::Same { terminated } =
        offer(&fixture.pod, Some(&cached), fixture.generate().status, 2)
    else {
        panic!("expected no change")
    };
    assert!(terminated.is_empty());
}

#[test]
fn the_last_status_is_final() {
    let fixture = Fixture::new("i:x a", "ready");
    let status = final_status(&fixture.pod, &fixture.generate().status);
    assert_eq!(status.phase.as_deref(), Some("Failed"));
    assert_eq!(
        terminated_code(entry(&status, "x")),
        Some(137),
        "at least the first init container"
    );
    assert_eq!(terminated_code(entry(&status, "a")), None, "never initialised");
    assert_eq!(condition(&status, "Ready").1, "ContainersNotReady", "conditions stay");

    let fixture = Fixture::new("a", "ready");
    let status = final_status(&fixture.pod, &fixture.generate().status);
    assert_eq!(terminated_code(entry(&status, "a")), Some(137));
}

#[test]
fn what_began_before_all_were_restarted_has_ended_in_the_last_status() {
    let fixture = Fixture::new("i:x a", "ready");
    let mut old = fixture.generate().status;
    for entry in old.container_statuses.iter_mut().flatten() {
        entry.last_state = Some(containers::terminated(137, "x", ""));
    }
    assert_eq!(fixture.pod.status, None, "the API server knows nothing of it yet");
    let status = final_status(&fixture.pod, &old);
    assert_eq!(terminated_code(entry(&status, "a")), Some(137));
}

#[test]
fn a_terminal_phase_waits_until_nothing_can_run() {
    let done = Fixture { terminal: true, ..Fixture::new("Never a", "notready a:exited1") };
    let ours = done.generate().status;
    let api = Fixture::new("Never a", "ready a:running").generate().status;
    let held = merge(&done.pod, &api, &ours, true, at(50));
    assert_eq!(held.phase.as_deref(), Some("Running"));
    assert_eq!(terminated_code(entry(&held, "a")), Some(1));
    let sent = merge(&done.pod, &api, &ours, false, at(50));
    assert_eq!(sent.phase.as_deref(), Some("Failed"));
}

#[test]
fn disruption_target_is_sent_with_the_terminal_phase_only() {
    let mut ours = Fixture::new("Never a", "ready a:running").generate().status;
    let api = ours.clone();
    let wish = StatusOverride {
        reason: "Evicted".to_owned(),
        message: "low".to_owned(),
        condition: Some(PodCondition {
            type_: "DisruptionTarget".to_owned(),
            status: "True".to_owned(),
            ..PodCondition::default()
        }),
        keep_succeeded: false,
    };
    apply_override(&mut ours, &wish);
    let pod = pod("Never a");
    let has = |status: &PodStatus| {
        status.conditions.iter().flatten().any(|c| c.type_ == "DisruptionTarget")
    };
    assert!(!has(&merge(&pod, &api, &ours, true, at(1))));
    let sent = merge(&pod, &api, &ours, false, at(1));
    assert!(has(&sent));
    assert_eq!(condition(&sent, "Ready"), ("False".to_owned(), "PodFailed".to_owned()));
}

#[test]
fn a_probe_result_changes_only_what_depends_on_it() {
    let fixture = Fixture::new("a b", "ready a:running b:running");
    let status = fixture.generate().status;
    let gates = StatusGates::default();
    let unready = with_readiness(&fixture.pod, &status, "a-1", false, &gates).unwrap();
    assert_eq!(condition(&unready, "Ready").1, "ContainersNotReady");
    assert_eq!(with_readiness(&fixture.pod, &status, "a-1", true, &gates), None);
    assert_eq!(with_readiness(&fixture.pod, &status, "old-id", false, &gates), None);
}

#[test]
fn a_pod_is_deleted_when_it_is_over_everywhere() {
    let cached = |finished| Cached {
        status: Arc::new(PodStatus::default()),
        version: 1,
        finished,
        since: at(0),
    };
    let mut api = pod("deleted a");
    assert!(!may_be_deleted(&api, &cached(true)), "no final phase yet");
    api.status = Some(PodStatus { phase: Some("Failed".to_owned()), ..PodStatus::default() });
    assert!(may_be_deleted(&api, &cached(true)));
    assert!(!may_be_deleted(&api, &cached(false)));
}

#[test]
fn foreign_conditions_do_not_make_a_difference() {
    let fixture = Fixture::new("a", "ready a:running");
    let ours = changed(offer(&fixture.pod, None, fixture.generate().status, 1));
    let mut api = ours.status.as_ref().clone();
    api.conditions.as_mut().unwrap().push(PodCondition {
        type_: "x/y".to_owned(),
        status: "True".to_owned(),
        ..PodCondition::default()
    });
    assert!(!differs(&fixture.pod, &api, &ours.status));
    api.phase = Some("Pending".to_owned());
    assert!(differs(&fixture.pod, &api, &ours.status));
}

/// Applies a strategic merge patch as an API server does for a pod status.
fn apply(old: &Value, patch: &Value) -> Value {
    let (Value::Object(old), Value::Object(patch)) = (old, patch) else { return patch.clone() };
    let mut result = old.clone();
    for (name, change) in patch {
        if name.starts_with("$setElementOrder/") {
            continue;
        }
        let key = match name.as_str() {
            "conditions" => Some("type"),
            "podIPs" | "hostIPs" => Some("ip"),
            _ => None,
        };
        match (result.get(name).cloned(), change, key) {
            (_, Value::Null, _) => {
                result.remove(name);
            }
            (Some(Value::Array(mut list)), Value::Array(items), Some(key)) => {
                for item in items {
                    let place = list.iter().position(|old| old[key] == item[key]);
                    match (place, item.get("$patch").is_some()) {
                        (Some(place), true) => {
                            list.remove(place);
                        }
                        (Some(place), false) => list[place] = apply(&list[place], item),
                        (None, _) => list.push(item.clone()),
                    }
                }
                result.insert(name.clone(), Value::Array(list));
            }
            (Some(before @ Value::Object(_)), Value::Object(_), _) => {
                result.insert(name.clone(), apply(&before, change));
            }
            _ => {
                result.insert(name.clone(), change.clone());
            }
        }
    }
    for (name, order) in patch.iter().filter(|(n, _)| n.starts_with("$setElementOrder/")) {
        let list_name = name.trim_start_matches("$setElementOrder/");
        let key = if list_name == "conditions" { "type" } else { "ip" };
        if let Some(Value::Array(list)) = result.get_mut(list_name) {
            let order = order.as_array().unwrap();
            list.sort_by_key(|item| order.iter().position(|o| o[key] == item[key]));
        }
    }
    Value::Object(result)
}

fn any_status() -> impl Strategy<Value = PodStatus> {
    let specs = vec!["a b", "Never i:x s:s a", "OnFailure a=Never!!42 e:d"];
    let states = vec![
        "",
        "ready",
        "ready a:running",
        "ready x:exited0 s:running a:running",
        "ready a:exited42 b:exited0",
        "notready a:exited1 d:exited0",
    ];
    let foreign = prop::collection::vec(("[xyz]/[ab]", "True|False"), 0..3);
    (prop::sample::select(specs), prop::sample::select(states), foreign, any::<bool>()).prop_map(
        |(spec, state, foreign, terminal)| {
            let mut fixture = Fixture { terminal, ..Fixture::new(spec, state) };
            let conditions = foreign
                .into_iter()
                .collect::<BTreeMap<_, _>>()
                .into_iter()
                .map(|(type_, status)| PodCondition { type_, status, ..PodCondition::default() })
                .collect();
            fixture.pod.status =
                Some(PodStatus { conditions: Some(conditions), ..PodStatus::default() });
            fixture.generate().status
        },
    )
}

proptest! {
    #[test]
    fn the_patch_leads_from_the_old_status_to_the_new_one(old in any_status(), new in any_status()) {
        let before = serde_json::to_value(&old).unwrap();
        let after = serde_json::to_value(&new).unwrap();
        match status_patch("u", &old, &new) {
            None => prop_assert_eq!(before, after),
            Some(patch) => {
                prop_assert_eq!(&patch["metadata"], &json!({ "uid": "u" }));
                prop_assert_eq!(apply(&before, &patch["status"]), after);
            }
        }
        prop_assert_eq!(status_patch("u", &old, &old), None);
    }

    #[test]
    fn a_status_equals_itself_after_a_round_through_the_cache(status in any_status()) {
        let pod = pod("a");
        let cached = changed(offer(&pod, None, status.clone(), 5));
        prop_assert!(equal(&cached.status, &cached.status));
        let same = matches!(offer(&pod, Some(&cached), status, 6), Taken::Same { .. });
        prop_assert!(same);
    }
}

#[test]
fn a_patch_names_only_what_changed() {
    let old = Fixture::new("a", "ready a:running").generate().status;
    let mut new = old.clone();
    new.conditions.as_mut().unwrap().retain(|c| c.type_ != "PodScheduled");
    new.conditions.as_mut().unwrap().iter_mut().find(|c| c.type_ == "Ready").unwrap().status =
        "False".to_owned();
    new.pod_ip = None;
    let patch = status_patch("u", &old, &new).unwrap();
    assert_eq!(
        patch,
        json!({
            "metadata": { "uid": "u" },
            "status": {
                "$setElementOrder/conditions": [
                    { "type": "PodReadyToStartContainers" },
                    { "type": "Initialized" },
                    { "type": "Ready" },
                    { "type": "ContainersReady" },
                ],
                "conditions": [
                    { "type": "Ready", "status": "False" },
                    { "$patch": "delete", "type": "PodScheduled" },
                ],
                "podIP": null,
            },
        })
    );
}
