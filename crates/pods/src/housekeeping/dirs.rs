//! Folders of pods that are gone.

use crate::shared::Shared;
use api::ids::PodUid;
use engine::housekeeping::{Leftover, leftover};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Mutex;

/// Removes the folders of pods that are neither wanted nor known nor running. A folder that cannot
/// go is named once per reason.
pub(super) async fn remove_dead(
    shared: &Shared,
    desired: &BTreeSet<PodUid>,
    known: &BTreeSet<PodUid>,
    stuck: &Mutex<BTreeMap<PodUid, String>>,
) {
    let root = shared.config.roots.kubelet.join("pods");
    let listed = {
        let root = root.clone();
        // What is no folder is nobody's pod.
        let folders = move || {
            let mut names = sys::fs::list_dir(&root)?;
            names.retain(|name| sys::fs::is_folder(root.join(name)));
            Ok::<_, sys::fs::FsError>(names)
        };
        sys::blocking::run(folders).await
    };
    let Ok(Ok(names)) = listed else { return };
    let running = shared.view.all().borrow().clone();
    for name in names {
        let uid = PodUid::from(name.as_str());
        let result = match leftover(super::traces(shared, &uid, (desired, known), &running)) {
            Leftover::Keep => continue,
            Leftover::WaitForVolumes => Err(DirStays::VolumesInUse),
            Leftover::Remove => {
                shared.userns.release(&uid).await;
                let path = root.join(&name);
                let proc = shared.config.roots.proc.clone();
                sys::blocking::run_for_pod(&name, move || remove_pod_dir(&proc, &path))
                    .await
                    .unwrap_or_else(|error| Err(error.into()))
            }
        };
        let Ok(mut stuck) = stuck.lock() else { return };
        match result {
            Ok(()) => {
                stuck.remove(&uid);
                tracing::info!(podUID = %uid, "removed the folder of a pod that is gone");
            }
            Err(stays) => {
                let reason = stays.to_string();
                if stuck.get(&uid) != Some(&reason) {
                    tracing::warn!(podUID = %uid, err = reason, "the folder of a pod that is gone stays");
                    stuck.insert(uid, reason);
                }
            }
        }
    }
}

/// Removes a pod's folder; a mount anywhere below stops it before anything is lost.
fn remove_pod_dir(proc: &Path, path: &Path) -> Result<(), DirStays> {
    let all = sys::removal::Contents::Everything;
    Ok(sys::removal::remove_tree(proc, path, all)?)
}

/// Why a folder stays.
#[derive(Debug, thiserror::Error)]
enum DirStays {
    #[error("volumes are still in use")]
    VolumesInUse,
    #[error(transparent)]
    Removal(#[from] sys::removal::RemoveError),
    #[error(transparent)]
    Blocking(#[from] sys::blocking::BlockingError),
}
