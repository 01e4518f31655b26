//! What happened to one pod, step by step: the data behind `rubelet explain pod`.
//!
//! Promises: bounded (the oldest steps go first; a repeated step only counts up), cheap to write
//! from any task.

use jiff::{SignedDuration, Timestamp};
use ports::{Clock, PastStep};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

const CAPACITY: usize = 128;

#[derive(Debug, Clone, PartialEq, Eq)]
struct Step {
    at: Timestamp,
    last_at: Option<Timestamp>,
    times: u32,
    what: &'static str,
    container: Option<String>,
    detail: String,
}

#[derive(Debug, Default)]
struct Recorded {
    steps: VecDeque<Step>,
    next_look: Option<Timestamp>,
}

/// The bounded list of a pod's steps. Cheap to clone; clones share the list.
#[derive(Debug, Clone)]
pub(crate) struct Timeline {
    recorded: Arc<Mutex<Recorded>>,
    clock: Arc<dyn Clock>,
}

impl Timeline {
    /// An empty timeline.
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        Self { recorded: Arc::default(), clock }
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
        let recorded = self.recorded.lock().ok()?;
        recorded.steps.back().map(|step| step.last_at.unwrap_or(step.at))
    }

    /// Says in how long the pod is looked at again; `None` if nothing but news leads to it.
    pub(crate) fn appoint(&self, ahead: Option<Duration>) {
        let ahead = ahead.and_then(|wait| SignedDuration::try_from(wait).ok());
        let next_look = ahead.and_then(|ahead| self.clock.now().checked_add(ahead).ok());
        if let Ok(mut recorded) = self.recorded.lock() {
            recorded.next_look = next_look;
        }
    }

    /// All steps, oldest first, and the moment of the next look.
    pub(crate) fn read(&self) -> (Vec<PastStep>, Option<Timestamp>) {
        let Ok(recorded) = self.recorded.lock() else { return (Vec::new(), None) };
        let steps = recorded.steps.iter().map(|step| PastStep {
            at: step.at,
            last_at: step.last_at,
            times: step.times,
            what: step.what.to_owned(),
            container: step.container.clone(),
            detail: step.detail.clone(),
        });
        (steps.collect(), recorded.next_look)
    }

    fn push(&self, what: &'static str, container: Option<String>, detail: String) {
        let at = self.clock.now();
        let Ok(mut recorded) = self.recorded.lock() else { return };
        let steps = &mut recorded.steps;
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
        let (steps, _) = timeline.read();
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
        let (steps, _) = timeline.read();
        assert_eq!(steps.len(), CAPACITY);
        assert_eq!(steps[0].detail, "10");
    }
}
