//! A runner for scenarios that share what is slow to start: each of them counts as one test.
//!
//! Arguments are those of the standard runner as far as people use them: names to filter by,
//! `--exact`, `--list`.
#![expect(clippy::print_stdout, reason = "prints results as the standard test runner does")]

use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// One behaviour, shown on the shared stage.
#[derive(Debug)]
pub struct Scenario<S> {
    /// A sentence.
    pub name: &'static str,
    /// Fails with what was awaited in vain.
    pub run: fn(&S) -> anyhow::Result<()>,
}

/// Run the scenarios that the arguments select, at most `at_once` at a time.
pub fn run<S: Send + Sync>(
    scenarios: &[Scenario<S>],
    at_once: usize,
    start: impl FnOnce() -> anyhow::Result<S>,
) -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let has = |flag: &str| args.iter().any(|arg| arg == flag);
    let filters: Vec<&String> = args.iter().filter(|arg| !arg.starts_with('-')).collect();
    let matches = |name: &str| {
        filters.is_empty()
            || filters.iter().any(|f| if has("--exact") { name == *f } else { name.contains(*f) })
    };
    let wanted: Vec<&Scenario<S>> = scenarios.iter().filter(|s| matches(s.name)).collect();
    if has("--list") {
        wanted.iter().for_each(|scenario| println!("{}: test", scenario.name));
        return ExitCode::SUCCESS;
    }
    println!("\nrunning {} tests", wanted.len());
    let began = Instant::now();
    let failed = if wanted.is_empty() { 0 } else { run_all(&wanted, at_once, start) };
    println!(
        "\ntest result: {}. {} passed; {failed} failed; 0 ignored; 0 measured; {} filtered out; \
         finished in {:.2}s\n",
        if failed == 0 { "ok" } else { "FAILED" },
        wanted.len() - failed,
        scenarios.len() - wanted.len(),
        began.elapsed().as_secs_f64()
    );
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// How many failed.
fn run_all<S: Send + Sync>(
    scenarios: &[&Scenario<S>],
    at_once: usize,
    start: impl FnOnce() -> anyhow::Result<S>,
) -> usize {
    let stage = match start() {
        Ok(stage) => stage,
        Err(error) => {
            println!("---- nothing could be run: {error:#}");
            return scenarios.len();
        }
    };
    let (next, failed) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let work = || {
        while let Some(scenario) = scenarios.get(next.fetch_add(1, Ordering::Relaxed)) {
            let began = Instant::now();
            let outcome = (scenario.run)(&stage);
            let took = began.elapsed().as_secs_f64();
            match outcome {
                Ok(()) => println!("test {} ... ok ({took:.1}s)", scenario.name),
                Err(error) => {
                    failed.fetch_add(1, Ordering::Relaxed);
                    println!("test {} ... FAILED ({took:.1}s)\n{error:#}", scenario.name);
                }
            }
        }
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> =
            (0..at_once.min(scenarios.len())).map(|_| scope.spawn(work)).collect();
        for worker in workers {
            // A panic counts as one failure; what that worker would have run next, others run.
            if worker.join().is_err() {
                failed.fetch_add(1, Ordering::Relaxed);
            }
        }
    });
    let failed = failed.into_inner();
    if failed > 0 {
        // The stage's slots keep their logs when a panic takes them down.
        let _reported = std::thread::scope(|scope| {
            scope
                .spawn(move || {
                    let _stage = stage;
                    panic!("{failed} scenarios failed")
                })
                .join()
        });
    }
    failed
}
