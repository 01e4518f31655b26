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
use tests::wire::{connect_http2, connect_tls};

/// Resident memory of a process in KiB.
fn resident(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Processor time that a process has had.
fn processor_time(pid: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
    Duration::from_millis(ticks * 10)
}

fn healthy(url: &str) {
    run("curl", ["-fsSk", "-m", "20", url]).unwrap();
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
    // A scrape is counted when it is over: the first one makes series of its own.
    series(port);
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

/// A frame of HTTP/2.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let [_, a, b, c] = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = vec![a, b, c, kind, flags];
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// `GET / https://x` in the static table's words.
const HEADERS: &[u8] = &[0x82, 0x87, 0x84, 0x41, 0x01, b'x'];
const SETTINGS: u8 = 4;
const END: u8 = 0x4 | 0x1;

/// Sends what `more` makes until the server has enough of it; how many frames that took.
fn until_refused(port: u16, most: usize, mut more: impl FnMut(u32) -> Vec<u8>) -> Option<usize> {
    let mut stream = connect_http2(port).unwrap();
    stream.write_all(&frame(SETTINGS, 0, 0, &[])).unwrap();
    for sent in 0..most / 100 {
        let pieces: Vec<u8> =
            (0..100).flat_map(|n| more(u32::try_from(sent * 100 + n).unwrap() * 2 + 1)).collect();
        if stream.write_all(&pieces).and_then(|()| stream.flush()).is_err() {
            return Some(sent * 100);
        }
    }
    None
}

#[test]
fn floods_of_http2_are_ended_and_cost_nothing() {
    let kind = KubeletKind::from_env().unwrap();
    let mut node = TestNode::builder().kubelet(kind).start().unwrap();
    let (pid, port) = (node.kubelet().unwrap().pid(), node.api_port());
    eventually!(30, connect_http2(port).is_ok());
    let before = resident(pid);
    // Streams that are opened and reset at once (CVE-2023-44487).
    let reset = until_refused(port, 100_000, |stream| {
        [frame(1, END, stream, HEADERS), frame(3, 0, stream, &8_u32.to_be_bytes())].concat()
    });
    assert!(reset.is_some(), "somebody who only resets is shown the door");
    // Headers without an end (CVE-2023-45288).
    let mut first = true;
    let endless = until_refused(port, 100_000, |_| {
        let kind = if std::mem::take(&mut first) { 1 } else { 9 };
        frame(kind, 0, 1, &[0x40, 0x01, b'a', 0x01, b'b'].repeat(200))
    });
    assert!(endless.is_some(), "headers end or the connection does");
    // Questions without an interest in the answers (CVE-2019-9512, CVE-2019-9515): nobody reads here.
    for (kind, payload) in [(6, &b"12345678"[..]), (SETTINGS, &[][..])] {
        let mut stream = connect_http2(port).unwrap();
        stream.sock.set_write_timeout(Some(Duration::from_secs(5))).unwrap();
        let pieces = frame(kind, 0, 0, payload).repeat(1000);
        // Either the server reads on and answers, or it stops: both are fine as long as memory is.
        let _ = (0..500).any(|_| stream.write_all(&pieces).is_err());
    }
    let asked = Instant::now();
    run("curl", ["-fsSk", "-m", "20", &format!("https://127.0.0.1:{port}/healthz")]).unwrap();
    let after = resident(pid);
    println!(
        "reset after {reset:?}, endless headers after {endless:?} frames; {before} KiB to {after} KiB; \
         healthy in {:?}",
        asked.elapsed()
    );
    assert!(after < before + 32 * 1024, "{before} KiB became {after} KiB");
}

/// Streams that are asked on and whose answers are never taken: the window is nothing (CVE-2019-9517).
#[test]
fn stalled_streams_and_packed_headers_of_http2_cost_little() {
    let kind = KubeletKind::from_env().unwrap();
    let mut node = TestNode::builder().kubelet(kind).start().unwrap();
    let (pid, port) = (node.kubelet().unwrap().pid(), node.api_port());
    eventually!(30, connect_http2(port).is_ok());
    let before = resident(pid);
    let no_window = frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0]);
    let stalled: Vec<_> = (0..100)
        .filter_map(|_| {
            let mut stream = connect_http2(port).ok()?;
            let asks = (0..250).flat_map(|n| frame(1, END, n * 2 + 1, HEADERS));
            let all: Vec<u8> = no_window.iter().copied().chain(asks).collect();
            stream.write_all(&all).and_then(|()| stream.flush()).ok()?;
            Some(stream)
        })
        .collect();
    let url = format!("https://127.0.0.1:{port}/healthz");
    healthy(&url);
    let after = resident(pid);
    println!("{} connections of stalled streams: {before} KiB to {after} KiB", stalled.len());
    assert!(after < before + 64 * 1024, "{before} KiB became {after} KiB");
    drop(stalled);
    // One header of 3,900 bytes, then 16,000 times the same by its number: 62 MB in 16 KB.
    let (before, used) = (resident(pid), processor_time(pid));
    let mut first = vec![0x40, 1, b'a', 0x7f, 0xbd, 0x1d];
    first.extend([b'x'; 3900]);
    let again = vec![0xbe; 16_000];
    let refused = until_refused(port, 400, |stream| {
        let (head, more) = ([HEADERS, &first[..]].concat(), [HEADERS, &again[..]].concat());
        [frame(1, END, stream * 2 - 1, &head), frame(1, END, stream * 2 + 1, &more)].concat()
    });
    healthy(&url);
    let (after, used) = (resident(pid), processor_time(pid) - used);
    println!("packed headers refused after {refused:?}: {used:?}, {before} KiB to {after} KiB");
    assert!(after < before + 64 * 1024, "{before} KiB became {after} KiB");
}

#[test]
fn slow_clients_are_not_waited_for_and_keep_nobody_else_waiting() {
    let kind = KubeletKind::from_env().unwrap();
    let mut node = TestNode::builder().kubelet(kind).start().unwrap();
    let (pid, port) = (node.kubelet().unwrap().pid(), node.api_port());
    eventually!(30, TcpStream::connect(("127.0.0.1", port)).is_ok());
    let before = resident(pid);
    // Half a handshake, on as many connections as one client gets.
    let half: Vec<TcpStream> = (0..300)
        .map(|_| {
            let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
            stream.write_all(&[0x16, 0x03, 0x01]).unwrap();
            stream
        })
        .collect();
    let asked = Instant::now();
    run("curl", ["-fsSk", "-m", "20", &format!("https://127.0.0.1:{port}/healthz")]).unwrap();
    println!("healthy after {:?} among {} half handshakes", asked.elapsed(), half.len());
    let mut first = half.into_iter().next().unwrap();
    first.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut rest = Vec::new();
    // The end of the connection, whichever way it comes.
    let _ = first.read_to_end(&mut rest);
    assert!(asked.elapsed() < Duration::from_secs(55), "half a handshake ends");
    assert!(resident(pid) < before + 32 * 1024, "half handshakes hold little memory");
}

#[test]
fn idle_connections_shut_nobody_out() {
    let kind = KubeletKind::from_env().unwrap();
    let mut node = TestNode::builder().kubelet(kind).start().unwrap();
    let (pid, port, health) = (node.kubelet().unwrap().pid(), node.api_port(), node.health_port());
    eventually!(30, TcpStream::connect(("127.0.0.1", port)).is_ok());
    let (api, health_url) =
        (format!("https://127.0.0.1:{port}/healthz"), format!("http://127.0.0.1:{health}/healthz"));
    healthy(&api);
    let before = resident(pid);
    // All of them from the address that whoever checks health has, too.
    let open = |port: u16, said: &[u8]| {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        // Others may have been closed already.
        let _ = stream.write_all(said);
        stream
    };
    let mut idle: Vec<TcpStream> =
        (0..400).map(|_| open(health, b"GET /healthz HTTP/1.1\r\n")).collect();
    idle.extend((0..2000).map(|_| open(port, b"")));
    let spoken: Vec<_> = (0..600).filter_map(|_| connect_tls(port).ok()).collect();
    let asked = Instant::now();
    for _ in 0..20 {
        healthy(&api);
        healthy(&health_url);
    }
    let after = resident(pid);
    println!(
        "{} idle connections, {} after a handshake: {:?} for 40 answers; {before} KiB to {after} KiB",
        idle.len(),
        spoken.len(),
        asked.elapsed()
    );
    assert!(after < before + 32 * 1024, "{before} KiB became {after} KiB");
}

#[test]
fn heads_that_come_byte_by_byte_cost_little() {
    let kind = KubeletKind::from_env().unwrap();
    let mut node = TestNode::builder().kubelet(kind).start().unwrap();
    let (pid, port) = (node.kubelet().unwrap().pid(), node.api_port());
    eventually!(30, connect_tls(port).is_ok());
    let (before, used) = (resident(pid), processor_time(pid));
    let until = Instant::now() + Duration::from_secs(10);
    let bytes: usize = std::thread::scope(|scope| {
        let drips: Vec<_> = (0..8)
            .map(|_| {
                scope.spawn(|| {
                    let mut sent = 0;
                    while Instant::now() < until {
                        let Ok(mut stream) = connect_tls(port) else { continue };
                        let head = format!("GET / HTTP/1.1\r\nX: {}", "x".repeat(900_000));
                        if stream.write_all(head.as_bytes()).is_err() {
                            continue;
                        }
                        while Instant::now() < until
                            && stream.write_all(b"x").and_then(|()| stream.flush()).is_ok()
                        {
                            sent += 1;
                        }
                    }
                    sent
                })
            })
            .collect();
        drips.into_iter().map(|drip| drip.join().unwrap()).sum()
    });
    let (after, used) = (resident(pid), processor_time(pid) - used);
    println!("{bytes} single bytes: {used:?} of processor time; {before} KiB to {after} KiB");
    // The Go kubelet takes half a second for it; looking from the begin at every byte took more than ten.
    assert!(used < Duration::from_secs(10), "{used:?} for {bytes} bytes");
    assert!(after < before + 64 * 1024, "{before} KiB became {after} KiB");
}
