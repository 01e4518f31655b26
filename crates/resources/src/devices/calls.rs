//! Calls to plugins on behalf of containers: one at a time to each plugin, each in a task of its own.
//!
//! Upstream admits one pod after the other and waits without limit for a plugin, so one that hangs keeps every later
//! pod from starting. Here admission waits only briefly ([`BRIEF_WAIT`]). Then the pod is deferred, others are admitted
//! first, and it is admitted again once its plugin has answered, failed or timed out. Pods that need the same plugin
//! wait for it before anything is decided about them, so no device is allocated twice.
//!
//! ```text
//! give ─▶ permit ─▶ choose ─▶ task: (GetPreferredAllocation ─▶) Allocate ─▶ state, checkpoint ─▶ permit dropped
//!           └─ taken ─▶ waits        └─ after BRIEF_WAIT ─▶ waits; abandoned: the chosen devices are free again
//! ```

use super::Devices;
use super::allocate::{ALLOCATE, device_requests};
use crate::lock;
use api::core::v1::Pod;
use api::pod::PodExt;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// How long admission waits for a plugin before the pod is deferred.
pub(super) const BRIEF_WAIT: Duration = Duration::from_millis(250);

/// A call is reported as hung after this.
const SHOWN_AFTER: Duration = Duration::from_secs(5);

/// How long a caller waits for a plugin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Patience {
    /// [`BRIEF_WAIT`]: other pods wait meanwhile.
    Brief,
    /// Until the plugin has answered or timed out: nobody else waits.
    Full,
}

/// Why a container has no devices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum NotGiven {
    /// Its plugin has not answered yet.
    Waits(String),
    /// The allocation failed.
    Failed(String),
}

/// One container's request for one resource.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct DeviceRequest {
    pub(super) uid: String,
    pub(super) container: String,
    pub(super) resource: String,
}

/// A running call.
#[derive(Debug)]
struct Call {
    id: u64,
    wanted: DeviceRequest,
    /// `namespace/name`.
    pod: String,
    step: &'static str,
    began: Instant,
    token: CancellationToken,
}

impl Call {
    /// What a pod that needs the plugin waits for, for display.
    fn describe_for(&self, uid: &str) -> String {
        let Self { wanted, step, pod, .. } = self;
        let whom = if wanted.uid == uid { String::new() } else { format!(" for pod {pod}") };
        format!("the device plugin of {} to answer {step}{whom}", wanted.resource)
    }
}

/// Running calls by resource, and errors of ended ones.
#[derive(Debug, Default)]
pub(super) struct Calls {
    last_id: u64,
    running: BTreeMap<String, Call>,
    failed: BTreeMap<DeviceRequest, String>,
}

impl Calls {
    fn is_running(&self, resource: &str, id: u64) -> bool {
        self.running.get(resource).is_some_and(|call| call.id == id)
    }
}

/// The permit to call a plugin; the call ends when it is dropped.
#[derive(Debug)]
pub(super) struct CallPermit {
    devices: Devices,
    pub(super) wanted: DeviceRequest,
    /// Identifies the call.
    pub(super) id: u64,
    pub(super) token: CancellationToken,
}

impl CallPermit {
    /// Records the current step of the call.
    pub(super) fn asks(&self, step: &'static str) {
        let mut calls = lock(&self.devices.inner.calls);
        if let Some(call) = calls.running.get_mut(&self.wanted.resource).filter(|c| c.id == self.id)
        {
            call.step = step;
        }
    }

    /// Runs `act` unless the call was abandoned, which cannot happen meanwhile.
    pub(super) fn unless_abandoned(&self, act: impl FnOnce()) -> bool {
        let calls = lock(&self.devices.inner.calls);
        let wanted = calls.is_running(&self.wanted.resource, self.id);
        if wanted {
            act();
        }
        wanted
    }

    /// Records why the call failed.
    pub(super) fn failed(&self, fault: String) {
        let mut calls = lock(&self.devices.inner.calls);
        if calls.is_running(&self.wanted.resource, self.id) {
            calls.failed.insert(self.wanted.clone(), fault);
        }
    }
}

impl Drop for CallPermit {
    fn drop(&mut self) {
        self.devices.end(&self.wanted.resource, self.id);
    }
}

impl Devices {
    /// What a pod waits for before it can be admitted: a running call to a plugin that it needs.
    pub(super) fn busy(&self, pod: &Pod) -> Option<String> {
        let uid = pod.uid_str();
        let spec = pod.spec.as_ref()?;
        let containers = spec.init_containers.iter().flatten().chain(&spec.containers);
        let calls = lock(&self.inner.calls);
        if calls.running.is_empty() {
            return None;
        }
        for container in containers {
            for (resource, _) in
                device_requests(container).into_iter().filter(|(_, count)| *count > 0)
            {
                let Some(call) = calls.running.get(&resource) else { continue };
                if self.state(|state| state.held(uid, &container.name, &resource).is_none()) {
                    return Some(call.describe_for(uid));
                }
            }
        }
        None
    }

    /// Waits until no call to a plugin that the pod needs is running.
    pub(super) async fn free(&self, pod: &Pod) {
        let mut news = self.inner.news.subscribe();
        // The sender lives as long as `self`; each call has a timeout.
        let _ = news.wait_for(|()| self.busy(pod).is_none()).await;
    }

    /// Abandons calls for a pod.
    pub(super) fn abandon(&self, uid: &str) {
        self.abandon_where(|wanted| wanted.uid == uid);
    }

    /// Abandons calls for the selected requests.
    pub(super) fn abandon_where(&self, is_given_up: impl Fn(&DeviceRequest) -> bool) {
        let gone: Vec<(String, u64)> = {
            let mut calls = lock(&self.inner.calls);
            calls.failed.retain(|wanted, _| !is_given_up(wanted));
            let gone = calls.running.values().filter(|call| is_given_up(&call.wanted));
            gone.map(|call| (call.wanted.resource.clone(), call.id)).collect()
        };
        for (resource, id) in gone {
            self.end(&resource, id);
            self.state(|state| state.recount());
        }
    }

    /// Hung calls: the step, the plugin's resource, the pod and since when.
    pub fn hung(&self) -> Vec<String> {
        let calls = lock(&self.inner.calls);
        let long = calls.running.values().filter(|call| call.began.elapsed() >= SHOWN_AFTER);
        long.map(|Call { wanted, step, pod, began, .. }| {
            let (age, limit) = (began.elapsed().as_secs(), ALLOCATE.as_secs());
            let resource = &wanted.resource;
            format!("{step} of the device plugin of {resource} for pod {pod} for {age}s (given up after {limit}s)")
        })
        .collect()
    }

    /// Why the last call for this request failed; returned once.
    pub(super) fn take_fault(&self, wanted: &DeviceRequest) -> Option<String> {
        lock(&self.inner.calls).failed.remove(wanted)
    }

    /// The permit to call the plugin, once no other call runs.
    pub(super) async fn permit(
        &self,
        pod: &Pod,
        wanted: &DeviceRequest,
        patience: Patience,
    ) -> Result<CallPermit, NotGiven> {
        let mut news = self.inner.news.subscribe();
        let limit = Instant::now() + ALLOCATE;
        loop {
            let taken_by = match self.try_permit(pod, wanted) {
                Ok(permit) => return Ok(permit),
                Err(taken_by) => taken_by,
            };
            if patience == Patience::Brief {
                return Err(NotGiven::Waits(taken_by));
            }
            if tokio::time::timeout_at(limit, news.changed()).await.is_err() {
                return Err(NotGiven::Failed(format!("waited in vain for {taken_by}")));
            }
        }
    }

    fn try_permit(&self, pod: &Pod, wanted: &DeviceRequest) -> Result<CallPermit, String> {
        let mut calls = lock(&self.inner.calls);
        if let Some(call) = calls.running.get(&wanted.resource) {
            return Err(call.describe_for(&wanted.uid));
        }
        calls.last_id += 1;
        let (id, token) = (calls.last_id, self.inner.deps.tasks.token().child_token());
        let meta = &pod.metadata;
        let (space, name) = (meta.namespace.as_deref(), meta.name.as_deref());
        let call = Call {
            id,
            wanted: wanted.clone(),
            pod: format!("{}/{}", space.unwrap_or_default(), name.unwrap_or_default()),
            step: "Allocate",
            began: Instant::now(),
            token: token.clone(),
        };
        calls.running.insert(wanted.resource.clone(), call);
        Ok(CallPermit { devices: self.clone(), wanted: wanted.clone(), id, token })
    }

    /// Waits for the end of a call.
    pub(super) async fn ended(
        &self,
        wanted: &DeviceRequest,
        id: u64,
        patience: Patience,
    ) -> Result<(), NotGiven> {
        let mut news = self.inner.news.subscribe();
        let ended = news.wait_for(|()| !lock(&self.inner.calls).is_running(&wanted.resource, id));
        match patience {
            // The sender lives as long as `self`.
            Patience::Full => drop(ended.await),
            Patience::Brief => {
                let answered = tokio::time::timeout(BRIEF_WAIT, ended).await.is_ok();
                let calls = lock(&self.inner.calls);
                let late = calls.running.get(&wanted.resource).filter(|call| call.id == id);
                if let Some(call) = late.filter(|_| !answered) {
                    self.inner.deps.metrics.unanswered.set(&[&wanted.resource], 1.0);
                    return Err(NotGiven::Waits(call.describe_for(&wanted.uid)));
                }
            }
        }
        match self.take_fault(wanted) {
            Some(fault) => Err(NotGiven::Failed(fault)),
            None => Ok(()),
        }
    }

    /// Ends a call, if it is still running.
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
