//! Requests that no well-behaved client sends: broken request lines, strange headers, encoded
//! slashes, too much of everything.
//!
//! Left out because the answers are meant to differ: profiles of the Go runtime, and bodies of more
//! than a mebibyte where a number is expected.

use super::{Ask, PATHS, Who};

/// All of them.
#[must_use]
pub fn odd() -> Vec<Ask> {
    let mut asks = Vec::new();
    request_lines(&mut asks);
    headers(&mut asks);
    long_queries(&mut asks);
    spellings(&mut asks);
    bodies(&mut asks);
    forms(&mut asks);
    connections(&mut asks);
    profiles(&mut asks);
    node_logs(&mut asks);
    asks
}

fn raw(text: &str) -> Ask {
    let mut ask = Ask::new("GET", text.split(' ').nth(1).unwrap_or("/"));
    ask.method = text.split(' ').next().unwrap_or_default().to_owned();
    ask.raw = Some(text.to_owned());
    ask
}

fn request_lines(asks: &mut Vec<Ask>) {
    let rest = "Host: node:10250\r\nConnection: close\r\nAuthorization: Bearer admin-token\r\n\r\n";
    for line in [
        "GET /healthz",
        "GET /healthz ",
        "GET  /healthz HTTP/1.1",
        "GET /healthz  HTTP/1.1",
        " GET /healthz HTTP/1.1",
        "GET\t/healthz\tHTTP/1.1",
        "GET /healthz HTTP/1.2",
        "GET /healthz HTTP/2.0",
        "GET /healthz HTTP/0.9",
        "GET /healthz HTTP/1.1 x",
        "GET /healthz http/1.1",
        "GET /healthz HTTP/11",
        "GET /healthz HTTP/1.01",
        "GET /healthz HTTP/a.b",
        "GET /healthz FTP/1.1",
        "GET",
        "get /healthz HTTP/1.1",
        "Get /healthz HTTP/1.1",
        "G(T /healthz HTTP/1.1",
        "GÉT /healthz HTTP/1.1",
        "M-SEARCH /healthz HTTP/1.1",
        "GET /health z HTTP/1.1",
        "GET /healthz#x HTTP/1.1",
        "GET /healthz?a#b HTTP/1.1",
        "GET healthz HTTP/1.1",
        "GET ?x HTTP/1.1",
        "GET #x HTTP/1.1",
        "GET // HTTP/1.1",
        "GET //healthz HTTP/1.1",
        "GET ///healthz HTTP/1.1",
        "GET /\\healthz HTTP/1.1",
        "GET /healthz\u{7f} HTTP/1.1",
        "GET /healthz\u{1} HTTP/1.1",
        "GET /healthzü HTTP/1.1",
        "GET https://node:10250/healthz HTTP/1.1",
        "GET http:/healthz HTTP/1.1",
        "GET http:///healthz HTTP/1.1",
        "GET http://user:pw@node/healthz HTTP/1.1",
        "GET ftp://node/healthz HTTP/1.1",
        "GET http://[::1]/healthz HTTP/1.1",
        "GET http://[::1/healthz HTTP/1.1",
        "GET http://node HTTP/1.1",
        "GET https://node?x HTTP/1.1",
        "CONNECT node:10250 HTTP/1.1",
        "CONNECT node:x HTTP/1.1",
        "CONNECT node:10250/healthz HTTP/1.1",
        "CONNECT /healthz HTTP/1.1",
        "CONNECT //healthz HTTP/1.1",
        "CONNECT /stats HTTP/1.1",
        "CONNECT /pods HTTP/1.1",
        "CONNECT /metrics HTTP/1.0",
        "CONNECT * HTTP/1.1",
        "OPTIONS * HTTP/1.1",
        "OPTIONS /healthz HTTP/1.1",
        "HEAD * HTTP/1.1",
        "PRI * HTTP/2.0",
        "\r\nGET /healthz HTTP/1.1",
        "\r\n\r\nGET /healthz HTTP/1.1",
    ] {
        asks.push(raw(&format!("{line}\r\n{rest}")));
    }
    asks.push(raw(&format!("GET /healthz HTTP/1.1\n{}", rest.replace("\r\n", "\n"))));
    asks.push(raw(&format!("GET /healthz HTTP/1.1\r{rest}")));
    for length in [1_000, 10_000, 100_000, 900_000, 1_100_000] {
        asks.push(Ask::new("GET", &format!("/{}", "a".repeat(length))));
        asks.push(Ask::new("GET", &format!("/healthz?{}", "a".repeat(length))));
        asks.push(Ask::new("GET", "/healthz").with("X-Long", &"a".repeat(length)));
    }
    asks.push(Ask::new(&"A".repeat(1000), "/healthz"));
}

fn headers(asks: &mut Vec<Ask>) {
    let first =
        "GET /healthz HTTP/1.1\r\nConnection: close\r\nAuthorization: Bearer admin-token\r\n";
    for lines in [
        "",
        "Host: a\r\nHost: b",
        "Host: a\r\nHost: a",
        "Host : a",
        " Host: a",
        "Host: a\r\nX: y\r\n z",
        "Host: a\r\n : y",
        "Host: a\r\n: y",
        "Host: a\r\nX",
        "Host: a\r\nX Y: z",
        "Host: a\r\nX\u{1}: z",
        "Host: a\r\nX: \u{1}",
        "Host: a\r\nX: \u{0}",
        "Host: a\r\nX: \u{7f}",
        "Host: a\r\nX: ü",
        "Host: a\r\nÜ: x",
        "Host: a\r\nX:y",
        "Host: a\r\nX:",
        "Host: a\r\nX: y\rz",
        "Host: a/b",
        "Host: a b",
        "Host: a\"b",
        "Host: [::1]:10250",
        "Host: ü",
        "Host: a\r\nContent-Length: x",
        "Host: a\r\nContent-Length: -1",
        "Host: a\r\nContent-Length: +1",
        "Host: a\r\nContent-Length: 0",
        "Host: a\r\nContent-Length: 0\r\nContent-Length: 0",
        "Host: a\r\nContent-Length: 0\r\nContent-Length: 1",
        "Host: a\r\nContent-Length: 0, 0",
        "Host: a\r\nContent-Length:",
        "Host: a\r\nContent-Length: 99999999999999999999",
        "Host: a\r\nTransfer-Encoding: gzip",
        "Host: a\r\nTransfer-Encoding: identity",
        "Host: a\r\nTransfer-Encoding: chunked, gzip",
        "Host: a\r\nTransfer-Encoding: xchunked",
        "Host: a\r\nTransfer-Encoding:",
        "Host: a\r\nTrailer: X",
        "Host: a\r\nTE: trailers",
        "Host: a\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA",
        "Host: a\r\nExpect: 100-Continue",
        "Host: a\r\nKeep-Alive: 5",
        "Host: a\r\nProxy-Connection: keep-alive",
        "Host: a\r\nRange: bytes=0-1",
        "Host: a\r\nOrigin: http://evil",
        "Host: a\r\nX-HTTP-Method-Override: DELETE",
    ] {
        let lines = if lines.is_empty() { String::new() } else { format!("{lines}\r\n") };
        asks.push(raw(&format!("{first}{lines}\r\n")));
    }
    for count in [50, 99, 101, 150, 900, 1_100, 3_000, 20_000] {
        let mut ask = Ask::new("GET", "/healthz");
        for n in 0..count {
            ask = ask.with(&format!("X-{n}"), "y");
        }
        asks.push(ask);
    }
    for value in [
        "Bearer admin-token\r\nAuthorization: Bearer nonsense",
        "Bearer nonsense\r\nAuthorization: Bearer admin-token",
        "Bearer admin-tokenü",
        "Negotiate x",
        "Bearer a.b.c",
        "Bearer admin-token,",
    ] {
        for path in ["/pods", "/healthz", "/metrics", "/none"] {
            asks.push(Ask::new("GET", path).by(Who::Anonymous).with("Authorization", value));
        }
    }
}

/// More of a query than anybody reads.
fn long_queries(asks: &mut Vec<Ask>) {
    for count in [9_998, 9_999, 10_000, 20_000] {
        let many = "&".repeat(count);
        for (method, path) in [
            ("GET", "/healthz?verbose"),
            ("GET", "/stats/summary?only_cpu_and_memory=true"),
            ("GET", "/containerLogs/aa1/done/c?tailLines=x"),
            ("GET", "/exec/aa1/run/c?output=1"),
            ("POST", "/run/aa1/run/c?cmd=true"),
            ("GET", "/flagz?pretty=1"),
            ("GET", "/logs/?query=x"),
        ] {
            asks.push(Ask::new(method, &format!("{path}{many}")));
        }
        let form = "application/x-www-form-urlencoded";
        let ask = Ask::new("POST", "/stats/summary").with("Content-Type", form);
        asks.push(ask.body(&format!("only_cpu_and_memory=true{many}")));
    }
}

fn spellings(asks: &mut Vec<Ask>) {
    for path in PATHS {
        let inner = path.trim_start_matches('/');
        for target in [
            format!("{path}/"),
            format!("{path}//"),
            format!("/{path}"),
            format!("{path}?"),
            format!("{path}%2f"),
            format!("{path}%2F"),
            format!("{path}/%2e"),
            format!("{path}/%2e%2e"),
            format!("{path}/."),
            format!("{path}/.."),
            format!("{path}/../"),
            format!("{path}%00"),
            format!("{path}%"),
            format!("{path}%zz"),
            format!("{path}%20"),
            format!("{path};a=b"),
            format!("{path}+"),
            format!("{path}."),
            format!("/%2f{inner}"),
            format!("/x/../{inner}"),
            inner.replacen('/', "%2f", 1),
            path.replace("aa1", "aa1%2f"),
            path.replace("/c", "%2Fc"),
            path.replace("aa1", "AA1"),
            path.replace("aa1", "aa1%20"),
            path.replace("aa1", "%61a1"),
        ] {
            asks.push(Ask::new("GET", &target));
        }
    }
}

/// Forms where streams are asked for, and where they say nothing.
fn forms(asks: &mut Vec<Ask>) {
    const PARTS: &str = "multipart/form-data; boundary=b";
    let part = |name: &str, value: &str| {
        format!(
            "--b\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n--b--\r\n"
        )
    };
    for (kind, body) in [
        ("application/x-www-form-urlencoded", "output=1".to_owned()),
        ("application/x-www-form-urlencoded", "output=0&input=1".to_owned()),
        (PARTS, part("output", "1")),
        (PARTS, part("error", "1").replace("\r\n", "\n")),
        (PARTS, part("output", "1").replace("--b--", "")),
        (PARTS, part("cmd", "true")),
        ("multipart/mixed; boundary=b", part("output", "1")),
        ("text/plain", "output=1".to_owned()),
    ] {
        for path in ["/exec/aa1/run/c?command=true", "/attach/aa1/run/c", "/run/aa1/run/c"] {
            for method in ["POST", "GET", "PUT"] {
                let ask = Ask::new(method, path).with("Content-Type", kind).body(&body);
                let upgrade = ask.clone().with("Connection", "Upgrade").with("Upgrade", "SPDY/3.1");
                asks.extend([ask, upgrade]);
            }
        }
    }
}

fn bodies(asks: &mut Vec<Ask>) {
    let head = |method: &str, path: &str, lines: &str| {
        format!(
            "{method} {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\nAuthorization: Bearer admin-token\r\n{lines}\r\n\r\n"
        )
    };
    let form = "Content-Type: application/x-www-form-urlencoded";
    for (path, payload) in [
        ("/stats/summary", "only_cpu_and_memory=true"),
        ("/run/aa1/run/c", "cmd=echo%20chunked"),
        ("/debug/flags/v", "4"),
        ("/pods", "x"),
        ("/none", "x"),
        ("/exec/aa1/run/c?output=1", "x"),
    ] {
        for method in ["POST", "PUT", "GET", "DELETE", "PATCH"] {
            let size = payload.len();
            for (lines, sent) in [
                (
                    "Transfer-Encoding: chunked".to_owned(),
                    format!("{size:x}\r\n{payload}\r\n0\r\n\r\n"),
                ),
                (
                    "Transfer-Encoding: chunked".to_owned(),
                    format!("{size:x};ext=1\r\n{payload}\r\n0\r\nTrailer: x\r\n\r\n"),
                ),
                ("Transfer-Encoding: chunked".to_owned(), "zz\r\n".to_owned()),
                ("Transfer-Encoding: Chunked".to_owned(), "0\r\n\r\n".to_owned()),
                (
                    format!("Transfer-Encoding: chunked\r\nContent-Length: {size}"),
                    format!("{size:x}\r\n{payload}\r\n0\r\n\r\n"),
                ),
                (format!("Content-Length: {size}"), payload.to_owned()),
                (format!("Content-Length: {size}\r\nContent-Length: {size}"), payload.to_owned()),
            ] {
                let text = format!("{}{sent}", head(method, path, &format!("{lines}\r\n{form}")));
                asks.push(raw(&text));
            }
        }
    }
    for size in [10_000, 1_000_000] {
        let body = "a".repeat(size);
        asks.push(Ask::new("PUT", "/debug/flags/v").body(&body));
        asks.push(
            Ask::new("POST", "/stats/summary")
                .with("Content-Type", "application/x-www-form-urlencoded")
                .body(&body),
        );
        asks.push(Ask::new("POST", "/pods").body(&body));
    }
}

/// Connections that are kept.
fn connections(asks: &mut Vec<Ask>) {
    for path in ["/healthz", "/pods", "/none", "/stats", "/metrics", "/exec/aa1/run/c?output=1"] {
        for value in ["keep-alive", "Close", "close, x", "Upgrade", "TE", ""] {
            for version in ["HTTP/1.1", "HTTP/1.0"] {
                let mut ask = Ask::new("GET", path).with("Connection", value);
                ask.version = version;
                asks.push(ask);
            }
        }
        let mut ask = Ask::new("POST", path).with("Connection", "keep-alive").body("unread");
        asks.push(ask.clone());
        ask.who = Who::BadToken;
        asks.push(ask);
    }
}

fn profiles(asks: &mut Vec<Ask>) {
    for name in ["none", "HEAP", "heap", "goroutine"] {
        asks.push(Ask::new("POST", &format!("/debug/pprof/{name}")));
        asks.push(Ask::new("GET", &format!("/debug/pprof/{name}")).by(Who::Nobody));
    }
    for target in [
        "/debug/pprof/none?debug=1",
        "/debug/pprof/symbol?0x1",
        "/debug/pprof/symbol?x",
        "/debug/pprof/cmdline?x",
    ] {
        asks.push(Ask::new("GET", target));
    }
}

fn node_logs(asks: &mut Vec<Ask>) {
    for query in [
        "query=",
        "query=x",
        "query=kubelet",
        "query=kubelet&query=containerd",
        "query=a&query=b&query=c&query=d&query=e",
        "query=dpkg.log",
        "query=/dpkg.log",
        "query=/none.log",
        "query=/../passwd",
        "query=/apt/history.log",
        "query=/dpkg.log&query=kubelet",
        "query=/dpkg.log&tailLines=1",
        "query=/dpkg.log&query=/apt/history.log",
        "query=x%20y",
        "query=x;reboot",
        "query=$(reboot)",
        "query=x|y",
        "query=dpkg&tailLines=1",
        "query=dpkg&tailLines=-1",
        "query=dpkg&tailLines=x",
        "query=dpkg&tailLines=100001",
        "query=dpkg&boot=1",
        "query=dpkg&boot=-1",
        "query=dpkg&boot=x",
        "query=dpkg&pattern=(",
        "query=dpkg&pattern=a",
        "query=dpkg&sinceTime=x",
        "query=dpkg&sinceTime=2020-01-01T00:00:00Z",
        "query=dpkg&sinceTime=2021-01-01T00:00:00Z&untilTime=2020-01-01T00:00:00Z",
        "query=dpkg&untilTime=x",
        "tailLines=1",
        "pattern=x",
        "boot=0",
        "sinceTime=2020-01-01T00:00:00Z",
        "query=dpkg&x=y",
        "query=%zz",
        "QUERY=dpkg",
    ] {
        asks.push(Ask::new("GET", &format!("/logs/?{query}")));
        asks.push(Ask::new("GET", &format!("/logs/apt?{query}")));
        asks.push(Ask::new("GET", &format!("/logs/?{query}")).with("Accept-Encoding", "gzip"));
        asks.push(Ask::new("POST", &format!("/logs/?{query}")));
    }
    let long = "a".repeat(257);
    asks.push(Ask::new("GET", &format!("/logs/?query={long}")));
    asks.push(Ask::new("GET", &format!("/logs/?query={}", &long[..256])));
}
