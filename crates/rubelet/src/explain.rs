//! `rubelet explain`: asks the agent on this machine why pods wait.
//!
//! Promises: it works without an API server; a time limit ends it; what it prints as text is for people, what it
//! prints as JSON is the agent's own document.

use crate::show::Form;
use ports::{Explained, ExplainedPod, PastStep, Wait};
use std::fmt::Write as _;
use std::io::Read;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

const USAGE: &str = "\
usage: rubelet explain [pod NAME | NAMESPACE/NAME | UID] [--root-dir=DIR] [-o json]

Shows what each pod of this node waits for, since when and until the next try, how far pulls are, and mounts,
drivers and calls to the container runtime that do not come back. With a pod: everything that happened to it.
";
/// How long the agent may take.
const LIMIT: Duration = Duration::from_secs(15);
/// How many steps of a pod are shown when nobody asked for that pod.
const LAST_STEPS: usize = 3;

/// What is asked.
#[derive(Debug, PartialEq, Eq)]
struct Question {
    root: PathBuf,
    pod: Option<String>,
}

/// The answer as text, or why there is none.
pub(crate) fn run(args: &[String], form: Form) -> Result<String, String> {
    let Some(question) = parse(args)? else { return Ok(USAGE.to_owned()) };
    let mut told = ask(&question.root)?;
    if let Some(wanted) = &question.pod {
        told.pods.retain(|pod| is_named(pod, wanted));
        if told.pods.is_empty() {
            return Err(format!("there is no pod {wanted:?} on this node"));
        }
    }
    Ok(match form {
        Form::Json => format!("{}\n", serde_json::to_string_pretty(&told).unwrap_or_default()),
        Form::Yaml => text(&told, question.pod.is_some()),
    })
}

fn parse(args: &[String]) -> Result<Option<Question>, String> {
    let mut question = Question { root: ports::Roots::default().kubelet, pod: None };
    let mut words = args.iter().map(String::as_str);
    // Between the word and the name of the pod may be flags.
    let mut awaited = false;
    while let Some(word) = words.next() {
        match word.split_once('=') {
            Some(("--root-dir", dir)) => question.root = dir.into(),
            _ if word == "--root-dir" => {
                question.root = words.next().ok_or("--root-dir needs a folder")?.into();
            }
            _ if word == "-h" || word == "--help" => return Ok(None),
            _ if word == "pod" && !awaited && question.pod.is_none() => awaited = true,
            _ if !word.starts_with('-') && question.pod.is_none() => {
                question.pod = Some(word.to_owned());
            }
            _ => return Err(format!("unknown argument {word:?}\n{USAGE}")),
        }
    }
    if awaited && question.pod.is_none() {
        return Err("explain pod: which one?".to_owned());
    }
    Ok(Some(question))
}

fn ask(root: &Path) -> Result<Explained, String> {
    let path = agent::explain_socket(root);
    let failed = |error: std::io::Error| {
        format!(
            "no agent answers on {} ({error}); is it running, with this --root-dir?",
            path.display()
        )
    };
    let mut stream = UnixStream::connect(&path).map_err(failed)?;
    stream.set_read_timeout(Some(LIMIT)).map_err(failed)?;
    let mut document = Vec::new();
    stream.read_to_end(&mut document).map_err(failed)?;
    if document.is_empty() {
        return Err(format!("the agent on {} tells root only", path.display()));
    }
    serde_json::from_slice(&document).map_err(|error| format!("the agent's answer: {error}"))
}

fn is_named(pod: &ExplainedPod, wanted: &str) -> bool {
    pod.uid == wanted
        || pod.name == wanted
        || pod.name.split_once('/').is_some_and(|(_, name)| name == wanted)
}

fn text(told: &Explained, whole: bool) -> String {
    let mut out = String::new();
    if !told.hung.is_empty() {
        out.push_str("quarantined, because they do not come back:\n");
        for line in &told.hung {
            let _ = writeln!(out, "  {line}");
        }
        out.push('\n');
    }
    if !told.slow_calls.is_empty() {
        out.push_str("calls that the container runtime has not answered yet:\n");
        for line in &told.slow_calls {
            let _ = writeln!(out, "  {line}");
        }
        out.push('\n');
    }
    let mut shown = 0;
    for pod in told.pods.iter().filter(|pod| whole || !pod.waits.is_empty()) {
        shown += 1;
        let _ = writeln!(out, "{} ({}, {})", pod.name, pod.life, pod.uid);
        for wait in &pod.waits {
            let _ = writeln!(out, "  waits: {}", wait_text(wait, told.at));
            if !wait.last_error.is_empty() {
                let _ = writeln!(out, "    last error: {}", wait.last_error);
            }
        }
        if whole {
            for (container, single) in &pod.single_process_oom_kill {
                let dies = if *single { "the process at fault" } else { "all of it" };
                let _ = writeln!(out, "  out of memory: {dies} is killed in {container:?}");
            }
        }
        let skipped = if whole { 0 } else { pod.steps.len().saturating_sub(LAST_STEPS) };
        for step in pod.steps.iter().skip(skipped) {
            let _ = writeln!(out, "  {}", step_text(step));
        }
    }
    if shown == 0 {
        let living = told.pods.iter().filter(|pod| pod.life != "gone").count();
        let _ = writeln!(out, "no pod waits ({living} pods)");
    }
    out
}

fn wait_text(wait: &Wait, now: jiff::Timestamp) -> String {
    let mut line = format!("{}: {}", wait.who, wait.what);
    if let Some(since) = wait.since {
        let _ = write!(line, ", for {}s", now.duration_since(since).as_secs().max(0));
    }
    if let Some(next) = wait.next_try.filter(|next| *next > now) {
        let _ = write!(line, ", next try in {}s", next.duration_since(now).as_secs());
    }
    if wait.hung {
        line.push_str(" (does not come back; quarantined)");
    }
    line
}

fn step_text(step: &PastStep) -> String {
    let mut line = format!("{:.0} {}", step.at, step.what);
    if let Some(container) = &step.container {
        let _ = write!(line, " {container:?}");
    }
    if !step.detail.is_empty() {
        let _ = write!(line, ": {}", step.detail);
    }
    if let Some(last) = step.last_at {
        let _ = write!(line, " ({} times, last {last:.0})", step.times);
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn the_question_is_a_pod_and_a_root() {
        let asked = |line: &str| parse(&words(line)).unwrap().unwrap();
        assert_eq!(asked("").root, Path::new("/var/lib/kubelet"));
        assert_eq!(asked("pod ns/web --root-dir=/k").pod.as_deref(), Some("ns/web"));
        assert_eq!(
            asked("web --root-dir /k"),
            Question { root: "/k".into(), pod: Some("web".into()) }
        );
        let web = || Question { root: "/k".into(), pod: Some("web".into()) };
        for line in [
            "pod web --root-dir=/k",
            "--root-dir=/k pod web",
            "--root-dir /k pod web",
            "pod --root-dir=/k web",
            "--root-dir=/k web",
        ] {
            assert_eq!(asked(line), web(), "{line}");
        }
        assert_eq!(asked("pod pod").pod.as_deref(), Some("pod"));
        assert_eq!(parse(&words("--help")), Ok(None));
        for wrong in ["pod", "pod --root-dir=/k", "--root-dir", "--what", "a b", "pod a b", "a pod"]
        {
            assert!(parse(&words(wrong)).is_err(), "{wrong}");
        }
    }

    fn story() -> Explained {
        serde_json::from_str(
            r#"{"at": "2026-01-01T00:01:00Z",
                "hung": ["stat on /data for 40s"],
                "slowCalls": ["StopPodSandbox for 45s (given up after 120s)"],
                "pods": [
                  {"uid": "u1", "name": "default/web", "life": "syncing",
                   "waits": [
                     {"who": "volume \"data\"", "what": "checking host path",
                      "since": "2026-01-01T00:00:20Z", "hung": true},
                     {"who": "volume \"s\"", "what": "the next try", "since": "2026-01-01T00:00:20Z",
                      "nextTry": "2026-01-01T00:01:08Z", "lastError": "secret \"s\" not found"}],
                   "steps": [
                     {"at": "2026-01-01T00:00:18Z", "times": 1, "what": "seen", "detail": "api"},
                     {"at": "2026-01-01T00:00:19Z", "times": 1, "what": "admitted"},
                     {"at": "2026-01-01T00:00:20Z", "times": 1, "what": "pod cgroup ready"},
                     {"at": "2026-01-01T00:00:20Z", "lastAt": "2026-01-01T00:00:50Z", "times": 3,
                      "what": "waiting for volumes"}]},
                  {"uid": "u2", "name": "default/fine", "life": "syncing", "waits": [],
                   "singleProcessOOMKill": {"c": false, "d": true},
                   "steps": [{"at": "2026-01-01T00:00:00Z", "times": 1, "what": "started",
                              "container": "c", "detail": "id"}]}]}"#,
        )
        .unwrap()
    }

    #[test]
    fn waiting_pods_are_shown_with_what_hangs_first() {
        let expected = r#"quarantined, because they do not come back:
  stat on /data for 40s

calls that the container runtime has not answered yet:
  StopPodSandbox for 45s (given up after 120s)

default/web (syncing, u1)
  waits: volume "data": checking host path, for 40s (does not come back; quarantined)
  waits: volume "s": the next try, for 40s, next try in 8s
    last error: secret "s" not found
  2026-01-01T00:00:19Z admitted
  2026-01-01T00:00:20Z pod cgroup ready
  2026-01-01T00:00:20Z waiting for volumes (3 times, last 2026-01-01T00:00:50Z)
"#;
        assert_eq!(text(&story(), false), expected);
    }

    #[test]
    fn a_named_pod_is_told_whole_and_a_quiet_node_says_so() {
        let mut told = story();
        told.hung.clear();
        told.slow_calls.clear();
        told.pods.remove(0);
        assert_eq!(text(&told, false), "no pod waits (1 pods)\n");
        assert_eq!(
            text(&told, true),
            "default/fine (syncing, u2)\n  out of memory: all of it is killed in \"c\"\n  out of memory: the \
             process at fault is killed in \"d\"\n  2026-01-01T00:00:00Z started \"c\": id\n"
        );
        assert!(is_named(&told.pods[0], "fine") && is_named(&told.pods[0], "u2"));
        assert!(!is_named(&told.pods[0], "default"));
    }
}
