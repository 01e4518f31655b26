//! The pods socket, called over the socket; and the protobuf compared with that of Go's code for
//! the same pods.

use super::*;
use api::core::v1::PodStatus;
use api::ids::PodUid;
use base64::Engine;
use proto::pods_v1alpha1::pods_client::PodsClient;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Duration;
use tonic::Code;

/// A directory that is removed after the test.
struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Self {
        Self(std::env::temp_dir().join(format!("rubelet-pods-api-{name}-{}", std::process::id())))
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let everything = sys::removal::Contents::Everything;
        sys::removal::remove_tree(Path::new("/proc"), &self.0, everything).unwrap();
    }
}

#[derive(Debug, Default)]
struct Feed {
    shown: BTreeMap<PodUid, ShownPod>,
    followers: Mutex<Vec<mpsc::Sender<PodChange>>>,
}

impl PodFeed for Feed {
    fn shown(&self) -> BTreeMap<PodUid, ShownPod> {
        self.shown.clone()
    }

    fn follow(&self) -> mpsc::Receiver<PodChange> {
        let (sender, inbox) = mpsc::channel(4);
        self.followers.lock().unwrap().push(sender);
        inbox
    }
}

fn pod(uid: &str, phase: &str) -> ShownPod {
    let pod = json!({"metadata": {"name": format!("name-{uid}"), "namespace": "n", "uid": uid,
                                  "labels": {"l": "v"}}, "status": {"phase": "Pending"}});
    let status = PodStatus { phase: Some(phase.to_owned()), ..PodStatus::default() };
    ShownPod {
        pod: Arc::new(serde_json::from_value(pod).unwrap()),
        status: (!phase.is_empty()).then(|| Arc::new(status)),
    }
}

fn feed_of(pods: &[(&str, &str)]) -> Arc<Feed> {
    let shown = pods.iter().map(|(uid, phase)| (PodUid::from(*uid), pod(uid, phase)));
    Arc::new(Feed { shown: shown.collect(), followers: Mutex::default() })
}

/// A served socket and its client.
async fn serve(feed: &Arc<Feed>, dir: &Dir) -> (PodsClient<sockets::Channel>, Tasks) {
    let tasks = Tasks::new();
    let pods: Arc<dyn PodFeed> = Arc::<Feed>::clone(feed);
    serve_pods(pods, &dir.0, &tasks).unwrap();
    let channel = sockets::connect(&dir.0.join("pods-api.sock"), Duration::from_secs(5)).await;
    (PodsClient::new(channel.unwrap()), tasks)
}

#[test]
fn a_pod_is_written_as_go_writes_it() {
    let path =
        concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/golden/server/pod-protobuf.jsonl");
    let recorded = sys::fs::read_to_string(Path::new(path)).unwrap();
    assert!(recorded.lines().count() > 5);
    for (number, line) in recorded.lines().enumerate() {
        let case: Value = serde_json::from_str(line).unwrap();
        let wanted = case["protobuf"].as_str().unwrap();
        let wanted = base64::engine::general_purpose::STANDARD.decode(wanted).unwrap();
        same_bytes(&encode(table::POD, &case["pod"]), &wanted, number);
        // Our own types must not lose any field either.
        let mut pod = case["pod"].clone();
        if pod["spec"]["containers"].is_null() {
            pod["spec"]["containers"] = json!([]);
        }
        let pod: Pod = serde_json::from_value(pod).unwrap();
        same_bytes(&bytes(&ShownPod { pod: Arc::new(pod), status: None }), &wanted, number);
    }
}

/// Shows where the first difference is.
fn same_bytes(ours: &[u8], wanted: &[u8], case: usize) {
    let at = ours.iter().zip(wanted).position(|(a, b)| a != b);
    let at = at.unwrap_or_else(|| ours.len().min(wanted.len()));
    let around = |bytes: &[u8]| {
        let from = at.saturating_sub(60).min(bytes.len());
        let to = (at + 40).min(bytes.len());
        String::from_utf8_lossy(&bytes[from..to]).into_owned()
    };
    assert!(
        ours == wanted,
        "case {case} differs at {at} of {}:\n{:?}\n{:?}",
        wanted.len(),
        around(ours),
        around(wanted)
    );
}

#[tokio::test]
async fn pods_are_listed_by_uid_with_their_newest_status() {
    let dir = Dir::new("list");
    let (mut client, _tasks) = serve(&feed_of(&[("b", "Running"), ("a", "")]), &dir).await;
    let listed = client.list_pods(ListPodsRequest {}).await.unwrap().into_inner();
    assert_eq!(listed.pods, [bytes(&pod("a", "Pending")), bytes(&pod("b", "Running"))]);
}

#[tokio::test]
async fn one_pod_is_found_by_its_uid_alone() {
    let dir = Dir::new("get");
    let (mut client, _tasks) = serve(&feed_of(&[("a", "Running")]), &dir).await;
    let ask = |uid: &str| GetPodRequest { pod_uid: uid.to_owned() };
    let found = client.get_pod(ask("a")).await.unwrap().into_inner();
    assert_eq!(found.pod, bytes(&pod("a", "Running")));
    let missing = client.get_pod(ask("name-a")).await.unwrap_err();
    assert_eq!(missing.code(), Code::NotFound);
    assert_eq!(missing.message(), "pod with UID name-a not found");
}

#[tokio::test]
async fn a_watcher_sees_all_pods_then_every_change_then_that_it_fell_behind() {
    let dir = Dir::new("watch");
    let feed = feed_of(&[("a", "Running"), ("b", "Running")]);
    let (mut client, _tasks) = serve(&feed, &dir).await;
    let mut events = client.watch_pods(WatchPodsRequest {}).await.unwrap().into_inner();
    let mut next = async || events.message().await;
    assert_eq!(next().await.unwrap(), Some(event(EventType::Added, bytes(&pod("a", "Running")))));
    assert_eq!(next().await.unwrap(), Some(event(EventType::Added, bytes(&pod("b", "Running")))));
    assert_eq!(next().await.unwrap(), Some(event(EventType::InitialSyncComplete, Vec::new())));
    let follower = feed.followers.lock().unwrap().pop().unwrap();
    for (kind, phase) in [
        (PodChangeKind::Added, "Pending"),
        (PodChangeKind::Modified, "Running"),
        (PodChangeKind::Deleted, "Failed"),
    ] {
        follower.send(PodChange { kind, shown: pod("c", phase) }).await.unwrap();
    }
    assert_eq!(next().await.unwrap(), Some(event(EventType::Added, bytes(&pod("c", "Pending")))));
    assert_eq!(
        next().await.unwrap(),
        Some(event(EventType::Modified, bytes(&pod("c", "Running"))))
    );
    let gone = json!({"metadata": {"name": "name-c", "namespace": "n", "uid": "c"}});
    let gone = event(EventType::Deleted, encode(table::POD, &gone));
    assert_eq!(next().await.unwrap(), Some(gone));
    drop(follower);
    let behind = next().await.unwrap_err();
    assert_eq!(behind.code(), Code::ResourceExhausted);
    assert_eq!(behind.message(), "watch client channel closed");
}

#[tokio::test(start_paused = true)]
async fn calls_are_limited_but_watches_are_not() {
    let limit = RateLimit::new(CALLS_PER_SECOND, BURST);
    let api = PodsApi { pods: feed_of(&[]), limit, token: CancellationToken::new() };
    for _ in 0..5 {
        assert!(api.list_pods(Request::new(ListPodsRequest {})).await.is_ok());
        let answer = api.get_pod(Request::new(GetPodRequest::default())).await;
        assert_eq!(answer.unwrap_err().code(), Code::NotFound);
    }
    let refused = api.list_pods(Request::new(ListPodsRequest {})).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted);
    assert_eq!(refused.message(), "rejected by rate limit");
    assert!(api.watch_pods(Request::new(WatchPodsRequest {})).await.is_ok());
    tokio::time::advance(Duration::from_millis(10)).await;
    assert!(api.list_pods(Request::new(ListPodsRequest {})).await.is_ok());
}

#[tokio::test]
async fn a_watch_ends_with_the_agent() {
    let dir = Dir::new("end");
    let (mut client, tasks) = serve(&feed_of(&[]), &dir).await;
    let mut events = client.watch_pods(WatchPodsRequest {}).await.unwrap().into_inner();
    let first = events.message().await.unwrap();
    assert_eq!(first, Some(event(EventType::InitialSyncComplete, Vec::new())));
    tasks.token().cancel();
    assert_eq!(events.message().await.unwrap(), None);
}
