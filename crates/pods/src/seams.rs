//! What workers are given from outside, so that a test can give them its own.

use crate::images::{EnsureImage, EnsuredImage, ImageFault, Images};
use async_trait::async_trait;
use std::time::Duration;

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

/// The machine's processors.
pub trait Processors: Send + Sync + std::fmt::Debug {
    /// How many there are.
    fn count(&self) -> usize;

    /// How long all of them together have idled, since whenever; `None` if that is not known.
    fn idle(&self) -> Option<Duration>;
}
