//! What protects the node: the eviction loop, and what the node is told about faults.

use crate::host::Host;
use crate::{AgentError, settings};
use config::Config;
use config::environment::MemorySignal;
use engine::cgroup::{CgroupName, Driver, Tree};
use engine::eviction::{GracePolicy, Threshold, ThresholdConfig, ThresholdError};
use engine::shutdown::{PriorityPeriod, periods};
use node::{AlarmPlaces, EvictionConfig, KernelMemoryPlaces, ShutdownConfig};
use pods::ViewHealth;
use ports::Roots;
use std::collections::BTreeMap;
use std::time::Duration;
use sys::kmsg::KernelLog;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use units::GoDuration;

/// Checks the hard thresholds, which upstream reads with the reservations, before all others.
pub(crate) fn hard_thresholds(config: &Config) -> Result<(), ThresholdError> {
    let none = BTreeMap::new();
    let hard = ThresholdConfig {
        hard: &config.eviction.hard,
        soft: &none,
        soft_grace: &none,
        min_reclaim: &none,
        enforce_pods: false,
    };
    hard.parse().map(drop)
}

/// The thresholds as configured; a fault ends the start, as upstream.
pub(crate) fn thresholds(config: &Config) -> Result<Vec<Threshold>, ThresholdError> {
    let eviction = &config.eviction;
    let resources = &config.resources;
    let all = ThresholdConfig {
        hard: &eviction.hard,
        soft: &eviction.soft,
        soft_grace: &eviction.soft_grace_period,
        min_reclaim: &eviction.minimum_reclaim,
        enforce_pods: resources.enforcement.pods && !resources.ignore_eviction_in_allocatable,
    };
    all.parse()
}

/// Settings of the eviction loop.
pub(crate) fn eviction(
    config: &Config,
    host: &Host,
    roots: &Roots,
    driver: Driver,
    thresholds: Vec<Threshold>,
) -> EvictionConfig {
    let root = CgroupName::of_root(&config.resources.cgroup_root);
    let pods = Tree::new(&root).kubepods().path(driver);
    let wanted = config.eviction.kernel_memcg_notification && !host.cgroups.is_v2();
    let place = |path: &str| host.cgroups.dir("memory", path);
    let alarms = place("/").zip(place(&pods)).filter(|_| wanted);
    EvictionConfig {
        thresholds,
        transition: config.eviction.pressure_transition_period,
        grace: GracePolicy { max_pod_seconds: config.eviction.max_pod_grace_period_seconds.into() },
        local_storage: config.pods.local_storage_isolation,
        may_be_split: settings::image_filesystem_may_be_split(config),
        alarms: alarms.map(|(node, pods)| AlarmPlaces { node, pods }),
        kernel_memory: (config.opt_ins.memory_signal == MemorySignal::MemAvailable).then(|| {
            let pods_stat = config.resources.cgroups_per_qos.then(|| place(&pods)).flatten();
            KernelMemoryPlaces {
                meminfo: roots.proc.join("meminfo"),
                pods_stat: pods_stat.map(|pods| pods.join("memory.stat")),
            }
        }),
    }
}

/// Settings of graceful shutdown.
pub(crate) fn shutdown(config: &Config, roots: &Roots) -> ShutdownConfig {
    let shutdown = &config.shutdown;
    let gates = settings::shutdown_gates(config);
    let by_priority: Vec<PriorityPeriod> = shutdown
        .by_priority
        .iter()
        .filter(|_| gates.by_priority)
        .map(|(priority, time)| PriorityPeriod {
            priority: *priority,
            seconds: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
        })
        .collect();
    let periods = periods(&by_priority, shutdown.grace_period, shutdown.critical_grace_period);
    ShutdownConfig {
        periods: periods.into_iter().filter(|_| gates.graceful).collect(),
        root: roots.kubelet.clone(),
        etc: roots.etc.clone(),
    }
}

/// The kernel's log. Where it cannot be opened the agent does not start, as upstream, except in a user
/// namespace that was allowed for.
pub(crate) fn kernel_log(config: &Config, roots: &Roots) -> Result<Option<KernelLog>, AgentError> {
    match KernelLog::open(&roots.dev) {
        Ok(log) => Ok(Some(log)),
        Err(error) if tolerates_user_namespace(config, roots) => {
            tracing::info!(err = %error, "Failed to create an oomWatcher (running in UserNS, ignoring)");
            Ok(None)
        }
        Err(error) => Err(AgentError::Layout(error)),
    }
}

/// Whether this is a user namespace and the configuration allows for it.
pub(crate) fn tolerates_user_namespace(config: &Config, roots: &Roots) -> bool {
    settings::allows_user_namespace(config) && in_user_namespace(roots)
}

/// Whether swap is on and memory of volumes cannot be kept out of it.
pub(crate) fn may_swap_volumes(roots: &Roots) -> bool {
    crate::host::swap_is_on(roots)
        && (in_user_namespace(roots) || !sys::mount::tmpfs_knows_noswap())
}

/// Whether user ids are mapped.
fn in_user_namespace(roots: &Roots) -> bool {
    let map = sys::fs::read_to_string(roots.proc.join("self/uid_map")).unwrap_or_default();
    map.split_whitespace().ne(["0", "0", "4294967295"])
}

/// What this kernel lacks that pods can do without.
pub(crate) fn soft_warning(host: &Host) -> Option<String> {
    let quota = ["cpu.cfs_period_us", "cpu.cfs_quota_us"];
    let limits =
        host.cgroups.is_v2() || quota.iter().all(|file| host.cgroups.has("cpu", "/", file));
    (!limits).then(|| "CPU hardcapping unsupported".to_owned())
}

/// How long the view of what runs may be without a success.
const VIEW_LIMIT: Duration = Duration::from_secs(180);
/// How often the age of a fault is said anew.
const FAULT_PERIOD: Duration = Duration::from_secs(10);

/// Tells the node when the view of what runs cannot be trusted, in upstream's words.
pub(crate) async fn view_faults(
    mut health: watch::Receiver<ViewHealth>,
    out: watch::Sender<Option<String>>,
    cancel: CancellationToken,
) {
    let mut good = None;
    loop {
        let seen = health.borrow_and_update().clone();
        if seen.audited && seen.audit_error.is_none() {
            good = Some(Instant::now());
        }
        let fault = fault(good.map(|at| at.elapsed()));
        out.send_if_modified(|known| {
            let changed = *known != fault;
            *known = fault;
            changed
        });
        tokio::select! {
            // Cancel-safe, all three: a token, a timer, a change that stays marked.
            () = cancel.cancelled() => return,
            () = tokio::time::sleep(FAULT_PERIOD) => {}
            changed = health.changed() => if changed.is_err() { return },
        }
    }
}

fn fault(last_success: Option<Duration>) -> Option<String> {
    let Some(age) = last_success else {
        return Some("PLEG is not healthy: pleg has yet to be successful".to_owned());
    };
    (age > VIEW_LIMIT).then(|| {
        format!(
            "PLEG is not healthy: pleg was last seen active {} ago; threshold is {}",
            GoDuration::from(age),
            GoDuration::from(VIEW_LIMIT)
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_view_is_at_fault_until_its_first_success_and_after_three_minutes_without_one() {
        let text = fault(None).unwrap();
        assert_eq!(text, "PLEG is not healthy: pleg has yet to be successful");
        assert_eq!(fault(Some(VIEW_LIMIT)), None);
        let text = fault(Some(Duration::from_millis(200_500))).unwrap();
        assert_eq!(
            text,
            "PLEG is not healthy: pleg was last seen active 3m20.5s ago; threshold is 3m0s"
        );
    }
}
