//! The cgroups that readings look at: the root, the system's own, and the pods' tree down to containers.
//!
//! Their folders and files stay open from one reading to the next, and a folder is listed again only when
//! the number of its links or one of those below says that it changed. Settings of a cgroup (limits, shares, the soft
//! limit of open files) are read again when this agent changed any cgroup, when the cgroup was still
//! young, and once a minute for what others change. Kills for want of memory are looked for when the
//! machine's own count of them has moved.

use crate::reading::CgroupReading;
use crate::task::StatsConfig;
use engine::cgroup::CgroupName;
use jiff::Timestamp;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use sys::stats::{CgroupUsage, HeldCgroup, Hold, Look, soft_open_files};

/// How long settings are believed to stay.
const SETTINGS_AGE: Duration = Duration::from_secs(60);
/// Settings of a younger cgroup may not all have been made.
const SETTLED: Duration = Duration::from_secs(10);

/// Of how many cgroups the files stay open: each takes a page of the kernel's memory.
const FILES_OF: usize = 512;

/// The same for a process that may have so many files open: most of them are for others.
fn files_of(limit: u64) -> usize {
    /// Folders and files of one cgroup, and as much again for others.
    const SHARE: u64 = 64;
    usize::try_from(limit / SHARE).map_or(FILES_OF, |most| most.min(FILES_OF))
}

/// All cgroups that are held open.
#[derive(Debug, Default)]
pub(crate) struct Watched {
    held: BTreeMap<String, Held>,
    buffer: Vec<u8>,
    /// The number of the walk under way.
    walk: u64,
}

#[derive(Debug)]
struct Held {
    cgroup: HeldCgroup,
    walk: u64,
    settings: Option<Known>,
    /// The machine's count of kills when those of this cgroup were read.
    kills: Option<u64>,
    first_process: String,
    soft_open_files: Option<f64>,
    below: Below,
}

/// Paths of the cgroups directly below.
#[derive(Debug, Clone, Default)]
struct Below {
    /// The links that the folder had when they were listed; 0 before that.
    links: u64,
    paths: Arc<Vec<String>>,
}

/// When settings were read, and how many changes this agent had made by then.
#[derive(Debug, Clone, Copy)]
struct Known {
    at: Timestamp,
    changes: (u64, u64),
}

/// What a walk knows before it starts.
#[derive(Debug, Clone, Copy)]
struct Start {
    now: Timestamp,
    changes: (u64, u64),
    kills: Option<u64>,
    bfq: bool,
}

impl Known {
    fn is_good(self, start: &Start, created: i64) -> bool {
        let since = |earlier: Timestamp| {
            Duration::try_from(start.now.duration_since(earlier)).unwrap_or_default()
        };
        let made = Timestamp::from_second(created).unwrap_or_default();
        let settled = Duration::try_from(self.at.duration_since(made)).unwrap_or_default();
        self.changes == start.changes && since(self.at) < SETTINGS_AGE && settled >= SETTLED
    }
}

impl Held {
    fn open(config: &StatsConfig, path: &str, hold: Hold) -> Option<Self> {
        Some(Self {
            cgroup: HeldCgroup::open(&config.cgroups, path, hold)?,
            walk: 0,
            settings: None,
            kills: None,
            first_process: String::new(),
            soft_open_files: None,
            below: Below::default(),
        })
    }

    /// Paths of the cgroups directly below `path`, which is this one's.
    fn below(&mut self, path: &str) -> Arc<Vec<String>> {
        let links = self.cgroup.links().unwrap_or(0);
        // A filesystem that does not count folders says 1.
        if links <= 1 || self.below.links != links {
            let names = self.cgroup.children().into_iter();
            let paths = Arc::new(names.map(|name| format!("{path}/{name}")).collect());
            self.below = Below { links, paths };
        }
        Arc::clone(&self.below.paths)
    }

    fn read(
        &mut self,
        config: &StatsConfig,
        start: &Start,
        buffer: &mut Vec<u8>,
    ) -> Option<CgroupReading> {
        let known = self.settings.filter(|known| known.is_good(start, self.cgroup.created()));
        let look = Look {
            settings: known.is_none(),
            kills: start.kills.is_none() || self.kills != start.kills,
            bfq: start.bfq,
        };
        let usage = self.cgroup.read(look, buffer)?;
        let first = usage.procs.lines().next().unwrap_or_default();
        if look.settings || self.first_process != first {
            first.clone_into(&mut self.first_process);
            self.soft_open_files = match first {
                "" => None,
                pid => soft_open_files(&config.roots.proc, pid),
            };
        }
        self.kills = start.kills;
        if known.is_none() {
            self.settings = Some(Known { at: start.now, changes: start.changes });
        }
        let soft_open_files = self.soft_open_files;
        Some(CgroupReading { usage, soft_open_files, ..CgroupReading::default() })
    }
}

impl Watched {
    /// Reads all cgroups. `updates` counts the runtime's changes of containers.
    pub(crate) fn read(
        &mut self,
        config: &StatsConfig,
        now: Timestamp,
        updates: u64,
    ) -> BTreeMap<String, CgroupReading> {
        let mut start = Start {
            now,
            changes: (sys::cgroup::changes(), updates),
            kills: kills(config),
            bfq: true,
        };
        let mut buffer = std::mem::take(&mut self.buffer);
        if let Some(root) = self.at(config, "/") {
            start.bfq = root.cgroup.counts_by_bfq(&mut buffer);
        }
        let mut found = BTreeMap::new();
        self.walk(config, |path, held| {
            let mut reading = held.read(config, &start, &mut buffer)?;
            reading.usage = on_root(reading.usage, path, config);
            found.insert(path.to_owned(), reading);
            Some(())
        });
        self.buffer = buffer;
        found
    }

    /// CPU time of all cgroups, in nanoseconds.
    pub(crate) fn cpu_totals(&mut self, config: &StatsConfig) -> BTreeMap<String, u64> {
        let mut buffer = std::mem::take(&mut self.buffer);
        let mut found = BTreeMap::new();
        self.walk(config, |path, held| {
            found.insert(path.to_owned(), held.cgroup.cpu_total(&mut buffer)?);
            Some(())
        });
        self.buffer = buffer;
        found
    }

    /// Visits every cgroup; those not found any more are let go.
    fn walk(&mut self, config: &StatsConfig, mut visit: impl FnMut(&str, &mut Held) -> Option<()>) {
        self.walk += 1;
        self.visit(config, "/", &mut visit);
        for (_, path) in config.system_cgroups() {
            self.visit(config, path, &mut visit);
        }
        let is_pod = |path: &str| CgroupName::parse(config.driver, path).pod_uid().is_some();
        if let Some(kubepods) = &config.kubepods
            && self.visit(config, kubepods, &mut visit).is_some()
        {
            self.each_below(kubepods, |watched, first| {
                watched.visit(config, first, &mut visit)?;
                if is_pod(first) {
                    watched.containers(config, first, &mut visit);
                    return Some(());
                }
                watched.each_below(first, |watched, pod| {
                    if is_pod(pod) {
                        watched.visit(config, pod, &mut visit)?;
                        watched.containers(config, pod, &mut visit);
                    }
                    Some(())
                });
                Some(())
            });
        }
        let walk = self.walk;
        self.held.retain(|_, held| held.walk == walk);
    }

    /// Visits the cgroups of a pod's containers.
    fn containers(
        &mut self,
        config: &StatsConfig,
        pod: &str,
        visit: &mut impl FnMut(&str, &mut Held) -> Option<()>,
    ) {
        self.each_below(pod, |watched, container| watched.visit(config, container, visit));
    }

    /// Looks at every cgroup directly below one. If any has vanished, another may have taken its place, so
    /// that the folder is listed once more.
    fn each_below(&mut self, path: &str, mut look: impl FnMut(&mut Self, &str) -> Option<()>) {
        for _ in 0..2 {
            let paths = self.held.get_mut(path).map(|held| held.below(path)).unwrap_or_default();
            let mut all = true;
            for below in paths.iter() {
                all &= look(self, below).is_some();
            }
            if all {
                return;
            }
            if let Some(held) = self.held.get_mut(path) {
                held.below = Below::default();
            }
        }
    }

    /// Visits one cgroup, unless this walk has been there; one that was replaced is opened anew.
    fn visit(
        &mut self,
        config: &StatsConfig,
        path: &str,
        visit: &mut impl FnMut(&str, &mut Held) -> Option<()>,
    ) -> Option<()> {
        let walk = self.walk;
        for _ in 0..2 {
            let held = self.at(config, path)?;
            if held.walk == walk {
                return Some(());
            }
            held.walk = walk;
            if visit(path, held).is_some() {
                return Some(());
            }
            self.held.remove(path);
        }
        None
    }

    /// The cgroup at a path, opened if it was not.
    fn at(&mut self, config: &StatsConfig, path: &str) -> Option<&mut Held> {
        if !self.held.contains_key(path) {
            let most = files_of(sys::process::open_files_limit());
            let hold = if self.held.len() < most { Hold::Files } else { Hold::Folders };
            self.held.insert(path.to_owned(), Held::open(config, path, hold)?);
        }
        self.held.get_mut(path)
    }
}

/// How many processes the kernel has killed for want of memory, on the whole machine.
fn kills(config: &StatsConfig) -> Option<u64> {
    let text = sys::fs::read_to_string(config.roots.proc.join("vmstat")).ok()?;
    text.lines().find_map(|line| line.strip_prefix("oom_kill "))?.trim().parse().ok()
}

/// What the root's files do not say: limits are the machine's, and on version 2 swap is too.
pub(crate) fn on_root(mut usage: CgroupUsage, path: &str, config: &StatsConfig) -> CgroupUsage {
    usage.created = usage.created.max(config.boot_time);
    if path == "/" {
        usage.memory.limit = Some(config.machine.memory_bytes);
        usage.memory.swap_limit = Some(config.machine.swap_bytes);
        if config.cgroups.is_v2() {
            usage.memory.swap = swap_used(config).unwrap_or(0);
        }
    }
    usage
}

fn swap_used(config: &StatsConfig) -> Option<u64> {
    let text = sys::fs::read_to_string(config.roots.proc.join("meminfo")).ok()?;
    let kib = |name: &str| -> Option<u64> {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim_start_matches(':').split_whitespace().next()?.parse().ok()
    };
    Some(kib("SwapTotal")?.saturating_sub(kib("SwapFree")?).saturating_mul(1024))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_files_are_held_where_few_may_be_open() {
        assert_eq!((files_of(1_000_000), files_of(u64::MAX)), (FILES_OF, FILES_OF));
        assert_eq!((files_of(1024), files_of(0)), (16, 0));
    }

    #[test]
    fn settings_are_read_again_after_a_change_after_a_minute_and_while_young() {
        let at = |s| Timestamp::from_second(s).unwrap();
        let start = |now, changes| Start { now: at(now), changes, kills: None, bfq: false };
        let known = Known { at: at(100), changes: (3, 1) };
        assert!(known.is_good(&start(130, (3, 1)), 50));
        assert!(!known.is_good(&start(130, (4, 1)), 50), "the agent wrote a file");
        assert!(!known.is_good(&start(130, (3, 2)), 50), "the runtime was told to change one");
        assert!(!known.is_good(&start(160, (3, 1)), 50), "a minute passed");
        assert!(!known.is_good(&start(102, (3, 1)), 95), "it was being made");
    }
}
