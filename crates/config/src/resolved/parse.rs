//! From the configuration document to its typed sections.

use super::sections::{
    ApiClient, Authorization, CgroupDriver, ChangeDetection, ContainerGc, ContainerLogs,
    CpuManagerPolicy, CredentialProviders, Dirs, Dns, Enforcement, Eviction, ImageGc, ImagePulls,
    LockFile, LogFormat, Logging, MemoryManagerPolicy, Node, PodLimits, Reservations, Resources,
    Runtime, SecretsVerification, Server, Shutdown, Sources, SwapBehavior, TopologyPolicy,
    TopologyScope, Tracing, Webhook, span,
};
use super::tls::TlsVersion;
use crate::flags::KubeletFlags;
use crate::gates::Gates;
use crate::kubelet::{self, KubeletConfiguration};
use crate::text::clean_path;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;
use units::strconv::{parse_ip, quote};
use units::{CpuSet, HeldQuantity, Quantity, SpelledQuantity};

fn path(text: &str) -> Option<PathBuf> {
    (!text.is_empty()).then(|| text.into())
}

fn name(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

fn count(number: i32) -> u32 {
    u32::try_from(number).unwrap_or(0)
}

pub(super) fn dirs(k: &KubeletConfiguration, flags: &KubeletFlags) -> Dirs {
    Dirs {
        root: clean_path(&flags.root_dir).into(),
        pod_logs: k.pod_logs_dir.as_str().into(),
        certs: flags.cert_dir.as_str().into(),
        volume_plugins: k.volume_plugin_dir.as_str().into(),
    }
}

impl Logging {
    /// The settings of a configuration's logging section.
    pub(crate) fn of(k: &KubeletConfiguration) -> Self {
        let options = &k.logging.options;
        let (format, split_stream, buffer) = match k.logging.format.as_str() {
            "json" => (LogFormat::Json, options.json.split_stream, options.json.info_buffer_size),
            _ => (LogFormat::Text, options.text.split_stream, options.text.info_buffer_size),
        };
        let items = k.logging.vmodule.iter();
        Self {
            format,
            verbosity: k.logging.verbosity,
            vmodule: items.map(|item| (item.file_pattern.clone(), item.verbosity)).collect(),
            flush_frequency: span(k.logging.flush_frequency.duration),
            split_stream,
            info_buffer_bytes: u64::try_from(buffer.value()).unwrap_or(0),
        }
    }
}

/// Names the self-signed certificate where nobody named one; answers whether it did.
pub(super) fn name_certificate(k: &mut KubeletConfiguration, flags: &KubeletFlags) -> bool {
    let self_signed =
        !k.server_tls_bootstrap && k.tls_cert_file.is_empty() && k.tls_private_key_file.is_empty();
    if self_signed {
        let joined = |name: &str| match flags.cert_dir.as_str() {
            "" => name.to_owned(),
            folder => clean_path(&format!("{folder}/{name}")),
        };
        k.tls_cert_file = joined("kubelet.crt");
        k.tls_private_key_file = joined("kubelet.key");
    }
    self_signed
}

/// What was found out about serving before.
#[derive(Debug, Clone, Copy)]
pub(super) struct Certificate {
    pub(super) self_signed: bool,
    pub(super) tls_min_version: TlsVersion,
}

/// Where and how to serve; an address that is none is answered as a fault.
pub(super) fn server(k: &KubeletConfiguration, tls: Certificate) -> (Server, Option<String>) {
    let mut fault = None;
    let mut at = |text: &str, port: i32| match u16::try_from(port).unwrap_or(0) {
        0 => None,
        port => match ip(text) {
            Ok(ip) => Some(SocketAddr::new(ip, port)),
            Err(error) => {
                fault.get_or_insert(error);
                None
            }
        },
    };
    let enabled = k.enable_server.unwrap_or(true);
    let webhook = &k.authorization.webhook;
    let authentication = &k.authentication;
    // A bad address of the health endpoint is no reason not to run.
    let healthz_port = u16::try_from(k.healthz_port.unwrap_or(0)).unwrap_or(0);
    let healthz = match k.healthz_bind_address.as_str() {
        "localhost" => Some(Ipv4Addr::LOCALHOST.into()),
        text => ip(text).ok(),
    };
    let healthz = healthz.filter(|_| healthz_port > 0);
    let server = Server {
        healthz: healthz.map(|ip| SocketAddr::new(ip, healthz_port)),
        https: if enabled { at(&k.address, k.port) } else { None },
        read_only: at(&k.address, k.read_only_port),
        tls_cert_file: path(&k.tls_cert_file),
        tls_private_key_file: path(&k.tls_private_key_file),
        tls_self_signed: tls.self_signed,
        tls_cipher_suites: k.tls_cipher_suites.clone(),
        tls_curve_preferences: k.tls_curve_preferences.clone(),
        tls_min_version: tls.tls_min_version,
        server_tls_bootstrap: k.server_tls_bootstrap,
        client_ca_file: path(&authentication.x509.client_ca_file),
        anonymous: authentication.anonymous.enabled.unwrap_or(false),
        token_webhook: authentication
            .webhook
            .enabled
            .unwrap_or(true)
            .then(|| span(authentication.webhook.cache_ttl)),
        authorization: match k.authorization.mode.as_str() {
            "AlwaysAllow" => Authorization::AlwaysAllow,
            _ => Authorization::Webhook(Webhook {
                cache_yes: span(webhook.cache_authorized_ttl),
                cache_no: span(webhook.cache_unauthorized_ttl),
            }),
        },
        debugging_handlers: k.enable_debugging_handlers.unwrap_or(true),
        profiling_handler: k.enable_profiling_handler.unwrap_or(true),
        debug_flags_handler: k.enable_debug_flags_handler.unwrap_or(true),
        system_log_handler: k.enable_system_log_handler.unwrap_or(true),
        system_log_query: k.enable_system_log_query.unwrap_or(false),
        contention_profiling: k.enable_contention_profiling,
    };
    (server, fault)
}

/// Go listens on every address for an empty one, and takes numbers with leading zeros.
fn ip(text: &str) -> Result<IpAddr, String> {
    if text.is_empty() {
        return Ok(Ipv4Addr::UNSPECIFIED.into());
    }
    // Upstream has no address then, and looks up the name of nothing.
    parse_ip(text).ok_or_else(|| "listen tcp: lookup <nil>: no such host".to_owned())
}

pub(super) fn api(k: &KubeletConfiguration, flags: &KubeletFlags) -> Option<ApiClient> {
    let kubeconfig = path(&flags.kubeconfig)?;
    let or_default = |number: i32, default| if number == 0 { default } else { count(number) };
    let lease = Duration::from_secs(u64::from(count(k.node_lease_duration_seconds)));
    Some(ApiClient {
        kubeconfig,
        bootstrap_kubeconfig: path(&flags.bootstrap_kubeconfig),
        rotate_certificates: k.rotate_certificates,
        qps: or_default(k.kube_api_qps.unwrap_or(0), 5),
        burst: or_default(k.kube_api_burst, 10),
        event_qps: or_default(k.event_record_qps.unwrap_or(0), 5),
        event_burst: or_default(k.event_burst, 10),
        content_type: k.content_type.clone(),
        heartbeat_timeout: lease.min(span(k.node_status_update_frequency)),
        change_detection: match k.config_map_and_secret_change_detection_strategy.as_str() {
            "Get" => ChangeDetection::Get,
            "Cache" => ChangeDetection::Cache,
            "Watch" => ChangeDetection::Watch,
            other => ChangeDetection::Unknown(other.to_owned()),
        },
    })
}

pub(super) fn runtime(k: &KubeletConfiguration, flags: &KubeletFlags) -> Runtime {
    let endpoint = k.container_runtime_endpoint.clone();
    Runtime {
        image_endpoint: name(&k.image_service_endpoint).unwrap_or_else(|| endpoint.clone()),
        endpoint,
        request_timeout: span(k.runtime_request_timeout),
        cgroups: name(&flags.runtime_cgroups),
        seccomp_default: flags.seccomp_default || k.seccomp_default.unwrap_or(false),
    }
}

pub(super) fn node(k: &KubeletConfiguration, flags: &KubeletFlags) -> Node {
    let taints = k.register_with_taints.iter();
    let hostname = flags.hostname_override.trim().to_lowercase();
    Node {
        hostname_override: (!flags.hostname_override.is_empty()).then_some(hostname),
        node_ip: flags.node_ip.clone(),
        register: k.register_node.unwrap_or(true),
        labels: flags.node_labels.clone(),
        taints: taints.map(|t| (t.key.clone(), t.value.clone(), t.effect.clone())).collect(),
        provider_id: k.provider_id.clone(),
        external_cloud: flags.cloud_provider == "external",
        status_update_frequency: span(k.node_status_update_frequency),
        status_report_frequency: span(k.node_status_report_frequency),
        lease_duration: Duration::from_secs(u64::from(count(k.node_lease_duration_seconds))),
        status_max_images: usize::try_from(k.node_status_max_images.unwrap_or(-1)).ok(),
        controller_attach_detach: k.enable_controller_attach_detach.unwrap_or(true),
        oom_score_adj: k.oom_score_adj.unwrap_or(0),
        max_open_files: u64::try_from(k.max_open_files).unwrap_or(0),
        make_iptables_util_chains: k.make_iptables_util_chains.unwrap_or(true),
        protect_kernel_defaults: k.protect_kernel_defaults,
        lock_file: path(&flags.lock_file)
            .map(|path| LockFile { path, exit_on_contention: flags.exit_on_lock_contention }),
    }
}

pub(super) fn sources(k: &KubeletConfiguration) -> Sources {
    Sources {
        path: path(&k.static_pod_path),
        file_check_frequency: span(k.file_check_frequency),
        url: name(&k.static_pod_url),
        url_headers: k.static_pod_url_header.clone(),
        http_check_frequency: span(k.http_check_frequency),
        sync_frequency: span(k.sync_frequency),
    }
}

pub(super) fn pods(k: &KubeletConfiguration, gates: &Gates) -> PodLimits {
    let (initial, longest) =
        if gates.enabled("ReduceDefaultCrashLoopBackOffDecay") { (1, 60) } else { (10, 300) };
    let configured = k.crash_loop_back_off.max_container_restart_period;
    let longest = match configured.filter(|_| gates.enabled("KubeletCrashLoopBackOffMax")) {
        Some(period) => span(period),
        None => Duration::from_secs(longest),
    };
    let ids = k.user_namespaces.as_ref().and_then(|users| users.ids_per_pod);
    PodLimits {
        max_pods: count(k.max_pods),
        pods_per_core: (k.pods_per_core > 0).then(|| count(k.pods_per_core)),
        pids_limit: k.pod_pids_limit.filter(|limit| *limit >= 0),
        cpu_cfs_quota: k.cpu_cfs_quota.unwrap_or(true),
        cpu_cfs_quota_period: span(k.cpu_cfs_quota_period.unwrap_or_default()),
        swap_behavior: match k.memory_swap.swap_behavior.as_str() {
            "LimitedSwap" => SwapBehavior::LimitedSwap,
            _ => SwapBehavior::NoSwap,
        },
        fail_swap_on: k.fail_swap_on.unwrap_or(true),
        single_process_oom_kill: k.single_process_oom_kill,
        allowed_unsafe_sysctls: k.allowed_unsafe_sysctls.clone(),
        user_ids_per_pod: ids.and_then(|n| u32::try_from(n).ok()).unwrap_or(65536),
        initial_restart_back_off: longest.min(Duration::from_secs(initial)),
        max_restart_back_off: longest,
        local_storage_isolation: k.local_storage_capacity_isolation.unwrap_or(true),
        volume_stats_period: k.volume_stats_agg_period.to_std().filter(|p| !p.is_zero()),
    }
}

pub(super) fn dns(k: &KubeletConfiguration) -> Dns {
    Dns {
        cluster_domain: k.cluster_domain.clone(),
        cluster_dns: k.cluster_dns.clone(),
        resolv_conf: k.resolv_conf.as_deref().and_then(path),
        pod_cidr: k.pod_cidr.clone(),
    }
}

/// Resources that can be kept from pods; the error is without the flag it is about.
fn reserved(map: &BTreeMap<String, String>) -> Result<BTreeMap<String, Quantity>, String> {
    let mut amounts = BTreeMap::new();
    for (resource, text) in map {
        let shown = quote(resource);
        if !["cpu", "memory", "ephemeral-storage", "pid"].contains(&resource.as_str()) {
            return Err(format!("cannot reserve {shown} resource"));
        }
        let amount: Quantity = text.parse().map_err(|e| {
            format!("failed to parse quantity {} for {shown} resource: {e}", quote(text))
        })?;
        if amount.is_negative() {
            return Err(format!("resource quantity for {shown} cannot be negative: {text}"));
        }
        amounts.insert(resource.clone(), amount);
    }
    Ok(amounts)
}

pub(super) fn qos_percent(map: &BTreeMap<String, String>) -> Result<Option<i64>, String> {
    let failed = |fault: String| format!("--qos-reserved value failed to parse: {fault}");
    let mut percent = None;
    for (resource, text) in map {
        if resource != "memory" {
            return Err(failed(format!("cannot reserve {} resource", quote(resource))));
        }
        let number = match text.strip_suffix('%') {
            None => Err(format!("percentage expected, got '{text}'")),
            Some(_) => match text.trim_end_matches('%').parse::<i64>() {
                Err(_) => Err(format!("invalid number in percentage '{text}'")),
                Ok(number) if !(0..=100).contains(&number) => {
                    Err("percentage must be between 0 and 100".to_owned())
                }
                Ok(number) => Ok(number),
            },
        };
        percent = Some(number.map_err(|e| {
            let shown = quote(text);
            failed(format!("failed to parse percentage {shown} for \"memory\" resource: {e}"))
        })?);
    }
    Ok(percent)
}

/// Reserved by the kubelet's and by the system's share.
type Shares = (BTreeMap<String, Quantity>, BTreeMap<String, Quantity>);

/// What is kept from pods, and what is wrong with it.
pub(super) fn reservations(k: &KubeletConfiguration) -> (Shares, Option<String>) {
    let cpus: CpuSet = match k.reserved_system_cpus.parse() {
        Ok(cpus) => cpus,
        Err(error) => {
            let fault = format!("unable to parse reserved-cpus list: {error}");
            return (Shares::default(), Some(fault));
        }
    };
    let (mut kube_map, mut system_map) = (k.kube_reserved.clone(), k.system_reserved.clone());
    reserve_cpus(&cpus, &mut kube_map, &mut system_map);
    let kube =
        reserved(&kube_map).map_err(|e| format!("--kube-reserved value failed to parse: {e}"));
    let system =
        reserved(&system_map).map_err(|e| format!("--system-reserved value failed to parse: {e}"));
    match (kube, system) {
        (Ok(kube), Ok(system)) => ((kube, system), None),
        (Err(fault), _) | (_, Err(fault)) => (Shares::default(), Some(fault)),
    }
}

/// Puts whole processors in the place of shares of them.
fn reserve_cpus(
    cpus: &CpuSet,
    kube: &mut BTreeMap<String, String>,
    system: &mut BTreeMap<String, String>,
) {
    if !cpus.is_empty() {
        kube.remove("cpu");
        system.insert("cpu".to_owned(), cpus.len().to_string());
    }
}

/// The same in a configuration as it is shown: where nothing is kept for the system, upstream changes
/// a map that nobody gets to see.
pub(super) fn show_reserved_cpus(cpus: &CpuSet, k: &mut KubeletConfiguration) {
    let unseen = k.system_reserved.is_empty();
    reserve_cpus(cpus, &mut k.kube_reserved, &mut k.system_reserved);
    if unseen {
        k.system_reserved.clear();
    }
}

pub(super) fn resources(
    k: &KubeletConfiguration,
    flags: &KubeletFlags,
    gates: &Gates,
    (kube, system): Shares,
) -> Resources {
    let cpus: CpuSet = k.reserved_system_cpus.parse().unwrap_or_default();
    let qos = qos_percent(&k.qos_reserved).unwrap_or_default();
    let mut memory: BTreeMap<i32, BTreeMap<String, SpelledQuantity>> = BTreeMap::new();
    for reservation in &k.reserved_memory {
        memory.entry(reservation.numa_node).or_default().extend(reservation.limits.clone());
    }
    let levels = k.enforce_node_allocatable.as_deref().unwrap_or_default();
    let has = |level: &str| levels.iter().any(|l| l == level);
    let per_qos = k.cgroups_per_qos.unwrap_or(true);
    let root = if per_qos && k.cgroup_root.is_empty() { "/" } else { &k.cgroup_root };
    Resources {
        reservations: Reservations {
            system,
            kube,
            cpus,
            memory,
            qos_memory_percent: qos.filter(|_| gates.enabled("QOSReserved")),
        },
        enforcement: Enforcement {
            pods: has("pods"),
            system: has("system-reserved"),
            system_compressible: has("system-reserved-compressible"),
            kube: has("kube-reserved"),
            kube_compressible: has("kube-reserved-compressible"),
        },
        system_reserved_cgroup: name(&k.system_reserved_cgroup),
        kube_reserved_cgroup: name(&k.kube_reserved_cgroup),
        kubelet_cgroups: name(&k.kubelet_cgroups),
        system_cgroups: name(&k.system_cgroups),
        cgroup_root: root.to_owned(),
        cgroups_per_qos: per_qos,
        cgroup_driver: match k.cgroup_driver.as_str() {
            "systemd" => CgroupDriver::Systemd,
            _ => CgroupDriver::Cgroupfs,
        },
        cpu_manager_policy: match k.cpu_manager_policy.as_str() {
            "none" => CpuManagerPolicy::None,
            "static" => CpuManagerPolicy::Static,
            other => CpuManagerPolicy::Unknown(other.to_owned()),
        },
        cpu_manager_policy_options: k.cpu_manager_policy_options.clone(),
        cpu_manager_reconcile_period: span(k.cpu_manager_reconcile_period),
        memory_manager_policy: match k.memory_manager_policy.as_str() {
            "None" => MemoryManagerPolicy::None,
            "Static" => MemoryManagerPolicy::Static,
            other => MemoryManagerPolicy::Unknown(other.to_owned()),
        },
        topology_policy: match k.topology_manager_policy.as_str() {
            "best-effort" => TopologyPolicy::BestEffort,
            "restricted" => TopologyPolicy::Restricted,
            "single-numa-node" => TopologyPolicy::SingleNumaNode,
            _ => TopologyPolicy::None,
        },
        topology_scope: match k.topology_manager_scope.as_str() {
            "pod" => TopologyScope::Pod,
            _ => TopologyScope::Container,
        },
        topology_policy_options: k.topology_manager_policy_options.clone(),
        memory_throttling_factor: k.memory_throttling_factor.unwrap_or(0.9),
        tiered_memory_reservation: k.memory_reservation_policy == "TieredReservation",
        ignore_eviction_in_allocatable: flags.experimental_allocatable_ignore_eviction,
    }
}

pub(super) fn eviction(k: &KubeletConfiguration) -> Eviction {
    Eviction {
        hard: k.eviction_hard.clone().unwrap_or_default(),
        soft: k.eviction_soft.clone(),
        soft_grace_period: k.eviction_soft_grace_period.clone(),
        minimum_reclaim: k.eviction_minimum_reclaim.clone(),
        pressure_transition_period: span(k.eviction_pressure_transition_period),
        max_pod_grace_period_seconds: k.eviction_max_pod_grace_period,
        kernel_memcg_notification: k.kernel_memcg_notification,
    }
}

pub(super) fn image_pulls(k: &KubeletConfiguration, flags: &KubeletFlags) -> ImagePulls {
    let serial = k.serialize_image_pulls.unwrap_or(true);
    let list = k.preloaded_images_verification_allowlist.clone();
    let bin_dir = path(&flags.image_credential_provider_bin_dir);
    let config = path(&flags.image_credential_provider_config);
    ImagePulls {
        max_parallel: if serial { Some(1) } else { k.max_parallel_image_pulls.map(count) },
        qps: k.registry_pull_qps.filter(|qps| *qps > 0).map(count),
        burst: count(k.registry_burst),
        verification: match k.image_pull_credentials_verification_policy.as_str() {
            "NeverVerify" => SecretsVerification::NeverVerify,
            "NeverVerifyPreloadedImages" => SecretsVerification::NeverVerifyPreloadedImages,
            "NeverVerifyAllowlistedImages" => {
                SecretsVerification::NeverVerifyAllowlistedImages(list)
            }
            "AlwaysVerify" => SecretsVerification::AlwaysVerify,
            _ => SecretsVerification::Off,
        },
        credential_providers: (bin_dir.is_some() || config.is_some()).then(|| {
            CredentialProviders {
                config: config.unwrap_or_default(),
                bin_dir: bin_dir.unwrap_or_default(),
            }
        }),
    }
}

pub(super) fn image_gc(k: &KubeletConfiguration) -> ImageGc {
    let percent = |number: Option<i32>| u8::try_from(number.unwrap_or(0)).unwrap_or(100);
    ImageGc {
        minimum_age: span(k.image_minimum_gc_age),
        maximum_age: k.image_maximum_gc_age.to_std().filter(|age| !age.is_zero()),
        high_threshold_percent: percent(k.image_gc_high_threshold_percent),
        low_threshold_percent: percent(k.image_gc_low_threshold_percent),
    }
}

pub(super) fn container_gc(flags: &KubeletFlags) -> ContainerGc {
    ContainerGc {
        minimum_age: span(flags.minimum_container_ttl_duration),
        max_per_container: u32::try_from(flags.maximum_dead_containers_per_container).ok(),
        max_total: u32::try_from(flags.maximum_dead_containers).ok(),
    }
}

/// How logs of containers are kept, and what is wrong with it.
pub(super) fn container_logs(k: &KubeletConfiguration) -> (ContainerLogs, Option<String>) {
    let text = &k.container_log_max_size;
    let failed = |e: &dyn std::fmt::Display| {
        format!(
            "failed to create kubelet: failed to initialize container log manager: failed to \
             parse container log max size {}: {e}",
            quote(text)
        )
    };
    let size = HeldQuantity::parse(text).map_err(|e| failed(&e));
    let bytes = size.and_then(|size| size.as_i64().ok_or_else(|| failed(&"invalid max log size")));
    let logs = ContainerLogs {
        max_bytes: bytes.as_ref().ok().and_then(|bytes| u64::try_from(*bytes).ok()),
        max_files: count(k.container_log_max_files.unwrap_or(5)),
        max_workers: count(k.container_log_max_workers.unwrap_or(1)),
        monitor_interval: span(k.container_log_monitor_interval.unwrap_or_default()),
    };
    (logs, bytes.err())
}

pub(super) fn shutdown(k: &KubeletConfiguration) -> Shutdown {
    let by_priority = k.shutdown_grace_period_by_pod_priority.iter();
    Shutdown {
        grace_period: span(k.shutdown_grace_period),
        critical_grace_period: span(k.shutdown_grace_period_critical_pods),
        by_priority: by_priority
            .map(|p| {
                let seconds = u64::try_from(p.shutdown_grace_period_seconds).unwrap_or(0);
                (p.priority, Duration::from_secs(seconds))
            })
            .collect(),
    }
}

pub(super) fn tracing(tracing: &kubelet::Tracing) -> Tracing {
    Tracing {
        endpoint: tracing.endpoint.clone().unwrap_or_else(|| "localhost:4317".to_owned()),
        sampling_rate_per_million: count(tracing.sampling_rate_per_million.unwrap_or(0)),
    }
}
