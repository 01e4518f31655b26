//! The samples of one scrape, by family.

use std::borrow::Cow;
use std::collections::BTreeMap;

use super::desc::{Desc, Kind};

/// Collects the samples of one scrape.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct Scrape {
    pub(super) families: BTreeMap<Cow<'static, str>, FamilySamples>,
}

impl Scrape {
    /// The text of the collected samples, as [`Registry::render`](super::Registry::render) prints
    /// it.
    pub fn render(self) -> String {
        super::exposition::write(self)
    }

    /// The samples of a declared metric.
    pub fn family(&mut self, desc: &Desc, kind: Kind) -> &mut FamilySamples {
        self.families.entry(Cow::Borrowed(desc.name)).or_insert_with(|| FamilySamples {
            help: desc.help_text(),
            kind,
            samples: Vec::new(),
        })
    }

    /// The samples of a metric whose name is only known at run time (reported by the container
    /// runtime).
    pub fn named(&mut self, name: String, help: &str, kind: Kind) -> &mut FamilySamples {
        self.families.entry(Cow::Owned(name)).or_insert_with(|| FamilySamples {
            help: help.to_owned(),
            kind,
            samples: Vec::new(),
        })
    }
}

/// The samples of one metric.
#[derive(Debug, Clone, PartialEq)]
pub struct FamilySamples {
    pub(super) help: String,
    pub(super) kind: Kind,
    pub(super) samples: Vec<Sample>,
}

impl FamilySamples {
    /// Adds a sample. The timestamp, in milliseconds since the epoch, is printed when given.
    pub fn push(
        &mut self,
        labels: Vec<(Cow<'static, str>, String)>,
        value: SampleValue,
        timestamp_ms: Option<i64>,
    ) {
        let mut labels = labels;
        labels.sort_by(|a, b| a.0.cmp(&b.0));
        self.samples.push(Sample { labels, value, timestamp_ms });
    }

    /// Adds a sample with label names and values as pairs.
    pub fn push_values(
        &mut self,
        names: &[&'static str],
        values: &[&str],
        value: SampleValue,
        timestamp_ms: Option<i64>,
    ) {
        let pairs = names.iter().zip(values);
        let labels = pairs.map(|(n, v)| (Cow::Borrowed(*n), (*v).to_owned())).collect();
        self.push(labels, value, timestamp_ms);
    }
}

/// One printed value (or, for histograms and summaries, a group of them).
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// Label pairs, sorted by name.
    pub(super) labels: Vec<(Cow<'static, str>, String)>,
    pub(super) value: SampleValue,
    pub(super) timestamp_ms: Option<i64>,
}

/// The value of a sample.
#[derive(Debug, Clone, PartialEq)]
pub enum SampleValue {
    /// A counter, gauge or untyped value.
    Number(f64),
    /// Cumulative counts per upper bound, without the infinite one.
    Histogram {
        /// Upper bound and the count of values not above it.
        buckets: Vec<(f64, u64)>,
        /// Sum of the values.
        sum: f64,
        /// Number of values.
        count: u64,
    },
    /// Values per quantile.
    Summary {
        /// Quantile and its value.
        quantiles: Vec<(f64, f64)>,
        /// Sum of the values.
        sum: f64,
        /// Number of values.
        count: u64,
    },
}

impl From<f64> for SampleValue {
    fn from(value: f64) -> Self {
        Self::Number(value)
    }
}
