//! In-tree volumes of cloud providers, translated to CSI volumes.
//!
//! The in-tree code is gone, so a pod's or persistent volume's in-tree source becomes a CSI source (upstream:
//! `csi-translation-lib`). Topology terms are not translated.

use api::core::v1::{
    CSIPersistentVolumeSource, PersistentVolume, PersistentVolumeSpec, SecretReference, Volume,
};
use std::collections::BTreeMap;

const ONCE: &str = "ReadWriteOnce";
const MANY: &str = "ReadWriteMany";

/// A translated source.
struct Moved {
    driver: &'static str,
    handle: String,
    /// The name of an inline volume's persistent volume; it names the staging folder.
    name: String,
    fs_type: Option<String>,
    read_only: Option<bool>,
    attributes: BTreeMap<String, String>,
    secret: Option<(String, String)>,
    mode: &'static str,
}

impl Moved {
    fn new(driver: &'static str, handle: impl Into<String>) -> Self {
        let handle = handle.into();
        Self {
            driver,
            name: format!("{driver}-{handle}"),
            handle,
            fs_type: None,
            read_only: None,
            attributes: BTreeMap::new(),
            secret: None,
            mode: ONCE,
        }
    }

    fn with(mut self, key: &str, value: impl Into<String>) -> Self {
        self.attributes.insert(key.to_owned(), value.into());
        self
    }

    fn formatted(mut self, fs_type: Option<&String>, read_only: Option<bool>) -> Self {
        (self.fs_type, self.read_only) = (fs_type.cloned(), read_only);
        self
    }

    fn source(self) -> CSIPersistentVolumeSource {
        CSIPersistentVolumeSource {
            driver: self.driver.to_owned(),
            volume_handle: self.handle,
            fs_type: self.fs_type,
            read_only: self.read_only,
            volume_attributes: Some(self.attributes),
            node_stage_secret_ref: self.secret.map(|(namespace, name)| SecretReference {
                name: Some(name),
                namespace: Some(namespace),
            }),
            ..CSIPersistentVolumeSource::default()
        }
    }
}

/// `aws://zone/vol-1` and `vol-1` are the same disk.
fn ebs(id: &str, partition: Option<i32>) -> Moved {
    let id = id.strip_prefix("aws://").map_or(id, |rest| rest.rsplit('/').next().unwrap_or(rest));
    Moved::new("ebs.csi.aws.com", id).with("partition", partition.unwrap_or_default().to_string())
}

/// A disk in a zone, in several zones of a region (`a__b`), or in an unspecified zone.
fn gce(name: &str, partition: Option<i32>, zone: Option<&str>) -> Moved {
    let place = match zone {
        None => "zones/UNSPECIFIED".to_owned(),
        Some(zones) if zones.contains("__") => {
            let first = zones.split("__").next().unwrap_or_default();
            let region = first.rsplit_once('-').map_or(first, |(region, _)| region);
            format!("regions/{region}")
        }
        Some(zone) => format!("zones/{zone}"),
    };
    let partition = partition.filter(|p| *p != 0).map(|p| p.to_string()).unwrap_or_default();
    let handle = format!("projects/UNSPECIFIED/{place}/disks/{name}");
    let mut moved = Moved::new("pd.csi.storage.gke.io", handle).with("partition", partition);
    moved.name = format!("pd.csi.storage.gke.io-{name}");
    moved
}

fn azure_disk(uri: &str, caching: Option<&String>, fs_type: Option<&String>) -> Moved {
    let mut moved = Moved::new("disk.csi.azure.com", uri).with("kind", "Managed");
    if let Some(caching) = caching.filter(|c| !c.is_empty()) {
        moved = moved.with("cachingmode", caching);
    }
    if let Some(fs_type) = fs_type {
        moved = moved.with("fstype", fs_type);
    }
    moved.name = uri.to_owned();
    moved
}

/// The group, account, share, volume and namespace identify a share.
fn azure_file(group: &str, secret: &str, share: &str, volume: &str, namespace: &str) -> Moved {
    let account = secret
        .strip_prefix("azure-storage-account-")
        .and_then(|rest| rest.strip_suffix("-secret"))
        .filter(|account| !account.is_empty())
        .unwrap_or(secret);
    let handle = format!("{group}#{account}#{share}#{volume}#{namespace}");
    let mut moved = Moved::new("file.csi.azure.com", handle).with("sharename", share);
    moved.name = moved.handle.clone();
    moved.secret = Some((namespace.to_owned(), secret.to_owned()));
    moved.mode = MANY;
    moved
}

fn vsphere(path: &str, policy: Option<&String>) -> Moved {
    let moved = Moved::new("csi.vsphere.vmware.com", path);
    match policy.filter(|p| !p.is_empty()) {
        Some(policy) => moved.with("storagepolicyname", policy),
        None => moved,
    }
}

/// An inline volume of a cloud provider as a persistent volume of its CSI driver.
pub fn migrated_inline(volume: &Volume, namespace: &str) -> Option<PersistentVolume> {
    let moved = if let Some(s) = &volume.aws_elastic_block_store {
        ebs(&s.volume_id, s.partition).formatted(s.fs_type.as_ref(), s.read_only)
    } else if let Some(s) = &volume.gce_persistent_disk {
        gce(&s.pd_name, s.partition, None).formatted(s.fs_type.as_ref(), s.read_only)
    } else if let Some(s) = &volume.cinder {
        Moved::new("cinder.csi.openstack.org", &s.volume_id)
            .formatted(s.fs_type.as_ref(), s.read_only)
    } else if let Some(s) = &volume.azure_disk {
        azure_disk(&s.disk_uri, s.caching_mode.as_ref(), s.fs_type.as_ref())
            .formatted(s.fs_type.as_ref(), s.read_only)
    } else if let Some(s) = &volume.azure_file {
        let namespace = if namespace.is_empty() { "default" } else { namespace };
        azure_file("", &s.secret_name, &s.share_name, &volume.name, namespace)
            .formatted(None, s.read_only)
    } else if let Some(s) = &volume.vsphere_volume {
        vsphere(&s.volume_path, s.storage_policy_name.as_ref()).formatted(s.fs_type.as_ref(), None)
    } else if let Some(s) = &volume.portworx_volume {
        let mut moved = Moved::new("pxd.portworx.com", &s.volume_id);
        moved.mode = MANY;
        moved.formatted(s.fs_type.as_ref(), s.read_only)
    } else {
        return None;
    };
    let (name, mode) = (moved.name.clone(), moved.mode.to_owned());
    let mut persistent = PersistentVolume::default();
    persistent.metadata.name = Some(name);
    persistent.spec = Some(PersistentVolumeSpec {
        access_modes: Some(vec![mode]),
        csi: Some(moved.source()),
        ..PersistentVolumeSpec::default()
    });
    Some(persistent)
}

/// A persistent volume of a cloud provider as one of its CSI driver; `None` for other volumes.
pub fn migrated_persistent(volume: &PersistentVolume) -> Option<PersistentVolume> {
    let spec = volume.spec.as_ref()?;
    let label = |key: &str| volume.metadata.labels.as_ref()?.get(key).map(String::as_str);
    let moved = if let Some(s) = &spec.aws_elastic_block_store {
        ebs(&s.volume_id, s.partition).formatted(s.fs_type.as_ref(), s.read_only)
    } else if let Some(s) = &spec.gce_persistent_disk {
        let zone = label("topology.kubernetes.io/zone")
            .or_else(|| label("failure-domain.beta.kubernetes.io/zone"));
        gce(&s.pd_name, s.partition, zone).formatted(s.fs_type.as_ref(), s.read_only)
    } else if let Some(s) = &spec.cinder {
        Moved::new("cinder.csi.openstack.org", &s.volume_id)
            .formatted(s.fs_type.as_ref(), s.read_only)
    } else if let Some(s) = &spec.azure_disk {
        azure_disk(&s.disk_uri, s.caching_mode.as_ref(), s.fs_type.as_ref())
            .formatted(s.fs_type.as_ref(), s.read_only)
    } else if let Some(s) = &spec.azure_file {
        let of_claim = spec.claim_ref.as_ref().and_then(|c| c.namespace.clone());
        let namespace = s.secret_namespace.clone().or(of_claim)?;
        let annotations = volume.metadata.annotations.as_ref();
        let group = annotations.and_then(|a| a.get("kubernetes.io/azure-file-resource-group"));
        let name = volume.metadata.name.as_deref().unwrap_or_default();
        let group = group.map(String::as_str).unwrap_or_default();
        azure_file(group, &s.secret_name, &s.share_name, name, &namespace)
            .formatted(None, s.read_only)
    } else if let Some(s) = &spec.vsphere_volume {
        vsphere(&s.volume_path, s.storage_policy_name.as_ref()).formatted(s.fs_type.as_ref(), None)
    } else if let Some(s) = &spec.portworx_volume {
        Moved::new("pxd.portworx.com", &s.volume_id).formatted(s.fs_type.as_ref(), s.read_only)
    } else {
        return None;
    };
    let mut translated = volume.clone();
    translated.spec.get_or_insert_default().csi = Some(moved.source());
    Some(translated)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn each_provider_has_its_driver_handle_and_name() {
        let cases: [(Value, &str, &str, &str); 8] = [
            (
                json!({"awsElasticBlockStore": {"volumeID": "aws://eu-1a/vol-1"}}),
                "ebs.csi.aws.com",
                "vol-1",
                "ebs.csi.aws.com-vol-1",
            ),
            (
                json!({"gcePersistentDisk": {"pdName": "a"}}),
                "pd.csi.storage.gke.io",
                "projects/UNSPECIFIED/zones/UNSPECIFIED/disks/a",
                "pd.csi.storage.gke.io-a",
            ),
            (
                json!({"cinder": {"volumeID": "c"}}),
                "cinder.csi.openstack.org",
                "c",
                "cinder.csi.openstack.org-c",
            ),
            (
                json!({"azureDisk": {"diskName": "d", "diskURI": "/d"}}),
                "disk.csi.azure.com",
                "/d",
                "/d",
            ),
            (
                json!({"azureFile": {"secretName": "azure-storage-account-x-secret", "shareName": "s"}}),
                "file.csi.azure.com",
                "#x#s#v#ns",
                "#x#s#v#ns",
            ),
            (
                json!({"vsphereVolume": {"volumePath": "[ds] v"}}),
                "csi.vsphere.vmware.com",
                "[ds] v",
                "csi.vsphere.vmware.com-[ds] v",
            ),
            (
                json!({"portworxVolume": {"volumeID": "p"}}),
                "pxd.portworx.com",
                "p",
                "pxd.portworx.com-p",
            ),
            (json!({"emptyDir": {}}), "", "", ""),
        ];
        for (source, driver, handle, name) in cases {
            let mut source = source;
            source["name"] = json!("v");
            let volume: Volume = serde_json::from_value(source.clone()).unwrap();
            let found = migrated_inline(&volume, "ns");
            let csi = found.as_ref().and_then(|v| v.spec.as_ref()?.csi.as_ref());
            assert_eq!(csi.map_or("", |c| c.driver.as_str()), driver, "{source}");
            assert_eq!(csi.map_or("", |c| c.volume_handle.as_str()), handle, "{source}");
            let named = found.as_ref().and_then(|v| v.metadata.name.as_deref());
            assert_eq!(named.unwrap_or_default(), name, "{source}");
        }
    }

    #[test]
    fn a_persistent_volume_keeps_its_name_and_takes_its_zone_from_its_labels() {
        let volume: PersistentVolume = serde_json::from_value(json!({
            "metadata": {"name": "pv", "labels": {"topology.kubernetes.io/zone": "eu-1-a__eu-1-b"}},
            "spec": {"gcePersistentDisk": {"pdName": "a", "partition": 2, "fsType": "xfs"}}
        }))
        .unwrap();
        let moved = migrated_persistent(&volume).unwrap();
        assert_eq!(moved.metadata.name.as_deref(), Some("pv"));
        let csi = moved.spec.unwrap().csi.unwrap();
        assert_eq!(csi.volume_handle, "projects/UNSPECIFIED/regions/eu-1/disks/a");
        assert_eq!(csi.volume_attributes.unwrap()["partition"], "2");
        assert_eq!(csi.fs_type.as_deref(), Some("xfs"));
    }
}
