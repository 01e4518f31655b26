//! Watching one namespace: every version of every pod, and every event, from two kubectl watches.

use std::collections::BTreeMap;
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex};

use anyhow::Context;
use serde_json::Value;
use testkit::real::ControlPlane;

use crate::golden::short_status;

/// What has been seen so far.
#[derive(Debug, Default)]
struct Seen {
    /// Versions of each pod, oldest first, by name; the flag says "deleted".
    pods: BTreeMap<String, (Vec<Value>, bool)>,
    /// Events in order of first appearance; a repeated one replaces its first version.
    events: Vec<Value>,
}

/// Two running watches and what they saw.
#[derive(Debug)]
pub struct Observer {
    seen: Arc<Mutex<Seen>>,
    watches: Vec<Child>,
}

impl Observer {
    /// Watch the pods and events of `namespace`.
    pub fn start(control: &ControlPlane, namespace: &str) -> anyhow::Result<Observer> {
        let seen = Arc::<Mutex<Seen>>::default();
        let mut watches = Vec::new();
        for (kind, note) in
            [("pods", note_pod as fn(&mut Seen, &str, Value)), ("events", note_event)]
        {
            let args =
                ["get", kind, "-n", namespace, "--watch", "--output-watch-events", "-o", "json"];
            let mut child = control
                .kubectl_command(args)?
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .stderr(Stdio::null())
                .spawn()
                .context("cannot watch")?;
            let stdout = child.stdout.take().context("kubectl has no output")?;
            let seen = Arc::clone(&seen);
            std::thread::spawn(move || {
                let changes = serde_json::Deserializer::from_reader(stdout).into_iter::<Value>();
                for mut change in changes.map_while(Result::ok) {
                    let object = change["object"].take();
                    let kind = change["type"].as_str().unwrap_or_default();
                    if let Ok(mut seen) = seen.lock() {
                        note(&mut seen, kind, object);
                    }
                }
            });
            watches.push(child);
        }
        Ok(Observer { seen, watches })
    }

    /// Forgets a pod, so that another of the same name starts afresh.
    pub fn forget(&self, name: &str) {
        if let Ok(mut seen) = self.seen.lock() {
            seen.pods.remove(name);
        }
    }

    /// The newest version of a pod.
    #[must_use]
    pub fn pod(&self, name: &str) -> Option<Value> {
        let seen = self.seen.lock().ok()?;
        seen.pods.get(name).and_then(|(versions, _)| versions.last().cloned())
    }

    /// The first version of a pod.
    #[must_use]
    pub fn first(&self, name: &str) -> Option<Value> {
        let seen = self.seen.lock().ok()?;
        seen.pods.get(name).and_then(|(versions, _)| versions.first().cloned())
    }

    /// Whether a pod was seen and is gone.
    #[must_use]
    pub fn is_gone(&self, name: &str) -> bool {
        let seen = self.seen.lock();
        seen.is_ok_and(|seen| seen.pods.get(name).is_some_and(|(_, gone)| *gone))
    }

    /// Each distinct status of a pod in turn, in short form.
    #[must_use]
    pub fn steps(&self, name: &str) -> Vec<Value> {
        let Ok(seen) = self.seen.lock() else { return Vec::new() };
        let versions = seen.pods.get(name).map(|(versions, _)| versions.as_slice());
        let mut steps: Vec<Value> =
            versions.unwrap_or_default().iter().map(|pod| short_status(&pod["status"])).collect();
        steps.dedup();
        steps
    }

    /// The events about a pod (by uid) in order of first appearance.
    #[must_use]
    pub fn events(&self, uid: &str) -> Vec<Value> {
        let Ok(seen) = self.seen.lock() else { return Vec::new() };
        let about = |event: &&Value| event["involvedObject"]["uid"] == uid;
        seen.events.iter().filter(about).cloned().collect()
    }
}

impl Drop for Observer {
    fn drop(&mut self) {
        for watch in &mut self.watches {
            drop(watch.kill());
            drop(watch.wait());
        }
    }
}

fn note_pod(seen: &mut Seen, kind: &str, pod: Value) {
    let name = pod["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    let (versions, gone) = seen.pods.entry(name).or_default();
    *gone = kind == "DELETED";
    versions.push(pod);
}

fn note_event(seen: &mut Seen, _kind: &str, event: Value) {
    let name = event["metadata"]["name"].clone();
    match seen.events.iter_mut().find(|known| known["metadata"]["name"] == name) {
        Some(known) => *known = event,
        None => seen.events.push(event),
    }
}
