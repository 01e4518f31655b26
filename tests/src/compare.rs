//! Comparing what a kubelet did with a golden record, by the rules of `fixtures/golden/README.md`:
//! lists without a defined order are sets, and what two runs of the Go kubelet differ in is left out.

use std::collections::BTreeMap;

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
    if !cycles {
        compare_clean_up(&golden.cri, &observed.cri, &mut found);
    }
    compare_steps(&golden.steps, &observed.steps, cycles, &mut found);
    if !cycles {
        let (expected, got) = (status(&golden.status), status(&observed.status));
        diff("status", &expected, &got, &mut found);
    }
    compare_events(&golden.events, &observed.events, cycles, &mut found);
    found
}

/// Calls in a comparable order, without the clean-up at the end: a probe that keeps giving the
/// same answer counts once, and containers of one pod are stopped in no particular order.
fn calls(list: &[Value]) -> Vec<Value> {
    let mut calls: Vec<Value> = Vec::new();
    for call in &list[..clean_up_start(list)] {
        let repeated = call["method"] == "ExecSync" && calls.last() == Some(call);
        if !repeated {
            calls.push(call.clone());
        }
    }
    let stops = |a: &Value, b: &Value| a["method"] == "StopContainer" && b["method"] == a["method"];
    for run in calls.chunk_by_mut(stops) {
        run.sort_by_key(|call| call["request"].to_string());
    }
    calls
}

/// Where the clean-up begins: garbage collection, which runs once a minute, so that a record may
/// end in the middle of it.
fn clean_up_start(list: &[Value]) -> usize {
    let clean_up = ["RemoveContainer", "StopPodSandbox", "RemovePodSandbox"];
    let is_clean_up = |call: &&Value| clean_up.iter().any(|method| call["method"] == *method);
    let tail = list.iter().rev().take_while(is_clean_up).count();
    let first_stop = list.iter().position(|call| call["method"] == "StopPodSandbox");
    (list.len() - tail).max(first_stop.map_or(0, |stop| stop + 1).min(list.len()))
}

/// Nothing may be cleaned up that the record does not clean up, nor more often.
fn compare_clean_up(golden: &[Value], ours: &[Value], found: &mut Vec<Difference>) {
    let mut left: Vec<&Value> = golden[clean_up_start(golden)..].iter().collect();
    for call in &ours[clean_up_start(ours)..] {
        match left.iter().position(|known| *known == call) {
            Some(index) => drop(left.remove(index)),
            None => found.push(Difference {
                at: "cri clean-up".to_owned(),
                golden: String::new(),
                observed: call.to_string(),
            }),
        }
    }
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

/// A watcher may miss a short step, and two things may change in one step or in two. So each thing
/// is followed on its own: every container, every condition, the phase. A short-lived `running`
/// (and the readiness that goes with it) may be missing on either side; all else must come in the
/// record's order.
fn compare_steps(golden: &[Value], ours: &[Value], cycles: bool, found: &mut Vec<Difference>) {
    if golden == ours {
        return;
    }
    let (expected, got) = (courses(golden), courses(ours));
    let mut names: Vec<_> = expected.keys().chain(got.keys()).collect();
    names.sort();
    names.dedup();
    for name in names {
        let empty = Vec::new();
        let (a, b) = (expected.get(name).unwrap_or(&empty), got.get(name).unwrap_or(&empty));
        let same = if cycles { a.first() == b.first() } else { same_course(a, b) };
        if !same {
            let show = |course: &[Value]| {
                course.iter().map(Value::to_string).collect::<Vec<_>>().join(" → ")
            };
            let at = format!("steps {name}");
            found.push(Difference { at, golden: show(a), observed: show(b) });
        }
    }
}

/// What each thing went through.
fn courses(steps: &[Value]) -> BTreeMap<String, Vec<Value>> {
    let mut courses: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    let mut note = |name: String, value: &Value| {
        let course = courses.entry(name).or_default();
        if course.last() != Some(value) {
            course.push(value.clone());
        }
    };
    for step in steps {
        note("phase".to_owned(), &step["phase"]);
        note("reason".to_owned(), &step["reason"]);
        for kind in ["conditions", "init", "main", "ephemeral"] {
            for (name, value) in step[kind].as_object().into_iter().flatten() {
                note(format!("{kind}/{name}"), value);
            }
        }
    }
    courses
}

/// Walk both; where they part, one side may have been running for a moment that the other missed.
fn same_course(a: &[Value], b: &[Value]) -> bool {
    // A phase, a container's state, a Ready condition.
    let passing = |x: &Value| x == "Running" || x[0] == "running" || x[0] == "True";
    match (a, b) {
        ([], []) => true,
        ([x, a @ ..], [y, b @ ..]) if x == y => same_course(a, b),
        ([x, next, ..], [y, ..]) if passing(x) && next == y => same_course(&a[1..], b),
        ([x, ..], [y, next, ..]) if passing(y) && next == x => same_course(a, &b[1..]),
        _ => false,
    }
}

/// As sets: two containers of a pod report in no particular order, and counts depend on timing.
fn compare_events(golden: &[Value], ours: &[Value], cycles: bool, found: &mut Vec<Difference>) {
    // After a resize the Go kubelet reports the old values as completed once more in some runs.
    let twice = |event: &&Value| event["reason"] == "ResizeCompleted";
    let last_resize = ours.iter().rfind(|event| twice(event));
    let ours: Vec<Value> =
        ours.iter().filter(|e| !twice(e) || last_resize == Some(e)).cloned().collect();
    let lines = |events: &[Value]| {
        // Whether a server is asked before it listens is a matter of luck.
        let early = |e: &&Value| {
            let dial = e["message"].as_str().is_some_and(|message| message.contains("dial tcp"));
            dial && e["reason"] == "Unhealthy"
        };
        let mut lines: Vec<String> =
            events.iter().filter(|event| !early(event)).map(event_line).collect();
        lines.sort();
        lines.dedup();
        lines
    };
    let (expected, got) = (lines(golden), lines(&ours));
    let only = |a: &[String], b: &[String]| {
        let only: Vec<_> = a.iter().filter(|line| !b.contains(line)).cloned().collect();
        only.join("\n    ")
    };
    let (missing, mut extra) = (only(&expected, &got), only(&got, &expected));
    if cycles {
        // Stopped at another point of the cycle, a container may still have to be killed.
        extra.clear();
    }
    if !missing.is_empty() || !extra.is_empty() {
        found.push(Difference { at: "events".to_owned(), golden: missing, observed: extra });
    }
}

fn event_line(event: &Value) -> String {
    let text = |key: &str| event[key].as_str().unwrap_or_default();
    let reason = text("reason");
    let message = numbers_of_others(text("message"));
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
                // A short Ready may be missing on either side; other conditions may not.
                "steps conditions/PodReadyToStartContainers",
                "status/phase",
                "events",
            ]
        );
    }

    #[test]
    fn a_course_may_jump_over_a_short_running_only() {
        let waiting = json!(["waiting", "", false, false, 0]);
        let running = json!(["running", "", true, true, 0]);
        let ended = json!(["terminated", "Completed", false, false, 0]);
        let long = [waiting.clone(), running.clone(), ended.clone()];
        let short = [waiting.clone(), ended.clone()];
        assert!(same_course(&long, &short) && same_course(&short, &long));
        assert!(!same_course(&long, &long[..2]));
        assert!(!same_course(&long, &long[1..]));
        let unready = json!(["running", "", false, true, 0]);
        assert!(!same_course(&long, &[waiting, unready, ended]));
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
