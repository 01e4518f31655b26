//! A CSI driver that really mounts: folders by bind mount, block volumes by loop device.
//!
//! A volume is a folder or an image below the driver's data folder, made when it is first staged or
//! published. The driver keeps no state but the disk, so it can be killed and started again at any
//! time. What it is asked is appended to `calls.log` and, with all fields but the values of secrets, to
//! `requests.jsonl`; `faults/<Method>` makes it fail, `faults/<Method>.<volume id>` for one volume:
//!
//! ```text
//!  before Internal          refuse without doing anything
//!  after DeadlineExceeded   do it, then answer with this code
//!  before Unavailable 2     so often, then no more
//!  hang                     never answer
//! ```

mod controller;
mod node;
mod record;

use proto::csi_v1::controller_server::ControllerServer;
use proto::csi_v1::identity_server::{Identity, IdentityServer};
use proto::csi_v1::node_server::NodeServer;
use proto::csi_v1::{
    GetPluginCapabilitiesRequest, GetPluginCapabilitiesResponse, GetPluginInfoRequest,
    GetPluginInfoResponse, PluginCapability, ProbeRequest, ProbeResponse, plugin_capability,
};
use proto::plugin_registration_v1::registration_server::{Registration, RegistrationServer};
use proto::plugin_registration_v1::{
    InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse,
};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;
use tonic::{Request, Response, Status};

/// How a driver presents itself.
#[derive(Debug, Clone)]
pub struct CsiDriverConfig {
    /// Its name.
    pub name: String,
    /// The node id it reports.
    pub node_id: String,
    /// Where it serves.
    pub socket: PathBuf,
    /// `plugins_registry`; `None` leaves registration to somebody else.
    pub registry: Option<PathBuf>,
    /// Where volumes are kept.
    pub data: PathBuf,
    /// Whether it has `STAGE_UNSTAGE_VOLUME`.
    pub stages: bool,
    /// Whether it has `VOLUME_MOUNT_GROUP`.
    pub mount_group: bool,
    /// What it says of the health of every volume: abnormal or not, and why; `None` without `VOLUME_CONDITION`.
    pub condition: Option<(bool, String)>,
    /// How many volumes it takes; 0 for no limit.
    pub max_volumes: i64,
    /// Its topology.
    pub topology: BTreeMap<String, String>,
}

impl CsiDriverConfig {
    /// A driver of this name that keeps everything below `data`.
    pub fn new(name: &str, data: &Path) -> Self {
        Self {
            name: name.to_owned(),
            node_id: "node".into(),
            socket: data.join("csi.sock"),
            registry: None,
            data: data.to_owned(),
            stages: true,
            mount_group: false,
            condition: None,
            max_volumes: 0,
            topology: BTreeMap::new(),
        }
    }
}

/// A running driver; dropping it closes its sockets.
#[derive(Debug)]
pub struct CsiDriver {
    config: CsiDriverConfig,
    tasks: JoinSet<()>,
}

impl CsiDriver {
    /// Starts serving.
    pub fn start(config: CsiDriverConfig) -> anyhow::Result<Self> {
        std::fs::create_dir_all(config.data.join("faults"))?;
        let mut tasks = JoinSet::new();
        let driver = Routes::new(IdentityServer::new(IdentityService(config.clone())))
            .add_service(NodeServer::new(node::NodeService::new(config.clone())))
            .add_service(ControllerServer::new(controller::ControllerService {
                config: config.clone(),
            }));
        let token = CancellationToken::new();
        let listening = listen(&config.socket)?;
        let cancel = token.clone();
        tasks.spawn(async move {
            if let Err(error) = listening.serve(driver, cancel).await {
                tracing::error!(%error, "driver ended");
            }
        });
        if let Some(registry) = &config.registry {
            let listening = listen(&registry.join(format!("{}-reg.sock", config.name)))?;
            let service = RegistrationServer::new(RegistrationService(config.clone()));
            tasks.spawn(async move {
                if let Err(error) = listening.serve(Routes::new(service), token).await {
                    tracing::error!(%error, "registration ended");
                }
            });
        }
        Ok(Self { config, tasks })
    }

    /// Serves until the sockets fail.
    pub async fn wait(mut self) {
        while self.tasks.join_next().await.is_some() {}
    }

    /// What it was asked so far, one `Method volume-id` per line.
    pub fn calls(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.config.data.join("calls.log"));
        text.unwrap_or_default().lines().map(str::to_owned).collect()
    }

    /// What it was asked so far with all fields, as `{"method": …, "request": {…}}`.
    pub fn requests(&self) -> Vec<serde_json::Value> {
        let text = std::fs::read_to_string(self.config.data.join("requests.jsonl"));
        text.unwrap_or_default()
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok())
            .collect()
    }

    /// Makes a method fail (see the module) or, with `None`, work again.
    pub fn fault(&self, method: &str, fault: Option<&str>) {
        let path = self.config.data.join("faults").join(method);
        let result = match fault {
            Some(text) => std::fs::write(path, text),
            None => std::fs::remove_file(path),
        };
        if let Err(error) = result {
            tracing::warn!(%error, method, "fault not changed");
        }
    }

    /// The registration status it was last told: `ok`, or the error.
    pub fn last_message(&self) -> Option<String> {
        std::fs::read_to_string(self.config.data.join("registration")).ok()
    }
}

impl Drop for CsiDriver {
    fn drop(&mut self) {
        let registration =
            self.config.registry.iter().map(|r| r.join(format!("{}-reg.sock", self.config.name)));
        for socket in registration.chain([self.config.socket.clone()]) {
            // It may be gone with its folder.
            let _ = std::fs::remove_file(socket);
        }
    }
}

fn listen(socket: &Path) -> anyhow::Result<sockets::Listening> {
    if let Some(parent) = socket.parent() {
        std::fs::create_dir_all(parent)?;
    }
    Ok(sockets::Listening::bind(socket)?)
}

struct IdentityService(CsiDriverConfig);

#[tonic::async_trait]
impl Identity for IdentityService {
    async fn get_plugin_info(
        &self,
        _request: Request<GetPluginInfoRequest>,
    ) -> Result<Response<GetPluginInfoResponse>, Status> {
        Ok(Response::new(GetPluginInfoResponse {
            name: self.0.name.clone(),
            vendor_version: env!("CARGO_PKG_VERSION").into(),
            manifest: BTreeMap::new(),
        }))
    }

    async fn get_plugin_capabilities(
        &self,
        _request: Request<GetPluginCapabilitiesRequest>,
    ) -> Result<Response<GetPluginCapabilitiesResponse>, Status> {
        let service = plugin_capability::Service {
            r#type: plugin_capability::service::Type::ControllerService.into(),
        };
        Ok(Response::new(GetPluginCapabilitiesResponse {
            capabilities: vec![PluginCapability {
                r#type: Some(plugin_capability::Type::Service(service)),
            }],
        }))
    }

    async fn probe(
        &self,
        _request: Request<ProbeRequest>,
    ) -> Result<Response<ProbeResponse>, Status> {
        Ok(Response::new(ProbeResponse { ready: Some(true) }))
    }
}

struct RegistrationService(CsiDriverConfig);

#[tonic::async_trait]
impl Registration for RegistrationService {
    async fn get_info(
        &self,
        _request: Request<InfoRequest>,
    ) -> Result<Response<PluginInfo>, Status> {
        Ok(Response::new(PluginInfo {
            r#type: "CSIPlugin".into(),
            name: self.0.name.clone(),
            endpoint: self.0.socket.to_string_lossy().into_owned(),
            supported_versions: vec!["1.0.0".into()],
        }))
    }

    async fn notify_registration_status(
        &self,
        request: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        let status = request.into_inner();
        let text = if status.plugin_registered { "ok".to_owned() } else { status.error };
        std::fs::write(self.0.data.join("registration"), text)?;
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}
