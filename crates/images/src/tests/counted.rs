//! What is counted of pull records, and when.

use super::*;

/// Intents and records on disk, then how full upstream's memory of them would be.
fn shown(bed: &Bed) -> [String; 4] {
    let text = bed.counted.render();
    [
        "ondisk_pullintents",
        "ondisk_pulledrecords",
        "inmemory_pullintents_usage_percent",
        "inmemory_pulledrecords_usage_percent",
    ]
    .map(|name| {
        let series = format!("kubelet_imagemanager_{name} ");
        text.lines().find_map(|line| line.strip_prefix(&series)).unwrap_or("none").to_owned()
    })
}

#[tokio::test(start_paused = true)]
async fn pull_records_are_counted_as_they_come_and_go() {
    let bed = bed(config()).await;
    assert_eq!(shown(&bed), ["0", "0", "0", "0"]);
    let gate = Arc::new(Notify::new());
    *bed.runtime.gate.lock().unwrap() = Some(Arc::clone(&gate));
    let images = bed.images.clone();
    let pull =
        tokio_test_spawn(async move { images.ensure(request("u", IMAGE, "Always", &[])).await });
    while bed.runtime.pulls().is_empty() {
        tokio::task::yield_now().await;
    }
    assert_eq!(shown(&bed), ["1", "0", "50", "0"], "while it is pulled");
    gate.notify_one();
    pull.await.unwrap().unwrap();
    assert_eq!(shown(&bed), ["0", "1", "0", "20"], "once it is there");

    let space = Arc::new(Space(ImageFsSpace { capacity: 100, available: 0 }));
    let gc = bed.images.collector(gc_policy(), space);
    gc.observe().await.unwrap();
    bed.clock.advance(3600);
    gc.delete_unused().await.unwrap();
    assert_eq!(shown(&bed), ["0", "0", "0", "0"], "once it is gone");
}
