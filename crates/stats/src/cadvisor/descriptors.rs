//! How many descriptors and sockets the processes of a cgroup have.
//!
//! Telling sockets from files takes a call for each descriptor. It is spared where nothing can have
//! changed: no process of the cgroup has run since, as its CPU time says. For a process that did run,
//! sockets are told apart again when it has another number of descriptors, and after [`BELIEVED`] anyway, if it is
//! a pod's; of the node's own processes, of which each pod brings one that holds many, after [`OWN_BELIEVED`].
//! This process, which holds thousands of files of cgroups, asks for its own by number.

use crate::reading::CgroupReading;
use crate::watched::BELIEVED;
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use sys::stats::{OpenFiles, descriptors, open_files, own_open_files};
use tokio::time::Instant;

/// How long processes that are no pod's are believed to have as many sockets, if they have as many descriptors.
const OWN_BELIEVED: Duration = Duration::from_secs(5 * 60);

/// What was counted before.
#[derive(Debug, Default)]
pub(crate) struct Counted {
    cgroups: HashMap<Arc<str>, OfCgroup>,
    processes: HashMap<String, OfProcess>,
    /// The number of the page under way.
    page: u64,
    /// Whether the kernel says how many descriptors a process has.
    told: bool,
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
    /// Whether the sockets are still those that were counted so lately, with so many descriptors now.
    fn is_believed(&self, now: u64, lately: Duration) -> bool {
        let counted = self.open.descriptors;
        counted > 0 && now == counted && self.at.elapsed() < lately
    }
}

impl Counted {
    /// Before the cgroups of a page are counted.
    pub(super) fn begin(&mut self, proc_root: &Path) {
        self.page += 1;
        // This process has some.
        self.told = descriptors(proc_root, "self") > 0;
    }

    /// What all processes of a cgroup have open.
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
        let lately = if is_pods { BELIEVED } else { OWN_BELIEVED };
        // Of a pod's process that was not counted before, the number alone spares nothing.
        let ask = self.told && (!is_pods || self.processes.contains_key(pid));
        let now = if ask { descriptors(proc_root, pid) } else { 0 };
        // The kernel's own threads have none.
        if ask && now == 0 {
            return OpenFiles::default();
        }
        if let Some(known) = self.processes.get_mut(pid)
            && known.is_believed(now, lately)
        {
            known.page = self.page;
            return known.open;
        }
        let own = self.told && pid.parse() == Ok(std::process::id());
        let open = if own { own_open_files(now) } else { open_files(proc_root, pid) };
        let known = OfProcess { at: Instant::now(), open, page: self.page };
        self.processes.insert(pid.to_owned(), known);
        open
    }

    /// After all cgroups of a page: those that were not among them are forgotten. Processes of a cgroup that
    /// did not run are counted anew when it does.
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
        let now = |counted, now| known(counted).is_believed(now, BELIEVED);
        assert!(now(3, 3) && !now(3, 4));
        assert!(!now(3, 0) && !now(0, 0), "the kernel does not say");
        let old = known(3);
        tokio::time::advance(BELIEVED).await;
        assert!(!old.is_believed(3, BELIEVED) && old.is_believed(3, OWN_BELIEVED));
    }
}
