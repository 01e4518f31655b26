//! The whole agent as a member of a real cluster.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test on the real machine")]

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testkit::real::{
    ControlPlane, ControlPlaneOptions, KubeletKind, KubeletOptions, TestNode, eventually_some,
};

const PATIENCE: Duration = Duration::from_secs(60);

fn golden() -> Value {
    serde_json::from_str(include_str!("../../fixtures/golden/node.json")).unwrap()
}

fn is_ready(node: &Value) -> bool {
    let conditions = node["status"]["conditions"].as_array().cloned().unwrap_or_default();
    conditions.iter().any(|c| c["type"] == "Ready" && c["status"] == "True")
}

/// Keys at every level, first element of lists.
fn shape(value: &Value) -> Value {
    match value {
        Value::Object(map) => map.iter().map(|(k, v)| (k.clone(), shape(v))).collect(),
        Value::Array(list) => json!([list.first().map(shape)]),
        _ => Value::Null,
    }
}

#[test]
fn the_node_object_has_the_fields_that_the_go_kubelet_writes() {
    let control = Arc::new(ControlPlane::start(&ControlPlaneOptions::default()).unwrap());
    let kind = KubeletKind::from_env().unwrap();
    let image = "registry.k8s.io/pause:3.10.2";
    let mut node = TestNode::builder()
        .image(image.trim_start_matches("registry.k8s.io/"))
        .kubelet(kind)
        .join(&control)
        .start()
        .unwrap();
    let ready = || control.get(["node", "node1"]).ok().filter(is_ready);
    let seen = eventually_some(PATIENCE, "node is ready", ready).unwrap();
    let mut expected = shape(&golden()["status"]);
    let mut found = shape(&seen["status"]);
    for status in [&mut expected, &mut found] {
        // What is listed depends on what was pulled.
        status.as_object_mut().unwrap().remove("images");
    }
    assert_eq!(found, expected);
    assert_eq!(seen["status"]["declaredFeatures"], golden()["status"]["declaredFeatures"]);
    assert_eq!(seen["metadata"]["labels"], golden()["metadata"]["labels"]);
    for field in ["architecture", "operatingSystem", "osImage", "kubeProxyVersion"] {
        let of = |n: &Value| n["status"]["nodeInfo"][field].clone();
        assert_eq!(of(&seen), of(&golden()), "{field}");
    }
    let described = control.kubectl(["describe", "node", "node1"]).unwrap();
    for line in ["KubeletReady", "kubelet has sufficient memory available", "Allocatable:"] {
        assert!(described.contains(line), "{line}: {described}");
    }
    node.stop_kubelet();
}

#[test]
fn a_changed_config_map_reaches_a_running_pod_within_seconds() {
    let control = Arc::new(ControlPlane::start(&ControlPlaneOptions::default()).unwrap());
    let kind = KubeletKind::from_env().unwrap();
    let image = "registry.k8s.io/e2e-test-images/busybox:1.37.0-1";
    let mut node = TestNode::builder()
        .image(image.trim_start_matches("registry.k8s.io/"))
        .kubelet(kind)
        .join(&control)
        .start()
        .unwrap();
    control
        .create(&json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"key": "one"},
            "metadata": {"name": "cm", "namespace": "default"}}))
        .unwrap();
    control
        .create(&json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "p1", "namespace": "default"},
        "spec": {
            "nodeName": "node1", "automountServiceAccountToken": false,
            "terminationGracePeriodSeconds": 1,
            "volumes": [{"name": "v", "configMap": {"name": "cm"}}],
            "containers": [{"name": "c", "image": image,
                "command": ["sh", "-c", "sleep 3600"],
                "volumeMounts": [{"name": "v", "mountPath": "/v"}]}],
        }}))
        .unwrap();
    let running = || {
        let pod = control.get(["pod", "p1"]).ok()?;
        (pod["status"]["phase"] == "Running").then_some(pod)
    };
    let pod = eventually_some(PATIENCE, "pod runs", running).unwrap();
    let uid = pod["metadata"]["uid"].as_str().unwrap().to_owned();
    let file = node.root_dir().join("pods").join(uid);
    let file = file.join("volumes/kubernetes.io~configmap/v/key");
    let read = |wanted: &str| {
        let text = std::fs::read_to_string(&file).ok()?;
        (text == wanted).then_some(())
    };
    eventually_some(PATIENCE, "first content", || read("one")).unwrap();
    control.kubectl(["patch", "cm", "cm", "-p", r#"{"data":{"key":"two"}}"#]).unwrap();
    let changed = Instant::now();
    let patience = if kind == KubeletKind::Go { Duration::from_secs(150) } else { PATIENCE };
    eventually_some(patience, "second content", || read("two")).unwrap();
    if kind == KubeletKind::Rubelet {
        assert!(changed.elapsed() < Duration::from_secs(2), "{:?}", changed.elapsed());
    }
    node.stop_kubelet();
}

#[test]
fn a_machine_joins_with_bootstrap_credentials() {
    let options =
        ControlPlaneOptions { controller_manager: true, ..ControlPlaneOptions::default() };
    let control = Arc::new(ControlPlane::start(&options).unwrap());
    let approve = "system:certificates.k8s.io:certificatesigningrequests:nodeclient";
    for (name, role) in [("boot", "system:node-bootstrapper"), ("new", approve)] {
        let role = format!("--clusterrole={role}");
        let group = "--group=system:bootstrappers";
        control.kubectl(["create", "clusterrolebinding", name, &role, group]).unwrap();
    }
    let fresh = control.kubeconfig("admin").with_file_name("fresh.kubeconfig");
    let bootstrap = control.kubeconfig("bootstrap");
    let options = KubeletOptions {
        config: json!({"rotateCertificates": true}),
        args: vec![
            format!("--kubeconfig={}", fresh.display()),
            format!("--bootstrap-kubeconfig={}", bootstrap.display()),
        ],
        ..KubeletOptions::default()
    };
    let kind = KubeletKind::from_env().unwrap();
    let mut node =
        TestNode::builder().options(options).kubelet(kind).join(&control).start().unwrap();
    let ready = || control.get(["node", "node1"]).ok().filter(is_ready);
    eventually_some(PATIENCE, "node is ready", ready).unwrap();
    let text = std::fs::read_to_string(&fresh).unwrap();
    assert!(text.contains("kubelet-client-current.pem"), "{text}");
    let requests = control.get(["csr"]).unwrap();
    let request = &requests["items"][0];
    assert_eq!(request["spec"]["username"], "bootstrap");
    assert_eq!(request["spec"]["signerName"], "kubernetes.io/kube-apiserver-client-kubelet");
    node.stop_kubelet();
}

/// The way to the API server, which can be closed: connections break and new ones are refused.
struct Road {
    port: u16,
    closed: Arc<AtomicBool>,
    open: Arc<Mutex<Vec<TcpStream>>>,
}

impl Road {
    fn build(target: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let road = Self {
            port: listener.local_addr().unwrap().port(),
            closed: Arc::default(),
            open: Arc::default(),
        };
        let (closed, open) = (Arc::clone(&road.closed), Arc::clone(&road.open));
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                if closed.load(Ordering::SeqCst) {
                    continue;
                }
                let Ok(server) = TcpStream::connect(("127.0.0.1", target)) else { continue };
                let pairs = [(&client, &server), (&server, &client)];
                for (from, to) in pairs {
                    let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    open.lock().unwrap().push(from.try_clone().unwrap());
                    std::thread::spawn(move || carry(from, to));
                }
            }
        });
        road
    }

    fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        for stream in self.open.lock().unwrap().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    fn reopen(&self) {
        self.closed.store(false, Ordering::SeqCst);
    }
}

fn carry(mut from: TcpStream, mut to: TcpStream) {
    let mut buffer = vec![0; 16 * 1024];
    while let Ok(read) = from.read(&mut buffer) {
        if read == 0 || to.write_all(&buffer[..read]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}

/// A kubelet that reaches the API server over the road.
fn over(control: &ControlPlane, road: &Road) -> KubeletOptions {
    let path = control.kubeconfig("node1");
    let mut kubeconfig: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    kubeconfig["clusters"][0]["cluster"]["server"] =
        format!("https://127.0.0.1:{}", road.port).into();
    let detour = path.with_file_name("detour.kubeconfig");
    std::fs::write(&detour, kubeconfig.to_string()).unwrap();
    KubeletOptions {
        args: vec![format!("--kubeconfig={}", detour.display())],
        ..KubeletOptions::default()
    }
}

#[test]
fn pods_go_on_during_an_outage_and_everything_catches_up() {
    let control = Arc::new(ControlPlane::start(&ControlPlaneOptions::default()).unwrap());
    let road = Road::build(control.port());
    let image = "registry.k8s.io/e2e-test-images/busybox:1.37.0-1";
    let kind = KubeletKind::from_env().unwrap();
    let mut node = TestNode::builder()
        .image(image.trim_start_matches("registry.k8s.io/"))
        .options(over(&control, &road))
        .kubelet(kind)
        .join(&control)
        .start()
        .unwrap();
    let pod = |name: &str, command: &str| {
        json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "nodeName": "node1", "automountServiceAccountToken": false,
            "terminationGracePeriodSeconds": 1,
            "containers": [{"name": "c", "image": image, "command": ["sh", "-c", command]}],
        }})
    };
    let get = |name: &str| control.get(["pod", name]).ok();
    control.create(&pod("short", "sleep 6")).unwrap();
    control.create(&pod("doomed", "sleep 3600")).unwrap();
    let running = |name: &str| get(name).filter(|p| p["status"]["phase"] == "Running");
    for name in ["short", "doomed"] {
        eventually_some(PATIENCE, name, || running(name)).unwrap();
    }
    road.close();
    control.create(&pod("late", "sleep 3600")).unwrap();
    control.kubectl(["delete", "pod", "doomed", "--wait=false"]).unwrap();
    let restarted = || {
        let containers = node.containers().ok()?;
        let again =
            |c: &Value| c["metadata"]["name"] == "c" && c["metadata"]["attempt"].as_u64() > Some(0);
        containers.iter().any(again).then_some(())
    };
    eventually_some(PATIENCE, "a restart without the API server", restarted).unwrap();
    let silent = get("short").unwrap();
    assert_eq!(silent["status"]["containerStatuses"][0]["restartCount"], 0);
    road.reopen();
    eventually_some(PATIENCE, "late pod runs", || running("late")).unwrap();
    eventually_some(PATIENCE, "doomed pod is gone", || get("doomed").is_none().then_some(()))
        .unwrap();
    let counted = || {
        let count = get("short")?["status"]["containerStatuses"][0]["restartCount"].as_u64();
        (count > Some(0)).then_some(())
    };
    eventually_some(PATIENCE, "restart is reported", counted).unwrap();
    node.stop_kubelet();
}

#[test]
fn static_pods_start_while_the_api_server_is_away() {
    let control = Arc::new(ControlPlane::start(&ControlPlaneOptions::default()).unwrap());
    let road = Road::build(control.port());
    road.close();
    let image = "registry.k8s.io/e2e-test-images/busybox:1.37.0-1";
    let kind = KubeletKind::from_env().unwrap();
    let mut node = TestNode::builder()
        .image(image.trim_start_matches("registry.k8s.io/"))
        .options(over(&control, &road))
        .join(&control)
        .start()
        .unwrap();
    let manifest = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "still"},
        "spec": {"hostNetwork": true, "containers": [
            {"name": "c", "image": image, "command": ["sh", "-c", "sleep 3600"]}]}});
    node.add_manifest("still.json", &manifest.to_string()).unwrap();
    node.launch_kubelet(kind).unwrap();
    node.wait_running("c", PATIENCE).unwrap();
    road.reopen();
    let ready = || control.get(["node", "node1"]).ok().filter(is_ready);
    eventually_some(PATIENCE, "node is ready", ready).unwrap();
    node.stop_kubelet();
}

#[test]
fn a_node_that_was_away_for_long_gives_up_what_was_taken_and_keeps_the_rest() {
    // Ten minutes of real clusters, in seconds: leases, the controller's patience, tolerations.
    let patience = ["--node-monitor-grace-period=8s", "--node-monitor-period=1s"];
    let options = ControlPlaneOptions {
        controller_manager: true,
        controller_manager_args: patience.map(str::to_owned).to_vec(),
        nodes: ["node1", "node2"].map(str::to_owned).to_vec(),
        ..ControlPlaneOptions::default()
    };
    let control = Arc::new(ControlPlane::start(&options).unwrap());
    let road = Road::build(control.port());
    let config = json!({"nodeLeaseDurationSeconds": 4, "nodeStatusUpdateFrequency": "2s"});
    let options = KubeletOptions { config: config.clone(), ..over(&control, &road) };
    let kind = KubeletKind::from_env().unwrap();
    // Were all nodes of a cluster lost, the controller would rather believe that it is lost itself.
    let healthy = KubeletOptions { node: "node2".to_owned(), config, ..KubeletOptions::default() };
    let mut healthy =
        TestNode::builder().options(healthy).kubelet(kind).join(&control).start().unwrap();
    let mut node =
        TestNode::builder().options(options).kubelet(kind).join(&control).start().unwrap();
    let tolerated = |seconds: u32| {
        json!([{"key": "node.kubernetes.io/unreachable", "operator": "Exists",
            "effect": "NoExecute", "tolerationSeconds": seconds}])
    };
    for (name, seconds) in [("hasty", 1), ("patient", 3600)] {
        control
            .create(&json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {
                "nodeName": "node1", "automountServiceAccountToken": false,
                "terminationGracePeriodSeconds": 1, "tolerations": tolerated(seconds),
                "containers": [{"name": name, "image": "registry.k8s.io/pause:3.10.2"}],
            }}))
            .unwrap();
        node.wait_running(name, PATIENCE).unwrap();
    }
    let ready = |wanted: &'static str| {
        let object = control.get(["node", "node1"]).ok()?;
        let conditions = object["status"]["conditions"].as_array()?.clone();
        let is = |c: &Value| c["type"] == "Ready" && c["status"] == wanted;
        conditions.iter().any(is).then_some(object)
    };
    let get = |name: &str| control.get(["pod", name]).ok();
    let running = || get("patient").filter(|p| p["status"]["phase"] == "Running");
    let before = eventually_some(PATIENCE, "patient pod runs", running).unwrap();
    road.close();
    eventually_some(PATIENCE, "node is given up", || ready("Unknown")).unwrap();
    let taken = || get("hasty").filter(|p| p["metadata"]["deletionTimestamp"].is_string());
    eventually_some(PATIENCE, "hasty pod is taken away", taken).unwrap();
    for name in ["hasty", "patient"] {
        node.wait_running(name, Duration::from_secs(1)).unwrap();
    }
    road.reopen();
    eventually_some(PATIENCE, "node is back", || ready("True")).unwrap();
    eventually_some(PATIENCE, "hasty pod is gone", || get("hasty").is_none().then_some(()))
        .unwrap();
    let untainted = || {
        let object = control.get(["node", "node1"]).ok()?;
        let taints = object["spec"]["taints"].as_array().map_or(0, Vec::len);
        (taints == 0).then_some(())
    };
    eventually_some(PATIENCE, "the node has no taint", untainted).unwrap();
    let container = |pod: &Value| pod["status"]["containerStatuses"][0]["containerID"].clone();
    let is_ready_again = || {
        let pod = get("patient")?;
        let conditions = pod["status"]["conditions"].as_array()?;
        let is = |c: &Value| c["type"] == "Ready" && c["status"] == "True";
        conditions.iter().any(is).then(|| container(&pod))
    };
    let after = eventually_some(PATIENCE, "patient pod is ready again", is_ready_again).unwrap();
    assert_eq!(after, container(&before));
    node.stop_kubelet();
    healthy.stop_kubelet();
}

#[test]
fn a_start_that_fails_for_a_folder_is_told_to_the_node() {
    let control = Arc::new(ControlPlane::start(&ControlPlaneOptions::default()).unwrap());
    let mut node =
        TestNode::builder().kubelet(KubeletKind::Rubelet).join(&control).start().unwrap();
    node.stop_kubelet();
    let folder = node.root_dir().join("plugins_registry");
    std::fs::remove_dir(&folder).unwrap();
    std::fs::write(&folder, "").unwrap();
    node.launch_kubelet(KubeletKind::Rubelet).unwrap();
    let told = || {
        let args = ["events", "--field-selector", "reason=KubeletSetupFailed"];
        let events = control.get(args).ok()?;
        let messages = events["items"].as_array()?.iter().map(|event| event["message"].clone());
        messages.into_iter().next()
    };
    let told = eventually_some(PATIENCE, "the node is told why", told).unwrap();
    let fault = format!("mkdir {}: not a directory", folder.display());
    assert_eq!(told, format!("error creating plugins registry directory: {fault}"));
}
