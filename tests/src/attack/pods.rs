//! What pods can do, each with bounds of its own so that the agent is attacked and not the machine.

use std::time::Duration;

use serde_json::{Value, json};
use testkit::real::eventually;

use super::stage::script_pod;
use super::{Attack, Target, crowd};
use crate::wire::{Wire, read_answer};
use std::io::Write as _;

pub(super) const ATTACKS: &[Attack] = &[
    Attack { name: "endless-lines", counts: None, run: endless_lines },
    Attack { name: "failing-containers", counts: None, run: failing_containers },
    Attack { name: "huge-errors", counts: None, run: huge_errors },
    Attack { name: "forking-containers", counts: None, run: forking_containers },
    Attack { name: "forking-probes", counts: None, run: forking_probes },
    Attack { name: "strange-files", counts: None, run: strange_files },
    Attack { name: "huge-pods", counts: None, run: huge_pods },
];

/// The longest that the pods of an attack take to be gone.
const PATIENCE: Duration = Duration::from_secs(120);

/// Create pods, do something as long as the attack lasts, delete them and wait until they are gone.
fn with_pods(
    target: Target<'_>,
    pods: Vec<Value>,
    meanwhile: impl FnOnce() -> anyhow::Result<u64>,
) -> anyhow::Result<u64> {
    let control = target.stage.control();
    let names: Vec<String> =
        pods.iter().filter_map(|pod| pod["metadata"]["name"].as_str().map(str::to_owned)).collect();
    control.create(&json!({
        "apiVersion": "v1", "kind": "List", "metadata": { "name": names[0] }, "items": pods,
    }))?;
    let done = meanwhile();
    let delete = ["delete", "pod", "--wait=false", "--grace-period=1"];
    control.kubectl(delete.into_iter().chain(names.iter().map(String::as_str)))?;
    eventually(PATIENCE, "the pods of the attack are gone", || {
        let find = ["get", "pod", "--ignore-not-found", "-o", "name"];
        let found = control.kubectl(find.into_iter().chain(names.iter().map(String::as_str)));
        found.is_ok_and(|found| found.trim().is_empty())
    })?;
    done
}

/// Nothing until the attack is over.
fn wait(target: Target<'_>) -> anyhow::Result<u64> {
    target.until.pause(PATIENCE);
    Ok(0)
}

fn numbered(count: usize, of: impl Fn(usize) -> Value) -> Vec<Value> {
    (0..count).map(of).collect()
}

/// Logs that are one line without an end, and somebody who reads them.
fn endless_lines(target: Target<'_>) -> anyhow::Result<u64> {
    let script = "while :; do head -c 10000000 /dev/zero | tr '\\0' x; done";
    let pods = numbered(3, |n| script_pod(&format!("line{n}"), script, json!({}), json!({})));
    let (wire, port) = (Wire::plain()?, target.stage.port());
    let token = target.stage.control().admin_token();
    with_pods(target, pods, || {
        crowd(3, |n| {
            let path = format!("/containerLogs/default/line{n}/c?tailLines=10");
            let request =
                format!("GET {path} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {token}\r\n\r\n");
            let mut read = 0;
            while target.until.goes_on() {
                let Ok(mut stream) = wire.open(port) else { continue };
                let said = stream.write_all(request.as_bytes()).and_then(|()| stream.flush());
                read += u64::from(said.is_ok() && read_answer(&mut stream, false).is_ok());
                target.until.pause(Duration::from_millis(500));
            }
            Ok(read)
        })
    })
}

/// Containers that fail at once, again and again, each time with another long message.
fn failing_containers(target: Target<'_>) -> anyhow::Result<u64> {
    let script = "head -c 100000 /dev/urandom > /dev/termination-log; date +%N; exit 1";
    let container = json!({
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "readinessProbe": { "exec": { "command": ["sh", "-c", "date +%N; exit 1"] }, "periodSeconds": 1 },
    });
    let pods =
        numbered(10, |n| script_pod(&format!("fail{n}"), script, container.clone(), json!({})));
    with_pods(target, pods, || wait(target))
}

/// Commands of a hundred kilobytes that are no program: the runtime repeats them in its error.
fn huge_errors(target: Target<'_>) -> anyhow::Result<u64> {
    let pods = numbered(5, |n| {
        let command = format!("/{n}{}", "x".repeat(100_000));
        script_pod(&format!("error{n}"), "", json!({ "command": [command] }), json!({}))
    });
    with_pods(target, pods, || wait(target))
}

/// Containers that make and end processes as fast as they can.
fn forking_containers(target: Target<'_>) -> anyhow::Result<u64> {
    let script = "while :; do /bin/true & done";
    let pods = numbered(4, |n| script_pod(&format!("fork{n}"), script, json!({}), json!({})));
    with_pods(target, pods, || wait(target))
}

/// Probes that leave processes behind and print megabytes.
fn forking_probes(target: Target<'_>) -> anyhow::Result<u64> {
    let probe = "sleep 20 & sleep 20 & head -c 3000000 /dev/zero | tr '\\0' x";
    let container = json!({
        "livenessProbe": {
            "exec": { "command": ["sh", "-c", probe] }, "periodSeconds": 1, "timeoutSeconds": 5,
        },
    });
    let script = "sleep 3600";
    let pods =
        numbered(5, |n| script_pod(&format!("probe{n}"), script, container.clone(), json!({})));
    with_pods(target, pods, || wait(target))
}

/// Thousands of files, with names that are no text, in deep folders and behind links.
fn strange_files(target: Target<'_>) -> anyhow::Result<u64> {
    let script = "cd /data; ln -s / root; ln -s loop loop; mkfifo pipe; \
                  i=0; while [ $i -lt 5000 ]; do : > \"$(printf '\\377\\376')$i\"; i=$((i+1)); done; \
                  while mkdir d 2>/dev/null && cd d; do :; done; sleep 3600";
    let container = json!({
        "volumeMounts": [{ "name": "data", "mountPath": "/data" }],
        "resources": { "limits": { "cpu": "300m", "memory": "64Mi" } },
    });
    let spec = json!({ "volumes": [{ "name": "data", "emptyDir": {} }] });
    let pods =
        numbered(2, |n| script_pod(&format!("files{n}"), script, container.clone(), spec.clone()));
    with_pods(target, pods, || wait(target))
}

/// Annotations and environment as large as the API lets them be.
fn huge_pods(target: Target<'_>) -> anyhow::Result<u64> {
    let variables: Vec<Value> =
        (0..200).map(|n| json!({ "name": format!("V{n}"), "value": "x".repeat(2000) })).collect();
    let pods = numbered(8, |n| {
        let container = json!({ "env": variables });
        let mut pod = script_pod(&format!("huge{n}"), "sleep 3600", container, json!({}));
        pod["metadata"]["annotations"] = json!({ "note": "x".repeat(250_000) });
        pod
    });
    with_pods(target, pods, || wait(target))
}
