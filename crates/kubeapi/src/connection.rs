//! The way to the API server.
//!
//! Owns: three wires (HTTP/2 connections with health pings), the client certificate that they
//! present, the bearer credentials, and the lanes: clients that share a wire but not a rate limit.
//!
//! ```text
//!   lane        wire        limit                  used for
//!   heartbeat   heartbeat   none                   lease, node status
//!   writes      writes      kubeAPIQPS/Burst       pod status, mirror pods, tokens, CSRs
//!   reads       reads       the same, after writes lists, watches, gets
//!   events      reads       eventRecordQPS/Burst   events
//! ```
//!
//! Promises: writes do not wait behind reads for a turn, and how long each lane waited is exported;
//! a silent peer is noticed within 30 s and the wire is dialled anew; a new client
//! certificate is used by the next request while running watches end in their own time.
//!
//! Deliberately absent: retries. The callers own their back-off.

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
mod writer;

pub(crate) use identity::validity;
pub use identity::{ClientIdentity, IdentityError, IdentityPair};
pub use kubeconfig::{Kubeconfig, KubeconfigError, PemPair};
pub use limit::Rate;
pub use writer::KubeconfigWriter;

use crate::error::ApiError;
use crate::metrics::RequestMetrics;
use crate::watch::{Selection, Source};
use bearer::Bearer;
use limit::{TokenBucket, Urgency};
use std::sync::Arc;
use std::time::Duration;
use transport::{Peer, Transport, Turns, Wire};

/// Settings of a [`Connection`].
#[derive(Debug, Clone)]
pub struct ConnectionConfig {
    /// The `User-Agent` header.
    pub user_agent: String,
    /// `kubeAPIQPS` and `kubeAPIBurst`; `None` is unlimited.
    pub rate: Option<Rate>,
    /// `eventRecordQPS` and `eventBurst`; `None` is unlimited.
    pub event_rate: Option<Rate>,
    /// Deadline of a request, answer included (watches only until their answer begins).
    pub request_deadline: Duration,
    /// Deadline of a lease or node status request.
    pub heartbeat_deadline: Duration,
    /// Counts requests.
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

/// Why there is no connection to speak of.
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
    /// Whom to act for cannot be said in a header.
    #[error("{0} of the kubeconfig's user cannot be sent: it has a control character")]
    ActAs(String),
    /// The trusted certificates cannot be used.
    #[error("certificate authority: {0}")]
    Authority(String),
}

/// One client: a wire with a rate limit and a deadline. Cheap to clone.
#[derive(Clone)]
pub struct Lane {
    client: kube::Client,
    wire: Arc<Wire>,
    deadline: Duration,
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

    /// Something to follow over this lane.
    pub(crate) fn source<K>(&self, api: kube::Api<K>, selection: Selection) -> Source<K> {
        Source { api, selection, redialled: self.wire.redialled() }
    }

    /// Runs one request within the lane's deadline.
    pub(crate) async fn ask<T>(
        &self,
        request: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<T, ApiError> {
        match tokio::time::timeout(self.deadline, request).await {
            Ok(result) => result.map_err(ApiError::from),
            Err(_) => {
                self.wire.redial();
                Err(ApiError::timed_out(self.deadline))
            }
        }
    }

    /// Dials anew for the next request; requests under way keep the old connection.
    pub fn redial(&self) {
        self.wire.redial();
    }
}

/// All lanes to one API server. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Connection {
    heartbeat: Lane,
    writes: Lane,
    reads: Lane,
    events: Lane,
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

    /// Prepares a connection whose client certificate is (also) set from outside.
    pub async fn with_identity(
        kubeconfig: &Kubeconfig,
        config: &ConnectionConfig,
        identity: Arc<ClientIdentity>,
    ) -> Result<Self, ConnectionError> {
        if let Some(pair) = kubeconfig.client_pair()?
            && !identity.is_present()
        {
            match identity.install_pem(&pair.certificate, &pair.key) {
                // Files may be better when they are looked at again.
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
        let (heartbeat, writes, reads) = (wire()?, wire()?, wire()?);
        let bucket = |rate: Option<Rate>| rate.map(|r| Arc::new(TokenBucket::new(r)));
        let shared_limit = bucket(config.rate);
        let turns = |name: &'static str, limit: Option<Arc<TokenBucket>>, urgency| {
            let throttled = config.metrics.as_ref().map(|metrics| metrics.lane(name));
            limit.map(|bucket| Turns { bucket, urgency, throttled })
        };
        let lane = |wire: &Arc<Wire>, turns: Option<Turns>, deadline| Lane {
            client: kube::Client::new(
                Transport {
                    peer: Arc::clone(&peer),
                    wire: Arc::clone(wire),
                    turns,
                    deadline,
                    metrics: config.metrics.clone(),
                },
                "default",
            ),
            wire: Arc::clone(wire),
            deadline,
        };
        Ok(Self {
            heartbeat: lane(&heartbeat, None, config.heartbeat_deadline),
            writes: lane(
                &writes,
                turns("writes", shared_limit.clone(), Urgency::High),
                config.request_deadline,
            ),
            reads: lane(
                &reads,
                turns("reads", shared_limit, Urgency::Low),
                config.request_deadline,
            ),
            events: lane(
                &reads,
                turns("events", bucket(config.event_rate), Urgency::High),
                config.request_deadline,
            ),
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

    /// Lists, watches, gets.
    pub fn reads(&self) -> &Lane {
        &self.reads
    }

    /// Events.
    pub fn events(&self) -> &Lane {
        &self.events
    }

    /// The client certificate in use.
    pub fn identity(&self) -> &Arc<ClientIdentity> {
        &self.identity
    }

    /// The API server's `host:port`, for metrics.
    pub fn host(&self) -> &str {
        self.peer.host()
    }

    /// Dials every wire anew for the next request.
    pub fn redial_all(&self) {
        for lane in [&self.heartbeat, &self.writes, &self.reads] {
            lane.redial();
        }
    }

    /// Follows changes of the kubeconfig's certificate files until cancelled.
    pub async fn follow_files(
        self,
        kubeconfig: Kubeconfig,
        cancel: tokio_util::sync::CancellationToken,
    ) {
        reload::run(self, kubeconfig, cancel).await;
    }

    /// Whether the server answers `GET /healthz` with `ok`.
    pub async fn is_healthy(&self) -> bool {
        let Ok(request) = http::Request::get("/healthz").body(Vec::new()) else { return false };
        self.reads.ask(self.reads.client.request_text(request)).await.is_ok_and(|t| t == "ok")
    }
}
