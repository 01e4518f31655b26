//! Certificates on disk, in upstream's places: `<prefix>-<time>.pem` holds certificate and key,
//! `<prefix>-current.pem` is a symbolic link to the newest.

use crate::connection::{IdentityError, IdentityPair};
use jiff::Timestamp;
use std::path::{Path, PathBuf};
use sys::fs::FsError;

/// Why a stored certificate cannot be used or kept.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A file operation failed.
    #[error("certificate file")]
    File(#[from] FsError),
    /// The content is not a certificate with its key.
    #[error("{path}")]
    Content {
        /// Which file.
        path: String,
        /// What is wrong.
        #[source]
        source: IdentityError,
    },
}

/// Where one kind of certificate is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertStore {
    folder: PathBuf,
    prefix: &'static str,
}

impl CertStore {
    /// `prefix` is `kubelet-client` or `kubelet-server`.
    pub fn new(folder: impl Into<PathBuf>, prefix: &'static str) -> Self {
        Self { folder: folder.into(), prefix }
    }

    /// The symbolic link to the newest certificate.
    pub fn current_path(&self) -> PathBuf {
        self.folder.join(format!("{}-current.pem", self.prefix))
    }

    /// The newest certificate: behind the link, or as a `<prefix>.crt` and `.key` pair.
    pub fn current(&self) -> Result<Option<IdentityPair>, StoreError> {
        let current = self.current_path();
        if let Some(pem) = read(&current)? {
            return parse(&current, &pem, &pem).map(Some);
        }
        let certificate_path = self.folder.join(format!("{}.crt", self.prefix));
        let key = read(&self.folder.join(format!("{}.key", self.prefix)))?;
        match (read(&certificate_path)?, key) {
            (Some(certificate), Some(key)) => {
                parse(&certificate_path, &certificate, &key).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// Keeps a new certificate and makes it the current one.
    pub fn update(
        &self,
        certificate: &[u8],
        key: &[u8],
        now: Timestamp,
    ) -> Result<IdentityPair, StoreError> {
        let time = now.strftime("%Y-%m-%d-%H-%M-%S");
        let path = self.folder.join(format!("{}-{time}.pem", self.prefix));
        let pair = parse(&path, certificate, key)?;
        sys::fs::create_dir_all(&self.folder, 0o755)?;
        let mut pem = certificate.to_vec();
        if !pem.ends_with(b"\n") {
            pem.push(b'\n');
        }
        pem.extend_from_slice(key);
        sys::fs::write_atomic(&path, pem, 0o600)?;
        self.point_at(&path)?;
        Ok(pair)
    }

    /// Swaps the link in one step.
    fn point_at(&self, target: &Path) -> Result<(), FsError> {
        let updated = self.folder.join(format!("{}-updated.pem", self.prefix));
        sys::fs::remove_file(&updated)?;
        let failed = |operation, path: &Path| {
            let path = path.to_owned();
            move |source| FsError { operation, path, source }
        };
        std::os::unix::fs::symlink(target, &updated).map_err(failed("link", &updated))?;
        let current = self.current_path();
        std::fs::rename(&updated, &current).map_err(failed("rename to", &current))
    }
}

fn read(path: &Path) -> Result<Option<Vec<u8>>, StoreError> {
    match sys::fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn parse(path: &Path, certificate: &[u8], key: &[u8]) -> Result<IdentityPair, StoreError> {
    let named = |source| StoreError::Content { path: path.display().to_string(), source };
    IdentityPair::from_pem(certificate, key).map_err(named)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, KeyPair};

    fn pair() -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec!["n".to_owned()]).unwrap();
        (params.self_signed(&key).unwrap().pem(), key.serialize_pem())
    }

    #[test]
    fn the_newest_certificate_is_current_and_older_ones_stay() {
        let folder = std::env::temp_dir().join(format!("rubelet-store-{}", std::process::id()));
        let store = CertStore::new(&folder, "kubelet-client");
        assert!(store.current().unwrap().is_none());
        let at = |s: i64| Timestamp::from_second(1_800_000_000 + s).unwrap();
        let (first, second) = (pair(), pair());
        store.update(first.0.as_bytes(), first.1.as_bytes(), at(0)).unwrap();
        let newest = store.update(second.0.as_bytes(), second.1.as_bytes(), at(1)).unwrap();
        let current = store.current().unwrap().unwrap();
        assert_eq!(current.chain(), newest.chain());
        let names = sys::fs::list_dir(&folder).unwrap();
        assert_eq!(
            names,
            [
                "kubelet-client-2027-01-15-08-00-00.pem",
                "kubelet-client-2027-01-15-08-00-01.pem",
                "kubelet-client-current.pem",
            ]
        );
        let target = std::fs::read_link(store.current_path()).unwrap();
        assert_eq!(target, folder.join("kubelet-client-2027-01-15-08-00-01.pem"));
        for name in names {
            sys::fs::remove_file(folder.join(name)).unwrap();
        }
        sys::fs::remove_dir(&folder).unwrap();
    }
}
