//! Folders of pods that are gone (upstream: `cleanupOrphanedPodDirs`).
//!
//! A folder is removed only when nothing is mounted below it; data is never removed: the volumes'
//! own folders must be empty, and whatever else lies in the pod's folder is removed without
//! crossing a mount.

use crate::env::{StepError, chain};
use crate::paths::Paths;
use api::ids::PodUid;
use std::collections::BTreeSet;
use std::path::Path;
use sys::mountinfo::{self, MountEntry};
use sys::removal::{Contents, remove_tree};

/// What one pass saw.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Pass {
    /// Folders of pods that nobody knows.
    pub(crate) seen: usize,
    /// Why some of them are still there, one line each.
    pub(crate) kept: Vec<String>,
}

/// The folders of all pods.
pub(crate) fn names(paths: &Paths) -> Result<Vec<String>, StepError> {
    match sys::fs::list_dir(paths.pods()) {
        Ok(uids) => Ok(uids),
        Err(e) if e.is_not_found() => Ok(Vec::new()),
        Err(e) => Err(e.into()),
    }
}

/// Removes the folders of pods that are gone.
pub(crate) fn clean(paths: &Paths, orphans: &BTreeSet<PodUid>) -> Result<Pass, StepError> {
    let mut pass = Pass::default();
    if orphans.is_empty() {
        return Ok(pass);
    }
    let table = mountinfo::read(paths.proc())?;
    for uid in orphans {
        pass.seen += 1;
        if let Err(reason) = remove_pod(paths, uid.as_str(), &table) {
            pass.kept.push(reason);
        }
    }
    Ok(pass)
}

fn remove_pod(paths: &Paths, uid: &str, table: &[MountEntry]) -> Result<(), String> {
    let pod = paths.pod(uid);
    if !mountinfo::at_or_below(table, &pod).is_empty() {
        return Err(format!("orphaned pod {uid:?} found, but volumes are not cleaned up"));
    }
    let volumes = paths.volumes(uid);
    for plugin in list(&volumes) {
        for name in list(&volumes.join(&plugin)) {
            let path = volumes.join(&plugin).join(name);
            sys::fs::remove_dir(&path).map_err(|e| {
                format!(
                    "orphaned pod {uid:?} found, but failed to rmdir() volume at path {}: {}",
                    path.display(),
                    chain(&e.source)
                )
            })?;
        }
    }
    crate::subpath::clean(&paths.sub_paths(uid), crate::subpath::Which::All)
        .map_err(|e| format!("orphaned pod {uid:?} found, but failed to remove subPaths: {e}"))?;
    remove_tree(paths.proc(), &volumes, Contents::DirsOnly).map_err(|e| {
        format!(
            "orphaned pod {uid:?} found, but error occurred when trying to remove the volumes dir: {}",
            chain(&e)
        )
    })?;
    remove_tree(paths.proc(), &pod, Contents::Everything).map_err(|e| {
        format!(
            "orphaned pod {uid:?} found, but error occurred when trying to remove the pod directory: {}",
            chain(&e)
        )
    })
}

fn list(dir: &Path) -> Vec<String> {
    sys::fs::list_dir(dir).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use ports::Roots;

    fn paths(name: &str) -> Paths {
        let kubelet =
            std::env::temp_dir().join(format!("rubelet-orphans-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&kubelet);
        std::fs::create_dir_all(&kubelet).unwrap();
        Paths::new(Roots { kubelet, ..Roots::default() })
    }

    fn pass(paths: &Paths) -> Pass {
        let mut orphans: BTreeSet<PodUid> =
            names(paths).unwrap().iter().map(|name| PodUid::from(name.as_str())).collect();
        orphans.remove("known");
        clean(paths, &orphans).unwrap()
    }

    #[test]
    fn only_unknown_pods_without_mounts_and_data_go() {
        let paths = paths("go");
        for uid in ["known", "gone", "data", "mounted"] {
            let volume = paths.volumes(uid).join("kubernetes.io~empty-dir/v");
            std::fs::create_dir_all(&volume).unwrap();
            std::fs::create_dir_all(paths.pod(uid).join("containers/c")).unwrap();
            std::fs::write(paths.pod(uid).join("containers/c/1234"), "bye").unwrap();
            std::fs::write(paths.pod(uid).join("etc-hosts"), "").unwrap();
        }
        std::fs::write(paths.volumes("data").join("kubernetes.io~empty-dir/v/user"), "x").unwrap();
        let mount = paths.volumes("mounted").join("kubernetes.io~empty-dir/v");
        sys::mount::mount_fs("tmpfs", &mount, "tmpfs", false, "size=64k").unwrap();
        std::fs::write(mount.join("precious"), "x").unwrap();

        let first = pass(&paths);
        assert_eq!(first.seen, 3);
        assert_eq!(first.kept.len(), 2, "{:?}", first.kept);
        assert!(first.kept[0].starts_with("orphaned pod \"data\" found, but failed to rmdir()"));
        assert_eq!(first.kept[1], "orphaned pod \"mounted\" found, but volumes are not cleaned up");
        assert_eq!(sys::fs::list_dir(paths.pods()).unwrap(), ["data", "known", "mounted"]);
        assert!(mount.join("precious").exists());
        assert!(paths.volumes("data").join("kubernetes.io~empty-dir/v/user").exists());

        sys::mount::unmount_all_at(&mount).unwrap();
        pass(&paths);
        assert!(!paths.pod("mounted").exists());
        std::fs::remove_dir_all(paths.pods().parent().unwrap()).unwrap();
    }
}
