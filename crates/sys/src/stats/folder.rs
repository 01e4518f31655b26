//! Filesystem and directory usage without starting `du`.

use crate::descent::{Descent, Mounts, each_entry};
use crate::fs::FsError;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, RawDir, StatVfs};
use std::collections::HashSet;
use std::ffi::OsString;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

/// Capacity and usage of the filesystem that a path is on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FsUsage {
    /// Total bytes.
    pub capacity: u64,
    /// Bytes available to unprivileged processes.
    pub available: u64,
    /// Bytes in use.
    pub used: u64,
    /// Total inodes.
    pub inodes: u64,
    /// Free inodes.
    pub inodes_free: u64,
    /// Inodes in use.
    pub inodes_used: u64,
}

/// The usage of a directory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FolderUsage {
    /// Bytes on disk, each inode once.
    pub bytes: u64,
    /// Inodes.
    pub inodes: u64,
}

/// Reads the filesystem's capacity and usage.
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

/// Walks a directory (or takes a single file), staying on its filesystem, following no symlink.
/// Entries that vanish meanwhile are not counted.
pub fn folder_usage(path: &Path) -> Result<FolderUsage, FsError> {
    let open = || -> rustix::io::Result<FolderUsage> {
        let stat = rustix::fs::statat(rustix::fs::CWD, path, AtFlags::SYMLINK_NOFOLLOW)?;
        let mut walk =
            Walk { device: stat.st_dev, seen: HashSet::new(), sum: FolderUsage::default() };
        walk.count(&stat);
        if FileType::from_raw_mode(stat.st_mode).is_dir() {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            walk.folder(rustix::fs::open(path, flags, Mode::empty())?);
        }
        Ok(walk.sum)
    };
    open().map_err(|e| FsError { operation: "measure", path: path.to_owned(), source: e.into() })
}

/// The usage of the files directly in a directory, each name separately, without the directory and
/// its subdirectories (kubelet: `fileMetricsByDir`).
pub fn files_usage(path: &Path) -> Result<FolderUsage, FsError> {
    let open = || -> rustix::io::Result<FolderUsage> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = rustix::fs::open(path, flags, Mode::empty())?;
        let mut room = [const { MaybeUninit::uninit() }; 2048];
        let mut entries = RawDir::new(&folder, &mut room);
        let mut sum = FolderUsage::default();
        while let Some(entry) = entries.next() {
            let entry = entry?;
            if entry.file_type() == FileType::Directory {
                continue;
            }
            let stat = rustix::fs::statat(&folder, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW);
            if let Ok(stat) = stat
                && !FileType::from_raw_mode(stat.st_mode).is_dir()
            {
                sum.add(&stat);
            }
        }
        Ok(sum)
    };
    open().map_err(|e| FsError { operation: "measure", path: path.to_owned(), source: e.into() })
}

impl FolderUsage {
    fn add(&mut self, stat: &rustix::fs::Stat) {
        let blocks = u64::try_from(stat.st_blocks).unwrap_or(0);
        self.bytes = self.bytes.saturating_add(blocks.saturating_mul(512));
        self.inodes += 1;
    }
}

struct Walk {
    device: u64,
    seen: HashSet<u64>,
    sum: FolderUsage,
}

impl Walk {
    fn count(&mut self, stat: &rustix::fs::Stat) {
        if stat.st_nlink > 1
            && !FileType::from_raw_mode(stat.st_mode).is_dir()
            && !self.seen.insert(stat.st_ino)
        {
            return;
        }
        self.sum.add(stat);
    }

    /// Counts everything below a directory, at any depth; entries that cannot be read or vanish are
    /// not counted.
    fn folder(&mut self, folder: OwnedFd) {
        let mut at = Descent::new(folder, Mounts::Enter);
        let mut levels = vec![self.level(at.here())];
        while let Some(level) = levels.last_mut() {
            match level.pop() {
                Some(name) if at.down(&name).is_ok() => levels.push(self.level(at.here())),
                Some(_) => {}
                None => {
                    levels.pop();
                    if at.up().is_err() {
                        return;
                    }
                }
            }
        }
    }

    /// Counts the entries of one directory; returns its subdirectories.
    fn level(&mut self, folder: impl AsFd) -> Vec<OsString> {
        let folder = folder.as_fd();
        let mut folders = Vec::new();
        let listed = each_entry(folder, |name, _| {
            let stat = rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW);
            if let Some(stat) = stat.ok().filter(|stat| stat.st_dev == self.device) {
                self.count(&stat);
                if FileType::from_raw_mode(stat.st_mode).is_dir() {
                    folders.push(name.to_owned());
                }
            }
            Ok(true)
        });
        // Entries listed before an error count.
        drop(listed);
        folders
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
        let files = files_usage(&dir).unwrap();
        assert_eq!(files.inodes, 2, "one file, one link");
        assert_eq!(files.bytes, folder_usage(&dir.join("b")).unwrap().bytes);
        std::fs::remove_dir_all(&dir).unwrap();
        assert!(folder_usage(&dir).is_err() && files_usage(&dir).is_err());
    }

    #[test]
    fn nothing_is_too_deep_to_be_counted() {
        use crate::removal::{Contents, remove_tree};
        use crate::rooted_dir::Dir;
        let top = std::env::temp_dir().join(format!("rubelet-deep-du-{}", std::process::id()));
        std::fs::create_dir_all(&top).unwrap();
        let mut dir = Dir::open(&top).unwrap();
        // Far deeper than the longest path, with side branches all the way.
        for _ in 0..2000 {
            dir.make_dir("side", 0o755).unwrap();
            dir.create_file(Path::new("file"), &[1; 5000], 0o644).unwrap();
            dir.make_dir("deeper", 0o755).unwrap();
            dir = dir.dir("deeper").unwrap();
        }
        drop(dir);
        let usage = folder_usage(&top).unwrap();
        assert_eq!(usage.inodes, 1 + 3 * 2000);
        assert!(usage.bytes >= 2000 * 5000, "{}", usage.bytes);
        remove_tree(Path::new("/proc"), &top, Contents::Everything).unwrap();
    }

    #[test]
    fn filesystem_numbers_add_up() {
        let usage = fs_usage(Path::new("/")).unwrap();
        assert!(usage.capacity > 0 && usage.used <= usage.capacity);
        assert_eq!(usage.inodes, usage.inodes_free + usage.inodes_used);
    }
}
