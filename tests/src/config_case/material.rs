//! Certificates and keys by chance: good ones, such of others, and what only looks like them.

use super::rng::Rng;
use super::{Case, documents};
use base64::Engine;
use std::process::Command;
use std::sync::OnceLock;

/// A certificate and its key.
struct Pair {
    certificate: String,
    key: String,
}

/// Two of one kind, one of another: made once, since what is drawn is only where they stand.
fn pairs() -> &'static [Pair] {
    static ALL: OnceLock<Vec<Pair>> = OnceLock::new();
    ALL.get_or_init(|| {
        let curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"];
        [&curve[..], &curve[..], &["-newkey", "rsa:2048"][..]]
            .iter()
            .filter_map(|kind| {
                let made = Command::new("openssl")
                    .args(["req", "-x509", "-nodes", "-days", "3650", "-subj", "/CN=drawn"])
                    .args(*kind)
                    .args(["-keyout", "-", "-out", "-"])
                    .output()
                    .ok()?;
                let text = String::from_utf8_lossy(&made.stdout).into_owned();
                let (key, certificate) = text.split_once("-----BEGIN CERTIFICATE-----")?;
                let certificate = format!("-----BEGIN CERTIFICATE-----{certificate}");
                Some(Pair { certificate, key: key.to_owned() })
            })
            .collect()
    })
}

fn block(label: &str, der: &[u8]) -> String {
    let text = base64::prelude::BASE64_STANDARD.encode(der);
    let lines: Vec<&str> =
        text.as_bytes().chunks(64).filter_map(|line| std::str::from_utf8(line).ok()).collect();
    format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", lines.join("\n"))
}

fn der(pem: &str) -> Vec<u8> {
    let body: String = pem.lines().filter(|line| !line.starts_with("-----")).collect();
    base64::prelude::BASE64_STANDARD.decode(body).unwrap_or_default()
}

/// A text that is the one, the other, both, or neither.
fn pem(good: &str, other: &str, rng: &mut Rng) -> String {
    let label = if good.contains("CERTIFICATE") { "CERTIFICATE" } else { "PRIVATE KEY" };
    match rng.below(22) {
        0 => String::new(),
        1 => "junk".to_owned(),
        2 => other.to_owned(),
        3 => format!("{other}{good}"),
        4 => format!("{good}{other}"),
        5 => good.replace("-----END", "-----FIN"),
        6 => good.replace('\n', "\r\n"),
        7 => good.replacen(label, rng.of(&["TRUSTED CERTIFICATE", "X", "", "certificate"]), 2),
        8 => good.replacen(label, "X509 CRL", 1),
        9 => good.replacen("-----\n", "-----\nProc-Type: 4,ENCRYPTED\n\n", 1),
        10 => format!("some words\n{good}more words"),
        11 => format!("some words {good}"),
        12 => good.trim_end().to_owned(),
        13 => good.replacen('\n', "\n!", 2),
        14 => {
            let mut der = der(good);
            der.truncate(der.len().saturating_sub(1 + rng.below(40)));
            block(label, &der)
        }
        15 => block(label, &[der(good), vec![0]].concat()),
        16 => {
            let mut der = der(good);
            if let Some(first) = der.first_mut() {
                *first = rng.of(&[&[0x31_u8][..], &[0], &[0xff], &[2]])[0];
            }
            block(label, &der)
        }
        17 => block(label, b""),
        18 => block(label, b"\x30\x00"),
        19 => format!("{}{good}", block(label, b"x")),
        20 => format!("{good}{}", block(label, b"x")),
        _ => good.replace('\n', " \n"),
    }
}

/// A certificate and a key that fit each other, more often than not.
fn drawn(rng: &mut Rng) -> (String, String) {
    let all = pairs();
    let Some(first) = all.get(rng.below(all.len())) else { return Default::default() };
    let second = all.get(rng.below(all.len())).unwrap_or(first);
    let key = if rng.once_in(3) { &second.key } else { &first.key };
    let certificate = match rng.once_in(3) {
        true => pem(&first.certificate, key, rng),
        false => first.certificate.clone(),
    };
    let key = if rng.once_in(3) { pem(key, &first.certificate, rng) } else { key.clone() };
    (certificate, key)
}

const KUBECONFIG: &str = "apiVersion: v1\nkind: Config\nclusters:\n- name: c\n  cluster:\n    server: https://127.0.0.1:1\nCLUSTERusers:\n- name: u\n  user:\nUSERcontexts:\n- name: x\n  context: {cluster: c, user: u}\ncurrent-context: x\n";

/// A kubeconfig with certificates inline or in files, and those files.
fn kubeconfig(prefix: &str, rng: &mut Rng) -> (String, Case) {
    let mut files = Case::default();
    let mut given = |name: &str, text: String, rng: &mut Rng| {
        if rng.once_in(2) {
            let data = base64::prelude::BASE64_STANDARD.encode(&text);
            return format!("    {name}-data: {data}\n");
        }
        let path = format!("{prefix}{name}");
        files.files.insert(path.clone(), text.into_bytes());
        format!("    {name}: {path}\n")
    };
    let (mut cluster, mut user) = (String::new(), "    token: t\n".to_owned());
    if rng.once_in(2) {
        let (authority, _) = drawn(rng);
        cluster = given("certificate-authority", authority, rng);
    }
    if !rng.once_in(4) {
        let (certificate, key) = drawn(rng);
        user = given("client-certificate", certificate, rng);
        user.push_str(&given("client-key", key, rng));
    }
    (KUBECONFIG.replace("CLUSTER", &cluster).replace("USER", &user), files)
}

/// Certificates wherever a kubelet looks for some.
pub(super) fn make(rng: &mut Rng) -> Case {
    let (text, mut case) = kubeconfig("", rng);
    case = case.arg("--kubeconfig=k");
    match rng.below(5) {
        0 | 1 => case = case.file("k", text),
        2 => case = case.arg("--rotate-certificates").file("k", text),
        _ => {
            case = case.arg("--bootstrap-kubeconfig=b").arg("--rotate-certificates");
            if rng.once_in(2) {
                case = case.file("k", text);
            }
            let (text, more) = kubeconfig("b-", rng);
            case.files.extend(more.files);
            case = case.file("b", text);
        }
    }
    if rng.once_in(4) {
        let (certificate, key) = drawn(rng);
        case = match rng.below(3) {
            0 => {
                case.file("pki/kubelet-client.crt", certificate).file("pki/kubelet-client.key", key)
            }
            _ => case.file("pki/kubelet-client-current.pem", format!("{certificate}{key}")),
        };
    }
    if rng.once_in(4) {
        let (authority, _) = drawn(rng);
        case = case.arg("--client-ca-file=ca.crt").file("ca.crt", authority);
    }
    case
}

/// Certificates to serve with.
pub(super) fn serving(rng: &mut Rng) -> Case {
    let text = format!("{}{}", documents::HEAD, documents::ALONE);
    let (certificate, key) = drawn(rng);
    let mut case = Case::default()
        .arg("--config=c.yaml")
        .arg("--tls-cert-file=s.crt")
        .arg("--tls-private-key-file=s.key")
        .file("c.yaml", text)
        .file("s.crt", certificate)
        .file("s.key", key);
    if rng.once_in(3) {
        case = case.arg("--feature-gates=ReloadKubeletServerCertificateFile=false");
    }
    case
}
