//! A cgroup whose folders, and files that change by themselves, stay open between looks.
//!
//! Opening a file costs nine tenths of a look at it. What only somebody's order changes (limits, shares)
//! and what a machine-wide counter announces (kills for want of memory) is read again when the caller
//! says so, and opened for that alone. A held file of a removed cgroup cannot be read any more, nor keeps
//! it anything of the cgroup alive but a few hundred bytes.

use super::kept::Kept;
use super::{CgroupUsage, v1, v2};
use crate::cgroup::Cgroups;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, RawDir};
use rustix::io::Errno;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

/// Limits at or above this mean "none".
const UNLIMITED: u64 = 1 << 62;
/// What a read gives at least while there is more: the kernel hands out lists by the page.
const FULL_READ: usize = 3072;
/// Room for one read.
const ROOM: usize = 8192;

/// What is read again, beyond what changes by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Look {
    /// Limits, shares, quotas.
    pub settings: bool,
    /// Processes killed for want of memory.
    pub kills: bool,
    /// Whether some device of the machine is scheduled by BFQ, which counts I/O itself (version 1).
    pub bfq: bool,
}

impl Default for Look {
    fn default() -> Self {
        Self { settings: true, kills: true, bfq: true }
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
    folders: Folders,
    /// Files that every look reads, without those that are not there.
    held: Held,
    is_root: bool,
    created: i64,
    /// The last look, from which a look takes what it does not read.
    last: Option<CgroupUsage>,
}

#[derive(Debug)]
struct Folders {
    v2: bool,
    open: [Option<Kept>; 5],
}

impl Folders {
    fn open(host: &Cgroups, path: &str) -> Option<Self> {
        let v2 = host.is_v2();
        let mut open = [const { None }; 5];
        for ((controller, name), slot) in CONTROLLERS.iter().zip(&mut open) {
            *slot = host.dir(name, path).and_then(|dir| folder(&dir)).map(Kept::new);
            // The first is the one that decides whether the cgroup is there.
            if *controller == Controller::Cpuacct && slot.is_none() {
                return None;
            }
            if v2 {
                break;
            }
        }
        Some(Self { v2, open })
    }

    fn of(&self, controller: Controller) -> Option<BorrowedFd<'_>> {
        let index = if self.v2 {
            0
        } else {
            CONTROLLERS.iter().position(|(known, _)| *known == controller)?
        };
        self.open.get(index)?.as_ref().map(AsFd::as_fd)
    }

    fn file(&self, controller: Controller, file: &str) -> Option<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        rustix::fs::openat(self.of(controller)?, file, flags, Mode::empty()).ok()
    }
}

fn folder(path: &Path) -> Option<OwnedFd> {
    rustix::fs::open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).ok()
}

impl HeldCgroup {
    /// Opens the folders; `None` if the cgroup is not there.
    pub fn open(host: &Cgroups, path: &str, hold: Hold) -> Option<Self> {
        let folders = Folders::open(host, path)?;
        let created = created(&folders)?;
        let is_root = path.trim_matches('/').is_empty();
        Some(Self { folders, held: Held::new(hold), is_root, created, last: None })
    }

    /// Looks at the cgroup, the first time at all of it; `None` if it has vanished. The buffer is room for
    /// files, worth keeping for the next cgroup.
    pub fn read(&mut self, look: Look, buffer: &mut Vec<u8>) -> Option<CgroupUsage> {
        let look =
            if self.last.is_some() { look } else { Look { bfq: look.bfq, ..Look::default() } };
        if look.settings {
            // What was not there may be by now.
            self.held.files.retain(|(_, open)| open.is_some());
        }
        let mut files = Files { folders: &self.folders, held: &mut self.held, buffer };
        // Every cgroup has this list; that of a removed one can be neither opened nor read.
        let (processes, procs) = files.processes()?;
        let last = self.last.take().unwrap_or_default();
        let mut usage = if self.folders.v2 {
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
        let mut files = Files { folders: &self.folders, held: &mut self.held, buffer };
        if self.folders.v2 { v2::cpu_total(&mut files) } else { v1::cpu_total(&mut files) }
    }

    /// By what it shows that the cgroup is as it was; `None` if it has vanished or does not say.
    pub fn pulse(&mut self, buffer: &mut Vec<u8>) -> Option<Pulse> {
        let cpu_ns = self.cpu_total(buffer)?;
        let file = if self.folders.v2 { v2::MEMORY_USAGE } else { v1::MEMORY_USAGE };
        let mut files = Files { folders: &self.folders, held: &mut self.held, buffer };
        let memory = files.held_number(Controller::Memory, file)?;
        Some(Pulse { cpu_ns, memory })
    }

    /// Whether a cgroup whose pulse is as it was when `last` was read is so in all that can change without one: on
    /// either version these numbers take in everything below.
    pub fn is_as_in(&mut self, last: &CgroupUsage, buffer: &mut Vec<u8>) -> bool {
        let mut files = Files { folders: &self.folders, held: &mut self.held, buffer };
        let glance = if self.folders.v2 { v2::glance } else { v1::glance };
        glance(&mut files, last) == *last
    }

    /// How many names the cgroup's folder has: its own, and one in each cgroup directly below. As long as
    /// that stays and those below are there, no other has come.
    pub fn links(&self) -> Option<u64> {
        let folder = self.folders.of(Controller::Cpuacct)?;
        rustix::fs::statat(folder, "", AtFlags::EMPTY_PATH).ok().map(|stat| stat.st_nlink)
    }

    /// Names of the cgroups directly below.
    pub fn children(&self) -> Vec<String> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = self.folders.of(Controller::Cpuacct);
        let open = |folder| rustix::fs::openat(folder, ".", flags, Mode::empty()).ok();
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
        let mut files = Files { folders: &self.folders, held: &mut self.held, buffer };
        !self.folders.v2 && v1::counts_by_bfq(&mut files)
    }

    /// When it was made, seconds since the epoch.
    pub fn created(&self) -> i64 {
        self.created
    }
}

fn created(folders: &Folders) -> Option<i64> {
    let folder = folders.of(Controller::Cpuacct)?;
    let seconds = |name: &str, flags| rustix::fs::statat(folder, name, flags).map(|s| s.st_mtime);
    let own = seconds("", AtFlags::EMPTY_PATH).ok()?;
    let file = if folders.v2 { "cgroup.events" } else { "cgroup.clone_children" };
    Some(own.min(seconds(file, AtFlags::empty()).unwrap_or(own)))
}

/// The control files of one cgroup.
pub(super) struct Files<'a> {
    folders: &'a Folders,
    held: &'a mut Held,
    buffer: &'a mut Vec<u8>,
}

impl Files<'_> {
    /// A file without its last line break; `None` if it is not there.
    pub(super) fn text(&mut self, controller: Controller, file: &str) -> Option<&str> {
        let open = self.folders.file(controller, file)?;
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
        let Self { folders, held, buffer } = self;
        if held.hold == Hold::Folders {
            return Some(whole(buffer, &folders.file(controller, file)?));
        }
        let index = match held.files.iter().position(|(name, _)| *name == file) {
            Some(index) => index,
            None => {
                held.files.push((file, folders.file(controller, file).map(Kept::new)));
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
        let has_cpu = self.folders.of(Controller::Cpu).is_some();
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

/// Everything that a file has, from its start, without its last line break; nothing if it is no text.
fn whole(buffer: &mut Vec<u8>, open: impl AsFd) -> rustix::io::Result<&str> {
    let mut filled = 0;
    loop {
        if buffer.len() < filled + ROOM {
            buffer.resize(filled + ROOM, 0);
        }
        let room = buffer.get_mut(filled..).unwrap_or_default();
        let read = rustix::io::pread(&open, room, u64::try_from(filled).unwrap_or(u64::MAX))?;
        filled += read;
        if read < FULL_READ {
            break;
        }
    }
    let text = std::str::from_utf8(buffer.get(..filled).unwrap_or_default()).unwrap_or_default();
    Ok(text.trim_end())
}
