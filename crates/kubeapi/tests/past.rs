//! Stale lists: a server whose cache is behind must not make known objects disappear.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use http::Method;
use kubeapi::{Connection, ConnectionConfig, Kubeconfig, PodWatchEvent, watch_pods};
use ports::{OnExit, Tasks};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use testkit::fake_api::{Behind, FakeApi};
use tokio::sync::watch;

fn pod(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "ns"},
        "spec": {"nodeName": "node1", "containers": [{"name": "c", "image": "i"}]}})
}

/// Watches the pods and records every set of names that was published.
struct Followed {
    pods: watch::Receiver<Option<PodWatchEvent>>,
    shown: Arc<Mutex<Vec<BTreeSet<String>>>>,
    tasks: Tasks,
}

fn names(event: &PodWatchEvent) -> BTreeSet<String> {
    event.pods.values().map(|pod| pod.metadata.name.clone().unwrap()).collect()
}

impl Followed {
    async fn start(api: &FakeApi) -> Self {
        let kubeconfig = Kubeconfig::parse(&api.kubeconfig(), Path::new("/")).unwrap();
        let config = ConnectionConfig { rate: None, ..ConnectionConfig::default() };
        let connection = Connection::new(&kubeconfig, &config).await.unwrap();
        let tasks = Tasks::new();
        let (out, pods) = watch::channel(None);
        let watching = watch_pods(connection, "node1".into(), out, tasks.token());
        tasks.spawn("pods", OnExit::Fine, watching);
        let shown = Arc::new(Mutex::new(Vec::new()));
        let (mut seen, recorded) = (pods.clone(), Arc::clone(&shown));
        tasks.spawn("shown", OnExit::Fine, async move {
            while seen.changed().await.is_ok() {
                let event = seen.borrow_and_update().clone();
                recorded.lock().unwrap().extend(event.as_ref().map(names));
            }
        });
        Self { pods, shown, tasks }
    }

    async fn until(&mut self, wanted: &[&str]) {
        let wanted: BTreeSet<String> = wanted.iter().map(|name| (*name).to_owned()).collect();
        let is = |event: &Option<PodWatchEvent>| event.as_ref().is_some_and(|e| names(e) == wanted);
        let waited = tokio::time::timeout(Duration::from_secs(7200), self.pods.wait_for(is)).await;
        waited.unwrap().unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn the_first_list_is_as_of_now() {
    for how in [Behind::Refuses, Behind::Answers] {
        let api = FakeApi::start().await.unwrap();
        api.put(pod("a"));
        api.fall_behind(how);
        api.put(pod("b"));
        let mut followed = Followed::start(&api).await;
        followed.until(&["a", "b"]).await;
        let first = followed.shown.lock().unwrap().first().cloned().unwrap();
        assert_eq!(first.len(), 2, "{how:?}: {first:?}");
        followed.tasks.shutdown().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_list_from_the_past_takes_nothing_away() {
    for how in [Behind::Refuses, Behind::Answers] {
        let api = FakeApi::start().await.unwrap();
        let mut followed = Followed::start(&api).await;
        api.put(pod("a"));
        followed.until(&["a"]).await;
        api.remember();
        api.put(pod("b"));
        followed.until(&["a", "b"]).await;
        // A server that knows only the first pod, and a watch that is refused until everything is
        // listed.
        api.fall_behind(how);
        let before = api.queries("/pods").len();
        api.refuse(Method::GET, "/pods", 3, 500);
        api.cut_watches();
        let consistent = |query: &String| {
            query.ends_with("resourceVersion=") || !query.contains("resourceVersion=")
        };
        while !api.queries("/pods")[before..].iter().any(consistent) {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        api.put(pod("c"));
        api.catch_up();
        followed.until(&["a", "b", "c"]).await;
        let lost = |set: &BTreeSet<String>| !set.contains("b");
        let shown = followed.shown.lock().unwrap().clone();
        let from = shown.iter().position(|set| set.contains("b")).unwrap();
        assert!(!shown[from..].iter().any(lost), "{how:?}: {shown:?}");
        followed.tasks.shutdown().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_is_gone_is_gone_after_a_consistent_list_says_so() {
    let api = FakeApi::start().await.unwrap();
    let mut followed = Followed::start(&api).await;
    api.put(pod("a"));
    api.put(pod("b"));
    followed.until(&["a", "b"]).await;
    api.refuse(Method::GET, "/pods", 3, 500);
    api.cut_watches();
    api.remove("pods", "ns", "b");
    followed.until(&["a"]).await;
    followed.tasks.shutdown().await;
}

/// A broken watch resumes where it was: nothing is listed again.
#[tokio::test(start_paused = true)]
async fn a_watch_that_is_refused_is_asked_for_more_and_more_slowly() {
    for (status, lists) in [(429, 1), (503, 1), (500, 10)] {
        let api = FakeApi::start().await.unwrap();
        api.put(pod("a"));
        api.refuse(Method::GET, "sendInitialEvents", u32::MAX, 400);
        api.refuse(Method::GET, "watch=true", u32::MAX, status);
        let mut followed = Followed::start(&api).await;
        followed.until(&["a"]).await;
        tokio::time::sleep(Duration::from_secs(600)).await;
        let (watches, others): (Vec<_>, Vec<_>) =
            api.queries("/pods").into_iter().partition(|query| query.contains("watch=true"));
        assert!(watches.len() < 60, "{status}: {} watches in ten minutes", watches.len());
        assert!(others.len() <= lists, "{status}: {} lists in ten minutes", others.len());
        followed.tasks.shutdown().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_cut_watch_goes_on_without_a_list() {
    let api = FakeApi::start().await.unwrap();
    let mut followed = Followed::start(&api).await;
    api.put(pod("a"));
    followed.until(&["a"]).await;
    let before = api.queries("/pods").len();
    api.cut_watches();
    api.put(pod("b"));
    followed.until(&["a", "b"]).await;
    let since = api.queries("/pods").split_off(before);
    assert!(
        !since.is_empty() && since.iter().all(|q| !q.contains("sendInitialEvents")),
        "{since:?}"
    );
    followed.tasks.shutdown().await;
}

/// Many servers behind one address, each with a cache of a different age: whatever is requested,
/// and in whatever order they respond and break, no pod disappears before it was deleted, and the
/// final state is correct.
#[tokio::test(start_paused = true)]
async fn histories_by_chance_lose_nothing() {
    let seeds = std::env::var("SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(40);
    for seed in 1..=seeds {
        history(seed).await;
    }
}

async fn history(seed: u64) {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut below = move |n: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % n
    };
    let api = FakeApi::start().await.unwrap();
    let mut followed = Followed::start(&api).await;
    let (mut alive, mut made) = (BTreeSet::new(), 0);
    let mut deleted = BTreeSet::new();
    for _ in 0..30 {
        match below(8) {
            0..=2 => {
                made += 1;
                let name = format!("p{made}");
                api.put(pod(&name));
                alive.insert(name);
            }
            3 => {
                if let Some(name) = alive.pop_first() {
                    deleted.insert(name.clone());
                    api.remove("pods", "ns", &name);
                }
            }
            4 => api.cut_watches(),
            5 if below(2) == 0 => api.remember(),
            5 => api.fall_behind(if below(2) == 0 { Behind::Refuses } else { Behind::Answers }),
            6 => api.catch_up(),
            _ => {
                api.compact();
                if below(2) == 0 {
                    api.refuse(Method::GET, "/pods", 3, 500);
                }
            }
        }
        tokio::time::sleep(Duration::from_millis(below(20_000))).await;
        let shown: Vec<_> = std::mem::take(&mut *followed.shown.lock().unwrap());
        for pair in shown.windows(2) {
            let lost: Vec<_> = pair[0].difference(&pair[1]).collect();
            let wrongly = lost.iter().any(|name| !deleted.contains(*name));
            assert!(!wrongly, "seed {seed}: {lost:?} disappeared");
        }
    }
    api.catch_up();
    let wanted: Vec<&str> = alive.iter().map(String::as_str).collect();
    followed.until(&wanted).await;
    followed.tasks.shutdown().await;
}
