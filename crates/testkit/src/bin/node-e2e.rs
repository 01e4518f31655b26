//! `make node-e2e`: run Kubernetes' node e2e suite against rubelet (`KUBELET=go`: the Go kubelet) and
//! show every difference from what the Go kubelet did.
//!
//! `LABELS`, `FOCUS`, `SKIP` and `PROCS` choose specs; `RECORD=1` keeps the results of a whole lane
//! under `fixtures` and writes `docs/conformance.md`; a lane that was run in parts is recorded with
//! `RECORD=part`, which keeps what is recorded of the others. `REPORT=folder` looks at an earlier run
//! instead of making one; `--page` only writes that page again.
#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, reason = "a command for people")]

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, ensure};
use testkit::node_e2e::{
    ENTER, INSIDE, Lane, Outcome, Plan, Verdict, compare, enter, read_recorded, read_report,
    record, run_inside, run_suite, write_page,
};
use testkit::real::{KubeletKind, Parts, on_stop, run};

/// Set when the user wants it to end.
static STOP: AtomicBool = AtomicBool::new(false);

fn main() -> ExitCode {
    match act() {
        Ok(code) => code,
        Err(error) => {
            println!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn act() -> anyhow::Result<ExitCode> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let index = || args.get(1).context("which slot?")?.parse::<u8>().context("slot");
    match args.first().map(String::as_str) {
        Some(ENTER) => enter(index()?).map(|()| ExitCode::SUCCESS),
        Some(INSIDE) => run_inside(index()?).map(|()| ExitCode::SUCCESS),
        Some("--page") => {
            println!("wrote {}", write_page()?.display());
            Ok(ExitCode::SUCCESS)
        }
        Some(other) => anyhow::bail!("no argument {other:?} is known"),
        None => lane(),
    }
}

fn lane() -> anyhow::Result<ExitCode> {
    on_stop(&STOP)?;
    ensure!(run("id", ["-u"])?.trim() == "0", "containers need root: run it with sudo");
    let kind = KubeletKind::from_env()?;
    let plan = Plan::from_env(kind, &Parts::find()?)?;
    println!("{kind:?}: {} {} ({} at a time)", plan.labels, plan.focus, plan.procs);
    let kept = match std::env::var_os("REPORT") {
        Some(folder) => PathBuf::from(folder),
        None => match run_suite(&plan, kind, &STOP)? {
            Some(kept) => kept,
            None => {
                println!("stopped");
                return Ok(ExitCode::FAILURE);
            }
        },
    };
    let results = read_report(&kept.join("report.json"))?;
    let count = |verdict| results.values().filter(|o| o.verdict == verdict).count();
    println!(
        "passed {}  failed {}  skipped {}   (report and logs: {})",
        count(Verdict::Passed),
        count(Verdict::Failed),
        count(Verdict::Skipped),
        kept.display()
    );
    for (spec, outcome) in results.iter().filter(|(_, o)| o.verdict == Verdict::Failed) {
        println!("failed  {:4} s  {spec}\n               {}", outcome.seconds, outcome.why);
    }
    let go = recorded(plan.lane())?;
    let differences = compare(&go, &results, plan.lane().is_some());
    println!("differences from the recorded Go kubelet: {}", differences.len());
    for found in &differences {
        let (before, now) = (found.go.as_str(), found.now.as_str());
        println!("{before} → {now}  {}", found.spec);
    }
    let keep = std::env::var("RECORD").unwrap_or_default();
    if keep == "1" || keep == "part" {
        let part = keep == "part";
        let known = Lane::ALL.into_iter().find(|lane| part && lane.labels() == plan.labels);
        let lane = plan.lane().or(known).context("RECORD=1 wants a whole lane")?;
        let set_up = results.keys().all(|spec| spec.starts_with('['));
        ensure!(set_up, "the suite's set-up failed: nothing to record");
        let file = lane.file(kind);
        let mut all = if part { read_recorded(&file)? } else { BTreeMap::new() };
        all.extend(results.clone());
        record(&file, kind, &all)?;
        println!("wrote {} and {}", lane.file(kind).display(), write_page()?.display());
    }
    let worse = differences.iter().any(|d| d.now == Verdict::Failed);
    Ok(if worse { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// What the Go kubelet did in a lane, or in any when specs were picked by hand.
fn recorded(lane: Option<Lane>) -> anyhow::Result<BTreeMap<String, Outcome>> {
    let lanes = lane.map_or(Lane::ALL.to_vec(), |lane| vec![lane]);
    let mut all = BTreeMap::new();
    for lane in lanes {
        all.extend(read_recorded(&lane.file(KubeletKind::Go))?);
    }
    Ok(all)
}
