//! The cgroups that are read: the root, the system's own, and the pods' tree down to containers.
//!
//! Their directories and files stay open between readings, and a directory is listed again only
//! when its number of links or that of one below changes. A pod whose CPU time and memory are
//! unchanged keeps its last values with all its containers; after [`REUSE_FOR`] the few values that
//! change without anything running must be the same too. Settings of a cgroup (limits, shares, the
//! soft limit of open files) are read again when this agent changed any cgroup, while the cgroup is
//! young, and after [`SETTINGS_AGE`] for changes by others. OOM kills are read when the machine's
//! own count of them changes, and I/O only below a cgroup that has some.

use crate::processes::first_process;
use crate::reading::{CgroupReading, Interfaces};
use crate::task::StatsConfig;
use engine::cgroup::CgroupName;
use jiff::Timestamp;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use sys::stats::{CgroupUsage, HeldCgroup, Hold, Look, Pulse, soft_open_files};

/// How long values without a sign of change are reused (cadvisor: its housekeeping comes every 10
/// to 15 seconds, and up to as much again later).
pub(crate) const REUSE_FOR: Duration = Duration::from_secs(28);
/// How long settings are cached.
const SETTINGS_AGE: Duration = Duration::from_secs(5 * 60);
/// Settings of a younger cgroup may not be complete yet.
const SETTLED: Duration = Duration::from_secs(10);

/// The number of cgroups whose files stay open: each takes a page of kernel memory.
const FILES_OF: usize = 512;

/// The same for a process with this limit of open files: most of them are for other purposes.
fn files_of(limit: u64) -> usize {
    /// Directories and files of one cgroup, and as much again for other purposes.
    const SHARE: u64 = 64;
    usize::try_from(limit / SHARE).map_or(FILES_OF, |most| most.min(FILES_OF))
}

/// All cgroups that are held open.
#[derive(Debug, Default)]
pub(crate) struct CgroupCache {
    held: BTreeMap<Arc<str>, Held>,
    buffer: Vec<u8>,
    /// The number of the current walk.
    walk: u64,
}

#[derive(Debug)]
struct Held {
    cgroup: HeldCgroup,
    walk: u64,
    settings: Option<Known>,
    /// The machine's count of OOM kills when those of this cgroup were read.
    kills: Option<u64>,
    first_process: String,
    soft_open_files: Option<f64>,
    below: Below,
    /// The last values.
    last: Option<CgroupReading>,
    /// Of a pod: its pulse before its last values were read, and when that was.
    pulse: Option<(Pulse, Timestamp)>,
    /// Of a pod: its network counters since then.
    network: Option<Interfaces>,
}

/// Paths of the cgroups directly below.
#[derive(Debug, Clone, Default)]
struct Below {
    /// The links of the directory when they were listed; 0 before that.
    links: u64,
    paths: Arc<Vec<Arc<str>>>,
}

/// When settings were read, and the agent's change counts at that time.
#[derive(Debug, Clone, Copy)]
struct Known {
    at: Timestamp,
    changes: (u64, u64),
}

/// What is determined before a walk starts.
#[derive(Debug, Clone, Copy)]
struct Start {
    now: Timestamp,
    changes: (u64, u64),
    kills: Option<u64>,
    bfq: bool,
}

impl Start {
    fn since(&self, earlier: Timestamp) -> Duration {
        Duration::try_from(self.now.duration_since(earlier)).unwrap_or_default()
    }
}

impl Known {
    fn is_good(self, start: &Start, created: i64) -> bool {
        let made = Timestamp::from_second(created).unwrap_or_default();
        let settled = Duration::try_from(self.at.duration_since(made)).unwrap_or_default();
        self.changes == start.changes && start.since(self.at) < SETTINGS_AGE && settled >= SETTLED
    }
}

impl Held {
    fn new(cgroup: HeldCgroup) -> Self {
        Self {
            cgroup,
            walk: 0,
            settings: None,
            kills: None,
            first_process: String::new(),
            soft_open_files: None,
            below: Below::default(),
            last: None,
            pulse: None,
            network: None,
        }
    }

    /// Paths of the cgroups directly below `path`, which is this one's.
    fn below(&mut self, path: &str) -> Arc<Vec<Arc<str>>> {
        let links = self.cgroup.links().unwrap_or(0);
        // A filesystem that does not count subdirectories reports 1.
        if links <= 1 || self.below.links != links {
            let names = self.cgroup.children().into_iter();
            let paths = Arc::new(names.map(|name| format!("{path}/{name}").into()).collect());
            self.below = Below { links, paths };
        }
        Arc::clone(&self.below.paths)
    }

    fn settings(&self, start: &Start) -> Option<Known> {
        self.settings.filter(|known| known.is_good(start, self.cgroup.created()))
    }

    /// The last values, if only counters of use can have changed.
    fn reusable(&self, start: &Start) -> Option<&CgroupReading> {
        let as_set = self.settings(start).is_some() && self.kills == start.kills;
        self.last.as_ref().filter(|_| as_set)
    }

    /// Of a pod: whether nothing in it has run since it was read. Otherwise it is to be read now.
    fn is_quiet(&mut self, start: &Start, buffer: &mut Vec<u8>) -> bool {
        let now = self.cgroup.pulse(buffer);
        let before = self.pulse.filter(|(before, at)| now == Some(*before) && start.now >= *at);
        if before.is_some_and(|(_, at)| start.since(at) < REUSE_FOR) {
            return true;
        }
        self.pulse = now.map(|pulse| (pulse, start.now));
        self.network = None;
        let Self { cgroup, last, .. } = self;
        before.is_some() && last.as_ref().is_some_and(|last| cgroup.is_as_in(&last.usage, buffer))
    }

    fn read(
        &mut self,
        config: &StatsConfig,
        path: &str,
        start: &Start,
        has_io: HasIo,
        buffer: &mut Vec<u8>,
    ) -> Option<&CgroupReading> {
        let known = self.settings(start);
        let look = Look {
            settings: known.is_none(),
            kills: start.kills != Some(0) && (start.kills.is_none() || self.kills != start.kills),
            io: has_io == HasIo::Perhaps,
            bfq: start.bfq,
        };
        let usage = self.cgroup.read(look, buffer)?;
        // Of the root it is process 1 (cadvisor: the raw handler's pid).
        let first = match path {
            "/" => "1".into(),
            _ => first_process(config, path, &usage.procs).unwrap_or_default(),
        };
        if look.settings || self.first_process != first {
            self.first_process = first.into_owned();
            self.soft_open_files = match self.first_process.as_str() {
                "" => None,
                pid => soft_open_files(&config.roots.proc, pid),
            };
        }
        self.kills = start.kills;
        if known.is_none() {
            self.settings = Some(Known { at: start.now, changes: start.changes });
        }
        let usage = Arc::new(on_root(usage, path, config));
        let soft_open_files = self.soft_open_files;
        Some(&*self.last.insert(CgroupReading { usage, soft_open_files, nano_cores: 0 }))
    }
}

/// What is known of a cgroup's I/O from its parent, which has all devices that its children have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HasIo {
    No,
    Perhaps,
}

/// What a walk does with each cgroup.
trait Visit {
    /// Reads a cgroup; `None` if it has vanished.
    fn look(&mut self, path: &Arc<str>, held: &mut Held) -> Option<()>;

    /// Whether nothing has happened in a pod since the last read.
    fn is_quiet(&mut self, _pod: &mut Held) -> bool {
        false
    }

    /// Reuses a cgroup's last values; `None` if it must be read.
    fn keep(&mut self, _path: &Arc<str>, _held: &Held) -> Option<()> {
        None
    }
}

/// Reads everything.
struct Reader<'a> {
    config: &'a StatsConfig,
    start: Start,
    buffer: &'a mut Vec<u8>,
    found: BTreeMap<Arc<str>, CgroupReading>,
}

impl Visit for Reader<'_> {
    fn look(&mut self, path: &Arc<str>, held: &mut Held) -> Option<()> {
        // Not every kernel reports I/O for the root.
        let above = above(path).filter(|(above, _)| *above != "/");
        let above = above.and_then(|(above, _)| self.found.get(above));
        let has_io = match above {
            Some(above) if above.usage.io.is_empty() => HasIo::No,
            _ => HasIo::Perhaps,
        };
        let reading = held.read(self.config, path, &self.start, has_io, self.buffer)?;
        self.found.insert(Arc::clone(path), reading.clone());
        Some(())
    }

    fn is_quiet(&mut self, pod: &mut Held) -> bool {
        pod.is_quiet(&self.start, self.buffer)
    }

    fn keep(&mut self, path: &Arc<str>, held: &Held) -> Option<()> {
        let reading = held.reusable(&self.start)?;
        self.found.insert(Arc::clone(path), reading.clone());
        Some(())
    }
}

/// Reads CPU time only.
struct Totals<'a> {
    buffer: &'a mut Vec<u8>,
    found: BTreeMap<Arc<str>, u64>,
}

impl Visit for Totals<'_> {
    fn look(&mut self, path: &Arc<str>, held: &mut Held) -> Option<()> {
        self.found.insert(Arc::clone(path), held.cgroup.cpu_total(self.buffer)?);
        Some(())
    }
}

impl CgroupCache {
    /// Reads all cgroups. `updates` counts the runtime's changes of containers.
    pub(crate) fn read(
        &mut self,
        config: &StatsConfig,
        now: Timestamp,
        updates: u64,
    ) -> BTreeMap<Arc<str>, CgroupReading> {
        let mut buffer = std::mem::take(&mut self.buffer);
        let root = self.at(config, &Arc::from("/"));
        let start = Start {
            now,
            changes: (sys::cgroup::changes(), updates),
            kills: kills(config),
            bfq: root.is_none_or(|root| root.cgroup.counts_by_bfq(&mut buffer)),
        };
        let found = BTreeMap::new();
        let mut reader = Reader { config, start, buffer: &mut buffer, found };
        self.walk(config, &mut reader);
        let found = reader.found;
        self.buffer = buffer;
        found
    }

    /// CPU time of all cgroups, in nanoseconds.
    pub(crate) fn cpu_totals(&mut self, config: &StatsConfig) -> BTreeMap<Arc<str>, u64> {
        let mut buffer = std::mem::take(&mut self.buffer);
        let mut totals = Totals { buffer: &mut buffer, found: BTreeMap::new() };
        self.walk(config, &mut totals);
        let found = totals.found;
        self.buffer = buffer;
        found
    }

    /// Since when a pod has been quiet, and its network counters since then; by the path of its
    /// cgroup.
    pub(crate) fn quiet(&self, pod: &str) -> (Option<Timestamp>, Option<Interfaces>) {
        let held = self.held.get(pod);
        (held.and_then(|held| Some(held.pulse?.1)), held.and_then(|held| held.network.clone()))
    }

    /// Stores a pod's network counters, until it runs again.
    pub(crate) fn keep_network(&mut self, pod: &str, network: &Interfaces) {
        if let Some(held) = self.held.get_mut(pod) {
            held.network = Some(Arc::clone(network));
        }
    }

    /// Visits every cgroup; those that no longer exist are dropped.
    fn walk(&mut self, config: &StatsConfig, visit: &mut impl Visit) {
        self.walk += 1;
        self.visit(config, &Arc::from("/"), visit);
        for (_, path) in config.system_cgroups() {
            self.visit(config, &Arc::from(path), visit);
        }
        let is_pod = |path: &str| is_pod(config, path);
        let kubepods: Option<Arc<str>> = config.kubepods.as_deref().map(Arc::from);
        if let Some(kubepods) = kubepods
            && self.visit(config, &kubepods, visit).is_some()
        {
            self.each_below(&kubepods, |cgroup_cache, first| {
                if is_pod(first) {
                    return cgroup_cache.pod(config, first, visit);
                }
                cgroup_cache.visit(config, first, visit)?;
                cgroup_cache.each_below(first, |cgroup_cache, pod| {
                    if is_pod(pod) { cgroup_cache.pod(config, pod, visit) } else { Some(()) }
                });
                Some(())
            });
        }
        let walk = self.walk;
        self.held.retain(|_, held| held.walk == walk);
    }

    /// Visits the cgroups of a pod and of its containers.
    fn pod(&mut self, config: &StatsConfig, path: &Arc<str>, visit: &mut impl Visit) -> Option<()> {
        if visit.is_quiet(self.at(config, path)?) && self.keep(path, visit).is_some() {
            return Some(());
        }
        self.visit(config, path, visit)?;
        self.each_below(path, |cgroup_cache, container| {
            cgroup_cache.visit(config, container, visit)
        });
        Some(())
    }

    /// Reuses the last values of a pod and its containers; `None` if any must be read.
    fn keep(&mut self, pod: &Arc<str>, visit: &mut impl Visit) -> Option<()> {
        let below = self.held.get_mut(pod)?.below(pod);
        for path in std::iter::once(pod).chain(below.iter()) {
            let held = self.held.get_mut(path)?;
            visit.keep(path, held)?;
            held.walk = self.walk;
        }
        Some(())
    }

    /// Visits every child of a cgroup. If one has vanished, another may have taken its place, so
    /// the directory is listed once more.
    fn each_below(&mut self, path: &str, mut look: impl FnMut(&mut Self, &Arc<str>) -> Option<()>) {
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

    /// Visits one cgroup, unless this walk has visited it; one that was replaced is opened again.
    fn visit(
        &mut self,
        config: &StatsConfig,
        path: &Arc<str>,
        visit: &mut impl Visit,
    ) -> Option<()> {
        let walk = self.walk;
        for _ in 0..2 {
            let held = self.at(config, path)?;
            if held.walk == walk {
                return Some(());
            }
            held.walk = walk;
            if visit.look(path, held).is_some() {
                return Some(());
            }
            self.held.remove(path);
        }
        None
    }

    /// The cgroup at a path, opened if it was not.
    fn at(&mut self, config: &StatsConfig, path: &Arc<str>) -> Option<&mut Held> {
        if !self.held.contains_key(path) {
            let opened = self.open(config, path)?;
            self.held.insert(Arc::clone(path), Held::new(opened));
        }
        self.held.get_mut(path)
    }

    /// Opens a cgroup: relative to its parent if that is open, which is cheaper.
    fn open(&self, config: &StatsConfig, path: &str) -> Option<HeldCgroup> {
        let most = files_of(sys::process::open_files_limit());
        let hold = if self.held.len() < most { Hold::Files } else { Hold::Folders };
        let from_above = above(path).and_then(|(above, name)| {
            let open = &self.held.get(above)?.cgroup;
            if is_pod(config, above) { open.leaf(name, hold) } else { open.below(name, hold) }
        });
        // The parent may have been replaced by another of the same name.
        from_above.or_else(|| HeldCgroup::open(&config.cgroups, path, hold))
    }
}

/// The path of a cgroup's parent, and its name in that.
pub(crate) fn above(path: &str) -> Option<(&str, &str)> {
    let (above, name) = path.rsplit_once('/').filter(|(_, name)| !name.is_empty())?;
    Some((if above.is_empty() { "/" } else { above }, name))
}

/// Whether the path is that of a pod's cgroup.
pub(crate) fn is_pod(config: &StatsConfig, path: &str) -> bool {
    CgroupName::parse(config.driver, path).pod_uid().is_some()
}

/// The number of OOM kills on the whole machine.
fn kills(config: &StatsConfig) -> Option<u64> {
    let text = sys::fs::read_to_string(config.roots.proc.join("vmstat")).ok()?;
    text.lines().find_map(|line| line.strip_prefix("oom_kill "))?.trim().parse().ok()
}

/// Adds values that the root's files lack: limits are the machine's, and on version 2 swap is too.
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

    /// A machine with version 2 cgroups in plain files, whose OOM kills are independent of the real
    /// ones.
    fn machine(root: &std::path::Path) -> StatsConfig {
        StatsConfig {
            cgroups: Arc::new(sys::cgroup::Cgroups::V2 { root: root.to_owned() }),
            kubepods: Some("/kubepods".into()),
            roots: ports::Roots { proc: root.join("proc"), ..ports::Roots::default() },
            ..StatsConfig::bare()
        }
    }

    #[test]
    fn few_files_are_held_where_few_may_be_open() {
        assert_eq!((files_of(1_000_000), files_of(u64::MAX)), (FILES_OF, FILES_OF));
        assert_eq!((files_of(1024), files_of(0)), (16, 0));
    }

    #[test]
    fn settings_are_read_again_after_a_change_after_minutes_and_while_young() {
        let at = |s| Timestamp::from_second(s).unwrap();
        let start = |now, changes| Start { now: at(now), changes, kills: None, bfq: false };
        let known = Known { at: at(100), changes: (3, 1) };
        assert!(known.is_good(&start(130, (3, 1)), 50));
        assert!(!known.is_good(&start(130, (4, 1)), 50), "the agent wrote a file");
        assert!(!known.is_good(&start(130, (3, 2)), 50), "the runtime was told to change one");
        assert!(known.is_good(&start(399, (3, 1)), 50));
        assert!(!known.is_good(&start(400, (3, 1)), 50), "minutes passed");
        assert!(!known.is_good(&start(102, (3, 1)), 95), "it was being made");
    }

    #[test]
    fn a_cgroup_is_found_below_the_one_above() {
        assert_eq!(above("/"), None);
        assert_eq!(above("/kubepods"), Some(("/", "kubepods")));
        assert_eq!(above("/kubepods/burstable/podu"), Some(("/kubepods/burstable", "podu")));
        assert_eq!(above("relative"), None);
    }

    #[test]
    fn io_is_looked_for_below_a_pod_with_some_and_kills_on_a_machine_with_some() {
        let root = std::env::temp_dir().join(format!("rubelet-below-{}", std::process::id()));
        let write = |path: &str, file: &str, text: &str| {
            sys::fs::create_dir_all(root.join(path), 0o755).unwrap();
            sys::fs::write(root.join(path).join(file), text).unwrap();
        };
        let line = "8:0 rbytes=1 wbytes=2 rios=3 wios=4\n";
        let names = ["podu-1", "podu-1/c", "podu-2", "podu-2/c"];
        for path in ["", "kubepods"]
            .map(str::to_owned)
            .into_iter()
            .chain(names.map(|n| format!("kubepods/{n}")))
        {
            write(&path, "cgroup.procs", "");
            let none = path.is_empty() || path.ends_with("podu-2");
            write(&path, "io.stat", if none { "" } else { line });
            write(&path, "memory.events", "oom_kill 1\n");
        }
        write("proc", "vmstat", "oom_kill 0\n");
        let config = machine(&root);
        let mut cgroup_cache = CgroupCache::default();
        let now = Timestamp::from_second(4_000_000_000).unwrap();
        let mut look = || {
            let read = cgroup_cache.read(&config, now, 0);
            names.map(|name| {
                let usage = &read[format!("/kubepods/{name}").as_str()].usage;
                (usage.io.len(), usage.oom_kills)
            })
        };
        assert_eq!(look(), [(1, 0), (1, 0), (0, 0), (0, 0)]);
        write("proc", "vmstat", "oom_kill 3\n");
        write("kubepods/podu-2", "io.stat", line);
        assert_eq!(look(), [(1, 1); 4]);
        let gone = std::process::Command::new("rm").arg("-rf").arg(&root).status();
        assert!(gone.unwrap().success());
    }

    #[test]
    fn a_pod_that_did_not_run_is_taken_as_it_was_for_a_while() {
        let root = std::env::temp_dir().join(format!("rubelet-quiet-{}", std::process::id()));
        let write = |path: &str, files: &[(&str, &str)]| {
            let folder = root.join(path);
            sys::fs::create_dir_all(&folder, 0o755).unwrap();
            for (file, text) in files {
                sys::fs::write(folder.join(file), text).unwrap();
            }
        };
        let (pod, container) = ("kubepods/podu-1", "kubepods/podu-1/c");
        for path in ["", "kubepods", pod, container] {
            let usage = [("cpu.stat", "usage_usec 5\n"), ("memory.current", "1000\n")];
            write(path, &usage);
            write(path, &[("memory.stat", "anon 1\n"), ("cgroup.procs", "")]);
        }
        let config = machine(&root);
        let mut cgroup_cache = CgroupCache::default();
        let made = std::os::unix::fs::MetadataExt::mtime(&std::fs::metadata(&root).unwrap());
        let mut anon = |second: i64, updates| {
            let now = Timestamp::from_second(made + 100 + second).unwrap();
            let read = cgroup_cache.read(&config, now, updates);
            assert_eq!(read.len(), 4);
            ["/kubepods", "/kubepods/podu-1", "/kubepods/podu-1/c"]
                .map(|path| read[path].usage.memory.rss)
        };
        assert_eq!(anon(0, 0), [1, 1, 1]);
        for path in ["kubepods", pod, container] {
            write(path, &[("memory.stat", "anon 2\n")]);
        }
        assert_eq!(anon(15, 0), [2, 1, 1], "nothing says that the pod ran");
        assert_eq!(anon(15, 1), [2, 2, 2], "the runtime was told to change something");
        write(container, &[("memory.stat", "anon 3\n")]);
        write(pod, &[("memory.stat", "anon 3\n")]);
        assert_eq!(anon(27, 1), [2, 2, 2]);
        assert_eq!(anon(28, 1), [2, 3, 3], "believed long enough");
        write(container, &[("memory.stat", "anon 9\n")]);
        assert_eq!(
            anon(56, 1),
            [2, 3, 3],
            "the pod, which its containers are part of, is as it was"
        );
        write(container, &[("memory.stat", "anon 4\n")]);
        write(pod, &[("cpu.stat", "usage_usec 6\n")]);
        assert_eq!(anon(57, 1), [2, 3, 4], "it ran");
        write(container, &[("memory.stat", "anon 5\n")]);
        write(pod, &[("memory.current", "900\n")]);
        assert_eq!(anon(58, 1), [2, 3, 5], "it holds less");
        let gone = std::process::Command::new("rm").arg("-rf").arg(&root).status();
        assert!(gone.unwrap().success());
    }
}
