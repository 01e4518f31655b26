//! Effective security contexts.

use super::*;
use api::core::v1::{Capabilities, PodSpec};

fn pod(context: Option<PodSecurityContext>) -> Pod {
    let mut pod = Pod {
        spec: Some(PodSpec { security_context: context, ..PodSpec::default() }),
        ..Pod::default()
    };
    pod.metadata.name = Some("p".into());
    pod.metadata.namespace = Some("ns".into());
    pod.metadata.uid = Some("u".into());
    pod
}

fn container(context: SecurityContext) -> Container {
    Container { name: "c".into(), security_context: Some(context), ..Container::default() }
}

fn settings() -> SecuritySettings {
    SecuritySettings { seccomp_root: "/root/seccomp".into(), ..SecuritySettings::default() }
}

fn context(pod: &Pod, container: &Container, user: &ImageUser) -> LinuxContainerSecurityContext {
    container_context(&settings(), pod, container, user, namespaces(pod, None), &[7]).unwrap()
}

#[test]
fn the_container_wins_over_the_pod() {
    let pod = pod(Some(PodSecurityContext {
        run_as_user: Some(1),
        run_as_group: Some(2),
        fs_group: Some(3),
        supplemental_groups: Some(vec![3, 4]),
        supplemental_groups_policy: Some("Strict".into()),
        ..PodSecurityContext::default()
    }));
    let own = container(SecurityContext {
        run_as_user: Some(10),
        privileged: Some(true),
        capabilities: Some(Capabilities { add: Some(vec!["NET_ADMIN".into()]), drop: None }),
        allow_privilege_escalation: Some(false),
        ..SecurityContext::default()
    });
    let got = context(&pod, &own, &ImageUser::Uid(5));
    assert_eq!(got.run_as_user, Some(Int64Value { value: 10 }));
    assert_eq!(got.run_as_group, Some(Int64Value { value: 2 }));
    assert_eq!(got.supplemental_groups, [3, 3, 4, 7]);
    assert_eq!(got.supplemental_groups_policy(), SupplementalGroupsPolicy::Strict);
    assert!(got.privileged && got.no_new_privs);
    assert_eq!(got.capabilities.unwrap().add_capabilities, ["NET_ADMIN"]);
    let sandbox = sandbox_context(&pod, namespaces(&pod, None), &[7]).unwrap();
    assert_eq!(sandbox.supplemental_groups, [3, 7, 3, 4], "another order than containers have");
}

#[test]
fn the_images_user_counts_only_without_run_as_user() {
    let (pod, plain) = (pod(None), container(SecurityContext::default()));
    let by_id = context(&pod, &plain, &ImageUser::Uid(5));
    assert_eq!(by_id.run_as_user, Some(Int64Value { value: 5 }));
    let by_name = context(&pod, &plain, &ImageUser::Name("nobody".into()));
    assert_eq!((by_name.run_as_user, by_name.run_as_username.as_str()), (None, "nobody"));
}

#[test]
fn root_is_refused_where_it_must_not_run() {
    let pod = pod(None);
    let of = |user: Option<i64>| {
        container(SecurityContext {
            run_as_non_root: Some(true),
            run_as_user: user,
            ..SecurityContext::default()
        })
    };
    let text = |user, image: ImageUser| {
        verify_non_root(&pod, &of(user), &image).map_err(|e| e.to_string())
    };
    let at = "(pod: \"p_ns(u)\", container: c)";
    assert_eq!(text(Some(1), ImageUser::Uid(0)), Ok(()));
    assert_eq!(text(None, ImageUser::Uid(7)), Ok(()));
    assert_eq!(
        text(Some(0), ImageUser::Uid(7)),
        Err(format!("container's runAsUser breaks non-root policy {at}"))
    );
    assert_eq!(
        text(None, ImageUser::Uid(0)),
        Err(format!("container has runAsNonRoot and image will run as root {at}"))
    );
    assert_eq!(
        text(None, ImageUser::Name("www".into())),
        Err(format!(
            "container has runAsNonRoot and image has non-numeric user (www), cannot verify user \
             is non-root {at}"
        ))
    );
    assert!(text(None, ImageUser::Uid(1 << 31)).is_err());
    assert!(text(None, ImageUser::Uid(-1)).is_err());
}

#[test]
fn seccomp_comes_from_the_container_then_the_pod_then_the_node() {
    let localhost = |name: Option<&str>| SeccompProfile {
        type_: "Localhost".into(),
        localhost_profile: name.map(Into::into),
    };
    let plain = Container::default();
    let own = container(SecurityContext {
        seccomp_profile: Some(localhost(Some("a/b.json"))),
        ..SecurityContext::default()
    });
    let of_pod = PodSecurityContext {
        seccomp_profile: Some(SeccompProfile {
            type_: "RuntimeDefault".into(),
            localhost_profile: None,
        }),
        ..PodSecurityContext::default()
    };
    let (node, strict) = (settings(), SecuritySettings { seccomp_default: true, ..settings() });
    let kind = |s: &SecuritySettings, p, c| seccomp(s, p, c).unwrap().profile_type();
    assert_eq!(kind(&node, None, &plain), ProfileType::Unconfined);
    assert_eq!(kind(&strict, None, &plain), ProfileType::RuntimeDefault);
    assert_eq!(kind(&node, Some(&of_pod), &plain), ProfileType::RuntimeDefault);
    let got = seccomp(&node, Some(&of_pod), &own).unwrap();
    assert_eq!(got.localhost_ref, "/root/seccomp/a/b.json");
    let empty = container(SecurityContext {
        seccomp_profile: Some(localhost(None)),
        ..SecurityContext::default()
    });
    assert_eq!(seccomp(&node, None, &empty), Err(RequestError::SeccompProfile));
}

#[test]
fn apparmor_annotations_stand_between_container_and_pod() {
    let mut with = pod(Some(PodSecurityContext {
        app_armor_profile: Some(AppArmorProfile {
            type_: "Unconfined".into(),
            localhost_profile: None,
        }),
        ..PodSecurityContext::default()
    }));
    let plain = Container { name: "c".into(), ..Container::default() };
    let text = |pod: &Pod, c: &Container| apparmor(pod, c).unwrap().map(|(_, text)| text);
    assert_eq!(text(&with, &plain).as_deref(), Some("unconfined"));
    with.metadata.annotations =
        Some([(format!("{APPARMOR_ANNOTATION}c"), "localhost/prof".into())].into());
    assert_eq!(text(&with, &plain).as_deref(), Some("localhost/prof"));
    let own = container(SecurityContext {
        app_armor_profile: Some(AppArmorProfile {
            type_: "RuntimeDefault".into(),
            localhost_profile: None,
        }),
        ..SecurityContext::default()
    });
    assert_eq!(text(&with, &own).as_deref(), Some("runtime/default"));
    assert_eq!(text(&pod(None), &plain), None);
}

/// CVE-2023-2431: a profile that names nothing ran unconfined.
#[test]
fn no_profile_of_the_node_that_is_odd_ever_runs_unconfined() {
    let seccomp_of = |type_: &str, name: Option<&str>| {
        let profile =
            SeccompProfile { type_: type_.into(), localhost_profile: name.map(Into::into) };
        let own = SecurityContext { seccomp_profile: Some(profile), ..SecurityContext::default() };
        seccomp(&settings(), None, &container(own))
    };
    for empty in [None, Some("")] {
        assert_eq!(seccomp_of("Localhost", empty), Err(RequestError::SeccompProfile));
    }
    // The API server's validation rejects paths that leave the folder; as upstream, the cleaned path is
    // passed to the runtime, which does not find such a file.
    for (name, place) in [
        ("/etc/passwd", "/root/seccomp/etc/passwd"),
        ("a/../b", "/root/seccomp/b"),
        ("../../etc/x", "/etc/x"),
    ] {
        let got = seccomp_of("Localhost", Some(name)).unwrap();
        assert_eq!(
            (got.profile_type(), got.localhost_ref.as_str()),
            (ProfileType::Localhost, place)
        );
    }
    let apparmor_of = |type_: &str, name: Option<&str>| {
        let profile =
            AppArmorProfile { type_: type_.into(), localhost_profile: name.map(Into::into) };
        let own =
            SecurityContext { app_armor_profile: Some(profile), ..SecurityContext::default() };
        apparmor(&pod(None), &container(own))
    };
    assert_eq!(apparmor_of("Localhost", None), Err(RequestError::AppArmorProfile));
    assert_eq!(apparmor_of("None", Some("x")), Err(RequestError::AppArmorType("None".into())));
    let (named, text) = apparmor_of("Localhost", Some("../x")).unwrap().unwrap();
    assert_eq!((named.profile_type(), text.as_str()), (ProfileType::Localhost, "localhost/../x"));
}

#[test]
fn unmasked_proc_hides_nothing() {
    let own = container(SecurityContext {
        proc_mount: Some("Unmasked".into()),
        ..SecurityContext::default()
    });
    let got = context(&pod(None), &own, &ImageUser::Uid(0));
    assert!(got.masked_paths.is_empty() && got.readonly_paths.is_empty());
}

#[test]
fn a_pod_with_its_own_ids_maps_users_and_groups_alike() {
    let range = UserNamespaceRange { host_id: 65_536, length: 65_536 };
    let got = namespaces(&pod(None), Some(range)).userns_options.unwrap();
    assert_eq!(got.mode(), NamespaceMode::Pod);
    assert_eq!(got.uids, got.gids);
    assert_eq!(got.uids, [IdMapping { host_id: 65_536, container_id: 0, length: 65_536 }]);
}

#[test]
fn groups_of_volumes_come_once_and_only_if_the_pod_has_them_not() {
    let pod: Pod = serde_json::from_value(serde_json::json!({
        "spec": {"containers": [], "securityContext": {"supplementalGroups": [7], "fsGroup": 8}}
    }))
    .unwrap();
    assert_eq!(groups_of_volumes(&pod, [9, 7, 8, 9, 5].into_iter()), [5, 8, 9]);
    assert_eq!(groups_of_volumes(&Pod::default(), [7, 7].into_iter()), [7]);
}
