//! A runtime's version as the node shows it (`kuberuntime: newRuntimeVersion`): a semantic version in
//! its plain form, else the leading numbers; nothing if there are none.

/// The text to show; `None` for a text that is not a version.
pub(super) fn shown(text: &str) -> Option<String> {
    let text = text.trim_start();
    let text = text.strip_prefix('v').unwrap_or(text);
    let digits = |c: char| c.is_ascii_digit() || c == '.';
    let (mut numbers, mut extra) = text.split_at(text.find(|c| !digits(c)).unwrap_or(text.len()));
    // A dot counts only between two numbers.
    if let Some(end) =
        numbers.find("..").or_else(|| numbers.ends_with('.').then(|| numbers.len() - 1))
    {
        (numbers, extra) = text.split_at(end);
    }
    semantic(numbers, extra).or_else(|| leading(numbers))
}

fn semantic(numbers: &str, extra: &str) -> Option<String> {
    let components: Vec<&str> = numbers.split('.').collect();
    let plain = |c: &&str| is_plain(c);
    if components.len() != 3 || !components.iter().all(plain) {
        return None;
    }
    let extra = extra.trim_end();
    let (before, metadata) = match extra.split_once('+') {
        Some((before, metadata)) => (before, Some(metadata)),
        None => (extra, None),
    };
    let pre_release = match before {
        "" => None,
        text => Some(text.strip_prefix('-')?),
    };
    let identifiers = |text: &str| {
        let of_letters = |part: &str| {
            !part.is_empty() && part.chars().all(|c| c.is_ascii_alphanumeric() || c == '-')
        };
        text.split('.').all(of_letters)
    };
    let numbered = |part: &str| part.parse::<u64>().is_err() || is_plain(part);
    let pre_release_ok =
        pre_release.is_none_or(|text| identifiers(text) && text.split('.').all(numbered));
    (pre_release_ok && metadata.is_none_or(identifiers)).then(|| format!("{numbers}{extra}"))
}

fn leading(numbers: &str) -> Option<String> {
    let components: Vec<&str> = numbers.split('.').collect();
    let first_ok = components.first().is_some_and(|first| is_plain(first));
    let parsed: Option<Vec<String>> =
        components.iter().map(|c| c.parse::<u64>().ok().map(|n| n.to_string())).collect();
    parsed.filter(|all| all.len() > 1 && first_ok).map(|all| all.join("."))
}

/// A number without leading zeroes.
fn is_plain(number: &str) -> bool {
    number.parse::<u64>().is_ok() && (number == "0" || !number.starts_with('0'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_shown_as_upstream_prints_them() {
        for (given, expected) in [
            ("v2.3.4", Some("2.3.4")),
            ("1.6.20~ds1", Some("1.6.20")),
            ("1.30.0-rc.1+git5", Some("1.30.0-rc.1+git5")),
            ("1.30.0-rc.01", Some("1.30.0")),
            ("1.02", Some("1.2")),
            ("1.2.", Some("1.2")),
            ("1..2", None),
            ("0.1.0", Some("0.1.0")),
            ("unknown", None),
            ("7", None),
        ] {
            assert_eq!(shown(given).as_deref(), expected, "{given}");
        }
    }
}
