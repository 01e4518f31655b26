//! Panics that a test requests. Release builds have none of it.
//!
//! `RUBELET_PANIC=name,name` makes one task of each name panic shortly after it began.

use std::collections::BTreeSet;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::watch;

/// How long after its start a task named by the environment panics.
const DELAY: Duration = Duration::from_secs(1);

/// The tasks that are to panic. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct FailPoints {
    armed: watch::Sender<BTreeSet<String>>,
    by_environment: Arc<Mutex<BTreeSet<String>>>,
}

impl Default for FailPoints {
    fn default() -> Self {
        let named = std::env::var("RUBELET_PANIC").unwrap_or_default();
        let names = named.split(',').filter(|name| !name.is_empty()).map(str::to_owned);
        let by_environment = Arc::new(Mutex::new(names.collect()));
        Self { armed: watch::Sender::new(BTreeSet::new()), by_environment }
    }
}

impl FailPoints {
    pub(super) fn arm(&self, name: &str) {
        self.armed.send_if_modified(|armed| armed.insert(name.to_owned()));
    }

    /// Runs `work` until it ends or the task is to panic.
    pub(super) fn guard<T>(
        &self,
        name: &'static str,
        work: impl Future<Output = T>,
    ) -> impl Future<Output = T> {
        let mut names = self.by_environment.lock().unwrap_or_else(PoisonError::into_inner);
        let named = names.remove(name);
        drop(names);
        let armed = self.armed.clone();
        let reached = async move {
            if named {
                return tokio::time::sleep(DELAY).await;
            }
            let mut seen = armed.subscribe();
            while seen.wait_for(|names| names.contains(name)).await.is_ok() {
                // Only one task of the name panics.
                if armed.send_if_modified(|names| names.remove(name)) {
                    return;
                }
            }
            std::future::pending().await
        };
        async move {
            tokio::select! {
                biased;
                // Cancel-safe: both arms are dropped with the task.
                () = reached => panic!("made to panic"),
                outcome = work => outcome,
            }
        }
    }
}
