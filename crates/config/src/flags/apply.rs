//! Uses of flags, applied to a configuration.

use super::parse::{FlagUse, ParsedArgs};
use super::set::{Ignored, KubeletFlags, target};
use super::target::Manner;
use crate::kubelet::KubeletConfiguration;
use std::collections::BTreeSet;

/// Applies uses in order; stops at the first refused value with pflag's error.
pub(crate) fn apply(
    uses: &[FlagUse],
    kubelet: &mut KubeletConfiguration,
    flags: &mut KubeletFlags,
) -> Result<(), String> {
    match apply_counted(uses, kubelet, flags) {
        (_, Some(fault)) => Err(fault),
        (_, None) => Ok(()),
    }
}

/// Applies what could be taken apart; answers the notices to print and the first fault, whether
/// it is in a value or in the grammar behind it.
pub(crate) fn validate_uses(
    parsed: &ParsedArgs,
    kubelet: &mut KubeletConfiguration,
    flags: &mut KubeletFlags,
) -> (Vec<String>, Option<String>) {
    let (taken, fault) = apply_counted(&parsed.uses, kubelet, flags);
    let notices = parsed.uses.iter().take(taken).filter_map(FlagUse::notice).collect();
    (notices, fault.or_else(|| parsed.fault.clone()))
}

fn apply_counted(
    uses: &[FlagUse],
    kubelet: &mut KubeletConfiguration,
    flags: &mut KubeletFlags,
) -> (usize, Option<String>) {
    let mut seen = BTreeSet::new();
    let mut ignored = Ignored::default();
    for (index, flag_use) in uses.iter().enumerate() {
        let flag = flag_use.flag;
        let manner =
            Manner { kind: flag.kind, registry: flag.registry, first: seen.insert(flag.name) };
        let assigned = match target(flag.name, kubelet, flags, &mut ignored) {
            Some(target) => target.assign(&flag_use.value, manner),
            None => Ok(()),
        };
        if let Err(reason) = assigned {
            return (index, Some(flag_use.refused(&reason)));
        }
    }
    (uses.len(), None)
}
