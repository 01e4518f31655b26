//! Volumes and their sources.

use super::containers::check_pull_policy;
use super::faults::{At, Faults};
use super::{projected, text};
use api::core::v1::{
    AzureDiskVolumeSource, ISCSIVolumeSource, PodSpec, QuobyteVolumeSource, StorageOSVolumeSource,
    Volume,
};
use std::collections::{BTreeMap, BTreeSet};

const ONE_TYPE: &str = "may not specify more than 1 volume type";
const HOST_PATHS: [&str; 8] = [
    "",
    "BlockDevice",
    "CharDevice",
    "Directory",
    "DirectoryOrCreate",
    "File",
    "FileOrCreate",
    "Socket",
];

/// Checks all volumes; those without a fault are what containers may mount.
pub(super) fn check<'a>(
    spec: &'a PodSpec,
    pod_name: &str,
    at: &At,
    list: &mut Faults,
) -> BTreeMap<&'a str, &'a Volume> {
    let created: BTreeSet<String> = spec
        .volumes
        .iter()
        .flatten()
        .filter(|v| v.ephemeral.is_some())
        .map(|v| format!("{pod_name}-{}", v.name))
        .collect();
    let mut sound = BTreeMap::new();
    for (index, volume) in spec.volumes.iter().flatten().enumerate() {
        let at = at.nth(index);
        let before = list.count();
        check_source(volume, pod_name, &at, list);
        let name = volume.name.as_str();
        if name.is_empty() {
            list.required(&at.get("name"), "");
        } else {
            list.each(&at.get("name"), name, text::label(name));
        }
        if sound.contains_key(name) {
            list.duplicate(&at.get("name"), name);
        }
        if list.count() == before {
            sound.insert(name, volume);
        }
        if let Some(claim) = &volume.persistent_volume_claim
            && created.contains(&claim.claim_name)
        {
            let at = at.get("persistentVolumeClaim").get("claimName");
            let why = "must not reference a PVC that gets created for an ephemeral volume";
            list.invalid(&at, &claim.claim_name, why);
        }
    }
    sound
}

/// Kinds of sources in the order of validation: the field, whether it is set, and its check.
type Kind<'a> = (&'static str, bool, Checker<'a>);
type Checker<'a> = Box<dyn Fn(&At, &mut Faults) + 'a>;

/// Upstream's order of the kinds: the first one that is set is checked, any other is one too many.
const ORDER: [&str; 30] = [
    "emptyDir",
    "hostPath",
    "gitRepo",
    "gcePersistentDisk",
    "awsElasticBlockStore",
    "secret",
    "nfs",
    "iscsi",
    "glusterfs",
    "flocker",
    "persistentVolumeClaim",
    "rbd",
    "cinder",
    "cephfs",
    "quobyte",
    "downwardAPI",
    "fc",
    "flexVolume",
    "configMap",
    "azureFile",
    "vsphereVolume",
    "photonPersistentDisk",
    "portworxVolume",
    "azureDisk",
    "storageos",
    "projected",
    "scaleIO",
    "csi",
    "ephemeral",
    "image",
];

fn check_source(volume: &Volume, pod_name: &str, at: &At, list: &mut Faults) {
    let kinds = local(volume).into_iter().chain(remote(volume)).chain(of_api(volume));
    let mut kinds: Vec<Kind<'_>> = kinds.filter(|(_, set, _)| *set).collect();
    kinds.sort_by_key(|(field, ..)| ORDER.iter().position(|known| known == field));
    let mut first = true;
    for (field, _, check) in kinds {
        // Upstream's field names when it checks a source, or rejects one too many.
        let (looked, refused) = match field {
            "gcePersistentDisk" => ("persistentDisk", field),
            "cephfs" => (field, "cephFS"),
            "downwardAPI" => (field, "downwarAPI"),
            _ => (field, field),
        };
        if first {
            check(&at.get(looked), list);
        } else {
            list.forbidden(&at.get(refused), ONE_TYPE);
        }
        match field {
            "iscsi" => check_portal_length(volume, at, list),
            "ephemeral" if first => check_claim_name(volume, pod_name, at, list),
            _ => {}
        }
        first = false;
    }
    if first {
        list.required(at, "must specify a volume type");
    }
}

fn check_portal_length(volume: &Volume, at: &At, list: &mut Faults) {
    if let Some(iscsi) = volume.iscsi.as_ref().filter(|i| i.initiator_name.is_some())
        && volume.name.len() + 1 + iscsi.target_portal.len() > 64
    {
        let why = "Total length of <volume name>:<iscsi.targetPortal> must be under 64 characters if \
                   iscsi.initiatorName is specified.";
        list.invalid(&at.get("name"), &volume.name, why);
    }
}

/// The claim that is made for the volume must have a name that claims can have.
fn check_claim_name(volume: &Volume, pod_name: &str, at: &At, list: &mut Faults) {
    if pod_name.is_empty() || volume.name.is_empty() {
        return;
    }
    let claim = format!("{pod_name}-{}", volume.name);
    for complaint in text::subdomain(&claim) {
        let why = format!("PVC name {}: {complaint}", units::strconv::quote(&claim));
        list.invalid(&at.get("name"), &volume.name, &why);
    }
}

/// Fields that must not be empty.
fn filled<'a>(fields: Vec<(&'static str, &'a str)>) -> Checker<'a> {
    Box::new(move |at, list| {
        for (field, value) in &fields {
            list.filled(&at.get(field), Some(value));
        }
    })
}

fn local(volume: &Volume) -> Vec<Kind<'_>> {
    vec![
        (
            "emptyDir",
            volume.empty_dir.is_some(),
            Box::new(|at, list| {
                let limit = volume.empty_dir.as_ref().and_then(|e| e.size_limit.as_ref());
                let amount = limit.map(|l| l.0.parse::<units::Quantity>());
                if amount.is_some_and(|a| a.is_ok_and(|a| !a.is_negative())) || limit.is_none() {
                    return;
                }
                let why = "SizeLimit field must be a valid resource quantity";
                list.forbidden(&at.get("sizeLimit"), why);
            }),
        ),
        (
            "hostPath",
            volume.host_path.is_some(),
            Box::new(|at, list| {
                let Some(source) = &volume.host_path else { return };
                if source.path.is_empty() {
                    return list.required(&at.get("path"), "");
                }
                let steps = text::backstep(&source.path).into_iter().collect();
                list.each(&at.get("path"), &source.path, steps);
                list.word_if_set(&at.get("type"), source.type_.as_deref(), &HOST_PATHS);
            }),
        ),
        (
            "gitRepo",
            volume.git_repo.is_some(),
            Box::new(|at, list| {
                let Some(source) = &volume.git_repo else { return };
                list.filled(&at.get("repository"), Some(&source.repository));
                let directory = source.directory.as_deref().unwrap_or_default();
                list.each(&at.get("directory"), directory, text::descending(directory));
            }),
        ),
        (
            "image",
            volume.image.is_some(),
            Box::new(|at, list| {
                let policy = volume.image.as_ref().and_then(|i| i.pull_policy.as_deref());
                check_pull_policy(policy, &at.get("pullPolicy"), list);
            }),
        ),
    ]
}

fn remote(volume: &Volume) -> Vec<Kind<'_>> {
    let mut kinds: Vec<Kind<'_>> = Vec::new();
    kinds.push((
        "nfs",
        volume.nfs.is_some(),
        Box::new(|at, list| {
            let Some(source) = &volume.nfs else { return };
            list.filled(&at.get("server"), Some(&source.server));
            list.filled(&at.get("path"), Some(&source.path));
            if !source.path.starts_with('/') {
                list.invalid(&at.get("path"), &source.path, "must be an absolute path");
            }
        }),
    ));
    kinds.push((
        "iscsi",
        volume.iscsi.is_some(),
        Box::new(|at, list| {
            if let Some(source) = &volume.iscsi {
                check_iscsi(source, at, list);
            }
        }),
    ));
    kinds.push((
        "fc",
        volume.fc.is_some(),
        Box::new(|at, list| {
            let Some(source) = &volume.fc else { return };
            let names = source.target_wwns.as_deref().unwrap_or_default();
            let ids = source.wwids.as_deref().unwrap_or_default();
            let at_names = at.get("targetWWNs");
            match (names.is_empty(), ids.is_empty()) {
                (true, true) => {
                    list.required(
                        &at_names,
                        "must specify either targetWWNs or wwids, but not both",
                    );
                }
                (false, false) => {
                    let why = "targetWWNs and wwids can not be specified simultaneously";
                    list.invalid(&at_names, names, why);
                }
                _ => {}
            }
            if !names.is_empty() {
                match source.lun {
                    None => {
                        list.required(&at.get("lun"), "lun is required if targetWWNs is specified");
                    }
                    Some(lun) => list.range(&at.get("lun"), lun.into(), 0, 255),
                }
            }
        }),
    ));
    kinds.push((
        "flexVolume",
        volume.flex_volume.is_some(),
        Box::new(|at, list| {
            let Some(source) = &volume.flex_volume else { return };
            list.filled(&at.get("driver"), Some(&source.driver));
            for (key, _) in source.options.iter().flatten() {
                let space = format!(".{}", key.split('/').next().unwrap_or(key).to_lowercase());
                if space.ends_with(".kubernetes.io") || space.ends_with(".k8s.io") {
                    let why = "kubernetes.io and k8s.io namespaces are reserved";
                    list.invalid(&at.get("options").key(key), key, why);
                }
            }
        }),
    ));
    kinds.extend(named(volume));
    kinds
}

/// A disk by its name, of which a partition may be chosen.
fn partitioned<'a>(name: (&'static str, &'a str), partition: Option<i32>) -> Checker<'a> {
    Box::new(move |at, list| {
        list.filled(&at.get(name.0), Some(name.1));
        if let Some(number) = partition.filter(|number| !(0..=255).contains(number)) {
            list.invalid(&at.get("partition"), number, "must be between 1 and 255, inclusive");
        }
    })
}

fn check_azure_disk(source: &AzureDiskVolumeSource, at: &At, list: &mut Faults) {
    const MANAGED: &str = "/subscriptions/{sub-id}/resourcegroups/{group-name}/providers/microsoft.compute/disks/{disk-id}";
    const BLOB: &str =
        "https://{account-name}.blob.core.windows.net/{container-name}/{disk-name}.vhd";
    list.filled(&at.get("diskName"), Some(&source.disk_name));
    list.filled(&at.get("diskURI"), Some(&source.disk_uri));
    let modes = ["None", "ReadOnly", "ReadWrite"];
    list.word_if_set(&at.get("cachingMode"), source.caching_mode.as_deref(), &modes);
    let kinds = ["Dedicated", "Managed", "Shared"];
    list.word_if_set(&at.get("kind"), source.kind.as_deref(), &kinds);
    let (start, form) = match source.kind.as_deref() {
        None => return,
        Some("Managed") => ("/subscriptions/", MANAGED),
        Some(_) => ("https://", BLOB),
    };
    if !source.disk_uri.starts_with(start) {
        list.unsupported(&at.get("diskURI"), &source.disk_uri, &[form]);
    }
}

fn check_storageos(source: &StorageOSVolumeSource, at: &At, list: &mut Faults) {
    let name = source.volume_name.as_deref().unwrap_or_default();
    if name.is_empty() {
        list.required(&at.get("volumeName"), "");
    } else {
        list.each(&at.get("volumeName"), name, text::label(name));
    }
    if let Some(space) = source.volume_namespace.as_ref().filter(|space| !space.is_empty()) {
        list.each(&at.get("volumeNamespace"), space, text::label(space));
    }
    if source.secret_ref.as_ref().is_some_and(|secret| secret.name.is_empty()) {
        list.required(&at.get("secretRef").get("name"), "");
    }
}

fn check_quobyte(source: &QuobyteVolumeSource, at: &At, list: &mut Faults) {
    let why = "must be a host:port pair or multiple pairs separated by commas";
    if source.registry.is_empty() {
        list.required(&at.get("registry"), why);
    } else if source.tenant.as_ref().is_some_and(|tenant| tenant.len() > 64) {
        let why = "must be a UUID and may not exceed a length of 64 characters";
        list.required(&at.get("tenant"), why);
    } else {
        for _ in source.registry.split(',').filter(|pair| !text::is_host_and_port(pair)) {
            list.invalid(&at.get("registry"), &source.registry, why);
        }
    }
    list.filled(&at.get("volume"), Some(&source.volume));
}

/// Sources with few rules of their own.
fn named(volume: &Volume) -> Vec<Kind<'_>> {
    let mut kinds: Vec<Kind<'_>> = Vec::new();
    if let Some(v) = &volume.gce_persistent_disk {
        let check = partitioned(("pdName", &v.pd_name), v.partition);
        kinds.push(("gcePersistentDisk", true, check));
    }
    if let Some(v) = &volume.aws_elastic_block_store {
        let check = partitioned(("volumeID", &v.volume_id), v.partition);
        kinds.push(("awsElasticBlockStore", true, check));
    }
    if let Some(v) = &volume.glusterfs {
        kinds.push((
            "glusterfs",
            true,
            filled(vec![("endpoints", &v.endpoints), ("path", &v.path)]),
        ));
    }
    if let Some(v) = &volume.rbd {
        let monitors = if v.monitors.is_empty() { "" } else { "some" };
        kinds.push(("rbd", true, filled(vec![("monitors", monitors), ("image", &v.image)])));
    }
    if let Some(v) = &volume.cinder {
        let check: Checker<'_> = Box::new(|at, list| {
            list.filled(&at.get("volumeID"), Some(&v.volume_id));
            if v.secret_ref.as_ref().is_some_and(|secret| secret.name.is_empty()) {
                list.required(&at.get("secretRef").get("name"), "");
            }
        });
        kinds.push(("cinder", true, check));
    }
    if let Some(v) = &volume.cephfs {
        let monitors = if v.monitors.is_empty() { "" } else { "some" };
        kinds.push(("cephfs", true, filled(vec![("monitors", monitors)])));
    }
    if let Some(v) = &volume.azure_file {
        let fields = vec![("secretName", v.secret_name.as_str()), ("shareName", &v.share_name)];
        kinds.push(("azureFile", true, filled(fields)));
    }
    if let Some(v) = &volume.vsphere_volume {
        kinds.push(("vsphereVolume", true, filled(vec![("volumePath", &v.volume_path)])));
    }
    if let Some(v) = &volume.photon_persistent_disk {
        kinds.push(("photonPersistentDisk", true, filled(vec![("pdID", &v.pd_id)])));
    }
    if let Some(v) = &volume.portworx_volume {
        kinds.push(("portworxVolume", true, filled(vec![("volumeID", &v.volume_id)])));
    }
    if let Some(v) = &volume.azure_disk {
        kinds.push(("azureDisk", true, Box::new(|at, list| check_azure_disk(v, at, list))));
    }
    if let Some(v) = &volume.scale_io {
        let name = v.volume_name.as_deref().unwrap_or_default();
        let fields =
            vec![("gateway", v.gateway.as_str()), ("system", &v.system), ("volumeName", name)];
        kinds.push(("scaleIO", true, filled(fields)));
    }
    if let Some(v) = &volume.storageos {
        kinds.push(("storageos", true, Box::new(|at, list| check_storageos(v, at, list))));
    }
    if let Some(v) = &volume.quobyte {
        kinds.push(("quobyte", true, Box::new(|at, list| check_quobyte(v, at, list))));
    }
    if let Some(v) = &volume.flocker {
        let of = |field: &Option<String>| field.clone().unwrap_or_default();
        let (name, uuid) = (of(&v.dataset_name), of(&v.dataset_uuid));
        kinds.push((
            "flocker",
            true,
            Box::new(move |at, list| {
                if name.is_empty() && uuid.is_empty() {
                    list.required(at, "one of datasetName and datasetUUID is required");
                }
                if !name.is_empty() && !uuid.is_empty() {
                    let why = "datasetName and datasetUUID can not be specified simultaneously";
                    list.invalid(at, "resource", why);
                }
                if name.contains('/') {
                    list.invalid(&at.get("datasetName"), &name, "must not contain '/'");
                }
            }),
        ));
    }
    kinds
}

/// Sources that stand for objects of the API.
fn of_api(volume: &Volume) -> Vec<Kind<'_>> {
    let mut kinds: Vec<Kind<'_>> = Vec::new();
    if let Some(v) = &volume.secret {
        kinds.push((
            "secret",
            true,
            Box::new(|at, list| {
                list.filled(&at.get("secretName"), v.secret_name.as_deref());
                projected::check_mode(v.default_mode, &at.get("defaultMode"), list);
                projected::check_items(v.items.as_deref(), at, list);
            }),
        ));
    }
    if let Some(v) = &volume.persistent_volume_claim {
        kinds.push(("persistentVolumeClaim", true, filled(vec![("claimName", &v.claim_name)])));
    }
    if let Some(v) = &volume.downward_api {
        kinds.push((
            "downwardAPI",
            true,
            Box::new(|at, list| {
                projected::check_mode(v.default_mode, &at.get("defaultMode"), list);
                for file in v.items.iter().flatten() {
                    projected::check_file(file, at, list);
                }
            }),
        ));
    }
    if let Some(v) = &volume.config_map {
        kinds.push((
            "configMap",
            true,
            Box::new(|at, list| {
                list.filled(&at.get("name"), Some(&v.name));
                projected::check_mode(v.default_mode, &at.get("defaultMode"), list);
                projected::check_items(v.items.as_deref(), at, list);
            }),
        ));
    }
    if let Some(v) = &volume.projected {
        kinds.push(("projected", true, Box::new(|at, list| projected::check(v, at, list))));
    }
    if let Some(v) = &volume.csi {
        kinds.push((
            "csi",
            true,
            Box::new(|at, list| {
                let place = at.get("driver");
                if v.driver.is_empty() {
                    list.required(&place, "");
                } else {
                    if v.driver.len() > 63 {
                        list.too_long(&place, 63);
                    }
                    list.each(&place, &v.driver, text::subdomain(&v.driver.to_lowercase()));
                }
                match v.node_publish_secret_ref.as_ref().map(|secret| secret.name.as_str()) {
                    None => {}
                    Some("") => {
                        list.required(&at.get("nodePublishSecretRef").get("name"), "");
                    }
                    Some(name) => list.each(&at.get("name"), name, text::subdomain(name)),
                }
            }),
        ));
    }
    if let Some(v) = &volume.ephemeral {
        kinds.push((
            "ephemeral",
            true,
            Box::new(|at, list| {
                if v.volume_claim_template.is_none() {
                    list.required(&at.get("volumeClaimTemplate"), "");
                }
            }),
        ));
    }
    kinds
}

fn check_iscsi(source: &ISCSIVolumeSource, at: &At, list: &mut Faults) {
    list.filled(&at.get("targetPortal"), Some(&source.target_portal));
    let wrong = |name: &str| match name.get(..3) {
        Some("iqn") => (!is_iqn(name)).then_some("must be valid format"),
        Some("eui") => (!is_hex_name(name, 16)).then_some("must be valid format"),
        Some("naa") => (!is_hex_name(name, 32)).then_some("must be valid format"),
        _ => Some("must be valid format starting with iqn, eui, or naa"),
    };
    if source.iqn.is_empty() {
        list.required(&at.get("iqn"), "");
    } else if let Some(why) = wrong(&source.iqn) {
        list.invalid(&at.get("iqn"), &source.iqn, why);
    }
    list.range(&at.get("lun"), source.lun.into(), 0, 255);
    let chap = source.chap_auth_discovery == Some(true) || source.chap_auth_session == Some(true);
    if chap && source.secret_ref.is_none() {
        list.required(&at.get("secretRef"), "");
    }
    if let Some(name) = &source.initiator_name
        && let Some(why) = wrong(name)
    {
        list.invalid(&at.get("initiatorname"), name, why);
    }
}

/// `iqn.2026-01.org.example:name`.
fn is_iqn(name: &str) -> bool {
    let Some(rest) = name.strip_prefix("iqn.") else { return false };
    let Some((authority, target)) = rest.split_once(':') else { return false };
    let mut parts = authority.splitn(2, '.');
    let (date, domain) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let number = |part: &str, length: usize| {
        part.len() == length && part.bytes().all(|b| b.is_ascii_digit())
    };
    let dated = date.split_once('-').is_some_and(|(y, m)| number(y, 4) && number(m, 2));
    let domain_fine = !domain.is_empty()
        && domain.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.'));
    let barred = |c: char| ",;*&$|".contains(c) || c.is_ascii_whitespace();
    dated && domain_fine && !target.is_empty() && !target.contains(barred)
}

/// A prefix of three letters, any letter, and so many letters or digits.
fn is_hex_name(name: &str, length: usize) -> bool {
    let mut letters = name.chars().skip(3);
    letters.next().is_some()
        && letters.clone().count() == length
        && letters.all(|c| c.is_ascii_alphanumeric())
}
