//! Metrics that the runtime reports itself (kubelet: `criMetricsCollector`).

use super::families::float;
use cri::api::{Metric, MetricDescriptor, MetricType, PodSandboxMetrics};
use std::borrow::Cow;
use std::collections::BTreeMap;
use telemetry::metrics::{Kind, Scrape};

/// Adds the metrics that have a descriptor; one whose labels do not match it is skipped.
pub(super) fn fill(
    scrape: &mut Scrape,
    descriptors: &[MetricDescriptor],
    pods: &[PodSandboxMetrics],
) {
    let known: BTreeMap<&str, &MetricDescriptor> =
        descriptors.iter().map(|d| (d.name.as_str(), d)).collect();
    for pod in pods {
        let of_containers = pod.container_metrics.iter().flat_map(|c| &c.metrics);
        for metric in pod.metrics.iter().chain(of_containers) {
            let Some(descriptor) = known.get(metric.name.as_str()) else { continue };
            if descriptor.label_keys.len() == metric.label_values.len() {
                add(scrape, descriptor, metric);
            } else {
                tracing::error!(name = metric.name, "Error getting CRI prometheus metric");
            }
        }
    }
}

fn add(scrape: &mut Scrape, descriptor: &MetricDescriptor, metric: &Metric) {
    let kind = match metric.metric_type() {
        MetricType::Counter => Kind::Counter,
        MetricType::Gauge => Kind::Gauge,
    };
    let names = descriptor.label_keys.iter().map(|name| Cow::Owned(name.clone()));
    let labels = names.zip(metric.label_values.iter().cloned()).collect();
    let value = float(metric.value.as_ref().map_or(0, |value| value.value));
    // Without a timestamp the value is as of the query.
    let at = (metric.timestamp != 0).then_some(metric.timestamp / 1_000_000);
    let family = scrape.named(metric.name.clone(), &descriptor.help, kind);
    family.push(labels, value.into(), at);
}

#[cfg(test)]
mod tests {
    use super::*;
    use cri::api::{ContainerMetrics, UInt64Value};
    use telemetry::metrics::Registry;

    fn metric(name: &str, labels: &[&str], value: u64, timestamp: i64) -> Metric {
        Metric {
            name: name.to_owned(),
            timestamp,
            metric_type: MetricType::Gauge.into(),
            label_values: labels.iter().map(|label| (*label).to_owned()).collect(),
            value: Some(UInt64Value { value }),
        }
    }

    #[test]
    fn only_what_is_described_is_shown_with_labels_by_name() {
        let descriptor = MetricDescriptor {
            name: "container_memory_rss".to_owned(),
            help: "Size of RSS".to_owned(),
            label_keys: ["pod", "id"].map(str::to_owned).to_vec(),
        };
        let name = "container_memory_rss";
        let pods = [PodSandboxMetrics {
            pod_sandbox_id: "s".to_owned(),
            metrics: vec![metric(name, &["p", "/a"], 7, 0), metric("unknown", &[], 1, 0)],
            container_metrics: vec![ContainerMetrics {
                container_id: "c".to_owned(),
                metrics: vec![metric(name, &["p", "/b"], 9, 5_000_000), metric(name, &["p"], 1, 0)],
            }],
        }];
        let mut filled = Scrape::default();
        fill(&mut filled, &[descriptor], &pods);
        let registry = Registry::new();
        registry.collector(move |scrape| *scrape = filled.clone());
        assert_eq!(
            registry.render(),
            "# HELP container_memory_rss Size of RSS\n\
             # TYPE container_memory_rss gauge\n\
             container_memory_rss{id=\"/a\",pod=\"p\"} 7\n\
             container_memory_rss{id=\"/b\",pod=\"p\"} 9 5\n"
        );
    }
}
