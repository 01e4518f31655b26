//! Pods that wait for devices before they are judged (`RUBELET_LATE_DEVICES=wait`).

use crate::decisions::with_cpu;
use crate::world::{Sources, World, simple};
use std::time::Duration;
use testkit::fake_cri::{Behaviour, OnTerm};

const PLUGIN: &str = "the device plugin of example.com/thing";

fn wait_for_plugin(world: &World, uid: &str) {
    world.placement.late.send_modify(|late| drop(late.insert(uid.to_owned(), PLUGIN.to_owned())));
}

#[tokio::test(start_paused = true)]
async fn a_pod_whose_devices_are_late_says_so_and_runs_when_they_are_there() {
    let world = World::new();
    wait_for_plugin(&world, "uid-web");
    world.api.put(simple("web"));
    world.api.put(simple("other"));
    let agent = world.start(Sources::Api).await;
    world.eventually("others run", |w| w.api.phase("other").as_deref() == Some("Running")).await;
    let reason = |w: &World| w.api.pod("web").unwrap().status.unwrap_or_default().reason;
    world.eventually("told", |w| reason(w).as_deref() == Some("WaitingForDevices")).await;
    let status = world.api.pod("web").unwrap().status.unwrap();
    assert_eq!(status.phase.as_deref(), Some("Pending"));
    assert_eq!(status.message, Some(format!("Waiting for {PLUGIN}")));
    let ready = status.conditions.iter().flatten().find(|c| c.type_ == "Ready").unwrap();
    let shown = (ready.status.as_str(), ready.reason.as_deref());
    assert_eq!(shown, ("False", Some("WaitingForDevices")));
    assert_eq!(world.messages("WaitingForDevices"), [format!("Waiting for {PLUGIN}")]);
    assert_eq!(world.running("main"), 1, "only the other one");

    world.placement.late.send_modify(|late| late.clear());
    world.eventually("runs", |w| w.api.phase("web").as_deref() == Some("Running")).await;
    assert_eq!(reason(&world), None, "nothing of the wait stays");
    agent.crash().await;
}

#[tokio::test(start_paused = true)]
async fn nothing_of_the_wait_stays_with_a_pod_that_ran_before_a_reboot() {
    let world = World::new();
    wait_for_plugin(&world, "uid-web");
    let mut web = simple("web");
    web.status.get_or_insert_default().phase = Some("Running".to_owned());
    world.api.put(web);
    let agent = world.start(Sources::Api).await;
    let status = |w: &World| w.api.pod("web").unwrap().status.unwrap();
    let reason = |w: &World| status(w).reason;
    world.eventually("told", |w| reason(w).as_deref() == Some("WaitingForDevices")).await;
    assert_eq!(status(&world).phase.as_deref(), Some("Running"));
    world.placement.late.send_modify(|late| late.clear());
    world.eventually("runs", |w| w.running("main") == 1 && reason(w).is_none()).await;
    assert_eq!(status(&world).message, None);
    agent.crash().await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_waits_for_devices_can_be_deleted() {
    let world = World::new();
    wait_for_plugin(&world, "uid-web");
    world.api.put(simple("web"));
    let agent = world.start(Sources::Api).await;
    world.eventually("waits", |w| !w.messages("WaitingForDevices").is_empty()).await;
    world.api.delete("web", 0, world.clock.now());
    world.eventually("deleted", |w| w.api.deleted() == ["web"]).await;
    agent.crash().await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_is_judged_once_nothing_is_worth_waiting_for() {
    let world = World::new();
    wait_for_plugin(&world, "uid-web");
    world.placement.refused.lock().unwrap().insert(
        "uid-web".into(),
        ports::PlacementRejection {
            reason: "UnexpectedAdmissionError".into(),
            message: "no healthy devices present".into(),
        },
    );
    world.api.put(simple("web"));
    let agent = world.start(Sources::Api).await;
    world.eventually("waits", |w| !w.messages("WaitingForDevices").is_empty()).await;
    assert_ne!(world.api.phase("web").as_deref(), Some("Failed"));
    world.placement.late.send_modify(|late| late.clear());
    world.eventually("refused", |w| w.api.phase("web").as_deref() == Some("Failed")).await;
    assert_eq!(world.reasons(), ["WaitingForDevices", "UnexpectedAdmissionError"]);
    agent.crash().await;
}

#[tokio::test(start_paused = true)]
async fn a_critical_pod_that_waited_for_devices_waits_for_its_room_too() {
    let world = World::new();
    let on_term = OnTerm::Exit { after: Duration::from_secs(20), code: 0 };
    world.cri.behave("main", Behaviour { on_term, ..Behaviour::default() });
    world.api.put(with_cpu("small", "3"));
    let agent = world.start(Sources::Api).await;
    world.eventually("small runs", |w| w.api.phase("small").as_deref() == Some("Running")).await;
    wait_for_plugin(&world, "uid-critical");
    let mut critical = with_cpu("critical", "2");
    critical.spec.as_mut().unwrap().priority = Some(2_000_000_000);
    world.api.put(critical);
    world.eventually("waits", |w| !w.messages("WaitingForDevices").is_empty()).await;
    world.placement.late.send_modify(|late| late.clear());
    let runs = |w: &World, uid: &str| {
        w.cri.containers().iter().any(|c| c.pod_uid() == uid && c.is_running())
    };
    world.eventually("critical runs", |w| runs(w, "uid-critical")).await;
    assert!(!runs(&world, "uid-small"), "it had no room yet");
    assert_eq!(world.messages("Preempting").len(), 1);
    agent.crash().await;
}

const ANSWER: &str = "the device plugin of example.com/thing to answer Allocate";

fn hang(world: &World, uid: &str) {
    let waits = (uid.to_owned(), ANSWER.to_owned());
    world.placement.unanswered.send_modify(|waiting| waiting.extend([waits]));
}

#[tokio::test(start_paused = true)]
async fn a_plugin_that_does_not_answer_holds_up_its_own_pod_alone() {
    let world = World::new();
    hang(&world, "uid-web");
    world.api.put(simple("web"));
    world.api.put(simple("other"));
    let agent = world.start(Sources::Api).await;
    world.eventually("others run", |w| w.api.phase("other").as_deref() == Some("Running")).await;
    assert!(world.messages("WaitingForDevices").is_empty(), "a small delay is no news");
    let told = format!("Waiting for {ANSWER}");
    world.eventually("told", |w| w.messages("WaitingForDevices") == [told.clone()]).await;
    world.api.put(simple("third"));
    world.eventually("a third runs", |w| w.api.phase("third").as_deref() == Some("Running")).await;
    assert_eq!(world.running("main"), 2, "all but the one that waits");

    world.placement.unanswered.send_modify(|waiting| waiting.clear());
    world.eventually("runs", |w| w.api.phase("web").as_deref() == Some("Running")).await;
    assert_eq!(world.api.pod("web").unwrap().status.unwrap().reason, None);
    agent.crash().await;
}

#[tokio::test(start_paused = true)]
async fn an_answer_after_a_small_delay_is_no_news() {
    let world = World::new();
    hang(&world, "uid-web");
    world.api.put(simple("web"));
    world.api.put(simple("other"));
    let agent = world.start(Sources::Api).await;
    world.eventually("others run", |w| w.api.phase("other").as_deref() == Some("Running")).await;
    world.placement.unanswered.send_modify(|waiting| waiting.clear());
    world.eventually("runs", |w| w.api.phase("web").as_deref() == Some("Running")).await;
    assert!(world.messages("WaitingForDevices").is_empty());
    agent.crash().await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_whose_plugin_does_not_answer_can_be_deleted() {
    for grace in [0, 30] {
        let world = World::new();
        hang(&world, "uid-web");
        world.api.put(simple("web"));
        let agent = world.start(Sources::Api).await;
        world.eventually("waits", |w| !w.messages("WaitingForDevices").is_empty()).await;
        world.api.delete("web", grace, world.clock.now());
        world.eventually("deleted", |w| w.api.deleted() == ["web"]).await;
        assert!(world.placement.unanswered.borrow().is_empty(), "its call is given up");
        agent.crash().await;
    }
}
