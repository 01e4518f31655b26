//! Why pods wait and what happened to them, for operators on the node (`rubelet explain`).

use async_trait::async_trait;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Something a pod waits for.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Wait {
    /// Who waits: `pod`, `volume "data"`, `container "web"`.
    pub who: String,
    /// For what: a step in progress, or one that was refused.
    pub what: String,
    /// Since when, as far as it is known.
    pub since: Option<Timestamp>,
    /// When it is tried again; absent while an attempt runs or another component must act first.
    pub next_try: Option<Timestamp>,
    /// Why the last attempt failed.
    pub last_error: String,
    /// The step hangs: its volume is quarantined.
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

/// The explanation of one pod.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ExplainedPod {
    /// Its UID.
    pub uid: String,
    /// `namespace/name`.
    pub name: String,
    /// Its life cycle stage; `gone` when only its history is left.
    pub life: String,
    /// By running container: whether only the process at fault is killed when memory runs out (true), or all of
    /// the container (`singleProcessOOMKill` as it is in force).
    #[serde(rename = "singleProcessOOMKill", skip_serializing_if = "BTreeMap::is_empty")]
    pub single_process_oom_kill: BTreeMap<String, bool>,
    /// What it waits for; empty when it waits for nothing.
    pub waits: Vec<Wait>,
    /// What happened, oldest first.
    pub steps: Vec<PastStep>,
}

/// The explanation of all pods of the node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Explained {
    /// When it was made.
    pub at: Timestamp,
    /// Every pod, including those that were removed recently.
    pub pods: Vec<ExplainedPod>,
    /// Mounts, drivers and device plugins that hang, each with its step and since when.
    pub hung: Vec<String>,
    /// Calls to the container runtime that take long, each with its age.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub slow_calls: Vec<String>,
}

/// Source of the explanation.
#[async_trait]
pub trait Explains: Send + Sync + std::fmt::Debug {
    /// The explanation of the present state. Waits for nothing that may hang.
    async fn explain(&self) -> Explained;
}
