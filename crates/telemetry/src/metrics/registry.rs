//! The set of metrics behind one endpoint.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::desc::{Desc, Kind};
use super::exposition;
use super::family::{
    CounterCell, CounterFamily, GaugeCell, GaugeFamily, HistogramCell, HistogramFamily, Series,
};
use super::scrape::Scrape;

/// A set of metrics that is printed together. Cheap to clone; clones share the metrics.
#[derive(Clone, Default)]
pub struct Registry {
    sources: Arc<Mutex<Vec<Source>>>,
}

type Collect = dyn Fn(&mut Scrape) + Send + Sync;

enum Source {
    Counter(Desc, CounterFamily),
    Gauge(Desc, GaugeFamily),
    Histogram(Desc, HistogramFamily),
    Collector(Arc<Collect>),
}

/// A weak reference, so that a registry is not kept alive by its own collectors.
pub(super) struct WeakRegistry(Weak<Mutex<Vec<Source>>>);

impl WeakRegistry {
    pub(super) fn upgrade(&self) -> Option<Registry> {
        self.0.upgrade().map(|sources| Registry { sources })
    }
}

impl Source {
    fn desc(&self) -> Option<(Desc, Kind)> {
        match self {
            Self::Counter(desc, _) => Some((*desc, Kind::Counter)),
            Self::Gauge(desc, _) => Some((*desc, Kind::Gauge)),
            Self::Histogram(desc, _) => Some((*desc, Kind::Histogram)),
            Self::Collector(_) => None,
        }
    }
}

impl Registry {
    /// An empty registry.
    pub fn new() -> Self {
        Self::default()
    }

    /// The counter family of that name; created on the first call. Further calls return the same
    /// family, so that a subsystem may be built twice (a restart in a test) on one registry.
    pub fn counter(&self, desc: Desc) -> CounterFamily {
        self.find(&desc, Kind::Counter, |source| match source {
            Source::Counter(_, family) => Some(family.clone()),
            _ => None,
        })
        .unwrap_or_else(|| {
            let family = CounterFamily(Arc::new(Series::new(desc, CounterCell::default)));
            self.add(&desc, Source::Counter(desc, family.clone()));
            family
        })
    }

    /// The gauge family of that name; created on the first call.
    pub fn gauge(&self, desc: Desc) -> GaugeFamily {
        self.find(&desc, Kind::Gauge, |source| match source {
            Source::Gauge(_, family) => Some(family.clone()),
            _ => None,
        })
        .unwrap_or_else(|| {
            let family = GaugeFamily(Arc::new(Series::new(desc, GaugeCell::default)));
            self.add(&desc, Source::Gauge(desc, family.clone()));
            family
        })
    }

    /// The histogram family of that name; created on the first call with the given upper bounds,
    /// ascending and without the infinite one.
    pub fn histogram(&self, desc: Desc, bounds: &[f64]) -> HistogramFamily {
        self.find(&desc, Kind::Histogram, |source| match source {
            Source::Histogram(_, family) => Some(family.clone()),
            _ => None,
        })
        .unwrap_or_else(|| {
            let bounds: Arc<[f64]> = Arc::from(bounds);
            let make = move || HistogramCell::new(Arc::clone(&bounds));
            let family = HistogramFamily(Arc::new(Series::new(desc, make)));
            self.add(&desc, Source::Histogram(desc, family.clone()));
            family
        })
    }

    /// Adds a function that provides samples at each scrape.
    pub fn collector(&self, collect: impl Fn(&mut Scrape) + Send + Sync + 'static) {
        self.lock().push(Source::Collector(Arc::new(collect)));
    }

    /// All current samples.
    pub fn gather(&self) -> Scrape {
        // Collectors run outside the lock: one may be slow or use the registry itself.
        let mut scrape = Scrape::default();
        let mut collectors = Vec::new();
        for source in self.lock().iter() {
            match source {
                Source::Counter(_, family) => family.0.collect(&mut scrape),
                Source::Gauge(_, family) => family.0.collect(&mut scrape),
                Source::Histogram(_, family) => family.0.collect(&mut scrape),
                Source::Collector(collect) => collectors.push(Arc::clone(collect)),
            }
        }
        for collect in collectors {
            collect(&mut scrape);
        }
        scrape
    }

    /// The text of an endpoint's response; its content type is
    /// [`CONTENT_TYPE`](super::CONTENT_TYPE).
    pub fn render(&self) -> String {
        exposition::write(self.gather())
    }

    /// The same with samples added by `add`, for those that need to be awaited.
    pub fn render_with(&self, add: impl FnOnce(&mut Scrape)) -> String {
        let mut scrape = self.gather();
        add(&mut scrape);
        exposition::write(scrape)
    }

    /// The metrics declared so far, without those of collectors.
    pub fn descs(&self) -> Vec<Desc> {
        self.lock().iter().filter_map(|source| source.desc().map(|(desc, _)| desc)).collect()
    }

    pub(super) fn downgrade(&self) -> WeakRegistry {
        WeakRegistry(Arc::downgrade(&self.sources))
    }

    fn find<T>(&self, desc: &Desc, kind: Kind, pick: impl Fn(&Source) -> Option<T>) -> Option<T> {
        let sources = self.lock();
        let known = sources
            .iter()
            .find(|s| s.desc().is_some_and(|(known, of)| known.name == desc.name && of == kind));
        known.and_then(pick)
    }

    fn add(&self, desc: &Desc, source: Source) {
        let mut sources = self.lock();
        if sources.iter().any(|s| s.desc().is_some_and(|(known, _)| known.name == desc.name)) {
            // Two kinds under one name cannot be printed; the first one is used.
            tracing::error!(metric = desc.name, "metric declared with two kinds");
            return;
        }
        sources.push(source);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Source>> {
        self.sources.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Registry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Registry").field("sources", &self.lock().len()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::SampleValue;

    const CALLS: Desc = Desc::alpha("calls_total", "Calls.").labels(&["type"]);

    #[test]
    fn asking_twice_gives_the_same_family() {
        let registry = Registry::new();
        registry.counter(CALLS).inc(&["a"]);
        registry.counter(CALLS).inc(&["a"]);
        assert_eq!(registry.counter(CALLS).with(&["a"]).get(), 2.0);
    }

    #[test]
    fn a_family_without_series_is_not_printed_and_one_without_labels_is() {
        let registry = Registry::new();
        registry.counter(CALLS);
        registry.gauge(Desc::stable("up", "Whether it runs."));
        assert_eq!(
            registry.render(),
            "# HELP up [STABLE] Whether it runs.\n# TYPE up gauge\nup 0\n"
        );
    }

    #[test]
    fn a_collector_adds_samples_with_their_time() {
        let registry = Registry::new();
        registry.collector(|scrape| {
            const CPU: Desc = Desc::stable("node_cpu_usage_seconds_total", "CPU.");
            scrape.family(&CPU, Kind::Counter).push_values(
                &[],
                &[],
                SampleValue::Number(12.5),
                Some(1_700_000_000_123),
            );
        });
        assert_eq!(
            registry.render(),
            "# HELP node_cpu_usage_seconds_total [STABLE] CPU.\n\
             # TYPE node_cpu_usage_seconds_total counter\n\
             node_cpu_usage_seconds_total 12.5 1700000000123\n"
        );
    }

    #[test]
    fn the_first_kind_keeps_a_name() {
        let registry = Registry::new();
        registry.counter(CALLS).inc(&["a"]);
        registry.gauge(CALLS).set(&["a"], 7.0);
        assert!(
            registry.render().ends_with("# TYPE calls_total counter\ncalls_total{type=\"a\"} 1\n")
        );
    }
}
