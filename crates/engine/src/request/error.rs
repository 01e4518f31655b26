//! Why a request cannot be built. The texts are the Go kubelet's: they reach events and
//! container statuses as `CreateContainerConfigError` or `FailedCreatePodSandBox`.

use super::env_file::EnvFileError;

/// A fault in the inputs of a CRI request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// `spec.hostnameOverride` is not a DNS subdomain.
    #[error("pod HostnameOverride {name:?} is not a valid DNS subdomain: {faults}")]
    HostnameOverride {
        /// The value.
        name: String,
        /// What is wrong with it.
        faults: String,
    },
    /// `spec.hostname` is not a DNS label.
    #[error("pod Hostname {name:?} is not a valid DNS label: {faults}")]
    Hostname {
        /// The value.
        name: String,
        /// What is wrong with it.
        faults: String,
    },
    /// `spec.subdomain` is not a DNS label.
    #[error("pod Subdomain {name:?} is not a valid DNS label: {faults}")]
    Subdomain {
        /// The value.
        name: String,
        /// What is wrong with it.
        faults: String,
    },
    /// Nothing is left of the hostname after it was cut.
    #[error("hostname for pod {pod:?} was invalid: {hostname:?}")]
    EmptyHostname {
        /// The pod's name.
        pod: String,
        /// The hostname before the cut.
        hostname: String,
    },
    /// `setHostnameAsFQDN` gives a name the kernel does not take.
    #[error(
        "failed to construct FQDN from pod hostname and cluster domain, FQDN {fqdn} is too long \
         (64 characters is the max, {} characters requested)",
        fqdn.len()
    )]
    FqdnTooLong {
        /// The name.
        fqdn: String,
    },
    /// A `nameserver` line of the host's resolver file has no address.
    #[error("Encountered error while parsing resolv conf file. Error: nameserver list is empty ")]
    ResolvConf,
    /// `supplementalGroupsPolicy` has a value we do not know.
    #[error("unsupported supplementalGroupsPolicy: {0}")]
    SupplementalGroupsPolicy(String),
    /// `enableServiceLinks` was not defaulted.
    #[error("nil pod.spec.enableServiceLinks encountered, cannot construct envvars")]
    NoServiceLinks,
    /// The services were not listed yet.
    #[error("services have not yet been read at least once, cannot construct envvars")]
    ServicesUnread,
    /// A config map or secret could not be read; the text is the API's.
    #[error("{0}")]
    Object(String),
    /// An object lacks a key.
    #[error("couldn't find key {key} in {kind} {namespace}/{name}")]
    MissingKey {
        /// `ConfigMap` or `Secret`.
        kind: &'static str,
        /// The key.
        key: String,
        /// The object's namespace.
        namespace: String,
        /// The object's name.
        name: String,
    },
    /// `fileKeyRef` names a volume that the pod lacks.
    #[error("cannot find the volume {0:?} referenced by FileKeyRef")]
    EnvFileVolume(String),
    /// An environment file is missing or malformed.
    #[error("couldn't parse env file")]
    EnvFile(#[source] EnvFileError),
    /// An environment file lacks the variable.
    #[error("environment variable key {key:?} not found in file {file:?}")]
    EnvFileKey {
        /// The variable.
        key: String,
        /// Path of the file on the host.
        file: String,
    },
    /// A `fieldRef` has another API version than `v1`.
    #[error("unsupported pod version: {0}")]
    FieldVersion(String),
    /// A `fieldRef` path that the downward API does not know.
    #[error("field label not supported: {0}")]
    FieldLabel(String),
    /// A `fieldRef` path with a key where none is allowed.
    #[error("field label does not support subscript: {0}")]
    FieldSubscript(String),
    /// A `fieldRef` path that the downward API knows but a container cannot have.
    #[error("unsupported fieldPath: {0}")]
    FieldPath(String),
    /// The key in a `fieldRef` path is not a label or annotation key.
    #[error("invalid key subscript in {path}: {faults}")]
    FieldKey {
        /// The path.
        path: String,
        /// What is wrong with the key.
        faults: String,
    },
    /// A `resourceFieldRef` to something else than CPU, memory, storage or huge pages.
    #[error("unsupported container resource : {0}")]
    ContainerResource(String),
    /// A `resourceFieldRef` to a container that the pod lacks.
    #[error("container {0} not found")]
    ContainerName(String),
    /// The host's addresses are not known yet.
    #[error("failed to get the node's IP addresses")]
    NoHostIp,
    /// A volume mount names a volume that is not mounted.
    #[error("cannot find volume {volume:?} to mount into container {container:?}")]
    VolumeToMount {
        /// The volume.
        volume: String,
        /// The container.
        container: String,
    },
    /// A volume device names a volume that is not mapped.
    #[error("cannot find volume {volume:?} to pass into container {container:?}")]
    VolumeToPass {
        /// The volume.
        volume: String,
        /// The container.
        container: String,
    },
    /// A device path is relative.
    #[error("error DevicePath `{0}` must be an absolute path")]
    DevicePath(String),
    /// `subPathExpr` uses variables that are unset or empty.
    #[error("missing value for {0}")]
    SubPathVariables(String),
    /// A `subPath` is absolute.
    #[error("error SubPath `{0}` must not be an absolute path")]
    SubPathAbsolute(String),
    /// A `subPath` contains `..`.
    #[error("unable to provision SubPath `{0}`: must not contain '..'")]
    SubPathBacksteps(String),
    /// A `subPath` was not made ready.
    #[error("failed to prepare subPath for volumeMount {volume:?} of container {container:?}")]
    SubPathUnbound {
        /// The volume.
        volume: String,
        /// The container.
        container: String,
    },
    /// A variable expanded to bytes in a command that are not UTF-8.
    #[error("grpc: error while marshaling: string field contains invalid UTF-8")]
    NotText,
    /// `mountPropagation` has a value we do not know.
    #[error("invalid MountPropagation mode: {0:?}")]
    MountPropagation(String),
    /// `recursiveReadOnly` is not possible.
    #[error("failed to resolve recursive read-only mode: {0}")]
    RecursiveReadOnly(String),
    /// The container must not run as root, but `runAsUser` says so.
    #[error("container's runAsUser breaks non-root policy (pod: {pod:?}, container: {container})")]
    RunAsUserIsRoot {
        /// `name_namespace(uid)`.
        pod: String,
        /// The container.
        container: String,
    },
    /// The container must not run as root, but the image's user is a name.
    #[error(
        "container has runAsNonRoot and image has non-numeric user ({user}), cannot verify user is \
         non-root (pod: {pod:?}, container: {container})"
    )]
    ImageUserByName {
        /// The image's user.
        user: String,
        /// `name_namespace(uid)`.
        pod: String,
        /// The container.
        container: String,
    },
    /// The container must not run as root, but the image does.
    #[error(
        "container has runAsNonRoot and image will run as root (pod: {pod:?}, container: \
         {container})"
    )]
    ImageUserIsRoot {
        /// `name_namespace(uid)`.
        pod: String,
        /// The container.
        container: String,
    },
    /// The image's user id is out of range.
    #[error(
        "container has runAsNonRoot and image has an invalid user id ({uid}). (Must be \
         1-(2147483647)): must be between 0 and 2147483647, inclusive (pod: {pod:?}, container: \
         {container})"
    )]
    ImageUserOutOfRange {
        /// The image's user id.
        uid: i64,
        /// `name_namespace(uid)`.
        pod: String,
        /// The container.
        container: String,
    },
    /// A Localhost seccomp profile has no name.
    #[error("localhostProfile must be set if seccompProfile type is Localhost.")]
    SeccompProfile,
    /// A Localhost AppArmor profile has no name.
    #[error("missing localhost apparmor profile name")]
    AppArmorProfile,
    /// An AppArmor profile has a type we do not know.
    #[error("unknown apparmor profile type: {0:?}")]
    AppArmorType(String),
}

impl RequestError {
    /// The reason that a container which cannot be created shows.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            // The Go kubelet notices when it sends the request.
            RequestError::NotText => "CreateContainerError",
            _ => "CreateContainerConfigError",
        }
    }
}
