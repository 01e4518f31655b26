//! Health of devices, from the drivers' `WatchResources` streams.

use super::Claims;
use super::drivers::Instance;
use crate::lock;
use api::ids::PodUid;
use engine::claims::health::{DeviceHealth, FILE};
use proto::dra_health_v1alpha1 as wire;
use proto::dra_health_v1alpha1::HealthStatus;
use proto::dra_health_v1alpha1::dra_resource_health_client::DraResourceHealthClient;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

const AGAIN: Duration = Duration::from_secs(5);
/// Reports of one driver that are accepted per second, after a burst of [`BURST`].
const REPORTS: f64 = 2.0;
const BURST: f64 = 20.0;

impl Claims {
    /// Listens to an instance for as long as it is registered.
    pub(super) async fn watch_health(self, instance: Arc<Instance>) {
        loop {
            tokio::select! {
                () = instance.token.cancelled() => break, // cancel-safe: reported health is dropped below
                () = self.listen(&instance) => {} // cancel-safe: as above
            }
            tokio::select! {
                () = instance.token.cancelled() => break, // cancel-safe: a token
                () = tokio::time::sleep(AGAIN) => {} // cancel-safe: a pause
            }
        }
        self.forget_health(&instance.driver).await;
    }

    async fn listen(&self, instance: &Instance) {
        let request = wire::NodeWatchResourcesRequest {};
        let asked = async {
            let channel = instance.link.channel().await?;
            DraResourceHealthClient::new(channel).node_watch_resources(request).await
        };
        let mut reports = match asked.await {
            Ok(reports) => reports.into_inner(),
            Err(status) => {
                tracing::debug!(err = %status, driver = instance.driver, "Failed to establish WatchResources stream, will retry");
                return;
            }
        };
        let pace = sockets::RateLimit::new(REPORTS, BURST);
        let why = loop {
            pace.turn().await;
            match reports.message().await {
                Ok(Some(report)) => self.reported(&instance.driver, report).await,
                Ok(None) => break "EOF".to_owned(),
                Err(status) => break status.to_string(),
            }
        };
        tracing::info!(
            driver = instance.driver,
            err = why,
            "WatchResources health stream has ended"
        );
        self.forget_health(&instance.driver).await;
    }

    async fn reported(&self, driver: &str, report: wire::NodeWatchResourcesResponse) {
        let now = self.inner.deps.clock.now();
        let one = |device: wire::DeviceHealth| {
            let health = match device.health() {
                HealthStatus::Healthy => "Healthy",
                HealthStatus::Unhealthy => "Unhealthy",
                HealthStatus::Unknown => "Unknown",
            };
            let id = device.device.clone().unwrap_or_default();
            let holds = device.health_check_timeout_seconds;
            let place = (id.pool_name.as_str(), id.device_name.as_str());
            DeviceHealth::reported(place, health, holds, &device.message, now)
        };
        let devices = report.devices.into_iter().map(one).collect();
        let changed = lock(&self.inner.health).report(driver, devices, now);
        if changed.is_empty() {
            return;
        }
        self.save_health().await;
        let users = |(pool, device): &(String, String)| {
            self.state(|state| state.users_of(driver, pool, device))
        };
        let touched: BTreeSet<String> = changed.iter().flat_map(users).collect();
        for uid in touched {
            if self.inner.touched.try_send(PodUid::from(uid.as_str())).is_err() {
                tracing::error!(
                    podUID = uid,
                    "DRA health update channel is full, discarding pod update notification"
                );
            }
        }
    }

    async fn forget_health(&self, driver: &str) {
        lock(&self.inner.health).forget(driver);
        self.save_health().await;
    }

    async fn save_health(&self) {
        let inner = Arc::clone(&self.inner);
        let written = sys::blocking::run(move || {
            let _one_at_a_time = lock(&inner.file);
            let text = units::gojson::to_string(&*lock(&inner.health));
            let text = text.map_err(|error| error.to_string())?;
            let path = inner.config.dir.join(FILE);
            sys::fs::write_atomic(path, text, 0o600).map_err(|error| error.source.to_string())
        });
        let written = written.await.map_err(|error| error.to_string()).and_then(|result| result);
        if let Err(err) = written {
            tracing::error!(
                err,
                "Failed to save health checkpoint after update. Kubelet restart may lose the device health information."
            );
        }
    }
}
