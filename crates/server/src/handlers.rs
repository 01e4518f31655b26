//! What each route answers.

pub(crate) mod debug;
pub(crate) mod health;
pub(crate) mod logs;
pub(crate) mod metrics;
pub(crate) mod pods;
pub(crate) mod stats;
pub(crate) mod stream;
