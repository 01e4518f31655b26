//! Pods drawn by chance under both kubelets on real parts: CRI calls, statuses and events must be
//! those of the Go kubelet.
//!
//! `make pod-compare` draws `PODS=n` of them from the number `SEED=n` on; what differs is told with
//! the number that draws it again (`PODS=1 SEED=k`). `ONLY=k,k` takes those alone, `KEEP=folder`
//! writes a golden record of each that differs, `WORKERS=n` says how many are under way at a time.
//! A pod that differs is run a second time under both: what the Go kubelet does not repeat is no
//! difference.
#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, reason = "tells people what it found")]
#![expect(clippy::expect_used, clippy::disallowed_methods, reason = "a test in real time")]

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::Value;
use testkit::real::KubeletKind;
use tests::bed::Bed;
use tests::compare::{Difference, Observed, compare};
use tests::differences::is_on_purpose;
use tests::golden::{Golden, short_status};
use tests::pod_case::{HOST_FOLDER, make};

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
    go: Bed,
    ours: Bed,
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
    let (go, ours) = std::thread::scope(|scope| {
        let go = scope.spawn(|| Bed::start(KubeletKind::Go));
        let ours = Bed::start(KubeletKind::Rubelet);
        (go.join().expect("a thread"), ours)
    });
    let beds = Beds {
        go: go.expect("a node for the Go kubelet"),
        ours: ours.expect("a node for rubelet"),
    };
    let verdicts = run_all(&beds, &seeds, workers);
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
    let drawn = match make(seed) {
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
    // What two runs of the Go kubelet differ in says nothing.
    let itself: Vec<String> =
        found(&golden, &again.as_observed()).into_iter().map(|found| found.at).collect();
    let second = differences(&again, beds.ours.follow(&again));
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
