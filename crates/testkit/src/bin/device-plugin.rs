//! The test kit's device plugin as a process of its own; registers again whenever the kubelet's socket is new.
//!
//! `device-plugin DIR RESOURCE DEVICE…`; a device `x` is unhealthy while `DIR/x.broken` exists.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, SystemTime};
use testkit::device_plugin::{PluginConfig, RunningPlugin, device};

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            #[expect(clippy::print_stderr, reason = "a program for people and tests")]
            {
                eprintln!("device-plugin: {error:#}");
            }
            ExitCode::FAILURE
        }
    }
}

async fn run() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let (Some(dir), Some(resource)) = (arguments.next(), arguments.next()) else {
        anyhow::bail!("usage: device-plugin DIR RESOURCE DEVICE…");
    };
    let dir = PathBuf::from(dir);
    let ids: Vec<String> = arguments.collect();
    let names: Vec<&str> = ids.iter().map(String::as_str).collect();
    let config = PluginConfig::new(&dir, &resource, &names);
    let mut plugin = RunningPlugin::start(config.clone())?;
    let (mut seen, mut shown) = (None, Vec::new());
    loop {
        let socket = made(&dir.join("kubelet.sock"));
        if socket.is_some() && socket != seen {
            // A kubelet that starts removes our socket.
            if made(&dir.join(&config.socket)).is_none() {
                plugin = RunningPlugin::start(config.clone())?;
                shown = Vec::new();
            }
            if plugin.register().await.is_ok() {
                seen = socket;
            }
        }
        let health = |id: &str| match made(&dir.join(format!("{id}.broken"))) {
            Some(_) => "Unhealthy",
            None => "Healthy",
        };
        let devices: Vec<_> = names.iter().map(|id| device(id, health(id), None)).collect();
        if devices != shown {
            plugin.report(devices.clone());
            shown = devices;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

fn made(path: &Path) -> Option<SystemTime> {
    std::fs::metadata(path).and_then(|metadata| metadata.modified()).ok()
}
