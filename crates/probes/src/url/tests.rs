//! URLs, compared with what Go makes of them.

use super::*;
use serde_json::Value;

/// What Go 1.26 makes of texts, well-formed and bent, and of each as a reference at some URL.
fn cases() -> Vec<Value> {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/golden/units/urls.jsonl");
    let text = String::from_utf8(sys::fs::read(file).unwrap()).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn takes_urls_apart_and_puts_them_together_as_go_does() {
    for case in cases() {
        let word = |key: &str| case[key].as_str().unwrap_or_default().to_owned();
        match Url::parse(&word("text")) {
            Err(error) if error.contains("ParseAddr") => {
                assert!(word("error").contains("ParseAddr"), "{case}: {error}");
            }
            Err(error) => assert_eq!(error, word("error"), "{case}"),
            Ok(url) => {
                assert_eq!(case.get("error"), None, "{url:?}");
                assert_eq!(url.to_string(), word("url"), "{case}");
                assert_eq!(url.request_uri(), word("uri"), "{case}");
                assert_eq!(url.hostname(), word("hostname"), "{case}");
                assert_eq!(url.split_host().1, word("port"), "{case}");
                let resolved = Url::parse(&word("base")).unwrap().resolve(&url);
                assert_eq!(resolved.to_string(), word("resolved"), "{case}");
            }
        }
    }
}

#[test]
fn a_password_is_shown_to_nobody() {
    let url = Url::parse("http://u%40:p%3a@h:80/x?y#z").unwrap();
    assert_eq!(url.redacted(), "http://u@:***@h:80/x?y#z");
    assert_eq!(url.as_referer(), "http://h:80/x?y#z");
    assert_eq!(url.credentials().as_deref(), Some("u@:p:"));
    assert_eq!(Url::parse("http://u@h/").unwrap().redacted(), "http://u@h/");
}
