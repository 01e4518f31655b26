//! Command lines and configuration files to put to both kubelets, and what each makes of them.
//!
//! A [`Case`] is what is handed in; [`Bench`] runs one kubelet on it in namespaces of its own;
//! [`Answer`] is what can be compared: exit code, printed text, notices, log lines, the fatal
//! error, flags as shown, and the settings in force. A good configuration ends at the runtime's
//! socket, which is not there; on a [`Stage`] there is one, and what is found to be wrong only with
//! a runtime can be compared as well.

mod answer;
mod bench;
mod documents;
mod fields;
mod lines;
mod material;
mod odd;
mod pools;
mod related;
mod rng;
mod settings;
mod spelled;
mod stage;

pub use answer::{Answer, differences};
pub use bench::Bench;
pub use lines::make;
pub use rng::Rng;
pub use settings::make as make_for_runtime;
pub use stage::Stage;

use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// Arguments that come before those of every case.
pub const COMMON: [&str; 5] = [
    "-v=5",
    "--root-dir=/mnt/root",
    "--cert-dir=/mnt/pki",
    "--fail-cgroupv1=false",
    "--container-runtime-endpoint=unix:///mnt/none.sock",
];

/// What is handed to a kubelet.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Case {
    /// The arguments after [`COMMON`].
    pub args: Vec<String>,
    /// Files by their path below the working folder, which is `/mnt`. A path that ends in a slash
    /// is a folder, one that begins with `!` is executable, one that begins with `@` a link.
    pub files: BTreeMap<String, Vec<u8>>,
}

impl Case {
    /// Only arguments.
    #[must_use]
    pub fn of(args: &[&str]) -> Case {
        let args = args.iter().map(|arg| (*arg).to_owned()).collect();
        Case { args, files: BTreeMap::new() }
    }

    /// With one more file.
    #[must_use]
    pub fn file(mut self, path: &str, content: impl Into<Vec<u8>>) -> Case {
        self.files.insert(path.to_owned(), content.into());
        self
    }

    /// With one more argument.
    #[must_use]
    pub fn arg(mut self, arg: impl Into<String>) -> Case {
        self.args.push(arg.into());
        self
    }

    /// Of one JSON object, as [`Self::to_json`] writes it.
    #[must_use]
    pub fn from_json(value: &Value) -> Option<Case> {
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let args = value["args"].as_array()?.iter().map(text).collect::<Option<_>>()?;
        let files = value["files"].as_object()?.iter();
        let bytes = |content: &Value| match content {
            Value::Array(bytes) => bytes.iter().map(|b| u8::try_from(b.as_u64()?).ok()).collect(),
            content => text(content).map(String::into_bytes),
        };
        let files = files.map(|(path, content)| Some((path.clone(), bytes(content)?)));
        Some(Case { args, files: files.collect::<Option<_>>()? })
    }

    /// As one JSON object; content that is no text is a list of bytes.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let files: Map<String, Value> = self
            .files
            .iter()
            .map(|(path, content)| {
                let value = match std::str::from_utf8(content) {
                    Ok(text) => json!(text),
                    Err(_) => json!(content),
                };
                (path.clone(), value)
            })
            .collect();
        json!({"args": self.args, "files": files})
    }
}
