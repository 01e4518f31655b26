//! Requests to put to both kubelets: a table of what matters, and as many made by chance as wanted.

use std::fmt::Write as _;

/// Who asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Who {
    /// Nobody said.
    Anonymous,
    /// A token that nobody gave out.
    BadToken,
    /// A good token of somebody without rights.
    Nobody,
    /// A token that may read everything but the proxy.
    Reader,
    /// A token that may get and create on the proxy.
    Streamer,
    /// The administrator's token.
    Admin,
    /// The administrator's client certificate.
    AdminCertificate,
    /// A good client certificate of somebody without rights.
    NobodyCertificate,
    /// A certificate of another authority.
    ForeignCertificate,
    /// A certificate of another authority, and the administrator's token.
    ForeignCertificateAdminToken,
    /// A good certificate without a name.
    NamelessCertificate,
}

/// Everybody.
pub const EVERYBODY: [Who; 11] = [
    Who::Anonymous,
    Who::BadToken,
    Who::Nobody,
    Who::Reader,
    Who::Streamer,
    Who::Admin,
    Who::AdminCertificate,
    Who::NobodyCertificate,
    Who::ForeignCertificate,
    Who::ForeignCertificateAdminToken,
    Who::NamelessCertificate,
];

impl Who {
    /// The bearer token.
    #[must_use]
    pub fn token(self) -> Option<&'static str> {
        match self {
            Who::BadToken => Some("nonsense"),
            Who::Nobody => Some("token-of-nobody"),
            Who::Reader => Some("token-of-reader"),
            Who::Streamer => Some("token-of-streamer"),
            Who::Admin | Who::ForeignCertificateAdminToken => Some("admin-token"),
            _ => None,
        }
    }
}

/// One request, in common names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ask {
    /// Who asks.
    pub who: Who,
    /// The method.
    pub method: String,
    /// Path and query.
    pub target: String,
    /// `HTTP/1.1` or `HTTP/1.0`.
    pub version: &'static str,
    /// More headers.
    pub headers: Vec<(String, String)>,
    /// The body; sent with its length.
    pub body: Option<String>,
}

impl Ask {
    /// The administrator's question.
    #[must_use]
    pub fn new(method: &str, target: &str) -> Ask {
        Ask {
            who: Who::Admin,
            method: method.to_owned(),
            target: target.to_owned(),
            version: "HTTP/1.1",
            headers: Vec::new(),
            body: None,
        }
    }

    /// By somebody else.
    #[must_use]
    pub fn by(mut self, who: Who) -> Ask {
        self.who = who;
        self
    }

    /// With a header.
    #[must_use]
    pub fn with(mut self, name: &str, value: &str) -> Ask {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// With a body.
    #[must_use]
    pub fn body(mut self, body: &str) -> Ask {
        self.body = Some(body.to_owned());
        self
    }

    /// As it goes over the wire.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        let mut text = format!("{} {} {}\r\n", self.method, self.target, self.version);
        let has = |name: &str| self.headers.iter().any(|(n, _)| n.eq_ignore_ascii_case(name));
        if !has("host") && self.version == "HTTP/1.1" {
            text.push_str("Host: node:10250\r\n");
        }
        if !has("connection") && self.version == "HTTP/1.1" {
            text.push_str("Connection: close\r\n");
        }
        if let Some(token) = self.who.token().filter(|_| !has("authorization")) {
            let _ = write!(text, "Authorization: Bearer {token}\r\n");
        }
        for (name, value) in self.headers.iter().filter(|(name, _)| name != "no-host") {
            let _ = write!(text, "{name}: {value}\r\n");
        }
        if let Some(body) = &self.body {
            let _ = write!(text, "Content-Length: {}\r\n", body.len());
        }
        text.push_str("\r\n");
        text.push_str(self.body.as_deref().unwrap_or_default());
        text.into_bytes()
    }
}

impl std::fmt::Display for Ask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}: {} {} {}", self.who, self.method, self.target, self.version)?;
        for (name, value) in &self.headers {
            write!(f, " [{name}: {value}]")?;
        }
        if let Some(body) = &self.body {
            write!(f, " body {body:?}")?;
        }
        Ok(())
    }
}

/// Paths of every route and their neighbours.
pub const PATHS: &[&str] = &[
    "/",
    "/healthz",
    "/healthz/",
    "/healthz/ping",
    "/healthz/log",
    "/healthz/syncloop",
    "/healthz/device-plugin",
    "/healthz/x",
    "/livez",
    "/readyz",
    "/pods",
    "/pods/",
    "/pods/x",
    "/runningpods",
    "/runningpods/",
    "/runningpods/x",
    "/stats",
    "/stats/",
    "/stats/summary",
    "/stats/summary/",
    "/stats/container",
    "/stats/aa1/run/c",
    "/spec/",
    "/metrics",
    "/metrics/",
    "/metrics/cadvisor",
    "/metrics/resource",
    "/metrics/probes",
    "/metrics/slis",
    "/metrics/x",
    "/configz",
    "/configz/",
    "/flagz",
    "/flagz/",
    "/statusz",
    "/statusz/x",
    "/run",
    "/run/",
    "/run/aa1/run/c",
    "/run/aa1/run/<uid-run>/c",
    "/run/aa1/run/other/c",
    "/run/aa1/none/c",
    "/run/aa1/run/none",
    "/exec/",
    "/exec/aa1/run",
    "/exec/aa1/run/c",
    "/exec/aa1/run/c/",
    "/exec/aa1/run/<uid-run>/c",
    "/exec/aa1/run/other/c",
    "/exec/aa1/none/c",
    "/exec/aa1/run/none",
    "/exec/aa1/done/c",
    "/exec/aa1/run/x/y/z",
    "/exec/kube-system/still-node1/c",
    "/attach/aa1/run/c",
    "/attach/aa1/term/c",
    "/attach/aa1/run/<uid-run>/c",
    "/attach/aa1/run/other/c",
    "/attach/aa1/none/c",
    "/attach/aa1/run/none",
    "/attach/aa1/done/c",
    "/portForward/",
    "/portForward/aa1",
    "/portForward/aa1/run",
    "/portForward/aa1/run/<uid-run>",
    "/portForward/aa1/run/other",
    "/portForward/aa1/none",
    "/portForward/aa1/done",
    "/containerLogs",
    "/containerLogs/",
    "/containerLogs/aa1/run",
    "/containerLogs/aa1/run/c",
    "/containerLogs/aa1/run/c/",
    "/containerLogs/aa1/run/c/x",
    "/containerLogs/aa1/run/quiet",
    "/containerLogs/aa1/run/none",
    "/containerLogs/aa1/none/c",
    "/containerLogs/none/run/c",
    "/containerLogs/aa1/done/c",
    "/containerLogs/aa1/again/c",
    "/containerLogs/aa1/pull/c",
    "/containerLogs/aa1/init/first",
    "/containerLogs/aa1/init/side",
    "/containerLogs/kube-system/still-node1/c",
    "/containerLogs/kube-system/still/c",
    "/checkpoint",
    "/checkpoint/",
    "/checkpoint/aa1/none/c",
    "/checkpoint/aa1/run/none",
    "/checkpoint/aa1/done/c",
    "/logs",
    "/logs/",
    "/logs/apt",
    "/logs/apt/",
    "/logs/dpkg.log",
    "/logs/dpkg.log/",
    "/logs/none",
    "/logs/apt/none/x",
    "/debug",
    "/debug/",
    "/debug/pprof",
    "/debug/pprof/",
    "/debug/pprof/none",
    "/debug/pprof/cmdline",
    "/debug/pprof/symbol",
    "/debug/flags/v",
    "/debug/flags/v/",
    "/debug/flags/x",
    "/debug/x",
    "/PODS",
    "/Pods",
    "/podsx",
    "/api/v1/pods",
    "/favicon.ico",
    "/cri/exec/x",
];

const METHODS: [&str; 9] =
    ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "TRACE", "BREW"];

/// Every route by every method and by everybody.
#[must_use]
pub fn access() -> Vec<Ask> {
    let mut asks = Vec::new();
    for path in PATHS {
        for method in METHODS {
            for who in [Who::Anonymous, Who::Admin] {
                asks.push(Ask::new(method, path).by(who));
            }
        }
        for who in EVERYBODY {
            asks.push(Ask::new("GET", path).by(who));
            asks.push(Ask::new("POST", path).by(who));
        }
    }
    asks
}

/// Questions whose details matter.
#[must_use]
pub fn table() -> Vec<Ask> {
    let mut asks = Vec::new();
    let mut get = |target: &str| asks.push(Ask::new("GET", target));
    for target in [
        "/healthz?verbose",
        "/healthz?verbose=",
        "/healthz?verbose=0",
        "/healthz?exclude=ping",
        "/healthz?exclude=ping&verbose",
        "/healthz?exclude=none&verbose",
        "/healthz?exclude=none&exclude=other&verbose",
        "/healthz?exclude=ping,log&verbose",
        "/healthz?exclude=%22x&verbose",
        "/healthz?exclude=&verbose",
        "/healthz/ping?verbose",
        "/healthz/ping?exclude=ping",
        "/stats/summary?only_cpu_and_memory=true",
        "/stats/summary?only_cpu_and_memory=false",
        "/stats/summary?only_cpu_and_memory=true&only_cpu_and_memory=true",
        "/stats/summary?only_cpu_and_memory=TRUE",
        "/stats/summary?%zz",
        "//pods",
        "/./pods",
        "/logs/../pods",
        "/logs/..%2fpods",
        "/%70ods",
        "/pods%2f",
        "/pods%00",
        "/pods?x=%zz",
        "/exec//aa1/run/c",
        "/exec/aa1%2Frun/c/d",
        "/exec/aa1/run/c%20d",
        "/exec/aa1/run/c;x",
        "/containerLogs/aa1/ru%6e/c",
        "/logs/apt/../dpkg.log",
        "/logs/%2e%2e/passwd",
        "/logs/..",
        "/logs/.",
        "/logs/apt//history.log",
        "/logs/apt?query=x",
        "/stats/../pods?x=y",
        "/stats?x=y",
        "/stats/?x=y",
        "/debug/pprof/%63mdline",
        "/debug/pprof/cmdline/",
        "/metrics?name[]=kubelet_node_name",
        "*",
        "pods",
        "http://node/pods",
        "http://node:10250/healthz?verbose",
    ] {
        get(target);
    }
    for query in LOG_QUERIES {
        get(&format!("/containerLogs/aa1/run/c?{query}"));
        get(&format!("/containerLogs/aa1/done/c?{query}"));
    }
    for query in STREAM_QUERIES {
        for path in
            ["/exec/aa1/run/c", "/attach/aa1/run/c", "/attach/aa1/term/c", "/exec/aa1/none/c"]
        {
            get(&format!("{path}?{query}"));
        }
    }
    for query in [
        "",
        "cmd=",
        "cmd=echo%20a",
        "cmd=echo++a",
        "cmd=false",
        "cmd=none",
        "cmd=echo&cmd=b",
        "command=echo",
    ] {
        asks.push(Ask::new("POST", &format!("/run/aa1/run/c?{query}")));
    }
    asks.push(
        Ask::new("POST", "/run/aa1/run/c")
            .with("Content-Type", "application/x-www-form-urlencoded")
            .body("cmd=echo%20form"),
    );
    for query in ["timeout=x", "timeout=1&timeout=y", "timeout=99999999999999999999", "timeout="] {
        asks.push(Ask::new("POST", &format!("/checkpoint/aa1/run/c?{query}")));
    }
    for accept in ACCEPTS {
        for path in [
            "/pods",
            "/runningpods/",
            "/stats/summary",
            "/healthz",
            "/metrics",
            "/configz",
            "/flagz",
            "/statusz",
            "/logs/",
            "/logs/dpkg.log",
            "/containerLogs/aa1/run/c",
            "/exec/aa1/run/c?output=1",
            "/debug/pprof/cmdline",
            "/metrics/slis",
            "/portForward/aa1/run",
        ] {
            asks.push(Ask::new("GET", path).with("Accept", accept));
        }
        for path in ["/checkpoint/aa1/none/c", "/run/aa1/run/c?cmd=true", "/stats/summary"] {
            asks.push(Ask::new("POST", path).with("Accept", accept));
        }
    }
    for kind in ["Flagz", "Statusz", "flagz"] {
        for version in ["v1beta1", "v1alpha1", "v1", ""] {
            for media in ["application/json", "application/yaml", "application/cbor", "text/plain"]
            {
                let accept = format!("{media};as={kind};g=config.k8s.io;v={version}");
                for path in ["/flagz", "/statusz"] {
                    asks.push(Ask::new("GET", path).with("Accept", &accept));
                }
            }
        }
    }
    for encoding in
        ["gzip", "gzip;q=0", "identity", "*", "deflate, gzip;q=0.5", "br", "zstd", "GZIP"]
    {
        for path in
            ["/metrics", "/metrics/slis", "/pods", "/healthz", "/logs/dpkg.log", "/stats/summary"]
        {
            asks.push(Ask::new("GET", path).with("Accept-Encoding", encoding));
        }
    }
    upgrades(&mut asks);
    bodies(&mut asks);
    for path in ["/pods", "/healthz", "/none", "/stats", "/logs/dpkg.log"] {
        let mut old = Ask::new("GET", path);
        old.version = "HTTP/1.0";
        asks.push(old.clone());
        asks.push(old.with("Host", "x"));
        asks.push(Ask::new("GET", path).with("Host", "bad host"));
        asks.push(Ask::new("GET", path).with("Host", ""));
        asks.push(Ask::new("GET", path).with("Expect", "100-continue"));
        asks.push(Ask::new("GET", path).with("Expect", "nonsense"));
    }
    for range in [
        "bytes=0-9",
        "bytes=5-",
        "bytes=-5",
        "bytes=0-9,20-29",
        "bytes=9999999999-",
        "bytes=9-2",
        "lines=1-2",
        "bytes=",
        "bytes=a-b",
        "bytes=0-0",
    ] {
        asks.push(Ask::new("GET", "/logs/dpkg.log").with("Range", range));
        asks.push(Ask::new("GET", "/pods").with("Range", range));
    }
    for (name, value) in [
        ("If-Modified-Since", "Fri, 01 Jan 2100 00:00:00 GMT"),
        ("If-Modified-Since", "Fri, 01 Jan 2010 00:00:00 GMT"),
        ("If-Unmodified-Since", "Fri, 01 Jan 2010 00:00:00 GMT"),
        ("If-None-Match", "*"),
        ("If-Match", "*"),
        ("If-Match", "\"x\""),
    ] {
        asks.push(Ask::new("GET", "/logs/dpkg.log").with(name, value));
    }
    for value in [
        "Bearer",
        "Bearer ",
        "Bearer  admin-token",
        "bearer admin-token",
        "BEARER admin-token",
        "Basic YWRtaW46YWRtaW4=",
        "Bearer admin-token extra",
        "Token admin-token",
        " Bearer admin-token",
        "Bearer\tadmin-token",
        "",
    ] {
        for path in ["/pods", "/configz", "/exec/aa1/run/c?output=1"] {
            asks.push(Ask::new("GET", path).by(Who::Anonymous).with("Authorization", value));
        }
    }
    asks.push(Ask::new("GET", "/pods").with("X-Forwarded-For", "1.2.3.4"));
    asks.push(Ask::new("GET", "/pods").with("Impersonate-User", "nobody"));
    asks
}

const LOG_QUERIES: &[&str] = &[
    "",
    "tailLines=1",
    "tailLines=0",
    "tailLines=-1",
    "tailLines=x",
    "tailLines=",
    "tailLines=1&tailLines=2",
    "tailLines=99999999999999999999",
    "tailLines=%2B1",
    "tailLines=1.0",
    "tailLines=0x10",
    "tailLines=1_000",
    "tailLines=9223372036854775807",
    "tail=1",
    "tail=all",
    "tail=x",
    "tail=",
    "tail=all&tailLines=1",
    "tail=1&tailLines=x",
    "tail=-1",
    "limitBytes=3",
    "limitBytes=0",
    "limitBytes=-1",
    "limitBytes=x",
    "limitBytes=",
    "limitBytes=1&tailLines=2",
    "sinceSeconds=1",
    "sinceSeconds=0",
    "sinceSeconds=-5",
    "sinceSeconds=x",
    "sinceSeconds=100000",
    "sinceSeconds=9223372036854775807",
    "sinceTime=2020-01-01T00:00:00Z",
    "sinceTime=2100-01-01T00:00:00Z",
    "sinceTime=x",
    "sinceTime=",
    "sinceTime=2020-01-01",
    "sinceTime=2020-01-01T00:00:00%2B01:00",
    "sinceTime=2020-01-01T00:00:00+01:00",
    "sinceTime=2020-01-01T00:00:00.5Z",
    "sinceTime=2020-01-01T00:00:00Z&sinceSeconds=5",
    "sinceTime=2020-02-30T00:00:00Z",
    "sinceTime=null",
    "sinceTime=%222020-01-01T00:00:00Z%22",
    "sinceTime=2020-01-01t00:00:00z",
    "sinceTime=2020-01-01T24:00:00Z",
    "sinceTime=2020-01-01T0:00:00Z",
    "timestamps=maybe&tailLines=0",
    "previous=true",
    "previous=0",
    "previous=false",
    "previous=FALSE",
    "previous=",
    "previous=1",
    "previous=x",
    "previous",
    "follow=false",
    "follow=0",
    "stream=All",
    "stream=Stdout",
    "stream=Stderr",
    "stream=x",
    "stream=",
    "stream=All&tailLines=1",
    "stream=Stdout&tailLines=1",
    "container=x",
    "insecureSkipTLSVerifyBackend=true",
    "unknown=1",
    "%zz=1",
    "tailLines=%zz",
    "tailLines=1;limitBytes=2",
    "tailLines=1&&limitBytes=2",
    "tailLines=%201",
    "TailLines=1",
    "taillines=1",
];

const STREAM_QUERIES: &[&str] = &[
    "",
    "command=ls",
    "output=1",
    "output=true",
    "input=1",
    "error=1",
    "tty=1",
    "tty=1&error=1",
    "tty=1&error=1&output=1",
    "input=0&output=0",
    "stdin=1",
    "stdout=1&stderr=1",
    "output=1&command=ls",
    "output=1&output=0",
    "output=0&output=1",
    "output=1&command=",
    "output=%31",
    "error=1&tty=true",
    "command=ls&output=1&tty=1&input=1&error=1",
];

const ACCEPTS: &[&str] = &[
    "",
    "*/*",
    "application/json",
    "application/*",
    "text/plain",
    "text/*",
    "text/html",
    "application/yaml",
    "application/xml",
    "application/json;q=0",
    "application/json;q=0.5, text/plain",
    "text/plain;q=0.5,*/*;q=0.1",
    "application/json, */*",
    "json",
    "*",
    "*/json",
    "APPLICATION/JSON",
    "application/json;charset=utf-8",
    " application/json ",
    "application/vnd.kubernetes.protobuf",
    "application/openmetrics-text; version=1.0.0",
    "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited",
    "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=text",
    "text/plain;version=0.0.4",
    "text/plain; version=0.0.4; escaping=allow-utf-8",
    "text/plain;version=1.0.0",
    ",",
    ";",
    "a/b;c",
    "text/plain, application/json;as=Flagz;g=config.k8s.io;v=v1beta1",
    "application/octet-stream",
    "image/*, text/html",
];

fn upgrades(asks: &mut Vec<Ask>) {
    let targets = [
        "/exec/aa1/run/c?output=1&command=true",
        "/exec/aa1/run/c",
        "/exec/aa1/none/c?output=1",
        "/exec/aa1/run/none?output=1",
        "/exec/aa1/done/c?output=1",
        "/attach/aa1/run/c?output=1",
        "/attach/aa1/run/none?output=1",
        "/attach/aa1/run/other/c?output=1",
        "/portForward/aa1/run",
        "/portForward/aa1/run?port=8080",
        "/portForward/aa1/run?port=8080,9090",
        "/portForward/aa1/run?port=8080&port=1",
        "/portForward/aa1/run?port=",
        "/portForward/aa1/run?port=x",
        "/portForward/aa1/run?port=0",
        "/portForward/aa1/run?port=-1",
        "/portForward/aa1/run?port=65536",
        "/portForward/aa1/run?port=8080,",
        "/portForward/aa1/run?port=%2B80",
        "/portForward/aa1/run?ports=80",
        "/portForward/aa1/none?port=80",
        "/portForward/aa1/done?port=80",
        "/portForward/aa1/run/other?port=80",
        "/pods",
        "/healthz",
    ];
    let key = ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ==");
    for target in targets {
        for method in ["GET", "POST"] {
            let base = Ask::new(method, target);
            asks.push(base.clone());
            asks.push(base.clone().with("Connection", "Upgrade"));
            asks.push(base.clone().with("Connection", "Upgrade").with("Upgrade", "nonsense"));
            asks.push(base.clone().with("Upgrade", "SPDY/3.1"));
            let spdy = base.clone().with("Connection", "Upgrade").with("Upgrade", "SPDY/3.1");
            asks.push(spdy.clone());
            asks.push(spdy.clone().with("X-Stream-Protocol-Version", "v4.channel.k8s.io"));
            asks.push(spdy.clone().with("X-Stream-Protocol-Version", "v9.channel.k8s.io"));
            asks.push(spdy.with("X-Stream-Protocol-Version", "portforward.k8s.io"));
            let socket =
                base.with("Connection", "keep-alive, Upgrade").with("Upgrade", "websocket");
            asks.push(socket.clone());
            let socket = socket.with(key.0, key.1);
            asks.push(socket.clone().with("Sec-WebSocket-Version", "8"));
            let socket = socket.with("Sec-WebSocket-Version", "13");
            asks.push(socket.clone());
            for protocol in [
                "channel.k8s.io",
                "base64.channel.k8s.io",
                "v4.channel.k8s.io",
                "v5.channel.k8s.io",
                "v5.channel.k8s.io, v4.channel.k8s.io",
                "v4.base64.channel.k8s.io",
                "SPDY/3.1+portforward.k8s.io",
                "nonsense",
                "base64url.bearer.authorization.k8s.io.YWRtaW4tdG9rZW4, v4.channel.k8s.io",
            ] {
                asks.push(socket.clone().with("Sec-WebSocket-Protocol", protocol));
            }
            for protocol in [
                "base64url.bearer.authorization.k8s.io.YWRtaW4tdG9rZW4, v4.channel.k8s.io",
                "base64url.bearer.authorization.k8s.io.YWRtaW4tdG9rZW4",
                "base64url.bearer.authorization.k8s.io.!!, v4.channel.k8s.io",
                "v4.channel.k8s.io",
            ] {
                let asked = socket.clone().with("Sec-WebSocket-Protocol", protocol);
                asks.push(asked.by(Who::Anonymous));
            }
        }
    }
}

fn bodies(asks: &mut Vec<Ask>) {
    for body in ["", "4", " 4 ", "4\n", "x", "-1", "99999999999", "4.0", "0x4", "+4"] {
        asks.push(Ask::new("PUT", "/debug/flags/v").body(body));
    }
    asks.push(Ask::new("PUT", "/debug/flags/v").body("4"));
    let form = "application/x-www-form-urlencoded";
    for body in ["only_cpu_and_memory=true", "x=y", "%zz", ""] {
        let ask = Ask::new("POST", "/stats/summary").body(body);
        asks.push(ask.clone());
        asks.push(ask.clone().with("Content-Type", form));
        asks.push(ask.with("Content-Type", "application/json"));
    }
    for path in ["/pods", "/healthz", "/exec/aa1/run/c?output=1", "/none", "/metrics"] {
        asks.push(Ask::new("POST", path).body("hello"));
        asks.push(Ask::new("GET", path).body("hello"));
        asks.push(Ask::new("POST", path).with("Content-Type", "nonsense/").body("hello"));
        asks.push(Ask::new("POST", path).with("Content-Encoding", "gzip").body("hello"));
    }
}

/// Numbers by chance, the same for the same seed.
#[derive(Debug, Clone)]
pub struct Chance(u64);

impl Chance {
    /// From a seed.
    #[must_use]
    pub fn new(seed: u64) -> Chance {
        Chance(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, most: usize) -> usize {
        usize::try_from(self.next() >> 16).unwrap_or(0) % most.max(1)
    }

    fn of<'a, T>(&mut self, list: &'a [T]) -> &'a T {
        &list[self.below(list.len())]
    }

    fn once_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    /// A request that may be odd in several ways at once.
    pub fn ask(&mut self) -> Ask {
        let mut target = (*self.of(PATHS)).to_owned();
        if self.once_in(4) {
            target = self.bend(&target);
        }
        if self.once_in(2) {
            let pools = [LOG_QUERIES, STREAM_QUERIES, ODD_QUERIES];
            let mut query = Vec::new();
            for _ in 0..=self.below(3) {
                let pool = *self.of(&pools);
                query.push(*self.of(pool));
            }
            target = format!("{target}?{}", query.join("&"));
        }
        let often = ["GET", "GET", "GET", "POST"];
        let method = if self.once_in(5) { *self.of(&METHODS) } else { *self.of(&often) };
        let mut ask = Ask::new(method, &target);
        if self.once_in(4) {
            ask.who = *self.of(&EVERYBODY);
        }
        if self.once_in(4) {
            let accept = *self.of(ACCEPTS);
            ask = ask.with("Accept", accept);
        }
        if self.once_in(5) {
            ask = ask.with("Connection", *self.of(&["Upgrade", "upgrade", "keep-alive, Upgrade"]));
            ask =
                ask.with("Upgrade", *self.of(&["SPDY/3.1", "websocket", "WebSocket", "h2c", "x"]));
            if self.once_in(2) {
                ask = ask.with("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ==");
                ask = ask.with("Sec-WebSocket-Version", "13");
            }
            if self.once_in(2) {
                let protocols = [
                    "v4.channel.k8s.io",
                    "v5.channel.k8s.io",
                    "portforward.k8s.io",
                    "channel.k8s.io",
                ];
                ask = ask.with("Sec-WebSocket-Protocol", *self.of(&protocols));
            }
        }
        if self.once_in(8) {
            ask =
                ask.with("Accept-Encoding", *self.of(&["gzip", "identity", "gzip;q=0", "deflate"]));
        }
        if ask.method != "GET" && ask.method != "HEAD" && self.once_in(3) {
            let bodies = ["", "4", "x=y", "only_cpu_and_memory=true", "{}"];
            ask = ask.body(*self.of(&bodies));
            if self.once_in(2) {
                let kinds =
                    ["application/x-www-form-urlencoded", "application/json", "text/plain", "x"];
                ask = ask.with("Content-Type", *self.of(&kinds));
            }
        }
        if self.once_in(30) {
            ask.version = "HTTP/1.0";
        }
        ask
    }

    /// The path in another spelling, or broken.
    fn bend(&mut self, path: &str) -> String {
        let at = self.below(path.len().max(1));
        let at = (0..=at).rev().find(|at| path.is_char_boundary(*at)).unwrap_or(0);
        let (head, tail) = path.split_at(at);
        match self.below(12) {
            0 => format!("{path}/"),
            1 => path.replacen('/', "//", 2),
            2 => format!("{path}/../{}", self.of(&["x", "", "c"])),
            3 => format!("/.{path}"),
            4 => {
                let byte = tail.bytes().next().unwrap_or(b'x');
                format!("{head}%{byte:02x}{}", tail.get(1..).unwrap_or_default())
            }
            5 => format!(
                "{head}%{}{tail}",
                self.of(&["zz", "", "2", "00", "2f", "2F", "25", "3f", "20"])
            ),
            6 => path.to_uppercase(),
            7 => format!("{path}/{}", self.of(&["x", ".", "..", "%2e", "a/b", " ".trim(), "é"])),
            8 => format!(
                "{head}{}{tail}",
                self.of(&[";", "+", "~", "'", "\"", "|", "\\", "{", "ü", "@", ":"])
            ),
            9 => head.to_owned(),
            10 => format!("{path}{}", self.of(&["x", "*", "%", "."])),
            _ => format!("/x{path}"),
        }
    }
}

const ODD_QUERIES: &[&str] = &[
    "verbose",
    "verbose=1",
    "exclude=ping",
    "exclude=log",
    "exclude=x",
    "only_cpu_and_memory=true",
    "cmd=echo%20a",
    "cmd=true",
    "port=80",
    "port=x",
    "timeout=1",
    "timeout=x",
    "query=x",
    "x=y",
    "=",
    "&",
    "a=b=c",
    "%",
    "%41=1",
    "+",
    "debug=1",
    "seconds=1",
    "x=%00",
    "x=ü",
];
