//! What matters, spelled out.

use super::{Ask, EVERYBODY, Who};

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
    "/exec/aa1/eph/long",
    "/exec/aa1/eph/short",
    "/run/aa1/eph/long",
    "/attach/aa1/eph/long",
    "/attach/aa1/eph/short",
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
    "/containerLogs/aa1/eph/long",
    "/containerLogs/aa1/eph/short",
    "/containerLogs/kube-system/still-node1/c",
    "/containerLogs/kube-system/still/c",
    "/containerLogs/aa1/once/c",
    "/containerLogs/aa1/talk/c",
    "/containerLogs/aa1/leave/c",
    "/containerLogs/aa1/hold/c",
    "/containerLogs/aa1/start/c",
    "/containerLogs/aa1/conf/c",
    "/containerLogs/aa1/deny/c",
    "/exec/aa1/leave/c",
    "/attach/aa1/leave/c",
    "/portForward/aa1/leave",
    "/portForward/aa1/deny",
    "/exec/kube-system/still-node1/<uid-still>/c",
    "/exec/kube-system/still-node1/<own-still>/c",
    "/attach/kube-system/still-node1/<uid-still>/c",
    "/attach/kube-system/still-node1/<own-still>/c",
    "/run/kube-system/still-node1/<uid-still>/c",
    "/portForward/kube-system/still-node1/<uid-still>",
    "/portForward/kube-system/still-node1/<own-still>",
    "/checkpoint",
    "/checkpoint/",
    "/checkpoint/aa1/none/c",
    "/checkpoint/aa1/run/none",
    "/checkpoint/aa1/done/c",
    "/checkpoint/aa1/eph/short",
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

pub(super) const METHODS: [&str; 9] =
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
        get(&format!("/containerLogs/aa1/once/c?{query}"));
        get(&format!("/containerLogs/aa1/talk/c?{query}"));
    }
    for pod in ["done", "start", "deny", "conf", "hold", "pull"] {
        for query in ["follow=true", "follow=1&tailLines=1", "follow=true&previous=true"] {
            get(&format!("/containerLogs/aa1/{pod}/c?{query}"));
        }
    }
    for limit in [1, 5, 16, 1000, 16_383, 16_384, 16_385, 39_999, 40_001, 60_000, 1_000_000] {
        get(&format!("/containerLogs/aa1/talk/c?limitBytes={limit}"));
        get(&format!("/containerLogs/aa1/talk/c?limitBytes={limit}&tailLines=4"));
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

pub(super) const LOG_QUERIES: &[&str] = &[
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

pub(super) const STREAM_QUERIES: &[&str] = &[
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

pub(super) const ACCEPTS: &[&str] = &[
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
    "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=compact-text",
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
            let mut old = spdy.clone();
            old.version = "HTTP/1.0";
            asks.push(old.clone());
            asks.push(old.with("Host", ""));
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
            let mut old = socket.clone().with("Sec-WebSocket-Protocol", "v5.channel.k8s.io");
            old.version = "HTTP/1.0";
            asks.push(old);
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
