//! The pod around its containers.

use serde_json::{Value, json};

use super::Draw;
use super::containers::Role;
use super::faults::complete;
use crate::golden::NAMESPACE;

/// What fails again and again may do so before or after a deadline.
fn spec_without_deadline(pod: &Value) -> bool {
    pod["spec"].get("activeDeadlineSeconds").is_none()
}

impl Draw {
    /// The whole pod.
    pub(super) fn pod(&mut self) -> Value {
        self.draw_volumes();
        let policy = self.word(&["Always", "Always", "OnFailure", "Never"]);
        let mut spec = json!({
            "nodeName": "node1",
            "automountServiceAccountToken": false,
            "restartPolicy": policy,
            "terminationGracePeriodSeconds": 1 + self.rng.below(3),
        });
        let mains = [1, 1, 1, 2, 2, 3][self.rng.below(6)];
        let before = [0, 1, 1, 1, 2, 2][self.rng.below(6)];
        let mut init = Vec::new();
        for index in 0..before {
            let role = if self.rng.once_in(3) { Role::Side } else { Role::Init };
            init.push(self.container(role, index, policy));
        }
        let list: Vec<Value> = (0..mains).map(|n| self.container(Role::Main, n, policy)).collect();
        spec["containers"] = json!(list);
        if !init.is_empty() {
            spec["initContainers"] = json!(init);
        }
        let mut volumes: Vec<Value> = self.volumes.iter().map(|v| v.value.clone()).collect();
        if spec.to_string().contains("\"/once\"") {
            volumes.push(json!({ "name": "once", "emptyDir": {} }));
        }
        if !volumes.is_empty() {
            spec["volumes"] = json!(volumes);
        }
        self.around(&mut spec);
        self.names(&mut spec);
        self.host(&mut spec);
        self.pod_rights(&mut spec);
        let mut metadata = json!({ "name": self.name, "namespace": NAMESPACE });
        let labels =
            json!([{ "app": "drawn" }, { "app": "drawn", "example.com/tier": "x" }, { "app": "" }]);
        self.maybe(&mut metadata, "labels", 2, &labels);
        let notes = json!([
            { "note": "one\ntwo" }, { "example.com/key": "v\"q\"\\ é", "note": "" }, { "a": "1", "b": "2", "c": "\t" },
        ]);
        self.maybe(&mut metadata, "annotations", 2, &notes);
        let mut pod =
            json!({ "apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec });
        if self.rng.once_in(5) && spec_without_deadline(&pod) {
            self.fault(&mut pod);
            complete(&mut pod);
        }
        pod
    }

    fn around(&mut self, spec: &mut Value) {
        self.maybe(spec, "shareProcessNamespace", 10, &json!([true, false]));
        self.maybe(spec, "enableServiceLinks", 8, &json!([false, true]));
        self.maybe(spec, "runtimeClassName", 14, &json!(["plain"]));
        if spec.get("runtimeClassName").is_some() {
            let overheads = json!([{ "cpu": "10m", "memory": "8Mi" }, { "memory": "1Mi" }]);
            self.maybe(spec, "overhead", 2, &overheads);
        }
        if self.rng.once_in(14) {
            // Not at about the time at which a container ends.
            let soon = 11 + self.rng.below(3);
            spec["activeDeadlineSeconds"] = json!(if self.ends == 0 { soon } else { 300 });
            self.settles = false;
        }
        if self.rng.once_in(8) {
            spec["resources"] = self.one(&json!([
                { "requests": { "cpu": "40m", "memory": "300Mi" } },
                { "requests": { "cpu": "50m" }, "limits": { "cpu": "3", "memory": "900Mi" } },
                { "requests": { "cpu": "60m" }, "limits": { "cpu": "3", "memory": "800Mi" } },
                { "requests": { "cpu": "80m", "memory": "500Mi" }, "limits": { "cpu": "4", "memory": "500Mi" } },
            ]));
        }
        if self.rng.once_in(14) {
            spec["readinessGates"] = json!([{ "conditionType": "example.com/gate" }]);
            self.settles = false;
        }
        let tolerations = json!([
            [{ "operator": "Exists" }], [{ "key": "k", "operator": "Equal", "value": "v", "effect": "NoSchedule" }],
        ]);
        self.maybe(spec, "tolerations", 10, &tolerations);
        self.maybe(spec, "nodeSelector", 20, &json!([{ "kubernetes.io/os": "linux" }]));
        self.maybe(spec, "imagePullSecrets", 14, &json!([
            [{ "name": "pull-empty" }], [{ "name": "pull-odd" }], [{ "name": "not-there" }], [{ "name": "s1" }],
        ]));
        if self.rng.once_in(10) {
            spec["os"] = json!({ "name": "linux" });
            let signals = json!(["SIGINT", "SIGUSR1", "SIGQUIT", "SIGTERM", "SIGRTMIN+3"]);
            self.maybe(&mut spec["containers"][0], "lifecycle", 2, &json!([{}]));
            if spec["containers"][0].get("lifecycle").is_some() {
                spec["containers"][0]["lifecycle"]["stopSignal"] = self.one(&signals);
            }
        }
    }

    /// Names: of the host, and of others.
    fn names(&mut self, spec: &mut Value) {
        self.maybe(spec, "hostname", 8, &json!(["web-0", "h"]));
        self.maybe(spec, "subdomain", 10, &json!(["sub", "peers"]));
        self.maybe(spec, "setHostnameAsFQDN", 10, &json!([true, false]));
        self.maybe(spec, "hostAliases", 9, &json!([
            [{ "ip": "10.1.2.3", "hostnames": ["one", "two.example"] }],
            [{ "ip": "10.1.2.3", "hostnames": ["one"] }, { "ip": "fd00::1", "hostnames": ["six", "seven"] }],
        ]));
        let policies = json!(["Default", "ClusterFirst", "ClusterFirstWithHostNet"]);
        self.maybe(spec, "dnsPolicy", 6, &policies);
        if self.rng.once_in(8) {
            spec["dnsConfig"] = self.one(&json!([
                { "nameservers": ["10.9.9.9"] },
                { "searches": ["a.example", "b.example."], "options": [{ "name": "ndots", "value": "3" }, { "name": "edns0" }] },
                { "nameservers": ["10.9.9.9", "10.255.255.53", "fd00::53"], "options": [{ "name": "ndots", "value": "1" }, { "name": "ndots", "value": "2" }] },
                { "options": [{ "name": "rotate", "value": "" }] },
                { "nameservers": ["10.9.9.9", "10.9.9.8", "10.9.9.7"], "searches": ["a", "a"] },
            ]));
            if spec["dnsConfig"].get("nameservers").is_some() {
                self.maybe(spec, "dnsPolicy", 2, &json!(["None"]));
            }
        }
    }

    /// Namespaces of the host.
    fn host(&mut self, spec: &mut Value) {
        if self.rng.once_in(12) {
            spec["hostNetwork"] = json!(true);
            for container in spec["containers"].as_array_mut().into_iter().flatten() {
                if container.pointer("/ports/0/name") != Some(&json!("web"))
                    && let Some(fields) = container.as_object_mut()
                {
                    fields.remove("ports");
                }
            }
        }
        self.maybe(spec, "hostIPC", 16, &json!([true]));
        if spec.get("shareProcessNamespace").is_none() {
            self.maybe(spec, "hostPID", 20, &json!([true]));
        }
    }

    /// The security context of the pod.
    fn pod_rights(&mut self, spec: &mut Value) {
        if !self.rng.once_in(3) {
            return;
        }
        let mut rights = json!({});
        self.maybe(&mut rights, "runAsUser", 4, &json!([0, 1000, 2000]));
        self.maybe(&mut rights, "runAsGroup", 5, &json!([0, 1000, 3000]));
        self.maybe(&mut rights, "fsGroup", 3, &json!([0, 2000, 3000]));
        self.maybe(&mut rights, "fsGroupChangePolicy", 6, &json!(["OnRootMismatch", "Always"]));
        self.maybe(
            &mut rights,
            "supplementalGroups",
            4,
            &json!([[5000], [5000, 6000, 5000], [0], []]),
        );
        self.maybe(&mut rights, "supplementalGroupsPolicy", 8, &json!(["Merge", "Strict"]));
        self.maybe(
            &mut rights,
            "seccompProfile",
            6,
            &json!([{ "type": "RuntimeDefault" }, { "type": "Unconfined" }]),
        );
        self.maybe(&mut rights, "seLinuxOptions", 12, &json!([{ "level": "s0:c3,c4" }]));
        if spec.get("hostNetwork").is_none() && spec.get("hostIPC").is_none() {
            self.maybe(&mut rights, "sysctls", 4, &json!([
                [{ "name": "kernel.shm_rmid_forced", "value": "1" }],
                [{ "name": "net.ipv4.ip_local_port_range", "value": "20000 40000" }],
                [{ "name": "net.ipv4.ping_group_range", "value": "0 200" }, { "name": "net/ipv4/ip_unprivileged_port_start", "value": "80" }],
                [{ "name": "net.ipv4.tcp_syncookies", "value": "0" }],
            ]));
        }
        spec["securityContext"] = rights;
    }
}
