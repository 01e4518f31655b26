//! Rotates one certificate (upstream: `certificate.Manager`).

use super::key::{self, Names, Subject};
use super::request::{self, Request, RequestError};
use super::store::CertStore;
use crate::connection::{ClientIdentity, Connection, IdentityPair, Lane};
use crate::error::Refusal;
use crate::metrics::{CertificateKind, CertificateMetrics};
use crate::watch::random_fraction;
use async_trait::async_trait;
use jiff::Timestamp;
use ports::{Clock, NodeViews};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use telemetry::metrics::Registry;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use units::strconv::parse_ip;

const PATIENCE: Duration = Duration::from_secs(15 * 60);
/// Minimal pause between two rotations, however short-lived the certificates are.
const SHORTEST_PAUSE: Duration = Duration::from_secs(1);
const FIRST_PAUSE: Duration = Duration::from_secs(2);
const LONGEST_PAUSE: Duration = Duration::from_secs(32);
/// How often the presence of a client certificate is checked…
const CHECK_PERIOD: Duration = Duration::from_secs(10);
/// …and how long the node runs without one. After a restart it may have other credentials.
const MAX_WITHOUT_CERTIFICATE: Duration = Duration::from_secs(5 * 60);
/// Wall time may jump: a far deadline is checked this often.
const LONGEST_SLEEP: Duration = Duration::from_secs(60);

/// State of a rotating certificate, for metrics and the debug endpoint.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CertificateState {
    /// The validity period of the certificate in use.
    pub validity: Option<(Timestamp, Timestamp)>,
    /// When the next one will be requested.
    pub rotate_at: Option<Timestamp>,
    /// The last failure, until the next success.
    pub last_error: Option<String>,
}

/// Provides a lane to request certificates with, using the current credentials.
#[async_trait]
pub(super) trait Asking: Send + Sync + std::fmt::Debug {
    async fn lane(&self, has_certificate: bool) -> Result<Lane, RequestError>;
}

/// Rotates a certificate until cancelled.
#[derive(Debug)]
pub struct Rotation {
    pub(super) asking: Box<dyn Asking>,
    pub(super) signer: &'static str,
    pub(super) usages: &'static [&'static str],
    pub(super) subject: Subject,
    /// `None` while no certificate should be requested.
    pub(super) names: watch::Receiver<Option<Names>>,
    pub(super) store: CertStore,
    pub(super) identity: Arc<ClientIdentity>,
    /// Redialled after each rotation.
    pub(super) connection: Option<Connection>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) state: watch::Sender<CertificateState>,
    /// Request a certificate at once, however fresh the present one is.
    pub(super) force: bool,
    /// Whether the server responded to the last request.
    pub(super) responsive: Arc<AtomicBool>,
    pub(super) metrics: Option<CertificateMetrics>,
    /// Where the names come from; `None` if they never change.
    pub(super) node: Option<NodeNames>,
}

/// Names that follow the node's addresses.
#[derive(Debug)]
pub(super) struct NodeNames {
    node: NodeViews,
    allow_dns_only: bool,
    out: watch::Sender<Option<Names>>,
}

impl Rotation {
    /// The state, for metrics.
    pub fn state(&self) -> watch::Receiver<CertificateState> {
        self.state.subscribe()
    }

    /// Registers metrics.
    #[must_use]
    pub fn with_metrics(mut self, registry: &Registry) -> Self {
        let kind = match self.signer {
            request::SERVING_SIGNER => CertificateKind::Server,
            _ => CertificateKind::Client,
        };
        let (identity, clock) = (Arc::clone(&self.identity), Arc::clone(&self.clock));
        let seconds_left = move || seconds_left(&*identity.current()?, clock.now());
        self.metrics = Some(CertificateMetrics::new(registry, kind, seconds_left));
        self
    }

    /// Runs until cancelled; for a client certificate it also ends when there has been none for too
    /// long.
    pub async fn run(mut self, cancel: CancellationToken) {
        let following = self.node.take().map(NodeNames::follow);
        let following = async {
            match following {
                Some(following) => following.await,
                None => std::future::pending().await,
            }
        };
        let lost = (self.connection.is_some()).then(|| {
            let (identity, clock) = (Arc::clone(&self.identity), Arc::clone(&self.clock));
            until_lost(identity, clock, Arc::clone(&self.responsive))
        });
        let lost = async {
            match lost {
                Some(lost) => lost.await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            // Cancel-safe: a token has no state to lose.
            () = cancel.cancelled() => {}
            // The process ends with it.
            () = lost => {}
            // Dropped only at the end of the process; a pending request is repeated after the
            // restart.
            () = self.rounds() => {}
            // Ends only with the node's watch.
            () = following => {}
        }
    }

    async fn rounds(&mut self) {
        loop {
            self.wait_until_due().await;
            let mut pause = FIRST_PAUSE;
            loop {
                let Some(names) = self.names.borrow_and_update().clone() else { break };
                let mut wanted = self.names.clone();
                let outcome = tokio::select! {
                    // Dropped when the names change: that certificate would not be used.
                    outcome = self.rotate(&names) => outcome,
                    // Cancel-safe: only a wake-up, the names are read above.
                    () = changed(&mut wanted) => continue,
                };
                match outcome {
                    Ok(()) => {
                        self.responsive.store(true, Ordering::Relaxed);
                        tokio::time::sleep(SHORTEST_PAUSE).await;
                        break;
                    }
                    Err(err) => self.failed(&err),
                }
                tokio::select! {
                    // Cancel-safe: a fresh sleep each round.
                    () = tokio::time::sleep(pause.mul_f64(1.0 + 0.1 * random_fraction())) => {}
                    // Cancel-safe: the change stays marked until it is read above.
                    () = changed(&mut self.names) => {}
                }
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        }
    }

    /// Returns when a certificate should be requested.
    async fn wait_until_due(&mut self) {
        loop {
            let due = self.due();
            self.state.send_modify(|state| {
                state.rotate_at = due;
                state.validity = self.identity.current().map(|p| (p.not_before, p.not_after));
            });
            let now = self.clock.now();
            let left = match due {
                Some(due) if due <= now => return,
                Some(due) => Duration::try_from(due.duration_since(now)).unwrap_or_default(),
                None => LONGEST_SLEEP,
            };
            tokio::select! {
                // Cancel-safe: a fresh sleep each round.
                () = tokio::time::sleep(left.min(LONGEST_SLEEP)) => {}
                // Cancel-safe: the change stays marked until it is read in `due`.
                () = changed(&mut self.names) => {}
            }
        }
    }

    /// When to request; `None` while no certificate should be requested. Stays the same for one
    /// certificate.
    fn due(&mut self) -> Option<Timestamp> {
        let names = self.names.borrow_and_update().clone()?;
        let now = self.clock.now();
        let Some(pair) = self.identity.current().filter(|_| !self.force) else { return Some(now) };
        if pair.not_after <= now || !key::satisfies(&pair, &self.subject, &names) {
            return Some(now);
        }
        let state = self.state.borrow();
        let same = state.validity == Some((pair.not_before, pair.not_after));
        match state.rotate_at.filter(|_| same) {
            Some(known) if known > pair.not_before => Some(known),
            _ => Some(deadline(&pair, random_fraction())),
        }
    }

    async fn rotate(&mut self, names: &Names) -> Result<(), RequestError> {
        let made = |e: rcgen::Error| RequestError::Make(e.to_string());
        let key = key::generate().map_err(made)?;
        let pem = key::signing_request(&key, &self.subject, names).map_err(made)?;
        let now = self.clock.now();
        let old = self.identity.current();
        let usable = old.as_ref().is_some_and(|pair| pair.not_after > now);
        let lane = self.asking.lane(usable).await?;
        let request = Request {
            name: None,
            signer: self.signer,
            usages: self.usages,
            pem,
            // Once the old certificate has expired, only other credentials can send requests.
            patience: old.clone().filter(|_| usable).map_or(PATIENCE, |pair| {
                let left = Duration::try_from(pair.not_after.duration_since(now));
                left.unwrap_or_default().min(PATIENCE)
            }),
        };
        let certificate = request::obtain(&lane, request).await?;
        let (store, now) = (self.store.clone(), self.clock.now());
        let key_pem = key.serialize_pem();
        let keep = move || store.update(&certificate, key_pem.as_bytes(), now);
        let failed = |e: sys::blocking::BlockingError| RequestError::Make(e.to_string());
        let pair = sys::blocking::run(keep).await.map_err(failed)??;
        tracing::info!(expires = %pair.not_after, signer = self.signer, "Certificate rotated");
        if let (Some(metrics), Some(old)) = (&self.metrics, &old) {
            metrics.rotated(now.as_second() - old.not_before.as_second());
        }
        self.state.send_modify(|state| {
            state.validity = Some((pair.not_before, pair.not_after));
            state.rotate_at = None;
            state.last_error = None;
        });
        self.force = false;
        self.identity.install(pair);
        if let Some(connection) = &self.connection {
            connection.redial_all();
        }
        Ok(())
    }

    fn failed(&self, err: &RequestError) {
        if let RequestError::Send(error) = err {
            // These responses come from a server that works (upstream: `updateServerError`).
            let refusals = [Refusal::Unauthorized, Refusal::NotFound, Refusal::Forbidden];
            let answered = error.refusal().is_some_and(|refusal| refusals.contains(&refusal));
            self.responsive.store(answered, Ordering::Relaxed);
        }
        let text = crate::error::chain(err);
        tracing::error!(err = text, signer = self.signer, "certificate was not renewed");
        if let Some(metrics) = &self.metrics {
            metrics.failed();
        }
        self.state.send_modify(|state| state.last_error = Some(text));
    }
}

async fn changed<T>(receiver: &mut watch::Receiver<T>) {
    if receiver.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Returns when there has been no valid certificate for too long although the server responds
/// (upstream: `addCertRotation`).
async fn until_lost(
    identity: Arc<ClientIdentity>,
    clock: Arc<dyn Clock>,
    responsive: Arc<AtomicBool>,
) {
    let mut last = (Instant::now(), clock.now());
    loop {
        tokio::time::sleep(CHECK_PERIOD).await;
        let now = clock.now();
        if identity.current().is_some_and(|pair| now <= pair.not_after) {
            last = (Instant::now(), now);
            continue;
        }
        if last.0.elapsed() <= MAX_WITHOUT_CERTIFICATE {
            continue;
        }
        let exits = responsive.load(Ordering::Relaxed);
        let message = if exits {
            "No valid client certificate is found and the server is responsive, exiting."
        } else {
            "No valid client certificate is found but the server is not responsive. A restart may be \
             necessary to retrieve new initial credentials."
        };
        tracing::error!(
            lastCertificateAvailabilityTime = %last.1,
            shutdownThreshold = "5m0s",
            "{message}"
        );
        if exits {
            return;
        }
    }
}

/// The seconds until a certificate expires; `None` if it has expired, as upstream treats it as
/// absent.
fn seconds_left(pair: &IdentityPair, now: Timestamp) -> Option<i64> {
    (now <= pair.not_after).then(|| pair.not_after.as_second() - now.as_second())
}

/// 70 % to 90 % of the certificate's validity period.
fn deadline(pair: &IdentityPair, fraction: f64) -> Timestamp {
    let (begin, end) = (pair.not_before.as_second(), pair.not_after.as_second());
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        reason = "seconds of a certificate's life, jittered anyway"
    )]
    let part = ((end - begin) as f64 * (0.7 + 0.2 * fraction)).round() as i64;
    Timestamp::from_second(begin.saturating_add(part)).unwrap_or(pair.not_after)
}

/// Settings of the serving certificate.
#[derive(Debug, Clone)]
pub struct ServingConfig {
    /// This node's name.
    pub node_name: String,
    /// `--cert-dir`.
    pub cert_dir: PathBuf,
    /// `tlsCertFile` and `tlsPrivateKeyFile`: served until the first certificate is signed.
    pub first: Option<(PathBuf, PathBuf)>,
    /// Gate `AllowDNSOnlyNodeCSR`: a node without addresses requests a certificate too.
    pub allow_dns_only: bool,
}

#[derive(Debug)]
struct OverConnection(Connection);

#[async_trait]
impl Asking for OverConnection {
    async fn lane(&self, _has_certificate: bool) -> Result<Lane, RequestError> {
        Ok(self.0.writes().clone())
    }
}

/// The serving certificate (`serverTLSBootstrap`): requested once the node has addresses, and again
/// when they change. The identity is for the HTTPS server; it is empty until then.
pub fn serving(
    connection: &Connection,
    config: ServingConfig,
    node: NodeViews,
    clock: Arc<dyn Clock>,
) -> (Arc<ClientIdentity>, Rotation) {
    let store = serving_store(&config);
    let identity = stored_serving(&store, &*clock);
    let (out, names) = watch::channel(None);
    let rotation = Rotation {
        asking: Box::new(OverConnection(connection.clone())),
        signer: request::SERVING_SIGNER,
        usages: &request::SERVING_USAGES,
        subject: Subject::node(&config.node_name),
        names,
        store,
        identity: Arc::clone(&identity),
        connection: None,
        clock,
        state: watch::Sender::new(CertificateState::default()),
        force: false,
        responsive: Arc::default(),
        metrics: None,
        node: Some(NodeNames { node, allow_dns_only: config.allow_dns_only, out }),
    };
    (identity, rotation)
}

/// The serving certificate of a node without an API server: the stored one, as long as it is valid.
pub fn serving_alone(
    config: &ServingConfig,
    clock: Arc<dyn Clock>,
    registry: &Registry,
) -> Arc<ClientIdentity> {
    let identity = stored_serving(&serving_store(config), &*clock);
    let shown = Arc::clone(&identity);
    let left = move || seconds_left(&*shown.current()?, clock.now());
    CertificateMetrics::new(registry, CertificateKind::Server, left);
    identity
}

fn serving_store(config: &ServingConfig) -> CertStore {
    CertStore::new(&config.cert_dir, "kubelet-server").beginning_with(config.first.clone())
}

/// The stored certificate, unless it has expired.
fn stored_serving(store: &CertStore, clock: &dyn Clock) -> Arc<ClientIdentity> {
    let identity = Arc::new(ClientIdentity::default());
    match store.current() {
        Ok(pair) => pair
            .filter(|pair| pair.not_after() > clock.now())
            .into_iter()
            .for_each(|pair| identity.install(pair)),
        Err(err) => {
            let err = crate::error::chain(&err);
            tracing::warn!(err, "stored serving certificate cannot be used");
        }
    }
    identity
}

impl NodeNames {
    /// Updates the requested names with the node's addresses; ends with the node's watch.
    async fn follow(mut self) {
        loop {
            let wanted = self.node.borrow_and_update().node.as_deref().map(names_of);
            let usable =
                wanted.filter(|n| !n.ips.is_empty() || (self.allow_dns_only && !n.dns.is_empty()));
            self.out.send_if_modified(|current| {
                let differs = usable.is_some() && *current != usable;
                if differs {
                    *current = usable;
                }
                differs
            });
            if self.node.changed().await.is_err() {
                return;
            }
        }
    }
}

fn names_of(node: &api::core::v1::Node) -> Names {
    let mut names = Names::default();
    for address in node.status.iter().flat_map(|s| s.addresses.iter().flatten()) {
        let (kind, text) = (address.type_.as_str(), &address.address);
        match (kind, parse_ip(text)) {
            _ if text.is_empty() => {}
            ("Hostname" | "InternalIP" | "ExternalIP", Some(ip)) => {
                names.ips.insert(ip);
            }
            ("Hostname", None) | ("InternalDNS" | "ExternalDNS", _) => {
                names.dns.insert(text.clone());
            }
            _ => {}
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn rotates_between_seven_and_nine_tenths_of_the_life() {
        let key = key::generate().unwrap();
        let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
        params.not_before = rcgen::date_time_ymd(2030, 1, 1);
        params.not_after = rcgen::date_time_ymd(2030, 1, 11);
        let pem = params.self_signed(&key).unwrap().pem();
        let pair = IdentityPair::from_pem(pem.as_bytes(), key.serialize_pem().as_bytes()).unwrap();
        assert_eq!(deadline(&pair, 0.0).to_string(), "2030-01-08T00:00:00Z");
        assert_eq!(deadline(&pair, 1.0).to_string(), "2030-01-10T00:00:00Z");
        let left = |at: &str| seconds_left(&pair, at.parse().unwrap());
        assert_eq!(left("2030-01-10T23:59:00Z"), Some(60));
        assert_eq!(left("2030-01-11T00:00:01Z"), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_that_a_working_server_gives_no_certificate_ends() {
        let (identity, responsive) = (Arc::<ClientIdentity>::default(), Arc::default());
        let clock: Arc<dyn Clock> = Arc::new(ports::SystemClock);
        let lost = until_lost(identity, clock, Arc::clone(&responsive));
        tokio::pin!(lost);
        let hour = Duration::from_secs(3600);
        let silent = tokio::time::timeout(hour, &mut lost).await;
        assert!(silent.is_err(), "a server that does not answer may yet");
        responsive.store(true, Ordering::Relaxed);
        let since = Instant::now();
        lost.await;
        assert!(since.elapsed() <= CHECK_PERIOD);
    }

    #[test]
    fn names_come_from_the_nodes_addresses() {
        let node = serde_json::from_value(json!({"status": {"addresses": [
            {"type": "InternalIP", "address": "192.0.2.2"},
            {"type": "ExternalDNS", "address": "node.example"},
            {"type": "InternalDNS", "address": "192.0.2.5"},
            {"type": "InternalDNS", "address": ""},
            {"type": "Hostname", "address": "192.0.2.9"},
        ]}}))
        .unwrap();
        let names = names_of(&node);
        assert_eq!(Vec::from_iter(names.dns), ["192.0.2.5", "node.example"]);
        let ips: Vec<String> = names.ips.iter().map(ToString::to_string).collect();
        assert_eq!(ips, ["192.0.2.2", "192.0.2.9"]);
    }
}
