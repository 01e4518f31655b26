//! Chains that Go's verifier accepts, and chains that it rejects.

use super::*;
use rcgen::{
    BasicConstraints, CertificateParams, CustomExtension, DnType, ExtendedKeyUsagePurpose,
    GeneralSubtree, IsCa, Issuer, KeyPair, KeyUsagePurpose, NameConstraints,
};
use std::slice::from_ref;

const NOW: i64 = 1_800_000_000;

struct Authority {
    issuer: Issuer<'static, KeyPair>,
    der: CertificateDer<'static>,
}

/// Unconstrained parameters with this common name, changed by `change`.
fn params(name: &str, change: impl FnOnce(&mut CertificateParams)) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    change(&mut params);
    params
}

fn root(name: &str, change: impl FnOnce(&mut CertificateParams)) -> Authority {
    let (params, key) = (params(name, change), KeyPair::generate().unwrap());
    let der = params.self_signed(&key).unwrap().der().clone();
    Authority { issuer: Issuer::new(params, key), der }
}

fn below(by: &Authority, name: &str, change: impl FnOnce(&mut CertificateParams)) -> Authority {
    let (params, key) = (params(name, change), KeyPair::generate().unwrap());
    let der = params.signed_by(&key, &by.issuer).unwrap().der().clone();
    Authority { issuer: Issuer::new(params, key), der }
}

fn client(by: &Authority, usage: &[ExtendedKeyUsagePurpose]) -> CertificateDer<'static> {
    below(by, "client", |params| params.extended_key_usages = usage.to_vec()).der
}

const CLIENT: &[ExtendedKeyUsagePurpose] = &[ExtendedKeyUsagePurpose::ClientAuth];
const SERVER: &[ExtendedKeyUsagePurpose] = &[ExtendedKeyUsagePurpose::ServerAuth];

fn check(presented: &[CertificateDer<'static>], roots: &[&Authority]) -> Result<(), Unverified> {
    let roots: Vec<_> = roots.iter().map(|root| root.der.clone()).collect();
    let algorithms = rustls::crypto::ring::default_provider().signature_verification_algorithms;
    verify(presented, &roots, &algorithms, NOW)
}

fn plain(_: &mut CertificateParams) {}

fn expired(params: &mut CertificateParams) {
    params.not_after = time::OffsetDateTime::from_unix_timestamp(NOW - 1).unwrap();
}

#[test]
fn a_client_is_taken_if_an_authority_signed_it() {
    let (good, other, false_one) = (root("good", plain), root("other", plain), root("good", plain));
    let leaf = client(&good, CLIENT);
    assert_eq!(check(from_ref(&leaf), &[&other, &good]), Ok(()));
    assert_eq!(check(from_ref(&leaf), &[&other]), Err(Unverified::Authority));
    assert_eq!(check(&[leaf], &[&false_one]), Err(Unverified::Authority), "another key");
    assert_eq!(check(&[client(&good, &[])], &[&false_one, &good]), Ok(()), "for any use");
    assert_eq!(check(&[client(&good, SERVER)], &[&good]), Err(Unverified::Usage));
    let late = below(&good, "client", expired).der;
    assert_eq!(check(&[late], &[&good]), Err(Unverified::Expired));
    assert_eq!(check(from_ref(&other.der), &[&other]), Ok(()), "it is trusted by itself");
}

// `webpki` alone would accept these chains, since it ignores a root's validity and usage.
#[test]
fn an_authority_that_is_over_or_for_servers_vouches_for_nobody() {
    let over = root("over", expired);
    assert_eq!(check(&[client(&over, CLIENT)], &[&over]), Err(Unverified::Expired));
    let servers = root("servers", |params| params.extended_key_usages = SERVER.to_vec());
    assert_eq!(check(&[client(&servers, CLIENT)], &[&servers]), Err(Unverified::Usage));
    let none = root("none", |params| params.is_ca = IsCa::ExplicitNoCa);
    assert_eq!(check(&[client(&none, CLIENT)], &[&none]), Err(Unverified::Authority));
    let other_use =
        root("use", |params| params.key_usages = vec![KeyUsagePurpose::DigitalSignature]);
    assert_eq!(check(&[client(&other_use, CLIENT)], &[&other_use]), Err(Unverified::Authority));
    let secret = |params: &mut CertificateParams| {
        let mut extension = CustomExtension::from_oid_content(&[1, 2, 3], vec![5, 0]);
        extension.set_criticality(true);
        params.custom_extensions.push(extension);
    };
    let strange = root("strange", secret);
    assert_eq!(check(&[client(&strange, CLIENT)], &[&strange]), Err(Unverified::Unknown));
}

#[test]
fn those_between_are_held_to_the_same() {
    let top = root("top", plain);
    let between = below(&top, "between", plain);
    let leaf = client(&between, CLIENT);
    assert_eq!(check(&[leaf.clone(), between.der.clone()], &[&top]), Ok(()));
    assert_eq!(check(&[leaf], &[&top]), Err(Unverified::Authority), "it is not shown");
    for (change, why) in [
        (expired as fn(&mut CertificateParams), Unverified::Expired),
        (|params| params.extended_key_usages = SERVER.to_vec(), Unverified::Usage),
        (|params| params.is_ca = IsCa::ExplicitNoCa, Unverified::Authority),
    ] {
        let between = below(&top, "between", change);
        let presented = [client(&between, CLIENT), between.der.clone()];
        assert_eq!(check(&presented, &[&top]), Err(why));
    }
    let short = root("short", |params| params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0)));
    let between = below(&short, "between", plain);
    let presented = [client(&between, CLIENT), between.der.clone()];
    assert_eq!(check(&presented, &[&short]), Err(Unverified::Authority), "one too many");
    assert_eq!(check(&[client(&short, CLIENT)], &[&short]), Ok(()));
}

#[test]
fn limits_on_names_are_kept() {
    let limited = root("limited", |params| {
        let subtrees = vec![GeneralSubtree::DnsName("example.com".to_owned())];
        params.name_constraints =
            Some(NameConstraints { permitted_subtrees: subtrees, excluded_subtrees: Vec::new() });
    });
    let named = |name: &str| {
        let name = name.try_into().unwrap();
        let own = |params: &mut CertificateParams| {
            params.is_ca = IsCa::ExplicitNoCa;
            params.subject_alt_names = vec![rcgen::SanType::DnsName(name)];
        };
        check(&[below(&limited, "client", own).der], &[&limited])
    };
    assert_eq!(named("a.example.com"), Ok(()));
    assert_eq!(named("a.example.org"), Err(Unverified::Authority));
}

#[test]
fn bytes_behind_a_certificate_make_it_none() {
    let good = root("good", plain);
    let leaf = client(&good, CLIENT);
    let longer = CertificateDer::from([leaf.as_ref(), b"x"].concat());
    assert_eq!(check(&[longer], &[&good]), Err(Unverified::Malformed));
}

#[test]
fn a_flood_of_candidates_is_not_looked_at() {
    let good = root("good", plain);
    let mut presented = vec![client(&good, CLIENT)];
    presented.extend((0..MOST_CHECKS + 5).map(|_| root("good", plain).der));
    assert_eq!(check(&presented, &[&good]), Ok(()), "authorities come first");
    let other = root("other", plain);
    let reads: Vec<_> = presented.iter().filter_map(Parsed::of).collect();
    let roots: Vec<_> = [&other.der].into_iter().filter_map(Parsed::of).collect();
    let algorithms = rustls::crypto::ring::default_provider().signature_verification_algorithms;
    let mut search = Search {
        roots: &roots,
        intermediates: &reads[1..],
        algorithms: &algorithms,
        now: NOW,
        checks: 0,
        why: Unverified::Authority,
    };
    assert!(!search.from(&[&reads[0]]));
    assert_eq!(search.checks, MOST_CHECKS);
}
