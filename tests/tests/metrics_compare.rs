//! What both kubelets have counted after the same life of the same pods: every series of every page,
//! and the values of those that count what happened rather than how often somebody looked.
//!
//! `PAGES=folder` keeps the pages.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a test on the real machine")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use testkit::real::eventually;
use tests::ask::Ask;
use tests::cluster::BUSYBOX;
use tests::exposition;
use tests::node_pair::{NodePair, PairedNode};
use tests::wire::Wire;

const PATIENCE: Duration = Duration::from_secs(180);
const PAGES: [&str; 5] =
    ["/metrics", "/metrics/cadvisor", "/metrics/resource", "/metrics/probes", "/metrics/slis"];

fn shell(script: &str) -> Value {
    json!(["sh", "-c", script])
}

/// The pods of a twin, in its own names.
fn pods(twin: &PairedNode) -> Vec<Value> {
    let pod = |name: &str, mut spec: Value| {
        spec["nodeName"] = "node1".into();
        if spec["automountServiceAccountToken"].is_null() {
            spec["automountServiceAccountToken"] = false.into();
        }
        spec["terminationGracePeriodSeconds"] = 2.into();
        for list in ["initContainers", "containers"] {
            for container in spec[list].as_array_mut().into_iter().flatten() {
                if container["image"].is_null() {
                    container["image"] = BUSYBOX.into();
                }
            }
        }
        let text = json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": "aa1"}, "spec": spec});
        serde_json::from_str(&twin.own(&text.to_string())).unwrap()
    };
    let idle = "trap exit TERM; sleep 36000 & wait";
    let one = |name: &str, spec: Value| {
        let mut container = spec;
        container["name"] = "c".into();
        pod(name, json!({"containers": [container]}))
    };
    let never = |name: &str, container: Value| {
        let mut container = container;
        container["name"] = "c".into();
        pod(name, json!({"restartPolicy": "Never", "containers": [container]}))
    };
    vec![
        pod(
            "run",
            json!({"containers": [
                {"name": "c", "command": shell("httpd -f -p 8080"),
                    "resources": {"limits": {"cpu": "100m", "memory": "64Mi"}},
                    "livenessProbe": {"exec": {"command": ["true"]}},
                    "readinessProbe": {"httpGet": {"port": 8080, "path": "/bin/true"}},
                    "startupProbe": {"tcpSocket": {"port": 8080}}},
                {"name": "quiet", "command": shell(idle),
                    "volumeMounts": [{"name": "v", "mountPath": "/v"},
                        {"name": "m", "mountPath": "/m"}, {"name": "s", "mountPath": "/s"},
                        {"name": "p", "mountPath": "/p"}, {"name": "h", "mountPath": "/h"}]}],
                "volumes": [{"name": "v", "emptyDir": {}},
                    {"name": "m", "configMap": {"name": "map"}},
                    {"name": "s", "secret": {"secretName": "secret"}},
                    {"name": "p", "projected": {"sources": [
                        {"downwardAPI": {"items": [{"path": "n", "fieldRef": {"fieldPath": "metadata.name"}}]}},
                        {"configMap": {"name": "map"}}]}},
                    {"name": "h", "hostPath": {"path": "/usr/share/doc"}}]}),
        ),
        pod(
            "init",
            json!({"initContainers": [
                {"name": "first", "command": shell("exit 0")},
                {"name": "side", "command": shell(idle), "restartPolicy": "Always"}],
                "containers": [{"name": "c", "command": shell(idle)}]}),
        ),
        one("eph", json!({"command": shell(idle)})),
        one("always", json!({"command": shell(idle), "imagePullPolicy": "Always"})),
        never("done", json!({"command": shell("exit 0")})),
        never("fail", json!({"command": shell("exit 3")})),
        never("start", json!({"command": ["/no/such/program"]})),
        never(
            "oom",
            json!({"command": ["tail", "/dev/zero"],
            "resources": {"limits": {"memory": "16Mi"}}}),
        ),
        pod(
            "init-fails",
            json!({"restartPolicy": "Never",
                "initContainers": [{"name": "first", "command": shell("exit 5")}],
                "containers": [{"name": "c", "command": shell(idle)}]}),
        ),
        pod(
            "once",
            json!({"containers": [{"name": "c", "volumeMounts": [{"name": "v", "mountPath": "/v"}],
                "command": shell("test -f /v/x && sleep 36000; touch /v/x; exit 7")}],
                "volumes": [{"name": "v", "emptyDir": {}}]}),
        ),
        pod(
            "sick",
            json!({"containers": [{"name": "c", "volumeMounts": [{"name": "v", "mountPath": "/v"}],
                "livenessProbe": {"exec": {"command": shell("test -f /v/x || ! touch /v/x")},
                    "failureThreshold": 1, "periodSeconds": 1, "timeoutSeconds": 60},
                "readinessProbe": {"tcpSocket": {"port": 1}},
                "command": shell(idle)}],
                "volumes": [{"name": "v", "emptyDir": {}}]}),
        ),
        pod(
            "late",
            json!({"activeDeadlineSeconds": 8, "containers": [{"name": "c", "command": shell(idle)}]}),
        ),
        one(
            "leave",
            json!({"command": shell(idle),
                "lifecycle": {"preStop": {"exec": {"command": ["true"]}}, "postStart": {"exec": {"command": ["true"]}}},
                "livenessProbe": {"exec": {"command": ["true"]}}}),
        ),
        one("pull", json!({"image": "registry.k8s.io/no-such-image:1"})),
        one(
            "absent",
            json!({"image": "registry.k8s.io/no-such-image:2", "imagePullPolicy": "Never"}),
        ),
        one("conf", json!({"envFrom": [{"configMapRef": {"name": "none"}}]})),
        one("name", json!({"image": "registry.k8s.io/UPPER:1"})),
        one(
            "hook",
            json!({"command": shell(idle), "lifecycle": {"postStart": {"exec": {"command": ["/none"]}}}}),
        ),
        pod("deny", json!({"nodeSelector": {"no": "such"}, "containers": [{"name": "c"}]})),
        one("huge", json!({"resources": {"requests": {"cpu": "4000"}}})),
        one(
            "grow",
            json!({"command": shell(idle),
            "resources": {"requests": {"cpu": "20m", "memory": "16Mi"}, "limits": {"cpu": "50m", "memory": "32Mi"}}}),
        ),
        pod(
            "image",
            json!({"containers": [{"name": "c", "command": shell(idle),
                "volumeMounts": [{"name": "i", "mountPath": "/i"}]}],
                "volumes": [{"name": "i", "image": {"reference": "registry.k8s.io/pause:3.10.2"}}]}),
        ),
        pod(
            "host",
            json!({"hostNetwork": true, "containers": [{"name": "c", "command": shell(idle)}]}),
        ),
    ]
}

fn still(name: &str) -> String {
    json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": "kube-system"},
        "spec": {"terminationGracePeriodSeconds": 1, "containers": [
            {"name": "c", "image": BUSYBOX, "command": shell("trap exit TERM; sleep 36000 & wait")}]}})
    .to_string()
}

/// Lets the pods of a twin live up to the moment at which they are looked at.
fn live(node_pair: &NodePair, twin: &PairedNode) -> anyhow::Result<()> {
    let control = &node_pair.control;
    let space = twin.own("aa1");
    let kubectl = |args: &[&str]| {
        let space: &[&str] = &["-n", &space];
        control.kubectl(args.iter().chain(space).copied())
    };
    kubectl(&["create", "configmap", "map", "--from-literal=a=b"])?;
    kubectl(&["create", "secret", "generic", "secret", "--from-literal=a=b"])?;
    for name in ["still", "brief"] {
        twin.node.add_manifest(&format!("{name}.json"), &still(name))?;
    }
    for pod in pods(twin) {
        control.create(&pod)?;
    }
    let status = |name: &str| control.get(["pod", "-n", &space, name]).unwrap_or_default();
    let state = |name: &str, index: usize, kind: &str| {
        status(name)["status"]["containerStatuses"][index]["state"][kind].is_object()
    };
    for name in ["run", "init", "eph", "always", "leave", "grow", "image", "host"] {
        eventually(PATIENCE, &format!("{name} runs"), || {
            let pod = status(name);
            let mut all = pod["status"]["containerStatuses"].as_array().into_iter().flatten();
            pod["status"]["phase"] == "Running" && all.all(|one| one["ready"] == true)
        })?;
    }
    let ended = [
        ("done", "Succeeded"),
        ("fail", "Failed"),
        ("start", "Failed"),
        ("oom", "Failed"),
        ("init-fails", "Failed"),
        ("deny", "Failed"),
        ("huge", "Failed"),
        ("late", "Failed"),
    ];
    for (name, phase) in ended {
        eventually(PATIENCE, &format!("{name} ended"), || {
            status(name)["status"]["phase"] == phase
        })?;
    }
    for name in ["once", "sick"] {
        eventually(PATIENCE, &format!("{name} runs again"), || {
            state(name, 0, "running")
                && status(name)["status"]["containerStatuses"][0]["restartCount"] == 1
        })?;
    }
    let waits = |name: &str, reason: &str| {
        status(name)["status"]["containerStatuses"][0]["state"]["waiting"]["reason"] == reason
    };
    for (name, reason) in [
        ("pull", "ImagePullBackOff"),
        ("absent", "ErrImageNeverPull"),
        ("conf", "CreateContainerConfigError"),
        ("name", "InvalidImageName"),
        ("hook", "CrashLoopBackOff"),
    ] {
        eventually(PATIENCE, &format!("{name} waits"), || waits(name, reason))?;
    }
    let container = |name: &str, script: &str| json!({"name": name, "image": BUSYBOX, "command": shell(script)});
    let patch = json!({"spec": {"ephemeralContainers": [container("long", "sleep 36000"), container("short", "exit 4")]}});
    kubectl(&[
        "patch",
        "pod",
        "eph",
        "--subresource=ephemeralcontainers",
        "--patch",
        &patch.to_string(),
    ])?;
    let patch = json!({"spec": {"containers": [{"name": "c", "resources": {
        "requests": {"cpu": "30m"}, "limits": {"cpu": "60m", "memory": "48Mi"}}}]}});
    kubectl(&["patch", "pod", "grow", "--subresource=resize", "--patch", &patch.to_string()])?;
    eventually(PATIENCE, "both ephemeral containers are known", || {
        let pod = status("eph");
        let list = pod["status"]["ephemeralContainerStatuses"].as_array();
        let kinds = ["running", "terminated"];
        list.is_some_and(|list| {
            kinds.iter().all(|kind| list.iter().any(|one| one["state"][kind].is_object()))
        })
    })?;
    eventually(PATIENCE, "grow has grown", || {
        status("grow")["status"]["containerStatuses"][0]["resources"]["limits"]["cpu"] == "60m"
    })?;
    kubectl(&["delete", "pod", "leave", "fail"])?;
    twin.node.remove_manifest("brief.json")?;
    eventually(PATIENCE, "the static pod left", || {
        control.get(["pod", "-n", "kube-system", &twin.own("brief-node1")]).is_err()
    })?;
    Ok(())
}

/// Series of a page by family: labels and value, in common names.
type Page = BTreeMap<String, BTreeMap<String, f64>>;

/// Families of the language that upstream is written in, of its HTTP client's cache, of who built it, and ours.
const OWN: [&str; 4] = ["go_", "kubernetes_build_info", "rest_client_transport_", "rubelet_"];

/// Series that say how long something took, how often somebody looked or tried again, or who asked:
/// both have them, with values of their own.
const MOVING: [&str; 26] = [
    "apiserver_delegated_",
    "authentication_token_cache_",
    "kubelet_cgroup_manager_duration_seconds",
    "kubelet_container_log_filesystem_used_bytes",
    "kubelet_evented_pleg_",
    "kubelet_first_network_pod_start_sli_duration_seconds",
    "kubelet_image_manager_ensure_image_requests_total",
    "kubelet_imagemanager_image_mustpull_checks_total",
    "kubelet_node_startup_",
    "kubelet_pleg_",
    "kubelet_pod_start_",
    "kubelet_pod_status_sync_duration_seconds",
    "kubelet_pod_worker_duration_seconds",
    "kubelet_runtime_operations_",
    "kubelet_started_containers_",
    "kubelet_terminated_containers_total",
    "kubelet_running_containers",
    "kubelet_volume_",
    "kubelet_topology_manager_",
    "process_",
    "registered_metrics_total",
    "rest_client_",
    "storage_operation_",
    "volume_manager_total_volumes",
    "volume_operation_",
    "workqueue_",
];

/// Families of the other pages whose values are settings or counts, not measures.
const STEADY: [&str; 12] = [
    "container_health_state",
    "container_oom_events_total",
    "container_processes",
    "container_spec_",
    "container_tasks_state",
    "container_threads_max",
    "container_ulimits_soft",
    "kubernetes_healthcheck",
    "machine_",
    "container_scrape_error",
    "resource_scrape_error",
    "container_swap_limit_bytes",
];

/// Whether a value is the same wherever the same happened.
fn is_steady(path: &str, family: &str) -> bool {
    let of = |list: &[&str]| list.iter().any(|start| family.starts_with(start));
    match path {
        "/metrics" => !family.ends_with("_sum") && !of(&MOVING),
        _ => of(&STEADY),
    }
}

/// Series that both need not have at the same moment: a crashing container comes and goes, answers
/// other than good ones depend on who was first, and disks in memory and interfaces come with other tests.
fn is_chance(family: &str, labels: &str) -> bool {
    labels.contains("\"hook\"")
        || (family == "rest_client_requests_total" && !labels.contains("\"20"))
        || (family.contains("_network_") && labels.contains("(\"pod\", \"\")"))
        || (family.starts_with("container_fs_") && !labels.contains("(\"device\", \"/dev/"))
}

/// Whether a value is of the whole machine, and so about the same for both.
fn is_shared(family: &str, labels: &str) -> bool {
    let counted = family.starts_with("container_fs_") || family.starts_with("container_memory_");
    // What is under way, and what hardly ever happens, is of the moment.
    let steady = !family.contains("io_current") && !family.contains("failcnt");
    counted && steady && labels.contains("(\"id\", \"/\")")
}

/// Whether two values are of the same magnitude.
fn are_near(a: f64, b: f64) -> bool {
    (a - b).abs() <= a.abs().max(b.abs()) / 2.0
}

/// Ids of sandboxes, which nothing but the runtime names.
fn without_ids(text: &str) -> String {
    let mut out = text.to_owned();
    let is_id = |word: &&str| word.len() == 64 && word.bytes().all(|b| b.is_ascii_hexdigit());
    for id in text.split(|c: char| !c.is_ascii_alphanumeric()).filter(is_id) {
        out = out.replace(id, "SANDBOX");
    }
    out
}

fn page(twin: &PairedNode, wire: &Wire, path: &str) -> Page {
    let answer = wire.send(twin.port(), &Ask::new("GET", path).bytes(), false).unwrap();
    let text = answer.text();
    if let Some(folder) = std::env::var_os("PAGES") {
        let name = format!("{}-{}", path.trim_matches('/').replace('/', "-"), twin.own("node1"));
        sys::fs::write(Path::new(&folder).join(name), &text).unwrap();
    }
    let kept = |(family, series): (String, BTreeMap<String, f64>)| {
        let series = series
            .into_iter()
            .map(|(labels, value)| (without_ids(&twin.placeless(&labels)), value));
        let series = series.filter(|(labels, _)| !is_chance(&family, labels)).collect();
        (family, series)
    };
    let all = exposition::series(&text).unwrap().into_iter();
    all.filter(|(family, _)| !OWN.iter().any(|start| family.starts_with(start))).map(kept).collect()
}

/// What one page of ours lacks, has too much, and has other values of.
fn compare(node_pair: &NodePair, wire: &Wire, path: &str) -> Vec<String> {
    let (theirs, ours) = (page(&node_pair.go, wire, path), page(&node_pair.ours, wire, path));
    let mut found = Vec::new();
    let none = BTreeMap::new();
    for family in theirs.keys().chain(ours.keys()).collect::<BTreeSet<_>>() {
        let want = theirs.get(family).unwrap_or(&none);
        let got = ours.get(family).unwrap_or(&none);
        for (labels, value) in want {
            match got.get(labels) {
                None => found.push(format!("{path} lacks {family}{labels} {value}")),
                Some(other) if other != value && is_steady(path, family) => {
                    found.push(format!("{path} {family}{labels} is {other}, not {value}"));
                }
                Some(other) if is_shared(family, labels) && !are_near(*value, *other) => {
                    found.push(format!("{path} {family}{labels} is {other}, far from {value}"));
                }
                Some(_) => {}
            }
        }
        let more = got.iter().filter(|(labels, _)| !want.contains_key(*labels));
        found.extend(more.map(|(labels, value)| format!("{path} has {family}{labels} {value}")));
    }
    found
}

/// Every number of a document by its place.
fn numbers(place: &str, value: &Value, all: &mut BTreeMap<String, f64>) {
    match value {
        Value::Object(map) => {
            map.iter().for_each(|(key, value)| numbers(&format!("{place}.{key}"), value, all));
        }
        Value::Array(list) => {
            for (index, item) in list.iter().enumerate() {
                let names = [&item["podRef"]["name"], &item["name"]];
                let name = names.iter().find_map(|name| name.as_str());
                let name = name.map_or_else(|| index.to_string(), str::to_owned);
                numbers(&format!("{place}[{name}]"), item, all);
            }
        }
        Value::Number(number) => {
            all.insert(place.to_owned(), number.as_f64().unwrap_or_default());
        }
        _ => {}
    }
}

/// Numbers of the summary that one lacks, and sizes of disks that are not the same.
fn compare_summaries(node_pair: &NodePair, wire: &Wire) -> Vec<String> {
    let of = |twin: &PairedNode| {
        let ask = Ask::new("GET", "/stats/summary").bytes();
        let text = twin.common(&wire.send(twin.port(), &ask, false).unwrap().text());
        let mut all = BTreeMap::new();
        numbers("", &serde_json::from_str(&text).unwrap(), &mut all);
        // Interfaces come and go with other tests, and so does a container that crashes.
        all.retain(|place, _| !place.contains("interfaces[") && !place.contains("[hook]"));
        all
    };
    let (want, got) = (of(&node_pair.go), of(&node_pair.ours));
    let steady = ["capacityBytes", "inodes", "maxpid"];
    let differs = |place: &&&String| {
        let last = place.rsplit('.').next().unwrap_or_default();
        let (want, got) = (want.get(**place), got.get(**place));
        want.is_some() != got.is_some() || (steady.contains(&last) && want != got)
    };
    let places: BTreeSet<&String> = want.keys().chain(got.keys()).collect();
    let told = |place: &&String| {
        format!("summary {place} is {:?}, not {:?}", got.get(*place), want.get(*place))
    };
    places.iter().filter(differs).map(told).collect()
}

#[test]
fn both_kubelets_count_alike() {
    let mut node_pair = NodePair::without_pods(&json!({"volumeStatsAggPeriod": "1s"})).unwrap();
    std::thread::scope(|scope| {
        let both =
            [&node_pair.go, &node_pair.ours].map(|twin| scope.spawn(|| live(&node_pair, twin)));
        for one in both {
            one.join().unwrap().unwrap();
        }
    });
    let control = Arc::clone(&node_pair.control);
    node_pair.go.learn(&control).unwrap();
    node_pair.ours.learn(&control).unwrap();
    let wire = Wire::plain().unwrap();
    // Upstream finds a new cgroup, and shows what it counted of pods, when it looks the next time.
    let mut found = Vec::new();
    let alike = eventually(PATIENCE, "both pages are alike", || {
        found = compare_summaries(&node_pair, &wire);
        found.extend(PAGES.iter().flat_map(|path| compare(&node_pair, &wire, path)));
        found.is_empty()
    });
    assert!(alike.is_ok(), "{} differences:\n{}", found.len(), found.join("\n"));
}
