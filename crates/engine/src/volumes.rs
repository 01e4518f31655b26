//! Volume decisions: what a pod's volumes are, what must be mounted and unmounted, and what goes
//! into the files of content volumes.
//!
//! ```text
//!  per pod:   NotMounted ──Mount──▶ Mounted ──Unmount──▶ (gone)
//!                  │  ▲                │ remount failed: stays Mounted
//!     error, not   │  │ final error    │
//!     final        ▼  │                │ Unmount failed
//!               Uncertain ◀────────────┘      Uncertain is torn down before it is forgotten,
//!                                             and set up again while desired
//!  device:    the same, with MountDevice/UnmountDevice; unmounted after the last pod
//! ```
//!
//! Deliberately absent: paths on disk, API reads, clocks. Upstream's symbols for comparison:
//! `desired_state_of_world`, `actual_state_of_world`, `reconciler.go`.

mod affinity;
mod backoff;
mod certificate;
mod claims;
mod content;
mod expansion;
mod fields;
mod migration;
mod plan;
mod projects;
mod selinux;
mod sizes;
mod spec;
mod trust;
mod usage;
mod world;

pub use affinity::volume_fits_node;
pub use backoff::Backoffs;
pub use certificate::{CertificateEvent, CertificateStep, KeyPem, PodCertificate, Requested};
pub use claims::{ClaimError, check_claim, check_mode, check_volume, ephemeral_claim_name};
pub use content::{
    ContentError, FileContent, Payload, SourceError, check_payload, config_map_files,
    downward_files, insert_file, secret_files,
};
pub use expansion::{
    Expansion, Occasion, claim_size, expansion, failed_patch, finished_patch, in_progress_patch,
};
pub use fields::{AllocatableResources, field_value, resource_value};
pub use migration::{migrated_inline, migrated_persistent};
pub use plan::{Action, Plan, PlanView, plan};
pub use projects::{MOST_USED, ProjectId, Projects, ProjectsError, QuotaFilesystem, quota_size};
pub use selinux::{
    Labelling, LabelsDiffer, VolumeLabel, label_conflict, label_option, setting as selinux_setting,
    volume_label, widest_mode,
};
pub use sizes::{HugePageError, huge_page_option, memory_volume_size, pod_memory_limit};
pub use spec::{Plugin, SpecSource, VolumeSpec};
pub use trust::{TrustQuery, trust_anchors};
pub use usage::{VolumeUse, common_user, nested_mount_points, used_volumes};
pub use world::{
    Actual, ActualVolume, Desired, DesiredPod, DesiredVolume, DeviceState, MountState, OpKey,
    Outcome, PodMount, Want,
};

#[cfg(test)]
mod simulation;
