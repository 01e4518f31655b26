//! The policy over the life of pods.

use super::*;
use api::pod::PodExt;
use proptest::prelude::*;
use serde_json::json;

/// `nodes` × `cores` × `threads`; siblings are `nodes·cores` apart; one socket per node.
fn machine(nodes: u32, cores: u32, threads: u32) -> CpuTopology {
    let all = nodes * cores;
    let info = |core: u32| super::super::CpuInfo {
        numa: i64::from(core / cores),
        socket: i64::from(core / cores),
        core: i64::from(core),
        uncore: i64::from(core / cores),
    };
    let cpus = (0..all * threads).map(|cpu| (cpu, info(cpu % all))).collect();
    let count = |number: u32| usize::try_from(number).unwrap();
    CpuTopology { cpus, cores: count(all), sockets: count(nodes) }
}

fn setup(topology: CpuTopology) -> CpuSetup {
    CpuSetup {
        topology,
        options: Ok(CpuOptions::default()),
        reserved_milli: Some(1000),
        reserved: CpuSet::new(),
        policy: PolicyKind::None,
        pod_level_resources: true,
        pod_level_managers: false,
    }
}

fn started(setup: CpuSetup) -> StaticCpus {
    let mut cpus = StaticCpus::new(setup).unwrap();
    cpus.restore(CpuState::default()).unwrap();
    cpus
}

/// A Guaranteed pod: (name, cpu) of init containers (`+name` for sidecars) and of regular ones.
fn pod(uid: &str, init: &[(&str, &str)], regular: &[(&str, &str)]) -> Pod {
    let container = |(name, cpu): &(&str, &str)| {
        let amounts = json!({"cpu": cpu, "memory": "1Mi"});
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

fn place(cpus: &mut StaticCpus, pod: &Pod) -> Result<Vec<String>, CpuRefusal> {
    let all: Vec<Container> =
        pod.init_containers().chain(pod.regular_containers()).cloned().collect();
    all.iter()
        .map(|container| {
            cpus.allocate(pod, container, None)?;
            let uid = pod.uid_str();
            Ok(cpus.state().of(uid, &container.name).map(ToString::to_string).unwrap_or_default())
        })
        .collect()
}

#[test]
fn guaranteed_containers_with_whole_cpus_get_their_own() {
    let mut cpus = started(setup(machine(1, 4, 1)));
    assert_eq!(cpus.allocatable().to_string(), "1-3");
    let placed = place(&mut cpus, &pod("p", &[], &[("a", "1"), ("b", "1500m"), ("c", "1")]));
    assert_eq!(placed.unwrap(), ["1", "", "2"]);
    assert_eq!(cpus.state().shared.to_string(), "0,3");
    let mut burstable = pod("q", &[], &[("a", "1")]);
    burstable.spec.as_mut().unwrap().containers[0].resources.as_mut().unwrap().limits = None;
    assert_eq!(place(&mut cpus, &burstable).unwrap(), [""]);
    let refused = place(&mut cpus, &pod("r", &[], &[("a", "2")])).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "not enough cpus available to satisfy request: requested=2, available=1"
    );
    assert_eq!(refused.reason(), None);
}

#[test]
fn pods_with_resources_of_their_own_share() {
    let mut cpus = started(setup(machine(1, 4, 1)));
    let mut whole = pod("p", &[], &[("a", "1")]);
    let resources =
        json!({"requests": {"cpu": "2", "memory": "1Gi"}, "limits": {"cpu": "2", "memory": "1Gi"}});
    whole.spec.as_mut().unwrap().resources = serde_json::from_value(resources).unwrap();
    assert_eq!(place(&mut cpus, &whole).unwrap(), [""]);
    assert!(cpus.hints(&whole, &whole.spec.as_ref().unwrap().containers[0]).is_empty());
}

#[test]
fn later_containers_reuse_the_cpus_of_init_containers_but_not_of_sidecars() {
    let mut cpus = started(setup(machine(1, 8, 1)));
    let placed = place(
        &mut cpus,
        &pod("p", &[("i1", "3"), ("+s", "1"), ("i2", "2")], &[("a", "2"), ("b", "2")]),
    );
    // The sidecar takes one of the three, the next init container the other two, which the first regular reuses.
    assert_eq!(placed.unwrap(), ["1-3", "1", "2-3", "2-3", "4-5"]);
    assert_eq!(cpus.state().shared.to_string(), "0,6-7");
}

#[test]
fn what_siblings_use_is_not_released() {
    let mut cpus = started(setup(machine(1, 4, 1)));
    place(&mut cpus, &pod("p", &[("i", "2")], &[("a", "1")])).unwrap();
    assert_eq!(cpus.state().of("p", "i").unwrap().to_string(), "1-2");
    assert_eq!(cpus.remove("p", "i").unwrap().to_string(), "2");
    assert_eq!(cpus.keep_only(&|uid| uid == "q").to_string(), "1");
    assert_eq!(cpus.state().shared.to_string(), "0-3");
    assert!(cpus.state().own.is_empty());
    assert_eq!(cpus.remove("p", "a"), None);
}

#[test]
fn only_whole_cores_when_asked() {
    let options = CpuOptions { full_pcpus_only: true, ..CpuOptions::default() };
    let mut cpus = started(CpuSetup { options: Ok(options), ..setup(machine(1, 4, 2)) });
    let odd = place(&mut cpus, &pod("p", &[], &[("a", "3")])).unwrap_err();
    assert_eq!(odd.reason(), Some("SMTAlignmentError"));
    assert_eq!(
        odd.to_string(),
        "SMT Alignment Error: requested 3 cpus not multiple cpus per core = 2"
    );
    // CPU 0 is reserved: its sibling 4 does not count as a free core.
    let many = place(&mut cpus, &pod("p", &[], &[("a", "8")])).unwrap_err();
    assert_eq!(
        many.to_string(),
        "SMT Alignment Error: not enough free physical CPUs: available physical CPUs = 6, requested CPUs = 8, CPUs per core = 2"
    );
    assert_eq!(place(&mut cpus, &pod("p", &[], &[("a", "2")])).unwrap(), ["1,5"]);
}

#[test]
fn reserved_cpus_are_given_or_chosen_and_must_add_up() {
    let chosen = |reserved: &str, milli: i64| {
        let setup = CpuSetup {
            reserved: reserved.parse().unwrap(),
            reserved_milli: Some(milli),
            ..setup(machine(1, 4, 1))
        };
        StaticCpus::new(setup).map(|cpus| cpus.reserved.to_string()).map_err(|e| e.to_string())
    };
    assert_eq!(chosen("", 1100).as_deref(), Ok("0-1"));
    assert_eq!(chosen("2-3", 2000).as_deref(), Ok("2-3"));
    assert_eq!(
        chosen("1", 2000).unwrap_err(),
        "new static policy error: [cpumanager] unable to reserve the required amount of CPUs (size of 1 did not equal 2)"
    );
    assert_eq!(
        chosen("9", 1000).unwrap_err(),
        "new static policy error: [cpumanager] unable to build the reserved physical CPUs from the reserved set: unknown CPU ID: 9"
    );
    let unknown = CpuSetup { options: Err(CpuFault("why".into())), ..setup(machine(1, 4, 1)) };
    assert_eq!(
        StaticCpus::new(unknown.clone()).unwrap_err().to_string(),
        "new static policy error: why"
    );
    let without = CpuSetup { reserved_milli: None, ..unknown };
    assert_eq!(
        StaticCpus::new(without).unwrap_err().to_string(),
        "[cpumanager] unable to determine reserved CPU resources for static policy"
    );
}

#[test]
fn a_state_of_another_machine_is_refused_in_upstreams_words() {
    let strict = CpuOptions { strict_reservation: true, ..CpuOptions::default() };
    let plain = CpuOptions::default();
    type Own<'a> = &'a [(&'a str, &'a str)];
    let cases: [(CpuOptions, &str, Own<'_>, &str); 6] = [
        (plain, "1-3", &[], r#"not all reserved cpus: "0" are present in defaultCpuSet: "1-3""#),
        (
            strict,
            "0-3",
            &[],
            r#"some of strictly reserved cpus: "0" are present in defaultCpuSet: "0-3""#,
        ),
        (
            plain,
            "0-2",
            &[("c", "2-3")],
            r#"pod: p, container: c cpuset: "2-3" overlaps with default cpuset "0-2""#,
        ),
        (
            plain,
            "0-1",
            &[("c", "2")],
            r#"current set of available CPUs "0-3" doesn't match with CPUs in state "0-2""#,
        ),
        (plain, "", &[("c", "2")], "default cpuset cannot be empty"),
        (strict, "1-2", &[("c", "3")], ""),
    ];
    for (options, shared, own, fault) in cases {
        let mut cpus =
            StaticCpus::new(CpuSetup { options: Ok(options), ..setup(machine(1, 4, 1)) }).unwrap();
        let mut state = CpuState { shared: shared.parse().unwrap(), ..CpuState::default() };
        own.iter().for_each(|(name, cpus)| state.set("p", name, cpus.parse().unwrap()));
        let found = cpus.restore(state).map_or_else(|e| e.to_string(), |()| String::new());
        assert_eq!(found, fault);
    }
}

fn shown(hints: &ResourceHints) -> String {
    let one = |hint: &Hint| {
        let sign = if hint.preferred { "+" } else { "-" };
        format!("{}{sign}", hint.affinity.unwrap_or_default())
    };
    match hints.get("cpu") {
        None => "any".to_owned(),
        Some(None) => "nil".to_owned(),
        Some(Some(hints)) => hints.iter().map(one).collect::<Vec<_>>().join(" "),
    }
}

#[test]
fn hints_name_the_nodes_that_have_enough() {
    let mut cpus = started(setup(machine(2, 4, 1)));
    let hint = |cpus: &StaticCpus, count: &str| {
        let pod = pod("x", &[], &[("a", count)]);
        (
            shown(&cpus.hints(&pod, &pod.spec.as_ref().unwrap().containers[0])),
            shown(&cpus.pod_hints(&pod)),
        )
    };
    let both = |text: &str| (text.to_owned(), text.to_owned());
    assert_eq!(hint(&cpus, "3"), both("01+ 10+ 11-"));
    assert_eq!(hint(&cpus, "4"), both("10+ 11-"));
    assert_eq!(hint(&cpus, "7"), both("11+"));
    assert_eq!(hint(&cpus, "8"), both(""));
    assert_eq!(hint(&cpus, "500m"), both("any"));
    let held = pod("x", &[], &[("a", "2")]);
    cpus.allocate(&held, &held.spec.as_ref().unwrap().containers[0], Some(NumaMask::of([1])))
        .unwrap();
    assert_eq!(cpus.state().of("x", "a").unwrap().to_string(), "4-5");
    assert_eq!(hint(&cpus, "2"), both("10+ 11-"));
    // A request that differs from its allocation has no hint.
    assert_eq!(hint(&cpus, "3"), both(""));
}

#[test]
fn an_affinity_that_is_too_small_is_filled_up_from_elsewhere() {
    let mut cpus = started(setup(machine(2, 4, 1)));
    let pod = pod("p", &[], &[("a", "6")]);
    let container = &pod.spec.as_ref().unwrap().containers[0];
    cpus.allocate(&pod, container, Some(NumaMask::of([1]))).unwrap();
    assert_eq!(cpus.state().of("p", "a").unwrap().to_string(), "1-2,4-7");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]
    /// Pods come and go: nobody shares an exclusive CPU, nothing is lost, reserved CPUs stay shared.
    #[test]
    fn cpus_are_never_given_twice(
        steps in proptest::collection::vec((0_usize..12, 1_u32..9, 0_u32..4, any::<bool>()), 1..16),
        whole_cores in any::<bool>(),
        distribute in any::<bool>(),
    ) {
        let options = CpuOptions {
            full_pcpus_only: whole_cores, distribute_across_numa: distribute, ..CpuOptions::default()
        };
        let mut cpus = started(CpuSetup { options: Ok(options), ..setup(machine(8, 4, 2)) });
        for (who, count, init, leaves) in steps {
            let uid = format!("p{who}");
            if leaves {
                cpus.keep_only(&|held| held != uid);
            } else {
                let (first, second) = (init.to_string(), count.to_string());
                let pod = pod(&uid, &[("i", &first)], &[("a", &second), ("b", "1")]);
                if place(&mut cpus, &pod).is_err() {
                    cpus.keep_only(&|held| held != uid);
                }
            }
            let state = cpus.state();
            prop_assert!(cpus.reserved.is_subset(&state.shared));
            prop_assert_eq!(state.shared.union(&state.exclusive()), cpus.topology.all());
            prop_assert!(state.shared.intersection(&state.exclusive()).is_empty());
            let mut seen = CpuSet::new();
            for containers in state.own.values() {
                let of_pod: CpuSet = containers.values().flat_map(CpuSet::iter).collect();
                prop_assert!(seen.intersection(&of_pod).is_empty());
                seen = seen.union(&of_pod);
                let running: Vec<&CpuSet> =
                    containers.iter().filter(|(name, _)| *name != "i").map(|(_, c)| c).collect();
                if let [one, other] = running[..] {
                    prop_assert!(one.intersection(other).is_empty());
                }
            }
            let mut again = StaticCpus::new(CpuSetup { options: Ok(options), ..setup(machine(8, 4, 2)) }).unwrap();
            prop_assert_eq!(again.restore(state.clone()), Ok(()));
        }
    }
}
