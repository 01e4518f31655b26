//! The downward API: pod fields and container resources as text, for environment variables and
//! for volumes.
//!
//! Upstream: `pkg/fieldpath`, `pkg/api/v1/resource`, `podFieldSelectorRuntimeValue`,
//! `defaultPodLimitsForDownwardAPI`.

use super::RequestError;
use super::names::qualified_name_faults;
use super::resources::{milli, quantity, value, zero};
use api::core::v1::{Container, ObjectFieldSelector, Pod, ResourceFieldSelector};
use api::machinery::api::resource::Quantity;
use std::collections::BTreeMap;
use std::net::IpAddr;
use units::strconv::quote;

const DEFAULTED: [&str; 3] = ["cpu", "memory", "ephemeral-storage"];

/// The node's values that the downward API exposes.
#[derive(Debug, Clone, Copy)]
pub struct NodeFacts<'a> {
    /// The node's addresses; the first one's family comes first in `status.podIPs`.
    pub node_ips: &'a [IpAddr],
    /// `status.hostIPs` (addresses of the node object, or the ones found locally).
    pub host_ips: &'a [String],
    /// `status.allocatable` of the node.
    pub allocatable: &'a BTreeMap<String, Quantity>,
    /// Whether `spec.resources` of pods counts.
    pub pod_level_resources: bool,
}

/// The value of a `fieldRef` in a container's environment.
pub fn field_value(
    selector: &ObjectFieldSelector,
    pod: &Pod,
    pod_ips: &[String],
    node: &NodeFacts<'_>,
) -> Result<String, RequestError> {
    let version = selector.api_version.as_deref().unwrap_or_default();
    if version != "v1" {
        return Err(RequestError::FieldVersion(version.into()));
    }
    let path = selector.field_path.as_str();
    let spec = pod.spec.as_ref();
    let text = |field: Option<&String>| Ok(field.cloned().unwrap_or_default());
    match path {
        "spec.nodeName" | "spec.host" => text(spec.and_then(|s| s.node_name.as_ref())),
        "spec.serviceAccountName" => text(spec.and_then(|s| s.service_account_name.as_ref())),
        "status.hostIP" => node.host_ips.first().cloned().ok_or(RequestError::NoHostIp),
        "status.hostIPs" => match node.host_ips {
            [] => Err(RequestError::NoHostIp),
            ips => Ok(ips.join(",")),
        },
        "status.podIP" => {
            let sorted = sorted_pod_ips(pod_ips, node.node_ips);
            text(sorted.first().or_else(|| pod_ips.first()))
        }
        "status.podIPs" => Ok(sorted_pod_ips(pod_ips, node.node_ips).join(",")),
        _ => metadata_field(pod, path),
    }
}

/// The value of a metadata field (the only ones that volumes may use).
pub fn metadata_field(pod: &Pod, path: &str) -> Result<String, RequestError> {
    let meta = &pod.metadata;
    if let Some((map, key)) = subscript(path) {
        let (entries, faults) = match map {
            "metadata.annotations" => {
                (&meta.annotations, qualified_name_faults(&key.to_lowercase()))
            }
            "metadata.labels" => (&meta.labels, qualified_name_faults(key)),
            _ => return Err(RequestError::FieldSubscript(path.into())),
        };
        if !faults.is_empty() {
            return Err(RequestError::FieldKey { path: path.into(), faults: faults.join(";") });
        }
        return Ok(entries.as_ref().and_then(|m| m.get(key)).cloned().unwrap_or_default());
    }
    let empty = BTreeMap::new();
    match path {
        "metadata.annotations" => Ok(format_map(meta.annotations.as_ref().unwrap_or(&empty))),
        "metadata.labels" => Ok(format_map(meta.labels.as_ref().unwrap_or(&empty))),
        "metadata.name" => Ok(meta.name.clone().unwrap_or_default()),
        "metadata.namespace" => Ok(meta.namespace.clone().unwrap_or_default()),
        "metadata.uid" => Ok(meta.uid.clone().unwrap_or_default()),
        "spec.restartPolicy" | "spec.schedulerName" | "status.phase" => {
            Err(RequestError::FieldPath(path.into()))
        }
        _ => Err(RequestError::FieldLabel(path.into())),
    }
}

/// Labels or annotations as `key="value"` lines in key order.
pub fn format_map(map: &BTreeMap<String, String>) -> String {
    let lines: Vec<_> = map.iter().map(|(key, value)| format!("{key}={}", quote(value))).collect();
    lines.join("\n")
}

/// The value of a `resourceFieldRef`, with limits defaulted from the pod and the node.
///
/// `container` is the one whose environment is built; volumes, which must name a container, pass
/// `None`.
pub fn resource_value(
    selector: &ResourceFieldSelector,
    pod: &Pod,
    container: Option<&Container>,
    node: &NodeFacts<'_>,
) -> Result<String, RequestError> {
    let wanted = selector.container_name.as_deref().unwrap_or_default();
    let spec = pod.spec.as_ref();
    let named = |list: Option<&Vec<Container>>| {
        list.and_then(|l| l.iter().find(|c| c.name == wanted)).cloned()
    };
    // Init containers found by name keep their limits as written.
    let (found, defaulted) = match container {
        Some(container) if wanted.is_empty() => (Some(container.clone()), true),
        _ => match named(spec.map(|s| &s.containers)) {
            Some(container) => (Some(container), true),
            None => (named(spec.and_then(|s| s.init_containers.as_ref())), false),
        },
    };
    let found = found.ok_or_else(|| RequestError::ContainerName(wanted.into()))?;
    extract(selector, &found, |resource| {
        if !defaulted || !DEFAULTED.contains(&resource) {
            return None;
        }
        let allocatable = node.allocatable.get(resource)?;
        let pod_level = spec
            .filter(|_| node.pod_level_resources && resource != "ephemeral-storage")
            .and_then(|s| s.resources.as_ref()?.limits.as_ref()?.get(resource))
            .filter(|q| !zero(q));
        Some(pod_level.unwrap_or(allocatable).clone())
    })
}

fn extract(
    selector: &ResourceFieldSelector,
    container: &Container,
    default_limit: impl Fn(&str) -> Option<Quantity>,
) -> Result<String, RequestError> {
    let path = selector.resource.as_str();
    let resources = container.resources.as_ref();
    let unsupported = || RequestError::ContainerResource(path.into());
    let (amount, name) = if let Some(name) = path.strip_prefix("limits.") {
        let own = resources.and_then(|r| r.limits.as_ref()?.get(name)).filter(|q| !zero(q));
        (own.cloned().or_else(|| default_limit(name)), name)
    } else if let Some(name) = path.strip_prefix("requests.") {
        (resources.and_then(|r| r.requests.as_ref()?.get(name)).cloned(), name)
    } else {
        return Err(unsupported());
    };
    if !DEFAULTED.contains(&name) && !name.starts_with("hugepages-") {
        return Err(unsupported());
    }
    let amount = amount.unwrap_or_else(|| quantity("0"));
    let divisor = selector.divisor.clone().filter(|q| !zero(q)).unwrap_or_else(|| quantity("1"));
    let divided = if name == "cpu" {
        divide_up(milli(&amount), milli(&divisor))
    } else {
        divide_up(value(&amount), value(&divisor))
    };
    Ok(divided.to_string())
}

/// An amount in units of a divisor, rounded up. Upstream divides in floating point, so amounts above 2^53 lose their last
/// digits, and one above the largest int64 becomes the smallest (`convertResourceMemoryToString`).
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    reason = "upstream divides in floating point"
)]
pub(crate) fn divide_up(amount: i64, divisor: i64) -> i64 {
    let quotient = (amount as f64 / divisor.max(1) as f64).ceil();
    if quotient >= i64::MAX as f64 { i64::MIN } else { quotient as i64 }
}

/// At most one address per family, the node's family first.
pub fn sorted_pod_ips(pod_ips: &[String], node_ips: &[IpAddr]) -> Vec<String> {
    let v6_first = node_ips.first().is_some_and(IpAddr::is_ipv6);
    let parsed: Vec<IpAddr> = pod_ips.iter().filter_map(|ip| ip.parse().ok()).collect();
    let of = |v6: bool| parsed.iter().find(|ip| ip.is_ipv6() == v6).map(ToString::to_string);
    [of(v6_first), of(!v6_first)].into_iter().flatten().collect()
}

/// Splits `metadata.labels['key']`.
fn subscript(path: &str) -> Option<(&str, &str)> {
    let (map, key) = path.strip_suffix("']")?.split_once("['")?;
    (!map.is_empty()).then_some((map, key))
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::core::v1::{PodSpec, ResourceRequirements};

    fn node<'a>(
        allocatable: &'a BTreeMap<String, Quantity>,
        host_ips: &'a [String],
    ) -> NodeFacts<'a> {
        NodeFacts { node_ips: &[], host_ips, allocatable, pod_level_resources: true }
    }

    fn pod() -> Pod {
        let mut pod = Pod::default();
        pod.metadata.name = Some("p".into());
        pod.metadata.labels =
            Some([("b".into(), "x \"y\"".into()), ("a".into(), "1\n2".into())].into());
        pod.metadata.annotations = Some([("example.com/Key".into(), "v".into())].into());
        pod.spec = Some(PodSpec { node_name: Some("n".into()), ..PodSpec::default() });
        pod
    }

    fn field(path: &str) -> Result<String, RequestError> {
        let selector =
            ObjectFieldSelector { api_version: Some("v1".into()), field_path: path.into() };
        let (allocatable, host_ips) = (BTreeMap::new(), ["10.0.0.5".into(), "fd00::5".into()]);
        let ips = ["fd00::1".into(), "10.1.0.1".into(), "10.1.0.2".into()];
        field_value(&selector, &pod(), &ips, &node(&allocatable, &host_ips))
    }

    /// Expected values come from the Go code.
    #[test]
    fn amounts_are_divided_as_floating_point_does_it() {
        assert_eq!(divide_up(1501, 1000), 2);
        assert_eq!(divide_up(0, 3), 0);
        assert_eq!(divide_up((1 << 53) + 1, 1), 1 << 53);
        assert_eq!(divide_up(i64::MAX, 1), i64::MIN);
        assert_eq!(divide_up(i64::MAX, 1 << 20), 1 << 43);
    }

    #[test]
    fn fields_have_the_downward_apis_text() {
        for (path, want) in [
            ("metadata.name", "p"),
            ("metadata.labels", "a=\"1\\n2\"\nb=\"x \\\"y\\\"\""),
            ("metadata.labels['b']", "x \"y\""),
            ("metadata.annotations['example.com/Key']", "v"),
            ("metadata.annotations['none']", ""),
            ("spec.nodeName", "n"),
            ("spec.host", "n"),
            ("spec.serviceAccountName", ""),
            ("status.podIP", "10.1.0.1"),
            ("status.podIPs", "10.1.0.1,fd00::1"),
            ("status.hostIP", "10.0.0.5"),
            ("status.hostIPs", "10.0.0.5,fd00::5"),
        ] {
            assert_eq!(field(path).unwrap(), want, "{path}");
        }
    }

    #[test]
    fn unknown_fields_are_refused() {
        for (path, want) in [
            ("spec.containers", "field label not supported: spec.containers"),
            ("status.phase", "unsupported fieldPath: status.phase"),
            ("spec.x['a']", "field label does not support subscript: spec.x['a']"),
        ] {
            assert_eq!(field(path).unwrap_err().to_string(), want);
        }
    }

    #[test]
    fn resources_are_divided_and_rounded_up() {
        let container = Container {
            name: "c".into(),
            resources: Some(ResourceRequirements {
                limits: Some([("cpu".into(), quantity("1500m"))].into()),
                requests: Some([("memory".into(), quantity("100Mi"))].into()),
                ..ResourceRequirements::default()
            }),
            ..Container::default()
        };
        let mut pod = pod();
        let spec = pod.spec.as_mut().unwrap();
        spec.containers = vec![container.clone()];
        spec.init_containers = Some(vec![Container { name: "i".into(), ..Container::default() }]);
        let allocatable =
            [("memory".into(), quantity("1Gi")), ("cpu".into(), quantity("4"))].into();
        let node = node(&allocatable, &[]);
        for (name, resource, divisor, want) in [
            ("", "limits.cpu", "", "2"),
            ("", "limits.cpu", "1m", "1500"),
            ("", "limits.memory", "", "1073741824"),
            ("c", "limits.memory", "1Mi", "1024"),
            ("i", "limits.memory", "", "0"),
            ("", "limits.ephemeral-storage", "", "0"),
            ("", "requests.memory", "1Gi", "1"),
            ("", "requests.hugepages-2Mi", "", "0"),
        ] {
            let selector = ResourceFieldSelector {
                container_name: Some(name.into()),
                divisor: Some(quantity(if divisor.is_empty() { "0" } else { divisor })),
                resource: resource.into(),
            };
            let got = resource_value(&selector, &pod, Some(&container), &node);
            assert_eq!(got.as_deref(), Ok(want), "{name} {resource} {divisor}");
        }
        let selector =
            ResourceFieldSelector { resource: "limits.gpu".into(), ..Default::default() };
        assert!(resource_value(&selector, &pod, Some(&container), &node).is_err());
    }
}
