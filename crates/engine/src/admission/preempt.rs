//! Which pods are preempted so that a critical one fits (upstream: `preemption`).
//!
//! Higher QoS is spared: guaranteed pods are chosen only for what all others cannot free, then burstable ones, then best
//! effort.

use super::predicates::whole;
use super::{is_critical, priority};
use crate::pod::life::StatusOverride;
use crate::resources::{QosClass, compared_request, qos_class};
use api::core::v1::{Pod, PodCondition};

/// Reason and message of a pre-empted pod's event and status.
pub const REASON: &str = "Preempting";
/// Message of a pre-empted pod's event and status.
pub const MESSAGE: &str = "Preempted in order to admit critical pod";

/// A resource that is short, and by how much.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Need {
    /// Its name.
    pub resource: String,
    /// What is missing.
    pub amount: i64,
}

/// Pods to end, by index into the list that was given, in order; and the resource that the metric names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Victims {
    /// Indexes.
    pub pods: Vec<usize>,
    /// The first resource that was short.
    pub signal: String,
}

/// No set of pods frees enough.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "error finding a set of pods to preempt: no set of running pods found to reclaim resources: {0}"
)]
pub struct NotEnough(String);

/// The status of a pre-empted pod.
pub fn status(generation: Option<i64>) -> StatusOverride {
    StatusOverride {
        reason: REASON.to_owned(),
        message: MESSAGE.to_owned(),
        condition: Some(PodCondition {
            type_: "DisruptionTarget".to_owned(),
            status: "True".to_owned(),
            reason: Some("TerminationByKubelet".to_owned()),
            message: Some("Pod was preempted by Kubelet to accommodate a critical pod.".to_owned()),
            observed_generation: generation,
            ..PodCondition::default()
        }),
        keep_succeeded: false,
    }
}

/// Chooses the pods to end.
pub fn choose(pod: &Pod, others: &[&Pod], needs: &[Need]) -> Result<Victims, NotEnough> {
    let class = |wanted: QosClass| -> Vec<usize> {
        (0..others.len())
            .filter(|i| {
                others.get(*i).is_some_and(|o| may_preempt(pod, o) && qos_class(o, true) == wanted)
            })
            .collect()
    };
    let best_effort = class(QosClass::BestEffort);
    let burstable = class(QosClass::Burstable);
    let guaranteed = class(QosClass::Guaranteed);
    let crowd = Crowd { others };

    let everyone: Vec<usize> = [&best_effort[..], &burstable[..], &guaranteed[..]].concat();
    crowd.fail_if_short(&crowd.rest(needs, &everyone))?;
    let without = crowd.rest(needs, &[&best_effort[..], &burstable[..]].concat());
    let chosen_guaranteed = crowd.nearest(guaranteed, without)?;
    let without = crowd.rest(needs, &[&best_effort[..], &chosen_guaranteed[..]].concat());
    let chosen_burstable = crowd.nearest(burstable, without)?;
    let without = crowd.rest(needs, &[&chosen_burstable[..], &chosen_guaranteed[..]].concat());
    let chosen_best_effort = crowd.nearest(best_effort, without)?;
    Ok(Victims {
        pods: [chosen_best_effort, chosen_burstable, chosen_guaranteed].concat(),
        signal: needs.first().map(|n| n.resource.clone()).unwrap_or_default(),
    })
}

fn may_preempt(pod: &Pod, other: &Pod) -> bool {
    if is_critical(pod) && !is_critical(other) {
        return true;
    }
    priority(pod).zip(priority(other)).is_some_and(|(own, theirs)| own > theirs)
}

struct Crowd<'a> {
    others: &'a [&'a Pod],
}

impl Crowd<'_> {
    fn request(&self, index: usize, resource: &str) -> i64 {
        if resource == "pods" {
            return 1;
        }
        let request = self.others.get(index).map(|pod| compared_request(pod, resource));
        request.map_or(0, |amount| whole(resource, amount))
    }

    /// What is still needed once these pods are gone.
    fn rest(&self, needs: &[Need], gone: &[usize]) -> Vec<Need> {
        needs
            .iter()
            .map(|need| {
                let freed = gone.iter().map(|i| self.request(*i, &need.resource));
                let freed = freed.fold(0_i64, i64::saturating_add);
                Need { amount: need.amount.saturating_sub(freed), ..need.clone() }
            })
            .filter(|need| need.amount > 0)
            .collect()
    }

    fn fail_if_short(&self, needs: &[Need]) -> Result<(), NotEnough> {
        if needs.is_empty() {
            return Ok(());
        }
        let list: String =
            needs.iter().map(|n| format!("(res: {}, q: {}), ", n.resource, n.amount)).collect();
        Err(NotEnough(format!("[{list}]")))
    }

    /// Repeatedly takes the pod whose requests are closest to what is still needed.
    fn nearest(&self, mut pool: Vec<usize>, mut needs: Vec<Need>) -> Result<Vec<usize>, NotEnough> {
        let mut chosen = Vec::new();
        while !needs.is_empty() {
            let mut best: Option<(f64, usize)> = None;
            for (place, index) in pool.iter().enumerate() {
                let distance = self.distance(*index, &needs);
                let better = match best {
                    None => true,
                    Some((least, at)) => {
                        distance < least
                            || (distance <= least
                                && pool.get(at).is_some_and(|b| self.smaller(*index, *b)))
                    }
                };
                if better {
                    best = Some((distance, place));
                }
            }
            let Some((_, place)) = best else {
                self.fail_if_short(&needs)?;
                return Ok(chosen);
            };
            let index = pool.swap_remove(place);
            needs = self.rest(&needs, &[index]);
            chosen.push(index);
        }
        Ok(chosen)
    }

    #[expect(clippy::cast_precision_loss, reason = "only an order is wanted, as upstream has it")]
    fn distance(&self, index: usize, needs: &[Need]) -> f64 {
        needs
            .iter()
            .map(|need| {
                let missing = need.amount.saturating_sub(self.request(index, &need.resource));
                (missing.max(0) as f64 / need.amount as f64).powi(2)
            })
            .sum()
    }

    /// Memory decides first, then CPU; a tie prefers the later one.
    fn smaller(&self, a: usize, b: usize) -> bool {
        let of = |i| (self.request(i, "memory"), self.request(i, "cpu"));
        of(a) <= of(b)
    }
}
