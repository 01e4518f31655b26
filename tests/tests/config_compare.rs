//! Command lines and configuration files, put to the Go kubelet and to ours: exit code, texts, log
//! lines and settings in force must be the same.
//!
//! `make config-compare` makes thousands (`CASES=n`, `SEED=n`); within `make test` it is fewer.
//! `FIRST=n` begins at that case, `ONLY=n,n` takes those alone, `REPORT=file` writes what differs to
//! a file. `RECORD=file` asks the Go kubelet alone and writes its answers, which
//! `crates/config` replays.
//!
//! With `STARTED=n` so many more have a container runtime to go on with: how they end is compared.
#![forbid(unsafe_code)]
#![expect(clippy::disallowed_methods, reason = "a test on the real machine")]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use testkit::real::{KubeletKind, Parts};
use tests::config_case::{Bench, Stage, differences, make, make_for_runtime};

fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

#[test]
fn both_kubelets_make_the_same_of_a_configuration() {
    let parts = Parts::find().unwrap();
    let go = KubeletKind::Go.program(&parts).unwrap();
    let ours = KubeletKind::Rubelet.program(&parts).unwrap();
    let (seed, first) = (number("SEED", 1), number("FIRST", 0));
    let only = std::env::var("ONLY").unwrap_or_default();
    let only: Vec<u64> = only.split(',').filter_map(|word| word.trim().parse().ok()).collect();
    let count = if only.is_empty() { number("CASES", 200) } else { only.len() as u64 };
    let next = AtomicU64::new(0);
    let found: Mutex<BTreeMap<u64, String>> = Mutex::new(BTreeMap::new());
    let record = std::env::var_os("RECORD");
    std::thread::scope(|scope| {
        for _ in 0..number("WORKERS", 2) {
            scope.spawn(|| {
                let bench = Bench::new().unwrap();
                loop {
                    let turn = next.fetch_add(1, Ordering::Relaxed);
                    if turn >= count {
                        break;
                    }
                    let named = usize::try_from(turn).ok().and_then(|turn| only.get(turn));
                    let n = named.copied().unwrap_or(first + turn);
                    let case = make(seed, n);
                    let theirs = bench.ask(&go, &case).unwrap();
                    if record.is_some() {
                        let mut whole = case.to_json();
                        whole["answer"] = theirs.to_json();
                        found.lock().unwrap().insert(n, format!("{whole}\n"));
                        continue;
                    }
                    let answer = bench.ask(&ours, &case).unwrap();
                    let differ = differences(&theirs, &answer);
                    if !differ.is_empty() {
                        let mut text = format!("case {n}: {}\n", case.to_json());
                        for difference in differ {
                            let _ = writeln!(text, "    {difference}");
                        }
                        found.lock().unwrap().insert(n, text);
                    }
                }
            });
        }
    });
    let found = found.into_inner().unwrap();
    let report: String = found.values().map(String::as_str).collect();
    if let Some(file) = record {
        std::fs::write(file, &report).unwrap();
        return;
    }
    if let Some(file) = std::env::var_os("REPORT") {
        std::fs::write(file, &report).unwrap();
    }
    println!("{count} cases of seed {seed}, {} differ", found.len());
    let shown: String = report.chars().take(20_000).collect();
    assert!(found.is_empty(), "{} of {count} cases differ:\n{shown}", found.len());
}

#[test]
fn both_kubelets_end_alike_when_there_is_a_runtime() {
    let parts = Parts::find().unwrap();
    let go = KubeletKind::Go.program(&parts).unwrap();
    let ours = KubeletKind::Rubelet.program(&parts).unwrap();
    let (seed, first) = (number("SEED", 1), number("FIRST", 0));
    let only = std::env::var("ONLY").unwrap_or_default();
    let only: Vec<u64> = only.split(',').filter_map(|word| word.trim().parse().ok()).collect();
    let count = if only.is_empty() { number("STARTED", 20) } else { only.len() as u64 };
    let next = AtomicU64::new(0);
    let running = AtomicU64::new(0);
    let found: Mutex<BTreeMap<u64, String>> = Mutex::new(BTreeMap::new());
    std::thread::scope(|scope| {
        for _ in 0..number("WORKERS", 2) {
            scope.spawn(|| {
                let stage = Stage::new().unwrap();
                loop {
                    let turn = next.fetch_add(1, Ordering::Relaxed);
                    if turn >= count {
                        break;
                    }
                    let named = usize::try_from(turn).ok().and_then(|turn| only.get(turn));
                    let n = named.copied().unwrap_or(first + turn);
                    let case = make_for_runtime(seed, n);
                    let theirs = stage.ask(&go, &case).unwrap();
                    let answer = stage.ask(&ours, &case).unwrap();
                    running.fetch_add(u64::from(theirs.code.is_none()), Ordering::Relaxed);
                    let mut differ = differences(&theirs, &answer);
                    // Of several faults in one map the Go kubelet names any.
                    for _ in 0..4 {
                        if !differ.is_empty() && answer.code.is_some() && theirs.code.is_some() {
                            let again = differences(&stage.ask(&go, &case).unwrap(), &answer);
                            differ = if again.is_empty() { again } else { differ };
                        }
                    }
                    if !differ.is_empty() {
                        let mut text = format!("case {n}: {}\n", case.to_json());
                        for difference in differ {
                            let _ = writeln!(text, "    {difference}");
                        }
                        found.lock().unwrap().insert(n, text);
                    }
                }
            });
        }
    });
    let found = found.into_inner().unwrap();
    let report: String = found.values().map(String::as_str).collect();
    if let Some(file) = std::env::var_os("REPORT_STARTED") {
        std::fs::write(file, &report).unwrap();
    }
    let running = running.into_inner();
    println!("{count} cases with a runtime of seed {seed}, {running} run, {} differ", found.len());
    let shown: String = report.chars().take(20_000).collect();
    assert!(found.is_empty(), "{} of {count} cases differ:\n{shown}", found.len());
}
