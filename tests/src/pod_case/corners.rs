//! Corners of the specification: texts that are too long or no text, answers that are odd, volumes that nobody can
//! mount, names that do not fit, clients that change what is rarely changed.
//!
//! Numbers below [`FIRST`] have none of it, so that they draw what they always drew.

use serde_json::{Value, json};

use super::themes::{STAYS, forget, push, rootless};
use super::{AGNHOST, BUSYBOX, Draw};

/// The first number whose pods may have a corner.
pub(super) const FIRST: u64 = 40_000;

impl Draw {
    /// A name that may not fit where names are used.
    pub(super) fn odd_name(&mut self) {
        let (seed, long) = (self.seed, "x".repeat(46));
        self.name = match self.rng.below(12) {
            // One letter more than a host name may have, and a dot or a dash where it is cut.
            0 => format!("drawn-{seed}-{long}-yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy"),
            1 => format!("drawn-{seed}-{}.{long}", &long[..45]),
            2 => format!("drawn-{seed}.example.com"),
            _ => return,
        };
    }

    /// Takes the pod into a corner; what its client does then, if that is part of it.
    pub(super) fn corner(&mut self, pod: &mut Value) -> Option<Value> {
        if self.faulty {
            return None;
        }
        match self.rng.below(14) {
            0 => self.says_much(&mut pod["spec"]),
            1 => self.probes_oddly(&mut pod["spec"]),
            2 => self.gets_odd_answers(&mut pod["spec"]),
            3 => self.mounts_what_is_not(&mut pod["spec"]),
            4 => self.asks_for_what_is_not(pod),
            5 => return Some(self.opens_gates(&mut pod["spec"])),
            6 => return self.is_debugged(&pod["spec"]),
            7 => return self.changes_images(&pod["spec"]),
            8 => self.names_variables_oddly(&mut pod["spec"]),
            9 => self.matters(&mut pod["spec"]),
            10 => self.looks_different(&mut pod["spec"]),
            11 => return self.resizes_sidecars(&mut pod["spec"]),
            12 => self.hooks_oddly(&mut pod["spec"]),
            _ => return self.resizes_often(&mut pod["spec"]),
        }
        None
    }

    /// Last words that are too long, too many, or no text.
    fn says_much(&mut self, spec: &mut Value) {
        self.settles = false;
        forget(spec, &["activeDeadlineSeconds"]);
        let words = self.word(&[
            "head -c 5000 /dev/zero | tr '\\0' x > /dev/termination-log",
            "head -c 4096 /dev/zero | tr '\\0' y > /dev/termination-log",
            "printf '\\377\\376ab\\300' > /dev/termination-log",
            "i=0; while [ $i -lt 200 ]; do echo line $i; i=$((i+1)); done",
            "i=0; while [ $i -lt 90 ]; do echo err $i >&2; i=$((i+1)); done",
            "head -c 3000 /dev/zero | tr '\\0' z",
            "printf 'no end of line'",
            "printf 'one\\r\\ntwo\\n\\n\\n'",
            "i=0; while [ $i -lt 300 ]; do printf 'é'; i=$((i+1)); done; echo",
            "printf '\\303'; sleep 1; printf '\\251\\n'",
            "echo said; echo left > /dev/termination-log",
            "rm /dev/termination-log; echo gone",
            "true",
        ]);
        let at = self.next_end();
        let code = [0, 1, 1, 7][self.rng.below(4)];
        let policy =
            self.one(&json!([null, "File", "FallbackToLogsOnError", "FallbackToLogsOnError"]));
        let one = self.chosen(spec);
        one["command"] = json!(["sh", "-c", format!("sleep {at}; {words}; exit {code}")]);
        forget(one, &["terminationMessagePath", "terminationMessagePolicy", "restartPolicyRules"]);
        if !policy.is_null() {
            one["terminationMessagePolicy"] = policy;
        }
        rootless(one);
    }

    /// Probes whose words are long, or no text, or none; and those that look elsewhere.
    fn probes_oddly(&mut self, spec: &mut Value) {
        self.settles = false;
        let kind =
            self.word(&["livenessProbe", "readinessProbe", "readinessProbe", "startupProbe"]);
        let command = self.word(&[
            "head -c 20000 /dev/zero | tr '\\0' x; exit 1",
            "head -c 900 /dev/zero | tr '\\0' x; exit 1",
            "i=0; while [ $i -lt 200 ]; do echo line $i; i=$((i+1)); done; exit 2",
            "printf '\\377\\376ab'; exit 1",
            "printf 'no end'; exit 255",
            "echo \"a \\\"quoted\\\" % word %s %d\"; exit 1",
            "exit 126",
            "kill -9 $$",
            "echo out; echo err >&2; kill -TERM $$",
            "echo fine >&2; exit 0",
            "exec 1>&-; exit 1",
        ]);
        let threshold = [1, 2, 3, 30][self.rng.below(4)];
        let one = self.chosen(spec);
        one["command"] = json!(["sh", "-c", STAYS]);
        one[kind] = json!({ "exec": { "command": ["sh", "-c", command] }, "periodSeconds": 3,
            "failureThreshold": threshold });
        rootless(one);
    }

    /// Servers that answer with what probes rarely see.
    fn gets_odd_answers(&mut self, spec: &mut Value) {
        self.settles = false;
        let port = self.port;
        let kind =
            self.word(&["livenessProbe", "readinessProbe", "readinessProbe", "startupProbe"]);
        let long = format!("/echo?msg={}&code=500", "x".repeat(2000));
        let path = self.one(&json!([
            long,
            "/echo?msg=%FF%FE&code=503",
            "/echo?msg=a%0Ab&code=400",
            "/echo?msg=%25s%25d&code=500",
            "/redirect?location=/healthz&code=302",
            "/redirect?location=/nowhere&code=301",
            format!("/redirect?location=http://127.0.0.1:{port}/healthz&code=302"),
            format!("/redirect?location=http://localhost:{port}/echo%3Fcode=500&code=307"),
            "/echo?code=199",
            "/echo?msg=teapot&code=418",
            "/echo?msg=x&code=399",
            "/echo?msg=x&code=400",
            "/header?key=Accept",
            "/header?key=Host",
            "/header?key=Connection",
            "/header?key=X-One",
            "/a b",
            "//healthz",
            "/healthz#part",
            "?code=200",
            "/%zz",
            "/é",
            "",
            "/echo?msg=a;b&code=500",
            "/../healthz",
            "/./healthz",
            "/healthz/",
            "/delay?x",
            "/shell?cmd=false",
        ]));
        let mut get = json!({ "port": port, "path": path });
        let headers = json!([
            [{ "name": "Host", "value": "a.example:81" }], [{ "name": "host", "value": "b" }],
            [{ "name": "User-Agent", "value": "" }], [{ "name": "User-Agent", "value": "me/1" }],
            [{ "name": "Accept", "value": "" }], [{ "name": "accept", "value": "text/html" }],
            [{ "name": "X-One", "value": "1" }, { "name": "x-one", "value": "2" }],
            [{ "name": "Connection", "value": "keep-alive" }], [{ "name": "X-One", "value": " spaced " }],
        ]);
        self.maybe(&mut get, "httpHeaders", 3, &headers);
        self.maybe(&mut get, "host", 6, &json!(["127.0.0.1", "localhost", "no-such-host.invalid"]));
        self.maybe(&mut get, "scheme", 8, &json!(["HTTPS"]));
        let other = self.one(&json!([
            null, null, null, { "tcpSocket": { "port": port, "host": "127.0.0.1" } }, { "tcpSocket": { "port": 9 } },
            { "tcpSocket": { "port": port, "host": "no-such-host.invalid" } }, { "tcpSocket": { "port": "nope" } },
            { "grpc": { "port": port } },
        ]));
        let threshold = [1, 2, 3, 30][self.rng.below(4)];
        let timeout = 1 + self.rng.below(3);
        let one = self.chosen(spec);
        one["image"] = json!(AGNHOST);
        one["args"] = json!(["netexec", format!("--http-port={port}"), "--udp-port=-1"]);
        forget(one, &["command", "restartPolicyRules", "restartPolicy"]);
        if one["name"].as_str().is_some_and(|name| name.starts_with('s')) {
            one["restartPolicy"] = json!("Always");
        }
        // The server is up by then.
        let mut probe = json!({ "httpGet": get, "periodSeconds": 3, "failureThreshold": threshold,
            "timeoutSeconds": timeout, "initialDelaySeconds": 4 });
        if let Some(other) = other.as_object() {
            forget(&mut probe, &["httpGet"]);
            for (key, value) in other {
                probe[key] = value.clone();
            }
        }
        one[kind] = probe;
        rootless(one);
    }

    /// Volumes that nobody can mount here.
    fn mounts_what_is_not(&mut self, spec: &mut Value) {
        self.settles = false;
        self.faulty = true;
        let mut volume = self.one(&json!([
            { "csi": { "driver": "nope.example" } },
            { "csi": { "driver": "nope.example", "readOnly": true, "volumeAttributes": { "a": "b" } } },
            { "flexVolume": { "driver": "example/nope" } },
            { "projected": { "sources": [{ "serviceAccountToken": { "path": "token", "expirationSeconds": 600 } }] } },
            { "projected": { "sources": [{ "serviceAccountToken": { "path": "t", "audience": "a" } }, { "configMap": { "name": "nope" } }] } },
            { "projected": { "sources": [{ "secret": { "name": "s1", "items": [{ "key": "nope", "path": "x" }] } }] } },
            { "projected": { "sources": [{ "configMap": { "name": "cm1" } }, { "configMap": { "name": "cm1", "items": [{ "key": "nope", "path": "y" }] } }] } },
            { "secret": { "secretName": "s1", "items": [{ "key": "user", "path": "a" }, { "key": "nope", "path": "b" }] } },
            { "persistentVolumeClaim": { "claimName": "unbound" } },
            { "ephemeral": { "volumeClaimTemplate": { "spec": { "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Mi" } } } } } },
            { "hostPath": { "path": "/dev/null", "type": "BlockDevice" } },
            { "hostPath": { "path": "/etc/passwd/x", "type": "DirectoryOrCreate" } },
            { "hostPath": { "path": "/proc/nope", "type": "FileOrCreate" } },
            { "hostPath": { "path": "/etc", "type": "CharDevice" } },
            { "hostPath": { "path": "/not/there", "type": "File" } },
            { "emptyDir": { "medium": "HugePages-2Mi" } },
            { "downwardAPI": { "items": [{ "path": "x", "resourceFieldRef": { "containerName": "a", "resource": "limits.cpu", "divisor": "1m" } }, { "path": "x", "fieldRef": { "fieldPath": "metadata.name" } }] } },
            { "image": { "reference": "UPPER/case" } },
            { "image": { "reference": "registry.k8s.io/never-there:9", "pullPolicy": "Never" } },
            { "gitRepo": { "repository": "https://example.invalid/x" } },
            { "nfs": { "server": "127.0.0.1", "path": "/nope" } },
        ]));
        volume["name"] = json!("fault");
        push(spec, "volumes", volume);
        let one = &mut spec["containers"][0];
        push(one, "volumeMounts", json!({ "name": "fault", "mountPath": "/fault" }));
        if self.rng.once_in(4) {
            spec["containers"][0]["volumeMounts"] =
                json!([{ "name": "fault", "mountPath": "/f", "subPath": "no/pe" }]);
        }
    }

    /// What no node of this kind gives.
    fn asks_for_what_is_not(&mut self, pod: &mut Value) {
        self.settles = false;
        self.faulty = true;
        let kind = self.rng.below(12);
        let spec = &mut pod["spec"];
        match kind {
            0 => pod["metadata"]["labels"] = json!({ "kubernetes.io/os": "windows" }),
            1 => {
                spec["priorityClassName"] = json!("system-node-critical");
                spec["containers"][0]["resources"] = json!({ "requests": { "cpu": "900" } });
            }
            2 => {
                spec["resourceClaims"] = json!([{ "name": "c", "resourceClaimName": "nope" }]);
                spec["containers"][0]["resources"] = json!({ "claims": [{ "name": "c" }] });
            }
            3 => {
                spec["hostNetwork"] = json!(true);
                spec["securityContext"] =
                    json!({ "sysctls": [{ "name": "net.ipv4.ping_group_range", "value": "0 1" }] });
            }
            4 => {
                spec["hostIPC"] = json!(true);
                spec["securityContext"] =
                    json!({ "sysctls": [{ "name": "kernel.shm_rmid_forced", "value": "1" }] });
            }
            5 => {
                spec["securityContext"] = json!({ "appArmorProfile": { "type": "RuntimeDefault" } })
            }
            6 => {
                spec["affinity"] = self.one(&json!([
                    { "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": [
                        { "matchFields": [{ "key": "metadata.name", "operator": "In", "values": ["other"] }] }] } } },
                    { "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": [
                        { "matchExpressions": [{ "key": "kubernetes.io/os", "operator": "NotIn", "values": ["linux"] }] }] } } },
                    { "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": [
                        { "matchExpressions": [{ "key": "kubernetes.io/hostname", "operator": "Exists" }] }] } } },
                    { "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": [
                        { "matchExpressions": [{ "key": "kubernetes.io/hostname", "operator": "Gt", "values": ["1"] }] }] } } },
                ]));
            }
            7 => {
                spec["containers"][0]["resources"] = self.one(&json!([
                    { "requests": { "cpu": "900", "memory": "900Ti" } },
                    { "requests": { "ephemeral-storage": "900Ti", "memory": "900Ti" } },
                    { "limits": { "hugepages-1Gi": "1Gi", "memory": "1Gi" } },
                    { "limits": { "example.com/a": "1", "example.com/b": "2" } },
                ]));
            }
            8 => {
                spec["runtimeClassName"] = json!("nope");
                spec["containers"][0]["resources"] = json!({ "requests": { "cpu": "900" } });
            }
            9 => {
                spec["hostUsers"] = json!(false);
                forget(spec, &["hostNetwork", "hostIPC", "hostPID"]);
            }
            10 => spec["serviceAccountName"] = json!("nope"),
            _ => {
                spec["initContainers"] = json!([{ "name": "i0", "image": BUSYBOX, "command": ["true"],
                    "resources": { "requests": { "memory": "900Ti" } } }]);
            }
        }
    }

    /// Somebody else says when the pod is ready, and says so again and again.
    fn opens_gates(&mut self, spec: &mut Value) -> Value {
        forget(spec, &["activeDeadlineSeconds"]);
        let one = self.chosen(spec);
        one["command"] = json!(["sh", "-c", STAYS]);
        let mut gates = vec![json!({ "conditionType": "example.com/gate" })];
        if self.rng.once_in(2) {
            gates.push(json!({ "conditionType": "example.com/other" }));
        }
        spec["readinessGates"] = json!(gates);
        let settles = std::mem::replace(&mut self.settles, false);
        if !settles {
            return json!([]);
        }
        let mut steps = Vec::new();
        for _ in 0..=self.rng.below(3) {
            let condition = json!({ "type": self.word(&["example.com/gate", "example.com/gate", "example.com/other"]),
                "status": self.word(&["True", "True", "False", "Unknown"]), "lastTransitionTime": "2026-01-01T00:00:00Z" });
            steps.push(json!({ "patch": { "status": { "conditions": [condition] } }, "subresource": "status",
                "when": { "/conditions/ContainersReady": ["True", ""] }, "after_ms": 4000 }));
        }
        json!(steps)
    }

    /// Debuggers that do not start, that end, that stay; one after another.
    fn is_debugged(&mut self, spec: &Value) -> Option<Value> {
        if !self.settles {
            return None;
        }
        let name = spec["containers"][0]["name"].clone();
        let mut all: Vec<Value> = Vec::new();
        let mut steps = Vec::new();
        for index in 0..=self.rng.below(3) {
            let mut debugger = json!({ "name": format!("dbg{index}"), "image": BUSYBOX });
            debugger["command"] = self.one(&json!([
                ["sh", "-c", "sleep 2; exit 3"],
                ["sh", "-c", STAYS],
                ["/not/there"],
                ["sh", "-c", "echo x; false"],
                ["sh", "-c", "ls /proc | grep -c '^[0-9]'"],
                ["sh", "-c", "sleep 1; kill -9 $$"],
            ]));
            self.maybe(
                &mut debugger,
                "image",
                6,
                &json!(["registry.k8s.io/never-there:5", "UPPER/case"]),
            );
            self.maybe(&mut debugger, "imagePullPolicy", 4, &json!(["Never", "IfNotPresent"]));
            self.maybe(&mut debugger, "targetContainerName", 3, &json!([name]));
            self.maybe(&mut debugger, "env", 5, &json!([
                [{ "name": "F", "valueFrom": { "configMapKeyRef": { "name": "nope", "key": "k" } } }],
                [{ "name": "F", "valueFrom": { "fieldRef": { "fieldPath": "status.podIP" } } }],
            ]));
            self.maybe(
                &mut debugger,
                "terminationMessagePolicy",
                3,
                &json!(["FallbackToLogsOnError"]),
            );
            self.maybe(&mut debugger, "securityContext", 4, &json!([
                { "runAsNonRoot": true }, { "privileged": true }, { "runAsUser": 7, "runAsNonRoot": true },
            ]));
            self.maybe(&mut debugger, "workingDir", 8, &json!(["/tmp", "/etc/passwd"]));
            self.maybe(&mut debugger, "tty", 6, &json!([true]));
            all.push(debugger);
            steps.push(json!({ "patch": { "spec": { "ephemeralContainers": all.clone() } },
                "subresource": "ephemeralcontainers",
                "when": { "/conditions/ContainersReady": ["True", ""] }, "after_ms": 4000 }));
        }
        self.settles = false;
        Some(json!(steps))
    }

    /// Images of containers change, also of those that are done.
    fn changes_images(&mut self, spec: &Value) -> Option<Value> {
        if !self.settles {
            return None;
        }
        let mut steps = Vec::new();
        for _ in 0..=self.rng.below(2) {
            let list = if spec.get("initContainers").is_some() && self.rng.once_in(2) {
                "initContainers"
            } else {
                "containers"
            };
            let count = spec[list].as_array().map_or(1, Vec::len);
            let name = spec[list][self.rng.below(count)]["name"].clone();
            let image =
                self.word(&[AGNHOST, BUSYBOX, "registry.k8s.io/never-there:8", "UPPER/case"]);
            steps.push(json!({ "patch": { "spec": { list: [{ "name": name, "image": image }] } },
                "when": { "/phase": "Running" }, "after_ms": 5000 }));
        }
        self.settles = false;
        Some(json!(steps))
    }

    /// Variables whose names are hardly names.
    fn names_variables_oddly(&mut self, spec: &mut Value) {
        let one = &mut spec["containers"][0];
        let all = json!([
            { "name": "a.b-c", "value": "1" }, { "name": "9x", "value": "$(a.b-c)" }, { "name": "a b", "value": "2" },
            { "name": "%s", "value": "$(a b)" }, { "name": "$X", "value": "3" }, { "name": "$(X)", "value": "$($X)" },
            { "name": "X", "value": "4" }, { "name": "X", "value": "$(X)$(X)" }, { "name": "HOSTNAME", "value": "mine" },
            { "name": "PATH", "value": "/bin:$(PATH)" }, { "name": "KUBERNETES_SERVICE_HOST", "value": "h" },
            { "name": "Y", "value": "$(KUBERNETES_SERVICE_HOST)-$(KUBERNETES_SERVICE_PORT_HTTPS)" },
            { "name": "Z", "value": "$(Y)" }, { "name": "TERM", "value": "" }, { "name": "x)", "value": "$(x))" },
            { "name": "L", "valueFrom": { "fieldRef": { "fieldPath": "metadata.labels['app']" } } },
            { "name": "M", "valueFrom": { "resourceFieldRef": { "resource": "limits.memory", "divisor": "1Gi" } } },
            { "name": "N", "valueFrom": { "resourceFieldRef": { "resource": "requests.cpu", "divisor": "1" } } },
            { "name": "O", "value": "$(M)/$(N)/$(L)" },
        ]);
        let chosen = self.some(&all, 2);
        forget(one, &["env"]);
        one["env"] = Value::Array(chosen);
        let name = format!("i{}", spec["initContainers"].as_array().map_or(0, Vec::len));
        let env = spec["containers"][0]["env"].clone();
        push(
            spec,
            "initContainers",
            json!({ "name": name, "image": BUSYBOX, "env": env,
            "command": ["sh", "-c", "tr '\\0' '\\n' < /proc/self/environ | sort > /dev/termination-log; echo \"$0 $1\" >> /dev/termination-log; sleep 2", "$(a b)", "$(%s)$(9x)"] }),
        );
    }

    /// Pods that the node needs more than others.
    fn matters(&mut self, spec: &mut Value) {
        spec["priorityClassName"] =
            json!(self.word(&["system-node-critical", "system-cluster-critical"]));
        let name = format!("i{}", spec["initContainers"].as_array().map_or(0, Vec::len));
        push(
            spec,
            "initContainers",
            json!({ "name": name, "image": BUSYBOX,
            "command": ["sh", "-c", "cat /proc/self/oom_score_adj > /dev/termination-log; sleep 2"] }),
        );
        forget(spec, &["terminationGracePeriodSeconds"]);
        spec["terminationGracePeriodSeconds"] = self.one(&json!([0, 1, 2, 5]));
    }

    /// What is seen from outside of a container.
    fn looks_different(&mut self, spec: &mut Value) {
        let overrides = json!([
            "web.example.com",
            "h",
            "a-very-long-name-of-a-host-that-just-fits-in-sixty-four-characters"
        ]);
        if self.rng.once_in(2) && spec.get("hostNetwork").is_none() {
            forget(spec, &["setHostnameAsFQDN"]);
            spec["hostnameOverride"] = self.one(&overrides);
        } else {
            spec["hostname"] = json!(self.word(&["web-0", "h"]));
            spec["subdomain"] = json!("peers");
            spec["setHostnameAsFQDN"] = json!(self.rng.once_in(2));
        }
        self.maybe(spec, "hostAliases", 2, &json!([
            [{ "ip": "10.1.2.3", "hostnames": [] }], [{ "ip": "127.0.0.1", "hostnames": ["me", "me.example"] }],
            [{ "ip": "::1", "hostnames": ["six"] }, { "ip": "::1", "hostnames": ["seven", "six"] }],
        ]));
        self.maybe(spec, "dnsConfig", 2, &json!([
            { "searches": ["."], "options": [{ "name": "ndots", "value": "0" }] },
            { "searches": ["x.example", "golden.svc.cluster.local"] },
            { "nameservers": ["::1"] }, { "options": [{ "name": "timeout", "value": "1" }, { "name": "use-vc" }, { "name": "timeout", "value": "2" }] },
            { "nameservers": ["10.255.255.53", "10.255.255.53"] },
        ]));
        self.maybe(spec, "enableServiceLinks", 2, &json!([false]));
        let name = format!("i{}", spec["initContainers"].as_array().map_or(0, Vec::len));
        let sight = self.word(&[
            "hostname; cat /etc/hostname /etc/hosts", "cat /etc/resolv.conf; hostname", "hostname; cat /proc/sys/kernel/domainname /etc/hosts",
            "mount | grep -E ' /(etc|dev|sys|proc)' | sed 's/^.* on/on/' | sort", "cat /proc/self/status | grep -E 'Cap|NoNew|Secc|Groups'; id",
            "ls -ld /etc/hosts /etc/hostname /etc/resolv.conf /dev/termination-log /dev/shm /tmp | cut -d' ' -f1-4",
            "df /dev/shm | tail -1 | cut -d' ' -f1; ls -a /dev /run /var/run | sort",
        ]);
        push(
            spec,
            "initContainers",
            json!({ "name": name, "image": BUSYBOX,
            "command": ["sh", "-c", format!("{{ {sight}; }} > /dev/termination-log 2>&1; sleep 2")] }),
        );
    }

    /// Sidecars grow and shrink, and with them the pod.
    fn resizes_sidecars(&mut self, spec: &mut Value) -> Option<Value> {
        if !self.settles {
            return None;
        }
        let policy = self.one(&json!([null, "NotRequired", "RestartContainer"]));
        let mut side = json!({ "name": "s8", "image": BUSYBOX, "restartPolicy": "Always",
            "command": ["sh", "-c", STAYS],
            "resources": { "requests": { "cpu": "20m", "memory": "32Mi" }, "limits": { "cpu": "40m", "memory": "64Mi" } } });
        if !policy.is_null() {
            side["resizePolicy"] = json!([{ "resourceName": "cpu", "restartPolicy": policy },
                { "resourceName": "memory", "restartPolicy": policy }]);
        }
        if self.rng.once_in(3) {
            side["startupProbe"] = json!({ "exec": { "command": ["true"] }, "periodSeconds": 1 });
        }
        forget(spec, &["resources"]);
        push(spec, "initContainers", side);
        let mut steps = Vec::new();
        for _ in 0..=self.rng.below(2) {
            let resources = self.one(&json!([
                { "requests": { "cpu": "30m" } }, { "limits": { "cpu": "80m" } }, { "limits": { "memory": "96Mi" } },
                { "requests": { "cpu": "10m", "memory": "16Mi" }, "limits": { "cpu": "20m", "memory": "48Mi" } },
                { "requests": { "memory": "40Mi" } },
            ]));
            steps.push(json!({ "patch": { "spec": { "initContainers": [{ "name": "s8", "resources": resources }] } },
                "subresource": "resize", "when": { "/conditions/Ready": ["True", ""] }, "after_ms": 5000 }));
        }
        self.settles = false;
        Some(json!(steps))
    }

    /// A container is resized again and again, also to what does not fit or does not change.
    fn resizes_often(&mut self, spec: &mut Value) -> Option<Value> {
        if !self.settles {
            return None;
        }
        let policy = self.one(&json!([null, "RestartContainer"]));
        let one = self.chosen(spec);
        one["command"] = json!(["sh", "-c", STAYS]);
        let name = one["name"].clone();
        let list = if name.as_str().is_some_and(|name| name.starts_with('s')) {
            "initContainers"
        } else {
            "containers"
        };
        one["resources"] = json!({ "requests": { "cpu": "30m", "memory": "40Mi" }, "limits": { "cpu": "60m", "memory": "80Mi" } });
        forget(one, &["resizePolicy"]);
        if !policy.is_null() {
            one["resizePolicy"] = json!([{ "resourceName": "memory", "restartPolicy": policy }]);
        }
        forget(spec, &["resources"]);
        let mut steps = Vec::new();
        for _ in 0..2 + self.rng.below(3) {
            let resources = self.one(&json!([
                { "requests": { "cpu": "31m" } }, { "requests": { "cpu": "2m" } }, { "limits": { "cpu": "1500m" } },
                { "limits": { "memory": "100Mi" } }, { "limits": { "memory": "60Mi" } }, { "requests": { "memory": "50Mi" } },
                { "requests": { "cpu": "30m", "memory": "40Mi" }, "limits": { "cpu": "60m", "memory": "80Mi" } },
                { "limits": { "memory": "1Mi" }, "requests": { "memory": "1Mi" } },
            ]));
            steps.push(json!({ "patch": { "spec": { list: [{ "name": name, "resources": resources }] } },
                "subresource": "resize", "when": { "/phase": "Running", "/conditions/Ready": ["True", ""] }, "after_ms": 5000 }));
        }
        self.settles = false;
        Some(json!(steps))
    }

    /// Hooks at their edges.
    fn hooks_oddly(&mut self, spec: &mut Value) {
        self.settles = false;
        let port = self.port;
        let all = json!([
            { "exec": { "command": ["sh", "-c", "head -c 20000 /dev/zero | tr '\\0' x; exit 1"] } },
            { "exec": { "command": ["sh", "-c", "printf '\\377\\376'; exit 2"] } },
            { "exec": { "command": ["sh", "-c", "kill -9 $$"] } },
            { "exec": { "command": [""] } },
            { "sleep": { "seconds": 2 } },
            { "httpGet": { "port": port, "path": "/echo?msg=no&code=500" } },
            { "httpGet": { "port": port, "path": "/%zz" } },
            { "httpGet": { "port": port, "host": "no-such-host.invalid" } },
            { "httpGet": { "port": port, "scheme": "HTTPS" } },
            { "tcpSocket": { "port": port } },
        ]);
        let (after, before) = (self.one(&all), self.one(&all));
        let (with_start, with_stop) = (self.rng.once_in(2), self.rng.once_in(2));
        let grace = self.one(&json!([0, 1, 3]));
        spec["terminationGracePeriodSeconds"] = grace;
        let one = self.chosen(spec);
        one["command"] = json!(["sh", "-c", STAYS]);
        one["lifecycle"] = json!({});
        if with_start {
            one["lifecycle"]["postStart"] = after;
        }
        if with_stop || !with_start {
            one["lifecycle"]["preStop"] = before;
        }
        rootless(one);
    }
}
