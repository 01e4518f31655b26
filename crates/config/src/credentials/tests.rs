//! Credential provider files: decoding, joining, faults.

use super::*;

const GOOD: &str = "apiVersion: kubelet.config.k8s.io/v1
kind: CredentialProviderConfig
providers:
- name: ecr
  apiVersion: credentialprovider.kubelet.k8s.io/v1
  matchImages: ['*.dkr.ecr.*.amazonaws.com', 'reg.io:5000/path']
  defaultCacheDuration: 12h
  args: [get]
  env: [{name: A, value: b}]
";

fn provider(lines: &str) -> CredentialProviderConfig {
    decode(format!("apiVersion: kubelet.config.k8s.io/v1\nkind: CredentialProviderConfig\nproviders: [{lines}]\n").as_bytes()).unwrap()
}

#[test]
fn a_good_file_has_no_faults() {
    let config = decode(GOOD.as_bytes()).unwrap();
    assert_eq!(faults(&config, true), Vec::<String>::new());
    let provider = &config.providers[0];
    assert_eq!(provider.name, "ecr");
    assert_eq!(provider.default_cache_duration, Some(GoDuration::from_mins(720)));
    assert_eq!(provider.env[0].value, "b");
}

#[test]
fn decoding_is_strict() {
    let unknown = format!("{GOOD}  foo: 1\n");
    assert_eq!(
        decode(unknown.as_bytes()).unwrap_err(),
        "strict decoding error: unknown field \"providers[0].foo\""
    );
    let other = GOOD.replace("/v1\nkind", "/v2\nkind");
    assert_eq!(
        decode(other.as_bytes()).unwrap_err(),
        "no kind \"CredentialProviderConfig\" is registered for version \
         \"kubelet.config.k8s.io/v2\" in scheme \"pkg/runtime/scheme.go:111\""
    );
    assert!(decode(b"kind: x\n").unwrap_err().starts_with("Object 'apiVersion' is missing in"));
    assert!(decode(b"a: x\n").unwrap_err().starts_with("Object 'Kind' is missing in"));
}

#[test]
fn other_kinds_are_told_by_name_once_they_could_be_read() {
    let read = |version: &str, kind: &str, rest: &str| {
        let text = format!("apiVersion: kubelet.config.k8s.io/{version}\nkind: {kind}\n{rest}");
        decode(text.as_bytes()).unwrap_err()
    };
    for (version, kind) in [
        ("v1beta1", "KubeletConfiguration"),
        ("v1beta1", "ImagePullIntent"),
        ("v1alpha1", "ImagePulledRecord"),
    ] {
        assert_eq!(read(version, kind, ""), format!("failed to decode {kind:?} (wrong Kind)"));
    }
    assert!(read("v1", "ImagePullIntent", "").starts_with("no kind \"ImagePullIntent\""));
    assert_eq!(
        read("v1beta1", "KubeletConfiguration", "providers: []\n"),
        "strict decoding error: unknown field \"providers\""
    );
    assert_eq!(
        read("v1beta1", "KubeletConfiguration", "maxPods: x\n"),
        "json: cannot unmarshal string into Go struct field KubeletConfiguration.maxPods of type \
         int32"
    );
}

#[test]
fn token_attributes_exist_in_v1_only() {
    let body = format!(
        "{GOOD}  tokenAttributes: {{serviceAccountTokenAudience: a, cacheType: Token, requireServiceAccount: true}}\n"
    );
    assert!(faults(&decode(body.as_bytes()).unwrap(), true).is_empty());
    for version in ["v1beta1", "v1alpha1"] {
        let older = body.replace("k8s.io/v1\nkind", &format!("k8s.io/{version}\nkind"));
        assert_eq!(
            decode(older.as_bytes()).unwrap_err(),
            "strict decoding error: unknown field \"providers[0].tokenAttributes\""
        );
        decode(GOOD.replace("k8s.io/v1\nkind", &format!("k8s.io/{version}\nkind")).as_bytes())
            .unwrap();
    }
}

#[test]
fn files_are_joined_and_names_are_unique() {
    let one = decode(GOOD.as_bytes()).unwrap();
    assert_eq!(join([one.clone()]).unwrap().providers.len(), 1);
    assert_eq!(
        join([one.clone(), one]).unwrap_err(),
        "duplicate provider name \"ecr\" found in configuration file(s)"
    );
}

#[test]
fn every_fault_is_told_in_upstreams_words() {
    assert_eq!(
        faults(&CredentialProviderConfig::default(), true),
        ["providers: Required value: at least 1 item in plugins is required"]
    );
    let bad = provider(
        "{name: 'a /b'}, {name: .}, {name: .., apiVersion: x, matchImages: ['a b'], defaultCacheDuration: -1s}",
    );
    assert_eq!(
        faults(&bad, true),
        [
            "providers.name: Invalid value: \"a /b\": provider name cannot contain '/'",
            "providers.name: Invalid value: \"a /b\": provider name cannot contain spaces",
            "providers.apiVersion: Required value",
            "providers.matchImages: Required value: at least 1 item in matchImages is required",
            "providers.defaultCacheDuration: Required value",
            "providers.name: Invalid value: \".\": provider name cannot be '.'",
            "providers.apiVersion: Required value",
            "providers.matchImages: Required value: at least 1 item in matchImages is required",
            "providers.defaultCacheDuration: Required value",
            "providers.name: Invalid value: \"..\": provider name cannot be '..'",
            "providers.apiVersion: Unsupported value: \"x\": supported values: \
             \"credentialprovider.kubelet.k8s.io/v1\", \
             \"credentialprovider.kubelet.k8s.io/v1alpha1\", \
             \"credentialprovider.kubelet.k8s.io/v1beta1\"",
            "providers.matchImages: Invalid value: \"a b\": match image is invalid: parse \
             \"https://a b\": invalid character \" \" in host name",
            "providers.defaultCacheDuration: Invalid value: \"-1s\": must be greater than or equal to 0",
        ]
    );
}

#[test]
fn token_attributes_are_checked() {
    let head = "name: a, apiVersion: credentialprovider.kubelet.k8s.io/v1beta1, matchImages: [a], defaultCacheDuration: 1s";
    let empty = provider(&format!("{{{head}, tokenAttributes: {{}}}}"));
    assert_eq!(
        faults(&empty, false),
        [
            "providers.tokenAttributes: Forbidden: tokenAttributes is not supported when \
             KubeletServiceAccountTokenForCredentialProviders feature gate is disabled",
            "providers.tokenAttributes.serviceAccountTokenAudience: Required value",
            "providers.tokenAttributes.requireServiceAccount: Required value",
            "providers.tokenAttributes: Forbidden: tokenAttributes is only supported for \
             credentialprovider.kubelet.k8s.io/v1 API version",
            "providers.tokenAttributes.cacheType: Required value: cacheType is required to be set \
             when tokenAttributes is specified. Supported values are: ServiceAccount, Token",
        ]
    );
    let head = head.replace("v1beta1", "v1");
    let keys = provider(&format!(
        "{{{head}, tokenAttributes: {{serviceAccountTokenAudience: a, cacheType: X, requireServiceAccount: false, requiredServiceAccountAnnotationKeys: [a, a, 'b c'], optionalServiceAccountAnnotationKeys: [a]}}}}"
    ));
    let told = faults(&keys, true);
    assert_eq!(
        told[0],
        "providers.tokenAttributes.requiredServiceAccountAnnotationKeys: Forbidden: requireServiceAccount cannot be false when requiredServiceAccountAnnotationKeys is set"
    );
    assert_eq!(
        told[1],
        "providers.tokenAttributes.requiredServiceAccountAnnotationKeys: Duplicate value: \"a\""
    );
    assert!(told[2].starts_with("providers.tokenAttributes.requiredServiceAccountAnnotationKeys: Invalid value: \"b c\": name part must consist"));
    assert_eq!(
        told[3],
        "providers.tokenAttributes: Invalid value: [\"a\"]: annotation keys cannot be both required and optional"
    );
    assert_eq!(
        told[4],
        "providers.tokenAttributes.cacheType: Unsupported value: \"X\": supported values: \"ServiceAccount\", \"Token\""
    );
}
