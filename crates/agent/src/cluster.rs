//! The API server's side of things: connection, certificates, watches; in standalone mode the
//! stand-ins.

use crate::host::Host;
use crate::{AgentError, settings};
use config::Config;
use kubeapi::certs::{ClientCertConfig, EstablishError, Established, establish};
use kubeapi::{
    ApiClaims, ApiEvents, ApiObjects, ApiPods, ApiReviews, ApiStorage, Connection,
    ConnectionConfig, EventLog, EventsConfig, PodWatchEvent, RequestMetrics, StandaloneObjects,
    watch_pods,
};
use ports::{
    ClaimApi, Clock, Events, NodeView, Objects, OnExit, PodApi, Reviews, StorageApi, Tasks,
};
use std::sync::Arc;
use telemetry::metrics::Registry;
use tokio::sync::{mpsc, watch};

/// What the subsystems use of the API server.
#[derive(Debug)]
pub(crate) struct Cluster {
    pub(crate) connection: Option<Connection>,
    pub(crate) objects: Arc<dyn Objects>,
    pub(crate) events: Arc<dyn Events>,
    pub(crate) storage: Option<Arc<dyn StorageApi>>,
    pub(crate) claims: Option<Arc<dyn ClaimApi>>,
    pub(crate) reviews: Option<Arc<dyn Reviews>>,
    pub(crate) pods: Option<Arc<dyn PodApi>>,
    pub(crate) pod_sets: Option<mpsc::Receiver<Vec<Arc<api::core::v1::Pod>>>>,
}

impl Cluster {
    /// Reads or obtains credentials and starts the watches; standalone without a kubeconfig.
    pub(crate) async fn join(
        config: &Config,
        host: &Host,
        view: &watch::Receiver<Arc<NodeView>>,
        (clock, registry): (&Arc<dyn Clock>, &Registry),
        tasks: &Tasks,
    ) -> Result<Self, AgentError> {
        let (Some(api), Some(objects)) = (&config.api, settings::objects(config, host)) else {
            return Ok(Self {
                connection: None,
                objects: Arc::new(StandaloneObjects),
                events: Arc::new(EventLog),
                storage: None,
                claims: None,
                reviews: None,
                pods: None,
                pod_sets: None,
            });
        };
        let name = host.hostname.clone();
        let credentials = ClientCertConfig {
            node_name: name.clone(),
            kubeconfig: api.kubeconfig.clone(),
            bootstrap_kubeconfig: api.bootstrap_kubeconfig.clone(),
            cert_dir: config.dirs.certs.clone(),
            rotate: api.rotate_certificates,
        };
        let connection = ConnectionConfig {
            metrics: Some(RequestMetrics::new(registry)),
            ..settings::connection(config)
        };
        let established = establish(&credentials, &connection, Arc::clone(clock));
        let Established { connection, kubeconfig, rotation } =
            established.await.map_err(|e| fault(&e))?;
        if let Some(rotation) = rotation {
            let rotation = rotation.with_metrics(registry).run(tasks.token());
            tasks.spawn("client-certificate", OnExit::Exit, rotation);
        }
        // With rotation that is the authority alone: the kubeconfig has no credentials then.
        let follow = connection.clone().follow_files(kubeconfig, tasks.token());
        tasks.spawn("kubeconfig-files", OnExit::Fine, follow);
        let (events, sending) = ApiEvents::new(
            &connection,
            EventsConfig { node_name: name.clone() },
            Arc::clone(clock),
            tasks.token(),
        );
        tasks.spawn("events", OnExit::Exit, sending);
        let objects =
            ApiObjects::start(&connection, &objects, view.clone(), Arc::clone(clock), tasks);
        Ok(Self {
            objects: Arc::new(objects),
            events: Arc::new(events),
            storage: Some(Arc::new(ApiStorage::new(&connection, name.clone()))),
            claims: Some(Arc::new(ApiClaims::new(&connection, name.clone()))),
            reviews: Some(Arc::new(ApiReviews::new(&connection))),
            pods: Some(Arc::new(ApiPods::new(&connection))),
            pod_sets: Some(pod_sets(connection.clone(), name, tasks)),
            connection: Some(connection),
        })
    }
}

fn fault(error: &EstablishError) -> AgentError {
    AgentError::Api(telemetry::Chain(error).to_string())
}

/// Complete pod sets from the API server, newest only.
fn pod_sets(
    connection: Connection,
    name: String,
    tasks: &Tasks,
) -> mpsc::Receiver<Vec<Arc<api::core::v1::Pod>>> {
    let (out, mut watched) = watch::channel::<Option<PodWatchEvent>>(None);
    tasks.spawn("pod-watch", OnExit::Exit, watch_pods(connection, name, out, tasks.token()));
    let (sender, receiver) = mpsc::channel(1);
    tasks.spawn("pod-sets", OnExit::Exit, async move {
        while watched.changed().await.is_ok() {
            let set = watched.borrow_and_update().clone();
            if let Some(set) = set
                && sender.send(set.pods.values().cloned().collect()).await.is_err()
            {
                return;
            }
        }
    });
    receiver
}
