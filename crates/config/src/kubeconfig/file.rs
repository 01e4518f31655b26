//! The document as Go declares it, and Go's way of printing its lists.
#![expect(unreachable_pub, reason = "the macro's structs are public")]

use crate::value::{Decoder, GoValue, go_struct};
use serde::{Serialize, Serializer};
use serde_json::Value;
use std::collections::BTreeMap;

go_struct! {
    /// The document.
    File = "v1.Config" {
        /// Kind.
        kind: String, "kind", "string", omitempty;
        /// API version.
        api_version: String, "apiVersion", "string", omitempty;
        /// For people.
        preferences: Preferences, "preferences", "v1.Preferences", omitempty;
        /// Servers.
        clusters: Vec<NamedCluster>, "clusters", "[]v1.NamedCluster", always;
        /// Identities.
        users: Vec<NamedUser>, "users", "[]v1.NamedAuthInfo", always;
        /// Pairs of both.
        contexts: Vec<NamedContext>, "contexts", "[]v1.NamedContext", always;
        /// The pair in force.
        current_context: String, "current-context", "string", always;
        /// What nobody here reads.
        extensions: Vec<NamedExtension>, "extensions", "[]v1.NamedExtension", omitempty;
    }
}

go_struct! {
    /// A server with its name.
    NamedCluster = "v1.NamedCluster" {
        /// Name.
        name: String, "name", "string", always;
        /// Server.
        cluster: Cluster, "cluster", "v1.Cluster", always;
    }
}

go_struct! {
    /// A server.
    Cluster = "v1.Cluster" {
        /// Its address.
        server: String, "server", "string", always;
        /// The name its certificate has.
        tls_server_name: String, "tls-server-name", "string", omitempty;
        /// Whether anybody is believed to be it.
        insecure_skip_tls_verify: bool, "insecure-skip-tls-verify", "bool", omitempty;
        /// Whom its certificate is from.
        certificate_authority: String, "certificate-authority", "string", omitempty;
        /// The same, inline.
        certificate_authority_data: Bytes, "certificate-authority-data", "[]uint8", omitempty;
        /// Who stands between.
        proxy_url: String, "proxy-url", "string", omitempty;
        /// Whether answers come uncompressed.
        disable_compression: bool, "disable-compression", "bool", omitempty;
        /// What nobody here reads.
        extensions: Vec<NamedExtension>, "extensions", "[]v1.NamedExtension", omitempty;
    }
}

go_struct! {
    /// An identity with its name.
    NamedUser = "v1.NamedAuthInfo" {
        /// Name.
        name: String, "name", "string", always;
        /// Identity.
        user: User, "user", "v1.AuthInfo", always;
    }
}

go_struct! {
    /// An identity.
    User = "v1.AuthInfo" {
        /// Certificate.
        client_certificate: String, "client-certificate", "string", omitempty;
        /// The same, inline.
        client_certificate_data: Bytes, "client-certificate-data", "[]uint8", omitempty;
        /// Its key.
        client_key: String, "client-key", "string", omitempty;
        /// The same, inline.
        client_key_data: Bytes, "client-key-data", "[]uint8", omitempty;
        /// Token.
        token: String, "token", "string", omitempty;
        /// Where the token is.
        token_file: String, "tokenFile", "string", omitempty;
        /// Name.
        username: String, "username", "string", omitempty;
        /// Password.
        password: String, "password", "string", omitempty;
        /// A program that knows.
        exec: Option<Exec>, "exec", "*v1.ExecConfig", omitempty;
        /// Somebody else who knows.
        auth_provider: Option<AuthProvider>, "auth-provider", "*v1.AuthProviderConfig", omitempty;
        /// Whom to act for.
        act_as: String, "as", "string", omitempty;
        /// The id to act with.
        act_as_uid: String, "as-uid", "string", omitempty;
        /// The groups to act with.
        act_as_groups: Vec<String>, "as-groups", "[]string", omitempty;
        /// What else to act with.
        act_as_extra: BTreeMap<String, Vec<String>>, "as-user-extra", "map[string][]string", omitempty;
        /// What nobody here reads.
        extensions: Vec<NamedExtension>, "extensions", "[]v1.NamedExtension", omitempty;
    }
}

go_struct! {
    /// Somebody else who knows.
    AuthProvider = "v1.AuthProviderConfig" {
        /// Name.
        name: String, "name", "string", always;
        /// What it wants to know.
        config: BTreeMap<String, String>, "config", "map[string]string", always;
    }
}

go_struct! {
    /// A program that knows an identity.
    Exec = "v1.ExecConfig" {
        /// Program.
        command: String, "command", "string", always;
        /// Arguments.
        args: Vec<String>, "args", "[]string", always;
        /// Environment.
        env: Vec<Variable>, "env", "[]v1.ExecEnvVar", always;
        /// Version of the protocol.
        api_version: String, "apiVersion", "string", omitempty;
        /// What to tell a person who does not have it.
        install_hint: String, "installHint", "string", omitempty;
        /// Whether it may ask a person.
        interactive_mode: String, "interactiveMode", "v1.ExecInteractiveMode", omitempty;
        /// Whether it is told the server.
        provide_cluster_info: bool, "provideClusterInfo", "bool", always;
    }
}

go_struct! {
    /// One variable of a program's environment.
    Variable = "v1.ExecEnvVar" {
        /// Name.
        name: String, "name", "string", always;
        /// Value.
        value: String, "value", "string", always;
    }
}

go_struct! {
    /// A server and an identity, with a name.
    NamedContext = "v1.NamedContext" {
        /// Name.
        name: String, "name", "string", always;
        /// The pair.
        context: Context, "context", "v1.Context", always;
    }
}

go_struct! {
    /// A server and an identity.
    Context = "v1.Context" {
        /// Server.
        cluster: String, "cluster", "string", always;
        /// Identity.
        user: String, "user", "string", always;
        /// Namespace.
        namespace: String, "namespace", "string", omitempty;
        /// What nobody here reads.
        extensions: Vec<NamedExtension>, "extensions", "[]v1.NamedExtension", omitempty;
    }
}

go_struct! {
    /// For people.
    Preferences = "v1.Preferences" {
        /// Whether they like colours.
        colors: bool, "colors", "bool", omitempty;
        /// What nobody here reads.
        extensions: Vec<NamedExtension>, "extensions", "[]v1.NamedExtension", omitempty;
    }
}

go_struct! {
    /// Something with a name.
    NamedExtension = "v1.NamedExtension" {
        /// Name.
        name: String, "name", "string", always;
        /// Anything.
        extension: Anything, "extension", "runtime.RawExtension", always;
    }
}

/// A value of any type, which nobody looks at.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Anything;

impl GoValue for Anything {
    fn decode(&mut self, _: &Value, _: &str, _: &mut Decoder) {}
}

/// Bytes, written in base64.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Bytes(pub(super) Vec<u8>);

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&format!("{} bytes", self.0.len()))
    }
}

impl GoValue for Bytes {
    fn decode(&mut self, value: &Value, go_type: &str, decoder: &mut Decoder) {
        let mut text = String::new();
        text.decode(value, go_type, decoder);
        match units::base64::decode(&text) {
            Ok(bytes) => self.0 = bytes,
            Err(error) => decoder.note(error.to_string()),
        }
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl File {
    /// The first name that comes twice in a list, with the whole list as `%v` prints it.
    pub(super) fn duplicate(&self) -> Option<String> {
        let told = |(list, map): (&str, &str), name: &str, items: Vec<String>| {
            format!(
                "error converting *[]{list} into *map[string]*api.{map}: duplicate name \
                 \"{name}\" in list: [{}]",
                items.join(" ")
            )
        };
        let clusters = || self.clusters.iter().map(NamedCluster::dump).collect();
        let users = || self.users.iter().map(NamedUser::dump).collect();
        let contexts = || self.contexts.iter().map(NamedContext::dump).collect();
        twice(self.clusters.iter().map(|c| &c.name))
            .map(|name| told(("NamedCluster", "Cluster"), name, clusters()))
            .or_else(|| {
                twice(self.users.iter().map(|u| &u.name))
                    .map(|name| told(("NamedAuthInfo", "AuthInfo"), name, users()))
            })
            .or_else(|| {
                twice(self.contexts.iter().map(|c| &c.name))
                    .map(|name| told(("NamedContext", "Context"), name, contexts()))
            })
    }
}

fn twice<'a>(names: impl Iterator<Item = &'a String>) -> Option<&'a String> {
    let mut seen = std::collections::BTreeSet::new();
    names.into_iter().find(|name| !seen.insert(*name))
}

impl NamedCluster {
    fn dump(&self) -> String {
        let c = &self.cluster;
        format!(
            "{{{} {{{} {} {} {} {} {} {} []}}}}",
            self.name,
            c.server,
            c.tls_server_name,
            c.insecure_skip_tls_verify,
            c.certificate_authority,
            c.certificate_authority_data.dump(),
            c.proxy_url,
            c.disable_compression
        )
    }
}

impl NamedUser {
    fn dump(&self) -> String {
        let u = &self.user;
        let extra: Vec<String> = u
            .act_as_extra
            .iter()
            .map(|(key, list)| format!("{key}:[{}]", list.join(" ")))
            .collect();
        // Addresses of pointers are nobody's business.
        let pointer = |given: bool| if given { "0x0" } else { "<nil>" };
        format!(
            "{{{} {{{} {} {} {} {} {} {} {} [{}] map[{}] {} {} {} {} []}}}}",
            self.name,
            u.client_certificate,
            u.client_certificate_data.dump(),
            u.client_key,
            u.client_key_data.dump(),
            u.token,
            u.token_file,
            u.act_as,
            u.act_as_uid,
            u.act_as_groups.join(" "),
            extra.join(" "),
            u.username,
            u.password,
            pointer(u.auth_provider.is_some()),
            pointer(u.exec.is_some())
        )
    }
}

impl NamedContext {
    fn dump(&self) -> String {
        let Context { cluster, user, namespace, .. } = &self.context;
        format!("{{{} {{{cluster} {user} {namespace} []}}}}", self.name)
    }
}

impl Bytes {
    fn dump(&self) -> String {
        let bytes: Vec<String> = self.0.iter().map(u8::to_string).collect();
        format!("[{}]", bytes.join(" "))
    }
}
