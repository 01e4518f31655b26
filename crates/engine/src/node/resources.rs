//! Capacity and allocatable.

use super::facts::{NodeFacts, NodeSettings};
use api::core::v1::NodeStatus;
use api::machinery::api::resource::Quantity as ApiQuantity;
use std::collections::BTreeMap;
use units::{Format, Quantity};

pub(super) type List = BTreeMap<String, ApiQuantity>;

pub(super) fn set(status: &mut NodeStatus, settings: &NodeSettings, facts: &NodeFacts) {
    let capacity = status.capacity.get_or_insert_default();
    fill_capacity(capacity, settings, facts);
    let capacity = capacity.clone();
    let allocatable = status.allocatable.get_or_insert_default();
    allocatable.retain(|name, _| capacity.contains_key(name) || !is_extended(name));
    for (name, amount) in &capacity {
        let amount = parse(amount);
        let left = amount.saturating_sub(settings.reservation.of(name, amount));
        put(allocatable, name, not_negative(left));
    }
    for (name, amount) in &facts.devices.allocatable {
        put(allocatable, name, *amount);
    }
    for (_, amount) in capacity.iter().filter(|(name, _)| is_huge_page(name)) {
        let memory = allocatable.get("memory").map(parse).unwrap_or_default();
        put(allocatable, "memory", not_negative(memory.saturating_sub(parse(amount))));
    }
}

fn fill_capacity(capacity: &mut List, settings: &NodeSettings, facts: &NodeFacts) {
    let Some(machine) = &facts.machine else {
        put(capacity, "cpu", Quantity::ZERO);
        put(capacity, "memory", Quantity::from_bytes(0));
        put(capacity, "pods", count(settings.max_pods));
        return;
    };
    let cores = signed(machine.cores);
    put(capacity, "cpu", count(cores));
    put(capacity, "memory", Quantity::from_bytes(signed(machine.memory_bytes)));
    for pages in &machine.huge_pages {
        let page = Quantity::from_bytes(signed(pages.page_bytes));
        let total = pages.page_bytes.saturating_mul(pages.count);
        put(capacity, &format!("hugepages-{page}"), Quantity::from_bytes(signed(total)));
    }
    let pods = match settings.pods_per_core {
        per_core if per_core > 0 => cores.saturating_mul(per_core).min(settings.max_pods),
        _ => settings.max_pods,
    };
    put(capacity, "pods", count(pods));
    if let (true, Some(bytes)) = (settings.local_storage_isolation, facts.ephemeral_storage_bytes) {
        put(capacity, "ephemeral-storage", Quantity::from_bytes(signed(bytes)));
    }
    for (name, amount) in &facts.devices.capacity {
        put(capacity, name, *amount);
    }
    for name in &facts.devices.removed {
        put(capacity, name, Quantity::ZERO);
    }
}

pub(super) fn parse(quantity: &ApiQuantity) -> Quantity {
    quantity.0.parse().unwrap_or_default()
}

pub(super) fn put(list: &mut List, name: &str, amount: Quantity) {
    list.insert(name.to_owned(), ApiQuantity(amount.to_string()));
}

pub(super) fn is_huge_page(name: &str) -> bool {
    name.starts_with("hugepages-")
}

/// Upstream: `IsExtendedResourceName`.
pub(super) fn is_extended(name: &str) -> bool {
    let native = !name.contains('/') || name.contains("kubernetes.io/");
    !native && !name.starts_with("requests.")
}

fn count(number: i64) -> Quantity {
    Quantity::new(number, Format::DecimalSi)
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn not_negative(quantity: Quantity) -> Quantity {
    if quantity.is_negative() { Quantity::new(0, quantity.format()) } else { quantity }
}
