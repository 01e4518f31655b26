//! The client certificate that new connections present; it can be replaced while connections are
//! open.

use arc_swap::ArcSwapOption;
use jiff::Timestamp;
use rustls::client::ResolvesClientCert;
use rustls::sign::CertifiedKey;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use std::sync::Arc;

/// Why a certificate and key cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// No certificate in the PEM data.
    #[error("no certificate in the PEM data")]
    NoCertificate,
    /// The certificate cannot be parsed.
    #[error("certificate cannot be read: {0}")]
    BadCertificate(String),
    /// The key cannot be parsed.
    #[error("private key cannot be read: {0}")]
    BadKey(String),
}

/// A certificate with its key, ready for TLS.
#[derive(Debug, Clone)]
pub struct IdentityPair {
    pub(crate) certified: Arc<CertifiedKey>,
    pub(crate) not_before: Timestamp,
    pub(crate) not_after: Timestamp,
}

impl IdentityPair {
    /// Parses a PEM certificate chain and a PEM key (which may be the same text).
    pub fn from_pem(certificate: &[u8], key: &[u8]) -> Result<Self, IdentityError> {
        let chain = units::pem::certificates(certificate).into_iter();
        let chain: Vec<CertificateDer<'static>> = chain.map(Into::into).collect();
        let leaf = chain.first().ok_or(IdentityError::NoCertificate)?;
        let (not_before, not_after) = validity(leaf)?;
        let bad_key = |why: &str| IdentityError::BadKey(why.to_owned());
        let key = units::pem::private_key(key).ok_or_else(|| bad_key("there is none"))?;
        let key = PrivateKeyDer::try_from(key).map_err(bad_key)?;
        let key = rustls::crypto::ring::sign::any_supported_type(&key)
            .map_err(|e| IdentityError::BadKey(e.to_string()))?;
        let certified = CertifiedKey::new(chain, key);
        certified.keys_match().map_err(|e| IdentityError::BadKey(e.to_string()))?;
        Ok(Self { certified: Arc::new(certified), not_before, not_after })
    }

    /// When the certificate expires.
    pub fn not_after(&self) -> Timestamp {
        self.not_after
    }

    /// When the certificate becomes valid.
    pub fn not_before(&self) -> Timestamp {
        self.not_before
    }

    /// The certificate chain, leaf first.
    pub fn chain(&self) -> &[CertificateDer<'static>] {
        &self.certified.cert
    }

    /// For a TLS resolver.
    pub fn certified_key(&self) -> Arc<CertifiedKey> {
        Arc::clone(&self.certified)
    }
}

/// The validity period of a certificate.
pub(crate) fn validity(leaf: &CertificateDer<'_>) -> Result<(Timestamp, Timestamp), IdentityError> {
    let bad = |e: String| IdentityError::BadCertificate(e);
    let (_, parsed) = x509_parser::parse_x509_certificate(leaf).map_err(|e| bad(e.to_string()))?;
    let at = |seconds| Timestamp::from_second(seconds).map_err(|e| bad(e.to_string()));
    let validity = parsed.validity();
    Ok((at(validity.not_before.timestamp())?, at(validity.not_after.timestamp())?))
}

/// The current certificate, shared by all wires (or, for a serving certificate, by all listeners).
#[derive(Debug, Default)]
pub struct ClientIdentity {
    current: ArcSwapOption<IdentityPair>,
}

impl ClientIdentity {
    /// Uses another certificate from the next handshake on.
    pub fn install(&self, pair: IdentityPair) {
        self.current.store(Some(Arc::new(pair)));
    }

    /// As [`ClientIdentity::install`], from PEM text.
    pub fn install_pem(&self, certificate: &[u8], key: &[u8]) -> Result<(), IdentityError> {
        self.install(IdentityPair::from_pem(certificate, key)?);
        Ok(())
    }

    /// The certificate in use.
    pub fn current(&self) -> Option<Arc<IdentityPair>> {
        self.current.load_full()
    }

    /// Whether there is a certificate.
    pub fn is_present(&self) -> bool {
        self.current.load().is_some()
    }
}

impl ResolvesClientCert for ClientIdentity {
    fn resolve(
        &self,
        _root_hint_subjects: &[&[u8]],
        _schemes: &[rustls::SignatureScheme],
    ) -> Option<Arc<CertifiedKey>> {
        self.current.load().as_ref().map(|pair| Arc::clone(&pair.certified))
    }

    fn has_certs(&self) -> bool {
        self.is_present()
    }
}

impl rustls::server::ResolvesServerCert for ClientIdentity {
    fn resolve(&self, _hello: rustls::server::ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.current.load().as_ref().map(|pair| Arc::clone(&pair.certified))
    }
}
