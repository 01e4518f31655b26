//! Feeds mutated examples to the parsers of client input (`make fuzz MINUTES=n`; a few thousand
//! inputs within `make test`). Nothing may panic, hang, or respond with invalid HTTP.

use crate::connections::Connections;
use crate::listen::{self, Protocol};
use crate::query::Query;
use crate::serve::Caller;
use crate::target::Target;
use crate::tests::{ALL, service};
use crate::{accept, exposition, form, gotime, handlers, spdy, websocket};
use ports::Tasks;
use std::sync::Arc;
use std::time::Duration;
use testkit::fuzz::{fuzz, hash};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use units::cri_log::{LineFilter, LineOptions, Streams, Wanted};

const PATIENCE: Duration = Duration::from_secs(60);

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// What the server sends on a connection that receives these bytes.
async fn answer(input: &[u8], protocol: Protocol, tasks: &Tasks) -> Vec<u8> {
    let service = service(ALL, None, tasks);
    let (client, server) = tokio::io::duplex(1 << 20);
    let (mut reader, mut writer) = tokio::io::split(client);
    let address: std::net::SocketAddr = ([127, 0, 0, 1], 1).into();
    let place = Connections::new(listen::LIMITS).enter(address.ip());
    let caller = Caller { address, certificates: Vec::new(), place: place.clone() };
    let caller = Arc::new(caller);
    let answers = move |request| {
        let (service, caller) = (Arc::clone(&service), Arc::clone(&caller));
        async move { service.answer(request, &caller).await }
    };
    let send = async {
        // The server may close the connection before everything was sent.
        let _ = writer.write_all(input).await;
        let _ = writer.shutdown().await;
    };
    let mut answer = Vec::new();
    let all = async {
        tokio::join!(
            listen::http(server, protocol, place, answers),
            send,
            reader.read_to_end(&mut answer)
        )
    };
    tokio::time::timeout(PATIENCE, all)
        .await
        .expect("a connection whose client is done ends")
        .2
        .unwrap();
    answer
}

#[test]
fn any_bytes_to_the_server_get_http_or_nothing() {
    let runtime = runtime();
    let words = [
        "GET ",
        "POST ",
        "PUT ",
        "HEAD ",
        "/healthz",
        "/pods",
        "/exec/a/b/c",
        "/containerLogs/a/b/c",
        "/logs/",
        "/run/a/b/c",
        "/checkpoint/a/b/c",
        "/debug/flags/v",
        "?",
        "&",
        "%2f",
        "%",
        "//",
        "/../",
        " HTTP/1.1\r\n",
        " HTTP/1.0\r\n",
        "Host: a\r\n",
        "\r\n\r\n",
        "Content-Length: ",
        "Transfer-Encoding: chunked\r\n",
        "Connection: Upgrade\r\n",
        "Upgrade: websocket\r\n",
        "Upgrade: SPDY/3.1\r\n",
        "Sec-WebSocket-Protocol: v5.channel.k8s.io\r\n",
        "Accept: ",
        "Accept-Encoding: gzip\r\n",
        "Range: bytes=",
        "0\r\n\r\n",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ];
    let tasks = Tasks::new();
    fuzz("http", &words, |input| {
        let answer = runtime.block_on(answer(input, Protocol::Http1, &tasks));
        let first = answer.split(|byte| *byte == b'\n').next().unwrap_or_default();
        assert!(answer.is_empty() || first.starts_with(b"HTTP/1."), "{answer:?}");
        let codes = answer.windows(12).filter(|w| w.starts_with(b"HTTP/1.")).take(4);
        hash(&codes.flat_map(<[u8]>::to_vec).collect::<Vec<u8>>())
    });
    runtime.block_on(tasks.shutdown());
}

#[test]
fn any_frames_of_http2_end() {
    let runtime = runtime();
    let tasks = Tasks::new();
    fuzz("http2", &["PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"], |input| {
        let answer = runtime.block_on(answer(input, Protocol::Http2, &tasks));
        // The types of the frames in the response.
        let mut kinds = Vec::new();
        let mut rest = answer.as_slice();
        while let [a, b, c, kind, ..] = rest {
            kinds.push(*kind);
            let length = usize::from(*a) << 16 | usize::from(*b) << 8 | usize::from(*c);
            rest = rest.get(9 + length..).unwrap_or_default();
        }
        kinds.truncate(6);
        hash(&kinds)
    });
    runtime.block_on(tasks.shutdown());
}

#[test]
fn any_query_is_read_or_refused() {
    let words = [
        "tailLines=",
        "sinceTime=",
        "sinceSeconds=",
        "limitBytes=",
        "stream=",
        "follow=true",
        "previous",
        "query=",
        "pattern=",
        "boot=",
        "untilTime=",
        "command=",
        "port=",
        "&",
        "=",
        ";",
        "+",
        "%",
        "%00",
        "%C3%BC",
        "2020-01-01T00:00:00Z",
        "Fri, 01 Jan 2010 00:00:00 GMT",
        "Friday, 01-Jan-10 00:00:00 GMT",
        "Fri Jan  1 00:00:00 2010",
        "text/plain; a=\"b\"",
        "Stdout",
        "true",
        "--b",
        "--b--",
        "\r\n",
        "\nContent-Disposition: form-data; name=a\n\n",
        "é",
    ];
    let root = std::env::temp_dir();
    fuzz("query", &words, |input| {
        let text = String::from_utf8_lossy(input);
        let query = Query::parse(&text);
        let strict = Query::strict(&text).is_ok();
        let logs = handlers::logs::parse(&text).map_err(|refused| refused.status().as_u16());
        let node = handlers::log_query::outcome(&query, &root);
        let path = Target::from_parts(format!("/{text}").as_bytes(), &text);
        if let Ok(target) = &path {
            let again = Target::from_parts(target.escaped.as_bytes(), "").unwrap();
            assert_eq!(again.path, target.path, "an escaped path is the same path");
        }
        let accepted = accept::parse(&text).len().min(4);
        let (kind, _) = exposition::negotiate(&text);
        let time = gotime::rfc3339(&text).is_some() || gotime::http_time(&text).is_some();
        let (_, _, media) = form::media(&text);
        let parts = form::parts::read(input, "b").map(|values| values.len().min(3));
        let logs = logs.map(|_| 200).unwrap_or_else(|status| status);
        let path = path.is_ok();
        let outcome =
            format!("{strict} {logs} {node} {path} {accepted} {kind} {time} {media:?} {parts:?}");
        hash(outcome.as_bytes())
    });
}

#[test]
fn any_websocket_frames_are_read_or_refused() {
    let runtime = runtime();
    fuzz("websocket", &[], |input| {
        let mut wire = input;
        let mut kinds = Vec::new();
        runtime.block_on(async {
            let mut reader = websocket::Reader::new(&mut wire);
            for _ in 0..16 {
                kinds.push(match reader.next().await {
                    Ok(websocket::Piece::Bytes { first, last, bytes }) => {
                        assert!(bytes.len() <= input.len().min(websocket::PIECE));
                        b'b' + 2 * u8::from(first) + 4 * u8::from(last)
                    }
                    Ok(websocket::Piece::Ping(_)) => b'p',
                    Ok(websocket::Piece::Close) => b'c',
                    Err(_) => return,
                });
            }
        });
        kinds.push(u8::try_from(wire.len().min(3)).unwrap());
        hash(&kinds)
    });
}

#[test]
fn any_spdy_frames_are_read_or_refused() {
    let runtime = runtime();
    fuzz("spdy", &[], |input| {
        let mut kinds = Vec::new();
        runtime.block_on(async {
            let mut reader = spdy::Reader::new(input);
            for _ in 0..16 {
                kinds.push(match reader.next().await {
                    Ok(spdy::Frame::Data { end, .. }) => u8::from(end),
                    Ok(spdy::Frame::Reset(_)) => 2,
                    Ok(spdy::Frame::Ping(_)) => 3,
                    Ok(spdy::Frame::GoAway) => 4,
                    Ok(spdy::Frame::Other) => 5,
                    Err(_) => return,
                });
            }
        });
        hash(&kinds)
    });
}

#[test]
fn any_log_is_shown_within_its_limits() {
    let words = [
        "2026-01-02T03:04:05.678901234Z stdout F ",
        "2026-01-02T03:04:05Z stderr P ",
        "stdout",
        "F",
        "P:x",
        "{\"log\":\"a\\n\",\"stream\":\"stdout\",\"time\":\"2026-01-02T03:04:05Z\"}\n",
        "\n",
        "\r\n",
        " ",
        "\\u00fc",
        "\"}",
        "0000-00-00T00:00:00Z",
    ];
    fuzz("log", &words, |input| {
        let [flags, limit, rest @ ..] = input else { return 0 };
        let options = LineOptions {
            since: (flags & 1 != 0).then_some((1_767_322_000, 0)),
            timestamps: flags & 2 != 0,
            limit_bytes: (flags & 4 != 0).then_some(u64::from(*limit)),
            limit_lines: (flags & 8 != 0).then_some(u64::from(*limit)),
            streams: match flags >> 4 & 3 {
                0 | 3 => Streams::All,
                1 => Streams::Stdout,
                _ => Streams::Stderr,
            },
        };
        let mut filter = LineFilter::new(options);
        let mut out = Vec::new();
        let (mut lines, mut ended) = (0_u64, "end");
        for line in rest.split_inclusive(|byte| *byte == b'\n') {
            lines += 1;
            match filter.line(line, &mut out) {
                Ok(Wanted::More) => {}
                Ok(Wanted::Done) => {
                    ended = "limit";
                    break;
                }
                Err(_) => {
                    ended = "format";
                    break;
                }
            }
        }
        if let Some(limit) = options.limit_bytes {
            assert!(u64::try_from(out.len()).unwrap() <= limit, "{} bytes", out.len());
        }
        let shown = out.iter().filter(|byte| **byte == b'\n').count().min(5);
        hash(format!("{flags} {ended} {} {shown}", lines.min(5)).as_bytes())
    });
}
