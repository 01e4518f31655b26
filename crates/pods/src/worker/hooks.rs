//! Life-cycle hooks: exec, HTTP, sleep.
//!
//! Promises: failure texts are upstream's; a hook is bounded by its caller (preStop by the grace
//! period, postStart by the pod's end); output of a hook never reaches an event.

use crate::shared::Shared;
use api::core::v1::{Container, LifecycleHandler, Pod};
use api::machinery::util::intstr::IntOrString;
use api::pod::PodExt;
use ports::{EventSeverity, EventTarget, NodeEvent};
use probes::http::{HttpClient, HttpError, headers_with_defaults};
use probes::{Names, action};
use std::sync::Arc;
use std::time::Duration;

/// Whose hook it is.
#[derive(Debug, Clone, Copy)]
pub(super) struct HookTarget<'a> {
    /// The pod.
    pub(super) pod: &'a Arc<Pod>,
    /// The container's definition: its ports are looked up by name.
    pub(super) container: &'a Container,
    /// Its id.
    pub(super) container_id: &'a str,
    /// First IP of the pod's own sandbox; empty if it has none, as on the node's network.
    pub(super) pod_ip: &'a str,
}

/// Runs a hook; an error is the text upstream logs and shows as waiting message.
pub(super) async fn run(
    shared: &Shared,
    target: HookTarget<'_>,
    handler: &LifecycleHandler,
) -> Result<(), String> {
    if let Some(exec) = &handler.exec {
        let command = exec.command.clone().unwrap_or_default();
        return run_exec(shared, target, command).await;
    }
    if let Some(get) = &handler.http_get {
        let described = format!("HTTP lifecycle hook ({})", get.path.as_deref().unwrap_or("/"));
        return run_http(shared, target, get)
            .await
            .map_err(|error| format!("{} failed - error: {error}", of(&described, target)));
    }
    if let Some(sleep) = &handler.sleep {
        let seconds = u64::try_from(sleep.seconds).unwrap_or_default();
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        return Ok(());
    }
    Err(format!("Cannot run handler: invalid handler: {}", described(handler)))
}

async fn run_exec(
    shared: &Shared,
    target: HookTarget<'_>,
    command: Vec<String>,
) -> Result<(), String> {
    let described = format!("Exec lifecycle hook ([{}])", command.join(" "));
    let answer = shared.runtime.exec(target.container_id, &command, None).await;
    let (error, output) = match answer {
        Ok(answer) => match answer.failure(&command) {
            None => return Ok(()),
            Some(error) => (error, [answer.stdout.as_slice(), answer.stderr.as_slice()].concat()),
        },
        Err(fault) => (fault.to_string(), Vec::new()),
    };
    let output = units::strconv::quote_bytes(&output);
    Err(format!("{} failed - error: {error}, message: {output}", of(&described, target)))
}

/// A handler without an action that hooks know, in Go's form.
fn described(handler: &LifecycleHandler) -> String {
    let socket = handler.tcp_socket.as_ref().map_or("nil".to_owned(), |socket| {
        let port = match &socket.port {
            IntOrString::Int(number) => format!("{{0 {number} }}"),
            IntOrString::String(name) => format!("{{1 0 {name}}}"),
        };
        let host = socket.host.as_deref().unwrap_or_default();
        format!("&TCPSocketAction{{Port:{port},Host:{host},}}")
    });
    format!("&LifecycleHandler{{Exec:nil,HTTPGet:nil,TCPSocket:{socket},Sleep:nil,}}")
}

async fn run_http(
    shared: &Shared,
    target: HookTarget<'_>,
    get: &api::core::v1::HTTPGetAction,
) -> Result<(), String> {
    if get.host.as_deref().unwrap_or_default().is_empty() && target.pod_ip.is_empty() {
        return Err(format!(
            "failed to find networking container: pod {:?} has no IP",
            target.pod.name_str()
        ));
    }
    let url = action::target(get, target.container, target.pod_ip)?;
    let given: Vec<(String, String)> = get
        .http_headers
        .iter()
        .flatten()
        .map(|header| (header.name.clone(), header.value.clone()))
        .collect();
    let mut headers = headers_with_defaults(&given, &shared.config.user_agent("kube-lifecycle"));
    let uid = target.pod.uid();
    let client = HttpClient::for_hooks(Names::of(&shared.names, uid.as_str()));
    let failure = match client.follow(&url, &headers).await {
        Ok(_) | Err(HttpError::Body(_)) => return Ok(()),
        Err(error) => error,
    };
    if !matches!(failure, HttpError::Transport { plain_answer: true, .. }) {
        return Err(failure.to_string());
    }
    let mut plain = url.clone();
    "http".clone_into(&mut plain.scheme);
    headers.remove("Authorization");
    match client.follow(&plain, &headers).await {
        Ok(_) | Err(HttpError::Body(_)) => {
            shared.metrics.starts.http_fallbacks.inc(&[]);
            shared.events.emit(NodeEvent {
                target: EventTarget::Pod { pod: Arc::clone(target.pod), field_path: None },
                severity: EventSeverity::Warning,
                reason: "LifecycleHTTPFallback",
                message: format!(
                    "request to HTTPS lifecycle hook {} got HTTP response, retry with HTTP succeeded",
                    url.host
                ),
            });
            Ok(())
        }
        // What was asked for failed; that the other way did too is no news.
        Err(_) => Err(failure.to_string()),
    }
}

fn of(described: &str, target: HookTarget<'_>) -> String {
    let name = &target.container.name;
    format!("{described} for Container {name:?} in Pod {:?}", target.pod.display_name())
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::core::v1::TCPSocketAction;

    #[test]
    fn a_handler_without_a_known_action_reads_as_go_prints_it() {
        let socket = |port| TCPSocketAction { port, host: None };
        let handler = |port| LifecycleHandler {
            tcp_socket: Some(socket(port)),
            ..LifecycleHandler::default()
        };
        assert_eq!(
            described(&handler(IntOrString::Int(8080))),
            "&LifecycleHandler{Exec:nil,HTTPGet:nil,TCPSocket:&TCPSocketAction{Port:{0 8080 },\
             Host:,},Sleep:nil,}"
        );
        assert!(described(&handler(IntOrString::String("web".into()))).contains("{1 0 web}"));
    }
}
