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
/// Upstream waits for ever for options; a plugin that does not tell them is not used.
const OPTIONS: Duration = Duration::from_secs(60);

/// A plugin in use.
#[derive(Debug, Clone)]
pub(super) struct Plugin {
    pub(super) channel: Channel,
    /// Ends the task that listens to it.
    token: CancellationToken,
}

impl Devices {
    /// Connects to a plugin and listens to it from now on; the error is what the plugin is told.
    pub(super) async fn connect(&self, resource: &str, socket: &Path) -> Result<(), String> {
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
        self.book(|book| book.connected(resource, options));
        let before = lock(&self.inner.plugins).insert(resource.to_owned(), plugin.clone());
        if let Some(before) = before {
            before.token.cancel();
        }
        tracing::info!(resourceName = resource, "Device plugin connected");
        let task = self.clone().listen(resource.to_owned(), plugin);
        self.inner.deps.tasks.spawn("device-plugin", OnExit::Fine, task);
        Ok(())
    }

    /// A plugin's socket is gone.
    pub(super) fn disconnect(&self, resource: &str) {
        let plugin = lock(&self.inner.plugins).remove(resource);
        if let Some(plugin) = plugin {
            plugin.token.cancel();
            self.gone(resource);
        }
    }

    /// The plugin in use.
    pub(super) fn plugin(&self, resource: &str) -> Option<DevicePluginClient<Channel>> {
        let plugins = lock(&self.inner.plugins);
        plugins.get(resource).map(|plugin| DevicePluginClient::new(plugin.channel.clone()))
    }

    async fn listen(self, resource: String, plugin: Plugin) {
        let told = self.follow(&resource, plugin.channel.clone());
        let error = tokio::select! {
            () = plugin.token.cancelled() => return, // cancel-safe: whoever cancelled has booked it
            error = told => error, // cancel-safe: a stream that ends with the connection
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

    /// Takes in every list until the stream ends; returns why it did.
    async fn follow(&self, resource: &str, channel: Channel) -> String {
        let mut client = DevicePluginClient::new(channel);
        let mut lists = match client.list_and_watch(Empty {}).await {
            Ok(lists) => lists.into_inner(),
            Err(status) => return go_error(&status),
        };
        loop {
            match lists.message().await {
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
        let touched = self.book(|book| book.listed(resource, devices));
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
        self.book(|book| book.disconnected(resource, now));
        self.refresh();
        self.inner.stopped.notify_one();
        tracing::info!(resourceName = resource, "Endpoint became unhealthy");
    }
}

fn device(device: wire::Device) -> Device {
    let nodes = device.topology.map(|t| t.nodes.into_iter().map(|node| node.id).collect());
    Device { healthy: device.health == "Healthy", id: device.id, nodes }
}
