//! The kubeconfig that a bootstrap writes, in `clientcmd`'s format.
//!
//! Unlike upstream it includes the proxy and the TLS server name, without which the next start
//! could not reach the server.

use super::kubeconfig::{Kubeconfig, KubeconfigError, Material};
use base64::Engine;
use std::path::{Path, PathBuf};

/// Writes the kubeconfig of a bootstrap.
#[derive(Debug)]
pub struct KubeconfigWriter {
    source: Kubeconfig,
    pem_path: PathBuf,
}

impl KubeconfigWriter {
    pub(super) fn new(source: Kubeconfig, pem_path: PathBuf) -> Self {
        Self { source, pem_path }
    }

    /// Replaces the file at `path`.
    pub fn write(&self, path: &Path) -> Result<(), KubeconfigError> {
        if let Some(folder) = path.parent() {
            sys::fs::create_dir_all(folder, 0o755)?;
        }
        Ok(sys::fs::write_atomic(path, self.render(), 0o600)?)
    }

    /// The file's text.
    pub fn render(&self) -> String {
        let mut cluster = String::new();
        let mut add = |key: &str, value: String| {
            cluster.push_str(&format!("    {key}: {value}\n"));
        };
        match &self.source.authority {
            Some(Material::File(path)) => {
                add("certificate-authority", scalar(&path.to_string_lossy()));
            }
            Some(Material::Inline(bytes)) => {
                let text = base64::prelude::BASE64_STANDARD.encode(bytes);
                add("certificate-authority-data", scalar(&text));
            }
            None => {}
        }
        if self.source.insecure {
            add("insecure-skip-tls-verify", "true".to_owned());
        }
        if let Some(proxy) = &self.source.proxy_url {
            add("proxy-url", scalar(proxy));
        }
        add("server", scalar(&self.source.server));
        if let Some(name) = &self.source.tls_server_name {
            add("tls-server-name", scalar(name));
        }
        let pem = scalar(&self.pem_path.to_string_lossy());
        format!(
            "apiVersion: v1
clusters:
- cluster:
{cluster}  name: default-cluster
contexts:
- context:
    cluster: default-cluster
    namespace: default
    user: default-auth
  name: default-context
current-context: default-context
kind: Config
users:
- name: default-auth
  user:
    client-certificate: {pem}
    client-key: {pem}
"
        )
    }
}

/// A string as YAML: plain if it parses to the same string.
fn scalar(text: &str) -> String {
    let read = units::yaml::read(format!("a: {text}\n").as_bytes());
    let plain = read.is_ok_and(|read| read.value == serde_json::json!({ "a": text }));
    if plain { text.to_owned() } else { serde_json::Value::from(text).to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ASKING: &str = r#"
clusters:
- name: c
  cluster: {server: "https://api:6443", certificate-authority: pki/ca.crt}
users: [{name: u, user: {token: t}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
"#;

    // As the Go kubelet writes it.
    #[test]
    fn the_file_reads_as_clientcmd_writes_it() {
        let asking = Kubeconfig::parse(ASKING, Path::new("/etc/kubernetes")).unwrap();
        let text = asking.writer(Path::new("/pki/kubelet-client-current.pem")).render();
        let want = "apiVersion: v1
clusters:
- cluster:
    certificate-authority: /etc/kubernetes/pki/ca.crt
    server: https://api:6443
  name: default-cluster
contexts:
- context:
    cluster: default-cluster
    namespace: default
    user: default-auth
  name: default-context
current-context: default-context
kind: Config
users:
- name: default-auth
  user:
    client-certificate: /pki/kubelet-client-current.pem
    client-key: /pki/kubelet-client-current.pem
";
        assert_eq!(text, want);
    }

    #[test]
    fn what_would_read_as_something_else_is_quoted() {
        for plain in ["https://a:1/b", "/a b/c", "eA=="] {
            assert_eq!(scalar(plain), plain);
        }
        for other in ["5", "a: b", "a #b", "true", "[x]", ""] {
            assert_eq!(scalar(other), format!("\"{other}\""));
        }
    }
}
