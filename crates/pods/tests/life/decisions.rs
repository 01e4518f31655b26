//! Admission, resizes, probes, hooks and static pods end to end.

use crate::world::{Sources, World, pod, simple};
use proto::cri_v1::{
    CreateContainerRequest, StopContainerRequest, UpdateContainerResourcesRequest,
    UpdatePodSandboxResourcesRequest,
};
use serde_json::json;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use testkit::fake_cri::{Behaviour, ExecReply, Fault};

pub(crate) fn with_cpu(name: &str, cpu: &str) -> api::core::v1::Pod {
    let spec = serde_json::json!({
        "containers": [{"name": "main", "image": "i:1", "resources": {"requests": {"cpu": cpu}}}]
    });
    pod(name, spec)
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_does_not_fit_is_refused_with_the_numbers() {
    let world = World::new();
    world.api.put(with_cpu("small", "3"));
    let agent = world.start(Sources::Api).await;
    world.eventually("small runs", |w| w.api.phase("small").as_deref() == Some("Running")).await;
    world.api.put(with_cpu("big", "2"));
    world.eventually("big fails", |w| w.api.phase("big").as_deref() == Some("Failed")).await;
    let status = world.api.pod("big").unwrap().status.unwrap();
    assert_eq!(status.reason.as_deref(), Some("OutOfcpu"));
    let message =
        "Node didn't have enough resource: cpu, requested: 2000, used: 3000, capacity: 4000";
    assert_eq!(status.message.unwrap(), format!("Pod was rejected: {message}"));
    assert_eq!(world.messages("OutOfcpu"), [message]);
    agent.crash().await;
}

#[tokio::test(start_paused = true)]
async fn a_critical_pod_gets_the_room_of_a_lesser_one() {
    let world = World::new();
    world.api.put(with_cpu("small", "3"));
    let agent = world.start(Sources::Api).await;
    world.eventually("small runs", |w| w.api.phase("small").as_deref() == Some("Running")).await;
    let mut critical = with_cpu("critical", "2");
    critical.spec.as_mut().unwrap().priority = Some(2_000_000_000);
    world.api.put(critical);
    world.eventually("critical", |w| w.api.phase("critical").as_deref() == Some("Running")).await;
    assert_eq!(world.messages("Preempting"), ["Preempted in order to admit critical pod"]);
    world.eventually("small fails", |w| w.api.phase("small").as_deref() == Some("Failed")).await;
    let status = world.api.pod("small").unwrap().status.unwrap();
    assert_eq!(status.reason.as_deref(), Some("Preempting"));
    assert!(status.conditions.unwrap().iter().any(|c| c.type_ == "DisruptionTarget"));
    agent.crash().await;
}

#[tokio::test(start_paused = true)]
async fn a_critical_pod_does_not_wait_for_ever_for_one_that_does_not_end() {
    let world = World::new();
    world.api.put(with_cpu("small", "3"));
    let agent = world.start(Sources::Api).await;
    world.eventually("small runs", |w| w.api.phase("small").as_deref() == Some("Running")).await;
    world.cri.inject(Fault::on(cri::Call::StopContainer).always().hang());
    let mut critical = with_cpu("critical", "2");
    critical.spec.as_mut().unwrap().priority = Some(2_000_000_000);
    world.api.put(critical);
    world.eventually("critical", |w| w.api.phase("critical").as_deref() == Some("Running")).await;
    assert_eq!(
        world.messages("ExceededGracePeriod"),
        ["Container runtime did not kill the pod within specified grace period."]
    );
    assert_eq!(world.messages("UnexpectedAdmissionError"), [""; 0]);
    agent.crash().await;
}

#[tokio::test(start_paused = true)]
async fn a_resize_that_fits_reaches_the_container() {
    let world = World::new();
    world.api.put(with_cpu("web", "1"));
    let agent = world.start(Sources::Api).await;
    world.eventually("running", |w| w.api.phase("web").as_deref() == Some("Running")).await;
    let resize = |cpu: &'static str| {
        move |pod: &mut api::core::v1::Pod| {
            let container = &mut pod.spec.as_mut().unwrap().containers[0];
            container.resources =
                serde_json::from_value(serde_json::json!({"requests": {"cpu": cpu}})).unwrap();
            pod.metadata.generation = pod.metadata.generation.map(|g| g + 1);
        }
    };
    world.api.change("web", resize("2"));
    world.eventually("completed", |w| !w.messages("ResizeCompleted").is_empty()).await;
    let updates = world.cri.requests_of::<UpdateContainerResourcesRequest>();
    assert_eq!(updates[0].linux.as_ref().unwrap().cpu_shares, 2048);
    assert_eq!(world.instances("main"), 1, "nothing was restarted");
    let started = &world.messages("ResizeStarted")[0];
    assert!(
        started.starts_with("Pod resize started: {\"containers\":[{\"name\":\"main\""),
        "{started}"
    );

    world.api.change("web", resize("9"));
    world.eventually("deferred", |w| !w.messages("ResizeDeferred").is_empty()).await;
    world
        .eventually("condition", |w| {
            let status = w.api.pod("web").unwrap().status.unwrap();
            status.conditions.iter().flatten().any(|c| c.type_ == "PodResizePending")
        })
        .await;
    agent.crash().await;
}

#[tokio::test(start_paused = true)]
async fn a_resize_that_the_runtime_does_not_show_completes_at_once() {
    let world = World::new();
    let with_memory = |memory: &str| serde_json::json!({"requests": {"memory": memory}, "limits": {"memory": "64Mi"}});
    let spec = serde_json::json!({
        "containers": [{"name": "main", "image": "i:1", "resources": with_memory("32Mi")}]
    });
    world.api.put(pod("web", spec));
    let agent = world.start(Sources::Api).await;
    world.eventually("running", |w| w.api.phase("web").as_deref() == Some("Running")).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let began = tokio::time::Instant::now();
    world.api.change("web", |pod| {
        let container = &mut pod.spec.as_mut().unwrap().containers[0];
        container.resources = serde_json::from_value(with_memory("48Mi")).unwrap();
        pod.metadata.generation = pod.metadata.generation.map(|g| g + 1);
    });
    world.eventually("completed", |w| !w.messages("ResizeCompleted").is_empty()).await;
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    agent.crash().await;
}

#[tokio::test(start_paused = true)]
async fn a_resize_of_memory_leaves_the_processors_share_alone() {
    let world = World::new();
    let with_memory = |memory: &str| serde_json::json!({"requests": {"cpu": "1", "memory": "32Mi"}, "limits": {"memory": memory}});
    let spec = serde_json::json!({
        "containers": [{"name": "main", "image": "i:1", "resources": with_memory("64Mi")}]
    });
    world.api.put(pod("web", spec));
    let agent = world.start(Sources::Api).await;
    world.eventually("running", |w| w.api.phase("web").as_deref() == Some("Running")).await;
    world.api.change("web", |pod| {
        let container = &mut pod.spec.as_mut().unwrap().containers[0];
        container.resources = serde_json::from_value(with_memory("96Mi")).unwrap();
        pod.metadata.generation = pod.metadata.generation.map(|g| g + 1);
    });
    world.eventually("completed", |w| !w.messages("ResizeCompleted").is_empty()).await;
    // The cgroup shows other shares than the 1024 that the pod asks for: its weight is rounded.
    let told = world.cri.requests_of::<UpdatePodSandboxResourcesRequest>();
    let shares: Vec<i64> =
        told.iter().map(|request| request.resources.as_ref().unwrap().cpu_shares).collect();
    assert_eq!(shares, [998]);
    agent.crash().await;
}

#[tokio::test(start_paused = true)]
async fn a_resize_of_what_does_not_run_yet_is_over_before_a_status_shows_it() {
    let world = World::new();
    world.cri.behave("first", Behaviour::exits_after(Duration::from_secs(30), 0));
    let amount = |cpu: &str| serde_json::json!({"requests": {"cpu": cpu}, "limits": {"cpu": cpu}});
    let spec = serde_json::json!({
        "initContainers": [{"name": "first", "image": "i:1", "resources": amount("1")}],
        "containers": [{"name": "main", "image": "i:1", "resources": amount("1")}]
    });
    world.api.put(pod("web", spec));
    let agent = world.start(Sources::Api).await;
    world.eventually("init runs", |w| w.running("first") == 1).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    world.api.change("web", |pod| {
        let container = &mut pod.spec.as_mut().unwrap().containers[0];
        container.resources = serde_json::from_value(amount("2")).unwrap();
        pod.metadata.generation = pod.metadata.generation.map(|g| g + 1);
    });
    world.eventually("completed", |w| !w.messages("ResizeCompleted").is_empty()).await;
    world.eventually("running", |w| w.api.phase("web").as_deref() == Some("Running")).await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(world.messages("ResizeCompleted").len(), 1);
    let shown = format!("{:?}", world.api.patches());
    assert!(!shown.contains("PodResizeInProgress"), "{shown}");
    agent.crash().await;
}

#[tokio::test(start_paused = true)]
async fn readiness_survives_our_restart_and_follows_the_probe_after_it() {
    let world = World::new();
    let good = Arc::new(AtomicBool::new(true));
    let answer = Arc::clone(&good);
    world.cri.on_exec(move |_| ExecReply::exits(i32::from(!answer.load(Ordering::SeqCst))));
    let spec = serde_json::json!({"containers": [{"name": "main", "image": "i:1",
        "readinessProbe": {"exec": {"command": ["check"]}, "periodSeconds": 5, "failureThreshold": 2}}]});
    world.api.put(pod("web", spec));
    let first = world.start(Sources::Api).await;
    world.eventually("ready", |_| first.is_ready("uid-web")).await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    first.crash().await;
    let patches = world.api.patches().len();
    let second = world.start(Sources::Api).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    let later = world.api.patches().split_off(patches);
    assert!(later.is_empty(), "our restart was seen: {later:#?}");
    good.store(false, Ordering::SeqCst);
    world.eventually("unready", |_| !second.is_ready("uid-web")).await;
    assert!(world.messages("Unhealthy").iter().all(|m| m.starts_with("Readiness probe failed: ")));
    assert_eq!(world.running("main"), 1, "readiness restarts nothing");
    second.crash().await;
}

#[tokio::test(start_paused = true)]
async fn a_failed_liveness_probe_restarts_the_container_with_the_probes_grace() {
    let world = World::new();
    world.cri.on_exec(|_| ExecReply::exits(1));
    let spec = serde_json::json!({"containers": [{"name": "main", "image": "i:1", "livenessProbe": {
        "exec": {"command": ["check"]}, "periodSeconds": 1, "terminationGracePeriodSeconds": 4}}]});
    world.api.put(pod("web", spec));
    let agent = world.start(Sources::Api).await;
    world.eventually("killed", |w| !w.messages("Killing").is_empty()).await;
    assert_eq!(
        world.messages("Killing")[0],
        "Container main failed liveness probe, will be restarted"
    );
    world.eventually("restarted", |w| w.instances("main") >= 2).await;
    assert_eq!(world.cri.requests_of::<StopContainerRequest>()[0].timeout, 4);
    agent.crash().await;
}

#[tokio::test(start_paused = true)]
async fn the_time_a_kill_takes_counts_as_waited() {
    let world = World::new();
    world.cri.behave("main", Behaviour::ignores_term());
    world.cri.on_exec(|_| ExecReply::exits(1));
    let spec = serde_json::json!({
        "terminationGracePeriodSeconds": 4,
        "containers": [{"name": "main", "image": "i:1", "livenessProbe": {
            "exec": {"command": ["check"]},
            "initialDelaySeconds": 7, "periodSeconds": 1, "failureThreshold": 1}}]});
    world.api.put(pod("web", spec));
    let agent = world.start(Sources::Api).await;
    // The third restart has ten seconds to wait, of which seven are over when the kill begins.
    let starts = |w: &World| w.reasons().iter().filter(|r| **r == "Started").count();
    world.eventually("restarted", |w| starts(w) == 4).await;
    assert_eq!(world.messages("BackOff"), [""; 0]);
    world.eventually("waits", |w| !w.messages("BackOff").is_empty()).await;
    assert_eq!(starts(&world), 4);
    agent.crash().await;
}

#[tokio::test(start_paused = true)]
async fn a_probe_that_cannot_be_made_restarts_nothing() {
    let world = World::new();
    world.cri.on_exec(|_| ExecReply::fails(cri::Code::Unavailable, "runtime is busy"));
    let spec = serde_json::json!({"containers": [{"name": "main", "image": "i:1", "livenessProbe": {
        "exec": {"command": ["check"]}, "periodSeconds": 1, "failureThreshold": 1}}]});
    world.api.put(pod("web", spec));
    let agent = world.start(Sources::Api).await;
    world.eventually("told", |w| w.messages("Unhealthy").len() > 3).await;
    assert!(world.messages("Unhealthy")[0].contains("errored and resulted in unknown state"));
    assert_eq!(world.instances("main"), 1);
    assert!(world.messages("Killing").is_empty());
    agent.crash().await;
}

#[tokio::test(start_paused = true)]
async fn a_failed_post_start_hook_kills_the_container() {
    let world = World::new();
    world.cri.on_exec(|_| ExecReply::exits(7));
    let spec = serde_json::json!({"containers": [{"name": "main", "image": "i:1",
        "lifecycle": {"postStart": {"exec": {"command": ["hook", "x"]}}}}]});
    world.api.put(pod("web", spec));
    let agent = world.start(Sources::Api).await;
    world.eventually("told", |w| !w.messages("FailedPostStartHook").is_empty()).await;
    assert_eq!(world.messages("FailedPostStartHook")[0], "PostStartHook failed");
    assert_eq!(world.messages("Killing")[0], "FailedPostStartHook");
    agent.crash().await;
}

#[tokio::test(start_paused = true)]
async fn a_pre_stop_hook_uses_up_the_grace() {
    let world = World::new();
    world.cri.on_exec(|_| ExecReply::exits(0).after(Duration::from_secs(4)));
    let spec = serde_json::json!({"containers": [{"name": "main", "image": "i:1",
        "lifecycle": {"preStop": {"exec": {"command": ["hook"]}}}}]});
    world.api.put(pod("web", spec));
    let agent = world.start(Sources::Api).await;
    world.eventually("running", |w| w.api.phase("web").as_deref() == Some("Running")).await;
    world.api.delete("web", 10, world.clock.now());
    world.eventually("deleted", |w| w.api.deleted() == ["web"]).await;
    assert_eq!(world.cri.requests_of::<StopContainerRequest>()[0].timeout, 6);
    agent.crash().await;
}

#[tokio::test(start_paused = true)]
async fn a_pre_stop_hook_that_overruns_the_grace_ends_with_its_container() {
    let world = World::new();
    world.cri.behave("main", Behaviour::ignores_term());
    world.cri.on_exec(|_| ExecReply::exits(137).after(Duration::from_secs(11)));
    let spec = serde_json::json!({"containers": [{"name": "main", "image": "i:1",
        "lifecycle": {"preStop": {"exec": {"command": ["hook"]}}}}]});
    world.api.put(pod("web", spec));
    let agent = world.start(Sources::Api).await;
    world.eventually("running", |w| w.api.phase("web").as_deref() == Some("Running")).await;
    world.api.delete("web", 10, world.clock.now());
    world.eventually("deleted", |w| w.api.deleted() == ["web"]).await;
    assert_eq!(world.cri.requests_of::<StopContainerRequest>()[0].timeout, 2);
    // Its call was not given up when the grace period was over: its end was seen.
    assert_eq!(world.messages("FailedPreStopHook"), ["PreStopHook failed"]);
    agent.crash().await;
}

const STATIC: &str = "apiVersion: v1\nkind: Pod\nmetadata: {name: etcd}\nspec:\n  containers: [{name: main, image: 'etcd:1'}]\n";

#[tokio::test(start_paused = true)]
async fn a_status_is_set_right_after_the_api_server_was_restored_from_a_backup() {
    let world = World::new();
    world.api.put(simple("web"));
    let backup = world.api.pod("web").unwrap();
    let agent = world.start(Sources::Api).await;
    let runs = |w: &World| w.api.phase("web").as_deref() == Some("Running");
    world.eventually("running", runs).await;
    world.api.restore(backup);
    assert!(!runs(&world));
    world.eventually("running as before", runs).await;
    agent.crash().await;
}

#[tokio::test(start_paused = true)]
async fn a_static_pod_has_a_mirror_that_carries_its_status() {
    let world = World::new();
    world.write_manifest("etcd.yaml", STATIC);
    let agent = world.start(Sources::Both).await;
    world.eventually("mirror", |w| w.api.phase("etcd-node").as_deref() == Some("Running")).await;
    let mirror = world.api.pod("etcd-node").unwrap();
    assert_eq!(mirror.metadata.owner_references.as_ref().unwrap()[0].name, "node");
    // Deleting the mirror stops nothing and brings it back.
    world.api.remove("etcd-node");
    world
        .eventually("mirror again", |w| w.api.phase("etcd-node").as_deref() == Some("Running"))
        .await;
    assert_eq!(world.instances("main"), 1);
    sys::fs::remove_file(world.manifests().join("etcd.yaml")).unwrap();
    world.eventually("gone", |w| w.running("main") == 0 && w.api.pod("etcd-node").is_none()).await;
    agent.crash().await;
}

#[tokio::test(start_paused = true)]
async fn a_static_pod_of_another_agent_is_taken_over() {
    let world = World::new();
    let theirs = STATIC.replace("{name: etcd}", "{name: etcd, uid: their-uid}");
    world.write_manifest("etcd.yaml", &theirs);
    let first = world.start(Sources::Files).await;
    world.eventually("running", |w| w.running("main") == 1).await;
    first.crash().await;
    let before = world.cri.containers();
    // The manifest as its author wrote it, not touched since the other agent saw it.
    world.write_manifest("etcd.yaml", STATIC);
    let file =
        std::fs::File::options().append(true).open(world.manifests().join("etcd.yaml")).unwrap();
    file.set_modified(std::time::UNIX_EPOCH + Duration::from_secs(1_600_000_000)).unwrap();
    let second = world.start(Sources::Files).await;
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert_eq!(world.cri.containers(), before);
    assert_eq!(second.phase("their-uid").as_deref(), Some("Running"));
    second.crash().await;
    // And so at every later start, whatever the file's time is then.
    world.write_manifest("etcd.yaml", STATIC);
    let third = world.start(Sources::Files).await;
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert_eq!(world.cri.containers(), before);
    third.crash().await;
}

#[tokio::test(start_paused = true)]
async fn an_active_deadline_ends_the_pod_in_time() {
    let world = World::new();
    let mut short = simple("web");
    short.spec.as_mut().unwrap().active_deadline_seconds = Some(20);
    world.api.put(short);
    let agent = world.start(Sources::Api).await;
    world.eventually("running", |w| w.api.phase("web").as_deref() == Some("Running")).await;
    let began = tokio::time::Instant::now();
    world.eventually("ended", |w| w.api.phase("web").as_deref() == Some("Failed")).await;
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
    let status = world.api.pod("web").unwrap().status.unwrap();
    assert_eq!(status.reason.as_deref(), Some("DeadlineExceeded"));
    agent.crash().await;
}

#[tokio::test(start_paused = true)]
async fn a_missing_pull_secret_is_told_although_nothing_can_be_pulled() {
    let world = World::new();
    world.break_image("i:1", "ErrImageNeverPull", "not present");
    let spec = serde_json::json!({
        "imagePullSecrets": [{"name": "gone"}, {"name": ""}, {"name": "lost"}],
        "containers": [{"name": "one", "image": "i:1"}, {"name": "two", "image": "i:1"}]
    });
    world.api.put(pod("web", spec));
    let agent = world.start(Sources::Api).await;
    world.eventually("failed", |w| w.reasons().contains(&"Failed")).await;
    assert_eq!(
        world.messages("FailedToRetrieveImagePullSecret")[..1],
        ["Unable to retrieve some image pull secrets (gone, lost); attempting to pull the image \
          may not succeed."]
    );
    assert_eq!(world.reasons()[0], "FailedToRetrieveImagePullSecret");
    agent.crash().await;
}

fn waiting_of(world: &World, pod: &str) -> Option<(String, String)> {
    let status = world.api.pod(pod)?.status?;
    let waiting = status.container_statuses?.first()?.state.clone()?.waiting?;
    Some((waiting.reason.unwrap_or_default(), waiting.message.unwrap_or_default()))
}

#[tokio::test(start_paused = true)]
async fn every_image_volume_that_is_missing_is_told_and_the_last_one_shown() {
    let world = World::new();
    for (image, reason) in [("v:1", "ErrImagePull"), ("v:2", "ErrImageNeverPull")] {
        world.break_image(image, reason, &format!("no {image}"));
    }
    let spec = serde_json::json!({
        "volumes": [{"name": "a", "image": {"reference": "v:1"}}, {"name": "b", "image": {"reference": "v:2"}}],
        "containers": [{"name": "main", "image": "i:1", "volumeMounts": [
            {"name": "a", "mountPath": "/a"}, {"name": "b", "mountPath": "/b"}
        ]}]
    });
    world.api.put(pod("web", spec));
    let agent = world.start(Sources::Api).await;
    world
        .eventually("waiting", |w| waiting_of(w, "web").is_some_and(|(_, text)| text == "no v:2"))
        .await;
    assert_eq!(world.messages("Failed")[..2], ["Error: ErrImagePull", "Error: ErrImageNeverPull"]);
    agent.crash().await;
}

#[tokio::test(start_paused = true)]
async fn an_event_of_a_failed_start_names_the_container_and_the_status_its_id() {
    let world = World::new();
    // The sandbox is the first thing that the fake runtime makes, this container the second.
    let id = format!("{:016x}{:048x}", 2_u64.wrapping_mul(0x9e37_79b9_7f4a_7c15), 2);
    let text = format!("cannot start {id}: no");
    let fault = Fault::on(cri::Call::StartContainer).matching(&id);
    world.cri.inject(fault.fail(cri::Code::Unknown, &text));
    world.api.put(simple("web"));
    let agent = world.start(Sources::Api).await;
    world
        .eventually("waiting", |w| {
            waiting_of(w, "web").is_some_and(|(r, _)| r == "RunContainerError")
        })
        .await;
    assert_eq!(world.messages("Failed")[0], "Error: cannot start main: no");
    assert_eq!(waiting_of(&world, "web").unwrap().1, text);
    agent.crash().await;
}

#[tokio::test(start_paused = true)]
async fn a_container_that_the_runtime_keeps_after_a_failed_start_is_made_anew_after_a_pause() {
    let world = World::new();
    let fault = Fault::on(cri::Call::StartContainer).always();
    world.cri.inject(fault.fail(cri::Code::Unknown, "no"));
    world.api.put(simple("web"));
    let agent = world.start(Sources::Api).await;
    let made = |w: &World| w.cri.requests_of::<CreateContainerRequest>().len();
    world.eventually("made once", |w| made(w) == 1).await;
    let mut before = tokio::time::Instant::now();
    for count in 2..5 {
        world.eventually("made again", |w| made(w) >= count).await;
        assert_eq!(made(&world), count);
        let pause = before.elapsed();
        let sensible = Duration::from_millis(9_900)..Duration::from_secs(17);
        assert!(sensible.contains(&pause), "{pause:?}");
        before = tokio::time::Instant::now();
        assert_eq!(waiting_of(&world, "web").unwrap().0, "RunContainerError");
    }
    assert_eq!(world.instances("main"), 1, "what did not start is removed");
    agent.crash().await;
}

#[tokio::test(start_paused = true)]
async fn an_image_whose_user_is_not_known_is_told_with_the_cause() {
    let world = World::new();
    world.break_image("busybox:1", "CreateContainerConfigError", "rpc error: no");
    world.api.put(simple("web"));
    let agent = world.start(Sources::Api).await;
    world.eventually("failed", |w| !w.messages("Failed").is_empty()).await;
    assert_eq!(world.messages("Failed")[0], "Error: rpc error: no");
    agent.crash().await;
}

#[tokio::test(start_paused = true)]
async fn a_sandbox_that_is_there_is_not_said_to_have_failed() {
    let world = World::new();
    world.api.put(simple("web"));
    let agent = world.start(Sources::Api).await;
    world.eventually("running", |w| w.api.phase("web").as_deref() == Some("Running")).await;
    let file = world.roots.etc.join("resolv.conf");
    sys::fs::write(&file, "nameserver\n").unwrap();
    let id = world.cri.containers()[0].id.clone();
    world.cri.exit(&id, 1);
    world.eventually("tried twice", |_| agent.told("uid-web", "sandbox not described") >= 2).await;
    assert_eq!(world.running("main"), 0);
    assert_eq!(world.messages("FailedCreatePodSandBox"), [""; 0]);
    sys::fs::write(&file, "nameserver 192.0.2.53\n").unwrap();
    world.eventually("running again", |w| w.running("main") == 1).await;
    agent.crash().await;
}

#[tokio::test(start_paused = true)]
async fn a_critical_pod_that_grows_gets_the_room_of_a_lesser_one() {
    let world = World::new();
    world.api.put(with_cpu("small", "2"));
    let mut critical = with_cpu("critical", "1");
    critical.spec.as_mut().unwrap().priority = Some(2_000_000_000);
    world.api.put(critical);
    let agent = world.start(Sources::Api).await;
    let phase = |w: &World, name: &str| w.api.phase(name).unwrap_or_default();
    world
        .eventually("both run", |w| {
            phase(w, "small") == "Running" && phase(w, "critical") == "Running"
        })
        .await;
    world.api.change("critical", |pod| {
        let container = &mut pod.spec.as_mut().unwrap().containers[0];
        container.resources =
            serde_json::from_value(serde_json::json!({"requests": {"cpu": "3"}})).unwrap();
        pod.metadata.generation = pod.metadata.generation.map(|g| g + 1);
    });
    world.eventually("completed", |w| !w.messages("ResizeCompleted").is_empty()).await;
    assert_eq!(world.messages("Preempting"), ["Preempted in order to admit critical pod"]);
    assert_eq!(world.messages("ResizeDeferred"), [""; 0]);
    world.eventually("small fails", |w| phase(w, "small") == "Failed").await;
    assert_eq!(world.count("kubelet_preemptions{preemption_signal=\"cpu\"}"), 1);
    agent.crash().await;
}

#[tokio::test(start_paused = true)]
async fn a_probed_container_that_ended_for_good_leaves_its_worker_in_peace() {
    let world = World::new();
    world.cri.behave("done", Behaviour::exits(0));
    let probe = json!({ "exec": { "command": ["true"] } });
    let containers = json!([
        { "name": "done", "image": "busybox:1", "readinessProbe": probe },
        { "name": "main", "image": "busybox:1" },
    ]);
    world.api.put(pod("job", json!({ "restartPolicy": "Never", "containers": containers })));
    let agent = world.start(Sources::Api).await;
    world
        .eventually("one ended, one runs", |world| {
            let status = world.api.pod("job").and_then(|pod| pod.status).unwrap_or_default();
            let entries = status.container_statuses.unwrap_or_default();
            let ended = |entry: &api::core::v1::ContainerStatus| {
                entry.state.as_ref().is_some_and(|state| state.terminated.is_some())
            };
            entries.iter().any(ended) && world.running("main") == 1
        })
        .await;
    agent.crash().await;
    let agent = world.start(Sources::Api).await;
    let series = "kubelet_pod_worker_duration_seconds_count{operation_type=\"sync\"}";
    let before = world.count(series);
    // Turns of the agent, not time: a worker that never rests keeps time from passing.
    for _ in 0..50_000 {
        tokio::task::yield_now().await;
    }
    let more = world.count(series) - before;
    assert!(more < 10, "{more} syncs in no time");
    agent.crash().await;
}
