//! The machine under the simulated node: it makes the calls, sees every change they make to the
//! real disk and mount table, and crashes after a given number of changes.
//!
//! A crash is like a real one: the change that was about to happen and all later ones do not happen, and no call
//! ever returns. What is on disk stays for the next run.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::future::pending;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// A small random number generator: the run is a function of its seed.
#[derive(Debug, Clone)]
pub(crate) struct Rng(u64);

impl Rng {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub(super) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit.max(1)
    }
}

/// What the simulated driver has done.
#[derive(Debug, Default)]
pub(super) struct Storage {
    /// Staging paths by volume.
    pub(super) staged: BTreeMap<String, PathBuf>,
    /// Volumes by target path.
    pub(super) published: BTreeMap<PathBuf, String>,
    /// Volumes that the controller has attached to the node.
    pub(super) attached: BTreeSet<String>,
    /// Bytes that volumes were expanded to.
    pub(super) sizes: BTreeMap<String, i64>,
}

/// Volumes with such names must be attached before the node may touch them.
pub(super) const ATTACHED: &str = "attached";

#[derive(Debug)]
pub(super) struct State {
    root: PathBuf,
    pub(super) rng: Rng,
    /// One in so many calls of the driver fails; 0 for none.
    pub(super) faults: u64,
    /// One in so many changes to the disk fails; 0 for none.
    pub(super) disk_faults: u64,
    /// Changes until the machine crashes.
    fuse: Option<u64>,
    dead: bool,
    death: CancellationToken,
    /// Pods whose containers run.
    pub(super) running: BTreeSet<String>,
    pub(super) storage: Storage,
    /// Violated invariants.
    pub(super) wrongs: Vec<String>,
    trail: VecDeque<String>,
    pub(super) changes: u64,
}

/// Unwinds out of a call when the machine crashes.
struct Death;

/// Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Machine(Arc<Mutex<State>>);

impl Machine {
    pub(super) fn new(root: &Path, seed: u64, faults: u64) -> Self {
        Self(Arc::new(Mutex::new(State {
            root: root.to_owned(),
            rng: Rng::new(seed),
            faults,
            disk_faults: faults * 16,
            fuse: None,
            dead: false,
            death: CancellationToken::new(),
            running: BTreeSet::new(),
            storage: Storage::default(),
            wrongs: Vec::new(),
            trail: VecDeque::new(),
            changes: 0,
        })))
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    /// Starts a new run, which crashes after so many changes.
    pub(super) fn boot(&self, fuse: Option<u64>) -> CancellationToken {
        let mut state = self.state();
        state.fuse = fuse;
        state.dead = false;
        state.death = CancellationToken::new();
        state.note("boot", Path::new(""));
        state.death.clone()
    }

    pub(super) fn below(&self, limit: u64) -> u64 {
        self.state().rng.below(limit)
    }

    pub(super) async fn pause(&self, longest: Duration) {
        let limit = u64::try_from(longest.as_millis()).unwrap() + 1;
        let millis = self.below(limit);
        tokio::time::sleep(Duration::from_millis(millis)).await;
    }

    /// Makes a call that changes the disk. It takes virtual time, during which other calls are made.
    pub(crate) async fn call<T>(&self, work: impl FnOnce() -> T) -> T {
        self.pause(Duration::from_millis(3)).await;
        let result = self.attempt(work);
        match result {
            Some(result) => {
                self.pause(Duration::from_millis(3)).await;
                result
            }
            None => pending().await,
        }
    }

    fn attempt<T>(&self, work: impl FnOnce() -> T) -> Option<T> {
        if self.state().dead {
            return None;
        }
        let machine = self.clone();
        let watcher: sys::fail_point::Watcher = Rc::new(move |operation, path| {
            if !machine.change(operation, path) {
                resume_unwind(Box::new(Death));
            }
            machine.state().disk_fault(operation, path)
        });
        match catch_unwind(AssertUnwindSafe(|| sys::fail_point::with_watcher(watcher, work))) {
            Ok(result) => Some(result),
            Err(cause) if <dyn Any>::is::<Death>(&*cause) => None,
            Err(cause) => resume_unwind(cause),
        }
    }

    /// Called before each change; returns whether it happens.
    pub(super) fn change(&self, operation: &str, path: &Path) -> bool {
        let mut state = self.state();
        if state.dead {
            return false;
        }
        if state.fuse == Some(0) {
            state.note("DEATH before", path);
            state.dead = true;
            state.death.cancel();
            return false;
        }
        state.fuse = state.fuse.map(|left| left - 1);
        state.changes += 1;
        state.note(operation, path);
        state.judge(operation, path);
        true
    }

    pub(super) fn trail(&self) -> String {
        let state = self.state();
        state.trail.iter().map(|line| format!("  {line}\n")).collect()
    }
}

impl State {
    pub(super) fn note(&mut self, operation: &str, path: &Path) {
        let shown = path.strip_prefix(&self.root).unwrap_or(path);
        if self.trail.len() == 150 {
            self.trail.pop_front();
        }
        let line = format!("{operation} {}", shown.display());
        if self.trail.back() != Some(&line) {
            self.trail.push_back(line);
        }
    }

    /// Fails one in `disk_faults` changes, as a full or broken disk does.
    fn disk_fault(&mut self, operation: &str, path: &Path) -> io::Result<()> {
        if self.disk_faults == 0 || self.rng.below(self.disk_faults) != 0 {
            return Ok(());
        }
        self.note(&format!("FAILS: {operation}"), path);
        Err(io::Error::from(match self.rng.below(2) {
            0 => io::ErrorKind::StorageFull,
            _ => io::ErrorKind::ResourceBusy,
        }))
    }

    /// Records a violation if a volume that needs attaching is used while it is not attached.
    pub(super) fn needs_attached(&mut self, volume: &str, how: &str) {
        if volume.starts_with(ATTACHED) && !self.storage.attached.contains(volume) {
            self.wrong(format!("{volume} {how} without being attached"));
        }
    }

    pub(super) fn is_dead(&self) -> bool {
        self.dead
    }

    pub(super) fn wrong(&mut self, what: String) {
        self.note(&format!("WRONG: {what}"), Path::new(""));
        self.wrongs.push(what);
        // Stops here, so that the trail ends with what led to the violation.
        self.dead = true;
        self.death.cancel();
    }

    /// The pod whose folder the path is in, if its containers run.
    pub(super) fn user(&self, path: &Path) -> Option<String> {
        let inside = path.strip_prefix(self.root.join("kubelet/pods")).ok()?;
        let uid = inside.components().next()?.as_os_str().to_str()?;
        self.running.contains(uid).then(|| uid.to_owned())
    }

    fn judge(&mut self, operation: &str, path: &Path) {
        let user = self.user(path);
        let shown = path.display();
        match operation {
            "mount" | "bind" if sys::mount::is_mount_point(path).unwrap_or(false) => {
                self.wrong(format!("{operation} on the mount point {shown}"));
            }
            "unmount" if user.is_some() => {
                self.wrong(format!("{shown} unmounted under running containers"));
            }
            "remove" | "remove folder" if user.is_some() => {
                let text = path.to_string_lossy();
                let data =
                    ["kubernetes.io~empty-dir", "kubernetes.io~local-volume", "vol_data.json"];
                if data.iter().any(|part| text.contains(part)) {
                    self.wrong(format!("{shown} removed under running containers"));
                }
            }
            _ => {}
        }
    }
}
