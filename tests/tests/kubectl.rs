//! Real kubectl through a real API server to the node's API: logs, exec, cp, attach, port-forward
//! and the node proxy. `KUBELET=go` runs the same against the Go kubelet.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test on the real machine")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use testkit::real::{
    ControlPlane, ControlPlaneOptions, KubeletKind, KubeletOptions, TestNode, eventually_some,
};

const PATIENCE: Duration = Duration::from_secs(60);
const IMAGE: &str = "registry.k8s.io/e2e-test-images/busybox:1.37.0-1";
const CP_BYTES: usize = 100 << 20;

struct RecordingNode {
    // In the order in which they must go.
    _node: TestNode,
    control: Arc<ControlPlane>,
    folder: Folder,
}

/// A folder of this test, gone with it.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl RecordingNode {
    fn start(name: &str) -> RecordingNode {
        let control = Arc::new(ControlPlane::start(&ControlPlaneOptions::default()).unwrap());
        let kind = KubeletKind::from_env().unwrap();
        let options = KubeletOptions { config: control.guarded(), ..KubeletOptions::default() };
        let node = TestNode::builder().kubelet(kind).options(options).join(&control).start();
        let folder = std::env::temp_dir().join(format!("rubelet-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        RecordingNode { _node: node.unwrap(), control, folder: Folder(folder) }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.0.join(name)
    }

    /// A pod of one container, awaited until it is ready (or has ended).
    fn pod(&self, name: &str, container: Value) {
        let mut container = container;
        container["name"] = "c".into();
        container["image"] = IMAGE.into();
        let pod = json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "nodeName": "node1", "automountServiceAccountToken": false,
            "terminationGracePeriodSeconds": 1, "containers": [container],
        }});
        self.control.create(&pod).unwrap();
    }

    fn wait(&self, name: &str, what: impl Fn(&Value) -> bool) {
        let seen = || self.control.get(["pod", name]).ok().filter(|pod| what(&pod["status"]));
        eventually_some(PATIENCE, name, seen).unwrap();
    }

    fn kubectl(&self, args: &[&str]) -> Output {
        let mut command = self.control.kubectl_command(args.iter().copied()).unwrap();
        command.stdin(Stdio::null()).output().unwrap()
    }

    fn spawn(&self, args: &[&str]) -> Child {
        let mut command = self.control.kubectl_command(args.iter().copied()).unwrap();
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().unwrap()
    }

    fn says(&self, args: &[&str]) -> String {
        let output = self.kubectl(args);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{args:?}: {errors}");
        String::from_utf8(output.stdout).unwrap()
    }
}

fn is_running(status: &Value) -> bool {
    status["containerStatuses"][0]["state"]["running"].is_object()
}

fn shell(script: &str) -> Value {
    json!({"command": ["sh", "-c", script]})
}

#[test]
fn kubectl_logs_shows_what_was_asked_for() {
    let recording_node = RecordingNode::start("logs");
    recording_node.pod("talk", shell("for i in 1 2 3 4 5; do echo out $i; done; echo err 6 >&2; sleep 8; echo late; sleep 3600"));
    recording_node.pod("crash", shell("echo run; exit 3"));
    recording_node.wait("talk", is_running);
    let text = eventually_some(PATIENCE, "six lines", || {
        Some(recording_node.says(&["logs", "talk"])).filter(|text| text.lines().count() >= 6)
    });
    let text = text.unwrap();
    let mut lines: Vec<&str> = text.lines().take(6).collect();
    lines.sort_unstable();
    assert_eq!(lines, ["err 6", "out 1", "out 2", "out 3", "out 4", "out 5"]);
    assert_eq!(recording_node.says(&["logs", "talk", "--tail=2"]).lines().count(), 2);
    assert_eq!(recording_node.says(&["logs", "talk", "--limit-bytes=8"]), &text[..8]);
    assert_eq!(recording_node.says(&["logs", "talk", "--tail=0"]), "");
    let stamped = recording_node.says(&["logs", "talk", "--timestamps", "--tail=1"]);
    let (when, _) = stamped.split_once(' ').unwrap();
    assert!(when.len() == 30 && when.ends_with('Z'), "{stamped}");
    assert_eq!(
        recording_node
            .says(&["logs", "talk", &format!("--since-time={when}"), "--tail=1"])
            .lines()
            .count(),
        1
    );
    assert!(recording_node.says(&["logs", "talk", "--since=1h"]).starts_with(&text[..8]));

    let mut follower = recording_node.spawn(&["logs", "-f", "talk", "--tail=1"]);
    let mut seen = BufReader::new(follower.stdout.take().unwrap()).lines();
    let late = seen.by_ref().map(Result::unwrap).find(|line| line == "late");
    assert_eq!(late.as_deref(), Some("late"), "a follower sees what comes later");
    follower.kill().unwrap();
    follower.wait().unwrap();
    eventually_some(PATIENCE, "the start is long ago", || {
        let recent = recording_node.says(&["logs", "talk", "--since=2s"]);
        (!recent.contains("out 1")).then_some(())
    })
    .unwrap();

    recording_node
        .wait("crash", |status| status["containerStatuses"][0]["restartCount"].as_u64() > Some(0));
    assert_eq!(recording_node.says(&["logs", "crash", "--previous"]), "run\n");
    let none = recording_node.kubectl(&["logs", "talk", "--previous"]);
    let errors = String::from_utf8_lossy(&none.stderr);
    let wanted = "previous terminated container \"c\" in pod \"talk\" not found";
    assert!(!none.status.success() && errors.contains(wanted), "{errors}");
}

#[test]
fn kubectl_exec_and_attach_carry_streams_terminals_and_exit_codes() {
    let recording_node = RecordingNode::start("exec");
    recording_node.pod("box", shell("sleep 3600"));
    recording_node.pod(
        "term",
        json!({"command": ["sh", "-c", "while read line; do echo got $line; done"],
        "stdin": true, "tty": true}),
    );
    recording_node.pod(
        "pipe",
        json!({"command": ["sh", "-c", "while read line; do echo got $line; echo no >&2; done"],
        "stdin": true}),
    );
    for pod in ["box", "term", "pipe"] {
        recording_node.wait(pod, is_running);
    }
    let output = recording_node.kubectl(&[
        "exec",
        "box",
        "--",
        "sh",
        "-c",
        "echo out; echo err >&2; exit 7",
    ]);
    assert_eq!(output.status.code(), Some(7));
    assert_eq!(output.stdout, b"out\n");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.starts_with("err\n") && errors.contains("exit code 7"), "{errors}");
    let missing = recording_node.kubectl(&["exec", "box", "--", "no-such-program"]);
    assert!(String::from_utf8_lossy(&missing.stderr).contains("no-such-program"));

    let mut child = recording_node.spawn(&["exec", "-i", "box", "--", "sha1sum"]);
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(&vec![b'x'; 3 << 20]).unwrap();
    drop(stdin);
    let sum = child.wait_with_output().unwrap();
    assert!(sum.stdout.starts_with(b"29d0554bd32045956135c3a22bb99d3531249f22"), "{sum:?}");

    terminal(&recording_node);
    attach(&recording_node);
}

/// A kubectl command as a line for a shell.
fn quoted(recording_node: &RecordingNode, args: &[&str]) -> String {
    let kubectl = recording_node.control.kubectl_command(args.iter().copied()).unwrap();
    let words = std::iter::once(kubectl.get_program()).chain(kubectl.get_args());
    let words: Vec<String> = words.map(|word| format!("'{}'", word.to_str().unwrap())).collect();
    words.join(" ")
}

/// `kubectl exec -it` in a terminal of its own whose size changes.
fn terminal(recording_node: &RecordingNode) {
    // The size travels on its own stream and may come after the start.
    let inside = "until [ \"$(stty size)\" = \"33 77\" ]; do sleep 0.1; done; \
                  echo first $(stty size); read a; echo then $(stty size); exit 5";
    let kubectl = quoted(recording_node, &["exec", "-it", "box", "--", "sh", "-c", inside]);
    let line = format!(
        "stty rows 33 cols 77; tty > {}; {}; echo code=$?",
        recording_node.path("tty").display(),
        kubectl
    );
    let mut child = Command::new("script")
        .args(["-qfec", &line, "/dev/null"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut shown = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let mut until = |wanted: &str| {
        let found = shown.by_ref().find(|line| line.contains(wanted));
        assert!(found.is_some(), "the terminal never showed {wanted}");
    };
    until("first 33 77");
    let tty = std::fs::read_to_string(recording_node.path("tty")).unwrap();
    testkit::real::run("stty", ["-F", tty.trim(), "rows", "44", "cols", "111"]).unwrap();
    // The new size travels on its own stream: ask until it has arrived.
    let resized = || {
        let asked =
            ["exec", "box", "--", "sh", "-c", "for t in /dev/pts/[0-9]*; do stty size < $t; done"];
        recording_node.says(&asked).contains("44 111").then_some(())
    };
    eventually_some(PATIENCE, "the terminal has its new size", resized).unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(b"go\n").unwrap();
    until("then 44 111");
    until("code=5");
    drop(stdin);
    child.wait().unwrap();
}

fn attach(recording_node: &RecordingNode) {
    let mut child = recording_node.spawn(&["attach", "-i", "pipe"]);
    let mut stdin = child.stdin.take().unwrap();
    let mut shown = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    stdin.write_all(b"one\ntwo\n").unwrap();
    for wanted in ["got one", "got two"] {
        assert_eq!(shown.by_ref().find(|line| line.starts_with("got")).as_deref(), Some(wanted));
    }
    let errors = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
    let (seen, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let found = errors.into_iter().any(|line| line == "no");
        // Nobody waits any more when the test has failed.
        let _ = seen.send(found);
    });
    assert_eq!(told.recv_timeout(PATIENCE), Ok(true), "standard error comes on its own stream");
    drop(stdin);
    child.kill().unwrap();
    child.wait().unwrap();

    let mut child = Command::new("script")
        .args(["-qfec", &quoted(recording_node, &["attach", "-it", "term"]), "/dev/null"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(b"three\n").unwrap();
    let mut shown = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let echoed = shown.by_ref().find(|line| line.contains("got three"));
    assert!(echoed.is_some(), "a terminal answers");
    child.kill().unwrap();
    child.wait().unwrap();
}

fn checksum(path: &Path) -> String {
    let text = testkit::real::run("sha256sum", [path]).unwrap();
    text.split_whitespace().next().unwrap().to_owned()
}

#[test]
fn kubectl_cp_takes_100_megabytes_there_and_back() {
    let recording_node = RecordingNode::start("cp");
    recording_node.pod("box", shell("sleep 3600"));
    recording_node.wait("box", is_running);
    let (there, back) = (recording_node.path("there"), recording_node.path("back"));
    let mut bytes = Vec::with_capacity(CP_BYTES);
    let mut state = 88_172_645_463_325_252_u64;
    while bytes.len() < CP_BYTES {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    std::fs::write(&there, &bytes).unwrap();
    recording_node.says(&["cp", there.to_str().unwrap(), "default/box:/tmp/big"]);
    let inside = recording_node.says(&["exec", "box", "--", "sha256sum", "/tmp/big"]);
    assert!(inside.starts_with(&checksum(&there)), "{inside}");
    recording_node.says(&["cp", "default/box:/tmp/big", back.to_str().unwrap()]);
    assert_eq!(checksum(&back), checksum(&there));
}

#[test]
fn kubectl_port_forward_serves_50_connections_at_a_time() {
    let recording_node = RecordingNode::start("forward");
    let script =
        "mkdir /www; head -c 200000 /dev/zero | tr '\\0' a > /www/a; httpd -f -p 8080 -h /www";
    recording_node.pod("web", shell(script));
    recording_node.wait("web", is_running);
    let mut child = recording_node.spawn(&["port-forward", "pod/web", ":8080"]);
    let first = BufReader::new(child.stdout.as_mut().unwrap()).lines().next().unwrap().unwrap();
    let port = first.split("127.0.0.1:").nth(1).and_then(|rest| rest.split(' ').next());
    let port: u16 = port.unwrap().parse().unwrap();
    let get = || -> std::io::Result<Vec<u8>> {
        let mut stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.write_all(b"GET /a HTTP/1.0\r\n\r\n")?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer)?;
        Ok(answer)
    };
    // httpd may still be on its way up; a failed connection may end the forward only later.
    eventually_some(PATIENCE, "httpd answers", || get().ok().filter(|a| a.len() > 200_000))
        .unwrap();
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..50).map(|_| scope.spawn(get)).collect();
        for one in all {
            let answer = one.join().unwrap().unwrap();
            let body = answer.windows(4).position(|w| w == b"\r\n\r\n").unwrap() + 4;
            assert_eq!(answer.len() - body, 200_000);
        }
    });
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn the_node_proxy_reaches_every_page() {
    let recording_node = RecordingNode::start("proxy");
    recording_node.pod("box", shell("sleep 3600"));
    recording_node.wait("box", is_running);
    let page = |path: &str| {
        recording_node.says(&["get", "--raw", &format!("/api/v1/nodes/node1/proxy{path}")])
    };
    assert_eq!(page("/healthz"), "ok");
    let pods: Value = serde_json::from_str(&page("/pods")).unwrap();
    assert_eq!(pods["items"][0]["metadata"]["name"], "box");
    let running: Value = serde_json::from_str(&page("/runningpods/")).unwrap();
    assert_eq!(running["items"][0]["spec"]["containers"][0]["name"], "c");
    let config: Value = serde_json::from_str(&page("/configz")).unwrap();
    assert_eq!(config["kubeletconfig"]["kind"], "KubeletConfiguration");
    let summary: Value = serde_json::from_str(&page("/stats/summary")).unwrap();
    assert_eq!(summary["node"]["nodeName"], "node1");
    for (path, family) in [
        ("/metrics", "kubelet_running_pods"),
        ("/metrics/cadvisor", "container_memory_working_set_bytes"),
        ("/metrics/resource", "node_cpu_usage_seconds_total"),
        ("/metrics/probes", "process_start_time_seconds"),
        ("/metrics/slis", "kubernetes_healthcheck"),
    ] {
        assert!(page(path).contains(family), "{path}");
    }
    assert!(page("/flagz").contains("kubelet flagz"));
    assert!(page("/statusz").contains("kubelet statusz"));
    assert_eq!(page("/containerLogs/default/box/c"), "");
    assert!(page("/logs/").contains("<pre>"));
}
