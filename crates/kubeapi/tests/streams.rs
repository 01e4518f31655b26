//! Servers that allow few streams per connection: watches never delay other requests.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use kubeapi::{ApiObjects, Connection, ConnectionConfig, Kubeconfig, ObjectsConfig, Strategy};
use ports::{NodeView, Objects, OnExit, SystemClock, Tasks};
use rustls_pki_types::PrivateKeyDer;
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use testkit::fake_api::FakeApi;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;

const STREAMS: u32 = 10;
const SECRETS: usize = 75;

fn acceptor() -> TlsAcceptor {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .unwrap();
    config.alpn_protocols = vec![b"h2".to_vec()];
    TlsAcceptor::from(Arc::new(config))
}

/// HTTP/2 in front of the fake, with few streams per connection.
struct Front {
    kubeconfig: Kubeconfig,
    accepted: Arc<AtomicUsize>,
    /// While it is set, connections are closed before they can be used.
    away: watch::Sender<bool>,
}

impl Front {
    async fn start(api: &FakeApi, tasks: &Tasks) -> Front {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = format!("https://{}", listener.local_addr().unwrap());
        let (acceptor, target) = (acceptor(), api.url());
        let (accepted, away) = (Arc::new(AtomicUsize::new(0)), watch::Sender::new(false));
        let client: Client<HttpConnector, Incoming> =
            Client::builder(TokioExecutor::new()).build_http();
        let (inner, count, gone) = (tasks.clone(), Arc::clone(&accepted), away.subscribe());
        tasks.spawn("front", OnExit::Fine, async move {
            while let Ok((stream, _)) = listener.accept().await {
                count.fetch_add(1, Ordering::Relaxed);
                let (acceptor, target, client) = (acceptor.clone(), target.clone(), client.clone());
                let mut gone = gone.clone();
                inner.spawn("connection", OnExit::Fine, async move {
                    if *gone.borrow_and_update() {
                        return;
                    }
                    let Ok(stream) = acceptor.accept(stream).await else { return };
                    let forward = service_fn(move |mut request: http::Request<Incoming>| {
                        let path = request.uri().path_and_query().unwrap().to_string();
                        *request.uri_mut() = format!("{target}{path}").parse().unwrap();
                        *request.version_mut() = http::Version::HTTP_11;
                        let client = client.clone();
                        async move { client.request(request).await }
                    });
                    let serving = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
                        .timer(TokioTimer::new())
                        .max_concurrent_streams(STREAMS)
                        .serve_connection(TokioIo::new(stream), forward);
                    tokio::select! {
                        // Ends with the client.
                        _ = serving => {}
                        // Cancel-safe: the connection breaks here.
                        _ = gone.changed() => {}
                    }
                });
            }
        });
        let config = json!({
            "current-context": "c",
            "clusters": [{"name": "c", "cluster": {
                "server": server, "insecure-skip-tls-verify": true}}],
            "users": [{"name": "u", "user": {"token": "t"}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        });
        let kubeconfig = Kubeconfig::parse(&config.to_string(), Path::new("/")).unwrap();
        Front { kubeconfig, accepted, away }
    }

    fn accepted(&self) -> usize {
        self.accepted.load(Ordering::Relaxed)
    }
}

fn secret(index: usize, value: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Secret", "type": value,
        "metadata": {"name": format!("s{index}"), "namespace": "ns"}})
}

fn user() -> Value {
    let volumes: Vec<Value> = (0..SECRETS)
        .map(|n| json!({"name": format!("v{n}"), "secret": {"secretName": format!("s{n}")}}))
        .collect();
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "ns"},
        "spec": {"nodeName": "node1", "volumes": volumes,
            "containers": [{"name": "c", "image": "i"}]}})
}

async fn objects(front: &Front, tasks: &Tasks) -> ApiObjects {
    let config = ConnectionConfig { rate: None, ..ConnectionConfig::default() };
    let connection = Connection::new(&front.kubeconfig, &config).await.unwrap();
    let config = ObjectsConfig {
        node_name: "node1".into(),
        strategy: Strategy::Watch,
        sync_frequency: Duration::from_secs(60),
    };
    let (_, node) = watch::channel(Arc::new(NodeView::default()));
    ApiObjects::start(&connection, &config, node, Arc::new(SystemClock), tasks)
}

async fn until_all_are(objects: &ApiObjects, value: &str) {
    for index in 0..SECRETS {
        loop {
            // A read waits a second for the first list.
            let read = objects.secret("ns", &format!("s{index}")).await;
            if read.is_ok_and(|secret| secret.type_.as_deref() == Some(value)) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

#[tokio::test]
async fn many_watches_have_as_many_connections_as_they_need() {
    let api = FakeApi::start().await.unwrap();
    let tasks = Tasks::new();
    let front = Front::start(&api, &tasks).await;
    for index in 0..SECRETS {
        api.put(secret(index, "one"));
    }
    api.put(json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "pv"}}));
    let objects = objects(&front, &tasks).await;
    objects.register_pod(&Arc::new(serde_json::from_value(api.put(user())).unwrap()));
    let patience = Duration::from_secs(30);
    tokio::time::timeout(patience, until_all_are(&objects, "one")).await.unwrap();
    // Secrets, services and runtime classes.
    let needed = (SECRETS + 2).div_ceil(usize::try_from(STREAMS).unwrap());
    assert!((needed..=needed + 1).contains(&front.accepted()), "{}", front.accepted());
    // Requests besides the watches are answered at once.
    let asked = async {
        for _ in 0..50 {
            objects.volume("pv").await.unwrap();
        }
    };
    tokio::time::timeout(patience, asked).await.unwrap();
    for index in 0..SECRETS {
        api.put(secret(index, "two"));
    }
    tokio::time::timeout(patience, until_all_are(&objects, "two")).await.unwrap();
    assert!(front.accepted() <= needed + 2, "{}", front.accepted());
}

#[tokio::test]
async fn a_server_that_is_away_is_not_dialled_by_everybody_at_once() {
    let api = FakeApi::start().await.unwrap();
    let tasks = Tasks::new();
    let front = Front::start(&api, &tasks).await;
    for index in 0..SECRETS {
        api.put(secret(index, "one"));
    }
    let objects = objects(&front, &tasks).await;
    objects.register_pod(&Arc::new(serde_json::from_value(api.put(user())).unwrap()));
    let patience = Duration::from_secs(60);
    tokio::time::timeout(patience, until_all_are(&objects, "one")).await.unwrap();
    let (before, since) = (front.accepted(), tokio::time::Instant::now());
    front.away.send_replace(true);
    // Until every watch must have failed, and started again after its back-off.
    while front.accepted() < before + 8 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let (dials, took) = (front.accepted() - before, since.elapsed());
    let most = took.as_millis() / 200 + 2;
    assert!(u128::try_from(dials).unwrap() <= most, "{dials} dials in {took:?}");
    front.away.send_replace(false);
    for index in 0..SECRETS {
        api.put(secret(index, "two"));
    }
    tokio::time::timeout(patience, until_all_are(&objects, "two")).await.unwrap();
    let needed = (SECRETS + 2).div_ceil(usize::try_from(STREAMS).unwrap());
    let connections = front.accepted() - before - dials;
    assert!(connections <= needed + 4, "{connections} connections for {needed}");
}
