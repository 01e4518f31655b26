//! The calls of the interface, and their names in errors, metrics and logs.

/// Which of the two services a call belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Service {
    /// Sandboxes, containers, stats.
    Runtime,
    /// Images.
    Image,
}

impl Service {
    /// `runtime` or `image`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Runtime => "runtime",
            Self::Image => "image",
        }
    }
}

macro_rules! calls {
    ($($call:ident $service:ident $operation:literal)*) => {
        /// One call of the interface.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[allow(missing_docs, reason = "each is the call of its name")]
        pub enum Call { $($call,)* }

        impl Call {
            /// Every call.
            pub const ALL: &'static [Self] = &[$(Self::$call,)*];

            /// The gRPC method name.
            pub fn name(self) -> &'static str {
                match self { $(Self::$call => stringify!($call),)* }
            }

            /// The value of the metrics' `operation_type` label. A streamed list counts as its list.
            pub fn operation(self) -> &'static str {
                match self { $(Self::$call => $operation,)* }
            }

            /// The service that has the call.
            pub fn service(self) -> Service {
                match self { $(Self::$call => Service::$service,)* }
            }
        }
    };
}

calls! {
    Version Runtime "version"
    RunPodSandbox Runtime "run_podsandbox"
    StopPodSandbox Runtime "stop_podsandbox"
    RemovePodSandbox Runtime "remove_podsandbox"
    PodSandboxStatus Runtime "podsandbox_status"
    ListPodSandbox Runtime "list_podsandbox"
    StreamPodSandboxes Runtime "list_podsandbox"
    CreateContainer Runtime "create_container"
    StartContainer Runtime "start_container"
    StopContainer Runtime "stop_container"
    RemoveContainer Runtime "remove_container"
    ListContainers Runtime "list_containers"
    StreamContainers Runtime "list_containers"
    ContainerStatus Runtime "container_status"
    UpdateContainerResources Runtime "update_container"
    ReopenContainerLog Runtime "reopen_container_log"
    ExecSync Runtime "exec_sync"
    Exec Runtime "exec"
    Attach Runtime "attach"
    PortForward Runtime "port_forward"
    ContainerStats Runtime "container_stats"
    ListContainerStats Runtime "list_container_stats"
    StreamContainerStats Runtime "list_container_stats"
    PodSandboxStats Runtime "podsandbox_stats"
    ListPodSandboxStats Runtime "list_podsandbox_stats"
    StreamPodSandboxStats Runtime "list_podsandbox_stats"
    UpdateRuntimeConfig Runtime "update_runtime_config"
    Status Runtime "status"
    CheckpointContainer Runtime "checkpoint_container"
    GetContainerEvents Runtime "get_container_events"
    ListMetricDescriptors Runtime "list_metric_descriptors"
    ListPodSandboxMetrics Runtime "list_podsandbox_metrics"
    StreamPodSandboxMetrics Runtime "list_podsandbox_metrics"
    RuntimeConfig Runtime "runtime_config"
    UpdatePodSandboxResources Runtime "update_podsandbox_resources"
    ListImages Image "list_images"
    StreamImages Image "list_images"
    ImageStatus Image "image_status"
    PullImage Image "pull_image"
    RemoveImage Image "remove_image"
    ImageFsInfo Image "image_fs_info"
}

impl std::fmt::Display for Call {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Values upstream lists that no gRPC call stands for.
    const WITHOUT_CALL: [&str; 1] = ["close"];

    #[test]
    fn operation_types_are_those_of_the_metrics_table() {
        let table = include_str!("../../../fixtures/parity/metrics.tsv");
        let row =
            table.lines().find(|l| l.contains("\tkubelet_runtime_operations_total\t")).unwrap();
        let values = row.split("operation_type=").nth(1).unwrap().split('\t').next().unwrap();
        let want: BTreeSet<_> = values.split('|').filter(|v| !WITHOUT_CALL.contains(v)).collect();
        let have: BTreeSet<_> = Call::ALL.iter().map(|call| call.operation()).collect();
        assert_eq!(have, want);
        assert_eq!(Call::ALL.len(), 41);
    }
}
