//! Sets of NUMA nodes.

use std::fmt;

/// A set of NUMA nodes 0–63; ordered by value as upstream orders masks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct NumaMask(u64);

impl NumaMask {
    /// The mask of these nodes; nodes above 63 are left out.
    pub fn of(nodes: impl IntoIterator<Item = u32>) -> Self {
        let bit = |node: u32| 1_u64.checked_shl(node).unwrap_or_default();
        Self(nodes.into_iter().fold(0, |mask, node| mask | bit(node)))
    }

    /// How many nodes.
    pub fn count(self) -> u32 {
        self.0.count_ones()
    }

    /// Whether there are none.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether `node` is in.
    pub fn contains(self, node: u32) -> bool {
        self.0 & 1_u64.checked_shl(node).unwrap_or_default() != 0
    }

    /// Nodes in both.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Nodes in either.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Fewer nodes, or as many and a lower value.
    pub fn is_narrower_than(self, other: Self) -> bool {
        (self.count(), self.0) < (other.count(), other.0)
    }

    /// The nodes, ascending.
    pub fn nodes(self) -> impl Iterator<Item = u32> {
        (0..64).filter(move |node| self.contains(*node))
    }
}

/// Upstream's binary form, padded to whole pairs of digits.
impl fmt::Display for NumaMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shift = (1..32).rev().map(|pair| pair * 2).find(|shift| self.0 > 1_u64 << shift);
        write!(f, "{:0width$b}", self.0, width = shift.unwrap_or_default() + 2)
    }
}

impl fmt::Debug for NumaMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Every non-empty subset of `nodes`: smaller ones first, then in the order of `nodes`.
pub fn masks_of(nodes: &[u32]) -> Vec<NumaMask> {
    fn grow(nodes: &[u32], taken: NumaMask, missing: usize, out: &mut Vec<NumaMask>) {
        if missing == 0 {
            out.push(taken);
            return;
        }
        let mut rest = nodes;
        while let Some((node, tail)) = rest.split_first() {
            grow(tail, taken.or(NumaMask::of([*node])), missing - 1, out);
            rest = tail;
        }
    }
    let mut out = Vec::new();
    (1..=nodes.len()).for_each(|size| grow(nodes, NumaMask::default(), size, &mut out));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subsets_come_smallest_first() {
        let shown: Vec<String> = masks_of(&[0, 1, 2]).iter().map(ToString::to_string).collect();
        assert_eq!(shown, ["01", "10", "100", "11", "0101", "0110", "0111"]);
    }

    #[test]
    fn narrower_means_fewer_nodes_then_a_lower_value() {
        let (one, two, both) = (NumaMask::of([0]), NumaMask::of([1]), NumaMask::of([0, 1]));
        assert!(one.is_narrower_than(two) && two.is_narrower_than(both));
        assert!(!one.is_narrower_than(one));
    }

    #[test]
    fn a_node_above_the_mask_is_left_out() {
        assert_eq!(NumaMask::of([64, 3]).nodes().collect::<Vec<_>>(), [3]);
    }
}
