//! Paths and file names of pods on disk, as text (CRI messages carry text).
use api::core::v1::Pod;
use api::pod::PodExt;

/// Longest file name the kernel accepts.
const FILE_NAME_MAX: usize = 255;

/// `<logs>/<namespace>_<name>_<uid>`.
pub fn pod_log_dir(logs: &str, pod: &Pod) -> String {
    let namespace = pod.namespace_str();
    let name = pod.name_str();
    format!("{logs}/{namespace}_{name}_{}", pod.uid_str())
}

/// `<container>/<attempt>.log`, relative to the pod's log directory.
pub fn container_log_path(container: &str, attempt: u32) -> String {
    format!("{container}/{attempt}.log")
}

/// The UID in the name of a pod's log directory.
pub fn uid_of_log_dir(name: &str) -> &str {
    name.rsplit('_').next().unwrap_or(name)
}

/// Name of the link in `/var/log/containers`, cut to the kernel's limit.
pub fn log_symlink_name(pod: &str, namespace: &str, container: &str, container_id: &str) -> String {
    const SUFFIX: &str = ".log";
    let mut name = format!("{pod}_{namespace}_{container}-{container_id}");
    let mut most = FILE_NAME_MAX - SUFFIX.len();
    if name.len() > most {
        while !name.is_char_boundary(most) {
            most -= 1;
        }
        name.truncate(most);
    }
    name + SUFFIX
}

/// The container id in the name of such a link; none if it was cut off.
pub fn id_of_log_symlink(name: &str) -> Option<&str> {
    let (_, id) = name.strip_suffix(".log")?.rsplit_once('-')?;
    // Runtimes find a container by six characters of its id at least.
    (id.len() >= 6).then_some(id)
}

/// `<root>/pods/<uid>`.
pub fn pod_dir(root: &str, pod: &Pod) -> String {
    format!("{root}/pods/{}", pod.uid_str())
}

/// Where the pod's hosts file is.
pub fn hosts_file(root: &str, pod: &Pod) -> String {
    format!("{}/etc-hosts", pod_dir(root, pod))
}

/// Where termination message files of a container are.
pub fn termination_dir(root: &str, pod: &Pod, container: &str) -> String {
    format!("{}/containers/{container}", pod_dir(root, pod))
}

/// The attempt number in the name of a container's log file (`3.log`, `3.log.20260101-000000`).
pub fn attempt_of_log(file_name: &str) -> Option<u32> {
    let (number, _) = file_name.split_once(".log")?;
    let digits = !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit());
    if digits { number.parse().ok() } else { None }
}

/// An absolute path without `.`, `..` and doubled slashes, by text alone.
pub(super) fn clean(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    format!("/{}", parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_link_names_fit_the_kernel() {
        assert_eq!(log_symlink_name("p", "ns", "c", "id"), "p_ns_c-id.log");
        let long = log_symlink_name(&"p".repeat(200), "ns", "c", &"0".repeat(64));
        assert_eq!(long.len(), 255);
        assert!(long.ends_with("0.log"));
        assert_eq!(id_of_log_symlink("p_ns_c-d-0123456.log"), Some("0123456"));
        assert_eq!(id_of_log_symlink("p_ns_c-id.log"), None);
        assert_eq!(id_of_log_symlink("p_ns_c-0123456"), None);
    }

    #[test]
    fn attempts_are_read_from_log_names() {
        for (name, want) in [
            ("0.log", Some(0)),
            ("12.log.20260101-000000.gz", Some(12)),
            ("x.log", None),
            (".log", None),
            ("3.txt", None),
        ] {
            assert_eq!(attempt_of_log(name), want, "{name}");
        }
    }

    #[test]
    fn paths_are_cleaned_as_go_does() {
        assert_eq!(clean("/a//b/./c/../d"), "/a/b/d");
        assert_eq!(clean("/../x"), "/x");
    }
}
