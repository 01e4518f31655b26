//! The one configuration, spelled out for each subsystem.
//!
//! Feature gates end here: what follows are plain fields.

use crate::host::Host;
use config::Config;
use config::resolved::{
    Authorization, CpuManagerPolicy, MemoryManagerPolicy, SecretsVerification, SwapBehavior,
    TlsVersion,
};
use engine::admission::resize::ResizePolicy;
use engine::cgroup::{CgroupName, Driver};
use engine::cpus::OptionStages;
use engine::housekeeping::garbage::GcPolicy;
use engine::image::pull_order::PullOrder;
use engine::image::record::{AllowList, VerificationPolicy};
use engine::node::{NodeSettings, Reservation, Threshold};
use engine::pod::PodGates;
use engine::pod::backoff::BackOffCurve;
use engine::request::RequestSettings;
use engine::request::hostname::HostnameOverride;
use engine::request::resources::{CgroupVersion, MemoryQos, MemoryReservation, ResourceSettings};
use engine::request::security::SecuritySettings;
use engine::status::StatusGates;
use engine::volumes::Labelling;
use images::{DockerConfigPlaces, ImagesConfig};
use kubeapi::{ConnectionConfig, ObjectsConfig, Rate, Strategy};
use node::{HeartbeatConfig, LeaseConfig, NodeConfig, Registration};
use pods::{AdmissionConfig, PodsConfig, UrlSourceConfig, UsernsConfig, ViewConfig};
use ports::Roots;
use server::ServerSettings;
use server::auth::AuthConfig;
use server::route::Switches;
use server::tls::{AskClient, TlsSettings};
use stats::StatsConfig;
use std::net::IpAddr;
use units::Quantity;
use volumes::VolumesConfig;

/// Probes that may start per second, over all pods: spreads the crowd after a restart.
const PROBES_PER_SECOND: u32 = 1000;

/// Places on disk.
pub(crate) fn roots(config: &Config) -> Roots {
    Roots {
        kubelet: config.dirs.root.clone(),
        pod_logs: config.dirs.pod_logs.clone(),
        ..Roots::default()
    }
}

fn pod_gates(config: &Config) -> PodGates {
    let on = |gate| config.gates.enabled(gate);
    PodGates {
        container_restart_rules: on("ContainerRestartRules"),
        restart_all_containers: on("RestartAllContainersOnContainerExits"),
        resize: on("InPlacePodVerticalScaling"),
        resize_init_containers: on("InPlacePodVerticalScalingInitContainers"),
        resize_pod_level: on("InPlacePodLevelResourcesVerticalScaling"),
    }
}

fn static_pod_rules(config: &Config) -> engine::static_pod::Rules {
    let on = |gate: &str| config.gates.enabled(gate);
    engine::static_pod::Rules {
        pod_level_resources: on("PodLevelResources"),
        restart_rules: on("ContainerRestartRules"),
        restart_all: on("RestartAllContainersOnContainerExits"),
        toleration_numbers: on("TaintTolerationComparisonOperators"),
        user_namespace_on_host_network: on("UserNamespacesHostNetworkSupport"),
        strict_addresses: on("StrictIPCIDRValidation"),
        merged_label_keys: on("MatchLabelKeysInPodTopologySpread")
            && on("MatchLabelKeysInPodTopologySpreadSelectorMerge"),
        deletion_cost: on("PodDeletionCost"),
    }
}

fn status_gates(config: &Config) -> StatusGates {
    let on = |gate| config.gates.enabled(gate);
    StatusGates {
        pod: pod_gates(config),
        pod_level_resources: on("PodLevelResources"),
        stop_signals: on("ContainerStopSignals"),
        user: on("SupplementalGroupsPolicy"),
        volume_mounts: on("RecursiveReadOnlyMounts"),
        ready_to_start: on("PodReadyToStartContainersCondition"),
        change_on_restart: on("ChangeContainerStatusOnKubeletRestart"),
        observed_generation: on("PodObservedGenerationTracking"),
    }
}

fn request(config: &Config, host: &Host) -> RequestSettings {
    let v2 = host.cgroups.is_v2();
    let bytes = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
    let memory_qos = (v2 && memory_qos(config)).then(|| MemoryQos {
        reservation: if config.resources.tiered_memory_reservation {
            MemoryReservation::Tiered
        } else {
            MemoryReservation::None
        },
        throttling_factor: config.resources.memory_throttling_factor,
        allocatable_memory: crate::allocatable::memory_for_pods(config, host),
        page_size: 4096,
    });
    RequestSettings {
        kubelet_root: config.dirs.root.display().to_string(),
        pod_logs_dir: config.dirs.pod_logs.display().to_string(),
        cluster_domain: config.dns.cluster_domain.clone(),
        hostname_override: if config.gates.enabled("HostnameOverride") {
            HostnameOverride::Honoured
        } else {
            HostnameOverride::Ignored
        },
        stop_signals: config.gates.enabled("ContainerStopSignals"),
        selinux_enabled: host.selinux,
        resources: ResourceSettings {
            cgroup: if v2 { CgroupVersion::V2 } else { CgroupVersion::V1 },
            cfs_period: config.pods.cpu_cfs_quota.then_some(config.pods.cpu_cfs_quota_period),
            single_process_oom_kill: config.pods.single_process_oom_kill.unwrap_or(!v2),
            pod_level_resources: pod_level_resources(config),
            memory_capacity: bytes(host.machine.memory_bytes),
            swap_capacity: bytes(host.machine.swap_bytes),
            swap_controller: host.swap_controller,
            limited_swap: config.pods.swap_behavior == SwapBehavior::LimitedSwap,
            memory_qos,
            hugepage_sizes: host.page_sizes.clone(),
        },
        security: SecuritySettings {
            seccomp_default: config.runtime.seccomp_default,
            seccomp_root: config.dirs.root.join("seccomp").display().to_string(),
            thermal_throttle_paths: host.thermal_throttle.clone(),
        },
    }
}

/// Addresses of `--node-ip`; what does not parse was reported by `config`.
pub(crate) fn node_ips(config: &Config) -> Vec<IpAddr> {
    config.node.node_ip.split(',').filter_map(|ip| ip.trim().parse().ok()).collect()
}

/// The pod subsystem.
pub(crate) fn pods(config: &Config, host: &Host, roots: &Roots, runtime_name: &str) -> PodsConfig {
    let sources = &config.sources;
    let headers = sources.url_headers.iter();
    PodsConfig {
        user_namespaces: UsernsConfig::default(),
        node_name: host.hostname.clone(),
        roots: roots.clone(),
        static_pod_path: sources.path.clone(),
        file_check_frequency: sources.file_check_frequency,
        static_pod_url: sources.url.clone().map(|url| UrlSourceConfig {
            url,
            headers: headers
                .flat_map(|(name, values)| values.iter().map(move |v| (name.clone(), v.clone())))
                .collect(),
            period: sources.http_check_frequency,
        }),
        refuse_api_references: config.gates.enabled("PreventStaticPodAPIReferences"),
        static_pod_rules: static_pod_rules(config),
        sync_frequency: sources.sync_frequency,
        request: request(config, host),
        resolv_conf: config.dns.resolv_conf.clone(),
        cluster_dns: config.dns.cluster_dns.iter().filter_map(|ip| ip.parse().ok()).collect(),
        node_ips: node_ips(config),
        env_files: config.gates.enabled("EnvFiles"),
        gates: pod_gates(config),
        status_gates: status_gates(config),
        crash_loop: BackOffCurve::new(
            config.pods.initial_restart_back_off,
            config.pods.max_restart_back_off,
        ),
        view: ViewConfig::default(),
        gc: GcPolicy {
            min_age: config.container_gc.minimum_age,
            max_per_container: config.container_gc.max_per_container.and_then(count),
            max_containers: config.container_gc.max_total.and_then(count),
        },
        version: major_minor(&config.version),
        runtime_name: runtime_name.to_owned(),
        admission: AdmissionConfig {
            allowed_unsafe_sysctls: config.pods.allowed_unsafe_sysctls.clone(),
            pod_level_resources: pod_level_resources(config),
            taint_comparison: config.gates.enabled("TaintTolerationComparisonOperators"),
            declared_features: host.declared_features.clone(),
            resize: resize_policy(config, host),
        },
        probes_per_second: PROBES_PER_SECOND,
        seed: u64::from(std::process::id()),
    }
}

/// Which resizes this node refuses for good.
fn resize_policy(config: &Config, host: &Host) -> ResizePolicy {
    let on = |gate| config.gates.enabled(gate);
    let resources = &config.resources;
    ResizePolicy {
        pod_level: on("InPlacePodLevelResourcesVerticalScaling"),
        exclusive_cpus: resources.cpu_manager_policy == CpuManagerPolicy::Static
            && !on("InPlacePodVerticalScalingExclusiveCPUs"),
        exclusive_memory: resources.memory_manager_policy == MemoryManagerPolicy::Static
            && !on("InPlacePodVerticalScalingExclusiveMemory"),
        swap: config.pods.swap_behavior == SwapBehavior::LimitedSwap
            && on("NodeSwap")
            && host.cgroups.is_v2()
            && host.swap_controller,
    }
}

/// What the node says it can do beyond its version; `None` when it should not say (gate
/// NodeDeclaredFeatures). `host_network_users`: the runtime can do user namespaces together with the
/// host's network.
pub(crate) fn declared_features(config: &Config, host_network_users: bool) -> Option<Vec<String>> {
    let on = |gate: &&str| config.gates.enabled(gate);
    let by_gate = [
        "ExtendWebSocketsToKubelet",
        "InPlacePodLevelResourcesVerticalScaling",
        "InPlacePodVerticalScalingInitContainers",
        "RestartAllContainersOnContainerExits",
    ];
    let by_runtime = host_network_users.then_some("UserNamespacesHostNetworkSupport");
    on(&"NodeDeclaredFeatures")
        .then(|| by_gate.into_iter().chain(by_runtime).filter(on).map(str::to_owned).collect())
}

fn count(number: u32) -> Option<usize> {
    usize::try_from(number).ok()
}

/// `1.36` of `v1.36.4+…`.
fn major_minor(version: &str) -> String {
    let mut parts = version.trim_start_matches('v').split('.');
    format!("{}.{}", parts.next().unwrap_or_default(), parts.next().unwrap_or_default())
}

/// Image pulls.
pub(crate) fn images(config: &Config) -> ImagesConfig {
    let pulls = &config.image_pulls;
    let serial = config.kubelet.serialize_image_pulls.unwrap_or(true);
    ImagesConfig {
        serialize_pulls: serial,
        max_parallel_pulls: pulls.max_parallel.and_then(count),
        max_pods: config.pods.max_pods,
        pull_order: match config.opt_ins.pull_order {
            config::environment::PullOrder::Arrival => PullOrder::Arrival,
            config::environment::PullOrder::Priority => PullOrder::Priority,
        },
        progress_events: config.opt_ins.pull_events,
        registry_qps: pulls.qps.map_or(0.0, f64::from),
        registry_burst: pulls.burst,
        verification: verification(&pulls.verification),
        kubelet_root: config.dirs.root.clone(),
        docker_config: DockerConfigPlaces::of_node(
            config.dirs.root.clone(),
            std::env::current_dir().unwrap_or_else(|_| "/".into()),
            std::env::home_dir(),
        ),
        providers: None,
        handler_in_calls: config.gates.enabled("RuntimeClassInImageCriApi"),
    }
}

fn verification(policy: &SecretsVerification) -> Option<VerificationPolicy> {
    Some(match policy {
        SecretsVerification::NeverVerify => VerificationPolicy::NeverVerify,
        SecretsVerification::NeverVerifyPreloadedImages => {
            VerificationPolicy::NeverVerifyPreloadedImages
        }
        SecretsVerification::NeverVerifyAllowlistedImages(list) => {
            // Validated by `config`; an empty list verifies everything, so the fallback is safe.
            let list = AllowList::parse(list).unwrap_or_default();
            VerificationPolicy::NeverVerifyAllowlistedImages(list)
        }
        SecretsVerification::AlwaysVerify => VerificationPolicy::AlwaysVerify,
        SecretsVerification::Off => return None,
    })
}

/// Volumes.
pub(crate) fn volumes(config: &Config, host: &Host, roots: &Roots) -> VolumesConfig {
    VolumesConfig {
        standalone: config.standalone(),
        controller_attaches: config.node.controller_attach_detach,
        volume_plugin_dir: config.dirs.volume_plugins.clone(),
        cluster_trust_bundles: config.gates.enabled("ClusterTrustBundleProjection"),
        pod_certificates: config.gates.enabled("PodCertificateRequest"),
        project_quotas: config.gates.enabled("LocalStorageCapacityIsolationFSQuotaMonitoring"),
        health: config.gates.enabled("CSIVolumeHealth"),
        selinux: host.selinux,
        labelling: Labelling::read(&host.selinux_contexts, config.gates.enabled("SELinuxMount")),
        usage_period: config.pods.volume_stats_period,
        ..VolumesConfig::new(roots.clone(), host.hostname.clone())
    }
}

/// The way to the API server.
pub(crate) fn connection(config: &Config) -> ConnectionConfig {
    let Some(api) = &config.api else { return ConnectionConfig::default() };
    let rate = |qps: u32, burst: u32| Rate::from_config(clamp(qps), clamp(burst));
    ConnectionConfig {
        user_agent: format!("kubelet/{} (linux/{}) rubelet", config.version, architecture()),
        rate: rate(api.qps, api.burst),
        event_rate: rate(api.event_qps, api.event_burst),
        heartbeat_deadline: api.heartbeat_timeout,
        ..ConnectionConfig::default()
    }
}

fn clamp(number: u32) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

/// Objects that pods refer to.
pub(crate) fn objects(config: &Config, host: &Host) -> Option<ObjectsConfig> {
    let strategy = match config.api.as_ref()?.change_detection {
        config::resolved::ChangeDetection::Get => Strategy::Get,
        config::resolved::ChangeDetection::Cache => Strategy::Cache,
        config::resolved::ChangeDetection::Watch
        | config::resolved::ChangeDetection::Unknown(_) => Strategy::Watch,
    };
    Some(ObjectsConfig {
        node_name: host.hostname.clone(),
        strategy,
        sync_frequency: config.sources.sync_frequency,
    })
}

/// Go's name of the architecture.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// A hard eviction threshold that node allocatable keeps back; `config` has checked its form.
fn threshold(config: &Config, signal: &str) -> Option<Threshold> {
    if config.resources.ignore_eviction_in_allocatable {
        return None;
    }
    let text = config.eviction.hard.get(signal)?;
    match text.strip_suffix('%') {
        Some(percent) => percent.parse::<f32>().ok().map(|p| Threshold::Share(p / 100.0)),
        None => text.parse::<Quantity>().ok().map(Threshold::Amount),
    }
}

/// What is kept from pods.
pub(crate) fn reservation(config: &Config) -> Reservation {
    Reservation {
        system: config.resources.reservations.system.clone(),
        kube: config.resources.reservations.kube.clone(),
        memory_eviction: threshold(config, "memory.available"),
        storage_eviction: threshold(config, "nodefs.available"),
    }
}

/// The node.
pub(crate) fn node(config: &Config, host: &Host, roots: &Roots) -> NodeConfig {
    let node = &config.node;
    NodeConfig {
        settings: NodeSettings {
            node_name: host.hostname.clone(),
            hostname: host.hostname.clone(),
            architecture: architecture().to_owned(),
            kubelet_version: config.version.clone(),
            node_ips: node_ips(config),
            external_cloud: node.external_cloud,
            provider_id: node.provider_id.clone(),
            labels: node.labels.clone(),
            taints: node
                .taints
                .iter()
                .map(|(key, value, effect)| api::core::v1::Taint {
                    key: key.clone(),
                    value: (!value.is_empty()).then(|| value.clone()),
                    effect: effect.clone(),
                    time_added: None,
                })
                .collect(),
            controller_attach: node.controller_attach_detach,
            max_pods: i64::from(config.pods.max_pods),
            pods_per_core: config.pods.pods_per_core.map_or(0, i64::from),
            port: config.server.https.map_or(0, |a| i32::from(a.port())),
            max_images: node.status_max_images.map_or(-1, |n| i32::try_from(n).unwrap_or(i32::MAX)),
            local_storage_isolation: config.pods.local_storage_isolation,
            reservation: reservation(config),
            report_swap: config.gates.enabled("NodeSwap"),
            report_runtime_handlers: config.gates.enabled("RecursiveReadOnlyMounts")
                || config.gates.enabled("UserNamespacesSupport"),
            report_features: config.gates.enabled("SupplementalGroupsPolicy"),
            declared_features: host.declared_features.clone(),
        },
        roots: roots.clone(),
        heartbeat: HeartbeatConfig {
            registration: if node.register {
                Registration::Register
            } else {
                Registration::ByOthers
            },
            update_frequency: node.status_update_frequency,
            report_frequency: node.status_report_frequency,
            get_on_exists_only: config.gates.enabled("KubeletRegistrationGetOnExistsOnly"),
        },
        pod_cidr: config.dns.pod_cidr.clone(),
        lease: LeaseConfig {
            duration_seconds: i32::try_from(node.lease_duration.as_secs()).unwrap_or(i32::MAX),
        },
    }
}

/// The HTTP API.
pub(crate) fn server(config: &Config, host: &Host) -> ServerSettings {
    let server = &config.server;
    let on = |gate| config.gates.enabled(gate);
    ServerSettings {
        https: server.https,
        read_only: server.read_only,
        switches: Switches {
            debugging: server.debugging_handlers,
            system_logs: server.system_log_handler,
            profiling: server.profiling_handler,
            debug_flags: server.debug_flags_handler,
            checkpoint: on("ContainerCheckpoint"),
            flagz: on("ComponentFlagz"),
            statusz: on("ComponentStatusz"),
            log_query: server.system_log_query && on("NodeLogQuery"),
            split_log_streams: on("PodLogsQuerySplitStreams"),
            translate_websockets: on("ExtendWebSocketsToKubelet"),
        },
        tls: TlsSettings {
            min_version: match server.tls_min_version {
                TlsVersion::V13 => "VersionTLS13".to_owned(),
                _ => String::new(),
            },
            cipher_suites: server.tls_cipher_suites.clone(),
            curve_preferences: server.tls_curve_preferences.clone(),
            ask_client: match server.client_ca_file {
                None => AskClient::Never,
                Some(_) if on("ReloadKubeletClientCAFile") => AskClient::Followed,
                Some(_) => AskClient::AtStart,
            },
        },
        certificate_files: server.tls_cert_file.clone().zip(server.tls_private_key_file.clone()),
        client_ca: server.client_ca_file.clone(),
        auth: AuthConfig {
            node_name: host.hostname.clone(),
            anonymous: server.anonymous,
            token_cache: server.token_webhook,
            access_cache: match &server.authorization {
                Authorization::Webhook(webhook) => Some((webhook.cache_yes, webhook.cache_no)),
                Authorization::AlwaysAllow => None,
            },
            strict_streaming: config.opt_ins.strict_streaming,
        },
    }
}

/// The usage readers.
pub(crate) fn stats(
    config: &Config,
    host: &Host,
    roots: &Roots,
    driver: Driver,
    started: api::stats::Moment,
) -> StatsConfig {
    let resources = &config.resources;
    let root = CgroupName::of_root(&resources.cgroup_root);
    let tree = engine::cgroup::Tree::new(&root);
    let own = || crate::host::own_cgroup_of(roots, &host.cgroups);
    StatsConfig {
        node_name: host.hostname.clone(),
        roots: roots.clone(),
        cgroups: std::sync::Arc::clone(&host.cgroups),
        driver,
        kubepods: resources.cgroups_per_qos.then(|| tree.kubepods().path(driver)),
        kubelet_cgroup: resources.kubelet_cgroups.clone().or_else(own),
        runtime_cgroup: config.runtime.cgroups.clone(),
        misc_cgroup: resources.system_cgroups.clone(),
        machine: host.machine.clone(),
        versions: (sys::host::uname_release(), sys::host::os_image(&roots.etc)),
        boot_time: crate::host::boot_time(roots),
        started,
        measure_volumes: config.pods.volume_stats_period.is_some(),
        from_runtime: config.gates.enabled("PodAndContainerStatsFromCRI"),
    }
}

/// Gates of the devices of plugins and of claims.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DeviceGates {
    /// Whether a pod's status tells the health of its devices, and why it is bad.
    pub(crate) health: bool,
    pub(crate) health_message: bool,
    /// Whether extended resources can be had by claims.
    pub(crate) extended_claims: bool,
    /// Whether claims of a group of pods are known.
    pub(crate) group_claims: bool,
    /// Whether the pod resources socket lists only pods that have not ended.
    pub(crate) active_pods_only: bool,
}

pub(crate) fn device_gates(config: &Config) -> DeviceGates {
    let on = |gate| config.gates.enabled(gate);
    DeviceGates {
        health: on("ResourceHealthStatus"),
        health_message: on("ResourceHealthStatusMessage"),
        extended_claims: on("DRAExtendedResource"),
        group_claims: on("DRAWorkloadResourceClaims"),
        active_pods_only: on("KubeletPodResourcesListUseActivePods"),
    }
}

/// Which options of the CPU manager's policy can be had.
pub(crate) fn cpu_option_stages(config: &Config) -> OptionStages {
    let on = |gate| config.gates.enabled(gate);
    OptionStages {
        alpha: on("CPUManagerPolicyAlphaOptions"),
        beta: on("CPUManagerPolicyBetaOptions"),
    }
}

/// Gates of graceful shutdown.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ShutdownGates {
    pub(crate) graceful: bool,
    pub(crate) by_priority: bool,
}

pub(crate) fn shutdown_gates(config: &Config) -> ShutdownGates {
    let on = |gate| config.gates.enabled(gate);
    ShutdownGates {
        graceful: on("GracefulNodeShutdown"),
        by_priority: on("GracefulNodeShutdownBasedOnPodPriority"),
    }
}

/// Whether the times of the last shutdown are kept and shown.
pub(crate) fn keeps_shutdown_times(config: &Config) -> bool {
    let gates = shutdown_gates(config);
    gates.graceful && gates.by_priority
}

/// Whether the cgroups of pods protect and throttle memory.
pub(crate) fn memory_qos(config: &Config) -> bool {
    config.gates.enabled("MemoryQoS")
}

/// Whether pods may have resources of their own.
pub(crate) fn pod_level_resources(config: &Config) -> bool {
    config.gates.enabled("PodLevelResources")
}

/// Whether CPUs and memory are given out to pods with resources of their own.
pub(crate) fn pod_level_managers(config: &Config) -> bool {
    config.gates.enabled("PodLevelResourceManagers")
}

/// Whether a container with CPUs of its own has no quota.
pub(crate) fn exclusive_cpus_lift_quota(config: &Config) -> bool {
    config.gates.enabled("DisableCPUQuotaWithExclusiveCPUs")
}

/// Whether the runtime is asked for lists as streams.
pub(crate) fn lists_are_streamed(config: &Config) -> bool {
    config.gates.enabled("CRIListStreaming")
}

/// Whether pods on the host's network may have users of their own.
pub(crate) fn user_namespaces_on_host_network(config: &Config) -> bool {
    config.gates.enabled("UserNamespacesHostNetworkSupport")
}

/// Whether containers can be checkpointed.
pub(crate) fn checkpoints(config: &Config) -> bool {
    config.gates.enabled("ContainerCheckpoint")
}

/// Whether a serving certificate is asked for a node without addresses.
pub(crate) fn allow_dns_only_certificates(config: &Config) -> bool {
    config.gates.enabled("AllowDNSOnlyNodeCSR")
}

/// Whether there is a socket that lists pods.
pub(crate) fn serves_pods_socket(config: &Config) -> bool {
    config.gates.enabled("PodsAPI")
}

/// Whether it is remembered with which credentials images were pulled.
pub(crate) fn remembers_pulls(config: &Config) -> bool {
    config.gates.enabled("KubeletEnsureSecretPulledImages")
}

/// Whether the files of the serving certificate are read again when they change.
pub(crate) fn reloads_serving_files(config: &Config) -> bool {
    config.gates.enabled("ReloadKubeletServerCertificateFile")
}

/// Whether credential providers may be given a pod's token.
pub(crate) fn tokens_for_providers(config: &Config) -> bool {
    config.gates.enabled("KubeletServiceAccountTokenForCredentialProviders")
}

/// Whether images and containers may have a filesystem each.
pub(crate) fn image_filesystem_may_be_split(config: &Config) -> bool {
    config.gates.enabled("KubeletSeparateDiskGC")
}

/// Whether what cannot be done in a user namespace is left out there.
pub(crate) fn allows_user_namespace(config: &Config) -> bool {
    config.gates.enabled("KubeletInUserNamespace")
}
