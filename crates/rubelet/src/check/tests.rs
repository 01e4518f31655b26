//! Checks over made-up machines.

use super::*;
use config::ConfigFiles;
use std::path::{Path, PathBuf};

/// No files at all.
#[derive(Debug)]
struct NoFiles;

impl ConfigFiles for NoFiles {
    fn read(&self, path: &str) -> Result<Vec<u8>, String> {
        Err(format!("open {path}: no such file or directory"))
    }

    fn walk(&self, path: &str) -> Result<Vec<String>, String> {
        Err(format!("lstat {path}: no such file or directory"))
    }

    fn working_dir(&self) -> String {
        "/".to_owned()
    }
}

fn loaded(args: &[&str]) -> Loaded {
    config::load(args.iter().copied(), &NoFiles, CgroupVersion::V2)
}

fn settings_of(args: &[&str]) -> Config {
    match loaded(args).result {
        Ok(Request::Run(config)) => *config,
        other => panic!("{other:?}"),
    }
}

/// A folder that is gone at the end of the test.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path =
            std::env::temp_dir().join(format!("rubelet-check-{name}-{}", std::process::id()));
        sys::fs::create_dir_all(&path, 0o755).unwrap();
        Self(path)
    }

    fn file(&self, path: &str, content: &str) -> PathBuf {
        let path = self.0.join(path);
        sys::fs::create_dir_all(path.parent().unwrap(), 0o755).unwrap();
        sys::fs::write(&path, content).unwrap();
        path
    }

    fn roots(&self) -> Roots {
        let below = |name: &str| self.0.join(name);
        Roots {
            kubelet: "/var/lib/kubelet".into(),
            proc: below("proc"),
            sys: below("sys"),
            etc: below("etc"),
            ..Roots::default()
        }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = sys::removal::remove_tree(
            Path::new("/proc"),
            &self.0,
            sys::removal::Contents::Everything,
        );
    }
}

fn levels(findings: &[Finding]) -> Vec<Level> {
    findings.iter().map(|finding| finding.level).collect()
}

#[test]
fn whatever_is_not_good_comes_with_a_fix() {
    let scratch = Scratch::new("fixes");
    let args = ["--config-dir=", "--kubeconfig=/nonexistent", "--protect-kernel-defaults"];
    let findings = machine(&settings_of(&args), &scratch.roots());
    for finding in &findings {
        assert_eq!(finding.fix.is_empty(), finding.level == Level::Ok, "{finding:?}");
    }
    assert!(Report { findings }.failed());
}

#[test]
fn a_fault_of_the_settings_is_a_finding() {
    let findings = settings::check(&loaded(&["--port=x"]));
    assert_eq!(levels(&findings), [Level::Error]);
    assert!(findings[0].seen.starts_with("failed to parse kubelet flag: "));
    let findings = settings::check(&loaded(&["--feature-gates=CustomCPUCFSQuotaPeriod=true"]));
    assert!(findings.iter().any(|f| f.fix == "remove the gate"), "{findings:?}");
}

#[test]
fn running_without_a_file_is_open_and_told_so() {
    let findings = settings::check(&loaded(&[]));
    assert_eq!(levels(&findings), [Level::Ok, Level::Warning]);
    let findings = settings::check(&loaded(&["--anonymous-auth=false"]));
    assert_eq!(levels(&findings), [Level::Ok]);
}

#[test]
fn swap_is_an_error_only_where_it_is_not_allowed() {
    let scratch = Scratch::new("swap");
    let roots = scratch.roots();
    scratch.file("proc/swaps", "Filename Type Size Used Priority\n");
    assert_eq!(levels(&host::swap(&settings_of(&[]), &roots)), [Level::Ok]);
    scratch.file("proc/swaps", "Filename Type Size Used Priority\n/dev/sda2 partition 1 0 -2\n");
    let findings = host::swap(&settings_of(&[]), &roots);
    assert_eq!(levels(&findings), [Level::Error]);
    assert_eq!(findings[0].seen, "on: /dev/sda2");
    let allowed = settings_of(&["--fail-swap-on=false"]);
    assert_eq!(levels(&host::swap(&allowed, &roots)), [Level::Ok]);
}

#[test]
fn the_mount_of_the_root_folder_must_be_shared() {
    let scratch = Scratch::new("mounts");
    let table = "1 0 8:1 / / rw shared:1 - ext4 /dev/sda1 rw\n\
                 2 1 8:2 / /var rw - ext4 /dev/sda2 rw\n";
    scratch.file("proc/self/mountinfo", table);
    let findings = host::propagation(&scratch.roots());
    assert_eq!(levels(&findings), [Level::Warning]);
    assert_eq!(findings[0].fix, "mount --make-rshared /var");
    let roots = Roots { kubelet: "/srv/kubelet".into(), ..scratch.roots() };
    assert_eq!(levels(&host::propagation(&roots)), [Level::Ok]);
}

#[test]
fn low_inotify_limits_are_told_with_the_sysctl() {
    let scratch = Scratch::new("inotify");
    scratch.file("proc/sys/fs/inotify/max_user_instances", "64\n");
    scratch.file("proc/sys/fs/inotify/max_user_watches", "100000\n");
    let findings = host::inotify(&scratch.roots());
    assert_eq!(levels(&findings), [Level::Warning]);
    assert!(findings[0].fix.starts_with("sysctl -w fs.inotify.max_user_instances=8192"));
    scratch.file("proc/sys/fs/inotify/max_user_instances", "128\n");
    assert_eq!(levels(&host::inotify(&scratch.roots())), [Level::Ok]);
}

#[test]
fn settings_are_held_against_the_benchmark_one_by_one() {
    let open = |args: &[&str]| {
        let findings = benchmark::check(&settings_of(args));
        assert_eq!(findings.len(), 1);
        let (_, list) = findings[0].seen.split_once(" are met").unwrap();
        list.trim_start_matches(", not ").split(", ").map(str::to_owned).collect::<Vec<_>>()
    };
    // What upstream leaves open without a configuration file.
    let all = ["4.2.1", "4.2.2", "4.2.3", "4.2.4", "4.2.9", "4.2.10", "4.2.12", "4.2.13", "4.2.14"];
    assert_eq!(open(&[]), all);
    let meeting = [
        "--anonymous-auth=false",
        "--authorization-mode=Webhook",
        "--client-ca-file=/ca",
        "--read-only-port=0",
        "--tls-cert-file=/c",
        "--rotate-certificates",
        "--tls-cipher-suites=TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
        "--pod-max-pids=100",
        "--seccomp-default",
    ];
    for (number, flag) in all.iter().zip(meeting) {
        let mut args = vec![flag];
        if *number == "4.2.9" {
            args.push("--tls-private-key-file=/k");
        }
        assert!(!open(&args).contains(&(*number).to_owned()), "{flag}: {:?}", open(&args));
    }
    let worse = [
        ("4.2.5", "--streaming-connection-idle-timeout=0"),
        ("4.2.6", "--make-iptables-util-chains=false"),
        ("4.2.7", "--hostname-override=x"),
        ("4.2.8", "--event-qps=1"),
        ("4.2.11", "--feature-gates=RotateKubeletServerCertificate=false"),
        ("4.2.12", "--tls-cipher-suites=TLS_RSA_WITH_AES_128_CBC_SHA"),
    ];
    for (number, flag) in worse {
        assert!(open(&[flag]).contains(&number.to_owned()), "{flag}");
    }
}

#[test]
fn a_bridge_that_takes_router_advertisements_from_pods_is_warned_of() {
    let scratch = Scratch::new("advertisements");
    let set = |name: &str, values: [u8; 3]| {
        let keys = ["accept_ra", "forwarding", "disable_ipv6"];
        for (key, value) in keys.into_iter().zip(values) {
            let path = format!("proc/sys/net/ipv6/conf/{name}/{key}");
            scratch.file(&path, &value.to_string());
        }
    };
    scratch.file("sys/class/net/cni0/bridge/bridge_id", "");
    for (bridge, default, level) in [
        // One who forwards does not take them.
        ([1, 1, 0], [1, 1, 0], Level::Ok),
        ([2, 1, 0], [0, 0, 0], Level::Warning),
        ([1, 0, 0], [0, 0, 0], Level::Warning),
        ([0, 0, 0], [1, 0, 0], Level::Warning),
        ([2, 1, 1], [1, 0, 1], Level::Ok),
    ] {
        set("cni0", bridge);
        set("default", default);
        // The network of the host itself may need them.
        set("eth0", [2, 0, 0]);
        let findings = host::advertisements(&scratch.roots());
        assert_eq!(levels(&findings), [level], "{bridge:?} {default:?}: {findings:?}");
    }
    set("cni0", [2, 1, 0]);
    let findings = host::advertisements(&scratch.roots());
    assert_eq!(findings[0].fix, "sysctl -w net.ipv6.conf.cni0.accept_ra=0, and in /etc/sysctl.d");
}

#[test]
fn protected_kernel_settings_that_differ_are_an_error() {
    let scratch = Scratch::new("kernel");
    let set = [("vm/overcommit_memory", "1"), ("vm/panic_on_oom", "0"), ("kernel/panic", "10")];
    for (name, value) in set {
        scratch.file(&format!("proc/sys/{name}"), value);
    }
    scratch.file("proc/sys/kernel/panic_on_oops", "0");
    let protected = settings_of(&["--protect-kernel-defaults"]);
    let findings = host::kernel(&protected, &scratch.roots());
    assert_eq!(findings[0].fix, "sysctl -w kernel.panic_on_oops=1");
    assert_eq!(levels(&findings), [Level::Error]);
    assert_eq!(levels(&host::kernel(&settings_of(&[]), &scratch.roots())), [Level::Ok]);
}

#[test]
fn a_resolver_on_the_host_itself_is_warned_of() {
    let scratch = Scratch::new("resolver");
    let path = scratch.file("resolv.conf", "nameserver 127.0.0.53\n");
    let flag = format!("--resolv-conf={}", path.display());
    assert_eq!(levels(&host::resolver(&settings_of(&[&flag]))), [Level::Warning]);
    scratch.file("resolv.conf", "nameserver 10.0.0.1\n");
    assert_eq!(levels(&host::resolver(&settings_of(&[&flag]))), [Level::Ok]);
    assert_eq!(
        levels(&host::resolver(&settings_of(&["--resolv-conf=/nonexistent"]))),
        [Level::Error]
    );
}

#[test]
fn a_port_in_use_is_told() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let args = [&*format!("--healthz-port={port}"), "--enable-server=false", "--read-only-port=0"];
    let findings = host::ports(&settings_of(&args));
    assert_eq!(findings[0].seen, format!("127.0.0.1:{port} is in use"));
}

#[test]
fn the_network_needs_a_configuration_and_its_programs() {
    let scratch = Scratch::new("cni");
    let roots = scratch.roots();
    let bin = scratch.0.join("bin");
    let programs = [bin.to_str().unwrap()];
    assert_eq!(levels(&cni::check(&roots, &programs)), [Level::Warning]);
    scratch.file("etc/cni/net.d/10-x.conflist", "{");
    assert_eq!(levels(&cni::check(&roots, &programs)), [Level::Error]);
    scratch.file(
        "etc/cni/net.d/10-x.conflist",
        r#"{"plugins": [{"type": "bridge", "ipam": {"type": "host-local"}}]}"#,
    );
    scratch.file("bin/bridge", "");
    let findings = cni::check(&roots, &programs);
    assert!(findings[0].seen.ends_with("not there: host-local"), "{findings:?}");
    scratch.file("bin/host-local", "");
    assert_eq!(levels(&cni::check(&roots, &programs)), [Level::Ok]);
}

#[derive(Debug)]
struct At(i64);

impl ports::Clock for At {
    fn now(&self) -> jiff::Timestamp {
        jiff::Timestamp::from_second(self.0).unwrap()
    }
}

fn certificate(path: &Path) {
    let mut params = rcgen::CertificateParams::new(vec!["node".to_owned()]).unwrap();
    params.not_before = rcgen::date_time_ymd(2026, 1, 1);
    params.not_after = rcgen::date_time_ymd(2027, 1, 1);
    let key = rcgen::KeyPair::generate().unwrap();
    sys::fs::write(path, params.self_signed(&key).unwrap().pem()).unwrap();
}

#[test]
fn certificates_are_told_before_they_end() {
    let scratch = Scratch::new("certificates");
    let end = 1_798_761_600; // 2027-01-01
    let flag = format!("--cert-dir={}", scratch.0.display());
    let settings = settings_of(&[&flag]);
    assert_eq!(levels(&certificates::check(&settings, &At(end))), [Level::Ok]);
    certificate(&scratch.0.join("kubelet-client-current.pem"));
    let day = 86_400;
    for (now, level) in
        [(end - 100 * day, Level::Ok), (end - 3 * day, Level::Warning), (end + 1, Level::Error)]
    {
        assert_eq!(levels(&certificates::check(&settings, &At(now))), [level], "{now}");
    }
    scratch.file("kubelet.crt", "nothing");
    assert_eq!(
        levels(&certificates::check(&settings, &At(end - 100 * day))),
        [Level::Ok, Level::Error]
    );
}

#[test]
fn certificates_of_a_kubeconfig_are_looked_at() {
    let scratch = Scratch::new("kubeconfig");
    certificate(&scratch.0.join("client.pem"));
    let text = "users: [{name: a, user: {client-certificate: client.pem}}]\n\
                clusters: [{name: b, cluster: {certificate-authority-data: bm90aGluZw==}}]\n";
    let path = scratch.file("kubeconfig", text);
    let flags = [
        format!("--kubeconfig={}", path.display()),
        format!("--cert-dir={}", scratch.0.join("pki").display()),
    ];
    let findings = certificates::check(&settings_of(&[&flags[0], &flags[1]]), &At(1_790_000_000));
    assert_eq!(levels(&findings), [Level::Ok, Level::Error], "{findings:?}");
    assert!(findings[1].seen.ends_with("there is no certificate in it"));
}

#[test]
fn a_runtime_that_is_not_there_or_hangs_is_told_in_time() {
    let missing = settings_of(&["--container-runtime-endpoint=unix:///nonexistent/r.sock"]);
    let findings = runtime::check(&missing, PATIENCE);
    assert_eq!(levels(&findings), [Level::Error]);
    let scratch = Scratch::new("runtime");
    let socket = scratch.0.join("r.sock");
    let _silent = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let flag = format!("--container-runtime-endpoint=unix://{}", socket.display());
    let findings = runtime::check(&settings_of(&[&flag]), Duration::from_millis(50));
    assert_eq!(levels(&findings), [Level::Error], "{findings:?}");
    let tcp = settings_of(&["--container-runtime-endpoint=tcp://1.2.3.4:5"]);
    assert_eq!(levels(&runtime::check(&tcp, PATIENCE)), [Level::Error]);
}

#[test]
fn credential_providers_need_a_good_file_and_their_programs() {
    let scratch = Scratch::new("providers");
    let flags = [
        format!("--image-credential-provider-config={}", scratch.0.join("conf").display()),
        format!("--image-credential-provider-bin-dir={}", scratch.0.join("bin").display()),
    ];
    let settings = settings_of(&[&flags[0], &flags[1]]);
    assert_eq!(levels(&providers::check(&settings_of(&[]))), []);
    assert_eq!(levels(&providers::check(&settings)), [Level::Error]);
    let file = "apiVersion: kubelet.config.k8s.io/v1\nkind: CredentialProviderConfig\nproviders:\n\
                - {name: ecr, apiVersion: credentialprovider.kubelet.k8s.io/v1, \
                matchImages: [a.io], defaultCacheDuration: 1h}\n";
    scratch.file("conf/a.yaml", &file.replace("ecr", "e cr"));
    let findings = providers::check(&settings);
    assert!(findings[0].seen.ends_with("provider name cannot contain spaces"), "{findings:?}");
    scratch.file("conf/a.yaml", file);
    assert_eq!(levels(&providers::check(&settings)), [Level::Error]);
    let program = scratch.file("bin/ecr", "");
    std::fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .unwrap();
    assert_eq!(levels(&providers::check(&settings)), [Level::Ok]);
}

#[test]
fn the_report_is_one_line_per_finding_and_a_verdict() {
    let report = Report {
        findings: vec![
            Finding::ok("swap", "off"),
            Finding::warning("clock", "nothing keeps it right", "run chrony"),
        ],
    };
    assert_eq!(
        report.text(),
        "ok       swap   off\n\
         warning  clock  nothing keeps it right\n                fix: run chrony\n\
         ready: 0 errors, 1 warnings\n"
    );
    assert!(!report.failed());
}
