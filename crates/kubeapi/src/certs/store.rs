//! Certificates on disk, at upstream's paths: `<prefix>-<time>.pem` holds certificate and key,
//! `<prefix>-current.pem` is a symbolic link to the newest.

use crate::connection::{IdentityError, IdentityPair};
use jiff::Timestamp;
use jiff::tz::TimeZone;
use std::path::{Path, PathBuf};
use sys::fs::FsError;

/// Why a stored certificate cannot be used, or a new one not stored.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A file operation failed.
    #[error("certificate file")]
    File(#[from] FsError),
    /// There is a regular file where the link should be.
    #[error("expected {0:?} to be a symlink but it is a file")]
    NotALink(PathBuf),
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

/// Where one kind of certificate is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertStore {
    folder: PathBuf,
    prefix: &'static str,
    /// Certificate and key files that are used initially.
    first: Option<(PathBuf, PathBuf)>,
}

impl CertStore {
    /// `prefix` is `kubelet-client` or `kubelet-server`.
    pub fn new(folder: impl Into<PathBuf>, prefix: &'static str) -> Self {
        Self { folder: folder.into(), prefix, first: None }
    }

    /// The same store, with these files used until the first certificate is stored.
    #[must_use]
    pub fn beginning_with(self, first: Option<(PathBuf, PathBuf)>) -> Self {
        Self { first, ..self }
    }

    /// The symbolic link to the newest certificate.
    pub fn current_path(&self) -> PathBuf {
        self.folder.join(format!("{}-current.pem", self.prefix))
    }

    fn updated_path(&self) -> PathBuf {
        self.folder.join(format!("{}-updated.pem", self.prefix))
    }

    /// Completes an interrupted rotation: upstream removes the old link before it renames the new
    /// one, so a node that stopped between the two has only the new one.
    fn recover(&self) -> Result<(), StoreError> {
        let (current, updated) = (self.current_path(), self.updated_path());
        if !sys::fs::try_exists(&current)? && is_link(&updated)? {
            sys::fs::rename(&updated, &current)?;
        }
        Ok(())
    }

    /// The newest certificate: from the link, from the initial files, or from a `<prefix>.crt` and
    /// `.key` pair.
    pub fn current(&self) -> Result<Option<IdentityPair>, StoreError> {
        self.recover()?;
        let current = self.current_path();
        if let Some(pem) = read(&current)? {
            return parse(&current, &pem, &pem).map(Some);
        }
        let pair_file = |end: &str| self.folder.join(format!("{}.{end}", self.prefix));
        for (path, key) in
            self.first.clone().into_iter().chain([(pair_file("crt"), pair_file("key"))])
        {
            if let (Some(certificate), Some(key)) = (read(&path)?, read(&key)?) {
                return parse(&path, &certificate, &key).map(Some);
            }
        }
        Ok(None)
    }

    /// Stores a new certificate and makes it the current one.
    pub fn update(
        &self,
        certificate: &[u8],
        key: &[u8],
        now: Timestamp,
    ) -> Result<IdentityPair, StoreError> {
        // In local time, as upstream names them.
        let time = now.to_zoned(TimeZone::system()).strftime("%Y-%m-%d-%H-%M-%S");
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

    /// Replaces the link atomically; a regular file in its place belongs to somebody else and
    /// stays.
    fn point_at(&self, target: &Path) -> Result<(), StoreError> {
        let (current, updated) = (self.current_path(), self.updated_path());
        is_link(&current)?;
        if is_link(&updated)? {
            sys::fs::remove_file(&updated)?;
        }
        let failed = |source| FsError { operation: "link", path: updated.clone(), source };
        // A relative directory is relative to this process, not to the link.
        let target = std::path::absolute(target).map_err(failed)?;
        std::os::unix::fs::symlink(target, &updated).map_err(failed)?;
        Ok(sys::fs::rename(&updated, &current)?)
    }
}

/// Whether there is a symbolic link; anything else there is an error.
fn is_link(path: &Path) -> Result<bool, StoreError> {
    match path.symlink_metadata() {
        Ok(found) if found.is_symlink() => Ok(true),
        Ok(_) => Err(StoreError::NotALink(path.to_owned())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(source) => Err(FsError { operation: "stat", path: path.to_owned(), source }.into()),
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

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("rubelet-{name}-{}", std::process::id()));
        sys::fs::create_dir_all(&folder, 0o755).unwrap();
        folder
    }

    fn remove(folder: &Path) {
        for name in sys::fs::list_dir(folder).unwrap() {
            sys::fs::remove_file(folder.join(name)).unwrap();
        }
        sys::fs::remove_dir(folder).unwrap();
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
        remove(&folder);
    }

    #[test]
    fn files_elsewhere_are_good_until_a_certificate_is_kept() {
        let folder = folder("first-store");
        let (certificate, key) = (folder.join("a.crt"), folder.join("a.key"));
        let files = Some((certificate.clone(), key.clone()));
        let store = CertStore::new(&folder, "kubelet-server").beginning_with(files);
        let (first, next) = (pair(), pair());
        sys::fs::write(&certificate, &first.0).unwrap();
        assert!(store.current().unwrap().is_none(), "half a pair is none");
        sys::fs::write(&key, &first.1).unwrap();
        let begun = IdentityPair::from_pem(first.0.as_bytes(), first.1.as_bytes()).unwrap();
        assert_eq!(store.current().unwrap().unwrap().chain(), begun.chain());
        let updated = store.update(next.0.as_bytes(), next.1.as_bytes(), Timestamp::UNIX_EPOCH);
        assert_eq!(store.current().unwrap().unwrap().chain(), updated.unwrap().chain());
        remove(&folder);
    }

    #[test]
    fn a_rotation_that_was_cut_off_is_finished() {
        let folder = folder("cut-off-store");
        let store = CertStore::new(&folder, "kubelet-client");
        let (certificate, key) = pair();
        let stored = store.update(certificate.as_bytes(), key.as_bytes(), Timestamp::UNIX_EPOCH);
        let updated = folder.join("kubelet-client-updated.pem");
        sys::fs::rename(store.current_path(), &updated).unwrap();
        assert_eq!(store.current().unwrap().unwrap().chain(), stored.unwrap().chain());
        assert!(store.current_path().is_symlink() && !updated.is_symlink());
        remove(&folder);
    }

    #[test]
    fn a_file_where_the_link_should_be_is_read_and_never_replaced() {
        let folder = folder("own-store");
        let store = CertStore::new(&folder, "kubelet-client");
        let (own, next) = (pair(), pair());
        let text = format!("{}{}", own.0, own.1);
        sys::fs::write(store.current_path(), &text).unwrap();
        assert!(store.current().unwrap().is_some());
        let error = store.update(next.0.as_bytes(), next.1.as_bytes(), Timestamp::UNIX_EPOCH);
        let wanted = format!(
            "expected {:?} to be a symlink but it is a file",
            store.current_path().to_str().unwrap()
        );
        assert_eq!(error.unwrap_err().to_string(), wanted);
        assert_eq!(sys::fs::read_to_string(store.current_path()).unwrap(), text);
        remove(&folder);
    }
}
