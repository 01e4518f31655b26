//! The declaration of a metric: name, help, stability, labels, buckets.

/// Kubernetes' stability level of a metric; printed in front of its help text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stability {
    /// `[ALPHA] `.
    Alpha,
    /// `[BETA] `.
    Beta,
    /// `[STABLE] `.
    Stable,
    /// `[INTERNAL] `.
    Internal,
    /// No prefix: container metrics and those of the process.
    Unstated,
}

/// The kinds of metrics in the text format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Only ever grows.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Cumulative buckets.
    Histogram,
    /// Quantiles.
    Summary,
    /// Not declared.
    Untyped,
}

impl Kind {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
            Self::Summary => "summary",
            Self::Untyped => "untyped",
        }
    }
}

/// The declaration of one metric; a constant next to the code that updates it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Desc {
    pub(super) name: &'static str,
    pub(super) help: &'static str,
    pub(super) stability: Stability,
    pub(super) labels: &'static [&'static str],
    pub(super) deprecated_since: Option<&'static str>,
}

impl Desc {
    /// A metric of the given stability without labels.
    pub const fn new(stability: Stability, name: &'static str, help: &'static str) -> Self {
        Self { name, help, stability, labels: &[], deprecated_since: None }
    }

    /// An `[ALPHA]` metric.
    pub const fn alpha(name: &'static str, help: &'static str) -> Self {
        Self::new(Stability::Alpha, name, help)
    }

    /// A `[BETA]` metric.
    pub const fn beta(name: &'static str, help: &'static str) -> Self {
        Self::new(Stability::Beta, name, help)
    }

    /// A `[STABLE]` metric.
    pub const fn stable(name: &'static str, help: &'static str) -> Self {
        Self::new(Stability::Stable, name, help)
    }

    /// A metric whose help has no stability prefix.
    pub const fn unstated(name: &'static str, help: &'static str) -> Self {
        Self::new(Stability::Unstated, name, help)
    }

    /// Adds label names, in the order in which label values will be given.
    pub const fn labels(mut self, labels: &'static [&'static str]) -> Self {
        self.labels = labels;
        self
    }

    /// Marks the metric as deprecated since a Kubernetes version.
    pub const fn deprecated_since(mut self, version: &'static str) -> Self {
        self.deprecated_since = Some(version);
        self
    }

    /// The metric's name.
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// The help text as printed, with stability and deprecation in front.
    pub fn help_text(&self) -> String {
        let stability = match self.stability {
            Stability::Alpha => "[ALPHA] ",
            Stability::Beta => "[BETA] ",
            Stability::Stable => "[STABLE] ",
            Stability::Internal => "[INTERNAL] ",
            Stability::Unstated => "",
        };
        match self.deprecated_since {
            Some(version) => format!("{stability}(Deprecated since {version}) {}", self.help),
            None => format!("{stability}{}", self.help),
        }
    }
}

/// Bucket bounds `start, start·factor, …`, multiplied step by step as in Go, so that they print the
/// same.
pub fn exponential_buckets(start: f64, factor: f64, count: usize) -> Vec<f64> {
    std::iter::successors(Some(start), |bound| Some(bound * factor)).take(count).collect()
}

/// Bucket bounds `start, start+width, …`, added step by step as in Go.
pub fn linear_buckets(start: f64, width: f64, count: usize) -> Vec<f64> {
    std::iter::successors(Some(start), |bound| Some(bound + width)).take(count).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_carries_stability_then_deprecation() {
        assert_eq!(Desc::alpha("x", "How many.").help_text(), "[ALPHA] How many.");
        assert_eq!(Desc::unstated("x", "How many.").help_text(), "How many.");
        assert_eq!(
            Desc::stable("x", "How many.").deprecated_since("1.30.0").help_text(),
            "[STABLE] (Deprecated since 1.30.0) How many."
        );
    }

    #[test]
    fn exponential_bounds_are_those_of_go() {
        let bounds = exponential_buckets(0.005, 2.5, 14);
        assert_eq!(bounds.get(7), Some(&3.0517578125));
        assert_eq!(
            bounds.last().map(|b| crate::go_text::float(*b)),
            Some("745.0580596923828".into())
        );
    }
}
