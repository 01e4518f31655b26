//! hostPath: a path of the host, checked for its type; nothing is mounted, and nothing removed at the end.

use super::MountInput;
use crate::env::{Env, StepError};
use crate::paths;
use crate::pool::NORMAL;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use units::errno::go_text;

pub(crate) async fn set_up(env: &Env, input: &MountInput) -> Result<(), StepError> {
    let path = paths::host_path(&input.spec).unwrap_or_default().to_owned();
    if path.split('/').any(|part| part == "..") {
        return Err(StepError::settled(format!(
            "invalid HostPath `{path}`: must not contain '..'"
        )));
    }
    let inline = input.spec.as_inline().and_then(|v| v.host_path.as_ref());
    let persistent = input.spec.as_persistent().and_then(|v| v.spec.as_ref()?.host_path.as_ref());
    let kind =
        inline.or(persistent).and_then(|h| h.type_.as_deref()).unwrap_or_default().to_owned();
    if kind.is_empty() {
        return Ok(());
    }
    input.step.enter(format!("checking host path {path}"));
    let key = path.clone();
    let path = PathBuf::from(path);
    env.pool.run(&key, "check host path", NORMAL, move || check(&path, &kind)).await?
}

/// Checks (and for the `…OrCreate` types makes) the path; links are followed. A path that cannot be examined
/// counts as missing.
fn check(path: &Path, kind: &str) -> Result<(), StepError> {
    let shown = path.display();
    let found = std::fs::metadata(path).ok();
    let is = |what: &str, right: bool| {
        if right {
            Ok(())
        } else {
            Err(StepError::settled(format!("hostPath type check failed: {shown} is not a {what}")))
        }
    };
    let type_of = found.as_ref().map(std::fs::Metadata::file_type);
    match kind {
        "DirectoryOrCreate" if found.is_none() => make_dirs(path),
        "DirectoryOrCreate" | "Directory" => is("directory", type_of.is_some_and(|t| t.is_dir())),
        "FileOrCreate" if found.is_none() => {
            use std::os::unix::fs::OpenOptionsExt;
            std::fs::OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o644)
                .open(path)
                .map(drop)
                .map_err(|e| StepError::settled(format!("open {shown}: {}", go_text(&e))))
        }
        "FileOrCreate" | "File" => is("file", type_of.is_some_and(|t| t.is_file())),
        "Socket" => is("socket file", type_of.is_some_and(|t| t.is_socket())),
        "CharDevice" => is("character device", type_of.is_some_and(|t| t.is_char_device())),
        "BlockDevice" => is("block device", type_of.is_some_and(|t| t.is_block_device())),
        other => Err(StepError::settled(format!("{other} is an invalid volume type"))),
    }
}

/// Makes a folder and its parents. A path that exists but cannot be examined is not an error here.
fn make_dirs(path: &Path) -> Result<(), StepError> {
    let Err(error) = sys::fs::create_dir_all(path, 0o755) else { return Ok(()) };
    if error.source.kind() == std::io::ErrorKind::AlreadyExists {
        return Ok(());
    }
    // Go's error names the folder at which it stopped.
    let mut above: Vec<&Path> = path.ancestors().filter(|p| !p.as_os_str().is_empty()).collect();
    above.reverse();
    let stop = above.into_iter().find(|p| !p.is_dir()).unwrap_or(path);
    let cause = match std::fs::metadata(stop) {
        Ok(_) => "not a directory".to_owned(),
        Err(_) => go_text(&error.source),
    };
    Err(StepError::settled(format!("mkdir {}: {cause}", stop.display())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn every_type_is_checked_and_named() {
        let dir = std::env::temp_dir().join(format!("rubelet-hostpath-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).unwrap();
        let file = dir.join("file");
        std::fs::write(&file, "").unwrap();
        let socket = dir.join("socket");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        let null = Path::new("/dev/null");
        let cases: [(&Path, &str, Option<&str>); 11] = [
            (&dir, "Directory", None),
            (&file, "Directory", Some("directory")),
            (&file, "File", None),
            (&dir, "File", Some("file")),
            (&socket, "Socket", None),
            (&file, "Socket", Some("socket file")),
            (null, "CharDevice", None),
            (&file, "CharDevice", Some("character device")),
            (null, "BlockDevice", Some("block device")),
            (&dir.join("none"), "Directory", Some("directory")),
            (&file, "DirectoryOrCreate", Some("directory")),
        ];
        for (path, kind, wrong) in cases {
            let expected = wrong
                .map(|w| format!("hostPath type check failed: {} is not a {w}", path.display()));
            let got = check(path, kind).err().map(|e| e.message);
            assert_eq!(got, expected, "{kind} {}", path.display());
        }
        check(&dir.join("new/deep"), "DirectoryOrCreate").unwrap();
        let mode = std::fs::metadata(dir.join("new/deep")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o755);
        check(&dir.join("newfile"), "FileOrCreate").unwrap();
        let refused = |path: &str, kind: &str| check(Path::new(path), kind).unwrap_err().message;
        assert_eq!(
            refused("/proc/no/such/file", "FileOrCreate"),
            "open /proc/no/such/file: no such file or directory"
        );
        assert_eq!(
            refused("/proc/no/such", "DirectoryOrCreate"),
            "mkdir /proc/no: no such file or directory"
        );
        let below = format!("{}/below", file.display());
        let failed = format!("hostPath type check failed: {below} is not a");
        assert_eq!(refused(&below, "Directory"), format!("{failed} directory"));
        assert_eq!(refused(&below, "File"), format!("{failed} file"));
        assert_eq!(refused(&below, "CharDevice"), format!("{failed} character device"));
        assert_eq!(
            refused(&format!("{below}/deep"), "DirectoryOrCreate"),
            format!("mkdir {}: not a directory", file.display())
        );
        assert_eq!(refused(&below, "FileOrCreate"), format!("open {below}: not a directory"));
        let dangling = dir.join("dangling");
        std::os::unix::fs::symlink(dir.join("nowhere"), &dangling).unwrap();
        check(&dangling, "DirectoryOrCreate").unwrap();
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
