//! Private instances of the real parts: container runtime, registry, etcd, API server, and the
//! kubelet under test (ours or the Go one).
//!
//! Every instance lives in a [`Slot`]: a folder, a pod subnet, a bridge and a cgroup of its own,
//! guarded by a file lock. Leaving the slot (also by a panic) takes everything down; what a killed
//! run left behind is removed before its slot is used again. Nothing outside a slot is touched.
//!
//! The harness is plain blocking code, so that an end-to-end test reads from top to bottom. It
//! expects `parts/prepare` to have run (`make parts`) and says so when it has not.

mod collector;
mod containerd;
mod control;
mod grpc_json;
mod kubelet;
mod logind;
mod node;
mod parts;
mod process;
mod recorder;
mod registry;
mod reset;
mod signer;
mod slot;
mod stop;
mod virtual_node;

pub use collector::{CollectedSpan, Collector};
pub use containerd::{Containerd, RuntimeLine};
pub use control::{ControlPlane, ControlPlaneOptions};
pub use kubelet::{KubeletKind, KubeletOptions, rubelet_bin};
pub use logind::FakeLogind;
pub use node::{TestNode, TestNodeBuilder};
pub use parts::{Parts, repository_root};
pub use process::{Service, run};
pub use recorder::{Call, Recorder};
pub use registry::Registry;
pub use signer::PodSigner;
pub use slot::Slot;
pub use stop::on_stop;
pub use virtual_node::VirtualNode;

use std::time::{Duration, Instant};

/// Look every 50 ms until `condition` is true; an error says what was awaited and for how long.
pub fn eventually(
    within: Duration,
    what: &str,
    mut condition: impl FnMut() -> bool,
) -> anyhow::Result<()> {
    eventually_some(within, what, || condition().then_some(()))
}

/// Look every 50 ms until `probe` gives a value.
pub fn eventually_some<T>(
    within: Duration,
    what: &str,
    mut probe: impl FnMut() -> Option<T>,
) -> anyhow::Result<T> {
    let start = Instant::now();
    loop {
        if let Some(value) = probe() {
            return Ok(value);
        }
        anyhow::ensure!(start.elapsed() < within, "not within {within:?}: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Wait until a condition holds, or fail the test with the condition's text.
///
/// `eventually!(10, node.pods().len() == 3)` waits ten seconds at most.
#[macro_export]
macro_rules! eventually {
    ($seconds:expr, $condition:expr $(,)?) => {
        $crate::real::eventually(
            std::time::Duration::from_secs($seconds),
            stringify!($condition),
            || $condition,
        )
        .unwrap_or_else(|error| panic!("{error:#}"))
    };
}
