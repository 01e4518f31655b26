//! Out-of-memory kills as the kernel's log tells them (upstream: `oomparser`).
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

/// Reads kills from lines.
#[derive(Debug, Clone, Default)]
pub struct OomReader {
    current: Option<OomKill>,
}

impl OomReader {
    /// Takes in a line; gives the kill that it completes.
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
