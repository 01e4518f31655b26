//! CRI messages in the form that decisions read.

use api::ids::{ContainerId, PodUid, SandboxId};
use engine::runtime::{
    ContainerRunState, ContainerView, NamespaceMode, RestoredSpec, RuntimeMount, RuntimeResources,
    RuntimeUser, SandboxNetwork, SandboxState, SandboxView,
};
use jiff::Timestamp;
use proto::cri_v1 as cri;
use std::collections::BTreeMap;

pub(crate) const LABEL_POD_NAME: &str = "io.kubernetes.pod.name";
pub(crate) const LABEL_POD_NAMESPACE: &str = "io.kubernetes.pod.namespace";
pub(crate) const LABEL_POD_UID: &str = "io.kubernetes.pod.uid";
pub(crate) const LABEL_CONTAINER_NAME: &str = "io.kubernetes.container.name";

/// Nanoseconds since the epoch, as CRI gives times.
pub(crate) fn time(nanoseconds: i64) -> Timestamp {
    Timestamp::from_nanosecond(i128::from(nanoseconds)).unwrap_or(Timestamp::UNIX_EPOCH)
}

fn some_time(nanoseconds: i64) -> Option<Timestamp> {
    (nanoseconds != 0).then(|| time(nanoseconds))
}

/// Which pod a listed sandbox belongs to.
pub(crate) fn sandbox_owner(sandbox: &cri::PodSandbox) -> Option<(PodUid, String, String)> {
    let meta = sandbox.metadata.as_ref()?;
    if sandbox.id.is_empty() || meta.uid.is_empty() {
        return None;
    }
    Some((PodUid::from(meta.uid.as_str()), meta.name.clone(), meta.namespace.clone()))
}

/// Which pod a listed container belongs to.
pub(crate) fn container_owner(container: &cri::Container) -> Option<(PodUid, String, String)> {
    if container.id.is_empty() || container.metadata.is_none() || container.image.is_none() {
        return None;
    }
    let label = |key: &str| container.labels.get(key).cloned().unwrap_or_default();
    let uid = container.labels.get(LABEL_POD_UID).filter(|uid| !uid.is_empty())?;
    Some((PodUid::from(uid.as_str()), label(LABEL_POD_NAME), label(LABEL_POD_NAMESPACE)))
}

/// A sandbox from its status.
pub(crate) fn sandbox(status: &cri::PodSandboxStatus) -> SandboxView {
    let options = status.linux.as_ref().and_then(|l| l.namespaces.as_ref()?.options.as_ref());
    let network_mode = options.map_or(NamespaceMode::Pod, |o| namespace_mode(o.network));
    let pid_mode = options.map_or(NamespaceMode::Container, |o| namespace_mode(o.pid));
    SandboxView {
        id: SandboxId::from(status.id.as_str()),
        attempt: status.metadata.as_ref().map_or(0, |m| m.attempt),
        state: if status.state == cri::PodSandboxState::SandboxReady as i32 {
            SandboxState::Ready
        } else {
            SandboxState::NotReady
        },
        created_at: time(status.created_at),
        network_mode,
        pid_mode,
        network: status.network.as_ref().map(|n| SandboxNetwork {
            ip: n.ip.clone(),
            additional_ips: n.additional_ips.iter().map(|ip| ip.ip.clone()).collect(),
        }),
        runtime_handler: status.runtime_handler.clone(),
    }
}

fn namespace_mode(mode: i32) -> NamespaceMode {
    match cri::NamespaceMode::try_from(mode) {
        Ok(cri::NamespaceMode::Container) => NamespaceMode::Container,
        Ok(cri::NamespaceMode::Node) => NamespaceMode::Node,
        Ok(cri::NamespaceMode::Target) => NamespaceMode::Target,
        _ => NamespaceMode::Pod,
    }
}

/// A container state from its number.
pub(crate) fn run_state(state: i32) -> ContainerRunState {
    match cri::ContainerState::try_from(state) {
        Ok(cri::ContainerState::ContainerCreated) => ContainerRunState::Created,
        Ok(cri::ContainerState::ContainerRunning) => ContainerRunState::Running,
        Ok(cri::ContainerState::ContainerExited) => ContainerRunState::Exited,
        _ => ContainerRunState::Unknown,
    }
}

/// A container from its status; the termination message is added by the caller.
pub(crate) fn container(status: &cri::ContainerStatus, sandbox: &str) -> ContainerView {
    let annotation =
        |key: &str| status.annotations.get(key).map(String::as_str).unwrap_or_default();
    let image = status.image.as_ref();
    let restart_count = annotation("io.kubernetes.container.restartCount").parse().unwrap_or(0);
    ContainerView {
        id: ContainerId::from(status.id.as_str()),
        sandbox: SandboxId::from(sandbox),
        name: status.labels.get(LABEL_CONTAINER_NAME).cloned().unwrap_or_default(),
        attempt: status.metadata.as_ref().map_or(0, |m| m.attempt),
        state: run_state(status.state),
        created_at: time(status.created_at),
        started_at: some_time(status.started_at),
        finished_at: some_time(status.finished_at),
        exit_code: status.exit_code,
        reason: status.reason.clone(),
        message: status.message.clone(),
        image: image.map(|i| i.image.clone()).unwrap_or_default(),
        user_image: image
            .map(|i| i.user_specified_image.clone())
            .filter(|specified| !specified.is_empty()),
        image_id: status.image_id.clone(),
        image_ref: status.image_ref.clone(),
        hash: u64::from_str_radix(annotation("io.kubernetes.container.hash"), 16).unwrap_or(0),
        restart_count,
        log_path: status.log_path.clone(),
        resources: status.resources.as_ref().and_then(|r| r.linux.as_ref()).map(resources),
        user: status.user.as_ref().and_then(|u| u.linux.as_ref()).map(|u| RuntimeUser {
            uid: u.uid,
            gid: u.gid,
            supplemental_groups: u.supplemental_groups.clone(),
        }),
        mounts: status
            .mounts
            .iter()
            .map(|m| RuntimeMount {
                container_path: m.container_path.clone(),
                host_path: m.host_path.clone(),
                read_only: m.readonly,
            })
            .collect(),
        stop_signal: stop_signal(status.stop_signal),
        termination_message_path: annotation("io.kubernetes.container.terminationMessagePath")
            .to_owned(),
        termination_message_policy: annotation("io.kubernetes.container.terminationMessagePolicy")
            .to_owned(),
        restored: restored(&status.annotations),
    }
}

fn resources(linux: &cri::LinuxContainerResources) -> RuntimeResources {
    let set = |value: i64| (value != 0).then_some(value);
    RuntimeResources {
        cpu_period: set(linux.cpu_period),
        cpu_quota: set(linux.cpu_quota),
        cpu_shares: set(linux.cpu_shares),
        memory_limit_bytes: set(linux.memory_limit_in_bytes),
    }
}

/// A signal as the API names it (`kubelet: runtimeSignalToString`): CRI cannot write `SIGRTMIN+3`.
fn stop_signal(signal: i32) -> Option<String> {
    let signal = cri::Signal::try_from(signal).ok()?;
    let name = || signal.as_str_name().replace("PLUS", "+").replace("MINUS", "-");
    (signal != cri::Signal::RuntimeDefault).then(name)
}

fn restored(annotations: &BTreeMap<String, String>) -> RestoredSpec {
    let number = |key: &str| annotations.get(key).and_then(|v| v.parse().ok());
    let json = |key: &str| annotations.get(key).map(String::as_str).unwrap_or_default();
    RestoredSpec {
        deletion_grace_seconds: number("io.kubernetes.pod.deletionGracePeriod"),
        termination_grace_seconds: number("io.kubernetes.pod.terminationGracePeriod"),
        pre_stop: serde_json::from_str(json("io.kubernetes.container.preStopHandler")).ok(),
        ports: serde_json::from_str(json("io.kubernetes.container.ports")).unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stop_signals_have_the_names_of_the_api() {
        for (signal, name) in [
            (cri::Signal::Sigterm, Some("SIGTERM")),
            (cri::Signal::Sigrtmin, Some("SIGRTMIN")),
            (cri::Signal::Sigrtminplus3, Some("SIGRTMIN+3")),
            (cri::Signal::Sigrtminplus15, Some("SIGRTMIN+15")),
            (cri::Signal::Sigrtmaxminus14, Some("SIGRTMAX-14")),
            (cri::Signal::RuntimeDefault, None),
        ] {
            assert_eq!(stop_signal(signal.into()).as_deref(), name);
        }
    }
}
