//! `docs/security.md` names tests: each of them exists and runs in CI, and every row of its tables names one.
#![expect(
    clippy::disallowed_methods,
    reason = "a developer tool: plain std::fs with context is enough"
)]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use super::source::collect;

const PAGE: &str = "docs/security.md";

pub(super) fn faults(root: &Path) -> Result<Vec<String>> {
    let page = fs::read_to_string(root.join(PAGE)).with_context(|| format!("read {PAGE}"))?;
    let manifest = root.join("tests/Cargo.toml");
    let manifest = fs::read_to_string(manifest).context("read tests/Cargo.toml")?;
    let by_hand = by_hand(&manifest);
    let mut tests = BTreeSet::new();
    let mut files = Vec::new();
    for folder in ["crates", "tests", "xtask"] {
        collect(&root.join(folder), &mut files)?;
    }
    for path in files {
        let shown = path.strip_prefix(root).unwrap_or(&path).display().to_string();
        if by_hand.iter().any(|name| shown == format!("tests/tests/{name}.rs")) {
            continue;
        }
        let text = fs::read_to_string(&path).with_context(|| format!("read {shown}"))?;
        tests.extend(tests_in(&text));
    }
    Ok(faults_of(&page, &tests))
}

/// Programs that nothing runs by itself.
pub(crate) fn by_hand(manifest: &str) -> Vec<String> {
    let programs = manifest.split("[[test]]").skip(1).filter(|own| own.contains("\ntest = false"));
    let name = |own: &str| own.split("name = \"").nth(1)?.split('"').next().map(str::to_owned);
    programs.filter_map(name).collect()
}

/// The functions of a file that are tests.
fn tests_in(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut is_test = false;
    for line in text.lines().map(str::trim) {
        if line.starts_with("#[test]") || line.starts_with("#[tokio::test") {
            is_test = true;
        } else if let Some(rest) = line.strip_prefix("async fn ").or(line.strip_prefix("fn "))
            && std::mem::take(&mut is_test)
        {
            found.extend(rest.split('(').next().map(str::to_owned));
        }
    }
    found
}

fn faults_of(page: &str, tests: &BTreeSet<String>) -> Vec<String> {
    let mut faults = Vec::new();
    for row in page.lines().filter(|line| line.starts_with("| ")) {
        let Some((_, last)) = row.trim_end_matches([' ', '|']).rsplit_once(" | ") else { continue };
        if last == "shown by" {
            continue;
        }
        let names: Vec<&str> = last.split('`').skip(1).step_by(2).collect();
        if names.is_empty() {
            faults.push(format!("{PAGE}: {row:.60}… names no test"));
        }
        for name in names.into_iter().filter(|name| !tests.contains(*name)) {
            faults.push(format!("{PAGE}: {name} is no test that runs in CI"));
        }
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = "#[test]\nfn is_one() {}\nfn is_none() {}\n#[tokio::test(start_paused = true)]\n\
                          async fn is_another() {}\n";

    #[test]
    fn tests_are_told_from_helpers() {
        assert_eq!(tests_in(SOURCE), ["is_one", "is_another"]);
        let manifest =
            "[[test]]\nname = \"a\"\ntest = false\n\n[[test]]\nname = \"b\"\nharness = false\n";
        assert_eq!(by_hand(manifest), ["a"]);
    }

    #[test]
    fn a_row_names_tests_that_exist() {
        let tests = tests_in(SOURCE).into_iter().collect();
        let head = "| CVE | what | shown by |\n|---|---|---|\n";
        let faults = |row: &str| faults_of(&format!("{head}{row}\n"), &tests).len();
        assert_eq!(faults("| 1 | x | `is_one`, `is_another` |"), 0);
        assert_eq!(faults("| 1 | x | `is_none` |"), 1);
        assert_eq!(faults("| 1 | x | by reading |"), 1);
    }
}
