//! Options of the `static` policy.

use super::{CpuFault, CpuTopology, Level};
use crate::topology::PolicyKind;
use std::collections::BTreeMap;
use units::strconv;

/// Which kinds of options may be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OptionStages {
    /// Gate CPUManagerPolicyAlphaOptions.
    pub alpha: bool,
    /// Gate CPUManagerPolicyBetaOptions.
    pub beta: bool,
}

/// Parsed options.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is an option that users switch")]
pub struct CpuOptions {
    /// Only whole cores.
    pub full_pcpus_only: bool,
    /// Spread evenly over NUMA nodes.
    pub distribute_across_numa: bool,
    /// Align to sockets rather than NUMA nodes.
    pub align_by_socket: bool,
    /// Spread over cores.
    pub distribute_across_cores: bool,
    /// No container runs on reserved CPUs.
    pub strict_reservation: bool,
    /// Prefer few shared caches.
    pub prefer_align_by_uncore: bool,
}

const FULL: &str = "full-pcpus-only";
const ACROSS_NUMA: &str = "distribute-cpus-across-numa";
const BY_SOCKET: &str = "align-by-socket";
const ACROSS_CORES: &str = "distribute-cpus-across-cores";
const STRICT: &str = "strict-cpu-reservation";
const BY_UNCORE: &str = "prefer-align-cpus-by-uncorecache";

impl CpuOptions {
    /// Reads the configured options.
    pub fn parse(
        options: &BTreeMap<String, String>,
        stages: OptionStages,
    ) -> Result<Self, CpuFault> {
        let mut parsed = Self::default();
        for (name, value) in options {
            let shown = strconv::quote(name);
            let (field, stage, allowed) = match name.as_str() {
                FULL => (&mut parsed.full_pcpus_only, "", true),
                STRICT => (&mut parsed.strict_reservation, "", true),
                BY_UNCORE => (&mut parsed.prefer_align_by_uncore, "", true),
                ACROSS_NUMA => (&mut parsed.distribute_across_numa, "Beta", stages.beta),
                BY_SOCKET => (&mut parsed.align_by_socket, "Alpha", stages.alpha),
                ACROSS_CORES => (&mut parsed.distribute_across_cores, "Alpha", stages.alpha),
                _ => return Err(CpuFault(format!("unknown CPU Manager Policy option: {shown}"))),
            };
            if !allowed {
                return Err(CpuFault(format!(
                    "CPU Manager Policy {stage}-level Options not enabled, but option {shown} provided"
                )));
            }
            *field = strconv::parse_bool(value)
                .map_err(|e| CpuFault(format!("bad value for option {shown}: {e}")))?;
        }
        parsed.contradiction().map_or(Ok(parsed), Err)
    }

    fn contradiction(self) -> Option<CpuFault> {
        let pairs = [
            (self.full_pcpus_only && self.distribute_across_cores, FULL, ACROSS_CORES),
            (
                self.distribute_across_numa && self.distribute_across_cores,
                ACROSS_NUMA,
                ACROSS_CORES,
            ),
            (self.prefer_align_by_uncore && self.distribute_across_cores, BY_UNCORE, ACROSS_CORES),
            (self.prefer_align_by_uncore && self.distribute_across_numa, BY_UNCORE, ACROSS_NUMA),
        ];
        let (_, one, other) = pairs.into_iter().find(|(both, ..)| *both)?;
        let what =
            format!("static policy options {one} and {other} can not be used at the same time");
        Some(CpuFault(what))
    }

    /// Whether they fit the machine and the topology policy.
    pub(super) fn fit(self, topology: &CpuTopology, policy: PolicyKind) -> Result<(), CpuFault> {
        if !self.align_by_socket {
            return Ok(());
        }
        if policy == PolicyKind::SingleNumaNode {
            return Err(CpuFault(format!(
                "Topolgy manager single-numa-node policy is incompatible with CPUManager {BY_SOCKET} policy option"
            )));
        }
        if topology.sockets > topology.ids(Level::Numa).len() {
            return Err(CpuFault(
                "Align by socket is not compatible with hardware where number of sockets are more than \
                 number of NUMA"
                    .to_owned(),
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(options: &[(&str, &str)], alpha: bool) -> Result<CpuOptions, String> {
        let options = options.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        let stages = OptionStages { alpha, beta: true };
        CpuOptions::parse(&options, stages).map_err(|e| e.to_string())
    }

    #[test]
    fn options_are_read() {
        let parsed = parse(&[(FULL, "true"), (ACROSS_NUMA, "1"), (STRICT, "f")], false).unwrap();
        assert!(parsed.full_pcpus_only && parsed.distribute_across_numa);
        assert!(!parsed.strict_reservation);
    }

    #[test]
    fn faults_read_as_upstream_has_them() {
        type Options<'a> = &'a [(&'a str, &'a str)];
        let cases: [(Options<'_>, bool, &str); 5] = [
            (&[("x", "1")], false, r#"unknown CPU Manager Policy option: "x""#),
            (
                &[(BY_SOCKET, "true")],
                false,
                r#"CPU Manager Policy Alpha-level Options not enabled, but option "align-by-socket" provided"#,
            ),
            (
                &[(FULL, "maybe")],
                false,
                r#"bad value for option "full-pcpus-only": strconv.ParseBool: parsing "maybe": invalid syntax"#,
            ),
            (
                &[(FULL, "true"), (ACROSS_CORES, "true")],
                true,
                "static policy options full-pcpus-only and distribute-cpus-across-cores can not be used at the same time",
            ),
            (
                &[(BY_UNCORE, "true"), (ACROSS_NUMA, "true")],
                true,
                "static policy options prefer-align-cpus-by-uncorecache and distribute-cpus-across-numa can not be used at the same time",
            ),
        ];
        for (options, alpha, fault) in cases {
            assert_eq!(parse(options, alpha).unwrap_err(), fault);
        }
    }
}
