//! What plugins answer: messages of their protocols, and what is made of device lists.

use prost::Message;
use proto::{csi_v1, device_plugin_v1beta1, dra_health_v1alpha1, dra_v1, plugin_registration_v1};

use crate::Target;

pub(crate) const TARGETS: &[Target] = &[
    ("csi-answers", csi),
    ("device-plugin-answers", devices),
    ("dra-answers", dra),
    ("cri-answers", cri_answers),
];

/// Read as this message, and written again.
fn as_message<M: Message + Default + PartialEq + std::fmt::Debug>(input: &[u8]) -> Option<M> {
    let message = M::decode(input).ok()?;
    assert_eq!(M::decode(message.encode_to_vec().as_slice()).ok().as_ref(), Some(&message));
    Some(message)
}

fn csi(input: &[u8]) {
    as_message::<csi_v1::NodeGetInfoResponse>(input);
    as_message::<csi_v1::NodeGetCapabilitiesResponse>(input);
    as_message::<csi_v1::NodeGetVolumeStatsResponse>(input);
    as_message::<csi_v1::GetPluginInfoResponse>(input);
    as_message::<plugin_registration_v1::PluginInfo>(input);
}

fn devices(input: &[u8]) {
    as_message::<device_plugin_v1beta1::ListAndWatchResponse>(input);
    as_message::<device_plugin_v1beta1::AllocateResponse>(input);
    as_message::<device_plugin_v1beta1::RegisterRequest>(input);
}

fn dra(input: &[u8]) {
    as_message::<dra_v1::NodePrepareResourcesResponse>(input);
    as_message::<dra_v1::NodeUnprepareResourcesResponse>(input);
    as_message::<dra_health_v1alpha1::NodeWatchResourcesResponse>(input);
}

fn cri_answers(input: &[u8]) {
    as_message::<cri::api::ContainerStatusResponse>(input);
    as_message::<cri::api::PodSandboxStatusResponse>(input);
    as_message::<cri::api::ContainerEventResponse>(input);
    as_message::<cri::api::StatusResponse>(input);
}
