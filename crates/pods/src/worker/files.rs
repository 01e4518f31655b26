//! Folders and files that a pod's containers need on the host.
//!
//! Promises: everything below the pod's own folder is made with the modes the Go kubelet uses;
//! nothing here follows a path that a container can write to.

use super::PodWorker;
use api::core::v1::{Container, Pod};
use engine::request::hostname::pod_hostname;
use engine::request::{hosts, paths};
use engine::runtime::{ContainerView, RuntimePod};
use std::io;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

impl PodWorker {
    /// `pods/<uid>` with `volumes` and `plugins`, 0750.
    pub(super) async fn make_pod_dirs(&self, _pod: &Pod) -> Result<(), String> {
        let root = self.shared.config.roots.pod_dir(self.uid.as_str());
        let made = sys::blocking::run_for_pod(self.uid.as_str(), move || {
            sys::fs::create_dir_all(&root, 0o750)?;
            sys::fs::create_dir_all(root.join("volumes"), 0o750)?;
            sys::fs::create_dir_all(root.join("plugins"), 0o750)
        });
        flat(made.await)
    }

    /// The pod's log folder, 0755.
    pub(super) async fn make_log_dir(&self, path: &str) -> Result<(), String> {
        let path = PathBuf::from(path);
        flat(
            sys::blocking::run_for_pod(self.uid.as_str(), move || {
                sys::fs::create_dir_all(path, 0o755)
            })
            .await,
        )
    }

    /// The file for a container's termination message, 0666; `None` when it cannot be made.
    pub(super) async fn termination_file(
        &self,
        pod: &Pod,
        container: &Container,
    ) -> Option<String> {
        if container.termination_message_path.as_deref().unwrap_or_default().is_empty() {
            return None;
        }
        let root = self.shared.config.roots.kubelet.to_string_lossy().into_owned();
        let folder = PathBuf::from(paths::termination_dir(&root, pod, &container.name));
        let number = (self.shared.jitter.next() * f64::from(u32::MAX)).round();
        let name = format!("{:08x}", crate::shared::to_u32(number));
        let made = sys::blocking::run_for_pod(self.uid.as_str(), move || -> io::Result<PathBuf> {
            sys::fs::create_dir_all(&folder, 0o750).map_err(|e| e.source)?;
            let path = folder.join(name);
            let file = std::fs::OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(true)
                .mode(0o666)
                .open(&path)?;
            // The umask must not take the container's right to write.
            file.set_permissions(std::fs::Permissions::from_mode(0o666))?;
            Ok(path)
        });
        match made.await {
            Ok(Ok(path)) => Some(path.to_string_lossy().into_owned()),
            Ok(Err(error)) => {
                tracing::error!(podUID = %self.uid, err = %error, "cannot make termination log");
                None
            }
            Err(_) => None,
        }
    }

    /// Writes the hosts file that the pod's containers share, if this container gets it.
    pub(super) async fn write_hosts(
        &self,
        pod: &Pod,
        container: &Container,
        ips: &[String],
    ) -> Result<(), String> {
        if !hosts::wants_hosts_file(pod, container, ips) {
            return Ok(());
        }
        let settings = &self.shared.config.request;
        let path = PathBuf::from(paths::hosts_file(&settings.kubelet_root, pod));
        let host_network = pod.spec.as_ref().and_then(|s| s.host_network).unwrap_or_default();
        let own = self.shared.config.roots.etc.join("hosts");
        let text = if host_network {
            None
        } else {
            let name = pod_hostname(pod, &settings.cluster_domain, settings.hostname_override)
                .map_err(|e| e.to_string())?;
            Some(hosts::managed_hosts(pod, &name, ips).into_bytes())
        };
        let pod = pod.clone();
        let written = sys::blocking::run_for_pod(self.uid.as_str(), move || {
            let bytes = match text {
                Some(bytes) => bytes,
                None => hosts::host_network_hosts(&pod, &sys::fs::read(own)?),
            };
            sys::fs::write(&path, bytes)?;
            // Containers have the file itself mounted: it is rewritten in place, never replaced.
            let mode = std::fs::Permissions::from_mode(0o644);
            std::fs::set_permissions(&path, mode).map_err(|source| sys::fs::FsError {
                operation: "chmod",
                path,
                source,
            })
        });
        flat(written.await)
    }

    /// Removes an instance's log files and its link.
    pub(super) async fn remove_logs(
        &self,
        runtime: &RuntimePod,
        view: &ContainerView,
    ) -> Result<(), String> {
        let log = PathBuf::from(&view.log_path);
        let link = self.shared.config.roots.container_logs.join(paths::log_symlink_name(
            &runtime.name,
            &runtime.namespace,
            &view.name,
            view.id.as_str(),
        ));
        flat(sys::blocking::run_for_pod(self.uid.as_str(), move || remove_logs(&log, &link)).await)
    }
}

/// Removes a log, its rotated parts and its link.
pub(crate) fn remove_logs(log: &Path, link: &Path) -> Result<(), sys::fs::FsError> {
    if let (Some(folder), Some(name)) = (log.parent(), log.file_name()) {
        let prefix = name.to_string_lossy().into_owned();
        match sys::fs::list_dir(folder) {
            Ok(names) => {
                for part in names.iter().filter(|n| n.starts_with(&prefix)) {
                    sys::fs::remove_file(folder.join(part))?;
                }
            }
            Err(error) if error.is_not_found() => {}
            Err(error) => return Err(error),
        }
    }
    sys::fs::remove_file(link)
}

/// Links `/var/log/containers/…` to a log that exists.
pub(super) fn link_log(log: &Path, link: &Path) -> io::Result<()> {
    if !log.try_exists()? {
        return Ok(());
    }
    if let Some(folder) = link.parent() {
        sys::fs::create_dir_all(folder, 0o755).map_err(|e| e.source)?;
    }
    match std::os::unix::fs::symlink(log, link) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}

/// One error text for work on the blocking pool.
fn flat<T>(
    result: Result<Result<T, sys::fs::FsError>, sys::blocking::BlockingError>,
) -> Result<T, String> {
    match result {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(error.in_go()),
        Err(error) => Err(error.to_string()),
    }
}
