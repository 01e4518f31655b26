//! The claims that are or may be prepared on this node.

use super::ClaimError;
use std::collections::{BTreeMap, BTreeSet};

/// A device that a driver prepared.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PreparedDevice {
    /// Its pool.
    pub pool: String,
    /// Its name in the pool.
    pub name: String,
    /// Which share of it, if it is shared.
    pub share: Option<String>,
    /// The requests it is for; none means all.
    pub requests: Vec<String>,
    /// Its CDI names.
    pub cdi: Vec<String>,
}

/// Namespace and name of a claim.
pub type ClaimKey = (String, String);

/// One claim on this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PreparedClaim {
    /// Of the claim.
    pub uid: String,
    /// Of the claim.
    pub name: String,
    /// Of the claim.
    pub namespace: String,
    /// UIDs of the pods that use it.
    pub pods: BTreeSet<String>,
    /// Devices by driver.
    pub drivers: BTreeMap<String, Vec<PreparedDevice>>,
    /// All drivers have prepared it since the agent began.
    pub prepared: bool,
}

impl PreparedClaim {
    /// Its key in [`ClaimState`].
    pub fn key(&self) -> ClaimKey {
        (self.namespace.clone(), self.name.clone())
    }
}

/// Claims of one pod that no other pod uses.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Unprepare {
    /// The claims (uid, name) to unprepare, by driver.
    pub by_driver: BTreeMap<String, Vec<(String, String)>>,
    /// The claims to remove afterwards.
    pub claims: Vec<ClaimKey>,
}

/// All claims that this node may have to unprepare.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClaimState {
    pub(super) claims: BTreeMap<ClaimKey, PreparedClaim>,
}

impl ClaimState {
    /// Records that a pod uses these claims; returns those that are not prepared yet. After an error the claims before
    /// the faulty one stay recorded.
    pub fn reserve(
        &mut self,
        pod: &str,
        claims: Vec<PreparedClaim>,
    ) -> Result<Vec<PreparedClaim>, ClaimError> {
        let mut missing = Vec::new();
        for claim in claims {
            let known = self.claims.entry(claim.key()).or_insert_with(|| claim.clone());
            if known.uid != claim.uid {
                return Err(ClaimError::OldClaim { claim: claim.name, uid: known.uid.clone() });
            }
            known.pods.insert(pod.to_owned());
            if !known.prepared {
                missing.push(known.clone());
            }
        }
        Ok(missing)
    }

    /// Records the devices that a driver prepared for a claim, replacing earlier ones.
    pub fn given(
        &mut self,
        key: &ClaimKey,
        driver: &str,
        devices: Vec<PreparedDevice>,
    ) -> Result<(), ClaimError> {
        let claim = self.get_mut(key)?;
        claim.drivers.insert(driver.to_owned(), devices);
        Ok(())
    }

    /// Marks claims as prepared by all their drivers.
    pub fn prepared(&mut self, keys: &[ClaimKey]) -> Result<(), ClaimError> {
        for key in keys {
            self.get_mut(key)?.prepared = true;
        }
        Ok(())
    }

    fn get_mut(&mut self, key: &ClaimKey) -> Result<&mut PreparedClaim, ClaimError> {
        let (namespace, claim) = key.clone();
        self.claims.get_mut(key).ok_or(ClaimError::Missing { claim, namespace })
    }

    /// The claims to unprepare when a pod no longer uses these. From one that others use as well, the pod is removed at
    /// once.
    pub fn leave(&mut self, pod: &str, namespace: &str, names: &[String]) -> Unprepare {
        let mut todo = Unprepare::default();
        for name in names {
            let key = (namespace.to_owned(), name.clone());
            let Some(claim) = self.claims.get_mut(&key) else { continue };
            if claim.pods.len() > 1 {
                claim.pods.remove(pod);
                continue;
            }
            for driver in claim.drivers.keys() {
                let batch = todo.by_driver.entry(driver.clone()).or_default();
                batch.push((claim.uid.clone(), claim.name.clone()));
            }
            todo.claims.push(key);
        }
        todo
    }

    /// Removes claims that were unprepared.
    pub fn forget(&mut self, keys: &[ClaimKey]) {
        for key in keys {
            self.claims.remove(key);
        }
    }

    /// Whether any claim is recorded for this pod.
    pub fn has_pod(&self, uid: &str) -> bool {
        self.claims.values().any(|claim| claim.pods.contains(uid))
    }

    /// Pods that are gone but still recorded: UID, namespace, names of claims.
    pub fn left_behind(
        &self,
        active: impl Fn(&str) -> bool,
    ) -> BTreeMap<String, (String, Vec<String>)> {
        let mut gone: BTreeMap<String, (String, Vec<String>)> = BTreeMap::new();
        for claim in self.claims.values() {
            for uid in claim.pods.iter().filter(|uid| !active(uid)) {
                let entry = gone.entry(uid.clone());
                let (_, names) = entry.or_insert_with(|| (claim.namespace.clone(), Vec::new()));
                names.push(claim.name.clone());
            }
        }
        gone
    }

    /// A claim.
    pub fn get(&self, namespace: &str, name: &str) -> Option<&PreparedClaim> {
        self.claims.get(&(namespace.to_owned(), name.to_owned()))
    }

    /// CDI names for these requests of a claim, an empty one meaning all.
    pub fn cdi(
        &self,
        namespace: &str,
        name: &str,
        requests: &[String],
    ) -> Result<Vec<String>, ClaimError> {
        let Some(claim) = self.get(namespace, name) else {
            let (claim, namespace) = (name.to_owned(), namespace.to_owned());
            return Err(ClaimError::Missing { claim, namespace });
        };
        let mut names = Vec::new();
        for request in requests {
            let matches = |device: &&PreparedDevice| {
                request.is_empty()
                    || device.requests.is_empty()
                    || device.requests.contains(request)
            };
            for device in claim.drivers.values().flatten().filter(matches) {
                names.extend(device.cdi.iter().cloned());
            }
        }
        Ok(names)
    }

    /// Numbers of prepared claims by driver, and of all under `<any>`.
    pub fn in_use(&self) -> BTreeMap<String, usize> {
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        for claim in self.claims.values().filter(|claim| claim.prepared) {
            for driver in claim.drivers.keys() {
                *counts.entry(driver.clone()).or_default() += 1;
            }
        }
        let all = self.claims.values().filter(|claim| claim.prepared).count();
        counts.insert("<any>".to_owned(), all);
        counts
    }

    /// Pods that use this device of a driver.
    pub fn users_of(&self, driver: &str, pool: &str, device: &str) -> BTreeSet<String> {
        let uses = |claim: &&PreparedClaim| {
            let devices = claim.drivers.get(driver).into_iter().flatten();
            devices.into_iter().any(|d| d.pool == pool && d.name == device)
        };
        self.claims.values().filter(uses).flat_map(|claim| claim.pods.iter().cloned()).collect()
    }
}
