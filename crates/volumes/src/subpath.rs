//! `subPath` of a volume, bound below `volume-subpaths` so that nobody can swap it afterwards.
//!
//! The path inside the volume belongs to the pod; it is resolved once, by the kernel, beneath the
//! volume (openat2), and the resulting descriptor is what gets mounted (open_tree, move_mount).
//! Whatever the pod renames meanwhile, either that descriptor is inside the volume or there is
//! none.

use crate::env::StepError;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Component, Path, PathBuf};
use sys::fs::FsError;
use sys::mount;
use sys::rooted_dir::{Dir, identity, is_dir, open_path};
use units::errno::go_text;

/// Why there is no bind.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SubPathError {
    /// The path itself is not acceptable; users see this text.
    #[error("{0}")]
    Invalid(String),
    /// A missing folder could not be made inside the volume.
    #[error("create: {0}")]
    Create(StepError),
    /// The path could not be resolved inside the volume, or not be mounted.
    #[error("prepare: {0}")]
    Prepare(#[from] StepError),
}

impl From<FsError> for SubPathError {
    fn from(error: FsError) -> Self {
        Self::Prepare(error.into())
    }
}

/// Binds `sub_path` of the volume at `volume` to `target` and returns the latter.
pub(crate) fn bind(volume: &Path, sub_path: &str, target: &Path) -> Result<PathBuf, SubPathError> {
    let relative = Path::new(sub_path);
    if relative.is_absolute() {
        return Err(SubPathError::Invalid(format!(
            "error SubPath `{sub_path}` must not be an absolute path"
        )));
    }
    if relative.components().any(|c| c == Component::ParentDir) {
        return Err(SubPathError::Invalid(format!(
            "unable to provision SubPath `{sub_path}`: must not contain '..'"
        )));
    }
    let root = Dir::open(volume).map_err(|e| match e.is_not_found() {
        // A hostPath that does not exist: upstream fails reading its mode.
        true => SubPathError::Invalid(format!("stat {}: {}", volume.display(), go_text(&e.source))),
        false => e.into(),
    })?;
    let source = match root.open_beneath(relative) {
        Err(e) if e.source.kind() == std::io::ErrorKind::CrossesDevices => {
            let plain = without_links(volume, relative).ok_or(e)?;
            open_or_make(&root, &plain)?
        }
        found => take_or_make(&root, relative, found)?,
    };
    let directory = is_dir(&source).map_err(|e| StepError::uncertain(e.to_string()))?;
    prepare(target, directory)?;
    if already(&source, target)? {
        return Ok(target.to_owned());
    }
    mount::unmount_all_at(target)?;
    let place = open_path(target)?;
    if let Err(e) = mount::bind_fd(&source, &place, target) {
        drop(place);
        undo(target, directory);
        return Err(e.into());
    }
    Ok(target.to_owned())
}

fn open_or_make(root: &Dir, relative: &Path) -> Result<OwnedFd, SubPathError> {
    take_or_make(root, relative, root.open_beneath(relative))
}

fn take_or_make(
    root: &Dir,
    relative: &Path,
    found: Result<OwnedFd, FsError>,
) -> Result<OwnedFd, SubPathError> {
    match found {
        Err(e) if e.is_not_found() => {
            root.make_beneath(relative, root.mode()?).map_err(|e| SubPathError::Create(e.into()))
        }
        found => Ok(found?),
    }
}

/// The same path without links, as seen from the host: an absolute link may point back into the volume
/// (`/data/current` → `/data/releases/7` in a volume of `/data`). The result is not trusted: the kernel
/// checks again that it is below the volume when it is opened.
fn without_links(volume: &Path, relative: &Path) -> Option<PathBuf> {
    let base = std::fs::canonicalize(volume).ok()?;
    let mut existing = relative;
    let mut real = std::fs::canonicalize(volume.join(existing));
    while real.is_err() {
        existing = existing.parent()?;
        real = std::fs::canonicalize(volume.join(existing));
    }
    let rest = relative.strip_prefix(existing).ok()?;
    let real = real.ok()?;
    Some(Path::new(".").join(real.strip_prefix(&base).ok()?).join(rest))
}

fn prepare(target: &Path, directory: bool) -> Result<(), StepError> {
    let Some(parent) = target.parent() else {
        return Err(StepError::settled("the subPath has no place"));
    };
    sys::fs::create_dir_all(parent, 0o750)?;
    let found = std::fs::symlink_metadata(target).ok();
    let mounted = found.is_some() && mount::is_mount_point(target).unwrap_or(false);
    if let Some(found) = found {
        if mounted || found.is_dir() == directory {
            return Ok(());
        }
        undo(target, found.is_dir());
    }
    if directory {
        sys::fs::create_dir_all(target, 0o750)?;
    } else {
        sys::fail_point::before("create", target)?;
        std::fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o640)
            .open(target)
            .map_err(|e| StepError::uncertain(format!("create {}: {e}", target.display())))?;
    }
    Ok(())
}

/// Whether exactly this file or folder is already bound to the target.
fn already(source: impl std::os::fd::AsFd, target: &Path) -> Result<bool, StepError> {
    if !mount::is_mount_point(target)? {
        return Ok(false);
    }
    let shown = open_path(target)?;
    let same = identity(shown).and_then(|shown| Ok(shown == identity(source)?));
    same.map_err(|e| StepError::uncertain(e.to_string()))
}

fn undo(target: &Path, directory: bool) {
    let result = if directory { sys::fs::remove_dir(target) } else { sys::fs::remove_file(target) };
    if let Err(e) = result {
        tracing::warn!(path = %target.display(), err = %crate::env::chain(&e),
            "could not remove an unused subPath");
    }
}

/// Which binds of a pod to remove.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Which<'a> {
    /// All of them.
    All,
    /// Those of one container.
    Container(&'a str),
    /// Those of one volume (by its spec name).
    Volume(&'a str),
}

/// Unmounts and removes binds below `volume-subpaths`; a missing folder is no error. Also works after
/// the folder inside the volume was deleted.
pub(crate) fn clean(top: &Path, which: Which<'_>) -> Result<(), StepError> {
    for volume in list(top)? {
        if matches!(which, Which::Volume(name) if name != volume) {
            continue;
        }
        let volume_dir = top.join(&volume);
        for container in list(&volume_dir)? {
            if matches!(which, Which::Container(name) if name != container) {
                continue;
            }
            let container_dir = volume_dir.join(&container);
            for index in list(&container_dir)? {
                remove_bind(&container_dir.join(index))?;
            }
            sys::fs::remove_dir(&container_dir)?;
        }
        remove_if_empty(&volume_dir)?;
    }
    remove_if_empty(top)
}

fn list(dir: &Path) -> Result<Vec<String>, StepError> {
    match sys::fs::list_dir(dir) {
        Ok(names) => Ok(names),
        Err(e) if e.is_not_found() => Ok(Vec::new()),
        Err(e) => Err(e.into()),
    }
}

fn remove_bind(path: &Path) -> Result<(), StepError> {
    mount::unmount_all_at(path)?;
    match std::fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => Ok(sys::fs::remove_dir(path)?),
        Ok(_) => Ok(sys::fs::remove_file(path)?),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(StepError::uncertain(format!("stat {}: {e}", path.display()))),
    }
}

fn remove_if_empty(dir: &Path) -> Result<(), StepError> {
    if list(dir)?.is_empty() {
        sys::fs::remove_dir(dir)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    fn scratch(name: &str) -> PathBuf {
        let dir =
            std::env::temp_dir().join(format!("rubelet-subpath-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(dir.join("v")).unwrap();
        dir
    }

    #[test]
    fn folders_and_files_are_bound_and_cleaned() {
        let top = scratch("bind");
        let (volume, sub) = (top.join("v"), top.join("volume-subpaths"));
        std::fs::set_permissions(&volume, std::fs::Permissions::from_mode(0o2770)).unwrap();
        std::fs::write(volume.join("file"), "content").unwrap();
        let folder = bind(&volume, "a/b", &sub.join("v/c/0")).unwrap();
        let mode = std::fs::metadata(volume.join("a/b")).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o2770, "a new folder has the volume's mode");
        let file = bind(&volume, "file", &sub.join("v/c/1")).unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "content");
        assert!(mount::is_mount_point(&folder).unwrap());
        // Asking again reuses the bind.
        bind(&volume, "a/b", &sub.join("v/c/0")).unwrap();
        let table = sys::mountinfo::read(Path::new("/proc")).unwrap();
        assert_eq!(sys::mountinfo::at_or_below(&table, &sub).len(), 2);
        // Another folder of the same name replaces it.
        std::fs::rename(volume.join("a/b"), volume.join("a/old")).unwrap();
        std::fs::create_dir(volume.join("a/b")).unwrap();
        std::fs::write(volume.join("a/b/new"), "").unwrap();
        bind(&volume, "a/b", &sub.join("v/c/0")).unwrap();
        assert!(folder.join("new").exists());
        // Cleaning works although the folder is gone.
        std::fs::remove_dir_all(volume.join("a")).unwrap();
        clean(&sub, Which::Volume("other")).unwrap();
        assert!(sub.exists());
        clean(&sub, Which::All).unwrap();
        assert!(!sub.exists());
        std::fs::remove_dir_all(&top).unwrap();
    }

    #[test]
    fn links_out_of_the_volume_are_refused() {
        let top = scratch("escape");
        let (volume, sub) = (top.join("v"), top.join("s"));
        symlink("/etc", volume.join("etc")).unwrap();
        symlink("..", volume.join("up")).unwrap();
        symlink("../../../../../../../../etc/passwd", volume.join("passwd")).unwrap();
        for path in ["etc", "etc/passwd", "up", "up/x", "passwd", "../x", "/etc", "etc/new"] {
            assert!(bind(&volume, path, &sub.join("v/c/0")).is_err(), "{path}");
        }
        let table = sys::mountinfo::read(Path::new("/proc")).unwrap();
        assert_eq!(sys::mountinfo::at_or_below(&table, &sub).len(), 0);
        std::fs::remove_dir_all(&top).unwrap();
    }

    #[test]
    fn links_that_come_back_into_the_volume_are_followed() {
        let top = scratch("back");
        let (volume, sub) = (top.join("v"), top.join("s"));
        std::fs::create_dir_all(volume.join("releases/7")).unwrap();
        std::fs::write(volume.join("releases/7/file"), "7").unwrap();
        symlink(volume.join("releases/7"), volume.join("current")).unwrap();
        symlink("../v/releases", volume.join("around")).unwrap();
        symlink(&volume, volume.join("self")).unwrap();
        for (index, path) in ["current", "around/7", "self/current", "self"].iter().enumerate() {
            let bound = bind(&volume, path, &sub.join(format!("v/c/{index}"))).unwrap();
            let file = if *path == "self" { "releases/7/file" } else { "file" };
            assert_eq!(std::fs::read_to_string(bound.join(file)).unwrap(), "7", "{path}");
        }
        bind(&volume, "current/new/er", &sub.join("v/c/9")).unwrap();
        assert!(volume.join("releases/7/new/er").is_dir());
        clean(&sub, Which::All).unwrap();
        let missing = bind(&top.join("gone"), "x", &sub.join("v/c/0")).unwrap_err().to_string();
        assert_eq!(
            missing,
            format!("stat {}: no such file or directory", top.join("gone").display())
        );
        std::fs::remove_dir_all(&top).unwrap();
    }

    /// The attack of CVE-2021-25741: a folder and a link to the host are exchanged all the time.
    #[test]
    fn a_folder_exchanged_for_a_link_during_the_mount_never_shows_the_host() {
        let top = scratch("race");
        let (volume, sub, host) = (top.join("v"), top.join("s"), top.join("host"));
        std::fs::create_dir_all(volume.join("a/dir")).unwrap();
        std::fs::write(volume.join("a/dir/inside"), "").unwrap();
        std::fs::create_dir_all(host.join("dir")).unwrap();
        std::fs::write(host.join("dir/secret"), "").unwrap();
        symlink(&host, volume.join("evil")).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let (done, path) = (Arc::clone(&stop), volume.clone());
        let attacker = std::thread::spawn(move || {
            let (a, evil) = (path.join("a"), path.join("evil"));
            while !done.load(Ordering::Relaxed) {
                sys::fs::exchange(&a, &evil).unwrap();
            }
        });
        let (mut good, mut refused) = (0, 0);
        for round in 0..2000 {
            let target = sub.join(format!("v/c/{round}"));
            match bind(&volume, "a/dir", &target) {
                Ok(bound) => {
                    assert!(!bound.join("secret").exists(), "round {round}");
                    good += 1;
                    remove_bind(&bound).unwrap();
                }
                Err(_) => refused += 1,
            }
        }
        stop.store(true, Ordering::Relaxed);
        attacker.join().unwrap();
        assert!(good > 0 && refused > 0, "the race was not exercised: {good} {refused}");
        clean(&sub, Which::All).unwrap();
        assert_eq!(sys::fs::list_dir(host.join("dir")).unwrap(), ["secret"]);
        std::fs::remove_dir_all(&top).unwrap();
    }
}
