//! Giving a volume to a group: the recursive walk behind `fsGroup`.
//!
//! By descriptor, in parallel over sub-folders, children before their parent, so that an interrupted
//! run leaves the root as it was and is seen by the next one. Failures to change one entry are
//! counted, not returned (as the Go kubelet has it); failures to list are.

use crate::beneath::{Dir, EntryKind};
use crate::fs::FsError;
use rustix::fs::{AtFlags, Gid, Mode, OFlags};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Bits that a group needs on files.
const RW: u32 = 0o660;
const RO: u32 = 0o440;
/// What folders need besides.
const EXEC: u32 = 0o110;
const SETGID: u32 = 0o2000;

/// Deeper folders are an error: a pod can nest them without end, our stack and descriptors are
/// finite. (Twice what a path can usefully name.)
const MAX_DEPTH: usize = 200;

/// How the walk is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupOwnership {
    /// The group.
    pub gid: u32,
    /// The volume is mounted read-only: ask only for reading.
    pub read_only: bool,
}

/// Counters that another thread may read while the walk runs.
#[derive(Debug, Default)]
pub struct Progress {
    /// Entries done so far.
    pub entries: AtomicU64,
    /// Entries whose owner or mode could not be changed.
    pub failures: AtomicU64,
}

impl GroupOwnership {
    fn bits(self) -> u32 {
        if self.read_only { RO } else { RW }
    }

    /// Whether the root already is as the walk would leave it (`OnRootMismatch`).
    pub fn root_matches(self, root: &Path) -> Result<bool, FsError> {
        let stat = Dir::open(root)?.stat()?;
        let wanted = self.bits() | EXEC | SETGID;
        Ok(stat.st_gid == self.gid && stat.st_mode & wanted == wanted)
    }

    /// Walks the whole volume.
    pub fn apply(self, root: &Path, progress: &Progress) -> Result<(), FsError> {
        let dir = Dir::open(root)?;
        let helpers = AtomicUsize::new(
            std::thread::available_parallelism().map_or(1, |n| n.get().min(8)).saturating_sub(1),
        );
        self.walk(&dir, progress, &helpers, 0)?;
        self.set(&dir, Path::new("."), EntryKind::Dir, progress);
        Ok(())
    }

    fn walk(
        self,
        dir: &Dir,
        progress: &Progress,
        helpers: &AtomicUsize,
        depth: usize,
    ) -> Result<(), FsError> {
        if depth > MAX_DEPTH {
            return Err(FsError {
                operation: "set ownership of",
                path: dir.path().to_owned(),
                source: std::io::Error::other("folders are nested too deep"),
            });
        }
        let entries = dir.entries()?;
        std::thread::scope(|scope| {
            let mut running = Vec::new();
            let mut first_error = None;
            for (name, kind) in &entries {
                if *kind != EntryKind::Dir {
                    self.set(dir, Path::new(name), *kind, progress);
                    continue;
                }
                let work = move || -> Result<(), FsError> {
                    let sub = dir.dir(&name.to_string_lossy())?;
                    self.walk(&sub, progress, helpers, depth + 1)?;
                    self.set(dir, Path::new(name), EntryKind::Dir, progress);
                    Ok(())
                };
                let claimed = helpers
                    .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1))
                    .is_ok();
                if claimed {
                    running.push(scope.spawn(move || {
                        let result = work();
                        helpers.fetch_add(1, Ordering::Relaxed);
                        result
                    }));
                } else if let Err(e) = work() {
                    first_error.get_or_insert(e);
                }
            }
            for thread in running {
                match thread.join() {
                    Ok(Ok(())) => {}
                    Ok(Err(e)) => {
                        first_error.get_or_insert(e);
                    }
                    Err(panic) => std::panic::resume_unwind(panic),
                }
            }
            first_error.map_or(Ok(()), Err)
        })
    }

    fn set(self, dir: &Dir, name: &Path, kind: EntryKind, progress: &Progress) {
        progress.entries.fetch_add(1, Ordering::Relaxed);
        if self.try_set(dir, name, kind).is_err() {
            progress.failures.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn try_set(self, dir: &Dir, name: &Path, kind: EntryKind) -> Result<(), std::io::Error> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let entry = rustix::fs::openat(dir, name, flags, Mode::empty())?;
        let stat = rustix::fs::fstat(&entry)?;
        if stat.st_gid != self.gid {
            let gid = Some(Gid::from_raw(self.gid));
            rustix::fs::chownat(&entry, c"", None, gid, AtFlags::EMPTY_PATH)?;
        }
        if kind == EntryKind::Link {
            return Ok(());
        }
        let folder = if kind == EntryKind::Dir { EXEC | SETGID } else { 0 };
        let mode = (stat.st_mode & 0o7777) | self.bits() | folder;
        // chown clears setuid and setgid, so the mode is set even if it looked right.
        let link = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&entry.as_fd()));
        rustix::fs::chmod(link, Mode::from_raw_mode(mode))?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::scratch;
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
        // What a walk killed before its end leaves: children done, root not.
        let progress = Progress::default();
        ownership.apply(&top.join("a"), &progress).unwrap();
        assert!(!ownership.root_matches(&top).unwrap());
        assert!(ownership.root_matches(&top.join("a")).unwrap());
        std::fs::remove_dir_all(&top).unwrap();
    }

    #[test]
    fn endless_nesting_is_an_error_not_a_crash() {
        let top = scratch("own-deep");
        let mut dir = Dir::open(&top).unwrap();
        for _ in 0..1000 {
            dir.make_dir("d", 0o755).unwrap();
            dir = dir.dir("d").unwrap();
        }
        drop(dir);
        let ownership = GroupOwnership { gid: 4244, read_only: false };
        let error = ownership.apply(&top, &Progress::default()).unwrap_err();
        assert_eq!(error.source.to_string(), "folders are nested too deep");
        assert!(!ownership.root_matches(&top).unwrap());
        crate::removal::remove_tree(Path::new("/proc"), &top, crate::removal::Contents::Everything)
            .unwrap();
    }
}
