//! What is told and counted of rare turns: calls that fail, volumes of images, resolvers, garbage.

use crate::world::{Sources, World, pod, simple};
use engine::admission::resize::ResizePolicy;
use ports::Pods as _;
use std::time::Duration;
use testkit::fake_cri::{Behaviour, Fault, OnTerm};

#[tokio::test(start_paused = true)]
async fn a_pod_is_counted_when_its_sandbox_is_asked_for_and_failures_once_each() {
    let world = World::new();
    let fault = Fault::on(cri::Call::RunPodSandbox).times(2).fail(cri::Code::Unknown, "no network");
    world.cri.inject(fault);
    let mut web = simple("web");
    web.spec.as_mut().unwrap().dns_policy = Some("ClusterFirst".into());
    world.api.put(web);
    let agent = world.start(Sources::Api).await;
    world.eventually("running", |w| w.api.phase("web").as_deref() == Some("Running")).await;
    let failed = "Failed to create pod sandbox: rpc error: code = Unknown desc = no network";
    assert_eq!(world.messages("FailedCreatePodSandBox"), [failed; 2]);
    assert_eq!(world.count("kubelet_started_pods_total"), 3);
    assert_eq!(world.count("kubelet_started_pods_errors_total"), 2);
    agent.crash().await;
}

#[tokio::test(start_paused = true)]
async fn a_sandbox_that_cannot_be_described_counts_as_a_pod_that_failed_to_start() {
    let world = World::new();
    let mut web = simple("web");
    web.spec.as_mut().unwrap().runtime_class_name = Some("nowhere".into());
    world.api.put(web);
    let agent = world.start(Sources::Api).await;
    world.eventually("told", |w| !w.messages("FailedCreatePodSandBox").is_empty()).await;
    assert_eq!(world.count("kubelet_started_pods_total"), 1);
    assert_eq!(world.count("kubelet_started_pods_errors_total"), 1);
    agent.crash().await;
}

#[tokio::test(start_paused = true)]
async fn mounts_are_shown_as_the_handler_of_the_class_can_make_them_before_there_is_a_sandbox() {
    let world = World::new();
    world.cri.inject(Fault::on(cri::Call::RunPodSandbox).fail(cri::Code::Unknown, "no network"));
    for (name, class) in [("plain", None), ("special", Some("special")), ("odd", Some("nowhere"))] {
        let mount = serde_json::json!({ "name": "v", "mountPath": "/v", "readOnly": true,
            "recursiveReadOnly": "IfPossible" });
        let main =
            serde_json::json!({ "name": "main", "image": "busybox:1", "volumeMounts": [mount] });
        let volumes = serde_json::json!([{ "name": "v", "emptyDir": {} }]);
        let spec = serde_json::json!({ "containers": [main], "volumes": volumes, "runtimeClassName": class });
        world.api.put(pod(name, spec));
    }
    let agent = world.start(Sources::Api).await;
    let shown = |name: &str| {
        let status = agent.status(&format!("uid-{name}"))?;
        let main = status.container_statuses.as_ref()?.first()?.clone();
        main.volume_mounts?.first()?.recursive_read_only.clone()
    };
    for (name, mode) in [("plain", "Disabled"), ("special", "Enabled"), ("odd", "Disabled")] {
        world.eventually(name, |_| shown(name).as_deref() == Some(mode)).await;
    }
    agent.crash().await;
}

#[tokio::test(start_paused = true)]
async fn a_sandbox_whose_status_cannot_be_read_is_told_in_the_runtimes_words() {
    let world = World::new();
    let fault = Fault::on(cri::Call::PodSandboxStatus).times(1).fail(cri::Code::NotFound, "gone");
    world.cri.inject(fault);
    world.api.put(simple("web"));
    let agent = world.start(Sources::Api).await;
    world.eventually("running", |w| w.api.phase("web").as_deref() == Some("Running")).await;
    let told = "Unable to get pod sandbox status: rpc error: code = NotFound desc = gone";
    assert_eq!(world.messages("FailedPodSandBoxStatus"), [told]);
    assert_eq!(world.count("kubelet_started_pods_errors_total"), 0);
    agent.crash().await;
}

#[tokio::test(start_paused = true)]
async fn image_volumes_are_counted_by_the_containers_that_mount_them() {
    let world = World::new();
    let main = serde_json::json!({ "name": "main", "image": "busybox:1", "volumeMounts": [
        { "name": "data", "mountPath": "/a" }, { "name": "data", "mountPath": "/b" },
    ] });
    let volumes = serde_json::json!([
        { "name": "data", "image": { "reference": "data:1", "pullPolicy": "IfNotPresent" } },
        { "name": "idle", "image": { "reference": "idle:1", "pullPolicy": "IfNotPresent" } },
    ]);
    let spec = serde_json::json!({ "containers": [main], "volumes": volumes });
    world.break_image("data:1", "ErrImagePull", "no such image");
    world.api.put(pod("web", spec));
    let agent = world.start(Sources::Api).await;
    world.eventually("told", |w| !w.messages("Failed").is_empty()).await;
    assert_eq!(world.messages("Failed")[0..2], ["Error: ErrImagePull"; 2], "one for each mount");
    let errors = "kubelet_started_containers_errors_total{code=\"ErrImagePull\",container_type=\"container\"}";
    assert_eq!(world.count(errors), 0);
    assert_eq!(world.count("kubelet_image_volume_requested_total"), 0);
    world.images.broken.lock().unwrap().clear();
    world.eventually("running", |w| w.api.phase("web").as_deref() == Some("Running")).await;
    assert_eq!(world.count("kubelet_image_volume_requested_total"), 1);
    assert_eq!(world.count("kubelet_image_volume_mounted_succeed_total"), 2);
    assert_eq!(world.count("kubelet_image_volume_mounted_errors_total"), 0);
    agent.crash().await;
}

#[tokio::test(start_paused = true)]
async fn a_resolver_that_does_not_fit_is_told_at_every_look() {
    let world = World::new();
    let mut web = simple("web");
    web.spec.as_mut().unwrap().dns_policy = Some("ClusterFirst".into());
    world.api.put(web);
    let agent = world.start(Sources::Api).await;
    world.eventually("running", |w| w.api.phase("web").as_deref() == Some("Running")).await;
    let told = |world: &World| world.messages("MissingClusterDNS").len();
    let before = told(&world);
    assert!(before >= 2, "for the sandbox and for its containers");
    tokio::time::sleep(Duration::from_secs(300)).await;
    assert!(
        told(&world) >= before + 2 * 3,
        "once a minute or so, for node and pod: {}",
        told(&world)
    );
    agent.crash().await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_cannot_be_stopped_is_told_in_upstreams_words() {
    let world = World::new();
    world.api.put(simple("web"));
    let agent = world.start(Sources::Api).await;
    world.eventually("running", |w| w.api.phase("web").as_deref() == Some("Running")).await;
    world
        .cri
        .inject(Fault::on(cri::Call::StopContainer).times(1).fail(cri::Code::Unknown, "stuck"));
    world.api.delete("web", 3, world.clock.now());
    world.eventually("deleted", |w| w.api.deleted() == ["web"]).await;
    assert_eq!(
        world.messages("FailedKillPod"),
        ["error killing pod: failed to \"KillContainer\" for \"main\" with KillContainerError: \
          \"rpc error: code = Unknown desc = stuck\""]
    );
    agent.crash().await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_whose_sandbox_is_replaced_is_not_told_of_as_not_killed() {
    let world = World::new();
    world.api.put(simple("web"));
    let agent = world.start(Sources::Api).await;
    world.eventually("running", |w| w.api.phase("web").as_deref() == Some("Running")).await;
    let fault = Fault::on(cri::Call::StopPodSandbox).times(1).fail(cri::Code::Unknown, "stuck");
    world.cri.inject(fault);
    world.cri.kill_sandbox(&world.cri.sandboxes()[0].id);
    world.eventually("replaced", |w| w.running("main") == 1 && w.cri.sandboxes().len() == 2).await;
    assert!(world.messages("SandboxChanged").len() >= 2, "tried again");
    assert_eq!(world.messages("FailedKillPod"), [""; 0]);
    agent.crash().await;
}

#[tokio::test(start_paused = true)]
async fn garbage_that_stays_is_no_news_but_a_runtime_that_lists_nothing_is() {
    let world = World::new();
    let fault = Fault::on(cri::Call::RemovePodSandbox).times(3).fail(cri::Code::Unknown, "busy");
    world.cri.inject(fault);
    world.api.put(simple("web"));
    let agent = world.start(Sources::Api).await;
    world.eventually("running", |w| w.api.phase("web").as_deref() == Some("Running")).await;
    world.api.delete("web", 1, world.clock.now());
    world.eventually("gone", |w| w.cri.sandboxes().is_empty()).await;
    assert_eq!(world.messages("ContainerGCFailed"), [""; 0]);
    world
        .cri
        .inject(Fault::on(cri::Call::ListPodSandbox).always().fail(cri::Code::Unknown, "no list"));
    world.eventually("told", |w| !w.messages("ContainerGCFailed").is_empty()).await;
    assert_eq!(world.messages("ContainerGCFailed")[0], "rpc error: code = Unknown desc = no list");
    agent.crash().await;
}

#[tokio::test(start_paused = true)]
async fn a_container_whose_state_is_lost_is_killed_before_it_is_removed() {
    let world = World::new();
    world.api.put(simple("web"));
    let first = world.start(Sources::Api).await;
    world.eventually("running", |w| w.running("main") == 1).await;
    first.crash().await;
    world.api.remove("web");
    world.cri.kill_sandbox(&world.cri.sandboxes()[0].id);
    world.cri.forget_state(&world.cri.containers()[0].id);
    let second = world.start(Sources::Api).await;
    world.eventually("removed", |w| w.cri.containers().is_empty()).await;
    let killing = {
        let all = world.events.all.lock().unwrap();
        all.iter().rfind(|event| event.reason == "Killing").unwrap().clone()
    };
    assert_eq!(killing.message, "Container is in unknown state, try killing it before removal");
    let ports::EventTarget::Pod { field_path, .. } = killing.target else { panic!("not of a pod") };
    assert_eq!(field_path.as_deref(), Some("implicitly required container main"));
    second.crash().await;
}

#[tokio::test(start_paused = true)]
async fn starts_are_counted_at_the_first_look_and_when_the_api_shows_them() {
    let world = World::new();
    let created = world.clock.now();
    let mut web = simple("web");
    web.metadata.creation_timestamp = Some(api::machinery::apis::meta::v1::Time(created));
    world.api.put(web);
    let agent = world.start(Sources::Api).await;
    world.eventually("running", |w| w.api.phase("web").as_deref() == Some("Running")).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(world.count("kubelet_pod_start_duration_seconds_count"), 2);
    assert_eq!(world.count("kubelet_pod_start_total_duration_seconds_count"), 1);
    assert_eq!(world.count("kubelet_pod_start_sli_duration_seconds_count"), 1);
    world.api.delete("web", 1, world.clock.now());
    world.eventually("deleted", |w| w.api.deleted() == ["web"]).await;
    let calls = |operation: &str| {
        let label = format!("{{operation_type=\"{operation}\"}}");
        world.count(&format!("kubelet_pod_worker_duration_seconds_count{label}"))
    };
    assert_eq!(calls("create"), 1);
    assert_eq!(calls("update"), 1, "the deletion");
    assert!(calls("sync") >= 1);
    assert_eq!(calls("kill"), 0);
    agent.crash().await;
}

/// For how many seconds the pod has been there.
fn age(pod: &api::core::v1::Pod, now: jiff::Timestamp) -> i64 {
    let started = pod.status.as_ref().unwrap().start_time.as_ref().unwrap().0;
    now.duration_since(started).as_secs()
}

#[tokio::test(start_paused = true)]
async fn a_resize_refused_for_good_is_judged_once_and_taken_back() {
    let world = World::new();
    *world.resizes.lock().unwrap() =
        ResizePolicy { exclusive_cpus: true, ..ResizePolicy::default() };
    let amounts = |cpu: &str| {
        serde_json::json!({ "requests": { "cpu": cpu, "memory": "64Mi" },
                                                  "limits": { "cpu": cpu, "memory": "64Mi" } })
    };
    let spec = serde_json::json!({ "containers": [
        { "name": "main", "image": "i:1", "resources": amounts("1") }
    ] });
    world.api.put(pod("web", spec));
    let agent = world.start(Sources::Api).await;
    world.eventually("running", |w| w.api.phase("web").as_deref() == Some("Running")).await;
    let wish = |cpu: &'static str| {
        move |pod: &mut api::core::v1::Pod| {
            let container = &mut pod.spec.as_mut().unwrap().containers[0];
            container.resources = serde_json::from_value(amounts(cpu)).unwrap();
            pod.metadata.generation = pod.metadata.generation.map(|g| g + 1);
        }
    };
    let pending = |w: &World| {
        let status = w.api.pod("web").unwrap().status.unwrap();
        status.conditions.iter().flatten().any(|c| c.type_ == "PodResizePending")
    };
    world.api.change("web", wish("2"));
    world.eventually("pending", pending).await;
    // Something else of the pod changes: that is no new wish.
    world.api.change("web", |pod| {
        pod.spec.as_mut().unwrap().active_deadline_seconds = Some(100_000);
        pod.metadata.generation = pod.metadata.generation.map(|g| g + 1);
    });
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert_eq!(world.messages("ResizeInfeasible").len(), 1);
    let counted = "kubelet_pod_infeasible_resizes_total{reason_detail=\"guaranteed_pod_cpu_manager_static_policy\"}";
    assert_eq!(world.count(counted), 1);
    world.api.change("web", wish("1"));
    world.eventually("taken back", |w| !pending(w)).await;
    world.api.change("web", wish("2"));
    let waiting = "kubelet_pod_pending_resizes{reason=\"infeasible\"}";
    world.eventually("waits again", |w| w.count(waiting) == 1).await;
    world.api.change("web", |pod| {
        let seconds = (age(pod, world.clock.now())).max(1);
        pod.spec.as_mut().unwrap().active_deadline_seconds = Some(seconds);
    });
    world.eventually("failed", |w| w.api.phase("web").as_deref() == Some("Failed")).await;
    world.eventually("waits no more", |w| w.count(waiting) == 0).await;
    agent.crash().await;
}

fn eviction(grace_seconds: i64) -> ports::KillRequest {
    ports::KillRequest {
        grace_seconds: Some(grace_seconds),
        evict: true,
        reason: "Evicted".into(),
        message: "The node was low on resource: memory. ".into(),
        condition: None,
    }
}

#[tokio::test(start_paused = true)]
async fn containers_of_an_evicted_pod_go_once_the_api_shows_how_they_ended() {
    let world = World::new();
    world.api.put(simple("web"));
    let agent = world.start(Sources::Api).await;
    world.eventually("running", |w| w.api.phase("web").as_deref() == Some("Running")).await;
    // Well away from the collector's own time.
    tokio::time::sleep(Duration::from_secs(20)).await;
    agent.pods.kill(&"uid-web".into(), eviction(1)).await.unwrap();
    let evicted = tokio::time::Instant::now();
    world.eventually("failed", |w| w.api.phase("web").as_deref() == Some("Failed")).await;
    world.eventually("removed", |w| w.instances("main") == 0).await;
    assert!(evicted.elapsed() < Duration::from_secs(10), "{:?}", evicted.elapsed());
    agent.crash().await;
}

#[tokio::test(start_paused = true)]
async fn containers_of_an_evicted_pod_stay_while_the_api_does_not_answer() {
    let world = World::new();
    let mut two = pod(
        "web",
        serde_json::json!({"containers": [
            {"name": "main", "image": "busybox:1"}, {"name": "slow", "image": "busybox:1"},
        ]}),
    );
    two.spec.as_mut().unwrap().termination_grace_period_seconds = Some(200);
    world.cri.behave("slow", Behaviour::ignores_term());
    world.api.put(two);
    let agent = world.start(Sources::Api).await;
    world.eventually("running", |w| w.running("slow") == 1).await;
    world.api.mute(true);
    agent.pods.kill(&"uid-web".into(), eviction(200)).await.unwrap();
    // Collected many times meanwhile: while the slow one ends, and after it.
    tokio::time::sleep(Duration::from_secs(300)).await;
    assert_eq!((world.instances("main"), world.instances("slow")), (1, 1));
    agent.crash().await;
    // What is known of it now is known from its containers: nothing of it runs for the first time.
    world.api.mute(false);
    let agent = world.start(Sources::Api).await;
    world.eventually("running again", |w| w.running("main") == 1).await;
    assert_eq!(world.cri.container("main").unwrap().attempt(), 1);
    agent.crash().await;
}

#[tokio::test(start_paused = true)]
async fn an_evicted_pod_has_failed_however_well_its_containers_ended_and_late_it_is_told() {
    let world = World::new();
    let mut job = simple("job");
    job.spec.as_mut().unwrap().restart_policy = Some("OnFailure".into());
    let on_term = OnTerm::Exit { after: Duration::ZERO, code: 0 };
    world.cri.behave("main", Behaviour { on_term, ..Behaviour::default() });
    world.api.put(job);
    let agent = world.start(Sources::Api).await;
    world.eventually("running", |w| w.api.phase("job").as_deref() == Some("Running")).await;
    world.api.mute(true);
    agent.pods.kill(&"uid-job".into(), eviction(1)).await.unwrap();
    world.eventually("finished", |_| agent.told("uid-job", "finished") == 1).await;
    world.api.mute(false);
    world.eventually("failed", |w| w.api.phase("job").as_deref() == Some("Failed")).await;
    let status = world.api.pod("job").unwrap().status.unwrap();
    assert_eq!(status.reason.as_deref(), Some("Evicted"));
    agent.crash().await;
}

#[tokio::test(start_paused = true)]
async fn a_resolver_file_that_is_too_much_is_told_of_the_node() {
    let world = World::new();
    let path = world.roots.etc.join("resolv.conf");
    let searches: Vec<String> = (0..30).map(|n| format!("s{n}.example")).collect();
    sys::fs::write(&path, format!("search {}\n", searches.join(" "))).unwrap();
    let agent = world.start(Sources::Api).await;
    world.eventually("told", |w| !w.messages("CheckLimitsForResolvConf").is_empty()).await;
    let path = path.display();
    assert_eq!(
        world.messages("CheckLimitsForResolvConf"),
        [format!(
            "Resolv.conf file '{path}' contains search line consisting of more than 29 domains!"
        )]
    );
    agent.crash().await;
}

#[tokio::test(start_paused = true)]
async fn a_missing_resolver_file_is_told_in_gos_words() {
    let world = World::new();
    let path = world.roots.etc.join("resolv.conf");
    sys::fs::remove_file(&path).unwrap();
    world.api.put(simple("web"));
    let agent = world.start(Sources::Api).await;
    world.eventually("told", |w| !w.messages("FailedCreatePodSandBox").is_empty()).await;
    let why = format!("open {}: no such file or directory", path.display());
    assert_eq!(world.messages("CheckLimitsForResolvConf"), std::slice::from_ref(&why));
    assert_eq!(
        world.messages("FailedCreatePodSandBox")[0],
        format!("Failed to create pod sandbox: {why}")
    );
    agent.crash().await;
}

#[tokio::test(start_paused = true)]
async fn more_time_than_clocks_count_is_only_a_long_time() {
    let world = World::new();
    for name in ["deleted", "evicted"] {
        let mut patient = simple(name);
        patient.spec.as_mut().unwrap().termination_grace_period_seconds = Some(i64::MAX);
        world.api.put(patient);
    }
    let agent = world.start(Sources::Api).await;
    world.eventually("running", |w| w.running("main") == 2).await;
    world.api.delete("deleted", i64::MAX, world.clock.now());
    world.eventually("deleted", |w| w.api.deleted() == ["deleted"]).await;
    let evict = ports::KillRequest { grace_seconds: None, ..eviction(0) };
    agent.pods.kill(&"uid-evicted".into(), evict).await.unwrap();
    let stops = world.cri.requests_of::<proto::cri_v1::StopContainerRequest>();
    let given: Vec<i64> = stops.iter().map(|stop| stop.timeout).collect();
    assert_eq!(given, [i64::MAX; 2]);
    agent.crash().await;
}
