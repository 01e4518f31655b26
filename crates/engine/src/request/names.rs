//! DNS name rules and their texts, as they appear in sandbox errors.
//!
//! Upstream: `k8s.io/apimachinery/pkg/util/validation`.

const LABEL_MAX: usize = 63;
const SUBDOMAIN_MAX: usize = 253;

/// Faults of an RFC 1123 label; empty when it is one.
pub(super) fn label_faults(text: &str) -> Vec<String> {
    let mut faults = Vec::new();
    if text.len() > LABEL_MAX {
        faults.push(format!("must be no more than {LABEL_MAX} characters"));
    }
    if !is_label(text) {
        faults.push(
            "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', \
             and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', \
             regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
                .into(),
        );
    }
    faults
}

/// Faults of an RFC 1123 subdomain; empty when it is one.
pub(super) fn subdomain_faults(text: &str) -> Vec<String> {
    let mut faults = Vec::new();
    if text.len() > SUBDOMAIN_MAX {
        faults.push(format!("must be no more than {SUBDOMAIN_MAX} characters"));
    }
    if !text.split('.').all(is_label) {
        faults.push(
            "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, \
             '-' or '.', and must start and end with an alphanumeric character (e.g. \
             'example.com', regex used for validation is \
             '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
                .into(),
        );
    }
    faults
}

/// Faults of a label or annotation key (`prefix/name`); empty when it is one.
pub(crate) fn qualified_name_faults(text: &str) -> Vec<String> {
    let mut faults = Vec::new();
    let mut parts = text.split('/');
    let (first, second) = (parts.next().unwrap_or_default(), parts.next());
    let name = match (second, parts.next()) {
        (None, _) => first,
        (Some(name), None) => {
            if first.is_empty() {
                faults.push("prefix part must be non-empty".into());
            } else {
                faults.extend(
                    subdomain_faults(first).into_iter().map(|f| format!("prefix part {f}")),
                );
            }
            name
        }
        _ => {
            return vec![
                "a qualified name must consist of alphanumeric characters, '-', '_' or '.', and \
                 must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  \
                 or '123-abc', regex used for validation is \
                 '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]') with an optional DNS subdomain prefix \
                 and '/' (e.g. 'example.com/MyName')"
                    .into(),
            ];
        }
    };
    if name.is_empty() {
        faults.push("name part must be non-empty".into());
    } else if name.len() > LABEL_MAX {
        faults.push(format!("name part must be no more than {LABEL_MAX} characters"));
    }
    let bytes = name.as_bytes();
    let ends = |b: Option<&u8>| b.is_some_and(u8::is_ascii_alphanumeric);
    let inner = bytes.iter().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(b));
    if !(ends(bytes.first()) && ends(bytes.last()) && inner) {
        faults.push(
            "name part must consist of alphanumeric characters, '-', '_' or '.', and must start \
             and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', \
             regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
                .into(),
        );
    }
    faults
}

fn is_label(text: &str) -> bool {
    let bytes = text.as_bytes();
    let alnum = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    bytes.first().is_some_and(alnum)
        && bytes.last().is_some_and(alnum)
        && bytes.iter().all(|b| alnum(b) || *b == b'-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_and_subdomains_are_told_apart() {
        assert!(label_faults("web-0").is_empty());
        assert!(!label_faults("web.0").is_empty());
        assert!(subdomain_faults("web.0.example").is_empty());
        assert!(!subdomain_faults("web..example").is_empty());
        assert!(!label_faults("Web").is_empty());
        assert_eq!(label_faults(&"a".repeat(64)), ["must be no more than 63 characters"]);
    }

    #[test]
    fn annotation_keys_may_have_a_prefix() {
        assert!(qualified_name_faults("example.com/My_key.1").is_empty());
        assert!(qualified_name_faults("key").is_empty());
        assert!(!qualified_name_faults("").is_empty());
        assert!(!qualified_name_faults("a/b/c").is_empty());
        assert!(!qualified_name_faults("-a").is_empty());
    }
}
