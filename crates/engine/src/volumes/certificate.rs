//! The certificate of a `podCertificate` source from its request to its end (upstream:
//! `podcertificate.IssuingManager`).
//!
//! ```text
//!  Initial ──▶ Waiting ──▶ Fresh ⇄ Refreshing
//!                 │                    │
//!                 └──▶ Denied, Failed ◀┘        both are final
//! ```

use super::trust::certificates;
use api::certificates::v1beta1::PodCertificateRequest;
use jiff::{SignedDuration, Timestamp};
use units::strconv::quote;

/// A request that is not found for this long counts as deleted.
const ABANDON: SignedDuration = SignedDuration::from_mins(10);
/// A certificate is overdue this long after its refresh time.
const OVERDUE: SignedDuration = SignedDuration::from_mins(10);
/// Jitter, so that not all nodes refresh at once.
const SPREAD_SECONDS: u64 = 300;

/// A private key in PEM; it is never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct KeyPem(pub String);

impl std::fmt::Debug for KeyPem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("KeyPem(…)")
    }
}

/// A pending request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Requested {
    /// The key it is for.
    pub key: KeyPem,
    /// Its name.
    pub name: String,
    /// When it counts as deleted unless it is found.
    pub abandon_at: Timestamp,
}

impl Requested {
    /// A request that the API server has accepted.
    pub fn new(key: KeyPem, request: &PodCertificateRequest, now: Timestamp) -> Self {
        let name = request.metadata.name.clone().unwrap_or_default();
        let created = request.metadata.creation_timestamp.as_ref().map_or(now, |t| t.0);
        let abandon_at = after(created, ABANDON + spread(&name));
        Self { key, name, abandon_at }
    }
}

/// An issued certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Issued {
    /// Its key.
    pub key: KeyPem,
    /// The certificate and its chain, as PEM.
    pub chain: String,
    refresh_at: Timestamp,
    not_after: Timestamp,
    overdue_told: bool,
    expired_told: bool,
}

/// The state of the certificate of one source.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum PodCertificate {
    /// Nothing was requested yet.
    #[default]
    Initial,
    /// The first request is pending.
    Waiting(Requested),
    /// The signer refused.
    Denied {
        /// The condition's reason.
        reason: String,
        /// The condition's message.
        message: String,
    },
    /// The signer failed.
    Failed {
        /// Why, in one word.
        reason: String,
        /// Why.
        message: String,
    },
    /// Issued.
    Fresh(Issued),
    /// Issued, and a request for the next one is pending.
    Refreshing(Issued, Requested),
}

/// The next step for a certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CertificateStep {
    /// Nothing now.
    Rest,
    /// Make a key and request a certificate for it.
    Request,
    /// Read the request of this name.
    Look(String),
}

/// An event for the pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateEvent {
    /// Its reason.
    pub reason: &'static str,
    /// Its message.
    pub message: String,
}

impl PodCertificate {
    /// Key and chain for the pod, or why there are none, in upstream's words.
    pub fn bundle(&self) -> Result<(&KeyPem, &str), String> {
        let refused = |how: &str, reason: &str, message: &str| {
            format!(
                "PodCertificateRequest was permanently {how}: reason={} message={}",
                quote(reason),
                quote(message)
            )
        };
        match self {
            Self::Initial | Self::Waiting(_) => Err("credential bundle is not issued yet".into()),
            Self::Denied { reason, message } => Err(refused("denied", reason, message)),
            Self::Failed { reason, message } => Err(refused("failed", reason, message)),
            Self::Fresh(issued) | Self::Refreshing(issued, _) => Ok((&issued.key, &issued.chain)),
        }
    }

    /// Its state in the metric.
    pub fn state(&self, now: Timestamp) -> &'static str {
        match self {
            Self::Initial | Self::Waiting(_) => "not_yet_issued",
            Self::Denied { .. } => "denied",
            Self::Failed { .. } => "failed",
            Self::Fresh(issued) | Self::Refreshing(issued, _) => {
                if now > issued.not_after {
                    "expired"
                } else if now > after(issued.refresh_at, OVERDUE) {
                    "overdue_for_refresh"
                } else {
                    "fresh"
                }
            }
        }
    }

    /// The next step.
    pub fn step(&self, now: Timestamp) -> CertificateStep {
        match self {
            Self::Initial => CertificateStep::Request,
            Self::Waiting(requested) | Self::Refreshing(_, requested) => {
                CertificateStep::Look(requested.name.clone())
            }
            Self::Denied { .. } | Self::Failed { .. } => CertificateStep::Rest,
            Self::Fresh(issued) if now < issued.refresh_at => CertificateStep::Rest,
            Self::Fresh(_) => CertificateStep::Request,
        }
    }

    /// A request was made.
    pub fn requested(&mut self, requested: Requested) {
        *self = match std::mem::take(self) {
            Self::Fresh(issued) | Self::Refreshing(issued, _) => {
                Self::Refreshing(issued, requested)
            }
            _ => Self::Waiting(requested),
        };
    }

    /// The request was not found: after a while it counts as deleted, and another is made.
    pub fn missing(&mut self, now: Timestamp) {
        *self = match std::mem::take(self) {
            Self::Waiting(requested) if now > requested.abandon_at => Self::Initial,
            Self::Refreshing(issued, requested) if now > requested.abandon_at => {
                Self::Fresh(issued)
            }
            other => other,
        };
    }

    /// The request was read; returns an event if it was refused.
    pub fn seen(&mut self, request: &PodCertificateRequest) -> Option<CertificateEvent> {
        let status = request.status.as_ref()?;
        for condition in status.conditions.iter().flatten() {
            let (reason, message) = (condition.reason.clone(), condition.message.clone());
            match condition.type_.as_str() {
                "Denied" => {
                    let event = refusal("Denied", "was denied", request, &reason, &message);
                    *self = Self::Denied { reason, message };
                    return Some(event);
                }
                "Failed" => {
                    let event = refusal("Failed", "failed", request, &reason, &message);
                    *self = Self::Failed { reason, message };
                    return Some(event);
                }
                "Issued" => {
                    let (Self::Waiting(requested) | Self::Refreshing(_, requested)) =
                        std::mem::take(self)
                    else {
                        return None;
                    };
                    let chain = status.certificate_chain.as_deref().unwrap_or_default();
                    let time = |t: Option<&api::machinery::apis::meta::v1::Time>| {
                        t.map_or(Timestamp::UNIX_EPOCH, |t| t.0)
                    };
                    let refresh = time(status.begin_refresh_at.as_ref());
                    *self = Self::Fresh(Issued {
                        refresh_at: after(refresh, spread(&requested.name)),
                        not_after: time(status.not_after.as_ref()),
                        key: requested.key,
                        chain: certificates(chain).concat(),
                        overdue_told: false,
                        expired_told: false,
                    });
                    return None;
                }
                _ => {}
            }
        }
        None
    }

    /// Events about a certificate that was not renewed in time, each returned once.
    pub fn overdue(&mut self, now: Timestamp) -> Vec<CertificateEvent> {
        let (Self::Fresh(issued) | Self::Refreshing(issued, _)) = self else { return Vec::new() };
        let mut events = Vec::new();
        if now > after(issued.refresh_at, OVERDUE) && !issued.overdue_told {
            issued.overdue_told = true;
            let message = "PodCertificate refresh overdue".to_owned();
            events.push(CertificateEvent { reason: "CertificateOverdueForRefresh", message });
        }
        if now > issued.not_after && !issued.expired_told {
            issued.expired_told = true;
            let message = "PodCertificate expired".to_owned();
            events.push(CertificateEvent { reason: "CertificateExpired", message });
        }
        events
    }
}

/// Upstream passes the reason as the format string, and the text as an extra argument.
fn refusal(
    kind: &'static str,
    how: &str,
    request: &PodCertificateRequest,
    reason: &str,
    message: &str,
) -> CertificateEvent {
    let namespace = request.metadata.namespace.as_deref().unwrap_or_default();
    let name = request.metadata.name.as_deref().unwrap_or_default();
    let message = format!(
        "{reason}%!(EXTRA string=PodCertificateRequest {namespace}/{name} {how}, reason={}, message={})",
        quote(reason),
        quote(message)
    );
    CertificateEvent { reason: kind, message }
}

fn after(time: Timestamp, wait: SignedDuration) -> Timestamp {
    time.checked_add(wait).unwrap_or(Timestamp::MAX)
}

/// A jitter of up to five minutes, derived from the generated name of the request.
fn spread(name: &str) -> SignedDuration {
    let seconds = units::hash::fnv1a_64(name.as_bytes()) % SPREAD_SECONDS;
    SignedDuration::from_secs(i64::try_from(seconds).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + second).unwrap()
    }

    fn request(status: serde_json::Value) -> PodCertificateRequest {
        serde_json::from_value(json!({
            "metadata": {"name": "req-x", "namespace": "ns", "creationTimestamp": at(0).to_string()},
            "spec": {"nodeName": "n", "nodeUID": "", "podName": "p", "podUID": "",
                "serviceAccountName": "", "serviceAccountUID": "", "signerName": "s",
                "stubPKCS10Request": ""},
            "status": status
        }))
        .unwrap()
    }

    fn condition(kind: &str) -> serde_json::Value {
        json!({"conditions": [{"type": kind, "status": "True", "reason": "Why",
            "message": "so \"it\" is", "lastTransitionTime": at(1).to_string()}]})
    }

    fn issued() -> serde_json::Value {
        let mut status = condition("Issued");
        status["certificateChain"] =
            json!("x\n-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\ny");
        status["beginRefreshAt"] = json!(at(1000).to_string());
        status["notAfter"] = json!(at(5000).to_string());
        status
    }

    fn waiting() -> PodCertificate {
        let mut certificate = PodCertificate::default();
        assert_eq!(certificate.step(at(0)), CertificateStep::Request);
        let key = KeyPem("key".into());
        certificate.requested(Requested::new(key, &request(json!({})), at(0)));
        assert_eq!(certificate.step(at(0)), CertificateStep::Look("req-x".into()));
        certificate
    }

    #[test]
    fn a_certificate_is_issued_refreshed_and_told_when_it_is_late() {
        let mut certificate = waiting();
        assert_eq!(certificate.bundle().unwrap_err(), "credential bundle is not issued yet");
        assert_eq!(certificate.seen(&request(json!({}))), None);
        assert_eq!(certificate.state(at(1)), "not_yet_issued");
        assert_eq!(certificate.seen(&request(issued())), None);
        let chain = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        assert_eq!(certificate.bundle(), Ok((&KeyPem("key".into()), chain)));
        assert_eq!(certificate.step(at(999)), CertificateStep::Rest);
        assert_eq!(certificate.state(at(999)), "fresh");
        assert_eq!(certificate.step(at(1300)), CertificateStep::Request);
        let next = Requested::new(KeyPem("next".into()), &request(json!({})), at(1300));
        certificate.requested(next);
        assert_eq!(certificate.bundle().unwrap().0, &KeyPem("key".into()), "the old one serves on");
        assert_eq!(certificate.state(at(2000)), "overdue_for_refresh");
        assert_eq!(certificate.overdue(at(2000)).len(), 1);
        assert_eq!(certificate.overdue(at(5001))[0].reason, "CertificateExpired");
        assert_eq!(certificate.overdue(at(5001)), []);
        certificate.seen(&request(issued()));
        assert_eq!(certificate.bundle().unwrap().0, &KeyPem("next".into()));
    }

    #[test]
    fn refusals_are_for_good_and_told_as_upstream_garbles_them() {
        for (kind, how, past) in
            [("Denied", "was denied", "denied"), ("Failed", "failed", "failed")]
        {
            let mut certificate = waiting();
            let event = certificate.seen(&request(condition(kind))).unwrap();
            assert_eq!(event.reason, kind);
            assert_eq!(
                event.message,
                format!(
                    "Why%!(EXTRA string=PodCertificateRequest ns/req-x {how}, reason=\"Why\", message=\"so \\\"it\\\" is\")"
                )
            );
            assert_eq!(
                certificate.bundle().unwrap_err(),
                format!(
                    "PodCertificateRequest was permanently {past}: reason=\"Why\" message=\"so \\\"it\\\" is\""
                )
            );
            assert_eq!(certificate.step(at(9999)), CertificateStep::Rest);
        }
    }

    #[test]
    fn a_request_that_vanished_is_made_anew_after_a_while() {
        let mut certificate = waiting();
        certificate.missing(at(599));
        assert!(matches!(certificate, PodCertificate::Waiting(_)));
        certificate.missing(at(901));
        assert_eq!(certificate, PodCertificate::Initial);
    }
}
