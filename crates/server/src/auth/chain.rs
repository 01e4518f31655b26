//! Verifies client certificate chains as Go does (`x509.Certificate.Verify` with the key usage
//! client authentication): every certificate up to and including the root must be within its
//! validity period and allow this usage, and version 1 certificates and CA certificates are
//! accepted as leaves.
//!
//! `webpki` ignores the validity and usage of a root; it is used only where name constraints apply.

use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::WebPkiSupportedAlgorithms;
use rustls::server::WebPkiClientVerifier;
use rustls::{CertificateError, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use rustls_pki_types::{CertificateDer, UnixTime};
use std::sync::Arc;
use std::time::Duration;
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::ParsedExtension;

/// The parts of a certificate that its signature covers, and the signature.
struct Signed<'a> {
    body: &'a [u8],
    algorithm: &'a [u8],
    signature: &'a [u8],
}

/// The first DER value: its tag, its content, and the bytes that follow.
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

/// The bytes of a bit string without unused bits.
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

/// A public key: its algorithm and its bits.
fn key(spki: &[u8]) -> Option<(&[u8], &[u8])> {
    let (0x30, whole, _) = value(spki)? else { return None };
    let (0x30, algorithm, rest) = value(whole)? else { return None };
    Some((algorithm, bits(rest)?))
}

/// Signatures that are verified at most for one chain. Go's limit is 100.
const MOST_CHECKS: usize = 30;
/// Critical extensions that are understood.
const KNOWN: [&str; 7] = [
    "2.5.29.15", // keyUsage
    "2.5.29.17", // subjectAltName
    "2.5.29.19", // basicConstraints
    "2.5.29.30", // nameConstraints
    "2.5.29.31", // cRLDistributionPoints
    "2.5.29.32", // certificatePolicies
    "2.5.29.37", // extKeyUsage
];

/// Why a client certificate could not be verified.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum Unverified {
    /// It cannot be parsed.
    #[error("x509: malformed certificate")]
    Malformed,
    /// It is not yet valid or has expired.
    #[error("x509: certificate has expired or is not yet valid")]
    Expired,
    /// It has a critical extension that is not understood.
    #[error("x509: unhandled critical extension")]
    Unknown,
    /// No chain leads to a configured authority.
    #[error("x509: certificate signed by unknown authority")]
    Authority,
    /// A certificate in the chain is for another key usage.
    #[error("x509: certificate specifies an incompatible key usage")]
    Usage,
}

/// A parsed certificate.
struct Parsed<'a> {
    der: &'a CertificateDer<'static>,
    certificate: X509Certificate<'a>,
    signed: Signed<'a>,
}

impl<'a> Parsed<'a> {
    /// Parses one certificate; trailing bytes are an error.
    fn of(der: &'a CertificateDer<'static>) -> Option<Self> {
        let (rest, certificate) = x509_parser::parse_x509_certificate(der).ok()?;
        let signed = signed(der)?;
        rest.is_empty().then_some(Self { der, certificate, signed })
    }

    /// Why it cannot be part of any chain.
    fn fault(&self, now: i64) -> Option<Unverified> {
        let unknown = self.certificate.extensions().iter().any(|extension| {
            let broken = matches!(extension.parsed_extension(), ParsedExtension::ParseError { .. });
            extension.critical
                && (broken || !KNOWN.contains(&extension.oid.to_id_string().as_str()))
        });
        let validity = self.certificate.validity();
        let in_time =
            validity.not_before.timestamp() <= now && now <= validity.not_after.timestamp();
        match (unknown, in_time) {
            (true, _) => Some(Unverified::Unknown),
            (_, false) => Some(Unverified::Expired),
            _ => None,
        }
    }

    /// Whether it may sign the certificates below it, `others` of which are intermediates (Go:
    /// `CheckSignatureFrom`, `isValid`).
    fn may_sign(&self, kind: Kind, others: usize) -> bool {
        let Ok(constraints) = self.certificate.basic_constraints() else { return false };
        let is_authority = match constraints {
            Some(constraints) => {
                let longest = constraints.value.path_len_constraint;
                let near =
                    longest.is_none_or(|most| usize::try_from(most).is_ok_and(|m| others <= m));
                constraints.value.ca && near
            }
            // Only a root of version 1 or 2 may lack basic constraints.
            None => kind == Kind::Root && self.certificate.version().0 != 2,
        };
        let signs = match self.certificate.key_usage() {
            Ok(usage) => {
                usage.is_none_or(|usage| usage.value.flags == 0 || usage.value.key_cert_sign())
            }
            Err(_) => false,
        };
        is_authority && signs
    }

    fn has_signed(&self, child: &Parsed<'_>, algorithms: &WebPkiSupportedAlgorithms) -> bool {
        key(self.certificate.public_key().raw).is_some_and(|(kind, key)| {
            algorithms.all.iter().any(|known| {
                known.public_key_alg_id().as_ref() == kind
                    && known.signature_alg_id().as_ref() == child.signed.algorithm
                    && known
                        .verify_signature(key, child.signed.body, child.signed.signature)
                        .is_ok()
            })
        })
    }

    /// Whether it names no extended key usage, or client authentication.
    fn is_for_clients(&self) -> bool {
        let usage = self.certificate.extended_key_usage();
        usage.is_ok_and(|usage| usage.is_none_or(|u| u.value.client_auth || u.value.any))
    }

    fn is_same(&self, other: &Parsed<'_>) -> bool {
        self.certificate.subject().as_raw() == other.certificate.subject().as_raw()
            && self.certificate.public_key().raw == other.certificate.public_key().raw
    }

    fn limits_names(&self) -> bool {
        !matches!(self.certificate.name_constraints(), Ok(None))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Root,
    Intermediate,
}

/// A depth-first search for a chain from the client's certificate to a root.
struct Search<'a, 'b> {
    roots: &'b [Parsed<'a>],
    intermediates: &'b [Parsed<'a>],
    algorithms: &'b WebPkiSupportedAlgorithms,
    now: i64,
    checks: usize,
    why: Unverified,
}

/// Verifies the first certificate as a client's; the other ones are intermediates.
pub(super) fn verify(
    presented: &[CertificateDer<'static>],
    authorities: &[CertificateDer<'static>],
    algorithms: &WebPkiSupportedAlgorithms,
    unix_now: i64,
) -> Result<(), Unverified> {
    let Some((leaf, others)) = presented.split_first() else { return Err(Unverified::Malformed) };
    let leaf = Parsed::of(leaf).ok_or(Unverified::Malformed)?;
    if let Some(fault) = leaf.fault(unix_now) {
        return Err(fault);
    }
    if authorities.contains(leaf.der) {
        return if leaf.is_for_clients() { Ok(()) } else { Err(Unverified::Usage) };
    }
    let roots: Vec<_> = authorities.iter().filter_map(Parsed::of).collect();
    let intermediates: Vec<_> = others.iter().filter_map(Parsed::of).collect();
    let mut search = Search {
        roots: &roots,
        intermediates: &intermediates,
        algorithms,
        now: unix_now,
        checks: 0,
        why: Unverified::Authority,
    };
    if search.from(&[&leaf]) { Ok(()) } else { Err(search.why) }
}

impl<'a, 'b> Search<'a, 'b> {
    /// Whether the chain can be completed up to a root.
    fn from(&mut self, chain: &[&Parsed<'a>]) -> bool {
        let Some(child) = chain.last() else { return false };
        let (roots, intermediates) = (self.roots, self.intermediates);
        let all = roots.iter().map(|read| (Kind::Root, read));
        for (kind, parent) in all.chain(intermediates.iter().map(|read| (Kind::Intermediate, read)))
        {
            let named =
                parent.certificate.subject().as_raw() == child.certificate.issuer().as_raw();
            if !named || chain.iter().any(|before| before.is_same(parent)) {
                continue;
            }
            if self.checks == MOST_CHECKS {
                return false;
            }
            self.checks += 1;
            if !parent.may_sign(kind, chain.len() - 1) || !parent.has_signed(child, self.algorithms)
            {
                continue;
            }
            if let Some(fault) = parent.fault(self.now) {
                self.why = fault;
                continue;
            }
            let longer = [chain, &[parent]].concat();
            let found = match kind {
                Kind::Root => self.is_good(&longer),
                Kind::Intermediate => self.from(&longer),
            };
            if found {
                return true;
            }
        }
        false
    }

    /// Whether a complete chain allows client authentication and its name constraints allow the
    /// leaf (Go: `checkChainForKeyUsage`).
    fn is_good(&mut self, chain: &[&Parsed<'a>]) -> bool {
        if !chain.iter().all(|read| read.is_for_clients()) {
            self.why = Unverified::Usage;
            return false;
        }
        !chain.iter().skip(1).any(|read| read.limits_names()) || self.names_are_allowed(chain)
    }

    fn names_are_allowed(&self, chain: &[&Parsed<'a>]) -> bool {
        let [leaf, others @ .., root] = chain else { return false };
        let mut store = RootCertStore::empty();
        if store.add(root.der.clone()).is_err() {
            return false;
        }
        let Ok(verifier) = WebPkiClientVerifier::builder(Arc::new(store)).build() else {
            return false;
        };
        let others: Vec<_> = others.iter().map(|read| read.der.clone()).collect();
        let seconds = u64::try_from(self.now).unwrap_or(0);
        let now = UnixTime::since_unix_epoch(Duration::from_secs(seconds));
        verifier.verify_client_cert(leaf.der, &others, now).is_ok()
    }
}

/// Verifies the handshake signature with the certificate's public key, also for certificates that
/// `webpki` cannot parse.
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

/// Whether TLS 1.3 allows a signature scheme in a handshake.
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
mod tests;
