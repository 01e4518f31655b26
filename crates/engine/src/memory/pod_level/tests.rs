//! Pods with pod-level resources, compared with recorded results of the Go kubelet's code.

use super::*;
use crate::memory::{MemorySetup, MemoryState, NodeFacts};
use crate::topology::NumaMask;
use serde_json::{Value, json};

const MIB: u64 = 1 << 20;

fn machine(nodes: u32) -> StaticMemory {
    let setup = MemorySetup {
        nodes: (0..nodes)
            .map(|id| NodeFacts { id, memory: 512 * MIB, huge_pages: Vec::new() })
            .collect(),
        reserved: (0..nodes).map(|id| (id, [("memory".to_owned(), 16 * MIB)].into())).collect(),
        pod_level_resources: true,
        pod_level_managers: true,
    };
    let mut memory = StaticMemory::new(setup).unwrap();
    memory.restore(MemoryState::default()).unwrap();
    memory
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

#[test]
fn pods_and_their_containers_get_the_recorded_memory() {
    let cases = include_str!("../../../../../fixtures/golden/placement/pods.jsonl");
    let mut taken = 0;
    for (number, line) in cases.lines().enumerate() {
        let case: Value = serde_json::from_str(line).unwrap();
        let mut memory = machine(u32::try_from(case["nodes"].as_u64().unwrap()).unwrap());
        for (index, step) in case["steps"].as_array().unwrap().iter().enumerate() {
            let place = format!("case {number} step {index}");
            if let Some(uid) = step["gone"].as_str() {
                memory.keep_only(&|other| other != uid);
            } else {
                let pod: Pod = serde_json::from_value(step["pod"].clone()).unwrap();
                assert_eq!(text(&memory.pod_hints(&pod)), step["memoryHints"], "{place}");
                let node = step["affinity"].as_array().map(|nodes| nodes[0].as_u64().unwrap());
                let mask = node.map(|node| NumaMask::of([u32::try_from(node).unwrap()]));
                let preferred = step["preferred"].as_bool().unwrap();
                let hint = Hint { affinity: mask, preferred };
                let error = memory.allocate_pod(&pod, hint).err().map(|error| error.to_string());
                assert_eq!(json!(error), step["memoryError"], "{place}");
                taken += usize::from(error.is_none());
            }
            let state = memory.state();
            let free: Vec<u64> = state.machine.values().map(|n| n.tables["memory"].free).collect();
            let assigned: Vec<i64> = state.machine.values().map(|n| n.assignments).collect();
            assert_eq!(json!([free, assigned]), json!([step["free"], step["assigned"]]), "{place}");
            assert_eq!(json!(state.own), step["memoryOwn"], "{place}");
            let entry = |blocks: &Vec<Block>| json!({"memoryBlocks": blocks});
            let pods: Value = state.pods.iter().map(|(u, b)| (u.clone(), entry(b))).collect();
            assert_eq!(pods, step["memoryPods"], "{place}");
        }
    }
    assert!(taken > 50, "{taken} allocations are too few");
}

#[test]
fn a_pod_that_is_admitted_again_keeps_its_memory_and_the_state_fits_its_machine() {
    let mut memory = machine(2);
    let amounts = json!({"cpu": "1", "memory": "100Mi"});
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"uid": "u"},
        "spec": {
            "resources": {"requests": amounts, "limits": amounts},
            "containers": [{"name": "a"}, {"name": "b"}],
        },
    }))
    .unwrap();
    let first = memory.allocate_pod(&pod, Hint::default()).unwrap();
    assert_eq!((first.result, first.exclusive, first.shared), (MemoryAllocation::Taken, 0, 2));
    let before = memory.state().clone();
    assert_eq!(text(&memory.pod_hints(&pod)), json!({"memory": "0+"}));
    let again = memory.allocate_pod(&pod, Hint::default()).unwrap();
    assert_eq!((again.result, memory.state()), (MemoryAllocation::Kept, &before));
    let mut restarted = machine(2);
    restarted.restore(before).unwrap();
    assert!(restarted.remove("u", "a") && restarted.remove("u", "b"));
    assert_eq!(restarted.state(), machine(2).state());
}
