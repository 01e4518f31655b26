//! The rules of the tree that no compiler checks, as tests: layers, file heads, sizes, names, crates of others, what
//! documents name and promise, subjects of commits.
//!
//! Each rule is a function from the tree to a list of faults, so that one run names them all.

mod commits;
mod dependencies;
mod documents;
mod items;
mod layers;
mod metrics;
pub(crate) mod security;
mod source;

use std::path::Path;

use anyhow::{Result, bail};

/// Every fault of the tree, a line each.
pub(crate) fn faults(root: &Path) -> Result<Vec<String>> {
    let mut faults = layers::faults(root)?;
    faults.extend(source::faults(root)?);
    faults.extend(items::faults(root)?);
    faults.extend(documents::faults(root)?);
    faults.extend(commits::faults(root));
    faults.extend(dependencies::faults(root)?);
    faults.extend(security::faults(root)?);
    Ok(faults)
}

/// Fails with every fault of the tree.
pub(crate) fn check(root: &Path) -> Result<()> {
    let faults = faults(root)?;
    if faults.is_empty() {
        return Ok(());
    }
    bail!("{} faults:\n{}", faults.len(), faults.join("\n"))
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_tree_keeps_the_rules_of_the_house() {
        super::check(&crate::workspace_root()).unwrap();
    }
}
