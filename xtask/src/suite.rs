//! `xtask test`: every test program of the workspace, several at a time, each with a time limit.
//!
//! ```text
//!   cargo build --tests ──► programs ──► as many as there is room for ──► one line each, logs of failures, verdict
//! ```
//!
//! There is room for one a core, and for another whenever half of the machine has idled for a
//! while ([`room`]): some programs compute, others mostly wait. Long programs ([`LATER`]) and most
//! golden pods run with `ALL=1` only, as in CI. What a program prints goes to a
//! file and is shown only when it fails. A program over its limit is ended with its children
//! and counts as failed: nothing can hold up the run for ever.
#![expect(
    clippy::disallowed_methods,
    reason = "a developer's tool: it blocks, and names the paths itself"
)]

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use crate::idleness::Idleness;
use crate::tidy::security::by_hand;
use crate::unsteady;

/// Longest any one program may run, unless `TEST_LIMIT` says otherwise (seconds).
const LIMIT: Duration = Duration::from_secs(900);
/// Programs that keep the whole machine busy by themselves; they start before the others.
const ALONE: [&str; 1] = ["tests/goldens"];
/// Long programs about what others show in part; they run with `ALL=1`, or when they are named.
const LATER: [&str; 13] = [
    "tests/access",
    "tests/api_load",
    "tests/churn",
    "tests/claims",
    "tests/content_changes",
    "tests/csi_faults",
    "tests/disturbance",
    "tests/garbage",
    "tests/pressure",
    "tests/same_node",
    "tests/server_compare",
    "tests/swap",
    "tests/three_nodes",
];
/// Most programs for each core, however little they do.
const MOST_A_CORE: u64 = 3;
/// How many lines of a failed program's output are shown.
const SHOWN: usize = 300;

/// A test program as cargo built it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Program {
    /// `package` or `package/target`.
    name: String,
    path: PathBuf,
    /// The package's folder, where its tests expect to be run.
    folder: PathBuf,
}

impl Program {
    fn fills_the_machine(&self) -> bool {
        ALONE.contains(&self.name.as_str())
    }
}

/// How many programs run at a time.
#[derive(Debug, Clone, Copy)]
enum Jobs {
    /// So many, whatever they do.
    Fixed(u64),
    /// One a core, and more while the machine idles.
    ByIdleness { cores: u64 },
}

/// How a program ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Passed,
    Failed,
    OverLimit,
}

struct Ended {
    program: Program,
    verdict: Verdict,
    log: PathBuf,
}

/// Builds and runs the test programs whose name contains one of `filters` (all of them when there is none).
pub(crate) fn run(root: &Path, filters: &[String]) -> Result<()> {
    let target = target_folder(root);
    let logs = target.join("suite");
    fs::create_dir_all(&logs).with_context(|| format!("create {}", logs.display()))?;
    let mut programs = build(root)?;
    let all = number("ALL", 0)? > 0;
    programs.retain(|program| is_wanted(program, filters, all));
    if programs.is_empty() {
        bail!("no test program is named like {filters:?}");
    }
    order(&mut programs);
    let jobs = match number("JOBS", 0)? {
        0 => Jobs::ByIdleness { cores: cores() },
        most => Jobs::Fixed(most),
    };
    let limit = Duration::from_secs(number("TEST_LIMIT", LIMIT.as_secs())?);
    say(&format!("{} test programs, logs in {}", programs.len(), logs.display()));
    if filters.is_empty() && !all {
        say(&format!("ALL=1 adds most golden pods and {}", LATER.join(", ")));
    }
    if filters.is_empty() {
        let manifest = fs::read_to_string(root.join("tests/Cargo.toml"));
        let left_out = by_hand(&manifest.context("read tests/Cargo.toml")?);
        say(&format!("left out, each has a make target: {}", left_out.join(", ")));
    }

    let begun = Instant::now();
    let mut ended = run_all(programs, jobs, limit, &logs)?;
    let unsteady =
        if number("RERUN", 0)? > 0 { rerun(&mut ended, limit, &logs)? } else { Vec::new() };
    let failed: Vec<&Ended> = ended.iter().filter(|e| e.verdict != Verdict::Passed).collect();
    for end in &failed {
        show(end)?;
    }
    let total = begun.elapsed().as_secs();
    say(&format!("{} of {} programs passed in {total} s", ended.len() - failed.len(), ended.len()));
    let again = unsteady::note(&target.join("unsteady"), &tree(root)?, &unsteady)?;
    if !unsteady.is_empty() {
        say("UNSTEADY: failed beside others, passed by itself; each is a bug to find");
        for name in &unsteady {
            let before = if again.contains(name) { "in an earlier run too" } else { "" };
            say(&format!("  {name:<28} {before}"));
        }
    }
    if !failed.is_empty() {
        let names: Vec<&str> = failed.iter().map(|e| e.program.name.as_str()).collect();
        bail!("failed: {}", names.join(", "))
    }
    if !again.is_empty() {
        bail!("unsteady in two runs of the same tree: {}", again.join(", "))
    }
    Ok(())
}

/// What names the state of the tree: the commit, and what was changed since.
fn tree(root: &Path) -> Result<String> {
    let git = |arguments: &[&str]| -> Result<String> {
        let out = Command::new("git").args(arguments).current_dir(root).output();
        let out = out.context("run git")?;
        Ok(String::from_utf8_lossy(&out.stdout).trim().to_owned())
    };
    // Changes that are not committed are part of the name, however many there are.
    Ok(format!("{} {:x}", git(&["rev-parse", "HEAD"])?, fnv(&git(&["diff", "HEAD"])?)))
}

fn fnv(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// Whether a program runs: it is named, or nothing is and it is not one for later.
fn is_wanted(program: &Program, filters: &[String], all: bool) -> bool {
    if filters.is_empty() {
        return all || !LATER.contains(&program.name.as_str());
    }
    filters.iter().any(|filter| program.name.contains(filter.as_str()))
}

fn target_folder(root: &Path) -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from)
}

fn cores() -> u64 {
    let cores = thread::available_parallelism().map_or(1, std::num::NonZero::get);
    u64::try_from(cores).unwrap_or(1)
}

/// A whole number from the environment.
fn number(name: &str, default: u64) -> Result<u64> {
    match std::env::var(name) {
        Ok(text) => text.parse().with_context(|| format!("{name}={text:?} is no whole number")),
        Err(_) => Ok(default),
    }
}

/// Builds all test programs, and the programs that tests start. At once: crates have other features beside
/// tests than without, and would be built twice.
fn build(root: &Path) -> Result<Vec<Program>> {
    let tests = cargo(root)
        .args(["build", "--workspace", "--bins", "--tests", "--quiet"])
        .arg("--message-format=json-render-diagnostics")
        .stderr(Stdio::inherit())
        .output()
        .context("run cargo build")?;
    if !tests.status.success() {
        bail!("the tests do not build");
    }
    programs(&String::from_utf8_lossy(&tests.stdout))
}

/// Cargo as it is when typed by hand: what `cargo run` tells us about our own package would make
/// it build crates again whose build scripts look at the same variables (ring), and all above them.
fn cargo(root: &Path) -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    for (name, _) in std::env::vars_os() {
        if is_about_a_package(&name.to_string_lossy()) {
            cargo.env_remove(name);
        }
    }
    cargo.current_dir(root);
    cargo
}

/// Whether cargo sets this variable for the package that it runs.
fn is_about_a_package(variable: &str) -> bool {
    let about = ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_", "CARGO_CRATE_"];
    about.iter().any(|prefix| variable.starts_with(prefix))
}

/// The test programs among cargo's messages.
fn programs(messages: &str) -> Result<Vec<Program>> {
    let mut found = Vec::new();
    for line in messages.lines().filter(|l| l.starts_with('{')) {
        let message: Value = serde_json::from_str(line).context("read a message of cargo")?;
        let (Some(path), Some(true)) =
            (message["executable"].as_str(), message["profile"]["test"].as_bool())
        else {
            continue;
        };
        let manifest = message["manifest_path"].as_str().context("a program without a manifest")?;
        let folder = Path::new(manifest).parent().context("a manifest without a folder")?;
        let package = folder.file_name().unwrap_or_default().to_string_lossy();
        let target = message["target"]["name"].as_str().unwrap_or_default();
        let kind = message["target"]["kind"][0].as_str().unwrap_or_default();
        let name = match kind {
            "test" | "bin" if target != package => format!("{package}/{target}"),
            _ => package.into_owned(),
        };
        found.push(Program { name, path: path.into(), folder: folder.into() });
    }
    Ok(found)
}

/// Those that need the machine first. The others by name: long and short ones are mixed then, while
/// the slowest first would all be in each other's way.
fn order(programs: &mut [Program]) {
    programs.sort_by_key(|p| (!p.fills_the_machine(), p.name.clone()));
}

fn run_all(programs: Vec<Program>, jobs: Jobs, limit: Duration, logs: &Path) -> Result<Vec<Ended>> {
    let mut queue = VecDeque::from(programs);
    let mut ended = Vec::new();
    let mut running = 0;
    let mut idleness = Idleness::default();
    let (sender, ends) = mpsc::channel();
    thread::scope(|scope| {
        while running > 0 || !queue.is_empty() {
            while room(jobs, running, &mut idleness)
                && let Some(program) = queue.pop_front()
            {
                running += weight(&program, jobs);
                let sender = sender.clone();
                scope.spawn(move || sender.send(run_one(program, limit, logs)));
            }
            match ends.recv_timeout(Duration::from_millis(500)) {
                Ok(end) => {
                    let end = end?;
                    running -= weight(&end.program, jobs);
                    ended.push(end);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => bail!("nobody runs any more"),
            }
        }
        Ok(())
    })?;
    Ok(ended)
}

/// How many of the programs of one core a program stands for.
fn weight(program: &Program, jobs: Jobs) -> u64 {
    match jobs {
        Jobs::ByIdleness { cores } if program.fills_the_machine() => cores,
        _ => 1,
    }
}

/// Whether another program may start.
fn room(jobs: Jobs, running: u64, idleness: &mut Idleness) -> bool {
    match jobs {
        Jobs::Fixed(most) => running < most,
        Jobs::ByIdleness { cores } if running < cores => {
            idleness.forget();
            true
        }
        Jobs::ByIdleness { cores } => running < cores * MOST_A_CORE && idleness.is_lasting(),
    }
}

fn run_one(program: Program, limit: Duration, logs: &Path) -> Result<Ended> {
    let log = logs.join(format!("{}.log", program.name.replace('/', "-")));
    let out = File::create(&log).with_context(|| format!("create {}", log.display()))?;
    let err = out.try_clone().with_context(|| format!("write {}", log.display()))?;
    let begun = Instant::now();
    let mut command = Command::new(&program.path);
    if let Some(kubelet) = kubelet_beside(&program.path) {
        command.env("RUBELET_BIN", kubelet);
    }
    let mut child = command
        .current_dir(&program.folder)
        .env("CARGO_MANIFEST_DIR", &program.folder)
        .stdin(Stdio::null())
        .stdout(out)
        .stderr(err)
        .process_group(0)
        .spawn()
        .with_context(|| format!("start {}", program.path.display()))?;
    let verdict = match wait(&mut child, limit)? {
        Some(status) if status.success() => Verdict::Passed,
        Some(_) => Verdict::Failed,
        None => Verdict::OverLimit,
    };
    let took = begun.elapsed().as_secs_f64();
    let word = match verdict {
        Verdict::Passed => "ok     ",
        Verdict::Failed => "FAILED ",
        Verdict::OverLimit => "TOO LONG",
    };
    say(&format!("{word} {:<28} {:>6.1} s  {}", program.name, took, counted(&log)));
    Ok(Ended { program, verdict, log })
}

/// Waits for the end; over the limit the whole process group is ended and there is no status.
fn wait(child: &mut Child, limit: Duration) -> Result<Option<ExitStatus>> {
    let begun = Instant::now();
    loop {
        if let Some(status) = child.try_wait().context("wait for a test program")? {
            return Ok(Some(status));
        }
        if begun.elapsed() > limit {
            let group = format!("-{}", child.id());
            Command::new("kill").args(["-KILL", "--", &group]).status().context("run kill")?;
            child.wait().context("wait for a test program")?;
            return Ok(None);
        }
        thread::sleep(Duration::from_millis(50));
    }
}

/// The kubelet that was built with a test program, for those that start one; `None` if another is named.
fn kubelet_beside(program: &Path) -> Option<PathBuf> {
    let built = program.ancestors().nth(2)?.join("rubelet");
    (std::env::var_os("RUBELET_BIN").is_none() && built.is_file()).then_some(built)
}

/// What the program says about the number of its tests.
fn counted(log: &Path) -> String {
    let text = fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let line = text.lines().rev().find_map(|l| l.strip_prefix("test result: "));
    let parts = line.unwrap_or_default().split(['.', ';']).map(str::trim);
    parts
        .filter(|p| p.ends_with(" passed") || p.ends_with(" failed") && !p.starts_with("0 "))
        .collect::<Vec<_>>()
        .join(", ")
}

/// Runs what failed once more, each by itself; gives the names of those that passed then.
fn rerun(ended: &mut [Ended], limit: Duration, logs: &Path) -> Result<Vec<String>> {
    let mut unsteady = Vec::new();
    for end in ended.iter_mut().filter(|e| e.verdict != Verdict::Passed) {
        show(end)?;
        let name = end.program.name.clone();
        say(&format!("again, by itself: {name}"));
        *end = run_one(end.program.clone(), limit, logs)?;
        if end.verdict == Verdict::Passed {
            unsteady.push(name);
        }
    }
    Ok(unsteady)
}

fn show(end: &Ended) -> Result<()> {
    let text = fs::read(&end.log).with_context(|| format!("read {}", end.log.display()))?;
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().filter(|l| !l.ends_with(" ... ok")).collect();
    let from = lines.len().saturating_sub(SHOWN);
    say(&format!(
        "──── {} ({:?}), the end of {}",
        end.program.name,
        end.verdict,
        end.log.display()
    ));
    say(&lines.get(from..).unwrap_or_default().join("\n"));
    Ok(())
}

fn say(text: &str) {
    let mut out = std::io::stdout().lock();
    // Nobody reads: there is nobody to tell.
    let _ = writeln!(out, "{text}").and_then(|()| out.flush());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(name: &str, script: &str, folder: &Path) -> Program {
        let path = folder.join(name);
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        Command::new("chmod").arg("+x").arg(&path).status().unwrap();
        Program { name: name.into(), path, folder: folder.into() }
    }

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("suite-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        folder
    }

    #[test]
    fn a_program_that_hangs_is_ended_with_its_children_and_counts_as_failed() {
        let folder = folder("hang");
        let hang = program("hang", "sleep 1000 & echo $! >child; wait", &folder);
        let good =
            program("good", "echo 'test result: ok. 3 passed; 0 failed; 0 ignored'", &folder);
        let bad = program("bad", "exit 1", &folder);
        let limit = Duration::from_secs(5);
        let mut ended = run_all(vec![hang, good, bad], Jobs::Fixed(3), limit, &folder).unwrap();
        ended.sort_by(|a, b| a.program.name.cmp(&b.program.name));
        let verdicts: Vec<Verdict> = ended.iter().map(|e| e.verdict).collect();
        assert_eq!(verdicts, [Verdict::Failed, Verdict::Passed, Verdict::OverLimit]);
        assert_eq!(counted(&ended[1].log), "3 passed");
        let child = fs::read_to_string(folder.join("child")).unwrap();
        let stat = format!("/proc/{}/stat", child.trim());
        let lives = || {
            let status = fs::read_to_string(&stat).unwrap_or_default();
            !status.is_empty() && !status.contains(") Z ")
        };
        // A killed process is gone when it was next on a CPU, not when the signal was sent.
        let patience = Instant::now() + Duration::from_secs(60);
        while lives() && Instant::now() < patience {
            thread::yield_now();
        }
        assert!(!lives(), "the child lives");
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn the_crowd_starts_first_and_the_others_by_name() {
        let named = |name: &str| Program { name: name.into(), path: "".into(), folder: "".into() };
        let mut programs = [named("b"), named("a"), named(ALONE[0])];
        order(&mut programs);
        assert_eq!(programs.map(|p| p.name), [ALONE[0], "a", "b"]);
    }

    #[test]
    fn long_programs_run_when_all_do_or_when_they_are_named() {
        let named = |name: &str| Program { name: name.into(), path: "".into(), folder: "".into() };
        let (long, short) = (named(LATER[0]), named("engine"));
        assert!(!is_wanted(&long, &[], false) && is_wanted(&short, &[], false));
        assert!(is_wanted(&long, &[], true) && is_wanted(&short, &[], true));
        let filter = [long.name.clone()];
        assert!(is_wanted(&long, &filter, false) && !is_wanted(&short, &filter, true));
    }

    #[test]
    fn only_test_programs_are_taken_from_cargos_messages() {
        let messages = concat!(
            r#"{"reason":"compiler-artifact","manifest_path":"/w/pods/Cargo.toml","target":{"kind":["lib"],"name":"pods"},"profile":{"test":true},"executable":"/t/pods-1"}"#,
            "\n",
            r#"{"reason":"compiler-artifact","manifest_path":"/w/pods/Cargo.toml","target":{"kind":["test"],"name":"life"},"profile":{"test":true},"executable":"/t/life-1"}"#,
            "\n",
            r#"{"reason":"compiler-artifact","manifest_path":"/w/x/Cargo.toml","target":{"kind":["bin"],"name":"x"},"profile":{"test":false},"executable":"/t/x"}"#,
            "\n",
        );
        let names: Vec<String> = programs(messages).unwrap().into_iter().map(|p| p.name).collect();
        assert_eq!(names, ["pods", "pods/life"]);
    }
}
