//! TLS settings for the API server: trusted authorities and the client certificate.

use super::ConnectionError;
use super::identity::{ClientIdentity, validity};
use super::kubeconfig::Kubeconfig;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::server::ParsedCertificate;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use std::sync::Arc;

/// Where distributions store the system's trusted certificates.
const SYSTEM_BUNDLES: [&str; 6] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/pki/tls/cacert.pem",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

pub(crate) fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

pub(crate) fn client_config(
    kubeconfig: &Kubeconfig,
    identity: Arc<ClientIdentity>,
) -> Result<ClientConfig, ConnectionError> {
    let authority = |e: String| ConnectionError::Authority(e);
    let builder = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(|e| authority(e.to_string()))?;
    let builder = if kubeconfig.insecure {
        builder.dangerous().with_custom_certificate_verifier(Arc::new(TrustAnyone(provider())))
    } else {
        let roots = roots(kubeconfig)?;
        let verifier = TrustRoots::new(roots).map_err(authority)?;
        builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier))
    };
    Ok(builder.with_client_cert_resolver(identity))
}

fn roots(kubeconfig: &Kubeconfig) -> Result<Vec<CertificateDer<'static>>, ConnectionError> {
    if let Some(pem) = kubeconfig.authority_pem()? {
        let certificates = certificates(&pem);
        if certificates.is_empty() {
            let none = "no certificate in the PEM data";
            return Err(ConnectionError::Authority(none.to_owned()));
        }
        return Ok(certificates);
    }
    let pem = SYSTEM_BUNDLES.iter().find_map(|path| sys::fs::read(path).ok()).unwrap_or_default();
    Ok(certificates(&pem))
}

/// The certificates of a bundle; other PEM blocks are skipped (Go: `AppendCertsFromPEM`).
fn certificates(pem: &[u8]) -> Vec<CertificateDer<'static>> {
    let blocks = units::pem::blocks(pem).into_iter();
    let certificates = blocks.filter(|block| block.label == "CERTIFICATE" && !block.has_headers);
    certificates.map(|block| CertificateDer::from(block.bytes)).collect()
}

/// Trusts certificates issued by the roots, and a root that is the server's own certificate:
/// existing clusters use one self-signed certificate for both, which Go accepts and webpki alone
/// does not. Without roots every handshake fails.
#[derive(Debug)]
struct TrustRoots {
    issued: Option<Arc<WebPkiServerVerifier>>,
    provider: Arc<CryptoProvider>,
    roots: Vec<CertificateDer<'static>>,
}

impl TrustRoots {
    fn new(roots: Vec<CertificateDer<'static>>) -> Result<Self, String> {
        let mut store = RootCertStore::empty();
        let (added, _) = store.add_parsable_certificates(roots.iter().cloned());
        let builder = WebPkiServerVerifier::builder_with_provider(Arc::new(store), provider());
        let issued = (added > 0).then(|| builder.build()).transpose().map_err(|e| e.to_string())?;
        Ok(Self { issued, provider: provider(), roots })
    }

    /// The certificate is itself a root: only name and validity period are checked.
    fn verify_root(
        &self,
        end_entity: &CertificateDer<'_>,
        server_name: &ServerName<'_>,
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        verify_server_name(&ParsedCertificate::try_from(end_entity)?, server_name)?;
        let bad = |_| rustls::Error::InvalidCertificate(CertificateError::BadEncoding);
        let (not_before, not_after) = validity(end_entity).map_err(bad)?;
        let now = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
        if now < not_before.as_second() {
            return Err(rustls::Error::InvalidCertificate(CertificateError::NotValidYet));
        }
        if now > not_after.as_second() {
            return Err(rustls::Error::InvalidCertificate(CertificateError::Expired));
        }
        Ok(ServerCertVerified::assertion())
    }
}

impl ServerCertVerifier for TrustRoots {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        if self.roots.iter().any(|root| root.as_ref() == end_entity.as_ref()) {
            return self.verify_root(end_entity, server_name, now);
        }
        let Some(issued) = &self.issued else {
            return Err(rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer));
        };
        issued.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, cert, dss, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, cert, dss, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// `insecure-skip-tls-verify`: handshake signatures are checked, names and issuers are not.
#[derive(Debug)]
struct TrustAnyone(Arc<CryptoProvider>);

impl ServerCertVerifier for TrustAnyone {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_certificate_is_passed_over_and_nobody_to_trust_is_no_fault() {
        let block = |label: &str, body: &str| {
            format!("-----BEGIN {label}-----\n{body}\n-----END {label}-----\n")
        };
        let odd = block("CERTIFICATE", "a: b\n\neA==");
        let broken = block("CERTIFICATE", "=").replace("\n-----END", "\n-----END ");
        let bundle = ["junk", &broken, &odd, &block("KEY", "eA=="), &block("CERTIFICATE", "eA==")];
        assert_eq!(certificates(bundle.concat().as_bytes()), [CertificateDer::from(vec![b'x'])]);
        let nobody = TrustRoots::new(Vec::new()).unwrap();
        let name = ServerName::try_from("api").unwrap();
        let met = CertificateDer::from(vec![b'x']);
        let error = nobody.verify_server_cert(&met, &[], &name, &[], UnixTime::now()).unwrap_err();
        assert_eq!(error, rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer));
        assert!(!nobody.supported_verify_schemes().is_empty());
    }
}
