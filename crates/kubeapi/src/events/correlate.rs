//! Event correlation, without a clock or a connection (upstream: `record.EventCorrelator`).
//!
//! Order: similar events are aggregated, identical ones are counted, and those that exceed the
//! object's budget are dropped.

use jiff::Timestamp;
use lru::LruCache;
use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroUsize;

const CACHE: NonZeroUsize = NonZeroUsize::MIN.saturating_add(4095);
/// From this many distinct messages on, similar events are aggregated.
const SIMILAR: usize = 10;
const SIMILAR_WINDOW_SECONDS: i64 = 600;
const BURST: f64 = 25.0;
const SECONDS_PER_TOKEN: f64 = 300.0;

/// The object of an event, without the field path.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Subject {
    pub(crate) api_version: String,
    pub(crate) kind: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: String,
}

/// An emitted event.
#[derive(Debug, Clone)]
pub(crate) struct Occurrence {
    pub(crate) subject: Subject,
    pub(crate) field_path: Option<String>,
    pub(crate) severity: &'static str,
    pub(crate) reason: String,
    pub(crate) message: String,
    pub(crate) annotations: BTreeMap<String, String>,
    /// When it happened.
    pub(crate) at: Timestamp,
}

/// Identity of an event object.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum EventKey {
    Exact(Box<(Similar, String, String)>),
    Folded(Similar),
}

/// The fields that similar events have in common.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Similar {
    subject: Subject,
    severity: &'static str,
    reason: String,
}

/// The request to send.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Post {
    pub(crate) key: EventKey,
    /// The object to patch; `None` means create one.
    pub(crate) name: Option<String>,
    pub(crate) message: String,
    pub(crate) count: i32,
    pub(crate) first: Timestamp,
    pub(crate) last: Timestamp,
}

impl Post {
    /// Whether it aggregates events with different messages.
    pub(crate) fn is_folded(&self) -> bool {
        matches!(self.key, EventKey::Folded(_))
    }
}

#[derive(Debug)]
struct Fold {
    messages: BTreeSet<String>,
    last: Timestamp,
}

#[derive(Debug, Clone)]
struct Count {
    count: i32,
    first: Timestamp,
    name: Option<String>,
}

#[derive(Debug)]
struct Budget {
    tokens: f64,
    at: Timestamp,
}

#[derive(Debug)]
pub(crate) struct Correlator {
    folds: LruCache<Similar, Fold>,
    counts: LruCache<EventKey, Count>,
    budgets: LruCache<(Subject, &'static str), Budget>,
}

impl Correlator {
    pub(crate) fn new() -> Self {
        Self {
            folds: LruCache::new(CACHE),
            counts: LruCache::new(CACHE),
            budgets: LruCache::new(CACHE),
        }
    }

    /// The request for this event at this time, if any. Aggregation and the budget use the time of
    /// sending, and so does an aggregated event; a single one has its own time.
    pub(crate) fn correlate(&mut self, event: &Occurrence, now: Timestamp) -> Option<Post> {
        let similar = Similar {
            subject: event.subject.clone(),
            severity: event.severity,
            reason: event.reason.clone(),
        };
        let (key, message, at) = match self.is_folded(&similar, &event.message, now) {
            true => {
                let message = format!("(combined from similar events): {}", event.message);
                (EventKey::Folded(similar), message, now)
            }
            false => {
                let part = event.field_path.clone().unwrap_or_default();
                let key = EventKey::Exact(Box::new((similar, part, event.message.clone())));
                (key, event.message.clone(), event.at)
            }
        };
        let known = self.counts.get(&key).cloned();
        let count = Count {
            count: known.as_ref().map_or(1, |k| k.count.saturating_add(1)),
            first: known.as_ref().map_or(at, |k| k.first),
            name: known.and_then(|k| k.name),
        };
        self.counts.put(key.clone(), count.clone());
        if !self.within_budget(event, now) {
            return None;
        }
        let Count { count, first, name } = count;
        Some(Post { key, name, message, count, first, last: at })
    }

    /// The server has stored the event under this name.
    pub(crate) fn stored(&mut self, key: &EventKey, name: String) {
        if let Some(count) = self.counts.get_mut(key) {
            count.name = Some(name);
        }
    }

    fn is_folded(&mut self, similar: &Similar, message: &str, now: Timestamp) -> bool {
        let fresh = || Fold { messages: BTreeSet::new(), last: now };
        let fold = self.folds.get_or_insert_mut(similar.clone(), fresh);
        if now.as_second() - fold.last.as_second() > SIMILAR_WINDOW_SECONDS {
            fold.messages.clear();
        }
        fold.messages.insert(message.to_owned());
        fold.last = now;
        if fold.messages.len() < SIMILAR {
            return false;
        }
        fold.messages.pop_first();
        true
    }

    fn within_budget(&mut self, event: &Occurrence, now: Timestamp) -> bool {
        let key = (event.subject.clone(), event.severity);
        let budget = self.budgets.get_or_insert_mut(key, || Budget { tokens: BURST, at: now });
        let gained = now.duration_since(budget.at).as_secs_f64() / SECONDS_PER_TOKEN;
        budget.tokens = (budget.tokens + gained.max(0.0)).min(BURST);
        budget.at = now;
        let allowed = budget.tokens >= 1.0;
        if allowed {
            budget.tokens -= 1.0;
        }
        allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn occurrence(reason: &str, message: &str) -> Occurrence {
        Occurrence {
            subject: Subject {
                api_version: "v1".into(),
                kind: "Pod".into(),
                namespace: "ns".into(),
                name: "pod".into(),
                uid: "u".into(),
            },
            field_path: None,
            severity: "Normal",
            reason: reason.into(),
            message: message.into(),
            annotations: BTreeMap::new(),
            at: at(0),
        }
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_000_000 + second).unwrap()
    }

    #[test]
    fn counts_identical_events_on_the_stored_object() {
        let mut correlator = Correlator::new();
        let first = correlator.correlate(&occurrence("Pulled", "m"), at(0)).unwrap();
        assert_eq!((first.count, first.name.as_deref()), (1, None));
        correlator.stored(&first.key, "pod.1".into());
        let again = Occurrence { at: at(5), ..occurrence("Pulled", "m") };
        let second = correlator.correlate(&again, at(60)).unwrap();
        assert_eq!((second.count, second.name.as_deref()), (2, Some("pod.1")));
        assert_eq!((second.first, second.last), (at(0), at(5)), "when they happened");
    }

    #[test]
    fn the_field_path_makes_events_different() {
        let mut correlator = Correlator::new();
        correlator.correlate(&occurrence("Started", "m"), at(0)).unwrap();
        let mut other = occurrence("Started", "m");
        other.field_path = Some("spec.containers{b}".into());
        assert_eq!(correlator.correlate(&other, at(0)).unwrap().count, 1);
    }

    #[test]
    fn folds_from_the_tenth_distinct_message_on() {
        let mut correlator = Correlator::new();
        for n in 0..9 {
            let post = correlator.correlate(&occurrence("R", &format!("m{n}")), at(n)).unwrap();
            assert_eq!(post.message, format!("m{n}"));
        }
        let tenth = correlator.correlate(&occurrence("R", "m9"), at(9)).unwrap();
        assert_eq!(tenth.message, "(combined from similar events): m9");
        assert_eq!((tenth.count, tenth.first, tenth.last), (1, at(9), at(9)));
        let next = correlator.correlate(&occurrence("R", "m10"), at(10)).unwrap();
        assert_eq!(next.count, 2, "folded events are one object");
        let later = correlator.correlate(&occurrence("R", "m11"), at(700)).unwrap();
        assert_eq!(later.message, "m11", "ten quiet minutes end the folding");
    }

    #[test]
    fn drops_beyond_the_burst_but_keeps_counting() {
        let mut correlator = Correlator::new();
        for _ in 0..25 {
            assert!(correlator.correlate(&occurrence("R", "m"), at(0)).is_some());
        }
        assert_eq!(correlator.correlate(&occurrence("R", "m"), at(0)), None);
        let later = correlator.correlate(&occurrence("R", "m"), at(300)).unwrap();
        assert_eq!(later.count, 27);
    }
}
