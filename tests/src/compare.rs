//! Comparing what a kubelet did with a golden record, by the rules of `fixtures/golden/README.md`:
//! lists without a defined order are sets, and what two runs of the Go kubelet differ in is left out.

use serde_json::Value;

use crate::golden::Golden;

/// What was observed of one pod, with placeholders in place.
#[derive(Debug, Clone)]
pub struct Observed {
    /// The mutating CRI calls.
    pub cri: Vec<Value>,
    /// Each status in turn, in short form.
    pub steps: Vec<Value>,
    /// The status before the deletion.
    pub status: Value,
    /// The events.
    pub events: Vec<Value>,
}

/// One place where the two differ.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// Where: `cri[2] CreateContainer/request/config/envs`, `status/phase`, `steps`, `events`.
    pub at: String,
    /// What the record has there.
    pub golden: String,
    /// What was observed.
    pub observed: String,
}

/// Lists that have no defined order.
const SETS: &[&str] = &[
    "envs",
    "mounts",
    "hugepage_limits",
    "options",
    "conditions",
    "supplementalGroups",
    "supplemental_groups",
    "add_capabilities",
    "drop_capabilities",
];

/// Pods that go round in a cycle: the record stops them at some point of it.
const CYCLES: &[&str] = &["crashloop", "init-fails-always", "poststart-fails", "liveness-fails"];

/// Everything that differs.
#[must_use]
pub fn compare(golden: &Golden, observed: &Observed) -> Vec<Difference> {
    let mut found = Vec::new();
    let cycles = CYCLES.contains(&golden.name.as_str());
    compare_calls(&calls(&golden.cri), &calls(&observed.cri), cycles, &mut found);
    compare_steps(&golden.steps, &observed.steps, cycles, &mut found);
    if !cycles {
        let (expected, got) = (status(&golden.status), status(&observed.status));
        diff("status", &expected, &got, &mut found);
    }
    compare_events(&golden.events, &observed.events, &mut found);
    found
}

/// Calls in a comparable order: a probe that keeps giving the same answer counts once, containers
/// of one pod are stopped and removed in no particular order, and what the garbage collection does
/// after the last container is gone may or may not have happened yet when the record ends.
fn calls(list: &[Value]) -> Vec<Value> {
    let mut calls: Vec<Value> = Vec::new();
    for call in list {
        let repeated = call["method"] == "ExecSync" && calls.last() == Some(call);
        if !repeated {
            calls.push(call.clone());
        }
    }
    for method in ["StopContainer", "RemoveContainer"] {
        let same = |a: &Value, b: &Value| a["method"] == method && b["method"] == method;
        for run in calls.chunk_by_mut(same) {
            run.sort_by_key(|call| call["request"].to_string());
        }
    }
    let collected =
        |call: &Value| call["method"] == "StopPodSandbox" || call["method"] == "RemovePodSandbox";
    let first_stop = calls.iter().position(|call| call["method"] == "StopPodSandbox");
    while calls.last().is_some_and(collected) && Some(calls.len() - 1) != first_stop {
        calls.pop();
    }
    calls
}

fn methods(calls: &[Value]) -> String {
    let names = calls.iter().map(|call| {
        let method = call["method"].as_str().unwrap_or_default();
        let about = call["request"]["container_id"].as_str();
        let about = about.or_else(|| call["request"]["config"]["metadata"]["name"].as_str());
        let about = about.unwrap_or_default().trim_start_matches("$CONTAINER");
        format!("{method}{}", if about.is_empty() { String::new() } else { format!(" {about}") })
    });
    names.collect::<Vec<_>>().join(", ")
}

fn compare_calls(golden: &[Value], ours: &[Value], cycles: bool, found: &mut Vec<Difference>) {
    let (expected, got) = (methods(golden), methods(ours));
    if expected != got && !cycles {
        found.push(Difference { at: "cri".to_owned(), golden: expected, observed: got.clone() });
        // The requests can still be compared where a call of that kind for that container was made.
    }
    for (index, call) in golden.iter().enumerate() {
        let method = call["method"].as_str().unwrap_or_default();
        let key = |call: &Value| (call["method"].clone(), methods(std::slice::from_ref(call)));
        let rank = golden[..index].iter().filter(|earlier| key(earlier) == key(call)).count();
        let twin = ours.iter().filter(|other| key(other) == key(call)).nth(rank);
        if let Some(twin) = twin {
            diff(&format!("cri[{index}] {method}"), call, twin, found);
        } else if cycles && rank == 0 && !method.starts_with("Remove") {
            let got = got.clone();
            found.push(Difference {
                at: format!("cri[{index}]"),
                golden: method.to_owned(),
                observed: got,
            });
        }
    }
}

/// In the order of the record. A watcher may miss a step that was overtaken by the next, so each
/// observed step must be one of the record's, in its order, and none that lasts may be missing.
fn compare_steps(golden: &[Value], ours: &[Value], cycles: bool, found: &mut Vec<Difference>) {
    if golden == ours {
        return;
    }
    let at = "steps".to_owned();
    let show = |steps: &[Value]| steps.iter().map(short_step).collect::<Vec<_>>().join("\n    ");
    if cycles {
        // Up to the first restart both must agree; later the two are at different points.
        let first: Vec<_> = golden.iter().take(4).cloned().collect();
        if !ours.starts_with(&first) {
            found.push(Difference { at, golden: show(&first), observed: show(ours) });
        }
        return;
    }
    found.push(Difference { at, golden: show(golden), observed: show(ours) });
}

fn short_step(step: &Value) -> String {
    let conditions = step["conditions"].as_object().into_iter().flatten();
    let conditions = conditions.map(|(name, value)| {
        let status = value[0].as_str().unwrap_or_default();
        let reason = value[1].as_str().unwrap_or_default();
        format!("{name}={}{reason}", &status[..status.len().min(1)])
    });
    let conditions = conditions.collect::<Vec<_>>().join(" ");
    let mut line = format!("{} {}", step["phase"], step["main"]);
    for kind in ["init", "ephemeral"] {
        if step[kind].as_object().is_some_and(|map| !map.is_empty()) {
            line.push_str(&format!(" {kind} {}", step[kind]));
        }
    }
    format!("{line} {} {conditions}", step["reason"])
}

/// As sets: two containers of a pod report in no particular order, and counts depend on timing.
fn compare_events(golden: &[Value], ours: &[Value], found: &mut Vec<Difference>) {
    let lines = |events: &[Value]| {
        let mut lines: Vec<String> = events.iter().map(event_line).collect();
        lines.sort();
        lines.dedup();
        lines
    };
    let (expected, got) = (lines(golden), lines(ours));
    let only = |a: &[String], b: &[String]| {
        let only: Vec<_> = a.iter().filter(|line| !b.contains(line)).cloned().collect();
        only.join("\n    ")
    };
    let (missing, extra) = (only(&expected, &got), only(&got, &expected));
    if !missing.is_empty() || !extra.is_empty() {
        found.push(Difference { at: "events".to_owned(), golden: missing, observed: extra });
    }
}

fn event_line(event: &Value) -> String {
    let text = |key: &str| event[key].as_str().unwrap_or_default();
    let reason = text("reason");
    let message = if reason == "Unhealthy" && text("message").contains("dial tcp") {
        "(network error)".to_owned()
    } else {
        numbers_of_others(text("message"))
    };
    format!("{} {reason} {} {message}", text("type"), text("field"))
}

/// How much of a resource is used or there depends on the machine and on the pods beside.
fn numbers_of_others(message: &str) -> String {
    let mut out = message.to_owned();
    for marker in ["used: ", "capacity: "] {
        if let Some((before, after)) = out.clone().split_once(marker) {
            let rest = after.trim_start_matches(|c: char| c.is_ascii_digit());
            out = format!("{before}{marker}N{rest}");
        }
    }
    out
}

/// A status without what two runs of the Go kubelet differ in.
fn status(status: &Value) -> Value {
    let mut status = status.clone();
    if let Some(fields) = status.as_object_mut() {
        fields.remove("resources");
    }
    if let Some(message) = status["message"].as_str().map(numbers_of_others) {
        status["message"] = message.into();
    }
    let lists = ["containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses"];
    for list in lists {
        let Some(containers) = status.get_mut(list).and_then(Value::as_array_mut) else { continue };
        for waiting in containers.iter_mut().filter_map(|c| c.pointer_mut("/state/waiting")) {
            let back_off = waiting["reason"].as_str().is_some_and(|r| r.ends_with("BackOff"));
            if let Some(fields) = waiting.as_object_mut().filter(|_| back_off) {
                fields.remove("message");
            }
        }
    }
    status
}

/// Walk both values and note where they part.
fn diff(at: &str, golden: &Value, ours: &Value, found: &mut Vec<Difference>) {
    match (golden, ours) {
        (Value::Object(a), Value::Object(b)) => {
            let mut keys: Vec<_> = a.keys().chain(b.keys()).collect();
            keys.sort();
            keys.dedup();
            for key in keys {
                let (a, b) =
                    (a.get(key).unwrap_or(&Value::Null), b.get(key).unwrap_or(&Value::Null));
                let at = format!("{at}/{key}");
                match (SETS.contains(&key.as_str()), a.as_array(), b.as_array()) {
                    (true, Some(a), Some(b)) => diff_sets(&at, a, b, found),
                    _ => diff(&at, a, b, found),
                }
            }
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            for (index, (a, b)) in a.iter().zip(b).enumerate() {
                diff(&format!("{at}[{index}]"), a, b, found);
            }
        }
        (a, b) if a == b => {}
        (a, b) => found.push(Difference {
            at: at.to_owned(),
            golden: a.to_string(),
            observed: b.to_string(),
        }),
    }
}

fn diff_sets(at: &str, a: &[Value], b: &[Value], found: &mut Vec<Difference>) {
    let only = |a: &[Value], b: &[Value]| {
        let only: Vec<_> = a.iter().filter(|x| !b.contains(x)).map(Value::to_string).collect();
        only.join(" ")
    };
    if a.len() != b.len() || a.iter().any(|item| !b.contains(item)) {
        found.push(Difference { at: at.to_owned(), golden: only(a, b), observed: only(b, a) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn observed(golden: &Golden) -> Observed {
        let golden = golden.clone();
        Observed {
            cri: golden.cri,
            steps: golden.steps,
            status: golden.status,
            events: golden.events,
        }
    }

    #[test]
    fn every_record_equals_itself() {
        for golden in crate::golden::load_all().unwrap() {
            assert_eq!(compare(&golden, &observed(&golden)), [], "{}", golden.name);
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
        ours.steps.remove(2);
        ours.cri.remove(3);
        let at: Vec<_> = compare(basic, &ours).into_iter().map(|found| found.at).collect();
        assert_eq!(
            at,
            [
                "cri",
                "cri[1] CreateContainer/request/config/envs",
                "steps",
                "status/phase",
                "events"
            ]
        );
    }

    #[test]
    fn order_of_sets_does_not_matter() {
        let mut found = Vec::new();
        diff("x", &json!({ "envs": [1, 2] }), &json!({ "envs": [2, 1] }), &mut found);
        assert_eq!(found, []);
        diff("x", &json!({ "command": [1, 2] }), &json!({ "command": [2, 1] }), &mut found);
        assert_eq!(found.len(), 2);
    }
}
