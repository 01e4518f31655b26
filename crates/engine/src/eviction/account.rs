//! The explanation of an eviction, with numbers, for the log.

use super::rank::use_and_request;
use super::threshold::Threshold;
use super::{FsLayout, Observations, PodUsage};
use api::core::v1::Pod;
use units::Quantity;
use units::quantity::Format;

/// The position in the order of victims.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The position, from one.
    pub at: usize,
    /// How many are in the order.
    pub of: usize,
}

/// Why a pod is evicted.
#[derive(Debug, Clone, Copy)]
pub struct Cause<'a> {
    /// The threshold that is met.
    pub threshold: &'a Threshold,
    /// By these readings.
    pub observed: &'a Observations,
    /// Where images and writable layers are.
    pub layout: FsLayout,
}

/// The reading that led to it, the threshold, and what placed the pod where it is in the order.
pub fn account(pod: &Pod, usage: Option<&PodUsage>, cause: Cause<'_>, place: Place) -> String {
    let Cause { threshold, observed, layout } = cause;
    let signal = threshold.signal;
    let mut text = match observed.get(&signal) {
        Some(reading) => format!(
            "{} is {} of {}, threshold {}",
            signal.as_str(),
            reading.available,
            reading.capacity,
            threshold.value.quantity(reading.capacity)
        ),
        None => format!("{} was not read again", signal.as_str()),
    };
    let Place { at, of } = place;
    let priority = pod.spec.as_ref().and_then(|s| s.priority).unwrap_or_default();
    let used = match usage {
        Some(usage) => {
            let (used, request) = use_and_request(signal, layout, pod, usage);
            let counted = signal.resource() == "pids" || signal.resource() == "inodes";
            let format = if counted { Format::DecimalSi } else { Format::BinarySi };
            let amount = |n: i128| Quantity::new(i64::try_from(n).unwrap_or(i64::MAX), format);
            format!("uses {} of a request of {}", amount(used), amount(request))
        }
        None => "use unknown".to_owned(),
    };
    text.push_str(&format!("; pod is {at} of {of} in the order: {used}, priority {priority}"));
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eviction::{Observation, Signal, threshold::Value};
    use std::time::Duration;

    #[test]
    fn the_reading_the_threshold_and_the_place_in_the_order_are_told() {
        let pod: Pod = serde_json::from_value(serde_json::json!({
            "metadata": {"name": "p"},
            "spec": {"priority": 7, "containers": [
                {"name": "c", "resources": {"requests": {"memory": "10Mi"}}}]},
        }))
        .unwrap();
        let usage = PodUsage { memory: Some(300 << 20), ..PodUsage::default() };
        let reading = Observation {
            available: Quantity::from_bytes(50 << 20),
            capacity: Quantity::from_bytes(1 << 30),
            at: None,
        };
        let threshold = Threshold {
            signal: Signal::MemoryAvailable,
            value: Value::Amount(Quantity::from_bytes(100 << 20)),
            grace: Duration::ZERO,
            min_reclaim: None,
        };
        let told = |observed: &Observations, usage: Option<&PodUsage>| {
            let cause = Cause { threshold: &threshold, observed, layout: FsLayout::One };
            account(&pod, usage, cause, Place { at: 1, of: 3 })
        };
        assert_eq!(
            told(&Observations::from([(Signal::MemoryAvailable, reading)]), Some(&usage)),
            "memory.available is 50Mi of 1Gi, threshold 100Mi; pod is 1 of 3 in the order: uses 300Mi of \
             a request of 10Mi, priority 7"
        );
        assert_eq!(
            told(&Observations::new(), None),
            "memory.available was not read again; pod is 1 of 3 in the order: use unknown, priority 7"
        );
    }
}
