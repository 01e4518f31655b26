//! Pods from their first container to their last trace, over a fake runtime and paused time.
#![expect(clippy::unwrap_used, reason = "tests")]

mod decisions;
mod device_waits;
mod ends;
mod events_and_metrics;
mod mishaps;
mod resizes;
mod simulation;
mod world;

use proto::cri_v1::StopContainerRequest;
use std::time::Duration;
use testkit::fake_cri::{Behaviour, ExecReply, Fault};
use world::{Sources, World, pod, simple};

#[tokio::test(start_paused = true)]
async fn a_pod_of_the_api_runs_and_its_status_says_so() {
    let world = World::new();
    world.api.put(simple("web"));
    let agent = world.start(Sources::Api).await;
    world.eventually("running", |w| w.api.phase("web").as_deref() == Some("Running")).await;
    assert_eq!(world.running("main"), 1);
    assert_eq!(world.cri.sandboxes().len(), 1);
    let status = world.api.pod("web").unwrap().status.unwrap();
    assert_eq!(status.host_ip.as_deref(), Some("192.0.2.1"));
    assert!(status.pod_ip.is_some());
    let ready = status.conditions.iter().flatten().find(|c| c.type_ == "Ready").unwrap();
    assert_eq!(ready.status, "True");
    assert_eq!(world.reasons(), ["Created", "Started"]);
    agent.crash().await;
}

#[tokio::test(start_paused = true)]
async fn a_static_pod_runs_without_an_api_server() {
    let world = World::new();
    world.write_manifest(
        "web.yaml",
        "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec:\n  containers: [{name: main, image: 'busybox:1'}]\n",
    );
    let agent = world.start(Sources::Files).await;
    world.eventually("running", |w| w.running("main") == 1).await;
    let sandbox = &world.cri.sandboxes()[0];
    assert_eq!(sandbox.config.metadata.as_ref().unwrap().name, "web-node");
    let uid = sandbox.pod_uid().to_owned();
    world.eventually("status", |_| agent.phase(&uid).as_deref() == Some("Running")).await;
    agent.crash().await;
}

#[tokio::test(start_paused = true)]
async fn a_failing_container_is_restarted_with_growing_delays() {
    let world = World::new();
    world.cri.behave("main", Behaviour::exits_after(Duration::from_secs(1), 1));
    world.api.put(simple("web"));
    let agent = world.start(Sources::Api).await;
    let starts = |w: &World| w.reasons().iter().filter(|r| **r == "Started").count();
    world.eventually("fifth start", |w| starts(w) >= 5).await;
    let made: Vec<i64> = world
        .cri
        .calls()
        .iter()
        .filter(|c| c.call == cri::Call::StartContainer)
        .map(|c| i64::try_from(c.at.elapsed().as_millis()).unwrap())
        .collect();
    let gaps: Vec<i64> = made.windows(2).map(|w| (w[0] - w[1]) / 1000).collect();
    // Restart n waits 0, 10, 20, 40 seconds from the end of the last run, plus up to half.
    for (gap, wait) in gaps.iter().zip([0, 10, 20, 40]) {
        assert!(*gap > wait && *gap <= wait + wait / 2 + 3, "{gaps:?}");
    }
    world
        .eventually("waiting reason", |w| {
            let status = w.api.pod("web").unwrap().status.unwrap();
            let state = status.container_statuses.unwrap()[0].state.clone().unwrap();
            state.waiting.is_some_and(|w| w.reason.as_deref() == Some("CrashLoopBackOff"))
        })
        .await;
    agent.crash().await;
}

#[tokio::test(start_paused = true)]
async fn our_own_restart_touches_nothing_that_runs() {
    let world = World::new();
    world.api.put(simple("web"));
    let first = world.start(Sources::Api).await;
    world.eventually("ready", |w| w.api.phase("web").as_deref() == Some("Running")).await;
    let before = world.cri.containers();
    tokio::time::sleep(Duration::from_secs(60)).await;
    first.crash().await;
    world.cri.clear_calls();
    let patches = world.api.patches().len();
    let second = world.start(Sources::Api).await;
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert_eq!(world.cri.containers(), before);
    for call in [cri::Call::RunPodSandbox, cri::Call::CreateContainer, cri::Call::StopContainer] {
        assert_eq!(world.cri.count(call), 0, "{call}");
    }
    let later: Vec<_> = world.api.patches().split_off(patches);
    assert!(later.is_empty(), "{later:#?}");
    second.crash().await;
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_is_killed_while_pods_come_ends() {
    for turns in 0..40 {
        let world = World::new();
        let agent = world.start(Sources::Api).await;
        world.api.put(simple("first"));
        world.eventually("running", |w| w.running("main") == 1).await;
        world.api.put(simple("second"));
        world.api.put(simple("third"));
        for _ in 0..turns {
            tokio::task::yield_now().await;
        }
        agent.crash().await;
    }
}

#[tokio::test(start_paused = true)]
async fn pods_wait_for_the_node_instead_of_being_refused() {
    let world = World::new();
    let node = world.take_node();
    world.api.put(simple("web"));
    world.write_manifest(
        "s.yaml",
        "apiVersion: v1\nkind: Pod\nmetadata: {name: fixed}\nspec:\n  containers: [{name: fixed, image: 'busybox:1'}]\n",
    );
    let agent = world.start(Sources::Both).await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert!(world.reasons().is_empty(), "{:?}", world.reasons());
    let mut unregistered = (*node).clone();
    unregistered.metadata.uid = None;
    world.set_node(|view| view.node = Some(std::sync::Arc::new(unregistered)));
    world.eventually("static pod", |w| w.running("fixed") == 1).await;
    assert_eq!(world.running("main"), 0, "the API's pods wait for the API's node");
    world.set_node(|view| view.node = Some(std::sync::Arc::clone(&node)));
    let began = tokio::time::Instant::now();
    world.eventually("API pod", |w| w.running("main") == 1).await;
    world.eventually("mirror", |w| w.api.pod("fixed-node").is_some()).await;
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    agent.crash().await;
}

#[tokio::test(start_paused = true)]
async fn a_deleted_pod_goes_only_after_its_containers() {
    let world = World::new();
    world.api.put(simple("web"));
    let agent = world.start(Sources::Api).await;
    world.eventually("running", |w| w.api.phase("web").as_deref() == Some("Running")).await;
    world.api.delete("web", 7, world.clock.now());
    world
        .eventually("deleted", |w| {
            let gone = w.api.deleted() == ["web"];
            assert!(!gone || w.running("main") == 0, "the API object went first");
            gone
        })
        .await;
    let stops = world.cri.requests_of::<StopContainerRequest>();
    assert_eq!(stops.iter().map(|s| s.timeout).collect::<Vec<_>>(), [7]);
    assert!(world.cgroups.made.lock().unwrap().is_empty());
    assert!(world.reasons().contains(&"Killing"));
    agent.crash().await;
}

#[tokio::test(start_paused = true)]
async fn a_shorter_grace_takes_effect_while_the_container_is_stopping() {
    let world = World::new();
    world.cri.behave("main", Behaviour::ignores_term());
    world.api.put(simple("web"));
    let agent = world.start(Sources::Api).await;
    world.eventually("running", |w| w.api.phase("web").as_deref() == Some("Running")).await;
    let began = tokio::time::Instant::now();
    world.api.delete("web", 600, world.clock.now());
    tokio::time::sleep(Duration::from_secs(5)).await;
    world.api.delete("web", 3, world.clock.now());
    world.eventually("deleted", |w| w.api.deleted() == ["web"]).await;
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
    agent.crash().await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_stuck_on_volumes_ends_at_once() {
    let world = World::new();
    world.volumes.stuck.lock().unwrap().insert("uid-web".into());
    world.api.put(simple("web"));
    let agent = world.start(Sources::Api).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    let began = tokio::time::Instant::now();
    world.api.delete("web", 30, world.clock.now());
    world.eventually("deleted", |w| w.api.deleted() == ["web"]).await;
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    assert_eq!(world.cri.count(cri::Call::RunPodSandbox), 0);
    agent.crash().await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_waits_for_a_pull_ends_at_once_and_nothing_has_failed() {
    let world = World::new();
    world.images.hanging.lock().unwrap().insert("busybox:1".into());
    world.api.put(simple("web"));
    let agent = world.start(Sources::Api).await;
    world.eventually("sandbox", |w| w.cri.sandboxes().len() == 1).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    let began = tokio::time::Instant::now();
    world.api.delete("web", 30, world.clock.now());
    world.eventually("deleted", |w| w.api.deleted() == ["web"]).await;
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    assert_eq!(world.messages("Failed"), [""; 0]);
    agent.crash().await;
}

#[tokio::test(start_paused = true)]
async fn a_container_has_its_whole_grace_after_the_hook_that_its_end_waits_for() {
    let world = World::new();
    world.cri.on_exec(|_| ExecReply::exits(0).after(Duration::from_secs(6)));
    let hook = serde_json::json!({ "postStart": { "exec": { "command": ["post"] } } });
    let main = serde_json::json!({ "name": "main", "image": "busybox:1", "lifecycle": hook });
    world.api.put(pod("web", serde_json::json!({ "containers": [main] })));
    let agent = world.start(Sources::Api).await;
    world.eventually("started", |w| w.reasons().contains(&"Started")).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    world.api.delete("web", 9, world.clock.now());
    world.eventually("deleted", |w| w.api.deleted() == ["web"]).await;
    let stops = world.cri.requests_of::<StopContainerRequest>();
    assert_eq!(stops.iter().map(|s| s.timeout).collect::<Vec<_>>(), [9]);
    agent.crash().await;
}

#[tokio::test(start_paused = true)]
async fn a_hanging_pod_holds_up_no_other() {
    let world = World::new();
    world.cri.inject(Fault::on(cri::Call::RunPodSandbox).matching("uid-bad").always().hang());
    world.api.put(simple("bad"));
    world.api.put(simple("good"));
    let agent = world.start(Sources::Api).await;
    world.eventually("good runs", |w| w.api.phase("good").as_deref() == Some("Running")).await;
    assert_eq!(world.api.phase("bad").as_deref(), Some("Pending"));
    agent.crash().await;
}

#[tokio::test(start_paused = true)]
async fn a_changed_manifest_replaces_the_pod_after_the_old_one_ended() {
    let world = World::new();
    let manifest = |image: &str| {
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: web}}\nspec:\n  containers: [{{name: main, image: '{image}'}}]\n"
        )
    };
    world.write_manifest("web.yaml", &manifest("busybox:1"));
    let agent = world.start(Sources::Files).await;
    world.eventually("first", |w| w.running("main") == 1).await;
    let old = world.cri.sandboxes()[0].pod_uid().to_owned();
    world.write_manifest("web.yaml", &manifest("busybox:2"));
    world
        .eventually("second", |w| {
            assert!(w.running("main") <= 1, "both versions ran at once");
            let containers = w.cri.containers();
            containers.iter().any(|c| c.is_running() && c.pod_uid() != old)
        })
        .await;
    agent.crash().await;
}

#[tokio::test(start_paused = true)]
async fn a_manifest_changed_while_we_were_down_waits_for_the_old_pod() {
    let world = World::new();
    let manifest = |image: &str| {
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: web}}\nspec:\n  terminationGracePeriodSeconds: 8\n  containers: [{{name: main, image: '{image}'}}]\n"
        )
    };
    world.cri.behave("main", Behaviour::ignores_term());
    world.write_manifest("web.yaml", &manifest("busybox:1"));
    let first = world.start(Sources::Files).await;
    world.eventually("first", |w| w.running("main") == 1).await;
    let old = world.cri.sandboxes()[0].pod_uid().to_owned();
    first.crash().await;
    world.write_manifest("web.yaml", &manifest("busybox:2"));
    let second = world.start(Sources::Files).await;
    world
        .eventually("second", |w| {
            assert!(w.running("main") <= 1, "both versions ran at once");
            let containers = w.cri.containers();
            containers.iter().any(|c| c.is_running() && c.pod_uid() != old)
        })
        .await;
    second.crash().await;
}

#[tokio::test(start_paused = true)]
async fn a_broken_manifest_is_named_while_the_others_run() {
    let world = World::new();
    world.write_manifest("a.yaml", "apiVersion: v1\nkind: Pod\nmetadata: {name: [}\n");
    world.write_manifest(
        "b.yaml",
        "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec:\n  containers: [{name: main, image: 'busybox:1'}]\n",
    );
    let agent = world.start(Sources::Files).await;
    world.eventually("good one", |w| w.running("main") == 1).await;
    let faults = agent.pods.manifest_faults().borrow().clone();
    let (path, reason) = faults.iter().next().unwrap();
    assert!(path.ends_with("a.yaml") && reason.starts_with("yaml: line 2: "), "{faults:?}");
    agent.crash().await;
}

#[tokio::test(start_paused = true)]
async fn a_container_never_runs_twice_whatever_the_events_say() {
    let world = World::new();
    // Slow creation and lost answers: each is a chance to start a second copy.
    world.cri.inject(
        Fault::on(cri::Call::CreateContainer)
            .times(2)
            .fail_after_effect(cri::Code::Unavailable, "connection lost"),
    );
    world.cri.inject(Fault::on(cri::Call::ListContainers).times(20).delay(Duration::from_secs(2)));
    world.api.put(simple("web"));
    let agent = world.start(Sources::Api).await;
    world
        .eventually("running", |w| {
            assert!(w.running("main") <= 1);
            w.api.phase("web").as_deref() == Some("Running")
        })
        .await;
    for _ in 0..600 {
        assert!(world.running("main") <= 1);
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    agent.crash().await;
}

#[tokio::test(start_paused = true)]
async fn a_crash_at_any_moment_leaves_at_most_one_copy_and_a_running_pod() {
    for moment in 0..40 {
        let world = World::new();
        world.api.put(simple("web"));
        let first = world.start(Sources::Api).await;
        tokio::time::sleep(Duration::from_millis(moment * 10)).await;
        first.crash().await;
        let second = world.start(Sources::Api).await;
        world
            .eventually("running", |w| {
                assert!(w.running("main") <= 1);
                w.api.phase("web").as_deref() == Some("Running")
            })
            .await;
        assert_eq!(world.running("main"), 1);
        second.crash().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_nobody_wants_is_ended_without_its_hook() {
    let world = World::new();
    let hook = serde_json::json!({ "preStop": { "exec": { "command": ["pre"] } } });
    let main = serde_json::json!({ "name": "main", "image": "busybox:1", "lifecycle": hook });
    world.api.put(pod("web", serde_json::json!({ "containers": [main] })));
    let first = world.start(Sources::Api).await;
    world.eventually("running", |w| w.running("main") == 1).await;
    first.crash().await;
    world.api.remove("web");
    let second = world.start(Sources::Api).await;
    world.eventually("ended", |w| w.running("main") == 0).await;
    assert_eq!(world.cri.count(cri::Call::ExecSync), 0);
    assert_eq!(world.messages("Killing"), ["Stopping container main"]);
    second.crash().await;
}

#[tokio::test(start_paused = true)]
async fn a_refused_pod_is_failed_and_runs_nothing() {
    let world = World::new();
    world.placement.refused.lock().unwrap().insert(
        "uid-web".into(),
        ports::PlacementRejection {
            reason: "TopologyAffinityError".into(),
            message: "Resources cannot be allocated with Topology locality".into(),
        },
    );
    world.api.put(simple("web"));
    let agent = world.start(Sources::Api).await;
    world.eventually("failed", |w| w.api.phase("web").as_deref() == Some("Failed")).await;
    let status = world.api.pod("web").unwrap().status.unwrap();
    assert_eq!(status.reason.as_deref(), Some("TopologyAffinityError"));
    assert_eq!(
        status.message.as_deref(),
        Some("Pod was rejected: Resources cannot be allocated with Topology locality")
    );
    assert_eq!(world.reasons(), ["TopologyAffinityError"]);
    assert_eq!(world.cri.count(cri::Call::RunPodSandbox), 0);
    world.api.delete("web", 0, world.clock.now());
    world.eventually("deleted", |w| w.api.deleted() == ["web"]).await;
    agent.crash().await;
}

#[tokio::test(start_paused = true)]
async fn an_image_that_cannot_be_pulled_is_the_waiting_reason() {
    let world = World::new();
    world.break_image("busybox:1", "ErrImagePull", "no such host");
    world.api.put(simple("web"));
    let agent = world.start(Sources::Api).await;
    world
        .eventually("waiting", |w| {
            let status = w.api.pod("web").unwrap().status.unwrap();
            let first = status.container_statuses.as_ref().and_then(|c| c.first().cloned());
            let waiting = first.and_then(|c| c.state?.waiting);
            waiting.is_some_and(|w| {
                w.reason.as_deref() == Some("ErrImagePull")
                    && w.message.as_deref() == Some("no such host")
            })
        })
        .await;
    assert_eq!(world.messages("Failed").first().map(String::as_str), Some("Error: ErrImagePull"));
    world.images.broken.lock().unwrap().clear();
    world.eventually("running", |w| w.api.phase("web").as_deref() == Some("Running")).await;
    agent.crash().await;
}

#[tokio::test(start_paused = true)]
async fn a_finished_pod_is_succeeded_and_its_sandbox_stopped() {
    let world = World::new();
    world.cri.behave("main", Behaviour::exits_after(Duration::from_secs(3), 0));
    let spec = serde_json::json!({
        "restartPolicy": "Never", "containers": [{"name": "main", "image": "busybox:1"}]
    });
    world.api.put(pod("job", spec));
    let agent = world.start(Sources::Api).await;
    world.eventually("done", |w| w.api.phase("job").as_deref() == Some("Succeeded")).await;
    world.eventually("stopped", |w| w.cri.sandboxes().iter().all(|s| !s.ready)).await;
    assert_eq!(world.instances("main"), 1);
    agent.crash().await;
}

#[tokio::test(start_paused = true)]
async fn init_containers_run_one_after_another_before_the_rest() {
    let world = World::new();
    for name in ["one", "two"] {
        world.cri.behave(name, Behaviour::exits_after(Duration::from_secs(2), 0));
    }
    let spec = serde_json::json!({
        "initContainers": [{"name": "one", "image": "i:1"}, {"name": "two", "image": "i:1"}],
        "containers": [{"name": "main", "image": "i:1"}]
    });
    world.api.put(pod("web", spec));
    let agent = world.start(Sources::Api).await;
    world
        .eventually("running", |w| {
            let alive = ["one", "two", "main"].iter().filter(|n| w.running(n) > 0).count();
            assert!(alive <= 1, "two ran at once");
            w.api.phase("web").as_deref() == Some("Running")
        })
        .await;
    let order: Vec<String> = world.cri.containers().iter().map(|c| c.name().to_owned()).collect();
    assert_eq!(order.len(), 3, "{order:?}");
    agent.crash().await;
}

#[tokio::test(start_paused = true)]
async fn a_sidecar_stops_after_the_containers_it_serves() {
    let world = World::new();
    let spec = serde_json::json!({
        "initContainers": [{"name": "side", "image": "i:1", "restartPolicy": "Always"}],
        "containers": [{"name": "main", "image": "i:1"}]
    });
    world.api.put(pod("web", spec));
    let agent = world.start(Sources::Api).await;
    world.eventually("running", |w| w.running("main") == 1 && w.running("side") == 1).await;
    world.api.delete("web", 20, world.clock.now());
    world.eventually("deleted", |w| w.api.deleted() == ["web"]).await;
    let containers = world.cri.containers();
    let id_of = |name: &str| containers.iter().find(|c| c.name() == name).map(|c| c.id.clone());
    let stops: Vec<String> = world
        .cri
        .requests_of::<StopContainerRequest>()
        .into_iter()
        .map(|s| s.container_id)
        .collect();
    if let (Some(main), Some(side)) = (id_of("main"), id_of("side")) {
        assert_eq!(stops, [main, side]);
    } else {
        assert_eq!(stops.len(), 2);
    }
    agent.crash().await;
}

#[tokio::test(start_paused = true)]
async fn a_lost_sandbox_is_replaced() {
    let world = World::new();
    world.api.put(simple("web"));
    let agent = world.start(Sources::Api).await;
    world.eventually("running", |w| w.api.phase("web").as_deref() == Some("Running")).await;
    let sandbox = world.cri.sandboxes()[0].id.clone();
    world.cri.kill_sandbox(&sandbox);
    world
        .eventually("new sandbox", |w| {
            w.cri.sandboxes().iter().any(|s| s.ready && s.id != sandbox) && w.running("main") == 1
        })
        .await;
    assert!(world.reasons().contains(&"SandboxChanged"));
    agent.crash().await;
}

/// Who stops a sandbox kills its containers first, and we see that at once.
#[tokio::test(start_paused = true)]
async fn a_container_that_was_killed_with_its_sandbox_is_not_said_to_fail_or_held_back() {
    let world = World::new();
    world.api.put(simple("web"));
    let agent = world.start(Sources::Api).await;
    world.eventually("running", |w| w.api.phase("web").as_deref() == Some("Running")).await;
    let sandbox = world.cri.sandboxes()[0].id.clone();
    let no_shim = "can't find shim for sandbox";
    world.cri.inject(Fault::on(cri::Call::StartContainer).fail(cri::Code::Unknown, no_shim));
    world.cri.exit(&world.cri.container("main").unwrap().id, 137);
    tokio::time::sleep(Duration::from_millis(150)).await;
    world.cri.kill_sandbox(&sandbox);
    let began = tokio::time::Instant::now();
    world
        .eventually("new sandbox", |w| {
            w.cri.sandboxes().iter().any(|s| s.ready && s.id != sandbox) && w.running("main") == 1
        })
        .await;
    assert_eq!(world.cri.count(cri::Call::StartContainer), 3, "one was tried in vain");
    assert!(began.elapsed() < Duration::from_secs(5), "held back");
    let told = world.reasons();
    assert!(told.contains(&"SandboxChanged"));
    assert!(!told.contains(&"Failed") && !told.contains(&"BackOff"), "{told:?}");
    let restarts = |w: &World| Some(w.api.pod("web")?.status?.container_statuses?[0].restart_count);
    world.eventually("counted once", |w| restarts(w) == Some(1)).await;
    agent.crash().await;
}

#[tokio::test(start_paused = true)]
async fn a_network_that_is_not_ready_is_waited_for() {
    let world = World::new();
    world.set_node(|view| view.network_error = Some("cni plugin not initialized".into()));
    world.api.put(simple("web"));
    let agent = world.start(Sources::Api).await;
    world.eventually("event", |w| !w.messages("NetworkNotReady").is_empty()).await;
    assert_eq!(
        world.messages("NetworkNotReady")[0],
        "network is not ready: cni plugin not initialized"
    );
    world.set_node(|view| view.network_error = None);
    world.eventually("running", |w| w.running("main") == 1).await;
    agent.crash().await;
}
