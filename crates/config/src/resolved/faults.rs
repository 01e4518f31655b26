//! What is wrong with a validated configuration, as upstream finds it in the course of its start.

use crate::ConfigFiles;
use crate::flags::KubeletFlags;
use crate::kubeconfig;
use crate::kubelet::KubeletConfiguration;
use crate::log::LogLine;
use std::net::IpAddr;
use units::strconv::{parse_ip, quote};

/// The first fault of what upstream checks before it asks the runtime: the lock file, the name of
/// the host, the client of the API server, authentication and authorization.
pub(crate) fn caller_fault(
    k: &KubeletConfiguration,
    flags: &KubeletFlags,
    files: &dyn ConfigFiles,
    lines: &mut Vec<LogLine>,
) -> Option<String> {
    if flags.exit_on_lock_contention && flags.lock_file.is_empty() {
        return Some("cannot exit on lock file contention: no lock file specified".to_owned());
    }
    if !flags.hostname_override.is_empty() && flags.hostname_override.trim().is_empty() {
        return Some("empty hostname is invalid".to_owned());
    }
    let no_client = flags.kubeconfig.is_empty();
    if !no_client {
        let path = flags.kubeconfig.as_str();
        let rotate = k.rotate_certificates.then_some(flags.cert_dir.as_str());
        // With a bootstrap the file may yet have to be written.
        let (told, fault) = match flags.bootstrap_kubeconfig.as_str() {
            "" => kubeconfig::fault(files, path, rotate),
            bootstrap => kubeconfig::bootstrap_fault(files, (bootstrap, path), rotate),
        };
        lines.extend(told);
        if fault.is_some() {
            return fault;
        }
    }
    let authority = &k.authentication.x509.client_ca_file;
    if !authority.is_empty() {
        let name = quote(&format!("client-ca-bundle::{authority}"));
        match files.read(authority) {
            Err(error) => return Some(error),
            Ok(bundle) if bundle.is_empty() => {
                return Some(format!("missing content for CA bundle {name}"));
            }
            Ok(bundle) => {
                if let Some(fault) = bundle_fault(&bundle) {
                    return Some(format!("error loading CA bundle for {name}: {fault}"));
                }
            }
        }
    }
    if no_client && k.authentication.webhook.enabled.unwrap_or(true) {
        return Some("no client provided, cannot use webhook authentication".to_owned());
    }
    match k.authorization.mode.as_str() {
        "AlwaysAllow" => None,
        "Webhook" if no_client => {
            Some("no client provided, cannot use webhook authorization".to_owned())
        }
        "Webhook" => None,
        "" => Some("no authorization mode specified".to_owned()),
        other => Some(format!("unknown authorization mode {other}")),
    }
}

/// What is wrong with a bundle of certificates at first sight; what is inside of them is for others.
pub(crate) fn bundle_fault(bundle: &[u8]) -> Option<&'static str> {
    let blocks = units::pem::blocks(bundle);
    let mut certificates = blocks.iter().filter(|block| is_certificate(block)).peekable();
    if certificates.peek().is_none() {
        return Some("data does not contain any valid RSA or ECDSA certificates");
    }
    certificates.find_map(|block| units::x509::outline_fault(&block.bytes))
}

/// Whether Go takes a block for a certificate: with headers it does not.
pub(crate) fn is_certificate(block: &units::pem::Block) -> bool {
    block.label == "CERTIFICATE" && !block.has_headers
}

/// What upstream checks while it builds its main object.
pub(super) fn construction_fault(k: &KubeletConfiguration, flags: &KubeletFlags) -> Option<String> {
    let construction = if flags.root_dir.is_empty() {
        "invalid root directory \"\"".to_owned()
    } else if k.sync_frequency.as_nanos() <= 0 {
        format!("invalid sync frequency {}", k.sync_frequency.as_nanos())
    } else if !["", "external"].contains(&flags.cloud_provider.as_str()) {
        format!(
            "cloud provider {} was specified, but built-in cloud providers are disabled. Please \
             set --cloud-provider=external and migrate to an external cloud provider",
            quote(&flags.cloud_provider)
        )
    } else {
        return None;
    };
    Some(format!("failed to create kubelet: {construction}"))
}

/// What upstream checks of the parts of its main object, once it knows the eviction thresholds.
pub(super) fn parts_fault(k: &KubeletConfiguration, flags: &KubeletFlags) -> Option<String> {
    let strategy = k.config_map_and_secret_change_detection_strategy.as_str();
    let unknown = !flags.kubeconfig.is_empty() && !["Get", "Cache", "Watch"].contains(&strategy);
    unknown.then(|| {
        format!("failed to create kubelet: unknown configmap and secret manager mode: {strategy}")
    })
}

/// How long dead containers are kept (kubelet: `NewContainerGC`).
pub(super) fn collection_fault(flags: &KubeletFlags) -> Option<String> {
    let age = flags.minimum_container_ttl_duration;
    (age.as_nanos() < 0)
        .then(|| format!("failed to create kubelet: invalid minimum garbage collection age: {age}"))
}

/// Addresses of the node: one, or one of each family (component-helpers: `ParseNodeIPArgument`).
pub(super) fn node_ip_fault(flags: &KubeletFlags) -> Option<String> {
    let parsed = flags.node_ip.split(',').filter_map(|text| parse_ip(text.trim()));
    let addresses: Vec<IpAddr> = parsed.collect();
    let external = ["", "external"].contains(&flags.cloud_provider.as_str());
    let fault = match addresses.as_slice() {
        [] | [_] => return None,
        [a, b] if a.is_ipv6() == b.is_ipv6() => {
            "must contain either a single IP or a dual-stack pair of IPs"
        }
        [_, _] if !external => "dual-stack not supported in this configuration",
        [a, b] if a.is_unspecified() || b.is_unspecified() => {
            "dual-stack node IP cannot include '0.0.0.0' or '::'"
        }
        [_, _] => return None,
        _ => "must contain either a single IP or a dual-stack pair of IPs",
    };
    Some(format!("bad --node-ip {}: {fault}", quote(&flags.node_ip)))
}
