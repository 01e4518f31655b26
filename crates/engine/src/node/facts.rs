//! The inputs of the node's status.

use super::reserve::Reservation;
use api::core::v1::Taint;
use std::collections::BTreeMap;
use std::net::IpAddr;
use units::Quantity;

/// Settings that do not change while the process runs.
/// Many fields: one for each setting that shows in the node object.
#[derive(Debug, Clone, Default)]
pub struct NodeSettings {
    /// The node's name.
    pub node_name: String,
    /// The host name, or its override.
    pub hostname: String,
    /// `amd64`, `arm64`, … as Go names them.
    pub architecture: String,
    /// Our version, as `kubectl get nodes` shows it.
    pub kubelet_version: String,
    /// `--node-ip`: none, one, or one per family.
    pub node_ips: Vec<IpAddr>,
    /// `--cloud-provider=external`.
    pub external_cloud: bool,
    /// `providerID`.
    pub provider_id: String,
    /// `--node-labels`.
    pub labels: BTreeMap<String, String>,
    /// `registerWithTaints`.
    pub taints: Vec<Taint>,
    /// `enableControllerAttachDetach`.
    pub controller_attach: bool,
    /// `maxPods`.
    pub max_pods: i64,
    /// `podsPerCore`; 0 is off.
    pub pods_per_core: i64,
    /// The HTTPS port.
    pub port: i32,
    /// `nodeStatusMaxImages`; −1 is all.
    pub max_images: i32,
    /// `localStorageCapacityIsolation`.
    pub local_storage_isolation: bool,
    /// What is reserved from pods.
    pub reservation: Reservation,
    /// Whether swap capacity is reported.
    pub report_swap: bool,
    /// Whether runtime handlers are reported.
    pub report_runtime_handlers: bool,
    /// Whether runtime features are reported.
    pub report_features: bool,
    /// Sorted; `None` leaves the field alone.
    pub declared_features: Option<Vec<String>>,
}

/// Huge pages of one size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HugePageFacts {
    /// Bytes per page.
    pub page_bytes: u64,
    /// How many there are.
    pub count: u64,
}

/// The machine, read once at start.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MachineFacts {
    /// Processors.
    pub cores: u64,
    /// Memory.
    pub memory_bytes: u64,
    /// Swap.
    pub swap_bytes: u64,
    /// Huge pages.
    pub huge_pages: Vec<HugePageFacts>,
    /// The machine's id.
    pub machine_id: String,
    /// The hardware's id.
    pub system_uuid: String,
    /// The boot's id.
    pub boot_id: String,
}

/// Where the node can be reached.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AddressFacts {
    /// Every address of a local interface.
    pub local: Vec<IpAddr>,
    /// The addresses that a DNS lookup of the node's name returned, in order.
    pub looked_up: Vec<IpAddr>,
    /// The address of the default route's interface in the preferred family, else the other.
    pub default_route: Option<IpAddr>,
}

/// Extended resources of device plugins.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DeviceFacts {
    /// Healthy and unhealthy devices by resource.
    pub capacity: BTreeMap<String, Quantity>,
    /// Healthy devices by resource.
    pub allocatable: BTreeMap<String, Quantity>,
    /// Resources whose plugin has been gone for long.
    pub removed: Vec<String>,
    /// The folder of plugins was empty at the start.
    pub folder_was_empty: bool,
}

/// A runtime handler.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RuntimeHandlerFacts {
    /// Its name; empty for the default.
    pub name: String,
    /// Supports recursive read-only mounts.
    pub recursive_read_only_mounts: bool,
    /// Supports user namespaces.
    pub user_namespaces: bool,
}

/// The runtime's version and status.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RuntimeFacts {
    /// Its name, e.g. `containerd`.
    pub name: String,
    /// Its version, if it answers.
    pub version: Option<String>,
    /// Its handlers, from the last good status.
    pub handlers: Vec<RuntimeHandlerFacts>,
    /// Whether it knows `supplementalGroupsPolicy`; `None` if it reports no features.
    pub supplemental_groups_policy: Option<bool>,
    /// Whether it was ready before.
    pub was_ready: bool,
    /// Why it is not ready, in upstream's words and order.
    pub errors: Vec<String>,
    /// Why its network is not ready.
    pub network_error: Option<String>,
}

/// An image on this machine.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ImageFacts {
    /// Its id.
    pub id: String,
    /// Its size.
    pub size_bytes: i64,
    /// Names by digest.
    pub digests: Vec<String>,
    /// Names by tag.
    pub tags: Vec<String>,
}

/// Pressure in force.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Pressures {
    /// Memory.
    pub memory: bool,
    /// Disk.
    pub disk: bool,
    /// Process ids.
    pub pid: bool,
}

/// The present state of the machine.
#[derive(Debug, Clone, Default)]
pub struct NodeFacts {
    /// The machine, if it could be read.
    pub machine: Option<MachineFacts>,
    /// The kernel's release.
    pub kernel_version: String,
    /// The distribution.
    pub os_image: String,
    /// Addresses.
    pub addresses: AddressFacts,
    /// Size of the filesystem that holds the root directory.
    pub ephemeral_storage_bytes: Option<u64>,
    /// Devices.
    pub devices: DeviceFacts,
    /// The runtime.
    pub runtime: RuntimeFacts,
    /// Images.
    pub images: Vec<ImageFacts>,
    /// Pressure.
    pub pressure: Pressures,
    /// Why storage is not ready.
    pub storage_error: Option<String>,
    /// Why the node is going away, e.g. `node is shutting down`.
    pub shutdown_error: Option<String>,
    /// A missing soft requirement.
    pub soft_warning: Option<String>,
    /// Volumes in use; `None` until that is known.
    pub volumes_in_use: Option<Vec<String>>,
    /// Calls that the runtime has not answered for long, by name; `None` leaves their condition alone (upstream has
    /// no such condition).
    pub slow_calls: Option<Vec<String>>,
}

/// State carried from one computation to the next.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NodeMemory {
    /// `spec.unschedulable` as last seen.
    pub unschedulable: bool,
    /// The reboot was announced.
    pub reboot_reported: bool,
    /// Pod CIDRs as last seen, joined by commas.
    pub pod_cidr: String,
}
