//! The whole subsystem with fake objects and real mounts below a temporary folder.

mod bed;
mod content;
mod life;

use bed::{Bed, pod};
