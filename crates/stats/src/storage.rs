//! What pods hold on disk, and the filesystems they are on.
//!
//! Promises: folders are walked without following links or leaving their filesystem, on the
//! blocking pool; volumes are walked once per their own period.

use crate::convert;
use crate::reading::Reading;
use crate::task::{StatsConfig, StatsDeps};
use api::core::v1::{Pod, Volume};
use api::stats::{Moment, VolumeStats};
use ports::{PodsSnapshot, StatsError};
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use sys::stats::{FolderUsage, FsUsage, folder_usage, fs_usage};
use tokio::time::Instant;

/// Filesystems and folders at one moment.
#[derive(Debug, Clone, Default)]
pub(crate) struct Storage {
    /// The filesystem of the root directory.
    pub(crate) root: FsUsage,
    /// Where images are, and what they use.
    pub(crate) images: Option<LayerUsage>,
    /// By mount point of a writable layer.
    pub(crate) layers: HashMap<String, FsUsage>,
    /// By pod UID.
    pub(crate) pods: HashMap<String, PodStorage>,
}

/// What the runtime says about a filesystem.
#[derive(Debug, Clone, Default)]
pub(crate) struct LayerUsage {
    pub(crate) fs: FsUsage,
    pub(crate) used_bytes: Option<u64>,
    pub(crate) inodes_used: Option<u64>,
}

/// One pod's folders.
#[derive(Debug, Clone, Default)]
pub(crate) struct PodStorage {
    /// Log folders by container.
    pub(crate) logs: BTreeMap<String, FolderUsage>,
    /// Files beside them, and `etc-hosts`.
    pub(crate) own_files: FolderUsage,
    pub(crate) volumes: Vec<PodVolume>,
}

/// One volume.
#[derive(Debug, Clone, Default)]
pub(crate) struct PodVolume {
    pub(crate) stats: VolumeStats,
    /// It counts as the pod's ephemeral storage.
    pub(crate) ephemeral: bool,
}

/// Volumes by pod, with the time they were walked.
pub(crate) type VolumeCache = HashMap<String, (Instant, Vec<PodVolume>)>;

/// Reads the storage of the pods in a reading.
pub(crate) async fn collect(
    config: &Arc<StatsConfig>,
    deps: &StatsDeps,
    reading: &Reading,
    cache: &mut VolumeCache,
) -> Result<Storage, StatsError> {
    let info = deps.runtime.image_fs_info().await;
    let info = info.map_err(|e| StatsError(format!("failed to get imageFs stats: {e}")))?;
    let snapshot = deps.pods.borrow().clone();
    cache.retain(|uid, _| reading.pods.iter().any(|p| p.reference.uid == *uid));
    let (config, now, known) = (Arc::clone(config), Instant::now(), std::mem::take(cache));
    let names: Vec<_> = reading
        .pods
        .iter()
        .filter(|pod| !pod.containers.is_empty())
        .map(|pod| {
            let containers = pod.containers.iter().map(|c| c.name.clone()).collect::<Vec<_>>();
            (pod.reference.clone(), containers)
        })
        .collect();
    let layers: Vec<String> = reading
        .pods
        .iter()
        .flat_map(|pod| &pod.containers)
        .filter_map(|c| c.runtime.as_ref()?.writable_layer.as_ref()?.fs_id.as_ref())
        .map(|id| id.mountpoint.clone())
        .collect();
    let time = Moment(reading.at);
    let work = sys::blocking::run(move || {
        let root = fs_usage(&config.roots.kubelet)
            .map_err(|e| StatsError(format!("failed to get rootFs stats: {e}")))?;
        let images = info.image_filesystems.first().and_then(|usage| {
            let place = usage.fs_id.as_ref()?;
            Some(LayerUsage {
                fs: fs_usage(Path::new(&place.mountpoint)).ok()?,
                used_bytes: usage.used_bytes.as_ref().map(|v| v.value),
                inodes_used: usage.inodes_used.as_ref().map(|v| v.value),
            })
        });
        let mut seen = HashMap::new();
        for place in layers {
            if let (false, Ok(usage)) = (seen.contains_key(&place), fs_usage(Path::new(&place))) {
                seen.insert(place, usage);
            }
        }
        let mut known = known;
        let mut pods = HashMap::new();
        for (reference, containers) in names {
            let mut storage = logs(&config, &reference, &containers);
            if let Some(period) = config.volume_period {
                let uid = &reference.uid;
                if known.get(uid).is_none_or(|(at, _)| now.duration_since(*at) >= period) {
                    let found = pod_of(&snapshot, uid)
                        .map(|pod| volumes(&config, &pod, uid, time))
                        .unwrap_or_default();
                    known.insert(uid.clone(), (now, found));
                }
                storage.volumes = known.get(uid).map(|(_, v)| v.clone()).unwrap_or_default();
            }
            pods.insert(reference.uid, storage);
        }
        Ok((Storage { root, images, layers: seen, pods }, known))
    });
    let (storage, known) = work.await.map_err(|e| StatsError(e.to_string()))??;
    *cache = known;
    Ok(storage)
}

fn pod_of(snapshot: &PodsSnapshot, uid: &str) -> Option<Arc<Pod>> {
    let found = snapshot.pods.iter().find(|(known, _)| known.as_str() == uid);
    found.map(|(_, entry)| Arc::clone(&entry.pod))
}

fn logs(config: &StatsConfig, pod: &api::stats::PodReference, containers: &[String]) -> PodStorage {
    let folder = config.roots.pod_logs.join(format!("{}_{}_{}", pod.namespace, pod.name, pod.uid));
    let logs = containers
        .iter()
        .filter_map(|name| Some((name.clone(), folder_usage(&folder.join(name)).ok()?)))
        .collect();
    let mut own_files = FolderUsage::default();
    let beside = sys::fs::list_dir(&folder).unwrap_or_default();
    let beside = beside.into_iter().map(|name| folder.join(name)).filter(|path| path.is_file());
    for file in beside.chain([config.roots.pod_dir(&pod.uid).join("etc-hosts")]) {
        if let Ok(usage) = folder_usage(&file) {
            own_files.bytes += usage.bytes;
            own_files.inodes += usage.inodes;
        }
    }
    PodStorage { logs, own_files, volumes: Vec::new() }
}

/// Where a volume that is a folder of the pod lies, and how it is measured.
fn place(volume: &Volume) -> Option<(&'static str, Measure)> {
    if let Some(empty) = &volume.empty_dir {
        let measure = match empty.medium.as_deref().unwrap_or_default() {
            "" => Measure::Ephemeral,
            _ => Measure::Filesystem,
        };
        return Some(("kubernetes.io~empty-dir", measure));
    }
    if volume.config_map.is_some() {
        return Some(("kubernetes.io~configmap", Measure::Ephemeral));
    }
    let folder = if volume.secret.is_some() {
        "kubernetes.io~secret"
    } else if volume.downward_api.is_some() {
        "kubernetes.io~downward-api"
    } else if volume.projected.is_some() {
        "kubernetes.io~projected"
    } else {
        return None;
    };
    Some((folder, Measure::Folder))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Measure {
    /// A walk; counts as ephemeral storage.
    Ephemeral,
    /// A walk.
    Folder,
    /// Its filesystem says it.
    Filesystem,
}

fn volumes(config: &StatsConfig, pod: &Pod, uid: &str, time: Moment) -> Vec<PodVolume> {
    let root: PathBuf = config.roots.pod_dir(uid).join("volumes");
    let listed = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    let measured = listed.filter_map(|volume| {
        let (plugin, measure) = place(volume)?;
        let path = root.join(plugin).join(&volume.name);
        let on = fs_usage(&path).ok()?;
        let fs = match measure {
            Measure::Filesystem => convert::filesystem(&on, time),
            Measure::Ephemeral | Measure::Folder => {
                convert::folder(&folder_usage(&path).ok()?, &on, time)
            }
        };
        Some(PodVolume {
            stats: VolumeStats { fs, name: volume.name.clone(), claim: None },
            ephemeral: measure == Measure::Ephemeral,
        })
    });
    measured.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::core::v1::{EmptyDirVolumeSource, HostPathVolumeSource, SecretVolumeSource};

    #[test]
    fn volumes_are_measured_by_their_kind() {
        let named = |volume: Volume| Volume { name: "v".into(), ..volume };
        let empty = |medium: Option<&str>| {
            named(Volume {
                empty_dir: Some(EmptyDirVolumeSource {
                    medium: medium.map(str::to_owned),
                    size_limit: None,
                }),
                ..Volume::default()
            })
        };
        assert_eq!(place(&empty(None)), Some(("kubernetes.io~empty-dir", Measure::Ephemeral)));
        let memory = place(&empty(Some("Memory")));
        assert_eq!(memory, Some(("kubernetes.io~empty-dir", Measure::Filesystem)));
        let secret =
            named(Volume { secret: Some(SecretVolumeSource::default()), ..Volume::default() });
        assert_eq!(place(&secret), Some(("kubernetes.io~secret", Measure::Folder)));
        let host = named(Volume {
            host_path: Some(HostPathVolumeSource { path: "/".into(), type_: None }),
            ..Volume::default()
        });
        assert_eq!(place(&host), None, "what is not the pod's is not measured");
    }
}
