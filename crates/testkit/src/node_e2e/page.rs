//! `docs/conformance.md`, generated from the recorded results of both kubelets.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;

use anyhow::Context;

use super::{Lane, Verdict, compare, read_recorded};
use crate::real::{KubeletKind, repository_root};

/// Why specs fail that we know about: `reason<TAB>spec`.
const REASONS: &str = "fixtures/conformance/reasons.tsv";
/// How rubelet's results of a lane came about, where not in one run: `note<TAB>lane's label filter`.
const NOTES: &str = "fixtures/conformance/notes.tsv";

/// Write the page; where it is.
pub fn write_page() -> anyhow::Result<PathBuf> {
    let root = repository_root();
    let pins = std::fs::read_to_string(root.join("parts/pins.env")).context("parts/pins.env")?;
    let reasons = std::fs::read_to_string(root.join(REASONS)).unwrap_or_default();
    let notes = std::fs::read_to_string(root.join(NOTES)).unwrap_or_default();
    let (reasons, notes) = (by_second(&reasons), by_second(&notes));
    let pin = |name: &str| {
        pins.lines().find_map(|line| line.strip_prefix(&format!("{name}="))).unwrap_or("?")
    };
    let mut page = format!(
        "# Conformance\n\n\
         Kubernetes' own node e2e suite, run by `make node-e2e` (generated, do not edit).\n\n\
         - written on {}\n- suite and Go kubelet: {}\n- container runtime: containerd {}\n\
         - machine: cgroup {}, no systemd\n\n\
         | lane | kubelet | passed | failed | skipped |\n|---|---|---|---|---|\n",
        jiff::Zoned::now().date(),
        pin("KUBERNETES_VERSION"),
        pin("CONTAINERD_VERSION"),
        if std::path::Path::new("/sys/fs/cgroup/cgroup.controllers").is_file() { 2 } else { 1 },
    );
    let mut lists = String::new();
    for lane in Lane::ALL {
        let go = read_recorded(&lane.file(KubeletKind::Go))?;
        let ours = read_recorded(&lane.file(KubeletKind::Rubelet))?;
        for (name, results) in [("Go", &go), ("rubelet", &ours)] {
            let count = |verdict| results.values().filter(|o| o.verdict == verdict).count();
            if results.is_empty() {
                writeln!(page, "| `{}` | {name} | not recorded | | |", lane.labels())?;
                continue;
            }
            writeln!(
                page,
                "| `{}` | {name} | {} | {} | {} |",
                lane.labels(),
                count(Verdict::Passed),
                count(Verdict::Failed),
                count(Verdict::Skipped),
            )?;
        }
        if ours.is_empty() {
            continue;
        }
        writeln!(lists, "\n## `{}`\n", lane.labels())?;
        if let Some(note) = notes.get(lane.labels()) {
            writeln!(lists, "{note}\n")?;
        }
        let differences = compare(&go, &ours, true);
        if differences.is_empty() && go.is_empty() {
            writeln!(lists, "No spec fails; the Go kubelet has not been recorded.")?;
        } else if differences.is_empty() {
            writeln!(lists, "Every spec ends as with the Go kubelet.")?;
        } else {
            writeln!(lists, "| spec | Go | rubelet | reason |\n|---|---|---|---|")?;
        }
        for found in &differences {
            let reason = reasons.get(found.spec.as_str()).unwrap_or(&"not looked into yet");
            let spec = found.spec.replace('|', "\\|");
            let before = go.get(&found.spec).map_or("not run", |outcome| outcome.verdict.as_str());
            writeln!(lists, "| {spec} | {before} | {} | {reason} |", found.now.as_str())?;
        }
        let both: Vec<&String> = go
            .iter()
            .filter(|(spec, outcome)| {
                outcome.verdict == Verdict::Failed
                    && ours.get(*spec).is_some_and(|o| o.verdict == Verdict::Failed)
            })
            .map(|(spec, _)| spec)
            .collect();
        if !both.is_empty() {
            writeln!(lists, "\nFail with both, for want of something on the machine:\n")?;
            for spec in both {
                let reason = reasons.get(spec.as_str()).map(|r| format!(": {r}"));
                writeln!(lists, "- {spec}{}", reason.unwrap_or_default())?;
            }
        }
    }
    let file = root.join("docs/conformance.md");
    if let Some(folder) = file.parent() {
        std::fs::create_dir_all(folder)?;
    }
    std::fs::write(&file, page + &lists)?;
    Ok(file)
}

/// Lines of two cells, by the second.
fn by_second(text: &str) -> BTreeMap<&str, &str> {
    text.lines()
        .filter_map(|line| line.split_once('\t').map(|(what, whose)| (whose, what)))
        .collect()
}
