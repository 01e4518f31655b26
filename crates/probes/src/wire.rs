//! One HTTP/1 request and its answer on a connection, with the leniency and the error texts of Go's
//! `net/http`: what a server may get wrong, and what an event says of it, is part of a probe's result.
//!
//! Promises: a head has at most [`MAX_HEAD`] bytes, as Go's has, and all heads that are being read take
//! [`ALL_HEADS`] together, whoever answers how many probes; a body takes what its reader asks for.
//! Deliberately absent: further requests on the same connection.

use base64::Engine as _;
use std::collections::BTreeMap;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{Semaphore, SemaphorePermit};
use units::strconv::{quote, quote_bytes};

/// Bytes that status lines and headers may have.
const MAX_HEAD: usize = 10 << 20;
/// Memory for all heads that are longer than one [`PIECE`], however many probes are under way.
const ALL_HEADS: usize = 32 << 20;
/// What every answer may take, and by which more is taken.
const PIECE: usize = 64 << 10;
/// What a header takes besides its bytes.
const HEADER_COST: usize = 128;
/// What an answer gets that would take more than there is. It is a want of this node, not of the container.
pub(super) const NO_ROOM: &str = "too many long answers at once";
/// A line between chunks.
const MAX_CHUNK_LINE: usize = 4096;
/// How much more than data the chunks of an answer may have.
const MAX_CHUNK_EXCESS: i64 = 16 << 10;

/// Headers by their canonical names, in the order in which Go sends them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Headers(BTreeMap<String, Vec<String>>);

impl Headers {
    /// Those given, in order; names may repeat.
    pub(crate) fn new(given: &[(String, String)]) -> Headers {
        let mut headers = Headers::default();
        for (name, value) in given {
            headers.add(name, value);
        }
        headers
    }

    fn add(&mut self, name: &str, value: &str) {
        self.0.entry(canonical(name)).or_default().push(value.to_owned());
    }

    /// The first value of a header, by its canonical name.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name)?.first().map(String::as_str)
    }

    /// Instead of all values that it has.
    pub(crate) fn set(&mut self, name: &str, value: String) {
        self.0.insert(name.to_owned(), vec![value]);
    }

    /// All of its values.
    pub fn remove(&mut self, name: &str) {
        self.0.remove(name);
    }

    /// One by one.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        let all = self.0.iter();
        all.flat_map(|(name, values)| values.iter().map(|value| (name.as_str(), value.as_str())))
    }

    /// What of them may not be sent.
    pub(crate) fn fault(&self) -> Option<String> {
        let fits =
            |value: &String| value.bytes().all(|byte| byte == b'\t' || !byte.is_ascii_control());
        self.0.iter().find_map(|(name, values)| {
            if name.is_empty() || !name.bytes().all(is_token) {
                Some(format!("net/http: invalid header field name {}", quote(name)))
            } else if !values.iter().all(fits) {
                Some(format!("net/http: invalid header field value for {}", quote(name)))
            } else {
                None
            }
        })
    }

    fn has_token(&self, name: &str, token: &str) -> bool {
        let values = self.0.get(name).into_iter().flatten();
        values
            .flat_map(|value| value.split(','))
            .any(|word| word.trim().eq_ignore_ascii_case(token))
    }
}

/// As Go writes a header's name; one that is none stays as it is.
fn canonical(name: &str) -> String {
    if !name.bytes().all(is_token) {
        return name.to_owned();
    }
    let mut upper = true;
    let letter = |c: char| {
        let c = if upper { c.to_ascii_uppercase() } else { c.to_ascii_lowercase() };
        upper = c == '-';
        c
    };
    name.chars().map(letter).collect()
}

fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// Who asks: their clients are set up differently.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Caller {
    /// Says that it closes the connection.
    Probe,
    /// Would take a packed answer.
    Hook,
}

/// A name and password as a header shows them.
pub(super) fn basic(credentials: &str) -> String {
    format!("Basic {}", base64::engine::general_purpose::STANDARD.encode(credentials))
}

/// A request as it goes over the wire.
pub(super) fn request(uri: &str, host: &str, headers: &Headers, caller: Caller) -> Vec<u8> {
    // One that would not pass as a header is left out.
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"!$%&'()*+,-.:;=[]_~".contains(&byte);
    let host = if host.bytes().all(fits) { host } else { "" };
    let mut text = format!("GET {uri} HTTP/1.1\r\nHost: {}\r\n", without_zone(host));
    let mut line = |name: &str, value: &str| {
        let value = value.replace(['\r', '\n'], " ");
        text.push_str(&format!("{name}: {}\r\n", trim(&value)));
    };
    if let Some(agent) = headers.get("User-Agent").filter(|agent| !agent.is_empty()) {
        line("User-Agent", agent);
    }
    let own = ["Host", "User-Agent", "Content-Length", "Transfer-Encoding", "Trailer"];
    for (name, values) in headers.0.iter().filter(|(name, _)| !own.contains(&name.as_str())) {
        values.iter().for_each(|value| line(name, value));
    }
    match caller {
        Caller::Probe => {
            if ["close", "upgrade"].iter().all(|word| !headers.has_token("Connection", word)) {
                line("Connection", "close");
            }
        }
        Caller::Hook => {
            let chosen = ["Accept-Encoding", "Range"];
            if chosen.iter().all(|name| headers.get(name).unwrap_or_default().is_empty()) {
                line("Accept-Encoding", "gzip");
            }
        }
    }
    text.push_str("\r\n");
    text.into_bytes()
}

/// `[fe80::1%eth0]:80` without what means something here only.
fn without_zone(host: &str) -> String {
    match (host.starts_with('['), host.rfind(']'), host.rfind('%')) {
        (true, Some(end), Some(zone)) if zone < end => {
            format!(
                "{}{}",
                host.get(..zone).unwrap_or_default(),
                host.get(end..).unwrap_or_default()
            )
        }
        _ => host.to_owned(),
    }
}

fn trim(text: &str) -> &str {
    text.trim_matches([' ', '\t', '\r', '\n'])
}

/// Why an answer could not be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Fault {
    /// The connection ended before the first byte.
    Nothing,
    /// The connection broke, in Go's words.
    Broken(String),
    /// It is not what it should be, in Go's words.
    Malformed(String),
}

impl Fault {
    /// What Go says of a head that could not be read.
    pub(super) fn of_head(self) -> String {
        match self {
            Fault::Nothing => "EOF".to_owned(),
            Fault::Broken(text) => text,
            Fault::Malformed(text) => {
                format!("net/http: HTTP/1.x transport connection broken: {text}")
            }
        }
    }

    /// What Go says of a body that could not be read.
    pub(super) fn of_body(self) -> String {
        match self {
            Fault::Nothing => UNEXPECTED_END.to_owned(),
            Fault::Broken(text) | Fault::Malformed(text) => text,
        }
    }
}

const UNEXPECTED_END: &str = "unexpected EOF";

fn malformed<T>(text: impl Into<String>) -> Result<T, Fault> {
    Err(Fault::Malformed(text.into()))
}

/// The first part of an answer.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) status: u16,
    pub(super) headers: Headers,
    /// How the body ends.
    pub(super) body: Framing,
}

/// How a body ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Framing {
    Length(u64),
    Chunks,
    UntilClosed,
}

/// A connection that is read from.
#[derive(Debug)]
pub(super) struct Wire<T> {
    io: T,
    /// What was read and not used yet.
    buffer: Vec<u8>,
    /// How it says that it was reset.
    reset: String,
    ended: bool,
    /// What the head takes, in bytes; nothing is counted any more when its body is read.
    taken: Option<usize>,
    /// Where pieces of [`ALL_HEADS`] are taken from, and its own.
    heads: &'static Semaphore,
    room: Option<SemaphorePermit<'static>>,
}

static HEADS: Semaphore = Semaphore::const_new(ALL_HEADS / PIECE);

impl<T: AsyncRead + AsyncWrite + Unpin> Wire<T> {
    pub(super) fn new(io: T, reset: String) -> Self {
        Self::with(io, reset, &HEADS)
    }

    fn with(io: T, reset: String, heads: &'static Semaphore) -> Self {
        Self { io, buffer: Vec::new(), reset, ended: false, taken: Some(0), heads, room: None }
    }

    /// Counts what an answer takes; beyond a piece only while there is room.
    fn take(&mut self, bytes: usize) -> Result<(), Fault> {
        let Some(taken) = self.taken.as_mut() else { return Ok(()) };
        *taken = taken.saturating_add(bytes);
        let held = self.room.as_ref().map_or(0, SemaphorePermit::num_permits);
        let more = u32::try_from((*taken / PIECE).saturating_sub(held)).unwrap_or(u32::MAX);
        if more == 0 {
            return Ok(());
        }
        let Ok(more) = self.heads.try_acquire_many(more) else {
            return Err(Fault::Broken(NO_ROOM.to_owned()));
        };
        match &mut self.room {
            Some(room) => room.merge(more),
            None => self.room = Some(more),
        }
        Ok(())
    }

    /// Sends a request. If that fails, what is read tells more.
    pub(super) async fn send(&mut self, request: &[u8]) {
        if self.io.write_all(request).await.is_ok() {
            let _ = self.io.flush().await;
        }
    }

    /// Reads more; whether there was more.
    async fn fill(&mut self) -> Result<bool, Fault> {
        if self.ended {
            return Ok(false);
        }
        let mut chunk = [0; 4096];
        match self.io.read(&mut chunk).await {
            Ok(0) => self.ended = true,
            Ok(read) => {
                self.take(read)?;
                self.buffer.extend_from_slice(chunk.get(..read).unwrap_or_default());
            }
            // Closed without the words that TLS has for it: taken for an end.
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => self.ended = true,
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {
                return Err(Fault::Broken(self.reset.clone()));
            }
            Err(error) => return Err(Fault::Broken(error.to_string())),
        }
        Ok(!self.ended)
    }

    /// The next line without its end; `None` at the end of the connection.
    async fn line(&mut self, room: &mut usize) -> Result<Option<Vec<u8>>, Fault> {
        let mut looked = 0;
        loop {
            let end = self.buffer.iter().skip(looked).position(|byte| *byte == b'\n');
            if let Some(end) = end.map(|end| looked + end) {
                let mut line: Vec<u8> = self.buffer.drain(..=end).collect();
                *room = room.saturating_sub(line.len());
                line.pop();
                if line.last() == Some(&b'\r') {
                    line.pop();
                }
                return Ok(Some(line));
            }
            looked = self.buffer.len();
            if looked > *room {
                let text =
                    format!("net/http: server response headers exceeded {MAX_HEAD} bytes; aborted");
                return Err(Fault::Broken(text));
            }
            if !self.fill().await? {
                let line = std::mem::take(&mut self.buffer);
                return Ok((!line.is_empty()).then_some(line));
            }
        }
    }

    /// Status line and headers, after any interim answers.
    pub(super) async fn head(&mut self) -> Result<Head, Fault> {
        if self.buffer.is_empty() && !self.fill().await? {
            return Err(Fault::Nothing);
        }
        let mut room = MAX_HEAD;
        loop {
            let line = self.line(&mut room).await?;
            let Some(line) = line else { return malformed(UNEXPECTED_END) };
            let (status, version) = status_line(&line)?;
            let headers = self.headers(&mut room).await?;
            let interim = (100..200).contains(&status) && status != 101;
            let head = framed(status, version, headers)?;
            if !interim {
                return Ok(head);
            }
        }
    }

    /// The answer to a wish for a tunnel, and the tunnel.
    pub(super) async fn tunnel(mut self) -> Result<(T, Head), Fault> {
        let head = self.head().await?;
        Ok((self.io, head))
    }

    async fn headers(&mut self, room: &mut usize) -> Result<Headers, Fault> {
        let mut headers = Headers::default();
        let blank = |byte: Option<&u8>| matches!(byte, Some(b' ' | b'\t'));
        if self.buffer.is_empty() {
            self.fill().await?;
        }
        if blank(self.buffer.first()) {
            let line = self.line(room).await?.unwrap_or_default();
            let shown = quote_bytes(&line);
            return malformed(format!("malformed MIME header initial line: {shown}"));
        }
        loop {
            let Some(line) = self.line(room).await? else { return malformed(UNEXPECTED_END) };
            if line.is_empty() {
                return Ok(headers);
            }
            if !line.contains(&b':') {
                let shown = quote_bytes(&line);
                return malformed(format!("malformed MIME header: missing colon: {shown}"));
            }
            let mut whole = trimmed(&line).to_vec();
            // A line that begins with a blank goes on with the one before.
            loop {
                if self.buffer.is_empty() {
                    self.fill().await?;
                }
                if !blank(self.buffer.first()) {
                    break;
                }
                let more = self.line(room).await?.unwrap_or_default();
                whole.push(b' ');
                whole.extend_from_slice(trimmed(&more));
            }
            let (name, value) = header_line(&whole)?;
            self.take(HEADER_COST)?;
            headers.0.entry(name).or_default().push(value);
        }
    }

    /// Reads a body until it ends or the bound is reached.
    pub(super) async fn body(&mut self, framing: Framing, max: usize) -> Result<Vec<u8>, Fault> {
        self.taken = None;
        match framing {
            Framing::Length(length) => {
                let wanted = usize::try_from(length).unwrap_or(usize::MAX).min(max);
                self.exactly(wanted).await
            }
            Framing::UntilClosed => {
                while self.buffer.len() < max && self.fill().await? {}
                let length = self.buffer.len().min(max);
                Ok(self.buffer.drain(..length).collect())
            }
            Framing::Chunks => self.chunks(max).await,
        }
    }

    async fn exactly(&mut self, wanted: usize) -> Result<Vec<u8>, Fault> {
        while self.buffer.len() < wanted {
            if !self.fill().await? {
                return malformed(UNEXPECTED_END);
            }
        }
        Ok(self.buffer.drain(..wanted).collect())
    }

    async fn chunks(&mut self, max: usize) -> Result<Vec<u8>, Fault> {
        let (mut body, mut excess) = (Vec::new(), 0i64);
        while body.len() < max {
            let line = self.chunk_line().await?;
            let overhead = i64::try_from(line.len()).unwrap_or(i64::MAX).saturating_add(2);
            let size = chunk_size(&line)?;
            let fair = i64::try_from(size).unwrap_or(i64::MAX).saturating_mul(2).saturating_add(16);
            excess = excess.saturating_add(overhead).saturating_sub(fair).max(0);
            if excess > MAX_CHUNK_EXCESS {
                return malformed("chunked encoding contains too much non-data");
            }
            if size == 0 {
                self.trailer().await?;
                return Ok(body);
            }
            let wanted = usize::try_from(size).unwrap_or(usize::MAX).min(max - body.len());
            body.append(&mut self.exactly(wanted).await?);
            if body.len() < max && self.exactly(2).await? != b"\r\n" {
                return malformed("malformed chunked encoding");
            }
        }
        Ok(body)
    }

    async fn chunk_line(&mut self) -> Result<Vec<u8>, Fault> {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let mut line: Vec<u8> = self.buffer.drain(..=end).collect();
                match line.iter().position(|byte| *byte == b'\r') {
                    None => return malformed("chunked line ends with bare LF"),
                    Some(at) if at + 2 != line.len() => {
                        return malformed("invalid CR in chunked line");
                    }
                    Some(at) => line.truncate(at),
                }
                if line.len() >= MAX_CHUNK_LINE {
                    return malformed("header line too long");
                }
                return Ok(line);
            }
            if self.buffer.len() >= MAX_CHUNK_LINE {
                return malformed("header line too long");
            }
            if !self.fill().await? {
                return malformed(UNEXPECTED_END);
            }
        }
    }

    /// What follows the last chunk; nobody reads it.
    async fn trailer(&mut self) -> Result<(), Fault> {
        while self.buffer.len() < 2 {
            if !self.fill().await? {
                return malformed("http: unexpected EOF reading trailer");
            }
        }
        if self.buffer.starts_with(b"\r\n") {
            self.buffer.drain(..2);
            return Ok(());
        }
        while !self.buffer.windows(4).any(|bytes| bytes == b"\r\n\r\n") {
            if self.buffer.len() >= MAX_CHUNK_LINE || !self.fill().await? {
                return malformed("http: suspiciously long trailer after chunked body");
            }
        }
        let mut room = MAX_CHUNK_LINE * 2;
        self.headers(&mut room).await.map(drop)
    }
}

/// Status and version, major before minor.
fn status_line(line: &[u8]) -> Result<(u16, (u8, u8)), Fault> {
    let Some(at) = line.iter().position(|byte| *byte == b' ') else {
        return malformed(format!("malformed HTTP response {}", quote_bytes(line)));
    };
    let (protocol, rest) = line.split_at(at);
    let mut rest = rest;
    while let [b' ', after @ ..] = rest {
        rest = after;
    }
    let code = rest.split(|byte| *byte == b' ').next().unwrap_or_default();
    let number = std::str::from_utf8(code).ok().filter(|code| code.len() == 3);
    let number = number.and_then(|code| units::strconv::atoi(code).ok());
    let Some(status) = number.and_then(|number| u16::try_from(number).ok()) else {
        return malformed(format!("malformed HTTP status code {}", quote_bytes(code)));
    };
    match protocol {
        [b'H', b'T', b'T', b'P', b'/', major @ b'0'..=b'9', b'.', minor @ b'0'..=b'9'] => {
            Ok((status, (major - b'0', minor - b'0')))
        }
        _ => malformed(format!("malformed HTTP version {}", quote_bytes(protocol))),
    }
}

fn trimmed(line: &[u8]) -> &[u8] {
    let mut line = line;
    while let [b' ' | b'\t', rest @ ..] | [rest @ .., b' ' | b'\t'] = line {
        line = rest;
    }
    line
}

fn header_line(line: &[u8]) -> Result<(String, String), Fault> {
    let bad = || Fault::Malformed(format!("malformed MIME header line: {}", quote_bytes(line)));
    let at = line.iter().position(|byte| *byte == b':').ok_or_else(bad)?;
    let (name, value) = line.split_at(at);
    let value = value.get(1..).unwrap_or_default();
    // A blank before the colon is taken for a part of the name.
    let name_fits = !name.is_empty() && name.iter().all(|byte| is_token(*byte) || *byte == b' ');
    let value_fits = value.iter().all(|byte| *byte == b'\t' || !byte.is_ascii_control());
    if !name_fits || !value_fits {
        return Err(bad());
    }
    let value = String::from_utf8_lossy(value);
    Ok((
        canonical(&String::from_utf8_lossy(name)),
        value.trim_start_matches([' ', '\t']).to_owned(),
    ))
}

/// How the body of an answer ends, which its headers say.
fn framed(status: u16, version: (u8, u8), headers: Headers) -> Result<Head, Fault> {
    let none = Vec::new();
    let values = |name: &str| headers.0.get(name).unwrap_or(&none);
    let version = if version == (0, 0) { (1, 1) } else { version };
    let codings = values("Transfer-Encoding");
    let chunked = match codings.as_slice() {
        _ if version < (1, 1) => false,
        [] => false,
        [one] if one.eq_ignore_ascii_case("chunked") => true,
        [one] => return malformed(format!("unsupported transfer encoding: {}", quote(one))),
        many => return malformed(format!("too many transfer encodings: {}", quoted(many))),
    };
    let lengths = values("Content-Length");
    let first = lengths.first().map(|length| trim(length));
    if lengths.iter().any(|length| Some(trim(length)) != first) {
        let shown = quoted(lengths);
        return malformed(format!(
            "http: message cannot contain multiple Content-Length headers; got {shown}"
        ));
    }
    let length = match first {
        None => None,
        Some("") => return malformed(r#"invalid empty Content-Length """#),
        Some(text) => match units::strconv::parse_uint(text, 10, 63) {
            Ok(length) => Some(length),
            Err(_) => return malformed(format!("bad Content-Length {}", quote(text))),
        },
    };
    if chunked {
        let words = values("Trailer").iter().flat_map(|value| value.split(','));
        let bad = ["Transfer-Encoding", "Trailer", "Content-Length"];
        if let Some(key) = words.map(|w| canonical(trim(w))).find(|w| bad.contains(&w.as_str())) {
            return malformed(format!("bad trailer key {}", quote(&key)));
        }
    }
    let switches = status == 101
        && headers.has_token("Connection", "upgrade")
        && headers.get("Upgrade").is_some_and(|protocol| !protocol.is_empty());
    let body = match (status, length) {
        (101, _) if switches => Framing::UntilClosed,
        (100..200 | 204 | 304, _) => Framing::Length(0),
        _ if chunked => Framing::Chunks,
        (_, Some(length)) => Framing::Length(length),
        (_, None) => Framing::UntilClosed,
    };
    Ok(Head { status, headers, body })
}

fn quoted(texts: &[String]) -> String {
    let quoted: Vec<String> = texts.iter().map(|text| quote(text)).collect();
    format!("[{}]", quoted.join(" "))
}

fn chunk_size(line: &[u8]) -> Result<u64, Fault> {
    let mut line = line;
    while let [rest @ .., b' ' | b'\t'] = line {
        line = rest;
    }
    let digits = line.split(|byte| *byte == b';').next().unwrap_or_default();
    if digits.is_empty() {
        return malformed("empty hex number for chunk length");
    }
    let mut size = 0u64;
    for (at, digit) in digits.iter().enumerate() {
        let Some(digit) = char::from(*digit).to_digit(16) else {
            return malformed("invalid byte in chunk length");
        };
        if at == 16 {
            return malformed("http chunk length too large");
        }
        size = size << 4 | u64::from(digit);
    }
    Ok(size)
}

/// Reads an answer of which every byte is there: how long its body is.
#[cfg(any(test, fuzzing))]
pub(crate) async fn read_whole(bytes: &[u8]) -> Option<usize> {
    const MOST: usize = 10 << 10;
    let mut wire = Wire::new(tokio::io::join(bytes, tokio::io::sink()), String::new());
    let head = wire.head().await.ok()?;
    let body = wire.body(head.body, MOST).await.ok()?;
    assert!(body.len() <= MOST, "a body beyond its bound");
    Some(body.len())
}

#[cfg(test)]
mod tests;
