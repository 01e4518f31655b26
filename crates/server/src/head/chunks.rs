//! A body in chunked encoding, parsed as Go does and re-encoded in canonical form, which no parser
//! can read differently: every chunk as a length and its bytes, without extensions, leading zeros
//! or trailers.
//!
//! Go: `internal.chunkedReader`, with its limits.

/// Go: `maxLineLength`.
const LONGEST_LINE: usize = 4096;
/// Maximal digits of a chunk length (Go: `parseHexUint`).
const MOST_DIGITS: usize = 16;
/// The overhead that is allowed beyond the data (Go: `beginChunk`).
const MOST_EXCESS: u64 = 16 << 10;
/// The overhead of one chunk that is not counted.
const USUAL_LINE: u64 = 16;
/// The maximal size of all trailer lines (Go's reader buffers no more).
const LONGEST_TRAILER: usize = 4096;
/// An invalid chunk, which makes hyper fail the body.
const BROKEN: &[u8] = b"!\r\n";
const LAST: &[u8] = b"0\r\n\r\n";

/// The position in a chunked body.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Place {
    /// In a chunk's length line, with the bytes read so far.
    Line(Vec<u8>),
    /// In a chunk, with so many bytes to come.
    Data(u64),
    /// After a chunk's data, at its line ending.
    End(&'static [u8]),
    /// In the trailer: the current line so far, and the size of all lines.
    Trailer(Vec<u8>, usize),
}

/// The state of a body after some bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    /// More is to come.
    More,
    /// It has ended.
    Ended,
    /// It is not valid chunked encoding; nothing that follows can be parsed.
    Malformed,
}

/// A chunked body being parsed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Chunks {
    place: Place,
    excess: u64,
}

impl Chunks {
    pub(super) fn new() -> Self {
        Self { place: Place::Line(Vec::new()), excess: 0 }
    }

    /// Consumes the bytes that belong to the body and appends their canonical form to `out`;
    /// returns how many were consumed.
    pub(super) fn advance(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> (usize, Progress) {
        let mut at = 0;
        while let Some(byte) = bytes.get(at) {
            match &mut self.place {
                Place::Data(left) => {
                    let rest = bytes.get(at..).unwrap_or_default();
                    let most = usize::try_from(*left).unwrap_or(usize::MAX);
                    let data = rest.get(..most.min(rest.len())).unwrap_or_default();
                    out.extend_from_slice(format!("{:x}\r\n", data.len()).as_bytes());
                    out.extend_from_slice(data);
                    out.extend_from_slice(b"\r\n");
                    *left -= u64::try_from(data.len()).unwrap_or(*left);
                    if *left == 0 {
                        self.place = Place::End(b"\r\n");
                    }
                    at += data.len();
                    continue;
                }
                Place::End([wanted, rest @ ..]) if wanted == byte => {
                    self.place = match rest {
                        [] => Place::Line(Vec::new()),
                        rest => Place::End(rest),
                    };
                }
                Place::End(_) => return wrong(out, at),
                Place::Line(line) if *byte == b'\n' => match length(line, self.excess) {
                    None => return wrong(out, at),
                    Some((0, _)) => self.place = Place::Trailer(Vec::new(), 0),
                    Some((length, excess)) => {
                        self.excess = excess;
                        self.place = Place::Data(length);
                    }
                },
                Place::Line(line) => {
                    line.push(*byte);
                    if line.len() > LONGEST_LINE {
                        return wrong(out, at);
                    }
                }
                Place::Trailer(line, _) if *byte == b'\n' => {
                    let line = std::mem::take(line);
                    match line.strip_suffix(b"\r").unwrap_or(&line) {
                        [] => {
                            out.extend_from_slice(LAST);
                            return (at + 1, Progress::Ended);
                        }
                        line if super::is_field(line) => {}
                        _ => return wrong(out, at),
                    }
                }
                Place::Trailer(line, all) => {
                    line.push(*byte);
                    *all += 1;
                    if *all > LONGEST_TRAILER {
                        return wrong(out, at);
                    }
                }
            }
            at += 1;
        }
        (at, Progress::More)
    }
}

/// The length in a line, and the accumulated overhead beyond the data.
fn length(line: &[u8], excess: u64) -> Option<(u64, u64)> {
    let line = line.strip_suffix(b"\r")?;
    let line_bytes = u64::try_from(line.len()).unwrap_or(u64::MAX).saturating_add(2);
    let line = line.trim_ascii_end();
    let digits = line.split(|byte| *byte == b';').next().unwrap_or_default();
    let is_number = !digits.is_empty() && digits.iter().all(u8::is_ascii_hexdigit);
    if !is_number || digits.len() > MOST_DIGITS {
        return None;
    }
    let length = u64::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
    let worth = length.saturating_mul(2).saturating_add(USUAL_LINE);
    let excess = excess.saturating_add(line_bytes).saturating_sub(worth);
    (excess <= MOST_EXCESS).then_some((length, excess))
}

fn wrong(out: &mut Vec<u8>, at: usize) -> (usize, Progress) {
    out.extend_from_slice(BROKEN);
    (at, Progress::Malformed)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The re-encoded bytes, the final state, and the unconsumed rest.
    fn read(bytes: &str, piece: usize) -> (String, Progress, String) {
        let (mut chunks, mut out, mut at) = (Chunks::new(), Vec::new(), 0);
        let bytes = bytes.as_bytes();
        loop {
            let end = bytes.len().min(at + piece);
            let (taken, went) = chunks.advance(&bytes[at..end], &mut out);
            at += taken;
            if went != Progress::More || at == bytes.len() {
                let rest = String::from_utf8_lossy(&bytes[at..]).into_owned();
                return (String::from_utf8(out).unwrap(), went, rest);
            }
        }
    }

    #[test]
    fn chunks_are_said_again_without_what_nobody_needs() {
        let body = "005;a=\"b\"\r\nabcde\r\nA \r\n0123456789\r\n0;x\r\nTrailer: x\r\n\r\nGET";
        let want = "5\r\nabcde\r\na\r\n0123456789\r\n0\r\n\r\n";
        assert_eq!(read(body, 1 << 20), (want.to_owned(), Progress::Ended, "GET".to_owned()));
        let (bytes, went, rest) = read(body, 1);
        assert!(bytes.starts_with("1\r\na\r\n1\r\nb\r\n"), "{bytes}");
        assert_eq!((went, &*rest), (Progress::Ended, "GET"));
    }

    #[test]
    fn what_go_takes_for_no_chunk_ends_everything() {
        let zeros = format!("{}5\r\nabcde\r\n0\r\n\r\n", "0".repeat(65));
        let long = format!("5;{}\r\nabcde\r\n0\r\n\r\n", "x".repeat(5000));
        let trailer = format!("0\r\nA: {}\r\n\r\n", "x".repeat(5000));
        for body in [
            &*zeros,
            &*long,
            &*trailer,
            "5 ;x\r\nabcde\r\n0\r\n\r\n",
            "5\nabcde\r\n0\r\n\r\n",
            "\r\n\r\n",
            "+5\r\nabcde\r\n",
            "5\r\nabcdefg\r\n",
            "5\r\nabcde\n0\r\n\r\n",
            "0\r\nno field\r\n\r\n",
            "0\r\n folded\r\n\r\n",
            "11111111111111111\r\n",
        ] {
            let (out, went, _) = read(body, 1 << 20);
            assert_eq!(went, Progress::Malformed, "{body:?}");
            assert!(out.ends_with("!\r\n"), "{out:?}");
            assert_eq!(read(body, 1).1, Progress::Malformed, "{body:?}");
        }
    }

    #[test]
    fn extensions_must_not_outweigh_the_data() {
        let body = |count: usize| format!("1;{}\r\na\r\n", "x".repeat(80)).repeat(count);
        assert_eq!(read(&body(200), 1 << 20).1, Progress::More);
        assert_eq!(read(&body(300), 1 << 20).1, Progress::Malformed);
        assert_eq!(read(&"1\r\na\r\n".repeat(100_000), 1 << 20).1, Progress::More);
    }
}
