//! The sandbox of a pod as a CRI message.
//!
//! Upstream: `generatePodSandboxConfig`, `MakePortMappings`.

use super::hostname::{kernel_hostname, pod_hostname};
use super::paths::pod_log_dir;
use super::resources::CpuQuota;
use super::security::{UserNamespaceRange, namespaces, sandbox_context};
use super::{RequestError, RequestSettings, labels};
use api::core::v1::{Container, Pod};
use api::pod::PodExt;
use proto::cri_v1::{
    DnsConfig, LinuxPodSandboxConfig, PodSandboxConfig, PodSandboxMetadata, PortMapping, Protocol,
    RunPodSandboxRequest,
};
use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv6Addr;

/// What a sandbox is made of besides the settings of the node.
#[derive(Debug, Clone)]
pub struct SandboxInput<'a> {
    /// The pod with its allocated resources.
    pub pod: &'a Pod,
    /// Which try this is.
    pub attempt: u32,
    /// The resolver configuration (see `dns::pod_dns`).
    pub dns: DnsConfig,
    /// The pod's cgroup in the form of the driver; empty without `cgroupsPerQOS`.
    pub cgroup_parent: String,
    /// The ids of a pod with its own user namespace.
    pub userns: Option<UserNamespaceRange>,
    /// Groups that come with the pod's volumes.
    pub extra_groups: &'a [i64],
    /// Whether some container holds CPUs of its own.
    pub cpu_quota: CpuQuota,
}

/// The configuration of a sandbox.
pub fn sandbox_config(
    settings: &RequestSettings,
    input: SandboxInput<'_>,
) -> Result<PodSandboxConfig, RequestError> {
    let SandboxInput { pod, attempt, dns, cgroup_parent, userns, extra_groups, cpu_quota } = input;
    let meta = &pod.metadata;
    let spec = pod.spec.as_ref();
    let hostname = if spec.and_then(|s| s.host_network).unwrap_or(false) {
        String::new()
    } else {
        let names = pod_hostname(pod, &settings.cluster_domain, settings.hostname_override)?;
        kernel_hostname(pod, &names)?
    };
    let port_mappings = spec.iter().flat_map(|s| &s.containers).flat_map(port_mappings).collect();
    let security_context = sandbox_context(pod, namespaces(pod, userns), extra_groups)?;
    Ok(PodSandboxConfig {
        metadata: Some(PodSandboxMetadata {
            name: meta.name.clone().unwrap_or_default(),
            namespace: meta.namespace.clone().unwrap_or_default(),
            uid: pod.uid_str().into(),
            attempt,
        }),
        hostname,
        log_directory: pod_log_dir(&settings.pod_logs_dir, pod),
        dns_config: Some(dns),
        port_mappings,
        labels: labels::sandbox_labels(pod),
        annotations: meta.annotations.clone().unwrap_or_default(),
        linux: Some(LinuxPodSandboxConfig {
            cgroup_parent,
            security_context: Some(security_context),
            sysctls: sysctls(pod),
            overhead: Some(settings.resources.overhead(pod)),
            resources: Some(settings.resources.sandbox(pod, cpu_quota)),
        }),
        ..PodSandboxConfig::default()
    })
}

/// The request that starts a sandbox.
pub fn run_sandbox(config: PodSandboxConfig, runtime_handler: &str) -> RunPodSandboxRequest {
    RunPodSandboxRequest { config: Some(config), runtime_handler: runtime_handler.into() }
}

fn sysctls(pod: &Pod) -> BTreeMap<String, String> {
    let context = pod.spec.as_ref().and_then(|s| s.security_context.as_ref());
    let all = context.and_then(|c| c.sysctls.as_deref()).unwrap_or_default();
    all.iter().map(|s| (dotted(&s.name), s.value.clone())).collect()
}

/// A sysctl's name with dots; in the slash form the two change places.
pub fn dotted(name: &str) -> String {
    match name.find(['.', '/']) {
        Some(at) if name[at..].starts_with('/') => name
            .chars()
            .map(|c| match c {
                '.' => '/',
                '/' => '.',
                c => c,
            })
            .collect(),
        _ => name.into(),
    }
}

fn port_mappings(container: &Container) -> Vec<PortMapping> {
    let mut seen = BTreeSet::new();
    let mut mappings = Vec::new();
    for port in container.ports.iter().flatten() {
        let host_ip = port.host_ip.clone().unwrap_or_default();
        let host_port = port.host_port.unwrap_or(0);
        let protocol = port.protocol.as_deref().unwrap_or_default();
        let family = match host_ip.as_str() {
            "" => "any",
            ip if ip.parse::<Ipv6Addr>().is_ok() => "v6",
            _ => "v4",
        };
        let name = port.name.clone().filter(|n| !n.is_empty()).unwrap_or_else(|| {
            format!("{family}-{protocol}-{host_ip}:{}:{host_port}", port.container_port)
        });
        if seen.insert(name) {
            let protocol = match protocol {
                "UDP" => Protocol::Udp,
                "SCTP" => Protocol::Sctp,
                _ => Protocol::Tcp,
            };
            mappings.push(PortMapping {
                protocol: protocol.into(),
                container_port: port.container_port,
                host_port,
                host_ip,
            });
        }
    }
    mappings
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::core::v1::ContainerPort;

    #[test]
    fn sysctls_are_sent_with_dots() {
        for (name, want) in [
            ("net.ipv4.ip_forward", "net.ipv4.ip_forward"),
            ("net/ipv4/conf/eno2.100/rp_filter", "net.ipv4.conf.eno2/100.rp_filter"),
            ("net.ipv4.conf.eno2/100.rp_filter", "net.ipv4.conf.eno2/100.rp_filter"),
            ("kernel", "kernel"),
        ] {
            assert_eq!(dotted(name), want);
        }
    }

    #[test]
    fn a_port_is_mapped_once_per_name_or_place() {
        let port =
            |name: Option<&str>, number, host_ip: Option<&str>, protocol: &str| ContainerPort {
                name: name.map(Into::into),
                container_port: number,
                host_ip: host_ip.map(Into::into),
                protocol: Some(protocol.into()),
                ..ContainerPort::default()
            };
        let container = Container {
            ports: Some(vec![
                port(Some("a"), 80, None, "TCP"),
                port(Some("a"), 81, None, "TCP"),
                port(None, 80, None, "UDP"),
                port(None, 80, None, "UDP"),
                port(None, 80, Some("::1"), "odd"),
                port(None, 80, Some("127.0.0.1"), "SCTP"),
            ]),
            ..Container::default()
        };
        let got: Vec<_> = port_mappings(&container)
            .iter()
            .map(|p| (p.container_port, p.host_ip.clone(), p.protocol))
            .collect();
        let want = vec![
            (80, String::new(), Protocol::Tcp.into()),
            (80, String::new(), Protocol::Udp.into()),
            (80, "::1".into(), Protocol::Tcp.into()),
            (80, "127.0.0.1".into(), Protocol::Sctp.into()),
        ];
        assert_eq!(got, want);
    }
}
