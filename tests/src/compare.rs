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
    /// Some container ended within a moment of its start: who looks may or may not see it run.
    pub brief: bool,
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

/// Everything that differs.
#[must_use]
pub fn compare(golden: &Golden, observed: &Observed) -> Vec<Difference> {
    let mut found = Vec::new();
    let cycles = golden.cycles;
    let (expected, got) = (calls(golden, &golden.cri), calls(golden, &observed.cri));
    compare_calls(&expected, &got, cycles, &mut found);
    if !cycles {
        compare_probes(&probes(golden, &golden.cri), &probes(golden, &observed.cri), &mut found);
        let clean = |list: &[Value]| without_probes(golden, list);
        compare_clean_up(&clean(&golden.cri), &clean(&observed.cri), &mut found);
    }
    compare_steps(golden, observed, &mut found);
    if !cycles {
        let (expected, got) = (status(&golden.status), status(&observed.status));
        diff("status", &expected, &got, &mut found);
    }
    compare_events(&golden.events, &observed.events, cycles, &mut found);
    found
}

/// Calls in a comparable order, without the clean-up at the end and without probes, which come when
/// they come: containers of one pod are stopped, and run their hooks, in no particular order.
fn calls(golden: &Golden, list: &[Value]) -> Vec<Value> {
    let mut calls = without_probes(golden, list);
    calls.truncate(clean_up_start(&calls));
    let ends = |call: &Value| call["method"] == "StopContainer" || call["method"] == "ExecSync";
    for run in calls.chunk_by_mut(|a, b| ends(a) && ends(b)) {
        run.sort_by_key(|call| call["request"]["container_id"].to_string());
    }
    calls
}

fn without_probes(golden: &Golden, list: &[Value]) -> Vec<Value> {
    let mut calls: Vec<Value> = Vec::new();
    for call in list.iter().filter(|call| !is_probe(golden, call)).map(blind) {
        // Two of the Go kubelet's tasks may remove a dead container at the same time.
        let again =
            call["method"] == "RemoveContainer" && calls.iter().any(|c| same_call(c, &call));
        if !again {
            calls.push(call);
        }
    }
    removals_last(calls)
}

/// Dead containers are removed by a task of its own: once nothing more is begun, it may do so before or
/// after the others are stopped.
fn removals_last(calls: Vec<Value>) -> Vec<Value> {
    let ends =
        ["StopContainer", "ExecSync", "StopPodSandbox", "RemoveContainer", "RemovePodSandbox"];
    let is_end = |call: &&Value| ends.iter().any(|method| call["method"] == *method);
    let begun = calls.len() - calls.iter().rev().take_while(is_end).count();
    let mut last = calls;
    let (removals, mut rest): (Vec<_>, Vec<_>) =
        last.split_off(begun).into_iter().partition(|call| call["method"] == "RemoveContainer");
    last.append(&mut rest);
    last.extend(removals);
    last
}

/// The same request, whatever came of it.
fn same_call(a: &Value, b: &Value) -> bool {
    a["method"] == b["method"] && a["request"] == b["request"]
}

/// The different answers of probes, up to the end of the first container that is stopped.
fn probes(golden: &Golden, list: &[Value]) -> Vec<Value> {
    let until = list.iter().position(|call| call["method"] == "StopContainer");
    let mut probes: Vec<Value> = Vec::new();
    for call in list[..until.unwrap_or(list.len())].iter().filter(|c| is_probe(golden, c)) {
        let mut call = blind(call);
        if let Some(fields) = call.as_object_mut() {
            // How a command fails that cannot be begun or ended in time is the runtime's matter.
            fields.remove("error");
        }
        if !probes.contains(&call) {
            probes.push(call);
        }
    }
    probes
}

/// Whether a call carries out a probe of this pod.
fn is_probe(golden: &Golden, call: &Value) -> bool {
    let spec = &golden.pod["spec"];
    let lists = ["containers", "initContainers"];
    let containers = lists.iter().filter_map(|list| spec[list].as_array()).flatten();
    let kinds = ["livenessProbe", "readinessProbe", "startupProbe"];
    let mut execs = containers.flat_map(|c| kinds.map(|kind| &c[kind]["exec"]));
    call["method"] == "ExecSync"
        && execs.any(|exec| exec.is_object())
        && call["request"].get("timeout").is_some()
}

fn compare_probes(golden: &[Value], ours: &[Value], found: &mut Vec<Difference>) {
    // One that was under way when the pod ended may be the only one with its answer.
    let ended = |call: &Value| call.get("exit_code").is_none();
    for (a, b, expected) in [(golden, ours, true), (ours, golden, false)] {
        for call in a.iter().filter(|call| !(b.contains(call) || b.len() < a.len() && ended(call)))
        {
            let (golden, observed) = if expected {
                (call.to_string(), String::new())
            } else {
                (String::new(), call.to_string())
            };
            found.push(Difference { at: "cri probes".to_owned(), golden, observed });
        }
    }
}

/// Without identifiers that the runtime makes up for itself.
fn blind(value: &Value) -> Value {
    match value {
        Value::String(text) => Value::String(without_ids(text)),
        Value::Array(list) => list.iter().map(blind).collect(),
        Value::Object(map) => map.iter().map(|(k, v)| (k.clone(), blind(v))).collect(),
        other => other.clone(),
    }
}

/// 64 hex digits in a row name something of this one run.
fn without_ids(text: &str) -> String {
    let (mut out, mut rest) = (String::new(), text);
    while !rest.is_empty() {
        let hex = rest.bytes().take_while(u8::is_ascii_hexdigit).count();
        if hex == 64 {
            out.push_str("$ID");
        } else {
            out.push_str(&rest[..hex]);
        }
        rest = &rest[hex..];
        let other = rest.find(|c: char| c.is_ascii_hexdigit()).unwrap_or(rest.len());
        out.push_str(&rest[..other]);
        rest = &rest[other..];
    }
    out
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

/// Nothing may be cleaned up that the record does not clean up, nor more often. Only what the record ends too
/// early to see collected may be: a dead sandbox, stopped once more and removed, and a container that was
/// stopped, removed.
fn compare_clean_up(golden: &[Value], ours: &[Value], found: &mut Vec<Difference>) {
    let mut left: Vec<&Value> = golden[clean_up_start(golden)..].iter().collect();
    let mut collected: Vec<&Value> = Vec::new();
    let recorded = |method: &str, call: &Value| {
        golden.iter().any(|known| known["method"] == method && known["request"] == call["request"])
    };
    let stopped = |call: &Value| {
        let id = &call["request"]["container_id"];
        let mut stops = golden.iter().filter(|known| known["method"] == "StopContainer");
        stops.any(|stop| stop["request"]["container_id"] == *id)
    };
    let may_be_collected = |call: &Value| match call["method"].as_str() {
        Some("StopPodSandbox" | "RemovePodSandbox") => {
            recorded("StopPodSandbox", call) && !recorded("RemovePodSandbox", call)
        }
        Some("RemoveContainer") => stopped(call) && !recorded("RemoveContainer", call),
        _ => false,
    };
    for call in &ours[clean_up_start(ours)..] {
        match left.iter().position(|known| *known == call) {
            Some(index) => drop(left.remove(index)),
            None if may_be_collected(call) && !collected.contains(&call) => collected.push(call),
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
        if method == "RemoveContainer" {
            // Two of the Go kubelet's tasks may do it at the same time; one then gets an error.
            continue;
        }
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

/// Two things may change in one step or in two, so each thing is followed on its own: every container,
/// every condition, the phase. All must come in the record's order. Where a container ended within a
/// moment, its `running` (and the readiness that goes with it) may be missing on either side; what
/// cycles may have been stopped at another point.
fn compare_steps(golden: &Golden, observed: &Observed, found: &mut Vec<Difference>) {
    let before_end = |steps: &[Value], status: &Value| {
        // What cycles was ended at some point: compare up to there.
        let last = crate::golden::short_status(status);
        let until = steps.iter().rposition(|step| *step == last).map_or(steps.len(), |at| at + 1);
        courses(if golden.cycles { &steps[..until] } else { steps })
    };
    let expected = before_end(&golden.steps, &golden.status);
    let got = before_end(&observed.steps, &observed.status);
    let mut names: Vec<_> = expected.keys().chain(got.keys()).collect();
    names.sort();
    names.dedup();
    let rule = Rule { skip: observed.brief, prefix: golden.cycles };
    for name in names {
        let empty = Vec::new();
        let (a, b) = (expected.get(name).unwrap_or(&empty), got.get(name).unwrap_or(&empty));
        if !same_course(a, b, rule) {
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

/// How two courses may differ.
#[derive(Debug, Clone, Copy, Default)]
struct Rule {
    /// One side may have been running for a moment that the other missed.
    skip: bool,
    /// One side may have been stopped earlier.
    prefix: bool,
}

/// Whether two courses are the same, but for what the rule allows.
fn same_course(a: &[Value], b: &[Value], rule: Rule) -> bool {
    // A phase, a container's state, a Ready condition.
    let passing = |x: &Value| x == "Running" || x[0] == "running" || x[0] == "True";
    // What passed on this side only.
    let missed = |course: &[Value], other: &[Value]| -> Vec<Value> {
        let before_last = &course[..course.len().saturating_sub(1)];
        before_last
            .iter()
            .filter(|x| rule.skip && passing(x) && !other.contains(x))
            .cloned()
            .collect()
    };
    let (only_a, only_b) = (missed(a, b), missed(b, a));
    if !only_a.is_empty() && !only_b.is_empty() {
        return false;
    }
    let shown = |course: &[Value]| -> Vec<Value> {
        let skipped = |x: &Value| only_a.contains(x) || only_b.contains(x);
        let mut kept: Vec<Value> = course.iter().filter(|x| !skipped(x)).cloned().collect();
        kept.dedup();
        at_once(kept)
    };
    let (shown_a, shown_b) = (shown(a), shown(b));
    let same = shown_a == shown_b || (rule.skip && loosely(&shown_a) == loosely(&shown_b));
    same || (rule.prefix && (shown_a.starts_with(&shown_b) || shown_b.starts_with(&shown_a)))
}

/// A condition that holds again and again for moments: only its other values count.
fn loosely(course: &[Value]) -> Vec<Value> {
    let last = course.len().saturating_sub(1);
    let stays = |(at, x): &(usize, &Value)| *at == last || x[0] != "True";
    let mut kept: Vec<Value> =
        course.iter().enumerate().filter(stays).map(|(_, x)| x.clone()).collect();
    kept.dedup();
    kept
}

/// A container that starts and gets ready may show it in one step or in two.
pub(crate) fn at_once(mut course: Vec<Value>) -> Vec<Value> {
    let started = |x: &Value| x[0] == "running" && x[2] == false && x[3] == true;
    let ready = |x: &Value| x[0] == "running" && x[2] == true && x[3] == true;
    let unstarted = |x: &Value| x[0] == "running" && x[3] == false;
    let mut at = 1;
    while at + 1 < course.len() {
        if unstarted(&course[at - 1]) && started(&course[at]) && ready(&course[at + 1]) {
            course.remove(at);
        } else {
            at += 1;
        }
    }
    course
}

/// As sets: two containers of a pod report in no particular order, and counts depend on timing.
fn compare_events(golden: &[Value], ours: &[Value], cycles: bool, found: &mut Vec<Difference>) {
    // After a resize the Go kubelet reports the old values as completed once more in some runs.
    let twice = |event: &&Value| event["reason"] == "ResizeCompleted";
    let once = |events: &[Value]| -> Vec<Value> {
        let last = events.iter().rfind(|event| twice(event));
        events.iter().filter(|e| !twice(e) || last == Some(e)).cloned().collect()
    };
    let (golden, ours) = (once(golden), once(ours));
    let lines = |events: &[Value]| {
        // Whether a server is asked before it listens or after it ended is a matter of luck.
        let early = |e: &&Value| {
            let message = e["message"].as_str().unwrap_or_default();
            let texts = [
                "dial tcp",
                "connection reset by peer",
                "failed to connect service",
                // One that was under way when its container or its worker ended.
                "context canceled",
                "CONTAINER_EXITED state",
                "process is not running",
                "cannot exec in a",
                "no running task found",
                "failed to create exec",
                "ttrpc: closed",
            ];
            e["reason"] == "Unhealthy" && texts.iter().any(|text| message.contains(text))
        };
        let mut lines: Vec<String> =
            events.iter().filter(|event| !early(event)).map(event_line).collect();
        lines.sort();
        lines.dedup();
        lines
    };
    let (expected, got) = (lines(&golden), lines(&ours));
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
    let message = without_ids(&without_times(&numbers_of_others(text("message"))));
    format!("{} {reason} {} {message}", text("type"), text("field"))
}

/// How long a pull took.
fn without_times(message: &str) -> String {
    let Some((before, rest)) = message.split_once("\" in ") else { return message.to_owned() };
    match rest.split_once(" including waiting)") {
        Some((_, after)) => format!("{before}\" in T (T including waiting){after}"),
        None => message.to_owned(),
    }
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
mod tests;
