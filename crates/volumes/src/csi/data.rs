//! `vol_data.json`: what is needed to undo a stage or publish, in the Go kubelet's format.

use crate::env::StepError;
use std::collections::BTreeMap;
use std::path::Path;
use sys::mount;

const FILE: &str = "vol_data.json";
const LABEL: &str = "seLinuxMountContext";

/// Keys and values as written.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct VolumeNotes(pub(crate) BTreeMap<String, String>);

impl VolumeNotes {
    pub(crate) fn get(&self, key: &str) -> &str {
        self.0.get(key).map(String::as_str).unwrap_or_default()
    }

    pub(crate) fn driver(&self) -> &str {
        self.get("driverName")
    }

    pub(crate) fn handle(&self) -> &str {
        self.get("volumeHandle")
    }

    /// Whether both the driver and the volume handle are set.
    pub(crate) fn are_complete(&self) -> bool {
        !self.driver().is_empty() && !self.handle().is_empty()
    }

    /// The SELinux label of the mount; empty: none.
    pub(crate) fn label(&self) -> &str {
        self.get(LABEL)
    }

    /// Adds the label of the mount, if it has one.
    pub(crate) fn set_label(&mut self, label: &str) {
        if !label.is_empty() {
            self.0.insert(LABEL.to_owned(), label.to_owned());
        }
    }

    /// Writes the file into `dir`, which must exist.
    pub(crate) fn save(&self, dir: &Path) -> Result<(), StepError> {
        let text = units::gojson::to_string(&self.0)
            .map_err(|e| StepError::settled(format!("failed to save volume data file: {e}")))?;
        Ok(sys::fs::write_atomic(dir.join(FILE), format!("{text}\n"), 0o644)?)
    }

    /// Reads the file in `dir`; `None` if there is none.
    pub(crate) fn load(dir: &Path) -> Result<Option<Self>, StepError> {
        let text = match sys::fs::read_to_string(dir.join(FILE)) {
            Ok(text) => text,
            Err(e) if e.is_not_found() => return Ok(None),
            Err(e) => return Err(e.into()),
        };
        serde_json::from_str(&text).map(|map| Some(Self(map))).map_err(|e| {
            StepError::uncertain(format!(
                "{}failed to parse volume data file [{}]: {e}",
                super::PREFIX,
                dir.join(FILE).display()
            ))
        })
    }
}

/// Removes the mount folder, `vol_data.json` and its folder, unless something is mounted there
/// (upstream: `removeMountDir`).
pub(crate) fn remove_mount_dir(path: &Path) -> Result<(), StepError> {
    match mount::is_mount_point(path) {
        Ok(true) => return Ok(()),
        Ok(false) => sys::fs::remove_dir(path)?,
        Err(e) if e.is_not_found() => {}
        Err(e) => return Err(e.into()),
    }
    if let Some(dir) = path.parent() {
        remove_unfinished(dir)?;
        sys::fs::remove_file(dir.join(FILE))?;
        sys::fs::remove_dir(dir)?;
    }
    Ok(())
}

/// Removes temporary files of `vol_data.json` that a crash left: the folder could never be removed otherwise.
pub(crate) fn remove_unfinished(dir: &Path) -> Result<(), StepError> {
    let names = match sys::fs::list_dir(dir) {
        Ok(names) => names,
        Err(e) if e.is_not_found() => return Ok(()),
        Err(e) => return Err(e.into()),
    };
    for name in names {
        if name.starts_with(&format!(".{FILE}.")) && name.ends_with(".tmp") {
            sys::fs::remove_file(dir.join(name))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_are_written_as_the_go_kubelet_writes_them() {
        let dir = std::env::temp_dir().join(format!("rubelet-voldata-{}", std::process::id()));
        std::fs::create_dir_all(dir.join("mount")).unwrap();
        assert_eq!(VolumeNotes::load(&dir).unwrap(), None);
        let notes = VolumeNotes(
            [("volumeHandle", "h<1>"), ("driverName", "d")]
                .map(|(k, v)| (k.to_owned(), v.to_owned()))
                .into(),
        );
        notes.save(&dir).unwrap();
        assert_eq!(
            std::fs::read_to_string(dir.join(FILE)).unwrap(),
            "{\"driverName\":\"d\",\"volumeHandle\":\"h\\u003c1\\u003e\"}\n"
        );
        assert_eq!(VolumeNotes::load(&dir).unwrap(), Some(notes));
        std::fs::write(dir.join(format!(".{FILE}.1.tmp")), "{").unwrap();
        remove_mount_dir(&dir.join("mount")).unwrap();
        assert!(!dir.exists());
    }
}
