//! Which of the waiting pulls starts next.

use std::collections::BTreeMap;

/// The order of pulls that wait for a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PullOrder {
    /// First come, first served, as upstream.
    #[default]
    Arrival,
    /// By the priority of their pods; among equals the registry with the fewest running pulls, then first
    /// come, first served.
    Priority,
}

/// A pull that waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiting {
    /// The priority of its pod.
    pub priority: i32,
    /// The registry it pulls from.
    pub registry: String,
}

/// The index of the next of the waiting pulls, which are in order of arrival; `busy` counts running pulls by
/// registry.
pub fn next<'a>(
    order: PullOrder,
    waiting: impl IntoIterator<Item = &'a Waiting>,
    busy: &BTreeMap<String, usize>,
) -> Option<usize> {
    let mut keyed = waiting.into_iter().enumerate().map(|(index, waiting)| match order {
        PullOrder::Arrival => ((0, 0), index),
        PullOrder::Priority => {
            let running = busy.get(&waiting.registry).copied().unwrap_or_default();
            ((-i64::from(waiting.priority), running), index)
        }
    });
    let first = keyed.next()?;
    Some(keyed.fold(first, |best, other| if other.0 < best.0 { other } else { best }).1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting(list: &[(i32, &str)]) -> Vec<Waiting> {
        list.iter()
            .map(|(priority, registry)| Waiting {
                priority: *priority,
                registry: (*registry).to_owned(),
            })
            .collect()
    }

    #[test]
    fn by_arrival_the_first_goes_whoever_it_is() {
        let list = waiting(&[(0, "a"), (9, "b")]);
        assert_eq!(next(PullOrder::Arrival, &list, &BTreeMap::new()), Some(0));
        assert_eq!(next(PullOrder::Arrival, &[], &BTreeMap::new()), None);
    }

    #[test]
    fn by_priority_system_pods_go_first_then_registries_take_turns_then_arrival_counts() {
        let busy = BTreeMap::from([("a".to_owned(), 2), ("b".to_owned(), 1)]);
        for (list, want) in [
            (vec![(0, "b"), (2_000_001_000, "a"), (5, "c")], 1),
            (vec![(0, "a"), (0, "b"), (0, "a")], 1),
            (vec![(0, "a"), (0, "c"), (0, "d")], 1),
            (vec![(i32::MIN, "d"), (-1, "a")], 1),
            (vec![(7, "a"), (7, "a")], 0),
        ] {
            assert_eq!(next(PullOrder::Priority, &waiting(&list), &busy), Some(want), "{list:?}");
        }
    }
}
