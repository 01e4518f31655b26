//! Which events are printed: `--v`, `--vmodule`, and the level of the event.

use std::str::FromStr;
use std::sync::atomic::{AtomicU32, Ordering};

use tracing::level_filters::LevelFilter;
use tracing::{Level, Metadata};

/// Crates of this workspace; events of all others are quieter.
const OURS: [&str; 20] = [
    "units",
    "api",
    "proto",
    "engine",
    "config",
    "ports",
    "telemetry",
    "sys",
    "cri",
    "kubeapi",
    "pods",
    "volumes",
    "resources",
    "node",
    "stats",
    "server",
    "agent",
    "rubelet",
    "testkit",
    "tests",
];
/// How much quieter foreign events are.
const FOREIGN_STEP: u32 = 4;

/// Verbosity per source file: `pattern=N` pairs, first match wins. A pattern is matched against the file's
/// name without its extension and may use `*`, `?` and `[…]`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct VModule(Vec<(String, u32)>);

impl VModule {
    /// From already parsed pairs.
    pub fn new(pairs: impl IntoIterator<Item = (String, u32)>) -> Self {
        Self(pairs.into_iter().collect())
    }

    fn verbosity_of(&self, file: &str) -> Option<u32> {
        let name = file.rsplit('/').next().unwrap_or(file);
        let stem = name.split('.').next().unwrap_or(name);
        let found = self.0.iter().find(|(pattern, _)| glob(pattern, stem));
        found.map(|(_, verbosity)| *verbosity)
    }

    fn highest(&self) -> u32 {
        self.0.iter().map(|(_, verbosity)| *verbosity).max().unwrap_or(0)
    }
}

impl FromStr for VModule {
    type Err = ParseVModuleError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bad = |item: &str| ParseVModuleError { item: item.to_owned() };
        let mut pairs = Vec::new();
        for item in text.split(',').filter(|item| !item.is_empty()) {
            let (pattern, level) = item.split_once('=').ok_or_else(|| bad(item))?;
            let level = level.parse().map_err(|_| bad(item))?;
            if pattern.is_empty() {
                return Err(bad(item));
            }
            pairs.push((pattern.to_owned(), level));
        }
        Ok(Self(pairs))
    }
}

/// A `--vmodule` item is not of the form `pattern=N`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{item:?} does not have the pattern=N format")]
pub struct ParseVModuleError {
    item: String,
}

/// Decides whether an event of a call site and verbosity is printed.
#[derive(Debug)]
pub(super) struct Filter {
    verbosity: AtomicU32,
    vmodule: VModule,
}

impl Filter {
    pub(super) fn new(verbosity: u32, vmodule: VModule) -> Self {
        Self { verbosity: AtomicU32::new(verbosity), vmodule }
    }

    pub(super) fn verbosity(&self) -> u32 {
        self.verbosity.load(Ordering::Relaxed)
    }

    pub(super) fn set_verbosity(&self, verbosity: u32) {
        self.verbosity.store(verbosity, Ordering::Relaxed);
    }

    /// Whether anything of this call site may be printed.
    pub(super) fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        self.allows(metadata, of_level(metadata.level()))
    }

    /// Whether an event of this call site with that verbosity is printed.
    pub(super) fn allows(&self, metadata: &Metadata<'_>, v: u32) -> bool {
        if *metadata.level() <= Level::WARN {
            return true;
        }
        let step = if is_ours(metadata.target()) { 0 } else { FOREIGN_STEP };
        let of_file = metadata.file().and_then(|file| self.vmodule.verbosity_of(file));
        // As with klog, `--vmodule` can only raise the level of a file.
        v.saturating_add(step) <= of_file.unwrap_or_default().max(self.verbosity())
    }

    /// The most detailed level that can be enabled at all.
    pub(super) fn max_level(&self) -> LevelFilter {
        match self.verbosity().max(self.vmodule.highest()) {
            0..=2 => LevelFilter::INFO,
            3..=4 => LevelFilter::DEBUG,
            _ => LevelFilter::TRACE,
        }
    }
}

/// The verbosity of an event that does not set its own.
pub(super) fn of_level(level: &Level) -> u32 {
    match *level {
        Level::TRACE => 5,
        Level::DEBUG => 3,
        _ => 0,
    }
}

fn is_ours(target: &str) -> bool {
    let name = target.split("::").next().unwrap_or(target);
    OURS.contains(&name)
}

/// Shell-like matching of a complete text, as Go's `filepath.Match` without separators.
fn glob(pattern: &str, text: &str) -> bool {
    let pattern: Vec<char> = pattern.chars().collect();
    let text: Vec<char> = text.chars().collect();
    glob_from(&pattern, &text)
}

fn glob_from(pattern: &[char], text: &[char]) -> bool {
    match (pattern, text) {
        ([], []) => true,
        (['*', rest @ ..], _) => {
            glob_from(rest, text) || matches!(text, [_, tail @ ..] if glob_from(pattern, tail))
        }
        (['?', rest @ ..], [_, tail @ ..]) => glob_from(rest, tail),
        (['[', rest @ ..], [c, tail @ ..]) => match class(rest, *c) {
            Some((true, after)) => glob_from(after, tail),
            _ => false,
        },
        ([p, rest @ ..], [c, tail @ ..]) => p == c && glob_from(rest, tail),
        _ => false,
    }
}

/// Parses a character class up to its `]`: whether it contains `c`, and the rest. `None` if it has
/// no end.
fn class(pattern: &[char], c: char) -> Option<(bool, &[char])> {
    let (negated, mut rest) = match pattern {
        ['^', rest @ ..] => (true, rest),
        rest => (false, rest),
    };
    let mut found = false;
    loop {
        match rest {
            [']', after @ ..] => return Some((found != negated, after)),
            [low, '-', high, after @ ..] if *high != ']' => {
                found |= (*low..=*high).contains(&c);
                rest = after;
            }
            [one, after @ ..] => {
                found |= *one == c;
                rest = after;
            }
            [] => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_whole_file_names() {
        for (pattern, text, want) in [
            ("worker", "worker", true),
            ("worker", "workers", false),
            ("work*", "workers", true),
            ("*", "anything", true),
            ("w?rker", "worker", true),
            ("[a-c]at", "bat", true),
            ("[^a-c]at", "bat", false),
            ("[ab", "a", false),
            ("*er*e", "serve", true),
        ] {
            assert_eq!(glob(pattern, text), want, "{pattern} on {text}");
        }
    }

    #[test]
    fn vmodule_reads_pairs_and_names_a_bad_one() {
        let vmodule: VModule = "pleg=4,work*=9".parse().unwrap();
        assert_eq!(vmodule.verbosity_of("crates/pods/src/worker.rs"), Some(9));
        assert_eq!(vmodule.verbosity_of("crates/pods/src/pleg.rs"), Some(4));
        assert_eq!(vmodule.verbosity_of("crates/pods/src/lib.rs"), None);
        let err = "pleg=x".parse::<VModule>().unwrap_err();
        assert_eq!(err.to_string(), "\"pleg=x\" does not have the pattern=N format");
        assert!("=4".parse::<VModule>().is_err());
    }
}
