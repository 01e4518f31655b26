//! What every stage works with: settings, clock, places, metrics, channels and tasks.

use super::channels::Listeners;
use crate::settings;
use config::Config;
use jiff::Timestamp;
use ports::{Clock, Roots, SystemClock, Tasks};
use std::sync::Arc;
use telemetry::metrics::Registry;

/// Made once, before the first stage.
pub(crate) struct StartContext<'a> {
    pub(crate) config: &'a Config,
    pub(crate) tasks: &'a Tasks,
    pub(crate) clock: Arc<dyn Clock>,
    /// When the start began.
    pub(crate) began: Timestamp,
    pub(crate) roots: Roots,
    /// Shown on `/metrics`.
    pub(crate) registry: Registry,
    /// Shown on `/metrics/probes`.
    pub(crate) probe_registry: Registry,
    pub(crate) listeners: Listeners,
}

impl<'a> StartContext<'a> {
    pub(super) fn new(config: &'a Config, tasks: &'a Tasks, listeners: Listeners) -> Self {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        Self {
            config,
            tasks,
            began: clock.now(),
            clock,
            roots: settings::roots(config),
            registry: Registry::new(),
            probe_registry: Registry::new(),
            listeners,
        }
    }
}
