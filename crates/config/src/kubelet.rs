//! `KubeletConfiguration` of `kubelet.config.k8s.io/v1beta1`, field by field.
//!
//! Promises: the same names, Go types and omission rules as upstream, so that a file written for
//! one is read by the other, and `/configz` shows the same document.
//!
//! A Go pointer is an `Option`. Lists and maps are plain, except where Go tells "absent" from
//! "empty" ([`KubeletConfiguration::eviction_hard`] and
//! [`KubeletConfiguration::enforce_node_allocatable`]).

pub(crate) mod defaults;
mod parts;

pub use parts::{
    AnonymousAuthentication, Authentication, Authorization, CrashLoopBackOff, FlushFrequency,
    JsonLogOptions, LogOptions, Logging, MemoryReservation, MemorySwap, ShutdownGracePeriod, Taint,
    TextLogOptions, Time, Tracing, UserNamespaces, VModuleItem, WebhookAuthentication,
    WebhookAuthorization, X509Authentication,
};

use crate::document::Document;
pub use crate::value::Leaf;
use crate::value::{Decoder, FieldShape, GoValue, Reading, go_struct};
use serde_json::Value;
use std::collections::BTreeMap;
use units::GoDuration;

/// The API group and version of the configuration.
pub const API_VERSION: &str = "kubelet.config.k8s.io/v1beta1";
/// The kind of the configuration.
pub const KIND: &str = "KubeletConfiguration";

go_struct! {
    /// The whole configuration as a file gives it.
    KubeletConfiguration = "v1beta1.KubeletConfiguration" {
        /// `KubeletConfiguration` in documents that carry their type.
        kind: String, "kind", "string", omitempty;
        /// The API version in documents that carry their type.
        api_version: String, "apiVersion", "string", omitempty;
        /// Serve the HTTPS API.
        enable_server: Option<bool>, "enableServer", "*bool", omitempty;
        /// Folder or file with static pods.
        static_pod_path: String, "staticPodPath", "string", omitempty;
        /// Folder for container logs.
        pod_logs_dir: String, "podLogsDir", "string", omitempty;
        /// Longest time between two looks at a pod.
        sync_frequency: GoDuration, "syncFrequency", "metav1.Duration", omitempty;
        /// Time between two reads of the static pod files.
        file_check_frequency: GoDuration, "fileCheckFrequency", "metav1.Duration", omitempty;
        /// Time between two reads of the static pod URL.
        http_check_frequency: GoDuration, "httpCheckFrequency", "metav1.Duration", omitempty;
        /// URL with static pods.
        static_pod_url: String, "staticPodURL", "string", omitempty;
        /// Headers sent to the static pod URL.
        static_pod_url_header: BTreeMap<String, Vec<String>>, "staticPodURLHeader", "map[string][]string", omitempty;
        /// Address of the HTTPS API.
        address: String, "address", "string", omitempty;
        /// Port of the HTTPS API.
        port: i32, "port", "int32", omitempty;
        /// Port of the API without authentication; 0 for none.
        read_only_port: i32, "readOnlyPort", "int32", omitempty;
        /// Serving certificate.
        tls_cert_file: String, "tlsCertFile", "string", omitempty;
        /// Key of the serving certificate.
        tls_private_key_file: String, "tlsPrivateKeyFile", "string", omitempty;
        /// Allowed cipher suites by Go's names.
        tls_cipher_suites: Vec<String>, "tlsCipherSuites", "[]string", omitempty;
        /// Key exchanges in order of preference, by Go's curve numbers.
        tls_curve_preferences: Vec<i32>, "tlsCurvePreferences", "[]int32", omitempty;
        /// Lowest TLS version.
        tls_min_version: String, "tlsMinVersion", "string", omitempty;
        /// Renew the client certificate before it ends.
        rotate_certificates: bool, "rotateCertificates", "bool", omitempty;
        /// Get the serving certificate from the cluster.
        server_tls_bootstrap: bool, "serverTLSBootstrap", "bool", omitempty;
        /// Who may ask.
        authentication: Authentication, "authentication", "KubeletAuthentication", always;
        /// What they may do.
        authorization: Authorization, "authorization", "KubeletAuthorization", always;
        /// Image pulls a second; 0 for no limit.
        registry_pull_qps: Option<i32>, "registryPullQPS", "*int32", omitempty;
        /// Image pulls at once.
        registry_burst: i32, "registryBurst", "int32", omitempty;
        /// Which images need their pull credentials checked again.
        image_pull_credentials_verification_policy: String, "imagePullCredentialsVerificationPolicy", "ImagePullCredentialsVerificationPolicy", omitempty;
        /// Images that need no check of their pull credentials.
        preloaded_images_verification_allowlist: Vec<String>, "preloadedImagesVerificationAllowlist", "[]string", omitempty;
        /// Events a second.
        event_record_qps: Option<i32>, "eventRecordQPS", "*int32", omitempty;
        /// Events at once.
        event_burst: i32, "eventBurst", "int32", omitempty;
        /// Serve exec, attach, logs and the like.
        enable_debugging_handlers: Option<bool>, "enableDebuggingHandlers", "*bool", omitempty;
        /// Collect block profiles.
        enable_contention_profiling: bool, "enableContentionProfiling", "bool", omitempty;
        /// Port of the health endpoint; 0 for none.
        healthz_port: Option<i32>, "healthzPort", "*int32", omitempty;
        /// Address of the health endpoint.
        healthz_bind_address: String, "healthzBindAddress", "string", omitempty;
        /// Our own out-of-memory score.
        oom_score_adj: Option<i32>, "oomScoreAdj", "*int32", omitempty;
        /// Domain of the cluster.
        cluster_domain: String, "clusterDomain", "string", omitempty;
        /// DNS servers of the cluster.
        cluster_dns: Vec<String>, "clusterDNS", "[]string", omitempty;
        /// Kept for compatibility; without effect.
        streaming_connection_idle_timeout: GoDuration, "streamingConnectionIdleTimeout", "metav1.Duration", omitempty;
        /// Time between two computations of the node's status.
        node_status_update_frequency: GoDuration, "nodeStatusUpdateFrequency", "metav1.Duration", omitempty;
        /// Longest time between two reports of an unchanged node status.
        node_status_report_frequency: GoDuration, "nodeStatusReportFrequency", "metav1.Duration", omitempty;
        /// How long the node's lease lives.
        node_lease_duration_seconds: i32, "nodeLeaseDurationSeconds", "int32", omitempty;
        /// Youngest unused image that may be collected.
        image_minimum_gc_age: GoDuration, "imageMinimumGCAge", "metav1.Duration", omitempty;
        /// Age at which an unused image is collected whatever the disk says; 0 for never.
        image_maximum_gc_age: GoDuration, "imageMaximumGCAge", "metav1.Duration", omitempty;
        /// Disk usage at which images are collected.
        image_gc_high_threshold_percent: Option<i32>, "imageGCHighThresholdPercent", "*int32", omitempty;
        /// Disk usage down to which images are collected.
        image_gc_low_threshold_percent: Option<i32>, "imageGCLowThresholdPercent", "*int32", omitempty;
        /// Time between two measurements of volumes; negative for never.
        volume_stats_agg_period: GoDuration, "volumeStatsAggPeriod", "metav1.Duration", omitempty;
        /// Cgroup we run in.
        kubelet_cgroups: String, "kubeletCgroups", "string", omitempty;
        /// Cgroup for processes without one.
        system_cgroups: String, "systemCgroups", "string", omitempty;
        /// Root of the pods' cgroups.
        cgroup_root: String, "cgroupRoot", "string", omitempty;
        /// One cgroup per QoS class and pod.
        cgroups_per_qos: Option<bool>, "cgroupsPerQOS", "*bool", omitempty;
        /// `cgroupfs` or `systemd`; the runtime's own choice wins.
        cgroup_driver: String, "cgroupDriver", "string", omitempty;
        /// `none` or `static`.
        cpu_manager_policy: String, "cpuManagerPolicy", "string", omitempty;
        /// On out-of-memory kill one process instead of the container.
        single_process_oom_kill: Option<bool>, "singleProcessOOMKill", "*bool", omitempty;
        /// Options of the CPU manager policy.
        cpu_manager_policy_options: BTreeMap<String, String>, "cpuManagerPolicyOptions", "map[string]string", omitempty;
        /// Time between two checks of CPU assignments.
        cpu_manager_reconcile_period: GoDuration, "cpuManagerReconcilePeriod", "metav1.Duration", omitempty;
        /// `None` or `Static`.
        memory_manager_policy: String, "memoryManagerPolicy", "string", omitempty;
        /// How hints for NUMA nodes are merged.
        topology_manager_policy: String, "topologyManagerPolicy", "string", omitempty;
        /// Whether hints are per container or per pod.
        topology_manager_scope: String, "topologyManagerScope", "string", omitempty;
        /// Options of the topology manager policy.
        topology_manager_policy_options: BTreeMap<String, String>, "topologyManagerPolicyOptions", "map[string]string", omitempty;
        /// Share of requests that lower QoS classes cannot use.
        qos_reserved: BTreeMap<String, String>, "qosReserved", "map[string]string", omitempty;
        /// Deadline of most calls to the runtime.
        runtime_request_timeout: GoDuration, "runtimeRequestTimeout", "metav1.Duration", omitempty;
        /// Kept for compatibility; without effect.
        hairpin_mode: String, "hairpinMode", "string", omitempty;
        /// Pods this node takes.
        max_pods: i32, "maxPods", "int32", omitempty;
        /// Addresses for pods when there is no cluster.
        pod_cidr: String, "podCIDR", "string", omitempty;
        /// Processes per pod; -1 for the node's limit.
        pod_pids_limit: Option<i64>, "podPidsLimit", "*int64", omitempty;
        /// Resolver configuration of the host; empty for none.
        resolv_conf: Option<String>, "resolvConf", "*string", omitempty;
        /// No longer supported; refused by validation.
        run_once: bool, "runOnce", "bool", omitempty;
        /// Enforce CPU limits.
        cpu_cfs_quota: Option<bool>, "cpuCFSQuota", "*bool", omitempty;
        /// Period of CPU limits.
        cpu_cfs_quota_period: Option<GoDuration>, "cpuCFSQuotaPeriod", "*metav1.Duration", omitempty;
        /// Images listed in the node's status; -1 for all.
        node_status_max_images: Option<i32>, "nodeStatusMaxImages", "*int32", omitempty;
        /// Limit of our open files.
        max_open_files: i64, "maxOpenFiles", "int64", omitempty;
        /// Media type of requests to the API server.
        content_type: String, "contentType", "string", omitempty;
        /// Requests a second to the API server.
        kube_api_qps: Option<i32>, "kubeAPIQPS", "*int32", omitempty;
        /// Requests at once to the API server.
        kube_api_burst: i32, "kubeAPIBurst", "int32", omitempty;
        /// Pull one image at a time.
        serialize_image_pulls: Option<bool>, "serializeImagePulls", "*bool", omitempty;
        /// Images pulled at once.
        max_parallel_image_pulls: Option<i32>, "maxParallelImagePulls", "*int32", omitempty;
        /// Thresholds at which pods are evicted at once; absent and empty differ.
        eviction_hard: Option<BTreeMap<String, String>>, "evictionHard", "map[string]string", omitempty;
        /// Thresholds at which pods are evicted after a while.
        eviction_soft: BTreeMap<String, String>, "evictionSoft", "map[string]string", omitempty;
        /// How long a soft threshold may stay crossed.
        eviction_soft_grace_period: BTreeMap<String, String>, "evictionSoftGracePeriod", "map[string]string", omitempty;
        /// How long a pressure condition stays after the pressure went.
        eviction_pressure_transition_period: GoDuration, "evictionPressureTransitionPeriod", "metav1.Duration", omitempty;
        /// Longest grace of a pod evicted by a soft threshold.
        eviction_max_pod_grace_period: i32, "evictionMaxPodGracePeriod", "int32", omitempty;
        /// What an eviction must reclaim beyond the threshold.
        eviction_minimum_reclaim: BTreeMap<String, String>, "evictionMinimumReclaim", "map[string]string", omitempty;
        /// Fill hard thresholds that are not given with their defaults.
        merge_default_eviction_settings: Option<bool>, "mergeDefaultEvictionSettings", "*bool", omitempty;
        /// Pods per core; 0 for no limit.
        pods_per_core: i32, "podsPerCore", "int32", omitempty;
        /// Let the cluster attach volumes.
        enable_controller_attach_detach: Option<bool>, "enableControllerAttachDetach", "*bool", omitempty;
        /// Refuse a kernel whose settings differ, instead of changing them.
        protect_kernel_defaults: bool, "protectKernelDefaults", "bool", omitempty;
        /// Keep the iptables utility chains.
        make_iptables_util_chains: Option<bool>, "makeIPTablesUtilChains", "*bool", omitempty;
        /// Kept for compatibility; without effect.
        iptables_masquerade_bit: Option<i32>, "iptablesMasqueradeBit", "*int32", omitempty;
        /// Kept for compatibility; without effect.
        iptables_drop_bit: Option<i32>, "iptablesDropBit", "*int32", omitempty;
        /// Feature gates.
        feature_gates: BTreeMap<String, bool>, "featureGates", "map[string]bool", omitempty;
        /// Refuse to start with swap on.
        fail_swap_on: Option<bool>, "failSwapOn", "*bool", omitempty;
        /// Use of swap by containers.
        memory_swap: MemorySwap, "memorySwap", "MemorySwapConfiguration", always;
        /// Size at which a container's log is rotated.
        container_log_max_size: String, "containerLogMaxSize", "string", omitempty;
        /// Log files kept per container.
        container_log_max_files: Option<i32>, "containerLogMaxFiles", "*int32", omitempty;
        /// Rotations at once.
        container_log_max_workers: Option<i32>, "containerLogMaxWorkers", "*int32", omitempty;
        /// Time between two looks at log sizes.
        container_log_monitor_interval: Option<GoDuration>, "containerLogMonitorInterval", "*metav1.Duration", omitempty;
        /// How changes of config maps and secrets are noticed.
        config_map_and_secret_change_detection_strategy: String, "configMapAndSecretChangeDetectionStrategy", "ResourceChangeDetectionStrategy", omitempty;
        /// Resources kept for the system.
        system_reserved: BTreeMap<String, String>, "systemReserved", "map[string]string", omitempty;
        /// Resources kept for Kubernetes' own daemons.
        kube_reserved: BTreeMap<String, String>, "kubeReserved", "map[string]string", omitempty;
        /// CPUs kept for the system and daemons.
        reserved_system_cpus: String, "reservedSystemCPUs", "string", omitempty;
        /// Show metrics hidden since this version.
        show_hidden_metrics_for_version: String, "showHiddenMetricsForVersion", "string", omitempty;
        /// Cgroup of the system's daemons.
        system_reserved_cgroup: String, "systemReservedCgroup", "string", omitempty;
        /// Cgroup of Kubernetes' own daemons.
        kube_reserved_cgroup: String, "kubeReservedCgroup", "string", omitempty;
        /// Which reservations are enforced; absent and empty differ.
        enforce_node_allocatable: Option<Vec<String>>, "enforceNodeAllocatable", "[]string", omitempty;
        /// Sysctls a pod may set at its own risk.
        allowed_unsafe_sysctls: Vec<String>, "allowedUnsafeSysctls", "[]string", omitempty;
        /// Folder of Flexvolume drivers.
        volume_plugin_dir: String, "volumePluginDir", "string", omitempty;
        /// The node's name at its cloud.
        provider_id: String, "providerID", "string", omitempty;
        /// Let the kernel tell of memory pressure.
        kernel_memcg_notification: bool, "kernelMemcgNotification", "bool", omitempty;
        /// Log output.
        logging: Logging, "logging", "LoggingConfiguration", always;
        /// Serve files below `/var/log`.
        enable_system_log_handler: Option<bool>, "enableSystemLogHandler", "*bool", omitempty;
        /// Serve queries of service logs.
        enable_system_log_query: Option<bool>, "enableSystemLogQuery", "*bool", omitempty;
        /// Delay of a node shutdown.
        shutdown_grace_period: GoDuration, "shutdownGracePeriod", "metav1.Duration", omitempty;
        /// The part of it for critical pods.
        shutdown_grace_period_critical_pods: GoDuration, "shutdownGracePeriodCriticalPods", "metav1.Duration", omitempty;
        /// Delay of a node shutdown by pod priority.
        shutdown_grace_period_by_pod_priority: Vec<ShutdownGracePeriod>, "shutdownGracePeriodByPodPriority", "[]ShutdownGracePeriodByPodPriority", omitempty;
        /// Restart back-off.
        crash_loop_back_off: CrashLoopBackOff, "crashLoopBackOff", "CrashLoopBackOffConfig", always;
        /// Memory kept per NUMA node.
        reserved_memory: Vec<MemoryReservation>, "reservedMemory", "[]MemoryReservation", omitempty;
        /// Serve profiles.
        enable_profiling_handler: Option<bool>, "enableProfilingHandler", "*bool", omitempty;
        /// Serve changes of the log level.
        enable_debug_flags_handler: Option<bool>, "enableDebugFlagsHandler", "*bool", omitempty;
        /// Use the runtime's seccomp profile where a pod names none.
        seccomp_default: Option<bool>, "seccompDefault", "*bool", omitempty;
        /// Share of the memory limit at which a container is slowed down.
        memory_throttling_factor: Option<f64>, "memoryThrottlingFactor", "*float64", omitempty;
        /// How memory requests are protected.
        memory_reservation_policy: String, "memoryReservationPolicy", "MemoryReservationPolicy", omitempty;
        /// Taints of a new node.
        register_with_taints: Vec<Taint>, "registerWithTaints", "[]v1.Taint", omitempty;
        /// Create the node object.
        register_node: Option<bool>, "registerNode", "*bool", omitempty;
        /// Traces.
        tracing: Option<Tracing>, "tracing", "*TracingConfiguration", omitempty;
        /// Account for local storage of pods.
        local_storage_capacity_isolation: Option<bool>, "localStorageCapacityIsolation", "*bool", omitempty;
        /// The runtime's socket.
        container_runtime_endpoint: String, "containerRuntimeEndpoint", "string", always;
        /// The image service's socket; empty for the runtime's.
        image_service_endpoint: String, "imageServiceEndpoint", "string", omitempty;
        /// Refuse to start on cgroup v1.
        fail_cgroup_v1: Option<bool>, "failCgroupV1", "*bool", omitempty;
        /// User namespaces of pods.
        user_namespaces: Option<UserNamespaces>, "userNamespaces", "*UserNamespaces", omitempty;
    }
}

impl KubeletConfiguration {
    /// Every leaf of the schema, in declaration order.
    pub fn leaves() -> Vec<Leaf> {
        let mut leaves = Vec::new();
        let root = FieldShape { go_type: "", omitempty: false };
        Self::describe("", &root, &mut leaves);
        leaves.retain(|leaf| leaf.path != "kind" && leaf.path != "apiVersion");
        leaves
    }

    /// Reads a document; the answer holds what was understood, what was unknown and the first
    /// type error.
    pub(crate) fn read(value: &Value, reading: Reading) -> (Self, Decoder) {
        let mut decoder = Decoder::new(reading);
        let mut configuration = Self::default();
        configuration.decode(value, "", &mut decoder);
        (configuration, decoder)
    }

    /// Reads a file's document: as [`Self::read`], member by member in their order.
    pub(crate) fn read_members(document: &Document) -> (Self, Decoder) {
        let reading = if document.json { Reading::Json } else { Reading::Yaml };
        let mut decoder = Decoder::new(reading).with_literals(document.literals.clone());
        let mut configuration = Self::default();
        for (key, value) in &document.members {
            let member = Value::Object([(key.clone(), value.clone())].into_iter().collect());
            configuration.decode(&member, "", &mut decoder);
        }
        (configuration, decoder)
    }

    /// The JSON form with its type.
    pub fn to_json(&self) -> Value {
        serde_json::to_value(self.typed()).unwrap_or_default()
    }

    /// The same with its type, as documents of their own carry it.
    pub(crate) fn typed(&self) -> Self {
        let mut typed = self.clone();
        KIND.clone_into(&mut typed.kind);
        API_VERSION.clone_into(&mut typed.api_version);
        typed
    }

    /// The same without secrets: the headers of the static pod URL are masked.
    #[must_use]
    pub fn masked(&self) -> Self {
        let mut masked = self.clone();
        for values in masked.static_pod_url_header.values_mut() {
            *values = vec!["<masked>".to_owned()];
        }
        masked
    }
}

#[cfg(test)]
mod tests;
