//! Which heads are passed on in which form, and which are rejected.

use super::keep_alive::LINGER;
use super::*;
use crate::connections::{Connections, Limits, Place};
use std::net::{IpAddr, Ipv4Addr};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const NOTHING: BodyFraming = BodyFraming::Bytes(0);

/// A place with small limits.
pub(super) fn place() -> Place {
    let limits = Limits { strangers: 4, known: 4, of_one: 4, buffered_bytes: 8 << 20 };
    Connections::new(limits).enter(IpAddr::V4(Ipv4Addr::LOCALHOST))
}

fn passed(head: &str) -> String {
    match judge(head.as_bytes()) {
        Judgement::Pass(bytes, ..) => String::from_utf8(bytes).unwrap(),
        Judgement::Refuse(status, _) => panic!("{head:?} is refused: {status}"),
    }
}

fn refused(head: &str) -> &'static str {
    match judge(head.as_bytes()) {
        Judgement::Pass(..) => panic!("{head:?} is passed on"),
        Judgement::Refuse(_, text) => text,
    }
}

#[test]
fn good_heads_are_passed_on_as_they_are() {
    for head in [
        "GET /pods?a=b HTTP/1.1\r\nHost: a\r\n\r\n",
        "BREW /a?%zz HTTP/1.0\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n",
    ] {
        assert_eq!(passed(head), head);
    }
}

#[test]
fn targets_that_go_takes_and_hyper_does_not_travel_beside() {
    for (target, path) in [
        ("/a<b>%2F#c", "/a<b>%2F#c"),
        ("/pods?a=\"", "/pods?a=\""),
        ("http:/healthz", "/healthz"),
        ("http:///healthz", "/healthz"),
        ("http://a/b?c=d", "/b?c=d"),
        ("HTTP://u:p@[::1]:10250/a%2fb#c", "/a%2fb#c"),
        ("https://a?b", "?b"),
        ("mailto:x", ""),
    ] {
        let head = format!("GET {target} HTTP/1.2\r\nHost: a\r\n\r\n");
        let Judgement::Pass(bytes, other, _) = judge(head.as_bytes()) else {
            panic!("{target} is refused");
        };
        assert_eq!(bytes, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", "{target}");
        assert_eq!(other.target, Some(LongTarget(path.into())), "{target}");
    }
    let folded = "GET / HTTP/1.1\r\nHost: a\r\nX: y\r\n z\r\n\r\n";
    assert_eq!(passed(folded), "GET / HTTP/1.1\r\nHost: a\r\nX: y z\r\n\r\n");
    assert_eq!(passed("PRI * HTTP/2.0\r\n\r\n"), "PRI * HTTP/1.1\r\n\r\n");
    let long = format!("/exec?command={}", "x".repeat(100_000));
    let head = format!("GET {long} HTTP/1.1\r\nHost: a\r\n\r\n");
    let want = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n".to_vec();
    let extras =
        RequestExtras { target: Some(LongTarget(long.into())), ..RequestExtras::default() };
    assert_eq!(judge(head.as_bytes()), Judgement::Pass(want, extras, NOTHING));
}

#[test]
fn bytes_that_are_no_text_are_kept() {
    let Judgement::Pass(_, extras, _) = judge(b"GET /a\xff HTTP/1.1\r\nHost: a\r\n\r\n") else {
        panic!("it is refused");
    };
    assert_eq!(extras.target, Some(LongTarget(b"/a\xff".to_vec())));
}

#[test]
fn of_too_many_headers_those_are_passed_on_that_somebody_reads() {
    let many = |count: usize| "X: y\r\n".repeat(count);
    let head = |count| format!("GET / HTTP/1.1\r\n{}host: a\r\n\r\n", many(count));
    assert_eq!(passed(&head(MOST_FIELDS - 1)), head(MOST_FIELDS - 1));
    assert_eq!(passed(&head(MOST_FIELDS)), head(0));
    let spaced = format!("GET / HTTP/1.1\r\nHost: a\r\n{}X Y: z\r\n\r\n", many(2000));
    assert_eq!(refused(&spaced), "400 Bad Request: invalid header name");
    let known = "Accept: a\r\n".repeat(3000);
    let framed = format!("GET / HTTP/1.1\r\nHost: a\r\n{known}Transfer-Encoding: chunked\r\n\r\n");
    let passed = passed(&framed);
    assert_eq!(passed.matches("Accept").count(), MOST_FIELDS - 2);
    assert!(passed.ends_with("Transfer-Encoding: chunked\r\n\r\n"), "it says where the body ends");
    let hosts = "Host: a\r\n".repeat(3000);
    let hosts = format!("GET / HTTP/1.1\r\n{hosts}\r\n");
    assert_eq!(judge(hosts.as_bytes()), TOO_LARGE);
}

#[test]
fn where_a_body_ends_is_said_once() {
    for (fields, passed, behind) in [
        ("Content-Length: 5\r\nContent-Length: 5", "Content-Length: 5\r\n", BodyFraming::Bytes(5)),
        (
            "Content-Length: x\r\nTransfer-Encoding: chunked\r\nContent-Length: 5",
            "Transfer-Encoding: chunked\r\n",
            BodyFraming::Chunks,
        ),
    ] {
        let head = format!("POST / HTTP/1.1\r\nHost: a\r\n{fields}\r\n\r\n");
        let want = format!("POST / HTTP/1.1\r\nHost: a\r\n{passed}\r\n").into_bytes();
        let want = Judgement::Pass(want, RequestExtras::default(), behind);
        assert_eq!(judge(head.as_bytes()), want, "{fields}");
    }
    let old = b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n";
    let want = b"POST / HTTP/1.0\r\nContent-Length: 3\r\n\r\n".to_vec();
    let want = Judgement::Pass(want, RequestExtras::default(), BodyFraming::Bytes(3));
    assert_eq!(judge(old), want, "HTTP/1.0 has no chunks");
}

// Scanning must not restart from the beginning with every byte received.
#[test]
fn every_byte_of_a_head_is_looked_at_once() {
    let head = [&b"GET / HTTP/1.1\r\nA: "[..], &[b'x'; 50], b"\r\n\r\nmore"].concat();
    let mut search = Search::default();
    for end in 1..head.len() - 4 {
        assert_eq!(search.look(&head[..end]), Found::More, "{end}");
        assert_eq!((search.seen, search.pieces), (end, end));
    }
    assert_eq!(search.look(&head), Found::End(head.len() - 4));
    let mut search = Search::default();
    assert_eq!(search.look(&vec![b'a'; MOST + 1]), Found::TooMuch);
    let mut search = Search::default();
    let most = (1..).find(|end| search.look(&vec![b'a'; *end]) == Found::TooMuch);
    assert_eq!(most, Some(MOST_PIECES + 1));
}

#[test]
fn what_hyper_would_act_upon_travels_beside() {
    for (head, passed, extras) in [
        (
            "CONNECT /healthz HTTP/1.1\r\n\r\n",
            "POST /healthz HTTP/1.1\r\n\r\n",
            RequestExtras { connect: true, ..RequestExtras::default() },
        ),
        (
            "CONNECT a:1 HTTP/1.1\r\n\r\n",
            "POST / HTTP/1.1\r\n\r\n",
            RequestExtras {
                target: Some(LongTarget(Vec::new())),
                connect: true,
                ..RequestExtras::default()
            },
        ),
        (
            "GET / HTTP/1.0\r\nconnection: x, UPGRADE\r\n\r\n",
            "GET / HTTP/1.1\r\nconnection: x, UPGRADE\r\n\r\n",
            RequestExtras { old: true, ..RequestExtras::default() },
        ),
    ] {
        let want = Judgement::Pass(passed.as_bytes().to_vec(), extras, NOTHING);
        assert_eq!(judge(head.as_bytes()), want, "{head}");
    }
    let mut request = Request::new(());
    RequestExtras { target: None, connect: true, old: true }.restore(&mut request);
    assert_eq!((request.method(), request.version()), (&Method::CONNECT, Version::HTTP_10));
    let reply = RequestExtras::answered(true, Response::new(()));
    assert_eq!(reply.version(), Version::HTTP_10);
    assert_eq!(reply.headers()[CONNECTION], "close");
    let mut verbatim = Response::new(());
    verbatim.extensions_mut().insert(Verbatim);
    let verbatim = RequestExtras::answered(true, verbatim);
    assert_eq!(
        (verbatim.version(), &verbatim.headers()[CONNECTION]),
        (Version::HTTP_11, &"close".parse().unwrap())
    );
}

#[test]
fn what_is_no_request_gets_the_words_of_go() {
    for (head, text) in [
        ("GET /pods\r\n\r\n", "400 Bad Request"),
        ("\r\nGET /pods HTTP/1.1\r\n\r\n", "400 Bad Request"),
        ("G(T / HTTP/1.1\r\n\r\n", "400 Bad Request"),
        ("GET / http/1.1\r\n\r\n", "400 Bad Request"),
        ("GET /%zz HTTP/1.0\r\n\r\n", "400 Bad Request"),
        ("GET / HTTP/3.0\r\n\r\n", "505 HTTP Version Not Supported: unsupported protocol version"),
        ("GET / HTTP/3.0\r\nX\r\n\r\n", "400 Bad Request"),
        ("GET http://a:x/ HTTP/1.1\r\nHost: a\r\n\r\n", "400 Bad Request"),
        ("GET :/a HTTP/1.1\r\nHost: a\r\n\r\n", "400 Bad Request"),
        ("GET a/b HTTP/1.1\r\nHost: a\r\n\r\n", "400 Bad Request"),
        ("CONNECT a:b HTTP/1.1\r\nHost: a\r\n\r\n", "400 Bad Request"),
        ("GET / HTTP/1.1\r\nHost: a/b\r\nX Y: z\r\n\r\n", "400 Bad Request: malformed Host header"),
        ("GET / HTTP/1.1\r\nX\r\n\r\n", "400 Bad Request"),
        ("GET / HTTP/1.1\r\nContent-Length: +1\r\n\r\n", "400 Bad Request"),
        ("GET / HTTP/1.1\r\nContent-Length: 0\r\nContent-Length: 1\r\n\r\n", "400 Bad Request"),
        ("GET / HTTP/1.1\r\nHost : a\r\n\r\n", "400 Bad Request: missing required Host header"),
        ("GET / HTTP/1.1\r\nHost: a\r\nX Y: z\r\n\r\n", "400 Bad Request: invalid header name"),
        ("GET / HTTP/1.1\r\nHost: a\r\nX: \u{1}\r\n\r\n", "400 Bad Request"),
        (
            "GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n",
            "Unsupported transfer encoding",
        ),
    ] {
        assert_eq!(refused(head), text, "{head:?}");
    }
}

#[tokio::test]
async fn what_was_read_is_read_again_with_all_that_follows() {
    let (mut client, server) = tokio::io::duplex(64);
    let sent = b"POST /a HTTP/1.1\r\nContent-Length: 7\r\n\r\nabc";
    client.write_all(sent).await.unwrap();
    let mut replayed = read(server, place()).await.unwrap();
    client.write_all(b"more").await.unwrap();
    drop(client);
    let mut all = Vec::new();
    replayed.read_to_end(&mut all).await.unwrap();
    assert_eq!(all, [&sent[..], b"more"].concat());
}

#[tokio::test(start_paused = true)]
async fn the_end_waits_for_a_client_that_still_sends() {
    let (mut client, server) = tokio::io::duplex(64);
    client.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    let mut replayed = read(server, place()).await.unwrap();
    let send = async {
        client.write_all(&[b'x'; 1000]).await.unwrap();
        drop(client);
    };
    let (ended, ()) = tokio::join!(replayed.shutdown(), send);
    ended.unwrap();
    // A client that does not close is waited for no longer than that.
    let (mut client, server) = tokio::io::duplex(64);
    client.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    let mut replayed = read(server, place()).await.unwrap();
    let before = tokio::time::Instant::now();
    replayed.shutdown().await.unwrap();
    assert_eq!(before.elapsed(), LINGER);
    // An upgraded connection is not read from.
    let (mut client, server) = tokio::io::duplex(64);
    client.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    let mut replayed = read(server, place()).await.unwrap();
    replayed.current_request().answered(true);
    replayed.shutdown().await.unwrap();
    assert_eq!(before.elapsed(), LINGER);
}

#[tokio::test]
async fn heads_without_an_end_are_refused() {
    let (client, server) = tokio::io::duplex(1 << 16);
    let (mut reader, mut writer) = tokio::io::split(client);
    let flood = async {
        // The peer may have disconnected.
        let _ = writer.write_all(&vec![b'a'; 3 << 20]).await;
        let _ = writer.shutdown().await;
    };
    let answer = async {
        let mut text = String::new();
        let _ = reader.read_to_string(&mut text).await;
        text
    };
    let (passed, (), text) = tokio::join!(read(server, place()), flood, answer);
    assert!(passed.is_none());
    assert!(text.starts_with("HTTP/1.1 431 Request Header Fields Too Large\r\n"), "{text}");
}
