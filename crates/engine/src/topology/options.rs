//! Options of the topology policies.

use std::collections::BTreeMap;
use units::strconv;

/// The default limit of NUMA nodes.
const DEFAULT_MAX_NODES: i64 = 8;

/// Parsed options.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TopologyOptions {
    /// Among equally wide masks the one with the closer nodes wins.
    pub prefer_closest: bool,
    /// More NUMA nodes than this are refused.
    pub max_nodes: i64,
}

impl Default for TopologyOptions {
    fn default() -> Self {
        Self { prefer_closest: false, max_nodes: DEFAULT_MAX_NODES }
    }
}

/// Why options are not usable; the texts are upstream's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct OptionFault(pub String);

impl TopologyOptions {
    /// Reads the configured options.
    pub fn parse(options: &BTreeMap<String, String>) -> Result<Self, OptionFault> {
        let mut parsed = Self::default();
        for (name, value) in options {
            let shown = strconv::quote(name);
            match name.as_str() {
                "prefer-closest-numa-nodes" => {
                    parsed.prefer_closest = strconv::parse_bool(value)
                        .map_err(|e| OptionFault(format!("bad value for option {shown}: {e}")))?;
                }
                "max-allowable-numa-nodes" => {
                    let max = strconv::atoi(value).map_err(|e| {
                        OptionFault(format!(
                            "unable to convert policy option to integer {shown}: {e}"
                        ))
                    })?;
                    if max < DEFAULT_MAX_NODES {
                        return Err(OptionFault(format!(
                            "the minimum value of {shown} should not be less than {DEFAULT_MAX_NODES}"
                        )));
                    }
                    parsed.max_nodes = max;
                }
                _ => {
                    return Err(OptionFault(format!(
                        "unknown Topology Manager Policy option: {shown}"
                    )));
                }
            }
        }
        Ok(parsed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read_or_refused_in_upstreams_words() {
        let parse = |name: &str, value: &str| {
            TopologyOptions::parse(&BTreeMap::from([(name.to_owned(), value.to_owned())]))
                .map_err(|e| e.to_string())
        };
        assert!(parse("prefer-closest-numa-nodes", "true").unwrap().prefer_closest);
        assert_eq!(parse("max-allowable-numa-nodes", "16").unwrap().max_nodes, 16);
        let faults = [
            ("nope", "1", r#"unknown Topology Manager Policy option: "nope""#),
            (
                "max-allowable-numa-nodes",
                "7",
                r#"the minimum value of "max-allowable-numa-nodes" should not be less than 8"#,
            ),
            (
                "prefer-closest-numa-nodes",
                "x",
                r#"bad value for option "prefer-closest-numa-nodes": strconv.ParseBool: parsing "x": invalid syntax"#,
            ),
        ];
        for (name, value, fault) in faults {
            assert_eq!(parse(name, value).unwrap_err(), fault);
        }
    }
}
