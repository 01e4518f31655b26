//! `make run`: a private containerd and a standalone kubelet with one sample pod on this machine,
//! shown while it starts and taken down on Ctrl-C.
#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, reason = "a command for people")]
#![expect(clippy::disallowed_methods, reason = "blocking code on the real machine, real time")]

use std::io::Write as _;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use serde_json::Value;
use testkit::real::{
    KubeletKind, RuntimeLine, Slot, TestNode, eventually_some, on_stop, repository_root, run,
};

/// Set when the user wants it to end.
static STOP: AtomicBool = AtomicBool::new(false);

fn main() -> ExitCode {
    match show() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("\nerror: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn show() -> anyhow::Result<()> {
    if std::env::args().nth(1).as_deref() == Some("--clean") {
        let removed = Slot::sweep();
        println!("removed what {removed} killed runs had left");
        return Ok(());
    }
    on_stop(&STOP)?;
    ensure!(run("id", ["-u"])?.trim() == "0", "containers need root: run it with sudo");
    let kind = KubeletKind::from_env()?;
    let mut node = step("containerd and an image registry", || {
        TestNode::builder().runtime(RuntimeLine::V1).without_images().start()
    })?;
    let manifest = repository_root().join("examples/hello.yaml");
    let manifest = std::fs::read_to_string(&manifest).context("the sample pod's manifest")?;
    node.add_manifest("hello.yaml", &manifest)?;
    step("rubelet, standalone", || node.start_kubelet(kind))?;
    let pod = step("the sample pod, until it is Ready", || wait_ready(&node))?;
    let address = pod["status"]["podIP"].as_str().context("the pod has no address")?.to_owned();
    let page = format!("http://{address}:8080/");
    let content = run("curl", ["-fsS", "-m", "10", &page])?;

    println!("\n{}", table(&pods(&node)?));
    println!("page      {page}");
    println!("          {}", content.trim());
    println!("pod log   tail -f {}", node.pod_logs_dir().join("*/web/0.log").display());
    println!("agent log tail -f {}", node.slot().log_file("kubelet").display());
    println!("pods      curl -sk https://127.0.0.1:{}/pods", node.api_port());
    println!("manifests {} (add, change or remove pods)", node.slot().path("manifests").display());
    println!("\nCtrl-C stops it and removes everything.");
    while !STOP.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_millis(100));
    }
    println!();
    step("taking everything down", || {
        node.stop_kubelet();
        drop(node);
        Ok(())
    })
}

/// One line of progress: what, dots while it takes, the time it took.
fn step<T: Send>(what: &str, work: impl FnOnce() -> anyhow::Result<T> + Send) -> anyhow::Result<T> {
    let start = Instant::now();
    print!("{what} ");
    std::io::stdout().flush()?;
    let outcome = std::thread::scope(|scope| {
        let worker = scope.spawn(work);
        while !worker.is_finished() {
            std::thread::sleep(Duration::from_millis(100));
            if start.elapsed().as_millis() % 1000 < 100 {
                print!(".");
                drop(std::io::stdout().flush());
            }
        }
        worker.join()
    });
    let outcome = outcome.unwrap_or_else(|_| anyhow::bail!("it panicked"));
    let word = if outcome.is_ok() { "ok" } else { "failed" };
    println!(" {word} ({:.1} s)", start.elapsed().as_secs_f64());
    outcome
}

fn pods(node: &TestNode) -> anyhow::Result<Vec<Value>> {
    let (code, body) = node.kubelet_get("/pods")?;
    ensure!(code == 200, "GET /pods answered {code}: {body}");
    let mut list: Value = serde_json::from_str(&body).context("GET /pods")?;
    match list["items"].take() {
        Value::Array(items) => Ok(items),
        _ => Ok(Vec::new()),
    }
}

fn wait_ready(node: &TestNode) -> anyhow::Result<Value> {
    let mut last = String::new();
    let found = eventually_some(Duration::from_secs(120), "the pod is Ready", || {
        if STOP.load(Ordering::Relaxed) {
            return Some(None);
        }
        match pods(node) {
            Ok(list) => {
                last = table(&list);
                list.into_iter().find(is_ready).map(Some)
            }
            Err(error) => {
                last = format!("{error:#}");
                None
            }
        }
    });
    found.with_context(|| format!("last seen:\n{last}"))?.context("stopped")
}

fn is_ready(pod: &Value) -> bool {
    let conditions = pod["status"]["conditions"].as_array();
    conditions.is_some_and(|all| all.iter().any(|c| c["type"] == "Ready" && c["status"] == "True"))
}

/// The pods as `kubectl get pods -o wide` would show them.
fn table(pods: &[Value]) -> String {
    let mut rows = vec![["NAME", "READY", "STATUS", "RESTARTS", "IP"].map(str::to_owned)];
    for pod in pods {
        let statuses = pod["status"]["containerStatuses"].as_array();
        let statuses = statuses.map(Vec::as_slice).unwrap_or_default();
        let ready = statuses.iter().filter(|c| c["ready"] == true).count();
        let total = pod["spec"]["containers"].as_array().map_or(0, Vec::len);
        let restarts: u64 = statuses.iter().filter_map(|c| c["restartCount"].as_u64()).sum();
        let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
        rows.push([
            text(&pod["metadata"]["name"]),
            format!("{ready}/{total}"),
            text(&pod["status"]["phase"]),
            restarts.to_string(),
            text(&pod["status"]["podIP"]),
        ]);
    }
    let widths = [0, 1, 2, 3, 4].map(|column| {
        rows.iter().filter_map(|row| row.get(column)).map(String::len).max().unwrap_or_default()
    });
    let line = |row: &[String; 5]| {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}   "));
        format!("{}\n", cells.collect::<String>().trim_end())
    };
    rows.iter().map(line).collect()
}
