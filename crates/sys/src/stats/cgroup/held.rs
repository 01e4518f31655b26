//! A cgroup whose folders, and files that change by themselves, stay open between looks.
//!
//! Opening a file costs nine tenths of a look at it. What only somebody's order changes (limits, shares)
//! and what a machine-wide counter announces (kills for want of memory) is read again when the caller
//! says so, and opened for that alone. A held file of a removed cgroup cannot be read any more, nor keeps
//! it anything of the cgroup alive but a few hundred bytes.
//!
//! The first look at a file makes the kernel build it, which takes longer than to open and read it. So nothing is
//! opened of which it is known what it would say, and a cgroup without others below has no folders of its own open.

use super::kept::Kept;
use super::{CgroupUsage, v1, v2};
use crate::cgroup::Cgroups;
use crate::stats::whole::{ROOM, whole};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, RawDir, Stat};
use rustix::io::Errno;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

/// Limits at or above this mean "none".
const UNLIMITED: u64 = 1 << 62;

/// What is read again, beyond what changes by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Look {
    /// Limits, shares, quotas.
    pub settings: bool,
    /// Processes killed for want of memory.
    pub kills: bool,
    /// I/O: a cgroup has none of a device with which the one above it has nothing to do.
    pub io: bool,
    /// Whether some device of the machine is scheduled by BFQ, which counts I/O itself (version 1).
    pub bfq: bool,
}

impl Default for Look {
    fn default() -> Self {
        Self { settings: true, kills: true, io: true, bfq: true }
    }
}

/// By what it shows that anything in a cgroup, or below it, ran or holds another amount of memory: both
/// counters take in everything below.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pulse {
    cpu_ns: u64,
    memory: u64,
}

/// What of a cgroup stays open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hold {
    /// Its folders.
    Folders,
    /// Also the files that every look reads. Each takes a page of the kernel's memory.
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

/// A cgroup that is looked at again and again.
#[derive(Debug)]
pub struct HeldCgroup {
    place: Place,
    /// Files that every look reads, without those that are not there.
    held: Held,
    is_root: bool,
    created: i64,
    /// The last look, from which a look takes what it does not read.
    last: Option<CgroupUsage>,
}

/// The folders of one cgroup, one in each hierarchy.
#[derive(Debug)]
struct Folders {
    v2: bool,
    open: [Option<Kept>; 5],
}

impl Folders {
    /// Opens them one by one; `None` if the cgroup is not there.
    fn open(v2: bool, open: impl Fn(Controller, &str) -> Option<OwnedFd>) -> Option<Self> {
        let mut folders = [const { None }; 5];
        for ((controller, name), slot) in CONTROLLERS.iter().zip(&mut folders) {
            *slot = open(*controller, name).map(Kept::new);
            // The first is the one that decides whether the cgroup is there.
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

/// Where a cgroup is: in folders of its own, or by its name in those of the one above it.
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

    /// The path of something in the cgroup, from the open folder.
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
    /// Opens the folders; `None` if the cgroup is not there.
    pub fn open(host: &Cgroups, path: &str, hold: Hold) -> Option<Self> {
        let open = |_, name: &str| host.dir(name, path).and_then(|dir| folder(&dir));
        let folders = Folders::open(host.is_v2(), open)?;
        let is_root = path.trim_matches('/').is_empty();
        Self::new(Place { folders: Arc::new(folders), name: String::new() }, hold, is_root)
    }

    /// Opens a cgroup directly below by its name, with folders of its own for others below it.
    pub fn below(&self, name: &str, hold: Hold) -> Option<Self> {
        let open = |controller, _: &str| {
            let folder = self.place.folders.of(controller)?;
            rustix::fs::openat(folder, self.place.path(name), FOLDER, Mode::empty()).ok()
        };
        let folders = Arc::new(Folders::open(self.place.folders.v2, open)?);
        Self::new(Place { folders, name: String::new() }, hold, false)
    }

    /// The same of one whose name no other gets after it, and without any below.
    pub fn leaf(&self, name: &str, hold: Hold) -> Option<Self> {
        let name = self.place.path(name);
        Self::new(Place { folders: Arc::clone(&self.place.folders), name }, hold, false)
    }

    fn new(place: Place, hold: Hold, is_root: bool) -> Option<Self> {
        let created = created(&place)?;
        Some(Self { place, held: Held::new(hold), is_root, created, last: None })
    }

    /// Looks at the cgroup, the first time at its settings too; `None` if it has vanished. The buffer is room for
    /// files, worth keeping for the next cgroup.
    pub fn read(&mut self, look: Look, buffer: &mut Vec<u8>) -> Option<CgroupUsage> {
        let look = Look { settings: look.settings || self.last.is_none(), ..look };
        if look.settings {
            // What was not there may be by now.
            self.held.files.retain(|(_, open)| open.is_some());
        }
        let mut files = Files { place: &self.place, held: &mut self.held, buffer };
        // Every cgroup has this list; that of a removed one can be neither opened nor read.
        let (processes, procs) = files.processes()?;
        let last = self.last.take().unwrap_or_default();
        let mut usage = if self.place.folders.v2 {
            v2::read(&mut files, &last, look, self.is_root)
        } else {
            v1::read(&mut files, &last, look)
        };
        usage.created = self.created;
        let io = std::mem::take(&mut usage.io);
        // Of the rest of the last look nothing is used.
        self.last = Some(usage.clone());
        (usage.io, usage.processes, usage.procs) = (io, processes, procs);
        Some(usage)
    }

    /// CPU time alone, in nanoseconds.
    pub fn cpu_total(&mut self, buffer: &mut Vec<u8>) -> Option<u64> {
        let mut files = Files { place: &self.place, held: &mut self.held, buffer };
        if self.place.folders.v2 { v2::cpu_total(&mut files) } else { v1::cpu_total(&mut files) }
    }

    /// By what it shows that the cgroup is as it was; `None` if it has vanished or does not say.
    pub fn pulse(&mut self, buffer: &mut Vec<u8>) -> Option<Pulse> {
        let cpu_ns = self.cpu_total(buffer)?;
        let file = if self.place.folders.v2 { v2::MEMORY_USAGE } else { v1::MEMORY_USAGE };
        let mut files = Files { place: &self.place, held: &mut self.held, buffer };
        let memory = files.held_number(Controller::Memory, file)?;
        Some(Pulse { cpu_ns, memory })
    }

    /// Whether a cgroup whose pulse is as it was when `last` was read is so in all that can change without one: on
    /// either version these numbers take in everything below.
    pub fn is_as_in(&mut self, last: &CgroupUsage, buffer: &mut Vec<u8>) -> bool {
        let mut files = Files { place: &self.place, held: &mut self.held, buffer };
        let glance = if self.place.folders.v2 { v2::glance } else { v1::glance };
        glance(&mut files, last) == *last
    }

    /// How many names the cgroup's folder has: its own, and one in each cgroup directly below. As long as
    /// that stays and those below are there, no other has come.
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

    /// When it was made, seconds since the epoch.
    pub fn created(&self) -> i64 {
        self.created
    }
}

/// The earlier time of the folder and of one file in it (cadvisor: `GetSpec`). On version 1 nobody else opens that
/// file, so that it is younger than its folder, unless the folder was changed after it was first looked at.
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
    /// A file without its last line break; `None` if it is not there.
    pub(super) fn text(&mut self, controller: Controller, file: &str) -> Option<&str> {
        let open = self.place.file(controller, file)?;
        whole(self.buffer, &open).ok()
    }

    /// The same of a file that stays open for the next look.
    pub(super) fn held(&mut self, controller: Controller, file: &'static str) -> Option<&str> {
        self.try_held(controller, file)?.ok()
    }

    /// The same, telling a file that is not there from one that cannot be read.
    fn try_held(
        &mut self,
        controller: Controller,
        file: &'static str,
    ) -> Option<rustix::io::Result<&str>> {
        let Self { place, held, buffer } = self;
        if held.hold == Hold::Folders {
            return Some(whole(buffer, &place.file(controller, file)?));
        }
        let index = match held.files.iter().position(|(name, _)| *name == file) {
            Some(index) => index,
            None => {
                held.files.push((file, place.file(controller, file).map(Kept::new)));
                held.files.len() - 1
            }
        };
        Some(whole(buffer, held.files.get(index)?.1.as_ref()?))
    }

    /// The one number of a file.
    pub(super) fn number(&mut self, controller: Controller, file: &str) -> Option<u64> {
        self.text(controller, file)?.parse().ok()
    }

    /// The one number of a file that stays open.
    pub(super) fn held_number(
        &mut self,
        controller: Controller,
        file: &'static str,
    ) -> Option<u64> {
        self.held(controller, file)?.parse().ok()
    }

    /// A number unless it stands for none.
    pub(super) fn limit(&mut self, controller: Controller, file: &str) -> Option<u64> {
        self.number(controller, file).filter(|n| *n < UNLIMITED)
    }

    /// How many processes the cgroup itself has, and which; `None` if it has vanished.
    fn processes(&mut self) -> Option<(u64, String)> {
        const LIST: &str = "cgroup.procs";
        let has_cpu = self.place.folders.of(Controller::Cpu).is_some();
        let controller = if has_cpu { Controller::Cpu } else { Controller::Cpuacct };
        let procs = match self.try_held(controller, LIST)? {
            Ok(list) => list.to_owned(),
            Err(Errno::NODEV) => return None,
            // That of a threaded cgroup cannot be read.
            Err(_) => String::new(),
        };
        Some((u64::try_from(procs.lines().count()).unwrap_or(u64::MAX), procs))
    }
}

/// Open files by their names; a name without one is of a file that is not there.
#[derive(Debug)]
struct Held {
    hold: Hold,
    files: Vec<(&'static str, Option<Kept>)>,
}

impl Held {
    fn new(hold: Hold) -> Self {
        Self { hold, files: Vec::new() }
    }
}
