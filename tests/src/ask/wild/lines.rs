//! Request lines, bodies and whole requests that are not what a client would send.

use super::super::Ask;
use super::super::random::{RandomAsks, is_plain};
use super::super::table::{METHODS, PATHS};

impl RandomAsks {
    /// Odd segments between odd separators, some characters escaped.
    pub(super) fn path(&mut self) -> Ask {
        const SEGMENTS: &[&str] = &[
            "pods",
            "run",
            "exec",
            "attach",
            "portForward",
            "containerLogs",
            "logs",
            "stats",
            "summary",
            "metrics",
            "cadvisor",
            "healthz",
            "ping",
            "debug",
            "pprof",
            "flags",
            "v",
            "configz",
            "runningpods",
            "checkpoint",
            "aa1",
            "c",
            "none",
            "<uid-run>",
            "",
            ".",
            "..",
            "...",
            "x",
            "*",
            "%2e%2e",
            "%2f",
            "a%20b",
            "é",
            "~",
            "api",
            "v1",
            "dpkg.log",
            "apt",
            "statusz",
            "flagz",
            "probes",
            "slis",
            "resource",
            "syncloop",
            "cmdline",
        ];
        let mut path = if self.once_in(2) {
            self.of(PATHS).trim_end_matches('/').to_owned()
        } else {
            String::new()
        };
        for _ in 0..self.below(6) {
            let mark =
                if self.once_in(8) { self.of(&["//", "/./", "\\", "%2F", ";", "/;"]) } else { "/" };
            path = format!("{path}{mark}{}", self.of(SEGMENTS));
        }
        if self.once_in(3) {
            let mut escaped = String::new();
            for c in path.chars() {
                if c.is_ascii_alphanumeric()
                    && self.once_in(6)
                    && !path.contains("<uid")
                    && !path.contains("aa1")
                {
                    escaped.push_str(&format!("%{:02x}", u32::from(c)));
                } else {
                    escaped.push(c);
                }
            }
            path = if is_plain(&escaped) { escaped } else { path };
        }
        if !path.starts_with('/') {
            path.insert(0, '/');
        }
        if self.once_in(4) {
            path.push_str(
                self.of(&["?", "?x", "?a=b&a=c", "?%", "?a=%zz", "?;", "??", "?/../", "#x"]),
            );
        }
        if self.once_in(12) {
            let host = self.of(&[
                "http://node:10250",
                "https://x",
                "http://",
                "http://u@node",
                "HTTP://node",
                "http://node:x",
            ]);
            path = format!("{host}{path}");
        }
        let method = if self.once_in(4) { self.of(&METHODS) } else { "GET" };
        Ask::new(method, &path)
    }

    /// Queries of the node's logs: services, files, times and patterns.
    pub fn log_query(&mut self) -> Ask {
        let mut parts = Vec::new();
        for _ in 0..=self.below(2) {
            let name = self.of(&[
                "dpkg",
                "dpkg",
                "x",
                "/dpkg.log",
                "apt/history.log",
                "/none",
                "../x",
                "a\\b",
                "",
                "%20",
                "dpkg.log",
                "a@b:c",
                "a%2fb",
                "./dpkg.log",
                "apt",
                "/apt",
                "/dpkg.log/x",
            ]);
            parts.push(format!("query={name}"));
        }
        for _ in 0..self.below(4) {
            let key =
                self.of(&["pattern", "pattern", "sinceTime", "untilTime", "tailLines", "boot"]);
            let value = match key {
                "pattern" => self.pattern(),
                "sinceTime" | "untilTime" => self.time(),
                _ => self.number(),
            };
            parts.push(format!("{key}={value}"));
        }
        Ask::new("GET", &format!("/logs/?{}", parts.join("&")))
    }

    /// A pattern of a few parts, each of which may be good.
    fn pattern(&mut self) -> String {
        const PARTS: &[&str] = &[
            "a",
            "b",
            ".",
            "*",
            "%2B",
            "?",
            "|",
            "(",
            ")",
            "(?i)",
            "(?:",
            "(?P<n>",
            "(?<n>",
            "(?P<",
            "(?=",
            "(?-s:",
            "(?",
            "[a-z]",
            "[z-a]",
            "[",
            "]",
            "[^",
            "[]",
            "[[:alpha:]]",
            "[[:x:]]",
            "{2}",
            "{2,}",
            "{3,2}",
            "{1001}",
            "{",
            "{,3}",
            "{40}",
            "\\d",
            "\\y",
            "\\",
            "\\p{Greek}",
            "\\p{x}",
            "\\pL",
            "\\x41",
            "\\x{41}",
            "\\x{",
            "\\x4",
            "\\1",
            "\\012",
            "\\Q*\\E",
            "\\b",
            "\\C",
            "^",
            "$",
            "%C3%BC",
            "-",
            "\\]",
            "**",
        ];
        (0..=self.below(5)).map(|_| self.of(PARTS)).collect()
    }

    /// Bodies where none is expected, and where one is; of a length or in chunks.
    pub(super) fn bodies(&mut self) -> Ask {
        let path = self.of(&[
            "/stats/summary",
            "/stats/summary",
            "/run/aa1/run/c",
            "/run/aa1/run/c?cmd=true",
            "/debug/flags/v",
            "/pods",
            "/healthz",
            "/none",
            "/checkpoint/aa1/none/c",
            "/exec/aa1/run/c?output=1",
            "/exec/aa1/run/c",
            "/attach/aa1/run/c?input=0",
            "/portForward/aa1/run",
            "/containerLogs/aa1/run/c",
            "/metrics/slis",
        ]);
        let method = self.of(&["POST", "POST", "PUT", "GET", "DELETE", "PATCH", "OPTIONS"]);
        let body = self.of(&[
            "",
            "4",
            "5",
            "-1",
            "x",
            "only_cpu_and_memory=true",
            "cmd=echo%20b",
            "cmd=true&cmd=false",
            "output=1",
            "input=1&tty=1&error=1",
            "--b\r\nContent-Disposition: form-data; name=output\r\n\r\n1\r\n--b--",
            "--b\nContent-Disposition: form-data; name=error\n\n1\n--b--\n",
            "--b \r\nX: y\r\nContent-disposition: FORM-DATA; name=\"input\"\r\n\r\n1\r\n--b-- \r\n",
            "--b\r\nContent-Disposition: form-data; name=output; filename=x\r\n\r\n1\r\n--b--",
            "a=b&a",
            "%zz",
            "{}",
            "--b\r\nContent-Disposition: form-data; name=\"cmd\"\r\n\r\ntrue\r\n--b--\r\n",
            "\u{feff}4",
            "4\r\n",
            "cmd=a;b",
        ]);
        let kind = self.of(&[
            "",
            "application/x-www-form-urlencoded",
            "application/x-www-form-urlencoded; charset=utf-8",
            "multipart/form-data; boundary=b",
            "multipart/form-data",
            "application/json",
            "text/plain",
            "APPLICATION/X-WWW-FORM-URLENCODED",
            "x",
            "a/b; c=\"",
            "application/x-www-form-urlencoded;",
        ]);
        let mut ask = Ask::new(method, path);
        if !kind.is_empty() {
            ask = ask.with("Content-Type", kind);
        }
        if self.once_in(3) {
            let chunked = match body.len() {
                0 => "0\r\n\r\n".to_owned(),
                size => format!("{size:x}\r\n{body}\r\n0\r\n\r\n"),
            };
            let head = ask.with("Transfer-Encoding", "chunked").text();
            let mut raw = Ask::new(method, path);
            raw.raw = Some(format!("{head}{chunked}"));
            return raw;
        }
        // Not in chunks: upstream may meet the runtime's refusal before it has sent them all.
        if self.once_in(5) {
            ask = ask.with("Connection", "Upgrade");
            ask = ask.with("Upgrade", self.of(&["SPDY/3.1", "websocket"]));
        }
        ask.body(body)
    }

    /// Bytes that are no text, anywhere in a target or in a header.
    pub(super) fn no_text(&mut self) -> Ask {
        let path = self.of(&[
            "/pods",
            "/healthz",
            "/none",
            "/stats/summary",
            "/metrics",
            "/logs/none",
            "/logs/dpkg.log",
            "/containerLogs/aa1/none/c",
            "/containerLogs/aa1/run/none",
            "/exec/aa1/none/c?output=1",
            "/attach/aa1/none/c?output=1",
            "/portForward/aa1/none",
            "/checkpoint/aa1/none/c",
            "/run/aa1/none/c?cmd=true",
            "/flagz",
            "/debug/pprof/none",
            "/healthz?exclude=ping&verbose",
            "/containerLogs/aa1/done/c?tailLines=1",
        ]);
        let odd =
            self.of(&["\u{f7ff}", "\u{f780}", "\u{f7c3}\u{f7bc}", "\u{f7c3}%28", "ü\u{f7fe}"]);
        let method = if path.starts_with("/run") || path.starts_with("/checkpoint") {
            "POST"
        } else {
            "GET"
        };
        if self.once_in(2) {
            // Behind what each twin has its own of.
            let least = path.find("aa1").map_or(1, |at| at + 3);
            let at = least + self.below(path.len() - least + 1);
            let (head, tail) = path.split_at(at);
            return Ask::new(method, &format!("{head}{odd}{tail}"));
        }
        let name = self.of(&[
            "Accept",
            "Accept-Encoding",
            "Authorization",
            "Content-Type",
            "Host",
            "Range",
            "Connection",
            "Upgrade",
            "Sec-WebSocket-Protocol",
            "User-Agent",
            "Expect",
            "Transfer-Encoding",
            "If-Modified-Since",
            "X-Other",
        ]);
        let value = self.of(&["", "a", "*/*, ", "text/plain;x=", "bytes=0-", "Bearer ", "gzip, "]);
        Ask::new(method, path).with(name, &format!("{value}{odd}"))
    }

    /// A good request with a few characters changed, none of which makes a server wait for more.
    pub(super) fn mistyped(&mut self) -> Ask {
        let path =
            self.of(&["/healthz", "/pods", "/none", "/stats/x", "/logs/none", "/metrics/slis"]);
        let mut ask = Ask::new("GET", path).with("Accept", "*/*").with("X-A", "b c");
        if self.once_in(2) {
            ask = ask.with("Accept-Encoding", "identity");
        }
        let mut text: Vec<char> = ask.text().chars().collect();
        let end = text.len() - 4;
        for _ in 0..=self.below(2) {
            let at = self.below(end - 1);
            let odd = self.of(&[
                ' ', '\t', ':', ';', ',', '/', '\\', '?', '#', '%', '*', '"', '\'', '(', ')', '<',
                '>', '@', '[', ']', '{', '}', '=', '\u{0}', '\u{1}', '\u{7f}', '\u{b}', '\u{c}',
                'é', 'A', 'z', '0', '1', '.', '-', '_', '~', '^', '|', '\r', '\n',
            ]);
            match self.below(3) {
                // A line's end is left in place: without it the next one would be swallowed.
                0 if !['\r', '\n'].contains(&text[at]) => text[at] = odd,
                1 if !['\r', '\n'].contains(&text[at]) && text.len() - 4 > end / 2 => {
                    text[at] = ' ';
                }
                _ => text.insert(at, odd),
            }
        }
        let mut raw = Ask::new("GET", path);
        raw.raw = Some(text.into_iter().collect());
        raw
    }
}
