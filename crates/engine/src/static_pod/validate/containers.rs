//! Containers of all kinds.

use super::faults::{At, Faults};
use super::resources::Owner;
use super::{Rules, env, handlers, mounts, resources, security, text};
use api::core::v1::{Container, ContainerPort, ContainerResizePolicy, PodSpec, Volume};
use api::pod::ContainerExt;
use std::collections::{BTreeMap, BTreeSet};

const PULL_POLICIES: [&str; 3] = ["Always", "IfNotPresent", "Never"];
const ONLY_SIDECARS: &str = "may not be set for init containers without restartPolicy=Always";

/// The context in which containers are checked.
pub(super) struct Surroundings<'a> {
    pub(super) spec: &'a PodSpec,
    pub(super) rules: &'a Rules,
    /// Volumes without a fault of their own.
    pub(super) volumes: BTreeMap<&'a str, &'a Volume>,
    /// Names of the pod's resource claims.
    pub(super) claims: BTreeSet<&'a str>,
}

pub(super) fn check_pull_policy(policy: Option<&str>, at: &At, list: &mut Faults) {
    list.word(at, policy, &PULL_POLICIES);
}

pub(super) fn check_regular(around: &Surroundings<'_>, at: &At, list: &mut Faults) {
    let containers = &around.spec.containers;
    if containers.is_empty() {
        return list.required(at, "");
    }
    let mut names = BTreeSet::new();
    for (index, container) in containers.iter().enumerate() {
        let at = at.nth(index);
        check_common(container, around, &at, list);
        if !names.insert(container.name.as_str()) {
            list.duplicate(&at.get("name"), &container.name);
        }
        check_running(container, around, &at, list);
        if around.rules.restart_rules {
            check_restart(container, around.rules, &at, list);
        } else if container.restart_policy.is_some() {
            list.forbidden(&at.get("restartPolicy"), "may not be set for non-init containers");
        }
    }
    let mut taken = BTreeSet::new();
    for (index, container) in containers.iter().enumerate() {
        check_host_ports(container, &mut taken, &at.nth(index), list);
    }
}

pub(super) fn check_init(around: &Surroundings<'_>, at: &At, list: &mut Faults) {
    let mut names: BTreeSet<&str> =
        around.spec.containers.iter().map(|c| c.name.as_str()).collect();
    for (index, container) in around.spec.init_containers.iter().flatten().enumerate() {
        let place = at.nth(index);
        check_common(container, around, &place, list);
        check_init_restart(container, around.rules, &place, list);
        if names.contains(container.name.as_str()) {
            list.duplicate(&place.get("name"), &container.name);
        } else if !container.name.is_empty() {
            names.insert(&container.name);
        }
        // They run one after the other, so only ports of the same one can collide.
        check_host_ports(container, &mut BTreeSet::new(), &at.nth(0), list);
        if container.is_sidecar() {
            check_running(container, around, &place, list);
        } else {
            let set = [
                ("lifecycle", container.lifecycle.is_some()),
                ("livenessProbe", container.liveness_probe.is_some()),
                ("readinessProbe", container.readiness_probe.is_some()),
                ("startupProbe", container.startup_probe.is_some()),
            ];
            for (name, _) in set.into_iter().filter(|(_, set)| *set) {
                list.forbidden(&place.get(name), ONLY_SIDECARS);
            }
            for (number, policy) in container.resize_policy.iter().flatten().enumerate() {
                if policy.restart_policy == "RestartContainer" {
                    let at = place.get("resizePolicy").nth(number).get("restartPolicy");
                    let why =
                        "must not be set to 'RestartContainer' for non-sidecar initContainers";
                    list.invalid(&at, &policy.restart_policy, why);
                }
            }
        }
    }
}

/// Checks what only long-running containers may have: hooks and probes.
fn check_running(container: &Container, around: &Surroundings<'_>, at: &At, list: &mut Faults) {
    if let Some(lifecycle) = &container.lifecycle {
        handlers::check_lifecycle(lifecycle, around.spec, &at.get("lifecycle"), list);
    }
    let grace = around.spec.termination_grace_period_seconds;
    for (name, probe) in [
        ("livenessProbe", &container.liveness_probe),
        ("readinessProbe", &container.readiness_probe),
        ("startupProbe", &container.startup_probe),
    ] {
        if let Some(probe) = probe {
            handlers::check_probe(probe, name, grace, at, list);
        }
    }
}

fn check_common(container: &Container, around: &Surroundings<'_>, at: &At, list: &mut Faults) {
    if container.name.is_empty() {
        list.required(&at.get("name"), "");
    } else {
        list.each(&at.get("name"), &container.name, text::label(&container.name));
    }
    list.filled(&at.get("image"), container.image.as_deref());
    list.word(
        &at.get("terminationMessagePolicy"),
        container.termination_message_policy.as_deref(),
        &["File", "FallbackToLogsOnError"],
    );
    check_ports(container.ports.as_deref().unwrap_or_default(), &at.get("ports"), list);
    env::check(container.env.as_deref().unwrap_or_default(), &at.get("env"), list);
    env::check_from(container.env_from.as_deref().unwrap_or_default(), &at.get("envFrom"), list);
    mounts::check(container, &around.volumes, at, list);
    check_pull_policy(container.image_pull_policy.as_deref(), &at.get("imagePullPolicy"), list);
    if let Some(wanted) = &container.resources {
        let at = at.get("resources");
        resources::check(wanted, Owner::Container, &around.claims, &at, list);
    }
    let never = around.spec.restart_policy.as_deref() == Some("Never");
    let policies = container.resize_policy.as_deref().unwrap_or_default();
    check_resize(policies, never, &at.get("resizePolicy"), list);
    if let Some(context) = &container.security_context {
        let host_users = around.spec.host_users != Some(false);
        security::check_container(context, host_users, &at.get("securityContext"), list);
    }
}

fn check_ports(ports: &[ContainerPort], at: &At, list: &mut Faults) {
    let mut names = BTreeSet::new();
    for (index, port) in ports.iter().enumerate() {
        let at = at.nth(index);
        if let Some(name) = port.name.as_ref().filter(|n| !n.is_empty()) {
            let wrong = text::port_name(name);
            if !wrong.is_empty() {
                list.each(&at.get("name"), name, wrong);
            } else if !names.insert(name.as_str()) {
                list.duplicate(&at.get("name"), name);
            }
        }
        match port.container_port {
            0 => list.required(&at.get("containerPort"), ""),
            number => list.range(&at.get("containerPort"), number.into(), 1, 65_535),
        }
        if let Some(number) = port.host_port.filter(|n| *n != 0) {
            list.range(&at.get("hostPort"), number.into(), 1, 65_535);
        }
        list.word(&at.get("protocol"), port.protocol.as_deref(), &["SCTP", "TCP", "UDP"]);
    }
}

fn check_host_ports(
    container: &Container,
    taken: &mut BTreeSet<String>,
    at: &At,
    list: &mut Faults,
) {
    for (index, port) in container.ports.iter().flatten().enumerate() {
        let Some(number) = port.host_port.filter(|n| *n != 0) else { continue };
        let protocol = port.protocol.as_deref().unwrap_or_default();
        let name = format!("{protocol}/{}/{number}", port.host_ip.as_deref().unwrap_or_default());
        if taken.contains(&name) {
            list.duplicate(&at.get("ports").nth(index).get("hostPort"), &name);
        } else {
            taken.insert(name);
        }
    }
}

fn check_resize(policies: &[ContainerResizePolicy], never: bool, at: &At, list: &mut Faults) {
    let mut seen = BTreeSet::new();
    for (index, policy) in policies.iter().enumerate() {
        if !seen.insert(policy.resource_name.as_str()) {
            list.duplicate(&at.nth(index), &policy.resource_name);
        }
        list.word(at, Some(&policy.resource_name), &["cpu", "memory"]);
        list.word(at, Some(&policy.restart_policy), &["NotRequired", "RestartContainer"]);
        if never && policy.restart_policy != "NotRequired" {
            let why = "must be 'NotRequired' when pod `restartPolicy` is 'Never'";
            list.invalid(at, &policy.restart_policy, why);
        }
    }
}

fn check_init_restart(container: &Container, rules: &Rules, at: &At, list: &mut Faults) {
    let rule_count = container.restart_policy_rules.as_ref().map_or(0, Vec::len);
    match container.restart_policy.as_deref() {
        None if rule_count > 0 => {
            let why = "must specify restartPolicy when restart rules are used";
            list.required(&at.get("restartPolicy"), why);
        }
        None => {}
        Some("Always") if !rules.restart_rules => {}
        Some(policy) if !rules.restart_rules => {
            list.unsupported(&at.get("restartPolicy"), policy, &["Always"]);
        }
        Some("Always") if !rules.restart_all && rule_count == 0 => {}
        Some("Always") if !rules.restart_all => {
            let why =
                "restartPolicyRules are not allowed for init containers with restart policy Always";
            list.forbidden(&at.get("restartPolicyRules"), why);
        }
        Some(_) => check_restart(container, rules, at, list),
    }
}

fn check_restart(container: &Container, rules: &Rules, at: &At, list: &mut Faults) {
    let given = container.restart_policy_rules.as_deref().unwrap_or_default();
    match container.restart_policy.as_deref() {
        None if given.is_empty() => return,
        None => {
            let why = "must specify restartPolicy when restart rules are used";
            list.required(&at.get("restartPolicy"), why);
        }
        policy => {
            list.word_if_set(&at.get("restartPolicy"), policy, &["Always", "Never", "OnFailure"])
        }
    }
    let at = at.get("restartPolicyRules");
    if given.len() > 20 {
        list.too_many(&at, given.len(), 20);
    }
    let actions = ["Restart", "RestartAllContainers"];
    let allowed = if rules.restart_all { actions.as_slice() } else { &["Restart"] };
    for (index, rule) in given.iter().enumerate() {
        let at = at.nth(index);
        list.word_if_set(&at.get("action"), Some(&rule.action), allowed);
        let at = at.get("exitCodes");
        let Some(codes) = &rule.exit_codes else {
            list.required(&at, "must be specified");
            continue;
        };
        list.word_if_set(&at.get("operator"), Some(&codes.operator), &["In", "NotIn"]);
        let count = codes.values.as_ref().map_or(0, Vec::len);
        if count > 255 {
            list.too_many(&at.get("values"), count, 255);
        }
    }
}

/// Checks that apply to pods but not to pod templates.
pub(super) fn check_images(spec: &PodSpec, at: &At, list: &mut Faults) {
    let lists = [
        ("containers", spec.containers.as_slice()),
        ("initContainers", spec.init_containers.as_deref().unwrap_or_default()),
    ];
    for (field, containers) in lists {
        for (index, container) in containers.iter().enumerate() {
            let image = container.image.as_deref().unwrap_or_default();
            if image.trim() != image {
                let why = "must not have leading or trailing whitespace";
                list.invalid(&at.get(field).nth(index).get("image"), image, why);
            }
        }
    }
}
