//! Configuration files on disk, with errors in Go's words.

use config::{CertificateFiles, ConfigFiles};
use std::path::{Path, PathBuf};
use units::errno::go_text;

/// The machine's files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Disk {
    /// Nothing is written.
    LookedAt,
    /// What is missing is made.
    Changed,
}

impl ConfigFiles for Disk {
    fn read(&self, path: &str) -> Result<Vec<u8>, String> {
        sys::fs::read(path).map_err(|error| {
            // What can be opened but not read: a folder, or a device that has nothing.
            let opened = std::fs::File::open(path).is_ok();
            let call = if opened { "read" } else { "open" };
            format!("{call} {path}: {}", go_text(&error.source))
        })
    }

    fn walk(&self, path: &str) -> Result<Vec<String>, String> {
        let mut found = Vec::new();
        walk(path, &mut found)?;
        Ok(found)
    }

    fn serving_certificate(&self, pair: &CertificateFiles<'_>, host: &str) -> Result<(), String> {
        if *self == Disk::LookedAt {
            return Ok(());
        }
        let readable = |path: &str| std::fs::File::open(path).is_ok();
        let half = match (readable(pair.certificate), readable(pair.key)) {
            (true, true) => return Ok(()),
            (false, false) => None,
            (false, true) => Some(pair.certificate),
            (true, false) => Some(pair.key),
        };
        if let Some(missing) = half {
            return Err(format!(
                "error reading {missing}, certificate and key must be supplied as a pair"
            ));
        }
        make_certificate(pair, host)
    }

    fn pair_fault(&self, certificate: &[u8], key: &[u8]) -> Option<String> {
        let outline = units::x509::pair_outline_fault(certificate, key);
        outline.or_else(|| agent::pair_fault(certificate, key))
    }

    fn variables(&self) -> Vec<(String, String)> {
        let text = |value: std::ffi::OsString| value.to_string_lossy().into_owned();
        std::env::vars_os().map(|(name, value)| (text(name), text(value))).collect()
    }

    fn working_dir(&self) -> String {
        std::env::current_dir().map(|dir| dir.to_string_lossy().into_owned()).unwrap_or_default()
    }
}

fn make_certificate(pair: &CertificateFiles<'_>, host: &str) -> Result<(), String> {
    let host = if host.is_empty() { sys::host::hostname() } else { host.to_owned() };
    let host = host.trim().to_lowercase();
    if host.is_empty() {
        return Err("empty hostname is invalid".to_owned());
    }
    if !host.is_ascii() {
        let shown = units::strconv::quote(&host);
        return Err(format!(
            "unable to generate self signed cert: x509: {shown} cannot be encoded as an IA5String"
        ));
    }
    let (certificate, key) = agent::self_signed_pair(&host)
        .map_err(|error| format!("unable to generate self signed cert: {error}"))?;
    for (path, content, mode) in [(pair.certificate, certificate, 0o644), (pair.key, key, 0o600)] {
        let folder = Path::new(path).parent().unwrap_or(Path::new(""));
        make_folders(folder)?;
        // A bare name has no folder to be made in.
        let place =
            if folder.as_os_str().is_empty() { Path::new(".").join(path) } else { path.into() };
        sys::fs::write_atomic(place, content, mode)
            .map_err(|error| format!("open {path}: {}", go_text(&error.source)))?;
    }
    Ok(())
}

/// Makes a folder and those above it; what stands in the way is named as Go names it.
fn make_folders(folder: &Path) -> Result<(), String> {
    if folder.as_os_str().is_empty() || folder.is_dir() {
        return Ok(());
    }
    let failed = |why: &str| format!("mkdir {}: {why}", folder.display());
    if std::fs::metadata(folder).is_ok() {
        return Err(failed("not a directory"));
    }
    if let Some(above) = folder.parent() {
        make_folders(above)?;
    }
    sys::fs::create_dir_all(folder, 0o755).map_err(|error| failed(&go_text(&error.source)))
}

fn walk(path: &str, found: &mut Vec<String>) -> Result<(), String> {
    let metadata =
        std::fs::symlink_metadata(path).map_err(|e| format!("lstat {path}: {}", go_text(&e)))?;
    if !metadata.is_dir() {
        found.push(path.to_owned());
        return Ok(());
    }
    let names =
        sys::fs::list_dir(path).map_err(|e| format!("open {path}: {}", go_text(&e.source)))?;
    for name in names {
        // Go's `Join` cleans.
        let below: PathBuf = Path::new(path).join(name).components().collect();
        let below = below.strip_prefix(".").unwrap_or(&below);
        walk(&below.to_string_lossy(), found)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_file_reads_as_gos_error() {
        assert_eq!(
            Disk::LookedAt.read("/nonexistent/x").unwrap_err(),
            "open /nonexistent/x: no such file or directory"
        );
        assert_eq!(Disk::LookedAt.read("/").unwrap_err(), "read /: is a directory");
        assert_eq!(
            Disk::LookedAt.walk("/nonexistent").unwrap_err(),
            "lstat /nonexistent: no such file or directory"
        );
    }

    #[test]
    fn a_folder_is_walked_in_byte_order_without_following_links() {
        let root = std::env::temp_dir().join(format!("rubelet-walk-{}", std::process::id()));
        sys::fs::create_dir_all(root.join("sub"), 0o755).unwrap();
        for name in ["zz.conf", "case.conf", "sub/z.conf", ".hidden.conf"] {
            sys::fs::write(root.join(name), "x").unwrap();
        }
        std::os::unix::fs::symlink(root.join("sub"), root.join("link")).unwrap();
        let root = root.to_string_lossy().into_owned();
        let found = Disk::LookedAt.walk(&root).unwrap();
        let names: Vec<&str> = found.iter().map(|p| &p[root.len() + 1..]).collect();
        assert_eq!(names, [".hidden.conf", "case.conf", "link", "sub/z.conf", "zz.conf"]);
        let link = format!("{root}/link");
        assert_eq!(Disk::LookedAt.walk(&link).unwrap(), std::slice::from_ref(&link));
        assert_eq!(Disk::LookedAt.walk(&format!("{link}/")).unwrap(), [format!("{link}/z.conf")]);
        sys::removal::remove_tree(
            Path::new("/proc"),
            Path::new(&root),
            sys::removal::Contents::Everything,
        )
        .unwrap();
    }
}
