//! Folders of pods that are gone.

use crate::shared::Shared;
use api::ids::PodUid;
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
        let wanted = desired.contains(&uid) || known.contains(&uid);
        if wanted || running.listed.contains_key(&uid) || shared.lives.life_of(&uid).is_some() {
            continue;
        }
        let result = if shared.volumes.in_use(&uid) {
            Err("volumes are still in use".to_owned())
        } else {
            shared.userns.release(&uid).await;
            let path = root.join(&name);
            let proc = shared.config.roots.proc.clone();
            sys::blocking::run(move || remove_pod_dir(&proc, &path))
                .await
                .unwrap_or_else(|error| Err(error.to_string()))
        };
        let Ok(mut stuck) = stuck.lock() else { return };
        match result {
            Ok(()) => {
                stuck.remove(&uid);
                tracing::info!(podUID = %uid, "removed the folder of a pod that is gone");
            }
            Err(reason) => {
                if stuck.get(&uid) != Some(&reason) {
                    tracing::warn!(podUID = %uid, err = reason, "the folder of a pod that is gone stays");
                    stuck.insert(uid, reason);
                }
            }
        }
    }
}

/// Removes a pod's folder; a mount anywhere below stops it before anything is lost.
fn remove_pod_dir(proc: &Path, path: &Path) -> Result<(), String> {
    let all = sys::removal::Contents::Everything;
    sys::removal::remove_tree(proc, path, all).map_err(|error| error.to_string())
}
