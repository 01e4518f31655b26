//! Conditions: three kinds of pressure, then Ready, then opt-in ones.

use super::facts::{NodeFacts, NodeSettings};
use super::{NodeUpdate, StatusEvent};
use api::core::v1::{NodeCondition, NodeStatus};
use api::machinery::apis::meta::v1::Time;
use jiff::Timestamp;

/// Texts of a pressure condition: reason, message and event reason.
struct Words {
    reason: &'static str,
    message: &'static str,
    event: &'static str,
}

struct PressureKind {
    name: &'static str,
    under: Words,
    clear: Words,
}

const MEMORY: PressureKind = PressureKind {
    name: "MemoryPressure",
    under: Words {
        reason: "KubeletHasInsufficientMemory",
        message: "kubelet has insufficient memory available",
        event: "NodeHasInsufficientMemory",
    },
    clear: Words {
        reason: "KubeletHasSufficientMemory",
        message: "kubelet has sufficient memory available",
        event: "NodeHasSufficientMemory",
    },
};

const DISK: PressureKind = PressureKind {
    name: "DiskPressure",
    under: Words {
        reason: "KubeletHasDiskPressure",
        message: "kubelet has disk pressure",
        event: "NodeHasDiskPressure",
    },
    clear: Words {
        reason: "KubeletHasNoDiskPressure",
        message: "kubelet has no disk pressure",
        event: "NodeHasNoDiskPressure",
    },
};

const PID: PressureKind = PressureKind {
    name: "PIDPressure",
    under: Words {
        reason: "KubeletHasInsufficientPID",
        message: "kubelet has insufficient PID available",
        event: "NodeHasInsufficientPID",
    },
    clear: Words {
        reason: "KubeletHasSufficientPID",
        message: "kubelet has sufficient PID available",
        event: "NodeHasSufficientPID",
    },
};

pub(super) fn set(
    update: &mut NodeUpdate,
    settings: &NodeSettings,
    facts: &NodeFacts,
    now: Timestamp,
) {
    let status = update.node.status.get_or_insert_default();
    for (kind, under) in
        [(&MEMORY, facts.pressure.memory), (&DISK, facts.pressure.disk), (&PID, facts.pressure.pid)]
    {
        if let Some(event) = set_pressure(status, kind, under, now) {
            update.events.push(StatusEvent::status(&settings.node_name, event));
        }
    }
    if let Some(event) = set_ready(status, settings, facts, now) {
        update.events.push(StatusEvent::status(&settings.node_name, event));
    }
    if let Some(calls) = &facts.slow_calls {
        set_runtime_slow(status, calls, now);
    }
}

/// Lists the calls that the runtime has not answered. Their age is left out, so that the node object changes only
/// when the set of calls does.
fn set_runtime_slow(status: &mut NodeStatus, calls: &[String], now: Timestamp) {
    let (value, reason, message) = match calls.is_empty() {
        true => ("False", "CallsAnswered", "the container runtime answers in time".to_owned()),
        false => (
            "True",
            "CallsUnanswered",
            format!("the container runtime has not answered for long: {}", calls.join(", ")),
        ),
    };
    let condition = condition(status, "ContainerRuntimeSlow");
    condition.last_heartbeat_time = Some(Time(now));
    condition.reason = Some(reason.into());
    condition.message = Some(message);
    if condition.status != value {
        condition.status = value.into();
        condition.last_transition_time = Some(Time(now));
    }
}

/// The condition of this type, made with status Unknown if there is none.
fn condition<'a>(status: &'a mut NodeStatus, kind: &str) -> &'a mut NodeCondition {
    let conditions = status.conditions.get_or_insert_default();
    let at = conditions.iter().position(|c| c.type_ == kind).unwrap_or_else(|| {
        conditions.push(NodeCondition {
            type_: kind.into(),
            status: "Unknown".into(),
            ..NodeCondition::default()
        });
        conditions.len() - 1
    });
    &mut conditions[at]
}

/// Returns the event of a changed (or new) condition. Reason and message change with the status only.
fn set_pressure(
    status: &mut NodeStatus,
    kind: &PressureKind,
    under: bool,
    now: Timestamp,
) -> Option<&'static str> {
    let condition = condition(status, kind.name);
    condition.last_heartbeat_time = Some(Time(now));
    let (value, words) = if under { ("True", &kind.under) } else { ("False", &kind.clear) };
    if condition.status == value {
        return None;
    }
    condition.status = value.into();
    condition.reason = Some(words.reason.into());
    condition.message = Some(words.message.into());
    condition.last_transition_time = Some(Time(now));
    Some(words.event)
}

/// Returns the event of a changed condition; a new one has none.
fn set_ready(
    status: &mut NodeStatus,
    settings: &NodeSettings,
    facts: &NodeFacts,
    now: Timestamp,
) -> Option<&'static str> {
    let errors = errors(status, settings, facts);
    let (value, reason, mut message) = match errors.is_empty() {
        true => ("True", "KubeletReady", "kubelet is posting ready status".to_owned()),
        false => ("False", "KubeletNotReady", joined(errors)),
    };
    if let Some(warning) = &facts.soft_warning {
        message = format!("{message}. WARNING: {warning}");
    }
    let conditions = status.conditions.get_or_insert_default();
    let is_new = conditions.iter().all(|c| c.type_ != "Ready");
    let condition = condition(status, "Ready");
    let changed = condition.status != value;
    condition.status = value.into();
    condition.reason = Some(reason.into());
    condition.message = Some(message);
    condition.last_heartbeat_time = Some(Time(now));
    if changed {
        condition.last_transition_time = Some(Time(now));
    }
    (changed && !is_new).then_some(if value == "True" { "NodeReady" } else { "NodeNotReady" })
}

fn errors(status: &NodeStatus, settings: &NodeSettings, facts: &NodeFacts) -> Vec<String> {
    let mut errors = facts.runtime.errors.clone();
    errors.extend(facts.runtime.network_error.clone());
    errors.extend(facts.storage_error.clone());
    errors.extend(facts.shutdown_error.clone());
    let mut required = vec!["cpu", "memory", "pods"];
    if settings.local_storage_isolation {
        required.push("ephemeral-storage");
    }
    let has = |name: &&str| status.capacity.as_ref().is_some_and(|c| c.contains_key(*name));
    let missing: Vec<&str> = required.into_iter().filter(|name| !has(name)).collect();
    if !missing.is_empty() {
        errors.push(format!("missing node capacity for resources: {}", missing.join(", ")));
    }
    errors
}

/// Upstream's aggregate: one as it is, several without repetition in brackets.
fn joined(errors: Vec<String>) -> String {
    let mut distinct: Vec<String> = Vec::new();
    for error in errors {
        if !distinct.contains(&error) {
            distinct.push(error);
        }
    }
    match distinct.as_slice() {
        [one] => one.clone(),
        several => format!("[{}]", several.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(status: &NodeStatus) -> Vec<String> {
        let conditions = status.conditions.iter().flatten();
        let text = |c: &NodeCondition| {
            let at = |time: &Option<Time>| time.as_ref().map_or(-1, |time| time.0.as_second());
            let message = c.message.clone().unwrap_or_default();
            format!("{} {} since {} {message}", c.type_, c.status, at(&c.last_transition_time))
        };
        conditions.map(text).collect()
    }

    #[test]
    fn calls_that_the_runtime_does_not_answer_are_named_by_those_who_want_it() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let mut status = NodeStatus::default();
        set_runtime_slow(&mut status, &[], at(1));
        let fine = "ContainerRuntimeSlow False since 1 the container runtime answers in time";
        assert_eq!(shown(&status), [fine]);
        set_runtime_slow(&mut status, &["StopPodSandbox".into()], at(2));
        set_runtime_slow(&mut status, &["ListContainers".into(), "StopPodSandbox".into()], at(3));
        let slow = "ContainerRuntimeSlow True since 2 the container runtime has not answered for long: \
                    ListContainers, StopPodSandbox";
        assert_eq!(shown(&status), [slow]);
        set_runtime_slow(&mut status, &[], at(4));
        assert!(shown(&status)[0].starts_with("ContainerRuntimeSlow False since 4"));
    }
}
