//! Block devices and filesystems.

use super::{Samples, fill_blkio};
use crate::cadvisor::families::float;
use crate::reading::CgroupReading;
use crate::task::StatsConfig;
use std::collections::{BTreeMap, HashMap};
use sys::stats::{FsUsage, fs_usage};
use telemetry::metrics::{Desc, Kind};

/// Filesystems shown at most.
const MOST: usize = 128;
const KINDS: [&str; 6] = ["ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs"];

const fn d(name: &'static str, help: &'static str) -> Desc {
    Desc::unstated(name, help)
}

const READ_BYTES: Desc = d("container_fs_reads_bytes_total", "Cumulative count of bytes read");
const READS: Desc = d("container_fs_reads_total", "Cumulative count of reads completed");
const WRITE_BYTES: Desc = d("container_fs_writes_bytes_total", "Cumulative count of bytes written");
const WRITES: Desc = d("container_fs_writes_total", "Cumulative count of writes completed");

type OfFs = (Desc, fn(&FsUsage) -> u64);

const OF_FS: [OfFs; 4] = [
    (d("container_fs_inodes_free", "Number of available Inodes"), |u| u.inodes_free),
    (d("container_fs_inodes_total", "Number of Inodes"), |u| u.inodes),
    (
        d(
            "container_fs_limit_bytes",
            "Number of bytes that can be consumed by the container on this filesystem.",
        ),
        |u| u.capacity,
    ),
    (
        d(
            "container_fs_usage_bytes",
            "Number of bytes that are consumed by the container on this filesystem.",
        ),
        |u| u.used,
    ),
];

type OfDisk = (Desc, Kind, fn(&DiskCounters) -> f64);

const OF_DISK: [OfDisk; 11] = [
    (READS, Kind::Counter, |c| float(c.reads)),
    (
        d("container_fs_sector_reads_total", "Cumulative count of sector reads completed"),
        Kind::Counter,
        |c| float(c.sectors_read),
    ),
    (
        d("container_fs_reads_merged_total", "Cumulative count of reads merged"),
        Kind::Counter,
        |c| float(c.reads_merged),
    ),
    (
        d("container_fs_read_seconds_total", "Cumulative count of seconds spent reading"),
        Kind::Counter,
        |c| millis(c.read_ms),
    ),
    (WRITES, Kind::Counter, |c| float(c.writes)),
    (
        d("container_fs_sector_writes_total", "Cumulative count of sector writes completed"),
        Kind::Counter,
        |c| float(c.sectors_written),
    ),
    (
        d("container_fs_writes_merged_total", "Cumulative count of writes merged"),
        Kind::Counter,
        |c| float(c.writes_merged),
    ),
    (
        d("container_fs_write_seconds_total", "Cumulative count of seconds spent writing"),
        Kind::Counter,
        |c| millis(c.write_ms),
    ),
    (d("container_fs_io_current", "Number of I/Os currently in progress"), Kind::Gauge, |c| {
        float(c.in_progress)
    }),
    (
        d("container_fs_io_time_seconds_total", "Cumulative count of seconds spent doing I/Os"),
        Kind::Counter,
        |c| millis(c.io_ms),
    ),
    (
        d("container_fs_io_time_weighted_seconds_total", "Cumulative weighted I/O time in seconds"),
        Kind::Counter,
        |c| millis(c.weighted_ms),
    ),
];

fn millis(number: u64) -> f64 {
    float(number) / 1e3
}

/// A line of `/proc/diskstats`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct DiskCounters {
    name: String,
    reads: u64,
    reads_merged: u64,
    sectors_read: u64,
    read_ms: u64,
    writes: u64,
    writes_merged: u64,
    sectors_written: u64,
    write_ms: u64,
    in_progress: u64,
    io_ms: u64,
    weighted_ms: u64,
}

/// Devices and filesystems of the machine.
#[derive(Debug, Default)]
pub(super) struct Disks {
    by_number: HashMap<(u64, u64), DiskCounters>,
    /// Usage and counters by device name.
    filesystems: BTreeMap<String, (FsUsage, DiskCounters)>,
}

impl Disks {
    /// Reads the counters, and the filesystems that lie on block devices.
    pub(super) fn read(config: &StatsConfig) -> Self {
        let text = sys::fs::read_to_string(config.roots.proc.join("diskstats"));
        let by_number = parse(&text.unwrap_or_default());
        let mut filesystems = BTreeMap::new();
        let mounts = sys::mountinfo::read(&config.roots.proc).unwrap_or_default();
        let on_disks = mounts.iter().filter(|m| KINDS.contains(&m.fs_type.as_str()));
        for mount in on_disks.filter(|m| m.source.starts_with("/dev/")) {
            if filesystems.len() >= MOST || filesystems.contains_key(&mount.source) {
                continue;
            }
            if let Ok(usage) = fs_usage(&mount.mount_point) {
                let number = (u64::from(mount.major), u64::from(mount.minor));
                let counters = by_number.get(&number).cloned().unwrap_or_default();
                filesystems.insert(mount.source.clone(), (usage, counters));
            }
        }
        Self { by_number, filesystems }
    }

    /// The devices that a cgroup used.
    pub(super) fn fill(&self, samples: &mut Samples<'_>, cgroup: &CgroupReading) {
        for io in &cgroup.usage.io {
            let known = self.by_number.get(&io.device);
            let name = known.map(|disk| format!("/dev/{}", disk.name)).unwrap_or_default();
            for (operation, bytes) in &io.bytes {
                fill_blkio(samples, (&name, io.device.0, io.device.1), operation, *bytes);
            }
            let pairs = [
                (&READ_BYTES, io.bytes.get("Read")),
                (&WRITE_BYTES, io.bytes.get("Write")),
                (&READS, io.operations.get("Read")),
                (&WRITES, io.operations.get("Write")),
            ];
            for (desc, value) in pairs {
                if let Some(value) = value {
                    samples.push(desc, Kind::Counter, &[("device", &name)], float(*value));
                }
            }
        }
    }

    /// The machine's filesystems.
    pub(super) fn fill_filesystems(&self, samples: &mut Samples<'_>) {
        for (device, (usage, counters)) in &self.filesystems {
            let extra = [("device", device.as_str())];
            for (desc, value) in &OF_FS {
                samples.push(desc, Kind::Gauge, &extra, float(value(usage)));
            }
            for (desc, kind, value) in &OF_DISK {
                samples.push(desc, *kind, &extra, value(counters));
            }
        }
    }
}

fn parse(text: &str) -> HashMap<(u64, u64), DiskCounters> {
    text.lines().filter_map(parse_line).collect()
}

fn parse_line(line: &str) -> Option<((u64, u64), DiskCounters)> {
    let mut fields = line.split_whitespace();
    let number = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    let name = fields.next()?.to_owned();
    let numbers: Vec<u64> = fields.map_while(|n| n.parse().ok()).collect();
    let at = |index: usize| numbers.get(index).copied();
    let counters = DiskCounters {
        name,
        reads: at(0)?,
        reads_merged: at(1)?,
        sectors_read: at(2)?,
        read_ms: at(3)?,
        writes: at(4)?,
        writes_merged: at(5)?,
        sectors_written: at(6)?,
        write_ms: at(7)?,
        in_progress: at(8)?,
        io_ms: at(9)?,
        weighted_ms: at(10)?,
    };
    Some((number, counters))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_kernels_counters() {
        let text = "   8       1 sda1 10 1 80 5 20 2 160 6 3 7 8 0 0 0 0\n broken\n";
        let disks = parse(text);
        let disk = &disks[&(8, 1)];
        assert_eq!((disk.name.as_str(), disk.reads, disk.sectors_written), ("sda1", 10, 160));
        assert_eq!((disk.in_progress, disk.io_ms, disk.weighted_ms), (3, 7, 8));
        assert_eq!(disks.len(), 1);
    }
}
