//! A bounded map whose entries end after a time.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Mutex;
use std::time::Duration;
use tokio::time::Instant;

/// Answers with an end. When full, ended entries go first, then all.
#[derive(Debug)]
pub(super) struct TimedCache<K, V> {
    entries: Mutex<HashMap<K, (V, Instant)>>,
    capacity: usize,
}

impl<K: Eq + Hash, V: Clone> TimedCache<K, V> {
    pub(super) fn new(capacity: usize) -> Self {
        Self { entries: Mutex::new(HashMap::new()), capacity }
    }

    pub(super) fn get(&self, key: &K) -> Option<V> {
        let entries = self.entries.lock().ok()?;
        let (value, until) = entries.get(key)?;
        (*until > Instant::now()).then(|| value.clone())
    }

    pub(super) fn put(&self, key: K, value: V, keep: Duration) {
        let Ok(mut entries) = self.entries.lock() else { return };
        let now = Instant::now();
        if entries.len() >= self.capacity {
            entries.retain(|_, (_, until)| *until > now);
        }
        if entries.len() >= self.capacity {
            entries.clear();
        }
        entries.insert(key, (value, now + keep));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn entries_end_and_the_map_stays_small() {
        let cache = TimedCache::new(2);
        cache.put(1, "a", Duration::from_secs(10));
        assert_eq!(cache.get(&1), Some("a"));
        tokio::time::advance(Duration::from_secs(11)).await;
        assert_eq!(cache.get(&1), None);
        for key in 0..100 {
            cache.put(key, "b", Duration::from_secs(10));
            assert!(cache.entries.lock().unwrap().len() <= 2);
        }
    }
}
