//! Lists, then watches, forever: the one loop behind every cache of API objects (client-go:
//! `Reflector`).
//!
//! ```text
//!   streaming list ──refused (400/422)──▶ plain list ─▶ watch ──broken──▶ back-off ─▶ resume watch
//!         └────────────── bookmark ──────────────────────▲  └──history lost──▶ back-off ─▶ list
//! ```
//!
//! An API server responds from a cache that may be behind, so a list has a basis: the first one,
//! and one after the history was lost, is *consistent* (as of now, whichever server is asked); any
//! other one is *not older* than what was seen before.
//!
//! Promises: `managedFields` are dropped on arrival; a list replaces everything that was known, and
//! one that is from the past, or lacks a known object, is used only if a consistent one agrees; an
//! error is logged, followed by a back-off (0.8 s doubling to 30 s, jittered), and never ends the
//! loop. What is forbidden from the start is tried again sooner at first: the server may not have seen
//! the pod yet that refers to it.

use crate::connection::{AUTHORIZER_LAG, LONGEST_AUTHORIZER_LAG};
use futures::StreamExt;
use futures::stream::BoxStream;
use kube::Api;
use kube::api::{ListParams, VersionMatch, WatchParams};
use kube::core::{Status, WatchEvent};
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

const FIRST_PAUSE: Duration = Duration::from_millis(800);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// The timeout of a list.
const LIST_DEADLINE: Duration = Duration::from_secs(60);
/// The server is asked to end a watch after this time, or up to twice as much (client-go's).
const SHORTEST_WATCH: Duration = Duration::from_secs(300);
/// A server that does not end a watch in time is considered unreachable.
const OVERTIME: Duration = Duration::from_secs(30);
/// Servers send a bookmark every minute; a watch without any for this long is considered broken.
const SILENCE: Duration = Duration::from_secs(240);
/// A watch that ends sooner is followed by a back-off.
const TOO_SHORT: Duration = Duration::from_secs(1);
/// How often a watch is refused before everything is listed again.
const REFUSALS: u32 = 3;
const INITIAL_EVENTS_END: &str = "k8s.io/initial-events-end";

/// The known objects of one kind; `None` until the first complete list.
pub type Snapshot<K> = Option<Arc<Vec<Arc<K>>>>;

/// A change of a watched collection.
#[derive(Debug)]
pub(crate) enum Change<K> {
    /// A complete list: all other objects are gone.
    Listed(Vec<K>),
    /// Added or modified.
    Applied(K),
    /// Deleted.
    Deleted(K),
}

/// Selects objects of a kind.
#[derive(Debug, Clone, Default)]
pub(crate) struct Selection {
    pub(crate) fields: Option<String>,
    pub(crate) labels: Option<String>,
}

/// What to watch, over which lane.
#[derive(Debug)]
pub(crate) struct Source<K> {
    pub(crate) api: Api<K>,
    pub(crate) selection: Selection,
    /// Changes when the lane redials: with new credentials a back-off ends early.
    pub(crate) redialled: watch::Receiver<u64>,
}

/// Bounds on a watched kind.
pub(crate) trait Followed:
    kube::Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Sync + 'static
{
}

impl<K> Followed for K where
    K: kube::Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Sync + 'static
{
}

/// Whether to continue watching.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    Continue,
    Stop,
}

/// Why a list or watch failed.
#[derive(Debug, thiserror::Error)]
enum Failure {
    /// The server refused it.
    #[error("{}", .0.message)]
    Refused(Box<Status>),
    /// The connection broke, or an event could not be parsed.
    #[error(transparent)]
    Broken(kube::Error),
    /// The list exceeded its timeout.
    #[error("no complete list within {}s", LIST_DEADLINE.as_secs())]
    Slow,
    /// The list was cut off.
    #[error("the list ended before it was complete")]
    Short,
    /// An event was older than one before it.
    #[error("the server went back from version {from} to {to}")]
    WentBack { from: String, to: String },
}

impl From<kube::Error> for Failure {
    fn from(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => Self::Refused(status),
            other => Self::Broken(other),
        }
    }
}

impl Failure {
    fn code(&self) -> Option<u16> {
        match self {
            Self::Refused(status) => Some(status.code),
            _ => None,
        }
    }
}

/// How a round ended, if not by a failure.
enum End {
    /// The server ended the watch, as it does regularly.
    Over { lived: Duration },
    /// `step` asked to stop.
    Enough,
}

type Events<K> = BoxStream<'static, kube::Result<WatchEvent<K>>>;
type Name = (String, String);

/// A complete list.
struct Listed<K> {
    objects: BTreeMap<Name, K>,
    version: String,
    /// Continues with changes, if the list was streamed.
    events: Option<Events<K>>,
}

/// The state of one watched collection.
struct Follower<K> {
    api: Api<K>,
    selection: Selection,
    streaming: bool,
    /// The resource version up to which everything was seen.
    seen: Option<String>,
    /// Whether the watch can resume from there; otherwise the next step is a list.
    resumable: bool,
    /// Whether the next list must be consistent.
    consistent: bool,
    /// Consecutive refusals of a watch.
    refusals: u32,
    /// The resource version of every known object.
    known: BTreeMap<Name, String>,
    /// Whether there was any event since the last failure.
    progress: bool,
}

/// Runs until cancelled, or until `step` asks to stop.
pub(crate) async fn follow<K: Followed>(
    source: Source<K>,
    cancel: CancellationToken,
    mut step: impl FnMut(Change<K>) -> Next + Send,
) {
    let Source { api, selection, mut redialled } = source;
    let mut follower = Follower::new(api, selection);
    let mut pause = FIRST_PAUSE;
    let mut lag = AUTHORIZER_LAG;
    loop {
        let ended = tokio::select! {
            // Cancel-safe: a token has no state to lose.
            () = cancel.cancelled() => return,
            // Dropped only with the follower itself.
            ended = follower.round(&mut step) => ended,
        };
        if std::mem::take(&mut follower.progress) {
            pause = FIRST_PAUSE;
        }
        match ended {
            Ok(End::Enough) => return,
            Ok(End::Over { lived }) if lived >= TOO_SHORT => {
                pause = FIRST_PAUSE;
                continue;
            }
            Ok(End::Over { .. }) => {}
            Err(failure) => {
                if !follower.fail(&failure) {
                    continue;
                }
                let (kind, err) = (K::kind(&()), crate::error::chain(&failure));
                if follower.may_be_unauthorized_yet(&failure) && lag <= LONGEST_AUTHORIZER_LAG {
                    tracing::info!(%kind, err, retry_in = ?lag, "watch forbidden, perhaps not for long");
                    if cancel.run_until_cancelled(tokio::time::sleep(lag)).await.is_none() {
                        return;
                    }
                    lag *= 2;
                    continue;
                }
                tracing::warn!(%kind, err, retry_in = ?pause, "watch failed");
            }
        }
        tokio::select! {
            // Cancel-safe: a token has no state to lose.
            () = cancel.cancelled() => return,
            // Cancel-safe: the back-off begins again only after another failure.
            () = tokio::time::sleep(jittered(pause)) => pause = (pause * 2).min(LONGEST_PAUSE),
            // Cancel-safe: a change stays marked until it is seen.
            Ok(()) = redialled.changed() => pause = FIRST_PAUSE,
        }
    }
}

impl<K: Followed> Follower<K> {
    fn new(api: Api<K>, selection: Selection) -> Self {
        Self {
            api,
            selection,
            streaming: true,
            seen: None,
            resumable: false,
            consistent: true,
            refusals: 0,
            known: BTreeMap::new(),
            progress: false,
        }
    }

    /// Lists if necessary, then handles changes until the watch ends.
    async fn round(
        &mut self,
        step: &mut (impl FnMut(Change<K>) -> Next + Send),
    ) -> Result<End, Failure> {
        let mut streamed = None;
        if !self.resumable {
            let listed = tokio::time::timeout(LIST_DEADLINE, self.list()).await;
            let Listed { objects, version, events } = listed.map_err(|_| Failure::Slow)??;
            let known = objects.iter().map(|(name, o)| (name.clone(), version_of(o).to_owned()));
            self.known = known.collect();
            self.seen = Some(version);
            (self.resumable, self.consistent) = (true, false);
            // A list between watches that are refused is no progress: else it would be repeated every second.
            self.progress = self.refusals == 0;
            self.refusals = 0;
            streamed = events;
            if step(Change::Listed(objects.into_values().collect())) == Next::Stop {
                return Ok(End::Enough);
            }
        }
        let began = Instant::now();
        let mut heard = streamed.is_some();
        let mut events = match streamed {
            Some(events) => events,
            None => self.watch().await?,
        };
        loop {
            let event = tokio::time::timeout(SHORTEST_WATCH * 2 + OVERTIME, events.next()).await;
            let Ok(Some(event)) = event else {
                let lived = began.elapsed();
                if !heard && lived >= SILENCE {
                    // The server's versions went back: it cannot resume from a later one.
                    (self.resumable, self.consistent) = (false, true);
                }
                return Ok(End::Over { lived });
            };
            heard = true;
            let next = match event? {
                WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                    let object = slim(object);
                    self.advance(version_of(&object))?;
                    self.known.insert(name_of(&object), version_of(&object).to_owned());
                    step(Change::Applied(object))
                }
                WatchEvent::Deleted(object) => {
                    let object = slim(object);
                    self.advance(version_of(&object))?;
                    self.known.remove(&name_of(&object));
                    step(Change::Deleted(object))
                }
                WatchEvent::Bookmark(bookmark) => {
                    self.advance(&bookmark.metadata.resource_version)?;
                    Next::Continue
                }
                WatchEvent::Error(status) => return Err(Failure::Refused(status.boxed())),
            };
            (self.progress, self.refusals) = (true, 0);
            if next == Next::Stop {
                return Ok(End::Enough);
            }
        }
    }

    /// Everything up to this version was seen.
    fn advance(&mut self, version: &str) -> Result<(), Failure> {
        if version.is_empty() {
            return Ok(());
        }
        if let Some(from) = &self.seen
            && is_older(version, from)
        {
            return Err(Failure::WentBack { from: from.clone(), to: version.to_owned() });
        }
        self.seen = Some(version.to_owned());
        Ok(())
    }

    /// Records a failure; returns whether a back-off is needed.
    fn fail(&mut self, failure: &Failure) -> bool {
        if !self.resumable {
            if self.streaming && matches!(failure.code(), Some(400 | 422)) {
                let kind = K::kind(&());
                tracing::info!(%kind, "API server has no streaming lists, listing plainly");
                self.streaming = false;
                return false;
            }
            // A server that cannot provide a *not older* list may still provide a consistent one.
            self.consistent = true;
            return true;
        }
        match failure {
            Failure::Refused(status) if status.code == 410 => {
                (self.resumable, self.consistent) = (false, true);
            }
            // An overloaded server: what was seen is as good as before, and a list would cost it more.
            Failure::Refused(status) if matches!(status.code, 429 | 503) => {}
            Failure::WentBack { .. } => (self.resumable, self.consistent) = (false, true),
            Failure::Refused(_) | Failure::Broken(kube::Error::SerdeError(_)) => {
                self.refusals += 1;
                self.resumable = self.refusals < REFUSALS;
            }
            Failure::Broken(_) | Failure::Slow | Failure::Short => {}
        }
        true
    }

    /// Whether the server may only not know yet that a pod refers to this (see [`Lane::ask_referred`]). Whoever was
    /// allowed to list it once is known.
    ///
    /// [`Lane::ask_referred`]: crate::connection::Lane::ask_referred
    fn may_be_unauthorized_yet(&self, failure: &Failure) -> bool {
        self.seen.is_none() && failure.code() == Some(403)
    }

    /// A list that can be trusted.
    async fn list(&self) -> Result<Listed<K>, Failure> {
        let basis = self.seen.clone().filter(|_| !self.consistent);
        let listed = match self.streaming {
            true => self.stream_list(basis.as_deref()).await?,
            false => self.plain_list(basis.as_deref()).await?,
        };
        match self.doubt(&listed, basis.is_none()) {
            None => Ok(listed),
            Some(why) => {
                let kind = K::kind(&());
                tracing::info!(%kind, why, "List may be stale, requesting a consistent one");
                self.plain_list(None).await
            }
        }
    }

    /// Why a list might be stale.
    fn doubt(&self, listed: &Listed<K>, consistent: bool) -> Option<&'static str> {
        if self.seen.as_ref().is_some_and(|seen| is_older(&listed.version, seen)) {
            return Some("the list is older than what was seen");
        }
        if consistent {
            return None;
        }
        self.known.iter().find_map(|(name, known)| match listed.objects.get(name) {
            None => Some("the list lacks what was known"),
            Some(object) if is_older(version_of(object), known) => {
                Some("the list has an older object than was seen")
            }
            Some(_) => None,
        })
    }

    async fn stream_list(&self, basis: Option<&str>) -> Result<Listed<K>, Failure> {
        let params = WatchParams { send_initial_events: true, ..self.watch_params() };
        let mut events = self.api.watch(&params, basis.unwrap_or_default()).await?.boxed();
        let mut objects = BTreeMap::new();
        loop {
            match events.next().await.ok_or(Failure::Short)?? {
                WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                    objects.insert(name_of(&object), slim(object));
                }
                // While a server catches up with the basis, it sends deletions too.
                WatchEvent::Deleted(object) => {
                    objects.remove(&name_of(&object));
                }
                WatchEvent::Bookmark(bookmark) => {
                    let meta = bookmark.metadata;
                    if meta.annotations.contains_key(INITIAL_EVENTS_END) {
                        let version = meta.resource_version;
                        return Ok(Listed { objects, version, events: Some(events) });
                    }
                }
                WatchEvent::Error(status) => return Err(Failure::Refused(status.boxed())),
            }
        }
    }

    async fn plain_list(&self, basis: Option<&str>) -> Result<Listed<K>, Failure> {
        let params = ListParams {
            field_selector: self.selection.fields.clone(),
            label_selector: self.selection.labels.clone(),
            resource_version: basis.map(str::to_owned),
            version_match: basis.map(|_| VersionMatch::NotOlderThan),
            ..ListParams::default()
        };
        let list = self.api.list(&params).await?;
        let objects = list.items.into_iter().map(slim);
        Ok(Listed {
            objects: objects.map(|object| (name_of(&object), object)).collect(),
            version: list.metadata.resource_version.unwrap_or_default(),
            events: None,
        })
    }

    async fn watch(&self) -> Result<Events<K>, Failure> {
        let from = self.seen.as_deref().unwrap_or_default();
        Ok(self.api.watch(&self.watch_params(), from).await?.boxed())
    }

    fn watch_params(&self) -> WatchParams {
        let length = jittered(SHORTEST_WATCH);
        WatchParams {
            field_selector: self.selection.fields.clone(),
            label_selector: self.selection.labels.clone(),
            timeout: u32::try_from(length.as_secs()).ok(),
            bookmarks: true,
            send_initial_events: false,
        }
    }
}

fn slim<K: kube::Resource>(mut object: K) -> K {
    object.meta_mut().managed_fields = None;
    object
}

fn version_of<K: kube::Resource>(object: &K) -> &str {
    object.meta().resource_version.as_deref().unwrap_or_default()
}

/// Whether a version comes before another one; versions that are not numbers cannot be compared.
fn is_older(version: &str, than: &str) -> bool {
    match (version.parse::<u64>(), than.parse::<u64>()) {
        (Ok(version), Ok(than)) => version < than,
        _ => false,
    }
}

/// A random duration between `base` and twice that.
pub(crate) fn jittered(base: Duration) -> Duration {
    base.mul_f64(1.0 + random_fraction())
}

/// A number in `[0, 1)`; good enough to spread requests, not for secrets.
pub(crate) fn random_fraction() -> f64 {
    let bits = random_bits() >> 40;
    f64::from(u32::try_from(bits).unwrap_or_default()) / f64::from(1_u32 << 24)
}

/// A random number; not for secrets.
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
    let mut known: BTreeMap<Name, Arc<K>> = BTreeMap::new();
    follow(source, cancel, |change| {
        match change {
            Change::Listed(all) => {
                known = all.into_iter().map(|o| (name_of(&o), Arc::new(o))).collect();
            }
            Change::Applied(object) => {
                known.insert(name_of(&object), Arc::new(object));
            }
            Change::Deleted(object) => {
                known.remove(&name_of(&object));
            }
        }
        out.send_replace(Some(Arc::new(known.values().cloned().collect())));
        Next::Continue
    })
    .await;
}

fn name_of<K: kube::Resource>(object: &K) -> Name {
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

    #[test]
    fn versions_are_compared_as_numbers_or_not_at_all() {
        assert!(is_older("9", "10"));
        assert!(!is_older("10", "9") && !is_older("9", "9"));
        assert!(!is_older("a", "10") && !is_older("", "10") && !is_older("9", ""));
    }
}
