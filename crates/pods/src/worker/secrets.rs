//! The pod's pull secrets.

use super::PodWorker;
use api::core::v1::Pod;
use api::pod::PodExt;
use std::sync::Arc;

impl PodWorker {
    /// Reads the pull secrets for the images of this sync; those that are missing are told, whether or not an
    /// image will be pulled (`kubelet: getPullSecretsForPod`).
    pub(super) async fn read_pull_secrets(&mut self, pod: &Arc<Pod>) {
        self.pull_secrets.clear();
        let namespace = pod.namespace_str();
        let references = pod.spec.as_ref().and_then(|s| s.image_pull_secrets.as_ref());
        let mut missing = Vec::new();
        for reference in references.into_iter().flatten().filter(|r| !r.name.is_empty()) {
            match self.shared.objects.secret(namespace, &reference.name).await {
                Ok(secret) => self.pull_secrets.push(secret),
                Err(error) => {
                    tracing::info!(secret = %reference.name, err = %error, "pull secret is missing");
                    missing.push(reference.name.as_str());
                }
            }
        }
        if !missing.is_empty() {
            let message = format!(
                "Unable to retrieve some image pull secrets ({}); attempting to pull the image may \
                 not succeed.",
                missing.join(", ")
            );
            self.warn(pod, "FailedToRetrieveImagePullSecret", message);
        }
    }
}
