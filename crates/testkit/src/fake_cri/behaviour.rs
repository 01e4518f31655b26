//! What a fake container's process does.

use std::time::Duration;

/// A process, as far as a runtime sees it. The default runs until it is told to stop and then ends at once.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Behaviour {
    /// How long it runs by itself; for ever if unset.
    pub runs_for: Option<Duration>,
    /// The code it exits with by itself.
    pub exit_code: i32,
    /// What it does with the stop signal.
    pub on_term: OnTerm,
    /// Creating the container fails with this text.
    pub create_error: Option<String>,
    /// Starting it fails with this text (and leaves it exited with code 128, as runc's failure does).
    pub start_error: Option<String>,
    /// How long the runtime takes to start it.
    pub start_takes: Duration,
    /// What it leaves as termination message, if the pod mounted the file for it.
    pub termination_message: Option<String>,
    /// Lines it writes to its log at the start, if the log's folder is there.
    pub output: Vec<String>,
}

impl Behaviour {
    /// Exits at once with a code.
    pub fn exits(exit_code: i32) -> Self {
        Self::exits_after(Duration::ZERO, exit_code)
    }

    /// Exits with a code after a while.
    pub fn exits_after(runs_for: Duration, exit_code: i32) -> Self {
        Self { runs_for: Some(runs_for), exit_code, ..Self::default() }
    }

    /// Runs until it is killed.
    pub fn ignores_term() -> Self {
        Self { on_term: OnTerm::Ignore, ..Self::default() }
    }
}

/// What a process does with the stop signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnTerm {
    /// Ends after a while with a code.
    Exit {
        /// How long it takes.
        after: Duration,
        /// Its code.
        code: i32,
    },
    /// Nothing: it must be killed.
    Ignore,
}

impl Default for OnTerm {
    fn default() -> Self {
        Self::Exit { after: Duration::ZERO, code: 143 }
    }
}
