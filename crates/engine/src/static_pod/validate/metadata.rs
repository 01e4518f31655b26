//! Names, labels, annotations, owners, finalizers.

use super::faults::{At, Faults};
use super::{Rules, scheduling, text};
use api::core::v1::{Pod, PodSpec, Toleration};
use api::machinery::apis::meta::v1::{ObjectMeta, OwnerReference};
use std::collections::BTreeMap;

/// Bytes that all annotations may have together.
const ANNOTATION_BYTES: usize = 256 * 1024;
const FINALIZERS: [&str; 3] = ["kubernetes", "orphan", "foregroundDeletion"];
const TOLERATIONS: &str = "scheduler.alpha.kubernetes.io/tolerations";
const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";
pub(super) const SECCOMP_POD: &str = "seccomp.security.alpha.kubernetes.io/pod";
pub(super) const SECCOMP_CONTAINER: &str = "container.seccomp.security.alpha.kubernetes.io/";
pub(super) const APPARMOR: &str = "container.apparmor.security.beta.kubernetes.io/";

pub(super) fn check(pod: &Pod, spec: &PodSpec, rules: &Rules, list: &mut Faults) {
    let at = At::new("metadata");
    object(&pod.metadata, &at, list);
    if let Some(annotations) = &pod.metadata.annotations {
        own_annotations(annotations, spec, rules, &at.get("annotations"), list);
    }
}

fn object(meta: &ObjectMeta, at: &At, list: &mut Faults) {
    if let Some(generated) = meta.generate_name.as_ref().filter(|n| !n.is_empty()) {
        // A dash at the end is fine: something will follow.
        let masked = match generated.strip_suffix('-') {
            Some(rest) if !rest.is_empty() => {
                let mut masked = rest.to_owned();
                masked.pop();
                masked + "a"
            }
            _ => generated.clone(),
        };
        list.each(&at.get("generateName"), generated, text::subdomain(&masked));
    }
    match meta.name.as_deref().unwrap_or_default() {
        "" => list.required(&at.get("name"), "name or generateName is required"),
        name => list.each(&at.get("name"), name, text::subdomain(name)),
    }
    match meta.namespace.as_deref().unwrap_or_default() {
        "" => list.required(&at.get("namespace"), ""),
        namespace => list.each(&at.get("namespace"), namespace, text::label(namespace)),
    }
    list.not_negative(&at.get("generation"), meta.generation.unwrap_or_default());
    if let Some(labels) = &meta.labels {
        scheduling::check_labels(labels, &at.get("labels"), list);
    }
    if let Some(annotations) = &meta.annotations {
        let at = at.get("annotations");
        for key in annotations.keys() {
            list.each(&at, key, text::key(&key.to_lowercase()));
        }
        let bytes: usize = annotations.iter().map(|(k, v)| k.len() + v.len()).sum();
        if bytes > ANNOTATION_BYTES {
            list.too_long(&at, ANNOTATION_BYTES);
        }
    }
    owners(meta.owner_references.as_deref().unwrap_or_default(), &at.get("ownerReferences"), list);
    finalizers(meta.finalizers.as_deref().unwrap_or_default(), &at.get("finalizers"), list);
}

fn owners(owners: &[OwnerReference], at: &At, list: &mut Faults) {
    let mut controller: Option<String> = None;
    for owner in owners {
        let (group, version) =
            owner.api_version.rsplit_once('/').unwrap_or(("", &owner.api_version));
        if version.is_empty() {
            list.invalid(&at.get("apiVersion"), &owner.api_version, "version must not be empty");
        }
        for (name, value) in [("kind", &owner.kind), ("name", &owner.name), ("uid", &owner.uid)] {
            if value.is_empty() {
                list.invalid(&at.get(name), value, "must not be empty");
            }
        }
        if (group, version, owner.kind.as_str()) == ("", "v1", "Event") {
            list.invalid(at, owner, "/v1, Kind=Event is disallowed from being an owner");
        }
        if owner.controller == Some(true) {
            let this = format!("{}/{}", owner.kind, owner.name);
            match &controller {
                Some(first) => list.invalid(
                    at,
                    owners,
                    &format!(
                        "Only one reference can have Controller set to true. Found \"true\" in references for {first} \
                         and {this}"
                    ),
                ),
                None => controller = Some(this),
            }
        }
    }
}

fn finalizers(finalizers: &[String], at: &At, list: &mut Faults) {
    for name in finalizers {
        list.each(at, name, text::key(name));
    }
    let has = |name: &str| finalizers.iter().any(|f| f == name);
    if has("orphan") && has("foregroundDeletion") {
        let why = "finalizer orphan and foregroundDeletion cannot be both set";
        list.invalid(at, finalizers, why);
    }
    for (index, name) in finalizers.iter().enumerate() {
        if !name.contains('/') && !FINALIZERS.contains(&name.as_str()) {
            let why = "name is neither a standard finalizer name nor is it fully qualified";
            list.invalid(&at.nth(index), name, why);
        }
    }
}

fn own_annotations(
    annotations: &BTreeMap<String, String>,
    spec: &PodSpec,
    rules: &Rules,
    at: &At,
    list: &mut Faults,
) {
    if let Some(text) = annotations.get(TOLERATIONS).filter(|t| !t.is_empty()) {
        match serde_json::from_str::<Option<Vec<Toleration>>>(text) {
            Ok(found) => {
                let at = at.get(TOLERATIONS);
                scheduling::check_tolerations(&found.unwrap_or_default(), rules, &at, list);
            }
            Err(error) => list.invalid(at, TOLERATIONS, &error.to_string()),
        }
    }
    if let Some(cost) = annotations.get(DELETION_COST).filter(|_| rules.deletion_cost) {
        let first = cost.bytes().next();
        let begins = cost == "0" || matches!(first, Some(b'-' | b'1'..=b'9'));
        if !begins || cost.parse::<i32>().is_err() {
            list.invalid(&at.key(DELETION_COST), cost, "must be a 32bit integer");
        }
    }
    for (key, value) in annotations {
        if key == SECCOMP_POD || key.starts_with(SECCOMP_CONTAINER) {
            seccomp(value, &at.get(key), list);
        }
        if let Some(name) = key.strip_prefix(APPARMOR) {
            let names = spec.containers.iter().chain(spec.init_containers.iter().flatten());
            let ephemeral = spec.ephemeral_containers.iter().flatten().map(|c| &c.name);
            if !names.map(|c| &c.name).chain(ephemeral).any(|n| n == name) {
                list.invalid(&at.key(key), name, "container not found");
            }
            let known = ["", "runtime/default", "unconfined"].contains(&value.as_str());
            if !known && !value.starts_with("localhost/") {
                let why =
                    format!("invalid AppArmor profile name: {}", units::strconv::quote(value));
                list.invalid(&at.key(key), value, &why);
            }
        }
    }
}

fn seccomp(profile: &str, at: &At, list: &mut Faults) {
    if ["runtime/default", "docker/default", "unconfined"].contains(&profile) {
        return;
    }
    match profile.strip_prefix("localhost/") {
        Some(path) => list.each(at, path, text::descending(path)),
        None => list.invalid(at, profile, "must be a valid seccomp profile"),
    }
}
