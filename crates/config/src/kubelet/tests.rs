//! The configuration's schema against the parity table.

use super::*;
use crate::credentials::CredentialProviderConfig;
use crate::gates::Gates;
use serde_json::json;
use std::collections::BTreeMap;

const TABLE: &str =
    include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/parity/config.tsv"));
const CONFIGZ: &str =
    include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/golden/server/configz.json"));

fn rows(kind: &str) -> Vec<Vec<&'static str>> {
    TABLE
        .lines()
        .skip(1)
        .map(|line| line.split('\t').collect::<Vec<_>>())
        .filter(|columns| columns[1] == kind)
        .collect()
}

fn defaulted() -> KubeletConfiguration {
    let mut kubelet = KubeletConfiguration::default();
    kubelet.set_defaults(&Gates::default());
    kubelet.settle();
    kubelet
}

fn check_schema(kind: &str, leaves: Vec<Leaf>) {
    let rows = rows(kind);
    let by_path: BTreeMap<&str, &Leaf> = leaves.iter().map(|l| (l.path.as_str(), l)).collect();
    for row in &rows {
        let leaf = by_path.get(row[2]).unwrap_or_else(|| panic!("{} is missing", row[2]));
        assert_eq!(leaf.go_type, row[4], "{}", row[2]);
        assert_eq!(leaf.omitempty, row[6] == "yes", "{}", row[2]);
    }
    let known: Vec<&str> = rows.iter().map(|row| row[2]).collect();
    let extra: Vec<&&str> = by_path.keys().filter(|path| !known.contains(path)).collect();
    assert!(extra.is_empty(), "{extra:?}");
}

#[test]
fn every_field_of_the_parity_table_is_here_and_no_other() {
    check_schema("KubeletConfiguration", KubeletConfiguration::leaves());
}

#[test]
fn every_field_of_the_credential_provider_table_is_here_and_no_other() {
    check_schema("CredentialProviderConfig", CredentialProviderConfig::leaves());
}

#[test]
fn every_default_is_that_of_the_parity_table() {
    let json = serde_json::to_value(defaulted()).unwrap();
    let mut checked = 0;
    for row in rows("KubeletConfiguration").iter().filter(|row| !row[2].contains("[]")) {
        let value = json.pointer(&format!("/{}", row[2].replace('.', "/")));
        let default = row[7].split(" (").next().unwrap_or_default();
        checked += 1;
        if row[2] == "evictionHard" {
            assert_eq!(value, None, "filled only for a file");
            continue;
        }
        match (default, value) {
            ("" | "nil", None) => {}
            // Empty values that omitempty leaves out.
            ("false" | "0", None) => assert!(!row[4].starts_with('*'), "{}", row[2]),
            (default, Some(Value::String(text))) => {
                assert_eq!(text, default, "{}", row[2]);
            }
            (default, Some(value)) => assert_eq!(value.to_string(), default, "{}", row[2]),
            (default, None) => panic!("{}: expected {default}", row[2]),
        }
    }
    assert!(checked > 125, "{checked}");
}

#[test]
fn an_explicit_zero_means_the_default_unless_it_is_a_pointer() {
    let leaves = KubeletConfiguration::leaves();
    for row in rows("KubeletConfiguration").iter().filter(|row| !row[2].contains("[]")) {
        let leaf = leaves.iter().find(|leaf| leaf.path == row[2]).unwrap();
        let zero = match row[5] {
            "bool" => json!(false),
            "integer" => json!(0),
            "number" => json!(0.0),
            "string" => json!(""),
            "duration-string" | "duration-string or integer ns" => json!("0s"),
            _ => continue,
        };
        let mut document = json!({});
        let mut at = &mut document;
        for key in row[2].split('.') {
            at = &mut at[key];
        }
        *at = zero.clone();
        let (mut kubelet, decoder) = KubeletConfiguration::read(&document, Reading::Yaml);
        assert_eq!(decoder.error(), None, "{}", row[2]);
        assert!(decoder.unknown.is_empty(), "{:?}", decoder.unknown);
        kubelet.set_defaults(&Gates::default());
        kubelet.settle();
        let pointer = format!("/{}", row[2].replace('.', "/"));
        let json = serde_json::to_value(&kubelet).unwrap();
        let fallback = serde_json::to_value(defaulted()).unwrap();
        if leaf.zero_means_unset {
            assert_eq!(json.pointer(&pointer), fallback.pointer(&pointer), "{}", row[2]);
        } else {
            assert_eq!(json.pointer(&pointer), Some(&zero), "{}", row[2]);
        }
    }
}

#[test]
fn every_field_refuses_a_wrong_type_in_gos_words() {
    for row in rows("KubeletConfiguration").iter().filter(|row| !row[2].contains("[]")) {
        let mut document = json!({});
        let mut at = &mut document;
        for key in row[2].split('.') {
            at = &mut at[key];
        }
        *at = json!(["x"]);
        let (_, decoder) = KubeletConfiguration::read(&document, Reading::Merged);
        if row[5].starts_with("array<string>") {
            assert_eq!(decoder.error(), None, "{}", row[2]);
            continue;
        }
        let error = decoder.error().cloned().unwrap_or_else(|| panic!("{} took a list", row[2]));
        let known = error.starts_with("json: cannot unmarshal array into Go struct field ")
            || error.starts_with("json: cannot unmarshal string into Go struct field ")
            || error.starts_with("invalid duration ")
            || error.starts_with("quantities must match");
        assert!(known, "{}: {error}", row[2]);
    }
}

#[test]
fn type_errors_name_struct_path_and_type() {
    let cases = [
        (
            json!({"port": "x"}),
            "json: cannot unmarshal string into Go struct field KubeletConfiguration.port of type int32",
        ),
        (
            json!({"port": 1.5}),
            "json: cannot unmarshal number 1.5 into Go struct field KubeletConfiguration.port of type int32",
        ),
        (
            json!({"authentication": {"webhook": {"enabled": 1}}}),
            "json: cannot unmarshal number into Go struct field KubeletWebhookAuthentication.authentication.webhook.enabled of type bool",
        ),
        (
            json!({"authorization": {"mode": 1}}),
            "json: cannot unmarshal number into Go struct field KubeletAuthorization.authorization.mode of type v1beta1.KubeletAuthorizationMode",
        ),
        (json!({"syncFrequency": "5x"}), "time: unknown unit \"x\" in duration \"5x\""),
        (
            json!({"clusterDNS": "x"}),
            "json: cannot unmarshal string into Go struct field KubeletConfiguration.clusterDNS of type []string",
        ),
    ];
    for (document, text) in cases {
        let (_, decoder) = KubeletConfiguration::read(&document, Reading::Yaml);
        assert_eq!(decoder.error().map(String::as_str), Some(text));
    }
}

#[test]
fn the_configz_document_survives_a_round_trip() {
    let golden: Value = serde_json::from_str(CONFIGZ).unwrap();
    let document = &golden["kubeletconfig"];
    let (kubelet, decoder) = KubeletConfiguration::read(document, Reading::Json);
    assert_eq!(decoder.error(), None);
    assert!(decoder.unknown.is_empty(), "{:?}", decoder.unknown);
    assert_eq!(&kubelet.to_json(), document);
}

#[test]
fn unknown_fields_are_told_with_their_path() {
    let document = json!({
        "Port": 1, "authentication": {"x": 1}, "registerWithTaints": [{"key": "a", "foo": 1}],
    });
    let (kubelet, decoder) = KubeletConfiguration::read(&document, Reading::Yaml);
    assert_eq!(decoder.unknown, ["Port", "authentication.x", "registerWithTaints[0].foo"]);
    assert_eq!(kubelet.port, 0);
    let (kubelet, decoder) = KubeletConfiguration::read(&document, Reading::Merged);
    assert_eq!(decoder.unknown.len(), 2);
    assert_eq!(kubelet.port, 1);
}

#[test]
fn headers_are_masked_for_the_log() {
    let mut kubelet = defaulted();
    kubelet.static_pod_url_header.insert("Authorization".to_owned(), vec!["secret".to_owned()]);
    assert_eq!(kubelet.masked().static_pod_url_header["Authorization"], ["<masked>"]);
}
