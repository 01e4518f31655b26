//! Graceful node shutdown: which pods end when, and how long they get (upstream: `nodeshutdown`).
//!
//! Promises: groups end in ascending priority; no pod gets more than its group's time; the sum of all groups is what the
//! inhibitor lock must allow.

use crate::pod::life::StatusOverride;
use api::core::v1::{Pod, PodCondition};
use std::time::Duration;

/// `status.reason` of the pods.
const REASON: &str = "Terminated";
/// `status.message` of the pods.
pub const MESSAGE: &str = "Pod was terminated in response to imminent node shutdown.";

/// Time for pods of a priority and above, up to the next group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct PriorityPeriod {
    /// Lowest priority of the group.
    pub priority: i32,
    /// Its time in whole seconds.
    pub seconds: i64,
}

/// The periods in ascending priority; empty when graceful shutdown is off.
pub fn periods(
    by_priority: &[PriorityPeriod],
    total: Duration,
    critical: Duration,
) -> Vec<PriorityPeriod> {
    let mut list = by_priority.to_vec();
    if list.is_empty() {
        let seconds = |time: Duration| i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
        if total.is_zero() {
            return list;
        }
        let regular = total.saturating_sub(critical);
        list = vec![
            PriorityPeriod { priority: 0, seconds: seconds(regular) },
            PriorityPeriod {
                priority: crate::admission::CRITICAL_PRIORITY,
                seconds: seconds(critical),
            },
        ];
    }
    list.sort_unstable();
    list
}

/// How long the whole sequence takes: what the inhibitor must allow.
pub fn total(periods: &[PriorityPeriod]) -> Duration {
    let seconds = periods.iter().map(|p| p.seconds).fold(0_i64, i64::saturating_add);
    Duration::from_secs(u64::try_from(seconds).unwrap_or_default())
}

/// Pods that end together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    /// How long the group may take, unmounting included.
    pub period: Duration,
    /// Index into the list that was given, and the grace override in seconds.
    pub pods: Vec<(usize, i64)>,
}

/// Sorts pods into groups, first to end first; groups without pods are left out.
pub fn groups(periods: &[PriorityPeriod], pods: &[&Pod]) -> Vec<Group> {
    let mut filled: Vec<Group> = periods
        .iter()
        .map(|p| Group {
            period: Duration::from_secs(u64::try_from(p.seconds).unwrap_or_default()),
            pods: Vec::new(),
        })
        .collect();
    for (index, pod) in pods.iter().enumerate() {
        let spec = pod.spec.as_ref();
        let priority = spec.and_then(|s| s.priority).unwrap_or_default();
        let place = periods.iter().rposition(|p| p.priority <= priority).unwrap_or_default();
        let (Some(group), Some(period)) = (filled.get_mut(place), periods.get(place)) else {
            continue;
        };
        let own = spec.and_then(|s| s.termination_grace_period_seconds);
        group.pods.push((index, own.map_or(period.seconds, |own| own.min(period.seconds))));
    }
    filled.retain(|group| !group.pods.is_empty());
    filled
}

/// The status of a pod that is terminated by the shutdown.
pub fn status(pod: &Pod) -> StatusOverride {
    StatusOverride {
        reason: REASON.to_owned(),
        message: MESSAGE.to_owned(),
        condition: Some(PodCondition {
            type_: "DisruptionTarget".to_owned(),
            status: "True".to_owned(),
            reason: Some("TerminationByKubelet".to_owned()),
            message: Some(MESSAGE.to_owned()),
            observed_generation: pod.metadata.generation.filter(|g| *g != 0),
            ..PodCondition::default()
        }),
        keep_succeeded: true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::testing::pod;

    fn with(priority: Option<i32>, grace: i64) -> Pod {
        let mut pod = pod("a");
        let spec = pod.spec.as_mut().unwrap();
        spec.priority = priority;
        spec.termination_grace_period_seconds = Some(grace);
        pod
    }

    #[test]
    fn critical_pods_end_last_in_their_own_time() {
        let periods = periods(&[], Duration::from_secs(30), Duration::from_secs(10));
        assert_eq!(total(&periods), Duration::from_secs(30));
        let pods = [with(Some(2_000_001_000), 60), with(None, 5), with(Some(100), 60)];
        let refs: Vec<&Pod> = pods.iter().collect();
        let found = groups(&periods, &refs);
        assert_eq!(
            found[0],
            Group { period: Duration::from_secs(20), pods: vec![(1, 5), (2, 20)] }
        );
        assert_eq!(found[1], Group { period: Duration::from_secs(10), pods: vec![(0, 10)] });
    }

    #[test]
    fn priorities_below_all_groups_go_with_the_lowest() {
        let list = [
            PriorityPeriod { priority: 1000, seconds: 10 },
            PriorityPeriod { priority: 100, seconds: 20 },
        ];
        let periods = periods(&list, Duration::ZERO, Duration::ZERO);
        let pods = [with(Some(-5), 60), with(Some(999), 60)];
        let refs: Vec<&Pod> = pods.iter().collect();
        let found = groups(&periods, &refs);
        assert_eq!(
            found,
            [Group { period: Duration::from_secs(20), pods: vec![(0, 20), (1, 20)] }]
        );
    }

    #[test]
    fn without_a_period_nothing_is_planned() {
        let periods = periods(&[], Duration::ZERO, Duration::ZERO);
        assert!(groups(&periods, &[&with(None, 1)]).is_empty());
    }

    #[test]
    fn a_pod_that_succeeded_stays_so() {
        let mut status =
            api::core::v1::PodStatus { phase: Some("Succeeded".to_owned()), ..Default::default() };
        crate::status::apply_override(&mut status, &super::status(&pod("a")));
        assert_eq!(status.phase.as_deref(), Some("Succeeded"));
        assert_eq!(status.reason.as_deref(), Some("Terminated"));
    }
}
