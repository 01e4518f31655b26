//! Flags, configuration file, drop-ins, feature gates, variables, defaults and validation: one resolved
//! Config.
//!
//! Owns: everything between a command line and a [`Config`], and every text said on the way.
//!
//! Promises: pure. Files come in through [`ConfigFiles`]; what is to be printed or logged goes out
//! as values. All faults of a configuration are told at once, in upstream's words and order.
//!
//! Deliberately absent: reading the host (its cgroup version is handed in), starting anything.
#![forbid(unsafe_code)]

pub mod credentials;
mod document;
mod dropins;
pub mod environment;
pub mod flags;
pub mod gates;
pub mod kubeconfig;
pub mod kubelet;
mod load;
mod log;
mod origin;
pub mod resolved;
#[cfg(test)]
mod testing;
mod text;
mod validate;
mod value;
mod version;

pub use flags::KubeletFlags;
pub use gates::Gates;
pub use kubelet::KubeletConfiguration;
pub use load::{Effective, LoadError, Loaded, Request, load};
pub use log::{LogLine, LogValue, Severity};
pub use origin::Origin;
pub use resolved::Config;
pub use text::{aggregate, clean_path};
pub use validate::{CgroupVersion, faults};

/// A certificate and its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CertificateFiles<'a> {
    /// The certificate.
    pub certificate: &'a str,
    /// The key.
    pub key: &'a str,
}

/// Access to files and variables, handed in.
pub trait ConfigFiles {
    /// Content of a file; the error reads as Go's (`open P: no such file or directory`).
    fn read(&self, path: &str) -> Result<Vec<u8>, String>;

    /// Every entry below a folder that is not a folder, entries of each folder in byte order,
    /// links not followed; for a path that is no folder, itself. The error reads as Go's
    /// (`lstat P: no such file or directory`).
    fn walk(&self, path: &str) -> Result<Vec<String>, String>;

    /// The folder that relative paths start from.
    fn working_dir(&self) -> String;

    /// Variables of the process, by name.
    fn variables(&self) -> Vec<(String, String)> {
        Vec::new()
    }

    /// Sees to it that there is a certificate for serving: made for this host (the machine's own
    /// name if empty) if neither file is there. The error reads as Go's. One who only looks makes
    /// none.
    fn serving_certificate(&self, _: &CertificateFiles<'_>, _host: &str) -> Result<(), String> {
        Ok(())
    }

    /// Why these PEM texts are no certificate with its key, in Go's words. One who knows nothing of
    /// keys sees only whether they look like it.
    fn pair_fault(&self, certificate: &[u8], key: &[u8]) -> Option<String> {
        units::x509::pair_outline_fault(certificate, key)
    }
}
