//! Removes trees without ever touching what is mounted in them.
//!
//! Every directory is entered by descriptor with `RESOLVE_NO_XDEV`, so a mount (bind mounts of the
//! same filesystem included) that appears during the walk is refused by the kernel, not by a check
//! that could be raced. The mount table is checked first, so that normally nothing at all is
//! removed from a tree that contains a mount.

use crate::descent::{Descent, Mounts, each_entry, open_folder, vanished};
use crate::fs::FsError;
use crate::mountinfo;
use crate::rooted_dir::{Dir, EntryKind};
use rustix::fs::AtFlags;
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

/// A pod can create any number of files: this many directories are remembered at a time.
const BATCH: usize = 4096;
/// And this many at each level of a deep tree.
const DEEP: usize = 64;

/// Why a tree was not removed.
#[derive(Debug, thiserror::Error)]
pub enum RemoveError {
    /// Something is mounted there; nothing below it was touched.
    #[error("cannot delete directory {}: it is a mount point", .0.display())]
    MountPoint(PathBuf),
    /// A file operation failed.
    #[error(transparent)]
    Fs(#[from] FsError),
    /// Only directories were expected.
    #[error("cannot delete {}: it is not a directory", .0.display())]
    NotADirectory(PathBuf),
}

/// What may be removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Contents {
    /// Files and directories.
    Everything,
    /// Directories only: a file anywhere is an error and stays.
    DirsOnly,
}

/// Removes the directory `path` with everything below it; a missing one is fine.
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

/// Removes the entry `name` of an open directory with everything below it; the mount table is not
/// checked, only the kernel refuses mounts.
pub fn remove_entry(above: &Dir, name: &OsStr, contents: Contents) -> Result<(), RemoveError> {
    match above.kind(Path::new(name))? {
        None => Ok(()),
        Some(EntryKind::Dir) => remove_top(above, name, contents),
        Some(_) if contents == Contents::Everything => remove_leaf(above, name),
        Some(_) => Err(RemoveError::NotADirectory(above.path().join(name))),
    }
}

fn remove_top(above: &Dir, name: &OsStr, contents: Contents) -> Result<(), RemoveError> {
    let top = above.path().join(name);
    let folder = match open_folder(above, name, Mounts::Refuse) {
        Ok(folder) => folder,
        Err(error) if vanished(&error) => return Ok(()),
        Err(error) => return Err(refused("open", &top, error)),
    };
    let mut walk = Walk { at: Descent::new(folder, Mounts::Refuse), top: &top, contents };
    walk.run()?;
    Ok(above.remove_dir(name)?)
}

/// Maps the kernel's error for a mount point, and all others.
fn refused(operation: &'static str, path: &Path, error: io::Error) -> RemoveError {
    match error.raw_os_error() {
        Some(libc::EXDEV | libc::EBUSY) => RemoveError::MountPoint(path.to_owned()),
        _ => FsError { operation, path: path.to_owned(), source: error }.into(),
    }
}

/// Directories are emptied before they are removed. Per level only some names of subdirectories are
/// remembered, so that neither depth nor width nor names matter.
struct Walk<'a> {
    at: Descent,
    top: &'a Path,
    contents: Contents,
}

impl Walk<'_> {
    /// Removes everything below the first directory.
    fn run(&mut self) -> Result<(), RemoveError> {
        let mut levels: Vec<Vec<OsString>> = vec![Vec::new()];
        while let Some(level) = levels.last_mut() {
            if let Some(name) = level.pop() {
                match self.at.down(&name) {
                    Ok(()) => levels.push(Vec::new()),
                    Err(error) if vanished(&error) => {}
                    Err(error) => {
                        return Err(refused("open", &self.at.path(self.top, &name), error));
                    }
                }
                continue;
            }
            if self.remove_files(level)? {
                continue;
            }
            levels.pop();
            let up = self.at.up();
            let up =
                up.map_err(|error| refused("leave", &self.at.path(self.top, "".as_ref()), error))?;
            if let Some(name) = up {
                self.remove("remove folder", &name, AtFlags::REMOVEDIR)?;
            }
        }
        Ok(())
    }

    /// Removes the entries of the current directory that are not directories and remembers some
    /// subdirectories; returns whether there was anything.
    fn remove_files(&mut self, folders: &mut Vec<OsString>) -> Result<bool, RemoveError> {
        let most = if self.at.depth() < DEEP { BATCH } else { DEEP };
        let mut found = false;
        let mut failed = None;
        let listed = each_entry(self.at.here(), |name, kind| {
            found = true;
            if kind.is_dir() {
                folders.push(name.to_owned());
            } else if self.contents == Contents::DirsOnly {
                failed = Some(RemoveError::NotADirectory(self.at.path(self.top, name)));
            } else {
                failed = self.remove("remove", name, AtFlags::empty()).err();
            }
            Ok(failed.is_none() && folders.len() < most)
        });
        match (failed, listed) {
            (Some(error), _) => Err(error),
            (None, Err(error)) => Err(refused("list", &self.at.path(self.top, "".as_ref()), error)),
            (None, Ok(())) => Ok(found),
        }
    }

    fn remove(
        &self,
        operation: &'static str,
        name: &OsStr,
        flags: AtFlags,
    ) -> Result<(), RemoveError> {
        crate::fail_point::before_at(operation, || self.at.path(self.top, name))?;
        unlink(self.at.here(), name, flags)
            .map_err(|error| refused(operation, &self.at.path(self.top, name), error))
    }
}

fn unlink(folder: impl AsFd, name: &OsStr, flags: AtFlags) -> io::Result<()> {
    match rustix::fs::unlinkat(folder, name, flags) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn remove_leaf(dir: &Dir, name: &OsStr) -> Result<(), RemoveError> {
    let path = dir.path().join(name);
    crate::fail_point::before("remove", &path)?;
    unlink(dir, name, AtFlags::empty()).map_err(|error| refused("remove", &path, error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mount;
    use crate::scratch::scratch;
    use std::os::unix::ffi::OsStrExt;

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
    fn a_tree_that_has_our_own_names_already_is_removed() {
        let top = scratch("removal-own-names");
        for n in 0..200 {
            std::fs::create_dir_all(top.join(format!("t/.rubelet-deep-{n}/full"))).unwrap();
        }
        for branch in ["a", "z"] {
            let deep: PathBuf = (0..150).map(|_| "d").collect();
            std::fs::create_dir_all(top.join("t").join(branch).join(deep)).unwrap();
        }
        remove_tree(Path::new("/proc"), &top.join("t"), Contents::Everything).unwrap();
        assert!(!top.join("t").exists());
        std::fs::remove_dir_all(&top).unwrap();
    }

    #[test]
    fn any_depth_and_any_number_of_files_is_removed() {
        let top = scratch("removal-deep");
        std::fs::create_dir_all(top.join("t")).unwrap();
        let mut dir = Dir::open(&top.join("t")).unwrap();
        // Far deeper than the longest path (`PATH_MAX`).
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

    #[test]
    fn names_do_not_matter() {
        let top = scratch("removal-names");
        let tree = top.join("t");
        let odd = [
            b".rubelet-deep-0".as_slice(),
            b".rubelet-deep-1",
            b"\xff\xfe",
            b"a\nb",
            b"..data",
            b"...",
            b" ",
            b"*",
        ];
        for name in odd {
            let name = OsStr::from_bytes(name);
            std::fs::create_dir_all(tree.join(name).join("x")).unwrap();
            std::fs::write(tree.join(name).join("x").join(name), "x").unwrap();
            let mut deep = tree.join(name);
            deep.extend(std::iter::repeat_n(name, 60));
            std::fs::create_dir_all(&deep).unwrap();
            std::os::unix::fs::symlink(&deep, deep.join("loop")).unwrap();
            std::os::unix::fs::symlink("nowhere", deep.join(name)).unwrap();
        }
        remove_tree(Path::new("/proc"), &tree, Contents::Everything).unwrap();
        assert!(!tree.exists());
        std::fs::remove_dir_all(&top).unwrap();
    }

    #[test]
    fn a_wide_folder_deep_down_is_removed_too() {
        let top = scratch("removal-wide");
        let mut deep = top.join("t");
        deep.extend(std::iter::repeat_n("d", DEEP + 5));
        std::fs::create_dir_all(&deep).unwrap();
        for n in 0..(DEEP * 3) {
            std::fs::create_dir(deep.join(format!("f{n}"))).unwrap();
            std::fs::write(deep.join(format!("w{n}")), "").unwrap();
        }
        remove_tree(Path::new("/proc"), &top.join("t"), Contents::Everything).unwrap();
        assert!(!top.join("t").exists());
        std::fs::remove_dir_all(&top).unwrap();
    }
}
