//! Gathering what CRI requests are made of: resolver, environment, mounts, placement.

use super::execute::StartContext;
use super::{Interrupted, PodWorker};
use api::core::v1::{Container, Pod};
use api::ids::PodUid;
use api::pod::PodExt;
use engine::pod::StartContainer;
use engine::request::container::{all_variables, container_config};
use engine::request::dns::{DnsInput, DnsWarning, ResolvConf, pod_dns};
use engine::request::downward::NodeFacts;
use engine::request::env::{self, EnvFile, EnvInput, EnvObjects, ObjectMiss, environment};
use engine::request::env_file::{EnvSearch, EnvValues, MAX_LINE};
use engine::request::mounts::{MountInput, PlacementExtras, VolumeView, sub_paths};
use engine::request::resources::CpuQuota;
use engine::request::security::{UserNamespaceRange, groups_of_volumes};
use engine::request::{ContainerInput, SandboxInput, sandbox_config};
use engine::status::StartError;
use ports::{
    ContainerExtras, EventSeverity, EventTarget, NodeEvent, ObjectError, PodMounts, SubPathRequest,
};
use ports::{EnsureImage, EnsuredImage};
use proto::cri_v1::{ContainerConfig, DnsConfig, ImageSpec, PodSandboxConfig};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Reasons of pulls that were tried.
const PULL_FAULTS: [&str; 3] = ["ErrImagePull", "RegistryUnavailable", "SignatureValidationFailed"];

/// Images of a pod's image volumes: had, or why not.
#[derive(Debug, Default)]
pub(super) struct ImageVolumes {
    pub(super) images: BTreeMap<String, ImageSpec>,
    faults: BTreeMap<String, StartError>,
}

impl ImageVolumes {
    /// The faults of volumes that this container mounts, one for each mount.
    pub(super) fn faults_of(&self, container: &Container) -> Vec<StartError> {
        let mounts = container.volume_mounts.iter().flatten();
        mounts.filter_map(|mount| self.faults.get(&mount.name).cloned()).collect()
    }
}

/// Why a container's configuration could not be made.
pub(super) struct ConfigFault {
    /// What its status says.
    pub(super) reason: &'static str,
    /// In detail.
    pub(super) message: String,
}

impl From<String> for ConfigFault {
    fn from(message: String) -> Self {
        Self { reason: "CreateContainerConfigError", message }
    }
}

impl PodWorker {
    /// The handler of the pod's RuntimeClass; empty for the default one.
    pub(super) async fn runtime_handler(&self, pod: &Pod) -> Result<String, String> {
        let class = pod.spec.as_ref().and_then(|s| s.runtime_class_name.as_deref());
        match class.filter(|name| !name.is_empty()) {
            None => Ok(String::new()),
            Some(name) => match self.shared.objects.runtime_class(name).await {
                Ok(class) => Ok(class.handler.clone()),
                Err(error) => Err(error.to_string()),
            },
        }
    }

    pub(super) async fn sandbox_config(
        &self,
        pod: &Arc<Pod>,
        attempt: u32,
        mounts: &PodMounts,
    ) -> Result<PodSandboxConfig, String> {
        let input = SandboxInput {
            pod,
            attempt,
            dns: self.dns(pod).await?,
            cgroup_parent: self.shared.cgroups.parent(pod),
            userns: self.user_namespace(pod).await?,
            extra_groups: &extra_groups(pod, mounts),
            cpu_quota: self.quota(pod, None),
        };
        sandbox_config(&self.shared.config.request, input).map_err(|e| e.to_string())
    }

    /// Whether a quota applies to a container, or to the pod as a whole.
    pub(super) fn quota(&self, pod: &Pod, container: Option<&Container>) -> CpuQuota {
        let free = self.shared.placement.unthrottled(pod);
        let lifted = container.map_or(!free.is_empty(), |container| free.contains(&container.name));
        if lifted { CpuQuota::Unlimited } else { CpuQuota::Enforced }
    }

    /// The ids of a pod with its own users.
    async fn user_namespace(&self, pod: &Pod) -> Result<Option<UserNamespaceRange>, String> {
        let handler = self.runtime_handler(pod).await?;
        let handlers = self.shared.handlers.borrow().clone();
        self.shared.userns.range(pod, &handler, &handlers).await
    }

    async fn dns(&self, pod: &Arc<Pod>) -> Result<DnsConfig, String> {
        let config = &self.shared.config;
        let host = match crate::resolver::read(config).await? {
            None => None,
            Some(text) => Some(ResolvConf::parse(&text).map_err(|e| e.to_string())?),
        };
        let input = DnsInput {
            host: host.as_ref(),
            cluster_dns: &config.cluster_dns,
            cluster_domain: &config.request.cluster_domain,
            node_ips: &config.node_ips,
        };
        let (dns, warnings) = pod_dns(&input, pod);
        for warning in warnings {
            match warning {
                DnsWarning::Limits(message) => self.warn(pod, "DNSConfigForming", message),
                DnsWarning::MissingClusterDns { node, pod: text } => {
                    self.shared.events.emit(NodeEvent {
                        target: EventTarget::Node,
                        severity: EventSeverity::Warning,
                        reason: "MissingClusterDNS",
                        message: node,
                    });
                    self.warn(pod, "MissingClusterDNS", text);
                }
            }
        }
        Ok(dns)
    }

    pub(super) async fn ensure_image(
        &self,
        context: &StartContext<'_>,
        start: &StartContainer,
        container: &Container,
    ) -> Result<Result<EnsuredImage, StartError>, Interrupted> {
        self.timeline.note_container(
            "ensuring image",
            &container.name,
            container.image.clone().unwrap_or_default(),
        );
        let request = EnsureImage {
            pod: Arc::clone(context.pod),
            image: container.image.clone().unwrap_or_default(),
            policy: container.image_pull_policy.clone().unwrap_or_default(),
            field_path: Some(start.kind.field_path(&start.name)),
            sandbox: context.sandbox_config.clone(),
            runtime_handler: context.runtime_handler.clone(),
            secrets: self.pull_secrets.clone(),
        };
        self.pull(request).await
    }

    /// Pulls; a wait is left at once when the pod or the agent is to end.
    async fn pull(
        &self,
        request: EnsureImage,
    ) -> Result<Result<EnsuredImage, StartError>, Interrupted> {
        let asked = self.shared.clock.now();
        let result = tokio::select! {
            // Dropping the wait cuts the pull off: nobody else wants it.
            result = self.shared.images.ensure(request) => {
                result.map_err(|fault| StartError { reason: fault.reason, message: fault.message })
            }
            left = self.wait_exit().reason() => return Err(left), // cancel-safe: watches
        };
        let now = self.shared.clock.now();
        self.shared.metrics.starts.note(|startups| {
            let pulled = match &result {
                Ok(image) => image.pulled,
                Err(fault) => PULL_FAULTS.contains(&fault.reason.as_str()),
            };
            if pulled {
                startups.pull_began(&self.uid, asked);
            }
            if result.is_ok() {
                startups.pull_ended(&self.uid, now);
            }
        });
        Ok(result)
    }

    pub(super) async fn pull_image_volumes(
        &self,
        context: &StartContext<'_>,
    ) -> Result<ImageVolumes, Interrupted> {
        let mut result = ImageVolumes::default();
        let volumes = context.pod.spec.as_ref().and_then(|s| s.volumes.as_ref());
        for volume in volumes.into_iter().flatten() {
            let Some(source) = &volume.image else { continue };
            let image = source.reference.clone().unwrap_or_default();
            let request = EnsureImage {
                pod: Arc::clone(context.pod),
                image: image.clone(),
                policy: source.pull_policy.clone().unwrap_or_default(),
                field_path: None,
                sandbox: context.sandbox_config.clone(),
                runtime_handler: context.runtime_handler.clone(),
                secrets: self.pull_secrets.clone(),
            };
            match self.pull(request).await? {
                Ok(pulled) => {
                    let spec = ImageSpec {
                        image: pulled.image_ref,
                        user_specified_image: image,
                        runtime_handler: pulled.runtime_handler,
                        annotations: context.pod.metadata.annotations.clone().unwrap_or_default(),
                        ..ImageSpec::default()
                    };
                    result.images.insert(volume.name.clone(), spec);
                }
                Err(fault) => {
                    result.faults.insert(volume.name.clone(), fault);
                }
            }
        }
        Ok(result)
    }

    /// The container's whole configuration; an error is the waiting message.
    pub(super) async fn container_config(
        &self,
        context: &StartContext<'_>,
        container: &Container,
        attempt: u32,
        image: &EnsuredImage,
    ) -> Result<ContainerConfig, ConfigFault> {
        let pod = context.pod;
        let target_id = self.target_of(context, container)?;
        let extras = self.shared.placement.container_extras(pod, container).await;
        let extras = placement_extras(extras.map_err(|e| e.to_string())?);
        let own = self.environment(context, container).await?;
        let envs = all_variables(&extras, own);
        let volumes = volume_views(context.mounts);
        let mounts = MountInput {
            container,
            volumes: &volumes,
            image_volumes: &context.image_volumes.images,
            envs: &envs,
            recursive_read_only: self.shared.recursive_read_only(&context.runtime_handler),
        };
        let bound = self.bind_sub_paths(context, container, &mounts).await?;
        self.write_hosts(pod, container, &context.ips).await?;
        let log_dir = format!("{}/{}", context.sandbox_config.log_directory, container.name);
        self.make_log_dir(&log_dir).await.map_err(|error| {
            let name = &container.name;
            format!("create container log directory for container {name} failed: {error}")
        })?;
        let termination = self.termination_file(pod, container).await;
        let input = ContainerInput {
            pod,
            container,
            attempt,
            image_ref: &image.image_ref,
            image_user: &image.user,
            pod_ips: &context.ips,
            mounts,
            bound_sub_paths: &bound,
            termination_file: termination.as_deref(),
            extras: &extras,
            userns: self.user_namespace(pod).await?,
            target_id,
            extra_groups: &extra_groups(pod, context.mounts),
            cpu_quota: self.quota(pod, Some(container)),
        };
        container_config(&self.shared.config.request, &input)
            .map_err(|error| ConfigFault { reason: error.reason(), message: error.to_string() })
    }

    /// The container whose processes an ephemeral one joins.
    fn target_of<'a>(
        &self,
        context: &'a StartContext<'_>,
        container: &Container,
    ) -> Result<Option<&'a str>, String> {
        let ephemeral = context.pod.spec.as_ref().and_then(|s| s.ephemeral_containers.as_ref());
        let target = ephemeral
            .into_iter()
            .flatten()
            .find(|e| e.name == container.name)
            .and_then(|e| e.target_container_name.as_deref())
            .filter(|name| !name.is_empty());
        match target {
            None => Ok(None),
            Some(name) => match context.runtime.newest(name) {
                Some(view) => Ok(Some(view.id.as_str())),
                None => Err(format!("unable to find target container {name}")),
            },
        }
    }

    async fn environment(
        &self,
        context: &StartContext<'_>,
        container: &Container,
    ) -> Result<Vec<env::EnvVariable>, String> {
        let pod = context.pod;
        let namespace = pod.namespace_str();
        let wanted = env::references(container);
        let mut objects = EnvObjects::default();
        for name in wanted.config_maps {
            let found = self.shared.objects.config_map(namespace, &name).await;
            objects.config_maps.insert(name, found.map_err(miss));
        }
        for name in wanted.secrets {
            let found = self.shared.objects.secret(namespace, &name).await;
            objects.secrets.insert(name, found.map_err(miss));
        }
        for ((volume, path), keys) in wanted.files {
            if let Some(mounted) = context.mounts.get(&volume) {
                let file = env_file(&self.uid, &mounted.host_path, &path, keys).await;
                objects.files.insert((volume, path), file);
            }
        }
        let services = self.shared.objects.services();
        let none: Vec<Arc<api::core::v1::Service>> = Vec::new();
        let services = match &services {
            Some(services) => Some(services.as_slice()),
            // A static pod does not wait for the API server.
            None if pod.is_static() => Some(none.as_slice()),
            None => None,
        };
        let node = self.shared.node.borrow().clone();
        let host_ips = crate::shared::host_ips(&node);
        let allocatable = node
            .node
            .as_ref()
            .and_then(|n| n.status.as_ref()?.allocatable.clone())
            .unwrap_or_default();
        let input = EnvInput {
            pod,
            container,
            pod_ips: &context.ips,
            node: NodeFacts {
                node_ips: &self.shared.config.node_ips,
                host_ips: &host_ips,
                allocatable: &allocatable,
                pod_level_resources: self.shared.config.request.resources.pod_level_resources,
            },
            services,
            env_files: self.shared.config.env_files,
            objects: &objects,
        };
        environment(&input).map_err(|error| error.to_string())
    }

    async fn bind_sub_paths(
        &self,
        context: &StartContext<'_>,
        container: &Container,
        mounts: &MountInput<'_>,
    ) -> Result<BTreeMap<usize, String>, String> {
        let mut bound = BTreeMap::new();
        for wanted in sub_paths(mounts).map_err(|e| e.to_string())? {
            let Some(volume) = context.mounts.get(&wanted.volume) else { continue };
            let request = SubPathRequest {
                pod_uid: self.uid.clone(),
                volume_name: wanted.volume.clone(),
                volume_path: volume.host_path.clone(),
                sub_path: wanted.path,
                container_name: container.name.clone(),
                mount_index: wanted.index,
            };
            let path = self.shared.volumes.bind_sub_path(&request).await.map_err(|error| {
                tracing::error!(podUID = %self.uid, err = %error, "cannot prepare subPath");
                error.to_string()
            })?;
            bound.insert(wanted.index, path.to_string_lossy().into_owned());
        }
        Ok(bound)
    }
}

/// Links in the volume are followed as far as they stay inside, and the file is named by where it is.
async fn env_file(pod: &PodUid, volume: &Path, path: &str, keys: BTreeSet<String>) -> EnvFile {
    let (root, below) = (volume.to_owned(), PathBuf::from(path));
    let read = sys::blocking::run_for_pod(pod.as_str(), move || {
        let (found, file) = sys::rooted_dir::Dir::open(&root)?.open_in_root(&below)?;
        let mut search = EnvSearch::new(keys);
        if sys::fs::each_line(file, MAX_LINE, |line| search.line(line)).is_err() {
            search.failed();
        }
        Ok::<_, sys::fs::FsError>((found, search.end()))
    });
    let (found, values) = match read.await {
        Ok(Ok((found, values))) => (found, values),
        _ => (PathBuf::from(path), EnvValues::unreadable()),
    };
    EnvFile { host_path: volume.join(found).to_string_lossy().into_owned(), values }
}

fn miss(error: ObjectError) -> ObjectMiss {
    match error {
        ObjectError::NotFound(text) => ObjectMiss::NotFound(text),
        other => ObjectMiss::Failed(other.to_string()),
    }
}

fn extra_groups(pod: &Pod, mounts: &PodMounts) -> Vec<i64> {
    groups_of_volumes(pod, mounts.values().filter_map(|volume| volume.supplemental_gid))
}

fn volume_views(mounts: &PodMounts) -> BTreeMap<String, VolumeView> {
    mounts
        .iter()
        .map(|(name, volume)| {
            let view = VolumeView {
                host_path: volume.host_path.to_string_lossy().into_owned(),
                read_only: volume.read_only,
                selinux_relabel: volume.selinux_relabel,
                block: volume.block,
            };
            (name.clone(), view)
        })
        .collect()
}

fn placement_extras(extras: ContainerExtras) -> PlacementExtras {
    PlacementExtras {
        envs: extras.envs,
        mounts: extras
            .mounts
            .into_iter()
            .map(|m| (m.host_path, m.container_path, m.read_only))
            .collect(),
        devices: extras
            .devices
            .into_iter()
            .map(|d| (d.host_path, d.container_path, d.permissions))
            .collect(),
        annotations: extras.annotations,
        cdi_devices: extras.cdi_devices,
        cpuset_cpus: extras.cpuset_cpus,
        cpuset_mems: extras.cpuset_mems,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_environment_file_may_be_of_any_size() {
        let name = format!("rubelet-env-file-{}", std::process::id());
        let volume = std::env::temp_dir().join(name);
        sys::fs::create_dir_all(&volume, 0o755).unwrap();
        let mut text = "FIRST='1'\n".to_owned();
        while text.len() < 3 << 20 {
            text.push_str("# a remark that nobody reads\nOTHER='another value'\n");
        }
        text.push_str("LAST='2'\n");
        sys::fs::write(volume.join("env"), text).unwrap();
        let keys = || ["FIRST", "LAST"].map(str::to_owned).into();
        let file = env_file(&"uid".into(), &volume, "env", keys()).await;
        assert_eq!(file.host_path, volume.join("env").to_string_lossy());
        assert_eq!(file.values.get("FIRST"), Ok(&b"1"[..]));
        assert_eq!(file.values.get("LAST"), Ok(&b"2"[..]));
        let missing = env_file(&"uid".into(), &volume, "none", keys()).await;
        assert!(missing.values.get("FIRST").is_err());
        sys::fs::remove_file(volume.join("env")).unwrap();
        sys::fs::remove_dir(&volume).unwrap();
    }
}
