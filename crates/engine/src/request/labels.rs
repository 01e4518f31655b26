//! Labels and annotations that identify our sandboxes and containers in the runtime.
//!
//! Byte-compatible with the Go kubelet in both directions: either agent adopts what the other
//! started. Upstream: `pkg/kubelet/kuberuntime/labels.go`.
use api::core::v1::{Container, ContainerPort, LifecycleHandler, Pod};
use api::pod::PodExt;
use serde::Serialize;
use std::collections::BTreeMap;

/// Label: the pod's name.
pub const POD_NAME: &str = "io.kubernetes.pod.name";
/// Label: the pod's namespace.
pub const POD_NAMESPACE: &str = "io.kubernetes.pod.namespace";
/// Label: the pod's UID.
pub const POD_UID: &str = "io.kubernetes.pod.uid";
/// Label: the container's name.
pub const CONTAINER_NAME: &str = "io.kubernetes.container.name";
/// Annotation: the container's hash.
pub const HASH: &str = "io.kubernetes.container.hash";
/// Annotation: how often a container of this name was started before.
pub const RESTART_COUNT: &str = "io.kubernetes.container.restartCount";
/// Annotation: `terminationMessagePath`.
pub const TERMINATION_PATH: &str = "io.kubernetes.container.terminationMessagePath";
/// Annotation: `terminationMessagePolicy`.
pub const TERMINATION_POLICY: &str = "io.kubernetes.container.terminationMessagePolicy";
/// Annotation: `metadata.deletionGracePeriodSeconds` of the pod.
pub const DELETION_GRACE: &str = "io.kubernetes.pod.deletionGracePeriod";
/// Annotation: `spec.terminationGracePeriodSeconds` of the pod.
pub const TERMINATION_GRACE: &str = "io.kubernetes.pod.terminationGracePeriod";
/// Annotation: the preStop hook as JSON.
pub const PRE_STOP: &str = "io.kubernetes.container.preStopHandler";
/// Annotation: the container's ports as JSON.
pub const PORTS: &str = "io.kubernetes.container.ports";

type Map = BTreeMap<String, String>;

/// The hash of what makes a container need a restart: its name and image.
pub fn container_hash(container: &Container) -> u64 {
    let image = container.image.as_deref().unwrap_or_default();
    u64::from(units::container_hash(&container.name, image))
}

/// Labels of a sandbox: those of the pod and its identity.
pub fn sandbox_labels(pod: &Pod) -> Map {
    let mut labels = pod.metadata.labels.clone().unwrap_or_default();
    labels.extend(identity(pod));
    labels
}

/// Labels of a container.
pub fn container_labels(pod: &Pod, container: &Container) -> Map {
    let mut labels = identity(pod);
    labels.insert(CONTAINER_NAME.into(), container.name.clone());
    labels
}

/// The label that selects everything of a pod in the runtime.
pub fn pod_selector(uid: &str) -> Map {
    [(POD_UID.to_string(), uid.to_string())].into()
}

/// Annotations of a container; `extra` (from device plugins) loses against our own.
pub fn container_annotations(
    pod: &Pod,
    container: &Container,
    restart_count: u32,
    extra: &[(String, String)],
) -> Map {
    let mut all: Map = extra.iter().cloned().collect();
    let mut set = |key: &str, value: String| all.insert(key.into(), value);
    set(HASH, format!("{:x}", container_hash(container)));
    set(RESTART_COUNT, restart_count.to_string());
    set(TERMINATION_PATH, container.termination_message_path.clone().unwrap_or_default());
    set(TERMINATION_POLICY, container.termination_message_policy.clone().unwrap_or_default());
    if let Some(seconds) = pod.metadata.deletion_grace_period_seconds {
        set(DELETION_GRACE, seconds.to_string());
    }
    if let Some(seconds) = pod.spec.as_ref().and_then(|s| s.termination_grace_period_seconds) {
        set(TERMINATION_GRACE, seconds.to_string());
    }
    let hook = container.lifecycle.as_ref().and_then(|l| l.pre_stop.as_ref());
    if let Some(text) = hook.and_then(|h| units::gojson::to_string(&Handler::from(h)).ok()) {
        set(PRE_STOP, text);
    }
    let ports: Vec<Port<'_>> = container.ports.iter().flatten().map(Port::from).collect();
    if let (false, Ok(text)) = (ports.is_empty(), units::gojson::to_string(&ports)) {
        set(PORTS, text);
    }
    all
}

/// The pod and container that a container's labels name.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ContainerIdentity {
    /// The pod's name.
    pub pod_name: String,
    /// The pod's namespace.
    pub pod_namespace: String,
    /// The pod's UID.
    pub pod_uid: String,
    /// The container's name (empty on sandboxes).
    pub container_name: String,
}

impl ContainerIdentity {
    /// Reads the labels of a sandbox or container; missing ones are empty.
    pub fn read(labels: &Map) -> Self {
        let text = |key: &str| labels.get(key).cloned().unwrap_or_default();
        Self {
            pod_name: text(POD_NAME),
            pod_namespace: text(POD_NAMESPACE),
            pod_uid: text(POD_UID),
            container_name: text(CONTAINER_NAME),
        }
    }
}

/// The parts of a container's spec that are stored in its annotations.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ContainerRecord {
    /// The hash; 0 when missing or unreadable, so that it differs from every real one.
    pub hash: u64,
    /// The restart count; 0 when missing or unreadable.
    pub restart_count: u32,
    /// `terminationMessagePath`.
    pub termination_message_path: String,
    /// `terminationMessagePolicy`.
    pub termination_message_policy: String,
    /// The pod's deletion grace period in seconds.
    pub deletion_grace_seconds: Option<i64>,
    /// The pod's termination grace period in seconds.
    pub termination_grace_seconds: Option<i64>,
    /// The preStop hook.
    pub pre_stop: Option<LifecycleHandler>,
    /// The ports.
    pub ports: Vec<ContainerPort>,
}

impl ContainerRecord {
    /// Reads a container's annotations.
    pub fn read(annotations: &Map) -> Self {
        let text = |key: &str| annotations.get(key).map(String::as_str);
        let json = |key: &str| text(key).and_then(|t| serde_json::from_str(t).ok());
        Self {
            hash: text(HASH).and_then(|t| u64::from_str_radix(t, 16).ok()).unwrap_or(0),
            restart_count: text(RESTART_COUNT).and_then(|t| t.parse().ok()).unwrap_or(0),
            termination_message_path: text(TERMINATION_PATH).unwrap_or_default().into(),
            termination_message_policy: text(TERMINATION_POLICY).unwrap_or_default().into(),
            deletion_grace_seconds: text(DELETION_GRACE).and_then(|t| t.parse().ok()),
            termination_grace_seconds: text(TERMINATION_GRACE).and_then(|t| t.parse().ok()),
            pre_stop: json(PRE_STOP),
            ports: text(PORTS).and_then(|t| serde_json::from_str(t).ok()).unwrap_or_default(),
        }
    }
}

fn identity(pod: &Pod) -> Map {
    let meta = &pod.metadata;
    [
        (POD_NAME.to_string(), meta.name.clone().unwrap_or_default()),
        (POD_NAMESPACE.to_string(), meta.namespace.clone().unwrap_or_default()),
        (POD_UID.to_string(), pod.uid_str().to_string()),
    ]
    .into()
}

/// A port with its keys in the order of the Go type.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Port<'a> {
    #[serde(skip_serializing_if = "is_empty")]
    name: Option<&'a String>,
    #[serde(skip_serializing_if = "is_zero")]
    host_port: i32,
    container_port: i32,
    #[serde(skip_serializing_if = "is_empty")]
    protocol: Option<&'a String>,
    #[serde(rename = "hostIP", skip_serializing_if = "is_empty")]
    host_ip: Option<&'a String>,
}

impl<'a> From<&'a ContainerPort> for Port<'a> {
    fn from(port: &'a ContainerPort) -> Self {
        Self {
            name: port.name.as_ref(),
            host_port: port.host_port.unwrap_or(0),
            container_port: port.container_port,
            protocol: port.protocol.as_ref(),
            host_ip: port.host_ip.as_ref(),
        }
    }
}

/// A hook with its keys in the order of the Go type.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Handler<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    exec: Option<Exec<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    http_get: Option<HttpGet<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tcp_socket: Option<TcpSocket<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sleep: Option<Sleep>,
}

#[derive(Serialize)]
struct Exec<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    command: Option<&'a Vec<String>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct HttpGet<'a> {
    #[serde(skip_serializing_if = "is_empty")]
    path: Option<&'a String>,
    port: &'a api::machinery::util::intstr::IntOrString,
    #[serde(skip_serializing_if = "is_empty")]
    host: Option<&'a String>,
    #[serde(skip_serializing_if = "is_empty")]
    scheme: Option<&'a String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    http_headers: Option<Vec<Header<'a>>>,
}

#[derive(Serialize)]
struct Header<'a> {
    name: &'a String,
    value: &'a String,
}

#[derive(Serialize)]
struct TcpSocket<'a> {
    port: &'a api::machinery::util::intstr::IntOrString,
    #[serde(skip_serializing_if = "is_empty")]
    host: Option<&'a String>,
}

#[derive(Serialize)]
struct Sleep {
    seconds: i64,
}

impl<'a> From<&'a LifecycleHandler> for Handler<'a> {
    fn from(hook: &'a LifecycleHandler) -> Self {
        let headers = |list: &'a Vec<api::core::v1::HTTPHeader>| {
            list.iter().map(|h| Header { name: &h.name, value: &h.value }).collect()
        };
        Self {
            exec: hook
                .exec
                .as_ref()
                .map(|e| Exec { command: e.command.as_ref().filter(|c| !c.is_empty()) }),
            http_get: hook.http_get.as_ref().map(|h| HttpGet {
                path: h.path.as_ref(),
                port: &h.port,
                host: h.host.as_ref(),
                scheme: h.scheme.as_ref(),
                http_headers: h.http_headers.as_ref().filter(|l| !l.is_empty()).map(headers),
            }),
            tcp_socket: hook
                .tcp_socket
                .as_ref()
                .map(|t| TcpSocket { port: &t.port, host: t.host.as_ref() }),
            sleep: hook.sleep.as_ref().map(|s| Sleep { seconds: s.seconds }),
        }
    }
}

fn is_empty(text: &Option<&String>) -> bool {
    text.is_none_or(|t| t.is_empty())
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &i32) -> bool {
    *number == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::core::v1::{ExecAction, HTTPGetAction, HTTPHeader, Lifecycle, PodSpec, SleepAction};
    use api::machinery::util::intstr::IntOrString;

    fn pod() -> Pod {
        let mut pod = Pod::default();
        pod.metadata.name = Some("p".into());
        pod.metadata.namespace = Some("ns".into());
        pod.metadata.uid = Some("u".into());
        pod.metadata.labels =
            Some([(POD_NAME.into(), "forged".into()), ("a".into(), "b".into())].into());
        pod.metadata.deletion_grace_period_seconds = Some(5);
        pod.spec =
            Some(PodSpec { termination_grace_period_seconds: Some(30), ..PodSpec::default() });
        pod
    }

    fn container() -> Container {
        Container {
            name: "foo".into(),
            image: Some("bar".into()),
            termination_message_path: Some("/dev/termination-log".into()),
            ports: Some(vec![ContainerPort {
                container_port: 80,
                host_port: Some(8080),
                protocol: Some("TCP".into()),
                name: Some("web".into()),
                host_ip: None,
            }]),
            lifecycle: Some(Lifecycle {
                pre_stop: Some(LifecycleHandler {
                    http_get: Some(HTTPGetAction {
                        path: Some("/a&b".into()),
                        port: IntOrString::Int(81),
                        http_headers: Some(vec![HTTPHeader {
                            name: "k".into(),
                            value: "v".into(),
                        }]),
                        ..HTTPGetAction::default()
                    }),
                    ..LifecycleHandler::default()
                }),
                ..Lifecycle::default()
            }),
            ..Container::default()
        }
    }

    #[test]
    fn annotations_are_the_go_kubelets_bytes() {
        let extra = [("x".into(), "1".into()), (HASH.into(), "forged".into())];
        let got = container_annotations(&pod(), &container(), 3, &extra);
        let want: Map = [
            (HASH, "11a6d6d6"),
            (RESTART_COUNT, "3"),
            (TERMINATION_PATH, "/dev/termination-log"),
            (TERMINATION_POLICY, ""),
            (DELETION_GRACE, "5"),
            (TERMINATION_GRACE, "30"),
            (
                PRE_STOP,
                r#"{"httpGet":{"path":"/a\u0026b","port":81,"httpHeaders":[{"name":"k","value":"v"}]}}"#,
            ),
            (PORTS, r#"[{"name":"web","hostPort":8080,"containerPort":80,"protocol":"TCP"}]"#),
            ("x", "1"),
        ]
        .into_iter()
        .map(|(k, v)| (k.to_string(), v.to_string()))
        .collect();
        assert_eq!(got, want);
    }

    #[test]
    fn what_is_written_is_read_back() {
        let record = ContainerRecord::read(&container_annotations(&pod(), &container(), 3, &[]));
        assert_eq!(record.hash, 0x11a6_d6d6);
        assert_eq!(record.restart_count, 3);
        assert_eq!(record.deletion_grace_seconds, Some(5));
        assert_eq!(record.termination_grace_seconds, Some(30));
        assert_eq!(record.pre_stop, container().lifecycle.unwrap().pre_stop);
        assert_eq!(record.ports, container().ports.unwrap());
        let identity = ContainerIdentity::read(&container_labels(&pod(), &container()));
        assert_eq!(identity.pod_uid, "u");
        assert_eq!(identity.container_name, "foo");
        assert_eq!(sandbox_labels(&pod()).get(POD_NAME).map(String::as_str), Some("p"));
    }

    #[test]
    fn damaged_annotations_read_as_absent() {
        let damaged = [(HASH, "zz"), (RESTART_COUNT, "x"), (PRE_STOP, "{"), (DELETION_GRACE, "")];
        let map = damaged.into_iter().map(|(k, v)| (k.into(), v.into())).collect();
        assert_eq!(ContainerRecord::read(&map), ContainerRecord::default());
    }

    #[test]
    fn hooks_keep_the_order_of_the_go_type() {
        let hook = LifecycleHandler {
            exec: Some(ExecAction { command: Some(vec!["a".into()]) }),
            sleep: Some(SleepAction { seconds: 1 }),
            ..LifecycleHandler::default()
        };
        let text = units::gojson::to_string(&Handler::from(&hook)).unwrap();
        assert_eq!(text, r#"{"exec":{"command":["a"]},"sleep":{"seconds":1}}"#);
    }
}
