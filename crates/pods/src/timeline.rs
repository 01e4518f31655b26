//! What happened to one pod, step by step: the data behind `rubelet explain pod`.
//!
//! Promises: bounded (the oldest steps go first; a repeated step only counts up), cheap to write
//! from any task, serialisable as it is.

use jiff::Timestamp;
use ports::Clock;
use serde::Serialize;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

const CAPACITY: usize = 128;

/// One step in a pod's life on this node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Step {
    /// When it first happened.
    pub at: Timestamp,
    /// When it happened last, if it was repeated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_at: Option<Timestamp>,
    /// How often it happened in a row.
    pub times: u32,
    /// What happened, e.g. `sandbox started`.
    pub what: &'static str,
    /// The container it is about, if it is about one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    /// Details: an id, a duration, an error.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub detail: String,
}

/// The bounded list of a pod's steps. Cheap to clone; clones share the list.
#[derive(Debug, Clone)]
pub(crate) struct Timeline {
    steps: Arc<Mutex<VecDeque<Step>>>,
    clock: Arc<dyn Clock>,
}

impl Timeline {
    /// An empty timeline.
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        Self { steps: Arc::new(Mutex::new(VecDeque::new())), clock }
    }

    /// Notes a step of the pod as a whole.
    pub(crate) fn note(&self, what: &'static str, detail: impl Into<String>) {
        self.push(what, None, detail.into());
    }

    /// Notes a step of one container.
    pub(crate) fn note_container(
        &self,
        what: &'static str,
        container: impl Into<String>,
        detail: impl Into<String>,
    ) {
        self.push(what, Some(container.into()), detail.into());
    }

    /// When something happened last.
    pub(crate) fn last_at(&self) -> Option<Timestamp> {
        let steps = self.steps.lock().ok()?;
        steps.back().map(|step| step.last_at.unwrap_or(step.at))
    }

    /// All steps, oldest first.
    pub(crate) fn steps(&self) -> Vec<Step> {
        self.steps.lock().map(|steps| steps.iter().cloned().collect()).unwrap_or_default()
    }

    fn push(&self, what: &'static str, container: Option<String>, detail: String) {
        let at = self.clock.now();
        let Ok(mut steps) = self.steps.lock() else { return };
        if let Some(last) = steps.back_mut()
            && last.what == what
            && last.container == container
            && last.detail == detail
        {
            last.times = last.times.saturating_add(1);
            last.last_at = Some(at);
            return;
        }
        if steps.len() >= CAPACITY {
            steps.pop_front();
        }
        steps.push_back(Step { at, last_at: None, times: 1, what, container, detail });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timeline() -> Timeline {
        Timeline::new(Arc::new(ports::SystemClock))
    }

    #[test]
    fn a_repeated_step_counts_up_instead_of_filling_the_list() {
        let timeline = timeline();
        for _ in 0..5 {
            timeline.note_container("pull failed", "web", "no such host");
        }
        let steps = timeline.steps();
        assert_eq!(steps.len(), 1);
        assert_eq!(steps[0].times, 5);
        assert!(steps[0].last_at.is_some());
    }

    #[test]
    fn the_oldest_steps_go_first() {
        let timeline = timeline();
        for n in 0..CAPACITY + 10 {
            timeline.note("step", n.to_string());
        }
        let steps = timeline.steps();
        assert_eq!(steps.len(), CAPACITY);
        assert_eq!(steps[0].detail, "10");
    }
}
