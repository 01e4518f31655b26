//! Which drivers are registered here.

use super::client::Driver;
use crate::env::StepError;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Mutex;
use telemetry::metrics::HistogramFamily;
use tokio::sync::Notify;

/// One registered driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Registered {
    pub(crate) endpoint: PathBuf,
    pub(crate) version: Version,
}

impl Registered {
    /// A connection for one operation.
    pub(crate) fn open(&self, name: &str, seconds: HistogramFamily) -> Driver {
        Driver::at(&self.endpoint, name, seconds)
    }
}

/// Upstream's words for a driver that is not there.
pub(crate) fn missing(name: &str) -> String {
    format!("driver name {name} not found in the list of registered CSI drivers")
}

/// A driver's API version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Version(u32, u32, u32);

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}.{}", self.0, self.1, self.2)
    }
}

impl Version {
    fn parse(text: &str) -> Option<Self> {
        let text = text.strip_prefix('v').unwrap_or(text);
        let mut parts = text.split('.').map(|p| p.parse().ok());
        let version = Self(
            parts.next().flatten()?,
            parts.next().unwrap_or(Some(0))?,
            parts.next().unwrap_or(Some(0))?,
        );
        parts.next().is_none().then_some(version)
    }

    /// The highest 1.x among those offered.
    pub(crate) fn highest(offered: &[String]) -> Result<Self, String> {
        let parsed: Option<Vec<Self>> = offered.iter().map(|v| Self::parse(v)).collect();
        let parsed = parsed.ok_or("could not parse a version")?;
        parsed
            .into_iter()
            .filter(|v| v.0 == 1)
            .max()
            .ok_or_else(|| "none of the CSI versions reported by this driver are supported".into())
    }
}

/// The drivers by name.
#[derive(Debug)]
pub(crate) struct Drivers {
    registered: Mutex<BTreeMap<String, Registered>>,
    change: Notify,
    /// How long calls took.
    pub(crate) seconds: HistogramFamily,
}

impl Drivers {
    pub(crate) fn new(seconds: HistogramFamily) -> Self {
        Self { registered: Mutex::default(), change: Notify::new(), seconds }
    }

    pub(crate) fn get(&self, name: &str) -> Option<Registered> {
        self.registered.lock().ok()?.get(name).cloned()
    }

    pub(crate) fn set(&self, name: &str, driver: Registered) {
        if let Ok(mut drivers) = self.registered.lock() {
            drivers.insert(name.to_owned(), driver);
        }
        self.change.notify_one();
    }

    /// All that are registered.
    pub(crate) fn names(&self) -> BTreeSet<String> {
        self.registered.lock().map(|all| all.keys().cloned().collect()).unwrap_or_default()
    }

    /// Waits until another driver is registered; one waits at a time.
    pub(crate) async fn changed(&self) {
        self.change.notified().await;
    }

    pub(crate) fn remove(&self, name: &str) {
        if let Ok(mut drivers) = self.registered.lock() {
            drivers.remove(name);
        }
    }

    /// A connection for one operation; a driver that is not there may come back.
    pub(crate) fn open(&self, name: &str, context: &str) -> Result<Driver, StepError> {
        match self.get(name) {
            Some(driver) => Ok(driver.open(name, self.seconds.clone())),
            None => {
                Err(StepError::transient(format!("{}{context}: {}", super::PREFIX, missing(name))))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_first_version_wins_and_others_are_refused() {
        let highest = |offered: &[&str]| {
            let offered: Vec<String> = offered.iter().map(|v| (*v).to_owned()).collect();
            Version::highest(&offered).map(|v| v.to_string())
        };
        assert_eq!(highest(&["1.0.0", "v1.2.3", "1.1"]), Ok("1.2.3".into()));
        assert_eq!(highest(&["0.3.0", "1.0.0", "2.0.0"]), Ok("1.0.0".into()));
        assert!(highest(&["0.3.0"]).is_err());
        assert!(highest(&["1.x"]).is_err());
        assert!(highest(&["1.2.3.4"]).is_err());
    }
}
