//! Objects that pods refer to: secrets, config maps, services, runtime classes, claims, volumes,
//! the node, tokens.
//!
//! Promises: with the watch strategy a change is known, and announced on
//! [`ports::Objects::changes`], as soon as the API server sends it.

mod references;
mod standalone;
mod store;

pub use standalone::StandaloneObjects;
pub use store::Strategy;

use crate::connection::{Connection, Lane};
use crate::error::ApiError;
use crate::tokens::Tokens;
use crate::watch::{Selection, Snapshot, publish};
use api::core::v1::{
    ConfigMap, Node, PersistentVolume, PersistentVolumeClaim, Pod, Secret, Service, ServiceAccount,
};
use api::node::v1::RuntimeClass;
use api::pod::PodExt;
use async_trait::async_trait;
use kube::Api;
use ports::{
    Clock, NodeViews, ObjectChange, ObjectError, Objects, OnExit, Tasks, TokenRequest,
    TokenResponse,
};
use std::sync::Arc;
use std::time::Duration;
use store::Store;
use tokio::sync::{broadcast, watch};

/// How long a reader waits for the first list.
const SYNC_WAIT: Duration = Duration::from_secs(1);
/// Buffered change notifications; a slower reader falls back to its periodic refresh.
const CHANGES: usize = 256;

/// Settings of [`ApiObjects`].
#[derive(Debug, Clone)]
pub struct ObjectsConfig {
    /// This node's name.
    pub node_name: String,
    /// `configMapAndSecretChangeDetectionStrategy`.
    pub strategy: Strategy,
    /// `syncFrequency`: watches that nobody reads for five times as long are ended.
    pub sync_frequency: Duration,
}

/// Referenced objects, from the API server. Cheap to clone.
#[derive(Debug, Clone)]
pub struct ApiObjects {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    reads: Lane,
    node_name: String,
    secrets: Store<Secret>,
    config_maps: Store<ConfigMap>,
    services: watch::Receiver<Snapshot<Service>>,
    runtime_classes: watch::Receiver<Snapshot<RuntimeClass>>,
    tokens: Tokens,
    changes: broadcast::Sender<ObjectChange>,
}

impl ApiObjects {
    /// Starts the watches of services and runtime classes among `tasks`.
    pub fn start(
        connection: &Connection,
        config: &ObjectsConfig,
        node: NodeViews,
        clock: Arc<dyn Clock>,
        tasks: &Tasks,
    ) -> Self {
        let (reads, watches) = (connection.reads().clone(), connection.watches().clone());
        let (services_out, services) = watch::channel(None);
        let (classes_out, runtime_classes) = watch::channel(None);
        // Only services that give pods environment variables: headless ones do not.
        let selection =
            Selection { labels: Some("!service.kubernetes.io/headless".into()), fields: None };
        let api = Api::all(watches.client());
        tasks.spawn(
            "services",
            OnExit::Exit,
            publish::<Service>(watches.source(api, selection), services_out, tasks.token()),
        );
        let api = Api::all(watches.client());
        tasks.spawn(
            "runtime-classes",
            OnExit::Exit,
            publish::<RuntimeClass>(
                watches.source(api, Selection::default()),
                classes_out,
                tasks.token(),
            ),
        );
        let (changes, _) = broadcast::channel(CHANGES);
        let store_parts = store::Parts {
            lane: reads.clone(),
            strategy: config.strategy,
            node,
            tasks: tasks.clone(),
            changes: changes.clone(),
        };
        let shared = Arc::new(Shared {
            reads,
            node_name: config.node_name.clone(),
            secrets: Store::new(store_parts.clone()),
            config_maps: Store::new(store_parts),
            services,
            runtime_classes,
            tokens: Tokens::new(connection.writes().clone(), clock),
            changes,
        });
        let idle = (config.sync_frequency * 5).max(Duration::from_secs(60));
        tasks.spawn("idle-objects", OnExit::Exit, sweep(Arc::clone(&shared), idle, tasks.token()));
        Self { shared }
    }
}

async fn sweep(shared: Arc<Shared>, idle: Duration, cancel: tokio_util::sync::CancellationToken) {
    loop {
        tokio::select! {
            // Cancel-safe: a token has no state to lose.
            () = cancel.cancelled() => return,
            // Cancel-safe: a fresh sleep each round.
            () = tokio::time::sleep(Duration::from_secs(60)) => {}
        }
        shared.secrets.end_idle(idle);
        shared.config_maps.end_idle(idle);
    }
}

#[async_trait]
impl Objects for ApiObjects {
    fn register_pod(&self, pod: &Arc<Pod>) {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or("default");
        let uid = pod.uid_str();
        self.shared.secrets.register(uid, namespace, references::secrets(pod));
        self.shared.config_maps.register(uid, namespace, references::config_maps(pod));
    }

    fn forget_pod(&self, uid: &str) {
        self.shared.secrets.forget(uid);
        self.shared.config_maps.forget(uid);
        self.shared.tokens.forget_pod(uid);
    }

    async fn config_map(&self, namespace: &str, name: &str) -> Result<Arc<ConfigMap>, ObjectError> {
        self.shared.config_maps.get(namespace, name).await
    }

    async fn secret(&self, namespace: &str, name: &str) -> Result<Arc<Secret>, ObjectError> {
        self.shared.secrets.get(namespace, name).await
    }

    fn services(&self) -> Option<Arc<Vec<Arc<Service>>>> {
        self.shared.services.borrow().clone()
    }

    async fn runtime_class(&self, name: &str) -> Result<Arc<RuntimeClass>, ObjectError> {
        let mut classes = self.shared.runtime_classes.clone();
        let synced = tokio::time::timeout(SYNC_WAIT, classes.wait_for(Option::is_some)).await;
        let known = match synced {
            Ok(Ok(known)) => known.clone().unwrap_or_default(),
            _ => {
                let text = "failed to sync runtimeclass cache: timed out waiting for the condition";
                return Err(ObjectError::Unavailable(text.into()));
            }
        };
        known.iter().find(|c| c.metadata.name.as_deref() == Some(name)).cloned().ok_or_else(|| {
            ObjectError::NotFound(format!("runtimeclass.node.k8s.io {name:?} not found"))
        })
    }

    async fn claim(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<Arc<PersistentVolumeClaim>, ObjectError> {
        let api: Api<PersistentVolumeClaim> =
            Api::namespaced(self.shared.reads.client(), namespace);
        self.shared.reads.ask_referred(|| api.get(name)).await.map(slim).map_err(sorted)
    }

    async fn volume(&self, name: &str) -> Result<Arc<PersistentVolume>, ObjectError> {
        let api: Api<PersistentVolume> = Api::all(self.shared.reads.client());
        self.shared.reads.ask_referred(|| api.get(name)).await.map(slim).map_err(sorted)
    }

    async fn node_now(&self) -> Result<Arc<Node>, ObjectError> {
        let api: Api<Node> = Api::all(self.shared.reads.client());
        self.shared.reads.ask(api.get(&self.shared.node_name)).await.map(slim).map_err(sorted)
    }

    async fn service_account(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<Arc<ServiceAccount>, ObjectError> {
        let api: Api<ServiceAccount> = Api::namespaced(self.shared.reads.client(), namespace);
        self.shared.reads.ask_referred(|| api.get(name)).await.map(slim).map_err(sorted)
    }

    fn changes(&self) -> Option<broadcast::Receiver<ObjectChange>> {
        Some(self.shared.changes.subscribe())
    }

    async fn token(&self, request: &TokenRequest) -> Result<TokenResponse, ObjectError> {
        self.shared.tokens.get(request).await.map_err(ObjectError::Unavailable)
    }
}

pub(crate) fn slim<K: kube::Resource>(mut object: K) -> Arc<K> {
    object.meta_mut().managed_fields = None;
    Arc::new(object)
}

pub(crate) fn sorted(error: ApiError) -> ObjectError {
    match error.is_not_found() {
        true => ObjectError::NotFound(error.to_string()),
        false => ObjectError::Unavailable(error.to_string()),
    }
}
