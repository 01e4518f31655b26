//! A real node with thirty pods and a real API server, and what others notice of an attack on it.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use serde_json::{Value, json};
use testkit::real::{
    ControlPlane, ControlPlaneOptions, KubeletKind, KubeletOptions, TestNode, eventually,
    eventually_some,
};

use super::watch::Watch;
use super::{Attack, Target, Until};
use crate::cluster::{BUSYBOX, PAUSE};

/// The name of the node.
pub(super) const NODE: &str = "node1";
/// How long a lease is good; a quarter of it lies between two heart-beats.
const LEASE_SECONDS: u64 = 8;
/// How long is waited for something that an attack holds up.
const PATIENCE: Duration = Duration::from_secs(120);
/// How many pods are on the node.
const PODS: usize = 30;
/// A user of the cluster that has no rights.
pub(super) const NOBODY: &str = "nobody";

/// What was noticed during one attack.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Figures {
    /// How much the attacker did.
    pub done: u64,
    /// The longest time between two heart-beats.
    pub heart_beat: Duration,
    /// From a pod's creation until its Running was published, the slower of one during the attack and one right
    /// after it; none within two minutes.
    pub new_pod: Option<Duration>,
    /// The same without an attack.
    pub usual_pod: Duration,
    /// The slowest answer of `/healthz`; none if one was refused or took ten seconds.
    pub health: Option<Duration>,
    /// Processor time of the agent, in seconds.
    pub cpu: f64,
    /// How much resident memory rose at most, in MiB.
    pub growth: f64,
}

/// A node that can be attacked.
#[derive(Debug)]
pub struct Stage {
    // In the order in which they must go.
    leases: Watch,
    pods: Watch,
    node: TestNode,
    control: Arc<ControlPlane>,
    pid: u32,
    created: AtomicU64,
}

impl Stage {
    /// Start a cluster of one node with this kubelet and thirty pods, all of them running.
    pub fn start(kind: KubeletKind) -> anyhow::Result<Stage> {
        let plane = ControlPlaneOptions {
            users: vec![NOBODY.to_owned()],
            ..ControlPlaneOptions::default()
        };
        let control = Arc::new(ControlPlane::start(&plane)?);
        let mut config = control.guarded();
        config["address"] = "127.0.0.1".into();
        config["nodeLeaseDurationSeconds"] = LEASE_SECONDS.into();
        let options = KubeletOptions {
            node: NODE.to_owned(),
            config,
            own_devices: true,
            verbosity: 2,
            ..KubeletOptions::default()
        };
        let mut node = TestNode::builder().kubelet(kind).options(options).join(&control).start()?;
        let pid = node.kubelet().context("no kubelet")?.pid();
        let leases =
            Watch::start(&control, ("leases", "kube-node-lease"), "/object/spec/renewTime")?;
        let pods = Watch::start(&control, ("pods", "default"), "/object/status/phase")?;
        let stage = Stage { leases, pods, node, control, pid, created: AtomicU64::new(0) };
        let items: Vec<Value> = (0..PODS).map(|n| pause_pod(&format!("there{n}"))).collect();
        stage.control.create(&json!({ "apiVersion": "v1", "kind": "List", "items": items }))?;
        eventually(PATIENCE, "all pods run", || {
            (0..PODS).all(|n| stage.pods.when(&format!("there{n}"), "Running").is_some())
        })?;
        Ok(stage)
    }

    /// The port of the node's API.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.node.api_port()
    }

    /// The port of its health.
    #[must_use]
    pub fn health_port(&self) -> u16 {
        self.node.health_port()
    }

    /// The control plane.
    #[must_use]
    pub fn control(&self) -> &ControlPlane {
        &self.control
    }

    /// The kubelet's folder.
    #[must_use]
    pub fn root_dir(&self) -> PathBuf {
        self.node.root_dir()
    }

    /// The kubelet's folder for device plugins.
    #[must_use]
    pub fn devices_dir(&self) -> PathBuf {
        self.node.devices_dir()
    }

    /// Let the attack go on for some seconds and note what others notice.
    pub fn endure(&self, attack: Attack, seconds: u64) -> anyhow::Result<Figures> {
        let usual_pod = self.usual()?;
        let stop = AtomicBool::new(false);
        let (begun, before, cpu) =
            (Instant::now(), resident_mib(self.pid)?, cpu_seconds(self.pid)?);
        let until = Until { end: begun + Duration::from_secs(seconds), stop: &stop };
        let figures = std::thread::scope(|scope| {
            let attacker = scope.spawn(|| (attack.run)(Target { stage: self, until }));
            let health = scope.spawn(|| self.watch_health(until));
            let memory = scope.spawn(|| self.watch_memory(until));
            // The attack is in full swing by then.
            until.pause(Duration::from_secs(seconds) / 3);
            let during = self.new_pod();
            let cpu_then = until_over(until, || cpu_seconds(self.pid));
            stop.store(true, Ordering::Relaxed);
            let after = self.new_pod();
            let ended = |_| anyhow::anyhow!("a watcher panicked");
            anyhow::Ok(Figures {
                done: attacker.join().map_err(ended)??,
                heart_beat: self.slowest_heart_beat(begun, Instant::now()),
                new_pod: during?.zip(after?).map(|(during, after)| during.max(after)),
                usual_pod,
                health: health.join().map_err(ended)?,
                cpu: cpu_then? - cpu,
                growth: memory.join().map_err(ended)? - before,
            })
        })?;
        Ok(figures)
    }

    /// How long a new pod takes now, the middle one of three.
    fn usual(&self) -> anyhow::Result<Duration> {
        let mut times = Vec::new();
        for _ in 0..3 {
            times.push(self.new_pod()?.context("a new pod does not run without any attack")?);
        }
        times.sort();
        Ok(times[1])
    }

    /// Create a pod, see it run, delete it.
    fn new_pod(&self) -> anyhow::Result<Option<Duration>> {
        let name = format!("new{}", self.created.fetch_add(1, Ordering::Relaxed));
        self.control.create(&pause_pod(&name))?;
        let created = eventually_some(PATIENCE, "the API server shows the pod", || {
            self.pods.changes(&name).first().copied()
        })?;
        let running =
            eventually_some(PATIENCE, "the new pod runs", || self.pods.when(&name, "Running"));
        self.control.kubectl([
            "delete",
            "pod",
            &name,
            "--wait=false",
            "--grace-period=0",
            "--force",
        ])?;
        Ok(running.ok().map(|running| running - created))
    }

    fn slowest_heart_beat(&self, from: Instant, until: Instant) -> Duration {
        slowest(&self.leases.changes(NODE), from, until)
    }

    fn watch_health(&self, until: Until<'_>) -> Option<Duration> {
        let mut slowest = Some(Duration::ZERO);
        while until.goes_on() {
            let asked = Instant::now();
            let answered = ask_health(self.health_port()).is_ok();
            slowest = slowest.filter(|_| answered).map(|slow| slow.max(asked.elapsed()));
            until.pause(Duration::from_millis(200));
        }
        slowest
    }

    fn watch_memory(&self, until: Until<'_>) -> f64 {
        let mut most: f64 = 0.0;
        while until.goes_on() {
            most = most.max(resident_mib(self.pid).unwrap_or_default());
            until.pause(Duration::from_millis(100));
        }
        most
    }
}

/// The longest time between two of these moments within a span of time, the one before it counted.
fn slowest(beats: &[Instant], from: Instant, until: Instant) -> Duration {
    let last_before = beats.iter().rev().find(|beat| **beat <= from).copied().unwrap_or(from);
    let within = beats.iter().copied().filter(|beat| *beat > from && *beat < until);
    let moments: Vec<Instant> = [last_before].into_iter().chain(within).chain([until]).collect();
    moments.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or_default()
}

/// What is read when the time of an attack is over.
fn until_over<T>(until: Until<'_>, read: impl Fn() -> T) -> T {
    until.pause(PATIENCE);
    read()
}

fn pause_pod(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": name, "namespace": "default" },
        "spec": {
            "nodeName": NODE, "automountServiceAccountToken": false,
            "terminationGracePeriodSeconds": 1,
            "containers": [{ "name": "c", "image": PAUSE }],
        },
    })
}

/// A pod of one container that runs a script, with bounds of its own so that the machine is not what is
/// attacked; `spec` and `container` are laid over it.
pub(super) fn script_pod(name: &str, script: &str, container: Value, spec: Value) -> Value {
    let mut own = json!({
        "name": "c", "image": BUSYBOX, "command": ["sh", "-c", script],
        "resources": { "limits": { "cpu": "100m", "memory": "64Mi" } },
    });
    lay(&mut own, container);
    let mut pod = pause_pod(name);
    pod["spec"]["containers"] = json!([own]);
    lay(&mut pod["spec"], spec);
    pod
}

fn lay(over: &mut Value, fields: Value) {
    if let (Some(own), Value::Object(given)) = (over.as_object_mut(), fields) {
        own.extend(given);
    }
}

fn ask_health(port: u16) -> anyhow::Result<()> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    anyhow::ensure!(answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer));
    Ok(())
}

/// Processor time a process has used so far, in seconds.
fn cpu_seconds(pid: u32) -> anyhow::Result<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let after_name = stat.rsplit_once(')').context("process stat")?.1;
    let ticks = |index: usize| -> anyhow::Result<f64> {
        Ok(after_name.split_whitespace().nth(index).context("process stat")?.parse()?)
    };
    // The kernel counts in hundredths of a second for user space.
    Ok((ticks(11)? + ticks(12)?) / 100.0)
}

fn resident_mib(pid: u32) -> anyhow::Result<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("VmRSS")?;
    let kib: f64 = line.trim().trim_end_matches("kB").trim().parse()?;
    Ok(kib / 1024.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slowest_heart_beat_counts_what_is_missing_at_both_ends() {
        let start = Instant::now();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let beats = [at(1), at(3), at(5), at(11)];
        assert_eq!(slowest(&beats, at(4), at(12)), Duration::from_secs(6));
        assert_eq!(slowest(&beats, at(2), at(5)), Duration::from_secs(2));
        assert_eq!(slowest(&beats, at(12), at(20)), Duration::from_secs(9));
        assert_eq!(slowest(&[], at(1), at(4)), Duration::from_secs(3));
    }
}
