//! Handles one request: routing, authentication, authorization, response.

use crate::auth::{ANONYMOUS, Guard};
use crate::connections::Place;
use crate::handlers;
use crate::handlers::checkpoint::CheckpointQuota;
use crate::handlers::stream::{Sessions, WebSockets};
use crate::health_metrics::HealthMetrics;
use crate::reply::{self, Reply};
use crate::request_metrics::RequestMetrics;
use crate::route::{self, Asked, Decision, Route, Switches};
use crate::target::Target;
use http::header::{ACCEPT, CONNECTION, EXPECT, HOST, RETRY_AFTER};
use http::{HeaderValue, Method, Request, StatusCode, Version};
use hyper::body::Incoming;
use ports::{Clock, Pods, Roots, Stats, Tasks};
use rustls_pki_types::CertificateDer;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use telemetry::log::LogHandle;
use telemetry::metrics::Registry;
use telemetry::traces::{self, Closing, Opening};

/// The peer of a connection.
#[derive(Debug)]
pub(crate) struct Caller {
    pub(crate) address: SocketAddr,
    pub(crate) certificates: Vec<CertificateDer<'static>>,
    /// The place of its connection.
    pub(crate) place: Place,
}

/// A named health check; `Err` is the reason of the failure.
pub type HealthCheck = Arc<dyn Fn() -> Result<(), String> + Send + Sync>;

/// Dependencies of the handlers.
/// Many fields: one for each subsystem that a route asks.
pub struct ServerDeps {
    /// The pods.
    pub pods: Arc<dyn Pods>,
    /// The runtime, for streaming and logs.
    pub runtime: cri::RuntimeClient,
    /// Resource usage of the node and its pods.
    pub stats: Arc<dyn Stats>,
    /// Metrics of this process.
    pub metrics: Registry,
    /// Probe metrics.
    pub probe_metrics: Registry,
    /// The text of `/configz`.
    pub configz: String,
    /// The version of this process, for `/statusz`.
    pub version: String,
    /// Every flag with its value, for `/flagz`.
    pub flags: BTreeMap<&'static str, String>,
    /// The log verbosity, which can be changed.
    pub logs: LogHandle,
    /// The directories on disk.
    pub roots: Roots,
    /// Checks of `/healthz`, in order, after `ping`.
    pub checks: Vec<(&'static str, HealthCheck)>,
    /// Results of health checks, shared with the health port.
    pub health: Arc<HealthMetrics>,
    /// When this process started, in seconds since the epoch.
    pub started: i64,
    /// Wall time.
    pub clock: Arc<dyn Clock>,
    /// Runs the streams.
    pub tasks: Tasks,
    /// The limit for checkpoint archives.
    pub checkpoints: CheckpointQuota,
    /// The limit for concurrent streams.
    pub sessions: Sessions,
}

impl std::fmt::Debug for ServerDeps {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServerDeps").finish_non_exhaustive()
    }
}

/// The request handler of one listener.
#[derive(Debug)]
pub(crate) struct Service {
    pub(crate) switches: Switches,
    /// `None` on the read-only port.
    pub(crate) guard: Option<Arc<Guard>>,
    pub(crate) deps: Arc<ServerDeps>,
    pub(crate) counts: Arc<Counts>,
}

/// Metrics shared by all listeners.
#[derive(Debug)]
pub(crate) struct Counts {
    pub(crate) health: Arc<HealthMetrics>,
    pub(crate) requests: RequestMetrics,
}

impl Service {
    /// Handles a request; errors become responses.
    pub(crate) async fn answer(&self, mut request: Request<Incoming>, caller: &Caller) -> Reply {
        if let Some(refused) = malformed_request(&request) {
            return refused;
        }
        let (requests, read_only) = (&self.counts.requests, self.guard.is_none());
        if let Some(reply) = server_options(&request) {
            // `OPTIONS *` asks about the server as a whole and reaches no handler.
            if request.method() != Method::OPTIONS {
                requests.begin(request.method(), EVERYTHING, self.switches, read_only);
            }
            return reply;
        }
        let Ok(target) = Target::of(&request) else {
            return reply::bad_request("400 Bad Request");
        };
        let running = requests.begin(request.method(), &target.path, self.switches, read_only);
        // A stream that outlives the handler continues to count.
        request.extensions_mut().insert(running.clone());
        running.until_sent(self.handle(request, &target, caller).await)
    }

    async fn handle(
        &self,
        mut request: Request<Incoming>,
        target: &Target,
        caller: &Caller,
    ) -> Reply {
        let method = request.method();
        let accept = request.headers().get(ACCEPT).map(|value| value.as_bytes());
        let accept = String::from_utf8_lossy(accept.unwrap_or_default());
        let asked = Asked { method, target, accept: &accept };
        let route = match route::decide(asked, self.switches) {
            Decision::NotFound => return reply::error(StatusCode::NOT_FOUND, "404 page not found"),
            Decision::Redirect(to) => {
                return reply::redirect(StatusCode::TEMPORARY_REDIRECT, &to, method);
            }
            Decision::Handle(route) => route,
        };
        if let Some(guard) = &self.guard {
            let (method, headers) = (request.method().clone(), request.headers_mut());
            let from = (caller.address.ip(), &*caller.certificates);
            let checked = guard.check(&method, &target.path, headers, from);
            match checked.await {
                Err(refusal) => return reply::plain(refusal.status, refusal.body),
                // An anonymous caller does not count as authenticated.
                Ok(user) if user.name != ANONYMOUS && !caller.place.know(&user.name) => {
                    return too_many_connections();
                }
                Ok(_) => {}
            }
        }
        let opening = || opening(&route.pattern(), &request);
        let opening = traces::is_on().then(opening);
        let work = Box::pin(self.route(route, request, target, caller));
        match opening {
            Some(opening) => traces::record(|| opening, work, closing).await,
            None => work.await,
        }
    }

    fn websockets(&self) -> WebSockets {
        if self.switches.translate_websockets { WebSockets::Ours } else { WebSockets::Runtimes }
    }

    async fn route(
        &self,
        route: Route,
        request: Request<Incoming>,
        target: &Target,
        caller: &Caller,
    ) -> Reply {
        let deps = &self.deps;
        match route {
            Route::Health(check) => handlers::health::answer(self, check, &target.query),
            Route::Metrics(page) => {
                let (method, headers) = (request.method().clone(), request.headers().clone());
                handlers::metrics::answer(self, page, &method, &headers).await
            }
            Route::Summary => handlers::stats::summary(deps, request).await,
            Route::Pods => handlers::pods::all(deps),
            Route::RunningPods => handlers::pods::running(deps).await,
            Route::Configz => reply::no_sniff(reply::json(deps.configz.clone())),
            Route::DebugFlags => handlers::debug::set_verbosity(deps, request).await,
            Route::ContainerLogs(path) => {
                let split = self.switches.split_log_streams;
                caller.place.be_patient();
                handlers::logs::container(deps, &path, target, split, request.version()).await
            }
            Route::Run(path) => handlers::stream::run(deps, &path, &request).await,
            Route::Exec(path) => {
                handlers::stream::exec(deps, &path, request, caller, self.websockets()).await
            }
            Route::Attach(path) => {
                handlers::stream::attach(deps, &path, request, caller, self.websockets()).await
            }
            Route::PortForward(path) => {
                handlers::stream::port_forward(deps, &path, request, caller, self.websockets())
                    .await
            }
            Route::Disabled(text) => reply::error(StatusCode::METHOD_NOT_ALLOWED, text),
            Route::Flagz => handlers::about::flagz(deps, &request),
            Route::Statusz => handlers::about::statusz(deps, self.switches, &request),
            Route::Profile => handlers::profile::answer(deps, &target.path),
            Route::Logs => {
                handlers::node_logs::answer(deps, self.switches, target, request.headers()).await
            }
            Route::Checkpoint(path) => handlers::checkpoint::answer(deps, &path, &request).await,
            Route::NoRoute => reply::plain(StatusCode::NOT_FOUND, "404: Page Not Found".to_owned()),
            Route::WrongMethod(allow) => reply::wrong_method(&allow),
            Route::NotAcceptable(produces) => reply::not_acceptable(produces),
        }
    }
}

/// The user has more busy connections than are allowed.
fn too_many_connections() -> Reply {
    let text = "too many connections, please try again later";
    let mut reply = reply::error(StatusCode::TOO_MANY_REQUESTS, text);
    reply.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    reply.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
    reply
}

/// The span of a request (OpenTelemetry's `otelrestful`).
fn opening(pattern: &str, request: &Request<Incoming>) -> Opening {
    let header = |name: &str| {
        let value = request.headers().get(name).and_then(|value| value.to_str().ok());
        value.unwrap_or_default().to_owned()
    };
    let mut attributes = vec![
        ("http.request.method", request.method().as_str().into()),
        ("url.path", request.uri().path().into()),
        ("user_agent.original", header("user-agent").into()),
    ];
    if !pattern.is_empty() {
        attributes.push(("http.route", pattern.into()));
    }
    Opening {
        scope: "go.opentelemetry.io/contrib/instrumentation/github.com/emicklei/go-restful/otelrestful",
        name: pattern.to_owned(),
        kind: traces::Kind::Server,
        attributes,
        link: traces::Context::from_header(&header("traceparent")),
    }
}

fn closing(reply: &Reply) -> Closing {
    let status = reply.status();
    Closing {
        attributes: vec![("http.response.status_code", i64::from(status.as_u16()).into())],
        error: status.is_server_error().then(String::new),
    }
}

/// Responses that Go's server gives before any handler, and those to invalid paths.
pub(crate) fn early_response(request: &Request<Incoming>) -> Option<Reply> {
    malformed_request(request).or_else(|| server_options(request))
}

/// Responses that Go's server gives before any handler (Go: `conn.readRequest`).
fn malformed_request(request: &Request<Incoming>) -> Option<Reply> {
    // With HTTP/2 the URI names the host, and nothing else is checked.
    if request.version() == Version::HTTP_2 { None } else { malformed_head(request) }
}

/// The target of a request about the server as a whole; only `OPTIONS` may have it.
const EVERYTHING: &str = "*";

/// The response to a request for that target (Go: `ServeMux.ServeHTTP`).
fn server_options<B>(request: &Request<B>) -> Option<Reply> {
    if request.uri().path() != EVERYTHING {
        return None;
    }
    let mut reply = Reply::new(axum::body::Body::empty());
    if request.method() != Method::OPTIONS {
        *reply.status_mut() = StatusCode::BAD_REQUEST;
        if request.version() == Version::HTTP_11 {
            reply.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
    }
    Some(reply)
}

fn malformed_head(request: &Request<Incoming>) -> Option<Reply> {
    let hosts = request.headers().get_all(HOST).iter().count();
    let old = request.version() < Version::HTTP_11;
    if hosts > 1 {
        return Some(reply::bad_request("400 Bad Request"));
    }
    if hosts == 0 && !old && request.method() != Method::CONNECT {
        return Some(reply::bad_request("400 Bad Request: missing required Host header"));
    }
    let host = request.headers().get(HOST).map(|host| host.as_bytes()).unwrap_or_default();
    if !host.iter().all(|byte| is_host_byte(*byte)) {
        return Some(reply::bad_request("400 Bad Request: malformed Host header"));
    }
    let expected = request.headers().get(EXPECT).map(|value| value.as_bytes()).unwrap_or_default();
    if !expected.is_empty() && !expected.eq_ignore_ascii_case(b"100-continue") {
        let mut reply = Reply::new(axum::body::Body::empty());
        *reply.status_mut() = StatusCode::EXPECTATION_FAILED;
        reply.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        return Some(reply);
    }
    None
}

/// Go: `httpguts.ValidHostHeader`.
pub(crate) fn is_host_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!$%&'()*+,-.:;=[]_~".contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_options_are_of_everything() {
        let ask = |method: Method, target: &'static str| {
            let mut request = Request::new(());
            *request.method_mut() = method;
            *request.uri_mut() = http::Uri::from_static(target);
            let reply = server_options(&request)?;
            Some((reply.status().as_u16(), reply.headers().contains_key(CONNECTION)))
        };
        assert_eq!(ask(Method::OPTIONS, "*"), Some((200, false)));
        assert_eq!(ask(Method::CONNECT, "*"), Some((400, true)));
        assert_eq!(ask(Method::GET, "/*"), None);
    }

    #[test]
    fn a_host_has_no_bytes_of_other_parts_of_a_url() {
        assert!(b"[fe80::1%eth0]:10250".iter().all(|byte| is_host_byte(*byte)));
        assert!(!b"@/?# \"\\<".iter().any(|byte| is_host_byte(*byte)));
    }
}
