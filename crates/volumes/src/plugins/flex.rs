//! Flexvolume: an executable of the host per driver (upstream: `pkg/volume/flexvolume`).
//!
//! A driver that attaches has its volumes attached by the controller (or by this node, where there is none),
//! waits for the device, mounts it once for all pods and then for each of them; whatever it does not support is
//! done in the usual way: the device is formatted and mounted, the mount is bound.

use super::{MountInput, UnmountInput, local, make_mount_point, report_not_mounted};
use crate::env::{Env, Step, StepError};
use crate::host_tools;
use crate::ownership;
use crate::paths::Paths;
use crate::pool::NORMAL;
use base64::Engine;
use engine::volumes::VolumeSpec;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use sys::mount;

const LIMIT: Duration = Duration::from_secs(10 * 60);

/// What is known of a driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FlexDriver {
    /// Modification time of its executable.
    changed: SystemTime,
    /// Its volumes are attached first.
    pub(crate) attaches: bool,
    fs_group: bool,
    metrics: bool,
    resizes: bool,
    /// Commands that the driver answered with `Not supported`.
    unsupported: BTreeSet<&'static str>,
}

/// What a driver printed.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Answer {
    status: String,
    message: String,
    device: String,
    attaches: bool,
    fs_group: bool,
    metrics: bool,
    resizes: bool,
}

/// Reads the driver's JSON; keys in any case.
fn parse(output: &str) -> Option<Answer> {
    let value: serde_json::Value = serde_json::from_str(output.trim()).ok()?;
    let field = |value: &serde_json::Value, name: &str| {
        let map = value.as_object()?;
        map.iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, v)| v.clone())
    };
    let text = |name: &str| {
        field(&value, name).and_then(|v| v.as_str().map(str::to_owned)).unwrap_or_default()
    };
    let capabilities = field(&value, "capabilities").unwrap_or_default();
    let flag = |name: &str, default: bool| {
        field(&capabilities, name).and_then(|v| v.as_bool()).unwrap_or(default)
    };
    Some(Answer {
        status: text("status"),
        message: text("message"),
        device: text("device"),
        attaches: flag("attach", true),
        fs_group: flag("fsGroup", true),
        metrics: flag("supportsMetrics", false),
        resizes: flag("requiresFSResize", true),
    })
}

/// `<plugin dir>/<vendor~driver>/<driver>`.
fn executable(env: &Env, driver: &str) -> PathBuf {
    let name = driver.rsplit('/').next().unwrap_or(driver);
    env.config.volume_plugin_dir.join(driver.replace('/', "~")).join(name)
}

/// Calls the driver; `None` means that it does not support the command.
async fn call(
    env: &Env,
    driver: &str,
    command: &'static str,
    arguments: &[&str],
) -> Result<Option<Answer>, StepError> {
    if known(env, driver).is_some_and(|d| d.unsupported.contains(command)) {
        return Ok(None);
    }
    let program = executable(env, driver).to_string_lossy().into_owned();
    let mut all = vec![command];
    all.extend(arguments);
    let ended = host_tools::run(&program, &all, LIMIT).await?;
    let Some(answer) = parse(&ended.output) else {
        return Err(StepError::settled(format!(
            "failed to unmarshal output for command: {command}, output: {:?}",
            ended.output
        )));
    };
    match answer.status.as_str() {
        "Success" => Ok(Some(answer)),
        "Not supported" => {
            if let Ok(mut drivers) = env.flex_drivers.lock()
                && let Some(known) = drivers.get_mut(driver)
            {
                known.unsupported.insert(command);
            }
            Ok(None)
        }
        status => Err(StepError::settled(format!(
            "{command} command failed, status: {status}, reason: {}",
            answer.message
        ))),
    }
}

fn known(env: &Env, driver: &str) -> Option<FlexDriver> {
    env.flex_drivers.lock().ok()?.get(driver).cloned()
}

/// The driver, if its executable exists and its `init` succeeds. Called once per version of the executable.
pub(crate) async fn driver(env: &Env, driver: &str) -> Option<FlexDriver> {
    let program = executable(env, driver);
    let looked = program.clone();
    let changed = env
        .pool
        .run(&program.to_string_lossy(), "stat", NORMAL, move || {
            std::fs::metadata(&looked).and_then(|found| found.modified()).ok()
        })
        .await
        .ok()??;
    if let Some(asked) = known(env, driver).filter(|asked| asked.changed == changed) {
        return Some(asked);
    }
    if let Ok(mut drivers) = env.flex_drivers.lock() {
        drivers.remove(driver);
    }
    match call(env, driver, "init", &[]).await {
        Ok(answer) => {
            let answer = answer?;
            let found = FlexDriver {
                changed,
                attaches: answer.attaches,
                fs_group: answer.fs_group,
                metrics: answer.metrics,
                resizes: answer.resizes,
                unsupported: BTreeSet::new(),
            };
            if let Ok(mut drivers) = env.flex_drivers.lock() {
                drivers.insert(driver.to_owned(), found.clone());
            }
            Some(found)
        }
        Err(err) => {
            tracing::error!(driver, %err, "flexvolume driver could not be initialised");
            None
        }
    }
}

/// Whether usage of the driver's volumes may be measured by `statfs`.
pub(crate) fn has_metrics(env: &Env, driver: &str) -> bool {
    known(env, driver).is_some_and(|d| d.metrics)
}

/// Whether the driver requires its file systems to be expanded on the node.
pub(crate) fn resizes(env: &Env, driver: &str) -> bool {
    known(env, driver).is_some_and(|d| d.resizes)
}

fn mounts_dir(paths: &Paths, driver: &str) -> PathBuf {
    paths.plugin("kubernetes.io/flexvolume").join(driver).join("mounts")
}

/// Where the mount that pods share is.
pub(crate) fn device_mount(env: &Env, driver: &str, name: &str) -> PathBuf {
    mounts_dir(&env.paths, driver).join(name)
}

/// Whether a device mount's folder exists, as left by an earlier run of the kubelet.
pub(crate) fn has_device_mount(paths: &Paths, driver: &str, name: &str) -> bool {
    std::fs::symlink_metadata(mounts_dir(paths, driver).join(name)).is_ok()
}

/// All device mounts on disk, with their drivers.
pub(crate) fn device_mounts(paths: &Paths) -> Vec<(String, String)> {
    let list = |dir: &Path| sys::fs::list_dir(dir).unwrap_or_default();
    let top = paths.plugin("kubernetes.io/flexvolume");
    let mut found = Vec::new();
    for vendor in list(&top) {
        for name in list(&top.join(&vendor)) {
            let driver = format!("{vendor}/{name}");
            let volumes = list(&mounts_dir(paths, &driver));
            found.extend(volumes.into_iter().map(|volume| (driver.clone(), volume)));
        }
    }
    found
}

/// Calls `getvolumename`.
pub(crate) async fn ask_name(env: &Env, driver: &str, spec: &VolumeSpec) -> Result<(), StepError> {
    let options = plain_options(spec)?;
    call(env, driver, "getvolumename", &[&options]).await.map(drop)
}

/// Attaches the volume to this node; returns the device path.
pub(crate) async fn attach(
    env: &Env,
    driver: &str,
    input: &MountInput,
) -> Result<String, StepError> {
    let options = plain_options(&input.spec)?;
    input.step.enter(format!("attach of flexvolume driver {driver}"));
    let answer = call(env, driver, "attach", &[&options, &env.config.node_name]).await?;
    Ok(answer.map(|a| a.device).unwrap_or_default())
}

/// Detaches the volume from this node.
pub(crate) async fn detach(
    env: &Env,
    driver: &str,
    spec: &VolumeSpec,
    step: &Step,
) -> Result<(), StepError> {
    step.enter(format!("detach of flexvolume driver {driver}"));
    let done = call(env, driver, "detach", &[&spec.name, &env.config.node_name]).await;
    done.map(drop).map_err(|e| StepError::uncertain(e.message))
}

/// Waits for the device.
pub(crate) async fn wait_attached(
    env: &Env,
    driver: &str,
    input: &MountInput,
) -> Result<PathBuf, StepError> {
    let options = plain_options(&input.spec)?;
    input.step.enter(format!("waitforattach of flexvolume driver {driver}"));
    let answer = call(env, driver, "waitforattach", &[&input.device_path, &options]).await?;
    Ok(answer.map_or_else(|| input.device_path.clone(), |a| a.device).into())
}

/// Mounts the device for all pods.
pub(crate) async fn mount_device(
    env: &Env,
    driver: &str,
    input: &MountInput,
    device: &Path,
) -> Result<(), StepError> {
    let dir = device_mount(env, driver, &input.spec.name);
    if make_mount_point(env, &dir).await? {
        return Ok(());
    }
    let (target, shown) = (dir.to_string_lossy(), device.to_string_lossy());
    let options = plain_options(&input.spec)?;
    input.step.enter(format!("mountdevice of flexvolume driver {driver}"));
    let done = call(env, driver, "mountdevice", &[&target, &shown, &options])
        .await
        .map_err(|e| StepError::uncertain(e.message))?;
    // Without a device there is nothing to mount.
    if done.is_some() || shown.is_empty() {
        return Ok(());
    }
    let (fs_type, read_only, _) = source(&input.spec).ok_or_else(no_source)?;
    let option = if read_only { "ro" } else { "rw" };
    let options = [option.to_owned()];
    let mounted = host_tools::format_and_mount(&shown, &dir, &fs_type, &options);
    mounted.await.map_err(|e| report_not_mounted(env, input, e))
}

/// Unmounts the device mount.
pub(crate) async fn unmount_device(
    env: &Env,
    driver: &str,
    spec: &VolumeSpec,
    step: &Step,
) -> Result<(), StepError> {
    let dir = device_mount(env, driver, &spec.name);
    let looked = dir.clone();
    let key = dir.to_string_lossy().into_owned();
    let mounted = env
        .pool
        .run(&key, "stat", NORMAL, move || match mount::is_mount_point(&looked) {
            Err(e) if !e.is_not_found() && !mount::is_corrupted(&e.source) => Err(e),
            Err(e) => Ok(!e.is_not_found()),
            Ok(mounted) => Ok(mounted),
        })
        .await??;
    if mounted {
        step.enter(format!("unmountdevice of flexvolume driver {driver}"));
        let done = call(env, driver, "unmountdevice", &[&key]).await;
        done.map_err(|e| StepError::uncertain(e.message))?;
    }
    // Also removes whatever the driver left, its folder included.
    local::unmount_and_remove(env, &dir).await
}

/// Lets the driver expand the file system; `false` if the host's tools are to do it.
pub(crate) async fn expand(
    env: &Env,
    driver: &str,
    input: &MountInput,
    (wanted, known): (i64, i64),
) -> Result<bool, StepError> {
    let options = plain_options(&input.spec)?;
    let dir = device_mount(env, driver, &input.spec.name);
    let (wanted, known) = (wanted.to_string(), known.to_string());
    let arguments = [&options, &input.device_path, &*dir.to_string_lossy(), &wanted, &known];
    input.step.enter(format!("expandfs of flexvolume driver {driver}"));
    Ok(call(env, driver, "expandfs", &arguments).await?.is_some())
}

fn no_source() -> StepError {
    StepError::settled("not a flex volume")
}

/// The options that every call about a volume gets.
fn basics(spec: &VolumeSpec) -> Result<BTreeMap<String, String>, StepError> {
    let (fs_type, read_only, _) = source(spec).ok_or_else(no_source)?;
    Ok([
        ("fsType", fs_type),
        ("readwrite", if read_only { "ro" } else { "rw" }.to_owned()),
        ("pvOrVolumeName", spec.name.clone()),
    ]
    .into_iter()
    .map(|(key, value)| (format!("kubernetes.io/{key}"), value))
    .collect())
}

fn as_json(all: &BTreeMap<String, String>) -> Result<String, StepError> {
    units::gojson::to_string(all).map_err(|e| StepError::settled(e.to_string()))
}

/// The options of a call that is not for a pod.
fn plain_options(spec: &VolumeSpec) -> Result<String, StepError> {
    let mut all = basics(spec)?;
    all.extend(source(spec).map(|(_, _, own)| own).unwrap_or_default());
    as_json(&all)
}

/// The options of a pod's mount.
async fn options(env: &Env, driver: &str, input: &MountInput) -> Result<String, StepError> {
    let mut all = basics(&input.spec)?;
    let pod = &input.pod.metadata;
    let text = |v: &Option<String>| v.clone().unwrap_or_default();
    let account = input.pod.spec.as_ref().and_then(|s| s.service_account_name.clone());
    let about_pod = [
        ("pod.name", text(&pod.name)),
        ("pod.namespace", text(&pod.namespace)),
        ("pod.uid", text(&pod.uid)),
        ("serviceAccount.name", account.unwrap_or_default()),
    ];
    all.extend(about_pod.map(|(key, value)| (format!("kubernetes.io/{key}"), value)));
    if let Some(gid) = ownership::fs_group(&input.pod) {
        all.insert("kubernetes.io/mounterArgs.FsGroup".into(), gid.to_string());
    }
    if let Some((namespace, name)) = secret(&input.spec, &text(&pod.namespace)) {
        let refused = |e: String| {
            StepError::transient(format!("couldn't get secret {namespace}/{name} err: {e}"))
        };
        let storage = env.storage.as_ref();
        let storage = storage.ok_or_else(|| StepError::transient("cannot get kube client"))?;
        let object = storage.secret(&namespace, &name).await.map_err(|e| refused(e.to_string()))?;
        if object.type_.as_deref() != Some(driver) {
            return Err(refused(format!("cannot get secret of type {driver}")));
        }
        for (key, value) in object.data.iter().flatten() {
            let encoded = base64::engine::general_purpose::STANDARD.encode(&value.0);
            all.insert(format!("kubernetes.io/secret/{key}"), encoded);
        }
    }
    all.extend(source(&input.spec).map(|(_, _, own)| own).unwrap_or_default());
    as_json(&all)
}

type Parts = (String, bool, BTreeMap<String, String>);

/// File system, read-only, the volume's own options.
fn source(spec: &VolumeSpec) -> Option<Parts> {
    if let Some(flex) = spec.as_inline().and_then(|v| v.flex_volume.as_ref()) {
        return Some((
            flex.fs_type.clone().unwrap_or_default(),
            flex.read_only == Some(true),
            flex.options.clone().unwrap_or_default(),
        ));
    }
    let flex = spec.as_persistent()?.spec.as_ref()?.flex_volume.as_ref()?;
    // Only the pod's claim reference decides, not the persistent volume.
    let read_only = spec.read_only;
    Some((
        flex.fs_type.clone().unwrap_or_default(),
        read_only,
        flex.options.clone().unwrap_or_default(),
    ))
}

/// Namespace and name of the volume's secret.
fn secret(spec: &VolumeSpec, pod_namespace: &str) -> Option<(String, String)> {
    let filled = |(namespace, name): (String, String)| {
        (!namespace.is_empty() && !name.is_empty()).then_some((namespace, name))
    };
    if let Some(flex) = spec.as_inline().and_then(|v| v.flex_volume.as_ref()) {
        return filled((pod_namespace.to_owned(), flex.secret_ref.as_ref()?.name.clone()));
    }
    let flex = spec.as_persistent()?.spec.as_ref()?.flex_volume.as_ref()?;
    let reference = flex.secret_ref.as_ref()?;
    let namespace = reference.namespace.clone().filter(|n| !n.is_empty());
    let namespace = namespace.unwrap_or_else(|| pod_namespace.to_owned());
    filled((namespace, reference.name.clone().unwrap_or_default()))
}

fn target(env: &Env, uid: &str, spec: &VolumeSpec) -> PathBuf {
    env.paths.volume(uid, &spec.plugin, &spec.name)
}

pub(crate) async fn set_up(env: &Env, driver: &str, input: &MountInput) -> Result<(), StepError> {
    let dir = target(env, &input.uid, &input.spec);
    let made = dir.clone();
    let mounted = env
        .pool
        .run(&dir.to_string_lossy(), "make directory", NORMAL, move || {
            sys::fs::create_dir_all(&made, 0o750)?;
            Ok::<bool, StepError>(mount::is_mount_point(&made)?)
        })
        .await??;
    if mounted {
        return Ok(());
    }
    let result = mount_with(env, driver, input, &dir).await;
    if result.as_ref().is_err_and(|e| e.outcome != engine::volumes::Outcome::Uncertain) {
        // Only an empty folder goes.
        let unused = dir.clone();
        env.pool
            .run(&dir.to_string_lossy(), "remove directory", NORMAL, move || {
                sys::fs::remove_dir(&unused)
            })
            .await??;
    }
    result
}

async fn mount_with(
    env: &Env,
    driver: &str,
    input: &MountInput,
    dir: &Path,
) -> Result<(), StepError> {
    let options = options(env, driver, input).await?;
    input.step.enter(format!("mount of flexvolume driver {driver}"));
    let done = call(env, driver, "mount", &[&dir.to_string_lossy(), &options]).await?;
    if done.is_none() {
        let (from, to) = (device_mount(env, driver, &input.spec.name), dir.to_owned());
        let key = dir.to_string_lossy();
        env.pool
            .run(&key, "bind", NORMAL, move || mount::bind(&from, &to, false))
            .await?
            .map_err(|e| StepError::settled(crate::env::chain(&e)))?;
    }
    let read_only = source(&input.spec).is_some_and(|(_, read_only, _)| read_only);
    if !read_only
        && known(env, driver).is_some_and(|d| d.fs_group)
        && let Err(err) = ownership::apply(env, input, dir.to_owned(), read_only).await
    {
        tracing::warn!(volume = input.spec.name, %err, "could not set ownership");
    }
    Ok(())
}

pub(crate) async fn tear_down(
    env: &Env,
    driver: &str,
    input: &UnmountInput,
) -> Result<(), StepError> {
    let dir = target(env, &input.uid, &input.spec);
    let looked = dir.clone();
    let there = env
        .pool
        .run(&dir.to_string_lossy(), "stat", NORMAL, move || sys::fs::try_exists(&looked))
        .await??;
    if !there {
        return Ok(());
    }
    input.step.enter(format!("unmount of flexvolume driver {driver}"));
    call(env, driver, "unmount", &[&dir.to_string_lossy()])
        .await
        .map_err(|e| StepError::uncertain(e.message))?;
    local::unmount_and_remove(env, &dir).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read_in_any_case_and_default_to_attaching() {
        let answer =
            parse("{\"Status\": \"Success\", \"Capabilities\": {\"ATTACH\": false}}").unwrap();
        assert_eq!(
            (answer.status.as_str(), answer.attaches, answer.fs_group),
            ("Success", false, true)
        );
        assert!(parse("{\"status\": \"Success\"}").unwrap().attaches);
        assert!(parse("garbage").is_none());
        let answer = parse("{\"status\": \"Success\", \"device\": \"/dev/x\"}").unwrap();
        assert_eq!(
            (answer.device.as_str(), answer.metrics, answer.resizes),
            ("/dev/x", false, true)
        );
    }
}
