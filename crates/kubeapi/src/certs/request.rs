//! Sends one certificate signing request and waits for the certificate.

use crate::connection::Lane;
use crate::error::{ApiError, Refusal};
use crate::watch::{Change, Next, Selection, follow};
use api::ByteString;
use api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestSpec};
use api::machinery::apis::meta::v1::ObjectMeta;
use kube::Api;
use kube::api::PostParams;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Signs client certificates of nodes.
pub(super) const CLIENT_SIGNER: &str = "kubernetes.io/kube-apiserver-client-kubelet";
/// Signs serving certificates of nodes.
pub(super) const SERVING_SIGNER: &str = "kubernetes.io/kubelet-serving";
pub(super) const CLIENT_USAGES: [&str; 2] = ["digital signature", "client auth"];
pub(super) const SERVING_USAGES: [&str; 2] = ["digital signature", "server auth"];

/// Why there is no certificate.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// The key or the request could not be created.
    #[error("certificate request could not be made: {0}")]
    Make(String),
    /// The API server did not accept the request.
    #[error("cannot create certificate signing request")]
    Send(#[source] ApiError),
    /// It was denied or failed.
    #[error("certificate signing request is {condition}: reason {reason:?}, message {message:?}")]
    Refused {
        /// `Denied` or `Failed`.
        condition: String,
        /// The reason given.
        reason: String,
        /// The message given.
        message: String,
    },
    /// It was not signed in time.
    #[error("certificate signing request {0:?} was not signed in time")]
    TimedOut(String),
    /// The certificate could not be stored.
    #[error("certificate could not be stored")]
    Store(#[from] super::StoreError),
    /// There are no credentials for the request.
    #[error("no usable credentials")]
    NoCredentials(#[from] crate::connection::ConnectionError),
}

/// A certificate signing request.
#[derive(Debug, Clone)]
pub(super) struct Request {
    /// A fixed name, or a generated one.
    pub(super) name: Option<String>,
    pub(super) signer: &'static str,
    pub(super) usages: &'static [&'static str],
    /// The request as PEM.
    pub(super) pem: String,
    /// How long to wait for the signature.
    pub(super) patience: Duration,
}

/// Sends the request and waits for the signed chain (PEM).
pub(super) async fn obtain(lane: &Lane, request: Request) -> Result<Vec<u8>, RequestError> {
    let api: Api<CertificateSigningRequest> = Api::all(lane.client());
    let name = submit(lane, &api, &request).await?;
    tracing::info!(csr = name, "Waiting for certificate signing request to be issued");
    let (cancel, mut outcome) = (CancellationToken::new(), None);
    let selection = Selection { fields: Some(format!("metadata.name={name}")), labels: None };
    let following = follow(lane.source(api, selection), cancel.child_token(), |change| {
        let found = match change {
            Change::Listed(all) => all.iter().find_map(verdict),
            Change::Applied(csr) => verdict(&csr),
            Change::Deleted(_) => Some(Err(RequestError::Refused {
                condition: "deleted".into(),
                reason: String::new(),
                message: String::new(),
            })),
        };
        outcome = found;
        if outcome.is_some() { Next::Stop } else { Next::Continue }
    });
    let waited = tokio::time::timeout(request.patience, following).await;
    match (waited, outcome) {
        (Ok(()), Some(outcome)) => outcome,
        _ => Err(RequestError::TimedOut(name)),
    }
}

async fn submit(
    lane: &Lane,
    api: &Api<CertificateSigningRequest>,
    request: &Request,
) -> Result<String, RequestError> {
    let object = CertificateSigningRequest {
        metadata: ObjectMeta {
            name: request.name.clone(),
            generate_name: request.name.is_none().then(|| "csr-".to_owned()),
            ..ObjectMeta::default()
        },
        spec: CertificateSigningRequestSpec {
            request: ByteString(request.pem.clone().into_bytes()),
            signer_name: request.signer.into(),
            usages: Some(request.usages.iter().map(|u| (*u).to_owned()).collect()),
            ..CertificateSigningRequestSpec::default()
        },
        status: None,
    };
    match lane.ask(api.create(&PostParams::default(), &object)).await {
        Ok(stored) => Ok(stored.metadata.name.unwrap_or_default()),
        // An earlier request with the same key exists: it is used.
        Err(err) if err.refusal() == Some(Refusal::AlreadyExists) => match &request.name {
            Some(name) => Ok(name.clone()),
            None => Err(RequestError::Send(err)),
        },
        Err(err) => Err(RequestError::Send(err)),
    }
}

/// The certificate, or the error if it was denied or failed; `None` while undecided.
fn verdict(csr: &CertificateSigningRequest) -> Option<Result<Vec<u8>, RequestError>> {
    let status = csr.status.as_ref()?;
    for condition in status.conditions.iter().flatten() {
        if matches!(condition.type_.as_str(), "Denied" | "Failed") {
            return Some(Err(RequestError::Refused {
                condition: condition.type_.clone(),
                reason: condition.reason.clone().unwrap_or_default(),
                message: condition.message.clone().unwrap_or_default(),
            }));
        }
    }
    let certificate = status.certificate.as_ref().filter(|c| !c.0.is_empty())?;
    Some(Ok(certificate.0.clone()))
}
