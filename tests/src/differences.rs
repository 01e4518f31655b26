//! Where Rubelet differs from the Go kubelet on purpose. Each entry says why; everything else that
//! the golden comparison finds is a fault.

use crate::compare::Difference;

/// One difference that is meant.
#[derive(Debug)]
pub struct OnPurpose {
    /// Name of the record, or `*` for all.
    pub golden: &'static str,
    /// Beginning of the place ([`Difference::at`]).
    pub at: &'static str,
    /// Text that must be in what was observed, so that an entry hides no other fault.
    pub observed: &'static str,
    /// Why it is better so.
    pub reason: &'static str,
}

/// The whole list.
pub const ON_PURPOSE: &[OnPurpose] = &[];

/// Records that Rubelet does not follow yet, with what is missing. They are not run unless they are
/// named or `--include-ignored` is given, and they must leave this list once they pass.
pub const NOT_YET: &[(&str, &str)] = &[];

/// What is missing for a record, if it is in that list.
#[must_use]
pub fn not_yet(golden: &str) -> Option<&'static str> {
    NOT_YET.iter().find(|(name, _)| *name == golden).map(|(_, missing)| *missing)
}

/// Whether a difference is one of those.
#[must_use]
pub fn is_on_purpose(golden: &str, difference: &Difference) -> bool {
    ON_PURPOSE.iter().any(|entry| {
        (entry.golden == "*" || entry.golden == golden)
            && difference.at.starts_with(entry.at)
            && difference.observed.contains(entry.observed)
    })
}
