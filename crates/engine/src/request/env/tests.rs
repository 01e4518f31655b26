//! The environment's order of precedence.

use super::*;
use crate::request::env_file::EnvSearch;
use api::core::v1::{
    ConfigMapEnvSource, ConfigMapKeySelector, EnvFromSource, EnvVar, FileKeySelector, PodSpec,
    SecretEnvSource, SecretKeySelector, ServicePort, ServiceSpec,
};
use api::machinery::api::resource::Quantity;

struct Case {
    pod: Pod,
    container: Container,
    objects: EnvObjects,
    services: Vec<Arc<Service>>,
    allocatable: BTreeMap<String, Quantity>,
}

impl Case {
    fn new(container: Container) -> Self {
        let mut pod = Pod {
            spec: Some(PodSpec { enable_service_links: Some(true), ..PodSpec::default() }),
            ..Pod::default()
        };
        pod.metadata.namespace = Some("ns".into());
        let mut service = Service {
            spec: Some(ServiceSpec {
                cluster_ip: Some("10.0.0.1".into()),
                ports: Some(vec![ServicePort { port: 80, ..ServicePort::default() }]),
                ..ServiceSpec::default()
            }),
            ..Service::default()
        };
        service.metadata.name = Some("db".into());
        service.metadata.namespace = Some("ns".into());
        let mut objects = EnvObjects::default();
        let map = ConfigMap {
            data: Some([("A".into(), "cm-a".into()), ("B".into(), "cm-b".into())].into()),
            ..ConfigMap::default()
        };
        objects.config_maps.insert("cm".into(), Ok(Arc::new(map)));
        let secret = Secret {
            data: Some([("B".into(), k8s_bytes(&[0xff, 0x00]))].into()),
            ..Secret::default()
        };
        objects.secrets.insert("s".into(), Ok(Arc::new(secret)));
        let gone = ObjectMiss::NotFound("configmap \"gone\" not found".into());
        objects.config_maps.insert("gone".into(), Err(gone));
        let keys = ["F", "G", "missing"].map(str::to_owned);
        let mut search = EnvSearch::new(keys.into());
        assert!(search.line(b"F='file'\n").is_continue());
        objects.files.insert(
            ("vol".into(), "env".into()),
            EnvFile { host_path: "/host/env".into(), values: search.end() },
        );
        Self {
            pod,
            container,
            objects,
            services: vec![Arc::new(service)],
            allocatable: BTreeMap::new(),
        }
    }

    fn run(&self) -> Result<Vec<EnvVariable>, RequestError> {
        environment(&EnvInput {
            pod: &self.pod,
            container: &self.container,
            pod_ips: &[],
            node: NodeFacts {
                node_ips: &[],
                host_ips: &[],
                allocatable: &self.allocatable,
                pod_level_resources: true,
            },
            services: Some(&self.services),
            env_files: true,
            objects: &self.objects,
        })
    }

    fn text(&self, name: &str) -> Option<String> {
        let all = self.run().unwrap();
        let found = all.iter().find(|e| e.name == name)?;
        Some(String::from_utf8_lossy(&found.value).into_owned())
    }
}

fn k8s_bytes(bytes: &[u8]) -> api::ByteString {
    api::ByteString(bytes.to_vec())
}

fn var(name: &str, value: &str) -> EnvVar {
    EnvVar { name: name.into(), value: Some(value.into()), value_from: None }
}

fn from(name: &str, source: EnvVarSource) -> EnvVar {
    EnvVar { name: name.into(), value: None, value_from: Some(source) }
}

fn config_key(object: &str, key: &str, optional: bool) -> EnvVarSource {
    EnvVarSource {
        config_map_key_ref: Some(ConfigMapKeySelector {
            name: object.into(),
            key: key.into(),
            optional: Some(optional),
        }),
        ..EnvVarSource::default()
    }
}

fn file_key(volume: &str, key: &str, optional: bool) -> EnvVarSource {
    EnvVarSource {
        file_key_ref: Some(FileKeySelector {
            volume_name: volume.into(),
            path: "env".into(),
            key: key.into(),
            optional: Some(optional),
        }),
        ..EnvVarSource::default()
    }
}

fn with_env(env: Vec<EnvVar>) -> Case {
    Case::new(Container { env: Some(env), ..Container::default() })
}

#[test]
fn later_sources_win_and_prefixes_are_prepended() {
    let map = |prefix: &str| EnvFromSource {
        prefix: Some(prefix.into()),
        config_map_ref: Some(ConfigMapEnvSource { name: "cm".into(), optional: None }),
        secret_ref: None,
    };
    let secret = EnvFromSource {
        secret_ref: Some(SecretEnvSource { name: "s".into(), optional: None }),
        ..EnvFromSource::default()
    };
    let case = Case::new(Container {
        env_from: Some(vec![map(""), map("P_"), secret]),
        env: Some(vec![var("A", "own")]),
        ..Container::default()
    });
    assert_eq!(case.text("A").as_deref(), Some("own"));
    assert_eq!(case.text("P_B").as_deref(), Some("cm-b"));
    let all = case.run().unwrap();
    let secret = all.iter().find(|e| e.name == "B").unwrap();
    assert_eq!(secret.value, [0xff, 0x00], "bytes that are not text pass unchanged");
    assert!(!format!("{secret:?}").contains("255"), "values stay out of debug output");
}

#[test]
fn values_refer_to_earlier_variables_then_services() {
    let case = with_env(vec![
        var("X", "1"),
        var("Y", "$(X)$(Z)$(DB_SERVICE_HOST)$$(X)"),
        var("Z", "late"),
        var("DB_SERVICE_PORT", "mine"),
    ]);
    assert_eq!(case.text("Y").as_deref(), Some("1$(Z)10.0.0.1$(X)"));
    let all = case.run().unwrap();
    let ports: Vec<_> = all.iter().filter(|e| e.name == "DB_SERVICE_PORT").collect();
    assert_eq!(ports.len(), 1, "a service variable never repeats the container's own");
    assert_eq!(ports[0].value, b"mine");
}

#[test]
fn an_optional_miss_leaves_the_earlier_value() {
    let case = with_env(vec![
        var("A", "before"),
        from("A", config_key("gone", "k", true)),
        from("A", config_key("cm", "absent", true)),
        from("A", file_key("vol", "absent", true)),
    ]);
    assert_eq!(case.text("A").as_deref(), Some("before"));
}

#[test]
fn a_required_miss_has_the_go_kubelets_text() {
    for (source, want) in [
        (config_key("gone", "k", false), "configmap \"gone\" not found"),
        (config_key("cm", "k", false), "couldn't find key k in ConfigMap ns/cm"),
        (
            EnvVarSource {
                secret_key_ref: Some(SecretKeySelector {
                    name: "s".into(),
                    key: "k".into(),
                    optional: None,
                }),
                ..EnvVarSource::default()
            },
            "couldn't find key k in Secret ns/s",
        ),
        (file_key("none", "F", true), "cannot find the volume \"none\" referenced by FileKeyRef"),
        (
            file_key("vol", "absent", false),
            "environment variable key \"absent\" not found in file \"/host/env\"",
        ),
    ] {
        assert_eq!(with_env(vec![from("A", source)]).run().unwrap_err().to_string(), want);
    }
    assert_eq!(with_env(vec![from("A", file_key("vol", "F", false))]).text("A").unwrap(), "file");
}

#[test]
fn waits_for_services_except_for_static_pods() {
    let mut case = Case::new(Container::default());
    let input = |case: &Case| {
        environment(&EnvInput {
            pod: &case.pod,
            container: &case.container,
            pod_ips: &[],
            node: NodeFacts {
                node_ips: &[],
                host_ips: &[],
                allocatable: &BTreeMap::new(),
                pod_level_resources: true,
            },
            services: None,
            env_files: false,
            objects: &case.objects,
        })
    };
    assert_eq!(input(&case), Err(RequestError::ServicesUnread));
    case.pod.metadata.annotations =
        Some([("kubernetes.io/config.source".into(), "file".into())].into());
    assert_eq!(input(&case), Ok(vec![]));
    case.pod.spec.as_mut().unwrap().enable_service_links = None;
    assert_eq!(input(&case), Err(RequestError::NoServiceLinks));
}

#[test]
fn references_name_what_must_be_fetched() {
    let case = with_env(vec![
        from("A", config_key("cm", "k", true)),
        EnvVar { value: Some("set".into()), ..from("B", config_key("unused", "k", true)) },
        from("C", file_key("vol", "k", true)),
    ]);
    let all = references(&case.container);
    assert_eq!(all.config_maps, ["cm".to_string()].into());
    let file = ("vol".to_string(), "env".to_string());
    assert_eq!(all.files, [(file, ["k".to_string()].into())].into());
}
