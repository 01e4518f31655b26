//! A private containerd of either line, with its own sockets, folders, network and image mirror.

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::json;

use super::process::output_of;
use super::{Parts, Registry, Service, Slot, run};

/// The sandbox image of both lines.
const PAUSE_IMAGE: &str = "registry.k8s.io/pause:3.10.2";

/// Which containerd to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RuntimeLine {
    /// Debian's package of the 1.6 line: no container events, no `RuntimeConfig`.
    V1,
    /// The pinned 2.x: events, `RuntimeConfig`.
    V2,
    /// The same with a runc that can map the users of mounts, for pods with users of their own.
    Users,
}

/// A running containerd.
#[derive(Debug)]
pub struct Containerd {
    service: Option<Service>,
    line: RuntimeLine,
    socket: PathBuf,
    config: PathBuf,
    parts: Parts,
}

impl Containerd {
    /// Start one in the slot and wait until its CRI service answers.
    pub fn start(
        slot: &Slot,
        parts: &Parts,
        registry: &Registry,
        line: RuntimeLine,
    ) -> anyhow::Result<Containerd> {
        write_network(slot)?;
        slot.write(
            "etc/mirrors/registry.k8s.io/hosts.toml",
            format!(
                "server = \"http://127.0.0.1:{port}\"\n[host.\"http://127.0.0.1:{port}\"]\n\
                 capabilities = [\"pull\", \"resolve\"]\n",
                port = registry.port()
            ),
        )?;
        let text = match line {
            RuntimeLine::V1 => config_v1(slot),
            RuntimeLine::V2 => config_v2(slot, &slot.path("containerd/state"), Path::new("runc")),
            RuntimeLine::Users => config_v2(slot, &slot.open_dir()?, &parts.bin("runc-users")?),
        };
        let config = slot.write("etc/containerd.toml", text)?;
        slot.write("etc/crictl.yaml", "{}\n")?;
        let socket = slot.path("run/containerd.sock");
        let mut containerd =
            Containerd { service: None, line, socket, config, parts: parts.clone() };
        containerd.launch(slot)?;
        Ok(containerd)
    }

    /// Start the daemon again after [`Containerd::kill`]; containers that ran still run.
    pub fn launch(&mut self, slot: &Slot) -> anyhow::Result<()> {
        let mut command = match self.line {
            RuntimeLine::V1 => Command::new("/usr/bin/containerd"),
            RuntimeLine::V2 | RuntimeLine::Users => {
                let mut command = Command::new(self.parts.bin("containerd")?);
                let path = std::env::var("PATH").unwrap_or_default();
                command.env("PATH", format!("{}:{path}", self.parts.bin_dir().display()));
                command
            }
        };
        command.arg("--config").arg(&self.config);
        let mut service = Service::start(slot, "containerd", command)?;
        service.wait_ready(Duration::from_secs(60), || {
            if self.parts.bin("crictl").is_err() {
                // Without the Go parts; whoever connects first waits for the CRI service itself.
                return UnixStream::connect(&self.socket).map(drop).map_err(Into::into);
            }
            self.crictl(["info"]).map(drop)
        })?;
        self.service = Some(service);
        Ok(())
    }

    /// Kill the daemon (not the containers).
    pub fn kill(&mut self) {
        self.service = None;
    }

    /// Whether the daemon runs.
    pub fn is_running(&mut self) -> bool {
        self.service.as_mut().is_some_and(Service::is_running)
    }

    /// Its process, while it runs.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.service.as_ref().map(Service::pid)
    }

    /// Which line this is.
    #[must_use]
    pub fn line(&self) -> RuntimeLine {
        self.line
    }

    /// Its CRI socket.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Run crictl against it.
    pub fn crictl<'a>(&self, args: impl IntoIterator<Item = &'a str>) -> anyhow::Result<String> {
        let endpoint = format!("unix://{}", self.socket.display());
        let mut command = Command::new(self.parts.bin("crictl")?);
        // An empty file: a configuration of the machine's user must not matter here.
        command.arg("--config").arg(self.config.with_file_name("crictl.yaml"));
        command.args(["--runtime-endpoint", &endpoint, "--image-endpoint", &endpoint]);
        command.args(["--timeout", "60s"]).args(args);
        output_of(command)
    }

    /// Run ctr against it, in the namespace that CRI uses.
    pub fn ctr<'a>(&self, args: impl IntoIterator<Item = &'a str>) -> anyhow::Result<String> {
        let mut command = Command::new(self.parts.bin("ctr")?);
        command.arg("--address").arg(&self.socket).args(["--namespace", "k8s.io"]).args(args);
        output_of(command)
    }

    /// Have an image on the node.
    pub fn pull(&self, image: &str) -> anyhow::Result<()> {
        self.crictl(["pull", image]).map(drop)
    }
}

fn write_network(slot: &Slot) -> anyhow::Result<()> {
    let config = json!({
        "cniVersion": "1.0.0",
        "name": slot.network(),
        "plugins": [
            {
                "type": "bridge",
                "bridge": slot.bridge(),
                "isGateway": true,
                "ipMasq": false,
                "hairpinMode": true,
                "ipam": {
                    "type": "host-local",
                    "dataDir": slot.path("cni/ipam"),
                    "ranges": [[{ "subnet": slot.subnet() }]],
                    "routes": [{ "dst": "0.0.0.0/0" }],
                },
            },
            { "type": "portmap", "capabilities": { "portMappings": true } },
        ],
    });
    slot.write("cni/net.d/10-test.conflist", config.to_string())?;
    // Pods reach each other and the node through the bridge only where the kernel forwards.
    run("sysctl", ["-q", "-w", "net.ipv4.ip_forward=1"]).map(drop)
}

fn config_v2(slot: &Slot, state: &Path, runc: &Path) -> String {
    format!(
        r#"version = 3
root = "{dir}/containerd/root"
state = "{state}"
[grpc]
address = "{dir}/run/containerd.sock"
[plugins.'io.containerd.nri.v1.nri']
disable = true
[plugins.'io.containerd.internal.v1.opt']
path = "{dir}/containerd/opt"
[plugins.'io.containerd.cri.v1.images'.pinned_images]
sandbox = "{PAUSE_IMAGE}"
[plugins.'io.containerd.cri.v1.images'.registry]
config_path = "{dir}/etc/mirrors"
[plugins.'io.containerd.cri.v1.runtime']
restrict_oom_score_adj = true
netns_mounts_under_state_dir = true
[plugins.'io.containerd.cri.v1.runtime'.cni]
bin_dirs = ["/usr/lib/cni", "/opt/cni/bin"]
conf_dir = "{dir}/cni/net.d"
[plugins.'io.containerd.cri.v1.runtime'.containerd]
default_runtime_name = "runc"
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
SystemdCgroup = false
BinaryName = "{runc}"
"#,
        dir = slot.dir().display(),
        state = state.display(),
        runc = runc.display()
    )
}

fn config_v1(slot: &Slot) -> String {
    format!(
        r#"version = 2
root = "{dir}/containerd/root"
state = "{dir}/containerd/state"
[grpc]
address = "{dir}/run/containerd.sock"
[plugins."io.containerd.internal.v1.opt"]
path = "{dir}/containerd/opt"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{PAUSE_IMAGE}"
restrict_oom_score_adj = true
netns_mounts_under_state_dir = true
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "/usr/lib/cni"
conf_dir = "{dir}/cni/net.d"
[plugins."io.containerd.grpc.v1.cri".registry]
config_path = "{dir}/etc/mirrors"
[plugins."io.containerd.grpc.v1.cri".containerd]
default_runtime_name = "runc"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
SystemdCgroup = false
"#,
        dir = slot.dir().display()
    )
}
