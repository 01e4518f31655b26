//! `status.addresses` and the annotation for an external cloud provider.

use super::facts::{AddressFacts, NodeSettings};
use api::core::v1::{Node, NodeAddress};
use std::net::IpAddr;
use units::strconv::parse_ip;

const PROVIDED_IP: &str = "alpha.kubernetes.io/provided-node-ip";

pub(super) fn set(
    node: &mut Node,
    settings: &NodeSettings,
    facts: &AddressFacts,
) -> Result<(), String> {
    let specified = |ip: &&IpAddr| !ip.is_unspecified();
    let first = settings.node_ips.first();
    let primary = first.filter(specified).copied();
    let secondary = settings.node_ips.get(1).filter(specified).copied();
    if let Some(ip) = primary {
        validate(ip, &facts.local).map_err(|e| format!("failed to validate nodeIP: {e}"))?;
    }
    if let Some(ip) = secondary {
        validate(ip, &facts.local)
            .map_err(|e| format!("failed to validate secondaryNodeIP: {e}"))?;
    }
    match (settings.external_cloud, primary) {
        (true, Some(ip)) => {
            let text = secondary.map_or(ip.to_string(), |second| format!("{ip},{second}"));
            let annotations = node.metadata.annotations.get_or_insert_default();
            annotations.insert(PROVIDED_IP.into(), text);
        }
        _ => {
            if let Some(annotations) = &mut node.metadata.annotations {
                annotations.remove(PROVIDED_IP);
            }
        }
    }
    let status = node.status.get_or_insert_default();
    if settings.external_cloud {
        if status.addresses.as_ref().is_some_and(|a| !a.is_empty()) {
            return Ok(());
        }
        if first.is_none() {
            status.addresses = Some(list(&[], &settings.hostname));
            return Ok(());
        }
    }
    let ips = match (primary, secondary) {
        (Some(first), Some(second)) => vec![first, second],
        (Some(ip), None) => vec![ip],
        (None, _) => vec![choose(settings, facts)?],
    };
    status.addresses = Some(list(&ips, &settings.hostname));
    Ok(())
}

/// The address of a node without a configured one.
fn choose(settings: &NodeSettings, facts: &AddressFacts) -> Result<IpAddr, String> {
    if let Some(ip) = parse_ip(&settings.hostname) {
        return Ok(ip);
    }
    let prefer_v4 = settings.node_ips.first().is_none_or(IpAddr::is_ipv4);
    let valid = || facts.looked_up.iter().filter(|ip| validate(**ip, &facts.local).is_ok());
    let preferred = valid().find(|ip| ip.is_ipv4() == prefer_v4);
    let found = preferred.or_else(|| valid().next()).copied().or(facts.default_route);
    found.ok_or_else(|| {
        let name = &settings.node_name;
        format!("can't get ip address of node {name}. error: no default route with an address")
    })
}

/// Whether this address may be a node's (upstream: `validateNodeIP`).
fn validate(ip: IpAddr, local: &[IpAddr]) -> Result<(), String> {
    let link_local = match ip {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    let fault = match ip {
        _ if ip.is_loopback() => "nodeIP can't be loopback address".into(),
        _ if ip.is_multicast() => "nodeIP can't be a multicast address".into(),
        _ if link_local => "nodeIP can't be a link-local unicast address".into(),
        _ if ip.is_unspecified() => "nodeIP can't be an all zeros address".into(),
        _ if !local.contains(&ip) => {
            format!("node IP: \"{ip}\" not found in the host's network interfaces")
        }
        _ => return Ok(()),
    };
    Err(fault)
}

fn list(ips: &[IpAddr], hostname: &str) -> Vec<NodeAddress> {
    let internal = ips.iter().map(|ip| entry("InternalIP", ip.to_string()));
    internal.chain([entry("Hostname", hostname.to_owned())]).collect()
}

fn entry(kind: &str, address: String) -> NodeAddress {
    NodeAddress { type_: kind.into(), address }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> AddressFacts {
        let ip = |t: &str| t.parse().unwrap();
        AddressFacts {
            local: vec![ip("127.0.0.1"), ip("192.0.2.2"), ip("2001:db8::2")],
            looked_up: vec![ip("127.0.1.1")],
            default_route: Some(ip("192.0.2.2")),
        }
    }

    fn addresses(settings: &NodeSettings, facts: &AddressFacts) -> Result<Vec<String>, String> {
        let mut node = Node::default();
        set(&mut node, settings, facts)?;
        let list = node.status.unwrap().addresses.unwrap();
        Ok(list.into_iter().map(|a| format!("{}={}", a.type_, a.address)).collect())
    }

    fn settings(node_ips: &[&str]) -> NodeSettings {
        NodeSettings {
            node_name: "node1".into(),
            hostname: "node1".into(),
            node_ips: node_ips.iter().map(|t| t.parse().unwrap()).collect(),
            ..NodeSettings::default()
        }
    }

    #[test]
    fn follows_the_table_of_node_ip_rules() {
        let ok = |ips: &[&str]| addresses(&settings(ips), &facts()).unwrap();
        assert_eq!(ok(&[]), ["InternalIP=192.0.2.2", "Hostname=node1"]);
        assert_eq!(ok(&["2001:db8::2"]), ["InternalIP=2001:db8::2", "Hostname=node1"]);
        let named = NodeSettings { hostname: "010.0.0.1".into(), ..settings(&[]) };
        let own = ["InternalIP=10.0.0.1", "Hostname=010.0.0.1"];
        assert_eq!(addresses(&named, &facts()).unwrap(), own);
        assert_eq!(
            ok(&["192.0.2.2", "2001:db8::2"]),
            ["InternalIP=192.0.2.2", "InternalIP=2001:db8::2", "Hostname=node1"]
        );
    }

    #[test]
    fn refuses_addresses_that_are_not_the_machines() {
        let fault = |ip: &str| addresses(&settings(&[ip]), &facts()).unwrap_err();
        assert_eq!(
            fault("198.51.100.1"),
            "failed to validate nodeIP: node IP: \"198.51.100.1\" not found in the host's network \
             interfaces"
        );
        let loopback = "failed to validate nodeIP: nodeIP can't be loopback address";
        assert_eq!(fault("127.0.0.1"), loopback);
    }

    #[test]
    fn an_external_cloud_keeps_its_addresses_and_learns_the_flag() {
        let mut settings = settings(&["192.0.2.2"]);
        settings.external_cloud = true;
        let mut node = Node::default();
        let kept = vec![entry("ExternalIP", "203.0.113.9".into())];
        node.status.get_or_insert_default().addresses = Some(kept.clone());
        set(&mut node, &settings, &facts()).unwrap();
        assert_eq!(node.status.as_ref().unwrap().addresses, Some(kept));
        assert_eq!(node.metadata.annotations.as_ref().unwrap()[PROVIDED_IP], "192.0.2.2");
        settings.node_ips.clear();
        set(&mut node, &settings, &facts()).unwrap();
        assert!(node.metadata.annotations.unwrap().is_empty(), "removed with the flag");
        let unset = addresses(&settings, &facts()).unwrap();
        assert_eq!(unset, ["Hostname=node1"], "without a flag the cloud fills them in");
    }
}
