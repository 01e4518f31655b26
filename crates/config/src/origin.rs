//! Where each value in force comes from.

use crate::flags::{FlagUse, Kind};
use crate::kubelet::{KubeletConfiguration, Leaf};
use serde::Serialize;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// The place a value comes from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Origin {
    /// Nobody set it.
    Default,
    /// Nobody set it, and there is no configuration file: flags alone default to less safe values.
    LegacyDefault,
    /// The configuration file.
    File(String),
    /// A drop-in.
    DropIn(String),
    /// A flag.
    Flag(&'static str),
    /// A variable.
    Environment,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::LegacyDefault => f.write_str("default without --config"),
            Self::File(path) => write!(f, "file {path}"),
            Self::DropIn(path) => write!(f, "drop-in {path}"),
            Self::Flag(name) => write!(f, "flag --{name}"),
            Self::Environment => f.write_str("environment"),
        }
    }
}

/// What the layers said, lowest first.
#[derive(Debug, Default)]
pub(crate) struct Layers<'a> {
    pub(crate) file: Option<(String, Value)>,
    pub(crate) drop_ins: Vec<(String, Value)>,
    pub(crate) uses: &'a [FlagUse],
    pub(crate) flag_gates: BTreeSet<String>,
    pub(crate) flag_values: BTreeMap<&'static str, String>,
}

const LEGACY: [&str; 4] = [
    "authentication.anonymous.enabled",
    "authentication.webhook.enabled",
    "authorization.mode",
    "readOnlyPort",
];

impl Layers<'_> {
    /// The origin of every value in force, by dotted path; maps key by key, lists whole.
    pub(crate) fn origins(&self, kubelet: &KubeletConfiguration) -> BTreeMap<String, Origin> {
        let leaves = KubeletConfiguration::leaves();
        let mut paths = Vec::new();
        let effective = serde_json::to_value(kubelet).unwrap_or_default();
        flatten(&effective, &mut Vec::new(), &mut paths);
        paths
            .into_iter()
            .filter(|path| path != &["kind"] && path != &["apiVersion"])
            .map(|path| (path.join("."), self.origin(&path, &leaves)))
            .collect()
    }

    fn origin(&self, path: &[String], leaves: &[Leaf]) -> Origin {
        if let Some(flag) = self.uses.iter().rev().find(|u| self.sets(u, path)) {
            return Origin::Flag(flag.flag.name);
        }
        for (name, document) in self.drop_ins.iter().rev() {
            if lookup(document, path).is_some_and(|value| !value.is_null()) {
                return Origin::DropIn(name.clone());
            }
        }
        let dotted = path.join(".");
        if let Some((name, document)) = &self.file {
            let zero_counts = !leaves.iter().any(|l| l.path == dotted && l.zero_means_unset);
            let said = lookup(document, path);
            if said.is_some_and(|value| !value.is_null() && (zero_counts || !is_zero(value))) {
                return Origin::File(name.clone());
            }
        } else if LEGACY.contains(&dotted.as_str()) {
            return Origin::LegacyDefault;
        }
        Origin::Default
    }

    fn sets(&self, flag_use: &FlagUse, path: &[String]) -> bool {
        let field: Vec<&str> = flag_use.flag.field.split('.').collect();
        if flag_use.flag.field.is_empty() || path.len() < field.len() {
            return false;
        }
        let (head, tail) = path.split_at(field.len());
        let within = head.iter().map(String::as_str).eq(field);
        let key_given = flag_use.flag.kind != Kind::Gates
            || tail.first().is_none_or(|key| self.flag_gates.contains(key));
        within && key_given
    }
}

fn flatten(value: &Value, path: &mut Vec<String>, paths: &mut Vec<Vec<String>>) {
    match value {
        Value::Object(object) if !object.is_empty() => {
            for (key, value) in object {
                path.push(key.clone());
                flatten(value, path, paths);
                path.pop();
            }
        }
        Value::Object(_) => {}
        _ => paths.push(path.clone()),
    }
}

/// Drop-ins match keys whatever their case; an exact match is looked for first.
fn lookup<'a>(document: &'a Value, path: &[String]) -> Option<&'a Value> {
    path.iter().try_fold(document, |value, key| {
        let object = value.as_object()?;
        let folded = || object.iter().find(|(k, _)| k.eq_ignore_ascii_case(key)).map(|(_, v)| v);
        object.get(key).or_else(folded)
    })
}

fn is_zero(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(flag) => !flag,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => {
            text.is_empty()
                || text.parse::<units::GoDuration>().is_ok_and(units::GoDuration::is_zero)
        }
        Value::Array(_) | Value::Object(_) => false,
    }
}
