//! An image registry on a loopback port, serving the prepared test images read-only.

use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::{Service, Slot};

/// A running registry.
#[derive(Debug)]
pub struct Registry {
    _service: Service,
    port: u16,
}

impl Registry {
    /// Start it in the slot, on this storage.
    pub fn start(slot: &Slot, storage: &Path) -> anyhow::Result<Registry> {
        let port = slot.free_port()?;
        let config = format!(
            "version: 0.1\nlog: {{level: warn, accesslog: {{disabled: true}}}}\nstorage:\n  \
             filesystem: {{rootdirectory: {}}}\n  maintenance: {{readonly: {{enabled: true}}}}\n\
             http: {{addr: \"127.0.0.1:{port}\"}}\n",
            storage.display()
        );
        let config = slot.write("etc/registry.yml", config)?;
        let mut command = Command::new("docker-registry");
        command.arg("serve").arg(config).env("OTEL_TRACES_EXPORTER", "none");
        slot.release_ports();
        let mut service = Service::start(slot, "registry", command)?;
        service.wait_ready(Duration::from_secs(20), || {
            TcpStream::connect(("127.0.0.1", port)).map(drop).map_err(Into::into)
        })?;
        Ok(Registry { _service: service, port })
    }

    /// Its port on loopback.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }
}
