//! The plugin protocol.

use super::*;

fn provider(version: &str) -> ProviderConfig {
    ProviderConfig {
        name: "p".into(),
        match_images: vec!["*.r.io".into()],
        default_cache_duration: Some("10m".parse().unwrap()),
        api_version: format!("{GROUP}/{version}"),
        args: vec![],
        env: vec![],
        token_attributes: None,
    }
}

fn with_token(cache_type: &str) -> ProviderConfig {
    ProviderConfig {
        token_attributes: Some(TokenAttributes {
            service_account_token_audience: "aud".into(),
            cache_type: cache_type.into(),
            require_service_account: Some(true),
            required_service_account_annotation_keys: vec!["need".into()],
            optional_service_account_annotation_keys: vec!["may".into()],
        }),
        ..provider("v1")
    }
}

fn account() -> AccountFacts {
    AccountFacts {
        namespace: "ns".into(),
        name: "sa".into(),
        uid: "u".into(),
        annotations: [("need".into(), "1".into())].into(),
        token: "tok".into(),
    }
}

fn response(key: &str, duration: &str, password: &str) -> Vec<u8> {
    format!(
        "{{\"kind\":\"CredentialProviderResponse\",\"apiVersion\":\"{V1}\",\
         \"cacheKeyType\":\"{key}\",{duration}\
         \"auth\":{{\"*.r.io\":{{\"username\":\"u\",\"password\":\"{password}\"}}}}}}"
    )
    .into_bytes()
}

#[test]
fn requests_carry_the_token_only_in_v1() {
    let text = |p: &ProviderConfig| {
        String::from_utf8(request_json(p, "r.io/a", Some(&account())).unwrap()).unwrap()
    };
    assert_eq!(
        text(&with_token("Token")),
        format!(
            "{{\"kind\":\"CredentialProviderRequest\",\"apiVersion\":\"{V1}\",\
             \"image\":\"r.io/a\",\"serviceAccountToken\":\"tok\",\
             \"serviceAccountAnnotations\":{{\"need\":\"1\"}}}}\n"
        )
    );
    assert!(!text(&provider("v1beta1")).contains("tok"));
}

#[test]
fn answers_are_kept_as_they_say() {
    let p = provider("v1");
    let read = |key: &str, duration: &str| {
        read_response(&p, "a.r.io/x", None, &response(key, duration, "s")).unwrap().keep
    };
    let [image, registry, global] = cache_keys(&p, "a.r.io/x", None);
    assert_eq!(read("Image", ""), Some((image, Duration::from_secs(600))));
    assert_eq!(
        read("Registry", "\"cacheDuration\":\"5s\","),
        Some((registry, Duration::from_secs(5)))
    );
    assert_eq!(read("Global", "\"cacheDuration\":\"1h\",").unwrap().0, global);
    assert_eq!(read("Image", "\"cacheDuration\":\"0s\","), None);
    let never = ProviderConfig { default_cache_duration: Some("0s".parse().unwrap()), ..p.clone() };
    let got = read_response(&never, "a.r.io/x", None, &response("Image", "", "s")).unwrap();
    assert_eq!(got.keep, None);
    assert_eq!(got.config["*.r.io"].username, "u");
}

#[test]
fn bad_answers_are_not_used() {
    let p = provider("v1");
    let read = |bytes: &[u8]| read_response(&p, "r.io/a", None, bytes).unwrap_err();
    assert_eq!(read(b"nonsense"), ResponseError::Malformed);
    assert_eq!(read(&response("Odd", "", "s")), ResponseError::Malformed);
    assert_eq!(read(&response("Image", "\"extra\":1,", "s")), ResponseError::Malformed);
    let beta = provider("v1beta1");
    assert!(matches!(
        read_response(&beta, "r.io/a", None, &response("Image", "", "s")),
        Err(ResponseError::Version { .. })
    ));
    let echo = response("Image", "", "tok");
    let answer = |kind: &str| read_response(&with_token(kind), "r.io/a", Some(&account()), &echo);
    assert_eq!(answer("ServiceAccount"), Err(ResponseError::TokenAsPassword));
    assert!(answer("Token").is_ok());
}

#[test]
fn cache_keys_tell_accounts_and_tokens_apart() {
    let (by_account, by_token) = (with_token("ServiceAccount"), with_token("Token"));
    let mut other = account();
    other.token = "tok2".into();
    let key = |p: &ProviderConfig, a: &AccountFacts| cache_keys(p, "r.io/a", Some(a))[0].clone();
    assert_eq!(key(&by_account, &account()), key(&by_account, &other));
    assert_ne!(key(&by_token, &account()), key(&by_token, &other));
    other.name = "sb".into();
    assert_ne!(key(&by_account, &account()), key(&by_account, &other));
    assert_ne!(flight_key("r.io/a", Some(&account())), flight_key("r.io/a", None));
}

#[test]
fn annotations_are_required_or_passed_when_present() {
    let attributes = with_token("Token").token_attributes.unwrap();
    let of = |pairs: &[(&str, &str)]| {
        let all = pairs.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect();
        attributes.annotations(Some(&all)).map(|m| m.len())
    };
    assert_eq!(of(&[("need", "1"), ("other", "2")]), Some(1));
    assert_eq!(of(&[("need", "1"), ("may", "2")]), Some(2));
    assert_eq!(of(&[("may", "2")]), None);
}
