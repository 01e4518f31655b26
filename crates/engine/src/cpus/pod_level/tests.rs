//! Pods with pod-level resources, compared with recorded results of the Go kubelet's code.

use super::*;
use crate::cpus::{CpuInfo, CpuOptions, CpuSetup, CpuState, CpuTopology};
use crate::topology::{Hint, PolicyKind, ResourceHints};
use serde_json::{Value, json};

fn machine(case: &Value) -> StaticCpus {
    let number = |name: &str| u32::try_from(case[name].as_u64().unwrap()).unwrap();
    let (nodes, cores, threads) = (number("nodes"), number("cores"), number("threads"));
    let info = |core: u32| {
        let node = i64::from(core / cores);
        CpuInfo { numa: node, socket: node, core: i64::from(core), uncore: node }
    };
    let all = nodes * cores;
    let count = |number: u32| usize::try_from(number).unwrap();
    let topology = CpuTopology {
        cpus: (0..all * threads).map(|cpu| (cpu, info(cpu % all))).collect(),
        cores: count(all),
        sockets: count(nodes),
    };
    let whole = case["options"].as_array().is_some_and(|o| o.contains(&json!("full-pcpus-only")));
    let setup = CpuSetup {
        topology,
        options: Ok(CpuOptions { full_pcpus_only: whole, ..CpuOptions::default() }),
        reserved_milli: Some(1000),
        reserved: CpuSet::new(),
        policy: PolicyKind::None,
        pod_level_resources: true,
        pod_level_managers: true,
    };
    let mut cpus = StaticCpus::new(setup).unwrap();
    cpus.restore(CpuState::default()).unwrap();
    cpus
}

fn text(hints: &ResourceHints) -> Value {
    let hint = |hint: &Hint| {
        let nodes: Vec<String> =
            hint.affinity.unwrap_or_default().nodes().map(|n| n.to_string()).collect();
        format!("{}{}", nodes.join(","), if hint.preferred { "+" } else { "-" })
    };
    let list = |list: &Vec<Hint>| list.iter().map(hint).collect::<Vec<_>>().join(" ");
    hints.iter().map(|(kind, hints)| (kind.clone(), json!(hints.as_ref().map(list)))).collect()
}

fn shown(state: &CpuState) -> (Value, Value, Value) {
    let own = |own: &BTreeMap<String, CpuSet>| -> Value {
        own.iter().map(|(name, cpus)| (name.clone(), json!(cpus.to_string()))).collect()
    };
    let containers = state.own.iter().map(|(uid, list)| (uid.clone(), own(list))).collect();
    (json!(state.shared.to_string()), containers, own(&state.pods))
}

#[test]
fn pods_and_their_containers_get_the_recorded_cpus() {
    let cases = include_str!("../../../../../fixtures/golden/placement/pods.jsonl");
    let mut taken = 0;
    for (number, line) in cases.lines().enumerate() {
        let case: Value = serde_json::from_str(line).unwrap();
        let mut cpus = machine(&case);
        for (index, step) in case["steps"].as_array().unwrap().iter().enumerate() {
            let place = format!("case {number} step {index}");
            if let Some(uid) = step["gone"].as_str() {
                cpus.keep_only(&|other| other != uid);
            } else {
                let pod: Pod = serde_json::from_value(step["pod"].clone()).unwrap();
                assert_eq!(text(&cpus.pod_hints(&pod)), step["cpuHints"], "{place}");
                let node = step["affinity"].as_array().map(|nodes| nodes[0].as_u64().unwrap());
                let mask = node.map(|node| NumaMask::of([u32::try_from(node).unwrap()]));
                let error = cpus.allocate_pod(&pod, mask).err().map(|error| error.to_string());
                assert_eq!(json!(error), step["cpuError"], "{place}");
                taken += usize::from(error.is_none());
            }
            let (shared, own, pods) = shown(cpus.state());
            let want = (&step["shared"], &step["own"], &step["pods"]);
            assert_eq!((&shared, &own, &pods), want, "{place}");
        }
    }
    assert!(taken > 50, "{taken} allocations are too few");
}

fn pod(cpu: &str, of_one: Value) -> Pod {
    let amounts = json!({"cpu": cpu, "memory": "1Gi"});
    serde_json::from_value(json!({
        "metadata": {"uid": "u"},
        "spec": {
            "resources": {"requests": amounts, "limits": amounts},
            "containers": [{"name": "own", "resources": of_one}, {"name": "shares"}],
        },
    }))
    .unwrap()
}

#[test]
fn a_pod_that_is_admitted_again_keeps_its_cpus() {
    let case = json!({"nodes": 1, "cores": 8, "threads": 1});
    let mut cpus = machine(&case);
    let amounts = json!({"cpu": "2", "memory": "1Mi"});
    let pod = pod("3", json!({"requests": amounts, "limits": amounts}));
    assert!(matches!(
        cpus.allocate_pod(&pod, None),
        Ok(PodAllocation::Taken { exclusive: 1, shared: 1, .. })
    ));
    let before = cpus.state().clone();
    assert_eq!(text(&cpus.pod_hints(&pod)), json!({"cpu": "0+"}));
    assert_eq!(cpus.allocate_pod(&pod, None), Ok(PodAllocation::Kept));
    assert_eq!(*cpus.state(), before);
    let containers = pod.spec.as_ref().map(|spec| spec.containers.clone()).unwrap();
    let exclusive = containers.iter().map(|c| cpus.is_exclusive(&pod, c)).collect::<Vec<_>>();
    assert_eq!(exclusive, [true, false]);
    assert_eq!(cpus.remove("u", "own"), Some(CpuSet::new()), "the pod still has a container");
    assert_eq!(cpus.remove("u", "shares").unwrap().len(), 3);
    assert!(cpus.state().pods.is_empty());
}

#[test]
fn without_the_gate_such_pods_share() {
    let case = json!({"nodes": 1, "cores": 4, "threads": 1});
    let mut cpus = machine(&case);
    cpus.pod_level_managers = false;
    let pod = pod("2", json!({}));
    assert_eq!(cpus.allocate_pod(&pod, None), Ok(PodAllocation::Shared));
    assert_eq!(text(&cpus.pod_hints(&pod)), json!({}));
}
