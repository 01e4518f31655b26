//! Turns of life that a pod of features alone rarely takes: containers that fail once and recover, servers of
//! other protocols, files that one container writes for another, deletions at odd moments.
//!
//! Numbers below [`FIRST`] have none of it, so that they draw what they always drew.

use serde_json::{Value, json};

use super::{AGNHOST, BUSYBOX, Draw};

/// The first number whose pods may have a theme.
pub(super) const FIRST: u64 = 10_000;

/// The first number whose pods may have a startup probe beside a liveness probe that fails.
const PAIRS: u64 = 20_000;

pub(super) const STAYS: &str = "trap 'exit 0' TERM; sleep 3600 & wait";
const STUBBORN: &str = "trap '' TERM; sleep 3600 & wait; wait";

impl Draw {
    /// Puts the pod into some turn of life; what its client does then, if that is part of it.
    pub(super) fn theme(&mut self, pod: &mut Value) -> Option<Value> {
        if self.faulty || self.rng.once_in(5) {
            return None;
        }
        let spec = &mut pod["spec"];
        // What ends, or fails, at a time of its own may do so before or after a deadline.
        if let Some(fields) = spec.as_object_mut() {
            fields.remove("activeDeadlineSeconds");
        }
        match self.rng.below(13) {
            0 => self.restarts_all(spec),
            1 | 2 => self.dies_of_its_probe(spec),
            3 => self.speaks_grpc(spec),
            4 => self.speaks_tls(spec),
            5 => self.ends_hard(spec),
            6 => return self.resizes_pod(spec),
            7 => self.reads_files(spec),
            8 => return self.goes_early(spec),
            9 => self.fails_a_hook_once(spec),
            10 => self.init_fails_once(spec),
            11 => self.has_own_policies(spec),
            _ => self.times_out(spec),
        }
        None
    }

    /// A container that all kinds of probes and hooks were taken from, to be given others: a sidecar once in a
    /// few times.
    pub(super) fn chosen<'a>(&mut self, spec: &'a mut Value) -> &'a mut Value {
        let side = spec["initContainers"].as_array().and_then(|list| {
            list.iter().position(|one| one["name"].as_str().is_some_and(|n| n.starts_with('s')))
        });
        let one = match side {
            Some(at) if self.rng.once_in(2) => &mut spec["initContainers"][at],
            _ => &mut spec["containers"][0],
        };
        one["image"] = json!(BUSYBOX);
        for field in [
            "livenessProbe",
            "readinessProbe",
            "startupProbe",
            "lifecycle",
            "args",
            "ports",
            "tty",
            "stdin",
        ] {
            if let Some(fields) = one.as_object_mut() {
                fields.remove(field);
            }
        }
        one
    }

    /// One exits and has all begin anew, once.
    fn restarts_all(&mut self, spec: &mut Value) {
        self.settles = false;
        let at = self.next_end();
        let one = &mut spec["containers"][0];
        once(one, &format!("sleep {at}; exit 42"), STAYS);
        one["image"] = json!(BUSYBOX);
        one["restartPolicy"] = self.one(&json!(["Never", "OnFailure", "Always"]));
        one["restartPolicyRules"] = json!([{ "action": "RestartAllContainers",
            "exitCodes": { "operator": "In", "values": [42] } }]);
        forget(one, &["args", "tty", "stdin", "livenessProbe", "startupProbe"]);
        with_once(spec);
    }

    /// One is killed for what its probe says, once.
    fn dies_of_its_probe(&mut self, spec: &mut Value) {
        self.settles = false;
        let after = 3 + self.rng.below(3);
        let rest = self.word(&[STAYS, STAYS, STUBBORN]);
        let liveness = self.rng.once_in(2);
        let threshold = 1 + self.rng.below(2);
        let start = self.rng.once_in(2);
        let hook = self.one(&json!([
            null, null, { "exec": { "command": ["sleep", "1"] } }, { "sleep": { "seconds": 1 } },
            { "exec": { "command": ["false"] } },
        ]));
        let grace = self.one(&json!([null, null, 1, 3]));
        let ready = self.rng.once_in(3);
        let period = 1 + self.rng.below(3);
        let paired = self.seed >= PAIRS;
        let one = self.chosen(spec);
        let bad = json!({ "exec": { "command": ["test", "!", "-e", "/tmp/bad"] },
            "periodSeconds": 1, "failureThreshold": threshold });
        let good = json!({ "exec": { "command": ["true"] }, "periodSeconds": period });
        if liveness {
            once(one, &format!("(sleep {after}; touch /tmp/bad) & {rest}"), rest);
            if start && paired {
                one["startupProbe"] = good.clone();
            }
            one["livenessProbe"] = bad;
            if !grace.is_null() {
                one["livenessProbe"]["terminationGracePeriodSeconds"] = grace;
            }
        } else {
            once(one, &format!("touch /tmp/bad; {rest}"), rest);
            one["startupProbe"] = bad;
            if !grace.is_null() {
                one["startupProbe"]["terminationGracePeriodSeconds"] = grace;
            }
            if start {
                one["livenessProbe"] = good.clone();
            }
        }
        // Beside such a pair the Go kubelet asks for readiness before the next instance has started.
        if ready && !(start && paired && liveness) {
            one["readinessProbe"] = good;
        }
        if !hook.is_null() {
            one["lifecycle"] = json!({ "preStop": hook });
        }
        rootless(one);
        with_once(spec);
    }

    fn speaks_grpc(&mut self, spec: &mut Value) {
        // Its second port is none that another container of the pod may have.
        let (port, http) = (self.port, 24_000 + self.seed % 1_000);
        let bad = self.rng.once_in(4);
        let service = self.one(&json!([null, "", "other"]));
        let unhealthy = self.rng.once_in(3);
        let kind = self.word(&["livenessProbe", "readinessProbe", "startupProbe"]);
        let one = self.chosen(spec);
        one["image"] = json!(AGNHOST);
        let mut args = vec![
            "grpc-health-checking".to_owned(),
            format!("--port={port}"),
            format!("--http-port={http}"),
        ];
        if unhealthy {
            args.push("--delay-unhealthy-sec=6".to_owned());
        }
        one["args"] = json!(args);
        forget(one, &["command"]);
        let mut grpc = json!({ "port": if bad { http } else { port } });
        if !service.is_null() {
            grpc["service"] = service.clone();
        }
        one[kind] =
            json!({ "grpc": grpc, "periodSeconds": 2, "failureThreshold": 2, "timeoutSeconds": 1 });
        rootless(one);
        self.settles &= !bad && !unhealthy && service != json!("other");
    }

    fn speaks_tls(&mut self, spec: &mut Value) {
        let port = self.port;
        let kind = self.word(&["livenessProbe", "readinessProbe", "startupProbe"]);
        let plain = self.rng.once_in(4);
        let path = self.word(&[
            "/healthz",
            "/echo?msg=x&code=302",
            "/header?key=User-Agent",
            "/echo?msg=&code=500",
        ]);
        let hook = self.rng.once_in(2);
        let one = self.chosen(spec);
        one["image"] = json!(AGNHOST);
        let mut args =
            vec!["netexec".to_owned(), format!("--http-port={port}"), "--udp-port=-1".to_owned()];
        if !plain {
            args.push("--tls-cert-file=/localhost.crt".to_owned());
            args.push("--tls-private-key-file=/localhost.key".to_owned());
        }
        one["args"] = json!(args);
        forget(one, &["command"]);
        let get = json!({ "port": port, "path": path, "scheme": "HTTPS" });
        one[kind] = json!({ "httpGet": get, "periodSeconds": 2, "failureThreshold": 2 });
        if hook {
            one["lifecycle"] = json!({ "preStop": { "httpGet": get } });
        }
        rootless(one);
        self.settles &= !plain && !path.ends_with("500");
    }

    /// Grace periods at their edges, with those who do not mind them.
    fn ends_hard(&mut self, spec: &mut Value) {
        spec["terminationGracePeriodSeconds"] = self.one(&json!([0, 0, -1, 1, 4]));
        let run = self.word(&[STAYS, STUBBORN, "trap 'sleep 3; exit 7' TERM; sleep 3600 & wait"]);
        let hook = self.one(&json!([
            { "exec": { "command": ["sh", "-c", "sleep 6"] } },
            { "exec": { "command": ["sh", "-c", "echo x > /dev/termination-log; sleep 1; exit 3"] } },
            { "exec": { "command": ["/not/there"] } },
            { "sleep": { "seconds": 0 } },
            { "httpGet": { "port": 1, "scheme": "HTTPS", "path": "/x" } },
        ]));
        let one = self.chosen(spec);
        one["command"] = json!(["sh", "-c", run]);
        one["lifecycle"] = json!({ "preStop": hook });
    }

    /// What all containers share grows and shrinks.
    fn resizes_pod(&mut self, spec: &mut Value) -> Option<Value> {
        if !self.settles {
            return None;
        }
        spec["resources"] = json!({ "requests": { "cpu": "100m", "memory": "200Mi" }, "limits": { "cpu": "400m", "memory": "400Mi" } });
        for list in ["containers", "initContainers"] {
            for one in spec[list].as_array_mut().into_iter().flatten() {
                forget(one, &["resources", "resizePolicy"]);
                if self.rng.once_in(3) {
                    one["resources"] = self.one(&json!([
                        { "requests": { "cpu": "20m", "memory": "20Mi" } },
                        { "requests": { "cpu": "10m" }, "limits": { "cpu": "200m", "memory": "100Mi" } },
                    ]));
                }
            }
        }
        let mut steps = Vec::new();
        for _ in 0..=self.rng.below(2) {
            let patch = self.one(&json!([
                { "spec": { "resources": { "limits": { "cpu": "600m" } } } },
                { "spec": { "resources": { "requests": { "cpu": "150m", "memory": "250Mi" } } } },
                { "spec": { "resources": { "limits": { "memory": "500Mi" } } } },
                { "spec": { "resources": { "requests": { "cpu": "120m" }, "limits": { "cpu": "300m", "memory": "390Mi" } } } },
                { "spec": { "resources": { "requests": { "cpu": "1000" }, "limits": { "cpu": "1000" } } } },
            ]));
            steps.push(json!({ "patch": patch, "subresource": "resize",
                "when": { "/conditions/Ready": ["True", ""] }, "after_ms": 4000 }));
        }
        Some(json!(steps))
    }

    /// One writes variables for another.
    fn reads_files(&mut self, spec: &mut Value) {
        let lines = self.word(&[
            "A=1\\nB='two words'\\n",
            "# note\\nA='x'\\n\\nB='y=z'\\n",
            "A='$(V0)'\\nB=''\\n",
            "A='1'\\nA='2'\\nB='3'\\n",
            "A=plain\\n",
            "export A='1'\\nB='2'\\n",
        ]);
        let optional = self.rng.once_in(2);
        let file = self.word(&["env", "deep/env"]);
        let name = format!("i{}", spec["initContainers"].as_array().map_or(0, Vec::len));
        push(
            spec,
            "initContainers",
            json!({ "name": name, "image": BUSYBOX,
            "command": ["sh", "-c", format!("mkdir -p /files/deep; printf \"{lines}\" > /files/{file}")],
            "volumeMounts": [{ "name": "files", "mountPath": "/files" }] }),
        );
        push(spec, "volumes", json!({ "name": "files", "emptyDir": {} }));
        let one = &mut spec["containers"][0];
        for key in ["A", "B"] {
            let from =
                json!({ "volumeName": "files", "path": file, "key": key, "optional": optional });
            push(
                one,
                "env",
                json!({ "name": format!("F{key}"), "valueFrom": { "fileKeyRef": from } }),
            );
        }
        self.settles = false;
    }

    /// The client does not wait until all is well.
    fn goes_early(&mut self, spec: &mut Value) -> Option<Value> {
        self.settles = false;
        let grace = [0, 1, 2, 4][self.rng.below(4)];
        let moment = self.rng.below(5);
        let mut step = match moment {
            0 => {
                push(
                    spec,
                    "initContainers",
                    json!({ "name": "i9", "image": BUSYBOX,
                    "command": ["sh", "-c", self.word(&["sleep 30", STAYS, STUBBORN])] }),
                );
                json!({ "when": { "/init/i9/0": "running" }, "after_ms": 3000 })
            }
            1 => {
                let run = self.word(&[STAYS, STUBBORN]);
                let one = self.chosen(spec);
                one["command"] = json!(["sh", "-c", run]);
                one["lifecycle"] =
                    json!({ "postStart": { "exec": { "command": ["sleep", "8"] } } });
                json!({ "event": "Started", "after_ms": 4000 })
            }
            2 => {
                let one = self.chosen(spec);
                one["command"] = json!(["sh", "-c", STAYS]);
                one["startupProbe"] = json!({ "exec": { "command": ["false"] }, "periodSeconds": 2, "failureThreshold": 60 });
                json!({ "event": "Unhealthy", "after_ms": 3000 })
            }
            3 => {
                push(
                    spec,
                    "containers",
                    json!({ "name": "z", "image": "registry.k8s.io/never-there:6" }),
                );
                json!({ "event": "BackOff", "after_ms": 4000 })
            }
            _ => {
                let one = self.chosen(spec);
                one["command"] = json!(["sh", "-c", "sleep 1; exit 3"]);
                forget(one, &["restartPolicyRules"]);
                json!({ "event": "BackOff", "after_ms": 4000 })
            }
        };
        step["delete"] = json!(grace);
        Some(json!([step]))
    }

    fn fails_a_hook_once(&mut self, spec: &mut Value) {
        self.settles = false;
        let run = self.word(&[STAYS, STUBBORN, "sleep 20; exit 1"]);
        let fails = self.word(&["exit 9", "sleep 3; exit 9", "echo no; sleep 1; false"]);
        let stop = self.one(&json!([null, { "sleep": { "seconds": 0 } }, { "exec": { "command": ["sleep", "1"] } }]));
        let one = self.chosen(spec);
        let name = one["name"].as_str().unwrap_or_default().to_owned();
        once(one, run, STAYS);
        one["command"] = json!(["sh", "-c", run]);
        let hook = format!("test -e /once/{name} && exit 0; touch /once/{name}; {fails}");
        one["lifecycle"] = json!({ "postStart": { "exec": { "command": ["sh", "-c", hook] } } });
        if !stop.is_null() {
            one["lifecycle"]["preStop"] = stop;
        }
        rootless(one);
        with_once(spec);
    }

    /// The first of all fails once, under every policy that lets it try again.
    fn init_fails_once(&mut self, spec: &mut Value) {
        self.settles = false;
        let code = [1, 42][self.rng.below(2)];
        let mut first = json!({ "name": "i9", "image": BUSYBOX });
        once(&mut first, &format!("sleep 2; exit {code}"), "sleep 1");
        let own = self.one(&json!([null, "Never", "OnFailure"]));
        if !own.is_null() {
            first["restartPolicy"] = own;
            if self.rng.once_in(2) {
                let action = self.word(&["Restart", "RestartAllContainers"]);
                first["restartPolicyRules"] = json!([{ "action": action, "exitCodes": { "operator": "In", "values": [42] } }]);
            }
        }
        let mut list = vec![first];
        list.extend(spec["initContainers"].as_array().into_iter().flatten().cloned());
        spec["initContainers"] = json!(list);
        with_once(spec);
    }

    /// Each container ends in its own way, and has its own policy for it.
    fn has_own_policies(&mut self, spec: &mut Value) {
        self.settles = false;
        let count = spec["containers"].as_array().map_or(0, Vec::len);
        for at in 0..count {
            let end = self.next_end();
            let code = [0, 1, 42][self.rng.below(3)];
            let again = self.word(&[STAYS, "sleep 2", "sleep 2; exit 5"]);
            let policy = self.word(&["Never", "OnFailure", "Always"]);
            let rule = self.rng.once_in(2);
            let one = &mut spec["containers"][at];
            one["image"] = json!(BUSYBOX);
            once(one, &format!("sleep {end}; exit {code}"), again);
            one["restartPolicy"] = json!(policy);
            forget(
                one,
                &[
                    "restartPolicyRules",
                    "args",
                    "livenessProbe",
                    "readinessProbe",
                    "startupProbe",
                    "lifecycle",
                    "ports",
                    "tty",
                    "stdin",
                ],
            );
            if rule {
                one["restartPolicyRules"] = self.one(&json!([
                    [{ "action": "Restart", "exitCodes": { "operator": "In", "values": [42] } }],
                    [{ "action": "Restart", "exitCodes": { "operator": "NotIn", "values": [0, 5] } }],
                    [{ "action": "Restart", "exitCodes": { "operator": "In", "values": [1, 42] } },
                     { "action": "RestartAllContainers", "exitCodes": { "operator": "In", "values": [0] } }],
                ]));
            }
            rootless(&mut spec["containers"][at]);
        }
        with_once(spec);
    }

    /// Probes that take longer than they may.
    fn times_out(&mut self, spec: &mut Value) {
        self.settles = false;
        let kind = self.word(&["livenessProbe", "readinessProbe", "startupProbe"]);
        let command = self.word(&[
            "sleep 4",
            "echo out; sleep 4",
            "trap '' TERM; sleep 4; echo late",
            "sleep 2; exit 3",
        ]);
        let threshold = 2 + self.rng.below(2);
        let run = self.word(&[STAYS, STUBBORN]);
        let own = self.one(&json!([null, 1, 2]));
        let one = self.chosen(spec);
        one["command"] = json!(["sh", "-c", run]);
        one[kind] = json!({ "exec": { "command": ["sh", "-c", command] }, "timeoutSeconds": 1, "periodSeconds": 2,
            "failureThreshold": threshold });
        if kind != "readinessProbe" && !own.is_null() {
            one[kind]["terminationGracePeriodSeconds"] = own;
        }
    }
}

/// Has a container do one thing at its first run, and another from then on.
fn once(container: &mut Value, first: &str, then: &str) {
    let name = container["name"].as_str().unwrap_or_default().to_owned();
    container["command"] = json!([
        "sh",
        "-c",
        format!("test -e /once/{name} && {{ {then}; exit $?; }}; touch /once/{name}; {first}")
    ]);
    let mounted = container["volumeMounts"].as_array().into_iter().flatten();
    if !mounted.into_iter().any(|mount| mount["name"] == "once") {
        push(container, "volumeMounts", json!({ "name": "once", "mountPath": "/once" }));
    }
}

/// The volume that knows what has happened once.
fn with_once(spec: &mut Value) {
    let known =
        spec["volumes"].as_array().is_some_and(|list| list.iter().any(|v| v["name"] == "once"));
    if !known {
        push(spec, "volumes", json!({ "name": "once", "emptyDir": {} }));
    }
}

/// Takes from a container what would keep it from writing where it must.
pub(super) fn rootless(container: &mut Value) {
    forget(container, &["securityContext"]);
}

pub(super) fn forget(object: &mut Value, fields: &[&str]) {
    if let Some(object) = object.as_object_mut() {
        object.retain(|name, _| !fields.contains(&name.as_str()));
    }
}

pub(super) fn push(object: &mut Value, list: &str, item: Value) {
    match object[list].as_array_mut() {
        Some(list) => list.push(item),
        None => object[list] = json!([item]),
    }
}
