//! Whether a running container still is what its spec says.
//!
//! Promises: the hash is the Go kubelet's (`units::container_hash`), and a container is never restarted because
//! another version hashed it in another way: where the runtime remembers the image that was asked for, that image
//! decides.

use crate::runtime::ContainerView;
use api::core::v1::Container;

/// The value of the annotation `io.kubernetes.container.hash` for a container: name and image count.
pub fn container_hash(container: &Container) -> u64 {
    let image = container.image.as_deref().unwrap_or_default();
    u64::from(units::container_hash(&container.name, image))
}

/// Whether the spec asks for another container than the one that runs.
pub fn definition_changed(container: &Container, view: &ContainerView) -> bool {
    if view.hash == container_hash(container) {
        return false;
    }
    let wanted = container.image.as_deref().unwrap_or_default();
    view.user_image.as_deref().is_none_or(|running| running.is_empty() || running != wanted)
}
