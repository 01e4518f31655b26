//! What the end-to-end tests share: golden records, observation of a cluster, comparison.
#![forbid(unsafe_code)]
#![expect(clippy::disallowed_methods, reason = "blocking code on the real machine, real time")]

pub mod answers;
pub mod ask;
pub mod bed;
pub mod chance;
pub mod cluster;
pub mod compare;
pub mod config_case;
pub mod differences;
pub mod exposition;
pub mod golden;
pub mod litter;
pub mod normal;
pub mod observe;
pub mod pod_case;
pub mod scenario;
pub mod script;
pub mod twins;
pub mod wire;
