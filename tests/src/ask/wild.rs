//! Requests that are put together from parts rather than picked: paths of odd segments, values of
//! every form, lists of media types, credentials, upgrades, bodies, and good requests with a few
//! characters changed on the wire.
//!
//! Nothing here asks a running container for a log without an end: both kubelets would wait. Nor for
//! the last seconds of a container that starts again and again, each kubelet in its own rhythm.

mod headers;
mod lines;

use super::random::RandomAsks;
use super::{Ask, EVERYBODY};

impl RandomAsks {
    /// A request of one of these kinds.
    pub(super) fn wild(&mut self) -> Ask {
        let mut ask = match self.below(12) {
            0 | 1 => self.container_log(),
            2 => self.media(),
            3 => self.credentials(),
            4 => self.upgrade(),
            5 => self.path(),
            6 => self.options(),
            7 => self.file(),
            8 => self.bodies(),
            9 => self.log_query(),
            10 => self.no_text(),
            _ => return self.mistyped(),
        };
        if self.once_in(8) {
            ask.who = self.of(&EVERYBODY);
        }
        if self.once_in(40) {
            ask.version = "HTTP/1.0";
        }
        ask
    }

    fn container_log(&mut self) -> Ask {
        let path = self.of(&[
            "aa1/run/c",
            "aa1/run/quiet",
            "aa1/done/c",
            "aa1/pull/c",
            "aa1/init/first",
            "aa1/init/side",
            "aa1/init/c",
            "aa1/eph/c",
            "aa1/eph/short",
            "aa1/eph/long",
            "aa1/none/c",
            "aa1/run/none",
            "kube-system/still-node1/c",
            "aa1/once/c",
            "aa1/once/c",
            "aa1/talk/c",
            "aa1/talk/c",
            "aa1/talk/c",
            "aa1/leave/c",
            "aa1/hold/c",
            "aa1/hold/first",
            "aa1/start/c",
            "aa1/conf/c",
            "aa1/deny/c",
        ]);
        let ended = ["aa1/done/c", "aa1/start/c", "aa1/init/first", "aa1/eph/short", "aa1/deny/c"];
        let mut parts = Vec::new();
        if ended.contains(&path) && self.once_in(3) {
            parts.push(format!("follow={}", self.switch()));
        }
        for _ in 0..=self.below(3) {
            let key = self.of(&[
                "tailLines",
                "tailLines",
                "limitBytes",
                "sinceSeconds",
                "sinceTime",
                "sinceTime",
                "timestamps",
                "previous",
                "stream",
                "tail",
                "pretty",
                "container",
                "taillines",
            ]);
            let value = match key {
                "sinceTime" => self.time(),
                "timestamps" | "previous" => self.switch(),
                "stream" => self
                    .of(&["All", "Stdout", "Stderr", "all", "stdout", "", "Stdout,Stderr"])
                    .to_owned(),
                "limitBytes" if self.once_in(2) => self.below(70_000).to_string(),
                "tailLines" if self.once_in(2) => self.below(130).to_string(),
                _ => self.number(),
            };
            parts.push(format!("{key}={value}"));
        }
        // Times are not all equally long: where a limit cuts between them is each kubelet's own.
        if parts.iter().any(|part| part.starts_with("timestamps")) {
            let cuts = |part: &String| {
                let limit = part.strip_prefix("limitBytes=");
                limit.and_then(|limit| limit.parse::<u64>().ok()).is_some_and(|limit| limit > 19)
            };
            parts.retain(|part| !cuts(part));
        }
        Ask::new("GET", &format!("/containerLogs/{path}?{}", parts.join("&")))
    }

    pub(super) fn number(&mut self) -> String {
        match self.below(10) {
            0 => self
                .of(&["", "x", "-", "1e3", "0x1", "0b1", "0o7", "1_0", "٣", "1,2", "nan"])
                .to_owned(),
            1 => self
                .of(&["%2B5", "+5", "%205", "5%20", "5%00", "%35", "05", "-0", "1.0", "5\u{a0}"])
                .to_owned(),
            2 => self
                .of(&[
                    "9223372036854775807",
                    "9223372036854775808",
                    "-9223372036854775808",
                    "18446744073709551616",
                    "2147483648",
                    "4294967296",
                    "99999999999999999999999",
                ])
                .to_owned(),
            3 => format!("-{}", self.below(100)),
            4 => self.below(100_000).to_string(),
            _ => self.below(12).to_string(),
        }
    }

    fn switch(&mut self) -> String {
        self.of(&[
            "true",
            "false",
            "1",
            "0",
            "",
            "TRUE",
            "False",
            "t",
            "f",
            "yes",
            "no",
            "null",
            "%00",
            "true,false",
            "2",
            "%74rue",
            "+",
            "on",
        ])
        .to_owned()
    }

    pub(super) fn time(&mut self) -> String {
        if self.once_in(3) {
            return self
                .of(&[
                    "",
                    "x",
                    "now",
                    "0",
                    "1700000000",
                    "null",
                    "2020-01-01",
                    "2020-01-01T00:00:00",
                    "2020-01-01 00:00:00Z",
                    "20200101T000000Z",
                    "2020-1-1T0:0:0Z",
                    "0000-01-01T00:00:00Z",
                    "9999-12-31T23:59:59Z",
                    "10000-01-01T00:00:00Z",
                    "-0001-01-01T00:00:00Z",
                    "1969-12-31T23:59:59Z",
                    "%222020-01-01T00:00:00Z%22",
                ])
                .to_owned();
        }
        let month = self.of(&["01", "02", "12", "13", "00"]);
        let day = self.of(&["01", "28", "29", "30", "31", "00"]);
        let hour = self.of(&["00", "23", "24"]);
        let minute = self.of(&["00", "59", "60"]);
        let second = self.of(&["00", "59", "60", "61"]);
        let part = self.of(&["", "", ".5", ",5", ".123456789", ".1234567891", "."]);
        let zone = self.of(&[
            "Z", "Z", "z", "%2B00:00", "+01:00", "-23:59", "%2B24:00", "%2B0100", "%2B01", "",
        ]);
        let year = self.of(&["2020", "2024", "2100", "1970"]);
        format!("{year}-{month}-{day}T{hour}:{minute}:{second}{part}{zone}")
    }

    fn options(&mut self) -> Ask {
        let mut pairs = Vec::new();
        let keys: &[&str] = &[
            "verbose",
            "exclude",
            "only_cpu_and_memory",
            "cmd",
            "timeout",
            "debug",
            "seconds",
            "x",
            "port",
            "%6fnly_cpu_and_memory",
            "only_cpu_and_memory%20",
            "",
        ];
        for _ in 0..=self.below(3) {
            let key = self.of(keys);
            let value = match self.below(4) {
                0 => self.number(),
                1 => self.switch(),
                2 => self
                    .of(&[
                        "ping",
                        "log",
                        "syncloop",
                        "device-plugin",
                        "ping,log",
                        "*",
                        "\"",
                        "%22",
                        "echo+a",
                        "echo%20%20b",
                        "sh%20-c%20exit%203",
                    ])
                    .to_owned(),
                _ => String::new(),
            };
            let mark = if self.once_in(8) { self.of(&["", "==", "%3d"]) } else { "=" };
            pairs.push(format!("{key}{mark}{value}"));
        }
        let query = pairs.join(self.of(&["&", "&", "&", "&&", ";"]));
        let path = self.of(&[
            "/healthz",
            "/healthz/ping",
            "/healthz/log",
            "/healthz/syncloop",
            "/stats/summary",
            "/stats/summary",
            "/pods",
            "/metrics/slis",
            "/configz",
            "/runningpods/",
        ]);
        if self.once_in(4) {
            let path = self.of(&[
                "/run/aa1/run/c",
                "/run/aa1/done/c",
                "/run/aa1/init/side",
                "/run/aa1/eph/long",
            ]);
            return Ask::new("POST", &format!("{path}?{query}"));
        }
        if self.once_in(6) {
            let path = self.of(&[
                "/checkpoint/aa1/none/c",
                "/checkpoint/aa1/run/none",
                "/checkpoint/aa1/done/c",
            ]);
            return Ask::new("POST", &format!("{path}?{query}"));
        }
        Ask::new("GET", &format!("{path}?{query}"))
    }
}
