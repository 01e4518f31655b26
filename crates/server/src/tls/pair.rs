//! A certificate with its key: generated for this host, or checked with Go's error texts.

use super::{ServingCertificate, TlsError, provider};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};
use rustls::SignatureAlgorithm;
use rustls_pki_types::PrivateKeyDer;
use std::net::IpAddr;

/// The error in a PEM pair, in Go's words; `None` if it can be used.
pub fn pair_fault(certificate: &[u8], key: &[u8]) -> Option<String> {
    if let Some(fault) = units::x509::pair_outline_fault(certificate, key) {
        return Some(fault);
    }
    let leaf = units::pem::certificates(certificate).into_iter().next();
    let algorithm = leaf.and_then(|leaf| {
        let (_, parsed) = x509_parser::parse_x509_certificate(&leaf).ok()?;
        Some(parsed.public_key().algorithm.algorithm.to_id_string())
    });
    let Some(algorithm) = algorithm else { return Some("x509: malformed certificate".to_owned()) };
    let parsed = units::pem::private_key(key).and_then(|key| PrivateKeyDer::try_from(key).ok());
    let parsed = parsed.and_then(|key| provider().key_provider.load_private_key(key).ok());
    let Some(parsed) = parsed else { return Some("tls: failed to parse private key".to_owned()) };
    let wanted = match parsed.algorithm() {
        SignatureAlgorithm::RSA => "1.2.840.113549.1.1.1",
        SignatureAlgorithm::ECDSA => "1.2.840.10045.2.1",
        _ => "1.3.101.112",
    };
    if algorithm != wanted {
        return Some("tls: private key type does not match public key type".to_owned());
    }
    let pair = ServingCertificate::default();
    pair.install(certificate, key)
        .err()
        .map(|_mismatch| "tls: private key does not match public key".to_owned())
}

/// A new certificate for this host, valid for a year from now, and its key; PEM. It is followed by
/// the CA certificate that signed it, whose key is discarded (client-go:
/// `GenerateSelfSignedCertKey`).
pub fn self_signed_pair(hostname: &str, unix_now: i64) -> Result<(String, String), TlsError> {
    make(hostname, unix_now).map_err(|e| TlsError::SelfSigned(e.to_string()))
}

fn make(hostname: &str, unix_now: i64) -> Result<(String, String), rcgen::Error> {
    let moment = |seconds: i64| {
        time::OffsetDateTime::from_unix_timestamp(seconds)
            .unwrap_or(time::OffsetDateTime::UNIX_EPOCH)
    };
    let named = |name: String| {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.not_before = moment(unix_now - 3600);
        params.not_after = moment(unix_now - 3600 + 365 * 24 * 3600);
        params.key_usages =
            vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment];
        params
    };
    let mut authority = named(format!("{hostname}-ca@{unix_now}"));
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    authority.key_usages.push(KeyUsagePurpose::KeyCertSign);
    let authority_key = KeyPair::generate()?;
    let authority_pem = authority.self_signed(&authority_key)?.pem();
    let mut params = named(format!("{hostname}@{unix_now}"));
    params.subject_alt_names = vec![match hostname.parse::<IpAddr>() {
        Ok(ip) => SanType::IpAddress(ip),
        Err(_) => SanType::DnsName(hostname.try_into()?),
    }];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.is_ca = IsCa::ExplicitNoCa;
    params.use_authority_key_identifier_extension = true;
    let key = KeyPair::generate()?;
    let signed = params.signed_by(&key, &Issuer::from_params(&authority, &authority_key))?;
    Ok((format!("{}{authority_pem}", signed.pem()), key.serialize_pem()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustls_pki_types::CertificateDer;
    use rustls_pki_types::pem::PemObject;

    // As `pki/kubelet.crt` of the Go kubelet, except for the type of key.
    #[test]
    fn behind_the_certificate_stands_its_authority() {
        let (chain, key) = self_signed_pair("node1", 1_700_000_000).unwrap();
        let chain: Vec<CertificateDer<'_>> =
            CertificateDer::pem_slice_iter(chain.as_bytes()).map(Result::unwrap).collect();
        let [leaf, authority] = &chain[..] else { panic!("{} certificates", chain.len()) };
        let (_, leaf) = x509_parser::parse_x509_certificate(leaf).unwrap();
        let (_, authority) = x509_parser::parse_x509_certificate(authority).unwrap();
        assert_eq!(leaf.subject().to_string(), "CN=node1@1700000000");
        assert_eq!(leaf.issuer().to_string(), "CN=node1-ca@1700000000");
        assert_eq!(authority.subject(), leaf.issuer());
        assert_eq!(authority.issuer(), authority.subject());
        assert!(authority.is_ca() && !leaf.is_ca());
        assert_eq!(leaf.validity(), authority.validity());
        assert!(leaf.basic_constraints().unwrap().is_some());
        assert!(authority.key_usage().unwrap().unwrap().value.key_cert_sign());
        assert!(PrivateKeyDer::from_pem_slice(key.as_bytes()).is_ok());
    }

    // The Go kubelet's texts for the same errors in a kubeconfig.
    #[test]
    fn what_is_no_pair_is_named() {
        let made = || self_signed_pair("a", 1_700_000_000).unwrap();
        let ((one, key), (_, other)) = (made(), made());
        let fault = |c: &str, k: &str| pair_fault(c.as_bytes(), k.as_bytes());
        assert_eq!(fault(&one, &key), None);
        // Go reads the block after such header lines.
        let headed = one.replacen("-----\n", "-----\nProc-Type: 4,ENCRYPTED\n\n", 1);
        assert_eq!(fault(&headed.replace("\r\n", "\n"), &key), None);
        let differs = "tls: private key does not match public key";
        assert_eq!(fault(&one, &other).as_deref(), Some(differs));
        let edward = KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap().serialize_pem();
        let kind = "tls: private key type does not match public key type";
        assert_eq!(fault(&one, &edward).as_deref(), Some(kind));
        let junk = "-----BEGIN PRIVATE KEY-----\neA==\n-----END PRIVATE KEY-----\n";
        assert_eq!(fault(&one, junk).as_deref(), Some("tls: failed to parse private key"));
    }
}
