//! Faults of a whole configuration: all of them, in upstream's order and words (kubelet:
//! `ValidateKubeletConfiguration`).

mod images;
mod labels;
mod logging;
pub(crate) mod names;
mod rules;
#[cfg(test)]
mod tests;

pub(crate) use labels::node_label_fault;
pub(crate) use logging::logging_faults;

use crate::gates::Gates;
use crate::kubelet::KubeletConfiguration;
use rules::Rules;

/// Which cgroup hierarchy the host has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CgroupVersion {
    /// Version 1, also beside a version 2 tree.
    V1,
    /// Version 2 alone.
    V2,
}

/// Everything that is wrong with a configuration; empty when it is good.
pub fn faults(
    kubelet: &KubeletConfiguration,
    gates: &Gates,
    cgroups: CgroupVersion,
) -> Vec<String> {
    let mut local = gates.clone();
    if let Err(refused) = local.set(&kubelet.feature_gates, &mut Vec::new()) {
        return vec![crate::text::aggregate(&refused)];
    }
    let mut rules = Rules { kubelet, gates: &local, faults: local.faults() };
    rules.limits();
    rules.images();
    rules.network_and_limits();
    rules.registration();
    rules.topology();
    rules.shutdown();
    rules.swap_and_restarts();
    rules.enforcement();
    rules.hairpin();
    rules.pull_credentials();
    rules.reservations();
    rules.host(cgroups);
    rules.hidden_metrics();
    rules.faults.extend(logging_faults(&kubelet.logging, &local));
    if let Some(tracing) = &kubelet.tracing {
        rules.faults.extend(logging::tracing_faults(tracing));
    }
    rules.memory_qos();
    rules.runtime_and_logs();
    rules.faults
}
