//! Drivers: several instances of one may be registered during an update; the newest connected one is used.

use super::Claims;
use super::link::Link;
use crate::lock;
use async_trait::async_trait;
use ports::{OnExit, PluginHandler, PluginInfo};
use prost::Message;
use proto::dra_v1::dra_plugin_client::DraPluginClient;
use proto::dra_v1::{
    NodePrepareResourcesRequest, NodePrepareResourcesResponse, NodeUnprepareResourcesRequest,
    NodeUnprepareResourcesResponse,
};
use proto::dra_v1beta1 as beta;
use proto::dra_v1beta1::dra_plugin_client::DraPluginClient as BetaClient;
use sockets::{code_name, go_error};
use std::collections::BTreeMap;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::{Code, Response, Status};

const CALL: Duration = Duration::from_secs(45);
const FIRST_RETRY: Duration = Duration::from_secs(1);
const LAST_RETRY: Duration = Duration::from_secs(120);
/// Services in upstream's order.
const SERVICES: [(&str, Version); 2] =
    [("v1.DRAPlugin", Version::V1), ("v1beta1.DRAPlugin", Version::V1beta1)];

/// The API version that a driver serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    V1,
    V1beta1,
}

impl Version {
    fn method(self, name: &str) -> String {
        let version = match self {
            Self::V1 => "v1",
            Self::V1beta1 => "v1beta1",
        };
        format!("/k8s.io.kubelet.pkg.apis.dra.{version}.DRAPlugin/{name}")
    }
}

/// Instances by driver, oldest first.
#[derive(Debug, Default)]
pub(super) struct Drivers {
    instances: Mutex<BTreeMap<String, Vec<Arc<Instance>>>>,
    /// Cancels the pending deletion of a driver's slices.
    pub(super) wipes: Mutex<BTreeMap<String, CancellationToken>>,
}

/// One process of a driver.
#[derive(Debug)]
pub(super) struct Instance {
    pub(super) driver: String,
    pub(super) endpoint: PathBuf,
    version: Version,
    pub(super) link: Link,
    pub(super) token: CancellationToken,
}

impl Claims {
    /// The instance to use.
    pub(super) fn driver(&self, name: &str) -> Result<Arc<Instance>, String> {
        let instances = lock(&self.inner.drivers.instances);
        let all = instances.get(name).map(Vec::as_slice).unwrap_or_default();
        let connected = all.iter().rev().find(|instance| instance.link.is_up());
        let chosen = connected.or_else(|| all.last()).cloned();
        chosen.ok_or_else(|| format!("DRA driver {name} is not registered"))
    }

    fn is_usable(&self, name: &str) -> bool {
        let instances = lock(&self.inner.drivers.instances);
        instances.get(name).is_some_and(|all| all.iter().any(|instance| instance.link.is_up()))
    }

    fn add_driver(&self, plugin: &PluginInfo, version: Version) -> Result<(), String> {
        let instance = Arc::new(Instance {
            driver: plugin.name.clone(),
            endpoint: plugin.endpoint.clone(),
            version,
            link: Link::new(&plugin.endpoint),
            token: self.inner.deps.tasks.token().child_token(),
        });
        {
            let mut instances = lock(&self.inner.drivers.instances);
            let all = instances.entry(plugin.name.clone()).or_default();
            if all.iter().any(|known| known.endpoint == plugin.endpoint) {
                return Err(format!(
                    "endpoint {} already registered for DRA driver plugin {}",
                    plugin.endpoint.display(),
                    plugin.name
                ));
            }
            all.push(Arc::clone(&instance));
        }
        tracing::info!(driverName = plugin.name, endpoint = %plugin.endpoint.display(), "Registered DRA plugin");
        let tasks = &self.inner.deps.tasks;
        tasks.spawn("dra-driver", OnExit::Fine, self.clone().stay_connected(Arc::clone(&instance)));
        if self.inner.config.health {
            tasks.spawn("dra-health", OnExit::Fine, self.clone().watch_health(instance));
        }
        self.mind_slices(&plugin.name);
        Ok(())
    }

    fn remove_driver(&self, name: &str, endpoint: &Path) {
        {
            let mut instances = lock(&self.inner.drivers.instances);
            let Some(all) = instances.get_mut(name) else { return };
            all.retain(|instance| {
                let gone = instance.endpoint == endpoint;
                if gone {
                    instance.token.cancel();
                }
                !gone
            });
            if all.is_empty() {
                instances.remove(name);
            }
        }
        tracing::info!(driverName = name, endpoint = %endpoint.display(), "Unregistered DRA plugin");
        self.mind_slices(name);
    }

    /// Keeps a connection for as long as the instance is registered.
    async fn stay_connected(self, instance: Arc<Instance>) {
        let mut wait = FIRST_RETRY;
        loop {
            let once = instance.link.hold(|| self.mind_slices(&instance.driver));
            tokio::select! {
                () = instance.token.cancelled() => return, // cancel-safe: deregistration has recorded it
                was_connected = once => { // cancel-safe: a connection that is dropped is closed
                    wait = if was_connected { FIRST_RETRY } else { (wait * 2).min(LAST_RETRY) };
                }
            }
            tokio::select! {
                () = instance.token.cancelled() => return, // cancel-safe: a token
                () = instance.link.wanted() => {} // cancel-safe: a permit stays
                () = tokio::time::sleep(wait) => {} // cancel-safe: a pause
            }
        }
    }

    /// Schedules the deletion of a disconnected driver's slices; cancels it for one that is back.
    fn mind_slices(&self, driver: &str) {
        let mut wipes = lock(&self.inner.drivers.wipes);
        if self.is_usable(driver) {
            if let Some(waiting) = wipes.remove(driver) {
                waiting.cancel();
            }
        } else if !wipes.contains_key(driver) {
            let token = self.inner.deps.tasks.token().child_token();
            wipes.insert(driver.to_owned(), token.clone());
            drop(wipes);
            self.wipe_later(driver.to_owned(), token);
        }
    }

    /// Calls NodePrepareResources.
    pub(super) async fn prepare_rpc(
        &self,
        instance: &Instance,
        request: NodePrepareResourcesRequest,
    ) -> Result<NodePrepareResourcesResponse, String> {
        let method = instance.version.method("NodePrepareResources");
        let answer = async {
            let channel = instance.link.channel().await?;
            match instance.version {
                Version::V1 => DraPluginClient::new(channel).node_prepare_resources(request).await,
                Version::V1beta1 => {
                    let request: beta::NodePrepareResourcesRequest = reword(&request)?;
                    let answer = BetaClient::new(channel).node_prepare_resources(request).await?;
                    reword(&answer.into_inner()).map(Response::new)
                }
            }
        };
        let answer = self.timed(&instance.driver, &method, answer).await;
        answer.map_err(|status| format!("NodePrepareResources: {}", go_error(&status)))
    }

    /// Calls NodeUnprepareResources.
    pub(super) async fn unprepare_rpc(
        &self,
        instance: &Instance,
        request: NodeUnprepareResourcesRequest,
    ) -> Result<NodeUnprepareResourcesResponse, String> {
        let method = instance.version.method("NodeUnprepareResources");
        let answer = async {
            let channel = instance.link.channel().await?;
            match instance.version {
                Version::V1 => {
                    DraPluginClient::new(channel).node_unprepare_resources(request).await
                }
                Version::V1beta1 => {
                    let request: beta::NodeUnprepareResourcesRequest = reword(&request)?;
                    let answer = BetaClient::new(channel).node_unprepare_resources(request).await?;
                    reword(&answer.into_inner()).map(Response::new)
                }
            }
        };
        let answer = self.timed(&instance.driver, &method, answer).await;
        answer.map_err(|status| format!("NodeUnprepareResources: {}", go_error(&status)))
    }

    async fn timed<T>(
        &self,
        driver: &str,
        method: &str,
        call: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<T, Status> {
        let began = Instant::now();
        let answer = match tokio::time::timeout(CALL, call).await {
            Ok(answer) => answer.map(Response::into_inner),
            Err(_) => Err(Status::deadline_exceeded("context deadline exceeded")),
        };
        let code = answer.as_ref().map_or_else(Status::code, |_| Code::Ok);
        let labels = [driver, method, code_name(code)];
        self.inner.deps.metrics.calls.observe_duration(&labels, began.elapsed());
        answer
    }
}

/// Converts a message to another API version's type: both have the same wire format.
fn reword<T: Message + Default>(message: &impl Message) -> Result<T, Status> {
    let bytes = message.encode_to_vec();
    T::decode(bytes.as_slice()).map_err(|error| Status::internal(error.to_string()))
}

fn service_of(plugin: &PluginInfo) -> Result<Version, String> {
    let quoted = |list: &mut dyn Iterator<Item = &str>| {
        let list: Vec<String> = list.map(units::strconv::quote).collect();
        format!("[{}]", list.join(" "))
    };
    let why = if plugin.versions.is_empty() {
        "empty list of supported gRPC services (aka supported versions)".to_owned()
    } else {
        let known = |service: &String| SERVICES.iter().find(|(name, _)| name == service);
        if let Some((_, version)) = plugin.versions.iter().find_map(known) {
            return Ok(*version);
        }
        format!(
            "none of services supported by the plugin ({}) are supported by the kubelet ({})",
            quoted(&mut plugin.versions.iter().map(String::as_str)),
            quoted(&mut SERVICES.iter().map(|(name, _)| *name))
        )
    };
    Err(format!(
        "invalid supported gRPC versions of DRA driver plugin {} at endpoint {}: {why}",
        plugin.name,
        plugin.endpoint.display()
    ))
}

#[async_trait]
impl PluginHandler for Claims {
    async fn validate(&self, plugin: &PluginInfo) -> Result<(), String> {
        service_of(plugin).map(drop)
    }

    async fn register(&self, plugin: &PluginInfo) -> Result<(), String> {
        self.add_driver(plugin, service_of(plugin)?)
    }

    async fn deregister(&self, plugin: &PluginInfo) {
        self.remove_driver(&plugin.name, &plugin.endpoint);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plugin(versions: &[&str]) -> PluginInfo {
        PluginInfo {
            name: "d".to_owned(),
            endpoint: "/d.sock".into(),
            versions: versions.iter().map(|version| (*version).to_owned()).collect(),
        }
    }

    #[test]
    fn the_first_service_that_is_known_is_spoken() {
        assert_eq!(service_of(&plugin(&["v9", "v1beta1.DRAPlugin"])), Ok(Version::V1beta1));
        assert_eq!(service_of(&plugin(&["v1.DRAPlugin"])), Ok(Version::V1));
        assert_eq!(
            service_of(&plugin(&["v9"])).unwrap_err(),
            "invalid supported gRPC versions of DRA driver plugin d at endpoint /d.sock: none of \
             services supported by the plugin ([\"v9\"]) are supported by the kubelet \
             ([\"v1.DRAPlugin\" \"v1beta1.DRAPlugin\"])"
        );
        let none = service_of(&plugin(&[])).unwrap_err();
        assert!(none.ends_with("empty list of supported gRPC services (aka supported versions)"));
    }

    #[test]
    fn both_versions_have_the_same_form() {
        let claim = proto::dra_v1::Claim {
            namespace: "ns".to_owned(),
            uid: "u".to_owned(),
            name: "c".to_owned(),
        };
        let request = NodePrepareResourcesRequest { claims: vec![claim] };
        let other: beta::NodePrepareResourcesRequest = reword(&request).unwrap();
        assert_eq!(reword::<NodePrepareResourcesRequest>(&other).unwrap(), request);
    }
}
