//! Taints and tolerations.

use api::core::v1::{Node, Pod, Taint, Toleration};

/// Whether the pod tolerates a taint. `compare` allows the operators Lt and Gt.
pub fn tolerates(pod: &Pod, taint: &Taint, compare: bool) -> bool {
    let tolerations = pod.spec.as_ref().and_then(|s| s.tolerations.as_ref());
    tolerations.into_iter().flatten().any(|t| matches(t, taint, compare))
}

/// Whether the node has a NoExecute taint that the pod does not tolerate.
pub fn untolerated(pod: &Pod, node: &Node, compare: bool) -> bool {
    let taints = node.spec.as_ref().and_then(|s| s.taints.as_ref());
    taints
        .into_iter()
        .flatten()
        .filter(|taint| taint.effect == "NoExecute")
        .any(|taint| !tolerates(pod, taint, compare))
}

fn matches(toleration: &Toleration, taint: &Taint, compare: bool) -> bool {
    let set = |text: &Option<String>| text.clone().filter(|t| !t.is_empty());
    if set(&toleration.effect).is_some_and(|effect| effect != taint.effect)
        || set(&toleration.key).is_some_and(|key| key != taint.key)
    {
        return false;
    }
    let own = toleration.value.as_deref().unwrap_or_default();
    let theirs = taint.value.as_deref().unwrap_or_default();
    let numbers = || own.parse::<i64>().ok().zip(theirs.parse::<i64>().ok());
    match toleration.operator.as_deref().unwrap_or_default() {
        "" | "Equal" => own == theirs,
        "Exists" => true,
        "Lt" if compare => numbers().is_some_and(|(own, theirs)| theirs < own),
        "Gt" if compare => numbers().is_some_and(|(own, theirs)| theirs > own),
        _ => false,
    }
}
