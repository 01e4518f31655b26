//! What an earlier life (ours or the Go kubelet's) left on disk.

use crate::env::StepError;
use crate::paths::Paths;
use api::ids::{PodUid, VolumeName};
use engine::volumes::{Plugin, SpecSource, VolumeSpec};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A pod's volume found on disk.
#[derive(Debug, Clone)]
pub(crate) struct Found {
    pub(crate) pod: PodUid,
    pub(crate) name: VolumeName,
    pub(crate) spec: Arc<VolumeSpec>,
}

/// A folder that no plugin can explain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Unexplained {
    pub(crate) pod: PodUid,
    pub(crate) path: PathBuf,
}

/// All that was found.
#[derive(Debug, Default)]
pub(crate) struct Remains {
    pub(crate) found: Vec<Found>,
    pub(crate) unexplained: Vec<Unexplained>,
}

/// Scans `pods/<uid>/volumes/<plugin>/<name>`.
pub(crate) fn scan(paths: &Paths) -> Result<Remains, StepError> {
    let mut remains = Remains::default();
    for uid in list(&paths.pods())? {
        let top = paths.volumes(&uid);
        for plugin_dir in list(&top)? {
            let plugin = Plugin::from_dir_name(&plugin_dir);
            for name in list(&top.join(&plugin_dir))? {
                let pod = PodUid::from(uid.as_str());
                let spec = plugin.clone().and_then(|p| spec_of(p, &name));
                match spec {
                    Some(spec) => remains.found.push(Found {
                        name: spec.unique_name(&pod),
                        pod,
                        spec: Arc::new(spec),
                    }),
                    None => {
                        let path = top.join(&plugin_dir).join(&name);
                        remains.unexplained.push(Unexplained { pod, path });
                    }
                }
            }
        }
    }
    Ok(remains)
}

fn spec_of(plugin: Plugin, name: &str) -> Option<VolumeSpec> {
    let by_name = matches!(
        plugin,
        Plugin::EmptyDir
            | Plugin::ConfigMap
            | Plugin::Secret
            | Plugin::DownwardApi
            | Plugin::Projected
            | Plugin::Nfs
    );
    by_name.then(|| VolumeSpec {
        name: name.to_owned(),
        plugin,
        source: SpecSource::Found,
        read_only: false,
    })
}

/// Names in a folder; a missing one or a file has none.
fn list(dir: &Path) -> Result<Vec<String>, StepError> {
    match sys::fs::list_dir(dir) {
        Ok(names) => Ok(names),
        Err(e) if e.is_not_found() || e.source.kind() == std::io::ErrorKind::NotADirectory => {
            Ok(Vec::new())
        }
        Err(e) => Err(e.into()),
    }
}

/// Unmounts what no plugin can explain, by its path alone, and removes its empty folder.
pub(crate) fn force_clean(path: &Path) -> Result<(), StepError> {
    for candidate in [path.join("mount"), path.to_owned()] {
        sys::mount::unmount_all_at(&candidate)?;
        sys::fs::remove_dir(&candidate)?;
    }
    Ok(())
}
