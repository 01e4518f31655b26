//! Variables of the environment: how operators opt in to what the Go kubelet does not have.
//!
//! Flags and configuration files stay the Go kubelet's, so that a node can be handed back to it as it is;
//! it does not look at variables with our prefix.
//!
//! Owns: the table of variables and their reading. Promises: a value that is not allowed is a fault, all told
//! at once; a name nobody knows is told and left alone, for it may be somebody else's; what is not set keeps
//! the Go kubelet's behaviour.

use crate::origin::Origin;
use serde::Serialize;
use std::time::Duration;
use units::strconv::quote;

/// What our variables begin with.
pub const PREFIX: &str = "RUBELET_";

/// Names with our prefix that belong to this project's build and tests.
const BUILD: [&str; 2] = ["RUBELET_BIN", "RUBELET_CACHE"];

const CHECKPOINT_LIMIT: &str = "RUBELET_CHECKPOINT_LIMIT";
const LATE_DEVICES: &str = "RUBELET_LATE_DEVICES";
const MEMORY_SIGNAL: &str = "RUBELET_MEMORY_SIGNAL";
const OOM_EVENTS: &str = "RUBELET_OOM_EVENTS";
const OUTDATED_STATE: &str = "RUBELET_OUTDATED_STATE";
const PULL_EVENTS: &str = "RUBELET_PULL_EVENTS";
const PULL_ORDER: &str = "RUBELET_PULL_ORDER";
const RUNTIME_CONDITION: &str = "RUBELET_RUNTIME_CONDITION";
const STRICT_STREAMING: &str = "RUBELET_STRICT_STREAMING";

/// A variable that is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Variable {
    /// Its name.
    pub name: &'static str,
    /// What it may be.
    pub kind: Kind,
    /// What it is when it is not set.
    pub default: &'static str,
    /// What it does.
    pub help: &'static str,
}

/// What a variable may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `true` or `false`.
    Switch,
    /// One of these words.
    OneOf(&'static [&'static str]),
    /// A whole number up to this one.
    Number(u32),
}

impl Kind {
    /// Every value that is allowed.
    pub fn allowed(self) -> Vec<String> {
        match self {
            Self::Switch => vec!["false".to_owned(), "true".to_owned()],
            Self::OneOf(words) => words.iter().map(|word| (*word).to_owned()).collect(),
            Self::Number(most) => vec![format!("0 to {most}")],
        }
    }

    fn takes(self, value: &str) -> bool {
        match self {
            Self::Switch | Self::OneOf(_) => self.allowed().iter().any(|word| word == value),
            Self::Number(most) => {
                let digits = value.bytes().all(|byte| byte.is_ascii_digit());
                digits && value.parse::<u32>().is_ok_and(|number| number <= most)
            }
        }
    }
}

/// Every variable, by name.
pub const VARIABLES: [Variable; 9] = [
    Variable {
        name: CHECKPOINT_LIMIT,
        kind: Kind::Number(1_000_000),
        default: "0",
        help: "how many archives of checkpointed containers there may be on this node: a request for one more is \
               refused with 429 until somebody removes some; 0 for no limit, as with the Go kubelet",
    },
    Variable {
        name: LATE_DEVICES,
        kind: Kind::OneOf(&["refuse", "wait"]),
        default: "refuse",
        help: "what becomes of a pod that comes while the plugin of its devices is away, as after a reboot: it is \
               refused for good, as with the Go kubelet, or it waits for the plugin for up to five minutes, with \
               the reason WaitingForDevices in its status, and a pod with containers that run as rubelet begins \
               is never ended for its devices",
    },
    Variable {
        name: MEMORY_SIGNAL,
        kind: Kind::OneOf(&["memAvailable", "workingSet"]),
        default: "workingSet",
        help: "how memory.available is measured for eviction: capacity less working set, as the Go kubelet does, \
           or what the kernel can hand out (MemAvailable; for pods their page cache counts as available), so \
           that a node that reads many files does not evict pods for its page cache",
    },
    Variable {
        name: OOM_EVENTS,
        kind: Kind::Switch,
        default: "false",
        help: "an event OOMKilled of the pod for every process that is killed for want of memory within a limit, \
               with process, limit and peak; the Go kubelet tells only that a container ended by it",
    },
    Variable {
        name: OUTDATED_STATE,
        kind: Kind::OneOf(&["giveUp", "refuse"]),
        default: "refuse",
        help: "what becomes of cpu_manager_state or memory_manager_state that does not fit the configured policy or \
               this machine: it ends the start until somebody deletes it, as with the Go kubelet, or it is given up \
               with a line in the log if no container has anything of its own by it",
    },
    Variable {
        name: PULL_EVENTS,
        kind: Kind::Number(3600),
        default: "0",
        help: "every how many seconds a pod is told by an event PullProgress how far the pull of its image is: bytes, \
               rate and the time left where the runtime is containerd; 0 for never, as with the Go kubelet \
               (`rubelet explain` tells it in any case)",
    },
    Variable {
        name: PULL_ORDER,
        kind: Kind::OneOf(&["arrival", "priority"]),
        default: "arrival",
        help: "which of the image pulls that wait for a slot (serializeImagePulls, maxParallelImagePulls) goes \
               next: the one that came first, as with the Go kubelet, or the one of the pod with the highest \
               priority, and among equals the one whose registry has the fewest pulls under way",
    },
    Variable {
        name: RUNTIME_CONDITION,
        kind: Kind::Switch,
        default: "false",
        help: "a condition ContainerRuntimeSlow of the node, which names the calls that the container runtime has not \
               answered for a quarter of their deadline; the Go kubelet has no such condition",
    },
    Variable {
        name: STRICT_STREAMING,
        kind: Kind::Switch,
        default: "false",
        help: "exec, attach, port-forward and run need the verb create on nodes/proxy by whatever method they \
           are asked for; the Go kubelet asks for get when a WebSocket opens them with GET",
    },
];

/// What becomes of a pod that comes while the plugin of its devices is away.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LateDevices {
    /// It is refused.
    #[default]
    Refuse,
    /// It waits, and what runs goes on.
    Wait,
}

/// How memory is measured for eviction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MemorySignal {
    /// Capacity less working set.
    #[default]
    WorkingSet,
    /// What the kernel says it can hand out.
    MemAvailable,
}

/// What becomes of a state file of CPUs or memory that does not fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OutdatedState {
    /// It ends the start.
    #[default]
    Refuse,
    /// It is given up if no container has anything by it.
    GiveUp,
}

/// Which of the image pulls that wait goes next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PullOrder {
    /// The one that came first.
    #[default]
    Arrival,
    /// The one of the pod with the highest priority.
    Priority,
}

/// What operators opted in to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OptIns {
    /// How many archives of checkpointed containers there may be; `None` for no limit.
    pub checkpoint_limit: Option<usize>,
    /// What becomes of a pod that comes while the plugin of its devices is away.
    pub late_devices: LateDevices,
    /// How memory is measured for eviction.
    pub memory_signal: MemorySignal,
    /// Pods are told of processes killed within their limits.
    pub oom_events: bool,
    /// What becomes of a state file that does not fit.
    pub outdated_state: OutdatedState,
    /// How often pods are told how far their pulls are; `None` for never.
    pub pull_events: Option<Duration>,
    /// Which pull goes next.
    pub pull_order: PullOrder,
    /// The node has a condition about calls that the runtime does not answer.
    pub runtime_condition: bool,
    /// Streams need the verb create, by whatever method they are asked for.
    pub strict_streaming: bool,
}

/// A variable with its value in force.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Setting {
    /// The variable.
    #[serde(skip)]
    pub variable: Variable,
    /// Its value.
    pub value: String,
    /// Where the value comes from.
    pub origin: Origin,
}

/// The variables as they were found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Environment {
    pub(crate) settings: Vec<Setting>,
    /// Names with our prefix that nobody knows. Their values may be secrets and are not kept.
    pub(crate) unknown: Vec<String>,
    pub(crate) faults: Vec<String>,
}

impl Environment {
    /// Reads variables; those of others are not looked at.
    pub(crate) fn read(found: &[(String, String)]) -> Self {
        let ours = found.iter().filter(|(name, _)| name.starts_with(PREFIX));
        let ours = ours.filter(|(name, _)| !BUILD.contains(&name.as_str()));
        let unknown = |name: &str| VARIABLES.iter().all(|known| known.name != name);
        let unknown = ours.clone().map(|(name, _)| name).filter(|name| unknown(name)).cloned();
        let unknown = unknown.collect();
        let mut faults: Vec<String> = Vec::new();
        let settings = VARIABLES.iter().map(|variable| {
            let default = || Setting {
                variable: *variable,
                value: variable.default.to_owned(),
                origin: Origin::Default,
            };
            let Some((name, value)) = ours.clone().find(|(name, _)| name == variable.name) else {
                return default();
            };
            if !variable.kind.takes(value) {
                let (value, allowed) = (quote(value), variable.kind.allowed().join(", "));
                faults.push(format!("{name} is {value}; allowed are {allowed}"));
                return default();
            }
            Setting { variable: *variable, value: value.clone(), origin: Origin::Environment }
        });
        let settings = settings.collect();
        Self { settings, unknown, faults }
    }

    /// The settings, typed.
    pub(crate) fn opt_ins(&self) -> OptIns {
        let value = |name: &str| {
            self.settings.iter().find(|s| s.variable.name == name).map_or("", |s| s.value.as_str())
        };
        let number = |name: &str| value(name).parse().unwrap_or_default();
        OptIns {
            checkpoint_limit: Some(number(CHECKPOINT_LIMIT)).filter(|limit| *limit > 0),
            late_devices: match value(LATE_DEVICES) {
                "wait" => LateDevices::Wait,
                _ => LateDevices::Refuse,
            },
            memory_signal: match value(MEMORY_SIGNAL) {
                "memAvailable" => MemorySignal::MemAvailable,
                _ => MemorySignal::WorkingSet,
            },
            oom_events: value(OOM_EVENTS) == "true",
            outdated_state: match value(OUTDATED_STATE) {
                "giveUp" => OutdatedState::GiveUp,
                _ => OutdatedState::Refuse,
            },
            pull_events: value(PULL_EVENTS)
                .parse()
                .ok()
                .map(Duration::from_secs)
                .filter(|period| !period.is_zero()),
            pull_order: match value(PULL_ORDER) {
                "priority" => PullOrder::Priority,
                _ => PullOrder::Arrival,
            },
            runtime_condition: value(RUNTIME_CONDITION) == "true",
            strict_streaming: value(STRICT_STREAMING) == "true",
        }
    }

    /// Settings that were set.
    pub(crate) fn set(&self) -> impl Iterator<Item = &Setting> {
        self.settings.iter().filter(|setting| setting.origin == Origin::Environment)
    }

    /// One text of all faults.
    pub(crate) fn fault(&self) -> Option<String> {
        (!self.faults.is_empty()).then(|| format!("in the environment: {}", self.faults.join("; ")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(found: &[(&str, &str)]) -> Environment {
        let found: Vec<(String, String)> =
            found.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Environment::read(&found)
    }

    #[test]
    fn nothing_set_is_what_the_go_kubelet_does() {
        let none = read(&[("PATH", "/bin"), ("RUBELET_BIN", "/x"), ("RUBELET_CACHE", "/y")]);
        assert_eq!(none.opt_ins(), OptIns::default());
        assert_eq!(none.fault(), None);
        assert_eq!(none.set().count(), 0);
    }

    #[test]
    fn every_variable_has_an_allowed_default_and_every_other_value_changes_something() {
        for variable in &VARIABLES {
            assert!(variable.name.starts_with(PREFIX) && variable.kind.takes(variable.default));
            let values = match variable.kind {
                Kind::Number(most) => vec!["1".to_owned(), most.to_string()],
                kind => kind.allowed(),
            };
            for value in values.iter().filter(|value| *value != variable.default) {
                let found = read(&[(variable.name, value.as_str())]);
                assert_eq!(found.fault(), None);
                assert_ne!(found.opt_ins(), OptIns::default(), "{}={value}", variable.name);
                let set: Vec<&str> = found.set().map(|s| s.variable.name).collect();
                assert_eq!(set, [variable.name]);
            }
        }
    }

    #[test]
    fn a_wrong_value_is_a_fault_and_a_wrong_name_is_told() {
        let found = read(&[
            ("RUBELET_STRICT_STREAMNG", "true"),
            ("RUBELET_STRICT_STREAMING", "yes"),
            ("rubelet_strict_streaming", "no"),
        ]);
        assert_eq!(found.opt_ins(), OptIns::default());
        assert_eq!(found.unknown, ["RUBELET_STRICT_STREAMNG"]);
        assert_eq!(
            found.fault().unwrap(),
            "in the environment: RUBELET_STRICT_STREAMING is \"yes\"; allowed are false, true"
        );
        for odd in ["", " true", "TRUE", "1"] {
            assert!(read(&[("RUBELET_STRICT_STREAMING", odd)]).fault().is_some(), "{odd:?}");
        }
        for odd in ["", "-1", "+1", "1.0", "1000001", "99999999999", "many"] {
            let fault = read(&[("RUBELET_CHECKPOINT_LIMIT", odd)]).fault().unwrap();
            assert!(fault.ends_with("; allowed are 0 to 1000000"), "{fault}");
        }
    }

    #[test]
    fn the_documentation_has_every_variable_with_its_values_and_its_help() {
        let text = include_str!("../../../docs/options.md");
        for variable in &VARIABLES {
            let row =
                text.lines().find(|line| line.starts_with(&format!("| `{}` ", variable.name)));
            let row = row.unwrap_or_else(|| panic!("no row for {}", variable.name));
            assert!(row.contains(variable.help), "{row}");
            assert!(row.contains(&format!("| `{}` |", variable.default)), "{row}");
            for value in variable.kind.allowed() {
                assert!(row.contains(&format!("`{value}`")), "{row}");
            }
        }
    }
}
