//! Cases for a kubelet that has a runtime: settings that pass validation and are found to be wrong
//! only afterwards, alone and several at a time, so that it shows which is found first.
//!
//! Left out because they would reach beyond the kubelet's own cgroup: cgroups for the kubelet, the
//! system and the runtime, and limits on cgroups that are there. `good.crt` and `good.key` are laid
//! out by the stage.

use super::rng::Rng;
use super::{Case, documents, pools};

/// A field with values to choose from.
type Field = (&'static str, &'static [&'static str]);

/// What is taken when a field is not drawn.
const BASE: &str = "failSwapOn: false\nreadOnlyPort: 0\n";

const FIELDS: &[Field] = &[
    (
        "qosReserved",
        &[
            "{memory: 50%}",
            "{memory: 101%}",
            "{cpu: 5%}",
            "{memory: x}",
            "{memory: x%}",
            "{memory: -1%}",
            "{memory: 5.5%}",
            "{memory: \"\"}",
            "{memory: 50%%}",
            "{}",
        ],
    ),
    ("reservedSystemCPUs", &["'0'", "0-1", "0-99", "'99'", "0,5", "1-0", "a", "''"]),
    ("cpuManagerPolicy", &["none", "static", "x", "Static", "''", "None"]),
    (
        "cpuManagerPolicyOptions",
        &[
            "{full-pcpus-only: \"true\"}",
            "{full-pcpus-only: \"x\"}",
            "{full-pcpus-only: \"\"}",
            "{distribute-cpus-across-numa: \"true\"}",
            "{align-by-socket: \"true\"}",
            "{strict-cpu-reservation: \"yes\"}",
            "{strict-cpu-reservation: \"true\"}",
            "{distribute-cpus-across-cores: \"true\"}",
            "{distribute-cpus-across-cores: \"true\", full-pcpus-only: \"true\"}",
            "{align-by-socket: \"true\", distribute-cpus-across-numa: \"true\"}",
            "{prefer-align-cpus-by-uncorecache: \"true\"}",
            "{prefer-align-cpus-by-uncorecache: \"1\", distribute-cpus-across-numa: \"true\"}",
            "{bogus: \"true\"}",
            "{\"\": \"true\"}",
            "{}",
        ],
    ),
    ("cpuManagerReconcilePeriod", &["10s", "-1s", "1ns"]),
    (
        "systemReserved",
        &[
            "{cpu: \"1\"}",
            "{cpu: 100m}",
            "{cpu: \"0\"}",
            "{memory: 1Gi}",
            "{memory: 100Mi, cpu: 500m}",
            "{cpu: \"-1\"}",
            "{gpu: \"1\"}",
            "{cpu: x}",
            "{memory: 999999Gi}",
            "{cpu: \"999\"}",
            "{pid: \"-5\"}",
            "{ephemeral-storage: 1e30}",
            "{hugepages-2Mi: 4Mi}",
            "{memory: \"\"}",
            "{\"\": \"1\"}",
            "{cpu: 1.5.5}",
            "{memory: 1gi}",
            "{}",
        ],
    ),
    (
        "kubeReserved",
        &[
            "{cpu: 500m}",
            "{cpu: \"0\"}",
            "{memory: 100Mi}",
            "{pid: \"1000\"}",
            "{ephemeral-storage: 1Gi}",
            "{cpu: x}",
            "{storage: 1Gi}",
            "{memory: -1Gi}",
            "{ephemeral-storage: 999999Gi}",
            "{pid: \"99999999\"}",
            "{}",
        ],
    ),
    ("topologyManagerPolicy", &["none", "best-effort", "restricted", "single-numa-node"]),
    ("topologyManagerScope", &["pod", "container"]),
    (
        "topologyManagerPolicyOptions",
        &[
            "{prefer-closest-numa-nodes: \"true\"}",
            "{prefer-closest-numa-nodes: \"x\"}",
            "{max-allowable-numa-nodes: \"8\"}",
            "{max-allowable-numa-nodes: \"7\"}",
            "{max-allowable-numa-nodes: \"9\"}",
            "{max-allowable-numa-nodes: \"x\"}",
            "{max-allowable-numa-nodes: \"-1\"}",
            "{max-allowable-numa-nodes: \"\"}",
            "{bogus: \"true\"}",
            "{\"\": \"\"}",
            "{}",
        ],
    ),
    ("memoryManagerPolicy", &["None", "Static", "x", "''", "none", "BestEffort"]),
    (
        "reservedMemory",
        &[
            "[]",
            "[{numaNode: 0, limits: {memory: 1Gi}}]",
            "[{numaNode: 0, limits: {memory: 100Mi}}]",
            "[{numaNode: 0, limits: {memory: 600Mi}}]",
            "[{numaNode: 0, limits: {memory: 1124Mi}}]",
            "[{numaNode: 0, limits: {memory: 200Mi}}]",
            "[{numaNode: 1, limits: {memory: 100Mi}}]",
            "[{numaNode: -1, limits: {memory: 100Mi}}]",
            "[{numaNode: 0, limits: {memory: 100Mi}}, {numaNode: 1, limits: {memory: 1Gi}}]",
            "[{numaNode: 0, limits: {memory: 100Mi, hugepages-2Mi: 2Mi}}]",
            "[{numaNode: 0, limits: {memory: 100Mi, hugepages-3Mi: 3Mi}}]",
            "[{numaNode: 0, limits: {memory: 999Gi}}]",
            "[{numaNode: 0, limits: {memory: 104857600}}]",
        ],
    ),
    ("evictionMaxPodGracePeriod", &["60", "0", "-1"]),
    ("evictionPressureTransitionPeriod", &["0s", "5m", "-1s"]),
    ("mergeDefaultEvictionSettings", &["true", "false"]),
    ("kernelMemcgNotification", &["true", "false"]),
    ("memorySwap", &["{swapBehavior: LimitedSwap}", "{swapBehavior: NoSwap}", "{}"]),
    ("failSwapOn", &["true", "false"]),
    (
        "enforceNodeAllocatable",
        &[
            "[pods]",
            "[none]",
            "[]",
            "[pods, system-reserved]",
            "[kube-reserved]",
            "[system-reserved-compressible]",
            "[pods, kube-reserved-compressible]",
            "[pods, system-reserved, kube-reserved]",
        ],
    ),
    ("systemReservedCgroup", &["/rubelet-nobody", "rubelet-nobody", "/rubelet-nobody/deep"]),
    ("kubeReservedCgroup", &["/rubelet-nobody", "rubelet-nobody"]),
    ("cgroupsPerQOS", &["true", "false"]),
    ("cgroupDriver", &["cgroupfs", "systemd", "x"]),
    ("protectKernelDefaults", &["true", "false"]),
    (
        "containerLogMaxSize",
        &[
            "10Mi", "0", "-1", "x", "1.5", "''", "100m", "1e3", "9Ei", "10MB", " 1", "1Gi2",
            "1.5Gi", "1000m", "100Ti", "1.0", "+1", "2k",
        ],
    ),
    ("containerLogMaxFiles", &["2", "5"]),
    ("containerLogMonitorInterval", &["3s", "10s"]),
    ("syncFrequency", &["1m", "-1s", "1ns"]),
    ("fileCheckFrequency", &["-1s", "1ns", "20s"]),
    ("httpCheckFrequency", &["-1s", "20s"]),
    (
        "address",
        &[
            "0.0.0.0",
            "x",
            "1.2.3",
            "'::'",
            "1.2.3.4",
            "127.0.0.1",
            "01.2.3.4",
            "256.0.0.1",
            "localhost",
            "'::1%lo'",
        ],
    ),
    ("port", &["10250", "1", "65535", "10255"]),
    ("readOnlyPort", &["10255", "10250", "1", "10248"]),
    ("healthzPort", &["10248", "0", "10250", "10255"]),
    ("healthzBindAddress", &["127.0.0.1", "x", "1.2.3.4", "'::'"]),
    ("enableServer", &["true", "false"]),
    (
        "allowedUnsafeSysctls",
        &[
            "[net.*]",
            "['*']",
            "[x y]",
            "['']",
            "[kernel.shm*]",
            "[net.core.*x]",
            "[kernel/shmmax]",
            "[vm.swappiness]",
            "[net.ipv4.conf.eth0/1.x]",
            "[K.x]",
            "[net..x]",
            "[kernel.*, '', 'net.*']",
            "['kernel.msg*', 'a b']",
            "[fs.mqueue.*]",
            "['net.ipv4.*.*']",
            "[\"net.*\", \"**\"]",
        ],
    ),
    ("staticPodPath", &["none", "/mnt", "/mnt/c.yaml", "/proc/self/mem", "''"]),
    (
        "staticPodURL",
        &["http://127.0.0.1:1/x", "x", "':'", "ftp://x", "'http://a b'", "http://[::1"],
    ),
    ("staticPodURLHeader", &["{a: [b]}", "{\"a b\": [c]}", "{\"\": [\"\"]}"]),
    ("podLogsDir", &["/var/log/pods", "/mnt/c.yaml", "/mnt/c.yaml/x", "/proc/x", "/mnt/logs"]),
    ("volumePluginDir", &["none", "/mnt/c.yaml", "/mnt/c.yaml/x", "/proc/x", "''"]),
    ("resolvConf", &["none", "''", "/mnt"]),
    ("podCIDR", &["x", "10.0.0.0/24", "10.0.0.0/33", "fd00::/64", "'10.0.0.0/24,fd00::/64'"]),
    ("clusterDNS", &["[x]", "['']", "[10.0.0.10]", "['::1', 1.2.3.04]"]),
    ("tlsCertFile", &["none.crt", "bad.crt", "good.crt", "''"]),
    ("tlsPrivateKeyFile", &["none.key", "bad.crt", "good.key", "''"]),
    ("tlsMinVersion", &["VersionTLS10", "VersionTLS13"]),
    ("tlsCurvePreferences", &["[]", "[23]", "[25]", "[29, 23]", "[24, 4588]", "[4587, 25]"]),
    ("serverTLSBootstrap", &["true", "false"]),
    ("rotateCertificates", &["true", "false"]),
    ("maxPods", &["0", "1", "2147483647"]),
    ("podsPerCore", &["0", "10"]),
    ("podPidsLimit", &["-1", "0", "1", "9999999999"]),
    ("maxOpenFiles", &["0", "1", "1000000", "9223372036854775807"]),
    ("oomScoreAdj", &["-999", "1000", "0"]),
    ("nodeStatusMaxImages", &["-1", "0", "50"]),
    ("registryPullQPS", &["0", "5"]),
    ("registryBurst", &["0", "10"]),
    ("maxParallelImagePulls", &["1", "5"]),
    ("serializeImagePulls", &["true", "false"]),
    ("imageMinimumGCAge", &["0s", "2m"]),
    ("imageMaximumGCAge", &["0s", "3m", "720h"]),
    ("imageGCHighThresholdPercent", &["100", "85"]),
    (
        "imagePullCredentialsVerificationPolicy",
        &["NeverVerify", "AlwaysVerify", "NeverVerifyAllowlistedImages"],
    ),
    ("configMapAndSecretChangeDetectionStrategy", &["Get", "x", "''"]),
    ("hairpinMode", &["none", "hairpin-veth", "promiscuous-bridge"]),
    (
        "userNamespaces",
        &["{idsPerPod: 65536}", "{idsPerPod: 131072}", "{idsPerPod: 4294901760}", "{}"],
    ),
    ("shutdownGracePeriod", &["30s", "1h"]),
    (
        "shutdownGracePeriodByPodPriority",
        &[
            "[{priority: 0, shutdownGracePeriodSeconds: 10}]",
            "[{priority: 5, shutdownGracePeriodSeconds: -1}]",
        ],
    ),
    ("volumeStatsAggPeriod", &["-1s", "1m"]),
    ("nodeStatusUpdateFrequency", &["-1s", "10s"]),
    ("runtimeRequestTimeout", &["2m", "-1s", "1ns"]),
    ("memoryThrottlingFactor", &["0.5", "1"]),
    ("tracing", &["{endpoint: '127.0.0.1:1', samplingRatePerMillion: 1000000}", "{}"]),
    ("crashLoopBackOff", &["{maxContainerRestartPeriod: 1s}"]),
    ("enableSystemLogHandler", &["true", "false"]),
    ("enableDebuggingHandlers", &["true", "false"]),
    ("localStorageCapacityIsolation", &["true", "false"]),
    ("cpuCFSQuota", &["true", "false"]),
    ("makeIPTablesUtilChains", &["true", "false"]),
    ("registerNode", &["true", "false"]),
    ("seccompDefault", &["true", "false"]),
    ("logging", &["{format: json}", "{format: text}"]),
    (
        "featureGates",
        &[
            "{AllAlpha: true}",
            "{AllBeta: false}",
            "{AllAlpha: true, AllBeta: true}",
            "{MemoryQoS: true}",
            "{CPUManagerPolicyAlphaOptions: true}",
            "{CPUManagerPolicyBetaOptions: false}",
            "{TopologyManagerPolicyAlphaOptions: true}",
            "{TopologyManagerPolicyBetaOptions: false}",
            "{NodeSwap: false}",
            "{QOSReserved: true}",
            "{EventedPLEG: true}",
            "{PodsAPI: true}",
            "{ReloadKubeletServerCertificateFile: false}",
            "{ReloadKubeletClientCAFile: false}",
            "{DynamicResourceAllocation: false}",
            "{KubeletInUserNamespace: true}",
            "{PodAndContainerStatsFromCRI: true}",
            "{UserNamespacesSupport: false}",
            "{DisableCPUQuotaWithExclusiveCPUs: false}",
        ],
    ),
];

/// Flags that have no field, or say it another way.
const FLAGS: &[Field] = &[
    (
        "node-ip",
        &[
            "1.2.3.4",
            "::1",
            "1.2.3.4,::1",
            "x",
            "1.2.3.4,x",
            "0.0.0.0",
            "::",
            "1.2.3.4,5.6.7.8",
            "0.0.0.0,::",
            "1.2.3.4,::1,5.6.7.8",
            ",",
            "1.2.3.4,::",
            "::1,fd00::1",
            " 1.2.3.4 , ::1 ",
            "01.2.3.4",
            "fe80::1%lo",
        ],
    ),
    ("cloud-provider", &["external", "aws", "gce", "x", "External", "azure"]),
    ("sync-frequency", &["0", "0s", "-5s"]),
    ("root-dir", &["", ".", "c.yaml", "c.yaml/x", "/proc/x", "/mnt/deep/er", "/mnt/r/", "rel"]),
    ("lock-file", &["/mnt/lock", "/mnt/none/lock", "/mnt", "lock", "/proc/x"]),
    ("exit-on-lock-contention", &["true", "false"]),
    ("hostname-override", &["a", "A B", "é", "1.2.3.4", "-", "a_b"]),
    ("image-service-endpoint", &["unix:///mnt/none.sock", "x", "tcp://127.0.0.1:1", "http://x"]),
    ("minimum-container-ttl-duration", &["-1s", "0s", "1m"]),
    ("maximum-dead-containers", &["-1", "0", "5"]),
    ("maximum-dead-containers-per-container", &["-1", "0", "5"]),
    ("experimental-allocatable-ignore-eviction", &["true", "false"]),
    ("experimental-mounter-path", &["none", "/mnt"]),
    ("client-ca-file", &["good.crt", "bad.crt", "two.crt"]),
    ("node-labels", &["a=b", "node.kubernetes.io/x=y"]),
    ("register-with-taints", &["a=b:NoSchedule", "a=b:NoSchedule,a=c:NoSchedule"]),
    ("kube-reserved", &["cpu=1,memory=1Gi", "cpu=x", "gpu=1", "memory=-1", "cpu=1,cpu=2"]),
    ("system-reserved", &["cpu=1", "memory=x", "pid=-1"]),
    ("reserved-cpus", &["0", "0-9", "0-1"]),
    ("reserved-memory", &["0:memory=100Mi", "1:memory=1Gi", "0:memory=1Gi"]),
    ("qos-reserved", &["memory=10%", "cpu=1%", "memory=200%"]),
    ("cpu-manager-policy", &["static", "x"]),
    ("cpu-manager-policy-options", &["full-pcpus-only=true", "bogus=1", "full-pcpus-only=x"]),
    ("memory-manager-policy", &["Static", "x"]),
    (
        "topology-manager-policy-options",
        &["prefer-closest-numa-nodes=true", "bogus=1", "max-allowable-numa-nodes=2"],
    ),
    ("allowed-unsafe-sysctls", &["net.*", "x y", "kernel.sem,*"]),
    ("container-log-max-size", &["x", "-1", "10Mi"]),
    ("max-open-files", &["1", "100"]),
    ("volume-plugin-dir", &["none", "/proc/x"]),
    ("pod-manifest-path", &["none", "/mnt"]),
    ("manifest-url", &["x", "http://127.0.0.1:1/"]),
];

/// What remembered placement a kubelet may find.
const STATES: &[(&str, &[&str])] = &[
    (
        "cpu_manager_state",
        &[
            "",
            "{}",
            "x",
            "{\"policyName\":\"none\",\"defaultCpuSet\":\"\",\"checksum\":1353318690}",
            "{\"policyName\":\"static\",\"defaultCpuSet\":\"0-1\",\"checksum\":1}",
            "{\"policyName\":\"none\",\"defaultCpuSet\":\"x\",\"entries\":{},\"checksum\":0}",
            "{\"POLICYNAME\":\"none\",\"defaultCpuSet\":null,\"checksum\":null}",
            "{\"policyName\":\"none\",\"entries\":{\"u\":null},\"podEntries\":5}",
            "{\"policyName\":5}",
            "[]",
            "null",
            "{\"policyName\":\"none\"",
            "\u{ff}\u{fe}",
        ],
    ),
    ("cpu_manager_state/", &[""]),
    (
        "memory_manager_state",
        &[
            "",
            "{}",
            "x",
            "{\"policyName\":\"None\",\"machineState\":{},\"checksum\":4047769151}",
            "{\"policyName\":\"Static\",\"machineState\":{},\"checksum\":1}",
            "{\"policyName\":\"None\",\"entries\":{\"u\":{\"c\":null}}}",
            "[]",
        ],
    ),
    ("memory_manager_state/", &[""]),
    (
        "allocated_pods_state",
        &["", "{}", "x", "{\"data\":\"{}\",\"checksum\":1}", "null", "{\"data\":5}", "[]"],
    ),
    ("allocated_pods_state/", &[""]),
    ("actuated_pods_state", &["", "x", "{\"Data\":\"{}\"}", "5"]),
    ("actuated_pods_state/", &[""]),
    ("dra_manager_state", &["", "{}", "x", "[]", "{\"Data\":null}", "{\"Data\":5}"]),
    ("dra_manager_state/", &[""]),
    (
        "pods/u/userns",
        &[
            "",
            "{",
            "null",
            "{\"uidMappings\":[{}]}",
            "{\"uidMappings\":\"x\"}",
            "{\"uidMappings\":[{\"hostId\":65536,\"length\":65536}],\
             \"gidMappings\":[{\"hostId\":65536,\"length\":65536}]}",
            "{\"uidMappings\":[{\"hostId\":5,\"length\":65536}],\
             \"gidMappings\":[{\"hostId\":5,\"length\":65536}]}",
        ],
    ),
    ("pods/u/userns/", &[""]),
    ("pods/file", &["x"]),
    ("pod-resources/kubelet.sock/", &[""]),
    ("graceful_node_shutdown_state", &["", "x"]),
    ("image_manager/", &[""]),
    ("image_manager", &["x"]),
    ("pods", &["x"]),
    ("plugins", &["x"]),
    ("pod-resources", &["x"]),
    ("checkpoints", &["x"]),
    ("plugins_registry", &["x"]),
    ("device-plugins", &["x"]),
];

/// Case number `n` of a seed.
#[must_use]
pub fn make(seed: u64, n: u64) -> Case {
    let mut rng = Rng::new(seed.wrapping_mul(0x3_0000_0005).wrapping_add(n));
    match rng.below(20) {
        0..=5 => fields(1, &mut rng),
        6..=8 => {
            let count = 2 + rng.below(4);
            fields(count, &mut rng)
        }
        9..=12 => thresholds(&mut rng),
        13 | 14 => placement(&mut rng),
        15 | 16 => providers(&mut rng),
        17 if rng.once_in(2) => super::material::serving(&mut rng),
        17 => state(&mut rng),
        18 => document(&[]).arg("--kubeconfig=k").file("k", documents::kubeconfig(&mut rng)),
        _ => {
            let count = rng.below(2);
            let mut case = fields(count, &mut rng);
            for _ in 0..=rng.below(2) {
                case = case.arg(flag(&mut rng));
            }
            case
        }
    }
}

fn flag(rng: &mut Rng) -> String {
    let (name, values) = FLAGS[rng.below(FLAGS.len())];
    format!("--{name}={}", rng.of(values))
}

/// A configuration with these lines over the common ones.
fn document(lines: &[(String, String)]) -> Case {
    // Anybody may ask for the settings in force.
    let anybody = "authentication:\n  anonymous:\n    enabled: true\n";
    let alone = documents::ALONE.replace("authentication:\n", anybody);
    let mut text = format!("{}{alone}", documents::HEAD);
    let drawn = |line: &&str| {
        let name = line.split(':').next().unwrap_or_default();
        !lines.iter().any(|(field, _)| field == name)
    };
    for line in BASE.lines().filter(drawn) {
        text.push_str(&format!("{line}\n"));
    }
    for (field, value) in lines {
        text.push_str(&format!("{field}: {value}\n"));
    }
    Case::default()
        .arg("--config=c.yaml")
        .file("c.yaml", text)
        .file("bad.crt", "-----BEGIN CERTIFICATE-----\neA==\n-----END CERTIFICATE-----\n")
}

fn set(lines: &mut Vec<(String, String)>, field: &str, value: &str) {
    if !lines.iter().any(|(known, _)| known == field) {
        lines.push((field.to_owned(), value.to_owned()));
    }
}

fn fields(count: usize, rng: &mut Rng) -> Case {
    let mut lines = Vec::new();
    for _ in 0..count {
        let (field, values) = FIELDS[rng.below(FIELDS.len())];
        set(&mut lines, field, rng.of(values));
    }
    document(&lines)
}

/// Fields of these names, each by chance.
fn among(names: &[&str], lines: &mut Vec<(String, String)>, rng: &mut Rng) {
    for (field, values) in FIELDS.iter().filter(|(field, _)| names.contains(field)) {
        if rng.once_in(2) {
            set(lines, field, rng.of(values));
        }
    }
}

/// Eviction, which is read twice: the hard thresholds with the reservations, all of them later.
fn thresholds(rng: &mut Rng) -> Case {
    let mut lines = Vec::new();
    for field in
        ["evictionHard", "evictionSoft", "evictionSoftGracePeriod", "evictionMinimumReclaim"]
    {
        if rng.once_in(2) {
            continue;
        }
        let Some((keys, values, _)) = pools::pairs(field) else { continue };
        let mut pairs = std::collections::BTreeMap::new();
        for _ in 0..=rng.below(2) {
            let key = if rng.below(3) > 0 { keys[rng.below(9)] } else { rng.of(keys) };
            let value = rng.of(values);
            pairs.insert(key, value);
        }
        let pairs: Vec<String> = pairs
            .into_iter()
            .map(|(key, value)| format!("{}: {}", serde_json::json!(key), serde_json::json!(value)))
            .collect();
        lines.push((field.to_owned(), format!("{{{}}}", pairs.join(", "))));
    }
    if rng.once_in(4) {
        among(
            &["mergeDefaultEvictionSettings", "enforceNodeAllocatable", "qosReserved"],
            &mut lines,
            rng,
        );
    }
    if rng.once_in(6) {
        among(&["kubeReserved", "syncFrequency", "containerLogMaxSize"], &mut lines, rng);
    }
    let case = document(&lines);
    if rng.once_in(6) { case.arg("--experimental-allocatable-ignore-eviction") } else { case }
}

/// Exclusive resources, which must fit each other and the machine.
fn placement(rng: &mut Rng) -> Case {
    let mut lines = Vec::new();
    if rng.once_in(2) {
        set(&mut lines, "cpuManagerPolicy", "static");
    }
    if rng.once_in(2) {
        set(&mut lines, "memoryManagerPolicy", "Static");
    }
    among(
        &[
            "reservedSystemCPUs",
            "cpuManagerPolicyOptions",
            "systemReserved",
            "kubeReserved",
            "topologyManagerPolicy",
            "topologyManagerScope",
            "topologyManagerPolicyOptions",
            "reservedMemory",
        ],
        &mut lines,
        rng,
    );
    if rng.once_in(3) {
        among(&["featureGates"], &mut lines, rng);
    }
    document(&lines)
}

fn providers(rng: &mut Rng) -> Case {
    let mut lines = Vec::new();
    if rng.once_in(4) {
        among(&["containerLogMaxSize", "allowedUnsafeSysctls", "systemReserved"], &mut lines, rng);
    }
    let case = super::lines::providers(rng);
    let base = document(&lines);
    let mut whole = Case { args: base.args, files: base.files };
    whole.args.extend(case.args);
    whole.files.extend(case.files);
    whole
}

fn state(rng: &mut Rng) -> Case {
    let mut lines = Vec::new();
    among(
        &["cpuManagerPolicy", "memoryManagerPolicy", "systemReserved", "reservedMemory"],
        &mut lines,
        rng,
    );
    let mut case = document(&lines);
    for _ in 0..=rng.below(2) {
        let (name, contents) = STATES[rng.below(STATES.len())];
        let path = format!("root/{name}");
        let taken = |known: &String| known.starts_with(path.trim_end_matches('/'));
        if !case.files.keys().any(taken) {
            case = case.file(&path, rng.of(contents));
        }
    }
    case
}
