//! A node in a virtual machine: systemd as the first process, cgroup version 2, containerd and the
//! kubelet under test as units. The control plane and the registry stay on this machine, which the
//! guest reaches as 10.0.2.2; everything in the guest is done through a shell on a TCP port.
//!
//! The machine is emulated (no hardware support needed), hence slow: 20 to 40 times for a program.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use serde_json::{Value, json};

use super::kubelet::lay_over;
use super::{ControlPlane, KubeletKind, Parts, Registry, Service, Slot, repository_root, run};

/// How the guest names this machine.
const HOST: &str = "10.0.2.2";
/// What one script in the guest may take, also on a machine that is busy with other things.
const SCRIPT: Duration = Duration::from_secs(300);
/// What booting, and a kubelet's way to a ready node, may take.
const BOOT: Duration = Duration::from_secs(600);
/// What one answer of the kubelet may take, in seconds.
const ANSWER: &str = "180";

/// A running virtual node. Dropping it ends the machine.
#[derive(Debug)]
pub struct VirtualNode {
    // In the order in which they must go; the slot is last.
    machine: Service,
    _registry: Registry,
    control: Arc<ControlPlane>,
    shell: u16,
    api: u16,
    slot: Slot,
}

impl VirtualNode {
    /// Boot a machine, run a script in it, start containerd and this kubelet with the cgroup driver
    /// (`systemd` or `cgroupfs`) and `config` laid over the harness's, and wait until `node1` is ready.
    pub fn start(
        control: &Arc<ControlPlane>,
        kind: KubeletKind,
        driver: &str,
        config: &Value,
        prepare: &str,
    ) -> anyhow::Result<VirtualNode> {
        let slot = Slot::take()?;
        let parts = Parts::find()?;
        let base =
            PathBuf::from(run(repository_root().join("parts/prepare"), ["--vm-dir"])?.trim());
        ensure!(base.join("disk.img").is_file(), "no virtual machine: run `parts/prepare vm`");
        let registry = Registry::start(&slot, &parts.registry_storage())?;
        fill(&slot, &parts, control, registry.port(), (kind, driver, config))?;
        let (shell, api) = (slot.free_port()?, slot.free_port()?);
        slot.release_ports();
        let machine = Service::start(&slot, "machine", machine(&slot, &base, shell, api))?;
        let mut node = VirtualNode {
            machine,
            _registry: registry,
            control: Arc::clone(control),
            shell,
            api,
            slot,
        };
        node.boot()?;
        node.shell(prepare)?;
        node.shell(START_RUNTIME)?;
        node.shell(START_KUBELET)?;
        node.wait_ready()?;
        Ok(node)
    }

    fn boot(&mut self) -> anyhow::Result<()> {
        let port = self.shell;
        self.machine.wait_ready(BOOT, || {
            let said = ask(port, "systemctl is-system-running --wait", SCRIPT)?;
            ensure!(said.trim() == "running", "the machine is {}", said.trim());
            Ok(())
        })
    }

    /// Wait until the control plane calls the node ready.
    pub fn wait_ready(&mut self) -> anyhow::Result<()> {
        let control = Arc::clone(&self.control);
        let ready = self.machine.wait_ready(BOOT, || {
            let object = control.get(["node", "node1"])?;
            ensure!(super::node::is_ready(&object), "status: {}", object["status"]["conditions"]);
            Ok(())
        });
        ready.with_context(|| self.kubelet_log(40))
    }

    /// Run a script in the guest; fails with what it printed when it does.
    pub fn shell(&self, script: &str) -> anyhow::Result<String> {
        let whole = format!("set -e; trap 'echo \"script failed: $?\"' ERR\n{script}");
        let said = ask(self.shell, &whole, SCRIPT)?;
        ensure!(!said.contains("script failed: "), "in the machine: {script}: {said}");
        Ok(said)
    }

    /// GET a path of the kubelet's HTTPS API.
    pub fn kubelet_get(&self, path: &str) -> anyhow::Result<String> {
        let url = format!("https://127.0.0.1:{}{path}", self.api);
        run("curl", ["-fsSk", "-m", ANSWER, &url])
    }

    /// The end of the kubelet's log.
    #[must_use]
    pub fn kubelet_log(&self, lines: usize) -> String {
        self.log("kubelet", lines)
    }

    fn log(&self, unit: &str, lines: usize) -> String {
        let script = format!("tail -n {lines} /var/log/{unit}.log");
        ask(self.shell, &script, SCRIPT).unwrap_or_else(|error| format!("{error:#}"))
    }
}

impl Drop for VirtualNode {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for unit in ["kubelet", "containerd"] {
                let log = self.log(unit, 20_000);
                if let Err(error) = self.slot.write(&format!("log/{unit}.log"), log) {
                    tracing::warn!(err = %error, unit, "The log of the guest was not kept");
                }
            }
        }
    }
}

/// Give a script to the guest's shell; everything it prints until it ends.
fn ask(port: u16, script: &str, within: Duration) -> anyhow::Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(within))?;
    stream.write_all(format!("{script}\nexit\n").as_bytes())?;
    let mut said = Vec::new();
    stream.read_to_end(&mut said).context("the guest's shell")?;
    // The guest's side ended already.
    let _ended = stream.shutdown(Shutdown::Both);
    ensure!(!said.is_empty(), "the guest's shell said nothing");
    Ok(String::from_utf8_lossy(&said).into_owned())
}

/// The second disk: programs and their configuration.
fn fill(
    slot: &Slot,
    parts: &Parts,
    control: &ControlPlane,
    registry: u16,
    (kind, driver, config): (KubeletKind, &str, &Value),
) -> anyhow::Result<()> {
    let text = |path: &Path| path.to_string_lossy().into_owned();
    std::fs::create_dir_all(slot.path("parts"))?;
    for name in ["containerd", "containerd-shim-runc-v2", "ctr"] {
        std::fs::copy(parts.bin(name)?, slot.path("parts").join(name))?;
    }
    let program = kind.program(parts)?;
    run("strip", ["-o", &text(&slot.path("parts/kubelet")), &text(&program)])?;
    std::fs::copy(control.authority(), {
        std::fs::create_dir_all(slot.path("parts/etc"))?;
        slot.path("parts/etc/ca.crt")
    })?;
    slot.write("parts/etc/containerd.toml", containerd(driver))?;
    slot.write(
        "parts/etc/mirrors/registry.k8s.io/hosts.toml",
        format!(
            "server = \"http://{HOST}:{registry}\"\n[host.\"http://{HOST}:{registry}\"]\n\
             capabilities = [\"pull\", \"resolve\"]\n"
        ),
    )?;
    let network = json!({"cniVersion": "1.0.0", "name": "test", "plugins": [{
        "type": "bridge", "bridge": "pods", "isGateway": true,
        "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.88.0.0/16"}]]},
    }]});
    slot.write("parts/etc/cni/10-test.conflist", network.to_string())?;
    slot.write("parts/etc/resolv.conf", "nameserver 10.255.255.53\n")?;
    let kubeconfig = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "test",
        "clusters": [{"name": "test", "cluster": {
            "server": format!("https://{HOST}:{}", control.port()),
            "certificate-authority": "/opt/parts/etc/ca.crt",
        }}],
        "users": [{"name": "node1", "user": {"token": control.token("node1")}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "node1"}}],
    });
    slot.write("parts/etc/kubeconfig", kubeconfig.to_string())?;
    let mut kubelet = json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
        "address": "0.0.0.0",
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "cgroupDriver": driver,
        "resolvConf": "/opt/parts/etc/resolv.conf",
        "authentication": {"anonymous": {"enabled": true}, "webhook": {"enabled": false}},
        "authorization": {"mode": "AlwaysAllow"},
        "evictionHard": {"memory.available": "50Mi", "nodefs.available": "1%",
                         "imagefs.available": "1%", "nodefs.inodesFree": "1%"},
    });
    lay_over(&mut kubelet, config);
    slot.write("parts/etc/kubelet.json", kubelet.to_string())?;
    let image = text(&slot.path("parts.img"));
    let folder = text(&slot.path("parts"));
    run("mke2fs", ["-q", "-F", "-t", "ext4", "-L", "parts", "-d", &folder, &image, "400M"])?;
    std::fs::remove_dir_all(slot.path("parts")).context("the folder of the second disk")
}

fn machine(slot: &Slot, base: &Path, shell: u16, api: u16) -> Command {
    let disk = |path: &Path, how: &str| {
        format!("file={},if=virtio,format=raw,cache=unsafe,{how}", path.display())
    };
    let mut command = Command::new("nice");
    command.args(["-n", "5", "qemu-system-x86_64", "-accel", "tcg,thread=multi", "-cpu", "max"]);
    command.args(["-smp", "2", "-m", "2048", "-nodefaults", "-no-reboot", "-display", "none"]);
    command.arg("-kernel").arg(base.join("vmlinuz")).arg("-initrd").arg(base.join("initrd"));
    command
        .args(["-append", "root=/dev/vda rw console=ttyS0 quiet net.ifnames=0 psi=1 hugepages=8"]);
    // What the guest writes to its disk is gone with it.
    command.arg("-drive").arg(disk(&base.join("disk.img"), "snapshot=on"));
    command.arg("-drive").arg(disk(&slot.path("parts.img"), "readonly=on"));
    let forward = |port: u16, guest: u16| format!("hostfwd=tcp:127.0.0.1:{port}-:{guest}");
    command.arg("-netdev");
    command.arg(format!("user,id=net,{},{}", forward(shell, 9000), forward(api, 10_250)));
    command.args(["-device", "virtio-net-pci,netdev=net,romfile="]);
    command.arg("-serial").arg(format!("file:{}", slot.log_file("console").display()));
    command.env("TMPDIR", slot.dir());
    command
}

/// The handler `userns` has a runc that can map the users of mounts.
fn containerd(driver: &str) -> String {
    let systemd = driver == "systemd";
    format!(
        r#"version = 3
[plugins.'io.containerd.nri.v1.nri']
disable = true
[plugins.'io.containerd.cri.v1.images'.pinned_images]
sandbox = "registry.k8s.io/pause:3.10.2"
[plugins.'io.containerd.cri.v1.images'.registry]
config_path = "/opt/parts/etc/mirrors"
[plugins.'io.containerd.cri.v1.runtime'.cni]
bin_dirs = ["/usr/lib/cni"]
conf_dir = "/opt/parts/etc/cni"
[plugins.'io.containerd.cri.v1.runtime'.containerd]
default_runtime_name = "runc"
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
SystemdCgroup = {systemd}
BinaryName = "runc"
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.userns]
runtime_type = "io.containerd.runc.v2"
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.userns.options]
SystemdCgroup = {systemd}
BinaryName = "runc-userns"
"#
    )
}

const START_RUNTIME: &str = r#"
systemd-run --quiet --unit=containerd -p Delegate=yes -p KillMode=process -p OOMScoreAdjust=-999 \
  -p StandardOutput=append:/var/log/containerd.log -p StandardError=append:/var/log/containerd.log \
  -E PATH="/opt/parts:$PATH" /opt/parts/containerd --config /opt/parts/etc/containerd.toml
until [ -S /run/containerd/containerd.sock ]; do sleep 0.2; done
echo started
"#;

/// As a service that tells systemd when it is ready: the command returns when it did.
const START_KUBELET: &str = r#"
systemd-run --quiet --unit=kubelet -p Type=notify -p KillMode=process -p OOMScoreAdjust=-999 \
  -p StandardOutput=append:/var/log/kubelet.log -p StandardError=append:/var/log/kubelet.log \
  /opt/parts/kubelet --config /opt/parts/etc/kubelet.json --kubeconfig /opt/parts/etc/kubeconfig \
  --hostname-override node1 --v=4 || tail -n 30 /var/log/kubelet.log
systemctl is-active kubelet
"#;
