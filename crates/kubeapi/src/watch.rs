//! List, then watch, for ever: the one loop behind every cache of API objects.
//!
//! ```text
//!   streaming list ──refused (400/422)──▶ plain list ─▶ watch ──broken──▶ back-off ─▶ (again)
//!         └────────────── bookmark ──────────────────────▲
//! ```
//!
//! Promises: `managedFields` are dropped on arrival; a list replaces everything that was known; an
//! error is logged, waited out (0.8 s doubling to 30 s, jittered) and never ends the loop.

use futures::StreamExt;
use kube::Api;
use kube::runtime::watcher;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

const FIRST_PAUSE: Duration = Duration::from_millis(800);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// What is known of one kind of object; `None` until the first complete list.
pub type Snapshot<K> = Option<Arc<Vec<Arc<K>>>>;

/// A step of a followed collection.
#[derive(Debug)]
pub(crate) enum Change<K> {
    /// A complete list: everything else is gone.
    Listed(Vec<K>),
    /// Added or modified.
    Applied(K),
    /// Deleted.
    Deleted(K),
}

/// Which objects of a kind.
#[derive(Debug, Clone, Default)]
pub(crate) struct Selection {
    pub(crate) fields: Option<String>,
    pub(crate) labels: Option<String>,
}

/// What to follow, over which lane.
#[derive(Debug)]
pub(crate) struct Source<K> {
    pub(crate) api: Api<K>,
    pub(crate) selection: Selection,
    /// Changes when the lane dials anew: with new credentials a pause is over early.
    pub(crate) redialled: watch::Receiver<u64>,
}

/// Bounds on a followed kind.
pub(crate) trait Followed:
    kube::Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Sync + 'static
{
}

impl<K> Followed for K where
    K: kube::Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Sync + 'static
{
}

/// Runs until cancelled, or until `step` says it has seen enough.
pub(crate) async fn follow<K: Followed>(
    source: Source<K>,
    cancel: CancellationToken,
    mut step: impl FnMut(Change<K>) -> Next + Send,
) {
    let Source { api, selection, mut redialled } = source;
    let mut streaming = true;
    let mut pause = FIRST_PAUSE;
    loop {
        let mut config = watcher::Config {
            field_selector: selection.fields.clone(),
            label_selector: selection.labels.clone(),
            ..watcher::Config::default()
        };
        if streaming {
            config = config.streaming_lists();
        }
        let mut stream = watcher(api.clone(), config).boxed();
        let mut listed: Option<Vec<K>> = None;
        let failure = loop {
            let event = tokio::select! {
                // Cancel-safe: a token has no state to lose.
                () = cancel.cancelled() => return,
                // Cancel-safe: an event not yet taken stays in the stream.
                event = stream.next() => event,
            };
            let next = match event {
                None => break None,
                Some(Err(error)) => break Some(error),
                Some(Ok(event)) => {
                    let event = event.modify(|o| o.meta_mut().managed_fields = None);
                    match event {
                        watcher::Event::Init => {
                            listed = Some(Vec::new());
                            Next::Continue
                        }
                        watcher::Event::InitApply(object) => {
                            listed.get_or_insert_default().push(object);
                            Next::Continue
                        }
                        watcher::Event::InitDone => {
                            pause = FIRST_PAUSE;
                            step(Change::Listed(listed.take().unwrap_or_default()))
                        }
                        watcher::Event::Apply(object) => {
                            pause = FIRST_PAUSE;
                            step(Change::Applied(object))
                        }
                        watcher::Event::Delete(object) => step(Change::Deleted(object)),
                    }
                }
            };
            if next == Next::Stop {
                return;
            }
        };
        let kind = K::kind(&());
        if let Some(error) = failure {
            if streaming && refuses_streaming(&error) {
                tracing::info!(%kind, "API server has no streaming lists, listing plainly");
                streaming = false;
                continue;
            }
            let err = crate::error::chain(&error);
            tracing::warn!(%kind, err, retry_in = ?pause, "watch failed");
        }
        tokio::select! {
            // Cancel-safe: a token has no state to lose.
            () = cancel.cancelled() => return,
            // Cancel-safe: the pause begins anew only after another failure.
            () = tokio::time::sleep(jittered(pause)) => pause = (pause * 2).min(LONGEST_PAUSE),
            // Cancel-safe: a change stays marked until it is seen.
            Ok(()) = redialled.changed() => pause = FIRST_PAUSE,
        }
    }
}

/// Whether to go on following.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    Continue,
    Stop,
}

fn refuses_streaming(error: &watcher::Error) -> bool {
    let status = match error {
        watcher::Error::WatchStartFailed(kube::Error::Api(status))
        | watcher::Error::InitialListFailed(kube::Error::Api(status))
        | watcher::Error::WatchError(status) => status,
        _ => return false,
    };
    matches!(status.code, 400 | 422)
}

/// Up to as much again as `base`, from the address space's own randomness.
pub(crate) fn jittered(base: Duration) -> Duration {
    base.mul_f64(1.0 + random_fraction())
}

/// A number in `[0, 1)`; good enough to spread requests, not for secrets.
pub(crate) fn random_fraction() -> f64 {
    let bits = random_bits() >> 40;
    f64::from(u32::try_from(bits).unwrap_or_default()) / f64::from(1_u32 << 24)
}

/// A number that nobody had before; not for secrets.
pub(crate) fn random_bits() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    std::collections::hash_map::RandomState::new().build_hasher().finish()
}

/// Keeps `out` at the complete current set, sorted by namespace and name.
pub(crate) async fn publish<K: Followed>(
    source: Source<K>,
    out: watch::Sender<Snapshot<K>>,
    cancel: CancellationToken,
) {
    let mut known: BTreeMap<(String, String), Arc<K>> = BTreeMap::new();
    follow(source, cancel, |change| {
        match change {
            Change::Listed(all) => {
                known = all.into_iter().map(|o| (key(&o), Arc::new(o))).collect();
            }
            Change::Applied(object) => {
                known.insert(key(&object), Arc::new(object));
            }
            Change::Deleted(object) => {
                known.remove(&key(&object));
            }
        }
        out.send_replace(Some(Arc::new(known.values().cloned().collect())));
        Next::Continue
    })
    .await;
}

fn key<K: kube::Resource>(object: &K) -> (String, String) {
    let meta = object.meta();
    (meta.namespace.clone().unwrap_or_default(), meta.name.clone().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jitter_stays_between_once_and_twice_the_base() {
        for _ in 0..1000 {
            let pause = jittered(FIRST_PAUSE);
            assert!(pause >= FIRST_PAUSE && pause < FIRST_PAUSE * 2, "{pause:?}");
        }
    }
}
