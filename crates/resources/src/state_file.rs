//! A state file that either kubelet reads.

use std::path::{Path, PathBuf};
use sys::fs::FsError;

/// One file below the root directory.
#[derive(Debug, Clone)]
pub(crate) struct StateFile {
    path: PathBuf,
    /// `cpu` or `memory`.
    kind: &'static str,
}

/// Why CPUs or memory cannot be placed; the words are upstream's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StateError {
    /// The policy cannot work like this.
    #[error("{0}")]
    Policy(String),
    /// What was remembered cannot be used.
    #[error("start {kind} manager error: {cause}")]
    Start {
        /// `cpu` or `memory`.
        kind: &'static str,
        /// What is wrong, and the way out.
        cause: String,
    },
}

impl StateFile {
    /// The file of `cpu` or `memory` in a folder.
    pub(crate) fn new(dir: &Path, kind: &'static str) -> Self {
        Self { path: dir.join(format!("{kind}_manager_state")), kind }
    }

    /// The content; `None` if there is no file.
    pub(crate) fn read(&self) -> Result<Option<String>, StateError> {
        match sys::fs::read_to_string(&self.path) {
            Ok(text) => Ok(Some(text)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(self.unusable(error.source.to_string())),
        }
    }

    /// The file cannot be used.
    pub(crate) fn unusable(&self, cause: String) -> StateError {
        let owner = if self.kind == "cpu" { "CPU" } else { self.kind };
        let path = units::strconv::quote(&self.path.to_string_lossy());
        let cause = format!(
            "could not restore state from checkpoint: {cause}, please drain this node and delete the \
             {owner} manager checkpoint file {path} before restarting Kubelet"
        );
        StateError::Start { kind: self.kind, cause }
    }

    /// The file can be read, but it does not fit this machine or its configuration.
    pub(crate) fn unfit(&self, cause: String) -> StateError {
        let path = self.path.display();
        tracing::error!(err = cause, %path, "invalid state, please drain node and remove policy state file");
        StateError::Start { kind: self.kind, cause }
    }

    /// A failure is logged: the next change writes again.
    pub(crate) fn write(&self, text: &str) {
        if let Err(error) = self.try_write(text) {
            let cause = &error.source;
            tracing::error!(err = %cause, path = %self.path.display(), "Failed to save checkpoint");
        }
    }

    fn try_write(&self, text: &str) -> Result<(), FsError> {
        sys::fs::write_atomic(&self.path, text, 0o600)
    }
}
