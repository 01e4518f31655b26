//! Owners of cgroups.

use super::*;
use crate::reading::{ContainerReading, PodReading};
use api::stats::PodReference;

#[test]
fn pods_sandboxes_and_containers_are_told_apart() {
    let pod = PodReading {
        reference: PodReference { name: "p".into(), namespace: "n".into(), uid: "u".into() },
        sandbox_id: "s".into(),
        cgroup: Some("/kubepods/podu".into()),
        sandbox_cgroup: Some("/kubepods/podu/s".into()),
        containers: vec![ContainerReading {
            id: "c".into(),
            name: "main".into(),
            image: "i".into(),
            cgroup: Some("/kubepods/podu/c".into()),
            ..ContainerReading::default()
        }],
        ..PodReading::default()
    };
    let reading = Reading { pods: vec![pod], ..Reading::default() };
    let owners = owners(&reading);
    let of = |path: &str| {
        let owner = owners[path];
        (owner.name, owner.container, owner.pod, owner.network.is_some())
    };
    assert_eq!(of("/kubepods/podu"), ("", "", "p", false));
    assert_eq!(of("/kubepods/podu/s"), ("s", "", "p", true));
    assert_eq!(of("/kubepods/podu/c"), ("c", "main", "p", false));
}
