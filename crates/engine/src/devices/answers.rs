//! Additions to a container from the plugins' Allocate responses.

use super::state::DeviceState;
use proto::device_plugin_v1beta1::{DeviceSpec, Mount};
use std::collections::BTreeMap;

/// The additions for a container. If two responses disagree, the first is used.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DeviceAdditions {
    /// Environment.
    pub envs: Vec<(String, String)>,
    /// Mounts, one per path in the container.
    pub mounts: Vec<Mount>,
    /// Device nodes, one per path in the container.
    pub devices: Vec<DeviceSpec>,
    /// Annotations.
    pub annotations: Vec<(String, String)>,
    /// CDI names.
    pub cdi: Vec<String>,
}

impl DeviceState {
    /// The additions for a container from the responses for its devices (upstream: `deviceRunContainerOptions`).
    pub fn additions(&self, uid: &str, container: &str) -> DeviceAdditions {
        let held = self.pods.get(uid).and_then(|containers| containers.get(container));
        let mut all = DeviceAdditions::default();
        for held in held.into_iter().flat_map(BTreeMap::values) {
            let answer = &held.answer;
            add_new(&mut all.envs, &answer.envs);
            add_new(&mut all.annotations, &answer.annotations);
            for device in &answer.devices {
                if !all.devices.iter().any(|d| d.container_path == device.container_path) {
                    all.devices.push(device.clone());
                }
            }
            for mount in &answer.mounts {
                if !all.mounts.iter().any(|m| m.container_path == mount.container_path) {
                    all.mounts.push(mount.clone());
                }
            }
            for device in &answer.cdi_devices {
                if !all.cdi.contains(&device.name) {
                    all.cdi.push(device.name.clone());
                }
            }
        }
        all
    }
}

fn add_new(list: &mut Vec<(String, String)>, more: &BTreeMap<String, String>) {
    for (name, value) in more {
        if !list.iter().any(|(known, _)| known == name) {
            list.push((name.clone(), value.clone()));
        }
    }
}
