//! Reconstruction of volumes that an earlier run (of rubelet or the Go kubelet) left on disk.

use crate::csi::block;
use crate::csi::data::{VolumeNotes, remove_mount_dir, remove_unfinished};
use crate::env::StepError;
use crate::paths::Paths;
use crate::plugins::{fc, flex, iscsi};
use api::core::v1::{ISCSIPersistentVolumeSource, PersistentVolume, PersistentVolumeSpec, Volume};
use api::ids::{PodUid, VolumeName};
use engine::volumes::{Plugin, SpecSource, VolumeSpec};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A pod's volume found on disk.
#[derive(Debug, Clone)]
pub(crate) struct Found {
    pub(crate) pod: PodUid,
    pub(crate) name: VolumeName,
    pub(crate) spec: Arc<VolumeSpec>,
    /// The SELinux label it is mounted with; empty: none.
    pub(crate) label: String,
}

/// A volume folder that no plugin can reconstruct.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Unexplained {
    pub(crate) pod: PodUid,
    pub(crate) path: PathBuf,
}

/// All that was found.
#[derive(Debug, Default)]
pub(crate) struct Remains {
    pub(crate) found: Vec<Found>,
    /// Device mounts and their labels, whether a pod uses them or not.
    pub(crate) devices: Vec<(Arc<VolumeSpec>, String)>,
    pub(crate) unexplained: Vec<Unexplained>,
}

/// Scans `pods/<uid>/{volumes,volumeDevices}/<plugin>/<name>` and the staging folders of CSI.
pub(crate) fn scan(paths: &Paths) -> Result<Remains, StepError> {
    let mut remains = Remains::default();
    for uid in list(&paths.pods())? {
        for (top, block) in [(paths.volumes(&uid), false), (paths.devices(&uid), true)] {
            for plugin_dir in list(&top)? {
                let plugin = Plugin::from_dir_name(&plugin_dir);
                for name in list(&top.join(&plugin_dir))? {
                    let path = top.join(&plugin_dir).join(&name);
                    let pod = PodUid::from(uid.as_str());
                    match plugin.clone().and_then(|p| spec_of(paths, p, &name, &path, block)) {
                        Some(spec) => remains.found.push(Found {
                            name: spec.unique_name(&pod),
                            pod,
                            label: label_of(paths, &spec, &path),
                            spec: Arc::new(spec),
                        }),
                        None => remains.unexplained.push(Unexplained { pod, path }),
                    }
                }
            }
        }
    }
    scan_staged(paths, &mut remains)?;
    for (driver, name) in flex::device_mounts(paths) {
        let spec = VolumeSpec::found(Plugin::FlexAttached(driver), &name);
        remains.devices.push((Arc::new(spec), String::new()));
    }
    Ok(remains)
}

/// Removes a staging folder that was never used; one that is mounted or not empty stays.
fn remove_unused(folder: &Path) {
    let removed = remove_mount_dir(&folder.join("globalmount"));
    if let Err(e) = removed {
        tracing::debug!(path = %folder.display(), err = %e, "left a staging directory without vol_data.json in place");
    }
}

/// Finds volumes that are staged but not published to any pod: only their `vol_data.json` tells of them.
fn scan_staged(paths: &Paths, remains: &mut Remains) -> Result<(), StepError> {
    let top = paths.plugin("kubernetes.io/csi");
    let devices = block::all_devices(paths);
    for name in list(&devices)? {
        let notes = match VolumeNotes::load(&devices.join(&name).join("data")) {
            Ok(Some(notes)) if notes.are_complete() => notes,
            Ok(None) if !["staging", "publish"].contains(&name.as_str()) => {
                if let Err(err) = block::remove_unused(paths, &name) {
                    tracing::debug!(volume = name, %err, "left a device directory without vol_data.json in place");
                }
                continue;
            }
            _ => continue,
        };
        let id = format!("{}^{}", notes.driver(), notes.handle());
        let spec = Arc::new(VolumeSpec {
            name,
            plugin: Plugin::Csi,
            source: SpecSource::Found { volume_id: Some(id), block: true },
            read_only: false,
            migrated: false,
        });
        // Published to a pod, or about to be, but not yet linked into the pod's folder.
        let places =
            [devices.join(&spec.name).join("dev"), devices.join("publish").join(&spec.name)];
        for uid in places.iter().map(|place| list(place)).collect::<Result<Vec<_>, _>>()?.concat() {
            let pod = PodUid::from(uid.as_str());
            let name = spec.unique_name(&pod);
            if !remains.found.iter().any(|f| f.pod == pod && f.name == name) {
                let (spec, label) = (Arc::clone(&spec), String::new());
                remains.found.push(Found { pod, name, spec, label });
            }
        }
        remains.devices.push((spec, String::new()));
    }
    for driver in list(&top)? {
        if driver == "volumeDevices" {
            continue;
        }
        for hash in list(&top.join(&driver))? {
            let folder = top.join(&driver).join(hash);
            let notes = match VolumeNotes::load(&folder) {
                Ok(Some(notes)) if notes.are_complete() => notes,
                Ok(None) => {
                    // NodeStageVolume was not called yet: the folder can only be empty.
                    remove_unused(&folder);
                    continue;
                }
                _ => continue,
            };
            let id = format!("{}^{}", notes.driver(), notes.handle());
            let spec = Arc::new(VolumeSpec {
                name: notes.handle().to_owned(),
                plugin: Plugin::Csi,
                source: SpecSource::Found { volume_id: Some(id), block: false },
                read_only: false,
                migrated: false,
            });
            remains.devices.push((spec, notes.label().to_owned()));
        }
    }
    Ok(())
}

/// The SELinux label with which a volume at `path` is mounted; empty: none.
fn label_of(paths: &Paths, spec: &VolumeSpec, path: &Path) -> String {
    let label = match spec.plugin {
        Plugin::Csi => VolumeNotes::load(path).ok().flatten().map(|notes| notes.label().to_owned()),
        Plugin::Iscsi | Plugin::Fc => sys::mountinfo::read(paths.proc())
            .ok()
            .and_then(|table| sys::mountinfo::label_of(&table, path)),
        _ => None,
    };
    label.unwrap_or_default()
}

fn spec_of(
    paths: &Paths,
    plugin: Plugin,
    name: &str,
    path: &Path,
    block: bool,
) -> Option<VolumeSpec> {
    let plugin = match plugin {
        // The device mount shows that the driver supports attach.
        Plugin::Flex(driver) if flex::has_device_mount(paths, &driver, name) => {
            Plugin::FlexAttached(driver)
        }
        other => other,
    };
    let mut spec = VolumeSpec::found(plugin, name);
    let volume_id = match &spec.plugin {
        Plugin::EmptyDir
        | Plugin::ConfigMap
        | Plugin::Secret
        | Plugin::DownwardApi
        | Plugin::Projected
        | Plugin::Nfs
        | Plugin::Flex(_)
        | Plugin::FlexAttached(_) => None,
        Plugin::Local => Some(name.to_owned()),
        Plugin::Csi => {
            let dir = if block {
                block::all_devices(paths).join(name).join("data")
            } else {
                path.to_owned()
            };
            // Without driver and handle the volume is not reconstructed: as an unwanted volume of another name it
            // would be unmounted from a running pod once its `vol_data.json` is written again.
            let notes = VolumeNotes::load(&dir).ok().flatten().filter(VolumeNotes::are_complete)?;
            let persistent = notes.get("volumeLifecycleMode") != "Ephemeral";
            persistent.then(|| format!("{}^{}", notes.driver(), notes.handle()))
        }
        Plugin::Iscsi | Plugin::Fc => return disk_of(paths, spec, path, block),
        _ => return None,
    };
    spec.source = SpecSource::Found { volume_id, block };
    Some(spec)
}

/// A network disk is identified by its global mount or its global map path.
fn disk_of(paths: &Paths, mut spec: VolumeSpec, path: &Path, block: bool) -> Option<VolumeSpec> {
    let top = paths.plugin(spec.plugin.name());
    let global = if block {
        let pod = path.ancestors().nth(3)?.file_name()?.to_owned();
        let folders = list(&top.join("volumeDevices")).ok()?;
        let deeper = |folder: String| {
            let folder = top.join("volumeDevices").join(folder);
            let inner = list(&folder).unwrap_or_default();
            let mut all: Vec<PathBuf> = inner.iter().map(|name| folder.join(name)).collect();
            all.push(folder);
            all
        };
        let device = std::fs::canonicalize(path).ok()?;
        folders.into_iter().flat_map(deeper).find(|folder| {
            let bound = folder.join(&pod);
            sys::fs::same_device(&bound, &device).unwrap_or(false)
        })?
    } else {
        let table = sys::mountinfo::read(paths.proc()).ok()?;
        let references = sys::mountinfo::references(&table, path);
        references.into_iter().find(|reference| reference.starts_with(&top))?
    };
    let mut volume = Volume { name: spec.name.clone(), ..Volume::default() };
    if spec.plugin == Plugin::Iscsi {
        volume.iscsi = Some(iscsi::source_of_folder(&global)?);
    } else {
        volume.fc = Some(fc::source_of_folder(global.file_name()?.to_str()?)?);
    }
    spec.source = if block { as_device(volume) } else { SpecSource::Inline(Box::new(volume)) };
    Some(spec)
}

/// Only a persistent volume can be a raw device.
fn as_device(volume: Volume) -> SpecSource {
    let iscsi = volume.iscsi.map(|i| ISCSIPersistentVolumeSource {
        target_portal: i.target_portal,
        iqn: i.iqn,
        lun: i.lun,
        iscsi_interface: i.iscsi_interface,
        ..ISCSIPersistentVolumeSource::default()
    });
    let mut persistent = PersistentVolume::default();
    persistent.metadata.name = Some(volume.name);
    persistent.spec = Some(PersistentVolumeSpec {
        iscsi,
        fc: volume.fc,
        volume_mode: Some("Block".into()),
        ..PersistentVolumeSpec::default()
    });
    SpecSource::Persistent { volume: Arc::new(persistent), claim: Arc::default() }
}

/// Names in a folder; a missing one or a file has none.
fn list(dir: &Path) -> Result<Vec<String>, StepError> {
    match sys::fs::list_dir(dir) {
        Ok(names) => Ok(names),
        Err(e) if e.is_not_found() || e.source.kind() == std::io::ErrorKind::NotADirectory => {
            Ok(Vec::new())
        }
        Err(e) => Err(e.into()),
    }
}

/// Unmounts a volume that no plugin can reconstruct, by its path alone, and removes its empty folder.
pub(crate) fn force_clean(path: &Path) -> Result<(), StepError> {
    if !sys::mount::is_mount_point(path).unwrap_or(true) {
        remove_unfinished(path)?;
    }
    for candidate in [path.join("mount"), path.to_owned()] {
        sys::mount::unmount_all_at(&candidate)?;
        sys::fs::remove_dir(&candidate)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use ports::Roots;

    #[test]
    fn notes_that_name_no_volume_explain_nothing() {
        let kubelet =
            std::env::temp_dir().join(format!("rubelet-reconstruct-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&kubelet);
        let paths = Paths::new(Roots { kubelet: kubelet.clone(), ..Roots::default() });
        let staged = kubelet.join("plugins/kubernetes.io/csi/d/hash");
        let own = paths.volumes("u").join("kubernetes.io~csi/pv");
        std::fs::create_dir_all(&staged).unwrap();
        std::fs::create_dir_all(&own).unwrap();
        let whole = r#"{"driverName":"d","volumeHandle":"h"}"#;
        for (text, found) in
            [("{}", 0), (r#"{"driverName":"d"}"#, 0), (r#"{"volumeHandle":"h"}"#, 0), (whole, 1)]
        {
            std::fs::write(own.join("vol_data.json"), text).unwrap();
            std::fs::write(staged.join("vol_data.json"), text).unwrap();
            let remains = scan(&paths).unwrap();
            assert_eq!((remains.found.len(), remains.devices.len()), (found, found), "{text}");
            assert_eq!(remains.unexplained.len(), 1 - found, "{text}");
            assert!(staged.join("vol_data.json").exists(), "{text}");
        }
        std::fs::remove_dir_all(&kubelet).unwrap();
    }
}
