//! Subjects of commits: short enough for every tool that shows them in a line.
//!
//! Looked at: what came after [`BASE`], as far as this clone knows; a shallow one has less, an export none.

use std::path::Path;
use std::process::Command;

/// The last commit before the rule was checked.
const BASE: &str = "37acf7a";
/// Characters of a subject.
const MAX_SUBJECT: usize = 72;
/// How many commits of a clone that does not reach back to [`BASE`] are looked at.
const NEWEST: &str = "--max-count=20";

pub(super) fn faults(root: &Path) -> Vec<String> {
    let git = |arguments: &[&str]| {
        let output = Command::new("git").args(arguments).current_dir(root).output().ok()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        output.status.success().then_some(text)
    };
    let form = "--format=%h %s";
    let since = format!("{BASE}..HEAD");
    let known = git(&["merge-base", "--is-ancestor", BASE, "HEAD"]).is_some();
    let range = if known { since.as_str() } else { NEWEST };
    faults_of(&git(&["log", "--no-merges", form, range]).unwrap_or_default())
}

fn faults_of(log: &str) -> Vec<String> {
    let commits = log.lines().filter_map(|line| line.split_once(' '));
    let long = commits.filter(|(_, subject)| subject.chars().count() > MAX_SUBJECT);
    long.map(|(hash, subject)| {
        format!("commit {hash}: the subject has over {MAX_SUBJECT} characters: {subject}")
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subject_fits_in_a_line() {
        let log = |long: usize| format!("abc Short\ndef {}\n", "x".repeat(long));
        assert_eq!(faults_of(&log(MAX_SUBJECT)), Vec::<String>::new());
        assert_eq!(faults_of(&log(MAX_SUBJECT + 1)).len(), 1);
        assert_eq!(faults_of(""), Vec::<String>::new());
    }
}
