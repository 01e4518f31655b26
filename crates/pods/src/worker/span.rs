//! What traces say of a worker's calls (kubelet: `SyncPod` and its like).

use engine::pod::life::{Call, Outcome, Work};
use telemetry::traces::{Closing, Kind, Opening};

/// The part of the program that upstream names.
const SCOPE: &str = "k8s.io/kubernetes/pkg/kubelet";

/// A call at its beginning; none of its own for a pod that only the runtime knows.
pub(super) fn opening(work: &Work) -> Opening {
    let meta = &work.pod.metadata;
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    let (name, namespace) = (text(&meta.name), text(&meta.namespace));
    let mut attributes = vec![
        ("k8s.pod.uid", text(&meta.uid).into()),
        ("k8s.pod", format!("{namespace}/{name}").into()),
        ("k8s.pod.name", name.into()),
        ("k8s.namespace.name", namespace.into()),
    ];
    let span = match work.call {
        Call::Sync => {
            attributes.push(("k8s.pod.update_type", work.kind.as_str().into()));
            "syncPod"
        }
        Call::Terminating => "syncTerminatingPod",
        Call::TerminatingRuntime => "syncTerminatingRuntimePod",
        Call::Terminated => "syncTerminatedPod",
    };
    Opening { scope: SCOPE, name: span.to_owned(), kind: Kind::Internal, attributes, link: None }
}

/// A call at its end.
pub(super) fn closing(outcome: &Outcome) -> Closing {
    let error = match outcome {
        Outcome::Failed { .. } => Some("the call failed".to_owned()),
        Outcome::Done { .. } | Outcome::Interrupted => None,
    };
    Closing { error, ..Closing::default() }
}
