//! Pods drawn by chance, each from one number: what both kubelets are given by `make pod-compare`.
//!
//! A pod takes a few features from all over the specification. Most pods are good ones; one in a few
//! has one fault. What a container sees (files, variables, limits, rights) is brought out by containers
//! that look around and leave what they saw as their termination message. What is a race in any kubelet
//! is not drawn: containers of one pod end seconds apart, and clients act once something has settled.
//! Nothing here knows what a kubelet should do: the Go kubelet says so.

mod actions;
mod containers;
mod corners;
mod environment;
mod faults;
mod interactions;
mod probes;
mod shape;
mod themes;
mod volumes;

use std::path::PathBuf;

use serde_json::{Value, json};

use crate::config_case::Rng;
use crate::golden::Golden;

/// The image that most containers are of.
const BUSYBOX: &str = "registry.k8s.io/e2e-test-images/busybox:1.37.0-1";

/// The image of servers.
const AGNHOST: &str = "registry.k8s.io/e2e-test-images/agnhost:2.63.0";

/// Where pods may leave something on the machine.
pub const HOST_FOLDER: &str = "/tmp/rubelet-drawn";

/// The pod of this number with what its client does, as a record that is still to be made.
pub fn make(seed: u64) -> anyhow::Result<Golden> {
    let mut draw = Draw::new(seed);
    let cornered = seed >= corners::FIRST;
    if cornered {
        draw.odd_name();
    }
    let mut pod = draw.pod();
    let turn = match seed {
        interactions::FIRST.. if !draw.rng.once_in(4) => draw.interaction(&mut pod),
        _ if cornered && !draw.rng.once_in(3) => draw.corner(&mut pod),
        themes::FIRST.. => draw.theme(&mut pod),
        _ => None,
    };
    let script = turn.unwrap_or_else(|| draw.actions(&pod));
    let record = json!({ "pod": pod, "script": script });
    Golden::of(PathBuf::from(format!("{}.json", draw.name)), &record)
}

/// What a pod is drawn with, and what is known of it so far.
struct Draw {
    rng: Rng,
    /// Its number.
    seed: u64,
    /// Name of the pod.
    name: String,
    /// A port of the machine that no other pod has at the same time.
    port: u64,
    /// Whether all containers are expected to start and to become ready.
    settles: bool,
    /// Whether something is wrong with it.
    faulty: bool,
    /// How many containers end by themselves: each does so at another second.
    ends: u64,
    /// What can be mounted.
    volumes: Vec<volumes::Volume>,
}

impl Draw {
    fn new(seed: u64) -> Draw {
        Draw {
            rng: Rng::new(seed.wrapping_mul(0xD6E8_FEB8_6659_FD93)),
            seed,
            name: format!("drawn-{seed}"),
            port: 20_000 + seed % 1_000 * 4,
            settles: true,
            faulty: false,
            ends: 0,
            volumes: Vec::new(),
        }
    }

    /// One of a JSON list.
    fn one(&mut self, list: &Value) -> Value {
        let Some(list) = list.as_array().filter(|list| !list.is_empty()) else {
            return Value::Null;
        };
        list[self.rng.below(list.len())].clone()
    }

    /// One of these words.
    fn word(&mut self, list: &[&'static str]) -> &'static str {
        list[self.rng.below(list.len())]
    }

    /// Some of a JSON list, in its order, each once in so many times.
    fn some(&mut self, list: &Value, times: usize) -> Vec<Value> {
        let list = list.as_array().into_iter().flatten();
        list.filter(|_| self.rng.once_in(times)).cloned().collect()
    }

    /// Set a field once in so many times to one of a list.
    fn maybe(&mut self, object: &mut Value, field: &str, times: usize, list: &Value) {
        if self.rng.once_in(times) {
            object[field] = self.one(list);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_draws_the_same_pod_again() {
        let text = |seed| make(seed).unwrap().pod.to_string();
        assert_eq!(text(7), text(7));
        assert_ne!(text(7), text(8));
    }

    #[test]
    fn every_part_of_the_specification_is_drawn_some_time() {
        let some = |first: u64| first..first + 500;
        let numbers = (0..3_000).chain(some(themes::FIRST)).chain(some(corners::FIRST));
        let numbers = numbers.chain(some(interactions::FIRST));
        let all: String = numbers.map(|seed| make(seed).unwrap().pod.to_string()).collect();
        let words = [
            "restartPolicyRules",
            "resourceFieldRef",
            "fileKeyRef",
            "startupProbe",
            "grpc",
            "postStart",
            "stopSignal",
            "hugepages",
            "ephemeral-storage",
            "seccompProfile",
            "supplementalGroups",
            "recursiveReadOnly",
            "subPathExpr",
            "mountPropagation",
            "projected",
            "downwardAPI",
            "image\":{",
            "dnsConfig",
            "hostAliases",
            "setHostnameAsFQDN",
            "shareProcessNamespace",
            "sysctls",
            "terminationMessagePolicy",
            "activeDeadlineSeconds",
            "runtimeClassName",
            "hostUsers",
            "RestartAllContainers",
            "grpc-health-checking",
            "HTTPS",
            "\"terminationGracePeriodSeconds\":0",
            "/files/env",
            "hostnameOverride",
            "serviceAccountToken",
            "priorityClassName",
            "resourceClaims",
            "flexVolume",
            ".example.com\"",
            "appArmorProfile",
        ];
        for word in words {
            assert!(all.contains(word), "{word} is never drawn");
        }
    }
}
