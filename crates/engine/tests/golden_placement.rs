//! Placement of CPUs and memory as the Go kubelet's code placed them (`fixtures/golden/placement`).
#![forbid(unsafe_code)]
#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::disallowed_methods,
    reason = "a test"
)]

use api::core::v1::{Container, Pod};
use engine::cpus::checkpoint as cpu_file;
use engine::cpus::{
    CpuInfo, CpuOptions, CpuSetup, CpuState, CpuTopology, OptionStages, StaticCpus, take,
};
use engine::memory::checkpoint as memory_file;
use engine::memory::{MemorySetup, MemoryState, NodeFacts, StaticMemory};
use engine::topology::{Entries, Hint, Numa, NumaMask, Policy, PolicyKind, ResourceHints};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use units::CpuSet;

fn lines(name: &str) -> Vec<Value> {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/golden/placement");
    let text = std::fs::read_to_string(format!("{dir}/{name}")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn numbers(value: &Value) -> Vec<i64> {
    value.as_array().unwrap().iter().map(|number| number.as_i64().unwrap()).collect()
}

fn size(value: &Value) -> usize {
    usize::try_from(value.as_u64().unwrap()).unwrap()
}

/// The same keys in lower and upper case.
fn topology(case: &Value, keys: [&str; 6]) -> CpuTopology {
    let [numa, socket, core, uncore] = [0, 1, 2, 3].map(|at| numbers(&case[keys[at]]));
    let info = |at: usize| CpuInfo {
        numa: numa[at],
        socket: socket[at],
        core: core[at],
        uncore: uncore[at],
    };
    let cpus = (0..numa.len()).map(|at| (u32::try_from(at).unwrap(), info(at))).collect();
    CpuTopology { cpus, sockets: size(&case[keys[4]]), cores: size(&case[keys[5]]) }
}

fn options(names: &Value) -> CpuOptions {
    let names = names.as_array().cloned().unwrap_or_default();
    let on = |name: &Value| (name.as_str().unwrap().to_owned(), "true".to_owned());
    let stages = OptionStages { alpha: true, beta: true };
    CpuOptions::parse(&names.iter().map(on).collect(), stages).unwrap()
}

#[test]
fn free_cpus_are_taken_alike() {
    for case in lines("take.jsonl") {
        let topology = topology(&case, ["Numa", "Socket", "Core", "Uncore", "Sockets", "Cores"]);
        let free: CpuSet = case["Free"].as_str().unwrap().parse().unwrap();
        let taken = take(&topology, &free, size(&case["Count"]), options(&case["Options"]));
        let shown = taken.map_or_else(|error| error.to_string(), |cpus| cpus.to_string());
        let expected = case["Error"].as_str().or(case["Taken"].as_str()).unwrap_or_default();
        assert_eq!(shown, expected, "{case}");
    }
}

/// A pod from `[kind, name, requests]`.
fn pod(uid: &str, containers: &Value) -> Pod {
    let (mut init, mut regular) = (Vec::new(), Vec::new());
    for entry in containers.as_array().unwrap() {
        let resources = json!({"requests": entry[2], "limits": entry[2]});
        let mut container = json!({"name": entry[1], "resources": resources});
        if entry[0] == "sidecar" {
            container["restartPolicy"] = json!("Always");
        }
        if entry[0] == "regular" { regular.push(container) } else { init.push(container) }
    }
    serde_json::from_value(json!({
        "metadata": {"uid": uid, "name": uid},
        "spec": {"initContainers": init, "containers": regular},
    }))
    .unwrap()
}

fn container<'a>(pod: &'a Pod, name: &Value) -> &'a Container {
    let spec = pod.spec.as_ref().unwrap();
    let mut all = spec.init_containers.iter().flatten().chain(&spec.containers);
    all.find(|container| *name == container.name.as_str()).unwrap()
}

fn affinity(step: &Value) -> Option<NumaMask> {
    let nodes = step["affinity"].as_array()?;
    Some(NumaMask::of(nodes.iter().map(|node| u32::try_from(node.as_u64().unwrap()).unwrap())))
}

fn shown(hints: &[Hint]) -> Value {
    let one = |hint: &Hint| {
        let nodes: Vec<String> =
            hint.affinity.unwrap().nodes().map(|node| node.to_string()).collect();
        format!("{}{}", nodes.join(","), if hint.preferred { "+" } else { "-" })
    };
    json!(hints.iter().map(one).collect::<Vec<_>>().join(" "))
}

fn by_resource(hints: &ResourceHints) -> BTreeMap<String, Value> {
    hints.iter().map(|(name, hints)| (name.clone(), shown(hints.as_ref().unwrap()))).collect()
}

#[test]
fn exclusive_cpus_are_placed_alike_over_the_life_of_pods() {
    for case in lines("cpus.jsonl") {
        let setup = CpuSetup {
            topology: topology(&case, ["numa", "socket", "core", "uncore", "sockets", "cores"]),
            options: Ok(CpuOptions::default()),
            reserved_milli: Some(case["reserved"].as_i64().unwrap() * 1000),
            reserved: CpuSet::new(),
            policy: PolicyKind::None,
            pod_level_resources: true,
            pod_level_managers: false,
        };
        // Reserved CPUs were chosen before options counted.
        let reserved = StaticCpus::new(setup.clone()).unwrap();
        let reserved = setup.topology.all().difference(&reserved.allocatable());
        let setup = CpuSetup { options: Ok(options(&case["options"])), reserved, ..setup };
        let mut cpus = StaticCpus::new(setup).unwrap();
        cpus.restore(CpuState::default()).unwrap();
        let mut pods = BTreeMap::new();
        for step in case["steps"].as_array().unwrap() {
            let uid = step["uid"].as_str().unwrap().to_owned();
            if let Some(containers) = step.get("pod") {
                pods.insert(uid.clone(), pod(&uid, containers));
            }
            if step["op"] == "remove" {
                cpus.keep_only(&|held| held != uid);
            } else {
                let pod = &pods[&uid];
                let container = container(pod, &step["container"]);
                let hints =
                    |hints: ResourceHints| by_resource(&hints).remove("cpu").unwrap_or_default();
                assert_eq!(hints(cpus.hints(pod, container)), step["hints"], "{step}");
                assert_eq!(hints(cpus.pod_hints(pod)), step["podHints"], "{step}");
                let result = cpus.allocate(pod, container, affinity(step));
                let error = result.err().map(|refusal| refusal.to_string());
                assert_eq!(error.as_deref(), step["error"].as_str(), "{step}");
            }
            let state = cpus.state();
            assert_eq!(json!(state.shared), step["shared"], "{step}");
            assert_eq!(json!(state.own), step["own"], "{step}");
        }
    }
}

#[test]
fn memory_is_placed_alike_over_the_life_of_pods() {
    for case in lines("memory.jsonl") {
        let nodes = case["nodes"].as_array().unwrap().iter().map(|node| NodeFacts {
            id: u32::try_from(node["id"].as_u64().unwrap()).unwrap(),
            memory: node["memory"].as_u64().unwrap(),
            huge_pages: serde_json::from_value(node["hugePages"].clone()).unwrap(),
        });
        let setup = MemorySetup {
            nodes: nodes.collect(),
            reserved: serde_json::from_value(case["reserved"].clone()).unwrap(),
            pod_level_resources: true,
            pod_level_managers: false,
        };
        let mut memory = StaticMemory::new(setup).unwrap();
        memory.restore(MemoryState::default()).unwrap();
        let mut pods = BTreeMap::new();
        for step in case["steps"].as_array().unwrap() {
            let uid = step["uid"].as_str().unwrap().to_owned();
            if let Some(containers) = step.get("pod") {
                pods.insert(uid.clone(), pod(&uid, containers));
            }
            if step["op"] == "remove" {
                memory.keep_only(&|held| held != uid);
            } else if step["op"] == "start" {
                memory.started(&pods[&uid], container(&pods[&uid], &step["container"]));
            } else {
                let pod = &pods[&uid];
                let container = container(pod, &step["container"]);
                assert_eq!(
                    json!(by_resource(&memory.hints(pod, container))),
                    step["hints"],
                    "{step}"
                );
                assert_eq!(json!(by_resource(&memory.pod_hints(pod))), step["podHints"], "{step}");
                let preferred = step["preferred"].as_bool().unwrap();
                let hint = Hint { affinity: affinity(step), preferred };
                let error = memory.allocate(pod, container, hint).err().map(|e| e.to_string());
                assert_eq!(error.as_deref(), step["error"].as_str(), "{step}");
            }
            let state = memory.state();
            let machine: BTreeMap<String, Value> = state
                .machine
                .iter()
                .map(|(id, node)| {
                    let tables: BTreeMap<&String, (u64, u64)> =
                        node.tables.iter().map(|(kind, t)| (kind, (t.reserved, t.free))).collect();
                    (id.to_string(), json!([node.assignments, node.cells, tables]))
                })
                .collect();
            assert_eq!(json!(machine), step["machine"], "{step}");
            let own: BTreeMap<_, BTreeMap<_, Vec<_>>> = state
                .own
                .iter()
                .map(|(uid, containers)| {
                    let blocks = containers.iter().map(|(name, blocks)| {
                        let block = |b: &engine::memory::Block| json!([b.nodes, b.kind, b.size]);
                        (name, blocks.iter().map(block).collect())
                    });
                    (uid, blocks.collect())
                })
                .collect();
            assert_eq!(json!(own), step["own"], "{step}");
        }
    }
}

#[test]
fn hints_are_merged_alike() {
    for case in lines("merge.jsonl") {
        let row = |row: &Value| serde_json::from_value::<Vec<u64>>(row.clone()).unwrap();
        let rows = case["Distances"].as_array().unwrap();
        let numa = Numa { distances: (0..).zip(rows.iter().map(row)).collect() };
        let kind = match case["Policy"].as_str().unwrap() {
            "best-effort" => PolicyKind::BestEffort,
            "restricted" => PolicyKind::Restricted,
            _ => PolicyKind::SingleNumaNode,
        };
        let closest = ("prefer-closest-numa-nodes".to_owned(), case["Closest"].to_string());
        let policy = Policy::new(kind, numa, &BTreeMap::from([closest])).unwrap();
        let hint = |hint: &Value| {
            let nodes = serde_json::from_value::<Option<Vec<u32>>>(hint["Nodes"].clone()).unwrap();
            Hint { affinity: nodes.map(NumaMask::of), preferred: hint["Preferred"] == true }
        };
        let provider = |provider: &Value| -> ResourceHints {
            let list = |hints: &Value| Some(hints.as_array()?.iter().map(hint).collect());
            let resources = provider.as_object().unwrap().iter();
            resources.map(|(name, hints)| (name.clone(), list(hints))).collect()
        };
        let providers: Vec<ResourceHints> =
            case["Hints"].as_array().into_iter().flatten().map(provider).collect();
        let expected = (hint(&case["Best"]), case["Admit"] == true);
        assert_eq!(policy.merge(&providers), expected, "{case}");
    }
}

#[test]
fn state_files_of_the_go_kubelet_are_read_and_written_again_byte_by_byte() {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/golden/placement");
    let text = |name: &str| std::fs::read_to_string(format!("{dir}/{name}")).unwrap();
    let cpus = text("cpu_manager_state");
    let state = cpu_file::decode(&cpus, "static", &BTreeMap::new(), Entries::Containers).unwrap();
    assert_eq!((state.shared.to_string(), state.exclusive().to_string()), ("0".into(), "1".into()));
    assert_eq!(cpu_file::encode("static", &state, Entries::Containers), cpus);
    let memory = text("memory_manager_state");
    let state = memory_file::decode(&memory, "Static", Entries::Containers).unwrap();
    assert_eq!(state.own.len(), 1);
    assert_eq!(memory_file::encode("Static", &state, Entries::Containers), memory);
}
