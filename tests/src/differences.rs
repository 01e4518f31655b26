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

const fn on_purpose(
    golden: &'static str,
    at: &'static str,
    observed: &'static str,
    reason: &'static str,
) -> OnPurpose {
    OnPurpose { golden, at, observed, reason }
}

const SHORTER: &str = "a shorter grace period takes effect at once; the Go kubelet lets the stop that is \
                       under way have its whole time";
const ENDED: &str = "a container that is killed to be restarted is not started once more when its pod \
                     was deleted meanwhile, and the deletion's grace period ends the kill";
const ASKED: &str = "readiness is asked for until the container ends; from the deletion on, the Go \
                     kubelet's commands fail with `context canceled`";

/// The whole list.
pub const ON_PURPOSE: &[OnPurpose] = &[
    on_purpose(
        "gone-twice-shorter",
        "cri",
        "StopContainer (main,0), StopContainer (main,0)",
        SHORTER,
    ),
    on_purpose("gone-thrice", "cri", "StopContainer (main,0), StopContainer (main,0)", SHORTER),
    on_purpose(
        "gone-then-at-once",
        "cri",
        "StopContainer (main,0), StopContainer (main,0)",
        SHORTER,
    ),
    on_purpose(
        "gone-twice-sidecars",
        "cri",
        "StopContainer (main,0), StopContainer (main,0)",
        SHORTER,
    ),
    on_purpose("gone-twice-prestop", "cri[3] ExecSync/exit_code", "137", SHORTER),
    on_purpose("gone-twice-prestop", "cri[4] StopContainer/request/timeout", "2", SHORTER),
    on_purpose("gone-twice-prestop", "events", "FailedPreStopHook", SHORTER),
    on_purpose(
        "gone-in-liveness-kill",
        "cri",
        "StopContainer (main,0), StopContainer (main,0)",
        ENDED,
    ),
    on_purpose("gone-in-liveness-kill", "steps ", "", ENDED),
    on_purpose("gone-in-liveness-kill", "events", "", ENDED),
    on_purpose(
        "gone-in-resize-restart",
        "cri",
        "StopContainer (main,0), StopContainer (main,0)",
        ENDED,
    ),
    on_purpose("gone-in-resize-restart", "steps ", "", ENDED),
    on_purpose("gone-in-resize-restart", "events", "", ENDED),
    on_purpose("mix-readiness-probe-grace-hook", "cri probes", "test -f /tmp/r", ASKED),
    on_purpose("mix-readiness-probe-grace-hook", "steps ", "ContainersNotReady", ASKED),
    on_purpose("mix-readiness-probe-grace-hook", "steps main/main", "running", ASKED),
    on_purpose("mix-readiness-probe-grace-hook", "events", "Readiness probe failed", ASKED),
];

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
