//! Project quotas: which project a directory's files belong to, and the usage that the filesystem
//! accounts to it.
//!
//! Uses `quotactl_fd` and the attribute ioctls, which work the same for XFS and ext4; no quota tool
//! is started. A kernel without `quotactl_fd` (before 5.14) is treated as one without quotas.
//!
//! Deliberately absent: the assignment of project ids.

use crate::descent::{Descent, Mounts, each_entry};
use crate::fail_point;
use crate::fs::FsError;
use crate::rooted_dir::Dir;
use crate::stats::FolderUsage;
use rustix::fs::{Mode, OFlags};
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;

// linux/fs.h
const FS_IOC_FSGETXATTR: libc::Ioctl = libc::_IOR::<Attributes>('X' as u32, 31);
const FS_IOC_FSSETXATTR: libc::Ioctl = libc::_IOW::<Attributes>('X' as u32, 32);
const FS_XFLAG_PROJINHERIT: u32 = 0x200;
// linux/dqblk_xfs.h; `<command> << 8 | PRJQUOTA`
const GET_QUOTA: libc::c_uint = 0x5803 << 8 | 2;
const SET_LIMITS: libc::c_uint = 0x5804 << 8 | 2;
const GET_STATE: libc::c_uint = 0x5808 << 8 | 2;
const FS_DQUOT_VERSION: i8 = 1;
const FS_QSTATV_VERSION: i8 = 1;
const FS_PROJ_QUOTA: i8 = 2;
const FS_DQ_BSOFT: u16 = 1 << 2;
const FS_DQ_BHARD: u16 = 1 << 3;
const FS_QUOTA_PDQ_ACCT: u16 = 1 << 4;
/// Quotas count in blocks of 512 bytes.
const BLOCK: u32 = 9;

/// `struct fsxattr`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
struct Attributes {
    flags: u32,
    extent_size: u32,
    extents: u32,
    project: u32,
    cow_extent_size: u32,
    padding: [u8; 8],
}

/// `struct fs_disk_quota`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
struct DiskQuota {
    version: i8,
    flags: i8,
    fields: u16,
    id: u32,
    blocks_hard: u64,
    blocks_soft: u64,
    inodes_hard: u64,
    inodes_soft: u64,
    blocks: u64,
    inodes: u64,
    rest: [u64; 7],
}

/// `struct fs_quota_statv`, with room to spare.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
struct State {
    version: i8,
    padding: u8,
    flags: u16,
    in_core: u32,
    rest: [u64; 31],
}

/// Arguments of the calls below: plain numbers, for which every bit pattern is valid.
trait Plain: Copy {}
impl Plain for Attributes {}
impl Plain for DiskQuota {}
impl Plain for State {}

fn named<T>(operation: &'static str, path: &Path, result: io::Result<T>) -> Result<T, FsError> {
    result.map_err(|source| FsError { operation, path: path.to_owned(), source })
}

#[expect(unsafe_code, reason = "no safe wrapper exists for the attribute ioctls")]
fn attribute_call(
    file: impl AsFd,
    request: libc::Ioctl,
    attributes: &mut Attributes,
) -> io::Result<()> {
    let fd = file.as_fd().as_raw_fd();
    // SAFETY: the descriptor is open for the call; both requests used here read or write one `fsxattr` (28
    // bytes, in the request's number too), which `Attributes` is, at the address of an exclusive reference.
    let result = unsafe { libc::ioctl(fd, request, std::ptr::from_mut(attributes)) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[expect(unsafe_code, reason = "no safe wrapper exists for quotactl_fd")]
fn quota_call<T: Plain>(
    file: impl AsFd,
    command: libc::c_uint,
    id: u32,
    argument: &mut T,
) -> io::Result<()> {
    let fd = file.as_fd().as_raw_fd();
    // SAFETY: the descriptor is open for the call; each command used here reads or writes its own structure,
    // which is `T` (or shorter, for the state), at the address of an exclusive reference.
    let result = unsafe {
        libc::syscall(libc::SYS_quotactl_fd, fd, command, id, std::ptr::from_mut(argument))
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Whether the filesystem of the directory has project accounting enabled.
pub fn accounting(path: &Path) -> Result<bool, FsError> {
    let dir = Dir::open(path)?;
    let mut state = State { version: FS_QSTATV_VERSION, ..State::default() };
    match quota_call(&dir, GET_STATE, 0, &mut state) {
        Ok(()) => Ok(state.flags & FS_QUOTA_PDQ_ACCT != 0),
        Err(e) if is_unknown(&e) => Ok(false),
        Err(e) => named("read the state of quotas of", path, Err(e)),
    }
}

/// The kernel or the filesystem does not support quotas.
fn is_unknown(error: &io::Error) -> bool {
    let code = error.raw_os_error();
    [libc::ENOSYS, libc::EOPNOTSUPP, libc::ENOTTY, libc::EINVAL, libc::ESRCH]
        .into_iter()
        .any(|unknown| code == Some(unknown))
}

/// The usage of a project on the directory's filesystem, in whole kilobytes as quota tools report
/// it.
pub fn usage(path: &Path, id: u32) -> Result<FolderUsage, FsError> {
    let dir = Dir::open(path)?;
    let mut quota = DiskQuota::default();
    match quota_call(&dir, GET_QUOTA, id, &mut quota) {
        Ok(()) => {
            let bytes = (quota.blocks >> 1).saturating_mul(1024);
            Ok(FolderUsage { bytes, inodes: quota.inodes })
        }
        // XFS has no record of a project that was never used.
        Err(e) if e.raw_os_error() == Some(libc::ENOENT) => Ok(FolderUsage::default()),
        Err(e) => named("read the quota of", path, Err(e)),
    }
}

/// Limits the bytes of a project on the directory's filesystem; zero is no limit.
pub fn set_limit(path: &Path, id: u32, bytes: u64) -> Result<(), FsError> {
    let dir = Dir::open(path)?;
    fail_point::before("limit", path)?;
    let blocks = bytes >> BLOCK;
    let mut quota = DiskQuota {
        version: FS_DQUOT_VERSION,
        flags: FS_PROJ_QUOTA,
        fields: FS_DQ_BSOFT | FS_DQ_BHARD,
        id,
        blocks_hard: blocks,
        blocks_soft: blocks,
        ..DiskQuota::default()
    };
    named("limit", path, quota_call(&dir, SET_LIMITS, id, &mut quota))
}

/// The project of the directory; zero is none.
pub fn project(path: &Path) -> Result<u32, FsError> {
    let mut found = Attributes::default();
    named(
        "read the project of",
        path,
        attribute_call(&Dir::open(path)?, FS_IOC_FSGETXATTR, &mut found),
    )?;
    Ok(found.project)
}

/// Puts a directory with all its present and future content into a project.
///
/// The directory itself comes last, so that an interrupted run is repeated by the next one; entries
/// created meanwhile are processed in a second pass. Symlinks, pipes and sockets take next to
/// nothing and are skipped.
pub fn assign(path: &Path, id: u32) -> Result<(), FsError> {
    let dir = Dir::open(path)?;
    fail_point::before("assign", path)?;
    if is_assigned(&dir, id).map_err(|source| FsError {
        operation: "read the project of",
        path: path.to_owned(),
        source,
    })? {
        return Ok(());
    }
    let empty = dir.some_entries(1)?.is_empty();
    assign_below(path, id)?;
    named("assign", path, assign_one(&dir, id, FS_XFLAG_PROJINHERIT))?;
    if empty { Ok(()) } else { assign_below(path, id) }
}

fn is_assigned(dir: &Dir, id: u32) -> io::Result<bool> {
    let mut found = Attributes::default();
    attribute_call(dir, FS_IOC_FSGETXATTR, &mut found)?;
    Ok(found.project == id && found.flags & FS_XFLAG_PROJINHERIT != 0)
}

fn assign_one(file: impl AsFd, id: u32, flags: u32) -> io::Result<()> {
    let mut attributes = Attributes::default();
    attribute_call(&file, FS_IOC_FSGETXATTR, &mut attributes)?;
    if attributes.project == id && attributes.flags & flags == flags {
        return Ok(());
    }
    attributes.project = id;
    attributes.flags |= flags;
    attribute_call(&file, FS_IOC_FSSETXATTR, &mut attributes)
}

/// Processes everything below a directory, at any depth. Entries that vanish, are mount points, or
/// cannot be opened are skipped.
fn assign_below(top: &Path, id: u32) -> Result<(), FsError> {
    let mut at = Descent::new(Dir::open(top)?.into_fd(), Mounts::Refuse);
    let mut levels = vec![assign_files(&at, top, id)];
    while let Some(level) = levels.last_mut() {
        if let Some(name) = level.pop() {
            match at.down(&name) {
                Ok(()) => levels.push(assign_files(&at, top, id)),
                Err(error) => not_counted(&at.path(top, &name), &error),
            }
            continue;
        }
        levels.pop();
        if !levels.is_empty()
            && let Err(error) = assign_one(at.here(), id, FS_XFLAG_PROJINHERIT)
        {
            not_counted(&at.path(top, "".as_ref()), &error);
        }
        named("assign", top, at.up())?;
    }
    Ok(())
}

/// Processes the files of the current directory; returns its subdirectories.
fn assign_files(at: &Descent, top: &Path, id: u32) -> Vec<OsString> {
    let mut folders = Vec::new();
    let listed = each_entry(at.here(), |name, kind| {
        if kind.is_dir() {
            folders.push(name.to_owned());
        } else if kind.is_file() {
            let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
            let file = rustix::fs::openat(at.here(), name, flags, Mode::empty());
            let assigned = file.map_err(io::Error::from).and_then(|file| assign_one(&file, id, 0));
            if let Err(error) = assigned {
                not_counted(&at.path(top, name), &error);
            }
        }
        Ok(true)
    });
    if let Err(error) = listed {
        not_counted(&at.path(top, "".as_ref()), &error);
    }
    folders
}

fn not_counted(path: &Path, error: &io::Error) {
    tracing::debug!(path = %path.display(), err = %error, "file is not counted by the quota");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_as_long_as_the_kernels() {
        assert_eq!(size_of::<Attributes>(), 28);
        assert_eq!((FS_IOC_FSGETXATTR, FS_IOC_FSSETXATTR), (0x801c_581f, 0x401c_5820));
        assert_eq!(size_of::<DiskQuota>(), 112);
        assert!(size_of::<State>() >= 160);
    }

    #[test]
    fn a_filesystem_without_quotas_counts_nothing() {
        // Neither has quotas: procfs never does, and the temporary directory is not mounted with
        // them.
        for path in [Path::new("/proc/self/fdinfo"), &std::env::temp_dir()] {
            assert!(!accounting(path).unwrap(), "{}", path.display());
        }
        assert!(accounting(Path::new("/nowhere")).unwrap_err().is_not_found());
        assert!(usage(Path::new("/proc/self/fdinfo"), 7).is_err());
        assert!(set_limit(Path::new("/proc/self/fdinfo"), 7, 0).is_err());
    }
}
