//! What one asks of a pod: who it is, where it comes from, whether it is over.
//!
//! Owns: the annotations by which the kubelet marks pods, and one answer to each of these questions for
//! every crate.
//!
//! Does not: decide anything. What follows from an answer is `engine`'s.

use crate::core::v1::{Container, Pod, PodStatus};
use crate::ids::PodUid;

/// Which source a pod came from: `api`, `file` or `http`.
pub const SOURCE_ANNOTATION: &str = "kubernetes.io/config.source";
/// When a source first gave the pod.
pub const SEEN_ANNOTATION: &str = "kubernetes.io/config.seen";
/// Marks a mirror pod; its value is the hash of the static pod it shows.
pub const MIRROR_ANNOTATION: &str = "kubernetes.io/config.mirror";
/// The hash of a static pod.
pub const HASH_ANNOTATION: &str = "kubernetes.io/config.hash";

/// Questions about a pod.
pub trait PodExt {
    /// The UID; empty where the object has none.
    fn uid(&self) -> PodUid;
    /// The UID as text.
    fn uid_str(&self) -> &str;
    /// The name; empty where the object has none.
    fn name_str(&self) -> &str;
    /// The namespace; empty where the object has none.
    fn namespace_str(&self) -> &str;
    /// `name_namespace`, which joins a static pod and its mirror.
    fn full_name(&self) -> String;
    /// `namespace/name`.
    fn key(&self) -> String;
    /// `name_namespace(uid)`, as messages name a pod (`kubelet: format.Pod`).
    fn display_name(&self) -> String;
    /// An annotation.
    fn annotation(&self, key: &str) -> Option<&str>;
    /// It came from a file or URL.
    fn is_static(&self) -> bool;
    /// It is the API's image of a static pod.
    fn is_mirror(&self) -> bool;
    /// The phase that the object itself says.
    fn phase(&self) -> Option<&str>;
    /// The object itself says that it succeeded or failed.
    fn is_terminal(&self) -> bool;
    /// All init containers, then all regular ones.
    fn all_containers(&self) -> impl Iterator<Item = &Container>;
    /// The init containers.
    fn init_containers(&self) -> impl Iterator<Item = &Container>;
    /// The regular containers.
    fn regular_containers(&self) -> impl Iterator<Item = &Container>;
}

impl PodExt for Pod {
    fn uid(&self) -> PodUid {
        PodUid::from(self.uid_str())
    }

    fn uid_str(&self) -> &str {
        self.metadata.uid.as_deref().unwrap_or_default()
    }

    fn name_str(&self) -> &str {
        self.metadata.name.as_deref().unwrap_or_default()
    }

    fn namespace_str(&self) -> &str {
        self.metadata.namespace.as_deref().unwrap_or_default()
    }

    fn full_name(&self) -> String {
        format!("{}_{}", self.name_str(), self.namespace_str())
    }

    fn key(&self) -> String {
        format!("{}/{}", self.namespace_str(), self.name_str())
    }

    fn display_name(&self) -> String {
        format!("{}_{}({})", self.name_str(), self.namespace_str(), self.uid_str())
    }

    fn annotation(&self, key: &str) -> Option<&str> {
        self.metadata.annotations.as_ref()?.get(key).map(String::as_str)
    }

    fn is_static(&self) -> bool {
        self.annotation(SOURCE_ANNOTATION).is_some_and(|source| source != "api")
    }

    fn is_mirror(&self) -> bool {
        self.annotation(MIRROR_ANNOTATION).is_some()
    }

    fn phase(&self) -> Option<&str> {
        self.status.as_ref()?.phase.as_deref()
    }

    fn is_terminal(&self) -> bool {
        is_terminal_phase(self.phase())
    }

    fn all_containers(&self) -> impl Iterator<Item = &Container> {
        self.init_containers().chain(self.regular_containers())
    }

    fn init_containers(&self) -> impl Iterator<Item = &Container> {
        self.spec.iter().flat_map(|spec| spec.init_containers.iter().flatten())
    }

    fn regular_containers(&self) -> impl Iterator<Item = &Container> {
        self.spec.iter().flat_map(|spec| &spec.containers)
    }
}

/// Questions about a pod's status.
pub trait PodStatusExt {
    /// The phase is final: the pod succeeded or failed.
    fn is_terminal(&self) -> bool;
}

impl PodStatusExt for PodStatus {
    fn is_terminal(&self) -> bool {
        is_terminal_phase(self.phase.as_deref())
    }
}

/// Whether a phase is final.
pub fn is_terminal_phase(phase: Option<&str>) -> bool {
    matches!(phase, Some("Failed" | "Succeeded"))
}

/// Questions about a container of a pod.
pub trait ContainerExt {
    /// An init container that is restarted always runs beside the regular ones.
    fn is_sidecar(&self) -> bool;
}

impl ContainerExt for Container {
    fn is_sidecar(&self) -> bool {
        self.restart_policy.as_deref() == Some("Always")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(annotations: &[(&str, &str)]) -> Pod {
        let mut pod = Pod::default();
        pod.metadata.name = Some("web".to_owned());
        pod.metadata.namespace = Some("shop".to_owned());
        pod.metadata.uid = Some("1-2".to_owned());
        let own = annotations.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        pod.metadata.annotations = Some(own.collect());
        pod
    }

    #[test]
    fn a_pod_is_named() {
        let pod = pod(&[]);
        assert_eq!(pod.uid(), PodUid::from("1-2"));
        assert_eq!(pod.full_name(), "web_shop");
        assert_eq!(pod.key(), "shop/web");
        assert_eq!(pod.display_name(), "web_shop(1-2)");
        assert_eq!(Pod::default().full_name(), "_");
    }

    #[test]
    fn only_a_source_other_than_the_api_makes_a_pod_static() {
        assert!(!pod(&[]).is_static());
        assert!(!pod(&[(SOURCE_ANNOTATION, "api")]).is_static());
        assert!(pod(&[(SOURCE_ANNOTATION, "file")]).is_static());
        assert!(pod(&[(SOURCE_ANNOTATION, "http")]).is_static());
        assert!(pod(&[(MIRROR_ANNOTATION, "")]).is_mirror());
        assert!(!pod(&[]).is_mirror());
    }

    #[test]
    fn two_phases_are_final() {
        for (phase, terminal) in [
            ("Pending", false),
            ("Running", false),
            ("Unknown", false),
            ("Succeeded", true),
            ("Failed", true),
        ] {
            let mut pod = pod(&[]);
            let status = PodStatus { phase: Some(phase.to_owned()), ..PodStatus::default() };
            assert_eq!(status.is_terminal(), terminal, "{phase}");
            pod.status = Some(status);
            assert_eq!(pod.is_terminal(), terminal, "{phase}");
        }
        assert!(!pod(&[]).is_terminal());
    }
}
