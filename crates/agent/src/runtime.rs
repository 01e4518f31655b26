//! The connection to the container runtime and what it says of itself at start.

use crate::settings;
use config::Config;
use cri::{ClientConfig, Endpoint, RuntimeClient, SlowCall};
use engine::cgroup::Driver;
use ports::{OnExit, Tasks};
use proto::cri_v1::CgroupDriver as RuntimeDriver;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use telemetry::metrics::{Desc, Kind, Registry};
use tokio::sync::watch;

/// The release with which a runtime that cannot tell its cgroup driver stops working.
const LAST_WITHOUT_CONFIG: &str = "1.37.0";
const LOSING_SUPPORT: Desc = Desc::alpha(
    "kubelet_cri_losing_support",
    "the Kubernetes version that the currently running CRI implementation will lose support on if not upgraded.",
)
.labels(&["version"]);
const SLOW_CALLS: Desc = Desc::alpha(
    "rubelet_runtime_slow_calls",
    "Calls to the container runtime that are under way and have used up a good part of their deadline.",
);
/// How often it is looked for calls that do not come back.
const SLOW_PERIOD: Duration = Duration::from_secs(10);
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
    #[error(transparent)]
    Config(Box<cri::CriError>),
    /// It named a driver that we do not know.
    #[error("runtime returned an unknown cgroup driver {0}")]
    UnknownDriver(i32),
}

/// Shows how many calls do not come back, or take long to.
pub(crate) fn measure_slow_calls(registry: &Registry, client: RuntimeClient) {
    registry.collector(move |scrape| {
        let slow = u32::try_from(client.slow_calls().len()).unwrap_or(u32::MAX);
        let family = scrape.family(&SLOW_CALLS, Kind::Gauge);
        family.push_values(&[], &[], f64::from(slow).into(), None);
    });
}

/// The names of calls that do not come back, for the node's condition; nothing if nobody opted in.
pub(crate) fn slow_calls(
    config: &Config,
    client: &RuntimeClient,
    tasks: &Tasks,
) -> watch::Receiver<Option<Vec<String>>> {
    let wanted = config.opt_ins.runtime_condition;
    let (out, slow) = watch::channel(wanted.then(Vec::new));
    if wanted {
        let (client, cancel) = (client.clone(), tasks.token());
        tasks.spawn("slow-calls", OnExit::Fine, async move {
            let mut ticks = tokio::time::interval(SLOW_PERIOD);
            // Nothing is lost when it is cut off.
            while cancel.run_until_cancelled(ticks.tick()).await.is_some() {
                let names = names(&client.slow_calls());
                out.send_if_modified(|known| {
                    let changed = known.as_ref() != Some(&names);
                    *known = Some(names);
                    changed
                });
            }
        });
    }
    slow
}

/// Each name once, with how often where that is more.
fn names(slow: &[SlowCall]) -> Vec<String> {
    let mut times: BTreeMap<&str, usize> = BTreeMap::new();
    for call in slow {
        *times.entry(call.call.name()).or_default() += 1;
    }
    let text = |(name, times): (&str, usize)| match times {
        1 => name.to_owned(),
        _ => format!("{name} ({times} times)"),
    };
    times.into_iter().map(text).collect()
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
        list_streaming: settings::lists_are_streamed(config),
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

    #[test]
    fn slow_calls_are_named_once_each() {
        let slow = |call| SlowCall { call, running: Duration::ZERO, deadline: Duration::ZERO };
        let calls = [cri::Call::StopContainer, cri::Call::Status, cri::Call::StopContainer];
        assert_eq!(names(&calls.map(slow)), ["Status", "StopContainer (2 times)"]);
    }
}
