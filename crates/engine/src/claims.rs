//! Dynamic resources: which claims a pod uses, which devices drivers prepared for them, which pods still need them.
//!
//! Owns: every decision about claims on this node (upstream: `cm/dra`: `Manager`, `claimInfoCache`, and the claim rules
//! of `dynamic-resource-allocation/resourceclaim`) and the form of their checkpoint.
//!
//! Deliberately absent: talking to drivers and the API server, files.

pub mod checkpoint;
pub mod health;
mod rules;
mod state;

pub use rules::{ClaimRules, PodClaim, check, claim_entry, container_requests, pod_claims};
pub use state::{ClaimKey, ClaimState, PreparedClaim, PreparedDevice, Unprepare};

/// Why claims cannot be used. Display is upstream's text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ClaimError {
    /// The claim of a template is not made yet.
    #[error("pod \"{namespace}/{pod}\": ResourceClaim not created yet")]
    NotCreated {
        /// Of the pod.
        namespace: String,
        /// Its name.
        pod: String,
    },
    /// The pod's entry names neither a claim nor a template.
    #[error(
        "pod \"{namespace}/{pod}\", spec.resourceClaim {claim:?}: none of the supported fields are set"
    )]
    Unsupported {
        /// Of the pod.
        namespace: String,
        /// Its name.
        pod: String,
        /// Name of the entry.
        claim: String,
    },
    /// A generated claim is not owned by the pod.
    #[error("ResourceClaim {namespace}/{claim} was not created for Pod {namespace}/{pod} ({why})")]
    NotOwner {
        /// Of both.
        namespace: String,
        /// The claim.
        claim: String,
        /// The pod.
        pod: String,
        /// Upstream's explanation.
        why: String,
    },
    /// The claim is not reserved for the pod.
    #[error("pod {pod} ({uid}) is not allowed to use ResourceClaim {claim} ({claim_uid})")]
    NotReserved {
        /// The pod.
        pod: String,
        /// Of the pod.
        uid: String,
        /// The claim.
        claim: String,
        /// Of the claim.
        claim_uid: String,
    },
    /// The claim is not allocated.
    #[error("ResourceClaim {0}: not allocated")]
    NotAllocated(String),
    /// An earlier claim of this name is still prepared, for a force-deleted pod.
    #[error(
        "old ResourceClaim with same name {claim} and different UID {uid} still exists (previous pod force-deleted?!)"
    )]
    OldClaim {
        /// The claim.
        claim: String,
        /// Of the one that is still there.
        uid: String,
    },
    /// A claim that should have been prepared is not known.
    #[error(
        "internal error: unable to get claim info for ResourceClaim {claim} in namespace {namespace}"
    )]
    Missing {
        /// The claim.
        claim: String,
        /// Its namespace.
        namespace: String,
    },
}

#[cfg(test)]
mod tests;
