//! Files of a volume replaced all at once (upstream: `AtomicWriter`, same layout).
//!
//! ```text
//!  <volume>/..2026_01_02_03_04_05.123456789/{a,dir/b}   the real files
//!  <volume>/..data -> ..2026_01_02_03_04_05.123456789    swapped by rename
//!  <volume>/a      -> ..data/a                           what containers open
//!  <volume>/dir    -> ..data/dir
//! ```
//!
//! Everything is done by descriptor relative to the volume: a link planted in place of `..data` or
//! of the dated folder is never followed, and nothing outside the volume is ever written or removed.

use crate::env::{StepError, chain};
use engine::volumes::{Payload, check_payload};
use jiff::Timestamp;
use jiff::tz::TimeZone;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use sys::removal::{Contents, remove_entry};
use sys::rooted_dir::{Dir, EntryKind};

const DATA: &str = "..data";
const DATA_TMP: &str = "..data_tmp";
/// Limit when reading the present files back: larger than any object that the API server stores.
const MAX_FILE: u64 = 16 << 20;
const MAX_DEPTH: usize = 64;

/// What a write did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Written {
    /// The files on disk already had this content.
    Unchanged,
    /// New files are in place.
    Replaced,
}

/// Brings the volume at `target` to `payload`. `set_owner` is called on the volume after the new
/// files were written and before they become visible.
pub(crate) fn write(
    target: &Path,
    payload: Payload,
    now: Timestamp,
    set_owner: impl FnOnce() -> Result<(), StepError>,
) -> Result<Written, StepError> {
    let payload = check_payload(payload).map_err(|e| StepError::settled(e.to_string()))?;
    let volume = Dir::open(target)?;
    let old_name = current(&volume)?;
    let old = old_name.as_deref().and_then(|name| volume.dir(name).ok());
    let mut old_paths = BTreeSet::new();
    if let Some(old) = &old {
        collect(old, Path::new(""), &mut old_paths, 0)?;
    }
    let wanted: BTreeSet<PathBuf> = payload.keys().map(PathBuf::from).collect();
    let obsolete = old_paths.difference(&wanted).next().is_some();
    let same = old.as_ref().is_some_and(|old| {
        payload.iter().all(|(path, file)| {
            old.read_file(Path::new(path), MAX_FILE).is_ok_and(|bytes| bytes == file.bytes)
        })
    });
    if same && !obsolete {
        make_links(&volume, &payload)?;
        return Ok(Written::Unchanged);
    }

    let dated = new_dated(&volume, now)?;
    let written = fill(&volume, &dated, &payload).and_then(|()| set_owner()).and_then(|()| {
        volume.remove_file(DATA_TMP)?;
        volume.symlink(&dated, DATA_TMP)?;
        volume.rename(DATA_TMP, DATA)?;
        Ok(())
    });
    if let Err(e) = written {
        if let Err(removal) = remove_entry(&volume, dated.as_ref(), Contents::Everything) {
            tracing::warn!(path = %target.display(), err = %chain(&removal),
                "could not remove unfinished files");
        }
        return Err(e);
    }
    make_links(&volume, &payload)?;
    let tops: BTreeSet<&str> = payload.keys().filter_map(|p| p.split('/').next()).collect();
    for path in &old_paths {
        let Some(top) = path.iter().next().and_then(|t| t.to_str()) else { continue };
        let is_link = volume.kind(Path::new(top))? == Some(EntryKind::Link);
        if !tops.contains(top) && is_link {
            volume.remove_file(top)?;
        }
    }
    if let Some(old_name) = old_name.filter(|name| *name != dated) {
        remove_entry(&volume, old_name.as_ref(), Contents::Everything)?;
    }
    Ok(Written::Replaced)
}

/// The dated folder that `..data` links to; `None` if `..data` is missing or anything other than such a link.
fn current(volume: &Dir) -> Result<Option<String>, StepError> {
    if volume.kind(Path::new(DATA))? != Some(EntryKind::Link) {
        return Ok(None);
    }
    let target = volume.read_link(DATA)?;
    Ok(target.filter(|t| t.starts_with("..") && t.len() > 2 && !t.contains('/') && t != DATA))
}

fn collect(
    dir: &Dir,
    prefix: &Path,
    found: &mut BTreeSet<PathBuf>,
    depth: usize,
) -> Result<(), StepError> {
    if depth > MAX_DEPTH {
        return Ok(());
    }
    for (name, kind) in dir.entries()? {
        let path = prefix.join(&name);
        match (kind, name.to_str()) {
            (EntryKind::Dir, Some(name)) => collect(&dir.dir(name)?, &path, found, depth + 1)?,
            _ => {
                found.insert(path);
            }
        }
    }
    Ok(())
}

fn new_dated(volume: &Dir, now: Timestamp) -> Result<String, StepError> {
    let zoned = now.to_zoned(TimeZone::UTC);
    let date = zoned.strftime("..%Y_%m_%d_%H_%M_%S");
    let seed = now.subsec_nanosecond().unsigned_abs();
    for attempt in 0..1000_u32 {
        let number = seed.wrapping_add(attempt.wrapping_mul(2_654_435_761));
        let name = format!("{date}.{number}");
        if volume.kind(Path::new(&name))?.is_none() {
            volume.make_dir(&name, 0o755)?;
            return Ok(name);
        }
    }
    Err(StepError::uncertain("no free name for a new data directory"))
}

fn fill(volume: &Dir, dated: &str, payload: &Payload) -> Result<(), StepError> {
    let dir = volume.dir(dated)?;
    for (path, file) in payload {
        let path = Path::new(path);
        if let Some(parent) = path.parent().filter(|p| !p.as_os_str().is_empty()) {
            // The Go kubelet's mode for these folders.
            dir.make_beneath(parent, 0o755)?;
        }
        dir.create_file(path, &file.bytes, file.mode)?;
        if let Some(uid) = file.uid {
            dir.chown(path, Some(uid), None)?;
        }
    }
    Ok(())
}

fn make_links(volume: &Dir, payload: &Payload) -> Result<(), StepError> {
    for (path, file) in payload {
        let Some(top) = path.split('/').next() else { continue };
        if volume.kind(Path::new(top))?.is_some() {
            continue;
        }
        volume.symlink(&format!("{DATA}/{top}"), top)?;
        if let Some(uid) = file.uid {
            volume.chown(Path::new(top), Some(uid), None)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::volumes::insert_file;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn scratch(name: &str) -> PathBuf {
        let dir =
            std::env::temp_dir().join(format!("rubelet-writer-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).unwrap();
        dir
    }

    fn payload(files: &[(&str, &str)]) -> Payload {
        let mut payload = Payload::new();
        for (path, text) in files {
            insert_file(&mut payload, path, text.as_bytes().to_vec(), 0o640);
        }
        payload
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_700_000_000 + second).unwrap()
    }

    fn put(dir: &Path, files: &[(&str, &str)], second: i64) -> Result<Written, StepError> {
        write(dir, payload(files), at(second), || Ok(()))
    }

    fn names(dir: &Path) -> Vec<String> {
        sys::fs::list_dir(dir).unwrap()
    }

    #[test]
    fn files_are_swapped_at_once_and_removed_keys_disappear() {
        let dir = scratch("swap");
        assert_eq!(put(&dir, &[("a", "1"), ("d/b", "2"), ("d/c", "3")], 0), Ok(Written::Replaced));
        assert_eq!(names(&dir)[1..], ["..data", "a", "d"]);
        assert_eq!(std::fs::read_to_string(dir.join("d/b")).unwrap(), "2");
        let mode = std::fs::metadata(dir.join("a")).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o640);
        let first = std::fs::read_link(dir.join("..data")).unwrap();
        assert!(first.to_str().unwrap().starts_with("..2023_11_14_22_13_20."), "{first:?}");
        // Same content: same folder.
        assert_eq!(put(&dir, &[("a", "1"), ("d/b", "2"), ("d/c", "3")], 1), Ok(Written::Unchanged));
        assert_eq!(std::fs::read_link(dir.join("..data")).unwrap(), first);
        // Changed and removed: new folder, the old one is gone.
        assert_eq!(put(&dir, &[("d/b", "22")], 2), Ok(Written::Replaced));
        assert_eq!(names(&dir)[1..], ["..data", "d"]);
        assert_eq!(names(&dir.join("d")), ["b"]);
        assert!(!dir.join(first).exists());
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn a_failed_owner_change_leaves_the_old_content() {
        let dir = scratch("failed");
        put(&dir, &[("a", "1")], 0).unwrap();
        let failed = write(&dir, payload(&[("a", "2")]), at(1), || Err(StepError::settled("no")));
        assert!(failed.is_err());
        assert_eq!(std::fs::read_to_string(dir.join("a")).unwrap(), "1");
        assert_eq!(names(&dir).len(), 3, "{:?}", names(&dir));
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn planted_links_never_lead_outside() {
        let top = scratch("attack");
        let (dir, host) = (top.join("v"), top.join("host"));
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::create_dir_all(host.join("sub")).unwrap();
        std::fs::write(host.join("precious"), "x").unwrap();
        std::fs::write(host.join("sub/precious"), "x").unwrap();
        for target in ["../host", host.to_str().unwrap(), "..x/../../host", ".."] {
            // `..data` leads outside.
            let _ = std::fs::remove_file(dir.join("..data"));
            symlink(target, dir.join("..data")).unwrap();
            put(&dir, &[("a", "1")], 0).unwrap();
            assert!(host.join("precious").exists(), "{target}");
            assert_eq!(std::fs::read_to_string(dir.join("a")).unwrap(), "1");
        }
        // The dated folder itself is swapped for a link.
        let dated = std::fs::read_link(dir.join("..data")).unwrap();
        std::fs::remove_dir_all(dir.join(&dated)).unwrap();
        symlink(&host, dir.join(&dated)).unwrap();
        put(&dir, &[("a", "2")], 5).unwrap();
        assert!(host.join("precious").exists());
        assert!(host.join("sub/precious").exists());
        assert_eq!(names(&host), ["precious", "sub"]);
        // A link inside the dated folder.
        let dated = std::fs::read_link(dir.join("..data")).unwrap();
        symlink(&host, dir.join(&dated).join("evil")).unwrap();
        put(&dir, &[("evil/precious", "mine")], 9).unwrap();
        assert_eq!(std::fs::read_to_string(host.join("precious")).unwrap(), "x");
        assert_eq!(std::fs::read_to_string(dir.join("evil/precious")).unwrap(), "mine");
        std::fs::remove_dir_all(&top).unwrap();
    }
}
