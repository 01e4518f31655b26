//! Results: read from ginkgo's report, kept as tables, compared with what the Go kubelet did.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use serde::Deserialize;

use crate::real::{KubeletKind, repository_root};

/// A set of specs with recorded results.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lane {
    /// What runs in parallel.
    Main,
    /// Slow specs.
    Slow,
    /// Specs that restart the kubelet or change the node, one at a time.
    Serial,
    /// Specs of single features, as far as they run in parallel on any node.
    Features,
    /// Specs of single features that restart the kubelet or change the node.
    SerialFeatures,
    /// The slow ones outside of `NodeConformance`: pressure, density, restarts of everything.
    SlowFeatures,
    /// With the suite's own proxy between the kubelet and the runtime, which injects failures.
    RuntimeProxy,
    /// With a kubelet that has no API server.
    Standalone,
}

impl Lane {
    /// All of them.
    pub const ALL: [Lane; 8] = [
        Lane::Main,
        Lane::Slow,
        Lane::Serial,
        Lane::Features,
        Lane::SerialFeatures,
        Lane::SlowFeatures,
        Lane::RuntimeProxy,
        Lane::Standalone,
    ];

    /// ginkgo's label filter that selects it.
    #[must_use]
    pub fn labels(self) -> &'static str {
        match self {
            Lane::Main => "NodeConformance && !Serial && !Slow",
            Lane::Slow => "NodeConformance && Slow",
            Lane::Serial => "NodeConformance && Serial",
            Lane::Features => {
                "!NodeConformance && !Serial && !Slow && !Disruptive && !Flaky && !Benchmark && \
                 !Feature:StandaloneMode"
            }
            Lane::SerialFeatures => {
                "!NodeConformance && Serial && !Slow && !Flaky && !Benchmark && !Feature:CriProxy \
                 && !Feature:StandaloneMode"
            }
            Lane::SlowFeatures => "!NodeConformance && Slow && !Flaky && !Benchmark",
            Lane::RuntimeProxy => "Feature:CriProxy && !Flaky",
            Lane::Standalone => "Feature:StandaloneMode && !Flaky",
        }
    }

    /// Whether its specs restart the kubelet and so run one at a time.
    #[must_use]
    pub fn alone(self) -> bool {
        !matches!(self, Lane::Main | Lane::Slow | Lane::Features)
    }

    /// What the suite must be told to run it.
    #[must_use]
    pub fn flags(self) -> &'static [&'static str] {
        match self {
            Lane::RuntimeProxy => &[
                "--cri-proxy-enabled=true",
                "--feature-gates=CRIListStreaming=true,ImageVolumeWithDigest=true",
                "--service-feature-gates=ImageVolumeWithDigest=true",
            ],
            Lane::Standalone => &["--standalone-mode=true"],
            _ => &[],
        }
    }

    /// The file with the results of a kubelet.
    #[must_use]
    pub fn file(self, kind: KubeletKind) -> PathBuf {
        let name = match self {
            Lane::Main => "node-e2e.tsv",
            Lane::Slow => "node-e2e-slow.tsv",
            Lane::Serial => "node-e2e-serial.tsv",
            Lane::Features => "node-e2e-features.tsv",
            Lane::SerialFeatures => "node-e2e-serial-features.tsv",
            Lane::SlowFeatures => "node-e2e-slow-features.tsv",
            Lane::RuntimeProxy => "node-e2e-runtime-proxy.tsv",
            Lane::Standalone => "node-e2e-standalone.tsv",
        };
        let folder = match kind {
            KubeletKind::Go => "fixtures/golden",
            KubeletKind::Rubelet => "fixtures/conformance",
        };
        repository_root().join(folder).join(name)
    }
}

/// How one spec ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It held.
    Passed,
    /// It did not.
    Failed,
    /// The suite found it does not apply here.
    Skipped,
}

impl Verdict {
    /// The word in tables.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Verdict::Passed => "passed",
            Verdict::Failed => "failed",
            Verdict::Skipped => "skipped",
        }
    }
}

/// One spec that was run.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// How it ended.
    pub verdict: Verdict,
    /// How long it took.
    pub seconds: u64,
    /// The first line of why, and where in the suite; empty when it passed.
    pub why: String,
}

/// A spec that ended otherwise than with the Go kubelet.
#[derive(Debug, Clone)]
pub struct Difference {
    /// Its name.
    pub spec: String,
    /// With the Go kubelet.
    pub go: Verdict,
    /// Now.
    pub now: Verdict,
    /// What the suite said now.
    pub why: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct SuiteReport {
    #[serde(default)]
    spec_reports: Option<Vec<SpecReport>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct SpecReport {
    #[serde(default)]
    container_hierarchy_texts: Option<Vec<String>>,
    leaf_node_type: String,
    #[serde(default)]
    leaf_node_text: String,
    state: String,
    #[serde(default)]
    run_time: u64,
    #[serde(default)]
    failure: Option<Failure>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Failure {
    #[serde(default)]
    message: String,
    #[serde(default)]
    location: Location,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Location {
    #[serde(default)]
    file_name: String,
    #[serde(default)]
    line_number: u64,
}

/// The specs of a ginkgo report that were run, by name. What the filters left out is not in it; a
/// failed set-up of the whole suite is, under its own name.
pub fn read_report(file: &Path) -> anyhow::Result<BTreeMap<String, Outcome>> {
    let text = std::fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
    let suites: Vec<SuiteReport> = serde_json::from_slice(&text).context("ginkgo's report")?;
    ensure!(!suites.is_empty(), "no process of the suite reported; see ginkgo.log beside it");
    let specs = suites.into_iter().flat_map(|suite| suite.spec_reports.unwrap_or_default());
    Ok(specs.filter_map(outcome).collect())
}

fn outcome(spec: SpecReport) -> Option<(String, Outcome)> {
    let failure = spec.failure.unwrap_or_default();
    let verdict = match spec.state.as_str() {
        "passed" => Verdict::Passed,
        "pending" => return None,
        "skipped" if failure.message.is_empty() => return None,
        "skipped" => Verdict::Skipped,
        _ => Verdict::Failed,
    };
    if spec.leaf_node_type != "It" && verdict != Verdict::Failed {
        return None;
    }
    let mut words = spec.container_hierarchy_texts.unwrap_or_default();
    words.push(if spec.leaf_node_type == "It" { spec.leaf_node_text } else { spec.leaf_node_type });
    let why = match verdict {
        Verdict::Passed => String::new(),
        _ => {
            let file = failure.location.file_name.rsplit('/').next().unwrap_or_default();
            let message = failure.message.lines().next().unwrap_or_default().replace('\t', " ");
            format!("{message} ({file}:{})", failure.location.line_number)
        }
    };
    Some((words.join(" "), Outcome { verdict, seconds: spec.run_time / 1_000_000_000, why }))
}

/// A recorded table, by name of the spec. Empty when nothing was recorded.
pub fn read_recorded(file: &Path) -> anyhow::Result<BTreeMap<String, Outcome>> {
    let text = match std::fs::read_to_string(file) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
        Err(error) => return Err(error).with_context(|| file.display().to_string()),
    };
    let rows = text.lines().skip(1).filter_map(|line| {
        let mut cells = line.splitn(3, '\t');
        let verdict = match cells.next()? {
            "passed" => Verdict::Passed,
            "failed" => Verdict::Failed,
            "skipped" => Verdict::Skipped,
            _ => return None,
        };
        let seconds = cells.next()?.parse().ok()?;
        let outcome = Outcome { verdict, seconds, why: String::new() };
        Some((cells.next()?.to_owned(), outcome))
    });
    Ok(rows.collect())
}

/// Keep results as a table: result, seconds, spec.
pub fn record(
    file: &Path,
    kind: KubeletKind,
    results: &BTreeMap<String, Outcome>,
) -> anyhow::Result<()> {
    let head = match kind {
        KubeletKind::Go => "go",
        KubeletKind::Rubelet => "rubelet",
    };
    let mut text = format!("{head}\tseconds\tspec\n");
    for (spec, outcome) in results {
        writeln!(text, "{}\t{}\t{spec}", outcome.verdict.as_str(), outcome.seconds)?;
    }
    if let Some(folder) = file.parent() {
        std::fs::create_dir_all(folder)?;
    }
    std::fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
}

/// Every spec that ended otherwise than in the recording. One that was recorded but did not run (or
/// was skipped) counts only when `whole` says that everything should have run.
#[must_use]
pub fn compare(
    go: &BTreeMap<String, Outcome>,
    now: &BTreeMap<String, Outcome>,
    whole: bool,
) -> Vec<Difference> {
    let mut differences = Vec::new();
    for (spec, recorded) in go {
        let (verdict, why) = match now.get(spec) {
            Some(outcome) => (outcome.verdict, outcome.why.clone()),
            None if whole => (Verdict::Skipped, "did not run".to_owned()),
            None => continue,
        };
        if verdict != recorded.verdict {
            let go = recorded.verdict;
            differences.push(Difference { spec: spec.clone(), go, now: verdict, why });
        }
    }
    for (spec, outcome) in now.iter().filter(|(spec, _)| !go.contains_key(*spec)) {
        if outcome.verdict == Verdict::Failed {
            differences.push(Difference {
                spec: spec.clone(),
                go: Verdict::Skipped,
                now: outcome.verdict,
                why: outcome.why.clone(),
            });
        }
    }
    differences
}

#[cfg(test)]
mod tests {
    use super::*;

    fn results(rows: &[(&str, Verdict)]) -> BTreeMap<String, Outcome> {
        let outcome = |verdict| Outcome { verdict, seconds: 1, why: String::new() };
        rows.iter().map(|(spec, verdict)| ((*spec).to_owned(), outcome(*verdict))).collect()
    }

    #[test]
    fn a_report_has_what_ran_and_a_failed_set_up_but_not_what_filters_left_out() {
        let file = std::env::temp_dir().join(format!("report-{}.json", std::process::id()));
        let text = r#"[{"SpecReports":[
            {"LeafNodeType":"SynchronizedBeforeSuite","LeafNodeText":"","State":"failed","Failure":{"Message":"no kubelet\nmore","Location":{"FileName":"/a/suite.go","LineNumber":7}}},
            {"ContainerHierarchyTexts":["[a]","b"],"LeafNodeType":"It","LeafNodeText":"c","State":"passed","RunTime":2500000000},
            {"ContainerHierarchyTexts":["[a]"],"LeafNodeType":"It","LeafNodeText":"filtered","State":"skipped"},
            {"ContainerHierarchyTexts":["[a]"],"LeafNodeType":"It","LeafNodeText":"other","State":"skipped","Failure":{"Message":"not here"}},
            {"ContainerHierarchyTexts":["[a]"],"LeafNodeType":"It","LeafNodeText":"late","State":"timedout"}]}]"#;
        std::fs::write(&file, text).unwrap();
        let found = read_report(&file).unwrap();
        std::fs::remove_file(&file).unwrap();
        let shown: Vec<_> = found.iter().map(|(name, o)| (name.as_str(), o.verdict)).collect();
        assert_eq!(
            shown,
            [
                ("SynchronizedBeforeSuite", Verdict::Failed),
                ("[a] b c", Verdict::Passed),
                ("[a] late", Verdict::Failed),
                ("[a] other", Verdict::Skipped),
            ]
        );
        assert_eq!(found["[a] b c"].seconds, 2);
        assert_eq!(found["SynchronizedBeforeSuite"].why, "no kubelet (suite.go:7)");
    }

    #[test]
    fn only_a_whole_lane_misses_what_did_not_run() {
        let go = results(&[("one", Verdict::Passed), ("two", Verdict::Passed)]);
        let now = results(&[("one", Verdict::Passed)]);
        assert!(compare(&go, &now, false).is_empty());
        let missing = compare(&go, &now, true);
        assert_eq!(missing.len(), 1);
        assert_eq!((missing[0].spec.as_str(), missing[0].now), ("two", Verdict::Skipped));
    }

    #[test]
    fn differences_are_specs_that_changed_and_new_ones_that_fail() {
        let go = results(&[("same", Verdict::Failed), ("worse", Verdict::Passed)]);
        let now = results(&[
            ("same", Verdict::Failed),
            ("worse", Verdict::Failed),
            ("new, passes", Verdict::Passed),
            ("new, fails", Verdict::Failed),
        ]);
        let found = compare(&go, &now, true);
        let names: Vec<_> = found.iter().map(|d| d.spec.as_str()).collect();
        assert_eq!(names, ["worse", "new, fails"]);
    }

    #[test]
    fn the_recorded_main_lane_has_the_go_kubelets_421_of_425() {
        let go = read_recorded(&Lane::Main.file(KubeletKind::Go)).unwrap();
        assert_eq!(go.len(), 425);
        assert_eq!(go.values().filter(|o| o.verdict == Verdict::Passed).count(), 421);
    }
}
