//! Rotation over real files and a fake runtime.

use super::*;
use async_trait::async_trait;
use jiff::Timestamp;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

static NEXT: AtomicU32 = AtomicU32::new(0);

#[derive(Debug)]
struct Runtime {
    folder: PathBuf,
    logs: Mutex<BTreeMap<String, PathBuf>>,
    fails_reopen: Mutex<bool>,
    status_calls: AtomicU32,
}

impl Runtime {
    fn new() -> Arc<Self> {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("rubelet-rotation-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).unwrap();
        Arc::new(Self {
            folder,
            logs: Mutex::default(),
            fails_reopen: Mutex::default(),
            status_calls: AtomicU32::new(0),
        })
    }

    fn write(&self, id: &str, bytes: usize) {
        let path = self.folder.join(format!("{id}.log"));
        std::fs::write(&path, "x".repeat(bytes)).unwrap();
        self.logs.lock().unwrap().insert(id.into(), path);
    }

    fn names(&self) -> Vec<String> {
        sys::fs::list_dir(&self.folder).unwrap()
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

#[async_trait]
impl LogCalls for Runtime {
    async fn running(&self) -> Result<Vec<String>, String> {
        Ok(self.logs.lock().unwrap().keys().cloned().collect())
    }

    async fn log_path(&self, id: &str) -> Result<Option<PathBuf>, String> {
        self.status_calls.fetch_add(1, Ordering::Relaxed);
        Ok(self.logs.lock().unwrap().get(id).cloned())
    }

    async fn reopen(&self, id: &str) -> Result<(), String> {
        if *self.fails_reopen.lock().unwrap() {
            return Err("no".into());
        }
        let path = self.logs.lock().unwrap().get(id).cloned().ok_or("gone")?;
        std::fs::write(path, "").map_err(|e| e.to_string())
    }
}

#[derive(Debug)]
struct Noon;

impl Clock for Noon {
    fn now(&self) -> Timestamp {
        "2026-01-02T12:00:00Z".parse().unwrap()
    }
}

fn config() -> LogRotationConfig {
    LogRotationConfig {
        max_size: Some(100),
        max_files: 3,
        workers: 2,
        interval: Duration::from_secs(10),
    }
}

fn rotation(runtime: &Arc<Runtime>, config: LogRotationConfig) -> LogRotation {
    LogRotation::new(config, Arc::clone(runtime) as _, Arc::new(Noon), &Registry::new()).unwrap()
}

async fn look(runtime: &Arc<Runtime>, id: &str) -> Option<u64> {
    let path = runtime.logs.lock().unwrap().get(id).cloned().unwrap();
    let watched = Watched { id: id.into(), path };
    rotation(runtime, config()).look(watched, 100).await.size
}

#[tokio::test]
async fn a_log_is_rotated_at_exactly_its_maximum_size() {
    let runtime = Runtime::new();
    runtime.write("a", 99);
    assert_eq!(look(&runtime, "a").await, Some(99));
    assert_eq!(runtime.names(), ["a.log"]);
    runtime.write("a", 100);
    assert_eq!(look(&runtime, "a").await, Some(0));
    let names = runtime.names();
    assert_eq!(names.len(), 2);
    assert!(names[1].starts_with("a.log.2026010"), "{names:?}");
}

#[tokio::test]
async fn a_failed_reopen_puts_the_name_back() {
    let runtime = Runtime::new();
    runtime.write("a", 200);
    *runtime.fails_reopen.lock().unwrap() = true;
    assert_eq!(look(&runtime, "a").await, Some(200));
    assert_eq!(runtime.names(), ["a.log"]);
}

#[tokio::test]
async fn a_missing_log_is_opened_again() {
    let runtime = Runtime::new();
    runtime.write("a", 5);
    std::fs::remove_file(runtime.folder.join("a.log")).unwrap();
    assert_eq!(look(&runtime, "a").await, Some(0));
}

#[tokio::test(start_paused = true)]
async fn the_runtime_is_asked_once_for_each_logs_place() {
    let runtime = Runtime::new();
    runtime.write("a", 5);
    runtime.write("b", 500);
    let stop = CancellationToken::new();
    let task = tokio::spawn(rotation(&runtime, config()).run(stop.clone()));
    while runtime.names().len() < 3 {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(runtime.status_calls.load(Ordering::Relaxed), 2);
    stop.cancel();
    task.await.unwrap();
}

#[tokio::test]
async fn settings_that_make_no_sense_are_refused_and_a_negative_size_switches_it_off() {
    let runtime = Runtime::new();
    let one = LogRotationConfig { max_files: 1, ..config() };
    let registry = Registry::new();
    let error =
        LogRotation::new(one, Arc::clone(&runtime) as _, Arc::new(Noon), &registry).unwrap_err();
    assert_eq!(error.to_string(), "invalid MaxFiles 1, must be > 1");
    let off = LogRotationConfig { max_size: None, ..config() };
    rotation(&runtime, off).run(CancellationToken::new()).await;
}
