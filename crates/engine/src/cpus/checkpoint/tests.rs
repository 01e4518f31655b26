//! The file in both directions, old forms and faults.

use super::*;

fn state(shared: &str, own: &[(&str, &str, &str)]) -> CpuState {
    let mut state = CpuState { shared: shared.parse().unwrap(), ..CpuState::default() };
    for (uid, container, cpus) in own {
        state.set(uid, container, cpus.parse().unwrap());
    }
    state
}

#[test]
fn the_bytes_and_checksums_are_upstreams() {
    let cases = [
        (
            "none",
            state("", &[]),
            r#"{"policyName":"none","defaultCpuSet":"","checksum":1353318690}"#,
        ),
        (
            "none",
            state("4-6", &[]),
            r#"{"policyName":"none","defaultCpuSet":"4-6","checksum":354655845}"#,
        ),
        (
            "none",
            state("1-3", &[("pod", "container1", "4-6"), ("pod", "container2", "1-3")]),
            r#"{"policyName":"none","defaultCpuSet":"1-3","entries":{"pod":{"container1":"4-6","container2":"1-3"}},"checksum":3610638499}"#,
        ),
    ];
    for (policy, state, text) in cases {
        assert_eq!(encode(policy, &state, Entries::Containers), text);
        assert_eq!(decode(text, policy, &KnownContainers::new(), Entries::Containers), Ok(state));
    }
}

#[test]
fn the_old_form_is_migrated_by_container_ids() {
    let empty = r#"{"policyName":"none","defaultCpuSet":"1-3","checksum":1694838852}"#;
    assert_eq!(
        decode(empty, "none", &KnownContainers::new(), Entries::Containers),
        Ok(state("1-3", &[]))
    );
    // Without a checksum nothing is compared.
    let text =
        r#"{"policyName":"static","defaultCpuSet":"0-2","entries":{"id1":"3"},"checksum":0}"#;
    let known = KnownContainers::from([("id1".to_owned(), ("pod".to_owned(), "c".to_owned()))]);
    assert_eq!(
        decode(text, "static", &known, Entries::Containers),
        Ok(state("0-2", &[("pod", "c", "3")]))
    );
    assert_eq!(
        decode(text, "static", &KnownContainers::new(), Entries::Containers)
            .unwrap_err()
            .to_string(),
        "failed to migrate checkpoint from v1 to v2: containerID 'id1' not found in initial containers list"
    );
}

#[test]
fn a_file_that_cannot_be_used_is_explained_in_upstreams_words() {
    let cases = [
        (
            r#"{"policyName":"none","defaultCpuSet":"4-6","checksum":354655845}"#,
            r#"configured policy "static" differs from state checkpoint policy "none""#,
        ),
        (
            r#"{"policyName":"static","defaultCpuSet":"4-6","checksum":1}"#,
            "checkpoint is corrupted",
        ),
        (
            r#"{"policyName":"static","defaultCpuSet":"4-6","entries":{"p":{"c":"1"}},"checksum":1}"#,
            "json: cannot unmarshal object into Go struct field CPUManagerCheckpointV1.entries of type string",
        ),
        (r#"{"policyName":"static","#, "unexpected end of JSON input"),
        ("nonsense", "invalid character 'o' in literal null (expecting 'u')"),
        (
            r#"{"policyName":"static","defaultCpuSet":"1.3","checksum":0}"#,
            r#"could not parse default cpu set "1.3": strconv.Atoi: parsing "1.3": invalid syntax"#,
        ),
        (
            r#"{"policyName":"static","defaultCpuSet":"1-3","entries":{"pod":{"c1":"asd"}},"checksum":0}"#,
            r#"could not parse cpuset "asd" for container "c1" in pod "pod": strconv.Atoi: parsing "asd": invalid syntax"#,
        ),
    ];
    for (text, fault) in cases {
        let found =
            decode(text, "static", &KnownContainers::new(), Entries::Containers).unwrap_err();
        assert_eq!(found.to_string(), fault, "{text}");
    }
}

#[test]
fn the_form_with_pods_has_upstreams_bytes_and_takes_older_ones() {
    let none = KnownContainers::new();
    let empty = r#"{"policyName":"static","defaultCpuSet":"0,7","checksum":2820621781}"#;
    assert_eq!(encode("static", &state("0,7", &[]), Entries::Pods), empty);
    assert_eq!(decode(empty, "static", &none, Entries::Pods), Ok(state("0,7", &[])));
    let text = r#"{"policyName":"static","defaultCpuSet":"0,7","entries":{"u1":{"a":"1-2","b":"3-4"}},"podEntries":{"u1":{"cpuSet":"1-4"}},"checksum":288521594}"#;
    let mut with_pods = state("0,7", &[("u1", "a", "1-2"), ("u1", "b", "3-4")]);
    with_pods.pods.insert("u1".to_owned(), "1-4".parse().unwrap());
    assert_eq!(encode("static", &with_pods, Entries::Pods), text);
    assert_eq!(decode(text, "static", &none, Entries::Pods), Ok(with_pods.clone()));
    with_pods.pods.clear();
    let older = encode("static", &with_pods, Entries::Containers);
    assert_eq!(decode(&older, "static", &none, Entries::Pods), Ok(with_pods));
    assert!(decode(text, "static", &none, Entries::Containers).is_err(), "without the gate");
}

#[test]
fn what_go_takes_for_nothing_is_nothing() {
    let none = KnownContainers::new();
    let read = |text, form| decode(text, "static", &none, form);
    for text in [
        r#"{"policyName":"static","defaultCpuSet":"0-1","entries":{"u":null}}"#,
        r#"{"PolicyName":"static","DEFAULTCPUSET":"0-1","entries":null,"checksum":null}"#,
        r#"{"policyName":"static","defaultCpuSet":"0-1","podEntries":5}"#,
    ] {
        assert_eq!(read(text, Entries::Containers), Ok(state("0-1", &[])), "{text}");
    }
}

#[test]
fn cpus_of_pods_stay_if_the_rest_is_vouched_for() {
    let none = KnownContainers::new();
    let text = r#"{"policyName":"static","defaultCpuSet":"0","podEntries":{"u":{"cpuSet":"1"}},"checksum":0}"#;
    let mut want = state("0", &[]);
    want.pods.insert("u".to_owned(), "1".parse().unwrap());
    assert_eq!(decode(text, "static", &none, Entries::Pods), Ok(want));
    let wrong = text.replace("\"checksum\":0", "\"checksum\":7");
    assert!(decode(&wrong, "static", &none, Entries::Pods).is_err());
}
