//! No descriptor of ours reaches a program that we start: what such a program could do with one is at worst
//! runc's CVE-2024-21626. Two looks at one node: the flags of everything the agent has open, and what
//! a credential plugin, a mount helper and other tools find when they are started by it.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test on the real machine")]

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::json;
use testkit::real::{
    FakeLogind, KubeletKind, KubeletOptions, Slot, TestNode, eventually, eventually_some,
};

const PATIENCE: Duration = Duration::from_secs(90);
const IMAGE: &str = "registry.k8s.io/e2e-test-images/busybox:1.37.0-1";
/// `O_CLOEXEC`, as the kernel shows it.
const CLOSE_ON_EXEC: u32 = 0o2_000_000;

/// Tools that we start, and the plugin; each notes what it was given, and refuses.
const PROGRAMS: [&str; 5] = ["mount", "systemd-run", "iptables", "ip6tables", "plugin"];

/// Notes every open descriptor. The list is made by one expansion, whose own descriptor is closed again
/// when each entry is looked at.
fn script(notes: &Path, name: &str) -> String {
    let answer = json!({"kind": "CredentialProviderResponse", "cacheKeyType": "Image", "auth": {},
        "apiVersion": "credentialprovider.kubelet.k8s.io/v1"});
    let end = if name == "plugin" { format!("echo '{answer}'") } else { "exit 1".to_owned() };
    format!(
        "#!/bin/sh\nset -- /proc/$$/fd/*\nfor open; do [ -h \"$open\" ] || continue\n\
         echo \"{name} ${{open##*/}} $(readlink \"$open\")\" >> {}\ndone\n\
         echo \"{name} end\" >> {0}\n{end}\n",
        notes.display()
    )
}

fn place(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// What each program found beyond its standard streams, its own text, and what this test was started with itself.
fn found(notes: &Path, tools: &Path, given: &[String]) -> BTreeMap<String, Vec<String>> {
    let mut all = BTreeMap::new();
    for line in fs::read_to_string(notes).unwrap_or_default().lines() {
        let mut words = line.splitn(3, ' ');
        let (name, number) = (words.next().unwrap(), words.next().unwrap());
        let target = words.next().unwrap_or_default();
        let list: &mut Vec<String> = all.entry(name.to_owned()).or_default();
        let own = Path::new(target) == tools.join(name);
        let seen = format!("{number} -> {target}");
        if !own && !["0", "1", "2", "end"].contains(&number) && !given.contains(&seen) {
            list.push(seen);
        }
    }
    all
}

/// Descriptors of a process, beyond its standard streams, that a program it starts would get.
fn inherited(pid: u32) -> (usize, Vec<String>) {
    let mut checked = 0;
    let mut left_open = Vec::new();
    for entry in fs::read_dir(format!("/proc/{pid}/fdinfo")).unwrap().flatten() {
        let number = entry.file_name().into_string().unwrap();
        // It may be closed by now.
        let Ok(info) = fs::read_to_string(entry.path()) else { continue };
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:")).unwrap().trim();
        let flags = u32::from_str_radix(flags, 8).unwrap();
        if number.parse::<u32>().unwrap() <= 2 {
            continue;
        }
        checked += 1;
        if flags & CLOSE_ON_EXEC == 0 {
            let target = fs::read_link(format!("/proc/{pid}/fd/{number}")).unwrap_or_default();
            left_open.push(format!("{number} -> {}", target.display()));
        }
    }
    (checked, left_open)
}

fn pod(name: &str, image: &str, more: serde_json::Value) -> String {
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"terminationGracePeriodSeconds": 1, "containers": [{
            "name": name, "image": image,
            "command": ["sh", "-c", "trap 'exit 0' TERM; sleep 3600 & wait"],
            "volumeMounts": [{"name": "v", "mountPath": "/v", "subPath": "below"}],
            "livenessProbe": {"exec": {"command": ["true"]}, "periodSeconds": 1},
            "readinessProbe": {"tcpSocket": {"port": 9}, "periodSeconds": 1},
        }]},
    });
    pod["spec"]["volumes"] = json!([more]);
    pod.to_string()
}

#[test]
fn programs_that_the_agent_starts_get_none_of_its_descriptors() {
    // What whoever started the test left open goes through everybody's hands.
    let (_, given) = inherited(std::process::id());
    let left_open_by = |pid| {
        let (checked, mut left_open) = inherited(pid);
        left_open.retain(|open| !given.contains(open));
        (checked, left_open)
    };
    let bus = Slot::take().unwrap();
    let logind = FakeLogind::start(&bus, Duration::from_secs(300)).unwrap();
    let (tools, notes) = (bus.path("tools"), bus.path("notes"));
    for name in PROGRAMS {
        place(&tools.join(name), &script(&notes, name));
    }
    // An address of this machine on which nobody listens: the plugin is asked, the pull fails at once.
    let providers = json!({"apiVersion": "kubelet.config.k8s.io/v1",
        "kind": "CredentialProviderConfig",
        "providers": [{"name": "plugin", "apiVersion": "credentialprovider.kubelet.k8s.io/v1",
            "matchImages": ["127.0.0.1:1"], "defaultCacheDuration": "0s"}]});
    let providers = bus.write("etc/providers.json", providers.to_string()).unwrap();
    let path = std::env::var("PATH").unwrap_or_default();
    let flag = |name: &str, path: &PathBuf| {
        format!("--image-credential-provider-{name}={}", path.display())
    };
    let options = KubeletOptions {
        config: json!({"shutdownGracePeriod": "20s", "shutdownGracePeriodCriticalPods": "10s"}),
        args: vec![flag("config", &providers), flag("bin-dir", &tools)],
        env: vec![
            ("DBUS_SYSTEM_BUS_ADDRESS".to_owned(), logind.address().to_owned()),
            ("PATH".to_owned(), format!("{}:{path}", tools.display())),
        ],
        ..KubeletOptions::default()
    };
    let kind = KubeletKind::from_env().unwrap();
    let mut node = TestNode::builder().options(options).kubelet(kind).start().unwrap();
    eventually(PATIENCE, "the lock is held", || logind.newest_lock().is_some_and(|(_, held)| held))
        .unwrap();

    let memory = json!({"name": "v", "emptyDir": {"medium": "Memory"}});
    node.add_manifest("runs.json", &pod("runs", IMAGE, memory.clone())).unwrap();
    node.add_manifest("pulls.json", &pod("pulls", "127.0.0.1:1/nothing:1", memory)).unwrap();
    let share = json!({"name": "v", "nfs": {"server": "192.0.2.9", "path": "/x"}});
    node.add_manifest("mounts.json", &pod("mounts", IMAGE, share)).unwrap();
    node.wait_running("runs", PATIENCE).unwrap();
    let pid = node.kubelet().unwrap().pid();
    let started = eventually_some(PATIENCE, "the programs were started", || {
        let (_, left_open) = left_open_by(pid);
        assert_eq!(left_open, [""; 0], "while pods start");
        let ended = fs::read_to_string(&notes).ok()?;
        let has = |name: &&str| ended.lines().any(|line| line == format!("{name} end"));
        ["plugin", "mount", "iptables"].iter().all(has).then(|| found(&notes, &tools, &given))
    })
    .unwrap();
    assert!(started.values().all(Vec::is_empty), "{started:#?}");

    assert_eq!(node.kubelet_get("/stats/summary").unwrap().0, 200);
    assert_eq!(node.kubelet_get("/metrics/cadvisor").unwrap().0, 200);
    let (checked, left_open) = left_open_by(pid);
    assert_eq!(left_open, [""; 0]);
    assert!(checked > 10, "{checked} descriptors are too few to be the agent's");
    node.stop_kubelet();
}
