//! Image pulls as workers use them, so that a test can give them its own.

use crate::images::{EnsureImage, EnsuredImage, ImageFault, Images};
use async_trait::async_trait;

/// Where workers get images from.
#[async_trait]
pub trait ImageSource: Send + Sync + std::fmt::Debug {
    /// Makes sure that the image is there and the pod may use it. Dropping the wait does not break
    /// a pull that has begun.
    async fn ensure(&self, request: EnsureImage) -> Result<EnsuredImage, ImageFault>;
}

#[async_trait]
impl ImageSource for Images {
    async fn ensure(&self, request: EnsureImage) -> Result<EnsuredImage, ImageFault> {
        Self::ensure(self, request).await
    }
}
