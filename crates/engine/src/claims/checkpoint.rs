//! `dra_manager_state`: the claims of this node, in the Go kubelet's form.

use super::state::{ClaimState, PreparedClaim, PreparedDevice};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use units::gojson::{self, Shape};
use units::hash::crc32_ieee;

/// Name of the file.
pub const FILE: &str = "dra_manager_state";

/// Why a file cannot be used; the words are upstream's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CheckpointError {
    /// It is not a checkpoint.
    #[error("GetOrCreate() on checkpoint state: failed to get checkpoint {FILE}: {0}")]
    Malformed(String),
    /// Its checksum is wrong.
    #[error(
        "GetOrCreate() on checkpoint state: failed to get checkpoint {FILE}: checkpoint is corrupted"
    )]
    Corrupt,
    /// Its content is not a list of claims.
    #[error("GetEntries() on checkpoint: {0}")]
    Content(String),
}

#[derive(Debug, Serialize)]
struct Envelope {
    #[serde(rename = "Data")]
    data: String,
    #[serde(rename = "Checksum")]
    checksum: u32,
}

/// The checkpoint envelope as it is read; missing fields have the values of the first file.
#[derive(Debug, Deserialize)]
struct Read {
    #[serde(rename = "Data", default)]
    data: Option<String>,
    #[serde(rename = "Checksum", default)]
    checksum: Option<u32>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Content {
    #[serde(default)]
    kind: String,
    #[serde(rename = "apiVersion", default)]
    api_version: String,
    #[serde(rename = "ClaimInfoStateList", default)]
    claims: Option<Vec<Claim>>,
}

const ENVELOPE: Shape<'_> = ("state.Checkpoint", &[("Data", "string"), ("Checksum", "uint32")]);
const CONTENT: Shape<'_> = (
    "state.CheckpointData",
    &[
        ("kind", "string"),
        ("apiVersion", "string"),
        ("ClaimInfoStateList", "state.ClaimInfoStateList"),
    ],
);

#[derive(Debug, Serialize, Deserialize)]
struct Nothing {}

#[derive(Debug, Serialize, Deserialize)]
struct Claim {
    #[serde(rename = "ClaimUID", default)]
    uid: String,
    #[serde(rename = "ClaimName", default)]
    name: String,
    #[serde(rename = "Namespace", default)]
    namespace: String,
    #[serde(rename = "PodUIDs", default)]
    pods: Option<BTreeMap<String, Nothing>>,
    #[serde(rename = "DriverState", default)]
    drivers: Option<BTreeMap<String, Driver>>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Driver {
    #[serde(rename = "Devices", default)]
    devices: Option<Vec<Device>>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Device {
    #[serde(rename = "PoolName", default)]
    pool: String,
    #[serde(rename = "DeviceName", default)]
    name: String,
    #[serde(rename = "ShareID", default)]
    share: Option<String>,
    #[serde(rename = "RequestNames", default)]
    requests: Option<Vec<String>>,
    #[serde(rename = "CDIDeviceIDs", default)]
    cdi: Option<Vec<String>>,
}

/// The first file of a node: no claims.
pub fn first() -> Result<String, serde_json::Error> {
    envelope(None)
}

impl ClaimState {
    /// The checkpoint of this state.
    pub fn to_checkpoint(&self) -> Result<String, serde_json::Error> {
        envelope(Some(self.claims.values().map(Claim::of).collect()))
    }

    /// The state in a checkpoint. No claim counts as prepared: drivers are called again.
    pub fn restore(text: &str) -> Result<Self, CheckpointError> {
        let malformed = |text: &str, error| CheckpointError::Malformed(gojson::fault(text, &error));
        let read: Read = gojson::decode(text, ENVELOPE).map_err(|error| malformed(text, error))?;
        let first = content(None).map_err(|error| malformed("", error))?;
        let checksum = read.checksum.unwrap_or(crc32_ieee(first.as_bytes()));
        let data = read.data.unwrap_or(first);
        if crc32_ieee(data.as_bytes()) != checksum {
            return Err(CheckpointError::Corrupt);
        }
        let content: Content = gojson::decode(&data, CONTENT)
            .map_err(|error| CheckpointError::Content(gojson::fault(&data, &error)))?;
        let claims = content.claims.unwrap_or_default().into_iter().map(Claim::into_prepared);
        Ok(Self { claims: claims.map(|claim| (claim.key(), claim)).collect() })
    }
}

fn content(claims: Option<Vec<Claim>>) -> Result<String, serde_json::Error> {
    gojson::to_string(&Content {
        kind: "DRACheckpoint".to_owned(),
        api_version: "checkpoint.dra.kubelet.k8s.io/v1".to_owned(),
        claims,
    })
}

fn envelope(claims: Option<Vec<Claim>>) -> Result<String, serde_json::Error> {
    let data = content(claims)?;
    let checksum = crc32_ieee(data.as_bytes());
    gojson::to_string(&Envelope { data, checksum })
}

impl Claim {
    fn of(claim: &PreparedClaim) -> Self {
        let driver = |devices: &Vec<PreparedDevice>| Driver {
            devices: some(devices.iter().map(Device::of).collect()),
        };
        let drivers = claim.drivers.iter().map(|(name, devices)| (name.clone(), driver(devices)));
        Self {
            uid: claim.uid.clone(),
            name: claim.name.clone(),
            namespace: claim.namespace.clone(),
            pods: Some(claim.pods.iter().map(|uid| (uid.clone(), Nothing {})).collect()),
            drivers: Some(drivers.collect()),
        }
    }

    fn into_prepared(self) -> PreparedClaim {
        let devices = |driver: Driver| {
            let devices = driver.devices.unwrap_or_default().into_iter();
            devices.map(Device::into_prepared).collect()
        };
        let drivers = self.drivers.unwrap_or_default().into_iter();
        PreparedClaim {
            uid: self.uid,
            name: self.name,
            namespace: self.namespace,
            pods: self.pods.unwrap_or_default().into_keys().collect(),
            drivers: drivers.map(|(name, driver)| (name, devices(driver))).collect(),
            prepared: false,
        }
    }
}

impl Device {
    fn of(device: &PreparedDevice) -> Self {
        Self {
            pool: device.pool.clone(),
            name: device.name.clone(),
            share: device.share.clone(),
            requests: some(device.requests.clone()),
            cdi: some(device.cdi.clone()),
        }
    }

    fn into_prepared(self) -> PreparedDevice {
        PreparedDevice {
            pool: self.pool,
            name: self.name,
            share: self.share,
            requests: self.requests.unwrap_or_default(),
            cdi: self.cdi.unwrap_or_default(),
        }
    }
}

/// Go's nil list for an empty one.
fn some<T>(list: Vec<T>) -> Option<Vec<T>> {
    Some(list).filter(|list| !list.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_file_has_upstreams_checksum() {
        assert!(first().unwrap().ends_with(r#""Checksum":4010664294}"#));
    }

    #[test]
    fn a_changed_file_is_refused() {
        let changed = first().unwrap().replace("4010664294", "1");
        assert!(matches!(ClaimState::restore(&changed), Err(CheckpointError::Corrupt)));
    }

    #[test]
    fn an_empty_object_is_the_first_file_and_other_text_is_refused_in_gos_words() {
        assert!(ClaimState::restore("{}").unwrap().claims.is_empty());
        let fault = |text: &str| ClaimState::restore(text).unwrap_err().to_string();
        let get = "GetOrCreate() on checkpoint state: failed to get checkpoint dra_manager_state: ";
        assert_eq!(fault(""), format!("{get}unexpected end of JSON input"));
        assert_eq!(
            fault("x"),
            format!("{get}invalid character 'x' looking for beginning of value")
        );
        assert_eq!(
            fault(r#"{"Data":"","Checksum":0}"#),
            "GetEntries() on checkpoint: unexpected end of JSON input"
        );
    }
}
