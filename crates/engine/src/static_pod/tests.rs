//! Static pods: defaults, faults, identity, mirrors.

use super::*;
use serde_json::{Value, json};

fn settings() -> StaticSettings {
    StaticSettings {
        node_name: "node1".to_owned(),
        refuse_api_references: true,
        rules: Rules::default(),
    }
}

fn manifest(spec: &Value) -> Pod {
    serde_json::from_value(json!({ "metadata": { "name": "web" }, "spec": spec })).unwrap()
}

fn simple() -> Value {
    json!({ "containers": [{ "name": "a", "image": "busybox" }] })
}

fn prepared(spec: &Value) -> Result<Pod, StaticPodError> {
    prepare(manifest(spec), &StaticOrigin::File("/etc/m/web.yaml"), &settings())
}

/// The simple spec with one more field.
fn with(field: &str, value: Value) -> Value {
    let mut spec = simple();
    spec[field] = value;
    spec
}

#[test]
fn a_manifest_gets_name_place_and_identity() {
    let pod = prepared(&simple()).unwrap();
    assert_eq!(pod.metadata.name.as_deref(), Some("web-node1"));
    assert_eq!(pod.metadata.namespace.as_deref(), Some("default"));
    let uid = pod.metadata.uid.clone().unwrap();
    assert_eq!(uid.len(), 32);
    assert_eq!(hash(&pod), Some(uid.as_str()));
    let spec = pod.spec.unwrap();
    assert_eq!(spec.node_name.as_deref(), Some("node1"));
    assert_eq!(spec.tolerations.unwrap().len(), 1);
    assert_eq!(pod.status.unwrap().phase.as_deref(), Some("Pending"));
    let from_url = prepare(manifest(&simple()), &StaticOrigin::Url("http://x"), &settings());
    assert!(from_url.unwrap().spec.unwrap().tolerations.is_none());
}

#[test]
fn the_uid_follows_content_and_place() {
    let uid = |spec: &Value, path: &str, node: &str| {
        let settings = StaticSettings { node_name: node.to_owned(), ..settings() };
        prepare(manifest(spec), &StaticOrigin::File(path), &settings).unwrap().metadata.uid.unwrap()
    };
    let base = uid(&simple(), "/m/a", "n");
    assert_eq!(base, uid(&simple(), "/m/a", "n"));
    assert_ne!(base, uid(&simple(), "/m/b", "n"));
    assert_ne!(base, uid(&simple(), "/m/a", "o"));
    assert_ne!(base, uid(&with("hostNetwork", json!(true)), "/m/a", "n"));
    let mut given = manifest(&simple());
    given.metadata.uid = Some("mine".to_owned());
    let kept = prepare(given, &StaticOrigin::File("/m/a"), &settings()).unwrap();
    assert_eq!(kept.metadata.uid.as_deref(), Some("mine"));
}

#[test]
fn defaults_are_those_of_the_api() {
    let pod = prepared(&json!({
        "hostNetwork": true,
        "containers": [{
            "name": "a",
            "image": "busybox:1.36",
            "ports": [{ "containerPort": 80 }],
            "resources": { "limits": { "cpu": "1" } },
            "livenessProbe": { "httpGet": { "port": 80 } },
        }],
        "volumes": [{ "name": "v" }, { "name": "h", "hostPath": { "path": "/x" } }],
    }))
    .unwrap();
    let spec = serde_json::to_value(pod.spec.unwrap()).unwrap();
    let container = &spec["containers"][0];
    assert_eq!(container["imagePullPolicy"], "IfNotPresent");
    assert_eq!(container["terminationMessagePath"], "/dev/termination-log");
    assert_eq!(
        container["ports"][0],
        json!({ "containerPort": 80, "hostPort": 80, "protocol": "TCP" })
    );
    assert_eq!(container["resources"]["requests"], json!({ "cpu": "1" }));
    let probe = &container["livenessProbe"];
    assert_eq!(probe["httpGet"], json!({ "path": "/", "port": 80, "scheme": "HTTP" }));
    assert_eq!((&probe["periodSeconds"], &probe["failureThreshold"]), (&json!(10), &json!(3)));
    assert_eq!(spec["volumes"][0], json!({ "name": "v", "emptyDir": {} }));
    assert_eq!(spec["volumes"][1]["hostPath"]["type"], "");
    assert_eq!(spec["dnsPolicy"], "ClusterFirst");
    assert_eq!(spec["terminationGracePeriodSeconds"], 30);
    let latest = prepared(&simple()).unwrap().spec.unwrap();
    assert_eq!(latest.containers[0].image_pull_policy.as_deref(), Some("Always"));
}

#[test]
fn pod_level_requests_come_from_containers_then_limits() {
    let pod = prepared(&json!({
        "containers": [{ "name": "a", "image": "x", "resources": { "requests": { "cpu": "1" } } }],
        "resources": { "limits": { "cpu": "4", "memory": "1Gi" } },
    }))
    .unwrap();
    let own = pod.spec.unwrap().resources.unwrap().requests.unwrap();
    assert_eq!(serde_json::to_value(own).unwrap(), json!({ "cpu": "1", "memory": "1Gi" }));
}

#[test]
fn references_to_the_api_are_refused() {
    let env = |from: Value| json!({ "containers": [{ "name": "a", "image": "x", "env": [{ "name": "E", "valueFrom": from }] }] });
    let volume = |source: Value| {
        let mut volume = source;
        volume["name"] = json!("v");
        with("volumes", json!([volume]))
    };
    let key = json!({ "name": "n", "key": "k" });
    let cases = [
        (with("serviceAccountName", json!("sa")), "serviceaccounts"),
        (env(json!({ "secretKeyRef": key })), "secrets"),
        (env(json!({ "configMapKeyRef": key })), "configmaps"),
        (volume(json!({ "secret": { "secretName": "s" } })), "secrets"),
        (volume(json!({ "configMap": { "name": "c" } })), "configmaps"),
        (
            volume(json!({ "persistentVolumeClaim": { "claimName": "c" } })),
            "persistentvolumeclaims",
        ),
        (volume(json!({ "csi": { "driver": "d" } })), "csidrivers (via CSI volumes)"),
    ];
    for (spec, expected) in cases {
        let error = prepared(&spec).unwrap_err();
        assert_eq!(error.to_string(), format!("static pods may not reference {expected}"));
    }
    let allowed = [
        env(json!({ "fieldRef": { "fieldPath": "metadata.name" } })),
        volume(json!({ "hostPath": { "path": "/x" } })),
        volume(json!({ "emptyDir": {} })),
        volume(json!({ "nfs": { "server": "s", "path": "/p" } })),
        volume(json!({ "downwardAPI": { "items": [] } })),
    ];
    for spec in allowed {
        assert_eq!(prepared(&spec).err(), None, "{spec}");
    }
}

#[test]
fn the_older_name_of_the_account_counts() {
    let error = prepared(&with("serviceAccount", json!("sa"))).unwrap_err();
    assert_eq!(error.to_string(), "static pods may not reference serviceaccounts");
    let lenient = StaticSettings { refuse_api_references: false, ..settings() };
    let pod = manifest(&with("serviceAccount", json!("sa")));
    let spec = prepare(pod, &StaticOrigin::Url("u"), &lenient).unwrap().spec.unwrap();
    assert_eq!(spec.service_account_name.as_deref(), Some("sa"));
    let both = json!({ "serviceAccount": "old", "serviceAccountName": "new",
        "containers": simple()["containers"] });
    let spec = prepare(manifest(&both), &StaticOrigin::Url("u"), &lenient).unwrap().spec.unwrap();
    assert_eq!(spec.service_account.as_deref(), Some("new"));
}

#[test]
fn some_references_are_refused_to_single_pods_in_any_case() {
    let bundle = json!({ "sources": [{ "clusterTrustBundle": { "name": "n", "path": "p" } }] });
    let volumes = json!([{ "name": "s", "secret": { "secretName": "s" } },
        { "name": "t", "projected": bundle }]);
    let claims = json!([{ "name": "c", "resourceClaimName": "r" }]);
    let lenient = StaticSettings { refuse_api_references: false, ..settings() };
    for (spec, what) in [
        (with("volumes", volumes), "ClusterTrustBundle projected volume sources"),
        (with("resourceClaims", claims), "ResourceClaims"),
    ] {
        for origin in [StaticOrigin::File("f"), StaticOrigin::Url("u")] {
            let error = prepare(manifest(&spec), &origin, &lenient).unwrap_err();
            assert_eq!(error.to_string(), format!("static pods may not use {what}"));
        }
        assert!(prepare(manifest(&spec), &StaticOrigin::UrlList("u"), &lenient).is_ok());
        let strict = prepare(manifest(&spec), &StaticOrigin::UrlList("u"), &settings());
        assert!(matches!(strict, Err(StaticPodError::ApiReference(_))));
    }
}

#[test]
fn a_dumped_pod_keeps_its_status_but_begins_anew() {
    let mut dumped = manifest(&simple());
    let status = json!({ "phase": "Running", "qosClass": "BestEffort", "message": "m" });
    dumped.status = serde_json::from_value(status).unwrap();
    let pod = prepare(dumped, &StaticOrigin::File("f"), &settings()).unwrap();
    let status = pod.status.unwrap();
    assert_eq!(status.phase.as_deref(), Some("Pending"));
    assert_eq!(status.message.as_deref(), Some("m"));
}

#[test]
fn what_an_api_server_would_refuse_is_refused() {
    let container = |field: &str, value: Value| {
        let mut spec = simple();
        spec["containers"][0][field] = value;
        spec
    };
    let cases = [
        (json!({ "containers": [] }), "spec.containers"),
        (container("name", json!("Not_OK")), "spec.containers[0].name"),
        (container("image", json!("")), "spec.containers[0].image"),
        (with("restartPolicy", json!("Sometimes")), "spec.restartPolicy"),
        (with("dnsPolicy", json!("Mine")), "spec.dnsPolicy"),
        (
            container("ports", json!([{ "containerPort": 0 }])),
            "spec.containers[0].ports[0].containerPort",
        ),
        (
            container("volumeMounts", json!([{ "name": "gone", "mountPath": "/x" }])),
            "spec.containers[0].volumeMounts[0].name",
        ),
        (
            container("resources", json!({ "requests": { "cpu": "2" }, "limits": { "cpu": "1" } })),
            "spec.containers[0].resources.requests",
        ),
        (container("livenessProbe", json!({})), "spec.containers[0].livenessProbe"),
        (
            with(
                "initContainers",
                json!([{ "name": "i", "image": "x", "readinessProbe": { "tcpSocket": { "port": 1 } } }]),
            ),
            "spec.initContainers[0].readinessProbe",
        ),
        (
            with("initContainers", json!([{ "name": "a", "image": "x" }])),
            "spec.initContainers[0].name",
        ),
        (
            with("volumes", json!([{ "name": "v", "emptyDir": {}, "hostPath": { "path": "/" } }])),
            "spec.volumes[0].hostPath",
        ),
        (with("activeDeadlineSeconds", json!(0)), "spec.activeDeadlineSeconds"),
    ];
    for (spec, path) in cases {
        match prepared(&spec) {
            Err(StaticPodError::Invalid(found)) => {
                assert!(found.iter().any(|f| f.path == path), "{path}: {found:?}");
            }
            other => panic!("{path}: {other:?}"),
        }
    }
    let nameless: Pod = serde_json::from_value(json!({ "spec": simple() })).unwrap();
    let error = prepare(nameless, &StaticOrigin::File("x"), &settings()).unwrap_err();
    assert_eq!(error, StaticPodError::NoName);
}

fn running_static() -> Pod {
    let mut pod = prepared(&simple()).unwrap();
    let annotations = pod.metadata.annotations.as_mut().unwrap();
    annotations.insert(api::pod::SOURCE_ANNOTATION.to_owned(), "file".to_owned());
    pod
}

#[test]
fn a_mirror_is_replaced_when_it_shows_another_version() {
    let pod = running_static();
    let create = MirrorPlan { delete: None, create: true };
    assert_eq!(mirror_plan(&pod, None), create);
    let mut mirror = mirror_of(&pod, "node1", "node-uid").unwrap();
    mirror.metadata.uid = Some("m".to_owned());
    let owner = &mirror.metadata.owner_references.as_ref().unwrap()[0];
    assert_eq!((owner.kind.as_str(), owner.controller), ("Node", Some(true)));
    assert_eq!(mirror_plan(&pod, Some(&mirror)), MirrorPlan { delete: None, create: false });

    let replace = MirrorPlan { delete: Some("m".to_owned()), create: true };
    let mut other = pod.clone();
    set_uid(&mut other, "changed");
    assert_eq!(mirror_plan(&other, Some(&mirror)), replace);
    mirror.metadata.deletion_timestamp =
        Some(api::machinery::apis::meta::v1::Time(jiff::Timestamp::UNIX_EPOCH));
    assert_eq!(mirror_plan(&pod, Some(&mirror)), replace);
}
