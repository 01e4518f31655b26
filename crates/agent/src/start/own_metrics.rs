//! What the agent and its node say about themselves on the metrics pages.

use super::StartContext;
use crate::idle_metrics;
use ::server::HealthMetrics;
use config::Config;
use ports::{Roots, Tasks};
use std::sync::Arc;
use telemetry::metrics::{
    BuildInfo, Desc, Kind, Registry, register_build_info, register_features, register_own_counts,
    register_process,
};

const START: Desc = Desc::alpha(
    "process_start_time_seconds",
    "Start time of the process since unix epoch in seconds.",
);
const CGROUP_VERSION: Desc = Desc::alpha("kubelet_cgroup_version", "cgroup version on the hosts.");
const PROVIDER: Desc = Desc::alpha(
    "kubelet_metrics_provider",
    "Metrics provider used by kubelet to collect container stats. Values can be 'cadvisor' and 'cri'",
)
.labels(&["provider"]);

/// All of them.
pub(super) fn register(cx: &StartContext<'_>, v2: bool, health: &Arc<HealthMetrics>) {
    own_metrics(&cx.registry, cx.config, &cx.roots);
    node_metrics(&cx.registry, v2);
    start_time(cx, health);
    count_panics(&cx.registry, cx.tasks);
}

/// When the process was started, unless the health metrics were reset.
fn start_time(cx: &StartContext<'_>, health: &Arc<HealthMetrics>) {
    let (start, shown) = (cx.began.as_second(), Arc::clone(health));
    cx.probe_registry.collector(move |scrape| {
        if shown.is_reset() {
            return;
        }
        #[expect(clippy::cast_precision_loss, reason = "metrics are floats")]
        let start = start as f64;
        scrape.family(&START, Kind::Gauge).push_values(&[], &[], start.into(), None);
    });
}

/// What the node is, once and for all.
fn node_metrics(registry: &Registry, v2: bool) {
    registry.gauge(CGROUP_VERSION).set(&[], if v2 { 2.0 } else { 1.0 });
    registry.gauge(PROVIDER).set(&["cadvisor"], 1.0);
}

/// What the process says about itself.
fn own_metrics(registry: &Registry, config: &Config, roots: &Roots) {
    register_process(registry, roots.proc.clone());
    let mut numbers = units::release::KUBERNETES_VERSION.trim_start_matches('v').split('.');
    let mut number = || numbers.next().unwrap_or_default().to_owned();
    register_build_info(
        registry,
        &BuildInfo {
            major: number(),
            minor: number(),
            git_version: units::release::REPORTED_VERSION.to_owned(),
            compiler: "rustc".to_owned(),
            platform: format!("linux/{}", units::release::ARCHITECTURE),
            ..BuildInfo::default()
        },
    );
    let gates = config.gates.states();
    register_features(registry, gates.map(|(gate, on)| (gate.name, gate.stage.as_str(), on)));
    register_own_counts(registry);
    idle_metrics::register(registry);
}

const PANICS: Desc = Desc::alpha(
    "rubelet_task_panics_total",
    "Cumulative number of panics in tasks of the agent, by the name of the task.",
)
.labels(&["task"]);

/// Shows which tasks panicked; no series as long as none did.
fn count_panics(registry: &Registry, tasks: &Tasks) {
    let tasks = tasks.clone();
    registry.collector(move |scrape| {
        let panics = tasks.panics();
        if panics.is_empty() {
            return;
        }
        let family = scrape.family(&PANICS, Kind::Counter);
        for (task, count) in panics {
            let count = u32::try_from(count).unwrap_or(u32::MAX);
            family.push_values(&["task"], &[task], f64::from(count).into(), None);
        }
    });
}
