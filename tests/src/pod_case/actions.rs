//! What the client does to a pod while it lives.

use serde_json::{Value, json};

use super::{AGNHOST, BUSYBOX, Draw};

impl Draw {
    /// A short script, or none.
    pub(super) fn actions(&mut self, pod: &Value) -> Value {
        let mut steps = Vec::new();
        if !self.rng.once_in(3) {
            return json!(steps);
        }
        if self.settles {
            for _ in 0..=self.rng.below(2) {
                if let Some(mut step) = self.change(pod) {
                    step["when"] = json!({ "/conditions/Ready": ["True", ""] });
                    step["after_ms"] = json!(4000);
                    steps.push(step);
                }
            }
            if self.rng.once_in(4) {
                let grace = [0, 1, 2, 4][self.rng.below(4)];
                let when = json!({ "/phase": "Running" });
                steps.push(json!({ "delete": grace, "when": when, "after_ms": 5000 }));
            }
        } else if self.rng.once_in(3) && !self.faulty {
            let grace = [0, 1, 2, 4][self.rng.below(4)];
            let after = [4000, 8000][self.rng.below(2)];
            steps.push(json!({ "delete": grace, "event": "Started", "after_ms": after }));
        }
        json!(steps)
    }

    fn change(&mut self, pod: &Value) -> Option<Value> {
        let mains = pod["spec"]["containers"].as_array()?;
        let main = mains[self.rng.below(mains.len())].clone();
        let name = main["name"].clone();
        match self.rng.below(8) {
            0 => Some(
                json!({ "patch": { "metadata": { "labels": { "app": "changed", "new": "x" } } } }),
            ),
            1 => Some(
                json!({ "patch": { "metadata": { "annotations": { "note": null, "new": "y" } } } }),
            ),
            2 if main["image"] == BUSYBOX => {
                let image = self.word(&[AGNHOST, "registry.k8s.io/never-there:8"]);
                Some(
                    json!({ "patch": { "spec": { "containers": [{ "name": name, "image": image }] } } }),
                )
            }
            3 | 4 if main["resources"].is_object() => {
                let resources = self.one(&json!([
                    { "requests": { "cpu": "20m" } },
                    { "requests": { "memory": "48Mi" }, "limits": { "memory": "160Mi" } },
                    { "requests": { "cpu": "60m", "memory": "70Mi" }, "limits": { "cpu": "60m", "memory": "70Mi" } },
                    { "limits": { "cpu": "300m", "memory": "200Mi" } },
                    { "requests": { "cpu": "1000" } },
                ]));
                let patch =
                    json!({ "spec": { "containers": [{ "name": name, "resources": resources }] } });
                Some(json!({ "patch": patch, "subresource": "resize" }))
            }
            5 | 6 => {
                let mut debugger = json!({ "name": "dbg", "image": BUSYBOX });
                let code = self.rng.below(3);
                debugger["command"] = json!([
                    "sh",
                    "-c",
                    format!("echo $V0 > /dev/termination-log; sleep 2; exit {code}"),
                    "$(V0)"
                ]);
                self.environment(&mut debugger, "a");
                self.maybe(&mut debugger, "targetContainerName", 3, &json!([name]));
                self.maybe(&mut debugger, "securityContext", 3, &json!([
                    { "privileged": true }, { "runAsUser": 1000 }, { "capabilities": { "add": ["SYS_PTRACE"] } },
                ]));
                self.maybe(
                    &mut debugger,
                    "terminationMessagePolicy",
                    3,
                    &json!(["FallbackToLogsOnError"]),
                );
                let patch = json!({ "spec": { "ephemeralContainers": [debugger] } });
                Some(json!({ "patch": patch, "subresource": "ephemeralcontainers" }))
            }
            7 => {
                let seconds = 12 + self.rng.below(4);
                Some(json!({ "patch": { "spec": { "activeDeadlineSeconds": seconds } } }))
            }
            _ => None,
        }
    }
}
