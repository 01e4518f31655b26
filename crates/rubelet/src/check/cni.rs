//! Pod networking: a network configuration and the programs it names.

use super::Finding;
use ports::Roots;
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;

const SUBJECT: &str = "network";

/// Looks at the network configuration that runtimes take by default: the first file by name.
pub(super) fn check(roots: &Roots, programs: &[&str]) -> Vec<Finding> {
    let folder = roots.etc.join("cni/net.d");
    let names = sys::fs::list_dir(&folder).unwrap_or_default();
    let usable = |name: &&String| {
        [".conf", ".conflist", ".json"].iter().any(|extension| name.ends_with(extension))
    };
    let Some(name) = names.iter().find(usable) else {
        return vec![Finding::warning(
            SUBJECT,
            format!("there is no network configuration in {}", folder.display()),
            "install a network plugin (CNI); without one only pods on the host's network run",
        )];
    };
    let path = folder.join(name);
    let parsed = sys::fs::read(&path)
        .map_err(|error| error.to_string())
        .and_then(|bytes| serde_json::from_slice(&bytes).map_err(|error| error.to_string()));
    let document: Value = match parsed {
        Ok(document) => document,
        Err(error) => {
            return vec![Finding::error(
                SUBJECT,
                format!("{}: {error}", path.display()),
                "correct the file, or let the network plugin write it again",
            )];
        }
    };
    let types = types_of(&document);
    if types.is_empty() {
        return vec![Finding::error(
            SUBJECT,
            format!("{} names no plugin", path.display()),
            "correct the file, or let the network plugin write it again",
        )];
    }
    let there = |program: &String| {
        programs
            .iter()
            .any(|folder| sys::fs::try_exists(Path::new(folder).join(program)).unwrap_or(false))
    };
    let missing: Vec<String> = types.iter().filter(|program| !there(program)).cloned().collect();
    if missing.is_empty() {
        let list: Vec<String> = types.into_iter().collect();
        return vec![Finding::ok(SUBJECT, format!("{} with {}", path.display(), list.join(" ")))];
    }
    vec![Finding::warning(
        SUBJECT,
        format!("{} names programs that are not there: {}", path.display(), missing.join(" ")),
        format!("install them in {}", programs.first().unwrap_or(&"/opt/cni/bin")),
    )]
}

fn types_of(document: &Value) -> BTreeSet<String> {
    let plugins = document.get("plugins").and_then(Value::as_array);
    let single = std::slice::from_ref(document);
    let plugins = plugins.map_or(single, Vec::as_slice);
    let mut types = BTreeSet::new();
    for plugin in plugins {
        let inner = plugin.get("ipam").and_then(|ipam| ipam.get("type"));
        let names = [plugin.get("type"), inner].into_iter().flatten().filter_map(Value::as_str);
        types.extend(names.map(str::to_owned));
    }
    types
}
