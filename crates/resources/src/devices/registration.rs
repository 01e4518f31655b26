//! Registration of plugins: by a call to the kubelet's socket, or by a socket in the plugin folder.

use super::Devices;
use crate::lock;
use async_trait::async_trait;
use engine::devices::is_extended_resource;
use ports::{PluginHandler, PluginInfo};
use proto::device_plugin_v1beta1::registration_server::{Registration, RegistrationServer};
use proto::device_plugin_v1beta1::{Empty, RegisterRequest};
use std::path::{Path, PathBuf};
use tonic::service::Routes;
use tonic::{Request, Response, Status};
use units::strconv::quote;

/// Name of the kubelet's socket.
pub(super) const SOCKET: &str = "kubelet.sock";
const VERSION: &str = "v1beta1";

impl Devices {
    /// Serves registrations until the agent ends.
    pub(super) async fn serve(self, socket: sockets::Listening) {
        let routes = Routes::new(RegistrationServer::new(self.clone()));
        let token = self.inner.deps.tasks.token();
        if let Err(error) = socket.serve(routes, token).await {
            tracing::error!(err = %error, "Error while serving device plugin registration grpc server");
            let text = format!(
                "device registration error: device plugin registration gRPC server failed and no \
                 device plugins can register: {error}"
            );
            *lock(&self.inner.fault) = Some(text);
        }
    }

    async fn register_request(&self, request: RegisterRequest) -> Result<(), String> {
        let resource = request.resource_name.as_str();
        self.inner.deps.metrics.registrations.inc(&[resource]);
        if request.version != VERSION {
            return Err(format!(
                "requested API version {} is not supported by kubelet. Supported version is [{VERSION:?}]",
                quote(&request.version)
            ));
        }
        if !is_extended_resource(resource) {
            return Err(format!("the ResourceName {} is invalid", quote(resource)));
        }
        self.connect(resource, &socket_of(&self.inner.config.dir, &request.endpoint)).await
    }
}

/// The path of a plugin's endpoint: always within the folder, as Go's `path.Join`.
fn socket_of(dir: &Path, endpoint: &str) -> PathBuf {
    dir.join(endpoint.trim_start_matches('/'))
}

#[async_trait]
impl Registration for Devices {
    async fn register(&self, request: Request<RegisterRequest>) -> Result<Response<Empty>, Status> {
        let request = request.into_inner();
        let resource = request.resource_name.clone();
        tracing::info!(
            resourceName = resource,
            "Got registration request from device plugin with resource"
        );
        match self.register_request(request).await {
            Ok(()) => Ok(Response::new(Empty {})),
            Err(err) => {
                tracing::error!(
                    err,
                    resourceName = resource,
                    "Bad registration request from device plugin with resource"
                );
                Err(Status::unknown(err))
            }
        }
    }
}

#[async_trait]
impl PluginHandler for Devices {
    async fn validate(&self, plugin: &PluginInfo) -> Result<(), String> {
        if !plugin.versions.iter().any(|version| version == VERSION) {
            return Err(format!(
                "manager version, {VERSION}, is not among plugin supported versions [{}]",
                plugin.versions.join(" ")
            ));
        }
        if !is_extended_resource(&plugin.name) {
            return Err(format!(
                "invalid name of device plugin socket: the ResourceName {} is invalid",
                quote(&plugin.name)
            ));
        }
        Ok(())
    }

    async fn register(&self, plugin: &PluginInfo) -> Result<(), String> {
        self.connect(&plugin.name, &plugin.endpoint).await
    }

    async fn deregister(&self, plugin: &PluginInfo) {
        self.disconnect(&plugin.name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_is_in_the_folder_whatever_it_is_called() {
        let of = |endpoint| socket_of(Path::new("/plugins"), endpoint);
        assert_eq!(of("a.sock"), Path::new("/plugins/a.sock"));
        assert_eq!(of("/a.sock"), Path::new("/plugins/a.sock"));
        assert_eq!(of("/plugins/a.sock"), Path::new("/plugins/plugins/a.sock"));
    }
}
