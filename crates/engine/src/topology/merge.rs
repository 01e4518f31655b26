//! Merging the hints of all providers into one.
//!
//! Upstream: `HintMerger.Merge`, `Policy.Merge`. Every combination of one hint per resource gives a candidate (the
//! nodes common to all); candidates are compared pairwise, the best stays.

use super::{Hint, NumaMask, OptionFault, ResourceHints, TopologyOptions};
use std::collections::{BTreeMap, BTreeSet};

/// Which policy merges.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PolicyKind {
    /// Nothing is aligned.
    None,
    /// Align if possible.
    BestEffort,
    /// Refuse what is not aligned.
    Restricted,
    /// Refuse what does not fit one node.
    SingleNumaNode,
}

/// The NUMA nodes of the machine.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Numa {
    /// Distance to every node, in order of node number, by node; empty if unknown.
    pub distances: BTreeMap<u32, Vec<u64>>,
}

impl Numa {
    /// Every node.
    pub fn all(&self) -> NumaMask {
        NumaMask::of(self.distances.keys().copied())
    }

    fn average_distance(&self, mask: NumaMask) -> f64 {
        let (mut sum, mut count) = (0.0, 0.0);
        for one in mask.nodes() {
            for other in mask.nodes() {
                let known = self.distances.get(&one);
                let known = known.and_then(|row| row.get(usize::try_from(other).ok()?));
                #[expect(clippy::cast_precision_loss, reason = "distances are small numbers")]
                let distance = known.copied().unwrap_or_default() as f64;
                sum += distance;
                count += 1.0;
            }
        }
        if count > 0.0 { sum / count } else { 0.0 }
    }

    /// The better of two masks by distance.
    fn closest(&self, one: NumaMask, other: NumaMask) -> NumaMask {
        if one.count() != other.count() {
            return narrowest(one, other);
        }
        let (near, far) = (self.average_distance(one), self.average_distance(other));
        match near.total_cmp(&far) {
            std::cmp::Ordering::Less => one,
            std::cmp::Ordering::Greater => other,
            std::cmp::Ordering::Equal => one.min(other),
        }
    }
}

fn narrowest(one: NumaMask, other: NumaMask) -> NumaMask {
    if one.is_narrower_than(other) { one } else { other }
}

/// A policy with what it needs to know of the machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    kind: PolicyKind,
    numa: Numa,
    options: TopologyOptions,
}

impl Policy {
    /// The policy for a machine; options are ignored for `none`.
    pub fn new(
        kind: PolicyKind,
        numa: Numa,
        options: &BTreeMap<String, String>,
    ) -> Result<Self, OptionFault> {
        if kind == PolicyKind::None {
            return Ok(Self { kind, numa, options: TopologyOptions::default() });
        }
        let options = TopologyOptions::parse(options)?;
        if options.prefer_closest && numa.distances.values().any(Vec::is_empty) {
            return Err(OptionFault(
                "cannot discover NUMA topology: error getting NUMA distances from cadvisor"
                    .to_owned(),
            ));
        }
        if i64::try_from(numa.distances.len()).unwrap_or(i64::MAX) > options.max_nodes {
            return Err(OptionFault(format!(
                "unsupported on machines with more than {} NUMA Nodes",
                options.max_nodes
            )));
        }
        Ok(Self { kind, numa, options })
    }

    /// Which one it is.
    pub fn kind(&self) -> PolicyKind {
        self.kind
    }

    /// The best merged hint of all providers, and whether the policy admits it.
    pub fn merge(&self, providers: &[ResourceHints]) -> (Hint, bool) {
        if self.kind == PolicyKind::None {
            return (Hint::default(), true);
        }
        let mut hints = flatten(providers);
        if self.kind == PolicyKind::SingleNumaNode {
            for one in &mut hints {
                one.retain(|hint| hint.preferred && hint.affinity.is_none_or(|m| m.count() == 1));
            }
        }
        let mut best = self.best(&hints);
        if self.kind == PolicyKind::SingleNumaNode && best.affinity == Some(self.numa.all()) {
            best.affinity = None;
        }
        (best, self.kind == PolicyKind::BestEffort || best.preferred)
    }

    fn best(&self, hints: &[Vec<Hint>]) -> Hint {
        let everywhere = self.numa.all();
        let need = widest_need(hints);
        let mut best: Option<Candidate> = None;
        for partial in combinations(hints) {
            let candidate = Candidate {
                mask: partial.mask.map_or(everywhere, |mask| mask.and(everywhere)),
                preferred: partial.preferred,
            };
            best = self.better(best, candidate, need);
        }
        match best {
            Some(best) => Hint::new(best.mask, best.preferred),
            None => Hint::new(everywhere, false),
        }
    }

    fn fitter(&self, current: Candidate, candidate: Candidate) -> Candidate {
        if candidate.mask == current.mask {
            return current;
        }
        let closest = self.options.prefer_closest && self.kind != PolicyKind::SingleNumaNode;
        let best = if closest {
            self.numa.closest(current.mask, candidate.mask)
        } else {
            narrowest(current.mask, candidate.mask)
        };
        if best == current.mask { current } else { candidate }
    }

    /// The better of two candidates; `need` is the width that unpreferred candidates should be close to.
    fn better(
        &self,
        current: Option<Candidate>,
        candidate: Candidate,
        need: u32,
    ) -> Option<Candidate> {
        if candidate.mask.is_empty() {
            return current;
        }
        let Some(current) = current else { return Some(candidate) };
        Some(match (current.preferred, candidate.preferred) {
            (false, true) => candidate,
            (true, false) => current,
            (true, true) => self.fitter(current, candidate),
            (false, false) => {
                let (held, offered) = (current.mask.count(), candidate.mask.count());
                if held > need {
                    self.fitter(current, candidate)
                } else if held == need {
                    if offered == need { self.fitter(current, candidate) } else { current }
                } else if offered > need {
                    current
                } else if offered == need || offered > held {
                    candidate
                } else if offered < held {
                    current
                } else {
                    self.fitter(current, candidate)
                }
            }
        })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Candidate {
    mask: NumaMask,
    preferred: bool,
}

/// One hint of each of the first resources. While `preferred`, all masks so far are equal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Partial {
    /// Nodes common to all that name some.
    mask: Option<NumaMask>,
    preferred: bool,
}

impl Partial {
    fn with(self, hint: Hint) -> Self {
        let preferred = self.preferred && hint.preferred;
        match (self.mask, hint.affinity) {
            (mask, None) | (None, mask) => Self { mask, preferred },
            (Some(held), Some(mask)) => {
                Self { mask: Some(held.and(mask)), preferred: preferred && held == mask }
            }
        }
    }
}

/// The results of every combination of one hint per resource. The comparison is a total order, so equal results are
/// kept only once, and there are at most twice as many as masks.
fn combinations(hints: &[Vec<Hint>]) -> BTreeSet<Partial> {
    let mut reached = BTreeSet::from([Partial { mask: None, preferred: true }]);
    for own in hints {
        reached =
            reached.iter().flat_map(|partial| own.iter().map(|hint| partial.with(*hint))).collect();
    }
    reached
}

/// One list of hints per provider and resource.
fn flatten(providers: &[ResourceHints]) -> Vec<Vec<Hint>> {
    let mut all = Vec::new();
    for provider in providers {
        if provider.is_empty() {
            all.push(vec![Hint::any()]);
        }
        for hints in provider.values() {
            all.push(match hints {
                None => vec![Hint::any()],
                Some(hints) if hints.is_empty() => vec![Hint::default()],
                Some(hints) => hints.clone(),
            });
        }
    }
    all
}

/// The largest, over all resources, of the smallest width that satisfies the resource.
fn widest_need(hints: &[Vec<Hint>]) -> u32 {
    let narrowest =
        |own: &Vec<Hint>| own.iter().filter_map(|h| h.affinity.map(NumaMask::count)).min();
    hints.iter().filter_map(narrowest).max().unwrap_or_default()
}

#[cfg(test)]
#[path = "merge/tests.rs"]
mod tests;
