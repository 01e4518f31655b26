//! The state of devices, and how events change it.

use super::{Device, DeviceIds, DevicesOf};
use crate::node::DeviceFacts;
use proto::device_plugin_v1beta1::ContainerAllocateResponse;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use units::{Format, Quantity};

/// How long a resource is still reported after its plugin has gone.
pub const GRACE: Duration = Duration::from_secs(5 * 60);

/// The node a device without topology is counted under in the checkpoint.
pub(super) const NO_NODE: i64 = -1;

/// Which optional calls a plugin requires.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PluginOptions {
    /// `PreStartContainer` before each start.
    pub pre_start: bool,
    /// `GetPreferredAllocation` before each allocation.
    pub preferred: bool,
}

/// A resource's plugin.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Endpoint {
    /// `None` until the plugin has registered with this agent.
    pub(super) options: Option<PluginOptions>,
    /// When it disconnected.
    pub(super) stopped: Option<Duration>,
    /// It has listed its devices since it registered.
    pub(super) listed: bool,
}

/// Devices of one resource in one container.
#[derive(Debug, Clone, PartialEq)]
pub struct Held {
    /// Ids by NUMA node, those without topology under -1.
    pub per_node: BTreeMap<i64, Vec<String>>,
    /// The plugin's Allocate response.
    pub answer: ContainerAllocateResponse,
    /// The response as it is written to the checkpoint.
    pub bytes: Vec<u8>,
}

impl Held {
    /// Its devices.
    pub fn ids(&self) -> DeviceIds {
        self.per_node.values().flatten().cloned().collect()
    }
}

/// Devices of a container by resource.
pub(super) type OfContainer = BTreeMap<String, Held>;

/// Numbers of devices by resource.
pub type Amounts = BTreeMap<String, i64>;

/// All devices and their assignments. Maps are keyed by resource name unless their name says otherwise.
#[derive(Debug, Clone, Default)]
pub struct DeviceState {
    pub(super) numa: Vec<u32>,
    pub(super) endpoints: BTreeMap<String, Endpoint>,
    pub(super) all: BTreeMap<String, BTreeMap<String, Device>>,
    pub(super) healthy: BTreeMap<String, DeviceIds>,
    pub(super) unhealthy: BTreeMap<String, DeviceIds>,
    /// Allocated, or chosen for a running Allocate call.
    pub(super) allocated: BTreeMap<String, DeviceIds>,
    /// By pod UID and container name.
    pub(super) pods: BTreeMap<String, BTreeMap<String, OfContainer>>,
    /// Devices of init containers of the pod being admitted, which its later containers reuse.
    pub(super) reuse: (String, BTreeMap<String, DeviceIds>),
    /// Resources whose plugin did not register again in time.
    dropped: BTreeSet<String>,
}

impl DeviceState {
    /// An empty state for a machine with these NUMA nodes.
    pub fn new(numa: Vec<u32>) -> Self {
        Self { numa, ..Self::default() }
    }

    /// A plugin has connected.
    pub fn connected(&mut self, resource: &str, options: PluginOptions) {
        let endpoint = Endpoint { options: Some(options), stopped: None, listed: false };
        self.endpoints.insert(resource.to_owned(), endpoint);
    }

    /// A plugin has disconnected: its devices count as unhealthy.
    pub fn disconnected(&mut self, resource: &str, now: Duration) {
        let Some(endpoint) = self.endpoints.get_mut(resource) else { return };
        endpoint.stopped = Some(now);
        let healthy = self.healthy.entry(resource.to_owned()).or_default();
        let healthy = std::mem::take(healthy);
        self.unhealthy.entry(resource.to_owned()).or_default().extend(healthy);
    }

    /// A plugin's new list; returns the UIDs of pods whose devices changed their health or came back.
    pub fn listed(&mut self, resource: &str, devices: Vec<Device>) -> BTreeSet<String> {
        let old = self.all.remove(resource).unwrap_or_default();
        let changed = devices.iter().filter(|device| {
            old.get(&device.id).is_none_or(|before| before.healthy != device.healthy)
        });
        let touched = changed.filter_map(|device| self.owner_of(&device.id)).collect();
        let ids = |healthy: bool| -> DeviceIds {
            devices.iter().filter(|d| d.healthy == healthy).map(|d| d.id.clone()).collect()
        };
        self.dropped.remove(resource);
        if let Some(endpoint) = self.endpoints.get_mut(resource) {
            endpoint.listed = true;
        }
        self.healthy.insert(resource.to_owned(), ids(true));
        self.unhealthy.insert(resource.to_owned(), ids(false));
        let all = devices.into_iter().map(|device| (device.id.clone(), device)).collect();
        self.all.insert(resource.to_owned(), all);
        touched
    }

    fn owner_of(&self, id: &str) -> Option<String> {
        let has = |held: &Held| held.per_node.values().flatten().any(|own| own == id);
        let pod = self.pods.iter().find(|(_, containers)| {
            containers.values().any(|resources| resources.values().any(has))
        });
        pod.map(|(uid, _)| uid.clone())
    }

    /// The node's extended resources. Resources whose plugin has been gone for too long are dropped; the second value
    /// says whether any was, which must be checkpointed.
    pub fn facts(&mut self, now: Duration) -> (DeviceFacts, bool) {
        let names: BTreeSet<String> =
            self.healthy.keys().chain(self.unhealthy.keys()).cloned().collect();
        let mut facts = DeviceFacts::default();
        let mut changed = false;
        for name in names {
            let gone = match self.endpoints.get(&name) {
                None => true,
                Some(endpoint) => endpoint.stopped.is_some_and(|at| now.saturating_sub(at) > GRACE),
            };
            if gone {
                changed = true;
                self.endpoints.remove(&name);
                self.healthy.remove(&name);
                self.unhealthy.remove(&name);
                self.dropped.insert(name);
                continue;
            }
            let healthy = self.healthy.get(&name).map_or(0, BTreeSet::len);
            let broken = self.unhealthy.get(&name).map_or(0, BTreeSet::len);
            facts.capacity.insert(name.clone(), count(healthy + broken));
            facts.allocatable.insert(name, count(healthy));
        }
        facts.removed = self.dropped.iter().cloned().collect();
        (facts, changed)
    }

    /// When the next resource is to be dropped.
    pub fn next_drop(&self) -> Option<Duration> {
        self.endpoints.values().filter_map(|endpoint| endpoint.stopped).min().map(|at| at + GRACE)
    }

    /// Frees the devices of pods that are not active; returns whether there were any.
    pub fn forget_all_but(&mut self, active: impl Fn(&str) -> bool) -> bool {
        let before = self.pods.len();
        self.pods.retain(|uid, _| active(uid));
        let changed = self.pods.len() != before;
        if changed {
            self.recount();
        }
        changed
    }

    /// Frees devices that were chosen but not allocated.
    pub fn recount(&mut self) {
        let mut allocated: BTreeMap<String, DeviceIds> = BTreeMap::new();
        for (resource, held) in self.pods.values().flat_map(BTreeMap::values).flatten() {
            allocated.entry(resource.clone()).or_default().extend(held.ids());
        }
        self.allocated = allocated;
    }

    /// Records devices that a plugin has allocated to a container.
    pub fn given(
        &mut self,
        (uid, container): (&str, &str),
        resource: &str,
        ids: &DeviceIds,
        (answer, bytes): (ContainerAllocateResponse, Vec<u8>),
    ) {
        let mut per_node: BTreeMap<i64, Vec<String>> = BTreeMap::new();
        // A recount during the call may have removed them.
        self.allocated.entry(resource.to_owned()).or_default().extend(ids.iter().cloned());
        for id in ids {
            let device = self.all.get(resource).and_then(|devices| devices.get(id));
            let nodes = device.map(Device::nodes).unwrap_or_default();
            let nodes = if nodes.is_empty() { &[NO_NODE][..] } else { nodes };
            for node in nodes {
                per_node.entry(*node).or_default().push(id.clone());
            }
        }
        let of_pod = self.pods.entry(uid.to_owned()).or_default();
        let of_container = of_pod.entry(container.to_owned()).or_default();
        of_container.insert(resource.to_owned(), Held { per_node, answer, bytes });
    }

    /// What a container has of a resource.
    pub fn held(&self, uid: &str, container: &str, resource: &str) -> Option<&Held> {
        self.pods.get(uid)?.get(container)?.get(resource)
    }

    /// Whether a plugin offers or has offered this resource.
    pub fn is_device(&self, resource: &str) -> bool {
        self.healthy.contains_key(resource) || self.allocated.contains_key(resource)
    }

    /// The options of the resource's plugin; `None` if it is not registered.
    pub fn options(&self, resource: &str) -> Option<PluginOptions> {
        self.endpoints.get(resource).map(|endpoint| endpoint.options.unwrap_or_default())
    }

    /// Those of these resources whose plugin is gone, or has registered without listing its devices yet, and may
    /// still come back.
    pub fn absent_plugins<'a>(&self, resources: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
        let is_late = |resource: &&str| {
            let endpoint = self.endpoints.get(*resource);
            endpoint.is_some_and(|endpoint| endpoint.stopped.is_some() || !endpoint.listed)
        };
        resources.into_iter().filter(is_late).collect()
    }

    /// The number of allocated devices of each resource, for a pod that has some already: its admission treats the
    /// node as having at least these (upstream: `sanitizeNodeAllocatable`).
    pub fn owed(&self, uid: &str) -> Amounts {
        if !self.pods.contains_key(uid) {
            return Amounts::new();
        }
        let number = |ids: &DeviceIds| i64::try_from(ids.len()).unwrap_or(i64::MAX);
        self.allocated.iter().map(|(resource, ids)| (resource.clone(), number(ids))).collect()
    }

    /// The devices of a container with their NUMA nodes.
    pub fn devices_of(&self, uid: &str, container: &str) -> DevicesOf {
        let held = self.pods.get(uid).and_then(|containers| containers.get(container));
        let mut all = DevicesOf::new();
        for (resource, held) in held.into_iter().flatten() {
            let devices: &mut BTreeMap<String, Vec<i64>> = all.entry(resource.clone()).or_default();
            for (node, id) in
                held.per_node.iter().flat_map(|(node, ids)| ids.iter().map(move |id| (node, id)))
            {
                let nodes = devices.entry(id.clone()).or_default();
                if *node != NO_NODE {
                    nodes.push(*node);
                }
            }
        }
        all
    }

    /// All healthy devices with their NUMA nodes, except those with a topology that has no nodes: upstream lists a
    /// device once for each of its nodes.
    pub fn allocatable(&self) -> DevicesOf {
        let mut all = DevicesOf::new();
        for (resource, ids) in &self.healthy {
            let Some(devices) = self.all.get(resource) else { continue };
            let known = ids.iter().filter_map(|id| devices.get(id));
            let known = known.filter(|device| device.nodes.is_none() || device.has_topology());
            let known = known.map(|device| (device.id.clone(), device.nodes().to_vec()));
            all.insert(resource.clone(), known.collect());
        }
        all
    }

    /// Health of a container's devices by resource; one that no plugin lists counts as healthy.
    pub fn health(&self, uid: &str, container: &str) -> BTreeMap<String, Vec<(String, bool)>> {
        let healthy = |resource: &str, id: &str| {
            let device = self.all.get(resource).and_then(|devices| devices.get(id));
            device.is_none_or(|device| device.healthy)
        };
        let of = |(resource, devices): (String, BTreeMap<String, Vec<i64>>)| {
            let list =
                devices.into_keys().map(|id| (id.clone(), healthy(&resource, &id))).collect();
            (resource, list)
        };
        self.devices_of(uid, container).into_iter().map(of).collect()
    }
}

fn count(devices: usize) -> Quantity {
    Quantity::new(i64::try_from(devices).unwrap_or(i64::MAX), Format::DecimalSi)
}
