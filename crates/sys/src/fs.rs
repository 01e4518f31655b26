//! Plain file operations whose errors name the path.
//!
//! Deliberately absent: anything for paths that a pod or a registry influences; those go through
//! a descriptor-based walk that cannot leave its root.

use crate::fail_point;
use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::ops::ControlFlow;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// A failed file operation.
#[derive(Debug, thiserror::Error)]
#[error("{operation} {}", path.display())]
pub struct FsError {
    /// The operation, as a verb.
    pub operation: &'static str,
    /// The path.
    pub path: PathBuf,
    /// The kernel's error.
    #[source]
    pub source: io::Error,
}

impl FsError {
    /// Whether the path (or a part of it) does not exist.
    pub fn is_not_found(&self) -> bool {
        self.source.kind() == io::ErrorKind::NotFound
    }

    /// The complete error in the format of Go's `os`: its verb, the path, the kernel's error.
    pub fn in_go(&self) -> String {
        let (verb, path) = match self.operation {
            // A directory can be opened, but not read.
            "read" if self.source.kind() == io::ErrorKind::IsADirectory => {
                ("read", self.path.as_path())
            }
            "read" | "write" | "list" => ("open", self.path.as_path()),
            "create folder" => {
                let missing = obstacle(&self.path);
                if missing.try_exists().unwrap_or_default() {
                    return format!("mkdir {}: not a directory", missing.display());
                }
                ("mkdir", missing)
            }
            other => (other, self.path.as_path()),
        };
        format!("{verb} {}: {}", path.display(), units::errno::go_text(&self.source))
    }
}

/// The first component of a path that is not a directory: where creating it fails.
fn obstacle(path: &Path) -> &Path {
    let mut parts: Vec<&Path> = path.ancestors().collect();
    parts.reverse();
    parts.into_iter().find(|part| !part.is_dir()).unwrap_or(path)
}

/// Wraps the error of an operation with its name and path.
pub(crate) fn named<T>(
    operation: &'static str,
    path: &Path,
    result: Result<T, impl Into<io::Error>>,
) -> Result<T, FsError> {
    result.map_err(|e| FsError { operation, path: path.to_owned(), source: e.into() })
}

/// Reads a whole file.
pub fn read(path: impl AsRef<Path>) -> Result<Vec<u8>, FsError> {
    named("read", path.as_ref(), fs::read(path.as_ref()))
}

/// Reads a whole UTF-8 file.
pub fn read_to_string(path: impl AsRef<Path>) -> Result<String, FsError> {
    named("read", path.as_ref(), fs::read_to_string(path.as_ref()))
}

/// Passes the lines of a file, with their line endings, to `each` until it stops. A line longer than
/// `longest` is passed in parts.
pub fn each_line(
    file: fs::File,
    longest: usize,
    mut each: impl FnMut(&[u8]) -> ControlFlow<()>,
) -> io::Result<()> {
    let mut reader = BufReader::new(file);
    let most = u64::try_from(longest).unwrap_or(u64::MAX).saturating_add(1);
    let mut line = Vec::new();
    loop {
        line.clear();
        let got = reader.by_ref().take(most).read_until(b'\n', &mut line)?;
        if got == 0 || each(&line).is_break() {
            return Ok(());
        }
    }
}

/// Writes a file in place (pseudo files; for state use [`write_atomic`]).
pub fn write(path: impl AsRef<Path>, bytes: impl AsRef<[u8]>) -> Result<(), FsError> {
    fail_point::before("write", path.as_ref())?;
    named("write", path.as_ref(), fs::write(path.as_ref(), bytes))
}

/// Replaces a file so that a reader sees the old or the new content, also after a crash: temporary
/// file next to it, fsync, rename, fsync of the directory.
pub fn write_atomic(
    path: impl AsRef<Path>,
    bytes: impl AsRef<[u8]>,
    mode: u32,
) -> Result<(), FsError> {
    let path = path.as_ref();
    let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    let temporary = path.with_file_name(format!(".{name}.{}.tmp", std::process::id()));
    let write = || -> io::Result<()> {
        fail_point::before("create", &temporary).map_err(|e| e.source)?;
        let mut file = fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(mode)
            .open(&temporary)?;
        file.write_all(bytes.as_ref())?;
        file.sync_all()?;
        fail_point::before("rename", path).map_err(|e| e.source)?;
        fs::rename(&temporary, path)?;
        if let Some(parent) = path.parent() {
            fs::File::open(parent)?.sync_all()?;
        }
        Ok(())
    };
    let result = write();
    if result.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    named("write", path, result)
}

/// Creates a directory and its parents with `mode` (less the umask); an existing one is fine.
pub fn create_dir_all(path: impl AsRef<Path>, mode: u32) -> Result<(), FsError> {
    fail_point::before("create folder", path.as_ref())?;
    let result = fs::DirBuilder::new().recursive(true).mode(mode).create(path.as_ref());
    named("create folder", path.as_ref(), result)
}

/// Removes one file; a missing one is fine.
pub fn remove_file(path: impl AsRef<Path>) -> Result<(), FsError> {
    fail_point::before("remove", path.as_ref())?;
    match fs::remove_file(path.as_ref()) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        other => named("remove", path.as_ref(), other),
    }
}

/// Moves an entry to another name of the same filesystem, in place of what is there.
pub fn rename(from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<(), FsError> {
    fail_point::before("rename", to.as_ref())?;
    named("rename", from.as_ref(), fs::rename(from.as_ref(), to.as_ref()))
}

/// Removes one empty directory; a missing one is fine.
pub fn remove_dir(path: impl AsRef<Path>) -> Result<(), FsError> {
    fail_point::before("remove folder", path.as_ref())?;
    match fs::remove_dir(path.as_ref()) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        other => named("remove folder", path.as_ref(), other),
    }
}

/// Whether something is there; an error other than "not found" is an error.
pub fn try_exists(path: impl AsRef<Path>) -> Result<bool, FsError> {
    named("stat", path.as_ref(), path.as_ref().try_exists())
}

/// Swaps two entries of the same filesystem in one step.
pub fn exchange(one: impl AsRef<Path>, other: impl AsRef<Path>) -> Result<(), FsError> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    let result = renameat_with(CWD, one.as_ref(), CWD, other.as_ref(), RenameFlags::EXCHANGE);
    named("exchange", one.as_ref(), result.map_err(io::Error::from))
}

/// Whether both paths are the same device.
pub fn same_device(one: impl AsRef<Path>, other: impl AsRef<Path>) -> Result<bool, FsError> {
    use std::os::unix::fs::MetadataExt;
    let number = |path: &Path| named("stat", path, fs::metadata(path)).map(|m| m.rdev());
    let (one, other) = (number(one.as_ref())?, number(other.as_ref())?);
    Ok(one == other && one != 0)
}

/// Whether the path is a socket, symlinks followed; false if it cannot be inspected.
pub fn is_socket(path: impl AsRef<Path>) -> bool {
    use std::os::unix::fs::FileTypeExt as _;
    fs::metadata(path.as_ref()).is_ok_and(|metadata| metadata.file_type().is_socket())
}

/// Whether the path is a directory; a symlink to one is not.
pub fn is_folder(path: impl AsRef<Path>) -> bool {
    fs::symlink_metadata(path.as_ref()).is_ok_and(|metadata| metadata.is_dir())
}

/// Symlinks in a directory whose target does not exist, with their targets; a missing directory has
/// none.
pub fn dangling_links(folder: impl AsRef<Path>) -> Result<Vec<(PathBuf, PathBuf)>, FsError> {
    let folder = folder.as_ref();
    let entries = match fs::read_dir(folder) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => named("list", folder, other)?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let path = named("list", folder, entry)?.path();
        // Not a symlink, or it vanished meanwhile.
        let Ok(target) = fs::read_link(&path) else { continue };
        if matches!(path.try_exists(), Ok(false)) {
            found.push((path, target));
        }
    }
    found.sort();
    Ok(found)
}

/// Names in a directory, sorted; a missing directory is an error.
pub fn list_dir(path: impl AsRef<Path>) -> Result<Vec<String>, FsError> {
    let path = path.as_ref();
    let entries = named("list", path, fs::read_dir(path))?;
    let mut names = Vec::new();
    for entry in entries {
        names.push(named("list", path, entry)?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_read_as_in_go() {
        let dir = std::env::temp_dir().join(format!("rubelet-words-{}", std::process::id()));
        create_dir_all(&dir, 0o755).unwrap();
        let file = dir.join("file");
        write(&file, "x").unwrap();
        let (at, none) = (file.display(), dir.join("none"));
        let told = |result: Result<(), FsError>| result.unwrap_err().in_go();
        assert_eq!(
            told(read(&none).map(drop)),
            format!("open {}: no such file or directory", none.display())
        );
        let folder = dir.display();
        assert_eq!(told(read(&dir).map(drop)), format!("read {folder}: is a directory"));
        assert_eq!(told(create_dir_all(&file, 0o755)), format!("mkdir {at}: not a directory"));
        let below = file.join("a/b");
        assert_eq!(told(create_dir_all(below, 0o755)), format!("mkdir {at}: not a directory"));
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn only_links_that_lead_nowhere_dangle() {
        let dir = std::env::temp_dir().join(format!("rubelet-links-{}", std::process::id()));
        create_dir_all(&dir, 0o755).unwrap();
        write(dir.join("file"), "x").unwrap();
        for (link, target) in [("good", "file"), ("bad", "gone")] {
            std::os::unix::fs::symlink(dir.join(target), dir.join(link)).unwrap();
        }
        assert_eq!(dangling_links(&dir).unwrap(), [(dir.join("bad"), dir.join("gone"))]);
        assert_eq!(dangling_links(dir.join("nowhere")).unwrap(), []);
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn lines_are_shown_until_enough_was_seen() {
        let path = std::env::temp_dir().join(format!("rubelet-lines-{}", std::process::id()));
        write(&path, "one\n\nlonger\nend").unwrap();
        let shown = |longest: usize, enough: usize| {
            let mut lines = Vec::new();
            each_line(fs::File::open(&path).unwrap(), longest, |line| {
                lines.push(String::from_utf8_lossy(line).into_owned());
                match lines.len() == enough {
                    true => ControlFlow::Break(()),
                    false => ControlFlow::Continue(()),
                }
            })
            .unwrap();
            lines
        };
        assert_eq!(shown(6, 9), ["one\n", "\n", "longer\n", "end"]);
        assert_eq!(shown(5, 3), ["one\n", "\n", "longer"]);
        assert_eq!(shown(5, 1), ["one\n"]);
        fs::remove_file(&path).unwrap();
    }

    #[test]
    fn atomic_write_replaces_and_leaves_no_temporary_file() {
        let dir = std::env::temp_dir().join(format!("rubelet-fs-{}", std::process::id()));
        create_dir_all(&dir, 0o755).unwrap();
        let file = dir.join("state");
        write_atomic(&file, "one", 0o600).unwrap();
        write_atomic(&file, "two", 0o600).unwrap();
        assert_eq!(read_to_string(&file).unwrap(), "two");
        assert_eq!(list_dir(&dir).unwrap(), ["state"]);
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn errors_name_the_path() {
        let error = read("/nonexistent/file").unwrap_err();
        assert!(error.is_not_found());
        assert_eq!(error.to_string(), "read /nonexistent/file");
    }
}
