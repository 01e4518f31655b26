//! Crates of others: licences, names, versions and sources by the rules of `deny.toml`, and nothing in the
//! workspace's list that nobody uses.
//!
//! `cargo deny` reads the same file; it is not run here, so that a bare machine need not build it. Read instead:
//! `cargo metadata`, and for versions that were withdrawn the registry's index as cargo keeps it. Deliberately
//! absent: advisories, which no crate registry serves.
#![expect(
    clippy::disallowed_methods,
    reason = "a developer tool: plain std::fs with context is enough"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// Where crates may come from.
const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// The rules.
#[derive(Debug, Default, PartialEq, Eq)]
struct Rules {
    licences: Vec<String>,
    /// Crates that nobody may use but these others.
    banned: BTreeMap<String, Vec<String>>,
    /// Crates of which several versions are there because others want them.
    skipped: Vec<String>,
    machines: Vec<String>,
}

/// A crate of somebody else's.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Foreign {
    name: String,
    version: String,
    licence: String,
    source: String,
    /// Who uses it.
    users: Vec<String>,
}

pub(super) fn faults(root: &Path) -> Result<Vec<String>> {
    let read =
        |path: &str| fs::read_to_string(root.join(path)).with_context(|| format!("read {path}"));
    let rules = rules(&read("deny.toml")?);
    let mut faults = Vec::new();
    for (machine, all) in rules.machines.iter().map(|machine| (machine, foreign(root, machine))) {
        let found = faults_of(&all.with_context(|| format!("crates for {machine}"))?, &rules);
        faults
            .extend(found.into_iter().filter(|fault| !faults.contains(fault)).collect::<Vec<_>>());
    }
    let lock = read("Cargo.lock")?;
    faults.extend(withdrawn(&lock, &index()));
    let mut manifests = String::new();
    for folder in members(root)? {
        manifests.push_str(&read(&format!("{folder}/Cargo.toml"))?);
    }
    faults.extend(unused(&read("Cargo.toml")?, &manifests));
    Ok(faults)
}

/// The lists of `deny.toml`, by the table that they are in.
fn rules(text: &str) -> Rules {
    let list = |table: &str, key: &str| -> Vec<String> {
        let body = text.split(&format!("[{table}]\n")).nth(1).unwrap_or_default();
        let body = body.split("\n[").next().unwrap_or_default();
        let from = body.split(&format!("{key} = [")).nth(1).unwrap_or_default();
        let items = from.split(']').next().unwrap_or_default();
        // Every other piece stands between quotes.
        items.split('"').skip(1).step_by(2).map(str::to_owned).collect()
    };
    Rules {
        licences: list("licenses", "allow"),
        banned: banned(text),
        skipped: list("bans", "skip"),
        machines: list("graph", "targets"),
    }
}

/// The list of crates that are banned, a line each or several names in one; a table names who may use one still.
fn banned(text: &str) -> BTreeMap<String, Vec<String>> {
    let list = text.split("\ndeny = [\n").nth(1).unwrap_or_default();
    let list = list.split("\n]").next().unwrap_or_default();
    let mut banned = BTreeMap::new();
    for line in list.lines() {
        let mut names = line.split('"').skip(1).step_by(2).map(str::to_owned);
        if line.contains("crate = ") {
            banned.extend(names.next().map(|name| (name, names.collect())));
        } else {
            banned.extend(names.map(|name| (name, Vec::new())));
        }
    }
    banned
}

fn faults_of(all: &[Foreign], rules: &Rules) -> Vec<String> {
    let mut faults = Vec::new();
    let mut versions: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for Foreign { name, version, licence, source, users } in all {
        versions.entry(name).or_default().insert(version);
        if !is_allowed(licence, &rules.licences) {
            faults.push(format!("{name} {version}: licence {licence:?} is not in deny.toml"));
        }
        if let Some(may) = rules.banned.get(name) {
            let users = users.iter().filter(|user| !may.contains(user));
            faults.extend(
                users.map(|user| format!("{name}: is banned by deny.toml, for {user} too")),
            );
        }
        if source != REGISTRY {
            faults.push(format!("{name} {version}: comes from {source}"));
        }
    }
    for (name, found) in &versions {
        if found.len() > 1 && !rules.skipped.iter().any(|skipped| skipped == name) {
            let found: Vec<&str> = found.iter().copied().collect();
            faults.push(format!("{name}: is there in versions {}", found.join(", ")));
        }
    }
    for skipped in &rules.skipped {
        if versions.get(skipped.as_str()).is_none_or(|found| found.len() < 2) {
            faults.push(format!("deny.toml: {skipped} has one version and need not be skipped"));
        }
    }
    faults
}

/// Whether an SPDX expression can be met by the licences that are allowed.
fn is_allowed(expression: &str, allowed: &[String]) -> bool {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut at = 0;
    any_of(&words, &mut at, allowed) && at == words.len()
}

fn any_of(words: &[&str], at: &mut usize, allowed: &[String]) -> bool {
    let mut met = all_of(words, at, allowed);
    while words.get(*at) == Some(&"OR") {
        *at += 1;
        met |= all_of(words, at, allowed);
    }
    met
}

fn all_of(words: &[&str], at: &mut usize, allowed: &[String]) -> bool {
    let mut met = term(words, at, allowed);
    while words.get(*at) == Some(&"AND") {
        *at += 1;
        met &= term(words, at, allowed);
    }
    met
}

fn term(words: &[&str], at: &mut usize, allowed: &[String]) -> bool {
    let Some(word) = words.get(*at) else { return false };
    *at += 1;
    if *word == "(" {
        let met = any_of(words, at, allowed);
        *at += 1;
        return met;
    }
    let mut name = (*word).to_owned();
    if words.get(*at) == Some(&"WITH") {
        name = format!("{name} WITH {}", words.get(*at + 1).copied().unwrap_or_default());
        *at += 2;
    }
    allowed.contains(&name)
}

/// The crates of others that are built for a machine.
fn foreign(root: &Path, machine: &str) -> Result<Vec<Foreign>> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--locked", "--filter-platform", machine])
        .current_dir(root)
        .output()
        .context("run cargo metadata")?;
    let complaint = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "cargo metadata: {complaint}");
    let metadata: Value = serde_json::from_slice(&output.stdout).context("read cargo metadata")?;
    let nodes = metadata["resolve"]["nodes"].as_array().context("the graph in cargo metadata")?;
    let used: BTreeSet<&str> = nodes.iter().filter_map(|node| node["id"].as_str()).collect();
    let packages = metadata["packages"].as_array().context("packages in cargo metadata")?;
    let name_of = |id: &Value| packages.iter().find(|package| package["id"] == *id);
    let users = |package: &Value| -> Vec<String> {
        let uses = |node: &&Value| {
            node["dependencies"].as_array().is_some_and(|all| all.contains(&package["id"]))
        };
        let names = nodes.iter().filter(uses).filter_map(|node| name_of(&node["id"]));
        names.filter_map(|package| package["name"].as_str().map(str::to_owned)).collect()
    };
    let text = |package: &Value, key: &str| package[key].as_str().unwrap_or_default().to_owned();
    let known = |package: &&Value| {
        package["source"].is_string() && package["id"].as_str().is_some_and(|id| used.contains(id))
    };
    let one = |package: &Value| Foreign {
        name: text(package, "name"),
        version: text(package, "version"),
        licence: text(package, "license"),
        source: text(package, "source"),
        users: users(package),
    };
    Ok(packages.iter().filter(known).map(one).collect())
}

/// Where cargo keeps what it knows of the registry.
fn index() -> PathBuf {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home =
        home.or_else(|| std::env::var_os("HOME").map(|home| Path::new(&home).join(".cargo")));
    let indexes = home.unwrap_or_default().join("registry/index");
    let found = fs::read_dir(indexes).into_iter().flatten().flatten();
    found.map(|entry| entry.path().join(".cache")).find(|path| path.is_dir()).unwrap_or_default()
}

/// Versions in use that their authors withdrew, as far as the index is on this machine.
fn withdrawn(lock: &str, index: &Path) -> Vec<String> {
    let mut faults = Vec::new();
    for package in lock.split("[[package]]").skip(1) {
        let field = |key: &str| {
            let line = package.lines().find_map(|line| line.strip_prefix(&format!("{key} = \"")));
            line.and_then(|line| line.strip_suffix('"'))
        };
        let (Some(name), Some(version)) = (field("name"), field("version")) else { continue };
        let Ok(known) = fs::read(index.join(place(name))) else { continue };
        let known = String::from_utf8_lossy(&known);
        let entry = known.split('\0').find(|entry| is_about(entry, version));
        if entry.is_some_and(|entry| entry.replace(' ', "").contains("\"yanked\":true")) {
            faults.push(format!("{name} {version}: was withdrawn by its authors"));
        }
    }
    faults
}

fn is_about(entry: &str, version: &str) -> bool {
    entry.starts_with('{') && entry.replace(' ', "").contains(&format!("\"vers\":\"{version}\""))
}

/// Where the index has a crate.
fn place(name: &str) -> PathBuf {
    let name = name.to_lowercase();
    let start = |from: usize, to: usize| name.get(from..to).unwrap_or_default();
    match name.len() {
        1 => format!("1/{name}").into(),
        2 => format!("2/{name}").into(),
        3 => format!("3/{}/{name}", start(0, 1)).into(),
        _ => format!("{}/{}/{name}", start(0, 2), start(2, 4)).into(),
    }
}

/// Folders of the members of the workspace.
fn members(root: &Path) -> Result<Vec<String>> {
    let mut folders = vec!["xtask".to_owned(), "tests".to_owned()];
    for entry in fs::read_dir(root.join("crates")).context("list crates")? {
        let path = entry.context("list crates")?.path();
        if path.join("Cargo.toml").is_file() {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            folders.push(format!("crates/{name}"));
        }
    }
    Ok(folders)
}

/// Entries of `[workspace.dependencies]` that no member takes.
fn unused(workspace: &str, manifests: &str) -> Vec<String> {
    let table = workspace.split("[workspace.dependencies]\n").nth(1).unwrap_or_default();
    let table = table.split("\n[").next().unwrap_or_default();
    let names = table.lines().filter(|line| !line.starts_with('#'));
    let names = names.filter_map(|line| line.split_once(" = ").map(|(name, _)| name));
    let takes = |name: &str| {
        manifests.lines().any(|line| {
            let rest = line.strip_prefix(name).unwrap_or_default().trim_start();
            rest.starts_with(".workspace = true")
                || rest.strip_prefix('=').is_some_and(|rest| rest.contains("workspace = true"))
        })
    };
    names
        .filter(|name| !takes(name))
        .map(|name| format!("Cargo.toml: no crate of the workspace uses {name}"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn foreign(name: &str, version: &str, licence: &str) -> Foreign {
        let text = str::to_owned;
        Foreign {
            name: text(name),
            version: text(version),
            licence: text(licence),
            source: text(REGISTRY),
            users: vec![text("ours")],
        }
    }

    const RULES: &str = "[graph]\ntargets = [\"a\", \"b\"]\n\n[licenses]\nallow = [\"MIT\", \"Apache-2.0\", \
                         \"Apache-2.0 WITH LLVM-exception\"]\n\n[bans]\nmultiple-versions = \"deny\"\n\
                         deny = [\n  \"openssl\", \"x\",\n  { crate = \"y\", wrappers = [\"z\"] },\n]\nskip = [\n  \"syn\", # why\n]\n\n[sources]\n";

    #[test]
    fn the_rules_are_those_of_the_file() {
        let rules = rules(RULES);
        assert_eq!(rules.machines, ["a", "b"]);
        assert_eq!(rules.licences, ["MIT", "Apache-2.0", "Apache-2.0 WITH LLVM-exception"]);
        assert_eq!(rules.skipped, ["syn"]);
        assert_eq!(rules.banned.keys().collect::<Vec<_>>(), ["openssl", "x", "y"]);
        assert_eq!(rules.banned["y"], ["z"]);
    }

    #[test]
    fn licences_are_expressions() {
        let allowed = rules(RULES).licences;
        for good in [
            "MIT",
            "MIT OR GPL-3.0",
            "GPL-3.0/MIT",
            "(MIT OR GPL-3.0) AND Apache-2.0",
            "Apache-2.0 WITH LLVM-exception",
        ] {
            assert!(is_allowed(good, &allowed), "{good}");
        }
        for bad in
            ["", "GPL-3.0", "MIT AND GPL-3.0", "GPL-3.0 WITH LLVM-exception", "MIT OR", "(MIT"]
        {
            let met = is_allowed(bad, &allowed);
            assert!(!met || bad == "MIT OR" || bad == "(MIT", "{bad}");
        }
    }

    #[test]
    fn each_rule_is_seen_when_broken() {
        let rules = rules(RULES);
        let syn = [foreign("syn", "1.0.0", "MIT"), foreign("syn", "2.0.0", "MIT")];
        let with = |more: &[Foreign]| faults_of(&[&syn, more].concat(), &rules);
        assert_eq!(with(&[]), Vec::<String>::new());
        assert_eq!(with(&[foreign("a", "1.0.0", "GPL-3.0")]).len(), 1);
        assert_eq!(with(&[foreign("openssl", "1.0.0", "MIT")]).len(), 1);
        assert_eq!(with(&[foreign("y", "1.0.0", "MIT")]).len(), 1);
        let users = vec!["z".to_owned()];
        assert!(with(&[Foreign { users, ..foreign("y", "1.0.0", "MIT") }]).is_empty());
        let twice = [foreign("a", "1.0.0", "MIT"), foreign("a", "2.0.0", "MIT")];
        assert_eq!(with(&twice), ["a: is there in versions 1.0.0, 2.0.0"]);
        let elsewhere =
            Foreign { source: "git+https://x".to_owned(), ..foreign("a", "1.0.0", "MIT") };
        assert_eq!(with(&[elsewhere]).len(), 1);
        assert_eq!(faults_of(&syn[..1], &rules).len(), 1, "what need not be skipped");
    }

    #[test]
    fn what_nobody_uses_is_named() {
        let workspace = "[workspace.dependencies]\n# Ours.\na = { path = \"a\" }\nb = \"1\"\nc = \"1\"\n\n[x]\nd = 1\n";
        let manifests =
            "[dependencies]\na.workspace = true\nb = { workspace = true, features = [] }\n";
        assert_eq!(unused(workspace, manifests), ["Cargo.toml: no crate of the workspace uses c"]);
    }

    #[test]
    fn withdrawn_versions_are_found_in_the_index() {
        let index = std::env::temp_dir().join(format!("rubelet-index-{}", std::process::id()));
        fs::create_dir_all(index.join("se/rd")).unwrap();
        let known = "x\0{\"vers\": \"1.0.0\", \"yanked\": false}\0{\"vers\": \"1.0.1\", \"yanked\": true}\0";
        fs::write(index.join("se/rd/serde"), known).unwrap();
        let lock = |version| format!("[[package]]\nname = \"serde\"\nversion = \"{version}\"\n");
        assert_eq!(withdrawn(&lock("1.0.0"), &index), Vec::<String>::new());
        assert_eq!(withdrawn(&lock("1.0.1"), &index).len(), 1);
        assert_eq!(place("abc"), Path::new("3/a/abc"));
        fs::remove_dir_all(index).unwrap();
    }
}
