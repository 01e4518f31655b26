//! Whole cases by chance.

use super::chance::Dice;
use super::{Case, documents, fields, material, related};

/// Case number `n` of a seed.
#[must_use]
pub fn make(seed: u64, n: u64) -> Case {
    let mut dice = Dice::new(seed.wrapping_mul(0x1_0000_0001).wrapping_add(n));
    match dice.below(100) {
        0..=16 => one_flag(&mut dice),
        17..=22 => several_flags(&mut dice),
        23..=28 => grammar(&mut dice),
        29..=50 => file(&mut dice),
        51..=57 => file_and_flags(&mut dice),
        58..=61 => material::make(&mut dice),
        62..=66 => over_each_other(&mut dice),
        67..=73 => drop_ins(&mut dice),
        74..=79 => providers(&mut dice),
        80..=86 => kubeconfig(&mut dice),
        87 => bootstrap(&mut dice),
        88 => certificates(&mut dice),
        _ => related(&mut dice),
    }
}

fn flag(dice: &mut Dice) -> Vec<String> {
    let flag = &fields::flags()[dice.below(fields::flags().len())];
    // Paths of the case itself.
    if ["config", "config-dir", "root-dir", "cert-dir", "kubeconfig"].contains(&flag.name) {
        let value =
            dice.of(&["", "none", "/mnt/none", "/dev/null", "/proc/self/mem", ".", "none/"]);
        return vec![format!("--{}={value}", flag.name)];
    }
    let value = fields::flag_value(flag, dice);
    let mut name = flag.name.to_owned();
    if dice.once_in(16) {
        name = name.replace('-', "_");
    }
    if flag.kind == "bool" && dice.once_in(4) {
        return vec![format!("--{name}")];
    }
    match dice.below(12) {
        0 if flag.kind != "bool" => vec![format!("--{name}"), value],
        1 => vec![
            format!("--{name}={value}"),
            format!("--{name}={}", fields::flag_value(flag, dice)),
        ],
        2 if dice.once_in(4) => vec![format!("--{name}")],
        3 if dice.once_in(4) => vec![format!("-{name}={value}")],
        _ => vec![format!("--{name}={value}")],
    }
}

fn one_flag(dice: &mut Dice) -> Case {
    Case { args: flag(dice), ..Case::default() }
}

fn several_flags(dice: &mut Dice) -> Case {
    let mut case = Case::default();
    for _ in 0..2 + dice.below(4) {
        case.args.extend(flag(dice));
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

fn grammar(dice: &mut Dice) -> Case {
    if dice.once_in(3) {
        let mut case = Case::default();
        for _ in 0..=dice.below(3) {
            match dice.below(3) {
                0 => case.args.push(dice.of(BETWEEN).to_owned()),
                1 => case.args.extend(flag(dice)),
                _ => case.args.extend(dice.of(GRAMMAR).iter().map(|arg| (*arg).to_owned())),
            }
        }
        return case;
    }
    let mut case = Case::of(dice.of(GRAMMAR));
    if dice.once_in(4) {
        case.args.extend(dice.of(GRAMMAR).iter().map(|arg| (*arg).to_owned()));
    }
    case
}

fn file(dice: &mut Dice) -> Case {
    let path = if dice.once_in(6) {
        dice.of(&["/mnt/c.yaml", "./c.yaml", "sub/../c.yaml", "c.yaml"])
    } else {
        "c.yaml"
    };
    if dice.once_in(12) {
        let to = dice.of(&["real.yaml", "c.yaml", "none", "/mnt", "/dev/null", "/mnt/real.yaml"]);
        let case = Case::default().arg(format!("--config={path}")).file("@c.yaml", to);
        let case = case.file("real.yaml", documents::any(dice));
        return if path.starts_with("sub") { case.file("sub/", "") } else { case };
    }
    let case = Case::default().arg(format!("--config={path}")).file("c.yaml", documents::any(dice));
    if path.starts_with("sub") { case.file("sub/", "") } else { case }
}

fn file_and_flags(dice: &mut Dice) -> Case {
    let mut case = if dice.once_in(3) {
        file(dice)
    } else {
        let count = 1 + dice.below(4);
        Case::default()
            .arg("--config=c.yaml")
            .file("c.yaml", documents::with_fields(count, true, dice))
    };
    for _ in 0..=dice.below(3) {
        case.args.extend(flag(dice));
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

fn drop_ins(dice: &mut Dice) -> Case {
    let folder = if dice.once_in(8) { dice.of(&["d/", "/mnt/d", "./d"]) } else { "d" };
    let mut case = Case::default().arg(format!("--config-dir={folder}"));
    if dice.below(3) > 0 {
        let count = dice.below(3);
        let base = if dice.once_in(5) {
            documents::any(dice)
        } else {
            documents::with_fields(count, true, dice).into_bytes()
        };
        case = case.arg("--config=c.yaml").file("c.yaml", base);
    }
    for _ in 0..=dice.below(3) {
        let name = if dice.once_in(3) { dice.of(NAMES) } else { dice.of(&NAMES[..7]) };
        case = case.file(&format!("d/{name}"), documents::drop_in(dice));
    }
    if dice.once_in(6) {
        case = case.file("d/empty.conf", "");
    }
    if dice.once_in(8) {
        let (name, to) = dice.of(&[
            &("@d/link.conf", "../c.yaml"),
            &("@d/link.conf", "nowhere"),
            &("@d/link.conf", "link.conf"),
            &("@d/link.conf", "/mnt"),
            &("@d/link", "../other"),
            &("@d/15.conf", "/mnt/other/x.conf"),
            &("@d/link.conf", "/dev/null"),
        ]);
        case = case.file(name, *to).file("other/x.conf", documents::drop_in(dice));
    }
    if dice.once_in(8) {
        case = case.file("d/folder.conf/", "");
    }
    if dice.once_in(4) {
        case.args.extend(flag(dice));
    }
    case
}

/// The same fields in a file, in drop-ins, on the command line: which one counts, and what is left of
/// the others.
fn over_each_other(dice: &mut Dice) -> Case {
    let all = fields::fields();
    let chosen: Vec<&fields::Field> =
        (0..=dice.below(3)).map(|_| &all[dice.below(all.len())]).collect();
    let mut case = Case::default().arg("--config-dir=d");
    let text = |alone: bool, dice: &mut Dice| {
        let mut some: Vec<&fields::Field> = chosen.clone();
        some.retain(|_| !dice.once_in(4));
        let mut text = documents::with_these(&some, alone, dice);
        if dice.once_in(6) {
            text.push_str(dice.of(documents::EXTRA));
            text.push('\n');
        }
        text
    };
    if !dice.once_in(4) {
        case = case.arg("--config=c.yaml").file("c.yaml", text(true, dice));
    }
    for name in ["10.conf", "20.conf", "sub/05.conf"] {
        if !dice.once_in(3) {
            let alone = dice.once_in(2);
            case = case.file(&format!("d/{name}"), text(alone, dice));
        }
    }
    case = case.file("d/", "");
    for field in chosen {
        if dice.once_in(3)
            && let Some(flag) = fields::flag_of(field.path)
        {
            case = case.arg(format!("--{}={}", flag.name, fields::flag_value(flag, dice)));
        }
    }
    case
}

pub(super) fn providers(dice: &mut Dice) -> Case {
    let mut case = Case::default();
    let config = if dice.once_in(6) {
        dice.of(&["p", "none", "", "bin", "empty", "/mnt/p.yaml"])
    } else {
        "p.yaml"
    };
    let bin = if dice.once_in(8) { dice.of(&["none", "", "p.yaml", "/mnt/bin"]) } else { "bin" };
    if !dice.once_in(12) {
        case = case.arg(format!("--image-credential-provider-config={config}"));
    }
    if !dice.once_in(12) {
        case = case.arg(format!("--image-credential-provider-bin-dir={bin}"));
    }
    let text = documents::providers(dice);
    case = case
        .file("!bin/good", "#!/bin/sh\n")
        .file("!bin/good2", "#!/bin/sh\n")
        .file("bin/plain", "x")
        .file("bin/folder/", "")
        .file("empty/", "")
        .file("p.yaml", if dice.once_in(12) { documents::any(dice) } else { text.into_bytes() });
    if config == "p" {
        for name in ["a.yaml", "b.json", "c.yml", "d.txt"] {
            if dice.once_in(2) {
                case = case.file(&format!("p/{name}"), documents::providers(dice));
            }
        }
        case = case.file("p/sub/", "");
    }
    case
}

/// A kubeconfig that is yet to be had, or is there already.
fn bootstrap(dice: &mut Dice) -> Case {
    let mut case = Case::default()
        .arg("--kubeconfig=k")
        .arg("--bootstrap-kubeconfig=b")
        .arg("--rotate-certificates")
        .file("b", documents::kubeconfig(dice));
    if dice.once_in(2) {
        case = case.file("k", documents::kubeconfig(dice));
    }
    case
}

/// Certificates and the folder they are in: half a pair, no pair, what is none.
fn certificates(dice: &mut Dice) -> Case {
    let folder = dice.of(&["pki", "none/deep/er", "file", "file/x", "/proc", "/mnt/pki", "", "."]);
    let mut case = Case::default().arg(format!("--cert-dir={folder}")).file("file", "x");
    for name in ["pki/kubelet.crt", "pki/kubelet.key"] {
        if dice.once_in(3) {
            case = case.file(name, dice.of(&["", "x", "-----BEGIN CERTIFICATE-----"]));
        }
    }
    for name in ["tls-cert-file", "tls-private-key-file", "client-ca-file"] {
        if dice.once_in(4) {
            let path = dice.of(&["file", "none", "", "/", "pki/kubelet.crt"]);
            case = case.arg(format!("--{name}={path}"));
        }
    }
    if dice.once_in(3) {
        let host = dice.of(&[" ", "a", "1.2.3.4", "::1", "é", "A B", "a_b", "-", "*", "\t"]);
        case = case.arg(format!("--hostname-override={host}"));
    }
    case
}

/// Settings that only make sense, or none, together.
fn related(dice: &mut Dice) -> Case {
    let mut case = Case::default();
    let group = dice.of(related::GROUPS);
    let mut body = String::new();
    for (field, values) in group {
        if !dice.once_in(4) {
            body.push_str(&format!("{field}: {}\n", dice.of(values)));
        }
    }
    if dice.once_in(4) {
        let extra = dice.of(documents::EXTRA);
        body.push_str(&format!("{extra}\n"));
    }
    let text = format!("{}{}{body}", documents::HEAD, documents::ALONE);
    case = if dice.once_in(6) {
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
    if dice.once_in(8) {
        case.args.extend(flag(dice));
    }
    case
}

fn kubeconfig(dice: &mut Dice) -> Case {
    let text = documents::kubeconfig(dice);
    let mut case = Case::default().arg("--kubeconfig=k").file("k", text);
    if dice.once_in(3) {
        case = case.arg("--config=c.yaml").file("c.yaml", documents::with_fields(1, false, dice));
    }
    if dice.once_in(6) {
        case.args.extend(flag(dice));
    }
    case
}
