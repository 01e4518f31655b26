//! What an API server would refuse about a pod.
//!
//! Covers names, required fields, enumerations, ranges, references inside the pod and resources; rules about
//! fields that only matter in the API (owner references, finalizers) are left out.

use crate::pod::is_sidecar;
use crate::resources::{Side, side_of};
use api::core::v1::{
    Container, LifecycleHandler, Pod, PodSpec, Probe, ResourceRequirements, Volume,
};
use std::collections::BTreeSet;
use std::fmt;

/// One fault: where and what.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// Field path, e.g. `spec.containers[0].image`.
    pub path: String,
    /// What is wrong.
    pub message: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.message)
    }
}

/// All faults of a pod.
pub fn faults(pod: &Pod) -> Vec<Fault> {
    let mut list = Faults::default();
    let meta = &pod.metadata;
    list.check_name("metadata.name", meta.name.as_deref().unwrap_or_default(), is_subdomain);
    let namespace = meta.namespace.as_deref().unwrap_or_default();
    list.check_name("metadata.namespace", namespace, is_label);
    let Some(spec) = &pod.spec else {
        list.required("spec.containers");
        return list.0;
    };
    check_spec(spec, &mut list);
    list.0
}

#[derive(Default)]
struct Faults(Vec<Fault>);

impl Faults {
    fn push(&mut self, path: &str, message: impl Into<String>) {
        self.0.push(Fault { path: path.to_owned(), message: message.into() });
    }

    fn required(&mut self, path: &str) {
        self.push(path, "Required value");
    }

    fn invalid(&mut self, path: &str, value: impl fmt::Debug, why: &str) {
        self.push(path, format!("Invalid value: {value:?}: {why}"));
    }

    fn check_name(&mut self, path: &str, name: &str, valid: fn(&str) -> bool) {
        if name.is_empty() {
            self.required(path);
        } else if !valid(name) {
            self.invalid(path, name, "a lowercase RFC 1123 name is needed");
        }
    }

    fn check_word(&mut self, path: &str, value: Option<&str>, allowed: &[&str]) {
        if let Some(value) = value.filter(|v| !allowed.contains(v)) {
            let list: Vec<String> = allowed.iter().map(|a| format!("{a:?}")).collect();
            let list = list.join(", ");
            self.push(path, format!("Unsupported value: {value:?}: supported values: {list}"));
        }
    }

    fn check_range(&mut self, path: &str, value: i64, low: i64, high: i64) {
        if value < low || value > high {
            self.invalid(path, value, &format!("must be between {low} and {high}, inclusive"));
        }
    }
}

fn check_spec(spec: &PodSpec, list: &mut Faults) {
    list.check_word(
        "spec.restartPolicy",
        spec.restart_policy.as_deref(),
        &["Always", "OnFailure", "Never"],
    );
    list.check_word(
        "spec.dnsPolicy",
        spec.dns_policy.as_deref(),
        &["ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"],
    );
    if let Some(seconds) = spec.termination_grace_period_seconds {
        list.check_range("spec.terminationGracePeriodSeconds", seconds, 0, i64::MAX);
    }
    if let Some(seconds) = spec.active_deadline_seconds {
        list.check_range("spec.activeDeadlineSeconds", seconds, 1, i64::from(i32::MAX));
    }
    if let Some(hostname) = &spec.hostname {
        list.check_name("spec.hostname", hostname, is_label);
    }
    if let Some(subdomain) = &spec.subdomain {
        list.check_name("spec.subdomain", subdomain, is_label);
    }
    if spec.ephemeral_containers.as_ref().is_some_and(|e| !e.is_empty()) {
        list.push("spec.ephemeralContainers", "Forbidden: cannot be set on create");
    }
    let volumes = check_volumes(spec, list);
    if spec.containers.is_empty() {
        list.required("spec.containers");
    }
    let mut names = BTreeSet::new();
    let all = [
        ("spec.initContainers", spec.init_containers.as_deref().unwrap_or_default()),
        ("spec.containers", &spec.containers),
    ];
    for (field, containers) in all {
        for (index, container) in containers.iter().enumerate() {
            let path = format!("{field}[{index}]");
            if !names.insert(container.name.clone()) {
                list.push(
                    &format!("{path}.name"),
                    format!("Duplicate value: {:?}", container.name),
                );
            }
            check_container(&path, container, spec, &volumes, list);
            if field == "spec.initContainers" {
                check_init(&path, container, list);
            }
        }
    }
    check_host_ports(spec, list);
    check_resources("spec.resources", spec.resources.as_ref(), list);
}

fn check_volumes(spec: &PodSpec, list: &mut Faults) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for (index, volume) in spec.volumes.iter().flatten().enumerate() {
        let path = format!("spec.volumes[{index}]");
        list.check_name(&format!("{path}.name"), &volume.name, is_label);
        if !names.insert(volume.name.clone()) {
            list.push(&format!("{path}.name"), format!("Duplicate value: {:?}", volume.name));
        }
        match sources(volume) {
            1 => {}
            0 => list.push(&path, "Required value: must specify a volume type"),
            _ => list.push(&path, "Forbidden: may not specify more than 1 volume type"),
        }
        if let Some(source) = &volume.host_path {
            if source.path.is_empty() {
                list.required(&format!("{path}.hostPath.path"));
            } else if source.path.split('/').any(|part| part == "..") {
                list.invalid(
                    &format!("{path}.hostPath.path"),
                    &source.path,
                    "must not contain '..'",
                );
            }
            list.check_word(
                &format!("{path}.hostPath.type"),
                source.type_.as_deref(),
                &[
                    "",
                    "BlockDevice",
                    "CharDevice",
                    "Directory",
                    "DirectoryOrCreate",
                    "File",
                    "FileOrCreate",
                    "Socket",
                ],
            );
        }
    }
    names
}

/// How many kinds of source a volume has.
fn sources(volume: &Volume) -> usize {
    match serde_json::to_value(volume) {
        Ok(serde_json::Value::Object(fields)) => fields.len().saturating_sub(1),
        _ => 0,
    }
}

fn check_container(
    path: &str,
    container: &Container,
    spec: &PodSpec,
    volumes: &BTreeSet<String>,
    list: &mut Faults,
) {
    list.check_name(&format!("{path}.name"), &container.name, is_label);
    let image = container.image.as_deref().unwrap_or_default();
    if image.is_empty() {
        list.required(&format!("{path}.image"));
    } else if image.trim() != image {
        let why = "must not have leading or trailing whitespace";
        list.invalid(&format!("{path}.image"), image, why);
    }
    list.check_word(
        &format!("{path}.imagePullPolicy"),
        container.image_pull_policy.as_deref(),
        &["Always", "IfNotPresent", "Never"],
    );
    list.check_word(
        &format!("{path}.terminationMessagePolicy"),
        container.termination_message_policy.as_deref(),
        &["FallbackToLogsOnError", "File"],
    );
    check_ports(path, container, list);
    for (index, variable) in container.env.iter().flatten().enumerate() {
        let path = format!("{path}.env[{index}]");
        if variable.name.is_empty() {
            list.required(&format!("{path}.name"));
        } else if variable.name.contains('=') || !variable.name.is_ascii() {
            let why = "must be printable ASCII without '='";
            list.invalid(&format!("{path}.name"), &variable.name, why);
        }
        let both = variable.value.as_ref().is_some_and(|v| !v.is_empty());
        if both && variable.value_from.is_some() {
            let why = "may not be specified when `value` is not empty";
            list.invalid(&format!("{path}.valueFrom"), "", why);
        }
    }
    check_mounts(path, container, volumes, list);
    check_resources(&format!("{path}.resources"), container.resources.as_ref(), list);
    let probes = [
        ("livenessProbe", &container.liveness_probe, true),
        ("readinessProbe", &container.readiness_probe, false),
        ("startupProbe", &container.startup_probe, true),
    ];
    for (name, probe, one_success) in probes {
        if let Some(probe) = probe {
            check_probe(&format!("{path}.{name}"), probe, one_success, list);
        }
    }
    for (name, hook) in [
        ("postStart", container.lifecycle.as_ref().and_then(|l| l.post_start.as_ref())),
        ("preStop", container.lifecycle.as_ref().and_then(|l| l.pre_stop.as_ref())),
    ] {
        if let Some(hook) = hook {
            check_hook(&format!("{path}.lifecycle.{name}"), hook, spec, list);
        }
    }
}

fn check_ports(path: &str, container: &Container, list: &mut Faults) {
    let mut names = BTreeSet::new();
    for (index, port) in container.ports.iter().flatten().enumerate() {
        let path = format!("{path}.ports[{index}]");
        list.check_range(&format!("{path}.containerPort"), port.container_port.into(), 1, 65_535);
        if let Some(host) = port.host_port.filter(|p| *p != 0) {
            list.check_range(&format!("{path}.hostPort"), host.into(), 1, 65_535);
        }
        let protocol = port.protocol.as_deref();
        list.check_word(&format!("{path}.protocol"), protocol, &["SCTP", "TCP", "UDP"]);
        if let Some(name) = port.name.as_ref().filter(|n| !n.is_empty()) {
            if name.len() > 15 || !is_label(name) || !name.bytes().any(|b| b.is_ascii_lowercase()) {
                list.invalid(&format!("{path}.name"), name, "must be an IANA service name");
            }
            if !names.insert(name.clone()) {
                list.push(&format!("{path}.name"), format!("Duplicate value: {name:?}"));
            }
        }
    }
}

fn check_mounts(path: &str, container: &Container, volumes: &BTreeSet<String>, list: &mut Faults) {
    let mut paths = BTreeSet::new();
    for (index, mount) in container.volume_mounts.iter().flatten().enumerate() {
        let path = format!("{path}.volumeMounts[{index}]");
        if mount.name.is_empty() {
            list.required(&format!("{path}.name"));
        } else if !volumes.contains(&mount.name) {
            list.push(&format!("{path}.name"), format!("Not found: {:?}", mount.name));
        }
        if mount.mount_path.is_empty() {
            list.required(&format!("{path}.mountPath"));
        } else if !paths.insert(mount.mount_path.clone()) {
            list.invalid(&format!("{path}.mountPath"), &mount.mount_path, "must be unique");
        }
        let sub_paths = [("subPath", &mount.sub_path), ("subPathExpr", &mount.sub_path_expr)];
        for (name, value) in sub_paths {
            let Some(value) = value.as_ref().filter(|v| !v.is_empty()) else { continue };
            if value.starts_with('/') {
                list.invalid(&format!("{path}.{name}"), value, "must be a relative path");
            }
            if value.split('/').any(|part| part == "..") {
                list.invalid(&format!("{path}.{name}"), value, "must not contain '..'");
            }
        }
        list.check_word(
            &format!("{path}.mountPropagation"),
            mount.mount_propagation.as_deref(),
            &["Bidirectional", "HostToContainer", "None"],
        );
    }
    for (index, device) in container.volume_devices.iter().flatten().enumerate() {
        if !volumes.contains(&device.name) {
            let path = format!("{path}.volumeDevices[{index}].name");
            list.push(&path, format!("Not found: {:?}", device.name));
        }
    }
}

fn check_resources(path: &str, resources: Option<&ResourceRequirements>, list: &mut Faults) {
    let Some(resources) = resources else { return };
    for (side, quantities) in [("requests", &resources.requests), ("limits", &resources.limits)] {
        for (name, quantity) in quantities.iter().flatten() {
            let path = format!("{path}.{side}.{name}");
            match quantity.0.parse::<units::Quantity>() {
                Err(error) => list.invalid(&path, &quantity.0, &error.to_string()),
                Ok(value) if value.is_negative() => {
                    list.invalid(&path, &quantity.0, "must be greater than or equal to 0");
                }
                Ok(_) => {}
            }
        }
    }
    let limits = side_of(Some(resources), Side::Limits);
    for (name, request) in side_of(Some(resources), Side::Requests) {
        if limits.get(&name).is_some_and(|limit| request > *limit) {
            let why = format!("must be less than or equal to {name} limit");
            list.invalid(&format!("{path}.requests"), request.to_string(), &why);
        }
    }
}

fn check_probe(path: &str, probe: &Probe, one_success: bool, list: &mut Faults) {
    let handlers = [
        probe.exec.is_some(),
        probe.http_get.is_some(),
        probe.tcp_socket.is_some(),
        probe.grpc.is_some(),
    ];
    match handlers.into_iter().filter(|set| *set).count() {
        1 => {}
        0 => list.push(path, "Required value: must specify a handler type"),
        _ => list.push(path, "Forbidden: may not specify more than 1 handler type"),
    }
    let numbers = [
        ("initialDelaySeconds", probe.initial_delay_seconds),
        ("timeoutSeconds", probe.timeout_seconds),
        ("periodSeconds", probe.period_seconds),
        ("successThreshold", probe.success_threshold),
        ("failureThreshold", probe.failure_threshold),
    ];
    for (name, value) in numbers {
        list.check_range(&format!("{path}.{name}"), value.unwrap_or_default().into(), 0, i64::MAX);
    }
    if one_success && probe.success_threshold.is_some_and(|n| n != 1) {
        list.invalid(&format!("{path}.successThreshold"), probe.success_threshold, "must be 1");
    }
    if let Some(grace) = probe.termination_grace_period_seconds {
        list.check_range(&format!("{path}.terminationGracePeriodSeconds"), grace, 1, i64::MAX);
    }
}

fn check_hook(path: &str, hook: &LifecycleHandler, spec: &PodSpec, list: &mut Faults) {
    let handlers = [
        hook.exec.is_some(),
        hook.http_get.is_some(),
        hook.tcp_socket.is_some(),
        hook.sleep.is_some(),
    ];
    match handlers.into_iter().filter(|set| *set).count() {
        1 => {}
        0 => list.push(path, "Required value: must specify a handler type"),
        _ => list.push(path, "Forbidden: may not specify more than 1 handler type"),
    }
    if let Some(sleep) = &hook.sleep {
        let most = spec.termination_grace_period_seconds.unwrap_or(30);
        list.check_range(&format!("{path}.sleep.seconds"), sleep.seconds, 0, most);
    }
}

fn check_init(path: &str, container: &Container, list: &mut Faults) {
    if is_sidecar(container) {
        return;
    }
    let forbidden = [
        ("lifecycle", container.lifecycle.is_some()),
        ("livenessProbe", container.liveness_probe.is_some()),
        ("readinessProbe", container.readiness_probe.is_some()),
        ("startupProbe", container.startup_probe.is_some()),
    ];
    for (name, set) in forbidden {
        if set {
            let why = "Forbidden: may not be set for init containers without restartPolicy=Always";
            list.push(&format!("{path}.{name}"), why);
        }
    }
}

fn check_host_ports(spec: &PodSpec, list: &mut Faults) {
    let host_network = spec.host_network == Some(true);
    let mut seen = BTreeSet::new();
    for (index, container) in spec.containers.iter().enumerate() {
        for (number, port) in container.ports.iter().flatten().enumerate() {
            let path = format!("spec.containers[{index}].ports[{number}].hostPort");
            let Some(host) = port.host_port.filter(|p| *p != 0) else { continue };
            if host_network && host != port.container_port {
                let why = "must match `containerPort` when `hostNetwork` is true";
                list.invalid(&path, host, why);
            }
            let key = (port.protocol.clone(), port.host_ip.clone(), host);
            if !seen.insert(key) {
                list.push(&path, format!("Duplicate value: {host}"));
            }
        }
    }
}

/// An RFC 1123 label: lower-case letters, digits and dashes, at most 63.
fn is_label(name: &str) -> bool {
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    !name.is_empty()
        && name.len() <= 63
        && name.bytes().all(inner)
        && !name.starts_with('-')
        && !name.ends_with('-')
}

/// Labels joined by dots, at most 253 characters in all.
fn is_subdomain(name: &str) -> bool {
    let part = |label: &str| {
        let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        !label.is_empty()
            && label.bytes().all(inner)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    name.len() <= 253 && name.split('.').all(part)
}
