//! Spreading CPUs evenly over as few NUMA nodes as hold them.
//!
//! Upstream: `takeByTopologyNUMADistributed`. Among the sets of nodes that can give an even share the one is taken
//! that leaves the nodes most alike (lowest standard deviation of what is free afterwards).

use super::Level;
use super::combinations::{Subset, Walk, each};
use super::take::{Caches, Free, TakeError, packed};
use std::collections::BTreeMap;
use units::CpuSet;

/// Nodes that share evenly, and those that provide the remainder.
struct Choice {
    balance: f64,
    nodes: Subset,
    extra: Option<Subset>,
}

/// Takes `count` CPUs in groups of `group`.
pub(super) fn distributed(
    mut free: Free<'_>,
    count: usize,
    group: usize,
) -> Result<CpuSet, TakeError> {
    if !count.is_multiple_of(group) {
        return packed(&free, count, Caches::Ignored);
    }
    if count == 0 {
        return Ok(CpuSet::new());
    }
    if count > free.cpus.len() {
        return Err(TakeError::TooFew { requested: count, available: free.cpus.len() });
    }
    let nodes = free.numa_nodes();
    let (fewest, most) = widths(&free, count, group);
    for width in fewest..=most {
        let mut best: Option<Choice> = None;
        each(&nodes, width, &mut |subset| {
            if best.as_ref().is_some_and(|best| best.balance == 0.0) {
                return Walk::Stop;
            }
            if let Some((balance, extra)) = weigh(&free, &nodes, &subset.ids(), (count, group))
                && best.as_ref().is_none_or(|best| balance < best.balance)
            {
                best = Some(Choice { balance, nodes: subset.clone(), extra });
            }
            Walk::On
        });
        if let Some(best) = best {
            return hand_out(&mut free, &best, count, group);
        }
    }
    packed(&free, count, Caches::Ignored)
}

/// The smallest and largest number of nodes to consider.
fn widths(free: &Free<'_>, count: usize, group: usize) -> (usize, usize) {
    let nodes = free.topology.ids(Level::Numa).len().max(1);
    let groups_per_node = free.topology.cpus.len().div_ceil(group).div_ceil(nodes);
    let needed = count.div_ceil(group);
    (needed.div_ceil(groups_per_node.max(1)), needed.min(free.numa_nodes().len()))
}

/// The balance score of these nodes, and which of them provide the remainder; `None` if they cannot share evenly.
fn weigh(
    free: &Free<'_>,
    all: &[i64],
    nodes: &[i64],
    (count, group): (usize, usize),
) -> Option<(f64, Option<Subset>)> {
    let available = |node: &i64| free.of(Level::Numa, *node).len();
    let groups: usize = nodes.iter().map(|node| available(node) / group).sum();
    if groups * group < count {
        return None;
    }
    let share = share(count, nodes.len(), group);
    if nodes.iter().any(|node| available(node) < share) {
        return None;
    }
    let mut left: BTreeMap<i64, usize> = all.iter().map(|node| (*node, available(node))).collect();
    for node in nodes {
        left.entry(*node).and_modify(|left| *left -= share);
    }
    let rest = count - share * nodes.len();
    if rest == 0 {
        return Some((deviation(&left), None));
    }
    let has_group = |node: &&i64| left.get(node).is_some_and(|left| *left >= group);
    let givers: Vec<i64> = nodes.iter().filter(has_group).copied().collect();
    let mut best: Option<(f64, Option<Subset>)> = None;
    for width in (1..=givers.len()).rev() {
        each(&givers, width, &mut |subset| {
            if let Some(after) = without_rest(&left, &subset.ids(), rest, group) {
                let balance = deviation(&after);
                if best.as_ref().is_none_or(|(lowest, _)| balance < *lowest) {
                    best = Some((balance, Some(subset.clone())));
                }
            }
            Walk::On
        });
    }
    best
}

/// The free CPUs left after the remainder is distributed round by round.
fn without_rest(
    left: &BTreeMap<i64, usize>,
    givers: &[i64],
    rest: usize,
    group: usize,
) -> Option<BTreeMap<i64, usize>> {
    let mut left = left.clone();
    let mut rest = rest;
    if givers.iter().filter_map(|node| left.get(node)).sum::<usize>() < rest {
        return None;
    }
    while rest > 0 {
        let before = rest;
        for node in givers {
            if let Some(left) = left.get_mut(node).filter(|left| **left >= group)
                && rest > 0
            {
                *left -= group;
                rest -= group;
            }
        }
        if rest == before {
            return None;
        }
    }
    Some(left)
}

fn hand_out(
    free: &mut Free<'_>,
    choice: &Choice,
    count: usize,
    group: usize,
) -> Result<CpuSet, TakeError> {
    let mut taken = CpuSet::new();
    let mut take = |free: &mut Free<'_>, node: i64, amount: usize| {
        let inside = free.only(free.of(Level::Numa, node));
        let cpus = packed(&inside, amount, Caches::Ignored).unwrap_or_default();
        free.cpus = free.cpus.difference(&cpus);
        taken = taken.union(&cpus);
    };
    let nodes = choice.nodes.ids();
    let share = share(count, nodes.len(), group);
    nodes.iter().for_each(|node| take(free, *node, share));
    let mut rest = count - share * nodes.len();
    let givers = choice.extra.as_ref().map(Subset::ids).unwrap_or_default();
    while rest > 0 {
        let before = rest;
        for node in &givers {
            if rest > 0 && free.of(Level::Numa, *node).len() >= group {
                take(free, *node, group);
                rest -= group;
            }
        }
        if rest == before {
            break;
        }
    }
    let missing =
        i64::try_from(count).unwrap_or_default() - i64::try_from(taken.len()).unwrap_or_default();
    match missing {
        0 => Ok(taken),
        1.. => Err(TakeError::Accounting { what: "not enough", remaining: missing }),
        _ => Err(TakeError::Accounting { what: "too many", remaining: missing }),
    }
}

/// What each node gives: whole groups only.
fn share(count: usize, nodes: usize, group: usize) -> usize {
    count.checked_div(nodes).unwrap_or_default() / group * group
}

/// The standard deviation, rounded to three decimals on the way as upstream does.
#[expect(clippy::cast_precision_loss, reason = "numbers of CPUs")]
fn deviation(left: &BTreeMap<i64, usize>) -> f64 {
    let rounded = |value: f64| (value * 1000.0).round() / 1000.0;
    let count = left.len() as f64;
    let mean = rounded(left.values().map(|left| *left as f64).sum::<f64>() / count);
    let squares: f64 = left.values().map(|left| (*left as f64 - mean).powi(2)).sum();
    rounded((squares / count).sqrt())
}
