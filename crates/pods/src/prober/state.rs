//! What one probe does next, as a value (`kubelet: prober worker doProbe`).

use api::ids::ContainerId;
use engine::probe::{ProbeKind, ProbeOutcome};
use jiff::{SignedDuration, Timestamp};

/// Containers that started this long before the agent were there before it.
const RESTART_GRACE: SignedDuration = SignedDuration::from_secs(10);

/// What the cached status says of the container.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Seen {
    /// Its id.
    pub(super) id: ContainerId,
    /// Running since; `None` when it does not run.
    pub(super) running_since: Option<Timestamp>,
    /// Whether it is known to have started.
    pub(super) started: bool,
    /// It has ended and will not run again.
    pub(super) over: bool,
}

/// Settings of the probe.
#[derive(Debug, Clone, Copy)]
pub(super) struct Settings {
    pub(super) kind: ProbeKind,
    pub(super) initial_delay: SignedDuration,
    pub(super) success_threshold: u32,
    pub(super) failure_threshold: u32,
    pub(super) agent_started: Timestamp,
}

/// What to do now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Next {
    /// Nothing this time.
    Wait,
    /// Run the probe.
    Probe,
    /// End this probe.
    Stop,
}

/// A result to store for a container; `None` removes it.
pub(super) type Effect = (ContainerId, Option<ProbeOutcome>);

/// One probe's memory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct ProbeState {
    pub(super) container: Option<ContainerId>,
    pub(super) on_hold: bool,
    pub(super) last: Option<bool>,
    pub(super) run: u32,
}

impl ProbeState {
    /// Looks at the container; says what to do and which results to store first.
    pub(super) fn look(
        &mut self,
        seen: &Seen,
        restored: Option<super::store::Remembered>,
        settings: &Settings,
        now: Timestamp,
    ) -> (Next, Vec<Effect>) {
        let mut effects = Vec::new();
        if self.container.as_ref() != Some(&seen.id) {
            if let Some(old) = self.container.replace(seen.id.clone()) {
                effects.push((old, None));
            }
            self.on_hold = false;
            if let Some(known) = restored {
                (self.on_hold, self.last, self.run) = (known.on_hold, known.last, known.run);
                effects.extend(known.outcome.map(|outcome| (seen.id.clone(), Some(outcome))));
            } else if !was_here_before(seen, settings) {
                let first = match settings.kind {
                    ProbeKind::Readiness => ProbeOutcome::Failure,
                    ProbeKind::Liveness => ProbeOutcome::Success,
                    ProbeKind::Startup => ProbeOutcome::Unknown,
                };
                effects.push((seen.id.clone(), Some(first)));
            }
        }
        if self.on_hold {
            return (Next::Wait, effects);
        }
        let Some(since) = seen.running_since else {
            effects.push((seen.id.clone(), Some(ProbeOutcome::Failure)));
            return (if seen.over { Next::Stop } else { Next::Wait }, effects);
        };
        let early = now.duration_since(since).as_secs() < settings.initial_delay.as_secs();
        let turn = match settings.kind {
            ProbeKind::Startup => !seen.started,
            ProbeKind::Liveness | ProbeKind::Readiness => seen.started,
        };
        (if early || !turn { Next::Wait } else { Next::Probe }, effects)
    }

    /// Takes in one result; the settled outcome if a threshold is reached.
    pub(super) fn take(&mut self, good: bool, settings: &Settings) -> Option<ProbeOutcome> {
        if self.last == Some(good) {
            self.run = self.run.saturating_add(1);
        } else {
            self.last = Some(good);
            self.run = 1;
        }
        let threshold = if good { settings.success_threshold } else { settings.failure_threshold };
        if self.run < threshold {
            return None;
        }
        let settled = match settings.kind {
            ProbeKind::Startup => true,
            ProbeKind::Liveness => !good,
            ProbeKind::Readiness => false,
        };
        if settled {
            self.on_hold = true;
            self.run = 0;
        }
        Some(if good { ProbeOutcome::Success } else { ProbeOutcome::Failure })
    }
}

fn was_here_before(seen: &Seen, settings: &Settings) -> bool {
    seen.running_since
        .is_some_and(|since| settings.agent_started.duration_since(since) > RESTART_GRACE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn settings(kind: ProbeKind) -> Settings {
        Settings {
            kind,
            initial_delay: SignedDuration::ZERO,
            success_threshold: 1,
            failure_threshold: 3,
            agent_started: at(1000),
        }
    }

    fn running(id: &str, since: i64) -> Seen {
        Seen { id: id.into(), running_since: Some(at(since)), started: true, over: false }
    }

    #[test]
    fn two_failures_one_success_two_failures_change_nothing() {
        let mut state = ProbeState::default();
        let settings = settings(ProbeKind::Liveness);
        let results: Vec<_> =
            [false, false, true, false, false].map(|good| state.take(good, &settings)).into();
        assert_eq!(results, [None, None, Some(ProbeOutcome::Success), None, None]);
        assert_eq!(state.take(false, &settings), Some(ProbeOutcome::Failure));
        assert!(state.on_hold);
    }

    #[test]
    fn a_liveness_failure_holds_until_the_container_changes() {
        let mut state = ProbeState::default();
        let settings = settings(ProbeKind::Liveness);
        state.look(&running("a", 2000), None, &settings, at(2001));
        for _ in 0..3 {
            state.take(false, &settings);
        }
        assert_eq!(state.look(&running("a", 2000), None, &settings, at(2010)).0, Next::Wait);
        let (next, effects) = state.look(&running("b", 2020), None, &settings, at(2021));
        assert_eq!(next, Next::Probe);
        assert_eq!(effects, [("a".into(), None), ("b".into(), Some(ProbeOutcome::Success))]);
    }

    #[test]
    fn a_container_from_before_our_start_gets_no_initial_value() {
        let mut state = ProbeState::default();
        let (next, effects) =
            state.look(&running("a", 900), None, &settings(ProbeKind::Readiness), at(1001));
        assert_eq!((next, effects), (Next::Probe, vec![]));
    }

    #[test]
    fn a_remembered_result_and_its_count_are_taken_over() {
        let mut state = ProbeState::default();
        let known = super::super::store::Remembered {
            outcome: Some(ProbeOutcome::Success),
            on_hold: false,
            last: Some(false),
            run: 2,
        };
        let settings = settings(ProbeKind::Readiness);
        let (_, effects) = state.look(&running("a", 999), Some(known), &settings, at(1001));
        assert_eq!(effects, [("a".into(), Some(ProbeOutcome::Success))]);
        assert_eq!(state.take(false, &settings), Some(ProbeOutcome::Failure));
    }

    #[test]
    fn startup_gates_the_other_probes() {
        let seen = Seen { started: false, ..running("a", 2000) };
        let look =
            |kind, seen: &Seen| ProbeState::default().look(seen, None, &settings(kind), at(2001)).0;
        assert_eq!(look(ProbeKind::Readiness, &seen), Next::Wait);
        assert_eq!(look(ProbeKind::Startup, &seen), Next::Probe);
        assert_eq!(look(ProbeKind::Startup, &running("a", 2000)), Next::Wait);
        assert_eq!(look(ProbeKind::Readiness, &running("a", 2000)), Next::Probe);
    }

    #[test]
    fn a_container_that_does_not_run_is_a_failure_at_once() {
        let seen = Seen { running_since: None, over: true, ..running("a", 0) };
        let mut state = ProbeState::default();
        let (next, effects) = state.look(&seen, None, &settings(ProbeKind::Readiness), at(2001));
        assert_eq!(next, Next::Stop);
        assert_eq!(effects.last(), Some(&("a".into(), Some(ProbeOutcome::Failure))));
    }
}
