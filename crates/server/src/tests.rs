//! Every route of the table over a real connection, on a node without pods and with everything
//! enabled.

use crate::auth::{AuthConfig, Guard};
use crate::health_metrics::HealthMetrics;
use crate::listen;
use crate::request_metrics::RequestMetrics;
use crate::route::Switches;
use crate::serve::{Counts, ServerDeps, Service};
use api::stats::Summary;
use async_trait::async_trait;
use ports::{
    KillRequest, Pods, PodsSnapshot, Roots, Stats, StatsError, StatsScope, StorageLayout, Tasks,
};
use std::net::SocketAddr;
use std::sync::Arc;
use telemetry::log::{LogConfig, LogHandle, LogLayer, Sinks, WallClock};
use telemetry::metrics::Registry;
use testkit::fake_cri::FakeCri;
use testkit::paused_clock::PausedClock;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

#[derive(Debug)]
struct NoPods;

#[async_trait]
impl Pods for NoPods {
    fn watch(&self) -> watch::Receiver<PodsSnapshot> {
        watch::channel(PodsSnapshot::default()).1
    }

    async fn kill(&self, _: &api::ids::PodUid, _: KillRequest) -> Result<(), String> {
        Ok(())
    }
}

#[derive(Debug)]
struct NoUsage;

#[async_trait]
impl Stats for NoUsage {
    async fn summary(&self, _: StatsScope) -> Result<Arc<Summary>, StatsError> {
        Ok(Arc::default())
    }

    async fn layout(&self) -> Result<StorageLayout, StatsError> {
        Ok(StorageLayout::One)
    }

    async fn resource_metrics(&self) -> String {
        String::new()
    }

    async fn container_metrics(&self) -> ports::Pieces {
        Box::new(std::iter::empty())
    }
}

pub(crate) const ALL: Switches = Switches {
    debugging: true,
    system_logs: true,
    profiling: true,
    debug_flags: true,
    checkpoint: true,
    flagz: true,
    statusz: true,
    log_query: false,
    split_log_streams: false,
    translate_websockets: true,
};

fn logs() -> LogHandle {
    let config = LogConfig::default();
    let clock: Arc<WallClock> = Arc::new(|| jiff::Timestamp::UNIX_EPOCH);
    LogLayer::new(&config, clock, Sinks::standard(&config)).handle()
}

/// The service of a node without pods; `guard` as on the secure port, `None` as on the read-only
/// one.
pub(crate) fn service(switches: Switches, guard: Option<Guard>, tasks: &Tasks) -> Arc<Service> {
    let metrics = Registry::new();
    let clock = Arc::new(PausedClock::new());
    let health = Arc::new(HealthMetrics::new(0));
    let counts = Counts { health: Arc::clone(&health), requests: RequestMetrics::new(&metrics) };
    let deps = ServerDeps {
        pods: Arc::new(NoPods),
        runtime: FakeCri::new(Arc::<PausedClock>::clone(&clock)).client(),
        stats: Arc::new(NoUsage),
        metrics,
        probe_metrics: Registry::new(),
        configz: "{}".to_owned(),
        version: "v1.36.4".to_owned(),
        flags: [("v", "2".to_owned())].into(),
        logs: logs(),
        roots: Roots {
            container_logs: std::env::temp_dir().join("containers"),
            ..Roots::default()
        },
        checks: Vec::new(),
        health,
        started: 0,
        clock,
        tasks: tasks.clone(),
        checkpoints: crate::CheckpointQuota::default(),
        sessions: crate::Sessions::default(),
    };
    Arc::new(Service {
        switches,
        guard: guard.map(Arc::new),
        deps: Arc::new(deps),
        counts: Arc::new(counts),
    })
}

/// A listener on a free port.
async fn serve(switches: Switches, guard: Option<Guard>, tasks: &Tasks) -> SocketAddr {
    let service = service(switches, guard, tasks);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tasks.spawn("test", ports::OnExit::Fine, listen::run(listener, None, service, tasks.clone()));
    address
}

fn guard(anonymous: bool) -> Guard {
    let config = AuthConfig {
        node_name: "n".into(),
        anonymous,
        token_cache: None,
        access_cache: None,
        strict_streaming: false,
    };
    Guard::new(config, None, None, crate::auth::AuthMetrics::new(&Registry::new()))
}

/// Status and complete response of one request.
async fn ask(address: SocketAddr, method: &str, path: &str, headers: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nhost: n\r\nconnection: close\r\ncontent-length: 0\r\n{headers}\r\n"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    let text = String::from_utf8_lossy(&answer).into_owned();
    let status = text.split(' ').nth(1).and_then(|s| s.parse().ok());
    (status.unwrap_or_else(|| panic!("{method} {path}: {text}")), text)
}

/// Server, method, path and expected result of each row.
fn table() -> Vec<(String, String, String, String)> {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/parity/routes.tsv");
    let text = sys::fs::read_to_string(file).unwrap();
    let rows = text.lines().skip(1).map(|line| {
        let mut cells = line.split('\t').map(str::to_owned);
        let mut cell = || cells.next().unwrap_or_default();
        (cell(), cell(), cell(), cell())
    });
    rows.collect()
}

fn concrete(template: &str) -> String {
    [
        ("{podNamespace}", "default"),
        ("{podID}", "none"),
        ("{uid}", "u"),
        ("{containerName}", "c"),
        ("{logpath:*}", "no/such/file"),
        ("{subpath:*}", "heap"),
    ]
    .iter()
    .fold(template.to_owned(), |path, (name, value)| path.replace(name, value))
}

/// The status that a node without pods responds with.
fn expected(path: &str, method: &str) -> u16 {
    match path {
        p if p.starts_with("/exec/") || p.starts_with("/attach/") => 400,
        p if ["/run/", "/portForward/", "/containerLogs/", "/checkpoint/"]
            .iter()
            .any(|tree| p.starts_with(tree)) =>
        {
            404
        }
        "/logs/no/such/file" | "/debug/pprof/" => 404,
        "/debug/pprof/profile" | "/debug/pprof/trace" | "/debug/pprof/heap" => 501,
        "/debug/flags/v" if method == "PUT" => 400,
        "/debug/flags/v" => 406,
        _ => 200,
    }
}

fn methods(cell: &str) -> Vec<&str> {
    match cell {
        "any" => vec!["GET", "POST", "PUT", "DELETE", "PATCH"],
        "any but DELETE" => vec!["GET", "POST", "PUT", "PATCH"],
        "any but PUT" => vec!["GET", "POST", "DELETE", "PATCH"],
        one => vec![one],
    }
}

#[tokio::test]
async fn every_route_of_the_secure_port_answers_as_the_table_says() {
    let tasks = Tasks::new();
    let open = serve(ALL, Some(guard(true)), &tasks).await;
    let closed = serve(ALL, Some(guard(false)), &tasks).await;
    let mut seen = 0;
    for (server, method, path, _) in table() {
        if server != "kubelet-https:10250" || !path.starts_with('/') {
            continue;
        }
        let path = concrete(&path);
        for method in methods(&method) {
            let (status, text) = ask(open, method, &path, "").await;
            assert_eq!(status, expected(&path, method), "{method} {path}: {text}");
            let (status, text) = ask(closed, method, &path, "").await;
            assert_eq!(status, 401, "{method} {path}: {text}");
            assert!(text.ends_with("Unauthorized"), "{text}");
            seen += 1;
        }
    }
    assert!(seen > 60, "{seen} requests");
    for path in ["/", "/livez", "/spec/", "/healthz/x"] {
        assert_eq!(ask(closed, "GET", path, "").await.0, 404, "{path}: before authentication");
    }
    tasks.shutdown().await;
}

#[tokio::test]
async fn every_route_of_the_read_only_port_answers_as_the_table_says() {
    let tasks = Tasks::new();
    let switches = Switches { debugging: false, ..ALL };
    let address = serve(switches, None, &tasks).await;
    let mut seen = 0;
    for (server, method, path, result) in table() {
        if server != "read-only-http:10255" || !path.starts_with('/') {
            continue;
        }
        let want = result.get(..3).and_then(|s| s.parse().ok()).unwrap_or(200);
        for method in methods(&method) {
            let (status, text) = ask(address, method, &path, "").await;
            assert_eq!(status, want, "{method} {path}: {text}");
            seen += 1;
        }
    }
    assert!(seen > 60, "{seen} requests");
    tasks.shutdown().await;
}

#[tokio::test]
async fn wrong_methods_and_unacceptable_kinds_are_refused_in_words() {
    let tasks = Tasks::new();
    let address = serve(ALL, Some(guard(true)), &tasks).await;
    for path in ["/pods", "/stats/summary", "/run/n/p/c", "/logs/", "/checkpoint/n/p/c"] {
        let (status, text) = ask(address, "PATCH", path, "").await;
        assert_eq!(status, 405, "{path}");
        assert!(text.contains("\r\nAllow: "), "{path}: {text}");
        assert!(text.ends_with("405: Method Not Allowed"), "{path}: {text}");
    }
    assert_eq!(ask(address, "HEAD", "/pods", "").await.0, 405);
    for path in ["/pods", "/stats/summary", "/runningpods/"] {
        let (status, text) = ask(address, "GET", path, "accept: text/html\r\n").await;
        assert_eq!(status, 406, "{path}: {text}");
    }
    tasks.shutdown().await;
}

#[tokio::test]
async fn a_connection_ends_with_an_expectation_that_nobody_meets() {
    let tasks = Tasks::new();
    let address = serve(ALL, Some(guard(true)), &tasks).await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: n\r\nexpect: x\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    let read = stream.read_to_string(&mut answer);
    tokio::time::timeout(std::time::Duration::from_secs(20), read).await.unwrap().unwrap();
    assert!(answer.starts_with("HTTP/1.1 417 Expectation Failed\r\n"), "{answer}");
    assert!(answer.contains("Connection: close\r\n"), "{answer}");
    tasks.shutdown().await;
}

#[tokio::test]
async fn more_headers_than_anybody_reads_are_no_fault() {
    let tasks = Tasks::new();
    let address = serve(ALL, Some(guard(true)), &tasks).await;
    for count in [990, 1100, 20_000] {
        let (status, text) = ask(address, "GET", "/healthz", &"X-A: b\r\n".repeat(count)).await;
        assert_eq!(status, 200, "{count}: {text}");
    }
    tasks.shutdown().await;
}

/// The status of every response on a connection that these bytes are sent on.
async fn statuses(address: SocketAddr, sent: &str) -> Vec<u16> {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(sent.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    let text = String::from_utf8_lossy(&answer).into_owned();
    let lines = text.split("HTTP/1.1 ").skip(1);
    lines.map(|rest| rest.get(..3).and_then(|code| code.parse().ok()).unwrap()).collect()
}

// A body that one parser reads as a request and the other does not.
#[tokio::test]
async fn no_request_is_hidden_in_a_body() {
    let tasks = Tasks::new();
    let address = serve(ALL, Some(guard(true)), &tasks).await;
    let hidden = "GET /no/such/path HTTP/1.1\r\nHost: a\r\n\r\n";
    let last = "GET /healthz HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    let post = "POST /healthz HTTP/1.1\r\nHost: a\r\n";
    let chunked = "Transfer-Encoding: chunked\r\n\r\n";
    let size = hidden.len();
    let body = format!("{size:x}\r\n{hidden}\r\n0\r\n\r\n");
    for (sent, want) in [
        (format!("{post}{chunked}{body}{last}"), &[200, 200][..]),
        // More headers than hyper accepts: those that delimit a body are not dropped.
        (format!("{post}{}{chunked}{body}{last}", "Accept: a/b\r\n".repeat(1500)), &[200, 200]),
        (format!("{post}Content-Length: 3\r\n{chunked}{body}{last}"), &[200, 200]),
        (
            format!("{post}Content-Length: {size}\r\nContent-Length: {size}\r\n\r\n{hidden}{last}"),
            &[200, 200],
        ),
        // Nothing after a length of 65 zeros can be parsed.
        (format!("{post}{chunked}{}{body}{last}", "0".repeat(65)), &[200]),
        (format!("{post}{chunked}{size:x};\n{hidden}\r\n0\r\n\r\n{last}"), &[200]),
        // Nor anything after a malformed request, also after a rejected upgrade.
        (
            format!(
                "{post}Connection: Upgrade\r\nUpgrade: x\r\n\r\nGET /%zz HTTP/1.1\r\nHost: a\r\n\r\n{last}"
            ),
            &[200, 400],
        ),
    ] {
        let codes = statuses(address, &sent).await;
        assert_eq!(codes, want, "{sent:.300}");
    }
    tasks.shutdown().await;
}

#[tokio::test]
async fn metrics_pages_carry_their_headers_and_count_requests() {
    let tasks = Tasks::new();
    let address = serve(ALL, Some(guard(true)), &tasks).await;
    for path in ["/nonsense", "/exec/a/b/c", "/healthz"] {
        ask(address, "GET", path, "").await;
    }
    let (_, text) = ask(address, "GET", "/metrics", "").await;
    assert!(text.contains("Process-Start-Time-Unix: 0\r\n"), "{text}");
    for line in [
        "long_running=\"true\",method=\"GET\",path=\"exec\",server_type=\"readwrite\"} 1",
        "long_running=\"false\",method=\"GET\",path=\"other\",server_type=\"readwrite\"} 1",
    ] {
        assert!(text.contains(&format!("kubelet_http_requests_total{{{line}")), "{text}");
    }
    let (_, packed) = ask(address, "GET", "/metrics", "accept-encoding: gzip\r\n").await;
    assert!(packed.contains("Content-Encoding: gzip\r\n"), "{packed}");
    let (_, slis) = ask(address, "GET", "/metrics/slis", "").await;
    assert!(slis.contains("kubernetes_healthcheck{name=\"ping\",type=\"healthz\"} 1"), "{slis}");
    tasks.shutdown().await;
}
