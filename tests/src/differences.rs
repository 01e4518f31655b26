//! Where Rubelet differs from the Go kubelet on purpose. Each entry says why; everything else that
//! the golden comparison finds is a fault.

use crate::compare::{Difference, at_once};
use serde_json::Value;

/// One difference that is meant.
#[derive(Debug)]
pub struct OnPurpose {
    /// Name of the record, or `*` for all.
    pub golden: &'static str,
    /// Beginning of the place ([`Difference::at`]).
    pub at: &'static str,
    /// What must be there, so that an entry hides no other fault.
    pub seen: Seen,
    /// Why it is better so.
    pub reason: &'static str,
}

/// How a difference that is meant is known.
#[derive(Debug)]
pub enum Seen {
    /// By a text in what was observed.
    Has(&'static str),
    /// By all that the record has there and all that was observed, and by the whole place.
    Exactly(&'static str, &'static str),
    /// By a course that is the record's but for instances that were shown as started from the beginning, as the one
    /// before them was.
    WithoutInherited,
}

const fn on_purpose(
    golden: &'static str,
    at: &'static str,
    observed: &'static str,
    reason: &'static str,
) -> OnPurpose {
    OnPurpose { golden, at, seen: Seen::Has(observed), reason }
}

const fn exactly(
    golden: &'static str,
    at: &'static str,
    texts: (&'static str, &'static str),
    reason: &'static str,
) -> OnPurpose {
    OnPurpose { golden, at, seen: Seen::Exactly(texts.0, texts.1), reason }
}

const fn inherited(at: &'static str) -> OnPurpose {
    OnPurpose { golden: "*", at, seen: Seen::WithoutInherited, reason: INHERITED }
}

const SHORTER: &str = "a shorter grace period takes effect at once; the Go kubelet lets the stop that is \
                       under way have its whole time";
const ENDED: &str = "a container that is killed to be restarted is not started once more when its pod \
                     was deleted meanwhile, and the deletion's grace period ends the kill";
const ASKED: &str = "readiness is asked for until the container ends; from the deletion on, the Go \
                     kubelet's commands fail with `context canceled`";

const INHERITED: &str = "an instance has started when its own startup probe says so; the Go kubelet of this version \
                         shows one that follows a running one as started, and ready, and asks for its liveness, \
                         until that probe has its turn (k/k#141155, mended upstream by #141342)";

/// What the Go kubelet shows of the readiness of such a pod, and what Rubelet shows: that nothing is ready
/// between the kill and the pod's end.
const READY_UNTIL_THE_END: (&str, &str) = (
    r#"["False","ContainersNotReady"] → ["True",""] → ["False","PodFailed"]"#,
    r#"["False","ContainersNotReady"] → ["True",""] → ["False","ContainersNotReady"] → ["False","PodFailed"]"#,
);
/// The container is started once more under the Go kubelet.
const STARTED_AGAIN: (&str, &str) = (
    r#"["waiting","ContainerCreating",false,false,0] → ["running","",true,true,0] → ["running","",true,true,1] → ["terminated","Error",false,false,1]"#,
    r#"["waiting","ContainerCreating",false,false,0] → ["running","",true,true,0] → ["terminated","Error",false,false,0]"#,
);
/// And that second one is then stopped.
const STOPPED_AGAIN: (&str, &str) =
    ("Normal Killing spec.containers{main} Stopping container main", "");

/// Readiness that is asked for, and shown, before the instance has started.
const READY_ONCE_MORE: (&str, &str) = (
    r#"["False","ContainersNotReady"] → ["True",""] → ["False","ContainersNotReady"] → ["True",""] → ["False","ContainersNotReady"] → ["True",""] → ["False","PodCompleted"]"#,
    r#"["False","ContainersNotReady"] → ["True",""] → ["False","ContainersNotReady"] → ["True",""] → ["False","PodCompleted"]"#,
);

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
    exactly(
        "gone-in-liveness-kill",
        "steps conditions/ContainersReady",
        READY_UNTIL_THE_END,
        ENDED,
    ),
    exactly("gone-in-liveness-kill", "steps conditions/Ready", READY_UNTIL_THE_END, ENDED),
    exactly("gone-in-liveness-kill", "steps main/main", STARTED_AGAIN, ENDED),
    exactly("gone-in-liveness-kill", "events", STOPPED_AGAIN, ENDED),
    on_purpose(
        "gone-in-resize-restart",
        "cri",
        "StopContainer (main,0), StopContainer (main,0)",
        ENDED,
    ),
    exactly(
        "gone-in-resize-restart",
        "steps conditions/ContainersReady",
        READY_UNTIL_THE_END,
        ENDED,
    ),
    exactly("gone-in-resize-restart", "steps conditions/Ready", READY_UNTIL_THE_END, ENDED),
    exactly("gone-in-resize-restart", "steps main/main", STARTED_AGAIN, ENDED),
    exactly("gone-in-resize-restart", "events", STOPPED_AGAIN, ENDED),
    on_purpose("mix-readiness-probe-grace-hook", "cri probes", "test -f /tmp/r", ASKED),
    on_purpose("mix-readiness-probe-grace-hook", "steps ", "ContainersNotReady", ASKED),
    on_purpose("mix-readiness-probe-grace-hook", "steps main/main", "running", ASKED),
    on_purpose("mix-readiness-probe-grace-hook", "events", "Readiness probe failed", ASKED),
    inherited("steps main/"),
    exactly(
        "startup-beside-liveness-ready",
        "steps conditions/ContainersReady",
        READY_ONCE_MORE,
        INHERITED,
    ),
    exactly("startup-beside-liveness-ready", "steps conditions/Ready", READY_ONCE_MORE, INHERITED),
    inherited("steps init/"),
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
    let fits = |entry: &OnPurpose| match entry.seen {
        Seen::Has(text) => {
            difference.at.starts_with(entry.at) && difference.observed.contains(text)
        }
        Seen::Exactly(golden, observed) => {
            difference.at == entry.at
                && difference.golden == golden
                && difference.observed == observed
        }
        Seen::WithoutInherited => {
            let (golden, observed) = (course(&difference.golden), course(&difference.observed));
            difference.at.starts_with(entry.at)
                && !observed.is_empty()
                && golden != observed
                && at_once(without_inherited(&golden)) == at_once(observed)
        }
    };
    ON_PURPOSE.iter().any(|entry| (entry.golden == "*" || entry.golden == golden) && fits(entry))
}

/// The values of a container's course: state, reason, ready, started, restarts.
fn course(text: &str) -> Vec<Value> {
    text.split(" → ").filter_map(|value| serde_json::from_str(value).ok()).collect()
}

/// Takes out what is shown of an instance that runs right after another ran, from where it counts as started until
/// it is shown as begun.
fn without_inherited(course: &[Value]) -> Vec<Value> {
    let runs = |value: &Value, started: bool| value[0] == "running" && value[3] == started;
    let begun = |value: &Value| runs(value, false) && value[2] == false;
    let mut kept: Vec<Value> = Vec::new();
    let mut rest = course;
    while let Some((own, later)) = rest.split_first() {
        let follows = kept.last().is_some_and(|before| {
            runs(before, true)
                && runs(own, true)
                && before[4].as_u64().map(|count| count + 1) == own[4].as_u64()
        });
        let instance = rest.iter().take_while(|value| value[4] == own[4]);
        match instance.into_iter().position(begun) {
            Some(at) if follows => rest = &rest[at..],
            _ => {
                kept.push(own.clone());
                rest = later;
            }
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    fn difference(at: &str, texts: (&str, &str)) -> Difference {
        Difference { at: at.to_owned(), golden: texts.0.to_owned(), observed: texts.1.to_owned() }
    }

    #[test]
    fn only_the_very_difference_that_is_meant_passes() {
        let passes = |at, texts| is_on_purpose("gone-in-liveness-kill", &difference(at, texts));
        assert!(passes("events", STOPPED_AGAIN));
        assert!(!passes("events", (STOPPED_AGAIN.0, "Warning Failed  other")));
        assert!(!passes("events", ("Normal Started spec.containers{main} Container started", "")));
        assert!(passes("steps main/main", STARTED_AGAIN));
        assert!(!passes("steps main/main", (STARTED_AGAIN.1, STARTED_AGAIN.0)));
        assert!(!passes("steps phase", STARTED_AGAIN));
        assert!(!is_on_purpose("gone-twice-shorter", &difference("events", STOPPED_AGAIN)));
    }

    #[test]
    fn an_instance_may_be_shown_as_started_by_its_own_probe_only() {
        let first = r#"["running","",true,true,0]"#;
        let inherits = r#"["running","",true,true,1]"#;
        let begins = r#"["running","",false,false,1]"#;
        let join = |list: &[&str]| list.join(" → ");
        let passes = |golden: &[&str], observed: &[&str]| {
            let (golden, observed) = (join(golden), join(observed));
            is_on_purpose("any", &difference("steps main/a", (&golden, &observed)))
        };
        assert!(passes(&[first, inherits, begins, inherits], &[first, begins, inherits]));
        let unready = r#"["running","",false,true,1]"#;
        assert!(passes(&[first, unready, begins, inherits], &[first, begins, inherits]));
        let unstarted = r#"["running","",true,false,1]"#;
        let own = [first, begins, inherits];
        assert!(passes(&[first, unready, inherits, unstarted, begins, inherits], &own));
        assert!(passes(&[first, inherits, begins, unready, inherits], &own));
        assert!(!passes(&[first, inherits], &[first, begins, inherits]), "without such a probe");
        assert!(!passes(&[first, inherits, begins, inherits], &[first, begins]));
        assert!(!passes(&[first, begins, inherits], &[first, inherits, begins, inherits]));
    }
}
