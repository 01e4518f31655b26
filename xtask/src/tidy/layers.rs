//! Dependencies point down only, read from `cargo metadata`.
//!
//! ```text
//! L3  agent  rubelet
//! L2  images  pods  volumes  resources  node  stats  server      not on each other
//! L1  ports  telemetry  sys  cri  sockets  kubeapi  probes       not on engine
//! L0  units  api  proto  engine  config                  no runtime, no I/O, no logging
//! ```
//!
//! Dev-dependencies are free: tests may look at anything.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// Where a crate stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Layer {
    Pure,
    Edge,
    Tasks,
    Top,
    /// Testkit, end-to-end tests, chores: used by nothing that ships.
    Outside,
}

/// The layer of each crate; a crate that is not here is a fault.
const CRATES: [(&str, Layer); 24] = [
    ("units", Layer::Pure),
    ("api", Layer::Pure),
    ("proto", Layer::Pure),
    ("engine", Layer::Pure),
    ("config", Layer::Pure),
    ("ports", Layer::Edge),
    ("telemetry", Layer::Edge),
    ("sys", Layer::Edge),
    ("cri", Layer::Edge),
    ("sockets", Layer::Edge),
    ("kubeapi", Layer::Edge),
    ("probes", Layer::Edge),
    ("images", Layer::Tasks),
    ("pods", Layer::Tasks),
    ("volumes", Layer::Tasks),
    ("resources", Layer::Tasks),
    ("node", Layer::Tasks),
    ("stats", Layer::Tasks),
    ("server", Layer::Tasks),
    ("agent", Layer::Top),
    ("rubelet", Layer::Top),
    ("testkit", Layer::Outside),
    ("tests", Layer::Outside),
    ("xtask", Layer::Outside),
];

/// Crates of others that mean time, I/O or logging, which a pure crate must not name. (`proto` names tonic,
/// whose code it generates, and nothing of the kind itself.)
const IMPURE: [&str; 8] =
    ["tokio", "tokio-util", "tracing", "rustix", "libc", "hyper", "kube", "inotify"];

/// One crate of the workspace and what it ships with.
struct Package {
    name: String,
    dependencies: Vec<String>,
}

pub(super) fn faults(root: &Path) -> Result<Vec<String>> {
    Ok(packages(root)?.iter().flat_map(faults_of).collect())
}

fn faults_of(package: &Package) -> Vec<String> {
    let name = &package.name;
    let Some(layer) = layer_of(name) else {
        return vec![format!("{name}: crate has no layer; add it to xtask/src/tidy/layers.rs")];
    };
    let mut faults = Vec::new();
    for dependency in &package.dependencies {
        if layer == Layer::Pure && IMPURE.contains(&dependency.as_str()) {
            faults.push(format!("{name} is pure and must not use {dependency}"));
        }
        let Some(below) = layer_of(dependency) else { continue };
        if below == Layer::Outside && layer != Layer::Outside {
            faults.push(format!("{name} ships and must not use {dependency}"));
        } else if below > layer {
            faults
                .push(format!("{name} ({layer:?}) must not use {dependency} ({below:?}) above it"));
        } else if layer == Layer::Tasks && below == Layer::Tasks {
            faults.push(format!("{name} and {dependency} must meet in ports only"));
        } else if layer == Layer::Edge && dependency == "engine" {
            faults.push(format!("{name} is an edge and must not use engine"));
        }
    }
    faults
}

fn layer_of(name: &str) -> Option<Layer> {
    CRATES.iter().find(|(known, _)| *known == name).map(|(_, layer)| *layer)
}

fn packages(root: &Path) -> Result<Vec<Package>> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--no-deps", "--offline"])
        .current_dir(root)
        .output()
        .context("run cargo metadata")?;
    let complaint = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "cargo metadata: {complaint}");
    let metadata: Value = serde_json::from_slice(&output.stdout).context("read cargo metadata")?;
    let packages = metadata["packages"].as_array().context("packages in cargo metadata")?;
    packages.iter().map(package).collect()
}

fn package(package: &Value) -> Result<Package> {
    let name = package["name"].as_str().context("name of a package")?.to_owned();
    let all = package["dependencies"].as_array().context("dependencies of a package")?;
    let shipped = all.iter().filter(|dependency| dependency["kind"] != "dev");
    let dependencies = shipped.filter_map(|d| d["name"].as_str().map(str::to_owned)).collect();
    Ok(Package { name, dependencies })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults_with(name: &str, dependencies: &[&str]) -> Vec<String> {
        let dependencies = dependencies.iter().map(|d| (*d).to_owned()).collect();
        faults_of(&Package { name: name.to_owned(), dependencies })
    }

    #[test]
    fn a_dependency_downwards_is_fine() {
        assert!(faults_with("pods", &["engine", "cri", "ports", "tokio"]).is_empty());
        assert!(faults_with("cri", &["telemetry", "proto"]).is_empty());
        assert!(faults_with("agent", &["pods", "volumes"]).is_empty());
    }

    #[test]
    fn each_forbidden_edge_is_named() {
        for (name, dependency) in [
            ("engine", "cri"),
            ("engine", "tokio"),
            ("cri", "engine"),
            ("cri", "pods"),
            ("pods", "volumes"),
            ("pods", "agent"),
            ("node", "testkit"),
            ("newcomer", "units"),
        ] {
            assert_eq!(faults_with(name, &[dependency]).len(), 1, "{name} on {dependency}");
        }
    }
}
