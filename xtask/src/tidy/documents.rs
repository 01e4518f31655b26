//! Documents tell the truth: files and modules that they name exist, every crate has its place in
//! `ARCHITECTURE.md`, and `CONTRIBUTING.md` lists each command of the Makefile once.
#![expect(
    clippy::disallowed_methods,
    reason = "a developer tool: plain std::fs with context is enough"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use super::source::collect;

/// The page with the map.
const MAP: &str = "ARCHITECTURE.md";
/// The page with the commands.
const COMMANDS: &str = "CONTRIBUTING.md";
/// Folders of the tree that documents name files of.
const FOLDERS: [&str; 7] = ["crates/", "tests/", "xtask/", "fuzz/", "docs/", "fixtures/", "parts/"];

/// What can be named: the tree's files, and the source of each crate.
#[derive(Debug, Default)]
struct Tree {
    /// Paths from the root of the tree.
    files: BTreeSet<String>,
    /// All source of each crate by the crate's name.
    source: BTreeMap<String, String>,
}

pub(super) fn faults(root: &Path) -> Result<Vec<String>> {
    let tree = Tree::read(root)?;
    let read =
        |path: &str| fs::read_to_string(root.join(path)).with_context(|| format!("read {path}"));
    let mut faults = Vec::new();
    for page in [MAP, COMMANDS, "README.md"] {
        faults.extend(faults_of(page, &read(page)?, &tree, root));
    }
    faults.extend(unmapped(&read(MAP)?, tree.source.keys()));
    faults.extend(commands(&read("Makefile")?, &read(COMMANDS)?));
    Ok(faults)
}

impl Tree {
    fn read(root: &Path) -> Result<Self> {
        let mut tree = Self::default();
        let mut files = Vec::new();
        for folder in ["crates", "tests", "xtask", "fuzz"] {
            collect(&root.join(folder), &mut files)?;
        }
        for path in files {
            let shown = path.strip_prefix(root).unwrap_or(&path).display().to_string();
            let mut parts = shown.split('/');
            if let (Some("crates"), Some(name), Some("src")) =
                (parts.next(), parts.next(), parts.next())
            {
                let text = fs::read_to_string(&path).with_context(|| format!("read {shown}"))?;
                tree.source.entry(name.to_owned()).or_default().push_str(&text);
            }
            tree.files.insert(shown);
        }
        Ok(tree)
    }

    /// Whether a module, or something in it, is there.
    fn has(&self, krate: &str, path: &[&str]) -> bool {
        let Some(source) = self.source.get(krate) else { return false };
        let mut folder = format!("crates/{krate}/src");
        for (at, name) in path.iter().enumerate() {
            let is_module = self.files.contains(&format!("{folder}/{name}.rs"));
            if is_module {
                folder = format!("{folder}/{name}");
            } else {
                return path
                    .get(at..)
                    .is_some_and(|left| left.iter().all(|name| defines(source, name)));
            }
        }
        true
    }
}

/// Whether a crate's source defines something of this name.
fn defines(source: &str, name: &str) -> bool {
    let kinds = ["fn", "struct", "enum", "trait", "type", "const", "static", "mod", "union"];
    kinds.iter().any(|kind| {
        source.match_indices(&format!("{kind} {name}")).any(|(at, found)| {
            let after = source.get(at + found.len()..).and_then(|rest| rest.chars().next());
            !after.is_some_and(|c| c.is_alphanumeric() || c == '_')
        })
    })
}

/// What a page names that is not there.
fn faults_of(page: &str, text: &str, tree: &Tree, root: &Path) -> Vec<String> {
    let mut faults = Vec::new();
    // Every other piece stands between back-ticks; fenced drawings name nothing.
    let prose: String = text.split("```").step_by(2).collect();
    for name in prose.split('`').skip(1).step_by(2).flat_map(spelled_out) {
        let is_path = FOLDERS.iter().any(|folder| name.starts_with(folder))
            && !name.contains([' ', '*', '…', '<', '$']);
        let is_file = name.ends_with(".rs") && !name.contains([' ', '/', '*']);
        let (krate, path) = name.split_once("::").unwrap_or((&name, ""));
        let known = if is_path {
            // `tests/NAME` is also how the test run names a program.
            root.join(&name).exists() || tree.files.contains(&format!("tests/{name}.rs"))
        } else if is_file {
            tree.files.iter().any(|file| file.ends_with(&format!("/{name}")))
        } else if path.is_empty() || !tree.source.contains_key(krate) {
            continue;
        } else {
            let path: Vec<&str> = path.trim_end_matches("()").split("::").collect();
            tree.has(krate, &path)
        };
        if !known {
            faults.push(format!("{page}: names `{name}`, which is not there"));
        }
    }
    faults
}

/// `a::{b,c}` is `a::b` and `a::c`.
fn spelled_out(name: &str) -> Vec<String> {
    match name.split_once("::{").and_then(|(head, rest)| Some((head, rest.strip_suffix('}')?))) {
        Some((head, list)) => {
            list.split(',').map(|one| format!("{head}::{}", one.trim())).collect()
        }
        None => vec![name.to_owned()],
    }
}

/// Crates without a row, a point or a heading of the map.
fn unmapped<'a>(map: &str, crates: impl Iterator<Item = &'a String>) -> Vec<String> {
    let places: Vec<&str> =
        map.lines().filter(|line| line.starts_with(['|', '#', '-', '*'])).collect();
    let missing =
        crates.filter(|name| !places.iter().any(|place| place.contains(&format!("`{name}`"))));
    missing.map(|name| format!("{MAP}: does not say what the crate {name} is for")).collect()
}

/// Commands of the Makefile's help that the page does not list once, and listed ones that are not there.
fn commands(makefile: &str, page: &str) -> Vec<String> {
    let helped: BTreeSet<&str> = makefile
        .lines()
        .filter_map(|line| line.strip_prefix("## make ")?.split_whitespace().next())
        .collect();
    let phony: BTreeSet<&str> =
        makefile.lines().filter_map(|line| line.strip_prefix(".PHONY: ")).collect();
    let mut listed: BTreeMap<&str, usize> = BTreeMap::new();
    for cell in page.lines().filter_map(|line| line.strip_prefix("| `")?.split(" | ").next()) {
        for code in cell.split('`').filter_map(|code| code.strip_prefix("make ")) {
            *listed.entry(code.split_whitespace().next().unwrap_or_default()).or_default() += 1;
        }
    }
    let mut faults = Vec::new();
    for name in helped.iter().filter(|name| listed.get(**name) != Some(&1)) {
        let times = listed.get(name).copied().unwrap_or_default();
        faults.push(format!("{COMMANDS}: lists `make {name}` {times} times, not once"));
    }
    for name in listed.keys().filter(|name| !phony.contains(**name)) {
        faults.push(format!("{COMMANDS}: `make {name}` is not in the Makefile"));
    }
    for name in helped.difference(&phony) {
        faults.push(format!("Makefile: helps with `make {name}`, which is not there"));
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree() -> Tree {
        Tree {
            files: ["crates/pods/src/view.rs", "crates/pods/src/view/task.rs"]
                .map(str::to_owned)
                .into(),
            source: BTreeMap::from([(
                "pods".to_owned(),
                "pub struct PodsHandle;\nmod view;\npub fn start() {}\n".to_owned(),
            )]),
        }
    }

    fn faults_in(text: &str) -> Vec<String> {
        faults_of(MAP, text, &tree(), &crate::workspace_root())
    }

    #[test]
    fn what_is_there_may_be_named() {
        for good in [
            "`pods::view`, `pods::view::task`, `pods::PodsHandle`, `pods::start()`",
            "`crates/pods/src/lib.rs` and `crates/pods/src/`, `task.rs`",
            "`pods::{view,start}`; `std::fs`, `Tasks::spawn`, `cargo test -p pods`",
            "```\n`pods::gone`\n```",
        ] {
            assert_eq!(faults_in(good), Vec::<String>::new(), "{good}");
        }
    }

    #[test]
    fn a_page_that_names_a_module_that_is_not_there_is_a_fault() {
        for bad in [
            "`pods::gone`",
            "`pods::view::gone`",
            "`pods::{view,gone}`",
            "`pods::Pods`",
            "`crates/pods/src/gone.rs`",
            "`gone.rs`",
        ] {
            assert_eq!(faults_in(bad).len(), 1, "{bad}");
        }
    }

    #[test]
    fn every_crate_has_its_place_on_the_map() {
        let crates = ["pods".to_owned(), "sys".to_owned()];
        assert!(unmapped("| L2 | `pods` | x |\n- `sys`: y\n", crates.iter()).is_empty());
        assert_eq!(unmapped("| L2 | `pods` |\nin `sys` too\n", crates.iter()).len(), 1);
    }

    #[test]
    fn commands_are_listed_once() {
        let makefile = "## make a   x\n.PHONY: a\na:\n.PHONY: inner\n";
        assert!(commands(makefile, "| `make a B=1` | x, as `make c` |\n").is_empty());
        assert_eq!(commands(makefile, "").len(), 1, "missing");
        assert_eq!(commands(makefile, "| `make a` | x |\n| `make a` | y |\n").len(), 1, "twice");
        assert_eq!(commands(makefile, "| `make a`, `make b` | x |\n").len(), 1, "unknown");
        assert_eq!(commands("## make a   x\n", "").len(), 2, "no target");
    }
}
