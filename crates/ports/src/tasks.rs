//! Spawning with a name, a cancellation token and a declared effect of the task's end.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// A task's name: shown in logs and on the debug page.
pub type TaskName = &'static str;

/// What the death (return or panic) of a task means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnExit {
    /// It may end whenever it is done.
    Fine,
    /// The process must end: nothing works without it.
    Exit,
}

/// The set of tasks of one process or one test. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Tasks {
    tracker: TaskTracker,
    cancel: CancellationToken,
    fatal: Arc<Mutex<Option<String>>>,
    /// How many tasks of each name run.
    running: Arc<Mutex<BTreeMap<TaskName, usize>>>,
}

impl Default for Tasks {
    fn default() -> Self {
        Self::new()
    }
}

impl Tasks {
    /// An empty set.
    pub fn new() -> Self {
        Self {
            tracker: TaskTracker::new(),
            cancel: CancellationToken::new(),
            fatal: Arc::new(Mutex::new(None)),
            running: Arc::default(),
        }
    }

    /// The token that every task must obey.
    pub fn token(&self) -> CancellationToken {
        self.cancel.clone()
    }

    /// Starts a task. A panic in it is logged with its name; with [`OnExit::Exit`] its end stops
    /// the whole set.
    pub fn spawn<F>(&self, name: TaskName, on_exit: OnExit, future: F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let tasks = self.clone();
        self.count(name, true);
        let guarded = async move {
            let outcome =
                futures::FutureExt::catch_unwind(std::panic::AssertUnwindSafe(future)).await;
            let panicked = outcome.is_err();
            if panicked {
                tracing::error!(task = name, "task panicked");
            }
            if on_exit == OnExit::Exit && !tasks.cancel.is_cancelled() {
                let what = if panicked { "panicked" } else { "ended" };
                tasks.fail(format!("task {name} {what}"));
            }
            tasks.count(name, false);
        };
        #[expect(clippy::disallowed_methods, reason = "the supervisor itself")]
        tokio::spawn(self.tracker.track_future(guarded));
    }

    /// Records the first fatal cause and cancels every task.
    pub fn fail(&self, cause: String) {
        if let Ok(mut fatal) = self.fatal.lock() {
            fatal.get_or_insert(cause);
        }
        self.cancel.cancel();
    }

    /// The cause of an unplanned end, if there was one.
    pub fn fatal(&self) -> Option<String> {
        self.fatal.lock().ok().and_then(|f| f.clone())
    }

    /// Cancels all and waits for them.
    pub async fn shutdown(&self) {
        self.cancel.cancel();
        self.tracker.close();
        self.tracker.wait().await;
    }

    /// Cancels all and waits for them, but not for longer than this; the names of those that still
    /// run then.
    pub async fn shutdown_within(&self, limit: Duration) -> Vec<TaskName> {
        if tokio::time::timeout(limit, self.shutdown()).await.is_ok() {
            return Vec::new();
        }
        self.running()
    }

    /// The names of the tasks that run.
    pub fn running(&self) -> Vec<TaskName> {
        self.running.lock().map(|running| running.keys().copied().collect()).unwrap_or_default()
    }

    fn count(&self, name: TaskName, begins: bool) {
        let Ok(mut running) = self.running.lock() else { return };
        let count = running.entry(name).or_default();
        *count = if begins { count.saturating_add(1) } else { count.saturating_sub(1) };
        if *count == 0 {
            running.remove(name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_task_that_does_not_end_is_named_and_waited_for_no_longer_than_the_limit() {
        let tasks = Tasks::new();
        let token = tasks.token();
        tasks.spawn("obeys", OnExit::Fine, async move { token.cancelled().await });
        tasks.spawn("does not", OnExit::Fine, std::future::pending());
        tasks.spawn("does not", OnExit::Fine, std::future::pending());
        let late = tasks.shutdown_within(Duration::from_secs(10)).await;
        assert_eq!(late, ["does not"]);
    }

    #[tokio::test]
    async fn tasks_that_end_are_all_waited_for() {
        let tasks = Tasks::new();
        let token = tasks.token();
        tasks.spawn("obeys", OnExit::Fine, async move { token.cancelled().await });
        assert!(tasks.shutdown_within(Duration::from_secs(60)).await.is_empty());
    }
}
