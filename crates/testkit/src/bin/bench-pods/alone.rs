//! One kubelet without an API server: pods from files, next to the floor that the runtime sets.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use cri::RuntimeClient;
use cri::api::ContainerState;
use serde_json::{Value, json};
use testkit::real::{KubeletKind, KubeletOptions, TestNode, run};
use tokio::runtime::Runtime;

use crate::measure::{Figures, SETTLE, percentile};
use crate::process::resident_mib;
use crate::{IMAGE, Order, PATIENCE, floor};

/// How often the runtime is asked what runs while a batch starts: seldom enough to cost it little.
const LOOK: Duration = Duration::from_millis(100);
/// How often it is asked for one container: often enough to see a restart.
const LOOK_CLOSELY: Duration = Duration::from_millis(2);

/// Measure one kubelet on a fresh node of its own.
pub(crate) fn one(
    kind: KubeletKind,
    runtime: &Runtime,
    order: Order,
    figures: &mut Figures,
) -> anyhow::Result<()> {
    println!("measuring {kind:?} without an API server …");
    let options = KubeletOptions { verbosity: 2, ..KubeletOptions::default() };
    let mut node = TestNode::builder().options(options).start()?;
    let client = {
        // The connection belongs to the runtime's threads.
        let _inside = runtime.enter();
        floor::client(&node)?
    };
    node.start_kubelet(kind)?;
    let pid = node.kubelet().context("no kubelet runs")?.pid();
    node.add_manifest("first.json", &pod("first").to_string())?;
    runtime.block_on(running(&client, 1))?;
    std::thread::sleep(SETTLE);
    figures.alone_mib = resident_mib(pid)?;
    let mut times = Vec::new();
    for index in 0..order.restarts {
        // A pod of its own for each: only the first restart of one comes without back-off.
        let name = format!("r{index}");
        let known = runtime.block_on(running(&client, index + 1))?;
        node.add_manifest(&format!("{name}.json"), &pod(&name).to_string())?;
        let all = runtime.block_on(running(&client, index + 2))?;
        let victim = all.iter().find(|id| !known.contains(*id)).context("no new container")?;
        times.push(runtime.block_on(restart(&client, &node, victim, &all))?.as_secs_f64());
    }
    times.sort_by(f64::total_cmp);
    figures.alone_restart_s = percentile(&times, 50)?;
    let start = Instant::now();
    add_pods(&node, order.pods)?;
    runtime.block_on(running(&client, order.pods + order.restarts + 1))?;
    figures.alone_batch_s = start.elapsed().as_secs_f64();
    node.stop_kubelet();
    Ok(())
}

/// Hand the node so many pods as files.
pub(crate) fn add_pods(node: &TestNode, pods: usize) -> anyhow::Result<()> {
    for index in 0..pods {
        let name = format!("p{index}");
        node.add_manifest(&format!("{name}.json"), &pod(&name).to_string())?;
    }
    Ok(())
}

fn pod(name: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": name, "namespace": "default" },
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "containers": [{ "name": "main", "image": IMAGE }],
        },
    })
}

/// The containers that run.
pub(crate) async fn all_running(client: &RuntimeClient) -> anyhow::Result<BTreeSet<String>> {
    let all = client.list_containers(None).await?;
    let state = ContainerState::ContainerRunning as i32;
    Ok(all.into_iter().filter(|one| one.state == state).map(|one| one.id).collect())
}

/// Until so many containers run.
pub(crate) async fn running(
    client: &RuntimeClient,
    wanted: usize,
) -> anyhow::Result<BTreeSet<String>> {
    let start = Instant::now();
    loop {
        let now = all_running(client).await?;
        if now.len() == wanted {
            return Ok(now);
        }
        let found = now.len();
        ensure!(start.elapsed() < PATIENCE, "{found} of {wanted} containers after {PATIENCE:?}");
        tokio::time::sleep(LOOK).await;
    }
}

/// From the death of a container until its successor runs beside the others that are known.
async fn restart(
    client: &RuntimeClient,
    node: &TestNode,
    victim: &str,
    known: &BTreeSet<String>,
) -> anyhow::Result<Duration> {
    let form = ["--output", "go-template", "--template", "{{.info.pid}}"];
    let pid = node.crictl(["inspect"].into_iter().chain(form).chain([victim]))?;
    let start = Instant::now();
    run("kill", ["-KILL", pid.trim()])?;
    while all_running(client).await?.is_subset(known) {
        ensure!(start.elapsed() < PATIENCE, "no restart after {PATIENCE:?}");
        tokio::time::sleep(LOOK_CLOSELY).await;
    }
    Ok(start.elapsed())
}
