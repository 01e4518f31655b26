//! Open files of a process, from `/proc/<pid>`.

use super::cgroup::cached_numbers;
use rustix::fs::{Mode, OFlags, RawDir};
use std::mem::MaybeUninit;
use std::path::Path;

/// Descriptors of one process or of several.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OpenFiles {
    /// All of them.
    pub descriptors: u64,
    /// Sockets among them.
    pub sockets: u64,
}

/// Counts the open files of `pid`; zero if it has ended.
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
        // Space for the type only: the kernel truncates the rest.
        let mut target = [const { MaybeUninit::uninit() }; SOCKET.len()];
        let link = rustix::fs::readlinkat_raw(&folder, name, &mut target);
        if link.is_ok_and(|(text, _)| text == SOCKET) {
            open.sockets += 1;
        }
    }
    open
}

/// Counts the open files of this process, given their number: by descriptor number, without names,
/// and skipping cached cgroup files. (There are thousands of those while stats are requested, and a
/// stat of each takes longer than most of the rest.)
pub fn own_open_files(descriptors: u64) -> OpenFiles {
    let cached = cached_numbers();
    let mut open = OpenFiles::default();
    for number in 0..libc::c_int::MAX {
        if open.descriptors >= descriptors || u64::try_from(number).is_ok_and(|n| n >= MOST) {
            break;
        }
        if usize::try_from(number).ok().and_then(|at| cached.get(at)).is_some_and(|cached| *cached)
        {
            open.descriptors += 1;
            continue;
        }
        let mut stat = MaybeUninit::<libc::stat>::uninit();
        #[expect(unsafe_code, reason = "a number of which it is not known whether it is open")]
        // SAFETY: fstat only reads, whatever the number is, and fills the buffer when it returns 0.
        let stat = unsafe {
            if libc::fstat(number, stat.as_mut_ptr()) != 0 {
                continue;
            }
            stat.assume_init()
        };
        open.descriptors += 1;
        if stat.st_mode & libc::S_IFMT == libc::S_IFSOCK {
            open.sockets += 1;
        }
    }
    open
}

/// The highest number that [`own_open_files`] tries: the kernel assigns the lowest free one, so the
/// numbers in use are close together.
const MOST: u64 = 1 << 20;

/// The number of descriptors of `pid`, where the kernel reports it without a listing (since 6.2); 0
/// if it has none, has ended or the kernel does not report it.
pub fn descriptors(proc_root: &Path, pid: &str) -> u64 {
    let folder = proc_root.join(pid).join("fd");
    let stat = rustix::fs::stat(&folder);
    stat.ok().and_then(|stat| u64::try_from(stat.st_size).ok()).unwrap_or(0)
}

/// The soft limit of open files of `pid`; -1 is unlimited.
pub fn soft_open_files(proc_root: &Path, pid: &str) -> Option<f64> {
    // The system call takes a twentieth of the time of the file, but only works for the real
    // `/proc`.
    if proc_root == Path::new("/proc")
        && let Some(limit) = pid.parse().ok().and_then(limit_of)
    {
        return Some(limit);
    }
    let text = crate::fs::read_to_string(proc_root.join(pid).join("limits")).ok()?;
    soft_limit(&text)
}

/// The same by system call; `None` if it fails.
fn limit_of(pid: libc::pid_t) -> Option<f64> {
    let mut limit = MaybeUninit::<libc::rlimit>::uninit();
    #[expect(unsafe_code, reason = "there is no safe interface to another process's limits")]
    // SAFETY: without a new limit nothing is changed, and the buffer is filled when the call
    // returns 0.
    let limit = unsafe {
        let none = std::ptr::null();
        if libc::prlimit(pid, libc::RLIMIT_NOFILE, none, limit.as_mut_ptr()) != 0 {
            return None;
        }
        limit.assume_init()
    };
    let soft = limit.rlim_cur;
    // The kernel has no limit beyond 2^30 (fs.nr_open), so every number is exact.
    Some(if soft == libc::rlim_t::MAX { -1.0 } else { u32::try_from(soft).ok()?.into() })
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
    fn own_sockets_are_counted_by_number() {
        let count = || own_open_files(descriptors(Path::new("/proc"), "self"));
        // Other tests open and close files meanwhile.
        let all: Vec<std::os::unix::net::UnixStream> = (0..200)
            .flat_map(|_| <[_; 2]>::from(std::os::unix::net::UnixStream::pair().unwrap()))
            .collect();
        let with = count();
        assert!(with.sockets >= 350 && with.sockets <= with.descriptors, "{with:?}");
        drop(all);
        assert!(count().sockets + 200 < with.sockets);
        assert_eq!(own_open_files(0), OpenFiles::default());
    }

    #[test]
    fn the_soft_limit_is_the_first_number() {
        let line = "Max open files            1024                 524288               files\n";
        assert_eq!(soft_limit(line), Some(1024.0));
        assert_eq!(soft_limit("Max open files  unlimited unlimited files\n"), Some(-1.0));
        assert_eq!(soft_limit(""), None);
    }

    #[test]
    fn the_kernel_and_its_file_tell_the_same_limit() {
        let pid = std::process::id().to_string();
        let text = std::fs::read_to_string("/proc/self/limits").unwrap();
        assert_eq!(soft_open_files(Path::new("/proc"), &pid), soft_limit(&text));
        assert_eq!(limit_of(libc::pid_t::MAX), None);
        assert_eq!(soft_open_files(Path::new("/proc"), "4194399"), None);
    }

    #[test]
    fn sockets_are_told_from_other_descriptors() {
        let mut child = std::process::Command::new("sleep");
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let theirs = std::process::Stdio::from(OwnedFd::from(theirs));
        let mut child = child.arg("1000").stdin(theirs).spawn().unwrap();
        // Other descriptors of this test's process without close-on-exec are inherited too.
        let pid = child.id().to_string();
        let look = || {
            let seen = open_files(Path::new("/proc"), &pid);
            (seen, descriptors(Path::new("/proc"), &pid))
        };
        // Until its program runs, the child has copies of this process's descriptors.
        let agrees = |(seen, told): &(OpenFiles, u64)| [0, seen.descriptors].contains(told);
        let (seen, _) = (0..1_000_000).map(|_| look()).find(agrees).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        drop(ours);
        assert!(seen.descriptors >= 3 && seen.sockets >= 1, "{seen:?}");
        assert_eq!(open_files(Path::new("/proc"), "0"), OpenFiles::default());
    }
}
