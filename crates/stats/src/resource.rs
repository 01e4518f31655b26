//! `/metrics/resource`: CPU, memory and swap of the node, its pods and containers.

use api::stats::{ContainerStats, CpuStats, MemoryStats, Moment, PodStats, Summary, SwapStats};
use std::sync::Arc;
use telemetry::metrics::{Desc, Kind, Registry, Scrape};

const POD: &[&str] = &["pod", "namespace"];
const CONTAINER: &[&str] = &["container", "pod", "namespace"];

const NODE_CPU: Desc = Desc::stable(
    "node_cpu_usage_seconds_total",
    "Cumulative cpu time consumed by the node in core-seconds",
);
const NODE_MEMORY: Desc =
    Desc::stable("node_memory_working_set_bytes", "Current working set of the node in bytes");
const NODE_SWAP: Desc = Desc::alpha(
    "node_swap_usage_bytes",
    "Current swap usage of the node in bytes. Reported only on non-windows systems",
);
const CONTAINER_CPU: Desc = Desc::stable(
    "container_cpu_usage_seconds_total",
    "Cumulative cpu time consumed by the container in core-seconds",
)
.labels(CONTAINER);
const CONTAINER_MEMORY: Desc = Desc::stable(
    "container_memory_working_set_bytes",
    "Current working set of the container in bytes",
)
.labels(CONTAINER);
const CONTAINER_SWAP: Desc = Desc::alpha(
    "container_swap_usage_bytes",
    "Current amount of the container swap usage in bytes. Reported only on non-windows systems",
)
.labels(CONTAINER);
const CONTAINER_SWAP_LIMIT: Desc = Desc::alpha(
    "container_swap_limit_bytes",
    "Current amount of the container swap limit in bytes. Reported only on non-windows systems",
)
.labels(CONTAINER);
const CONTAINER_START: Desc = Desc::stable(
    "container_start_time_seconds",
    "Start time of the container since unix epoch in seconds",
)
.labels(CONTAINER);
const POD_CPU: Desc = Desc::stable(
    "pod_cpu_usage_seconds_total",
    "Cumulative cpu time consumed by the pod in core-seconds",
)
.labels(POD);
const POD_MEMORY: Desc =
    Desc::stable("pod_memory_working_set_bytes", "Current working set of the pod in bytes")
        .labels(POD);
const POD_SWAP: Desc = Desc::alpha(
    "pod_swap_usage_bytes",
    "Current amount of the pod swap usage in bytes. Reported only on non-windows systems",
)
.labels(POD);
const SCRAPE_ERROR: Desc = Desc::stable(
    "resource_scrape_error",
    "1 if there was an error while getting container metrics, 0 otherwise",
);

/// The response; without a summary only the error.
pub(crate) fn page(summary: Option<Arc<Summary>>) -> String {
    let registry = Registry::new();
    registry.collector(move |scrape| {
        let failed = if summary.is_some() { 0.0 } else { 1.0 };
        scrape.family(&SCRAPE_ERROR, Kind::Gauge).push_values(&[], &[], failed.into(), None);
        if let Some(summary) = &summary {
            fill(scrape, summary);
        }
    });
    registry.render()
}

/// The three families of one level.
struct Level {
    cpu: &'static Desc,
    memory: &'static Desc,
    swap: &'static Desc,
    names: &'static [&'static str],
}

fn fill(scrape: &mut Scrape, summary: &Summary) {
    let node = Level { cpu: &NODE_CPU, memory: &NODE_MEMORY, swap: &NODE_SWAP, names: &[] };
    let (cpu, memory) = (&summary.node.cpu, &summary.node.memory);
    push(scrape, &node, &[], (cpu.as_ref(), memory.as_ref(), summary.node.swap.as_ref()));
    for pod in &summary.pods {
        for container in &pod.containers {
            fill_container(scrape, pod, container);
        }
        let level = Level { cpu: &POD_CPU, memory: &POD_MEMORY, swap: &POD_SWAP, names: POD };
        let values = [pod.pod_ref.name.as_str(), &pod.pod_ref.namespace];
        let used = (pod.cpu.as_ref(), pod.memory.as_ref(), pod.swap.as_ref());
        push(scrape, &level, &values, used);
    }
}

fn fill_container(scrape: &mut Scrape, pod: &PodStats, container: &ContainerStats) {
    let level = Level {
        cpu: &CONTAINER_CPU,
        memory: &CONTAINER_MEMORY,
        swap: &CONTAINER_SWAP,
        names: CONTAINER,
    };
    let values = [container.name.as_str(), &pod.pod_ref.name, &pod.pod_ref.namespace];
    let used = (container.cpu.as_ref(), container.memory.as_ref(), container.swap.as_ref());
    push(scrape, &level, &values, used);
    if let Some(swap) = &container.swap
        && let (Some(available), Some(used)) = (swap.swap_available_bytes, swap.swap_usage_bytes)
    {
        let limit = float(available.saturating_add(used));
        let family = scrape.family(&CONTAINER_SWAP_LIMIT, Kind::Gauge);
        family.push_values(CONTAINER, &values, limit.into(), Some(millis(swap.time)));
    }
    let start = container.start_time.0.as_nanosecond();
    if start > 0 {
        let seconds = seconds(u64::try_from(start).unwrap_or(u64::MAX));
        let family = scrape.family(&CONTAINER_START, Kind::Gauge);
        family.push_values(CONTAINER, &values, seconds.into(), None);
    }
}

fn push(
    scrape: &mut Scrape,
    level: &Level,
    values: &[&str],
    (cpu, memory, swap): (Option<&CpuStats>, Option<&MemoryStats>, Option<&SwapStats>),
) {
    if let Some(cpu) = cpu
        && let Some(used) = cpu.usage_core_nano_seconds
    {
        let family = scrape.family(level.cpu, Kind::Counter);
        family.push_values(level.names, values, seconds(used).into(), Some(millis(cpu.time)));
    }
    if let Some(memory) = memory
        && let Some(used) = memory.working_set_bytes
    {
        let family = scrape.family(level.memory, Kind::Gauge);
        family.push_values(level.names, values, float(used).into(), Some(millis(memory.time)));
    }
    if let Some(swap) = swap
        && let Some(used) = swap.swap_usage_bytes
    {
        let family = scrape.family(level.swap, Kind::Gauge);
        family.push_values(level.names, values, float(used).into(), Some(millis(swap.time)));
    }
}

fn millis(time: Moment) -> i64 {
    time.0.as_millisecond()
}

#[expect(clippy::cast_precision_loss, reason = "metrics are floats")]
fn float(number: u64) -> f64 {
    number as f64
}

fn seconds(nanos: u64) -> f64 {
    float(nanos) / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_summary_there_is_only_the_error() {
        let text = page(None);
        assert!(text.ends_with("\nresource_scrape_error 1\n"), "{text}");
        assert_eq!(text.lines().count(), 3);
    }

    #[test]
    fn samples_carry_the_time_they_were_read() {
        let at = Moment::from_nanos(1_700_000_000_500_000_000);
        let cpu = CpuStats {
            time: at,
            usage_core_nano_seconds: Some(1_500_000_000),
            ..CpuStats::default()
        };
        let mut summary = Summary::default();
        summary.node.cpu = Some(cpu.clone());
        summary.pods.push(PodStats {
            containers: vec![ContainerStats {
                name: "c".into(),
                start_time: at,
                cpu: Some(cpu),
                ..ContainerStats::default()
            }],
            ..PodStats::default()
        });
        let text = page(Some(Arc::new(summary)));
        assert!(text.contains("\nnode_cpu_usage_seconds_total 1.5 1700000000500\n"), "{text}");
        let start = "container_start_time_seconds{container=\"c\",namespace=\"\",pod=\"\"} 1.7000000005e+09\n";
        assert!(text.contains(start), "{text}");
        assert!(text.contains("\nresource_scrape_error 0\n"), "{text}");
    }
}
