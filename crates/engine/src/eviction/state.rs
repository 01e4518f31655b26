//! Which thresholds are met, and since when.

use super::threshold::{Signal, Threshold};
use super::{Observations, pressures};
use crate::admission::Pressure;
use jiff::Timestamp;
use std::collections::BTreeMap;
use std::time::Duration;

/// State of the eviction loop.
#[derive(Debug, Clone, Default)]
pub struct EvictionState {
    /// Thresholds that are met, and since when without a break.
    first_met: Vec<(Threshold, Timestamp)>,
    /// Thresholds whose grace period was over in the last round: they stay until their minimum reclaim is reached.
    acting: Vec<Threshold>,
    /// When each condition was last caused.
    last_caused: BTreeMap<Pressure, Timestamp>,
    /// Times of the readings used last.
    last_read: BTreeMap<Signal, Timestamp>,
}

/// The result of one round.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Round {
    /// Conditions to report and to admit by.
    pub conditions: Vec<Pressure>,
    /// Thresholds to act on, the most urgent first.
    pub act: Vec<Threshold>,
}

impl EvictionState {
    /// Evaluates new observations.
    pub fn round(
        &mut self,
        thresholds: &[Threshold],
        observed: &Observations,
        transition: Duration,
        now: Timestamp,
    ) -> Round {
        let mut met = met(thresholds, observed, false);
        for threshold in self::met(&self.acting, observed, true) {
            if !met.contains(&threshold) {
                met.push(threshold);
            }
        }
        self.first_met = met
            .iter()
            .map(|threshold| {
                let since = self.first_met.iter().find(|(old, _)| old == threshold);
                (*threshold, since.map_or(now, |(_, since)| *since))
            })
            .collect();
        for pressure in pressures(met.iter()) {
            self.last_caused.insert(pressure, now);
        }
        let conditions = self
            .last_caused
            .iter()
            .filter(|(_, at)| elapsed(**at, now) < transition)
            .map(|(pressure, _)| *pressure)
            .collect();
        self.acting = self
            .first_met
            .iter()
            .filter(|(threshold, since)| elapsed(*since, now) >= threshold.grace)
            .map(|(threshold, _)| *threshold)
            .collect();
        let mut act: Vec<Threshold> =
            self.acting.iter().filter(|t| self.is_news(t.signal, observed)).copied().collect();
        act.sort_by_key(|t| (t.signal.pressure() != Pressure::Memory, t.signal, t.grace));
        self.last_read = observed.iter().filter_map(|(s, o)| Some((*s, o.at?))).collect();
        Round { conditions, act }
    }

    /// Whether no threshold is met any more after node-level reclaim, minimum reclaim included.
    pub fn is_relieved(thresholds: &[Threshold], observed: &Observations) -> bool {
        met(thresholds, observed, true).is_empty()
    }

    fn is_news(&self, signal: Signal, observed: &Observations) -> bool {
        let Some(reading) = observed.get(&signal) else { return false };
        match (reading.at, self.last_read.get(&signal)) {
            (Some(at), Some(last)) => at > *last,
            _ => true,
        }
    }
}

fn met(thresholds: &[Threshold], observed: &Observations, with_reclaim: bool) -> Vec<Threshold> {
    thresholds
        .iter()
        .filter(|t| observed.get(&t.signal).is_some_and(|o| t.is_met(o, with_reclaim)))
        .copied()
        .collect()
}

fn elapsed(since: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(now.duration_since(since)).unwrap_or_default()
}
