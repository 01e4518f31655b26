//! Pods from a URL (`staticPodURL`).
//!
//! Promises: a failed fetch keeps the pods of the last good one; the body is bounded; an unchanged
//! body costs nothing; the first four failures in a row are logged, the rest at debug level.

use super::SourceReport;
use super::manifest::{self, MAX_MANIFEST_BYTES};
use super::statics::{Origin, StaticPods};
use crate::probe_client::http::{HttpClient, HttpFetch};
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
    #[error("unexpected status {0}")]
    Status(u16),
    #[error("body is empty")]
    Empty,
    #[error("{0}")]
    Manifest(String),
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
                Ok(()) => self.failures = 0,
                Err(error) => {
                    self.failures = self.failures.saturating_add(1);
                    let url = &self.config.url;
                    if self.failures <= 4 {
                        tracing::error!(url, err = %error, "cannot read pods from URL");
                    } else {
                        tracing::debug!(url, err = %error, "cannot read pods from URL");
                    }
                }
            }
        }
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
            return Err(FetchError::Status(answer.status));
        }
        if answer.body.is_empty() {
            self.report.deliver(Vec::new()).await;
            return Err(FetchError::Empty);
        }
        if answer.body == self.last_body {
            return Ok(());
        }
        self.last_body = answer.body;
        let pods = manifest::decode_pods(&self.last_body)
            .map_err(|e| FetchError::Manifest(e.to_string()))?;
        let prepared = pods
            .into_iter()
            .map(|pod| self.statics.prepare(pod, Origin::Url(&self.config.url)).map(Arc::new))
            .collect::<Result<Vec<_>, _>>()
            .map_err(|e| FetchError::Manifest(e.to_string()))?;
        self.report.deliver(prepared).await;
        Ok(())
    }
}
