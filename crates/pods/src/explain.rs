//! What a pod waits for, from its place in life, its status and its last steps.

use api::core::v1::{ContainerStatus, PodStatus};
use api::ids::PodUid;
use jiff::Timestamp;
use ports::{ExplainedPod, PastStep, PodEntry, PodLife, Wait};

/// One pod's story; `entry` is absent when the pod is gone.
pub(crate) fn pod(
    uid: &PodUid,
    name: String,
    entry: Option<&PodEntry>,
    steps: Vec<PastStep>,
    next_look: Option<Timestamp>,
) -> ExplainedPod {
    let life = match entry.map(|e| e.life) {
        None => "gone",
        Some(PodLife::Pending) => "pending",
        Some(PodLife::Rejected) => "rejected",
        Some(PodLife::Syncing) => "syncing",
        Some(PodLife::Terminating) => "terminating",
        Some(PodLife::Terminated) => "terminated",
        Some(PodLife::Finished) => "finished",
    };
    let waits = entry.map(|e| waits(e, &steps, next_look)).unwrap_or_default();
    let (uid, life) = (uid.to_string(), life.to_owned());
    ExplainedPod { uid, name, life, waits, steps, ..ExplainedPod::default() }
}

fn waits(entry: &PodEntry, steps: &[PastStep], next_try: Option<Timestamp>) -> Vec<Wait> {
    match entry.life {
        PodLife::Pending | PodLife::Terminating | PodLife::Terminated => {
            let last = steps.iter().rev().find(|step| !is_report(step));
            let wait = last.map(|step| Wait {
                who: "pod".into(),
                what: text(step),
                since: Some(step.at),
                next_try,
                ..Wait::default()
            });
            wait.into_iter().collect()
        }
        PodLife::Syncing => entry.status.as_deref().map_or_else(Vec::new, |status| {
            let waiting = containers(status).filter_map(|c| container(c, steps, next_try));
            waiting.collect()
        }),
        PodLife::Rejected | PodLife::Finished => Vec::new(),
    }
}

fn containers(status: &PodStatus) -> impl Iterator<Item = &ContainerStatus> {
    let init = status.init_container_statuses.iter().flatten();
    let main = status.container_statuses.iter().flatten();
    init.chain(main).chain(status.ephemeral_container_statuses.iter().flatten())
}

/// A container that waits, with the step that keeps it.
fn container(
    status: &ContainerStatus,
    steps: &[PastStep],
    next_try: Option<Timestamp>,
) -> Option<Wait> {
    let waiting = status.state.as_ref()?.waiting.as_ref()?;
    let reason = waiting.reason.as_deref().unwrap_or("waiting");
    let concerns = |step: &&PastStep| match &step.container {
        Some(container) => *container == status.name,
        None => !is_report(step),
    };
    let step = steps.iter().rev().find(concerns);
    let what = match (waiting.message.as_deref(), step) {
        (Some(message), _) if !message.is_empty() => format!("{reason}: {message}"),
        (_, Some(step)) => format!("{reason}: {}", text(step)),
        _ => reason.to_owned(),
    };
    let since = step.map(|step| step.at);
    Some(Wait {
        who: format!("container {:?}", status.name),
        what,
        since,
        next_try,
        ..Wait::default()
    })
}

/// Steps that tell others about the pod and hold up nothing.
fn is_report(step: &PastStep) -> bool {
    step.what.starts_with("status ")
}

fn text(step: &PastStep) -> String {
    match (step.container.as_deref(), step.detail.as_str()) {
        (None, "") => step.what.clone(),
        (None, detail) => format!("{} ({detail})", step.what),
        (Some(container), "") => format!("{} {container:?}", step.what),
        (Some(container), detail) => format!("{} {container:?} ({detail})", step.what),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ports::PodSource;
    use serde_json::json;
    use std::sync::Arc;

    fn entry(life: PodLife, status: serde_json::Value) -> PodEntry {
        PodEntry {
            pod: Arc::default(),
            given: None,
            source: PodSource::Api,
            mirror: None,
            life,
            status: Some(Arc::new(serde_json::from_value(status).unwrap())),
            evicted: false,
        }
    }

    fn step(second: i64, what: &str, container: Option<&str>, detail: &str) -> PastStep {
        PastStep {
            at: Timestamp::from_second(second).unwrap(),
            last_at: None,
            times: 1,
            what: what.into(),
            container: container.map(str::to_owned),
            detail: detail.into(),
        }
    }

    fn told(life: PodLife, status: serde_json::Value, steps: Vec<PastStep>) -> Vec<String> {
        let next = Timestamp::from_second(100).ok();
        let pod = pod(&"u".into(), "n/p".into(), Some(&entry(life, status)), steps, next);
        let line = |w: &Wait| {
            let since = w.since.map(|at| at.as_second());
            assert_eq!(w.next_try, next);
            format!("{}: {} since {since:?}", w.who, w.what)
        };
        pod.waits.iter().map(line).collect()
    }

    #[test]
    fn a_container_that_backs_off_says_so_in_its_status_words() {
        let status = json!({"containerStatuses": [
            {"name": "web", "image": "", "imageID": "", "ready": false, "restartCount": 2,
             "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}}},
            {"name": "ok", "image": "", "imageID": "", "ready": true, "restartCount": 0,
             "state": {"running": {}}}
        ]});
        let steps = vec![
            step(1, "started", Some("ok"), "id"),
            step(2, "started", Some("web"), "id"),
            step(3, "status sent", None, "Running"),
        ];
        assert_eq!(
            told(PodLife::Syncing, status, steps),
            ["container \"web\": CrashLoopBackOff: back-off 10s since Some(2)"]
        );
    }

    #[test]
    fn a_container_that_was_never_made_names_the_step_before_it() {
        let status = json!({"containerStatuses": [
            {"name": "web", "image": "", "imageID": "", "ready": false, "restartCount": 0,
             "state": {"waiting": {"reason": "ContainerCreating"}}}
        ]});
        let steps = vec![
            step(1, "pod cgroup ready", None, ""),
            step(2, "sandbox failed", None, "no network"),
            step(3, "status sent", None, "Pending"),
        ];
        assert_eq!(
            told(PodLife::Syncing, status, steps),
            ["container \"web\": ContainerCreating: sandbox failed (no network) since Some(2)"]
        );
    }

    #[test]
    fn a_pod_that_does_not_end_names_its_last_step() {
        let steps =
            vec![step(5, "killing", Some("web"), "grace"), step(6, "status not sent", None, "x")];
        assert_eq!(
            told(PodLife::Terminating, json!({}), steps),
            ["pod: killing \"web\" (grace) since Some(5)"]
        );
    }

    #[test]
    fn a_pod_that_runs_or_is_gone_waits_for_nothing() {
        let status = json!({"containerStatuses": [{"name": "web", "image": "", "imageID": "",
            "ready": true, "restartCount": 0, "state": {"running": {}}}]});
        assert!(
            told(PodLife::Syncing, status, vec![step(1, "started", Some("web"), "")]).is_empty()
        );
        let gone = pod(&"u".into(), "n/p".into(), None, vec![step(1, "finished", None, "")], None);
        assert_eq!((gone.life.as_str(), gone.waits.len(), gone.steps.len()), ("gone", 0, 1));
    }
}
