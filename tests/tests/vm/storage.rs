//! Volumes that need a kernel of their own: folders counted by project quotas (XFS under the systemd driver,
//! ext4 under the other), and NFS from a server in the machine, which goes away for a while.
//!
//! What is expected of the project files and limits is what the Go kubelet does; `KUBELET=go` runs it too.

use serde_json::{Value, json};
use testkit::real::KubeletKind;

use super::{IMAGE, Machine, PATIENCE, eventually_some};

const MIB: u64 = 1 << 20;
const ROOT: &str = "/var/lib/kubelet";

/// What both scenarios have mounted for the kubelet, and the server that only one of them has.
pub(super) fn prepare(driver: &str) -> String {
    let (make, server) = if driver == "systemd" {
        ("mkfs.xfs -q /var/kubelet.img", START_SERVER)
    } else {
        ("mkfs.ext4 -q -O quota,project -E quotatype=prjquota /var/kubelet.img", "")
    };
    format!(
        "modprobe -a loop quota_v2\ntruncate -s 512M /var/kubelet.img\n{make}\nmkdir -p {ROOT}\n\
         mount -o loop,prjquota /var/kubelet.img {ROOT}\n{server}\necho prepared\n"
    )
}

const START_SERVER: &str = r#"
mkdir -p /srv/share /etc/nfs.conf.d
echo 'from afar' > /srv/share/greeting
echo '/srv/share 127.0.0.1(rw,fsid=1,no_subtree_check,no_root_squash)' > /etc/exports
printf '[nfsd]\nthreads=2\nvers3=n\ngrace-time=10\nlease-time=10\n' > /etc/nfs.conf.d/test.conf
systemctl start nfs-server
"#;

/// The numbers of the volumes' projects, by volume.
pub(super) type Counted = Vec<(String, u64)>;

fn share() -> Value {
    json!([{"name": "share", "nfs": {"server": "127.0.0.1", "path": "/srv/share"}}])
}

fn reader(command: &str) -> Value {
    json!({"hostNetwork": true, "volumes": share(), "containers": [{
        "name": "c", "image": IMAGE, "command": ["sh", "-c", command],
        "volumeMounts": [{"name": "share", "mountPath": "/share"}]}]})
}

/// Pods with such volumes; at the end the server is away and a pod waits for it.
pub(super) fn begin(machine: &Machine) -> Counted {
    machine
        .control
        .create(&json!({"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass",
            "metadata": {"name": "userns"}, "handler": "userns"}))
        .unwrap();
    machine
        .control
        .create(&json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"key": "value"},
            "metadata": {"name": "map", "namespace": "default"}}))
        .unwrap();
    let names = ["data", "free", "map"];
    let mounts = names.map(|name| json!({"name": name, "mountPath": format!("/{name}")}));
    let write = "dd if=/dev/zero of=/data/big bs=1M count=5; mkdir /data/d; \
                 touch /data/d/1 /data/d/2; cat /map/key; exec sleep 36000";
    machine.create(
        "counted",
        &json!({"hostUsers": false, "runtimeClassName": "userns",
            "volumes": [
                {"name": "data", "emptyDir": {"sizeLimit": "20Mi"}}, {"name": "free", "emptyDir": {}},
                {"name": "map", "configMap": {"name": "map"}}],
            "containers": [{"name": "c", "image": IMAGE, "command": ["sh", "-c", write],
                "volumeMounts": mounts}]}),
    );
    if has_server(machine) {
        machine.create("near", &reader("cat /share/greeting; exec sleep 36000"));
    }
    let counted = quotas(machine);
    if has_server(machine) {
        machine.wait_running("near");
        let read = || {
            let log = machine.node.kubelet_get("/containerLogs/default/near/c").ok()?;
            (log == "from afar\n").then_some(())
        };
        eventually_some(PATIENCE, "the container reads what the server has", read).unwrap();
        machine.node.shell("systemctl stop nfs-server; echo stopped").unwrap();
        // Who asks for all statistics is answered, without those of the volume that hangs.
        machine.node.kubelet_get("/stats/summary").unwrap();
        machine.create("late", &reader("cat /share/greeting; exec sleep 36000"));
    }
    counted
}

fn has_server(machine: &Machine) -> bool {
    machine.driver == "systemd"
}

/// The pod's volumes are in projects of their own, which hold nobody back and tell what is used.
fn quotas(machine: &Machine) -> Counted {
    let pod = machine.wait_running("counted");
    let uid = pod["metadata"]["uid"].as_str().unwrap();
    let counted = lines(machine, uid);
    // In kilobytes, XFS in whole blocks; what has no limit of its own is given none.
    let most: u64 = if has_server(machine) { 1 << 53 } else { (1 << 48) - 1 };
    let report = format!("xfs_quota -x -f -c 'report -p -n -N -b' {ROOT}");
    let report = machine.node.shell(&report).unwrap();
    for (name, id) in &counted {
        let number = format!("#{id}");
        let words: Vec<&str> = report
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>())
            .find(|words| words.first() == Some(&number.as_str()))
            .unwrap_or_else(|| panic!("no project {number} in {report}"));
        let limit = if name == "data" { most } else { 0 };
        assert_eq!(words[2..4], [limit.to_string(), limit.to_string()], "{name}: {report}");
    }
    measured_by_quota(machine);
    counted
}

/// The lines of the pod's volumes in the project files, which are all there are.
fn lines(machine: &Machine, uid: &str) -> Counted {
    let both = machine.node.shell("cat /etc/projects; echo ===; cat /etc/projid").unwrap();
    let (projects, projid) = both.split_once("===\n").unwrap();
    let mut counted = Counted::new();
    for line in projects.lines() {
        let (id, dir) = line.split_once(':').unwrap();
        let name = dir.rsplit('/').next().unwrap();
        let plugin = if name == "map" { "configmap" } else { "empty-dir" };
        assert_eq!(dir, format!("{ROOT}/pods/{uid}/volumes/kubernetes.io~{plugin}/{name}"));
        let folder = machine.node.shell(&format!("lsattr -pd {dir}")).unwrap();
        let words: Vec<&str> = folder.split_whitespace().collect();
        assert!(words[0] == id && words[1].contains('P'), "{folder}");
        counted.push((name.to_owned(), id.parse().unwrap()));
    }
    counted.sort();
    let names: Vec<&str> = counted.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["data", "free", "map"], "{both}");
    let mut ids: Vec<u64> = counted.iter().map(|(_, id)| *id).collect();
    ids.sort_unstable();
    assert_eq!(ids, [1_048_577, 1_048_578, 1_048_579]);
    let mut named: Vec<&str> = projid.lines().collect();
    named.sort_unstable();
    let wanted: Vec<String> = ids.iter().map(|id| format!("volume{id}:{id}")).collect();
    assert_eq!(named, wanted);
    counted
}

/// The summary has what the quota counts, and the metric says that it was asked.
fn measured_by_quota(machine: &Machine) {
    let mut last = Value::Null;
    let found = eventually_some(PATIENCE, "the volume's use", || {
        let text = machine.node.kubelet_get("/stats/summary").ok()?;
        let summary: Value = serde_json::from_str(&text).ok()?;
        let pods = summary["pods"].as_array()?;
        let pod = pods.iter().find(|pod| pod["podRef"]["name"] == "counted")?;
        last = pod["volume"].clone();
        let data = last.as_array()?.iter().find(|volume| volume["name"] == "data")?;
        // The folder, the file, and a folder with two files.
        let used = data["usedBytes"].as_u64()?;
        (data["inodesUsed"] == 5 && (5 * MIB..6 * MIB).contains(&used)).then_some(())
    });
    found.unwrap_or_else(|error| panic!("{error}; it is {last}"));
    let page = machine.node.kubelet_get("/metrics").unwrap();
    let line =
        "kubelet_volume_metric_collection_duration_seconds_count{metric_source=\"fsquota\"} ";
    let count = page.lines().find_map(|found| found.strip_prefix(line));
    assert!(count.is_some_and(|count| count != "0"), "measured by quota: {count:?}");
}

/// Who waited for the server was named, others went on; when it is back, so does he.
pub(super) fn server_returns(machine: &Machine) {
    if !has_server(machine) {
        return;
    }
    let event = || {
        let events = machine.control.get(["events"]).ok()?;
        let mut all = events["items"].as_array()?.clone().into_iter();
        all.find(|e| e["involvedObject"]["name"] == "late" && e["reason"] == "FailedMount")
    };
    if machine.kind == KubeletKind::Rubelet {
        let mut last = String::new();
        let told = eventually_some(PATIENCE, "it is explained what waits and what hangs", || {
            // Statistics are what hangs in the volume that is there.
            machine.node.kubelet_get("/stats/summary").ok()?;
            last = machine.node.shell("/opt/parts/kubelet explain").ok()?;
            let (_, story) = last.split_once("default/late (")?;
            let named = story.contains("volume \"share\"");
            (named && last.contains("statfs on /var/lib/kubelet/pods/")).then_some(())
        });
        told.unwrap_or_else(|error| panic!("{error}; it says {last}"));
    }
    let event = eventually_some(PATIENCE, "an event names who waits", event).unwrap();
    assert!(event["message"].as_str().unwrap().contains("share"), "{event}");
    let late = machine.control.get(["pod", "late"]).unwrap();
    assert_eq!(late["status"]["phase"], "Pending");
    machine.node.shell("systemctl start nfs-server; echo started").unwrap();
    machine.wait_running("late");
}

/// The projects are the same after a restart of the agent, and are asked again. (The Go kubelet cannot assign a
/// folder of ext4 again that has files: it marks them as only folders can be, fails, and takes the lines away.)
pub(super) fn after_restart(machine: &Machine, counted: &Counted) {
    if machine.kind == KubeletKind::Go && !has_server(machine) {
        return;
    }
    let pod = machine.control.get(["pod", "counted"]).unwrap();
    assert_eq!(&lines(machine, pod["metadata"]["uid"].as_str().unwrap()), counted);
    measured_by_quota(machine);
}

/// Pods that are gone leave no mount and no project. (The Go kubelet does not know at the end that the pod had a
/// user namespace, and leaves the lines of its volumes.)
pub(super) fn nothing_is_left(machine: &Machine) {
    let mounts = machine.node.shell("grep -c ' - nfs4\\? ' /proc/self/mountinfo || true").unwrap();
    assert_eq!(mounts.trim(), "0");
    if machine.kind == KubeletKind::Rubelet {
        let files = machine.node.shell("cat /etc/projects /etc/projid; echo end").unwrap();
        assert_eq!(files, "end\n");
    }
}
