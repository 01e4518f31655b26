//! From `kubectl create` to `kubectl delete`, and what happens between.

use anyhow::{Context, ensure};
use serde_json::{Value, json};
use tests::cluster::{BUSYBOX, Cluster, condition, runtime_id, shell, status_of};

use super::Entry;

pub(super) const ALL: &[Entry] = &[
    ("a_pod_is_created_described_and_deleted", created_described_deleted),
    ("a_deployment_rolls_out_and_back", rolls_out_and_back),
    ("a_job_runs_to_its_end", job),
    ("kubectl_debug_adds_an_ephemeral_container", debug),
    ("a_forced_deletion_ends_the_containers_too", forced),
    ("a_finalizer_keeps_the_object_but_not_the_containers", finalizer),
    ("a_readiness_gate_is_obeyed_and_foreign_conditions_stay", readiness_gate),
    ("a_pod_that_does_not_fit_the_node_is_refused", refused),
];

fn sleeper(name: &str) -> Value {
    json!({ "name": name, "image": BUSYBOX, "command": ["sh", "-c", "sleep 3600"] })
}

fn created_described_deleted(cluster: &Cluster) -> anyhow::Result<()> {
    let space = cluster.namespace("described")?;
    space.create_pod("p", json!({ "containers": [sleeper("c")] }))?;
    let pod = space.wait_ready("p")?;
    for kind in ["PodReadyToStartContainers", "Initialized", "ContainersReady", "PodScheduled"] {
        ensure!(condition(&pod, kind) == "True", "{kind}: {}", pod["status"]);
    }
    ensure!(pod["status"]["observedGeneration"] == pod["metadata"]["generation"]);
    let described = space.kubectl(&["describe", "pod", "p"])?;
    let squeezed: Vec<String> =
        described.lines().map(|l| l.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    let address = pod["status"]["hostIP"].as_str().context("no host address")?;
    let wanted = [
        format!("Node: node1/{address}"),
        "Status: Running".to_owned(),
        "Service Account: default".to_owned(),
        "QoS Class: BestEffort".to_owned(),
        "Restart Count: 0".to_owned(),
    ];
    for line in wanted {
        ensure!(squeezed.contains(&line), "no line {line:?} in\n{described}");
    }
    ensure!(described.contains("Successfully assigned described/p to node1"), "{described}");
    ensure!(described.contains("spec.containers{c}: Container started"), "{described}");
    space.wait_reasons("p", &["Scheduled", "Pulled", "Created", "Started"])?;
    // The account's token, the authority and the namespace are where clients look for them.
    let (node, id) = (cluster.node()?, runtime_id(status_of(&pod))?);
    let place = "/var/run/secrets/kubernetes.io/serviceaccount";
    ensure!(shell(node, id, &format!("cat {place}/namespace"))? == "described");
    ensure!(shell(node, id, &format!("head -1 {place}/ca.crt"))?.contains("BEGIN CERTIFICATE"));
    ensure!(shell(node, id, &format!("cut -d. -f1 {place}/token"))?.starts_with("ey"));
    ensure!(shell(node, id, "echo $KUBERNETES_SERVICE_HOST")? == "10.0.0.1");
    space.kubectl(&["delete", "pod", "p", "--timeout=60s"])?;
    space.wait_reasons("p", &["Scheduled", "Pulled", "Created", "Started", "Killing"])
}

fn rolls_out_and_back(cluster: &Cluster) -> anyhow::Result<()> {
    let space = cluster.namespace("rollout")?;
    let mut container = sleeper("web");
    container["env"] = json!([{ "name": "VERSION", "value": "1" }]);
    container["readinessProbe"] = json!({ "exec": { "command": ["true"] }, "periodSeconds": 1 });
    space.create(json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": "web" },
        "spec": {
            "replicas": 3,
            "selector": { "matchLabels": { "app": "web" } },
            "template": {
                "metadata": { "labels": { "app": "web" } },
                "spec": { "terminationGracePeriodSeconds": 1, "containers": [container] },
            },
        },
    }))?;
    let finished = || space.kubectl(&["rollout", "status", "deployment/web", "--timeout=90s"]);
    let runs_only = |version: &str| {
        space.wait(&format!("three pods of version {version} and no other"), || {
            let pods = space.pods("app=web").ok()?;
            let own = |pod: &Value| {
                pod["spec"]["containers"][0]["env"][0]["value"] == version
                    && condition(pod, "Ready") == "True"
            };
            (pods.len() == 3 && pods.iter().all(own)).then_some(())
        })
    };
    finished()?;
    runs_only("1")?;
    space.kubectl(&["set", "env", "deployment/web", "VERSION=2"])?;
    finished()?;
    runs_only("2")?;
    space.kubectl(&["rollout", "undo", "deployment/web"])?;
    finished()?;
    runs_only("1")?;
    space.kubectl(&["scale", "deployment/web", "--replicas=0"])?;
    space.wait("no pod is left", || space.pods("app=web").ok()?.is_empty().then_some(()))
}

fn job(cluster: &Cluster) -> anyhow::Result<()> {
    let space = cluster.namespace("job")?;
    let command = ["sh", "-c", "echo done > /dev/termination-log"];
    space.create(json!({
        "apiVersion": "batch/v1", "kind": "Job", "metadata": { "name": "once" },
        "spec": { "completions": 3, "parallelism": 2, "template": { "spec": {
            "restartPolicy": "Never",
            "containers": [{ "name": "c", "image": BUSYBOX, "command": command }],
        } } },
    }))?;
    space.kubectl(&["wait", "--for=condition=complete", "job/once", "--timeout=90s"])?;
    let pods = space.pods("job-name=once")?;
    ensure!(pods.len() == 3, "{} pods", pods.len());
    for pod in &pods {
        ensure!(pod["status"]["phase"] == "Succeeded", "{}", pod["status"]);
        let ended = &status_of(pod)["state"]["terminated"];
        ensure!(ended["reason"] == "Completed" && ended["message"] == "done\n", "{ended}");
    }
    Ok(())
}

fn debug(cluster: &Cluster) -> anyhow::Result<()> {
    let space = cluster.namespace("debug")?;
    space.create_pod("p", json!({ "containers": [sleeper("c")] }))?;
    let before = space.wait_ready("p")?;
    let image = format!("--image={BUSYBOX}");
    let what = ["debug", "p", &image, "--target=c", "--container=dbg", "--profile=general", "--"];
    let command = ["sh", "-c", "sleep 3600"];
    space.kubectl(&[what.as_slice(), command.as_slice()].concat())?;
    let pod = space.wait_pod("p", "the ephemeral container runs", |pod| {
        let status = &pod["status"]["ephemeralContainerStatuses"][0];
        status["name"] == "dbg" && status["state"]["running"].is_object()
    })?;
    ensure!(status_of(&pod)["restartCount"] == 0 && condition(&pod, "Ready") == "True");
    ensure!(status_of(&pod)["containerID"] == status_of(&before)["containerID"]);
    // It is in the other's process namespace: there, process 1 is what the pod was made for.
    let id = runtime_id(&pod["status"]["ephemeralContainerStatuses"][0])?;
    let first = shell(cluster.node()?, id, "tr '\\0' ' ' < /proc/1/cmdline")?;
    ensure!(first.contains("sleep 3600"), "{first}");
    let reasons = ["Scheduled", "Pulled", "Created", "Started", "Pulled", "Created", "Started"];
    space.wait_reasons("p", &reasons)?;
    let described = space.kubectl(&["describe", "pod", "p"])?;
    ensure!(described.contains("Ephemeral Containers:"), "{described}");
    space.kubectl(&["delete", "pod", "p", "--timeout=60s"]).map(drop)
}

fn forced(cluster: &Cluster) -> anyhow::Result<()> {
    let space = cluster.namespace("forced")?;
    let stubborn = ["sh", "-c", "trap '' TERM; while :; do sleep 1; done"];
    space.create_pod(
        "p",
        json!({
            "terminationGracePeriodSeconds": 600,
            "containers": [{ "name": "stubborn", "image": BUSYBOX, "command": stubborn }],
        }),
    )?;
    let pod = space.wait_ready("p")?;
    let uid = pod["metadata"]["uid"].as_str().context("uid")?.to_owned();
    space.kubectl(&["delete", "pod", "p", "--force", "--grace-period=0"])?;
    space.wait_gone("pod", "p")?;
    let node = cluster.node()?;
    space.wait("its sandbox is gone from the runtime", || {
        let sandboxes = node.sandboxes().ok()?;
        let own = |s: &Value| s["metadata"]["uid"] == uid.as_str() && s["state"] == "SANDBOX_READY";
        (!sandboxes.iter().any(own)).then_some(())
    })?;
    space.wait("its folder is gone", || {
        (!node.root_dir().join("pods").join(&uid).is_dir()).then_some(())
    })
}

fn finalizer(cluster: &Cluster) -> anyhow::Result<()> {
    let space = cluster.namespace("finalizer")?;
    space.create(json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": "p", "finalizers": ["example.com/keep"] },
        "spec": { "terminationGracePeriodSeconds": 1, "containers": [sleeper("c")] },
    }))?;
    space.wait_ready("p")?;
    space.kubectl(&["delete", "pod", "p", "--wait=false"])?;
    let ended = space.wait_pod("p", "ended, but kept", |pod| {
        status_of(pod)["state"]["terminated"].is_object() && pod["status"]["phase"] == "Failed"
    })?;
    ensure!(ended["metadata"]["deletionTimestamp"].is_string());
    ensure!(condition(&ended, "Ready") == "False", "{}", ended["status"]);
    let uid = ended["metadata"]["uid"].as_str().context("uid")?.to_owned();
    let node = cluster.node()?;
    space.wait("its sandbox is not ready", || {
        let sandboxes = node.sandboxes().ok()?;
        let own = |s: &Value| s["metadata"]["uid"] == uid.as_str() && s["state"] == "SANDBOX_READY";
        (!sandboxes.iter().any(own)).then_some(())
    })?;
    space.get(&["pod", "p"])?;
    let free = r#"{"metadata":{"finalizers":null}}"#;
    space.kubectl(&["patch", "pod", "p", "--type=merge", "-p", free])?;
    space.wait_gone("pod", "p")
}

fn readiness_gate(cluster: &Cluster) -> anyhow::Result<()> {
    let space = cluster.namespace("gate")?;
    let gates = json!([{ "conditionType": "example.com/open" }]);
    space.create_pod("p", json!({ "readinessGates": gates, "containers": [sleeper("c")] }))?;
    let pod = space.wait_pod("p", "all but the gate", |pod| {
        condition(pod, "ContainersReady") == "True" && condition(pod, "Ready") == "False"
    })?;
    let conditions = pod["status"]["conditions"].as_array().context("conditions")?;
    let ready = conditions.iter().find(|c| c["type"] == "Ready").context("Ready")?;
    ensure!(ready["reason"] == "ReadinessGatesNotReady", "{ready}");
    let expected =
        "corresponding condition of pod readiness gate \"example.com/open\" does not exist.";
    ensure!(ready["message"] == expected, "{ready}");
    let set = |status: &str| {
        let patch = json!({ "status": { "conditions": [
            { "type": "example.com/open", "status": status },
            { "type": "example.com/other", "status": "True", "reason": "Mine" },
        ] } });
        let patch = patch.to_string();
        space.kubectl(&["patch", "pod", "p", "--subresource=status", "-p", &patch])
    };
    set("True")?;
    space.wait_ready("p")?;
    set("False")?;
    let shut = space.wait_pod("p", "not ready again", |pod| condition(pod, "Ready") == "False")?;
    ensure!(condition(&shut, "example.com/other") == "True", "{}", shut["status"]);
    Ok(())
}

fn refused(cluster: &Cluster) -> anyhow::Result<()> {
    let space = cluster.namespace("refused")?;
    let mut container = sleeper("c");
    container["resources"] = json!({ "requests": { "cpu": "1000" } });
    // Named by hand: the scheduler would not do this.
    space.create_pod("p", json!({ "nodeName": "node1", "containers": [container] }))?;
    let pod = space.wait_pod("p", "refused", |pod| pod["status"]["phase"] == "Failed")?;
    ensure!(pod["status"]["reason"] == "OutOfcpu", "{}", pod["status"]);
    let text = pod["status"]["message"].as_str().unwrap_or_default();
    let expected =
        "Pod was rejected: Node didn't have enough resource: cpu, requested: 1000000, used: ";
    ensure!(text.starts_with(expected), "{text}");
    space.wait_reasons("p", &["OutOfcpu"])?;
    space.kubectl(&["delete", "pod", "p", "--timeout=60s"]).map(drop)
}
