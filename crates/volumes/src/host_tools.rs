//! Programs of the host: mount helpers for network filesystems, file system makers.
//!
//! Run without a shell, with a deadline; their output is part of the error.

use crate::env::{Env, StepError};
use engine::volumes::Outcome;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;
use tokio::process::Command;
use units::errno::go_text;

/// Timeout of a mount helper, for servers that do not answer.
pub(crate) const MOUNT_LIMIT: Duration = Duration::from_secs(2 * 60);
/// Timeout for making or checking a file system.
pub(crate) const MAKE_LIMIT: Duration = Duration::from_secs(30 * 60);

/// How a program ended.
#[derive(Debug)]
pub(crate) struct Ended {
    /// Its exit code; `None` if a signal ended it.
    pub(crate) code: Option<i32>,
    /// Standard output and standard error.
    pub(crate) output: String,
}

/// Runs a program; an error if it is not found or exceeds its timeout.
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

/// The program to run: one in the configured folder takes precedence over `PATH`.
pub(crate) fn tool(env: &Env, name: &str) -> String {
    match &env.config.tools {
        Some(folder) => folder.join(name).to_string_lossy().into_owned(),
        None => name.to_owned(),
    }
}

/// Flushes a multipath device (`multipath -f`).
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

/// How a program ended, as Go's `os/exec` words it.
pub(crate) fn exit_text(code: Option<i32>) -> String {
    shown(code)
}

fn shown(code: Option<i32>) -> String {
    code.map_or_else(|| "signal".to_owned(), |code| format!("exit status {code}"))
}

/// Whether systemd runs this machine: then mounts get a scope of their own, so that a helper that
/// stays (FUSE) does not end with the agent. Determined once.
async fn has_systemd() -> bool {
    static FOUND: tokio::sync::OnceCell<bool> = tokio::sync::OnceCell::const_new();
    let ask = || async {
        let probe = ["--description=Kubernetes systemd probe", "--scope", "true"];
        run("systemd-run", &probe, MOUNT_LIMIT).await.is_ok_and(|ended| ended.code == Some(0))
    };
    *FOUND.get_or_init(ask).await
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
    let what = format!("--description=Kubernetes transient mount for {target_text}");
    let command = in_scope(has_systemd().await, &what, arguments);
    let ended = run(command.0, &command.1, MOUNT_LIMIT).await?;
    if ended.code == Some(0) {
        return Ok(());
    }
    Err(StepError::settled(mount_failed(&ended, command.0, &command.1)))
}

/// The program that mounts, with its arguments.
fn in_scope<'a>(
    scoped: bool,
    description: &'a str,
    arguments: Vec<&'a str>,
) -> (&'static str, Vec<&'a str>) {
    if !scoped {
        return ("mount", arguments);
    }
    let mut all = vec![description, "--scope", "--", "mount"];
    all.extend(arguments);
    ("systemd-run", all)
}

/// Remounts a bind mount with these options.
pub(crate) async fn remount_bind(target: &Path, options: &[String]) -> Result<(), StepError> {
    let target = target.to_string_lossy();
    let joined = format!("bind,remount,{}", options.join(","));
    let arguments = ["-o", &joined, &target];
    let ended = run("mount", &arguments, MOUNT_LIMIT).await?;
    if ended.code == Some(0) {
        return Ok(());
    }
    Err(StepError::uncertain(mount_failed(&ended, "mount", &arguments)))
}

fn mount_failed(ended: &Ended, program: &str, arguments: &[&str]) -> String {
    format!(
        "mount failed: {}\nMounting command: {program}\nMounting arguments: {}\nOutput: {}",
        shown(ended.code),
        arguments.join(" "),
        ended.output
    )
}

/// Expands a mounted file system to the size of its device.
pub(crate) async fn grow(device: &str, target: &Path) -> Result<(), StepError> {
    let format = disk_format(device).await.map_err(|e| StepError {
        message: format!("ResizeFS.Resize - error checking format for device {device}: {e}"),
        ..e
    })?;
    let target = target.to_string_lossy();
    let (program, arguments, about): (&str, Vec<&str>, &str) = match format.as_deref() {
        // A file system made later uses the whole device.
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
        return Err(StepError::settled(shown(ended.code)));
    }
    let lines = || ended.output.lines().filter(|line| !line.is_empty());
    if lines().any(|line| line.matches('=').count() != 1) {
        let text = format!("blkid returns invalid output: {}", ended.output);
        return Err(StepError::settled(text));
    }
    let field = |name: &str| lines().find_map(|l| l.strip_prefix(name)).map(str::to_owned);
    let table = field("PTTYPE=").map(|_| "unknown data, probably partitions".to_owned());
    Ok(table.or_else(|| field("TYPE=")))
}

/// A disk that was not mounted.
#[derive(Debug)]
pub(crate) struct NotMounted {
    pub(crate) error: StepError,
    /// The disk has another file system than the requested one.
    pub(crate) mismatch: bool,
}

impl From<StepError> for NotMounted {
    fn from(error: StepError) -> Self {
        Self { error, mismatch: false }
    }
}

/// Formats an empty disk, checks a formatted one, and mounts it.
pub(crate) async fn format_and_mount(
    device: &str,
    target: &Path,
    fs_type: &str,
    options: &[String],
) -> Result<(), NotMounted> {
    let read_only = options.iter().any(|o| o == "ro");
    let fs_type = if fs_type.is_empty() { "ext4" } else { fs_type };
    let mut all = options.to_vec();
    all.push("defaults".into());
    let found = disk_format(device).await.map_err(|e| StepError {
        message: format!("failed to get disk format of disk {device}: {e}"),
        ..e
    })?;
    match &found {
        None if read_only => {
            return Err(StepError::settled(format!(
                "cannot mount unformatted disk {device} as we are manipulating it in read-only mode"
            ))
            .into());
        }
        None => make(device, target, fs_type, &all).await?,
        Some(_) if !read_only => check(device).await?,
        Some(_) => {}
    }
    let mismatch = found.is_some_and(|found| found != fs_type);
    let mounted = mount(device, target, fs_type, &all).await;
    mounted.map_err(|error| NotMounted { error, mismatch })
}

async fn make(
    device: &str,
    target: &Path,
    fs_type: &str,
    options: &[String],
) -> Result<(), StepError> {
    let program = format!("mkfs.{fs_type}");
    let arguments: Vec<&str> = match fs_type {
        "ext3" | "ext4" => vec!["-F", "-m0", device],
        "xfs" => vec!["-f", device],
        _ => vec![device],
    };
    let (outcome, code, output) = match run(&program, &arguments, MAKE_LIMIT).await {
        Ok(ended) if ended.code == Some(0) => return Ok(()),
        Ok(ended) => (Outcome::Final, shown(ended.code), ended.output),
        Err(e) => (e.outcome, e.message, String::new()),
    };
    let (target, options) = (target.to_string_lossy(), options.join(","));
    let message = format!(
        "format of disk {device:?} failed: type:({fs_type:?}) target:({target:?}) options:({options:?}) errcode:({code}) output:({output}) "
    );
    Err(StepError { message, outcome })
}

/// Runs `fsck -a`; only errors that are left uncorrected are fatal.
async fn check(device: &str) -> Result<(), StepError> {
    let ended = match run("fsck", &["-a", device], MAKE_LIMIT).await {
        Ok(ended) => ended,
        // No `fsck` on this host.
        Err(e) if e.outcome == Outcome::Final => return Ok(()),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn systemd_mounts_in_a_scope_of_its_own() {
        let arguments = || vec!["-t", "nfs", "s:/p", "/m"];
        assert_eq!(in_scope(false, "d", arguments()), ("mount", arguments()));
        let (program, all) = in_scope(true, "d", arguments());
        let ended = Ended { code: Some(32), output: "no".into() };
        assert_eq!(
            mount_failed(&ended, program, &all),
            "mount failed: exit status 32\nMounting command: systemd-run\nMounting arguments: \
             d --scope -- mount -t nfs s:/p /m\nOutput: no"
        );
    }

    #[tokio::test]
    async fn a_disk_that_cannot_be_formatted_is_told_with_all_there_is_to_know() {
        let options = ["rw".to_owned(), "defaults".to_owned()];
        let error = make("/dev/none", Path::new("/t"), "nosuchfs", &options).await.unwrap_err();
        assert_eq!(
            error.message,
            "format of disk \"/dev/none\" failed: type:(\"nosuchfs\") target:(\"/t\") \
             options:(\"rw,defaults\") errcode:(executable file not found in $PATH) output:() "
        );
    }
}
