//! Small numbers in an order that a seed fixes.

/// A seeded source of small numbers.
#[derive(Debug)]
pub struct Rng(u64);

impl Rng {
    /// From this seed.
    #[must_use]
    pub fn new(seed: u64) -> Rng {
        Rng(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(seed))
    }

    /// From the seed that `SEED` names, else from `default`.
    #[must_use]
    pub fn from_env(default: u64) -> Rng {
        let seed = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok());
        Rng::new(seed.unwrap_or(default))
    }

    /// A number below `limit`, which is not zero.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }

    /// Put a list into another order.
    pub fn shuffle<T>(&mut self, list: &mut [T]) {
        for at in (1..list.len()).rev() {
            let other = self.below(at as u64 + 1);
            list.swap(at, usize::try_from(other).unwrap_or_default());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_order_again() {
        let order = |seed| {
            let mut list: Vec<u32> = (0..20).collect();
            Rng::new(seed).shuffle(&mut list);
            list
        };
        assert_eq!(order(5), order(5));
        assert_ne!(order(5), order(6));
        let mut sorted = order(5);
        sorted.sort_unstable();
        assert_eq!(sorted, (0..20).collect::<Vec<_>>());
    }
}
