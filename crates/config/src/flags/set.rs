//! Settings that only flags have, and which field each flag sets.

use super::target::FlagTarget;
use crate::kubelet::KubeletConfiguration;
use std::collections::BTreeMap;
use units::GoDuration;

/// What `--version` asks for.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum VersionRequest {
    /// Nothing.
    #[default]
    No,
    /// Print it and leave.
    Print,
    /// Print everything known about the build and leave.
    PrintRaw,
    /// Report this version instead.
    Report(String),
}

/// Settings that only flags have.
/// Many fields: one for each flag.
#[derive(Debug, Clone, PartialEq)]
pub struct KubeletFlags {
    /// `--bootstrap-kubeconfig`.
    pub bootstrap_kubeconfig: String,
    /// `--cert-dir`.
    pub cert_dir: String,
    /// `--cloud-provider`.
    pub cloud_provider: String,
    /// `--config`.
    pub config: String,
    /// `--config-dir`.
    pub config_dir: String,
    /// `--exit-on-lock-contention`.
    pub exit_on_lock_contention: bool,
    /// `--experimental-allocatable-ignore-eviction`.
    pub experimental_allocatable_ignore_eviction: bool,
    /// `--help`.
    pub help: bool,
    /// `--hostname-override`.
    pub hostname_override: String,
    /// `--housekeeping-interval`.
    pub housekeeping_interval: GoDuration,
    /// `--image-credential-provider-bin-dir`.
    pub image_credential_provider_bin_dir: String,
    /// `--image-credential-provider-config`.
    pub image_credential_provider_config: String,
    /// `--kubeconfig`.
    pub kubeconfig: String,
    /// `--lock-file`.
    pub lock_file: String,
    /// `--maximum-dead-containers`.
    pub maximum_dead_containers: i32,
    /// `--maximum-dead-containers-per-container`.
    pub maximum_dead_containers_per_container: i32,
    /// `--minimum-container-ttl-duration`.
    pub minimum_container_ttl_duration: GoDuration,
    /// `--node-ip`.
    pub node_ip: String,
    /// `--node-labels`.
    pub node_labels: BTreeMap<String, String>,
    /// `--root-dir`.
    pub root_dir: String,
    /// `--runtime-cgroups`.
    pub runtime_cgroups: String,
    /// `--seccomp-default`.
    pub seccomp_default: bool,
    /// `--version`.
    pub version: VersionRequest,
}

impl Default for KubeletFlags {
    fn default() -> Self {
        Self {
            bootstrap_kubeconfig: String::new(),
            cert_dir: "/var/lib/kubelet/pki".to_owned(),
            cloud_provider: String::new(),
            config: String::new(),
            config_dir: String::new(),
            exit_on_lock_contention: false,
            experimental_allocatable_ignore_eviction: false,
            help: false,
            hostname_override: String::new(),
            housekeeping_interval: GoDuration::from_secs(10),
            image_credential_provider_bin_dir: String::new(),
            image_credential_provider_config: String::new(),
            kubeconfig: String::new(),
            lock_file: String::new(),
            maximum_dead_containers: -1,
            maximum_dead_containers_per_container: 1,
            minimum_container_ttl_duration: GoDuration::ZERO,
            node_ip: String::new(),
            node_labels: BTreeMap::new(),
            root_dir: "/var/lib/kubelet".to_owned(),
            runtime_cgroups: String::new(),
            seccomp_default: false,
            version: VersionRequest::No,
        }
    }
}

/// Values of flags that are checked and then have no effect.
#[derive(Debug, Default)]
pub(super) struct Ignored {
    text: String,
    switch: bool,
    number: i64,
    span: GoDuration,
}

/// The place a flag writes to.
pub(super) fn target<'a>(
    name: &str,
    kubelet: &'a mut KubeletConfiguration,
    flags: &'a mut KubeletFlags,
    ignored: &'a mut Ignored,
) -> Option<&'a mut dyn FlagTarget> {
    in_configuration(name, kubelet)
        .or_else(|| in_flags(name, flags))
        .or_else(|| in_ignored(name, ignored))
}

/// Flags that the configuration file has a field for.
fn in_configuration<'a>(
    name: &str,
    kubelet: &'a mut KubeletConfiguration,
) -> Option<&'a mut dyn FlagTarget> {
    Some(match name {
        "address" => &mut kubelet.address,
        "allowed-unsafe-sysctls" => &mut kubelet.allowed_unsafe_sysctls,
        "anonymous-auth" => &mut kubelet.authentication.anonymous.enabled,
        "authentication-token-webhook" => &mut kubelet.authentication.webhook.enabled,
        "authentication-token-webhook-cache-ttl" => &mut kubelet.authentication.webhook.cache_ttl,
        "authorization-mode" => &mut kubelet.authorization.mode,
        "authorization-webhook-cache-authorized-ttl" => {
            &mut kubelet.authorization.webhook.cache_authorized_ttl
        }
        "authorization-webhook-cache-unauthorized-ttl" => {
            &mut kubelet.authorization.webhook.cache_unauthorized_ttl
        }
        "cgroup-driver" => &mut kubelet.cgroup_driver,
        "cgroup-root" => &mut kubelet.cgroup_root,
        "cgroups-per-qos" => &mut kubelet.cgroups_per_qos,
        "client-ca-file" => &mut kubelet.authentication.x509.client_ca_file,
        "cluster-dns" => &mut kubelet.cluster_dns,
        "cluster-domain" => &mut kubelet.cluster_domain,
        "container-log-max-files" => &mut kubelet.container_log_max_files,
        "container-log-max-size" => &mut kubelet.container_log_max_size,
        "container-runtime-endpoint" => &mut kubelet.container_runtime_endpoint,
        "contention-profiling" => &mut kubelet.enable_contention_profiling,
        "cpu-cfs-quota" => &mut kubelet.cpu_cfs_quota,
        "cpu-cfs-quota-period" => &mut kubelet.cpu_cfs_quota_period,
        "cpu-manager-policy" => &mut kubelet.cpu_manager_policy,
        "cpu-manager-policy-options" => &mut kubelet.cpu_manager_policy_options,
        "cpu-manager-reconcile-period" => &mut kubelet.cpu_manager_reconcile_period,
        "enable-controller-attach-detach" => &mut kubelet.enable_controller_attach_detach,
        "enable-debugging-handlers" => &mut kubelet.enable_debugging_handlers,
        "enable-server" => &mut kubelet.enable_server,
        "enforce-node-allocatable" => &mut kubelet.enforce_node_allocatable,
        "event-burst" => &mut kubelet.event_burst,
        "event-qps" => &mut kubelet.event_record_qps,
        "eviction-hard" => &mut kubelet.eviction_hard,
        "eviction-max-pod-grace-period" => &mut kubelet.eviction_max_pod_grace_period,
        "eviction-minimum-reclaim" => &mut kubelet.eviction_minimum_reclaim,
        "eviction-pressure-transition-period" => &mut kubelet.eviction_pressure_transition_period,
        "eviction-soft" => &mut kubelet.eviction_soft,
        "eviction-soft-grace-period" => &mut kubelet.eviction_soft_grace_period,
        "fail-cgroupv1" => &mut kubelet.fail_cgroup_v1,
        "fail-swap-on" => &mut kubelet.fail_swap_on,
        "feature-gates" => &mut kubelet.feature_gates,
        "file-check-frequency" => &mut kubelet.file_check_frequency,
        "hairpin-mode" => &mut kubelet.hairpin_mode,
        "healthz-bind-address" => &mut kubelet.healthz_bind_address,
        "healthz-port" => &mut kubelet.healthz_port,
        "http-check-frequency" => &mut kubelet.http_check_frequency,
        "image-gc-high-threshold" => &mut kubelet.image_gc_high_threshold_percent,
        "image-gc-low-threshold" => &mut kubelet.image_gc_low_threshold_percent,
        "image-service-endpoint" => &mut kubelet.image_service_endpoint,
        "kernel-memcg-notification" => &mut kubelet.kernel_memcg_notification,
        "kube-api-burst" => &mut kubelet.kube_api_burst,
        "kube-api-content-type" => &mut kubelet.content_type,
        "kube-api-qps" => &mut kubelet.kube_api_qps,
        "kube-reserved" => &mut kubelet.kube_reserved,
        "kube-reserved-cgroup" => &mut kubelet.kube_reserved_cgroup,
        "kubelet-cgroups" => &mut kubelet.kubelet_cgroups,
        "local-storage-capacity-isolation" => &mut kubelet.local_storage_capacity_isolation,
        "log-flush-frequency" => &mut kubelet.logging.flush_frequency,
        "log-json-info-buffer-size" => &mut kubelet.logging.options.json.info_buffer_size,
        "log-json-split-stream" => &mut kubelet.logging.options.json.split_stream,
        "log-text-info-buffer-size" => &mut kubelet.logging.options.text.info_buffer_size,
        "log-text-split-stream" => &mut kubelet.logging.options.text.split_stream,
        "logging-format" => &mut kubelet.logging.format,
        "make-iptables-util-chains" => &mut kubelet.make_iptables_util_chains,
        "manifest-url" => &mut kubelet.static_pod_url,
        "manifest-url-header" => &mut kubelet.static_pod_url_header,
        "max-open-files" => &mut kubelet.max_open_files,
        "max-pods" => &mut kubelet.max_pods,
        "memory-manager-policy" => &mut kubelet.memory_manager_policy,
        "minimum-image-ttl-duration" => &mut kubelet.image_minimum_gc_age,
        "node-status-max-images" => &mut kubelet.node_status_max_images,
        "node-status-update-frequency" => &mut kubelet.node_status_update_frequency,
        "oom-score-adj" => &mut kubelet.oom_score_adj,
        "pod-cidr" => &mut kubelet.pod_cidr,
        "pod-manifest-path" => &mut kubelet.static_pod_path,
        "pod-max-pids" => &mut kubelet.pod_pids_limit,
        "pods-per-core" => &mut kubelet.pods_per_core,
        "port" => &mut kubelet.port,
        "protect-kernel-defaults" => &mut kubelet.protect_kernel_defaults,
        "provider-id" => &mut kubelet.provider_id,
        "qos-reserved" => &mut kubelet.qos_reserved,
        "read-only-port" => &mut kubelet.read_only_port,
        "register-node" => &mut kubelet.register_node,
        "register-with-taints" => &mut kubelet.register_with_taints,
        "registry-burst" => &mut kubelet.registry_burst,
        "registry-qps" => &mut kubelet.registry_pull_qps,
        "reserved-cpus" => &mut kubelet.reserved_system_cpus,
        "reserved-memory" => &mut kubelet.reserved_memory,
        "resolv-conf" => &mut kubelet.resolv_conf,
        "rotate-certificates" => &mut kubelet.rotate_certificates,
        "rotate-server-certificates" => &mut kubelet.server_tls_bootstrap,
        "runonce" => &mut kubelet.run_once,
        "runtime-request-timeout" => &mut kubelet.runtime_request_timeout,
        "serialize-image-pulls" => &mut kubelet.serialize_image_pulls,
        "streaming-connection-idle-timeout" => &mut kubelet.streaming_connection_idle_timeout,
        "sync-frequency" => &mut kubelet.sync_frequency,
        "system-cgroups" => &mut kubelet.system_cgroups,
        "system-reserved" => &mut kubelet.system_reserved,
        "system-reserved-cgroup" => &mut kubelet.system_reserved_cgroup,
        "tls-cert-file" => &mut kubelet.tls_cert_file,
        "tls-cipher-suites" => &mut kubelet.tls_cipher_suites,
        "tls-min-version" => &mut kubelet.tls_min_version,
        "tls-private-key-file" => &mut kubelet.tls_private_key_file,
        "topology-manager-policy" => &mut kubelet.topology_manager_policy,
        "topology-manager-policy-options" => &mut kubelet.topology_manager_policy_options,
        "topology-manager-scope" => &mut kubelet.topology_manager_scope,
        "v" => &mut kubelet.logging.verbosity,
        "vmodule" => &mut kubelet.logging.vmodule,
        "volume-plugin-dir" => &mut kubelet.volume_plugin_dir,
        "volume-stats-agg-period" => &mut kubelet.volume_stats_agg_period,
        _ => return None,
    })
}

/// Flags that are flags only.
fn in_flags<'a>(name: &str, flags: &'a mut KubeletFlags) -> Option<&'a mut dyn FlagTarget> {
    Some(match name {
        "bootstrap-kubeconfig" => &mut flags.bootstrap_kubeconfig,
        "cert-dir" => &mut flags.cert_dir,
        "cloud-provider" => &mut flags.cloud_provider,
        "config" => &mut flags.config,
        "config-dir" => &mut flags.config_dir,
        "exit-on-lock-contention" => &mut flags.exit_on_lock_contention,
        "experimental-allocatable-ignore-eviction" => {
            &mut flags.experimental_allocatable_ignore_eviction
        }
        "help" => &mut flags.help,
        "hostname-override" => &mut flags.hostname_override,
        "housekeeping-interval" => &mut flags.housekeeping_interval,
        "image-credential-provider-bin-dir" => &mut flags.image_credential_provider_bin_dir,
        "image-credential-provider-config" => &mut flags.image_credential_provider_config,
        "kubeconfig" => &mut flags.kubeconfig,
        "lock-file" => &mut flags.lock_file,
        "maximum-dead-containers" => &mut flags.maximum_dead_containers,
        "maximum-dead-containers-per-container" => &mut flags.maximum_dead_containers_per_container,
        "minimum-container-ttl-duration" => &mut flags.minimum_container_ttl_duration,
        "node-ip" => &mut flags.node_ip,
        "node-labels" => &mut flags.node_labels,
        "root-dir" => &mut flags.root_dir,
        "runtime-cgroups" => &mut flags.runtime_cgroups,
        "seccomp-default" => &mut flags.seccomp_default,
        "version" => &mut flags.version,
        _ => return None,
    })
}

/// Flags that have no effect any more.
fn in_ignored<'a>(name: &str, ignored: &'a mut Ignored) -> Option<&'a mut dyn FlagTarget> {
    Some(match name {
        "application-metrics-count-limit" => &mut ignored.number,
        "boot-id-file"
        | "container-hints"
        | "containerd"
        | "containerd-namespace"
        | "event-storage-age-limit"
        | "event-storage-event-limit"
        | "experimental-mounter-path"
        | "machine-id-file"
        | "storage-driver-db"
        | "storage-driver-host"
        | "storage-driver-password"
        | "storage-driver-table"
        | "storage-driver-user" => &mut ignored.text,
        "enable-load-reader" | "log-cadvisor-usage" | "storage-driver-secure" => {
            &mut ignored.switch
        }
        "global-housekeeping-interval" | "storage-driver-buffer-duration" => &mut ignored.span,
        _ => return None,
    })
}
