//! The node's HTTP API.
#![forbid(unsafe_code)]

pub mod health;
pub mod route;
