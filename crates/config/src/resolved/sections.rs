//! The sections of the resolved configuration.

use super::tls::TlsVersion;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;
use units::{CpuSet, GoDuration, Quantity, SpelledQuantity};

/// Places on disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dirs {
    /// Our state.
    pub root: PathBuf,
    /// Container logs.
    pub pod_logs: PathBuf,
    /// Certificates and keys.
    pub certs: PathBuf,
    /// Flexvolume drivers.
    pub volume_plugins: PathBuf,
}

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// klog's text.
    Text,
    /// One JSON object a line.
    Json,
}

/// Log output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Logging {
    /// How lines look.
    pub format: LogFormat,
    /// Lines up to this verbosity are written.
    pub verbosity: u32,
    /// Verbosity per file pattern.
    pub vmodule: Vec<(String, u32)>,
    /// Longest time between two flushes.
    pub flush_frequency: Duration,
    /// Info to standard output, errors to standard error.
    pub split_stream: bool,
    /// Buffer for info lines with split streams, in bytes.
    pub info_buffer_bytes: u64,
}

/// Asking the API server about callers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Webhook {
    /// How long a yes is kept.
    pub cache_yes: Duration,
    /// How long a no is kept.
    pub cache_no: Duration,
}

/// What callers may do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Authorization {
    /// Everything.
    AlwaysAllow,
    /// What the API server says.
    Webhook(Webhook),
}

/// Health endpoint and HTTPS API.
/// Many fields: one for each of its settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Server {
    /// Where health is told; `None` for nowhere.
    pub healthz: Option<SocketAddr>,
    /// The HTTPS API; `None` when switched off.
    pub https: Option<SocketAddr>,
    /// The API without authentication; `None` when switched off.
    pub read_only: Option<SocketAddr>,
    /// Certificate; `None` when the cluster gives it.
    pub tls_cert_file: Option<PathBuf>,
    /// Key of the certificate.
    pub tls_private_key_file: Option<PathBuf>,
    /// Nobody named a certificate: when neither file is readable, make a self-signed one there.
    pub tls_self_signed: bool,
    /// Cipher suites by Go's names; empty for a safe set.
    pub tls_cipher_suites: Vec<String>,
    /// Key exchanges by Go's numbers; empty for a safe set.
    pub tls_curve_preferences: Vec<i32>,
    /// Lowest TLS version.
    pub tls_min_version: TlsVersion,
    /// Get the certificate from the cluster.
    pub server_tls_bootstrap: bool,
    /// Authorities of client certificates.
    pub client_ca_file: Option<PathBuf>,
    /// Let requests in that prove nothing.
    pub anonymous: bool,
    /// Ask the API server whose token it is, and keep the answer so long.
    pub token_webhook: Option<Duration>,
    /// What callers may do.
    pub authorization: Authorization,
    /// Serve logs, exec, attach, port-forward.
    pub debugging_handlers: bool,
    /// Serve profiles.
    pub profiling_handler: bool,
    /// Serve changes of the log level.
    pub debug_flags_handler: bool,
    /// Serve files below `/var/log`.
    pub system_log_handler: bool,
    /// Serve queries of service logs.
    pub system_log_query: bool,
    /// Collect block profiles.
    pub contention_profiling: bool,
}

/// Connection to the API server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiClient {
    /// How to reach it.
    pub kubeconfig: PathBuf,
    /// How to ask for a client certificate.
    pub bootstrap_kubeconfig: Option<PathBuf>,
    /// Renew the client certificate.
    pub rotate_certificates: bool,
    /// Requests a second.
    pub qps: u32,
    /// Requests at once.
    pub burst: u32,
    /// Events a second.
    pub event_qps: u32,
    /// Events at once.
    pub event_burst: u32,
    /// Media type of requests.
    pub content_type: String,
    /// Deadline of heartbeats.
    pub heartbeat_timeout: Duration,
    /// How changes of config maps and secrets are noticed.
    pub change_detection: ChangeDetection,
}

/// How changes of config maps and secrets are noticed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChangeDetection {
    /// Ask each time.
    Get,
    /// Keep answers for a while.
    Cache,
    /// Watch them.
    Watch,
    /// A strategy nobody knows; refused when an API server is used.
    Unknown(String),
}

/// Who writes cgroups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CgroupDriver {
    /// We write the files.
    Cgroupfs,
    /// systemd does.
    Systemd,
}

/// Connection to the container runtime.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Runtime {
    /// The runtime's socket, as given.
    pub endpoint: String,
    /// The image service's socket, as given; the runtime's when none was.
    pub image_endpoint: String,
    /// Deadline of most calls.
    pub request_timeout: Duration,
    /// Cgroup the runtime runs in.
    pub cgroups: Option<String>,
    /// Use the runtime's seccomp profile where a pod names none.
    pub seccomp_default: bool,
}

/// This node.
/// Many fields: one for each of its settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Name instead of the host's, trimmed and in lower case; `None` for the host's.
    pub hostname_override: Option<String>,
    /// Addresses as given; checked when the node registers.
    pub node_ip: String,
    /// Create the node object.
    pub register: bool,
    /// Labels of a new node.
    pub labels: BTreeMap<String, String>,
    /// Taints of a new node: key, value, effect.
    pub taints: Vec<(String, String, String)>,
    /// Name at the cloud.
    pub provider_id: String,
    /// Whether a cloud controller completes the node.
    pub external_cloud: bool,
    /// Time between two computations of the status.
    pub status_update_frequency: Duration,
    /// Longest time between two reports of an unchanged status.
    pub status_report_frequency: Duration,
    /// How long the lease lives.
    pub lease_duration: Duration,
    /// Images in the status; `None` for all.
    pub status_max_images: Option<usize>,
    /// Leave attaching volumes to the cluster.
    pub controller_attach_detach: bool,
    /// Our out-of-memory score.
    pub oom_score_adj: i32,
    /// Limit of our open files.
    pub max_open_files: u64,
    /// Keep the iptables utility chains.
    pub make_iptables_util_chains: bool,
    /// Refuse kernel settings that differ, instead of changing them.
    pub protect_kernel_defaults: bool,
    /// The lock to hold while running.
    pub lock_file: Option<LockFile>,
}

/// The lock to hold while running.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockFile {
    /// Its path.
    pub path: PathBuf,
    /// Leave when somebody else wants it.
    pub exit_on_contention: bool,
}

/// Static pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sources {
    /// Folder or file.
    pub path: Option<PathBuf>,
    /// Time between two reads of it.
    pub file_check_frequency: Duration,
    /// URL.
    pub url: Option<String>,
    /// Headers sent to the URL; may be secret.
    pub url_headers: BTreeMap<String, Vec<String>>,
    /// Time between two reads of it.
    pub http_check_frequency: Duration,
    /// Longest time between two looks at a pod.
    pub sync_frequency: Duration,
}

/// How swap is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SwapBehavior {
    /// Not at all.
    NoSwap,
    /// In proportion to memory requests.
    LimitedSwap,
}

/// What pods may use.
#[derive(Debug, Clone, PartialEq)]
pub struct PodLimits {
    /// Pods on this node.
    pub max_pods: u32,
    /// Pods per core; `None` for no limit.
    pub pods_per_core: Option<u32>,
    /// Processes per pod; `None` for the node's limit.
    pub pids_limit: Option<i64>,
    /// Enforce CPU limits.
    pub cpu_cfs_quota: bool,
    /// Period of CPU limits.
    pub cpu_cfs_quota_period: Duration,
    /// Use of swap.
    pub swap_behavior: SwapBehavior,
    /// Refuse to start with swap on.
    pub fail_swap_on: bool,
    /// On out-of-memory kill one process; `None` for the cgroup version's default.
    pub single_process_oom_kill: Option<bool>,
    /// Sysctls a pod may set at its own risk.
    pub allowed_unsafe_sysctls: Vec<String>,
    /// User ids per pod.
    pub user_ids_per_pod: u32,
    /// Longest wait between two restarts.
    pub max_restart_back_off: Duration,
    /// First wait between two restarts.
    pub initial_restart_back_off: Duration,
    /// Account for local storage.
    pub local_storage_isolation: bool,
    /// Time between two measurements of volumes; `None` for never.
    pub volume_stats_period: Option<Duration>,
}

/// Names and addresses given to pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dns {
    /// Domain of the cluster.
    pub cluster_domain: String,
    /// DNS servers as given; what is no address is dropped by the user.
    pub cluster_dns: Vec<String>,
    /// Resolver configuration of the host; `None` for none.
    pub resolv_conf: Option<PathBuf>,
    /// Addresses for pods when there is no cluster.
    pub pod_cidr: String,
}

/// How CPUs are given out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CpuManagerPolicy {
    /// All are shared.
    None,
    /// Guaranteed pods may have their own.
    Static,
    /// A policy nobody knows; refused at start.
    Unknown(String),
}

/// How memory is given out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MemoryManagerPolicy {
    /// Anywhere.
    None,
    /// Guaranteed pods are kept on few NUMA nodes.
    Static,
    /// A policy nobody knows; refused at start.
    Unknown(String),
}

/// How hints for NUMA nodes are merged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TopologyPolicy {
    /// Not at all.
    None,
    /// Prefer alignment.
    BestEffort,
    /// Refuse what is not aligned as well as possible.
    Restricted,
    /// Refuse what does not fit one node.
    SingleNumaNode,
}

/// What hints are for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TopologyScope {
    /// Each container.
    Container,
    /// The whole pod.
    Pod,
}

/// Which reservations are enforced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Enforcement {
    /// The limit of all pods together.
    pub pods: bool,
    /// The system's cgroup.
    pub system: bool,
    /// The system's cgroup, CPU only.
    pub system_compressible: bool,
    /// The daemons' cgroup.
    pub kube: bool,
    /// The daemons' cgroup, CPU only.
    pub kube_compressible: bool,
}

/// What is kept from pods.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Reservations {
    /// For the system: cpu, memory, ephemeral-storage, pid.
    pub system: BTreeMap<String, Quantity>,
    /// For Kubernetes' daemons: cpu, memory, ephemeral-storage, pid.
    pub kube: BTreeMap<String, Quantity>,
    /// CPUs for both; replaces their cpu amounts.
    pub cpus: CpuSet,
    /// Memory per NUMA node and kind.
    pub memory: BTreeMap<i32, BTreeMap<String, SpelledQuantity>>,
    /// Share of memory requests, in percent, that lower QoS classes cannot use; `None` when the
    /// gate is off or nothing is set.
    pub qos_memory_percent: Option<i64>,
}

/// Reservations, cgroups, CPU and memory placement.
/// Many fields: one for each of its settings.
#[derive(Debug, Clone, PartialEq)]
pub struct Resources {
    /// What is kept from pods.
    pub reservations: Reservations,
    /// Which reservations are enforced.
    pub enforcement: Enforcement,
    /// Cgroup of the system's daemons.
    pub system_reserved_cgroup: Option<String>,
    /// Cgroup of Kubernetes' daemons.
    pub kube_reserved_cgroup: Option<String>,
    /// Cgroup we run in.
    pub kubelet_cgroups: Option<String>,
    /// Cgroup for processes that are in none.
    pub system_cgroups: Option<String>,
    /// Root of the pods' cgroups (`/` where QoS cgroups are on and none was given).
    pub cgroup_root: String,
    /// One cgroup per QoS class and pod.
    pub cgroups_per_qos: bool,
    /// Who writes cgroups; the runtime's own choice wins.
    pub cgroup_driver: CgroupDriver,
    /// How CPUs are given out.
    pub cpu_manager_policy: CpuManagerPolicy,
    /// Its options.
    pub cpu_manager_policy_options: BTreeMap<String, String>,
    /// Time between two checks of CPU assignments.
    pub cpu_manager_reconcile_period: Duration,
    /// How memory is given out.
    pub memory_manager_policy: MemoryManagerPolicy,
    /// How hints are merged.
    pub topology_policy: TopologyPolicy,
    /// What hints are for.
    pub topology_scope: TopologyScope,
    /// Its options.
    pub topology_policy_options: BTreeMap<String, String>,
    /// Share of the memory limit at which a container is slowed down.
    pub memory_throttling_factor: f64,
    /// Protect memory requests in tiers.
    pub tiered_memory_reservation: bool,
    /// Leave hard eviction thresholds in what pods may request.
    pub ignore_eviction_in_allocatable: bool,
}

/// Eviction under pressure; thresholds are parsed by the eviction engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Eviction {
    /// Thresholds at which pods go at once.
    pub hard: BTreeMap<String, String>,
    /// Thresholds at which pods go after a while.
    pub soft: BTreeMap<String, String>,
    /// How long a soft threshold may stay crossed.
    pub soft_grace_period: BTreeMap<String, String>,
    /// What an eviction must free beyond the threshold.
    pub minimum_reclaim: BTreeMap<String, String>,
    /// How long a condition stays after the pressure went.
    pub pressure_transition_period: Duration,
    /// Longest grace of a pod evicted by a soft threshold, in seconds; negative for the pod's own.
    pub max_pod_grace_period_seconds: i32,
    /// Let the kernel tell of memory pressure.
    pub kernel_memcg_notification: bool,
}

/// Which images need their pull credentials checked again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SecretsVerification {
    /// None.
    NeverVerify,
    /// Those we pulled.
    NeverVerifyPreloadedImages,
    /// All but those that match.
    NeverVerifyAllowlistedImages(Vec<String>),
    /// All.
    AlwaysVerify,
    /// The feature is off.
    Off,
}

/// Programs that give pull credentials.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CredentialProviders {
    /// File or folder that configures them.
    pub config: PathBuf,
    /// Where the programs are.
    pub bin_dir: PathBuf,
}

/// Pulling images.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImagePulls {
    /// Pulls at once; `None` for no limit.
    pub max_parallel: Option<u32>,
    /// Pulls a second; `None` for no limit.
    pub qps: Option<u32>,
    /// Pulls that may start at once.
    pub burst: u32,
    /// Which images need their credentials checked.
    pub verification: SecretsVerification,
    /// Programs that give credentials.
    pub credential_providers: Option<CredentialProviders>,
}

/// Collecting images.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImageGc {
    /// Youngest unused image that may go.
    pub minimum_age: Duration,
    /// Age at which an unused image goes; `None` for never.
    pub maximum_age: Option<Duration>,
    /// Disk usage at which collection starts.
    pub high_threshold_percent: u8,
    /// Disk usage at which it stops.
    pub low_threshold_percent: u8,
}

/// Collecting dead containers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ContainerGc {
    /// Youngest dead container that may go.
    pub minimum_age: Duration,
    /// Dead instances kept per container; `None` for no limit.
    pub max_per_container: Option<u32>,
    /// Dead containers kept on the node; `None` for no limit.
    pub max_total: Option<u32>,
}

/// Container log files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ContainerLogs {
    /// Size at which a file is rotated; `None` for never.
    pub max_bytes: Option<u64>,
    /// Files kept per container.
    pub max_files: u32,
    /// Rotations at once.
    pub max_workers: u32,
    /// Time between two looks at sizes.
    pub monitor_interval: Duration,
}

/// Graceful node shutdown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shutdown {
    /// The delay of the shutdown; zero for none.
    pub grace_period: Duration,
    /// The part of it for critical pods.
    pub critical_grace_period: Duration,
    /// Grace by lowest priority, instead of the two above.
    pub by_priority: Vec<(i32, Duration)>,
}

/// Traces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tracing {
    /// The collector.
    pub endpoint: String,
    /// Traces kept out of a million.
    pub sampling_rate_per_million: u32,
}

/// A duration that may not be negative any more.
pub(super) fn span(duration: GoDuration) -> Duration {
    duration.to_std_or_zero()
}
