//! The node on cgroup version 2 with systemd, in a virtual machine: the cgroup tree of the three
//! classes next to the Go kubelet's, limits that hold, a live resize, a restart, a kill for want of the
//! machine's memory, and what is left when pods are gone. Once with the systemd driver, once with cgroupfs.
//! Beside it volumes that need a kernel with more than the build machine's has: see `vm/storage.rs`.
//!
//! `make vm-test` runs it; `KUBELET=go` runs it with the Go kubelet, `RECORD=1` besides writes down what that
//! one did (`fixtures/golden/vm`).
#![forbid(unsafe_code)]
#![expect(clippy::print_stderr, reason = "tells people how far it is")]
#![expect(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test in real time")]

#[path = "vm/storage.rs"]
mod storage;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testkit::real::{ControlPlane, ControlPlaneOptions, KubeletKind, VirtualNode};
use tests::golden::recorded;

/// The machine is emulated, and this one may be busy with other things.
const PATIENCE: Duration = Duration::from_secs(600);
const IMAGE: &str = "registry.k8s.io/e2e-test-images/busybox:1.37.0-1";

/// Looks once a second: each question is a program of its own, here or in the machine, and takes from both the time
/// in which the machine could get on.
fn eventually_some<T>(
    within: Duration,
    what: &str,
    mut probe: impl FnMut() -> Option<T>,
) -> Result<T, String> {
    let began = Instant::now();
    loop {
        if let Some(value) = probe() {
            return Ok(value);
        }
        if began.elapsed() > within {
            return Err(format!("not within {within:?}: {what}"));
        }
        std::thread::sleep(Duration::from_secs(1));
    }
}

/// What the configuration below keeps for the system and for Kubernetes.
const RESERVED_KIB: u64 = 150 * 1024;

/// Every limit of every cgroup of pods, a line each: folder, file, value.
const READ_TREE: &str = r#"
cd /sys/fs/cgroup
find kubepods* -type d | while read -r folder; do
  for file in cpu.weight cpu.max cpu.idle memory.max memory.min memory.low memory.high memory.swap.max \
    memory.oom.group pids.max cpuset.cpus hugetlb.2MB.max hugetlb.2MB.rsvd.max hugetlb.1GB.max; do
    if [ -r "$folder/$file" ]; then echo "$folder $file $(<"$folder/$file")"; fi
  done
done
"#;

type Tree = BTreeMap<String, BTreeMap<String, String>>;

/// A virtual node with its control plane, and the texts of its tree.
struct Machine {
    node: VirtualNode,
    control: Arc<ControlPlane>,
    driver: &'static str,
    kind: KubeletKind,
}

impl Machine {
    fn start(driver: &'static str) -> Machine {
        let control = Arc::new(ControlPlane::start(&ControlPlaneOptions::default()).unwrap());
        let config = json!({
            "podPidsLimit": 500,
            "systemReserved": {"memory": "100Mi", "cpu": "100m", "pid": "1000"},
            "kubeReserved": {"memory": "50Mi"},
            "featureGates": {
                "MemoryQoS": true, "LocalStorageCapacityIsolationFSQuotaMonitoring": true,
            },
            "volumeStatsAggPeriod": "10s",
        });
        let kind = KubeletKind::from_env().unwrap();
        let prepare = storage::prepare(driver);
        let node = VirtualNode::start(&control, kind, driver, &config, &prepare).unwrap();
        Machine { node, control, driver, kind }
    }

    fn create(&self, name: &str, spec: &Value) {
        let mut pod = json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": "default"}, "spec": spec});
        pod["spec"]["nodeName"] = json!("node1");
        pod["spec"]["automountServiceAccountToken"] = json!(false);
        pod["spec"]["terminationGracePeriodSeconds"] = json!(1);
        self.control.create(&pod).unwrap();
    }

    /// A pod, once the condition holds for it.
    fn wait_pod(&self, name: &str, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
        let mut last = Value::Null;
        let found = eventually_some(PATIENCE, &format!("pod {name}: {what}"), || {
            last = self.control.get(["pod", name]).ok()?;
            holds(&last).then(|| last.clone())
        });
        found.unwrap_or_else(|error| panic!("{error}; its status: {}", last["status"]))
    }

    fn wait_running(&self, name: &str) -> Value {
        self.wait_pod(name, "runs", |pod| pod["status"]["phase"] == "Running")
    }

    /// The tree with pods and containers by their names.
    fn tree(&self) -> Tree {
        let pods = self.control.get(["pods"]).unwrap();
        let mut names = BTreeMap::new();
        for pod in pods["items"].as_array().unwrap() {
            let name = pod["metadata"]["name"].as_str().unwrap();
            let uid = pod["metadata"]["uid"].as_str().unwrap();
            names.insert(uid.to_owned(), name.to_owned());
            names.insert(uid.replace('-', "_"), name.to_owned());
            for status in pod["status"]["containerStatuses"].as_array().unwrap() {
                let id =
                    status["containerID"].as_str().unwrap().trim_start_matches("containerd://");
                names.insert(id.to_owned(), status["name"].as_str().unwrap().to_owned());
            }
        }
        let sandboxes = self.node.shell(READ_SANDBOXES).unwrap();
        let sandboxes =
            sandboxes.split_whitespace().map(|id| (id.to_owned(), "sandbox".to_owned()));
        names.extend(sandboxes.filter(|(id, _)| id.len() == 64));
        let mut tree = Tree::new();
        for line in self.node.shell(READ_TREE).unwrap().lines() {
            let mut words = line.splitn(3, ' ');
            let (folder, file) = (words.next().unwrap(), words.next().unwrap());
            let value = words.next().unwrap_or_default();
            let shown = names.iter().fold(folder.to_owned(), |text, (id, name)| {
                text.replace(id.as_str(), &format!("<{name}>"))
            });
            tree.entry(shown).or_default().insert(file.to_owned(), value.to_owned());
        }
        tree
    }

    /// The cgroup folder of a pod, and of its only container.
    fn folders(&self, pod: &Value) -> (String, String) {
        let uid = pod["metadata"]["uid"].as_str().unwrap();
        let id = pod["status"]["containerStatuses"][0]["containerID"].as_str().unwrap();
        let id = id.trim_start_matches("containerd://");
        let level = pod["status"]["qosClass"].as_str().unwrap().to_lowercase();
        assert_ne!(level, "guaranteed", "not needed here");
        if self.driver == "systemd" {
            let uid = uid.replace('-', "_");
            let folder =
                format!("kubepods.slice/kubepods-{level}.slice/kubepods-{level}-pod{uid}.slice");
            (folder.clone(), format!("{folder}/cri-containerd-{id}.scope"))
        } else {
            let folder = format!("kubepods/{level}/pod{uid}");
            (folder.clone(), format!("{folder}/{id}"))
        }
    }

    /// Wait until the first line of a file of a cgroup is right.
    fn wait_file(&self, folder: &str, file: &str, right: impl Fn(&str) -> bool) {
        let mut last = String::new();
        let found = eventually_some(PATIENCE, &format!("{folder}/{file}"), || {
            last = self.node.shell(&format!("cat /sys/fs/cgroup/{folder}/{file}")).ok()?;
            right(last.trim()).then_some(())
        });
        found.unwrap_or_else(|error| panic!("{error}; it is {last:?}"));
    }
}

const READ_SANDBOXES: &str = "/opt/parts/ctr --namespace k8s.io containers list --quiet 'labels.\"io.cri-containerd.kind\"==sandbox'";

fn container(name: &str, resources: Value) -> Value {
    json!({"name": name, "image": IMAGE, "command": ["sleep", "36000"], "resources": resources})
}

/// Pods of the three classes.
fn classes() -> [(&'static str, Value); 3] {
    let all = json!({"cpu": "155m", "memory": "48Mi", "hugepages-2Mi": "4Mi"});
    let first = json!({"requests": {"cpu": "70m", "memory": "20Mi"}, "limits": {"memory": "64Mi"}});
    let second = json!({"requests": {"cpu": "30m"}, "limits": {"cpu": "205m", "memory": "32Mi"}});
    [
        ("guaranteed", json!([container("g", json!({"limits": all, "requests": all}))])),
        ("burstable", json!([container("b1", first), container("b2", second)])),
        ("besteffort", json!([container("e", json!({}))])),
    ]
}

/// The paths of a document's fields; the number of an item does not count.
fn fields(value: &Value, path: &str, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                fields(value, &format!("{path}.{key}"), found);
            }
        }
        Value::Array(items) => {
            for item in items {
                fields(item, &format!("{path}[]"), found);
            }
        }
        _ => {
            found.insert(path.to_owned());
        }
    }
}

/// The names of a page's metric families.
fn families(page: &str) -> BTreeSet<String> {
    let names = page.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    names.filter_map(|rest| rest.split(' ').next()).map(str::to_owned).collect()
}

/// What both kubelets shall say the same of.
fn observe(machine: &Machine) -> Value {
    for (name, containers) in classes() {
        // A network of its own is many programs more: one pod with it will do.
        let shared = name != "besteffort";
        machine.create(name, &json!({"hostNetwork": shared, "containers": containers}));
    }
    for (name, _) in classes() {
        machine.wait_running(name);
    }
    // Node limits and the sum of requests are written beside the pods' start.
    let burstable = if machine.driver == "systemd" {
        "kubepods.slice/kubepods-burstable.slice"
    } else {
        "kubepods/burstable"
    };
    machine.wait_file(burstable, "cpu.weight", |weight| weight == "4");
    let mut tree = machine.tree();
    // How much memory a kernel leaves is its own business: only the sum is compared.
    let capacity = machine.control.get(["node", "node1"]).unwrap()["status"]["capacity"].clone();
    let total = capacity["memory"].as_str().unwrap().trim_end_matches("Ki").parse::<u64>().unwrap();
    let top = tree.get_mut(burstable.split('/').next().unwrap()).unwrap();
    assert_eq!(top["memory.max"], ((total - RESERVED_KIB) << 10).to_string());
    top.insert("memory.max".to_owned(), "capacity less reserved".to_owned());

    let summary = || {
        let text = machine.node.kubelet_get("/stats/summary").ok()?;
        let summary: Value = serde_json::from_str(&text).ok()?;
        let pods = summary["pods"].as_array()?;
        let whole = |pod: &Value| {
            let containers = pod["containers"].as_array();
            let counted = |c: &Value| {
                c["cpu"]["usageNanoCores"].is_u64() && c["rootfs"]["usedBytes"].is_u64()
            };
            // The Go kubelet counts processes when it knows the containers itself, later than the runtime.
            containers.is_some_and(|all| all.iter().all(counted))
                && pod["cpu"]["usageNanoCores"].is_u64()
                && pod["process_stats"]["process_count"].is_u64()
        };
        (pods.len() == 3 && pods.iter().all(whole)).then_some(summary)
    };
    let summary = eventually_some(PATIENCE, "statistics of all pods", summary).unwrap();
    let mut summary_fields = BTreeSet::new();
    fields(&summary, "", &mut summary_fields);
    for part in [".node.cpu.psi", ".pods[].memory.psi", ".pods[].containers[].io.psi"] {
        assert!(summary_fields.iter().any(|field| field.starts_with(part)), "{part} is told");
    }
    let pages: BTreeMap<&str, BTreeSet<String>> = ["/metrics/cadvisor", "/metrics/resource"]
        .map(|page| (page, families(&machine.node.kubelet_get(page).unwrap())))
        .into();
    json!({"tree": tree, "summary": summary_fields, "families": pages})
}

/// The Go kubelet's record for the same pods on the same machine.
fn compare(machine: &Machine, seen: &Value) {
    let Some(record) = recorded(&format!("vm/{}.json", machine.driver), seen).unwrap() else {
        return;
    };
    let mut differences = Vec::new();
    differ("", &record, seen, &mut differences);
    assert!(differences.is_empty(), "not as the Go kubelet:\n{}", differences.join("\n"));
}

fn differ(path: &str, wanted: &Value, found: &Value, differences: &mut Vec<String>) {
    match (wanted, found) {
        (Value::Object(a), Value::Object(b)) => {
            let keys: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
            for key in keys {
                let of = |map: &serde_json::Map<String, Value>| {
                    map.get(key).cloned().unwrap_or_default()
                };
                differ(&format!("{path} {key}"), &of(a), &of(b), differences);
            }
        }
        (Value::Array(a), Value::Array(b)) => {
            let missing = a.iter().filter(|item| !b.contains(item));
            differences.extend(missing.map(|item| format!("{path}: without {item}")));
            let more = b.iter().filter(|item| !a.contains(item));
            differences.extend(more.map(|item| format!("{path}: {item} besides")));
        }
        (a, b) if a == b => {}
        (a, b) => differences.push(format!("{path}: {b} and not {a}")),
    }
}

/// Whether a container that uses too much memory is told to be killed for it. The runtime reads why from a cgroup
/// that systemd removes with its last process, and may be too late for that.
fn killed_for_memory(machine: &Machine, name: &str) -> bool {
    machine.create(
        name,
        &json!({"hostNetwork": true, "restartPolicy": "Never", "containers": [{
        "name": "hungry", "image": IMAGE, "resources": {"limits": {"memory": "24Mi"}},
        // Not at once: a runtime that is still starting the container does not watch it yet.
        "command": ["sh", "-c", "sleep 15; tail /dev/zero"]}]}),
    );
    let hungry = machine.wait_pod(name, "fails", |pod| pod["status"]["phase"] == "Failed");
    let ended = &hungry["status"]["containerStatuses"][0]["state"]["terminated"];
    assert_eq!(ended["exitCode"], 137);
    ended["reason"] == "OOMKilled"
}

/// A container that uses too much memory is killed, and that is told; one that wants more CPU is held
/// back; a resize changes both without a restart.
fn limits(machine: &Machine) {
    let resources = json!({"limits": {"cpu": "100m", "memory": "64Mi"},
                           "requests": {"cpu": "50m", "memory": "32Mi"}});
    machine.create(
        "busy",
        &json!({"hostNetwork": true, "containers": [{
        "name": "busy", "image": IMAGE, "resources": resources,
        "command": ["sh", "-c", "while :; do :; done"]}]}),
    );
    let killed = (0..3).any(|attempt| killed_for_memory(machine, &format!("hungry-{attempt}")));
    assert!(killed, "nobody is told to have run out of memory");

    let busy = machine.wait_running("busy");
    let (of_pod, of_container) = machine.folders(&busy);
    for folder in [&of_pod, &of_container] {
        machine.wait_file(folder, "cpu.max", |max| max == "10000 100000");
        machine.wait_file(folder, "memory.max", |max| max == "67108864");
    }
    machine.wait_file(&of_container, "cpu.stat", |text| {
        let count = text.lines().find_map(|line| line.strip_prefix("nr_throttled "));
        count.is_some_and(|count| count != "0")
    });
    let patch = json!({"spec": {"containers": [{"name": "busy", "resources": {
        "limits": {"cpu": "200m", "memory": "96Mi"}, "requests": {"cpu": "80m", "memory": "40Mi"}}}]}});
    let resize = ["patch", "pod", "busy", "--subresource", "resize", "-p", &patch.to_string()];
    machine.control.kubectl(resize).unwrap();
    for folder in [&of_pod, &of_container] {
        machine.wait_file(folder, "cpu.max", |max| max == "20000 100000");
        machine.wait_file(folder, "memory.max", |max| max == "100663296");
    }
    machine.wait_file(&of_pod, "cpu.weight", |weight| weight == "4");
    machine.wait_pod("busy", "has the new limits", |pod| {
        let status = &pod["status"]["containerStatuses"][0];
        let limits = json!({"cpu": "200m", "memory": "96Mi"});
        status["resources"]["limits"] == limits && status["restartCount"] == 0
    });
}

/// A restart of the agent changes nothing for the pods.
fn restart(machine: &mut Machine) {
    let ids = |machine: &Machine| -> Vec<Value> {
        let pods = machine.control.get(["pods"]).unwrap();
        let pods = pods["items"].as_array().unwrap();
        pods.iter().map(|pod| pod["status"]["containerStatuses"][0].clone()).collect()
    };
    let started = |machine: &Machine| {
        machine
            .node
            .shell("systemctl show --property=ActiveEnterTimestampMonotonic kubelet")
            .unwrap()
    };
    let (before, first) = (ids(machine), started(machine));
    machine.node.shell("systemctl restart kubelet; systemctl is-active kubelet").unwrap();
    assert_ne!(started(machine), first, "it was started again and told systemd so");
    machine.node.wait_ready().unwrap();
    let listed =
        || machine.node.kubelet_get("/runningpods/").ok().filter(|text| text.contains("busy"));
    eventually_some(PATIENCE, "the new agent knows the pods", listed).unwrap();
    assert_eq!(ids(machine), before);
}

/// Has the kernel kill for want of the machine's memory: not that there is none left, but it is told to make
/// room (as by the keyboard's Alt-SysRq-f), and takes the process that offers itself.
const RUN_OUT: &str = r#"
# In a file: systemd-run would put a variable of its own in place of the program's.
cat > /run/hog <<'END'
exec perl -e '$x = "a" x (1 << 25); sleep 3600'
END
systemd-run --quiet --unit=hog --property=OOMScoreAdjust=1000 bash /run/hog
pid=$(systemctl show --property=MainPID --value hog)
for _ in $(seq 600); do
  if [ "$(awk '/^VmRSS/ {print $2}' "/proc/$pid/status")" -gt 32768 ]; then break; fi
  sleep 0.1
done
echo f > /proc/sysrq-trigger
echo "$pid"
"#;

/// A process that the kernel kills for want of the machine's memory is an event of the node.
fn out_of_memory(machine: &Machine) {
    let pid = machine.node.shell(RUN_OUT).unwrap();
    let event = || {
        let events = machine.control.get(["events"]).ok()?;
        let mut all = events["items"].as_array()?.clone().into_iter();
        all.find(|event| event["reason"] == "SystemOOM")
    };
    let event = eventually_some(PATIENCE, "the node tells that it ran out", event).unwrap();
    assert_eq!(
        (&event["type"], &event["involvedObject"]["kind"], &event["involvedObject"]["name"]),
        (&json!("Warning"), &json!("Node"), &json!("node1"))
    );
    let message = format!("System OOM encountered, victim process: perl, pid: {}", pid.trim());
    assert_eq!(event["message"], message);
}

/// Pods that are gone leave no cgroup and no unit.
fn leave(machine: &Machine) {
    machine.control.kubectl(["delete", "pods", "--all", "--wait=false"]).unwrap();
    let gone = || machine.control.get(["pods"]).ok()?["items"].as_array()?.is_empty().then_some(());
    eventually_some(PATIENCE, "all pods are deleted", gone).unwrap();
    let mut last = String::new();
    let levels = || {
        last = machine.node.shell("cd /sys/fs/cgroup; find kubepods* -type d | sort").ok()?;
        (last.lines().count() == 3).then_some(())
    };
    eventually_some(PATIENCE, "only the levels are left", levels)
        .unwrap_or_else(|error| panic!("{error}: {last}"));
    let units = "systemctl list-units --all --plain --no-legend --no-pager 'kubepods*' | cut -d' ' -f1; echo";
    let units = machine.node.shell(units).unwrap();
    let units: Vec<&str> = units.split_whitespace().collect();
    let wanted: &[&str] = if machine.driver == "systemd" {
        &["kubepods-besteffort.slice", "kubepods-burstable.slice", "kubepods.slice"]
    } else {
        &[]
    };
    assert_eq!(units, wanted);
}

/// Does a step and prints how long it took: which one is slow differs from machine to machine.
fn step<T>(driver: &str, name: &str, work: impl FnOnce() -> T) -> T {
    let began = Instant::now();
    eprintln!("{driver}: {name} …");
    let done = work();
    eprintln!("{driver}: {name}: {} s", began.elapsed().as_secs());
    done
}

fn scenario(driver: &'static str) {
    let mut machine = step(driver, "start", || Machine::start(driver));
    let seen = step(driver, "classes of pods", || observe(&machine));
    let counted = step(driver, "quotas, and a server that goes away", || storage::begin(&machine));
    step(driver, "limits", || limits(&machine));
    step(driver, "the server is back", || storage::server_returns(&machine));
    step(driver, "restart", || restart(&mut machine));
    step(driver, "quotas after it", || storage::after_restart(&machine, &counted));
    step(driver, "out of memory", || out_of_memory(&machine));
    step(driver, "all pods go", || leave(&machine));
    storage::nothing_is_left(&machine);
    compare(&machine, &seen);
}

#[test]
fn with_the_systemd_driver_the_node_is_the_go_kubelets() {
    scenario("systemd");
}

#[test]
fn with_cgroupfs_the_node_is_the_go_kubelets() {
    scenario("cgroupfs");
}
