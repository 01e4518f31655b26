//! `kubelet_internal_checkpoint`: which devices containers have and which are registered, in the Go kubelet's form.
//!
//! The checksum is over Go's dump of the content in the order in which it is written, so reading keeps that order.

use super::state::{DeviceState, Endpoint, Held};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use prost::Message as _;
use proto::device_plugin_v1beta1::ContainerAllocateResponse;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;
use units::hash::fnv1a_32;
use units::spew::Dump;

/// Name of the file.
pub const FILE: &str = "kubelet_internal_checkpoint";

/// Why a file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// It is not a checkpoint.
    #[error("checkpoint cannot be read")]
    Malformed(#[from] serde_json::Error),
    /// An Allocate response in it is not base64.
    #[error("allocation in checkpoint cannot be read")]
    Encoding(#[from] base64::DecodeError),
    /// Its checksum is wrong.
    #[error("checkpoint is corrupted")]
    Corrupt,
}

#[derive(Debug, Serialize, Deserialize)]
struct Envelope {
    #[serde(rename = "Data")]
    data: Content,
    #[serde(rename = "Checksum")]
    checksum: u64,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Content {
    #[serde(rename = "PodDeviceEntries", default)]
    entries: Option<Vec<Entry>>,
    #[serde(rename = "RegisteredDevices", default)]
    registered: Option<BTreeMap<String, Option<Vec<String>>>>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Entry {
    #[serde(rename = "PodUID", default)]
    uid: String,
    #[serde(rename = "ContainerName", default)]
    container: String,
    #[serde(rename = "ResourceName", default)]
    resource: String,
    /// Keys are numbers; Go writes them in the order of their text, which `BTreeMap<String, _>` keeps.
    #[serde(rename = "DeviceIDs", default)]
    devices: Option<BTreeMap<String, Option<Vec<String>>>>,
    #[serde(rename = "AllocResp", default)]
    answer: Option<String>,
}

impl DeviceState {
    /// The checkpoint of this state.
    pub fn to_checkpoint(&self) -> Result<String, serde_json::Error> {
        let mut entries = Vec::new();
        for (uid, containers) in &self.pods {
            for (container, resources) in containers {
                for (resource, held) in resources {
                    let by_node = held.per_node.iter();
                    let devices = by_node.map(|(node, ids)| (node.to_string(), Some(ids.clone())));
                    entries.push(Entry {
                        uid: uid.clone(),
                        container: container.clone(),
                        resource: resource.clone(),
                        devices: Some(devices.collect()),
                        answer: Some(STANDARD.encode(&held.bytes)),
                    });
                }
            }
        }
        let list = |ids: &super::DeviceIds| Some(ids.iter().cloned().collect());
        let registered = self.healthy.iter().map(|(name, ids)| (name.clone(), list(ids)));
        let data = Content {
            entries: Some(entries).filter(|entries| !entries.is_empty()),
            registered: Some(registered.collect()),
        };
        let checksum = match data.checksum() {
            Ok(checksum) => u64::from(checksum),
            // Cannot fail: the content was encoded just now.
            Err(_) => 0,
        };
        units::gojson::to_string(&Envelope { data, checksum })
    }

    /// Restores a checkpoint; `now` is when the agent started. Returns Allocate responses that could not be decoded.
    pub fn restore(&mut self, text: &str, now: Duration) -> Result<Vec<String>, CheckpointError> {
        let Envelope { data, checksum } = serde_json::from_str(text)?;
        if u64::from(data.checksum()?) != checksum {
            return Err(CheckpointError::Corrupt);
        }
        let mut unreadable = Vec::new();
        for entry in data.entries.unwrap_or_default() {
            let bytes = STANDARD.decode(entry.answer.as_deref().unwrap_or_default())?;
            let decoded = ContainerAllocateResponse::decode(bytes.as_slice());
            let Ok(answer) = decoded else {
                unreadable.push(format!("{}/{}/{}", entry.uid, entry.container, entry.resource));
                continue;
            };
            let by_node = entry.devices.unwrap_or_default().into_iter();
            let per_node = by_node
                .filter_map(|(node, ids)| Some((node.parse().ok()?, ids.unwrap_or_default())))
                .collect();
            let of_pod = self.pods.entry(entry.uid).or_default();
            let of_container = of_pod.entry(entry.container).or_default();
            of_container.insert(entry.resource, Held { per_node, answer, bytes });
        }
        self.recount();
        for resource in data.registered.unwrap_or_default().into_keys() {
            self.healthy.insert(resource.clone(), super::DeviceIds::new());
            self.unhealthy.insert(resource.clone(), super::DeviceIds::new());
            let away = Endpoint { stopped: Some(now), ..Endpoint::default() };
            self.endpoints.insert(resource, away);
        }
        Ok(unreadable)
    }
}

impl Content {
    /// FNV-1a over Go's dump of the value.
    fn checksum(&self) -> Result<u32, base64::DecodeError> {
        let entries = match &self.entries {
            None => Dump::Nil,
            Some(entries) => Dump::List(entries.iter().map(Entry::dump).collect::<Result<_, _>>()?),
        };
        let registered = match &self.registered {
            None => Dump::Nil,
            Some(registered) => {
                let pair =
                    |(name, ids): (&String, &Option<Vec<String>>)| (name.clone(), texts(ids));
                Dump::Map(registered.iter().map(pair).collect())
            }
        };
        let dump = Dump::fields([
            ("PodDeviceEntries", "[]checkpoint.PodDevicesEntry", entries),
            ("RegisteredDevices", "map[string][]string", registered),
        ]);
        Ok(fnv1a_32(dump.typed("checkpoint.checkpointData").as_bytes()))
    }
}

impl Entry {
    fn dump(&self) -> Result<Dump, base64::DecodeError> {
        let devices = match &self.devices {
            None => Dump::Nil,
            Some(devices) => {
                // Go's dump orders the numbers, its JSON their texts.
                let mut pairs: Vec<(i64, Dump)> = devices
                    .iter()
                    .filter_map(|(node, ids)| Some((node.parse().ok()?, texts(ids))))
                    .collect();
                pairs.sort_by_key(|(node, _)| *node);
                Dump::Map(pairs.into_iter().map(|(node, ids)| (node.to_string(), ids)).collect())
            }
        };
        let answer = match &self.answer {
            None => Dump::Nil,
            Some(text) => Dump::List(STANDARD.decode(text)?.into_iter().map(Dump::raw).collect()),
        };
        Ok(Dump::fields([
            ("PodUID", "string", Dump::raw(&self.uid)),
            ("ContainerName", "string", Dump::raw(&self.container)),
            ("ResourceName", "string", Dump::raw(&self.resource)),
            ("DeviceIDs", "checkpoint.DevicesPerNUMA", devices),
            ("AllocResp", "[]uint8", answer),
        ]))
    }
}

fn texts(list: &Option<Vec<String>>) -> Dump {
    match list {
        None => Dump::Nil,
        Some(list) => Dump::List(list.iter().map(Dump::raw).collect()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_checkpoint_has_upstreams_checksum() {
        let text = DeviceState::default().to_checkpoint().unwrap();
        assert_eq!(
            text,
            r#"{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{}},"Checksum":3467439661}"#
        );
    }

    #[test]
    fn a_changed_file_is_refused() {
        let text = DeviceState::default().to_checkpoint().unwrap();
        let changed = text.replace("3467439661", "3467439662");
        let fault = DeviceState::default().restore(&changed, Duration::ZERO).unwrap_err();
        assert_eq!(fault.to_string(), "checkpoint is corrupted");
    }
}
