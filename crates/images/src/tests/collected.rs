//! Collecting images.

use super::*;

#[tokio::test(start_paused = true)]
async fn collection_frees_the_longest_unused_images_until_the_low_threshold() {
    let bed = bed(config()).await;
    for (name, id) in [("a:1", "a"), ("b:1", "b"), ("c:1", "c"), ("used:1", "used")] {
        bed.runtime.add(name, id, 4);
    }
    bed.runtime.used.lock().unwrap().insert("used".into());
    let space = Arc::new(Space(ImageFsSpace { capacity: 100, available: 14 }));
    let gc = bed.images.collector(gc_policy(), space);
    let start = bed.clock.now();
    gc.observe().await.unwrap();
    let young = gc.collect(start).await.unwrap_err();
    assert!(matches!(young, ImageGcError::Insufficient(_)), "all are younger than two minutes");
    assert_eq!(bed.told.reasons(), ["FreeDiskSpaceFailed"]);
    bed.clock.advance(120);
    gc.collect(start).await.unwrap();
    assert_eq!(*bed.runtime.removed.lock().unwrap(), ["a", "b"], "8 bytes cover the 6 wanted");
}

#[tokio::test(start_paused = true)]
async fn images_without_an_id_are_told_of_where_handlers_count() {
    for (handler_in_calls, told) in [(false, vec![]), (true, vec!["InvalidImageID"])] {
        let bed = bed(ImagesConfig { handler_in_calls, ..config() }).await;
        bed.runtime.add("odd:1", "", 4);
        bed.runtime.add("a:1", "a", 4);
        let space = Arc::new(Space(ImageFsSpace { capacity: 100, available: 90 }));
        let gc = bed.images.collector(gc_policy(), space);
        gc.observe().await.unwrap();
        assert!(bed.told.reasons().is_empty(), "not as long as nothing is to go");
        gc.collect(bed.clock.now()).await.unwrap();
        assert_eq!(bed.told.reasons(), told);
        bed.clock.advance(120);
        gc.delete_unused().await.unwrap();
        let removed = bed.runtime.removed.lock().unwrap().clone();
        assert_eq!(removed.contains(&String::new()), !handler_in_calls);
        assert!(removed.contains(&"a".to_owned()));
    }
}

#[tokio::test(start_paused = true)]
async fn unused_images_all_go_under_pressure_with_their_records() {
    let bed = bed(config()).await;
    bed.ensure(request("u", IMAGE, "Always", &[])).await.unwrap();
    let gc = bed
        .images
        .collector(gc_policy(), Arc::new(Space(ImageFsSpace { capacity: 0, available: 0 })));
    gc.observe().await.unwrap();
    bed.clock.advance(300);
    assert_eq!(gc.delete_unused().await, Ok(1234));
    let pulled = std::fs::read_dir(bed.root.join("image_manager/pulled")).unwrap().count();
    assert_eq!(pulled, 0);
    assert_eq!(gc.collect(bed.clock.now()).await, Err(ImageGcError::NoCapacity));
    assert_eq!(bed.told.reasons().last().map(String::as_str), Some("InvalidDiskCapacity"));
}

#[tokio::test(start_paused = true)]
async fn the_loop_tells_the_node_from_the_second_failure_on() {
    let bed = bed(config()).await;
    let space = Arc::new(Space(ImageFsSpace { capacity: 0, available: 0 }));
    let gc = Arc::new(bed.images.collector(gc_policy(), space));
    let stop = tokio_util::sync::CancellationToken::new();
    let task = {
        let (gc, stop) = (Arc::clone(&gc), stop.clone());
        tokio_test_spawn(async move { gc.run(stop).await })
    };
    tokio::time::sleep(Duration::from_secs(301)).await;
    stop.cancel();
    task.await.unwrap();
    let want = ["InvalidDiskCapacity", "InvalidDiskCapacity", "ImageGCFailed"];
    assert_eq!(bed.told.reasons(), want);
}
