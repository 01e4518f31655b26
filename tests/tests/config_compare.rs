//! Command lines and configuration files, put to the Go kubelet and to ours: exit code, texts, log
//! lines and settings in force must be the same.
//!
//! `make config-compare` makes thousands (`CASES=n`, `SEED=n`); within `make test` it is fewer.
//! `FIRST=n` begins at that case, `ONLY=n,n` takes those alone, `FROM=file` takes cases from a file, one a
//! line in the form of a report (`FROM_STARTED=file` those with a runtime); `REPORT=file` writes what differs to a file. `RECORD=file` asks the Go kubelet alone and writes its answers, which
//! `crates/config` replays.
//!
//! With `STARTED=n` so many more have a container runtime to go on with: how they end is compared.
#![forbid(unsafe_code)]
#![expect(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "a test on the real machine, which tells people what it found"
)]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use testkit::real::{KubeletKind, Parts};
use tests::config_case::{Bench, Case, Stage, differences, make, make_for_runtime};

fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

/// The cases of the file that the environment names under this name.
fn given(name: &str) -> Option<Vec<Case>> {
    let file = std::env::var_os(name)?;
    let text = std::fs::read_to_string(file).unwrap();
    let case = |line: &str| Case::from_json(&serde_json::from_str(line).unwrap()).unwrap();
    Some(text.lines().filter(|line| !line.is_empty()).map(case).collect())
}

/// The programs to compare, and which cases.
struct Comparison {
    go: PathBuf,
    ours: PathBuf,
    seed: u64,
    first: u64,
    only: Vec<u64>,
    count: u64,
}

impl Comparison {
    /// As many cases as the environment asks for under this name, or those it names.
    fn new(count: &str, otherwise: u64) -> Comparison {
        let parts = Parts::find().unwrap();
        let only = std::env::var("ONLY").unwrap_or_default();
        let only: Vec<u64> = only.split(',').filter_map(|word| word.trim().parse().ok()).collect();
        Comparison {
            go: KubeletKind::Go.program(&parts).unwrap(),
            ours: KubeletKind::Rubelet.program(&parts).unwrap(),
            seed: number("SEED", 1),
            first: number("FIRST", 0),
            count: if only.is_empty() { number(count, otherwise) } else { only.len() as u64 },
            only,
        }
    }

    /// All of these, if some are given and none is named.
    fn among(self, given: Option<&[Case]>) -> Comparison {
        let all = given.filter(|_| self.only.is_empty()).map(|given| given.len() as u64);
        Comparison { count: all.unwrap_or(self.count), ..self }
    }

    /// What is to be told of each case, by its number. Each worker has a place of its own.
    fn each<P>(
        &self,
        place: impl Fn() -> anyhow::Result<P> + Sync,
        tell: impl Fn(&P, u64) -> Option<String> + Sync,
    ) -> BTreeMap<u64, String> {
        let next = AtomicU64::new(0);
        let told: Mutex<BTreeMap<u64, String>> = Mutex::new(BTreeMap::new());
        std::thread::scope(|scope| {
            for _ in 0..number("WORKERS", 2) {
                scope.spawn(|| {
                    let place = place().unwrap();
                    loop {
                        let turn = next.fetch_add(1, Ordering::Relaxed);
                        if turn >= self.count {
                            break;
                        }
                        let named = usize::try_from(turn).ok().and_then(|turn| self.only.get(turn));
                        let n = named.copied().unwrap_or(self.first + turn);
                        if let Some(text) = tell(&place, n) {
                            told.lock().unwrap().insert(n, text);
                        }
                    }
                });
            }
        });
        told.into_inner().unwrap()
    }

    /// Fails if any case differs; the whole is kept in the file that the environment names.
    fn judge(&self, kind: &str, file: &str, differing: &BTreeMap<u64, String>) {
        let report: String = differing.values().map(String::as_str).collect();
        if let Some(file) = std::env::var_os(file) {
            std::fs::write(file, &report).unwrap();
        }
        println!("{} {kind} of seed {}, {} differ", self.count, self.seed, differing.len());
        let shown: String = report.chars().take(20_000).collect();
        let (count, differ) = (self.count, differing.len());
        assert!(differing.is_empty(), "{differ} of {count} cases differ:\n{shown}");
    }
}

/// The given case of this number.
fn numbered(given: Option<&[Case]>, n: u64) -> Option<Case> {
    given?.get(usize::try_from(n).ok()?).cloned()
}

/// A case and its differences, if it has any.
fn told(n: u64, case: &Case, differ: &[String]) -> Option<String> {
    let mut text = format!("case {n}: {}\n", case.to_json());
    for difference in differ {
        let _ = writeln!(text, "    {difference}");
    }
    (!differ.is_empty()).then_some(text)
}

#[test]
fn both_kubelets_make_the_same_of_a_configuration() {
    let comparison = Comparison::new("CASES", 200);
    if let Some(file) = std::env::var_os("RECORD") {
        let answers = comparison.each(Bench::new, |bench, n| {
            let case = make(comparison.seed, n);
            let mut whole = case.to_json();
            whole["answer"] = bench.ask(&comparison.go, &case).unwrap().to_json();
            Some(format!("{whole}\n"))
        });
        std::fs::write(file, answers.into_values().collect::<String>()).unwrap();
        return;
    }
    let given = given("FROM");
    let comparison = comparison.among(given.as_deref());
    let differing = comparison.each(Bench::new, |bench, n| {
        let case = numbered(given.as_deref(), n).unwrap_or_else(|| make(comparison.seed, n));
        let theirs = bench.ask(&comparison.go, &case).unwrap();
        told(n, &case, &differences(&theirs, &bench.ask(&comparison.ours, &case).unwrap()))
    });
    comparison.judge("cases", "REPORT", &differing);
}

#[test]
fn both_kubelets_end_alike_when_there_is_a_runtime() {
    let given = given("FROM_STARTED");
    let comparison = Comparison::new("STARTED", 20).among(given.as_deref());
    let running = AtomicU64::new(0);
    let differing = comparison.each(Stage::new, |stage, n| {
        let case =
            numbered(given.as_deref(), n).unwrap_or_else(|| make_for_runtime(comparison.seed, n));
        let theirs = stage.ask(&comparison.go, &case).unwrap();
        let answer = stage.ask(&comparison.ours, &case).unwrap();
        running.fetch_add(u64::from(theirs.code.is_none()), Ordering::Relaxed);
        let mut differ = differences(&theirs, &answer);
        // Of several faults in one map the Go kubelet names any.
        for _ in 0..4 {
            if !differ.is_empty() && answer.code.is_some() && theirs.code.is_some() {
                let again = differences(&stage.ask(&comparison.go, &case).unwrap(), &answer);
                differ = if again.is_empty() { again } else { differ };
            }
        }
        told(n, &case, &differ)
    });
    println!("{} run with the Go kubelet", running.into_inner());
    comparison.judge("cases with a runtime", "REPORT_STARTED", &differing);
}
