//! Whether a claim may be used by a pod, in upstream's words.

use super::usage::VolumeUse;
use api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use api::pod::PodExt;

/// Why a claim cannot be used (yet). Display is what the pod's error set shows.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ClaimError {
    /// The claim is being deleted and nothing protects it.
    #[error("PVC is being deleted")]
    Deleting,
    /// It is not bound to a volume yet.
    #[error("PVC is not bound")]
    NotBound,
    /// Bound, but without a volume name.
    #[error("PVC has empty pvc.Spec.VolumeName")]
    NoVolumeName,
    /// The volume has no claim reference.
    #[error(
        "found PV object {0} but it has a nil pv.Spec.ClaimRef indicating it is not yet bound to the claim"
    )]
    NoClaimRef(String),
    /// The volume belongs to another claim.
    #[error(
        "found PV object {volume} but its pv.Spec.ClaimRef.UID {found} does not point to claim.UID {wanted}"
    )]
    OtherClaim {
        /// The volume's name.
        volume: String,
        /// UID in the volume's claim reference.
        found: String,
        /// The claim's UID.
        wanted: String,
    },
    /// An ephemeral volume's claim is not owned by the pod.
    #[error("PVC {namespace}/{claim} was not created for pod {namespace}/{pod} (pod is not owner)")]
    NotOwner {
        /// Namespace of both.
        namespace: String,
        /// The claim.
        claim: String,
        /// The pod.
        pod: String,
    },
    /// A block volume is mounted.
    #[error("volume {0} has volumeMode Block, but is specified in volumeMounts")]
    BlockMounted(String),
    /// A filesystem volume is used as a device.
    #[error("volume {0} has volumeMode Filesystem, but is specified in volumeDevices")]
    FilesystemAsDevice(String),
}

const PROTECTION: &str = "kubernetes.io/pvc-protection";

/// The name of the claim behind an ephemeral volume.
pub fn ephemeral_claim_name(pod: &Pod, volume: &str) -> String {
    format!("{}-{volume}", pod.name_str())
}

/// Checks the claim; `owner` is set for an ephemeral volume. Returns the bound volume's name.
pub fn check_claim<'a>(
    claim: &'a PersistentVolumeClaim,
    owner: Option<&Pod>,
) -> Result<&'a str, ClaimError> {
    let protected = claim.metadata.finalizers.iter().flatten().any(|f| f == PROTECTION);
    if claim.metadata.deletion_timestamp.is_some() && !protected {
        return Err(ClaimError::Deleting);
    }
    let phase = claim.status.as_ref().and_then(|s| s.phase.as_deref());
    if phase != Some("Bound") {
        return Err(ClaimError::NotBound);
    }
    let volume = claim
        .spec
        .as_ref()
        .and_then(|s| s.volume_name.as_deref())
        .filter(|name| !name.is_empty())
        .ok_or(ClaimError::NoVolumeName)?;
    if let Some(pod) = owner {
        let uid = pod.uid_str();
        let owned = claim
            .metadata
            .owner_references
            .iter()
            .flatten()
            .any(|o| o.controller == Some(true) && o.uid == uid);
        if !owned {
            return Err(ClaimError::NotOwner {
                namespace: claim.metadata.namespace.clone().unwrap_or_default(),
                claim: claim.metadata.name.clone().unwrap_or_default(),
                pod: pod.metadata.name.clone().unwrap_or_default(),
            });
        }
    }
    Ok(volume)
}

/// Checks that the volume points back to the claim.
pub fn check_volume(
    volume: &PersistentVolume,
    claim: &PersistentVolumeClaim,
) -> Result<(), ClaimError> {
    let name = volume.metadata.name.clone().unwrap_or_default();
    let Some(reference) = volume.spec.as_ref().and_then(|s| s.claim_ref.as_ref()) else {
        return Err(ClaimError::NoClaimRef(name));
    };
    let found = reference.uid.clone().unwrap_or_default();
    let wanted = claim.metadata.uid.clone().unwrap_or_default();
    if found == wanted {
        Ok(())
    } else {
        Err(ClaimError::OtherClaim { volume: name, found, wanted })
    }
}

/// Checks that containers use the volume in the way it can be used.
pub fn check_mode(name: &str, block: bool, used: &VolumeUse) -> Result<(), ClaimError> {
    if block && used.mounted {
        return Err(ClaimError::BlockMounted(name.to_owned()));
    }
    if !block && used.device {
        return Err(ClaimError::FilesystemAsDevice(name.to_owned()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn claim(value: serde_json::Value) -> PersistentVolumeClaim {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn a_protected_claim_is_used_although_it_is_being_deleted() {
        let mut c = claim(json!({
            "metadata": {"name": "c", "namespace": "n", "uid": "cu",
                "deletionTimestamp": "2026-01-01T00:00:00Z",
                "finalizers": ["kubernetes.io/pvc-protection"]},
            "spec": {"volumeName": "pv"}, "status": {"phase": "Bound"}
        }));
        assert_eq!(check_claim(&c, None), Ok("pv"));
        c.metadata.finalizers = None;
        assert_eq!(check_claim(&c, None).unwrap_err().to_string(), "PVC is being deleted");
    }

    #[test]
    fn an_ephemeral_claim_must_belong_to_the_pod() {
        let pod: Pod =
            serde_json::from_value(json!({"metadata": {"name": "p", "uid": "u"}})).unwrap();
        let mut c = claim(json!({"metadata": {"name": "p-v", "namespace": "n"}}));
        assert_eq!(check_claim(&c, Some(&pod)), Err(ClaimError::NotBound), "that comes first");
        c.spec = serde_json::from_value(json!({"volumeName": "pv"})).unwrap();
        c.status = serde_json::from_value(json!({"phase": "Bound"})).unwrap();
        assert_eq!(
            check_claim(&c, Some(&pod)).unwrap_err().to_string(),
            "PVC n/p-v was not created for pod n/p (pod is not owner)"
        );
        assert_eq!(ephemeral_claim_name(&pod, "v"), "p-v");
    }

    #[test]
    fn the_mode_must_match_the_use() {
        let mounted = VolumeUse { mounted: true, device: false };
        assert_eq!(
            check_mode("v", true, &mounted).unwrap_err().to_string(),
            "volume v has volumeMode Block, but is specified in volumeMounts"
        );
        assert!(check_mode("v", false, &mounted).is_ok());
    }
}
