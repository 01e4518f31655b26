//! Keys and certificate signing requests.

use crate::connection::IdentityPair;
use base64::Engine;
use rcgen::{
    CertificateParams, DistinguishedName, DnType, DnValue, KeyPair, PublicKeyData, SanType,
};
use sha2::{Digest, Sha512_256};
use std::collections::BTreeSet;
use std::net::IpAddr;
use x509_parser::extensions::GeneralName;

/// The subject of a certificate.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Subject {
    /// `CN`.
    pub common_name: String,
    /// `O`.
    pub organizations: Vec<String>,
}

impl Subject {
    /// The subject of the node called `name`.
    pub fn node(name: &str) -> Self {
        Self {
            common_name: format!("system:node:{name}"),
            organizations: vec!["system:nodes".into()],
        }
    }
}

/// The names under which a server is reached.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Names {
    /// DNS names.
    pub dns: BTreeSet<String>,
    /// Addresses.
    pub ips: BTreeSet<IpAddr>,
}

/// A fresh ECDSA P-256 key.
pub(super) fn generate() -> Result<KeyPair, rcgen::Error> {
    KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256)
}

/// A signing request as PEM.
pub(super) fn signing_request(
    key: &KeyPair,
    subject: &Subject,
    names: &Names,
) -> Result<String, rcgen::Error> {
    params(subject, names)?.serialize_request(key)?.pem()
}

fn params(subject: &Subject, names: &Names) -> Result<CertificateParams, rcgen::Error> {
    let mut params = CertificateParams::new(Vec::new())?;
    for dns in &names.dns {
        params.subject_alt_names.push(SanType::DnsName(dns.as_str().try_into()?));
    }
    // Sorted by their text, as upstream does.
    let mut ips: Vec<IpAddr> = names.ips.iter().copied().collect();
    ips.sort_by_key(ToString::to_string);
    params.subject_alt_names.extend(ips.into_iter().map(SanType::IpAddress));
    let mut name = DistinguishedName::new();
    for organization in &subject.organizations {
        name.push(DnType::OrganizationName, DnValue::Utf8String(organization.clone()));
    }
    name.push(DnType::CommonName, DnValue::Utf8String(subject.common_name.clone()));
    params.distinguished_name = name;
    Ok(params)
}

/// The name of a one-time request. It depends only on key, subject and usages, so that a restart
/// finds its request again (upstream: `digestedName`).
pub(super) fn digest_name(key: &KeyPair, subject: &Subject, usages: &[&str]) -> String {
    let encode = |bytes: &[u8]| base64::prelude::BASE64_URL_SAFE_NO_PAD.encode(bytes);
    let mut hash = Sha512_256::new();
    let mut write = |bytes: &[u8]| {
        hash.update(encode(bytes));
        hash.update(b"|");
    };
    write(&key.subject_public_key_info());
    write(subject.common_name.as_bytes());
    for organization in &subject.organizations {
        write(organization.as_bytes());
    }
    for usage in usages {
        write(usage.as_bytes());
    }
    format!("node-csr-{}", encode(&hash.finalize()))
}

/// Whether the certificate is for this subject and covers (at least) these names.
pub(super) fn satisfies(pair: &IdentityPair, subject: &Subject, names: &Names) -> bool {
    let Some(leaf) = pair.chain().first() else { return false };
    let Ok((_, leaf)) = x509_parser::parse_x509_certificate(leaf) else { return false };
    let text = |value: &x509_parser::x509::AttributeTypeAndValue<'_>| {
        value.as_str().map(str::to_owned).unwrap_or_default()
    };
    let common_name = leaf.subject().iter_common_name().next().map(text);
    let organizations: Vec<String> = leaf.subject().iter_organization().map(text).collect();
    let (mut dns, mut ips) = (BTreeSet::new(), BTreeSet::new());
    if let Ok(Some(extension)) = leaf.subject_alternative_name() {
        for name in &extension.value.general_names {
            match name {
                GeneralName::DNSName(name) => {
                    dns.insert((*name).to_owned());
                }
                GeneralName::IPAddress(bytes) => {
                    let v4 = <[u8; 4]>::try_from(*bytes).map(IpAddr::from);
                    ips.extend(v4.or_else(|_| <[u8; 16]>::try_from(*bytes).map(IpAddr::from)));
                }
                _ => {}
            }
        }
    }
    common_name.as_deref() == Some(subject.common_name.as_str())
        && subject.organizations.iter().all(|o| organizations.contains(o))
        && names.dns.is_subset(&dns)
        && names.ips.is_subset(&ips)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn issue(subject: &Subject, names: &Names) -> IdentityPair {
        let key = generate().unwrap();
        let certificate = params(subject, names).unwrap().self_signed(&key).unwrap().pem();
        IdentityPair::from_pem(certificate.as_bytes(), key.serialize_pem().as_bytes()).unwrap()
    }

    #[test]
    fn a_certificate_satisfies_what_was_asked_for_and_less() {
        let subject = Subject::node("node1");
        let names = |dns: &[&str], ips: &[&str]| Names {
            dns: dns.iter().map(|d| (*d).to_owned()).collect(),
            ips: ips.iter().map(|ip| ip.parse().unwrap()).collect(),
        };
        let pair = issue(&subject, &names(&["node1"], &["192.0.2.2", "2001:db8::1"]));
        assert!(satisfies(&pair, &subject, &names(&["node1"], &["192.0.2.2"])));
        assert!(satisfies(&pair, &subject, &names(&[], &["2001:db8::1"])));
        assert!(!satisfies(&pair, &subject, &names(&["node2"], &[])));
        assert!(!satisfies(&pair, &subject, &names(&[], &["192.0.2.3"])));
        assert!(!satisfies(&pair, &Subject::node("node2"), &names(&[], &[])));
    }

    #[test]
    fn names_are_asked_for_as_what_they_are_in_the_order_of_their_text() {
        let names = Names {
            dns: ["node1".to_owned(), "192.0.2.7".to_owned()].into(),
            ips: ["10.0.0.9", "10.0.0.10"].map(|ip| ip.parse().unwrap()).into(),
        };
        let asked = params(&Subject::node("n"), &names).unwrap().subject_alt_names;
        let dns = |name: &str| SanType::DnsName(name.try_into().unwrap());
        let ip = |text: &str| SanType::IpAddress(text.parse().unwrap());
        assert_eq!(asked, [dns("192.0.2.7"), dns("node1"), ip("10.0.0.10"), ip("10.0.0.9")]);
    }

    #[test]
    fn the_digest_name_depends_on_key_and_subject() {
        let (one, two) = (generate().unwrap(), generate().unwrap());
        let name = |key, node| digest_name(key, &Subject::node(node), &["client auth"]);
        assert_eq!(name(&one, "a"), name(&one, "a"));
        assert_ne!(name(&one, "a"), name(&two, "a"));
        assert_ne!(name(&one, "a"), name(&one, "b"));
        assert!(name(&one, "a").starts_with("node-csr-"));
    }
}
