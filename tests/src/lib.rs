//! What the end-to-end tests share: golden records, observation of a cluster, comparison.
#![forbid(unsafe_code)]
#![expect(clippy::disallowed_methods, reason = "blocking code on the real machine, real time")]

pub mod answers;
pub mod ask;
pub mod attack;
pub mod cluster;
pub mod compare;
pub mod config_case;
pub mod differences;
pub mod exposition;
pub mod golden;
pub mod image_disk;
pub mod leftovers;
pub mod node_pair;
pub mod normal;
pub mod notes;
pub mod observe;
pub mod pod_case;
pub mod recording_node;
pub mod residents;
pub mod rng;
pub mod scenario;
pub mod script;
pub mod wire;
