//! Impersonation: `as` and the related fields of a kubeconfig, as headers (client-go:
//! `impersonatingRoundTripper`).

use super::ConnectionError;
use super::kubeconfig::ActAs;
use http::header::{HeaderMap, HeaderName, HeaderValue};

/// The headers that are added to every request.
pub(crate) fn headers(act_as: &ActAs) -> Result<HeaderMap, ConnectionError> {
    let mut headers = HeaderMap::new();
    let mut add = |name: &str, value: &str, what: &str| {
        let bad = || ConnectionError::ActAs(what.to_owned());
        let name = HeaderName::try_from(name).map_err(|_| bad())?;
        let value = HeaderValue::from_bytes(value.as_bytes()).map_err(|_| bad())?;
        headers.append(name, value);
        Ok::<_, ConnectionError>(())
    };
    add("impersonate-user", &act_as.user, "as")?;
    if !act_as.uid.is_empty() {
        add("impersonate-uid", &act_as.uid, "as-uid")?;
    }
    for group in &act_as.groups {
        add("impersonate-group", group, "as-groups")?;
    }
    for (key, values) in &act_as.extra {
        let name = format!("impersonate-extra-{}", escaped(key));
        for value in values {
            add(&name, value, "as-user-extra")?;
        }
    }
    Ok(headers)
}

/// Percent-encodes the characters that are invalid in a header name, and the percent sign.
fn escaped(key: &str) -> String {
    let mut text = String::new();
    for byte in key.bytes() {
        match byte {
            b'!' | b'#' | b'$' | b'&' | b'\'' | b'*' | b'+' | b'-' | b'.' | b'^' | b'_' | b'`'
            | b'|' | b'~' => text.push(char::from(byte)),
            byte if byte.is_ascii_alphanumeric() => text.push(char::from(byte)),
            byte => text.push_str(&format!("%{byte:02X}")),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn somebody() -> ActAs {
        ActAs {
            user: "jané".into(),
            uid: String::new(),
            groups: Vec::new(),
            extra: std::collections::BTreeMap::new(),
        }
    }

    #[test]
    fn only_what_is_given_is_said() {
        let headers = headers(&somebody()).unwrap();
        assert_eq!(headers.len(), 1);
        assert_eq!(headers["impersonate-user"].as_bytes(), "jané".as_bytes());
    }

    #[test]
    fn names_that_no_header_may_have_are_escaped() {
        // As client-go writes them; header names are case-insensitive otherwise.
        assert_eq!(escaped("example.com/a b%c=d"), "example.com%2Fa%20b%25c%3Dd");
        assert_eq!(escaped("a-_.~!é"), "a-_.~!%C3%A9");
    }

    #[test]
    fn what_cannot_be_sent_is_named() {
        let error = headers(&ActAs { uid: "a\nb".into(), ..somebody() }).unwrap_err();
        let text = "as-uid of the kubeconfig's user cannot be sent: it has a control character";
        assert_eq!(error.to_string(), text);
    }
}
