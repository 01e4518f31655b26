//! The folders that must be there before anything runs (spec: initializeModules).

use ports::Roots;
use std::path::{Path, PathBuf};

/// Makes the folders with upstream's modes. Existing ones are left as they are. A fault is upstream's
/// text (kubelet: `setupDataDirs`); `given` is the root directory as the flag has it.
pub(crate) fn make(given: &str, roots: &Roots, checkpoints: bool) -> Result<(), String> {
    let make = |(what, path, mode): &(String, PathBuf, u32)| {
        make_all(path, *mode).map_err(|fault| format!("{what}: {fault}"))
    };
    let folders = folders(roots, checkpoints);
    let (first, rest) = folders.split_at_checked(BEFORE_SHARING).unwrap_or((&folders, &[]));
    first.iter().try_for_each(make)?;
    unmounted(given).map_or(Ok(()), Err)?;
    rest.iter().try_for_each(make)
}

/// The root directory and that of logs are made before the first is shared.
const BEFORE_SHARING: usize = 2;

/// Upstream looks for the mount of the root directory by its name as it was given, and finds none for one
/// that depends on the working directory (kubelet: `findMountInfo`).
fn unmounted(given: &str) -> Option<String> {
    let fault = || {
        let shown = units::strconv::quote(&config::clean_path(given));
        format!("error configuring root directory: cannot find mount point for {shown}")
    };
    (!given.starts_with('/')).then(fault)
}

/// Makes a folder and those above it; what stands in the way is named as Go names it.
pub(crate) fn make_all(path: &Path, mode: u32) -> Result<(), String> {
    if let Some(fault) = obstacle(path) {
        return Err(fault);
    }
    sys::fs::create_dir_all(path, mode)
        .map_err(|error| failed(path, &units::errno::go_text(&error.source)))
}

/// What stands in the way of a folder; nothing is made.
pub(crate) fn obstacle(path: &Path) -> Option<String> {
    let in_the_way = path.ancestors().find(|above| std::fs::metadata(above).is_ok())?;
    (!in_the_way.is_dir()).then(|| failed(in_the_way, "not a directory"))
}

fn failed(path: &Path, why: &str) -> String {
    format!("mkdir {}: {why}", path.display())
}

fn folders(roots: &Roots, checkpoints: bool) -> Vec<(String, PathBuf, u32)> {
    let root = &roots.kubelet;
    let quoted = |path: &Path| units::strconv::quote(&path.to_string_lossy());
    let creating = |what: &str| format!("error creating {what} directory");
    let logs = format!("{} {}", creating("pod logs root"), quoted(&roots.pod_logs));
    let links = format!("failed to create directory {}", quoted(&roots.container_logs));
    let mut folders = vec![
        (creating("root"), root.clone(), 0o750),
        (logs, roots.pod_logs.clone(), 0o750),
        (creating("pods"), root.join("pods"), 0o750),
        (creating("plugins"), root.join("plugins"), 0o750),
        (creating("plugins registry"), root.join("plugins_registry"), 0o750),
        (creating("podresources"), root.join("pod-resources"), 0o750),
    ];
    if checkpoints {
        folders.push((creating("checkpoint"), root.join("checkpoints"), 0o700));
    }
    folders.push((links, roots.container_logs.clone(), 0o755));
    folders.push((creating("rubelet"), roots.rubelet(), 0o700));
    folders
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_root_that_depends_on_the_working_directory_is_on_no_mount() {
        assert_eq!(unmounted("/var/lib/kubelet"), None);
        for (given, shown) in [(".", "."), ("rel/", "rel"), ("./a/../b", "b"), ("../x", "../x")] {
            let fault = unmounted(given).unwrap();
            let end = format!("cannot find mount point for \"{shown}\"");
            assert_eq!(fault, format!("error configuring root directory: {end}"), "{given}");
        }
    }

    #[test]
    fn makes_every_folder_with_its_mode_and_again_without_complaint() {
        let base = std::env::temp_dir().join(format!("rubelet-layout-{}", std::process::id()));
        let roots = Roots {
            kubelet: base.join("kubelet"),
            pod_logs: base.join("pods-log"),
            container_logs: base.join("containers-log"),
            ..Roots::default()
        };
        make("/given", &roots, true).unwrap();
        make("/given", &roots, true).unwrap();
        let mode = |path: PathBuf| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(roots.kubelet.join("plugins_registry")), 0o750);
        assert_eq!(mode(roots.kubelet.join("checkpoints")), 0o700);
        sys::removal::remove_tree(Path::new("/proc"), &base, sys::removal::Contents::Everything)
            .unwrap();
    }
}
