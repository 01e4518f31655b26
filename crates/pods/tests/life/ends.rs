//! Ends, of the agent in the middle of its work and of pods whose workers wait: nothing is lost, run twice or waited
//! out.

use crate::world::{FakeCgroups, Sources, World, pod, simple};
use serde_json::json;
use std::time::Duration;
use testkit::fake_cri::{Behaviour, ExecReply, Fault};
use tokio::time::Instant;

/// A pod that runs once, and whose start takes this long.
fn runs_once(world: &World, name: &str, start_takes: Duration) {
    let behaviour = Behaviour { start_takes, ..Behaviour::exits_after(Duration::from_secs(1), 0) };
    world.cri.behave("main", behaviour);
    let containers = json!([{ "name": "main", "image": "busybox:1" }]);
    world.api.put(pod(name, json!({ "restartPolicy": "Never", "containers": containers })));
}

/// Until a call of this kind has come to the runtime.
async fn called(world: &World, call: cri::Call) {
    world.cri.until(|cri| cri.count(call) > 0).await;
}

fn runs(world: &World) -> usize {
    world.cri.containers().iter().filter(|container| container.ran).count()
}

#[tokio::test(start_paused = true)]
async fn a_start_that_is_under_way_ends_before_the_agent_does() {
    let world = World::new();
    runs_once(&world, "job", Duration::from_secs(4));
    let agent = world.start(Sources::Api).await;
    called(&world, cri::Call::StartContainer).await;
    agent.stop().await;
    assert!(world.cri.container("main").unwrap().is_running());
    let agent = world.start(Sources::Api).await;
    world.eventually("done", |w| w.api.phase("job").as_deref() == Some("Succeeded")).await;
    assert_eq!((runs(&world), world.cri.count(cri::Call::StartContainer)), (1, 1));
    agent.crash().await;
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_is_to_end_begins_nothing_new() {
    let world = World::new();
    runs_once(&world, "job", Duration::ZERO);
    world.cri.inject(Fault::on(cri::Call::RunPodSandbox).delay(Duration::from_secs(3)));
    let agent = world.start(Sources::Api).await;
    called(&world, cri::Call::RunPodSandbox).await;
    let began = Instant::now();
    agent.stop().await;
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    assert_eq!(world.cri.sandboxes().len(), 1, "the sandbox was made");
    assert_eq!(world.cri.count(cri::Call::CreateContainer), 0, "nothing came after it");
    let agent = world.start(Sources::Api).await;
    world.eventually("done", |w| w.api.phase("job").as_deref() == Some("Succeeded")).await;
    assert_eq!(world.cri.count(cri::Call::RunPodSandbox), 1, "it is used");
    agent.crash().await;
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_is_to_end_does_not_wait_for_what_its_pods_wait_for() {
    let world = World::new();
    world.images.hanging.lock().unwrap().insert("busybox:1".to_owned());
    world.api.put(simple("web"));
    let agent = world.start(Sources::Api).await;
    called(&world, cri::Call::RunPodSandbox).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let began = Instant::now();
    agent.stop().await;
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_post_start_hook_that_runs_ends_before_the_agent_does() {
    let world = World::new();
    world.cri.on_exec(|_| ExecReply::exits(0).after(Duration::from_secs(5)));
    let hook = json!({ "postStart": { "exec": { "command": ["greet"] } } });
    let containers = json!([{ "name": "main", "image": "busybox:1", "lifecycle": hook }]);
    world.api.put(pod("web", json!({ "containers": containers })));
    let agent = world.start(Sources::Api).await;
    called(&world, cri::Call::ExecSync).await;
    let began = Instant::now();
    agent.stop().await;
    let took = began.elapsed();
    assert!((4..7).contains(&took.as_secs()), "{took:?}");
}

/// The agent is killed while the runtime has started the container for so long of four seconds.
async fn killed_after(world: &World, time: Duration) {
    runs_once(world, "job", Duration::from_secs(4));
    let agent = world.start(Sources::Api).await;
    called(world, cri::Call::StartContainer).await;
    tokio::time::sleep(time).await;
    world.cri.down();
    agent.crash().await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    world.cri.up();
    let state = world.cri.container("main").unwrap();
    assert_eq!((state.reason.as_str(), state.started_at), ("StartError", 0));
}

#[tokio::test(start_paused = true)]
async fn a_pod_whose_only_start_was_cut_off_before_it_ran_has_its_turn() {
    let world = World::new();
    killed_after(&world, Duration::from_secs(1)).await;
    assert_eq!(runs(&world), 0);
    let agent = world.start(Sources::Api).await;
    world.eventually("done", |w| w.api.phase("job").as_deref() == Some("Succeeded")).await;
    assert_eq!((runs(&world), world.instances("main")), (1, 1), "what never ran is removed");
    let status = world.api.pod("job").unwrap().status.unwrap();
    assert_eq!(status.container_statuses.unwrap()[0].restart_count, 0);
    agent.crash().await;
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_removed_and_never_ran_stops_nobody() {
    let world = World::new();
    killed_after(&world, Duration::from_secs(1)).await;
    let fault = Fault::on(cri::Call::RemoveContainer).always();
    world.cri.inject(fault.fail(cri::Code::Unknown, "cannot delete running task"));
    let agent = world.start(Sources::Api).await;
    world.eventually("done", |w| w.api.phase("job").as_deref() == Some("Succeeded")).await;
    assert_eq!((runs(&world), world.instances("main")), (1, 2));
    agent.crash().await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_whose_only_start_was_cut_off_when_it_may_have_run_is_not_run_again() {
    let world = World::new();
    killed_after(&world, Duration::from_secs(3)).await;
    assert_eq!(runs(&world), 1);
    let agent = world.start(Sources::Api).await;
    world.eventually("failed", |w| w.api.phase("job").as_deref() == Some("Failed")).await;
    assert_eq!((runs(&world), world.instances("main")), (1, 1));
    agent.crash().await;
}

/// A deletion that comes before its worker begins to wait counts too.
#[tokio::test(start_paused = true)]
async fn a_deletion_during_the_start_does_not_wait_the_hook_out() {
    let world = World::new();
    world.cri.on_exec(|_| ExecReply::exits(0).after(Duration::from_secs(600)));
    let slow = Behaviour { start_takes: Duration::from_secs(3), ..Behaviour::default() };
    world.cri.behave("main", slow);
    let hook = json!({ "postStart": { "exec": { "command": ["greet"] } } });
    let containers = json!([{ "name": "main", "image": "busybox:1", "lifecycle": hook }]);
    world.api.put(pod("web", json!({ "containers": containers })));
    let agent = world.start(Sources::Api).await;
    called(&world, cri::Call::StartContainer).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    world.api.delete("web", 5, world.clock.now());
    let began = Instant::now();
    world.eventually("deleted", |w| w.api.deleted() == ["web"]).await;
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
    agent.crash().await;
}

/// As an agent leaves it that is killed between the cgroup and its limits.
#[tokio::test(start_paused = true)]
async fn a_cgroup_that_was_left_half_made_is_made_whole_before_anything_runs_in_it() {
    let world = World::new();
    let resources = json!({ "requests": { "cpu": "250m" } });
    let containers = json!([{ "name": "main", "image": "busybox:1", "resources": resources }]);
    let web = pod("web", json!({ "containers": containers }));
    world.cgroups.made.lock().unwrap().insert("uid-web".to_owned(), None);
    world.api.put(web.clone());
    let agent = world.start(Sources::Api).await;
    world.eventually("running", |w| w.running("main") == 1).await;
    assert_eq!(world.cgroups.limits_of("uid-web"), Some(FakeCgroups::limits_for(&web)));
    agent.crash().await;
}

/// A network plugin that hangs, or a hook of the runtime, holds up no deletion.
#[tokio::test(start_paused = true)]
async fn a_deletion_does_not_wait_for_a_runtime_that_hangs() {
    use cri::Call::{CreateContainer, RunPodSandbox, StartContainer};
    for call in [RunPodSandbox, CreateContainer, StartContainer] {
        let world = World::new();
        world.cri.inject(Fault::on(call).hang());
        world.api.put(simple("web"));
        let agent = world.start(Sources::Api).await;
        called(&world, call).await;
        world.api.delete("web", 1, world.clock.now());
        let began = Instant::now();
        world.eventually("deleted", |w| w.api.deleted() == ["web"]).await;
        let took = began.elapsed();
        assert!(took < Duration::from_secs(15), "{call:?}: {took:?}");
        let left = |w: &World| w.cri.containers().len() + w.cri.sandboxes().len();
        world.eventually("nothing is left", |w| left(w) == 0).await;
        agent.crash().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_look_that_failed_is_repeated_within_a_second() {
    let world = World::new();
    world.api.put(simple("web"));
    let agent = world.start(Sources::Api).await;
    world.eventually("running", |w| w.api.phase("web").as_deref() == Some("Running")).await;
    // The end of its container is seen by the next look that succeeds.
    let fault = Fault::on(cri::Call::ContainerStatus).times(1);
    world.cri.inject(fault.fail(cri::Code::Unavailable, "not now"));
    let began = Instant::now();
    world.cri.exit(&world.cri.container("main").unwrap().id, 1);
    world
        .cri
        .until(|cri| cri.containers().iter().any(|c| c.attempt() == 1 && c.is_running()))
        .await;
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    agent.crash().await;
}

#[tokio::test(start_paused = true)]
async fn looks_that_go_on_failing_become_rare_and_are_forgotten_with_their_pod() {
    let world = World::new();
    world.api.put(simple("web"));
    let agent = world.start(Sources::Api).await;
    world.eventually("running", |w| w.api.phase("web").as_deref() == Some("Running")).await;
    let fault = Fault::on(cri::Call::ContainerStatus).always();
    world.cri.inject(fault.fail(cri::Code::Unavailable, "not now"));
    world.cri.exit(&world.cri.container("main").unwrap().id, 1);
    tokio::time::sleep(Duration::from_secs(5)).await;
    world.cri.clear_calls();
    tokio::time::sleep(Duration::from_secs(120)).await;
    let looks = world.cri.count(cri::Call::ContainerStatus);
    assert!((4..40).contains(&looks), "{looks} looks in two minutes");
    let stuck = agent.pods.view_health();
    assert_eq!(stuck.borrow().stuck.len(), 1);
    world.cri.clear_faults();
    world.eventually("running again", |w| w.running("main") == 1).await;
    assert_eq!(stuck.borrow().stuck.len(), 0);
    agent.crash().await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_restarts_all_at_once_does_so_about_once_a_second() {
    let world = World::new();
    world.cri.behave("main", Behaviour::exits(42));
    let rule = json!({ "action": "RestartAllContainers",
        "exitCodes": { "operator": "In", "values": [42] } });
    let containers = json!([
        { "name": "main", "image": "busybox:1", "restartPolicy": "OnFailure",
          "restartPolicyRules": [rule] },
        { "name": "other", "image": "busybox:1" },
    ]);
    world.api.put(pod("web", json!({ "containers": containers })));
    let agent = world.start(Sources::Api).await;
    called(&world, cri::Call::StartContainer).await;
    world.cri.clear_calls();
    tokio::time::sleep(Duration::from_secs(30)).await;
    let starts = world.cri.count(cri::Call::StartContainer) / 2;
    assert!((12..40).contains(&starts), "{starts} restarts in half a minute");
    agent.crash().await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_made_anew_under_its_name_in_one_update_takes_the_others_place() {
    let world = World::new();
    world.cri.behave("main", Behaviour::ignores_term());
    world.api.put(simple("web"));
    let agent = world.start(Sources::Api).await;
    world.eventually("running", |w| w.api.phase("web").as_deref() == Some("Running")).await;
    world.api.forget("web");
    let mut again = simple("web");
    again.metadata.uid = Some("uid-again".to_owned());
    world.api.put(again);
    let of = |w: &World, uid: &str| {
        w.cri.containers().iter().filter(|c| c.pod_uid() == uid && c.is_running()).count()
    };
    world
        .eventually("only the new one runs", |w| of(w, "uid-again") == 1 && of(w, "uid-web") == 0)
        .await;
    world.eventually("shown", |w| w.api.phase("web").as_deref() == Some("Running")).await;
    assert_eq!(world.api.pod("web").unwrap().metadata.uid.as_deref(), Some("uid-again"));
    assert_eq!(world.api.deleted(), [""; 0]);
    agent.crash().await;
}
