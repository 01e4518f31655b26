//! Which cipher suite is chosen of those a client offers: the first in the server's order, as in Go
//! (upstream: `cipherSuitesPreferenceOrder`, `isAESGCMPreferred`).
//!
//! Deliberately absent: a preference of curves. rustls chooses the client's first that it knows.

use crate::tls::TlsError;
use arc_swap::ArcSwap;
use rustls::{CipherSuite, DistinguishedName, ServerConfig, SupportedCipherSuite};
use std::io;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::LazyConfigAcceptor;
use tokio_rustls::server::TlsStream;

/// Which cipher comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum First {
    Aes,
    ChaCha,
}

/// The order where AES comes first.
const ORDER: [CipherSuite; 9] = [
    CipherSuite::TLS13_AES_128_GCM_SHA256,
    CipherSuite::TLS13_AES_256_GCM_SHA384,
    CipherSuite::TLS13_CHACHA20_POLY1305_SHA256,
    CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
    CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
    CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
    CipherSuite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
    CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
    CipherSuite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
];

/// Every suite that Go implements, by number; unknown suites at the front of a client's list are
/// ignored.
const KNOWN_TO_GO: [u16; 25] = [
    0x0005, 0x000a, 0x002f, 0x0035, 0x003c, 0x009c, 0x009d, 0x1301, 0x1302, 0x1303, 0xc007, 0xc009,
    0xc00a, 0xc011, 0xc012, 0xc013, 0xc014, 0xc023, 0xc027, 0xc02b, 0xc02c, 0xc02f, 0xc030, 0xcca8,
    0xcca9,
];
/// Those that are AES-GCM with an ephemeral key exchange.
const AES_GCM: [u16; 6] = [0x1301, 0x1302, 0xc02b, 0xc02c, 0xc02f, 0xc030];
/// Those that are ChaCha20.
const CHACHA: [u16; 3] = [0x1303, 0xcca8, 0xcca9];

/// Sorts suites into the server's order.
pub(super) fn sort(suites: &mut [SupportedCipherSuite], first: First) {
    suites.sort_by_key(|suite| {
        let late = first == First::ChaCha && !CHACHA.contains(&u16::from(suite.suite()));
        (late, ORDER.iter().position(|known| *known == suite.suite()).unwrap_or(ORDER.len()))
    });
}

/// The preferred cipher for a client: AES if this machine has hardware support and the client's
/// order shows that it has too.
fn first_for(offered: &[CipherSuite], hardware: bool) -> First {
    let known = offered.iter().map(|suite| u16::from(*suite)).find(|id| KNOWN_TO_GO.contains(id));
    match known {
        Some(id) if hardware && AES_GCM.contains(&id) => First::Aes,
        _ => First::ChaCha,
    }
}

/// Whether the processor has instructions for AES-GCM.
fn has_aes() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        std::is_x86_feature_detected!("aes")
            && std::is_x86_feature_detected!("pclmulqdq")
            && std::is_x86_feature_detected!("sse4.1")
            && std::is_x86_feature_detected!("ssse3")
    }
    #[cfg(target_arch = "aarch64")]
    {
        std::arch::is_aarch64_feature_detected!("aes")
            && std::arch::is_aarch64_feature_detected!("pmull")
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    {
        false
    }
}

/// Builds the configuration for an order, with these authorities' names for clients.
type Recipe =
    Box<dyn Fn(First, &[DistinguishedName]) -> Result<ServerConfig, TlsError> + Send + Sync>;

/// The server's TLS configuration, once for each order.
pub(crate) struct ServerTls {
    recipe: Recipe,
    current: ArcSwap<Orders>,
    hardware: bool,
}

#[derive(Debug)]
struct Orders {
    names: Vec<DistinguishedName>,
    aes: Arc<ServerConfig>,
    chacha: Arc<ServerConfig>,
}

impl Orders {
    fn new(recipe: &Recipe, names: Vec<DistinguishedName>) -> Result<Self, TlsError> {
        let (aes, mut chacha) = (recipe(First::Aes, &names)?, recipe(First::ChaCha, &names)?);
        chacha.session_storage = Arc::clone(&aes.session_storage);
        Ok(Self { names, aes: Arc::new(aes), chacha: Arc::new(chacha) })
    }
}

impl std::fmt::Debug for ServerTls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServerTls").field("current", &self.current).finish_non_exhaustive()
    }
}

impl ServerTls {
    pub(super) fn new(recipe: Recipe, names: Vec<DistinguishedName>) -> Result<Self, TlsError> {
        let current = ArcSwap::from_pointee(Orders::new(&recipe, names)?);
        Ok(Self { recipe, current, hardware: has_aes() })
    }

    /// From now on sends the names of these authorities to clients.
    pub(crate) fn name(&self, names: Vec<DistinguishedName>) -> Result<(), TlsError> {
        let bytes = |names: &[DistinguishedName]| -> Vec<Vec<u8>> {
            names.iter().map(|name| name.as_ref().to_vec()).collect()
        };
        if bytes(&self.current.load().names) != bytes(&names) {
            self.current.store(Arc::new(Orders::new(&self.recipe, names)?));
        }
        Ok(())
    }

    /// Performs the handshake with a client.
    pub(crate) async fn accept<S>(&self, stream: S) -> io::Result<TlsStream<S>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let acceptor = LazyConfigAcceptor::new(rustls::server::Acceptor::default(), stream);
        let start = acceptor.await?;
        let current = self.current.load_full();
        let config = match first_for(start.client_hello().cipher_suites(), self.hardware) {
            First::Aes => &current.aes,
            First::ChaCha => &current.chacha,
        };
        start.into_stream(Arc::clone(config)).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tls::{AskClient, ServingCertificate, TlsSettings, self_signed_pair, server_tls};
    use rustls::client::danger::HandshakeSignatureValid;
    use std::sync::Mutex;
    use tokio::net::{TcpListener, TcpStream};

    const AES_128: CipherSuite = CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256;
    const AES_256: CipherSuite = CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384;
    const CHACHA_12: CipherSuite = CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256;

    #[test]
    fn a_client_that_puts_aes_first_gets_it_on_a_machine_made_for_it() {
        let grease = CipherSuite::from(0x0a0a);
        for (offered, first) in [
            (vec![AES_256, CHACHA_12], First::Aes),
            (vec![grease, AES_128], First::Aes),
            (vec![CHACHA_12, AES_128], First::ChaCha),
            // Known to Go, though this build lacks it.
            (vec![CipherSuite::TLS_RSA_WITH_AES_128_CBC_SHA, AES_128], First::ChaCha),
            (vec![CipherSuite::TLS_RSA_WITH_AES_128_GCM_SHA256, AES_128], First::ChaCha),
            (vec![grease], First::ChaCha),
        ] {
            assert_eq!(first_for(&offered, true), first, "{offered:?}");
            assert_eq!(first_for(&offered, false), First::ChaCha, "{offered:?}");
        }
    }

    #[test]
    fn the_smaller_aes_comes_before_the_larger() {
        let order = |first| {
            let mut suites = rustls::crypto::ring::default_provider().cipher_suites;
            sort(&mut suites, first);
            suites.iter().map(SupportedCipherSuite::suite).collect::<Vec<_>>()
        };
        assert_eq!(order(First::Aes), ORDER);
        let chacha = order(First::ChaCha);
        assert_eq!(chacha[..3], [ORDER[2], ORDER[7], ORDER[8]]);
        assert_eq!(chacha[3..], [ORDER[0], ORDER[1], ORDER[3], ORDER[4], ORDER[5], ORDER[6]]);
    }

    #[derive(Debug)]
    struct Anyone;

    impl rustls::client::danger::ServerCertVerifier for Anyone {
        fn verify_server_cert(
            &self,
            _: &rustls_pki_types::CertificateDer<'_>,
            _: &[rustls_pki_types::CertificateDer<'_>],
            _: &rustls_pki_types::ServerName<'_>,
            _: &[u8],
            _: rustls_pki_types::UnixTime,
        ) -> Result<rustls::client::danger::ServerCertVerified, rustls::Error> {
            Ok(rustls::client::danger::ServerCertVerified::assertion())
        }

        fn verify_tls12_signature(
            &self,
            _: &[u8],
            _: &rustls_pki_types::CertificateDer<'_>,
            _: &rustls::DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, rustls::Error> {
            Ok(HandshakeSignatureValid::assertion())
        }

        fn verify_tls13_signature(
            &self,
            _: &[u8],
            _: &rustls_pki_types::CertificateDer<'_>,
            _: &rustls::DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, rustls::Error> {
            Ok(HandshakeSignatureValid::assertion())
        }

        fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
            vec![rustls::SignatureScheme::ECDSA_NISTP256_SHA256]
        }
    }

    /// The suite that server and client agree on if the client offers these, in this order.
    async fn agreed(server: &ServerTls, offered: &[CipherSuite]) -> CipherSuite {
        let mut crypto = rustls::crypto::ring::default_provider();
        let all = crypto.cipher_suites.clone();
        let named = |wanted: &CipherSuite| *all.iter().find(|s| s.suite() == *wanted).unwrap();
        crypto.cipher_suites = offered.iter().map(named).collect();
        let config = rustls::ClientConfig::builder_with_provider(Arc::new(crypto))
            .with_safe_default_protocol_versions()
            .unwrap()
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Anyone))
            .with_no_client_auth();
        let served = meet(server, config).await;
        served.get_ref().1.negotiated_cipher_suite().unwrap().suite()
    }

    /// A handshake with a client.
    async fn meet(server: &ServerTls, config: rustls::ClientConfig) -> TlsStream<TcpStream> {
        try_meet(server, config).await.unwrap()
    }

    /// A handshake that may fail because client and server have nothing in common.
    async fn try_meet(
        server: &ServerTls,
        config: rustls::ClientConfig,
    ) -> Option<TlsStream<TcpStream>> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (accepted, _) = listener.accept().await.unwrap();
        let name = "node".try_into().unwrap();
        let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
        let (served, client) =
            tokio::join!(server.accept(accepted), connector.connect(name, stream));
        client.and(served).ok()
    }

    /// A client without a certificate that records the authorities it was asked for.
    #[derive(Debug, Default)]
    struct Asked(Mutex<Vec<Vec<u8>>>);

    impl rustls::client::ResolvesClientCert for Asked {
        fn resolve(
            &self,
            names: &[&[u8]],
            _: &[rustls::SignatureScheme],
        ) -> Option<Arc<rustls::sign::CertifiedKey>> {
            *self.0.lock().unwrap() = names.iter().map(|name| name.to_vec()).collect();
            None
        }

        fn has_certs(&self) -> bool {
            true
        }
    }

    #[tokio::test]
    async fn clients_are_told_whose_certificate_is_wanted_and_when_it_changes() {
        let certificate = Arc::new(ServingCertificate::default());
        let (chain, key) = self_signed_pair("node", 1_700_000_000).unwrap();
        certificate.install(chain.as_bytes(), key.as_bytes()).unwrap();
        let names = |name: &str| vec![DistinguishedName::from(name.as_bytes().to_vec())];
        for (ask, first, later, protocol) in [
            (AskClient::Never, &[][..], &[][..], Some(&b"h2"[..])),
            (AskClient::AtStart, &[b"one".to_vec()], &[b"two".to_vec()], Some(b"h2")),
            (AskClient::Followed, &[b"one".to_vec()], &[b"two".to_vec()], None),
        ] {
            let settings = TlsSettings { ask_client: ask, ..TlsSettings::default() };
            let server = server_tls(&settings, &certificate, names("one")).unwrap();
            for wanted in [first, later] {
                let asked = Arc::new(Asked::default());
                let crypto = Arc::new(rustls::crypto::ring::default_provider());
                let mut config = rustls::ClientConfig::builder_with_provider(crypto)
                    .with_safe_default_protocol_versions()
                    .unwrap()
                    .dangerous()
                    .with_custom_certificate_verifier(Arc::new(Anyone))
                    .with_client_cert_resolver(Arc::<Asked>::clone(&asked));
                config.alpn_protocols = vec![b"h2".to_vec()];
                let served = meet(&server, config).await;
                assert_eq!(served.get_ref().1.alpn_protocol(), protocol, "{ask:?}");
                assert_eq!(*asked.0.lock().unwrap(), wanted, "{ask:?}");
                server.name(names("two")).unwrap();
            }
        }
    }

    /// The group that a client offering these agrees on with a server that has these curves.
    async fn exchange(curves: &[i32], offered: &[u16]) -> Option<u16> {
        let certificate = Arc::new(ServingCertificate::default());
        let (chain, key) = self_signed_pair("node", 1_700_000_000).unwrap();
        certificate.install(chain.as_bytes(), key.as_bytes()).unwrap();
        let settings = TlsSettings { curve_preferences: curves.to_vec(), ..TlsSettings::default() };
        let server = server_tls(&settings, &certificate, Vec::new()).unwrap();
        let mut crypto = rustls::crypto::ring::default_provider();
        let all = crate::tls::groups::offered(&[]).unwrap();
        let named = |wanted: &u16| *all.iter().find(|g| u16::from(g.name()) == *wanted).unwrap();
        crypto.kx_groups = offered.iter().map(named).collect();
        let config = rustls::ClientConfig::builder_with_provider(Arc::new(crypto))
            .with_safe_default_protocol_versions()
            .unwrap()
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Anyone))
            .with_no_client_auth();
        let served = try_meet(&server, config).await?;
        served.get_ref().1.negotiated_key_exchange_group().map(|group| u16::from(group.name()))
    }

    #[tokio::test]
    async fn keys_are_exchanged_only_as_the_configuration_names() {
        let (x25519, p256, p384, p521) = (29, 23, 24, 25);
        for (curves, offered, agreed) in [
            (&[][..], &[x25519, p256][..], Some(x25519)),
            (&[], &[p521], Some(p521)),
            (&[24], &[x25519, p256, p384], Some(p384)),
            (&[24, 4588], &[x25519, p256, p384], Some(p384)),
            (&[25, 23], &[x25519, p521, p256], Some(p521)),
            (&[24], &[x25519, p256], None),
        ] {
            assert_eq!(exchange(curves, offered).await, agreed, "{curves:?} {offered:?}");
        }
    }

    #[tokio::test]
    async fn the_servers_order_counts() {
        let certificate = Arc::new(ServingCertificate::default());
        let (chain, key) = self_signed_pair("node", 1_700_000_000).unwrap();
        certificate.install(chain.as_bytes(), key.as_bytes()).unwrap();
        let mut server = server_tls(&TlsSettings::default(), &certificate, Vec::new()).unwrap();
        let in_13 = [ORDER[1], ORDER[2], ORDER[0]];
        let in_12 = [AES_256, CHACHA_12, AES_128];
        server.hardware = true;
        assert_eq!(agreed(&server, &in_13).await, ORDER[0]);
        assert_eq!(agreed(&server, &in_12).await, AES_128);
        assert_eq!(agreed(&server, &[CHACHA_12, AES_128]).await, CHACHA_12);
        server.hardware = false;
        assert_eq!(agreed(&server, &in_13).await, ORDER[2]);
        assert_eq!(agreed(&server, &in_12).await, CHACHA_12);
    }
}
