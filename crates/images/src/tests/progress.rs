//! How far pulls are, when somebody asks and in events.

use super::*;
use engine::image::progress::PullBytes;

fn half() -> PullBytes {
    PullBytes { done: 1 << 20, total: 2 << 20, rate: Some(1 << 19) }
}

/// A pull that has begun and does not end.
async fn pulling(bed: &Bed) -> Arc<Notify> {
    let gate = Arc::new(Notify::new());
    *bed.runtime.gate.lock().unwrap() = Some(Arc::clone(&gate));
    let images = bed.images.clone();
    tokio_test_spawn(async move { images.ensure(request("u", IMAGE, "Always", &[])).await });
    while bed.runtime.pulls().is_empty() {
        tokio::task::yield_now().await;
    }
    gate
}

#[tokio::test(start_paused = true)]
async fn whoever_asks_is_told_how_far_a_pull_is() {
    let bed = bed(config()).await;
    let gate = pulling(&bed).await;
    assert_eq!(bed.images.pulls().await[0].bytes, None, "a runtime that does not tell");
    *bed.runtime.progress.lock().unwrap() = Some(half());
    let pulls = bed.images.pulls().await;
    assert_eq!((pulls[0].image.as_str(), pulls[0].bytes), (IMAGE, Some(half())));
    gate.notify_one();
    while !bed.images.pulls().await.is_empty() {
        tokio::task::yield_now().await;
    }
    assert_eq!(bed.told.reasons(), ["Pulling", "Pulled"], "nobody opted in to more");
}

#[tokio::test(start_paused = true)]
async fn pods_are_told_at_the_rate_that_was_opted_in_to_and_only_while_it_lasts() {
    let every = Duration::from_secs(30);
    let bed = bed(ImagesConfig { progress_events: Some(every), ..config() }).await;
    let gate = pulling(&bed).await;
    tokio::time::sleep(every + Duration::from_secs(1)).await;
    *bed.runtime.progress.lock().unwrap() = Some(half());
    tokio::time::sleep(every).await;
    gate.notify_one();
    while !bed.images.pulls().await.is_empty() {
        tokio::task::yield_now().await;
    }
    tokio::time::sleep(every * 3).await;
    let told: Vec<String> =
        bed.told.take().into_iter().map(|(reason, text)| format!("{reason} {text}")).collect();
    assert_eq!(
        told[..3],
        [
            "Pulling Pulling image \"r.io/app:1\"",
            "PullProgress Pulling image \"r.io/app:1\": still at it",
            "PullProgress Pulling image \"r.io/app:1\": 1.0 MiB of 2.0 MiB, 512.0 KiB/s, 2s left",
        ]
    );
    assert!(told[3].starts_with("Pulled Successfully pulled image") && told.len() == 4, "{told:?}");
}
