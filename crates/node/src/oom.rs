//! Out-of-memory kills, read from the kernel log (kubelet: `oom.realWatcher`).
//!
//! Promises: a system-wide OOM kill is an event of the node; one inside a limited cgroup is logged
//! with process, limit and peak, since upstream has no event for it, and where enabled also an
//! event of its pod.

use api::core::v1::{ContainerStatus, PodStatus};
use engine::oom::{OomKill, OomReader};
use ports::{EventSeverity, EventTarget, Events, NodeEvent, Pods, PodsSnapshot};
use std::sync::Arc;
use sys::cgroup::Cgroups;
use sys::kmsg::KernelLog;
use tokio_util::sync::CancellationToken;

/// Watches the kernel log.
#[derive(Debug)]
pub struct OomWatch {
    log: KernelLog,
    events: Arc<dyn Events>,
    cgroups: Arc<Cgroups>,
    /// For the events of kills within a pod's limits.
    pods: Option<Arc<dyn Pods>>,
}

impl OomWatch {
    /// Ready to run.
    pub fn new(log: KernelLog, events: Arc<dyn Events>, cgroups: Arc<Cgroups>) -> Self {
        Self { log, events, cgroups, pods: None }
    }

    /// The same, with an event of the pod for a kill within a limit.
    #[must_use]
    pub fn telling(self, pods: Arc<dyn Pods>) -> Self {
        Self { pods: Some(pods), ..self }
    }

    /// Runs until cancelled or until the log cannot be read.
    pub async fn run(mut self, cancel: CancellationToken) {
        let mut reader = OomReader::default();
        loop {
            let line = tokio::select! {
                // Cancel-safe: a token.
                () = cancel.cancelled() => return,
                // Cancel-safe: a record is read whole or not at all.
                line = self.log.next() => line,
            };
            match line {
                Ok(line) => {
                    if let Some(kill) = reader.line(&line) {
                        self.tell(&kill);
                    }
                }
                Err(error) => {
                    tracing::error!(err = %error, "Unexpectedly stopped receiving OOM notifications");
                    return;
                }
            }
        }
    }

    fn tell(&self, kill: &OomKill) {
        let Some(message) = kill.system_message() else {
            let (limit, peak) = if self.cgroups.is_v2() {
                ("memory.max", "memory.peak")
            } else {
                ("memory.limit_in_bytes", "memory.max_usage_in_bytes")
            };
            let read = |file| self.cgroups.read("memory", &kill.limited, file).unwrap_or_default();
            let (limit, peak) = (read(limit), read(peak));
            tracing::info!(
                cgroup = kill.cgroup,
                limitedCgroup = kill.limited,
                process = kill.process,
                pid = kill.pid,
                limit,
                peak,
                "A process was killed because its cgroup ran out of memory"
            );
            if let Some(pods) = &self.pods {
                let snapshot = pods.watch().borrow().clone();
                let numbers = (limit.trim().parse().ok(), peak.trim().parse().ok());
                if let Some(event) = pod_event(kill, &snapshot, numbers) {
                    self.events.emit(event);
                }
            }
            return;
        };
        self.events.emit(NodeEvent {
            target: EventTarget::Node,
            severity: EventSeverity::Warning,
            reason: "SystemOOM",
            message,
        });
    }
}

/// The event of the pod in which a process was killed, with limit and peak if known.
fn pod_event(
    kill: &OomKill,
    pods: &PodsSnapshot,
    (limit, peak): (Option<u64>, Option<u64>),
) -> Option<NodeEvent> {
    let victim = kill.victim()?;
    let entry = pods.pods.get(victim.pod.as_str())?;
    let field_path = victim.container.zip(entry.status.as_ref()).and_then(|(id, s)| part(s, &id));
    Some(NodeEvent {
        target: EventTarget::Pod { pod: Arc::clone(&entry.pod), field_path },
        severity: EventSeverity::Warning,
        reason: "OOMKilled",
        message: kill.pod_message(victim.limited, limit, peak),
    })
}

/// The field path of a container in the pod, by its id.
fn part(status: &PodStatus, id: &str) -> Option<String> {
    type List<'a> = Option<&'a Vec<ContainerStatus>>;
    let kinds: [(&str, List<'_>); 3] = [
        ("containers", status.container_statuses.as_ref()),
        ("initContainers", status.init_container_statuses.as_ref()),
        ("ephemeralContainers", status.ephemeral_container_statuses.as_ref()),
    ];
    kinds.into_iter().find_map(|(kind, list)| {
        let is_it = |status: &&ContainerStatus| {
            status
                .container_id
                .as_deref()
                .and_then(|known| known.split_once("://"))
                .is_some_and(|(_, known)| known == id)
        };
        list?.iter().find(is_it).map(|status| format!("spec.{kind}{{{}}}", status.name))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::ids::PodUid;
    use ports::{PodEntry, PodLife, PodSource};

    #[test]
    fn the_event_names_the_container_the_process_and_the_numbers() {
        let uid = "8f2c1d34-0000-4b5c-9d6e-7f8091a2b3c4";
        let pod = serde_json::json!({"metadata": {"name": "p", "uid": uid}});
        let status = serde_json::json!({"initContainerStatuses": [
            {"name": "warm", "containerID": "containerd://abc1", "image": "i", "imageID": "", "ready": true,
             "restartCount": 0}]});
        let entry = PodEntry {
            pod: Arc::new(serde_json::from_value(pod).unwrap()),
            given: None,
            source: PodSource::Api,
            mirror: None,
            life: PodLife::Syncing,
            status: Some(Arc::new(serde_json::from_value(status).unwrap())),
            evicted: false,
        };
        let pods = Arc::new([(PodUid::from(uid), entry)].into());
        let pods = PodsSnapshot { pods, sources_ready: true };
        let kill = |cgroup: String| OomKill {
            limited: cgroup.clone(),
            cgroup,
            process: "stress".to_owned(),
            pid: 42,
        };
        let event =
            pod_event(&kill(format!("/kubepods/pod{uid}/abc1")), &pods, (Some(1 << 20), None));
        let event = event.unwrap();
        let EventTarget::Pod { field_path, .. } = event.target else { panic!("of a pod") };
        assert_eq!(field_path.as_deref(), Some("spec.initContainers{warm}"));
        assert_eq!(
            event.message,
            "Process stress (pid 42) was killed for want of memory within the container's limit: limit 1Mi"
        );
        let gone = "/kubepods/pod00000000-0000-4b5c-9d6e-7f8091a2b3c4/abc1".to_owned();
        assert!(pod_event(&kill(gone), &pods, (None, None)).is_none());
        assert!(pod_event(&kill("/user.slice".to_owned()), &pods, (None, None)).is_none());
    }
}
