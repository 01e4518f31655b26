//! Walks directory trees of any depth with few descriptors and little stack.
//!
//! A pod can nest directories without end and give them any name. The last directories on the way
//! down stay open; one further up is opened again through `..`, and only if it is the same
//! directory that was left: if something is moved meanwhile, the walk ends instead of continuing
//! elsewhere.

use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// How many directories above the current one stay open.
const OPEN_ABOVE: usize = 32;
/// How many directories of a path are shown in messages.
const SHOWN: usize = 64;

/// How a directory on which something is mounted is handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mounts {
    /// It is entered.
    Enter,
    /// It is not: `EXDEV`.
    Refuse,
}

/// A position in a tree, with the way back.
#[derive(Debug)]
pub(crate) struct Descent {
    here: OwnedFd,
    above: Vec<Above>,
    mounts: Mounts,
}

#[derive(Debug)]
struct Above {
    /// Closed when it is far above the current one.
    fd: Option<OwnedFd>,
    identity: (u64, u64),
    /// The name of the directory entered from there.
    entered: OsString,
}

impl Descent {
    /// Begins at an open directory.
    pub(crate) fn new(top: OwnedFd, mounts: Mounts) -> Self {
        Self { here: top, above: Vec::new(), mounts }
    }

    /// The current directory.
    pub(crate) fn here(&self) -> BorrowedFd<'_> {
        self.here.as_fd()
    }

    /// How many directories are above, up to the first one.
    pub(crate) fn depth(&self) -> usize {
        self.above.len()
    }

    /// Enters the directory `name`; a symlink is an error.
    pub(crate) fn down(&mut self, name: &OsStr) -> io::Result<()> {
        let below = open_folder(self.here(), name, self.mounts)?;
        let identity = crate::rooted_dir::identity(&self.here)?;
        let left = std::mem::replace(&mut self.here, below);
        self.above.push(Above { fd: Some(left), identity, entered: name.to_owned() });
        let far = self.above.len().checked_sub(OPEN_ABOVE + 1);
        if let Some(above) = far.and_then(|far| self.above.get_mut(far)) {
            above.fd = None;
        }
        Ok(())
    }

    /// Goes back to the parent directory and returns the name of the one that was left; `None` at
    /// the first one.
    pub(crate) fn up(&mut self) -> io::Result<Option<OsString>> {
        let Some(above) = self.above.pop() else { return Ok(None) };
        let fd = match above.fd {
            Some(fd) => fd,
            None => {
                let fd = rustix::fs::openat(&self.here, c"..", FOLDER, Mode::empty())?;
                if crate::rooted_dir::identity(&fd)? != above.identity {
                    return Err(io::Error::other("a folder was moved while it was walked through"));
                }
                fd
            }
        };
        self.here = fd;
        Ok(Some(above.entered))
    }

    /// The path of an entry of the current directory, for messages: of a very deep one only the end
    /// is shown.
    pub(crate) fn path(&self, top: &Path, name: &OsStr) -> PathBuf {
        let skipped = self.above.len().saturating_sub(SHOWN);
        let start = if skipped == 0 { top.to_owned() } else { top.join("...") };
        let mut path = start;
        path.extend(self.above.iter().skip(skipped).map(|above| &above.entered));
        if !name.is_empty() {
            path.push(name);
        }
        path
    }
}

const FOLDER: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Opens a subdirectory by its name; a symlink is an error.
pub(crate) fn open_folder(above: impl AsFd, name: &OsStr, mounts: Mounts) -> io::Result<OwnedFd> {
    if mounts == Mounts::Enter {
        return Ok(rustix::fs::openat(above, name, FOLDER, Mode::empty())?);
    }
    let resolve = ResolveFlags::BENEATH
        | ResolveFlags::NO_SYMLINKS
        | ResolveFlags::NO_MAGICLINKS
        | ResolveFlags::NO_XDEV;
    loop {
        match rustix::fs::openat2(above.as_fd(), name, FOLDER, Mode::empty(), resolve) {
            // Interrupted by a concurrent rename. The path has one component, so retrying ends.
            Err(rustix::io::Errno::AGAIN) => {}
            result => return Ok(result?),
        }
    }
}

/// Visits the entries of a directory, in no order, until the visitor stops; entries that vanish
/// meanwhile are skipped.
pub(crate) fn each_entry(
    folder: impl AsFd,
    mut visit: impl FnMut(&OsStr, FileType) -> io::Result<bool>,
) -> io::Result<()> {
    let folder = folder.as_fd();
    for entry in rustix::fs::Dir::read_from(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        let kind = match entry.file_type() {
            FileType::Unknown => {
                match rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW) {
                    Ok(stat) => FileType::from_raw_mode(stat.st_mode),
                    Err(rustix::io::Errno::NOENT) => continue,
                    Err(error) => return Err(error.into()),
                }
            }
            known => known,
        };
        if !visit(OsStr::from_bytes(name.to_bytes()), kind)? {
            return Ok(());
        }
    }
    Ok(())
}

/// Whether the error means that the entry does not exist (any more).
pub(crate) fn vanished(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::scratch;

    fn open(path: &Path) -> OwnedFd {
        rustix::fs::open(path, FOLDER, Mode::empty()).unwrap()
    }

    #[test]
    fn the_way_back_leads_through_the_same_folders() {
        let top = scratch("descent");
        let mut walk = Descent::new(open(&top), Mounts::Refuse);
        let name = OsStr::from_bytes(b"\xff\n ");
        let mut identities = Vec::new();
        for _ in 0..300 {
            identities.push(crate::rooted_dir::identity(walk.here()).unwrap());
            rustix::fs::mkdirat(walk.here(), name, Mode::RWXU).unwrap();
            walk.down(name).unwrap();
        }
        assert_eq!(walk.depth(), 300);
        let open = walk.above.iter().filter(|above| above.fd.is_some()).count();
        assert_eq!(open, OPEN_ABOVE);
        assert!(walk.path(&top, "x".as_ref()).components().count() < 100);
        while let Some(identity) = identities.pop() {
            assert_eq!(walk.up().unwrap().as_deref(), Some(name));
            assert_eq!(crate::rooted_dir::identity(walk.here()).unwrap(), identity);
        }
        assert_eq!(walk.up().unwrap(), None);
        std::fs::remove_dir_all(&top).unwrap();
    }

    #[test]
    fn a_folder_that_was_moved_away_ends_the_walk() {
        let top = scratch("descent-moved");
        std::fs::create_dir_all(top.join("other")).unwrap();
        let mut walk = Descent::new(open(&top), Mounts::Refuse);
        for _ in 0..40 {
            rustix::fs::mkdirat(walk.here(), "d", Mode::RWXU).unwrap();
            walk.down("d".as_ref()).unwrap();
        }
        std::fs::rename(top.join("d/d/d"), top.join("other/d")).unwrap();
        let failed = (0..40).find_map(|_| walk.up().err()).unwrap();
        assert!(failed.to_string().contains("moved"), "{failed}");
        std::fs::remove_dir_all(&top).unwrap();
    }
}
