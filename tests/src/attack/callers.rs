//! What callers of the node's ports can do, most of them without credentials.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use super::{Attack, Target, crowd};
use crate::rng::Rng;
use crate::wire::{Wire, read_answer};

pub(super) const ATTACKS: &[Attack] = &[
    Attack { name: "fresh-tokens", counts: Some("requests"), run: fresh_tokens },
    Attack { name: "endless-heads", counts: None, run: endless_heads },
    Attack { name: "idle-health", counts: None, run: idle_health },
    Attack { name: "idle-api", counts: None, run: idle_api },
    Attack { name: "half-handshakes", counts: Some("connections"), run: half_handshakes },
    Attack { name: "huge-tokens", counts: Some("requests"), run: huge_tokens },
    Attack { name: "wild-paths", counts: Some("requests"), run: wild_paths },
    Attack { name: "huge-accept", counts: Some("requests"), run: huge_accept },
    Attack { name: "many-ranges", counts: Some("requests"), run: many_ranges },
    Attack { name: "slow-readers", counts: None, run: slow_readers },
];

/// Reads and writes that a server holds up end with the attack.
const SHORT: Duration = Duration::from_secs(2);

/// Sixteen callers, each request with a token that nobody has seen, hanging up at once.
fn fresh_tokens(target: Target<'_>) -> anyhow::Result<u64> {
    let (wire, port) = (Wire::plain()?, target.stage.port());
    crowd(16, |own| {
        let mut sent = 0;
        while target.until.goes_on() {
            let token = format!("attack-{own}-{sent}");
            let request =
                format!("GET /pods HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {token}\r\n\r\n");
            if let Ok(mut stream) = wire.open(port) {
                let said = stream.write_all(request.as_bytes()).and_then(|()| stream.flush());
                sent += u64::from(said.is_ok());
            }
        }
        Ok(sent)
    })
}

/// Eight callers that send 900 kB of one header and go on byte after byte.
fn endless_heads(target: Target<'_>) -> anyhow::Result<u64> {
    let (wire, port) = (Wire::plain()?, target.stage.port());
    crowd(8, |_| {
        let mut sent = 0;
        while target.until.goes_on() {
            let Ok(mut stream) = wire.open(port) else { continue };
            stream.sock.set_write_timeout(Some(SHORT))?;
            let mut head = b"GET /pods HTTP/1.1\r\nHost: a\r\nX: ".to_vec();
            head.resize(900_000, b'x');
            let mut good = stream.write_all(&head).is_ok();
            while good && target.until.goes_on() {
                good = stream.write_all(b"x").and_then(|()| stream.flush()).is_ok();
                sent += 1;
                // As many as a second has milliseconds: the same for a slow server as for a quick one.
                target.until.pause(Duration::from_millis(1));
            }
        }
        Ok(sent)
    })
}

/// Connections to a port that say nothing; those that the server ends are opened again.
fn idle(target: Target<'_>, port: u16, count: usize) -> anyhow::Result<u64> {
    let mut held: Vec<TcpStream> = Vec::new();
    let mut opened = 0;
    while target.until.goes_on() {
        while held.len() < count && target.until.goes_on() {
            let address = ([127, 0, 0, 1], port).into();
            match TcpStream::connect_timeout(&address, Duration::from_millis(200)) {
                Ok(stream) => {
                    stream.set_nonblocking(true)?;
                    held.push(stream);
                    opened += 1;
                }
                Err(_) => target.until.pause(Duration::from_millis(50)),
            }
        }
        target.until.pause(Duration::from_millis(500));
        held.retain_mut(|stream| {
            let mut byte = [0];
            matches!(stream.read(&mut byte), Err(error) if error.kind() == std::io::ErrorKind::WouldBlock)
        });
    }
    Ok(opened)
}

/// More idle connections than the health port has seats, from any process of the node.
fn idle_health(target: Target<'_>) -> anyhow::Result<u64> {
    idle(target, target.stage.health_port(), 200)
}

/// Thousands of idle connections to the node's API.
fn idle_api(target: Target<'_>) -> anyhow::Result<u64> {
    idle(target, target.stage.port(), 4000)
}

/// Handshakes that begin and stop, over and over.
fn half_handshakes(target: Target<'_>) -> anyhow::Result<u64> {
    let port = target.stage.port();
    crowd(8, |_| {
        let mut sent = 0;
        while target.until.goes_on() {
            let mut held = Vec::new();
            for _ in 0..100 {
                let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) else { continue };
                // The begin of a long ClientHello.
                sent += u64::from(stream.write_all(&[0x16, 3, 1, 0x40, 0, 1, 0, 0x3F]).is_ok());
                held.push(stream);
            }
            target.until.pause(Duration::from_millis(500));
        }
        Ok(sent)
    })
}

/// Tokens of 900 kB, each another one.
fn huge_tokens(target: Target<'_>) -> anyhow::Result<u64> {
    let (wire, port) = (Wire::plain()?, target.stage.port());
    crowd(4, |own| {
        let mut sent = 0;
        while target.until.goes_on() {
            let mut token = format!("{own}-{sent}-");
            token = token.repeat(900_000 / token.len());
            let head =
                format!("GET /pods HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {token}\r\n\r\n");
            if ask(&wire, port, head.as_bytes()) {
                sent += 1;
            }
        }
        Ok(sent)
    })
}

/// Whether a request got an answer.
fn ask(wire: &Wire, port: u16, request: &[u8]) -> bool {
    let Ok(mut stream) = wire.open(port) else { return false };
    let _ = stream.sock.set_read_timeout(Some(SHORT));
    let _ = stream.sock.set_write_timeout(Some(SHORT));
    // A server that refuses may close before everything was said.
    let _said = stream.write_all(request).and_then(|()| stream.flush());
    read_answer(&mut stream, false).is_ok()
}

/// Paths and methods that nobody has, one connection for many of them.
fn wild_paths(target: Target<'_>) -> anyhow::Result<u64> {
    let (wire, port) = (Wire::plain()?, target.stage.port());
    crowd(4, |own| {
        let mut rng = Rng::new(own as u64);
        let mut sent = 0;
        while target.until.goes_on() {
            let Ok(mut stream) = wire.open(port) else { continue };
            for _ in 0..100 {
                let method =
                    ["GET", "POST", "BREW", "X1", "DELETE"][usize::try_from(rng.below(5))?];
                let (a, b) = (rng.below(1 << 31), rng.below(977));
                let request = format!("{method} /{a:x}/{b} HTTP/1.1\r\nHost: a\r\n\r\n");
                let said = stream.write_all(request.as_bytes()).and_then(|()| stream.flush());
                if said.is_err() || read_answer(&mut stream, false).is_err() {
                    break;
                }
                sent += 1;
            }
        }
        Ok(sent)
    })
}

/// A request of the administrator with these headers, over and over.
fn as_admin(target: Target<'_>, path: &str, headers: &str) -> anyhow::Result<u64> {
    let (wire, port) = (Wire::plain()?, target.stage.port());
    let token = target.stage.control().admin_token();
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {token}\r\n{headers}\r\n\r\n"
    );
    crowd(4, |_| {
        let mut sent = 0;
        while target.until.goes_on() {
            sent += u64::from(ask(&wire, port, request.as_bytes()));
        }
        Ok(sent)
    })
}

/// An `Accept` with as many kinds as a head can hold.
fn huge_accept(target: Target<'_>) -> anyhow::Result<u64> {
    let kinds: Vec<String> = (0..60_000).map(|n| format!("a/b{n};q=0.{}", n % 10)).collect();
    as_admin(target, "/metrics", &format!("Accept: {}", kinds.join(",")))
}

/// As many ranges of a file as a header can hold.
fn many_ranges(target: Target<'_>) -> anyhow::Result<u64> {
    let ranges: Vec<String> = (0..20_000).map(|n| format!("{n}-{n}")).collect();
    as_admin(target, "/logs/", &format!("Range: bytes={}", ranges.join(",")))
}

/// Callers that ask for the longest pages and read a byte now and then.
fn slow_readers(target: Target<'_>) -> anyhow::Result<u64> {
    let (wire, port) = (Wire::plain()?, target.stage.port());
    let token = target.stage.control().admin_token();
    let request = format!(
        "GET /metrics/cadvisor HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {token}\r\n\r\n"
    );
    crowd(32, |_| {
        let mut sent = 0;
        while target.until.goes_on() {
            let Ok(mut stream) = wire.open(port) else { continue };
            stream.sock.set_read_timeout(Some(SHORT))?;
            if stream.write_all(request.as_bytes()).and_then(|()| stream.flush()).is_err() {
                continue;
            }
            sent += 1;
            let mut byte = [0];
            while target.until.goes_on() && matches!(stream.read(&mut byte), Ok(1)) {
                target.until.pause(Duration::from_millis(500));
            }
        }
        Ok(sent)
    })
}
