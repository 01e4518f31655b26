//! `/metrics/cadvisor`: containers, pods and the machine in the names that cAdvisor gave them.
//!
//! Promises: label values come from the runtime's lists and the agent's own cgroup paths only.
//! Deliberately absent: cgroups below a container's.

mod disks;
mod families;
mod machine;
mod processes;
mod runtime;

use crate::reading::{CgroupReading, Reading};
use crate::task::StatsConfig;
use cri::api::{MetricDescriptor, PodSandboxMetrics};
use families::{
    BLKIO, CFS, CPU_USAGE, LIMITS, MEMORY_FAILURES, NETWORK, PLAIN, PRESSURE, PROCESS, SPEC_CPU,
    START, TASKS_STATE, ULIMITS,
};
use std::collections::HashMap;
use sys::stats::InterfaceUsage;
use telemetry::metrics::{Desc, Kind, Registry, Scrape};

/// Labels that every sample of a cgroup has.
const BASE: [&str; 6] = ["container", "id", "image", "name", "namespace", "pod"];
const STATES: [&str; 5] = ["sleeping", "running", "stopped", "uninterruptible", "iowaiting"];

/// Whose cgroup it is.
#[derive(Debug, Clone, Copy, Default)]
struct Owner<'a> {
    container: &'a str,
    image: &'a str,
    name: &'a str,
    namespace: &'a str,
    pod: &'a str,
    network: Option<&'a [InterfaceUsage]>,
}

/// The page; without a reading only the machine and the error.
pub(crate) fn page(config: &StatsConfig, reading: Option<&Reading>) -> String {
    // Everything is read now, so that the collector only hands it over.
    let mut filled = Scrape::default();
    fill(&mut filled, config, reading);
    let registry = Registry::new();
    registry.collector(move |scrape| *scrape = filled.clone());
    registry.render()
}

/// The machine, and what the runtime counts itself.
pub(crate) fn page_from_runtime(
    config: &StatsConfig,
    descriptors: &[MetricDescriptor],
    metrics: &[PodSandboxMetrics],
) -> String {
    let mut filled = Scrape::default();
    machine::fill(&mut filled, config);
    runtime::fill(&mut filled, descriptors, metrics);
    let registry = Registry::new();
    registry.collector(move |scrape| *scrape = filled.clone());
    registry.render()
}

fn fill(scrape: &mut Scrape, config: &StatsConfig, reading: Option<&Reading>) {
    machine::fill(scrape, config);
    machine::fill_versions(scrape, config);
    let failed = if reading.is_some() { 0.0 } else { 1.0 };
    scrape.family(&families::SCRAPE_ERROR, Kind::Gauge).push_values(&[], &[], failed.into(), None);
    let Some(reading) = reading else { return };
    let owners = owners(reading);
    let pressure = config.cgroups.is_v2() && config.cgroups.has("", "/", "cpu.pressure");
    let disks = disks::Disks::read(config);
    for (path, cgroup) in &reading.cgroups {
        let owner = owners.get(path.as_str()).copied().unwrap_or_default();
        let mut samples = Samples {
            scrape,
            base: [owner.container, path, owner.image, owner.name, owner.namespace, owner.pod],
            at: Some(reading.at.as_millisecond()),
        };
        fill_cgroup(&mut samples, cgroup, pressure);
        fill_processes(&mut samples, config, path, cgroup, !owner.name.is_empty());
        disks.fill(&mut samples, cgroup);
        let network = if path == "/" { Some(&*reading.host_network) } else { owner.network };
        for interface in network.unwrap_or_default() {
            for (desc, value) in &NETWORK {
                let extra = [("interface", interface.name.as_str())];
                samples.push(desc, Kind::Counter, &extra, value(interface));
            }
        }
        if path == "/" {
            disks.fill_filesystems(&mut samples);
        }
    }
}

/// Adds samples of one cgroup.
struct Samples<'a> {
    scrape: &'a mut Scrape,
    base: [&'a str; 6],
    at: Option<i64>,
}

impl Samples<'_> {
    fn push(&mut self, desc: &Desc, kind: Kind, extra: &[(&'static str, &str)], value: f64) {
        self.push_at(desc, kind, extra, value, self.at);
    }

    fn push_at(
        &mut self,
        desc: &Desc,
        kind: Kind,
        extra: &[(&'static str, &str)],
        value: f64,
        at: Option<i64>,
    ) {
        let names: Vec<&'static str> =
            BASE.iter().copied().chain(extra.iter().map(|(name, _)| *name)).collect();
        let values: Vec<&str> =
            self.base.iter().copied().chain(extra.iter().map(|(_, value)| *value)).collect();
        self.scrape.family(desc, kind).push_values(&names, &values, value.into(), at);
    }
}

fn owners(reading: &Reading) -> HashMap<&str, Owner<'_>> {
    let mut owners = HashMap::new();
    for pod in &reading.pods {
        let of_pod = Owner {
            namespace: &pod.reference.namespace,
            pod: &pod.reference.name,
            ..Owner::default()
        };
        if let Some(path) = &pod.cgroup {
            owners.insert(path.as_str(), of_pod);
        }
        if let Some(path) = &pod.sandbox_cgroup {
            let network = Some(pod.network.as_slice());
            owners.insert(path.as_str(), Owner { name: &pod.sandbox_id, network, ..of_pod });
        }
        for container in &pod.containers {
            let Some(path) = &container.cgroup else { continue };
            let owner = Owner {
                container: &container.name,
                image: &container.image,
                name: &container.id,
                ..of_pod
            };
            owners.insert(path.as_str(), owner);
        }
    }
    owners
}

fn fill_cgroup(samples: &mut Samples<'_>, cgroup: &CgroupReading, pressure: bool) {
    let usage = &cgroup.usage;
    for (desc, kind, value) in &PLAIN {
        samples.push(desc, *kind, &[], value(cgroup));
    }
    let total = families::seconds(usage.cpu.total_ns);
    samples.push(&CPU_USAGE, Kind::Counter, &[("cpu", "total")], total);
    if usage.cpu.quota_us.is_some() {
        for (desc, value) in &CFS {
            samples.push(desc, Kind::Counter, &[], value(&usage.cpu));
        }
    }
    for (failure, count) in
        [("pgfault", usage.memory.page_faults), ("pgmajfault", usage.memory.major_page_faults)]
    {
        for scope in ["container", "hierarchy"] {
            let extra = [("failure_type", failure), ("scope", scope)];
            samples.push(&MEMORY_FAILURES, Kind::Counter, &extra, families::float(count));
        }
    }
    for state in STATES {
        samples.push(&TASKS_STATE, Kind::Gauge, &[("state", state)], 0.0);
    }
    if let Some(seen) = samples.at {
        let seconds = families::float(u64::try_from(seen / 1000).unwrap_or(0));
        samples.push(&families::LAST_SEEN, Kind::Gauge, &[], seconds);
    }
    if pressure {
        for (desc, value) in &PRESSURE {
            samples.push(desc, Kind::Counter, &[], value(&usage.pressure));
        }
    }
    let created = families::float(u64::try_from(usage.created).unwrap_or(0));
    samples.push_at(&START, Kind::Gauge, &[], created, None);
    for (desc, value) in &SPEC_CPU {
        if let Some(value) = value(&usage.cpu) {
            samples.push_at(desc, Kind::Gauge, &[], value, None);
        }
    }
    for (desc, value) in &LIMITS {
        let limit = value(&usage.memory).unwrap_or(0);
        samples.push_at(desc, Kind::Gauge, &[], families::float(limit), None);
    }
}

fn fill_processes(
    samples: &mut Samples<'_>,
    config: &StatsConfig,
    path: &str,
    cgroup: &CgroupReading,
    is_container: bool,
) {
    let open = processes::open_files(config, path);
    let values = [
        cgroup.usage.processes,
        open.descriptors,
        open.sockets,
        cgroup.usage.threads_max.unwrap_or(0),
        cgroup.usage.threads,
    ];
    for (desc, value) in PROCESS.iter().zip(values) {
        samples.push(desc, Kind::Gauge, &[], families::float(value));
    }
    if let (true, Some(limit)) = (is_container, open.soft_limit) {
        samples.push(&ULIMITS, Kind::Gauge, &[("ulimit", "max_open_files")], limit);
    }
}

/// Bytes by device and operation.
fn fill_blkio(samples: &mut Samples<'_>, device: (&str, u64, u64), operation: &str, value: u64) {
    let (name, major, minor) = (device.0, device.1.to_string(), device.2.to_string());
    let extra =
        [("device", name), ("major", &*major), ("minor", &*minor), ("operation", operation)];
    samples.push(&BLKIO, Kind::Counter, &extra, families::float(value));
}

#[cfg(test)]
mod tests;
