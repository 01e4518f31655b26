//! For every golden: the requests built from its pod are those the Go kubelet sent.

#![expect(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test binary")]

mod json;

use api::ByteString;
use api::core::v1::{
    ConfigMap, Container, EphemeralContainer, Pod, Secret, Service, ServicePort, ServiceSpec,
};
use engine::request::container::{all_variables, as_container};
use engine::request::dns::{DnsInput, DnsWarning, ResolvConf, pod_dns};
use engine::request::downward::NodeFacts;
use engine::request::env::{EnvInput, EnvObjects, ObjectMiss, environment};
use engine::request::hostname::HostnameOverride;
use engine::request::mounts::{MountInput, PlacementExtras, VolumeView, sub_paths};
use engine::request::resources::{CgroupVersion, CpuQuota, PodCgroupValues, ResourceSettings};
use engine::request::security::{ImageUser, SecuritySettings};
use engine::request::{
    ContainerInput, RequestSettings, SandboxInput, calls, container_config, sandbox_config,
};
use serde_json::Value;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

const POD_IP: &str = "10.88.0.9";
const NODE_IP: &str = "192.0.2.2";
const TIME: &str = "2026-01-02T03:04:05Z";

fn goldens() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/golden")
}

struct Golden {
    name: String,
    pod: Pod,
    calls: Vec<(String, Value)>,
}

fn load(path: &std::path::Path) -> Golden {
    let text = std::fs::read_to_string(path)
        .unwrap()
        .replace("$POD_IP", POD_IP)
        .replace("$NODE_IP", NODE_IP)
        .replace("$TIME", TIME);
    let mut golden: Value = serde_json::from_str(&text).unwrap();
    let mut pod: Pod = serde_json::from_value(golden["pod"].take()).unwrap();
    let annotations = pod.metadata.annotations.get_or_insert_default();
    annotations.insert("kubernetes.io/config.seen".into(), TIME.into());
    annotations.insert("kubernetes.io/config.source".into(), "api".into());
    let calls = golden["cri"]
        .as_array()
        .unwrap()
        .iter()
        .map(|c| (c["method"].as_str().unwrap().to_string(), c["request"].clone()))
        .collect();
    Golden { name: path.file_stem().unwrap().to_string_lossy().into_owned(), pod, calls }
}

fn all() -> Vec<Golden> {
    let mut paths: Vec<_> =
        std::fs::read_dir(goldens().join("pods")).unwrap().map(|e| e.unwrap().path()).collect();
    paths.sort();
    assert!(paths.len() > 50, "the fixtures are there");
    paths.iter().map(|p| load(p)).collect()
}

/// The machine and configuration of the recording (golden/README.md).
struct Recording {
    settings: RequestSettings,
    allocatable: BTreeMap<String, api::machinery::api::resource::Quantity>,
    services: Vec<Arc<Service>>,
    objects: EnvObjects,
}

fn recording() -> Recording {
    let text = std::fs::read_to_string(goldens().join("node.json")).unwrap();
    let node: Value = serde_json::from_str(&text).unwrap();
    let allocatable = serde_json::from_value(node["status"]["allocatable"].clone()).unwrap();
    let settings = RequestSettings {
        kubelet_root: "/var/lib/kubelet".into(),
        pod_logs_dir: "/var/log/pods".into(),
        cluster_domain: String::new(),
        hostname_override: HostnameOverride::Honoured,
        stop_signals: false,
        selinux_enabled: false,
        resources: ResourceSettings {
            cgroup: CgroupVersion::V1,
            cfs_period: Some(Duration::from_millis(100)),
            single_process_oom_kill: true,
            pod_level_resources: true,
            memory_capacity: 24_682_416 * 1024,
            swap_capacity: 0,
            swap_controller: true,
            limited_swap: false,
            memory_qos: None,
            hugepage_sizes: vec!["2MB".into(), "1GB".into()],
        },
        security: SecuritySettings {
            seccomp_root: "/var/lib/kubelet/seccomp".into(),
            ..SecuritySettings::default()
        },
    };
    let mut kubernetes = Service {
        spec: Some(ServiceSpec {
            cluster_ip: Some("10.0.0.1".into()),
            ports: Some(vec![ServicePort {
                name: Some("https".into()),
                port: 443,
                protocol: Some("TCP".into()),
                ..ServicePort::default()
            }]),
            ..ServiceSpec::default()
        }),
        ..Service::default()
    };
    kubernetes.metadata.name = Some("kubernetes".into());
    kubernetes.metadata.namespace = Some("default".into());
    let text_map = |pairs: &[(&str, &str)]| {
        pairs.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect::<BTreeMap<String, String>>()
    };
    let cm1 = ConfigMap {
        data: Some(text_map(&[("k1", "v1"), ("k2", "v2"), ("1bad.key", "z")])),
        ..ConfigMap::default()
    };
    let s1 = Secret {
        data: Some(
            [("pw", "hunter2"), ("user", "bob")]
                .map(|(k, v)| (k.to_string(), ByteString(v.into())))
                .into(),
        ),
        ..Secret::default()
    };
    let mut objects = EnvObjects::default();
    objects.config_maps.insert("cm1".into(), Ok(Arc::new(cm1)));
    objects.secrets.insert("s1".into(), Ok(Arc::new(s1)));
    for name in ["nope", "missing", "absent"] {
        let text = format!("configmap \"{name}\" not found");
        objects.config_maps.insert(name.into(), Err(ObjectMiss::NotFound(text)));
    }
    Recording { settings, allocatable, services: vec![Arc::new(kubernetes)], objects }
}

impl Recording {
    fn sandbox(&self, pod: &Pod, attempt: u32) -> Result<Value, String> {
        let host = ResolvConf::parse("nameserver 10.255.255.53\n").unwrap();
        let node_ips: [IpAddr; 1] = [NODE_IP.parse().unwrap()];
        let input = DnsInput {
            host: Some(&host),
            cluster_dns: &[],
            cluster_domain: "",
            node_ips: &node_ips,
        };
        let (dns, warnings) = pod_dns(&input, pod);
        let none = pod.spec.as_ref().unwrap().dns_policy.as_deref() == Some("None");
        let missing = warnings.iter().any(|w| matches!(w, DnsWarning::MissingClusterDns { .. }));
        assert_eq!(missing, !none);
        let class = pod.status.as_ref().unwrap().qos_class.clone().unwrap();
        let cgroup_parent = match class.as_str() {
            "Guaranteed" => "/kubepods/pod$UID".to_string(),
            class => format!("/kubepods/{}/pod$UID", class.to_lowercase()),
        };
        let mut computed = pod.clone();
        computed.status = None;
        let config = sandbox_config(
            &self.settings,
            SandboxInput {
                pod: &computed,
                attempt,
                dns,
                cgroup_parent,
                userns: None,
                extra_groups: &[],
                cpu_quota: CpuQuota::Enforced,
            },
        )
        .map_err(|e| e.to_string())?;
        Ok(json::sandbox(&config))
    }

    fn container(&self, pod: &Pod, container: &Container, attempt: u32) -> Result<Value, String> {
        // Without the status the QoS class must be computed from the spec.
        let mut computed = pod.clone();
        computed.status = None;
        let pod = &computed;
        let node_ips: [IpAddr; 1] = [NODE_IP.parse().unwrap()];
        let pod_ips = [POD_IP.to_string()];
        let own = environment(&EnvInput {
            pod,
            container,
            pod_ips: &pod_ips,
            node: NodeFacts {
                node_ips: &node_ips,
                host_ips: &[NODE_IP.to_string()],
                allocatable: &self.allocatable,
                pod_level_resources: true,
            },
            services: Some(&self.services),
            env_files: true,
            objects: &self.objects,
        })
        .map_err(|e| e.to_string())?;
        let extras = PlacementExtras::default();
        let envs = all_variables(&extras, own);
        let (volumes, images) = (volumes(pod), BTreeMap::new());
        let mounts = MountInput {
            container,
            volumes: &volumes,
            image_volumes: &images,
            envs: &envs,
            recursive_read_only: true,
        };
        let bound = sub_paths(&mounts)
            .map_err(|e| e.to_string())?
            .into_iter()
            .map(|s| {
                let (volume, name, index) = (s.volume, &container.name, s.index);
                let at = "/var/lib/kubelet/pods/$UID/volume-subpaths";
                (index, format!("{at}/{volume}/{name}/{index}"))
            })
            .collect();
        let file = format!("/var/lib/kubelet/pods/$UID/containers/{}/$RAND", container.name);
        let config = container_config(
            &self.settings,
            &ContainerInput {
                pod,
                container,
                attempt,
                image_ref: "$IMAGE_ID",
                image_user: &ImageUser::Uid(0),
                pod_ips: &pod_ips,
                mounts,
                bound_sub_paths: &bound,
                termination_file: Some(&file),
                extras: &extras,
                userns: None,
                target_id: None,
                extra_groups: &[],
                cpu_quota: CpuQuota::Enforced,
            },
        )
        .map_err(|e| e.to_string())?;
        Ok(json::container(&config))
    }
}

fn volumes(pod: &Pod) -> BTreeMap<String, VolumeView> {
    let mut all = BTreeMap::new();
    for volume in pod.spec.as_ref().unwrap().volumes.iter().flatten() {
        let (kind, read_only) = if volume.config_map.is_some() {
            ("configmap", true)
        } else if volume.secret.is_some() {
            ("secret", true)
        } else if volume.projected.is_some() {
            ("projected", true)
        } else if volume.downward_api.is_some() {
            ("downward-api", true)
        } else {
            ("empty-dir", false)
        };
        let host_path = match &volume.host_path {
            Some(host) => host.path.clone(),
            None => {
                format!("/var/lib/kubelet/pods/$UID/volumes/kubernetes.io~{kind}/{}", volume.name)
            }
        };
        let view = VolumeView { host_path, read_only, ..VolumeView::default() };
        all.insert(volume.name.clone(), view);
    }
    all
}

/// The container of a golden's call; ephemeral ones were added after the recording began.
fn container_of(golden: &Golden, name: &str) -> Container {
    let spec = golden.pod.spec.as_ref().unwrap();
    let mut own = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    own.find(|c| c.name == name).cloned().unwrap_or_else(|| {
        assert_eq!((golden.name.as_str(), name), ("ephemeral-container", "dbg"));
        as_container(&EphemeralContainer {
            name: "dbg".into(),
            image: Some("registry.k8s.io/e2e-test-images/busybox:1.37.0-1".into()),
            command: Some(vec!["sh".into(), "-c".into(), "sleep 2".into()]),
            termination_message_path: Some("/dev/termination-log".into()),
            termination_message_policy: Some("File".into()),
            ..EphemeralContainer::default()
        })
    })
}

/// Lists without a defined order compare as sets.
fn sorted(mut value: Value) -> Value {
    sort(&mut value, "");
    value
}

fn sort(value: &mut Value, key: &str) {
    match value {
        Value::Object(map) => map.iter_mut().for_each(|(k, v)| sort(v, k)),
        Value::Array(list) => {
            list.iter_mut().for_each(|v| sort(v, ""));
            if ["envs", "mounts", "hugepage_limits", "options"].contains(&key) {
                list.sort_by_key(ToString::to_string);
            }
        }
        _ => {}
    }
}

/// `$CONTAINER(name,attempt)`.
fn instance(id: &str) -> (String, u32) {
    let inner = id.strip_prefix("$CONTAINER(").and_then(|t| t.strip_suffix(')')).unwrap();
    let (name, attempt) = inner.split_once(',').unwrap();
    (name.into(), attempt.parse().unwrap())
}

#[test]
fn sandboxes_and_containers_are_those_of_the_go_kubelet() {
    let recording = recording();
    let (mut sandboxes, mut containers) = (0, 0);
    for golden in all() {
        for (method, request) in &golden.calls {
            let want = &request["config"];
            let attempt = u32::try_from(want["metadata"]["attempt"].as_u64().unwrap_or(0)).unwrap();
            let got = match method.as_str() {
                "RunPodSandbox" => {
                    sandboxes += 1;
                    recording.sandbox(&golden.pod, attempt)
                }
                "CreateContainer" => {
                    containers += 1;
                    let name = want["metadata"]["name"].as_str().unwrap();
                    recording.container(&golden.pod, &container_of(&golden, name), attempt)
                }
                _ => continue,
            };
            assert_eq!(
                sorted(got.unwrap()),
                sorted(want.clone()),
                "golden {} {method}",
                golden.name
            );
        }
    }
    assert_eq!((sandboxes, containers), (51, 62));
}

#[test]
fn start_stop_and_exec_are_those_of_the_go_kubelet() {
    let mut seen = 0;
    for golden in all() {
        let grace = golden.pod.spec.as_ref().unwrap().termination_grace_period_seconds.unwrap();
        for (method, request) in &golden.calls {
            let id = request["container_id"].as_str().unwrap_or_default();
            let timeout: i64 = request["timeout"].as_str().unwrap_or("0").parse().unwrap();
            match method.as_str() {
                "StartContainer" => assert_eq!(calls::start_container(id).container_id, id),
                "StopContainer" => {
                    // Both recorded preStop hooks take one second of the grace period.
                    let container = container_of(&golden, &instance(id).0);
                    let hook = container.lifecycle.is_some_and(|l| l.pre_stop.is_some());
                    let left = grace - i64::from(hook);
                    assert_eq!(calls::stop_container(id, left).timeout, timeout, "{}", golden.name);
                }
                "ExecSync" => {
                    let container = container_of(&golden, &instance(id).0);
                    let recorded = &request["cmd"];
                    let found = commands(&container).into_iter().any(|(command, seconds)| {
                        let built = calls::exec_sync(id, &command, seconds);
                        serde_json::to_value(&built.cmd).unwrap() == *recorded
                            && built.timeout == timeout
                    });
                    assert!(found, "{}: {request}", golden.name);
                }
                _ => continue,
            }
            seen += 1;
        }
    }
    assert!(seen > 100);
}

/// Commands of hooks (no time limit) and probes.
fn commands(container: &Container) -> Vec<(Vec<String>, i64)> {
    let mut all = Vec::new();
    let lifecycle = container.lifecycle.as_ref();
    for hook in
        [lifecycle.and_then(|l| l.post_start.as_ref()), lifecycle.and_then(|l| l.pre_stop.as_ref())]
    {
        let exec = hook.and_then(|h| h.exec.as_ref());
        all.extend(exec.map(|e| (e.command.clone().unwrap_or_default(), 0)));
    }
    for probe in [&container.liveness_probe, &container.startup_probe, &container.readiness_probe] {
        let Some(probe) = probe else { continue };
        let seconds = i64::from(probe.timeout_seconds.unwrap_or(1));
        all.extend(probe.exec.as_ref().map(|e| (e.command.clone().unwrap_or_default(), seconds)));
    }
    all
}

#[test]
fn a_resize_updates_sandbox_and_container_as_recorded() {
    let recording = recording();
    let resources = &recording.settings.resources;
    let mut golden = load(&goldens().join("pods/resize-cpu.json"));
    let container = &mut golden.pod.spec.as_mut().unwrap().containers[0];
    let own = container.resources.as_mut().unwrap();
    for side in [own.requests.as_mut(), own.limits.as_mut()] {
        side.unwrap().insert("cpu".into(), api::machinery::api::resource::Quantity("200m".into()));
    }
    let pod = golden.pod.clone();
    let container = &pod.spec.as_ref().unwrap().containers[0];
    let recorded = |wanted: &str| {
        golden.calls.iter().filter(|(m, _)| m == wanted).map(|(_, r)| r.clone()).collect::<Vec<_>>()
    };
    let update =
        resources.update_container("$CONTAINER(main,0)", &pod, container, CpuQuota::Enforced);
    assert_eq!(
        sorted(json::resources(update.linux.as_ref().unwrap())),
        sorted(recorded("UpdateContainerResources")[0]["linux"].clone())
    );
    for (shares, want) in [(102, 0), (204, 1)] {
        let values = PodCgroupValues {
            cpu_period: Some(100_000),
            cpu_quota: Some(20_000),
            cpu_shares: Some(shares),
            memory: Some(32 << 20),
        };
        let update = resources.update_sandbox("$SANDBOX0", &pod, &values);
        let want = &recorded("UpdatePodSandboxResources")[want];
        assert_eq!(json::resources(update.resources.as_ref().unwrap()), want["resources"]);
        assert_eq!(json::resources(update.overhead.as_ref().unwrap()), want["overhead"]);
    }
}

#[test]
fn refusals_have_the_recorded_texts() {
    let recording = recording();
    for (name, want) in [
        ("env-missing-configmap", "configmap \"absent\" not found"),
        (
            "security-nonroot-violated",
            "container has runAsNonRoot and image will run as root (pod: \
             \"security-nonroot-violated_golden($UID)\", container: main)",
        ),
    ] {
        let path = goldens().join(format!("pods/{name}.json"));
        let golden = load(&path);
        let container = golden.pod.spec.as_ref().unwrap().containers[0].clone();
        let text = recording.container(&golden.pod, &container, 0).unwrap_err();
        assert_eq!(text, want);
        let recorded: Value =
            serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
        let events = recorded["events"].as_array().unwrap();
        let message = format!("Error: {want}");
        assert!(events.iter().any(|e| e["message"] == message.as_str()), "{name}: {message}");
    }
}
