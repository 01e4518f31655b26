//! Removing images when the image filesystem is full or they are too old.

use super::calls::{ImageCalls, key};
use super::metrics::ImageMetrics;
use super::records::Records;
use async_trait::async_trait;
use engine::image::gc::{
    Candidate, GcPolicy, Held, Holders, ImageKey, ImageMemory, ListedImage, fullness,
    insufficient_text,
};
use engine::image::keyring::aggregate;
use jiff::Timestamp;
use ports::{Clock, EventSeverity, EventTarget, Events, NodeEvent};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Time between two passes.
const PERIOD: Duration = Duration::from_secs(300);

/// Space of the image filesystem.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImageFsSpace {
    /// Bytes in all.
    pub capacity: u64,
    /// Bytes free.
    pub available: u64,
}

/// Who knows how full the image filesystem is.
#[async_trait]
pub trait ImageFs: Send + Sync + std::fmt::Debug {
    /// Its space now.
    async fn space(&self) -> Result<ImageFsSpace, String>;
}

#[async_trait]
impl ImageFs for cri::RuntimeClient {
    /// The filesystem the runtime names, asked itself: its free space is what counts.
    async fn space(&self) -> Result<ImageFsSpace, String> {
        let info = self.image_fs_info().await.map_err(|e| e.to_string())?;
        let first = info.image_filesystems.into_iter().next().and_then(|fs| fs.fs_id);
        let mountpoint = first.ok_or("the runtime names no image filesystem")?.mountpoint;
        let usage = sys::blocking::run(move || sys::stats::fs_usage(mountpoint.as_ref()));
        let usage = usage.await.map_err(|e| e.to_string())?;
        let usage = usage.map_err(|e| telemetry::Chain(&e).to_string())?;
        Ok(ImageFsSpace { capacity: usage.capacity, available: usage.available })
    }
}

/// Why a pass did not do what it should.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ImageGcError {
    /// The runtime or the statistics gave no answer.
    #[error("{0}")]
    Unknown(String),
    /// The image filesystem has no size.
    #[error("invalid capacity 0 on image filesystem")]
    NoCapacity,
    /// Images could not be removed.
    #[error("{0}")]
    Removal(String),
    /// Not enough could be freed.
    #[error("{0}")]
    Insufficient(String),
}

/// Image garbage collection. One pass at a time: the caller's loop owns it.
#[derive(Debug)]
pub struct ImageGc {
    policy: GcPolicy,
    by_handler: bool,
    calls: Arc<dyn ImageCalls>,
    space: Arc<dyn ImageFs>,
    records: Option<Arc<Records>>,
    events: Arc<dyn Events>,
    clock: Arc<dyn Clock>,
    metrics: ImageMetrics,
    memory: Mutex<ImageMemory>,
}

impl ImageGc {
    #[expect(clippy::too_many_arguments, reason = "made in one place")]
    pub(super) fn new(
        policy: GcPolicy,
        by_handler: bool,
        calls: Arc<dyn ImageCalls>,
        space: Arc<dyn ImageFs>,
        records: Option<Arc<Records>>,
        events: Arc<dyn Events>,
        clock: Arc<dyn Clock>,
        metrics: ImageMetrics,
    ) -> Self {
        let memory = Mutex::default();
        Self { policy, by_handler, calls, space, records, events, clock, metrics, memory }
    }

    /// Collects now and every five minutes until told to stop. With a threshold of 100 % and no maximum
    /// age images are only observed.
    pub async fn run(&self, stop: CancellationToken) {
        let started = self.clock.now();
        let only_observe = self.policy.high_percent == 100 && self.policy.max_age.is_zero();
        let mut failures = 0_u32;
        loop {
            let pass =
                if only_observe { self.observe().await } else { self.collect(started).await };
            match pass {
                Ok(()) => failures = 0,
                Err(error) => {
                    tracing::error!(err = %error, failures, "image garbage collection failed");
                    // The first failure is often only that there are no statistics yet.
                    if failures > 0 && !only_observe {
                        self.warn("ImageGCFailed", error.to_string());
                    }
                    failures = failures.saturating_add(1);
                }
            }
            tokio::select! {
                () = stop.cancelled() => return,          // cancel-safe: a state
                () = tokio::time::sleep(PERIOD) => {}     // cancel-safe: a timer
            }
        }
    }

    /// Notes which images are there and used; to be called at start and every five minutes.
    pub async fn observe(&self) -> Result<(), ImageGcError> {
        self.look(self.clock.now()).await.map(drop)
    }

    /// One pass; `running_since` is when the collecting loop began.
    pub async fn collect(&self, running_since: Timestamp) -> Result<(), ImageGcError> {
        let now = self.clock.now();
        let (candidates, holders) = self.candidates(now).await?;
        let (old, rest): (Vec<_>, Vec<_>) =
            candidates.into_iter().partition(|c| c.too_old(&self.policy, now, running_since));
        self.remove_old(old).await?;
        let space = self.space.space().await.map_err(ImageGcError::Unknown)?;
        let Some(full) = fullness(&self.policy, space.capacity, space.available) else {
            let error = ImageGcError::NoCapacity;
            self.warn("InvalidDiskCapacity", error.to_string());
            return Err(error);
        };
        let Some(wanted) = full.to_free else { return Ok(()) };
        let wanted = u64::try_from(wanted).unwrap_or(0);
        let freed = self.free(wanted, now, rest).await?;
        if freed < wanted {
            self.tell_held(&holders);
            let message = insufficient_text(full.used_percent, space.capacity, freed);
            self.warn("FreeDiskSpaceFailed", message.clone());
            return Err(ImageGcError::Insufficient(message));
        }
        Ok(())
    }

    /// Removes every image that nobody uses, as far as the minimum age allows; gives the bytes freed.
    pub async fn delete_unused(&self) -> Result<u64, ImageGcError> {
        let now = self.clock.now();
        let (candidates, _) = self.candidates(now).await?;
        self.free(u64::MAX, now, candidates).await
    }

    /// Names the containers for whose sake too little could be freed.
    fn tell_held(&self, holders: &Holders) {
        let Ok(memory) = self.memory.lock() else { return };
        let Held { images, bytes, by } = memory.held(holders);
        tracing::warn!(images, bytes, by, "images that containers hold cannot be removed");
    }

    /// What may go, and who holds the rest. Images that have no id are told of and left alone.
    async fn candidates(&self, now: Timestamp) -> Result<(Vec<Candidate>, Holders), ImageGcError> {
        let (candidates, holders) = self.look(now).await?;
        let (named, nameless): (Vec<_>, Vec<_>) =
            candidates.into_iter().partition(|c| !self.by_handler || !c.key.id.is_empty());
        for image in nameless {
            self.warn("InvalidImageID", image.key.invalid_text());
        }
        Ok((named, holders))
    }

    async fn look(&self, now: Timestamp) -> Result<(Vec<Candidate>, Holders), ImageGcError> {
        let images = self.calls.list().await.map_err(ImageGcError::Unknown)?;
        let in_use = self.calls.in_use(&images).await.map_err(ImageGcError::Unknown)?;
        let mut holders = Holders::new();
        for (key, by) in in_use {
            holders.entry(self.known_as(key)).or_default().extend(by);
        }
        let listed: Vec<ListedImage> = images
            .iter()
            .map(|i| ListedImage { key: self.known_as(key(i)), size: i.size, pinned: i.pinned })
            .collect();
        let mut memory = self.memory.lock().map_err(|e| ImageGcError::Unknown(e.to_string()))?;
        memory.observe(&listed, &holders, now);
        Ok((memory.candidates(&holders), holders))
    }

    /// The key under which an image is remembered: handlers count only where image calls name them.
    fn known_as(&self, key: ImageKey) -> ImageKey {
        if self.by_handler { key } else { ImageKey::of_id(&key.id) }
    }

    async fn remove_old(&self, old: Vec<Candidate>) -> Result<(), ImageGcError> {
        let mut errors = Vec::new();
        for image in old {
            errors.extend(self.remove(&image, "age").await.err());
        }
        match errors.as_slice() {
            [] => Ok(()),
            errors => Err(ImageGcError::Removal(format!(
                "wanted to free images older than {}, encountered errors in image deletion: {}",
                units::GoDuration::from_secs(self.policy.max_age.as_secs()),
                aggregate(errors)
            ))),
        }
    }

    async fn free(
        &self,
        wanted: u64,
        now: Timestamp,
        candidates: Vec<Candidate>,
    ) -> Result<u64, ImageGcError> {
        let (mut freed, mut errors) = (0_u64, Vec::new());
        for image in candidates.iter().filter(|c| c.removable(&self.policy, now)) {
            match self.remove(image, "space").await {
                Ok(()) => freed = freed.saturating_add(image.size),
                Err(error) => errors.push(error),
            }
            if freed >= wanted {
                break;
            }
        }
        if !errors.is_empty() {
            return Err(ImageGcError::Removal(format!(
                "wanted to free {} bytes, but freed {freed} bytes space with errors in image \
                 deletion: {}",
                wanted.min(i64::MAX.unsigned_abs()),
                aggregate(&errors)
            )));
        }
        self.prune(now).await;
        Ok(freed)
    }

    async fn remove(&self, image: &Candidate, reason: &str) -> Result<(), String> {
        let key = &image.key;
        tracing::info!(imageID = %key.id, size = image.size, runtimeHandler = %key.handler, "removing image to free bytes");
        self.calls.remove(key).await?;
        if let Ok(mut memory) = self.memory.lock() {
            memory.forget(key);
        }
        self.metrics.collected.inc(&[reason]);
        Ok(())
    }

    /// Drops the pull records of images that are gone. All images that are left keep theirs.
    async fn prune(&self, before: Timestamp) {
        let Some(records) = &self.records else { return };
        let present: BTreeSet<String> = match self.memory.lock() {
            Ok(memory) => memory.ids().map(str::to_owned).collect(),
            Err(_) => return,
        };
        let files = Arc::clone(records);
        let pruned = sys::blocking::run(move || {
            files.prune(&present, before);
            files.counts()
        });
        match pruned.await {
            Ok(counts) => self.metrics.show_records(counts),
            Err(error) => tracing::warn!(err = %error, "image records are not pruned"),
        }
    }

    fn warn(&self, reason: &'static str, message: String) {
        self.events.emit(NodeEvent {
            target: EventTarget::Node,
            severity: EventSeverity::Warning,
            reason,
            message,
        });
    }
}
