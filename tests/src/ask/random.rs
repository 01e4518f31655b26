//! Requests by chance: good ones bent in one or several ways.

use super::table::{ACCEPTS, LOG_QUERIES, METHODS, PATHS, STREAM_QUERIES};
use super::{Ask, EVERYBODY};
use crate::answers::decoded;

/// Numbers by chance, the same for the same seed.
#[derive(Debug, Clone)]
pub struct RandomAsks(u64);

impl RandomAsks {
    /// From a seed.
    #[must_use]
    pub fn new(seed: u64) -> RandomAsks {
        RandomAsks(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub(super) fn below(&mut self, most: usize) -> usize {
        usize::try_from(self.next() >> 16).unwrap_or(0) % most.max(1)
    }

    pub(super) fn of<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len())]
    }

    pub(super) fn once_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    /// A request that may be odd in several ways at once.
    pub fn ask(&mut self) -> Ask {
        if self.once_in(2) {
            return self.wild();
        }
        let mut target = self.of(PATHS).to_owned();
        if self.once_in(4) {
            let bent = self.bend(&target);
            let bent = if bent.starts_with('/') { bent } else { format!("/{bent}") };
            target = if is_plain(&bent) { bent } else { target };
        }
        if self.once_in(2) {
            let pools = [LOG_QUERIES, STREAM_QUERIES, ODD_QUERIES];
            let mut query = Vec::new();
            for _ in 0..=self.below(3) {
                let pool = self.of(&pools);
                query.push(self.of(pool));
            }
            target = format!("{target}?{}", query.join("&"));
        }
        let often = ["GET", "GET", "GET", "POST"];
        let method = match self.below(10) {
            0 => self.of(ODD_METHODS),
            1 => self.of(&METHODS),
            _ => self.of(&often),
        };
        let mut ask = Ask::new(method, &target);
        if self.once_in(4) {
            ask.who = self.of(&EVERYBODY);
        }
        if self.once_in(4) {
            let accept = self.of(ACCEPTS);
            ask = ask.with("Accept", accept);
        }
        if self.once_in(5) {
            ask = ask.with("Connection", self.of(&["Upgrade", "upgrade", "keep-alive, Upgrade"]));
            ask = ask.with("Upgrade", self.of(&["SPDY/3.1", "websocket", "WebSocket", "h2c", "x"]));
            if self.once_in(2) {
                ask = ask.with("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ==");
                ask = ask.with("Sec-WebSocket-Version", "13");
            }
            if self.once_in(2) {
                let protocols = [
                    "v4.channel.k8s.io",
                    "v5.channel.k8s.io",
                    "portforward.k8s.io",
                    "channel.k8s.io",
                ];
                ask = ask.with("Sec-WebSocket-Protocol", self.of(&protocols));
            }
        }
        if self.once_in(8) {
            ask =
                ask.with("Accept-Encoding", self.of(&["gzip", "identity", "gzip;q=0", "deflate"]));
        }
        for _ in 0..self.below(6).saturating_sub(3) {
            let (name, value) = self.of(ODD_HEADERS);
            ask = ask.with(name, value);
        }
        if ask.method != "GET" && ask.method != "HEAD" && self.once_in(3) {
            let bodies = ["", "4", "x=y", "only_cpu_and_memory=true", "{}"];
            ask = ask.body(self.of(&bodies));
            if self.once_in(2) {
                let kinds =
                    ["application/x-www-form-urlencoded", "application/json", "text/plain", "x"];
                ask = ask.with("Content-Type", self.of(&kinds));
            }
        }
        if self.once_in(30) {
            ask.version = "HTTP/1.0";
        }
        ask
    }

    /// The path in another spelling, or broken.
    fn bend(&mut self, path: &str) -> String {
        let at = self.below(path.len().max(1));
        let at = (0..=at).rev().find(|at| path.is_char_boundary(*at)).unwrap_or(0);
        let (head, tail) = path.split_at(at);
        match self.below(16) {
            0 => format!("{path}/"),
            1 => path.replacen('/', "//", 2),
            2 => format!("{path}/../{}", self.of(&["x", "", "c"])),
            3 => format!("/.{path}"),
            4 => {
                let byte = tail.bytes().next().unwrap_or(b'x');
                format!("{head}%{byte:02x}{}", tail.get(1..).unwrap_or_default())
            }
            5 => format!(
                "{head}%{}{tail}",
                self.of(&["zz", "", "2", "00", "2f", "2F", "25", "3f", "20"])
            ),
            6 => path.to_uppercase(),
            7 => format!("{path}/{}", self.of(&["x", ".", "..", "%2e", "a/b", " ".trim(), "é"])),
            8 => format!(
                "{head}{}{tail}",
                self.of(&[";", "+", "~", "'", "\"", "|", "\\", "{", "ü", "@", ":"])
            ),
            9 => head.to_owned(),
            12 => format!("{path}/%2e%2e%2f{}", self.of(&["pods", "..", ""])),
            13 => format!("{head}%252f{tail}"),
            14 => format!("{head};a=b{tail}"),
            15 => format!("{head}{}{tail}", self.of(&["%ff", "%c3%bc", "%0a", "%0d%0a", "%7f"])),
            10 => format!("{path}{}", self.of(&["x", "*", "%", "."])),
            _ => format!("/x{path}"),
        }
    }
}

/// Whether the names that each twin has its own of are written so that they are found.
pub(super) fn is_plain(path: &str) -> bool {
    let decoded = decoded(path);
    [("aa1", "%61a1"), ("node1", "node1")].iter().all(|(name, other)| {
        let spelled = if name == other { 0 } else { path.matches(other).count() };
        decoded.matches(name).count() == path.matches(name).count() + spelled
    })
}

const ODD_QUERIES: &[&str] = &[
    "verbose",
    "verbose=1",
    "exclude=ping",
    "exclude=log",
    "exclude=x",
    "only_cpu_and_memory=true",
    "cmd=echo%20a",
    "cmd=true",
    "port=80",
    "port=x",
    "timeout=1",
    "timeout=x",
    "query=x",
    "x=y",
    "=",
    "&",
    "a=b=c",
    "%",
    "%41=1",
    "+",
    "debug=1",
    "seconds=1",
    "x=%00",
    "x=ü",
    "tailLines=1&tailLines=2",
    "limitBytes=0",
    "sinceSeconds=0",
    "sinceSeconds=1&sinceTime=2020-01-01T00:00:00Z",
    "follow=maybe",
    "previous=TRUE",
    "timestamps=T",
    "insecureSkipTLSVerifyBackend=true",
    "stream=Stdout&tailLines=1",
    "stream=All",
    "command=%ff",
    "command=",
    "uid=x",
    "x=%ff",
    "a;b",
    "a%3bb=1",
];

/// Methods that nobody uses here.
const ODD_METHODS: &[&str] =
    &["get", "PROPFIND", "LINK", "M-SEARCH", "PURGE", "LOCK", "X", "POSTS"];

/// Headers of proxies, browsers, attackers and old clients.
const ODD_HEADERS: &[(&str, &str)] = &[
    ("Expect", "100-continue"),
    ("Expect", "x"),
    ("Range", "bytes=0-3"),
    ("Range", "bytes=x"),
    ("If-Modified-Since", "Thu, 01 Jan 2037 00:00:00 GMT"),
    ("If-Unmodified-Since", "Thu, 01 Jan 1998 00:00:00 GMT"),
    ("If-None-Match", "*"),
    ("If-Match", "\"x\""),
    ("Content-Encoding", "gzip"),
    ("Content-Type", "multipart/form-data"),
    ("Origin", "http://evil"),
    ("Referer", "http://evil/"),
    ("Cookie", "a=b"),
    ("Forwarded", "for=127.0.0.1"),
    ("X-Forwarded-For", "127.0.0.1"),
    ("X-Forwarded-Uri", "/pods"),
    ("X-Original-URL", "/pods"),
    ("X-Remote-User", "admin"),
    ("X-Remote-Group", "system:masters"),
    ("Impersonate-User", "admin"),
    ("Impersonate-Group", "system:masters"),
    ("Max-Forwards", "0"),
    ("Accept-Language", "de"),
    ("User-Agent", "kube-probe/1.36"),
    ("User-Agent", ""),
    ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
    ("traceparent", "x"),
    ("X-Stream-Protocol-Version", "v4.channel.k8s.io"),
    ("X-Stream-Protocol-Version", "v9"),
    ("Sec-WebSocket-Extensions", "permessage-deflate"),
    ("Host", "[::1]:1"),
    ("Host", "a:b:c"),
    ("TE", "trailers"),
    ("Pragma", "no-cache"),
    ("Via", "1.0 x"),
];
