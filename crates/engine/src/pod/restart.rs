//! Whether a container that is not running runs again.
//!
//! Upstream: `ShouldContainerBeRestarted`, `ContainerShouldRestart`, `FindMatchingContainerRestartRule`.

use super::view::PodGates;
use crate::runtime::{ContainerRunState, ContainerView};
use api::core::v1::{Container, ContainerRestartRule, Pod, PodSpec};

/// What a matching restart rule asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RestartRule {
    /// Run this container again.
    Restart,
    /// Run every container of the pod again.
    RestartAll,
}

/// The action of the first rule that matches the exit code, if the container has its own policy.
pub fn matching_rule(container: &Container, exit_code: i32) -> Option<RestartRule> {
    container.restart_policy.as_ref()?;
    let rule =
        container.restart_policy_rules.iter().flatten().find(|rule| matches(rule, exit_code))?;
    match rule.action.as_str() {
        "Restart" => Some(RestartRule::Restart),
        "RestartAllContainers" => Some(RestartRule::RestartAll),
        _ => None,
    }
}

/// Whether some rule of the pod can restart all its containers.
pub fn restarts_all(pod: &Pod) -> bool {
    let Some(spec) = &pod.spec else { return false };
    spec.init_containers
        .iter()
        .flatten()
        .chain(&spec.containers)
        .flat_map(|c| c.restart_policy_rules.iter().flatten())
        .any(|rule| rule.action == "RestartAllContainers")
}

/// Whether a container that ended with this exit code is restartable.
pub fn restartable(
    container: &Container,
    spec: &PodSpec,
    exit_code: i32,
    gates: &PodGates,
) -> bool {
    if gates.container_restart_rules
        && let Some(policy) = container.restart_policy.as_deref()
    {
        match matching_rule(container, exit_code) {
            Some(RestartRule::Restart) => return true,
            Some(RestartRule::RestartAll) if gates.restart_all_containers => return true,
            _ => {}
        }
        match policy {
            "Always" => return true,
            "OnFailure" => return exit_code != 0,
            "Never" => return false,
            _ => {}
        }
    }
    match spec.restart_policy.as_deref() {
        Some("OnFailure") => exit_code != 0,
        Some("Never") => false,
        _ => true,
    }
}

/// Whether some exit code lets a container run again (upstream: `IsContainerRestartable`).
pub fn may_run_again(container: &Container, spec: &PodSpec, gates: &PodGates) -> bool {
    let own = container.restart_policy.as_deref().filter(|_| gates.container_restart_rules);
    let by_rule =
        || container.restart_policy_rules.iter().flatten().any(|rule| rule.action == "Restart");
    match own {
        Some(policy) => policy != "Never" || by_rule(),
        None => spec.restart_policy.as_deref() != Some("Never"),
    }
}

/// Whether a container should be started (again), given its newest instance.
pub fn should_be_restarted(
    container: &Container,
    pod: &Pod,
    newest: Option<&ContainerView>,
    gates: &PodGates,
) -> bool {
    let Some(spec) = &pod.spec else { return false };
    if pod.metadata.deletion_timestamp.is_some() {
        return false;
    }
    let Some(newest) = newest else { return true };
    match newest.state {
        ContainerRunState::Running => false,
        ContainerRunState::Unknown | ContainerRunState::Created | ContainerRunState::CutOff => true,
        ContainerRunState::Exited => restartable(container, spec, newest.exit_code, gates),
    }
}

/// Whether a container that has to be killed is meant to run afterwards: its own policy, else the pod's.
pub(crate) fn restarts_after_kill(container: &Container, spec: &PodSpec, gates: &PodGates) -> bool {
    let own = container.restart_policy.as_deref().filter(|_| gates.container_restart_rules);
    own.or(spec.restart_policy.as_deref()) != Some("Never")
}

fn matches(rule: &ContainerRestartRule, exit_code: i32) -> bool {
    let Some(codes) = &rule.exit_codes else { return false };
    let listed = codes.values.iter().flatten().any(|v| *v == exit_code);
    match codes.operator.as_str() {
        "In" => listed,
        "NotIn" => !listed,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::core::v1::ContainerRestartRuleOnExitCodes;

    fn container(policy: Option<&str>, rules: &[(&str, i32, &str)]) -> Container {
        Container {
            name: "c".to_owned(),
            restart_policy: policy.map(str::to_owned),
            restart_policy_rules: Some(
                rules
                    .iter()
                    .map(|(operator, code, action)| ContainerRestartRule {
                        action: (*action).to_owned(),
                        exit_codes: Some(ContainerRestartRuleOnExitCodes {
                            operator: (*operator).to_owned(),
                            values: Some(vec![*code]),
                        }),
                    })
                    .collect(),
            ),
            ..Container::default()
        }
    }

    fn spec(policy: &str) -> PodSpec {
        PodSpec { restart_policy: Some(policy.to_owned()), ..PodSpec::default() }
    }

    #[test]
    fn exit_codes_and_policies_decide_as_in_the_table() {
        let in42 = [("In", 42, "Restart")];
        let not0 = [("NotIn", 0, "RestartAllContainers")];
        let cases = [
            ("pod policy Always", container(None, &[]), "Always", 0, true),
            ("pod policy OnFailure, success", container(None, &[]), "OnFailure", 0, false),
            ("pod policy OnFailure, failure", container(None, &[]), "OnFailure", 3, true),
            ("pod policy Never", container(None, &[]), "Never", 1, false),
            ("own Never beats pod Always", container(Some("Never"), &[]), "Always", 1, false),
            ("own Always beats pod Never", container(Some("Always"), &[]), "Never", 0, true),
            ("rule beats own policy", container(Some("Never"), &in42), "Never", 42, true),
            ("no rule matches", container(Some("Never"), &in42), "Always", 41, false),
            ("rules need an own policy", container(None, &in42), "Never", 42, false),
            ("restart-all restarts", container(Some("Never"), &not0), "Never", 7, true),
            ("restart-all not matched", container(Some("Never"), &not0), "Never", 0, false),
            ("unknown policy is Always", container(None, &[]), "Sometimes", 1, true),
        ];
        for (name, container, policy, code, expected) in cases {
            assert_eq!(
                restartable(&container, &spec(policy), code, &PodGates::default()),
                expected,
                "{name}"
            );
        }
    }

    #[test]
    fn a_container_may_run_again_by_its_policy_or_a_rule_of_its_own() {
        let gates = PodGates::default();
        let may =
            |own, rules: &[_], policy| may_run_again(&container(own, rules), &spec(policy), &gates);
        assert!(!may(None, &[], "Never"));
        assert!(may(None, &[], "OnFailure"));
        assert!(!may(Some("Never"), &[], "Always"));
        assert!(may(Some("Never"), &[("In", 42, "Restart")], "Never"));
        assert!(!may(Some("Never"), &[("In", 42, "RestartAllContainers")], "Never"));
        assert!(may(Some("OnFailure"), &[], "Never"));
    }

    #[test]
    fn with_the_gate_off_only_the_pod_policy_counts() {
        let gates = PodGates { container_restart_rules: false, ..PodGates::default() };
        assert!(!restartable(&container(Some("Always"), &[]), &spec("Never"), 1, &gates));
    }
}
