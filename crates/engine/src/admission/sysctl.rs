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

/// A configured sysctl that cannot be allowed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SysctlFault {
    /// It is not the name of a sysctl, nor the beginning of names.
    #[error(
        "sysctl {} must have at most {MAX_LENGTH} characters and match regex {PATTERN}",
        units::strconv::quote(.0)
    )]
    Malformed(String),
    /// It belongs to no namespace.
    #[error("the sysctls {} are not known to be namespaced", units::strconv::quote(.0))]
    NotNamespaced(String),
}

const MAX_LENGTH: usize = 253;
/// Names, or beginnings of names before `*`, as upstream shows what is allowed.
const PATTERN: &str = r"([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\./])*([a-z0-9][-_a-z0-9]*)?[a-z0-9*]";

/// Whether a text matches [`PATTERN`].
fn is_pattern(text: &str) -> bool {
    let letter = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let inner = |b: &u8| letter(b) || matches!(b, b'-' | b'_');
    let whole = |segment: &str| {
        let bytes = segment.as_bytes();
        bytes.first().is_some_and(letter)
            && bytes.last().is_some_and(letter)
            && bytes.iter().all(inner)
    };
    let mut segments: Vec<&str> = text.split(['.', '/']).collect();
    let last = segments.pop().unwrap_or_default();
    let ends = last.strip_suffix('*').map_or_else(
        || last.as_bytes().first().is_some_and(letter) && whole(last),
        |start| {
            start.is_empty()
                || start.as_bytes().first().is_some_and(letter) && start.bytes().all(|b| inner(&b))
        },
    );
    text.len() <= MAX_LENGTH && ends && segments.into_iter().all(whole)
}

impl SysctlPolicy {
    /// The safe sysctls of this kernel (major, minor) and those the operator allows (exact, or a prefix before `*`).
    pub fn new(kernel: (u32, u32), unsafe_allowed: &[String]) -> Result<Self, SysctlFault> {
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
            if !is_pattern(name) {
                return Err(SysctlFault::Malformed(name.clone()));
            }
            let name = normalise(name);
            let start = name.split('*').next().unwrap_or_default();
            if namespace(start).is_none() {
                return Err(SysctlFault::NotNamespaced(start.to_owned()));
            }
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
    const IPC: [&str; 10] = [
        "kernel.sem",
        // Beginnings of the names below.
        "kernel.shm",
        "kernel.msg",
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
    let ipc = IPC.contains(&name) || name.starts_with("fs.mqueue.");
    ipc.then_some(Namespace::Ipc)
}
