//! The host name of a pod, also for its `/etc/hosts`.
//!
//! Upstream: `Kubelet.GeneratePodHostNameAndDomain`, `util.GetNodenameForKernel`.

use super::RequestError;
use super::names::{label_faults, subdomain_faults};
use api::core::v1::Pod;
use api::pod::PodExt;

const HOSTNAME_MAX: usize = 63;
const FQDN_MAX: usize = 64;

/// A pod's short host name and its domain (empty without `spec.subdomain`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodHostname {
    /// The short name.
    pub name: String,
    /// `<subdomain>.<namespace>.svc.<cluster domain>`, or empty.
    pub domain: String,
}

/// Whether `spec.hostnameOverride` is honoured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostnameOverride {
    /// It replaces every other rule.
    Honoured,
    /// It is ignored.
    Ignored,
}

/// The pod's host name and domain.
pub fn pod_hostname(
    pod: &Pod,
    cluster_domain: &str,
    hostname_override: HostnameOverride,
) -> Result<PodHostname, RequestError> {
    let pod_name = pod.name_str();
    let spec = pod.spec.as_ref();
    let wanted = spec.and_then(|s| s.hostname_override.as_deref());
    if let (HostnameOverride::Honoured, Some(name)) = (hostname_override, wanted) {
        let faults = subdomain_faults(name);
        if !faults.is_empty() {
            return Err(RequestError::HostnameOverride {
                name: name.into(),
                faults: faults.join(";"),
            });
        }
        return Ok(PodHostname { name: cut(pod_name, name)?, domain: String::new() });
    }
    let name = match spec.and_then(|s| s.hostname.as_deref()).filter(|h| !h.is_empty()) {
        None => pod_name,
        Some(name) => {
            let faults = label_faults(name);
            if !faults.is_empty() {
                return Err(RequestError::Hostname { name: name.into(), faults: faults.join(";") });
            }
            name
        }
    };
    let name = cut(pod_name, name)?;
    let domain = match spec.and_then(|s| s.subdomain.as_deref()).filter(|s| !s.is_empty()) {
        None => String::new(),
        Some(subdomain) => {
            let faults = label_faults(subdomain);
            if !faults.is_empty() {
                return Err(RequestError::Subdomain {
                    name: subdomain.into(),
                    faults: faults.join(";"),
                });
            }
            let namespace = pod.namespace_str();
            format!("{subdomain}.{namespace}.svc.{cluster_domain}")
        }
    };
    Ok(PodHostname { name, domain })
}

/// The name given to the kernel: the short one, or with `setHostnameAsFQDN` the long one.
pub fn kernel_hostname(pod: &Pod, hostname: &PodHostname) -> Result<String, RequestError> {
    let as_fqdn = pod.spec.as_ref().and_then(|s| s.set_hostname_as_fqdn).unwrap_or(false);
    if !as_fqdn || hostname.domain.is_empty() {
        return Ok(hostname.name.clone());
    }
    let fqdn = format!("{}.{}", hostname.name, hostname.domain);
    if fqdn.len() > FQDN_MAX {
        return Err(RequestError::FqdnTooLong { fqdn });
    }
    Ok(fqdn)
}

fn cut(pod_name: &str, hostname: &str) -> Result<String, RequestError> {
    if hostname.len() <= HOSTNAME_MAX {
        return Ok(hostname.into());
    }
    let short = hostname.get(..HOSTNAME_MAX).unwrap_or_default().trim_end_matches(['-', '.']);
    if short.is_empty() {
        return Err(RequestError::EmptyHostname {
            pod: pod_name.into(),
            hostname: hostname.into(),
        });
    }
    Ok(short.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::core::v1::PodSpec;

    fn pod(name: &str, spec: PodSpec) -> Pod {
        let mut pod = Pod { spec: Some(spec), ..Pod::default() };
        pod.metadata.name = Some(name.into());
        pod.metadata.namespace = Some("ns".into());
        pod
    }

    fn kernel(pod: &Pod) -> Result<String, RequestError> {
        kernel_hostname(pod, &pod_hostname(pod, "cluster.local", HostnameOverride::Honoured)?)
    }

    #[test]
    fn takes_the_pods_name_cut_to_what_the_kernel_allows() {
        assert_eq!(kernel(&pod("web", PodSpec::default())).unwrap(), "web");
        let long = format!("{}-.tail", "a".repeat(61));
        assert_eq!(kernel(&pod(&long, PodSpec::default())).unwrap(), "a".repeat(61));
    }

    #[test]
    fn hostname_and_subdomain_make_the_full_name_only_on_request() {
        let mut spec = PodSpec {
            hostname: Some("h".into()),
            subdomain: Some("sub".into()),
            ..PodSpec::default()
        };
        assert_eq!(kernel(&pod("web", spec.clone())).unwrap(), "h");
        spec.set_hostname_as_fqdn = Some(true);
        assert_eq!(kernel(&pod("web", spec.clone())).unwrap(), "h.sub.ns.svc.cluster.local");
        spec.hostname = Some("h".repeat(50));
        let text = kernel(&pod("web", spec)).unwrap_err().to_string();
        assert!(
            text.ends_with("is too long (64 characters is the max, 75 characters requested)"),
            "{text}"
        );
    }

    #[test]
    fn an_override_wins_and_has_no_domain() {
        let spec = PodSpec {
            hostname_override: Some("a.b.c".into()),
            subdomain: Some("sub".into()),
            set_hostname_as_fqdn: Some(true),
            ..PodSpec::default()
        };
        assert_eq!(kernel(&pod("web", spec)).unwrap(), "a.b.c");
    }

    #[test]
    fn bad_names_are_refused_with_the_rule() {
        let spec = PodSpec { hostname: Some("A".into()), ..PodSpec::default() };
        let text = kernel(&pod("web", spec)).unwrap_err().to_string();
        assert!(text.starts_with("pod Hostname \"A\" is not a valid DNS label: a lowercase RFC"));
    }
}
