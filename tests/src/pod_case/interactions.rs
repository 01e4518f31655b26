//! Things that rarely meet: somebody who acts behind the kubelet's back in the runtime, who judges the pod in its
//! status, debuggers of what is over or has not begun, resizes in the middle of trouble, deadlines in odd moments,
//! sidecars whose rules restart all.
//!
//! Numbers below [`FIRST`] have none of it, so that they draw what they always drew.

use serde_json::{Value, json};

use super::themes::{STAYS, forget, push, rootless};
use super::{AGNHOST, BUSYBOX, Draw};

/// The first number whose pods may have such a meeting.
pub(super) const FIRST: u64 = 50_000;

impl Draw {
    /// Has the pod meet something; what its client does then, if that is part of it.
    pub(super) fn interaction(&mut self, pod: &mut Value) -> Option<Value> {
        if self.faulty {
            return None;
        }
        forget(&mut pod["spec"], &["activeDeadlineSeconds"]);
        match self.rng.below(12) {
            0..=3 => return self.loses_in_the_runtime(&mut pod["spec"]),
            4 | 5 => return self.is_judged(&mut pod["spec"]),
            6 => return Some(self.is_debugged_oddly(&mut pod["spec"])),
            7 => return Some(self.resizes_in_trouble(&mut pod["spec"])),
            8 => return self.runs_out_of_time(&mut pod["spec"]),
            9 => self.has_sidecars_with_rules(&mut pod["spec"]),
            10 => self.shares_what_it_has(&mut pod["spec"]),
            _ => self.is_served_by_others(&mut pod["spec"]),
        }
        None
    }

    /// Somebody stops or removes what the kubelet has made.
    fn loses_in_the_runtime(&mut self, spec: &mut Value) -> Option<Value> {
        if !self.settles {
            return None;
        }
        let mut names = Vec::new();
        for (list, all) in [("containers", true), ("initContainers", false)] {
            for one in spec[list].as_array().into_iter().flatten() {
                if all || one["restartPolicy"] == "Always" {
                    names.push(one["name"].clone());
                }
            }
        }
        if self.rng.once_in(3) {
            spec["restartPolicy"] = json!(self.word(&["Never", "OnFailure", "Always"]));
        }
        let mut steps = Vec::new();
        for _ in 0..=self.rng.below(2) {
            // What is removed has its number counted on by us, and forgotten by the Go kubelet.
            let act = self.word(&["stopp", "stopp", "stop -t 0", "stop -t 1"]);
            let mut step =
                json!({ "runtime": act, "when": { "/phase": "Running" }, "after_ms": 6000 });
            if act != "stopp" {
                step["container"] = names[self.rng.below(names.len())].clone();
            }
            steps.push(step);
        }
        self.settles = false;
        Some(json!(steps))
    }

    /// Others say in the status what is to become of the pod.
    fn is_judged(&mut self, spec: &mut Value) -> Option<Value> {
        if !self.settles {
            return None;
        }
        let stubborn = self.rng.once_in(3);
        if stubborn {
            let one = self.chosen(spec);
            one["command"] = json!(["sh", "-c", "trap 'sleep 1; exit 4' TERM; sleep 3600 & wait"]);
        }
        let condition = |kind: &str, status: &str| {
            json!({ "conditions": [{ "type": kind, "status": status, "reason": "Judged",
                "message": "by others", "lastTransitionTime": "2026-01-01T00:00:00Z" }] })
        };
        let all = json!([
            { "phase": "Failed" },
            { "phase": "Failed", "reason": "NodeLost", "message": "gone" },
            { "phase": "Succeeded" },
            { "phase": "Pending" },
            { "phase": "Unknown", "reason": "NodeLost" },
            { "reason": "Odd", "message": "words" },
            { "podIP": null, "podIPs": null },
            { "startTime": "2020-01-01T00:00:00Z" },
            { "qosClass": "Guaranteed" },
            { "nominatedNodeName": "node2" },
            { "observedGeneration": 77 },
            { "containerStatuses": null },
            { "initContainerStatuses": null, "containerStatuses": null },
            condition("DisruptionTarget", "True"),
            condition("Ready", "False"),
            condition("Initialized", "False"),
            condition("PodScheduled", "False"),
            condition("PodResizePending", "True"),
            condition("AllContainersRestarting", "True"),
            condition("example.com/other", "True"),
        ]);
        let mut steps = Vec::new();
        for _ in 0..=self.rng.below(2) {
            steps.push(json!({ "patch": { "status": self.one(&all) }, "subresource": "status",
                "when": { "/phase": "Running" }, "after_ms": 5000 }));
        }
        self.settles = false;
        Some(json!(steps))
    }

    /// Debuggers that come before the rest has begun, after it is over, or while it fails.
    fn is_debugged_oddly(&mut self, spec: &mut Value) -> Value {
        self.settles = false;
        let when = match self.rng.below(4) {
            0 => {
                push(
                    spec,
                    "initContainers",
                    json!({ "name": "i9", "image": BUSYBOX, "command": ["sh", "-c", "sleep 12"] }),
                );
                json!({ "/init/i9/0": "running" })
            }
            1 => {
                spec["restartPolicy"] = json!("Never");
                let count = spec["containers"].as_array().map_or(0, Vec::len);
                for at in 0..count {
                    let one = &mut spec["containers"][at];
                    one["image"] = json!(BUSYBOX);
                    one["command"] = json!(["sh", "-c", format!("sleep {}", 2 + at * 2)]);
                    forget(
                        one,
                        &[
                            "args",
                            "restartPolicy",
                            "restartPolicyRules",
                            "livenessProbe",
                            "readinessProbe",
                            "startupProbe",
                            "lifecycle",
                        ],
                    );
                }
                json!({ "/phase": "Succeeded" })
            }
            2 => {
                push(
                    spec,
                    "containers",
                    json!({ "name": "z", "image": "registry.k8s.io/never-there:4" }),
                );
                json!({ "/main/z/1": "ImagePullBackOff" })
            }
            _ => json!({ "/phase": "Running" }),
        };
        let name = spec["containers"][0]["name"].clone();
        let mut debugger = json!({ "name": "dbg", "image": BUSYBOX });
        debugger["command"] = self.one(&json!([
            ["sh", "-c", "sleep 3"],
            ["sh", "-c", STAYS],
            ["sh", "-c", "sleep 2; exit 9"],
        ]));
        self.maybe(&mut debugger, "targetContainerName", 3, &json!([name]));
        self.maybe(&mut debugger, "stdin", 4, &json!([true]));
        self.maybe(
            &mut debugger,
            "terminationMessagePath",
            4,
            &json!(["/tmp/last", "/dev/termination-log"]),
        );
        self.maybe(
            &mut debugger,
            "volumeMounts",
            3,
            &json!([[{ "name": "v0", "mountPath": "/x" }]]),
        );
        if debugger.get("volumeMounts").is_some() && !spec["volumes"].to_string().contains("\"v0\"")
        {
            push(spec, "volumes", json!({ "name": "v0", "emptyDir": {} }));
        }
        self.maybe(&mut debugger, "env", 3, &json!([
            [{ "name": "M", "valueFrom": { "resourceFieldRef": { "resource": "limits.memory" } } }],
            [{ "name": "M", "valueFrom": { "resourceFieldRef": { "containerName": "a", "resource": "requests.cpu", "divisor": "1m" } } }],
            [{ "name": "N", "valueFrom": { "fieldRef": { "fieldPath": "status.podIP" } } }],
        ]));
        json!([{ "patch": { "spec": { "ephemeralContainers": [debugger] } },
            "subresource": "ephemeralcontainers", "when": when, "after_ms": 3000 }])
    }

    /// A resize while something else goes wrong.
    fn resizes_in_trouble(&mut self, spec: &mut Value) -> Value {
        self.settles = false;
        forget(spec, &["resources"]);
        let amounts = json!({ "requests": { "cpu": "30m", "memory": "40Mi" }, "limits": { "cpu": "60m", "memory": "80Mi" } });
        let one = self.chosen(spec);
        one["command"] = json!(["sh", "-c", STAYS]);
        one["resources"] = amounts.clone();
        forget(one, &["resizePolicy"]);
        let name = one["name"].clone();
        let list = if name.as_str().is_some_and(|name| name.starts_with('s')) {
            "initContainers"
        } else {
            "containers"
        };
        let when = match self.rng.below(5) {
            0 => {
                push(
                    spec,
                    "containers",
                    json!({ "name": "z", "image": "registry.k8s.io/never-there:4" }),
                );
                json!({ "/main/z/1": "ImagePullBackOff" })
            }
            1 => {
                push(
                    spec,
                    "containers",
                    json!({ "name": "z", "image": BUSYBOX, "command": ["sh", "-c", "sleep 1; exit 1"], "resources": amounts }),
                );
                spec["restartPolicy"] = json!("Always");
                json!({ "/main/z/1": "CrashLoopBackOff" })
            }
            2 => {
                push(
                    spec,
                    "initContainers",
                    json!({ "name": "i9", "image": BUSYBOX, "command": ["sh", "-c", "sleep 10"], "resources": amounts }),
                );
                json!({ "/init/i9/0": "running" })
            }
            3 => {
                push(
                    spec,
                    "containers",
                    json!({ "name": "z", "image": BUSYBOX, "restartPolicy": "Never", "command": ["sh", "-c", "sleep 3"], "resources": amounts }),
                );
                json!({ "/main/z/0": "terminated" })
            }
            _ => {
                let one = self.chosen(spec);
                one["readinessProbe"] =
                    json!({ "exec": { "command": ["false"] }, "periodSeconds": 2 });
                json!({ "/phase": "Running" })
            }
        };
        let target =
            if spec["containers"].to_string().contains("\"name\":\"z\"") && self.rng.once_in(2) {
                json!("z")
            } else {
                name
            };
        let list = if target == "z" { "containers" } else { list };
        let resources = self.one(&json!([
            { "requests": { "cpu": "35m" } }, { "limits": { "cpu": "90m" } }, { "limits": { "memory": "96Mi" } },
            { "requests": { "cpu": "900" }, "limits": { "cpu": "900" } }, { "requests": { "memory": "50Mi" } },
            { "requests": { "cpu": "20m", "memory": "30Mi" }, "limits": { "cpu": "40m", "memory": "60Mi" } },
        ]));
        json!([{ "patch": { "spec": { list: [{ "name": target, "resources": resources }] } },
            "subresource": "resize", "when": when, "after_ms": 3000 }])
    }

    /// Deadlines in the middle of things.
    fn runs_out_of_time(&mut self, spec: &mut Value) -> Option<Value> {
        self.settles = false;
        let stubborn = self.word(&[STAYS, "trap '' TERM; sleep 3600 & wait; wait"]);
        spec["terminationGracePeriodSeconds"] = json!(1 + self.rng.below(3));
        match self.rng.below(4) {
            0 => {
                push(
                    spec,
                    "initContainers",
                    json!({ "name": "i9", "image": BUSYBOX, "command": ["sh", "-c", stubborn] }),
                );
                spec["activeDeadlineSeconds"] = json!(8);
            }
            1 => {
                push(
                    spec,
                    "containers",
                    json!({ "name": "z", "image": "registry.k8s.io/never-there:4" }),
                );
                spec["activeDeadlineSeconds"] = json!(9);
            }
            2 => {
                let one = self.chosen(spec);
                one["command"] = json!(["sh", "-c", stubborn]);
                one["lifecycle"] = json!({ "preStop": { "exec": { "command": ["sleep", "2"] } } });
                return Some(json!([{ "patch": { "spec": { "activeDeadlineSeconds": 1 } },
                    "when": { "/phase": "Running" }, "after_ms": 4000 }]));
            }
            _ => {
                let one = self.chosen(spec);
                one["command"] = json!(["sh", "-c", stubborn]);
                one["readinessProbe"] =
                    json!({ "exec": { "command": ["true"] }, "periodSeconds": 1 });
                spec["activeDeadlineSeconds"] = json!(9);
                return Some(
                    json!([{ "delete": 3, "when": { "/reason": "DeadlineExceeded" }, "after_ms": 500 }]),
                );
            }
        }
        None
    }

    /// Sidecars that end, beside containers whose exits restart one or all.
    fn has_sidecars_with_rules(&mut self, spec: &mut Value) {
        self.settles = false;
        spec["restartPolicy"] = json!(self.word(&["Never", "OnFailure", "Always"]));
        let ends = self.word(&[
            "sleep 5; exit 3",
            "sleep 5",
            STAYS,
            "trap 'exit 5' TERM; sleep 3600 & wait",
        ]);
        let mut side = json!({ "name": "s8", "image": BUSYBOX, "restartPolicy": "Always", "command": ["sh", "-c", ends] });
        self.maybe(
            &mut side,
            "startupProbe",
            3,
            &json!([{ "exec": { "command": ["true"] }, "periodSeconds": 1 }]),
        );
        self.maybe(&mut side, "lifecycle", 3, &json!([
            { "preStop": { "exec": { "command": ["sleep", "1"] } } }, { "postStart": { "exec": { "command": ["sleep", "1"] } } },
            { "preStop": { "sleep": { "seconds": 2 } } },
        ]));
        push(spec, "initContainers", side);
        let rules = self.one(&json!([
            [{ "action": "RestartAllContainers", "exitCodes": { "operator": "In", "values": [42] } }],
            [{ "action": "Restart", "exitCodes": { "operator": "In", "values": [42] } }],
            [{ "action": "Restart", "exitCodes": { "operator": "NotIn", "values": [0] } }],
        ]));
        let policy = self.word(&["Never", "OnFailure"]);
        let then = self.word(&["sleep 4", "sleep 4; exit 7", STAYS]);
        let count = spec["containers"].as_array().map_or(0, Vec::len);
        for at in 0..count {
            let one = &mut spec["containers"][at];
            one["image"] = json!(BUSYBOX);
            forget(
                one,
                &[
                    "args",
                    "livenessProbe",
                    "readinessProbe",
                    "startupProbe",
                    "lifecycle",
                    "restartPolicyRules",
                    "ports",
                ],
            );
            one["command"] = json!(["sh", "-c", format!("sleep {}", 9 + 2 * at)]);
            rootless(one);
        }
        let one = &mut spec["containers"][0];
        one["restartPolicy"] = json!(policy);
        one["restartPolicyRules"] = rules;
        one["command"] = json!([
            "sh",
            "-c",
            format!("test -e /met/x && {{ {then}; exit $?; }}; touch /met/x; sleep 7; exit 42")
        ]);
        push(one, "volumeMounts", json!({ "name": "met", "mountPath": "/met" }));
        push(spec, "volumes", json!({ "name": "met", "emptyDir": {} }));
    }

    /// What all containers share, and what each sees of it.
    fn shares_what_it_has(&mut self, spec: &mut Value) {
        spec["resources"] = self.one(&json!([
            { "requests": { "cpu": "100m", "memory": "600Mi" }, "limits": { "cpu": "2", "memory": "600Mi" } },
            { "limits": { "cpu": "3", "memory": "700Mi" } },
            { "requests": { "cpu": "100m", "memory": "600Mi" } },
            { "requests": { "memory": "650Mi" }, "limits": { "memory": "800Mi" } },
            { "limits": { "cpu": "4" } },
        ]));
        let from = |name: &str, resource: &str, divisor: &str| json!({ "name": name, "valueFrom": { "resourceFieldRef": { "resource": resource, "divisor": divisor } } });
        let env = json!([
            from("LC", "limits.cpu", "1m"), from("LM", "limits.memory", "1Mi"), from("RC", "requests.cpu", "1m"),
            from("RM", "requests.memory", "1"), from("LE", "limits.ephemeral-storage", "0"),
            { "name": "OM", "valueFrom": { "resourceFieldRef": { "containerName": "a", "resource": "limits.memory" } } },
        ]);
        let sight = "(env | grep -E '^(L|R|O)[A-Z]=' | sort; cat /proc/self/oom_score_adj; cd /sys/fs/cgroup; cat memory/memory.limit_in_bytes cpu/cpu.shares cpu/cpu.cfs_quota_us) > /dev/termination-log 2>&1; sleep 2";
        let mut first =
            json!({ "name": "i8", "image": BUSYBOX, "env": env, "command": ["sh", "-c", sight] });
        self.maybe(&mut first, "resources", 2, &json!([
            { "requests": { "cpu": "20m", "memory": "20Mi" } }, { "limits": { "memory": "64Mi" } },
            { "requests": { "memory": "500Mi" } },
        ]));
        let mut beside = json!({ "name": "s8", "image": BUSYBOX, "restartPolicy": "Always", "command": ["sh", "-c", STAYS] });
        self.maybe(&mut beside, "resources", 2, &json!([{ "requests": { "cpu": "20m", "memory": "20Mi" } }, { "limits": { "memory": "64Mi", "cpu": "100m" } }]));
        push(spec, "initContainers", first);
        if self.rng.once_in(2) {
            push(spec, "initContainers", beside);
        }
    }

    /// Probes of one container answered by another of the pod, or by the node.
    fn is_served_by_others(&mut self, spec: &mut Value) {
        self.settles = false;
        let port = self.port;
        push(
            spec,
            "containers",
            json!({ "name": "y", "image": AGNHOST, "args": ["netexec", format!("--http-port={port}"), "--udp-port=-1"],
            "ports": [{ "name": "other", "containerPort": port }] }),
        );
        let probe = self.one(&json!([
            { "httpGet": { "port": port, "path": "/healthz" } }, { "httpGet": { "port": "other" } }, { "tcpSocket": { "port": "other" } },
            { "tcpSocket": { "port": port } }, { "httpGet": { "port": port.to_string(), "path": "/healthz" } },
            { "httpGet": { "port": port, "path": "/clientip" } },
            { "httpGet": { "port": port, "path": "/hostname", "httpHeaders": [{ "name": "Range", "value": "bytes=0-1" }, { "name": "Transfer-Encoding", "value": "chunked" }] } },
        ]));
        let kind = self.word(&["livenessProbe", "readinessProbe", "startupProbe"]);
        let hook = self.one(&json!([null, { "httpGet": { "port": "other", "path": "/x" } }, { "httpGet": { "port": port, "path": "/exit?code=0&timeout=1s" } }]));
        let one = self.chosen(spec);
        one["command"] = json!(["sh", "-c", STAYS]);
        one[kind] = probe;
        one[kind]["periodSeconds"] = json!(2);
        one[kind]["initialDelaySeconds"] = json!(4);
        one[kind]["failureThreshold"] = json!(2);
        if !hook.is_null() {
            one["lifecycle"] = json!({ "preStop": hook });
        }
    }
}
