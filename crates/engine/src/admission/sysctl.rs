//! Which sysctls a pod may set.

use super::Rejection;
use api::core::v1::Pod;

/// Kernel namespaces that sysctls belong to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Namespace {
    Ipc,
    Net,
}

/// Allowed sysctls.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SysctlPolicy {
    allowed: Vec<String>,
}

/// A configured sysctl that belongs to no namespace.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the sysctls {0:?} are not known to be namespaced")]
pub struct NotNamespaced(pub String);

impl SysctlPolicy {
    /// The safe sysctls of this kernel (major, minor) and those the operator allows (exact, or a prefix before `*`).
    pub fn new(kernel: (u32, u32), unsafe_allowed: &[String]) -> Result<Self, NotNamespaced> {
        let safe = [
            ("kernel.shm_rmid_forced", (0, 0)),
            ("net.ipv4.ip_local_port_range", (0, 0)),
            ("net.ipv4.tcp_syncookies", (0, 0)),
            ("net.ipv4.ping_group_range", (0, 0)),
            ("net.ipv4.ip_unprivileged_port_start", (0, 0)),
            ("net.ipv4.ip_local_reserved_ports", (3, 16)),
            ("net.ipv4.tcp_keepalive_time", (4, 5)),
            ("net.ipv4.tcp_keepalive_intvl", (4, 5)),
            ("net.ipv4.tcp_keepalive_probes", (4, 5)),
            ("net.ipv4.tcp_fin_timeout", (4, 6)),
            ("net.ipv4.tcp_rmem", (4, 15)),
            ("net.ipv4.tcp_wmem", (4, 15)),
        ];
        let mut allowed: Vec<String> = safe
            .into_iter()
            .filter(|(_, since)| kernel >= *since)
            .map(|(name, _)| name.to_owned())
            .collect();
        for name in unsafe_allowed {
            let name = normalise(name.trim());
            namespace(&name).ok_or_else(|| NotNamespaced(name.clone()))?;
            allowed.push(name);
        }
        Ok(Self { allowed })
    }

    fn allows(&self, name: &str) -> bool {
        self.allowed.iter().any(|own| match own.strip_suffix('*') {
            Some(prefix) => name.starts_with(prefix),
            None => own == name,
        })
    }
}

/// A name in dot form: when its first separator is `/`, dots and slashes are swapped.
pub fn normalise(name: &str) -> String {
    match name.find(['.', '/']).and_then(|i| name.as_bytes().get(i)) {
        Some(b'/') => name
            .chars()
            .map(|c| match c {
                '/' => '.',
                '.' => '/',
                other => other,
            })
            .collect(),
        _ => name.to_owned(),
    }
}

/// Refuses a pod that asks for a sysctl it may not set.
pub(super) fn check(policy: &SysctlPolicy, pod: &Pod) -> Result<(), Rejection> {
    let Some(spec) = &pod.spec else { return Ok(()) };
    let wanted = spec.security_context.as_ref().and_then(|c| c.sysctls.as_ref());
    for sysctl in wanted.into_iter().flatten() {
        let name = normalise(&sysctl.name);
        let refuse = |why: &str| {
            Err(Rejection::new("SysctlForbidden", format!("forbidden sysctl: \"{name}\" {why}")))
        };
        if !policy.allows(&name) {
            return refuse("not allowlisted");
        }
        match namespace(&name) {
            Some(Namespace::Net) if spec.host_network == Some(true) => {
                return refuse("not allowed with host Net enabled");
            }
            Some(Namespace::Ipc) if spec.host_ipc == Some(true) => {
                return refuse("not allowed with host IPC enabled");
            }
            _ => {}
        }
    }
    Ok(())
}

/// The namespace that a sysctl (in dot form) belongs to.
pub(crate) fn namespace(name: &str) -> Option<Namespace> {
    const IPC: [&str; 8] = [
        "kernel.sem",
        "kernel.shmall",
        "kernel.shmmax",
        "kernel.shmmni",
        "kernel.shm_rmid_forced",
        "kernel.msgmax",
        "kernel.msgmnb",
        "kernel.msgmni",
    ];
    if name.starts_with("net.") {
        return Some(Namespace::Net);
    }
    let ipc = IPC.contains(&name)
        || name == "kernel.shm*"
        || name == "kernel.msg*"
        || name.starts_with("fs.mqueue.");
    ipc.then_some(Namespace::Ipc)
}
