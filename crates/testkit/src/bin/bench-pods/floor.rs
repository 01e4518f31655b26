//! The runtime alone: the calls that a kubelet makes for each pod, all pods at a time.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use cri::api::{
    ContainerConfig, ContainerMetadata, ContainerState, ImageSpec, LinuxContainerConfig,
    LinuxPodSandboxConfig, PodSandboxConfig, PodSandboxMetadata,
};
use cri::{ClientConfig, Endpoint, RuntimeClient};
use testkit::real::TestNode;
use tokio::task::JoinSet;

use crate::{IMAGE, PATIENCE};

/// How long it takes until all of them run.
pub(crate) async fn batch(node: &TestNode, pods: usize) -> anyhow::Result<Duration> {
    let client = client(node)?;
    let start = Instant::now();
    let mut all = JoinSet::new();
    for index in 0..pods {
        let client = client.clone();
        let sandbox = sandbox(node, &format!("p{index}"));
        all.spawn(async move { start_pod(&client, sandbox).await.map(drop) });
    }
    while let Some(done) = all.join_next().await {
        done.context("a worker")??;
    }
    let elapsed = start.elapsed();
    loop {
        let state = ContainerState::ContainerRunning as i32;
        let all = client.list_containers(None).await?;
        let now = all.iter().filter(|container| container.state == state).count();
        if now == pods {
            return Ok(elapsed);
        }
        ensure!(start.elapsed() < PATIENCE, "{now} of {pods} containers after {PATIENCE:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// How long the runtime takes for another container in the sandbox of one that has ended.
pub(crate) async fn one(node: &TestNode) -> anyhow::Result<Duration> {
    let client = client(node)?;
    let sandbox = sandbox(node, "again");
    let id = start_pod(&client, sandbox.clone()).await?;
    let start = Instant::now();
    start_container(&client, &id, 1, sandbox).await?;
    Ok(start.elapsed())
}

/// A client of the node's runtime.
pub(crate) fn client(node: &TestNode) -> anyhow::Result<RuntimeClient> {
    let endpoint = Endpoint::parse(&format!("unix://{}", node.runtime().socket().display()))?;
    Ok(RuntimeClient::new(ClientConfig::default(), &endpoint, None))
}

fn sandbox(node: &TestNode, name: &str) -> PodSandboxConfig {
    PodSandboxConfig {
        metadata: Some(PodSandboxMetadata {
            name: name.to_owned(),
            namespace: "default".to_owned(),
            uid: format!("uid-{name}"),
            attempt: 0,
        }),
        hostname: name.to_owned(),
        log_directory: node.pod_logs_dir().join(name).display().to_string(),
        linux: Some(LinuxPodSandboxConfig {
            cgroup_parent: format!("/{}/pods/{name}", node.slot().cgroup()),
            ..Default::default()
        }),
        ..Default::default()
    }
}

async fn start_pod(client: &RuntimeClient, sandbox: PodSandboxConfig) -> anyhow::Result<String> {
    let id = client.run_pod_sandbox(sandbox.clone(), "").await?;
    start_container(client, &id, 0, sandbox).await?;
    Ok(id)
}

async fn start_container(
    client: &RuntimeClient,
    id: &str,
    attempt: u32,
    sandbox: PodSandboxConfig,
) -> anyhow::Result<()> {
    let config = ContainerConfig {
        metadata: Some(ContainerMetadata { name: "main".to_owned(), attempt }),
        image: Some(ImageSpec { image: IMAGE.to_owned(), ..Default::default() }),
        log_path: format!("main/{attempt}.log"),
        linux: Some(LinuxContainerConfig::default()),
        ..Default::default()
    };
    let container = client.create_container(id, config, sandbox).await?;
    Ok(client.start_container(&container).await?)
}
