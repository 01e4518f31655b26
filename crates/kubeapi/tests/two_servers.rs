//! Two real API servers on one etcd, behind one address: one of them is stopped or cut off from
//! etcd, so that its cache is stale, and then the node is connected to it.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use kubeapi::{Connection, ConnectionConfig, Kubeconfig, PodWatchEvent, watch_pods};
use ports::{OnExit, Tasks};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use testkit::real::{ControlPlane, ControlPlaneOptions, run};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

const PATIENCE: Duration = Duration::from_secs(90);

/// What a forwarder does with its connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Road {
    /// They lead to this port; those to another one are closed.
    To(u16),
    /// They carry no data.
    Shut(u16),
}

impl Road {
    fn target(self) -> u16 {
        match self {
            Self::To(port) | Self::Shut(port) => port,
        }
    }
}

/// Copies bytes in one direction, as long as the road is open and leads to `target`.
async fn carry(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut road: watch::Receiver<Road>,
    target: u16,
) {
    let mut buffer = vec![0; 64 << 10];
    loop {
        let read = tokio::select! {
            // Cancel-safe: a dropped read has consumed nothing.
            read = from.read(&mut buffer) => read,
            // Cancel-safe: only waits.
            _ = road.wait_for(|road| road.target() != target) => return,
        };
        let Ok(count @ 1..) = read else { return };
        let open = road.wait_for(|road| *road == Road::To(target) || road.target() != target);
        let led = open.await.is_ok_and(|road| road.target() == target);
        if !led || to.write_all(&buffer[..count]).await.is_err() {
            return;
        }
    }
}

async fn forward(listener: TcpListener, road: watch::Receiver<Road>, tasks: Tasks) {
    while let Ok((client, _)) = listener.accept().await {
        let road = road.clone();
        let target = road.borrow().target();
        tasks.spawn("connection", OnExit::Fine, async move {
            let Ok(server) = TcpStream::connect(("127.0.0.1", target)).await else { return };
            let ((c_in, c_out), (s_in, s_out)) = (client.into_split(), server.into_split());
            // Either direction ends both.
            tokio::select! {
                () = carry(c_in, s_out, road.clone(), target) => {}
                () = carry(s_in, c_out, road.clone(), target) => {}
            }
        });
    }
}

async fn road(to: u16, tasks: &Tasks) -> (u16, watch::Sender<Road>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let (change, road) = watch::channel(Road::To(to));
    tasks.spawn("road", OnExit::Fine, forward(listener, road, tasks.clone()));
    (port, change)
}

fn kubeconfig(control: &ControlPlane, port: u16) -> Kubeconfig {
    let path = control.kubeconfig("node1");
    let mut text: Value = serde_json::from_slice(&sys::fs::read(&path).unwrap()).unwrap();
    text["clusters"][0]["cluster"]["server"] = format!("https://127.0.0.1:{port}").into();
    Kubeconfig::parse(&text.to_string(), path.parent().unwrap_or(Path::new("/"))).unwrap()
}

fn create_pod(control: &ControlPlane, name: &str) {
    let pod = json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"nodeName": "node1", "containers": [{"name": "c", "image": "i"}]}});
    control.create(&pod).unwrap();
}

/// The node's pods as the watch publishes them, with every set that was ever published.
struct Seen {
    pods: watch::Receiver<Option<PodWatchEvent>>,
    shown: Arc<Mutex<Vec<BTreeSet<String>>>>,
}

fn names(event: &PodWatchEvent) -> BTreeSet<String> {
    event.pods.values().map(|pod| pod.metadata.name.clone().unwrap()).collect()
}

impl Seen {
    async fn follow(control: &ControlPlane, port: u16, tasks: &Tasks) -> Seen {
        let config = ConnectionConfig::default();
        let connection = Connection::new(&kubeconfig(control, port), &config).await.unwrap();
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
        Seen { pods, shown }
    }

    async fn until(&mut self, name: &str) {
        let has = |event: &Option<PodWatchEvent>| {
            event.as_ref().is_some_and(|event| names(event).contains(name))
        };
        tokio::time::timeout(PATIENCE, self.pods.wait_for(has)).await.unwrap().unwrap();
    }

    /// Whether every published set, from the first one with it on, has this pod.
    fn always_since(&self, name: &str) -> bool {
        let shown = self.shown.lock().unwrap();
        shown.iter().skip_while(|set| !set.contains(name)).all(|set| set.contains(name))
    }

    /// Whether every published set has this pod.
    fn never_without(&self, name: &str) -> bool {
        self.shown.lock().unwrap().iter().all(|set| set.contains(name))
    }
}

/// A process that is stopped until this is dropped.
struct Stopped(String);

impl Stopped {
    fn new(pid: u32) -> Stopped {
        let pid = pid.to_string();
        run("kill", ["-STOP", pid.as_str()]).unwrap();
        Stopped(pid)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        drop(run("kill", ["-CONT", self.0.as_str()]));
    }
}

/// Waits until a server returns a pod from its own cache.
async fn until_cached(control: &ControlPlane, port: u16, name: &str) {
    let server = format!("--server=https://127.0.0.1:{port}");
    let path = "/api/v1/namespaces/default/pods?resourceVersion=0";
    let shown = || control.kubectl([server.as_str(), "get", "--raw", path]);
    while !shown().is_ok_and(|text| text.contains(&format!("\"name\":\"{name}\""))) {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[test]
fn a_server_that_lags_behind_takes_no_pod_away() {
    let control = ControlPlane::start(&ControlPlaneOptions::default()).unwrap();
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node1"}});
    control.create(&node).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let tasks = Tasks::new();
        let (etcd, etcd_road) = road(control.etcd_port(), &tasks).await;
        let other = tokio::task::block_in_place(|| control.another_api_server(etcd).unwrap());
        let (server, second) = other;
        let (address, way) = road(control.port(), &tasks).await;
        create_pod(&control, "one");
        let mut seen = Seen::follow(&control, address, &tasks).await;
        seen.until("one").await;
        until_cached(&control, second, "one").await;

        // The second server receives nothing more from etcd, and knows only one pod.
        etcd_road.send_replace(Road::Shut(control.etcd_port()));
        create_pod(&control, "two");
        seen.until("two").await;
        way.send_replace(Road::To(second));
        let mut anew = Seen::follow(&control, address, &tasks).await;
        // Long enough for a stale list to be believed.
        let early = tokio::time::timeout(Duration::from_secs(10), anew.until("one")).await;
        assert!(early.is_err(), "a new node was told {:?}", anew.shown.lock().unwrap());
        assert!(seen.always_since("two"), "{:?}", seen.shown.lock().unwrap());
        etcd_road.send_replace(Road::To(control.etcd_port()));
        anew.until("two").await;
        assert!(anew.never_without("two"), "{:?}", anew.shown.lock().unwrap());
        create_pod(&control, "three");
        seen.until("three").await;
        assert!(seen.always_since("two"), "{:?}", seen.shown.lock().unwrap());
        drop(anew);

        // It is stopped, and requests are sent before it continues.
        way.send_replace(Road::To(control.port()));
        create_pod(&control, "four");
        seen.until("four").await;
        let stopped = Stopped::new(server.pid());
        create_pod(&control, "five");
        seen.until("five").await;
        way.send_replace(Road::To(second));
        let mut anew = Seen::follow(&control, address, &tasks).await;
        tokio::time::sleep(Duration::from_secs(2)).await;
        drop(stopped);
        anew.until("five").await;
        assert!(anew.never_without("five"), "{:?}", anew.shown.lock().unwrap());
        create_pod(&control, "six");
        seen.until("six").await;
        for name in ["one", "two", "three", "four", "five"] {
            assert!(seen.always_since(name), "{name}: {:?}", seen.shown.lock().unwrap());
        }
    });
}
