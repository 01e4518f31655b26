//! One entry per container (upstream: `convertToAPIContainerStatuses`).
//!
//! Built in steps, later ones overriding earlier ones: default, the old entry, instances that the runtime lost,
//! instances that the runtime has, start errors.

use super::{CONTAINER_STATUS_UNKNOWN, RESTARTING_ALL, StatusView, resources};
use crate::pod::should_be_restarted;
use crate::runtime::{ContainerRunState, ContainerView};
use api::core::v1::{
    Container, ContainerState, ContainerStateRunning, ContainerStateTerminated,
    ContainerStateWaiting, ContainerStatus, ContainerUser, LinuxContainerUser, PodSpec,
    VolumeMount, VolumeMountStatus,
};
use api::machinery::apis::meta::v1::Time;
use api::pod::ContainerExt;
use jiff::Timestamp;

const LOST: &str = "The container could not be located when the pod was deleted.  The container used to be Running";
const REMOVED: &str = "The container is removed because RestartAllContainers in place";
const INIT_DONE: &str = "Unable to get init container status from container runtime and pod has been initialized, treat it as exited normally";
/// Message of a container whose exit was not observed.
pub(super) const NOT_LOCATED: &str =
    "The container could not be located when the pod was terminated";

/// The three lists.
pub(super) struct Lists {
    pub(super) regular: Vec<ContainerStatus>,
    pub(super) init: Vec<ContainerStatus>,
    pub(super) ephemeral: Vec<ContainerStatus>,
}

/// All entries; regular and ephemeral ones sorted by name, init ones in spec order.
pub(super) fn all(view: &StatusView<'_>, spec: &PodSpec, restarting: bool) -> Lists {
    let old = view.old;
    let init = spec.init_containers.as_deref().unwrap_or_default();
    let builder = Builder {
        view,
        has_init: !init.is_empty(),
        regular_created: regular_created(view, spec),
        restarting,
    };
    let ephemeral: Vec<Container> = spec
        .ephemeral_containers
        .iter()
        .flatten()
        .map(|c| Container {
            name: c.name.clone(),
            image: c.image.clone(),
            resources: c.resources.clone(),
            volume_mounts: c.volume_mounts.clone(),
            ..Container::default()
        })
        .collect();
    Lists {
        regular: by_name(builder.list(&spec.containers, old.container_statuses.as_deref(), false)),
        init: builder.list(init, old.init_container_statuses.as_deref(), true),
        ephemeral: by_name(builder.list(
            &ephemeral,
            old.ephemeral_container_statuses.as_deref(),
            false,
        )),
    }
}

fn by_name(mut list: Vec<ContainerStatus>) -> Vec<ContainerStatus> {
    list.sort_by(|a, b| a.name.cmp(&b.name));
    list
}

fn regular_created(view: &StatusView<'_>, spec: &PodSpec) -> bool {
    spec.containers.iter().any(|c| {
        view.runtime.newest(&c.name).is_some_and(|v| v.state != ContainerRunState::Unknown)
    })
}

struct Builder<'a> {
    view: &'a StatusView<'a>,
    has_init: bool,
    regular_created: bool,
    restarting: bool,
}

impl Builder<'_> {
    fn list(
        &self,
        containers: &[Container],
        old: Option<&[ContainerStatus]>,
        init: bool,
    ) -> Vec<ContainerStatus> {
        containers
            .iter()
            .map(|container| {
                let old = old.and_then(|list| list.iter().find(|o| o.name == container.name));
                self.entry(container, old, init)
            })
            .collect()
    }

    fn entry(
        &self,
        container: &Container,
        old: Option<&ContainerStatus>,
        init: bool,
    ) -> ContainerStatus {
        let mut instances = self.view.runtime.instances(&container.name);
        let newest = instances.next();
        let mut entry = match newest {
            Some(newest) => self.with_instance(container, newest, old),
            None => self.without_instance(container, old),
        };
        if let Some(previous) = instances.next() {
            entry.last_state = Some(self.state(previous, old));
        }
        if init {
            if newest.is_some_and(|c| c.state == ContainerRunState::Exited && c.exit_code == 0) {
                return entry;
            }
            let waiting = entry.state.as_ref().is_some_and(|s| s.waiting.is_some());
            if newest.is_none() && self.regular_created && !container.is_sidecar() && waiting {
                entry.state = Some(terminated(0, "Completed", INIT_DONE));
                return entry;
            }
        }
        self.overlay_start_error(container, newest, &mut entry);
        entry
    }

    /// The runtime has no instance: default, old values, and what must have happened meanwhile.
    fn without_instance(
        &self,
        container: &Container,
        old: Option<&ContainerStatus>,
    ) -> ContainerStatus {
        let reason = if self.has_init { "PodInitializing" } else { "ContainerCreating" };
        let mut entry = ContainerStatus {
            name: container.name.clone(),
            image: container.image.clone().unwrap_or_default(),
            state: Some(waiting(Some(reason), None)),
            last_state: Some(ContainerState::default()),
            volume_mounts: self.volume_mounts(container.volume_mounts.as_deref()),
            ..ContainerStatus::default()
        };
        let Some(old) = old else { return entry };
        let old_state = old.state.clone().unwrap_or_default();
        if old_state.terminated.is_some() {
            entry = old.clone();
        } else {
            entry.restart_count = old.restart_count;
            entry.last_state = Some(old.last_state.clone().unwrap_or_default());
        }
        if self.view.gates.pod.restart_all_containers
            && self.restarting
            && old_state.waiting.is_none()
        {
            entry.state = Some(waiting(Some(RESTARTING_ALL), Some(REMOVED)));
            entry.last_state = Some(terminated(137, RESTARTING_ALL, REMOVED));
            entry.restart_count = old.restart_count.saturating_add(1);
            return entry;
        }
        let ended_before = entry.last_state.as_ref().is_some_and(|s| s.terminated.is_some());
        if old_state.running.is_some() && !ended_before {
            entry.last_state = Some(terminated(137, CONTAINER_STATUS_UNKNOWN, LOST));
            if self.view.pod.metadata.deletion_timestamp.is_none() {
                entry.restart_count = entry.restart_count.saturating_add(1);
            }
        }
        entry
    }

    fn with_instance(
        &self,
        container: &Container,
        newest: &ContainerView,
        old: Option<&ContainerStatus>,
    ) -> ContainerStatus {
        let gates = self.view.gates;
        let state = self.state(newest, old);
        // One that has not started yet may never start; the next one gets its number then.
        let not_yet = i32::from(newest.state.never_ran());
        let mut entry = ContainerStatus {
            name: newest.name.clone(),
            container_id: Some(self.full_id(newest)),
            image: newest.image.clone(),
            image_id: newest.image_ref.clone(),
            restart_count: newest.restart_count.saturating_sub(not_yet).max(0),
            state: Some(state),
            last_state: Some(ContainerState::default()),
            ..ContainerStatus::default()
        };
        if let Some(old) = old {
            entry.volume_mounts.clone_from(&old.volume_mounts);
            self.carry(old, newest, &mut entry);
        }
        if gates.pod.resize {
            entry.resources =
                Some(resources::of_container(self.view, container, newest, &entry, old));
            entry.allocated_resources = container
                .resources
                .as_ref()
                .and_then(|r| r.requests.clone())
                .filter(|r| !r.is_empty());
        }
        if gates.user {
            entry.user = newest.user.as_ref().map(|user| ContainerUser {
                linux: Some(LinuxContainerUser {
                    uid: user.uid,
                    gid: user.gid,
                    supplemental_groups: Some(user.supplemental_groups.clone())
                        .filter(|g| !g.is_empty()),
                }),
            });
        }
        if gates.stop_signals {
            entry.stop_signal.clone_from(&newest.stop_signal);
        }
        entry
    }

    /// Copies the fields that are kept from the old entry, besides volume mounts.
    fn carry(&self, old: &ContainerStatus, newest: &ContainerView, entry: &mut ContainerStatus) {
        let gates = self.view.gates;
        let old_state = old.state.clone().unwrap_or_default();
        let running = newest.state == ContainerRunState::Running;
        if gates.pod.restart_all_containers {
            entry.restart_count = entry.restart_count.max(old.restart_count);
            let before = old.last_state.clone().unwrap_or_default();
            if old_state.terminated.is_some() && old.container_id != entry.container_id {
                entry.last_state = Some(ContainerState {
                    terminated: old_state.terminated.clone(),
                    ..ContainerState::default()
                });
            } else if before.terminated.is_some() {
                entry.last_state = Some(ContainerState {
                    terminated: before.terminated,
                    ..ContainerState::default()
                });
            }
            if running
                && old_state.terminated.is_some()
                && old.restart_count >= newest.restart_count
            {
                entry.restart_count = old.restart_count.saturating_add(1);
            }
        }
        if newest.state == ContainerRunState::Unknown && old_state.running.is_some() {
            entry.restart_count = old.restart_count.saturating_add(1);
        }
        if running && !gates.change_on_restart && old.container_id == entry.container_id {
            entry.started = old.started;
        }
    }

    fn state(&self, instance: &ContainerView, old: Option<&ContainerStatus>) -> ContainerState {
        let was_running = old.and_then(|o| o.state.as_ref()).is_some_and(|s| s.running.is_some());
        match instance.state {
            ContainerRunState::Running => ContainerState {
                running: Some(ContainerStateRunning { started_at: time(instance.started_at) }),
                ..ContainerState::default()
            },
            ContainerRunState::Exited => ContainerState {
                terminated: Some(ContainerStateTerminated {
                    exit_code: instance.exit_code,
                    reason: some_text(&instance.reason),
                    message: some_text(&instance.message),
                    started_at: time(instance.started_at),
                    finished_at: time(instance.finished_at),
                    container_id: Some(self.full_id(instance)),
                    signal: None,
                }),
                ..ContainerState::default()
            },
            ContainerRunState::Unknown if was_running => {
                let all = self.view.gates.pod.restart_all_containers && self.restarting;
                let reason = if all { RESTARTING_ALL } else { CONTAINER_STATUS_UNKNOWN };
                terminated(137, reason, NOT_LOCATED)
            }
            ContainerRunState::Created | ContainerRunState::CutOff | ContainerRunState::Unknown => {
                waiting(None, None)
            }
        }
    }

    /// Shows the error of a container that could not be started as its waiting reason.
    fn overlay_start_error(
        &self,
        container: &Container,
        newest: Option<&ContainerView>,
        entry: &mut ContainerStatus,
    ) {
        if !should_be_restarted(container, self.view.pod, newest, &self.view.gates.pod) {
            return;
        }
        let Some(error) = self.view.start_errors.get(&container.name) else { return };
        if entry.state.as_ref().is_some_and(|s| s.terminated.is_some()) {
            entry.last_state = entry.state.take();
        }
        entry.state = Some(waiting(
            Some(&error.reason),
            Some(&error.message).filter(|m| !m.is_empty()).map(String::as_str),
        ));
    }

    fn volume_mounts(&self, mounts: Option<&[VolumeMount]>) -> Option<Vec<VolumeMountStatus>> {
        if !self.view.gates.volume_mounts {
            return None;
        }
        let list: Vec<VolumeMountStatus> = mounts
            .unwrap_or_default()
            .iter()
            .map(|mount| {
                let read_only = mount.read_only.unwrap_or_default();
                let wanted =
                    matches!(mount.recursive_read_only.as_deref(), Some("Enabled" | "IfPossible"));
                let recursive = if wanted && self.view.node.recursive_read_only {
                    "Enabled"
                } else {
                    "Disabled"
                };
                VolumeMountStatus {
                    name: mount.name.clone(),
                    mount_path: mount.mount_path.clone(),
                    read_only: read_only.then_some(true),
                    recursive_read_only: read_only.then(|| recursive.to_owned()),
                    volume_status: None,
                }
            })
            .collect();
        Some(list).filter(|l| !l.is_empty())
    }

    fn full_id(&self, instance: &ContainerView) -> String {
        format!("{}://{}", self.view.node.runtime_name, instance.id)
    }
}

fn waiting(reason: Option<&str>, message: Option<&str>) -> ContainerState {
    ContainerState {
        waiting: Some(ContainerStateWaiting {
            reason: reason.map(str::to_owned),
            message: message.map(str::to_owned),
        }),
        ..ContainerState::default()
    }
}

/// A terminated state without ids or times.
pub(super) fn terminated(exit_code: i32, reason: &str, message: &str) -> ContainerState {
    ContainerState {
        terminated: Some(ContainerStateTerminated {
            exit_code,
            reason: Some(reason.to_owned()),
            message: Some(message.to_owned()),
            ..ContainerStateTerminated::default()
        }),
        ..ContainerState::default()
    }
}

/// A time of the runtime; one it does not know reads as the epoch, as upstream shows it.
fn time(at: Option<Timestamp>) -> Option<Time> {
    Some(Time(at.unwrap_or(Timestamp::UNIX_EPOCH)))
}

fn some_text(text: &str) -> Option<String> {
    Some(text.to_owned()).filter(|t| !t.is_empty())
}
