//! What `--version` may be given and prints.

use units::release::{ARCHITECTURE, KUBERNETES_VERSION, REPORTED_VERSION};
use units::strconv::{parse_uint, quote};

/// Whether a version given by `--version=v…` may be reported: it must be a semantic one, and its
/// release ours (apimachinery: `version.ParseSemantic`).
pub(crate) fn check_reported(version: &str) -> Result<(), String> {
    if version == KUBERNETES_VERSION {
        return Ok(());
    }
    let shown = quote(version);
    let text = version.strip_prefix('v').unwrap_or(version);
    let (numbers, extra) = text.split_at(numbers_end(text));
    if numbers.is_empty() || extra.contains('\n') {
        return Err(format!("could not parse {shown} as version"));
    }
    if numbers.split('.').count() != 3 {
        return Err(format!("illegal version string {shown}"));
    }
    let prefixed = |part: &str| {
        let part = quote(part);
        Err(format!("illegal zero-prefixed version component {part} in {shown}"))
    };
    for number in numbers.split('.') {
        if is_prefixed(number) {
            return prefixed(number);
        }
        if let Err(error) = parse_uint(number, 10, 64) {
            let number = quote(number);
            return Err(format!(
                "illegal non-numeric version component {number} in {shown}: {error}"
            ));
        }
    }
    let Some(before) = pre_release(extra) else {
        return Err(format!("could not parse pre-release/metadata ({extra}) in version {shown}"));
    };
    let is_number = |part: &&str| parse_uint(part, 10, 64).is_ok();
    if let Some(part) = before.split('.').filter(is_number).find(|part| is_prefixed(part)) {
        return prefixed(part);
    }
    if Some(numbers) != KUBERNETES_VERSION.strip_prefix('v') {
        let ours = quote(KUBERNETES_VERSION);
        return Err(format!(
            "version {shown} must match major/minor/patch of default version {ours}"
        ));
    }
    Ok(())
}

/// Where the numbers with dots between them end.
fn numbers_end(text: &str) -> usize {
    let digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
    let mut end = digits(text);
    while end > 0 && text[end..].starts_with('.') {
        match digits(&text[end + 1..]) {
            0 => break,
            more => end += 1 + more,
        }
    }
    end
}

fn is_prefixed(number: &str) -> bool {
    number.starts_with('0') && number != "0"
}

/// What stands between `-` and `+` behind a version; `None` if what follows is nothing of the kind.
fn pre_release(extra: &str) -> Option<&str> {
    let extra = extra.trim_end_matches(['\t', '\n', '\u{c}', '\r', ' ']);
    let (before, build) = match extra.split_once('+') {
        Some((before, build)) => (before, Some(build)),
        None => (extra, None),
    };
    let word = |word: &str| {
        !word.is_empty() && word.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
    };
    let words = |text: &str| text.split('.').all(word);
    let before = match before {
        "" => "",
        text => text.strip_prefix('-').filter(|text| words(text))?,
    };
    build.is_none_or(words).then_some(before)
}

/// What `--version=raw` prints: Go's dump of the build.
pub(crate) fn raw() -> String {
    format!(
        "version.Info{{Major:\"1\", Minor:\"36\", EmulationMajor:\"\", EmulationMinor:\"\", \
         MinCompatibilityMajor:\"\", MinCompatibilityMinor:\"\", GitVersion:{}, GitCommit:\"\", \
         GitTreeState:\"\", BuildDate:\"\", GoVersion:\"\", Compiler:\"rustc\", Platform:{}}}\n",
        quote(REPORTED_VERSION),
        quote(&format!("linux/{ARCHITECTURE}"))
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reported_version_is_a_semantic_one_of_our_release() {
        for good in ["v1.36.4", "v1.36.4-dirty", "v1.36.4-a.0+b.01", "v1.36.4+x ", "v1.36.4 "] {
            assert_eq!(check_reported(good), Ok(()), "{good}");
        }
        for (bad, why) in [
            ("v", "could not parse \"v\" as version"),
            ("vx", "could not parse \"vx\" as version"),
            ("v1.36", "illegal version string \"v1.36\""),
            ("v1.36.4.5", "illegal version string \"v1.36.4.5\""),
            ("v1.036.4", "illegal zero-prefixed version component \"036\" in \"v1.036.4\""),
            ("v1.36.4-01", "illegal zero-prefixed version component \"01\" in \"v1.36.4-01\""),
            ("v1.36.4x", "could not parse pre-release/metadata (x) in version \"v1.36.4x\""),
            ("v1.36.4-", "could not parse pre-release/metadata (-) in version \"v1.36.4-\""),
            (
                "v1.36.4-a..b",
                "could not parse pre-release/metadata (-a..b) in version \"v1.36.4-a..b\"",
            ),
            (
                "v1.36.5",
                "version \"v1.36.5\" must match major/minor/patch of default version \"v1.36.4\"",
            ),
            (
                "v99999999999999999999.1.1",
                "illegal non-numeric version component \"99999999999999999999\" in \
                 \"v99999999999999999999.1.1\": strconv.ParseUint: parsing \
                 \"99999999999999999999\": value out of range",
            ),
        ] {
            assert_eq!(check_reported(bad).unwrap_err(), why);
        }
    }
}
