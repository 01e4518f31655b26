//! Usage of volumes, measured on demand and cached.

use crate::csi;
use crate::env::Env;
use crate::plugins::flex;
use crate::pool::{NORMAL, Patience};
use api::core::v1::Pod;
use api::ids::PodUid;
use engine::volumes::{Plugin, SpecSource, VolumeSpec};
use ports::VolumeUsage;
use proto::csi_v1::NodeGetVolumeStatsResponse;
use proto::csi_v1::node_service_capability::rpc::Type as Capability;
use proto::csi_v1::volume_usage::Unit;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// How long a caller waits for a measurement; one that takes longer continues in its task, and the caller gets
/// the previous one.
const BRIEFLY: Duration = Duration::from_secs(2);

/// The cached usage of a pod's volumes.
#[derive(Debug, Default)]
struct Known {
    last: Option<(Instant, Arc<Vec<VolumeUsage>>)>,
    /// The start of the running measurement; the channel closes when it ends.
    measured: Option<(Instant, watch::Receiver<()>)>,
}

/// Recent measurements. A pod whose volumes hang, or are very big, does not delay a request for all pods.
#[derive(Debug)]
pub(crate) struct UsageCache {
    known: Mutex<BTreeMap<PodUid, Known>>,
    keep: Duration,
}

/// How a caller gets the usage.
pub(crate) enum Ask {
    /// The cached measurement is recent.
    Fresh(Arc<Vec<VolumeUsage>>),
    /// The caller must measure, and drop the sender when it is done.
    Measure(watch::Sender<()>),
    /// Another caller is measuring.
    Wait,
}

impl UsageCache {
    /// Caches each measurement for this long.
    pub(crate) fn new(keep: Duration) -> Self {
        Self { known: Mutex::default(), keep }
    }

    pub(crate) fn ask(&self, uid: &PodUid) -> Ask {
        let Ok(mut known) = self.known.lock() else { return Ask::Wait };
        let entry = known.entry(uid.clone()).or_default();
        if let Some((at, usages)) = &entry.last
            && at.elapsed() < self.keep
        {
            return Ask::Fresh(Arc::clone(usages));
        }
        if entry.measured.as_ref().is_some_and(|(_, running)| running.has_changed().is_ok()) {
            return Ask::Wait;
        }
        let (done, running) = watch::channel(());
        entry.measured = Some((Instant::now(), running));
        Ask::Measure(done)
    }

    /// Caches a measurement; expired ones of pods that are no longer measured are dropped.
    pub(crate) fn keep(&self, uid: &PodUid, usages: Vec<VolumeUsage>) {
        let Ok(mut known) = self.known.lock() else { return };
        let old = self.keep.saturating_mul(2);
        known.retain(|_, entry| {
            let recent = entry.last.as_ref().is_some_and(|(at, _)| at.elapsed() < old);
            recent || entry.measured.as_ref().is_some_and(|(_, run)| run.has_changed().is_ok())
        });
        known.entry(uid.clone()).or_default().last = Some((Instant::now(), Arc::new(usages)));
    }

    /// The result of the running measurement if it ends within [`BRIEFLY`], else the last one.
    pub(crate) async fn soon(&self, uid: &PodUid) -> Arc<Vec<VolumeUsage>> {
        let running = self.known.lock().ok().and_then(|known| known.get(uid)?.measured.clone());
        if let Some((since, mut running)) = running {
            // Nothing is ever sent: `changed` returns when the channel closes. After the timeout the measurement
            // continues in its task.
            let _over = tokio::time::timeout_at(since + BRIEFLY, running.changed()).await;
        }
        let Ok(known) = self.known.lock() else { return Arc::default() };
        let last = known.get(uid).and_then(|entry| entry.last.as_ref());
        last.map(|(_, usages)| Arc::clone(usages)).unwrap_or_default()
    }
}

/// Measures each volume; one that cannot be measured is left out. Abnormal health becomes an event on the pod,
/// if it is known.
pub(crate) async fn measure(
    env: &Env,
    uid: &str,
    pod: Option<&Arc<Pod>>,
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
        let mut source = source(&spec);
        let measured = match &spec.plugin {
            Plugin::HostPath | Plugin::Fc | Plugin::GitRepo | Plugin::Image => None,
            Plugin::Csi => ask_driver(env, &spec, path).await,
            _ if spec.is_block() => device_size(env, path).await,
            Plugin::EmptyDir
            | Plugin::ConfigMap
            | Plugin::Secret
            | Plugin::DownwardApi
            | Plugin::Projected => {
                let (measured, by_quota) = measure_folder(env, path).await;
                if by_quota {
                    source = Some("fsquota".to_owned());
                }
                measured
            }
            _ => ask_filesystem(env, path).await,
        };
        if let Some(source) = source {
            env.metrics.measured.observe_duration(&[&source], began.elapsed());
        }
        if let Some(measured) = measured {
            if let (Some(pod), Some((true, message))) = (pod, &measured.health) {
                env.warn(pod, "VolumeConditionAbnormal", format!("Volume {name}: {message}"));
            }
            let ephemeral = is_on_node_disk(&spec);
            usages.push(VolumeUsage { name, claim: claim_of(&spec), ephemeral, ..measured });
        }
    }
    usages
}

/// The metric label for how a volume is measured; `None` if it is not.
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

/// Whether the volume counts as the pod's ephemeral storage on the node's disk.
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
    // An inline volume migrated from a cloud provider plugin has a driver and no claim.
    claim.metadata.name.as_ref()?;
    Some((text(&claim.metadata.namespace), text(&claim.metadata.name)))
}

/// Measures by the folder's quota, else by a walk; also returns whether the quota was used.
async fn measure_folder(env: &Env, path: PathBuf) -> (Option<VolumeUsage>, bool) {
    let key = format!("{} (usage)", path.display());
    let quotas = env.quotas.clone();
    // A big folder may take minutes; a hung one only costs its thread.
    let patience = Patience::GiveUp(Duration::from_secs(10 * 60));
    let measured = env.pool.run(&key, "measure", patience, move || {
        let counted = quotas.usage(&path);
        let used = match counted {
            Some(used) => Ok(used),
            None => sys::stats::folder_usage(&path),
        };
        (used.and_then(|used| Ok((used, sys::stats::fs_usage(&path)?))), counted.is_some())
    });
    let Ok((measured, by_quota)) = measured.await else { return (None, false) };
    let usage = measured.ok().map(|(used, fs)| VolumeUsage {
        capacity: Some(fs.capacity),
        available: Some(fs.available),
        used: Some(used.bytes),
        inodes: Some(fs.inodes),
        inodes_free: Some(fs.inodes_free),
        inodes_used: Some(used.inodes),
        ..VolumeUsage::default()
    });
    (usage, by_quota)
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
            // The handle of an inline volume is in its `vol_data.json`.
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
    let reports_health = env.config.health && driver.can(Capability::VolumeCondition).await.ok()?;
    from_response(answer, reports_health)
}

/// The usage in a driver's response; `None` if the driver reports neither usage nor volume health.
fn from_response(answer: NodeGetVolumeStatsResponse, reports_health: bool) -> Option<VolumeUsage> {
    if answer.usage.is_empty() && !reports_health {
        return None;
    }
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
    let condition = answer.volume_condition.unwrap_or_default();
    usage.health = reports_health.then_some((condition.abnormal, condition.message));
    Some(usage)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::csi_v1::{VolumeCondition, VolumeUsage as Told};

    #[test]
    fn a_driver_that_tells_nothing_of_use_has_not_measured() {
        let bytes = Told { available: 3, total: 5, used: 2, unit: Unit::Bytes.into() };
        let response = NodeGetVolumeStatsResponse { usage: vec![bytes], volume_condition: None };
        let usage = from_response(response, false).unwrap();
        assert_eq!((usage.capacity, usage.used, usage.inodes), (Some(5), Some(2), None));
        let condition = VolumeCondition { abnormal: true, message: "worn".into() };
        let silent =
            NodeGetVolumeStatsResponse { usage: vec![], volume_condition: Some(condition) };
        assert_eq!(from_response(silent.clone(), false), None);
        let usage = from_response(silent, true).unwrap();
        assert_eq!((usage.capacity, usage.health), (None, Some((true, "worn".into()))));
        let nothing = NodeGetVolumeStatsResponse::default();
        assert_eq!(from_response(nothing, true).unwrap().health, Some((false, String::new())));
    }
}
