//! Container logs on a real runtime: a reader that follows sees every line although the file is rotated
//! under it, and the rotated files are laid out as configured.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test on the real machine")]

use std::path::PathBuf;
use std::time::Duration;

use serde_json::json;
use testkit::eventually;
use testkit::real::{KubeletKind, KubeletOptions, TestNode};

const LINES: usize = 1500;

/// The long variant: this many numbered lines while the file is rotated again and again.
fn many() -> Option<usize> {
    std::env::var("LOG_LINES").ok().and_then(|text| text.parse().ok())
}

fn pod() -> String {
    let script = format!(
        "sleep 3; i=0; while [ $i -lt {LINES} ]; do echo line $i; i=$((i+1)); \
         [ $((i%100)) -eq 0 ] && sleep 0.6; done; echo the end"
    );
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": "talk", "namespace": "default" },
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            "containers": [{
                "name": "talk",
                "image": "registry.k8s.io/e2e-test-images/busybox:1.37.0-1",
                "command": ["sh", "-c", script],
            }],
        },
    })
    .to_string()
}

/// The container's log files.
fn log_paths(node: &TestNode) -> Vec<PathBuf> {
    let mut paths = Vec::new();
    for pod in std::fs::read_dir(node.pod_logs_dir()).into_iter().flatten().flatten() {
        for log in std::fs::read_dir(pod.path().join("talk")).into_iter().flatten().flatten() {
            paths.push(log.path());
        }
    }
    paths.sort();
    paths
}

/// Names of the container's log files.
fn log_files(node: &TestNode) -> Vec<String> {
    let paths = log_paths(node);
    let names = paths.iter().filter_map(|path| path.file_name());
    names.map(|name| name.to_string_lossy().into_owned()).collect()
}

/// What the newest log file ends with: its last line, or nothing if it was rotated after the last line.
fn last_line(node: &TestNode) -> String {
    let newest = log_paths(node).into_iter().find(|path| path.ends_with("0.log")).unwrap();
    let text = std::fs::read_to_string(newest).unwrap();
    // Time, stream and tag come first.
    let line = text.lines().last().and_then(|line| line.splitn(4, ' ').nth(3));
    line.map(|line| format!("{line}\n")).unwrap_or_default()
}

#[test]
fn a_follower_sees_every_line_of_a_log_that_is_rotated() {
    let kind = KubeletKind::from_env().unwrap();
    let options = KubeletOptions {
        config: json!({
            "containerLogMaxSize": "8Ki",
            "containerLogMaxFiles": 3,
            "containerLogMonitorInterval": "3s",
        }),
        ..KubeletOptions::default()
    };
    let node = TestNode::builder().kubelet(kind).options(options).start().unwrap();
    node.add_manifest("talk.json", &pod()).unwrap();
    node.wait_running("talk", Duration::from_secs(60)).unwrap();
    let path = "/containerLogs/default/talk-node1/talk?follow=true";
    // The status that names the container may come a moment after the container.
    let mut answer = (0, String::new());
    eventually!(10, {
        answer = node.kubelet_get(path).unwrap();
        answer.0 == 200
    });
    let lines: Vec<&str> = answer.1.lines().collect();
    let want: Vec<String> = (0..LINES)
        .map(|n| format!("line {n}"))
        .chain(std::iter::once("the end".to_owned()))
        .collect();
    assert_eq!(lines, want);

    // The oldest may still be being packed.
    let is_packed = |name: &String| name.starts_with("0.log.") && name.ends_with(".gz");
    eventually!(10, log_files(&node).iter().any(is_packed));
    let files = log_files(&node);
    assert!(files.len() <= 3, "{files:?}");
    assert!(files.contains(&"0.log".to_owned()));
    let exited = node.containers().unwrap().iter().all(|c| c["state"] != "CONTAINER_RUNNING");
    assert!(exited, "following ended with the container");
    let (code, tail) =
        node.kubelet_get("/containerLogs/default/talk-node1/talk?tailLines=1").unwrap();
    assert_eq!((code, tail), (200, last_line(&node)));
}

/// `make log-flood`: a million lines while the file rotates 50 times.
#[test]
fn a_follower_sees_each_of_a_million_lines_once() {
    let Some(lines) = many() else { return };
    let kind = KubeletKind::from_env().unwrap();
    // A line of 6 digits is 50 bytes in the log: so many bytes rotate the file 50 times or more.
    let size = format!("{}", (lines * 50 / 60).max(8192));
    let options = KubeletOptions {
        config: json!({
            "containerLogMaxSize": size,
            "containerLogMaxFiles": 3,
            "containerLogMonitorInterval": "3s",
        }),
        ..KubeletOptions::default()
    };
    let node = TestNode::builder().kubelet(kind).options(options).start().unwrap();
    let script = format!(
        "sleep 5; for part in $(seq 0 59); do seq $((part*{0})) $((part*{0}+{0}-1)); sleep 4; done; \
         seq {1} {2}",
        lines / 60,
        lines / 60 * 60,
        lines - 1
    );
    let mut manifest: serde_json::Value = serde_json::from_str(&pod()).unwrap();
    manifest["spec"]["containers"][0]["command"][2] = script.into();
    node.add_manifest("talk.json", &manifest.to_string()).unwrap();
    node.wait_running("talk", Duration::from_secs(60)).unwrap();
    let url = format!(
        "https://127.0.0.1:{}/containerLogs/default/talk-node1/talk?follow=true",
        node.api_port()
    );
    let text = testkit::real::run("curl", ["-fsSk", "--retry", "5", "--retry-all-errors", &url]);
    let text = text.unwrap();
    let mut next = 0;
    for line in text.lines() {
        assert_eq!(line, next.to_string());
        next += 1;
    }
    assert_eq!(next, lines);
    println!("{next} lines, each once; left in the folder: {:?}", log_files(&node));
}
