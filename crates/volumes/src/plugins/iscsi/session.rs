//! Logging in to an iSCSI target and out of it (upstream: `ISCSIUtil`).

use super::super::disk;
use super::{Target, in_use, iscsiadm};
use crate::env::{Env, StepError};
use crate::host_tools::{self, Ended, exit_text};
use crate::pool::NORMAL;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Rounds over all portals; a disk with at least two paths is good after the second.
const ROUNDS: usize = 5;
const GOOD_ROUND: usize = 2;
const GOOD_PATHS: usize = 2;
/// Seconds to wait for a device, and for a multipath device above several.
const DEVICE_SECONDS: u32 = 30;
const MULTIPATH_SECONDS: u32 = 10;
/// Exit codes of `iscsiadm`.
const SESSION_EXISTS: i32 = 15;
const GONE: [i32; 2] = [2, 21];

const DISCOVERY: [&str; 4] = [
    "discovery.sendtargets.auth.username",
    "discovery.sendtargets.auth.password",
    "discovery.sendtargets.auth.username_in",
    "discovery.sendtargets.auth.password_in",
];
const SESSION: [&str; 4] = [
    "node.session.auth.username",
    "node.session.auth.password",
    "node.session.auth.username_in",
    "node.session.auth.password_in",
];

fn ok(ended: &Ended) -> bool {
    ended.code == Some(0)
}

/// Logs in to every portal; returns the disk, or the multipath device above its paths.
pub(super) async fn log_in(
    env: &Env,
    target: &Target,
    secrets: &BTreeMap<String, String>,
) -> Result<PathBuf, StepError> {
    let shown = iscsiadm(env, &["-m", "iface", "-I", &target.base, "-o", "show"]).await?;
    if !ok(&shown) {
        return Err(StepError::settled(exit_text(shown.code)));
    }
    let transport = transport(&shown.output);
    if !target.initiator.is_empty() {
        clone_interface(env, target, &shown.output).await?;
    }
    let mut paths: BTreeMap<String, PathBuf> = BTreeMap::new();
    let mut last = String::new();
    for round in 1..=ROUNDS {
        for portal in &target.portals {
            if paths.contains_key(portal) {
                continue;
            }
            match one_portal(env, target, portal, secrets, &transport).await? {
                Ok(path) => drop(paths.insert(portal.clone(), path)),
                Err(why) if why.is_empty() => {}
                Err(why) => last = why,
            }
        }
        if paths.is_empty() {
            let iface = ["-m", "iface", "-I", &target.interface, "-o", "delete"];
            iscsiadm(env, &iface).await?;
            return Err(StepError::settled(format!(
                "failed to get any path for iscsi disk, last err seen:\n{last}"
            )));
        }
        let all = paths.len() == target.portals.len();
        if all || (paths.len() >= GOOD_PATHS && round >= GOOD_ROUND) {
            break;
        }
    }
    let seconds = if target.portals.len() > 1 { MULTIPATH_SECONDS } else { 1 };
    let paths: Vec<PathBuf> = paths.into_values().collect();
    if let Some(mapper) = wait_for_multipath(env, &paths, seconds).await? {
        return Ok(mapper);
    }
    paths.into_iter().next().ok_or_else(|| StepError::settled("no path for iscsi disk"))
}

/// The disk through one portal. The inner error is about this portal only; the outer ends the attempt.
async fn one_portal(
    env: &Env,
    target: &Target,
    portal: &str,
    secrets: &BTreeMap<String, String>,
    transport: &str,
) -> Result<Result<PathBuf, String>, StepError> {
    let mut host = host_of(env, target, portal).await?;
    if host.is_none() {
        if let Err(why) = open_session(env, target, portal, secrets).await? {
            return Ok(Err(why));
        }
        host = host_of(env, target, portal).await?;
    }
    let Some(host) = host else { return Ok(Err(String::new())) };
    let (sys, lun) = (env.config.roots.sys.clone(), target.lun);
    let scan = sys.join(format!("class/scsi_host/host{host}/scan"));
    let key = scan.to_string_lossy().into_owned();
    env.pool
        .run(&key, "scan", NORMAL, move || sys::fs::write(&scan, format!("0 0 {lun}")))
        .await??;
    if transport.is_empty() {
        return Err(StepError::settled(format!(
            "could not parse iface file for {}",
            target.interface
        )));
    }
    let address: String = portal.chars().filter(|c| *c != '[' && *c != ']').collect();
    let name = format!("ip-{address}-iscsi-{}-lun-{}", target.iqn, target.lun);
    let folder = env.config.roots.dev.join("disk/by-path");
    for second in 0..DEVICE_SECONDS {
        if second > 0 {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        let (looked, wanted, plain) = (folder.clone(), name.clone(), transport == "tcp");
        let found = env
            .pool
            .run(&name, "find device", NORMAL, move || find_link(&looked, &wanted, plain))
            .await?;
        if let Some(path) = found {
            return Ok(Ok(path));
        }
    }
    let prefix = if transport == "tcp" { String::new() } else { "pci-*-".to_owned() };
    let path = folder.join(format!("{prefix}{name}"));
    Ok(Err(format!(
        "Timed out waiting for device at path {} after {DEVICE_SECONDS}s",
        path.display()
    )))
}

/// Finds the link in `/dev/disk/by-path`; with a transport other than TCP its name begins with the adapter's bus address.
fn find_link(folder: &Path, name: &str, plain: bool) -> Option<PathBuf> {
    if plain {
        let path = folder.join(name);
        return std::fs::metadata(&path).is_ok().then_some(path);
    }
    let links = sys::fs::list_dir(folder).ok()?;
    let tail = format!("-{name}");
    let found = links.into_iter().find(|l| l.starts_with("pci-") && l.ends_with(&tail))?;
    Some(folder.join(found))
}

async fn open_session(
    env: &Env,
    target: &Target,
    portal: &str,
    secrets: &BTreeMap<String, String>,
) -> Result<Result<(), String>, StepError> {
    let (iface, iqn) = (target.interface.as_str(), target.iqn.as_str());
    let db = ["-m", "discoverydb", "-t", "sendtargets", "-p", portal, "-I", iface];
    let with = |more: &[&'static str]| -> Vec<&str> {
        db.iter().copied().chain(more.iter().copied()).collect()
    };
    iscsiadm(env, &with(&["-o", "new"])).await?;
    if target.chap_discovery {
        let set = ["-o", "update", "-n", "discovery.sendtargets.auth.authmethod", "-v", "CHAP"];
        let ended = iscsiadm(env, &with(&set)).await?;
        let refused = |why: String| {
            Ok(Err(format!("iscsi: failed to update discoverydb to portal {portal} error: {why}")))
        };
        if !ok(&ended) {
            return refused(format!(
                "iscsi: failed to update discoverydb with CHAP, output: {}",
                ended.output
            ));
        }
        for key in DISCOVERY {
            let Some(value) = secrets.get(key).filter(|v| !v.is_empty()) else { continue };
            let mut arguments = with(&["-o", "update", "-n"]);
            arguments.extend([key, "-v", value]);
            let ended = iscsiadm(env, &arguments).await?;
            if !ok(&ended) {
                return refused(format!(
                    "iscsi: failed to update discoverydb key {key:?} error: {}",
                    ended.output
                ));
            }
        }
    }
    let found = iscsiadm(env, &with(&["--discover"])).await?;
    if !ok(&found) {
        iscsiadm(env, &with(&["-o", "delete"])).await?;
        return Ok(Err(format!(
            "iscsi: failed to sendtargets to portal {portal} output: {}, err {}",
            found.output,
            exit_text(found.code)
        )));
    }
    let node = ["-m", "node", "-p", portal, "-T", iqn, "-I", iface];
    if let Err(why) = set_up_node(env, target, secrets, &node).await? {
        return Ok(Err(format!(
            "iscsi: failed to update iscsi node to portal {portal} error: {why}"
        )));
    }
    let login: Vec<&str> = node.iter().copied().chain(["--login"]).collect();
    let ended = iscsiadm(env, &login).await?;
    if !ok(&ended) {
        let delete = ["-m", "node", "-p", portal, "-I", iface, "-T", iqn, "-o", "delete"];
        iscsiadm(env, &delete).await?;
        return Ok(Err(format!(
            "iscsi: failed to attach disk: Error: {} ({})",
            ended.output,
            exit_text(ended.code)
        )));
    }
    let manual = [
        "-m",
        "node",
        "-p",
        portal,
        "-T",
        iqn,
        "-o",
        "update",
        "-n",
        "node.startup",
        "-v",
        "manual",
    ];
    let ended = iscsiadm(env, &manual).await?;
    if !ok(&ended) {
        tracing::warn!(output = ended.output, "could not set the iSCSI login mode to manual");
    }
    Ok(Ok(()))
}

/// Configures the node record: scan for the one LUN only, and CHAP if the volume asks for it.
async fn set_up_node(
    env: &Env,
    target: &Target,
    secrets: &BTreeMap<String, String>,
    node: &[&str],
) -> Result<Result<(), String>, StepError> {
    async fn update(env: &Env, node: &[&str], key: &str, value: &str) -> Result<Ended, StepError> {
        let set = ["-o", "update", "-n", key, "-v", value];
        let arguments: Vec<&str> = node.iter().copied().chain(set).collect();
        iscsiadm(env, &arguments).await
    }
    let ended = update(env, node, "node.session.scan", "manual").await?;
    if !ok(&ended) {
        tracing::warn!(output = ended.output, "could not set node.session.scan to manual");
    }
    if !target.chap_session {
        return Ok(Ok(()));
    }
    let ended = update(env, node, "node.session.auth.authmethod", "CHAP").await?;
    if !ok(&ended) {
        return Ok(Err(format!(
            "iscsi: failed to update node with CHAP, output: {}",
            ended.output
        )));
    }
    for key in SESSION {
        let Some(value) = secrets.get(key).filter(|v| !v.is_empty()) else { continue };
        let ended = update(env, node, key, value).await?;
        if !ok(&ended) {
            return Ok(Err(format!(
                "iscsi: failed to update node session key {key:?} error: {}",
                ended.output
            )));
        }
    }
    Ok(Ok(()))
}

/// `iface.transport_name`; an unset one is TCP.
fn transport(shown: &str) -> String {
    let found = shown.lines().find_map(|line| line.strip_prefix("iface.transport_name = "));
    match found {
        Some("<empty>") => "tcp".to_owned(),
        Some(name) => name.to_owned(),
        None => String::new(),
    }
}

/// An initiator with a name of its own gets an interface of its own, like the one it is based on.
async fn clone_interface(env: &Env, target: &Target, shown: &str) -> Result<(), StepError> {
    let iface = target.interface.as_str();
    let mut settings: BTreeMap<String, String> = BTreeMap::new();
    for line in shown.lines().filter(|l| l.starts_with("iface.") && !l.contains("<empty>")) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [key, "=", value] = words.as_slice() else {
            return Err(StepError::settled(format!(
                "iscsi: failed to parse iface records: {shown} (error: invalid iface setting: [{}])",
                words.join(" ")
            )));
        };
        if *key != "iface.iscsi_ifacename" {
            settings.insert((*key).to_owned(), (*value).to_owned());
        }
    }
    settings.insert("iface.initiatorname".into(), target.initiator.clone());
    let made = iscsiadm(env, &["-m", "iface", "-I", iface, "-o", "new"]).await?;
    if !ok(&made) && made.code != Some(SESSION_EXISTS) {
        return Err(StepError::settled(format!(
            "iscsi: failed to create new iface: {} ({})",
            made.output,
            exit_text(made.code)
        )));
    }
    for (key, value) in &settings {
        let update = ["-m", "iface", "-I", iface, "-o", "update", "-n", key, "-v", value];
        let ended = iscsiadm(env, &update).await?;
        if !ok(&ended) {
            iscsiadm(env, &["-m", "iface", "-I", iface, "-o", "delete"]).await?;
            return Err(StepError::settled(format!(
                "iscsi: failed to update iface records: {} ({}). iface({}) will be used",
                made.output,
                exit_text(ended.code),
                target.base
            )));
        }
    }
    Ok(())
}

/// The SCSI host of a session with the portal.
async fn host_of(env: &Env, target: &Target, portal: &str) -> Result<Option<u32>, StepError> {
    let (sys, iqn, portal) = (env.config.roots.sys.clone(), target.iqn.clone(), portal.to_owned());
    let key = format!("iscsi sessions of {iqn}");
    let hosts = env.pool.run(&key, "read sessions", NORMAL, move || sessions(&sys, &iqn)).await?;
    Ok(hosts.into_iter().find(|(known, _)| *known == portal).map(|(_, host)| host))
}

/// Portals of a target with the SCSI host of each.
fn sessions(sys: &Path, iqn: &str) -> Vec<(String, u32)> {
    let mut all = Vec::new();
    let text = |path: PathBuf| {
        sys::fs::read_to_string(path).map(|t| t.trim().to_owned()).unwrap_or_default()
    };
    for (host, path) in session_folders(sys, iqn) {
        for name in sys::fs::list_dir(&path).unwrap_or_default() {
            if !name.starts_with("connection") {
                continue;
            }
            let connection = path.join(&name).join("iscsi_connection").join(&name);
            for (address, port) in [("address", "port"), ("persistent_address", "persistent_port")]
            {
                let (address, port) = (text(connection.join(address)), text(connection.join(port)));
                let address = if address.contains(':') { format!("[{address}]") } else { address };
                all.push((format!("{address}:{port}"), host));
            }
        }
    }
    all
}

fn session_folders(sys: &Path, iqn: &str) -> Vec<(u32, PathBuf)> {
    let top = sys.join("class/iscsi_host");
    let mut all = Vec::new();
    for host in sys::fs::list_dir(&top).unwrap_or_default() {
        let Some(number) = host.strip_prefix("host").and_then(|n| n.parse().ok()) else { continue };
        let device = top.join(&host).join("device");
        for session in sys::fs::list_dir(&device).unwrap_or_default() {
            if !session.starts_with("session") {
                continue;
            }
            let path = device.join(&session);
            let name = path.join("iscsi_session").join(&session).join("targetname");
            if sys::fs::read_to_string(name).is_ok_and(|found| found.trim() == iqn) {
                all.push((number, path));
            }
        }
    }
    all
}

async fn wait_for_multipath(
    env: &Env,
    paths: &[PathBuf],
    seconds: u32,
) -> Result<Option<PathBuf>, StepError> {
    for second in 0..seconds {
        if second > 0 {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        let (sys, dev) = (env.config.roots.sys.clone(), env.config.roots.dev.clone());
        let looked = paths.to_vec();
        let found = env
            .pool
            .run("multipath devices", "find device", NORMAL, move || {
                looked.iter().find_map(|path| disk::multipath_of(&sys, &dev, path))
            })
            .await?;
        if found.is_some() {
            return Ok(found);
        }
    }
    Ok(None)
}

/// Deletes the disk from the kernel; logs out when no other volume of the target is left.
pub(super) async fn log_out(env: &Env, target: &Target) -> Result<(), StepError> {
    let (sys, dev) = (env.config.roots.sys.clone(), env.config.roots.dev.clone());
    let (iqn, lun) = (target.iqn.clone(), target.lun);
    let key = format!("iscsi sessions of {iqn}");
    let (disks, mappers) = env
        .pool
        .run(&key, "find devices", NORMAL, move || {
            let mut disks = Vec::new();
            for (host, path) in session_folders(&sys, &iqn) {
                let block = path.join(format!("target{host}:0:0/{host}:0:0:{lun}/block"));
                disks.extend(sys::fs::list_dir(block).unwrap_or_default().into_iter().take(1));
            }
            let disks: Vec<PathBuf> = disks.iter().map(|name| dev.join(name)).collect();
            let mut mappers: Vec<PathBuf> =
                disks.iter().filter_map(|d| disk::multipath_of(&sys, &dev, d)).collect();
            mappers.dedup();
            (disks, mappers)
        })
        .await?;
    for mapper in mappers {
        if let Err(err) = host_tools::flush_multipath(env, &mapper).await {
            tracing::warn!(device = %mapper.display(), %err, "could not flush a multipath device");
        }
    }
    for disk in disks {
        let sys = env.config.roots.sys.clone();
        let key = disk.to_string_lossy().into_owned();
        env.pool.run(&key, "delete device", NORMAL, move || disk::forget_disk(&sys, &disk)).await?;
    }
    let (top, of) = (env.paths.plugin(super::PLUGIN), target.clone());
    let key = top.to_string_lossy().into_owned();
    if env.pool.run(&key, "count volumes", NORMAL, move || in_use(&top, &of)).await? > 1 {
        return Ok(());
    }
    for portal in &target.portals {
        let node = ["-m", "node", "-p", portal, "-T", &target.iqn];
        for step in [["--logout"].as_slice(), ["-o", "delete"].as_slice()] {
            let mut arguments: Vec<&str> = node.iter().chain(step).copied().collect();
            arguments.extend(["-I", &target.interface]);
            finish(env, &arguments).await?;
        }
    }
    let own = target.portals.first().map(|portal| format!("{portal}:{}", target.volume));
    if !target.initiator.is_empty() && own.as_deref() == Some(target.interface.as_str()) {
        finish(env, &["-m", "iface", "-I", &target.interface, "-o", "delete"]).await?;
    }
    Ok(())
}

/// Runs `iscsiadm`; records and sessions that are gone already are no error.
async fn finish(env: &Env, arguments: &[&str]) -> Result<(), StepError> {
    let ended = iscsiadm(env, arguments).await?;
    if ok(&ended) || ended.code.is_some_and(|code| GONE.contains(&code)) {
        return Ok(());
    }
    Err(StepError::uncertain(format!(
        "failed to finish detachISCSIDisk, err: {}",
        exit_text(ended.code)
    )))
}
