//! Makes a directory a shared mount, so that mounts below it propagate to containers and back.

use crate::fs::{self, FsError};
use rustix::mount::MountPropagationFlags;
use std::path::Path;

/// Makes `path` part of a shared mount: nothing to do if it is, else it is bound onto itself.
pub fn make_shared(path: &Path, proc_root: &Path) -> Result<(), FsError> {
    let table = fs::read_to_string(proc_root.join("self/mountinfo"))?;
    let named = |result: rustix::io::Result<()>, operation| {
        result.map_err(|e| FsError { operation, path: path.to_owned(), source: e.into() })
    };
    match mount_of(&table, path) {
        Some((_, true)) => return Ok(()),
        Some((true, false)) => {}
        _ => named(rustix::mount::mount_bind_recursive(path, path), "bind")?,
    }
    let flags = MountPropagationFlags::SHARED | MountPropagationFlags::REC;
    named(rustix::mount::mount_change(path, flags), "share")
}

/// Of the mount that contains `path`: whether its mount point is exactly `path`, and whether it is
/// shared.
fn mount_of(table: &str, path: &Path) -> Option<(bool, bool)> {
    let mut best: Option<(usize, bool, bool)> = None;
    for line in table.lines() {
        let fields: Vec<&str> = line.split(' ').collect();
        let Some(point) = fields.get(4) else { continue };
        // Octal escapes only matter for paths with spaces, which no root directory has.
        let point = Path::new(point);
        if !path.starts_with(point) {
            continue;
        }
        let shared =
            fields.iter().skip(6).take_while(|f| **f != "-").any(|f| f.starts_with("shared:"));
        let depth = point.components().count();
        if best.is_none_or(|(known, _, _)| depth >= known) {
            best = Some((depth, point == path, shared));
        }
    }
    best.map(|(_, exact, shared)| (exact, shared))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_innermost_and_newest_mount_decides() {
        let table = "1 0 8:1 / / rw shared:1 - ext4 /dev/sda rw\n\
                     2 1 8:2 / /var rw - ext4 /dev/sdb rw\n\
                     3 2 8:2 /k /var/lib/kubelet rw shared:9 master:2 - ext4 /dev/sdb rw\n";
        let of = |path| mount_of(table, Path::new(path));
        assert_eq!(of("/etc"), Some((false, true)));
        assert_eq!(of("/var/log"), Some((false, false)));
        assert_eq!(of("/var/lib/kubelet"), Some((true, true)));
        assert_eq!(of("/var/lib/kubelet2"), Some((false, false)));
    }
}
