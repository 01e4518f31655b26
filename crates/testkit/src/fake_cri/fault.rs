//! Calls that go wrong on purpose.

use std::fmt::Debug;
use std::time::Duration;

use cri::{Call, Code};

/// Makes calls go wrong: which, how, how often. By default the next matching call fails as unavailable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    call: Option<Call>,
    matching: Option<String>,
    action: Action,
    left: Option<u32>,
}

impl Fault {
    /// Calls of one kind.
    pub fn on(call: Call) -> Self {
        let action = Action::Fail(Code::Unavailable, "injected".to_owned());
        Self { call: Some(call), matching: None, action, left: Some(1) }
    }

    /// Calls of any kind.
    pub fn on_any() -> Self {
        Self { call: None, ..Self::on(Call::Version) }
    }

    /// Only requests in whose debug form this text appears (an id, a name, an image).
    pub fn matching(self, text: &str) -> Self {
        Self { matching: Some(text.to_owned()), ..self }
    }

    /// The next `count` matching calls.
    pub fn times(self, count: u32) -> Self {
        Self { left: Some(count), ..self }
    }

    /// Every matching call until the faults are cleared.
    pub fn always(self) -> Self {
        Self { left: None, ..self }
    }

    /// Fails without any effect.
    pub fn fail(self, code: Code, text: &str) -> Self {
        Self { action: Action::Fail(code, text.to_owned()), ..self }
    }

    /// Takes effect, but answers with an error.
    pub fn fail_after_effect(self, code: Code, text: &str) -> Self {
        Self { action: Action::FailAfter(code, text.to_owned()), ..self }
    }

    /// Answers later.
    pub fn delay(self, delay: Duration) -> Self {
        Self { action: Action::Delay(delay), ..self }
    }

    /// Never answers and has no effect.
    pub fn hang(self) -> Self {
        Self { action: Action::Hang, ..self }
    }

    /// Takes effect, but never answers.
    pub fn hang_after_effect(self) -> Self {
        Self { action: Action::HangAfter, ..self }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Action {
    Fail(Code, String),
    FailAfter(Code, String),
    Delay(Duration),
    Hang,
    HangAfter,
}

/// The faults in force, oldest first.
#[derive(Debug, Default)]
pub(super) struct Faults(Vec<Fault>);

impl Faults {
    pub(super) fn add(&mut self, fault: Fault) {
        self.0.push(fault);
    }

    /// The action for a call, used up by one.
    pub(super) fn take(&mut self, call: Call, request: &impl Debug) -> Option<Action> {
        if self.0.is_empty() {
            return None;
        }
        let text = format!("{request:?}");
        let hits = |fault: &Fault| {
            fault.call.is_none_or(|wanted| wanted == call)
                && fault.matching.as_ref().is_none_or(|part| text.contains(part))
        };
        let at = self.0.iter().position(hits)?;
        let fault = self.0.get_mut(at)?;
        let action = fault.action.clone();
        if let Some(left) = &mut fault.left {
            *left = left.saturating_sub(1);
            if *left == 0 {
                self.0.remove(at);
            }
        }
        Some(action)
    }
}
