//! What every worker uses, and small questions that many ask.

use crate::admission::checkpoint::ResourceStore;
use crate::admission::resize::Resizes;
use crate::config::PodsConfig;
use crate::jitter::Jitter;
use crate::pod_states::PodStates;
use crate::prober::ProberHandle;
use crate::runtime::Runtime;
use crate::status::StatusCache;
use crate::status::mirror::Mirrors;
use crate::timeline::Timeline;
use crate::view::ViewHandle;
use api::core::v1::Pod;
use api::ids::PodUid;
use api::pod::PodExt;
use ports::{Clock, Events, NodeView, NodeViews, Objects, Placement, PodCgroups, Tasks, Volumes};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use tokio::time::Instant;

/// The parts that pod workers share. No state of a single pod is here.
/// Many fields: a handle for each neighbour that a worker asks.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) config: PodsConfig,
    pub(crate) runtime: Runtime,
    pub(crate) view: ViewHandle,
    pub(crate) pod_states: PodStates,
    pub(crate) images: Arc<dyn ports::ImageSource>,
    pub(crate) volumes: Arc<dyn Volumes>,
    pub(crate) cgroups: Arc<dyn PodCgroups>,
    pub(crate) placement: Arc<dyn Placement>,
    pub(crate) objects: Arc<dyn Objects>,
    pub(crate) events: Arc<dyn Events>,
    pub(crate) node: NodeViews,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) jitter: Jitter,
    pub(crate) status: StatusCache,
    pub(crate) mirrors: Mirrors,
    pub(crate) prober: ProberHandle,
    pub(crate) allocated: ResourceStore,
    pub(crate) actuated: ResourceStore,
    pub(crate) resizes: Resizes,
    pub(crate) slots: crate::slots::StartSlots,
    pub(crate) userns: crate::userns::UserNamespaces,
    pub(crate) tasks: Tasks,
    pub(crate) timelines: Timelines,
    pub(crate) metrics: crate::metrics::PodMetrics,
    /// Asks for dead containers to be collected before it is time.
    pub(crate) garbage: tokio::sync::Notify,
    /// Whether there is an API server.
    pub(crate) has_api: bool,
    /// Whether the dispatcher goes round.
    pub(crate) heartbeat: crate::heartbeat::Heartbeat,
    /// Looks names up that pods bring.
    pub(crate) names: sys::names::Resolver,
    /// What each runtime handler can do.
    pub(crate) handlers: tokio::sync::watch::Receiver<RuntimeHandlers>,
}

/// What runtime handlers can do, by name; the default one is the empty name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RuntimeHandlers {
    /// Handlers that can mount recursively read-only.
    pub recursive_read_only: std::collections::BTreeSet<String>,
    /// Handlers that can give pods a user namespace.
    pub user_namespaces: std::collections::BTreeSet<String>,
    /// All that the runtime tells of; none if it is too old to tell.
    pub known: std::collections::BTreeSet<String>,
}

impl Shared {
    /// Whether the handler can mount recursively read-only.
    pub(crate) fn recursive_read_only(&self, handler: &str) -> bool {
        self.handlers.borrow().recursive_read_only.contains(handler)
    }
}

/// Timelines of pods that are gone, kept for whoever asks what happened.
const GONE_TIMELINES: usize = 64;

/// Timelines of all pods, also of those that are gone for a while.
#[derive(Debug, Clone)]
pub(crate) struct Timelines {
    by_pod: Arc<Mutex<BTreeMap<PodUid, (String, Timeline)>>>,
    clock: Arc<dyn Clock>,
}

impl Timelines {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        Self { by_pod: Arc::default(), clock }
    }

    /// The timeline of a pod, begun if needed.
    pub(crate) fn of(&self, pod: &Pod) -> Timeline {
        let uid = pod.uid();
        let begin = || (pod.key(), Timeline::new(Arc::clone(&self.clock)));
        match self.by_pod.lock() {
            Ok(mut all) => all.entry(uid).or_insert_with(begin).1.clone(),
            Err(_) => begin().1,
        }
    }

    /// All timelines with `namespace/name` of their pods.
    pub(crate) fn all(&self) -> BTreeMap<PodUid, (String, Timeline)> {
        self.by_pod.lock().map(|all| all.clone()).unwrap_or_default()
    }

    /// Keeps the timelines of these pods, and those of the pods that went last.
    pub(crate) fn retain(&self, keep: impl Fn(&PodUid) -> bool) {
        let Ok(mut all) = self.by_pod.lock() else { return };
        let mut gone: Vec<(Option<jiff::Timestamp>, PodUid)> = all
            .iter()
            .filter(|(uid, _)| !keep(uid))
            .map(|(uid, (_, timeline))| (timeline.last_at(), uid.clone()))
            .collect();
        gone.sort();
        let surplus = gone.len().saturating_sub(GONE_TIMELINES);
        for (_, uid) in gone.into_iter().take(surplus) {
            all.remove(&uid);
        }
    }
}

/// Waits for a moment; for ever without one.
pub(crate) async fn until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// The node's addresses as `hostIPs` shows them: internal before external, one of each family.
pub(crate) fn host_ips(view: &NodeView) -> Vec<String> {
    let addresses = view.node.as_ref().and_then(|n| n.status.as_ref()?.addresses.as_ref());
    let of_type = |wanted: &'static str| {
        addresses.into_iter().flatten().filter(move |a| a.type_ == wanted).map(|a| &a.address)
    };
    let all: Vec<&String> = of_type("InternalIP").chain(of_type("ExternalIP")).collect();
    let Some(first) = all.first() else { return Vec::new() };
    let second = all.iter().find(|ip| ip.contains(':') != first.contains(':'));
    std::iter::once(*first).chain(second.copied()).cloned().collect()
}

/// A non-negative number that fits, or the nearest that does.
pub(crate) fn to_u32(number: f64) -> u32 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "float casts saturate"
    )]
    let number = number as u32;
    number
}
