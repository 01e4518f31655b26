//! The node's resolver file (`resolvConf`), and whether it is more than resolvers take.

use crate::config::PodsConfig;
use crate::shared::Shared;
use engine::request::dns::ResolvConf;
use ports::{EventSeverity, EventTarget, NodeEvent};

/// What parsing finds wrong, without the words that a pod's event has around it.
const NO_ADDRESS: &str = "nameserver list is empty ";

/// The file's text; nothing without a file, Go's words for one that cannot be read.
pub(crate) async fn read(config: &PodsConfig) -> Result<Option<String>, String> {
    let Some(path) = config.resolv_conf.clone() else { return Ok(None) };
    let read = sys::blocking::run(move || sys::fs::read(path)).await;
    let bytes = read.map_err(|e| e.to_string())?.map_err(|e| e.in_go())?;
    Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
}

/// Tells once what is wrong with the file, whatever pods make of it (`kubelet: CheckLimitsForResolvConf`).
pub(crate) async fn check(shared: &Shared) {
    let config = &shared.config;
    let fault = match read(config).await {
        Ok(None) => None,
        Err(error) => Some(error),
        Ok(Some(text)) => match ResolvConf::parse(&text) {
            Err(_) => Some(NO_ADDRESS.to_owned()),
            Ok(parsed) => {
                let path = config.resolv_conf.iter().map(|path| path.to_string_lossy());
                let path: String = path.collect();
                parsed.limit_fault(&path, &config.request.cluster_domain)
            }
        },
    };
    if let Some(message) = fault {
        shared.events.emit(NodeEvent {
            target: EventTarget::Node,
            severity: EventSeverity::Warning,
            reason: "CheckLimitsForResolvConf",
            message,
        });
    }
}
