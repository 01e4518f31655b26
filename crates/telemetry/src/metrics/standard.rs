//! Metrics of every Kubernetes component: its build, its feature gates, its metrics.

use std::collections::BTreeMap;

use super::desc::{Desc, Kind, Stability};
use super::registry::Registry;

const BUILD: Desc = Desc::beta(
    "kubernetes_build_info",
    "A metric with a constant '1' value labeled by major, minor, git version, git commit, git tree state, build date, Go version, and compiler from which Kubernetes was built, and platform on which it is running.",
)
.labels(&[
    "major",
    "minor",
    "git_version",
    "git_commit",
    "git_tree_state",
    "build_date",
    "go_version",
    "compiler",
    "platform",
]);
const FEATURES: Desc = Desc::beta(
    "kubernetes_feature_enabled",
    "This metric records the data about the stage and enablement of a k8s feature.",
)
.labels(&["name", "stage"]);
const REGISTERED: Desc = Desc::beta(
    "registered_metrics_total",
    "The count of registered metrics broken by stability level and deprecation version.",
)
.labels(&["stability_level", "deprecated_version"]);
const HIDDEN: Desc = Desc::beta("hidden_metrics_total", "The count of hidden metrics.");
const DISABLED: Desc = Desc::beta("disabled_metrics_total", "The count of disabled metrics.");

/// The labels of `kubernetes_build_info`, in their order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct BuildInfo {
    /// `1`.
    pub major: String,
    /// `36`.
    pub minor: String,
    /// `v1.36.4`.
    pub git_version: String,
    /// The commit.
    pub git_commit: String,
    /// `clean` or `dirty`.
    pub git_tree_state: String,
    /// When it was built.
    pub build_date: String,
    /// The language's version.
    pub language_version: String,
    /// The compiler.
    pub compiler: String,
    /// `linux/amd64`.
    pub platform: String,
}

/// Registers `kubernetes_build_info`.
pub fn register_build_info(registry: &Registry, build: &BuildInfo) {
    let labels = [
        build.major.as_str(),
        &build.minor,
        &build.git_version,
        &build.git_commit,
        &build.git_tree_state,
        &build.build_date,
        &build.language_version,
        &build.compiler,
        &build.platform,
    ];
    registry.gauge(BUILD).set(&labels, 1.0);
}

/// Registers the state of feature gates: name, stage (`ALPHA`, `BETA`, `DEPRECATED`, empty when
/// GA), enabled.
pub fn register_features<'a>(
    registry: &Registry,
    features: impl IntoIterator<Item = (&'a str, &'a str, bool)>,
) {
    let family = registry.gauge(FEATURES);
    for (name, stage, enabled) in features {
        family.set(&[name, stage], if enabled { 1.0 } else { 0.0 });
    }
}

/// Stable metrics that upstream counts but does not expose on the same endpoint: two of health
/// checks, and three of the admission library, which the kubelet links but never uses.
const STABLE_ELSEWHERE: f64 = 5.0;

/// Registers the counts of a registry's own metrics.
pub fn register_own_counts(registry: &Registry) {
    registry.counter(HIDDEN);
    registry.counter(DISABLED);
    let weak = registry.downgrade();
    registry.collector(move |scrape| {
        let Some(registry) = weak.upgrade() else { return };
        let mut counts: BTreeMap<(&str, &str), f64> = BTreeMap::new();
        counts.insert(("STABLE", ""), STABLE_ELSEWHERE);
        for desc in registry.descs() {
            let level = match desc.stability {
                Stability::Alpha => "ALPHA",
                Stability::Beta => "BETA",
                Stability::Stable => "STABLE",
                Stability::Internal => "INTERNAL",
                Stability::Unstated => continue,
            };
            *counts.entry((level, desc.deprecated_since.unwrap_or_default())).or_default() += 1.0;
        }
        let family = scrape.family(&REGISTERED, Kind::Counter);
        for ((level, deprecated), count) in counts {
            family.push_values(REGISTERED.labels, &[level, deprecated], count.into(), None);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn build_and_features_are_constant_gauges() {
        let registry = Registry::new();
        let build = BuildInfo { major: "1".into(), minor: "36".into(), ..BuildInfo::default() };
        register_build_info(&registry, &build);
        register_features(&registry, [("A", "BETA", true), ("B", "", false)]);
        let text = registry.render();
        assert!(text.contains("kubernetes_build_info{build_date=\"\",compiler=\"\""), "{text}");
        assert!(
            text.contains("kubernetes_feature_enabled{name=\"A\",stage=\"BETA\"} 1\n"),
            "{text}"
        );
        assert!(text.contains("kubernetes_feature_enabled{name=\"B\",stage=\"\"} 0\n"), "{text}");
    }

    #[test]
    fn a_registry_counts_its_metrics_by_stability() {
        let registry = Registry::new();
        register_own_counts(&registry);
        registry.counter(Desc::alpha("a", "A."));
        registry.gauge(Desc::alpha("b", "B."));
        registry.gauge(Desc::stable("c", "C.").deprecated_since("1.30.0"));
        let text = registry.render();
        for line in [
            "registered_metrics_total{deprecated_version=\"\",stability_level=\"ALPHA\"} 2",
            "registered_metrics_total{deprecated_version=\"\",stability_level=\"BETA\"} 2",
            "registered_metrics_total{deprecated_version=\"1.30.0\",stability_level=\"STABLE\"} 1",
            "registered_metrics_total{deprecated_version=\"\",stability_level=\"STABLE\"} 5",
        ] {
            assert!(text.lines().any(|have| have == line), "{line}\n{text}");
        }
    }
}
