//! Removing a folder tree without ever leaving the filesystem it began on.
//!
//! Promises: a mount point below the root (also a bind mount of the same filesystem) is never
//! entered and makes the removal fail with its path; symbolic links are removed, not followed;
//! every step works on an open descriptor, so a renamed component cannot redirect it.

use crate::fs::FsError;
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, StatxAttributes, StatxFlags};
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

const MAX_DEPTH: usize = 256;

/// Removes `root` and everything below it; a missing root is fine. Nothing on another mount is
/// touched: the first mount point found ends the walk with an error that names it.
pub fn remove_tree(root: impl AsRef<Path>) -> Result<(), FsError> {
    let root = root.as_ref();
    let (Some(parent), Some(name)) = (root.parent(), root.file_name()) else {
        return Err(failed(root, io::Error::from(io::ErrorKind::InvalidInput)));
    };
    let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
    let parent_fd = match rustix::fs::open(parent, flags, Mode::empty()) {
        Err(rustix::io::Errno::NOENT) => return Ok(()),
        other => other.map_err(|e| failed(root, e.into()))?,
    };
    let name = std::ffi::CString::new(name.as_encoded_bytes())
        .map_err(|e| failed(root, io::Error::new(io::ErrorKind::InvalidInput, e)))?;
    remove_at(parent_fd.as_fd(), &name, root, 0)
}

fn remove_at(
    parent: BorrowedFd<'_>,
    name: &CStr,
    path: &Path,
    depth: usize,
) -> Result<(), FsError> {
    if depth > MAX_DEPTH {
        return Err(failed(path, io::Error::other("folders nested too deeply")));
    }
    let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let folder = match rustix::fs::openat(parent, name, flags, Mode::empty()) {
        Ok(folder) => folder,
        Err(rustix::io::Errno::NOENT) => return Ok(()),
        Err(rustix::io::Errno::NOTDIR | rustix::io::Errno::LOOP) => {
            return unlink(parent, name, path, AtFlags::empty());
        }
        Err(e) => return Err(failed(path, e.into())),
    };
    if is_mount_root(&folder).map_err(|e| failed(path, e))? {
        return Err(failed(path, io::Error::other("is a mount point")));
    }
    for (child, kind) in children(&folder).map_err(|e| failed(path, e))? {
        let child_path = path.join(child.to_string_lossy().as_ref());
        if kind == FileType::Directory || kind == FileType::Unknown {
            remove_at(folder.as_fd(), &child, &child_path, depth + 1)?;
        } else {
            unlink(folder.as_fd(), &child, &child_path, AtFlags::empty())?;
        }
    }
    unlink(parent, name, path, AtFlags::REMOVEDIR)
}

fn unlink(parent: BorrowedFd<'_>, name: &CStr, path: &Path, flags: AtFlags) -> Result<(), FsError> {
    match rustix::fs::unlinkat(parent, name, flags) {
        Ok(()) | Err(rustix::io::Errno::NOENT) => Ok(()),
        Err(e) => Err(failed(path, e.into())),
    }
}

fn is_mount_root(folder: &OwnedFd) -> io::Result<bool> {
    let stat = rustix::fs::statx(folder, c"", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS)?;
    Ok(stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
}

fn children(folder: &OwnedFd) -> io::Result<Vec<(std::ffi::CString, FileType)>> {
    let mut found = Vec::new();
    for entry in Dir::read_from(folder)? {
        let entry = entry?;
        if entry.file_name() != c"." && entry.file_name() != c".." {
            found.push((entry.file_name().to_owned(), entry.file_type()));
        }
    }
    Ok(found)
}

fn failed(path: &Path, source: io::Error) -> FsError {
    FsError { operation: "remove tree", path: PathBuf::from(path), source }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs;

    fn scratch(name: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("rubelet-tree-{name}-{}", std::process::id()));
        fs::create_dir_all(&dir, 0o755).unwrap();
        dir
    }

    #[test]
    fn removes_files_folders_and_links_but_not_what_links_point_at() {
        let outside = scratch("outside");
        fs::write(outside.join("kept"), "x").unwrap();
        let root = scratch("root");
        fs::create_dir_all(root.join("a/b"), 0o755).unwrap();
        fs::write(root.join("a/b/file"), "x").unwrap();
        std::os::unix::fs::symlink(&outside, root.join("a/link")).unwrap();
        remove_tree(&root).unwrap();
        assert!(!fs::try_exists(&root).unwrap());
        assert!(fs::try_exists(outside.join("kept")).unwrap());
        remove_tree(&outside).unwrap();
    }

    #[test]
    fn a_missing_root_is_fine() {
        remove_tree("/nonexistent/rubelet/tree").unwrap();
    }
}
