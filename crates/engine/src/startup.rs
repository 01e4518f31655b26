//! How long pods of the API server take to start (upstream: `PodStartupLatencyTracker`).
//!
//! Owns: per pod the times to deduct (image pulls and its init containers' runs), and whether its start was observed
//! already: in the status that was sent, and then in the pod that the API server sends back.
//!
//! Promises: a pod is reported once, when all its containers run at the same time; one that is older than the agent,
//! or that the scheduler could not place at once, is never reported. The odd arithmetic of several init containers is
//! upstream's.
use api::core::v1::{Pod, PodStatus};
use api::ids::PodUid;
use api::pod::{PodExt, PodStatusExt};
use jiff::{SignedDuration, Timestamp};
use std::collections::{BTreeMap, BTreeSet};

/// The measured start of a pod.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Started {
    /// Seconds since the pod was created.
    pub total: f64,
    /// The same without pulls and init containers; absent for stateful pods.
    pub own: Option<f64>,
    /// It has a network of its own.
    pub own_network: bool,
}

/// All pods whose start is tracked.
#[derive(Debug, Default)]
pub struct Startups {
    pods: BTreeMap<PodUid, Startup>,
    excluded: BTreeSet<PodUid>,
}

#[derive(Debug, Default)]
struct Startup {
    pulling: Vec<Timestamp>,
    pulls: Vec<(Timestamp, Timestamp)>,
    init_since: Option<Timestamp>,
    init_total: SignedDuration,
    running_was_sent: bool,
    told: bool,
}

impl Startups {
    /// The API server sent a pod (not a static one); returns its start, if it is to be reported now.
    pub fn observed(&mut self, pod: &Pod, now: Timestamp) -> Option<Started> {
        let uid = pod.uid();
        let none = PodStatus::default();
        let status = pod.status.as_ref().unwrap_or(&none);
        if status.is_terminal() {
            self.pods.remove(&uid);
            return None;
        }
        let unplaced = status
            .conditions
            .iter()
            .flatten()
            .any(|c| c.type_ == "PodScheduled" && c.status == "False");
        let Some(startup) = self.pods.get_mut(&uid) else {
            if status.start_time.is_none() && !self.excluded.contains(&uid) {
                if unplaced {
                    self.excluded.insert(uid);
                } else {
                    self.pods.insert(uid, Startup::default());
                }
            }
            return None;
        };
        if unplaced {
            self.pods.remove(&uid);
            self.excluded.insert(uid);
            return None;
        }
        if !startup.running_was_sent || startup.told || !all_run(status) {
            return None;
        }
        startup.told = true;
        let created = pod.metadata.creation_timestamp.as_ref()?.0;
        let total = now.duration_since(created);
        let own = total - pulling_time(&startup.pulls) - startup.init_total;
        let spec = pod.spec.as_ref();
        Some(Started {
            total: total.as_secs_f64(),
            own: (!is_stateful(pod)).then(|| own.as_secs_f64()),
            own_network: !spec.and_then(|s| s.host_network).unwrap_or_default(),
        })
    }

    /// A pull for the pod began.
    pub fn pull_began(&mut self, uid: &PodUid, at: Timestamp) {
        if let Some(startup) = self.pods.get_mut(uid) {
            startup.pulling.push(at);
        }
    }

    /// An image of the pod was pulled: ends the pull that began first. A failed one counts until then.
    pub fn pull_ended(&mut self, uid: &PodUid, at: Timestamp) {
        if let Some(startup) = self.pods.get_mut(uid)
            && !startup.pulling.is_empty()
        {
            let began = startup.pulling.remove(0);
            startup.pulls.push((began, at));
        }
    }

    /// An init container (no sidecar) was started.
    pub fn init_began(&mut self, uid: &PodUid, at: Timestamp) {
        if let Some(startup) = self.pods.get_mut(uid) {
            startup.init_since = Some(at);
        }
    }

    /// The runtime reports an init container that ended at `at`; called at every sync.
    pub fn init_ended(&mut self, uid: &PodUid, at: Timestamp) {
        let Some(startup) = self.pods.get_mut(uid) else { return };
        if let Some(since) = startup.init_since.take() {
            startup.init_total += at.duration_since(since).max(SignedDuration::ZERO);
        }
    }

    /// A status was sent.
    pub fn status_sent(&mut self, uid: &PodUid, status: &PodStatus) {
        if let Some(startup) = self.pods.get_mut(uid) {
            startup.running_was_sent |= all_run(status);
        }
    }

    /// The pod is gone.
    pub fn forget(&mut self, uid: &PodUid) {
        self.pods.remove(uid);
        self.excluded.remove(uid);
    }
}

/// Whether every container runs; true for a status without containers.
fn all_run(status: &PodStatus) -> bool {
    status.container_statuses.iter().flatten().all(|entry| {
        let running = entry.state.as_ref().and_then(|state| state.running.as_ref());
        running.is_some_and(|running| running.started_at.is_some())
    })
}

/// Total time in which at least one pull ran; `pulls` are in the order of their ends.
fn pulling_time(pulls: &[(Timestamp, Timestamp)]) -> SignedDuration {
    let mut total = SignedDuration::ZERO;
    let mut until: Option<Timestamp> = None;
    for (began, ended) in pulls {
        let from = until.map_or(*began, |until| until.max(*began));
        total += ended.duration_since(from).max(SignedDuration::ZERO);
        until = Some(until.map_or(*ended, |until| until.max(*ended)));
    }
    total
}

/// Whether a volume of the pod is more than configuration and scratch space.
fn is_stateful(pod: &Pod) -> bool {
    let volumes = pod.spec.as_ref().and_then(|spec| spec.volumes.as_ref());
    volumes.into_iter().flatten().any(|volume| {
        volume.secret.is_none()
            && volume.config_map.is_none()
            && volume.downward_api.is_none()
            && volume.empty_dir.is_none()
            && volume.projected.is_none()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).unwrap()
    }

    /// A pod created at 0, whose one container runs if `running`.
    fn pod(volumes: serde_json::Value, running: bool) -> Pod {
        let state = if running {
            json!({"running": {"startedAt": "1970-01-01T00:00:09Z"}})
        } else {
            json!({})
        };
        let entry = json!({"name": "c", "image": "", "imageID": "", "ready": running,
                           "restartCount": 0, "state": state});
        serde_json::from_value(json!({
            "metadata": {"uid": "u", "creationTimestamp": "1970-01-01T00:00:00Z"},
            "spec": {"containers": [{"name": "c"}], "volumes": volumes},
            "status": {"containerStatuses": [entry]},
        }))
        .unwrap()
    }

    /// Tracks a pod from its creation until it runs; returns what is reported at second 30.
    fn follow(
        pod_of: impl Fn(bool) -> Pod,
        meanwhile: impl FnOnce(&mut Startups),
    ) -> Option<Started> {
        let mut startups = Startups::default();
        let uid = PodUid::from("u");
        assert_eq!(startups.observed(&pod_of(false), at(1)), None);
        meanwhile(&mut startups);
        let running = pod_of(true);
        assert_eq!(startups.observed(&running, at(20)), None, "nobody has sent it yet");
        startups.status_sent(&uid, running.status.as_ref().unwrap());
        let told = startups.observed(&running, at(30));
        assert_eq!(startups.observed(&running, at(31)), None, "told once");
        told
    }

    #[test]
    fn a_pod_is_told_when_what_was_sent_is_seen() {
        let told = follow(|running| pod(json!([]), running), |_| {});
        assert_eq!(told, Some(Started { total: 30.0, own: Some(30.0), own_network: true }));
    }

    #[test]
    fn pulls_and_the_one_init_container_are_taken_off() {
        let uid = PodUid::from("u");
        let told = follow(
            |running| pod(json!([{"name": "v", "emptyDir": {}}]), running),
            |startups| {
                startups.pull_began(&uid, at(2));
                startups.pull_began(&uid, at(4));
                startups.pull_ended(&uid, at(6));
                startups.pull_ended(&uid, at(7));
                startups.pull_ended(&uid, at(8));
                startups.init_began(&uid, at(10));
                startups.init_ended(&uid, at(13));
                startups.init_ended(&uid, at(13));
            },
        );
        assert_eq!(told.and_then(|told| told.own), Some(30.0 - 5.0 - 3.0));
    }

    #[test]
    fn of_several_init_containers_none_is_taken_off() {
        let uid = PodUid::from("u");
        let told = follow(
            |running| pod(json!([]), running),
            |startups| {
                startups.init_began(&uid, at(2));
                // The second one is started before the end of the first is observed.
                startups.init_began(&uid, at(6));
                startups.init_ended(&uid, at(5));
                startups.init_ended(&uid, at(9));
            },
        );
        assert_eq!(told.and_then(|told| told.own), Some(30.0));
    }

    #[test]
    fn a_pod_with_a_volume_that_outlives_it_has_no_time_of_its_own() {
        let volumes = json!([{"name": "v", "hostPath": {"path": "/x"}}]);
        let told = follow(|running| pod(volumes.clone(), running), |_| {}).unwrap();
        assert_eq!((told.total, told.own), (30.0, None));
    }

    #[test]
    fn pods_from_before_us_and_pods_that_had_to_wait_for_a_node_are_not_followed() {
        let old = |running| {
            let mut pod = pod(json!([]), running);
            pod.status.as_mut().unwrap().start_time =
                Some(api::machinery::apis::meta::v1::Time(at(0)));
            pod
        };
        assert_eq!(follow(old, |_| {}), None);
        let waited = |running: bool| {
            let mut pod = pod(json!([]), running);
            let no =
                json!([{"type": "PodScheduled", "status": if running { "True" } else { "False" }}]);
            pod.status.as_mut().unwrap().conditions = serde_json::from_value(no).unwrap();
            pod
        };
        assert_eq!(follow(waited, |_| {}), None);
    }
}
