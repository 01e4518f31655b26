//! An API server in memory: pods, a feed of them, status patches.

use api::core::v1::Pod;
use api::ids::PodUid;
use async_trait::async_trait;
use ports::{PodApi, PodApiError};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use tokio::sync::mpsc;

/// An API server that holds pods and sends the whole set after each change, as the watch does.
#[derive(Debug, Default)]
pub(crate) struct FakeApi {
    state: Mutex<ApiState>,
}

#[derive(Debug, Default)]
struct ApiState {
    pods: BTreeMap<String, Pod>,
    feed: Option<mpsc::Sender<Vec<Arc<Pod>>>>,
    patches: Vec<serde_json::Value>,
    deleted: Vec<String>,
    deleted_uids: BTreeSet<String>,
    version: u64,
    next_uid: u64,
    cut: bool,
    mute: bool,
    /// Where its bad luck is; 0 while there is none.
    unsteady: u64,
}

impl FakeApi {
    /// Answers nobody from now on, or everybody again.
    pub(crate) fn cut(&self, cut: bool) {
        let mut state = self.state.lock().unwrap();
        state.cut = cut;
        if cut {
            state.feed = None;
        }
    }

    /// Answers and tells nobody anything from now on; or again, with what has changed meanwhile.
    pub(crate) fn mute(&self, mute: bool) {
        let mut state = self.state.lock().unwrap();
        let was = std::mem::replace(&mut state.mute, mute);
        if was && !mute {
            state.announce();
        }
    }

    /// From now on about every third write fails, before or after it took effect; or none any more.
    pub(crate) fn unsteady(&self, luck: Option<u64>) {
        self.state.lock().unwrap().unsteady = luck.map_or(0, |luck| luck | 1);
    }

    /// UIDs of the pods that the agent has deleted.
    pub(crate) fn deleted_uids(&self) -> BTreeSet<String> {
        self.state.lock().unwrap().deleted_uids.clone()
    }

    /// All pods by name.
    pub(crate) fn all(&self) -> BTreeMap<String, Pod> {
        self.state.lock().unwrap().pods.clone()
    }

    fn reachable(&self) -> Result<(), PodApiError> {
        let state = self.state.lock().unwrap();
        if state.cut || state.mute {
            Err(PodApiError::Unavailable("connection refused".into()))
        } else {
            Ok(())
        }
    }

    pub(super) fn feed(&self, sets: mpsc::Sender<Vec<Arc<Pod>>>) {
        let mut state = self.state.lock().unwrap();
        state.feed = Some(sets);
        state.announce();
    }

    pub(crate) fn put(&self, pod: Pod) {
        let mut state = self.state.lock().unwrap();
        state.store(pod);
        state.announce();
    }

    pub(crate) fn change(&self, name: &str, change: impl FnOnce(&mut Pod)) {
        let mut state = self.state.lock().unwrap();
        let mut pod = state.pods.get(name).unwrap().clone();
        change(&mut pod);
        state.store(pod);
        state.announce();
    }

    /// Shows a pod exactly as it was at an earlier resource version, as after a restored backup.
    pub(crate) fn restore(&self, pod: Pod) {
        let mut state = self.state.lock().unwrap();
        state.pods.insert(pod.metadata.name.clone().unwrap(), pod);
        state.announce();
    }

    pub(crate) fn remove(&self, name: &str) {
        let mut state = self.state.lock().unwrap();
        state.pods.remove(name);
        state.announce();
    }

    /// Takes a pod out without telling.
    pub(crate) fn forget(&self, name: &str) {
        self.state.lock().unwrap().pods.remove(name);
    }

    /// Asks for a graceful deletion.
    pub(crate) fn delete(&self, name: &str, grace: i64, now: jiff::Timestamp) {
        self.change(name, |pod| {
            let time = api::machinery::apis::meta::v1::Time(now);
            pod.metadata.deletion_timestamp.get_or_insert(time);
            pod.metadata.deletion_grace_period_seconds = Some(grace);
        });
    }

    pub(crate) fn pod(&self, name: &str) -> Option<Pod> {
        self.state.lock().unwrap().pods.get(name).cloned()
    }

    pub(crate) fn phase(&self, name: &str) -> Option<String> {
        self.pod(name)?.status?.phase
    }

    pub(crate) fn deleted(&self) -> Vec<String> {
        self.state.lock().unwrap().deleted.clone()
    }

    pub(crate) fn patches(&self) -> Vec<serde_json::Value> {
        self.state.lock().unwrap().patches.clone()
    }
}

/// How a write goes.
#[derive(PartialEq, Eq)]
enum WriteOutcome {
    Good,
    /// It takes effect, and its answer is lost.
    Lost,
}

impl WriteOutcome {
    /// What a write that took effect answers.
    fn answer<T>(&self, good: T) -> Result<T, PodApiError> {
        if *self == Self::Good { Ok(good) } else { Err(overloaded()) }
    }
}

fn overloaded() -> PodApiError {
    PodApiError::Unavailable("the server is overloaded".into())
}

impl ApiState {
    fn store(&mut self, mut pod: Pod) {
        self.version += 1;
        pod.metadata.resource_version = Some(self.version.to_string());
        self.pods.insert(pod.metadata.name.clone().unwrap(), pod);
    }

    /// How the next write goes, if it is taken at all.
    fn write_outcome(&mut self) -> Result<WriteOutcome, PodApiError> {
        if self.unsteady == 0 {
            return Ok(WriteOutcome::Good);
        }
        self.unsteady = self.unsteady.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(2);
        match (self.unsteady >> 33) % 6 {
            0 => Err(overloaded()),
            1 => Ok(WriteOutcome::Lost),
            _ => Ok(WriteOutcome::Good),
        }
    }

    fn announce(&self) {
        if let Some(feed) = self.feed.as_ref().filter(|_| !self.mute) {
            let all = self.pods.values().cloned().map(Arc::new).collect();
            // A reader that is gone or far behind gets the next set.
            let _ = feed.try_send(all);
        }
    }
}

#[async_trait]
impl PodApi for FakeApi {
    async fn get(&self, _namespace: &str, name: &str) -> Result<Arc<Pod>, PodApiError> {
        self.reachable()?;
        self.pod(name).map(Arc::new).ok_or_else(|| PodApiError::NotFound(name.into()))
    }

    async fn patch_status(
        &self,
        _namespace: &str,
        name: &str,
        uid: &PodUid,
        patch: serde_json::Value,
    ) -> Result<Arc<Pod>, PodApiError> {
        self.reachable()?;
        let mut state = self.state.lock().unwrap();
        let luck = state.write_outcome()?;
        let Some(mut pod) = state.pods.get(name).cloned() else {
            return Err(PodApiError::NotFound(name.into()));
        };
        if pod.metadata.uid.as_deref() != Some(uid.as_str()) {
            return Err(PodApiError::Conflict("uid".into()));
        }
        let mut status = serde_json::to_value(pod.status.clone().unwrap_or_default()).unwrap();
        apply(&mut status, &patch["status"]);
        pod.status = serde_json::from_value(status).unwrap();
        state.patches.push(patch);
        state.store(pod.clone());
        state.announce();
        luck.answer(Arc::new(pod))
    }

    async fn create(&self, pod: &Pod) -> Result<Arc<Pod>, PodApiError> {
        self.reachable()?;
        let mut state = self.state.lock().unwrap();
        let luck = state.write_outcome()?;
        let name = pod.metadata.name.clone().unwrap();
        if state.pods.contains_key(&name) {
            return Err(PodApiError::Conflict("exists".into()));
        }
        state.next_uid += 1;
        let mut pod = pod.clone();
        pod.metadata.uid = Some(format!("api-uid-{}", state.next_uid));
        state.store(pod.clone());
        state.announce();
        luck.answer(Arc::new(pod))
    }

    async fn delete_now(
        &self,
        _namespace: &str,
        name: &str,
        uid: &PodUid,
    ) -> Result<(), PodApiError> {
        self.reachable()?;
        let mut state = self.state.lock().unwrap();
        let luck = state.write_outcome()?;
        match state.pods.get(name) {
            None => Err(PodApiError::NotFound(name.into())),
            Some(pod) if pod.metadata.uid.as_deref() != Some(uid.as_str()) => {
                Err(PodApiError::Conflict("uid".into()))
            }
            Some(_) => {
                state.pods.remove(name);
                state.deleted.push(name.to_owned());
                state.deleted_uids.insert(uid.as_str().to_owned());
                state.announce();
                luck.answer(())
            }
        }
    }
}

/// Just enough of a strategic merge patch.
fn apply(target: &mut serde_json::Value, patch: &serde_json::Value) {
    let keys = [("conditions", "type"), ("podIPs", "ip"), ("hostIPs", "ip")];
    for (key, value) in patch.as_object().unwrap() {
        if key.starts_with('$') {
            continue;
        }
        let merged = keys.iter().find(|(list, _)| list == key).map(|(_, by)| *by);
        match (value, merged) {
            (serde_json::Value::Null, _) => {
                target.as_object_mut().unwrap().remove(key);
            }
            (serde_json::Value::Array(elements), Some(by)) => {
                let list =
                    target.as_object_mut().unwrap().entry(key).or_insert(serde_json::json!([]));
                let list = list.as_array_mut().unwrap();
                for element in elements {
                    let found = list.iter().position(|e| e[by] == element[by]);
                    match (found, element.get("$patch").is_some()) {
                        (Some(at), true) => {
                            list.remove(at);
                        }
                        (Some(at), false) => apply(&mut list[at], element),
                        (None, false) => list.push(element.clone()),
                        (None, true) => {}
                    }
                }
            }
            (serde_json::Value::Object(_), _) if target[key].is_object() => {
                apply(&mut target[key], value);
            }
            _ => target[key] = value.clone(),
        }
    }
}
