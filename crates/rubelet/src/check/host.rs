//! The machine: rights, cgroups, mounts, swap, clock, kernel, ports.

use super::Finding;
use config::Config;
use ports::Roots;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use sys::cgroup::Cgroups;

/// Controllers without which pods cannot be limited.
const NEEDED: [&str; 4] = ["cpu", "cpuset", "memory", "pids"];
/// Below this, watches of many pods run out.
const INOTIFY_INSTANCES: u64 = 128;
const INOTIFY_WATCHES: u64 = 8192;

/// Whether we may do what is to be done, and others may not change our files.
pub(super) fn permissions(config: &Config, root: bool) -> Vec<Finding> {
    const SUBJECT: &str = "permissions";
    let mut findings = Vec::new();
    if root {
        findings.push(Finding::ok(SUBJECT, "running as root"));
    } else {
        findings.push(Finding::error(
            SUBJECT,
            "not running as root",
            "run as root, in the unit file without User=",
        ));
    }
    let flags = &config.flags;
    for path in [&flags.config, &flags.kubeconfig, &flags.bootstrap_kubeconfig] {
        if path.is_empty() {
            continue;
        }
        match std::fs::metadata(path) {
            Ok(metadata) if metadata.permissions().mode() & 0o022 != 0 => {
                findings.push(Finding::warning(
                    SUBJECT,
                    format!("others may write {path}"),
                    format!("chmod go-w {path}"),
                ));
            }
            Err(error) if path == &flags.kubeconfig && !flags.bootstrap_kubeconfig.is_empty() => {
                let seen = format!("{path}: {error}; the bootstrap kubeconfig will be used");
                findings.push(Finding::ok(SUBJECT, seen));
            }
            Err(error) => findings.push(Finding::error(
                SUBJECT,
                format!("{path}: {error}"),
                "give a path that exists and can be read",
            )),
            Ok(_) => {}
        }
    }
    findings
}

/// Whether cgroups are there with the controllers that pods need.
pub(super) fn cgroups(config: &Config, roots: &Roots) -> Vec<Finding> {
    const SUBJECT: &str = "cgroups";
    let found = match Cgroups::detect(&roots.sys, &roots.proc) {
        Ok(found) => found,
        Err(error) => {
            return vec![Finding::error(
                SUBJECT,
                error.to_string(),
                "mount -t cgroup2 none /sys/fs/cgroup",
            )];
        }
    };
    let mut findings = Vec::new();
    let controllers: Vec<String> = match &found {
        Cgroups::V1 { mounts } => mounts.keys().cloned().collect(),
        Cgroups::V2 { root } => sys::fs::read_to_string(root.join("cgroup.controllers"))
            .map(|text| text.split_whitespace().map(str::to_owned).collect())
            .unwrap_or_default(),
    };
    let missing: Vec<&str> =
        NEEDED.into_iter().filter(|c| !controllers.iter().any(|have| have == c)).collect();
    let version = if found.is_v2() { 2 } else { 1 };
    if missing.is_empty() {
        let seen = format!("version {version} with {}", controllers.join(" "));
        findings.push(Finding::ok(SUBJECT, seen));
    } else {
        findings.push(Finding::error(
            SUBJECT,
            format!("version {version} lacks the controllers {}", missing.join(" ")),
            "enable them in the kernel (cgroup_enable=memory on the kernel's command line) and in \
             cgroup.subtree_control",
        ));
    }
    if !found.is_v2() {
        let seen = "version 1 is no longer developed; swap and memory QoS need version 2";
        let fix = "boot with systemd.unified_cgroup_hierarchy=1";
        findings.push(if config.kubelet.fail_cgroup_v1 == Some(true) {
            Finding::error(SUBJECT, seen, format!("{fix}, or set failCgroupV1: false"))
        } else {
            Finding::warning(SUBJECT, seen, fix)
        });
    }
    findings
}

/// Whether mounts below our root folder are seen in containers.
pub(super) fn propagation(roots: &Roots) -> Vec<Finding> {
    const SUBJECT: &str = "mounts";
    let Ok(table) = sys::fs::read_to_string(roots.proc.join("self/mountinfo")) else {
        return vec![Finding::error(SUBJECT, "the mount table cannot be read", "mount /proc")];
    };
    // id parent major:minor root point options [shared:N …] - type source options
    let line = table
        .lines()
        .filter_map(|line| Some((line, line.split(' ').nth(4)?)))
        .filter(|(_, point)| roots.kubelet.starts_with(point))
        .max_by_key(|(_, point)| point.len());
    let Some((line, point)) = line else {
        return vec![Finding::error(SUBJECT, "the root folder is on no mount", "mount /proc")];
    };
    let head = line.split(" - ").next().unwrap_or_default();
    if head.split(' ').skip(6).any(|tag| tag.starts_with("shared:")) {
        let seen = format!("{} is on the shared mount {point}", roots.kubelet.display());
        return vec![Finding::ok(SUBJECT, seen)];
    }
    vec![Finding::warning(
        SUBJECT,
        format!("{point} is not shared: volumes mounted later do not reach running containers"),
        format!("mount --make-rshared {point}"),
    )]
}

/// Whether swap suits the settings.
pub(super) fn swap(config: &Config, roots: &Roots) -> Vec<Finding> {
    const SUBJECT: &str = "swap";
    let table = sys::fs::read_to_string(roots.proc.join("swaps")).unwrap_or_default();
    let devices: Vec<&str> =
        table.lines().skip(1).filter_map(|line| line.split_whitespace().next()).collect();
    if devices.is_empty() {
        return vec![Finding::ok(SUBJECT, "off")];
    }
    let seen = format!("on: {}", devices.join(" "));
    if config.pods.fail_swap_on {
        vec![Finding::error(SUBJECT, seen, "swapoff -a, or set failSwapOn: false")]
    } else {
        vec![Finding::ok(SUBJECT, format!("{seen}, as allowed by failSwapOn: false"))]
    }
}

/// Whether something keeps the clock right.
pub(super) fn clock() -> Vec<Finding> {
    const SUBJECT: &str = "clock";
    vec![match sys::clock::is_synchronized() {
        Ok(true) => Finding::ok(SUBJECT, "synchronised"),
        Ok(false) => Finding::warning(
            SUBJECT,
            "nothing keeps the clock right: certificates and leases may be refused",
            "run chrony or systemd-timesyncd",
        ),
        Err(error) => Finding::warning(
            SUBJECT,
            format!("the kernel does not tell: {error}"),
            "run as root, with CAP_SYS_TIME where capabilities are dropped",
        ),
    }]
}

fn number(path: &Path) -> Option<u64> {
    sys::fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// Whether there are enough watches for many pods.
pub(super) fn inotify(roots: &Roots) -> Vec<Finding> {
    const SUBJECT: &str = "inotify";
    let limits = [
        ("max_user_instances", INOTIFY_INSTANCES, 8192),
        ("max_user_watches", INOTIFY_WATCHES, 524_288),
    ];
    let folder = roots.proc.join("sys/fs/inotify");
    let mut seen = Vec::new();
    let mut findings = Vec::new();
    for (name, least, good) in limits {
        let Some(limit) = number(&folder.join(name)) else { continue };
        seen.push(format!("{name} {limit}"));
        if limit < least {
            findings.push(Finding::warning(
                SUBJECT,
                format!("{name} is {limit}, below {least}"),
                format!("sysctl -w fs.inotify.{name}={good}, and in /etc/sysctl.d"),
            ));
        }
    }
    if findings.is_empty() {
        findings.push(Finding::ok(SUBJECT, seen.join(", ")));
    }
    findings
}

/// Whether a pod can change this host's routes by announcing itself as a router (CVE-2020-10749): on the
/// bridges that pods are behind, and on interfaces still to come.
pub(super) fn advertisements(roots: &Roots) -> Vec<Finding> {
    const SUBJECT: &str = "router advertisements";
    let settings = roots.proc.join("sys/net/ipv6/conf");
    let names = sys::fs::list_dir(&settings).unwrap_or_default();
    let is_bridge = |name: &str| roots.sys.join("class/net").join(name).join("bridge").is_dir();
    let accepts = |name: &str| {
        let value = |key: &str| number(&settings.join(name).join(key));
        // One who forwards takes them only if told so twice.
        let wanted = if value("forwarding") == Some(0) { 1 } else { 2 };
        value("disable_ipv6") != Some(1) && value("accept_ra").is_some_and(|v| v >= wanted)
    };
    let open: Vec<String> = names
        .iter()
        .filter(|name| (*name == "default" || is_bridge(name)) && accepts(name))
        .map(|name| format!("net.ipv6.conf.{name}.accept_ra"))
        .collect();
    if open.is_empty() {
        return vec![Finding::ok(SUBJECT, "none are taken from pods")];
    }
    let fix: Vec<String> = open.iter().map(|name| format!("{name}=0")).collect();
    vec![Finding::warning(
        SUBJECT,
        format!("{}: a pod could announce itself as this host's router", open.join(", ")),
        format!("sysctl -w {}, and in /etc/sysctl.d", fix.join(" ")),
    )]
}

/// Kernel settings that the agent changes, or must not.
pub(super) fn kernel(config: &Config, roots: &Roots) -> Vec<Finding> {
    const SUBJECT: &str = "kernel";
    let wanted = [
        ("vm/overcommit_memory", 1),
        ("vm/panic_on_oom", 0),
        ("kernel/panic", 10),
        ("kernel/panic_on_oops", 1),
    ];
    let differ: Vec<String> = wanted
        .into_iter()
        .filter(|(name, value)| number(&roots.proc.join("sys").join(name)) != Some(*value))
        .map(|(name, value)| format!("{}={value}", name.replace('/', ".")))
        .collect();
    if differ.is_empty() {
        return vec![Finding::ok(SUBJECT, "settings are as needed")];
    }
    if config.node.protect_kernel_defaults {
        return vec![Finding::error(
            SUBJECT,
            "protectKernelDefaults is set and settings differ",
            format!("sysctl -w {}", differ.join(" ")),
        )];
    }
    vec![Finding::ok(SUBJECT, format!("will be set at start: {}", differ.join(" ")))]
}

/// Whether pods get a resolver they can reach.
pub(super) fn resolver(config: &Config) -> Vec<Finding> {
    const SUBJECT: &str = "resolver";
    let Some(path) = &config.dns.resolv_conf else {
        return vec![Finding::ok(SUBJECT, "none for pods, as configured")];
    };
    let text = match sys::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) => {
            return vec![Finding::error(
                SUBJECT,
                format!("{error}: {}", error.source),
                "set resolvConf to the host's resolver configuration",
            )];
        }
    };
    let servers: Vec<&str> = text
        .lines()
        .filter_map(|line| line.trim().strip_prefix("nameserver"))
        .map(str::trim)
        .collect();
    if servers.iter().any(|server| server.starts_with("127.") || *server == "::1") {
        return vec![Finding::warning(
            SUBJECT,
            format!("{} names this host's own resolver, which pods cannot reach", path.display()),
            "set resolvConf: /run/systemd/resolve/resolv.conf",
        )];
    }
    vec![Finding::ok(SUBJECT, format!("{} with {} servers", path.display(), servers.len()))]
}

/// Whether our ports are free.
pub(super) fn ports(config: &Config) -> Vec<Finding> {
    const SUBJECT: &str = "ports";
    let server = &config.server;
    let wanted: Vec<SocketAddr> =
        [server.healthz, server.https, server.read_only].into_iter().flatten().collect();
    let mut findings = Vec::new();
    for address in &wanted {
        match TcpListener::bind(address) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                findings.push(Finding::warning(
                    SUBJECT,
                    format!("{address} is in use"),
                    "stop the other kubelet, or change the port; if it is this agent running, all \
                     is well",
                ));
            }
            Err(error) => findings.push(Finding::error(
                SUBJECT,
                format!("{address}: {error}"),
                "give an address of this host",
            )),
        }
    }
    if findings.is_empty() {
        let shown: Vec<String> = wanted.iter().map(ToString::to_string).collect();
        findings.push(Finding::ok(SUBJECT, format!("free: {}", shown.join(" "))));
    }
    findings
}
