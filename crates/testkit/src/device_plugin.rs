//! A device plugin without devices: it hands out names, remembers what it was asked and fails on request.

use anyhow::Context;
use async_trait::async_trait;
use hyper_util::rt::TokioIo;
use proto::device_plugin_v1beta1::device_plugin_server::{DevicePlugin, DevicePluginServer};
use proto::device_plugin_v1beta1::registration_client::RegistrationClient;
use proto::device_plugin_v1beta1::{self as wire, Device, DevicePluginOptions, Empty};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_stream::wrappers::{UnixListenerStream, WatchStream};
use tokio_stream::{Stream, StreamExt};
use tonic::transport::Endpoint;
use tonic::{Request, Response, Status};

/// How a plugin presents itself.
#[derive(Debug, Clone)]
pub struct PluginConfig {
    /// The kubelet's folder for plugins.
    pub dir: PathBuf,
    /// Name of its socket in there.
    pub socket: String,
    /// What it offers.
    pub resource: String,
    /// Its devices to begin with.
    pub devices: Vec<Device>,
    /// What it wants to be asked.
    pub options: DevicePluginOptions,
}

impl PluginConfig {
    /// A plugin of healthy devices with these ids.
    pub fn new(dir: &Path, resource: &str, ids: &[&str]) -> Self {
        Self {
            dir: dir.to_owned(),
            socket: format!("{}.sock", resource.replace('/', "_")),
            resource: resource.to_owned(),
            devices: ids.iter().map(|id| device(id, "Healthy", None)).collect(),
            options: DevicePluginOptions::default(),
        }
    }
}

/// A device; `nodes` are its NUMA nodes.
pub fn device(id: &str, health: &str, nodes: Option<&[i64]>) -> Device {
    let node = |id: &i64| wire::NumaNode { id: *id };
    let topology =
        nodes.map(|nodes| wire::TopologyInfo { nodes: nodes.iter().map(node).collect() });
    Device { id: id.to_owned(), health: health.to_owned(), topology }
}

/// A running plugin; dropping it closes its socket.
#[derive(Debug)]
pub struct RunningPlugin {
    config: PluginConfig,
    devices: watch::Sender<Vec<Device>>,
    calls: Arc<Mutex<Vec<String>>>,
    fault: Arc<Mutex<Option<Status>>>,
    hangs: watch::Sender<bool>,
    tasks: JoinSet<()>,
}

impl RunningPlugin {
    /// Serves its socket; nobody knows of it before [`RunningPlugin::register`].
    pub fn start(config: PluginConfig) -> anyhow::Result<Self> {
        let path = config.dir.join(&config.socket);
        drop(std::fs::remove_file(&path));
        let listener = UnixListener::bind(&path)
            .with_context(|| format!("cannot listen on {}", path.display()))?;
        let devices = watch::Sender::new(config.devices.clone());
        let calls = Arc::new(Mutex::new(Vec::new()));
        let fault = Arc::new(Mutex::new(None));
        let hangs = watch::Sender::new(false);
        let service = Service {
            options: config.options,
            devices: devices.subscribe(),
            calls: Arc::clone(&calls),
            fault: Arc::clone(&fault),
            hangs: hangs.subscribe(),
        };
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let served = tonic::transport::Server::builder()
                .add_service(DevicePluginServer::new(service))
                .serve_with_incoming(UnixListenerStream::new(listener));
            if let Err(error) = served.await {
                tracing::error!(%error, "plugin ended");
            }
        });
        Ok(Self { config, devices, calls, fault, hangs, tasks })
    }

    /// Makes itself known to the kubelet.
    pub async fn register(&self) -> Result<(), Status> {
        self.register_as("v1beta1").await
    }

    /// The same with another version of the API.
    pub async fn register_as(&self, version: &str) -> Result<(), Status> {
        let socket = self.config.dir.join("kubelet.sock");
        let channel = Endpoint::from_static("http://localhost").connect_with_connector_lazy(
            tower::service_fn(move |_| {
                let socket = socket.clone();
                async move { UnixStream::connect(socket).await.map(TokioIo::new) }
            }),
        );
        let request = wire::RegisterRequest {
            version: version.to_owned(),
            endpoint: self.config.socket.clone(),
            resource_name: self.config.resource.clone(),
            options: None,
        };
        RegistrationClient::new(channel).register(request).await.map(drop)
    }

    /// Reports other devices.
    pub fn report(&self, devices: Vec<Device>) {
        self.devices.send_replace(devices);
    }

    /// Has every call but the list fail, or work again.
    pub fn fail(&self, fault: Option<Status>) {
        if let Ok(mut current) = self.fault.lock() {
            *current = fault;
        }
    }

    /// Has calls that give devices not come back, or come back from now on.
    pub fn hang(&self, hangs: bool) {
        self.hangs.send_replace(hangs);
    }

    /// What it was asked, e.g. `Allocate a,b`.
    pub fn calls(&self) -> Vec<String> {
        self.calls.lock().map(|calls| calls.clone()).unwrap_or_default()
    }

    /// Serves until it is killed.
    pub async fn wait(mut self) {
        while self.tasks.join_next().await.is_some() {}
    }
}

#[derive(Debug)]
struct Service {
    options: DevicePluginOptions,
    /// Ends with the plugin, and with it the lists.
    devices: watch::Receiver<Vec<Device>>,
    calls: Arc<Mutex<Vec<String>>>,
    fault: Arc<Mutex<Option<Status>>>,
    hangs: watch::Receiver<bool>,
}

impl Service {
    async fn come_back(&self) {
        // Ends with the plugin, and with it the connection.
        let _ = self.hangs.clone().wait_for(|hangs| !hangs).await;
    }

    fn note(&self, call: &str, ids: &[String]) -> Result<(), Status> {
        let mut ids = ids.to_vec();
        ids.sort();
        if let Ok(mut calls) = self.calls.lock() {
            calls.push(format!("{call} {}", ids.join(",")));
        }
        match self.fault.lock().map(|fault| fault.clone()) {
            Ok(Some(fault)) => Err(fault),
            _ => Ok(()),
        }
    }
}

#[async_trait]
impl DevicePlugin for Service {
    type ListAndWatchStream =
        Pin<Box<dyn Stream<Item = Result<wire::ListAndWatchResponse, Status>> + Send>>;

    async fn get_device_plugin_options(
        &self,
        _request: Request<Empty>,
    ) -> Result<Response<DevicePluginOptions>, Status> {
        self.note("Options", &[])?;
        Ok(Response::new(self.options))
    }

    async fn list_and_watch(
        &self,
        _request: Request<Empty>,
    ) -> Result<Response<Self::ListAndWatchStream>, Status> {
        let lists = WatchStream::new(self.devices.clone())
            .map(|devices| Ok(wire::ListAndWatchResponse { devices }));
        Ok(Response::new(Box::pin(lists)))
    }

    /// Prefers the last ids.
    async fn get_preferred_allocation(
        &self,
        request: Request<wire::PreferredAllocationRequest>,
    ) -> Result<Response<wire::PreferredAllocationResponse>, Status> {
        let mut container_responses = Vec::new();
        for container in request.into_inner().container_requests {
            self.note("Preferred", &container.available_device_i_ds)?;
            self.come_back().await;
            let mut ids = container.available_device_i_ds;
            ids.sort();
            let size = usize::try_from(container.allocation_size).unwrap_or_default();
            let ids = ids.split_off(ids.len().saturating_sub(size));
            container_responses
                .push(wire::ContainerPreferredAllocationResponse { device_i_ds: ids });
        }
        Ok(Response::new(wire::PreferredAllocationResponse { container_responses }))
    }

    /// Tells the container its devices in `DEVICES`.
    async fn allocate(
        &self,
        request: Request<wire::AllocateRequest>,
    ) -> Result<Response<wire::AllocateResponse>, Status> {
        let mut container_responses = Vec::new();
        for container in request.into_inner().container_requests {
            self.note("Allocate", &container.devices_ids)?;
            self.come_back().await;
            let mut ids = container.devices_ids;
            ids.sort();
            container_responses.push(wire::ContainerAllocateResponse {
                envs: [("DEVICES".to_owned(), ids.join(","))].into(),
                annotations: [("devices.test/given".to_owned(), ids.join("_"))].into(),
                mounts: vec![wire::Mount {
                    container_path: "/etc/devices-hostname".to_owned(),
                    host_path: "/etc/hostname".to_owned(),
                    read_only: true,
                }],
                devices: vec![wire::DeviceSpec {
                    container_path: "/dev/given".to_owned(),
                    host_path: "/dev/null".to_owned(),
                    permissions: "rw".to_owned(),
                }],
                cdi_devices: Vec::new(),
            });
        }
        Ok(Response::new(wire::AllocateResponse { container_responses }))
    }

    async fn pre_start_container(
        &self,
        request: Request<wire::PreStartContainerRequest>,
    ) -> Result<Response<wire::PreStartContainerResponse>, Status> {
        self.note("PreStart", &request.into_inner().devices_ids)?;
        Ok(Response::new(wire::PreStartContainerResponse {}))
    }
}
