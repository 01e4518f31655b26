//! The pod resources socket on a real node: exclusive CPUs, NUMA memory and devices of containers, what could be
//! given away, who is not found, and how many calls are answered. `KUBELET=go` asks the Go kubelet the same.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a test on the real machine")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use proto::pod_resources_v1::pod_resources_lister_client::PodResourcesListerClient;
use proto::pod_resources_v1::{
    AllocatableResourcesRequest, ContainerDevices, ContainerResources, GetPodResourcesRequest,
    ListPodResourcesRequest, PodResources,
};
use proto::pod_resources_v1alpha1 as alpha;
use serde_json::{Value, json};
use testkit::real::{
    ControlPlane, ControlPlaneOptions, KubeletKind, KubeletOptions, Service, TestNode, eventually,
};
use tokio::task::JoinSet;
use tonic::Code;
use tonic::transport::Channel;

const PATIENCE: Duration = Duration::from_secs(90);
const RESOURCE: &str = "example.com/resource";
const IMAGE: &str = "registry.k8s.io/e2e-test-images/busybox:1.37.0-1";
const MIB: u64 = 1 << 20;

type Client = PodResourcesListerClient<Channel>;

fn options() -> KubeletOptions {
    KubeletOptions {
        config: json!({
            "cpuManagerPolicy": "static", "reservedSystemCPUs": "0",
            "memoryManagerPolicy": "Static",
            "reservedMemory": [{"numaNode": 0, "limits": {"memory": "100Mi"}}],
            "topologyManagerPolicy": "best-effort",
        }),
        own_devices: true,
        ..KubeletOptions::default()
    }
}

fn pod(name: &str, containers: &Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"},
        "spec": {"nodeName": "node1", "automountServiceAccountToken": false,
            "terminationGracePeriodSeconds": 1, "restartPolicy": "Never", "containers": containers},
    })
}

fn container(name: &str, script: &str, limits: &Value) -> Value {
    json!({"name": name, "image": IMAGE, "command": ["sh", "-c", script],
        "resources": {"limits": limits}})
}

fn sample_plugin(node: &TestNode) -> Service {
    let program = node.part("sample-device-plugin").unwrap();
    let mut command = node.command(program).unwrap();
    command.env("PLUGIN_SOCK_DIR", "/var/lib/kubelet/device-plugins");
    node.start_beside("device-plugin", command).unwrap()
}

fn allocatable(control: &ControlPlane) -> Value {
    let node = control.get(["node", "node1"]).unwrap_or_default();
    node["status"]["allocatable"][RESOURCE].clone()
}

fn phase(control: &ControlPlane, name: &str) -> Value {
    control.get(["pod", name]).unwrap_or_default()["status"]["phase"].clone()
}

async fn list(client: &mut Client) -> BTreeMap<String, PodResources> {
    let answer = client.list(ListPodResourcesRequest {}).await.unwrap().into_inner();
    answer.pod_resources.into_iter().map(|pod| (pod.name.clone(), pod)).collect()
}

async fn get(client: &mut Client, name: &str) -> Result<PodResources, tonic::Status> {
    let request =
        GetPodResourcesRequest { pod_name: name.to_owned(), pod_namespace: "default".to_owned() };
    let answer = client.get(request).await?.into_inner();
    Ok(answer.pod_resources.unwrap())
}

fn device_ids(devices: &[ContainerDevices]) -> Vec<String> {
    assert!(devices.iter().all(|entry| entry.resource_name == RESOURCE));
    let mut ids: Vec<String> =
        devices.iter().flat_map(|entry| entry.device_ids.iter().cloned()).collect();
    ids.sort();
    ids
}

fn has_nothing(container: &ContainerResources) -> bool {
    container.devices.is_empty() && container.cpu_ids.is_empty() && container.memory.is_empty()
}

#[test]
fn the_socket_tells_who_has_what_and_what_there_is() {
    let control = Arc::new(ControlPlane::start(&ControlPlaneOptions::default()).unwrap());
    let kind = KubeletKind::from_env().unwrap();
    let builder = TestNode::builder().kubelet(kind).options(options()).join(&control);
    let mut node = builder.start().unwrap();
    let _plugin = sample_plugin(&node);
    eventually(PATIENCE, "two devices are reported", || allocatable(&control) == "2").unwrap();

    let own = json!({"cpu": "1", "memory": "64Mi", RESOURCE: "1"});
    let forever = "trap 'exit 0' TERM; sleep 3600 & wait";
    control.create(&pod("exclusive", &json!([container("own", forever, &own)]))).unwrap();
    let plain = json!([container("plain", forever, &json!({}))]);
    control.create(&pod("plain", &plain)).unwrap();
    control.create(&pod("over", &json!([container("over", "true", &json!({}))]))).unwrap();
    for name in ["own", "plain"] {
        node.wait_running(name, PATIENCE).unwrap();
    }
    eventually(PATIENCE, "a pod is over", || phase(&control, "over") == "Succeeded").unwrap();

    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(ask(&node));
    control.kubectl(["delete", "pod", "exclusive", "--wait=false"]).unwrap();
    eventually(PATIENCE, "the pod is gone", || control.get(["pod", "exclusive"]).is_err()).unwrap();
    runtime.block_on(async {
        let mut client = connect(&node).await;
        let pods = list(&mut client).await;
        assert!(!pods.contains_key("exclusive"), "{:?}", pods.keys());
        let gone = get(&mut client, "exclusive").await.unwrap_err();
        assert_eq!(gone.message(), "pod exclusive in namespace default not found");
    });
    let (_, page) = node.kubelet_get("/metrics").unwrap();
    for part in ["requests_get_allocatable", "requests_list", "requests_get", "errors_get"] {
        let start = format!("kubelet_pod_resources_endpoint_{part}{{server_api_version=\"v1\"}} ");
        assert!(page.lines().any(|line| line.starts_with(&start)), "{start}");
    }
    node.stop_kubelet();
}

async fn connect(node: &TestNode) -> Client {
    let socket = node.root_dir().join("pod-resources/kubelet.sock");
    PodResourcesListerClient::new(sockets::connect(&socket, PATIENCE).await.unwrap())
}

async fn ask(node: &TestNode) {
    let mut client = connect(node).await;
    let pods = list(&mut client).await;
    let names: Vec<&str> = pods.keys().map(String::as_str).collect();
    assert_eq!(names, ["exclusive", "plain"], "a pod that is over is not told");
    let exclusive = &pods["exclusive"];
    let [own] = exclusive.containers.as_slice() else { panic!("{exclusive:?}") };
    assert_eq!(own.name, "own");
    assert_eq!(own.cpu_ids, [1], "the other one is the system's");
    let held = device_ids(&own.devices);
    assert!(held.len() == 1 && held[0].starts_with("Dev-"), "{held:?}");
    assert!(own.devices[0].topology.is_none(), "the plugin told none");
    let [memory] = own.memory.as_slice() else { panic!("{own:?}") };
    assert_eq!((memory.memory_type.as_str(), memory.size), ("memory", 64 * MIB));
    let nodes: Vec<i64> = memory.topology.iter().flat_map(|t| &t.nodes).map(|n| n.id).collect();
    assert_eq!(nodes, [0]);
    assert!(has_nothing(&pods["plain"].containers[0]), "{:?}", pods["plain"]);

    assert_eq!(&get(&mut client, "exclusive").await.unwrap(), exclusive);
    for name in ["over", "nobody"] {
        let error = get(&mut client, name).await.unwrap_err();
        let text = format!("pod {name} in namespace default not found");
        assert_eq!((error.code(), error.message()), (Code::Unknown, text.as_str()));
    }
    let all = client.get_allocatable_resources(AllocatableResourcesRequest {}).await.unwrap();
    let all = all.into_inner();
    assert_eq!(device_ids(&all.devices), ["Dev-1", "Dev-2"], "also those in use");
    let mut cpus = all.cpu_ids.clone();
    cpus.sort_unstable();
    assert!(!cpus.contains(&0) && cpus.contains(&1), "{cpus:?}");
    assert!(all.memory.iter().any(|block| block.memory_type == "memory" && block.size > 0));

    let socket = node.root_dir().join("pod-resources/kubelet.sock");
    let channel = sockets::connect(&socket, PATIENCE).await.unwrap();
    let mut old = alpha::pod_resources_lister_client::PodResourcesListerClient::new(channel);
    let told = old.list(alpha::ListPodResourcesRequest {}).await.unwrap().into_inner();
    let told = told.pod_resources.iter().find(|pod| pod.name == "exclusive").unwrap();
    assert_eq!(told.containers[0].devices[0].device_ids, held);
    assert!(too_many(&client).await, "a flood of calls is not answered");
}

/// Whether calls, a hundred at once, are refused at some time.
async fn too_many(client: &Client) -> bool {
    for _ in 0..20 {
        let mut calls = JoinSet::new();
        for _ in 0..100 {
            let mut client = client.clone();
            calls.spawn(async move { client.list(ListPodResourcesRequest {}).await });
        }
        let errors: Vec<tonic::Status> =
            calls.join_all().await.into_iter().filter_map(Result::err).collect();
        if let Some(error) = errors.first() {
            let seen = (error.code(), error.message());
            assert_eq!(seen, (Code::ResourceExhausted, "rejected by rate limit"));
            return true;
        }
    }
    false
}
