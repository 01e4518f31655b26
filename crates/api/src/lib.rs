//! Kubernetes types.
//!
//! Owns: the choice of Kubernetes version (`k8s-openapi` feature `v1_36`), identifiers, reason
//! strings that others parse, and wire types that no generated crate has.
//!
//! Promises: types only, no I/O, no decisions.
#![forbid(unsafe_code)]

pub mod ids;
pub mod image;
pub mod pod;
pub mod stats;

pub use k8s_openapi::api::{
    authentication, authorization, certificates, coordination, core, node, resource, storage,
};
pub use k8s_openapi::apimachinery::pkg as machinery;
pub use k8s_openapi::{ByteString, Metadata, Resource};
