//! The node's story, put together from those who know a part of it.

use api::core::v1::ContainerStatus;
use api::ids::PodUid;
use async_trait::async_trait;
use cri::{RuntimeClient, SlowCall};
use images::{Images, PullProgress};
use pods::PodsHandle;
use ports::{Clock, Explained, Explains, PodCgroups, PodEntry, Pods, Wait};
use resources::devices::Devices;
use std::collections::BTreeMap;
use std::sync::Arc;
use volumes::VolumesHandle;

/// Everybody who knows a part.
#[derive(Debug)]
pub(crate) struct Story {
    pub(crate) pods: PodsHandle,
    pub(crate) volumes: VolumesHandle,
    pub(crate) devices: Devices,
    pub(crate) cgroups: Arc<dyn PodCgroups>,
    pub(crate) images: Images,
    pub(crate) runtime: RuntimeClient,
    pub(crate) clock: Arc<dyn Clock>,
}

#[async_trait]
impl Explains for Story {
    async fn explain(&self) -> Explained {
        let mut volumes = self.volumes.explain().await;
        let pulls = self.images.pulls().await;
        let mut pods = self.pods.explain();
        let entries = self.pods.watch().borrow().clone().pods;
        for pod in &mut pods {
            if let Some(entry) = entries.get(&PodUid::from(pod.uid.as_str())) {
                pod.single_process_oom_kill = self.single_process(entry).await;
            }
            // Volumes come before containers, in the story as in the pod.
            let mut waits = volumes.waits.remove(pod.uid.as_str()).unwrap_or_default();
            waits.extend(pulls.iter().filter(|pull| pull.pod_uid == pod.uid).map(pull_wait));
            waits.append(&mut pod.waits);
            pod.waits = waits;
        }
        let slow_calls = self.runtime.slow_calls().iter().map(slow_call).collect();
        let hung = volumes.hung.into_iter().chain(self.devices.hung()).collect();
        Explained { at: self.clock.now(), pods, hung, slow_calls }
    }
}

impl Story {
    /// What dies of each running container when its memory runs out. A container keeps what was set when it was made,
    /// so the kernel is asked and not the configuration.
    async fn single_process(&self, entry: &PodEntry) -> BTreeMap<String, bool> {
        let mut found = BTreeMap::new();
        let Some(status) = &entry.status else { return found };
        let init = status.init_container_statuses.iter().flatten();
        let others = status.ephemeral_container_statuses.iter().flatten();
        let all = init.chain(status.container_statuses.iter().flatten()).chain(others);
        for container in all.filter(|container| runs(container)) {
            let id = container.container_id.as_deref().and_then(|id| id.split_once("://"));
            let Some((_, id)) = id else { continue };
            if let Some(group) = self.cgroups.oom_group(&entry.pod, id).await {
                found.insert(container.name.clone(), !group);
            }
        }
        found
    }
}

/// What a pull waits for, or how far it is.
fn pull_wait(pull: &PullProgress) -> Wait {
    let what = match (pull.started, &pull.bytes) {
        (None, _) => "its turn among the pulls".to_owned(),
        (Some(_), None) => "the pull".to_owned(),
        (Some(_), Some(bytes)) => format!("the pull ({bytes})"),
    };
    Wait {
        who: format!("image {:?}", pull.image),
        what,
        since: pull.started.or(Some(pull.since)),
        ..Wait::default()
    }
}

/// A call to the runtime that does not come back, or is in no hurry to.
fn slow_call(slow: &SlowCall) -> String {
    let (running, deadline) = (slow.running.as_secs(), slow.deadline.as_secs());
    format!("{} for {running}s (given up after {deadline}s)", slow.call.name())
}

fn runs(container: &ContainerStatus) -> bool {
    container.state.as_ref().is_some_and(|state| state.running.is_some())
}

#[cfg(test)]
mod tests {
    use super::*;
    use jiff::Timestamp;
    use std::time::Duration;

    #[test]
    fn a_pull_tells_whether_it_waits_or_how_far_it_is() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let mut pull = PullProgress {
            pod_uid: "u".into(),
            priority: 0,
            image: "r.io/app:1".into(),
            since: at(10),
            started: None,
            bytes: None,
        };
        let told = |pull: &PullProgress| {
            let wait = pull_wait(pull);
            (format!("{}: {}", wait.who, wait.what), wait.since.unwrap().as_second())
        };
        assert_eq!(told(&pull), ("image \"r.io/app:1\": its turn among the pulls".to_owned(), 10));
        pull.started = Some(at(20));
        assert_eq!(told(&pull), ("image \"r.io/app:1\": the pull".to_owned(), 20));
        let bytes = engine::image::progress::PullBytes { done: 512, total: 1024, rate: Some(256) };
        pull.bytes = Some(bytes);
        let text = "image \"r.io/app:1\": the pull (512 B of 1.0 KiB, 256 B/s, 2s left)";
        assert_eq!(told(&pull).0, text);
    }

    #[test]
    fn a_slow_call_is_named_with_its_age_and_its_end() {
        let slow = SlowCall {
            call: cri::Call::StopPodSandbox,
            running: Duration::from_secs(45),
            deadline: Duration::from_secs(120),
        };
        assert_eq!(slow_call(&slow), "StopPodSandbox for 45s (given up after 120s)");
    }
}
