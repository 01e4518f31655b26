//! Label keys and values, with the API's error texts.

const LABEL_KEY: &str = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]";
const LABEL_KEY_RULE: &str = "must consist of alphanumeric characters, '-', '_' or '.', and must \
                              start and end with an alphanumeric character";
const SUBDOMAIN: &str = "[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*";

/// What is wrong with a label key (`prefix/name`).
pub(crate) fn qualified_name_faults(key: &str) -> Vec<String> {
    let mut faults = Vec::new();
    let parts: Vec<&str> = key.split('/').collect();
    let key_rule = || {
        format!(
            "{LABEL_KEY_RULE} (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for \
             validation is '{LABEL_KEY}')"
        )
    };
    let name = match parts.as_slice() {
        [name] => *name,
        [prefix, name] => {
            if prefix.is_empty() {
                faults.push("prefix part must be non-empty".to_owned());
            } else {
                faults.extend(subdomain_faults(prefix).iter().map(|f| format!("prefix part {f}")));
            }
            *name
        }
        _ => {
            return vec![format!(
                "a valid label key {} with an optional DNS subdomain prefix and '/' (e.g. \
                 'example.com/MyName')",
                key_rule()
            )];
        }
    };
    if name.is_empty() {
        faults.push("name part must be non-empty".to_owned());
    } else if name.len() > 63 {
        faults.push("name part must be no more than 63 bytes".to_owned());
    }
    if !is_label_word(name) {
        faults.push(format!("name part {}", key_rule()));
    }
    faults
}

/// What is wrong with a label value.
pub(crate) fn label_value_faults(value: &str) -> Vec<String> {
    let mut faults = Vec::new();
    if value.len() > 63 {
        faults.push("must be no more than 63 bytes".to_owned());
    }
    if !value.is_empty() && !is_label_word(value) {
        faults.push(format!(
            "a valid label must be an empty string or consist of alphanumeric characters, '-', \
             '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  \
             or 'my_value',  or '12345', regex used for validation is '({LABEL_KEY})?')"
        ));
    }
    faults
}

fn subdomain_faults(text: &str) -> Vec<String> {
    let mut faults = Vec::new();
    if text.len() > 253 {
        faults.push("must be no more than 253 bytes".to_owned());
    }
    let label_ok = |label: &str| {
        let lower = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
        let edges =
            label.bytes().next().is_some_and(lower) && label.bytes().last().is_some_and(lower);
        edges && label.bytes().all(|b| lower(b) || b == b'-')
    };
    if !text.split('.').all(label_ok) {
        faults.push(format!(
            "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, \
             '-' or '.', and must start and end with an alphanumeric character (e.g. \
             'example.com', regex used for validation is '{SUBDOMAIN}')"
        ));
    }
    faults
}

fn is_label_word(text: &str) -> bool {
    let edge = |b: u8| b.is_ascii_alphanumeric();
    text.bytes().next().is_some_and(edge)
        && text.bytes().last().is_some_and(edge)
        && text.bytes().all(|b| edge(b) || b"-_.".contains(&b))
}

/// Whether a resource is huge pages of some size.
pub(crate) fn is_huge_page_name(name: &str) -> bool {
    name.starts_with("hugepages-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn good_names_have_no_faults() {
        for good in ["a", "example.com/MyName", "my.name", "123-abc"] {
            assert!(qualified_name_faults(good).is_empty(), "{good}");
        }
        for good in ["", "MyValue", "my_value", "12345"] {
            assert!(label_value_faults(good).is_empty(), "{good}");
        }
    }

    #[test]
    fn bad_names_are_told_in_the_apis_words() {
        assert_eq!(qualified_name_faults("")[0], "name part must be non-empty");
        assert_eq!(
            qualified_name_faults("a b"),
            ["name part must consist of alphanumeric characters, '-', '_' or '.', and must start \
              and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or \
              '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"]
        );
        assert_eq!(qualified_name_faults("/x")[0], "prefix part must be non-empty");
        assert!(qualified_name_faults("a/b/c")[0].starts_with("a valid label key must consist"));
        assert_eq!(label_value_faults(&"x".repeat(64))[0], "must be no more than 63 bytes");
    }
}
