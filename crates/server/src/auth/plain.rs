//! Certificates that Go's verifier takes and `webpki` does not look at: of version 1, as plain
//! `openssl x509 -req` makes them, and such that may sign others themselves.
//!
//! Only one that an authority of the bundle has signed itself is judged here; everything else stays
//! refused. Go: `x509.Certificate.Verify` with client authentication as the wanted use.

use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::WebPkiSupportedAlgorithms;
use rustls::{CertificateError, DigitallySignedStruct, Error, SignatureScheme};
use rustls_pki_types::CertificateDer;
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::ParsedExtension;

/// The parts of a signed certificate that a signature is about.
struct Signed<'a> {
    body: &'a [u8],
    algorithm: &'a [u8],
    signature: &'a [u8],
}

/// The first DER value: its tag, its content, and what is behind it.
fn value(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (tag, rest) = bytes.split_first()?;
    let (first, rest) = rest.split_first()?;
    let (length, rest) = match first {
        0..=0x7f => (usize::from(*first), rest),
        0x81..=0x84 => {
            let (size, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
            (size.iter().fold(0, |all, byte| all << 8 | usize::from(*byte)), rest)
        }
        _ => return None,
    };
    let (content, rest) = rest.split_at_checked(length)?;
    Some((*tag, content, rest))
}

/// The bits of a bit string that is whole bytes.
fn bits(bytes: &[u8]) -> Option<&[u8]> {
    match value(bytes)? {
        (0x03, [0, bits @ ..], _) => Some(bits),
        _ => None,
    }
}

fn signed(der: &[u8]) -> Option<Signed<'_>> {
    let (0x30, whole, _) = value(der)? else { return None };
    let (0x30, _, rest) = value(whole)? else { return None };
    let body = whole.get(..whole.len() - rest.len())?;
    let (0x30, algorithm, rest) = value(rest)? else { return None };
    Some(Signed { body, algorithm, signature: bits(rest)? })
}

/// A public key: what kind, and which.
fn key(spki: &[u8]) -> Option<(&[u8], &[u8])> {
    let (0x30, whole, _) = value(spki)? else { return None };
    let (0x30, algorithm, rest) = value(whole)? else { return None };
    Some((algorithm, bits(rest)?))
}

/// Whether `authorities` vouch for this certificate as a client's.
pub(super) fn is_good(
    leaf: &CertificateDer<'_>,
    authorities: &[CertificateDer<'static>],
    algorithms: &WebPkiSupportedAlgorithms,
    unix_now: i64,
) -> bool {
    let Ok((_, certificate)) = x509_parser::parse_x509_certificate(leaf) else { return false };
    let Some(signed) = signed(leaf) else { return false };
    if !in_time(&certificate, unix_now) || !may_be_client(&certificate) {
        return false;
    }
    authorities.iter().any(|authority| {
        let Ok((_, authority)) = x509_parser::parse_x509_certificate(authority) else {
            return false;
        };
        authority.subject().as_raw() == certificate.issuer().as_raw()
            && in_time(&authority, unix_now)
            && may_sign(&authority)
            && key(authority.public_key().raw).is_some_and(|(kind, key)| {
                algorithms.all.iter().any(|known| {
                    known.public_key_alg_id().as_ref() == kind
                        && known.signature_alg_id().as_ref() == signed.algorithm
                        && known.verify_signature(key, signed.body, signed.signature).is_ok()
                })
            })
    })
}

fn in_time(certificate: &X509Certificate<'_>, now: i64) -> bool {
    let validity = certificate.validity();
    validity.not_before.timestamp() <= now && now <= validity.not_after.timestamp()
}

/// No use is named, or ours is; and nothing critical is in it that nobody knows.
fn may_be_client(certificate: &X509Certificate<'_>) -> bool {
    let Ok(usage) = certificate.extended_key_usage() else { return false };
    let unknown = certificate.extensions().iter().any(|extension| {
        let parsed = extension.parsed_extension();
        let known = !matches!(
            parsed,
            ParsedExtension::UnsupportedExtension { .. } | ParsedExtension::ParseError { .. }
        );
        extension.critical && !known
    });
    !unknown && usage.is_none_or(|usage| usage.value.client_auth || usage.value.any)
}

/// Only what has no limits on names: those are for a verifier that knows them.
fn may_sign(authority: &X509Certificate<'_>) -> bool {
    let unlimited = matches!(authority.name_constraints(), Ok(None));
    let old = authority.version().0 == 0;
    unlimited && (old || authority.is_ca())
}

/// Whether the holder of a certificate's key has signed the handshake; for a certificate whose rest
/// `webpki` does not read.
pub(crate) fn proves_its_key(
    message: &[u8],
    certificate: &CertificateDer<'_>,
    proof: &DigitallySignedStruct,
    algorithms: &WebPkiSupportedAlgorithms,
) -> Result<HandshakeSignatureValid, Error> {
    let refused = Error::InvalidCertificate(CertificateError::BadSignature);
    let Ok((_, parsed)) = x509_parser::parse_x509_certificate(certificate) else {
        return Err(Error::InvalidCertificate(CertificateError::BadEncoding));
    };
    let known = algorithms.mapping.iter().filter(|(scheme, _)| *scheme == proof.scheme);
    let proven = key(parsed.public_key().raw).is_some_and(|(kind, key)| {
        known.flat_map(|(_, candidates)| candidates.iter()).any(|candidate| {
            candidate.public_key_alg_id().as_ref() == kind
                && candidate.verify_signature(key, message, proof.signature()).is_ok()
        })
    });
    if proven { Ok(HandshakeSignatureValid::assertion()) } else { Err(refused) }
}

/// Whether a scheme may be used in a handshake of TLS 1.3.
pub(crate) fn is_modern(scheme: SignatureScheme) -> bool {
    !matches!(
        scheme,
        SignatureScheme::RSA_PKCS1_SHA1
            | SignatureScheme::RSA_PKCS1_SHA256
            | SignatureScheme::RSA_PKCS1_SHA384
            | SignatureScheme::RSA_PKCS1_SHA512
            | SignatureScheme::ECDSA_SHA1_Legacy
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{
        BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    };

    fn authority(name: &str) -> (Issuer<'static, KeyPair>, CertificateDer<'static>) {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap();
        (Issuer::new(params, key), certificate.der().clone())
    }

    fn client(
        by: &Issuer<'static, KeyPair>,
        usage: ExtendedKeyUsagePurpose,
    ) -> CertificateDer<'static> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "client");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.extended_key_usages = vec![usage];
        let key = KeyPair::generate().unwrap();
        params.signed_by(&key, by).unwrap().der().clone()
    }

    #[test]
    fn a_client_that_may_sign_others_is_taken_if_an_authority_signed_it() {
        let algorithms = rustls::crypto::ring::default_provider().signature_verification_algorithms;
        let (issuer, good) = authority("good");
        let (_, other) = authority("other");
        let (false_issuer, _) = authority("good");
        let now = 1_800_000_000;
        let check = |leaf: &CertificateDer<'_>, roots: &[CertificateDer<'static>], now| {
            is_good(leaf, roots, &algorithms, now)
        };
        let leaf = client(&issuer, ExtendedKeyUsagePurpose::ClientAuth);
        let roots = [other.clone(), good];
        assert!(check(&leaf, &roots, now));
        assert!(!check(&leaf, &[other], now), "nobody vouches for it");
        assert!(!check(&leaf, &roots, 99_999_999_999), "its time is over");
        let server = client(&issuer, ExtendedKeyUsagePurpose::ServerAuth);
        assert!(!check(&server, &roots, now), "it is for servers");
        let forged = client(&false_issuer, ExtendedKeyUsagePurpose::ClientAuth);
        assert!(!check(&forged, &roots, now), "the name is right, the key is not");
    }
}
