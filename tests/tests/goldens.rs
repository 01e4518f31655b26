//! Each golden pod under a kubelet on real parts, compared with the record of the Go kubelet.
//!
//! `cargo test -p tests --test goldens [-- NAME…]`; `KUBELET=go` runs the Go kubelet instead, which
//! shows what a failure owes to the machine. All pods share one node; each counts as one test.
#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, reason = "prints results as the standard test runner does")]

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use serde_json::{Value, json};
use testkit::real::{
    ControlPlane, ControlPlaneOptions, KubeletKind, TestNode, eventually, eventually_some,
};
use tests::compare::{Difference, Observed, compare};
use tests::differences::is_on_purpose;
use tests::golden::{Golden, NAMESPACE, load_all, objects, short_status};
use tests::normal::Names;
use tests::observe::Observer;

/// Pods in flight at a time: most only wait, but two cores start no more than a few at once.
const AT_ONCE: usize = 8;

/// The longest any record takes to its last state, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let filters: Vec<&String> = args.iter().filter(|arg| !arg.starts_with('-')).collect();
    let exact = args.iter().any(|arg| arg == "--exact");
    let wanted = |golden: &Golden| {
        filters.is_empty()
            || filters.iter().any(|name| {
                if exact { golden.name == **name } else { golden.name.contains(name.as_str()) }
            })
    };
    let all = load_all().expect("golden records");
    if args.iter().any(|arg| arg == "--list") {
        all.iter().for_each(|golden| println!("{}: test", golden.name));
        return ExitCode::SUCCESS;
    }
    let total = all.len();
    let goldens: Vec<Golden> = all.into_iter().filter(wanted).collect();
    println!("\nrunning {} tests", goldens.len());
    let start = Instant::now();
    let failed = if goldens.is_empty() { 0 } else { run_all(&goldens) };
    let word = if failed == 0 { "ok" } else { "FAILED" };
    println!(
        "\ntest result: {word}. {} passed; {failed} failed; 0 ignored; 0 measured; {} filtered out; \
         finished in {:.2}s\n",
        goldens.len() - failed,
        total - goldens.len(),
        start.elapsed().as_secs_f64()
    );
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Run them all on one node; how many failed.
fn run_all(goldens: &[Golden]) -> usize {
    let kind = KubeletKind::from_env().expect("KUBELET");
    let control =
        Arc::new(ControlPlane::start(&ControlPlaneOptions::default()).expect("control plane"));
    for object in objects() {
        control.create(&object).expect("objects of the golden pods");
    }
    let observer = Observer::start(&control, NAMESPACE).expect("watches");
    let node = TestNode::builder()
        .kubelet(kind)
        .join(&control)
        .image("e2e-test-images/agnhost:2.63.0")
        .record()
        .start()
        .expect("node");
    let next = AtomicUsize::new(0);
    let bed = Bed { control: &control, observer: &observer, node: &node };
    let mut results: Vec<(usize, anyhow::Result<Vec<Difference>>)> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..AT_ONCE)
            .map(|_| {
                scope.spawn(|| {
                    let mut done = Vec::new();
                    loop {
                        let index = next.fetch_add(1, Ordering::Relaxed);
                        let Some(golden) = goldens.get(index) else { return done };
                        let result = bed.run(golden);
                        let passed =
                            result.as_ref().is_ok_and(|found| unexpected(golden, found).is_empty());
                        println!(
                            "test {} ... {}",
                            golden.name,
                            if passed { "ok" } else { "FAILED" }
                        );
                        done.push((index, result));
                    }
                })
            })
            .collect();
        workers.into_iter().flat_map(|worker| worker.join().expect("worker")).collect()
    });
    results.sort_by_key(|(index, _)| *index);
    let mut failed = 0;
    for (index, result) in &results {
        let golden = &goldens[*index];
        match result {
            Ok(found) => {
                let found = unexpected(golden, found);
                failed += usize::from(!found.is_empty());
                found.iter().for_each(|difference| show(golden, difference));
            }
            Err(error) => {
                failed += 1;
                println!("---- {}: {error:#}", golden.name);
            }
        }
    }
    failed
}

fn unexpected<'a>(golden: &Golden, found: &'a [Difference]) -> Vec<&'a Difference> {
    found.iter().filter(|difference| !is_on_purpose(&golden.name, difference)).collect()
}

fn show(golden: &Golden, difference: &Difference) {
    println!(
        "---- {}: {}\n  golden:\n    {}\n  observed:\n    {}",
        golden.name, difference.at, difference.golden, difference.observed
    );
}

#[derive(Clone, Copy)]
struct Bed<'a> {
    control: &'a ControlPlane,
    observer: &'a Observer,
    node: &'a TestNode,
}

impl Bed<'_> {
    fn run(&self, golden: &Golden) -> anyhow::Result<Vec<Difference>> {
        let name = golden.name.as_str();
        self.control.create(&golden.manifest())?;
        self.reach_recorded_state(golden)?;
        let before = self.observer.pod(name).context("pod was never seen")?;
        let uid = before["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
        self.control.kubectl(["delete", "pod", name, "-n", NAMESPACE, "--wait=false"])?;
        eventually(PATIENCE, "the deleted pod is gone", || self.observer.is_gone(name))?;
        self.wait_for_removed_containers(golden, &uid)?;
        let recorder = self.node.recorder().context("no recorder")?;
        let calls = recorder.calls();
        let mut names = Names::learn(self.node, &before, &calls);
        names.learn_addresses(&before["status"]);
        let status = names.apply(&before["status"]);
        let events = self.observer.events(&uid);
        let observed = Observed {
            cri: names.calls(&uid, &calls),
            steps: self.observer.steps(name),
            status,
            events: events.iter().map(|event| names.apply(&shape(event))).collect(),
        };
        Ok(compare(golden, &observed))
    }

    /// Wait for the state that the record had before the deletion; on the way, change the pod as
    /// the record's client did. A pod that never gets there is compared as it is.
    fn reach_recorded_state(&self, golden: &Golden) -> anyhow::Result<()> {
        let target = short_status(&golden.status);
        let reached = |rounds: usize| {
            let steps = self.observer.steps(&golden.name);
            steps.last() == Some(&target)
                && steps.iter().filter(|step| **step == target).count() >= rounds
        };
        if let Some((subresource, patch)) = golden.change_while_running() {
            let ready = json!(["True", ""]);
            eventually(PATIENCE, "the pod is ready", || {
                let steps = self.observer.steps(&golden.name);
                steps.last().is_some_and(|step| step["conditions"]["Ready"] == ready)
            })?;
            let (patch, subresource) = (patch.to_string(), format!("--subresource={subresource}"));
            let args = ["patch", "pod", &golden.name, "-n", NAMESPACE, &subresource, "-p", &patch];
            self.control.kubectl(args)?;
        }
        let rounds = golden.rounds_before_delete();
        drop(eventually(PATIENCE, "the recorded state", || reached(rounds)));
        self.wait_for_probes(golden)
    }

    /// Probes of the record that have not run yet get a moment to do so.
    fn wait_for_probes(&self, golden: &Golden) -> anyhow::Result<()> {
        let recorder = self.node.recorder().context("no recorder")?;
        let pod = self.observer.pod(&golden.name).context("pod was never seen")?;
        let uid = pod["metadata"]["uid"].as_str().unwrap_or_default();
        let probes = |calls: &[Value]| -> Vec<Value> {
            calls.iter().filter(|call| call["method"] == "ExecSync").cloned().collect()
        };
        let expected = probes(&golden.cri);
        let all_seen = || {
            let calls = recorder.calls();
            let own = probes(&Names::learn(self.node, &pod, &calls).calls(uid, &calls));
            expected.iter().all(|probe| own.contains(probe))
        };
        drop(eventually(Duration::from_secs(3), "all recorded probes", all_seen));
        Ok(())
    }

    /// The containers of a deleted pod are removed soon after; give that its time.
    fn wait_for_removed_containers(&self, golden: &Golden, uid: &str) -> anyhow::Result<()> {
        let recorder = self.node.recorder().context("no recorder")?;
        let expected = golden.cri.iter().filter(|call| call["method"] == "RemoveContainer").count();
        let removed = || {
            let calls = recorder.calls();
            let pod = json!({ "metadata": { "uid": uid } });
            let own = Names::learn(self.node, &pod, &calls).calls(uid, &calls);
            let removed = own.iter().filter(|call| call["method"] == "RemoveContainer").count();
            (removed >= expected).then_some(())
        };
        drop(eventually_some(Duration::from_secs(5), "its containers are removed", removed));
        Ok(())
    }
}

/// An event in the goldens' form.
fn shape(event: &Value) -> Value {
    json!({
        "count": event["count"],
        "field": event["involvedObject"]["fieldPath"].as_str().unwrap_or_default(),
        "message": event["message"],
        "reason": event["reason"],
        "type": event["type"],
    })
}
