//! TLS settings towards the API server: whom we trust, who we are.

use super::ConnectionError;
use super::identity::ClientIdentity;
use super::kubeconfig::Kubeconfig;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use std::sync::Arc;

/// Where distributions keep the machine's trusted certificates.
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
        builder.with_root_certificates(roots(kubeconfig)?)
    };
    Ok(builder.with_client_cert_resolver(identity))
}

fn roots(kubeconfig: &Kubeconfig) -> Result<RootCertStore, ConnectionError> {
    let authority = |e: String| ConnectionError::Authority(e);
    let mut store = RootCertStore::empty();
    if let Some(pem) = kubeconfig.authority_pem()? {
        for certificate in CertificateDer::pem_slice_iter(&pem) {
            let certificate = certificate.map_err(|e| authority(e.to_string()))?;
            store.add(certificate).map_err(|e| authority(e.to_string()))?;
        }
        if store.is_empty() {
            return Err(authority("no certificate in the PEM data".into()));
        }
        return Ok(store);
    }
    let Some(pem) = SYSTEM_BUNDLES.iter().find_map(|path| sys::fs::read(path).ok()) else {
        return Ok(store);
    };
    store.add_parsable_certificates(CertificateDer::pem_slice_iter(&pem).filter_map(Result::ok));
    Ok(store)
}

/// `insecure-skip-tls-verify`: signatures are checked, names and issuers are not.
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
