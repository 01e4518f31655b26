//! The whole subsystem with fake objects and real mounts below a temporary folder.

mod certificates;
mod content;
mod csi;
mod fixture;
mod flex;
mod hung;
mod labels;
mod life;
mod network_disks;
mod persistent;
pub(crate) mod simulation;
mod storage;

use fixture::{Fixture, pod};
