//! The client: its construction, and the one function through which every call passes.

mod containers;
mod content;
mod images;
mod runtime;
mod sandboxes;
mod stats;
mod streaming;

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use futures::future::BoxFuture;
use proto::containerd_content_v1::content_client::ContentClient;
use proto::cri_v1::image_service_client::ImageServiceClient;
use proto::cri_v1::runtime_service_client::RuntimeServiceClient;
use telemetry::go_text::quote;
use telemetry::traces::{self, Closing, Opening};
use tokio::sync::watch;
use tokio::time::Instant;
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Channel;
use tonic::{Request, Response, Status, Streaming};
use tracing::Instrument;

use crate::call::{Call, Service};
use crate::connect::Connector;
use crate::endpoint::Endpoint;
use crate::error::CriError;
use crate::events::EventStream;
use crate::features::{Features, Learned};
use crate::health::{Health, Reachability};
use crate::in_flight::{InFlight, SlowCall};
use crate::metrics::CallObserver;

pub use streaming::ExecOutput;

/// The largest message accepted from a runtime.
const MAX_MESSAGE_BYTES: usize = 16 * 1024 * 1024;
/// A call that waits longer than this part of its deadline is logged.
const SLOW_PART: u32 = 4;

/// A deadline below this has expired before anything is sent.
const LEAST_DEADLINE: Duration = Duration::from_millis(1);

/// A deadline above this, a hundred years, means none: clocks and headers have limits.
const LONGEST_DEADLINE: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

/// Settings of the client.
#[derive(Debug, Clone)]
pub struct ClientConfig {
    /// The deadline of an ordinary call (`runtimeRequestTimeout`).
    pub request_timeout: Duration,
    /// Lists are streamed where the runtime supports it (gate `CRIListStreaming`).
    pub list_streaming: bool,
    /// Called after every finished call.
    pub observer: Arc<dyn CallObserver>,
}

impl Default for ClientConfig {
    fn default() -> Self {
        Self {
            request_timeout: Duration::from_secs(120),
            list_streaming: false,
            observer: Arc::new(()),
        }
    }
}

/// A client of both services. Cheap to clone; clones share their connections.
#[derive(Debug, Clone)]
pub struct RuntimeClient {
    inner: Arc<Inner>,
}

/// A connection whose calls carry the trace context of their span.
pub(crate) type Traced = InterceptedService<Channel, InjectTraceContext>;

/// Injects the trace context of the call's span (OpenTelemetry: the propagator `TraceContext` of
/// `otelgrpc`).
#[derive(Debug, Clone, Copy)]
pub(crate) struct InjectTraceContext;

impl Interceptor for InjectTraceContext {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        let header = traces::current().and_then(|span| span.to_header().parse().ok());
        if let Some(header) = header {
            request.metadata_mut().insert("traceparent", header);
        }
        Ok(request)
    }
}

#[derive(Debug)]
struct Inner {
    runtime: RuntimeServiceClient<Traced>,
    image: ImageServiceClient<Traced>,
    content: ContentClient<Channel>,
    /// Whether the runtime has no content store.
    lacks_content: AtomicBool,
    in_flight: InFlight,
    runtime_endpoint: String,
    image_endpoint: String,
    config: ClientConfig,
    streams_runtime_lists: AtomicBool,
    streams_image_lists: AtomicBool,
    resource_updates: AtomicU64,
    learned: Learned,
    runtime_health: Health,
    image_health: Health,
}

impl RuntimeClient {
    /// A client of the services behind two sockets (the same one, if no image endpoint is given).
    /// Connects on first use. Needs a tokio runtime.
    pub fn new(config: ClientConfig, runtime: &Endpoint, image: Option<&Endpoint>) -> Self {
        let image = image.unwrap_or(runtime);
        Self::build(
            config,
            (runtime.as_str(), Connector::unix(runtime.path())),
            (image.as_str(), Connector::unix(image.path())),
        )
    }

    /// A client over any byte streams: an in-memory fake, a simulation.
    pub fn with_connectors(config: ClientConfig, runtime: Connector, image: Connector) -> Self {
        Self::build(config, ("runtime", runtime), ("image", image))
    }

    fn build(
        config: ClientConfig,
        (runtime_endpoint, runtime): (&str, Connector),
        (image_endpoint, image): (&str, Connector),
    ) -> Self {
        let runtime = RuntimeServiceClient::with_interceptor(runtime.channel(), InjectTraceContext)
            .max_decoding_message_size(MAX_MESSAGE_BYTES);
        let images = image.channel();
        let content =
            ContentClient::new(images.clone()).max_decoding_message_size(MAX_MESSAGE_BYTES);
        let image = ImageServiceClient::with_interceptor(images, InjectTraceContext)
            .max_decoding_message_size(MAX_MESSAGE_BYTES);
        let inner = Inner {
            runtime,
            image,
            content,
            lacks_content: AtomicBool::new(false),
            in_flight: InFlight::default(),
            runtime_endpoint: runtime_endpoint.to_owned(),
            image_endpoint: image_endpoint.to_owned(),
            streams_runtime_lists: AtomicBool::new(config.list_streaming),
            streams_image_lists: AtomicBool::new(config.list_streaming),
            resource_updates: AtomicU64::new(0),
            config,
            learned: Learned::default(),
            runtime_health: Health::new(Service::Runtime),
            image_health: Health::new(Service::Image),
        };
        Self { inner: Arc::new(inner) }
    }

    /// Calls both services once, as the Go kubelet does at its start.
    pub async fn validate(&self) -> Result<(), ValidateError> {
        let failed = |service, endpoint: &str, source| ValidateError {
            service,
            endpoint: endpoint.to_owned(),
            source,
        };
        self.ping()
            .await
            .map_err(|err| failed(Service::Runtime, &self.inner.runtime_endpoint, err))?;
        self.image_fs_info()
            .await
            .map_err(|err| failed(Service::Image, &self.inner.image_endpoint, err))?;
        Ok(())
    }

    /// Which optional calls the runtime is known to support.
    pub fn features(&self) -> Features {
        self.inner.learned.get()
    }

    /// Probes the optional calls that have no side effects (`RuntimeConfig`, events) and returns
    /// what is known then. Meant for the start, before an event stream is open: some runtimes split
    /// events between streams.
    pub async fn probe_features(&self) -> Features {
        // Failures other than "not implemented" leave the feature unknown, and are reported by health.
        let _ = self.runtime_config().await;
        let mut events = self.events();
        events.next().await;
        self.features()
    }

    /// The runtime's events; see [`EventStream`].
    pub fn events(&self) -> EventStream {
        EventStream::new(self.clone())
    }

    /// Calls in flight that have used a considerable part of their deadline, the oldest first.
    pub fn slow_calls(&self) -> Vec<SlowCall> {
        self.inner.in_flight.slow(SLOW_PART)
    }

    /// Watches whether a service can be reached.
    pub fn reachability(&self, service: Service) -> watch::Receiver<Reachability> {
        self.inner.health(service).subscribe()
    }

    pub(crate) fn runtime_service(&self) -> RuntimeServiceClient<Traced> {
        self.inner.runtime.clone()
    }

    fn image_service(&self) -> ImageServiceClient<Traced> {
        self.inner.image.clone()
    }

    /// The deadline of an ordinary call.
    fn timeout(&self) -> Duration {
        self.inner.config.request_timeout
    }

    /// Runs one call: span, deadline, error, features, reachability, observer. The attempt is dropped at the
    /// deadline, which cancels it at the runtime too.
    async fn invoke<T>(
        &self,
        call: Call,
        deadline: Option<Duration>,
        attempt: BoxFuture<'_, Result<Response<T>, Status>>,
    ) -> Result<T, CriError> {
        let span = tracing::debug_span!("cri", call = call.name());
        let started = Instant::now();
        let _under_way = self.inner.in_flight.enter(call, deadline);
        // Boxed: many callers hold such a future in theirs.
        let attempt = Box::pin(within(call, deadline, attempt).instrument(span));
        let outcome = traces::record(|| opening(call), attempt, closing).await;
        self.note(call, started, outcome.as_ref().map(|_| ()));
        outcome.map(Response::into_inner)
    }

    /// Records how a call ended: features, reachability, observer.
    pub(crate) fn note(&self, call: Call, started: Instant, outcome: Result<(), &CriError>) {
        let elapsed = started.elapsed();
        self.inner.learned.note(call, outcome);
        let health = self.inner.health(call.service());
        match outcome {
            Err(err) if err.is_unavailable() => health.lost(&err.to_string()),
            // A timeout says nothing about the connection to the runtime.
            Err(err) if err.is_deadline() => {}
            _ => health.answered(),
        }
        if let Err(err) = outcome {
            tracing::debug!(call = call.name(), elapsed = ?elapsed, err = %err, "CRI call failed");
        }
        self.inner.config.observer.ended(call, elapsed, outcome);
    }

    /// Records that the runtime supports events.
    pub(crate) fn learn_events(&self) {
        self.inner.learned.note(Call::GetContainerEvents, Ok(()));
    }

    fn streams_lists(&self, service: Service) -> &AtomicBool {
        match service {
            Service::Runtime => &self.inner.streams_runtime_lists,
            Service::Image => &self.inner.streams_image_lists,
        }
    }

    /// Uses the streamed list if it is enabled and supported, else the plain call. A runtime that
    /// lacks one streamed list is not asked for another.
    async fn list<T, Streamed, Plain>(
        &self,
        service: Service,
        streamed: Streamed,
        plain: Plain,
    ) -> Result<Vec<T>, CriError>
    where
        Streamed: Future<Output = Result<Vec<T>, CriError>>,
        Plain: Future<Output = Result<Vec<T>, CriError>>,
    {
        if self.streams_lists(service).load(Ordering::Relaxed) {
            match streamed.await {
                Err(err) if err.is_unimplemented() => {
                    tracing::info!(
                        service = service.as_str(),
                        "Runtime does not stream lists, falling back to plain calls"
                    );
                    self.streams_lists(service).store(false, Ordering::Relaxed);
                }
                Err(err) => {
                    tracing::error!(err = %err, "{} recv failed", err.call().name());
                    return Err(err);
                }
                listed => return listed,
            }
        }
        plain.await
    }
}

impl Inner {
    fn health(&self, service: Service) -> &Health {
        match service {
            Service::Runtime => &self.runtime_health,
            Service::Image => &self.image_health,
        }
    }
}

/// The span of a call (OpenTelemetry's `otelgrpc`).
fn opening(call: Call) -> Opening {
    let service = match call.service() {
        Service::Runtime => "runtime.v1.RuntimeService",
        Service::Image => "runtime.v1.ImageService",
    };
    Opening {
        scope: "go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc",
        name: format!("{service}/{}", call.name()),
        kind: traces::Kind::Client,
        attributes: vec![
            ("rpc.system", "grpc".into()),
            ("rpc.service", service.into()),
            ("rpc.method", call.name().into()),
        ],
        link: None,
    }
}

fn closing<T>(outcome: &Result<Response<T>, CriError>) -> Closing {
    let error = outcome.as_ref().err();
    let code = error.map_or(tonic::Code::Ok, |err| err.code().unwrap_or(tonic::Code::Unknown));
    Closing {
        attributes: vec![("rpc.grpc.status_code", i64::from(code as i32).into())],
        error: error.map(CriError::message),
    }
}

/// Waits for an attempt until its deadline; logs once when it has used a considerable part of it.
async fn within<T>(
    call: Call,
    deadline: Option<Duration>,
    mut attempt: BoxFuture<'_, Result<Response<T>, Status>>,
) -> Result<Response<T>, CriError> {
    let failed = |status: Status| CriError::from_status(call, &status);
    let Some(deadline) = deadline else {
        return attempt.await.map_err(failed);
    };
    // Upstream's clients never succeed in less.
    if deadline < LEAST_DEADLINE {
        return Err(CriError::deadline(call));
    }
    let end = Instant::now() + deadline;
    if let Ok(done) = tokio::time::timeout(deadline / SLOW_PART, &mut attempt).await {
        return done.map_err(failed);
    }
    tracing::warn!(call = call.name(), deadline = ?deadline, "CRI call is slow");
    match tokio::time::timeout_at(end, attempt).await {
        Ok(done) => done.map_err(failed),
        Err(_) => Err(CriError::deadline(call)),
    }
}

/// A request that sends its deadline to the runtime.
fn request<M>(message: M, deadline: Option<Duration>) -> Request<M> {
    let mut request = Request::new(message);
    if let Some(deadline) = deadline {
        request.set_timeout(deadline);
    }
    request
}

/// Reads a streamed list to its end.
async fn gather<M, T>(
    opened: Result<Response<Streaming<M>>, Status>,
    items: fn(M) -> Vec<T>,
) -> Result<Response<Vec<T>>, Status> {
    let mut stream = opened?.into_inner();
    let mut all = Vec::new();
    while let Some(part) = stream.message().await? {
        all.extend(items(part));
    }
    Ok(Response::new(all))
}

/// Turns a failed verification of a response into the call's error.
fn verified<T>(call: Call, answer: T, verdict: Result<(), String>) -> Result<T, CriError> {
    match verdict {
        Ok(()) => Ok(answer),
        Err(problem) => Err(CriError::BadReply { call, problem }),
    }
}

/// A service did not respond at the start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ValidateError {
    /// Which service.
    pub service: Service,
    /// The configured endpoint.
    pub endpoint: String,
    /// The error of the call.
    pub source: CriError,
}

impl std::fmt::Display for ValidateError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (service, endpoint) = (self.service.as_str(), quote(&self.endpoint));
        let Self { source, .. } = self;
        write!(
            f,
            "validate service connection: validate CRI v1 {service} API for endpoint {endpoint}: {source}"
        )
    }
}

impl std::error::Error for ValidateError {}
