//! The API server's side of things: connection, certificates, watches; in standalone mode the
//! stand-ins.

use crate::host::Host;
use crate::{AgentError, settings};
use api::core::v1::Pod;
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
use std::collections::BTreeSet;
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
}

/// Pods of the API server as they come, for their one reader.
pub(crate) type PodSets = Option<mpsc::Receiver<Vec<Arc<Pod>>>>;

impl Cluster {
    /// Reads or obtains credentials and starts the watches; standalone without a kubeconfig.
    pub(crate) async fn join(
        config: &Config,
        host: &Host,
        view: &watch::Receiver<Arc<NodeView>>,
        (clock, registry): (&Arc<dyn Clock>, &Registry),
        tasks: &Tasks,
    ) -> Result<(Self, PodSets), AgentError> {
        let (Some(api), Some(objects)) = (&config.api, settings::objects(config, host)) else {
            let alone = Self {
                connection: None,
                objects: Arc::new(StandaloneObjects),
                events: Arc::new(EventLog),
                storage: None,
                claims: None,
                reviews: None,
                pods: None,
            };
            return Ok((alone, None));
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
        let pod_sets = pod_sets(connection.clone(), name.clone(), tasks);
        let cluster = Self {
            objects: Arc::new(objects),
            events: Arc::new(events),
            storage: Some(Arc::new(ApiStorage::new(&connection, name.clone()))),
            claims: Some(Arc::new(ApiClaims::new(&connection, name))),
            reviews: Some(Arc::new(ApiReviews::new(&connection))),
            pods: Some(Arc::new(ApiPods::new(&connection))),
            connection: Some(connection),
        };
        Ok((cluster, Some(pod_sets)))
    }
}

fn fault(error: &EstablishError) -> AgentError {
    AgentError::Api(telemetry::Chain(error).to_string())
}

/// Complete pod sets from the API server, newest only.
fn pod_sets(connection: Connection, name: String, tasks: &Tasks) -> mpsc::Receiver<Vec<Arc<Pod>>> {
    let (out, mut watched) = watch::channel::<Option<PodWatchEvent>>(None);
    tasks.spawn("pod-watch", OnExit::Exit, watch_pods(connection, name, out, tasks.token()));
    let (sender, receiver) = mpsc::channel(1);
    tasks.spawn("pod-sets", OnExit::Exit, async move {
        let mut before = PodWatchEvent::default();
        while watched.changed().await.is_ok() {
            let Some(set) = watched.borrow_and_update().clone() else { continue };
            for set in steps(&before, &set) {
                if sender.send(set).await.is_err() {
                    return;
                }
            }
            before = set;
        }
    });
    receiver
}

/// The sets to hand on: the newest, and before it, if pods were cut off since the last one, one that
/// still has them in their last state. Without it a forced deletion would look like any removal, and
/// the pod would be given all its time to end. A pod that was made anew under the name of one that was
/// cut off is only in the second: a name is one pod's at a time.
fn steps(before: &PodWatchEvent, now: &PodWatchEvent) -> Vec<Vec<Arc<Pod>>> {
    let missed =
        |uid: &api::ids::PodUid| before.pods.contains_key(uid) && !now.pods.contains_key(uid);
    let newest: Vec<_> = now.pods.values().cloned().collect();
    let last: Vec<_> =
        now.cut_off.iter().filter(|(uid, _)| missed(uid)).map(|(_, pod)| Arc::clone(pod)).collect();
    if last.is_empty() {
        return vec![newest];
    }
    let name = |pod: &Arc<Pod>| (pod.metadata.namespace.clone(), pod.metadata.name.clone());
    let taken: BTreeSet<_> = last.iter().map(name).collect();
    let others = newest.iter().filter(|pod| !taken.contains(&name(pod))).cloned();
    vec![others.chain(last.iter().cloned()).collect(), newest]
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn pods(all: &[(&str, i64)]) -> Arc<BTreeMap<api::ids::PodUid, Arc<Pod>>> {
        let one = |(uid, grace): &(&str, i64)| {
            let mut pod = Pod::default();
            pod.metadata.uid = Some((*uid).to_owned());
            pod.metadata.name = Some(uid.split('-').next().unwrap_or_default().to_owned());
            pod.metadata.deletion_grace_period_seconds = Some(*grace);
            ((*uid).into(), Arc::new(pod))
        };
        Arc::new(all.iter().map(one).collect())
    }

    #[test]
    fn a_pod_that_was_cut_off_between_two_looks_is_shown_once_more() {
        let before = PodWatchEvent { pods: pods(&[("a", 30), ("b", 30)]), ..Default::default() };
        let now = PodWatchEvent { pods: pods(&[("b", 30)]), cut_off: pods(&[("a", 0), ("x", 0)]) };
        let shown = steps(&before, &now);
        let graces = |set: &[Arc<Pod>]| -> Vec<Option<i64>> {
            set.iter().map(|pod| pod.metadata.deletion_grace_period_seconds).collect()
        };
        assert_eq!(
            shown.iter().map(|s| graces(s)).collect::<Vec<_>>(),
            [vec![Some(30), Some(0)], vec![Some(30)],]
        );
        assert_eq!(steps(&now, &now).len(), 1);
    }

    #[test]
    fn a_pod_made_anew_under_the_name_of_one_that_was_cut_off_comes_after_its_end() {
        let before = PodWatchEvent { pods: pods(&[("a-1", 30)]), ..Default::default() };
        let now =
            PodWatchEvent { pods: pods(&[("a-2", 30), ("b", 30)]), cut_off: pods(&[("a-1", 0)]) };
        let uids = |set: &Vec<Arc<Pod>>| -> Vec<String> {
            set.iter().filter_map(|pod| pod.metadata.uid.clone()).collect()
        };
        let shown: Vec<_> = steps(&before, &now).iter().map(uids).collect();
        assert_eq!(
            shown,
            [vec!["b".to_owned(), "a-1".to_owned()], vec!["a-2".to_owned(), "b".to_owned()]]
        );
    }
}
