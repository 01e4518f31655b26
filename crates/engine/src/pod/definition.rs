//! Whether a running container still matches its spec.
//!
//! Promises: the hash is the Go kubelet's (`units::container_hash`), and a container is never restarted because
//! another version hashed it differently: if the runtime reports the requested image, that image decides.

use crate::runtime::ContainerView;
use api::core::v1::Container;

/// The value of the annotation `io.kubernetes.container.hash` for a container: name and image count.
pub fn container_hash(container: &Container) -> u64 {
    let image = container.image.as_deref().unwrap_or_default();
    u64::from(units::container_hash(&container.name, image))
}

/// Whether the spec differs from the running container.
pub fn definition_changed(container: &Container, view: &ContainerView) -> bool {
    if view.hash == container_hash(container) {
        return false;
    }
    let wanted = container.image.as_deref().unwrap_or_default();
    view.user_image.as_deref().is_none_or(|running| running.is_empty() || running != wanted)
}
