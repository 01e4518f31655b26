//! Pods from a URL (`staticPodURL`).
//!
//! Promises: a failed fetch keeps the pods of the last good one; the body is bounded; an unchanged
//! body costs nothing; the first four failures in a row are told, the rest at debug level only, and
//! then the success.

use super::SourceReport;
use super::manifest::{self, MAX_MANIFEST_BYTES, Manifest};
use super::statics::{Origin, StaticPods};
use probes::http::{HttpClient, HttpFetch};
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

const TIMEOUT: Duration = Duration::from_secs(10);

/// Where and how often to fetch.
#[derive(Debug, Clone)]
pub struct UrlSourceConfig {
    /// The URL.
    pub url: String,
    /// Headers to send, every value of each.
    pub headers: Vec<(String, String)>,
    /// How often (`httpCheckFrequency`).
    pub period: Duration,
}

#[derive(Debug, thiserror::Error)]
enum FetchError {
    #[error("{0}")]
    Transport(String),
    #[error("{url}: {}", shown(*status))]
    Status { url: String, status: u16 },
    #[error("zero-length data received from {0}")]
    Empty(String),
    #[error("{0}")]
    Manifest(String),
}

/// A status with its name.
fn shown(status: u16) -> String {
    let named = hyper::StatusCode::from_u16(status).ok();
    let name = named.and_then(|status| status.canonical_reason()).unwrap_or_default();
    format!("{status} {name}")
}

/// The URL source's task.
#[derive(Debug)]
pub(crate) struct UrlSource {
    config: UrlSourceConfig,
    statics: StaticPods,
    report: SourceReport,
    last_body: Vec<u8>,
    failures: u32,
    client: HttpClient,
}

impl UrlSource {
    pub(crate) fn new(
        config: UrlSourceConfig,
        statics: StaticPods,
        report: SourceReport,
        client: HttpClient,
    ) -> Self {
        Self { config, statics, report, last_body: Vec::new(), failures: 0, client }
    }

    pub(crate) async fn run(mut self, cancel: CancellationToken) {
        let mut period = tokio::time::interval(self.config.period);
        period.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = cancel.cancelled() => return, // cancel-safe: a token
                _ = period.tick() => {} // cancel-safe: documented by tokio
            }
            match self.look().await {
                Ok(()) if self.failures > 0 => {
                    tracing::info!("Successfully read pods from URL");
                    self.failures = 0;
                }
                Ok(()) => {}
                Err(error) => self.tell(&error),
            }
        }
    }

    fn tell(&mut self, error: &FetchError) {
        match self.failures {
            0..3 => tracing::info!(err = %error, "Failed to read pods from URL"),
            3 => tracing::info!(err = %error,
                "Failed to read pods from URL. Dropping verbosity of this message to V(4)"),
            _ => tracing::debug!(err = %error, "Failed to read pods from URL"),
        }
        self.failures = self.failures.saturating_add(1);
    }

    async fn look(&mut self) -> Result<(), FetchError> {
        let fetch = HttpFetch {
            url: self.config.url.clone(),
            headers: self.config.headers.clone(),
            max_body: MAX_MANIFEST_BYTES,
        };
        let answer = tokio::time::timeout(TIMEOUT, self.client.fetch(fetch))
            .await
            .map_err(|_| FetchError::Transport("timed out after 10s".to_owned()))?
            .map_err(|e| FetchError::Transport(e.to_string()))?;
        if answer.status != 200 {
            let (url, status) = (self.config.url.clone(), answer.status);
            return Err(FetchError::Status { url, status });
        }
        if answer.body.is_empty() {
            self.report.deliver(Vec::new()).await;
            return Err(FetchError::Empty(self.config.url.clone()));
        }
        if answer.body == self.last_body {
            return Ok(());
        }
        self.last_body = answer.body;
        let read = manifest::decode_pods(&self.last_body)
            .map_err(|e| FetchError::Manifest(e.to_string()))?;
        let url = &self.config.url;
        let (pods, origin) = match read {
            Manifest::Pod(pod) => (vec![*pod], Origin::Url(url)),
            Manifest::List(pods) => (pods, Origin::UrlList(url)),
        };
        let prepared = pods
            .into_iter()
            .map(|pod| self.statics.prepare(pod, origin).map(Arc::new))
            .collect::<Result<Vec<_>, _>>()
            .map_err(|e| FetchError::Manifest(e.to_string()))?;
        self.report.deliver(prepared).await;
        Ok(())
    }
}
