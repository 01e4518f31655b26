//! Owners of cgroups, and the text of a response.

use super::*;
use crate::reading::{ContainerReading, PodReading};
use api::stats::PodReference;
use sys::stats::{DeviceIo, InterfaceUsage};

#[test]
fn pods_sandboxes_and_containers_are_told_apart() {
    let pod = PodReading {
        reference: PodReference { name: "p".into(), namespace: "n".into(), uid: "u".into() },
        sandbox_id: "s".into(),
        cgroup: Some("/kubepods/podu".into()),
        sandbox_cgroup: Some("/kubepods/podu/s".into()),
        containers: vec![ContainerReading {
            id: "c".into(),
            name: "main".into(),
            image: "i".into(),
            cgroup: Some("/kubepods/podu/c".into()),
            ..ContainerReading::default()
        }],
        ..PodReading::default()
    };
    let reading = Reading { pods: vec![pod], ..Reading::default() };
    let images = ImageNames::default();
    let owners = owners(&reading, &images);
    let of = |path: &str| {
        let owner = owners[path];
        (owner.name, owner.container, owner.pod, owner.network.is_some())
    };
    assert_eq!(of("/kubepods/podu"), ("", "", "p", false));
    assert_eq!(of("/kubepods/podu/s"), ("s", "", "p", true));
    assert_eq!(of("/kubepods/podu/c"), ("c", "main", "p", false));
}

fn io(major: u64, read: u64) -> DeviceIo {
    DeviceIo {
        device: (major, 0),
        bytes: [("Read", read), ("Write", 2), ("Total", read + 2)].into(),
        operations: [("Read", 3), ("Write", 4)].into(),
    }
}

fn cgroup(number: u64) -> CgroupReading {
    let mut reading = CgroupReading { soft_open_files: Some(-1.0), ..CgroupReading::default() };
    let usage = Arc::make_mut(&mut reading.usage);
    usage.cpu.total_ns = number * 1_234_567_891;
    usage.cpu.quota_us = number.is_multiple_of(2).then_some(5_000);
    usage.memory.usage = number * 1_000_000;
    usage.memory.page_faults = number;
    usage.created = 1_700_000_000;
    // Unknown devices share one (empty) name.
    usage.io = vec![io(259, number), io(7777, 1), io(7778, 9)];
    reading
}

fn interface(name: &str) -> InterfaceUsage {
    InterfaceUsage { name: name.into(), rx_bytes: 5, ..InterfaceUsage::default() }
}

/// A node with two pods whose containers have common names and unusual characters.
fn node() -> Reading {
    let mut reading = Reading {
        at: jiff::Timestamp::from_millisecond(1_700_000_000_123).unwrap(),
        host_network: [interface("eth1"), interface("eth0")].into(),
        ..Reading::default()
    };
    let mut paths = vec!["/".to_owned(), "/kubepods".to_owned()];
    for pod in ["b", "a"] {
        let of = |name: &str| format!("/kubepods/pod{pod}{name}");
        let container = |name: &str| ContainerReading {
            id: format!("id-{pod}-{name}"),
            name: name.into(),
            image: "registry.example/a\"b\\c".into(),
            cgroup: Some(of(&format!("/{name}")).into()),
            ..ContainerReading::default()
        };
        reading.pods.push(PodReading {
            reference: PodReference { name: pod.into(), namespace: "n".into(), uid: pod.into() },
            sandbox_id: format!("s-{pod}"),
            cgroup: Some(of("").into()),
            sandbox_cgroup: Some(of("/sandbox").into()),
            network: [interface("eth0")].into(),
            containers: vec![container("side"), container("main")],
            ..PodReading::default()
        });
        paths.extend(["", "/sandbox", "/side", "/main"].map(of));
    }
    let cgroups = paths.into_iter().zip(1..).map(|(path, number)| (path.into(), cgroup(number)));
    reading.cgroups = cgroups.collect();
    reading
}

/// The label names and values of a line, in the registry's form.
fn labels(text: &str) -> Vec<(std::borrow::Cow<'static, str>, String)> {
    let inside = text.trim_start_matches('{').trim_end_matches("\"}");
    let pairs = inside.split("\",").filter_map(|pair| pair.split_once("=\""));
    pairs
        .map(|(name, value)| {
            let value = value.replace("\\\"", "\"").replace("\\\\", "\\");
            (name.to_owned().into(), value)
        })
        .collect()
}

#[test]
fn the_page_is_what_the_registry_prints_of_the_same_samples() {
    let pieces = page(&StatsConfig::bare(), Some(&node()), &mut Known::default(), &[]);
    let pieces: Vec<String> = pieces.collect();
    let sizes: Vec<usize> = pieces.iter().map(String::len).collect();
    let page = pieces.concat();
    let mut again = Scrape::default();
    let (mut help, mut kind) = ("", Kind::Gauge);
    let lines: Vec<&str> = page.lines().collect();
    for line in &lines {
        if let Some(text) = line.strip_prefix("# HELP ") {
            help = text.split_once(' ').unwrap().1;
        } else if let Some(text) = line.strip_prefix("# TYPE ") {
            kind = if text.ends_with(" counter") { Kind::Counter } else { Kind::Gauge };
        } else {
            let (series, value) = match line.rsplit_once("\"} ") {
                Some((series, value)) => (format!("{series}\"}}"), value),
                None => line.split_once(' ').map(|(s, v)| (s.to_owned(), v)).unwrap(),
            };
            let (name, rest) = series.split_at(series.find('{').unwrap_or(series.len()));
            let mut words = value.split(' ');
            let number: f64 = words.next().unwrap().parse().unwrap();
            let at = words.next().map(|at| at.parse().unwrap());
            let family = again.named(name.to_owned(), help, kind);
            family.push(labels(rest), number.into(), at);
        }
    }
    let again = again.render();
    for (ours, registry) in lines.iter().zip(again.lines()) {
        assert_eq!(*ours, registry);
    }
    assert_eq!(page, again);
    let count = |start: &str| lines.iter().filter(|line| line.starts_with(start)).count();
    let (last, others) = sizes.split_last().unwrap();
    let sized = others.iter().all(|size| (60_000..=65_536).contains(size)) && *last <= 65_536;
    assert!(!others.is_empty() && sized, "{sizes:?}");
    assert_eq!(count("container_memory_failures_total{"), 40);
    assert_eq!(count("container_fs_reads_bytes_total{container=\"main\",device=\"\""), 2);
    assert_eq!(count("container_blkio_device_usage_total{container=\"main\""), 18);
    assert_eq!(count("container_network_receive_bytes_total{"), 4);
    assert_eq!(count("container_cpu_cfs_periods_total{"), 5);
    assert_eq!(count("container_ulimits_soft{"), 7, "of containers, sandboxes and the root");
    assert!(page.contains("container_memory_usage_bytes{container=\"main\",id=\"/kubepods/poda/main\",image=\"registry.example/a\\\"b\\\\c\",name=\"id-a-main\",namespace=\"n\",pod=\"a\"} 1e+07 1700000000123\n"), "{page}");
}
