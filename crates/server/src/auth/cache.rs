//! A cache with expiry, bounded in entries and bytes.
//!
//! Promises: keys are not stored, only their HMAC under a key of this process, so that large keys
//! take no memory and a memory dump does not show which token was valid; a full cache drops the
//! older half of its entries.

use ring::hmac;
use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::sync::Mutex;
use std::time::Duration;
use tokio::time::Instant;

/// The HMAC of a cache key.
type Digest = [u8; 32];

/// How many bytes a cached value takes besides its own size.
pub(super) trait Weight {
    fn weight(&self) -> usize;
}

impl Weight for bool {
    fn weight(&self) -> usize {
        0
    }
}

impl Weight for () {
    fn weight(&self) -> usize {
        0
    }
}

/// Values with an expiry time.
#[derive(Debug)]
pub(super) struct TimedCache<V> {
    key: Option<hmac::Key>,
    answers: Mutex<Answers<V>>,
    capacity: usize,
    most_bytes: usize,
}

#[derive(Debug)]
struct Answers<V> {
    all: HashMap<Digest, (V, Instant)>,
    bytes: usize,
}

impl<V: Clone + Weight> TimedCache<V> {
    pub(super) fn new(capacity: usize, most_bytes: usize) -> Self {
        let random = ring::rand::SystemRandom::new();
        // Without random numbers there is no HMAC key, and nothing is cached.
        let key = hmac::Key::generate(hmac::HMAC_SHA256, &random).ok();
        let answers = Mutex::new(Answers { all: HashMap::new(), bytes: 0 });
        Self { key, answers, capacity, most_bytes }
    }

    fn digest(&self, question: &impl Hash) -> Option<Digest> {
        let mut digest = Feed(hmac::Context::with_key(self.key.as_ref()?));
        question.hash(&mut digest);
        digest.0.sign().as_ref().try_into().ok()
    }

    pub(super) fn get(&self, question: &impl Hash) -> Option<V> {
        let digest = self.digest(question)?;
        let answers = self.answers.lock().ok()?;
        let (value, until) = answers.all.get(&digest)?;
        (*until > Instant::now()).then(|| value.clone())
    }

    pub(super) fn put(&self, question: &impl Hash, value: V, keep: Duration) {
        let weight = value.weight();
        let Some(digest) = self.digest(question).filter(|_| weight <= self.most_bytes) else {
            return;
        };
        let Ok(mut answers) = self.answers.lock() else { return };
        let now = Instant::now();
        answers.forget(&digest);
        let full = |answers: &Answers<V>| {
            answers.all.len() >= self.capacity || answers.bytes + weight > self.most_bytes
        };
        if full(&answers) {
            answers.keep_after(now);
        }
        while full(&answers) && !answers.all.is_empty() {
            let middle = answers.middle();
            answers.keep_after(middle);
        }
        answers.bytes += weight;
        answers.all.insert(digest, (value, now + keep));
    }
}

impl<V: Weight> Answers<V> {
    fn forget(&mut self, digest: &Digest) {
        if let Some((value, _)) = self.all.remove(digest) {
            self.bytes -= value.weight();
        }
    }

    fn keep_after(&mut self, end: Instant) {
        self.all.retain(|_, (_, until)| *until > end);
        self.bytes = self.all.values().map(|(value, _)| value.weight()).sum();
    }

    /// The time at which half of the entries have expired.
    fn middle(&self) -> Instant {
        let mut ends: Vec<Instant> = self.all.values().map(|(_, until)| *until).collect();
        let half = ends.len() / 2;
        *ends.select_nth_unstable(half).1
    }
}

/// Feeds everything that is hashed into the HMAC.
struct Feed(hmac::Context);

impl Hasher for Feed {
    fn write(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    fn finish(&self) -> u64 {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    impl Weight for &'static str {
        fn weight(&self) -> usize {
            self.len()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn entries_end_and_the_map_stays_small() {
        let cache = TimedCache::new(4, 1000);
        cache.put(&1, "a", Duration::from_secs(10));
        assert_eq!((cache.get(&1), cache.get(&2)), (Some("a"), None));
        tokio::time::advance(Duration::from_secs(11)).await;
        assert_eq!(cache.get(&1), None);
        for key in 0..100 {
            tokio::time::advance(Duration::from_millis(1)).await;
            cache.put(&key, "b", MINUTE);
            assert!(cache.answers.lock().unwrap().all.len() <= 4);
            assert_eq!(cache.get(&key), Some("b"), "the newest is there");
        }
        assert_eq!(cache.get(&98), Some("b"), "and the one before");
    }

    #[tokio::test(start_paused = true)]
    async fn bytes_are_bounded_too() {
        let cache = TimedCache::new(100, 10);
        for key in 0..100 {
            cache.put(&key, "four", MINUTE);
            cache.put(&key, "four", MINUTE);
            let answers = cache.answers.lock().unwrap();
            assert!(answers.bytes <= 10 && answers.bytes == answers.all.len() * 4);
        }
        cache.put(&7, "too long for it", MINUTE);
        assert_eq!(cache.get(&7), None);
    }

    #[tokio::test]
    async fn of_a_question_only_a_digest_is_kept() {
        let (one, other) = (TimedCache::<bool>::new(1, 1), TimedCache::<bool>::new(1, 1));
        let token = "x".repeat(1 << 20);
        assert!(one.digest(&token) == one.digest(&token) && one.digest(&token) != one.digest(&"x"));
        assert_ne!(one.digest(&token), other.digest(&token), "each has a key of its own");
        assert_ne!(one.digest(&("ab", "c")), one.digest(&("a", "bc")));
    }
}
