//! Eviction: thresholds, rounds, ranking, limits of local storage.

use super::local::exceeded;
use super::rank::rank;
use super::threshold::{Value, derive_container_fs};
use super::*;
use crate::pod::testing::{at, pod};
use api::core::v1::{EmptyDirVolumeSource, ResourceRequirements, Volume};
use api::machinery::api::resource::Quantity as ApiQuantity;
use std::time::Duration;

const TRANSITION: Duration = Duration::from_secs(300);

fn map(rows: &[(&str, &str)]) -> BTreeMap<String, String> {
    rows.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect()
}

fn parse(
    hard: &[(&str, &str)],
    soft: &[(&str, &str)],
    grace: &[(&str, &str)],
    reclaim: &[(&str, &str)],
) -> Result<Vec<Threshold>, String> {
    let config = ThresholdConfig {
        hard: &map(hard),
        soft: &map(soft),
        soft_grace: &map(grace),
        min_reclaim: &map(reclaim),
        enforce_pods: false,
    };
    config.parse().map_err(|e| e.to_string())
}

fn quantity(text: &str) -> Quantity {
    text.parse().unwrap()
}

fn reading(signal: Signal, available: &str, capacity: &str, seconds: i64) -> Observations {
    let observation = Observation {
        available: quantity(available),
        capacity: quantity(capacity),
        at: Some(at(seconds)),
    };
    [(signal, observation)].into()
}

#[test]
fn thresholds_are_read_as_upstream_reads_them() {
    let all = parse(
        &[("memory.available", "100Mi"), ("nodefs.available", "10%"), ("pid.available", "0%")],
        &[("imagefs.available", "15%")],
        &[("imagefs.available", "1m30s")],
        &[("memory.available", "50Mi")],
    )
    .unwrap();
    let text: Vec<_> =
        all.iter().map(|t| format!("{} {}s", t.signal.as_str(), t.grace.as_secs())).collect();
    assert_eq!(text, ["memory.available 0s", "nodefs.available 0s", "imagefs.available 90s"]);
    assert_eq!(all[0].min_reclaim, Some(Value::Amount(quantity("50Mi"))));

    let wrong = [
        (parse(&[("disk.free", "1")], &[], &[], &[]), "unsupported eviction signal disk.free"),
        (
            parse(&[], &[("memory.available", "1Gi")], &[], &[]),
            "grace period must be specified for the soft eviction threshold memory.available",
        ),
        (
            parse(&[], &[("memory.available", "1Gi"), ("x", "1")], &[("y", "1s")], &[("z", "1")]),
            "unsupported eviction signal x",
        ),
        (
            parse(&[], &[("memory.available", "1Gi")], &[], &[("z", "1")]),
            "unsupported eviction signal z",
        ),
        (
            parse(&[("memory.available", "0")], &[], &[], &[]),
            "eviction threshold memory.available must be positive: 0",
        ),
        (
            parse(&[("nodefs.available", "101%")], &[], &[], &[]),
            "eviction percentage threshold nodefs.available must be <= 100%: 101%",
        ),
        (
            parse(&[], &[], &[], &[("nodefs.available", "-1")]),
            "negative eviction minimum reclaim specified for nodefs.available",
        ),
    ];
    for (result, expected) in wrong {
        assert_eq!(result.unwrap_err(), expected);
    }
}

#[test]
fn memory_of_pods_is_watched_when_allocatable_is_enforced() {
    let config = ThresholdConfig {
        hard: &map(&[("memory.available", "100Mi")]),
        soft: &map(&[]),
        soft_grace: &map(&[]),
        min_reclaim: &map(&[]),
        enforce_pods: true,
    };
    let signals: Vec<_> = config.parse().unwrap().iter().map(|t| t.signal).collect();
    assert_eq!(signals, [Signal::MemoryAvailable, Signal::AllocatableMemoryAvailable]);
}

#[test]
fn container_thresholds_follow_the_filesystem_they_share() {
    let all = parse(
        &[
            ("nodefs.available", "10%"),
            ("imagefs.available", "15%"),
            ("containerfs.available", "1%"),
        ],
        &[],
        &[],
        &[],
    )
    .unwrap();
    let of = |layout| {
        let (derived, ignored) = derive_container_fs(&all, layout);
        assert_eq!(ignored, [Signal::ContainerFsAvailable]);
        derived.iter().find(|t| t.signal == Signal::ContainerFsAvailable).unwrap().value
    };
    assert_eq!(of(FsLayout::One), Value::Share("10%".parse().unwrap()));
    assert_eq!(of(FsLayout::Split), Value::Share("10%".parse().unwrap()));
    assert_eq!(of(FsLayout::DedicatedImages), Value::Share("15%".parse().unwrap()));
}

#[test]
fn pressure_lasts_until_the_minimum_is_reclaimed_and_the_condition_longer() {
    let thresholds =
        parse(&[("memory.available", "100Mi")], &[], &[], &[("memory.available", "50Mi")]).unwrap();
    let mut state = EvictionState::default();
    let mut round = |available: &str, now: i64| {
        let observed = reading(Signal::MemoryAvailable, available, "1Gi", now);
        state.round(&thresholds, &observed, TRANSITION, at(now))
    };
    assert_eq!(round("200Mi", 0), Round::default());
    let low = round("90Mi", 10);
    assert_eq!((low.conditions.as_slice(), low.act.len()), (&[Pressure::Memory][..], 1));
    assert_eq!(round("120Mi", 20).act.len(), 1, "the minimum reclaim is not there yet");
    let over = round("150Mi", 30);
    assert_eq!((over.conditions.len(), over.act.len()), (1, 0), "the condition stays for a while");
    assert_eq!(round("150Mi", 319).conditions.len(), 1);
    assert_eq!(round("150Mi", 320).conditions.len(), 0);
}

#[test]
fn a_soft_threshold_acts_after_its_grace_but_shows_at_once() {
    let thresholds =
        parse(&[], &[("memory.available", "100Mi")], &[("memory.available", "30s")], &[]).unwrap();
    let mut state = EvictionState::default();
    let mut round = |available: &str, now: i64| {
        let observed = reading(Signal::MemoryAvailable, available, "1Gi", now);
        state.round(&thresholds, &observed, TRANSITION, at(now))
    };
    let first = round("90Mi", 0);
    assert_eq!((first.conditions.len(), first.act.len()), (1, 0));
    assert_eq!(round("90Mi", 29).act.len(), 0);
    assert_eq!(round("90Mi", 30).act.len(), 1);
    round("500Mi", 40);
    assert_eq!(round("90Mi", 50).act.len(), 0, "the grace begins anew");
}

#[test]
fn a_reading_is_acted_upon_only_once() {
    let thresholds = parse(&[("memory.available", "100Mi")], &[], &[], &[]).unwrap();
    let mut state = EvictionState::default();
    let observed = reading(Signal::MemoryAvailable, "90Mi", "1Gi", 5);
    assert_eq!(state.round(&thresholds, &observed, TRANSITION, at(10)).act.len(), 1);
    let again = state.round(&thresholds, &observed, TRANSITION, at(20));
    assert_eq!((again.act.len(), again.conditions.len()), (0, 1));
    assert!(!EvictionState::is_relieved(&thresholds, &observed));
}

#[test]
fn memory_comes_before_everything_else() {
    let thresholds =
        parse(&[("nodefs.available", "10%"), ("memory.available", "100Mi")], &[], &[], &[])
            .unwrap();
    let mut observed = reading(Signal::MemoryAvailable, "90Mi", "1Gi", 1);
    observed.extend(reading(Signal::NodeFsAvailable, "1Mi", "1Gi", 1));
    let round = EvictionState::default().round(&thresholds, &observed, TRANSITION, at(1));
    let signals: Vec<_> = round.act.iter().map(|t| t.signal).collect();
    assert_eq!(signals, [Signal::MemoryAvailable, Signal::NodeFsAvailable]);
    assert_eq!(round.conditions, [Pressure::Memory, Pressure::Disk]);
}

fn named(uid: &str, priority: i32, requests: &[(&str, &str)]) -> Pod {
    let mut pod = pod("a");
    pod.metadata.uid = Some(uid.to_owned());
    pod.metadata.name = Some(uid.to_owned());
    let spec = pod.spec.as_mut().unwrap();
    spec.priority = Some(priority);
    let list = requests.iter().map(|(n, q)| ((*n).to_owned(), ApiQuantity((*q).to_owned())));
    spec.containers[0].resources = Some(ResourceRequirements {
        requests: Some(list.collect()),
        ..ResourceRequirements::default()
    });
    pod
}

fn using(memory_mi: u64) -> PodUsage {
    PodUsage {
        memory: Some(memory_mi << 20),
        processes: Some(memory_mi),
        containers: vec![ContainerUsage {
            name: "a".to_owned(),
            memory: Some(memory_mi << 20),
            root_fs: FsUsage { bytes: Some(memory_mi << 20), inodes: Some(memory_mi) },
            logs: FsUsage { bytes: Some(1), inodes: Some(1) },
        }],
        ..PodUsage::default()
    }
}

fn order(signal: Signal, pods: &[Pod], usages: &PodUsages) -> Vec<String> {
    let refs: Vec<&Pod> = pods.iter().collect();
    rank(signal, FsLayout::One, &refs, usages)
        .into_iter()
        .map(|i| pods[i].metadata.uid.clone().unwrap())
        .collect()
}

#[test]
fn pods_go_by_excess_priority_and_use() {
    let pods = [
        named("within", 0, &[("memory", "1Gi")]),
        named("important", 100, &[("memory", "10Mi")]),
        named("small", 0, &[("memory", "10Mi")]),
        named("large", 0, &[("memory", "10Mi")]),
        named("unseen", 0, &[]),
    ];
    let usages: PodUsages = [("within", 500), ("important", 400), ("small", 20), ("large", 300)]
        .map(|(uid, mi)| (uid.into(), using(mi)))
        .into();
    let expected = ["unseen", "large", "small", "important", "within"];
    assert_eq!(order(Signal::MemoryAvailable, &pods, &usages), expected);
    let by_pid = order(Signal::PidAvailable, &pods, &usages);
    assert_eq!(by_pid.last().map(String::as_str), Some("important"));
    assert_eq!(
        order(Signal::NodeFsAvailable, &pods, &usages)[1],
        "within",
        "nobody asked for disk"
    );
}

#[test]
fn for_want_of_process_ids_priority_comes_before_missing_stats() {
    let pods = [
        named("unseen-important", 100, &[]),
        named("few", 0, &[]),
        named("many", 0, &[]),
        named("unseen", 0, &[]),
    ];
    let usages: PodUsages =
        [("few", 3), ("many", 300)].map(|(uid, mi)| (uid.into(), using(mi))).into();
    let expected = ["unseen", "many", "few", "unseen-important"];
    assert_eq!(order(Signal::PidAvailable, &pods, &usages), expected);
}

#[test]
fn overhead_spares_no_pod_that_asked_for_nothing() {
    let mut heavy = named("heavy", 0, &[]);
    let overhead = [("memory".to_owned(), ApiQuantity("1Gi".to_owned()))];
    heavy.spec.as_mut().unwrap().overhead = Some(overhead.into());
    let pods = [named("light", 0, &[]), heavy];
    let usages: PodUsages =
        [("light", 100), ("heavy", 200)].map(|(uid, mi)| (uid.into(), using(mi))).into();
    assert_eq!(order(Signal::MemoryAvailable, &pods, &usages), ["heavy", "light"]);
}

#[test]
fn only_parts_on_the_starved_filesystem_count() {
    let pods = [named("writes", 0, &[]), named("logs", 0, &[])];
    let mut usages: PodUsages =
        [("writes", 100), ("logs", 0)].map(|(uid, mi)| (uid.into(), using(mi))).into();
    usages.get_mut("logs").unwrap().containers[0].logs.bytes = Some(1 << 20);
    let refs: Vec<&Pod> = pods.iter().collect();
    let first = |signal, layout| rank(signal, layout, &refs, &usages)[0];
    assert_eq!(first(Signal::NodeFsAvailable, FsLayout::One), 0);
    assert_eq!(first(Signal::NodeFsAvailable, FsLayout::DedicatedImages), 1);
    assert_eq!(first(Signal::ImageFsAvailable, FsLayout::DedicatedImages), 0);
}

#[test]
fn node_level_reclaim_depends_on_the_layout() {
    use Reclaim::{DeadContainers, UnusedImages};
    let both = [DeadContainers, UnusedImages];
    let none: [Reclaim; 0] = [];
    assert_eq!(reclaim_steps(Signal::NodeFsAvailable, FsLayout::One), both);
    assert_eq!(reclaim_steps(Signal::NodeFsAvailable, FsLayout::DedicatedImages), none);
    assert_eq!(reclaim_steps(Signal::ContainerFsInodesFree, FsLayout::DedicatedImages), both);
    assert_eq!(reclaim_steps(Signal::ImageFsAvailable, FsLayout::Split), [UnusedImages]);
    assert_eq!(reclaim_steps(Signal::NodeFsAvailable, FsLayout::Split), [DeadContainers]);
    assert_eq!(reclaim_steps(Signal::MemoryAvailable, FsLayout::One), none);
}

#[test]
fn the_message_names_threshold_reading_and_offenders() {
    let pod = named("p", 0, &[("memory", "10Mi")]);
    let thresholds = parse(&[("memory.available", "100Mi")], &[], &[], &[]).unwrap();
    let observed = reading(Signal::MemoryAvailable, "90Mi", "1Gi", 1);
    let text = eviction_text(&pod, Some(&using(20)), &thresholds, &observed);
    assert_eq!(
        text.message,
        "The node was low on resource: memory. Threshold quantity: 100Mi, available: 90Mi. Container a was using 20Mi, request is 10Mi, has larger consumption of memory. "
    );
    let annotations = [
        ("offending_containers", "a"),
        ("offending_containers_usage", "20Mi"),
        ("starved_resource", "memory"),
    ];
    assert_eq!(text.annotations, map(&annotations));
    let unseen = eviction_text(&pod, None, &thresholds, &observed);
    assert!(unseen.annotations.is_empty());
    let status = pressure_status(&pod, &text.message);
    assert_eq!(status.condition.unwrap().reason.as_deref(), Some("TerminationByKubelet"));
}

#[test]
fn soft_evictions_give_time_and_hard_ones_a_second() {
    let mut pod = named("p", 0, &[]);
    pod.spec.as_mut().unwrap().termination_grace_period_seconds = Some(30);
    let hard = parse(&[("memory.available", "1Mi")], &[], &[], &[]).unwrap()[0];
    let soft = Threshold { grace: Duration::from_secs(1), ..hard };
    let policy = |max_pod_seconds| GracePolicy { max_pod_seconds };
    assert_eq!(policy(60).seconds(&hard, &pod), Some(1));
    assert_eq!(policy(60).seconds(&soft, &pod), Some(30));
    assert_eq!(policy(10).seconds(&soft, &pod), Some(10));
    assert_eq!(policy(-1).seconds(&soft, &pod), Some(-1), "the worker makes one second of it");
}

#[test]
fn local_storage_limits_are_enforced_volume_pod_container() {
    let mut pod = named("p", 0, &[]);
    let limits = [("ephemeral-storage".to_owned(), ApiQuantity("10Mi".to_owned()))];
    let spec = pod.spec.as_mut().unwrap();
    spec.containers[0].resources = Some(ResourceRequirements {
        limits: Some(limits.into()),
        ..ResourceRequirements::default()
    });
    spec.volumes = Some(vec![Volume {
        name: "v".to_owned(),
        empty_dir: Some(EmptyDirVolumeSource {
            size_limit: Some(ApiQuantity("1Mi".to_owned())),
            ..EmptyDirVolumeSource::default()
        }),
        ..Volume::default()
    }]);
    assert_eq!(exceeded(&pod, &using(1), FsLayout::One), None);

    let mut usage = using(1);
    let two = FsUsage { bytes: Some(2 << 20), inodes: None };
    usage.volumes.insert("v".to_owned(), two);
    let found = exceeded(&pod, &usage, FsLayout::One).unwrap();
    assert_eq!(found.message, "Usage of EmptyDir volume \"v\" exceeds the limit \"1Mi\". ");

    let found = exceeded(&pod, &using(11), FsLayout::One).unwrap();
    assert_eq!(
        found.message,
        "Pod ephemeral local storage usage exceeds the total limit of containers 10Mi. "
    );

    let mut usage = using(11);
    usage.ephemeral = Some(0);
    let found = exceeded(&pod, &usage, FsLayout::One).unwrap();
    assert_eq!(found.message, "Container a exceeded its local ephemeral storage limit \"10Mi\". ");
    assert_eq!(exceeded(&pod, &usage, FsLayout::DedicatedImages), None, "the layer is elsewhere");
}

#[test]
fn critical_pods_are_never_evicted() {
    assert!(may_be_evicted(&named("p", 0, &[])));
    assert!(!may_be_evicted(&named("p", crate::admission::CRITICAL_PRIORITY, &[])));
}
