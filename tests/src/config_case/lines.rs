//! Whole cases by chance.

use super::rng::Rng;
use super::{Case, documents, fields, material, related};

/// Case number `n` of a seed.
#[must_use]
pub fn make(seed: u64, n: u64) -> Case {
    let mut rng = Rng::new(seed.wrapping_mul(0x1_0000_0001).wrapping_add(n));
    match rng.below(100) {
        0..=16 => one_flag(&mut rng),
        17..=22 => several_flags(&mut rng),
        23..=28 => grammar(&mut rng),
        29..=50 => file(&mut rng),
        51..=57 => file_and_flags(&mut rng),
        58..=61 => material::make(&mut rng),
        62..=66 => over_each_other(&mut rng),
        67..=73 => drop_ins(&mut rng),
        74..=79 => providers(&mut rng),
        80..=86 => kubeconfig(&mut rng),
        87 => bootstrap(&mut rng),
        88 => certificates(&mut rng),
        _ => related(&mut rng),
    }
}

fn flag(rng: &mut Rng) -> Vec<String> {
    let flag = &fields::flags()[rng.below(fields::flags().len())];
    // Paths of the case itself.
    if ["config", "config-dir", "root-dir", "cert-dir", "kubeconfig"].contains(&flag.name) {
        let value = rng.of(&["", "none", "/mnt/none", "/dev/null", "/proc/self/mem", ".", "none/"]);
        return vec![format!("--{}={value}", flag.name)];
    }
    let value = fields::flag_value(flag, rng);
    let mut name = flag.name.to_owned();
    if rng.once_in(16) {
        name = name.replace('-', "_");
    }
    if flag.kind == "bool" && rng.once_in(4) {
        return vec![format!("--{name}")];
    }
    match rng.below(12) {
        0 if flag.kind != "bool" => vec![format!("--{name}"), value],
        1 => {
            vec![format!("--{name}={value}"), format!("--{name}={}", fields::flag_value(flag, rng))]
        }
        2 if rng.once_in(4) => vec![format!("--{name}")],
        3 if rng.once_in(4) => vec![format!("-{name}={value}")],
        _ => vec![format!("--{name}={value}")],
    }
}

fn one_flag(rng: &mut Rng) -> Case {
    Case { args: flag(rng), ..Case::default() }
}

fn several_flags(rng: &mut Rng) -> Case {
    let mut case = Case::default();
    for _ in 0..2 + rng.below(4) {
        case.args.extend(flag(rng));
    }
    case
}

const GRAMMAR: &[&[&str]] = &[
    &["--help"],
    &["-h"],
    &["--help=false"],
    &["--help=x"],
    &["-hv"],
    &["-vh"],
    &["--version"],
    &["--version=raw"],
    &["--version=false"],
    &["--version=x"],
    &["--version", "--help"],
    &["--help", "x"],
    &["x", "--help"],
    &["x"],
    &["x", "y"],
    &[""],
    &["--"],
    &["--", "x"],
    &["-"],
    &["--bogus"],
    &["--bogus=1"],
    &["--bogus", "x"],
    &["-x"],
    &["-vx"],
    &["-v"],
    &["-v", "3"],
    &["-v3"],
    &["-v=3"],
    &["-v=x"],
    &["-v", "-1"],
    &["-v=-1"],
    &["--v=99"],
    &["--=x"],
    &["---x"],
    &["--=", "x"],
    &["-=x"],
    &["--port"],
    &["--port", "--address=1.2.3.4"],
    &["--port", "5", "6"],
    &["--port=5", "--port=6"],
    &["--port=x", "--address=x"],
    &["--register_node=false"],
    &["--Register-node=false"],
    &["--register-node", "false"],
    &["--no-register-node"],
    &["--port 5"],
    &["--port =5"],
    &["-port=5"],
    &["-p", "5"],
    &["--feature-gates"],
    &["--feature-gates="],
    &["--feature-gates=AllAlpha=true"],
    &["--feature-gates=AllAlpha=true,AllBeta=true"],
    &["--feature-gates=AllBeta=false"],
    &["--feature-gates=AllAlpha=true,AllBeta=false"],
    &["--feature-gates=AllAlpha=false"],
    &["--eviction-hard="],
    &["--eviction-hard=memory.available<5%", "--eviction-hard=nodefs.available<5%"],
    &["--node-labels=a=b", "--node-labels=c=d"],
    &["--system-reserved=cpu=1", "--system-reserved=memory=1Gi"],
    &["--cluster-dns=1.2.3.4", "--cluster-dns=5.6.7.8"],
    &["--manifest-url-header=a:b", "--manifest-url-header=a:c"],
    &["--log-json-split-stream"],
    &["--log-text-split-stream"],
    &["--log-json-info-buffer-size=1Ki"],
    &["--logging-format=json"],
    &["--logging-format=json", "--port=-1"],
    &["--logging-format=json", "--vmodule=a=1"],
    &["--log-flush-frequency=0s"],
    &["--vmodule=a=1", "--vmodule=b=2"],
    &["--container-runtime=remote"],
    &["--pod-infra-container-image=x"],
    &["--keep-terminated-pod-volumes"],
    &["--logtostderr"],
    &["--alsologtostderr"],
    &["--log-dir=/x"],
    &["--stderrthreshold=2"],
    &["--config="],
    &["--config"],
    &["--config-dir="],
    &["--config-dir=none"],
    &["--config=none"],
    &["--config=/"],
    &["--config=."],
    &["--config=none/"],
    &["--config=~/x"],
    &["--reserved-cpus=0", "--system-reserved=cpu=1"],
    &["--reserved-cpus=0", "--kube-reserved=cpu=1,memory=1Gi"],
    &["--cgroups-per-qos=false"],
    &["--cgroups-per-qos=false", "--enforce-node-allocatable="],
    &["--cgroups-per-qos=false", "--enforce-node-allocatable=none"],
    &["--fail-cgroupv1=true"],
    &["--fail-cgroupv1"],
    &["--tls-cert-file=none", "--tls-private-key-file=none"],
    &["--tls-cert-file=none"],
    &["--client-ca-file=none"],
    &["--rotate-certificates"],
    &["--rotate-server-certificates"],
    &["--rotate-server-certificates", "--feature-gates=RotateKubeletServerCertificate=false"],
    &["--authentication-token-webhook"],
    &["--authorization-mode=Webhook"],
    &["--anonymous-auth=false", "--authorization-mode=AlwaysAllow"],
    &["--healthz-port=0"],
    &["--read-only-port=0"],
    &["--protect-kernel-defaults"],
    &["--kubeconfig=none"],
    &["--kubeconfig=none", "--bootstrap-kubeconfig=none"],
    &["--hostname-override="],
    &["--image-credential-provider-config=none"],
    &["--image-credential-provider-bin-dir=none"],
    &["--container-runtime-endpoint="],
    &["--seccomp-default"],
    &["--runonce"],
    &["--enable-server=false"],
    &["--enable-server=false", "--port=-1"],
    &[
        "--kube-reserved=cpu=1",
        "--kube-reserved-cgroup=/x",
        "--enforce-node-allocatable=pods,kube-reserved",
    ],
    &["--experimental-allocatable-ignore-eviction"],
    &["--kernel-memcg-notification"],
    &["--local-storage-capacity-isolation=false"],
    &["--show-hidden-metrics-for-version=1.35"],
    &["--show-hidden-metrics-for-version=1.34"],
];

/// What may stand between flags.
const BETWEEN: &[&str] = &[
    "x",
    "",
    "--",
    "-",
    "---",
    "--bogus",
    "--bogus=1",
    "-x",
    "-x=1",
    "-v",
    "-v=2",
    "-v 2",
    "--v",
    "--=1",
    "=",
    "--help",
    "-h",
    "--version=false",
    "--no-port",
    "--PORT=5",
    "--port==5",
    "--config==c.yaml",
    "@c.yaml",
    "--port=5 ",
    " --port=5",
    "--port\n=5",
    "\u{2014}port=5",
    "$HOME",
    "--root-dir=$HOME",
    "--node-labels",
    "--vmodule",
    "\u{0301}",
    "-1",
    "--1",
    "--é=1",
];

fn grammar(rng: &mut Rng) -> Case {
    if rng.once_in(3) {
        let mut case = Case::default();
        for _ in 0..=rng.below(3) {
            match rng.below(3) {
                0 => case.args.push(rng.of(BETWEEN).to_owned()),
                1 => case.args.extend(flag(rng)),
                _ => case.args.extend(rng.of(GRAMMAR).iter().map(|arg| (*arg).to_owned())),
            }
        }
        return case;
    }
    let mut case = Case::of(rng.of(GRAMMAR));
    if rng.once_in(4) {
        case.args.extend(rng.of(GRAMMAR).iter().map(|arg| (*arg).to_owned()));
    }
    case
}

fn file(rng: &mut Rng) -> Case {
    let path = if rng.once_in(6) {
        rng.of(&["/mnt/c.yaml", "./c.yaml", "sub/../c.yaml", "c.yaml"])
    } else {
        "c.yaml"
    };
    if rng.once_in(12) {
        let to = rng.of(&["real.yaml", "c.yaml", "none", "/mnt", "/dev/null", "/mnt/real.yaml"]);
        let case = Case::default().arg(format!("--config={path}")).file("@c.yaml", to);
        let case = case.file("real.yaml", documents::any(rng));
        return if path.starts_with("sub") { case.file("sub/", "") } else { case };
    }
    let case = Case::default().arg(format!("--config={path}")).file("c.yaml", documents::any(rng));
    if path.starts_with("sub") { case.file("sub/", "") } else { case }
}

fn file_and_flags(rng: &mut Rng) -> Case {
    let mut case = if rng.once_in(3) {
        file(rng)
    } else {
        let count = 1 + rng.below(4);
        Case::default()
            .arg("--config=c.yaml")
            .file("c.yaml", documents::with_fields(count, true, rng))
    };
    for _ in 0..=rng.below(3) {
        case.args.extend(flag(rng));
    }
    case
}

const NAMES: &[&str] = &[
    "10-a.conf",
    "20-b.conf",
    "a.conf",
    "z.conf",
    "A.conf",
    "sub/x.conf",
    "sub/y.conf",
    ".hidden.conf",
    "a.yaml",
    "noext",
    "a.CONF",
    "a.conf.bak",
    "sub/deep/q.conf",
    "é.conf",
    "conf",
    ".conf",
    "a b.conf",
    "00.conf",
];

fn drop_ins(rng: &mut Rng) -> Case {
    let folder = if rng.once_in(8) { rng.of(&["d/", "/mnt/d", "./d"]) } else { "d" };
    let mut case = Case::default().arg(format!("--config-dir={folder}"));
    if rng.below(3) > 0 {
        let count = rng.below(3);
        let base = if rng.once_in(5) {
            documents::any(rng)
        } else {
            documents::with_fields(count, true, rng).into_bytes()
        };
        case = case.arg("--config=c.yaml").file("c.yaml", base);
    }
    for _ in 0..=rng.below(3) {
        let name = if rng.once_in(3) { rng.of(NAMES) } else { rng.of(&NAMES[..7]) };
        case = case.file(&format!("d/{name}"), documents::drop_in(rng));
    }
    if rng.once_in(6) {
        case = case.file("d/empty.conf", "");
    }
    if rng.once_in(8) {
        let (name, to) = rng.of(&[
            &("@d/link.conf", "../c.yaml"),
            &("@d/link.conf", "nowhere"),
            &("@d/link.conf", "link.conf"),
            &("@d/link.conf", "/mnt"),
            &("@d/link", "../other"),
            &("@d/15.conf", "/mnt/other/x.conf"),
            &("@d/link.conf", "/dev/null"),
        ]);
        case = case.file(name, *to).file("other/x.conf", documents::drop_in(rng));
    }
    if rng.once_in(8) {
        case = case.file("d/folder.conf/", "");
    }
    if rng.once_in(4) {
        case.args.extend(flag(rng));
    }
    case
}

/// The same fields in a file, in drop-ins, on the command line: which one counts, and what is left of
/// the others.
fn over_each_other(rng: &mut Rng) -> Case {
    let all = fields::fields();
    let chosen: Vec<&fields::Field> =
        (0..=rng.below(3)).map(|_| &all[rng.below(all.len())]).collect();
    let mut case = Case::default().arg("--config-dir=d");
    let text = |alone: bool, rng: &mut Rng| {
        let mut some: Vec<&fields::Field> = chosen.clone();
        some.retain(|_| !rng.once_in(4));
        let mut text = documents::with_these(&some, alone, rng);
        if rng.once_in(6) {
            text.push_str(rng.of(documents::EXTRA));
            text.push('\n');
        }
        text
    };
    if !rng.once_in(4) {
        case = case.arg("--config=c.yaml").file("c.yaml", text(true, rng));
    }
    for name in ["10.conf", "20.conf", "sub/05.conf"] {
        if !rng.once_in(3) {
            let alone = rng.once_in(2);
            case = case.file(&format!("d/{name}"), text(alone, rng));
        }
    }
    case = case.file("d/", "");
    for field in chosen {
        if rng.once_in(3)
            && let Some(flag) = fields::flag_of(field.path)
        {
            case = case.arg(format!("--{}={}", flag.name, fields::flag_value(flag, rng)));
        }
    }
    case
}

pub(super) fn providers(rng: &mut Rng) -> Case {
    let mut case = Case::default();
    let config = if rng.once_in(6) {
        rng.of(&["p", "none", "", "bin", "empty", "/mnt/p.yaml"])
    } else {
        "p.yaml"
    };
    let bin = if rng.once_in(8) { rng.of(&["none", "", "p.yaml", "/mnt/bin"]) } else { "bin" };
    if !rng.once_in(12) {
        case = case.arg(format!("--image-credential-provider-config={config}"));
    }
    if !rng.once_in(12) {
        case = case.arg(format!("--image-credential-provider-bin-dir={bin}"));
    }
    let text = documents::providers(rng);
    case = case
        .file("!bin/good", "#!/bin/sh\n")
        .file("!bin/good2", "#!/bin/sh\n")
        .file("bin/plain", "x")
        .file("bin/folder/", "")
        .file("empty/", "")
        .file("p.yaml", if rng.once_in(12) { documents::any(rng) } else { text.into_bytes() });
    if config == "p" {
        for name in ["a.yaml", "b.json", "c.yml", "d.txt"] {
            if rng.once_in(2) {
                case = case.file(&format!("p/{name}"), documents::providers(rng));
            }
        }
        case = case.file("p/sub/", "");
    }
    case
}

/// A kubeconfig that is yet to be had, or is there already.
fn bootstrap(rng: &mut Rng) -> Case {
    let mut case = Case::default()
        .arg("--kubeconfig=k")
        .arg("--bootstrap-kubeconfig=b")
        .arg("--rotate-certificates")
        .file("b", documents::kubeconfig(rng));
    if rng.once_in(2) {
        case = case.file("k", documents::kubeconfig(rng));
    }
    case
}

/// Certificates and the folder they are in: half a pair, no pair, what is none.
fn certificates(rng: &mut Rng) -> Case {
    let folder = rng.of(&["pki", "none/deep/er", "file", "file/x", "/proc", "/mnt/pki", "", "."]);
    let mut case = Case::default().arg(format!("--cert-dir={folder}")).file("file", "x");
    for name in ["pki/kubelet.crt", "pki/kubelet.key"] {
        if rng.once_in(3) {
            case = case.file(name, rng.of(&["", "x", "-----BEGIN CERTIFICATE-----"]));
        }
    }
    for name in ["tls-cert-file", "tls-private-key-file", "client-ca-file"] {
        if rng.once_in(4) {
            let path = rng.of(&["file", "none", "", "/", "pki/kubelet.crt"]);
            case = case.arg(format!("--{name}={path}"));
        }
    }
    if rng.once_in(3) {
        let host = rng.of(&[" ", "a", "1.2.3.4", "::1", "é", "A B", "a_b", "-", "*", "\t"]);
        case = case.arg(format!("--hostname-override={host}"));
    }
    case
}

/// Settings that only make sense, or none, together.
fn related(rng: &mut Rng) -> Case {
    let mut case = Case::default();
    let group = rng.of(related::GROUPS);
    let mut body = String::new();
    for (field, values) in group {
        if !rng.once_in(4) {
            body.push_str(&format!("{field}: {}\n", rng.of(values)));
        }
    }
    if rng.once_in(4) {
        let extra = rng.of(documents::EXTRA);
        body.push_str(&format!("{extra}\n"));
    }
    let text = format!("{}{}{body}", documents::HEAD, documents::ALONE);
    case = if rng.once_in(6) {
        // The first half in a file, the rest in a drop-in.
        let lines: Vec<&str> = body.lines().collect();
        let (first, rest) = lines.split_at(lines.len() / 2);
        let part = |lines: &[&str]| format!("{}{}\n", documents::HEAD, lines.join("\n"));
        case.arg("--config=c.yaml")
            .arg("--config-dir=d")
            .file("c.yaml", format!("{}{}", part(first), documents::ALONE))
            .file("d/10.conf", part(rest))
    } else {
        case.arg("--config=c.yaml").file("c.yaml", text)
    };
    if rng.once_in(8) {
        case.args.extend(flag(rng));
    }
    case
}

fn kubeconfig(rng: &mut Rng) -> Case {
    let text = documents::kubeconfig(rng);
    let mut case = Case::default().arg("--kubeconfig=k").file("k", text);
    if rng.once_in(3) {
        case = case.arg("--config=c.yaml").file("c.yaml", documents::with_fields(1, false, rng));
    }
    if rng.once_in(6) {
        case.args.extend(flag(rng));
    }
    case
}
