//! The connection to the container runtime and what it says of itself at start.

use config::Config;
use cri::{ClientConfig, Endpoint, RuntimeClient};
use engine::cgroup::Driver;
use proto::cri_v1::CgroupDriver as RuntimeDriver;
use std::sync::Arc;
use std::time::Duration;
use telemetry::metrics::{Desc, Registry};

/// The release with which a runtime that cannot tell its cgroup driver stops working.
const LAST_WITHOUT_CONFIG: &str = "1.37.0";
const LOSING_SUPPORT: Desc = Desc::alpha(
    "kubelet_cri_losing_support",
    "the Kubernetes version that the currently running CRI implementation will lose support on if not upgraded.",
)
.labels(&["version"]);
const DRIVER_TRIES: u32 = 3;
const DRIVER_PAUSE: Duration = Duration::from_secs(2);

/// Why there is no runtime to work with.
#[derive(Debug, thiserror::Error)]
pub enum RuntimeError {
    /// The endpoint cannot be dialled at all.
    #[error(transparent)]
    Endpoint(#[from] cri::EndpointError),
    /// It does not speak CRI v1.
    #[error(transparent)]
    Validate(#[from] cri::ValidateError),
    /// It did not tell its cgroup driver.
    #[error("failed to get runtime configuration")]
    Config(#[source] Box<cri::CriError>),
    /// It named a driver that we do not know.
    #[error("runtime returned an unknown cgroup driver {0}")]
    UnknownDriver(i32),
}

/// Connects and checks both services.
pub(crate) async fn connect(
    config: &Config,
    observer: Arc<dyn cri::CallObserver>,
) -> Result<RuntimeClient, RuntimeError> {
    let endpoint = Endpoint::parse(&config.runtime.endpoint)?;
    let image = match config.runtime.image_endpoint.as_str() {
        "" => Ok(None),
        text => Endpoint::parse(text).map(Some),
    };
    let client_config = ClientConfig {
        request_timeout: config.runtime.request_timeout,
        list_streaming: config.gates.enabled("CRIListStreaming"),
        observer,
    };
    // The runtime comes first: a bad image endpoint is told once the runtime has answered.
    let known = image.as_ref().ok().and_then(Option::as_ref);
    let client = RuntimeClient::new(client_config, &endpoint, known);
    client.validate().await?;
    image?;
    Ok(client)
}

/// The cgroup driver: the runtime's where it says one, else the configured one.
pub(crate) async fn cgroup_driver(
    client: &RuntimeClient,
    configured: Driver,
    registry: &Registry,
) -> Result<Driver, RuntimeError> {
    let mut tries = 0;
    let answer = loop {
        tries += 1;
        match client.runtime_config().await {
            Ok(answer) => break answer,
            Err(error) if error.is_unimplemented() => {
                tracing::info!(
                    "CRI implementation should be updated to support RuntimeConfig. Falling back to using cgroupDriver from kubelet config."
                );
                tell_outdated(registry);
                return Ok(configured);
            }
            Err(error) if tries >= DRIVER_TRIES => {
                return Err(RuntimeError::Config(Box::new(error)));
            }
            Err(error) => {
                tracing::error!(err = %error, "Failed to get runtime config");
                tokio::time::sleep(DRIVER_PAUSE).await;
            }
        }
    };
    let Some(linux) = answer.linux else { return Ok(configured) };
    match RuntimeDriver::try_from(linux.cgroup_driver) {
        Ok(RuntimeDriver::Systemd) => Ok(Driver::Systemd),
        Ok(RuntimeDriver::Cgroupfs) => Ok(Driver::Cgroupfs),
        Err(_) => Err(RuntimeError::UnknownDriver(linux.cgroup_driver)),
    }
}

/// Shows until which release the runtime will do; the family is there for such a runtime alone.
fn tell_outdated(registry: &Registry) {
    registry.gauge(LOSING_SUPPORT).set(&[LAST_WITHOUT_CONFIG], 1.0);
}

/// Whether user namespaces work together with the host's network; a runtime that does not answer
/// cannot do it.
pub(crate) async fn user_namespaces_on_host_network(client: &RuntimeClient) -> bool {
    let status = client.status(false).await;
    status.is_ok_and(|s| s.features.is_some_and(|f| f.user_namespaces_host_network))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outdated_runtime_shows_until_when_it_is_supported() {
        let registry = Registry::new();
        assert!(!registry.render().contains("kubelet_cri_losing_support"));
        tell_outdated(&registry);
        let page = registry.render();
        assert!(page.contains("kubelet_cri_losing_support{version=\"1.37.0\"} 1\n"), "{page}");
    }
}
