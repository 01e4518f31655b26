//! The runtime's event stream, told to the view's task as reasons to look.

use super::task::Report;
use crate::metrics::events::EventMetrics;
use crate::runtime::Runtime;
use ::cri::RuntimeEvent;
use api::ids::PodUid;
use ports::Clock;
use proto::cri_v1 as cri;
use std::sync::Arc;
use tokio::sync::mpsc;

/// Follows the runtime's event stream for ever; each event is only a reason to look. One that finds
/// the inbox full is dropped and counted: the runtime drops what is not read in time and does not
/// say so, and an audit sees whatever it was about.
pub(super) async fn follow(
    runtime: Runtime,
    reports: mpsc::Sender<Report>,
    metrics: EventMetrics,
    clock: Arc<dyn Clock>,
) {
    let mut stream = runtime.events();
    loop {
        let report = match stream.next().await {
            RuntimeEvent::Opened => {
                metrics.opened.inc(&[]);
                Report::Stream(true)
            }
            RuntimeEvent::Lost(_) | RuntimeEvent::Unsupported => {
                metrics.lost.inc(&[]);
                Report::Stream(false)
            }
            RuntimeEvent::Event(event) => {
                metrics.awaited_plugin(event.created_at, clock.now());
                match reports.try_send(report_of(*event)) {
                    Ok(()) => continue,
                    Err(mpsc::error::TrySendError::Closed(_)) => return,
                    Err(mpsc::error::TrySendError::Full(_)) => {
                        metrics.discarded.inc(&[]);
                        Report::Missed
                    }
                }
            }
        };
        if reports.send(report).await.is_err() {
            return;
        }
    }
}

fn report_of(event: cri::ContainerEventResponse) -> Report {
    use cri::ContainerEventType as Kind;
    let kind = event.container_event_type;
    let urgent =
        kind != Kind::ContainerCreatedEvent as i32 && kind != Kind::ContainerStartedEvent as i32;
    let uid = event.pod_sandbox_status.and_then(|status| status.metadata).map(|data| data.uid);
    match uid.filter(|uid| !uid.is_empty()) {
        Some(uid) => Report::Event { uid: PodUid::from(uid), urgent },
        None => Report::Missed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(kind: cri::ContainerEventType, uid: &str) -> cri::ContainerEventResponse {
        let metadata = cri::PodSandboxMetadata { uid: uid.into(), ..Default::default() };
        let status = cri::PodSandboxStatus { metadata: Some(metadata), ..Default::default() };
        cri::ContainerEventResponse {
            container_event_type: kind as i32,
            pod_sandbox_status: Some(status),
            ..Default::default()
        }
    }

    #[test]
    fn an_end_is_urgent_and_a_start_is_not() {
        use super::cri::ContainerEventType as Kind;
        let urgent = |kind| match report_of(event(kind, "u")) {
            Report::Event { urgent, .. } => urgent,
            other => panic!("{other:?}"),
        };
        assert!(urgent(Kind::ContainerStoppedEvent));
        assert!(urgent(Kind::ContainerDeletedEvent));
        assert!(!urgent(Kind::ContainerCreatedEvent));
        assert!(!urgent(Kind::ContainerStartedEvent));
    }

    #[test]
    fn an_event_of_nobody_asks_for_an_audit() {
        let nobody = report_of(event(cri::ContainerEventType::ContainerStoppedEvent, ""));
        assert!(matches!(nobody, Report::Missed));
    }
}
