//! The pod's own fields, and the order of all checks.

use super::containers::{self, Surroundings};
use super::faults::{At, Faults};
use super::resources::Owner;
use super::{Rules, env, resources, scheduling, security, text, volumes};
use api::core::v1::{Pod, PodDNSConfig, PodResourceClaim, PodSpec, ResourceRequirements};
use api::pod::PodExt;
use std::collections::BTreeSet;

const MOST_SERVERS: usize = 3;
const MOST_SEARCHES: usize = 32;
const MOST_SEARCH_BYTES: usize = 2048;

pub(super) fn check(pod: &Pod, spec: &PodSpec, rules: &Rules, at: &At, list: &mut Faults) {
    if spec.termination_grace_period_seconds.is_none() {
        list.required(&at.get("terminationGracePeriodSeconds"), "");
    }
    let pod_name = pod.name_str();
    let mounted = volumes::check(spec, pod_name, &at.get("volumes"), list);
    let wanted = spec.resource_claims.as_deref().unwrap_or_default();
    let claims: BTreeSet<&str> =
        wanted.iter().map(|c| c.name.as_str()).filter(|name| !name.is_empty()).collect();
    let mirror = pod.metadata.annotations.as_ref();
    let mirror = mirror.is_some_and(|a| a.contains_key(api::pod::MIRROR_ANNOTATION));
    check_claims(wanted, mirror, &at.get("resourceClaims"), list);
    let around = Surroundings { spec, rules, volumes: mounted, claims };
    containers::check_regular(&around, &at.get("containers"), list);
    containers::check_init(&around, &at.get("initContainers"), list);
    if rules.pod_level_resources {
        resources::check_pod(pod, spec, &around.claims, at, list);
    }
    check_host_network_ports(spec, at, list);
    list.word(
        &at.get("restartPolicy"),
        spec.restart_policy.as_deref(),
        &["Always", "OnFailure", "Never"],
    );
    list.word(
        &at.get("dnsPolicy"),
        spec.dns_policy.as_deref(),
        &["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"],
    );
    if let Some(selector) = &spec.node_selector {
        scheduling::check_labels(selector, &at.get("nodeSelector"), list);
    }
    if let Some(context) = &spec.security_context {
        security::check_pod(context, spec, &at.get("securityContext"), list);
    }
    if let Some(affinity) = &spec.affinity {
        scheduling::check_affinity(affinity, &at.get("affinity"), list);
    }
    check_dns(spec, rules, &at.get("dnsConfig"), list);
    for (index, gate) in spec.readiness_gates.iter().flatten().enumerate() {
        let at = at.get("readinessGates").nth(index).get("conditionType");
        list.each(&at, &gate.condition_type, text::key(&gate.condition_type));
    }
    check_gates(spec, &at.get("schedulingGates"), list);
    let spread = spec.topology_spread_constraints.as_deref().unwrap_or_default();
    scheduling::check_spread(spread, rules, &at.get("topologySpreadConstraints"), list);
    security::check_host_users(spec, rules.user_namespace_on_host_network, at, list);
    check_hostname(spec, at, list);
    check_names(spec, at, list);
    let tolerations = spec.tolerations.as_deref().unwrap_or_default();
    scheduling::check_tolerations(tolerations, rules, &at.get("tolerations"), list);
    check_aliases(spec, rules, &at.get("hostAliases"), list);
    if spec.preemption_policy.is_some() {
        let policy = spec.preemption_policy.as_deref();
        list.word(&at.get("preemptionPolicy"), policy, &["PreemptLowerPriority", "Never"]);
    }
    if let Some(overhead) = &spec.overhead {
        let as_limits = ResourceRequirements {
            limits: Some(overhead.clone()),
            ..ResourceRequirements::default()
        };
        let at = at.get("overhead");
        resources::check(&as_limits, Owner::Container, &BTreeSet::new(), &at, list);
    }
    security::check_os(spec, at, list);
    env::check_file_volumes(spec, at, list);
    check_for_pods(spec, at, list);
}

/// Checks that apply to pods but not to templates, and only on creation.
fn check_for_pods(spec: &PodSpec, at: &At, list: &mut Faults) {
    if spec.service_account_name.as_deref().unwrap_or_default().is_empty() {
        for (index, volume) in spec.volumes.iter().flatten().enumerate() {
            let sources = volume.projected.as_ref().and_then(|p| p.sources.as_ref());
            for (number, source) in sources.into_iter().flatten().enumerate() {
                if source.service_account_token.is_some() {
                    let at = at.get("volumes").nth(index).get("projected").get("sources");
                    let at = at.nth(number).get("serviceAccountToken");
                    let why = "must not be specified when serviceAccountName is not set";
                    list.forbidden(&at, why);
                }
            }
        }
    }
    containers::check_images(spec, at, list);
    if spec.ephemeral_containers.as_ref().is_some_and(|e| !e.is_empty()) {
        list.forbidden(&at.get("ephemeralContainers"), "cannot be set on create");
    }
    let gated = spec.scheduling_gates.as_ref().is_some_and(|g| !g.is_empty());
    if gated && spec.node_name.as_ref().is_some_and(|n| !n.is_empty()) {
        let why = "cannot be set until all schedulingGates have been cleared";
        list.forbidden(&at.get("nodeName"), why);
    }
}

fn check_claims(claims: &[PodResourceClaim], mirror: bool, at: &At, list: &mut Faults) {
    let mut names = BTreeSet::new();
    for (index, claim) in claims.iter().enumerate() {
        if mirror {
            list.forbidden(&At::new(""), "static pods do not support resource claims");
            continue;
        }
        let at = at.nth(index);
        let name = claim.name.as_str();
        if name.is_empty() {
            list.required(&at.get("name"), "");
        } else if !names.insert(name) {
            list.duplicate(&at.get("name"), name);
        } else {
            list.each(&at.get("name"), name, text::label(name));
        }
        let (given, template) = (&claim.resource_claim_name, &claim.resource_claim_template_name);
        match (given, template) {
            (Some(_), Some(_)) => {
                let why = "at most one of `resourceClaimName` or `resourceClaimTemplateName` may be specified";
                list.invalid(&at, claim, why);
            }
            (None, None) => {
                let why = "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`";
                list.invalid(&at, claim, why);
            }
            _ => {}
        }
        for (field, value) in
            [("resourceClaimName", given), ("resourceClaimTemplateName", template)]
        {
            if let Some(value) = value {
                list.each(&at.get(field), value, text::subdomain(value));
            }
        }
    }
}

fn check_host_network_ports(spec: &PodSpec, at: &At, list: &mut Faults) {
    if spec.host_network != Some(true) {
        return;
    }
    for (index, container) in spec.containers.iter().enumerate() {
        for (number, port) in container.ports.iter().flatten().enumerate() {
            let host = port.host_port.unwrap_or_default();
            if host != 0 && host != port.container_port {
                let at = at.get("containers").nth(index).get("ports").nth(number).get("hostPort");
                let why = "must match `containerPort` when `hostNetwork` is true";
                list.invalid(&at, host, why);
            }
        }
    }
}

fn check_dns(spec: &PodSpec, rules: &Rules, at: &At, list: &mut Faults) {
    let config: Option<&PodDNSConfig> = spec.dns_config.as_ref();
    let servers = config.and_then(|c| c.nameservers.as_deref()).unwrap_or_default();
    if spec.dns_policy.as_deref() == Some("None") && servers.is_empty() {
        return match config {
            None => list.required(at, "must provide `dnsConfig` when `dnsPolicy` is None"),
            Some(_) => list.required(
                &at.get("nameservers"),
                "must provide at least one DNS nameserver when `dnsPolicy` is None",
            ),
        };
    }
    let Some(config) = config else { return };
    let at_servers = at.get("nameservers");
    if servers.len() > MOST_SERVERS {
        let why = format!("must not have more than {MOST_SERVERS} nameservers");
        list.invalid(&at_servers, servers, &why);
    }
    for (index, server) in servers.iter().enumerate() {
        let wrong = text::address(server, rules.strict_addresses);
        list.each(&at_servers.nth(index), server, wrong);
    }
    let at_searches = at.get("searches");
    let searches = config.searches.as_deref().unwrap_or_default();
    if searches.len() > MOST_SEARCHES {
        let why = format!("must not have more than {MOST_SEARCHES} search paths");
        list.invalid(&at_searches, searches, &why);
    }
    if searches.join(" ").len() > MOST_SEARCH_BYTES {
        let why = format!(
            "must not have more than {MOST_SEARCH_BYTES} characters (including spaces) in the search list"
        );
        list.invalid(&at_searches, searches, &why);
    }
    for (index, search) in searches.iter().enumerate().filter(|(_, search)| *search != ".") {
        let name = search.strip_suffix('.').unwrap_or(search);
        list.each(&at_searches.nth(index), name, text::underscored_subdomain(name));
    }
    for (index, option) in config.options.iter().flatten().enumerate() {
        if option.name.as_deref().unwrap_or_default().is_empty() {
            list.required(&at.get("options").nth(index), "must not be empty");
        }
    }
}

fn check_gates(spec: &PodSpec, at: &At, list: &mut Faults) {
    let mut seen = BTreeSet::new();
    for (index, gate) in spec.scheduling_gates.iter().flatten().enumerate() {
        let at = at.nth(index);
        list.each(&at, &gate.name, text::key(&gate.name));
        if !seen.insert(gate.name.as_str()) {
            list.duplicate(&at, &gate.name);
        }
    }
}

fn check_hostname(spec: &PodSpec, at: &At, list: &mut Faults) {
    let Some(name) = &spec.hostname_override else { return };
    let at = at.get("hostnameOverride");
    if spec.set_hostname_as_fqdn == Some(true) {
        list.forbidden(&at, "may not be specified when setHostnameAsFQDN is true");
    }
    if spec.host_network == Some(true) {
        list.forbidden(&at, "may not be specified when hostNetwork is true");
    }
    if name.len() > 64 {
        list.too_long(&at, 64);
    }
    list.each(&at, name, text::subdomain(name));
}

fn check_names(spec: &PodSpec, at: &At, list: &mut Faults) {
    let set = |field: &Option<String>| field.clone().filter(|name| !name.is_empty());
    let check =
        |field: &str, value: Option<String>, form: fn(&str) -> Vec<String>, list: &mut Faults| {
            if let Some(value) = value {
                list.each(&at.get(field), &value, form(&value));
            }
        };
    check("serviceAccountName", set(&spec.service_account_name), text::subdomain, list);
    check("nodeName", set(&spec.node_name), text::subdomain, list);
    if let Some(seconds) = spec.active_deadline_seconds {
        list.range(&at.get("activeDeadlineSeconds"), seconds, 1, i32::MAX.into());
    }
    check("hostname", set(&spec.hostname), text::label, list);
    check("subdomain", set(&spec.subdomain), text::label, list);
    check("priorityClassName", set(&spec.priority_class_name), text::subdomain, list);
    check("runtimeClassName", spec.runtime_class_name.clone(), text::subdomain, list);
}

fn check_aliases(spec: &PodSpec, rules: &Rules, at: &At, list: &mut Faults) {
    for (index, alias) in spec.host_aliases.iter().flatten().enumerate() {
        let at = at.nth(index);
        list.each(&at.get("ip"), &alias.ip, text::address(&alias.ip, rules.strict_addresses));
        for (number, name) in alias.hostnames.iter().flatten().enumerate() {
            list.each(&at.get("hostnames").nth(number), name, text::subdomain(name));
        }
    }
}
