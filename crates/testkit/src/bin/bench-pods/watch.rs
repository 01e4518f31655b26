//! What the API server shows, with the moment it was shown: a kubectl watch and what it saw.

use std::collections::BTreeMap;
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use anyhow::Context;
use serde_json::Value;
use testkit::real::{ControlPlane, eventually_some};

use crate::PATIENCE;

/// One object's history.
#[derive(Debug, Clone, Default)]
pub(crate) struct Seen {
    pub(crate) added: Option<Instant>,
    pub(crate) ready: Option<Instant>,
    /// When each number of restarts was first shown with a running container.
    pub(crate) restarted: BTreeMap<u64, Instant>,
    pub(crate) gone: Option<Instant>,
    pub(crate) last: Value,
}

type History = Arc<Mutex<BTreeMap<String, Seen>>>;

/// A running watch.
#[derive(Debug)]
pub(crate) struct Watch {
    seen: History,
    child: Child,
}

impl Watch {
    /// Watch objects of one kind; what is there already is seen as added.
    pub(crate) fn start(control: &ControlPlane, kind: &str) -> anyhow::Result<Watch> {
        let args = ["get", kind, "--watch", "--output-watch-events", "-o", "json"];
        let mut child = control
            .kubectl_command(args)?
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .context("cannot watch")?;
        let stdout = child.stdout.take().context("kubectl has no output")?;
        let seen = History::default();
        let into = Arc::clone(&seen);
        std::thread::spawn(move || {
            let changes = serde_json::Deserializer::from_reader(std::io::BufReader::new(stdout));
            for change in changes.into_iter::<Value>().map_while(Result::ok) {
                note(&into, change, Instant::now());
            }
        });
        Ok(Watch { seen, child })
    }

    /// What a question finds in the histories, as soon as it finds something.
    pub(crate) fn wait<T>(
        &self,
        what: &str,
        question: impl Fn(&BTreeMap<String, Seen>) -> Option<T>,
    ) -> anyhow::Result<T> {
        eventually_some(PATIENCE, what, || question(&*self.seen.lock().ok()?))
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let _ended = self.child.kill();
        let _reaped = self.child.wait();
    }
}

fn note(history: &History, mut change: Value, now: Instant) {
    let object = change["object"].take();
    let Some(name) = object["metadata"]["name"].as_str().map(str::to_owned) else { return };
    let Ok(mut history) = history.lock() else { return };
    let seen = history.entry(name).or_default();
    if change["type"] == "DELETED" {
        seen.gone = Some(now);
    }
    seen.added.get_or_insert(now);
    let conditions = object["status"]["conditions"].as_array();
    let ready = |c: &Value| c["type"] == "Ready" && c["status"] == "True";
    if conditions.is_some_and(|all| all.iter().any(ready)) {
        seen.ready.get_or_insert(now);
    }
    let container = &object["status"]["containerStatuses"][0];
    if let (Some(count), true) =
        (container["restartCount"].as_u64(), container["state"]["running"].is_object())
    {
        seen.restarted.entry(count).or_insert(now);
    }
    seen.last = object;
}
