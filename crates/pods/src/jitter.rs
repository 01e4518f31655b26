//! A seeded source of spread, so that a run can be repeated.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Numbers in 0..1. Cheap to clone; clones share the sequence.
#[derive(Debug, Clone)]
pub struct Jitter {
    state: Arc<AtomicU64>,
}

impl Jitter {
    /// A sequence that begins at `seed`.
    pub fn seeded(seed: u64) -> Self {
        Self { state: Arc::new(AtomicU64::new(seed)) }
    }

    /// The next number in 0..1.
    pub fn next(&self) -> f64 {
        // splitmix64
        let mut z = self.state.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
        let high = u32::try_from(z >> 32).unwrap_or_default();
        f64::from(high) / (f64::from(u32::MAX) + 1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_seeds_give_equal_numbers_below_one() {
        let (a, b) = (Jitter::seeded(7), Jitter::seeded(7));
        for _ in 0..1000 {
            let number = a.next();
            assert!((0.0..1.0).contains(&number));
            assert!((number - b.next()).abs() < f64::EPSILON);
        }
    }
}
