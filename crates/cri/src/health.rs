//! Whether the runtime can be reached, according to the calls themselves.

use tokio::sync::watch;
use tokio::time::Instant;

use crate::call::Service;

/// Whether the last call reached the service.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Reachability {
    /// No call has ended yet.
    #[default]
    Unknown,
    /// It responds, successfully or with an error.
    Reachable,
    /// It cannot be reached.
    Unreachable {
        /// Since when.
        since: Instant,
        /// The first error of this outage.
        error: String,
    },
}

/// Publishes changes of reachability, and logs each change once.
#[derive(Debug)]
pub(crate) struct Health {
    service: Service,
    state: watch::Sender<Reachability>,
}

impl Health {
    pub(crate) fn new(service: Service) -> Self {
        Self { service, state: watch::Sender::new(Reachability::Unknown) }
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<Reachability> {
        self.state.subscribe()
    }

    pub(crate) fn answered(&self) {
        let mut was_down = false;
        self.state.send_if_modified(|state| {
            was_down = matches!(state, Reachability::Unreachable { .. });
            let changed = *state != Reachability::Reachable;
            *state = Reachability::Reachable;
            changed
        });
        if was_down {
            tracing::info!(service = self.service.as_str(), "Container runtime answers again");
        }
    }

    pub(crate) fn lost(&self, error: &str) {
        let went_down = self.state.send_if_modified(|state| {
            if matches!(state, Reachability::Unreachable { .. }) {
                return false;
            }
            let error = error.to_owned();
            *state = Reachability::Unreachable { since: Instant::now(), error };
            true
        });
        if went_down {
            let service = self.service.as_str();
            tracing::warn!(service, err = error, "Container runtime cannot be reached");
        }
    }
}
