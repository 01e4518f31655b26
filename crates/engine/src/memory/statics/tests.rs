//! The policy over the life of pods.

use super::*;
use api::pod::PodExt;
use proptest::prelude::*;
use serde_json::json;

const GI: u64 = 1 << 30;

/// Nodes of 10 Gi, 1 Gi of each kept for the system.
fn started(nodes: u32) -> StaticMemory {
    let facts = |id| NodeFacts { id, memory: 10 * GI, huge_pages: vec![(2048, 512)] };
    let kept = |id| (id, BTreeMap::from([("memory".to_owned(), GI)]));
    let setup = MemorySetup {
        nodes: (0..nodes).map(facts).collect(),
        reserved: (0..nodes).map(kept).collect(),
        pod_level_resources: true,
        pod_level_managers: false,
    };
    let mut memory = StaticMemory::new(setup).unwrap();
    memory.restore(MemoryState::default()).unwrap();
    memory
}

fn pod(uid: &str, init: &[(&str, &str)], regular: &[(&str, &str)]) -> Pod {
    let container = |(name, memory): &(&str, &str)| {
        let amounts = json!({"cpu": "1", "memory": memory});
        let mut container = json!({
            "name": name.trim_start_matches('+'),
            "resources": {"requests": amounts, "limits": amounts},
        });
        if name.starts_with('+') {
            container["restartPolicy"] = json!("Always");
        }
        container
    };
    serde_json::from_value(json!({
        "metadata": {"uid": uid, "name": uid},
        "spec": {
            "initContainers": init.iter().map(container).collect::<Vec<_>>(),
            "containers": regular.iter().map(container).collect::<Vec<_>>(),
        },
    }))
    .unwrap()
}

fn place(memory: &mut StaticMemory, pod: &Pod, hint: Hint) -> Result<(), String> {
    let regular = pod.spec.iter().flat_map(|spec| &spec.containers);
    for container in pod.init_containers().chain(regular) {
        memory.allocate(pod, container, hint).map_err(|refusal| refusal.to_string())?;
    }
    Ok(())
}

fn nodes_of(memory: &StaticMemory, uid: &str, container: &str) -> Vec<u32> {
    memory.state().of(uid, container).unwrap()[0].nodes.clone()
}

fn free(memory: &StaticMemory) -> Vec<u64> {
    memory.state().machine.values().map(|node| node.tables["memory"].free / GI).collect()
}

#[test]
fn memory_is_what_huge_pages_and_the_system_leave() {
    let memory = started(2);
    let node = &memory.state().machine[&0];
    assert_eq!(node.tables["memory"].allocatable, 8 * GI);
    assert_eq!(node.tables["hugepages-2Mi"].total, GI);
    assert_eq!(memory.allocatable().len(), 4);
    assert_eq!(node.cells, [0]);
}

#[test]
fn a_pod_that_fits_one_node_gets_one_and_a_larger_one_gets_a_group() {
    let mut memory = started(2);
    place(&mut memory, &pod("small", &[], &[("a", "5Gi")]), Hint::default()).unwrap();
    assert_eq!(nodes_of(&memory, "small", "a"), [0]);
    // Both nodes together would mix a group with a node that is used alone.
    let refused = place(&mut memory, &pod("large", &[], &[("a", "10Gi")]), Hint::default());
    assert_eq!(refused.unwrap_err(), MemoryRefusal::NoNodes.to_string());
    memory.keep_only(&|uid| uid != "small");
    place(&mut memory, &pod("large", &[], &[("a", "10Gi")]), Hint::default()).unwrap();
    assert_eq!(nodes_of(&memory, "large", "a"), [0, 1]);
    assert_eq!(memory.state().machine[&1].cells, [0, 1]);
    assert_eq!(free(&memory), [0, 6]);
    // A node of a group is not used alone.
    let refused = place(&mut memory, &pod("small", &[], &[("a", "1Gi")]), Hint::default());
    assert!(refused.is_ok() && nodes_of(&memory, "small", "a") == [0, 1]);
}

#[test]
fn a_hint_is_followed_extended_or_refused() {
    let mut memory = started(2);
    let on = |nodes: &[u32], preferred| Hint::new(NumaMask::of(nodes.iter().copied()), preferred);
    place(&mut memory, &pod("p", &[], &[("a", "2Gi")]), on(&[1], true)).unwrap();
    assert_eq!(nodes_of(&memory, "p", "a"), [1]);
    let much = pod("q", &[], &[("a", "7Gi")]);
    assert_eq!(
        place(&mut memory, &much, on(&[1], true)).unwrap_err(),
        MemoryRefusal::NotExtensible.to_string()
    );
    assert_eq!(
        place(&mut memory, &pod("r", &[], &[("a", "1Gi")]), on(&[0, 1], true)).unwrap_err(),
        MemoryRefusal::Violates.to_string()
    );
    let mut fresh = started(2);
    let wide = pod("w", &[], &[("a", "12Gi")]);
    place(&mut fresh, &wide, on(&[1], false)).unwrap();
    assert_eq!(nodes_of(&fresh, "w", "a"), [0, 1]);
}

#[test]
fn pods_that_are_not_guaranteed_take_no_part() {
    let mut memory = started(1);
    let mut burstable = pod("p", &[], &[("a", "1Gi")]);
    burstable.spec.as_mut().unwrap().containers[0].resources.as_mut().unwrap().limits = None;
    place(&mut memory, &burstable, Hint::default()).unwrap();
    assert!(
        memory.state().own.is_empty()
            && memory.hints(&burstable, &burstable.spec.as_ref().unwrap().containers[0]).is_empty()
    );
}

#[test]
fn memory_of_init_containers_is_reused_and_let_go_when_later_ones_start() {
    let mut memory = started(1);
    let pod = pod("p", &[("i", "4Gi"), ("+s", "1Gi")], &[("a", "3Gi"), ("b", "2Gi")]);
    place(&mut memory, &pod, Hint::default()).unwrap();
    // 4 for all of i, s and a; b takes 2 more.
    assert_eq!(free(&memory), [2]);
    let size =
        |memory: &StaticMemory, name: &str| memory.state().of("p", name).unwrap()[0].size / GI;
    assert_eq!((size(&memory, "i"), size(&memory, "s"), size(&memory, "a")), (0, 1, 3));
    let container = &pod.spec.as_ref().unwrap().containers[0];
    assert!(memory.started(&pod, container));
    assert!(memory.state().of("p", "i").is_none() && !memory.started(&pod, container));
    assert_eq!(memory.state().machine[&0].assignments, 3);
    memory.keep_only(&|_| false);
    assert_eq!(free(&memory), [8]);
    assert_eq!(memory.state().machine[&0].assignments, 0);
}

fn shown(hints: &ResourceHints) -> String {
    let one = |hint: &Hint| {
        format!("{}{}", hint.affinity.unwrap_or_default(), if hint.preferred { "+" } else { "-" })
    };
    match hints.get("memory") {
        None => "any".to_owned(),
        Some(hints) => hints.iter().flatten().map(one).collect::<Vec<_>>().join(" "),
    }
}

#[test]
fn hints_respect_groups_and_nothing_feasible_means_no_opinion() {
    let mut memory = started(3);
    let hint = |memory: &StaticMemory, uid: &str, amount: &str| {
        let pod = pod(uid, &[], &[("a", amount)]);
        (
            shown(&memory.hints(&pod, &pod.spec.as_ref().unwrap().containers[0])),
            shown(&memory.pod_hints(&pod)),
        )
    };
    let both = |text: &str| (text.to_owned(), text.to_owned());
    assert_eq!(hint(&memory, "x", "8Gi"), both("01+ 10+ 100+ 11- 0101- 0110- 0111-"));
    assert_eq!(hint(&memory, "x", "9Gi"), both("11+ 0101+ 0110+ 0111-"));
    assert_eq!(hint(&memory, "x", "90Gi"), both("any"));
    let pair = Hint::new(NumaMask::of([0, 1]), true);
    place(&mut memory, &pod("p", &[], &[("a", "9Gi")]), pair).unwrap();
    assert_eq!(hint(&memory, "x", "2Gi"), both("100+ 11-"));
    assert_eq!(hint(&memory, "p", "9Gi"), both("11+"));
    assert_eq!(hint(&memory, "p", "8Gi"), both("any"));
}

#[test]
fn a_state_of_another_machine_is_refused() {
    let mut memory = started(2);
    place(&mut memory, &pod("p", &[], &[("a", "9Gi")]), Hint::default()).unwrap();
    let good = memory.state().clone();
    assert_eq!(started(2).restore(good.clone()), Ok(()));
    let fault = |state: MemoryState| started(2).restore(state).unwrap_err().to_string();
    let mut changed = good.clone();
    changed.machine.get_mut(&0).unwrap().tables.get_mut("memory").unwrap().total += 1;
    let different = "[memorymanager] the expected machine state is different from the real one";
    let mut absurd = good.clone();
    for node in absurd.machine.values_mut() {
        node.tables.get_mut("memory").unwrap().free = u64::MAX;
    }
    assert_eq!(fault(absurd), different);
    assert_eq!(fault(changed), different);
    let mut elsewhere = good.clone();
    elsewhere.own.get_mut("p").unwrap().get_mut("a").unwrap()[0].nodes = vec![7];
    assert_eq!(
        fault(elsewhere),
        "[memorymanager] (pod: p, container: a) the memory assignment uses the NUMA that does not exist"
    );
    let empty = MemoryState { machine: BTreeMap::new(), ..good };
    assert_eq!(
        fault(empty),
        "[memorymanager] machine state can not be empty when it has memory assignments"
    );
}

proptest! {
    /// Pods come and go on eight nodes: the sums always balance and the state is accepted after a restart.
    #[test]
    fn the_books_balance(
        steps in proptest::collection::vec((0_usize..10, 1_u64..20, any::<bool>()), 1..50),
    ) {
        let mut memory = started(8);
        for (who, amount, leaves) in steps {
            let uid = format!("p{who}");
            if leaves {
                memory.keep_only(&|held| held != uid);
            } else {
                let amount = format!("{amount}Gi");
                let _ = place(&mut memory, &pod(&uid, &[], &[("a", &amount)]), Hint::default());
            }
            let state = memory.state();
            let held: u64 = state.own.values().flat_map(BTreeMap::values).flatten().map(|b| b.size).sum();
            let reserved: u64 = state.machine.values().map(|n| n.tables["memory"].reserved).sum();
            prop_assert_eq!(held, reserved);
            for node in state.machine.values() {
                let table = &node.tables["memory"];
                prop_assert_eq!(table.free + table.reserved, table.allocatable);
                prop_assert!(node.assignments > 0 || node.cells.len() == 1);
            }
            prop_assert_eq!(started(8).restore(state.clone()), Ok(()));
        }
    }
}
