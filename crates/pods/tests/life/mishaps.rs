//! Faults of the agent itself: tasks that panic, a dispatcher that hangs, clocks that somebody sets.

use crate::world::{Agent, Sources, World, pod, simple};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use testkit::fake_cri::{Behaviour, ExecReply};

fn probed(name: &str) -> api::core::v1::Pod {
    pod(
        name,
        serde_json::json!({"containers": [{
            "name": name, "image": "busybox:1",
            "readinessProbe": {"exec": {"command": ["check"]}, "periodSeconds": 1}
        }]}),
    )
}

/// What checks find from now on.
fn checks(world: &World) -> Arc<AtomicBool> {
    let healthy = Arc::new(AtomicBool::new(true));
    let answer = Arc::clone(&healthy);
    world.cri.on_exec(move |_| ExecReply::exits(i32::from(!answer.load(Ordering::SeqCst))));
    healthy
}

/// How often tasks of this name have panicked.
fn panics(agent: &Agent, name: &str) -> u64 {
    agent.tasks.panics().into_iter().find(|(task, _)| *task == name).map_or(0, |(_, count)| count)
}

/// Makes one task of this name panic, which must be seen within ten minutes: tasks that only run now and then
/// are waited for.
async fn make_panic(agent: &Agent, name: &str) {
    let before = panics(agent, name);
    agent.tasks.make_panic(name);
    for _ in 0..6000 {
        if panics(agent, name) > before {
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("no task {name} panicked; these run: {:?}", agent.tasks.running());
}

#[tokio::test(start_paused = true)]
async fn whatever_task_panics_pods_come_and_go_and_probes_count() {
    for name in [
        "runtime-look",
        "runtime-audit",
        "runtime-events",
        "probe",
        "probe-store",
        "pod-worker",
        "allocated-state",
        "actuated-state",
    ] {
        let world = World::new();
        let healthy = checks(&world);
        world.api.put(probed("old"));
        let agent = world.start(Sources::Api).await;
        world.eventually("ready", |_| agent.is_ready("uid-old")).await;
        // The one that runs, or the next: a look comes with the next pod.
        agent.tasks.make_panic(name);
        // What was there is looked after, what comes is started, what goes is ended.
        healthy.store(false, Ordering::SeqCst);
        world.eventually(&format!("not ready after {name}"), |_| !agent.is_ready("uid-old")).await;
        healthy.store(true, Ordering::SeqCst);
        world.eventually(&format!("ready after {name}"), |_| agent.is_ready("uid-old")).await;
        world.api.put(simple("new"));
        world.eventually(&format!("new after {name}"), |w| w.running("main") == 1).await;
        for pod in ["old", "new"] {
            world.api.delete(pod, 1, world.clock.now());
        }
        world.eventually(&format!("gone after {name}"), |w| w.cri.containers().is_empty()).await;
        assert_eq!(agent.tasks.fatal(), None, "{name}");
        assert_eq!(panics(&agent, name), 1, "{name}");
        agent.crash().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_task_that_cannot_begin_anew_ends_the_process_with_its_name() {
    for name in ["pods", "runtime-view", "pod-status", "container-gc", "pods-from-api"] {
        let world = World::new();
        world.api.put(simple("web"));
        let agent = world.start(Sources::Api).await;
        world.eventually("running", |w| w.running("main") == 1).await;
        make_panic(&agent, name).await;
        assert_eq!(agent.tasks.fatal(), Some(format!("task {name} panicked")));
        agent.crash().await;
        // And the next start finds everything as it was.
        let agent = world.start(Sources::Api).await;
        world.eventually("known", |_| agent.phase("uid-web").as_deref() == Some("Running")).await;
        assert_eq!(world.instances("main"), 1, "{name}");
        agent.crash().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_dispatcher_that_hangs_shows_and_a_runtime_that_is_restarted_does_not() {
    let world = World::new();
    world.api.put(simple("web"));
    let agent = world.start(Sources::Api).await;
    world.eventually("running", |w| w.running("main") == 1).await;
    world.cri.down();
    for _ in 0..240 {
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(agent.pods.check_loop(), Ok(()));
    }
    // As upstream, whose loop stands still for as long.
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert!(agent.pods.check_loop().is_err());
    world.cri.up();
    world.eventually("well again", |_| agent.pods.check_loop().is_ok()).await;
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert_eq!(agent.pods.check_loop(), Ok(()));
    world.placement.hangs.send_replace(true);
    world.api.put(simple("hangs"));
    tokio::time::sleep(Duration::from_secs(290)).await;
    assert_eq!(agent.pods.check_loop(), Ok(()));
    tokio::time::sleep(Duration::from_secs(20)).await;
    let told = agent.pods.check_loop();
    assert_eq!(told, Err("sync Loop took longer than expected".to_owned()));
    world.placement.hangs.send_replace(false);
    world.eventually("well at last", |_| agent.pods.check_loop().is_ok()).await;
    agent.crash().await;
}

#[tokio::test(start_paused = true)]
async fn clocks_that_are_set_stop_no_pod() {
    const DAY: i64 = 86_400;
    for by in [365 * DAY, -365 * DAY, 20_000 * DAY, -19_000 * DAY, -3] {
        let world = World::new();
        let healthy = checks(&world);
        world.cri.behave("fails", Behaviour::exits_after(Duration::from_secs(1), 1));
        world.api.put(probed("web"));
        let failing = serde_json::json!({"containers": [{"name": "fails", "image": "busybox:1"}]});
        world.api.put(pod("fails", failing));
        let agent = world.start(Sources::Api).await;
        world.eventually("ready", |_| agent.is_ready("uid-web")).await;
        let starts = |w: &World| w.reasons().iter().filter(|r| **r == "Started").count();
        world.eventually("restarted", |w| starts(w) >= 4).await;
        world.jumps.set(by);
        let before = starts(&world);
        // Back-off is five minutes at most, whatever the clock shows.
        let began = tokio::time::Instant::now();
        world.eventually(&format!("restarted after {by}"), |w| starts(w) >= before + 2).await;
        assert!(began.elapsed() < Duration::from_secs(1200), "{by}: {:?}", began.elapsed());
        assert!(agent.is_ready("uid-web"), "{by}");
        healthy.store(false, Ordering::SeqCst);
        world.eventually(&format!("not ready after {by}"), |_| !agent.is_ready("uid-web")).await;
        world.api.put(simple("late"));
        world.eventually(&format!("late after {by}"), |w| w.running("main") == 1).await;
        for pod in ["web", "fails", "late"] {
            world.api.delete(pod, 1, world.clock.now());
        }
        world.eventually(&format!("gone after {by}"), |w| w.cri.containers().is_empty()).await;
        agent.crash().await;
    }
}
