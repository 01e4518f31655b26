//! Flexvolume: an executable of the host per driver, as far as drivers mount by themselves.
//!
//! Deliberately absent: drivers that attach (`capabilities.attach`); they are refused by name.

use super::{MountInput, UnmountInput};
use crate::env::{Env, StepError};
use crate::host_tools;
use crate::ownership;
use crate::pool::NORMAL;
use base64::Engine;
use engine::volumes::VolumeSpec;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;
use sys::mount;

const LIMIT: Duration = Duration::from_secs(10 * 60);

/// What a driver printed.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Answer {
    status: String,
    message: String,
    attaches: bool,
    fs_group: bool,
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
    let flag = |name: &str| field(&capabilities, name).and_then(|v| v.as_bool()).unwrap_or(true);
    Some(Answer {
        status: text("status"),
        message: text("message"),
        attaches: flag("attach"),
        fs_group: flag("fsGroup"),
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
    command: &str,
    arguments: &[&str],
) -> Result<Option<Answer>, StepError> {
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
        "Not supported" => Ok(None),
        status => Err(StepError::settled(format!(
            "{command} command failed, status: {status}, reason: {}",
            answer.message
        ))),
    }
}

/// Whether the driver's program is there and says that it is ready. Asked once per program.
pub(crate) async fn is_known(env: &Env, driver: &str) -> bool {
    let program = executable(env, driver);
    let looked = program.clone();
    let changed = env
        .pool
        .run(&program.to_string_lossy(), "stat", NORMAL, move || {
            std::fs::metadata(&looked).and_then(|found| found.modified()).ok()
        })
        .await;
    let Ok(Some(changed)) = changed else { return false };
    let asked = env.flex_drivers.lock().ok().and_then(|known| known.get(driver).copied());
    if asked == Some(changed) {
        return true;
    }
    match call(env, driver, "init", &[]).await {
        Ok(Some(_)) => {
            if let Ok(mut known) = env.flex_drivers.lock() {
                known.insert(driver.to_owned(), changed);
            }
            true
        }
        Ok(None) => false,
        Err(err) => {
            tracing::error!(driver, %err, "flexvolume driver could not be initialised");
            false
        }
    }
}

/// The options of a call as JSON.
async fn options(env: &Env, input: &MountInput) -> Result<String, StepError> {
    let (fs_type, read_only, own, secret) = source(&input.spec, &input.pod)
        .ok_or_else(|| StepError::settled("the volume has no flexvolume source"))?;
    let pod = &input.pod.metadata;
    let text = |v: &Option<String>| v.clone().unwrap_or_default();
    let account = input.pod.spec.as_ref().and_then(|s| s.service_account_name.clone());
    let mut all: BTreeMap<String, String> = [
        ("fsType", fs_type),
        ("readwrite", if read_only { "ro" } else { "rw" }.to_owned()),
        ("pvOrVolumeName", input.spec.name.clone()),
        ("pod.name", text(&pod.name)),
        ("pod.namespace", text(&pod.namespace)),
        ("pod.uid", text(&pod.uid)),
        ("serviceAccount.name", account.unwrap_or_default()),
    ]
    .into_iter()
    .map(|(key, value)| (format!("kubernetes.io/{key}"), value))
    .collect();
    if let Some(gid) = ownership::fs_group(&input.pod) {
        all.insert("kubernetes.io/mounterArgs.FsGroup".into(), gid.to_string());
    }
    if let (Some((namespace, name)), Some(storage)) = (secret, &env.storage) {
        let object = storage.secret(&namespace, &name).await.map_err(|e| {
            StepError::transient(format!("Couldn't get secret {namespace}/{name} err: {e}"))
        })?;
        for (key, value) in object.data.iter().flatten() {
            let encoded = base64::engine::general_purpose::STANDARD.encode(&value.0);
            all.insert(format!("kubernetes.io/secret/{key}"), encoded);
        }
    }
    all.extend(own);
    units::gojson::to_string(&all).map_err(|e| StepError::settled(e.to_string()))
}

type Parts = (String, bool, BTreeMap<String, String>, Option<(String, String)>);

/// File system, read-only, the volume's own options, its secret.
fn source(spec: &VolumeSpec, pod: &api::core::v1::Pod) -> Option<Parts> {
    if let Some(flex) = spec.as_inline().and_then(|v| v.flex_volume.as_ref()) {
        let namespace = pod.metadata.namespace.clone().unwrap_or_default();
        return Some((
            flex.fs_type.clone().unwrap_or_default(),
            flex.read_only == Some(true),
            flex.options.clone().unwrap_or_default(),
            flex.secret_ref.as_ref().map(|r| (namespace, r.name.clone())),
        ));
    }
    let flex = spec.as_persistent()?.spec.as_ref()?.flex_volume.as_ref()?;
    let secret = flex
        .secret_ref
        .as_ref()
        .map(|r| (r.namespace.clone().unwrap_or_default(), r.name.clone().unwrap_or_default()));
    Some((
        flex.fs_type.clone().unwrap_or_default(),
        spec.read_only || flex.read_only == Some(true),
        flex.options.clone().unwrap_or_default(),
        secret,
    ))
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
    input.step.enter(format!("init of flexvolume driver {driver}"));
    let about = call(env, driver, "init", &[]).await?;
    if about.as_ref().is_none_or(|a| a.attaches) {
        return Err(StepError::settled(format!(
            "flexvolume driver {driver} attaches volumes, which is not supported"
        )));
    }
    let options = options(env, input).await?;
    input.step.enter(format!("mount of flexvolume driver {driver}"));
    let done = call(env, driver, "mount", &[&dir.to_string_lossy(), &options]).await?;
    if done.is_none() {
        return Err(StepError::settled("Not supported"));
    }
    let read_only = source(&input.spec, &input.pod).is_some_and(|(_, ro, _, _)| ro);
    if !read_only && about.is_some_and(|a| a.fs_group) {
        ownership::apply(env, &input.pod, dir.to_owned(), read_only, &input.step).await?;
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
    super::local::unmount_and_remove(env, &dir).await
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
    }
}
