//! Checked-in gRPC code for CRI, device plugins, pod resources, plugin registration, DRA and CSI.
//!
//! One module per interface and version, each with its messages, a client and a server. The `.proto`
//! files of this crate state the wire facts; `cargo run -p xtask -- codegen` turns them into `generated/`,
//! which is never edited. Maps are ordered, so that whatever is built from a message is the same each time.
//! Messages that carry credentials print without them (`redacted`).
#![forbid(unsafe_code)]

mod redacted;

macro_rules! generated {
    ($(#[doc = $doc:literal] $name:ident)*) => {$(
        #[doc = $doc]
        #[allow(
            missing_docs,
            unreachable_pub,
            unused_qualifications,
            rust_2018_idioms,
            clippy::all,
            clippy::clone_on_ref_ptr,
            clippy::allow_attributes_without_reason,
            reason = "generated code"
        )]
        pub mod $name {
            include!(concat!("generated/", stringify!($name), ".rs"));
        }
    )*};
}

generated! {
    /// Container runtime interface, v1 as of Kubernetes 1.36: `RuntimeService` and `ImageService`.
    cri_v1
    /// Device plugins: `Registration` (served by us) and `DevicePlugin` (served by the plugin).
    device_plugin_v1beta1
    /// Pod resources endpoint, v1.
    pod_resources_v1
    /// Pod resources endpoint, v1alpha1 (list only).
    pod_resources_v1alpha1
    /// Plugin registration through sockets under `plugins_registry`.
    plugin_registration_v1
    /// DRA drivers, v1.
    dra_v1
    /// DRA drivers, v1beta1.
    dra_v1beta1
    /// Health of DRA devices.
    dra_health_v1alpha1
    /// Local pods endpoint.
    pods_v1alpha1
    /// Traces as a collector takes them.
    otlp_trace_v1
    /// CSI drivers as a node uses them: identity and node services.
    csi_v1
    /// containerd's content store, as far as the progress of a pull is read from it.
    containerd_content_v1
}
