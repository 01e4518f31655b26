//! Filesystem and folder usage without starting `du`.

use crate::fs::FsError;
use rustix::fs::{AtFlags, Mode, OFlags, StatVfs};
use std::collections::HashSet;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

/// Numbers of the filesystem that a path is on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FsUsage {
    /// Bytes in all.
    pub capacity: u64,
    /// Bytes that an unprivileged process can still use.
    pub available: u64,
    /// Bytes in use.
    pub used: u64,
    /// Inodes in all.
    pub inodes: u64,
    /// Free inodes.
    pub inodes_free: u64,
    /// Inodes in use.
    pub inodes_used: u64,
}

/// What a folder holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FolderUsage {
    /// Bytes on disk, each inode once.
    pub bytes: u64,
    /// Inodes.
    pub inodes: u64,
}

/// Asks the filesystem.
pub fn fs_usage(path: &Path) -> Result<FsUsage, FsError> {
    let stat: StatVfs = rustix::fs::statvfs(path).map_err(|e| FsError {
        operation: "stat filesystem of",
        path: path.to_owned(),
        source: e.into(),
    })?;
    Ok(FsUsage {
        capacity: stat.f_blocks.saturating_mul(stat.f_frsize),
        available: stat.f_bavail.saturating_mul(stat.f_frsize),
        used: stat.f_blocks.saturating_sub(stat.f_bfree).saturating_mul(stat.f_frsize),
        inodes: stat.f_files,
        inodes_free: stat.f_ffree,
        inodes_used: stat.f_files.saturating_sub(stat.f_ffree),
    })
}

/// The number of the device that a path is on.
pub fn device(path: &Path) -> Result<u64, FsError> {
    let stat = rustix::fs::stat(path).map_err(|e| FsError {
        operation: "stat",
        path: path.to_owned(),
        source: e.into(),
    })?;
    Ok(stat.st_dev)
}

/// Walks a folder (or takes a single file), staying on its filesystem, following no link. What
/// vanishes meanwhile is not counted.
pub fn folder_usage(path: &Path) -> Result<FolderUsage, FsError> {
    let open = || -> rustix::io::Result<FolderUsage> {
        let stat = rustix::fs::statat(rustix::fs::CWD, path, AtFlags::SYMLINK_NOFOLLOW)?;
        let mut walk =
            Walk { device: stat.st_dev, seen: HashSet::new(), sum: FolderUsage::default() };
        walk.count(&stat);
        if rustix::fs::FileType::from_raw_mode(stat.st_mode).is_dir() {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            walk.folder(rustix::fs::open(path, flags, Mode::empty())?, 0);
        }
        Ok(walk.sum)
    };
    open().map_err(|e| FsError { operation: "measure", path: path.to_owned(), source: e.into() })
}

/// Folders below this depth are not entered: no honest tree is so deep, and each level holds a
/// descriptor.
const MAX_DEPTH: usize = 256;

struct Walk {
    device: u64,
    seen: HashSet<u64>,
    sum: FolderUsage,
}

impl Walk {
    fn count(&mut self, stat: &rustix::fs::Stat) {
        if stat.st_nlink > 1
            && !rustix::fs::FileType::from_raw_mode(stat.st_mode).is_dir()
            && !self.seen.insert(stat.st_ino)
        {
            return;
        }
        let blocks = u64::try_from(stat.st_blocks).unwrap_or(0);
        self.sum.bytes = self.sum.bytes.saturating_add(blocks.saturating_mul(512));
        self.sum.inodes += 1;
    }

    fn folder(&mut self, folder: OwnedFd, depth: usize) {
        let Ok(entries) = rustix::fs::Dir::read_from(&folder) else { return };
        for entry in entries.flatten() {
            let name = entry.file_name();
            if name.to_bytes() == b"." || name.to_bytes() == b".." {
                continue;
            }
            let Ok(stat) = rustix::fs::statat(folder.as_fd(), name, AtFlags::SYMLINK_NOFOLLOW)
            else {
                continue;
            };
            if stat.st_dev != self.device {
                continue;
            }
            self.count(&stat);
            if rustix::fs::FileType::from_raw_mode(stat.st_mode).is_dir() && depth < MAX_DEPTH {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                if let Ok(child) = rustix::fs::openat(folder.as_fd(), name, flags, Mode::empty()) {
                    self.folder(child, depth + 1);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_hard_links_once_and_follows_no_symlink() {
        let dir = std::env::temp_dir().join(format!("rubelet-du-{}", std::process::id()));
        std::fs::create_dir_all(dir.join("sub")).unwrap();
        std::fs::write(dir.join("sub/a"), vec![1; 64 * 1024]).unwrap();
        std::fs::hard_link(dir.join("sub/a"), dir.join("b")).unwrap();
        std::os::unix::fs::symlink("/proc", dir.join("link")).unwrap();
        let usage = folder_usage(&dir).unwrap();
        assert_eq!(usage.inodes, 4, "two folders, one file, one link");
        let du = std::process::Command::new("du").args(["-sB1", "--"]).arg(&dir).output().unwrap();
        let text = String::from_utf8(du.stdout).unwrap();
        let expected: u64 = text.split_whitespace().next().unwrap().parse().unwrap();
        assert_eq!(usage.bytes, expected);
        std::fs::remove_dir_all(&dir).unwrap();
        assert!(folder_usage(&dir).is_err());
    }

    #[test]
    fn filesystem_numbers_add_up() {
        let usage = fs_usage(Path::new("/")).unwrap();
        assert!(usage.capacity > 0 && usage.used <= usage.capacity);
        assert_eq!(usage.inodes, usage.inodes_free + usage.inodes_used);
    }
}
