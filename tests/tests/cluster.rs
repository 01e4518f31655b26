//! What people do with kubectl, on a whole cluster with one node: all scenarios share it, each in a
//! namespace of its own. `KUBELET=go` shows what the Go kubelet does.
#![forbid(unsafe_code)]

#[path = "cluster/life.rs"]
mod life;
#[path = "cluster/mirror.rs"]
mod mirror;
#[path = "cluster/resize.rs"]
mod resize;

use std::process::ExitCode;

use testkit::real::KubeletKind;
use tests::cluster::Cluster;
use tests::scenario::{self, Scenario};

/// Most scenarios wait; two cores start no more than a few pods at once.
const AT_ONCE: usize = 6;

fn main() -> ExitCode {
    let scenarios: Vec<Scenario<Cluster>> =
        [life::ALL, resize::ALL, mirror::ALL].into_iter().flatten().map(named).collect();
    scenario::run(&scenarios, AT_ONCE, || Cluster::start(KubeletKind::from_env()?, 1))
}

/// A scenario's name and steps.
type Entry = (&'static str, fn(&Cluster) -> anyhow::Result<()>);

fn named(&(name, run): &Entry) -> Scenario<Cluster> {
    Scenario { name, run }
}
