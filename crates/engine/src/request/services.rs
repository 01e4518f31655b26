//! Environment variables that tell a container where services are.
//!
//! Upstream: `pkg/kubelet/envvars`, `Kubelet.getServiceEnvVarMap`.

use api::core::v1::Service;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The variables a pod of `namespace` sees: always the master service, and with service links
/// every service of its namespace.
pub(super) fn service_env(
    services: &[Arc<Service>],
    namespace: &str,
    links: bool,
) -> BTreeMap<String, String> {
    let mut chosen: BTreeMap<&str, &Service> = BTreeMap::new();
    for service in services.iter().filter(|s| cluster_ip(s).is_some()) {
        let name = service.metadata.name.as_deref().unwrap_or_default();
        let home = service.metadata.namespace.as_deref().unwrap_or_default();
        if home == "default" && name == "kubernetes" {
            chosen.entry(name).or_insert(service);
        } else if home == namespace && links {
            chosen.insert(name, service);
        }
    }
    let mut env = BTreeMap::new();
    for (name, service) in chosen {
        add_service(&mut env, name, service);
    }
    env
}

fn add_service(env: &mut BTreeMap<String, String>, name: &str, service: &Service) {
    let Some(ip) = cluster_ip(service) else { return };
    let ports = service.spec.as_ref().and_then(|s| s.ports.as_deref()).unwrap_or_default();
    let prefix = variable_name(name);
    env.insert(format!("{prefix}_SERVICE_HOST"), ip.into());
    if let Some(first) = ports.first() {
        env.insert(format!("{prefix}_SERVICE_PORT"), first.port.to_string());
    }
    for port in ports {
        if let Some(port_name) = port.name.as_deref().filter(|n| !n.is_empty()) {
            let key = format!("{prefix}_SERVICE_PORT_{}", variable_name(port_name));
            env.insert(key, port.port.to_string());
        }
    }
    for (index, port) in ports.iter().enumerate() {
        let protocol = port.protocol.as_deref().filter(|p| !p.is_empty()).unwrap_or("TCP");
        let lower = protocol.to_lowercase();
        let number = port.port;
        let url = if ip.contains([':', '%']) {
            format!("{lower}://[{ip}]:{number}")
        } else {
            format!("{lower}://{ip}:{number}")
        };
        if index == 0 {
            env.insert(format!("{prefix}_PORT"), url.clone());
        }
        let key = format!("{prefix}_PORT_{number}_{}", protocol.to_uppercase());
        env.insert(format!("{key}_PROTO"), lower);
        env.insert(format!("{key}_PORT"), number.to_string());
        env.insert(format!("{key}_ADDR"), ip.into());
        env.insert(key, url);
    }
}

fn cluster_ip(service: &Service) -> Option<&str> {
    let ip = service.spec.as_ref()?.cluster_ip.as_deref()?;
    (!ip.is_empty() && ip != "None").then_some(ip)
}

fn variable_name(text: &str) -> String {
    text.replace('-', "_").to_uppercase()
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::core::v1::{ServicePort, ServiceSpec};

    fn service(namespace: &str, name: &str, ip: &str, ports: &[(&str, i32, &str)]) -> Arc<Service> {
        let ports = ports
            .iter()
            .map(|(name, port, protocol)| ServicePort {
                name: Some((*name).into()),
                port: *port,
                protocol: Some((*protocol).into()),
                ..ServicePort::default()
            })
            .collect();
        let mut service = Service {
            spec: Some(ServiceSpec {
                cluster_ip: Some(ip.into()),
                ports: Some(ports),
                ..ServiceSpec::default()
            }),
            ..Service::default()
        };
        service.metadata.name = Some(name.into());
        service.metadata.namespace = Some(namespace.into());
        Arc::new(service)
    }

    #[test]
    fn writes_every_form_of_a_service() {
        let env = service_env(
            &[service("ns", "my-db", "fd00::1", &[("", 80, "TCP"), ("adm-in", 81, "UDP")])],
            "ns",
            true,
        );
        let want = [
            ("MY_DB_PORT", "tcp://[fd00::1]:80"),
            ("MY_DB_PORT_80_TCP", "tcp://[fd00::1]:80"),
            ("MY_DB_PORT_80_TCP_ADDR", "fd00::1"),
            ("MY_DB_PORT_80_TCP_PORT", "80"),
            ("MY_DB_PORT_80_TCP_PROTO", "tcp"),
            ("MY_DB_PORT_81_UDP", "udp://[fd00::1]:81"),
            ("MY_DB_PORT_81_UDP_ADDR", "fd00::1"),
            ("MY_DB_PORT_81_UDP_PORT", "81"),
            ("MY_DB_PORT_81_UDP_PROTO", "udp"),
            ("MY_DB_SERVICE_HOST", "fd00::1"),
            ("MY_DB_SERVICE_PORT", "80"),
            ("MY_DB_SERVICE_PORT_ADM_IN", "81"),
        ];
        let got: Vec<_> = env.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
        assert_eq!(got, want);
    }

    #[test]
    fn only_the_master_service_crosses_namespaces() {
        let all = [
            service("default", "kubernetes", "10.0.0.1", &[("https", 443, "TCP")]),
            service("default", "other", "10.0.0.2", &[("", 1, "TCP")]),
            service("ns", "mine", "10.0.0.3", &[("", 1, "TCP")]),
            service("ns", "headless", "None", &[("", 1, "TCP")]),
        ];
        let hosts = |links| {
            let env = service_env(&all, "ns", links);
            env.into_keys().filter(|k| k.ends_with("_SERVICE_HOST")).collect::<Vec<_>>()
        };
        assert_eq!(hosts(true), ["KUBERNETES_SERVICE_HOST", "MINE_SERVICE_HOST"]);
        assert_eq!(hosts(false), ["KUBERNETES_SERVICE_HOST"]);
    }
}
