//! Probes and hooks.

use serde_json::{Value, json};

use super::Draw;

/// What answers in a container.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Server {
    /// Nothing listens.
    None,
    /// HTTP on this port.
    Http(u64),
}

impl Draw {
    /// Probes of a container that stays.
    pub(super) fn probes(&mut self, container: &mut Value, server: Server) {
        if self.rng.once_in(5) {
            container["readinessProbe"] = self.probe(server, 4);
            self.maybe(&mut container["readinessProbe"], "successThreshold", 4, &json!([2, 3]));
        }
        if self.rng.once_in(7) {
            container["livenessProbe"] = self.probe(server, 5);
            let probe = &mut container["livenessProbe"];
            self.maybe(probe, "terminationGracePeriodSeconds", 4, &json!([1, 2]));
        }
        if self.rng.once_in(8) {
            container["startupProbe"] = self.probe(server, 6);
            let probe = &mut container["startupProbe"];
            self.maybe(probe, "terminationGracePeriodSeconds", 5, &json!([1, 2]));
        }
    }

    /// One that fails once in so many times.
    fn probe(&mut self, server: Server, bad: usize) -> Value {
        let fails = self.rng.once_in(bad);
        let mut probe = match (server, fails) {
            (Server::Http(port), false) => self.one(&json!([
                { "httpGet": { "port": port, "path": "/healthz" } },
                { "httpGet": { "port": port } },
                { "httpGet": { "port": "web", "path": "echo?msg=hi&code=204" } },
                { "httpGet": { "port": port, "path": "/echo?msg=a%20b&code=302", "httpHeaders": [{ "name": "X-One", "value": "1" }] } },
                { "httpGet": { "port": port, "path": "/header?key=User-Agent" } },
                { "tcpSocket": { "port": port } },
                { "tcpSocket": { "port": "web" } },
            ])),
            (Server::Http(port), true) => self.one(&json!([
                { "httpGet": { "port": port, "path": "/echo?msg=no%20way&code=500" } },
                { "httpGet": { "port": port, "path": "/echo?msg=&code=404" } },
                { "httpGet": { "port": "web", "path": "/not-there" } },
                { "httpGet": { "port": "nope", "path": "/" } },
                { "grpc": { "port": port } },
            ])),
            (Server::None, false) => self.one(&json!([
                { "exec": { "command": ["true"] } },
                { "exec": { "command": ["sh", "-c", "echo fine; exit 0"] } },
                { "exec": { "command": ["sh", "-c", "test -n \"$0\"", "x$(V0)"] } },
                { "exec": { "command": ["test", "-d", "/"] } },
            ])),
            (Server::None, true) => self.one(&json!([
                { "exec": { "command": ["sh", "-c", "echo out; echo err >&2; exit 3"] } },
                { "exec": { "command": ["cat", "/not-there"] } },
                { "exec": { "command": ["/not/there"] } },
                { "exec": { "command": ["false"] } },
                { "exec": { "command": ["sleep", "3"] } },
                { "tcpSocket": { "port": 1 } },
                { "httpGet": { "port": 1, "path": "/x" } },
                { "grpc": { "port": 1, "service": "s" } },
            ])),
        };
        self.settles &= !fails;
        probe["periodSeconds"] = json!(1 + self.rng.below(2));
        self.maybe(&mut probe, "initialDelaySeconds", 3, &json!([1, 2, 3]));
        self.maybe(&mut probe, "failureThreshold", 2, &json!([1, 2, 3]));
        self.maybe(&mut probe, "timeoutSeconds", 3, &json!([1, 2]));
        probe
    }

    /// Hooks of a container.
    pub(super) fn hooks(&mut self, container: &mut Value, server: Server) {
        let mut list = json!([
            { "exec": { "command": ["true"] } },
            { "exec": { "command": ["sh", "-c", "sleep 1"] } },
            { "exec": { "command": ["sh", "-c", "echo $0 > /dev/termination-log", "$(V0)"] } },
            { "sleep": { "seconds": 1 } },
        ]);
        let bad = json!([
            { "exec": { "command": ["sh", "-c", "echo bad; exit 4"] } },
            { "exec": { "command": ["/not/there"] } },
            { "httpGet": { "port": 1, "path": "/" } },
            { "httpGet": { "port": "nope", "path": "/" } },
            { "tcpSocket": { "port": 1 } },
        ]);
        let more = match server {
            Server::Http(port) => json!([
                { "httpGet": { "port": port, "path": "/echo?msg=x" } },
                { "httpGet": { "port": "web", "path": "echo?msg=x&code=200", "httpHeaders": [{ "name": "Host", "value": "h" }] } },
            ]),
            Server::None => json!([]),
        };
        // A server may not listen yet when its first hook runs.
        let mut stop = list.clone();
        for (all, more) in [(&mut list, &json!([])), (&mut stop, &more)] {
            if let Some(all) = all.as_array_mut() {
                all.extend(more.as_array().into_iter().flatten().cloned());
            }
        }
        let mut lifecycle = json!({});
        if self.rng.once_in(9) {
            let fails = self.rng.once_in(4);
            self.settles &= !fails;
            lifecycle["postStart"] = self.one(if fails { &bad } else { &list });
        }
        if self.rng.once_in(7) {
            let fails = self.rng.once_in(4);
            lifecycle["preStop"] = self.one(if fails { &bad } else { &stop });
        }
        if lifecycle != json!({}) {
            container["lifecycle"] = lifecycle;
        }
    }
}
