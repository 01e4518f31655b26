//! Node allocatable: limits of the top-level cgroups, and whether the reservation fits (kubelet:
//! `getCgroupConfig`, `validateNodeAllocatable`).

use super::{Limits, shares};
use std::collections::BTreeMap;
use units::Quantity;
use units::quantity::Format;

/// Amounts by resource: `cpu`, `memory`, `pid`, `hugepages-2Mi`, …
pub type ResourceList = BTreeMap<String, Quantity>;

/// Which amounts become limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Enforced {
    /// All.
    All,
    /// Only compressible resources: CPU.
    Compressible,
}

/// Limits of a cgroup for these amounts. `cpus` is the set of all CPUs if there are no exclusive ones.
pub fn list_limits(list: &ResourceList, enforced: Enforced, cpus: Option<&str>) -> Limits {
    let all = enforced == Enforced::All;
    let amount = |name: &str| list.get(name).filter(|_| all).map(|q| q.value());
    let hugepages = list.iter().filter(|_| all).filter_map(|(name, quantity)| {
        let size = super::pod::page_size_name(name.strip_prefix("hugepages-")?)?;
        Some((size, u64::try_from(quantity.value()).ok()?))
    });
    Limits {
        cpu_shares: list.get("cpu").map(|q| shares(q.milli_value())),
        memory_bytes: amount("memory"),
        pids: amount("pid"),
        hugetlb: Some(hugepages.collect()),
        cpuset_cpus: cpus.map(str::to_owned),
        ..Limits::default()
    }
}

/// What is left of `capacity` after both reservations; never below zero.
pub fn allocatable(
    capacity: &ResourceList,
    system: &ResourceList,
    kube: &ResourceList,
) -> ResourceList {
    let zero = Quantity::ZERO;
    let left = |name: &String, whole: &Quantity| {
        let taken = |list: &ResourceList| list.get(name).copied().unwrap_or(zero);
        let left = whole.saturating_sub(taken(system)).saturating_sub(taken(kube));
        if left.is_negative() { Quantity::new(0, whole.format()) } else { left }
    };
    capacity.iter().map(|(name, whole)| (name.clone(), left(name, whole))).collect()
}

/// Why the sum of `reserved` does not fit into `capacity`, in upstream's words.
pub fn over_reserved(capacity: &ResourceList, reserved: &[&ResourceList]) -> Option<String> {
    let faults: Vec<String> = capacity
        .iter()
        .filter_map(|(name, whole)| {
            let parts = reserved.iter().filter_map(|list| list.get(name));
            let parts: Vec<Quantity> = parts.copied().filter(|part| !part.is_zero()).collect();
            let sum = parts.iter().copied().reduce(Quantity::saturating_add)?;
            // CPU capacity is held in thousandths, reservations as they were written.
            let held = if parts.iter().all(is_whole) { Held::Whole } else { Held::Thousandths };
            let had =
                if name == "cpu" || !is_whole(whole) { Held::Thousandths } else { Held::Whole };
            (sum > *whole).then(|| {
                format!(
                    "Resource {name:?} has a reservation of {} but capacity of {}. Expected \
                     capacity >= reservation.",
                    dump(sum, held),
                    dump(*whole, had)
                )
            })
        })
        .collect();
    let all = faults.join(" ");
    (!faults.is_empty()).then(|| format!("invalid Node Allocatable configuration. {all}"))
}

fn is_whole(quantity: &Quantity) -> bool {
    quantity.value().saturating_mul(1000) == quantity.milli_value()
}

/// The unit in which Go holds an amount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Held {
    Whole,
    Thousandths,
}

/// A quantity as Go prints its struct: amount and scale, without a big number and without cached text.
fn dump(quantity: Quantity, held: Held) -> String {
    let (amount, scale) = match held {
        Held::Whole => (quantity.value(), 0),
        Held::Thousandths => (quantity.milli_value(), -3),
    };
    let format = match quantity.format() {
        Format::DecimalExponent => "DecimalExponent",
        Format::BinarySi => "BinarySI",
        Format::DecimalSi => "DecimalSI",
    };
    format!("{{{{{amount} {scale}}} {{<nil>}}  {format}}}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(pairs: &[(&str, &str)]) -> ResourceList {
        pairs.iter().map(|(name, text)| ((*name).to_owned(), text.parse().unwrap())).collect()
    }

    #[test]
    fn amounts_become_limits_and_compressible_ones_only_shares() {
        let amounts =
            list(&[("cpu", "500m"), ("memory", "1Gi"), ("pid", "100"), ("hugepages-2Mi", "4Mi")]);
        let all = list_limits(&amounts, Enforced::All, Some("0-1"));
        assert_eq!((all.cpu_shares, all.memory_bytes), (Some(512), Some(1 << 30)));
        assert_eq!((all.pids, all.cpuset_cpus.as_deref()), (Some(100), Some("0-1")));
        assert_eq!(all.hugetlb, Some(BTreeMap::from([("2MB".to_owned(), 4 << 20)])));
        let cpu = list_limits(&amounts, Enforced::Compressible, None);
        let only =
            Limits { cpu_shares: Some(512), hugetlb: Some(BTreeMap::new()), ..Limits::default() };
        assert_eq!(cpu, only);
    }

    #[test]
    fn what_is_left_for_pods_is_never_below_zero() {
        let capacity = list(&[("cpu", "2"), ("memory", "1Gi")]);
        let left = allocatable(&capacity, &list(&[("cpu", "500m")]), &list(&[("memory", "2Gi")]));
        assert_eq!((left["cpu"].milli_value(), left["memory"].value()), (1500, 0));
    }

    #[test]
    fn a_reservation_beyond_capacity_is_told_as_upstream_tells_it() {
        let capacity = list(&[("cpu", "2"), ("memory", "1Gi")]);
        assert_eq!(over_reserved(&capacity, &[&list(&[("memory", "1Gi")])]), None);
        let text =
            over_reserved(&capacity, &[&list(&[("memory", "1Gi")]), &list(&[("memory", "100Mi")])]);
        assert_eq!(
            text.unwrap(),
            "invalid Node Allocatable configuration. Resource \"memory\" has a reservation of \
             {{1178599424 0} {<nil>}  BinarySI} but capacity of {{1073741824 0} {<nil>}  BinarySI}. \
             Expected capacity >= reservation."
        );
        for (system, kube, amount) in
            [("999", "0", "999 0"), ("1500m", "1", "2500 -3"), ("2", "3", "5 0")]
        {
            let text =
                over_reserved(&capacity, &[&list(&[("cpu", system)]), &list(&[("cpu", kube)])]);
            let told = format!(
                "reservation of {{{{{amount}}} {{<nil>}}  DecimalSI}} but capacity of {{{{2000 -3}} "
            );
            assert!(text.as_ref().unwrap().contains(&told), "{text:?}");
        }
    }
}
