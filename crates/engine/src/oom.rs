//! Out-of-memory kills, parsed from the kernel's log (upstream: `oomparser`).
//!
//! ```text
//!   "… invoked oom-killer: …" ─▶ collecting ─▶ "oom-kill:constraint=…" or "Killed process …" ─▶ a kill
//! ```

/// One kill.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OomKill {
    /// The cgroup whose limit was met; `/` when the machine's memory ran out.
    pub limited: String,
    /// The cgroup of the killed process.
    pub cgroup: String,
    /// Its name.
    pub process: String,
    /// Its id.
    pub pid: i32,
}

impl OomKill {
    /// The message of a node event, when it was the machine's memory that ran out.
    pub fn system_message(&self) -> Option<String> {
        if self.limited != "/" {
            return None;
        }
        let mut message = "System OOM encountered".to_owned();
        if !self.process.is_empty() && self.pid != 0 {
            message.push_str(&format!(", victim process: {}, pid: {}", self.process, self.pid));
        }
        Some(message)
    }
}

/// Whose limit was met.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limited {
    /// The container's own.
    Container,
    /// The pod's.
    Pod,
    /// That of all pods, or of some.
    Above,
}

/// The pod that a killed process belonged to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Victim {
    /// The pod's UID.
    pub pod: String,
    /// The container's id, if the process was in one.
    pub container: Option<String>,
    /// Whose limit was met.
    pub limited: Limited,
}

impl OomKill {
    /// The pod and container of the killed process; `None` if it belonged to no pod.
    pub fn victim(&self) -> Option<Victim> {
        let parts: Vec<&str> = self.cgroup.split('/').filter(|part| !part.is_empty()).collect();
        let (at, pod) =
            parts.iter().enumerate().find_map(|(at, part)| Some((at, pod_of(part)?)))?;
        let container = parts.get(at + 1).map(|part| {
            let scope = part.strip_suffix(".scope");
            scope.map_or(*part, |scope| scope.rsplit('-').next().unwrap_or(scope)).to_owned()
        });
        let depth = self.limited.split('/').filter(|part| !part.is_empty()).count();
        let limited = match depth.cmp(&(at + 1)) {
            std::cmp::Ordering::Less => Limited::Above,
            std::cmp::Ordering::Equal => Limited::Pod,
            std::cmp::Ordering::Greater => Limited::Container,
        };
        Some(Victim { pod, container, limited })
    }

    /// The message of the pod's event: what was killed, by which limit, with numbers as far as known.
    pub fn pod_message(&self, limited: Limited, limit: Option<u64>, peak: Option<u64>) -> String {
        let whose = match limited {
            Limited::Container => "the container's",
            Limited::Pod => "the pod's",
            Limited::Above => "all pods'",
        };
        let bytes = |n: u64| units::Quantity::from_bytes(i64::try_from(n).unwrap_or(i64::MAX));
        let known = |what: &str, n: Option<u64>| n.map(|n| format!("{what} {}", bytes(n)));
        let numbers: Vec<String> =
            [known("limit", limit), known("peak", peak)].into_iter().flatten().collect();
        let numbers =
            if numbers.is_empty() { String::new() } else { format!(": {}", numbers.join(", ")) };
        let (process, pid) = (&self.process, self.pid);
        format!(
            "Process {process} (pid {pid}) was killed for want of memory within {whose} limit{numbers}"
        )
    }
}

/// The UID in the name of a pod's cgroup, by either driver.
fn pod_of(part: &str) -> Option<String> {
    let uid = match part.strip_suffix(".slice") {
        Some(slice) => slice.rsplit_once("-pod")?.1.replace('_', "-"),
        None => part.strip_prefix("pod")?.to_owned(),
    };
    (uid.len() >= 16).then_some(uid)
}

/// Reads kills from lines.
#[derive(Debug, Clone, Default)]
pub struct OomReader {
    current: Option<OomKill>,
}

impl OomReader {
    /// Reads a line; returns the kill that it completes.
    pub fn line(&mut self, line: &str) -> Option<OomKill> {
        let Some(current) = &mut self.current else {
            if line.contains("invoked oom-killer:") {
                self.current = Some(OomKill {
                    limited: "/".to_owned(),
                    cgroup: "/".to_owned(),
                    process: String::new(),
                    pid: 0,
                });
            }
            return None;
        };
        if let Some(kill) = summary_line(line) {
            self.current = None;
            return Some(kill);
        }
        if let Some((cgroup, limited)) = old_cgroups(line) {
            current.cgroup = cgroup;
            current.limited = limited;
        }
        let (pid, process) = killed(line)?;
        current.pid = pid;
        current.process = process;
        self.current.take()
    }
}

/// `oom-kill:constraint=…,nodemask=…,cpuset=…,mems_allowed=…,oom_memcg=…,task_memcg=…,task=…,pid=…,uid=…`,
/// or `global_oom` in place of the group, which does not match upstream's form either.
fn summary_line(line: &str) -> Option<OomKill> {
    let rest = line.split_once("oom-kill:constraint=")?.1;
    let rest = rest.split_once(",nodemask=")?.1.split_once(",cpuset=")?.1;
    let rest = rest.split_once(",mems_allowed=")?.1.split_once(",oom_memcg=")?.1;
    let (limited, rest) = rest.split_once(",task_memcg=")?;
    let (cgroup, rest) = rest.rsplit_once(",task=")?;
    let (process, rest) = rest.rsplit_once(",pid=")?;
    let (pid, _) = rest.rsplit_once(",uid=")?;
    Some(OomKill {
        limited: limited.to_owned(),
        cgroup: cgroup.to_owned(),
        process: process.to_owned(),
        pid: pid.parse().ok()?,
    })
}

/// `Task in /a killed as a result of limit of /b` of kernels before 5.0.
fn old_cgroups(line: &str) -> Option<(String, String)> {
    let rest = line.split_once("Task in ")?.1;
    let (cgroup, limited) = rest.rsplit_once(" killed as a result of limit of ")?;
    let rooted = |path: &str| format!("/{}", path.trim_matches('/'));
    Some((rooted(cgroup), rooted(limited)))
}

/// `Killed process 12 (name) …`.
fn killed(line: &str) -> Option<(i32, String)> {
    let rest = line.split_once("Killed process ")?.1;
    let (pid, rest) = rest.split_once(" (")?;
    let (name, _) = rest.rsplit_once(')').filter(|(name, _)| !name.is_empty())?;
    Some((pid.parse().ok()?, name.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kills(lines: &[&str]) -> Vec<OomKill> {
        let mut reader = OomReader::default();
        lines.iter().filter_map(|line| reader.line(line)).collect()
    }

    const START: &str = "stress invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0";

    #[test]
    fn a_kill_in_a_limited_cgroup_is_no_system_oom() {
        let found = kills(&[
            "something else",
            START,
            "Memory cgroup stats for /kubepods/podx:",
            "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=c,mems_allowed=0,oom_memcg=/kubepods/podx,task_memcg=/kubepods/podx/c,task=stress,pid=42,uid=0",
            "Memory cgroup out of memory: Killed process 42 (stress) total-vm:1kB",
        ]);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].limited, "/kubepods/podx");
        assert_eq!((found[0].process.as_str(), found[0].pid), ("stress", 42));
        assert_eq!(found[0].system_message(), None);
    }

    #[test]
    fn a_killed_process_is_found_in_its_pod_by_either_driver() {
        let kill = |limited: &str, cgroup: &str| OomKill {
            limited: limited.to_owned(),
            cgroup: cgroup.to_owned(),
            process: "stress".to_owned(),
            pid: 42,
        };
        let uid = "8f2c1d34-0000-4b5c-9d6e-7f8091a2b3c4";
        let flat = format!("/kubepods/burstable/pod{uid}");
        let slice = format!("/kubepods.slice/kubepods-pod{}.slice", uid.replace('-', "_"));
        for (limited, cgroup, container, by) in [
            (format!("{flat}/abc1"), format!("{flat}/abc1"), Some("abc1"), Limited::Container),
            (flat.clone(), format!("{flat}/abc1/inner"), Some("abc1"), Limited::Pod),
            ("/kubepods".to_owned(), format!("{flat}/abc1"), Some("abc1"), Limited::Above),
            (
                format!("{slice}/cri-containerd-abc1.scope"),
                format!("{slice}/cri-containerd-abc1.scope"),
                Some("abc1"),
                Limited::Container,
            ),
            (slice.clone(), slice.clone(), None, Limited::Pod),
        ] {
            let found = kill(&limited, &cgroup).victim().unwrap();
            let want =
                Victim { pod: uid.to_owned(), container: container.map(Into::into), limited: by };
            assert_eq!(found, want, "{cgroup}");
        }
        for other in ["/", "/user.slice/session-1.scope", "/kubepods/podcast", "/podman/x"] {
            assert_eq!(kill("/", other).victim(), None, "{other}");
        }
        let kill = kill("/x", "/x");
        assert_eq!(
            kill.pod_message(Limited::Container, Some(32 << 20), Some(32 << 20)),
            "Process stress (pid 42) was killed for want of memory within the container's limit: limit \
             32Mi, peak 32Mi"
        );
        assert_eq!(
            kill.pod_message(Limited::Pod, None, None),
            "Process stress (pid 42) was killed for want of memory within the pod's limit"
        );
    }

    #[test]
    fn without_a_memory_cgroup_the_whole_machine_was_out_of_memory() {
        let found = kills(&[
            START,
            "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,task_memcg=/user,task=hog,pid=7,uid=0",
            "Out of memory: Killed process 7 (hog) total-vm:8kB, anon-rss:4kB",
        ]);
        let message = found[0].system_message().unwrap();
        assert_eq!(message, "System OOM encountered, victim process: hog, pid: 7");
    }

    #[test]
    fn older_kernels_name_the_cgroups_in_a_line_of_their_own() {
        let found = kills(&[
            START,
            "Task in /mem2 killed as a result of limit of /mem3",
            "Killed process 19667 (badsysprogram) total-vm:1460016kB, anon-rss:1414008kB",
        ]);
        assert_eq!((found[0].cgroup.as_str(), found[0].limited.as_str()), ("/mem2", "/mem3"));
    }

    #[test]
    fn a_line_that_ends_nothing_is_waited_over() {
        assert!(kills(&["Killed process 7 (hog) total-vm:8kB"]).is_empty(), "no start seen");
        assert!(kills(&[START, "Killed process x (hog)", "Killed process 7"]).is_empty());
    }
}
