//! Kubernetes' own node e2e suite, run against a kubelet on this machine.
//!
//! ```text
//! make node-e2e ─▶ outer: takes a slot, makes its cgroup
//!                    └─▶ enter: moves into that cgroup, then unshare(1)
//!                          └─▶ inside: own mounts, network, processes, cgroup root
//!                                └─▶ registry, containerd, ginkgo ─▶ etcd, API server, kubelet
//!                  ◀─ report.json ─ compared with the recorded results, printed, written down
//! ```
//!
//! The suite wants fixed ports, `/var/lib/kubelet`, `/var/log/pods` and the root of the cgroup tree.
//! Inside its own namespaces it has them all without touching the machine's, two runs do not meet,
//! and the end of the outer process (in whatever way) ends everything.

mod bus;
mod inside;
mod outcome;
mod page;
mod units;

pub use inside::run_inside;
pub use outcome::{
    Difference, Lane, Outcome, Verdict, compare, read_recorded, read_report, record,
};
pub use page::write_page;

use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};

use crate::real::{KubeletKind, Parts, Service, Slot};

/// What to run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Plan {
    /// ginkgo's label filter.
    pub labels: String,
    /// Regular expression over the names of specs; empty for all.
    pub focus: String,
    /// Regular expression of specs to leave out; empty for none.
    pub skip: String,
    /// How many specs at a time.
    pub procs: u16,
    /// The program to run under the name `kubelet`.
    pub kubelet: PathBuf,
    /// Whether specs restart the kubelet as a unit of a service manager.
    pub units: bool,
    /// Flags of the suite that the lane wants.
    pub flags: Vec<String>,
}

impl Plan {
    /// From the environment: `LABELS`, `FOCUS`, `SKIP`, `PROCS`, `KUBELET`.
    pub fn from_env(kind: KubeletKind, parts: &Parts) -> anyhow::Result<Plan> {
        let text = |name: &str| std::env::var(name).unwrap_or_default();
        let labels = match text("LABELS") {
            empty if empty.is_empty() => Lane::Main.labels().to_owned(),
            given => given,
        };
        let lane = Lane::ALL.into_iter().find(|lane| lane.labels() == labels);
        let serial = match lane {
            Some(lane) => lane.alone(),
            None => labels.contains("Serial") && !labels.contains("!Serial"),
        };
        let flags = lane.map_or(&[][..], Lane::flags);
        let flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
        let procs = match text("PROCS") {
            empty if empty.is_empty() => {
                if serial {
                    1
                } else {
                    10
                }
            }
            given => given.parse().context("PROCS")?,
        };
        let kubelet = kind.program(parts)?;
        let kubelet = std::fs::canonicalize(&kubelet)
            .with_context(|| format!("no program {}", kubelet.display()))?;
        Ok(Plan {
            labels,
            focus: text("FOCUS"),
            skip: text("SKIP"),
            procs,
            kubelet,
            units: serial,
            flags,
        })
    }

    /// The whole of a named lane, if that is what it is.
    #[must_use]
    pub fn lane(&self) -> Option<Lane> {
        let whole = self.focus.is_empty() && self.skip.is_empty();
        Lane::ALL.into_iter().find(|lane| whole && lane.labels() == self.labels)
    }
}

/// The arguments by which the program calls itself in the two inner steps.
pub const ENTER: &str = "--enter";
/// See [`ENTER`].
pub const INSIDE: &str = "--inside";

/// Run the suite to its end; the folder with its report and every log.
///
/// Returns early, without a report, once `stop` is set.
pub fn run_suite(
    plan: &Plan,
    kind: KubeletKind,
    stop: &AtomicBool,
) -> anyhow::Result<Option<PathBuf>> {
    let parts = Parts::find()?;
    ensure!(
        parts.bin("e2e_node.test").is_ok() && parts.e2e_registry_storage().join("READY").is_file(),
        "the suite is not prepared: run `parts/prepare node-e2e`"
    );
    let slot = Slot::take()?;
    slot.make_cgroups()?;
    slot.write("plan.json", serde_json::to_vec(plan)?)?;
    // A copy: a build during the run must not change what runs, nor may the own folders hide it.
    std::fs::create_dir_all(slot.path("bin"))?;
    std::fs::copy(&plan.kubelet, slot.path("bin/kubelet"))
        .with_context(|| format!("cannot copy {}", plan.kubelet.display()))?;
    let mut command = Command::new(std::env::current_exe()?);
    command.arg(ENTER).arg(slot.index().to_string());
    let mut service = Service::start(&slot, "runner", command)?;
    while service.is_running() && !stop.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_millis(200));
    }
    let ended = !service.is_running();
    let kept = keep(&slot, kind)?;
    if !ended {
        service.kill();
        return Ok(None);
    }
    ensure!(
        kept.join("report.json").is_file(),
        "the suite made no report; logs are in {}\nend of the runner's log:\n{}",
        kept.display(),
        service.log_tail(20)
    );
    Ok(Some(kept))
}

/// First inner step: be in the slot's cgroup, then become unshare(1) with the next step in it.
pub fn enter(index: u8) -> anyhow::Result<()> {
    let slot = Slot::inside(index)?;
    for group in slot.cgroup_folders() {
        let procs = group.join("cgroup.procs");
        std::fs::write(&procs, "0").with_context(|| format!("cannot enter {}", group.display()))?;
    }
    let mut command = Command::new("unshare");
    command.args(["--mount", "--net", "--ipc", "--uts", "--pid", "--cgroup"]);
    command.args(["--fork", "--kill-child", "--mount-proc", "--"]);
    // The first process of a PID namespace inherits orphans: a shell collects them while it waits.
    command.args(["sh", "-c", "\"$@\" & wait $!", "sh"]);
    command.arg(std::env::current_exe()?).arg(INSIDE).arg(index.to_string());
    Err(command.exec()).context("cannot run unshare")
}

/// Copy what is worth reading out of the slot, which goes away.
fn keep(slot: &Slot, kind: KubeletKind) -> anyhow::Result<PathBuf> {
    let name = match kind {
        KubeletKind::Go => "go",
        KubeletKind::Rubelet => "rubelet",
    };
    let now = jiff::Zoned::now().strftime("%m%d-%H%M%S");
    let kept = Slot::cache_dir()?.join("node-e2e").join(format!("{name}-{now}"));
    std::fs::create_dir_all(&kept)?;
    for folder in [slot.path("log"), slot.path("e2e")] {
        let Ok(entries) = std::fs::read_dir(folder) else { continue };
        for path in entries.flatten().map(|entry| entry.path()).filter(|path| path.is_file()) {
            let wanted = path.extension().is_some_and(|e| e == "log" || e == "json");
            if let Some(file) = path.file_name().filter(|_| wanted) {
                std::fs::copy(&path, kept.join(file))?;
            }
        }
    }
    Ok(kept)
}
