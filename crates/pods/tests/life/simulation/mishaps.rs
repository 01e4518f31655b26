//! Faults of the agent itself.

use super::Rng;
use crate::world::Agent;

/// Every kind of task that the pod subsystem has; with some of them the process ends.
const TASKS: [&str; 14] = [
    "actuated-state",
    "allocated-state",
    "container-gc",
    "pod-status",
    "pod-worker",
    "pods",
    "pods-from-api",
    "pods-from-files",
    "probe",
    "probe-store",
    "runtime-audit",
    "runtime-events",
    "runtime-look",
    "runtime-view",
];

/// Perhaps makes a task panic.
pub(super) fn strike(agent: &Agent, rng: &mut Rng) {
    if rng.below(4) == 0 {
        let which = rng.below(u64::try_from(TASKS.len()).unwrap());
        agent.tasks.make_panic(TASKS[usize::try_from(which).unwrap()]);
    }
}
