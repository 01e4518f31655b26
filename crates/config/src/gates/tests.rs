//! Gates against the parity table.

use super::*;

const TABLE: &str =
    include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/parity/gates.tsv"));

fn map(gates: &[(&str, bool)]) -> BTreeMap<String, bool> {
    gates.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect()
}

#[test]
fn every_row_of_the_parity_table_is_here_and_no_other() {
    let mut rows = 0;
    for line in TABLE.lines().skip(1) {
        let columns: Vec<&str> = line.split('\t').collect();
        let gate = find(columns[0]).unwrap_or_else(|| panic!("{} is missing", columns[0]));
        assert_eq!(gate.default.to_string(), columns[1], "{}", gate.name);
        let stage = if gate.stage == Stage::Ga { "GA" } else { gate.stage.as_str() };
        assert_eq!(stage, columns[2], "{}", gate.name);
        assert_eq!(gate.locked, columns[3] == "yes", "{}", gate.name);
        assert_eq!(gate.depends_on.join(","), columns[4], "{}", gate.name);
        rows += 1;
    }
    assert_eq!(rows, 242);
    assert_eq!(all().len(), rows);
}

#[test]
fn what_a_special_gate_did_first_stays() {
    let mut gates = Gates::default();
    assert!(gates.enabled("KubeletEnsureSecretPulledImages"));
    gates.set(&map(&[("AllBeta", false)]), &mut Vec::new()).unwrap();
    gates.set(&map(&[("AllBeta", true)]), &mut Vec::new()).unwrap();
    assert!(!gates.enabled("KubeletEnsureSecretPulledImages"));
    gates.set(&map(&[("KubeletEnsureSecretPulledImages", true)]), &mut Vec::new()).unwrap();
    assert!(gates.enabled("KubeletEnsureSecretPulledImages"));
}

#[test]
fn a_locked_gate_takes_only_its_default() {
    for gate in all().iter().filter(|gate| gate.locked) {
        let mut gates = Gates::default();
        let faults = gates.set(&map(&[(gate.name, !gate.default)]), &mut Vec::new()).unwrap_err();
        let text = format!(
            "cannot set feature gate {} to {}, feature is locked to {}",
            gate.name, !gate.default, gate.default
        );
        assert_eq!(faults, [text]);
        assert_eq!(gates, Gates::default());
        gates.set(&map(&[(gate.name, gate.default)]), &mut Vec::new()).unwrap();
    }
}

#[test]
fn every_unlocked_gate_can_be_set_together_with_what_it_needs() {
    for gate in all().iter().filter(|gate| !gate.locked && !gate.name.starts_with("All")) {
        let mut wanted = map(&[(gate.name, true)]);
        let mut open: Vec<&str> = gate.depends_on.to_vec();
        while let Some(name) = open.pop() {
            wanted.insert(name.to_owned(), true);
            open.extend(find(name).unwrap().depends_on);
        }
        let mut gates = Gates::default();
        let mut lines = Vec::new();
        gates.set(&wanted, &mut lines).unwrap_or_else(|e| panic!("{}: {e:?}", gate.name));
        assert!(gates.enabled(gate.name));
        let leaving = wanted.keys().filter_map(|name| find(name));
        let expected = leaving.filter(|g| matches!(g.stage, Stage::Ga | Stage::Deprecated)).count();
        assert_eq!(lines.len(), expected, "{}", gate.name);
    }
}

#[test]
fn an_unknown_gate_is_told_alone() {
    let faults =
        Gates::default().set(&map(&[("Nope", true), ("AAA", false)]), &mut Vec::new()).unwrap_err();
    assert_eq!(faults, ["unrecognized feature gate: AAA"]);
}

#[test]
fn a_gate_needs_the_gates_it_depends_on() {
    let faults =
        Gates::default().set(&map(&[("DynamicResourceAllocation", false)]), &mut Vec::new());
    let gate = find("DynamicResourceAllocation").unwrap();
    if gate.locked {
        assert!(faults.is_err());
    }
    let faults = Gates::default()
        .set(&map(&[("ClusterTrustBundleProjection", true)]), &mut Vec::new())
        .unwrap_err();
    assert_eq!(
        faults,
        ["ClusterTrustBundleProjection is enabled, but depends on features that are disabled: \
          [ClusterTrustBundle]"]
    );
}

#[test]
fn all_alpha_sets_what_is_not_set_itself() {
    let mut gates = Gates::default();
    let mut wanted = map(&[("AllAlpha", true), ("AllBeta", true)]);
    wanted.insert("CRIListStreaming".to_owned(), false);
    gates.set(&wanted, &mut Vec::new()).unwrap();
    assert!(gates.enabled("CSIVolumeHealth"));
    assert!(!gates.enabled("CRIListStreaming"));
}

#[test]
fn a_gate_that_goes_away_is_warned_of() {
    let mut gates = Gates::default();
    let mut lines = Vec::new();
    gates.set(&map(&[("CustomCPUCFSQuotaPeriod", true)]), &mut lines).unwrap();
    assert_eq!(
        lines[0].to_string(),
        "\"Warning: setting GA feature gate. It will be removed in a future release.\" \
         featureGate=\"CustomCPUCFSQuotaPeriod\" value=true"
    );
}
