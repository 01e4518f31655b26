//! Keys of `podCertificate` sources, and the requests that prove their possession (upstream:
//! `generateKeyAndProof`, `pemEncodeKey`).
//!
//! ring generates keys and signs for the curves it knows, and signs with RSA; RSA primes and P-521 come
//! from other crates. Deliberately absent: storing a key, which its record does.

use base64::Engine;
use crypto_bigint::{BoxedUint, ConcatenatingMul, Lcm, NonZero, Odd, Resize};
use crypto_primes::hazmat::{SetBits, SmallFactorsSieveFactory};
use crypto_primes::{Flavor, is_prime, sieve_and_find};
use engine::volumes::KeyPem;
use getrandom::SysRng;
use getrandom::rand_core::UnwrapErr;
use p521::ecdsa::signature::Signer;
use p521::elliptic_curve::Generate;
use p521::pkcs8::{EncodePrivateKey, EncodePublicKey};
use rcgen::{CertificateParams, DistinguishedName, KeyPair};

const INTEGER: u8 = 0x02;
const BIT_STRING: u8 = 0x03;
const OCTET_STRING: u8 = 0x04;
const SEQUENCE: u8 = 0x30;
const ATTRIBUTES: u8 = 0xa0;
/// `rsaEncryption` and the parameters it does not have.
const RSA: [u8; 13] =
    [0x06, 0x09, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01, 0x05, 0x00];
/// `ecdsa-with-SHA512`.
const ECDSA_SHA512: [u8; 10] = [0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x04];
const PUBLIC_EXPONENT: u64 = 65_537;
/// Primes that differ only in this many low bits would make the key easy to factor.
const CLOSE_BITS: u32 = 100;

/// A new key as PKCS#8 in PEM, and a certificate request that proves its possession and has no other content.
///
/// An RSA key takes seconds of work.
pub(super) fn generate(key_type: &str) -> Result<(KeyPem, Vec<u8>), String> {
    let (key, stub) = match key_type {
        "RSA3072" => rsa(3072).map_err(|e| format!("while generating RSA 3072 key: {e}"))?,
        "RSA4096" => rsa(4096).map_err(|e| format!("while generating RSA 4096 key: {e}"))?,
        "ECDSAP256" => ring(&rcgen::PKCS_ECDSA_P256_SHA256)?,
        "ECDSAP384" => ring(&rcgen::PKCS_ECDSA_P384_SHA384)?,
        "ECDSAP521" => p521().map_err(|e| format!("while generating ECDSA P521 key: {e}"))?,
        "ED25519" => {
            let (key, stub) = ring(&rcgen::PKCS_ED25519)?;
            (plain_ed25519(&key).ok_or("an Ed25519 key of an unknown form was made")?, stub)
        }
        other => return Err(format!("unknown key type {}", units::strconv::quote(other))),
    };
    Ok((KeyPem(pem("PRIVATE KEY", &key)), stub))
}

/// Key and request.
type Made = (Vec<u8>, Vec<u8>);

fn ring(algorithm: &'static rcgen::SignatureAlgorithm) -> Result<Made, String> {
    let key = KeyPair::generate_for(algorithm).map_err(|e| e.to_string())?;
    Ok((key.serialize_der(), request(&key)?))
}

/// A certificate request without a subject and without attributes.
fn request(key: &KeyPair) -> Result<Vec<u8>, String> {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    let stub = params.serialize_request(key).map_err(|e| e.to_string())?;
    Ok(stub.der().to_vec())
}

/// The first version of PKCS#8, without the public key, as Go writes it.
fn plain_ed25519(der: &[u8]) -> Option<Vec<u8>> {
    const HEAD: [u8; 16] = [
        0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04,
        0x20,
    ];
    // Both versions have the algorithm and the wrapped seed at the same offset.
    let seed = der.get(HEAD.len()..HEAD.len() + 32)?;
    (der.get(5..HEAD.len())? == HEAD.get(5..)?).then(|| [&HEAD, seed].concat())
}

fn p521() -> Result<Made, String> {
    let secret = p521::SecretKey::try_generate().map_err(|e| e.to_string())?;
    let key = secret.to_pkcs8_der().map_err(|e| e.to_string())?;
    let public = secret.public_key().to_public_key_der().map_err(|e| e.to_string())?;
    let said = [
        der(INTEGER, &[&[0]]),
        der(SEQUENCE, &[]),
        public.as_bytes().to_vec(),
        der(ATTRIBUTES, &[]),
    ];
    let said = der(SEQUENCE, &[&said.concat()]);
    let signer = p521::ecdsa::SigningKey::from(secret);
    let signature: p521::ecdsa::DerSignature = signer.try_sign(&said).map_err(|e| e.to_string())?;
    let algorithm = der(SEQUENCE, &[&ECDSA_SHA512]);
    let signature = der(BIT_STRING, &[&[0], signature.as_bytes()]);
    Ok((key.as_bytes().to_vec(), der(SEQUENCE, &[&said, &algorithm, &signature])))
}

/// Generates an RSA key; ring checks it before it signs with it.
fn rsa(bits: u32) -> Result<Made, String> {
    let made = loop {
        let (p, q) = (prime(bits / 2)?, prime(bits / 2)?);
        if let Some(made) = rsa_of(p, q) {
            break made;
        }
    };
    let algorithm = &rcgen::PKCS_RSA_SHA256;
    let key = KeyPair::from_pkcs8_der_and_sign_algo(&made.as_slice().into(), algorithm)
        .map_err(|e| e.to_string())?;
    let stub = request(&key)?;
    Ok((made, stub))
}

/// A prime with its two highest bits set, so that the product of two has all its bits.
///
/// Panics on a machine without random numbers; `sys::blocking` reports that as an error.
fn prime(bits: u32) -> Result<BoxedUint, String> {
    let sieve = SmallFactorsSieveFactory::new(Flavor::Any, bits, SetBits::TwoMsb)
        .map_err(|e| e.to_string())?;
    let found = sieve_and_find(&mut UnwrapErr(SysRng), sieve, |_, candidate| {
        is_prime(Flavor::Any, candidate)
    });
    found.map_err(|e| e.to_string())?.ok_or_else(|| "no prime was found".to_owned())
}

/// The key of two primes in PKCS#8; `None` if they do not form a valid key.
fn rsa_of(p: BoxedUint, q: BoxedUint) -> Option<Vec<u8>> {
    // ring wants the larger one first.
    let (p, q) = if p > q { (p, q) } else { (q, p) };
    if p.wrapping_sub(&q).bits() <= p.bits().saturating_sub(CLOSE_BITS) {
        return None;
    }
    let one = BoxedUint::one_with_precision(p.bits_precision());
    let (p_less, q_less) = (p.wrapping_sub(&one), q.wrapping_sub(&one));
    let order = p_less.lcm(&q_less);
    let e = BoxedUint::from(PUBLIC_EXPONENT);
    let wide = (&e).resize(order.bits_precision());
    let d: BoxedUint = Option::from(wide.invert_mod(&nonzero(order)?))?;
    let d_p = d.rem(&nonzero(p_less)?);
    let d_q = d.rem(&nonzero(q_less)?);
    let odd: Odd<BoxedUint> = Option::from(Odd::new(p.clone()))?;
    let q_inverse: BoxedUint = Option::from(q.invert_odd_mod(&odd))?;
    let n = p.concatenating_mul(&q);
    let parts = [&n, &e, &d, &p, &q, &d_p, &d_q, &q_inverse].map(integer).concat();
    let key = der(SEQUENCE, &[&der(INTEGER, &[&[0]]), &parts]);
    let algorithm = der(SEQUENCE, &[&RSA]);
    Some(der(SEQUENCE, &[&der(INTEGER, &[&[0]]), &algorithm, &der(OCTET_STRING, &[&key])]))
}

fn nonzero(value: BoxedUint) -> Option<NonZero<BoxedUint>> {
    Option::from(NonZero::new(value))
}

/// An ASN.1 INTEGER that is not negative.
fn integer(value: &BoxedUint) -> Vec<u8> {
    let bytes = value.to_be_bytes_trimmed_vartime();
    let sign: &[u8] = if bytes.first().is_none_or(|first| *first >= 0x80) { &[0] } else { &[] };
    der(INTEGER, &[sign, &bytes])
}

/// One value of ASN.1.
fn der(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
    let content = parts.concat();
    let length = content.len().to_be_bytes();
    let from = length.iter().position(|byte| *byte != 0).unwrap_or(length.len() - 1);
    let length = length.get(from..).unwrap_or_default();
    let mut encoded = vec![tag];
    if content.len() >= 0x80 {
        // At most eight bytes of length.
        encoded.push(0x80 | u8::try_from(length.len()).unwrap_or_default());
    }
    encoded.extend_from_slice(length);
    encoded.extend(content);
    encoded
}

fn pem(label: &str, der: &[u8]) -> String {
    let body = base64::prelude::BASE64_STANDARD.encode(der);
    let mut text = format!("-----BEGIN {label}-----\n");
    let mut rest = body.as_str();
    while !rest.is_empty() {
        let (line, more) = rest.split_at(rest.len().min(64));
        text.push_str(line);
        text.push('\n');
        rest = more;
    }
    text.push_str(&format!("-----END {label}-----\n"));
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use p521::ecdsa::signature::Verifier;
    use ring::signature::{
        ECDSA_P256_SHA256_ASN1, ECDSA_P384_SHA384_ASN1, ED25519, RSA_PKCS1_2048_8192_SHA256,
        UnparsedPublicKey, VerificationAlgorithm,
    };
    use x509_parser::prelude::{FromDer, X509CertificationRequest};

    /// Key type, length of Go's key, signature algorithm of its request, verifier.
    type Case = (&'static str, usize, &'static str, Option<&'static dyn VerificationAlgorithm>);

    fn der_of(key: &KeyPem) -> Vec<u8> {
        assert!(key.0.starts_with("-----BEGIN PRIVATE KEY-----\n"), "not PKCS#8");
        let body: String = key.0.lines().filter(|line| !line.starts_with('-')).collect();
        base64::prelude::BASE64_STANDARD.decode(body).unwrap()
    }

    #[test]
    fn each_type_of_key_proves_its_possession() {
        let cases: [Case; 6] = [
            ("ECDSAP256", 138, "1.2.840.10045.4.3.2", Some(&ECDSA_P256_SHA256_ASN1)),
            ("ECDSAP384", 185, "1.2.840.10045.4.3.3", Some(&ECDSA_P384_SHA384_ASN1)),
            ("ECDSAP521", 241, "1.2.840.10045.4.3.4", None),
            ("ED25519", 48, "1.3.101.112", Some(&ED25519)),
            ("RSA3072", 1793, "1.2.840.113549.1.1.11", Some(&RSA_PKCS1_2048_8192_SHA256)),
            ("RSA4096", 2374, "1.2.840.113549.1.1.11", Some(&RSA_PKCS1_2048_8192_SHA256)),
        ];
        for (kind, length, algorithm, verifier) in cases {
            let (key, stub) = generate(kind).unwrap();
            // Numbers of RSA may begin with zeros.
            let spare = if kind.starts_with("RSA") { 10 } else { 0 };
            let found = der_of(&key).len();
            assert!(found.abs_diff(length) <= spare, "{kind}: {found}");
            assert_eq!(format!("{key:?}"), "KeyPem(…)");

            let (rest, request) = X509CertificationRequest::from_der(&stub).unwrap();
            assert!(rest.is_empty(), "{kind}");
            let said = &request.certification_request_info;
            assert_eq!(said.subject.iter().count(), 0, "{kind}");
            assert_eq!(request.signature_algorithm.algorithm.to_id_string(), algorithm, "{kind}");
            let public = &said.subject_pki.subject_public_key.data;
            let signature = &request.signature_value.data;
            if let Some(verifier) = verifier {
                let public = UnparsedPublicKey::new(verifier, public);
                public.verify(said.raw, signature).unwrap();
                assert!(KeyPair::from_pem(&key.0).is_ok(), "{kind}");
            } else {
                use p521::pkcs8::DecodePrivateKey;
                let public = p521::ecdsa::VerifyingKey::from_sec1_bytes(public).unwrap();
                let signature = p521::ecdsa::DerSignature::try_from(&**signature).unwrap();
                public.verify(said.raw, &signature).unwrap();
                let secret = p521::SecretKey::from_pkcs8_der(&der_of(&key)).unwrap();
                assert_eq!(public, p521::ecdsa::VerifyingKey::from(secret.public_key()));
            }
        }
        assert_eq!(generate("DSA").unwrap_err(), "unknown key type \"DSA\"");
    }

    #[test]
    fn primes_that_make_no_key_are_refused() {
        let prime = prime(512).unwrap();
        assert!(rsa_of(prime.clone(), prime).is_none(), "the same twice");
        // 65537 divides the one less than this prime.
        let bad = BoxedUint::from(917_519_u64);
        assert!(nonzero(BoxedUint::zero()).is_none());
        assert!(rsa_of(bad, BoxedUint::from(3_u64)).is_none(), "no inverse");
    }

    #[test]
    fn numbers_are_written_as_asn_1_wants() {
        let long = vec![7; 300];
        assert_eq!(der(OCTET_STRING, &[&long])[..5], [0x04, 0x82, 0x01, 0x2c, 7]);
        assert_eq!(der(OCTET_STRING, &[&long[..0x80]])[..4], [0x04, 0x81, 0x80, 7]);
        assert_eq!(der(SEQUENCE, &[]), [0x30, 0]);
        assert_eq!(integer(&BoxedUint::from(0_u64)), [0x02, 1, 0]);
        assert_eq!(integer(&BoxedUint::from(0x7f_u64)), [0x02, 1, 0x7f]);
        assert_eq!(integer(&BoxedUint::from(0x80_u64)), [0x02, 2, 0, 0x80]);
    }
}
