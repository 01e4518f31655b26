//! `/metrics/cadvisor`: metrics of containers, pods and the machine under cAdvisor's names.
//!
//! Promises: label values come from the runtime's lists and the agent's own cgroup paths only. The
//! response of a full node has megabytes, so it is written family by family while it is sent: the
//! labels of a cgroup are rendered once, families are sorted by name and their samples by label
//! values, as in the Go client. Deliberately absent: cgroups below a container's.

mod descriptors;
mod disks;
mod families;
mod images;
mod lines;
mod machine;
mod runtime;

pub(crate) use disks::{Filesystem, filesystems};

use crate::reading::{CgroupReading, Interfaces, Reading};
use crate::task::StatsConfig;
use cri::api::{MetricDescriptor, PodSandboxMetrics};
use descriptors::Counted;
use disks::Disks;
use families::{
    CFS, CPU_USAGE, LIMITS, MEMORY_FAILURES, NETWORK, PLAIN, PRESSURE, PROCESS, SPEC_CPU, START,
    TASKS_STATE, ULIMITS, float,
};
use images::ImageNames;
use lines::{Extra, Labels, Lines, Page};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use sys::stats::OpenFiles;
use telemetry::metrics::{Kind, Scrape};
use tokio::time::Instant;

/// How long facts about the machine are cached (cadvisor: `update_machine_info_interval`).
const MACHINE_AGE: Duration = Duration::from_secs(5 * 60);

/// In the order in which they are printed.
const STATES: [&str; 5] = [
    ",state=\"iowaiting\"",
    ",state=\"running\"",
    ",state=\"sleeping\"",
    ",state=\"stopped\"",
    ",state=\"uninterruptible\"",
];

/// The owner of a cgroup.
#[derive(Debug, Clone, Copy, Default)]
struct Owner<'a> {
    container: &'a str,
    image: &'a str,
    name: &'a str,
    namespace: &'a str,
    pod: &'a str,
    network: Option<&'a Interfaces>,
}

/// A cgroup with the values to be printed.
struct Shown {
    labels: Labels,
    cgroup: CgroupReading,
    open: OpenFiles,
    /// By name.
    network: Interfaces,
    is_container: bool,
}

/// Everything that a response contains.
struct Seen {
    /// By container name and path.
    shown: Vec<Shown>,
    disks: Disks,
}

/// State carried over from one response to the next.
#[derive(Debug, Default)]
pub(crate) struct Known {
    counted: Counted,
    pub(crate) images: ImageNames,
    /// The text about the machine, and when it was rendered.
    machine: Option<(Instant, String)>,
}

impl Known {
    fn machine(&mut self, config: &StatsConfig) -> String {
        if let Some((at, text)) = &self.machine
            && at.elapsed() < MACHINE_AGE
        {
            return text.clone();
        }
        let mut filled = Scrape::default();
        machine::fill(&mut filled, config);
        let text = filled.render();
        self.machine = Some((Instant::now(), text.clone()));
        text
    }
}

/// A value of a cgroup.
type Count = fn(&Shown) -> u64;

/// The response; without a reading only the machine and the error.
pub(crate) fn page(
    config: &StatsConfig,
    reading: Option<&Reading>,
    known: &mut Known,
    filesystems: &[Filesystem],
) -> ports::Pieces {
    let mut before = Scrape::default();
    machine::fill_versions(&mut before, config);
    let before = before.render();
    let after = known.machine(config);
    let Some(reading) = reading else {
        let mut failed = Scrape::default();
        let family = failed.family(&families::SCRAPE_ERROR, Kind::Gauge);
        family.push_values(&[], &[], 1.0.into(), None);
        return Box::new([before, failed.render(), after].into_iter());
    };
    let shown = shown(config, reading, known);
    let pressure = config.cgroups.is_v2() && config.cgroups.has("", "/", "cpu.pressure");
    let disks = Disks::read(config, filesystems);
    let mut page = Page::default();
    add_plain(&mut page);
    add_repeated(&mut page);
    if pressure {
        for (desc, value) in &PRESSURE {
            page.family(desc, Kind::Counter, move |lines, seen| {
                lines.each(&seen.shown, |s| Some(value(&s.cgroup.usage.pressure)));
            });
        }
    }
    disks::add(&mut page);
    page.family(&families::SCRAPE_ERROR, Kind::Gauge, |lines, _| lines.alone(0.0));
    Box::new(page.pieces(before, Seen { shown, disks }, reading.at, after))
}

/// The machine, and the metrics that the runtime reports.
pub(crate) fn page_from_runtime(
    config: &StatsConfig,
    descriptors: &[MetricDescriptor],
    metrics: &[PodSandboxMetrics],
) -> String {
    let mut filled = Scrape::default();
    machine::fill(&mut filled, config);
    runtime::fill(&mut filled, descriptors, metrics);
    filled.render()
}

/// Every cgroup, by container name and path.
fn shown(config: &StatsConfig, reading: &Reading, known: &mut Known) -> Vec<Shown> {
    let Known { counted, images, .. } = known;
    let owners = owners(reading, images);
    counted.begin(&config.roots.proc);
    let none = Interfaces::default();
    let mut shown: Vec<Shown> = reading
        .cgroups
        .iter()
        .map(|(path, cgroup)| {
            let owner = owners.get(&**path).copied();
            let is_pods = owner.is_some();
            let owner = owner.unwrap_or_default();
            let host = (&**path == "/").then_some(&reading.host_network);
            Shown {
                labels: Labels::new(path, &owner),
                cgroup: cgroup.clone(),
                open: counted.of_cgroup(&config.roots.proc, path, cgroup, is_pods),
                network: by_name(host.or(owner.network).unwrap_or(&none)),
                is_container: !owner.name.is_empty(),
            }
        })
        .collect();
    counted.end();
    shown.sort_by(|a, b| a.labels.key().cmp(&b.labels.key()));
    shown
}

fn by_name(network: &Interfaces) -> Interfaces {
    if network.is_sorted_by(|a, b| a.name <= b.name) {
        return Arc::clone(network);
    }
    let mut sorted = network.to_vec();
    sorted.sort_by(|a, b| a.name.cmp(&b.name));
    sorted.into()
}

fn owners<'a>(reading: &'a Reading, images: &'a ImageNames) -> HashMap<&'a str, Owner<'a>> {
    let mut owners = HashMap::new();
    for pod in &reading.pods {
        let of_pod = Owner {
            namespace: &pod.reference.namespace,
            pod: &pod.reference.name,
            ..Owner::default()
        };
        if let Some(path) = &pod.cgroup {
            owners.insert(&**path, of_pod);
        }
        if let Some(path) = &pod.sandbox_cgroup {
            let network = Some(&pod.network);
            let image = images.of_sandbox(&pod.sandbox_id);
            owners.insert(&**path, Owner { name: &pod.sandbox_id, image, network, ..of_pod });
        }
        for container in &pod.containers {
            let Some(path) = &container.cgroup else { continue };
            let owner = Owner {
                container: &container.name,
                image: images.of(&container.image),
                name: &container.id,
                ..of_pod
            };
            owners.insert(&**path, owner);
        }
    }
    owners
}

/// Families with one sample per cgroup.
fn add_plain(page: &mut Page) {
    for (desc, kind, value) in &PLAIN {
        page.family(desc, *kind, move |lines, seen| {
            lines.each(&seen.shown, |s| Some(value(&s.cgroup)));
        });
    }
    for (desc, value) in &CFS {
        page.family(desc, Kind::Counter, move |lines, seen| {
            lines.each(&seen.shown, |s| {
                let cpu = &s.cgroup.usage.cpu;
                cpu.quota_us.is_some().then(|| value(cpu))
            });
        });
    }
    page.family(&families::LAST_SEEN, Kind::Gauge, |lines, seen| {
        let seconds = lines.seconds();
        lines.each(&seen.shown, |_| Some(seconds));
    });
    page.family(&START, Kind::Gauge, |lines, seen| {
        let created = |s: &Shown| float(u64::try_from(s.cgroup.usage.created).unwrap_or(0));
        lines.each_untimed(&seen.shown, |s| Some(created(s)));
    });
    for (desc, value) in &SPEC_CPU {
        page.family(desc, Kind::Gauge, move |lines, seen| {
            lines.each_untimed(&seen.shown, |s| value(&s.cgroup.usage.cpu));
        });
    }
    for (desc, value) in &LIMITS {
        page.family(desc, Kind::Gauge, move |lines, seen| {
            lines.each_untimed(&seen.shown, |s| {
                Some(float(value(&s.cgroup.usage.memory).unwrap_or(0)))
            });
        });
    }
    let values: [Count; 5] = [
        |s| s.cgroup.usage.processes,
        |s| s.open.descriptors,
        |s| s.open.sockets,
        |s| s.cgroup.usage.threads_max.unwrap_or(0),
        |s| s.cgroup.usage.threads,
    ];
    for (desc, value) in PROCESS.iter().zip(values) {
        page.family(desc, Kind::Gauge, move |lines, seen| {
            lines.each(&seen.shown, |s| Some(float(value(s))));
        });
    }
}

/// Families with labels beyond those of the cgroup.
fn add_repeated(page: &mut Page) {
    page.family(&CPU_USAGE, Kind::Counter, |lines, seen| {
        for s in &seen.shown {
            let extra = Extra { before_id: ",cpu=\"total\"", ..Extra::default() };
            lines.with(&s.labels, extra, families::seconds(s.cgroup.usage.cpu.total_ns));
        }
    });
    page.family(&MEMORY_FAILURES, Kind::Counter, |lines, seen| {
        for same in seen.shown.chunk_by(|a, b| a.labels.container() == b.labels.container()) {
            add_failures(lines, same);
        }
    });
    page.family(&TASKS_STATE, Kind::Gauge, |lines, seen| {
        for s in &seen.shown {
            for state in STATES {
                lines.with(&s.labels, Extra { after_pod: state, ..Extra::default() }, 0.0);
            }
        }
    });
    page.family(&ULIMITS, Kind::Gauge, |lines, seen| {
        let extra = Extra { after_pod: ",ulimit=\"max_open_files\"", ..Extra::default() };
        // Of the root it is that of the first process.
        let has = |s: &&Shown| s.is_container || s.labels.key().1 == "/";
        for s in seen.shown.iter().filter(has) {
            if let Some(limit) = s.cgroup.soft_open_files {
                lines.with(&s.labels, extra, limit);
            }
        }
    });
    for (desc, value) in &NETWORK {
        page.family(desc, Kind::Counter, move |lines, seen| {
            for s in &seen.shown {
                for interface in &*s.network {
                    let name = lines::label("interface", &interface.name);
                    let extra = Extra { after_image: &name, ..Extra::default() };
                    lines.with(&s.labels, extra, value(interface));
                }
            }
        });
    }
}

fn add_failures(lines: &mut Lines<'_>, shown: &[Shown]) {
    let kinds: [(&str, Count); 2] = [
        (",failure_type=\"pgfault\"", |s| s.cgroup.usage.memory.page_faults),
        (",failure_type=\"pgmajfault\"", |s| s.cgroup.usage.memory.major_page_faults),
    ];
    for (before_id, count) in kinds {
        for s in shown {
            for after_pod in [",scope=\"container\"", ",scope=\"hierarchy\""] {
                let extra = Extra { before_id, after_pod, ..Extra::default() };
                lines.with(&s.labels, extra, float(count(s)));
            }
        }
    }
}

#[cfg(test)]
mod tests;
