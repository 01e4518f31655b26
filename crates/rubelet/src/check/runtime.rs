//! The container runtime: reachable, ready, and what it can do.
//!
//! Deliberately absent: opening the event stream, which would take events from a running agent.

use super::Finding;
use config::Config;
use config::resolved::CgroupDriver;
use cri::{ClientConfig, Endpoint, RuntimeClient};
use std::time::Duration;

const SUBJECT: &str = "runtime";

/// Asks the runtime, for no longer than `patience`.
pub(super) fn check(config: &Config, patience: Duration) -> Vec<Finding> {
    let endpoint = match Endpoint::parse(&config.runtime.endpoint) {
        Ok(endpoint) => endpoint,
        Err(error) => {
            return vec![Finding::error(
                SUBJECT,
                format!("{}: {error}", config.runtime.endpoint),
                "set containerRuntimeEndpoint: unix:///run/containerd/containerd.sock",
            )];
        }
    };
    let image = Endpoint::parse(&config.runtime.image_endpoint).ok();
    match sys::fs::try_exists(endpoint.path()) {
        Ok(true) => {}
        _ => {
            return vec![Finding::error(
                SUBJECT,
                format!("{} is not there", endpoint.path().display()),
                "start the container runtime, or set containerRuntimeEndpoint to its socket",
            )];
        }
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let Ok(runtime) = runtime else { return Vec::new() };
    runtime.block_on(async {
        let settings = ClientConfig { request_timeout: patience, ..ClientConfig::default() };
        let client = RuntimeClient::new(settings, &endpoint, image.as_ref());
        match tokio::time::timeout(patience, ask(&client, config)).await {
            Ok(findings) => findings,
            Err(_) => vec![Finding::error(
                SUBJECT,
                format!("{endpoint} did not answer within {patience:?}"),
                "look at the runtime's own log; a restart of it leaves containers running",
            )],
        }
    })
}

async fn ask(client: &RuntimeClient, config: &Config) -> Vec<Finding> {
    let mut findings = Vec::new();
    match client.version("0.1.0").await {
        Ok(version) => findings.push(Finding::ok(
            SUBJECT,
            format!("{} {}", version.runtime_name, version.runtime_version),
        )),
        Err(error) => {
            findings.push(Finding::error(
                SUBJECT,
                error.message(),
                "enable the CRI v1 API of the runtime (containerd: not in disabled_plugins)",
            ));
            return findings;
        }
    }
    match client.status(false).await {
        Ok(answer) => {
            let named = |name: &str| if name.is_empty() { "(default)" } else { name }.to_owned();
            let handlers: Vec<String> =
                answer.runtime_handlers.iter().map(|handler| named(&handler.name)).collect();
            findings.push(Finding::ok(SUBJECT, format!("handlers: {}", handlers.join(" "))));
            let conditions = answer.status.map(|status| status.conditions).unwrap_or_default();
            for condition in conditions.iter().filter(|condition| !condition.status) {
                let seen =
                    format!("{}: {} {}", condition.r#type, condition.reason, condition.message);
                findings.push(match condition.r#type.as_str() {
                    "NetworkReady" => {
                        Finding::error(SUBJECT, seen, "install a network plugin (CNI) on this node")
                    }
                    "RuntimeReady" => {
                        Finding::error(SUBJECT, seen, "look at the runtime's own log")
                    }
                    _ => Finding::warning(SUBJECT, seen, "follow the runtime's advice"),
                });
            }
        }
        Err(error) => {
            findings.push(Finding::error(SUBJECT, error.message(), "look at the runtime's own log"))
        }
    }
    if let Err(error) = client.image_fs_info().await {
        findings.push(Finding::error(
            "images",
            error.message(),
            "set imageServiceEndpoint to the image service's socket",
        ));
    }
    findings.push(driver(client, config).await);
    findings
}

/// The cgroup driver: the runtime's own choice wins over the configured one.
async fn driver(client: &RuntimeClient, config: &Config) -> Finding {
    let configured = match config.resources.cgroup_driver {
        CgroupDriver::Systemd => "systemd",
        CgroupDriver::Cgroupfs => "cgroupfs",
    };
    match client.runtime_config().await {
        Ok(answer) => {
            let told = answer.linux.map(|linux| linux.cgroup_driver());
            match told {
                Some(cri::api::CgroupDriver::Systemd) => {
                    Finding::ok("cgroup driver", "systemd, by the runtime's choice")
                }
                Some(cri::api::CgroupDriver::Cgroupfs) => {
                    Finding::ok("cgroup driver", "cgroupfs, by the runtime's choice")
                }
                None => Finding::ok("cgroup driver", format!("{configured}, as configured")),
            }
        }
        Err(error) if error.is_unimplemented() => Finding::warning(
            "cgroup driver",
            format!("{configured} is configured; this runtime cannot be asked for its own"),
            "make sure that the runtime uses the same driver, or update it (containerd 2.0)",
        ),
        Err(error) => {
            Finding::warning("cgroup driver", error.message(), "look at the runtime's own log")
        }
    }
}
