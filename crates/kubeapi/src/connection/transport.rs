//! Sends one request: rate limit, address, credentials, wire, deadline, log line.

use super::ConnectionError;
use super::act_as;
use super::bearer::Bearer;
use super::dial::{Dial, proxy_authorization};
use super::identity::ClientIdentity;
use super::kubeconfig::Kubeconfig;
use super::limit::{TokenBucket, Urgency};
use super::measured::{Measured, Within};
use super::tls;
use super::wire::Wire;
use crate::error::ApiError;
use crate::metrics::RequestMetrics;
use futures::future::BoxFuture;
use http::header::{AUTHORIZATION, HeaderMap, HeaderValue, PROXY_AUTHORIZATION, USER_AGENT};
use http::uri::{Authority, PathAndQuery, Scheme, Uri};
use http::{Request, Response, StatusCode};
use http_body::Body as _;
use hyper_rustls::{
    DefaultServerNameResolver, FixedServerNameResolver, HttpsConnector, ResolveServerName,
};
use kube::client::Body;
use rustls_pki_types::ServerName;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use telemetry::metrics::Counter;
use tokio::time::Instant;
use tower::{BoxError, Service};

/// A request that waited longer than this for the rate limit is logged.
const LONG_THROTTLE: Duration = Duration::from_millis(50);

/// The server, and the credentials for it.
#[derive(Debug)]
pub(crate) struct Peer {
    kubeconfig: Kubeconfig,
    scheme: Scheme,
    authority: Authority,
    base_path: String,
    user_agent: HeaderValue,
    act_as: HeaderMap,
    bearer: Bearer,
    identity: Arc<ClientIdentity>,
    proxy_authorization: Option<HeaderValue>,
}

impl Peer {
    pub(crate) fn new(
        kubeconfig: &Kubeconfig,
        user_agent: &str,
        bearer: Bearer,
        identity: Arc<ClientIdentity>,
    ) -> Result<Self, ConnectionError> {
        let bad = || ConnectionError::Server(kubeconfig.server.clone());
        let scheme = units::gourl::of_server(&kubeconfig.server).map_err(|_| bad())?.scheme;
        let text = match kubeconfig.server.split_once("://") {
            Some((given, rest)) if given.eq_ignore_ascii_case(&scheme) => {
                format!("{scheme}://{rest}")
            }
            _ => format!("{scheme}://{}", kubeconfig.server),
        };
        let server = text.parse::<Uri>().map_err(|_| bad())?;
        let proxy_authorization = proxy_authorization(&server, kubeconfig.proxy_url.as_deref());
        let parts = server.into_parts();
        let base_path = parts.path_and_query.map(|p| p.path().trim_end_matches('/').to_owned());
        Ok(Self {
            kubeconfig: kubeconfig.clone(),
            scheme: parts.scheme.ok_or_else(bad)?,
            authority: parts.authority.ok_or_else(bad)?,
            base_path: base_path.unwrap_or_default(),
            user_agent: HeaderValue::from_str(user_agent)
                .unwrap_or(HeaderValue::from_static("kubelet")),
            act_as: kubeconfig.act_as.as_ref().map_or(Ok(HeaderMap::new()), act_as::headers)?,
            bearer,
            identity,
            proxy_authorization,
        })
    }

    pub(crate) fn host(&self) -> &str {
        self.authority.as_str()
    }

    pub(super) fn scheme(&self) -> &Scheme {
        &self.scheme
    }

    pub(super) fn uri(&self, relative: &Uri) -> Result<Uri, http::Error> {
        let path = relative.path_and_query().map_or("/", PathAndQuery::as_str);
        Uri::builder()
            .scheme(self.scheme.clone())
            .authority(self.authority.clone())
            .path_and_query(format!("{}{path}", self.base_path))
            .build()
    }

    /// A connector that offers these ALPN protocols, with the current authorities.
    pub(super) fn connector(
        &self,
        protocols: &[&[u8]],
    ) -> Result<HttpsConnector<Dial>, ConnectionError> {
        let target = self
            .uri(&Uri::default())
            .map_err(|_| ConnectionError::Server(self.kubeconfig.server.clone()))?;
        let mut tls = tls::client_config(&self.kubeconfig, Arc::clone(&self.identity))?;
        let names: Arc<dyn ResolveServerName + Send + Sync> = match &self.kubeconfig.tls_server_name
        {
            Some(name) => {
                let bad = |_| ConnectionError::Server(format!("{name} (tls-server-name)"));
                let name = ServerName::try_from(name.clone()).map_err(bad)?;
                Arc::new(FixedServerNameResolver::new(name))
            }
            None => Arc::new(DefaultServerNameResolver::default()),
        };
        // The proxy is verified like the server: Go has one set of TLS settings.
        let dial = Dial::new(&target, self.kubeconfig.proxy_url.as_deref(), |tcp| {
            HttpsConnector::new(tcp, tls.clone(), true, Arc::clone(&names))
        })?;
        tls.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
        Ok(HttpsConnector::new(dial, tls, false, names))
    }
}

/// A lane's share of a rate limit that other lanes may use too.
#[derive(Debug, Clone)]
pub(crate) struct RateLimitLane {
    pub(super) bucket: Arc<TokenBucket>,
    pub(super) urgency: Urgency,
    /// Counts the seconds for which the lane's requests waited.
    pub(super) throttled: Option<Counter>,
}

impl RateLimitLane {
    /// A request of the lane waited this long.
    pub(super) fn count(&self, waited: Duration) {
        if let Some(throttled) = &self.throttled {
            throttled.add(waited.as_secs_f64());
        }
    }
}

/// The service below a lane's client.
#[derive(Debug, Clone)]
pub(crate) struct Transport {
    pub(super) peer: Arc<Peer>,
    pub(super) wire: Arc<Wire>,
    pub(super) rate_limit: Option<RateLimitLane>,
    pub(super) deadline: Duration,
    pub(super) metrics: Option<RequestMetrics>,
}

impl Transport {
    async fn send(self, mut request: Request<Body>) -> Result<Response<Measured>, BoxError> {
        let method = request.method().clone();
        let watches = request.uri().query().is_some_and(|query| query.contains("watch="));
        if let Some(rate_limit) = &self.rate_limit {
            // A watch has no deadline for its start; it keeps its place in the queue.
            let limit = (!watches).then_some(self.deadline);
            let waited = rate_limit.bucket.acquire(rate_limit.urgency, limit).await;
            let waited = waited.map_err(|error| ApiError::Unreachable(error.to_string()))?;
            rate_limit.count(waited);
            if let Some(metrics) = &self.metrics {
                metrics.throttled(method.as_str(), self.peer.host(), waited);
            }
            if waited > LONG_THROTTLE {
                let path = request.uri().path();
                tracing::debug!(?waited, verb = %method, path, "Waited before sending request");
            }
        }
        *request.uri_mut() = self.peer.uri(request.uri())?;
        request.headers_mut().insert(USER_AGENT, self.peer.user_agent.clone());
        for (name, value) in &self.peer.act_as {
            request.headers_mut().append(name, value.clone());
        }
        if let Some(value) = self.peer.bearer.header().await? {
            request.headers_mut().insert(AUTHORIZATION, value);
        }
        if let Some(value) = &self.peer.proxy_authorization {
            request.headers_mut().insert(PROXY_AUTHORIZATION, value.clone());
        }
        let path = request.uri().path().to_owned();
        let generation = self.wire.generation();
        let sent_bytes = request.body().size_hint().exact();
        let started = Instant::now();
        let outcome = tokio::time::timeout(self.deadline, self.wire.send(request)).await;
        let took = started.elapsed();
        if let Some(metrics) = &self.metrics {
            let answer = outcome.as_ref().ok().and_then(|r| r.as_ref().ok());
            let status = answer.map(|(r, _)| r.status().as_u16());
            metrics.answered((method.as_str(), self.peer.host()), sent_bytes, status, took);
        }
        match outcome {
            Ok(Ok((response, slot))) => {
                let status = response.status();
                let audit_id = response.headers().get("audit-id").and_then(|v| v.to_str().ok());
                let code = status.as_u16();
                if status.is_client_error() || status.is_server_error() {
                    tracing::debug!(verb = %method, path, code, auditID = audit_id, ?took,
                        "API request refused");
                } else {
                    tracing::trace!(verb = %method, path, code, auditID = audit_id, ?took,
                        "API request");
                }
                if status == StatusCode::UNAUTHORIZED {
                    self.peer.bearer.rejected();
                }
                // A watch's response size is not measured (client-go: `Request.Do`).
                let metrics = self.metrics.filter(|_| !watches);
                let host = self.peer.host();
                let counted = metrics.map(|metrics| {
                    let (verb, host) = (method.to_string(), host.to_owned());
                    move |bytes| metrics.read(&verb, &host, bytes)
                });
                let within = (!watches).then(|| {
                    let (wire, deadline) = (self.wire, self.deadline);
                    Within::new(started + deadline, move || {
                        wire.redial_after(generation);
                        ApiError::timed_out(deadline).into()
                    })
                });
                Ok(response.map(|body| Measured::new(body, counted).holding(slot).within(within)))
            }
            Ok(Err(err)) => {
                let text = crate::error::chain(&err);
                tracing::debug!(verb = %method, path, err = text, ?took, "API request failed");
                Err(ApiError::Unreachable(text).into())
            }
            Err(_) => {
                tracing::debug!(verb = %method, path, ?took, "API request got no answer, redialling");
                self.wire.redial_after(generation);
                Err(ApiError::timed_out(self.deadline).into())
            }
        }
    }
}

impl Service<Request<Body>> for Transport {
    type Response = Response<Measured>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        Box::pin(self.clone().send(request))
    }
}
