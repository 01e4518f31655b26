//! A test node: registry, container runtime, kubelet, and on request a recorder between the two
//! and a control plane behind them.

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use serde_json::Value;

use super::kubelet::{KubeletPorts, configuration, lay_over, make_cgroups};
use super::process::output_of;
use super::{
    Containerd, ControlPlane, KubeletKind, KubeletOptions, Parts, Recorder, Registry, RuntimeLine,
    Service, Slot, eventually_some,
};

/// What to start.
#[derive(Debug)]
pub struct TestNodeBuilder {
    line: RuntimeLine,
    kubelet: Option<KubeletKind>,
    options: KubeletOptions,
    control: Option<Arc<ControlPlane>>,
    images: Vec<String>,
    disks: Vec<(String, u32)>,
    record: bool,
}

impl TestNodeBuilder {
    /// Use this line of containerd (default: 2.x).
    #[must_use]
    pub fn runtime(mut self, line: RuntimeLine) -> Self {
        self.line = line;
        self
    }

    /// Start this kubelet (default: none, only the runtime).
    #[must_use]
    pub fn kubelet(mut self, kind: KubeletKind) -> Self {
        self.kubelet = Some(kind);
        self
    }

    /// With these options.
    #[must_use]
    pub fn options(mut self, options: KubeletOptions) -> Self {
        self.options = options;
        self
    }

    /// Register with this control plane (default: standalone).
    #[must_use]
    pub fn join(mut self, control: &Arc<ControlPlane>) -> Self {
        self.control = Some(Arc::clone(control));
        self
    }

    /// Have this image of `registry.k8s.io` on the node before the kubelet starts.
    #[must_use]
    pub fn image(mut self, name: &str) -> Self {
        self.images.push(format!("registry.k8s.io/{name}"));
        self
    }

    /// Have no image on the node before the kubelet starts.
    #[must_use]
    pub fn without_images(mut self) -> Self {
        self.images.clear();
        self
    }

    /// Give this folder of the slot (`kubelet`, `containerd`) a small disk of its own.
    #[must_use]
    pub fn disk(mut self, below: &str, mebibytes: u32) -> Self {
        self.disks.push((below.to_owned(), mebibytes));
        self
    }

    /// Record the CRI calls of the kubelet.
    #[must_use]
    pub fn record(mut self) -> Self {
        self.record = true;
        self
    }

    /// Start everything and wait until it is ready.
    pub fn start(self) -> anyhow::Result<TestNode> {
        let slot = Slot::take()?;
        let parts = Parts::find()?;
        make_cgroups(&slot)?;
        for (below, mebibytes) in &self.disks {
            slot.mount_disk(below, *mebibytes)?;
        }
        let registry = Registry::start(&slot, &parts.registry_storage())?;
        let containerd = Containerd::start(&slot, &parts, &registry, self.line)?;
        for image in &self.images {
            containerd.pull(image)?;
        }
        let recorder = if self.record {
            let socket = slot.path("run/recorder.sock");
            Some(Recorder::start(&socket, containerd.socket())?)
        } else {
            None
        };
        let ports = KubeletPorts { api: slot.free_port()?, health: slot.free_port()? };
        slot.release_ports();
        let mut node = TestNode {
            kubelet: None,
            recorder,
            containerd,
            _registry: registry,
            options: self.options,
            control: self.control,
            parts,
            ports,
            slot,
        };
        if let Some(kind) = self.kubelet {
            node.start_kubelet(kind)?;
        }
        Ok(node)
    }
}

/// A running node. Dropping it removes it from the machine.
#[derive(Debug)]
pub struct TestNode {
    // In the order in which they must go; the slot is last.
    kubelet: Option<Service>,
    recorder: Option<Recorder>,
    containerd: Containerd,
    _registry: Registry,
    options: KubeletOptions,
    control: Option<Arc<ControlPlane>>,
    parts: Parts,
    ports: KubeletPorts,
    slot: Slot,
}

impl TestNode {
    /// A node with containerd 2.x, the pause and busybox images, and no kubelet yet.
    #[must_use]
    pub fn builder() -> TestNodeBuilder {
        TestNodeBuilder {
            line: RuntimeLine::V2,
            kubelet: None,
            options: KubeletOptions::default(),
            control: None,
            images: ["pause:3.10.2", "e2e-test-images/busybox:1.37.0-1"]
                .map(|name| format!("registry.k8s.io/{name}"))
                .to_vec(),
            disks: Vec::new(),
            record: false,
        }
    }

    /// Start a kubelet (after [`TestNode::stop_kubelet`], or the other kind on the same state) and
    /// wait until it is healthy and, with a control plane, its node is Ready.
    pub fn start_kubelet(&mut self, kind: KubeletKind) -> anyhow::Result<()> {
        self.launch_kubelet(kind)?;
        let url = format!("http://127.0.0.1:{}/healthz", self.ports.health);
        let mut service = self.kubelet.take().context("kubelet was not launched")?;
        service.wait_ready(Duration::from_secs(60), || {
            super::run("curl", ["-fsS", "-m", "2", &url]).map(drop)
        })?;
        if let Some(control) = &self.control {
            let node = self.options.node.as_str();
            service.wait_ready(Duration::from_secs(60), || {
                let object = control.get(["node", node])?;
                anyhow::ensure!(
                    is_ready(&object),
                    "node status: {}",
                    object["status"]["conditions"]
                );
                Ok(())
            })?;
        }
        self.kubelet = Some(service);
        Ok(())
    }

    /// Start a kubelet without waiting for anything.
    pub fn launch_kubelet(&mut self, kind: KubeletKind) -> anyhow::Result<()> {
        if self.kubelet.is_some() {
            bail!("a kubelet runs already on this node");
        }
        let program = kind.program(&self.parts)?;
        let socket = self.recorder.as_ref().map_or(self.containerd.socket(), Recorder::socket);
        let config = configuration(&self.slot, socket, self.ports, &self.options.config)?;
        let config = self.slot.write("etc/kubelet.json", config.to_string())?;
        let mut command = self.command(program)?;
        command.arg("--config").arg(config);
        command.arg("--root-dir").arg(self.root_dir());
        command.arg("--cert-dir").arg(self.root_dir().join("pki"));
        command.args(["--hostname-override", &self.options.node]);
        command.arg(format!("--v={}", self.options.verbosity));
        if let Some(control) = &self.control {
            command.arg("--kubeconfig").arg(control.kubeconfig(&self.options.node));
        }
        command.args(&self.options.args);
        command.envs(self.options.env.iter().map(|(name, value)| (name, value)));
        // A Go kubelet behaves otherwise under systemd's notification socket.
        command.env_remove("NOTIFY_SOCKET");
        self.kubelet = Some(Service::start(&self.slot, "kubelet", command)?);
        Ok(())
    }

    /// A command that sees the same folder for device plugins as the kubelet.
    pub fn command(&self, program: PathBuf) -> anyhow::Result<Command> {
        if !self.options.own_devices {
            return Ok(Command::new(program));
        }
        let (own, root) = (self.devices_dir(), self.root_dir());
        std::fs::create_dir_all(&own)?;
        std::fs::create_dir_all(DEVICE_PLUGINS)?;
        share(&root)?;
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "unchanged", "sh", "-ec", OWN_DEVICES, "sh"]);
        command.arg(own).arg(DEVICE_PLUGINS).arg(program);
        Ok(command)
    }

    /// What the kubelet sees as the folder for device plugins, when it has one of its own.
    #[must_use]
    pub fn devices_dir(&self) -> PathBuf {
        self.slot.path("device-plugins")
    }

    /// Start a program beside the kubelet, in its view of the folder for device plugins.
    pub fn start_beside(&self, name: &str, command: Command) -> anyhow::Result<Service> {
        Service::start(&self.slot, name, command)
    }

    /// One of the real parts' programs.
    pub fn part(&self, name: &str) -> anyhow::Result<PathBuf> {
        self.parts.bin(name)
    }

    /// Give the kubelet one more argument when it starts next.
    pub fn add_argument(&mut self, argument: &str) {
        self.options.args.push(argument.to_owned());
    }

    /// One more environment variable from the next start of the kubelet on.
    pub fn add_variable(&mut self, name: &str, value: &str) {
        self.options.env.push((name.to_owned(), value.to_owned()));
    }

    /// Lay these fields over the configuration of the kubelet that starts next.
    pub fn configure(&mut self, overlay: &Value) {
        lay_over(&mut self.options.config, overlay);
    }

    /// End the kubelet with SIGTERM; containers stay.
    pub fn stop_kubelet(&mut self) {
        if let Some(mut kubelet) = self.kubelet.take() {
            // It may wait for calls to the runtime; service managers give it 90 s.
            kubelet.stop(Duration::from_secs(60));
        }
    }

    /// End the kubelet with SIGKILL; containers stay.
    pub fn kill_kubelet(&mut self) {
        self.kubelet = None;
    }

    /// The kubelet's process, if one runs.
    pub fn kubelet(&mut self) -> Option<&mut Service> {
        self.kubelet.as_mut()
    }

    /// Kill containerd and start it again; containers stay.
    pub fn restart_runtime(&mut self) -> anyhow::Result<()> {
        self.containerd.kill();
        self.containerd.launch(&self.slot)
    }

    /// Kill containerd; containers stay.
    pub fn stop_runtime(&mut self) {
        self.containerd.kill();
    }

    /// The container runtime.
    #[must_use]
    pub fn runtime(&self) -> &Containerd {
        &self.containerd
    }

    /// The recorder between kubelet and runtime, when asked for.
    #[must_use]
    pub fn recorder(&self) -> Option<&Recorder> {
        self.recorder.as_ref()
    }

    /// Run crictl on the node.
    pub fn crictl<'a>(&self, args: impl IntoIterator<Item = &'a str>) -> anyhow::Result<String> {
        self.containerd.crictl(args)
    }

    /// The containers of the node, running or not, as `crictl ps` has them.
    pub fn containers(&self) -> anyhow::Result<Vec<Value>> {
        let text = self.crictl(["ps", "--all", "--output", "json"])?;
        let mut list: Value = serde_json::from_str(&text).context("crictl ps")?;
        match list["containers"].take() {
            Value::Array(items) => Ok(items),
            _ => Ok(Vec::new()),
        }
    }

    /// The pod sandboxes of the node, as `crictl pods` has them.
    pub fn sandboxes(&self) -> anyhow::Result<Vec<Value>> {
        let text = self.crictl(["pods", "--output", "json"])?;
        let mut list: Value = serde_json::from_str(&text).context("crictl pods")?;
        match list["items"].take() {
            Value::Array(items) => Ok(items),
            _ => Ok(Vec::new()),
        }
    }

    /// Wait for the one running container of this name, and give its id.
    pub fn wait_running(&self, container: &str, within: Duration) -> anyhow::Result<String> {
        let what = format!("container {container} runs");
        eventually_some(within, &what, || {
            let found = self.containers().ok()?.into_iter().find(|c| {
                c["metadata"]["name"] == container && c["state"] == "CONTAINER_RUNNING"
            })?;
            found["id"].as_str().map(str::to_owned)
        })
    }

    /// Put a static pod manifest in place (written beside, then renamed).
    pub fn add_manifest(&self, file: &str, content: &str) -> anyhow::Result<()> {
        let staged = self.slot.write(&format!("etc/{file}"), content)?;
        let manifests = self.slot.path("manifests");
        std::fs::create_dir_all(&manifests)?;
        std::fs::rename(staged, manifests.join(file)).context("cannot place the manifest")
    }

    /// Take a static pod manifest away.
    pub fn remove_manifest(&self, file: &str) -> anyhow::Result<()> {
        std::fs::remove_file(self.slot.path("manifests").join(file)).context("no such manifest")
    }

    /// GET a path of the kubelet's HTTPS API: status code and body.
    pub fn kubelet_get(&self, path: &str) -> anyhow::Result<(u16, String)> {
        let url = format!("https://127.0.0.1:{}{path}", self.ports.api);
        let mut command = Command::new("curl");
        command.args(["-sSk", "-m", "20", "-w", "\n%{http_code}", &url]);
        let text = output_of(command)?;
        let (body, code) = text.rsplit_once('\n').context("curl printed no status code")?;
        Ok((code.parse()?, body.to_owned()))
    }

    /// Port of the kubelet's HTTPS API on loopback.
    #[must_use]
    pub fn api_port(&self) -> u16 {
        self.ports.api
    }

    /// Port of the kubelet's health endpoint on loopback.
    #[must_use]
    pub fn health_port(&self) -> u16 {
        self.ports.health
    }

    /// The control plane it joined.
    pub fn control(&self) -> anyhow::Result<&Arc<ControlPlane>> {
        self.control.as_ref().context("this node is standalone")
    }

    /// The kubelet's root directory.
    #[must_use]
    pub fn root_dir(&self) -> PathBuf {
        self.slot.path("kubelet")
    }

    /// Where the kubelet puts pod logs.
    #[must_use]
    pub fn pod_logs_dir(&self) -> PathBuf {
        self.slot.path("pod-logs")
    }

    /// The node's slot: its folder, subnet, cgroup.
    #[must_use]
    pub fn slot(&self) -> &Slot {
        &self.slot
    }
}

/// The path of every kubelet on a machine, whatever its root directory is.
const DEVICE_PLUGINS: &str = "/var/lib/kubelet/device-plugins";

/// Binds `$1` over `$2` where nobody else sees it, and becomes the rest.
const OWN_DEVICES: &str = r#"
mount --make-private "$(findmnt --noheadings --output TARGET --target "$2")"
mount --bind "$1" "$2"
shift 2
exec "$@"
"#;

/// Mounts below the kubelet's folder reach the runtime, which is in another mount namespace.
fn share(root: &std::path::Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(root)?;
    if super::run("mountpoint", ["-q".as_ref(), root.as_os_str()]).is_err() {
        let (bind, root) = (std::ffi::OsStr::new("--bind"), root.as_os_str());
        super::run("mount", [bind, root, root])?;
        super::run("mount", [std::ffi::OsStr::new("--make-shared"), root])?;
    }
    Ok(())
}

pub(super) fn is_ready(node: &Value) -> bool {
    let conditions = node["status"]["conditions"].as_array();
    conditions
        .is_some_and(|list| list.iter().any(|c| c["type"] == "Ready" && c["status"] == "True"))
}
