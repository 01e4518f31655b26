//! Headers put together from parts: media types, credentials, upgrades, ranges and conditions.

use super::super::random::RandomAsks;
use super::super::table::PATHS;
use super::super::{Ask, EVERYBODY, Who};

/// Longer than a name of a file can be.
const LONG_NAME: &str = concat!(
    "long-name-long-name-long-name-long-name-long-name-long-name-long-name-long-name-long-name",
    "long-name-long-name-long-name-long-name-long-name-long-name-long-name-long-name-long-name",
    "long-name-long-name-long-name-long-name-long-name-long-name-long-name-long-name-long-name",
);

impl RandomAsks {
    /// Lists of media types with parameters, in one header or several.
    pub(super) fn media(&mut self) -> Ask {
        let path = self.of(&[
            "/pods",
            "/runningpods/",
            "/stats/summary",
            "/healthz",
            "/metrics",
            "/metrics/cadvisor",
            "/metrics/resource",
            "/metrics/probes",
            "/metrics/slis",
            "/configz",
            "/flagz",
            "/statusz",
            "/logs/dpkg.log",
            "/containerLogs/aa1/run/c",
            "/debug/pprof/cmdline",
        ]);
        let mut ask = Ask::new("GET", path);
        for _ in 0..=self.below(2) {
            let mut ranges = Vec::new();
            for _ in 0..=self.below(3) {
                let mut range = self
                    .of(&[
                        "*/*",
                        "application/json",
                        "application/*",
                        "text/plain",
                        "text/html",
                        "application/yaml",
                        "application/openmetrics-text",
                        "application/vnd.google.protobuf",
                        "application/vnd.kubernetes.protobuf",
                        "application/cbor",
                        "APPLICATION/json",
                        "x",
                        "/",
                        "",
                    ])
                    .to_owned();
                for _ in 0..self.below(4) {
                    let mark = self.of(&[";", "; ", " ;", ";;"]);
                    let parameter = self.of(&[
                        "q=1",
                        "q=0",
                        "q=0.5",
                        "q=0.001",
                        "q=2",
                        "q=x",
                        "q=",
                        "Q=0.1",
                        "q=.5",
                        "q=-1",
                        "version=0.0.4",
                        "version=1.0.0",
                        "version=0.0.1",
                        "version=2",
                        "proto=io.prometheus.client.MetricFamily",
                        "encoding=delimited",
                        "encoding=text",
                        "encoding=compact-text",
                        "escaping=underscores",
                        "escaping=allow-utf-8",
                        "escaping=dots",
                        "escaping=x",
                        "charset=utf-8",
                        "as=Flagz",
                        "as=Statusz",
                        "g=config.k8s.io",
                        "v=v1beta1",
                        "v=v1alpha1",
                        "as=Table",
                        "x",
                        "=",
                        "a=\"b\"",
                        "a=\"b",
                    ]);
                    range = format!("{range}{mark}{parameter}");
                }
                ranges.push(range);
            }
            ask = ask.with("Accept", &ranges.join(self.of(&[",", ", ", " , "])));
        }
        if self.once_in(3) {
            let encodings = self.of(&[
                "gzip",
                "gzip, deflate",
                "gzip;q=0",
                "gzip;q=0.0",
                "gzip;q=0.001",
                "identity;q=0",
                "*;q=0",
                "*",
                "x-gzip",
                "zstd, gzip",
                "zstd;q=1, gzip;q=0.1",
                "identity;q=1, gzip;q=0.5",
                "gzip;q=x",
                " gzip ",
                "",
                "GZIP",
                "gzipx",
                "br;q=1.0, gzip;q=0.8, *;q=0.1",
            ]);
            ask = ask.with("Accept-Encoding", encodings);
        }
        ask
    }

    pub(super) fn credentials(&mut self) -> Ask {
        let path = self.of(PATHS);
        let mut ask = Ask::new(self.of(&["GET", "GET", "POST"]), path);
        ask.who = self.of(&EVERYBODY);
        for _ in 0..=self.below(2) {
            let scheme =
                self.of(&["Bearer", "bearer", "BEARER", "Basic", "Token", "", "Bearer:", "bEaReR"]);
            let space = self.of(&[" ", " ", " ", "  ", "\t", "", " \t "]);
            let token = self.of(&[
                "admin-token",
                "token-of-reader",
                "token-of-nobody",
                "nonsense",
                "",
                "admin-token ",
                "admin-token\t",
                "admin-token x",
                "ADMIN-TOKEN",
                "\"admin-token\"",
                "admin-token,token-of-nobody",
                "a.b.c",
                "eyJhbGciOiJSUzI1NiJ9.e30.x",
                "ü",
                "%61dmin-token",
            ]);
            ask = ask.with("Authorization", &format!("{scheme}{space}{token}"));
        }
        ask
    }

    pub(super) fn upgrade(&mut self) -> Ask {
        let verb = self.of(&["exec", "attach", "portForward", "exec"]);
        let place = self.of(&[
            "aa1/run",
            "aa1/run",
            "aa1/run",
            "aa1/term",
            "aa1/done",
            "aa1/none",
            "aa1/init",
            "aa1/eph",
            "aa1/pull",
            "kube-system/still-node1",
        ]);
        let container = match verb {
            "portForward" => self.of(&["", "", "/<uid-run>", "/other", "/c"]),
            _ => self.of(&[
                "/c",
                "/c",
                "/quiet",
                "/none",
                "/<uid-run>/c",
                "/other/c",
                "/first",
                "/side",
                "/long",
                "/short",
                "",
            ]),
        };
        let mut parts = Vec::new();
        for _ in 0..self.below(5) {
            let key = self.of(&[
                "output",
                "input",
                "error",
                "tty",
                "command",
                "port",
                "stdin",
                "stdout",
                "stderr",
                "container",
            ]);
            let value = match key {
                "command" => self.of(&["true", "ls", "", "none", "%ff", "sh%20-c"]).to_owned(),
                "port" => self
                    .of(&["8080", "80", "0", "x", "65536", "8080,1", "", "-1", "1-2"])
                    .to_owned(),
                _ => self.of(&["1", "1", "0", "true", "", "2", "01", "1,1"]).to_owned(),
            };
            parts.push(format!("{key}={value}"));
        }
        let method = self.of(&["GET", "POST", "GET", "POST", "PUT", "HEAD"]);
        let mut ask = Ask::new(method, &format!("/{verb}/{place}{container}?{}", parts.join("&")));
        ask = ask.with(
            "Connection",
            self.of(&[
                "Upgrade",
                "upgrade",
                "UPGRADE",
                "keep-alive, Upgrade",
                "close, upgrade",
                "Upgrade,",
                "upgraded",
                "close",
            ]),
        );
        ask = ask.with(
            "Upgrade",
            self.of(&[
                "SPDY/3.1",
                "spdy/3.1",
                "SPDY/3",
                "websocket",
                "WebSocket",
                "websocket, SPDY/3.1",
                "h2c",
                "TLS/1.0",
                "",
            ]),
        );
        if self.once_in(3) {
            for _ in 0..=self.below(2) {
                ask = ask.with(
                    "X-Stream-Protocol-Version",
                    self.of(&[
                        "v5.channel.k8s.io",
                        "v4.channel.k8s.io",
                        "v3.channel.k8s.io",
                        "v2.channel.k8s.io",
                        "channel.k8s.io",
                        "",
                        "v9",
                        "portforward.k8s.io",
                    ]),
                );
            }
        }
        if self.below(3) > 0 {
            ask = ask.with(
                "Sec-WebSocket-Key",
                self.of(&["dGhlIHNhbXBsZSBub25jZQ==", "dGhlIHNhbXBsZSBub25jZQ==", "x", "", "dGhl"]),
            );
            ask = ask
                .with("Sec-WebSocket-Version", self.of(&["13", "13", "13", "8", "", "x", "13, 8"]));
            let mut protocols = Vec::new();
            for _ in 0..self.below(4) {
                protocols.push(self.of(&[
                    "v5.channel.k8s.io",
                    "v4.channel.k8s.io",
                    "v4.base64.channel.k8s.io",
                    "channel.k8s.io",
                    "base64.channel.k8s.io",
                    "SPDY/3.1+portforward.k8s.io",
                    "portforward.k8s.io",
                    "V5.CHANNEL.K8S.IO",
                    "x",
                    "",
                    "base64url.bearer.authorization.k8s.io.YWRtaW4tdG9rZW4",
                    "base64url.bearer.authorization.k8s.io.",
                    "base64url.bearer.authorization.k8s.io.bm9uc2Vuc2U",
                ]));
            }
            if !protocols.is_empty() {
                ask = ask.with("Sec-WebSocket-Protocol", &protocols.join(self.of(&[", ", ","])));
            }
            if self.once_in(6) {
                ask =
                    ask.with("Origin", self.of(&["http://evil", "https://node:10250", "null", ""]));
            }
            if self.once_in(4) {
                ask.who = self.of(&[Who::Anonymous, Who::Nobody, Who::Streamer]);
            }
        }
        ask
    }

    /// Files of the node's logs: ranges, conditions, listings.
    pub(super) fn file(&mut self) -> Ask {
        let path = self.of(&[
            "dpkg.log",
            "dpkg.log",
            "dpkg.log",
            "apt/",
            "apt/history.log",
            "apt",
            "none",
            "apt/../dpkg.log",
            "",
            "dpkg.log/x",
            "apt/index.html",
            "index.html",
            "%64pkg.log",
            "./dpkg.log",
            "dpkg.log?x=y",
            "alternatives.log",
            "apt/term.log",
            LONG_NAME,
            "dpkg.log/x/y",
            "a%00b",
            "a%ffb",
        ]);
        let mut ask =
            Ask::new(self.of(&["GET", "GET", "GET", "HEAD", "POST"]), &format!("/logs/{path}"));
        if self.below(3) > 0 {
            let mut ranges = Vec::new();
            for _ in 0..=self.below(3) {
                let bound = |rng: &mut RandomAsks| match rng.below(5) {
                    0 => String::new(),
                    1 => rng
                        .of(&["x", "-1", " 1", "1 ", "99999999999999999999", "+1", "1.5"])
                        .to_owned(),
                    _ => rng.below(60).to_string(),
                };
                ranges.push(format!("{}-{}", bound(self), bound(self)));
            }
            let unit = self
                .of(&["bytes=", "bytes=", "bytes=", "bytes =", "Bytes=", "lines=", "bytes", ""]);
            ask = ask.with("Range", &format!("{unit}{}", ranges.join(self.of(&[",", ", ", ",,"]))));
        }
        if self.once_in(3) {
            let name = self.of(&[
                "If-Modified-Since",
                "If-Unmodified-Since",
                "If-Range",
                "If-Match",
                "If-None-Match",
            ]);
            let value = self.of(&[
                "Fri, 01 Jan 2100 00:00:00 GMT",
                "Fri, 01 Jan 2010 00:00:00 GMT",
                "Friday, 01-Jan-10 00:00:00 GMT",
                "Fri Jan  1 00:00:00 2010",
                "x",
                "",
                "*",
                "\"x\"",
                "W/\"x\"",
                "\"x\", \"y\"",
                "\"x",
                "0",
            ]);
            ask = ask.with(name, value);
        }
        if self.once_in(6) {
            ask = ask.with("Accept-Encoding", "gzip");
        }
        ask
    }
}
