//! The defaults that an API server fills into a pod (upstream: `SetObjectDefaults_Pod`).

use crate::resources::{Amounts, Counting, Side, is_pod_level_resource, of_pod, to_api};
use api::core::v1::{
    Container, ContainerPort, EnvVar, EnvVarSource, LifecycleHandler, Pod, PodSpec, Probe,
    ResourceRequirements, Volume, VolumeProjection,
};
use api::machinery::api::resource::Quantity;
use std::collections::BTreeMap;

/// Fills in what the manifest leaves open.
pub fn set_defaults(pod: &mut Pod) {
    let spec = pod.spec.get_or_insert_default();
    text(&mut spec.dns_policy, "ClusterFirst");
    text(&mut spec.restart_policy, "Always");
    text(&mut spec.scheduler_name, "default-scheduler");
    spec.security_context.get_or_insert_default();
    let grace = spec.termination_grace_period_seconds.get_or_insert(30);
    if *grace < 0 {
        *grace = 1;
    }
    spec.enable_service_links.get_or_insert(true);
    default_account(spec);
    let host_network = spec.host_network.unwrap_or_default();
    let init = spec.init_containers.iter_mut().flatten();
    for container in spec.containers.iter_mut().chain(init) {
        default_container(container, host_network);
    }
    for volume in spec.volumes.iter_mut().flatten() {
        default_volume(volume);
    }
    default_huge_page_limits(pod);
    default_pod_requests(pod);
}

/// The deprecated `serviceAccount` field: `serviceAccountName` takes precedence and is copied to it.
fn default_account(spec: &mut PodSpec) {
    let given = |name: &Option<String>| name.clone().filter(|name| !name.is_empty());
    let account = given(&spec.service_account_name).or_else(|| given(&spec.service_account));
    spec.service_account.clone_from(&account);
    spec.service_account_name = account;
}

fn text(field: &mut Option<String>, value: &str) {
    if field.as_deref().unwrap_or_default().is_empty() {
        *field = Some(value.to_owned());
    }
}

fn pull_policy(image: &str) -> &'static str {
    let latest = crate::image::reference::parse(image).is_ok_and(|name| name.tag == "latest");
    if latest { "Always" } else { "IfNotPresent" }
}

fn default_container(container: &mut Container, host_network: bool) {
    let policy = pull_policy(container.image.as_deref().unwrap_or_default());
    text(&mut container.image_pull_policy, policy);
    text(&mut container.termination_message_path, "/dev/termination-log");
    text(&mut container.termination_message_policy, "File");
    for port in container.ports.iter_mut().flatten() {
        default_port(port, host_network);
    }
    for variable in container.env.iter_mut().flatten() {
        default_variable(variable);
    }
    if let Some(resources) = &mut container.resources {
        default_requests(resources);
    }
    let probes = [
        &mut container.liveness_probe,
        &mut container.readiness_probe,
        &mut container.startup_probe,
    ];
    for probe in probes.into_iter().flatten() {
        default_probe(probe);
    }
    if let Some(lifecycle) = &mut container.lifecycle {
        let hooks = [&mut lifecycle.post_start, &mut lifecycle.pre_stop];
        hooks.into_iter().flatten().for_each(default_hook);
    }
}

fn default_port(port: &mut ContainerPort, host_network: bool) {
    text(&mut port.protocol, "TCP");
    if host_network && port.host_port.unwrap_or_default() == 0 {
        port.host_port = Some(port.container_port);
    }
}

fn default_variable(variable: &mut EnvVar) {
    if let Some(EnvVarSource { field_ref: Some(field), .. }) = &mut variable.value_from {
        text(&mut field.api_version, "v1");
    }
    if let Some(EnvVarSource { file_key_ref: Some(file), .. }) = &mut variable.value_from {
        file.optional.get_or_insert(false);
    }
}

fn default_requests(resources: &mut ResourceRequirements) {
    let Some(limits) = resources.limits.clone() else { return };
    let requests = resources.requests.get_or_insert_default();
    for (name, amount) in limits {
        requests.entry(name).or_insert(amount);
    }
}

fn default_probe(probe: &mut Probe) {
    let number = |field: &mut Option<i32>, value: i32| {
        if field.unwrap_or_default() == 0 {
            *field = Some(value);
        }
    };
    number(&mut probe.timeout_seconds, 1);
    number(&mut probe.period_seconds, 10);
    number(&mut probe.success_threshold, 1);
    number(&mut probe.failure_threshold, 3);
    if let Some(get) = &mut probe.http_get {
        text(&mut get.path, "/");
        text(&mut get.scheme, "HTTP");
    }
    if let Some(grpc) = &mut probe.grpc {
        grpc.service.get_or_insert_default();
    }
}

fn default_hook(hook: &mut LifecycleHandler) {
    if let Some(get) = &mut hook.http_get {
        text(&mut get.path, "/");
        text(&mut get.scheme, "HTTP");
    }
}

fn default_volume(volume: &mut Volume) {
    let bare = Volume { name: volume.name.clone(), ..Volume::default() };
    if *volume == bare {
        volume.empty_dir = Some(api::core::v1::EmptyDirVolumeSource::default());
    }
    if let Some(image) = &mut volume.image {
        let policy = pull_policy(image.reference.as_deref().unwrap_or_default());
        text(&mut image.pull_policy, policy);
    }
    if let Some(source) = &mut volume.host_path {
        source.type_.get_or_insert_default();
    }
    if let Some(source) = &mut volume.secret {
        source.default_mode.get_or_insert(0o644);
    }
    if let Some(source) = &mut volume.config_map {
        source.default_mode.get_or_insert(0o644);
    }
    if let Some(source) = &mut volume.downward_api {
        source.default_mode.get_or_insert(0o644);
        for item in source.items.iter_mut().flatten() {
            if let Some(field) = &mut item.field_ref {
                text(&mut field.api_version, "v1");
            }
        }
    }
    if let Some(source) = &mut volume.projected {
        source.default_mode.get_or_insert(0o644);
        source.sources.iter_mut().flatten().for_each(default_projection);
    }
    default_network_disk(volume);
    let template = volume.ephemeral.as_mut().and_then(|e| e.volume_claim_template.as_mut());
    if let Some(template) = template {
        template.spec.volume_mode.get_or_insert_with(|| "Filesystem".to_owned());
    }
}

fn default_network_disk(volume: &mut Volume) {
    if let Some(source) = &mut volume.iscsi {
        text(&mut source.iscsi_interface, "default");
    }
    if let Some(source) = &mut volume.rbd {
        text(&mut source.pool, "rbd");
        text(&mut source.user, "admin");
        text(&mut source.keyring, "/etc/ceph/keyring");
    }
    if let Some(source) = &mut volume.azure_disk {
        source.caching_mode.get_or_insert_with(|| "ReadWrite".to_owned());
        source.fs_type.get_or_insert_with(|| "ext4".to_owned());
        source.read_only.get_or_insert(false);
        source.kind.get_or_insert_with(|| "Shared".to_owned());
    }
    if let Some(source) = &mut volume.scale_io {
        text(&mut source.storage_mode, "ThinProvisioned");
        text(&mut source.fs_type, "xfs");
    }
}

fn default_projection(projection: &mut VolumeProjection) {
    if let Some(token) = &mut projection.service_account_token {
        token.expiration_seconds.get_or_insert(3600);
    }
    let items = projection.downward_api.as_mut().and_then(|d| d.items.as_mut());
    for item in items.into_iter().flatten() {
        if let Some(field) = &mut item.field_ref {
            text(&mut field.api_version, "v1");
        }
    }
}

/// Pod-level limits of huge pages: the containers' sums, if the pod has pod-level resources but none of these.
fn default_huge_page_limits(pod: &mut Pod) {
    let sums = of_containers(pod, Side::Limits);
    let Some(own) = pod.spec.as_mut().and_then(|s| s.resources.as_mut()) else { return };
    let filled =
        |list: &Option<BTreeMap<String, Quantity>>| list.as_ref().is_some_and(|l| !l.is_empty());
    if !filled(&own.limits) && !filled(&own.requests) {
        return;
    }
    let requests = own.requests.clone().unwrap_or_default();
    let mut limits = own.limits.clone().unwrap_or_default();
    for (name, amount) in to_api(&sums) {
        if name.starts_with("hugepages-") && !requests.contains_key(&name) {
            limits.entry(name).or_insert(amount);
        }
    }
    own.limits = Some(limits).filter(|l| !l.is_empty());
}

/// Pod-level requests: the containers' sums, then the pod's limits, where the pod limits something.
fn default_pod_requests(pod: &mut Pod) {
    let sums = of_containers(pod, Side::Requests);
    let Some(own) = pod.spec.as_mut().and_then(|s| s.resources.as_mut()) else { return };
    let Some(limits) = own.limits.clone().filter(|l| !l.is_empty()) else { return };
    let mut requests: BTreeMap<String, Quantity> = own.requests.clone().unwrap_or_default();
    let overcommit = |name: &str| name == "cpu" || name == "memory";
    for (name, amount) in to_api(&sums) {
        if overcommit(&name) {
            requests.entry(name).or_insert(amount);
        }
    }
    for (name, amount) in limits {
        if is_pod_level_resource(&name) {
            requests.entry(name).or_insert(amount);
        }
    }
    own.requests = Some(requests).filter(|r| !r.is_empty());
}

fn of_containers(pod: &Pod, side: Side) -> Amounts {
    let spec = pod.spec.clone().unwrap_or_default();
    let alone = Pod {
        spec: Some(PodSpec { overhead: None, ..spec }),
        metadata: pod.metadata.clone(),
        status: None,
    };
    of_pod(&alone, side, Counting { pod_level: false, with_status: false })
}
