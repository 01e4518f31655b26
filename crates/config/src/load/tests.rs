//! Precedence, files, drop-ins, gates: what a command line comes to.

use super::*;
use crate::testing::{ALONE, HEAD, config, fault, loaded};

fn file(body: &str) -> String {
    format!("{HEAD}{ALONE}{body}")
}

#[test]
fn without_a_file_defaults_are_open_and_with_an_empty_one_they_are_closed() {
    let bare = config(&[], &[]);
    assert!(bare.server.anonymous);
    assert_eq!(bare.server.token_webhook, None);
    assert_eq!(bare.kubelet.authorization.mode, "AlwaysAllow");
    assert_eq!(bare.kubelet.read_only_port, 10255);
    assert!(bare.eviction.hard.is_empty());
    let with_file = config(&["--config=c", "--kubeconfig=k"], &[("c", HEAD)]);
    assert!(!with_file.server.anonymous);
    assert!(with_file.server.token_webhook.is_some());
    assert_eq!(with_file.kubelet.authorization.mode, "Webhook");
    assert_eq!(with_file.server.read_only, None);
    assert_eq!(with_file.eviction.hard.len(), 5);
}

#[test]
fn a_standalone_agent_with_a_file_must_switch_webhooks_off() {
    assert_eq!(
        fault(&["--config=c"], &[("c", HEAD)]),
        "failed to run Kubelet: no client provided, cannot use webhook authentication"
    );
    let body = format!("{HEAD}authentication: {{webhook: {{enabled: false}}}}\n");
    assert_eq!(
        fault(&["--config=c"], &[("c", &body)]),
        "failed to run Kubelet: no client provided, cannot use webhook authorization"
    );
}

#[test]
fn drop_ins_alone_keep_the_open_defaults() {
    let found = config(&["--config-dir=d"], &[("d/a.conf", HEAD)]);
    assert!(found.server.anonymous);
    assert_eq!(found.kubelet.read_only_port, 10255);
    assert!(found.eviction.hard.is_empty());
}

#[test]
fn flags_win_over_drop_ins_over_the_file_over_defaults() {
    let files = [
        ("c", file("maxPods: 1\nport: 1\npodsPerCore: 1\n")),
        ("d/a.conf", format!("{HEAD}port: 2\npodsPerCore: 2\n")),
        ("d/b.conf", format!("{HEAD}podsPerCore: 3\n")),
    ];
    let files: Vec<(&str, &str)> = files.iter().map(|(p, c)| (*p, c.as_str())).collect();
    let found = config(&["--config=c", "--config-dir=d", "--pods-per-core=4"], &files);
    assert_eq!(
        (found.kubelet.max_pods, found.kubelet.port, found.kubelet.pods_per_core),
        (1, 2, 4)
    );
    let origin = |path: &str| found.origins[path].to_string();
    assert_eq!(origin("maxPods"), "file c");
    assert_eq!(origin("port"), "drop-in d/a.conf");
    assert_eq!(origin("podsPerCore"), "flag --pods-per-core");
    assert_eq!(origin("syncFrequency"), "default");
    assert_eq!(origin("authorization.mode"), "file c");
    assert_eq!(config(&[], &[]).origins["readOnlyPort"].to_string(), "default without --config");
}

#[test]
fn a_zero_in_the_file_is_a_default_in_the_origins() {
    let body = file("syncFrequency: 0s\nhealthzPort: 0\nmaxPods: 0\n");
    let found = config(&["--config=c"], &[("c", &body)]);
    assert_eq!(found.origins["syncFrequency"], Origin::Default);
    assert_eq!(found.origins["maxPods"], Origin::Default);
    assert_eq!(found.origins["healthzPort"], Origin::File("c".to_owned()));
    assert_eq!(found.server.healthz, None);
    assert_eq!(found.sources.sync_frequency.as_secs(), 60);
}

#[test]
fn gates_merge_by_key_and_the_flag_wins() {
    let body = file("featureGates: {CRIListStreaming: true, ContainerStopSignals: true}\n");
    let args = ["--config=c", "--feature-gates=CRIListStreaming=false"];
    let found = config(&args, &[("c", &body)]);
    assert!(!found.gates.enabled("CRIListStreaming"));
    assert!(found.gates.enabled("ContainerStopSignals"));
    assert_eq!(found.origins["featureGates.CRIListStreaming"], Origin::Flag("feature-gates"));
    assert_eq!(found.origins["featureGates.ContainerStopSignals"], Origin::File("c".to_owned()));
}

#[test]
fn other_maps_are_replaced_by_a_flag() {
    let body = file("evictionHard: {nodefs.available: 1%}\nkubeReserved: {cpu: '1'}\n");
    let args = ["--config=c", "--eviction-hard=memory.available<5%", "--kube-reserved="];
    let found = config(&args, &[("c", &body)]);
    assert_eq!(found.eviction.hard.keys().collect::<Vec<_>>(), ["memory.available"]);
    assert!(found.resources.reservations.kube.is_empty());
}

#[test]
fn gate_faults_read_as_upstreams_wherever_they_come_from() {
    assert_eq!(
        fault(&["--feature-gates=Nope=true"], &[]),
        "failed to set feature gates from initial flags-based config: unrecognized feature gate: Nope"
    );
    assert_eq!(
        fault(&["--feature-gates=ClusterTrustBundleProjection=true"], &[]),
        "failed to set feature gates from initial flags-based config: \
         ClusterTrustBundleProjection is enabled, but depends on features that are disabled: \
         [ClusterTrustBundle]"
    );
    let body = file("featureGates: {Nope: true}\n");
    let text = "failed to merge global and in-flight KubeletConfiguration while setting defaults, \
                error: unrecognized feature gate: Nope";
    assert!(fault(&["--config=c"], &[("c", &body)]).ends_with(text));
    let drop_in = format!("{HEAD}featureGates: {{Nope: true}}\n");
    assert!(fault(&["--config-dir=d"], &[("d/a.conf", &drop_in)]).ends_with(text));
}

#[test]
fn a_dependency_only_in_the_file_does_not_help_a_gate_given_by_flag() {
    let body = file("featureGates: {ClusterTrustBundle: true}\n");
    let args = ["--config=c", "--feature-gates=ClusterTrustBundleProjection=true"];
    assert!(fault(&args, &[("c", &body)]).contains("but depends on features that are disabled"));
    let body = file("featureGates: {ClusterTrustBundleProjection: true}\n");
    let args = ["--config=c", "--feature-gates=ClusterTrustBundle=true"];
    assert!(config(&args, &[("c", &body)]).gates.enabled("ClusterTrustBundleProjection"));
}

#[test]
fn gate_bound_defaults_follow_the_gates_of_the_moment() {
    let off = "KubeletEnsureSecretPulledImages=false";
    assert!(
        fault(&[&format!("--feature-gates={off}")], &[])
            .contains("`imagePullCredentialsVerificationPolicy` must not be set")
    );
    let body = file(&format!("featureGates: {{{}}}\n", off.replace('=', ": ")));
    let found = config(&["--config=c"], &[("c", &body)]);
    assert_eq!(found.image_pulls.verification, crate::resolved::SecretsVerification::Off);
    let args = ["--config=c", &format!("--feature-gates={off}")];
    let found = config(&args, &[("c", &file(""))]);
    assert!(!found.gates.enabled("KubeletEnsureSecretPulledImages"));
    // What the flag has switched off is not switched on for the time of filling in.
    let args = ["--config=c", "--feature-gates=AllBeta=false"];
    let found = config(&args, &[("c", &file("featureGates: {AllBeta: true}\n"))]);
    assert_eq!(found.kubelet.crash_loop_back_off.max_container_restart_period, None);
}

#[test]
fn a_file_that_sets_only_the_update_frequency_changes_the_report_frequency_too() {
    let body = file("nodeStatusUpdateFrequency: 20s\n");
    let found = config(&["--config=c"], &[("c", &body)]);
    assert_eq!(found.node.status_report_frequency.as_secs(), 20);
    let drop_in = format!("{HEAD}nodeStatusUpdateFrequency: 20s\n");
    let found = config(&["--config-dir=d"], &[("d/a.conf", &drop_in)]);
    assert_eq!(found.node.status_report_frequency.as_secs(), 300);
}

#[test]
fn hard_thresholds_are_filled_only_for_a_file() {
    let cases = [
        ("", 5),
        ("evictionHard: {memory.available: 1%}\n", 1),
        ("evictionHard: {memory.available: 1%}\nmergeDefaultEvictionSettings: true\n", 5),
        ("evictionHard: {}\n", 0),
    ];
    for (body, count) in cases {
        let found = config(&["--config=c"], &[("c", &file(body))]);
        assert_eq!(found.eviction.hard.len(), count, "{body}");
    }
}

#[test]
fn an_empty_list_of_levels_survives_only_without_drop_ins() {
    let body = file("enforceNodeAllocatable: []\n");
    let found = config(&["--config=c"], &[("c", &body)]);
    assert!(!found.resources.enforcement.pods);
    let found = config(&["--config=c", "--config-dir=d"], &[("c", &body), ("d/x.conf", HEAD)]);
    assert!(found.resources.enforcement.pods);
}

#[test]
fn unknown_fields_of_the_file_are_warned_of_and_of_a_drop_in_ignored() {
    let body = file("foo: 1\nregisterWithTaints: [{key: a, effect: NoSchedule, b: 1}]\n");
    let answer = loaded(&["--config=c"], &[("c", &body)]);
    assert!(answer.result.is_ok());
    let line = answer.lines.iter().find(|l| l.message.starts_with("Using lenient")).unwrap();
    assert_eq!(
        line.to_string(),
        "\"Using lenient decoding as strict decoding failed\" err=\"strict decoding error: \
         unknown field \\\"foo\\\", unknown field \\\"registerWithTaints[0].b\\\"\""
    );
    let many: String = (0..120).map(|n| format!("foo{n}: 1\n")).collect();
    let answer = loaded(&["--config=c"], &[("c", &file(&many))]);
    let line = answer.lines.iter().find(|l| l.message.starts_with("Using lenient")).unwrap();
    assert_eq!(line.to_string().matches("unknown field").count(), 100);
    let drop_in = format!("{HEAD}foo: 1\n");
    let answer = loaded(&["--config-dir=d"], &[("d/a.conf", &drop_in)]);
    assert!(!answer.lines.iter().any(|l| l.message.starts_with("Using lenient")));
    assert!(answer.result.is_ok());
}

#[test]
fn only_versions_that_have_a_configuration_are_known() {
    let of = |version: &str| {
        let kind = "CredentialProviderConfig";
        let body = format!("apiVersion: kubelet.config.k8s.io/{version}\nkind: {kind}\n");
        fault(&["--config=c"], &[("c", &body)])
    };
    assert!(of("v1alpha1").ends_with(
        "no kind \"CredentialProviderConfig\" is registered for version \
         \"kubelet.config.k8s.io/v1alpha1\" in scheme \"pkg/runtime/scheme.go:111\""
    ));
    assert!(of("__internal").ends_with(
        "no kind \"CredentialProviderConfig\" is registered for the internal version of group \
         \"kubelet.config.k8s.io\" in scheme \"pkg/runtime/scheme.go:111\""
    ));
    assert!(of("v1").contains("failed to cast object to KubeletConfiguration"));
}

#[test]
fn a_duplicate_key_warns_in_the_file_and_ends_it_in_a_drop_in() {
    let body = file("port: 1\nport: 2\n");
    assert_eq!(config(&["--config=c"], &[("c", &body)]).kubelet.port, 2);
    let drop_in = format!("{HEAD}port: 1\nport: 2\n");
    assert_eq!(
        fault(&["--config-dir=d"], &[("d/a.conf", &drop_in)]),
        "failed to merge kubelet configs: failed to walk through kubelet dropin directory \"d\": \
         failed to load kubelet dropin file, path: d/a.conf, error: strict decoding error: yaml: \
         unmarshal errors:\n  line 4: key \"port\" already set in map"
    );
}

#[test]
fn drop_ins_apply_in_order_and_other_files_are_skipped() {
    let files = [
        ("d/case.conf", format!("{HEAD}maxPods: 1\n")),
        ("d/sub/z.conf", format!("{HEAD}maxPods: 2\n")),
        ("d/zz.conf", format!("{HEAD}podsPerCore: 5\n")),
        ("d/zz.CONF", "x".to_owned()),
        ("d/note.txt", "x".to_owned()),
    ];
    let files: Vec<(&str, &str)> = files.iter().map(|(p, c)| (*p, c.as_str())).collect();
    let answer = loaded(&["--config-dir=d"], &files);
    let skipped: Vec<String> = answer
        .lines
        .iter()
        .filter(|l| l.message.starts_with("Skipped file"))
        .map(ToString::to_string)
        .collect();
    assert_eq!(skipped.len(), 2);
    assert!(skipped[0].ends_with("file=\"d/note.txt\""), "{skipped:?}");
    assert_eq!(config(&["--config-dir=d"], &files).kubelet.max_pods, 2);
}

#[test]
fn a_null_in_a_drop_in_brings_the_default_back() {
    let body = file("maxPods: 3\nclusterDomain: x\nevictionHard: {a: b, c: d}\n");
    let drop_in =
        format!("{HEAD}maxPods: null\nclusterDomain: null\nevictionHard: {{a: null, e: f}}\n");
    let found = config(&["--config=c", "--config-dir=d"], &[("c", &body), ("d/x.conf", &drop_in)]);
    assert_eq!(found.kubelet.max_pods, 110);
    assert_eq!(found.dns.cluster_domain, "");
    assert_eq!(found.eviction.hard.keys().collect::<Vec<_>>(), ["c", "e"]);
}

#[test]
fn a_mis_cased_key_of_a_drop_in_wins_when_it_sorts_later() {
    let drop_in = format!("{HEAD}port: 1\nPort: 2\nmaxpods: 3\n");
    let found = config(&["--config-dir=d"], &[("d/x.conf", &drop_in)]);
    // `Port` sorts before `port`, `maxpods` after `maxPods`.
    assert_eq!((found.kubelet.port, found.kubelet.max_pods), (1, 3));
}

#[test]
fn paths_of_the_file_are_relative_to_it_and_those_of_drop_ins_are_not() {
    let body = file(
        "staticPodPath: m\npodLogsDir: logs\nresolvConf: r\nvolumePluginDir: ../v\n\
         tlsCertFile: a.crt\ntlsPrivateKeyFile: /b.key\n",
    );
    let k = config(&["--config=etc/c"], &[("etc/c", &body)]).kubelet;
    assert_eq!(k.static_pod_path, "/work/etc/m");
    assert_eq!(k.pod_logs_dir, "/work/etc/logs");
    assert_eq!(k.resolv_conf.as_deref(), Some("/work/etc/r"));
    assert_eq!(k.volume_plugin_dir, "/work/v");
    assert_eq!(k.tls_cert_file, "/work/etc/a.crt");
    assert_eq!(k.tls_private_key_file, "/b.key");
    let drop_in = format!("{HEAD}staticPodPath: m\n");
    let k = config(&["--config-dir=d"], &[("d/x.conf", &drop_in)]).kubelet;
    assert_eq!(k.static_pod_path, "m");
}

#[test]
fn a_file_kubeadm_wrote_with_explicit_zeros_means_defaults() {
    let body = format!(
        "{HEAD}authentication: {{anonymous: {{enabled: false}}, webhook: {{cacheTTL: 0s, enabled: true}}}}\n\
         authorization: {{mode: Webhook, webhook: {{cacheAuthorizedTTL: 0s, cacheUnauthorizedTTL: 0s}}}}\n\
         containerRuntimeEndpoint: \"\"\ncpuManagerReconcilePeriod: 0s\nlogging: {{flushFrequency: 0, \
         options: {{json: {{infoBufferSize: \"0\"}}}}, verbosity: 0}}\nmemorySwap: {{}}\n\
         nodeStatusReportFrequency: 0s\nsyncFrequency: 0s\nvolumeStatsAggPeriod: 0s\n\
         imageMaximumGCAge: 0s\nshutdownGracePeriod: 0s\n"
    );
    let found = config(&["--config=c", "--kubeconfig=k"], &[("c", &body)]);
    let plain = config(&["--config=c", "--kubeconfig=k"], &[("c", HEAD)]);
    assert_eq!(found.kubelet, plain.kubelet);
}

#[test]
fn split_streams_of_a_file_never_act() {
    let body = file(
        "featureGates: {LoggingAlphaOptions: true}\nlogging: {options: {text: {splitStream: true}}}\n",
    );
    assert!(!config(&["--config=c"], &[("c", &body)]).logging.split_stream);
    let args = ["--config=c", "--log-text-split-stream"];
    assert!(config(&args, &[("c", &body)]).logging.split_stream);
}

#[test]
fn reserved_cpus_replace_the_reserved_amounts() {
    let args =
        ["--reserved-cpus=0-1,4", "--kube-reserved=cpu=1,memory=1Gi", "--system-reserved=cpu=5"];
    let reservations = config(&args, &[]).resources.reservations;
    assert_eq!(reservations.cpus.to_string(), "0-1,4");
    assert_eq!(reservations.system["cpu"].value(), 3);
    assert!(!reservations.kube.contains_key("cpu"));
}

#[test]
fn over_a_file_a_librarys_switch_takes_the_next_argument() {
    let files = [("c", file("maxPods: 7\n"))];
    let files: Vec<(&str, &str)> = files.iter().map(|(k, v)| (*k, v.as_str())).collect();
    let found = config(&["--config=c", "--log-cadvisor-usage", "--max-pods=5"], &files);
    assert_eq!(found.kubelet.max_pods, 7);
    let found = config(&["--config=c", "--log-cadvisor-usage=true", "--max-pods=5"], &files);
    assert_eq!(found.kubelet.max_pods, 5);
    let last = loaded(&["--config=c", "--log-cadvisor-usage"], &files).result;
    assert!(matches!(last, Ok(Request::Leave(2))), "{last:?}");
}

#[test]
fn help_wins_over_version_and_both_wait_for_a_good_line() {
    assert!(
        matches!(loaded(&["--version", "-h"], &[]).result, Ok(Request::Print(text)) if text.contains("Usage:"))
    );
    assert!(matches!(
        loaded(&["--version"], &[]).result,
        Ok(Request::Print(text)) if text == format!("Kubernetes {}\n", units::release::REPORTED_VERSION)
    ));
    assert_eq!(
        fault(&["--version", "--nope"], &[]),
        "failed to parse kubelet flag: unknown flag: --nope"
    );
    assert_eq!(fault(&["--help", "x"], &[]), "unknown command x");
}

#[test]
fn kubeadm_understands_the_version() {
    // ^\s*Kubernetes v([0-9]+\.[0-9]+\.[0-9]+)([-\w.+]*)?\s*$
    let reported = units::release::REPORTED_VERSION.strip_prefix("v1.36.4").unwrap();
    let fits = |c: char| c.is_ascii_alphanumeric() || "-_.+".contains(c);
    assert!(!reported.is_empty() && reported.chars().all(fits), "{reported}");
}

#[test]
fn late_faults_are_told_before_anything_starts() {
    let cases: [(&[&str], &str); 14] = [
        (
            &["--node-ip=1.2.3.4,5.6.7.8"],
            "bad --node-ip \"1.2.3.4,5.6.7.8\": must contain either a single IP or a dual-stack pair of IPs",
        ),
        (
            &["--node-ip=01.2.3.4,::"],
            "bad --node-ip \"01.2.3.4,::\": dual-stack node IP cannot include '0.0.0.0' or '::'",
        ),
        (
            &["--node-ip=1.2.3.4,::1", "--cloud-provider=aws"],
            "bad --node-ip \"1.2.3.4,::1\": dual-stack not supported in this configuration",
        ),
        (
            &["--minimum-container-ttl-duration=-1s"],
            "failed to create kubelet: invalid minimum garbage collection age: -1s",
        ),
        (
            &["--qos-reserved=cpu=1%", "--sync-frequency=0"],
            "--qos-reserved value failed to parse: cannot reserve \"cpu\" resource",
        ),
        (&["--sync-frequency=0"], "failed to create kubelet: invalid sync frequency 0"),
        (&["--root-dir="], "failed to create kubelet: invalid root directory \"\""),
        (
            &["--cloud-provider=aws"],
            "failed to create kubelet: cloud provider \"aws\" was specified, but built-in cloud providers are disabled. Please set --cloud-provider=external and migrate to an external cloud provider",
        ),
        (
            &["--exit-on-lock-contention"],
            "cannot exit on lock file contention: no lock file specified",
        ),
        (&["--hostname-override= "], "empty hostname is invalid"),
        (
            &["--kube-reserved=x=1"],
            "--kube-reserved value failed to parse: cannot reserve \"x\" resource",
        ),
        (
            &["--system-reserved=cpu=-1"],
            "--system-reserved value failed to parse: resource quantity for \"cpu\" cannot be negative: -1",
        ),
        (
            &["--kube-reserved=cpu=x"],
            "--kube-reserved value failed to parse: failed to parse quantity \"x\" for \"cpu\" resource: quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'",
        ),
        (&["--authorization-mode=RBAC"], "unknown authorization mode RBAC"),
    ];
    for (args, text) in cases {
        assert_eq!(fault(args, &[]), format!("failed to run Kubelet: {text}"));
    }
    let cases = [
        ("--tls-cipher-suites=X", "Cipher suite X not supported or doesn't exist"),
        ("--tls-min-version=X", "unknown tls version \"X\""),
    ];
    for (arg, text) in cases {
        assert_eq!(fault(&[arg], &[]), format!("failed to construct kubelet dependencies: {text}"));
    }
    let body = file("tlsCipherSuites: [TLS_RSA_WITH_AES_128_CBC_SHA]\ntlsCurvePreferences: [0]\n");
    let lines = loaded(&["--config=c"], &[("c", &body)]).lines;
    assert!(lines.iter().any(|line| line.message.starts_with("Use of insecure cipher")));
    let cases = [
        ("[0]", "curve preference 0 is out of range (must be 1-65535)"),
        ("[23, 23]", "duplicate curve preference 23"),
        ("[1]", "curve preference 1 is not supported by the current Go version"),
    ];
    for (curves, text) in cases {
        let body = file(&format!("tlsCurvePreferences: {curves}\n"));
        assert_eq!(
            fault(&["--config=c"], &[("c", &body)]),
            format!("failed to construct kubelet dependencies: {text}")
        );
    }
}

#[test]
fn the_log_shows_flags_and_configuration_without_secrets() {
    let answer = loaded(&["--manifest-url-header=Authorization:secret", "--max-pods=5"], &[]);
    let shown: Vec<String> = answer.lines.iter().map(ToString::to_string).collect();
    assert!(shown.iter().any(|l| l == "FLAG: --max-pods=\"5\""));
    assert!(!shown.iter().any(|l| l.contains("secret")));
    assert!(
        shown.iter().any(|l| l.starts_with("\"KubeletConfiguration\"") && l.contains("masked"))
    );
}

#[test]
fn the_restart_back_off_follows_gates_and_file() {
    let seconds = |args: &[&str], body: &str| {
        let pods = config(&[args, &["--config=c"]].concat(), &[("c", &file(body))]).pods;
        (pods.initial_restart_back_off.as_secs(), pods.max_restart_back_off.as_secs())
    };
    let reduced = "--feature-gates=ReduceDefaultCrashLoopBackOffDecay=true";
    let off = "featureGates: {KubeletCrashLoopBackOffMax: false}\n";
    assert_eq!(seconds(&[], ""), (10, 300));
    assert_eq!(seconds(&[], "crashLoopBackOff: {maxContainerRestartPeriod: 5s}\n"), (5, 5));
    assert_eq!(seconds(&[reduced], ""), (1, 300));
    assert_eq!(seconds(&[reduced], off), (1, 60));
    assert_eq!(seconds(&[], off), (10, 300));
}

#[test]
fn flag_values_are_shown_as_pflag_shows_them() {
    let args = [
        "--cluster-dns=1.1.1.1,2.2.2.2",
        "--eviction-hard=b<1,a<2",
        "--feature-gates=CRIListStreaming=true",
        "--register-with-taints=k=v:NoSchedule,x:NoExecute",
        "--reserved-memory=1:memory=1Gi;0:memory=2Gi",
        "--sync-frequency=90s",
        "--vmodule=a=1",
        "--containerd=/x",
        "--config=c",
        "--manifest-url-header=a:b",
    ];
    let values = config(&args, &[("c", &file("maxPods: 7\n"))]).flag_values;
    let expected = [
        ("cluster-dns", "[1.1.1.1,2.2.2.2]"),
        ("eviction-hard", "a<2,b<1"),
        ("feature-gates", "CRIListStreaming=true"),
        ("register-with-taints", "k=v:NoSchedule,x=:NoExecute"),
        ("reserved-memory", "0:memory=2Gi,1:memory=1Gi"),
        ("sync-frequency", "1m30s"),
        ("vmodule", "a=1"),
        ("containerd", "/x"),
        ("manifest-url-header", "<masked>"),
        // Of the command line alone, not of the file.
        ("max-pods", "110"),
        ("allowed-unsafe-sysctls", "[]"),
        ("version", "false"),
    ];
    for (name, value) in expected {
        assert_eq!(values[name], value, "{name}");
    }
    assert_eq!(values.len(), flags::all().len());
    let plain = config(&[], &[]).flag_values;
    for flag in flags::all() {
        let shown = plain[flag.name].trim_start_matches('[').trim_end_matches(']');
        assert_eq!(shown, flag.default, "{}", flag.name);
    }
}

#[test]
fn a_cgroup_outside_the_reserved_one_is_noted() {
    let answer = loaded(&["--kubelet-cgroups=/a", "--kube-reserved-cgroup=/b"], &[]);
    assert!(answer.lines.iter().any(|l| {
        l.message == "unsupported configuration:KubeletCgroups is not within KubeReservedCgroup"
    }));
}

#[test]
fn the_golden_configz_comes_out_of_the_flags_that_made_it() {
    let golden: Value = serde_json::from_str(include_str!(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../fixtures/golden/server/configz.json"
    )))
    .unwrap();
    let golden = &golden["kubeletconfig"];
    let args = [
        "--cgroup-root=/",
        "--container-runtime-endpoint=$RUNTIME_ENDPOINT",
        "--eviction-hard=imagefs.available<1%,memory.available<100Mi,nodefs.available<1%,nodefs.inodesFree<1%",
        "--fail-cgroupv1=false",
        "--fail-swap-on=false",
        "--max-pods=600",
        "--pod-cidr=10.100.0.0/16",
        "--serialize-image-pulls=false",
        "--pod-manifest-path=$STATIC_POD_PATH",
        "-v=2",
    ];
    let text = config(&args, &[]).configz("cgroupfs");
    let document: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(&document["kubeletconfig"], golden);
    let start = concat!(
        r#"{"kubeletconfig":{"kind":"KubeletConfiguration","#,
        r#""apiVersion":"kubelet.config.k8s.io/v1beta1","enableServer":true,"#,
        r#""staticPodPath":"$STATIC_POD_PATH","#
    );
    assert!(text.starts_with(start), "fields come in the order of Go's type: {text}");
    assert!(text.contains(r#""memoryThrottlingFactor":0.9,"#), "{text}");
}

#[test]
fn reserved_processors_take_the_place_of_shares_in_what_is_shown() {
    let shares = "--kube-reserved=cpu=1,memory=1Gi";
    let shown = |args: &[&str], files: &[(&str, &str)]| {
        let found = config(args, files);
        let document: Value = serde_json::from_str(&found.configz("cgroupfs")).unwrap();
        let (document, flags) = (&document["kubeletconfig"], found.flagz());
        let flags = ["kube-reserved", "system-reserved"].map(|name| flags[name].clone());
        (document["kubeReserved"].clone(), document["systemReserved"].clone(), flags)
    };
    let (kube, system, flags) = shown(&["--reserved-cpus=0-1", shares], &[]);
    assert_eq!((kube, system), (serde_json::json!({"memory": "1Gi"}), Value::Null));
    assert_eq!(flags, ["memory=1Gi", ""]);
    let (_, system, flags) = shown(&["--reserved-cpus=0-1", "--system-reserved=pid=9"], &[]);
    assert_eq!(system, serde_json::json!({"cpu": "2", "pid": "9"}));
    assert_eq!(flags, ["", "cpu=2,pid=9"]);
    let body = file("reservedSystemCPUs: 0-1\nsystemReserved: {cpu: 500m}\n");
    let (kube, system, flags) = shown(&["--config=c", shares], &[("c", &body)]);
    assert_eq!(
        (kube, system),
        (serde_json::json!({"memory": "1Gi"}), serde_json::json!({"cpu": "2"}))
    );
    assert_eq!(flags, ["cpu=1,memory=1Gi", ""]);
}

mod any_input {
    use super::*;
    use crate::testing::MemoryFiles;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn no_command_line_makes_it_panic(args in prop::collection::vec("(-{0,2}[a-z=,:<0-9-]{0,12}|--(port|kube-reserved|register-with-taints|reserved-memory|vmodule|feature-gates|cluster-dns)=\\PC{0,12})", 0..4)) {
            let _ = load(args, &MemoryFiles::default(), CgroupVersion::V2);
        }

        #[test]
        fn no_file_makes_it_panic(text in "\\PC{0,80}", body in "[a-zA-Z:{}, \\n\\[\\]0-9'\"-]{0,80}") {
            for content in [text.clone(), format!("{HEAD}{body}"), format!("{HEAD}{text}")] {
                let files = MemoryFiles::new([("c", content.as_str()), ("d/a.conf", content.as_str())]);
                let _ = load(["--config=c"], &files, CgroupVersion::V2);
                let _ = load(["--config-dir=d"], &files, CgroupVersion::V2);
            }
        }

        #[test]
        fn drop_ins_of_disjoint_fields_commute(pods in 1..1000_i32, port in 1..65535_i32) {
            let one = format!("{HEAD}maxPods: {pods}\n");
            let other = format!("{HEAD}port: {port}\n");
            let first = config(&["--config-dir=d"], &[("d/a.conf", &one), ("d/b.conf", &other)]);
            let second = config(&["--config-dir=d"], &[("d/a.conf", &other), ("d/b.conf", &one)]);
            prop_assert_eq!(first.kubelet, second.kubelet);
        }
    }
}

fn with_variables(args: &[&str], variables: &[(&str, &str)]) -> Loaded {
    let none: [(&str, &str); 0] = [];
    let files = crate::testing::MemoryFiles::new(none).with_variables(variables);
    load(args.iter().copied(), &files, CgroupVersion::V2)
}

#[test]
fn operators_opt_in_by_variables() {
    let answer = with_variables(&[], &[("RUBELET_STRICT_STREAMING", "true"), ("PATH", "/bin")]);
    let Ok(Request::Run(config)) = answer.result else { panic!("{:?}", answer.result) };
    assert!(config.opt_ins.strict_streaming);
    let told = answer.lines.iter().filter(|l| l.message == "Opted in by the environment").count();
    assert_eq!(told, 1);
    let shown = answer.effective.unwrap().environment;
    let strict = shown.iter().find(|s| s.variable.name == "RUBELET_STRICT_STREAMING").unwrap();
    assert_eq!(
        (strict.value.as_str(), strict.origin.to_string()),
        ("true", "environment".to_owned())
    );
}

#[test]
fn a_variable_that_nobody_knows_is_told_by_its_name_only() {
    let answer = with_variables(&[], &[("RUBELET_TOKEN", "secret")]);
    assert!(matches!(answer.result, Ok(Request::Run(_))));
    let told = format!("{:?}", answer.lines);
    assert!(told.contains("RUBELET_TOKEN") && !told.contains("secret"), "{told}");
}

#[test]
fn a_fault_in_the_environment_is_told_with_all_others() {
    let wrong = [("RUBELET_STRICT_STREAMING", "1")];
    let error = |args: &[&str]| with_variables(args, &wrong).result.unwrap_err().to_string();
    let ours = "in the environment: RUBELET_STRICT_STREAMING is \"1\"; allowed are false, true";
    assert!(error(&[]).starts_with(ours), "{}", error(&[]));
    let two = error(&["--healthz-port=-1"]);
    assert!(two.starts_with("failed to validate kubelet configuration, error: "), "{two}");
    assert!(two.contains(&format!("; and {ours}")), "{two}");
    let late = error(&["--node-ip=10.0.0.1,10.0.0.2"]);
    assert!(late.starts_with("failed to run Kubelet: bad --node-ip"), "{late}");
    assert!(late.contains(&format!("; and {ours}")), "{late}");
    assert!(matches!(with_variables(&["--help"], &wrong).result, Ok(Request::Print(_))));
}
