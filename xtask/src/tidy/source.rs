//! Rules about files: how they open, how long they are, what they may not hold.
#![expect(
    clippy::disallowed_methods,
    reason = "a developer tool: plain std::fs with context is enough"
)]

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::metrics;

/// A file longer than this has two reasons to change.
const MAX_LINES: usize = 800;
/// Long by nature: one row per thing, with a single reason to change.
const TABLES: [&str; 1] = ["crates/config/src/gates/table.rs"];
/// Folders with source of our own.
const SOURCE: [&str; 4] = ["crates", "xtask", "tests", "fuzz"];
/// The crate that may hold unsafe code.
const UNSAFE_CRATE: &str = "sys";

pub(super) fn faults(root: &Path) -> Result<Vec<String>> {
    let mut faults = Vec::new();
    for name in ["Cargo.lock", "rust-toolchain.toml"] {
        if !root.join(name).is_file() {
            faults.push(format!("{name}: is missing"));
        }
    }
    let table = root.join("fixtures/parity/metrics.tsv");
    let table = fs::read_to_string(&table).with_context(|| format!("read {}", table.display()))?;
    let table = metrics::table(&table);
    let mut files = Vec::new();
    for folder in SOURCE {
        collect(&root.join(folder), &mut files)?;
    }
    for path in files {
        let shown = path.strip_prefix(root).unwrap_or(&path).display().to_string();
        let text = fs::read_to_string(&path).with_context(|| format!("read {shown}"))?;
        if shown.ends_with("Cargo.toml") {
            faults.extend(faults_of_manifest(&shown, &text));
        } else {
            faults.extend(faults_of_source(&shown, &text));
            if shown.starts_with("crates/") && !shown.ends_with("tests.rs") {
                faults.extend(metrics::faults(&shown, &text, &table));
            }
        }
    }
    Ok(faults)
}

/// Rust files and manifests below a folder, sorted.
pub(super) fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    if !folder.is_dir() {
        return Ok(());
    }
    let entries = fs::read_dir(folder).with_context(|| format!("list {}", folder.display()))?;
    let mut paths =
        entries.map(|entry| entry.map(|e| e.path())).collect::<std::io::Result<Vec<_>>>()?;
    paths.sort();
    for path in paths {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if path.is_dir() {
            if name != "target" && !name.starts_with('.') {
                collect(&path, files)?;
            }
        } else if name.ends_with(".rs") || name == "Cargo.toml" {
            files.push(path);
        }
    }
    Ok(())
}

fn faults_of_manifest(shown: &str, text: &str) -> Vec<String> {
    let is_package = text.lines().any(|line| line.trim() == "[package]");
    let inherits = text.contains("[lints]\nworkspace = true");
    // The fuzz crate is a workspace of its own.
    if is_package && !inherits && !shown.starts_with("fuzz/") {
        return vec![format!("{shown}: does not take the workspace's lints")];
    }
    Vec::new()
}

fn faults_of_source(shown: &str, text: &str) -> Vec<String> {
    if shown.contains("/generated/") {
        return Vec::new();
    }
    let mut faults = Vec::new();
    let mut fault = |what: String| faults.push(format!("{shown}: {what}"));
    if !text.starts_with("//!") {
        fault("does not open with `//!`".to_owned());
    }
    if shown.ends_with("/mod.rs") {
        fault("is a mod.rs; name it after its module".to_owned());
    }
    let lines = text.lines().count();
    if lines > MAX_LINES && !TABLES.contains(&shown) {
        fault(format!("has {lines} lines, more than {MAX_LINES}"));
    }
    let is_root = shown.ends_with("src/lib.rs") || shown.ends_with("src/main.rs");
    let may_be_unsafe = shown.starts_with(&format!("crates/{UNSAFE_CRATE}/"));
    if is_root && !may_be_unsafe && !text.contains("#![forbid(unsafe_code)]") {
        fault("lacks #![forbid(unsafe_code)]".to_owned());
    }
    let product = shown.starts_with("crates/") && !shown.starts_with("crates/testkit/");
    let product = product && !shown.contains("/tests/") && !shown.ends_with("/tests.rs");
    let own = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    for (at, line) in own.lines().enumerate().filter(|_| product) {
        if starts_shell(line) {
            fault(format!("line {}: starts a shell; programs are started by name", at + 1));
        }
    }
    for (at, line) in text.lines().enumerate() {
        if has_bare_todo(line) {
            fault(format!("line {}: open work without an issue number, like `TODO(#12)`", at + 1));
        }
    }
    faults
}

/// Whether a line starts a shell, to which a text from outside could be a command.
fn starts_shell(line: &str) -> bool {
    let shells = ["sh", "bash", "dash", "ash", "/bin/sh", "/bin/bash", "/usr/bin/env"];
    shells.iter().any(|shell| line.contains(&format!("Command::new(\"{shell}\")")))
}

/// Whether a line holds the word `TODO` (or `FIXME`) that does not name an issue.
fn has_bare_todo(line: &str) -> bool {
    ["TODO", "FIXME"].iter().any(|word| {
        line.match_indices(word).any(|(at, _)| {
            let before = line.get(..at).and_then(|text| text.chars().next_back());
            let after = line.get(at + word.len()..).unwrap_or_default();
            let is_word =
                !before.is_some_and(is_name) && !after.chars().next().is_some_and(is_name);
            let names_issue = after
                .strip_prefix("(#")
                .is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
            // Inside quotes it is data: this file, or a text of somebody else's.
            is_word && !names_issue && before != Some('"') && before != Some('`')
        })
    })
}

fn is_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_good_file_has_no_faults() {
        let text = "//! Does a thing.\n#![forbid(unsafe_code)]\n// TODO(#12): more\n";
        assert_eq!(faults_of_source("crates/x/src/lib.rs", text), Vec::<String>::new());
        assert!(faults_of_source("crates/proto/src/generated/x.rs", "no head").is_empty());
        assert!(faults_of_source("crates/sys/src/lib.rs", "//! Unsafe.\n").is_empty());
    }

    #[test]
    fn each_rule_is_seen_when_broken() {
        let long = "//! x\n".repeat(MAX_LINES + 1);
        for (shown, text) in [
            ("crates/x/src/a.rs", "fn a() {}\n"),
            ("crates/x/src/a/mod.rs", "//! x\n"),
            ("crates/x/src/a.rs", long.as_str()),
            ("crates/x/src/lib.rs", "//! x\n"),
            ("crates/x/src/a.rs", concat!("//! x\n// TO", "DO: later\n")),
            ("crates/x/src/a.rs", concat!("//! x\n// FIX", "ME(somebody)\n")),
            ("crates/x/src/a.rs", "//! x\nlet c = Command::new(\"sh\");\n"),
        ] {
            assert_eq!(faults_of_source(shown, text).len(), 1, "{shown}: {text:.40}");
        }
    }

    #[test]
    fn a_manifest_takes_the_common_lints() {
        let good = "[package]\nname = \"x\"\n\n[lints]\nworkspace = true\n";
        assert!(faults_of_manifest("crates/x/Cargo.toml", good).is_empty());
        assert_eq!(faults_of_manifest("crates/x/Cargo.toml", "[package]\n").len(), 1);
    }
}
