//! The serving certificate and the TLS settings.
//!
//! Promises: the certificate is looked up at each handshake, so that a new file or a rotated
//! certificate is used at once; a client certificate is requested in the handshake but verified by
//! `auth`, as upstream does, so that an untrusted one does not fail the handshake; only a malformed
//! one does.

mod groups;
mod order;
mod pair;

pub(crate) use order::ServerTls;
pub use pair::{pair_fault, self_signed_pair};

use crate::auth::{is_modern, proves_its_key};
use arc_swap::ArcSwapOption;
use rustls::crypto::CryptoProvider;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{DigitallySignedStruct, DistinguishedName, ServerConfig, SignatureScheme};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

/// Why TLS cannot be served. Display is upstream's text where it has one.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// An unknown cipher suite.
    #[error("Cipher suite {0} not supported or doesn't exist")]
    Cipher(String),
    /// An unknown TLS version.
    #[error("unknown tls version {0:?}")]
    Version(String),
    /// Known, but not offered by this build.
    #[error("{0} is not offered: this build has TLS 1.2 (AEAD suites with ECDHE) and TLS 1.3 only")]
    NotOffered(String),
    /// Only key exchanges that Go has and this build lacks.
    #[error(
        "none of the curve preferences {0:?} is offered: this build has 23, 24, 25 and 29 only"
    )]
    NoExchange(Vec<i32>),
    /// A certificate or key that cannot be used.
    #[error("{}: {reason}", path.display())]
    Unusable {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// One file of the pair is missing.
    #[error("error reading {}, certificate and key must be supplied as a pair", .0.display())]
    HalfPair(PathBuf),
    /// An error of rustls.
    #[error(transparent)]
    Rustls(#[from] rustls::Error),
    /// A failed file operation.
    #[error(transparent)]
    File(#[from] sys::fs::FsError),
    /// A certificate could not be created.
    #[error("make a self-signed certificate: {0}")]
    SelfSigned(String),
}

/// The certificate in use; empty until one is installed.
#[derive(Debug, Default)]
pub struct ServingCertificate {
    current: ArcSwapOption<CertifiedKey>,
    kept_by: OnceLock<Arc<dyn ResolvesServerCert>>,
}

impl ServingCertificate {
    /// Puts a PEM pair into use.
    pub fn install(&self, certificate: &[u8], key: &[u8]) -> Result<(), String> {
        let chain = units::pem::certificates(certificate);
        let chain: Vec<CertificateDer<'static>> = chain.into_iter().map(Into::into).collect();
        if chain.is_empty() {
            return Err("no certificate in it".to_owned());
        }
        let key = units::pem::private_key(key).ok_or("no private key in it")?;
        let key = PrivateKeyDer::try_from(key)?;
        let provider = provider();
        let key = provider.key_provider.load_private_key(key).map_err(|e| e.to_string())?;
        let pair = CertifiedKey::new(chain, key);
        // The two files are never written at the same time: a certificate with another key is
        // rejected.
        pair.keys_match().map_err(|e| e.to_string())?;
        self.current.store(Some(Arc::new(pair)));
        Ok(())
    }

    /// The leaf certificate, as sent to clients.
    #[cfg(test)]
    pub(crate) fn leaf(&self) -> Option<CertificateDer<'static>> {
        self.current.load().as_ref().and_then(|pair| pair.cert.first().cloned())
    }

    /// From now on looks up the certificate in `keeper` at each handshake.
    pub fn follow(&self, keeper: Arc<dyn ResolvesServerCert>) {
        // Called once, at start.
        let _first = self.kept_by.set(keeper);
    }

    /// Reads the pair of files and installs it.
    pub fn read(&self, certificate: &Path, key: &Path) -> Result<(), TlsError> {
        let unusable =
            |path: &Path, reason: String| TlsError::Unusable { path: path.to_owned(), reason };
        let certificate_pem = sys::fs::read(certificate)?;
        let key_pem = sys::fs::read(key)?;
        self.install(&certificate_pem, &key_pem).map_err(|reason| unusable(certificate, reason))
    }
}

impl ResolvesServerCert for ServingCertificate {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        match self.kept_by.get() {
            Some(keeper) => keeper.resolve(hello),
            None => self.current.load_full(),
        }
    }
}

/// Settings of the handshake.
#[derive(Debug, Clone, Default)]
pub struct TlsSettings {
    /// `tlsMinVersion`; empty is 1.2.
    pub min_version: String,
    /// `tlsCipherSuites`; empty is all.
    pub cipher_suites: Vec<String>,
    /// `tlsCurvePreferences`, by Go's numbers; empty is all.
    pub curve_preferences: Vec<i32>,
    /// Whether clients are asked for a certificate.
    pub ask_client: AskClient,
}

/// Whether clients are asked for a certificate, and for which authorities.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum AskClient {
    /// There is no client CA.
    #[default]
    Never,
    /// Of one of the authorities that were configured at start.
    AtStart,
    /// Of one of the current authorities (gate ReloadKubeletClientCAFile). Upstream's per-client
    /// settings lack the ALPN protocols, so there is no HTTP/2 then.
    Followed,
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// Go's names of the supported suites, with rustls' names.
const SUITES: [(&str, rustls::CipherSuite); 11] = {
    use rustls::CipherSuite as S;
    [
        ("TLS_AES_128_GCM_SHA256", S::TLS13_AES_128_GCM_SHA256),
        ("TLS_AES_256_GCM_SHA384", S::TLS13_AES_256_GCM_SHA384),
        ("TLS_CHACHA20_POLY1305_SHA256", S::TLS13_CHACHA20_POLY1305_SHA256),
        ("TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256", S::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256),
        ("TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384", S::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384),
        (
            "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
            S::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
        ),
        (
            "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305",
            S::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
        ),
        ("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", S::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256),
        ("TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384", S::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384),
        (
            "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
            S::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
        ),
        ("TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305", S::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256),
    ]
};

/// Suites that Go knows and this build lacks (RSA key exchange, CBC, RC4, 3DES).
fn known_to_go(name: &str) -> bool {
    name.starts_with("TLS_RSA_WITH_")
        || name.contains("_CBC_")
        || name.contains("_RC4_")
        || name.contains("_3DES_")
}

/// The server's TLS configuration; the names of these authorities are sent to clients.
pub(crate) fn server_tls(
    settings: &TlsSettings,
    certificate: &Arc<ServingCertificate>,
    authorities: Vec<DistinguishedName>,
) -> Result<ServerTls, TlsError> {
    let versions: Vec<&'static rustls::SupportedProtocolVersion> =
        match settings.min_version.as_str() {
            "" | "VersionTLS12" | "VersionTLS11" | "VersionTLS10" => {
                vec![&rustls::version::TLS12, &rustls::version::TLS13]
            }
            "VersionTLS13" => vec![&rustls::version::TLS13],
            other => return Err(TlsError::Version(other.to_owned())),
        };
    let mut crypto = rustls::crypto::ring::default_provider();
    crypto.kx_groups = groups::offered(&settings.curve_preferences)?;
    if !settings.cipher_suites.is_empty() {
        let mut wanted = Vec::new();
        for name in &settings.cipher_suites {
            match SUITES.iter().find(|(known, _)| known == name) {
                Some((_, suite)) => wanted.push(*suite),
                None if known_to_go(name) => {
                    tracing::warn!(suite = name, "cipher suite is not offered by this build");
                }
                None => return Err(TlsError::Cipher(name.clone())),
            }
        }
        let is_13 = |suite: &rustls::SupportedCipherSuite| suite.tls13().is_some();
        crypto.cipher_suites.retain(|suite| is_13(suite) || wanted.contains(&suite.suite()));
        if versions.len() == 2 && crypto.cipher_suites.iter().all(is_13) {
            return Err(TlsError::NotOffered(settings.cipher_suites.join(",")));
        }
    }
    let (ask, certificate) = (settings.ask_client, Arc::clone(certificate));
    let config = move |first, names: &[DistinguishedName]| -> Result<ServerConfig, TlsError> {
        let mut crypto = crypto.clone();
        order::sort(&mut crypto.cipher_suites, first);
        let builder = ServerConfig::builder_with_provider(Arc::new(crypto))
            .with_protocol_versions(&versions)?;
        let builder = if ask == AskClient::Never {
            builder.with_no_client_auth()
        } else {
            let names = names.to_vec();
            builder.with_client_cert_verifier(Arc::new(AskOnly { provider: provider(), names }))
        };
        let keeper: Arc<ServingCertificate> = Arc::clone(&certificate);
        let mut config = builder.with_cert_resolver(keeper);
        config.ignore_client_order = true;
        if ask != AskClient::Followed {
            config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        }
        Ok(config)
    };
    ServerTls::new(Box::new(config), authorities)
}

/// Accepts any client certificate whose key is proven; `auth` decides about trust.
#[derive(Debug)]
struct AskOnly {
    provider: Arc<CryptoProvider>,
    names: Vec<DistinguishedName>,
}

impl ClientCertVerifier for AskOnly {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &self.names
    }

    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn verify_client_cert(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        // Go parses all of them first.
        let mut all = std::iter::once(leaf).chain(intermediates);
        if all.any(|certificate| units::x509::outline_fault(certificate).is_some()) {
            return Err(rustls::CertificateError::BadEncoding.into());
        }
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, certificate, signature, algorithms)
            .or_else(|_| proves_its_key(message, certificate, signature, algorithms))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signature, algorithms).or_else(
            |error| match is_modern(signature.scheme) {
                true => proves_its_key(message, certificate, signature, algorithms),
                false => Err(error),
            },
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// Uses `kubelet.crt` and `kubelet.key` in `folder`; creates a self-signed pair if neither exists.
pub fn self_signed(
    certificate: &ServingCertificate,
    folder: &Path,
    hostname: &str,
    unix_now: i64,
) -> Result<(PathBuf, PathBuf), TlsError> {
    let (crt, key) = (folder.join("kubelet.crt"), folder.join("kubelet.key"));
    match (sys::fs::read(&crt).is_ok(), sys::fs::read(&key).is_ok()) {
        (true, true) => {}
        (false, true) => return Err(TlsError::HalfPair(crt)),
        (true, false) => return Err(TlsError::HalfPair(key)),
        (false, false) => {
            let (certificate_pem, key_pem) = self_signed_pair(hostname, unix_now)?;
            sys::fs::create_dir_all(folder, 0o755)?;
            sys::fs::write_atomic(&crt, certificate_pem, 0o644)?;
            sys::fs::write_atomic(&key, key_pem, 0o600)?;
        }
    }
    certificate.read(&crt, &key)?;
    Ok((crt, key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_is_made_once_and_used_again() {
        let folder = std::env::temp_dir().join(format!("rubelet-tls-{}", std::process::id()));
        let certificate = ServingCertificate::default();
        let (crt, key) = self_signed(&certificate, &folder, "node1", 1_700_000_000).unwrap();
        let first = sys::fs::read(&crt).unwrap();
        self_signed(&certificate, &folder, "node1", 1_800_000_000).unwrap();
        assert_eq!(sys::fs::read(&crt).unwrap(), first);
        assert!(certificate.current.load().is_some());
        sys::fs::remove_file(&key).unwrap();
        let error = self_signed(&certificate, &folder, "node1", 0).unwrap_err().to_string();
        assert!(error.contains("certificate and key must be supplied as a pair"), "{error}");
        sys::fs::remove_file(&crt).unwrap();
        sys::fs::remove_dir(&folder).unwrap();
    }

    #[test]
    fn settings_that_make_no_sense_are_named() {
        let config = |min: &str, suites: &[&str]| {
            let settings = TlsSettings {
                min_version: min.to_owned(),
                cipher_suites: suites.iter().map(|s| (*s).to_owned()).collect(),
                ..TlsSettings::default()
            };
            server_tls(&settings, &Arc::default(), Vec::new())
                .map(|_| ())
                .map_err(|e| e.to_string())
        };
        assert_eq!(config("", &[]), Ok(()));
        assert_eq!(config("VersionTLS13", &["TLS_RSA_WITH_AES_128_CBC_SHA"]), Ok(()));
        assert_eq!(config("VersionTLS99", &[]), Err("unknown tls version \"VersionTLS99\"".into()));
        assert_eq!(
            config("", &["TLS_NONE"]),
            Err("Cipher suite TLS_NONE not supported or doesn't exist".into())
        );
        assert!(config("", &["TLS_RSA_WITH_AES_128_CBC_SHA"]).unwrap_err().contains("not offered"));
    }
}
