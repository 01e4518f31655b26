//! The runtime service of the fake: each call is an [`answer`](FakeCri::answer) around a small body.

use std::pin::Pin;

use cri::Call;
use futures::{Stream, StreamExt};
use proto::cri_v1::runtime_service_server::RuntimeService;
use proto::cri_v1::*;
use tokio::sync::broadcast::{self, error::RecvError};
use tonic::{Request, Response, Status};

use super::{FakeCri, lock, not_found, stats};

type Reply<T> = Result<Response<T>, Status>;
type Parts<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// A stream of one part per item.
fn parts<T, P: Send + 'static>(items: Vec<T>, part: fn(T) -> P) -> Parts<P> {
    let all: Vec<_> = items.into_iter().map(|item| Ok(part(item))).collect();
    Box::pin(futures::stream::iter(all))
}

/// The next event. A reader that is too slow loses some, as with a real runtime.
async fn next_event(
    events: &mut broadcast::Receiver<ContainerEventResponse>,
) -> Option<ContainerEventResponse> {
    loop {
        match events.recv().await {
            Ok(event) => return Some(event),
            Err(RecvError::Lagged(_)) => {}
            Err(RecvError::Closed) => return None,
        }
    }
}

impl FakeCri {
    fn listed_sandboxes(&self, filter: Option<PodSandboxFilter>) -> Vec<PodSandbox> {
        lock(&self.inner.state).list_sandboxes(&filter.unwrap_or_default())
    }

    fn listed_containers(&self, filter: Option<ContainerFilter>) -> Vec<Container> {
        lock(&self.inner.state).list_containers(&filter.unwrap_or_default())
    }

    fn listed_stats(&self, filter: Option<ContainerStatsFilter>) -> Vec<ContainerStats> {
        let now = self.now_nanos();
        let filter = filter.unwrap_or_default();
        let state = lock(&self.inner.state);
        let wanted = state.containers.values().filter(|c| {
            c.is_running()
                && c.id.starts_with(&filter.id)
                && c.sandbox.starts_with(&filter.pod_sandbox_id)
                && super::state::has_labels(&c.config.labels, &filter.label_selector)
        });
        wanted.map(|container| stats::of_container(container, now)).collect()
    }

    fn listed_sandbox_stats(&self, filter: Option<PodSandboxStatsFilter>) -> Vec<PodSandboxStats> {
        let now = self.now_nanos();
        let filter = filter.unwrap_or_default();
        let state = lock(&self.inner.state);
        let wanted = state.sandboxes.values().filter(|s| {
            s.ready
                && s.id.starts_with(&filter.id)
                && super::state::has_labels(&s.config.labels, &filter.label_selector)
        });
        wanted.map(|sandbox| stats::of_sandbox(&state, sandbox, now)).collect()
    }

    fn streaming_url(&self, kind: &str) -> String {
        format!("http://127.0.0.1:1/{kind}/token")
    }
}

#[tonic::async_trait]
impl RuntimeService for FakeCri {
    async fn version(&self, request: Request<VersionRequest>) -> Reply<VersionResponse> {
        self.answer(Call::Version, request, |_, _| async {
            Ok(VersionResponse {
                version: "0.1.0".to_owned(),
                runtime_name: "fake".to_owned(),
                runtime_version: "v1.0.0".to_owned(),
                runtime_api_version: "v1".to_owned(),
            })
        })
        .await
    }

    async fn run_pod_sandbox(
        &self,
        request: Request<RunPodSandboxRequest>,
    ) -> Reply<RunPodSandboxResponse> {
        self.answer(Call::RunPodSandbox, request, |fake, message| async move {
            Ok(RunPodSandboxResponse { pod_sandbox_id: fake.do_run_sandbox(message)? })
        })
        .await
    }

    async fn stop_pod_sandbox(
        &self,
        request: Request<StopPodSandboxRequest>,
    ) -> Reply<StopPodSandboxResponse> {
        self.answer(Call::StopPodSandbox, request, |fake, message| async move {
            fake.stop_sandbox(&message.pod_sandbox_id);
            Ok(StopPodSandboxResponse {})
        })
        .await
    }

    async fn remove_pod_sandbox(
        &self,
        request: Request<RemovePodSandboxRequest>,
    ) -> Reply<RemovePodSandboxResponse> {
        self.answer(Call::RemovePodSandbox, request, |fake, message| async move {
            fake.do_remove_sandbox(&message.pod_sandbox_id);
            Ok(RemovePodSandboxResponse {})
        })
        .await
    }

    async fn pod_sandbox_status(
        &self,
        request: Request<PodSandboxStatusRequest>,
    ) -> Reply<PodSandboxStatusResponse> {
        self.answer(Call::PodSandboxStatus, request, |fake, message| async move {
            let state = lock(&fake.inner.state);
            let Some(sandbox) = state.sandboxes.get(&message.pod_sandbox_id) else {
                return Err(not_found("sandbox", &message.pod_sandbox_id));
            };
            Ok(PodSandboxStatusResponse { status: Some(sandbox.status()), ..Default::default() })
        })
        .await
    }

    async fn list_pod_sandbox(
        &self,
        request: Request<ListPodSandboxRequest>,
    ) -> Reply<ListPodSandboxResponse> {
        self.answer(Call::ListPodSandbox, request, |fake, message| async move {
            Ok(ListPodSandboxResponse { items: fake.listed_sandboxes(message.filter) })
        })
        .await
    }

    type StreamPodSandboxesStream = Parts<StreamPodSandboxesResponse>;

    async fn stream_pod_sandboxes(
        &self,
        request: Request<StreamPodSandboxesRequest>,
    ) -> Reply<Self::StreamPodSandboxesStream> {
        self.answer(Call::StreamPodSandboxes, request, |fake, message| async move {
            let all = fake.listed_sandboxes(message.filter);
            Ok(parts(all, |item| StreamPodSandboxesResponse { pod_sandboxes: vec![item] }))
        })
        .await
    }

    async fn create_container(
        &self,
        request: Request<CreateContainerRequest>,
    ) -> Reply<CreateContainerResponse> {
        self.answer(Call::CreateContainer, request, |fake, message| async move {
            Ok(CreateContainerResponse { container_id: fake.do_create(message)? })
        })
        .await
    }

    async fn start_container(
        &self,
        request: Request<StartContainerRequest>,
    ) -> Reply<StartContainerResponse> {
        self.answer(Call::StartContainer, request, |fake, message| async move {
            fake.do_start(&message.container_id).await?;
            Ok(StartContainerResponse {})
        })
        .await
    }

    async fn stop_container(
        &self,
        request: Request<StopContainerRequest>,
    ) -> Reply<StopContainerResponse> {
        self.answer(Call::StopContainer, request, |fake, message| async move {
            fake.do_stop(&message.container_id, message.timeout).await;
            Ok(StopContainerResponse {})
        })
        .await
    }

    async fn remove_container(
        &self,
        request: Request<RemoveContainerRequest>,
    ) -> Reply<RemoveContainerResponse> {
        self.answer(Call::RemoveContainer, request, |fake, message| async move {
            fake.do_remove_container(&message.container_id);
            Ok(RemoveContainerResponse {})
        })
        .await
    }

    async fn list_containers(
        &self,
        request: Request<ListContainersRequest>,
    ) -> Reply<ListContainersResponse> {
        self.answer(Call::ListContainers, request, |fake, message| async move {
            Ok(ListContainersResponse { containers: fake.listed_containers(message.filter) })
        })
        .await
    }

    type StreamContainersStream = Parts<StreamContainersResponse>;

    async fn stream_containers(
        &self,
        request: Request<StreamContainersRequest>,
    ) -> Reply<Self::StreamContainersStream> {
        self.answer(Call::StreamContainers, request, |fake, message| async move {
            let all = fake.listed_containers(message.filter);
            Ok(parts(all, |item| StreamContainersResponse { containers: vec![item] }))
        })
        .await
    }

    async fn container_status(
        &self,
        request: Request<ContainerStatusRequest>,
    ) -> Reply<ContainerStatusResponse> {
        self.answer(Call::ContainerStatus, request, |fake, message| async move {
            let state = lock(&fake.inner.state);
            let Some(container) = state.containers.get(&message.container_id) else {
                return Err(not_found("container", &message.container_id));
            };
            Ok(ContainerStatusResponse { status: Some(container.status()), ..Default::default() })
        })
        .await
    }

    async fn update_container_resources(
        &self,
        request: Request<UpdateContainerResourcesRequest>,
    ) -> Reply<UpdateContainerResourcesResponse> {
        self.answer(Call::UpdateContainerResources, request, |fake, message| async move {
            let mut state = lock(&fake.inner.state);
            let Some(container) = state.containers.get_mut(&message.container_id) else {
                return Err(not_found("container", &message.container_id));
            };
            container.config.linux.get_or_insert_default().resources = message.linux;
            drop(state);
            fake.changed();
            Ok(UpdateContainerResourcesResponse {})
        })
        .await
    }

    async fn reopen_container_log(
        &self,
        request: Request<ReopenContainerLogRequest>,
    ) -> Reply<ReopenContainerLogResponse> {
        self.answer(Call::ReopenContainerLog, request, |fake, message| async move {
            let state = lock(&fake.inner.state);
            match state.containers.get(&message.container_id) {
                None => Err(not_found("container", &message.container_id)),
                Some(container) if !container.is_running() => {
                    Err(Status::unknown("container is not running"))
                }
                Some(_) => Ok(ReopenContainerLogResponse {}),
            }
        })
        .await
    }

    async fn exec_sync(&self, request: Request<ExecSyncRequest>) -> Reply<ExecSyncResponse> {
        self.answer(
            Call::ExecSync,
            request,
            |fake, message| async move { fake.do_exec(message).await },
        )
        .await
    }

    async fn exec(&self, request: Request<ExecRequest>) -> Reply<ExecResponse> {
        self.answer(Call::Exec, request, |fake, _| async move {
            Ok(ExecResponse { url: fake.streaming_url("exec") })
        })
        .await
    }

    async fn attach(&self, request: Request<AttachRequest>) -> Reply<AttachResponse> {
        self.answer(Call::Attach, request, |fake, _| async move {
            Ok(AttachResponse { url: fake.streaming_url("attach") })
        })
        .await
    }

    async fn port_forward(
        &self,
        request: Request<PortForwardRequest>,
    ) -> Reply<PortForwardResponse> {
        self.answer(Call::PortForward, request, |fake, _| async move {
            Ok(PortForwardResponse { url: fake.streaming_url("portforward") })
        })
        .await
    }

    async fn container_stats(
        &self,
        request: Request<ContainerStatsRequest>,
    ) -> Reply<ContainerStatsResponse> {
        self.answer(Call::ContainerStats, request, |fake, message| async move {
            let filter =
                ContainerStatsFilter { id: message.container_id.clone(), ..Default::default() };
            match fake.listed_stats(Some(filter)).pop() {
                Some(stats) => Ok(ContainerStatsResponse { stats: Some(stats) }),
                None => Err(not_found("container", &message.container_id)),
            }
        })
        .await
    }

    async fn list_container_stats(
        &self,
        request: Request<ListContainerStatsRequest>,
    ) -> Reply<ListContainerStatsResponse> {
        self.answer(Call::ListContainerStats, request, |fake, message| async move {
            Ok(ListContainerStatsResponse { stats: fake.listed_stats(message.filter) })
        })
        .await
    }

    type StreamContainerStatsStream = Parts<StreamContainerStatsResponse>;

    async fn stream_container_stats(
        &self,
        request: Request<StreamContainerStatsRequest>,
    ) -> Reply<Self::StreamContainerStatsStream> {
        self.answer(Call::StreamContainerStats, request, |fake, message| async move {
            let all = fake.listed_stats(message.filter);
            Ok(parts(all, |item| StreamContainerStatsResponse { container_stats: vec![item] }))
        })
        .await
    }

    async fn pod_sandbox_stats(
        &self,
        request: Request<PodSandboxStatsRequest>,
    ) -> Reply<PodSandboxStatsResponse> {
        self.answer(Call::PodSandboxStats, request, |fake, message| async move {
            let filter =
                PodSandboxStatsFilter { id: message.pod_sandbox_id.clone(), ..Default::default() };
            match fake.listed_sandbox_stats(Some(filter)).pop() {
                Some(stats) => Ok(PodSandboxStatsResponse { stats: Some(stats) }),
                None => Err(not_found("sandbox", &message.pod_sandbox_id)),
            }
        })
        .await
    }

    async fn list_pod_sandbox_stats(
        &self,
        request: Request<ListPodSandboxStatsRequest>,
    ) -> Reply<ListPodSandboxStatsResponse> {
        self.answer(Call::ListPodSandboxStats, request, |fake, message| async move {
            Ok(ListPodSandboxStatsResponse { stats: fake.listed_sandbox_stats(message.filter) })
        })
        .await
    }

    type StreamPodSandboxStatsStream = Parts<StreamPodSandboxStatsResponse>;

    async fn stream_pod_sandbox_stats(
        &self,
        request: Request<StreamPodSandboxStatsRequest>,
    ) -> Reply<Self::StreamPodSandboxStatsStream> {
        self.answer(Call::StreamPodSandboxStats, request, |fake, message| async move {
            let all = fake.listed_sandbox_stats(message.filter);
            Ok(parts(all, |item| StreamPodSandboxStatsResponse { pod_sandbox_stats: vec![item] }))
        })
        .await
    }

    async fn update_runtime_config(
        &self,
        request: Request<UpdateRuntimeConfigRequest>,
    ) -> Reply<UpdateRuntimeConfigResponse> {
        self.answer(Call::UpdateRuntimeConfig, request, |_, _| async {
            Ok(UpdateRuntimeConfigResponse {})
        })
        .await
    }

    async fn status(&self, request: Request<StatusRequest>) -> Reply<StatusResponse> {
        self.answer(Call::Status, request, |fake, _| async move {
            let state = lock(&fake.inner.state);
            let condition = |kind: &str, reason: &str, problem: &Option<String>| RuntimeCondition {
                r#type: kind.to_owned(),
                status: problem.is_none(),
                reason: if problem.is_some() { reason.to_owned() } else { String::new() },
                message: problem.clone().unwrap_or_default(),
            };
            let conditions = vec![
                condition("RuntimeReady", "RuntimeNotReady", &state.runtime_problem),
                condition("NetworkReady", "NetworkPluginNotReady", &state.network_problem),
            ];
            let features =
                RuntimeHandlerFeatures { recursive_read_only_mounts: true, user_namespaces: true };
            Ok(StatusResponse {
                status: Some(RuntimeStatus { conditions }),
                runtime_handlers: vec![RuntimeHandler {
                    name: String::new(),
                    features: Some(features),
                }],
                features: Some(RuntimeFeatures {
                    supplemental_groups_policy: true,
                    ..Default::default()
                }),
                ..Default::default()
            })
        })
        .await
    }

    async fn checkpoint_container(
        &self,
        request: Request<CheckpointContainerRequest>,
    ) -> Reply<CheckpointContainerResponse> {
        self.answer(Call::CheckpointContainer, request, |fake, message| async move {
            match lock(&fake.inner.state).containers.contains_key(&message.container_id) {
                true => Ok(CheckpointContainerResponse {}),
                false => Err(not_found("container", &message.container_id)),
            }
        })
        .await
    }

    type GetContainerEventsStream = Parts<ContainerEventResponse>;

    async fn get_container_events(
        &self,
        request: Request<GetEventsRequest>,
    ) -> Reply<Self::GetContainerEventsStream> {
        self.answer(Call::GetContainerEvents, request, |fake, _| async move {
            // As with a runtime in Go, not even the headers come before the first event.
            let mut events = fake.inner.events.subscribe();
            let first = next_event(&mut events).await;
            let rest = futures::stream::unfold(events, |mut events| async {
                next_event(&mut events).await.map(|event| (event, events))
            });
            let stream = futures::stream::iter(first).chain(rest).map(Ok);
            let stream: Self::GetContainerEventsStream = Box::pin(stream);
            Ok(stream)
        })
        .await
    }

    async fn list_metric_descriptors(
        &self,
        request: Request<ListMetricDescriptorsRequest>,
    ) -> Reply<ListMetricDescriptorsResponse> {
        self.answer(Call::ListMetricDescriptors, request, |_, _| async {
            Ok(ListMetricDescriptorsResponse::default())
        })
        .await
    }

    async fn list_pod_sandbox_metrics(
        &self,
        request: Request<ListPodSandboxMetricsRequest>,
    ) -> Reply<ListPodSandboxMetricsResponse> {
        self.answer(Call::ListPodSandboxMetrics, request, |_, _| async {
            Ok(ListPodSandboxMetricsResponse::default())
        })
        .await
    }

    type StreamPodSandboxMetricsStream = Parts<StreamPodSandboxMetricsResponse>;

    async fn stream_pod_sandbox_metrics(
        &self,
        request: Request<StreamPodSandboxMetricsRequest>,
    ) -> Reply<Self::StreamPodSandboxMetricsStream> {
        self.answer(Call::StreamPodSandboxMetrics, request, |_, _| async {
            Ok(parts(Vec::new(), |item| StreamPodSandboxMetricsResponse {
                pod_sandbox_metrics: vec![item],
            }))
        })
        .await
    }

    async fn runtime_config(
        &self,
        request: Request<RuntimeConfigRequest>,
    ) -> Reply<RuntimeConfigResponse> {
        self.answer(Call::RuntimeConfig, request, |_, _| async {
            let linux = LinuxRuntimeConfiguration { cgroup_driver: CgroupDriver::Cgroupfs.into() };
            Ok(RuntimeConfigResponse { linux: Some(linux) })
        })
        .await
    }

    async fn update_pod_sandbox_resources(
        &self,
        request: Request<UpdatePodSandboxResourcesRequest>,
    ) -> Reply<UpdatePodSandboxResourcesResponse> {
        self.answer(Call::UpdatePodSandboxResources, request, |fake, message| async move {
            let mut state = lock(&fake.inner.state);
            let Some(sandbox) = state.sandboxes.get_mut(&message.pod_sandbox_id) else {
                return Err(not_found("sandbox", &message.pod_sandbox_id));
            };
            let linux = sandbox.config.linux.get_or_insert_default();
            linux.overhead = message.overhead;
            linux.resources = message.resources;
            Ok(UpdatePodSandboxResourcesResponse {})
        })
        .await
    }
}
