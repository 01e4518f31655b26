//! How much volumes hold, measured on demand and kept for a while.

use crate::csi;
use crate::env::Env;
use crate::plugins::flex;
use crate::pool::{NORMAL, Patience};
use api::ids::PodUid;
use engine::volumes::{Plugin, SpecSource, VolumeSpec};
use ports::VolumeUsage;
use proto::csi_v1::node_service_capability::rpc::Type as Capability;
use proto::csi_v1::volume_usage::Unit;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::Instant;

type Kept = BTreeMap<PodUid, (Instant, Arc<Vec<VolumeUsage>>)>;

/// Recent measurements.
#[derive(Debug)]
pub(crate) struct UsageCache {
    kept: Mutex<Kept>,
    keep: Duration,
}

impl UsageCache {
    /// Keeps each measurement for this long.
    pub(crate) fn new(keep: Duration) -> Self {
        Self { kept: Mutex::default(), keep }
    }

    pub(crate) fn fresh(&self, uid: &PodUid) -> Option<Arc<Vec<VolumeUsage>>> {
        let kept = self.kept.lock().ok()?;
        let (at, usages) = kept.get(uid)?;
        (at.elapsed() < self.keep).then(|| Arc::clone(usages))
    }

    pub(crate) fn keep(&self, uid: &PodUid, usages: &Arc<Vec<VolumeUsage>>) {
        let now = Instant::now();
        if let Ok(mut kept) = self.kept.lock() {
            kept.retain(|_, (at, _)| now.duration_since(*at) < self.keep);
            kept.insert(uid.clone(), (now, Arc::clone(usages)));
        }
    }
}

/// Measures each volume; one that cannot be measured is left out.
pub(crate) async fn measure(
    env: &Env,
    uid: &str,
    volumes: Vec<(String, Arc<VolumeSpec>)>,
) -> Vec<VolumeUsage> {
    let mut usages = Vec::new();
    for (name, spec) in volumes {
        if let Plugin::Flex(driver) | Plugin::FlexAttached(driver) = &spec.plugin
            && !flex::has_metrics(env, driver)
        {
            continue;
        }
        let path = match spec.plugin {
            Plugin::Csi if spec.is_block() => csi::block::global_map(env, &spec.name).join(uid),
            _ => env.paths.container_source(uid, &spec),
        };
        let began = Instant::now();
        let source = source(&spec);
        let measured = match &spec.plugin {
            Plugin::HostPath | Plugin::Fc | Plugin::GitRepo | Plugin::Image => None,
            Plugin::Csi => ask_driver(env, &spec, path).await,
            _ if spec.is_block() => device_size(env, path).await,
            Plugin::EmptyDir
            | Plugin::ConfigMap
            | Plugin::Secret
            | Plugin::DownwardApi
            | Plugin::Projected => walk(env, path).await,
            _ => ask_filesystem(env, path).await,
        };
        if let Some(source) = source {
            env.metrics.measured.observe_duration(&[&source], began.elapsed());
        }
        if let Some(measured) = measured {
            let ephemeral = is_on_node_disk(&spec);
            usages.push(VolumeUsage { name, claim: claim_of(&spec), ephemeral, ..measured });
        }
    }
    usages
}

/// How a volume is measured, in the words of the metric; `None` if it is not.
fn source(spec: &VolumeSpec) -> Option<String> {
    match &spec.plugin {
        Plugin::HostPath | Plugin::Fc | Plugin::GitRepo | Plugin::Image => None,
        Plugin::Csi => {
            let inline = spec.as_inline().and_then(|v| v.csi.as_ref()).map(|c| c.driver.clone());
            inline.or_else(|| csi::mount::storage_id(spec).map(|(driver, _)| driver))
        }
        _ if spec.is_block() => Some("block".to_owned()),
        Plugin::EmptyDir
        | Plugin::ConfigMap
        | Plugin::Secret
        | Plugin::DownwardApi
        | Plugin::Projected => Some("du".to_owned()),
        _ => Some("statfs".to_owned()),
    }
}

/// Whether its bytes are the pod's use of the node's disk.
fn is_on_node_disk(spec: &VolumeSpec) -> bool {
    let memory = spec
        .as_inline()
        .and_then(|v| v.empty_dir.as_ref())
        .and_then(|e| e.medium.as_deref())
        .is_some_and(|m| !m.is_empty());
    match spec.plugin {
        Plugin::EmptyDir => !memory,
        Plugin::ConfigMap => true,
        _ => false,
    }
}

fn claim_of(spec: &VolumeSpec) -> Option<(String, String)> {
    let SpecSource::Persistent { claim, .. } = &spec.source else { return None };
    let text = |v: &Option<String>| v.clone().unwrap_or_default();
    // A pod's own volume of a cloud provider has a driver and no claim.
    claim.metadata.name.as_ref()?;
    Some((text(&claim.metadata.namespace), text(&claim.metadata.name)))
}

async fn walk(env: &Env, path: PathBuf) -> Option<VolumeUsage> {
    let key = format!("{} (usage)", path.display());
    let seen = path.clone();
    // A big folder takes its time; a hung one costs its thread and nothing else.
    let patience = Patience::GiveUp(Duration::from_secs(10 * 60));
    let (used, fs) = env
        .pool
        .run(&key, "measure", patience, move || {
            Ok::<_, sys::fs::FsError>((
                sys::stats::folder_usage(&seen)?,
                sys::stats::fs_usage(&seen)?,
            ))
        })
        .await
        .ok()?
        .ok()?;
    Some(VolumeUsage {
        capacity: Some(fs.capacity),
        available: Some(fs.available),
        used: Some(used.bytes),
        inodes: Some(fs.inodes),
        inodes_free: Some(fs.inodes_free),
        inodes_used: Some(used.inodes),
        ..VolumeUsage::default()
    })
}

async fn ask_filesystem(env: &Env, path: PathBuf) -> Option<VolumeUsage> {
    let key = format!("{} (usage)", path.display());
    let fs = env
        .pool
        .run(&key, "statfs", NORMAL, move || sys::stats::fs_usage(&path))
        .await
        .ok()?
        .ok()?;
    Some(VolumeUsage {
        capacity: Some(fs.capacity),
        available: Some(fs.available),
        used: Some(fs.used),
        inodes: Some(fs.inodes),
        inodes_free: Some(fs.inodes_free),
        inodes_used: Some(fs.inodes_used),
        ..VolumeUsage::default()
    })
}

async fn device_size(env: &Env, path: PathBuf) -> Option<VolumeUsage> {
    let key = format!("{} (usage)", path.display());
    let size = env
        .pool
        .run(&key, "read size", NORMAL, move || {
            use std::io::{Seek, SeekFrom};
            std::fs::File::open(&path).and_then(|mut f| f.seek(SeekFrom::End(0)))
        })
        .await
        .ok()?
        .ok()?;
    Some(VolumeUsage { capacity: Some(size), ..VolumeUsage::default() })
}

async fn ask_driver(env: &Env, spec: &VolumeSpec, path: PathBuf) -> Option<VolumeUsage> {
    let inline = spec.as_inline().and_then(|v| v.csi.as_ref());
    let (driver_name, handle) = match inline {
        Some(csi) => {
            // The handle of an inline volume is kept in its notes.
            let dir = path.parent()?.to_owned();
            let notes = csi::mount::load_notes(env, &dir).await.ok().flatten()?;
            (csi.driver.clone(), notes.handle().to_owned())
        }
        None => csi::mount::storage_id(spec)?,
    };
    let driver = env.csi.open(&driver_name, "stats").ok()?;
    if !driver.can(Capability::GetVolumeStats).await.ok()? {
        return None;
    }
    let answer = driver.stats(&handle, &path).await.ok()?;
    let mut usage = VolumeUsage::default();
    let number = |n: i64| u64::try_from(n).ok();
    for entry in &answer.usage {
        match Unit::try_from(entry.unit) {
            Ok(Unit::Bytes) => {
                usage.capacity = number(entry.total);
                usage.available = number(entry.available);
                usage.used = number(entry.used);
            }
            Ok(Unit::Inodes) => {
                usage.inodes = number(entry.total);
                usage.inodes_free = number(entry.available);
                usage.inodes_used = number(entry.used);
            }
            _ => {}
        }
    }
    usage.health = answer.volume_condition.map(|c| (c.abnormal, c.message));
    Some(usage)
}
