//! What `--version` may be given and prints.

use units::release::{ARCHITECTURE, KUBERNETES_VERSION, REPORTED_VERSION};
use units::strconv::quote;

/// Whether a version given by `--version=v…` may be reported: the release part must be ours.
pub(crate) fn check_reported(version: &str) -> Result<(), String> {
    if version == KUBERNETES_VERSION {
        return Ok(());
    }
    let numbers = version.strip_prefix('v').unwrap_or(version);
    let end = numbers.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(numbers.len());
    let release = numbers.get(..end).unwrap_or_default().trim_end_matches('.');
    if release.is_empty() || release.starts_with('.') {
        return Err(format!("could not parse {} as version", quote(version)));
    }
    if release.split('.').count() != 3 {
        return Err(format!("illegal version string {}", quote(version)));
    }
    let extra = numbers.get(release.len()..).unwrap_or_default();
    if !extra.is_empty() && !extra.starts_with(['-', '+']) {
        return Err(format!(
            "could not parse pre-release/metadata ({extra}) in version {}",
            quote(version)
        ));
    }
    if Some(release) != KUBERNETES_VERSION.strip_prefix('v') {
        return Err(format!(
            "version {} must match major/minor/patch of default version {}",
            quote(version),
            quote(KUBERNETES_VERSION)
        ));
    }
    Ok(())
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
