//! From what was observed to the goldens' form: identifiers, addresses, times and private places
//! become the placeholders that `fixtures/golden/README.md` lists.

use std::sync::Arc;

use serde_json::{Value, json};
use testkit::real::{Call, TestNode};

/// The replacements for one pod.
#[derive(Debug)]
pub struct Names {
    /// Longest first, so that no name eats a part of another.
    pairs: Vec<(String, String)>,
    sandboxes: Vec<String>,
    containers: Vec<String>,
}

impl Names {
    /// Learn a pod's names from its object and from the calls made for it.
    #[must_use]
    pub fn learn(node: &TestNode, pod: &Value, calls: &[Arc<Call>]) -> Names {
        let uid = pod["metadata"]["uid"].as_str().unwrap_or_default();
        let mut names = Names { pairs: Vec::new(), sandboxes: Vec::new(), containers: Vec::new() };
        names.add(uid, "$UID");
        names.add(&node.slot().dir().to_string_lossy(), "$SLOT");
        names.add(&node.root_dir().to_string_lossy(), "/var/lib/kubelet");
        names.add(&node.pod_logs_dir().to_string_lossy(), "/var/log/pods");
        names.add(&format!("/{}/kubepods", node.slot().cgroup()), "/kubepods");
        for call in calls {
            let config = &call.request["config"];
            if call.method == "RunPodSandbox" && config["metadata"]["uid"] == uid {
                // One that could not be made has no id.
                let Some(id) = call.response["pod_sandbox_id"].as_str() else { continue };
                names.add(id, &format!("$SANDBOX{}", names.sandboxes.len()));
                names.sandboxes.push(id.to_owned());
            }
            let sandbox = call.request["pod_sandbox_id"].as_str().unwrap_or_default();
            if call.method == "CreateContainer" && names.sandboxes.iter().any(|id| id == sandbox) {
                let Some(id) = call.response["container_id"].as_str() else { continue };
                let name = config["metadata"]["name"].as_str().unwrap_or_default();
                let attempt = config["metadata"]["attempt"].as_u64().unwrap_or_default();
                names.add(id, &format!("$CONTAINER({name},{attempt})"));
                names.containers.push(id.to_owned());
            }
        }
        names
    }

    /// Learn the addresses that a status shows.
    pub fn learn_addresses(&mut self, status: &Value) {
        if status["podIP"] != status["hostIP"] {
            self.add(status["podIP"].as_str().unwrap_or_default(), "$POD_IP");
        }
        self.add(status["hostIP"].as_str().unwrap_or_default(), "$NODE_IP");
    }

    /// The calls made for this pod, in the goldens' form.
    #[must_use]
    pub fn calls(&self, uid: &str, calls: &[Arc<Call>]) -> Vec<Value> {
        let belongs = |call: &&Arc<Call>| {
            let text = |key: &str| call.request[key].as_str().unwrap_or_default();
            let sandbox_config = &call.request["sandbox_config"]["metadata"]["uid"];
            (call.method == "RunPodSandbox" && call.request["config"]["metadata"]["uid"] == uid)
                || sandbox_config == uid
                || self.sandboxes.iter().any(|id| id == text("pod_sandbox_id"))
                || self.containers.iter().any(|id| id == text("container_id"))
        };
        calls.iter().filter(belongs).map(|call| self.call(call)).collect()
    }

    fn call(&self, call: &Call) -> Value {
        let mut request = call.request.clone();
        if let Some(fields) = request.as_object_mut() {
            // The sandbox's configuration is repeated in each call; the goldens have it once.
            fields.remove("sandbox_config");
        }
        let mut shaped = json!({ "method": call.method, "request": request });
        if let Some((code, message)) = &call.error {
            shaped["error"] = json!([code, message]);
        }
        if let Some(code) = call.response.get("exit_code").filter(|code| **code != 0) {
            shaped["exit_code"] = code.clone();
        }
        self.apply(&shaped)
    }

    /// Put the placeholders in.
    #[must_use]
    pub fn apply(&self, value: &Value) -> Value {
        match value {
            Value::String(text) => Value::String(self.text(text)),
            Value::Array(list) => list.iter().map(|item| self.apply(item)).collect(),
            Value::Object(map) => {
                map.iter().map(|(key, item)| (self.text(key), self.apply(item))).collect()
            }
            other => other.clone(),
        }
    }

    fn add(&mut self, from: &str, to: &str) {
        if !from.is_empty() && !self.pairs.iter().any(|(known, _)| known == from) {
            self.pairs.push((from.to_owned(), to.to_owned()));
            self.pairs.sort_by_key(|(from, _)| std::cmp::Reverse(from.len()));
        }
    }

    fn text(&self, text: &str) -> String {
        if is_time(text) {
            return "$TIME".to_owned();
        }
        let mut text = text.to_owned();
        for (from, to) in &self.pairs {
            text = text.replace(from, to);
        }
        random_file(&image_ids(&text))
    }
}

fn is_time(text: &str) -> bool {
    let shape = b"0000-00-00T00:00:00";
    let bytes = text.as_bytes();
    bytes.len() > shape.len()
        && bytes.iter().zip(shape).all(|(byte, shape)| match shape {
            b'0' => byte.is_ascii_digit(),
            other => byte == other,
        })
}

/// `sha256:` and 64 hex digits name an image.
fn image_ids(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("sha256:") {
        let digits = after.bytes().take_while(u8::is_ascii_hexdigit).count();
        out.push_str(before);
        if digits == 64 {
            out.push_str("$IMAGE_ID");
            rest = &after[64..];
        } else {
            out.push_str("sha256:");
            rest = after;
        }
    }
    out + rest
}

/// The termination log is a file with a random name of eight hex digits, `…/containers/NAME/RANDOM`;
/// messages of the runtime may name it too.
fn random_file(text: &str) -> String {
    let (mut out, mut rest) = (String::new(), text);
    while let Some((before, after)) = rest.split_once("/containers/") {
        out.push_str(before);
        out.push_str("/containers/");
        let hex = |text: &str| text.bytes().take_while(u8::is_ascii_hexdigit).count();
        match after.split_once('/') {
            Some((name, file)) if !name.contains(' ') && hex(file) == 8 => {
                out.push_str(name);
                out.push_str("/$RAND");
                rest = &file[8..];
            }
            _ => rest = after,
        }
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn image_ids_are_found_inside_names() {
        let text = format!("registry.k8s.io/busybox@sha256:{}", "a".repeat(64));
        assert_eq!(image_ids(&text), "registry.k8s.io/busybox@$IMAGE_ID");
        assert_eq!(image_ids("sha256:short"), "sha256:short");
    }

    #[test]
    fn times_are_known_by_their_shape() {
        assert!(is_time("2026-11-15T08:00:13Z"));
        assert!(is_time("2026-11-15T08:00:13.123456789Z"));
        assert!(!is_time("2026-11-15"));
        assert!(!is_time("Container started"));
    }

    #[test]
    fn only_termination_logs_have_random_names() {
        assert_eq!(random_file("/x/containers/main/0a1b2c3d"), "/x/containers/main/$RAND");
        assert_eq!(random_file("/x/volumes/0a1b2c3d"), "/x/volumes/0a1b2c3d");
        let message = |name: &str| format!("mount /x/containers/main/{name}:/tmp: not a directory");
        assert_eq!(random_file(&message("0a1b2c3d")), message("$RAND"));
    }
}
