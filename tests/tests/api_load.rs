//! The node's side of the API server under pressure: callers who flood it with tokens, writers who
//! change statuses, hundreds of objects, a server that goes away. Under either kubelet
//! (`KUBELET=go|rubelet`); `PODS`, `OBJECTS` and `OUTAGE` (seconds) make it larger.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test on the real machine")]

use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testkit::eventually;
use testkit::real::{
    ControlPlane, ControlPlaneOptions, KubeletKind, KubeletOptions, TestNode, run,
};
use tests::cluster::{BUSYBOX, PAUSE, condition};
use tests::wire::Wire;

fn number(name: &str, usual: usize) -> usize {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

/// These tests measure: one at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The API server, asked by the administrator without a program in between.
struct Api {
    wire: Wire,
    port: u16,
    token: &'static str,
}

const PODS: &str = "/api/v1/namespaces/default/pods";

impl Api {
    fn of(control: &ControlPlane) -> Api {
        Api { wire: Wire::plain().unwrap(), port: control.port(), token: control.admin_token() }
    }

    fn request(&self, method: &str, path: &str, body: &Value) -> Vec<u8> {
        let kind = match method {
            "PATCH" => "application/strategic-merge-patch+json",
            _ => "application/json",
        };
        let body = if body.is_null() { String::new() } else { body.to_string() };
        format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {}\r\n\
             Content-Type: {kind}\r\nContent-Length: {}\r\n\r\n{body}",
            self.token,
            body.len()
        )
        .into_bytes()
    }

    fn get(&self, path: &str) -> Value {
        let request = self.request("GET", path, &Value::Null);
        let answer = self.wire.send(self.port, &request, false);
        answer.ok().and_then(|a| serde_json::from_slice(&a.body).ok()).unwrap_or_default()
    }

    /// Sends them all over one connection; every one must be taken.
    fn send(&self, requests: &[Vec<u8>]) {
        let requests: Vec<&[u8]> = requests.iter().map(Vec::as_slice).collect();
        for batch in requests.chunks(50) {
            let answers = self.wire.converse(self.port, batch).unwrap();
            assert_eq!(answers.len(), batch.len(), "the connection stays");
            for answer in answers {
                assert!(matches!(answer.status, 200 | 201), "{}", answer.text());
            }
        }
    }

    fn create(&self, plural: &str, objects: &[Value]) {
        let path = format!("/api/v1/namespaces/default/{plural}");
        let requests: Vec<_> = objects.iter().map(|o| self.request("POST", &path, o)).collect();
        self.send(&requests);
    }

    fn pods(&self) -> Vec<Value> {
        self.get(PODS)["items"].as_array().cloned().unwrap_or_default()
    }

    fn ready(&self, prefix: &str) -> usize {
        let pods = self.pods();
        let of = |pod: &&Value| pod["metadata"]["name"].as_str().unwrap().starts_with(prefix);
        pods.iter().filter(of).filter(|pod| condition(pod, "Ready") == "True").count()
    }
}

fn pod(name: &str, spec: Value) -> Value {
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name },
        "spec": {
            "nodeName": "node1", "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": false,
            "containers": [{ "name": "c", "image": PAUSE }],
        },
    });
    if let (Some(own), Value::Object(given)) = (pod["spec"].as_object_mut(), spec) {
        own.extend(given);
    }
    pod
}

fn start(kind: KubeletKind, options: &ControlPlaneOptions) -> (Arc<ControlPlane>, TestNode, Api) {
    let control = Arc::new(ControlPlane::start(options).unwrap());
    let options = KubeletOptions { config: control.guarded(), ..KubeletOptions::default() };
    let node = TestNode::builder().kubelet(kind).options(options).join(&control).start().unwrap();
    let api = Api::of(&control);
    (control, node, api)
}

/// How long it takes from a pod's creation until the API server knows that it runs.
fn time_to_running(api: &Api, name: &str) -> Duration {
    let begun = Instant::now();
    api.create("pods", &[pod(name, json!({}))]);
    let path = format!("{PODS}/{name}");
    eventually!(120, api.get(&path)["status"]["phase"] == "Running");
    begun.elapsed()
}

/// A request with a token that nobody has seen, whose sender does not wait for the answer.
fn hit_and_run(wire: &Wire, port: u16, token: &str) -> bool {
    let request = format!("GET /pods HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\r\n");
    let Ok(mut stream) = wire.open(port) else { return false };
    stream.write_all(request.as_bytes()).and_then(|()| stream.flush()).is_ok()
}

#[test]
fn callers_without_credentials_silence_nobody() {
    let _alone = alone();
    let kind = KubeletKind::from_env().unwrap();
    let (_control, node, api) = start(kind, &ControlPlaneOptions::default());
    let usual = time_to_running(&api, "before");
    let (over, sent) = (AtomicBool::new(false), AtomicU64::new(0));
    let lasting = Duration::from_secs(20);
    let port = node.api_port();
    let lease = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/node1";
    let renewed = || api.get(lease)["spec"]["renewTime"].as_str().map(str::to_owned);
    let mut slowest = Duration::ZERO;
    std::thread::scope(|scope| {
        for caller in 0..16 {
            let (over, sent) = (&over, &sent);
            scope.spawn(move || {
                let wire = Wire::plain().unwrap();
                while !over.load(Ordering::Relaxed) {
                    let number = sent.fetch_add(1, Ordering::Relaxed);
                    hit_and_run(&wire, port, &format!("{caller}-{number}"));
                }
            });
        }
        let begun = Instant::now();
        let (mut last, mut since) = (renewed(), Instant::now());
        while begun.elapsed() < lasting {
            std::thread::sleep(Duration::from_millis(200));
            let now = renewed();
            if now != last {
                (last, since) = (now, Instant::now());
            }
            slowest = slowest.max(since.elapsed());
        }
        over.store(true, Ordering::Relaxed);
    });
    let sent = sent.load(Ordering::Relaxed);
    let after = time_to_running(&api, "after");
    println!(
        "{sent} requests in {lasting:?}: a pod runs after {after:?} (before {usual:?}), \
         slowest heart-beat {slowest:?}"
    );
    assert!(slowest < Duration::from_secs(20), "leases are renewed every ten seconds");
    if kind == KubeletKind::Rubelet {
        assert!(after < usual * 3 + Duration::from_secs(3), "{after:?}, usually {usual:?}");
    }
    // Whoever has credentials is heard, also by a token that has to be reviewed first.
    let token = api.token;
    let asked = run(
        "curl",
        [
            "-sSk",
            "-m",
            "10",
            "-o",
            "/dev/null",
            "-w",
            "%{http_code}",
            "-H",
            &format!("Authorization: Bearer {token}"),
            &format!("https://127.0.0.1:{port}/pods"),
        ],
    );
    assert_eq!(asked.unwrap(), "200");
}

#[test]
fn statuses_that_somebody_changed_are_right_again_at_once() {
    let _alone = alone();
    let kind = KubeletKind::from_env().unwrap();
    let count = number("PODS", 30);
    let (_control, _node, api) = start(kind, &ControlPlaneOptions::default());
    let pods: Vec<Value> = (0..count).map(|n| pod(&format!("p{n}"), json!({}))).collect();
    api.create("pods", &pods);
    eventually!(300, api.ready("p") == count);
    // The node controller does this to the pods of a node that it takes for dead.
    let change = json!({ "status": { "conditions": [{ "type": "Ready", "status": "False" }] } });
    let status =
        |pod: &Value| format!("{PODS}/{}/status", pod["metadata"]["name"].as_str().unwrap());
    let patches: Vec<_> =
        pods.iter().map(|pod| api.request("PATCH", &status(pod), &change)).collect();
    let begun = Instant::now();
    api.send(&patches);
    let written = begun.elapsed();
    eventually!(120, api.ready("p") == count);
    let took = begun.elapsed();
    println!("{count} statuses changed in {written:?}, all right again after {took:?}");
    if kind == KubeletKind::Rubelet {
        let limit = written
            + Duration::from_secs(3)
            + Duration::from_millis(40) * 2 * u32::try_from(count).unwrap();
        assert!(took < limit, "{took:?}, {limit:?} at most");
    }
}

/// Connections of a process to a port of this machine.
fn connections(pid: u32, port: u16) -> usize {
    let sockets: Vec<String> = std::fs::read_dir(format!("/proc/{pid}/fd"))
        .unwrap()
        .filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok())
        .filter_map(|to| {
            Some(to.to_str()?.strip_prefix("socket:[")?.trim_end_matches(']').to_owned())
        })
        .collect();
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let remote = format!(":{port:04X}");
    table
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        .filter(|field| field.len() > 9 && field[2].ends_with(&remote) && field[3] == "01")
        .filter(|field| sockets.iter().any(|socket| socket == field[9]))
        .count()
}

fn config_map(name: &str, value: &str) -> Value {
    json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": name },
        "data": { "key": value } })
}

/// Pods with twenty objects each; `own` means that no two share one.
fn users(prefix: &str, count: usize, own: bool) -> Vec<Value> {
    let volume = |pod: usize, n: usize| {
        let object = if own { format!("{prefix}-{pod}-{n}") } else { format!("{prefix}-{n}") };
        json!({ "name": format!("v{n}"), "configMap": { "name": object } })
    };
    let users = (0..count).map(|index| {
        let volumes: Vec<Value> = (0..20).map(|n| volume(index, n)).collect();
        let mounts: Vec<Value> = (0..20)
            .map(|n| json!({ "name": format!("v{n}"), "mountPath": format!("/v{n}") }))
            .collect();
        pod(
            &format!("{prefix}{index}"),
            json!({ "volumes": volumes,
                "containers": [{ "name": "c", "image": PAUSE, "volumeMounts": mounts }] }),
        )
    });
    users.collect()
}

#[test]
fn five_hundred_objects_are_followed_over_few_connections() {
    let _alone = alone();
    let kind = KubeletKind::from_env().unwrap();
    let count = number("OBJECTS", 500) / 20;
    let options = ControlPlaneOptions {
        api_server_args: vec!["--http2-max-streams-per-connection=100".to_owned()],
        ..ControlPlaneOptions::default()
    };
    let (_control, mut node, api) = start(kind, &options);
    let pid = node.kubelet().unwrap().pid();
    let timed = |pods: &[Value], prefix: &str| {
        let begun = Instant::now();
        api.create("pods", pods);
        eventually!(600, api.ready(prefix) == count);
        begun.elapsed()
    };
    let shared: Vec<Value> = (0..20).map(|n| config_map(&format!("few-{n}"), "one")).collect();
    api.create("configmaps", &shared);
    let few = timed(&users("few", count, false), "few");
    let gone: Vec<_> = (0..count)
        .map(|n| {
            api.request("DELETE", &format!("{PODS}/few{n}"), &json!({ "gracePeriodSeconds": 1 }))
        })
        .collect();
    api.send(&gone);
    eventually!(300, api.pods().is_empty());
    let own: Vec<Value> = (0..count)
        .flat_map(|pod| (0..20).map(move |n| config_map(&format!("own-{pod}-{n}"), "one")))
        .collect();
    api.create("configmaps", &own);
    let many = timed(&users("own", count, true), "own");
    let open = connections(pid, api.port);
    // Every pod has one object changed; how long until the last of them shows it.
    let changed: Vec<_> = (0..count)
        .map(|pod| {
            let path = format!("/api/v1/namespaces/default/configmaps/own-{pod}-7");
            api.request("PATCH", &path, &json!({ "data": { "key": "two" } }))
        })
        .collect();
    let files: Vec<_> = api
        .pods()
        .iter()
        .map(|pod| {
            let uid = pod["metadata"]["uid"].as_str().unwrap();
            let place = format!("pods/{uid}/volumes/kubernetes.io~configmap/v7/key");
            node.root_dir().join(place)
        })
        .collect();
    let begun = Instant::now();
    api.send(&changed);
    let is_new =
        |file: &std::path::PathBuf| std::fs::read_to_string(file).is_ok_and(|t| t == "two");
    eventually!(180, files.iter().all(is_new));
    let seen = begun.elapsed();
    println!(
        "{count} pods with 20 objects for all of them {few:?}, with {} of their own {many:?}; \
         changes seen after {seen:?}; {open} connections",
        count * 20
    );
    if kind == KubeletKind::Rubelet {
        assert!(many < few * 2 + Duration::from_secs(10), "{many:?} for {few:?}");
        assert!(open <= count * 20 / 100 + 6, "{open} connections");
        assert!(seen < Duration::from_secs(15), "{seen:?}");
    }
}

/// Requests of the kubelet that got no answer.
fn unanswered(node: &TestNode, token: &str) -> f64 {
    let url = format!("https://127.0.0.1:{}/metrics", node.api_port());
    let header = format!("Authorization: Bearer {token}");
    let Ok(page) = run("curl", ["-fsSk", "-m", "10", "-H", &header, &url]) else { return -1.0 };
    let errors = page
        .lines()
        .filter(|line| line.starts_with("rest_client_requests_total{code=\"<error>\""))
        .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
    errors.sum()
}

#[test]
fn an_outage_under_load_changes_nothing() {
    let _alone = alone();
    let kind = KubeletKind::from_env().unwrap();
    let (count, outage) = (number("PODS", 15), number("OUTAGE", 60));
    let (control, node, api) = start(kind, &ControlPlaneOptions::default());
    let shell = |script: &str, policy: &str| {
        json!({ "restartPolicy": policy, "containers": [{
            "name": "c", "image": BUSYBOX, "command": ["sh", "-c", script] }] })
    };
    let mut pods = Vec::new();
    for n in 0..count {
        pods.push(pod(&format!("stay{n}"), json!({})));
        pods.push(pod(&format!("end{n}"), shell("sleep 25", "Never")));
    }
    // One whose container ends again and again, also while nobody can be told.
    pods.push(pod("again", shell("sleep 7", "Always")));
    api.create("pods", &pods);
    eventually!(300, api.ready("stay") == count);
    // Under way when the server goes: pods that are made and pods that are taken away.
    let leaving: Vec<_> = (0..count / 3)
        .map(|n| {
            api.request("DELETE", &format!("{PODS}/stay{n}"), &json!({ "gracePeriodSeconds": 1 }))
        })
        .collect();
    api.create(
        "pods",
        &(0..count / 3).map(|n| pod(&format!("new{n}"), json!({}))).collect::<Vec<_>>(),
    );
    api.send(&leaving);
    let before = unanswered(&node, api.token);
    control.stop_api_server();
    std::thread::sleep(Duration::from_secs(u64::try_from(outage).unwrap()));
    control.start_api_server().unwrap();
    let begun = Instant::now();
    let phase = |pod: &Value| pod["status"]["phase"].as_str().unwrap_or_default().to_owned();
    eventually!(120, {
        let pods = api.pods();
        let named = |prefix: &str| -> Vec<&Value> {
            let of = |pod: &&Value| pod["metadata"]["name"].as_str().unwrap().starts_with(prefix);
            pods.iter().filter(of).collect()
        };
        named("end").iter().all(|pod| phase(pod) == "Succeeded")
            && named("stay").len() == count - count / 3
            && named("stay").iter().all(|pod| condition(pod, "Ready") == "True")
            && named("new").iter().all(|pod| condition(pod, "Ready") == "True")
    });
    let settled = begun.elapsed();
    let errors = unanswered(&node, api.token) - before;
    let again = api.get(&format!("{PODS}/again"));
    let restarts = again["status"]["containerStatuses"][0]["restartCount"].as_i64().unwrap();
    println!(
        "{outage} s without a server: all as it should be {settled:?} after its return; \
         {errors} requests failed; {restarts} restarts of the one that ends"
    );
    assert!(restarts > 0, "containers are looked after meanwhile");
    if kind == KubeletKind::Rubelet {
        assert!(errors < 20.0 * f64::from(u32::try_from(outage).unwrap()), "{errors}");
        assert!(settled < Duration::from_secs(60), "{settled:?}");
    }
}
