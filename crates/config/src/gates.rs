//! Feature gates: which exist, which are on, and what may be set.
//!
//! Owns: the table of gates and the rules of setting them (component-base: `featuregate`).
//!
//! Promises: [`Gates`] is resolved once; the rest of the program reads plain fields.

mod table;

use crate::log::LogLine;
use std::collections::BTreeMap;

/// How far a feature is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// New, off unless asked for.
    Alpha,
    /// Probably staying.
    Beta,
    /// Here to stay; the gate goes.
    Ga,
    /// Going away.
    Deprecated,
}

impl Stage {
    /// As upstream's metric and help show it; GA is empty there.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Alpha => "ALPHA",
            Self::Beta => "BETA",
            Self::Ga => "",
            Self::Deprecated => "DEPRECATED",
        }
    }
}

/// One gate as it is shipped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gate {
    /// Its name.
    pub name: &'static str,
    /// Whether it is on when nobody sets it.
    pub default: bool,
    /// How far the feature is.
    pub stage: Stage,
    /// Whether it can only be set to its default.
    pub locked: bool,
    /// Gates that must be on for this one to be on.
    pub depends_on: &'static [&'static str],
}

/// Looks a gate up.
pub fn find(name: &str) -> Option<&'static Gate> {
    table::GATES
        .binary_search_by(|gate| gate.name.cmp(name))
        .ok()
        .and_then(|at| table::GATES.get(at))
}

/// Every gate, sorted by name.
pub fn all() -> &'static [Gate] {
    table::GATES
}

/// The gates in force: what was set over what is shipped.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Gates {
    /// What users set.
    set: BTreeMap<String, bool>,
    /// What follows from it, special gates included.
    enabled: BTreeMap<&'static str, bool>,
}

impl Gates {
    /// Whether a gate is on; an unknown one is off (and a fault of the caller).
    pub fn enabled(&self, name: &str) -> bool {
        debug_assert!(find(name).is_some(), "there is no feature gate {name}");
        let shipped = || find(name).is_some_and(|gate| gate.default);
        self.enabled.get(name).copied().unwrap_or_else(shipped)
    }

    /// What users set, by name.
    pub fn overrides(&self) -> &BTreeMap<String, bool> {
        &self.set
    }

    /// Every gate with its state, for the metric `kubernetes_feature_enabled`.
    pub fn states(&self) -> impl Iterator<Item = (&'static Gate, bool)> + '_ {
        table::GATES.iter().map(|gate| (gate, self.enabled(gate.name)))
    }

    /// Sets gates over those set before; on a fault nothing changes. What a special gate has done
    /// before stays, whatever it is set to now. The lines warn of gates that will go away, also
    /// when others cannot be set.
    pub(crate) fn set(
        &mut self,
        gates: &BTreeMap<String, bool>,
        lines: &mut Vec<LogLine>,
    ) -> Result<(), Vec<String>> {
        let mut set = self.set.clone();
        set.extend(gates.iter().map(|(name, value)| (name.clone(), *value)));
        let enabled = resolve(&set, self.enabled.clone(), lines)?;
        *self = Self { set, enabled };
        Ok(())
    }

    /// Warns again of gates that will go away: upstream sets them anew several times on its way.
    pub(crate) fn warn(&self, lines: &mut Vec<LogLine>) {
        // What is set was found to be good.
        let _ = resolve(&self.set, BTreeMap::new(), lines);
    }

    /// The faults of what is set now.
    pub(crate) fn faults(&self) -> Vec<String> {
        resolve(&self.set, BTreeMap::new(), &mut Vec::new()).err().unwrap_or_default()
    }
}

/// What follows from what is set, over what followed before.
fn resolve(
    set: &BTreeMap<String, bool>,
    mut enabled: BTreeMap<&'static str, bool>,
    lines: &mut Vec<LogLine>,
) -> Result<BTreeMap<&'static str, bool>, Vec<String>> {
    let mut faults = Vec::new();
    for (name, value) in set {
        let Some(gate) = find(name) else {
            return Err(vec![format!("unrecognized feature gate: {name}")]);
        };
        if gate.locked && gate.default != *value {
            faults.push(format!(
                "cannot set feature gate {name} to {value}, feature is locked to {}",
                gate.default
            ));
            continue;
        }
        enabled.insert(gate.name, *value);
        let kind = match gate.stage {
            Stage::Ga => "GA",
            Stage::Deprecated => "deprecated",
            Stage::Alpha | Stage::Beta => continue,
        };
        lines.push(
            LogLine::info(format!(
                "Warning: setting {kind} feature gate. It will be removed in a future release."
            ))
            .with("featureGate", name.as_str())
            .with_raw("value", value.to_string()),
        );
    }
    if !faults.is_empty() {
        return Err(faults);
    }
    for (special, stage) in [("AllAlpha", Stage::Alpha), ("AllBeta", Stage::Beta)] {
        let Some(value) = enabled.get(special).copied() else { continue };
        for gate in table::GATES.iter().filter(|gate| gate.stage == stage) {
            if gate.name != "AllAlpha" && gate.name != "AllBeta" {
                enabled.entry(gate.name).or_insert(value);
            }
        }
    }
    let on = |name: &str| {
        enabled.get(name).copied().unwrap_or_else(|| find(name).is_some_and(|gate| gate.default))
    };
    for gate in table::GATES.iter().filter(|gate| !gate.depends_on.is_empty() && on(gate.name)) {
        let off: Vec<&str> = gate.depends_on.iter().copied().filter(|name| !on(name)).collect();
        if !off.is_empty() {
            faults.push(format!(
                "{} is enabled, but depends on features that are disabled: [{}]",
                gate.name,
                off.join(" ")
            ));
        }
    }
    if faults.is_empty() { Ok(enabled) } else { Err(faults) }
}

#[cfg(test)]
mod tests;
