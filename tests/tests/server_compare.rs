//! The node's API, asked of the Go kubelet and of ours: status, headers and body must be the same.
//!
//! `make server-compare` asks thousands (`ASKS=n`, `SEED=n`); within `make test` it is fewer. With
//! `CHANCE=1` only those by chance are asked, for a second seed; `REPORT=file` keeps what differs and
//! `PAGES=folder` whole pages.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test on the real machine")]

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::Context as _;
use serde_json::json;
use testkit::real::run;
use tests::answers::difference;
use tests::ask::{Ask, RandomAsks, Who, access, encode, odd, table};
use tests::exposition;
use tests::node_pair::NodePair;
use tests::wire::{Answer, Wire, connect_http2, http2};

/// Families of the Go runtime and of its HTTP client's cache.
const FAMILIES: &[&str] = &["go_", "rest_client_transport_"];

/// Keeps whole pages in the folder `PAGES`, for people to compare.
fn keep_pages(node_pair: &NodePair, callers: &Callers) {
    let Some(folder) = std::env::var_os("PAGES") else { return };
    let metrics = ["", "/cadvisor", "/resource", "/probes", "/slis"];
    let others = ["/pods", "/runningpods/", "/configz", "/stats/summary", "/flagz", "/statusz"];
    for page in
        metrics.map(|page| format!("/metrics{page}")).iter().map(|page| &**page).chain(others)
    {
        for (twin, side) in [(&node_pair.go, "go"), (&node_pair.ours, "ours")] {
            let answer = callers.plain.send(twin.port(), &Ask::new("GET", page).bytes(), false);
            let file = format!("{}-{side}.txt", page.trim_matches('/').replace('/', "-"));
            let text = twin.common(&answer.unwrap().text());
            std::fs::write(std::path::Path::new(&folder).join(file), text).unwrap();
        }
    }
}

/// Every metrics page of ours is valid and has the families of the Go kubelet's.
fn compare_metrics(node_pair: &NodePair, callers: &Callers) -> Vec<String> {
    let mut found = Vec::new();
    for page in
        ["/metrics", "/metrics/cadvisor", "/metrics/resource", "/metrics/probes", "/metrics/slis"]
    {
        let ask = Ask::new("GET", page);
        let families = |port| {
            let answer = callers.plain.send(port, &ask.bytes(), false).unwrap();
            exposition::read(&answer.text())
        };
        let want = families(node_pair.go.port()).unwrap();
        match families(node_pair.ours.port()) {
            Err(error) => found.push(format!("{page}: {error:#}")),
            Ok(ours) => {
                let lacking = exposition::lacking(&want, &ours).into_iter();
                let meant = |name: &str| FAMILIES.iter().any(|family| name.starts_with(family));
                let lacking = lacking.filter(|(name, _)| !meant(name));
                found.extend(lacking.map(|(name, how)| format!("{page} {name}: {how}")));
            }
        }
    }
    found.extend(compare_values(node_pair, callers));
    found
}

/// Label values that do not depend on whose cgroup it is: what is there once, and what all share.
const VALUES: [(&str, &str, &[&str]); 9] = [
    ("/cadvisor", "container_memory_usage_bytes", &["container", "image", "namespace", "pod"]),
    ("/cadvisor", "container_network_receive_bytes_total", &["image", "interface", "pod"]),
    ("/cadvisor", "container_fs_limit_bytes", &["device"]),
    ("/cadvisor", "container_fs_reads_total", &["container", "device"]),
    ("/cadvisor", "container_ulimits_soft", &["container", "image", "pod", "ulimit"]),
    ("", "kubelet_http_requests_total", &["long_running", "method", "path", "server_type"]),
    ("", "kubelet_websocket_streaming_requests_total", &["subresource"]),
    ("", "kubernetes_feature_enabled", &["name", "stage"]),
    ("/slis", "kubernetes_healthcheck", &["name", "type"]),
];

/// What containers, pods and the machine are called on the page of containers. A crashing pod is in
/// another state every few seconds, and the machine's interfaces come and go with other tests.
fn compare_values(node_pair: &NodePair, callers: &Callers) -> Vec<String> {
    let values = |twin: &tests::node_pair::PairedNode, page: &str, family: &str, names: &[&str]| {
        let ask = Ask::new("GET", &format!("/metrics{page}")).bytes();
        let page = twin.common(&callers.plain.send(twin.port(), &ask, false).unwrap().text());
        let lines = page.lines().filter_map(|line| line.strip_prefix(family)?.strip_prefix('{'));
        let of = |line: &str, name: &str| {
            let (_, value) = line.split_once(&format!("{name}=\""))?;
            value.split('"').next().map(str::to_owned)
        };
        let all = lines.map(|line| names.iter().filter_map(|name| of(line, name)).collect());
        let steady = |values: &Vec<String>| {
            let own = |value: &String| value == "again" || value.contains("/rubelet/nodes/");
            // Root filesystems of containers and bridges of nodes of tests that run beside this one.
            let of_others =
                |v: &String| ["overlay_", "rbt", "veth"].iter().any(|b| v.starts_with(b));
            // The host's interfaces have no pod.
            let of_host = family.contains("network") && values.contains(&String::new());
            !of_host && !values.iter().any(|value| own(value) || of_others(value))
        };
        all.filter(steady).collect::<BTreeSet<Vec<String>>>()
    };
    let mut found = Vec::new();
    for (page, family, names) in VALUES {
        let (want, got) = (
            values(&node_pair.go, page, family, names),
            values(&node_pair.ours, page, family, names),
        );
        let lacking: Vec<_> = want.difference(&got).collect();
        let more: Vec<_> = got.difference(&want).collect();
        if !lacking.is_empty() || !more.is_empty() {
            found.push(format!("{family} lacks {lacking:?} and has {more:?}"));
        }
    }
    found
}

/// A time long before this test or long after it.
type Days = (&'static str, &'static str);

const NOW: Days = ("20200101000000Z", "20900101000000Z");
const PAST: Days = ("20200101000000Z", "20210101000000Z");
const FUTURE: Days = ("20900101000000Z", "20910101000000Z");
const BOSS: &str = "/O=system:masters/CN=boss";

/// Certificates that a cluster does not give out: name, subject, extensions, time.
const ODD_CERTIFICATES: [(&str, &str, &str, Days); 7] = [
    ("expired", BOSS, "extendedKeyUsage=clientAuth\n", PAST),
    ("future", BOSS, "extendedKeyUsage=clientAuth\n", FUTURE),
    ("server", BOSS, "extendedKeyUsage=serverAuth\n", NOW),
    ("version-1", BOSS, "", NOW),
    ("authority", BOSS, "basicConstraints=CA:TRUE\n", NOW),
    ("any-use", BOSS, "basicConstraints=CA:FALSE\n", NOW),
    (
        "groups",
        "/C=XX/O=a/O=system:masters/OU=unit/CN=many/CN=groups",
        "extendedKeyUsage=serverAuth,clientAuth\n",
        NOW,
    ),
];

struct Callers {
    plain: Wire,
    clear: Wire,
    certified: BTreeMap<&'static str, Wire>,
}

impl Callers {
    fn new(node_pair: &NodePair) -> Callers {
        let control = &node_pair.control;
        let mut certified = BTreeMap::new();
        for (name, subject) in
            [("admin", BOSS), ("nobody", "/CN=nobody"), ("nameless", "/O=system:masters")]
        {
            let (certificate, key) = control.client_certificate(name, subject).unwrap();
            certified.insert(name, Wire::with_certificate(&certificate, &key).unwrap());
        }
        for (name, subject, extensions, days) in ODD_CERTIFICATES {
            let (certificate, key) =
                control.odd_certificate(name, subject, extensions, days).unwrap();
            certified.insert(name, Wire::with_certificate(&certificate, &key).unwrap());
        }
        let folder = control.authority().with_file_name("foreign");
        std::fs::create_dir_all(&folder).unwrap();
        let path = |name: &str| folder.join(name).to_string_lossy().into_owned();
        run(
            "openssl",
            [
                "req",
                "-x509",
                "-nodes",
                "-newkey",
                "rsa:2048",
                "-subj",
                "/O=system:masters/CN=foreign",
                "-keyout",
                &path("key"),
                "-out",
                &path("crt"),
                "-addext",
                "extendedKeyUsage=clientAuth",
            ],
        )
        .unwrap();
        certified.insert(
            "foreign",
            Wire::with_certificate(&folder.join("crt"), &folder.join("key")).unwrap(),
        );
        Callers { plain: Wire::plain().unwrap(), clear: Wire::clear(), certified }
    }

    fn of(&self, who: Who) -> &Wire {
        match who {
            Who::AdminCertificate => &self.certified["admin"],
            Who::NobodyCertificate => &self.certified["nobody"],
            Who::NamelessCertificate => &self.certified["nameless"],
            Who::ExpiredCertificate => &self.certified["expired"],
            Who::FutureCertificate => &self.certified["future"],
            Who::ServerCertificate => &self.certified["server"],
            Who::Version1Certificate => &self.certified["version-1"],
            Who::AuthorityCertificate => &self.certified["authority"],
            Who::AnyUseCertificate => &self.certified["any-use"],
            Who::ManyGroupsCertificate => &self.certified["groups"],
            Who::ForeignCertificate | Who::ForeignCertificateAdminToken => {
                &self.certified["foreign"]
            }
            _ => &self.plain,
        }
    }
}

/// Which listener is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Listener {
    Secure,
    /// The secure port, behind another request on the same connection.
    Kept,
    Http2,
    /// The secure port, spoken to in the clear.
    Clear,
    ReadOnly,
    Health,
}

/// Asks both and says what is different.
fn compare(
    node_pair: &NodePair,
    callers: &Callers,
    ask: &Ask,
    listener: Listener,
) -> Option<String> {
    let send = |twin: &tests::node_pair::PairedNode| -> anyhow::Result<Answer> {
        let text = ask.text();
        let (wire, port) = match listener {
            Listener::Http2 => {
                let request = http2::request(ask, |text| twin.own(text)).unwrap();
                return callers.of(ask.who).send_http2(twin.port(), request);
            }
            Listener::Kept => {
                let first = Ask::new("GET", "/healthz").with("Connection", "keep-alive").bytes();
                let requests = [&*first, &*encode(&twin.own(&text))].map(<[u8]>::to_vec);
                let requests = requests.each_ref().map(Vec::as_slice);
                let answers = callers.of(ask.who).converse(twin.port(), &requests)?;
                return answers.into_iter().nth(1).context("there is no second answer");
            }
            Listener::Secure => (callers.of(ask.who), twin.port()),
            Listener::Clear => (&callers.clear, twin.port()),
            Listener::ReadOnly => (&callers.clear, twin.read_only),
            Listener::Health => (&callers.clear, twin.health()),
        };
        wire.send(port, &encode(&twin.own(&text)), ask.method == "HEAD")
    };
    match (send(&node_pair.go), send(&node_pair.ours)) {
        (Ok(go), Ok(ours)) => difference(ask, (&node_pair.go, &go), (&node_pair.ours, &ours)),
        (Err(_), Err(_)) => None,
        (Ok(go), Err(error)) => {
            Some(format!("{} {:?} has no answer: {error:#}", go.status, go.text()))
        }
        (Err(error), Ok(ours)) => {
            Some(format!("no answer ({error:#}) is {} {:?}", ours.status, ours.text()))
        }
    }
}

fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

/// The next one that nobody has taken.
fn turn<'a>(next: &AtomicUsize, asks: &'a [Ask]) -> Option<(usize, &'a Ask)> {
    let turn = next.fetch_add(1, Ordering::Relaxed);
    asks.get(turn).map(|ask| (turn, ask))
}

/// What was asked and what was different.
#[derive(Default)]
struct Report {
    text: String,
    asked: usize,
    differ: usize,
    kinds: BTreeMap<String, usize>,
}

impl Report {
    fn ask(&mut self, node_pair: &NodePair, callers: &Callers, asks: &[Ask], listener: Listener) {
        let next = AtomicUsize::new(0);
        let found = Mutex::new(BTreeMap::new());
        std::thread::scope(|scope| {
            for _ in 0..number("WORKERS", 3) {
                scope.spawn(|| {
                    while let Some((turn, ask)) = turn(&next, asks) {
                        if let Some(text) = compare(node_pair, callers, ask, listener) {
                            found.lock().unwrap().insert(turn, text);
                        }
                    }
                });
            }
        });
        self.asked += asks.len();
        for (turn, found) in found.into_inner().unwrap() {
            let ask = &asks[turn];
            self.differ += 1;
            let seen = self.kinds.entry(found.clone()).or_default();
            *seen += 1;
            if *seen <= 3 {
                let _ = writeln!(self.text, "{listener:?} {ask}\n    {found}");
            }
        }
        // Kept while a long run goes on.
        if let Some(file) = std::env::var_os("REPORT") {
            std::fs::write(file, &self.text).unwrap();
        }
    }
}

#[test]
fn both_kubelets_answer_alike() {
    let mut node_pair = NodePair::start(&json!({"volumeStatsAggPeriod": "1s"})).unwrap();
    let callers = Callers::new(&node_pair);
    let long = std::env::var_os("ASKS").is_some();
    let by_chance_alone = std::env::var_os("CHANCE").is_some();
    let few = |asks: Vec<Ask>, one_of: usize| -> Vec<Ask> {
        let most = if by_chance_alone { 0 } else { asks.len() };
        asks.into_iter().take(most).step_by(if long { 1 } else { one_of }).collect()
    };
    let mut report = Report::default();
    let mut asks = few(table(), 3);
    asks.extend(few(access(), 17));
    asks.extend(few(odd(), 17));
    let mut rng = RandomAsks::new(number("SEED", 1));
    let mut by_chance = |count: u64| -> Vec<Ask> { (0..count).map(|_| rng.ask()).collect() };
    asks.extend(by_chance(number("ASKS", 200)));
    report.ask(&node_pair, &callers, &asks, Listener::Secure);
    let clear = ["GET", "HEAD", "POST", "PUT", "OPTIONS", "PATCH", "DELETE", "GOT", "HEADER"];
    let clear = clear.map(|method| Ask::new(method, "/healthz"));
    report.ask(&node_pair, &callers, &clear, Listener::Clear);
    keep_pages(&node_pair, &callers);
    for found in compare_metrics(&node_pair, &callers) {
        report.differ += 1;
        let _ = writeln!(report.text, "{found}");
    }
    let mut kept = few(odd(), 13);
    kept.extend(by_chance(number("ASKS", 100) / 4));
    kept.retain(|ask| ask.method != "HEAD");
    report.ask(&node_pair, &callers, &kept, Listener::Kept);
    let mut read_only = few(access(), 23);
    read_only.extend(by_chance(number("ASKS", 100) / 5));
    report.ask(&node_pair, &callers, &read_only, Listener::ReadOnly);
    let mut health = few(access(), 47);
    health.extend(few(odd(), 47));
    health.extend(by_chance(number("ASKS", 100) / 5));
    report.ask(&node_pair, &callers, &health, Listener::Health);
    let mut queries = RandomAsks::new(number("SEED", 1));
    if long {
        for overlay in variants() {
            node_pair.restart(&overlay).unwrap();
            let _ = writeln!(report.text, "with {overlay}");
            let mut asks: Vec<Ask> = few(access(), 1).into_iter().step_by(3).collect();
            let logs = odd().into_iter().filter(|ask| ask.target.starts_with("/logs"));
            asks.extend(few(logs.collect(), 1));
            asks.extend(by_chance(number("ASKS", 0) / 5));
            if overlay["enableSystemLogQuery"] == true {
                asks.extend((0..number("ASKS", 0) / 10).map(|_| queries.log_query()));
            }
            report.ask(&node_pair, &callers, &asks, Listener::Secure);
        }
        node_pair.restart(&newer()).unwrap();
        for twin in [&node_pair.go, &node_pair.ours] {
            connect_http2(twin.port()).unwrap();
        }
        let mut asks = few(table(), 1);
        asks.extend(few(access(), 1));
        asks.extend(by_chance(number("ASKS", 0) / 4));
        asks.retain(|ask| http2::request(ask, str::to_owned).is_some());
        report.ask(&node_pair, &callers, &asks, Listener::Http2);
    }
    let Report { text, asked, differ, .. } = report;
    println!("{asked} requests, {differ} differences");
    assert!(differ == 0, "{differ} of {asked} answers differ:\n{text}");
}

/// A configuration, laid over the last of those, whose server speaks HTTP/2: one that asks for no
/// client certificates.
fn newer() -> serde_json::Value {
    json!({"enableDebuggingHandlers": true, "enableSystemLogHandler": true,
        "enableProfilingHandler": true, "enableDebugFlagsHandler": true,
        "authorization": {"mode": "Webhook"},
        "authentication": {"webhook": {"enabled": true}, "x509": {"clientCAFile": ""}}})
}

/// Configurations of which each is laid over the one before.
fn variants() -> [serde_json::Value; 3] {
    [
        json!({"enableSystemLogQuery": true,
            "featureGates": {"NodeLogQuery": true, "PodLogsQuerySplitStreams": true},
            "authentication": {"anonymous": {"enabled": false}}}),
        json!({"enableSystemLogHandler": false, "enableSystemLogQuery": false,
            "enableProfilingHandler": false, "enableDebugFlagsHandler": false,
            "authorization": {"mode": "AlwaysAllow"}}),
        json!({"enableDebuggingHandlers": false,
            "authentication": {"anonymous": {"enabled": true}, "webhook": {"enabled": false}}}),
    ]
}
