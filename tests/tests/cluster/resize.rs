//! In-place resize through its subresource.

use anyhow::ensure;
use serde_json::{Value, json};
use tests::cluster::{BUSYBOX, Cluster, Space, condition, runtime_id, shell, status_of};

use super::Entry;

pub(super) const ALL: &[Entry] = &[
    ("cpu_and_memory_are_resized_without_a_restart", in_place),
    ("a_container_that_wants_it_is_restarted_by_a_resize", with_restart),
    ("a_resize_waits_for_room", deferred),
    ("a_memory_limit_below_usage_is_not_set", below_usage),
];

/// A pod whose container has these requests and limits.
fn sized(space: &Space<'_>, name: &str, resources: Value, policy: Value) -> anyhow::Result<()> {
    let container = json!({
        "name": "c", "image": BUSYBOX, "resources": resources, "resizePolicy": policy,
        "command": ["sh", "-c", "sleep 3600"],
    });
    space.create_pod(name, json!({ "containers": [container] }))
}

fn resources(cpu: (&str, &str), memory: (&str, &str)) -> Value {
    json!({
        "requests": { "cpu": cpu.0, "memory": memory.0 },
        "limits": { "cpu": cpu.1, "memory": memory.1 },
    })
}

fn resize(space: &Space<'_>, name: &str, resources: &Value) -> anyhow::Result<()> {
    let patch = json!({ "spec": { "containers": [{ "name": "c", "resources": resources }] } });
    let patch = patch.to_string();
    space.kubectl(&["patch", "pod", name, "--subresource=resize", "-p", &patch]).map(drop)
}

/// The pod once the resize is over: it has the resources and no resize condition.
fn wait_resized(space: &Space<'_>, name: &str, resources: &Value) -> anyhow::Result<Value> {
    space.wait_pod(name, "resized", |pod| {
        status_of(pod)["resources"] == *resources
            && condition(pod, "PodResizePending").is_empty()
            && condition(pod, "PodResizeInProgress").is_empty()
            && pod["status"]["observedGeneration"] == pod["metadata"]["generation"]
    })
}

/// Memory limit and CPU quota as the kernel has them for the container itself.
fn kernel_limits(cluster: &Cluster, pod: &Value) -> anyhow::Result<(String, String)> {
    let (node, id) = (cluster.node()?, runtime_id(status_of(pod))?);
    let first = |paths: &str| shell(node, id, &format!("cat {paths} 2>/dev/null | head -1"));
    let below = "/sys/fs/cgroup";
    let memory = first(&format!("{below}/memory.max {below}/memory/memory.limit_in_bytes"))?;
    let cpu = first(&format!("{below}/cpu.max {below}/cpu/cpu.cfs_quota_us"))?;
    Ok((memory, cpu.split(' ').next().unwrap_or_default().to_owned()))
}

fn in_place(cluster: &Cluster) -> anyhow::Result<()> {
    let space = cluster.namespace("resize")?;
    let small = resources(("50m", "100m"), ("32Mi", "64Mi"));
    sized(&space, "p", small.clone(), Value::Null)?;
    let before = space.wait_ready("p")?;
    ensure!(kernel_limits(cluster, &before)? == ("67108864".into(), "10000".into()));
    let large = resources(("70m", "200m"), ("48Mi", "96Mi"));
    resize(&space, "p", &large)?;
    let after = wait_resized(&space, "p", &large)?;
    ensure!(kernel_limits(cluster, &after)? == ("100663296".into(), "20000".into()));
    ensure!(status_of(&after)["allocatedResources"] == large["requests"], "{}", after["status"]);
    ensure!(status_of(&after)["containerID"] == status_of(&before)["containerID"]);
    resize(&space, "p", &small)?;
    let back = wait_resized(&space, "p", &small)?;
    ensure!(kernel_limits(cluster, &back)? == ("67108864".into(), "10000".into()));
    ensure!(status_of(&back)["restartCount"] == 0);
    let resizes = ["ResizeStarted", "ResizeCompleted", "ResizeStarted", "ResizeCompleted"];
    let started = ["Scheduled", "Pulled", "Created", "Started"];
    space.wait_reasons("p", &[started, resizes].concat())?;
    let events = space.events("p")?;
    let expected = r#"Pod resize started: {"containers":[{"name":"c","resources":{"limits":{"cpu":"200m","memory":"96Mi"},"requests":{"cpu":"70m","memory":"48Mi"}}}],"generation":2}"#;
    ensure!(events.iter().any(|(_, _, message)| message == expected), "{events:?}");
    let expected = expected.replace("started", "completed");
    ensure!(events.iter().any(|(_, _, message)| *message == expected), "{events:?}");
    Ok(())
}

fn with_restart(cluster: &Cluster) -> anyhow::Result<()> {
    let space = cluster.namespace("resize-restart")?;
    let policy = json!([{ "resourceName": "memory", "restartPolicy": "RestartContainer" }]);
    sized(&space, "p", resources(("50m", "100m"), ("32Mi", "64Mi")), policy)?;
    space.wait_ready("p")?;
    let large = resources(("50m", "100m"), ("48Mi", "96Mi"));
    resize(&space, "p", &large)?;
    let after = wait_resized(&space, "p", &large)?;
    ensure!(status_of(&after)["restartCount"] == 1, "{}", after["status"]);
    let after = space.wait_ready("p")?;
    ensure!(kernel_limits(cluster, &after)? == ("100663296".into(), "10000".into()));
    Ok(())
}

fn deferred(cluster: &Cluster) -> anyhow::Result<()> {
    let space = cluster.namespace("resize-wait")?;
    let filler = resources(("1200m", "1200m"), ("16Mi", "32Mi"));
    sized(&space, "filler", filler, Value::Null)?;
    sized(&space, "p", resources(("100m", "100m"), ("16Mi", "32Mi")), Value::Null)?;
    space.wait_ready("filler")?;
    space.wait_ready("p")?;
    let wished = resources(("1100m", "1100m"), ("16Mi", "32Mi"));
    resize(&space, "p", &wished)?;
    let waiting = space
        .wait_pod("p", "the resize waits", |pod| condition(pod, "PodResizePending") == "True")?;
    let conditions = waiting["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let pending = conditions.iter().find(|c| c["type"] == "PodResizePending");
    let pending = pending.cloned().unwrap_or_default();
    ensure!(pending["reason"] == "Deferred", "{pending}");
    let text = pending["message"].as_str().unwrap_or_default();
    ensure!(
        text.starts_with("Node didn't have enough resource: cpu, requested: 1100, used: "),
        "{text}"
    );
    ensure!(status_of(&waiting)["resources"]["requests"]["cpu"] == "100m", "{}", waiting["status"]);
    space.kubectl(&["delete", "pod", "filler", "--timeout=60s"])?;
    wait_resized(&space, "p", &wished)?;
    let reasons = space.reasons("p")?;
    let told: Vec<&str> =
        reasons.iter().map(String::as_str).filter(|r| r.starts_with("Resize")).collect();
    ensure!(told == ["ResizeDeferred", "ResizeStarted", "ResizeCompleted"], "{reasons:?}");
    Ok(())
}

fn below_usage(cluster: &Cluster) -> anyhow::Result<()> {
    let space = cluster.namespace("resize-error")?;
    let container = json!({
        "name": "c", "image": BUSYBOX,
        "resources": resources(("50m", "200m"), ("16Mi", "96Mi")),
        // Files in memory count as the container's.
        "command": ["sh", "-c", "dd if=/dev/zero of=/mem/file bs=1M count=40; touch /mem/full; sleep 3600"],
        "volumeMounts": [{ "name": "mem", "mountPath": "/mem" }],
        "readinessProbe": { "exec": { "command": ["test", "-e", "/mem/full"] }, "periodSeconds": 1 },
    });
    let memory = json!([{ "name": "mem", "emptyDir": { "medium": "Memory" } }]);
    space.create_pod("p", json!({ "containers": [container], "volumes": memory }))?;
    let before = space.wait_ready("p")?;
    resize(&space, "p", &resources(("50m", "200m"), ("16Mi", "24Mi")))?;
    let failing = space.wait_pod("p", "the resize fails", |pod| {
        let all = pod["status"]["conditions"].as_array().cloned().unwrap_or_default();
        all.iter().any(|c| c["type"] == "PodResizeInProgress" && c["reason"] == "Error")
    })?;
    let all = failing["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let told = all.iter().find(|c| c["type"] == "PodResizeInProgress").cloned().unwrap_or_default();
    let text = told["message"].as_str().unwrap_or_default();
    let of_pod = "cannot decrease memory limits: [attempting to set pod memory limit (25165824) below current usage (";
    let of_container =
        "), attempting to set container \"c\" memory limit (25165824) below current usage (";
    ensure!(text.starts_with(of_pod) && text.contains(of_container), "{told}");
    ensure!(kernel_limits(cluster, &before)?.0 == "100663296");
    ensure!(space.reasons("p")?.iter().any(|reason| reason == "ResizeError"));
    Ok(())
}
