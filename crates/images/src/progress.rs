//! How far pulls are: asked of the runtime when somebody wants to know, and told in events for those who
//! opted in.

use super::ensure::Inner;
use super::pull::PullProgress;
use cri::RuntimeClient;
use engine::image::progress::{
    Intake, LARGEST_MANIFEST, Part, PullBytes, is_manifest_of, parts, progress, taken_in,
};
use engine::image::reference;
use jiff::Timestamp;
use ports::EnsureImage;
use ports::EventSeverity;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::time::Duration;
use tokio::time::Instant;
use units::strconv::quote;

/// Whoever asks does not wait longer.
const LIMIT: Duration = Duration::from_secs(3);

/// How far containerd is with an image; `None` if it does not tell, or has nothing of it yet.
pub(super) async fn of_content(
    client: &RuntimeClient,
    image: &str,
    now: Timestamp,
) -> Option<PullBytes> {
    let repository = reference::parse(image).ok()?.repository;
    let statuses = client.content_intakes().await?;
    let intakes = statuses.iter().filter_map(|status| {
        let since = status.started_at.as_ref();
        Some(Intake {
            digest: taken_in(&status.r#ref)?.to_owned(),
            bytes: u64::try_from(status.offset).unwrap_or_default(),
            since: since.and_then(|at| Timestamp::new(at.seconds, at.nanos).ok()),
        })
    });
    let intakes: Vec<Intake> = intakes.collect();
    if intakes.is_empty() {
        return None;
    }
    let held = client.content_held().await?;
    let mut manifests: Vec<Vec<Part>> = Vec::new();
    let most = usize::try_from(LARGEST_MANIFEST).unwrap_or_default();
    for info in held.iter().filter(|info| is_manifest_of(&repository, info.size, &info.labels)) {
        if let Some(bytes) = client.content_read(&info.digest, most).await {
            manifests.push(parts(&bytes));
        }
    }
    let held: BTreeMap<String, u64> = held
        .into_iter()
        .map(|info| (info.digest, u64::try_from(info.size).unwrap_or_default()))
        .collect();
    progress(&manifests, &held, &intakes, now)
}

impl Inner {
    /// Pulls that wait or run, oldest first, with how far each is.
    pub(super) async fn pulls_with_progress(&self) -> Vec<PullProgress> {
        let mut pulls = self.pulls();
        let now = self.clock.now();
        let asked = pulls.iter_mut().filter(|pull| pull.started.is_some()).map(|pull| async move {
            let answer = tokio::time::timeout(LIMIT, self.calls.progress(&pull.image, now));
            pull.bytes = answer.await.unwrap_or_default();
        });
        futures::future::join_all(asked).await;
        pulls
    }

    /// Runs a pull, and tells now and then how far it is.
    pub(super) async fn telling<T>(
        &self,
        request: &EnsureImage,
        pull: impl Future<Output = T>,
    ) -> T {
        let Some(period) = self.progress_events else { return pull.await };
        tokio::select! {
            done = pull => done,
            // Dropped with its last question: nobody wants the answer any more.
            never = self.tell_on(request, period) => match never {},
        }
    }

    async fn tell_on(&self, request: &EnsureImage, period: Duration) -> Infallible {
        let mut ticks = tokio::time::interval_at(Instant::now() + period, period);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let image = quote(&request.image);
            let message = match self.calls.progress(&request.image, self.clock.now()).await {
                Some(bytes) => format!("Pulling image {image}: {bytes}"),
                None => format!("Pulling image {image}: still at it"),
            };
            self.tell(request, EventSeverity::Normal, "PullProgress", message);
        }
    }
}
