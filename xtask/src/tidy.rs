//! The rules of the tree that no compiler checks, as tests: layers, file heads, sizes, names.
//!
//! Each rule is a function from the tree to a list of faults, so that one run names them all.

mod layers;
mod metrics;
mod source;

use std::path::Path;

use anyhow::{Result, bail};

/// Every fault of the tree, a line each.
pub(crate) fn faults(root: &Path) -> Result<Vec<String>> {
    let mut faults = layers::faults(root)?;
    faults.extend(source::faults(root)?);
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
