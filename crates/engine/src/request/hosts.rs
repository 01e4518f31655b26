//! Content of the `/etc/hosts` that a pod's containers share.
//!
//! Upstream: `managedHostsFileContent`, `nodeHostsFileContent`, `shouldMountHostsFile`.

use super::hostname::PodHostname;
use api::core::v1::{Container, HostAlias, Pod};

/// Where containers see the file.
pub const HOSTS_PATH: &str = "/etc/hosts";

const HEADER: &str = "# Kubernetes-managed hosts file.\n";
const HOST_NETWORK_HEADER: &str = "# Kubernetes-managed hosts file (host network).\n";
const FIXED: &str = "127.0.0.1\tlocalhost\n\
    ::1\tlocalhost ip6-localhost ip6-loopback\n\
    fe00::0\tip6-localnet\n\
    fe00::0\tip6-mcastprefix\n\
    fe00::1\tip6-allnodes\n\
    fe00::2\tip6-allrouters\n";

/// Whether this container gets the managed file: not before the pod has an address, and not
/// over a mount of its own.
pub fn wants_hosts_file(pod: &Pod, container: &Container, pod_ips: &[String]) -> bool {
    let host_network = pod.spec.as_ref().and_then(|s| s.host_network).unwrap_or(false);
    let own = container.volume_mounts.iter().flatten().any(|m| m.mount_path == HOSTS_PATH);
    (host_network || !pod_ips.is_empty()) && !own
}

/// The file of a pod with its own network.
pub fn managed_hosts(pod: &Pod, hostname: &PodHostname, pod_ips: &[String]) -> String {
    let PodHostname { name, domain } = hostname;
    let mut text = format!("{HEADER}{FIXED}");
    for ip in pod_ips {
        if domain.is_empty() {
            text.push_str(&format!("{ip}\t{name}\n"));
        } else {
            text.push_str(&format!("{ip}\t{name}.{domain}\t{name}\n"));
        }
    }
    text.push_str(&alias_block(aliases(pod)));
    text
}

/// The file of a host-network pod, over the bytes of the node's own file.
pub fn host_network_hosts(pod: &Pod, node_file: &[u8]) -> Vec<u8> {
    let mut bytes = HOST_NETWORK_HEADER.as_bytes().to_vec();
    bytes.extend_from_slice(node_file);
    bytes.extend_from_slice(alias_block(aliases(pod)).as_bytes());
    bytes
}

fn aliases(pod: &Pod) -> &[HostAlias] {
    pod.spec.as_ref().and_then(|s| s.host_aliases.as_deref()).unwrap_or_default()
}

fn alias_block(aliases: &[HostAlias]) -> String {
    if aliases.is_empty() {
        return String::new();
    }
    let mut text = String::from("\n# Entries added by HostAliases.\n");
    for alias in aliases {
        let names = alias.hostnames.as_deref().unwrap_or_default().join("\t");
        text.push_str(&format!("{}\t{names}\n", alias.ip));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::core::v1::{PodSpec, VolumeMount};

    fn pod() -> Pod {
        let alias = HostAlias {
            ip: "10.1.2.3".into(),
            hostnames: Some(vec!["a.example".into(), "b".into()]),
        };
        let spec = PodSpec { host_aliases: Some(vec![alias]), ..PodSpec::default() };
        Pod { spec: Some(spec), ..Pod::default() }
    }

    #[test]
    fn lists_fixed_names_pod_addresses_and_aliases() {
        let hostname = PodHostname { name: "h".into(), domain: "s.ns.svc.d".into() };
        let text = managed_hosts(&pod(), &hostname, &["1.2.3.4".into(), "fd00::1".into()]);
        let want = "# Kubernetes-managed hosts file.\n\
            127.0.0.1\tlocalhost\n\
            ::1\tlocalhost ip6-localhost ip6-loopback\n\
            fe00::0\tip6-localnet\nfe00::0\tip6-mcastprefix\n\
            fe00::1\tip6-allnodes\nfe00::2\tip6-allrouters\n\
            1.2.3.4\th.s.ns.svc.d\th\nfd00::1\th.s.ns.svc.d\th\n\
            \n# Entries added by HostAliases.\n10.1.2.3\ta.example\tb\n";
        assert_eq!(text, want);
        let short = PodHostname { name: "h".into(), domain: String::new() };
        assert!(
            managed_hosts(&Pod::default(), &short, &["1.2.3.4".into()]).ends_with("1.2.3.4\th\n")
        );
    }

    #[test]
    fn keeps_the_nodes_file_for_host_network_pods() {
        let bytes = host_network_hosts(&pod(), b"1.1.1.1 one\n");
        let text = String::from_utf8(bytes).unwrap();
        assert!(
            text.starts_with("# Kubernetes-managed hosts file (host network).\n1.1.1.1 one\n\n#")
        );
    }

    #[test]
    fn is_mounted_only_when_it_has_content_and_place() {
        let mut container = Container::default();
        let mut pod = Pod { spec: Some(PodSpec::default()), ..Pod::default() };
        assert!(!wants_hosts_file(&pod, &container, &[]));
        assert!(wants_hosts_file(&pod, &container, &["1.2.3.4".into()]));
        pod.spec.as_mut().unwrap().host_network = Some(true);
        assert!(wants_hosts_file(&pod, &container, &[]));
        container.volume_mounts =
            Some(vec![VolumeMount { mount_path: HOSTS_PATH.into(), ..VolumeMount::default() }]);
        assert!(!wants_hosts_file(&pod, &container, &["1.2.3.4".into()]));
    }
}
