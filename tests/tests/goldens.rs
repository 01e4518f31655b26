//! Each golden pod under a kubelet on real parts, compared with the record of the Go kubelet.
//!
//! `cargo test -p tests --test goldens [-- NAME…]`; `KUBELET=go` runs the Go kubelet instead, which
//! shows what a failure owes to the machine. `KUBELET=go RECORD=1` completes the files of
//! `fixtures/golden/pods-more` and `pods-rare` that have a pod only. `ALL=1` runs those of
//! `pods-more` too, `GOLDENS=all` every one; `AGAIN=0` gives no second run to those that differ. All pods share one node; each
//! counts as one test.
#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, reason = "prints results as the standard test runner does")]
#![expect(clippy::expect_used, clippy::disallowed_methods, reason = "a test in real time")]

use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use testkit::real::KubeletKind;
use tests::compare::Difference;
use tests::differences::{is_on_purpose, not_yet};
use tests::golden::{Golden, Set, load_all};
use tests::recording_node::RecordingNode;

/// Pods in flight at a time: most only wait, but two cores start no more than a few at once.
const AT_ONCE: usize = 8;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let filters: Vec<&String> = args.iter().filter(|arg| !arg.starts_with('-')).collect();
    let exact = args.iter().any(|arg| arg == "--exact");
    let is = |name: &str, value: &str| std::env::var(name).is_ok_and(|word| word == value);
    let most = match (is("GOLDENS", "all"), is("ALL", "1")) {
        (true, _) => Set::Rare,
        (_, true) => Set::More,
        _ => Set::Core,
    };
    let wanted = |golden: &Golden| {
        (filters.is_empty() && (golden.set <= most || !golden.is_recorded()))
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
    let recording = std::env::var_os("RECORD").is_some();
    let goldens: Vec<Golden> =
        all.into_iter().filter(wanted).filter(|golden| golden.is_recorded() != recording).collect();
    let kind = KubeletKind::from_env().expect("KUBELET");
    let all_of_them = !filters.is_empty() || args.iter().any(|arg| arg == "--include-ignored");
    let (ignored, goldens): (Vec<Golden>, Vec<Golden>) = goldens.into_iter().partition(|golden| {
        kind == KubeletKind::Rubelet && !all_of_them && not_yet(&golden.name).is_some()
    });
    println!("\nrunning {} tests", goldens.len() + ignored.len());
    for golden in &ignored {
        println!("test {} ... ignored, {}", golden.name, not_yet(&golden.name).unwrap_or_default());
    }
    let start = Instant::now();
    let failed = if goldens.is_empty() { 0 } else { run_all(kind, &goldens) };
    let word = if failed == 0 { "ok" } else { "FAILED" };
    println!(
        "\ntest result: {word}. {} passed; {failed} failed; {} ignored; 0 measured; {} filtered out; \
         finished in {:.2}s\n",
        goldens.len() - failed,
        ignored.len(),
        total - goldens.len() - ignored.len(),
        start.elapsed().as_secs_f64()
    );
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Run them all on one node; how many failed.
fn run_all(kind: KubeletKind, goldens: &[Golden]) -> usize {
    let recording_node = RecordingNode::start(kind).expect("a node and its control plane");
    let next = AtomicUsize::new(0);
    let mut results: Vec<(usize, anyhow::Result<Vec<Difference>>)> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..AT_ONCE)
            .map(|_| {
                scope.spawn(|| {
                    let mut done = Vec::new();
                    loop {
                        let index = next.fetch_add(1, Ordering::Relaxed);
                        let Some(golden) = goldens.get(index) else { return done };
                        let result = if golden.is_recorded() {
                            recording_node.run(golden)
                        } else {
                            recording_node
                                .record(golden)
                                .and_then(|made| made.write())
                                .map(|()| Vec::new())
                        };
                        let word = if passed(golden, &result) { "ok" } else { "FAILED" };
                        println!("test {} ... {word}", golden.name);
                        done.push((index, result));
                    }
                })
            })
            .collect();
        workers.into_iter().flat_map(|worker| worker.join().expect("worker")).collect()
    });
    results.sort_by_key(|(index, _)| *index);
    let again = std::env::var("AGAIN").map_or(true, |word| word != "0");
    let mut failed = 0;
    for (index, result) in &results {
        let golden = &goldens[*index];
        // A crowd on few cores can keep a pod from ending within its grace: what differs is run
        // once more, by itself.
        if !passed(golden, result) && golden.is_recorded() && again {
            report(golden, result);
            let again = recording_node.run(golden);
            let word = if passed(golden, &again) { "ok" } else { "FAILED" };
            println!("test {} by itself ... {word}", golden.name);
            failed += usize::from(!passed(golden, &again));
            report(golden, &again);
        } else {
            failed += usize::from(!passed(golden, result));
            report(golden, result);
        }
    }
    failed
}

fn passed(golden: &Golden, result: &anyhow::Result<Vec<Difference>>) -> bool {
    result.as_ref().is_ok_and(|found| unexpected(golden, found).is_empty())
}

fn report(golden: &Golden, result: &anyhow::Result<Vec<Difference>>) {
    match result {
        Ok(found) => unexpected(golden, found).iter().for_each(|found| show(golden, found)),
        Err(error) => println!("---- {}: {error:#}", golden.name),
    }
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
