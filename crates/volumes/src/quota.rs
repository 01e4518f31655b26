//! Volumes whose usage the filesystem tracks by a project quota (gate
//! `LocalStorageCapacityIsolationFSQuotaMonitoring`).
//!
//! Owns: the lines of pod volumes in the host's project files, which the Go kubelet reads and writes too. A
//! volume of a pod in a user namespace is put into a project of its own when it is made, and out of it before
//! it is removed. After a restart its project is read from these lines.
//!
//! Promises: where there are no quotas nothing is done, and volumes are measured by a walk.

use crate::env::{StepError, chain};
use api::core::v1::Pod;
use engine::volumes::{MOST_USED, ProjectId, Projects, QuotaFilesystem, VolumeSpec, quota_size};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use sys::fs::FsError;
use sys::locked::LockedFile;
use sys::quota;
use sys::stats::FolderUsage;

/// Assigns folders to projects. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Quotas {
    enabled: bool,
    etc: PathBuf,
    counted: Arc<Mutex<BTreeMap<PathBuf, ProjectId>>>,
}

/// A folder that is to get a project, for a volume of this size.
#[derive(Debug, Clone)]
pub(crate) struct Wanted {
    quotas: Quotas,
    size: i64,
}

impl Wanted {
    /// Assigns a project to the folder if its filesystem supports quotas.
    pub(crate) fn assign(&self, dir: &Path) -> Result<(), StepError> {
        self.quotas.assign(dir, self.size)
    }
}

impl Quotas {
    /// With the host's project files in `etc`.
    pub(crate) fn new(enabled: bool, etc: &Path) -> Self {
        Self { enabled, etc: etc.to_owned(), counted: Arc::default() }
    }

    /// Whether the pod's volume is to get a project.
    pub(crate) fn wanted(&self, pod: &Pod, spec: &VolumeSpec) -> Option<Wanted> {
        let size = quota_size(pod, spec).filter(|_| self.enabled)?;
        Some(Wanted { quotas: self.clone(), size })
    }

    /// The folder's usage by its quota; `None` if it has none or the quota cannot be read.
    pub(crate) fn usage(&self, dir: &Path) -> Option<FolderUsage> {
        let id = *self.counted.lock().ok()?.get(dir)?;
        match quota::usage(dir, id) {
            Ok(usage) => Some(usage),
            Err(e) => {
                tracing::debug!(path = %dir.display(), err = %chain(&e), "could not read quota");
                None
            }
        }
    }

    fn assign(&self, dir: &Path, size: i64) -> Result<(), StepError> {
        if self.counted.lock().is_ok_and(|counted| counted.contains_key(dir)) {
            return Ok(());
        }
        let filesystem = match filesystem(dir) {
            Ok(Some(filesystem)) => filesystem,
            Ok(None) => return Ok(()),
            Err(e) => {
                tracing::debug!(path = %dir.display(), err = %chain(&e), "unable to check for quota support");
                return Ok(());
            }
        };
        let failed = |why: String| StepError::uncertain(format!("assign quota FAILED {why}"));
        let id = self
            .create(dir)
            .map_err(|why| failed(format!("createProjectID {} 0 failed {why}", dir.display())))?;
        let limit = filesystem.limit(size);
        let set = quota::set_limit(dir, id, limit).and_then(|()| quota::assign(dir, id));
        if let Err(e) = set {
            if let Err(why) = self.remove(dir, id) {
                tracing::warn!(path = %dir.display(), id, err = why, "project is left in the project files");
            }
            return Err(failed(chain(&e)));
        }
        tracing::debug!(path = %dir.display(), id, requestedLimit = size, limit, "assigned quota");
        if let Ok(mut counted) = self.counted.lock() {
            counted.insert(dir.to_owned(), id);
        }
        Ok(())
    }

    /// Takes the folder out of its project, if it has one. Its files count for the project until they are
    /// removed, so the project number is not reused before that.
    pub(crate) fn clear(&self, dir: &Path) {
        if !self.enabled {
            return;
        }
        if let Ok(mut counted) = self.counted.lock() {
            counted.remove(dir);
        }
        if let Err(why) = self.try_clear(dir) {
            tracing::warn!(path = %dir.display(), err = why, "failed to clear quota");
        }
    }

    fn try_clear(&self, dir: &Path) -> Result<(), String> {
        // The project files are neither created nor locked for a folder without a project.
        let projects = match sys::fs::read(self.etc.join("projects")) {
            Ok(bytes) => Projects::parse(&bytes, b""),
            Err(e) if e.is_not_found() => return Ok(()),
            Err(e) => return Err(chain(&e)),
        };
        let Some(id) = projects.id_of(&dir.to_string_lossy()) else { return Ok(()) };
        // The folder may be gone, or a crash may have come before it was put into the project.
        let limit = match quota::project(dir) {
            Ok(found) if found == id => quota::set_limit(dir, id, 0).map_err(|e| chain(&e)),
            _ => Ok(()),
        };
        // Even if the limit could not be cleared: a stale line would be worse.
        self.remove(dir, id)?;
        limit
    }

    /// The project of the folder: the one it has in the files, else a new one that is in neither and that the
    /// filesystem does not count yet.
    fn create(&self, dir: &Path) -> Result<ProjectId, String> {
        let files = self.lock()?;
        let mut projects = files.parse()?;
        let shown = dir.to_string_lossy();
        if let Some(id) = projects.id_of(&shown) {
            return Ok(id);
        }
        for id in projects.free().take(MOST_USED + 1) {
            let usage = quota::usage(dir, id).map_err(|e| chain(&e))?;
            if usage == FolderUsage::default() {
                projects.add(&shown, id);
                files.write(&projects)?;
                return Ok(id);
            }
        }
        Err("cannot find available quota ID".to_owned())
    }

    fn remove(&self, dir: &Path, id: ProjectId) -> Result<(), String> {
        let removed = || {
            let files = self.lock()?;
            let mut projects = files.parse()?;
            projects.remove(&dir.to_string_lossy(), id).map_err(|e| e.to_string())?;
            files.write(&projects)
        };
        removed()
            .map_err(|why: String| format!("removeProjectID {} {id} failed {why}", dir.display()))
    }

    fn lock(&self) -> Result<Files, String> {
        let open = |name: &str| {
            let path = self.etc.join(name);
            LockedFile::open(&path, 0o644).map_err(|e| match e.source.kind() {
                std::io::ErrorKind::InvalidInput => format!(
                    "system project files failed verification: {} exists but is not a plain file, cannot continue",
                    path.display()
                ),
                _ => format!("unable to {}", chain(&e)),
            })
        };
        // Opened and locked in the Go kubelet's order.
        Ok(Files { projects: open("projects")?, projid: open("projid")? })
    }
}

/// The filesystem of the folder, if project quota accounting is on.
fn filesystem(dir: &Path) -> Result<Option<QuotaFilesystem>, FsError> {
    let magic = sys::mount::fs_magic(dir)?;
    // Accounting is read only from filesystem types that support it.
    if QuotaFilesystem::of(magic, true).is_none() {
        return Ok(None);
    }
    Ok(QuotaFilesystem::of(magic, quota::accounting(dir)?))
}

/// Both project files, locked.
struct Files {
    projects: LockedFile,
    projid: LockedFile,
}

impl Files {
    fn parse(&self) -> Result<Projects, String> {
        let read = |file: &LockedFile| file.read().map_err(|e| chain(&e));
        Ok(Projects::parse(&read(&self.projects)?, &read(&self.projid)?))
    }

    /// Writes the names first: a number that has a name is not handed out again.
    fn write(self, projects: &Projects) -> Result<(), String> {
        let wrote = self.projid.replace(&projects.projid());
        let wrote = wrote.and_then(|()| self.projects.replace(&projects.projects()));
        wrote.map_err(|e| format!("unable to write project files: {}", chain(&e)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn etc(name: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("rubelet-quota-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(dir.join("volume")).unwrap();
        dir
    }

    #[test]
    fn a_folder_keeps_its_project_over_a_restart_and_loses_it_when_it_goes() {
        let etc = etc("lines");
        std::fs::write(etc.join("projects"), "# mine\n1048577:/data\n").unwrap();
        std::fs::write(etc.join("projid"), "data:1048577\n").unwrap();
        let dir = etc.join("volume");
        // Without kernel quotas no new project number can be chosen, so the line is written beforehand.
        let line = format!("1048578:{}\n", dir.display());
        std::fs::write(etc.join("projects"), format!("# mine\n1048577:/data\n{line}")).unwrap();
        std::fs::write(etc.join("projid"), "data:1048577\nvolume1048578:1048578\n").unwrap();
        let quotas = Quotas::new(true, &etc);
        assert_eq!(quotas.create(&dir), Ok(1_048_578));
        Quotas::new(false, &etc).clear(&dir);
        let read = |name: &str| std::fs::read_to_string(etc.join(name)).unwrap();
        assert_eq!(read("projects"), format!("# mine\n1048577:/data\n{line}"), "off is off");
        quotas.clear(&dir);
        assert_eq!(
            (read("projects"), read("projid")),
            ("# mine\n1048577:/data\n".into(), "data:1048577\n".into())
        );
        quotas.clear(&dir);
        assert_eq!(read("projects"), "# mine\n1048577:/data\n");
        std::fs::remove_dir_all(&etc).unwrap();
    }

    #[test]
    fn without_quotas_on_the_disk_nothing_is_written_and_nothing_is_counted() {
        let etc = etc("none");
        let quotas = Quotas::new(true, &etc);
        let dir = etc.join("volume");
        quotas.assign(&dir, 1 << 20).unwrap();
        quotas.clear(&dir);
        assert_eq!(quotas.usage(&dir), None);
        assert_eq!(sys::fs::list_dir(&etc).unwrap(), ["volume"]);
        std::fs::remove_dir_all(&etc).unwrap();
    }

    #[test]
    fn project_files_that_are_links_are_refused_in_upstreams_words() {
        let etc = etc("links");
        std::fs::write(etc.join("elsewhere"), "").unwrap();
        std::os::unix::fs::symlink(etc.join("elsewhere"), etc.join("projid")).unwrap();
        let refused = Quotas::new(true, &etc).create(&etc.join("volume")).unwrap_err();
        let path = etc.join("projid");
        assert_eq!(
            refused,
            format!(
                "system project files failed verification: {} exists but is not a plain file, cannot continue",
                path.display()
            )
        );
        std::fs::remove_dir_all(&etc).unwrap();
    }
}
