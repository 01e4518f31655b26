//! One pull after another, within limits.
//!
//! A slot (one for serial pulls) is waited for in turn, the rate is not: over it, the pull fails at once as
//! upstream's does.

use super::calls::ImageCalls;
use super::pull_slots::PullSlots;
use engine::image::keyring::{Credential, aggregate};
use engine::image::progress::PullBytes;
use engine::image::pull_order::Waiting;
use engine::image::reference;
use jiff::Timestamp;
use proto::cri_v1::{AuthConfig, ImageSpec, PodSandboxConfig};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::Instant;

/// A pull that waits or runs, for those who ask why a pod does not start.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct PullProgress {
    /// The pod's UID.
    pub pod_uid: String,
    /// The pod's priority.
    pub priority: i32,
    /// The image as the pod names it.
    pub image: String,
    /// When it was asked for.
    pub since: Timestamp,
    /// When it left the queue.
    pub started: Option<Timestamp>,
    /// How far it is, where the runtime tells.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<PullBytes>,
}

/// A pull that succeeded.
#[derive(Debug)]
pub(super) struct Pulled {
    pub(super) image_ref: String,
    pub(super) size: u64,
    /// The pull alone, without waiting for a slot.
    pub(super) took: Duration,
    /// What it was done with; `None` is anonymous.
    pub(super) used: Option<Credential>,
}

/// Limits and progress of all pulls.
#[derive(Debug)]
pub(super) struct Puller {
    calls: Arc<dyn ImageCalls>,
    pull_slots: PullSlots,
    rate: Option<Mutex<Bucket>>,
    progress: Mutex<Progress>,
}

#[derive(Debug, Default)]
struct Progress {
    next: u64,
    pulls: BTreeMap<u64, PullProgress>,
}

impl Puller {
    /// `qps` is 0 for no rate.
    pub(super) fn new(
        calls: Arc<dyn ImageCalls>,
        pull_slots: PullSlots,
        qps: f64,
        burst: u32,
    ) -> Self {
        let rate = (qps > 0.0).then(|| Mutex::new(Bucket::new(qps, burst, Instant::now())));
        Self { calls, pull_slots, rate, progress: Mutex::default() }
    }

    /// Pulls with each credential until one works; anonymously when there is none.
    pub(super) async fn pull(
        &self,
        mut progress: PullProgress,
        spec: ImageSpec,
        credentials: Vec<Credential>,
        sandbox: PodSandboxConfig,
        clock: &dyn ports::Clock,
    ) -> Result<Pulled, String> {
        let ticket = Ticket::new(self, progress.clone());
        let registry = reference::parse(&progress.image).map(|name| name.repository);
        let registry =
            registry.unwrap_or_default().split('/').next().unwrap_or_default().to_owned();
        let who = Waiting { priority: progress.priority, registry };
        let _slot = self.pull_slots.take(who).await.ok_or("the line of pulls is lost")?;
        progress.started = Some(clock.now());
        ticket.update(progress);
        let begun = Instant::now();
        let (image_ref, used) = self.attempts(&spec, credentials, sandbox).await?;
        let took = begun.elapsed();
        let status = self.calls.status(spec).await.ok().flatten();
        Ok(Pulled { image_ref, size: status.map_or(0, |image| image.size), took, used })
    }

    /// Pulls that wait or run, oldest first.
    pub(super) fn progress(&self) -> Vec<PullProgress> {
        let progress = self.progress.lock();
        progress.map(|p| p.pulls.values().cloned().collect()).unwrap_or_default()
    }

    async fn attempts(
        &self,
        spec: &ImageSpec,
        credentials: Vec<Credential>,
        sandbox: PodSandboxConfig,
    ) -> Result<(String, Option<Credential>), String> {
        let now = Instant::now();
        let accepted =
            self.rate.as_ref().is_none_or(|rate| rate.lock().is_ok_and(|mut r| r.take(now)));
        if !accepted {
            return Err("pull QPS exceeded".into());
        }
        if credentials.is_empty() {
            let image_ref = self.calls.pull(spec.clone(), None, sandbox).await?;
            return Ok((image_ref, None));
        }
        let mut errors = Vec::new();
        for credential in credentials {
            let auth = AuthConfig {
                username: credential.username.clone(),
                password: credential.password.clone(),
                ..AuthConfig::default()
            };
            match self.calls.pull(spec.clone(), Some(auth), sandbox.clone()).await {
                Ok(image_ref) => return Ok((image_ref, Some(credential))),
                Err(error) => errors.push(error),
            }
        }
        Err(aggregate(&errors))
    }
}

/// An entry of the progress list, gone with its pull.
struct Ticket<'a> {
    puller: &'a Puller,
    number: u64,
}

impl<'a> Ticket<'a> {
    fn new(puller: &'a Puller, progress: PullProgress) -> Self {
        let mut number = 0;
        if let Ok(mut list) = puller.progress.lock() {
            number = list.next;
            list.next += 1;
            list.pulls.insert(number, progress);
        }
        Self { puller, number }
    }

    fn update(&self, progress: PullProgress) {
        if let Ok(mut list) = self.puller.progress.lock() {
            list.pulls.insert(self.number, progress);
        }
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        if let Ok(mut list) = self.puller.progress.lock() {
            list.pulls.remove(&self.number);
        }
    }
}

/// A token bucket that never waits.
#[derive(Debug)]
struct Bucket {
    qps: f64,
    burst: f64,
    tokens: f64,
    filled: Instant,
}

impl Bucket {
    fn new(qps: f64, burst: u32, now: Instant) -> Self {
        let burst = f64::from(burst);
        Self { qps, burst, tokens: burst, filled: now }
    }

    fn take(&mut self, now: Instant) -> bool {
        let earned = now.duration_since(self.filled).as_secs_f64() * self.qps;
        self.tokens = (self.tokens + earned).min(self.burst);
        self.filled = now;
        let accepted = self.tokens >= 1.0;
        if accepted {
            self.tokens -= 1.0;
        }
        accepted
    }
}
