//! `xtask fuzz`: every target of `fuzz/` under libFuzzer, two at a time, and a table of what was seen.
//!
//! The targets are one program, built with the compiler's coverage counters (what `cargo fuzz` does, with flags
//! that a stable compiler has). `MINUTES=n` or `SECONDS=n` is how long each runs, `TARGET=name,…` takes those
//! alone, `KEEP=1` adds inputs that reach new code to the seeds. An input that fails is kept in the target's
//! folder of seeds as `finding-…`, where the next run begins with it.
#![expect(
    clippy::disallowed_methods,
    reason = "a developer's tool: it blocks, and names the paths itself"
)]

use std::collections::VecDeque;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::thread;

use anyhow::{Context as _, Result, bail, ensure};

/// What makes libFuzzer see which code an input reaches.
const FLAGS: [&str; 8] = [
    "--cfg",
    "fuzzing",
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "-Cllvm-args=-simplifycfg-branch-fold-threshold=0",
];
/// Seconds that one input may take.
const SLOWEST: u64 = 10;
/// Megabytes that the whole program may use.
const MOST_MEMORY: u64 = 1024;
/// Bytes of an input.
const LONGEST: usize = 1 << 16;
const AT_A_TIME: usize = 2;

/// What came of one target.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Outcome {
    name: String,
    inputs: u64,
    covered: u64,
    /// The end of what the program said, if it failed.
    failure: Option<String>,
}

pub(crate) fn run(root: &Path) -> Result<()> {
    let seconds = match (number("SECONDS")?, number("MINUTES")?) {
        (Some(seconds), _) => seconds,
        (None, Some(minutes)) => minutes * 60,
        (None, None) => 60,
    };
    let program = build(root)?;
    let names = targets(&program)?;
    let only = std::env::var("TARGET").unwrap_or_default();
    let wanted = |name: &String| only.is_empty() || only.split(',').any(|own| own == name);
    let names: Vec<String> = names.into_iter().filter(wanted).collect();
    ensure!(!names.is_empty(), "there is no target {only:?}");
    say(&format!("{} targets, {seconds} s each, {AT_A_TIME} at a time", names.len()));
    let queue = Mutex::new(VecDeque::from(names));
    let outcomes = Mutex::new(Vec::new());
    thread::scope(|scope| {
        let work = || -> Result<()> {
            loop {
                let next = queue.lock().ok().and_then(|mut queue| queue.pop_front());
                let Some(name) = next else { return Ok(()) };
                let outcome = one(root, &program, &name, seconds)?;
                say(&line(&outcome));
                if let Ok(mut outcomes) = outcomes.lock() {
                    outcomes.push(outcome);
                }
            }
        };
        let running: Vec<_> = (0..AT_A_TIME).map(|_| scope.spawn(work)).collect();
        let joined = |thread: thread::ScopedJoinHandle<'_, Result<()>>| {
            thread.join().unwrap_or_else(|_| bail!("a runner panicked"))
        };
        running.into_iter().try_for_each(joined)
    })?;
    let outcomes = outcomes.into_inner().unwrap_or_default();
    let failed: Vec<&Outcome> = outcomes.iter().filter(|o| o.failure.is_some()).collect();
    for outcome in &failed {
        say(&format!("──── {}\n{}", outcome.name, outcome.failure.as_deref().unwrap_or_default()));
    }
    let inputs: u64 = outcomes.iter().map(|outcome| outcome.inputs).sum();
    say(&format!("{} targets, {inputs} inputs, {} findings", outcomes.len(), failed.len()));
    ensure!(failed.is_empty(), "an input that fails is in the folder of its target");
    Ok(())
}

/// Builds the targets; the program.
fn build(root: &Path) -> Result<PathBuf> {
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let target = target.join("fuzz");
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(root.join("fuzz")).env("CARGO_TARGET_DIR", &target);
    cargo.env("CARGO_ENCODED_RUSTFLAGS", FLAGS.join("\u{1f}"));
    // For a named machine: build scripts and macros are then built without those flags.
    let machine = machine()?;
    cargo.args(["build", "--release", "--locked", "--quiet", "--target", &machine]);
    ensure!(cargo.status().context("run cargo build")?.success(), "the fuzz targets do not build");
    Ok(target.join(machine).join("release/targets"))
}

/// The kind of machine that the compiler builds for.
fn machine() -> Result<String> {
    let told = Command::new("rustc").arg("-vV").output().context("ask the compiler")?;
    let text = String::from_utf8_lossy(&told.stdout).into_owned();
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).context("the compiler does not tell its host")
}

/// The names of the targets.
fn targets(program: &Path) -> Result<Vec<String>> {
    let listed = Command::new(program).output().context("list the fuzz targets")?;
    let text = String::from_utf8_lossy(&listed.stdout).into_owned();
    Ok(text.lines().map(str::to_owned).collect())
}

fn one(root: &Path, program: &Path, name: &str, seconds: u64) -> Result<Outcome> {
    let seeds = root.join("fixtures/fuzz").join(name);
    fs::create_dir_all(&seeds).with_context(|| format!("create {}", seeds.display()))?;
    // What is found is kept beside the build, unless it is to be kept in the tree.
    let found = program.with_file_name(format!("corpus-{name}"));
    fs::create_dir_all(&found).with_context(|| format!("create {}", found.display()))?;
    let ended = Command::new(program)
        .env("FUZZ_TARGET", name)
        .arg(format!("-max_total_time={seconds}"))
        .arg(format!("-timeout={SLOWEST}"))
        .arg(format!("-rss_limit_mb={MOST_MEMORY}"))
        .arg(format!("-max_len={LONGEST}"))
        .arg(format!("-artifact_prefix={}/finding-", seeds.display()))
        .args(["-print_final_stats=1", "-verbosity=1"])
        .args([&found, &seeds])
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("run the target {name}"))?;
    if std::env::var_os("KEEP").is_some() {
        keep(program, name, &found, &seeds)?;
    }
    let said = String::from_utf8_lossy(&ended.stderr);
    let failure = (!ended.status.success()).then(|| {
        let lines: Vec<&str> = said.lines().collect();
        lines.get(lines.len().saturating_sub(40)..).unwrap_or_default().join("\n")
    });
    Ok(Outcome {
        name: name.to_owned(),
        inputs: stat(&said, "stat::number_of_executed_units:").unwrap_or_default(),
        covered: covered(&said),
        failure,
    })
}

/// Adds the fewest inputs to the seeds that reach what was found.
fn keep(program: &Path, name: &str, found: &Path, seeds: &Path) -> Result<()> {
    let merged = Command::new(program)
        .env("FUZZ_TARGET", name)
        .args(["-merge=1", &format!("-max_len={LONGEST}")])
        .args([seeds, found])
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("merge the inputs of {name}"))?;
    ensure!(merged.status.success(), "{}", String::from_utf8_lossy(&merged.stderr));
    Ok(())
}

/// A number that the program tells at its end.
fn stat(said: &str, name: &str) -> Option<u64> {
    said.lines().find_map(|line| line.strip_prefix(name)).and_then(|n| n.trim().parse().ok())
}

/// How much code was reached, as the last line of progress has it.
fn covered(said: &str) -> u64 {
    let last = said.rsplit_once("cov:").map(|(_, rest)| rest).unwrap_or_default();
    last.split_whitespace().next().and_then(|n| n.parse().ok()).unwrap_or_default()
}

fn line(outcome: &Outcome) -> String {
    let word = if outcome.failure.is_some() { "FAILED" } else { "ok" };
    let Outcome { name, inputs, covered, .. } = outcome;
    format!("{word:<7} {name:<24} {inputs:>10} inputs  {covered:>7} edges")
}

/// A whole number from the environment.
fn number(name: &str) -> Result<Option<u64>> {
    match std::env::var(name) {
        Ok(text) => Ok(Some(text.parse().with_context(|| format!("{name}={text:?}"))?)),
        Err(_) => Ok(None),
    }
}

fn say(text: &str) {
    let mut out = std::io::stdout().lock();
    // Nobody reads: there is nobody to tell.
    let _ = writeln!(out, "{text}").and_then(|()| out.flush());
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAID: &str = "#2\tINITED cov: 10 ft: 11 corp: 1/1b\n#900\tDONE   cov: 25 ft: 30 corp: 3/9b\n\
                        stat::number_of_executed_units: 900\nstat::average_exec_per_sec:     90\n";

    #[test]
    fn figures_are_read_from_what_libfuzzer_says() {
        assert_eq!(stat(SAID, "stat::number_of_executed_units:"), Some(900));
        assert_eq!(covered(SAID), 25);
        assert_eq!((stat("", "x"), covered("nothing")), (None, 0));
    }
}
