//! What plugins, and clients of the node's sockets, can do.

use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::time::Duration;

use proto::device_plugin_v1beta1::device_plugin_server::{DevicePlugin, DevicePluginServer};
use proto::device_plugin_v1beta1::registration_client::RegistrationClient;
use proto::device_plugin_v1beta1::{
    AllocateRequest, AllocateResponse, Device, DevicePluginOptions, Empty, ListAndWatchResponse,
    PreStartContainerRequest, PreStartContainerResponse, PreferredAllocationRequest,
    PreferredAllocationResponse, RegisterRequest,
};
use tonic::service::Routes;
use tonic::{Request, Response, Status};

use super::{Attack, Target};

pub(super) const ATTACKS: &[Attack] = &[
    Attack { name: "silent-plugins", counts: None, run: silent_plugins },
    Attack { name: "endless-devices", counts: None, run: endless_devices },
    Attack { name: "crowded-sockets", counts: None, run: crowded_sockets },
];

/// Sockets of plugins that never answer, gone and there again all the time.
fn silent_plugins(target: Target<'_>) -> anyhow::Result<u64> {
    let folder = target.stage.root_dir().join("plugins_registry");
    std::fs::create_dir_all(&folder)?;
    let mut made = 0;
    while target.until.goes_on() {
        let mut held = Vec::new();
        let paths: Vec<PathBuf> =
            (0..100).map(|n| folder.join(format!("silent{n}.sock"))).collect();
        for path in &paths {
            held.push(UnixListener::bind(path)?);
            made += 1;
        }
        target.until.pause(Duration::from_millis(1500));
        for path in &paths {
            std::fs::remove_file(path)?;
        }
    }
    Ok(made)
}

/// A device plugin that tells another list of devices all the time.
#[derive(Debug, Clone, Copy)]
struct Endless;

type Lists = Pin<Box<dyn tokio_stream::Stream<Item = Result<ListAndWatchResponse, Status>> + Send>>;

#[tonic::async_trait]
impl DevicePlugin for Endless {
    type ListAndWatchStream = Lists;

    async fn get_device_plugin_options(
        &self,
        _: Request<Empty>,
    ) -> Result<Response<DevicePluginOptions>, Status> {
        Ok(Response::new(DevicePluginOptions::default()))
    }

    async fn list_and_watch(&self, _: Request<Empty>) -> Result<Response<Lists>, Status> {
        let list = |round: u64| {
            let device = |n: u64| Device {
                id: format!("device-{}-{n}", round % 10),
                health: if (round + n).is_multiple_of(2) { "Healthy" } else { "Unhealthy" }
                    .to_owned(),
                topology: None,
            };
            ListAndWatchResponse { devices: (0..5000).map(device).collect() }
        };
        let lists = tokio_stream::iter((0..).map(move |round| Ok(list(round))));
        Ok(Response::new(Box::pin(lists)))
    }

    async fn get_preferred_allocation(
        &self,
        _: Request<PreferredAllocationRequest>,
    ) -> Result<Response<PreferredAllocationResponse>, Status> {
        Err(Status::unimplemented("no"))
    }

    async fn allocate(
        &self,
        _: Request<AllocateRequest>,
    ) -> Result<Response<AllocateResponse>, Status> {
        Err(Status::unimplemented("no"))
    }

    async fn pre_start_container(
        &self,
        _: Request<PreStartContainerRequest>,
    ) -> Result<Response<PreStartContainerResponse>, Status> {
        Err(Status::unimplemented("no"))
    }
}

/// A plugin that lists without a pause, and registers again and again, under names without end.
fn endless_devices(target: Target<'_>) -> anyhow::Result<u64> {
    let folder = target.stage.devices_dir();
    let runtime = tokio::runtime::Runtime::new()?;
    let token = tokio_util::sync::CancellationToken::new();
    let registered = runtime.block_on(async {
        let socket = sockets::Listening::bind(&folder.join("endless.sock"))?;
        let routes = Routes::new(DevicePluginServer::new(Endless));
        let serving = socket.serve(routes, token.child_token());
        let register = async {
            let mut registered = 0_u64;
            while target.until.goes_on() {
                let name = format!("attack.example/{}", registered % 1000);
                registered += u64::from(register(&folder, name).await.is_ok());
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            registered
        };
        anyhow::Ok(tokio::select! {
            served = serving => {
                served?;
                0
            }
            registered = register => registered,
        })
    });
    token.cancel();
    runtime.shutdown_background();
    std::fs::remove_file(folder.join("endless.sock"))?;
    registered
}

async fn register(folder: &Path, resource: String) -> anyhow::Result<()> {
    let within = Duration::from_secs(5);
    let channel = sockets::connect(&folder.join("kubelet.sock"), within).await?;
    let request = RegisterRequest {
        version: "v1beta1".to_owned(),
        endpoint: "endless.sock".to_owned(),
        resource_name: resource,
        options: None,
    };
    let mut client = RegistrationClient::new(channel);
    tokio::time::timeout(within, client.register(request)).await??;
    Ok(())
}

/// More connections to the node's sockets than anybody needs.
fn crowded_sockets(target: Target<'_>) -> anyhow::Result<u64> {
    let root = target.stage.root_dir();
    let sockets =
        [root.join("pod-resources/kubelet.sock"), target.stage.devices_dir().join("kubelet.sock")];
    let mut held = Vec::new();
    let mut opened = 0;
    while target.until.goes_on() {
        while held.len() < 4000 && target.until.goes_on() {
            for socket in &sockets {
                // A full queue of the kernel's is no error of the agent's.
                match UnixStream::connect(socket) {
                    Ok(stream) => held.push(stream),
                    Err(_) => target.until.pause(Duration::from_millis(10)),
                }
            }
            opened += 2;
        }
        target.until.pause(Duration::from_millis(500));
        held.clear();
    }
    Ok(opened)
}
