//! iSCSI disks by the host's `iscsiadm`: log in to every portal, scan for the one LUN, mount it for all pods,
//! log out after the last volume of a target.
//!
//! ```text
//!  plugins/kubernetes.io/iscsi/iface-<if>/<portal>-<iqn>-lun-<n>   the mount, over its own iscsi.json
//! ```

pub(crate) mod session;

use super::MountInput;
use super::disk::{self, Disk};
use crate::env::{Env, Step, StepError};
use crate::host_tools;
use crate::pool::NORMAL;
use api::core::v1::ISCSIVolumeSource;
use api::pod::PodExt;
use engine::volumes::VolumeSpec;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use sys::mount;
use sys::removal::{Contents, remove_tree};

const PLUGIN: &str = "kubernetes.io/iscsi";
const NOTES: &str = "iscsi.json";

/// Everything about one disk.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) volume: String,
    pub(crate) portals: Vec<String>,
    pub(crate) iqn: String,
    pub(crate) lun: i32,
    /// The interface whose settings are used.
    pub(crate) base: String,
    /// The interface that is used: a copy if the initiator has a name of its own.
    pub(crate) interface: String,
    pub(crate) initiator: String,
    pub(crate) chap_discovery: bool,
    pub(crate) chap_session: bool,
    pub(crate) block: bool,
    secret: Option<(String, String)>,
    fs_type: String,
    read_only: bool,
}

fn with_port(portal: &str) -> String {
    if portal.contains(':') { portal.to_owned() } else { format!("{portal}:3260") }
}

impl Target {
    /// Reads the spec.
    pub(crate) fn of(spec: &VolumeSpec, namespace: &str) -> Result<Self, StepError> {
        let persistent = spec.as_persistent().and_then(|v| v.spec.as_ref()?.iscsi.as_ref());
        let inline = spec.as_inline().and_then(|v| v.iscsi.as_ref());
        let (source, secret, read_only) = match (persistent, inline) {
            (Some(p), _) => {
                let secret = p.secret_ref.as_ref().map(|r| {
                    let own = r.namespace.clone().unwrap_or_default();
                    (own, r.name.clone().unwrap_or_default())
                });
                let source = ISCSIVolumeSource {
                    chap_auth_discovery: p.chap_auth_discovery,
                    chap_auth_session: p.chap_auth_session,
                    fs_type: p.fs_type.clone(),
                    initiator_name: p.initiator_name.clone(),
                    iqn: p.iqn.clone(),
                    iscsi_interface: p.iscsi_interface.clone(),
                    lun: p.lun,
                    portals: p.portals.clone(),
                    target_portal: p.target_portal.clone(),
                    ..ISCSIVolumeSource::default()
                };
                (source, secret, spec.read_only)
            }
            (None, Some(i)) => {
                let secret = i.secret_ref.as_ref().map(|r| (namespace.to_owned(), r.name.clone()));
                (i.clone(), secret, i.read_only == Some(true))
            }
            (None, None) => {
                return Err(StepError::settled("Spec does not reference an ISCSI volume type"));
            }
        };
        let mut portals = vec![with_port(&source.target_portal)];
        portals.extend(source.portals.iter().flatten().map(|p| with_port(p)));
        let base = source.iscsi_interface.unwrap_or_else(|| "default".into());
        let initiator = source.initiator_name.unwrap_or_default();
        let interface = match (initiator.is_empty(), portals.first()) {
            (false, Some(portal)) => format!("{portal}:{}", spec.name),
            _ => base.clone(),
        };
        Ok(Self {
            volume: spec.name.clone(),
            portals,
            iqn: source.iqn,
            lun: source.lun,
            base,
            interface,
            initiator,
            chap_discovery: source.chap_auth_discovery == Some(true),
            chap_session: source.chap_auth_session == Some(true),
            block: spec.is_block(),
            secret,
            fs_type: source.fs_type.unwrap_or_default(),
            read_only,
        })
    }

    fn folder(&self) -> PathBuf {
        let portal = self.portals.first().map(String::as_str).unwrap_or_default();
        PathBuf::from(format!("iface-{}", self.interface))
            .join(format!("{portal}-{}-lun-{}", self.iqn, self.lun))
    }

    fn global(&self, env: &Env) -> PathBuf {
        let top = env.paths.plugin(PLUGIN);
        if self.block { top.join("volumeDevices") } else { top }.join(self.folder())
    }

    fn disk(&self, env: &Env) -> Disk {
        Disk { global: self.global(env), fs_type: self.fs_type.clone(), read_only: self.read_only }
    }

    /// The notes in upstream's form.
    fn notes(&self) -> Value {
        json!({
            "VolName": self.volume, "Portals": self.portals, "Iqn": self.iqn,
            "Lun": self.lun.to_string(), "InitIface": self.base, "Iface": self.interface,
            "InitiatorName": self.initiator, "MetricsProvider": null
        })
    }

    /// The target of a disk found on disk: from its `iscsi.json`, or else from its folder's name.
    fn found(global: &Path) -> Option<Self> {
        let text = sys::fs::read_to_string(global.join(NOTES)).unwrap_or_default();
        if let Ok(notes) = serde_json::from_str::<Value>(&text) {
            let text = |key: &str| notes[key].as_str().unwrap_or_default().to_owned();
            let portals = notes["Portals"].as_array().into_iter().flatten();
            return Some(Self {
                volume: text("VolName"),
                portals: portals.filter_map(|p| p.as_str().map(str::to_owned)).collect(),
                iqn: text("Iqn"),
                lun: text("Lun").parse().ok()?,
                base: text("InitIface"),
                interface: text("Iface"),
                initiator: text("InitiatorName"),
                ..Self::default()
            });
        }
        let source = source_of_folder(global)?;
        let interface = source.iscsi_interface.unwrap_or_default();
        Some(Self {
            portals: vec![source.target_portal],
            iqn: source.iqn,
            lun: source.lun,
            base: interface.clone(),
            interface,
            ..Self::default()
        })
    }
}

/// The volume source that a global mount's path encodes.
pub(crate) fn source_of_folder(global: &Path) -> Option<ISCSIVolumeSource> {
    let name = global.file_name()?.to_str()?;
    let interface = global.parent()?.file_name()?.to_str()?.strip_prefix("iface-")?;
    let (portal, rest) = name.split_once('-')?;
    let (iqn, lun) = rest.rsplit_once("-lun-")?;
    Some(ISCSIVolumeSource {
        target_portal: portal.to_owned(),
        iqn: iqn.to_owned(),
        lun: lun.parse().ok()?,
        iscsi_interface: Some(interface.to_owned()),
        ..ISCSIVolumeSource::default()
    })
}

fn target_of(input: &MountInput) -> Result<Target, StepError> {
    Target::of(&input.spec, input.pod.namespace_str())
}

/// Where the disk is mounted for all pods.
pub(crate) fn device_mount(env: &Env, spec: &VolumeSpec) -> Option<PathBuf> {
    Target::of(spec, "").ok().map(|target| target.global(env))
}

/// Where the device is bound for each pod that uses it raw.
pub(crate) fn global_map(env: &Env, spec: &VolumeSpec) -> Result<PathBuf, StepError> {
    Ok(Target::of(spec, "")?.global(env))
}

async fn secrets(env: &Env, target: &Target) -> Result<BTreeMap<String, String>, StepError> {
    let wanted = target.chap_discovery || target.chap_session;
    let Some((namespace, name)) = target.secret.as_ref().filter(|_| wanted) else {
        return Ok(BTreeMap::new());
    };
    let Some(storage) = &env.storage else {
        return Err(StepError::transient("cannot get kube client"));
    };
    let object = storage.secret(namespace, name).await.map_err(|e| {
        StepError::transient(format!("couldn't get secret {namespace}/{name} error: {e}"))
    })?;
    let texts = object.data.iter().flatten();
    Ok(texts.map(|(k, v)| (k.clone(), String::from_utf8_lossy(&v.0).into_owned())).collect())
}

/// Whether the secret that the volume names can be read (upstream: `NewMounter`).
pub(crate) async fn check(env: &Env, input: &MountInput) -> Result<(), StepError> {
    let target = target_of(input)?;
    secrets(env, &target).await.map(drop)
}

/// Logs in and finds the disk; writes `iscsi.json` for the log-out.
pub(crate) async fn attach(env: &Env, input: &MountInput) -> Result<PathBuf, StepError> {
    let target = target_of(input)?;
    let secrets = secrets(env, &target).await?;
    input.step.enter(format!("logging in to {}", target.iqn));
    let device = session::log_in(env, &target, &secrets).await?;
    let (global, notes, block) = (target.global(env), target.notes(), target.block);
    let key = global.to_string_lossy().into_owned();
    env.pool
        .run(&key, "save volume data", NORMAL, move || -> Result<(), StepError> {
            sys::fs::create_dir_all(&global, 0o750)?;
            // The mount hides `iscsi.json`, which was written before it.
            if !block && mount::is_mount_point(&global)? {
                return Ok(());
            }
            let text = units::gojson::to_string(&notes)
                .map_err(|e| StepError::uncertain(format!("iscsi: encode err: {e}")))?;
            Ok(sys::fs::write(global.join(NOTES), format!("{text}\n"))?)
        })
        .await??;
    Ok(device)
}

pub(crate) async fn mount_device(
    env: &Env,
    input: &MountInput,
    device: &Path,
) -> Result<(), StepError> {
    let disk = target_of(input)?.disk(env);
    disk::mount_device(env, input, &disk, device).await
}

pub(crate) async fn set_up(env: &Env, input: &MountInput) -> Result<(), StepError> {
    let disk = target_of(input)?.disk(env);
    disk::set_up(env, input, &disk).await
}

/// Unmounts the disk (a raw device has nothing to unmount), logs out, removes the folder.
pub(crate) async fn unmount_device(
    env: &Env,
    spec: &VolumeSpec,
    step: &Step,
) -> Result<(), StepError> {
    let global = Target::of(spec, "")?.global(env);
    step.enter("unmounting the disk");
    let looked = global.clone();
    let key = global.to_string_lossy().into_owned();
    let found = env
        .pool
        .run(&key, "unmount", NORMAL, move || -> Result<Option<Target>, StepError> {
            if !sys::fs::try_exists(&looked)? {
                return Ok(None);
            }
            mount::unmount_all_at(&looked)?;
            Ok(Target::found(&looked))
        })
        .await??;
    if let Some(target) = found {
        step.enter(format!("logging out of {}", target.iqn));
        session::log_out(env, &target).await.map_err(|e| StepError {
            message: format!("iscsi: failed to detach disk: {}\nError: {e}", global.display()),
            ..e
        })?;
    }
    let proc = env.paths.proc().to_owned();
    env.pool
        .run(&key, "remove directory", NORMAL, move || -> Result<(), StepError> {
            Ok(remove_tree(&proc, &global, Contents::Everything)?)
        })
        .await?
}

/// How many volumes of a target there still are, raw ones too.
pub(crate) fn in_use(top: &Path, target: &Target) -> usize {
    let portal = target.portals.first().map(String::as_str).unwrap_or_default();
    let prefix = format!("{portal}-{}", target.iqn);
    let mut count = 0;
    for base in [top.to_owned(), top.join("volumeDevices")] {
        for interface in sys::fs::list_dir(&base).unwrap_or_default() {
            if interface == "volumeDevices" {
                continue;
            }
            let names = sys::fs::list_dir(base.join(interface)).unwrap_or_default();
            count += names.iter().filter(|name| name.starts_with(&prefix)).count();
        }
    }
    count
}

/// The program that speaks iSCSI.
pub(crate) async fn iscsiadm(
    env: &Env,
    arguments: &[&str],
) -> Result<host_tools::Ended, StepError> {
    let program = host_tools::tool(env, "iscsiadm");
    host_tools::run(&program, arguments, host_tools::MOUNT_LIMIT).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_global_mount_leads_back_to_its_disk() {
        let path = Path::new(
            "/k/plugins/kubernetes.io/iscsi/iface-default/10.0.0.1:3260-iqn.2017-05.com.example:test-lun-2",
        );
        let found = source_of_folder(path).unwrap();
        assert_eq!(found.target_portal, "10.0.0.1:3260");
        assert_eq!(found.iqn, "iqn.2017-05.com.example:test");
        assert_eq!((found.lun, found.iscsi_interface.as_deref()), (2, Some("default")));
        assert!(source_of_folder(Path::new("/k/iface-default/nonsense")).is_none());
    }
}
