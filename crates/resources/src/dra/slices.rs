//! Deletes ResourceSlices of drivers that are gone, so that the scheduler does not use them.

use super::Claims;
use crate::lock;
use ports::{ObjectError, OnExit};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// How long a driver may be disconnected before its slices are deleted.
const ABSENCE: Duration = Duration::from_secs(30);
const FIRST_RETRY: Duration = Duration::from_secs(1);
const LAST_RETRY: Duration = Duration::from_secs(5 * 60);

impl Claims {
    /// Deletes slices of this node in the background, with retries: all, or those of one driver.
    pub(super) fn wipe_slices(&self, driver: Option<String>) {
        let token = self.inner.deps.tasks.token();
        let task = self.clone().wipe(driver, token);
        self.inner.deps.tasks.spawn("resource-slices", OnExit::Fine, task);
    }

    /// Deletes a driver's slices unless it reconnects within [`ABSENCE`].
    pub(super) fn wipe_later(&self, driver: String, token: CancellationToken) {
        let claims = self.clone();
        self.inner.deps.tasks.spawn("resource-slices", OnExit::Fine, async move {
            tokio::select! {
                () = token.cancelled() => return, // cancel-safe: the driver is back
                () = tokio::time::sleep(ABSENCE) => {} // cancel-safe: a pause
            }
            claims.clone().wipe(Some(driver.clone()), token.clone()).await;
            let mut wipes = lock(&claims.inner.drivers.wipes);
            if !token.is_cancelled() {
                wipes.remove(&driver);
            }
        });
    }

    async fn wipe(self, driver: Option<String>, token: CancellationToken) {
        let Some(api) = self.inner.deps.api.clone() else { return };
        let mut node = self.inner.deps.node.clone();
        let mut wait = FIRST_RETRY;
        loop {
            let once = async {
                // Without a node object no slice can belong to it.
                let known = node
                    .wait_for(|view| view.node.as_ref().is_some_and(|n| n.metadata.uid.is_some()));
                if known.await.is_err() {
                    return Ok(());
                }
                api.delete_slices(driver.as_deref()).await
            };
            let done = tokio::select! {
                () = token.cancelled() => return, // cancel-safe: the deletion can be repeated
                done = once => done, // cancel-safe: as above
            };
            match done {
                Ok(()) | Err(ObjectError::NotFound(_)) => return,
                Err(error) => {
                    tracing::info!(err = %error, driver, "Deleting ResourceSlice failed, retrying");
                }
            }
            tokio::select! {
                () = token.cancelled() => return, // cancel-safe: a token
                () = tokio::time::sleep(wait) => {} // cancel-safe: a pause
            }
            wait = (wait * 2).min(LAST_RETRY);
        }
    }
}
