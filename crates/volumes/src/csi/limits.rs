//! Whether a volume cannot be attached because the node is full.

use super::info;
use super::source::{attachment_name, driver_object};
use crate::env::Env;

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
        let updates = driver_object(env, driver)
            .await
            .ok()
            .flatten()
            .is_some_and(|d| d.spec.node_allocatable_update_period_seconds.is_some());
        if exhausted && updates {
            if let Err(err) = info::update(env, driver).await {
                tracing::warn!(driver, err, "could not update the driver's volume limit");
            }
            return true;
        }
    }
    false
}
