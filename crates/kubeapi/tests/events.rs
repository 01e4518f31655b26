//! Events as the API server receives them, against the fake API server.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use jiff::Timestamp;
use kubeapi::{ApiEvents, Connection, ConnectionConfig, EventsConfig, Kubeconfig};
use ports::{Clock, EventSeverity, EventTarget, Events, NodeEvent, OnExit, Tasks};
use serde_json::{Value, json};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use testkit::fake_api::FakeApi;

/// A clock that only moves when it is set.
#[derive(Debug)]
struct Hands(Mutex<Timestamp>);

impl Hands {
    fn show(&self, text: &str) {
        *self.0.lock().unwrap() = text.parse().unwrap();
    }
}

impl Clock for Hands {
    fn now(&self) -> Timestamp {
        *self.0.lock().unwrap()
    }
}

const FIRST: &str = "2026-01-02T03:04:05Z";
const LATER: &str = "2026-01-02T03:06:00Z";

fn event(message: &str) -> NodeEvent {
    NodeEvent {
        target: EventTarget::Node,
        severity: EventSeverity::Warning,
        reason: "Evicted",
        message: message.to_owned(),
    }
}

async fn stored(api: &FakeApi, fits: impl Fn(&Value) -> bool) -> Value {
    let found = async {
        loop {
            if let Some(found) = api.objects("events").into_iter().find(&fits) {
                return found;
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), found).await.unwrap()
}

#[tokio::test]
async fn an_event_tells_when_it_happened_and_keeps_its_name() {
    let api = FakeApi::start().await.unwrap();
    let kubeconfig = Kubeconfig::parse(&api.kubeconfig(), Path::new("/")).unwrap();
    let connection = Connection::new(&kubeconfig, &ConnectionConfig::default()).await.unwrap();
    let clock = Arc::new(Hands(Mutex::new(FIRST.parse().unwrap())));
    let tasks = Tasks::new();
    let config = EventsConfig { node_name: "node1".into() };
    let (events, sending) =
        ApiEvents::new(&connection, config, Arc::clone(&clock) as Arc<dyn Clock>, tasks.token());
    let annotations = [("starved_resource".to_owned(), "memory".to_owned())];
    events.emit_annotated(event("m0"), annotations.clone().into());
    clock.show(LATER);
    tasks.spawn("events", OnExit::Fine, sending);

    let one = stored(&api, |e| e["message"] == "m0").await;
    assert_eq!((&one["firstTimestamp"], &one["lastTimestamp"]), (&json!(FIRST), &json!(FIRST)));
    assert_eq!(one["metadata"]["annotations"], json!({"starved_resource": "memory"}));
    assert_eq!(one["reportingComponent"], "kubelet");
    let name = one["metadata"]["name"].as_str().unwrap();
    let made: Timestamp = FIRST.parse().unwrap();
    assert_eq!(name, format!("node1.{:x}", made.as_nanosecond()));

    api.remove("events", "default", name).unwrap();
    events.emit_annotated(event("m0"), annotations.clone().into());
    let again = stored(&api, |e| e["message"] == "m0").await;
    assert_eq!((&again["metadata"]["name"], &again["count"]), (&json!(name), &json!(2)));
    let times = (&again["firstTimestamp"], &again["lastTimestamp"]);
    assert_eq!(times, (&json!(FIRST), &json!(LATER)));

    for n in 1..=9 {
        // Events of the same time would have the same name.
        clock.show(&format!("2026-01-02T03:07:0{n}Z"));
        events.emit_annotated(event(&format!("m{n}")), annotations.clone().into());
    }
    let folded = stored(&api, |e| e["message"] == "(combined from similar events): m9").await;
    assert_eq!(folded["metadata"].get("annotations"), None);
    assert_eq!(folded["reportingComponent"].as_str().unwrap_or_default(), "");
    assert_eq!(folded["source"]["component"], "kubelet");
    tasks.shutdown().await;
}

#[tokio::test]
async fn what_is_told_right_before_the_end_is_still_sent() {
    let api = FakeApi::start().await.unwrap();
    let kubeconfig = Kubeconfig::parse(&api.kubeconfig(), Path::new("/")).unwrap();
    let connection = Connection::new(&kubeconfig, &ConnectionConfig::default()).await.unwrap();
    let clock: Arc<dyn Clock> = Arc::new(Hands(Mutex::new(FIRST.parse().unwrap())));
    let tasks = Tasks::new();
    let config = EventsConfig { node_name: "node1".into() };
    let (events, sending) = ApiEvents::new(&connection, config, clock, tasks.token());
    events.emit(event("the end"));
    tasks.token().cancel();
    sending.await;
    assert!(api.objects("events").iter().any(|event| event["message"] == "the end"));
}
