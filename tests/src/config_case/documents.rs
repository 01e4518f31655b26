//! Configuration files by chance: fields with values of all sorts, then bent as a whole.

pub(super) use super::odd::EXTRA;
use super::rng::Rng;
use super::{fields, spelled};
use std::collections::BTreeMap;

/// What every configuration begins with.
pub(super) const HEAD: &str =
    "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";
/// Lets a configuration do without an API server.
pub(super) const ALONE: &str =
    "authentication:\n  webhook:\n    enabled: false\nauthorization:\n  mode: AlwaysAllow\n";

/// A tree of fields whose leaves are YAML in one line.
#[derive(Debug, Default)]
struct Tree {
    order: Vec<String>,
    inner: BTreeMap<String, Tree>,
    leaf: Option<String>,
}

impl Tree {
    fn set(&mut self, path: &str, value: String) {
        let (first, rest) = path.split_once('.').map_or((path, None), |(a, b)| (a, Some(b)));
        if !self.inner.contains_key(first) {
            self.order.push(first.to_owned());
        }
        let below = self.inner.entry(first.to_owned()).or_default();
        match rest {
            Some(rest) => below.set(rest, value),
            None => below.leaf = Some(value),
        }
    }

    fn write(&self, depth: usize, text: &mut String) {
        let indent = "  ".repeat(depth);
        for name in &self.order {
            let Some(below) = self.inner.get(name) else { continue };
            let bare = name.trim_end_matches("[]");
            if let Some(leaf) = below.leaf.as_ref().filter(|_| below.inner.is_empty()) {
                text.push_str(&format!("{indent}{bare}: {leaf}\n"));
            } else if name.ends_with("[]") {
                let mut inside = String::new();
                below.write(depth + 1, &mut inside);
                let inside = inside.replacen(&format!("{indent}  "), &format!("{indent}- "), 1);
                text.push_str(&format!("{indent}{bare}:\n{inside}"));
            } else {
                text.push_str(&format!("{indent}{bare}:\n"));
                below.write(depth + 1, text);
            }
        }
    }
}

/// A document with so many fields set by chance.
pub(super) fn with_fields(count: usize, alone: bool, rng: &mut Rng) -> String {
    let mut tree = Tree::default();
    if alone {
        tree.set("authentication.webhook.enabled", "false".to_owned());
        tree.set("authorization.mode", "AlwaysAllow".to_owned());
    }
    for _ in 0..count {
        let field = &fields::fields()[rng.below(fields::fields().len())];
        tree.set(field.path, fields::field_value(field, rng));
    }
    let mut text = HEAD.to_owned();
    tree.write(0, &mut text);
    text
}

/// A document with these fields set.
pub(super) fn with_these(some: &[&fields::Field], alone: bool, rng: &mut Rng) -> String {
    let mut tree = Tree::default();
    if alone {
        tree.set("authentication.webhook.enabled", "false".to_owned());
        tree.set("authorization.mode", "AlwaysAllow".to_owned());
    }
    for field in some {
        let value = match rng.below(8) {
            0 => rng.of(&["null", "{}", "[]", "''", "~", "{a: null}", "{$patch: delete}"]),
            _ => "",
        };
        let value = match value {
            "" => fields::field_value(field, rng),
            value => value.to_owned(),
        };
        tree.set(field.path, value);
    }
    let mut text = HEAD.to_owned();
    tree.write(0, &mut text);
    text
}

/// A document with this one field set.
pub(super) fn with_field(field: &fields::Field, rng: &mut Rng) -> String {
    let mut tree = Tree::default();
    tree.set("authentication.webhook.enabled", "false".to_owned());
    tree.set("authorization.mode", "AlwaysAllow".to_owned());
    tree.set(field.path, fields::field_value(field, rng));
    let mut text = HEAD.to_owned();
    tree.write(0, &mut text);
    text
}

const TYPES: &[&str] = &[
    "",
    "apiVersion: kubelet.config.k8s.io/v1beta1\n",
    "kind: KubeletConfiguration\n",
    "apiVersion: v1\nkind: KubeletConfiguration\n",
    "apiVersion: kubelet.config.k8s.io/v1\nkind: KubeletConfiguration\n",
    "apiVersion: kubelet.config.k8s.io/v1alpha1\nkind: KubeletConfiguration\n",
    "apiVersion: kubelet.config.k8s.io/__internal\nkind: Bogus\n",
    "apiVersion: __internal\nkind: KubeletConfiguration\n",
    "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: Bogus\n",
    "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: CredentialProviderConfig\n",
    "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: SerializedNodeConfigSource\n",
    "apiVersion: kubelet.config.k8s.io/v1\nkind: CredentialProviderConfig\n",
    "apiVersion: a/b/c\nkind: KubeletConfiguration\n",
    "apiVersion: 5\nkind: KubeletConfiguration\n",
    "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: [a]\n",
    "apiVersion: kubelet.config.k8s.io/v1beta1\nKind: KubeletConfiguration\n",
    "APIVERSION: kubelet.config.k8s.io/v1beta1\nKIND: KubeletConfiguration\n",
    "apiVersion: ''\nkind: ''\n",
    "apiVersion: null\nkind: null\n",
    "apiVersion: kubelet.config.k8s.io\nkind: KubeletConfiguration\n",
    "apiVersion: kubelet.config.k8s.io/\nkind: KubeletConfiguration\n",
    "apiVersion: /v1beta1\nkind: KubeletConfiguration\n",
];

const WHOLE: &[&str] = &[
    "",
    " ",
    "\n",
    "# only a note\n",
    "---\n",
    "---\n---\n",
    "null",
    "~\n",
    "[]",
    "[a, b]",
    "- a\n- b\n",
    "5",
    "text",
    "\"text\"",
    "{}",
    "{",
    "{}}",
    "{} x",
    "[",
    "}",
    "%YAML 1.1\n---\n",
    "%YAML 1.2\n---\na: b\n",
    "%YAML 3.0\n---\na: b\n",
    "%TAG ! x\n---\na: b\n",
    "%BOGUS\n---\na: b\n",
    "...\n",
    "\t",
    "\u{0}",
    "{\"a\": }",
    "{\"a\" 1}",
    "{\"a\": 1,}",
    "{'a': 1}",
    "{a: 1}",
    "{\"a\": 01}",
    "{\"a\": \"\\x\"}",
    "{\"a\": tru}",
    "{\"apiVersion\": 5}",
    "{\"kind\": {}}",
    "true",
    "!!map {}",
    "&a\n",
    "*a\n",
    "? \n",
    "|\n  a\n",
];

const MARKS: &[&str] = &[
    ":",
    " ",
    "\n",
    "\t",
    "-",
    "- ",
    "#",
    " #",
    "[",
    "]",
    "{",
    "}",
    ",",
    "\"",
    "'",
    "&",
    "*",
    "!",
    "|",
    ">",
    "%",
    "@",
    "`",
    "?",
    "? ",
    ": ",
    "~",
    "\r",
    "\r\n",
    "\u{feff}",
    "\u{0}",
    "\u{7}",
    "\u{85}",
    "\u{2028}",
    "é",
    "\u{1f600}",
    "---\n",
    "...\n",
    "  ",
    "<<: ",
    "\\",
    "0",
    "a",
    "\u{a0}",
    "\u{7f}",
    "\u{80}",
    "|+\n",
];

/// Bends a document's text in one place.
fn bend(text: &str, rng: &mut Rng) -> Vec<u8> {
    let ends: Vec<usize> = text.char_indices().map(|(at, _)| at).collect();
    let at = ends.get(rng.below(ends.len())).copied().unwrap_or(0);
    let after = text[at..].chars().next().map_or(at, |c| at + c.len_utf8());
    let mark = rng.of(MARKS);
    match rng.below(8) {
        0 => format!("{}{}", &text[..at], &text[after..]).into_bytes(),
        1 => text.as_bytes()[..at].to_vec(),
        2 => {
            let mut bytes = text.as_bytes().to_vec();
            let odd: &[u8] =
                [&b"\xff"[..], b"\xc3", b"\xed\xa0\x80", b"\xf8", b"\x80"][rng.below(5)];
            bytes.splice(at..at, odd.iter().copied());
            bytes
        }
        3 | 4 => format!("{}{mark}{}", &text[..at], &text[after..]).into_bytes(),
        _ => format!("{}{mark}{}", &text[..at], &text[at..]).into_bytes(),
    }
}

/// The same document as JSON, when it can be had as such.
fn as_json(rng: &mut Rng) -> String {
    let mut members = vec![
        "\"apiVersion\": \"kubelet.config.k8s.io/v1beta1\"".to_owned(),
        "\"kind\": \"KubeletConfiguration\"".to_owned(),
        "\"authentication\": {\"webhook\": {\"enabled\": false}}".to_owned(),
        "\"authorization\": {\"mode\": \"AlwaysAllow\"}".to_owned(),
    ];
    for _ in 0..rng.below(4) {
        let field = &fields::fields()[rng.below(fields::fields().len())];
        let (first, rest) = field.path.split_once('.').map_or((field.path, ""), |(a, b)| (a, b));
        let value = rng.of(&[
            "5",
            "-1",
            "1.5",
            "10.0",
            "1e2",
            "\"x\"",
            "\"\"",
            "true",
            "null",
            "[]",
            "{}",
            "[\"a\"]",
            "\"5s\"",
            "{\"a\": \"b\"}",
            "{\"a\": 1, \"a\": 2}",
            "9223372036854775808",
            "01",
            "+1",
            "'x'",
            "tru",
            "\"\\u00e9\"",
            "\"\\x\"",
            "1.",
            "-",
            "{\"a\": true}",
            "1E400",
            "\"a\nb\"",
            "{",
            "nan",
        ]);
        let value = if rest.is_empty() || rng.once_in(4) {
            value.to_owned()
        } else {
            let mut value = value.to_owned();
            for part in rest.rsplit('.') {
                value = format!("{{\"{}\": {value}}}", part.trim_end_matches("[]"));
            }
            if first.ends_with("[]") { format!("[{value}]") } else { value }
        };
        members.push(format!("\"{}\": {value}", first.trim_end_matches("[]")));
    }
    if rng.once_in(4) {
        members.push("\"bogus\": 1".to_owned());
    }
    if rng.once_in(6) {
        members.swap(0, 1);
    }
    let between = rng.of(&[", ", ",\n  ", ","]);
    let text = format!("{{{}}}", members.join(between));
    if rng.once_in(6) {
        format!("{text}{}", rng.of(&[",", "}", " x", "\n---\n", "\n{}", "\n"]))
    } else {
        text
    }
}

/// A document of any kind.
pub(super) fn any(rng: &mut Rng) -> Vec<u8> {
    match rng.below(20) {
        0..=5 => {
            let field = &fields::fields()[rng.below(fields::fields().len())];
            with_field(field, rng).into_bytes()
        }
        6..=8 => {
            let count = 2 + rng.below(5);
            let alone = rng.below(8) > 0;
            with_fields(count, alone, rng).into_bytes()
        }
        9..=11 => {
            let mut text = HEAD.to_owned();
            if rng.once_in(2) {
                text.push_str(ALONE);
            }
            for _ in 0..=rng.below(2) {
                text.push_str(rng.of(EXTRA));
                text.push('\n');
            }
            if rng.once_in(4) {
                text = text.replace('\n', "\r\n");
            }
            text.into_bytes()
        }
        12 => format!("{}{ALONE}", rng.of(TYPES)).into_bytes(),
        13 if rng.once_in(3) => deep(rng).into_bytes(),
        13 => rng.of(WHOLE).as_bytes().to_vec(),
        14 => {
            let mut text =
                rng.of(&["\u{feff}", "---\n", "# x\n", "\n\n", "%YAML 1.1\n---\n", " "]).to_owned();
            text.push_str(&with_fields(1, true, rng));
            text.into_bytes()
        }
        15 | 16 => {
            let json = as_json(rng);
            if rng.once_in(4) { bend(&json, rng) } else { json.into_bytes() }
        }
        _ => {
            let count = rng.below(4);
            let text = with_fields(count, true, rng);
            let mut bytes = bend(&text, rng);
            if rng.once_in(2)
                && let Ok(text) = String::from_utf8(bytes.clone())
            {
                bytes = bend(&text, rng);
            }
            bytes
        }
    }
}

/// Nested, long and doubled beyond reason.
fn deep(rng: &mut Rng) -> String {
    let count = [3, 50, 127, 129, 300, 900][rng.below(6)];
    let key = rng.of(&["bogus", "evictionHard", "maxPods", "clusterDNS", "logging"]);
    match rng.below(9) {
        7 => {
            // Each line names the one before it many times.
            let mut text = format!("{HEAD}{ALONE}a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
            for n in 1..=rng.below(8) {
                let before = vec![format!("*a{}", n - 1); 10].join(", ");
                text.push_str(&format!("a{n}: &a{n} [{before}]\n"));
            }
            text
        }
        8 => format!("{HEAD}{ALONE}{}: 5\n", "k".repeat(count)),
        0 => format!("{HEAD}{ALONE}{key}: {}{}\n", "[".repeat(count), "]".repeat(count)),
        1 => format!("{HEAD}{ALONE}{key}: {}x{}\n", "{a: ".repeat(count), "}".repeat(count)),
        2 => {
            let (open, close) = ("{\"a\":".repeat(count), "}".repeat(count));
            let types = "\"apiVersion\": \"kubelet.config.k8s.io/v1beta1\", \"kind\": \"KubeletConfiguration\"";
            format!("{{{types}, \"{key}\": {open}1{close}}}")
        }
        3 => format!("{HEAD}{ALONE}{key}: {}\n", "x".repeat(count * 100)),
        4 => format!("{HEAD}{ALONE}{}", format!("{key}: 1\n").repeat(count / 10 + 2)),
        5 => {
            let lines: String = (0..count).map(|n| format!("bogus{n}: {n}\n")).collect();
            format!("{HEAD}{ALONE}{lines}")
        }
        _ => {
            let mut text = format!("{HEAD}{ALONE}{key}:\n");
            for depth in 1..=count.min(200) {
                text.push_str(&format!("{}a:\n", " ".repeat(depth)));
            }
            text
        }
    }
}

/// The content of a drop-in.
pub(super) fn drop_in(rng: &mut Rng) -> Vec<u8> {
    if rng.once_in(6) {
        return any(rng);
    }
    let count = 1 + rng.below(3);
    let text = with_fields(count, false, rng);
    if rng.once_in(6) {
        let mut text = text;
        text.push_str(rng.of(EXTRA));
        text.push('\n');
        return text.into_bytes();
    }
    text.into_bytes()
}

/// A configuration of credential providers.
pub(super) fn providers(rng: &mut Rng) -> String {
    let version = if rng.once_in(5) {
        rng.of(&[
            "kubelet.config.k8s.io/v1beta1",
            "kubelet.config.k8s.io/v1alpha1",
            "kubelet.config.k8s.io/v2",
            "v1",
            "",
        ])
    } else {
        "kubelet.config.k8s.io/v1"
    };
    let kind = if rng.once_in(12) {
        rng.of(&["KubeletConfiguration", "Bogus", ""])
    } else {
        "CredentialProviderConfig"
    };
    let mut text = format!("apiVersion: {version}\nkind: {kind}\n");
    let count = if rng.once_in(8) { 0 } else { 1 + rng.below(2) };
    if count == 0 {
        text.push_str(rng.of(&[
            "",
            "providers: []\n",
            "providers: x\n",
            "providers: null\n",
            "providers: [null]\n",
            "bogus: 1\n",
        ]));
        return text;
    }
    text.push_str("providers:\n");
    for _ in 0..count {
        let mut pick = |often: &'static str, odd: &[&'static str]| {
            if rng.once_in(4) { rng.of(odd) } else { often }
        };
        let name = pick(
            "good",
            &["missing", "''", "a/b", "a b", ".", "..", "5", "plain", "good2", "folder"],
        );
        let api = pick(
            "credentialprovider.kubelet.k8s.io/v1",
            &[
                "credentialprovider.kubelet.k8s.io/v1beta1",
                "credentialprovider.kubelet.k8s.io/v1alpha1",
                "x",
                "''",
                "v1",
            ],
        );
        let images = pick(
            "['*.example.com']",
            &[
                "[]",
                "['']",
                "x",
                "['http://a']",
                "['a b']",
                "[a, a]",
                "['*.*.io']",
                "['a:b']",
                "['%']",
                "[\"*:5000/x\"]",
                "null",
                "['[::1']",
                "['a/b?c']",
                "['*']",
            ],
        );
        let cache = pick("1m", &["0s", "-1s", "x", "5", "null", "''"]).to_owned();
        let images = match rng.below(6) {
            0 => format!("[{}]", serde_json::Value::from(spelled::url(rng))),
            _ => images.to_owned(),
        };
        let (name, cache) = match rng.below(12) {
            0 => (serde_json::Value::from(spelled::name(rng)).to_string(), cache),
            1 => (name.to_owned(), serde_json::Value::from(spelled::duration(rng)).to_string()),
            _ => (name.to_owned(), cache),
        };
        text.push_str(&format!(
            "- name: {name}\n  apiVersion: {api}\n  matchImages: {images}\n  defaultCacheDuration: {cache}\n"
        ));
        if rng.once_in(3) {
            text.push_str(rng.of(&[
                "  args: [a]\n",
                "  args: a\n",
                "  env: [{name: A, value: b}]\n",
                "  env: [{name: A, value: 5}]\n",
                "  env: [{name: '', value: b}]\n",
                "  bogus: 1\n",
                "  name: twice\n",
                "  tokenAttributes: {}\n",
                "  tokenAttributes: {serviceAccountTokenAudience: a, requireServiceAccount: true, cacheType: Token}\n",
                "  tokenAttributes: {serviceAccountTokenAudience: a, requireServiceAccount: false, cacheType: ServiceAccount, requiredServiceAccountAnnotationKeys: [a]}\n",
                "  tokenAttributes: {serviceAccountTokenAudience: a, requireServiceAccount: true, cacheType: X, requiredServiceAccountAnnotationKeys: [a, a], optionalServiceAccountAnnotationKeys: [a]}\n",
                "  tokenAttributes: {serviceAccountTokenAudience: '', cacheType: ''}\n",
                "  tokenAttributes: {serviceAccountTokenAudience: a, requireServiceAccount: true, cacheType: Token, requiredServiceAccountAnnotationKeys: ['a b', '/'], optionalServiceAccountAnnotationKeys: ['', 'B/c/d']}\n",
                "  tokenAttributes: {bogus: 1}\n",
            ]));
        }
    }
    text
}

/// Credentials of a kubeconfig.
const MORE_USERS: &[&str] = &[
    "    exec: {apiVersion: client.authentication.k8s.io/v1beta1, command: x}\n",
    "    exec: {apiVersion: client.authentication.k8s.io/v1alpha1, command: x}\n",
    "    exec: {apiVersion: client.authentication.k8s.io/v1, command: x}\n",
    "    exec: {apiVersion: client.authentication.k8s.io/v1, command: ''}\n",
    "    exec: {apiVersion: client.authentication.k8s.io/v1, command: x, interactiveMode: Bogus}\n",
    "    exec: {apiVersion: client.authentication.k8s.io/v1, command: x, interactiveMode: Always}\n",
    "    exec: {apiVersion: bogus, command: x, interactiveMode: Never}\n",
    "    exec: {apiVersion: client.authentication.k8s.io/v1, command: x, env: [{name: A}], args: [5], interactiveMode: Never}\n",
    "    exec: {apiVersion: client.authentication.k8s.io/v1, command: x, env: [{value: b}], interactiveMode: Never}\n    token: t\n",
    "    exec: {apiVersion: client.authentication.k8s.io/v1, command: x, interactiveMode: Never}\n    client-certificate-data: eA==\n",
    "    exec: x\n",
    "    token: ''\n",
    "    token: t\n    tokenFile: none\n",
    "    tokenFile: ''\n",
    "    username: a\n    token: t\n",
    "    username: a\n    password: ''\n",
    "    password: b\n",
    "    client-certificate: none\n    client-certificate-data: eA==\n",
    "    client-key-data: eA==\n",
    "    client-key: none\n",
    "    client-certificate: ''\n    client-key: ''\n",
    "    auth-provider: {name: oidc, config: {a: b}}\n",
    "    auth-provider: x\n",
    "    as: x\n    as-groups: [a]\n    as-uid: b\n    token: t\n",
    "    as-groups: [a]\n",
    "    as-user-extra: {a: b}\n",
    "    extensions: [{name: a, extension: {b: c}}]\n",
    "    {}\n",
    "    null\n",
    "    token: t\n    Token: u\n",
];

/// Lines for anywhere in a kubeconfig.
const MORE_LINES: &[&str] = &[
    "- name: ''\n",
    "- name: 5\n",
    "- name: [a]\n",
    "- Name: c\n",
    "- name: c\n  extra: x\n",
    "-\n",
    "- null\n- name: c\n",
    "kind: Config\npreferences: {colors: true}\n",
    "kind: Config\npreferences: 5\n",
    "kind: Config\nextensions: x\n",
    "kind: Config\nextensions: [{name: a, extension: 5}]\n",
    "kind: config\n",
    "kind: Config\ncurrent-context: y\n",
    "    user: u\n    namespace: 5\n",
    "    user: u\n    namespace: n\n    extensions: [{name: a}]\n",
    "    user: ''\n",
    "    user: u\n    cluster: d\n",
    "    user: 5\n",
    "",
];

/// A kubeconfig.
pub(super) fn kubeconfig(rng: &mut Rng) -> String {
    const GOOD: &str = "apiVersion: v1\nkind: Config\nclusters:\n- name: c\n  cluster:\n    server: https://127.0.0.1:1\nusers:\n- name: u\n  user:\n    token: t\ncontexts:\n- name: x\n  context:\n    cluster: c\n    user: u\ncurrent-context: x\n";
    let address = |rng: &mut Rng| serde_json::Value::from(spelled::url(rng)).to_string();
    match rng.below(19) {
        14 | 15 => GOOD.replace("https://127.0.0.1:1", &address(rng)),
        16 => {
            let proxy = format!(":1\n    proxy-url: {}", address(rng));
            GOOD.replace(":1", &proxy)
        }
        17 => GOOD.replace("    token: t\n", rng.of(MORE_USERS)),
        18 => GOOD.replace(rng.of(&["- name: c\n", "- name: u\n", "- name: x\n", "kind: Config\n", "    user: u\n"]), rng.of(MORE_LINES)),
        0 | 1 => GOOD.to_owned(),
        2 => GOOD.replace("current-context: x", "current-context: y"),
        3 => GOOD.replace("cluster: c\n", "cluster: d\n"),
        4 => GOOD.replace("user: u\n", "user: v\n"),
        5 => GOOD.replace("https://127.0.0.1:1", rng.of(&["", "::", "127.0.0.1:1", "ftp://x", "http://a b", "https://[::1", "https://x:y", "/"])),
        6 => GOOD.replace("    token: t\n", rng.of(&["    client-certificate: none.crt\n    client-key: none.key\n", "    client-certificate-data: eA==\n", "    client-certificate-data: '!'\n", "    client-certificate-data: eA==\n    client-key-data: eA==\n", "    username: a\n", "    username: a\n    password: b\n    token: c\n", "    tokenFile: none\n", "    exec: {command: x}\n", "    exec: {apiVersion: client.authentication.k8s.io/v1, command: x, interactiveMode: Never}\n", "    auth-provider: {name: gcp}\n", "    as: x\n", "    bogus: 1\n", "    token: 5\n", "    token: [a]\n", "    as-user-extra: {a: [b]}\n"])),
        7 => GOOD.replace("kind: Config", rng.of(&["kind: Pod", "kind: ''", "", "kind: Config\nkind: Config"])),
        8 => GOOD.replace("apiVersion: v1", rng.of(&["apiVersion: v2", "apiVersion: ''", "", "apiVersion: a/b/c"])),
        9 => GOOD.replace("    server: https://127.0.0.1:1\n", rng.of(&["    server: https://127.0.0.1:1\n    certificate-authority: none.crt\n", "    server: https://127.0.0.1:1\n    certificate-authority-data: eA==\n", "    server: https://127.0.0.1:1\n    certificate-authority-data: '!'\n", "    server: https://127.0.0.1:1\n    insecure-skip-tls-verify: true\n    certificate-authority-data: eA==\n", "    server: https://127.0.0.1:1\n    proxy-url: '::'\n", "    server: https://127.0.0.1:1\n    proxy-url: ftp://x\n", "    server: https://127.0.0.1:1\n    tls-server-name: x\n", "    bogus: 1\n", "    server: https://127.0.0.1:1\n    server: https://127.0.0.1:2\n"])),
        10 => rng.of(&["", "{}", "[]", "x", "null", "\t", "a: b: c", "{\"kind\": \"Config\"}", "kind: Config\napiVersion: v1\n", "# x\n"]).to_owned(),
        11 => GOOD.replace("clusters:", rng.of(&["clusters: []\nx:", "clusters: x\ny:", "Clusters:"])),
        12 => String::from_utf8_lossy(&bend(GOOD, rng)).into_owned(),
        _ => GOOD.replace("current-context: x\n", rng.of(&["", "current-context: ''\n", "current-context: [x]\n", "current-context: x\nbogus: 1\n"])),
    }
}
