//! Health of devices that drivers of dynamic resources report, and its file `dra_health_state`.

use super::rules::{ClaimRules, container_requests};
use super::state::{ClaimState, PreparedDevice};
use api::core::v1::{Container, Pod, ResourceHealth, ResourceStatus};
use api::pod::PodExt;
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Name of the file.
pub const FILE: &str = "dra_health_state";
/// How long a report is valid unless it says otherwise.
const DEFAULT_SECONDS: i64 = 30;
const MAX_MESSAGE: usize = 1024;
const NANOS: i64 = 1_000_000_000;
/// Limit of devices of one driver. A driver can report any names, and they are dropped only when it stops reporting.
const MOST_DEVICES: usize = 65_536;

/// One device's health as last reported.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceHealth {
    /// Its pool.
    #[serde(rename = "PoolName", default)]
    pub pool: String,
    /// Its name in the pool.
    #[serde(rename = "DeviceName", default)]
    pub device: String,
    /// `Healthy`, `Unhealthy` or `Unknown`.
    #[serde(rename = "Health", default)]
    pub health: String,
    /// When it was reported.
    #[serde(rename = "LastUpdated")]
    pub updated: Timestamp,
    /// How long the report is valid, in nanoseconds.
    #[serde(rename = "HealthCheckTimeout", default)]
    pub holds: i64,
    /// Details.
    #[serde(rename = "Message", default)]
    pub message: String,
}

impl DeviceHealth {
    /// A report; a timeout of zero or less means the default, a long message is truncated.
    pub fn reported(
        (pool, device): (&str, &str),
        health: &str,
        holds_seconds: i64,
        message: &str,
        now: Timestamp,
    ) -> Self {
        let seconds = if holds_seconds > 0 { holds_seconds } else { DEFAULT_SECONDS };
        Self {
            pool: pool.to_owned(),
            device: device.to_owned(),
            health: health.to_owned(),
            updated: now,
            holds: seconds.saturating_mul(NANOS),
            message: cut(message),
        }
    }

    fn is_old(&self, now: Timestamp) -> bool {
        let holds = if self.holds == 0 { DEFAULT_SECONDS * NANOS } else { self.holds };
        now.duration_since(self.updated) > SignedDuration::from_nanos(holds)
    }
}

fn cut(message: &str) -> String {
    if message.len() <= MAX_MESSAGE {
        return message.to_owned();
    }
    let end = (0..=MAX_MESSAGE - 3).rev().find(|end| message.is_char_boundary(*end));
    format!("{}...", message.get(..end.unwrap_or_default()).unwrap_or_default())
}

/// Health by driver and `pool/device`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct HealthState {
    drivers: BTreeMap<String, DriverHealth>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct DriverHealth {
    #[serde(rename = "Devices", default)]
    devices: BTreeMap<String, DeviceHealth>,
}

impl HealthState {
    /// Records a driver's report; returns the devices (pool, name) whose health changed.
    pub fn report(
        &mut self,
        driver: &str,
        devices: Vec<DeviceHealth>,
        now: Timestamp,
    ) -> Vec<(String, String)> {
        let known = &mut self.drivers.entry(driver.to_owned()).or_default().devices;
        let mut changed = Vec::new();
        let mut reported = BTreeSet::new();
        for device in devices {
            let key = format!("{}/{}", device.pool, device.device);
            let same = known.get(&key).is_some_and(|old| {
                (&old.health, &old.message, old.holds)
                    == (&device.health, &device.message, device.holds)
            });
            if !same {
                changed.push((device.pool.clone(), device.device.clone()));
            }
            reported.insert(key.clone());
            known.insert(key, device);
        }
        let excess = known.len().saturating_sub(MOST_DEVICES);
        if excess > 0 {
            // Devices that are not in this report are dropped first.
            let old = known.keys().filter(|key| !reported.contains(*key)).chain(&reported);
            let old: Vec<String> = old.take(excess).cloned().collect();
            old.iter().for_each(|key| drop(known.remove(key)));
        }
        for (key, device) in known {
            if !reported.contains(key) && device.health != "Unknown" && device.is_old(now) {
                device.health = "Unknown".to_owned();
                device.message.clear();
                device.updated = now;
                changed.push((device.pool.clone(), device.device.clone()));
            }
        }
        changed
    }

    /// Drops the health of a driver's devices, when it no longer reports.
    pub fn forget(&mut self, driver: &str) {
        self.drivers.remove(driver);
    }

    fn of(&self, driver: &str, device: &PreparedDevice, now: Timestamp) -> (&str, &str) {
        let key = format!("{}/{}", device.pool, device.name);
        let known = self.drivers.get(driver).and_then(|driver| driver.devices.get(&key));
        match known.filter(|known| !known.is_old(now)) {
            Some(known) => (&known.health, &known.message),
            None => ("Unknown", ""),
        }
    }

    /// The device health in a container's status (upstream: `UpdateAllocatedResourcesStatus`).
    pub fn status(
        &self,
        state: &ClaimState,
        pod: &Pod,
        container: &Container,
        with_message: bool,
        now: Timestamp,
    ) -> Vec<ResourceStatus> {
        let namespace = pod.namespace_str();
        let claims = container.resources.as_ref().and_then(|r| r.claims.as_ref());
        let mut shown: BTreeMap<String, Vec<ResourceHealth>> = BTreeMap::new();
        for claim in claims.into_iter().flatten() {
            let one = Container {
                name: container.name.clone(),
                resources: Some(api::core::v1::ResourceRequirements {
                    claims: Some(vec![claim.clone()]),
                    ..Default::default()
                }),
                ..Container::default()
            };
            let used = container_requests(pod, &one, ClaimRules::default()).unwrap_or_default();
            let Some(prepared) = used.first().and_then(|(name, _)| state.get(namespace, name))
            else {
                continue;
            };
            let request = claim.request.as_deref().unwrap_or_default();
            let name = match request {
                "" => format!("claim:{}", claim.name),
                request => format!("claim:{}/{request}", claim.name),
            };
            let base = request.split('/').next().unwrap_or_default();
            let list = shown.entry(name).or_default();
            list.clear();
            for (driver, device) in prepared
                .drivers
                .iter()
                .flat_map(|(driver, devices)| devices.iter().map(move |d| (driver, d)))
            {
                let is_for = base.is_empty()
                    || device.requests.is_empty()
                    || device.requests.iter().any(|name| name == base);
                if !is_for {
                    continue;
                }
                let (health, message) = self.of(driver, device, now);
                let id = match device.cdi.first() {
                    Some(cdi) => cdi.clone(),
                    None => format!("{driver}/{}/{}", device.pool, device.name),
                };
                if list.iter().any(|known| known.resource_id == id) {
                    continue;
                }
                list.push(ResourceHealth {
                    resource_id: id,
                    health: Some(health.to_owned()),
                    message: Some(message.to_owned())
                        .filter(|text| with_message && !text.is_empty()),
                });
            }
        }
        shown
            .into_iter()
            .filter(|(_, list)| !list.is_empty())
            .map(|(name, list)| ResourceStatus { name, resources: Some(list) })
            .collect()
    }
}
