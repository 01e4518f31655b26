//! A strict reader of metrics pages, and what one page has that another lacks.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, bail, ensure};

/// Stands for a bound among labels; no label has it.
const MARK: &str = "\u{1}";

/// A family of a page.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Family {
    /// Its type.
    pub kind: String,
    /// Its help.
    pub help: String,
    /// Label names of its samples, without `le` and `quantile`.
    pub labels: BTreeSet<Vec<String>>,
    samples: BTreeMap<String, f64>,
}

/// Reads a page; anything that a strict parser would not take is an error.
pub fn read(text: &str) -> anyhow::Result<BTreeMap<String, Family>> {
    ensure!(text.is_empty() || text.ends_with('\n'), "the page does not end with a newline");
    let mut families: BTreeMap<String, Family> = BTreeMap::new();
    let mut current = String::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').unwrap_or((rest, ""));
            ensure!(!families.contains_key(name), "{name} comes twice");
            ensure!(current.as_str() < name, "{name} comes after {current}");
            name.clone_into(&mut current);
            families.insert(name.to_owned(), Family { help: help.to_owned(), ..Family::default() });
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').context("a type without a kind")?;
            ensure!(name == current, "type of {name} within {current}");
            let known = ["counter", "gauge", "histogram", "summary", "untyped"];
            ensure!(known.contains(&kind), "{name} is a {kind}");
            families.entry(name.to_owned()).or_default().kind = kind.to_owned();
        } else {
            let family = families.get_mut(&current).with_context(|| format!("nobody's {line}"))?;
            sample(&current, family, line).with_context(|| line.to_owned())?;
        }
    }
    for (name, family) in &families {
        ensure!(!family.kind.is_empty(), "{name} has no type");
        ensure!(!family.samples.is_empty(), "{name} has no sample");
        if family.kind == "histogram" {
            histogram(name, family)?;
        }
    }
    Ok(families)
}

fn is_name(text: &str) -> bool {
    let first = |c: char| c.is_ascii_alphabetic() || c == '_' || c == ':';
    text.starts_with(first) && text.chars().all(|c| first(c) || c.is_ascii_digit())
}

fn number(text: &str) -> anyhow::Result<f64> {
    match text {
        "+Inf" => Ok(f64::INFINITY),
        "-Inf" => Ok(f64::NEG_INFINITY),
        "NaN" => Ok(f64::NAN),
        other => other.parse().context("not a number"),
    }
}

fn sample(family_name: &str, family: &mut Family, line: &str) -> anyhow::Result<()> {
    let end = line.find(['{', ' ']).context("no value")?;
    let (name, mut rest) = line.split_at(end);
    ensure!(is_name(name), "{name} is no name");
    let suffix = name.strip_prefix(family_name).context("a sample of another family")?;
    let allowed: &[&str] = match family.kind.as_str() {
        "histogram" => &["_bucket", "_sum", "_count"],
        "summary" => &["", "_sum", "_count"],
        _ => &[""],
    };
    ensure!(allowed.contains(&suffix), "{suffix} does not belong to a {}", family.kind);
    let mut labels: Vec<(String, String)> = Vec::new();
    if let Some(mut inside) = rest.strip_prefix('{') {
        while !inside.starts_with('}') {
            let (label, after) = inside.split_once("=\"").context("a label without a value")?;
            ensure!(is_name(label) && !label.contains(':'), "{label} is no label");
            let close = closing(after).context("a value without an end")?;
            labels.push((label.to_owned(), after[..close].to_owned()));
            inside = &after[close + 1..];
            inside = inside.strip_prefix(',').unwrap_or(inside);
        }
        rest = &inside[1..];
    }
    let mut words = rest.split(' ').filter(|word| !word.is_empty());
    let value = number(words.next().context("no value")?)?;
    if let Some(time) = words.next() {
        time.parse::<i64>().context("not a time")?;
    }
    ensure!(words.next().is_none(), "too many words");
    let names: Vec<String> = labels.iter().map(|(name, _)| name.clone()).collect();
    let unique: BTreeSet<&String> = names.iter().collect();
    ensure!(unique.len() == names.len(), "a label comes twice");
    let series = format!("{name}{labels:?}");
    if family.samples.insert(series, value).is_some() {
        bail!("the series comes twice");
    }
    let plain = names.into_iter().filter(|name| name != "le" && name != "quantile");
    family.labels.insert(plain.collect());
    Ok(())
}

fn closing(text: &str) -> Option<usize> {
    let mut escaped = false;
    for (at, c) in text.char_indices() {
        match c {
            '\\' if !escaped => escaped = true,
            '"' if !escaped => return Some(at),
            _ => escaped = false,
        }
    }
    None
}

/// Buckets only grow, and the last one counts everything.
fn histogram(name: &str, family: &Family) -> anyhow::Result<()> {
    let mut buckets: BTreeMap<String, Vec<(f64, f64)>> = BTreeMap::new();
    for (series, value) in &family.samples {
        let Some(labels) = series.strip_prefix(&format!("{name}_bucket")) else { continue };
        let (_, bound) = labels.split_once("(\"le\", \"").context("a bucket without a bound")?;
        let bound = bound.split('"').next().unwrap_or_default();
        let others = labels.replace(&format!("(\"le\", \"{bound}\")"), MARK);
        buckets.entry(others).or_default().push((number(bound)?, *value));
    }
    for (others, mut list) in buckets {
        list.sort_by(|a, b| a.0.total_cmp(&b.0));
        ensure!(list.windows(2).all(|pair| pair[0].1 <= pair[1].1), "{name}{others} shrinks");
        let last = list.last().context("no bucket")?;
        ensure!(last.0 == f64::INFINITY, "{name}{others} has no last bucket");
        let [after, before] = [format!(", {MARK}"), format!("{MARK}, ")];
        let plain = others.replace(&after, "").replace(&before, "").replace(MARK, "");
        let count = family.samples.get(&format!("{name}_count{plain}"));
        ensure!(count == Some(&last.1), "{name}{others} counts {count:?}, not {}", last.1);
    }
    Ok(())
}

/// Every series of a page by family: labels in the order of their names, without the buckets of
/// histograms, and the value.
pub fn series(text: &str) -> anyhow::Result<BTreeMap<String, BTreeMap<String, f64>>> {
    let mut all: BTreeMap<String, BTreeMap<String, f64>> = BTreeMap::new();
    for (_, family) in read(text)? {
        for (series, value) in family.samples {
            let (name, labels) = series.split_at(series.find('[').unwrap_or(series.len()));
            if !name.ends_with("_bucket") {
                all.entry(name.to_owned()).or_default().insert(labels.to_owned(), value);
            }
        }
    }
    Ok(all)
}

/// Families that `want` has and `got` lacks, and those whose type, help or labels differ.
#[must_use]
pub fn lacking(
    want: &BTreeMap<String, Family>,
    got: &BTreeMap<String, Family>,
) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for (name, wanted) in want {
        match got.get(name) {
            None => found.push((name.clone(), "missing".to_owned())),
            Some(ours) if ours.kind != wanted.kind || ours.help != wanted.help => {
                let text =
                    format!("{} {:?} is {} {:?}", wanted.kind, wanted.help, ours.kind, ours.help);
                found.push((name.clone(), text));
            }
            Some(ours) if ours.labels != wanted.labels => {
                found.push((name.clone(), format!("{:?} is {:?}", wanted.labels, ours.labels)));
            }
            Some(_) => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn good_pages_are_read_and_bad_ones_refused() {
        let good = "# HELP a h\n# TYPE a counter\na{x=\"y\\\"\"} 1 5\n# HELP b h\n# TYPE b histogram\n\
                    b_bucket{x=\"y\",le=\"1\"} 1\nb_bucket{x=\"y\",le=\"+Inf\"} 2\nb_sum{x=\"y\"} 3\nb_count{x=\"y\"} 2\n";
        let families = read(good).unwrap();
        assert_eq!(families.len(), 2);
        for bad in [
            "a 1\n",
            "# HELP a h\n# TYPE a counter\n",
            "# HELP a h\n# TYPE a counter\na 1\na 1\n",
            "# HELP a h\n# TYPE a counter\na x\n",
            "# HELP b h\n# TYPE b counter\nb 1\n# HELP a h\n# TYPE a counter\na 1\n",
            "# HELP b h\n# TYPE b histogram\nb_bucket{le=\"1\"} 3\nb_bucket{le=\"+Inf\"} 2\nb_sum 1\nb_count 2\n",
            "# HELP a h\n# TYPE a counter\na{x=\"1\",x=\"2\"} 1\n",
        ] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }
}
