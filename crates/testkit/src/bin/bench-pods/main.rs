//! `make bench`: how fast and how lean a kubelet starts, restarts and ends pods. The Go kubelet and
//! ours are measured one after the other, on the same cluster and machine, next to the floor that the
//! runtime itself sets (rubelet's CRI calls without an agent).
//!
//! `PODS=n` changes the number of pods, `IDLE=seconds` how long idleness is watched, `KUBELET=go` or
//! `KUBELET=rubelet` measures one alone, `ONCE=1` takes one sample of the restart time
//! and of a later scrape instead of five and four.
#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, reason = "a command for people")]
#![expect(clippy::disallowed_methods, reason = "measures real time on the real machine")]

mod alone;
mod floor;
mod measure;
mod process;
mod table;
mod watch;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use measure::Figures;
use testkit::real::{ControlPlane, ControlPlaneOptions, KubeletKind};

/// The one container of every pod.
const IMAGE: &str = "registry.k8s.io/pause:3.10.2";
/// The longest that anything may take.
const PATIENCE: Duration = Duration::from_secs(300);

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// What the environment asks for.
#[derive(Debug, Clone, Copy)]
struct Order {
    pods: usize,
    idle: Duration,
    restarts: usize,
    scrapes: u32,
}

fn number(name: &str, otherwise: usize) -> anyhow::Result<usize> {
    match std::env::var(name) {
        Ok(text) => text.parse().with_context(|| format!("{name} is {text:?}")),
        Err(_) => Ok(otherwise),
    }
}

/// How long a rest is between two that are measured.
const REST: Duration = Duration::from_secs(65);

fn run() -> anyhow::Result<()> {
    let idle = u64::try_from(number("IDLE", 30)?)?;
    let order = Order {
        pods: number("PODS", 100)?,
        idle: Duration::from_secs(idle),
        restarts: if number("ONCE", 0)? == 0 { 5 } else { 1 },
        scrapes: if number("ONCE", 0)? == 0 { 4 } else { 1 },
    };
    let kinds = match std::env::var_os("KUBELET") {
        Some(_) => vec![KubeletKind::from_env()?],
        None => vec![KubeletKind::Go, KubeletKind::Rubelet],
    };
    println!(
        "{} pods of one pause container, containerd 2, API server and etcd beside",
        order.pods
    );
    let runtime = tokio::runtime::Runtime::new()?;
    let floor = floor::measure(&runtime, order.pods)?;
    println!("floor: the runtime alone starts them in {:.2} s", floor.batch.as_secs_f64());
    println!("floor: the runtime alone starts one more in {:.3} s", floor.one.as_secs_f64());
    let mut columns = Vec::new();
    for kind in kinds {
        let mut figures = Figures::default();
        rest()?;
        alone::one(kind, &runtime, order, &mut figures)?;
        columns.push((kind, figures));
    }
    let control = Arc::new(ControlPlane::start(&ControlPlaneOptions::default())?);
    for (kind, figures) in &mut columns {
        rest()?;
        measure::one(*kind, &control, order, figures)?;
    }
    table::print(&columns, floor);
    Ok(())
}

/// Lets the disk forget what was deleted: for a minute after it, ext4 without a journal passes over
/// freed inodes one by one, and whoever is measured next pays for what the last one left.
fn rest() -> anyhow::Result<()> {
    testkit::real::run("sync", [""; 0])?;
    std::thread::sleep(REST);
    Ok(())
}
