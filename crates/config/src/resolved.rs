//! The one resolved configuration: typed values, ready to use.
//!
//! Owns: [`Config`] and its sections. Gates and text forms end here: an executor finds a
//! `Duration`, a `Quantity`, an enum, never a string to parse.
//!
//! Promises: built only from a validated configuration; what validation leaves to start-up
//! (reserved maps, addresses, log sizes) is checked here, with upstream's texts.

mod faults;
mod parse;
mod sections;
mod tls;

pub use sections::{
    ApiClient, Authorization, CgroupDriver, ChangeDetection, ContainerGc, ContainerLogs,
    CpuManagerPolicy, CredentialProviders, Dirs, Dns, Enforcement, Eviction, ImageGc, ImagePulls,
    LockFile, LogFormat, Logging, MemoryManagerPolicy, Node, PodLimits, Reservations, Resources,
    Runtime, SecretsVerification, Server, Shutdown, Sources, SwapBehavior, TopologyPolicy,
    TopologyScope, Tracing, Webhook,
};
pub use tls::TlsVersion;

pub(crate) use faults::{bundle_fault, caller_fault, is_certificate};

use crate::environment::OptIns;
use crate::flags::{KubeletFlags, VersionRequest};
use crate::gates::Gates;
use crate::kubelet::KubeletConfiguration;
use crate::log::LogLine;
use crate::origin::Origin;
use crate::{CertificateFiles, ConfigFiles};
use std::collections::BTreeMap;
use units::release::REPORTED_VERSION;

/// Everything the agent is told.
/// Many fields: a section for each subsystem.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// The configuration document in force, defaults included.
    pub kubelet: KubeletConfiguration,
    /// Settings that only flags have.
    pub flags: KubeletFlags,
    /// Feature gates.
    pub gates: Gates,
    /// Where each value of the document comes from, by dotted path.
    pub origins: BTreeMap<String, Origin>,
    /// Every flag with its value as the command line alone has it, for `/flagz`; what may be
    /// secret is masked.
    pub flag_values: BTreeMap<&'static str, String>,
    /// The version to report.
    pub version: String,
    /// Places on disk.
    pub dirs: Dirs,
    /// Log output.
    pub logging: Logging,
    /// Health endpoint and HTTPS API.
    pub server: Server,
    /// Connection to the API server; `None` without `--kubeconfig`: only static pods run.
    pub api: Option<ApiClient>,
    /// Connection to the container runtime.
    pub runtime: Runtime,
    /// This node.
    pub node: Node,
    /// Static pods.
    pub sources: Sources,
    /// What pods may use.
    pub pods: PodLimits,
    /// Names and addresses given to pods.
    pub dns: Dns,
    /// Reservations, cgroups, CPU and memory placement.
    pub resources: Resources,
    /// Eviction under pressure.
    pub eviction: Eviction,
    /// Pulling images.
    pub image_pulls: ImagePulls,
    /// Collecting images.
    pub image_gc: ImageGc,
    /// Collecting dead containers.
    pub container_gc: ContainerGc,
    /// Container log files.
    pub container_logs: ContainerLogs,
    /// Graceful node shutdown.
    pub shutdown: Shutdown,
    /// Traces.
    pub tracing: Option<Tracing>,
    /// What the Go kubelet does not have and operators asked for.
    pub opt_ins: OptIns,
    /// What is found to be wrong only in the course of the start.
    pub faults: StartFaults,
}

/// Faults that upstream comes upon one after the other while it starts.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StartFaults {
    /// In the lock file, the host's name, the way to the API server, or who may call; before the
    /// runtime is asked.
    pub callers: Option<String>,
    /// In the resources that are kept from pods.
    pub reserved: Option<String>,
    /// In the shares that are kept for better pods, after the hard eviction thresholds.
    pub qos: Option<String>,
    /// In what the agent is built of, after the placement of exclusive resources.
    pub construction: Option<String>,
    /// In what it is built of later, after all eviction thresholds.
    pub parts: Option<String>,
    /// In the rotation of logs, after what is remembered of admitted pods.
    pub logs: Option<String>,
    /// In the collection of containers, after the plugins that know registries.
    pub collection: Option<String>,
    /// In the address to listen on, which is found last.
    pub address: Option<String>,
}

impl StartFaults {
    /// The one that comes first.
    pub fn first(&self) -> Option<&String> {
        let all = [
            &self.callers,
            &self.reserved,
            &self.qos,
            &self.construction,
            &self.parts,
            &self.logs,
            &self.collection,
            &self.address,
        ];
        all.into_iter().find_map(Option::as_ref)
    }
}

impl Config {
    /// Types a validated configuration; what is to be logged about it goes to `lines`.
    pub(crate) fn resolve(
        mut kubelet: KubeletConfiguration,
        flags: KubeletFlags,
        gates: Gates,
        origins: BTreeMap<String, Origin>,
        files: &dyn ConfigFiles,
        lines: &mut Vec<LogLine>,
    ) -> Result<Self, String> {
        let unbuilt = |fault| format!("failed to construct kubelet dependencies: {fault}");
        let self_signed = parse::name_certificate(&mut kubelet, &flags);
        let k = &kubelet;
        if self_signed {
            let pair =
                CertificateFiles { certificate: &k.tls_cert_file, key: &k.tls_private_key_file };
            files.serving_certificate(&pair, &flags.hostname_override).map_err(unbuilt)?;
        }
        let version = match &flags.version {
            VersionRequest::Report(version) => version.clone(),
            _ => REPORTED_VERSION.to_owned(),
        };
        let tls_min_version = tls::check(k, lines).map_err(unbuilt)?;
        let (reservations, reserved) = parse::reservations(k);
        let qos = parse::qos_percent(&k.qos_reserved);
        let resources = parse::resources(k, &flags, &gates, reservations);
        let certificate = parse::Certificate { self_signed, tls_min_version };
        let (container_logs, log_fault) = parse::container_logs(k);
        let (server, address) = parse::server(k, certificate);
        let construction =
            faults::node_ip_fault(&flags).or_else(|| faults::construction_fault(k, &flags));
        let found = StartFaults {
            callers: None,
            reserved,
            qos: qos.err(),
            construction,
            parts: faults::parts_fault(k, &flags),
            logs: log_fault,
            collection: faults::collection_fault(&flags),
            address,
        };
        Ok(Self {
            version,
            dirs: parse::dirs(k, &flags),
            logging: Logging::of(k),
            server,
            api: parse::api(k, &flags),
            runtime: parse::runtime(k, &flags),
            node: parse::node(k, &flags),
            sources: parse::sources(k),
            pods: parse::pods(k, &gates),
            dns: parse::dns(k),
            resources,
            eviction: parse::eviction(k),
            image_pulls: parse::image_pulls(k, &flags),
            image_gc: parse::image_gc(k),
            container_gc: parse::container_gc(&flags),
            container_logs,
            shutdown: parse::shutdown(k),
            tracing: k.tracing.as_ref().map(parse::tracing),
            opt_ins: OptIns::default(),
            faults: found,
            kubelet,
            flags,
            gates,
            origins,
            flag_values: BTreeMap::new(),
        })
    }

    /// The text served at `/configz`: the configuration under its key, its fields in Go's order, with
    /// the driver that the runtime named and what has become of reservations.
    pub fn configz(&self, cgroup_driver: &str) -> String {
        let mut kubelet = self.kubelet.typed();
        cgroup_driver.clone_into(&mut kubelet.cgroup_driver);
        parse::show_reserved_cpus(&self.resources.reservations.cpus, &mut kubelet);
        let document = BTreeMap::from([("kubeletconfig", kubelet)]);
        units::gojson::to_string(&document).unwrap_or_default()
    }

    /// Every flag with its value at `/flagz`. Without a configuration file flags are bound to what is in
    /// force, and show what has become of reservations.
    pub fn flagz(&self) -> BTreeMap<&'static str, String> {
        let mut values = self.flag_values.clone();
        let cpus = &self.resources.reservations.cpus;
        if self.flags.config.is_empty() && !cpus.is_empty() {
            let mut kubelet = self.kubelet.clone();
            parse::show_reserved_cpus(cpus, &mut kubelet);
            for (name, map) in [
                ("kube-reserved", &kubelet.kube_reserved),
                ("system-reserved", &kubelet.system_reserved),
            ] {
                let pairs: Vec<String> = map.iter().map(|(k, v)| format!("{k}={v}")).collect();
                values.insert(name, pairs.join(","));
            }
        }
        values
    }

    /// Whether there is no API server: only static pods run.
    pub fn standalone(&self) -> bool {
        self.api.is_none()
    }
}
