//! Cgroup files, version 1 and version 2.
//!
//! Owns: finding the hierarchies, and making, reading, writing and removing cgroups in them by a
//! path relative to the hierarchy's root (`kubepods/burstable/pod…`).
//!
//! Promises: never touches a cgroup whose path it was not given; removal takes empty cgroups only,
//! leaves first. On version 1 one logical cgroup is a directory in each mounted controller; a new
//! cpuset inherits CPUs and memory nodes from its parent, without which nothing can run in it.
//!
//! Deliberately absent: names, values and when to write them (`engine::cgroup`), systemd.

use crate::fs::{self, FsError};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

const CGROUP2_SUPER_MAGIC: i64 = 0x6367_7270;

/// Controllers that version 1 must have for a cgroup to count as existing.
const V1_CHECKED: [&str; 7] =
    ["cpu", "cpuacct", "cpuset", "memory", "name=systemd", "pids", "hugetlb"];
/// Controllers that version 2 must have enabled for a cgroup to count as existing.
const V2_CHECKED: [&str; 5] = ["cpu", "cpuset", "memory", "hugetlb", "pids"];

/// Name of the version 2 hierarchy next to those of version 1; no controller has this name.
const UNIFIED: &str = "unified";

/// How often this process changed a setting of a cgroup.
static CHANGES: AtomicU64 = AtomicU64::new(0);

/// A count that grows with every cgroup setting that this process changes, by file or through
/// systemd (where an unchanged setting counts too). A cache of settings is valid while it stays the
/// same.
pub fn changes() -> u64 {
    CHANGES.load(Ordering::Acquire)
}

pub(crate) fn note_change() {
    CHANGES.fetch_add(1, Ordering::Release);
}

/// The machine's cgroup hierarchies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cgroups {
    /// One hierarchy per controller (named hierarchies as `name=systemd`).
    V1 {
        /// Mount point by controller.
        mounts: BTreeMap<String, PathBuf>,
    },
    /// The unified hierarchy.
    V2 {
        /// Its mount point.
        root: PathBuf,
    },
}

/// Why cgroups could not be found.
#[derive(Debug, thiserror::Error)]
pub enum CgroupHostError {
    /// No cgroup filesystem is mounted.
    #[error("no cgroup filesystem is mounted; mount cgroup2 on /sys/fs/cgroup")]
    NotMounted,
    /// The mount table could not be read.
    #[error("cannot find the cgroup mounts")]
    Mounts(#[source] FsError),
}

impl Cgroups {
    /// Detects the hierarchies from `sys_root/fs/cgroup` and the mount table below `proc_root`.
    pub fn detect(sys_root: &Path, proc_root: &Path) -> Result<Self, CgroupHostError> {
        let base = sys_root.join("fs/cgroup");
        if let Ok(stat) = rustix::fs::statfs(&base)
            && stat.f_type == CGROUP2_SUPER_MAGIC
        {
            return Ok(Self::V2 { root: base });
        }
        let table =
            fs::read_to_string(proc_root.join("self/mounts")).map_err(CgroupHostError::Mounts)?;
        let mounts = v1_mounts(&table);
        if mounts.is_empty() { Err(CgroupHostError::NotMounted) } else { Ok(Self::V1 { mounts }) }
    }

    /// Whether this is the unified hierarchy.
    pub fn is_v2(&self) -> bool {
        matches!(self, Self::V2 { .. })
    }

    /// The directory of a cgroup for one controller, if that controller exists.
    pub fn dir(&self, controller: &str, path: &str) -> Option<PathBuf> {
        let relative = path.trim_start_matches('/');
        match self {
            Self::V1 { mounts } => mounts.get(controller).map(|m| m.join(relative)),
            Self::V2 { root } => Some(root.join(relative)),
        }
    }

    /// All directories that make up the cgroup.
    fn dirs(&self, path: &str) -> Vec<(&str, PathBuf)> {
        let relative = path.trim_start_matches('/');
        match self {
            Self::V1 { mounts } => {
                mounts.iter().map(|(c, m)| (c.as_str(), m.join(relative))).collect()
            }
            Self::V2 { root } => vec![("", root.join(relative))],
        }
    }

    /// What is missing for the cgroup to count as existing: controllers on version 2, directories
    /// on version 1. Empty means that it exists.
    pub fn missing(&self, path: &str) -> Vec<String> {
        match self {
            Self::V1 { mounts } => V1_CHECKED
                .iter()
                .filter_map(|c| mounts.get(*c))
                .map(|mount| mount.join(path.trim_start_matches('/')))
                .filter(|dir| !dir.is_dir())
                .map(|dir| dir.display().to_string())
                .collect(),
            Self::V2 { root } => {
                let offered = read_words(&root.join("cgroup.controllers"));
                let dir = root.join(path.trim_start_matches('/'));
                let enabled = read_words(&dir.join("cgroup.controllers"));
                let absent = if dir.is_dir() { Vec::new() } else { vec![path.to_owned()] };
                V2_CHECKED
                    .iter()
                    .filter(|c| offered.contains(**c) && !enabled.contains(**c))
                    .map(|c| (*c).to_owned())
                    .chain(absent)
                    .collect()
            }
        }
    }

    /// Whether the cgroup exists with all the controllers that count.
    pub fn exists(&self, path: &str) -> bool {
        self.missing(path).is_empty()
    }

    /// Whether the cgroup has a directory in any hierarchy.
    pub fn is_there(&self, path: &str) -> bool {
        self.dirs(path).iter().any(|(_, dir)| dir.is_dir())
    }

    /// Makes the cgroup and its parents, with every controller enabled.
    pub fn create(&self, path: &str) -> Result<(), FsError> {
        match self {
            Self::V1 { mounts } => {
                for (controller, mount) in mounts {
                    let mut dir = mount.clone();
                    for part in parts(path) {
                        dir.push(part);
                        make_dir(&dir)?;
                        if controller == "cpuset" {
                            inherit_cpuset(&dir)?;
                        }
                    }
                }
                Ok(())
            }
            Self::V2 { root } => {
                let offered = read_words(&root.join("cgroup.controllers"));
                let mut dir = root.clone();
                for part in parts(path) {
                    enable_controllers(&dir, &offered);
                    dir.push(part);
                    make_dir(&dir)?;
                }
                Ok(())
            }
        }
    }

    /// Reads one control file, without the trailing newline.
    pub fn read(&self, controller: &str, path: &str, file: &str) -> Result<String, FsError> {
        let text = fs::read_to_string(self.file(controller, path, file)?)?;
        Ok(text.trim_end().to_owned())
    }

    /// Writes one control file.
    pub fn write(
        &self,
        controller: &str,
        path: &str,
        file: &str,
        value: &str,
    ) -> Result<(), FsError> {
        let file = self.file(controller, path, file)?;
        // A setting may read differently from what was written, so the readings before and after
        // are compared.
        let text = || fs::read_to_string(&file).ok();
        let before = text();
        let written = fs::write(&file, value);
        if before.is_none() || text() != before {
            note_change();
        }
        written
    }

    /// Whether a control file is there.
    pub fn has(&self, controller: &str, path: &str, file: &str) -> bool {
        self.file(controller, path, file).is_ok_and(|f| f.is_file())
    }

    fn file(&self, controller: &str, path: &str, file: &str) -> Result<PathBuf, FsError> {
        self.dir(controller, path).map(|d| d.join(file)).ok_or_else(|| FsError {
            operation: "find controller of",
            path: file.into(),
            source: io::Error::new(io::ErrorKind::NotFound, format!("no {controller} controller")),
        })
    }

    /// Names of the cgroups directly below `path`, in any controller.
    pub fn children(&self, path: &str) -> BTreeSet<String> {
        let mut names = BTreeSet::new();
        for (_, dir) in self.dirs(path) {
            names.extend(texts(folders(&dir)));
        }
        names
    }

    /// Names of the cgroups directly below `path` in the hierarchy of one controller: a single
    /// listing, without a stat of each entry.
    pub fn below(&self, controller: &str, path: &str) -> Vec<String> {
        texts(self.dir(controller, path).and_then(|dir| folders(&dir))).collect()
    }

    /// Every process in the cgroup and below.
    pub fn pids(&self, path: &str) -> BTreeSet<i32> {
        let mut pids = BTreeSet::new();
        for (_, dir) in self.dirs(path) {
            walk(&dir, &mut |d| {
                let text = fs::read_to_string(d.join("cgroup.procs")).unwrap_or_default();
                pids.extend(text.lines().filter_map(|l| l.trim().parse::<i32>().ok()));
            });
        }
        pids
    }

    /// A process of the cgroup or of one below it. A container can create any number of cgroups, so
    /// only the first few are searched.
    pub fn process_below(&self, path: &str) -> Option<i32> {
        const LOOKED_AT: usize = 64;
        let (_, top) = self.dirs(path).into_iter().next()?;
        let mut below = VecDeque::from([top]);
        for _ in 0..LOOKED_AT {
            let folder = below.pop_front()?;
            let processes = fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default();
            if let Some(pid) = processes.lines().find_map(|line| line.trim().parse().ok()) {
                return Some(pid);
            }
            let names = folders(&folder).unwrap_or_default();
            below.extend(names.iter().take(LOOKED_AT).map(|name| folder.join(name)));
        }
        None
    }

    /// Moves a process into the cgroup, in every hierarchy; the cgroup is created if necessary.
    pub fn enter(&self, path: &str, pid: i32) -> Result<(), FsError> {
        self.create(path)?;
        for (_, dir) in self.dirs(path) {
            fs::write(dir.join("cgroup.procs"), pid.to_string())?;
        }
        Ok(())
    }

    /// Removes the cgroup and everything below it; they must have no processes. A missing one is
    /// fine.
    pub fn remove(&self, path: &str) -> Result<(), FsError> {
        if parts(path).next().is_none() {
            return Ok(());
        }
        for (_, dir) in self.dirs(path) {
            let mut all = Vec::new();
            walk(&dir, &mut |d| all.push(d.to_owned()));
            for folder in all.iter().rev() {
                fs::remove_dir(folder)?;
            }
        }
        Ok(())
    }
}

/// Path parts without empty, `.` and `..` ones, so that nothing leaves the hierarchy.
fn parts(path: &str) -> impl Iterator<Item = &str> {
    path.split('/').filter(|p| !p.is_empty() && *p != "." && *p != "..")
}

fn make_dir(dir: &Path) -> Result<(), FsError> {
    match std::fs::create_dir(dir) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => {
            Err(FsError { operation: "create cgroup", path: dir.to_owned(), source: e })
        }
        _ => Ok(()),
    }
}

fn read_words(file: &Path) -> BTreeSet<String> {
    let text = fs::read_to_string(file).unwrap_or_default();
    text.split_whitespace().map(str::to_owned).collect()
}

/// Enables one controller at a time: one that is not available must not prevent the others.
fn enable_controllers(dir: &Path, offered: &BTreeSet<String>) {
    let file = dir.join("cgroup.subtree_control");
    let enabled = read_words(&file);
    for controller in offered.difference(&enabled) {
        if let Err(error) = fs::write(&file, format!("+{controller}")) {
            tracing::debug!(%error, controller, "controller not enabled");
        }
    }
}

fn inherit_cpuset(dir: &Path) -> Result<(), FsError> {
    let Some(parent) = dir.parent() else { return Ok(()) };
    for file in ["cpuset.cpus", "cpuset.mems"] {
        if fs::read_to_string(dir.join(file))?.trim().is_empty() {
            let inherited = fs::read_to_string(parent.join(file))?;
            fs::write(dir.join(file), inherited.trim())?;
        }
    }
    Ok(())
}

/// Visits a directory and all directories below it, parents first.
fn walk(dir: &Path, visit: &mut impl FnMut(&Path)) {
    let Some(below) = folders(dir) else { return };
    visit(dir);
    for name in below {
        walk(&dir.join(name), visit);
    }
}

/// Names that are UTF-8: runtimes and kubelets create no others.
fn texts(names: Option<Vec<OsString>>) -> impl Iterator<Item = String> {
    names.into_iter().flatten().filter_map(|name| name.into_string().ok())
}

/// Names of the directories in a directory, by the entry types of its listing, without a stat of
/// each of the dozens of files in a cgroup; `None` if it is not a directory.
fn folders(dir: &Path) -> Option<Vec<OsString>> {
    let entries = std::fs::read_dir(dir).ok()?.flatten();
    let folders = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    Some(folders.map(|entry| entry.file_name()).collect())
}

/// Version 1 mounts by controller from the text of a mount table; the first mount of a controller
/// wins. A version 2 hierarchy next to them ("hybrid") is included: runtimes put containers there
/// too.
fn v1_mounts(table: &str) -> BTreeMap<String, PathBuf> {
    const KNOWN: [&str; 14] = [
        "cpu",
        "cpuacct",
        "cpuset",
        "memory",
        "devices",
        "freezer",
        "blkio",
        "pids",
        "hugetlb",
        "net_cls",
        "net_prio",
        "perf_event",
        "rdma",
        "misc",
    ];
    let mut mounts = BTreeMap::new();
    let mut unified = None;
    for line in table.lines() {
        let fields: Vec<&str> = line.split_whitespace().collect();
        if let [_, target, "cgroup2", ..] = fields.as_slice()
            && target.ends_with("/cgroup/unified")
        {
            unified = Some(PathBuf::from(target));
        }
        let [_, target, "cgroup", options, ..] = fields.as_slice() else { continue };
        for option in options.split(',') {
            if KNOWN.contains(&option) || option.starts_with("name=") {
                mounts.entry(option.to_owned()).or_insert_with(|| PathBuf::from(target));
            }
        }
    }
    if let Some(unified) = unified.filter(|_| !mounts.is_empty()) {
        mounts.insert(UNIFIED.to_owned(), unified);
    }
    mounts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_joint_named_and_unified_hierarchies() {
        let mounts = v1_mounts(
            "tmpfs /sys/fs/cgroup tmpfs rw 0 0\n\
             cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,relatime,cpu,cpuacct 0 0\n\
             cgroup /sys/fs/cgroup/systemd cgroup rw,relatime,xattr,name=systemd 0 0\n\
             cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n",
        );
        let found: Vec<(&str, &str)> =
            mounts.iter().map(|(c, p)| (c.as_str(), p.to_str().unwrap())).collect();
        assert_eq!(
            found,
            [
                ("cpu", "/sys/fs/cgroup/cpu,cpuacct"),
                ("cpuacct", "/sys/fs/cgroup/cpu,cpuacct"),
                ("name=systemd", "/sys/fs/cgroup/systemd"),
                ("unified", "/sys/fs/cgroup/unified"),
            ]
        );
    }

    #[test]
    fn a_unified_hierarchy_beside_those_of_version_1_counts() {
        let unified = "cgroup2 /sys/fs/cgroup/unified cgroup2 rw,relatime 0 0\n";
        let table = format!("cgroup /sys/fs/cgroup/pids cgroup rw,relatime,pids 0 0\n{unified}");
        let mounts = v1_mounts(&table);
        assert_eq!(mounts.keys().collect::<Vec<_>>(), ["pids", "unified"]);
        assert!(v1_mounts(unified).is_empty(), "version 1 is not there at all");
    }

    #[test]
    fn only_a_setting_that_becomes_another_is_a_change() {
        let root = std::env::temp_dir().join(format!("rubelet-change-{}", std::process::id()));
        fs::create_dir_all(root.join("p"), 0o755).unwrap();
        let cgroups = Cgroups::V2 { root: root.clone() };
        let write = |value: &str| {
            // Other tests of this process may change settings concurrently, so not every attempt is
            // conclusive.
            (0..1000).any(|_| {
                let before = changes();
                cgroups.write("", "/p", "cpu.weight", value).unwrap();
                changes() == before
            })
        };
        let before = changes();
        cgroups.write("", "/p", "cpu.weight", "5").unwrap();
        assert!(changes() > before);
        assert!(write("5"), "written again and again it stays");
        std::fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn paths_cannot_leave_the_hierarchy() {
        assert_eq!(parts("/kubepods/../../x/./y").collect::<Vec<_>>(), ["kubepods", "x", "y"]);
    }

    #[test]
    fn v2_exists_only_with_every_offered_controller() {
        let root = std::env::temp_dir().join(format!("rubelet-cgroup-{}", std::process::id()));
        fs::create_dir_all(root.join("kubepods"), 0o755).unwrap();
        fs::write(root.join("cgroup.controllers"), "cpuset cpu io memory pids\n").unwrap();
        fs::write(root.join("kubepods/cgroup.controllers"), "cpu memory\n").unwrap();
        let cgroups = Cgroups::V2 { root: root.clone() };
        assert_eq!(cgroups.missing("/kubepods"), ["cpuset", "pids"]);
        fs::write(root.join("kubepods/cgroup.controllers"), "cpuset cpu memory pids\n").unwrap();
        assert!(cgroups.exists("kubepods"));
        assert!(!cgroups.exists("kubepods/pod1"));
        std::fs::remove_dir_all(&root).unwrap();
    }
}
