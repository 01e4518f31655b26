//! Every text of validation, from the setting that causes it.

use super::*;
use crate::testing::{ALONE, HEAD, MemoryFiles, fault};
use crate::{Request, load};

/// Faults of a file's body, without their common frame.
fn told(body: &str) -> String {
    let file = format!("{HEAD}{ALONE}{body}\n");
    let text = fault(&["--config=c"], &[("c", &file)]);
    text.strip_prefix("failed to validate kubelet configuration, error: ")
        .and_then(|t| t.strip_suffix(", path: &TypeMeta{Kind:,APIVersion:,}"))
        .unwrap_or_else(|| panic!("{text}"))
        .to_owned()
}

const ENA: &str = "enforceNodeAllocatable (--enforce-node-allocatable)";

#[test]
fn each_rule_tells_its_fault_in_upstreams_words() {
    let cases = [
        ("nodeLeaseDurationSeconds: -1", "nodeLeaseDurationSeconds must be greater than 0"),
        (
            "systemCgroups: /x",
            "systemCgroups (--system-cgroups) was specified and cgroupRoot (--cgroup-root) was not specified",
        ),
        ("eventBurst: -1", "eventBurst (--event-burst) -1 must not be a negative number"),
        ("eventRecordQPS: -1", "eventRecordQPS (--event-qps) -1 must not be a negative number"),
        (
            "healthzPort: 70000",
            "healthzPort (--healthz-port) 70000 must be between 1 and 65535, inclusive",
        ),
        (
            "cpuCFSQuotaPeriod: 2s",
            "cpuCFSQuotaPeriod (--cpu-cfs-quota-period) {2s} must be between 1ms and 1sec, inclusive",
        ),
        (
            "cpuCFSQuotaPeriod: 2s\nfeatureGates: {CustomCPUCFSQuotaPeriod: false}",
            "cpuCFSQuotaPeriod (--cpu-cfs-quota-period) {2s} requires feature gate CustomCPUCFSQuotaPeriod",
        ),
        (
            "imageGCHighThresholdPercent: 101",
            "imageGCHighThresholdPercent (--image-gc-high-threshold) 101 must be between 0 and 100, inclusive",
        ),
        (
            "imageGCLowThresholdPercent: -1",
            "imageGCLowThresholdPercent (--image-gc-low-threshold) -1 must be between 0 and 100, inclusive",
        ),
        (
            "imageGCLowThresholdPercent: 90",
            "imageGCLowThresholdPercent (--image-gc-low-threshold) 90 must be less than imageGCHighThresholdPercent (--image-gc-high-threshold) 85",
        ),
        ("imageMinimumGCAge: -1s", "imageMinimumGCAge -1s must not be negative"),
        ("imageMaximumGCAge: -1s", "imageMaximumGCAge -1s must not be negative"),
        (
            "imageMaximumGCAge: 1s",
            "imageMaximumGCAge 1s must be greater than imageMinimumGCAge 2m0s",
        ),
        (
            "iptablesDropBit: 32",
            "iptablesDropBit (--iptables-drop-bit) 32 must be between 0 and 31, inclusive",
        ),
        (
            "iptablesMasqueradeBit: -1",
            "iptablesMasqueradeBit (--iptables-masquerade-bit) -1 must be between 0 and 31, inclusive",
        ),
        ("kubeAPIBurst: -1", "kubeAPIBurst (--kube-api-burst) -1 must not be a negative number"),
        ("kubeAPIQPS: -1", "kubeAPIQPS (--kube-api-qps) -1 must not be a negative number"),
        (
            "nodeStatusMaxImages: -2",
            "nodeStatusMaxImages (--node-status-max-images) -2 must be -1 or greater",
        ),
        ("maxOpenFiles: -1", "maxOpenFiles (--max-open-files) -1 must not be a negative number"),
        ("maxPods: -1", "maxPods (--max-pods) -1 must not be a negative number"),
        (
            "oomScoreAdj: 1001",
            "oomScoreAdj (--oom-score-adj) 1001 must be between -1000 and 1000, inclusive",
        ),
        ("podsPerCore: -1", "podsPerCore (--pods-per-core) -1 must not be a negative number"),
        ("port: 70000", "port (--port) 70000 must be between 1 and 65535, inclusive"),
        (
            "readOnlyPort: -1",
            "readOnlyPort (--read-only-port) -1 must be between 0 and 65535, inclusive",
        ),
        ("registryBurst: -1", "registryBurst (--registry-burst) -1 must not be a negative number"),
        (
            "registryPullQPS: -1",
            "registryPullQPS (--registry-qps) -1 must not be a negative number",
        ),
        ("maxParallelImagePulls: 0", "maxParallelImagePulls 0 must be a positive number"),
        (
            "maxParallelImagePulls: 2\nserializeImagePulls: true",
            "maxParallelImagePulls cannot be larger than 1 unless SerializeImagePulls (--serialize-image-pulls) is set to false",
        ),
        (
            "serverTLSBootstrap: true\nfeatureGates: {RotateKubeletServerCertificate: false}",
            "serverTLSBootstrap true requires feature gate RotateKubeletServerCertificate",
        ),
        (
            "runOnce: true",
            "runOnce (--runOnce) true, Runonce mode has been deprecated and should not be set",
        ),
        (
            "registerWithTaints: [{key: a, timeAdded: '2026-01-01T00:00:00Z'}]",
            "taint.TimeAdded is not nil",
        ),
        (
            "topologyManagerPolicy: x",
            "topologyManagerPolicy (--topology-manager-policy) \"x\" must be one of: [\"none\" \"best-effort\" \"restricted\" \"single-numa-node\"]",
        ),
        (
            "topologyManagerScope: x",
            "topologyManagerScope (--topology-manager-scope) \"x\" must be one of: \"container\", or \"pod\"",
        ),
        (
            "shutdownGracePeriodCriticalPods: 2s",
            "shutdownGracePeriodCriticalPods {2s} must be <= shutdownGracePeriod {0s}",
        ),
        (
            "shutdownGracePeriod: 500ms",
            "shutdownGracePeriod {500ms} must be either zero or otherwise >= 1 sec",
        ),
        (
            "shutdownGracePeriod: 2s\nshutdownGracePeriodCriticalPods: 500ms",
            "shutdownGracePeriodCriticalPods {500ms} must be either zero or otherwise >= 1 sec",
        ),
        (
            "shutdownGracePeriod: 2s\nfeatureGates: {GracefulNodeShutdown: false, GracefulNodeShutdownBasedOnPodPriority: false, WindowsGracefulNodeShutdown: false}",
            "specifying shutdownGracePeriod or shutdownGracePeriodCriticalPods requires feature gate GracefulNodeShutdown",
        ),
        (
            "shutdownGracePeriod: 2s\nshutdownGracePeriodByPodPriority: [{priority: 1, shutdownGracePeriodSeconds: 1}]",
            "Cannot specify both shutdownGracePeriodByPodPriority and shutdownGracePeriod at the same time",
        ),
        (
            "shutdownGracePeriodByPodPriority: [{priority: 1, shutdownGracePeriodSeconds: 1}]\nfeatureGates: {GracefulNodeShutdownBasedOnPodPriority: false}",
            "Specifying shutdownGracePeriodByPodPriority requires feature gate GracefulNodeShutdownBasedOnPodPriority",
        ),
        (
            "memorySwap: {swapBehavior: x}",
            "memorySwap.swapBehavior \"x\" must be one of: \"\", \"LimitedSwap\" or \"NoSwap\"",
        ),
        (
            "crashLoopBackOff: {maxContainerRestartPeriod: 500ms}",
            "CrashLoopBackOff.MaxContainerRestartPeriod (got: 0.5 seconds) must be set between 1s and 300s",
        ),
        (
            "crashLoopBackOff: {maxContainerRestartPeriod: 5s}\nfeatureGates: {KubeletCrashLoopBackOffMax: false}",
            "FeatureGate KubeletCrashLoopBackOffMax not enabled, CrashLoopBackOff.MaxContainerRestartPeriod must not be set",
        ),
        (
            "hairpinMode: x",
            "option \"x\" specified for hairpinMode (--hairpin-mode). Valid options are \"none\", \"hairpin-veth\" or \"promiscuous-bridge\"",
        ),
        (
            "imagePullCredentialsVerificationPolicy: x",
            "option \"x\" specified for imagePullCredentialsVerificationPolicy. Valid options are \"NeverVerify\", \"NeverVerifyPreloadedImages\", \"NeverVerifyAllowlistedImages\" or \"AlwaysVerify\"",
        ),
        (
            "preloadedImagesVerificationAllowlist: [a]",
            "can't set `preloadedImagesVerificationAllowlist` if `imagePullCredentialsVertificationPolicy` is not \"NeverVerifyAllowlistedImages\"",
        ),
        (
            "imagePullCredentialsVerificationPolicy: NeverVerifyAllowlistedImages\npreloadedImagesVerificationAllowlist: ['a:b']",
            "invalid image pattern in `preloadedImagesVerificationAllowlist`: neither tag nor digest is accepted in an image reference: a:b",
        ),
        (
            "featureGates: {KubeletEnsureSecretPulledImages: false}\npreloadedImagesVerificationAllowlist: [a]",
            "`preloadedImagesVerificationAllowlist` must not be set if KubeletEnsureSecretPulledImages feature gate is not enabled",
        ),
        (
            "reservedSystemCPUs: 0-1\nkubeReservedCgroup: /x",
            "can't use reservedSystemCPUs (--reserved-cpus) with systemReservedCgroup (--system-reserved-cgroup) or kubeReservedCgroup (--kube-reserved-cgroup)",
        ),
        (
            "reservedSystemCPUs: x",
            "unable to parse reservedSystemCPUs (--reserved-cpus) x, error: strconv.Atoi: parsing \"x\": invalid syntax",
        ),
        (
            "reservedMemory: [{numaNode: 1, limits: {cpu: 1}}]",
            "the limit type \"cpu\" for NUMA node 1 is not supported, only [memory hugepages-<HugePageSize>] is accepted",
        ),
        (
            "reservedMemory: [{numaNode: 1, limits: {memory: 0}}]",
            "reserved memory may not be zero for NUMA node 1 and resource \"memory\"",
        ),
        (
            "reservedMemory: [{numaNode: 1, limits: {memory: 1}}, {numaNode: 1, limits: {memory: 2}}]",
            "the reserved memory has a duplicate value for NUMA node 1 and resource \"memory\"",
        ),
        ("userNamespaces: {idsPerPod: 1}", "userNamespaces.idsPerPod must not be less than 65536"),
        (
            "userNamespaces: {idsPerPod: 65537}",
            "userNamespaces.idsPerPod must be a multiple of 65536",
        ),
        (
            "userNamespaces: {idsPerPod: 4294967296}",
            "userNamespaces.idsPerPod must not be more than 4294967295",
        ),
        (
            "memoryThrottlingFactor: 1.5",
            "memoryThrottlingFactor 1.5 must be greater than 0 and less than or equal to 1.0",
        ),
        (
            "memoryReservationPolicy: TieredReservation",
            "memoryReservationPolicy \"TieredReservation\" requires MemoryQoS feature gate to be enabled",
        ),
        (
            "memoryReservationPolicy: x",
            "option \"x\" specified for memoryReservationPolicy. Valid options are \"None\" or \"TieredReservation\"",
        ),
        (
            "enableSystemLogQuery: true\nenableSystemLogHandler: false",
            "enableSystemLogHandler is required for enableSystemLogQuery",
        ),
        ("containerLogMaxWorkers: 0", "containerLogMaxWorkers must be greater than or equal to 1"),
        (
            "containerLogMonitorInterval: 2s",
            "containerLogMonitorInterval must be a positive time duration greater than or equal to 3s",
        ),
        ("containerLogMaxFiles: 1", "containerLogMaxFiles must be greater than 1"),
        ("podLogsDir: /a/", "pod logs path \"/a/\" must be normalized"),
        ("podLogsDir: /é", "pod logs path \"/é\" mut contains ASCII characters only"),
    ];
    for (body, text) in cases {
        assert_eq!(told(body), format!("invalid configuration: {text}"), "{body}");
    }
}

#[test]
fn some_texts_stand_without_the_common_start() {
    let cases = [
        (
            "registerWithTaints: [{key: 'a b', value: c, effect: NoSchedule}]",
            "invalid taint: {a b c NoSchedule <nil>}",
        ),
        (
            "showHiddenMetricsForVersion: '1.0'",
            "invalid showHiddenMetricsForVersion: showHiddenMetricsForVersion: Invalid value: \"1.0\": must be omitted or have the value '1.35'; only the previous minor version is allowed",
        ),
        (
            "tracing: {samplingRatePerMillion: -1}",
            "tracing.samplingRatePerMillion: Invalid value: -1: sampling rate must be positive",
        ),
        (
            "tracing: {samplingRatePerMillion: 1000001}",
            "tracing.samplingRatePerMillion: Invalid value: 1000001: sampling rate per million must be less than or equal to one million",
        ),
        (
            "tracing: {endpoint: 'http://x'}",
            "tracing.endpoint: Invalid value: \"http://x\": unsupported scheme: http.  Options are none, dns, unix, or unix-abstract.  See https://github.com/grpc/grpc/blob/master/doc/naming.md",
        ),
    ];
    for (body, text) in cases {
        assert_eq!(told(body), text, "{body}");
    }
}

#[test]
fn enforcement_levels_are_checked_one_by_one() {
    let cases = [
        (
            "[pods, x]",
            format!(
                "option \"x\" specified for {ENA}. Valid options are \"pods\", \"system-reserved\", \"system-reserved-compressible\", \"kube-reserved\", \"kube-reserved-compressible\" or \"none\""
            ),
        ),
        ("[pods, pods]", format!("duplicated enforcements \"pods\" in {ENA}")),
        (
            "[none, pods]",
            format!("{ENA} may not contain additional enforcements when \"none\" is specified"),
        ),
        (
            "[system-reserved]",
            format!(
                "systemReservedCgroup (--system-reserved-cgroup) must be specified when \"system-reserved\" or \"system-reserved-compressible\" included in {ENA}"
            ),
        ),
        (
            "[kube-reserved-compressible]",
            format!(
                "kubeReservedCgroup (--kube-reserved-cgroup) must be specified when \"kube-reserved\" or \"kube-reserved-compressible\" included in {ENA}"
            ),
        ),
    ];
    for (levels, text) in cases {
        let body = format!("enforceNodeAllocatable: {levels}");
        assert_eq!(told(&body), format!("invalid configuration: {text}"), "{levels}");
    }
    assert_eq!(
        told("enforceNodeAllocatable: [pods, none]\ncgroupsPerQOS: false"),
        format!(
            "[invalid configuration: cgroupsPerQOS (--cgroups-per-qos) must be set to true when \"pods\" contained in {ENA}, invalid configuration: {ENA} may not contain additional enforcements when \"none\" is specified]"
        )
    );
    let both = told("enforceNodeAllocatable: [system-reserved, system-reserved-compressible]");
    assert!(both.starts_with(&format!("[invalid configuration: both \"system-reserved\" and \"system-reserved-compressible\" cannot be specified together in {ENA}, ")), "{both}");
}

#[test]
fn several_faults_come_in_order_and_equal_ones_once() {
    assert_eq!(
        told(
            "port: -1\neventBurst: -1\ncontainerLogMaxFiles: 0\nregisterWithTaints: [{key: a, timeAdded: '2026-01-01T00:00:00Z'}, {key: b, timeAdded: '2026-01-01T00:00:00.5+01:00'}]"
        ),
        "[invalid configuration: eventBurst (--event-burst) -1 must not be a negative number, \
         invalid configuration: port (--port) -1 must be between 1 and 65535, inclusive, \
         invalid configuration: taint.TimeAdded is not nil, \
         invalid configuration: containerLogMaxFiles must be greater than 1]"
    );
}

#[test]
fn what_only_flags_can_do_is_checked_too() {
    assert!(fault(&["--container-runtime-endpoint="], &[]).contains(
        "invalid configuration: the containerRuntimeEndpoint was not specified or empty"
    ));
    let text = fault(
        &["--feature-gates=KubeletCrashLoopBackOffMax=true", "--config=c"],
        &[("c", &format!("{HEAD}{ALONE}featureGates: {{KubeletCrashLoopBackOffMax: false}}\n"))],
    );
    assert!(text.contains("FeatureGate KubeletCrashLoopBackOffMax is enabled, CrashLoopBackOff.MaxContainerRestartPeriod must be set"), "{text}");
}

#[test]
fn a_cgroup_v1_host_is_refused_unless_allowed() {
    let on_v1 = |args: &[&str], body: &str| {
        let files = MemoryFiles::new([("c", format!("{HEAD}{ALONE}{body}"))]);
        load(args.iter().copied(), &files, CgroupVersion::V1).result
    };
    let text = on_v1(&[], "").unwrap_err().to_string();
    assert!(text.contains("error: kubelet is configured to not run on a host using cgroup v1. cgroup v1 support is unsupported and will be removed in a future release, path"), "{text}");
    assert!(matches!(on_v1(&["--fail-cgroupv1=false"], ""), Ok(Request::Run(_))));
    let text = on_v1(&["--config=c"], "failCgroupV1: false\nsingleProcessOOMKill: false\n")
        .unwrap_err()
        .to_string();
    assert!(text.contains("invalid configuration: singleProcessOOMKill must not be explicitly set to false when using cgroup v1"), "{text}");
}

#[test]
fn logging_faults_end_it_before_validation() {
    let cases = [
        ("{format: xml}", "logging.format: Invalid value: \"xml\": Unsupported log format"),
        (
            "{flushFrequency: -1}",
            "logging.flushFrequency: Invalid value: -1: Must be greater than zero",
        ),
        (
            "{flushFrequency: '-1s'}",
            "logging.flushFrequency: Invalid value: \"-1s\": Must be greater than zero",
        ),
        (
            "{format: json, vmodule: [{filePattern: a, verbosity: 1}]}",
            "logging.vmodule: Forbidden: Only supported for text log format",
        ),
        (
            "{vmodule: [{filePattern: '', verbosity: 1}]}",
            "logging.vmodule[0]: Required value: File pattern must not be empty",
        ),
        (
            "{vmodule: [{filePattern: 'a=b', verbosity: 1}]}",
            "logging.vmodule[0]: Invalid value: \"a=b\": File pattern must not contain equal sign or comma",
        ),
        (
            "{verbosity: 3000000000}",
            "logging.verbosity: Invalid value: 3000000000: Must be <= 2147483647",
        ),
        (
            "{options: {text: {infoBufferSize: 1Ki}}}",
            "logging.options.text.infoBufferSize: Forbidden: Feature LoggingAlphaOptions is disabled",
        ),
    ];
    for (logging, text) in cases {
        let file = format!("{HEAD}{ALONE}logging: {logging}\n");
        assert_eq!(fault(&["--config=c"], &[("c", &file)]), format!("initialize logging: {text}"));
    }
    assert_eq!(
        fault(&["--logging-format=json", "--feature-gates=LoggingBetaOptions=false"], &[]),
        "initialize logging: logging.format: Forbidden: Log format json is disabled, see LoggingBetaOptions feature"
    );
    assert_eq!(
        fault(&["--log-text-split-stream", "--log-flush-frequency=0"], &[]),
        "initialize logging: [logging.flushFrequency: Invalid value: \"0s\": Must be greater than zero, logging.options.text.splitStream: Forbidden: Feature LoggingAlphaOptions is disabled]"
    );
}
