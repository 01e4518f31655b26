//! What the API server shows, with the moment it was shown.

use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use anyhow::Context;
use serde_json::Value;
use testkit::real::ControlPlane;

/// A moment, the name of an object and what was looked for in it.
type Sight = (Instant, String, String);

/// A running `kubectl get --watch`.
#[derive(Debug)]
pub(super) struct Watch {
    seen: Arc<Mutex<Vec<Sight>>>,
    child: Child,
}

impl Watch {
    /// Watch objects of one kind in a namespace, and keep of each version the text at `pointer`.
    pub(super) fn start(
        control: &ControlPlane,
        (kind, namespace): (&str, &str),
        pointer: &'static str,
    ) -> anyhow::Result<Watch> {
        let args = ["get", kind, "-n", namespace, "--watch", "--output-watch-events", "-o", "json"];
        let mut child = control
            .kubectl_command(args)?
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .context("cannot watch")?;
        let stdout = child.stdout.take().context("kubectl has no output")?;
        let seen = Arc::<Mutex<Vec<Sight>>>::default();
        let into = Arc::clone(&seen);
        std::thread::spawn(move || {
            let changes = serde_json::Deserializer::from_reader(std::io::BufReader::new(stdout));
            for change in changes.into_iter::<Value>().map_while(Result::ok) {
                let text = |pointer| change.pointer(pointer).and_then(Value::as_str);
                let name = text("/object/metadata/name").unwrap_or_default().to_owned();
                let found = text(pointer).unwrap_or_default().to_owned();
                if let Ok(mut seen) = into.lock() {
                    seen.push((Instant::now(), name, found));
                }
            }
        });
        Ok(Watch { seen, child })
    }

    /// When the object was first seen with this text.
    pub(super) fn when(&self, name: &str, text: &str) -> Option<Instant> {
        let seen = self.seen.lock().ok()?;
        seen.iter().find(|(_, n, found)| n == name && found == text).map(|(at, _, _)| *at)
    }

    /// When the text of the object changed, in order.
    pub(super) fn changes(&self, name: &str) -> Vec<Instant> {
        let Ok(seen) = self.seen.lock() else { return Vec::new() };
        let mut own: Vec<&Sight> = seen.iter().filter(|(_, n, _)| n == name).collect();
        own.dedup_by(|a, b| a.2 == b.2);
        own.into_iter().map(|(at, _, _)| *at).collect()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let _ended = self.child.kill();
        let _reaped = self.child.wait();
    }
}
