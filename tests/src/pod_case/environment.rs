//! Variables and what refers to them.

use serde_json::{Value, json};

use super::Draw;

impl Draw {
    /// Variables, from all sources.
    pub(super) fn environment(&mut self, container: &mut Value, first: &str) {
        let mut env = Vec::new();
        for (index, value) in self.some(&variables(first), 14).into_iter().enumerate() {
            let mut variable = value;
            // Some name another again.
            let name = if self.rng.once_in(9) { 0 } else { index };
            variable["name"] = json!(format!("V{name}"));
            env.push(variable);
        }
        if !env.is_empty() {
            container["env"] = Value::Array(env);
        }
        if self.rng.once_in(5) {
            let sources = json!([
                { "configMapRef": { "name": "cm1" } },
                { "configMapRef": { "name": "cm1" }, "prefix": "P_" },
                { "configMapRef": { "name": "odd-keys" } },
                { "configMapRef": { "name": "odd-keys" }, "prefix": "9" },
                { "configMapRef": { "name": "mixed" }, "prefix": "M." },
                { "configMapRef": { "name": "not-there", "optional": true } },
                { "secretRef": { "name": "s1" } },
                { "secretRef": { "name": "s2" }, "prefix": "s-" },
                { "secretRef": { "name": "not-there", "optional": true }, "prefix": "x" },
            ]);
            container["envFrom"] = Value::Array(self.some(&sources, 3));
        }
    }

    /// Words in which variables may occur.
    pub(super) fn odd_words(&mut self) -> Vec<Value> {
        let words = json!([
            "$(V0)",
            "$$(V0)",
            "$(V1)$(V0)",
            "$$$(V0)",
            "$(NOPE)",
            "$(",
            "$()",
            "$",
            "$$",
            "$(V0",
            "a b",
            "",
            "$(V0)$",
            "x$(V1)y",
            "$(V 0)",
            "${V0}",
            "$V0",
            "é$(V0)",
            "$((V0))",
            "$(KUBERNETES_SERVICE_PORT)",
            "$(k1)",
            "$(P_k1)-$(user)",
            "$(HOSTNAME)",
            "$(V2)\n$(V3)",
            "$$$$(V0)",
            "\t$(V4)\\",
        ]);
        self.some(&words, 8)
    }
}

fn variables(first: &str) -> Value {
    let value = |text: &str| json!({ "value": text });
    let field = |path: &str| json!({ "valueFrom": { "fieldRef": { "fieldPath": path } } });
    let amount = |resource: &str, divisor: &str| {
        let mut from = json!({ "resource": resource });
        if !divisor.is_empty() {
            from["divisor"] = json!(divisor);
        }
        json!({ "valueFrom": { "resourceFieldRef": from } })
    };
    let of_other = |resource: &str| json!({ "valueFrom": { "resourceFieldRef": { "containerName": first, "resource": resource } } });
    let config = |name: &str, key: &str, optional: Value| json!({ "valueFrom": { "configMapKeyRef": { "name": name, "key": key, "optional": optional } } });
    let secret = |name: &str, key: &str, optional: Value| json!({ "valueFrom": { "secretKeyRef": { "name": name, "key": key, "optional": optional } } });
    json!([
        value("plain"),
        value(""),
        value("$(V0)"),
        value("$(V1)-$(V2)"),
        value("$$(V0)"),
        value("$(V9)"),
        value("$(KUBERNETES_SERVICE_HOST):$(KUBERNETES_PORT)"),
        value("$(k1)/$(user)"),
        value("$"),
        value("a$$b$$$(V0)"),
        value("line\nbreak"),
        value("=x=\"y\""),
        value("ü $( V0 )"),
        value("$(V0"),
        value("$(V1)$(V1)$(V1)"),
        field("metadata.name"),
        field("metadata.namespace"),
        field("metadata.uid"),
        field("metadata.labels['app']"),
        field("metadata.labels['not-there']"),
        field("metadata.annotations['note']"),
        field("metadata.annotations['example.com/key']"),
        field("spec.nodeName"),
        field("spec.serviceAccountName"),
        field("status.hostIP"),
        field("status.hostIPs"),
        field("status.podIP"),
        field("status.podIPs"),
        amount("limits.cpu", ""),
        amount("limits.cpu", "1m"),
        amount("limits.memory", ""),
        amount("limits.memory", "1Mi"),
        amount("requests.cpu", "1m"),
        amount("requests.cpu", ""),
        amount("requests.memory", "1Ki"),
        amount("requests.memory", "1M"),
        amount("requests.ephemeral-storage", "1"),
        amount("limits.ephemeral-storage", "1Gi"),
        amount("limits.hugepages-2Mi", "1"),
        of_other("limits.memory"),
        of_other("requests.cpu"),
        config("cm1", "k1", json!(null)),
        config("cm1", "k2", json!(false)),
        config("cm1", "1bad.key", json!(null)),
        config("cm1", "nope", json!(true)),
        config("nope", "k1", json!(true)),
        secret("s1", "user", json!(null)),
        secret("s1", "nope", json!(true)),
        secret("nope", "x", json!(true)),
        secret("binary", "text", json!(null)),
    ])
}
