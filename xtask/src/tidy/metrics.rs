//! Every declared metric is one of the table of upstream's metrics, with the same stability and labels; or it is
//! our own and says so by its prefix.

use std::collections::{BTreeMap, BTreeSet};

/// Metrics that only we have.
const OWN_PREFIX: &str = "rubelet_";
const CONSTRUCTORS: [(&str, &str); 4] = [
    ("Desc::alpha(", "ALPHA"),
    ("Desc::beta(", "BETA"),
    ("Desc::stable(", "STABLE"),
    ("Desc::unstated(", ""),
];

/// What the table says of a metric: each stability and set of labels it appears with.
pub(super) type Table = BTreeMap<String, Vec<Declared>>;

/// Stability and labels of a metric.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Declared {
    stability: String,
    labels: BTreeSet<String>,
}

/// Reads `metrics.tsv`: endpoint, name, type, labels, buckets, stability, …
pub(super) fn table(text: &str) -> Table {
    let mut table = Table::new();
    for row in text.lines().skip(1) {
        let mut cells = row.split('\t');
        let (name, labels, stability) = (cells.nth(1), cells.nth(1), cells.nth(1));
        let (Some(name), Some(labels), Some(stability)) = (name, labels, stability) else {
            continue;
        };
        let labels = labels.split(',').filter(|l| !l.is_empty()).map(str::to_owned).collect();
        let declared = Declared { stability: stability.to_owned(), labels };
        table.entry(name.to_owned()).or_default().push(declared);
    }
    table
}

/// Faults of the declarations in one file; test code is not looked at.
pub(super) fn faults(shown: &str, text: &str, table: &Table) -> Vec<String> {
    let shipped = text.split("#[cfg(test)]").next().unwrap_or(text);
    let mut faults = Vec::new();
    for (name, have) in declarations(shipped) {
        if name.starts_with(OWN_PREFIX) {
            continue;
        }
        match table.get(&name) {
            None => faults.push(format!("{shown}: metric {name} is not in the table")),
            Some(rows) if !rows.iter().any(|row| agrees(row, &have, shown)) => {
                faults.push(format!("{shown}: metric {name} is {have:?}, the table has {rows:?}"));
            }
            Some(_) => {}
        }
    }
    faults
}

/// Families whose labels come with each sample; that crate's own tests compare them with records.
const LABELS_WITH_SAMPLES: &str = "crates/stats/src/cadvisor";

fn agrees(row: &Declared, have: &Declared, shown: &str) -> bool {
    let labels_known = !shown.starts_with(LABELS_WITH_SAMPLES);
    row.stability == have.stability && (row.labels == have.labels || !labels_known)
}

/// The list behind a constant's name, which is followed by a closing bracket.
fn constant_list<'a>(text: &'a str, call: &str) -> &'a str {
    let name = call.split(')').next().unwrap_or_default();
    let declared = text.split_once(&format!("const {name}: &[&str] = "));
    declared.map_or("", |(_, list)| list)
}

/// The constant declarations in a text.
fn declarations(text: &str) -> Vec<(String, Declared)> {
    let mut found = Vec::new();
    for (constructor, stability) in CONSTRUCTORS {
        for (at, _) in text.match_indices(constructor) {
            let rest = text.get(at + constructor.len()..).unwrap_or_default();
            let Some(name) = quoted(rest) else { continue };
            let own = statement(rest);
            let labels = match own.split_once(".labels(") {
                Some((_, list)) if list.starts_with("&[") => list,
                Some((_, constant)) => constant_list(text, constant),
                None => "",
            };
            let labels = labels.split(']').next().unwrap_or_default();
            let labels = labels.split('"').skip(1).step_by(2).map(str::to_owned).collect();
            found.push((name.to_owned(), Declared { stability: stability.to_owned(), labels }));
        }
    }
    found
}

/// The text up to the semicolon that ends the statement; those inside string literals do not.
fn statement(text: &str) -> &str {
    let mut quoted = false;
    let mut escaped = false;
    for (at, c) in text.char_indices() {
        match c {
            '"' if !escaped => quoted = !quoted,
            ';' if !quoted => return text.get(..at).unwrap_or(text),
            _ => {}
        }
        escaped = c == '\\' && !escaped;
    }
    text
}

/// The string literal a text starts with.
fn quoted(text: &str) -> Option<&str> {
    text.trim_start().strip_prefix('"')?.split('"').next()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "endpoint\tname\ttype\tlabels\tbuckets\tstability\n\
                         /metrics\tkubelet_a_total\tcounter\tx,y\t\tALPHA\n\
                         /metrics\tkubelet_b\tgauge\t\t\tSTABLE\n";

    fn faults_in(text: &str) -> Vec<String> {
        faults("f.rs", text, &table(TABLE))
    }

    #[test]
    fn a_declaration_like_the_table_is_fine() {
        let text = "const A: Desc = Desc::alpha(\n    \"kubelet_a_total\",\n    \"Help; \\\"more\\\".\",\n)\n.labels(&[\"y\", \"x\"]);\n\
                    const B: Desc = Desc::stable(\"kubelet_b\", \"B.\");\n\
                    const C: Desc = Desc::alpha(\"rubelet_c\", \"C.\");\n\
                    #[cfg(test)]\nconst D: Desc = Desc::alpha(\"anything\", \"D.\");";
        assert_eq!(faults_in(text), Vec::<String>::new());
    }

    #[test]
    fn a_wrong_name_stability_or_label_is_named() {
        for text in [
            "const A: Desc = Desc::alpha(\"kubelet_z\", \"Z.\");",
            "const A: Desc = Desc::alpha(\"kubelet_b\", \"B.\");",
            "const A: Desc = Desc::alpha(\"kubelet_a_total\", \"A.\").labels(&[\"x\"]);",
        ] {
            assert_eq!(faults_in(text).len(), 1, "{text}");
        }
    }
}
