//! The folders that must be there before anything runs (spec: initializeModules).

use ports::Roots;
use std::path::PathBuf;
use sys::fs::FsError;

/// Makes the folders with upstream's modes. Existing ones are left as they are.
pub(crate) fn make(roots: &Roots, checkpoints: bool) -> Result<(), FsError> {
    for (path, mode) in folders(roots, checkpoints) {
        sys::fs::create_dir_all(&path, mode)?;
    }
    Ok(())
}

fn folders(roots: &Roots, checkpoints: bool) -> Vec<(PathBuf, u32)> {
    let root = &roots.kubelet;
    let mut folders = vec![
        (root.clone(), 0o750),
        (roots.pod_logs.clone(), 0o750),
        (root.join("pods"), 0o750),
        (root.join("plugins"), 0o750),
        (root.join("plugins_registry"), 0o750),
        (root.join("pod-resources"), 0o750),
        (roots.container_logs.clone(), 0o755),
        (roots.rubelet(), 0o700),
    ];
    if checkpoints {
        folders.push((root.join("checkpoints"), 0o700));
    }
    folders
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn makes_every_folder_with_its_mode_and_again_without_complaint() {
        let base = std::env::temp_dir().join(format!("rubelet-layout-{}", std::process::id()));
        let roots = Roots {
            kubelet: base.join("kubelet"),
            pod_logs: base.join("pods-log"),
            container_logs: base.join("containers-log"),
            ..Roots::default()
        };
        make(&roots, true).unwrap();
        make(&roots, true).unwrap();
        let mode = |path: PathBuf| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(roots.kubelet.join("plugins_registry")), 0o750);
        assert_eq!(mode(roots.kubelet.join("checkpoints")), 0o700);
        sys::removal::remove_tree(
            std::path::Path::new("/proc"),
            &base,
            sys::removal::Contents::Everything,
        )
        .unwrap();
    }
}
