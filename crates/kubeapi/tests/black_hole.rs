//! A connection that silently stops carrying data, in front of a real API server.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use kubeapi::{Connection, ConnectionConfig, Kubeconfig, LeaseApi, PodWatchEvent, watch_pods};
use ports::{OnExit, Tasks};
use serde_json::{Value, json};
use std::path::Path;
use std::time::Duration;
use testkit::real::{ControlPlane, ControlPlaneOptions};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// Forwards connections; `hole` makes the existing connections swallow all further data while they
/// stay open. Later connections are forwarded again.
async fn forward(listener: TcpListener, target: u16, hole: watch::Receiver<bool>, tasks: Tasks) {
    loop {
        let (mut client, _) = listener.accept().await.unwrap();
        let mut hole = hole.clone();
        hole.mark_unchanged();
        tasks.spawn("forward", OnExit::Fine, async move {
            let mut server = TcpStream::connect(("127.0.0.1", target)).await.unwrap();
            tokio::select! {
                // Ends with either side.
                _ = tokio::io::copy_bidirectional(&mut client, &mut server) => {}
                // From here on nothing is forwarded, with both sockets open.
                _ = hole.changed() => std::future::pending().await,
            }
        });
    }
}

fn kubeconfig(control: &ControlPlane, port: u16) -> Kubeconfig {
    let path = control.kubeconfig("node1");
    let mut text: Value = serde_json::from_slice(&sys::fs::read(&path).unwrap()).unwrap();
    text["clusters"][0]["cluster"]["server"] = format!("https://127.0.0.1:{port}").into();
    Kubeconfig::parse(&text.to_string(), path.parent().unwrap_or(Path::new("/"))).unwrap()
}

#[test]
fn lease_and_watch_are_back_within_thirty_seconds() {
    let control = ControlPlane::start(&ControlPlaneOptions::default()).unwrap();
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node1"}});
    control.create(&node).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let tasks = Tasks::new();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (dig, hole) = watch::channel(false);
        let forwarding = forward(listener, control.port(), hole, tasks.clone());
        tasks.spawn("listener", OnExit::Fine, forwarding);
        let config = ConnectionConfig::default();
        let connection = Connection::new(&kubeconfig(&control, port), &config).await.unwrap();
        let (out, mut pods) = watch::channel(None);
        let watching = watch_pods(connection.clone(), "node1".into(), out, tasks.token());
        tasks.spawn("pods", OnExit::Fine, watching);
        let lease = LeaseApi::new(&connection, "node1");
        lease.create(&json!({"metadata": {"name": "node1"}})).await.unwrap();
        let count = |n: usize| {
            move |e: &Option<PodWatchEvent>| e.as_ref().is_some_and(|e| e.pods.len() == n)
        };
        pods.wait_for(count(0)).await.unwrap();

        dig.send_replace(true);
        let started = tokio::time::Instant::now();
        let renewing = async {
            while lease.get().await.is_err() {}
            started.elapsed()
        };
        let pod = json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "p1", "namespace": "default"},
            "spec": {"nodeName": "node1", "containers": [{"name": "c", "image": "i"}]}});
        control.create(&pod).unwrap();
        let seeing = async {
            pods.wait_for(count(1)).await.unwrap();
            started.elapsed()
        };
        let both = futures::future::join(renewing, seeing);
        let (renewed, seen) = tokio::time::timeout(Duration::from_secs(60), both).await.unwrap();
        let limit = Duration::from_secs(30);
        assert!(renewed < limit && seen < limit, "lease {renewed:?}, watch {seen:?}");
    });
}
