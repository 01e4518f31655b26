//! The version that is reported.

use units::strconv::quote;

/// The Kubernetes release this agent stands for.
pub const KUBERNETES_VERSION: &str = "v1.36.4";

/// What `--version` prints and the node reports: the Kubernetes release, then our own version as
/// build metadata, which kubeadm and version comparisons leave aside.
pub const REPORTED_VERSION: &str = concat!("v1.36.4+rubelet.", env!("CARGO_PKG_VERSION"));

/// Whether a version given by `--version=v…` may be reported: the release part must be ours.
pub(crate) fn check_reported(version: &str) -> Result<(), String> {
    let release = version.split(['-', '+']).next().unwrap_or_default();
    if !is_semantic(version) {
        return Err(format!("could not parse {} as version", quote(version)));
    }
    if release != KUBERNETES_VERSION {
        return Err(format!(
            "version {} must match major/minor/patch of default version {}",
            quote(version),
            quote(KUBERNETES_VERSION)
        ));
    }
    Ok(())
}

fn is_semantic(version: &str) -> bool {
    let Some(version) = version.strip_prefix('v') else { return false };
    let release = version.split(['-', '+']).next().unwrap_or_default();
    let numbers: Vec<&str> = release.split('.').collect();
    numbers.len() == 3
        && numbers.iter().all(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
}

/// What `--version=raw` prints: Go's dump of the build.
pub(crate) fn raw() -> String {
    format!(
        "version.Info{{Major:\"1\", Minor:\"36\", EmulationMajor:\"\", EmulationMinor:\"\", \
         MinCompatibilityMajor:\"\", MinCompatibilityMinor:\"\", GitVersion:{}, GitCommit:\"\", \
         GitTreeState:\"\", BuildDate:\"\", GoVersion:\"\", Compiler:\"rustc\", Platform:{}}}\n",
        quote(REPORTED_VERSION),
        quote(&format!("{}/{}", std::env::consts::OS, platform()))
    )
}

fn platform() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}
