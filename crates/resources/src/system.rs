//! Cgroups of the agent itself (`kubeletCgroups`) and of the system's processes (`systemCgroups`).
//!
//! Promises: checks once a minute, because processes come and go; only processes in the root cgroup are
//! moved, never process 1 and never a kernel thread; an agent inside a container stays where it is. The agent's
//! `oomScoreAdj` is set again if it was changed.
//!
//! Contract: kubelet `containerManagerImpl.setupNode`, `ensureSystemCgroups`.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use sys::cgroup::Cgroups;
use sys::fs::FsError;
use tokio_util::sync::CancellationToken;

const EVERY: Duration = Duration::from_secs(60);

/// How often one check moves processes until the root cgroup is empty: moved ones may have had children.
const ROUNDS: usize = 11;

/// Where the agent and the system's processes should be.
#[derive(Debug, Clone)]
pub struct SystemCgroups {
    cgroups: Arc<Cgroups>,
    proc_root: PathBuf,
    agent: Option<String>,
    system: Option<String>,
    oom_score: i32,
}

/// Why the cgroups cannot be used.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum SystemCgroupsError {
    /// The root cgroup was configured, which all processes are in already.
    #[error("system container cannot be root (\"/\")")]
    Root,
}

impl SystemCgroups {
    /// With the configured names; a name that is not set leaves those processes alone.
    pub fn new(
        cgroups: Arc<Cgroups>,
        proc_root: PathBuf,
        agent: Option<String>,
        system: Option<String>,
        oom_score: i32,
    ) -> Result<Self, SystemCgroupsError> {
        if system.as_deref() == Some("/") {
            return Err(SystemCgroupsError::Root);
        }
        Ok(Self { cgroups, proc_root, agent, system, oom_score })
    }

    /// Keeps processes where they should be until cancelled.
    pub async fn run(self, cancel: CancellationToken) {
        let mut ticks = tokio::time::interval(EVERY);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                // Cancel-safe: no state is held across the wait.
                () = cancel.cancelled() => return,
                // Cancel-safe: a dropped tick is not lost.
                _ = ticks.tick() => {
                    let this = self.clone();
                    // A panic has been logged; the next tick tries again.
                    drop(sys::blocking::run_for(sys::blocking::Purpose::Cgroups, move || this.ensure()).await);
                }
            }
        }
    }

    /// One check: the system's processes first, then the agent itself.
    fn ensure(&self) {
        if let Some(name) = &self.system
            && let Err(error) = self.move_system(name)
        {
            tracing::info!(containerName = %name, err = %error, "Failed to ensure state");
        }
        if let Err(error) = self.tend_agent() {
            let name = self.agent.as_deref().unwrap_or_default();
            tracing::info!(containerName = %name, err = %error, "Failed to ensure state");
        }
    }

    fn tend_agent(&self) -> Result<(), FsError> {
        let namespace = |pid: &str| read_link(self.proc_root.join(pid).join("ns/pid"));
        if namespace("1")? != namespace("self")? {
            return Ok(());
        }
        let pid = i32::try_from(std::process::id()).unwrap_or_default();
        if let Some(name) = &self.agent
            && !self.root_processes(name)?.contains(&pid)
        {
            self.cgroups.enter(name, pid)?;
        }
        // A missing permission was reported at start and need not be repeated every minute.
        if let Err(error) = sys::process::set_own_oom_score(&self.proc_root, self.oom_score) {
            tracing::debug!(err = %error.source, "Failed to apply oom_score_adj to process");
        }
        Ok(())
    }

    fn move_system(&self, name: &str) -> Result<(), FsError> {
        let mut last = Ok(());
        for _ in 0..ROUNDS {
            let all = self.root_processes("/")?;
            let own: Vec<i32> = all.into_iter().filter(|pid| self.is_movable(*pid)).collect();
            if own.is_empty() {
                return Ok(());
            }
            for pid in own {
                if let Err(error) = self.cgroups.enter(name, pid) {
                    last = Err(error);
                }
            }
        }
        last
    }

    /// Whether it is neither process 1 nor a kernel thread; those have no executable.
    fn is_movable(&self, pid: i32) -> bool {
        let exe = self.proc_root.join(pid.to_string()).join("exe");
        let gone =
            read_link(exe).is_err_and(|error| error.source.kind() == std::io::ErrorKind::NotFound);
        pid > 1 && !gone
    }

    /// The processes directly in a cgroup; with version 1, in the devices hierarchy.
    fn root_processes(&self, path: &str) -> Result<Vec<i32>, FsError> {
        match self.cgroups.read("devices", path, "cgroup.procs") {
            Ok(text) => Ok(text.lines().filter_map(|line| line.trim().parse().ok()).collect()),
            Err(error) if error.source.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }
}

fn read_link(path: PathBuf) -> Result<PathBuf, FsError> {
    std::fs::read_link(&path).map_err(|source| FsError { operation: "read link", path, source })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::path::Path;

    /// A machine with two hierarchies in plain files, and a /proc with these programs.
    fn machine(name: &str, procs: &str, programs: &[&str]) -> (PathBuf, Arc<Cgroups>) {
        let root =
            std::env::temp_dir().join(format!("rubelet-system-{name}-{}", std::process::id()));
        let mut mounts = BTreeMap::new();
        for controller in ["devices", "memory"] {
            let mount = root.join("cgroup").join(controller);
            sys::fs::create_dir_all(&mount, 0o755).unwrap();
            sys::fs::write(mount.join("cgroup.procs"), procs).unwrap();
            mounts.insert(controller.to_owned(), mount);
        }
        for pid in programs {
            let folder = root.join("proc").join(pid);
            sys::fs::create_dir_all(folder.join("ns"), 0o755).unwrap();
            std::os::unix::fs::symlink("/bin/true", folder.join("exe")).unwrap();
            std::os::unix::fs::symlink("pid:[1]", folder.join("ns/pid")).unwrap();
        }
        (root, Arc::new(Cgroups::V1 { mounts }))
    }

    fn procs(root: &Path, controller: &str, cgroup: &str) -> String {
        let file = root.join("cgroup").join(controller).join(cgroup).join("cgroup.procs");
        sys::fs::read_to_string(file).unwrap_or_default()
    }

    #[test]
    fn system_processes_leave_the_root_but_init_and_kernel_threads_stay() {
        let (root, cgroups) = machine("move", "1\n2\n7\n", &["1", "7"]);
        let proc_root = root.join("proc");
        let system =
            SystemCgroups::new(cgroups, proc_root, None, Some("/system".into()), 0).unwrap();
        system.ensure();
        assert_eq!(procs(&root, "devices", "system"), "7");
        assert_eq!(procs(&root, "memory", "system"), "7");
        sys::removal::remove_tree(Path::new("/proc"), &root, sys::removal::Contents::Everything)
            .unwrap();
    }

    #[test]
    fn the_agent_enters_its_own_cgroup_unless_it_is_in_a_container() {
        let (root, cgroups) = machine("agent", "", &["1", "self"]);
        let proc_root = root.join("proc");
        let name = Some("/kubelet".to_owned());
        let agent = SystemCgroups::new(Arc::clone(&cgroups), proc_root, name, None, -999).unwrap();
        agent.ensure();
        let score = root.join("proc/self/oom_score_adj");
        assert_eq!(sys::fs::read_to_string(&score).unwrap(), "-999");
        sys::fs::write(&score, "0").unwrap();
        agent.ensure();
        assert_eq!(sys::fs::read_to_string(&score).unwrap(), "-999", "it is set again");
        assert_eq!(procs(&root, "memory", "kubelet"), std::process::id().to_string());

        let link = root.join("proc/self/ns/pid");
        sys::fs::remove_file(&link).unwrap();
        std::os::unix::fs::symlink("pid:[2]", link).unwrap();
        let own = root.join("cgroup/memory/kubelet");
        sys::removal::remove_tree(Path::new("/proc"), &own, sys::removal::Contents::Everything)
            .unwrap();
        agent.ensure();
        assert_eq!(procs(&root, "memory", "kubelet"), "");
        sys::removal::remove_tree(Path::new("/proc"), &root, sys::removal::Contents::Everything)
            .unwrap();
    }

    #[test]
    fn the_root_is_no_place_for_system_processes() {
        let (root, cgroups) = machine("root", "", &[]);
        let error =
            SystemCgroups::new(cgroups, root.clone(), None, Some("/".into()), 0).unwrap_err();
        assert_eq!(error.to_string(), "system container cannot be root (\"/\")");
        sys::removal::remove_tree(Path::new("/proc"), &root, sys::removal::Contents::Everything)
            .unwrap();
    }
}
