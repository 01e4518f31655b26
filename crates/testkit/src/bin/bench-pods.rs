//! `make bench`: how fast and how lean a kubelet starts, restarts and ends pods, next to the floor
//! that the runtime itself sets (the same CRI calls without an agent, measured in the same run).
//!
//! `KUBELET=go` measures the Go kubelet; `PODS=n` changes the number of pods.
#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, reason = "a command for people")]
#![expect(clippy::disallowed_methods, reason = "measures real time on the real machine")]

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use cri::api::{
    ContainerConfig, ContainerMetadata, ContainerState, ImageSpec, LinuxContainerConfig,
    LinuxPodSandboxConfig, PodSandboxConfig, PodSandboxMetadata,
};
use cri::{ClientConfig, Endpoint, RuntimeClient};
use serde_json::json;
use testkit::real::{KubeletKind, KubeletOptions, TestNode, run};
use tokio::task::JoinSet;

const IMAGE: &str = "registry.k8s.io/pause:3.10.2";
const PATIENCE: Duration = Duration::from_secs(300);

fn main() -> ExitCode {
    match tokio::runtime::Runtime::new().map_err(Into::into).and_then(|rt| measure(&rt)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn measure(runtime: &tokio::runtime::Runtime) -> anyhow::Result<()> {
    let pods = std::env::var("PODS").map_or(Ok(100), |text| text.parse()).context("PODS")?;
    let kind = KubeletKind::from_env()?;
    println!("{kind:?}, {pods} pods of one pause container, containerd 2");
    let floor = {
        let node = TestNode::builder().start()?;
        runtime.block_on(floor(&node, pods))?
    };
    line("floor: all started over CRI alone", floor.as_secs_f64(), "s");

    let started = Instant::now();
    let options = KubeletOptions { verbosity: 2, ..KubeletOptions::default() };
    let mut node = TestNode::builder().options(options).kubelet(kind).start()?;
    line("kubelet healthy, with its runtime, after", started.elapsed().as_secs_f64(), "s");
    let pid = node.kubelet().context("kubelet")?.pid();
    let client = runtime.block_on(async { client(&node) })?;
    line("resident memory, no pods", resident_mib(pid)?, "MiB");

    let busy = cpu_seconds(pid)?;
    let start = Instant::now();
    for index in 0..pods {
        node.add_manifest(&format!("p{index}.json"), &manifest(index))?;
    }
    runtime.block_on(wait_running(&client, pods))?;
    let all = start.elapsed();
    line("all running after", all.as_secs_f64(), "s");
    line("that is, times the floor", all.as_secs_f64() / floor.as_secs_f64(), "");
    line("CPU of the kubelet per pod started", per_pod(busy, pid, pods)?, "ms");
    line("resident memory, all running", resident_mib(pid)?, "MiB");

    let busy = cpu_seconds(pid)?;
    let idle = Instant::now();
    std::thread::sleep(Duration::from_secs(10));
    let share = (cpu_seconds(pid)? - busy) / idle.elapsed().as_secs_f64();
    line("CPU with all running, idle", share * 1000.0, "millicores");

    let again = restart_time(runtime, &node, &client)?;
    line("container killed → its successor runs", again.as_secs_f64() * 1000.0, "ms");

    let busy = cpu_seconds(pid)?;
    let start = Instant::now();
    for index in 0..pods {
        node.remove_manifest(&format!("p{index}.json"))?;
    }
    runtime.block_on(wait_running(&client, 0))?;
    line("all ended after", start.elapsed().as_secs_f64(), "s");
    line("CPU of the kubelet per pod ended", per_pod(busy, pid, pods)?, "ms");
    Ok(())
}

fn line(what: &str, value: f64, unit: &str) {
    println!("{what:<44} {value:>9.2} {unit}");
}

fn manifest(index: usize) -> String {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": format!("p{index}"), "namespace": "default" },
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "containers": [{ "name": "main", "image": IMAGE }],
        },
    })
    .to_string()
}

fn client(node: &TestNode) -> anyhow::Result<RuntimeClient> {
    let endpoint = Endpoint::parse(&format!("unix://{}", node.runtime().socket().display()))?;
    Ok(RuntimeClient::new(ClientConfig::default(), &endpoint, None))
}

/// The same calls that a kubelet makes for each pod, as many at a time as there are pods.
async fn floor(node: &TestNode, pods: usize) -> anyhow::Result<Duration> {
    let client = client(node)?;
    let start = Instant::now();
    let mut all = JoinSet::new();
    for index in 0..pods {
        let client = client.clone();
        let sandbox = PodSandboxConfig {
            metadata: Some(PodSandboxMetadata {
                name: format!("p{index}"),
                namespace: "default".to_owned(),
                uid: format!("uid{index}"),
                attempt: 0,
            }),
            hostname: format!("p{index}"),
            log_directory: node.pod_logs_dir().join(format!("p{index}")).display().to_string(),
            linux: Some(LinuxPodSandboxConfig {
                cgroup_parent: format!("/{}/pods/p{index}", node.slot().cgroup()),
                ..Default::default()
            }),
            ..Default::default()
        };
        all.spawn(async move { start_pod(&client, sandbox).await });
    }
    while let Some(done) = all.join_next().await {
        done.context("a worker")??;
    }
    let elapsed = start.elapsed();
    wait_running(&client, pods).await?;
    Ok(elapsed)
}

async fn start_pod(client: &RuntimeClient, sandbox: PodSandboxConfig) -> anyhow::Result<()> {
    let id = client.run_pod_sandbox(sandbox.clone(), "").await?;
    let config = ContainerConfig {
        metadata: Some(ContainerMetadata { name: "main".to_owned(), attempt: 0 }),
        image: Some(ImageSpec { image: IMAGE.to_owned(), ..Default::default() }),
        log_path: "main/0.log".to_owned(),
        linux: Some(LinuxContainerConfig::default()),
        ..Default::default()
    };
    let container = client.create_container(&id, config, sandbox).await?;
    Ok(client.start_container(&container).await?)
}

async fn running(client: &RuntimeClient) -> anyhow::Result<Vec<cri::api::Container>> {
    let state = ContainerState::ContainerRunning as i32;
    let all = client.list_containers(None).await?;
    Ok(all.into_iter().filter(|container| container.state == state).collect())
}

async fn wait_running(client: &RuntimeClient, wanted: usize) -> anyhow::Result<()> {
    let start = Instant::now();
    loop {
        let now = running(client).await?.len();
        if now == wanted {
            return Ok(());
        }
        ensure!(start.elapsed() < PATIENCE, "{now} of {wanted} containers after {PATIENCE:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Kill one container's process and wait for the next attempt of it to run.
fn restart_time(
    runtime: &tokio::runtime::Runtime,
    node: &TestNode,
    client: &RuntimeClient,
) -> anyhow::Result<Duration> {
    let victim = runtime.block_on(running(client))?.pop().context("no container runs")?;
    let pid = node.crictl([
        "inspect",
        "--output",
        "go-template",
        "--template",
        "{{.info.pid}}",
        &victim.id,
    ])?;
    let start = Instant::now();
    run("kill", ["-KILL", pid.trim()])?;
    runtime.block_on(async {
        loop {
            let now = running(client).await?;
            let successor = |container: &cri::api::Container| {
                container.pod_sandbox_id == victim.pod_sandbox_id && container.id != victim.id
            };
            if now.iter().any(successor) {
                return Ok(start.elapsed());
            }
            ensure!(start.elapsed() < PATIENCE, "the killed container did not come back");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
}

fn per_pod(before: f64, pid: u32, pods: usize) -> anyhow::Result<f64> {
    let pods = u32::try_from(pods)?;
    Ok((cpu_seconds(pid)? - before) * 1000.0 / f64::from(pods))
}

/// Processor time a process has used so far.
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
