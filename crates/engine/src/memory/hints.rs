//! Which sets of nodes could satisfy a request.
//!
//! Upstream: `staticPolicy.calculateHints`. A node is used either alone or always in the same group, so a set is
//! feasible only if its nodes are unused or form exactly that group already.

use super::MachineMemory;
use crate::topology::{Hint, NumaMask, ResourceHints, masks_of};
use std::collections::BTreeMap;

/// Bytes by resource name.
pub(super) type Request = BTreeMap<String, u64>;

/// Bytes that earlier init containers leave, by nodes and resource.
pub(super) type Reusable = BTreeMap<NumaMask, Request>;

/// The hints for every requested resource; no entry at all if nothing is feasible.
pub(super) fn feasible(
    machine: &MachineMemory,
    request: &Request,
    reusable: &Reusable,
) -> ResourceHints {
    let nodes: Vec<u32> = machine.keys().copied().collect();
    let mut narrowest = u32::try_from(nodes.len()).unwrap_or(u32::MAX);
    let mut masks = Vec::new();
    for mask in masks_of(&nodes) {
        let fits = |amount: &dyn Fn(&str) -> u64| {
            request.iter().all(|(kind, wanted)| amount(kind) >= *wanted)
        };
        if !fits(&|kind| sum(machine, mask, kind, |table| table.allocatable)) {
            continue;
        }
        narrowest = narrowest.min(mask.count());
        if breaks_group(machine, mask) || alone_in_group(machine, mask) {
            continue;
        }
        let left = |kind: &str| reusable.get(&mask).and_then(|r| r.get(kind)).copied();
        if fits(&|kind| free(machine, mask, kind).saturating_add(left(kind).unwrap_or_default())) {
            masks.push(mask);
        }
    }
    if masks.is_empty() {
        return ResourceHints::new();
    }
    let hints: Vec<Hint> =
        masks.into_iter().map(|mask| Hint::new(mask, mask.count() == narrowest)).collect();
    request.keys().map(|kind| (kind.clone(), Some(hints.clone()))).collect()
}

/// Whether the free memory of these nodes suffices.
pub(super) fn satisfies(machine: &MachineMemory, mask: NumaMask, request: &Request) -> bool {
    request.iter().all(|(kind, wanted)| free(machine, mask, kind) >= *wanted)
}

/// Whether several nodes would be used together although some are used alone or in another group.
pub(super) fn breaks_group(machine: &MachineMemory, mask: NumaMask) -> bool {
    if mask.count() == 1 {
        return false;
    }
    let used = mask.nodes().filter_map(|id| machine.get(&id)).filter(|node| node.assignments > 0);
    used.into_iter()
        .any(|node| node.cells.len() == 1 || NumaMask::of(node.cells.iter().copied()) != mask)
}

/// Whether the mask is a single node that belongs to a group.
fn alone_in_group(machine: &MachineMemory, mask: NumaMask) -> bool {
    mask.count() == 1
        && mask.nodes().filter_map(|id| machine.get(&id)).any(|node| node.cells.len() > 1)
}

/// The preferred, else narrowest, else lowest hint.
pub(super) fn best(hints: &[Hint]) -> Option<(NumaMask, bool)> {
    let mut best: Option<(NumaMask, bool)> = None;
    for hint in hints {
        let Some(mask) = hint.affinity else { continue };
        let better = best.is_none_or(|(held, preferred)| {
            if hint.preferred == preferred { mask.is_narrower_than(held) } else { hint.preferred }
        });
        if better {
            best = Some((mask, hint.preferred));
        }
    }
    best
}

fn free(machine: &MachineMemory, mask: NumaMask, kind: &str) -> u64 {
    sum(machine, mask, kind, |table| table.free)
}

fn sum(
    machine: &MachineMemory,
    mask: NumaMask,
    kind: &str,
    field: impl Fn(&super::MemoryTable) -> u64,
) -> u64 {
    let tables = mask.nodes().filter_map(|id| machine.get(&id)?.tables.get(kind));
    tables.map(field).fold(0, u64::saturating_add)
}
