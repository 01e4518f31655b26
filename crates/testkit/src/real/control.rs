//! A private control plane: etcd and kube-apiserver, and on request the controller manager and the
//! scheduler. Tokens, keys and certificates are made for it alone.

use std::path::PathBuf;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Context;
use serde_json::{Value, json};

use super::process::output_of;
use super::{Parts, Service, Slot, run};

/// Token of the administrator.
const ADMIN_TOKEN: &str = "admin-token";
/// Token of a machine that is no node yet.
const BOOTSTRAP_TOKEN: &str = "bootstrap-token";

/// What the control plane consists of and how it admits.
#[derive(Debug, Clone)]
pub struct ControlPlaneOptions {
    /// Names of the nodes that get a token.
    pub nodes: Vec<String>,
    /// Admission plugins switched off. Without a controller manager nobody makes the default
    /// service accounts, and without runtime classes and taints a bare pod needs no more objects.
    pub disabled_admission: Vec<String>,
    /// `--authorization-mode`.
    pub authorization: String,
    /// Run the controller manager too.
    pub controller_manager: bool,
    /// Run the scheduler too.
    pub scheduler: bool,
    /// Life of certificates that the controller manager signs, e.g. `30s`; its default if empty.
    pub signing_duration: String,
    /// More arguments of the controller manager.
    pub controller_manager_args: Vec<String>,
    /// Hand API groups on to other servers.
    pub aggregator: bool,
    /// Names of users without any rights that get a token.
    pub users: Vec<String>,
    /// More arguments of the API server.
    pub api_server_args: Vec<String>,
}

impl Default for ControlPlaneOptions {
    fn default() -> Self {
        let disabled = ["ServiceAccount", "RuntimeClass", "TaintNodesByCondition"];
        ControlPlaneOptions {
            nodes: vec!["node1".to_owned()],
            disabled_admission: disabled.map(str::to_owned).to_vec(),
            authorization: "Node,RBAC".to_owned(),
            controller_manager: false,
            aggregator: false,
            scheduler: false,
            signing_duration: String::new(),
            controller_manager_args: Vec::new(),
            users: Vec::new(),
            api_server_args: Vec::new(),
        }
    }
}

/// A running control plane. Nodes keep it alive through an `Arc`.
#[derive(Debug)]
pub struct ControlPlane {
    // Services before the slot: they end before its folder goes.
    _services: Vec<Service>,
    api: Mutex<Option<Service>>,
    options: ControlPlaneOptions,
    parts: Parts,
    port: u16,
    etcd_port: u16,
    slot: Slot,
}

impl ControlPlane {
    /// Start it and wait until it is ready.
    pub fn start(options: &ControlPlaneOptions) -> anyhow::Result<ControlPlane> {
        let slot = Slot::take()?;
        let parts = Parts::find()?;
        make_keys(&slot)?;
        slot.write("etc/tokens.csv", tokens(&options.nodes, &options.users))?;
        sign_client(&slot, "kubelet-client", "/O=system:masters/CN=kube-apiserver-kubelet-client")?;
        let port = slot.free_port()?;
        let etcd_port = slot.free_port()?;
        let peer_port = slot.free_port()?;
        slot.release_ports();
        let etcd = start_etcd(&slot, &parts, etcd_port, peer_port)?;
        let mut control = ControlPlane {
            _services: vec![etcd],
            api: Mutex::default(),
            options: options.clone(),
            parts,
            port,
            etcd_port,
            slot,
        };
        control.write_kubeconfig("admin", ADMIN_TOKEN)?;
        control.write_kubeconfig("bootstrap", BOOTSTRAP_TOKEN)?;
        for name in options.nodes.iter().chain(&options.users) {
            control.write_kubeconfig(name, &token_of(name))?;
        }
        control.start_api_server()?;
        if options.controller_manager {
            let service = control.start_controller_manager(options)?;
            control._services.push(service);
        }
        if options.scheduler {
            let service = control.start_scheduler()?;
            control._services.push(service);
        }
        Ok(control)
    }

    /// Start the API server, again after [`ControlPlane::stop_api_server`], and wait until it is
    /// ready.
    pub fn start_api_server(&self) -> anyhow::Result<()> {
        let ports = (self.port, self.etcd_port);
        let name = "kube-apiserver";
        let mut api = start_api_server(&self.slot, &self.parts, &self.options, (name, ports))?;
        api.wait_ready(Duration::from_secs(90), || {
            self.kubectl(["get", "--raw", "/readyz"]).map(drop)
        })?;
        *self.api_server() = Some(api);
        Ok(())
    }

    /// Start another API server that finds etcd at this port, and wait until it is ready; it ends
    /// when dropped. Whoever has a token here has it there.
    pub fn another_api_server(&self, etcd_port: u16) -> anyhow::Result<(Service, u16)> {
        let port = self.slot.free_port()?;
        self.slot.release_ports();
        let (name, ports) = ("kube-apiserver-2", (port, etcd_port));
        let mut api = start_api_server(&self.slot, &self.parts, &self.options, (name, ports))?;
        let server = format!("--server=https://127.0.0.1:{port}");
        api.wait_ready(Duration::from_secs(90), || {
            self.kubectl([&server, "get", "--raw", "/readyz"]).map(drop)
        })?;
        Ok((api, port))
    }

    /// The port of etcd on loopback.
    #[must_use]
    pub fn etcd_port(&self) -> u16 {
        self.etcd_port
    }

    /// Kill the API server: connections break and nobody listens.
    pub fn stop_api_server(&self) {
        *self.api_server() = None;
    }

    fn api_server(&self) -> MutexGuard<'_, Option<Service>> {
        self.api.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Run kubectl as the administrator.
    pub fn kubectl<'a>(&self, args: impl IntoIterator<Item = &'a str>) -> anyhow::Result<String> {
        output_of(self.kubectl_command(args)?)
    }

    /// A kubectl command as the administrator, to be run by the caller (a watch, for example).
    pub fn kubectl_command<'a>(
        &self,
        args: impl IntoIterator<Item = &'a str>,
    ) -> anyhow::Result<Command> {
        let mut command = Command::new(self.parts.bin("kubectl")?);
        command.env("HOME", self.slot.dir());
        command.arg("--kubeconfig").arg(self.kubeconfig("admin")).args(args);
        Ok(command)
    }

    /// An object (or a list) as JSON.
    pub fn get<'a>(&self, args: impl IntoIterator<Item = &'a str>) -> anyhow::Result<Value> {
        let args = ["get", "-o", "json"].into_iter().chain(args);
        let text = self.kubectl(args)?;
        serde_json::from_str(&text).context("kubectl get -o json")
    }

    /// Create an object.
    pub fn create(&self, object: &Value) -> anyhow::Result<()> {
        let name = object["metadata"]["name"].as_str().unwrap_or("object");
        let place = object["metadata"]["namespace"].as_str().unwrap_or("default");
        let kind = object["kind"].as_str().unwrap_or("object");
        let file = format!("objects/{place}-{kind}-{name}.json");
        let file = self.slot.write(&file, object.to_string())?;
        self.kubectl(["create", "-f", &file.to_string_lossy()]).map(drop)
    }

    /// Path of the kubeconfig of `admin`, `bootstrap` or a node.
    #[must_use]
    pub fn kubeconfig(&self, user: &str) -> PathBuf {
        self.slot.path(&format!("etc/{user}.kubeconfig"))
    }

    /// The certificate of the authority that signs client certificates.
    #[must_use]
    pub fn authority(&self) -> PathBuf {
        self.slot.path("etc/serving.crt")
    }

    /// The bearer token of the administrator.
    #[must_use]
    pub fn admin_token(&self) -> &'static str {
        ADMIN_TOKEN
    }

    /// The bearer token of a node or user.
    #[must_use]
    pub fn token(&self, name: &str) -> String {
        token_of(name)
    }

    /// A client certificate with this subject (`/O=group/CN=name`) and its key, as PEM files.
    pub fn client_certificate(
        &self,
        file: &str,
        subject: &str,
    ) -> anyhow::Result<(PathBuf, PathBuf)> {
        sign_client(&self.slot, file, subject)
    }

    /// A client certificate as no cluster would give out: with these extensions (none makes it one of
    /// version 1), good from and until these times (`YYYYMMDDhhmmssZ`).
    pub fn odd_certificate(
        &self,
        file: &str,
        subject: &str,
        extensions: &str,
        (from, until): (&str, &str),
    ) -> anyhow::Result<(PathBuf, PathBuf)> {
        let path = |name: &str| self.slot.path(name).to_string_lossy().into_owned();
        let (crt, key) = (path(&format!("etc/{file}.crt")), path(&format!("etc/{file}.key")));
        let (request, list) = (path(&format!("etc/{file}.csr")), path(&format!("etc/{file}.list")));
        std::fs::write(&list, "")?;
        let settings = format!(
            "[ca]\ndefault_ca=d\n[d]\ndatabase={list}\nnew_certs_dir={}\nrand_serial=yes\n\
             default_md=sha256\nunique_subject=no\npolicy=p\n[p]\ncommonName=optional\n",
            path("etc")
        );
        let settings = self.slot.write(&format!("etc/{file}.cnf"), settings)?;
        run("openssl", ["ecparam", "-genkey", "-noout", "-name", "prime256v1", "-out", &key])?;
        run("openssl", ["req", "-new", "-key", &key, "-subj", subject, "-out", &request])?;
        let mut sign = Command::new("openssl");
        sign.args(["ca", "-batch", "-notext", "-preserveDN", "-in", &request, "-out", &crt]);
        sign.args(["-startdate", from, "-enddate", until]).arg("-config").arg(settings);
        sign.args(["-cert", &path("etc/serving.crt"), "-keyfile", &path("etc/serving.key")]);
        if !extensions.is_empty() {
            let usage = self.slot.write(&format!("etc/{file}.ext"), extensions)?;
            sign.arg("-extfile").arg(usage);
        }
        output_of(sign)?;
        Ok((crt.into(), key.into()))
    }

    /// What a kubelet's configuration needs so that this API server, and nobody without its
    /// consent, may use the node's API.
    #[must_use]
    pub fn guarded(&self) -> Value {
        json!({
            "address": "0.0.0.0",
            "authentication": {
                "anonymous": {"enabled": false},
                "webhook": {"enabled": true},
                "x509": {"clientCAFile": self.authority()},
            },
            "authorization": {"mode": "Webhook"},
        })
    }

    /// A folder for whoever works beside the control plane; it goes with it.
    pub fn folder(&self, name: &str) -> anyhow::Result<PathBuf> {
        let marker = self.slot.write(&format!("{name}/.made"), "")?;
        marker.parent().map(PathBuf::from).context("a file without a folder")
    }

    /// The API server's port on loopback.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    fn write_kubeconfig(&self, user: &str, token: &str) -> anyhow::Result<()> {
        let config = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "clusters": [{ "name": "test", "cluster": {
                "server": format!("https://127.0.0.1:{}", self.port),
                "certificate-authority": self.slot.path("etc/serving.crt"),
            }}],
            "users": [{ "name": user, "user": { "token": token } }],
            "contexts": [{ "name": "test", "context": { "cluster": "test", "user": user } }],
        });
        self.slot.write(&format!("etc/{user}.kubeconfig"), config.to_string()).map(drop)
    }

    fn start_controller_manager(&self, options: &ControlPlaneOptions) -> anyhow::Result<Service> {
        let file = |name: &str| self.slot.path(name).display().to_string();
        let mut command = Command::new(self.parts.bin("kube-controller-manager")?);
        command
            .arg("--kubeconfig")
            .arg(self.kubeconfig("admin"))
            .args(["--leader-elect=false", "--secure-port=0", "--use-service-account-credentials"])
            .arg(format!(
                "--service-account-private-key-file={}",
                self.slot.path("etc/sa.key").display()
            ))
            .arg(format!("--root-ca-file={}", file("etc/serving.crt")))
            .arg(format!("--cluster-signing-cert-file={}", file("etc/serving.crt")))
            .arg(format!("--cluster-signing-key-file={}", file("etc/serving.key")));
        if !options.signing_duration.is_empty() {
            command.arg(format!("--cluster-signing-duration={}", options.signing_duration));
        }
        command.args(&options.controller_manager_args);
        Service::start(&self.slot, "kube-controller-manager", command)
    }

    fn start_scheduler(&self) -> anyhow::Result<Service> {
        let mut command = Command::new(self.parts.bin("kube-scheduler")?);
        command.arg("--kubeconfig").arg(self.kubeconfig("admin"));
        command.args(["--leader-elect=false", "--secure-port=0"]);
        Service::start(&self.slot, "kube-scheduler", command)
    }
}

fn token_of(name: &str) -> String {
    format!("token-of-{name}")
}

fn tokens(nodes: &[String], users: &[String]) -> String {
    let mut lines = format!("{ADMIN_TOKEN},admin,admin,\"system:masters\"\n");
    lines.push_str(&format!("{BOOTSTRAP_TOKEN},bootstrap,bootstrap,\"system:bootstrappers\"\n"));
    for node in nodes {
        let token = token_of(node);
        lines.push_str(&format!("{token},system:node:{node},{node},\"system:nodes\"\n"));
    }
    for user in users {
        lines.push_str(&format!("{},{user},{user}\n", token_of(user)));
    }
    lines
}

/// The serving certificate (its own authority) and the key that signs service account tokens.
fn make_keys(slot: &Slot) -> anyhow::Result<()> {
    let path = |name: &str| slot.path(name).to_string_lossy().into_owned();
    let curve = "prime256v1";
    run("openssl", ["ecparam", "-genkey", "-noout", "-name", curve, "-out", &path("etc/sa.key")])?;
    run("openssl", ["ecparam", "-name", curve, "-out", &path("etc/curve.pem")])?;
    let names = "subjectAltName=IP:127.0.0.1,IP:10.0.0.1,IP:10.0.2.2,DNS:localhost,DNS:kubernetes.default.svc";
    let mut request = Command::new("openssl");
    request.args(["req", "-x509", "-nodes", "-days", "30", "-subj", "/CN=kube-apiserver"]);
    request.arg("-newkey").arg(format!("ec:{}", path("etc/curve.pem")));
    request.args(["-addext", names]);
    request.args(["-keyout", &path("etc/serving.key"), "-out", &path("etc/serving.crt")]);
    output_of(request).map(drop)
}

/// Sign a client certificate with the serving certificate's key.
fn sign_client(slot: &Slot, file: &str, subject: &str) -> anyhow::Result<(PathBuf, PathBuf)> {
    let path = |name: &str| slot.path(name).to_string_lossy().into_owned();
    let (key, crt) = (format!("etc/{file}.key"), format!("etc/{file}.crt"));
    let request = format!("etc/{file}.csr");
    let usage = slot.write("etc/client.ext", "extendedKeyUsage=clientAuth\n")?;
    run("openssl", ["ecparam", "-genkey", "-noout", "-name", "prime256v1", "-out", &path(&key)])?;
    run(
        "openssl",
        ["req", "-new", "-key", &path(&key), "-subj", subject, "-out", &path(&request)],
    )?;
    let mut sign = Command::new("openssl");
    sign.args(["x509", "-req", "-days", "30", "-in", &path(&request), "-out", &path(&crt)]);
    sign.args(["-CA", &path("etc/serving.crt"), "-CAkey", &path("etc/serving.key")]);
    sign.arg("-CAcreateserial").arg("-extfile").arg(usage);
    output_of(sign)?;
    Ok((slot.path(&crt), slot.path(&key)))
}

fn start_etcd(slot: &Slot, parts: &Parts, port: u16, peer: u16) -> anyhow::Result<Service> {
    let mut command = Command::new(parts.bin("etcd")?);
    let client = format!("http://127.0.0.1:{port}");
    let peer = format!("http://127.0.0.1:{peer}");
    command
        .args(["--name=test", "--unsafe-no-fsync", "--log-level=warn"])
        .arg(format!("--data-dir={}", slot.path("etcd").display()))
        .arg(format!("--listen-client-urls={client}"))
        .arg(format!("--advertise-client-urls={client}"))
        .arg(format!("--listen-peer-urls={peer}"))
        .arg(format!("--initial-advertise-peer-urls={peer}"))
        .arg(format!("--initial-cluster=test={peer}"));
    Service::start(slot, "etcd", command)
}

fn start_api_server(
    slot: &Slot,
    parts: &Parts,
    options: &ControlPlaneOptions,
    (name, (port, etcd_port)): (&str, (u16, u16)),
) -> anyhow::Result<Service> {
    let file = |name: &str| slot.path(name).display().to_string();
    let mut command = Command::new(parts.bin("kube-apiserver")?);
    command
        .arg(format!("--etcd-servers=http://127.0.0.1:{etcd_port}"))
        .arg(format!("--secure-port={port}"))
        .arg("--bind-address=127.0.0.1")
        .arg(format!("--cert-dir={}", file("apiserver")))
        .arg(format!("--tls-cert-file={}", file("etc/serving.crt")))
        .arg(format!("--tls-private-key-file={}", file("etc/serving.key")))
        .arg(format!("--client-ca-file={}", file("etc/serving.crt")))
        .arg(format!("--token-auth-file={}", file("etc/tokens.csv")))
        .arg("--service-account-issuer=https://kubernetes.default.svc")
        .arg(format!("--service-account-key-file={}", file("etc/sa.key")))
        .arg(format!("--service-account-signing-key-file={}", file("etc/sa.key")))
        .arg("--service-cluster-ip-range=10.0.0.0/24")
        .arg("--allow-privileged=true")
        .arg("--kubelet-preferred-address-types=InternalIP")
        .arg(format!("--kubelet-client-certificate={}", file("etc/kubelet-client.crt")))
        .arg(format!("--kubelet-client-key={}", file("etc/kubelet-client.key")))
        .arg(format!("--authorization-mode={}", options.authorization));
    if options.aggregator {
        command
            .arg(format!("--requestheader-client-ca-file={}", file("etc/serving.crt")))
            // One authority signs for everybody: only this name may speak for others.
            .arg("--requestheader-allowed-names=kube-apiserver-kubelet-client")
            .arg("--requestheader-username-headers=X-Remote-User")
            .arg("--requestheader-group-headers=X-Remote-Group")
            .arg("--requestheader-extra-headers-prefix=X-Remote-Extra-")
            .arg(format!("--proxy-client-cert-file={}", file("etc/kubelet-client.crt")))
            .arg(format!("--proxy-client-key-file={}", file("etc/kubelet-client.key")));
    }
    if !options.disabled_admission.is_empty() {
        let list = options.disabled_admission.join(",");
        command.arg(format!("--disable-admission-plugins={list}"));
    }
    command.args(&options.api_server_args);
    Service::start(slot, name, command)
}
