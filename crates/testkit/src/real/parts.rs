//! Where the prepared programs are (`parts/prepare` makes them).

use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};

use super::run;

/// The folder of this checkout.
#[must_use]
pub fn repository_root() -> PathBuf {
    let crate_dir = Path::new(env!("CARGO_MANIFEST_DIR"));
    crate_dir.ancestors().nth(2).unwrap_or(crate_dir).to_path_buf()
}

/// Where harness state that outlives one run is kept.
pub(super) fn cache_dir() -> anyhow::Result<PathBuf> {
    if let Some(dir) = std::env::var_os("RUBELET_CACHE") {
        return Ok(dir.into());
    }
    if let Some(dir) = std::env::var_os("XDG_CACHE_HOME") {
        return Ok(Path::new(&dir).join("rubelet"));
    }
    let home = std::env::var_os("HOME").context("HOME is not set")?;
    Ok(Path::new(&home).join(".cache/rubelet"))
}

/// The prepared parts of this checkout's pins.
#[derive(Debug, Clone)]
pub struct Parts {
    dir: PathBuf,
}

impl Parts {
    /// Find them; fails with the command to run when they were never prepared.
    pub fn find() -> anyhow::Result<Parts> {
        let script = repository_root().join("parts/prepare");
        let dir = PathBuf::from(run(&script, ["--dir"])?.trim());
        ensure!(
            dir.join("registry/READY-base").is_file(),
            "the real parts are not prepared: run `make parts` (looked in {})",
            dir.display()
        );
        Ok(Parts { dir })
    }

    /// Path of one program.
    pub fn bin(&self, name: &str) -> anyhow::Result<PathBuf> {
        let path = self.dir.join("bin").join(name);
        ensure!(path.is_file(), "{} is not prepared: run `make parts`", path.display());
        Ok(path)
    }

    /// Storage of the registry that holds the test images.
    #[must_use]
    pub fn registry_storage(&self) -> PathBuf {
        self.dir.join("registry")
    }

    /// Storage of the registry with the images of Kubernetes' node e2e suite.
    #[must_use]
    pub fn e2e_registry_storage(&self) -> PathBuf {
        self.dir.join("e2e-registry")
    }

    /// Folder of the programs, to be put on a PATH.
    #[must_use]
    pub fn bin_dir(&self) -> PathBuf {
        self.dir.join("bin")
    }
}
