//! Where golden pods are run: one node that records, shared by many pods at a time.
//!
//! Pods come through the API server, or as manifests of the node ([`Ways::manifests`]): then what is watched is
//! the mirror pod, and nobody but the node can change or delete it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::Context;
use serde_json::{Value, json};
use testkit::real::{
    ControlPlane, ControlPlaneOptions, KubeletKind, KubeletOptions, TestNode, eventually,
};

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

/// How a bed differs from the one that golden records are made on.
#[derive(Debug, Clone, Default)]
pub struct Ways {
    /// Fields laid over the kubelet's configuration.
    pub config: Value,
    /// More arguments of the API server.
    pub api_server_args: Vec<String>,
    /// Pods are manifests of the node.
    pub manifests: bool,
}

/// A node with a recorder, its control plane with the objects that golden pods need, and watches.
#[derive(Debug)]
pub struct RecordingNode {
    // In the order in which they must go.
    observer: Observer,
    node: TestNode,
    control: Arc<ControlPlane>,
    kind: KubeletKind,
    manifests: bool,
    /// How often each manifest was handed over.
    runs: Mutex<BTreeMap<String, u32>>,
}

impl RecordingNode {
    /// Start everything.
    pub fn start(kind: KubeletKind) -> anyhow::Result<RecordingNode> {
        RecordingNode::start_with(kind, &Ways { config: json!({}), ..Ways::default() })
    }

    /// Start everything in these ways.
    pub fn start_with(kind: KubeletKind, ways: &Ways) -> anyhow::Result<RecordingNode> {
        let plane = ControlPlaneOptions {
            api_server_args: ways.api_server_args.clone(),
            ..ControlPlaneOptions::default()
        };
        let control = Arc::new(ControlPlane::start(&plane)?);
        for object in objects() {
            control.create(&object)?;
        }
        let observer = Observer::start(&control, NAMESPACE)?;
        let node = TestNode::builder()
            .kubelet(kind)
            .options(KubeletOptions { config: ways.config.clone(), ..KubeletOptions::default() })
            .join(&control)
            .image("e2e-test-images/agnhost:2.63.0")
            .record()
            .start()?;
        std::thread::sleep(FIRST_LOOK);
        let (manifests, runs) = (ways.manifests, Mutex::default());
        Ok(RecordingNode { observer, node, control, kind, manifests, runs })
    }

    /// Kill the kubelet.
    pub fn go_down(&mut self) {
        self.node.kill_kubelet();
    }

    /// Start it again, and let it look around.
    pub fn come_up(&mut self) -> anyhow::Result<()> {
        self.node.start_kubelet(self.kind)?;
        std::thread::sleep(FIRST_LOOK);
        Ok(())
    }

    /// Give one golden pod to the kubelet, take it through the record's life, and compare.
    pub fn run(&self, golden: &Golden) -> anyhow::Result<Vec<Difference>> {
        Ok(compare(golden, &self.follow(golden)?))
    }

    /// Give one golden pod to the kubelet and take it through the record's life.
    pub fn follow(&self, golden: &Golden) -> anyhow::Result<Observed> {
        self.hand_over(golden)?;
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
        self.hand_over(golden)?;
        let mut before = self.play(golden)?;
        if before.is_none() {
            // Nobody knows yet where it ends: where nothing has moved for a while.
            self.rest(golden);
            before = Some(self.delete(golden)?);
        }
        let before = before.context("pod was never seen")?;
        let (pod, observed) = self.end(golden, &before)?;
        Ok(golden.observed(pod, observed))
    }

    /// Give one pod to the kubelet and wait until it rests.
    pub fn begin(&self, golden: &Golden) -> anyhow::Result<()> {
        self.hand_over(golden)?;
        self.rest(golden);
        self.observer.pod(&self.seen_as(golden)).map(drop).context("pod was never seen")
    }

    /// Does what the record's client does, to a pod that [`RecordingNode::begin`] gave; how it was before its deletion, if that
    /// was part of it.
    pub fn meddle(&self, golden: &Golden) -> anyhow::Result<Option<Value>> {
        self.play(golden)
    }

    /// Wait until a pod that [`RecordingNode::begin`] gave rests again, delete it if nobody has, and say what was seen.
    pub fn finish(&self, golden: &Golden, deleted: Option<Value>) -> anyhow::Result<Golden> {
        let before = match deleted {
            Some(before) => before,
            None => {
                self.rest(golden);
                self.delete(golden)?
            }
        };
        let (pod, observed) = self.end(golden, &before)?;
        Ok(golden.observed(pod, observed))
    }

    /// The name of what is watched.
    fn seen_as(&self, golden: &Golden) -> String {
        let node = KubeletOptions::default().node;
        if self.manifests { format!("{}-{node}", golden.name) } else { golden.name.clone() }
    }

    /// What runtime and events know a pod by.
    fn uid(&self, pod: &Value) -> String {
        let uid = if self.manifests {
            &pod["metadata"]["annotations"]["kubernetes.io/config.hash"]
        } else {
            &pod["metadata"]["uid"]
        };
        uid.as_str().unwrap_or_default().to_owned()
    }

    fn hand_over(&self, golden: &Golden) -> anyhow::Result<()> {
        self.observer.forget(&self.seen_as(golden));
        let mut pod = golden.manifest();
        if self.manifests {
            // The same manifest once more would be the same pod, with what is left of it.
            let mut runs = self.runs.lock().map_err(|_| anyhow::anyhow!("a thread panicked"))?;
            let run = runs.entry(golden.name.clone()).or_default();
            *run += 1;
            pod["metadata"]["annotations"]["run"] = json!(run.to_string());
            return self.node.add_manifest(&file_of(golden), &pod.to_string());
        }
        self.control.create(&pod)
    }

    /// Wait until a pod has not moved for a while.
    fn rest(&self, golden: &Golden) {
        let (name, mut seen, mut since) = (self.seen_as(golden), 0, Instant::now());
        drop(eventually(PATIENCE, "a pod that rests", || {
            let steps = self.observer.steps(&name).len();
            if steps != seen {
                (seen, since) = (steps, Instant::now());
            }
            since.elapsed() > REST
        }));
    }

    /// Delete the pod; how it was until then.
    fn delete(&self, golden: &Golden) -> anyhow::Result<Value> {
        let name = self.seen_as(golden);
        let name = name.as_str();
        // What runs inside needs a moment after its start before it can take a signal, and no
        // status shows that; the record's client had waited too.
        std::thread::sleep(Duration::from_millis(1500));
        if self.manifests {
            self.node.remove_manifest(&file_of(golden))?;
        }
        let before = self.observer.pod(name).context("pod was never seen")?;
        if !self.manifests {
            self.control.kubectl(["delete", "pod", name, "-n", NAMESPACE, "--wait=false"])?;
        }
        Ok(before)
    }

    /// Do what the record's client did; how the pod was before its deletion, if that was part of it.
    fn play(&self, golden: &Golden) -> anyhow::Result<Option<Value>> {
        let name = self.seen_as(golden);
        let name = name.as_str();
        let mut before = None;
        for step in &golden.script {
            eventually(PATIENCE, &format!("{name} for {step:?}"), || {
                let status = self.observer.steps(name).pop().unwrap_or_default();
                let pod = self.observer.pod(name).unwrap_or_default();
                let uid = self.uid(&pod);
                let posted = |reason: &String| {
                    self.observer.events(&uid).iter().any(|event| event["reason"] == **reason)
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
                Action::Runtime(words, container) => {
                    let pod = self.observer.pod(name).context("pod was never seen")?;
                    self.act_in_runtime(&self.uid(&pod), words, container.as_deref())?;
                }
            }
        }
        Ok(before)
    }

    /// Have the runtime do something to a container of a pod, or to its sandboxes.
    fn act_in_runtime(
        &self,
        uid: &str,
        words: &[String],
        container: Option<&str>,
    ) -> anyhow::Result<()> {
        let uid = format!("io.kubernetes.pod.uid={uid}");
        let mut list = vec![if container.is_some() { "ps" } else { "pods" }, "-q", "--label", &uid];
        let name = container.map(|name| format!("io.kubernetes.container.name={name}"));
        if let Some(name) = &name {
            list.extend(["--label", name]);
        }
        for id in self.node.crictl(list)?.split_whitespace() {
            self.node.crictl(words.iter().map(String::as_str).chain([id]))?;
        }
        Ok(())
    }

    /// What was seen of a pod that is being deleted, with the pod as it was stored first.
    fn end(&self, golden: &Golden, before: &Value) -> anyhow::Result<(Value, Observed)> {
        let name = self.seen_as(golden);
        let name = name.as_str();
        let uid = self.uid(before);
        eventually(PATIENCE, "the deleted pod is gone", || self.observer.is_gone(name))?;
        self.wait_for_removed_containers(golden, &uid)?;
        self.wait_for_events(golden, &uid, Duration::from_secs(5), |_| true);
        let recorder = self.node.recorder().context("no recorder")?;
        let calls = recorder.calls();
        let known = json!({ "metadata": { "uid": uid } });
        let mut names = Names::learn(&self.node, &known, &calls);
        names.learn_addresses(&before["status"]);
        let status = names.apply(&before["status"]);
        let events = self.observer.events(&uid);
        let mut pod = self.observer.first(name).context("pod was never seen")?;
        if let Some(meta) = pod["metadata"].as_object_mut() {
            meta.retain(|key, _| !["managedFields", "resourceVersion"].contains(&key.as_str()));
            meta.insert("uid".to_owned(), "$UID".into());
            meta.insert("creationTimestamp".to_owned(), "$TIME".into());
        }
        let mut steps = self.observer.steps(name);
        if self.manifests {
            // Whether the mirror pod shows the end of its pod before it is deleted is a matter of the Go kubelet's
            // next look around.
            let last = short_status(&before["status"]);
            let until = steps.iter().rposition(|step| *step == last);
            steps.truncate(until.map_or(steps.len(), |at| at + 1));
        }
        let observed = Observed {
            cri: names.calls(&uid, &calls),
            steps,
            brief: is_brief(&before["status"]),
            status,
            events: events.iter().map(|event| names.apply(&shape(event))).collect(),
        };
        // A mirror pod is no manifest to begin from once more.
        let pod = if self.manifests { golden.pod.clone() } else { pod };
        Ok((pod, observed))
    }

    /// Wait for the state that the record had before the deletion. A pod that never gets there is
    /// compared as it is.
    fn reach_recorded_state(&self, golden: &Golden) -> anyhow::Result<()> {
        let target = short_status(&golden.status);
        let reached = |rounds: usize| {
            let steps = self.observer.steps(&self.seen_as(golden));
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
        let pod = self.observer.pod(&self.seen_as(golden)).context("pod was never seen")?;
        let uid = self.uid(&pod);
        let failures = [
            "FailedCreatePodSandBox",
            "FailedMount",
            "Failed",
            "FailedPostStartHook",
            "Unhealthy",
            "ProbeWarning",
        ];
        self.wait_for_events(golden, &uid, Duration::from_secs(15), |r| failures.contains(&r));
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
        let pod = self.observer.pod(&self.seen_as(golden)).context("pod was never seen")?;
        let uid = self.uid(&pod);
        let known = json!({ "metadata": { "uid": uid } });
        let probes = |calls: &[Value]| -> Vec<Value> {
            calls.iter().filter(|call| call["method"] == "ExecSync").cloned().collect()
        };
        let expected = probes(&golden.cri);
        let all_seen = || {
            let calls = recorder.calls();
            let own = probes(&Names::learn(&self.node, &known, &calls).calls(&uid, &calls));
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

/// The file of a pod that is a manifest of the node.
fn file_of(golden: &Golden) -> String {
    format!("{}.json", golden.name)
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
