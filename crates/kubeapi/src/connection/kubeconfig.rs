//! Kubeconfig files, without the parts that need a terminal.
//!
//! Promises: relative paths are relative to the file's directory, as everywhere in Kubernetes;
//! secrets never appear in `Debug`.

use super::writer::KubeconfigWriter;
use base64::Engine;
use serde::Deserialize;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Why a kubeconfig cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KubeconfigError {
    /// The file, or one that it names, cannot be read.
    #[error("file cannot be read")]
    File(#[from] sys::fs::FsError),
    /// It is not YAML of the right shape.
    #[error("cannot be parsed: {0}")]
    Syntax(String),
    /// `current-context` does not exist.
    #[error("context {0:?} does not exist")]
    NoContext(String),
    /// The context's cluster is missing.
    #[error("cluster {0:?} does not exist")]
    NoCluster(String),
    /// Inline data is not base64.
    #[error("{0} is not base64")]
    NotBase64(&'static str),
}

/// Text that must not be printed.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub(crate) struct SecretText(String);

impl SecretText {
    pub(crate) fn expose(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Debug for SecretText {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("[redacted]")
    }
}

/// Bytes given inline or as a file.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Material {
    Inline(Vec<u8>),
    File(PathBuf),
}

impl std::fmt::Debug for Material {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Inline(bytes) => write!(f, "Inline({} bytes)", bytes.len()),
            Self::File(path) => write!(f, "File({})", path.display()),
        }
    }
}

impl Material {
    fn read(&self) -> Result<Vec<u8>, KubeconfigError> {
        match self {
            Self::Inline(bytes) => Ok(bytes.clone()),
            Self::File(path) => Ok(sys::fs::read(path)?),
        }
    }
}

/// A certificate chain and its key, as PEM.
#[derive(Clone, PartialEq, Eq)]
pub struct PemPair {
    /// The chain, leaf first.
    pub certificate: Vec<u8>,
    /// The private key.
    pub key: Vec<u8>,
}

impl std::fmt::Debug for PemPair {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PemPair").finish_non_exhaustive()
    }
}

/// An exec plugin's settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ExecSettings {
    pub(crate) api_version: String,
    pub(crate) command: String,
    pub(crate) args: Vec<String>,
    pub(crate) env: Vec<(String, String)>,
    pub(crate) interactive_mode: String,
    pub(crate) provide_cluster_info: bool,
}

/// The user to impersonate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ActAs {
    pub(crate) user: String,
    pub(crate) uid: String,
    pub(crate) groups: Vec<String>,
    pub(crate) extra: BTreeMap<String, Vec<String>>,
}

/// The current context of a kubeconfig file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kubeconfig {
    /// The API server's URL.
    pub server: String,
    /// `tls-server-name`.
    pub tls_server_name: Option<String>,
    /// `insecure-skip-tls-verify`.
    pub insecure: bool,
    /// `proxy-url`.
    pub proxy_url: Option<String>,
    pub(crate) disable_compression: bool,
    /// The cluster's configuration for exec plugins.
    pub(crate) exec_extension: Option<Value>,
    pub(crate) authority: Option<Material>,
    pub(crate) certificate: Option<Material>,
    pub(crate) key: Option<Material>,
    pub(crate) token: Option<SecretText>,
    pub(crate) token_file: Option<PathBuf>,
    pub(crate) basic: Option<(String, SecretText)>,
    pub(crate) exec: Option<ExecSettings>,
    pub(crate) act_as: Option<ActAs>,
}

impl Kubeconfig {
    /// Reads a file.
    pub fn read(path: &Path) -> Result<Self, KubeconfigError> {
        let text = sys::fs::read_to_string(path)?;
        // Absolute, because paths from it may be written into another kubeconfig.
        let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        Self::parse(&text, absolute.parent().unwrap_or(Path::new("/")))
    }

    /// Parses a file's text; relative paths are relative to `folder`.
    pub fn parse(text: &str, folder: &Path) -> Result<Self, KubeconfigError> {
        let value = units::yaml::read_either(text.as_bytes())
            .map_err(|e| KubeconfigError::Syntax(e.to_string()))?;
        let document: Document = serde_json::from_value(without_nulls(value))
            .map_err(|e| KubeconfigError::Syntax(e.to_string()))?;
        let Document { clusters, users, contexts, current_context, .. } = document;
        let name = current_context.unwrap_or_default();
        let context = contexts
            .into_iter()
            .find(|c| c.name == name)
            .map(|c| c.context)
            .ok_or(KubeconfigError::NoContext(name))?;
        let cluster = clusters
            .into_iter()
            .find(|c| c.name == context.cluster)
            .map(|c| c.cluster)
            .ok_or(KubeconfigError::NoCluster(context.cluster))?;
        // A missing user means no credentials, as everywhere in Kubernetes.
        let wanted = context.user.unwrap_or_default();
        let user = users.into_iter().find(|u| u.name == wanted).map(|u| u.user).unwrap_or_default();
        // Not a secret: sent over plain HTTP too.
        let act_as = (!user.act_as.is_empty()).then(|| ActAs {
            user: user.act_as.clone(),
            uid: user.act_as_uid.clone(),
            groups: user.act_as_groups.clone(),
            extra: user.act_as_extra.clone(),
        });
        let server = cluster.server.clone().unwrap_or_else(|| "http://localhost:8080".into());
        let secure = units::gourl::of_server(&server).is_ok_and(|url| url.scheme == "https");
        // Over plain HTTP no secrets are sent, and no certificate is verified.
        let (cluster, user) = match secure {
            true => (cluster, user),
            false => {
                (Cluster { proxy_url: cluster.proxy_url, ..Cluster::default() }, User::default())
            }
        };
        let place = |path: String| folder.join(path);
        let material = |what, inline: Option<String>, file: Option<String>| match (inline, file) {
            (Some(data), _) if !data.is_empty() => decode(what, &data).map(Some),
            (_, Some(path)) if !path.is_empty() => Ok(Some(Material::File(place(path)))),
            _ => Ok(None),
        };
        let exec = user.exec.map(|e| ExecSettings {
            api_version: e.api_version,
            // A name without a slash is looked up in PATH; anything else is a path.
            command: match e.command.contains('/') && !e.command.starts_with('/') {
                true => place(e.command).to_string_lossy().into_owned(),
                false => e.command,
            },
            args: e.args.unwrap_or_default(),
            env: e.env.unwrap_or_default().into_iter().map(|v| (v.name, v.value)).collect(),
            interactive_mode: e.interactive_mode,
            provide_cluster_info: e.provide_cluster_info,
        });
        let extension = |e: &NamedExtension| e.name == "client.authentication.k8s.io/exec";
        let exec_extension = cluster.extensions.into_iter().find(extension).map(|e| e.extension);
        Ok(Self {
            server,
            tls_server_name: cluster.tls_server_name.filter(|n| !n.is_empty()),
            insecure: cluster.insecure_skip_tls_verify,
            proxy_url: cluster.proxy_url.filter(|p| !p.is_empty()),
            disable_compression: cluster.disable_compression,
            exec_extension,
            authority: material(
                "certificate-authority-data",
                cluster.certificate_authority_data,
                cluster.certificate_authority,
            )?,
            certificate: material(
                "client-certificate-data",
                user.client_certificate_data,
                user.client_certificate,
            )?,
            key: material("client-key-data", user.client_key_data.map(|s| s.0), user.client_key)?,
            token: user.token.filter(|t| !t.expose().is_empty()),
            token_file: user.token_file.filter(|p| !p.is_empty()).map(place),
            // A user name may have no password.
            basic: user
                .username
                .filter(|u| !u.is_empty())
                .map(|name| (name, user.password.unwrap_or_else(|| SecretText(String::new())))),
            exec,
            act_as,
        })
    }

    /// The CA certificates as PEM, if the file names any; an empty file counts as none.
    pub fn authority_pem(&self) -> Result<Option<Vec<u8>>, KubeconfigError> {
        let pem = self.authority.as_ref().map(Material::read).transpose()?;
        Ok(pem.filter(|pem| !pem.is_empty()))
    }

    /// The client certificate and key as PEM, if the file names both.
    pub fn client_pair(&self) -> Result<Option<PemPair>, KubeconfigError> {
        match (&self.certificate, &self.key) {
            (Some(certificate), Some(key)) => {
                Ok(Some(PemPair { certificate: certificate.read()?, key: key.read()? }))
            }
            _ => Ok(None),
        }
    }

    /// Whether certificate and key are in separate files, which may still change.
    pub(crate) fn has_pair_of_files(&self) -> bool {
        matches!((&self.certificate, &self.key), (Some(Material::File(_)), Some(Material::File(_))))
    }

    /// Whether there is a client certificate with its key.
    pub(crate) fn has_certificate(&self) -> bool {
        self.certificate.is_some() && self.key.is_some()
    }

    /// Whether the client certificate is inline in the file.
    pub fn has_inline_certificate(&self) -> bool {
        matches!(self.certificate, Some(Material::Inline(_)))
    }

    /// The same server without any credentials, for a connection with a rotating certificate.
    pub fn without_credentials(&self) -> Self {
        Self {
            certificate: None,
            key: None,
            token: None,
            token_file: None,
            basic: None,
            exec: None,
            act_as: None,
            ..self.clone()
        }
    }

    /// Text of a kubeconfig for the same server whose user is the certificate in `pem_path`
    /// (upstream: `writeKubeconfigFromBootstrapping`).
    pub fn writer(&self, pem_path: &Path) -> KubeconfigWriter {
        KubeconfigWriter::new(self.clone(), pem_path.to_owned())
    }
}

fn decode(what: &'static str, text: &str) -> Result<Material, KubeconfigError> {
    let compact: String = text.split_whitespace().collect();
    base64::prelude::BASE64_STANDARD
        .decode(compact)
        .map(Material::Inline)
        .map_err(|_| KubeconfigError::NotBase64(what))
}

/// Removes null fields: they mean the same as absent ones.
fn without_nulls(value: Value) -> Value {
    match value {
        Value::Null => Value::Object(Map::new()),
        Value::Object(fields) => {
            let fields = fields.into_iter().filter(|(_, value)| !value.is_null());
            Value::Object(fields.map(|(key, value)| (key, without_nulls(value))).collect())
        }
        Value::Array(items) => Value::Array(items.into_iter().map(without_nulls).collect()),
        other => other,
    }
}

// Absent fields are empty, as in Go.
#[derive(Deserialize, Default)]
#[serde(default, rename_all = "kebab-case")]
struct Document {
    clusters: Vec<NamedCluster>,
    users: Vec<NamedUser>,
    contexts: Vec<NamedContext>,
    current_context: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct NamedCluster {
    name: String,
    cluster: Cluster,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "kebab-case")]
struct Cluster {
    server: Option<String>,
    tls_server_name: Option<String>,
    insecure_skip_tls_verify: bool,
    certificate_authority: Option<String>,
    certificate_authority_data: Option<String>,
    proxy_url: Option<String>,
    disable_compression: bool,
    extensions: Vec<NamedExtension>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct NamedExtension {
    name: String,
    extension: Value,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct NamedUser {
    name: String,
    user: User,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "kebab-case")]
struct User {
    token: Option<SecretText>,
    #[serde(rename = "tokenFile")]
    token_file: Option<String>,
    username: Option<String>,
    password: Option<SecretText>,
    client_certificate: Option<String>,
    client_certificate_data: Option<String>,
    client_key: Option<String>,
    client_key_data: Option<SecretText>,
    exec: Option<Exec>,
    #[serde(default, rename = "as")]
    act_as: String,
    #[serde(default, rename = "as-uid")]
    act_as_uid: String,
    #[serde(default, rename = "as-groups")]
    act_as_groups: Vec<String>,
    #[serde(default, rename = "as-user-extra")]
    act_as_extra: BTreeMap<String, Vec<String>>,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct Exec {
    api_version: String,
    command: String,
    args: Option<Vec<String>>,
    env: Option<Vec<EnvVar>>,
    interactive_mode: String,
    provide_cluster_info: bool,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct EnvVar {
    name: String,
    value: String,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct NamedContext {
    name: String,
    context: Context,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Context {
    cluster: String,
    user: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"
apiVersion: v1
kind: Config
clusters:
- name: c
  cluster: {server: "https://api:6443/base/", certificate-authority: pki/ca.crt}
users:
- name: u
  user:
    client-certificate-data: Y2VydA==
    client-key: /keys/k.pem
    token: secret-token
contexts:
- {name: ctx, context: {cluster: c, user: u}}
current-context: ctx
"#;

    #[test]
    fn fields_that_are_null_and_an_empty_file_say_nothing() {
        let parse = |text: &str| Kubeconfig::parse(text, Path::new("/"));
        let text = TEXT.replace("users:\n", "preferences: null\nextensions: null\nusers:\n");
        let text = text.replace("token: secret-token", "token: null");
        assert!(parse(&text).unwrap().token.is_none());
        for nothing in ["", "clusters: null\nusers: null\ncontexts: null\n"] {
            assert!(
                matches!(parse(nothing), Err(KubeconfigError::NoContext(name)) if name.is_empty())
            );
        }
    }

    #[test]
    fn what_is_missing_is_empty_and_json_is_json() {
        let parse = |text: &str| Kubeconfig::parse(text, Path::new("/"));
        let more = TEXT
            .replace("clusters:\n", "clusters:\n- name: other\n-\n")
            .replace("users:\n", "users:\n- name: other\n")
            .replace("contexts:\n", "contexts:\n- name: other\n")
            .replace("token: secret-token", "exec: {command: x, env: [{name: A}]}");
        let exec = parse(&more).unwrap().exec.unwrap();
        assert_eq!(exec.env, [("A".to_owned(), String::new())]);
        let value = units::yaml::read(TEXT.as_bytes()).unwrap().value;
        let json = serde_json::to_string_pretty(&value).unwrap().replace("  ", "\t");
        assert_eq!(parse(&json).unwrap(), parse(TEXT).unwrap());
    }

    #[test]
    fn paths_are_relative_to_the_files_folder() {
        let config = Kubeconfig::parse(TEXT, Path::new("/etc/kubernetes")).unwrap();
        let expected = Material::File("/etc/kubernetes/pki/ca.crt".into());
        assert_eq!(config.authority, Some(expected));
        assert_eq!(config.key, Some(Material::File("/keys/k.pem".into())));
        assert_eq!(config.certificate, Some(Material::Inline(b"cert".to_vec())));
        assert!(config.has_inline_certificate());
    }

    #[test]
    fn an_open_line_gets_neither_secrets_nor_trust() {
        for clear in ["http://api:6443", "api:6443"] {
            let text = TEXT.replace("https://api:6443/base/", clear);
            let config = Kubeconfig::parse(&text, Path::new("/")).unwrap();
            assert_eq!(config.server, clear);
            assert_eq!((config.authority, config.certificate), (None, None));
            assert_eq!((config.key, config.token), (None, None));
        }
    }

    #[test]
    fn secrets_do_not_show_in_debug_output() {
        let config = Kubeconfig::parse(TEXT, Path::new("/")).unwrap();
        assert!(!format!("{config:?}").contains("secret-token"));
    }

    #[test]
    fn missing_parts_are_named_but_a_missing_user_is_nobody() {
        let broken = TEXT.replace("current-context: ctx", "current-context: other");
        let error = Kubeconfig::parse(&broken, Path::new("/")).unwrap_err();
        assert_eq!(error.to_string(), "context \"other\" does not exist");
        let nobody = TEXT.replace("user: u}", "user: other}");
        let config = Kubeconfig::parse(&nobody, Path::new("/")).unwrap();
        assert_eq!((config.token, config.certificate), (None, None));
    }

    #[test]
    fn what_a_bootstrap_writes_can_be_read_back() {
        let config = Kubeconfig::parse(TEXT, Path::new("/etc/kubernetes")).unwrap();
        let pem = Path::new("/var/lib/kubelet/pki/kubelet-client-current.pem");
        let text = config.writer(pem).render();
        let again = Kubeconfig::parse(&text, Path::new("/")).unwrap();
        assert_eq!(again.server, config.server);
        assert_eq!(again.authority, config.authority);
        assert_eq!(again.certificate, Some(Material::File(pem.into())));
        assert_eq!(again.key, Some(Material::File(pem.into())));
        assert_eq!(again.token, None);
    }
}
