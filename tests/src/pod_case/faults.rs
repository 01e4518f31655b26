//! What may be wrong with a pod.

use serde_json::{Value, json};

use super::Draw;

impl Draw {
    /// One thing that keeps the pod, or one of its containers, from starting.
    pub(super) fn fault(&mut self, pod: &mut Value) {
        self.settles = false;
        self.faulty = true;
        let inits = pod["spec"]["initContainers"].as_array().map_or(0, Vec::len);
        let mains = pod["spec"]["containers"].as_array().map_or(0, Vec::len);
        let at = self.rng.below(inits + mains);
        let kind = self.rng.below(26);
        if kind < 16 {
            let (list, at) =
                if at < inits { ("initContainers", at) } else { ("containers", at - inits) };
            self.container_fault(kind, &mut pod["spec"][list][at]);
        } else {
            self.pod_fault(kind, &mut pod["spec"]);
        }
    }

    fn container_fault(&mut self, kind: usize, container: &mut Value) {
        match kind {
            0 | 1 => {
                container["image"] = self.one(&json!([
                    "registry.k8s.io/never-there:1", "registry.k8s.io/e2e-test-images/absent:2",
                ]));
                container["imagePullPolicy"] = self.one(&json!(["IfNotPresent", "Never", "Always"]));
            }
            2 => container["image"] = self.one(&json!(["UPPER/case", "a b", "x@sha256:1"])),
            3 => push(container, "env", self.one(&json!([
                { "name": "F", "valueFrom": { "configMapKeyRef": { "name": "nope", "key": "k" } } },
                { "name": "F", "valueFrom": { "configMapKeyRef": { "name": "cm1", "key": "nope" } } },
                { "name": "F", "valueFrom": { "secretKeyRef": { "name": "nope", "key": "k" } } },
                { "name": "F", "valueFrom": { "secretKeyRef": { "name": "s1", "key": "nope" } } },
            ]))),
            4 => push(container, "envFrom", self.one(&json!([
                { "configMapRef": { "name": "nope" } }, { "secretRef": { "name": "nope" } },
            ]))),
            5 | 6 => container["command"] = self.one(&json!([["/not/there"], ["/etc"], ["$(V0)x", "y"], ["/etc/passwd"]])),
            7 => container["workingDir"] = json!("/etc/passwd"),
            8 => container["securityContext"] = self.one(&json!([
                { "runAsNonRoot": true }, { "runAsNonRoot": true, "runAsUser": 0 },
                { "seccompProfile": { "type": "Localhost", "localhostProfile": "nope.json" } },
                { "capabilities": { "add": ["NO_SUCH_THING"] } },
                { "appArmorProfile": { "type": "RuntimeDefault" } },
                { "appArmorProfile": { "type": "Localhost", "localhostProfile": "nope" } },
            ])),
            9 => container["resources"] = self.one(&json!([
                { "requests": { "cpu": "200" } },
                { "requests": { "memory": "100Ti" } },
                { "limits": { "example.com/thing": "1" } },
                { "limits": { "hugepages-2Mi": "4Mi", "memory": "64Mi" } },
                { "requests": { "ephemeral-storage": "100Pi" } },
                { "limits": { "memory": "6Mi" } },
            ])),
            10 | 11 => {
                container["command"] = json!(["sh", "-c", "sleep 2; head -c 200000000 /dev/zero | tail; exit 3"]);
                container["resources"] = json!({ "limits": { "memory": "20Mi" } });
            }
            12 => push(container, "env", json!({ "name": "F", "valueFrom": { "fileKeyRef": { "volumeName": "fault", "path": "nope.env", "key": "K" } } })),
            13 => container["terminationMessagePath"] = json!("/etc"),
            14 => container["stdinOnce"] = json!(true),
            _ => push(container, "volumeMounts", self.one(&json!([
                { "name": "fault", "mountPath": "/etc/passwd" },
                { "name": "fault", "mountPath": "/bin" },
                { "name": "fault", "mountPath": "/proc/x" },
                { "name": "fault", "mountPath": "/x", "subPathExpr": "$(NOPE)" },
                { "name": "fault", "mountPath": "/dev/termination-log" },
                { "name": "fault", "mountPath": "relative" },
            ]))),
        }
    }

    fn pod_fault(&mut self, kind: usize, spec: &mut Value) {
        match kind {
            16..=19 => {
                let source = self.one(&json!([
                    { "configMap": { "name": "nope" } },
                    { "configMap": { "name": "cm1", "items": [{ "key": "nope", "path": "x" }] } },
                    { "secret": { "secretName": "nope" } },
                    { "projected": { "sources": [{ "secret": { "name": "s1" } }, { "configMap": { "name": "nope" } }] } },
                    { "hostPath": { "path": "/not/there", "type": "Directory" } },
                    { "hostPath": { "path": "/etc/passwd", "type": "DirectoryOrCreate" } },
                    { "hostPath": { "path": "/etc", "type": "File" } },
                    { "hostPath": { "path": "/etc/passwd", "type": "Socket" } },
                    { "image": { "reference": "registry.k8s.io/never-there:7" } },
                    { "persistentVolumeClaim": { "claimName": "nope" } },
                    { "emptyDir": { "medium": "HugePages" } },
                    { "downwardAPI": { "items": [{ "path": "x", "resourceFieldRef": { "containerName": "nope", "resource": "limits.cpu" } }] } },
                ]));
                let mut source = source;
                source["name"] = json!("fault");
                push(spec, "volumes", source);
                push(
                    &mut spec["containers"][0],
                    "volumeMounts",
                    json!({ "name": "fault", "mountPath": "/fault" }),
                );
            }
            20 => spec["nodeSelector"] = json!({ "example.com/nope": "x" }),
            21 => spec["runtimeClassName"] = self.one(&json!(["nope", "odd"])),
            22 => {
                spec["securityContext"] = self.one(&json!([
                    { "sysctls": [{ "name": "net.core.somaxconn", "value": "9" }] },
                    { "sysctls": [{ "name": "kernel.shm_rmid_forced", "value": "x" }] },
                    { "runAsNonRoot": true },
                    { "seccompProfile": { "type": "Localhost", "localhostProfile": "nope.json" } },
                ]));
            }
            23 => spec["hostUsers"] = json!(false),
            24 => {
                spec["affinity"] = json!({ "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{ "matchExpressions": [{ "key": "x", "operator": "In", "values": ["y"] }] }] } } })
            }
            _ => {
                spec["resources"] = self.one(&json!([
                    { "requests": { "cpu": "300" } }, { "limits": { "memory": "200Ti" } },
                ]));
            }
        }
    }
}

fn push(object: &mut Value, list: &str, item: Value) {
    match object[list].as_array_mut() {
        Some(list) => list.push(item),
        None => object[list] = json!([item]),
    }
}

/// The volume that some faults mount.
pub(super) fn complete(pod: &mut Value) {
    let spec = &mut pod["spec"];
    let has = |text: &str| {
        text.contains("\"name\":\"fault\"") || text.contains("\"volumeName\":\"fault\"")
    };
    let mounted = has(&spec["containers"].to_string()) || has(&spec["initContainers"].to_string());
    let known =
        spec["volumes"].as_array().is_some_and(|list| list.iter().any(|v| v["name"] == "fault"));
    if mounted && !known {
        push(spec, "volumes", json!({ "name": "fault", "emptyDir": {} }));
    }
}
