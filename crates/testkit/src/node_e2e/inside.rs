//! The run itself, in namespaces of its own: mounts, a network, the registry and the runtime, then
//! ginkgo with the suite.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};

use super::bus::{self, Bus};
use super::{Plan, units};
use crate::real::{Containerd, Parts, Registry, RuntimeLine, Slot, run};

/// Folders of the machine that the suite writes to, each replaced by one of the slot's.
const OWN: [&str; 6] =
    ["/var/lib/kubelet", "/var/lib/cni", "/var/log", "/run", "/tmp", "/var/lib/containerd"];

/// Images that most specs use, on the node before the first of them.
const IMAGES: [&str; 6] = [
    "pause:3.10.2",
    "e2e-test-images/busybox:1.37.0-1",
    "e2e-test-images/agnhost:2.63.0",
    "e2e-test-images/agnhost:2.55",
    "e2e-test-images/nginx:1.15-4",
    BUSYBOX_WITH_MORE,
];

/// Busybox as well, but another image than that of its own name.
const BUSYBOX_WITH_MORE: &str = "e2e-test-images/ipc-utils:1.4";

/// The configuration that upstream's own lanes use, on a machine with either cgroup version and
/// perhaps a rather full disk.
const CONFIGURATION: &str = "\
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
cgroupDriver: cgroupfs
cgroupRoot: /
failCgroupV1: false
podCIDR: 10.100.0.0/24
volumeStatsAggPeriod: 10s
fileCheckFrequency: 10s
evictionPressureTransitionPeriod: 30s
evictionHard: {memory.available: 250Mi, nodefs.available: 1%, nodefs.inodesFree: 1%}
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
serializeImagePulls: false
";

/// Second inner step: everything up to the end of ginkgo.
pub fn run_inside(index: u8) -> anyhow::Result<()> {
    let slot = Slot::inside(index)?;
    let plan: Plan = serde_json::from_slice(&std::fs::read(slot.path("plan.json"))?)?;
    let parts = Parts::find()?;
    own_places(&slot)?;
    own_network()?;
    let mut path = format!("{}:{}", parts.bin_dir().display(), std::env::var("PATH")?);
    if plan.units {
        path = format!("{}:{path}", units::install(&slot)?.display());
    } else {
        // The suite would hand the kubelet to systemd, which is not there to take it.
        hide("systemd-run")?;
    }
    some_traffic()?;
    let registry = Registry::start(&slot, &parts.e2e_registry_storage())?;
    let containerd = Containerd::start(&slot, &parts, &registry, RuntimeLine::V2)?;
    for image in IMAGES {
        containerd.pull(&format!("registry.k8s.io/{image}"))?;
    }
    // Some specs name an image of another registry. An image of two names would be told by the
    // first of them in the status of every container, and the specs that change images look there.
    let other = format!("registry.k8s.io/{BUSYBOX_WITH_MORE}");
    containerd.ctr(["images", "tag", other.as_str(), "docker.io/library/busybox:1.36"])?;
    bus::enter_cgroup(&containerd)?;
    let socket = containerd.socket().to_owned();
    if plan.units {
        let bus = Bus::start(&slot, containerd)?;
        ginkgo(&slot, &parts, &plan, &path, &socket, Some(bus.address()))
    } else {
        ginkgo(&slot, &parts, &plan, &path, &socket, None)
    }
}

fn ginkgo(
    slot: &Slot,
    parts: &Parts,
    plan: &Plan,
    path: &str,
    socket: &Path,
    bus: Option<&str>,
) -> anyhow::Result<()> {
    let folder = slot.path("e2e");
    let bin = slot.path("bin");
    std::fs::create_dir_all(&folder)?;
    // ginkgo runs a suite in the folder of its binary, and the suite writes where it runs.
    let suite = folder.join("e2e_node.test");
    std::os::unix::fs::symlink(parts.bin("e2e_node.test")?, &suite)?;
    let config = slot.write("etc/kubelet.yaml", CONFIGURATION)?;
    let log = File::create(slot.log_file("ginkgo"))?;
    let mut command = Command::new(parts.bin("ginkgo")?);
    command.current_dir(&folder);
    command.arg(format!("--procs={}", plan.procs));
    command.args(["--no-color", "--output-interceptor-mode=none", "--timeout=24h"]);
    command.args(["--json-report=report.json", "--poll-progress-after=0"]);
    command.arg(format!("--label-filter={}", plan.labels));
    for (flag, value) in [("--focus", &plan.focus), ("--skip", &plan.skip)] {
        if !value.is_empty() {
            command.arg(format!("{flag}={value}"));
        }
    }
    command.arg("./e2e_node.test").arg("--");
    command.arg(format!("--k8s-bin-dir={}", bin.display()));
    command.arg(format!("--container-runtime-endpoint=unix://{}", socket.display()));
    command.arg(format!("--kubelet-config-file={}", config.display()));
    command.args(["--prepull-images=false", "--systemd-services=", "--bearer-token=node-e2e"]);
    command.args(["--node-name=node1", "--server-start-timeout=3m"]);
    command.args(&plan.flags);
    // Also where a unit's log goes, which wants a whole path.
    command.arg(format!("--report-dir={}", folder.display()));
    command.env("PATH", path);
    if let Some(address) = bus {
        command.env("DBUS_SYSTEM_BUS_ADDRESS", address);
    }
    command.stdout(log.try_clone()?).stderr(log);
    let status = command.status().context("cannot run ginkgo")?;
    // A failed spec is a result, not a fault of the run.
    if !folder.join("report.json").is_file() {
        bail!("ginkgo made no report ({status})");
    }
    Ok(())
}

/// Mounts: the slot's cgroup as the root of the tree, a /sys of the own network, own folders.
fn own_places(slot: &Slot) -> anyhow::Result<()> {
    let stage = slot.path("cgroup");
    std::fs::create_dir_all(&stage)?;
    let staged = stage.display().to_string();
    let folders = slot.cgroup_folders();
    let unified = folders.iter().any(|f| f.parent() == Some(Path::new("/sys/fs/cgroup")));
    if unified {
        let own = folders.first().context("no cgroup")?.display().to_string();
        run("mount", ["--bind", &own, &staged])?;
    } else {
        run("mount", ["-t", "tmpfs", "-o", "mode=755", "tmpfs", &staged])?;
        for own in folders {
            let hierarchy = own.parent().and_then(Path::file_name).context("no hierarchy")?;
            let target = stage.join(hierarchy);
            std::fs::create_dir_all(&target)?;
            run("mount", [Path::new("--bind"), &own, &target])?;
        }
    }
    run("mount", ["-t", "sysfs", "sysfs", "/sys"])?;
    run("mount", ["--rbind", &staged, "/sys/fs/cgroup"])?;
    for place in OWN {
        let own = slot.path(&format!("own{place}"));
        std::fs::create_dir_all(&own)?;
        std::fs::create_dir_all(place)?;
        run("mount", [Path::new("--bind"), &own, Path::new(place)])?;
    }
    run("chmod", ["1777", "/tmp"])?;
    // Mount propagation between containers and the node is part of what is tested.
    run("mount", ["--make-rshared", "/"])?;
    run("hostname", ["node1"])?;
    // Kubelets look their node up by name; nobody answers for it here, and 10 s of that at a time
    // would keep the Go kubelet's node from getting ready.
    let known = std::fs::read_to_string("/etc/hosts").unwrap_or_default();
    let hosts = slot.write("etc/hosts", format!("{known}\n10.200.0.2 node1\n"))?;
    run("mount", [Path::new("--bind"), &hosts, Path::new("/etc/hosts")]).map(drop)
}

/// An interface with an address and a default route, as a node has. It leads nowhere.
fn own_network() -> anyhow::Result<()> {
    for words in [
        "link set lo up",
        "link add eth0 type veth peer name uplink",
        "address add 10.200.0.2/24 dev eth0",
        "link set eth0 up",
        "link set uplink up",
        "route add default via 10.200.0.1 dev eth0",
    ] {
        run("ip", words.split(' '))?;
    }
    Ok(())
}

/// A node has seen packets on its interface: 2 MB in each direction, to and from the other end.
fn some_traffic() -> anyhow::Result<()> {
    run("ip", ["address", "add", "10.200.1.1/24", "dev", "uplink"])?;
    for (from, to, own, other) in [
        ("10.200.1.1", "10.200.1.2", "uplink", "eth0"),
        ("10.200.0.2", "10.200.0.3", "eth0", "uplink"),
    ] {
        let mac = std::fs::read_to_string(format!("/sys/class/net/{other}/address"))?;
        run("ip", ["neigh", "add", to, "lladdr", mac.trim(), "dev", own])?;
        let socket = std::net::UdpSocket::bind((from, 0))?;
        for _ in 0..1500 {
            socket.send_to(&[0; 1400], (to, 9))?;
        }
    }
    Ok(())
}

/// Make a program of the machine impossible to run here.
fn hide(program: &str) -> anyhow::Result<()> {
    let path = std::env::var("PATH").unwrap_or_default();
    let found = path.split(':').map(|dir| Path::new(dir).join(program)).filter(|p| p.is_file());
    for file in found.collect::<Vec<PathBuf>>() {
        run("mount", [Path::new("--bind"), Path::new("/dev/null"), &file])?;
    }
    Ok(())
}
