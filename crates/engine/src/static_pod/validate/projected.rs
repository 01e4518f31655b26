//! Files made of API objects and fields of the pod: secret, configMap, downwardAPI and projected volumes.

use super::faults::{At, Faults};
use super::{env, text};
use api::core::v1::{DownwardAPIVolumeFile, KeyToPath, ProjectedVolumeSource, VolumeProjection};
use std::collections::BTreeSet;

const MODE: &str = "must be a number between 0 and 0777 (octal), both inclusive";

pub(super) fn check_mode(mode: Option<i32>, at: &At, list: &mut Faults) {
    if let Some(mode) = mode.filter(|mode| !(0..=0o777).contains(mode)) {
        list.invalid(at, mode, MODE);
    }
}

pub(super) fn check_items(items: Option<&[KeyToPath]>, at: &At, list: &mut Faults) {
    for (index, item) in items.into_iter().flatten().enumerate() {
        let at = at.get("items").nth(index);
        list.filled(&at.get("key"), Some(&item.key));
        list.filled(&at.get("path"), Some(&item.path));
        list.each(&at.get("path"), &item.path, text::descending_unreserved(&item.path));
        check_mode(item.mode, &at.get("mode"), list);
    }
}

pub(super) fn check_file(file: &DownwardAPIVolumeFile, at: &At, list: &mut Faults) {
    list.filled(&at.get("path"), Some(&file.path));
    list.each(&at.get("path"), &file.path, text::descending_unreserved(&file.path));
    match (&file.field_ref, &file.resource_field_ref) {
        (Some(field), resource) => {
            env::check_field_of_file(field, &at.get("fieldRef"), list);
            if resource.is_some() {
                let why = "fieldRef and resourceFieldRef can not be specified simultaneously";
                list.invalid(at, "resource", why);
            }
        }
        (None, Some(resource)) => {
            env::check_resource(resource, true, &at.get("resourceFieldRef"), list);
        }
        (None, None) => {
            list.required(at, "one of fieldRef and resourceFieldRef is required");
        }
    }
    check_mode(file.mode, &at.get("mode"), list);
}

pub(super) fn check(volume: &ProjectedVolumeSource, at: &At, list: &mut Faults) {
    check_mode(volume.default_mode, &at.get("defaultMode"), list);
    let mut paths = BTreeSet::new();
    for (index, source) in volume.sources.iter().flatten().enumerate() {
        check_source(source, &mut paths, at, &at.get("sources").nth(index), list);
    }
}

/// A path that no other source of the volume may have.
fn claim(path: &str, shown: &str, paths: &mut BTreeSet<String>, at: &At, list: &mut Faults) {
    if !path.is_empty() && !paths.insert(path.to_owned()) {
        list.invalid(at, shown, "conflicting duplicate paths");
    }
}

fn check_source(
    source: &VolumeProjection,
    paths: &mut BTreeSet<String>,
    at: &At,
    place: &At,
    list: &mut Faults,
) {
    let objects = [
        ("secret", source.secret.as_ref().map(|s| (&s.name, s.items.as_deref()))),
        ("configMap", source.config_map.as_ref().map(|c| (&c.name, c.items.as_deref()))),
    ];
    for (field, object) in objects {
        let Some((name, items)) = object else { continue };
        let place = place.get(field);
        list.filled(&place.get("name"), Some(name));
        check_items(items, &place, list);
        for item in items.into_iter().flatten() {
            claim(&item.path, name, paths, at, list);
        }
    }
    if let Some(fields) = &source.downward_api {
        for file in fields.items.iter().flatten() {
            check_file(file, &place.get("downwardAPI"), list);
            claim(&file.path, &file.path, paths, at, list);
        }
    }
    if let Some(token) = &source.service_account_token {
        let seconds = token.expiration_seconds.unwrap_or_default();
        let place = place.get("serviceAccountToken").get("expirationSeconds");
        if seconds < 600 {
            list.invalid(&place, seconds, "may not specify a duration less than 10 minutes");
        }
        if seconds > 1 << 32 {
            list.invalid(&place, seconds, "may not specify a duration larger than 2^32 seconds");
        }
        list.filled(&at.get("path"), Some(&token.path));
        list.each(&at.get("path"), &token.path, text::descending_unreserved(&token.path));
    }
    let kinds = [
        source.secret.is_some(),
        source.config_map.is_some(),
        source.downward_api.is_some(),
        source.service_account_token.is_some(),
        source.cluster_trust_bundle.is_some(),
        source.pod_certificate.is_some(),
    ];
    if kinds.into_iter().filter(|set| *set).count() > 1 {
        list.forbidden(place, "may not specify more than 1 volume type per source");
    }
}
