//! Sizes of memory-backed volumes.

use api::core::v1::{Pod, ResourceRequirements};
use api::machinery::api::resource::Quantity as ApiQuantity;
use api::pod::ContainerExt;
use std::collections::{BTreeMap, BTreeSet};
use std::str::FromStr;
use units::Quantity;

type Resources = BTreeMap<String, ApiQuantity>;

fn bytes(list: Option<&Resources>, name: &str) -> Option<i64> {
    let value = Quantity::from_str(&list?.get(name)?.0).ok()?.value();
    (value > 0).then_some(value)
}

fn limit(resources: Option<&ResourceRequirements>) -> Option<i64> {
    bytes(resources.and_then(|r| r.limits.as_ref()), "memory")
}

/// The pod's memory limit as its cgroup has it; `None` if it has none.
pub fn pod_memory_limit(pod: &Pod) -> Option<i64> {
    let spec = pod.spec.as_ref()?;
    let overhead = bytes(spec.overhead.as_ref(), "memory").unwrap_or_default();
    if let Some(pod_level) = limit(spec.resources.as_ref()) {
        return Some(pod_level.saturating_add(overhead));
    }
    let mut total: i64 = 0;
    for container in &spec.containers {
        total = total.saturating_add(limit(container.resources.as_ref())?);
    }
    let mut sidecars: i64 = 0;
    let mut init_peak: i64 = 0;
    for container in spec.init_containers.iter().flatten() {
        let own = limit(container.resources.as_ref())?;
        if container.is_sidecar() {
            sidecars = sidecars.saturating_add(own);
            init_peak = init_peak.max(sidecars);
        } else {
            init_peak = init_peak.max(sidecars.saturating_add(own));
        }
    }
    Some(total.saturating_add(sidecars).max(init_peak).saturating_add(overhead))
}

/// The size of a memory volume: the least of the node's allocatable memory, the pod's limit and
/// the volume's own limit. Zero means that nothing is known.
pub fn memory_volume_size(pod: &Pod, allocatable: i64, size_limit: Option<&ApiQuantity>) -> i64 {
    let own = size_limit.and_then(|q| Quantity::from_str(&q.0).ok()).map(Quantity::value);
    [pod_memory_limit(pod), own]
        .into_iter()
        .flatten()
        .filter(|limit| *limit > 0)
        .fold(allocatable, |size, limit| if size == 0 { limit } else { size.min(limit) })
}

/// Why a huge-page volume cannot be made. Display is upstream's text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HugePageError {
    /// Nothing requests huge pages of this size.
    #[error(
        "medium {0}: hugePages storage requested, but there is no resource request for huge pages"
    )]
    NotRequested(String),
    /// The generic medium cannot choose.
    #[error("medium: {0} can't be used if container requests multiple huge page sizes")]
    SeveralSizes(String),
    /// The medium names no size.
    #[error("medium: {0} doesn't have a valid huge page size")]
    BadMedium(String),
}

/// The `pagesize=` option of a huge-page medium (`HugePages` or `HugePages-<size>`).
pub fn huge_page_option(pod: &Pod, medium: &str) -> Result<String, HugePageError> {
    const RESOURCE: &str = "hugepages-";
    let wanted = match medium.strip_prefix("HugePages") {
        Some("") => None,
        Some(rest) => Some(
            rest.strip_prefix('-')
                .and_then(|size| Quantity::from_str(size).ok())
                .ok_or_else(|| HugePageError::BadMedium(medium.to_owned()))?,
        ),
        None => return Err(HugePageError::BadMedium(medium.to_owned())),
    };
    let mut sizes: BTreeSet<i64> = BTreeSet::new();
    let mut shown: BTreeMap<i64, Quantity> = BTreeMap::new();
    if let Some(spec) = pod.spec.as_ref() {
        let containers = spec.containers.iter().chain(spec.init_containers.iter().flatten());
        let lists = spec
            .resources
            .iter()
            .chain(containers.filter_map(|c| c.resources.as_ref()))
            .filter_map(|r| r.requests.as_ref());
        for name in lists.flat_map(|l| l.keys()) {
            let size = name.strip_prefix(RESOURCE).and_then(|s| Quantity::from_str(s).ok());
            if let Some(size) = size {
                sizes.insert(size.value());
                shown.insert(size.value(), size);
            }
        }
    }
    let chosen = match wanted {
        Some(size) => sizes.contains(&size.value()).then_some(size),
        None if sizes.len() > 1 => return Err(HugePageError::SeveralSizes(medium.to_owned())),
        None => shown.into_values().next(),
    };
    chosen
        .map(|size| format!("pagesize={}", size.to_string().trim_end_matches('i')))
        .ok_or_else(|| HugePageError::NotRequested(medium.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(spec: serde_json::Value) -> Pod {
        serde_json::from_value(json!({"metadata": {}, "spec": spec})).unwrap()
    }

    #[test]
    fn memory_volumes_take_the_least_limit() {
        let limited = pod(json!({"containers": [
            {"name": "a", "resources": {"limits": {"memory": "10Mi"}}},
            {"name": "b", "resources": {"limits": {"memory": "20Mi"}}}]}));
        let open = pod(json!({"containers": [
            {"name": "a", "resources": {"limits": {"memory": "10Mi"}}}, {"name": "b"}]}));
        let mi = 1 << 20;
        let own = ApiQuantity("5Mi".into());
        assert_eq!(memory_volume_size(&limited, 100 * mi, None), 30 * mi);
        assert_eq!(memory_volume_size(&limited, 100 * mi, Some(&own)), 5 * mi);
        assert_eq!(memory_volume_size(&open, 100 * mi, None), 100 * mi);
        assert_eq!(memory_volume_size(&open, 0, Some(&own)), 5 * mi);
    }

    #[test]
    fn the_generic_huge_page_medium_needs_exactly_one_size() {
        let one = pod(json!({"containers": [
            {"name": "a", "resources": {"requests": {"hugepages-2Mi": "4Mi"}}}]}));
        let two = pod(json!({"containers": [
            {"name": "a", "resources": {"requests":
                {"hugepages-2Mi": "4Mi", "hugepages-1Gi": "1Gi"}}}]}));
        assert_eq!(huge_page_option(&one, "HugePages").unwrap(), "pagesize=2M");
        assert_eq!(huge_page_option(&two, "HugePages-1Gi").unwrap(), "pagesize=1G");
        assert_eq!(
            huge_page_option(&two, "HugePages").unwrap_err().to_string(),
            "medium: HugePages can't be used if container requests multiple huge page sizes"
        );
        assert_eq!(
            huge_page_option(&pod(json!({"containers": []})), "HugePages").unwrap_err().to_string(),
            "medium HugePages: hugePages storage requested, but there is no resource request for huge pages"
        );
    }
}
