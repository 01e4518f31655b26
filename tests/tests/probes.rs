//! Many probes at a time on real parts, and what a probe leaves behind.
//!
//! Under either kubelet (`KUBELET=go|rubelet`). `PODS=n` pods with five containers and ten probes a
//! second each, for `SECONDS=n`; `make probe-load` does 500 probes a second and prints what was counted.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test on the real machine")]

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testkit::eventually;
use testkit::real::{KubeletKind, TestNode};
use tests::cluster::{BUSYBOX, PAUSE};

const CONTAINERS: usize = 5;

fn number(name: &str, default: usize) -> usize {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// A server that every probe goes to; counts connections.
fn server() -> (u16, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let count = Arc::<AtomicUsize>::default();
    for _ in 0..4 {
        let (listener, count) = (listener.try_clone().unwrap(), Arc::clone(&count));
        std::thread::spawn(move || {
            for mut client in listener.incoming().map_while(Result::ok) {
                count.fetch_add(1, Ordering::Relaxed);
                // A TCP probe hangs up without a word.
                client.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
                if client.read(&mut [0; 2048]).is_ok_and(|read| read > 0) {
                    let answer =
                        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok";
                    drop(client.write_all(answer.as_bytes()));
                }
            }
        });
    }
    (port, count)
}

/// A pod with five containers, each asked twice a second: by HTTP and by TCP.
fn pod(name: &str, port: u16) -> Value {
    let numbers = json!({ "periodSeconds": 1, "timeoutSeconds": 1, "failureThreshold": 1 });
    let with = |kind: &str, action: Value| {
        let mut probe = numbers.clone();
        probe[kind] = action;
        probe
    };
    let container = |index: usize| {
        json!({
            "name": format!("c{index}"),
            "image": PAUSE,
            "livenessProbe": with("tcpSocket", json!({ "host": "127.0.0.1", "port": port })),
            "readinessProbe":
                with("httpGet", json!({ "host": "127.0.0.1", "port": port, "path": "/ready" })),
        })
    };
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name, "namespace": "default" },
        "spec": {
            "hostNetwork": true,
            "terminationGracePeriodSeconds": 1,
            "containers": (0..CONTAINERS).map(container).collect::<Vec<_>>(),
        },
    })
}

/// Sum of the samples of a metric whose labels contain this text.
fn sum(exposition: &str, metric: &str, label: &str) -> f64 {
    let lines = exposition.lines().filter(|l| l.starts_with(metric) && l.contains(label));
    lines.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok()).sum()
}

fn counts(node: &TestNode) -> (f64, f64) {
    let (_, text) = node.kubelet_get("/metrics/probes").unwrap();
    let of = |result: &str| sum(&text, "prober_probe_total", &format!("result=\"{result}\""));
    (of("successful"), of("failed"))
}

#[test]
fn many_probes_a_second_fail_nothing() {
    let (pods, seconds) = (number("PODS", 6), number("SECONDS", 10));
    let kind = KubeletKind::from_env().unwrap();
    let (port, asked) = server();
    let node = TestNode::builder().kubelet(kind).start().unwrap();
    for index in 0..pods {
        let name = format!("many{index}");
        node.add_manifest(&format!("{name}.json"), &pod(&name, port).to_string()).unwrap();
    }
    let all_ready = || -> Option<()> {
        let (_, text) = node.kubelet_get("/pods").ok()?;
        let list: Value = serde_json::from_str(&text).ok()?;
        let entries = list["items"].as_array()?.iter();
        let statuses = entries.filter_map(|pod| pod["status"]["containerStatuses"].as_array());
        let ready = statuses.flatten().filter(|s| s["ready"] == true && s["restartCount"] == 0);
        (ready.count() == pods * CONTAINERS).then_some(())
    };
    eventually!(240, all_ready().is_some());
    let (before, start) = (counts(&node), Instant::now());
    let asked_before = asked.load(Ordering::Relaxed);
    std::thread::sleep(Duration::from_secs(u64::try_from(seconds).unwrap()));
    let (after, took) = (counts(&node), start.elapsed().as_secs_f64());
    let asked_after = asked.load(Ordering::Relaxed);
    let per_second = (after.0 - before.0) / took;
    println!(
        "{pods} pods, {} containers: {per_second:.0} probes a second for {took:.0} s, {:.0} failed; the \
         server was asked {} times",
        pods * CONTAINERS,
        after.1.abs(),
        asked_after - asked_before
    );
    assert!((after.1).abs() < 0.5, "{} probes failed", after.1);
    let wanted = f64::from(u32::try_from(pods * CONTAINERS * 2).unwrap());
    assert!(per_second > wanted * 0.95, "{per_second} of {wanted} probes a second");
    assert!(all_ready().is_some(), "a container was restarted or became unready");
}

/// Processes of the whole machine with this argument.
fn processes(argument: &str) -> BTreeSet<u32> {
    let all = std::fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let has = |pid: &u32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0).any(|word| word == argument.as_bytes())
    };
    pids.filter(has).collect()
}

#[test]
fn a_timed_out_exec_probe_leaves_no_process() {
    let kind = KubeletKind::from_env().unwrap();
    let node = TestNode::builder().kubelet(kind).start().unwrap();
    // A duration that nobody else on the machine sleeps.
    let mark = format!("9{:07}", std::process::id());
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "slow", "namespace": "default" },
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "containers": [{
                "name": "slow", "image": BUSYBOX, "command": ["sh", "-c", "sleep 3600"],
                "readinessProbe": {
                    "exec": { "command": ["sleep", mark] },
                    "periodSeconds": 1, "timeoutSeconds": 1, "failureThreshold": 1,
                },
            }],
        },
    });
    node.add_manifest("slow.json", &pod.to_string()).unwrap();
    let mut seen = BTreeSet::new();
    // Five of them have come; at no time is there more than the one under way.
    eventually!(90, {
        let now = processes(&mark);
        assert!(now.len() <= 1, "probes pile up: {now:?}");
        seen.extend(now);
        seen.len() >= 5 && counts(&node).1 >= 4.0
    });
    node.remove_manifest("slow.json").unwrap();
    eventually!(60, processes(&mark).is_empty());
}
