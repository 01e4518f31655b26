//! The numbers of descriptors and sockets of a cgroup's processes.
//!
//! Telling sockets from files takes a system call for each descriptor. It is skipped where nothing
//! can have changed: no process of the cgroup has run since, according to its CPU time. For a pod's
//! process that did run, sockets are counted again when its number of descriptors changes, and
//! after [`REUSE_FOR`] in any case; for the node's own processes, of which each pod brings one with
//! many descriptors, after [`OWN_REUSE_FOR`]. This process, which holds thousands of cgroup files
//! open, counts its own by number.

use crate::cgroup_cache::REUSE_FOR;
use crate::reading::CgroupReading;
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use sys::stats::{OpenFiles, descriptors, open_files, own_open_files};
use tokio::time::Instant;

/// How long the socket count of processes outside pods is cached while their number of descriptors
/// stays the same.
const OWN_REUSE_FOR: Duration = Duration::from_secs(5 * 60);

/// The cached counts.
#[derive(Debug, Default)]
pub(crate) struct Counted {
    cgroups: HashMap<Arc<str>, OfCgroup>,
    processes: HashMap<String, OfProcess>,
    /// The number of the response being built.
    page: u64,
    /// Whether the kernel reports the number of descriptors of a process.
    kernel_reports_count: bool,
}

#[derive(Debug)]
struct OfCgroup {
    cpu_ns: u64,
    processes: String,
    open: OpenFiles,
    page: u64,
}

#[derive(Debug)]
struct OfProcess {
    at: Instant,
    open: OpenFiles,
    page: u64,
}

impl OfProcess {
    /// Whether a socket count of this age is still valid for this number of descriptors.
    fn is_valid(&self, now: u64, max_age: Duration) -> bool {
        let counted = self.open.descriptors;
        counted > 0 && now == counted && self.at.elapsed() < max_age
    }
}

impl Counted {
    /// Called before the cgroups of a response are counted.
    pub(super) fn begin(&mut self, proc_root: &Path) {
        self.page += 1;
        // This process has some, so 0 means that the kernel does not report it.
        self.kernel_reports_count = descriptors(proc_root, "self") > 0;
    }

    /// The open descriptors of all processes of a cgroup.
    pub(super) fn of_cgroup(
        &mut self,
        proc_root: &Path,
        path: &Arc<str>,
        cgroup: &CgroupReading,
        is_pods: bool,
    ) -> OpenFiles {
        let (cpu_ns, processes) = (cgroup.usage.cpu.total_ns, &cgroup.usage.procs);
        if processes.is_empty() {
            return OpenFiles::default();
        }
        let page = self.page;
        if let Some(known) = self.cgroups.get_mut(path)
            && known.cpu_ns == cpu_ns
            && known.processes == *processes
        {
            known.page = page;
            return known.open;
        }
        let mut open = OpenFiles::default();
        for pid in processes.lines() {
            let of_one = self.of_process(proc_root, pid, is_pods);
            open.descriptors += of_one.descriptors;
            open.sockets += of_one.sockets;
        }
        let known = OfCgroup { cpu_ns, processes: processes.clone(), open, page };
        self.cgroups.insert(Arc::clone(path), known);
        open
    }

    fn of_process(&mut self, proc_root: &Path, pid: &str, is_pods: bool) -> OpenFiles {
        let max_age = if is_pods { REUSE_FOR } else { OWN_REUSE_FOR };
        // For a pod's process that was not counted before, the number alone saves nothing.
        let ask = self.kernel_reports_count && (!is_pods || self.processes.contains_key(pid));
        let now = if ask { descriptors(proc_root, pid) } else { 0 };
        // Kernel threads have none.
        if ask && now == 0 {
            return OpenFiles::default();
        }
        if let Some(known) = self.processes.get_mut(pid)
            && known.is_valid(now, max_age)
        {
            known.page = self.page;
            return known.open;
        }
        let own = self.kernel_reports_count && pid.parse() == Ok(std::process::id());
        let open = if own { own_open_files(now) } else { open_files(proc_root, pid) };
        let known = OfProcess { at: Instant::now(), open, page: self.page };
        self.processes.insert(pid.to_owned(), known);
        open
    }

    /// Called after all cgroups of a response: those not among them are dropped. Processes of a
    /// cgroup that did not run are counted again when it does.
    pub(super) fn end(&mut self) {
        let page = self.page;
        self.cgroups.retain(|_, known| known.page == page);
        self.processes.retain(|_, known| known.page == page);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn cgroup(cpu_ns: u64) -> CgroupReading {
        let mut reading = CgroupReading::default();
        let usage = Arc::make_mut(&mut reading.usage);
        (usage.cpu.total_ns, usage.procs) = (cpu_ns, "7".into());
        reading
    }

    #[test]
    fn a_cgroup_is_counted_again_when_it_ran_and_forgotten_when_it_is_gone() {
        let root = std::env::temp_dir().join(format!("rubelet-fds-{}", std::process::id()));
        sys::fs::create_dir_all(root.join("7/fd"), 0o755).unwrap();
        symlink("/dev/null", root.join("7/fd/0")).unwrap();
        let mut counted = Counted::default();
        let mut look = |cpu_ns| {
            counted.begin(&root);
            let open = counted.of_cgroup(&root, &"/c".into(), &cgroup(cpu_ns), true);
            counted.end();
            (open.descriptors, open.sockets)
        };
        assert_eq!(look(1), (1, 0));
        symlink("socket:[1]", root.join("7/fd/1")).unwrap();
        assert_eq!(look(1), (1, 0), "nothing ran");
        assert_eq!(look(2), (2, 1));
        counted.begin(&root);
        counted.end();
        assert!(counted.cgroups.is_empty() && counted.processes.is_empty());
        let gone = std::process::Command::new("rm").arg("-rf").arg(&root).status();
        assert!(gone.unwrap().success());
    }

    #[tokio::test(start_paused = true)]
    async fn a_process_is_believed_for_a_while_if_it_has_as_many_descriptors() {
        let known = |descriptors| OfProcess {
            at: Instant::now(),
            open: OpenFiles { descriptors, sockets: 0 },
            page: 0,
        };
        let now = |counted, now| known(counted).is_valid(now, REUSE_FOR);
        assert!(now(3, 3) && !now(3, 4));
        assert!(!now(3, 0) && !now(0, 0), "the kernel does not say");
        let old = known(3);
        tokio::time::advance(REUSE_FOR).await;
        assert!(!old.is_valid(3, REUSE_FOR) && old.is_valid(3, OWN_REUSE_FOR));
    }
}
