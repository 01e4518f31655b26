//! What a process has open, from `/proc/<pid>`.

use rustix::fs::{Mode, OFlags, RawDir};
use std::mem::MaybeUninit;
use std::path::Path;

/// Descriptors of one process or of several.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OpenFiles {
    /// All of them.
    pub descriptors: u64,
    /// Of them sockets.
    pub sockets: u64,
}

/// Counts what `pid` has open; nothing if it has ended.
pub fn open_files(proc_root: &Path, pid: &str) -> OpenFiles {
    const SOCKET: &[u8] = b"socket";
    let mut open = OpenFiles::default();
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = rustix::fs::open(proc_root.join(pid).join("fd"), flags, Mode::empty());
    let Ok(folder) = folder else { return open };
    let mut room = [const { MaybeUninit::uninit() }; 2048];
    let mut entries = RawDir::new(&folder, &mut room);
    while let Some(Ok(entry)) = entries.next() {
        let name = entry.file_name();
        if name.to_bytes().starts_with(b".") {
            continue;
        }
        open.descriptors += 1;
        // Room for the kind alone: the kernel cuts off the rest.
        let mut target = [const { MaybeUninit::uninit() }; SOCKET.len()];
        let link = rustix::fs::readlinkat_raw(&folder, name, &mut target);
        if link.is_ok_and(|(text, _)| text == SOCKET) {
            open.sockets += 1;
        }
    }
    open
}

/// The soft limit of open files of `pid`; -1 is unlimited.
pub fn soft_open_files(proc_root: &Path, pid: &str) -> Option<f64> {
    let text = crate::fs::read_to_string(proc_root.join(pid).join("limits")).ok()?;
    soft_limit(&text)
}

fn soft_limit(limits: &str) -> Option<f64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    match line.split_whitespace().next()? {
        "unlimited" => Some(-1.0),
        number => number.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::OwnedFd;

    #[test]
    fn the_soft_limit_is_the_first_number() {
        let line = "Max open files            1024                 524288               files\n";
        assert_eq!(soft_limit(line), Some(1024.0));
        assert_eq!(soft_limit("Max open files  unlimited unlimited files\n"), Some(-1.0));
        assert_eq!(soft_limit(""), None);
    }

    #[test]
    fn sockets_are_told_from_other_descriptors() {
        let mut child = std::process::Command::new("sleep");
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let theirs = std::process::Stdio::from(OwnedFd::from(theirs));
        let mut child = child.arg("1000").stdin(theirs).spawn().unwrap();
        // What else this test's process has without close-on-exec is not known here.
        let seen = open_files(Path::new("/proc"), &child.id().to_string());
        child.kill().unwrap();
        child.wait().unwrap();
        drop(ours);
        assert!(seen.descriptors >= 3 && seen.sockets >= 1, "{seen:?}");
        assert_eq!(open_files(Path::new("/proc"), "0"), OpenFiles::default());
    }
}
