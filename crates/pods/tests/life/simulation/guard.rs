//! A node that takes too long ends the whole program with its seed and its story, so that nothing hangs
//! without a word. Watched from a thread of its own: whatever hangs or spins cannot stop it.

use crate::world::Agent;
use pods::PodsHandle;
use ports::{Pods, PodsSnapshot, Tasks};
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use testkit::fake_cri::FakeCri;

/// Seconds, far longer than a node takes (two of a quiet machine), and than one that never settles (a minute);
/// `LIMIT=seconds` for a machine that is busy with other things.
const LIMIT: u64 = 300;
/// How long its story may take, in which everything that is asked may hang too.
const STORY: Duration = Duration::from_secs(10);
/// Calls that are shown.
const LAST: usize = 12;
/// Steps of a pod that are shown.
const STEPS: usize = 8;

/// What a node is doing. Cheap to clone.
#[derive(Clone, Default)]
pub(super) struct Story(Arc<Mutex<Told>>);

#[derive(Default)]
struct Told {
    stage: String,
    cri: Option<FakeCri>,
    agent: Option<(PodsHandle, Tasks)>,
}

impl Story {
    /// The node does this from now on.
    pub(super) fn at(&self, stage: impl Into<String>) {
        self.change(|told| told.stage = stage.into());
    }

    /// The node has this runtime.
    pub(super) fn runtime(&self, cri: &FakeCri) {
        self.change(|told| told.cri = Some(cri.clone()));
    }

    /// The node has this agent.
    pub(super) fn agent(&self, agent: &Agent) {
        self.change(|told| told.agent = Some((agent.pods.clone(), agent.tasks.clone())));
    }

    /// The pods as the agent tells others of them; nothing once it has ended.
    pub(super) fn published(&self) -> Option<PodsSnapshot> {
        let (pods, tasks) = self.change(|told| told.agent.clone())?;
        (!tasks.token().is_cancelled()).then(|| pods.watch().borrow().clone())
    }

    /// Where each pod is, what it waits for and what happened to it last, as the agent tells it.
    pub(super) fn waits(&self) -> Vec<String> {
        let agent = self.change(|told| told.agent.clone());
        let pods = agent.map(|(pods, _)| pods.explain()).unwrap_or_default();
        let line = |pod: &ports::ExplainedPod| {
            let waits = pod.waits.iter().map(|wait| format!("{}: {}", wait.who, wait.what));
            let waits: Vec<String> = waits.collect();
            let last = pod.steps.get(pod.steps.len().saturating_sub(STEPS)..).unwrap_or_default();
            let last = last.iter().map(|step| format!("{} {}", step.what, step.detail));
            let last: Vec<String> = last.collect();
            format!("{} {}, waits for {waits:?}, last {last:?}", pod.name, pod.life)
        };
        pods.iter().map(line).collect()
    }

    fn change<T>(&self, change: impl FnOnce(&mut Told) -> T) -> T {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// What can be known from outside, most certain first; each piece is printed by itself.
    fn tell(&self) {
        print(&threads());
        let (cri, agent) = self.change(|told| (told.cri.take(), told.agent.clone()));
        if let Some((_, tasks)) = agent {
            print(&format!("tasks: {:?}\n", tasks.running()));
            print(&format!("pods: {:#?}\n", self.waits()));
        }
        if let Some(cri) = cri {
            let calls = cri.calls();
            let last = calls.get(calls.len().saturating_sub(LAST)..).unwrap_or_default();
            print(&format!("{} calls of the runtime, the last: {last:#?}\n", calls.len()));
        }
    }
}

/// Runs one node.
pub(super) fn watched<T>(seed: u64, run: impl FnOnce(&Story) -> T) -> T {
    let story = Story::default();
    let shown = story.clone();
    let (running, over) = std::sync::mpsc::channel::<()>();
    let watch = std::thread::spawn(move || watch(seed, &shown, &over));
    let result = run(&story);
    drop(running);
    watch.join().unwrap();
    result
}

fn watch(seed: u64, story: &Story, over: &Receiver<()>) {
    let seconds = std::env::var("LIMIT").ok().and_then(|text| text.parse().ok()).unwrap_or(LIMIT);
    let limit = Duration::from_secs(seconds);
    if over.recv_timeout(limit) != Err(RecvTimeoutError::Timeout) {
        return;
    }
    let stage = story.change(|told| told.stage.clone());
    print(&format!("\nSEED={seed} did not end within {limit:?}, at: {stage}\n"));
    let (telling, told) = std::sync::mpsc::channel::<()>();
    let story = story.clone();
    std::thread::spawn(move || {
        story.tell();
        drop(telling);
    });
    // Told or not: there is nothing more to wait for.
    let _ = told.recv_timeout(STORY);
    std::process::abort();
}

/// The threads of this program: one that spins runs, one that waits sleeps.
fn threads() -> String {
    let mut text = String::new();
    for entry in std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten() {
        let read = |name: &str| {
            let path: &Path = &entry.path();
            sys::fs::read_to_string(path.join(name)).unwrap_or_default().trim().to_owned()
        };
        let stat = read("stat");
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split(' ').collect();
        let field = |at: usize| fields.get(at).copied().unwrap_or_default();
        let (state, user, system) = (field(1), field(12), field(13));
        let _ = writeln!(
            text,
            "thread {}: {state}, {user} + {system} ticks, {}",
            read("comm"),
            read("wchan")
        );
    }
    text
}

/// Past the test runner, which would keep it until an end that does not come.
fn print(text: &str) {
    let _ = std::io::stderr().write_all(text.as_bytes());
}
