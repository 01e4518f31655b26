//! The runtime alone: the very calls that rubelet makes for each pod, made again without an agent,
//! all pods at a time.
//!
//! They are taken down while rubelet starts the pods, which is not timed. Then it is killed, so that
//! the folders, files and cgroups that the calls name stay, and what the runtime has made is removed.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use cri::api::{CreateContainerRequest, RunPodSandboxRequest};
use cri::{ClientConfig, Endpoint, RuntimeClient};
use prost::Message as _;
use testkit::real::{Call, KubeletKind, TestNode};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

use crate::alone;

/// What the runtime takes by itself.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Floor {
    /// Until all pods run.
    pub(crate) batch: Duration,
    /// For another container in the sandbox of one that has ended.
    pub(crate) one: Duration,
}

/// The calls that start one pod.
#[derive(Debug, Clone)]
struct Start {
    sandbox: RunPodSandboxRequest,
    container: CreateContainerRequest,
}

/// Measure the runtime on a fresh node of its own.
pub(crate) fn measure(runtime: &Runtime, pods: usize) -> anyhow::Result<Floor> {
    let mut node = TestNode::builder().record().start()?;
    let client = {
        // The connection belongs to the runtime's threads.
        let _inside = runtime.enter();
        client(&node)?
    };
    node.start_kubelet(KubeletKind::Rubelet)?;
    alone::add_pods(&node, pods)?;
    runtime.block_on(alone::running(&client, pods))?;
    let calls = node.recorder().context("nobody took down the calls")?.calls();
    node.kill_kubelet();
    let starts = starts(&calls)?;
    ensure!(starts.len() == pods, "{} of {pods} pods were taken down", starts.len());
    runtime.block_on(async {
        remove_all(&client).await?;
        crate::rest()?;
        let (batch, first) = all(&client, &starts).await?;
        let one = again(&client, first).await?;
        Ok(Floor { batch, one })
    })
}

/// A client of the node's runtime.
pub(crate) fn client(node: &TestNode) -> anyhow::Result<RuntimeClient> {
    let endpoint = Endpoint::parse(&format!("unix://{}", node.runtime().socket().display()))?;
    Ok(RuntimeClient::new(ClientConfig::default(), &endpoint, None))
}

/// The pods that were started, each with its one container.
fn starts(calls: &[Arc<Call>]) -> anyhow::Result<Vec<Start>> {
    let mut sandboxes = HashMap::new();
    let mut starts = Vec::new();
    for call in calls {
        ensure!(call.error.is_none(), "{} failed: {:?}", call.method, call.error);
        match call.method.as_str() {
            "RunPodSandbox" => {
                let id =
                    call.response["pod_sandbox_id"].as_str().context("a sandbox without id")?;
                let request = RunPodSandboxRequest::decode(call.message.clone())?;
                sandboxes.insert(id.to_owned(), request);
            }
            "CreateContainer" => {
                let container = CreateContainerRequest::decode(call.message.clone())?;
                let sandbox = sandboxes.remove(&container.pod_sandbox_id);
                let sandbox = sandbox.context("a second container of a pod")?;
                starts.push(Start { sandbox, container });
            }
            "StartContainer" => {}
            other => anyhow::bail!("a pod started with {other}"),
        }
    }
    Ok(starts)
}

async fn remove_all(client: &RuntimeClient) -> anyhow::Result<()> {
    let mut all = JoinSet::new();
    for sandbox in client.list_pod_sandbox(None).await? {
        let client = client.clone();
        all.spawn(async move {
            client.stop_pod_sandbox(&sandbox.id).await?;
            client.remove_pod_sandbox(&sandbox.id).await
        });
    }
    while let Some(done) = all.join_next().await {
        done.context("a worker")??;
    }
    Ok(())
}

/// How long it takes until all of them run, and the container to start once more.
async fn all(
    client: &RuntimeClient,
    starts: &[Start],
) -> anyhow::Result<(Duration, CreateContainerRequest)> {
    let start = Instant::now();
    let mut all = JoinSet::new();
    for one in starts {
        let (client, one) = (client.clone(), one.clone());
        all.spawn(async move { Box::pin(start_pod(&client, one)).await });
    }
    // Looked at as a kubelet's pods are: the runtime's answers to us are part of its work.
    alone::running(client, starts.len()).await?;
    let elapsed = start.elapsed();
    let mut last = None;
    while let Some(done) = all.join_next().await {
        last = Some(done.context("a worker")??);
    }
    Ok((elapsed, last.context("no pods")?))
}

async fn start_pod(client: &RuntimeClient, one: Start) -> anyhow::Result<CreateContainerRequest> {
    let config = one.sandbox.config.context("a sandbox without configuration")?;
    let id = client.run_pod_sandbox(config, &one.sandbox.runtime_handler).await?;
    let container = CreateContainerRequest { pod_sandbox_id: id, ..one.container };
    start_container(client, container.clone()).await?;
    Ok(container)
}

async fn start_container(
    client: &RuntimeClient,
    request: CreateContainerRequest,
) -> anyhow::Result<()> {
    let config = request.config.context("a container without configuration")?;
    let sandbox = request.sandbox_config.context("a container without its sandbox")?;
    let container = client.create_container(&request.pod_sandbox_id, config, sandbox).await?;
    Ok(client.start_container(&container).await?)
}

/// How long the runtime takes for the next instance of a container.
async fn again(
    client: &RuntimeClient,
    mut request: CreateContainerRequest,
) -> anyhow::Result<Duration> {
    let config = request.config.as_mut().context("a container without configuration")?;
    let metadata = config.metadata.as_mut().context("a container without name")?;
    metadata.attempt += 1;
    config.log_path = format!("{}/{}.log", metadata.name, metadata.attempt);
    let start = Instant::now();
    start_container(client, request).await?;
    Ok(start.elapsed())
}
