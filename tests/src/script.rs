//! What the client of a golden record did to its pod while it lived: changes and deletions, each at a
//! point of the pod's life that the record names.
//!
//! A record has them in order under `script`. Each step waits until all of its `when` hold (JSON
//! pointers into the short form of the newest status, with the value there) and, if it has an `event`,
//! until one with that reason was posted; then for `after_ms` more. Then it patches the pod (`patch`,
//! `subresource`), deletes it (`delete`: seconds of grace), or acts behind the kubelet's back (`runtime`: what
//! crictl does, and to which container; to the sandboxes if to none). After the first deletion nothing more is
//! waited for than that the pod is gone. The older form `change` is one patch of a pod that is ready.

use std::time::Duration;

use serde_json::{Map, Value, json};

/// One thing that the client does.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    /// What the newest status must show, by JSON pointers into its short form.
    pub when: Map<String, Value>,
    /// A reason of which an event must have been posted.
    pub event: Option<String>,
    /// How long to wait after that.
    pub after: Duration,
    /// What it does.
    pub action: Action,
}

/// What a client does to a pod.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Patches it, or this subresource of it.
    Patch(Option<String>, Value),
    /// Deletes it with this grace.
    Delete(u64),
    /// Has the runtime do this to a container of it, or to its sandboxes.
    Runtime(Vec<String>, Option<String>),
}

impl Step {
    /// A patch of this subresource once the pod is ready.
    #[must_use]
    pub fn change(subresource: &str, patch: Value) -> Step {
        Step {
            when: when_ready(),
            event: None,
            after: Duration::ZERO,
            action: Action::Patch(Some(subresource.to_owned()), patch),
        }
    }

    /// Whether a status in short form shows what the step waits for.
    #[must_use]
    pub fn is_due(&self, status: &Value) -> bool {
        self.when.iter().all(|(pointer, value)| status.pointer(pointer) == Some(value))
    }
}

/// The steps of a record.
pub fn steps(record: &Value) -> anyhow::Result<Vec<Step>> {
    if let Some(change) = record.get("change") {
        let subresource = change["subresource"].as_str().unwrap_or_default();
        return Ok(vec![Step::change(subresource, change["patch"].clone())]);
    }
    let list = record["script"].as_array().into_iter().flatten();
    list.map(|step| {
        let text = |key: &str| step[key].as_str().map(str::to_owned);
        let runtime = step["runtime"].as_str();
        let action = match (step.get("patch"), step["delete"].as_u64(), runtime) {
            (Some(patch), None, None) => Action::Patch(text("subresource"), patch.clone()),
            (None, Some(grace), None) => Action::Delete(grace),
            (None, None, Some(words)) => {
                Action::Runtime(words.split(' ').map(str::to_owned).collect(), text("container"))
            }
            _ => anyhow::bail!("a step must patch, delete or have the runtime act: {step}"),
        };
        Ok(Step {
            when: step["when"].as_object().cloned().unwrap_or_default(),
            event: text("event"),
            after: Duration::from_millis(step["after_ms"].as_u64().unwrap_or_default()),
            action,
        })
    })
    .collect()
}

fn when_ready() -> Map<String, Value> {
    Map::from_iter([("/conditions/Ready".to_owned(), json!(["True", ""]))])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_due_when_all_it_waits_for_is_shown() {
        let record = json!({ "script": [
            { "when": { "/main/a/0": "running", "/phase": "Running" }, "delete": 3 },
        ]});
        let steps = steps(&record).unwrap();
        assert_eq!(steps[0].action, Action::Delete(3));
        let status = |phase: &str| json!({ "phase": phase, "main": { "a": ["running", ""] } });
        assert!(steps[0].is_due(&status("Running")));
        assert!(!steps[0].is_due(&status("Pending")));
        assert!(!steps[0].is_due(&json!({})));
    }

    #[test]
    fn a_step_does_one_thing() {
        assert!(steps(&json!({ "script": [{ "when": {} }] })).is_err());
        assert!(steps(&json!({ "script": [{ "patch": {}, "delete": 1 }] })).is_err());
        assert_eq!(steps(&json!({})).unwrap(), []);
    }
}
