//! Directories by descriptor: nothing opened through a [`Dir`] can lie outside it.
//!
//! Owns: openat2 walks, and the small set of operations relative to a directory. A name here is one
//! path component; a symlink is never followed unless the method says so, and then only inside the
//! directory. Paths that a pod influences go through here, never through `Path::join` and open.

use crate::fail_point;
use crate::fs::{FsError, named};
use rustix::fs::{AtFlags, CWD, FileType, Gid, Mode, OFlags, ResolveFlags, Stat, Uid};
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

/// How often a walk disturbed by concurrent renames is retried.
const RACE_TRIES: usize = 64;

/// An open directory.
#[derive(Debug)]
pub struct Dir {
    fd: OwnedFd,
    path: PathBuf,
}

/// The type of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryKind {
    /// A directory.
    Dir,
    /// A regular file.
    File,
    /// A symbolic link.
    Link,
    /// Anything else.
    Other,
}

impl From<FileType> for EntryKind {
    fn from(kind: FileType) -> Self {
        match kind {
            FileType::Directory => Self::Dir,
            FileType::RegularFile => Self::File,
            FileType::Symlink => Self::Link,
            _ => Self::Other,
        }
    }
}

impl Dir {
    /// Opens a directory by a trusted path (symlinks in the path are followed, the last one too).
    pub fn open(path: &Path) -> Result<Self, FsError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::open(path, flags, Mode::empty());
        Ok(Self { fd: named("open", path, fd)?, path: path.to_owned() })
    }

    /// The path it was opened by; for messages only.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens the subdirectory `name`; a link is an error.
    pub fn dir(&self, name: impl AsRef<Path>) -> Result<Self, FsError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = self.open_strict(name.as_ref(), flags, Mode::empty())?;
        Ok(Self { fd, path: self.path.join(name) })
    }

    /// Opens the subdirectory `name` unless something is mounted there (then `EXDEV`).
    pub fn dir_same_mount(&self, name: &std::ffi::OsStr) -> Result<Self, FsError> {
        let path = Path::new(name);
        self.check_name(path)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH
            | ResolveFlags::NO_SYMLINKS
            | ResolveFlags::NO_MAGICLINKS
            | ResolveFlags::NO_XDEV;
        let fd = named("open", &self.path.join(path), self.openat2(path, flags, resolve))?;
        Ok(Self { fd, path: self.path.join(path) })
    }

    /// Makes the subdirectory `name` with exactly `mode`, or leaves an existing entry alone.
    pub fn make_dir(&self, name: &str, mode: u32) -> Result<(), FsError> {
        self.check_name(Path::new(name))?;
        fail_point::before("create folder", &self.path.join(name))?;
        match rustix::fs::mkdirat(&self.fd, name, Mode::from_raw_mode(mode)) {
            Ok(()) => named("chmod", &self.path.join(name), {
                self.dir(name)
                    .map_err(|e| e.source)
                    .and_then(|d| Ok(rustix::fs::fchmod(&d.fd, Mode::from_raw_mode(mode))?))
            }),
            Err(Errno::EXIST) => Ok(()),
            Err(e) => named("create folder", &self.path.join(name), Err(e)),
        }
    }

    /// Opens a path below this directory for use as a mount source. Links are followed as long as
    /// they stay below; absolute links and `..` above the directory are errors.
    pub fn open_beneath(&self, relative: &Path) -> Result<OwnedFd, FsError> {
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        let result = self.openat2(relative, OFlags::PATH | OFlags::CLOEXEC, resolve);
        named("open", &self.path.join(relative), result)
    }

    /// Opens a file or directory below this one for reading, without blocking on a pipe. Symlinks
    /// are followed as long as they stay below.
    pub fn open_file(&self, relative: &Path) -> Result<File, FsError> {
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let result = self.openat2(relative, flags, resolve);
        named("open", &self.path.join(relative), result).map(File::from)
    }

    /// The descriptor alone.
    pub(crate) fn into_fd(self) -> OwnedFd {
        self.fd
    }

    /// A directory that was opened as a file.
    pub fn from_file(file: File, path: PathBuf) -> Self {
        Self { fd: file.into(), path }
    }

    /// Makes the missing part of `relative` below this directory, each new directory with exactly
    /// `mode`, and opens the result. Existing links are followed only where they stay below.
    pub fn make_beneath(&self, relative: &Path, mode: u32) -> Result<OwnedFd, FsError> {
        let shown = self.path.join(relative);
        let mut parts = Vec::new();
        for part in relative.components() {
            match part {
                Component::Normal(name) => parts.push(name),
                Component::CurDir => {}
                _ => {
                    return named("create", &shown, Err(io::Error::from(Errno::XDEV)));
                }
            }
        }
        // The longest existing prefix, then only directories created here.
        let mut existing = parts.len();
        let mut current = loop {
            let prefix: PathBuf = parts.iter().take(existing).collect();
            let prefix = if existing == 0 { Path::new(".") } else { &prefix };
            match self.open_beneath(prefix) {
                Ok(fd) => break fd,
                Err(e) if e.is_not_found() && existing > 0 => existing -= 1,
                Err(e) => return Err(e),
            }
        };
        for name in parts.iter().skip(existing) {
            fail_point::before("create folder", &shown)?;
            match rustix::fs::mkdirat(&current, *name, Mode::from_raw_mode(mode & 0o777)) {
                // It may have been created concurrently: the strict open below checks what is
                // there.
                Ok(()) | Err(Errno::EXIST) => {}
                Err(e) => return named("create folder", &shown, Err(e)),
            }
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let next =
                named("open", &shown, rustix::fs::openat(&current, *name, flags, Mode::empty()))?;
            named("chmod", &shown, rustix::fs::fchmod(&next, Mode::from_raw_mode(mode)))?;
            current = next;
        }
        Ok(current)
    }

    /// Writes a new file `relative` (directories must exist, no links on the way) with exactly
    /// `mode`.
    pub fn create_file(&self, relative: &Path, bytes: &[u8], mode: u32) -> Result<(), FsError> {
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let shown = self.path.join(relative);
        fail_point::before("create", &shown)?;
        let fd = self.open_strict(relative, flags, Mode::from_raw_mode(0o600))?;
        let mut file = File::from(fd);
        named("write", &shown, file.write_all(bytes))?;
        named("chmod", &shown, rustix::fs::fchmod(&file, Mode::from_raw_mode(mode)))
    }

    /// Reads the regular file `relative`; links on the way or a file above `limit` are errors.
    pub fn read_file(&self, relative: &Path, limit: u64) -> Result<Vec<u8>, FsError> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = File::from(self.open_strict(relative, flags, Mode::empty())?);
        read_at_most(file, &self.path.join(relative), limit)
    }

    /// Opens the regular file at `relative` as a process would whose root is this directory:
    /// symlinks are followed, also absolute ones, and never lead outside. Also returns its resolved
    /// path, relative to this directory.
    pub fn open_in_root(&self, relative: &Path) -> Result<(PathBuf, File), FsError> {
        let shown = self.path.join(relative);
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = File::from(named("open", &shown, self.openat2(relative, flags, resolve))?);
        if !named("stat", &shown, file.metadata())?.is_file() {
            return named("read", &shown, Err(io::Error::other("not a regular file")));
        }
        let found = place_of(&file)
            .zip(place_of(&self.fd))
            .and_then(|(file, root)| file.strip_prefix(root).ok().map(Path::to_owned));
        Ok((found.unwrap_or_else(|| relative.to_owned()), file))
    }

    /// Makes a symbolic link.
    pub fn symlink(&self, target: &str, name: &str) -> Result<(), FsError> {
        self.check_name(Path::new(name))?;
        fail_point::before("link", &self.path.join(name))?;
        named("link", &self.path.join(name), rustix::fs::symlinkat(target, &self.fd, name))
    }

    /// The target of the symbolic link `name`; `None` if there is nothing.
    pub fn read_link(&self, name: &str) -> Result<Option<String>, FsError> {
        self.check_name(Path::new(name))?;
        match rustix::fs::readlinkat(&self.fd, name, Vec::new()) {
            Ok(target) => Ok(Some(target.to_string_lossy().into_owned())),
            Err(Errno::NOENT) => Ok(None),
            Err(e) => named("read link", &self.path.join(name), Err(e)),
        }
    }

    /// Renames within this directory, replacing what is there.
    pub fn rename(&self, from: &str, to: &str) -> Result<(), FsError> {
        self.check_name(Path::new(from))?;
        self.check_name(Path::new(to))?;
        fail_point::before("rename", &self.path.join(to))?;
        let result = rustix::fs::renameat(&self.fd, from, &self.fd, to);
        named("rename", &self.path.join(from), result)
    }

    /// Removes a file or link; a missing one is fine.
    pub fn remove_file(&self, name: &str) -> Result<(), FsError> {
        self.check_name(Path::new(name))?;
        fail_point::before("remove", &self.path.join(name))?;
        match rustix::fs::unlinkat(&self.fd, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(e) => named("remove", &self.path.join(name), Err(e)),
        }
    }

    /// Removes an empty directory; a missing one is fine.
    pub fn remove_dir(&self, name: &std::ffi::OsStr) -> Result<(), FsError> {
        self.check_name(Path::new(name))?;
        fail_point::before("remove folder", &self.path.join(name))?;
        match rustix::fs::unlinkat(&self.fd, name, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(e) => named("remove folder", &self.path.join(name), Err(e)),
        }
    }

    /// The type of the entry at `relative` (no symlinks on the way, the last one not followed);
    /// `None` if there is none.
    pub fn kind(&self, relative: &Path) -> Result<Option<EntryKind>, FsError> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match self.open_strict(relative, flags, Mode::empty()) {
            Ok(fd) => {
                let stat = named("stat", &self.path.join(relative), rustix::fs::fstat(&fd))?;
                Ok(Some(FileType::from_raw_mode(stat.st_mode).into()))
            }
            Err(e) if e.is_not_found() => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Changes the owner of an entry (a symlink itself, not its target).
    pub fn chown(
        &self,
        relative: &Path,
        uid: Option<u32>,
        gid: Option<u32>,
    ) -> Result<(), FsError> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = self.open_strict(relative, flags, Mode::empty())?;
        let result = rustix::fs::chownat(
            &fd,
            c"",
            uid.map(Uid::from_raw),
            gid.map(Gid::from_raw),
            AtFlags::EMPTY_PATH,
        );
        named("chown", &self.path.join(relative), result)
    }

    /// Names in this directory with their kind, sorted.
    pub fn entries(&self) -> Result<Vec<(std::ffi::OsString, EntryKind)>, FsError> {
        let mut entries = self.some_entries(usize::MAX)?;
        entries.sort_by(|a, b| a.0.cmp(&b.0));
        Ok(entries)
    }

    /// At most `limit` names in this directory, in no order: a directory of millions never has to
    /// fit into memory.
    pub fn some_entries(
        &self,
        limit: usize,
    ) -> Result<Vec<(std::ffi::OsString, EntryKind)>, FsError> {
        let listing = named("list", &self.path, rustix::fs::Dir::read_from(&self.fd))?;
        let mut entries = Vec::new();
        for entry in listing {
            let entry = named("list", &self.path, entry)?;
            let name = std::ffi::OsStr::from_bytes(entry.file_name().to_bytes()).to_owned();
            if name == "." || name == ".." {
                continue;
            }
            if entries.len() >= limit {
                break;
            }
            let kind = match entry.file_type() {
                FileType::Unknown => self.kind(Path::new(&name))?.unwrap_or(EntryKind::Other),
                known => known.into(),
            };
            entries.push((name, kind));
        }
        Ok(entries)
    }

    /// Permission bits including setuid, setgid and sticky.
    pub fn mode(&self) -> Result<u32, FsError> {
        Ok(self.stat()?.st_mode & 0o7777)
    }

    /// The directory's own attributes.
    pub fn stat(&self) -> Result<Stat, FsError> {
        named("stat", &self.path, rustix::fs::fstat(&self.fd))
    }

    /// Sets the directory's own permission bits.
    pub fn chmod(&self, mode: u32) -> Result<(), FsError> {
        named("chmod", &self.path, rustix::fs::fchmod(&self.fd, Mode::from_raw_mode(mode)))
    }

    fn check_name(&self, name: &Path) -> Result<(), FsError> {
        let mut parts = name.components();
        match (parts.next(), parts.next()) {
            (Some(Component::Normal(_)), None) => Ok(()),
            _ => named("use name", &self.path.join(name), Err(io::Error::from(Errno::INVAL))),
        }
    }

    fn open_strict(&self, relative: &Path, flags: OFlags, mode: Mode) -> Result<OwnedFd, FsError> {
        let resolve =
            ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let mut result = Err(Errno::AGAIN);
        for _ in 0..RACE_TRIES {
            result = rustix::fs::openat2(&self.fd, relative, flags, mode, resolve);
            if result.as_ref().err() != Some(&Errno::AGAIN) {
                break;
            }
        }
        named("open", &self.path.join(relative), result)
    }

    fn openat2(
        &self,
        relative: &Path,
        flags: OFlags,
        resolve: ResolveFlags,
    ) -> Result<OwnedFd, Errno> {
        let mut result = Err(Errno::AGAIN);
        for _ in 0..RACE_TRIES {
            result = rustix::fs::openat2(&self.fd, relative, flags, Mode::empty(), resolve);
            if result.as_ref().err() != Some(&Errno::AGAIN) {
                break;
            }
        }
        result
    }
}

impl AsFd for Dir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn read_at_most(file: File, shown: &Path, limit: u64) -> Result<Vec<u8>, FsError> {
    let mut bytes = Vec::new();
    named("read", shown, file.take(limit.saturating_add(1)).read_to_end(&mut bytes))?;
    if bytes.len() as u64 > limit {
        return named("read", shown, Err(io::Error::from(Errno::FBIG)));
    }
    Ok(bytes)
}

/// The path of an open descriptor, as far as the kernel knows it.
fn place_of(fd: impl AsFd) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd())).ok()
}

/// Device and inode of a descriptor, to compare two.
pub fn identity(fd: impl AsFd) -> Result<(u64, u64), io::Error> {
    let stat = rustix::fs::fstat(fd)?;
    Ok((stat.st_dev, stat.st_ino))
}

/// Whether the descriptor is of a directory.
pub fn is_dir(fd: impl AsFd) -> Result<bool, io::Error> {
    let stat = rustix::fs::fstat(fd)?;
    Ok(FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
}

/// Opens a trusted path without following a link at its end, for use as a mount target.
pub fn open_path(path: &Path) -> Result<OwnedFd, FsError> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    named("open", path, rustix::fs::openat(CWD, path, flags, Mode::empty()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::scratch;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    #[test]
    fn links_that_leave_the_folder_are_refused_at_every_depth() {
        let top = scratch("beneath-leave");
        let volume = top.join("v");
        std::fs::create_dir_all(volume.join("a/b")).unwrap();
        std::fs::create_dir_all(top.join("outside")).unwrap();
        symlink("../outside", volume.join("out")).unwrap();
        symlink("../../outside", volume.join("a/out")).unwrap();
        symlink("/etc", volume.join("a/b/abs")).unwrap();
        symlink("b", volume.join("a/inside")).unwrap();
        let dir = Dir::open(&volume).unwrap();
        for path in ["out", "a/out", "a/b/abs", "a/../../outside", "out/x/y", "a/b/abs/passwd"] {
            assert!(dir.open_beneath(Path::new(path)).is_err(), "{path} opened");
            assert!(dir.make_beneath(Path::new(path), 0o755).is_err(), "{path} made");
        }
        assert!(dir.open_beneath(Path::new("a/inside")).is_ok());
        assert!(dir.make_beneath(Path::new("a/inside/new"), 0o755).is_ok());
        assert!(volume.join("a/b/new").is_dir());
        assert_eq!(std::fs::read_dir(top.join("outside")).unwrap().count(), 0);
        std::fs::remove_dir_all(&top).unwrap();
    }

    #[test]
    fn a_file_is_read_as_if_the_folder_were_the_root() {
        let top = scratch("beneath-root");
        let volume = top.join("v");
        std::fs::create_dir_all(volume.join("a")).unwrap();
        std::fs::write(volume.join("a/file"), "inside").unwrap();
        std::fs::write(top.join("file"), "outside").unwrap();
        symlink("a/file", volume.join("link")).unwrap();
        symlink("/a/file", volume.join("absolute")).unwrap();
        symlink("../../a/file", volume.join("up")).unwrap();
        symlink("../../file", volume.join("lost")).unwrap();
        let dir = Dir::open(&volume).unwrap();
        let open = |path: &str| dir.open_in_root(Path::new(path));
        for path in ["a/file", "./a//file", "link", "absolute", "up"] {
            let (found, file) = open(path).unwrap();
            assert_eq!(found, Path::new("a/file"), "{path}");
            assert_eq!(read_at_most(file, &found, 16).unwrap(), b"inside", "{path}");
        }
        for path in ["lost", "a", "none"] {
            assert!(open(path).is_err(), "{path}");
        }
        std::fs::remove_dir_all(&top).unwrap();
    }

    #[test]
    fn new_folders_get_the_wanted_mode_whatever_the_umask() {
        let top = scratch("beneath-mode");
        let dir = Dir::open(&top).unwrap();
        dir.make_beneath(Path::new("x/y"), 0o2777).unwrap();
        for path in ["x", "x/y"] {
            let mode = std::fs::metadata(top.join(path)).unwrap().permissions().mode();
            assert_eq!(mode & 0o7777, 0o2777, "{path}");
        }
        std::fs::remove_dir_all(&top).unwrap();
    }

    #[test]
    fn files_are_never_written_through_links() {
        let top = scratch("beneath-write");
        std::fs::write(top.join("victim"), "old").unwrap();
        symlink("victim", top.join("link")).unwrap();
        symlink("/tmp", top.join("folder")).unwrap();
        let dir = Dir::open(&top).unwrap();
        assert!(dir.create_file(Path::new("link"), b"new", 0o644).is_err());
        assert!(dir.create_file(Path::new("folder/rubelet-x"), b"new", 0o644).is_err());
        assert!(dir.read_file(Path::new("link"), 10).is_err());
        assert_eq!(std::fs::read_to_string(top.join("victim")).unwrap(), "old");
        dir.chown(Path::new("link"), Some(7), Some(8)).unwrap();
        assert_eq!(std::fs::symlink_metadata(top.join("link")).unwrap().uid(), 7);
        assert_eq!(std::fs::metadata(top.join("victim")).unwrap().uid(), 0);
        std::fs::remove_dir_all(&top).unwrap();
    }

    #[test]
    fn a_name_is_one_component() {
        let top = scratch("beneath-name");
        let dir = Dir::open(&top).unwrap();
        for name in ["", ".", "..", "a/b", "/a", "../x"] {
            assert!(dir.remove_file(name).is_err(), "{name:?}");
            assert!(dir.make_dir(name, 0o755).is_err(), "{name:?}");
        }
        std::fs::remove_dir_all(&top).unwrap();
    }
}
