//! Pods with users of their own (`hostUsers: false`) on real parts, under both kubelets: which ids the runtime is asked
//! for, what containers see of their volumes, and what becomes of it over dead containers, dead sandboxes, `kill -9` of
//! the kubelet, and changed notes.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test on the real machine")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};
use testkit::real::{KubeletKind, KubeletOptions, RuntimeLine, TestNode, eventually};

const IMAGE: &str = "registry.k8s.io/e2e-test-images/busybox:1.37.0-1";
const START: Duration = Duration::from_secs(90);

/// What a container sees of its users and its volumes.
const LOOK: &str = "cat /proc/self/uid_map /proc/self/gid_map | awk '{print $1, ($2 > 0), $3}'; id; \
    touch /empty/made /memory/made; stat -c '%a %u:%g %n' /empty /empty/made /memory /memory/made /down /down/name \
    /host /etc/hosts /dev/termination-log; mount | grep -E ' /(empty|memory|down) ' | sed 's/^.* type/type/'; \
    echo end; trap 'exit 0' TERM; sleep 3600 & wait";

fn pod(name: &str, security: &Value, host_users: Option<bool>) -> String {
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "terminationGracePeriodSeconds": 1, "securityContext": security,
            "containers": [{
                "name": name, "image": IMAGE, "command": ["sh", "-c", LOOK],
                "volumeMounts": [
                    {"name": "empty", "mountPath": "/empty"}, {"name": "memory", "mountPath": "/memory"},
                    {"name": "down", "mountPath": "/down"},
                    {"name": "host", "mountPath": "/host", "readOnly": true},
                ],
            }],
            "volumes": [
                {"name": "empty", "emptyDir": {}},
                {"name": "memory", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
                {"name": "down", "downwardAPI": {"defaultMode": 288, "items": [
                    {"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]}},
                {"name": "host", "hostPath": {"path": "/etc/skel"}},
            ],
        },
    });
    if let Some(own) = host_users {
        pod["spec"]["hostUsers"] = json!(own);
    }
    pod.to_string()
}

/// The notes of the pods that have some, by the pod's folder.
fn notes(node: &TestNode) -> BTreeMap<PathBuf, String> {
    let folders = std::fs::read_dir(node.root_dir().join("pods")).into_iter().flatten().flatten();
    let files = folders.map(|folder| folder.path().join("userns"));
    files.filter_map(|file| Some((file.clone(), std::fs::read_to_string(file).ok()?))).collect()
}

/// The first ids on the host that notes name.
fn firsts(notes: &BTreeMap<PathBuf, String>) -> BTreeSet<u64> {
    let first = |text: &String| {
        let notes: Value = serde_json::from_str(text).unwrap();
        assert_eq!(notes["uidMappings"], notes["gidMappings"]);
        notes["uidMappings"][0]["hostId"].as_u64().unwrap()
    };
    notes.values().map(first).collect()
}

/// The text with each first id replaced by a word: which ids they are is a matter of chance.
fn plain(text: &str, firsts: &BTreeSet<u64>) -> String {
    firsts.iter().rev().fold(text.to_owned(), |text, first| text.replace(&first.to_string(), "0"))
}

/// What the runtime was asked about users: by method and name, in order for each name.
fn asked(node: &TestNode) -> BTreeMap<String, Vec<Value>> {
    let mut all: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    for call in node.recorder().unwrap().calls() {
        let config = &call.request["config"];
        let name = config["metadata"]["name"].as_str().unwrap_or_default();
        let context = &config["linux"]["security_context"]["namespace_options"]["userns_options"];
        let mounts = config["mounts"].as_array().into_iter().flatten();
        let mounts: Vec<Value> = mounts
            .map(|mount| {
                json!([mount["container_path"], mount["uidMappings"], mount["gidMappings"]])
            })
            .collect();
        if ["RunPodSandbox", "CreateContainer"].contains(&call.method.as_str()) {
            let seen = json!({"users": context, "mounts": mounts, "failed": call.error.is_some()});
            all.entry(format!("{} {name}", call.method)).or_default().push(seen);
        }
    }
    all
}

/// What the last instance of a container has printed, once it has printed all.
fn told(node: &TestNode, name: &str, not: &str) -> (String, String) {
    let id = std::cell::RefCell::new(String::new());
    let log = std::cell::RefCell::new(String::new());
    eventually(START, &format!("{name} has told what it sees"), || {
        let Ok(found) = node.wait_running(name, Duration::from_millis(100)) else { return false };
        let text = node.crictl(["logs", &found]).unwrap_or_default();
        let done = found != not && text.contains("end");
        id.replace(found);
        log.replace(text);
        done
    })
    .unwrap();
    (id.into_inner(), log.into_inner())
}

fn lived(kind: KubeletKind) -> Value {
    let config = json!({"fileCheckFrequency": "1s", "syncFrequency": "5s"});
    let mut node = TestNode::builder()
        .runtime(RuntimeLine::Users)
        .image(IMAGE.trim_start_matches("registry.k8s.io/"))
        .options(KubeletOptions { config, ..KubeletOptions::default() })
        .record()
        .kubelet(kind)
        .start()
        .unwrap();
    let pods = [
        ("plain", json!({}), Some(false)),
        ("group", json!({"fsGroup": 2000, "runAsUser": 1000, "runAsGroup": 3000}), Some(false)),
        ("host", json!({"fsGroup": 2000}), Some(true)),
        ("unset", json!({}), None),
    ];
    let mut seen = BTreeMap::new();
    let mut ids = BTreeMap::new();
    for (name, security, own) in &pods {
        node.add_manifest(&format!("{name}.json"), &pod(name, security, *own)).unwrap();
    }
    for (name, ..) in &pods {
        let (id, log) = told(&node, name, "");
        seen.insert(format!("{name} sees"), json!(log));
        ids.insert(*name, id);
    }
    let first_notes = notes(&node);
    assert_eq!(first_notes.len(), 2, "{first_notes:?}");
    assert_eq!(firsts(&first_notes).len(), 2, "no two pods share ids");

    // A container dies, then a sandbox: the ids stay.
    node.crictl(["stop", "-t", "1", &ids["plain"]]).unwrap();
    let (again, log) = told(&node, "plain", &ids["plain"]);
    seen.insert("plain sees after its container died".into(), json!(log));
    let sandboxes = node.sandboxes().unwrap();
    let of_group = sandboxes
        .iter()
        .find(|s| s["metadata"]["name"].as_str().is_some_and(|name| name.starts_with("group-")));
    node.crictl(["stopp", of_group.unwrap()["id"].as_str().unwrap()]).unwrap();
    let (group, log) = told(&node, "group", &ids["group"]);
    seen.insert("group sees after its sandbox died".into(), json!(log));
    assert_eq!(notes(&node), first_notes);

    // The kubelet dies; meanwhile a container does. Another pod gets other ids.
    node.kill_kubelet();
    node.crictl(["stop", "-t", "1", &again]).unwrap();
    node.start_kubelet(kind).unwrap();
    let (_, log) = told(&node, "plain", &again);
    seen.insert("plain sees after a kill of the kubelet".into(), json!(log));
    assert_eq!(node.wait_running("group", START).unwrap(), group, "it goes on");
    assert_eq!(notes(&node), first_notes);
    node.add_manifest("late.json", &pod("late", &json!({}), Some(false))).unwrap();
    let (_, log) = told(&node, "late", "");
    seen.insert("late sees".into(), json!(log));
    let all = notes(&node);
    assert_eq!(firsts(&all).len(), 3);
    let file = all.keys().find(|file| !first_notes.contains_key(*file)).unwrap();
    let modes =
        std::process::Command::new("stat").args(["-c", "%a %U"]).arg(file).output().unwrap();
    seen.insert("mode of the notes".into(), json!(String::from_utf8_lossy(&modes.stdout)));

    // Pods go, and their notes with them.
    for (name, ..) in &pods {
        node.remove_manifest(&format!("{name}.json")).unwrap();
    }
    eventually(START, "only the notes of the last are left", || notes(&node).len() == 1).unwrap();
    let firsts = firsts(&all);
    seen.insert(
        "notes".into(),
        json!(all.values().map(|text| plain(text, &firsts)).collect::<Vec<_>>()),
    );
    seen.insert("asked".into(), json!(asked(&node)));
    node.stop_kubelet();
    serde_json::from_str(&plain(&serde_json::to_string(&seen).unwrap(), &firsts)).unwrap()
}

#[test]
fn pods_with_users_of_their_own_live_as_under_the_go_kubelet() {
    let (go, ours) = (lived(KubeletKind::Go), lived(KubeletKind::Rubelet));
    let lines = |value: &Value| serde_json::to_string_pretty(value).unwrap();
    assert_eq!(lines(&ours), lines(&go), "left is ours");
}
