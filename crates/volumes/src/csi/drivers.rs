//! The registered CSI drivers.

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

/// Upstream's error for a driver that is not registered.
pub(crate) fn missing(name: &str) -> String {
    format!("driver name {name} not found in the list of registered CSI drivers")
}

/// A driver's API version: its numbers, as many as it has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Version(Vec<u64>);

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let numbers: Vec<String> = self.0.iter().map(u64::to_string).collect();
        f.write_str(&numbers.join("."))
    }
}

impl Version {
    /// Two or more numbers, after optional white space and `v`; anything after them is ignored (upstream: `ParseGeneric`).
    fn parse(text: &str) -> Result<Self, String> {
        let shown = format!("{text:?}");
        let blank = [' ', '\t', '\n', '\u{c}', '\r'];
        let bare = text.trim_start_matches(blank);
        let bare = bare.strip_prefix('v').unwrap_or(bare);
        let mut parts = Vec::new();
        let mut rest = bare;
        loop {
            let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
            let (digits, after) = rest.split_at(end);
            if digits.is_empty() {
                break;
            }
            parts.push(digits);
            match after.strip_prefix('.') {
                Some(next) => rest = next,
                None => break,
            }
        }
        if parts.is_empty() || bare.contains('\n') {
            return Err(format!("could not parse {shown} as version"));
        }
        if parts.len() < 2 {
            return Err(format!("illegal version string {shown}"));
        }
        if let Some(first) = parts.first().filter(|first| first.len() > 1 && first.starts_with('0'))
        {
            return Err(format!("illegal zero-prefixed version component {first:?} in {shown}"));
        }
        let numbers = parts.into_iter().map(|part| {
            part.parse().map_err(|_| {
                format!(
                    "illegal non-numeric version component {part:?} in {shown}: strconv.ParseUint: parsing {part:?}: value out of range"
                )
            })
        });
        numbers.collect::<Result<_, _>>().map(Self)
    }

    fn is_first(&self) -> bool {
        self.0.first() == Some(&1)
    }

    /// Whether this version is lower; trailing zeros do not matter.
    pub(crate) fn is_before(&self, other: &Self) -> bool {
        let significant = |version: &Self| {
            let end = version.0.iter().rposition(|number| *number != 0).map_or(0, |last| last + 1);
            version.0.iter().take(end).copied().collect::<Vec<_>>()
        };
        significant(self) < significant(other)
    }

    /// The highest of the offered versions below 2, which must be a 1.x (upstream: `HighestSupportedVersion`).
    pub(crate) fn highest(offered: &[String]) -> Result<Self, String> {
        let mut highest: Option<Self> = None;
        let mut fault = "<nil>".to_owned();
        for text in offered.iter().rev() {
            let version = match Self::parse(text) {
                Ok(version) => version,
                Err(why) => {
                    fault = why;
                    continue;
                }
            };
            let later = version.0.first().is_some_and(|major| *major > 1);
            if !later && highest.as_ref().is_none_or(|known| known.is_before(&version)) {
                highest = Some(version);
            }
        }
        match highest {
            None => Err(format!(
                "could not find a highest supported version from versions ([{}]) reported: {fault}",
                offered.join(" ")
            )),
            Some(version) if !version.is_first() => {
                Err(format!("highest supported version reported is {version}, must be v1.x"))
            }
            Some(version) => Ok(version),
        }
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

    /// Waits until a driver is registered; only one task may wait.
    pub(crate) async fn changed(&self) {
        self.change.notified().await;
    }

    pub(crate) fn remove(&self, name: &str) {
        if let Ok(mut drivers) = self.registered.lock() {
            drivers.remove(name);
        }
    }

    /// A connection for one operation; a missing driver is a transient error, since it may come back.
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

    /// Expected values come from the Go code.
    #[test]
    fn the_highest_first_version_wins_and_others_are_refused() {
        let highest = |offered: &[&str]| {
            let offered: Vec<String> = offered.iter().map(|v| (*v).to_owned()).collect();
            Version::highest(&offered).map(|v| v.to_string())
        };
        let none = |offered: &str, why: &str| {
            Err(format!(
                "could not find a highest supported version from versions ([{offered}]) reported: {why}"
            ))
        };
        assert_eq!(highest(&["1.0.0", "v1.2.3", "1.1"]), Ok("1.2.3".into()));
        assert_eq!(highest(&["0.3.0", "1.0.0", "2.0.0"]), Ok("1.0.0".into()));
        assert_eq!(highest(&["1.2.3.4", " v1.2.3-rc1"]), Ok("1.2.3.4".into()));
        assert_eq!(
            highest(&["nonsense", "1.0"]),
            Ok("1.0".into()),
            "what cannot be read is left out"
        );
        assert_eq!(highest(&["1.0.0", "1.0"]), Ok("1.0".into()), "the last of equal ones");
        assert_eq!(
            highest(&["0.3.0"]),
            Err("highest supported version reported is 0.3.0, must be v1.x".into())
        );
        assert_eq!(highest(&["2.0.0"]), none("2.0.0", "<nil>"));
        assert_eq!(highest(&["1.x"]), none("1.x", "illegal version string \"1.x\""));
        assert_eq!(highest(&["a", "01.2"]), none("a 01.2", "could not parse \"a\" as version"),);
        assert_eq!(
            highest(&["01.2", "x"]),
            none("01.2 x", "illegal zero-prefixed version component \"01\" in \"01.2\"")
        );
    }
}
