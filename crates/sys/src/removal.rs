//! Removing trees without ever touching what is mounted in them.
//!
//! Every folder is entered by descriptor with `RESOLVE_NO_XDEV`, so a mount (bind mounts of the
//! same filesystem included) that appears while we walk is refused by the kernel, not by a check
//! that could be raced. The mount table is asked first, so that normally nothing at all is removed
//! from a tree that holds a mount.

use crate::beneath::{Dir, EntryKind};
use crate::fs::FsError;
use crate::mountinfo;
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};

/// A pod can nest folders without end; what lies deeper than this is moved up before it is
/// removed, so that neither our stack nor our descriptors run out.
const MAX_DEPTH: usize = 48;
/// A pod can make files without end: so many are looked at a time.
const BATCH: usize = 4096;

/// Why a tree was not removed.
#[derive(Debug, thiserror::Error)]
pub enum RemoveError {
    /// Something is mounted there; nothing below it was touched.
    #[error("cannot delete directory {}: it is a mount point", .0.display())]
    MountPoint(PathBuf),
    /// A file operation failed.
    #[error(transparent)]
    Fs(#[from] FsError),
    /// Only folders were expected.
    #[error("cannot delete {}: it is not a directory", .0.display())]
    NotADirectory(PathBuf),
}

/// What may be removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Contents {
    /// Files and folders.
    Everything,
    /// Folders only: a file anywhere is an error and stays.
    DirsOnly,
}

/// Removes the folder `path` with all below it; a missing one is fine.
pub fn remove_tree(proc: &Path, path: &Path, contents: Contents) -> Result<(), RemoveError> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(RemoveError::MountPoint(path.to_owned()));
    };
    if let Some(mount) = mountinfo::at_or_below(&mountinfo::read(proc)?, path).first() {
        return Err(RemoveError::MountPoint(mount.mount_point.clone()));
    }
    let above = match Dir::open(parent) {
        Ok(dir) => dir,
        Err(e) if e.is_not_found() => return Ok(()),
        Err(e) => return Err(e.into()),
    };
    remove_entry(&above, name, contents)
}

/// Removes the entry `name` of an open folder with all below it; the mount table is not asked, the
/// kernel alone refuses mounts.
pub fn remove_entry(above: &Dir, name: &OsStr, contents: Contents) -> Result<(), RemoveError> {
    match above.kind(Path::new(name))? {
        None => Ok(()),
        Some(EntryKind::Dir) => remove_top(above, name, contents),
        Some(_) if contents == Contents::Everything => remove_leaf(above, name),
        Some(_) => Err(RemoveError::NotADirectory(above.path().join(name))),
    }
}

/// Enters a folder of the same mount; `None` if it vanished.
fn enter(above: &Dir, name: &OsStr) -> Result<Option<Dir>, RemoveError> {
    match above.dir_same_mount(name) {
        Ok(dir) => Ok(Some(dir)),
        Err(e) if e.is_not_found() => Ok(None),
        Err(e) if e.source.raw_os_error() == Some(libc::EXDEV) => {
            Err(RemoveError::MountPoint(above.path().join(name)))
        }
        Err(e) => Err(e.into()),
    }
}

fn remove_top(above: &Dir, name: &OsStr, contents: Contents) -> Result<(), RemoveError> {
    let Some(top) = enter(above, name)? else { return Ok(()) };
    let mut walk = Walk { top: &top, contents, moved: Vec::new(), count: 0 };
    walk.empty(&top, 0)?;
    while let Some(deep) = walk.moved.pop() {
        if let Some(dir) = enter(&top, &deep)? {
            walk.empty(&dir, 1)?;
            top.remove_dir(&deep)?;
        }
    }
    Ok(above.remove_dir(name)?)
}

struct Walk<'a> {
    top: &'a Dir,
    contents: Contents,
    /// Folders that were too deep, now entries of the top.
    moved: Vec<OsString>,
    count: usize,
}

impl Walk<'_> {
    /// Removes everything in the folder; what was moved up stays for later.
    fn empty(&mut self, dir: &Dir, depth: usize) -> Result<(), RemoveError> {
        loop {
            let mut batch = dir.some_entries(BATCH + self.moved.len())?;
            if depth == 0 {
                batch.retain(|(name, _)| !self.moved.contains(name));
            }
            if batch.is_empty() {
                return Ok(());
            }
            for (name, kind) in batch {
                match kind {
                    EntryKind::Dir => self.remove_dir(dir, &name, depth)?,
                    _ if self.contents == Contents::DirsOnly => {
                        return Err(RemoveError::NotADirectory(dir.path().join(name)));
                    }
                    _ => remove_leaf(dir, &name)?,
                }
            }
        }
    }

    fn remove_dir(&mut self, dir: &Dir, name: &OsStr, depth: usize) -> Result<(), RemoveError> {
        if depth >= MAX_DEPTH {
            let place = OsString::from(format!(".rubelet-deep-{}", self.count));
            self.count += 1;
            dir.move_to(name, self.top, &place)?;
            self.moved.push(place);
            return Ok(());
        }
        let Some(sub) = enter(dir, name)? else { return Ok(()) };
        self.empty(&sub, depth + 1)?;
        Ok(dir.remove_dir(name)?)
    }
}

fn remove_leaf(dir: &Dir, name: &OsStr) -> Result<(), RemoveError> {
    use rustix::fs::AtFlags;
    use rustix::io::Errno;
    crate::effects::before("remove", &dir.path().join(name))?;
    match rustix::fs::unlinkat(dir, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        // A file that is itself a mount point.
        Err(Errno::BUSY) => Err(RemoveError::MountPoint(dir.path().join(name))),
        Err(e) => Err(FsError {
            operation: "remove",
            path: dir.path().join(name),
            source: io::Error::from(e),
        }
        .into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mount;
    use crate::scratch::scratch;

    #[test]
    fn a_bind_mount_inside_keeps_the_whole_tree() {
        let top = scratch("removal-bind");
        let (tree, data) = (top.join("tree"), top.join("data"));
        std::fs::create_dir_all(tree.join("a/mnt")).unwrap();
        std::fs::write(tree.join("0-first"), "x").unwrap();
        std::fs::create_dir_all(&data).unwrap();
        std::fs::write(data.join("precious"), "x").unwrap();
        mount::bind(&data, &tree.join("a/mnt"), false).unwrap();
        let error = remove_tree(Path::new("/proc"), &tree, Contents::Everything).unwrap_err();
        assert!(matches!(error, RemoveError::MountPoint(p) if p == tree.join("a/mnt")));
        assert!(data.join("precious").exists());
        assert!(tree.join("0-first").exists(), "nothing was removed at all");
        // Also when the table was read before the mount appeared.
        let above = Dir::open(&top).unwrap();
        assert!(remove_entry(&above, "tree".as_ref(), Contents::Everything).is_err());
        assert!(data.join("precious").exists());
        mount::unmount_all_at(&tree.join("a/mnt")).unwrap();
        remove_tree(Path::new("/proc"), &tree, Contents::Everything).unwrap();
        assert!(!tree.exists());
        std::fs::remove_dir_all(&top).unwrap();
    }

    #[test]
    fn links_are_removed_not_followed() {
        let top = scratch("removal-links");
        let (tree, data) = (top.join("tree"), top.join("data"));
        std::fs::create_dir_all(&tree).unwrap();
        std::fs::create_dir_all(&data).unwrap();
        std::fs::write(data.join("precious"), "x").unwrap();
        std::os::unix::fs::symlink(&data, tree.join("link")).unwrap();
        remove_tree(Path::new("/proc"), &tree, Contents::Everything).unwrap();
        assert!(data.join("precious").exists());
        std::fs::remove_dir_all(&top).unwrap();
    }

    #[test]
    fn dirs_only_stops_at_a_file() {
        let top = scratch("removal-dirs");
        std::fs::create_dir_all(top.join("t/a/b")).unwrap();
        std::fs::write(top.join("t/a/file"), "x").unwrap();
        let error = remove_tree(Path::new("/proc"), &top.join("t"), Contents::DirsOnly);
        assert!(matches!(error, Err(RemoveError::NotADirectory(_))));
        assert!(top.join("t/a/file").exists());
        std::fs::remove_dir_all(&top).unwrap();
    }

    #[test]
    fn any_depth_and_any_number_of_files_is_removed() {
        let top = scratch("removal-deep");
        std::fs::create_dir_all(top.join("t")).unwrap();
        let mut dir = Dir::open(&top.join("t")).unwrap();
        // Far beyond what a path can name.
        for _ in 0..3000 {
            dir.make_dir("dddd", 0o755).unwrap();
            dir.create_file(Path::new("f"), b"x", 0o644).unwrap();
            dir = dir.dir("dddd").unwrap();
        }
        drop(dir);
        let wide = Dir::open(&top.join("t")).unwrap();
        for n in 0..(BATCH + 10) {
            wide.create_file(Path::new(&format!("w{n}")), b"", 0o644).unwrap();
        }
        remove_tree(Path::new("/proc"), &top.join("t"), Contents::Everything).unwrap();
        assert!(!top.join("t").exists());
        std::fs::remove_dir_all(&top).unwrap();
    }
}
