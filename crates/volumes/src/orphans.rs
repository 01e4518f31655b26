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
use units::errno::go_text;

/// What one pass saw.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Pass {
    /// Folders of unknown pods.
    pub(crate) seen: usize,
    /// How many of them are still there.
    pub(crate) kept: usize,
    /// Pods below whose volumes something is mounted.
    pub(crate) mounted: Vec<String>,
    /// Errors about volumes, one line each.
    pub(crate) volume_errors: Vec<String>,
    /// Errors about anything else.
    pub(crate) removal_errors: Vec<String>,
}

/// The folders of all pods. Other entries are ignored, in particular symbolic links, which lead elsewhere
/// (kubelet: `listPodsFromDisk`).
pub(crate) fn names(paths: &Paths) -> Result<Vec<String>, StepError> {
    match sys::fs::list_dir(paths.pods()) {
        Ok(mut uids) => {
            uids.retain(|uid| sys::fs::is_folder(paths.pod(uid)));
            Ok(uids)
        }
        Err(e) if e.is_not_found() => Ok(Vec::new()),
        Err(e) => Err(e.into()),
    }
}

/// Removes the folders of pods that are gone; those of pods that still have volumes (`held`) are only counted.
pub(crate) fn clean(
    paths: &Paths,
    orphans: &BTreeSet<PodUid>,
    held: &BTreeSet<PodUid>,
) -> Result<Pass, StepError> {
    let mounted = held.iter().map(PodUid::to_string).collect();
    let mut pass = Pass { seen: held.len(), kept: held.len(), mounted, ..Pass::default() };
    if orphans.is_empty() {
        return Ok(pass);
    }
    let table = mountinfo::read(paths.proc())?;
    for uid in orphans {
        pass.seen += 1;
        if !pass.remove_pod(paths, uid.as_str(), &table) {
            pass.kept += 1;
        }
    }
    Ok(pass)
}

impl Pass {
    /// Removes one pod's folder; returns whether it is gone.
    fn remove_pod(&mut self, paths: &Paths, uid: &str, table: &[MountEntry]) -> bool {
        if !mountinfo::at_or_below(table, &paths.volumes(uid)).is_empty() {
            self.mounted.push(uid.to_owned());
            return false;
        }
        let before = self.volume_errors.len();
        self.remove_volumes(paths, uid);
        if self.volume_errors.len() > before {
            return false;
        }
        let before = self.removal_errors.len();
        self.remove_rest(paths, uid);
        self.removal_errors.len() == before
    }

    fn remove_volumes(&mut self, paths: &Paths, uid: &str) {
        let volumes = paths.volumes(uid);
        for plugin in list(&volumes) {
            for name in list(&volumes.join(&plugin)) {
                let path = volumes.join(&plugin).join(name);
                if let Err(e) = sys::fs::remove_dir(&path) {
                    self.volume_errors.push(format!(
                        "orphaned pod {uid:?} found, but failed to rmdir() volume at path {}: {}",
                        path.display(),
                        go_text(&e.source)
                    ));
                }
            }
        }
        let top = paths.sub_paths(uid);
        for volume in list(&top) {
            for container in list(&top.join(&volume)) {
                let folder = top.join(&volume).join(container);
                for path in list(&folder).into_iter().map(|index| folder.join(index)) {
                    // A bind target is a folder or a file, depending on what was bound.
                    let removed = match path.is_dir() && !path.is_symlink() {
                        true => sys::fs::remove_dir(&path),
                        false => sys::fs::remove_file(&path),
                    };
                    if let Err(e) = removed {
                        let (path, why) = (path.display(), go_text(&e.source));
                        self.volume_errors.push(format!(
                            "orphaned pod {uid:?} found, but failed to remove subpath at path {path}: remove {path}: {why}"
                        ));
                    }
                }
            }
        }
        if let Err(e) = remove_tree(paths.proc(), &volumes, Contents::DirsOnly) {
            self.volume_errors.push(format!(
                "orphaned pod {uid:?} found, but error occurred when trying to remove the volumes dir: {}",
                chain(&e)
            ));
        }
    }

    fn remove_rest(&mut self, paths: &Paths, uid: &str) {
        let pod = paths.pod(uid);
        for path in list(&pod).into_iter().map(|name| pod.join(name)) {
            let removed = match path.is_dir() && !path.is_symlink() {
                true => remove_tree(paths.proc(), &path, Contents::Everything),
                false => sys::fs::remove_file(&path).map_err(Into::into),
            };
            if let Err(e) = removed {
                self.removal_errors.push(format!(
                    "orphaned pod {uid:?} found, but error occurred when trying to remove subdir {:?}: {}",
                    path.display().to_string(),
                    chain(&e)
                ));
            }
        }
        if let Err(e) = sys::fs::remove_dir(&pod) {
            self.removal_errors.push(format!(
                "orphaned pod {uid:?} found, but error occurred when trying to remove the pod directory: {}",
                go_text(&e.source)
            ));
        }
    }
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
        clean(paths, &orphans, &BTreeSet::new()).unwrap()
    }

    #[test]
    fn what_is_no_folder_is_nobodys_and_links_are_not_followed() {
        let paths = paths("stray");
        let elsewhere = paths.pods().parent().unwrap().join("elsewhere");
        std::fs::create_dir_all(&elsewhere).unwrap();
        std::fs::create_dir_all(paths.pods()).unwrap();
        std::fs::write(elsewhere.join("precious"), "x").unwrap();
        std::os::unix::fs::symlink(&elsewhere, paths.pod("link")).unwrap();
        std::fs::write(paths.pod("core.1234"), "x").unwrap();
        let pass = pass(&paths);
        assert_eq!((pass.seen, pass.removal_errors.len()), (0, 0));
        assert_eq!(sys::fs::list_dir(paths.pods()).unwrap(), ["core.1234", "link"]);
        assert!(elsewhere.join("precious").exists());
        std::fs::remove_dir_all(paths.pods().parent().unwrap()).unwrap();
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
        assert_eq!((first.seen, first.kept), (3, 2));
        assert_eq!(first.mounted, ["mounted"]);
        let volume = paths.volumes("data").join("kubernetes.io~empty-dir/v");
        assert_eq!(
            first.volume_errors[0],
            format!(
                "orphaned pod \"data\" found, but failed to rmdir() volume at path {}: directory not empty",
                volume.display()
            )
        );
        assert!(
            first.volume_errors[1]
                .starts_with("orphaned pod \"data\" found, but error occurred when trying to remove the volumes dir: ")
        );
        assert!(first.removal_errors.is_empty());
        assert_eq!(sys::fs::list_dir(paths.pods()).unwrap(), ["data", "known", "mounted"]);
        assert!(mount.join("precious").exists());
        assert!(paths.volumes("data").join("kubernetes.io~empty-dir/v/user").exists());

        // Pods that still have volumes are not examined.
        let held = [PodUid::from("data")].into();
        let known = clean(&paths, &BTreeSet::new(), &held).unwrap();
        assert_eq!((known.seen, known.kept, known.volume_errors.len()), (1, 1, 0));
        assert_eq!(known.mounted, ["data"]);

        sys::mount::unmount_all_at(&mount).unwrap();
        pass(&paths);
        assert!(!paths.pod("mounted").exists());
        std::fs::remove_dir_all(paths.pods().parent().unwrap()).unwrap();
    }
}
