//! `reservedMemory`: memory of each NUMA node that is reserved for the system.

use super::{MemoryFault, NodeFacts, is_memory};
use crate::resources::Amounts;
use std::collections::{BTreeMap, BTreeSet};
use units::{SpelledQuantity, strconv};

/// `reservedMemory`: amounts by NUMA node.
pub type NodeReservations = BTreeMap<i32, BTreeMap<String, SpelledQuantity>>;

/// Bytes by NUMA node and resource, if they add up to the node's whole reservation (upstream:
/// `getSystemReservedMemory`).
pub fn system_reserved(
    nodes: &[NodeFacts],
    of_node: &Amounts,
    reservations: &NodeReservations,
) -> Result<BTreeMap<u32, BTreeMap<String, u64>>, MemoryFault> {
    let known = |id: i32| nodes.iter().any(|node| i64::from(node.id) == i64::from(id));
    let mut totals = Amounts::new();
    for (id, limits) in reservations {
        if !known(*id) {
            return Err(MemoryFault(format!(
                "the reserved memory configuration references a NUMA node {id} that does not exist on \
                 this machine"
            )));
        }
        for (kind, SpelledQuantity { amount, .. }) in limits {
            let before = totals.get(kind).copied();
            let sum = before.map_or(*amount, |before| amount.saturating_add(before));
            totals.insert(kind.clone(), sum);
        }
    }
    let kinds: BTreeSet<&String> =
        totals.keys().chain(of_node.keys().filter(|kind| is_memory(kind))).collect();
    for kind in kinds {
        let reserved = totals.get(kind).copied().unwrap_or_default();
        let wanted = of_node.get(kind).copied().unwrap_or_default();
        if reserved.nanos() != wanted.nanos() {
            return Err(MemoryFault(format!(
                "the total amount {} of type {} is not equal to the value {} determined by Node \
                 Allocatable feature",
                strconv::quote(&reserved.to_string()),
                strconv::quote(kind),
                strconv::quote(&wanted.to_string())
            )));
        }
    }
    let mut bytes: BTreeMap<u32, BTreeMap<String, u64>> =
        nodes.iter().map(|node| (node.id, BTreeMap::new())).collect();
    for (id, limits) in reservations {
        let Ok(id) = u32::try_from(*id) else { continue };
        for (kind, amount) in limits {
            // Go asks for a whole number without reducing the fraction it holds.
            let Some(value) = amount.whole else {
                return Err(MemoryFault(
                    "could not covert a variable of type Quantity to int64".to_owned(),
                ));
            };
            let value = u64::try_from(value).unwrap_or_default();
            bytes.entry(id).or_default().insert(kind.clone(), value);
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use units::Quantity;

    #[test]
    fn reservations_must_add_up_on_nodes_that_exist() {
        let nodes = [
            NodeFacts { id: 0, ..NodeFacts::default() },
            NodeFacts { id: 1, ..NodeFacts::default() },
        ];
        let amount = |text: &str| text.parse::<Quantity>().unwrap();
        let of_node =
            Amounts::from([("memory".into(), amount("1Gi")), ("cpu".into(), amount("1"))]);
        let reserve = |pairs: &[(i32, &str)]| -> NodeReservations {
            pairs
                .iter()
                .map(|(id, text)| (*id, BTreeMap::from([("memory".into(), text.parse().unwrap())])))
                .collect()
        };
        let good =
            system_reserved(&nodes, &of_node, &reserve(&[(0, "512Mi"), (1, "512Mi")])).unwrap();
        assert_eq!(good[&1]["memory"], 512 << 20);
        let fault = system_reserved(&nodes, &of_node, &reserve(&[(0, "512Mi")])).unwrap_err();
        assert_eq!(
            fault.to_string(),
            r#"the total amount "512Mi" of type "memory" is not equal to the value "1Gi" determined by Node Allocatable feature"#
        );
        // The right amount, but Go sees no integer in the second.
        let fault = system_reserved(&nodes, &of_node, &reserve(&[(0, "512Mi"), (1, "0.5Gi")]));
        assert_eq!(
            fault.unwrap_err().to_string(),
            "could not covert a variable of type Quantity to int64"
        );
        let fault = system_reserved(&nodes, &of_node, &reserve(&[(2, "1Gi")])).unwrap_err();
        assert_eq!(
            fault.to_string(),
            "the reserved memory configuration references a NUMA node 2 that does not exist on this machine"
        );
    }
}
