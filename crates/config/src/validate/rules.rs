//! The rules, in groups that follow upstream's order.

use super::CgroupVersion;
use super::images::allowlist_fault;
use super::names::{is_huge_page_name, label_value_faults, qualified_name_faults};
use crate::gates::Gates;
use crate::kubelet::{KubeletConfiguration, Taint, Time};
use crate::text::clean_path;
use std::collections::BTreeSet;
use std::fmt::Display;
use units::strconv::{self, quote};
use units::{CpuSet, CpuSetError, GoDuration};

const ENA: &str = "enforceNodeAllocatable (--enforce-node-allocatable)";

pub(super) struct Rules<'a> {
    pub(super) kubelet: &'a KubeletConfiguration,
    pub(super) gates: &'a Gates,
    pub(super) faults: Vec<String>,
}

impl Rules<'_> {
    fn fault(&mut self, text: impl Display) {
        self.faults.push(format!("invalid configuration: {text}"));
    }

    fn fault_if(&mut self, wrong: bool, text: impl Display) {
        if wrong {
            self.fault(text);
        }
    }

    fn not_negative(&mut self, name: &str, value: impl Into<i64>) {
        let value = value.into();
        self.fault_if(value < 0, format!("{name} {value} must not be a negative number"));
    }

    fn between(&mut self, name: &str, value: i32, low: i32, high: i32) {
        self.fault_if(
            !(low..=high).contains(&value),
            format!("{name} {value} must be between {low} and {high}, inclusive"),
        );
    }

    pub(super) fn limits(&mut self) {
        let k = self.kubelet;
        self.fault_if(
            k.node_lease_duration_seconds <= 0,
            "nodeLeaseDurationSeconds must be greater than 0",
        );
        self.fault_if(
            !k.system_cgroups.is_empty() && k.cgroup_root.is_empty(),
            "systemCgroups (--system-cgroups) was specified and cgroupRoot (--cgroup-root) was \
             not specified",
        );
        self.not_negative("eventBurst (--event-burst)", k.event_burst);
        self.not_negative("eventRecordQPS (--event-qps)", k.event_record_qps.unwrap_or(0));
        let healthz = k.healthz_port.unwrap_or(0);
        if healthz != 0 {
            self.between("healthzPort (--healthz-port)", healthz, 1, 65535);
        }
        let period = k.cpu_cfs_quota_period.unwrap_or_default();
        let name = "cpuCFSQuotaPeriod (--cpu-cfs-quota-period)";
        if self.gates.enabled("CustomCPUCFSQuotaPeriod") {
            let allowed = GoDuration::from_millis(1)..=GoDuration::from_secs(1);
            self.fault_if(
                !allowed.contains(&period),
                format!("{name} {{{period}}} must be between 1ms and 1sec, inclusive"),
            );
        } else {
            self.fault_if(
                period != GoDuration::from_millis(100),
                format!("{name} {{{period}}} requires feature gate CustomCPUCFSQuotaPeriod"),
            );
        }
    }

    pub(super) fn images(&mut self) {
        let k = self.kubelet;
        let high = k.image_gc_high_threshold_percent.unwrap_or(0);
        let low = k.image_gc_low_threshold_percent.unwrap_or(0);
        let (high_name, low_name) = (
            "imageGCHighThresholdPercent (--image-gc-high-threshold)",
            "imageGCLowThresholdPercent (--image-gc-low-threshold)",
        );
        self.between(high_name, high, 0, 100);
        self.between(low_name, low, 0, 100);
        self.fault_if(
            low >= high,
            format!("{low_name} {low} must be less than {high_name} {high}"),
        );
        let (minimum, maximum) = (k.image_minimum_gc_age, k.image_maximum_gc_age);
        self.fault_if(
            minimum < GoDuration::ZERO,
            format!("imageMinimumGCAge {minimum} must not be negative"),
        );
        self.fault_if(
            maximum < GoDuration::ZERO,
            format!("imageMaximumGCAge {maximum} must not be negative"),
        );
        self.fault_if(
            maximum > GoDuration::ZERO && maximum <= minimum,
            format!("imageMaximumGCAge {maximum} must be greater than imageMinimumGCAge {minimum}"),
        );
    }

    pub(super) fn network_and_limits(&mut self) {
        let k = self.kubelet;
        self.between(
            "iptablesDropBit (--iptables-drop-bit)",
            k.iptables_drop_bit.unwrap_or(0),
            0,
            31,
        );
        self.between(
            "iptablesMasqueradeBit (--iptables-masquerade-bit)",
            k.iptables_masquerade_bit.unwrap_or(0),
            0,
            31,
        );
        self.not_negative("kubeAPIBurst (--kube-api-burst)", k.kube_api_burst);
        self.not_negative("kubeAPIQPS (--kube-api-qps)", k.kube_api_qps.unwrap_or(0));
        let images = k.node_status_max_images.unwrap_or(0);
        self.fault_if(
            images < -1,
            format!(
                "nodeStatusMaxImages (--node-status-max-images) {images} must be -1 or greater"
            ),
        );
        self.not_negative("maxOpenFiles (--max-open-files)", k.max_open_files);
        self.not_negative("maxPods (--max-pods)", k.max_pods);
        let score = k.oom_score_adj.unwrap_or(0);
        self.between("oomScoreAdj (--oom-score-adj)", score, -1000, 1000);
        self.not_negative("podsPerCore (--pods-per-core)", k.pods_per_core);
        self.between("port (--port)", k.port, 1, 65535);
        self.between("readOnlyPort (--read-only-port)", k.read_only_port, 0, 65535);
        self.not_negative("registryBurst (--registry-burst)", k.registry_burst);
        self.not_negative("registryPullQPS (--registry-qps)", k.registry_pull_qps.unwrap_or(0));
        if let Some(pulls) = k.max_parallel_image_pulls {
            self.fault_if(
                pulls < 1,
                format!("maxParallelImagePulls {pulls} must be a positive number"),
            );
            self.fault_if(
                k.serialize_image_pulls.unwrap_or(false) && pulls > 1,
                "maxParallelImagePulls cannot be larger than 1 unless SerializeImagePulls \
                 (--serialize-image-pulls) is set to false",
            );
        }
    }

    pub(super) fn registration(&mut self) {
        let k = self.kubelet;
        self.fault_if(
            k.server_tls_bootstrap && !self.gates.enabled("RotateKubeletServerCertificate"),
            "serverTLSBootstrap true requires feature gate RotateKubeletServerCertificate",
        );
        self.fault_if(
            k.run_once,
            "runOnce (--runOnce) true, Runonce mode has been deprecated and should not be set",
        );
        for taint in &k.register_with_taints {
            if !taint_is_valid(taint) {
                let time = taint.time_added.as_ref().map_or("<nil>".to_owned(), Time::shown);
                self.faults.push(format!(
                    "invalid taint: {{{} {} {} {time}}}",
                    taint.key, taint.value, taint.effect
                ));
            }
            self.fault_if(taint.time_added.is_some(), "taint.TimeAdded is not nil");
        }
    }

    pub(super) fn topology(&mut self) {
        let k = self.kubelet;
        let policies = ["none", "best-effort", "restricted", "single-numa-node"];
        let policy = k.topology_manager_policy.as_str();
        self.fault_if(
            !policies.contains(&policy),
            format!(
                "topologyManagerPolicy (--topology-manager-policy) {} must be one of: [{}]",
                quote(policy),
                policies.map(quote).join(" ")
            ),
        );
        let scope = k.topology_manager_scope.as_str();
        self.fault_if(
            !["container", "pod"].contains(&scope),
            format!(
                "topologyManagerScope (--topology-manager-scope) {} must be one of: \
                 \"container\", or \"pod\"",
                quote(scope)
            ),
        );
    }

    pub(super) fn shutdown(&mut self) {
        let k = self.kubelet;
        let (total, critical) = (k.shutdown_grace_period, k.shutdown_grace_period_critical_pods);
        let second = GoDuration::from_secs(1);
        let odd = |d: GoDuration| d < GoDuration::ZERO || (d > GoDuration::ZERO && d < second);
        let some = total > GoDuration::ZERO || critical > GoDuration::ZERO;
        if self.gates.enabled("GracefulNodeShutdown") {
            self.fault_if(
                critical > total,
                format!(
                    "shutdownGracePeriodCriticalPods {{{critical}}} must be <= \
                     shutdownGracePeriod {{{total}}}"
                ),
            );
            for (name, period) in
                [("shutdownGracePeriod", total), ("shutdownGracePeriodCriticalPods", critical)]
            {
                self.fault_if(
                    odd(period),
                    format!("{name} {{{period}}} must be either zero or otherwise >= 1 sec"),
                );
            }
        } else {
            self.fault_if(
                some,
                "specifying shutdownGracePeriod or shutdownGracePeriodCriticalPods requires \
                 feature gate GracefulNodeShutdown",
            );
        }
        if k.shutdown_grace_period_by_pod_priority.is_empty() {
            return;
        }
        if self.gates.enabled("GracefulNodeShutdownBasedOnPodPriority") {
            self.fault_if(
                some,
                "Cannot specify both shutdownGracePeriodByPodPriority and shutdownGracePeriod at \
                 the same time",
            );
        } else {
            self.fault(
                "Specifying shutdownGracePeriodByPodPriority requires feature gate \
                 GracefulNodeShutdownBasedOnPodPriority",
            );
        }
    }

    pub(super) fn swap_and_restarts(&mut self) {
        let k = self.kubelet;
        let swap = k.memory_swap.swap_behavior.as_str();
        self.fault_if(
            !["", "NoSwap", "LimitedSwap"].contains(&swap),
            format!(
                "memorySwap.swapBehavior {} must be one of: \"\", \"LimitedSwap\" or \"NoSwap\"",
                quote(swap)
            ),
        );
        let period = k.crash_loop_back_off.max_container_restart_period;
        match (self.gates.enabled("KubeletCrashLoopBackOffMax"), period) {
            (true, None) => self.fault(
                "FeatureGate KubeletCrashLoopBackOffMax is enabled, \
                 CrashLoopBackOff.MaxContainerRestartPeriod must be set",
            ),
            (true, Some(period)) => {
                let millis = period.as_nanos() / 1_000_000;
                self.fault_if(
                    !(1000..=300_000).contains(&millis),
                    format!(
                        "CrashLoopBackOff.MaxContainerRestartPeriod (got: {} seconds) must be set \
                         between 1s and 300s",
                        strconv::float(period.as_secs_f64())
                    ),
                );
            }
            (false, Some(_)) => self.fault(
                "FeatureGate KubeletCrashLoopBackOffMax not enabled, \
                 CrashLoopBackOff.MaxContainerRestartPeriod must not be set",
            ),
            (false, None) => {}
        }
    }

    pub(super) fn enforcement(&mut self) {
        let k = self.kubelet;
        let levels = k.enforce_node_allocatable.as_deref().unwrap_or_default();
        let has = |level: &str| levels.iter().any(|l| l == level);
        for who in ["system", "kube"] {
            let (plain, compressible) =
                (format!("{who}-reserved"), format!("{who}-reserved-compressible"));
            self.fault_if(
                has(&plain) && has(&compressible),
                format!(
                    "both {} and {} cannot be specified together in {ENA}",
                    quote(&plain),
                    quote(&compressible)
                ),
            );
        }
        let mut seen = BTreeSet::new();
        for level in levels {
            if !seen.insert(level) {
                self.fault(format!("duplicated enforcements {} in {ENA}", quote(level)));
                continue;
            }
            let (who, cgroup) = match level.as_str() {
                "pods" => ("", ""),
                "system-reserved" | "system-reserved-compressible" => {
                    ("system", k.system_reserved_cgroup.as_str())
                }
                "kube-reserved" | "kube-reserved-compressible" => {
                    ("kube", k.kube_reserved_cgroup.as_str())
                }
                "none" => {
                    self.fault_if(
                        levels.len() > 1,
                        format!(
                            "{ENA} may not contain additional enforcements when \"none\" is \
                             specified"
                        ),
                    );
                    continue;
                }
                other => {
                    self.fault(format!(
                        "option {} specified for {ENA}. Valid options are \"pods\", \
                         \"system-reserved\", \"system-reserved-compressible\", \
                         \"kube-reserved\", \"kube-reserved-compressible\" or \"none\"",
                        quote(other)
                    ));
                    continue;
                }
            };
            self.fault_if(
                !who.is_empty() && cgroup.is_empty(),
                format!(
                    "{who}ReservedCgroup (--{who}-reserved-cgroup) must be specified when \
                     \"{who}-reserved\" or \"{who}-reserved-compressible\" included in {ENA}"
                ),
            );
            self.fault_if(
                !k.cgroups_per_qos.unwrap_or(false),
                format!(
                    "cgroupsPerQOS (--cgroups-per-qos) must be set to true when {} contained in \
                     {ENA}",
                    quote(level)
                ),
            );
        }
    }

    pub(super) fn hairpin(&mut self) {
        let mode = self.kubelet.hairpin_mode.as_str();
        self.fault_if(
            !["none", "hairpin-veth", "promiscuous-bridge"].contains(&mode),
            format!(
                "option {} specified for hairpinMode (--hairpin-mode). Valid options are \
                 \"none\", \"hairpin-veth\" or \"promiscuous-bridge\"",
                quote(mode)
            ),
        );
    }

    pub(super) fn pull_credentials(&mut self) {
        let k = self.kubelet;
        let policy = k.image_pull_credentials_verification_policy.as_str();
        let list = &k.preloaded_images_verification_allowlist;
        if !self.gates.enabled("KubeletEnsureSecretPulledImages") {
            for (name, set) in [
                ("imagePullCredentialsVerificationPolicy", !policy.is_empty()),
                ("preloadedImagesVerificationAllowlist", !list.is_empty()),
            ] {
                self.fault_if(
                    set,
                    format!(
                        "`{name}` must not be set if KubeletEnsureSecretPulledImages feature gate \
                         is not enabled"
                    ),
                );
            }
            return;
        }
        let policies = [
            "NeverVerify",
            "NeverVerifyPreloadedImages",
            "NeverVerifyAllowlistedImages",
            "AlwaysVerify",
        ];
        self.fault_if(
            !policies.contains(&policy),
            format!(
                "option {} specified for imagePullCredentialsVerificationPolicy. Valid options \
                 are \"NeverVerify\", \"NeverVerifyPreloadedImages\", \
                 \"NeverVerifyAllowlistedImages\" or \"AlwaysVerify\"",
                quote(policy)
            ),
        );
        if !list.is_empty() && policy != "NeverVerifyAllowlistedImages" {
            self.fault(
                "can't set `preloadedImagesVerificationAllowlist` if \
                 `imagePullCredentialsVertificationPolicy` is not \"NeverVerifyAllowlistedImages\"",
            );
        } else if let Some(fault) = allowlist_fault(list) {
            self.fault(format!(
                "invalid image pattern in `preloadedImagesVerificationAllowlist`: {fault}"
            ));
        }
    }

    pub(super) fn reservations(&mut self) {
        let k = self.kubelet;
        if !k.reserved_system_cpus.is_empty() {
            self.fault_if(
                !k.system_reserved_cgroup.is_empty() || !k.kube_reserved_cgroup.is_empty(),
                "can't use reservedSystemCPUs (--reserved-cpus) with systemReservedCgroup \
                 (--system-reserved-cgroup) or kubeReservedCgroup (--kube-reserved-cgroup)",
            );
            let parsed = k.reserved_system_cpus.parse::<CpuSet>();
            // Upstream takes numbers of any size, and finds later that no machine has them.
            if let Err(error) = parsed.as_ref()
                && !matches!(error, CpuSetError::OutOfRange(_))
            {
                self.fault(format!(
                    "unable to parse reservedSystemCPUs (--reserved-cpus) {}, error: {error}",
                    k.reserved_system_cpus
                ));
            }
        }
        let mut seen = BTreeSet::new();
        for reservation in &k.reserved_memory {
            let node = reservation.numa_node;
            for (resource, amount) in &reservation.limits {
                let quoted = quote(resource);
                self.fault_if(
                    resource != "memory" && !is_huge_page_name(resource),
                    format!(
                        "the limit type {quoted} for NUMA node {node} is not supported, only \
                         [memory hugepages-<HugePageSize>] is accepted"
                    ),
                );
                self.fault_if(
                    amount.amount.is_zero(),
                    format!(
                        "reserved memory may not be zero for NUMA node {node} and resource {quoted}"
                    ),
                );
                self.fault_if(
                    !seen.insert((node, resource)),
                    format!(
                        "the reserved memory has a duplicate value for NUMA node {node} and \
                         resource {quoted}"
                    ),
                );
            }
        }
    }

    /// Only the first fault of this group is told.
    pub(super) fn host(&mut self, cgroups: CgroupVersion) {
        let k = self.kubelet;
        let v1 = cgroups == CgroupVersion::V1;
        if v1 && k.fail_cgroup_v1.unwrap_or(false) {
            self.faults.push(
                "kubelet is configured to not run on a host using cgroup v1. cgroup v1 support is \
                 unsupported and will be removed in a future release"
                    .to_owned(),
            );
            return;
        }
        if v1 && k.single_process_oom_kill == Some(false) {
            return self.fault(
                "singleProcessOOMKill must not be explicitly set to false when using cgroup v1",
            );
        }
        let Some(ids) = k.user_namespaces.as_ref().and_then(|users| users.ids_per_pod) else {
            return;
        };
        if ids < 65536 {
            self.fault("userNamespaces.idsPerPod must not be less than 65536");
        } else if ids % 65536 != 0 {
            self.fault("userNamespaces.idsPerPod must be a multiple of 65536");
        } else if ids > i64::from(u32::MAX) {
            self.fault("userNamespaces.idsPerPod must not be more than 4294967295");
        }
    }

    pub(super) fn hidden_metrics(&mut self) {
        let version = self.kubelet.show_hidden_metrics_for_version.as_str();
        if !["", "1.35"].contains(&version) {
            self.faults.push(format!(
                "invalid showHiddenMetricsForVersion: showHiddenMetricsForVersion: Invalid value: \
                 {}: must be omitted or have the value '1.35'; only the previous minor version is \
                 allowed",
                quote(version)
            ));
        }
    }

    pub(super) fn memory_qos(&mut self) {
        let k = self.kubelet;
        if let Some(factor) = k.memory_throttling_factor {
            let good = factor > 0.0 && factor <= 1.0;
            self.fault_if(
                !good,
                format!(
                    "memoryThrottlingFactor {} must be greater than 0 and less than or equal to \
                     1.0",
                    strconv::float(factor)
                ),
            );
        }
        let policy = k.memory_reservation_policy.as_str();
        self.fault_if(
            policy == "TieredReservation" && !self.gates.enabled("MemoryQoS"),
            "memoryReservationPolicy \"TieredReservation\" requires MemoryQoS feature gate to be \
             enabled",
        );
        self.fault_if(
            !["None", "TieredReservation"].contains(&policy),
            format!(
                "option {} specified for memoryReservationPolicy. Valid options are \"None\" or \
                 \"TieredReservation\"",
                quote(policy)
            ),
        );
    }

    pub(super) fn runtime_and_logs(&mut self) {
        let k = self.kubelet;
        self.fault_if(
            k.container_runtime_endpoint.is_empty(),
            "the containerRuntimeEndpoint was not specified or empty",
        );
        self.fault_if(
            k.enable_system_log_query.unwrap_or(false)
                && !k.enable_system_log_handler.unwrap_or(false),
            "enableSystemLogHandler is required for enableSystemLogQuery",
        );
        self.fault_if(
            k.container_log_max_workers.unwrap_or(0) < 1,
            "containerLogMaxWorkers must be greater than or equal to 1",
        );
        self.fault_if(
            k.container_log_monitor_interval.unwrap_or_default() < GoDuration::from_secs(3),
            "containerLogMonitorInterval must be a positive time duration greater than or equal \
             to 3s",
        );
        self.fault_if(
            k.container_log_max_files.unwrap_or(0) <= 1,
            "containerLogMaxFiles must be greater than 1",
        );
        let logs = k.pod_logs_dir.as_str();
        self.fault_if(logs.is_empty(), "podLogsDir was not specified");
        let shown = quote(logs);
        self.fault_if(
            !logs.starts_with('/'),
            format!("pod logs path {shown} must be absolute path"),
        );
        self.fault_if(
            clean_path(logs) != logs,
            format!("pod logs path {shown} must be normalized"),
        );
        self.fault_if(
            !logs.is_ascii(),
            format!("pod logs path {shown} mut contains ASCII characters only"),
        );
    }
}

fn taint_is_valid(taint: &Taint) -> bool {
    qualified_name_faults(&taint.key).is_empty()
        && label_value_faults(&taint.value).is_empty()
        && ["", "NoSchedule", "PreferNoSchedule", "NoExecute"].contains(&taint.effect.as_str())
}
