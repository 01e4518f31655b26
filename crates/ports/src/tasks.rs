//! Spawning with a name, a cancellation token and a declared effect of the task's end.

use std::future::Future;
use std::sync::{Arc, Mutex};
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
}
