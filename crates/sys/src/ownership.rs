//! Changes the group of a volume's files: the recursive walk behind `fsGroup`.
//!
//! By descriptor and by the bytes of names, at any depth, in parallel over subdirectories, children
//! before their parent, so that an interrupted run leaves the root unchanged and is repeated by the
//! next one. Failures to change one entry are counted, not returned (as in the Go kubelet);
//! failures to list are.

use crate::descent::{Descent, Mounts, each_entry, open_folder, vanished};
use crate::fs::FsError;
use crate::rooted_dir::Dir;
use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Stat};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread::{Scope, ScopedJoinHandle};

/// Permission bits that a group needs on files.
const RW: u32 = 0o660;
const RO: u32 = 0o440;
/// Additional permission bits for directories.
const EXEC: u32 = 0o110;
const SETGID: u32 = 0o2000;

/// Settings of the walk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupOwnership {
    /// The group.
    pub gid: u32,
    /// The volume is mounted read-only: only read permission is needed.
    pub read_only: bool,
}

/// Counters that another thread may read while the walk runs.
#[derive(Debug, Default)]
pub struct Progress {
    /// Entries processed so far.
    pub entries: AtomicU64,
    /// Entries whose owner or mode could not be changed.
    pub failures: AtomicU64,
}

impl GroupOwnership {
    fn bits(self) -> u32 {
        if self.read_only { RO } else { RW }
    }

    /// Whether the root already has the group and mode that the walk would set (`OnRootMismatch`).
    pub fn root_matches(self, root: &Path) -> Result<bool, FsError> {
        let stat = Dir::open(root)?.stat()?;
        let wanted = self.bits() | EXEC | SETGID;
        Ok(stat.st_gid == self.gid && stat.st_mode & wanted == wanted)
    }

    /// Walks the complete volume.
    pub fn apply(self, root: &Path, progress: &Progress) -> Result<(), FsError> {
        let failed =
            |source| FsError { operation: "set ownership of", path: root.to_owned(), source };
        let top = Dir::open(root)?.into_fd();
        let helpers = AtomicUsize::new(
            std::thread::available_parallelism().map_or(1, |n| n.get().min(8)).saturating_sub(1),
        );
        let walk = Walk { ownership: self, progress, helpers: &helpers };
        std::thread::scope(|scope| walk.run(top, scope)).map_err(failed)
    }

    /// Sets owner and mode, each even if the other fails; the first failure is returned.
    fn set(self, file: impl AsFd, stat: &Stat) -> io::Result<()> {
        let file = file.as_fd();
        let owned = if stat.st_gid == self.gid {
            Ok(())
        } else {
            let gid = Some(Gid::from_raw(self.gid));
            rustix::fs::chownat(file, c"", None, gid, AtFlags::EMPTY_PATH)
        };
        let kind = FileType::from_raw_mode(stat.st_mode);
        if kind.is_symlink() {
            return Ok(owned?);
        }
        let folder = if kind.is_dir() { EXEC | SETGID } else { 0 };
        let mode = (stat.st_mode & 0o7777) | self.bits() | folder;
        // chown clears setuid and setgid, so the mode is set even if it looked right.
        let link = format!("/proc/self/fd/{}", file.as_raw_fd());
        Ok(owned.and(rustix::fs::chmod(link, Mode::from_raw_mode(mode)))?)
    }
}

/// One walk, which several threads share.
#[derive(Clone, Copy)]
struct Walk<'a> {
    ownership: GroupOwnership,
    progress: &'a Progress,
    /// How many more threads may be started.
    helpers: &'a AtomicUsize,
}

/// The remaining work in one directory.
struct Level<'scope> {
    folders: Vec<OsString>,
    running: Vec<ScopedJoinHandle<'scope, io::Result<()>>>,
}

impl<'a> Walk<'a> {
    /// Processes everything below a directory, then the directory itself.
    fn run<'scope>(self, top: OwnedFd, scope: &'scope Scope<'scope, '_>) -> io::Result<()>
    where
        'a: 'scope,
    {
        let mut at = Descent::new(top, Mounts::Enter);
        let mut levels = vec![self.level(at.here())?];
        while let Some(level) = levels.last_mut() {
            if let Some(name) = level.folders.pop() {
                if self.claim() {
                    let below = open_folder(at.here(), &name, Mounts::Enter);
                    let Some(below) = unless_vanished(below)? else {
                        self.release();
                        continue;
                    };
                    level.running.push(scope.spawn(move || {
                        let result = self.run(below, scope);
                        self.release();
                        result
                    }));
                } else if unless_vanished(at.down(&name))?.is_some() {
                    levels.push(self.level(at.here())?);
                }
                continue;
            }
            for thread in level.running.drain(..) {
                thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            }
            let here = at.here();
            self.count(
                rustix::fs::fstat(here)
                    .map_err(io::Error::from)
                    .and_then(|stat| self.ownership.set(here, &stat)),
            );
            levels.pop();
            at.up()?;
        }
        Ok(())
    }

    /// Processes the entries of a directory that are not directories, and returns its
    /// subdirectories.
    fn level<'scope>(self, folder: impl AsFd) -> io::Result<Level<'scope>> {
        let folder = folder.as_fd();
        let mut folders = Vec::new();
        each_entry(folder, |name, kind| {
            if kind.is_dir() {
                folders.push(name.to_owned());
            } else {
                self.count(self.file(folder, name));
            }
            Ok(true)
        })?;
        Ok(Level { folders, running: Vec::new() })
    }

    fn file(self, folder: impl AsFd, name: &OsStr) -> io::Result<()> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = rustix::fs::openat(folder, name, flags, Mode::empty());
        let Some(entry) = unless_vanished(opened.map_err(io::Error::from))? else { return Ok(()) };
        self.ownership.set(&entry, &rustix::fs::fstat(&entry)?)
    }

    fn count(self, done: io::Result<()>) {
        self.progress.entries.fetch_add(1, Ordering::Relaxed);
        if done.is_err() {
            self.progress.failures.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn claim(self) -> bool {
        let take = |left: usize| left.checked_sub(1);
        self.helpers.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok()
    }

    fn release(self) {
        self.helpers.fetch_add(1, Ordering::Relaxed);
    }
}

/// Ignores entries that vanished meanwhile.
fn unless_vanished<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if vanished(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::scratch;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    fn mode(path: &Path) -> u32 {
        std::fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
    }

    #[test]
    fn files_and_folders_are_given_to_the_group_and_links_are_not_followed() {
        let top = scratch("own-all");
        let outside = scratch("own-outside");
        std::fs::write(outside.join("f"), "x").unwrap();
        std::fs::create_dir_all(top.join("a/b")).unwrap();
        std::fs::write(top.join("a/b/file"), "x").unwrap();
        std::fs::set_permissions(top.join("a/b/file"), std::fs::Permissions::from_mode(0o600))
            .unwrap();
        symlink(outside.join("f"), top.join("a/link")).unwrap();
        let ownership = GroupOwnership { gid: 4242, read_only: false };
        assert!(!ownership.root_matches(&top).unwrap());
        let progress = Progress::default();
        ownership.apply(&top, &progress).unwrap();
        assert!(ownership.root_matches(&top).unwrap());
        assert_eq!(progress.entries.load(Ordering::Relaxed), 5);
        assert_eq!(progress.failures.load(Ordering::Relaxed), 0);
        assert_eq!(mode(&top.join("a/b/file")), 0o660);
        assert_eq!(mode(&top.join("a")), 0o2775);
        assert_eq!(std::fs::symlink_metadata(top.join("a/link")).unwrap().gid(), 4242);
        assert_eq!(std::fs::metadata(outside.join("f")).unwrap().gid(), 0);
        std::fs::remove_dir_all(&top).unwrap();
        std::fs::remove_dir_all(&outside).unwrap();
    }

    #[test]
    fn an_interrupted_walk_does_not_look_finished() {
        let top = scratch("own-interrupted");
        std::fs::create_dir_all(top.join("a")).unwrap();
        let ownership = GroupOwnership { gid: 4243, read_only: true };
        // The state after a walk was killed: children done, root not.
        let progress = Progress::default();
        ownership.apply(&top.join("a"), &progress).unwrap();
        assert!(!ownership.root_matches(&top).unwrap());
        assert!(ownership.root_matches(&top.join("a")).unwrap());
        std::fs::remove_dir_all(&top).unwrap();
    }

    #[test]
    fn names_are_bytes_and_depth_has_no_end() {
        let top = scratch("own-deep");
        let name = OsStr::from_bytes(b"\xff\xfe");
        std::fs::create_dir_all(top.join(name).join("below")).unwrap();
        std::fs::write(top.join(name).join(OsStr::from_bytes(b"f\xc3")), "x").unwrap();
        let mut dir = Dir::open(&top).unwrap();
        for _ in 0..3000 {
            dir.make_dir("d", 0o700).unwrap();
            dir = dir.dir("d").unwrap();
        }
        dir.create_file(Path::new("last"), b"x", 0o600).unwrap();
        let ownership = GroupOwnership { gid: 4244, read_only: false };
        let progress = Progress::default();
        ownership.apply(&top, &progress).unwrap();
        assert_eq!(progress.failures.load(Ordering::Relaxed), 0);
        assert_eq!(progress.entries.load(Ordering::Relaxed), 3000 + 1 + 4);
        assert!(ownership.root_matches(&top).unwrap());
        assert!(ownership.root_matches(&top.join(name).join("below")).unwrap());
        assert_eq!(mode(&top.join(name).join(OsStr::from_bytes(b"f\xc3"))), 0o664);
        let last = rustix::fs::statat(&dir, "last", AtFlags::empty()).unwrap();
        assert_eq!((last.st_gid, last.st_mode & 0o777), (4244, 0o660));
        crate::removal::remove_tree(Path::new("/proc"), &top, crate::removal::Contents::Everything)
            .unwrap();
    }

    #[test]
    fn a_mode_is_set_where_the_owner_cannot_be() {
        let top = scratch("own-chmod");
        let file = top.join("f");
        std::fs::write(&file, "x").unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
        let ownership = GroupOwnership { gid: 4245, read_only: false };
        let progress = Progress::default();
        let walked = std::thread::scope(|scope| {
            let without_right = || {
                let mut own = rustix::thread::capabilities(None).unwrap();
                own.effective.remove(rustix::thread::CapabilitySet::CHOWN);
                rustix::thread::set_capabilities(None, own).unwrap();
                ownership.apply(&top, &progress)
            };
            scope.spawn(without_right).join().unwrap()
        });
        walked.unwrap();
        assert_eq!(progress.failures.load(Ordering::Relaxed), 2, "the file and the folder");
        assert_eq!((mode(&file), mode(&top) & 0o110), (0o660, 0o110));
        assert_eq!(std::fs::metadata(&file).unwrap().gid(), 0);
        std::fs::remove_dir_all(&top).unwrap();
    }
}
