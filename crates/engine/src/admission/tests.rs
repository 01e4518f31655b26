//! Admission: each refusal with its words, pre-emption, resize order.

use super::preempt::{Need, choose};
use super::resize::{PendingResize, ResizePolicy, order};
use super::sysctl::{SysctlPolicy, normalise};
use super::*;
use crate::pod::testing::{at, pod};
use api::core::v1::{
    ContainerPort, NodeSelectorRequirement, NodeSpec, NodeStatus, PodSecurityContext, PodStatus,
    ResourceRequirements, Sysctl, Toleration,
};
use api::machinery::api::resource::Quantity;
use std::collections::BTreeMap;

fn list(text: &str) -> BTreeMap<String, Quantity> {
    text.split_whitespace()
        .filter_map(|word| word.split_once('='))
        .map(|(name, value)| (name.to_owned(), Quantity(value.to_owned())))
        .collect()
}

fn asking(requests: &str) -> Pod {
    let mut pod = pod("a");
    pod.spec.as_mut().unwrap().containers[0].resources = Some(ResourceRequirements {
        requests: Some(list(requests)),
        ..ResourceRequirements::default()
    });
    pod
}

fn critical(mut pod: Pod) -> Pod {
    pod.spec.as_mut().unwrap().priority = Some(CRITICAL_PRIORITY);
    pod
}

fn node() -> Node {
    let mut node = Node::default();
    node.metadata.name = Some("node1".to_owned());
    node.metadata.labels = Some([("zone".to_owned(), "7".to_owned())].into());
    node.status = Some(NodeStatus {
        allocatable: Some(list("cpu=2 memory=1Gi pods=3 ephemeral-storage=1Gi x/gpu=1")),
        ..NodeStatus::default()
    });
    node
}

fn config() -> AdmissionConfig {
    AdmissionConfig {
        sysctls: SysctlPolicy::new((5, 10), &[]).unwrap(),
        resize: ResizePolicy::default(),
        app_armor: false,
        pod_level_resources: true,
        declared_features: Some(vec!["RestartAllContainersOnContainerExits".to_owned()]),
        taint_comparison: false,
    }
}

struct Desk {
    pod: Pod,
    from: Option<Pod>,
    others: Vec<Pod>,
    node: Option<Node>,
    pressure: Vec<Pressure>,
    shutting_down: bool,
    config: AdmissionConfig,
}

impl Desk {
    fn new(pod: Pod) -> Self {
        Self {
            pod,
            from: None,
            others: Vec::new(),
            node: Some(node()),
            pressure: Vec::new(),
            shutting_down: false,
            config: config(),
        }
    }

    fn verdict(&self) -> Verdict {
        let others: Vec<&Pod> = self.others.iter().collect();
        let view = AdmissionView {
            pod: &self.pod,
            resized_from: self.from.as_ref(),
            others: &others,
            node: self.node.as_ref(),
            pressure: &self.pressure,
            shutting_down: self.shutting_down,
            config: &self.config,
        };
        match before_placement(&view) {
            Ok(()) => after_placement(&view),
            Err(rejection) => Verdict::Rejected(rejection),
        }
    }

    /// `reason: message`, or `ok`.
    fn text(&self) -> String {
        match self.verdict() {
            Verdict::Admitted => "ok".to_owned(),
            Verdict::Rejected(r) => format!("{}: {}", r.reason, r.message),
            Verdict::Preempt(victims) => format!("preempt {:?}", victims.pods),
        }
    }
}

#[test]
fn resources_are_counted_in_the_words_of_upstream() {
    let mut desk = Desk::new(asking("cpu=64"));
    assert_eq!(
        desk.text(),
        "OutOfcpu: Node didn't have enough resource: cpu, requested: 64000, used: 0, capacity: 2000"
    );
    desk.pod = asking("cpu=1 memory=600Mi");
    assert_eq!(desk.text(), "ok");
    desk.others = vec![asking("cpu=500m memory=500Mi")];
    assert_eq!(
        desk.text(),
        "OutOfmemory: Node didn't have enough resource: memory, requested: 629145600, used: 524288000, capacity: 1073741824"
    );
    desk.others = vec![pod("a"), pod("a"), pod("a")];
    assert_eq!(
        desk.text(),
        "OutOfpods: Node didn't have enough resource: pods, requested: 1, used: 3, capacity: 3"
    );
    let desk = Desk::new(asking("x/gpu=2"));
    assert_eq!(
        desk.text(),
        "OutOfx/gpu: Node didn't have enough resource: x/gpu, requested: 2, used: 0, capacity: 1"
    );
    assert_eq!(
        Desk::new(asking("y/unknown=2")).text(),
        "ok",
        "resources the node does not know are ignored"
    );
}

#[test]
fn a_shrunk_pod_frees_room_only_after_its_status_came_back() {
    let mut small = asking("cpu=500m");
    small.status = Some(PodStatus {
        container_statuses: Some(vec![api::core::v1::ContainerStatus {
            name: "a".to_owned(),
            resources: Some(ResourceRequirements {
                requests: Some(list("cpu=1500m")),
                ..ResourceRequirements::default()
            }),
            ..Default::default()
        }]),
        ..PodStatus::default()
    });
    let mut desk = Desk::new(asking("cpu=1"));
    desk.others = vec![small];
    assert!(desk.text().starts_with("OutOfcpu"));
    desk.others[0].status = None;
    assert_eq!(desk.text(), "ok");
}

#[test]
fn labels_names_ports_and_taints_decide() {
    let mut desk = Desk::new(pod("a"));
    desk.pod.spec.as_mut().unwrap().node_selector =
        Some([("zone".to_owned(), "8".to_owned())].into());
    assert_eq!(
        desk.text(),
        "NodeAffinity: Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector"
    );
    let mut desk = Desk::new(pod("a"));
    desk.pod.spec.as_mut().unwrap().node_name = Some("node2".to_owned());
    assert_eq!(
        desk.text(),
        "NodeName: Predicate NodeName failed: node(s) didn't match the requested node name"
    );

    let with_port = |ip: Option<&str>| {
        let mut pod = pod("a");
        pod.spec.as_mut().unwrap().containers[0].ports = Some(vec![ContainerPort {
            container_port: 80,
            host_port: Some(8080),
            host_ip: ip.map(str::to_owned),
            ..ContainerPort::default()
        }]);
        pod
    };
    let mut desk = Desk::new(with_port(Some("10.0.0.1")));
    desk.others = vec![with_port(None)];
    assert_eq!(
        desk.text(),
        "NodePorts: Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports"
    );
    desk.others = vec![with_port(Some("10.0.0.2"))];
    assert_eq!(desk.text(), "ok");

    let mut desk = Desk::new(pod("a"));
    let taint =
        |effect: &str| Taint { key: "k".to_owned(), effect: effect.to_owned(), ..Taint::default() };
    let taints = Some(vec![taint("NoSchedule")]);
    desk.node.as_mut().unwrap().spec = Some(NodeSpec { taints, ..NodeSpec::default() });
    assert_eq!(desk.text(), "ok", "NoSchedule is for the scheduler");
    let taints = Some(vec![taint("NoExecute")]);
    desk.node.as_mut().unwrap().spec = Some(NodeSpec { taints, ..NodeSpec::default() });
    assert_eq!(
        desk.text(),
        "TaintToleration: Predicate TaintToleration failed: node(s) had taints that the pod didn't tolerate"
    );
    desk.pod.metadata.annotations =
        Some([(api::pod::SOURCE_ANNOTATION.to_owned(), "file".to_owned())].into());
    assert_eq!(desk.text(), "ok", "static pods tolerate everything");
}

#[test]
fn node_affinity_terms_are_alternatives_of_requirements() {
    let requirement = |key: &str, operator: &str, values: &[&str]| NodeSelectorRequirement {
        key: key.to_owned(),
        operator: operator.to_owned(),
        values: Some(values.iter().map(|v| (*v).to_owned()).collect()),
    };
    let holds = |terms: Vec<Vec<NodeSelectorRequirement>>| {
        let mut pod = pod("a");
        let terms: Vec<_> = terms
            .into_iter()
            .map(|list| {
                let (fields, labels): (Vec<_>, Vec<_>) =
                    list.into_iter().partition(|r| r.key == "metadata.name");
                api::core::v1::NodeSelectorTerm {
                    match_expressions: Some(labels),
                    match_fields: Some(fields),
                }
            })
            .collect();
        pod.spec.as_mut().unwrap().affinity = Some(api::core::v1::Affinity {
            node_affinity: Some(api::core::v1::NodeAffinity {
                required_during_scheduling_ignored_during_execution: Some(
                    api::core::v1::NodeSelector { node_selector_terms: terms },
                ),
                ..Default::default()
            }),
            ..Default::default()
        });
        matches_node(&pod, &node())
    };
    assert!(holds(vec![vec![requirement("zone", "In", &["6", "7"])]]));
    assert!(!holds(vec![vec![requirement("zone", "NotIn", &["7"])]]));
    assert!(holds(vec![vec![requirement("zone", "Gt", &["6"])]]));
    assert!(!holds(vec![vec![requirement("zone", "Lt", &["7"])]]));
    assert!(holds(vec![vec![requirement("other", "DoesNotExist", &[])]]));
    assert!(holds(vec![vec![requirement("metadata.name", "In", &["node1"])]]));
    assert!(!holds(vec![vec![]]), "an empty term matches nothing");
    assert!(holds(vec![
        vec![requirement("x", "Exists", &[])],
        vec![requirement("zone", "Exists", &[])]
    ]));
}

#[test]
fn systems_and_groups_must_match() {
    let mut desk = Desk::new(pod("a"));
    desk.pod.metadata.labels = Some([("kubernetes.io/os".to_owned(), "windows".to_owned())].into());
    assert_eq!(
        desk.text(),
        "PodOSSelectorNodeLabelDoesNotMatch: Failed to admit pod as the `kubernetes.io/os` label doesn't match node label"
    );
    let mut desk = Desk::new(pod("a"));
    desk.pod.spec.as_mut().unwrap().os = Some(api::core::v1::PodOS { name: "windows".to_owned() });
    assert_eq!(
        desk.text(),
        "PodOSNotSupported: Failed to admit pod as the OS field doesn't match node OS"
    );
    let mut desk = Desk::new(pod("a"));
    desk.pod.spec.as_mut().unwrap().security_context = Some(PodSecurityContext {
        supplemental_groups_policy: Some("Strict".to_owned()),
        ..PodSecurityContext::default()
    });
    assert_eq!(
        desk.text(),
        "SupplementalGroupsPolicyNotSupported: SupplementalGroupsPolicy=Strict is not supported in this node"
    );
    let desk = Desk { node: None, ..Desk::new(pod("a")) };
    assert_eq!(desk.text(), "InvalidNodeInfo: Kubelet cannot get node info.");
}

fn with_sysctl(words: &str, name: &str) -> Pod {
    let mut pod = pod(words);
    pod.spec.as_mut().unwrap().security_context = Some(PodSecurityContext {
        sysctls: Some(vec![Sysctl { name: name.to_owned(), value: "1".to_owned() }]),
        ..PodSecurityContext::default()
    });
    pod
}

#[test]
fn only_allowed_sysctls_pass() {
    let mut desk = Desk::new(with_sysctl("a", "kernel.msgmax"));
    assert_eq!(desk.text(), "SysctlForbidden: forbidden sysctl: \"kernel.msgmax\" not allowlisted");
    desk.config.sysctls = SysctlPolicy::new((5, 10), &["kernel.msg*".to_owned()]).unwrap();
    assert_eq!(desk.text(), "ok");
    assert_eq!(Desk::new(with_sysctl("a", "kernel/shm_rmid_forced")).text(), "ok");
    assert_eq!(
        Desk::new(with_sysctl("host a", "net.ipv4.tcp_syncookies")).text(),
        "SysctlForbidden: forbidden sysctl: \"net.ipv4.tcp_syncookies\" not allowed with host Net enabled"
    );
    let mut old = Desk::new(with_sysctl("a", "net.ipv4.tcp_rmem"));
    old.config.sysctls = SysctlPolicy::new((4, 14), &[]).unwrap();
    assert!(old.text().contains("not allowlisted"), "too old a kernel");
    let fault =
        |name: &str| SysctlPolicy::new((5, 10), &[name.to_owned()]).unwrap_err().to_string();
    assert_eq!(fault("vm.swappi*"), "the sysctls \"vm.swappi\" are not known to be namespaced");
    for name in ["", "K.x", "net..x", "net.core.*x", "x y", "-net.x", "net.x_", "kernel.msg**"] {
        assert!(
            fault(name).contains(" must have at most 253 characters and match regex "),
            "{name}"
        );
    }
    for name in ["kernel.sem*", "kernel.shm", "net/core/somaxconn", "fs.mqueue.*", "net.a_*"] {
        assert!(SysctlPolicy::new((5, 10), &[name.to_owned()]).is_ok(), "{name}");
    }
    assert_eq!(normalise("net/ipv4/conf/eth0.5/rp_filter"), "net.ipv4.conf.eth0/5.rp_filter");
    assert_eq!(normalise("net.ipv4.conf.eth0/5.rp_filter"), "net.ipv4.conf.eth0/5.rp_filter");
}

#[test]
fn app_armor_is_refused_where_it_cannot_be_enforced() {
    let mut desk = Desk::new(pod("a"));
    desk.pod.spec.as_mut().unwrap().security_context = Some(PodSecurityContext {
        app_armor_profile: Some(api::core::v1::AppArmorProfile {
            type_: "RuntimeDefault".to_owned(),
            ..Default::default()
        }),
        ..PodSecurityContext::default()
    });
    assert_eq!(
        desk.text(),
        "AppArmor: Cannot enforce AppArmor: AppArmor is not enabled on the host"
    );
    desk.pod.status = Some(PodStatus { phase: Some("Running".to_owned()), ..PodStatus::default() });
    assert_eq!(desk.text(), "ok", "a pod that runs is not asked again");
    desk.pod.status = None;
    desk.config.app_armor = true;
    assert_eq!(desk.text(), "ok");
}

#[test]
fn features_and_shutdown_come_last() {
    let mut desk = Desk::new(pod("a=Never!!1"));
    assert_eq!(desk.text(), "ok");
    desk.config.declared_features = Some(Vec::new());
    assert_eq!(
        desk.text(),
        "PodFeatureUnsupported: Pod requires node features that are not available: RestartAllContainersOnContainerExits"
    );
    let desk = Desk { shutting_down: true, ..Desk::new(pod("a")) };
    assert_eq!(desk.text(), "NodeShutdown: Pod was rejected as the node is shutting down.");
}

#[test]
fn pressure_keeps_out_what_would_be_evicted_first() {
    let refused = "Evicted: The node had condition: [MemoryPressure]. ";
    let under = |pod: Pod, pressure: &[Pressure]| {
        Desk { pressure: pressure.to_vec(), ..Desk::new(pod) }.text()
    };
    assert_eq!(under(pod("a"), &[Pressure::Memory]), refused);
    assert_eq!(under(asking("cpu=1"), &[Pressure::Memory]), "ok");
    let mut tolerant = pod("a");
    tolerant.spec.as_mut().unwrap().tolerations = Some(vec![Toleration {
        key: Some("node.kubernetes.io/memory-pressure".to_owned()),
        operator: Some("Exists".to_owned()),
        ..Toleration::default()
    }]);
    assert_eq!(under(tolerant, &[Pressure::Memory]), "ok");
    assert_eq!(
        under(asking("cpu=1"), &[Pressure::Memory, Pressure::Disk]),
        "Evicted: The node had condition: [MemoryPressure DiskPressure]. "
    );
    assert_eq!(under(critical(pod("a")), &[Pressure::Disk]), "ok");
}

#[test]
fn a_critical_pod_pushes_out_the_smallest_sufficient_set() {
    let mut desk = Desk::new(critical(asking("cpu=1")));
    desk.others = vec![asking("cpu=1500m"), asking("cpu=500m")];
    assert_eq!(desk.text(), "preempt [0]");
    desk.others = vec![critical(asking("cpu=2"))];
    assert_eq!(
        desk.text(),
        "UnexpectedAdmissionError: Unexpected error while attempting to recover from admission failure: preemption: error finding a set of pods to preempt: no set of running pods found to reclaim resources: [(res: cpu, q: 1000), ]"
    );
    desk.pod.spec.as_mut().unwrap().node_name = Some("other".to_owned());
    assert!(desk.text().starts_with("NodeName"), "what pre-emption cannot mend decides");
}

#[test]
fn higher_qos_is_spared() {
    let pods = [asking("cpu=1"), pod("a"), pod("a")];
    let others: Vec<&Pod> = pods.iter().collect();
    let need = |resource: &str, amount| vec![Need { resource: resource.to_owned(), amount }];
    let chosen = |needs: &[Need]| choose(&critical(pod("a")), &others, needs).unwrap().pods;
    assert_eq!(chosen(&need("pods", 1)).len(), 1);
    assert!(!chosen(&need("pods", 2)).contains(&0), "two best-effort pods suffice");
    assert_eq!(chosen(&need("cpu", 500)), [0]);
}

#[test]
fn resizes_that_can_never_work_are_infeasible() {
    let guaranteed = |cpu: &str| {
        let mut pod = asking(&format!("cpu={cpu} memory=1Gi"));
        let resources = pod.spec.as_mut().unwrap().containers[0].resources.as_mut().unwrap();
        resources.limits.clone_from(&resources.requests);
        pod
    };
    let mut desk = Desk::new(guaranteed("1"));
    desk.from = Some(guaranteed("500m"));
    assert_eq!(desk.text(), "ok");
    desk.config.resize.exclusive_cpus = true;
    assert_eq!(
        desk.text(),
        "Infeasible: Resize is infeasible for Guaranteed Pods alongside CPU Manager policy \"static\""
    );
    let mut desk = Desk::new(asking("memory=2Mi"));
    desk.from = Some(asking("memory=1Mi"));
    desk.config.resize.swap = true;
    assert_eq!(
        desk.text(),
        "Infeasible: In-place resize of containers with swap is not supported."
    );
}

#[test]
fn pending_resizes_are_tried_in_a_fair_order() {
    let base = asking("cpu=1");
    let grow = asking("cpu=2");
    let shrink = asking("cpu=500m");
    let mut important = asking("cpu=2");
    important.spec.as_mut().unwrap().priority = Some(10);
    let pending = |wished, since: Option<i64>| PendingResize {
        wished,
        allocated: &base,
        since: since.map(at),
    };
    let list = [
        pending(&grow, None),
        pending(&grow, Some(20)),
        pending(&grow, Some(10)),
        pending(&important, Some(30)),
        pending(&shrink, Some(40)),
    ];
    assert_eq!(order(&list), [4, 3, 2, 1, 0]);
}

#[test]
fn rejections_are_counted_under_known_labels() {
    let label = |reason: &str| Rejection::new(reason, "").metric_label().to_owned();
    assert_eq!(label("OutOfcpu"), "OutOfcpu");
    assert_eq!(label("OutOfx/gpu"), "OutOfExtendedResources");
    assert_eq!(label("NodeAffinity"), "Other");
}

#[test]
fn an_update_that_needs_what_the_node_lacks_is_told() {
    let with = |amount: &str| {
        let mut pod = pod("i:first s:side a");
        let wish = asking(amount).spec.unwrap().containers.remove(0).resources;
        pod.spec.as_mut().unwrap().init_containers.as_mut().unwrap()[0].resources = wish.clone();
        pod.spec.as_mut().unwrap().resources = wish;
        pod
    };
    let told = |declared: &[&str]| {
        let declared: Vec<String> = declared.iter().map(ToString::to_string).collect();
        update_fault(&with("cpu=1"), &with("cpu=2"), Some(&declared))
    };
    let text = "Pod requires node features that are not available";
    let (pod_level, init) =
        ("InPlacePodLevelResourcesVerticalScaling", "InPlacePodVerticalScalingInitContainers");
    assert_eq!(told(&[]), Some(format!("{text}: {pod_level}, {init}")));
    assert_eq!(told(&[pod_level]), Some(format!("{text}: {init}")));
    assert_eq!(told(&[pod_level, init]), None);
    assert_eq!(update_fault(&with("cpu=1"), &with("cpu=1"), Some(&[])), None);
    assert_eq!(update_fault(&with("cpu=1"), &with("cpu=2"), None), None, "the gate is off");
}
