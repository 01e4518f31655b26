//! Selects the process of a container through which values are read.

use crate::cgroup_cache::{above, is_pod};
use crate::task::StatsConfig;
use std::borrow::Cow;

/// A process of a cgroup, or for a container also of one below it: some runtimes and containers put
/// their processes into child cgroups.
pub(crate) fn first_process<'a>(
    config: &StatsConfig,
    path: &str,
    processes: &'a str,
) -> Option<Cow<'a, str>> {
    if let Some(own) = processes.lines().next() {
        return Some(own.into());
    }
    let is_container = above(path).is_some_and(|(pod, _)| is_pod(config, pod));
    let below = is_container.then(|| config.cgroups.process_below(path)).flatten();
    below.map(|pid| pid.to_string().into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn processes_of_a_container_may_be_in_cgroups_below_it() {
        let root = std::env::temp_dir().join(format!("rubelet-inner-{}", std::process::id()));
        let (pod, inner) = (root.join("kubepods/podu-1"), "c/container/init.scope");
        sys::fs::create_dir_all(pod.join(inner), 0o755).unwrap();
        for (place, text) in [("", ""), ("c", ""), ("c/container", ""), (inner, "70\n71\n")] {
            sys::fs::write(pod.join(place).join("cgroup.procs"), text).unwrap();
        }
        let config = StatsConfig {
            cgroups: Arc::new(sys::cgroup::Cgroups::V2 { root: root.clone() }),
            ..StatsConfig::bare()
        };
        let first = |path: &str, own| first_process(&config, path, own).map(Cow::into_owned);
        assert_eq!(first("/kubepods/podu-1/c", "").as_deref(), Some("70"));
        assert_eq!(first("/kubepods/podu-1/c", "9\n8\n").as_deref(), Some("9"));
        assert_eq!(first("/kubepods/podu-1", ""), None, "a pod's own are none");
        let gone = std::process::Command::new("rm").arg("-rf").arg(&root).status();
        assert!(gone.unwrap().success());
    }
}
