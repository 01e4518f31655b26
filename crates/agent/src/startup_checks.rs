//! What ends a start although the runtime has answered, in upstream's order and words, before
//! anything but the root directory is made or started.
//!
//! Deliberately absent: what shows only while something starts (cgroups, listeners, the checkpoints
//! of CPUs and memory).

use crate::host::{Host, swap_is_on};
use crate::{
    AgentError, eviction_and_shutdown, image_gc_and_logs, layout, registries, resource_managers,
    settings,
};
use config::Config;
use config::resolved::SwapBehavior;
use engine::admission::sysctl::SysctlPolicy;
use engine::eviction::Threshold;
use images::ProviderSetup;
use ports::Roots;
use resources::dra::Claims;
use std::path::{Path, PathBuf};
use units::CpuSet;

/// What was read on the way.
#[derive(Debug)]
pub(crate) struct Accepted {
    /// All eviction thresholds.
    pub(crate) thresholds: Vec<Threshold>,
    /// The plugins that know registries.
    pub(crate) providers: Option<ProviderSetup>,
}

/// Ends the start for a fault that was found in the settings.
fn good(fault: Option<&String>) -> Result<(), AgentError> {
    fault.map_or(Ok(()), |fault| refuse(fault.clone()))
}

fn refuse<T>(fault: String) -> Result<T, AgentError> {
    Err(AgentError::Setting(fault))
}

/// A fault in what upstream builds its main object of.
fn unbuilt<T>(fault: impl std::fmt::Display) -> Result<T, AgentError> {
    refuse(format!("failed to create kubelet: {fault}"))
}

/// Everything that a configuration can be refused for.
pub(crate) fn check(config: &Config, host: &Host, roots: &Roots) -> Result<Accepted, AgentError> {
    let faults = &config.faults;
    root(&config.flags.root_dir)?;
    let machine = sys::topology::read(&roots.sys, &roots.proc)?;
    let cores = machine.nodes.iter().flat_map(|node| &node.cores);
    let online: CpuSet = cores.flat_map(|core| core.threads.iter().copied()).collect();
    let reserved = &config.resources.reservations.cpus;
    if !reserved.is_subset(&online) {
        let given = &config.kubelet.reserved_system_cpus;
        return refuse(format!("reserved-cpus: {given} is not a subset of online-cpus: {online}"));
    }
    good(faults.reserved.as_ref())?;
    if !config.resources.ignore_eviction_in_allocatable {
        eviction_and_shutdown::hard_thresholds(config)?;
    }
    good(faults.qos.as_ref())?;
    let limited = config.pods.swap_behavior == SwapBehavior::LimitedSwap;
    if limited && !host.cgroups.is_v2() {
        return refuse(
            "swap feature is enabled and LimitedSwap but it is only supported with cgroupv2"
                .to_owned(),
        );
    }
    if config.pods.fail_swap_on && swap_is_on(roots) {
        return refuse(
            "running with swap on is not supported, please disable swap or set --fail-swap-on \
             flag to false"
                .to_owned(),
        );
    }
    resource_managers::check(config, host, &machine, || claims(&config.flags.root_dir))?;
    good(faults.construction.as_ref())?;
    let thresholds = match eviction_and_shutdown::thresholds(config) {
        Ok(thresholds) => thresholds,
        Err(fault) => return unbuilt(fault),
    };
    good(faults.parts.as_ref())?;
    pods::check_allocated(&config.dirs.root).map_err(pods::PodsError::from)?;
    good(faults.logs.as_ref())?;
    let providers = registries::load(config).map_err(AgentError::Providers)?;
    if settings::remembers_pulls(config)
        && let Some(fault) = layout::obstacle(&config.dirs.root.join("image_manager/pulling"))
    {
        return unbuilt(format!("failed to setup the FSPullRecordsAccessor: {fault}"));
    }
    if let Err(fault) = pods::check_actuated(&config.dirs.root) {
        return unbuilt(format!("failed to initialize actuated state checkpoint: {fault}"));
    }
    good(faults.collection.as_ref())?;
    if let (Some(crt), Some(key)) =
        (&config.server.tls_cert_file, &config.server.tls_private_key_file)
        && !config.server.server_tls_bootstrap
    {
        let reloaded = settings::reloads_serving_files(config);
        if let Err(why) = certificate(crt, key, reloaded) {
            return unbuilt(why);
        }
    }
    if config.server.server_tls_bootstrap
        && let Err(why) = kept_certificate(
            &config.dirs.certs,
            config.server.tls_cert_file.clone().zip(config.server.tls_private_key_file.clone()),
        )
    {
        return unbuilt(format!("failed to initialize certificate manager: {why}"));
    }
    // Which are safe depends on the kernel, but not which can be allowed.
    if let Err(fault) = SysctlPolicy::new((0, 0), &config.pods.allowed_unsafe_sysctls) {
        return unbuilt(fault);
    }
    image_gc_and_logs::user_namespaces(config, roots)?;
    if let Some(why) = unlisted(&config.dirs.root.join("pods")) {
        return unbuilt(format!("create user namespace manager: read pods from disk: {why}"));
    }
    if let Some(fault) = &faults.address {
        return Err(AgentError::Listen(fault.clone()));
    }
    Ok(Accepted { thresholds, providers })
}

/// Whether the root directory, as it was given, is there or can be made (kubelet: `cadvisor.New`).
fn root(given: &str) -> Result<(), AgentError> {
    let Err(error) = std::fs::metadata(given) else { return Ok(()) };
    let shown = units::strconv::quote(given);
    if error.kind() != std::io::ErrorKind::NotFound {
        let why = units::errno::go_text(&error);
        return refuse(format!("failed to Stat {shown}: stat {given}: {why}"));
    }
    let path = Path::new(if given.is_empty() { "." } else { given });
    layout::make_all(path, 0o750)
        .or_else(|why| refuse(format!("error creating root directory {shown}: {why}")))
}

/// Whether claims can be remembered in the root directory, as it was given.
fn claims(given: &str) -> Result<(), AgentError> {
    let fault = match given {
        "" => Some("mkdir : no such file or directory".to_owned()),
        _ => layout::obstacle(Path::new(given)),
    };
    if let Some(fault) = fault {
        return refuse(format!(
            "create ResourceClaim cache: could not initialize checkpoint manager, please drain \
             node and remove DRA state file, err: failed to initialize checkpoint manager: {fault}"
        ));
    }
    Ok(Claims::check(Path::new(given))?)
}

/// Why a folder that is there cannot be listed.
fn unlisted(folder: &Path) -> Option<String> {
    let error = std::fs::read_dir(folder).err()?;
    let there = error.kind() != std::io::ErrorKind::NotFound;
    there.then(|| format!("open {}: {}", folder.display(), units::errno::go_text(&error)))
}

/// Whether the serving certificate that was kept in a folder, or else the one to begin with, can be used
/// (client-go: `fileStore`); none is fine.
fn kept_certificate(folder: &Path, first: Option<(PathBuf, PathBuf)>) -> Result<(), String> {
    let kept = |end: &str| folder.join(format!("kubelet-server{end}"));
    let is_there = |path: &Path| std::fs::metadata(path).is_ok();
    let shown = |path: &Path| units::strconv::quote(&path.to_string_lossy());
    let (current, updated) = (kept("-current.pem"), kept("-updated.pem"));
    let unlike = std::fs::symlink_metadata(&updated).is_ok_and(|found| !found.is_symlink());
    if !is_there(&current) && unlike {
        return Err(format!(
            "failed to initialize server certificate store: expected {} to be a symlink but it is \
             a file",
            shown(&updated)
        ));
    }
    let pair = |crt: &Path, key: &Path| {
        let (crt, key) = (
            sys::fs::read(crt).map_err(|e| e.in_go())?,
            sys::fs::read(key).map_err(|e| e.in_go())?,
        );
        server::tls::pair_fault(&crt, &key).map_or(Ok(()), Err)
    };
    let read = || {
        if is_there(&current) {
            let into =
                format!("could not convert data from {} into cert/key pair", shown(&current));
            return pair(&current, &current).map_err(|why| format!("{into}: {why}"));
        }
        for (crt, key) in first.into_iter().chain([(kept(".crt"), kept(".key"))]) {
            if is_there(&crt) && is_there(&key) {
                return pair(&crt, &key);
            }
        }
        Ok(())
    };
    read().map_err(|why| format!("failed to initialize server certificate manager: {why}"))
}

/// Whether a pair of files can be served with; a pair that is read again is read by another part.
fn certificate(crt: &Path, key: &Path, reloaded: bool) -> Result<(), String> {
    let failed = |why: String| match reloaded {
        true => format!(
            "failed to initialize file based certificate manager: unable to set up dynamic \
             certificate manager for kubelet server cert files: {why}"
        ),
        false => format!("failed to load certificate: {why}"),
    };
    let read = |path: &Path| sys::fs::read(path).map_err(|error| failed(error.in_go()));
    let (crt, key) = (read(crt)?, read(key)?);
    if reloaded && (crt.is_empty() || key.is_empty()) {
        let name = "kubelet-server-cert-files";
        return Err(failed(format!("missing content for serving cert \"{name}\"")));
    }
    server::tls::pair_fault(&crt, &key).map_or(Ok(()), |why| Err(failed(why)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kept_serving_certificate_that_is_damaged_ends_the_start() {
        let dir = std::env::temp_dir().join(format!("rubelet-kept-{}", std::process::id()));
        sys::fs::create_dir_all(&dir, 0o755).unwrap();
        let shown = dir.display();
        assert_eq!(kept_certificate(&dir, None), Ok(()), "none is fine");
        let files = (dir.join("a.crt"), dir.join("a.key"));
        sys::fs::write(&files.0, "x").unwrap();
        assert_eq!(kept_certificate(&dir, Some(files.clone())), Ok(()), "half a pair is none");
        sys::fs::write(&files.1, "x").unwrap();
        let manager = "failed to initialize server certificate manager: ";
        let fault = kept_certificate(&dir, Some(files)).unwrap_err();
        assert!(fault.starts_with(&format!("{manager}tls: ")), "{fault}");
        let updated = dir.join("kubelet-server-updated.pem");
        sys::fs::write(&updated, "x").unwrap();
        assert_eq!(
            kept_certificate(&dir, None).unwrap_err(),
            format!(
                "failed to initialize server certificate store: expected \"{shown}/kubelet-server-\
                 updated.pem\" to be a symlink but it is a file"
            )
        );
        let current = dir.join("kubelet-server-current.pem");
        sys::fs::write(&current, "junk").unwrap();
        let fault = kept_certificate(&dir, None).unwrap_err();
        let into =
            format!("could not convert data from \"{shown}/kubelet-server-current.pem\" into");
        assert!(fault.starts_with(&format!("{manager}{into} cert/key pair: tls: ")), "{fault}");
        sys::removal::remove_tree(Path::new("/proc"), &dir, sys::removal::Contents::Everything)
            .unwrap();
    }
}
