//! Remove everything a slot can hold on the machine, in whatever state it was left: processes,
//! containers, mounts, network devices and rules, cgroups, files.
//!
//! Works from the slot's number and folder alone, so that it serves the orderly end of a test as
//! well as the remains of a killed one. Only what carries the slot's name or folder is touched.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::Context;
use rustix::process::{Pid, Signal, kill_process};

use super::{eventually, slot};

/// Leave nothing of the slot.
pub(super) fn remove_all(index: u8, dir: &Path) -> anyhow::Result<()> {
    if !dir.is_dir() {
        return Ok(());
    }
    end_processes(index, dir)?;
    let open = slot::open_folder(index);
    unmount_below(dir)?;
    unmount_below(&open)?;
    remove_network(index, dir);
    remove_cgroups(index)?;
    remove_log_links(dir);
    let removed =
        Command::new("rm").args(["-rf", "--one-file-system"]).args([dir, &open]).status()?;
    anyhow::ensure!(removed.success(), "cannot remove {}", dir.display());
    Ok(())
}

/// When a process started, as the kernel counts it: with the pid it names one process for good.
pub(super) fn start_time(pid: u32) -> Option<String> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let after_name = stat.rsplit_once(')')?.1;
    after_name.split_whitespace().nth(19).map(str::to_owned)
}

fn end_processes(index: u8, dir: &Path) -> anyhow::Result<()> {
    let noted = std::fs::read_to_string(dir.join("pids")).unwrap_or_default();
    for line in noted.lines() {
        if let Some((pid, started)) = line.split_once(' ')
            && let Ok(pid) = pid.parse()
            && start_time(pid).as_deref() == Some(started)
        {
            kill(pid);
        }
    }
    eventually(Duration::from_secs(20), "the slot's processes are gone", || {
        let mut left = shims_of(dir);
        left.extend(cgroup_roots(index).iter().flat_map(|root| processes_below(root)));
        left.iter().copied().for_each(kill);
        left.is_empty()
    })
}

fn kill(pid: u32) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        let _gone = kill_process(pid, Signal::KILL);
    }
}

/// containerd's shims outlive it; each names its containerd's socket or folder on its command line.
fn shims_of(dir: &Path) -> Vec<u32> {
    let Ok(processes) = std::fs::read_dir("/proc") else { return Vec::new() };
    let mine = format!("{}/", dir.display());
    processes
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid: &u32| {
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line);
            let program = line.split('\0').next().unwrap_or_default();
            program.contains("containerd-shim") && line.contains(&mine)
        })
        .collect()
}

/// The slot's cgroup in each hierarchy that has it (one on v2, one per controller on v1).
pub(super) fn cgroup_roots(index: u8) -> Vec<PathBuf> {
    let name = slot::cgroup(index);
    hierarchies().into_iter().map(|h| h.join(&name)).filter(|root| root.is_dir()).collect()
}

/// Mount points of the cgroup hierarchies.
pub(super) fn hierarchies() -> Vec<PathBuf> {
    let base = Path::new("/sys/fs/cgroup");
    if base.join("cgroup.controllers").is_file() {
        return vec![base.to_path_buf()];
    }
    let Ok(entries) = std::fs::read_dir(base) else { return Vec::new() };
    let mut found: Vec<PathBuf> = entries
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| !path.is_symlink() && path.join("cgroup.procs").is_file())
        .collect();
    found.sort();
    found
}

fn processes_below(cgroup: &Path) -> Vec<u32> {
    let procs = std::fs::read_to_string(cgroup.join("cgroup.procs")).unwrap_or_default();
    let mut found: Vec<u32> = procs.lines().filter_map(|line| line.parse().ok()).collect();
    for child in children(cgroup) {
        found.extend(processes_below(&child));
    }
    found
}

fn children(dir: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(dir) else { return Vec::new() };
    entries
        .flatten()
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| entry.path())
        .collect()
}

fn remove_cgroups(index: u8) -> anyhow::Result<()> {
    for root in cgroup_roots(index) {
        let what = format!("{} can be removed", root.display());
        eventually(Duration::from_secs(10), &what, || remove_tree(&root))?;
    }
    Ok(())
}

fn remove_tree(cgroup: &Path) -> bool {
    children(cgroup).iter().all(|child| remove_tree(child)) && std::fs::remove_dir(cgroup).is_ok()
}

fn unmount_below(dir: &Path) -> anyhow::Result<()> {
    let table = std::fs::read_to_string("/proc/self/mountinfo").context("mount table")?;
    let points = table.lines().filter_map(|line| line.split(' ').nth(4)).map(PathBuf::from);
    let mut below: Vec<PathBuf> = points.filter(|point| point.starts_with(dir)).collect();
    below.reverse();
    for point in below {
        drop(quiet("umount", &[&"-l", &point.as_os_str()]));
    }
    Ok(())
}

fn remove_network(index: u8, dir: &Path) {
    let network = slot::network(index);
    let rules = Command::new("iptables").args(["-w", "-t", "nat", "-S"]).output();
    let rules = rules.map(|out| String::from_utf8_lossy(&out.stdout).into_owned());
    let marker = format!("\\\"{network}\\\"");
    let mut chains = Vec::new();
    for rule in rules.unwrap_or_default().lines().filter(|rule| rule.contains(&marker)) {
        let delete = rule.replacen("-A ", "-w -t nat -D ", 1);
        drop(quiet("sh", &[&"-c", &format!("iptables {delete}")]));
        if let Some((_, chain)) = rule.rsplit_once(" -j ") {
            chains.extend(chain.split(' ').next().map(str::to_owned));
        }
    }
    for chain in chains.iter().filter(|chain| chain.starts_with("CNI-")) {
        drop(quiet("iptables", &[&"-w", &"-t", &"nat", &"-F", chain]));
        drop(quiet("iptables", &[&"-w", &"-t", &"nat", &"-X", chain]));
    }
    if dir.join("cni").is_dir() {
        drop(quiet("ip", &[&"link", &"del", &slot::bridge(index)]));
    }
    let Ok(results) = std::fs::read_dir("/var/lib/cni/results") else { return };
    for entry in results.flatten() {
        if entry.file_name().to_string_lossy().starts_with(&format!("{network}-")) {
            drop(std::fs::remove_file(entry.path()));
        }
    }
}

/// `/var/log/containers` is a fixed place: remove the links that lead into the slot.
fn remove_log_links(dir: &Path) {
    let Ok(links) = std::fs::read_dir("/var/log/containers") else { return };
    for link in links.flatten().map(|entry| entry.path()) {
        if std::fs::read_link(&link).is_ok_and(|target| target.starts_with(dir)) {
            drop(std::fs::remove_file(link));
        }
    }
}

fn quiet(program: &str, args: &[&dyn AsRef<std::ffi::OsStr>]) -> std::io::Result<()> {
    let mut command = Command::new(program);
    for arg in args {
        command.arg(arg);
    }
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status().map(drop)
}
