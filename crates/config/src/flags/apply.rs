//! Uses of flags, applied to a configuration.

use super::parse::{FlagUse, ParsedArgs};
use super::set::{Ignored, KubeletFlags, target};
use super::target::Manner;
use super::{Deprecation, Kind};
use crate::kubelet::KubeletConfiguration;
use std::collections::{BTreeMap, BTreeSet};

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
    let mut detached = BTreeSet::new();
    let mut ignored = Ignored::default();
    for (index, flag_use) in uses.iter().enumerate() {
        let flag = flag_use.flag;
        let manner = Manner {
            kind: flag.kind,
            registry: flag.registry,
            first: seen.insert(flag.name),
            detached: detached.contains(flag.name),
        };
        if detaches(flag.kind, &flag_use.value) {
            detached.insert(flag.name);
        }
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

/// Every flag with its value as pflag shows it; `kubelet` and `flags` are what the flags are bound
/// to.
pub(crate) fn shown(
    uses: &[FlagUse],
    kubelet: &mut KubeletConfiguration,
    flags: &mut KubeletFlags,
) -> BTreeMap<&'static str, String> {
    let mut values = BTreeMap::new();
    for flag in super::all() {
        let given =
            || uses.iter().rev().find(|u| u.flag.name == flag.name).map(|u| u.value.clone());
        // A flag without effect keeps its value nowhere.
        let mut ignored = Ignored::default();
        let without_effect =
            matches!(flag.deprecation, Deprecation::CadvisorLeak | Deprecation::RemovalForCsi);
        let value = match target(flag.name, kubelet, flags, &mut ignored) {
            Some(target) if without_effect => {
                let manner = Manner {
                    kind: flag.kind,
                    registry: flag.registry,
                    first: true,
                    detached: false,
                };
                let raw = given().unwrap_or_else(|| flag.default.to_owned());
                match target.assign(&raw, manner) {
                    Ok(()) => target.show(flag.kind),
                    Err(_) => raw,
                }
            }
            // What an empty value has taken off is not shown; the value in force stays.
            Some(_) if given().is_some_and(|raw| detaches(flag.kind, &raw)) => String::new(),
            Some(target) => target.show(flag.kind),
            None => String::new(),
        };
        values.insert(flag.name, value);
    }
    values
}

/// Whether a value takes a flag off the place it writes to.
fn detaches(kind: Kind, value: &str) -> bool {
    value.is_empty() && matches!(kind, Kind::Ip | Kind::ReservedMemory)
}

/// Takes away what may be secret: headers.
pub(crate) fn mask(values: &mut BTreeMap<&'static str, String>) {
    for flag in super::all().iter().filter(|flag| flag.kind == Kind::Headers) {
        if let Some(value) = values.get_mut(flag.name).filter(|value| !value.is_empty()) {
            "<masked>".clone_into(value);
        }
    }
}
