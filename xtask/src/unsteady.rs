//! Remembers which test programs were unsteady (failed beside others, passed by themselves) on which tree, so that one
//! that is so twice on the same tree fails the run: once may be a busy machine, twice is a race.
//!
//! A line each, `TREE PROGRAM`, in a file of the build folder; only the last [`KEPT`] lines stay.
#![expect(
    clippy::disallowed_methods,
    reason = "a developer's tool: it blocks, and names the paths itself"
)]

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};

/// Lines that are kept.
const KEPT: usize = 500;

/// Adds this run's unsteady programs to the file; gives those that were in it already for this tree.
pub(crate) fn note(file: &Path, tree: &str, unsteady: &[String]) -> Result<Vec<String>> {
    if unsteady.is_empty() {
        return Ok(Vec::new());
    }
    let text = match fs::read_to_string(file) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(error).with_context(|| format!("read {}", file.display())),
    };
    let line = |name: &String| format!("{tree} {name}");
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let again: Vec<String> =
        unsteady.iter().filter(|name| lines.contains(&line(name))).cloned().collect();
    lines.extend(unsteady.iter().filter(|name| !again.contains(name)).map(line));
    let from = lines.len().saturating_sub(KEPT);
    let kept = lines.get(from..).unwrap_or_default().join("\n");
    fs::write(file, format!("{kept}\n")).with_context(|| format!("write {}", file.display()))?;
    Ok(again)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_is_unsteady_twice_on_one_tree_is_named() {
        let file = std::env::temp_dir().join(format!("unsteady-{}", std::process::id()));
        let names = |names: &[&str]| names.iter().map(|&n| n.to_owned()).collect::<Vec<_>>();
        assert!(note(&file, "t1", &names(&["a", "b"])).unwrap().is_empty());
        assert!(note(&file, "t2", &names(&["a"])).unwrap().is_empty(), "another tree");
        assert!(note(&file, "t1", &names(&["c"])).unwrap().is_empty(), "another program");
        assert!(note(&file, "t1", &[]).unwrap().is_empty());
        assert_eq!(note(&file, "t1", &names(&["b", "d"])).unwrap(), ["b"]);
        fs::remove_file(file).unwrap();
    }
}
