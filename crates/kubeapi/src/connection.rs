//! The connection to the API server.
//!
//! Owns: four wires (each with as many HTTP/2 connections as its streams need), the client
//! certificate that they present, the bearer credentials, and the lanes: clients that share a wire
//! but not a rate limit.
//!
//! ```text
//!   lane        wire        limit                  used for
//!   heartbeat   heartbeat   none                   lease, node status
//!   writes      writes      kubeAPIQPS/Burst       pod status, mirror pods, tokens, CSRs
//!   watches     reads       the same               pods, this node, services, runtime classes
//!   reads       reads       the same, low priority gets, watches of what pods refer to
//!   events      reads       eventRecordQPS/Burst   events
//!   reviews     reviews     separate, same size    token and access reviews for callers
//! ```
//!
//! Promises: writes do not wait behind reads in the rate limit, and no request to the node's own
//! API can delay either; how long each lane waited is exported; watches never keep another request
//! from getting a stream; a silent peer is noticed within 30 s and the wire is redialled; a new
//! client certificate is used by the next request, while running watches continue until they end.
//!
//! Deliberately absent: retries. The callers implement their own back-off.

mod act_as;
mod bearer;
mod dial;
mod exec;
mod identity;
mod kubeconfig;
mod limit;
mod measured;
mod reload;
mod tls;
mod transport;
mod wire;
mod writer;

pub(crate) use identity::validity;
pub use identity::{ClientIdentity, IdentityError, IdentityPair};
pub use kubeconfig::{Kubeconfig, KubeconfigError, PemPair};
pub use limit::Rate;
pub(crate) use limit::Urgency;
pub use writer::KubeconfigWriter;

use crate::error::{ApiError, Refusal};
use crate::metrics::RequestMetrics;
use crate::watch::{Selection, Source};
use bearer::Bearer;
use limit::TokenBucket;
use std::sync::Arc;
use std::time::Duration;
use transport::{Peer, RateLimitLane, Transport};
use wire::Wire;

/// The rate limit of reviews where requests are otherwise unlimited.
const REVIEWS: Rate = Rate { per_second: 50.0, burst: 100 };

/// Settings of a [`Connection`].
#[derive(Debug, Clone)]
pub struct ConnectionConfig {
    /// The `User-Agent` header.
    pub user_agent: String,
    /// `kubeAPIQPS` and `kubeAPIBurst`; `None` is unlimited.
    pub rate: Option<Rate>,
    /// `eventRecordQPS` and `eventBurst`; `None` is unlimited.
    pub event_rate: Option<Rate>,
    /// Deadline of a request including its response (for watches, until the response begins).
    pub request_deadline: Duration,
    /// Deadline of a lease or node status request.
    pub heartbeat_deadline: Duration,
    /// Metrics of requests.
    pub metrics: Option<RequestMetrics>,
}

impl Default for ConnectionConfig {
    fn default() -> Self {
        Self {
            user_agent: "kubelet".into(),
            rate: Some(Rate { per_second: 50.0, burst: 100 }),
            event_rate: Some(Rate { per_second: 50.0, burst: 100 }),
            request_deadline: Duration::from_secs(30),
            heartbeat_deadline: Duration::from_secs(10),
            metrics: None,
        }
    }
}

/// Why a connection cannot be prepared.
#[derive(Debug, thiserror::Error)]
pub enum ConnectionError {
    /// The kubeconfig cannot be used.
    #[error("kubeconfig")]
    Kubeconfig(#[from] KubeconfigError),
    /// The client certificate cannot be used.
    #[error("client certificate")]
    Identity(#[from] IdentityError),
    /// The server's URL cannot be used.
    #[error("server address {0:?} is not a URL")]
    Server(String),
    /// The proxy cannot be used.
    #[error("proxy {0:?} is not supported: use http, https or socks5")]
    Proxy(String),
    /// An impersonation field cannot be sent as a header.
    #[error("{0} of the kubeconfig's user cannot be sent: it has a control character")]
    ActAs(String),
    /// The trusted certificates cannot be used.
    #[error("certificate authority: {0}")]
    Authority(String),
}

/// How soon a request for something that a new pod refers to is repeated after it was forbidden; pauses double.
pub(crate) const AUTHORIZER_LAG: Duration = Duration::from_millis(50);
/// The longest of those pauses.
pub(crate) const LONGEST_AUTHORIZER_LAG: Duration = Duration::from_millis(400);

/// One client: a wire with a rate limit and a deadline. Cheap to clone.
#[derive(Clone)]
pub struct Lane {
    client: kube::Client,
    wire: Arc<Wire>,
    deadline: Duration,
    /// The rate limit that callers wait for with [`Lane::wait_for_token`]; on other lanes each request waits
    /// by itself.
    rate_limit: Option<RateLimitLane>,
    /// The rate limit that requests wait for by themselves.
    line: Option<RateLimitLane>,
}

impl std::fmt::Debug for Lane {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lane").field("deadline", &self.deadline).finish_non_exhaustive()
    }
}

impl Lane {
    /// The client; requests go through [`Lane::ask`], watches through [`Lane::source`].
    pub(crate) fn client(&self) -> kube::Client {
        self.client.clone()
    }

    /// A watch source over this lane.
    pub(crate) fn source<K>(&self, api: kube::Api<K>, selection: Selection) -> Source<K> {
        Source { api, selection, redialled: self.wire.redialled() }
    }

    /// How long a request sent now would wait for the rate limit.
    pub(crate) fn backlog(&self) -> Duration {
        let now = tokio::time::Instant::now();
        self.line.as_ref().map_or(Duration::ZERO, |line| line.bucket.expected(line.urgency, now))
    }

    /// Waits for the rate limit, on a lane whose requests do not do so by themselves.
    pub(crate) async fn wait_for_token(
        &self,
        urgency: Urgency,
        limit: Duration,
    ) -> Result<(), ApiError> {
        let Some(rate_limit) = &self.rate_limit else { return Ok(()) };
        let waited = rate_limit.bucket.acquire(urgency, Some(limit)).await;
        let waited = waited.map_err(|error| ApiError::Unreachable(error.to_string()))?;
        rate_limit.count(waited);
        Ok(())
    }

    /// Runs one request. The transport applies the lane's deadline to the wait for the rate limit
    /// and to the response; this timeout bounds the rest, such as an exec plugin.
    pub(crate) async fn ask<T>(
        &self,
        request: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<T, ApiError> {
        match tokio::time::timeout(self.deadline * 3, request).await {
            Ok(result) => result.map_err(ApiError::from),
            Err(_) => Err(ApiError::timed_out(self.deadline * 3)),
        }
    }

    /// [`Lane::ask`] for what a pod of this node refers to. The authorizer of the API server learns from a watch of
    /// its own which pods are bound to which node, so it refuses what a new pod refers to until it has seen that pod:
    /// a refusal counts only if it lasts.
    pub(crate) async fn ask_referred<T, R>(&self, request: impl Fn() -> R) -> Result<T, ApiError>
    where
        R: Future<Output = Result<T, kube::Error>>,
    {
        let mut pause = AUTHORIZER_LAG;
        loop {
            let answer = self.ask(request()).await;
            let forbidden = matches!(&answer, Err(e) if e.refusal() == Some(Refusal::Forbidden));
            if !forbidden || pause > LONGEST_AUTHORIZER_LAG {
                return answer;
            }
            tokio::time::sleep(pause).await;
            pause *= 2;
        }
    }

    /// The next request dials again; requests in progress keep the old connection.
    pub fn redial(&self) {
        self.wire.redial();
    }
}

/// All lanes to one API server. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Connection {
    heartbeat: Lane,
    writes: Lane,
    watches: Lane,
    reads: Lane,
    events: Lane,
    reviews: Lane,
    identity: Arc<ClientIdentity>,
    peer: Arc<Peer>,
}

impl Connection {
    /// Prepares a connection; nothing is dialled yet.
    pub async fn new(
        kubeconfig: &Kubeconfig,
        config: &ConnectionConfig,
    ) -> Result<Self, ConnectionError> {
        let identity = Arc::new(ClientIdentity::default());
        Self::with_identity(kubeconfig, config, identity).await
    }

    /// Prepares a connection whose client certificate can also be set from outside.
    pub async fn with_identity(
        kubeconfig: &Kubeconfig,
        config: &ConnectionConfig,
        identity: Arc<ClientIdentity>,
    ) -> Result<Self, ConnectionError> {
        if let Some(pair) = kubeconfig.client_pair()?
            && !identity.is_present()
        {
            match identity.install_pem(&pair.certificate, &pair.key) {
                // The files may be valid when they are read again.
                Err(err) if kubeconfig.has_pair_of_files() => {
                    tracing::error!(err = %err, "Client certificate files cannot be used");
                }
                installed => installed?,
            }
        }
        let bearer = Bearer::new(kubeconfig, Arc::clone(&identity));
        let peer =
            Arc::new(Peer::new(kubeconfig, &config.user_agent, bearer, Arc::clone(&identity))?);
        let wire = || Wire::new(Arc::clone(&peer)).map(Arc::new);
        let (heartbeat, writes, reads, reviews) = (wire()?, wire()?, wire()?, wire()?);
        let bucket = |rate: Option<Rate>| rate.map(|r| Arc::new(TokenBucket::new(r)));
        let shared_limit = bucket(config.rate);
        let rate_limit = |name: &'static str, limit: Option<Arc<TokenBucket>>, urgency| {
            let throttled = config.metrics.as_ref().map(|metrics| metrics.lane(name));
            limit.map(|bucket| RateLimitLane { bucket, urgency, throttled })
        };
        let lane = |wire: &Arc<Wire>, line: Option<RateLimitLane>, deadline| Lane {
            client: kube::Client::new(
                Transport {
                    peer: Arc::clone(&peer),
                    wire: Arc::clone(wire),
                    rate_limit: line.clone(),
                    deadline,
                    metrics: config.metrics.clone(),
                },
                "default",
            ),
            wire: Arc::clone(wire),
            deadline,
            rate_limit: None,
            line,
        };
        // Also without a configured limit: callers of the node's API never get more than this.
        let review_rate = config.rate.unwrap_or(REVIEWS);
        Ok(Self {
            heartbeat: lane(&heartbeat, None, config.heartbeat_deadline),
            writes: lane(
                &writes,
                rate_limit("writes", shared_limit.clone(), Urgency::High),
                config.request_deadline,
            ),
            watches: lane(
                &reads,
                rate_limit("watches", shared_limit.clone(), Urgency::High),
                config.request_deadline,
            ),
            reads: lane(
                &reads,
                rate_limit("reads", shared_limit, Urgency::Low),
                config.request_deadline,
            ),
            events: lane(
                &reads,
                rate_limit("events", bucket(config.event_rate), Urgency::High),
                config.request_deadline,
            ),
            reviews: Lane {
                rate_limit: rate_limit("reviews", bucket(Some(review_rate)), Urgency::Low),
                ..lane(&reviews, None, config.request_deadline)
            },
            identity,
            peer,
        })
    }

    /// Lease and node status.
    pub fn heartbeat(&self) -> &Lane {
        &self.heartbeat
    }

    /// Pod status, mirror pods, tokens, certificate requests.
    pub fn writes(&self) -> &Lane {
        &self.writes
    }

    /// The watches that everything else depends on: pods, this node, services, runtime classes.
    pub(crate) fn watches(&self) -> &Lane {
        &self.watches
    }

    /// Gets, and watches of objects that pods refer to.
    pub fn reads(&self) -> &Lane {
        &self.reads
    }

    /// Events.
    pub fn events(&self) -> &Lane {
        &self.events
    }

    /// Token and access reviews.
    pub(crate) fn reviews(&self) -> &Lane {
        &self.reviews
    }

    /// The client certificate in use.
    pub fn identity(&self) -> &Arc<ClientIdentity> {
        &self.identity
    }

    /// The API server's `host:port`, for metrics.
    pub fn host(&self) -> &str {
        self.peer.host()
    }

    /// Redials every wire for the next request.
    pub fn redial_all(&self) {
        for lane in [&self.heartbeat, &self.writes, &self.reads, &self.reviews] {
            lane.redial();
        }
    }

    /// Reloads the kubeconfig's certificate files when they change, until cancelled.
    pub async fn follow_files(
        self,
        kubeconfig: Kubeconfig,
        cancel: tokio_util::sync::CancellationToken,
    ) {
        reload::run(self, kubeconfig, cancel).await;
    }

    /// Whether the server responds to `GET /healthz` with `ok`.
    pub async fn is_healthy(&self) -> bool {
        let Ok(request) = http::Request::get("/healthz").body(Vec::new()) else { return false };
        self.reads.ask(self.reads.client.request_text(request)).await.is_ok_and(|t| t == "ok")
    }
}
