//! The file in both directions, and faults.

use super::*;

fn example() -> MemoryState {
    let table = MemoryTable {
        total: 2048,
        system_reserved: 512,
        allocatable: 1536,
        reserved: 512,
        free: 1024,
    };
    let tables = BTreeMap::from([("memory".to_owned(), table)]);
    let node = NodeMemory { assignments: 0, tables, cells: Vec::new() };
    let block = Block { nodes: vec![0], kind: "memory".to_owned(), size: 512 };
    let own = BTreeMap::from([("container1".to_owned(), vec![block])]);
    MemoryState {
        machine: BTreeMap::from([(0, node)]),
        own: BTreeMap::from([("pod".to_owned(), own)]),
        pods: BTreeMap::new(),
    }
}

#[test]
fn the_bytes_and_checksums_are_upstreams() {
    let cases = [
        (
            "None",
            MemoryState::default(),
            r#"{"policyName":"None","machineState":{},"checksum":4236770233}"#,
        ),
        (
            "static",
            example(),
            r#"{"policyName":"static","machineState":{"0":{"numberOfAssignments":0,"memoryMap":{"memory":{"total":2048,"systemReserved":512,"allocatable":1536,"reserved":512,"free":1024}},"cells":[]}},"entries":{"pod":{"container1":[{"numaAffinity":[0],"type":"memory","size":512}]}},"checksum":4215593881}"#,
        ),
    ];
    for (policy, state, text) in cases {
        assert_eq!(encode(policy, &state, Entries::Containers), text);
        assert_eq!(decode(text, policy, Entries::Containers), Ok(state));
    }
}

#[test]
fn nodes_are_ordered_as_text() {
    let node = |id| (id, NodeMemory { cells: vec![id], ..NodeMemory::default() });
    let state = MemoryState {
        machine: BTreeMap::from([node(2), node(10)]),
        own: BTreeMap::new(),
        ..MemoryState::default()
    };
    let text = encode("Static", &state, Entries::Containers);
    assert!(text.find(r#""10":"#) < text.find(r#""2":"#), "{text}");
    assert_eq!(decode(&text, "Static", Entries::Containers), Ok(state));
}

#[test]
fn a_file_that_cannot_be_used_is_explained_in_upstreams_words() {
    let cases = [
        (
            encode("None", &MemoryState::default(), Entries::Containers),
            r#"[memorymanager] configured policy "Static" differs from state checkpoint policy "None""#,
        ),
        (
            encode("Static", &example(), Entries::Containers).replace("1536", "1537"),
            "checkpoint is corrupted",
        ),
        ("{".to_owned(), "unexpected end of JSON input"),
    ];
    for (text, fault) in cases {
        assert_eq!(decode(&text, "Static", Entries::Containers).unwrap_err().to_string(), fault);
    }
}

#[test]
fn the_form_with_pods_has_upstreams_bytes_and_takes_older_ones() {
    let empty = r#"{"policyName":"Static","machineState":{},"checksum":3708929156}"#;
    assert_eq!(encode("Static", &MemoryState::default(), Entries::Pods), empty);
    assert_eq!(decode(empty, "Static", Entries::Pods), Ok(MemoryState::default()));
    let text = r#"{"policyName":"Static","machineState":{"0":{"numberOfAssignments":1,"memoryMap":{"memory":{"total":10,"systemReserved":0,"allocatable":10,"reserved":5,"free":5}},"cells":[0]}},"entries":{"u1":{"a":[{"numaAffinity":[0],"type":"memory","size":5}]}},"podEntries":{"u1":{"memoryBlocks":[{"numaAffinity":[0],"type":"memory","size":5}]}},"checksum":4154898970}"#;
    let mut state = decode(text, "Static", Entries::Pods).unwrap();
    assert_eq!(state.pods["u1"][0].size, 5);
    assert_eq!(encode("Static", &state, Entries::Pods), text);
    assert!(decode(text, "Static", Entries::Containers).is_err(), "without the gate");
    state.pods.clear();
    let older = encode("Static", &state, Entries::Containers);
    assert_eq!(decode(&older, "Static", Entries::Pods), Ok(state));
}
