//! Calls about resource usage.

use proto::cri_v1::{
    ContainerStats, ContainerStatsFilter, ContainerStatsRequest, ListContainerStatsRequest,
    ListMetricDescriptorsRequest, ListPodSandboxMetricsRequest, ListPodSandboxStatsRequest,
    MetricDescriptor, PodSandboxMetrics, PodSandboxStats, PodSandboxStatsFilter,
    PodSandboxStatsRequest, StreamContainerStatsRequest, StreamPodSandboxMetricsRequest,
    StreamPodSandboxStatsRequest,
};

use super::{RuntimeClient, gather, request};
use crate::call::{Call, Service};
use crate::error::CriError;

impl RuntimeClient {
    /// The usage of a container; none if the runtime has none.
    pub async fn container_stats(
        &self,
        container: &str,
    ) -> Result<Option<ContainerStats>, CriError> {
        let deadline = Some(self.timeout());
        let message = ContainerStatsRequest { container_id: container.to_owned() };
        let mut service = self.runtime_service();
        let attempt =
            Box::pin(async move { service.container_stats(request(message, deadline)).await });
        Ok(self.invoke(Call::ContainerStats, deadline, attempt).await?.stats)
    }

    /// The usage of the containers that match.
    pub async fn list_container_stats(
        &self,
        filter: Option<ContainerStatsFilter>,
    ) -> Result<Vec<ContainerStats>, CriError> {
        let streamed = self.stream_container_stats(filter.clone());
        self.list(Service::Runtime, streamed, self.list_container_stats_plain(filter)).await
    }

    /// The same, from the streamed list.
    pub async fn stream_container_stats(
        &self,
        filter: Option<ContainerStatsFilter>,
    ) -> Result<Vec<ContainerStats>, CriError> {
        let deadline = Some(self.timeout());
        let message = StreamContainerStatsRequest { filter };
        let mut service = self.runtime_service();
        let attempt = Box::pin(async move {
            let opened = service.stream_container_stats(request(message, deadline)).await;
            gather(opened, |part| part.container_stats).await
        });
        self.invoke(Call::StreamContainerStats, deadline, attempt).await
    }

    async fn list_container_stats_plain(
        &self,
        filter: Option<ContainerStatsFilter>,
    ) -> Result<Vec<ContainerStats>, CriError> {
        let deadline = Some(self.timeout());
        let message = ListContainerStatsRequest { filter };
        let mut service = self.runtime_service();
        let attempt =
            Box::pin(async move { service.list_container_stats(request(message, deadline)).await });
        Ok(self.invoke(Call::ListContainerStats, deadline, attempt).await?.stats)
    }

    /// The usage of a sandbox; none if the runtime has none.
    pub async fn pod_sandbox_stats(
        &self,
        sandbox: &str,
    ) -> Result<Option<PodSandboxStats>, CriError> {
        let deadline = Some(self.timeout());
        let message = PodSandboxStatsRequest { pod_sandbox_id: sandbox.to_owned() };
        let mut service = self.runtime_service();
        let attempt =
            Box::pin(async move { service.pod_sandbox_stats(request(message, deadline)).await });
        Ok(self.invoke(Call::PodSandboxStats, deadline, attempt).await?.stats)
    }

    /// The usage of the sandboxes that match.
    pub async fn list_pod_sandbox_stats(
        &self,
        filter: Option<PodSandboxStatsFilter>,
    ) -> Result<Vec<PodSandboxStats>, CriError> {
        let streamed = self.stream_pod_sandbox_stats(filter.clone());
        self.list(Service::Runtime, streamed, self.list_pod_sandbox_stats_plain(filter)).await
    }

    /// The same, from the streamed list.
    pub async fn stream_pod_sandbox_stats(
        &self,
        filter: Option<PodSandboxStatsFilter>,
    ) -> Result<Vec<PodSandboxStats>, CriError> {
        let deadline = Some(self.timeout());
        let message = StreamPodSandboxStatsRequest { filter };
        let mut service = self.runtime_service();
        let attempt = Box::pin(async move {
            let opened = service.stream_pod_sandbox_stats(request(message, deadline)).await;
            gather(opened, |part| part.pod_sandbox_stats).await
        });
        self.invoke(Call::StreamPodSandboxStats, deadline, attempt).await
    }

    async fn list_pod_sandbox_stats_plain(
        &self,
        filter: Option<PodSandboxStatsFilter>,
    ) -> Result<Vec<PodSandboxStats>, CriError> {
        let deadline = Some(self.timeout());
        let message = ListPodSandboxStatsRequest { filter };
        let mut service = self.runtime_service();
        let attempt =
            Box::pin(
                async move { service.list_pod_sandbox_stats(request(message, deadline)).await },
            );
        Ok(self.invoke(Call::ListPodSandboxStats, deadline, attempt).await?.stats)
    }

    /// The metrics the runtime can report.
    pub async fn list_metric_descriptors(&self) -> Result<Vec<MetricDescriptor>, CriError> {
        let deadline = Some(self.timeout());
        let mut service = self.runtime_service();
        let attempt = Box::pin(async move {
            service
                .list_metric_descriptors(request(ListMetricDescriptorsRequest {}, deadline))
                .await
        });
        Ok(self.invoke(Call::ListMetricDescriptors, deadline, attempt).await?.descriptors)
    }

    /// The metrics the runtime reports now, by sandbox.
    pub async fn list_pod_sandbox_metrics(&self) -> Result<Vec<PodSandboxMetrics>, CriError> {
        let streamed = self.stream_pod_sandbox_metrics();
        self.list(Service::Runtime, streamed, self.list_pod_sandbox_metrics_plain()).await
    }

    /// The same, from the streamed list.
    pub async fn stream_pod_sandbox_metrics(&self) -> Result<Vec<PodSandboxMetrics>, CriError> {
        let deadline = Some(self.timeout());
        let message = StreamPodSandboxMetricsRequest {};
        let mut service = self.runtime_service();
        let attempt = Box::pin(async move {
            let opened = service.stream_pod_sandbox_metrics(request(message, deadline)).await;
            gather(opened, |part| part.pod_sandbox_metrics).await
        });
        self.invoke(Call::StreamPodSandboxMetrics, deadline, attempt).await
    }

    async fn list_pod_sandbox_metrics_plain(&self) -> Result<Vec<PodSandboxMetrics>, CriError> {
        let deadline = Some(self.timeout());
        let mut service = self.runtime_service();
        let attempt = Box::pin(async move {
            service
                .list_pod_sandbox_metrics(request(ListPodSandboxMetricsRequest {}, deadline))
                .await
        });
        Ok(self.invoke(Call::ListPodSandboxMetrics, deadline, attempt).await?.pod_metrics)
    }
}
