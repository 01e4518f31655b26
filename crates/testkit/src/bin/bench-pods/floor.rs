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
pub(crate) async fn measure(node: &TestNode, pods: usize) -> anyhow::Result<Duration> {
    let endpoint = Endpoint::parse(&format!("unix://{}", node.runtime().socket().display()))?;
    let client = RuntimeClient::new(ClientConfig::default(), &endpoint, None);
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
