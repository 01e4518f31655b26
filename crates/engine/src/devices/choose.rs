//! Which devices a container gets (upstream: `devicesToAllocate`).

use super::state::DeviceState;
use super::{Device, DeviceError, DeviceIds};
use crate::topology::NumaMask;
use std::collections::BTreeMap;

/// One container's request for one resource.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// Of the pod.
    pub uid: &'a str,
    /// Its name.
    pub container: &'a str,
    /// The resource's name.
    pub resource: &'a str,
    /// How many.
    pub count: usize,
    /// From which NUMA nodes, if that was decided.
    pub affinity: Option<NumaMask>,
    /// The container was running when the agent started, so it has its devices.
    pub running: bool,
}

/// What to do about a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Choice {
    /// Nothing: the container has its devices.
    Nothing,
    /// Allocate these.
    Take(DeviceIds),
    /// Ask the plugin which it prefers, then [`DeviceState::preferred`].
    Ask(Question),
}

/// A GetPreferredAllocation request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    /// Devices to choose from.
    pub available: DeviceIds,
    /// Devices that are chosen already.
    pub must_include: DeviceIds,
    /// How many in all.
    pub size: usize,
    resource: String,
    /// The devices that the response may name.
    within: DeviceIds,
    /// Sets that the rest is taken from, in order.
    fallbacks: Vec<DeviceIds>,
}

impl DeviceState {
    /// Chooses devices; the chosen ones count as allocated from now on.
    pub fn choose(&mut self, request: Request<'_>) -> Result<Choice, DeviceError> {
        let Request { uid, container, resource, count, .. } = request;
        let held = self.held(uid, container, resource).map(super::Held::ids);
        if let Some(held) = held.as_ref().filter(|held| held.len() != count) {
            return Err(DeviceError::Changed {
                uid: uid.to_owned(),
                container: container.to_owned(),
                resource: resource.to_owned(),
                from: held.len(),
                to: count,
            });
        }
        if request.running {
            return Ok(Choice::Nothing);
        }
        let Some(healthy) = self.healthy.get(resource).cloned() else {
            return Err(DeviceError::Unregistered(resource.to_owned()));
        };
        if healthy.is_empty() {
            return Err(DeviceError::NoneHealthy(resource.to_owned()));
        }
        if held.as_ref().is_some_and(|held| !healthy.is_superset(held)) {
            return Err(DeviceError::NoLongerHealthy(resource.to_owned()));
        }
        if held.is_some() || count == 0 {
            return Ok(Choice::Nothing);
        }
        let reusable = match &self.reuse {
            (pod, devices) if pod == uid => devices.get(resource).cloned().unwrap_or_default(),
            _ => DeviceIds::new(),
        };
        let mut taken = DeviceIds::new();
        if self.take(resource, &reusable, count, &mut taken) {
            return Ok(Choice::Take(taken));
        }
        let in_use = self.allocated.get(resource).cloned().unwrap_or_default();
        let available: DeviceIds = healthy.difference(&in_use).cloned().collect();
        let missing = count - taken.len();
        if available.len() < missing {
            return Err(DeviceError::Unavailable {
                resource: resource.to_owned(),
                requested: missing,
                available: available.len(),
            });
        }
        let [aligned, unaligned, without] =
            self.by_affinity(resource, &available, request.affinity);
        let all_aligned = missing < aligned.len();
        if !all_aligned && self.take(resource, &aligned, count, &mut taken) {
            return Ok(Choice::Take(taken));
        }
        let (within, fallbacks) = if all_aligned {
            (aligned.clone(), vec![aligned])
        } else {
            (available, vec![unaligned, without])
        };
        let question = Question {
            available: within.union(&taken).cloned().collect(),
            must_include: taken,
            size: count,
            resource: resource.to_owned(),
            within,
            fallbacks,
        };
        if self.options(resource).is_some_and(|options| options.preferred) {
            return Ok(Choice::Ask(question));
        }
        self.preferred(question, &DeviceIds::new()).map(Choice::Take)
    }

    /// Chooses after the plugin's GetPreferredAllocation response.
    pub fn preferred(
        &mut self,
        question: Question,
        preferred: &DeviceIds,
    ) -> Result<DeviceIds, DeviceError> {
        let Question { resource, within, fallbacks, size, must_include: mut taken, .. } = question;
        let first: DeviceIds = preferred.intersection(&within).cloned().collect();
        for set in std::iter::once(&first).chain(&fallbacks) {
            if self.take(&resource, set, size, &mut taken) {
                return Ok(taken);
            }
        }
        Err(DeviceError::TooFew { requested: size, got: taken.len() })
    }

    /// Takes devices from a set until there are enough; returns whether there are.
    fn take(
        &mut self,
        resource: &str,
        from: &DeviceIds,
        count: usize,
        taken: &mut DeviceIds,
    ) -> bool {
        let allocated = self.allocated.entry(resource.to_owned()).or_default();
        for id in from {
            if taken.len() >= count {
                break;
            }
            allocated.insert(id.clone());
            taken.insert(id.clone());
        }
        taken.len() >= count
    }

    /// Devices on the wanted nodes, on other nodes, and without any (upstream: `filterByAffinity`).
    fn by_affinity(
        &self,
        resource: &str,
        available: &DeviceIds,
        affinity: Option<NumaMask>,
    ) -> [DeviceIds; 3] {
        let devices = self.all.get(resource);
        let topology = devices.is_some_and(|all| all.values().any(Device::has_topology));
        let Some(mask) = affinity.filter(|_| topology) else {
            return [DeviceIds::new(), DeviceIds::new(), available.clone()];
        };
        let on = |node: i64| u32::try_from(node).is_ok_and(|node| mask.contains(node));
        let [mut inside, mut outside, mut nowhere] = [(); 3].map(|()| DeviceIds::new());
        for id in available {
            let nodes = devices.and_then(|all| all.get(id)).map(Device::nodes).unwrap_or_default();
            let set = if nodes.is_empty() {
                &mut nowhere
            } else if nodes.iter().any(|node| on(*node)) {
                &mut inside
            } else {
                &mut outside
            };
            set.insert(id.clone());
        }
        [inside, outside, nowhere]
    }

    /// A pod's admission begins: devices of another pod's init containers are no longer reusable.
    pub fn begin_pod(&mut self, uid: &str) {
        if self.reuse.0 != uid {
            self.reuse = (uid.to_owned(), BTreeMap::new());
        }
    }

    /// An init container has its devices; later containers may reuse them.
    pub fn leave_to_next(&mut self, uid: &str, container: &str) {
        self.change_reuse(uid, container, |set, ids| set.extend(ids));
    }

    /// A container has its devices and keeps them.
    pub fn keep(&mut self, uid: &str, container: &str) {
        self.change_reuse(uid, container, |set, ids| set.retain(|id| !ids.contains(id)));
    }

    fn change_reuse(
        &mut self,
        uid: &str,
        container: &str,
        change: impl Fn(&mut DeviceIds, DeviceIds),
    ) {
        let held = self.pods.get(uid).and_then(|containers| containers.get(container));
        for (resource, held) in held.into_iter().flatten() {
            change(self.reuse.1.entry(resource.clone()).or_default(), held.ids());
        }
    }
}
