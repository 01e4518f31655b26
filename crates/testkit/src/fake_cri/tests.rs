//! The fake and the client, each tested through the other. Time is paused.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use cri::{
    Call, ClientConfig, Code, Connector, CriError, Endpoint, Reachability, RuntimeClient,
    RuntimeEvent, RuntimeOperations, Service, Support,
};
use proto::cri_v1::{
    ContainerConfig, ContainerEventType, ContainerFilter, ContainerMetadata, ContainerState,
    ContainerStateValue, ImageSpec, PodSandboxConfig, PodSandboxMetadata, RunPodSandboxRequest,
};
use tokio::time::{Instant, timeout};

use super::{Behaviour, ExecReply, FakeCri, Fault, OnTerm, Pull};
use crate::paused_clock::PausedClock;

const IMAGE: &str = "registry.example/app:1";

fn fake() -> FakeCri {
    FakeCri::new(Arc::new(PausedClock::new()))
}

fn sandbox_config(name: &str, attempt: u32) -> PodSandboxConfig {
    PodSandboxConfig {
        metadata: Some(PodSandboxMetadata {
            name: name.into(),
            namespace: "default".into(),
            uid: format!("{name}-uid"),
            attempt,
        }),
        ..Default::default()
    }
}

fn container_config(name: &str, attempt: u32) -> ContainerConfig {
    ContainerConfig {
        metadata: Some(ContainerMetadata { name: name.into(), attempt }),
        image: Some(image()),
        ..Default::default()
    }
}

fn image() -> ImageSpec {
    ImageSpec { image: IMAGE.into(), ..Default::default() }
}

/// A started container `c` in a fresh sandbox; gives sandbox and container id.
async fn started(client: &RuntimeClient) -> (String, String) {
    client.pull_image(image(), None, None).await.unwrap();
    let config = sandbox_config("web", 0);
    let sandbox = client.run_pod_sandbox(config.clone(), "").await.unwrap();
    let container =
        client.create_container(&sandbox, container_config("c", 0), config).await.unwrap();
    client.start_container(&container).await.unwrap();
    (sandbox, container)
}

async fn state_of(client: &RuntimeClient, container: &str) -> ContainerState {
    client.container_status(container, false).await.unwrap().status.unwrap().state()
}

#[tokio::test(start_paused = true)]
async fn a_container_lives_and_dies_by_its_behaviour() {
    let fake = fake();
    fake.behave("c", Behaviour::exits_after(Duration::from_secs(5), 3));
    let client = fake.client();
    let (sandbox, container) = started(&client).await;
    assert_eq!(state_of(&client, &container).await, ContainerState::ContainerRunning);
    fake.until(|fake| !fake.container("c").unwrap().is_running()).await;
    let status = client.container_status(&container, false).await.unwrap().status.unwrap();
    assert_eq!((status.exit_code, status.reason.as_str()), (3, "Error"));
    assert_eq!(status.finished_at - status.started_at, 5_000_000_000);

    let ready = client.pod_sandbox_status(&sandbox, false).await.unwrap().status.unwrap();
    assert!(!ready.network.unwrap().ip.is_empty());
    client.stop_pod_sandbox(&sandbox).await.unwrap();
    client.remove_pod_sandbox(&sandbox).await.unwrap();
    client.remove_pod_sandbox(&sandbox).await.unwrap();
    assert!(fake.sandboxes().is_empty() && fake.containers().is_empty());
    let gone = client.container_status(&container, false).await.unwrap_err();
    assert!(gone.is_not_found(), "{gone}");
}

#[tokio::test(start_paused = true)]
async fn a_stop_waits_for_the_process_and_kills_it_after_the_grace() {
    let fake = fake();
    let slow = OnTerm::Exit { after: Duration::from_secs(4), code: 0 };
    for (on_term, grace, want_code, want_seconds) in
        [(slow, 30, 0, 4), (slow, 2, 137, 2), (OnTerm::Ignore, 30, 137, 30), (slow, 0, 137, 0)]
    {
        fake.behave("c", Behaviour { on_term, ..Behaviour::default() });
        let client = fake.client();
        let (sandbox, container) = started(&client).await;
        let before = Instant::now();
        client.stop_container(&container, grace).await.unwrap();
        assert_eq!(before.elapsed().as_secs(), want_seconds);
        let status = client.container_status(&container, false).await.unwrap().status.unwrap();
        assert_eq!(status.exit_code, want_code);
        client.remove_pod_sandbox(&sandbox).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn names_are_reserved_until_removal() {
    let fake = fake();
    let client = fake.client();
    let (sandbox, container) = started(&client).await;
    let config = sandbox_config("web", 0);
    let again = client.run_pod_sandbox(config.clone(), "").await.unwrap_err();
    assert!(again.to_string().contains("is reserved for"), "{again}");
    let create = || client.create_container(&sandbox, container_config("c", 0), config.clone());
    let again = create().await.unwrap_err();
    assert!(again.to_string().contains(&format!("is reserved for {container:?}")), "{again}");
    client.remove_container(&container).await.unwrap();
    create().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn lists_obey_their_filters() {
    let fake = fake();
    let client = fake.client();
    let (sandbox, _) = started(&client).await;
    let config = sandbox_config("web", 0);
    client.create_container(&sandbox, container_config("d", 0), config).await.unwrap();
    assert_eq!(client.list_containers(None).await.unwrap().len(), 2);
    let running = ContainerFilter {
        state: Some(ContainerStateValue { state: ContainerState::ContainerRunning.into() }),
        ..Default::default()
    };
    assert_eq!(client.list_containers(Some(running)).await.unwrap().len(), 1);
    assert_eq!(client.list_container_stats(None).await.unwrap().len(), 1);
    assert_eq!(fake.requests_of::<RunPodSandboxRequest>().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn pulls_fail_as_told_and_images_go() {
    let fake = fake();
    let client = fake.client();
    fake.on_pull(IMAGE, Pull::fails(Code::Unknown, "RegistryUnavailable: busy"));
    let err = client.pull_image(image(), None, None).await.unwrap_err();
    assert_eq!(err.to_string(), "RegistryUnavailable: busy");
    assert_eq!(client.image_status(image(), false).await.unwrap().image, None);
    fake.on_pull(IMAGE, Pull::takes(Duration::from_secs(600)));
    let id = client.pull_image(image(), None, None).await.unwrap();
    assert_eq!(client.list_images(None).await.unwrap().len(), 1);
    client.remove_image(ImageSpec { image: id, ..Default::default() }).await.unwrap();
    assert!(fake.image_names().is_empty());
}

#[tokio::test(start_paused = true)]
async fn each_call_has_the_deadline_of_its_class() {
    let fake = fake();
    let client = fake.client();
    fake.inject(Fault::on_any().always().hang());
    let seconds = async |call: &dyn Fn() -> futures::future::BoxFuture<'static, CriError>| {
        let before = Instant::now();
        let err = call().await;
        (before.elapsed().as_secs(), err.to_string())
    };
    let expired = "rpc error: code = DeadlineExceeded desc = context deadline exceeded".to_owned();
    let c = client.clone();
    let status = move || -> futures::future::BoxFuture<'static, CriError> {
        let c = c.clone();
        Box::pin(async move { c.status(false).await.unwrap_err() })
    };
    assert_eq!(seconds(&status).await, (120, expired.clone()));
    let c = client.clone();
    let run = move || -> futures::future::BoxFuture<'static, CriError> {
        let c = c.clone();
        Box::pin(async move { c.run_pod_sandbox(sandbox_config("w", 0), "").await.unwrap_err() })
    };
    assert_eq!(seconds(&run).await, (240, expired.clone()));
    let c = client.clone();
    let stop = move || -> futures::future::BoxFuture<'static, CriError> {
        let c = c.clone();
        Box::pin(async move { c.stop_container("x", 30).await.unwrap_err() })
    };
    assert_eq!(seconds(&stop).await, (150, expired.clone()));
    let c = client.clone();
    let exec = move || -> futures::future::BoxFuture<'static, CriError> {
        let c = c.clone();
        Box::pin(async move {
            let command = ["cat".to_owned(), "/x".to_owned()];
            c.exec_sync("x", &command, Some(Duration::from_secs(7))).await.unwrap_err()
        })
    };
    let text = "command timed out: \"cat /x\" timed out after 7s".to_owned();
    assert_eq!(seconds(&exec).await, (127, text));
    let c = client.clone();
    let checkpoint = move || -> futures::future::BoxFuture<'static, CriError> {
        let c = c.clone();
        Box::pin(async move { c.checkpoint_container("x", "/tmp/x", 300).await.unwrap_err() })
    };
    assert_eq!(seconds(&checkpoint).await, (300, expired));
    // No deadline at all.
    let day = Duration::from_secs(86_400);
    assert!(timeout(day, client.pull_image(image(), None, None)).await.is_err());
    assert!(timeout(day, client.exec_sync("x", &[], None)).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn commands_answer_by_script_and_time_out_in_the_runtime() {
    let fake = fake();
    let client = fake.client();
    let (_, container) = started(&client).await;
    fake.on_exec(|call| match call.command.first().map(String::as_str) {
        Some("echo") => ExecReply::prints("hi"),
        Some("sleep") => ExecReply::exits(0).after(Duration::from_secs(60)),
        _ => ExecReply::exits(2),
    });
    let command = |text: &str| vec![text.to_owned()];
    let done = client.exec_sync(&container, &command("echo"), None).await.unwrap();
    assert_eq!((done.failure(&command("echo")), done.stdout.as_slice()), (None, &b"hi"[..]));
    let done = client.exec_sync(&container, &command("false"), None).await.unwrap();
    assert_eq!(done.failure(&command("false")).unwrap(), "command 'false' exited with 2: ");
    let second = Some(Duration::from_secs(1));
    let err = client.exec_sync(&container, &command("sleep"), second).await.unwrap_err();
    assert_eq!(err.to_string(), "command timed out: \"sleep\" timed out after 1s");
}

#[tokio::test(start_paused = true)]
async fn a_dead_runtime_fails_calls_at_once_and_is_dialled_rarely() {
    let attempts = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&attempts);
    let dead = Connector::new("dial unix /dead.sock", move || {
        counted.fetch_add(1, Ordering::Relaxed);
        async { Err::<tokio::io::DuplexStream, _>(std::io::Error::from_raw_os_error(111)) }
    });
    let client = RuntimeClient::with_connectors(ClientConfig::default(), dead.clone(), dead);
    let mut reachability = client.reachability(Service::Runtime);
    let before = Instant::now();
    for _ in 0..1000 {
        let err = client.version("0.1.0").await.unwrap_err();
        assert_eq!(
            err.to_string(),
            "rpc error: code = Unavailable desc = connection error: desc = \"transport: Error while \
             dialing: dial unix /dead.sock: connect: connection refused\""
        );
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(before.elapsed() < Duration::from_secs(11), "calls fail at once");
    let attempts = attempts.load(Ordering::Relaxed);
    assert!((6..=12).contains(&attempts), "{attempts} attempts in ten seconds");
    assert!(matches!(*reachability.borrow_and_update(), Reachability::Unreachable { .. }));
}

#[tokio::test(start_paused = true)]
async fn calls_work_again_after_a_restart() {
    let fake = fake();
    let client = fake.client();
    let (_, container) = started(&client).await;
    assert_eq!(fake.authority().as_deref(), Some("localhost"));
    fake.down();
    let err = client.status(false).await.unwrap_err();
    assert!(err.is_unavailable(), "{err}");
    fake.up();
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert_eq!(state_of(&client, &container).await, ContainerState::ContainerRunning);
    let reachability = client.reachability(Service::Runtime);
    assert_eq!(*reachability.borrow(), Reachability::Reachable);
}

#[tokio::test(start_paused = true)]
async fn a_call_cut_by_a_restart_is_unavailable() {
    let fake = fake();
    let client = fake.client();
    fake.inject(Fault::on(Call::Status).hang());
    let call = {
        let client = client.clone();
        async move { client.status(false).await }
    };
    let cut = async {
        fake.until(|fake| fake.count(Call::Status) == 1).await;
        fake.restart();
    };
    let (outcome, ()) = tokio::join!(call, cut);
    let err = outcome.unwrap_err();
    assert!(err.is_unavailable(), "{err}");
    assert!(err.to_string().starts_with("rpc error: code = Unavailable desc = "), "{err}");
    client.status(false).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_answer_may_get_lost_after_its_effect() {
    let fake = fake();
    let client = fake.client();
    fake.inject(Fault::on(Call::RunPodSandbox).fail_after_effect(Code::Internal, "lost"));
    let err = client.run_pod_sandbox(sandbox_config("w", 0), "").await.unwrap_err();
    assert_eq!(err.to_string(), "rpc error: code = Internal desc = lost");
    assert_eq!(fake.sandboxes().len(), 1);
    fake.inject(Fault::on(Call::Status).matching("nothing like it"));
    client.status(false).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn events_follow_the_container_and_survive_a_restart() {
    let fake = fake();
    let client = fake.client();
    let mut events = client.events();
    assert_eq!(events.next().await, RuntimeEvent::Opened);
    assert_eq!(client.features().events, Support::Yes);
    fake.behave("c", Behaviour::exits(0));
    let (sandbox, container) = started(&client).await;
    let mut seen = Vec::new();
    while seen.len() < 5 {
        let RuntimeEvent::Event(event) = events.next().await else { panic!("lost") };
        seen.push((event.container_id.clone(), event.container_event_type()));
    }
    let want = [
        (&sandbox, ContainerEventType::ContainerCreatedEvent),
        (&sandbox, ContainerEventType::ContainerStartedEvent),
        (&container, ContainerEventType::ContainerCreatedEvent),
        (&container, ContainerEventType::ContainerStartedEvent),
        (&container, ContainerEventType::ContainerStoppedEvent),
    ];
    assert_eq!(seen, want.map(|(id, kind)| (id.clone(), kind)));

    fake.down();
    let before = Instant::now();
    let mut losses = 0;
    while before.elapsed() < Duration::from_secs(60) {
        match events.next().await {
            RuntimeEvent::Lost(_) => losses += 1,
            other => panic!("{other:?} from a runtime that is down"),
        }
    }
    assert!((15..40).contains(&losses), "{losses} losses in a minute");
    fake.up();
    while events.next().await != RuntimeEvent::Opened {}
    client.remove_container(&container).await.unwrap();
    let RuntimeEvent::Event(event) = events.next().await else { panic!("lost") };
    assert_eq!(event.container_event_type(), ContainerEventType::ContainerDeletedEvent);
}

#[tokio::test(start_paused = true)]
async fn a_runtime_without_events_is_found_out_and_asked_again() {
    let fake = fake();
    fake.disable(Call::GetContainerEvents);
    fake.disable(Call::RuntimeConfig);
    let client = fake.client();
    let features = client.probe_features().await;
    assert_eq!((features.events, features.runtime_config), (Support::No, Support::No));
    let mut events = client.events();
    assert_eq!(events.next().await, RuntimeEvent::Unsupported);
    fake.enable(Call::GetContainerEvents);
    let before = Instant::now();
    assert_eq!(events.next().await, RuntimeEvent::Opened);
    assert!(before.elapsed() >= Duration::from_secs(60));
    assert_eq!(client.features().events, Support::Yes);
}

#[tokio::test(start_paused = true)]
async fn a_dropped_wait_for_events_loses_none() {
    let fake = fake();
    let client = fake.client();
    let mut events = client.events();
    for _ in 0..10 {
        assert!(timeout(Duration::from_millis(20), events.next()).await.is_err());
    }
    assert_eq!(events.next().await, RuntimeEvent::Opened);
    assert!(timeout(Duration::from_secs(5), events.next()).await.is_err());
    client.run_pod_sandbox(sandbox_config("w", 0), "").await.unwrap();
    assert!(matches!(events.next().await, RuntimeEvent::Event(_)));
}

#[tokio::test(start_paused = true)]
async fn lists_are_streamed_where_wanted_and_there() {
    let fake = fake();
    let client = fake.client_with(ClientConfig { list_streaming: true, ..Default::default() });
    started(&client).await;
    assert_eq!(client.list_containers(None).await.unwrap().len(), 1);
    assert_eq!(fake.count(Call::StreamContainers), 1);
    assert_eq!(fake.count(Call::ListContainers), 0);
    fake.disable(Call::StreamPodSandboxes);
    assert_eq!(client.list_pod_sandbox(None).await.unwrap().len(), 1);
    // Found out once, for the whole service; the other service is not judged by it.
    assert_eq!(client.list_containers(None).await.unwrap().len(), 1);
    assert_eq!(fake.count(Call::ListContainers), 1);
    assert_eq!(client.list_images(None).await.unwrap().len(), 1);
    assert_eq!(fake.count(Call::StreamImages), 1);
}

#[tokio::test(start_paused = true)]
async fn answers_up_to_sixteen_mebibytes_are_taken() {
    let fake = fake();
    let client = fake.client();
    let big = |index: usize| {
        let mut config = sandbox_config(&format!("w{index}"), 0);
        config.labels.insert("big".into(), "x".repeat(1 << 20));
        config
    };
    for index in 0..15 {
        client.run_pod_sandbox(big(index), "").await.unwrap();
    }
    assert_eq!(client.list_pod_sandbox(None).await.unwrap().len(), 15);
    for index in 15..17 {
        client.run_pod_sandbox(big(index), "").await.unwrap();
    }
    let err = client.list_pod_sandbox(None).await.unwrap_err();
    let text = err.to_string();
    assert!(
        text.contains("ResourceExhausted desc = grpc: received message larger than max"),
        "{text}"
    );
}

#[tokio::test(start_paused = true)]
async fn calls_are_counted_by_operation() {
    let fake = fake();
    let registry = telemetry::metrics::Registry::new();
    let observer = Arc::new(RuntimeOperations::new(&registry));
    let client = fake.client_with(ClientConfig { observer, ..Default::default() });
    client.version("0.1.0").await.unwrap();
    fake.inject(Fault::on(Call::Version).delay(Duration::from_secs(1)));
    client.version("0.1.0").await.unwrap();
    client.container_status("x", false).await.unwrap_err();
    let text = registry.render();
    for line in [
        "# HELP kubelet_runtime_operations_total [ALPHA] Cumulative number of runtime operations by operation type.",
        "kubelet_runtime_operations_total{operation_type=\"version\"} 2",
        "kubelet_runtime_operations_errors_total{operation_type=\"container_status\"} 1",
        "kubelet_runtime_operations_duration_seconds_bucket{operation_type=\"version\",le=\"0.48828125\"} 1",
        "kubelet_runtime_operations_duration_seconds_bucket{operation_type=\"version\",le=\"1.220703125\"} 2",
    ] {
        assert!(text.lines().any(|have| have == line), "{line}\n{text}");
    }
    assert!(!text.contains("errors_total{operation_type=\"version\"}"));
}

#[tokio::test]
#[expect(clippy::disallowed_methods, reason = "removes its own socket")]
async fn a_socket_works_like_memory_and_a_missing_one_is_named() {
    let path = std::env::temp_dir().join(format!("fake-cri-{}.sock", std::process::id()));
    let endpoint = Endpoint::parse(&format!("unix://{}", path.display())).unwrap();
    let fake = fake();
    let client = RuntimeClient::new(ClientConfig::default(), &endpoint, None);
    let err = client.validate().await.unwrap_err();
    assert_eq!(
        err.to_string(),
        format!(
            "validate service connection: validate CRI v1 runtime API for endpoint \"{endpoint}\": \
             rpc error: code = Unavailable desc = connection error: desc = \"transport: Error while \
             dialing: dial unix {}: connect: no such file or directory\"",
            path.display()
        )
    );
    fake.serve_unix(&path).unwrap();
    let client = RuntimeClient::new(ClientConfig::default(), &endpoint, Some(&endpoint));
    let outcome = client.validate().await;
    std::fs::remove_file(&path).unwrap();
    outcome.unwrap();
    fake.inject(Fault::on(Call::ImageFsInfo).fail(Code::Internal, "no"));
    let err = client.validate().await.unwrap_err();
    assert!(err.to_string().contains("validate CRI v1 image API for endpoint"), "{err}");
}

#[tokio::test(start_paused = true)]
async fn an_error_of_a_megabyte_is_told_and_ends_no_other_call() {
    let fake = fake();
    let client = fake.client();
    let (_, container) = started(&client).await;
    // What a runtime says of a pod whose command is a megabyte of text that is no program.
    let text = "x".repeat(1 << 20);
    fake.inject(Fault::on(Call::StopContainer).fail(Code::Unknown, &text));
    fake.inject(Fault::on(Call::ContainerStatus).delay(Duration::from_secs(5)));
    let slow = client.container_status(&container, false);
    let failing = client.stop_container(&container, 1);
    let (slow, failed) = tokio::join!(slow, failing);
    assert!(slow.is_ok(), "{:?}", slow.err().map(|error| error.to_string()));
    let message = failed.unwrap_err().to_string();
    assert!(message.ends_with(&text), "{message:.200}");
}
