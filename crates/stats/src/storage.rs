//! Disk usage of pods, and the filesystems they are on.
//!
//! Promises: directories are walked on the blocking pool, without following symlinks or leaving
//! their filesystem. Volumes are measured by the volume subsystem.

use crate::cgroup_cache::REUSE_FOR;
use crate::reading::{PodReading, Reading};
use crate::task::{StatsConfig, StatsDeps};
use api::ids::PodUid;
use api::stats::{FsStats, Moment, PvcReference, VolumeHealthStats, VolumeStats};
use cri::api::{FilesystemUsage, ImageFsInfoResponse};
use jiff::Timestamp;
use ports::{StatsError, StorageLayout, VolumeUsage};
use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use sys::stats::{FolderUsage, FsUsage, files_usage, folder_usage, fs_usage};

/// Filesystems and directories at one point in time.
#[derive(Debug, Clone, Default)]
pub(crate) struct Storage {
    /// When it was read.
    pub(crate) at: Moment,
    /// The filesystem of the root directory.
    pub(crate) root: FsUsage,
    /// The filesystem of images, and their usage.
    pub(crate) images: Option<LayerUsage>,
    /// The filesystem of writable layers, and their usage.
    pub(crate) containers: Option<LayerUsage>,
    /// By mount point of a writable layer.
    pub(crate) layers: HashMap<String, FsUsage>,
    /// By pod UID.
    pub(crate) pods: HashMap<String, PodStorage>,
}

/// The runtime's information about a filesystem.
#[derive(Debug, Clone, Default)]
pub(crate) struct LayerUsage {
    pub(crate) fs: FsUsage,
    pub(crate) used_bytes: Option<u64>,
    pub(crate) inodes_used: Option<u64>,
}

/// One pod's directories.
#[derive(Debug, Clone, Default)]
pub(crate) struct PodStorage {
    /// When its logs and files were measured.
    pub(crate) taken: Timestamp,
    /// Log files by container.
    pub(crate) logs: BTreeMap<String, FolderUsage>,
    /// Other files in the log directories, and `etc-hosts`.
    pub(crate) own_files: FolderUsage,
    pub(crate) volumes: Vec<PodVolume>,
}

/// One volume.
#[derive(Debug, Clone, Default)]
pub(crate) struct PodVolume {
    pub(crate) stats: VolumeStats,
    /// Whether it counts towards the pod's ephemeral storage.
    pub(crate) ephemeral: bool,
}

impl PodStorage {
    /// Whether it is still valid: the pod's containers, which alone write logs, have not run since.
    fn is_valid(&self, pod: &PodReading, now: Timestamp) -> bool {
        let age = Duration::try_from(now.duration_since(self.taken)).unwrap_or(Duration::MAX);
        let quiet = pod.quiet_since.is_some_and(|since| since <= self.taken);
        let same = || pod.containers.iter().all(|c| self.logs.contains_key(&c.name));
        quiet && age < REUSE_FOR && self.logs.len() == pod.containers.len() && same()
    }
}

/// Measures the storage of the pods in a reading, reusing results that are still valid.
pub(crate) async fn collect(
    config: &Arc<StatsConfig>,
    deps: &StatsDeps,
    reading: &Reading,
    before: Option<&Storage>,
) -> Result<Storage, StatsError> {
    let info = deps.runtime.image_fs_info().await;
    let info = info.map_err(|e| StatsError(format!("failed to get imageFs stats: {e}")))?;
    let (config, measured) = (Arc::clone(config), config.measure_volumes);
    let names: Vec<_> = reading
        .pods
        .iter()
        .filter(|pod| !pod.containers.is_empty())
        .map(|pod| {
            let cached = before.and_then(|before| before.pods.get(&pod.reference.uid));
            let cached = cached.filter(|cached| cached.is_valid(pod, reading.at)).cloned();
            let containers = pod.containers.iter().map(|c| c.name.clone()).collect::<Vec<_>>();
            (pod.reference.clone(), containers, cached)
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
    let work = sys::blocking::run_for(sys::blocking::Purpose::Usage, move || {
        let (root, images, containers) = filesystems(&config, &info)?;
        let mut seen = HashMap::new();
        for place in layers {
            if let (false, Ok(usage)) = (seen.contains_key(&place), fs_usage(Path::new(&place))) {
                seen.insert(place, usage);
            }
        }
        let pods = names
            .into_iter()
            .map(|(reference, containers, cached)| {
                let read = || logs(&config, &reference, &containers, time.0);
                let storage = cached.unwrap_or_else(read);
                (reference.uid, storage)
            })
            .collect();
        Ok(Storage { at: time, root, images, containers, layers: seen, pods })
    });
    let mut storage = work.await.map_err(|e| StatsError(e.to_string()))??;
    if measured {
        for (uid, pod) in &mut storage.pods {
            let usages = deps.volumes.usages(&PodUid::from(uid.as_str())).await;
            pod.volumes = usages.iter().map(|usage| volume(usage, time)).collect();
        }
    }
    Ok(storage)
}

/// Reads the node's filesystems, including those of the runtime.
pub(crate) async fn node(
    config: &Arc<StatsConfig>,
    places: Arc<ImageFsInfoResponse>,
    at: Moment,
) -> Result<Storage, StatsError> {
    let config = Arc::clone(config);
    let work = sys::blocking::run_for(sys::blocking::Purpose::Usage, move || {
        let (root, images, containers) = filesystems(&config, &places)?;
        Ok(Storage { at, root, images, containers, ..Storage::default() })
    });
    work.await.map_err(|e| StatsError(e.to_string()))?
}

/// The filesystems of the root directory, of images, and of writable layers.
fn filesystems(
    config: &StatsConfig,
    info: &ImageFsInfoResponse,
) -> Result<(FsUsage, Option<LayerUsage>, Option<LayerUsage>), StatsError> {
    let root = fs_usage(&config.roots.kubelet)
        .map_err(|e| StatsError(format!("failed to get rootFs stats: {e}")))?;
    let images = info.image_filesystems.first().and_then(layer_usage);
    let containers = if is_split(info) {
        info.container_filesystems.first().and_then(layer_usage)
    } else {
        images.clone()
    };
    Ok((root, images, containers))
}

fn layer_usage(usage: &FilesystemUsage) -> Option<LayerUsage> {
    let place = usage.fs_id.as_ref()?;
    Some(LayerUsage {
        fs: fs_usage(Path::new(&place.mountpoint)).ok()?,
        used_bytes: usage.used_bytes.as_ref().map(|v| v.value),
        inodes_used: usage.inodes_used.as_ref().map(|v| v.value),
    })
}

/// The device of the first accessible filesystem.
fn device(list: &[FilesystemUsage]) -> Option<u64> {
    list.iter()
        .filter_map(|usage| usage.fs_id.as_ref())
        .find_map(|id| sys::stats::device(Path::new(&id.mountpoint)).ok())
}

/// Whether images and writable layers are on different devices.
fn is_split(info: &ImageFsInfoResponse) -> bool {
    let devices = device(&info.image_filesystems).zip(device(&info.container_filesystems));
    devices.is_some_and(|(images, containers)| images != containers)
}

/// The locations of images and writable layers.
pub(crate) async fn layout(
    config: &Arc<StatsConfig>,
    deps: &StatsDeps,
) -> Result<StorageLayout, StatsError> {
    let info = deps.runtime.image_fs_info().await.map_err(|e| StatsError(e.to_string()))?;
    let config = Arc::clone(config);
    let work = sys::blocking::run_for(sys::blocking::Purpose::Usage, move || {
        let images = device(&info.image_filesystems)
            .ok_or_else(|| StatsError("imagefs device is not found".to_owned()))?;
        let root = sys::stats::device(&config.roots.kubelet)
            .map_err(|e| StatsError(format!("{e}: {}", e.source)))?;
        Ok(if is_split(&info) {
            StorageLayout::Split
        } else if images == root {
            StorageLayout::One
        } else {
            StorageLayout::DedicatedImages
        })
    });
    work.await.map_err(|e| StatsError(e.to_string()))?
}

fn logs(
    config: &StatsConfig,
    pod: &api::stats::PodReference,
    containers: &[String],
    taken: Timestamp,
) -> PodStorage {
    let folder = config.roots.pod_logs.join(format!("{}_{}_{}", pod.namespace, pod.name, pod.uid));
    let logs = containers
        .iter()
        .filter_map(|name| Some((name.clone(), files_usage(&folder.join(name)).ok()?)))
        .collect();
    let mut own_files = files_usage(&folder).unwrap_or_default();
    if let Ok(hosts) = folder_usage(&config.roots.pod_dir(&pod.uid).join("etc-hosts")) {
        own_files.bytes += hosts.bytes;
        own_files.inodes += hosts.inodes;
    }
    PodStorage { taken, logs, own_files, volumes: Vec::new() }
}

fn volume(usage: &VolumeUsage, time: Moment) -> PodVolume {
    let claim = usage.claim.clone().map(|(namespace, name)| PvcReference { name, namespace });
    let fs = FsStats {
        time,
        available_bytes: Some(usage.available.unwrap_or(0)),
        capacity_bytes: Some(usage.capacity.unwrap_or(0)),
        used_bytes: Some(usage.used.unwrap_or(0)),
        inodes_free: Some(usage.inodes_free.unwrap_or(0)),
        inodes: Some(usage.inodes.unwrap_or(0)),
        inodes_used: Some(usage.inodes_used.unwrap_or(0)),
    };
    let health =
        usage.health.as_ref().map(|(abnormal, _)| VolumeHealthStats { abnormal: *abnormal });
    let stats = VolumeStats { fs, name: usage.name.clone(), claim, health };
    PodVolume { stats, ephemeral: usage.ephemeral }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_logs_of_a_quiet_pod_are_believed_for_a_while() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let container = |name: &str| crate::reading::ContainerReading {
            name: name.into(),
            ..crate::reading::ContainerReading::default()
        };
        let pod = |since| PodReading {
            quiet_since: Some(at(since)),
            containers: vec![container("c")],
            ..PodReading::default()
        };
        let logs = [("c".to_owned(), FolderUsage::default())].into();
        let cached = PodStorage { taken: at(100), logs, ..PodStorage::default() };
        assert!(cached.is_valid(&pod(99), at(115)));
        assert!(!cached.is_valid(&pod(101), at(115)), "it has run since");
        assert!(!cached.is_valid(&pod(99), at(128)), "too old");
        assert!(!cached.is_valid(&PodReading { quiet_since: None, ..pod(99) }, at(115)));
        let other = PodReading { containers: vec![container("d")], ..pod(99) };
        assert!(!cached.is_valid(&other, at(115)), "another container");
    }

    #[test]
    fn unknown_numbers_of_a_volume_are_zero() {
        let usage = VolumeUsage {
            name: "v".into(),
            claim: Some(("n".into(), "c".into())),
            used: Some(7),
            ..VolumeUsage::default()
        };
        let shown = volume(&usage, Moment::default()).stats;
        assert_eq!((shown.fs.used_bytes, shown.fs.capacity_bytes), (Some(7), Some(0)));
        let claim = shown.claim.unwrap();
        assert_eq!((claim.namespace.as_str(), claim.name.as_str()), ("n", "c"));
    }
}
