//! API defaults of the configuration (kubelet: `SetDefaults_KubeletConfiguration`).
//!
//! A zero that is not behind an `Option` counts as "not set". Two defaults depend on feature gates
//! as they stand while defaulting.

use super::KubeletConfiguration;
use crate::gates::Gates;
use std::collections::BTreeMap;
use units::GoDuration;

/// Hard eviction thresholds of a Linux node whose file names none.
const EVICTION_HARD: [(&str, &str); 5] = [
    ("imagefs.available", "15%"),
    ("imagefs.inodesFree", "5%"),
    ("memory.available", "100Mi"),
    ("nodefs.available", "10%"),
    ("nodefs.inodesFree", "5%"),
];

/// The port of the API without authentication when there is no configuration file.
pub(crate) const LEGACY_READ_ONLY_PORT: i32 = 10255;

/// The default thresholds as a map.
pub(crate) fn eviction_hard() -> BTreeMap<String, String> {
    EVICTION_HARD.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
}

fn text(field: &mut String, default: &str) {
    if field.is_empty() {
        default.clone_into(field);
    }
}

fn span(field: &mut GoDuration, default: GoDuration) {
    if field.is_zero() {
        *field = default;
    }
}

fn number<T: Default + PartialEq>(field: &mut T, default: T) {
    if *field == T::default() {
        *field = default;
    }
}

impl KubeletConfiguration {
    /// Fills what is not set; `gates` are the gates in force together with this configuration's.
    pub(crate) fn set_defaults(&mut self, gates: &Gates) {
        const fn secs(seconds: i64) -> GoDuration {
            GoDuration::from_secs(seconds)
        }
        self.default_server();
        text(&mut self.pod_logs_dir, "/var/log/pods");
        span(&mut self.sync_frequency, secs(60));
        span(&mut self.file_check_frequency, secs(20));
        span(&mut self.http_check_frequency, secs(20));
        self.registry_pull_qps.get_or_insert(5);
        number(&mut self.registry_burst, 10);
        self.event_record_qps.get_or_insert(50);
        number(&mut self.event_burst, 100);
        self.oom_score_adj.get_or_insert(-999);
        if self.node_status_report_frequency.is_zero() {
            self.node_status_report_frequency = if self.node_status_update_frequency.is_zero() {
                secs(300)
            } else {
                self.node_status_update_frequency
            };
        }
        span(&mut self.node_status_update_frequency, secs(10));
        number(&mut self.node_lease_duration_seconds, 40);
        span(&mut self.image_minimum_gc_age, secs(120));
        self.image_gc_high_threshold_percent.get_or_insert(85);
        self.image_gc_low_threshold_percent.get_or_insert(80);
        span(&mut self.volume_stats_agg_period, secs(60));
        self.default_resources();
        span(&mut self.runtime_request_timeout, secs(120));
        text(&mut self.hairpin_mode, "promiscuous-bridge");
        number(&mut self.max_pods, 110);
        if self.pod_pids_limit.is_none_or(|limit| limit < 0) {
            self.pod_pids_limit = Some(-1);
        }
        self.resolv_conf.get_or_insert_with(|| "/etc/resolv.conf".to_owned());
        self.node_status_max_images.get_or_insert(50);
        number(&mut self.max_open_files, 1_000_000);
        text(&mut self.content_type, "application/vnd.kubernetes.protobuf");
        self.kube_api_qps.get_or_insert(50);
        number(&mut self.kube_api_burst, 100);
        let parallel = self.max_parallel_image_pulls.is_some_and(|pulls| pulls >= 2);
        self.serialize_image_pulls.get_or_insert(!parallel);
        span(&mut self.eviction_pressure_transition_period, secs(300));
        self.merge_default_eviction_settings.get_or_insert(false);
        self.enable_controller_attach_detach.get_or_insert(true);
        self.make_iptables_util_chains.get_or_insert(true);
        self.iptables_masquerade_bit.get_or_insert(14);
        self.iptables_drop_bit.get_or_insert(15);
        text(&mut self.container_log_max_size, "10Mi");
        self.container_log_max_files.get_or_insert(5);
        self.container_log_max_workers.get_or_insert(1);
        self.container_log_monitor_interval.get_or_insert(secs(10));
        text(&mut self.config_map_and_secret_change_detection_strategy, "Watch");
        text(&mut self.volume_plugin_dir, "/usr/libexec/kubernetes/kubelet-plugins/volume/exec/");
        self.default_logging();
        self.seccomp_default.get_or_insert(false);
        self.register_node.get_or_insert(true);
        text(&mut self.container_runtime_endpoint, "unix:///run/containerd/containerd.sock");
        if gates.enabled("KubeletCrashLoopBackOffMax") {
            self.crash_loop_back_off.max_container_restart_period.get_or_insert(secs(300));
        }
        if gates.enabled("KubeletEnsureSecretPulledImages") {
            text(
                &mut self.image_pull_credentials_verification_policy,
                "NeverVerifyPreloadedImages",
            );
        }
    }

    fn default_server(&mut self) {
        self.enable_server.get_or_insert(true);
        text(&mut self.address, "0.0.0.0");
        number(&mut self.port, 10250);
        let authentication = &mut self.authentication;
        authentication.anonymous.enabled.get_or_insert(false);
        authentication.webhook.enabled.get_or_insert(true);
        span(&mut authentication.webhook.cache_ttl, GoDuration::from_mins(2));
        text(&mut self.authorization.mode, "Webhook");
        let answers = &mut self.authorization.webhook;
        span(&mut answers.cache_authorized_ttl, GoDuration::from_mins(5));
        span(&mut answers.cache_unauthorized_ttl, GoDuration::from_secs(30));
        self.enable_debugging_handlers.get_or_insert(true);
        self.healthz_port.get_or_insert(10248);
        text(&mut self.healthz_bind_address, "127.0.0.1");
        span(&mut self.streaming_connection_idle_timeout, GoDuration::from_mins(240));
        self.enable_system_log_handler.get_or_insert(true);
        self.enable_profiling_handler.get_or_insert(true);
        self.enable_debug_flags_handler.get_or_insert(true);
    }

    fn default_resources(&mut self) {
        self.cgroups_per_qos.get_or_insert(true);
        text(&mut self.cgroup_driver, "cgroupfs");
        text(&mut self.cpu_manager_policy, "none");
        span(&mut self.cpu_manager_reconcile_period, GoDuration::from_secs(10));
        text(&mut self.memory_manager_policy, "None");
        text(&mut self.topology_manager_policy, "none");
        text(&mut self.topology_manager_scope, "container");
        self.cpu_cfs_quota.get_or_insert(true);
        self.cpu_cfs_quota_period.get_or_insert(GoDuration::from_millis(100));
        self.fail_swap_on.get_or_insert(true);
        self.enforce_node_allocatable.get_or_insert_with(|| vec!["pods".to_owned()]);
        self.fail_cgroup_v1.get_or_insert(true);
        self.memory_throttling_factor.get_or_insert(0.9);
        text(&mut self.memory_reservation_policy, "None");
        self.local_storage_capacity_isolation.get_or_insert(true);
    }

    fn default_logging(&mut self) {
        text(&mut self.logging.format, "text");
        let flush = &mut self.logging.flush_frequency;
        if flush.duration.is_zero() {
            flush.duration = GoDuration::from_secs(5);
            flush.as_text = true;
        }
    }

    /// What the flags alone default to: open, as before there were configuration files.
    pub(crate) fn set_legacy_defaults(&mut self) {
        self.authentication.anonymous.enabled = Some(true);
        self.authentication.webhook.enabled = Some(false);
        "AlwaysAllow".clone_into(&mut self.authorization.mode);
        self.read_only_port = LEGACY_READ_ONLY_PORT;
    }

    /// The pointers that upstream's internal type does not have: nil becomes the zero value, as a
    /// conversion there and back does.
    pub(crate) fn settle(&mut self) {
        self.enable_system_log_query.get_or_insert(false);
    }
}
