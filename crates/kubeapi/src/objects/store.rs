//! Secrets or config maps of registered pods (upstream: `util/manager`).
//!
//! ```text
//!   Watch   registered ─▶ watched ─▶ known ──unread for long──▶ not watched ──read──▶ watched
//!                                      └──immutable──▶ cached forever, not watched
//!   Cache   read ─▶ cached until its TTL ends ─▶ read again
//!   Get     read every time
//! ```

use super::{SYNC_WAIT, sorted};
use crate::connection::Lane;
use crate::watch::{Change, Followed, Next, Selection, follow};
use api::core::v1::{ConfigMap, Secret};
use kube::Api;
use kube::core::NamespaceResourceScope;
use ports::{NodeViews, ObjectChange, ObjectError, ObjectKind, OnExit, Tasks};
use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{broadcast, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

const TTL_ANNOTATION: &str = "node.alpha.kubernetes.io/ttl";
/// How long a reader waits at most for the rate limit, in addition to the response.
const LONGEST_BACKLOG: Duration = Duration::from_secs(10);
const DEFAULT_TTL: Duration = Duration::from_secs(60);

/// How changes of secrets and config maps are detected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Strategy {
    /// A watch per object.
    #[default]
    Watch,
    /// A read when the cached one is older than the node's TTL annotation (1 min without one).
    Cache,
    /// A read every time.
    Get,
}

/// Dependencies of a store.
#[derive(Debug, Clone)]
pub(super) struct Parts {
    pub(super) lane: Lane,
    pub(super) strategy: Strategy,
    pub(super) node: NodeViews,
    pub(super) tasks: Tasks,
    pub(super) changes: broadcast::Sender<ObjectChange>,
}

/// A kind that pods refer to by name.
pub(super) trait Referred:
    Followed + kube::Resource<Scope = NamespaceResourceScope>
{
    const KIND: ObjectKind;
    /// The kind's name in error texts.
    const WORD: &'static str;
    fn is_immutable(&self) -> bool;
}

impl Referred for Secret {
    const KIND: ObjectKind = ObjectKind::Secret;
    const WORD: &'static str = "secret";
    fn is_immutable(&self) -> bool {
        self.immutable == Some(true)
    }
}

impl Referred for ConfigMap {
    const KIND: ObjectKind = ObjectKind::ConfigMap;
    const WORD: &'static str = "configmap";
    fn is_immutable(&self) -> bool {
        self.immutable == Some(true)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct ObjectName {
    namespace: String,
    name: String,
}

#[derive(Debug)]
enum Known<K> {
    NotYet,
    Absent,
    Present(Arc<K>),
}

impl<K> Known<K> {
    fn object(&self) -> Option<Arc<K>> {
        match self {
            Self::Present(object) => Some(Arc::clone(object)),
            Self::NotYet | Self::Absent => None,
        }
    }
}

#[derive(Debug)]
struct Entry<K> {
    pods: BTreeSet<String>,
    /// The latest known state; the sender is shared with the watching task.
    known: Arc<watch::Sender<Known<K>>>,
    following: Option<CancellationToken>,
    read_at: Instant,
    /// When the cache strategy last read from the server; `None` forces a read.
    fetched_at: Option<Instant>,
}

impl<K> Entry<K> {
    fn new() -> Self {
        Self {
            pods: BTreeSet::new(),
            known: Arc::new(watch::Sender::new(Known::NotYet)),
            following: None,
            read_at: Instant::now(),
            fetched_at: None,
        }
    }

    fn stop_following(&mut self) {
        if let Some(token) = self.following.take() {
            token.cancel();
        }
    }
}

#[derive(Debug)]
pub(super) struct Store<K> {
    parts: Parts,
    entries: Mutex<HashMap<ObjectName, Entry<K>>>,
}

impl<K: Referred> Store<K> {
    pub(super) fn new(parts: Parts) -> Self {
        Self { parts, entries: Mutex::default() }
    }

    fn entries(&self) -> MutexGuard<'_, HashMap<ObjectName, Entry<K>>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The pod now refers to exactly these objects.
    pub(super) fn register(&self, uid: &str, namespace: &str, names: BTreeSet<String>) {
        if self.parts.strategy == Strategy::Get {
            return;
        }
        let wanted: BTreeSet<ObjectName> = names
            .into_iter()
            .map(|name| ObjectName { namespace: namespace.to_owned(), name })
            .collect();
        let mut entries = self.entries();
        for name in &wanted {
            let entry = entries.entry(name.clone()).or_insert_with(Entry::new);
            if entry.pods.insert(uid.to_owned()) {
                entry.fetched_at = None;
            }
            if self.parts.strategy == Strategy::Watch {
                self.ensure_following(name, entry);
            }
        }
        drop_references(&mut entries, uid, |name| !wanted.contains(name));
    }

    pub(super) fn forget(&self, uid: &str) {
        drop_references(&mut self.entries(), uid, |_| true);
    }

    pub(super) async fn get(&self, namespace: &str, name: &str) -> Result<Arc<K>, ObjectError> {
        let key = ObjectName { namespace: namespace.to_owned(), name: name.to_owned() };
        match self.parts.strategy {
            Strategy::Get => self.fetch(&key).await,
            Strategy::Watch => self.get_watched(&key).await,
            Strategy::Cache => self.get_cached(&key).await,
        }
    }

    async fn fetch(&self, key: &ObjectName) -> Result<Arc<K>, ObjectError> {
        let lane = &self.parts.lane;
        let api: Api<K> = Api::namespaced(lane.client(), &key.namespace);
        lane.ask_referred(|| api.get(&key.name)).await.map(super::slim).map_err(sorted)
    }

    async fn get_watched(&self, key: &ObjectName) -> Result<Arc<K>, ObjectError> {
        let mut known = {
            let mut entries = self.entries();
            let entry = entries.get_mut(key).ok_or_else(|| not_registered(key))?;
            entry.read_at = Instant::now();
            self.ensure_following(key, entry);
            entry.known.subscribe()
        };
        // A list that is still waiting for the rate limit takes longer: a reader that gave up would
        // retry with growing pauses, long after the list has arrived.
        let patience = SYNC_WAIT + self.parts.lane.backlog().min(LONGEST_BACKLOG);
        let synced = known.wait_for(|k| !matches!(k, Known::NotYet));
        match tokio::time::timeout(patience, synced).await {
            Ok(Ok(state)) => state.object().ok_or_else(|| {
                ObjectError::NotFound(format!("{} {:?} not found", K::WORD, key.name))
            }),
            _ => Err(ObjectError::Unavailable(format!(
                "failed to sync {} cache: timed out waiting for the condition",
                K::WORD
            ))),
        }
    }

    async fn get_cached(&self, key: &ObjectName) -> Result<Arc<K>, ObjectError> {
        let ttl = self.ttl();
        let (known, sender) = {
            let mut entries = self.entries();
            let entry = entries.get_mut(key).ok_or_else(|| not_registered(key))?;
            let known = entry.known.borrow().object();
            let immutable = known.as_ref().is_some_and(|k| k.is_immutable());
            let fresh = entry.fetched_at.is_some_and(|at| immutable || at.elapsed() < ttl);
            if let (true, Some(known)) = (fresh, &known) {
                return Ok(Arc::clone(known));
            }
            (known, Arc::clone(&entry.known))
        };
        match self.fetch(key).await {
            Ok(object) if known.as_ref().is_some_and(|old| version(old) > version(&object)) => {
                Ok(known.unwrap_or(object))
            }
            Ok(object) => {
                sender.send_replace(Known::Present(Arc::clone(&object)));
                if let Some(entry) = self.entries().get_mut(key) {
                    entry.fetched_at = Some(Instant::now());
                }
                if known.is_some_and(|old| version(&old) != version(&object)) {
                    self.announce(key);
                }
                Ok(object)
            }
            Err(ObjectError::NotFound(text)) => {
                sender.send_replace(Known::Absent);
                Err(ObjectError::NotFound(text))
            }
            Err(error) => known.ok_or(error),
        }
    }

    fn ttl(&self) -> Duration {
        let view = self.parts.node.borrow();
        let annotations = view.node.as_ref().and_then(|n| n.metadata.annotations.as_ref());
        annotations
            .and_then(|a| a.get(TTL_ANNOTATION)?.parse().ok())
            .map_or(DEFAULT_TTL, Duration::from_secs)
    }

    fn announce(&self, key: &ObjectName) {
        announce::<K>(&self.parts.changes, key);
    }

    fn ensure_following(&self, key: &ObjectName, entry: &mut Entry<K>) {
        let immutable = entry.known.borrow().object().is_some_and(|o| o.is_immutable());
        if entry.following.is_some() || immutable {
            return;
        }
        let token = self.parts.tasks.token().child_token();
        entry.following = Some(token.clone());
        let known = Arc::clone(&entry.known);
        let changes = self.parts.changes.clone();
        let key = key.clone();
        let api: Api<K> = Api::namespaced(self.parts.lane.client(), &key.namespace);
        let selection =
            Selection { fields: Some(format!("metadata.name={}", key.name)), labels: None };
        let source = self.parts.lane.source(api, selection);
        self.parts.tasks.spawn("object-watch", OnExit::Fine, async move {
            follow(source, token, |change| {
                let object = match change {
                    Change::Listed(all) => all.into_iter().next(),
                    Change::Applied(object) => Some(object),
                    Change::Deleted(_) => None,
                };
                accept(&known, object, || announce::<K>(&changes, &key))
            })
            .await;
        });
    }

    /// Ends watches of objects that nobody has read for `idle`.
    pub(super) fn end_idle(&self, idle: Duration) {
        for entry in self.entries().values_mut() {
            if entry.following.is_some() && entry.read_at.elapsed() > idle {
                entry.stop_following();
                // The next reader must wait for a fresh list.
                entry.known.send_if_modified(|known| {
                    let keep = known.object().is_some_and(|o| o.is_immutable());
                    if !keep {
                        *known = Known::NotYet;
                    }
                    false
                });
            }
        }
    }
}

/// Handles a watch event; an immutable object needs no watch any more.
fn accept<K: Referred>(
    known: &watch::Sender<Known<K>>,
    object: Option<K>,
    announce: impl FnOnce(),
) -> Next {
    let object = object.map(Arc::new);
    let immutable = object.as_ref().is_some_and(|o| o.is_immutable());
    let mut changed = false;
    known.send_modify(|state| {
        changed = match (&*state, &object) {
            (Known::NotYet, _) | (Known::Absent, None) => false,
            (Known::Present(old), Some(new)) => version(old) != version(new),
            _ => true,
        };
        *state = object.map_or(Known::Absent, Known::Present);
    });
    if changed {
        announce();
    }
    if immutable { Next::Stop } else { Next::Continue }
}

fn announce<K: Referred>(changes: &broadcast::Sender<ObjectChange>, key: &ObjectName) {
    let ObjectName { namespace, name } = key.clone();
    // There may be no receivers.
    let _ = changes.send(ObjectChange { kind: K::KIND, namespace, name });
}

fn drop_references<K>(
    entries: &mut HashMap<ObjectName, Entry<K>>,
    uid: &str,
    unwanted: impl Fn(&ObjectName) -> bool,
) {
    entries.retain(|name, entry| {
        if unwanted(name) {
            entry.pods.remove(uid);
        }
        let keep = !entry.pods.is_empty();
        if !keep {
            entry.stop_following();
        }
        keep
    });
}

fn not_registered(key: &ObjectName) -> ObjectError {
    ObjectError::Unavailable(format!("object {:?}/{:?} not registered", key.namespace, key.name))
}

/// Resource versions of one kind only grow.
fn version<K: kube::Resource>(object: &Arc<K>) -> u64 {
    let text = object.meta().resource_version.as_deref().unwrap_or_default();
    text.parse().unwrap_or_default()
}
