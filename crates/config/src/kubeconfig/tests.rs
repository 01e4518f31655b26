//! What a client makes of addresses, credentials and certificates.

use super::*;
use crate::testing::MemoryFiles;

const GOOD: &str = "apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: 'https://127.0.0.1:1'}}]
users: [{name: u, user: {token: t}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
";

fn told(text: &str, rotate: bool) -> Option<String> {
    let files = MemoryFiles::new([("k", text), ("junk", "junk"), ("empty", "")]);
    fault(&files, "k", rotate.then_some("pki")).1
}

fn with_user(user: &str) -> String {
    GOOD.replace("token: t", user)
}

fn with_cluster(cluster: &str) -> String {
    GOOD.replace("server: 'https://127.0.0.1:1'", cluster)
}

#[test]
fn a_program_must_speak_a_version_we_know() {
    let exec = |version: &str, rest: &str| {
        with_user(&format!("exec: {{apiVersion: {version}, command: x{rest}}}"))
    };
    let group = "client.authentication.k8s.io";
    for good in [
        exec(&format!("{group}/v1beta1"), ""),
        exec(&format!("{group}/v1"), ", interactiveMode: Never"),
    ] {
        assert_eq!(told(&good, false), None, "{good}");
    }
    let old = format!("{group}/v1alpha1");
    let refused =
        format!("failed to initialize kubelet client: exec plugin: invalid apiVersion \"{old}\"");
    assert_eq!(told(&exec(&old, ""), false), Some(refused));
    assert_eq!(told(&exec(&old, ""), true), None, "a rotated certificate needs no program");
    assert_eq!(
        told(&exec("x/v1beta1", ""), false).unwrap(),
        "invalid kubeconfig: invalid configuration: interactiveMode must be specified for u to use \
         exec authentication plugin"
    );
}

#[test]
fn a_pair_of_files_is_looked_at_when_it_is_needed() {
    assert_eq!(told(&with_user("client-certificate: junk, client-key: junk"), false), None);
    assert_eq!(told(&with_user("client-key: none"), false), None, "a key alone is nobody's");
    assert_eq!(
        told(&with_user("client-certificate-data: eA==, client-key: junk"), false).unwrap(),
        "failed to initialize kubelet client: tls: failed to find any PEM data in certificate input"
    );
}

#[test]
fn authorities_matter_only_over_tls() {
    let server = |address: &str, rest: &str| with_cluster(&format!("server: '{address}'{rest}"));
    let bad = "unable to load root certificates: unable to parse bytes as PEM block";
    let junk = ", certificate-authority: junk";
    assert_eq!(
        told(&server("https://a", junk), false).unwrap(),
        format!("failed to initialize kubelet client: {bad}")
    );
    assert_eq!(
        told(&server("https://a", junk), true).unwrap(),
        format!("unable to configure TLS for the rest client: {bad}")
    );
    for clear in ["http://a", "a:1"] {
        assert_eq!(told(&server(clear, junk), false), None, "{clear}");
        assert_eq!(told(&server(clear, junk), true), None, "{clear}");
    }
    let both = ", certificate-authority: empty, insecure-skip-tls-verify: true";
    assert!(told(&server("https://a", both), false).unwrap().ends_with("is not allowed"));
    assert_eq!(told(&server("https://a", ", certificate-authority: empty"), false), None);
}

#[test]
fn addresses_are_taken_apart_as_go_does() {
    let server = |address: &str| told(&with_cluster(&format!("server: '{address}'")), false);
    for good in ["HTTPS://a", "a", "a/", "https://a/b?c", "https:"] {
        assert_eq!(server(good), None, "{good}");
    }
    let pair = |address: &str| {
        Some(format!(
            "failed to initialize kubelet client: host must be a URL or a host:port pair: \
             \"{address}\""
        ))
    };
    for bad in ["a/b", "https:/x", "/"] {
        let want = if bad == "/" { None } else { pair(bad) };
        assert_eq!(server(bad), want, "{bad}");
    }
    let proxy =
        |url: &str| told(&with_cluster(&format!("server: 'https://a', proxy-url: '{url}'")), false);
    assert_eq!(proxy("HTTP:x"), None);
    assert_eq!(
        proxy("FTP://x").unwrap(),
        "invalid kubeconfig: invalid configuration: invalid 'proxy-url' \"FTP://x\" for cluster \
         \"c\": unsupported scheme \"ftp\", must be http, https, or socks5"
    );
}

#[test]
fn a_lasting_file_is_told_by_its_certificate() {
    let lines = |lasting: &str| {
        let files = MemoryFiles::new([("b", GOOD), ("k", lasting), ("junk", "junk")]);
        let (lines, fault) = bootstrap_fault(&files, ("b", "k"), Some("pki"));
        assert_eq!(fault, None);
        let error = |line: &LogLine| format!("{:?}", line.values);
        lines.iter().map(error).collect::<Vec<_>>().join("\n")
    };
    let none = "unable to load TLS certificates from existing bootstrap client config read from k: \
                data does not contain any valid RSA or ECDSA certificates";
    assert!(lines(GOOD).contains(none));
    let junk = with_user("client-certificate: junk, client-key: junk");
    assert!(lines(&junk).contains(none), "{}", lines(&junk));
    let exec = with_user("exec: {apiVersion: x, command: x, interactiveMode: Never}");
    assert!(lines(&exec).contains("unable to load transport configuration from"));
}

#[test]
fn parts_that_nobody_reads_have_a_type_too() {
    let bent = |more: &str| told(&format!("{GOOD}{more}\n"), false);
    assert_eq!(bent("preferences: {colors: true, extensions: [{name: a, extension: 5}]}"), None);
    assert_eq!(bent("extensions: [{name: a, extension: {b: [c]}}]"), None);
    for (more, why) in [
        ("preferences: 5", "number into Go struct field Config.preferences of type v1.Preferences"),
        (
            "extensions: x",
            "string into Go struct field Config.extensions of type []v1.NamedExtension",
        ),
    ] {
        let fault = bent(more).unwrap();
        assert!(fault.ends_with(&format!("json: cannot unmarshal {why}")), "{fault}");
    }
}

const CERTIFICATE: &str = "-----BEGIN CERTIFICATE-----\neA==\n-----END CERTIFICATE-----\n";
const KEY: &str = "-----BEGIN PRIVATE KEY-----\neA==\n-----END PRIVATE KEY-----\n";

// As the Go kubelet answers to each.
#[test]
fn what_is_no_authority_is_told_apart() {
    let fault = |pem: &str| {
        let text = with_cluster("server: 'https://a', certificate-authority: ca");
        let files = MemoryFiles::new([("k", text.as_str()), ("ca", pem)]);
        fault(&files, "k", None).1
    };
    let told = |why: &str| {
        let client = "failed to initialize kubelet client";
        Some(format!("{client}: unable to load root certificates: {why}"))
    };
    let malformed = "failed to parse certificate: x509: malformed certificate";
    assert_eq!(fault(CERTIFICATE), told(malformed));
    assert_eq!(fault(KEY), told("no valid certificate authority data seen"));
    let unread = told("unable to parse bytes as PEM block");
    for bad in [&format!("{KEY}x"), "-----BEGIN CERTIFICATE-----", &CERTIFICATE.replace('=', "")] {
        assert_eq!(fault(bad), unread, "{bad}");
    }
}

#[test]
fn what_rotation_begins_with_has_to_be_a_pair() {
    let begins = |more: &[(&str, &str)], user: &str| {
        let text = with_user(user);
        let all = [("k", text.as_str()), ("c", CERTIFICATE), ("key", KEY)];
        let files = MemoryFiles::new(all.into_iter().chain(more.iter().copied()));
        fault(&files, "k", Some("/work/pki")).1
    };
    let told = |why: &str| Some(format!("failed to initialize client certificate manager: {why}"));
    let malformed = told("x509: malformed certificate");
    assert_eq!(begins(&[], "token: t"), None);
    assert_eq!(begins(&[], "client-certificate: c, client-key: key"), malformed);
    assert_eq!(
        begins(&[], "client-certificate-data: eA==, client-key-data: eA=="),
        told("tls: failed to find any PEM data in certificate input")
    );
    assert_eq!(
        begins(&[("pki/kubelet-client-current.pem", KEY)], "token: t"),
        told(
            "could not convert data from \"/work/pki/kubelet-client-current.pem\" into cert/key \
             pair: tls: failed to find certificate PEM data in certificate input, but did find a \
             private key; PEM inputs may have been switched"
        )
    );
    let older = [("pki/kubelet-client.crt", CERTIFICATE), ("pki/kubelet-client.key", KEY)];
    assert_eq!(begins(&older, "token: t"), malformed);
    assert_eq!(begins(&older[..1], "token: t"), None);
}

// As the Go kubelet answers to each.
#[test]
fn who_asks_for_the_first_certificate_has_to_be_able_to() {
    let exec = with_user("exec: {apiVersion: client.authentication.k8s.io/v1alpha1, command: x}");
    let asked = |more: &[(&str, &str)], text: &str| {
        let all = [("k", text), ("empty", ""), ("b", text)].into_iter().chain(more.iter().copied());
        let files = MemoryFiles::new(all);
        let told = |(lines, fault): (Vec<LogLine>, Option<String>)| {
            assert_eq!(fault, None);
            let lines = lines.iter().map(|line| format!("{} {:?}", line.message, line.values));
            lines.collect::<Vec<_>>().join("\n")
        };
        let first = told(fault(&files, "k", Some("/work/pki")));
        (first, told(bootstrap_fault(&files, ("b", "none"), Some("/work/pki"))))
    };
    for (text, why) in [
        (exec.clone(), "exec plugin: invalid apiVersion"),
        (with_user("tokenFile: empty"), "read empty token from file"),
        (
            with_user("tokenFile: k, username: x"),
            "username/password or bearer token may be set, but not both",
        ),
    ] {
        let (first, bootstrap) = asked(&[], &text);
        let message = "Unable to load a client to request certificates";
        assert!(first.starts_with(message) && first.contains(why), "{first}");
        assert_eq!(first, bootstrap);
        let fault = told(&text, false).unwrap();
        assert!(fault.starts_with("failed to initialize kubelet client: "), "{fault}");
    }
    assert_eq!(asked(&[], GOOD), (String::new(), String::new()));
}

#[test]
fn a_lasting_file_that_cannot_be_looked_for_ends_the_start() {
    let files = MemoryFiles::new([("b", GOOD)]);
    let (_, fault) = bootstrap_fault(&files, ("b", &"x".repeat(300)), Some("pki"));
    assert_eq!(fault, None, "here nothing is too long");
    let long = "open /k: file name too long".to_owned();
    assert_eq!(unfound(long).as_deref(), Some("stat /k: file name too long"));
    assert_eq!(unfound("open /k: permission denied".to_owned()), None);
}
