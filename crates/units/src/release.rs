//! The version that this agent claims: the Kubernetes release whose kubelet it replaces.

/// The release alone.
pub const KUBERNETES_VERSION: &str = "v1.36.4";

/// What `--version` prints and the node reports: the release, then our own version as build
/// metadata, which kubeadm and version comparisons leave aside.
pub const REPORTED_VERSION: &str = concat!("v1.36.4+rubelet.", env!("CARGO_PKG_VERSION"));

/// Go's name of the processor this program was built for.
pub const ARCHITECTURE: &str = if cfg!(target_arch = "x86_64") {
    "amd64"
} else if cfg!(target_arch = "aarch64") {
    "arm64"
} else if cfg!(target_arch = "s390x") {
    "s390x"
} else if cfg!(target_arch = "powerpc64") {
    "ppc64le"
} else if cfg!(target_arch = "riscv64") {
    "riscv64"
} else {
    std::env::consts::ARCH
};
