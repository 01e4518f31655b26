//! What is reserved from pods (upstream: `GetNodeAllocatableReservation`).

use std::collections::BTreeMap;
use units::Quantity;

/// A hard eviction threshold.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Threshold {
    /// An absolute amount.
    Amount(Quantity),
    /// A share of the capacity, in single precision as upstream keeps it.
    Share(f32),
}

impl Threshold {
    /// The amount, given the capacity it is a share of.
    pub fn amount(self, capacity: Quantity) -> Quantity {
        match self {
            Self::Amount(quantity) => quantity,
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_precision_loss,
                reason = "upstream multiplies in floating point and cuts off"
            )]
            Self::Share(share) => {
                Quantity::from_bytes((capacity.value() as f64 * f64::from(share)) as i64)
            }
        }
    }
}

/// Reserved resources and hard eviction thresholds.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Reservation {
    /// `systemReserved`.
    pub system: BTreeMap<String, Quantity>,
    /// `kubeReserved`.
    pub kube: BTreeMap<String, Quantity>,
    /// Hard threshold of `memory.available`.
    pub memory_eviction: Option<Threshold>,
    /// Hard threshold of `nodefs.available`.
    pub storage_eviction: Option<Threshold>,
}

impl Reservation {
    /// The reservation of a resource with this capacity.
    pub fn of(&self, resource: &str, capacity: Quantity) -> Quantity {
        let given = |map: &BTreeMap<String, Quantity>| map.get(resource).copied();
        let eviction = match resource {
            "memory" => self.memory_eviction,
            "ephemeral-storage" => self.storage_eviction,
            _ => None,
        };
        [given(&self.system), given(&self.kube), eviction.map(|t| t.amount(capacity))]
            .into_iter()
            .flatten()
            .fold(Quantity::ZERO, Quantity::saturating_add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_taken_in_single_precision_and_cut_off() {
        let capacity: Quantity = "264212084Ki".parse().unwrap();
        let kept = Threshold::Share(0.01).amount(capacity);
        assert_eq!(capacity.saturating_sub(kept).to_string(), "267847642337");
    }

    #[test]
    fn system_kube_and_eviction_add_up() {
        let map = |text: &str| BTreeMap::from([("memory".into(), text.parse().unwrap())]);
        let reservation = Reservation {
            system: map("100Mi"),
            kube: map("200Mi"),
            memory_eviction: Some(Threshold::Amount("100Mi".parse().unwrap())),
            storage_eviction: None,
        };
        let kept = reservation.of("memory", Quantity::from_bytes(1 << 30));
        assert_eq!(kept.to_string(), "400Mi");
        assert!(reservation.of("cpu", Quantity::ZERO).is_zero());
    }
}
