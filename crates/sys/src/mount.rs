//! Mounts and unmounts by system call, and reports what is mounted at a path.
//!
//! Promises: no helper program, no shell, no path canonicalisation; unmounting what is not mounted
//! succeeds. Deliberately absent: network filesystems (they need the host's mount helper).

use crate::fail_point;
use crate::fs::{FsError, named};
use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags};
use rustix::io::Errno;
use rustix::mount::{
    FsOpenFlags, MountFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags, fsconfig_set_flag,
    fsopen, move_mount, open_tree,
};
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

/// `TMPFS_MAGIC`.
pub const TMPFS_MAGIC: u64 = 0x0102_1994;
/// `HUGETLBFS_MAGIC`.
pub const HUGETLBFS_MAGIC: u64 = 0x9584_58f6;

/// Whether an error means that the mount itself is broken (its server or process is gone), so that
/// it must be unmounted rather than inspected.
pub fn is_corrupted(error: &io::Error) -> bool {
    error.raw_os_error().is_some_and(|code| {
        [
            libc::ENOTCONN,
            libc::ESTALE,
            libc::EIO,
            libc::EACCES,
            libc::EHOSTDOWN,
            libc::EWOULDBLOCK,
            libc::ENODEV,
        ]
        .contains(&code)
    })
}

/// Whether something is mounted exactly at `path` (bind mounts included). Links are not followed;
/// a missing path is an error.
pub fn is_mount_point(path: &Path) -> Result<bool, FsError> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    let stat = named("stat", path, rustix::fs::statx(CWD, path, flags, StatxFlags::MNT_ID))?;
    if stat.stx_attributes_mask.contains(StatxAttributes::MOUNT_ROOT) {
        return Ok(stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT));
    }
    // Before Linux 5.8: another device than the parent (bind mounts of one device are not seen).
    let Some(parent) = path.parent() else { return Ok(true) };
    let above = named("stat", parent, rustix::fs::statx(CWD, parent, flags, StatxFlags::empty()))?;
    Ok((stat.stx_dev_major, stat.stx_dev_minor) != (above.stx_dev_major, above.stx_dev_minor))
}

/// The filesystem's magic number at `path`.
pub fn fs_magic(path: &Path) -> Result<u64, FsError> {
    let stat = named("statfs", path, rustix::fs::statfs(path))?;
    #[expect(clippy::cast_sign_loss, reason = "the kernel's value is an unsigned 32-bit magic")]
    Ok(stat.f_type as u64 & 0xffff_ffff)
}

/// Total and available bytes, total and free inodes of the filesystem at `path`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FsCapacity {
    /// Size in bytes.
    pub capacity: u64,
    /// Bytes available to unprivileged users.
    pub available: u64,
    /// Bytes in use.
    pub used: u64,
    /// Number of inodes.
    pub inodes: u64,
    /// Free inodes.
    pub inodes_free: u64,
}

/// Reads capacity and usage of the filesystem at `path`.
pub fn capacity(path: &Path) -> Result<FsCapacity, FsError> {
    let stat = named("statfs", path, rustix::fs::statvfs(path))?;
    let block = stat.f_frsize;
    Ok(FsCapacity {
        capacity: stat.f_blocks.saturating_mul(block),
        available: stat.f_bavail.saturating_mul(block),
        used: stat.f_blocks.saturating_sub(stat.f_bfree).saturating_mul(block),
        inodes: stat.f_files,
        inodes_free: stat.f_ffree,
    })
}

/// Mounts a filesystem with plain `mount(2)`.
pub fn mount_fs(
    source: &str,
    target: &Path,
    fs_type: &str,
    read_only: bool,
    data: &str,
) -> Result<(), FsError> {
    let data = CString::new(data).map_err(|e| FsError {
        operation: "mount",
        path: target.to_owned(),
        source: e.into(),
    })?;
    let flags = if read_only { MountFlags::RDONLY } else { MountFlags::empty() };
    fail_point::before("mount", target)?;
    named("mount", target, rustix::mount::mount(source, target, fs_type, flags, data.as_c_str()))
}

/// Binds the file or directory of `source` onto that of `target`. Both are descriptors, so no path
/// can be swapped in between.
pub fn bind_fd(source: impl AsFd, target: impl AsFd, shown: &Path) -> Result<(), FsError> {
    fail_point::before("bind", shown)?;
    match open_tree(
        &source,
        c"",
        OpenTreeFlags::OPEN_TREE_CLONE
            | OpenTreeFlags::OPEN_TREE_CLOEXEC
            | OpenTreeFlags::AT_EMPTY_PATH,
    ) {
        Ok(tree) => named(
            "bind",
            shown,
            move_mount(
                &tree,
                c"",
                &target,
                c"",
                MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH,
            ),
        ),
        // Before Linux 5.2: the same through magic links in `/proc`, which are not resolved again.
        Err(Errno::NOSYS) => {
            let link = |fd: i32| format!("/proc/self/fd/{fd}");
            let from = link(source.as_fd().as_raw_fd());
            let to = link(target.as_fd().as_raw_fd());
            named("bind", shown, rustix::mount::mount_bind(from.as_str(), to.as_str()))
        }
        Err(e) => named("bind", shown, Err(e)),
    }
}

/// Binds `source` onto `target`, both given by trusted paths; `read_only` remounts the bind.
pub fn bind(source: &Path, target: &Path, read_only: bool) -> Result<(), FsError> {
    fail_point::before("bind", target)?;
    named("bind", target, rustix::mount::mount_bind(source, target))?;
    if read_only {
        let preserved = mount_flags(target)?;
        fail_point::before("remount", target)?;
        named(
            "remount",
            target,
            rustix::mount::mount_remount(
                target,
                MountFlags::BIND | MountFlags::RDONLY | preserved,
                c"",
            ),
        )?;
    }
    Ok(())
}

/// The flags that a bind remount must repeat; otherwise it would be refused or would drop them.
fn mount_flags(path: &Path) -> Result<MountFlags, FsError> {
    use rustix::fs::StatVfsMountFlags as V;
    let stat = named("statfs", path, rustix::fs::statvfs(path))?;
    let mut flags = MountFlags::empty();
    for (seen, keep) in [
        (V::NODEV, MountFlags::NODEV),
        (V::NOEXEC, MountFlags::NOEXEC),
        (V::NOSUID, MountFlags::NOSUID),
        (V::NOATIME, MountFlags::NOATIME),
        (V::NODIRATIME, MountFlags::NODIRATIME),
        (V::RELATIME, MountFlags::RELATIME),
    ] {
        if stat.f_flag.contains(seen) {
            flags |= keep;
        }
    }
    Ok(flags)
}

/// How hard to unmount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unmount {
    /// Refuse while in use.
    Plain,
    /// Abort outstanding requests of a network filesystem.
    Force,
    /// Detach it from the tree now, release it when no longer used.
    Detach,
}

/// Unmounts the topmost mount at `path`; success if nothing is mounted or the path is missing.
pub fn unmount(path: &Path, how: Unmount) -> Result<(), FsError> {
    let flags = UnmountFlags::NOFOLLOW
        | match how {
            Unmount::Plain => UnmountFlags::empty(),
            Unmount::Force => UnmountFlags::FORCE,
            Unmount::Detach => UnmountFlags::DETACH,
        };
    fail_point::before("unmount", path)?;
    match rustix::mount::unmount(path, flags) {
        Ok(()) | Err(Errno::INVAL | Errno::NOENT) => Ok(()),
        Err(e) => named("unmount", path, Err(e)),
    }
}

/// Unmounts everything stacked at `path`, at most 64 layers.
pub fn unmount_all_at(path: &Path) -> Result<(), FsError> {
    for _ in 0..64 {
        match is_mount_point(path) {
            Ok(false) => return Ok(()),
            Err(e) if e.is_not_found() => return Ok(()),
            Err(e) if !is_corrupted(&e.source) => return Err(e),
            Ok(true) | Err(_) => unmount(path, Unmount::Plain)?,
        }
    }
    Err(FsError {
        operation: "unmount",
        path: path.to_owned(),
        source: io::Error::other("too many mounts stacked"),
    })
}

/// Whether this kernel's tmpfs knows `noswap` (Linux 6.4); asks without mounting anything.
pub fn tmpfs_knows_noswap() -> bool {
    fsopen(c"tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)
        .and_then(|fs: OwnedFd| fsconfig_set_flag(fs.as_fd(), c"noswap"))
        .is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs;
    use crate::scratch::scratch;

    #[test]
    fn a_bind_of_the_same_filesystem_is_seen_as_a_mount_point() {
        let dir = scratch("mount-bind");
        let (a, b) = (dir.join("a"), dir.join("b"));
        fs::create_dir_all(&a, 0o755).unwrap();
        fs::create_dir_all(&b, 0o755).unwrap();
        assert!(!is_mount_point(&b).unwrap());
        bind(&a, &b, true).unwrap();
        assert!(is_mount_point(&b).unwrap());
        assert!(std::fs::write(b.join("f"), "x").is_err(), "the bind is read-only");
        assert!(std::fs::write(a.join("f"), "x").is_ok(), "its source is not");
        unmount_all_at(&b).unwrap();
        assert!(!is_mount_point(&b).unwrap());
        unmount(&b, Unmount::Plain).unwrap();
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn tmpfs_gets_its_size() {
        let dir = scratch("mount-tmpfs");
        mount_fs("tmpfs", &dir, "tmpfs", false, "size=65536").unwrap();
        assert_eq!(fs_magic(&dir).unwrap(), TMPFS_MAGIC);
        assert_eq!(capacity(&dir).unwrap().capacity, 65536);
        unmount_all_at(&dir).unwrap();
        std::fs::remove_dir(&dir).unwrap();
    }

    #[test]
    fn unmounting_a_missing_path_succeeds() {
        unmount(Path::new("/nonexistent/mount"), Unmount::Plain).unwrap();
        unmount_all_at(Path::new("/nonexistent/mount")).unwrap();
    }
}
