//! Records on disk, merging and the access check.

use super::*;

fn at(name: &str) -> Coordinates {
    Coordinates { namespace: "ns".into(), name: name.into(), uid: format!("uid-{name}") }
}

fn secret(name: &str, hash: &str) -> Credential {
    Credential {
        username: String::new(),
        password: String::new(),
        hash: hash.into(),
        source: Some(CredentialSource::Secret(at(name))),
    }
}

fn account(name: &str) -> Credential {
    Credential { source: Some(CredentialSource::ServiceAccount(at(name))), ..secret("", "h") }
}

fn time(second: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + second).unwrap()
}

fn pulled(used: Option<&Credential>) -> PulledRecord {
    let credentials = PullCredentials::of_pull(used);
    PulledRecord::with(None, "r.io/a:1", "sha256:id", Some(&credentials), time(0)).unwrap()
}

#[test]
fn files_have_the_go_kubelets_content() {
    let intent = PullIntent::new("busybox:1");
    let text = "{\"kind\":\"ImagePullIntent\",\"apiVersion\":\"kubelet.config.k8s.io/v1beta1\",\
                \"image\":\"busybox:1\"}\n";
    assert_eq!(String::from_utf8(intent.encode().unwrap()).unwrap(), text);
    assert_eq!(PullIntent::decode(text.as_bytes()).unwrap(), intent);
    let record = pulled(Some(&secret("s", "h")));
    let text = "{\"kind\":\"ImagePulledRecord\",\"apiVersion\":\"kubelet.config.k8s.io/v1beta1\",\
                \"lastUpdatedTime\":\"2023-11-14T22:13:20Z\",\"imageRef\":\"sha256:id\",\
                \"credentialMapping\":{\"r.io/a\":{\"kubernetesSecrets\":[{\"uid\":\"uid-s\",\
                \"namespace\":\"ns\",\"name\":\"s\",\"credentialHash\":\"h\"}]}}}\n";
    assert_eq!(String::from_utf8(record.encode().unwrap()).unwrap(), text);
    assert_eq!(PulledRecord::decode(text.as_bytes()).unwrap(), record);
    assert_eq!(file_name("busybox:1"), format!("sha256-{}", hex(&Sha256::digest(b"busybox:1"))));
}

#[test]
fn unknown_fields_kinds_and_versions_are_refused_but_the_old_version_is_read() {
    let with = |kind: &str, version: &str, more: &str| {
        let text = format!(
            "{{\"kind\":\"{kind}\",\"apiVersion\":\"kubelet.config.k8s.io/{version}\",\
             \"image\":\"a\"{more}}}"
        );
        PullIntent::decode(text.as_bytes())
    };
    assert!(!with("ImagePullIntent", "v1alpha1", "").unwrap().is_current());
    assert!(with("ImagePullIntent", "v1", "").is_err());
    assert!(with("Other", "v1beta1", "").is_err());
    assert!(with("ImagePullIntent", "v1beta1", ",\"x\":1").is_err());
}

#[test]
fn merging_keeps_the_widest_access() {
    let merge = |record: &PulledRecord, used: Option<&Credential>| {
        let credentials = PullCredentials::of_pull(used);
        PulledRecord::with(Some(record), "r.io/a:2", "sha256:id", Some(&credentials), time(5))
    };
    let one = pulled(Some(&secret("b", "h1")));
    assert_eq!(merge(&one, Some(&secret("b", "h1"))), None, "nothing new");
    let two = merge(&one, Some(&secret("a", "h2"))).unwrap();
    let names: Vec<_> = two.credential_mapping["r.io/a"]
        .kubernetes_secrets
        .iter()
        .map(|s| s.name.as_str())
        .collect();
    assert_eq!(names, ["a", "b"], "sorted by place");
    assert_eq!(two.last_updated_time, time(5));
    let changed = merge(&one, Some(&secret("b", "h9"))).unwrap();
    assert_eq!(changed.credential_mapping["r.io/a"].kubernetes_secrets[0].credential_hash, "h9");
    let with_account = merge(&one, Some(&account("sa"))).unwrap();
    assert_eq!(with_account.credential_mapping["r.io/a"].kubernetes_service_accounts.len(), 1);
    let all = merge(&two, None).unwrap();
    assert!(all.credential_mapping["r.io/a"].node_pods_accessible);
    assert!(all.credential_mapping["r.io/a"].kubernetes_secrets.is_empty());
    assert_eq!(merge(&all, Some(&secret("c", "h3"))), None, "access for all stays");
}

#[test]
fn the_policy_decides_who_must_prove_access() {
    let record = pulled(Some(&secret("s", "h")));
    let list = AllowList::parse(&["r.io/a".into(), "q.io/*".into()]).unwrap();
    let allow = VerificationPolicy::NeverVerifyAllowlistedImages(list);
    let preloaded = VerificationPolicy::NeverVerifyPreloadedImages;
    use AccessCheck::{CompareCredentials, MustAuthenticate, PolicyAllows};
    for (policy, image, record, intent, want) in [
        (&VerificationPolicy::NeverVerify, "r.io/a:1", Some(&record), false, PolicyAllows),
        (&preloaded, "r.io/a:1", None, false, PolicyAllows),
        (&preloaded, "r.io/a:1", None, true, MustAuthenticate),
        (&preloaded, "r.io/a:1", Some(&record), false, CompareCredentials),
        (&preloaded, "r.io/b:1", Some(&record), false, MustAuthenticate),
        (&allow, "r.io/a:1", Some(&record), false, PolicyAllows),
        (&allow, "q.io/x/y", None, false, PolicyAllows),
        (&allow, "r.io/ab", None, false, MustAuthenticate),
        (&VerificationPolicy::AlwaysVerify, "r.io/a", None, false, MustAuthenticate),
    ] {
        assert_eq!(check_access(policy, image, record, intent), want, "{policy:?} {image}");
    }
    let open = pulled(None);
    assert_eq!(
        check_access(&preloaded, "r.io/a", Some(&open), false),
        AccessCheck::RecordFound { remember: None }
    );
}

#[test]
fn known_credentials_open_the_image_again() {
    let record = pulled(Some(&secret("s", "h")));
    let check =
        |credentials: &[Credential]| check_credentials("r.io/a:2", Some(&record), credentials);
    let remembered = |c: AccessCheck| match c {
        AccessCheck::RecordFound { remember } => remember.map(|r| (r.name, r.credential_hash)),
        other => panic!("{other:?}"),
    };
    assert_eq!(remembered(check(&[secret("s", "h")])), None);
    assert_eq!(remembered(check(&[secret("t", "h")])), Some(("t".into(), "h".into())));
    assert_eq!(remembered(check(&[secret("s", "new")])), Some(("s".into(), "new".into())));
    assert_eq!(check(&[secret("t", "other")]), AccessCheck::MustAuthenticate);
    assert_eq!(check(&[account("sa")]), AccessCheck::MustAuthenticate);
    let by_account = pulled(Some(&account("sa")));
    assert_eq!(
        check_credentials("r.io/a", Some(&by_account), &[account("sa")]),
        AccessCheck::RecordFound { remember: None }
    );
}

#[test]
fn allow_list_patterns_are_checked() {
    for (pattern, want) in [
        (" a", "leading/trailing spaces are not allowed:  a"),
        ("", "the supplied pattern is too short: "),
        ("a*b", "not a valid wildcard pattern, only patterns ending with '/*' are allowed: a*b"),
        ("/*", "at least registry hostname is required"),
        ("a:1", "neither tag nor digest is accepted in an image reference: a:1"),
    ] {
        assert_eq!(AllowList::parse(&[pattern.into()]).unwrap_err(), want);
    }
}
