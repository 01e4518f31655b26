//! Values of a pod's own fields, as downward API files show them.

use super::content::SourceError;
use crate::request::downward::divide_up;
use api::core::v1::{Container, Pod, ResourceFieldSelector};
use api::machinery::api::resource::Quantity as ApiQuantity;
use std::collections::BTreeMap;
use std::str::FromStr;
use units::Quantity;

/// The node's allocatable resources, used where a container sets no limit.
pub type AllocatableResources = BTreeMap<String, ApiQuantity>;

/// The value of a `fieldRef` (upstream: `ExtractFieldPathAsString`).
pub fn field_value(pod: &Pod, path: &str) -> Result<String, SourceError> {
    let meta = &pod.metadata;
    if let Some((base, key)) = subscripted(path) {
        let map = match base {
            "metadata.annotations" => meta.annotations.as_ref(),
            "metadata.labels" => meta.labels.as_ref(),
            _ => return Err(SourceError::Subscript(path.to_owned())),
        };
        return Ok(map.and_then(|m| m.get(key)).cloned().unwrap_or_default());
    }
    match path {
        "metadata.annotations" => Ok(format_map(meta.annotations.as_ref())),
        "metadata.labels" => Ok(format_map(meta.labels.as_ref())),
        "metadata.name" => Ok(meta.name.clone().unwrap_or_default()),
        "metadata.namespace" => Ok(meta.namespace.clone().unwrap_or_default()),
        "metadata.uid" => Ok(meta.uid.clone().unwrap_or_default()),
        _ => Err(SourceError::FieldPath(path.to_owned())),
    }
}

fn subscripted(path: &str) -> Option<(&str, &str)> {
    let (base, key) = path.strip_suffix("']")?.split_once("['")?;
    (!base.is_empty()).then_some((base, key))
}

fn format_map(map: Option<&BTreeMap<String, String>>) -> String {
    let lines: Vec<String> = map
        .into_iter()
        .flatten()
        .map(|(key, value)| format!("{key}={}", units::strconv::quote(value)))
        .collect();
    lines.join("\n")
}

/// The value of a `resourceFieldRef` (upstream: `ExtractContainerResourceValue` with the node's
/// allocatable resources in place of missing limits).
pub fn resource_value(
    pod: &Pod,
    selector: &ResourceFieldSelector,
    allocatable: &AllocatableResources,
) -> Result<String, SourceError> {
    let name = selector.container_name.as_deref().unwrap_or_default();
    let container =
        find_container(pod, name).ok_or_else(|| SourceError::NoContainer(name.to_owned()))?;
    let (list, resource) = selector
        .resource
        .split_once('.')
        .filter(|(_, resource)| {
            matches!(*resource, "cpu" | "memory" | "ephemeral-storage")
                || resource.starts_with("hugepages-")
        })
        .ok_or_else(|| SourceError::Resource(selector.resource.clone()))?;
    let resources = container.resources.as_ref();
    let own = match list {
        "limits" => resources.and_then(|r| r.limits.as_ref()),
        "requests" => resources.and_then(|r| r.requests.as_ref()),
        _ => return Err(SourceError::Resource(selector.resource.clone())),
    };
    let set = own.and_then(|l| l.get(resource)).map(quantity).filter(|q| !q.is_zero());
    let value = match set {
        Some(value) => value,
        None if list == "limits" && !resource.starts_with("hugepages-") => {
            allocatable.get(resource).map(quantity).unwrap_or(Quantity::ZERO)
        }
        None => Quantity::ZERO,
    };
    let divisor = selector.divisor.as_ref().map(quantity).filter(|q| !q.is_zero());
    Ok(divide(resource, value, divisor).to_string())
}

fn divide(resource: &str, value: Quantity, divisor: Option<Quantity>) -> i64 {
    // CPU is divided in thousandths, the rest in whole units.
    let in_units = |q: Quantity| if resource == "cpu" { q.milli_value() } else { q.value() };
    let by = match divisor {
        Some(divisor) => in_units(divisor),
        None if resource == "cpu" => 1000,
        None => 1,
    };
    divide_up(in_units(value), by)
}

fn find_container<'a>(pod: &'a Pod, name: &str) -> Option<&'a Container> {
    let spec = pod.spec.as_ref()?;
    spec.containers
        .iter()
        .chain(spec.init_containers.iter().flatten())
        .find(|container| container.name == name)
}

fn quantity(text: &ApiQuantity) -> Quantity {
    Quantity::from_str(&text.0).unwrap_or(Quantity::ZERO)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod() -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": "p", "namespace": "n", "uid": "u",
                "labels": {"b": "two\n", "a": "\"one\""}, "annotations": {"k": "v"}},
            "spec": {"containers": [{"name": "c", "resources": {
                "limits": {"cpu": "1500m", "hugepages-2Mi": "4Mi"},
                "requests": {"memory": "100Mi"}}}]}
        }))
        .unwrap()
    }

    #[test]
    fn maps_are_sorted_quoted_lines_without_a_final_newline() {
        let pod = pod();
        assert_eq!(
            field_value(&pod, "metadata.labels").unwrap(),
            "a=\"\\\"one\\\"\"\nb=\"two\\n\""
        );
        assert_eq!(field_value(&pod, "metadata.annotations['k']").unwrap(), "v");
        assert_eq!(field_value(&pod, "metadata.labels['none']").unwrap(), "");
        assert_eq!(field_value(&pod, "metadata.uid").unwrap(), "u");
        assert_eq!(
            field_value(&pod, "status.podIP").unwrap_err().to_string(),
            "unsupported fieldPath: status.podIP"
        );
    }

    #[test]
    fn resources_are_divided_rounding_up_and_fall_back_to_the_node() {
        let of_node = [("memory", "3Gi"), ("ephemeral-storage", "9007199254740993")];
        let allocatable: AllocatableResources =
            of_node.map(|(name, amount)| (name.to_owned(), ApiQuantity(amount.into()))).into();
        let cases = [
            ("limits.cpu", None, "2"),
            ("limits.cpu", Some("1m"), "1500"),
            ("limits.memory", Some("1Mi"), "3072"),
            ("requests.memory", Some("1Mi"), "100"),
            ("requests.cpu", None, "0"),
            ("limits.ephemeral-storage", None, "9007199254740992"),
            ("limits.hugepages-2Mi", Some("1Mi"), "4"),
        ];
        for (resource, divisor, expected) in cases {
            let selector = ResourceFieldSelector {
                container_name: Some("c".into()),
                resource: resource.into(),
                divisor: divisor.map(|d| ApiQuantity(d.into())),
            };
            assert_eq!(resource_value(&pod(), &selector, &allocatable).unwrap(), expected);
        }
    }
}
