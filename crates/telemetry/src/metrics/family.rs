//! Families of series and the handles that update them.
//!
//! An update is atomic; the family's map is locked only to find or create a series.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use super::desc::{Desc, Kind};
use super::scrape::{SampleValue, Scrape};

/// Label sets in a family before further ones are counted under [`OTHER`].
const MAX_SERIES: usize = 5_000;
/// A longer label value counts as [`OTHER`]: some are chosen by callers and plugins.
const LONGEST_VALUE: usize = 1024;
/// The label value for everything beyond the bound.
const OTHER: &str = "other";

/// The key of a series in the map.
fn key(values: &[&str]) -> Vec<String> {
    let held = |value: &&str| if value.len() > LONGEST_VALUE { OTHER } else { *value }.to_owned();
    values.iter().map(held).collect()
}

/// One stored value of a family.
pub(super) trait Cell: Send + Sync {
    /// The kind of the family with such cells.
    const KIND: Kind;
    /// The current value.
    fn read(&self) -> SampleValue;
}

/// The shared state behind the three family types.
pub(super) struct Series<C> {
    desc: Desc,
    cells: RwLock<BTreeMap<Vec<String>, Arc<C>>>,
    max_series: usize,
    make: Box<dyn Fn() -> C + Send + Sync>,
}

impl<C: Cell> Series<C> {
    pub(super) fn new(desc: Desc, make: impl Fn() -> C + Send + Sync + 'static) -> Self {
        let series = Self {
            desc,
            cells: RwLock::new(BTreeMap::new()),
            max_series: MAX_SERIES,
            make: Box::new(make),
        };
        if desc.labels.is_empty() {
            // A metric without labels exists from the start, at zero.
            series.cell(&[]);
        }
        series
    }

    pub(super) fn collect(&self, scrape: &mut Scrape) {
        let cells = self.cells.read().unwrap_or_else(PoisonError::into_inner);
        if cells.is_empty() {
            return;
        }
        let family = scrape.family(&self.desc, C::KIND);
        for (values, cell) in cells.iter() {
            let values: Vec<&str> = values.iter().map(String::as_str).collect();
            family.push_values(self.desc.labels, &values, cell.read(), None);
        }
    }

    fn cell(&self, values: &[&str]) -> Arc<C> {
        debug_assert_eq!(values.len(), self.desc.labels.len(), "labels of {}", self.desc.name);
        let key = key(values);
        if let Some(cell) = self.cells.read().unwrap_or_else(PoisonError::into_inner).get(&key) {
            return Arc::clone(cell);
        }
        let mut cells = self.cells.write().unwrap_or_else(PoisonError::into_inner);
        let full = cells.len() >= self.max_series && !cells.contains_key(&key);
        let key = if full { vec![OTHER.to_owned(); values.len()] } else { key };
        Arc::clone(cells.entry(key).or_insert_with(|| Arc::new((self.make)())))
    }

    fn remove(&self, values: &[&str]) {
        let key = key(values);
        self.cells.write().unwrap_or_else(PoisonError::into_inner).remove(&key);
    }

    fn clear(&self) {
        self.cells.write().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

impl<C> std::fmt::Debug for Series<C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Series").field("desc", &self.desc).finish_non_exhaustive()
    }
}

/// An `f64` that is added to and read without a lock.
#[derive(Debug, Default)]
struct AtomicF64(AtomicU64);

impl AtomicF64 {
    fn get(&self) -> f64 {
        f64::from_bits(self.0.load(Ordering::Relaxed))
    }

    fn set(&self, value: f64) {
        self.0.store(value.to_bits(), Ordering::Relaxed);
    }

    fn add(&self, delta: f64) {
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |bits| {
            Some((f64::from_bits(bits) + delta).to_bits())
        });
    }
}

#[derive(Debug, Default)]
pub(super) struct CounterCell(AtomicF64);

impl Cell for CounterCell {
    const KIND: Kind = Kind::Counter;
    fn read(&self) -> SampleValue {
        SampleValue::Number(self.0.get())
    }
}

#[derive(Debug, Default)]
pub(super) struct GaugeCell(AtomicF64);

impl Cell for GaugeCell {
    const KIND: Kind = Kind::Gauge;
    fn read(&self) -> SampleValue {
        SampleValue::Number(self.0.get())
    }
}

#[derive(Debug)]
pub(super) struct HistogramCell {
    bounds: Arc<[f64]>,
    /// One count per bound and one for values above all of them.
    counts: Vec<AtomicU64>,
    sum: AtomicF64,
}

impl HistogramCell {
    pub(super) fn new(bounds: Arc<[f64]>) -> Self {
        let counts = (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect();
        Self { bounds, counts, sum: AtomicF64::default() }
    }

    fn observe(&self, value: f64) {
        let slot = self.bounds.partition_point(|bound| *bound < value);
        if let Some(count) = self.counts.get(slot) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        self.sum.add(value);
    }
}

impl Cell for HistogramCell {
    const KIND: Kind = Kind::Histogram;
    fn read(&self) -> SampleValue {
        let mut count = 0;
        let mut buckets = Vec::with_capacity(self.bounds.len());
        for (slot, bucket) in self.counts.iter().enumerate() {
            count += bucket.load(Ordering::Relaxed);
            if let Some(bound) = self.bounds.get(slot) {
                buckets.push((*bound, count));
            }
        }
        SampleValue::Histogram { buckets, sum: self.sum.get(), count }
    }
}

/// A counter per label set. Cheap to clone.
#[derive(Debug, Clone)]
pub struct CounterFamily(pub(super) Arc<Series<CounterCell>>);

impl CounterFamily {
    /// The counter of one label set; to be held where it is updated often.
    pub fn with(&self, values: &[&str]) -> Counter {
        Counter(self.0.cell(values))
    }

    /// Adds one to a label set.
    pub fn inc(&self, values: &[&str]) {
        self.with(values).inc();
    }

    /// Removes a label set.
    pub fn remove(&self, values: &[&str]) {
        self.0.remove(values);
    }
}

/// One counter.
#[derive(Debug, Clone)]
pub struct Counter(Arc<CounterCell>);

impl Counter {
    /// Adds one.
    pub fn inc(&self) {
        self.0.0.add(1.0);
    }

    /// Adds a positive amount; a negative or NaN one is ignored, as a counter never falls.
    pub fn add(&self, amount: f64) {
        if amount > 0.0 {
            self.0.0.add(amount);
        }
    }

    /// The current value.
    pub fn get(&self) -> f64 {
        self.0.0.get()
    }
}

/// A gauge per label set. Cheap to clone.
#[derive(Debug, Clone)]
pub struct GaugeFamily(pub(super) Arc<Series<GaugeCell>>);

impl GaugeFamily {
    /// The gauge of one label set.
    pub fn with(&self, values: &[&str]) -> Gauge {
        Gauge(self.0.cell(values))
    }

    /// Sets a label set.
    pub fn set(&self, values: &[&str], value: f64) {
        self.with(values).set(value);
    }

    /// Removes a label set.
    pub fn remove(&self, values: &[&str]) {
        self.0.remove(values);
    }

    /// Removes every label set.
    pub fn clear(&self) {
        self.0.clear();
    }
}

/// One gauge.
#[derive(Debug, Clone)]
pub struct Gauge(Arc<GaugeCell>);

impl Gauge {
    /// Sets the value.
    pub fn set(&self, value: f64) {
        self.0.0.set(value);
    }

    /// Adds a (possibly negative) amount.
    pub fn add(&self, amount: f64) {
        self.0.0.add(amount);
    }

    /// The current value.
    pub fn get(&self) -> f64 {
        self.0.0.get()
    }
}

/// A histogram per label set. Cheap to clone.
#[derive(Debug, Clone)]
pub struct HistogramFamily(pub(super) Arc<Series<HistogramCell>>);

impl HistogramFamily {
    /// The histogram of one label set.
    pub fn with(&self, values: &[&str]) -> Histogram {
        Histogram(self.0.cell(values))
    }

    /// Records a value for a label set.
    pub fn observe(&self, values: &[&str], value: f64) {
        self.with(values).observe(value);
    }

    /// Records a duration in seconds for a label set.
    pub fn observe_duration(&self, values: &[&str], elapsed: Duration) {
        self.observe(values, elapsed.as_secs_f64());
    }

    /// Removes a label set.
    pub fn remove(&self, values: &[&str]) {
        self.0.remove(values);
    }
}

/// One histogram.
#[derive(Debug, Clone)]
pub struct Histogram(Arc<HistogramCell>);

impl Histogram {
    /// Records a value.
    pub fn observe(&self, value: f64) {
        self.0.observe(value);
    }

    /// Records a duration in seconds.
    pub fn observe_duration(&self, elapsed: Duration) {
        self.observe(elapsed.as_secs_f64());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_on_a_bound_belongs_to_that_bucket() {
        let cell = HistogramCell::new(Arc::from([1.0, 2.0]));
        for value in [0.5, 1.0, 2.0, 3.0] {
            cell.observe(value);
        }
        let want = SampleValue::Histogram { buckets: vec![(1.0, 2), (2.0, 3)], sum: 6.5, count: 4 };
        assert_eq!(cell.read(), want);
    }

    #[test]
    fn a_counter_never_falls() {
        let family =
            CounterFamily(Arc::new(Series::new(Desc::alpha("c", "h"), CounterCell::default)));
        let counter = family.with(&[]);
        counter.inc();
        counter.add(-3.0);
        counter.add(f64::NAN);
        counter.add(1.5);
        assert!((counter.get() - 2.5).abs() < f64::EPSILON);
    }

    #[test]
    fn a_label_value_of_a_megabyte_is_not_kept() {
        let series = Series::new(Desc::alpha("c", "h").labels(&["l"]), CounterCell::default);
        let family = CounterFamily(Arc::new(series));
        for letter in ["a", "b"] {
            family.inc(&[&letter.repeat(1 << 20)]);
        }
        assert_eq!(family.with(&[OTHER]).get(), 2.0);
    }

    #[test]
    fn label_values_past_the_bound_count_as_other() {
        let mut series = Series::new(Desc::alpha("c", "h").labels(&["l"]), CounterCell::default);
        series.max_series = 2;
        let family = CounterFamily(Arc::new(series));
        for value in ["a", "b", "c", "d", "a"] {
            family.inc(&[value]);
        }
        assert_eq!(family.with(&["a"]).get(), 2.0);
        assert_eq!(family.with(&[OTHER]).get(), 2.0);
    }
}
