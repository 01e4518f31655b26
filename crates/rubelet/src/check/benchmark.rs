//! How the settings stand against section 4.2 of the CIS Kubernetes benchmark (the node agent).
//!
//! One finding: upstream's defaults leave several of them open, and none keeps pods from running.

use super::Finding;
use config::Config;
use config::resolved::Authorization;

const SUBJECT: &str = "CIS benchmark";

/// Suites that the benchmark takes for strong.
const STRONG: [&str; 10] = [
    "TLS_AES_128_GCM_SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
    "TLS_RSA_WITH_AES_256_GCM_SHA384",
];

/// A recommendation: its number, whether it is met, and the setting that meets it.
type Control = (&'static str, bool, &'static str);

fn controls(config: &Config) -> [Control; 14] {
    let (server, kubelet) = (&config.server, &config.kubelet);
    let reviewed = server.authorization != Authorization::AlwaysAllow;
    let own_certificate = server.tls_cert_file.is_some() && !server.tls_self_signed;
    let all_events = kubelet.event_record_qps.is_none_or(|qps| qps == 0 || qps >= 5);
    let suites = &server.tls_cipher_suites;
    let strong = |suite: &String| STRONG.contains(&suite.as_str());
    [
        ("4.2.1", !server.anonymous, "authentication.anonymous.enabled: false"),
        ("4.2.2", reviewed, "authorization.mode: Webhook"),
        ("4.2.3", server.client_ca_file.is_some(), "authentication.x509.clientCAFile"),
        ("4.2.4", server.read_only.is_none(), "readOnlyPort: 0"),
        (
            "4.2.5",
            !kubelet.streaming_connection_idle_timeout.is_zero(),
            "streamingConnectionIdleTimeout above 0",
        ),
        ("4.2.6", config.node.make_iptables_util_chains, "makeIPTablesUtilChains: true"),
        ("4.2.7", config.node.hostname_override.is_none(), "no --hostname-override"),
        ("4.2.8", all_events, "eventRecordQPS: 0, or 5 and more"),
        (
            "4.2.9",
            own_certificate || server.server_tls_bootstrap,
            "tlsCertFile and tlsPrivateKeyFile, or serverTLSBootstrap: true",
        ),
        ("4.2.10", kubelet.rotate_certificates, "rotateCertificates: true"),
        (
            "4.2.11",
            config.gates.enabled("RotateKubeletServerCertificate"),
            "no featureGates.RotateKubeletServerCertificate: false",
        ),
        (
            "4.2.12",
            !suites.is_empty() && suites.iter().all(strong),
            "tlsCipherSuites of strong ones",
        ),
        ("4.2.13", config.pods.pids_limit.is_some(), "podPidsLimit"),
        ("4.2.14", config.runtime.seccomp_default, "seccompDefault: true"),
    ]
}

/// Which recommendations are met.
pub(super) fn check(config: &Config) -> Vec<Finding> {
    let controls = controls(config);
    let open: Vec<&Control> = controls.iter().filter(|(_, met, _)| !met).collect();
    let seen =
        format!("{} of {} recommendations are met", controls.len() - open.len(), controls.len());
    if open.is_empty() {
        return vec![Finding::ok(SUBJECT, seen)];
    }
    let numbers: Vec<&str> = open.iter().map(|(number, _, _)| *number).collect();
    let fixes: Vec<String> =
        open.iter().map(|(number, _, setting)| format!("{setting} ({number})")).collect();
    let seen = format!("{seen}, not {}", numbers.join(", "));
    vec![Finding::warning(SUBJECT, seen, format!("where it matters to you: {}", fixes.join("; ")))]
}
