//! Where volumes live on disk: the Go kubelet's layout.

use engine::volumes::{Plugin, VolumeSpec};
use ports::Roots;
use std::path::{Path, PathBuf};

/// Paths below the kubelet's root directory.
#[derive(Debug, Clone)]
pub(crate) struct Paths {
    roots: Roots,
}

impl Paths {
    pub(crate) fn new(roots: Roots) -> Self {
        Self { roots }
    }

    pub(crate) fn proc(&self) -> &Path {
        &self.roots.proc
    }

    /// `pods`.
    pub(crate) fn pods(&self) -> PathBuf {
        self.roots.kubelet.join("pods")
    }

    /// `pods/<uid>`.
    pub(crate) fn pod(&self, uid: &str) -> PathBuf {
        self.roots.pod_dir(uid)
    }

    /// `pods/<uid>/volumes`.
    pub(crate) fn volumes(&self, uid: &str) -> PathBuf {
        self.pod(uid).join("volumes")
    }

    /// `pods/<uid>/volumes/<plugin>/<name>`.
    pub(crate) fn volume(&self, uid: &str, plugin: &Plugin, name: &str) -> PathBuf {
        self.volumes(uid).join(plugin.dir_name()).join(name)
    }

    /// `pods/<uid>/volumeDevices`.
    pub(crate) fn devices(&self, uid: &str) -> PathBuf {
        self.pod(uid).join("volumeDevices")
    }

    /// `pods/<uid>/volumeDevices/<plugin>/<name>`: the link to a block volume's device.
    pub(crate) fn device(&self, uid: &str, plugin: &Plugin, name: &str) -> PathBuf {
        self.devices(uid).join(plugin.dir_name()).join(name)
    }

    /// `pods/<uid>/plugins/<plugin>/<name>`: a plugin's own notes.
    pub(crate) fn meta(&self, uid: &str, plugin: &Plugin, name: &str) -> PathBuf {
        self.pod(uid).join("plugins").join(plugin.dir_name()).join(name)
    }

    /// `pods/<uid>/volume-subpaths`.
    pub(crate) fn sub_paths(&self, uid: &str) -> PathBuf {
        self.pod(uid).join("volume-subpaths")
    }

    /// `plugins/<plugin>`: device mounts shared by pods.
    pub(crate) fn plugin(&self, name: &str) -> PathBuf {
        self.roots.kubelet.join("plugins").join(name)
    }

    /// The host path that containers mount: the volume's folder, or the path it refers to (hostPath).
    pub(crate) fn container_source(&self, uid: &str, spec: &VolumeSpec) -> PathBuf {
        if spec.is_block() {
            return self.device(uid, &spec.plugin, &spec.name);
        }
        match spec.plugin {
            Plugin::HostPath => host_path(spec).map(PathBuf::from).unwrap_or_default(),
            Plugin::Image => PathBuf::new(),
            Plugin::Csi => self.volume(uid, &spec.plugin, &spec.name).join("mount"),
            _ => self.volume(uid, &spec.plugin, &spec.name),
        }
    }
}

/// The path of a hostPath volume, inline or persistent.
pub(crate) fn host_path(spec: &VolumeSpec) -> Option<&str> {
    let inline = spec.as_inline().and_then(|v| v.host_path.as_ref());
    let persistent =
        spec.as_persistent().and_then(|v| v.spec.as_ref()).and_then(|s| s.host_path.as_ref());
    inline.or(persistent).map(|h| h.path.as_str())
}
