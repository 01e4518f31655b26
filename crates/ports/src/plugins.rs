//! Plugins that announce themselves by a socket in `plugins_registry`.
//!
//! One watcher finds the sockets and speaks the registration protocol; each type of plugin has a
//! handler in the subsystem that uses it.

use async_trait::async_trait;
use std::path::PathBuf;

/// A plugin's info (`GetInfo`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PluginInfo {
    /// The plugin's name, e.g. a CSI driver's.
    pub name: String,
    /// Its service endpoint; the registration socket itself if it names none.
    pub endpoint: PathBuf,
    /// Versions of its API that it supports.
    pub versions: Vec<String>,
}

/// One type of plugin (`CSIPlugin`, `DevicePlugin`, `DRAPlugin`).
#[async_trait]
pub trait PluginHandler: Send + Sync + std::fmt::Debug {
    /// Whether this plugin can be used at all; the text goes back to the plugin.
    async fn validate(&self, plugin: &PluginInfo) -> Result<(), String>;
    /// Starts using the plugin; the text goes back to the plugin.
    async fn register(&self, plugin: &PluginInfo) -> Result<(), String>;
    /// The plugin's socket is gone.
    async fn deregister(&self, plugin: &PluginInfo);
}
