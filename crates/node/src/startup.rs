//! Node startup latency (upstream: `NodeStartupLatencyTracker`).
//!
//! Reported only when this process created the node: a restart on an existing node says nothing
//! about the machine's start.

use jiff::Timestamp;
use telemetry::metrics::{Desc, Kind, Registry, SampleValue};
use tokio::sync::watch;

const NODE_NAME: Desc =
    Desc::alpha("kubelet_node_name", "The node's name. The count is always 1.").labels(&["node"]);
const PRE_KUBELET: Desc = Desc::alpha(
    "kubelet_node_startup_pre_kubelet_duration_seconds",
    "Duration in seconds of node startup before kubelet starts.",
);
const PRE_REGISTRATION: Desc = Desc::alpha(
    "kubelet_node_startup_pre_registration_duration_seconds",
    "Duration in seconds of node startup before registration.",
);
const REGISTRATION: Desc = Desc::alpha(
    "kubelet_node_startup_registration_duration_seconds",
    "Duration in seconds of node startup during registration.",
);
const POST_REGISTRATION: Desc = Desc::alpha(
    "kubelet_node_startup_post_registration_duration_seconds",
    "Duration in seconds of node startup after registration.",
);
const TOTAL: Desc = Desc::alpha(
    "kubelet_node_startup_duration_seconds",
    "Duration in seconds of node startup in total.",
);

/// When the steps of a node's start happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StartupTimes {
    /// The machine's boot.
    pub booted: Option<Timestamp>,
    /// The start of this process' node tasks.
    pub started: Option<Timestamp>,
    /// The first attempt to register.
    pub attempted: Option<Timestamp>,
    /// The creation of the node object.
    pub registered: Option<Timestamp>,
    /// The first status with Ready true.
    pub ready: Option<Timestamp>,
}

impl StartupTimes {
    fn gauges(&self) -> [(Desc, f64); 5] {
        let between = |from: Option<Timestamp>, to: Option<Timestamp>| match (from, to) {
            (Some(from), Some(to)) => to.duration_since(from).as_secs_f64(),
            _ => 0.0,
        };
        // Only if the node was created by this process.
        let made = |from, to| self.registered.map_or(0.0, |_| between(from, to));
        [
            (PRE_KUBELET, made(self.booted, self.started)),
            (PRE_REGISTRATION, made(self.started, self.attempted)),
            (REGISTRATION, between(self.attempted, self.registered)),
            (POST_REGISTRATION, between(self.registered, self.ready)),
            (TOTAL, made(self.booted, self.ready)),
        ]
    }
}

/// Registers name and times as metrics.
pub(crate) fn measure(registry: &Registry, name: String, times: watch::Receiver<StartupTimes>) {
    registry.collector(move |scrape| {
        let one = SampleValue::Number(1.0);
        scrape.family(&NODE_NAME, Kind::Gauge).push_values(&["node"], &[&name], one, None);
        for (desc, seconds) in times.borrow().gauges() {
            let family = scrape.family(&desc, Kind::Gauge);
            family.push(Vec::new(), SampleValue::Number(seconds), None);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_count_only_for_a_node_that_was_created_here() {
        let at = |s| Timestamp::from_second(s).ok();
        let mut times = StartupTimes {
            booted: at(0),
            started: at(10),
            attempted: at(12),
            registered: None,
            ready: None,
        };
        assert!(times.gauges().iter().all(|(_, seconds)| *seconds == 0.0));
        times.registered = at(15);
        times.ready = at(20);
        let seconds: Vec<f64> = times.gauges().iter().map(|(_, s)| *s).collect();
        assert_eq!(seconds, [10.0, 2.0, 3.0, 5.0, 20.0]);
    }
}
