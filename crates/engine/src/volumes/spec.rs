//! What a volume is: its plugin, its names, its source.

use api::core::v1::{PersistentVolume, PersistentVolumeClaim, Volume};
use api::ids::{PodUid, VolumeName};
use std::sync::Arc;

/// The kinds of volumes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Plugin {
    /// A folder that lives as long as the pod.
    EmptyDir,
    /// A path of the host.
    HostPath,
    /// Files from a config map.
    ConfigMap,
    /// Files from a secret.
    Secret,
    /// Files from the pod's own fields.
    DownwardApi,
    /// Files from several sources.
    Projected,
    /// A disk or folder of this node.
    Local,
    /// A network share.
    Nfs,
    /// An iSCSI disk.
    Iscsi,
    /// A Fibre Channel disk.
    Fc,
    /// An OCI image; the runtime mounts it.
    Image,
    /// Refused since its driver is locked off.
    GitRepo,
    /// An executable driver, `vendor/driver`.
    Flex(String),
    /// The same, of a driver whose volumes are attached before they are mounted.
    FlexAttached(String),
    /// A CSI driver.
    Csi,
}

impl Plugin {
    /// Upstream's plugin name.
    pub fn name(&self) -> &str {
        match self {
            Self::EmptyDir => "kubernetes.io/empty-dir",
            Self::HostPath => "kubernetes.io/host-path",
            Self::ConfigMap => "kubernetes.io/configmap",
            Self::Secret => "kubernetes.io/secret",
            Self::DownwardApi => "kubernetes.io/downward-api",
            Self::Projected => "kubernetes.io/projected",
            Self::Local => "kubernetes.io/local-volume",
            Self::Nfs => "kubernetes.io/nfs",
            Self::Iscsi => "kubernetes.io/iscsi",
            Self::Fc => "kubernetes.io/fc",
            Self::Image => "kubernetes.io/image",
            Self::GitRepo => "kubernetes.io/git-repo",
            Self::Flex(driver) | Self::FlexAttached(driver) => driver,
            Self::Csi => "kubernetes.io/csi",
        }
    }

    /// The plugin's name as a folder: `/` becomes `~`.
    pub fn dir_name(&self) -> String {
        self.name().replace('/', "~")
    }

    /// The plugin that made a folder of this name below `pods/<uid>/volumes`.
    pub fn from_dir_name(name: &str) -> Option<Self> {
        const ALL: [Plugin; 13] = [
            Plugin::EmptyDir,
            Plugin::HostPath,
            Plugin::ConfigMap,
            Plugin::Secret,
            Plugin::DownwardApi,
            Plugin::Projected,
            Plugin::Local,
            Plugin::Nfs,
            Plugin::Iscsi,
            Plugin::Fc,
            Plugin::Image,
            Plugin::GitRepo,
            Plugin::Csi,
        ];
        let known = ALL.into_iter().find(|p| p.dir_name() == name);
        known.or_else(|| {
            let (vendor, driver) = name.split_once('~')?;
            let plain = !vendor.is_empty() && !driver.is_empty() && vendor != "kubernetes.io";
            plain.then(|| Self::Flex(format!("{vendor}/{driver}")))
        })
    }

    /// Whether its files are made of API objects and are refreshed while the pod runs.
    pub fn is_content(&self) -> bool {
        matches!(self, Self::ConfigMap | Self::Secret | Self::DownwardApi | Self::Projected)
    }

    /// Whether PV mount options may be used with it.
    pub fn supports_mount_options(&self) -> bool {
        matches!(self, Self::Nfs | Self::Iscsi | Self::Fc | Self::Local | Self::Csi)
    }

    /// The plugin of a pod's inline volume; `None` for claims (they are resolved first) and for
    /// sources that no plugin serves.
    pub fn of_volume(volume: &Volume) -> Option<Self> {
        let present = [
            (volume.empty_dir.is_some(), Self::EmptyDir),
            (volume.host_path.is_some(), Self::HostPath),
            (volume.config_map.is_some(), Self::ConfigMap),
            (volume.secret.is_some(), Self::Secret),
            (volume.downward_api.is_some(), Self::DownwardApi),
            (volume.projected.is_some(), Self::Projected),
            (volume.nfs.is_some(), Self::Nfs),
            (volume.iscsi.is_some(), Self::Iscsi),
            (volume.fc.is_some(), Self::Fc),
            (volume.image.is_some(), Self::Image),
            (volume.git_repo.is_some(), Self::GitRepo),
            (volume.csi.is_some(), Self::Csi),
        ];
        let found = present.into_iter().find(|(set, _)| *set).map(|(_, plugin)| plugin);
        found.or_else(|| volume.flex_volume.as_ref().map(|f| Self::Flex(f.driver.clone())))
    }

    /// The plugin of a persistent volume.
    pub fn of_persistent(volume: &PersistentVolume) -> Option<Self> {
        let spec = volume.spec.as_ref()?;
        let present = [
            (spec.csi.is_some(), Self::Csi),
            (spec.local.is_some(), Self::Local),
            (spec.host_path.is_some(), Self::HostPath),
            (spec.nfs.is_some(), Self::Nfs),
            (spec.iscsi.is_some(), Self::Iscsi),
            (spec.fc.is_some(), Self::Fc),
        ];
        let found = present.into_iter().find(|(set, _)| *set).map(|(_, plugin)| plugin);
        found.or_else(|| spec.flex_volume.as_ref().map(|f| Self::Flex(f.driver.clone())))
    }
}

/// Where a volume's description comes from.
#[derive(Debug, Clone, PartialEq)]
pub enum SpecSource {
    /// The pod itself.
    Inline(Box<Volume>),
    /// A claim bound to a persistent volume.
    Persistent {
        /// The volume.
        volume: Arc<PersistentVolume>,
        /// The claim.
        claim: Arc<PersistentVolumeClaim>,
    },
    /// Found on disk after a restart: only the plugin and the names are known.
    Found {
        /// What identifies the storage itself, where a device mount is shared.
        volume_id: Option<String>,
        /// It is a raw device.
        block: bool,
    },
}

/// One volume as a plugin sees it.
#[derive(Debug, Clone, PartialEq)]
pub struct VolumeSpec {
    /// PV name for claims, else the pod's volume name; it names all folders.
    pub name: String,
    /// Its kind.
    pub plugin: Plugin,
    /// Its source.
    pub source: SpecSource,
    /// `persistentVolumeClaim.readOnly`.
    pub read_only: bool,
    /// It was translated from an in-tree source of a cloud provider.
    pub migrated: bool,
}

impl VolumeSpec {
    /// A spec from a pod's own volume.
    pub fn inline(volume: &Volume) -> Option<Self> {
        Some(Self {
            name: volume.name.clone(),
            plugin: Plugin::of_volume(volume)?,
            source: SpecSource::Inline(Box::new(volume.clone())),
            read_only: false,
            migrated: false,
        })
    }

    /// A spec from a bound claim.
    pub fn persistent(
        volume: Arc<PersistentVolume>,
        claim: Arc<PersistentVolumeClaim>,
        read_only: bool,
    ) -> Option<Self> {
        Some(Self {
            name: volume.metadata.name.clone().unwrap_or_default(),
            plugin: Plugin::of_persistent(&volume)?,
            source: SpecSource::Persistent { volume, claim },
            read_only,
            migrated: false,
        })
    }

    /// The pod's volume, if inline.
    pub fn as_inline(&self) -> Option<&Volume> {
        match &self.source {
            SpecSource::Inline(volume) => Some(volume),
            _ => None,
        }
    }

    /// The persistent volume, if it is one.
    pub fn as_persistent(&self) -> Option<&PersistentVolume> {
        match &self.source {
            SpecSource::Persistent { volume, .. } => Some(volume),
            _ => None,
        }
    }

    /// A spec of what was found on disk.
    pub fn found(plugin: Plugin, name: &str) -> Self {
        Self {
            name: name.to_owned(),
            plugin,
            source: SpecSource::Found { volume_id: None, block: false },
            read_only: false,
            migrated: false,
        }
    }

    /// The id of storage found on disk.
    fn found_id(&self) -> Option<&str> {
        match &self.source {
            SpecSource::Found { volume_id, .. } => volume_id.as_deref(),
            _ => None,
        }
    }

    /// Whether it is used as a raw device.
    pub fn is_block(&self) -> bool {
        if let SpecSource::Found { block, .. } = &self.source {
            return *block;
        }
        self.as_persistent()
            .and_then(|v| v.spec.as_ref())
            .and_then(|s| s.volume_mode.as_deref())
            .is_some_and(|mode| mode == "Block")
    }

    /// Whether one device mount on the node serves all pods.
    pub fn is_device_mountable(&self) -> bool {
        match self.plugin {
            Plugin::Csi => self.as_persistent().is_some() || self.found_id().is_some(),
            Plugin::Local | Plugin::Iscsi | Plugin::Fc | Plugin::FlexAttached(_) => true,
            _ => false,
        }
    }

    /// The part of the unique name that identifies the storage itself.
    fn volume_id(&self) -> Option<String> {
        if let Some(id) = self.found_id() {
            return Some(id.to_owned());
        }
        match self.plugin {
            Plugin::Csi => {
                let csi = self.as_persistent()?.spec.as_ref()?.csi.as_ref()?;
                Some(format!("{}^{}", csi.driver, csi.volume_handle))
            }
            Plugin::Local | Plugin::FlexAttached(_) => Some(self.name.clone()),
            Plugin::Iscsi => {
                let from_pv = self.as_persistent().and_then(|v| v.spec.as_ref()?.iscsi.as_ref());
                let inline = self.as_inline().and_then(|v| v.iscsi.as_ref());
                from_pv
                    .map(|i| (&i.target_portal, &i.iqn, i.lun))
                    .or_else(|| inline.map(|i| (&i.target_portal, &i.iqn, i.lun)))
                    .map(|(portal, iqn, lun)| format!("{portal}:{iqn}:{lun}"))
            }
            Plugin::Fc => {
                let from_pv = self.as_persistent().and_then(|v| v.spec.as_ref()?.fc.as_ref());
                let fc = from_pv.or_else(|| self.as_inline().and_then(|v| v.fc.as_ref()))?;
                match (&fc.wwids, &fc.target_wwns) {
                    (Some(wwids), _) if !wwids.is_empty() => Some(format!("[{}]", wwids.join(" "))),
                    (_, Some(wwns)) => {
                        Some(format!("[{}]:{}", wwns.join(" "), fc.lun.unwrap_or_default()))
                    }
                    _ => None,
                }
            }
            _ => None,
        }
    }

    /// The unique name on this node.
    pub fn unique_name(&self, pod: &PodUid) -> VolumeName {
        match self.volume_id().filter(|_| self.is_device_mountable()) {
            Some(id) => format!("{}/{id}", self.plugin.name()).into(),
            None => format!("{}/{pod}-{}", self.plugin.name(), self.name).into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::core::v1::{CSIPersistentVolumeSource, EmptyDirVolumeSource, PersistentVolumeSpec};

    #[test]
    fn folder_names_lead_back_to_their_plugin() {
        for plugin in [
            Plugin::EmptyDir,
            Plugin::Csi,
            Plugin::DownwardApi,
            Plugin::Flex("example.com/disk".into()),
        ] {
            assert_eq!(Plugin::from_dir_name(&plugin.dir_name()), Some(plugin));
        }
        assert_eq!(Plugin::from_dir_name("kubernetes.io~aws-ebs"), None);
        assert_eq!(Plugin::from_dir_name("nonsense"), None);
    }

    #[test]
    fn unique_names_follow_the_storage_or_the_pod() {
        let uid = PodUid::from("u1");
        let inline = Volume {
            name: "d".into(),
            empty_dir: Some(EmptyDirVolumeSource::default()),
            ..Volume::default()
        };
        let spec = VolumeSpec::inline(&inline).unwrap();
        assert_eq!(spec.unique_name(&uid).as_str(), "kubernetes.io/empty-dir/u1-d");
        let pv = PersistentVolume {
            spec: Some(PersistentVolumeSpec {
                csi: Some(CSIPersistentVolumeSource {
                    driver: "drv".into(),
                    volume_handle: "h".into(),
                    ..CSIPersistentVolumeSource::default()
                }),
                ..PersistentVolumeSpec::default()
            }),
            ..PersistentVolume::default()
        };
        let spec = VolumeSpec::persistent(Arc::new(pv), Arc::default(), false).unwrap();
        assert_eq!(spec.unique_name(&uid).as_str(), "kubernetes.io/csi/drv^h");
    }
}
