//! Programs of the host: mount helpers for network filesystems, file system makers.
//!
//! Run without a shell, with a deadline; what they print is part of the error.

use crate::env::{Env, StepError};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;
use tokio::process::Command;
use units::errno::go_text;

/// For a mount helper: a server that does not answer is given up after this.
pub(crate) const MOUNT_LIMIT: Duration = Duration::from_secs(2 * 60);
/// For making or checking a file system.
pub(crate) const MAKE_LIMIT: Duration = Duration::from_secs(30 * 60);

/// How a program ended.
#[derive(Debug)]
pub(crate) struct Ended {
    /// Its exit code; `None` if a signal ended it.
    pub(crate) code: Option<i32>,
    /// Both outputs.
    pub(crate) output: String,
}

/// Runs a program; not to be found, or too slow, is an error.
pub(crate) async fn run(
    program: &str,
    arguments: &[&str],
    limit: Duration,
) -> Result<Ended, StepError> {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).kill_on_drop(true);
    let output = match tokio::time::timeout(limit, command.output()).await {
        Ok(Ok(output)) => output,
        Ok(Err(e)) if e.kind() == std::io::ErrorKind::NotFound => {
            return Err(StepError::settled("executable file not found in $PATH"));
        }
        Ok(Err(e)) => return Err(StepError::settled(format!("{program}: {}", go_text(&e)))),
        Err(_) => {
            return Err(StepError::uncertain(format!(
                "{program} did not end within {}s",
                limit.as_secs()
            )));
        }
    };
    let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.push_str(&String::from_utf8_lossy(&output.stderr));
    Ok(Ended { code: output.status.code(), output: text })
}

/// The program to run: one of the given folder comes before those of `PATH`.
pub(crate) fn tool(env: &Env, name: &str) -> String {
    match &env.config.tools {
        Some(folder) => folder.join(name).to_string_lossy().into_owned(),
        None => name.to_owned(),
    }
}

/// Takes a multipath device down.
pub(crate) async fn flush_multipath(env: &Env, device: &Path) -> Result<(), StepError> {
    let shown = device.to_string_lossy();
    let ended = run(&tool(env, "multipath"), &["-f", &shown], MOUNT_LIMIT).await?;
    if ended.code == Some(0) {
        return Ok(());
    }
    Err(StepError::uncertain(format!(
        "failed to flush multipath device {shown}: {}\n{}",
        exit_text(ended.code),
        ended.output
    )))
}

/// How a program ended, in Go's words.
pub(crate) fn exit_text(code: Option<i32>) -> String {
    shown(code)
}

fn shown(code: Option<i32>) -> String {
    code.map_or_else(|| "signal".to_owned(), |code| format!("exit status {code}"))
}

/// Mounts with the host's helper (`mount -t <type>`).
pub(crate) async fn mount(
    source: &str,
    target: &Path,
    fs_type: &str,
    options: &[String],
) -> Result<(), StepError> {
    let target_text = target.to_string_lossy();
    let joined = options.join(",");
    let mut arguments = vec!["-t", fs_type];
    if !joined.is_empty() {
        arguments.extend(["-o", joined.as_str()]);
    }
    arguments.extend([source, &target_text]);
    let ended = run("mount", &arguments, MOUNT_LIMIT).await?;
    if ended.code == Some(0) {
        return Ok(());
    }
    Err(StepError::settled(mount_failed(&ended, &arguments)))
}

/// Gives a bind mount these options.
pub(crate) async fn remount_bind(target: &Path, options: &[String]) -> Result<(), StepError> {
    let target = target.to_string_lossy();
    let joined = format!("bind,remount,{}", options.join(","));
    let arguments = ["-o", &joined, &target];
    let ended = run("mount", &arguments, MOUNT_LIMIT).await?;
    if ended.code == Some(0) {
        return Ok(());
    }
    Err(StepError::uncertain(mount_failed(&ended, &arguments)))
}

fn mount_failed(ended: &Ended, arguments: &[&str]) -> String {
    format!(
        "mount failed: {}\nMounting command: mount\nMounting arguments: {}\nOutput: {}",
        shown(ended.code),
        arguments.join(" "),
        ended.output
    )
}

/// Lets a mounted file system have all of its grown device.
pub(crate) async fn grow(device: &str, target: &Path) -> Result<(), StepError> {
    let format = disk_format(device).await.map_err(|e| StepError {
        message: format!("ResizeFS.Resize - error checking format for device {device}: {e}"),
        ..e
    })?;
    let target = target.to_string_lossy();
    let (program, arguments, about): (&str, Vec<&str>, &str) = match format.as_deref() {
        // Making a file system takes the whole disk.
        None => return Ok(()),
        Some("ext3" | "ext4") => ("resize2fs", vec![device], device),
        Some("xfs") => ("xfs_growfs", vec!["-d", &target], &target),
        Some("btrfs") => ("btrfs", vec!["filesystem", "resize", "max", &target], &target),
        Some(other) => {
            return Err(StepError::uncertain(format!(
                "ResizeFS.Resize - resize of format {other} is not supported for device {device} mounted at {target}"
            )));
        }
    };
    let ended = run(program, &arguments, MAKE_LIMIT).await?;
    if ended.code == Some(0) {
        return Ok(());
    }
    Err(StepError::uncertain(format!(
        "resize of device {about} failed: {}. {program} output: {}",
        shown(ended.code),
        ended.output
    )))
}

/// The file system on a device: `None` if it is empty. A partition table counts as content.
pub(crate) async fn disk_format(device: &str) -> Result<Option<String>, StepError> {
    let arguments = ["-p", "-s", "TYPE", "-s", "PTTYPE", "-o", "export", device];
    let ended = run("blkid", &arguments, MOUNT_LIMIT).await?;
    if ended.code == Some(2) {
        return Ok(None);
    }
    if ended.code != Some(0) {
        return Err(StepError::settled(format!(
            "failed to get disk format of disk {device}: {}",
            shown(ended.code)
        )));
    }
    let field =
        |name: &str| ended.output.lines().find_map(|l| l.strip_prefix(name)).map(str::to_owned);
    let table = field("PTTYPE=").map(|_| "unknown data, probably partitions".to_owned());
    Ok(table.or_else(|| field("TYPE=")))
}

/// Formats an empty disk, checks a formatted one, and mounts it.
pub(crate) async fn format_and_mount(
    device: &str,
    target: &Path,
    fs_type: &str,
    options: &[String],
) -> Result<(), StepError> {
    let read_only = options.iter().any(|o| o == "ro");
    let found = disk_format(device).await?;
    match &found {
        None if read_only => {
            return Err(StepError::settled(format!(
                "cannot mount unformatted disk {device} as we are manipulating it in read-only mode"
            )));
        }
        None => make(device, fs_type).await?,
        Some(_) if !read_only => check(device).await?,
        Some(_) => {}
    }
    let mut all = options.to_vec();
    all.push("defaults".into());
    let mounted = mount(device, target, fs_type, &all).await;
    match (mounted, found) {
        (Err(e), Some(found)) if found != fs_type => Err(StepError {
            message: format!(
                "failed to mount the volume as {fs_type:?}, it already contains {found}. Mount error: {e}"
            ),
            ..e
        }),
        (result, _) => result,
    }
}

async fn make(device: &str, fs_type: &str) -> Result<(), StepError> {
    let program = format!("mkfs.{fs_type}");
    let arguments: Vec<&str> = match fs_type {
        "ext3" | "ext4" => vec!["-F", "-m0", device],
        "xfs" => vec!["-f", device],
        _ => vec![device],
    };
    let ended = run(&program, &arguments, MAKE_LIMIT).await?;
    if ended.code == Some(0) {
        return Ok(());
    }
    Err(StepError::settled(format!(
        "failed to format disk {device:?} as {fs_type}: {} Output: {}",
        shown(ended.code),
        ended.output
    )))
}

/// Repairs what can be repaired without asking; only errors left uncorrected are fatal.
async fn check(device: &str) -> Result<(), StepError> {
    let ended = match run("fsck", &["-a", device], MAKE_LIMIT).await {
        Ok(ended) => ended,
        // No checker on this host.
        Err(e) if e.outcome == engine::volumes::Outcome::Final => return Ok(()),
        Err(e) => return Err(e),
    };
    if ended.code == Some(4) {
        return Err(StepError::settled(format!(
            "'fsck' found errors on device {device} but could not correct them: {}",
            ended.output
        )));
    }
    Ok(())
}
