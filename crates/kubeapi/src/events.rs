//! Sends events to the API server: a bounded queue, correlation, one sender.
//!
//! Promises: emitting never waits; an event that does not fit in the queue is dropped with a log
//! line; order is kept per process. An event has the time when it happened, not when the server
//! could be reached. At shutdown queued events are still sent for a short time: they may say why
//! the process ends.

mod correlate;
mod name;

use crate::connection::{Connection, Lane};
use crate::error::ApiError;
use crate::watch::random_fraction;
use api::core::v1::{Event, EventSource, ObjectReference};
use api::machinery::apis::meta::v1::{ObjectMeta, Time};
use correlate::{Correlator, Occurrence, Post, Subject};
use jiff::Timestamp;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use ports::{Clock, EventSeverity, EventTarget, Events, NodeEvent};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

const QUEUE: usize = 1000;
const TRIES: u32 = 12;
/// The maximal length of a message that is sent and remembered: probe output of up to 10 KiB fits.
/// Runtimes repeat the output of containers, which may be megabytes.
const LONGEST_MESSAGE: usize = 16 << 10;
const RETRY_PAUSE: Duration = Duration::from_secs(10);
/// How long events are still sent after cancellation.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(500);

/// Settings of [`ApiEvents`].
#[derive(Debug, Clone)]
pub struct EventsConfig {
    /// This node's name: the events' source host, and the node events' object.
    pub node_name: String,
}

/// The queue of events for the API server. Cheap to clone.
#[derive(Debug, Clone)]
pub struct ApiEvents {
    queue: mpsc::Sender<Queued>,
    clock: Arc<dyn Clock>,
}

impl ApiEvents {
    /// The sink and the sending task; the task ends when cancelled.
    pub fn new(
        connection: &Connection,
        config: EventsConfig,
        clock: Arc<dyn Clock>,
        cancel: CancellationToken,
    ) -> (Self, impl Future<Output = ()> + Send + 'static) {
        let (queue, events) = mpsc::channel(QUEUE);
        let sender = SenderTask {
            lane: connection.events().clone(),
            config,
            clock: Arc::clone(&clock),
            correlator: Correlator::new(),
        };
        (Self { queue, clock }, sender.run(events, cancel))
    }
}

impl Events for ApiEvents {
    fn emit(&self, event: NodeEvent) {
        self.emit_annotated(event, Annotations::new());
    }

    fn emit_annotated(&self, mut event: NodeEvent, annotations: Annotations) {
        shorten(&mut event.message);
        log(&event);
        let queued = Queued { event, annotations, at: self.clock.now() };
        if let Err(mpsc::error::TrySendError::Full(queued)) = self.queue.try_send(queued) {
            tracing::warn!(reason = queued.event.reason, "event queue is full, event dropped");
        }
    }
}

/// Truncates a message that is too long and says so at its end.
fn shorten(message: &mut String) {
    const END: &str = "...";
    if message.len() > LONGEST_MESSAGE {
        message.truncate(message.floor_char_boundary(LONGEST_MESSAGE - END.len()));
        message.push_str(END);
        message.shrink_to_fit();
    }
}

type Annotations = BTreeMap<String, String>;

/// A queued event.
#[derive(Debug)]
struct Queued {
    event: NodeEvent,
    annotations: Annotations,
    at: Timestamp,
}

/// Events of standalone mode: they are only logged.
#[derive(Debug, Clone, Copy, Default)]
pub struct EventLog;

impl Events for EventLog {
    fn emit(&self, event: NodeEvent) {
        log(&event);
    }
}

fn log(event: &NodeEvent) {
    let (kind, object, field_path) = match &event.target {
        EventTarget::Node => ("Node", String::new(), None),
        EventTarget::Pod { pod, field_path } => {
            ("Pod", place(&pod.metadata.namespace, &pod.metadata.name), field_path.as_deref())
        }
        EventTarget::Object(reference) => (
            reference.kind.as_deref().unwrap_or_default(),
            place(&reference.namespace, &reference.name),
            reference.field_path.as_deref(),
        ),
    };
    tracing::debug!(
        object,
        fieldPath = field_path,
        kind,
        r#type = severity(event.severity),
        reason = event.reason,
        message = %event.message,
        "Event occurred"
    );
}

fn place(namespace: &Option<String>, name: &Option<String>) -> String {
    let text = |part: &Option<String>| part.clone().unwrap_or_default();
    format!("{}/{}", text(namespace), text(name))
}

fn severity(severity: EventSeverity) -> &'static str {
    match severity {
        EventSeverity::Normal => "Normal",
        EventSeverity::Warning => "Warning",
    }
}

struct SenderTask {
    lane: Lane,
    config: EventsConfig,
    clock: Arc<dyn Clock>,
    correlator: Correlator,
}

impl SenderTask {
    async fn run(mut self, mut events: mpsc::Receiver<Queued>, cancel: CancellationToken) {
        let mut over = std::pin::pin!(async {
            cancel.cancelled().await;
            tokio::time::sleep(DRAIN_TIMEOUT).await;
        });
        loop {
            let event = tokio::select! {
                // Cancel-safe: a token has no state to lose.
                () = cancel.cancelled() => events.try_recv().ok(),
                // Cancel-safe: an event not taken stays in the queue.
                event = events.recv() => event,
            };
            let Some(queued) = event else { return };
            let (occurrence, version) = self.occurrence(queued);
            let Some(post) = self.correlator.correlate(&occurrence, self.clock.now()) else {
                continue;
            };
            tokio::select! {
                // Cancel-safe: the deadline stays the same.
                () = &mut over => return,
                // Dropped only at the end of the process: the event is lost then.
                () = self.deliver(&occurrence, version.as_deref(), &post) => {}
            }
        }
    }

    fn occurrence(&self, queued: Queued) -> (Occurrence, Option<String>) {
        let Queued { event, annotations, at } = queued;
        let core = |kind: &str, namespace, name, uid| Subject {
            api_version: "v1".into(),
            kind: kind.into(),
            namespace,
            name,
            uid,
        };
        let (subject, field_path, version) = match event.target {
            EventTarget::Node => {
                let name = self.config.node_name.clone();
                (core("Node", String::new(), name, String::new()), None, None)
            }
            EventTarget::Pod { pod, field_path } => {
                let meta = &pod.metadata;
                let subject = core(
                    "Pod",
                    meta.namespace.clone().unwrap_or_default(),
                    meta.name.clone().unwrap_or_default(),
                    meta.uid.clone().unwrap_or_default(),
                );
                (subject, field_path, meta.resource_version.clone())
            }
            EventTarget::Object(reference) => {
                let subject = Subject {
                    api_version: reference.api_version.unwrap_or_default(),
                    kind: reference.kind.unwrap_or_default(),
                    namespace: reference.namespace.unwrap_or_default(),
                    name: reference.name.unwrap_or_default(),
                    uid: reference.uid.unwrap_or_default(),
                };
                (subject, reference.field_path, reference.resource_version)
            }
        };
        let occurrence = Occurrence {
            subject,
            field_path,
            severity: severity(event.severity),
            reason: event.reason.to_owned(),
            message: event.message,
            annotations,
            at,
        };
        (occurrence, version)
    }

    /// A refusal is final; an unreachable server is retried for about two minutes.
    async fn deliver(&mut self, event: &Occurrence, version: Option<&str>, post: &Post) {
        for attempt in 1..=TRIES {
            match self.send(event, version, post).await {
                Ok(name) => {
                    self.correlator.stored(&post.key, name);
                    return;
                }
                Err(err) if err.is_refused() => {
                    tracing::warn!(reason = event.reason, err = %err, "server rejected event");
                    return;
                }
                Err(err) => {
                    tracing::debug!(reason = event.reason, err = %err, attempt, "event not sent");
                    let share = if attempt == 1 { random_fraction() } else { 1.0 };
                    tokio::time::sleep(RETRY_PAUSE.mul_f64(share)).await;
                }
            }
        }
        tracing::warn!(reason = event.reason, "unable to write event, retry limit exceeded");
    }

    async fn send(
        &self,
        event: &Occurrence,
        version: Option<&str>,
        post: &Post,
    ) -> Result<String, ApiError> {
        let namespace = match event.subject.namespace.as_str() {
            "" => "default",
            namespace => namespace,
        };
        let api: Api<Event> = Api::namespaced(self.lane.client(), namespace);
        if let Some(name) = &post.name {
            let patch = serde_json::json!({
                "count": post.count,
                "lastTimestamp": Time(seconds(post.last)),
                "message": post.message,
            });
            let (params, patch) = (PatchParams::default(), Patch::Strategic(&patch));
            match self.lane.ask(api.patch(name, &params, &patch)).await {
                Ok(_) => return Ok(name.clone()),
                Err(err) if err.is_not_found() => {}
                Err(err) => return Err(err),
            }
        }
        let object = self.object(event, version, post, namespace);
        let stored = self.lane.ask(api.create(&PostParams::default(), &object)).await?;
        Ok(stored.metadata.name.unwrap_or_default())
    }

    fn object(
        &self,
        event: &Occurrence,
        version: Option<&str>,
        post: &Post,
        namespace: &str,
    ) -> Event {
        let Subject { api_version, kind, namespace: home, name, uid } = &event.subject;
        let given = |text: &String| (!text.is_empty()).then(|| text.clone());
        // An aggregated event has no annotations and no reporting component, as upstream.
        let single = !post.is_folded();
        // An event that the server has deleted is created again under its old name.
        let own = post.name.clone().unwrap_or_else(|| match single {
            true => name::of_event(name, post.last),
            false => name::plain(name, post.last),
        });
        let annotations = Some(&event.annotations).filter(|map| single && !map.is_empty());
        Event {
            metadata: ObjectMeta {
                name: Some(own),
                namespace: Some(namespace.to_owned()),
                annotations: annotations.cloned(),
                ..ObjectMeta::default()
            },
            involved_object: ObjectReference {
                api_version: Some(api_version.clone()),
                kind: Some(kind.clone()),
                namespace: given(home),
                name: Some(name.clone()),
                uid: given(uid),
                resource_version: version.map(str::to_owned),
                field_path: event.field_path.clone(),
            },
            reason: Some(event.reason.clone()),
            message: Some(post.message.clone()),
            source: Some(EventSource {
                component: Some("kubelet".into()),
                host: Some(self.config.node_name.clone()),
            }),
            first_timestamp: Some(Time(seconds(post.first))),
            last_timestamp: Some(Time(seconds(post.last))),
            count: Some(post.count),
            type_: Some(event.severity.into()),
            reporting_component: single.then(|| "kubelet".into()),
            reporting_instance: single.then(|| self.config.node_name.clone()),
            ..Event::default()
        }
    }
}

fn seconds(at: Timestamp) -> Timestamp {
    Timestamp::from_second(at.as_second()).unwrap_or(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_of_a_megabyte_is_cut_between_two_characters() {
        let mut message = "ä".repeat(1 << 19);
        shorten(&mut message);
        assert!(message.len() <= LONGEST_MESSAGE && message.ends_with("ä..."));
        assert!(message.capacity() < 2 * LONGEST_MESSAGE);
        let mut short = "Back-off restarting failed container".to_owned();
        shorten(&mut short);
        assert_eq!(short, "Back-off restarting failed container");
    }
}
