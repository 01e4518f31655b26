//! The phase (upstream: `getPhase`).

use super::{RESTARTING_ALL, StatusView, is_empty_state};
use crate::pod::restartable;
use api::core::v1::{Container, ContainerStateTerminated, ContainerStatus, PodSpec, PodStatus};
use api::pod::{ContainerExt, PodExt};

#[derive(Default)]
struct Count {
    pending_init: usize,
    failed_init: usize,
    pending_sidecar: usize,
    unknown: usize,
    running: usize,
    waiting: usize,
    stopped: usize,
    stopped_for_good: usize,
    succeeded: usize,
}

/// The state of one container, as far as the phase depends on it.
enum Seen<'a> {
    Nothing,
    Running { started: bool },
    Ended(&'a ContainerStateTerminated),
    WaitingAfter(&'a ContainerStateTerminated),
    Waiting,
}

/// The phase that follows from containers and restart policies.
pub(super) fn of(view: &StatusView<'_>, spec: &PodSpec, status: &PodStatus) -> &'static str {
    let entries = [&status.container_statuses, &status.init_container_statuses];
    let find = |name: &str| -> Option<&ContainerStatus> {
        entries.into_iter().flatten().flatten().find(|e| e.name == name)
    };
    let again = |container: &Container, ended: &ContainerStateTerminated| {
        let by_rule = restartable(container, spec, ended.exit_code, &view.gates.pod);
        let all = view.gates.pod.restart_all_containers
            && ended.reason.as_deref() == Some(RESTARTING_ALL);
        by_rule || all
    };
    let mut count = Count::default();
    for container in spec.init_containers.iter().flatten() {
        let entry = find(&container.name);
        if container.is_sidecar() {
            count_sidecar(&mut count, entry);
            continue;
        }
        match look(entry) {
            Some(Seen::Ended(ended) | Seen::WaitingAfter(ended)) => {
                if ended.exit_code != 0 && !again(container, ended) {
                    count.failed_init += 1;
                }
            }
            _ => count.pending_init += 1,
        }
    }
    for container in &spec.containers {
        match look(find(&container.name)) {
            None | Some(Seen::Nothing) => count.unknown += 1,
            Some(Seen::Running { .. }) => count.running += 1,
            Some(Seen::Ended(ended)) => {
                count.stopped += 1;
                count.succeeded += usize::from(ended.exit_code == 0);
                count.stopped_for_good += usize::from(!again(container, ended));
            }
            Some(Seen::WaitingAfter(ended)) => {
                count.stopped += 1;
                count.stopped_for_good += usize::from(!again(container, ended));
            }
            Some(Seen::Waiting) => count.waiting += 1,
        }
    }
    let initialised = view
        .runtime
        .active_containers()
        .any(|c| spec.containers.iter().any(|own| own.name == c.name));
    let ends = view.terminal && !view.pod.is_static();
    decide(&count, initialised, ends)
}

fn count_sidecar(count: &mut Count, entry: Option<&ContainerStatus>) {
    match look(entry) {
        None => count.unknown += 1,
        Some(Seen::Running { started }) => {
            count.running += 1;
            count.pending_sidecar += usize::from(!started);
        }
        Some(Seen::Ended(_) | Seen::WaitingAfter(_)) => {}
        Some(Seen::Waiting) => {
            count.pending_sidecar += 1;
            count.waiting += 1;
        }
        Some(Seen::Nothing) => {
            count.pending_sidecar += 1;
            count.unknown += 1;
        }
    }
}

fn look(entry: Option<&ContainerStatus>) -> Option<Seen<'_>> {
    let entry = entry?;
    let Some(state) = entry.state.as_ref().filter(|s| !is_empty_state(Some(s))) else {
        return Some(Seen::Nothing);
    };
    if state.running.is_some() {
        return Some(Seen::Running { started: entry.started == Some(true) });
    }
    if let Some(ended) = &state.terminated {
        return Some(Seen::Ended(ended));
    }
    let before = entry.last_state.as_ref().and_then(|s| s.terminated.as_ref());
    Some(before.map_or(Seen::Waiting, Seen::WaitingAfter))
}

fn decide(count: &Count, initialised: bool, ends: bool) -> &'static str {
    let pending =
        count.pending_init > 0 || (count.pending_sidecar > 0 && !initialised) || count.waiting > 0;
    let all_ended = count.running == 0 && count.stopped > 0 && count.unknown == 0;
    let running = count.running > 0 && count.unknown == 0;
    let comes_back = all_ended && !ends && count.stopped != count.stopped_for_good;
    if count.failed_init > 0 {
        "Failed"
    } else if pending {
        "Pending"
    } else if running || comes_back {
        "Running"
    } else if all_ended && count.stopped == count.succeeded {
        "Succeeded"
    } else if all_ended {
        "Failed"
    } else {
        "Pending"
    }
}
