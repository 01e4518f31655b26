//! Calls to plugins on behalf of containers: one at a time to each plugin, each in a task of its own.
//!
//! Upstream admits one pod after the other and waits for ever for a plugin, so one that hangs keeps every later pod
//! from starting. Here whoever admits waits for a moment only. Then the pod is set aside, others go first, and it is
//! judged again once its plugin has answered, failed or had its time. Pods that need the same plugin wait for it
//! before anything is decided about them, so no device is promised twice.
//!
//! ```text
//! give ─▶ turn ─▶ choose ─▶ task: (GetPreferredAllocation ─▶) Allocate ─▶ book, checkpoint ─▶ turn ends
//!           └─ taken ─▶ waits        └─ a moment passed ─▶ waits; abandoned: what was chosen is free again
//! ```

use super::Devices;
use super::allocate::{ALLOCATE, wishes};
use crate::lock;
use api::core::v1::Pod;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// How long whoever admits waits for a plugin before others go first.
pub(super) const MOMENT: Duration = Duration::from_millis(250);

/// When a call is told as one that does not come back.
const SHOWN_AFTER: Duration = Duration::from_secs(5);

/// How long somebody waits for a plugin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Patience {
    /// Others wait meanwhile: a moment.
    Moment,
    /// Nobody else does: until it has answered or had its time.
    Full,
}

/// Why a container has no devices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum NotGiven {
    /// Its plugin has not answered yet.
    Waits(String),
    /// It cannot have them.
    Failed(String),
}

/// One container's wish for one resource.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Wish {
    pub(super) uid: String,
    pub(super) container: String,
    pub(super) resource: String,
}

/// A call under way.
#[derive(Debug)]
struct Call {
    id: u64,
    wish: Wish,
    /// `namespace/name`.
    pod: String,
    step: &'static str,
    began: Instant,
    token: CancellationToken,
}

impl Call {
    /// What others wait for.
    fn told_to(&self, uid: &str) -> String {
        let Self { wish, step, pod, .. } = self;
        let whom = if wish.uid == uid { String::new() } else { format!(" for pod {pod}") };
        format!("the device plugin of {} to answer {step}{whom}", wish.resource)
    }
}

/// Calls under way by resource, and how others failed.
#[derive(Debug, Default)]
pub(super) struct Calls {
    last_id: u64,
    running: BTreeMap<String, Call>,
    failed: BTreeMap<Wish, String>,
}

impl Calls {
    fn is_running(&self, resource: &str, id: u64) -> bool {
        self.running.get(resource).is_some_and(|call| call.id == id)
    }
}

/// The right to call a plugin; it ends when dropped.
#[derive(Debug)]
pub(super) struct Turn {
    devices: Devices,
    pub(super) wish: Wish,
    /// Tells it from others.
    pub(super) id: u64,
    pub(super) token: CancellationToken,
}

impl Turn {
    /// Tells what is asked now.
    pub(super) fn asks(&self, step: &'static str) {
        let mut calls = lock(&self.devices.inner.calls);
        if let Some(call) = calls.running.get_mut(&self.wish.resource).filter(|c| c.id == self.id) {
            call.step = step;
        }
    }

    /// Does something unless the call was abandoned, which cannot happen meanwhile.
    pub(super) fn unless_abandoned(&self, act: impl FnOnce()) -> bool {
        let calls = lock(&self.devices.inner.calls);
        let wanted = calls.is_running(&self.wish.resource, self.id);
        if wanted {
            act();
        }
        wanted
    }

    /// Remembers why nothing came of it.
    pub(super) fn failed(&self, fault: String) {
        let mut calls = lock(&self.devices.inner.calls);
        if calls.is_running(&self.wish.resource, self.id) {
            calls.failed.insert(self.wish.clone(), fault);
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.devices.end(&self.wish.resource, self.id);
    }
}

impl Devices {
    /// What a pod waits for before anything can be decided about it: a plugin that is still asked for somebody.
    pub(super) fn busy(&self, pod: &Pod) -> Option<String> {
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        let spec = pod.spec.as_ref()?;
        let containers = spec.init_containers.iter().flatten().chain(&spec.containers);
        let calls = lock(&self.inner.calls);
        if calls.running.is_empty() {
            return None;
        }
        for container in containers {
            for (resource, _) in wishes(container).into_iter().filter(|(_, count)| *count > 0) {
                let Some(call) = calls.running.get(&resource) else { continue };
                if self.book(|book| book.held(uid, &container.name, &resource).is_none()) {
                    return Some(call.told_to(uid));
                }
            }
        }
        None
    }

    /// Waits until no plugin that the pod needs is asked for somebody.
    pub(super) async fn free(&self, pod: &Pod) {
        let mut news = self.inner.news.subscribe();
        // The sender lives as long as we do; a call has its time.
        let _ = news.wait_for(|()| self.busy(pod).is_none()).await;
    }

    /// Gives up what is asked for a pod.
    pub(super) fn abandon(&self, uid: &str) {
        self.abandon_where(|wish| wish.uid == uid);
    }

    /// Gives up what is asked for such wishes.
    pub(super) fn abandon_where(&self, is_given_up: impl Fn(&Wish) -> bool) {
        let gone: Vec<(String, u64)> = {
            let mut calls = lock(&self.inner.calls);
            calls.failed.retain(|wish, _| !is_given_up(wish));
            let gone = calls.running.values().filter(|call| is_given_up(&call.wish));
            gone.map(|call| (call.wish.resource.clone(), call.id)).collect()
        };
        for (resource, id) in gone {
            self.end(&resource, id);
            self.book(|book| book.recount());
        }
    }

    /// Plugins that do not come back, each with what it was asked and since when.
    pub fn hung(&self) -> Vec<String> {
        let calls = lock(&self.inner.calls);
        let long = calls.running.values().filter(|call| call.began.elapsed() >= SHOWN_AFTER);
        long.map(|Call { wish, step, pod, began, .. }| {
            let (age, limit) = (began.elapsed().as_secs(), ALLOCATE.as_secs());
            let resource = &wish.resource;
            format!("{step} of the device plugin of {resource} for pod {pod} for {age}s (given up after {limit}s)")
        })
        .collect()
    }

    /// Why the last call for this wish failed; told once.
    pub(super) fn take_fault(&self, wish: &Wish) -> Option<String> {
        lock(&self.inner.calls).failed.remove(wish)
    }

    /// The right to ask the plugin, once nobody else has it.
    pub(super) async fn turn(
        &self,
        pod: &Pod,
        wish: &Wish,
        patience: Patience,
    ) -> Result<Turn, NotGiven> {
        let mut news = self.inner.news.subscribe();
        let limit = Instant::now() + ALLOCATE;
        loop {
            let taken_by = match self.try_turn(pod, wish) {
                Ok(turn) => return Ok(turn),
                Err(taken_by) => taken_by,
            };
            if patience == Patience::Moment {
                return Err(NotGiven::Waits(taken_by));
            }
            if tokio::time::timeout_at(limit, news.changed()).await.is_err() {
                return Err(NotGiven::Failed(format!("waited in vain for {taken_by}")));
            }
        }
    }

    fn try_turn(&self, pod: &Pod, wish: &Wish) -> Result<Turn, String> {
        let mut calls = lock(&self.inner.calls);
        if let Some(call) = calls.running.get(&wish.resource) {
            return Err(call.told_to(&wish.uid));
        }
        calls.last_id += 1;
        let (id, token) = (calls.last_id, self.inner.deps.tasks.token().child_token());
        let meta = &pod.metadata;
        let (space, name) = (meta.namespace.as_deref(), meta.name.as_deref());
        let call = Call {
            id,
            wish: wish.clone(),
            pod: format!("{}/{}", space.unwrap_or_default(), name.unwrap_or_default()),
            step: "Allocate",
            began: Instant::now(),
            token: token.clone(),
        };
        calls.running.insert(wish.resource.clone(), call);
        Ok(Turn { devices: self.clone(), wish: wish.clone(), id, token })
    }

    /// Waits for the end of a call whose turn this was.
    pub(super) async fn ended(
        &self,
        wish: &Wish,
        id: u64,
        patience: Patience,
    ) -> Result<(), NotGiven> {
        let mut news = self.inner.news.subscribe();
        let ended = news.wait_for(|()| !lock(&self.inner.calls).is_running(&wish.resource, id));
        match patience {
            // The sender lives as long as we do.
            Patience::Full => drop(ended.await),
            Patience::Moment => {
                let answered = tokio::time::timeout(MOMENT, ended).await.is_ok();
                let calls = lock(&self.inner.calls);
                let late = calls.running.get(&wish.resource).filter(|call| call.id == id);
                if let Some(call) = late.filter(|_| !answered) {
                    self.inner.deps.metrics.unanswered.set(&[&wish.resource], 1.0);
                    return Err(NotGiven::Waits(call.told_to(&wish.uid)));
                }
            }
        }
        match self.take_fault(wish) {
            Some(fault) => Err(NotGiven::Failed(fault)),
            None => Ok(()),
        }
    }

    /// Ends a call, if it is still under way.
    fn end(&self, resource: &str, id: u64) {
        let ended = {
            let mut calls = lock(&self.inner.calls);
            let own = calls.is_running(resource, id);
            if own { calls.running.remove(resource) } else { None }
        };
        if let Some(call) = ended {
            call.token.cancel();
            self.inner.deps.metrics.unanswered.remove(&[resource]);
            self.inner.news.send_replace(());
        }
    }
}
