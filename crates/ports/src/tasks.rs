//! Spawning with a name, a cancellation token and a declared effect of the task's end.
//!
//! Promises: a panic in any task is logged with the task's name and counted; then the task is restarted
//! ([`Tasks::spawn_anew`]), its waiter is notified ([`Tasks::spawn_then`]), or the process exits, naming the
//! task. Only a task that serves a single caller ([`OnExit::Alone`]) just ends.

#[cfg(debug_assertions)]
mod fail_points;

use std::any::Any;
use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// A task's name: shown in logs and on the debug page.
pub type TaskName = &'static str;

/// The first pause before a task that panicked is restarted.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// Pauses double up to this.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// What the end (return or panic) of a task means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnExit {
    /// It serves one caller (a connection, a stream); its end affects nobody else.
    Alone,
    /// It may return whenever it is done; a panic leaves work undone that no other task does, so the process
    /// must exit.
    Fine,
    /// The process must exit: nothing works without the task.
    Exit,
}

/// A task panicked. The panic message is in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("task {0} panicked")]
pub struct Panicked(pub TaskName);

/// The set of tasks of one process or one test. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Tasks {
    tracker: TaskTracker,
    /// Tasks that finish their work before the others are cancelled.
    finishing: TaskTracker,
    stopping: CancellationToken,
    cancel: CancellationToken,
    fatal: Arc<Mutex<Option<Fatal>>>,
    /// How many tasks of each name run.
    running: Arc<Mutex<BTreeMap<TaskName, usize>>>,
    /// How often tasks of each name panicked.
    panics: Arc<Mutex<BTreeMap<TaskName, u64>>>,
    #[cfg(debug_assertions)]
    fail_points: fail_points::FailPoints,
}

impl Default for Tasks {
    fn default() -> Self {
        Self::new()
    }
}

/// Why the process exits.
#[derive(Debug)]
struct Fatal {
    cause: String,
    panicked: bool,
}

impl Tasks {
    /// An empty set.
    pub fn new() -> Self {
        Self {
            tracker: TaskTracker::new(),
            finishing: TaskTracker::new(),
            stopping: CancellationToken::new(),
            cancel: CancellationToken::new(),
            fatal: Arc::new(Mutex::new(None)),
            running: Arc::default(),
            panics: Arc::default(),
            #[cfg(debug_assertions)]
            fail_points: fail_points::FailPoints::default(),
        }
    }

    /// The token that every task must obey.
    pub fn token(&self) -> CancellationToken {
        self.cancel.clone()
    }

    /// Cancelled when no new work may begin. Work in progress may finish for a while; [`Tasks::token`] is
    /// cancelled after that.
    pub fn stopping(&self) -> CancellationToken {
        self.stopping.clone()
    }

    /// Starts a task. With [`OnExit::Exit`] its end stops the whole set, with [`OnExit::Fine`] only a panic.
    pub fn spawn<F>(&self, name: TaskName, on_exit: OnExit, future: F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let tasks = self.clone();
        self.track(name, async move {
            let panicked = tasks.guard(name, future).await.is_err();
            let fatal = match on_exit {
                OnExit::Alone => false,
                OnExit::Fine => panicked,
                OnExit::Exit => true,
            };
            if fatal && panicked {
                tasks.fail_by_panic(name);
            } else if fatal && !tasks.stopping.is_cancelled() {
                tasks.fail(format!("task {name} ended"));
            }
        });
    }

    /// Starts a task that is restarted after a panic, as a new future from `make`. It may return whenever it is
    /// done.
    pub fn spawn_anew<F>(&self, name: TaskName, make: impl FnMut() -> F + Send + 'static)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.track(name, self.clone().run_anew(name, make));
    }

    /// [`Tasks::spawn_anew`] for a task that begins no new work once [`Tasks::stopping`] is cancelled, finishes
    /// its work and then returns; [`Tasks::finish_within`] waits for it.
    pub fn spawn_finishing_anew<F>(&self, name: TaskName, make: impl FnMut() -> F + Send + 'static)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.track(name, self.finishing.track_future(self.clone().run_anew(name, make)));
    }

    async fn run_anew<F>(self, name: TaskName, mut make: impl FnMut() -> F)
    where
        F: Future<Output = ()>,
    {
        let mut pause = FIRST_PAUSE;
        loop {
            let began = Instant::now();
            // `make` may panic, too.
            let attempt = async { make().await };
            if self.guard(name, attempt).await.is_ok() {
                return;
            }
            if began.elapsed() > LONGEST_PAUSE {
                pause = FIRST_PAUSE;
            }
            tokio::select! {
                () = self.stopping.cancelled() => return, // cancel-safe: a token
                () = tokio::time::sleep(pause) => {} // cancel-safe: a timer
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Starts a task whose outcome somebody waits for: `then` is called with it, also after a panic.
    pub fn spawn_then<T, W, N>(
        &self,
        name: TaskName,
        work: W,
        then: impl FnOnce(Result<T, Panicked>) -> N + Send + 'static,
    ) where
        T: Send + 'static,
        W: Future<Output = T> + Send + 'static,
        N: Future<Output = ()> + Send + 'static,
    {
        let tasks = self.clone();
        self.track(name, async move {
            let outcome = tasks.guard(name, work).await;
            then(outcome).await;
        });
    }

    /// Runs a part of a task; a panic in it is logged and counted under this name.
    pub async fn guard<T>(
        &self,
        name: TaskName,
        work: impl Future<Output = T>,
    ) -> Result<T, Panicked> {
        #[cfg(debug_assertions)]
        let work = self.fail_points.guard(name, work);
        let work = std::panic::AssertUnwindSafe(work);
        let outcome = futures::FutureExt::catch_unwind(work).await;
        outcome.map_err(|said| {
            tracing::error!(task = name, panic = text(&*said), "task panicked");
            if let Ok(mut panics) = self.panics.lock() {
                let count = panics.entry(name).or_default();
                *count = count.saturating_add(1);
            }
            Panicked(name)
        })
    }

    fn track(&self, name: TaskName, future: impl Future<Output = ()> + Send + 'static) {
        let counted = Counted::new(self, name);
        let future = async move {
            let _counted = counted;
            future.await;
        };
        #[expect(clippy::disallowed_methods, reason = "the supervisor itself")]
        tokio::spawn(self.tracker.track_future(future));
    }

    /// Makes one task of this name panic, for tests: a running one, or the next that starts.
    #[cfg(debug_assertions)]
    pub fn make_panic(&self, name: &str) {
        self.fail_points.arm(name);
    }

    /// How often tasks panicked, by name.
    pub fn panics(&self) -> Vec<(TaskName, u64)> {
        let panics = self.panics.lock();
        panics.map(|panics| panics.iter().map(|(n, c)| (*n, *c)).collect()).unwrap_or_default()
    }

    /// Records the first fatal cause and cancels [`Tasks::stopping`]. The owner of the set shuts it down.
    pub fn fail(&self, cause: String) {
        if let Ok(mut fatal) = self.fatal.lock() {
            fatal.get_or_insert(Fatal { cause, panicked: false });
        }
        self.stopping.cancel();
    }

    /// [`Tasks::fail`] after a panic, which replaces causes recorded before it: a task that unwinds closes the
    /// channels of others first, so that they may end before the panic is seen.
    fn fail_by_panic(&self, name: TaskName) {
        if let Ok(mut fatal) = self.fatal.lock()
            && (fatal.is_some() || !self.stopping.is_cancelled())
            && !fatal.as_ref().is_some_and(|first| first.panicked)
        {
            *fatal = Some(Fatal { cause: format!("task {name} panicked"), panicked: true });
        }
        self.stopping.cancel();
    }

    /// The fatal cause, if there was one.
    pub fn fatal(&self) -> Option<String> {
        self.fatal.lock().ok().and_then(|f| f.as_ref().map(|f| f.cause.clone()))
    }

    /// Cancels [`Tasks::stopping`] and waits for the finishing tasks, at most for `limit`; returns how many still
    /// run. All other tasks keep running meanwhile.
    pub async fn finish_within(&self, limit: Duration) -> usize {
        self.stopping.cancel();
        self.finishing.close();
        if tokio::time::timeout(limit, self.finishing.wait()).await.is_ok() {
            return 0;
        }
        self.finishing.len()
    }

    /// Cancels all tasks and waits for them.
    pub async fn shutdown(&self) {
        self.stopping.cancel();
        self.cancel.cancel();
        self.tracker.close();
        self.tracker.wait().await;
    }

    /// Cancels all tasks and waits for them, at most for `limit`; returns the names of those that still run.
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

/// A task that runs, counted until it is dropped.
struct Counted {
    tasks: Tasks,
    name: TaskName,
}

impl Counted {
    fn new(tasks: &Tasks, name: TaskName) -> Self {
        tasks.count(name, true);
        Self { tasks: tasks.clone(), name }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.tasks.count(self.name, false);
    }
}

/// The message of a panic.
fn text(said: &(dyn Any + Send)) -> &str {
    let owned = || said.downcast_ref::<String>().map(String::as_str);
    said.downcast_ref::<&str>().copied().or_else(owned).unwrap_or("something that is no text")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

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

    #[tokio::test(start_paused = true)]
    async fn those_who_finish_are_waited_for_before_the_others_are_ended() {
        let tasks = Tasks::new();
        let (token, stopping) = (tasks.token(), tasks.stopping());
        let others = token.clone();
        tasks.spawn("other", OnExit::Exit, async move { others.cancelled().await });
        tasks.spawn_finishing_anew("call", move || {
            let stopping = stopping.clone();
            async move {
                stopping.cancelled().await;
                tokio::time::sleep(Duration::from_secs(3)).await;
            }
        });
        assert_eq!(tasks.finish_within(Duration::from_secs(2)).await, 1);
        assert_eq!(tasks.finish_within(Duration::from_secs(2)).await, 0);
        assert!(!token.is_cancelled(), "the others run on");
        tasks.shutdown().await;
        assert_eq!(tasks.fatal(), None);
    }

    #[tokio::test]
    async fn after_the_end_of_a_task_that_all_need_nothing_new_begins() {
        let tasks = Tasks::new();
        tasks.spawn("needed", OnExit::Exit, async {});
        tasks.stopping().cancelled().await;
        assert_eq!(tasks.fatal().as_deref(), Some("task needed ended"));
        assert!(!tasks.token().is_cancelled(), "what is under way may end");
    }

    #[tokio::test]
    async fn a_panic_is_the_cause_of_the_ends_that_it_brings() {
        let tasks = Tasks::new();
        let (sender, receiver) = tokio::sync::oneshot::channel::<()>();
        tasks.spawn("needed", OnExit::Exit, async move { drop(receiver.await) });
        let told = tasks.stopping();
        tasks.spawn("culprit", OnExit::Exit, async move {
            drop(sender);
            told.cancelled().await;
            panic!("made to panic")
        });
        tasks.stopping().cancelled().await;
        tasks.shutdown().await;
        assert_eq!(tasks.fatal().as_deref(), Some("task culprit panicked"));
    }

    #[tokio::test]
    async fn tasks_that_end_are_all_waited_for() {
        let tasks = Tasks::new();
        let token = tasks.token();
        tasks.spawn("obeys", OnExit::Fine, async move { token.cancelled().await });
        assert!(tasks.shutdown_within(Duration::from_secs(60)).await.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_panic_ends_the_process_unless_it_concerns_one_caller() {
        for (on_exit, cause) in [
            (OnExit::Alone, None),
            (OnExit::Fine, Some("task clumsy panicked")),
            (OnExit::Exit, Some("task clumsy panicked")),
        ] {
            let tasks = Tasks::new();
            tasks.spawn("clumsy", on_exit, async { panic!("on purpose") });
            while tasks.panics().is_empty() {
                tokio::task::yield_now().await;
            }
            tasks.shutdown().await;
            assert_eq!(tasks.fatal().as_deref(), cause);
            assert_eq!(tasks.panics(), [("clumsy", 1)]);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_begins_anew_after_each_panic_with_growing_pauses() {
        let (tasks, made) = (Tasks::new(), Arc::new(AtomicUsize::new(0)));
        let (counter, began) = (Arc::clone(&made), Instant::now());
        tasks.spawn_anew("clumsy", move || {
            let turn = counter.fetch_add(1, Ordering::SeqCst);
            async move { assert!(turn >= 10, "not yet") }
        });
        while !tasks.running().is_empty() {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        assert_eq!(made.load(Ordering::SeqCst), 11);
        assert_eq!(tasks.panics(), [("clumsy", 10)]);
        assert_eq!(tasks.fatal(), None);
        // 1 + 2 + 4 + 8 + 16 + 32 and then a minute each.
        assert!((300..310).contains(&began.elapsed().as_secs()), "{:?}", began.elapsed());
    }

    #[tokio::test]
    async fn whoever_waits_for_a_task_hears_of_its_panic() {
        let tasks = Tasks::new();
        let (told, hears) = tokio::sync::oneshot::channel();
        let work = async { assert!(std::hint::black_box(false), "on purpose") };
        tasks.spawn_then("asked", work, |outcome| async move { told.send(outcome).unwrap() });
        assert_eq!(hears.await.unwrap(), Err(Panicked("asked")));
    }

    #[tokio::test(start_paused = true)]
    async fn a_running_task_can_be_made_to_panic() {
        let tasks = Tasks::new();
        let token = tasks.token();
        tasks.spawn_anew("victim", move || token.clone().cancelled_owned());
        tasks.spawn("other", OnExit::Exit, tasks.token().cancelled_owned());
        for round in 1..4 {
            // Until the task is back in its pause.
            tokio::time::sleep(LONGEST_PAUSE).await;
            tasks.make_panic("victim");
            while tasks.panics() != [("victim", round)] {
                tokio::task::yield_now().await;
            }
        }
        assert_eq!(tasks.fatal(), None);
        tasks.shutdown().await;
    }
}
