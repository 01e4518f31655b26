//! One request: where it goes, who asks, what is answered.

use crate::auth::Guard;
use crate::handlers;
use crate::health_metrics::HealthMetrics;
use crate::reply::{self, Reply};
use crate::request_metrics::RequestMetrics;
use crate::route::{self, Decision, Route, Switches};
use http::{Request, StatusCode};
use hyper::body::Incoming;
use ports::{Clock, Pods, Roots, Stats, Tasks};
use rustls_pki_types::CertificateDer;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use telemetry::log::LogHandle;
use telemetry::metrics::Registry;

/// Who is at the other end of a connection.
#[derive(Debug)]
pub(crate) struct Caller {
    pub(crate) address: SocketAddr,
    pub(crate) certificates: Vec<CertificateDer<'static>>,
}

/// A named health check; `Err` is what is wrong.
pub type HealthCheck = Arc<dyn Fn() -> Result<(), String> + Send + Sync>;

/// What answers are made of.
pub struct ServerDeps {
    /// The pods.
    pub pods: Arc<dyn Pods>,
    /// The runtime, for streaming and logs.
    pub runtime: cri::RuntimeClient,
    /// Usage of the node and its pods.
    pub stats: Arc<dyn Stats>,
    /// Metrics of this process.
    pub metrics: Registry,
    /// Probe metrics.
    pub probe_metrics: Registry,
    /// The document of `/configz`.
    pub configz: serde_json::Value,
    /// Every flag with its value, for `/flagz`.
    pub flags: BTreeMap<&'static str, String>,
    /// Verbosity that can be set.
    pub logs: LogHandle,
    /// Places on disk.
    pub roots: Roots,
    /// Checks of `/healthz`, in order, after `ping`.
    pub checks: Vec<(&'static str, HealthCheck)>,
    /// When this process started, in seconds since the epoch.
    pub started: i64,
    /// Wall time.
    pub clock: Arc<dyn Clock>,
    /// Where streams run.
    pub tasks: Tasks,
}

impl std::fmt::Debug for ServerDeps {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServerDeps").finish_non_exhaustive()
    }
}

/// One listener's way of answering.
#[derive(Debug)]
pub(crate) struct Service {
    pub(crate) switches: Switches,
    /// `None` on the read-only port.
    pub(crate) guard: Option<Arc<Guard>>,
    pub(crate) deps: Arc<ServerDeps>,
    pub(crate) counts: Arc<Counts>,
}

/// What is counted over all listeners.
#[derive(Debug)]
pub(crate) struct Counts {
    pub(crate) health: HealthMetrics,
    pub(crate) requests: RequestMetrics,
}

impl Service {
    /// Answers; never fails.
    pub(crate) async fn answer(&self, request: Request<Incoming>, caller: &Caller) -> Reply {
        let path = request.uri().path().to_owned();
        let read_only = self.guard.is_none();
        let _running =
            self.counts.requests.begin(request.method(), &path, self.switches, read_only);
        let route = match route::decide(request.method(), &path, self.switches) {
            Decision::NotFound => return reply::error(StatusCode::NOT_FOUND, "404 page not found"),
            Decision::Redirect(to) => return reply::redirect(&to, request.uri().query()),
            Decision::Handle(route) => route,
        };
        if let Some(guard) = &self.guard {
            let checked =
                guard.check(request.method(), &path, request.headers(), &caller.certificates);
            if let Err(refusal) = checked.await {
                return reply::plain(refusal.status, refusal.body);
            }
        }
        self.route(route, request, caller).await
    }

    async fn route(&self, route: Route, request: Request<Incoming>, caller: &Caller) -> Reply {
        let deps = &self.deps;
        match route {
            Route::Health(check) => handlers::health::answer(self, check, request.uri().query()),
            Route::Metrics(page) => {
                let (method, headers) = (request.method().clone(), request.headers().clone());
                handlers::metrics::answer(self, page, &method, &headers).await
            }
            Route::Summary => handlers::stats::summary(deps, request).await,
            Route::Pods => handlers::pods::all(deps, &request),
            Route::RunningPods => handlers::pods::running(deps, &request).await,
            Route::Configz => reply::json(&deps.configz),
            Route::DebugFlags => handlers::debug::set_verbosity(deps, request).await,
            Route::ContainerLogs(path) => handlers::logs::container(deps, &path, &request).await,
            Route::Run(path) => handlers::stream::run(deps, &path, &request).await,
            Route::Exec(path) => handlers::stream::exec(deps, &path, request, caller).await,
            Route::Attach(path) => handlers::stream::attach(deps, &path, request, caller).await,
            Route::PortForward(path) => {
                handlers::stream::port_forward(deps, &path, request, caller).await
            }
            Route::Disabled(text) => reply::error(StatusCode::METHOD_NOT_ALLOWED, text),
            Route::Flagz => handlers::about::flagz(deps, request.headers()),
            Route::Statusz => handlers::about::statusz(deps, request.headers()),
            Route::Profile(name) => handlers::profile::answer(deps, &name),
            Route::Logs(path) => handlers::node_logs::answer(deps, &path, request.headers()).await,
            Route::Checkpoint(path) => handlers::checkpoint::answer(deps, &path, &request).await,
            Route::NoRoute => reply::plain(StatusCode::NOT_FOUND, "404: Page Not Found".to_owned()),
            Route::WrongMethod(allow) => reply::wrong_method(allow),
        }
    }
}

/// Whether an `Accept` header admits JSON, as go-restful judges it.
pub(crate) fn accepts_json(request: &Request<Incoming>) -> bool {
    let Some(accept) = request.headers().get(http::header::ACCEPT) else { return true };
    let Ok(text) = accept.to_str() else { return false };
    text.split(',').any(|kind| {
        let kind = kind.split(';').next().unwrap_or_default().trim();
        kind == "*/*" || kind == "application/json"
    })
}
