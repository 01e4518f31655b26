//! CSI drivers: registration, calls to their node service, and the metadata kept on disk for them.
//!
//! ```text
//!  stage    plugins/kubernetes.io/csi/<driver>/<sha256(handle)>/{vol_data.json,globalmount}
//!  publish  pods/<uid>/volumes/kubernetes.io~csi/<name>/{vol_data.json,mount}
//! ```
//!
//! `vol_data.json` is written before the call whose undoing needs it, so a crash at any point leaves
//! enough to undo. Secrets and volume contexts are never logged.

pub(crate) mod block;
pub(crate) mod client;
pub(crate) mod data;
pub(crate) mod drivers;
pub(crate) mod info;
pub(crate) mod limits;
pub(crate) mod mount;
pub(crate) mod source;

/// Prefix of the CSI plugin's error messages, as upstream has it.
pub(crate) const PREFIX: &str = "kubernetes.io/csi: ";
