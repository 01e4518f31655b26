//! Small files of the host that several programs change: locked while they are read and replaced.
//!
//! The lock is on the inode, and a change replaces the file; so after waiting for the lock it is
//! checked whether the locked inode is still the file of that name.

use crate::fs::{FsError, named, write_atomic};
use rustix::fs::{AtFlags, CWD, FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

/// How often other processes may replace the file before the lock is obtained.
const TRIES: usize = 1000;

/// A file that no other process changes until this is dropped.
#[derive(Debug)]
pub struct LockedFile {
    path: PathBuf,
    file: File,
    mode: u32,
}

impl LockedFile {
    /// Waits for the lock; a missing file is created with `mode`. Anything but a regular file is
    /// refused with `EINVAL`, a symlink too.
    pub fn open(path: &Path, mode: u32) -> Result<Self, FsError> {
        for _ in 0..TRIES {
            let flags = OFlags::RDONLY | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK;
            let opened = rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::from_raw_mode(mode));
            let file = match opened {
                Err(Errno::LOOP | Errno::ISDIR | Errno::NXIO) => Err(Errno::INVAL),
                other => other,
            };
            let file = File::from(named("open", path, file)?);
            let stat = named("stat", path, rustix::fs::fstat(&file))?;
            if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
                return named("open", path, Err(Errno::INVAL));
            }
            named("lock", path, rustix::fs::flock(&file, FlockOperation::LockExclusive))?;
            match rustix::fs::statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(now) if (now.st_dev, now.st_ino) == (stat.st_dev, stat.st_ino) => {
                    return Ok(Self { path: path.to_owned(), file, mode: stat.st_mode & 0o777 });
                }
                Ok(_) | Err(Errno::NOENT) => {}
                Err(e) => return named("stat", path, Err(e)),
            }
        }
        named("lock", path, Err(Errno::AGAIN))
    }

    /// Its content.
    pub fn read(&self) -> Result<Vec<u8>, FsError> {
        let mut bytes = Vec::new();
        named("read", &self.path, (&self.file).read_to_end(&mut bytes))?;
        Ok(bytes)
    }

    /// Replaces the content; readers see either the old or the new content. The next process that
    /// waits for the lock gets it on the new file.
    pub fn replace(self, bytes: &[u8]) -> Result<(), FsError> {
        write_atomic(&self.path, bytes, self.mode)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::scratch;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn no_change_of_many_is_lost() {
        let dir = scratch("locked-many");
        let path = dir.join("file");
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..20 {
                        let file = LockedFile::open(&path, 0o640).unwrap();
                        let mut bytes = file.read().unwrap();
                        bytes.push(b'x');
                        file.replace(&bytes).unwrap();
                    }
                });
            }
        });
        assert_eq!(std::fs::read(&path).unwrap().len(), 160);
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn only_a_plain_file_will_do() {
        let dir = scratch("locked-plain");
        std::fs::write(dir.join("data"), "precious").unwrap();
        symlink(dir.join("data"), dir.join("link")).unwrap();
        std::fs::create_dir(dir.join("folder")).unwrap();
        for name in ["link", "folder"] {
            let refused = LockedFile::open(&dir.join(name), 0o644).unwrap_err();
            assert_eq!(refused.source.raw_os_error(), Some(libc::EINVAL), "{name}");
        }
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
