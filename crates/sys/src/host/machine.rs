//! Processors, memory, identity and operating system (upstream: cadvisor `machine.Info`).

use crate::fs::{self, FsError};
use std::path::Path;
use std::time::Duration;

/// Huge pages of one size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HugePages {
    /// Size of one page in KiB.
    pub page_kib: u64,
    /// How many are reserved.
    pub count: u64,
}

/// Facts that hold until the next boot.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Machine {
    /// Online processors.
    pub cores: u64,
    /// `MemTotal` in bytes.
    pub memory_bytes: u64,
    /// `SwapTotal` in bytes.
    pub swap_bytes: u64,
    /// Huge page sizes the kernel knows.
    pub huge_pages: Vec<HugePages>,
    /// `/etc/machine-id`.
    pub machine_id: String,
    /// DMI's product id, or the machine id without one.
    pub system_uuid: String,
    /// The kernel's boot id.
    pub boot_id: String,
}

/// Reads the machine below these roots.
pub fn machine(proc: &Path, sys: &Path, etc: &Path) -> Result<Machine, FsError> {
    let meminfo = fs::read_to_string(proc.join("meminfo"))?;
    let machine_id = first_of(&[etc.join("machine-id"), etc.join("../var/lib/dbus/machine-id")]);
    let system_uuid = first_of(&[
        sys.join("class/dmi/id/product_uuid"),
        proc.join("device-tree/system-id"),
        proc.join("device-tree/vm,uuid"),
        etc.join("machine-id"),
    ]);
    Ok(Machine {
        cores: cores(proc, sys)?,
        memory_bytes: meminfo_kib(&meminfo, "MemTotal").saturating_mul(1024),
        swap_bytes: meminfo_kib(&meminfo, "SwapTotal").saturating_mul(1024),
        huge_pages: huge_pages(sys),
        machine_id,
        system_uuid,
        boot_id: first_of(&[proc.join("sys/kernel/random/boot_id")]),
    })
}

/// The machine's own host name.
pub fn hostname() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// The kernel's release; `Unknown` if it is not reported.
pub fn uname_release() -> String {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    if release.is_empty() { "Unknown".into() } else { release }
}

/// `PRETTY_NAME` of `os-release`, `Linux` without one, `Unknown` without a file.
pub fn os_image(etc: &Path) -> String {
    let text = fs::read_to_string(etc.join("os-release"))
        .or_else(|_| fs::read_to_string(etc.join("../usr/lib/os-release")));
    let Ok(text) = text else { return "Unknown".into() };
    // As upstream's regular expression: the first match anywhere, up to the end of its line.
    let name = text.split_once("PRETTY_NAME=").and_then(|(_, rest)| rest.split('\n').next());
    name.map_or("Linux", |name| name.trim_matches('"')).to_owned()
}

/// When the machine was booted, from its uptime.
pub fn boot_time(proc: &Path, now: jiff::Timestamp) -> Option<jiff::Timestamp> {
    let text = fs::read_to_string(proc.join("uptime")).ok()?;
    let seconds: f64 = text.split_whitespace().next()?.parse().ok()?;
    now.checked_sub(jiff::SignedDuration::try_from_secs_f64(seconds).ok()?).ok()
}

/// The idle time of all processors together since boot.
pub fn idle_time(proc: &Path) -> Option<Duration> {
    let text = fs::read_to_string(proc.join("uptime")).ok()?;
    let seconds: f64 = text.split_whitespace().nth(1)?.parse().ok()?;
    Duration::try_from_secs_f64(seconds).ok()
}

/// Size in bytes of the filesystem that holds `path`.
pub fn filesystem_bytes(path: &Path) -> Result<u64, FsError> {
    let stat = rustix::fs::statvfs(path).map_err(|e| FsError {
        operation: "stat filesystem of",
        path: path.to_owned(),
        source: e.into(),
    })?;
    Ok(stat.f_blocks.saturating_mul(stat.f_frsize))
}

fn first_of(paths: &[std::path::PathBuf]) -> String {
    let read = |path: &std::path::PathBuf| fs::read_to_string(path).ok();
    let text = paths.iter().find_map(read).unwrap_or_default();
    text.trim_matches(|c: char| c == '\0' || c.is_whitespace()).to_owned()
}

fn cores(proc: &Path, sys: &Path) -> Result<u64, FsError> {
    if let Ok(list) = fs::read_to_string(sys.join("devices/system/cpu/online"))
        && let Some(count) = count_list(list.trim())
    {
        return Ok(count);
    }
    let cpuinfo = fs::read_to_string(proc.join("cpuinfo"))?;
    let count = cpuinfo.lines().filter(|l| l.starts_with("processor")).count();
    Ok(u64::try_from(count).unwrap_or_default())
}

/// The number of elements in a list like `0-3,8`.
fn count_list(list: &str) -> Option<u64> {
    let mut count = 0_u64;
    for range in list.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u64, u64) = (first.parse().ok()?, last.parse().ok()?);
        count += last.checked_sub(first)? + 1;
    }
    Some(count)
}

fn meminfo_kib(meminfo: &str, key: &str) -> u64 {
    meminfo
        .lines()
        .find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))
        .and_then(|rest| rest.trim().trim_end_matches("kB").trim().parse().ok())
        .unwrap_or_default()
}

/// Sizes smallest first; a kernel without huge pages has none.
fn huge_pages(sys: &Path) -> Vec<HugePages> {
    let folder = sys.join("kernel/mm/hugepages");
    let names = fs::list_dir(&folder).unwrap_or_default();
    let mut pages: Vec<HugePages> = names
        .iter()
        .filter_map(|name| {
            let page_kib = name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
            let text = fs::read_to_string(folder.join(name).join("nr_hugepages")).ok()?;
            Some(HugePages { page_kib, count: text.trim().parse().ok()? })
        })
        .collect();
    pages.sort_by_key(|p| p.page_kib);
    pages
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_processors_in_a_kernel_list() {
        assert_eq!(count_list("0-3,8"), Some(5));
        assert_eq!(count_list("0"), Some(1));
        assert_eq!(count_list("3-1"), None);
        assert_eq!(count_list(""), None);
    }

    #[test]
    fn reads_a_machine_from_other_roots() {
        let root = std::env::temp_dir().join(format!("rubelet-machine-{}", std::process::id()));
        let write = |path: &str, text: &str| {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap(), 0o755).unwrap();
            fs::write(path, text).unwrap();
        };
        write("proc/meminfo", "MemTotal:       24682416 kB\nSwapTotal:  1024 kB\n");
        write("proc/sys/kernel/random/boot_id", "boot\n");
        write("proc/uptime", "350735.47 234388.25\n");
        write("sys/devices/system/cpu/online", "0-1\n");
        write("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "3\n");
        write("sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages", "0\n");
        write("etc/machine-id", "abc\n");
        write("etc/os-release", "NAME=x\nPRETTY_NAME=\"Some Linux 12\"\n");
        let (proc, sys, etc) = (root.join("proc"), root.join("sys"), root.join("etc"));
        let facts = machine(&proc, &sys, &etc).unwrap();
        assert_eq!(facts.cores, 2);
        assert_eq!(idle_time(&proc), Some(Duration::from_millis(234_388_250)));
        assert_eq!(facts.memory_bytes, 24_682_416 * 1024);
        assert_eq!(facts.swap_bytes, 1024 * 1024);
        assert_eq!(facts.system_uuid, "abc", "without DMI the machine id stands in");
        assert_eq!(facts.boot_id, "boot");
        assert_eq!(
            facts.huge_pages,
            [HugePages { page_kib: 2048, count: 3 }, HugePages { page_kib: 1_048_576, count: 0 }]
        );
        assert_eq!(os_image(&etc), "Some Linux 12");
        write("etc/os-release", "#PRETTY_NAME='Other Linux' \nPRETTY_NAME=\"Some Linux 12\"\n");
        assert_eq!(os_image(&etc), "'Other Linux' ");
        write("etc/os-release", "NAME=x\n");
        assert_eq!(os_image(&etc), "Linux");
        std::fs::remove_dir_all(&root).unwrap();
    }
}
