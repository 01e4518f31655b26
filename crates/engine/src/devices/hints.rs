//! NUMA hints of devices (upstream: `GetTopologyHints`, `generateDeviceTopologyHints`).

use super::state::DeviceState;
use super::{Device, DeviceIds, Held};
use crate::topology::{Hint, NumaMask, ResourceHints, masks_of};
use std::collections::{BTreeMap, BTreeSet};

impl DeviceState {
    /// Topology hints for a container's requests.
    pub fn hints(
        &self,
        uid: &str,
        container: &str,
        wishes: &BTreeMap<String, usize>,
    ) -> ResourceHints {
        let held =
            |resource: &str| self.held(uid, container, resource).map(Held::ids).unwrap_or_default();
        let reusable = |resource: &str| match &self.reuse {
            (pod, devices) if pod == uid => devices.get(resource).cloned().unwrap_or_default(),
            _ => DeviceIds::new(),
        };
        self.hints_with(wishes, held, reusable)
    }

    /// Topology hints for a pod's requests.
    pub fn pod_hints(&self, uid: &str, wishes: &BTreeMap<String, usize>) -> ResourceHints {
        let held = |resource: &str| {
            let containers = self.pods.get(uid).into_iter().flat_map(BTreeMap::values);
            containers.filter_map(|held| held.get(resource)).flat_map(Held::ids).collect()
        };
        self.hints_with(wishes, held, |_| DeviceIds::new())
    }

    fn hints_with(
        &self,
        wishes: &BTreeMap<String, usize>,
        held: impl Fn(&str) -> DeviceIds,
        reusable: impl Fn(&str) -> DeviceIds,
    ) -> ResourceHints {
        let mut hints = ResourceHints::new();
        for (resource, count) in wishes.iter().filter(|(resource, _)| self.is_device(resource)) {
            let found = if !self.has_topology(resource) {
                None
            } else {
                let held = held(resource);
                Some(match held.len() {
                    0 => self.free_hints(resource, &reusable(resource), *count),
                    number if number != *count => Vec::new(),
                    _ => self.generate(resource, &held, &DeviceIds::new(), *count),
                })
            };
            hints.insert(resource.clone(), found);
        }
        hints
    }

    fn free_hints(&self, resource: &str, reusable: &DeviceIds, count: usize) -> Vec<Hint> {
        let healthy = self.healthy.get(resource).cloned().unwrap_or_default();
        let in_use = self.allocated.get(resource).cloned().unwrap_or_default();
        let available: DeviceIds = healthy.difference(&in_use).cloned().collect();
        if available.union(reusable).count() < count {
            return Vec::new();
        }
        self.generate(resource, &available, reusable, count)
    }

    fn has_topology(&self, resource: &str) -> bool {
        self.all.get(resource).is_some_and(|all| all.values().any(Device::has_topology))
    }

    fn generate(
        &self,
        resource: &str,
        available: &DeviceIds,
        reusable: &DeviceIds,
        count: usize,
    ) -> Vec<Hint> {
        let empty = BTreeMap::new();
        let devices = self.all.get(resource).unwrap_or(&empty);
        let known: BTreeSet<u32> = self.numa.iter().copied().collect();
        let named = devices.values().flat_map(Device::nodes);
        let named: BTreeSet<u32> = named.filter_map(|node| u32::try_from(*node).ok()).collect();
        let mut nodes: Vec<u32> = named.intersection(&known).copied().collect();
        if nodes.is_empty() {
            nodes.clone_from(&self.numa);
        }
        let on = |mask: NumaMask, device: &Device| {
            let mut ids = device.nodes().iter();
            ids.any(|node| u32::try_from(*node).is_ok_and(|node| mask.contains(node)))
        };
        let mut smallest = u32::try_from(nodes.len()).unwrap_or(u32::MAX);
        let mut masks = Vec::new();
        for mask in masks_of(&nodes) {
            if devices.values().filter(|device| on(mask, device)).count() >= count {
                smallest = smallest.min(mask.count());
            }
            // The mask must include all reusable devices; those without topology fit any mask.
            let placed = |id: &String| devices.get(id).filter(|device| device.nodes.is_some());
            let again: Vec<&Device> = reusable.iter().filter_map(placed).collect();
            if !again.iter().all(|device| on(mask, device)) {
                continue;
            }
            let free = available.iter().filter_map(|id| devices.get(id));
            if again.len() + free.filter(|device| on(mask, device)).count() >= count {
                masks.push(mask);
            }
        }
        masks.into_iter().map(|mask| Hint::new(mask, mask.count() == smallest)).collect()
    }
}
