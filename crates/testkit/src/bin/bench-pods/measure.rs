//! One kubelet's life: registered, given pods, left alone, disturbed, relieved of its pods.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use serde_json::{Value, json};
use testkit::real::{ControlPlane, KubeletKind, KubeletOptions, Parts, TestNode, run};

use crate::process::{cpu_seconds, resident_mib, switches};
use crate::watch::{Seen, Watch};
use crate::{IMAGE, Order};

/// Time for what a state leaves behind to settle before memory is read.
pub(crate) const SETTLE: Duration = Duration::from_secs(15);

/// Between two scrapes: longer than either kubelet keeps what it read.
const SCRAPE_PERIOD: Duration = Duration::from_secs(15);
/// What a scrape leaves to be done is done by then.
const SCRAPE_END: Duration = Duration::from_secs(1);

/// What was measured of one kubelet.
#[derive(Debug, Clone, Default)]
pub(crate) struct Figures {
    pub(crate) ready_s: f64,
    pub(crate) empty_mib: f64,
    pub(crate) full_mib: f64,
    pub(crate) idle_millicores: f64,
    pub(crate) idle_switches: f64,
    pub(crate) first_scrape_cpu_ms: f64,
    pub(crate) scrape_cpu_ms: f64,
    pub(crate) batch_s: f64,
    pub(crate) p50_s: f64,
    pub(crate) p99_s: f64,
    pub(crate) start_cpu_ms: f64,
    pub(crate) end_cpu_ms: f64,
    pub(crate) restart_s: f64,
    pub(crate) delete_s: f64,
    pub(crate) binary_mib: f64,
    pub(crate) alone_mib: f64,
    pub(crate) alone_restart_s: f64,
    pub(crate) alone_batch_s: f64,
}

/// Measure one kubelet on a fresh node of the cluster.
pub(crate) fn one(
    kind: KubeletKind,
    control: &Arc<ControlPlane>,
    order: Order,
    figures: &mut Figures,
) -> anyhow::Result<()> {
    println!("measuring {kind:?} …");
    let options = KubeletOptions { verbosity: 2, ..KubeletOptions::default() };
    let mut node = TestNode::builder().options(options).join(control).start()?;
    let program = kind.program(&Parts::find()?)?;
    figures.binary_mib = mib(std::fs::metadata(&program)?.len())?;
    figures.ready_s = ready_time(&mut node, kind, control)?;
    let pid = node.kubelet().context("no kubelet runs")?.pid();
    std::thread::sleep(SETTLE);
    figures.empty_mib = resident_mib(pid)?;
    let watch = Watch::start(control, "pods")?;
    start_pods(control, &watch, order, pid, figures)?;
    std::thread::sleep(SETTLE);
    figures.full_mib = resident_mib(pid)?;
    leave_alone(order, pid, figures)?;
    figures.first_scrape_cpu_ms = scrapes(&node, 1, pid, figures.idle_millicores)?;
    figures.scrape_cpu_ms = scrapes(&node, order.scrapes, pid, figures.idle_millicores)?;
    figures.restart_s = restart_time(&node, &watch, order.restarts)?;
    end_pods(control, &watch, order, pid, figures)?;
    node.stop_kubelet();
    control.kubectl(["delete", "node", "node1"])?;
    Ok(())
}

/// From the start of the process until the API server shows its node as Ready.
fn ready_time(
    node: &mut TestNode,
    kind: KubeletKind,
    control: &ControlPlane,
) -> anyhow::Result<f64> {
    let watch = Watch::start(control, "nodes")?;
    // A watch that runs has seen the marker, so that its own start is not measured.
    let marker = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "marker" } });
    control.create(&marker)?;
    watch.wait("the watch of nodes runs", |all| all.get("marker").map(drop))?;
    control.kubectl(["delete", "node", "marker"])?;
    let start = Instant::now();
    node.launch_kubelet(kind)?;
    let ready = watch.wait("the node is ready", |all| all.get("node1")?.ready)?;
    Ok((ready - start).as_secs_f64())
}

fn start_pods(
    control: &ControlPlane,
    watch: &Watch,
    order: Order,
    pid: u32,
    figures: &mut Figures,
) -> anyhow::Result<()> {
    let busy = cpu_seconds(pid)?;
    let items: Vec<Value> = (0..order.pods).map(pod).collect();
    let list = json!({
        "apiVersion": "v1", "kind": "List", "metadata": { "name": "pods" }, "items": items,
    });
    let start = Instant::now();
    control.create(&list)?;
    let seen = watch.wait("all pods are ready", |all| {
        let done = all.len() == order.pods && all.values().all(|pod| pod.ready.is_some());
        done.then(|| all.clone())
    })?;
    let last = seen.values().filter_map(|pod| pod.ready).max().context("no pod")?;
    figures.batch_s = (last - start).as_secs_f64();
    let mut latencies: Vec<f64> =
        seen.values().filter_map(|pod| Some((pod.ready? - pod.added?).as_secs_f64())).collect();
    latencies.sort_by(f64::total_cmp);
    figures.p50_s = percentile(&latencies, 50)?;
    figures.p99_s = percentile(&latencies, 99)?;
    std::thread::sleep(Duration::from_secs(1));
    figures.start_cpu_ms = per_pod(cpu_seconds(pid)? - busy, order.pods)?;
    Ok(())
}

fn leave_alone(order: Order, pid: u32, figures: &mut Figures) -> anyhow::Result<()> {
    let (busy, switched) = (cpu_seconds(pid)?, switches(pid)?);
    let start = Instant::now();
    std::thread::sleep(order.idle);
    let seconds = start.elapsed().as_secs_f64();
    figures.idle_millicores = (cpu_seconds(pid)? - busy) * 1000.0 / seconds;
    figures.idle_switches = (switches(pid)? - switched) / seconds;
    Ok(())
}

/// Processor time of one scrape of container metrics and summary, beyond what idleness costs: the
/// mean of some. Only the time of the scrape and a moment after it counts: what idleness costs is not the same in
/// every quarter of a minute.
fn scrapes(node: &TestNode, scrapes: u32, pid: u32, idle_millicores: f64) -> anyhow::Result<f64> {
    let page = |path: &str| format!("https://127.0.0.1:{}{path}", node.api_port());
    let (containers, summary) = (page("/metrics/cadvisor"), page("/stats/summary"));
    let mut spent_ms = 0.0;
    for _ in 0..scrapes {
        let (start, busy) = (Instant::now(), cpu_seconds(pid)?);
        // One connection for both, as a collector has it.
        run("curl", ["-fsSk", "-m", "60", "-o/dev/null", "-o/dev/null", &containers, &summary])?;
        std::thread::sleep(SCRAPE_END);
        let idle_ms = idle_millicores * start.elapsed().as_secs_f64();
        spent_ms += (cpu_seconds(pid)? - busy) * 1000.0 - idle_ms;
        std::thread::sleep(SCRAPE_PERIOD - SCRAPE_END);
    }
    Ok((spent_ms / f64::from(scrapes)).max(0.0))
}

/// From the death of a container until the API server shows its successor running; the median.
fn restart_time(node: &TestNode, watch: &Watch, samples: usize) -> anyhow::Result<f64> {
    let mut times = Vec::new();
    for index in 0..samples {
        let name = format!("p{index}");
        let victim = watch.wait("the pod", |all| Some(all.get(&name)?.last.clone()))?;
        let id = victim["status"]["containerStatuses"][0]["containerID"].as_str();
        let id = id.and_then(|id| id.split_once("://")).context("no container id")?.1;
        let form = ["--output", "go-template", "--template", "{{.info.pid}}"];
        let pid = node.crictl(["inspect"].into_iter().chain(form).chain([id]))?;
        let start = Instant::now();
        run("kill", ["-KILL", pid.trim()])?;
        let again = |all: &BTreeMap<String, Seen>| all.get(&name)?.restarted.get(&1).copied();
        let shown = watch.wait("the restart is reported", again)?;
        times.push((shown - start).as_secs_f64());
    }
    times.sort_by(f64::total_cmp);
    percentile(&times, 50)
}

fn end_pods(
    control: &ControlPlane,
    watch: &Watch,
    order: Order,
    pid: u32,
    figures: &mut Figures,
) -> anyhow::Result<()> {
    let busy = cpu_seconds(pid)?;
    let start = Instant::now();
    control.kubectl(["delete", "pods", "--all", "--wait=false"])?;
    let last = watch.wait("all pods are gone", |all| {
        let gone: Option<Vec<Instant>> = all.values().map(|pod| pod.gone).collect();
        gone?.into_iter().max()
    })?;
    figures.delete_s = (last - start).as_secs_f64();
    std::thread::sleep(Duration::from_secs(1));
    figures.end_cpu_ms = per_pod(cpu_seconds(pid)? - busy, order.pods)?;
    Ok(())
}

fn pod(index: usize) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": format!("p{index}"), "namespace": "default" },
        "spec": {
            "nodeName": "node1",
            "automountServiceAccountToken": false,
            "terminationGracePeriodSeconds": 1,
            "containers": [{ "name": "main", "image": IMAGE }],
        },
    })
}

pub(crate) fn percentile(sorted: &[f64], percent: usize) -> anyhow::Result<f64> {
    ensure!(!sorted.is_empty(), "nothing was measured");
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied().context("rank")
}

fn per_pod(seconds: f64, pods: usize) -> anyhow::Result<f64> {
    Ok(seconds * 1000.0 / f64::from(u32::try_from(pods)?))
}

fn mib(bytes: u64) -> anyhow::Result<f64> {
    Ok(f64::from(u32::try_from(bytes / 1024)?) / 1024.0)
}
