//! Directories of the agent and the host, as values, so that a test can use a temporary folder.

use std::path::PathBuf;

/// Every directory that the agent uses by convention.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Roots {
    /// The kubelet root directory (`/var/lib/kubelet`).
    pub kubelet: PathBuf,
    /// Pod logs (`/var/log/pods`).
    pub pod_logs: PathBuf,
    /// Log symlinks (`/var/log/containers`).
    pub container_logs: PathBuf,
    /// `/proc`.
    pub proc: PathBuf,
    /// `/sys`.
    pub sys: PathBuf,
    /// `/etc`.
    pub etc: PathBuf,
    /// `/dev`.
    pub dev: PathBuf,
    /// Device plugin sockets: `/var/lib/kubelet/device-plugins` whatever the root directory is.
    pub device_plugins: PathBuf,
}

impl Default for Roots {
    fn default() -> Self {
        Self {
            kubelet: "/var/lib/kubelet".into(),
            pod_logs: "/var/log/pods".into(),
            container_logs: "/var/log/containers".into(),
            proc: "/proc".into(),
            sys: "/sys".into(),
            etc: "/etc".into(),
            dev: "/dev".into(),
            device_plugins: "/var/lib/kubelet/device-plugins".into(),
        }
    }
}

impl Roots {
    /// `pods/<uid>` under the root directory.
    pub fn pod_dir(&self, uid: &str) -> PathBuf {
        self.kubelet.join("pods").join(uid)
    }

    /// State that the Go kubelet does not have; deleting it is always safe.
    pub fn rubelet(&self) -> PathBuf {
        self.kubelet.join("rubelet")
    }
}
