//! The resolver configuration of a pod's sandbox.
//!
//! Upstream: `pkg/kubelet/network/dns`. Option lists have no defined order upstream; ours keep
//! the order of first appearance.

use super::RequestError;
use api::core::v1::{Pod, PodDNSConfigOption};
use api::pod::PodExt;
use proto::cri_v1::DnsConfig;
use std::net::IpAddr;

const MAX_NAMESERVERS: usize = 3;
const MAX_SEARCHES: usize = 32;
const MAX_SEARCH_LINE: usize = 2048;
const MAX_SEARCH: usize = 253;

/// The resolver file this node gives to pods (`resolvConf`), parsed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ResolvConf {
    /// `nameserver` addresses in order.
    pub servers: Vec<String>,
    /// Domains of the last `search` line.
    pub searches: Vec<String>,
    /// Options, one per name.
    pub options: Vec<String>,
}

impl ResolvConf {
    /// Reads the text of a resolver file.
    pub fn parse(text: &str) -> Result<Self, RequestError> {
        let mut parsed = Self::default();
        let mut fault = false;
        for line in text.split('\n').map(str::trim).filter(|l| !l.starts_with('#')) {
            let mut words = line.split_whitespace();
            match words.next() {
                Some("nameserver") => match words.next() {
                    Some(server) => parsed.servers.push(server.into()),
                    None => fault = true,
                },
                Some("search") => {
                    parsed.searches = words
                        .filter(|w| *w != ".")
                        .map(|w| w.strip_suffix('.').unwrap_or(w).into())
                        .collect();
                }
                Some("options") => {
                    for word in words {
                        replace_option(&mut parsed.options, option_name(word), word.into());
                    }
                }
                _ => {}
            }
        }
        if fault { Err(RequestError::ResolvConf) } else { Ok(parsed) }
    }

    /// What the start-up check (event `CheckLimitsForResolvConf`) says about the file.
    pub fn limit_fault(&self, path: &str, cluster_domain: &str) -> Option<String> {
        let most = if cluster_domain.is_empty() { MAX_SEARCHES } else { MAX_SEARCHES - 3 };
        if self.searches.len() > most {
            return Some(format!(
                "Resolv.conf file '{path}' contains search line consisting of more than {most} \
                 domains!"
            ));
        }
        if self.searches.iter().any(|s| s.len() > MAX_SEARCH) {
            return Some(format!(
                "Resolv.conf file {path:?} contains a search path which length is more than \
                 allowed {MAX_SEARCH} chars!"
            ));
        }
        (self.searches.join(" ").len() > MAX_SEARCH_LINE).then(|| {
            format!(
                "Resolv.conf file '{path}' contains search line which length is more than allowed \
                 {MAX_SEARCH_LINE} chars!"
            )
        })
    }
}

/// What the node gives to pods.
#[derive(Debug, Clone, Copy)]
pub struct DnsInput<'a> {
    /// The host's file; `None` when `resolvConf` is empty.
    pub host: Option<&'a ResolvConf>,
    /// `clusterDNS`.
    pub cluster_dns: &'a [IpAddr],
    /// `clusterDomain`, may be empty.
    pub cluster_domain: &'a str,
    /// The node's own addresses.
    pub node_ips: &'a [IpAddr],
}

/// Events about a configuration that could not be made as requested.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DnsWarning {
    /// Event `MissingClusterDNS`, on the node and on the pod.
    MissingClusterDns {
        /// Text of the node's event.
        node: String,
        /// Text of the pod's event.
        pod: String,
    },
    /// Event `DNSConfigForming` on the pod.
    Limits(String),
}

/// The pod's resolver configuration, and the events about it.
pub fn pod_dns(input: &DnsInput<'_>, pod: &Pod) -> (DnsConfig, Vec<DnsWarning>) {
    let spec = pod.spec.as_ref();
    let host_network = spec.and_then(|s| s.host_network).unwrap_or(false);
    let host = input.host.cloned().unwrap_or_default();
    let mut warnings = Vec::new();
    let mut config = match spec.and_then(|s| s.dns_policy.as_deref()).unwrap_or_default() {
        "None" => ResolvConf::default(),
        "Default" => host_dns(input, host),
        "ClusterFirst" if host_network => host_dns(input, host),
        _ if !input.cluster_dns.is_empty() => ResolvConf {
            servers: input.cluster_dns.iter().map(ToString::to_string).collect(),
            searches: cluster_searches(input.cluster_domain, host.searches, pod),
            options: vec!["ndots:5".into()],
        },
        _ => {
            let node = "kubelet does not have ClusterDNS IP configured and cannot create Pod using \
                        \"ClusterFirst\" policy. Falling back to \"Default\" policy.";
            warnings.push(DnsWarning::MissingClusterDns {
                node: node.into(),
                pod: format!("pod: {:?}. {node}", pod.display_name()),
            });
            host_dns(input, host)
        }
    };
    if let Some(own) = spec.and_then(|s| s.dns_config.as_ref()) {
        config.servers.extend(own.nameservers.iter().flatten().cloned());
        config.servers = unique(config.servers);
        config.searches.extend(own.searches.iter().flatten().cloned());
        config.searches = unique(config.searches);
        config.options = merge_options(config.options, own.options.as_deref().unwrap_or_default());
    }
    if config.servers.len() > MAX_NAMESERVERS {
        config.servers.truncate(MAX_NAMESERVERS);
        warnings.push(DnsWarning::Limits(format!(
            "Nameserver limits were exceeded, some nameservers have been omitted, the applied \
             nameserver line is: {}",
            config.servers.join(" ")
        )));
    }
    if fit_searches(&mut config.searches) {
        warnings.push(DnsWarning::Limits(format!(
            "Search Line limits were exceeded, some search paths have been omitted, the applied \
             search line is: {}",
            config.searches.join(" ")
        )));
    }
    let ResolvConf { servers, searches, options } = config;
    (DnsConfig { servers, searches, options }, warnings)
}

fn host_dns(input: &DnsInput<'_>, mut host: ResolvConf) -> ResolvConf {
    if input.host.is_none() {
        let local = |ip: &IpAddr| if ip.is_ipv6() { "::1" } else { "127.0.0.1" }.to_string();
        host.servers = input.node_ips.iter().map(local).collect();
        if host.servers.is_empty() {
            host.servers.push("127.0.0.1".into());
        }
        host.searches = vec![".".into()];
    }
    host
}

fn cluster_searches(domain: &str, host: Vec<String>, pod: &Pod) -> Vec<String> {
    if domain.is_empty() {
        return host;
    }
    let namespace = pod.namespace_str();
    let mut all =
        vec![format!("{namespace}.svc.{domain}"), format!("svc.{domain}"), domain.to_string()];
    all.extend(host);
    unique(all)
}

/// Cuts the list to the resolvers' limits; true when something was dropped.
fn fit_searches(searches: &mut Vec<String>) -> bool {
    let before = searches.len();
    searches.truncate(MAX_SEARCHES);
    searches.retain(|s| s.len() <= MAX_SEARCH);
    while searches.join(" ").len() > MAX_SEARCH_LINE {
        searches.pop();
    }
    searches.len() != before
}

fn merge_options(mut options: Vec<String>, own: &[PodDNSConfigOption]) -> Vec<String> {
    // An option written as `name:` is sent as `name` once a pod's options are merged in.
    for option in &mut options {
        if option.ends_with(':') && option.matches(':').count() == 1 {
            option.pop();
        }
    }
    for option in own {
        let name = option.name.as_deref().unwrap_or_default();
        let text = match option.value.as_deref() {
            Some(value) if !value.is_empty() => format!("{name}:{value}"),
            _ => name.to_string(),
        };
        replace_option(&mut options, name, text);
    }
    options
}

fn replace_option(options: &mut Vec<String>, name: &str, text: String) {
    match options.iter_mut().find(|o| option_name(o) == name) {
        Some(old) => *old = text,
        None => options.push(text),
    }
}

fn option_name(option: &str) -> &str {
    option.split_once(':').map_or(option, |(name, _)| name)
}

fn unique(texts: Vec<String>) -> Vec<String> {
    let mut seen = std::collections::BTreeSet::new();
    texts.into_iter().filter(|t| seen.insert(t.clone())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::core::v1::{PodDNSConfig, PodSpec};

    const CLUSTER: [IpAddr; 1] = [IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 10))];

    fn host() -> ResolvConf {
        ResolvConf::parse(
            "# comment\nnameserver 1.1.1.1\nnameserver 2.2.2.2 # second\nsearch old\n\
             search a.example. b.example .\noptions ndots:1 rotate\noptions ndots:2\n; odd\n",
        )
        .unwrap()
    }

    fn pod(policy: &str, host_network: bool, own: Option<PodDNSConfig>) -> Pod {
        let spec = PodSpec {
            dns_policy: Some(policy.into()),
            host_network: Some(host_network),
            dns_config: own,
            ..PodSpec::default()
        };
        let mut pod = Pod { spec: Some(spec), ..Pod::default() };
        pod.metadata.name = Some("p".into());
        pod.metadata.namespace = Some("ns".into());
        pod.metadata.uid = Some("u".into());
        pod
    }

    fn input<'a>(host: Option<&'a ResolvConf>, cluster_dns: &'a [IpAddr]) -> DnsInput<'a> {
        DnsInput { host, cluster_dns, cluster_domain: "d", node_ips: &[] }
    }

    #[test]
    fn reads_the_last_search_line_and_merges_options() {
        let host = host();
        assert_eq!(host.servers, ["1.1.1.1", "2.2.2.2"]);
        assert_eq!(host.searches, ["a.example", "b.example"]);
        assert_eq!(host.options, ["ndots:2", "rotate"]);
        assert_eq!(ResolvConf::parse("nameserver"), Err(RequestError::ResolvConf));
    }

    #[test]
    fn cluster_policies_use_the_cluster_servers() {
        let host = host();
        for (policy, host_network) in
            [("ClusterFirst", false), ("ClusterFirstWithHostNet", true), ("odd", false)]
        {
            let (config, warnings) =
                pod_dns(&input(Some(&host), &CLUSTER), &pod(policy, host_network, None));
            assert_eq!(config.servers, ["10.0.0.10"], "{policy}");
            assert_eq!(config.searches, ["ns.svc.d", "svc.d", "d", "a.example", "b.example"]);
            assert_eq!(config.options, ["ndots:5"]);
            assert!(warnings.is_empty());
        }
    }

    #[test]
    fn host_policies_pass_the_hosts_file_on() {
        let host = host();
        for (policy, host_network) in [("Default", false), ("ClusterFirst", true)] {
            let (config, warnings) =
                pod_dns(&input(Some(&host), &CLUSTER), &pod(policy, host_network, None));
            assert_eq!(config.servers, host.servers, "{policy}");
            assert_eq!(config.options, host.options);
            assert!(warnings.is_empty());
        }
        let (config, _) = pod_dns(&input(None, &CLUSTER), &pod("Default", false, None));
        assert_eq!((config.servers, config.searches), (vec!["127.0.0.1".into()], vec![".".into()]));
    }

    #[test]
    fn falls_back_loudly_without_cluster_servers() {
        let host = host();
        let (config, warnings) =
            pod_dns(&input(Some(&host), &[]), &pod("ClusterFirst", false, None));
        assert_eq!(config.servers, host.servers);
        let [DnsWarning::MissingClusterDns { pod, .. }] = warnings.as_slice() else {
            panic!("{warnings:?}")
        };
        assert!(pod.starts_with("pod: \"p_ns(u)\". kubelet does not have ClusterDNS IP"));
    }

    #[test]
    fn a_pods_own_settings_are_added_and_cut() {
        let own = PodDNSConfig {
            nameservers: Some(vec![
                "9.9.9.9".into(),
                "1.1.1.1".into(),
                "8.8.8.8".into(),
                "7.7.7.7".into(),
            ]),
            searches: Some((0..40).map(|n| format!("s{n}")).collect()),
            options: Some(vec![
                PodDNSConfigOption { name: Some("ndots".into()), value: Some("7".into()) },
                PodDNSConfigOption { name: Some("edns0".into()), value: None },
            ]),
        };
        let (config, warnings) = pod_dns(&input(None, &[]), &pod("None", false, Some(own)));
        assert_eq!(config.servers, ["9.9.9.9", "1.1.1.1", "8.8.8.8"]);
        assert_eq!(config.searches.len(), 32);
        assert_eq!(config.options, ["ndots:7", "edns0"]);
        assert_eq!(warnings.len(), 2);
    }

    #[test]
    fn search_lines_never_exceed_what_resolvers_take() {
        let mut searches: Vec<String> =
            (0..20).map(|n| format!("{n}{}", "a".repeat(200))).collect();
        searches.push("b".repeat(254));
        assert!(fit_searches(&mut searches));
        assert!(searches.join(" ").len() <= MAX_SEARCH_LINE);
        assert_eq!(searches.len(), 10);
        assert!(!fit_searches(&mut searches));
    }
}
