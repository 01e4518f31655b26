//! Collects the facts for the node's status.

use crate::inputs::NodeInputs;
use crate::runtime::{RuntimeHealth, RuntimeProbe};
use engine::node::{
    AddressFacts, HugePageFacts, ImageFacts, MachineFacts, NodeFacts, NodeSettings, Pressures,
};
use ports::{PressureCondition, Roots};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;
use units::strconv::parse_ip;

/// The image list is refreshed after this time.
const IMAGES_PERIOD: Duration = Duration::from_secs(30);
const CALL_DEADLINE: Duration = Duration::from_secs(30);
const LOOKUP_DEADLINE: Duration = Duration::from_secs(2);
/// A host name is looked up again after this time.
const LOOKUP_PERIOD: Duration = Duration::from_secs(60);

/// Settings of a [`Collector`].
#[derive(Debug, Clone)]
pub(crate) struct CollectorConfig {
    /// The fixed settings.
    pub(crate) settings: NodeSettings,
    /// The directories on disk.
    pub(crate) roots: Roots,
}

/// Collects facts on demand; caches those that do not change.
#[derive(Debug)]
pub(crate) struct Collector {
    config: CollectorConfig,
    runtime: Arc<dyn RuntimeProbe>,
    health: watch::Receiver<RuntimeHealth>,
    inputs: NodeInputs,
    static_facts: Option<StaticFacts>,
    images: Option<(Instant, Vec<ImageFacts>)>,
    looked_up: Option<(Instant, Vec<IpAddr>)>,
}

/// Facts that are read once.
#[derive(Debug, Clone)]
struct StaticFacts {
    machine: Option<MachineFacts>,
    kernel_version: String,
    os_image: String,
    ephemeral_storage_bytes: Option<u64>,
}

impl Collector {
    /// With a runtime, its health and the inputs of other subsystems.
    pub(crate) fn new(
        config: CollectorConfig,
        runtime: Arc<dyn RuntimeProbe>,
        health: watch::Receiver<RuntimeHealth>,
        inputs: NodeInputs,
    ) -> Self {
        Self { config, runtime, health, inputs, static_facts: None, images: None, looked_up: None }
    }

    /// The settings.
    pub(crate) fn settings(&self) -> &NodeSettings {
        &self.config.settings
    }

    pub(crate) fn runtime(&self) -> &Arc<dyn RuntimeProbe> {
        &self.runtime
    }

    /// Waits until the runtime was queried once, with a time limit: without its response a ready
    /// node would be reported as not ready after every restart.
    pub(crate) async fn runtime_asked(&mut self) {
        let asked = self.health.wait_for(|health| health.asked);
        if tokio::time::timeout(CALL_DEADLINE, asked).await.is_err() {
            tracing::warn!("Container runtime has not responded yet");
        }
    }

    /// Waits until an input has changed. Cancel-safe.
    pub(crate) async fn changed(&mut self) {
        tokio::select! {
            // Cancel-safe: a change stays marked until it is seen.
            () = crate::inputs::next(&mut self.health) => {}
            // Cancel-safe: as above.
            () = self.inputs.changed() => {}
        }
    }

    /// The facts that need no request: enough to admit pods until the node is registered. Reads a
    /// few files; for the start only.
    pub(crate) fn first_facts(&mut self) -> NodeFacts {
        let static_facts = read_static_facts(&self.config.roots);
        let prefer_v4 = self.config.settings.node_ips.first().is_none_or(IpAddr::is_ipv4);
        let network = read_network(&self.config.roots.proc, prefer_v4);
        let (local, default_route) = network.unwrap_or_else(|err| {
            tracing::error!(err = %err, "network interfaces could not be read");
            (Vec::new(), None)
        });
        if static_facts.machine.is_some() && static_facts.ephemeral_storage_bytes.is_some() {
            self.static_facts = Some(static_facts.clone());
        }
        NodeFacts {
            machine: static_facts.machine,
            kernel_version: static_facts.kernel_version,
            os_image: static_facts.os_image,
            ephemeral_storage_bytes: static_facts.ephemeral_storage_bytes,
            addresses: AddressFacts { local, looked_up: Vec::new(), default_route },
            runtime: self.health.borrow().facts(None, Instant::now()),
            ..NodeFacts::default()
        }
    }

    /// The current facts.
    pub(crate) async fn facts(&mut self) -> NodeFacts {
        let static_facts = self.static_facts().await;
        let addresses = self.addresses().await;
        let images = self.images().await;
        let pressure = self.inputs.pressure.borrow_and_update().clone();
        let under = |kind| pressure.contains(&kind);
        let fault = self.inputs.runtime_fault.borrow_and_update().clone();
        let volumes = self.inputs.volumes.borrow_and_update().clone();
        let shutting_down = *self.inputs.shutting_down.borrow_and_update();
        NodeFacts {
            machine: static_facts.machine,
            kernel_version: static_facts.kernel_version,
            os_image: static_facts.os_image,
            addresses,
            ephemeral_storage_bytes: static_facts.ephemeral_storage_bytes,
            devices: self.inputs.devices.borrow_and_update().clone(),
            runtime: self.health.borrow_and_update().facts(fault.as_deref(), Instant::now()),
            images,
            pressure: Pressures {
                memory: under(PressureCondition::Memory),
                disk: under(PressureCondition::Disk),
                pid: under(PressureCondition::Pid),
            },
            storage_error: volumes.not_ready,
            shutdown_error: shutting_down.then(|| "node is shutting down".to_owned()),
            soft_warning: self.inputs.soft_warning.borrow_and_update().clone(),
            volumes_in_use: volumes.in_use,
            slow_calls: self.inputs.slow_calls.borrow_and_update().clone(),
        }
    }

    async fn static_facts(&mut self) -> StaticFacts {
        if let Some(static_facts) = &self.static_facts {
            return static_facts.clone();
        }
        let roots = self.config.roots.clone();
        let read = sys::blocking::run(move || read_static_facts(&roots)).await;
        let static_facts = match read {
            Ok(static_facts) => static_facts,
            Err(err) => {
                tracing::error!(err = %err, "machine could not be read");
                return StaticFacts {
                    machine: None,
                    kernel_version: "Unknown".into(),
                    os_image: "Unknown".into(),
                    ephemeral_storage_bytes: None,
                };
            }
        };
        if static_facts.machine.is_some() && static_facts.ephemeral_storage_bytes.is_some() {
            self.static_facts = Some(static_facts.clone());
        }
        static_facts
    }

    async fn images(&mut self) -> Vec<ImageFacts> {
        let known = self.images.as_ref().filter(|(at, _)| at.elapsed() < IMAGES_PERIOD);
        if let Some((_, images)) = known {
            return images.clone();
        }
        if self.health.borrow().answers {
            match tokio::time::timeout(CALL_DEADLINE, self.runtime.images()).await {
                Ok(Ok(images)) => {
                    let images = images.into_iter().map(image_facts).collect();
                    self.images = Some((Instant::now(), images));
                }
                Ok(Err(err)) => tracing::info!(err, "Failed to update image list"),
                Err(_) => {
                    tracing::info!(err = "no answer in time", "Failed to update image list");
                }
            }
        }
        // The list failed: the last one is used.
        self.images.clone().map(|(_, images)| images).unwrap_or_default()
    }

    async fn addresses(&mut self) -> AddressFacts {
        let settings = &self.config.settings;
        let has_node_ip = settings.node_ips.first().is_some_and(|ip| !ip.is_unspecified());
        let needs_lookup = !has_node_ip && parse_ip(&settings.hostname).is_none();
        let prefer_v4 = settings.node_ips.first().is_none_or(IpAddr::is_ipv4);
        let looked_up = if needs_lookup { self.look_up().await } else { Vec::new() };
        let proc = self.config.roots.proc.clone();
        let network = sys::blocking::run(move || read_network(&proc, prefer_v4)).await;
        let (local, default_route) = match network {
            Ok(Ok(found)) => found,
            Ok(Err(err)) => {
                tracing::error!(err = %err, "network interfaces could not be read");
                (Vec::new(), None)
            }
            Err(err) => {
                tracing::error!(err = %err, "network interfaces could not be read");
                (Vec::new(), None)
            }
        };
        AddressFacts { local, looked_up, default_route }
    }

    async fn look_up(&mut self) -> Vec<IpAddr> {
        if let Some((at, known)) = &self.looked_up
            && at.elapsed() < LOOKUP_PERIOD
        {
            return known.clone();
        }
        let name = (self.config.settings.node_name.clone(), 0_u16);
        let answer = tokio::time::timeout(LOOKUP_DEADLINE, tokio::net::lookup_host(name)).await;
        let mut found: Vec<IpAddr> = Vec::new();
        if let Ok(Ok(addresses)) = answer {
            for address in addresses {
                if !found.contains(&address.ip()) {
                    found.push(address.ip());
                }
            }
        }
        self.looked_up = Some((Instant::now(), found.clone()));
        found
    }
}

fn read_static_facts(roots: &Roots) -> StaticFacts {
    let machine = match sys::host::machine(&roots.proc, &roots.sys, &roots.etc) {
        Ok(machine) => Some(machine_facts(machine)),
        Err(err) => {
            tracing::error!(err = %err, "Error getting machine info");
            None
        }
    };
    let storage = sys::host::filesystem_bytes(&roots.kubelet);
    if let Err(err) = &storage {
        tracing::error!(err = %err, "size of the root directory's filesystem is unknown");
    }
    StaticFacts {
        machine,
        kernel_version: sys::host::uname_release(),
        os_image: sys::host::os_image(&roots.etc),
        ephemeral_storage_bytes: storage.ok(),
    }
}

fn machine_facts(machine: sys::host::Machine) -> MachineFacts {
    let pages = |p: &sys::host::HugePages| HugePageFacts {
        page_bytes: p.page_kib.saturating_mul(1024),
        count: p.count,
    };
    MachineFacts {
        cores: machine.cores,
        memory_bytes: machine.memory_bytes,
        swap_bytes: machine.swap_bytes,
        huge_pages: machine.huge_pages.iter().map(pages).collect(),
        machine_id: machine.machine_id,
        system_uuid: machine.system_uuid,
        boot_id: machine.boot_id,
    }
}

fn image_facts(image: cri::api::Image) -> ImageFacts {
    ImageFacts {
        id: image.id,
        size_bytes: i64::try_from(image.size).unwrap_or(i64::MAX),
        digests: image.repo_digests,
        tags: image.repo_tags,
    }
}

type Network = (Vec<IpAddr>, Option<IpAddr>);

/// Local addresses, and the address that a default route's interface (else the loopback interface)
/// has in the preferred family, then in the other.
fn read_network(proc: &std::path::Path, prefer_v4: bool) -> Result<Network, sys::host::NetError> {
    let interfaces = sys::host::interfaces()?;
    let local = interfaces.iter().flat_map(|i| i.addresses.iter().copied()).collect();
    let (v4, v6) = sys::host::default_route_interfaces(proc);
    let choose = |routes: &[String], want_v4: bool| {
        routes.iter().find_map(|name| {
            let via = interfaces.iter().find(|i| i.name == *name && i.up);
            let of = |i: &sys::host::Interface| {
                i.addresses.iter().copied().find(|a| a.is_ipv4() == want_v4 && is_global(*a))
            };
            let loopback = || interfaces.iter().filter(|i| i.loopback && i.up).find_map(of);
            via.and_then(of).or_else(loopback)
        })
    };
    let first = if prefer_v4 { choose(&v4, true) } else { choose(&v6, false) };
    let other = || if prefer_v4 { choose(&v6, false) } else { choose(&v4, true) };
    Ok((local, first.or_else(other)))
}

/// Go's `IsGlobalUnicast`: private ranges count.
fn is_global(ip: IpAddr) -> bool {
    let link_local = match ip {
        IpAddr::V4(v4) => v4.is_link_local() || v4.is_broadcast(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    !(ip.is_loopback() || ip.is_multicast() || ip.is_unspecified() || link_local)
}

#[cfg(test)]
mod tests {
    use super::*;
    use async_trait::async_trait;
    use cri::api::{Image, StatusResponse, VersionResponse};
    use std::sync::atomic::{AtomicBool, Ordering};

    /// A runtime whose image list can be emptied.
    #[derive(Debug, Default)]
    struct Runtime {
        broken: AtomicBool,
    }

    #[async_trait]
    impl RuntimeProbe for Runtime {
        async fn status(&self) -> Result<StatusResponse, String> {
            Ok(StatusResponse::default())
        }

        async fn version(&self) -> Result<VersionResponse, String> {
            Ok(VersionResponse::default())
        }

        async fn images(&self) -> Result<Vec<Image>, String> {
            match self.broken.load(Ordering::SeqCst) {
                true => Err("broken".into()),
                false => Ok(vec![Image { id: "a".into(), ..Image::default() }]),
            }
        }

        async fn set_pod_cidr(&self, _cidr: &str) -> Result<(), String> {
            Ok(())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn images_stay_while_the_runtime_does_not_list_them() {
        let runtime = Arc::new(Runtime::default());
        let answers = RuntimeHealth { answers: true, ..RuntimeHealth::default() };
        let config = CollectorConfig { settings: NodeSettings::default(), roots: Roots::default() };
        let probe = Arc::clone(&runtime) as Arc<dyn RuntimeProbe>;
        let inputs = NodeInputs::default();
        let mut collector = Collector::new(config, probe, watch::channel(answers).1, inputs);
        assert_eq!(collector.images().await.len(), 1);
        runtime.broken.store(true, Ordering::SeqCst);
        tokio::time::advance(IMAGES_PERIOD * 2).await;
        assert_eq!(collector.images().await.len(), 1);
    }
}
