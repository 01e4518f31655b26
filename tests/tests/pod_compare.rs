//! Pods drawn by chance under both kubelets on real parts: CRI calls, statuses and events must be
//! those of the Go kubelet.
//!
//! `make pod-compare` draws `PODS=n` of them from the number `SEED=n` on; what differs is told with
//! the number that draws it again (`PODS=1 SEED=k`). `ONLY=k,k` takes those alone, `KEEP=folder`
//! writes a golden record of each that differs, `WORKERS=n` says how many are under way at a time.
//! A pod that differs is run a second time under both: what the Go kubelet does not repeat is no
//! difference.
//!
//! Nodes of another kind: `CONFIG={…}` is laid over the configuration of both kubelets, `API_GATES=a=true,…`
//! are gates of the API server, `MANIFESTS=1` has the pods as manifests of the node, and `RESTART=1` kills
//! both kubelets once while the pods of a batch rest, and has clients act while they are down.
#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, reason = "tells people what it found")]
#![expect(clippy::expect_used, clippy::disallowed_methods, reason = "a test in real time")]

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};
use testkit::real::KubeletKind;
use tests::compare::{Difference, Observed, compare};
use tests::differences::is_on_purpose;
use tests::golden::{Golden, short_status};
use tests::pod_case::{HOST_FOLDER, make};
use tests::recording_node::{RecordingNode, Ways};
use tests::script::Step;

/// So many events of one pod the Go kubelet sends at once, before it drops more (client-go: `defaultSpamBurst`).
const SPAM: u64 = 25;

/// How a pod ended.
enum Verdict {
    Same,
    /// Only at the second run, or in what the Go kubelet does not repeat.
    Luck(Vec<Difference>),
    Differs(Box<Golden>, Vec<Difference>),
    /// The API server or the Go kubelet does not get it that far.
    Unusable(anyhow::Error),
}

struct Beds {
    go: RecordingNode,
    ours: RecordingNode,
}

fn main() -> ExitCode {
    let number = |name: &str, otherwise: u64| {
        std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
    };
    let (first, count) = (number("SEED", 1), number("PODS", 100));
    let only = std::env::var("ONLY").unwrap_or_default();
    let only: Vec<u64> = only.split(',').filter_map(|word| word.trim().parse().ok()).collect();
    let seeds = if only.is_empty() { (first..first + count).collect() } else { only };
    let workers = number("WORKERS", 12);
    let ways = ways();
    let (go, ours) = std::thread::scope(|scope| {
        let go = scope.spawn(|| RecordingNode::start_with(KubeletKind::Go, &ways));
        let ours = RecordingNode::start_with(KubeletKind::Rubelet, &ways);
        (go.join().expect("a thread"), ours)
    });
    let mut beds = Beds {
        go: go.expect("a node for the Go kubelet"),
        ours: ours.expect("a node for rubelet"),
    };
    let verdicts = if std::env::var_os("RESTART").is_some() {
        restart_all(&mut beds, &seeds, usize::try_from(workers).unwrap_or(12))
    } else {
        run_all(&beds, &seeds, workers)
    };
    drop(std::fs::remove_dir_all(HOST_FOLDER));
    let differ = verdicts.values().filter(|v| matches!(v, Verdict::Differs(..))).count();
    let unusable = verdicts.values().filter(|v| matches!(v, Verdict::Unusable(_))).count();
    let luck = verdicts.values().filter(|v| matches!(v, Verdict::Luck(_))).count();
    println!(
        "{} pods from {}: {differ} differ, {luck} only once, {unusable} could not be compared",
        seeds.len(),
        seeds.first().unwrap_or(&0),
    );
    if differ == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The nodes that the caller wants.
fn ways() -> Ways {
    let text = |name: &str| std::env::var(name).unwrap_or_default();
    let config = text("CONFIG");
    let config = if config.is_empty() { "{}".to_owned() } else { config };
    let gates = text("API_GATES");
    Ways {
        config: serde_json::from_str(&config).expect("CONFIG is JSON"),
        api_server_args: (!gates.is_empty())
            .then(|| format!("--feature-gates={gates}"))
            .into_iter()
            .collect(),
        manifests: std::env::var_os("MANIFESTS").is_some(),
    }
}

/// The pod of this number, as the nodes get it.
fn drawn(seed: u64) -> anyhow::Result<Golden> {
    let mut drawn = make(seed)?;
    if std::env::var_os("MANIFESTS").is_some() {
        // Nobody but the node changes such a pod, and it refers to nothing that the API has.
        drawn.script.clear();
        without_references(&mut drawn.pod["spec"]);
    }
    Ok(drawn)
}

/// Takes from a pod all that refers to objects of the API.
fn without_references(spec: &mut Value) {
    let foreign = ["onfigMap", "ecret", "serviceAccount", "esourceClaim", "olumeClaim", "claims"];
    let refers = |value: &Value| foreign.iter().any(|word| value.to_string().contains(word));
    if let Some(fields) = spec.as_object_mut() {
        let gone =
            ["imagePullSecrets", "resourceClaims", "serviceAccountName", "priorityClassName"];
        fields.retain(|name, _| !gone.contains(&name.as_str()));
    }
    for list in ["containers", "initContainers"] {
        for one in spec[list].as_array_mut().into_iter().flatten() {
            if let Some(fields) = one.as_object_mut() {
                fields.remove("envFrom");
            }
            if let Some(env) = one.get_mut("env").and_then(Value::as_array_mut) {
                env.retain(|variable| !refers(variable));
            }
        }
    }
    for volume in spec["volumes"].as_array_mut().into_iter().flatten().filter(|v| refers(v)) {
        *volume = json!({ "name": volume["name"], "emptyDir": {} });
    }
}

/// Takes pods through a restart of the kubelet, a batch at a time, each batch twice where something differs.
fn restart_all(beds: &mut Beds, seeds: &[u64], batch: usize) -> BTreeMap<u64, Verdict> {
    let mut verdicts = BTreeMap::new();
    for seeds in seeds.chunks(batch) {
        let pods: Vec<(u64, Golden)> = seeds
            .iter()
            .filter_map(|seed| {
                let mut drawn = drawn(*seed).ok()?;
                drawn.script = while_down(*seed).ok()?;
                Some((*seed, drawn))
            })
            .collect();
        let first = restart_once(beds, &pods);
        let differ = |seed: &u64| first.iter().any(|(of, one)| of == seed && !one.1.is_empty());
        let again: Vec<(u64, Golden)> =
            pods.iter().filter(|(seed, _)| differ(seed)).cloned().collect();
        let second = if again.is_empty() { Vec::new() } else { restart_once(beds, &again) };
        for (seed, (golden, found_first)) in first {
            let repeated = second.iter().find(|(of, _)| *of == seed);
            let verdict = match (found_first.is_empty(), repeated) {
                (true, _) => Verdict::Same,
                (false, None) => Verdict::Luck(found_first),
                (false, Some((_, (again, second)))) => {
                    twice(&golden, found_first, again.clone(), second.clone())
                }
            };
            tell(seed, &verdict);
            verdicts.insert(seed, verdict);
        }
    }
    verdicts
}

/// What is done to the pod of this number while no kubelet runs.
fn while_down(seed: u64) -> anyhow::Result<Vec<Step>> {
    let status =
        |status: Value| json!([{ "patch": { "status": status }, "subresource": "status" }]);
    let script = match seed % 8 {
        _ if std::env::var_os("MANIFESTS").is_some() => json!([]),
        0 => json!([{ "delete": 2 }]),
        1 => json!([{ "delete": 0 }]),
        2 => status(json!({ "phase": "Failed", "reason": "NodeLost", "message": "gone" })),
        3 => json!([{ "patch": { "metadata": { "labels": { "app": "other" } } } }]),
        _ => json!([]),
    };
    tests::script::steps(&json!({ "script": script }))
}

/// One batch through one restart of each kubelet; what the Go kubelet did, and what differs from it.
fn restart_once(beds: &mut Beds, pods: &[(u64, Golden)]) -> Vec<(u64, (Golden, Vec<Difference>))> {
    let Beds { go, ours } = beds;
    let (go, ours) = std::thread::scope(|scope| {
        let go = scope.spawn(|| through_restart(go, pods));
        let ours = through_restart(ours, pods);
        (go.join().expect("a thread"), ours)
    });
    let pairs = pods.iter().zip(go.into_iter().zip(ours));
    pairs
        .filter_map(|((seed, _), (go, ours))| {
            let golden = match go {
                Ok(golden) => golden,
                Err(error) => {
                    println!("pod {seed} ... not compared: {error:#}");
                    return None;
                }
            };
            let mut found = differences(&golden, ours.map(|seen| seen.as_observed()));
            // The Go kubelet forgets the address of a pod that is over; see `engine::status::generate`.
            found.retain(|one| !(one.at.starts_with("status/podIP") && one.golden == "null"));
            Some((*seed, (golden, found)))
        })
        .collect()
}

fn through_restart(
    recording_node: &mut RecordingNode,
    pods: &[(u64, Golden)],
) -> Vec<anyhow::Result<Golden>> {
    let begun = each(pods, |_, pod| recording_node.begin(pod));
    recording_node.go_down();
    let met = each(pods, |_, pod| recording_node.meddle(pod));
    recording_node.come_up().expect("the kubelet starts again");
    let met: Vec<_> = met.into_iter().map(|one| one.unwrap_or_default()).collect();
    let ended = each(pods, |at, pod| recording_node.finish(pod, met[at].clone()));
    begun.into_iter().zip(ended).map(|(begun, ended)| begun.and(ended)).collect()
}

/// Does something for each pod at the same time.
fn each<T: Send>(
    pods: &[(u64, Golden)],
    act: impl Fn(usize, &Golden) -> anyhow::Result<T> + Sync,
) -> Vec<anyhow::Result<T>> {
    std::thread::scope(|scope| {
        let act = &act;
        let threads: Vec<_> = pods
            .iter()
            .enumerate()
            .map(|(at, (_, pod))| scope.spawn(move || act(at, pod)))
            .collect();
        threads.into_iter().map(|one| one.join().expect("a thread")).collect()
    })
}

fn run_all(beds: &Beds, seeds: &[u64], workers: u64) -> BTreeMap<u64, Verdict> {
    let next = AtomicUsize::new(0);
    let verdicts: Mutex<BTreeMap<u64, Verdict>> = Mutex::default();
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                while let Some(seed) = seeds.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let verdict = judge(beds, *seed);
                    tell(*seed, &verdict);
                    verdicts.lock().expect("no worker panics").insert(*seed, verdict);
                }
            });
        }
    });
    verdicts.into_inner().expect("no worker panics")
}

fn judge(beds: &Beds, seed: u64) -> Verdict {
    let drawn = match drawn(seed) {
        Ok(drawn) => drawn,
        Err(error) => return Verdict::Unusable(error),
    };
    let golden = match beds.go.record(&drawn) {
        Ok(golden) => golden,
        Err(error) => return Verdict::Unusable(error),
    };
    let first = differences(&golden, beds.ours.follow(&golden));
    if first.is_empty() {
        return Verdict::Same;
    }
    let again = match beds.go.record(&drawn) {
        Ok(golden) => golden,
        Err(error) => return Verdict::Unusable(error),
    };
    let second = differences(&again, beds.ours.follow(&again));
    twice(&golden, first, again, second)
}

/// What is left of differences that were found once, after a second run of both.
fn twice(
    golden: &Golden,
    first: Vec<Difference>,
    again: Golden,
    second: Vec<Difference>,
) -> Verdict {
    // What two runs of the Go kubelet differ in says nothing.
    let itself: Vec<String> =
        found(golden, &again.as_observed()).into_iter().map(|found| found.at).collect();
    let known = |found: &Difference| first.iter().any(|other| other.at == found.at);
    let left: Vec<Difference> =
        second.into_iter().filter(|found| known(found) && !itself.contains(&found.at)).collect();
    if left.is_empty() { Verdict::Luck(first) } else { Verdict::Differs(Box::new(again), left) }
}

/// What is not meant to differ; a pod that never ends is a difference too.
fn differences(golden: &Golden, observed: anyhow::Result<Observed>) -> Vec<Difference> {
    match observed {
        Ok(seen) => {
            let all = found(golden, &seen).into_iter();
            all.filter(|one| !is_on_purpose(&golden.name, one)).collect()
        }
        Err(error) => vec![Difference {
            at: "life".to_owned(),
            golden: "came to its end".to_owned(),
            observed: format!("{error:#}"),
        }],
    }
}

/// A pod that waits between two attempts may have been deleted at another point of that cycle: then
/// only what cycles have in common is compared, and the status if it is of the same point.
fn found(golden: &Golden, seen: &Observed) -> Vec<Difference> {
    let mut all = compare(golden, seen);
    let end = short_status(&golden.status);
    let words = ["BackOff", "Error", "ErrImage"];
    let failed = |event: &Value| event["reason"].as_str().is_some_and(|r| r.starts_with("Failed"));
    let waits = words.iter().any(|word| end.to_string().contains(word))
        || restarts(&end) > 1
        || golden.events.iter().any(failed);
    if waits {
        let mut cycle = golden.clone();
        cycle.cycles = true;
        let common = compare(&cycle, seen);
        let same_point = short_status(&seen.status) == end;
        all.retain(|one| common.contains(one) || (same_point && one.at.starts_with("status")));
        // Whether there was something to stop at that point.
        all.retain(|one| {
            let mut lines = one.golden.lines().chain(one.observed.lines());
            one.at != "events" || lines.any(|line| !line.contains(" Killing "))
        });
    }
    // Both tell some things at every look at a pod, and of one pod not more than so much.
    let told =
        |events: &[Value]| -> u64 { events.iter().filter_map(|e| e["count"].as_u64()).sum() };
    let (go, ours) = (told(&golden.events), told(&seen.events));
    all.retain(|one| one.at != "events" || go < SPAM || !one.golden.is_empty());
    all.retain(|one| one.at != "events" || ours < SPAM || !one.observed.is_empty());
    all
}

/// The most restarts that a status in short form has of a container.
fn restarts(status: &Value) -> u64 {
    let lists = ["init", "main"].iter().filter_map(|list| status[list].as_object());
    lists.flat_map(|list| list.values()).filter_map(|one| one[4].as_u64()).max().unwrap_or(0)
}

fn tell(seed: u64, verdict: &Verdict) {
    let show = |found: &[Difference]| {
        for Difference { at, golden, observed } in found {
            println!("---- pod {seed}: {at}\n  go:\n    {golden}\n  rubelet:\n    {observed}");
        }
    };
    match verdict {
        Verdict::Same => println!("pod {seed} ... same"),
        Verdict::Luck(found) => {
            println!("pod {seed} ... same, or different each time");
            if std::env::var_os("LUCK").is_some() {
                show(found);
            }
        }
        Verdict::Unusable(error) => println!("pod {seed} ... not compared: {error:#}"),
        Verdict::Differs(golden, found) => {
            println!("pod {seed} ... DIFFERS");
            show(found);
            if let Some(folder) = std::env::var_os("KEEP") {
                let mut kept = golden.clone();
                kept.path = PathBuf::from(folder).join(format!("{}.json", golden.name));
                if let Err(error) = kept.write() {
                    println!("---- pod {seed}: {error:#}");
                }
            }
        }
    }
}
