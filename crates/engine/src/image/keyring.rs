//! Registry credentials: docker configuration files and which entries fit an image.
//!
//! Upstream: `pkg/credentialprovider/{config,keyring}.go`, `secrets`.

use api::core::v1::Secret;
use base64::Engine as _;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Why credentials cannot be read. The text is shown to the pod's owner.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeyringError {
    /// Not JSON of the wanted form.
    #[error("{0}")]
    Json(String),
    /// `auth` is not base64.
    #[error("illegal base64 data at input byte {0}")]
    Base64(usize),
    /// `auth` has no colon.
    #[error("unable to parse auth field, must be formatted as base64(username:password)")]
    Auth,
}

/// One entry of a docker configuration.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct DockerEntry {
    /// The user.
    pub username: String,
    /// The password.
    pub password: String,
    /// The e-mail address.
    pub email: String,
}

impl fmt::Debug for DockerEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DockerEntry(..)")
    }
}

/// Entries by registry.
pub type DockerConfig = BTreeMap<String, DockerEntry>;

/// Where an object lives.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Coordinates {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
}

/// Whose credentials these are. Credentials of the node itself have no source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CredentialSource {
    /// A pull secret.
    Secret(Coordinates),
    /// A service account (through a credential provider).
    ServiceAccount(Coordinates),
}

/// Credentials for one pull.
#[derive(Clone, PartialEq, Eq)]
pub struct Credential {
    /// The user.
    pub username: String,
    /// The password.
    pub password: String,
    /// Hash over user, password and e-mail.
    pub hash: String,
    /// Whose they are.
    pub source: Option<CredentialSource>,
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credential").field("source", &self.source).finish_non_exhaustive()
    }
}

/// Credentials by registry, ready for look-ups.
#[derive(Debug, Clone, Default)]
pub struct Keyring {
    entries: BTreeMap<String, Vec<Credential>>,
}

impl Keyring {
    /// Adds the entries of one configuration.
    pub fn add(&mut self, source: Option<&CredentialSource>, config: &DockerConfig) {
        for (location, entry) in config {
            let Some(key) = registry_key(location) else { continue };
            self.entries.entry(key).or_default().push(Credential {
                username: entry.username.clone(),
                password: entry.password.clone(),
                hash: hash(entry),
                source: source.cloned(),
            });
        }
    }

    /// Every credential that fits the repository, the most specific registry first.
    pub fn look_up(&self, repository: &str) -> Vec<Credential> {
        let fitting: Vec<Credential> = self
            .entries
            .iter()
            .rev()
            .filter(|(key, _)| matches_image(key, repository))
            .flat_map(|(_, credentials)| credentials.iter().cloned())
            .collect();
        if fitting.is_empty() && is_docker_hub(repository) {
            return self.entries.get("index.docker.io").cloned().unwrap_or_default();
        }
        fitting
    }
}

/// The keyring of a pod's pull secrets; secrets of another type are left out.
pub fn of_secrets<'a>(
    secrets: impl IntoIterator<Item = &'a Secret>,
) -> Result<Keyring, KeyringError> {
    let mut keyring = Keyring::default();
    for secret in secrets {
        let text = |key: &str| {
            let bytes = secret.data.as_ref()?.get(key)?;
            (!bytes.0.is_empty()).then_some(bytes.0.as_slice())
        };
        let config = match secret.type_.as_deref() {
            Some("kubernetes.io/dockerconfigjson") => {
                text(".dockerconfigjson").map(parse_config_json)
            }
            Some("kubernetes.io/dockercfg") => text(".dockercfg").map(parse_config),
            _ => None,
        };
        if let Some(config) = config {
            let meta = &secret.metadata;
            let source = CredentialSource::Secret(Coordinates {
                namespace: meta.namespace.clone().unwrap_or_default(),
                name: meta.name.clone().unwrap_or_default(),
                uid: meta.uid.clone().unwrap_or_default(),
            });
            keyring.add(Some(&source), &config?);
        }
    }
    Ok(keyring)
}

/// Reads a `config.json`.
pub fn parse_config_json(text: &[u8]) -> Result<DockerConfig, KeyringError> {
    #[derive(Deserialize)]
    struct File {
        #[serde(default)]
        auths: Option<BTreeMap<String, RawEntry>>,
    }
    let file: File = json(text)?;
    entries(file.auths.unwrap_or_default())
}

/// Reads a `.dockercfg`.
pub fn parse_config(text: &[u8]) -> Result<DockerConfig, KeyringError> {
    entries(json(text)?)
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct RawEntry {
    username: Option<String>,
    password: Option<String>,
    email: Option<String>,
    auth: Option<String>,
}

fn json<T: serde::de::DeserializeOwned>(text: &[u8]) -> Result<T, KeyringError> {
    serde_json::from_slice(text).map_err(|e| {
        // Go's words for the commonest fault; others keep the position only, never the content.
        KeyringError::Json(match e.classify() {
            serde_json::error::Category::Eof => "unexpected end of JSON input".into(),
            _ => format!("invalid JSON at line {} column {}", e.line(), e.column()),
        })
    })
}

fn entries(raw: BTreeMap<String, RawEntry>) -> Result<DockerConfig, KeyringError> {
    let mut config = DockerConfig::new();
    for (registry, entry) in raw {
        let mut decoded = DockerEntry {
            username: entry.username.unwrap_or_default(),
            password: entry.password.unwrap_or_default(),
            email: entry.email.unwrap_or_default(),
        };
        if let Some(auth) = entry.auth.filter(|a| !a.is_empty()) {
            (decoded.username, decoded.password) = decode_auth(&auth)?;
        }
        config.insert(registry, decoded);
    }
    Ok(config)
}

fn decode_auth(auth: &str) -> Result<(String, String), KeyringError> {
    use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
    // Go's decoder skips line breaks.
    let text: String = auth.chars().filter(|c| !matches!(c, '\r' | '\n')).collect();
    let engine = if auth.trim().ends_with('=') { &STANDARD } else { &STANDARD_NO_PAD };
    let bytes = engine.decode(&text).map_err(|e| {
        KeyringError::Base64(match e {
            base64::DecodeError::InvalidByte(at, _)
            | base64::DecodeError::InvalidLastSymbol(at, _) => at,
            base64::DecodeError::InvalidLength(_) | base64::DecodeError::InvalidPadding => {
                text.len() / 4 * 4
            }
        })
    })?;
    let text = String::from_utf8_lossy(&bytes);
    let (user, password) = text.split_once(':').ok_or(KeyringError::Auth)?;
    Ok((user.into(), password.into()))
}

fn hash(entry: &DockerEntry) -> String {
    #[derive(Serialize)]
    struct Hashed<'a> {
        #[serde(skip_serializing_if = "str::is_empty")]
        username: &'a str,
        #[serde(skip_serializing_if = "str::is_empty")]
        password: &'a str,
        #[serde(skip_serializing_if = "str::is_empty")]
        email: &'a str,
    }
    let DockerEntry { username, password, email } = entry;
    let text = units::gojson::to_string(&Hashed { username, password, email });
    text.map(|t| hex(&Sha256::digest(t.as_bytes()))).unwrap_or_default()
}

/// Lower-case hex.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// Host, port and path of a registry without scheme and API version.
fn registry_key(location: &str) -> Option<String> {
    let rest = location
        .strip_prefix("https://")
        .or_else(|| location.strip_prefix("http://"))
        .unwrap_or(location);
    let (host, path) = host_and_path(rest)?;
    let path = match path {
        p if p.starts_with("/v1/") || p.starts_with("/v2/") => p.get(3..).unwrap_or_default(),
        p => p,
    };
    Some(if path == "/" { host.into() } else { format!("{host}{path}") })
}

/// Splits a URL without scheme; `None` when the port is no number.
fn host_and_path(url: &str) -> Option<(&str, &str)> {
    let url = url.split(['?', '#']).next().unwrap_or_default();
    let (host, path) = match url.find('/') {
        Some(at) => url.split_at(at),
        None => (url, ""),
    };
    let port = host.rsplit_once(':').map_or("", |(_, port)| port);
    (port.ends_with(']') || port.bytes().all(|b| b.is_ascii_digit())).then_some((host, path))
}

/// Whether a pattern (`*.example.com/path`) covers an image.
pub fn matches_image(pattern: &str, image: &str) -> bool {
    let (Some((glob_host, glob_path)), Some((host, path))) =
        (host_and_path(pattern), host_and_path(image))
    else {
        return false;
    };
    let (glob_host, glob_port) = split_port(glob_host);
    let (host, port) = split_port(host);
    let labels: (Vec<&str>, Vec<&str>) =
        (glob_host.split('.').collect(), host.split('.').collect());
    glob_port == port
        && labels.0.len() == labels.1.len()
        && path.starts_with(glob_path)
        && labels.0.iter().zip(&labels.1).all(|(glob, label)| glob_matches(glob, label))
}

fn split_port(host: &str) -> (&str, &str) {
    match host.rsplit_once(':') {
        Some((name, port)) if !name.contains(':') || name.ends_with(']') => (name, port),
        _ => (host, ""),
    }
}

fn is_docker_hub(image: &str) -> bool {
    match image.split_once('/') {
        None => !image.is_empty(),
        Some(("docker.io" | "index.docker.io", _)) => true,
        Some((first, _)) => !first.is_empty() && !first.contains(['.', ':']),
    }
}

/// Go's `filepath.Match` within one label: `*`, `?`, `[a-z]`, `[^a]`, `\x`. Linear in the pattern
/// for each position, because patterns come from users.
fn glob_matches(glob: &str, text: &str) -> bool {
    let Some(tokens) = tokens(glob) else { return false };
    let text: Vec<char> = text.chars().collect();
    // reachable[i]: the tokens so far match the first i characters.
    let mut reachable = vec![false; text.len() + 1];
    reachable[0] = true;
    for token in tokens {
        let mut next = vec![false; text.len() + 1];
        let mut earlier = false;
        for (at, slot) in next.iter_mut().enumerate() {
            earlier |= reachable[at];
            *slot = match &token {
                Token::Star => earlier,
                one => at > 0 && reachable[at - 1] && one.takes(text[at - 1]),
            };
        }
        reachable = next;
    }
    reachable[text.len()]
}

enum Token {
    Star,
    Any,
    One(char),
    Class { negated: bool, ranges: Vec<(char, char)> },
}

impl Token {
    fn takes(&self, c: char) -> bool {
        match self {
            Self::Star | Self::Any => true,
            Self::One(one) => *one == c,
            Self::Class { negated, ranges } => {
                ranges.iter().any(|(low, high)| (*low..=*high).contains(&c)) != *negated
            }
        }
    }
}

/// `None` for a malformed pattern.
fn tokens(glob: &str) -> Option<Vec<Token>> {
    let mut tokens = Vec::new();
    let mut chars = glob.chars().peekable();
    while let Some(c) = chars.next() {
        tokens.push(match c {
            '*' => Token::Star,
            '?' => Token::Any,
            '\\' => Token::One(chars.next()?),
            '[' => {
                let negated = chars.next_if_eq(&'^').is_some();
                let mut ranges = Vec::new();
                let bound =
                    |chars: &mut std::iter::Peekable<std::str::Chars<'_>>| match chars.next()? {
                        '\\' => chars.next(),
                        c => Some(c),
                    };
                while ranges.is_empty() || chars.next_if_eq(&']').is_none() {
                    let low = bound(&mut chars)?;
                    let high = match chars.next_if_eq(&'-') {
                        Some(_) => bound(&mut chars)?,
                        None => low,
                    };
                    ranges.push((low, high));
                }
                Token::Class { negated, ranges }
            }
            c => Token::One(c),
        });
    }
    Some(tokens)
}

/// The union of several keyrings' credentials, in order.
pub fn look_up_all<'a>(
    keyrings: impl IntoIterator<Item = &'a Keyring>,
    repository: &str,
) -> Vec<Credential> {
    keyrings.into_iter().flat_map(|k| k.look_up(repository)).collect()
}

/// The distinct texts of several pull errors, as one (`[a, b]`).
pub fn aggregate(errors: &[String]) -> String {
    let mut seen = BTreeSet::new();
    let distinct: Vec<&str> =
        errors.iter().filter(|e| seen.insert(e.as_str())).map(String::as_str).collect();
    match distinct.as_slice() {
        [one] => (*one).into(),
        many => format!("[{}]", many.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::ByteString;

    fn secret(type_: &str, key: &str, text: &str) -> Secret {
        let mut secret = Secret {
            type_: Some(type_.into()),
            data: Some([(key.into(), ByteString(text.into()))].into()),
            ..Secret::default()
        };
        secret.metadata.name = Some("s".into());
        secret
    }

    fn ring(keys: &[&str]) -> Keyring {
        let config = keys
            .iter()
            .map(|k| ((*k).into(), DockerEntry { username: (*k).into(), ..DockerEntry::default() }))
            .collect();
        let mut ring = Keyring::default();
        ring.add(None, &config);
        ring
    }

    fn users(ring: &Keyring, image: &str) -> Vec<String> {
        ring.look_up(image).into_iter().map(|c| c.username).collect()
    }

    #[test]
    fn patterns_match_host_labels_port_and_path_prefix() {
        for (pattern, image, want) in [
            ("r.io", "r.io/a", true),
            ("r.io/foo", "r.io/foobar/x", true),
            ("r.io/foo", "r.io/bar", false),
            ("*.io", "r.io/a", true),
            ("*.io", "a.r.io/a", false),
            ("*.*.io", "a.r.io/a", true),
            // As in a URL, a question mark ends the host.
            ("r?.io", "r1.io/a", false),
            ("r[0-9].io", "r1.io/a", true),
            ("r[^0-9].io", "r1.io/a", false),
            ("r.io:5000", "r.io:5000/a", true),
            ("r.io", "r.io:5000/a", false),
            ("r*o.io", "r-x-o.io/a", true),
        ] {
            assert_eq!(matches_image(pattern, image), want, "{pattern} {image}");
        }
    }

    #[test]
    fn the_most_specific_key_comes_first_and_all_that_fit_follow() {
        let ring = ring(&["r.io", "https://r.io/v2/foo/", "r.io/foo/bar", "other.io"]);
        assert_eq!(
            users(&ring, "r.io/foo/bar/x"),
            ["r.io/foo/bar", "https://r.io/v2/foo/", "r.io"]
        );
        assert!(users(&ring, "none.io/a").is_empty());
    }

    #[test]
    fn docker_hub_has_a_fallback_entry() {
        let ring = ring(&["https://index.docker.io/v1/"]);
        for image in ["docker.io/library/busybox", "busybox", "a/b"] {
            assert_eq!(users(&ring, image).len(), 1, "{image}");
        }
        assert!(users(&ring, "r.io/busybox").is_empty());
    }

    #[test]
    fn secrets_of_both_types_are_read_and_others_skipped() {
        let json = r#"{"auths":{"r.io":{"auth":"dXNlcjpwYXNz","email":"e"}}}"#;
        let good = secret("kubernetes.io/dockerconfigjson", ".dockerconfigjson", json);
        let old = secret(
            "kubernetes.io/dockercfg",
            ".dockercfg",
            r#"{"r.io":{"username":"u2","password":"p2"}}"#,
        );
        let opaque = secret("Opaque", ".dockerconfigjson", "{");
        let found = of_secrets([&good, &old, &opaque]).unwrap().look_up("r.io/a");
        assert_eq!(found.len(), 2);
        assert_eq!((found[0].username.as_str(), found[0].password.as_str()), ("user", "pass"));
        // sha256 of {"username":"user","password":"pass","email":"e"}
        let want = hex(&Sha256::digest(br#"{"username":"user","password":"pass","email":"e"}"#));
        assert_eq!(found[0].hash, want);
        assert!(matches!(&found[0].source, Some(CredentialSource::Secret(c)) if c.name == "s"));
        assert!(!format!("{:?}", found[0]).contains("pass"));
    }

    #[test]
    fn malformed_secrets_fail_the_whole_look_up() {
        let of = |json: &str| {
            let bad = secret("kubernetes.io/dockerconfigjson", ".dockerconfigjson", json);
            of_secrets([&bad]).unwrap_err()
        };
        assert_eq!(of("{").to_string(), "unexpected end of JSON input");
        assert_eq!(of(r#"{"auths":{"r":{"auth":"dXNlcg=="}}}"#), KeyringError::Auth);
        assert!(matches!(of(r#"{"auths":{"r":{"auth":"a!"}}}"#), KeyringError::Base64(_)));
    }

    #[test]
    fn a_malformed_configuration_is_never_repeated() {
        const HIDDEN: &str = "aGlkZGVuOmhpZGRlbg";
        for json in [
            format!("{{\"auths\":{{\"r\":{{\"auth\":\"{HIDDEN}!\"}}}}}}"),
            format!("{{\"auths\":{{\"r\":{{\"auth\":[\"{HIDDEN}\"]}}}}}}"),
            format!("{{\"auths\":{{\"r\":{{\"password\":{{\"{HIDDEN}\":1}}}}}}}}"),
            format!("{{\"auths\":[\"{HIDDEN}\"]}}"),
            format!("{{\"auths\":\"{HIDDEN}\"}}"),
            format!("{{\"auths\":{{\"r\":\"{HIDDEN}\"}}}}"),
            HIDDEN.to_owned(),
            format!("\"{HIDDEN}"),
            format!("{{\"auths\":{{\"r\":{{\"auth\":\"{HIDDEN}"),
        ] {
            for parsed in [parse_config_json(json.as_bytes()), parse_config(json.as_bytes())] {
                let Err(error) = parsed else { continue };
                let told = format!("{error} {error:?}");
                assert!(!told.contains(HIDDEN), "{json}: {told}");
            }
        }
    }

    #[test]
    fn distinct_errors_are_listed_once() {
        assert_eq!(aggregate(&["a".into()]), "a");
        assert_eq!(aggregate(&["a".into(), "a".into()]), "a");
        assert_eq!(aggregate(&["a".into(), "b".into(), "a".into()]), "[a, b]");
    }

    proptest::proptest! {
        #[test]
        fn any_pattern_and_image_can_be_compared(
            pattern in "[a-z*?\\[\\]^.:/\\\\-]{0,40}",
            image in "[a-z0-9.:/-]{0,40}",
        ) {
            let _ = matches_image(&pattern, &image);
            let _ = registry_key(&pattern);
        }

        #[test]
        fn stars_stand_for_any_label(label in "[a-z0-9-]{1,20}") {
            let image = format!("{label}.r.io/x");
            proptest::prop_assert!(matches_image("*.r.io", &image));
            let prefix = format!("{label}*.*.io");
            proptest::prop_assert!(matches_image(&prefix, &image));
        }
    }

    /// CVE-2020-8564: the error about an unreadable file contained its content.
    #[test]
    fn what_is_wrong_with_a_file_is_told_without_what_is_in_it() {
        let secret = "cDFhbnRlZA";
        let wrong = [
            format!("{{\"auths\": {{\"r\": {{\"auth\": \"{secret}\"}}}}"),
            format!("{{\"auths\": {{\"r\": {{\"auth\": \"{secret}!\"}}}}}}"),
            format!("{{\"auths\": {{\"r\": {{\"auth\": \"{secret}==\"}}}}}}"),
            format!("{{\"auths\": {{\"r\": {{\"password\": [\"{secret}\"]}}}}}}"),
            format!("{{\"auths\": \"{secret}\"}}"),
            format!("{{\"auths\": {{\"r\": \"{secret}\"}}}}"),
            format!("{{\"{secret}"),
            secret.to_owned(),
            format!("\u{0}{secret}"),
        ];
        for text in &wrong {
            for read in [parse_config_json, parse_config] {
                let Err(error) = read(text.as_bytes()) else { continue };
                let told = format!("{error} {error:?}");
                assert!(!told.contains(secret) && !told.contains("p1anted"), "{text}: {told}");
            }
            assert!(parse_config_json(text.as_bytes()).is_err(), "{text}");
        }
        let good = format!("{{\"auths\": {{\"r\": {{\"password\": \"{secret}\"}}}}}}");
        let read = parse_config_json(good.as_bytes()).unwrap();
        assert!(!format!("{read:?}").contains(secret));
    }
}
