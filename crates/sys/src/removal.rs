//! Removing trees without ever touching what is mounted in them.
//!
//! Every folder is entered by descriptor with `RESOLVE_NO_XDEV`, so a mount (bind mounts of the
//! same filesystem included) that appears while we walk is refused by the kernel, not by a check
//! that could be raced. The mount table is asked first, so that normally nothing at all is removed
//! from a tree that holds a mount.

use crate::beneath::{Dir, EntryKind};
use crate::fs::FsError;
use crate::mountinfo;
use std::io;
use std::path::{Path, PathBuf};

/// Deeper trees are refused: a pod can make any depth, our stack is finite.
const MAX_DEPTH: usize = 256;

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
    /// The tree is too deep.
    #[error("cannot delete directory {}: too deep", .0.display())]
    TooDeep(PathBuf),
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
pub fn remove_entry(
    above: &Dir,
    name: &std::ffi::OsStr,
    contents: Contents,
) -> Result<(), RemoveError> {
    match above.kind(Path::new(name))? {
        None => Ok(()),
        Some(EntryKind::Dir) => remove_in(above, name, contents, 0),
        Some(_) if contents == Contents::Everything => remove_leaf(above, name),
        Some(_) => Err(RemoveError::NotADirectory(above.path().join(name))),
    }
}

fn remove_in(
    above: &Dir,
    name: &std::ffi::OsStr,
    contents: Contents,
    depth: usize,
) -> Result<(), RemoveError> {
    let shown = above.path().join(name);
    if depth > MAX_DEPTH {
        return Err(RemoveError::TooDeep(shown));
    }
    let dir = match above.dir_same_mount(name) {
        Ok(dir) => dir,
        Err(e) if e.is_not_found() => return Ok(()),
        Err(e) if e.source.raw_os_error() == Some(libc::EXDEV) => {
            return Err(RemoveError::MountPoint(shown));
        }
        Err(e) => return Err(e.into()),
    };
    for (entry, kind) in dir.entries()? {
        match kind {
            EntryKind::Dir => remove_in(&dir, &entry, contents, depth + 1)?,
            _ if contents == Contents::DirsOnly => {
                return Err(RemoveError::NotADirectory(dir.path().join(entry)));
            }
            _ => remove_leaf(&dir, &entry)?,
        }
    }
    Ok(above.remove_dir(name)?)
}

fn remove_leaf(dir: &Dir, name: &std::ffi::OsStr) -> Result<(), RemoveError> {
    use rustix::fs::AtFlags;
    use rustix::io::Errno;
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

    fn scratch(name: &str) -> PathBuf {
        let dir =
            std::env::temp_dir().join(format!("rubelet-removal-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).unwrap();
        dir
    }

    #[test]
    fn a_bind_mount_inside_keeps_the_whole_tree() {
        let top = scratch("bind");
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
        assert!(remove_in(&above, "tree".as_ref(), Contents::Everything, 0).is_err());
        assert!(data.join("precious").exists());
        mount::unmount_all_at(&tree.join("a/mnt")).unwrap();
        remove_tree(Path::new("/proc"), &tree, Contents::Everything).unwrap();
        assert!(!tree.exists());
        std::fs::remove_dir_all(&top).unwrap();
    }

    #[test]
    fn links_are_removed_not_followed() {
        let top = scratch("links");
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
        let top = scratch("dirs");
        std::fs::create_dir_all(top.join("t/a/b")).unwrap();
        std::fs::write(top.join("t/a/file"), "x").unwrap();
        let error = remove_tree(Path::new("/proc"), &top.join("t"), Contents::DirsOnly);
        assert!(matches!(error, Err(RemoveError::NotADirectory(_))));
        assert!(top.join("t/a/file").exists());
        std::fs::remove_dir_all(&top).unwrap();
    }
}
