//! A cgroup whose directories, and files that change by themselves, stay open between reads.
//!
//! Opening a file takes nine tenths of the time of reading it. Values that only a write changes
//! (limits, shares) and those that a machine-wide counter announces (OOM kills) are read again when
//! the caller says so, and opened only for that. A held file of a removed cgroup cannot be read any
//! more, and keeps only a few hundred bytes of the cgroup alive.
//!
//! The first access to a file makes the kernel create its inode, which takes longer than to open
//! and read it. So a file whose content is known is not opened, and a cgroup without children has
//! no open directories of its own.

use super::cached_fd::CachedFd;
use super::{CgroupUsage, v1, v2};
use crate::cgroup::Cgroups;
use crate::stats::read_all::{ROOM, read_all};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, RawDir, Stat};
use rustix::io::Errno;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

/// Limits at or above this mean "none".
const UNLIMITED: u64 = 1 << 62;

/// What is read again, in addition to the values that change by themselves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Look {
    /// Limits, shares, quotas.
    pub settings: bool,
    /// Processes killed by the OOM killer.
    pub kills: bool,
    /// I/O: a cgroup has none on devices on which its parent has none.
    pub io: bool,
    /// Whether a device of the machine uses the BFQ scheduler, which has its own I/O counters
    /// (version 1).
    pub bfq: bool,
}

impl Default for Look {
    fn default() -> Self {
        Self { settings: true, kills: true, io: true, bfq: true }
    }
}

/// Two counters that show whether anything in a cgroup, or below it, ran or holds another amount of
/// memory: both include everything below.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pulse {
    cpu_ns: u64,
    memory: u64,
}

/// What of a cgroup stays open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hold {
    /// Its directories.
    Folders,
    /// Also the files that are read every time. Each takes a page of kernel memory.
    Files,
}

/// The hierarchies that are read on version 1; on version 2 all are the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Controller {
    Cpuacct,
    Cpu,
    Memory,
    Blkio,
    Pids,
}

const CONTROLLERS: [(Controller, &str); 5] = [
    (Controller::Cpuacct, "cpuacct"),
    (Controller::Cpu, "cpu"),
    (Controller::Memory, "memory"),
    (Controller::Blkio, "blkio"),
    (Controller::Pids, "pids"),
];

/// A cgroup that is read repeatedly.
#[derive(Debug)]
pub struct HeldCgroup {
    place: Place,
    /// Files that are read every time, without missing ones.
    held: Held,
    is_root: bool,
    created: i64,
    /// The last result, which provides the values that are not read again.
    last: Option<CgroupUsage>,
}

/// The directories of one cgroup, one in each hierarchy.
#[derive(Debug)]
struct Folders {
    v2: bool,
    open: [Option<CachedFd>; 5],
}

impl Folders {
    /// Opens them one by one; `None` if the cgroup does not exist.
    fn open(v2: bool, open: impl Fn(Controller, &str) -> Option<OwnedFd>) -> Option<Self> {
        let mut folders = [const { None }; 5];
        for ((controller, name), slot) in CONTROLLERS.iter().zip(&mut folders) {
            *slot = open(*controller, name).map(CachedFd::new);
            // The first one decides whether the cgroup exists.
            if *controller == Controller::Cpuacct && slot.is_none() {
                return None;
            }
            if v2 {
                break;
            }
        }
        Some(Self { v2, open: folders })
    }

    fn of(&self, controller: Controller) -> Option<BorrowedFd<'_>> {
        let index = if self.v2 {
            0
        } else {
            CONTROLLERS.iter().position(|(known, _)| *known == controller)?
        };
        self.open.get(index)?.as_ref().map(AsFd::as_fd)
    }
}

const FOLDER: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

fn folder(path: &Path) -> Option<OwnedFd> {
    rustix::fs::open(path, FOLDER, Mode::empty()).ok()
}

/// Where a cgroup is: in its own open directories, or by its name in those of its parent.
#[derive(Debug)]
struct Place {
    folders: Arc<Folders>,
    name: String,
}

impl Place {
    fn stat(&self) -> Option<Stat> {
        let folder = self.folders.of(Controller::Cpuacct)?;
        rustix::fs::statat(folder, self.name.as_str(), AtFlags::EMPTY_PATH).ok()
    }

    /// The path of a file of the cgroup, relative to the open directory.
    fn path(&self, file: &str) -> String {
        if self.name.is_empty() { file.to_owned() } else { format!("{}/{file}", self.name) }
    }

    fn file(&self, controller: Controller, file: &str) -> Option<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let folder = self.folders.of(controller)?;
        rustix::fs::openat(folder, self.path(file), flags, Mode::empty()).ok()
    }
}

impl HeldCgroup {
    /// Opens the directories; `None` if the cgroup does not exist.
    pub fn open(host: &Cgroups, path: &str, hold: Hold) -> Option<Self> {
        let open = |_, name: &str| host.dir(name, path).and_then(|dir| folder(&dir));
        let folders = Folders::open(host.is_v2(), open)?;
        let is_root = path.trim_matches('/').is_empty();
        Self::new(Place { folders: Arc::new(folders), name: String::new() }, hold, is_root)
    }

    /// Opens a child by its name, with its own directories for children of its own.
    pub fn below(&self, name: &str, hold: Hold) -> Option<Self> {
        let open = |controller, _: &str| {
            let folder = self.place.folders.of(controller)?;
            rustix::fs::openat(folder, self.place.path(name), FOLDER, Mode::empty()).ok()
        };
        let folders = Arc::new(Folders::open(self.place.folders.v2, open)?);
        Self::new(Place { folders, name: String::new() }, hold, false)
    }

    /// The same for a child whose name is never reused, and without children.
    pub fn leaf(&self, name: &str, hold: Hold) -> Option<Self> {
        let name = self.place.path(name);
        Self::new(Place { folders: Arc::clone(&self.place.folders), name }, hold, false)
    }

    fn new(place: Place, hold: Hold, is_root: bool) -> Option<Self> {
        let created = created(&place)?;
        Some(Self { place, held: Held::new(hold), is_root, created, last: None })
    }

    /// Reads the cgroup, the first time including its settings; `None` if it has vanished. The
    /// buffer is scratch space that can be reused for the next cgroup.
    pub fn read(&mut self, look: Look, buffer: &mut Vec<u8>) -> Option<CgroupUsage> {
        let look = Look { settings: look.settings || self.last.is_none(), ..look };
        if look.settings {
            // A missing file may exist by now.
            self.held.files.retain(|(_, open)| open.is_some());
        }
        let mut files = Files { place: &self.place, held: &mut self.held, buffer };
        // Every cgroup has this file; that of a removed one can be neither opened nor read.
        let (processes, procs) = files.processes()?;
        let last = self.last.take().unwrap_or_default();
        let mut usage = if self.place.folders.v2 {
            v2::read(&mut files, &last, look, self.is_root)
        } else {
            v1::read(&mut files, &last, look)
        };
        usage.created = self.created;
        let io = std::mem::take(&mut usage.io);
        // Nothing else of the last result is used.
        self.last = Some(usage.clone());
        (usage.io, usage.processes, usage.procs) = (io, processes, procs);
        Some(usage)
    }

    /// CPU time alone, in nanoseconds.
    pub fn cpu_total(&mut self, buffer: &mut Vec<u8>) -> Option<u64> {
        let mut files = Files { place: &self.place, held: &mut self.held, buffer };
        if self.place.folders.v2 { v2::cpu_total(&mut files) } else { v1::cpu_total(&mut files) }
    }

    /// The counters that show whether the cgroup is unchanged; `None` if it has vanished or has no
    /// such counters.
    pub fn pulse(&mut self, buffer: &mut Vec<u8>) -> Option<Pulse> {
        let cpu_ns = self.cpu_total(buffer)?;
        let file = if self.place.folders.v2 { v2::MEMORY_USAGE } else { v1::MEMORY_USAGE };
        let mut files = Files { place: &self.place, held: &mut self.held, buffer };
        let memory = files.held_number(Controller::Memory, file)?;
        Some(Pulse { cpu_ns, memory })
    }

    /// Whether a cgroup whose pulse is the same as when `last` was read is also unchanged in the
    /// values that can change without it: on either version these include everything below.
    pub fn is_as_in(&mut self, last: &CgroupUsage, buffer: &mut Vec<u8>) -> bool {
        let mut files = Files { place: &self.place, held: &mut self.held, buffer };
        let glance = if self.place.folders.v2 { v2::glance } else { v1::glance };
        glance(&mut files, last) == *last
    }

    /// The number of hard links of the cgroup's directory: its own, and one for each child. As long
    /// as that stays the same and the known children exist, there is no new one.
    pub fn links(&self) -> Option<u64> {
        self.place.stat().map(|stat| stat.st_nlink)
    }

    /// Names of the cgroups directly below.
    pub fn children(&self) -> Vec<String> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = self.place.folders.of(Controller::Cpuacct);
        let own = self.place.path(".");
        let open = |folder| rustix::fs::openat(folder, own, flags, Mode::empty()).ok();
        let Some(folder) = folder.and_then(open) else { return Vec::new() };
        let mut names = Vec::new();
        let mut room = [const { MaybeUninit::uninit() }; ROOM];
        let mut entries = RawDir::new(&folder, &mut room);
        while let Some(Ok(entry)) = entries.next() {
            let name = entry.file_name();
            if entry.file_type() == FileType::Directory
                && !matches!(name.to_bytes(), b"." | b"..")
                && let Ok(name) = name.to_str()
            {
                names.push(name.to_owned());
            }
        }
        names
    }

    /// Whether BFQ counts the I/O of a device in this cgroup or below (version 1).
    pub fn counts_by_bfq(&mut self, buffer: &mut Vec<u8>) -> bool {
        let mut files = Files { place: &self.place, held: &mut self.held, buffer };
        !self.place.folders.v2 && v1::counts_by_bfq(&mut files)
    }

    /// When it was created, seconds since the epoch.
    pub fn created(&self) -> i64 {
        self.created
    }
}

/// The earlier of the times of the directory and of one file in it (cadvisor: `GetSpec`). On
/// version 1 the file's inode is created when it is first opened, here, so it is younger than its
/// directory, unless the directory was changed after that.
fn created(place: &Place) -> Option<i64> {
    let own = place.stat()?;
    let changed = (own.st_mtime, own.st_mtime_nsec) > (own.st_atime, own.st_atime_nsec);
    let v2 = place.folders.v2;
    if !v2 && !changed {
        return Some(own.st_mtime);
    }
    let file = place.path(if v2 { "cgroup.events" } else { "cgroup.clone_children" });
    let folder = place.folders.of(Controller::Cpuacct)?;
    let other = rustix::fs::statat(folder, file, AtFlags::empty()).map(|stat| stat.st_mtime);
    Some(own.st_mtime.min(other.unwrap_or(own.st_mtime)))
}

/// The control files of one cgroup.
pub(super) struct Files<'a> {
    place: &'a Place,
    held: &'a mut Held,
    buffer: &'a mut Vec<u8>,
}

impl Files<'_> {
    /// A file without its trailing newline; `None` if it does not exist.
    pub(super) fn text(&mut self, controller: Controller, file: &str) -> Option<&str> {
        let open = self.place.file(controller, file)?;
        read_all(self.buffer, &open).ok()
    }

    /// The same for a file that stays open for the next read.
    pub(super) fn held(&mut self, controller: Controller, file: &'static str) -> Option<&str> {
        self.try_held(controller, file)?.ok()
    }

    /// The same, distinguishing a missing file from one that cannot be read.
    fn try_held(
        &mut self,
        controller: Controller,
        file: &'static str,
    ) -> Option<rustix::io::Result<&str>> {
        let Self { place, held, buffer } = self;
        if held.hold == Hold::Folders {
            return Some(read_all(buffer, &place.file(controller, file)?));
        }
        let index = match held.files.iter().position(|(name, _)| *name == file) {
            Some(index) => index,
            None => {
                held.files.push((file, place.file(controller, file).map(CachedFd::new)));
                held.files.len() - 1
            }
        };
        Some(read_all(buffer, held.files.get(index)?.1.as_ref()?))
    }

    /// The only number in a file.
    pub(super) fn number(&mut self, controller: Controller, file: &str) -> Option<u64> {
        self.text(controller, file)?.parse().ok()
    }

    /// The only number in a file that stays open.
    pub(super) fn held_number(
        &mut self,
        controller: Controller,
        file: &'static str,
    ) -> Option<u64> {
        self.held(controller, file)?.parse().ok()
    }

    /// A limit; `None` if the value means unlimited.
    pub(super) fn limit(&mut self, controller: Controller, file: &str) -> Option<u64> {
        self.number(controller, file).filter(|n| *n < UNLIMITED)
    }

    /// The number of processes of the cgroup itself, and their ids; `None` if it has vanished.
    fn processes(&mut self) -> Option<(u64, String)> {
        const LIST: &str = "cgroup.procs";
        let has_cpu = self.place.folders.of(Controller::Cpu).is_some();
        let controller = if has_cpu { Controller::Cpu } else { Controller::Cpuacct };
        let procs = match self.try_held(controller, LIST)? {
            Ok(list) => list.to_owned(),
            Err(Errno::NODEV) => return None,
            // The file of a threaded cgroup cannot be read.
            Err(_) => String::new(),
        };
        Some((u64::try_from(procs.lines().count()).unwrap_or(u64::MAX), procs))
    }
}

/// Open files by name; a name without one is a missing file.
#[derive(Debug)]
struct Held {
    hold: Hold,
    files: Vec<(&'static str, Option<CachedFd>)>,
}

impl Held {
    fn new(hold: Hold) -> Self {
        Self { hold, files: Vec::new() }
    }
}
