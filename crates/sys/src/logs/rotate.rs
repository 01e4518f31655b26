//! The files of a rotated log: `0.log` is written, `0.log.<stamp>` was the one before, older ones are
//! `0.log.<stamp>.gz`. Blocking.
//!
//! Upstream: `pkg/kubelet/logs/container_log_manager.go`.

use crate::fs::{self, FsError};
use flate2::Compression;
use flate2::write::GzEncoder;
use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

const GZIP: &str = ".gz";
const TEMPORARY: &str = ".tmp";

/// Size of a log; `None` when it is not there.
pub fn size(log: &Path) -> Result<Option<u64>, FsError> {
    match std::fs::metadata(log) {
        Ok(meta) => Ok(Some(meta.len())),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(FsError { operation: "stat", path: log.to_owned(), source }),
    }
}

/// Makes room for one more rotated file: removes leftovers of interrupted rotations and the oldest
/// files, and compresses the rest.
pub fn prepare(log: &Path, max_files: usize) -> Result<(), FsError> {
    let all = parts(log, ".")?;
    let names: BTreeSet<&PathBuf> = all.iter().collect();
    let mut remaining = Vec::new();
    for path in &all {
        let compressed = with_suffix(path, GZIP);
        if has_suffix(path, TEMPORARY) || names.contains(&compressed) {
            fs::remove_file(path)?;
        } else {
            remaining.push(path);
        }
    }
    // Neither the current file nor the one about to be rotated is counted here.
    let excess = remaining.len().saturating_sub(max_files.saturating_sub(2));
    for path in remaining.drain(..excess) {
        fs::remove_file(path)?;
    }
    for path in remaining.into_iter().filter(|p| !has_suffix(p, GZIP)) {
        compress(path)?;
    }
    Ok(())
}

/// Renames the log to its rotated name; `None` when a file of that name already exists.
pub fn rename_rotated(log: &Path, stamp: &str) -> Result<Option<PathBuf>, FsError> {
    let rotated = with_suffix(log, &format!(".{stamp}"));
    if fs::try_exists(&rotated)? {
        return Ok(None);
    }
    rename(log, &rotated)?;
    Ok(Some(rotated))
}

/// Undoes [`rename_rotated`].
pub fn rename_back(rotated: &Path, log: &Path) -> Result<(), FsError> {
    rename(rotated, log)
}

/// Removes a log and its rotated parts.
pub fn remove_all(log: &Path) -> Result<(), FsError> {
    parts(log, "")?.iter().try_for_each(fs::remove_file)
}

/// Files next to the log whose names begin with its name and `separator`, in order of their names.
fn parts(log: &Path, separator: &str) -> Result<Vec<PathBuf>, FsError> {
    let (Some(folder), Some(name)) = (log.parent(), log.file_name()) else { return Ok(vec![]) };
    let prefix = format!("{}{separator}", name.to_string_lossy());
    let names = match fs::list_dir(folder) {
        Err(e) if e.is_not_found() => return Ok(vec![]),
        names => names?,
    };
    Ok(names.iter().filter(|n| n.starts_with(&prefix)).map(|n| folder.join(n)).collect())
}

fn compress(path: &Path) -> Result<(), FsError> {
    let temporary = with_suffix(path, TEMPORARY);
    let work = || -> io::Result<()> {
        let mut from = File::open(path)?;
        let mode = from.metadata()?.mode();
        let to = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(mode)
            .open(&temporary)?;
        let mut encoder = GzEncoder::new(to, Compression::default());
        io::copy(&mut from, &mut encoder)?;
        encoder.finish()?;
        std::fs::rename(&temporary, with_suffix(path, GZIP))
    };
    if let Err(source) = work() {
        let _ = fs::remove_file(&temporary);
        return Err(FsError { operation: "compress", path: path.to_owned(), source });
    }
    fs::remove_file(path)
}

fn rename(from: &Path, to: &Path) -> Result<(), FsError> {
    std::fs::rename(from, to).map_err(|source| FsError {
        operation: "rename",
        path: from.to_owned(),
        source,
    })
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut text = path.as_os_str().to_owned();
    text.push(suffix);
    text.into()
}

fn has_suffix(path: &Path, suffix: &str) -> bool {
    path.as_os_str().as_encoded_bytes().ends_with(suffix.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read as _;

    fn folder(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("rubelet-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        path
    }

    #[test]
    fn five_files_are_the_current_one_plain_one_and_three_compressed() {
        let dir = folder("rotate");
        let log = dir.join("0.log");
        for turn in 0..8 {
            std::fs::write(&log, format!("turn {turn}")).unwrap();
            prepare(&log, 5).unwrap();
            rename_rotated(&log, &format!("20260102-03040{turn}")).unwrap().unwrap();
        }
        std::fs::write(&log, "now").unwrap();
        let names = fs::list_dir(&dir).unwrap();
        assert_eq!(
            names,
            [
                "0.log",
                "0.log.20260102-030404.gz",
                "0.log.20260102-030405.gz",
                "0.log.20260102-030406.gz",
                "0.log.20260102-030407",
            ]
        );
        let mut text = String::new();
        let packed = File::open(dir.join("0.log.20260102-030406.gz")).unwrap();
        flate2::read::GzDecoder::new(packed).read_to_string(&mut text).unwrap();
        assert_eq!(text, "turn 6");
        remove_all(&log).unwrap();
        assert!(fs::list_dir(&dir).unwrap().is_empty());
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn remains_of_interrupted_work_are_removed() {
        let dir = folder("remains");
        let log = dir.join("0.log");
        for name in ["0.log", "0.log.1.tmp", "0.log.2", "0.log.2.gz", "10.log.3"] {
            std::fs::write(dir.join(name), "x").unwrap();
        }
        prepare(&log, 5).unwrap();
        assert_eq!(fs::list_dir(&dir).unwrap(), ["0.log", "0.log.2.gz", "10.log.3"]);
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn a_name_that_is_taken_is_not_overwritten() {
        let dir = folder("taken");
        let log = dir.join("0.log");
        std::fs::write(&log, "new").unwrap();
        std::fs::write(dir.join("0.log.s"), "old").unwrap();
        assert_eq!(rename_rotated(&log, "s").unwrap(), None);
        let rotated = rename_rotated(&log, "t").unwrap().unwrap();
        assert_eq!(size(&log).unwrap(), None);
        rename_back(&rotated, &log).unwrap();
        assert_eq!(size(&log).unwrap(), Some(3));
        std::fs::remove_dir_all(dir).unwrap();
    }
}
