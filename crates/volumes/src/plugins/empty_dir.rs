//! emptyDir on disk, in memory and in huge pages; also the wrapper below content volumes.

use super::{MountInput, UnmountInput};
use crate::env::{Env, StepError, chain};
use crate::ownership::Owner;
use crate::pool::NORMAL;
use crate::quota::{Quotas, Wanted};
use api::core::v1::Pod;
use engine::volumes::{Plugin, huge_page_option, memory_volume_size};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use sys::mount;
use sys::removal::{Contents, remove_tree};

/// The medium of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Medium {
    /// The node's disk.
    Disk,
    /// tmpfs with these options.
    Memory(String),
    /// hugetlbfs with this option.
    HugePages(String),
}

/// A folder to be made.
#[derive(Debug, Clone)]
pub(crate) struct EmptyDir {
    pub(crate) dir: PathBuf,
    pub(crate) meta: PathBuf,
    pub(crate) medium: Medium,
    pub(crate) owner: Owner,
    /// The project quota that tracks its usage, for the disk medium.
    pub(crate) quota: Option<Wanted>,
    pub(crate) proc: PathBuf,
}

/// The options of a memory volume of this pod.
pub(crate) fn memory_options(
    env: &Env,
    pod: &Pod,
    size_limit: Option<&api::machinery::api::resource::Quantity>,
) -> String {
    static NOSWAP: OnceLock<bool> = OnceLock::new();
    let allocatable = env
        .allocatable()
        .get("memory")
        .and_then(|q| q.0.parse::<units::Quantity>().ok())
        .map_or(0, units::Quantity::value);
    let size = memory_volume_size(pod, allocatable, size_limit);
    let mut options = Vec::new();
    if size > 0 {
        options.push(format!("size={size}"));
    }
    if *NOSWAP.get_or_init(mount::tmpfs_knows_noswap) {
        options.push("noswap".to_owned());
    }
    options.join(",")
}

pub(crate) async fn set_up(env: &Env, input: &MountInput) -> Result<(), StepError> {
    let source = input.spec.as_inline().and_then(|v| v.empty_dir.as_ref());
    let medium = source.and_then(|s| s.medium.as_deref()).unwrap_or_default();
    let medium = match medium {
        "" => Medium::Disk,
        "Memory" => Medium::Memory(memory_options(
            env,
            &input.pod,
            source.and_then(|s| s.size_limit.as_ref()),
        )),
        huge if huge.starts_with("HugePages") => Medium::HugePages(
            huge_page_option(&input.pod, huge).map_err(|e| StepError::settled(e.to_string()))?,
        ),
        other => return Err(StepError::settled(format!("unknown storage medium {other:?}"))),
    };
    let empty = EmptyDir {
        dir: env.paths.volume(&input.uid, &Plugin::EmptyDir, &input.spec.name),
        meta: env.paths.meta(&input.uid, &Plugin::EmptyDir, &input.spec.name),
        medium,
        owner: Owner::of(env, &input.pod),
        quota: env.quotas.wanted(&input.pod, &input.spec),
        proc: env.paths.proc().to_owned(),
    };
    let key = empty.dir.to_string_lossy().into_owned();
    input.step.enter("making the empty directory");
    env.pool.run(&key, "set up", NORMAL, move || empty.make()).await?
}

impl EmptyDir {
    /// Makes the folder; one that is ready is left alone.
    pub(crate) fn make(&self) -> Result<(), StepError> {
        let ready = self.meta.join("ready");
        let mounted = match mount::is_mount_point(&self.dir) {
            Ok(mounted) => Some(mounted),
            Err(e) if e.is_not_found() => None,
            Err(e) => return Err(e.into()),
        };
        if sys::fs::try_exists(&ready)? {
            match (&self.medium, mounted) {
                (Medium::Disk, Some(_)) => return self.count(),
                (Medium::Memory(_), Some(true)) => return Ok(()),
                (Medium::Disk, None) => {
                    tracing::warn!(path = %self.dir.display(), "volume directory is missing");
                    remove_tree(&self.proc, &self.meta, Contents::Everything)?;
                }
                _ => {}
            }
        }
        self.make_dir()?;
        match &self.medium {
            Medium::Disk => {}
            Medium::Memory(options) => self.mount_once("tmpfs", "tmpfs", options)?,
            Medium::HugePages(options) => self.mount_once("nodev", "hugetlbfs", options)?,
        }
        if let Err(e) = self.owner.take(&self.dir, false, Plugin::EmptyDir.name()) {
            tracing::warn!(path = %self.dir.display(), err = %e, "could not set ownership");
        }
        sys::fs::create_dir_all(&self.meta, 0o750)?;
        sys::fs::write(&ready, "")?;
        self.count()
    }

    fn count(&self) -> Result<(), StepError> {
        self.quota.as_ref().map_or(Ok(()), |quota| quota.assign(&self.dir))
    }

    fn make_dir(&self) -> Result<(), StepError> {
        sys::fs::create_dir_all(&self.dir, 0o777)?;
        let mode = std::fs::Permissions::from_mode(0o777);
        sys::fail_point::before("chmod", &self.dir)?;
        std::fs::set_permissions(&self.dir, mode)
            .map_err(|e| StepError::uncertain(format!("chmod {}: {e}", self.dir.display())))
    }

    fn mount_once(&self, source: &str, fs: &str, options: &str) -> Result<(), StepError> {
        let magic = if fs == "tmpfs" { mount::TMPFS_MAGIC } else { mount::HUGETLBFS_MAGIC };
        if mount::is_mount_point(&self.dir)? {
            if mount::fs_magic(&self.dir)? != magic {
                return Err(StepError::uncertain(format!(
                    "{} is already a mount point of another kind",
                    self.dir.display()
                )));
            }
            return if fs == "tmpfs" { Ok(()) } else { self.check_page_size(options) };
        }
        Ok(mount::mount_fs(source, &self.dir, fs, false, options)?)
    }

    fn check_page_size(&self, option: &str) -> Result<(), StepError> {
        let table = sys::mountinfo::read(&self.proc)?;
        let found = table.iter().rev().find(|m| m.mount_point == self.dir);
        let same = found.is_some_and(|m| m.super_options.iter().any(|o| o == option));
        if same {
            return Ok(());
        }
        Err(StepError::uncertain(format!(
            "mounted dir {} has another page size than the requested {option}",
            self.dir.display()
        )))
    }
}

pub(crate) async fn tear_down(
    env: &Env,
    input: &UnmountInput,
    meta_name: &str,
) -> Result<(), StepError> {
    let dir = env.paths.volume(&input.uid, &input.spec.plugin, &input.spec.name);
    let meta = env.paths.meta(&input.uid, &Plugin::EmptyDir, meta_name);
    let proc = env.paths.proc().to_owned();
    let quotas = env.quotas.clone();
    let key = dir.to_string_lossy().into_owned();
    input.step.enter("removing the directory");
    env.pool.run(&key, "tear down", NORMAL, move || remove(&quotas, &proc, &dir, &meta)).await?
}

/// The reverse of [`EmptyDir::make`].
pub(crate) fn remove(
    quotas: &Quotas,
    proc: &Path,
    dir: &Path,
    meta: &Path,
) -> Result<(), StepError> {
    remove_tree(proc, meta, Contents::Everything)?;
    match mount::is_mount_point(dir) {
        Ok(false) => quotas.clear(dir),
        Ok(true) => {
            // Only file systems that the kubelet mounts; another mount stays, and so does the folder.
            let magic = mount::fs_magic(dir)?;
            if magic == mount::TMPFS_MAGIC || magic == mount::HUGETLBFS_MAGIC {
                mount::unmount(dir, mount::Unmount::Plain)?;
            }
        }
        Err(e) if e.is_not_found() => return Ok(()),
        Err(e) => return Err(StepError::uncertain(chain(&e))),
    }
    Ok(remove_tree(proc, dir, Contents::Everything)?)
}
