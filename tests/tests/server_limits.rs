//! The node's API under abuse: random paths, slow clients, floods of headers. Memory and metric
//! series stay flat and others are served. `make server-limits` sends a million requests.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test on the real machine")]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde_json::json;
use testkit::eventually;
use testkit::real::{KubeletKind, KubeletOptions, TestNode, run};

/// Resident memory of a process in KiB.
fn resident(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

fn series(port: u16) -> usize {
    let page = run("curl", ["-fsS", &format!("http://127.0.0.1:{port}/metrics")]).unwrap();
    page.lines().filter(|line| !line.starts_with('#')).count()
}

/// Sends `count` requests to random paths over one connection, a hundred at a time.
fn flood(port: u16, seed: u64, count: usize) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let mut state = seed | 1;
    let mut buffer = vec![0; 64 * 1024];
    for _ in 0..count.div_ceil(100) {
        let mut requests = String::new();
        for _ in 0..100 {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            let method =
                ["GET", "POST", "BREW", "X1", "DELETE"][usize::try_from(state % 5).unwrap()];
            requests.push_str(&format!(
                "{method} /{state:x}/{} HTTP/1.1\r\nHost: x\r\n\r\n",
                state % 977
            ));
        }
        stream.write_all(requests.as_bytes()).unwrap();
        let mut answers = 0;
        while answers < 100 {
            let read = stream.read(&mut buffer).unwrap();
            assert!(read > 0, "the connection stays");
            let found = |piece: &[u8]| piece.windows(9).filter(|w| *w == b"HTTP/1.1 ").count();
            answers += found(&buffer[..read]);
        }
    }
}

#[test]
fn abuse_leaves_memory_and_series_flat() {
    let kind = KubeletKind::from_env().unwrap();
    let port = {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        free.local_addr().unwrap().port()
    };
    let options =
        KubeletOptions { config: json!({"readOnlyPort": port}), ..KubeletOptions::default() };
    let mut node = TestNode::builder().kubelet(kind).options(options).start().unwrap();
    let pid = node.kubelet().unwrap().pid();
    let requests = std::env::var("REQUESTS").ok().and_then(|n| n.parse().ok()).unwrap_or(30_000);
    // The listeners come up one after the other.
    eventually!(30, TcpStream::connect(("127.0.0.1", port)).is_ok());
    flood(port, 7, 5000);
    let (memory, known) = (resident(pid), series(port));
    for round in 0..4 {
        flood(port, 1000 + round, requests / 4);
    }
    let (after, grown) = (resident(pid), series(port));
    println!("{requests} random requests: {memory} KiB to {after} KiB, {known} series to {grown}");
    assert!(grown < known + 20, "{known} series became {grown}");
    assert!(after < memory + 8 * 1024, "{memory} KiB became {after} KiB");

    // Clients that send a byte now and then, and more headers than anybody reads.
    let slow: Vec<TcpStream> = (0..200)
        .map(|_| {
            let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
            stream.write_all(b"GET /pods HTTP/1.1\r\nHost:").unwrap();
            stream
        })
        .collect();
    let mut greedy = TcpStream::connect(("127.0.0.1", port)).unwrap();
    greedy.set_write_timeout(Some(Duration::from_secs(5))).unwrap();
    greedy.write_all(b"GET /pods HTTP/1.1\r\nHost: x\r\n").unwrap();
    let line = format!("x-y: {}\r\n", "z".repeat(8000));
    let refused = (0..1000).any(|_| greedy.write_all(line.as_bytes()).is_err());
    let mut answer = Vec::new();
    greedy.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let _ = greedy.read_to_end(&mut answer);
    assert!(refused || answer.starts_with(b"HTTP/1.1 4"), "8 MB of headers are too many");
    let asked = Instant::now();
    run("curl", ["-fsS", "-m", "10", &format!("http://127.0.0.1:{port}/healthz")]).unwrap();
    println!("healthy after {:?} among {} slow clients", asked.elapsed(), slow.len());
    assert!(resident(pid) < after + 32 * 1024, "slow clients hold little memory");
}
