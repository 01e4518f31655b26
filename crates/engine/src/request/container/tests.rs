//! What the goldens do not show: extras, targets, signals, id mappings.

use super::*;
use crate::request::mounts::VolumeView;
use crate::request::{hostname::HostnameOverride, resources, security::SecuritySettings};
use api::core::v1::{Lifecycle, PodSpec};

fn settings() -> RequestSettings {
    RequestSettings {
        kubelet_root: "/root".into(),
        pod_logs_dir: "/logs".into(),
        cluster_domain: "d".into(),
        hostname_override: HostnameOverride::Honoured,
        stop_signals: true,
        selinux_enabled: true,
        resources: resources::ResourceSettings {
            cgroup: resources::CgroupVersion::V2,
            cfs_period: None,
            single_process_oom_kill: true,
            pod_level_resources: true,
            memory_capacity: 1 << 30,
            swap_capacity: 0,
            swap_controller: false,
            limited_swap: false,
            memory_qos: None,
            hugepage_sizes: vec![],
        },
        security: SecuritySettings::default(),
    }
}

struct Case {
    pod: Pod,
    container: Container,
    extras: PlacementExtras,
    userns: Option<UserNamespaceRange>,
    target: Option<&'static str>,
}

impl Case {
    fn new() -> Self {
        let mut pod = Pod { spec: Some(PodSpec::default()), ..Pod::default() };
        pod.metadata.uid = Some("u".into());
        let container = Container {
            name: "c".into(),
            image: Some("img:1".into()),
            termination_message_path: Some("dev/log".into()),
            ..Container::default()
        };
        Self { pod, container, extras: PlacementExtras::default(), userns: None, target: None }
    }

    fn config(&self) -> ContainerConfig {
        self.config_with(b"own").unwrap()
    }

    fn config_with(&self, value: &[u8]) -> Result<ContainerConfig, RequestError> {
        let envs = all_variables(
            &self.extras,
            vec![EnvVariable { name: "E".into(), value: value.to_vec() }],
        );
        let (volumes, images) = (BTreeMap::<String, VolumeView>::new(), BTreeMap::new());
        let input = ContainerInput {
            pod: &self.pod,
            container: &self.container,
            attempt: 2,
            image_ref: "sha256:1",
            image_user: &ImageUser::Uid(0),
            pod_ips: &["10.0.0.2".into()],
            mounts: MountInput {
                container: &self.container,
                volumes: &volumes,
                image_volumes: &images,
                envs: &envs,
                recursive_read_only: false,
            },
            bound_sub_paths: &BTreeMap::new(),
            termination_file: Some("/root/pods/u/containers/c/0badcafe"),
            extras: &self.extras,
            userns: self.userns,
            target_id: self.target,
            extra_groups: &[],
            cpu_quota: CpuQuota::Enforced,
        };
        container_config(&settings(), &input)
    }
}

#[test]
fn placement_comes_first_and_its_names_expand() {
    let mut case = Case::new();
    case.extras = PlacementExtras {
        envs: vec![("E".into(), "extra".into()), ("X".into(), "x".into())],
        mounts: vec![("/h".into(), "/c".into(), true)],
        devices: vec![("/dev/h".into(), "/dev/c".into(), "rw".into())],
        annotations: vec![("a".into(), "b".into())],
        cdi_devices: vec!["v/c=d".into()],
        cpuset_cpus: "0-1".into(),
        cpuset_mems: "0".into(),
    };
    case.container.command = Some(vec!["$(E)-$(X)-$(NONE)".into()]);
    let got = case.config();
    assert_eq!(got.command, ["own-x-$(NONE)"]);
    let names: Vec<_> = got.envs.iter().map(|e| e.key.as_str()).collect();
    assert_eq!(names, ["E", "X", "E"]);
    let mounts: Vec<_> =
        got.mounts.iter().map(|m| (m.container_path.as_str(), m.selinux_relabel)).collect();
    assert_eq!(mounts, [("/c", false), ("/etc/hosts", true), ("/dev/log", true)]);
    assert_eq!(got.cdi_devices[0].name, "v/c=d");
    assert_eq!(got.annotations["a"], "b");
    let resources = got.linux.unwrap().resources.unwrap();
    assert_eq!((resources.cpuset_cpus.as_str(), resources.cpuset_mems.as_str()), ("0-1", "0"));
}

#[test]
fn a_command_that_is_no_text_is_refused_but_a_variable_may_be_any_bytes() {
    let mut case = Case::new();
    let bytes = b"\xff\xfe";
    assert_eq!(case.config_with(bytes).unwrap().envs[0].value, bytes);
    case.container.args = Some(vec!["<$(E)>".into()]);
    let error = case.config_with(bytes).unwrap_err();
    assert_eq!((&error, error.reason()), (&RequestError::NotText, "CreateContainerError"));
    assert_eq!(
        error.to_string(),
        "grpc: error while marshaling: string field contains invalid UTF-8"
    );
}

#[test]
fn an_ephemeral_container_joins_its_target_only_across_pid_namespaces() {
    let mut case = Case::new();
    case.target = Some("t");
    let pid = |case: &Case| {
        let context = case.config().linux.unwrap().security_context.unwrap();
        let options = context.namespace_options.unwrap();
        (options.pid(), options.target_id.clone())
    };
    assert_eq!(pid(&case), (NamespaceMode::Target, "t".into()));
    case.pod.spec.as_mut().unwrap().share_process_namespace = Some(true);
    assert_eq!(pid(&case), (NamespaceMode::Pod, String::new()));
}

#[test]
fn stop_signals_have_the_runtimes_names() {
    for (name, want) in [
        ("SIGUSR1", Signal::Sigusr1),
        ("SIGRTMIN+1", Signal::Sigrtminplus1),
        ("SIGRTMAX-1", Signal::Sigrtmaxminus1),
        ("odd", Signal::RuntimeDefault),
    ] {
        let mut case = Case::new();
        case.container.lifecycle =
            Some(Lifecycle { stop_signal: Some(name.into()), ..Lifecycle::default() });
        assert_eq!(case.config().stop_signal(), want, "{name}");
    }
}

#[test]
fn every_mount_of_a_pod_with_its_own_ids_is_mapped() {
    let mut case = Case::new();
    case.userns = Some(UserNamespaceRange { host_id: 65_536, length: 65_536 });
    let got = case.config();
    assert!(!got.mounts.is_empty());
    assert!(got.mounts.iter().all(|m| m.uid_mappings.len() == 1 && m.gid_mappings.len() == 1));
}
