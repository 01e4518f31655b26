//! Volumes of all kinds that are local, and where they are mounted.

use serde_json::{Value, json};

use super::{AGNHOST, BUSYBOX, Draw, HOST_FOLDER};

/// Something that can be mounted.
pub(super) struct Volume {
    pub(super) value: Value,
    /// Paths in it that are there.
    subs: &'static [&'static str],
    /// Whether paths in it can be made.
    writable: bool,
}

impl Draw {
    /// Up to three volumes.
    pub(super) fn draw_volumes(&mut self) {
        let count = [0, 0, 1, 1, 1, 2, 2, 3][self.rng.below(8)];
        for index in 0..count {
            let mut volume = match self.rng.below(8) {
                0 | 1 => self.empty_dir(),
                2 => self.config_map(),
                3 => self.secret(),
                4 => self.downward(),
                5 => self.projected(),
                6 => self.host_path(),
                _ => self.image(),
            };
            volume.value["name"] = json!(format!("v{index}"));
            self.volumes.push(volume);
        }
    }

    fn empty_dir(&mut self) -> Volume {
        let of = json!([
            {}, {}, {}, { "medium": "Memory" }, { "medium": "Memory", "sizeLimit": "1Mi" }, { "sizeLimit": "64Mi" },
            { "medium": "Memory", "sizeLimit": "100Gi" },
        ]);
        Volume { value: json!({ "emptyDir": self.one(&of) }), subs: &[], writable: true }
    }

    fn config_map(&mut self) -> Volume {
        let value = self.config_source("name");
        Volume { value: json!({ "configMap": value }), subs: &["k1"], writable: false }
    }

    fn config_source(&mut self, name: &str) -> Value {
        let mut of = json!({});
        of[name] = json!(self.word(&["cm1", "cm1", "cm2", "cm3", "odd-keys", "mixed"]));
        match self.rng.below(6) {
            0 => {
                of[name] = json!("cm1");
                of["items"] = self.one(&json!([
                    [{ "key": "k1", "path": "k1" }],
                    [{ "key": "k1", "path": "deep/er/k1", "mode": 256 }, { "key": "k2", "path": "k1" }],
                    [{ "key": "1bad.key", "path": "k1", "mode": 511 }],
                ]));
            }
            1 => {
                of["items"] = json!([{ "key": "nope", "path": "nope" }]);
                of["optional"] = json!(true);
            }
            2 => of = json!({ name: "not-there", "optional": true }),
            _ => {}
        }
        of
    }

    fn secret(&mut self) -> Volume {
        let mut of = json!({ "secretName": self.word(&["s1", "s2", "binary"]) });
        self.maybe(&mut of, "defaultMode", 3, &json!([256, 288, 292, 384, 511]));
        match self.rng.below(6) {
            0 => {
                of["secretName"] = json!("s1");
                of["items"] = json!([{ "key": "pw", "path": "x/pw", "mode": 384 }]);
            }
            1 => of = json!({ "secretName": "not-there", "optional": true }),
            _ => {}
        }
        Volume { value: json!({ "secret": of }), subs: &["user"], writable: false }
    }

    fn downward_items(&mut self) -> Value {
        let resource = |name: &str, divisor: &str| json!({ "containerName": "a", "resource": name, "divisor": divisor });
        let mut items = self.some(
            &json!([
                { "path": "labels", "fieldRef": { "fieldPath": "metadata.labels" } },
                { "path": "annotations", "fieldRef": { "fieldPath": "metadata.annotations" }, "mode": 256 },
                { "path": "deep/name", "fieldRef": { "fieldPath": "metadata.name" } },
                { "path": "uid", "fieldRef": { "fieldPath": "metadata.uid" } },
                { "path": "one", "fieldRef": { "fieldPath": "metadata.labels['app']" } },
                { "path": "none", "fieldRef": { "fieldPath": "metadata.annotations['nope']" } },
                { "path": "cpu", "resourceFieldRef": resource("limits.cpu", "1m") },
                { "path": "cpus", "resourceFieldRef": resource("requests.cpu", "0") },
                { "path": "memory", "resourceFieldRef": resource("requests.memory", "1Ki") },
                { "path": "disk", "resourceFieldRef": resource("limits.ephemeral-storage", "0") },
            ]),
            3,
        );
        items.push(json!({ "path": "k1", "fieldRef": { "fieldPath": "metadata.namespace" } }));
        Value::Array(items)
    }

    fn downward(&mut self) -> Volume {
        let mut of = json!({ "items": self.downward_items() });
        self.maybe(&mut of, "defaultMode", 4, &json!([256, 288, 511]));
        Volume { value: json!({ "downwardAPI": of }), subs: &["k1"], writable: false }
    }

    fn projected(&mut self) -> Volume {
        let mut sources = Vec::new();
        for _ in 0..=self.rng.below(3) {
            let downward = sources.iter().any(|source: &Value| source.get("downwardAPI").is_some());
            sources.push(match self.rng.below(if downward { 3 } else { 4 }) {
                0 | 1 => json!({ "configMap": self.config_source("name") }),
                2 => json!({ "secret": { "name": self.word(&["s1", "s2", "binary"]) } }),
                _ => json!({ "downwardAPI": { "items": self.downward_items() } }),
            });
        }
        let mut of = json!({ "sources": sources });
        self.maybe(&mut of, "defaultMode", 4, &json!([256, 288, 511, 384]));
        Volume { value: json!({ "projected": of }), subs: &[], writable: false }
    }

    fn host_path(&mut self) -> Volume {
        let own = |kind: &str| format!("{HOST_FOLDER}/{}/{kind}", self.name);
        let list = json!([
            { "path": "/etc/skel", "type": "Directory" }, { "path": "/etc/skel", "type": "" },
            { "path": "/etc/passwd", "type": "File" }, { "path": "/dev/null", "type": "CharDevice" },
            { "path": own("d"), "type": "DirectoryOrCreate" }, { "path": own("e/f"), "type": "DirectoryOrCreate" },
            { "path": own("g") },
        ]);
        Volume { value: json!({ "hostPath": self.one(&list) }), subs: &[], writable: false }
    }

    fn image(&mut self) -> Volume {
        // With `Always` the Go kubelet pulls at every look at the pod: how often is a matter of luck.
        let mut of = json!({ "reference": self.word(&[BUSYBOX, AGNHOST]) });
        self.maybe(&mut of, "pullPolicy", 2, &json!(["IfNotPresent", "Never"]));
        Volume { value: json!({ "image": of }), subs: &["bin", "etc"], writable: false }
    }

    /// Mounts of most volumes.
    pub(super) fn mounts(&mut self, container: &mut Value) {
        let mut mounts = Vec::new();
        for index in 0..self.volumes.len() {
            if self.rng.once_in(5) {
                continue;
            }
            let (subs, writable) = (self.volumes[index].subs, self.volumes[index].writable);
            let mut mount =
                json!({ "name": format!("v{index}"), "mountPath": format!("/mnt/v{index}") });
            match self.rng.below(10) {
                0 if writable => {
                    mount["subPath"] = json!(self.word(&["sub", "a/b", ".hidden", "a b"]))
                }
                1 if writable => {
                    let env = json!({ "name": "POD", "valueFrom": { "fieldRef": { "fieldPath": "metadata.name" } } });
                    match container["env"].as_array_mut() {
                        Some(list) => list.push(env),
                        None => container["env"] = json!([env]),
                    }
                    let paths = ["$(POD)", "x/$(POD)/y", "$$(POD)", "$(POD)-$(POD)"];
                    mount["subPathExpr"] = json!(self.word(&paths));
                }
                2 if !subs.is_empty() => mount["subPath"] = json!(self.word(subs)),
                3 => mount["mountPath"] = json!(format!("/mnt/deep/er/v{index}/")),
                _ => {}
            }
            if self.rng.once_in(4) {
                mount["readOnly"] = json!(true);
                let modes = json!(["Disabled", "IfPossible", "Enabled"]);
                self.maybe(&mut mount, "recursiveReadOnly", 3, &modes);
            }
            if mount.get("recursiveReadOnly").is_none() {
                self.maybe(&mut mount, "mountPropagation", 8, &json!(["None", "HostToContainer"]));
            }
            mounts.push(mount);
        }
        if !mounts.is_empty() {
            container["volumeMounts"] = Value::Array(mounts);
        }
    }
}
