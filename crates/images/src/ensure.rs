//! Making one image available to one pod.
//!
//! Upstream: `imageManager.EnsureImageExists`.

use super::back_off::PullBackOff;
use super::calls::ImageCalls;
use super::credentials::NodeKeyring;
use super::gc::{ImageFs, ImageGc};
use super::metrics::ImageMetrics;
use super::providers::Providers;
use super::pull::{PullProgress, Pulled, Puller};
use super::pull_slots::PullSlots;
use super::records::{Capacity, Records};
use super::{ImagesConfig, ImagesDeps, ImagesError};
use engine::image::gc::{GcPolicy, size_label};
use engine::image::keyring::Credential;
use engine::image::record::{
    AccessCheck, PullCredentials, VerificationPolicy, check_access, check_credentials,
};
use engine::image::reference;
use engine::request::security::{ImageUser, image_user};
use ports::{Clock, EventSeverity, EventTarget, Events, NodeEvent, Objects, OnExit, Tasks};
use ports::{EnsureImage, EnsuredImage, ImageFault};
use proto::cri_v1::ImageSpec;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use telemetry::Chain;
use tokio::sync::oneshot;
use tokio::time::Instant;
use units::GoDuration;
use units::strconv::quote;

/// What all image work shares.
#[derive(Debug)]
pub(super) struct Inner {
    pub(super) calls: Arc<dyn ImageCalls>,
    pub(super) objects: Arc<dyn Objects>,
    pub(super) events: Arc<dyn Events>,
    pub(super) metrics: ImageMetrics,
    pub(super) node_keyring: NodeKeyring,
    pub(super) providers: Providers,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) progress_events: Option<Duration>,
    tasks: Tasks,
    puller: Puller,
    back_off: Mutex<PullBackOff>,
    verification: Option<(VerificationPolicy, Arc<Records>)>,
    handler_in_calls: bool,
}

impl Inner {
    pub(super) async fn open(config: ImagesConfig, deps: ImagesDeps) -> Result<Self, ImagesError> {
        let ImagesDeps { calls, objects, events, clock, tasks, metrics } = deps;
        let verification = match config.verification {
            None => None,
            Some(policy) => {
                let root = config.kubelet_root;
                let capacity = Capacity::of_node(config.max_pods, config.max_parallel_pulls);
                let records = sys::blocking::run(move || Records::open(&root, capacity)).await??;
                let records = Arc::new(records);
                if let (true, Ok(images)) = (records.counts().intents > 0, calls.list().await) {
                    let (adopter, now) = (Arc::clone(&records), clock.now());
                    sys::blocking::run(move || adopter.adopt(&images, now)).await?;
                }
                Some((policy, records))
            }
        };
        let slots = if config.serialize_pulls { Some(1) } else { config.max_parallel_pulls };
        let pull_slots = PullSlots::new(slots, config.pull_order);
        let puller =
            Puller::new(Arc::clone(&calls), pull_slots, config.registry_qps, config.registry_burst);
        let inner = Self {
            calls,
            objects,
            events,
            node_keyring: NodeKeyring::new(config.docker_config),
            providers: Providers::new(config.providers, &metrics),
            metrics,
            clock,
            progress_events: config.progress_events,
            tasks,
            puller,
            back_off: Mutex::default(),
            verification,
            handler_in_calls: config.handler_in_calls,
        };
        inner.count_records().await;
        Ok(inner)
    }

    /// The runtime handler as image calls name it.
    fn handler<'a>(&self, request: &'a EnsureImage) -> &'a str {
        if self.handler_in_calls { &request.runtime_handler } else { "" }
    }

    pub(super) fn pulls(&self) -> Vec<PullProgress> {
        self.puller.progress()
    }

    pub(super) fn collector(&self, policy: GcPolicy, space: Arc<dyn ImageFs>) -> ImageGc {
        ImageGc::new(
            policy,
            self.handler_in_calls,
            Arc::clone(&self.calls),
            space,
            self.verification.as_ref().map(|(_, records)| Arc::clone(records)),
            Arc::clone(&self.events),
            Arc::clone(&self.clock),
            self.metrics.clone(),
        )
    }

    pub(super) fn tell(
        &self,
        request: &EnsureImage,
        severity: EventSeverity,
        reason: &'static str,
        message: String,
    ) {
        self.events.emit(NodeEvent {
            target: EventTarget::Pod {
                pod: Arc::clone(&request.pod),
                field_path: request.field_path.clone(),
            },
            severity,
            reason,
            message,
        });
    }

    /// Tells it and gives it as the container's waiting message.
    fn refuse(
        &self,
        request: &EnsureImage,
        event: &'static str,
        reason: &str,
        message: String,
    ) -> ImageFault {
        self.tell(request, EventSeverity::Warning, event, message.clone());
        ImageFault { reason: reason.into(), message }
    }

    fn not_present(&self, request: &EnsureImage) -> ImageFault {
        let image = quote(&request.image);
        let message = format!("Container image {image} is not present with pull policy of Never");
        self.refuse(request, "ErrImageNeverPull", "ErrImageNeverPull", message)
    }

    /// Whether a pod may use an image that is here without proving access by a pull.
    async fn may_use(
        &self,
        request: &EnsureImage,
        image_ref: &str,
        lookup: &mut Lookup<'_>,
    ) -> Result<bool, ImageFault> {
        let Some((policy, records)) = &self.verification else { return Ok(true) };
        let image = request.image.clone();
        let (files, id) = (Arc::clone(records), image_ref.to_owned());
        let read = sys::blocking::run(move || {
            let record = files.pulled(&id)?;
            let intent = record.is_none() && files.has_intent(&image)?;
            Ok::<_, super::records::RecordFault>((record, intent))
        });
        let (record, intent) = match read.await {
            Ok(Ok(read)) => read,
            Ok(Err(error)) => {
                tracing::error!(err = %Chain(&error), "image pull records cannot be read");
                self.metrics.checks.inc(&["error"]);
                return Ok(false);
            }
            Err(error) => {
                tracing::error!(err = %Chain(&error), "image pull records cannot be read");
                self.metrics.checks.inc(&["error"]);
                return Ok(false);
            }
        };
        let mut check = check_access(policy, &request.image, record.as_ref(), intent);
        if check == AccessCheck::CompareCredentials {
            let credentials = match lookup.get().await {
                Ok(credentials) => credentials,
                Err(fault) => {
                    self.metrics.checks.inc(&["error"]);
                    return Err(fault);
                }
            };
            check = check_credentials(&request.image, record.as_ref(), credentials);
        }
        let (allowed, label) = match &check {
            AccessCheck::PolicyAllows => (true, "credentialPolicyAllowed"),
            AccessCheck::RecordFound { .. } => (true, "credentialRecordFound"),
            AccessCheck::MustAuthenticate | AccessCheck::CompareCredentials => {
                (false, "mustAuthenticate")
            }
        };
        self.metrics.checks.inc(&[label]);
        if let AccessCheck::RecordFound { remember: Some(secret) } = check {
            let credentials =
                PullCredentials { kubernetes_secrets: vec![secret], ..PullCredentials::default() };
            self.remember(&request.image, image_ref, Some(credentials)).await;
        }
        Ok(allowed)
    }

    /// Writes down who has access; true when it is on disk.
    async fn remember(
        &self,
        image: &str,
        image_ref: &str,
        credentials: Option<PullCredentials>,
    ) -> bool {
        let Some((_, records)) = &self.verification else { return true };
        let (files, now) = (Arc::clone(records), self.clock.now());
        let (image, id) = (image.to_owned(), image_ref.to_owned());
        let work = move || files.merge(&image, &id, credentials.as_ref(), now);
        let written = match sys::blocking::run(work).await {
            Ok(Ok(())) => true,
            Ok(Err(error)) => {
                tracing::error!(err = %Chain(&error), image_ref, "image pull is not recorded");
                false
            }
            Err(error) => {
                tracing::error!(err = %Chain(&error), image_ref, "image pull is not recorded");
                false
            }
        };
        self.count_records().await;
        written
    }

    async fn begin(&self, image: &str) -> Result<(), ImageFault> {
        let Some((_, records)) = &self.verification else { return Ok(()) };
        let (files, name) = (Arc::clone(records), image.to_owned());
        let written = match sys::blocking::run(move || files.begin(&name)).await {
            Ok(written) => written.map_err(|e| Chain(&e).to_string()),
            Err(e) => Err(e.to_string()),
        };
        self.count_records().await;
        written.map_err(|why| {
            let why = format!("failed to record image pull intent: {why}");
            let image = quote(image);
            let message =
                format!("Failed to record image pull intent for container image {image}: {why}");
            ImageFault { reason: why, message }
        })
    }

    async fn end(&self, image: &str) {
        if let Some((_, records)) = &self.verification {
            let (files, name) = (Arc::clone(records), image.to_owned());
            if let Err(error) = sys::blocking::run(move || files.end(&name)).await {
                tracing::error!(err = %Chain(&error), image, "image pull intent stays");
            }
        }
        self.count_records().await;
    }

    async fn count_records(&self) {
        let Some((_, records)) = &self.verification else { return };
        let files = Arc::clone(records);
        if let Ok(counts) = sys::blocking::run(move || files.counts()).await {
            self.metrics.show_records(counts);
        }
    }

    /// The part of a pull that may be cut off at any moment: nothing is written down by it.
    async fn fetch(
        &self,
        request: &EnsureImage,
        spec: ImageSpec,
        credentials: Vec<Credential>,
    ) -> Fetched {
        let image = &request.image;
        let waiting = {
            let back_off = self.back_off.lock();
            let key = back_off_key(request);
            back_off.ok().and_then(|b| b.waiting(&key, Instant::now()).map(str::to_owned))
        };
        if let Some(last) = waiting {
            let message = format!("Back-off pulling image {}", quote(image));
            self.tell(request, EventSeverity::Normal, "BackOff", message.clone());
            let message = format!("{message}: {last}");
            return Fetched::BackOff(ImageFault { reason: "ImagePullBackOff".into(), message });
        }
        let pulling = format!("Pulling image {}", quote(image));
        self.tell(request, EventSeverity::Normal, "Pulling", pulling);
        let begun = Instant::now();
        let progress = PullProgress {
            pod_uid: request.pod.metadata.uid.clone().unwrap_or_default(),
            priority: request.pod.spec.as_ref().and_then(|s| s.priority).unwrap_or_default(),
            image: image.clone(),
            since: self.clock.now(),
            started: None,
            bytes: None,
        };
        let sandbox = request.sandbox.clone();
        let pull = self.puller.pull(progress, spec, credentials, sandbox, &*self.clock);
        match self.telling(request, pull).await {
            Ok(pulled) => Fetched::Pulled(pulled, milliseconds(begun.elapsed())),
            Err(error) => Fetched::Failed(error),
        }
    }

    /// Writes down how a pull ended. Not to be cut off: an image without a record counts as one that was always
    /// there, which any pod may use.
    async fn conclude(
        &self,
        request: &EnsureImage,
        fetched: Fetched,
    ) -> Result<String, ImageFault> {
        let image = &request.image;
        let shown = quote(image);
        match fetched {
            Fetched::BackOff(fault) => {
                self.end(image).await;
                Err(fault)
            }
            Fetched::Pulled(pulled, total) => {
                let message = format!(
                    "Successfully pulled image {shown} in {} ({} including waiting). Image size: \
                     {} bytes.",
                    milliseconds(pulled.took),
                    total,
                    pulled.size
                );
                self.tell(request, EventSeverity::Normal, "Pulled", message);
                let label = size_label(pulled.size);
                self.metrics.pull_duration.observe(&[label], total.as_secs_f64());
                let credentials = PullCredentials::of_pull(pulled.used.as_ref());
                if self.remember(image, &pulled.image_ref, Some(credentials)).await {
                    self.end(image).await;
                }
                Ok(pulled.image_ref)
            }
            Fetched::Failed(error) => {
                let message = format!("Failed to pull image {shown}: {error}");
                self.tell(request, EventSeverity::Warning, "Failed", message);
                let fault = pull_fault(image, error);
                if let Ok(mut back_off) = self.back_off.lock() {
                    back_off.failed(&back_off_key(request), Instant::now(), fault.to_string());
                }
                self.end(image).await;
                Err(fault)
            }
        }
    }

    /// Writes down that a pull was cut off. The runtime may have finished it all the same: an image that was
    /// absent before and is present now gets a record without credentials, so that nobody takes it for preloaded.
    async fn abandon(&self, image: &str, spec: ImageSpec, was_absent: bool) {
        if was_absent && self.verification.is_some() {
            match self.calls.status(spec).await {
                Ok(Some(present)) if !present.id.is_empty() => {
                    if !self.remember(image, &present.id, None).await {
                        return;
                    }
                }
                Ok(_) => {}
                // The intent stays: the end of this pull is not known.
                Err(error) => {
                    tracing::warn!(image, error, "end of a cancelled image pull is unknown");
                    return;
                }
            }
        }
        self.end(image).await;
    }
}

/// How the cancellable part of a pull ended.
enum Fetched {
    Pulled(Pulled, GoDuration),
    Failed(String),
    BackOff(ImageFault),
}

/// Pulls are held back by pod and image.
fn back_off_key(request: &EnsureImage) -> String {
    let uid = request.pod.metadata.uid.as_deref().unwrap_or_default();
    format!("{uid}_{}", request.image)
}

/// Looks credentials up once, and not before they are needed.
struct Lookup<'a> {
    inner: &'a Inner,
    request: &'a EnsureImage,
    image: &'a str,
    found: Option<Vec<Credential>>,
}

impl Lookup<'_> {
    async fn get(&mut self) -> Result<&[Credential], ImageFault> {
        if self.found.is_none() {
            let found = self.inner.credentials(self.request, self.image).await?;
            self.found = Some(found);
        }
        Ok(self.found.as_deref().unwrap_or_default())
    }
}

/// What the request counter shows.
#[derive(Default)]
struct Seen {
    present: Option<bool>,
    required: Option<bool>,
}

pub(super) async fn ensure(
    inner: &Arc<Inner>,
    request: EnsureImage,
) -> Result<EnsuredImage, ImageFault> {
    let mut seen = Seen::default();
    let policy = effective_policy(&request);
    let result = image_ref(inner, &request, policy, &mut seen).await;
    let text = |flag: Option<bool>| match flag {
        Some(true) => "true",
        Some(false) => "false",
        None => "unknown",
    };
    let labels = [policy.label(), text(seen.present), text(seen.required)];
    inner.metrics.ensure.inc(&labels);
    let image_ref = result?;
    let user = match request.field_path {
        Some(_) => user(inner, &request.image).await?,
        None => image_user(None),
    };
    let runtime_handler = inner.handler(&request).to_owned();
    Ok(EnsuredImage { image_ref, user, runtime_handler, pulled: seen.required == Some(true) })
}

async fn image_ref(
    inner: &Arc<Inner>,
    request: &EnsureImage,
    policy: Policy,
    seen: &mut Seen,
) -> Result<String, ImageFault> {
    let named = &request.image;
    let shown = quote(named);
    let image = reference::with_default_tag(named).map_err(|e| {
        let message = format!(
            "Failed to apply default image tag {shown}: couldn't parse image name {shown}: {e}"
        );
        inner.refuse(request, "InspectFailed", "InvalidImageName", message)
    })?;
    let spec = ImageSpec {
        image: image.clone(),
        annotations: request.pod.metadata.annotations.clone().unwrap_or_default(),
        runtime_handler: inner.handler(request).into(),
        ..ImageSpec::default()
    };
    let mut present = None;
    if policy != Policy::Always {
        let status = inner.calls.status(spec.clone()).await.map_err(|e| {
            let message = format!("Failed to inspect image \"\": {e}");
            inner.refuse(request, "InspectFailed", "ImageInspectError", message)
        })?;
        present = status.map(|s| s.id).filter(|id| !id.is_empty());
        seen.present = Some(present.is_some());
        if present.is_none() && policy == Policy::Never {
            return Err(inner.not_present(request));
        }
    }
    let mut lookup = Lookup { inner, request, image: &image, found: None };
    if let Some(id) = present {
        seen.required = Some(false);
        let allowed = inner.may_use(request, &id, &mut lookup).await;
        if allowed.is_err() {
            seen.required = None;
        }
        if allowed? {
            let message = match inner.verification {
                None => format!("Container image {shown} already present on machine"),
                Some(_) => format!(
                    "Container image {shown} already present on machine and can be accessed by \
                     the pod"
                ),
            };
            inner.tell(request, EventSeverity::Normal, "Pulled", message);
            return Ok(id);
        }
    }
    seen.required = Some(true);
    if policy == Policy::Never {
        return Err(inner.not_present(request));
    }
    let credentials = lookup.get().await?.to_vec();
    let was_absent = seen.present == Some(false);
    run_pull(inner, request.clone(), spec, credentials, was_absent).await
}

/// Runs the pull as a task, so that it ends well when nobody waits for it any more: one that waits for a slot gives up
/// its place, and the call of one that runs is cancelled, as upstream does with the context of a pod that is to
/// end. What has to be written down is written in any case. Pods that want the same image have a pull each.
async fn run_pull(
    inner: &Arc<Inner>,
    request: EnsureImage,
    spec: ImageSpec,
    credentials: Vec<Credential>,
    was_absent: bool,
) -> Result<String, ImageFault> {
    let (mut answer, wait) = oneshot::channel();
    let (puller, stop) = (Arc::clone(inner), inner.tasks.token());
    // A panic is told to whoever waits: the wait ends without an answer.
    inner.tasks.spawn("image pull", OnExit::Alone, async move {
        if let Err(fault) = puller.begin(&request.image).await {
            let _ = answer.send(Err(fault));
            return;
        }
        let fetched = tokio::select! {
            // At shutdown the intent on disk says that the end is unknown.
            () = stop.cancelled() => return,
            // Cancel-safe: it only waits. The pull is dropped with all that it holds.
            () = answer.closed() => None,
            fetched = puller.fetch(&request, spec.clone(), credentials) => Some(fetched),
        };
        if let Some(fetched) = fetched {
            // Nobody may wait any more.
            let _ = answer.send(puller.conclude(&request, fetched).await);
        } else {
            tracing::info!(image = request.image, "image pull cancelled, its pod ends");
            puller.abandon(&request.image, spec, was_absent).await;
        }
    });
    wait.await.unwrap_or_else(|_| {
        let message = "the pull was cut off".to_string();
        Err(ImageFault { reason: "ErrImagePull".into(), message })
    })
}

/// The image's user; an image that vanished meanwhile counts as root.
async fn user(inner: &Inner, image: &str) -> Result<ImageUser, ImageFault> {
    let spec = ImageSpec { image: image.into(), ..ImageSpec::default() };
    match inner.calls.status(spec).await {
        Ok(status) => Ok(image_user(status.as_ref())),
        Err(message) => Err(ImageFault { reason: "CreateContainerConfigError".into(), message }),
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Policy {
    Always,
    IfNotPresent,
    Never,
}

impl Policy {
    fn label(self) -> &'static str {
        match self {
            Self::Always => "always",
            Self::IfNotPresent => "ifnotpresent",
            Self::Never => "never",
        }
    }
}

fn effective_policy(request: &EnsureImage) -> Policy {
    match request.policy.as_str() {
        "Always" => Policy::Always,
        "IfNotPresent" => Policy::IfNotPresent,
        "Never" => Policy::Never,
        _ => match reference::parse(&request.image) {
            Ok(name) if name.tag == "latest" => Policy::Always,
            _ => Policy::IfNotPresent,
        },
    }
}

fn pull_fault(image: &str, error: String) -> ImageFault {
    for (reason, why) in [
        ("RegistryUnavailable", "the registry is unavailable"),
        ("SignatureValidationFailed", "the signature validation failed"),
    ] {
        if let Some(rest) = error.strip_prefix(reason) {
            let message = format!("image pull failed for {image} because {why}{rest}");
            return ImageFault { reason: reason.into(), message };
        }
    }
    ImageFault { reason: "ErrImagePull".into(), message: error }
}

/// Go's text of a duration cut to milliseconds.
fn milliseconds(duration: Duration) -> GoDuration {
    GoDuration::from_millis(i64::try_from(duration.as_millis()).unwrap_or(i64::MAX))
}
