//! Subsets of a fixed size in upstream's order, with upstream's aliasing of a remembered one.
//!
//! Upstream (`iterateCombinations`) keeps the chosen subset as a Go slice whose memory later subsets may share: a
//! subset that was remembered changes in its last place when the walk goes on with the same beginning and the slice
//! had room. Choices made with four or more NUMA nodes show it, so the growth of Go slices is followed here.

use std::cell::RefCell;
use std::rc::Rc;

/// A subset; clones share memory as Go slices do.
#[derive(Debug, Clone)]
pub(super) struct Subset {
    memory: Rc<RefCell<Vec<i64>>>,
    length: usize,
    capacity: usize,
}

impl Subset {
    fn empty() -> Self {
        Self { memory: Rc::default(), length: 0, capacity: 0 }
    }

    /// One longer: in place while there is room, else in new memory of twice the size.
    fn with(&self, id: i64) -> Self {
        let length = self.length + 1;
        if length <= self.capacity {
            let mut memory = self.memory.borrow_mut();
            match memory.get_mut(self.length) {
                Some(place) => *place = id,
                None => memory.push(id),
            }
            return Self { memory: Rc::clone(&self.memory), length, capacity: self.capacity };
        }
        let mut memory = self.ids();
        memory.push(id);
        let capacity = (self.capacity * 2).max(1);
        Self { memory: Rc::new(RefCell::new(memory)), length, capacity }
    }

    /// Its present content.
    pub(super) fn ids(&self) -> Vec<i64> {
        self.memory.borrow().iter().take(self.length).copied().collect()
    }
}

/// Whether the iteration continues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Walk {
    /// To the next subset.
    On,
    /// It ends.
    Stop,
}

/// Visits every subset of `size` of `ids`.
pub(super) fn each(ids: &[i64], size: usize, visit: &mut dyn FnMut(&Subset) -> Walk) {
    fn step(
        ids: &[i64],
        missing: usize,
        chosen: &Subset,
        visit: &mut dyn FnMut(&Subset) -> Walk,
    ) -> Walk {
        if missing == 0 {
            return visit(chosen);
        }
        let mut rest = ids;
        while let Some((id, tail)) = rest.split_first().filter(|_| rest.len() >= missing) {
            if step(tail, missing - 1, &chosen.with(*id), visit) == Walk::Stop {
                return Walk::Stop;
            }
            rest = tail;
        }
        Walk::On
    }
    if size > 0 {
        step(ids, size, &Subset::empty(), visit);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn remembered(ids: &[i64], size: usize, which: usize) -> (Vec<i64>, Vec<i64>) {
        let mut seen = 0;
        let mut kept = None;
        each(ids, size, &mut |subset| {
            if seen == which {
                kept = Some((subset.ids(), subset.clone()));
            }
            seen += 1;
            Walk::On
        });
        let (then, now) = kept.unwrap();
        (then, now.ids())
    }

    #[test]
    fn subsets_come_in_order() {
        let mut all = Vec::new();
        each(&[3, 1, 2], 2, &mut |subset| {
            all.push(subset.ids());
            Walk::On
        });
        assert_eq!(all, [vec![3, 1], vec![3, 2], vec![1, 2]]);
    }

    #[test]
    fn a_remembered_subset_of_three_stays_and_one_of_four_ends_as_its_last_sibling() {
        let ids = [0, 1, 2, 3, 4, 5];
        assert_eq!(remembered(&ids, 3, 0), (vec![0, 1, 2], vec![0, 1, 2]));
        assert_eq!(remembered(&ids, 4, 0), (vec![0, 1, 2, 3], vec![0, 1, 2, 5]));
        assert_eq!(remembered(&ids, 5, 0), (vec![0, 1, 2, 3, 4], vec![0, 1, 2, 3, 4]));
    }
}
