//! Second stage: the container runtime answers, and says which cgroup driver holds.

use super::StartContext;
use crate::host::configured_driver;
use crate::runtime::{self, RuntimeError};
use cri::{RuntimeClient, RuntimeOperations};
use engine::cgroup::Driver;
use std::sync::Arc;

/// A runtime that can be worked with.
pub(super) struct Runtime {
    pub(super) client: RuntimeClient,
    pub(super) driver: Driver,
}

pub(super) async fn connect(cx: &StartContext<'_>) -> Result<Runtime, RuntimeError> {
    let observer = Arc::new(RuntimeOperations::new(&cx.registry));
    let client = runtime::connect(cx.config, observer).await?;
    let configured = configured_driver(cx.config);
    let driver = runtime::cgroup_driver(&client, configured, &cx.registry).await?;
    Ok(Runtime { client, driver })
}
