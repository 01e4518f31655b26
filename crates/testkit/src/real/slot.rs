//! A slot: everything on the machine that one instance may use, derived from one number.
//!
//! ```text
//! lock file held ──▶ leftovers removed ──▶ in use ──▶ dropped: removed again, lock freed
//!                                            └─ killed: the lock frees itself, the next
//!                                               owner (or any later run) removes the rest
//! ```

use std::fs::File;
use std::io::Write as _;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, Once};

use anyhow::{Context, bail};

use super::kubelet::make_cgroups;
use super::parts::cache_dir;
use super::process::{run, tail};
use super::reset;

/// How many instances fit on one machine at a time.
const SLOTS: u8 = 60;

/// One owner at a time, across all processes on the machine.
#[derive(Debug)]
pub struct Slot {
    index: u8,
    dir: PathBuf,
    /// Held by the owner; a process inside a slot that another one owns has none.
    lock: Option<File>,
    ports: Mutex<Vec<TcpListener>>,
}

impl Slot {
    /// Take a free slot and make its folder. Also removes what killed runs left in others.
    pub fn take() -> anyhow::Result<Slot> {
        static SWEEP: Once = Once::new();
        SWEEP.call_once(|| {
            Slot::sweep();
        });
        for index in 0..SLOTS {
            let Some(lock) = try_lock(index)? else { continue };
            let dir = folder(index)?;
            reset::remove_all(index, &dir)?;
            for sub in ["log", "etc", "run"] {
                std::fs::create_dir_all(dir.join(sub))
                    .with_context(|| format!("cannot make {}", dir.join(sub).display()))?;
            }
            return Ok(Slot { index, dir, lock: Some(lock), ports: Mutex::default() });
        }
        bail!("all {SLOTS} slots for test instances are in use")
    }

    /// The slot that a parent process owns, for a child that works in it. Dropping this one leaves
    /// everything as it is.
    pub fn inside(index: u8) -> anyhow::Result<Slot> {
        Ok(Slot { index, dir: folder(index)?, lock: None, ports: Mutex::default() })
    }

    /// Where results that outlive a slot are kept.
    pub fn cache_dir() -> anyhow::Result<PathBuf> {
        cache_dir()
    }

    /// Its number, by which a child process finds it.
    #[must_use]
    pub fn index(&self) -> u8 {
        self.index
    }

    /// Make its cgroup in every hierarchy, ready for pods.
    pub fn make_cgroups(&self) -> anyhow::Result<()> {
        make_cgroups(self)
    }

    /// Its cgroup in each hierarchy.
    #[must_use]
    pub fn cgroup_folders(&self) -> Vec<PathBuf> {
        reset::cgroup_roots(self.index)
    }

    /// Remove what killed runs left in slots that nobody owns now; how many there were.
    pub fn sweep() -> usize {
        let mut removed = 0;
        for index in 0..SLOTS {
            let Ok(dir) = folder(index) else { return removed };
            if dir.is_dir()
                && let Ok(Some(_lock)) = try_lock(index)
            {
                match reset::remove_all(index, &dir) {
                    Ok(()) => removed += 1,
                    Err(error) => {
                        tracing::warn!(slot = index, err = %error, "Leftovers of a killed run remain");
                    }
                }
            }
        }
        removed
    }

    /// A folder of its own that everybody may enter, whatever holds for the one of the tests: pods with users of
    /// their own must reach their root filesystem.
    pub fn open_dir(&self) -> anyhow::Result<PathBuf> {
        let dir = open_folder(self.index);
        std::fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
        Ok(dir)
    }

    /// Its folder.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// A path below its folder.
    #[must_use]
    pub fn path(&self, below: &str) -> PathBuf {
        self.dir.join(below)
    }

    /// Write a file below its folder (configuration, keys, manifests).
    pub fn write(&self, below: &str, content: impl AsRef<[u8]>) -> anyhow::Result<PathBuf> {
        let path = self.dir.join(below);
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent)?;
        }
        std::fs::write(&path, content)
            .with_context(|| format!("cannot write {}", path.display()))?;
        Ok(path)
    }

    /// Mount a small filesystem of its own at a folder below the slot's.
    pub fn mount_disk(&self, below: &str, mebibytes: u32) -> anyhow::Result<()> {
        let (image, target) = (self.path(&format!("{below}.img")), self.path(below));
        std::fs::create_dir_all(&target)?;
        File::create(&image)?.set_len(u64::from(mebibytes) << 20)?;
        let (image, target) = (image.to_string_lossy(), target.to_string_lossy());
        run("mkfs.ext4", ["-q", "-m", "0", &image])?;
        run("mount", ["-o", "loop", &image, &target])?;
        Ok(())
    }

    /// Log file of one of its services.
    #[must_use]
    pub fn log_file(&self, name: &str) -> PathBuf {
        self.dir.join("log").join(format!("{name}.log"))
    }

    /// Name of its network, bridge aside.
    #[must_use]
    pub fn network(&self) -> String {
        network(self.index)
    }

    /// Name of its bridge.
    #[must_use]
    pub fn bridge(&self) -> String {
        bridge(self.index)
    }

    /// Subnet of its pods.
    #[must_use]
    pub fn subnet(&self) -> String {
        format!("{}/22", Ipv4Addr::new(10, 201, self.index * 4, 0))
    }

    /// Name of its cgroup, directly below the root of each hierarchy.
    #[must_use]
    pub fn cgroup(&self) -> String {
        cgroup(self.index)
    }

    /// A loopback port nobody listens on. Kept reserved against this process until
    /// [`Slot::release_ports`].
    pub fn free_port(&self) -> anyhow::Result<u16> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let port = listener.local_addr()?.port();
        if let Ok(mut held) = self.ports.lock() {
            held.push(listener);
        }
        Ok(port)
    }

    /// Give the reserved ports to the service about to start.
    pub fn release_ports(&self) {
        if let Ok(mut held) = self.ports.lock() {
            held.clear();
        }
    }

    /// Remember a process for whoever has to clean up.
    pub(super) fn note_pid(&self, pid: u32) -> anyhow::Result<()> {
        let mut file = File::options().create(true).append(true).open(self.dir.join("pids"))?;
        writeln!(file, "{pid} {}", reset::start_time(pid).unwrap_or_default())?;
        Ok(())
    }

    /// Print the end of every log and keep the whole of them outside the slot.
    fn keep_logs(&self) {
        let Ok(cache) = cache_dir() else { return };
        let test = std::thread::current().name().unwrap_or("test").replace("::", ".");
        let kept = cache.join("failed").join(format!("{test}-{}", std::process::id()));
        let copied = std::fs::create_dir_all(&kept).is_ok();
        let Ok(logs) = std::fs::read_dir(self.dir.join("log")) else { return };
        for log in logs.flatten().map(|entry| entry.path()) {
            #[expect(clippy::print_stderr, reason = "shown with the failing test")]
            {
                eprintln!("==== {} (end)\n{}", log.display(), tail(&log, 20));
            }
            if let Some(name) = log.file_name().filter(|_| copied) {
                drop(std::fs::copy(&log, kept.join(name)));
            }
        }
        #[expect(clippy::print_stderr, reason = "shown with the failing test")]
        {
            eprintln!("==== whole logs kept in {}", kept.display());
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if self.lock.is_none() {
            return;
        }
        if std::thread::panicking() {
            self.keep_logs();
        }
        if let Err(error) = reset::remove_all(self.index, &self.dir) {
            tracing::warn!(slot = self.index, err = %error, "Slot not cleaned up");
        }
    }
}

pub(super) fn network(index: u8) -> String {
    format!("rubelet-test-{index}")
}

pub(super) fn bridge(index: u8) -> String {
    format!("rbt{index}")
}

pub(super) fn cgroup(index: u8) -> String {
    format!("rubelet-test-{index}")
}

/// Where [`Slot::open_dir`] is.
pub(super) fn open_folder(index: u8) -> PathBuf {
    Path::new("/run/rubelet-tests").join(index.to_string())
}

fn folder(index: u8) -> anyhow::Result<PathBuf> {
    Ok(cache_dir()?.join("nodes").join(index.to_string()))
}

fn try_lock(index: u8) -> anyhow::Result<Option<File>> {
    let dir = cache_dir()?.join("nodes");
    std::fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(dir.join(format!("{index}.lock")))?;
    Ok(file.try_lock().is_ok().then_some(file))
}
