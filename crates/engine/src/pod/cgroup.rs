//! A pod whose cgroup is missing: containers outside of it are outside of its limits.

use super::{PodGates, may_run_again};
use crate::runtime::RuntimePod;
use api::core::v1::Pod;

/// What is done about a pod's cgroup that is not there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MissingCgroup {
    /// Everything of the pod is killed first: it runs outside of its limits.
    pub kill: bool,
    /// The cgroup is made: something will run in it.
    pub make: bool,
}

/// What is done about a pod's cgroup that is not there (kubelet: `SyncPod`, "Create Cgroups for the pod").
pub fn missing_cgroup(pod: &Pod, runtime: &RuntimePod, gates: &PodGates) -> MissingCgroup {
    let Some(spec) = &pod.spec else { return MissingCgroup { kill: false, make: true } };
    let runs = |name: &str| runtime.newest(name).is_some_and(|newest| newest.is_running());
    let kill = spec.containers.iter().any(|container| runs(&container.name));
    let restarts = spec.restart_policy.as_deref() != Some("Never")
        || spec.containers.iter().any(|container| may_run_again(container, spec, gates));
    MissingCgroup { kill, make: !kill || restarts }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::testing;

    #[test]
    fn what_runs_outside_of_its_limits_is_killed_and_begins_anew_if_it_may() {
        for (words, runs, kill, make) in [
            ("Always a", "ready a:running", true, true),
            ("Never a", "ready a:running", true, false),
            ("Never a=OnFailure", "ready a:running", true, true),
            ("Never a", "ready a:exited0", false, true),
            ("Never a", "", false, true),
            ("Never i:b a", "ready b:running", false, true),
        ] {
            let (pod, runtime) = (testing::pod(words), testing::runtime(runs));
            let todo = missing_cgroup(&pod, &runtime, &PodGates::default());
            assert_eq!(todo, MissingCgroup { kill, make }, "{words}; {runs}");
        }
    }
}
