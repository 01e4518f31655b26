//! What was a vulnerability of others, tried on the running node (`docs/security.md` has the list).
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test on the real machine")]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::json;
use testkit::eventually;
use testkit::real::{KubeletKind, KubeletOptions, TestNode, run};
use tests::wire::{Wire, read_answer};

/// Ways to ask for a stream.
const UPGRADES: [&str; 3] = [
    "Upgrade: SPDY/3.1\r\nConnection: Upgrade\r\n",
    "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n\
     Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Protocol: v5.channel.k8s.io\r\n",
    "Upgrade: h2c\r\nConnection: Upgrade\r\n",
];
const STREAMS: [&str; 3] = [
    "/exec/default/absent/c?command=id&output=1",
    "/attach/default/absent/c?output=1",
    "/portForward/default/absent",
];

/// CVE-2018-1002102, CVE-2020-8559 and CVE-2018-1002105: nobody is sent elsewhere, and a connection whose upgrade
/// failed is still one of requests, each judged by itself, not a tunnel.
#[test]
fn a_refused_upgrade_is_no_redirect_and_leaves_no_tunnel() {
    let kind = KubeletKind::from_env().unwrap();
    let node = TestNode::builder().kubelet(kind).start().unwrap();
    let port = node.api_port();
    let wire = Wire::plain().unwrap();
    eventually!(30, TcpStream::connect(("127.0.0.1", port)).is_ok());
    for path in STREAMS {
        for upgrade in UPGRADES {
            let mut stream = wire.open(port).unwrap();
            let ask = format!("POST {path} HTTP/1.1\r\nHost: a\r\n{upgrade}\r\n");
            stream.write_all(ask.as_bytes()).unwrap();
            let answer = read_answer(&mut stream, false).unwrap();
            let code = answer.status;
            assert!((400..600).contains(&code), "{path} {upgrade:?}: {code}");
            assert_eq!(answer.header("location"), None, "{path} {upgrade:?}");
            // What follows is read as a request, or the connection is over.
            let again = b"GET /no-such-page HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
            let sent = stream.write_all(again).and_then(|()| stream.flush());
            let mut rest = Vec::new();
            let _ = stream.read_to_end(&mut rest);
            let judged = rest.starts_with(b"HTTP/1.1 404") || rest.starts_with(b"HTTP/1.1 400");
            assert!(
                sent.is_err() || rest.is_empty() || judged,
                "{:?}",
                String::from_utf8_lossy(&rest)
            );
        }
    }
}

/// CVE-2018-16875: the work for a chain of certificates is bounded, whoever sends it.
#[test]
fn a_chain_of_a_thousand_certificates_is_refused_at_once() {
    let kind = KubeletKind::from_env().unwrap();
    let folder = std::env::temp_dir().join(format!("rubelet-chain-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (authority, _) = certificate(&folder, "authority");
    let (leaf, key) = certificate(&folder, "leaf");
    let config = json!({"authentication": {"x509": {"clientCAFile": authority}}});
    let options = KubeletOptions { config, ..KubeletOptions::default() };
    let node = TestNode::builder().kubelet(kind).options(options).start().unwrap();
    let port = node.api_port();
    eventually!(30, TcpStream::connect(("127.0.0.1", port)).is_ok());
    let ask = b"GET /healthz HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    for length in [1, 10, 1000] {
        let chain = folder.join(format!("chain-{length}"));
        std::fs::write(&chain, std::fs::read_to_string(&leaf).unwrap().repeat(length)).unwrap();
        let asked = Instant::now();
        // Refused in the handshake or after it: either way nobody worked for long.
        let answer = Wire::with_certificate(&chain, &key).unwrap().send(port, ask, false);
        assert!(answer.is_err() || answer.is_ok_and(|answer| answer.status != 500));
        assert!(asked.elapsed() < Duration::from_secs(5), "{length}: {:?}", asked.elapsed());
    }
    run("curl", ["-fsSk", "-m", "20", &format!("https://127.0.0.1:{port}/healthz")]).unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
}

/// A self-signed certificate and its key.
fn certificate(folder: &Path, name: &str) -> (PathBuf, PathBuf) {
    let path = |end: &str| folder.join(format!("{name}.{end}"));
    let (crt, key) = (path("crt"), path("key"));
    let (out, keyout) = (crt.to_string_lossy(), key.to_string_lossy());
    let subject = format!("/CN={name}");
    let args = ["req", "-x509", "-nodes", "-days", "1", "-newkey", "ec", "-pkeyopt"];
    let more =
        ["ec_paramgen_curve:prime256v1", "-subj", &subject, "-keyout", &keyout, "-out", &out];
    run("openssl", args.into_iter().chain(more)).unwrap();
    (crt, key)
}

/// CVE-2019-11248: the port that anybody may ask has health and nothing else.
#[test]
fn the_health_port_has_nothing_but_health() {
    let kind = KubeletKind::from_env().unwrap();
    let node = TestNode::builder().kubelet(kind).start().unwrap();
    let wire = Wire::clear();
    for path in [
        "/",
        "/pods",
        "/metrics",
        "/metrics/cadvisor",
        "/stats/summary",
        "/configz",
        "/logs/",
        "/debug/pprof/",
        "/debug/pprof/heap",
        "/debug/flags/v",
        "/runningpods/",
        "/spec/",
        "/exec/a/b/c",
        "/run/a/b/c",
        "/containerLogs/a/b/c",
        "/checkpoint/a/b/c",
        "/statusz",
        "/flagz",
    ] {
        for method in ["GET", "POST", "PUT"] {
            let ask = format!("{method} {path} HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n");
            let answer = wire.send(node.health_port(), ask.as_bytes(), false).unwrap();
            assert_eq!(answer.status, 404, "{method} {path}");
        }
    }
}
