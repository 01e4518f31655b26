//! Why pods wait and what happened to them, for people on the node (`rubelet explain`).

use async_trait::async_trait;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Something that is not there yet.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Wait {
    /// Who waits: `pod`, `volume "data"`, `container "web"`.
    pub who: String,
    /// For what: a step under way, or what was refused.
    pub what: String,
    /// Since when, as far as it is known.
    pub since: Option<Timestamp>,
    /// When it is tried again; absent while a try is under way or somebody else must act first.
    pub next_try: Option<Timestamp>,
    /// Why the last try failed.
    pub last_error: String,
    /// The step does not come back: its volume is quarantined.
    pub hung: bool,
}

/// Something that happened to a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PastStep {
    /// When it first happened.
    pub at: Timestamp,
    /// When it happened last, if it was repeated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_at: Option<Timestamp>,
    /// How often it happened in a row.
    pub times: u32,
    /// What happened, e.g. `sandbox started`.
    pub what: String,
    /// The container it is about, if it is about one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    /// Details: an id, a duration, an error.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub detail: String,
}

/// One pod's story.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ExplainedPod {
    /// Its UID.
    pub uid: String,
    /// `namespace/name`.
    pub name: String,
    /// Where it is in its life; `gone` when only its story is left.
    pub life: String,
    /// By running container: whether only the process at fault is killed when memory runs out (true), or all of
    /// the container (`singleProcessOOMKill` as it is in force).
    #[serde(rename = "singleProcessOOMKill", skip_serializing_if = "BTreeMap::is_empty")]
    pub single_process_oom_kill: BTreeMap<String, bool>,
    /// What it waits for; nothing when all is well.
    pub waits: Vec<Wait>,
    /// What happened, oldest first.
    pub steps: Vec<PastStep>,
}

/// The node's story.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Explained {
    /// When it was told.
    pub at: Timestamp,
    /// Every pod, also those that went last.
    pub pods: Vec<ExplainedPod>,
    /// Mounts, drivers and device plugins that do not come back, each with its step and since when.
    pub hung: Vec<String>,
    /// Calls to the container runtime that take long, each with its age.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub slow_calls: Vec<String>,
}

/// Who can tell the node's story.
#[async_trait]
pub trait Explains: Send + Sync + std::fmt::Debug {
    /// The story up to now. It waits for nothing that may hang.
    async fn explain(&self) -> Explained;
}
