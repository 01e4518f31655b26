//! Volume limits: whether the node is full, and keeping the drivers' reported limits current.

use super::info;
use super::source::{attachment_name, driver_object};
use crate::env::Env;
use api::storage::v1::CSIDriver;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;

/// How often a `CSIDriver` without an update period is checked for having got one.
const CHECK_EVERY: Duration = Duration::from_secs(10 * 60);

/// gRPC's `RESOURCE_EXHAUSTED`, as attachments report it.
const RESOURCE_EXHAUSTED: i32 = 8;

/// Looks at the attachments of these volumes (driver, handle). A driver that keeps its limit up to
/// date is asked for it again, so that the scheduler learns of it.
pub(crate) async fn is_full(env: &Env, volumes: &[(String, String)]) -> bool {
    let Some(storage) = &env.storage else { return false };
    for (driver, handle) in volumes {
        let name = attachment_name(handle, driver, &env.config.node_name);
        let Ok(attachment) = storage.volume_attachment(&name).await else { continue };
        let exhausted = attachment
            .status
            .as_ref()
            .and_then(|s| s.attach_error.as_ref())
            .is_some_and(|e| e.error_code == Some(RESOURCE_EXHAUSTED));
        let object = driver_object(env, driver).await.ok().flatten();
        if exhausted && object.as_deref().and_then(period).is_some() {
            if let Err(err) = info::update(env, driver).await {
                tracing::warn!(driver, err, "could not update the driver's volume limit");
            }
            return true;
        }
    }
    false
}

/// How often the driver wants to be asked for its limit.
fn period(driver: &CSIDriver) -> Option<Duration> {
    let seconds = driver.spec.node_allocatable_update_period_seconds?;
    u64::try_from(seconds).ok().filter(|seconds| *seconds > 0).map(Duration::from_secs)
}

/// When a driver is checked next, and whether it is then asked for its limit.
#[derive(Debug, Clone, Copy)]
struct Due {
    at: Instant,
    ask: bool,
}

/// Asks drivers for their limits, each in the update period of its `CSIDriver` object (upstream:
/// `csiNodeUpdater`). Never ends.
pub(crate) async fn keep_current(env: &Env) {
    let mut known: BTreeMap<String, Due> = BTreeMap::new();
    loop {
        let registered = env.csi.names();
        known.retain(|name, _| registered.contains(name));
        let now = Instant::now();
        let due = registered.iter().filter(|name| known.get(*name).is_none_or(|due| due.at <= now));
        let looks = due.map(|name| look(env, name, known.get(name).is_some_and(|due| due.ask)));
        for (name, next) in futures::future::join_all(looks).await {
            known.insert(name, next);
        }
        let next = known.values().map(|due| due.at).min();
        tokio::select! {
            // Both are cancel-safe: a notification stays pending, a sleep has no state to lose.
            () = env.csi.changed() => {}
            () = tokio::time::sleep_until(next.unwrap_or_else(|| Instant::now() + CHECK_EVERY)) => {}
        }
    }
}

async fn look(env: &Env, name: &str, ask: bool) -> (String, Due) {
    if ask && let Err(err) = info::update(env, name).await {
        tracing::error!(driver = name, err, "Failed to update CSIDriver");
    }
    let object = driver_object(env, name).await.ok().flatten();
    let period = object.as_deref().and_then(period);
    let at = Instant::now() + period.unwrap_or(CHECK_EVERY);
    (name.to_owned(), Due { at, ask: period.is_some() })
}
