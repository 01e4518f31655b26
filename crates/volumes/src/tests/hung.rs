//! A filesystem that never answers: the rest of the node must not notice.

use super::fixture::{eventually, eventually_within};
use super::{Fixture, pod};
use ports::{PodLife, VolumeUsages as _};
use serde_json::json;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

/// A FUSE mount whose server never reads a request.
struct Silent {
    path: std::path::PathBuf,
    server: Option<std::fs::File>,
}

impl Silent {
    /// Needs root and FUSE.
    fn mount(path: &std::path::Path) -> Self {
        std::fs::create_dir_all(path).unwrap();
        let server = std::fs::OpenOptions::new().read(true).write(true).open("/dev/fuse").unwrap();
        let data = format!("fd={},rootmode=40000,user_id=0,group_id=0", server.as_raw_fd());
        sys::mount::mount_fs("silent", path, "fuse", false, &data).unwrap();
        Self { path: path.to_owned(), server: Some(server) }
    }
}

impl Drop for Silent {
    fn drop(&mut self) {
        // Closing the server ends every waiting call.
        drop(self.server.take());
        let _ = sys::mount::unmount(&self.path, sys::mount::Unmount::Detach);
    }
}

async fn start_twenty(
    fixture: &Fixture,
    prefix: &str,
    extra: &[std::sync::Arc<api::core::v1::Pod>],
) -> Duration {
    let pods: Vec<_> = (0..20)
        .map(|n| {
            let volumes = json!([{"name": "d", "emptyDir": {"medium": "Memory"}}, {"name": "e", "emptyDir": {}}]);
            pod(&format!("{prefix}{n}"), volumes)
        })
        .collect();
    let shown: Vec<_> = extra.iter().chain(&pods).map(|p| (p, PodLife::Syncing)).collect();
    let started = Instant::now();
    fixture.show(&shown);
    futures::future::join_all(pods.iter().map(|p| fixture.ready(p))).await;
    started.elapsed()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hung_mounts_are_named_and_twenty_other_pods_start_as_before() {
    let fixture = Fixture::new("hung");
    let normal = start_twenty(&fixture, "before", &[]).await;
    // More hung volumes than the pool has permits, each on a mount of its own.
    let mut silent = Vec::new();
    let mut stuck = Vec::new();
    for n in 0..20 {
        let path = fixture.root.join(format!("silent{n}"));
        silent.push(Silent::mount(&path));
        let inside = path.join("x");
        stuck.push(pod(
            &format!("stuck{n}"),
            json!([{"name": "h", "hostPath": {"path": inside, "type": "Directory"}}]),
        ));
    }
    let shown: Vec<_> = stuck.iter().map(|p| (p, PodLife::Syncing)).collect();
    fixture.show(&shown);
    eventually("named", || fixture.handle.facts().quarantined.len() == 20).await;
    let beside = start_twenty(&fixture, "after", &stuck).await;
    assert!(
        beside < normal * 2 + Duration::from_secs(1),
        "20 pods took {beside:?} beside hung mounts, {normal:?} without"
    );
    // The wait of a stuck pod names what it waits for.
    let state = fixture.handle.describe(&stuck[0]).await.unwrap();
    assert!(state.steps[0].contains("checking host path"), "{:?}", state.steps);
    let story = fixture.handle.explain().await;
    assert_eq!((story.hung.len(), story.waits.len()), (20, 20));
    let wait = &story.waits["stuck0"][0];
    assert_eq!(wait.who, "volume \"h\"");
    assert!(wait.hung && wait.what.contains("checking host path"), "{wait:?}");
    assert!(wait.since.is_some() && wait.next_try.is_none(), "{wait:?}");
    // So do an event, once the call has timed out, and the metric.
    assert!(fixture.registry.render().contains("rubelet_volume_quarantined_calls 20"));
    let told = || {
        let told = |e: &String| e.starts_with("FailedMount: ") && e.contains("is quarantined");
        fixture.events.all().iter().filter(|e| told(e)).count() >= 20
    };
    eventually_within(Duration::from_secs(100), "an event names each hung call", told).await;
    // The wait shows the next attempt until the quarantine refuses it.
    let refused = async {
        loop {
            let story = fixture.handle.explain().await;
            let wait = &story.waits["stuck0"][0];
            if wait.hung && wait.last_error.contains("is quarantined") {
                break;
            }
        }
    };
    let told = tokio::time::timeout(Duration::from_secs(30), refused).await;
    assert!(told.is_ok(), "the wait never names the call that hangs");
    drop(silent);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_driver_that_never_answers_is_named_and_holds_up_nobody() {
    let (fixture, driver) = super::csi::fixture_with("csi-hung", |_| {}).await;
    let normal = start_twenty(&fixture, "before", &[]).await;
    driver.fault("NodeStageVolume", Some("hang"));
    let mut stuck = Vec::new();
    for n in 0..20 {
        super::csi::csi_claim(&fixture, &format!("c{n}"), json!({}));
        stuck.push(super::csi::claim_pod(&format!("stuck{n}"), &format!("c{n}")));
    }
    let shown: Vec<_> = stuck.iter().map(|p| (p, PodLife::Syncing)).collect();
    fixture.show(&shown);
    eventually("asked", || super::csi::calls(&driver).len() == 20).await;
    let beside = start_twenty(&fixture, "after", &stuck).await;
    assert!(
        beside < normal * 2 + Duration::from_secs(1),
        "20 pods took {beside:?} beside a hung driver, {normal:?} without"
    );
    eventually("named", || fixture.handle.facts().quarantined.len() == 20).await;
    let named = fixture.handle.facts().quarantined[0].clone();
    assert!(named.starts_with("NodeStageVolume of driver hostpath.test of "), "{named}");
    assert!(fixture.registry.render().contains("rubelet_volume_quarantined_calls 20"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_that_cannot_be_measured_holds_up_no_other() {
    let fixture = Fixture::new("hung-usage");
    let volumes = || json!([{"name": "d", "emptyDir": {}}]);
    let (stuck, fine) = (pod("stuck", volumes()), pod("fine", volumes()));
    fixture.show(&[(&stuck, PodLife::Syncing), (&fine, PodLife::Syncing)]);
    fixture.ready(&stuck).await;
    fixture.ready(&fine).await;
    let inside = fixture.pod_dir("stuck").join("volumes/kubernetes.io~empty-dir/d/inside");
    let silent = Silent::mount(&inside);
    // Several ask at once, as the summary and the eviction do.
    let started = Instant::now();
    let hung = api::ids::PodUid::from("stuck");
    let (one, other) = tokio::join!(fixture.handle.usages(&hung), fixture.handle.usages(&hung));
    assert!(one.is_empty() && other.is_empty());
    assert_eq!(fixture.handle.usages(&"fine".into()).await.len(), 1);
    assert!(fixture.handle.usages(&hung).await.is_empty());
    assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
    let path = inside.parent().unwrap().display().to_string();
    let named = || fixture.handle.facts().quarantined.iter().any(|call| call.contains(&path));
    eventually("named", named).await;
    drop(silent);
}
