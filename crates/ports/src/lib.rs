//! The interfaces between subsystems.
//!
//! Owns: the traits through which one L2 crate uses another, and the snapshot types that they
//! publish on `watch` channels. `agent` connects an implementation to each user.
//!
//! Promises: nothing here decides or does I/O; a trait method that waits is cancel-safe and its
//! implementation bounds it by a deadline of its own.
//!
//! Deliberately absent: feature gates (they were resolved into the implementations' configs), any
//! Kubernetes client, any runtime client.
#![forbid(unsafe_code)]

mod cgroups;
mod claims;
mod clock;
mod events;
mod explain;
mod images;
mod node;
mod objects;
mod placement;
mod plugins;
mod pods;
mod reclaim;
mod reviews;
mod roots;
mod stats;
mod status;
mod storage;
mod tasks;
mod volumes;

pub use cgroups::{CgroupError, CgroupValues, PodCgroups};
pub use claims::ClaimApi;
pub use clock::{Clock, SystemClock};
pub use events::{EventSeverity, EventTarget, Events, NodeEvent};
pub use explain::{Explained, ExplainedPod, Explains, PastStep, Wait};
pub use images::{EnsureImage, EnsuredImage, ImageFault, ImageSource};
pub use node::{NodeView, NodeViews, PressureCondition};
pub use objects::{ObjectChange, ObjectError, ObjectKind, Objects, TokenRequest, TokenResponse};
pub use placement::{
    ActivePods, ContainerExtras, DeviceMapping, ExtraMount, NotPlaced, Placement, PlacementError,
    PlacementRejection,
};
pub use plugins::{PluginHandler, PluginInfo};
pub use pods::{
    KillRequest, PodChange, PodChangeKind, PodEntry, PodFeed, PodLife, PodSource, Pods,
    PodsSnapshot, ShownPod,
};
pub use reclaim::Reclaim;
pub use reviews::{AccessQuestion, ReviewTry, Reviewed, Reviews, UserInfo};
pub use roots::Roots;
pub use stats::{Pieces, Stats, StatsError, StatsScope, StorageLayout};
pub use status::{PodApi, PodApiError};
pub use storage::StorageApi;
pub use tasks::{OnExit, Panicked, TaskName, Tasks};
pub use volumes::{
    MountedVolume, PodMounts, SubPathRequest, VolumeError, VolumeFacts, VolumeUsage, VolumeUsages,
    Volumes,
};
