//! The parts of a CSI call that come from the volume spec: names, access modes, capabilities, contexts.

use crate::env::{Env, StepError};
use crate::plugins::MountInput;
use api::core::v1::Pod;
use api::pod::PodExt;
use api::storage::v1::CSIDriver;
use engine::volumes::{VolumeSpec, label_option};
use ports::{ObjectError, TokenRequest};
use proto::csi_v1 as csi;
use proto::csi_v1::volume_capability::access_mode::Mode;
use proto::csi_v1::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Everything about a CSI volume that does not change during an operation.
#[derive(Debug, Clone, Default)]
pub(crate) struct Source {
    pub(crate) driver: String,
    pub(crate) handle: String,
    pub(crate) ephemeral: bool,
    pub(crate) fs_type: String,
    pub(crate) attributes: BTreeMap<String, String>,
    pub(crate) mount_options: Vec<String>,
    pub(crate) access_modes: Vec<String>,
    pub(crate) read_only: bool,
    pub(crate) block: bool,
    pub(crate) stage_secret: Option<(String, String)>,
    pub(crate) publish_secret: Option<(String, String)>,
    pub(crate) expand_secret: Option<(String, String)>,
}

/// Hex of SHA-256.
pub(crate) fn sha256(text: &str) -> String {
    Sha256::digest(text.as_bytes()).iter().map(|b| format!("{b:02x}")).collect()
}

/// The name of the attachment object.
pub(crate) fn attachment_name(handle: &str, driver: &str, node: &str) -> String {
    format!("csi-{}", sha256(&format!("{handle}{driver}{node}")))
}

impl Source {
    /// Reads the spec; `None` if it describes no CSI volume.
    pub(crate) fn of(spec: &VolumeSpec, pod: &Pod) -> Option<Self> {
        if let Some(pv) = spec.as_persistent() {
            let pv_spec = pv.spec.as_ref()?;
            let csi = pv_spec.csi.as_ref()?;
            let secret = |r: &Option<api::core::v1::SecretReference>| {
                r.as_ref().map(|r| {
                    (r.namespace.clone().unwrap_or_default(), r.name.clone().unwrap_or_default())
                })
            };
            return Some(Self {
                driver: csi.driver.clone(),
                handle: csi.volume_handle.clone(),
                ephemeral: false,
                fs_type: csi.fs_type.clone().unwrap_or_default(),
                attributes: csi.volume_attributes.clone().unwrap_or_default(),
                mount_options: pv_spec.mount_options.clone().unwrap_or_default(),
                access_modes: pv_spec.access_modes.clone().unwrap_or_default(),
                read_only: spec.read_only,
                block: spec.is_block(),
                stage_secret: secret(&csi.node_stage_secret_ref),
                publish_secret: secret(&csi.node_publish_secret_ref),
                expand_secret: secret(&csi.node_expand_secret_ref),
            });
        }
        let csi = spec.as_inline()?.csi.as_ref()?;
        let uid = pod.uid_str();
        let namespace = pod.namespace_str().to_owned();
        Some(Self {
            driver: csi.driver.clone(),
            handle: format!("csi-{}", sha256(&format!("{uid}{}", spec.name))),
            ephemeral: true,
            fs_type: csi.fs_type.clone().unwrap_or_default(),
            attributes: csi.volume_attributes.clone().unwrap_or_default(),
            read_only: csi.read_only == Some(true),
            publish_secret: csi
                .node_publish_secret_ref
                .as_ref()
                .map(|r| (namespace, r.name.clone())),
            ..Self::default()
        })
    }

    /// The CSI access mode for the volume's first access mode.
    fn mode(&self, multi_writer: bool) -> Mode {
        match self.access_modes.first().map(String::as_str) {
            Some("ReadOnlyMany") => Mode::MultiNodeReaderOnly,
            Some("ReadWriteMany") => Mode::MultiNodeMultiWriter,
            Some("ReadWriteOncePod") if multi_writer => Mode::SingleNodeSingleWriter,
            Some("ReadWriteOncePod") => Mode::SingleNodeWriter,
            _ if multi_writer => Mode::SingleNodeMultiWriter,
            _ => Mode::SingleNodeWriter,
        }
    }

    /// The capability of a call, for a mount with this SELinux label.
    pub(crate) fn capability(
        &self,
        multi_writer: bool,
        group: Option<u32>,
        label: &str,
    ) -> csi::VolumeCapability {
        let access_type = if self.block {
            AccessType::Block(BlockVolume {})
        } else {
            AccessType::Mount(MountVolume {
                fs_type: self.fs_type.clone(),
                mount_flags: self
                    .mount_options
                    .iter()
                    .cloned()
                    .chain(label_option(label))
                    .collect(),
                volume_mount_group: group.map(|g| g.to_string()).unwrap_or_default(),
            })
        };
        csi::VolumeCapability {
            access_mode: Some(AccessMode { mode: self.mode(multi_writer) as i32 }),
            access_type: Some(access_type),
        }
    }

    /// Whether the kubelet itself applies `fsGroup` to the files.
    pub(crate) fn kubelet_sets_group(&self, driver: Option<&CSIDriver>) -> Result<bool, StepError> {
        let policy = match driver {
            None => "ReadWriteOnceWithFSType",
            Some(object) => {
                object.spec.fs_group_policy.as_deref().filter(|p| !p.is_empty()).ok_or_else(
                    || {
                        StepError::transient(format!(
                            "{0}mounter.SetupAt failed to check fsGroup policy: {0}expected valid fsGroupPolicy, received nil value or empty string",
                            super::PREFIX
                        ))
                    },
                )?
            }
        };
        Ok(match policy {
            _ if self.read_only => false,
            "File" => true,
            "None" => false,
            _ if self.fs_type.is_empty() => false,
            _ if self.ephemeral => true,
            _ => self.access_modes.iter().any(|m| m == "ReadWriteOnce" || m == "ReadWriteOncePod"),
        })
    }

    /// Whether the driver supports the volume's lifecycle mode.
    pub(crate) fn check_lifecycle(&self, driver: Option<&CSIDriver>) -> Result<(), StepError> {
        let wanted = if self.ephemeral { "Ephemeral" } else { "Persistent" };
        let refused = |why: String| {
            Err(StepError::transient(format!(
                "{}mounter.SetupAt failed to check volume lifecycle mode: volume mode {wanted:?} not supported by driver {} ({why})",
                super::PREFIX,
                self.driver
            )))
        };
        match driver {
            // Without a `CSIDriver` object only persistent volumes are supported.
            None if self.ephemeral => refused("no CSIDriver object".into()),
            None => Ok(()),
            Some(object) => {
                let modes = object.spec.volume_lifecycle_modes.clone().unwrap_or_default();
                if modes.iter().any(|m| m == wanted) || (modes.is_empty() && !self.ephemeral) {
                    Ok(())
                } else {
                    let shown: Vec<String> = modes.iter().map(|m| format!("{m:?}")).collect();
                    refused(format!("only supports [{}]", shown.join(" ")))
                }
            }
        }
    }
}

/// The driver's object; `None` if there is none.
pub(crate) async fn driver_object(
    env: &Env,
    name: &str,
) -> Result<Option<Arc<CSIDriver>>, StepError> {
    let Some(storage) = &env.storage else { return Ok(None) };
    match storage.csi_driver(name).await {
        Ok(object) => Ok(Some(object)),
        Err(ObjectError::NotFound(_)) => Ok(None),
        Err(e) => Err(StepError::transient(e.to_string())),
    }
}

/// Whether a controller attaches this driver's volumes.
pub(crate) fn attach_required(driver: Option<&CSIDriver>) -> bool {
    driver.is_none_or(|d| d.spec.attach_required != Some(false))
}

/// Whether the driver's volumes can be mounted with an SELinux label.
pub(crate) fn takes_labels(driver: Option<&CSIDriver>) -> bool {
    driver.is_some_and(|d| d.spec.se_linux_mount == Some(true))
}

/// The data of a secret as text; an error says `fetching <what> <namespace>/<name> failed`.
pub(crate) async fn secret(
    env: &Env,
    reference: Option<&(String, String)>,
    what: &str,
) -> Result<BTreeMap<String, String>, StepError> {
    let Some(reference) = reference else { return Ok(BTreeMap::new()) };
    read_secret(env, reference).await.map_err(|e| {
        let (namespace, name) = reference;
        StepError::transient(format!("fetching {what} {namespace}/{name} failed: {e}"))
    })
}

/// The data of a secret as text; an error says `<refusal> <namespace>/<name>`.
pub(crate) async fn named_secret(
    env: &Env,
    reference: Option<&(String, String)>,
    refusal: &str,
) -> Result<BTreeMap<String, String>, StepError> {
    let Some(reference) = reference else { return Ok(BTreeMap::new()) };
    read_secret(env, reference).await.map_err(|e| {
        let (namespace, name) = reference;
        StepError::transient(format!("{refusal} {namespace}/{name}: {e}"))
    })
}

async fn read_secret(
    env: &Env,
    (namespace, name): &(String, String),
) -> Result<BTreeMap<String, String>, String> {
    let failed = |e: String| {
        format!(
            "{}failed to find the secret {name} in the namespace {namespace} with error: {e}",
            super::PREFIX
        )
    };
    let Some(storage) = &env.storage else { return Err(failed("no API server".into())) };
    let object = storage.secret(namespace, name).await.map_err(|e| failed(e.to_string()))?;
    Ok(object
        .data
        .iter()
        .flatten()
        .map(|(k, v)| (k.clone(), String::from_utf8_lossy(&v.0).into_owned()))
        .collect())
}

/// The publish context: the attachment metadata that the external attacher wants passed to the driver.
pub(crate) async fn publish_context(
    env: &Env,
    source: &Source,
    driver: Option<&CSIDriver>,
) -> Result<BTreeMap<String, String>, StepError> {
    if !attach_required(driver) {
        return Ok(BTreeMap::new());
    }
    let Some(storage) = &env.storage else { return Ok(BTreeMap::new()) };
    let name = attachment_name(&source.handle, &source.driver, &env.config.node_name);
    let attachment =
        storage.volume_attachment(&name).await.map_err(|e| StepError::transient(e.to_string()))?;
    let metadata = attachment.status.as_ref().and_then(|s| s.attachment_metadata.clone());
    Ok(metadata.unwrap_or_default())
}

/// Pod information for drivers with `podInfoOnMount`.
pub(crate) fn pod_info(pod: &Pod, ephemeral: bool) -> BTreeMap<String, String> {
    let text = |v: &Option<String>| v.clone().unwrap_or_default();
    let account = pod.spec.as_ref().and_then(|s| s.service_account_name.clone());
    [
        ("pod.name", text(&pod.metadata.name)),
        ("pod.namespace", text(&pod.metadata.namespace)),
        ("pod.uid", text(&pod.metadata.uid)),
        ("serviceAccount.name", account.unwrap_or_default()),
        ("ephemeral", ephemeral.to_string()),
    ]
    .into_iter()
    .map(|(key, value)| (format!("csi.storage.k8s.io/{key}"), value))
    .collect()
}

/// The key under which tokens are passed.
pub(crate) const TOKENS: &str = "csi.storage.k8s.io/serviceAccount.tokens";

/// Tokens that the driver's object asks for, as one JSON text; `None` if it asks for none.
pub(crate) async fn tokens(
    env: &Env,
    input: &MountInput,
    driver: Option<&CSIDriver>,
) -> Result<Option<String>, StepError> {
    let requests = driver.and_then(|d| d.spec.token_requests.clone()).unwrap_or_default();
    if requests.is_empty() {
        return Ok(None);
    }
    let text = |v: &Option<String>| v.clone().unwrap_or_default();
    let pod = &input.pod;
    let account = pod.spec.as_ref().and_then(|s| s.service_account_name.clone());
    let mut all: BTreeMap<String, serde_json::Value> = BTreeMap::new();
    for wanted in requests {
        let request = TokenRequest {
            namespace: text(&pod.metadata.namespace),
            service_account: account.clone().unwrap_or_default(),
            service_account_uid: String::new(),
            pod_name: text(&pod.metadata.name),
            pod_uid: text(&pod.metadata.uid),
            audiences: Some(wanted.audience.clone())
                .filter(|a| !a.is_empty())
                .into_iter()
                .collect(),
            expiration_seconds: wanted.expiration_seconds.unwrap_or(3600),
        };
        let issued = env.objects.token(&request).await.map_err(|e| {
            StepError::transient(format!(
                "{}mounter.SetUpAt failed to get service accoount token attributes: {e}",
                super::PREFIX
            ))
        })?;
        let expires = issued.expires_at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let value = serde_json::json!({"token": issued.token, "expirationTimestamp": expires});
        all.insert(wanted.audience, value);
    }
    serde_json::to_string(&all)
        .map(Some)
        .map_err(|e| StepError::transient(format!("tokens cannot be written: {e}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn access_modes_follow_the_first_one_and_the_drivers_ability() {
        let source = |mode: &str| Source {
            access_modes: vec![mode.to_owned(), "ReadWriteMany".into()],
            ..Source::default()
        };
        let cases = [
            ("ReadWriteOnce", false, Mode::SingleNodeWriter),
            ("ReadWriteOnce", true, Mode::SingleNodeMultiWriter),
            ("ReadWriteOncePod", false, Mode::SingleNodeWriter),
            ("ReadWriteOncePod", true, Mode::SingleNodeSingleWriter),
            ("ReadOnlyMany", true, Mode::MultiNodeReaderOnly),
            ("ReadWriteMany", false, Mode::MultiNodeMultiWriter),
        ];
        for (mode, able, expected) in cases {
            assert_eq!(source(mode).mode(able), expected, "{mode} {able}");
        }
        assert_eq!(Source::default().mode(false), Mode::SingleNodeWriter);
    }

    #[test]
    fn the_group_policy_decides_who_changes_owners() {
        let driver = |policy: Option<&str>| {
            let mut object = CSIDriver::default();
            object.spec.fs_group_policy = policy.map(str::to_owned);
            object
        };
        let source = Source {
            fs_type: "ext4".into(),
            access_modes: vec!["ReadWriteOnce".into()],
            ..Source::default()
        };
        let decide = |s: &Source, d: Option<&CSIDriver>| s.kubelet_sets_group(d).unwrap();
        assert!(decide(&source, None));
        assert!(decide(&source, Some(&driver(Some("File")))));
        assert!(!decide(&source, Some(&driver(Some("None")))));
        assert!(source.kubelet_sets_group(Some(&driver(None))).is_err());
        let many = Source { access_modes: vec!["ReadWriteMany".into()], ..source.clone() };
        assert!(!decide(&many, None));
        let bare = Source { fs_type: String::new(), ..source.clone() };
        assert!(!decide(&bare, None));
        let ro = Source { read_only: true, ..source };
        assert!(!decide(&ro, Some(&driver(Some("File")))));
    }

    #[test]
    fn inline_volumes_need_a_driver_that_says_so() {
        let source = Source { driver: "d".into(), ephemeral: true, ..Source::default() };
        assert!(source.check_lifecycle(None).unwrap_err().message.ends_with(
            "volume mode \"Ephemeral\" not supported by driver d (no CSIDriver object)"
        ));
        let mut object = CSIDriver::default();
        object.spec.volume_lifecycle_modes = Some(vec!["Persistent".into()]);
        assert!(
            source
                .check_lifecycle(Some(&object))
                .unwrap_err()
                .message
                .ends_with("(only supports [\"Persistent\"])")
        );
    }
}
