//! A state file in the Go kubelet's format.

use engine::topology::outdated::holds_nothing;
use std::path::{Path, PathBuf};
use sys::fs::FsError;
use units::gojson;

/// One file below the root directory.
#[derive(Debug, Clone)]
pub(crate) struct StateFile {
    path: PathBuf,
    /// `cpu` or `memory`.
    kind: &'static str,
}

/// Why the CPU or memory manager cannot start, in upstream's words.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StateError {
    /// The policy does not accept the configuration.
    #[error("{0}")]
    Policy(String),
    /// The state file is not usable.
    #[error("start {kind} manager error: {cause}")]
    Start {
        /// `cpu` or `memory`.
        kind: &'static str,
        /// What is wrong, and how to repair it.
        cause: String,
    },
}

/// Starts a manager; if the operator chose [`Outdated::GiveUp`] and an unusable state file holds no allocation,
/// starts again without the file. Upstream requires to drain the node and delete the file by hand.
pub fn start_anew<T>(
    dir: &Path,
    outdated: Outdated,
    start: impl Fn() -> Result<T, StateError>,
) -> Result<T, StateError> {
    let error = match start() {
        Err(error @ StateError::Start { .. }) if outdated == Outdated::GiveUp => error,
        done => return done,
    };
    let StateError::Start { kind, .. } = &error else { return Err(error) };
    let file = StateFile::new(dir, kind);
    if !file.read()?.is_some_and(|text| holds_nothing(&text)) {
        return Err(error);
    }
    let path = file.path.display();
    if let Err(error) = sys::fs::remove_file(&file.path) {
        return Err(file.unusable(error.source.to_string()));
    }
    tracing::warn!(err = %error, %path, "discarded an unusable state file that holds no allocation");
    start()
}

/// What to do about an unusable state file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outdated {
    /// The agent does not start, as upstream.
    Refuse,
    /// It is discarded if it holds no allocation.
    GiveUp,
}

impl StateFile {
    /// The file of `cpu` or `memory` in a folder.
    pub(crate) fn new(dir: &Path, kind: &'static str) -> Self {
        Self { path: dir.join(format!("{kind}_manager_state")), kind }
    }

    /// The content; `None` if there is no file.
    pub(crate) fn read(&self) -> Result<Option<String>, StateError> {
        match sys::fs::read(&self.path) {
            Ok(bytes) => match gojson::syntax_fault(&bytes) {
                Some(fault) => Err(self.unusable(fault)),
                None => Ok(Some(gojson::text(&bytes))),
            },
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(self.unusable(error.in_go())),
        }
    }

    /// The error for a file that cannot be read or parsed.
    pub(crate) fn unusable(&self, cause: String) -> StateError {
        let owner = if self.kind == "cpu" { "CPU" } else { self.kind };
        let path = units::strconv::quote(&self.path.to_string_lossy());
        let cause = format!(
            "could not restore state from checkpoint: {cause}, please drain this node and delete the \
             {owner} manager checkpoint file {path} before restarting Kubelet"
        );
        StateError::Start { kind: self.kind, cause }
    }

    /// The error for a file that does not fit this machine or its configuration.
    pub(crate) fn unfit(&self, cause: String) -> StateError {
        let path = self.path.display();
        tracing::error!(err = cause, %path, "invalid state, please drain node and remove policy state file");
        StateError::Start { kind: self.kind, cause }
    }

    /// Writes the file. A failure is only logged: the next change writes again.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_read_is_told_in_upstreams_words() {
        let dir = std::env::temp_dir().join(format!("rubelet-unread-{}", std::process::id()));
        let file = StateFile::new(&dir, "cpu");
        let cause = |error: StateError| error.to_string();
        sys::fs::create_dir_all(&file.path, 0o755).unwrap();
        let shown = file.path.display();
        let (from, way) = ("could not restore state from checkpoint", "please drain this node");
        let fault = cause(file.read().unwrap_err());
        let want = format!("start cpu manager error: {from}: read {shown}: is a directory, {way}");
        assert!(fault.starts_with(&want), "{fault}");
        sys::fs::remove_dir(&file.path).unwrap();
        sys::fs::write(&file.path, [0xff, 0xfe]).unwrap();
        let fault = cause(file.read().unwrap_err());
        let why = "invalid character 'ÿ' looking for beginning of value";
        assert!(fault.starts_with(&format!("start cpu manager error: {from}: {why}, ")), "{fault}");
        sys::fs::remove_file(&file.path).unwrap();
        sys::fs::remove_dir(&dir).unwrap();
    }

    #[test]
    fn only_where_it_is_asked_for_and_only_a_file_that_holds_nothing_is_given_up() {
        let dir = std::env::temp_dir().join(format!("rubelet-outdated-{}", std::process::id()));
        sys::fs::create_dir_all(&dir, 0o755).unwrap();
        let file = StateFile::new(&dir, "cpu");
        // Good is only the policy static.
        let start = || match file.read()? {
            Some(text) if !text.contains("static") => Err(file.unusable("differs".to_owned())),
            found => Ok(found.is_some()),
        };
        let nothing = r#"{"policyName":"none","defaultCpuSet":"","checksum":1}"#;
        let something = r#"{"policyName":"none","entries":{"u":{"c":"1"}},"checksum":1}"#;
        for (text, outdated, want) in [
            (nothing, Outdated::Refuse, None),
            (something, Outdated::GiveUp, None),
            (nothing, Outdated::GiveUp, Some(false)),
        ] {
            file.write(text);
            assert_eq!(start_anew(&dir, outdated, start).ok(), want, "{text}");
            assert_eq!(file.read().unwrap().is_some(), want.is_none(), "{text}");
        }
        file.write(r#"{"policyName":"static"}"#);
        assert_eq!(start_anew(&dir, Outdated::GiveUp, start), Ok(true), "what is good stays");
        sys::fs::remove_file(&file.path).unwrap();
        sys::fs::remove_dir(&dir).unwrap();
    }
}
