//! What the API server knows about drivers on this node: the `CSINode` object and the node's annotation and
//! topology labels.

use super::PREFIX;
use super::client::Driver;
use super::drivers::{Registered, Version, missing};
use super::limits;
use crate::env::Env;
use api::core::v1::Node;
use api::machinery::apis::meta::v1::OwnerReference;
use api::storage::v1::{CSINode, CSINodeDriver, CSINodeSpec, VolumeNodeResources};
use async_trait::async_trait;
use ports::{ObjectError, PluginHandler, PluginInfo, StorageApi};
use proto::csi_v1::NodeGetInfoResponse;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

const NODE_ID: &str = "csi.volume.kubernetes.io/nodeid";
const MIGRATED: &str = "storage.alpha.kubernetes.io/migrated-plugins";
const MIGRATED_PLUGINS: &str = "kubernetes.io/aws-ebs,kubernetes.io/azure-disk,kubernetes.io/azure-file,kubernetes.io/cinder,kubernetes.io/gce-pd,kubernetes.io/portworx-volume,kubernetes.io/vsphere-volume";
/// Upstream's attempts of a write: the first at once, then after 10 ms, 50 ms, 250 ms.
const TRIES: u32 = 4;
const FIRST_WAIT: Duration = Duration::from_millis(10);
/// The longest pause between attempts to initialise `CSINode`.
const INIT_EVERY: Duration = Duration::from_secs(1);
/// The first such pause.
const INIT_FIRST: Duration = Duration::from_millis(20);

/// Handles plugins of type `CSIPlugin`.
#[derive(Debug)]
pub(crate) struct CsiHandler {
    pub(crate) env: Arc<Env>,
}

#[async_trait]
impl PluginHandler for CsiHandler {
    async fn validate(&self, plugin: &PluginInfo) -> Result<(), String> {
        self.version(plugin, "ValidatePlugin").map(drop).map_err(|e| {
            format!(
                "validation failed for CSI Driver {} at endpoint {}: {e}",
                plugin.name,
                plugin.endpoint.display()
            )
        })
    }

    async fn register(&self, plugin: &PluginInfo) -> Result<(), String> {
        let version = self.version(plugin, "RegisterPlugin")?;
        let endpoint = plugin.endpoint.clone();
        let seconds = self.env.csi.seconds.clone();
        let asked = Driver::at(&endpoint, &plugin.name, seconds).info().await;
        let installed = match asked {
            Ok(info) => install(&self.env, &plugin.name, &info).await,
            Err(e) => Err(e.to_string()),
        };
        match installed {
            Ok(()) => self.env.csi.set(&plugin.name, Registered { endpoint, version }),
            // Also removes the registration of an earlier driver of that name.
            Err(_) => self.take_out(&plugin.name).await,
        }
        installed
    }

    async fn deregister(&self, plugin: &PluginInfo) {
        self.take_out(&plugin.name).await;
    }
}

impl CsiHandler {
    async fn take_out(&self, driver: &str) {
        self.env.csi.remove(driver);
        if let Err(err) = uninstall(&self.env, driver).await {
            tracing::error!(err, driver, "could not uninstall CSI driver");
        }
    }

    fn version(&self, plugin: &PluginInfo, caller: &str) -> Result<Version, String> {
        let name = &plugin.name;
        if plugin.versions.is_empty() {
            return Err(format!(
                "{PREFIX}{caller} for CSI driver {name:?} failed. Plugin returned an empty list for supported versions"
            ));
        }
        let offered: Vec<String> = plugin.versions.iter().map(|v| format!("{v:?}")).collect();
        let version = Version::highest(&plugin.versions).map_err(|e| {
            format!(
                "{PREFIX}{caller} for CSI driver {name:?} failed. None of the versions specified [{}] are supported. err={e}",
                offered.join(" ")
            )
        })?;
        match self.env.csi.get(name) {
            Some(old) if !old.version.is_before(&version) => Err(format!(
                "{PREFIX}{caller} for CSI driver {name:?} failed. Another driver with the same name is already registered with a higher supported version: {:?}",
                old.version.to_string()
            )),
            _ => Ok(version),
        }
    }
}

async fn install(env: &Env, driver: &str, info: &NodeGetInfoResponse) -> Result<(), String> {
    if info.node_id.is_empty() {
        return Err("error adding CSI driver node info: driverNodeID must not be empty".into());
    }
    let Some(storage) = &env.storage else { return Ok(()) };
    let topology = topology(info);
    retry("node", || async {
        let node = env.objects.node_now().await.map_err(|e| e.to_string())?;
        match node_patch(&node, driver, Some(&info.node_id), &topology)? {
            Some(patch) => {
                storage.patch_node_status(patch).await.map(drop).map_err(|e| e.to_string())
            }
            None => Ok(()),
        }
    })
    .await
    .map_err(|e| format!("error updating Node object with CSI driver node info: {e}"))?;
    enter(env, storage.as_ref(), driver, info).await
}

/// Writes the driver's `NodeGetInfo` response to the node and `CSINode`.
async fn enter(
    env: &Env,
    storage: &dyn StorageApi,
    driver: &str,
    info: &NodeGetInfoResponse,
) -> Result<(), String> {
    let topology = topology(info);
    let entry = CSINodeDriver {
        name: driver.to_owned(),
        node_id: info.node_id.clone(),
        topology_keys: Some(topology.keys().cloned().collect()),
        allocatable: allocatable(info.max_volumes_per_node),
    };
    write_csi_node(env, storage, driver, Some(entry))
        .await
        .map_err(|e| format!("error updating CSINode object with CSI driver node info: {e}"))
}

/// Calls `NodeGetInfo` of a registered driver again and updates `CSINode`; the node itself is left as it is.
pub(crate) async fn update(env: &Env, driver: &str) -> Result<(), String> {
    let registered = env.csi.get(driver).ok_or_else(|| {
        format!("failed to create CSI client for driver {driver:?}: {}", missing(driver))
    })?;
    let asked = registered.open(driver, env.csi.seconds.clone()).info().await;
    let info =
        asked.map_err(|e| format!("failed to get NodeGetInfo from driver {driver:?}: {e}"))?;
    let Some(storage) = &env.storage else { return Ok(()) };
    let entered = enter(env, storage.as_ref(), driver, &info).await;
    entered.map_err(|e| format!("failed to update driver {driver:?}: {e}"))
}

async fn uninstall(env: &Env, driver: &str) -> Result<(), String> {
    let Some(storage) = &env.storage else { return Ok(()) };
    write_csi_node(env, storage.as_ref(), driver, None)
        .await
        .map_err(|e| format!("error uninstalling CSI driver from CSINode object {e}"))?;
    retry("node", || async {
        let node = env.objects.node_now().await.map_err(|e| e.to_string())?;
        match node_patch(&node, driver, None, &BTreeMap::new())? {
            Some(patch) => {
                storage.patch_node_status(patch).await.map(drop).map_err(|e| e.to_string())
            }
            None => Ok(()),
        }
    })
    .await
    .map_err(|e| format!("error removing CSI driver node info from Node object {e}"))
}

fn topology(info: &NodeGetInfoResponse) -> BTreeMap<String, String> {
    info.accessible_topology.as_ref().map(|t| t.segments.clone()).unwrap_or_default()
}

fn allocatable(max: i64) -> Option<VolumeNodeResources> {
    (max > 0).then(|| VolumeNodeResources { count: Some(i32::try_from(max).unwrap_or(i32::MAX)) })
}

/// Retries [`TRIES`] times; the error lists each different failure once.
async fn retry<F>(what: &str, mut attempt: impl FnMut() -> F) -> Result<(), String>
where
    F: Future<Output = Result<(), String>>,
{
    let mut wait = FIRST_WAIT;
    let mut causes: Vec<String> = Vec::new();
    for number in 0..TRIES {
        if number > 0 {
            tokio::time::sleep(wait).await;
            wait *= 5;
        }
        match attempt().await {
            Ok(()) => return Ok(()),
            Err(e) if causes.contains(&e) => {}
            Err(e) => causes.push(e),
        }
    }
    let causes = match causes.as_slice() {
        [one] => one.clone(),
        many => format!("[{}]", many.join(", ")),
    };
    Err(format!("error updating {what}: timed out waiting for the condition; caused by: {causes}"))
}

/// The change of the node's annotation and topology labels; `None` if there is nothing to change.
/// `id` is `None` to take the driver out (labels stay).
fn node_patch(
    node: &Node,
    driver: &str,
    id: Option<&str>,
    topology: &BTreeMap<String, String>,
) -> Result<Option<Value>, String> {
    let annotation = node.metadata.annotations.as_ref().and_then(|a| a.get(NODE_ID));
    let mut ids: BTreeMap<String, String> = match annotation.filter(|a| !a.is_empty()) {
        Some(text) => serde_json::from_str(text).map_err(|e| {
            format!("failed to parse node's {NODE_ID:?} annotation value ({text:?}) err={e}")
        })?,
        None => BTreeMap::new(),
    };
    let before = ids.clone();
    match id {
        Some(id) => ids.insert(driver.to_owned(), id.to_owned()),
        None => ids.remove(driver),
    };
    let mut labels = serde_json::Map::new();
    for (key, value) in topology {
        match node.metadata.labels.as_ref().and_then(|l| l.get(key)) {
            Some(found) if found != value => {
                return Err(format!(
                    "detected topology value collision: driver reported {key:?}:{value:?} but existing label is {key:?}:{found:?}"
                ));
            }
            Some(_) => {}
            None => {
                labels.insert(key.clone(), json!(value));
            }
        }
    }
    let mut metadata = serde_json::Map::new();
    if ids != before {
        let value = if ids.is_empty() {
            Value::Null
        } else {
            json!(units::gojson::to_string(&ids).map_err(|e| e.to_string())?)
        };
        metadata.insert("annotations".into(), json!({ NODE_ID: value }));
    }
    if !labels.is_empty() {
        metadata.insert("labels".into(), Value::Object(labels));
    }
    Ok((!metadata.is_empty()).then(|| json!({ "metadata": metadata })))
}

/// Adds a driver's entry to this node's `CSINode`, or removes it.
async fn write_csi_node(
    env: &Env,
    storage: &dyn StorageApi,
    driver: &str,
    entry: Option<CSINodeDriver>,
) -> Result<(), String> {
    retry("CSINode", || async {
        let object = match storage.csi_node().await {
            Ok(object) => object,
            Err(ObjectError::NotFound(_)) => create(env, storage).await?,
            Err(e) => return Err(e.to_string()),
        };
        match csi_node_patch(&object, driver, entry.as_ref()) {
            Some(patch) => storage.patch_csi_node(patch).await.map(drop).map_err(|e| e.to_string()),
            None => Ok(()),
        }
    })
    .await
}

/// The patch of the driver list; `None` if nothing changes.
fn csi_node_patch(object: &CSINode, driver: &str, entry: Option<&CSINodeDriver>) -> Option<Value> {
    let old = &object.spec.drivers;
    let mut drivers: Vec<CSINodeDriver> =
        old.iter().filter(|d| d.name != driver).cloned().collect();
    drivers.extend(entry.cloned());
    let same = old.len() == drivers.len() && drivers.iter().all(|d| old.contains(d));
    (!same).then(|| {
        json!({
            "metadata": {"resourceVersion": object.metadata.resource_version},
            "spec": {"drivers": drivers}
        })
    })
}

async fn create(env: &Env, storage: &dyn StorageApi) -> Result<Arc<CSINode>, String> {
    let node = env.objects.node_now().await.map_err(|e| e.to_string())?;
    storage.create_csi_node(&new_csi_node(&node)).await.map_err(|e| e.to_string())
}

fn new_csi_node(node: &Node) -> CSINode {
    let name = node.metadata.name.clone().unwrap_or_default();
    let mut object = CSINode { spec: CSINodeSpec::default(), ..CSINode::default() };
    object.metadata.name = Some(name.clone());
    object.metadata.owner_references = Some(vec![OwnerReference {
        api_version: "v1".into(),
        kind: "Node".into(),
        name,
        uid: node.metadata.uid.clone().unwrap_or_default(),
        ..OwnerReference::default()
    }]);
    object.metadata.annotations = Some([(MIGRATED.into(), MIGRATED_PLUGINS.into())].into());
    object
}

/// Makes sure that this node has its `CSINode`, reports it ready, and then keeps the drivers' limits in it up to
/// date. The object of an earlier node of the same name is replaced.
pub(crate) async fn initialise(env: Arc<Env>) {
    let Some(storage) = env.storage.clone() else { return };
    let mut last_error = String::new();
    // The node registers shortly after the start, and is not Ready before this is done.
    let mut pause = INIT_FIRST;
    loop {
        match initialise_once(&env, storage.as_ref()).await {
            Ok(()) => {
                env.csi_ready.send_replace(true);
                break;
            }
            Err(err) => {
                if err != last_error {
                    tracing::warn!(err, "CSINode is not yet initialized");
                    last_error = err;
                }
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(INIT_EVERY);
            }
        }
    }
    limits::keep_current(&env).await;
}

async fn initialise_once(env: &Env, storage: &dyn StorageApi) -> Result<(), String> {
    let node = env.objects.node_now().await.map_err(|e| e.to_string())?;
    let object = match storage.csi_node().await {
        Ok(object) => object,
        Err(ObjectError::NotFound(_)) => {
            return create(env, storage).await.map(drop);
        }
        Err(e) => return Err(e.to_string()),
    };
    let uid = node.metadata.uid.as_deref().unwrap_or_default();
    let ours =
        object.metadata.owner_references.iter().flatten().any(|o| o.kind == "Node" && o.uid == uid);
    if !ours {
        storage.delete_csi_node().await.map_err(|e| e.to_string())?;
        return create(env, storage).await.map(drop);
    }
    let marked = object
        .metadata
        .annotations
        .as_ref()
        .and_then(|a| a.get(MIGRATED))
        .is_some_and(|v| v == MIGRATED_PLUGINS);
    if !marked {
        let patch = json!({"metadata": {"annotations": {MIGRATED: MIGRATED_PLUGINS}}});
        storage.patch_csi_node(patch).await.map_err(|e| e.to_string())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(value: Value) -> Node {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn the_node_gets_the_drivers_id_and_topology_once() {
        let empty = node(json!({"metadata": {"name": "n"}}));
        let topology: BTreeMap<String, String> = [("zone".into(), "a".into())].into();
        let patch = node_patch(&empty, "drv", Some("id"), &topology).unwrap().unwrap();
        assert_eq!(
            patch,
            json!({"metadata": {"annotations": {NODE_ID: "{\"drv\":\"id\"}"}, "labels": {"zone": "a"}}})
        );
        let set = node(json!({"metadata": {
            "annotations": {NODE_ID: "{\"drv\":\"id\",\"other\":\"x\"}"}, "labels": {"zone": "a"}}}));
        assert_eq!(node_patch(&set, "drv", Some("id"), &topology), Ok(None));
        let other: BTreeMap<String, String> = [("zone".into(), "b".into())].into();
        assert_eq!(
            node_patch(&set, "drv", Some("id"), &other).unwrap_err(),
            "detected topology value collision: driver reported \"zone\":\"b\" but existing label is \"zone\":\"a\""
        );
        let out = node_patch(&set, "drv", None, &BTreeMap::new()).unwrap().unwrap();
        assert_eq!(out["metadata"]["annotations"][NODE_ID], "{\"other\":\"x\"}");
    }

    #[test]
    fn other_drivers_entries_stay_and_nothing_is_written_twice() {
        let entry = |name: &str, id: &str| CSINodeDriver {
            name: name.into(),
            node_id: id.into(),
            topology_keys: Some(vec![]),
            allocatable: allocatable(7),
        };
        let mut object = CSINode::default();
        object.spec.drivers = vec![entry("a", "1"), entry("b", "2")];
        assert_eq!(csi_node_patch(&object, "a", Some(&entry("a", "1"))), None);
        let patch = csi_node_patch(&object, "a", Some(&entry("a", "9"))).unwrap();
        let names: Vec<&str> = patch["spec"]["drivers"]
            .as_array()
            .unwrap()
            .iter()
            .map(|d| d["name"].as_str().unwrap())
            .collect();
        assert_eq!(names, ["b", "a"]);
        let out = csi_node_patch(&object, "b", None).unwrap();
        assert_eq!(out["spec"]["drivers"].as_array().unwrap().len(), 1);
        assert_eq!(csi_node_patch(&object, "c", None), None);
    }
}
