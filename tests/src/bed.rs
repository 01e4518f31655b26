//! Where golden pods are run: one node that records, shared by many pods at a time.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use serde_json::{Value, json};
use testkit::real::{ControlPlane, ControlPlaneOptions, KubeletKind, TestNode, eventually};

use crate::compare::{Difference, Observed, compare};
use crate::golden::{Golden, NAMESPACE, objects, short_status};
use crate::normal::Names;
use crate::observe::Observer;
use crate::script::Action;

/// The longest any record takes to its last state, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A pod whose status has not moved for so long has come to rest.
const REST: Duration = Duration::from_secs(12);

/// From its start until it has looked around for the first time, a kubelet takes any pod for one that may run, and
/// tells of a refused one only later: the Go kubelet looks after two seconds, and nothing shows it.
const FIRST_LOOK: Duration = Duration::from_secs(3);

/// A node with a recorder, its control plane with the objects that golden pods need, and watches.
#[derive(Debug)]
pub struct Bed {
    // In the order in which they must go.
    observer: Observer,
    node: TestNode,
    control: Arc<ControlPlane>,
}

impl Bed {
    /// Start everything.
    pub fn start(kind: KubeletKind) -> anyhow::Result<Bed> {
        let control = Arc::new(ControlPlane::start(&ControlPlaneOptions::default())?);
        for object in objects() {
            control.create(&object)?;
        }
        let observer = Observer::start(&control, NAMESPACE)?;
        let node = TestNode::builder()
            .kubelet(kind)
            .join(&control)
            .image("e2e-test-images/agnhost:2.63.0")
            .record()
            .start()?;
        std::thread::sleep(FIRST_LOOK);
        Ok(Bed { observer, node, control })
    }

    /// Give one golden pod to the kubelet, take it through the record's life, and compare.
    pub fn run(&self, golden: &Golden) -> anyhow::Result<Vec<Difference>> {
        Ok(compare(golden, &self.follow(golden)?))
    }

    /// Give one golden pod to the kubelet and take it through the record's life.
    pub fn follow(&self, golden: &Golden) -> anyhow::Result<Observed> {
        self.observer.forget(&golden.name);
        self.control.create(&golden.manifest())?;
        let mut before = self.play(golden)?;
        if before.is_none() {
            self.reach_recorded_state(golden)?;
            before = Some(self.delete(golden)?);
        }
        let before = before.context("pod was never seen")?;
        Ok(self.end(golden, &before)?.1)
    }

    /// Give one pod to the Go kubelet and note what it does.
    pub fn record(&self, golden: &Golden) -> anyhow::Result<Golden> {
        self.observer.forget(&golden.name);
        self.control.create(&golden.manifest())?;
        let mut before = self.play(golden)?;
        if before.is_none() {
            // Nobody knows yet where it ends: where nothing has moved for a while.
            let (mut seen, mut since) = (0, Instant::now());
            drop(eventually(PATIENCE, "a pod that rests", || {
                let steps = self.observer.steps(&golden.name).len();
                if steps != seen {
                    (seen, since) = (steps, Instant::now());
                }
                since.elapsed() > REST
            }));
            before = Some(self.delete(golden)?);
        }
        let before = before.context("pod was never seen")?;
        let (pod, observed) = self.end(golden, &before)?;
        Ok(golden.observed(pod, observed))
    }

    /// Delete the pod; how it was until then.
    fn delete(&self, golden: &Golden) -> anyhow::Result<Value> {
        let name = golden.name.as_str();
        // What runs inside needs a moment after its start before it can take a signal, and no
        // status shows that; the record's client had waited too.
        std::thread::sleep(Duration::from_millis(1500));
        let before = self.observer.pod(name).context("pod was never seen")?;
        self.control.kubectl(["delete", "pod", name, "-n", NAMESPACE, "--wait=false"])?;
        Ok(before)
    }

    /// Do what the record's client did; how the pod was before its deletion, if that was part of it.
    fn play(&self, golden: &Golden) -> anyhow::Result<Option<Value>> {
        let name = golden.name.as_str();
        let mut before = None;
        for step in &golden.script {
            eventually(PATIENCE, &format!("{name} for {step:?}"), || {
                let status = self.observer.steps(name).pop().unwrap_or_default();
                let pod = self.observer.pod(name).unwrap_or_default();
                let uid = pod["metadata"]["uid"].as_str().unwrap_or_default();
                let posted = |reason: &String| {
                    self.observer.events(uid).iter().any(|event| event["reason"] == **reason)
                };
                !uid.is_empty() && step.is_due(&status) && step.event.as_ref().is_none_or(posted)
            })?;
            std::thread::sleep(step.after);
            match &step.action {
                Action::Patch(subresource, patch) => {
                    let patch = patch.to_string();
                    let mut args = vec!["patch", "pod", name, "-n", NAMESPACE, "-p", &patch];
                    let subresource = subresource.as_ref().map(|s| format!("--subresource={s}"));
                    args.extend(subresource.as_deref());
                    self.control.kubectl(args)?;
                }
                Action::Delete(grace) => {
                    before = before.or(self.observer.pod(name));
                    let period = format!("--grace-period={grace}");
                    let mut args = vec!["delete", "pod", name, "-n", NAMESPACE, "--wait=false"];
                    args.push(&period);
                    args.extend((*grace == 0).then_some("--force"));
                    self.control.kubectl(args)?;
                }
            }
        }
        Ok(before)
    }

    /// What was seen of a pod that is being deleted, with the pod as it was stored first.
    fn end(&self, golden: &Golden, before: &Value) -> anyhow::Result<(Value, Observed)> {
        let name = golden.name.as_str();
        let uid = before["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
        eventually(PATIENCE, "the deleted pod is gone", || self.observer.is_gone(name))?;
        self.wait_for_removed_containers(golden, &uid)?;
        self.wait_for_events(golden, &uid, Duration::from_secs(5), |_| true);
        let recorder = self.node.recorder().context("no recorder")?;
        let calls = recorder.calls();
        let mut names = Names::learn(&self.node, before, &calls);
        names.learn_addresses(&before["status"]);
        let status = names.apply(&before["status"]);
        let events = self.observer.events(&uid);
        let mut pod = self.observer.first(name).context("pod was never seen")?;
        if let Some(meta) = pod["metadata"].as_object_mut() {
            meta.retain(|key, _| !["managedFields", "resourceVersion"].contains(&key.as_str()));
            meta.insert("uid".to_owned(), "$UID".into());
            meta.insert("creationTimestamp".to_owned(), "$TIME".into());
        }
        let observed = Observed {
            cri: names.calls(&uid, &calls),
            steps: self.observer.steps(name),
            brief: is_brief(&before["status"]),
            status,
            events: events.iter().map(|event| names.apply(&shape(event))).collect(),
        };
        Ok((pod, observed))
    }

    /// Wait for the state that the record had before the deletion. A pod that never gets there is
    /// compared as it is.
    fn reach_recorded_state(&self, golden: &Golden) -> anyhow::Result<()> {
        let target = short_status(&golden.status);
        let reached = |rounds: usize| {
            let steps = self.observer.steps(&golden.name);
            steps.last() == Some(&target)
                && steps.iter().filter(|step| **step == target).count() >= rounds
        };
        let rounds = golden.rounds_before_delete();
        drop(eventually(PATIENCE, "the recorded state", || reached(rounds)));
        self.wait_for_failures(golden)?;
        self.wait_for_probes(golden)
    }

    /// What failed in the record without a trace in the status gets the time to fail.
    fn wait_for_failures(&self, golden: &Golden) -> anyhow::Result<()> {
        let pod = self.observer.pod(&golden.name).context("pod was never seen")?;
        let uid = pod["metadata"]["uid"].as_str().unwrap_or_default();
        let failures = [
            "FailedCreatePodSandBox",
            "FailedMount",
            "Failed",
            "FailedPostStartHook",
            "Unhealthy",
            "ProbeWarning",
        ];
        self.wait_for_events(golden, uid, Duration::from_secs(15), |r| failures.contains(&r));
        Ok(())
    }

    /// Events are posted beside the work they tell of: those of the record get a moment to arrive.
    fn wait_for_events(
        &self,
        golden: &Golden,
        uid: &str,
        patience: Duration,
        counts: impl Fn(&str) -> bool,
    ) {
        let reasons = golden.events.iter().filter_map(|event| event["reason"].as_str());
        let expected: Vec<&str> = reasons.filter(|reason| counts(reason)).collect();
        let all_seen = || {
            let events = self.observer.events(uid);
            expected.iter().all(|reason| events.iter().any(|event| event["reason"] == *reason))
        };
        drop(eventually(patience, "the recorded events", all_seen));
    }

    /// Probes of the record that have not run yet get a moment to do so.
    fn wait_for_probes(&self, golden: &Golden) -> anyhow::Result<()> {
        let recorder = self.node.recorder().context("no recorder")?;
        let pod = self.observer.pod(&golden.name).context("pod was never seen")?;
        let uid = pod["metadata"]["uid"].as_str().unwrap_or_default();
        let probes = |calls: &[Value]| -> Vec<Value> {
            calls.iter().filter(|call| call["method"] == "ExecSync").cloned().collect()
        };
        let expected = probes(&golden.cri);
        let all_seen = || {
            let calls = recorder.calls();
            let own = probes(&Names::learn(&self.node, &pod, &calls).calls(uid, &calls));
            expected.iter().all(|probe| own.contains(probe))
        };
        drop(eventually(Duration::from_secs(3), "all recorded probes", all_seen));
        Ok(())
    }

    /// The containers of a deleted pod are removed soon after; give that its time.
    fn wait_for_removed_containers(&self, golden: &Golden, uid: &str) -> anyhow::Result<()> {
        let recorder = self.node.recorder().context("no recorder")?;
        let count = |calls: &[Value], method: &str| {
            calls.iter().filter(|call| call["method"] == method).count()
        };
        let removed = || {
            let calls = recorder.calls();
            let pod = json!({ "metadata": { "uid": uid } });
            let own = Names::learn(&self.node, &pod, &calls).calls(uid, &calls);
            let known = golden.is_recorded().then(|| count(&golden.cri, "RemoveContainer"));
            let expected = known.unwrap_or_else(|| count(&own, "CreateContainer"));
            count(&own, "RemoveContainer") >= expected
        };
        drop(eventually(Duration::from_secs(5), "its containers are removed", removed));
        Ok(())
    }
}

/// Whether a container of this status ended within two seconds of its start, now or before.
fn is_brief(status: &Value) -> bool {
    let lists = ["containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses"];
    let entries = lists.iter().filter_map(|list| status[list].as_array()).flatten();
    let states = entries.flat_map(|entry| [&entry["state"], &entry["lastState"]]);
    let mut ends = states.map(|state| &state["terminated"]).filter(|end| end.is_object());
    ends.any(|end| {
        let second = |key: &str| {
            let at = end[key].as_str().and_then(|time| time.parse::<jiff::Timestamp>().ok());
            at.map(jiff::Timestamp::as_second)
        };
        matches!((second("startedAt"), second("finishedAt")), (Some(from), Some(to)) if to - from < 2)
    })
}

/// An event in the goldens' form.
fn shape(event: &Value) -> Value {
    json!({
        "count": event["count"],
        "field": event["involvedObject"]["fieldPath"].as_str().unwrap_or_default(),
        "message": event["message"],
        "reason": event["reason"],
        "type": event["type"],
    })
}
