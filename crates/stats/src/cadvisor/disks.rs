//! Block devices and filesystems.

use super::lines::{Extra, Lines, Page, label};
use super::{Seen, Shown};
use crate::cadvisor::families::{BLKIO, float};
use crate::task::StatsConfig;
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use sys::mountinfo::MountEntry;
use sys::stats::{DeviceIo, FsUsage, fs_usage};
use telemetry::metrics::{Desc, Kind};

/// Maximal number of filesystems.
const MOST: usize = 128;
/// In addition to those whose names begin with `ext` (cadvisor: its plugins). Network filesystems
/// are excluded: a response does not wait for a file server that is down.
const KINDS: [&str; 17] = [
    "tmpfs", "overlay", "btrfs", "xfs", "squashfs", "f2fs", "jfs", "reiserfs", "hfs", "hfsplus",
    "ntfs", "vfat", "fat", "msdos", "exfat", "udf", "iso9660",
];

const fn d(name: &'static str, help: &'static str) -> Desc {
    Desc::unstated(name, help)
}

const READ_BYTES: Desc = d("container_fs_reads_bytes_total", "Cumulative count of bytes read");
const READS: Desc = d("container_fs_reads_total", "Cumulative count of reads completed");
const WRITE_BYTES: Desc = d("container_fs_writes_bytes_total", "Cumulative count of bytes written");
const WRITES: Desc = d("container_fs_writes_total", "Cumulative count of writes completed");

type OfFs = (Desc, fn(&FsUsage) -> u64);

static OF_FS: [OfFs; 4] = [
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

type OfIo = fn(&DeviceIo) -> Option<u64>;

/// I/O of a cgroup on a device.
static OF_CGROUP: [(Desc, OfIo); 4] = [
    (READ_BYTES, |io| io.bytes.get("Read").copied()),
    (WRITE_BYTES, |io| io.bytes.get("Write").copied()),
    (READS, |io| io.operations.get("Read").copied()),
    (WRITES, |io| io.operations.get("Write").copied()),
];

type OfDisk = (Desc, Kind, fn(&DiskCounters) -> f64);

static OF_DISK: [OfDisk; 11] = [
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

/// The kernel's milliseconds as upstream reports them: treated as nanoseconds (cadvisor:
/// `fs.ReadTime` and similar over `time.Second`).
fn millis(number: u64) -> f64 {
    float(number) / 1e9
}

/// A line of `/proc/diskstats`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct DiskCounters {
    /// `/dev/…`
    path: String,
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

/// A filesystem with its own name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Filesystem {
    device: String,
    number: (u64, u64),
    mount_point: PathBuf,
}

/// The mounted filesystems, each once. As upstream, to be called at start: later the mount table is
/// full of volumes.
pub(crate) fn filesystems(proc_root: &Path) -> Vec<Filesystem> {
    of_mounts(sys::mountinfo::read(proc_root).unwrap_or_default())
}

fn of_mounts(mounts: Vec<MountEntry>) -> Vec<Filesystem> {
    let mut found: Vec<Filesystem> = Vec::new();
    for mount in mounts {
        let kind = mount.fs_type.as_str();
        if !kind.starts_with("ext") && !KINDS.contains(&kind) {
            continue;
        }
        let device = match kind {
            // All tmpfs mounts have the same source.
            "tmpfs" => mount.mount_point.display().to_string(),
            "overlay" => format!("{}_{}-{}", mount.source, mount.major, mount.minor),
            _ => mount.source,
        };
        let number = (u64::from(mount.major), u64::from(mount.minor));
        let one = Filesystem { device, number, mount_point: mount.mount_point };
        let several = matches!(kind, "tmpfs" | "overlay");
        match found.iter_mut().find(|known| known.device == one.device) {
            Some(known) if several => *known = one,
            Some(_) => {}
            None => found.push(one),
        }
    }
    found.truncate(MOST);
    found
}

/// Devices and filesystems of the machine.
#[derive(Debug, Default)]
pub(super) struct Disks {
    by_number: HashMap<(u64, u64), DiskCounters>,
    /// Usage and counters by device name.
    filesystems: BTreeMap<String, (FsUsage, DiskCounters)>,
}

impl Disks {
    /// Reads the counters, and the usage of filesystems.
    pub(super) fn read(config: &StatsConfig, known: &[Filesystem]) -> Self {
        let text = sys::fs::read_to_string(config.roots.proc.join("diskstats"));
        let by_number = parse(&text.unwrap_or_default());
        let mut filesystems = BTreeMap::new();
        for one in known {
            // An unreachable mount point is skipped.
            if let Ok(usage) = fs_usage(&one.mount_point) {
                let counters = counters(&by_number, one).cloned().unwrap_or_default();
                filesystems.insert(one.device.clone(), (usage, counters));
            }
        }
        Self { by_number, filesystems }
    }

    /// The name of a device; empty if it is not known.
    fn name(&self, number: (u64, u64)) -> &str {
        self.by_number.get(&number).map_or("", |disk| &disk.path)
    }

    /// The I/O of cgroups by device.
    fn of_cgroups(&self, shown: &[Shown], used: &OfIo) -> Vec<Row<'_>> {
        let mut rows = Vec::new();
        for (index, s) in shown.iter().enumerate() {
            for io in &s.cgroup.usage.io {
                if let Some(value) = used(io) {
                    let device = self.name(io.device);
                    rows.push(Row { index, device, value: float(value), ..Row::default() });
                }
            }
        }
        rows
    }

    /// The machine's filesystems, with the root cgroup's labels.
    fn of_machine(
        &self,
        shown: &[Shown],
        value: impl Fn(&(FsUsage, DiskCounters)) -> f64,
    ) -> Vec<Row<'_>> {
        let Some(index) = shown.iter().position(|s| s.labels.key().1 == "/") else {
            return Vec::new();
        };
        let all = self.filesystems.iter();
        all.map(|(device, fs)| Row { index, device, value: value(fs), ..Row::default() }).collect()
    }

    /// Bytes by device and operation.
    fn blkio(&self, shown: &[Shown]) -> Vec<Row<'_>> {
        let mut rows = Vec::new();
        for (index, s) in shown.iter().enumerate() {
            for io in &s.cgroup.usage.io {
                for (operation, bytes) in &io.bytes {
                    rows.push(Row {
                        index,
                        device: self.name(io.device),
                        numbers: (io.device.0.to_string(), io.device.1.to_string()),
                        operation,
                        value: float(*bytes),
                    });
                }
            }
        }
        rows
    }
}

/// Adds the families of devices and filesystems.
pub(super) fn add(page: &mut Page) {
    for (desc, value) in &OF_FS {
        page.family(desc, Kind::Gauge, move |lines, seen| {
            write(lines, seen, seen.disks.of_machine(&seen.shown, |fs| float(value(&fs.0))));
        });
    }
    for (desc, kind, value) in &OF_DISK {
        let used = OF_CGROUP.iter().find(|(of, _)| of.name() == desc.name());
        page.family(desc, *kind, move |lines, seen| {
            let of_cgroups = |(_, used): &(Desc, OfIo)| seen.disks.of_cgroups(&seen.shown, used);
            let mut rows = used.map(of_cgroups).unwrap_or_default();
            rows.extend(seen.disks.of_machine(&seen.shown, |fs| value(&fs.1)));
            write(lines, seen, rows);
        });
    }
    for (desc, used) in OF_CGROUP
        .iter()
        .filter(|(of, _)| OF_DISK.iter().all(|(desc, _, _)| desc.name() != of.name()))
    {
        page.family(desc, Kind::Counter, move |lines, seen| {
            write(lines, seen, seen.disks.of_cgroups(&seen.shown, used));
        });
    }
    page.family(&BLKIO, Kind::Counter, |lines, seen| {
        write(lines, seen, seen.disks.blkio(&seen.shown));
    });
}

/// A sample about a device.
#[derive(Debug, Default)]
struct Row<'a> {
    /// The index of the cgroup.
    index: usize,
    device: &'a str,
    /// Major and minor number; empty where they are not labels.
    numbers: (String, String),
    operation: &'static str,
    value: f64,
}

/// Adds samples sorted by their label values; each label set once.
fn write(lines: &mut Lines<'_>, seen: &Seen, mut rows: Vec<Row<'_>>) {
    let shown = &seen.shown;
    let container = |row: &Row<'_>| shown.get(row.index).map(|s| s.labels.container());
    let own = |row: &Row<'_>| (row.index, row.operation);
    rows.sort_by(|a, b| {
        let devices = (container(a), a.device).cmp(&(container(b), b.device));
        devices.then_with(|| {
            (a.index, &a.numbers, a.operation).cmp(&(b.index, &b.numbers, b.operation))
        })
    });
    rows.dedup_by(|a, b| own(a) == own(b) && a.device == b.device && a.numbers == b.numbers);
    for row in rows {
        let Some(s) = shown.get(row.index) else { continue };
        let device = label("device", row.device);
        if row.operation.is_empty() {
            lines.with(&s.labels, Extra { before_id: &device, ..Extra::default() }, row.value);
            continue;
        }
        let mut numbers = label("major", &row.numbers.0);
        numbers.push_str(&label("minor", &row.numbers.1));
        let operation = label("operation", row.operation);
        let extra = Extra {
            before_id: &device,
            after_image: &numbers,
            after_namespace: &operation,
            after_pod: "",
        };
        lines.with(&s.labels, extra, row.value);
    }
}

/// The counters of a filesystem's device, by its name or else by its number.
fn counters<'a>(
    disks: &'a HashMap<(u64, u64), DiskCounters>,
    filesystem: &Filesystem,
) -> Option<&'a DiskCounters> {
    let named = disks.values().find(|disk| disk.path == filesystem.device);
    named.or_else(|| disks.get(&filesystem.number)).filter(|disk| is_counted(&disk.path))
}

/// Whether upstream reports the counters of a device (cadvisor: `partitionRegex`).
fn is_counted(path: &str) -> bool {
    let name = path.strip_prefix("/dev/").unwrap_or(path);
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if let Some(number) = name.strip_prefix("dm-") {
        return !number.is_empty() && digits(number);
    }
    let letters = ["sd", "vd", "xvd"].iter().find_map(|kind| name.strip_prefix(kind));
    letters.is_some_and(|rest| {
        let number = rest.trim_start_matches(|c: char| c.is_ascii_lowercase());
        number.len() < rest.len() && digits(number)
    })
}

fn parse(text: &str) -> HashMap<(u64, u64), DiskCounters> {
    text.lines().filter_map(parse_line).collect()
}

fn parse_line(line: &str) -> Option<((u64, u64), DiskCounters)> {
    let mut fields = line.split_whitespace();
    let number = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    let path = format!("/dev/{}", fields.next()?);
    let numbers: Vec<u64> = fields.map_while(|n| n.parse().ok()).collect();
    let at = |index: usize| numbers.get(index).copied();
    let counters = DiskCounters {
        path,
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
        assert_eq!((disk.path.as_str(), disk.reads, disk.sectors_written), ("/dev/sda1", 10, 160));
        assert_eq!((disk.in_progress, disk.io_ms, disk.weighted_ms), (3, 7, 8));
        let shown = OF_DISK.iter().find(|(desc, ..)| desc.name().contains("io_time_seconds"));
        assert_eq!(shown.map(|(_, _, value)| value(disk)), Some(0.000_000_007), "upstream's unit");
        assert_eq!(disks.len(), 1);
    }

    #[test]
    fn filesystems_in_memory_are_told_apart_by_their_places() {
        let table = "1 1 0:1 / / rw - ext4 /dev/vda rw\n\
                     2 1 0:2 / /proc rw - proc proc rw\n\
                     3 1 0:3 / /dev/shm rw - tmpfs tmpfs rw\n\
                     4 1 0:4 / /run rw - tmpfs tmpfs rw\n\
                     5 1 0:5 / /run rw - tmpfs other rw\n\
                     6 1 0:6 / /rootfs rw - overlay overlay rw\n\
                     7 1 0:1 /x /bound rw - ext4 /dev/vda rw\n\
                     8 1 0:7 / /far rw - nfs4 server:/x rw\n\
                     9 1 0:8 / /boot rw - vfat /dev/vdb1 rw\n";
        let found = of_mounts(sys::mountinfo::parse(table.as_bytes()));
        let shown: Vec<(&str, u64)> =
            found.iter().map(|one| (one.device.as_str(), one.number.1)).collect();
        let want =
            [("/dev/vda", 1), ("/dev/shm", 3), ("/run", 5), ("overlay_0-6", 6), ("/dev/vdb1", 8)];
        assert_eq!(shown, want);
        assert_eq!(found[0].mount_point, Path::new("/"));
    }

    #[test]
    fn only_some_devices_are_counted() {
        for path in ["/dev/sda", "/dev/vdb12", "/dev/xvda1", "/dev/dm-0"] {
            assert!(is_counted(path), "{path}");
        }
        for path in ["/dev/nvme0n1", "/dev/loop0", "/dev/dm-", "/dev/sd", "/dev/sd1", "/dev/sda1b"]
        {
            assert!(!is_counted(path), "{path}");
        }
    }
}
