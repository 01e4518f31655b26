//! Environment variables and their sources.

use super::faults::{At, Faults};
use super::text;
use api::core::v1::{
    EnvFromSource, EnvVar, EnvVarSource, ObjectFieldSelector, PodSpec, ResourceFieldSelector,
};

const IN_ENVIRONMENT: [&str; 9] = [
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];
const IN_FILES: [&str; 5] = [
    "metadata.annotations",
    "metadata.labels",
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
];
/// Fields that the API knows, though not all are allowed everywhere.
const FIELDS: [&str; 14] = [
    "metadata.annotations",
    "metadata.labels",
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.restartPolicy",
    "spec.serviceAccountName",
    "spec.schedulerName",
    "status.phase",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];
const RESOURCES: [&str; 6] = [
    "limits.cpu",
    "limits.ephemeral-storage",
    "limits.memory",
    "requests.cpu",
    "requests.ephemeral-storage",
    "requests.memory",
];
const SIZES: [&str; 13] =
    ["1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei"];

pub(super) fn check(variables: &[EnvVar], at: &At, list: &mut Faults) {
    for (index, variable) in variables.iter().enumerate() {
        let at = at.nth(index);
        if variable.name.is_empty() {
            list.required(&at.get("name"), "");
        } else {
            list.each(&at.get("name"), &variable.name, text::variable(&variable.name));
        }
        if let Some(source) = &variable.value_from {
            let given = variable.value.as_ref().is_some_and(|v| !v.is_empty());
            check_source(source, given, &at.get("valueFrom"), list);
        }
    }
}

fn check_source(source: &EnvVarSource, given: bool, at: &At, list: &mut Faults) {
    let mut count = 0;
    if let Some(field) = &source.field_ref {
        count += 1;
        check_field(field, &IN_ENVIRONMENT, &at.get("fieldRef"), list);
    }
    if let Some(resource) = &source.resource_field_ref {
        count += 1;
        check_resource(resource, false, &at.get("resourceFieldRef"), list);
    }
    let keys = [
        ("configMapKeyRef", source.config_map_key_ref.as_ref().map(|s| (&s.name, &s.key))),
        ("secretKeyRef", source.secret_key_ref.as_ref().map(|s| (&s.name, &s.key))),
    ];
    for (name, selector) in keys {
        let Some((object, key)) = selector else { continue };
        count += 1;
        let at = at.get(name);
        list.each(&at.get("name"), object, text::subdomain(object));
        if key.is_empty() {
            list.required(&at.get("key"), "");
        } else {
            list.each(&at.get("key"), key, text::data_key(key));
        }
    }
    if let Some(file) = &source.file_key_ref {
        count += 1;
        let at = at.get("fileKeyRef");
        if file.key.is_empty() {
            list.required(&at.get("key"), "");
        } else {
            list.each(&at.get("key"), &file.key, text::variable(&file.key));
        }
        if file.volume_name.is_empty() {
            list.required(&at.get("volumeName"), "");
        } else {
            list.each(&at.get("volumeName"), &file.volume_name, text::label(&file.volume_name));
        }
        list.filled(&at.get("path"), Some(&file.path));
        list.each(&at.get("path"), &file.path, text::backstep(&file.path).into_iter().collect());
    }
    match count {
        0 => list.invalid(
            at,
            "",
            "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`",
        ),
        _ if given => list.invalid(at, "", "may not be specified when `value` is not empty"),
        1 => {}
        _ => list.invalid(at, "", "may not have more than one field specified at a time"),
    }
}

/// A field of the pod, for a variable or (`downward_file`) a file.
fn check_field(field: &ObjectFieldSelector, allowed: &[&str], at: &At, list: &mut Faults) {
    let version = field.api_version.as_deref().unwrap_or_default();
    if version.is_empty() {
        return list.required(&at.get("apiVersion"), "");
    }
    let path = field.field_path.as_str();
    if path.is_empty() {
        return list.required(&at.get("fieldPath"), "");
    }
    let subscript = path.strip_suffix("']").and_then(|p| p.split_once("['"));
    let subscript = subscript.filter(|(map, _)| !map.is_empty());
    let known = match subscript {
        Some((map, _)) => ["metadata.annotations", "metadata.labels"].contains(&map),
        None => FIELDS.contains(&path) || path == "spec.host",
    };
    let complaint = if version != "v1" {
        Some(format!("unsupported pod version: {version}"))
    } else if !known && subscript.is_some() {
        Some(format!("field label does not support subscript: {path}"))
    } else if !known {
        Some(format!("field label not supported: {path}"))
    } else {
        None
    };
    if let Some(complaint) = complaint {
        let why = format!("error converting fieldPath: {complaint}");
        return list.invalid(&at.get("fieldPath"), path, &why);
    }
    match subscript {
        Some(("metadata.annotations", key)) => {
            let key = key.to_lowercase();
            list.each(at, &key, text::key(&key));
        }
        Some((_, key)) => list.each(at, key, text::key(key)),
        None => {
            let path = if path == "spec.host" { "spec.nodeName" } else { path };
            list.word_if_set(&at.get("fieldPath"), Some(path), allowed);
        }
    }
}

/// A field of the pod in a file of a volume.
pub(super) fn check_field_of_file(field: &ObjectFieldSelector, at: &At, list: &mut Faults) {
    check_field(field, &IN_FILES, at, list);
}

/// Resources of a container, for a variable or a file.
pub(super) fn check_resource(
    wanted: &ResourceFieldSelector,
    in_file: bool,
    at: &At,
    list: &mut Faults,
) {
    let name = wanted.resource.as_str();
    let huge = name.starts_with("requests.hugepages-") || name.starts_with("limits.hugepages-");
    if in_file && wanted.container_name.as_deref().unwrap_or_default().is_empty() {
        list.required(&at.get("containerName"), "");
    } else if name.is_empty() {
        list.required(&at.get("resource"), "");
    } else if !huge {
        list.word_if_set(&at.get("resource"), Some(name), &RESOURCES);
    }
    let Some(divisor) = &wanted.divisor else { return };
    let Ok(divisor) = divisor.0.parse::<units::Quantity>() else {
        return list.invalid(&at.get("divisor"), &divisor.0, "must be a valid resource quantity");
    };
    if divisor == units::Quantity::default() {
        return;
    }
    let sizes = "only divisor's values 1, 1k, 1M, 1G, 1T, 1P, 1E, 1Ki, 1Mi, 1Gi, 1Ti, 1Pi, 1Ei are supported with the";
    let (allowed, why): (&[&str], String) = match name {
        "limits.cpu" | "requests.cpu" => (
            &["1m", "1"],
            "only divisor's values 1m and 1 are supported with the cpu resource".to_owned(),
        ),
        "limits.memory" | "requests.memory" => (&SIZES, format!("{sizes} memory resource")),
        "limits.ephemeral-storage" | "requests.ephemeral-storage" => {
            (&SIZES, format!("{sizes} local ephemeral storage resource"))
        }
        _ if huge => (&SIZES, format!("{sizes} hugepages resource")),
        _ => return,
    };
    if !allowed.contains(&divisor.to_string().as_str()) {
        list.invalid(&at.get("divisor"), name, &why);
    }
}

pub(super) fn check_from(sources: &[EnvFromSource], at: &At, list: &mut Faults) {
    for (index, source) in sources.iter().enumerate() {
        let place = at.nth(index);
        if let Some(prefix) = source.prefix.as_ref().filter(|p| !p.is_empty()) {
            list.each(&place.get("prefix"), prefix, text::variable(prefix));
        }
        let names = [
            ("configMapRef", source.config_map_ref.as_ref().map(|r| r.name.as_str())),
            ("secretRef", source.secret_ref.as_ref().map(|r| r.name.as_str())),
        ];
        for (field, name) in names {
            match name {
                None => {}
                Some("") => list.required(&place.get(field).get("name"), ""),
                Some(name) => {
                    // A name may still grow: a dash at its end is fine.
                    let masked = name.strip_suffix('-').filter(|rest| !rest.is_empty());
                    list.each(
                        &place.get(field).get("name"),
                        name,
                        text::subdomain(masked.unwrap_or(name)),
                    );
                }
            }
        }
        match names.iter().filter(|(_, name)| name.is_some()).count() {
            0 => list.invalid(at, "", "must specify one of: `configMapRef` or `secretRef`"),
            1 => {}
            _ => list.invalid(at, "", "may not have more than one field specified at a time"),
        }
    }
}

/// Files that variables are read from must be on a volume of the pod's own.
pub(super) fn check_file_volumes(spec: &PodSpec, at: &At, list: &mut Faults) {
    let lists = [
        ("initContainers", spec.init_containers.as_deref().unwrap_or_default()),
        ("containers", spec.containers.as_slice()),
    ];
    for (field, containers) in lists {
        for (number, container) in containers.iter().enumerate() {
            for (index, variable) in container.env.iter().flatten().enumerate() {
                let source = variable.value_from.as_ref().and_then(|v| v.file_key_ref.as_ref());
                let Some(file) = source else { continue };
                let at = at.get(field).nth(number).get("env").nth(index);
                let at = at.get("valueFrom").get("fileKeyRef").get("volumeName");
                let mut volumes = spec.volumes.iter().flatten().rev();
                match volumes.find(|v| v.name == file.volume_name) {
                    None => list.not_found(&at, &file.volume_name, ""),
                    Some(volume) if volume.empty_dir.is_none() => {
                        let why = "referenced volume must be of type emptyDir";
                        list.invalid(&at, &file.volume_name, why);
                    }
                    Some(_) => {}
                }
            }
        }
    }
}
