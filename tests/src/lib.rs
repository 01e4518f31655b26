//! What the end-to-end tests share: golden records, observation of a cluster, comparison.
#![forbid(unsafe_code)]

pub mod compare;
pub mod differences;
pub mod golden;
pub mod normal;
pub mod observe;
