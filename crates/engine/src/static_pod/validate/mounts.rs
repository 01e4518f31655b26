//! Volume mounts and devices of a container.

use super::faults::{At, Faults};
use super::text;
use api::core::v1::{Container, Volume, VolumeMount};
use std::collections::{BTreeMap, BTreeSet};

pub(super) fn check(
    container: &Container,
    volumes: &BTreeMap<&str, &Volume>,
    at: &At,
    list: &mut Faults,
) {
    check_mounts(container, volumes, &at.get("volumeMounts"), list);
    check_devices(container, volumes, &at.get("volumeDevices"), list);
}

fn check_mounts(
    container: &Container,
    volumes: &BTreeMap<&str, &Volume>,
    at: &At,
    list: &mut Faults,
) {
    let devices: BTreeMap<&str, &str> = container
        .volume_devices
        .iter()
        .flatten()
        .map(|d| (d.name.as_str(), d.device_path.as_str()))
        .collect();
    let context = container.security_context.as_ref();
    let privileged = context.and_then(|c| c.privileged) == Some(true);
    let mut paths = BTreeSet::new();
    for (index, mount) in container.volume_mounts.iter().flatten().enumerate() {
        let place = at.nth(index);
        if mount.name.is_empty() {
            list.required(&place.get("name"), "");
        }
        if !volumes.contains_key(mount.name.as_str()) {
            list.not_found(&place.get("name"), &mount.name, "");
        }
        let path = mount.mount_path.as_str();
        if path.is_empty() {
            list.required(&place.get("mountPath"), "");
        }
        if !paths.insert(path) {
            list.invalid(&place.get("mountPath"), path, "must be unique");
        }
        if devices.contains_key(mount.name.as_str()) {
            let why = "must not already exist in volumeDevices";
            list.invalid(&place.get("name"), &mount.name, why);
        }
        if devices.values().any(|device| *device == path) {
            let why = "must not already exist as a path in volumeDevices";
            list.invalid(&place.get("mountPath"), path, why);
        }
        check_sub_paths(mount, at, &place, list);
        check_propagation(mount, privileged, at, list);
        check_recursive(mount, &at.get("recursiveReadOnly"), list);
    }
}

fn check_sub_paths(mount: &VolumeMount, at: &At, place: &At, list: &mut Faults) {
    let plain = mount.sub_path.as_deref().unwrap_or_default();
    let expanded = mount.sub_path_expr.as_deref().unwrap_or_default();
    list.each(&at.get("subPath"), plain, text::descending(plain));
    if !expanded.is_empty() && !plain.is_empty() {
        let why = "subPathExpr and subPath are mutually exclusive";
        list.invalid(&place.get("subPathExpr"), expanded, why);
    }
    list.each(&at.get("subPathExpr"), expanded, text::descending(expanded));
}

fn check_propagation(mount: &VolumeMount, privileged: bool, at: &At, list: &mut Faults) {
    let at = at.get("mountPropagation");
    let mode = mount.mount_propagation.as_deref();
    list.word_if_set(&at, mode, &["Bidirectional", "HostToContainer", "None"]);
    if mode == Some("Bidirectional") && !privileged {
        let why = "Bidirectional mount propagation is available only to privileged containers";
        list.forbidden(&at, why);
    }
}

fn check_recursive(mount: &VolumeMount, at: &At, list: &mut Faults) {
    match mount.recursive_read_only.as_deref() {
        None | Some("Disabled") => {}
        Some("Enabled" | "IfPossible") => {
            if mount.read_only != Some(true) {
                list.forbidden(at, "may only be specified when readOnly is true");
            }
            if mount.mount_propagation.as_deref().is_some_and(|mode| mode != "None") {
                let why = "may only be specified when mountPropagation is None or not specified";
                list.forbidden(at, why);
            }
        }
        Some(other) => list.unsupported(at, other, &["Disabled", "Enabled", "IfPossible"]),
    }
}

fn check_devices(
    container: &Container,
    volumes: &BTreeMap<&str, &Volume>,
    at: &At,
    list: &mut Faults,
) {
    let mounts: BTreeMap<&str, &str> = container
        .volume_mounts
        .iter()
        .flatten()
        .map(|m| (m.name.as_str(), m.mount_path.as_str()))
        .collect();
    let (mut names, mut paths) = (BTreeSet::new(), BTreeSet::new());
    for (index, device) in container.volume_devices.iter().flatten().enumerate() {
        let at = at.nth(index);
        let (name, path) = (device.name.as_str(), device.device_path.as_str());
        if name.is_empty() {
            list.required(&at.get("name"), "");
        }
        if names.contains(name) {
            list.invalid(&at.get("name"), name, "must be unique");
        }
        match volumes.get(name) {
            None => list.not_found(&at.get("name"), name, ""),
            Some(volume) => {
                if volume.persistent_volume_claim.is_none() && volume.ephemeral.is_none() {
                    let why = "can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode";
                    list.invalid(&at.get("name"), name, why);
                }
            }
        }
        if path.is_empty() {
            list.required(&at.get("devicePath"), "");
        }
        if paths.contains(path) {
            list.invalid(&at.get("devicePath"), path, "must be unique");
        }
        if text::backstep(path).is_some() {
            list.invalid(&at.get("devicePath"), path, "can not contain backsteps ('..')");
        } else {
            paths.insert(path);
        }
        if mounts.contains_key(name) {
            let why = "must not already exist in volumeMounts";
            list.invalid(&at.get("name"), name, why);
        }
        if mounts.values().any(|mount| *mount == path) {
            let why = "must not already exist as a path in volumeMounts";
            list.invalid(&at.get("devicePath"), path, why);
        }
        if !name.is_empty() {
            names.insert(name);
        }
    }
}
