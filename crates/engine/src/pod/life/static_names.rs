//! Static pods that share a name start one after another, in order of arrival.

use api::ids::PodUid;
use std::collections::{BTreeMap, VecDeque};

/// Whether a static pod may start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NameClaim {
    /// It holds the name now.
    Now,
    /// Another one holds the name or comes first.
    Later,
    /// It was asked to end before it started.
    Never,
}

/// Which pod holds each full name, and which wait for it.
#[derive(Debug, Default)]
pub(super) struct StaticNames {
    started: BTreeMap<String, PodUid>,
    waiting: BTreeMap<String, VecDeque<PodUid>>,
}

impl StaticNames {
    /// Puts a pod at the end of the queue for its name.
    pub(super) fn enqueue(&mut self, full_name: String, uid: PodUid) {
        let queue = self.waiting.entry(full_name).or_default();
        if !queue.contains(&uid) {
            queue.push_back(uid);
        }
    }

    /// Gives a free name to a pod that runs already.
    pub(super) fn hold(&mut self, full_name: String, uid: PodUid) {
        self.started.entry(full_name).or_insert(uid);
    }

    /// The pod that holds the name.
    pub(super) fn started(&self, full_name: &str) -> Option<&PodUid> {
        self.started.get(full_name)
    }

    /// Gives the name to the pod if it is free and the pod is the first that still wants it.
    pub(super) fn ask(
        &mut self,
        full_name: &str,
        uid: &PodUid,
        ended: impl Fn(&PodUid) -> bool,
    ) -> NameClaim {
        if let Some(holder) = self.started.get(full_name) {
            return if holder == uid { NameClaim::Now } else { NameClaim::Later };
        }
        let Some(queue) = self.waiting.get_mut(full_name) else { return NameClaim::Never };
        while queue.front().is_some_and(|first| first != uid && ended(first)) {
            queue.pop_front();
        }
        if queue.front() != Some(uid) {
            return if queue.contains(uid) { NameClaim::Later } else { NameClaim::Never };
        }
        queue.pop_front();
        if queue.is_empty() {
            self.waiting.remove(full_name);
        }
        self.started.insert(full_name.to_owned(), uid.clone());
        NameClaim::Now
    }

    /// The pod is finished or gone: it neither holds nor waits for the name.
    pub(super) fn release(&mut self, full_name: &str, uid: &PodUid) {
        if self.started.get(full_name) == Some(uid) {
            self.started.remove(full_name);
        }
        if let Some(queue) = self.waiting.get_mut(full_name) {
            queue.retain(|waiting| waiting != uid);
            if queue.is_empty() {
                self.waiting.remove(full_name);
            }
        }
    }
}
