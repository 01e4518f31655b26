//! Upkeep of what pods leave on the machine: image collection and log rotation; and what pods need of
//! it: user ids. And of our own memory.

use crate::AgentError;
use config::Config;
use cri::RuntimeClient;
use engine::image::gc::GcPolicy;
use images::{ImageGc, Images};
use jiff::SignedDuration;
use pods::logs::{LogRotation, LogRotationConfig};
use pods::{UsernsConfig, host_ids};
use ports::{Clock, OnExit, Roots, Tasks};
use std::sync::Arc;
use std::time::Duration;
use telemetry::Chain;
use telemetry::metrics::Registry;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// The ids of pods with their own users.
pub(crate) fn user_namespaces(config: &Config, roots: &Roots) -> Result<UsernsConfig, AgentError> {
    let ids_per_pod = config.pods.user_ids_per_pod;
    let ids = host_ids(&roots.etc.join("passwd"), ids_per_pod).map_err(pods::PodsError::from)?;
    Ok(UsernsConfig { ids_per_pod, ids, max_pods: config.pods.max_pods })
}

/// Starts both loops; gives the collector of images, which eviction may hurry.
pub(crate) fn start(
    config: &Config,
    images: &Images,
    client: &RuntimeClient,
    clock: &Arc<dyn Clock>,
    metrics: &Registry,
    tasks: &Tasks,
) -> Result<Arc<ImageGc>, AgentError> {
    let gc = &config.image_gc;
    let signed = |d: Duration| SignedDuration::try_from(d).unwrap_or(SignedDuration::MAX);
    let policy = GcPolicy {
        high_percent: gc.high_threshold_percent.into(),
        low_percent: gc.low_threshold_percent.into(),
        min_age: signed(gc.minimum_age),
        max_age: gc.maximum_age.map_or(SignedDuration::ZERO, signed),
    };
    let collector = Arc::new(images.collector(policy, Arc::new(client.clone())));
    let (stop, running) = (tasks.token(), Arc::clone(&collector));
    tasks.spawn_anew("image collection", move || {
        let (stop, running) = (stop.clone(), Arc::clone(&running));
        async move { running.run(stop).await }
    });

    let logs = &config.container_logs;
    let rotation = LogRotation::new(
        LogRotationConfig {
            max_size: logs.max_bytes,
            max_files: usize::try_from(logs.max_files).unwrap_or(usize::MAX),
            workers: usize::try_from(logs.max_workers).unwrap_or(1),
            interval: logs.monitor_interval,
        },
        Arc::new(client.clone()),
        Arc::clone(clock),
        metrics,
    )?;
    tasks.spawn("log rotation", OnExit::Fine, rotation.run(tasks.token()));
    let stop = tasks.token();
    tasks.spawn_anew("memory", move || give_memory_back(stop.clone()));
    Ok(collector)
}

/// How often free memory is given back: pods come in crowds, and what a crowd needed is not needed
/// when it has settled.
const TRIM_PERIOD: Duration = Duration::from_secs(10);

/// Processor time in one period after which much code has been called that may not be needed again.
const BUSY: Duration = Duration::from_millis(200);

async fn give_memory_back(stop: CancellationToken) {
    let mut ticks = tokio::time::interval_at(Instant::now() + TRIM_PERIOD, TRIM_PERIOD);
    // The start itself calls most of what there is.
    let mut spent: Option<Duration> = None;
    loop {
        tokio::select! {
            () = stop.cancelled() => return, // cancel-safe: a token
            _ = ticks.tick() => {} // cancel-safe: a tick that is missed comes again
        }
        let now = sys::process::cpu_time();
        let unmap = spent.replace(now).is_none_or(|before| now.saturating_sub(before) >= BUSY);
        let work = move || {
            sys::heap::trim();
            if unmap { sys::text::unmap_clean().map(|_bytes| ()) } else { Ok(()) }
        };
        match sys::blocking::run(work).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(err = %Chain(&error), "own pages are not unmapped"),
            Err(_) => return,
        }
    }
}
