//! Inputs of the node's status from other subsystems.

use engine::node::DeviceFacts;
use futures::future::{FutureExt, select_all};
use ports::{PressureCondition, VolumeFacts};
use tokio::sync::watch;

/// Current values of other subsystems. If a sender is dropped, its last value stays in force.
#[derive(Debug, Clone)]
pub struct NodeInputs {
    /// Pressure conditions in force.
    pub pressure: watch::Receiver<Vec<PressureCondition>>,
    /// A graceful shutdown of the machine has begun.
    pub shutting_down: watch::Receiver<bool>,
    /// Extended resources.
    pub devices: watch::Receiver<DeviceFacts>,
    /// Volumes in use.
    pub volumes: watch::Receiver<VolumeFacts>,
    /// Why the pod lifecycle view is unhealthy (`PLEG is not healthy: …`).
    pub runtime_fault: watch::Receiver<Option<String>>,
    /// A missing soft requirement, e.g. `CPU hardcapping unsupported`.
    pub soft_warning: watch::Receiver<Option<String>>,
    /// Calls that the runtime has not answered for a long time; `None` unless the condition about
    /// them is enabled.
    pub slow_calls: watch::Receiver<Option<Vec<String>>>,
}

impl Default for NodeInputs {
    /// No sender: nothing ever changes.
    fn default() -> Self {
        Self {
            pressure: watch::channel(Vec::new()).1,
            shutting_down: watch::channel(false).1,
            devices: watch::channel(DeviceFacts::default()).1,
            volumes: watch::channel(VolumeFacts::default()).1,
            runtime_fault: watch::channel(None).1,
            soft_warning: watch::channel(None).1,
            slow_calls: watch::channel(None).1,
        }
    }
}

impl NodeInputs {
    /// Marks all current values as seen.
    pub(crate) fn mark_seen(&mut self) {
        self.pressure.mark_unchanged();
        self.shutting_down.mark_unchanged();
        self.devices.mark_unchanged();
        self.volumes.mark_unchanged();
        self.runtime_fault.mark_unchanged();
        self.soft_warning.mark_unchanged();
        self.slow_calls.mark_unchanged();
    }

    /// Waits until any input has changed. Cancel-safe: a change stays marked until it is seen.
    pub(crate) async fn changed(&mut self) {
        let waits = [
            next(&mut self.pressure).boxed(),
            next(&mut self.shutting_down).boxed(),
            next(&mut self.devices).boxed(),
            next(&mut self.volumes).boxed(),
            next(&mut self.runtime_fault).boxed(),
            next(&mut self.soft_warning).boxed(),
            next(&mut self.slow_calls).boxed(),
        ];
        select_all(waits).await;
    }
}

/// Waits for a change; forever when the sender is dropped.
pub(crate) async fn next<T>(receiver: &mut watch::Receiver<T>) {
    if receiver.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
}
