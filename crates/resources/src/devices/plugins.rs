//! Connections to plugins and what they report.

use super::Devices;
use crate::lock;
use api::ids::PodUid;
use engine::devices::{Device, PluginOptions};
use ports::OnExit;
use proto::device_plugin_v1beta1::device_plugin_client::DevicePluginClient;
use proto::device_plugin_v1beta1::{self as wire, Empty};
use sockets::go_error;
use std::path::Path;
use std::time::Duration;
use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;

const DIAL: Duration = Duration::from_secs(10);
/// Timeout of GetDevicePluginOptions; a plugin that does not answer is not used. Upstream has none.
const OPTIONS: Duration = Duration::from_secs(60);

/// Limit of registered resources; each costs a connection and a task.
const MOST_PLUGINS: usize = 256;
/// Limit of devices of one resource; each is held in memory, and all of them are scanned for every pod.
const MOST_DEVICES: usize = 65_536;
/// Lists of one plugin that are accepted per second, after a burst of [`BURST`]: each is written to the checkpoint
/// and updates the node's status.
const LISTS: f64 = 2.0;
const BURST: f64 = 20.0;

/// A registered plugin.
#[derive(Debug, Clone)]
pub(super) struct Plugin {
    pub(super) channel: Channel,
    /// Ends the task that follows its ListAndWatch stream.
    token: CancellationToken,
}

impl Devices {
    /// Connects to a plugin and follows its ListAndWatch stream; the error is returned to the plugin.
    pub(super) async fn connect(&self, resource: &str, socket: &Path) -> Result<(), String> {
        if !self.has_room_for(resource) {
            return Err(format!("there are {MOST_PLUGINS} device plugins already"));
        }
        let channel = sockets::connect(socket, DIAL)
            .await
            .map_err(|error| format!("failed to dial device plugin: {error}"))?;
        let mut client = DevicePluginClient::new(channel.clone());
        let asked = tokio::time::timeout(OPTIONS, client.get_device_plugin_options(Empty {})).await;
        let failed = |text: String| format!("failed to get device plugin options: {text}");
        let options = match asked {
            Ok(Ok(options)) => options.into_inner(),
            Ok(Err(status)) => return Err(failed(go_error(&status))),
            Err(_) => return Err(failed("context deadline exceeded".to_owned())),
        };
        let options = PluginOptions {
            pre_start: options.pre_start_required,
            preferred: options.get_preferred_allocation_available,
        };
        let token = self.inner.deps.tasks.token().child_token();
        let plugin = Plugin { channel, token: token.clone() };
        self.state(|state| state.connected(resource, options));
        let before = lock(&self.inner.plugins).insert(resource.to_owned(), plugin.clone());
        if let Some(before) = before {
            before.token.cancel();
        }
        tracing::info!(resourceName = resource, "Device plugin connected");
        let task = self.clone().listen(resource.to_owned(), plugin);
        self.inner.deps.tasks.spawn("device-plugin", OnExit::Fine, task);
        Ok(())
    }

    /// Whether a resource has a plugin already, or [`MOST_PLUGINS`] is not reached.
    fn has_room_for(&self, resource: &str) -> bool {
        let plugins = lock(&self.inner.plugins);
        plugins.len() < MOST_PLUGINS || plugins.contains_key(resource)
    }

    /// A plugin's socket is gone.
    pub(super) fn disconnect(&self, resource: &str) {
        let plugin = lock(&self.inner.plugins).remove(resource);
        if let Some(plugin) = plugin {
            plugin.token.cancel();
            self.gone(resource);
        }
    }

    /// A client of the resource's plugin.
    pub(super) fn plugin(&self, resource: &str) -> Option<DevicePluginClient<Channel>> {
        let plugins = lock(&self.inner.plugins);
        plugins.get(resource).map(|plugin| DevicePluginClient::new(plugin.channel.clone()))
    }

    async fn listen(self, resource: String, plugin: Plugin) {
        let stream_end = self.follow(&resource, plugin.channel.clone());
        let error = tokio::select! {
            () = plugin.token.cancelled() => return, // cancel-safe: the canceller has recorded it
            error = stream_end => error, // cancel-safe: a stream that ends with the connection
        };
        tracing::error!(err = error, resource, "ListAndWatch ended unexpectedly for device plugin");
        let still_used = {
            let mut plugins = lock(&self.inner.plugins);
            let cancelled = plugin.token.is_cancelled();
            if !cancelled {
                plugins.remove(&resource);
            }
            !cancelled
        };
        if still_used {
            self.gone(&resource);
        }
    }

    /// Processes every list until the stream ends; returns why it ended.
    async fn follow(&self, resource: &str, channel: Channel) -> String {
        let mut client = DevicePluginClient::new(channel);
        let mut lists = match client.list_and_watch(Empty {}).await {
            Ok(lists) => lists.into_inner(),
            Err(status) => return go_error(&status),
        };
        let pace = sockets::RateLimit::new(LISTS, BURST);
        loop {
            pace.turn().await;
            match lists.message().await {
                Ok(Some(list)) if list.devices.len() > MOST_DEVICES => {
                    return format!("{} devices, more than {MOST_DEVICES}", list.devices.len());
                }
                Ok(Some(list)) => self.listed(resource, list.devices).await,
                Ok(None) => return "EOF".to_owned(),
                Err(status) => return go_error(&status),
            }
        }
    }

    async fn listed(&self, resource: &str, devices: Vec<wire::Device>) {
        let devices: Vec<Device> = devices.into_iter().map(device).collect();
        let healthy = devices.iter().filter(|device| device.healthy).count();
        let total = devices.len();
        let touched = self.state(|state| state.listed(resource, devices));
        if self.inner.config.health_status {
            for uid in touched {
                if self.inner.touched.try_send(PodUid::from(uid.as_str())).is_err() {
                    tracing::error!(podUID = uid, "device update channel is full");
                }
            }
        }
        if let Err(err) = self.save().await {
            tracing::error!(err, "Writing checkpoint encountered");
        }
        self.refresh();
        tracing::info!(
            resourceName = resource,
            totalCount = total,
            healthyCount = healthy,
            "Processed device updates for resource"
        );
    }

    fn gone(&self, resource: &str) {
        let now = self.now();
        self.state(|state| state.disconnected(resource, now));
        self.refresh();
        self.inner.stopped.notify_one();
        tracing::info!(resourceName = resource, "Endpoint became unhealthy");
    }
}

fn device(device: wire::Device) -> Device {
    let nodes = device.topology.map(|t| t.nodes.into_iter().map(|node| node.id).collect());
    Device { healthy: device.health == "Healthy", id: device.id, nodes }
}
