//! The file that says where the API server is: could a client be made of it?
//!
//! Promises: upstream's texts and order of checks (client-go: `clientcmd`, `rest`). Making the
//! client is for others.

mod file;
mod material;

use crate::ConfigFiles;
use crate::document;
use crate::log::{LogLine, Severity};
use crate::resolved::bundle_fault;
use crate::text::{aggregate, clean_path};
use crate::value::{Decoder, GoValue, Reading};
use file::{Cluster, Exec, File, User};
use material::{Rotation, content, first_certificate, tls_fault, wrapper_fault};
use units::gourl;
use units::strconv::quote;

/// Why no certificate can be asked for with the file that is there until one is, as the whole start
/// would tell it, and what is to be logged before. `path` is where the lasting file is, or will be;
/// `rotate` is where certificates are kept if they change.
pub(crate) fn bootstrap_fault(
    files: &dyn ConfigFiles,
    (bootstrap, path): (&str, &str),
    rotate: Option<&str>,
) -> (Vec<LogLine>, Option<String>) {
    let read = files.read(path).err();
    let missing = read.as_ref().is_some_and(|e| e.ends_with("no such file or directory"));
    if let Some(why) = read.and_then(unfound) {
        let fault = format!("error reading existing bootstrap kubeconfig {path}: {why}");
        return (Vec::new(), Some(fault));
    }
    let mut lines = match lasting(files, path) {
        _ if missing => Vec::new(),
        // Whether it has expired is seen later.
        Ok(()) => return fault(files, path, rotate),
        Err(why) => vec![unhandled("Unhandled Error", why, "UnhandledError")],
    };
    let fault = match (load(files, bootstrap), rotate) {
        (Err(fault), _) => Some(format!("unable to load bootstrap kubeconfig: {fault}")),
        (Ok(file), Some(folder)) => {
            let (told, fault) = rotating_fault(files, &file, &User::default(), folder);
            lines.extend(told);
            fault
        }
        (Ok(file), None) => client_fault(files, &file)
            .map(|fault| format!("unable to create certificates signing request client: {fault}")),
    };
    (lines, fault)
}

fn unhandled(message: &str, why: String, logger: &'static str) -> LogLine {
    LogLine::at(Severity::Error, message).with("err", why).with("logger", logger)
}

/// Why a file cannot even be looked for.
fn unfound(error: String) -> Option<String> {
    let ends = ["not a directory", "too many levels of symbolic links", "file name too long"];
    let rest = error.strip_prefix("open ").filter(|e| ends.iter().any(|end| e.ends_with(end)))?;
    Some(format!("stat {rest}"))
}

/// Whether a file can be used as it is: it has a certificate.
fn lasting(files: &dyn ConfigFiles, path: &str) -> Result<(), String> {
    let from = "existing bootstrap client config";
    let file =
        load(files, path).map_err(|fault| format!("unable to read {from} from {path}: {fault}"))?;
    let failed = |what: &str, why: &str| {
        Err(format!("unable to load {what} from {from} read from {path}: {why}"))
    };
    let mut certificate = Vec::new();
    if secure(&file.cluster.server) {
        let user = &file.user;
        if let Some(fault) = transport_fault(user) {
            return failed("transport configuration", &fault);
        }
        if let Some(fault) = tls_fault(files, &file.cluster, user) {
            return failed("TLS configuration", &fault);
        }
        let read = content(files, &user.client_certificate_data, &user.client_certificate);
        certificate = read.unwrap_or_default();
    }
    match bundle_fault(&certificate) {
        Some(fault) => failed("TLS certificates", fault),
        None => Ok(()),
    }
}

/// Why no client can be made of the file, as the whole start would tell it, and what is to be logged
/// before.
pub(crate) fn fault(
    files: &dyn ConfigFiles,
    path: &str,
    rotate: Option<&str>,
) -> (Vec<LogLine>, Option<String>) {
    let fault = match (load(files, path), rotate) {
        (Err(fault), Some(_)) => Some(format!("unable to load kubeconfig: {fault}")),
        (Err(fault), None) => Some(format!("invalid kubeconfig: {fault}")),
        (Ok(file), Some(folder)) => return rotating_fault(files, &file, &file.user, folder),
        (Ok(file), None) => client_fault(files, &file)
            .map(|fault| format!("failed to initialize kubelet client: {fault}")),
    };
    (Vec::new(), fault)
}

/// Why no client with changing certificates can be made; `user` has what it begins with. The first
/// certificate is asked for with what the file has; who cannot, goes on without.
fn rotating_fault(
    files: &dyn ConfigFiles,
    file: &InForce,
    user: &User,
    folder: &str,
) -> (Vec<LogLine>, Option<String>) {
    let cluster = &file.cluster;
    let secure = secure(&cluster.server);
    let nobody = User::default();
    // Over an open line nobody has a certificate.
    let rotation = match first_certificate(files, if secure { user } else { &nobody }, folder) {
        Ok(rotation) => rotation,
        Err(fault) => {
            let fault = format!("failed to initialize client certificate manager: {fault}");
            return (Vec::new(), Some(fault));
        }
    };
    let tls = secure.then(|| tls_fault(files, cluster, &nobody)).flatten();
    if let Some(fault) = tls {
        let fault = format!("unable to configure TLS for the rest client: {fault}");
        return (Vec::new(), Some(fault));
    }
    let asks = rotation == Rotation::AtOnce;
    let lines = client_fault(files, file).filter(|_| asks).map(|why| {
        let logger = "kubernetes.io/kube-apiserver-client-kubelet.UnhandledError";
        unhandled("Unable to load a client to request certificates", why, logger)
    });
    let fault = gourl::of_server(&cluster.server).err();
    let fault = fault.map(|fault| format!("failed to initialize kubelet client: {fault}"));
    (lines.into_iter().filter(|_| fault.is_none()).collect(), fault)
}

/// The pair in force.
struct InForce {
    cluster: Cluster,
    user: User,
}

fn load(files: &dyn ConfigFiles, path: &str) -> Result<InForce, String> {
    let data = files.read(path).map_err(|error| {
        match error.strip_prefix("open ").filter(|e| e.ends_with("no such file or directory")) {
            Some(rest) => format!("stat {rest}"),
            None => format!("error loading config file \"{path}\": {error}"),
        }
    })?;
    let file =
        decode(&data).map_err(|error| format!("error loading config file \"{path}\": {error}"))?;
    let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
    let place = |text: &mut String| {
        if !text.is_empty() && !text.starts_with('/') {
            let joined = if folder.is_empty() && !path.starts_with('/') {
                text.clone()
            } else {
                format!("{folder}/{text}")
            };
            *text = absolute(files, &clean_path(&joined));
        }
    };
    let context = file.contexts.iter().find(|c| c.name == file.current_context);
    let pair = context.map(|c| c.context.clone()).unwrap_or_default();
    let cluster = file.clusters.iter().find(|c| c.name == pair.cluster);
    let user = file.users.iter().find(|u| u.name == pair.user);
    let mut in_force = InForce {
        cluster: cluster.map(|c| c.cluster.clone()).unwrap_or_default(),
        user: user.map(|u| u.user.clone()).unwrap_or_default(),
    };
    place(&mut in_force.cluster.certificate_authority);
    for text in [
        &mut in_force.user.client_certificate,
        &mut in_force.user.client_key,
        &mut in_force.user.token_file,
    ] {
        place(text);
    }
    let mut faults = Vec::new();
    if !file.current_context.is_empty() && context.is_none() {
        let name = &file.current_context;
        faults.push(format!("context was not found for specified context: {name}"));
    }
    faults.extend(user_faults(files, &pair.user, &in_force.user));
    if cluster.is_some() {
        faults.extend(cluster_faults(files, &pair.cluster, &in_force.cluster));
    } else {
        faults.push(EMPTY_CLUSTER.to_owned());
    }
    if faults == [EMPTY_CLUSTER] {
        faults = vec![EMPTY.to_owned()];
    }
    if !faults.is_empty() {
        return Err(format!("invalid configuration: {}", aggregate(&faults)));
    }
    let token_file = &in_force.user.token_file;
    if in_force.user.token.is_empty() && !token_file.is_empty() && secure(&in_force.cluster.server)
    {
        files.read(token_file)?;
    }
    Ok(in_force)
}

const EMPTY_CLUSTER: &str = "cluster has no server defined";
const EMPTY: &str =
    "no configuration has been provided, try setting KUBERNETES_MASTER environment variable";

fn absolute(files: &dyn ConfigFiles, path: &str) -> String {
    crate::text::absolute_path(&files.working_dir(), path)
}

fn decode(data: &[u8]) -> Result<File, String> {
    if data.is_empty() {
        return Ok(File::default());
    }
    let document = document::read(data)?;
    let mut found = document::document_type(&document)?;
    if found.kind.is_empty() {
        "Config".clone_into(&mut found.kind);
    }
    if found.api_version.is_empty() {
        "v1".clone_into(&mut found.api_version);
    }
    if found.kind != "Config" || found.version() != "v1" {
        return Err(found.unregistered());
    }
    let reading = if document.json { Reading::Json } else { Reading::Yaml };
    let mut decoder = Decoder::new(reading);
    let mut file = File::default();
    file.decode(&document.value, "", &mut decoder);
    match decoder.error().cloned().or_else(|| file.duplicate()) {
        Some(error) => Err(error),
        None => Ok(file),
    }
}

fn readable(files: &dyn ConfigFiles, path: &str, what: &str, whose: &str) -> Option<String> {
    // A folder can be opened.
    let error = files.read(path).err().filter(|error| error.starts_with("open "))?;
    Some(format!("unable to read {what} {path} for {whose} due to {error}"))
}

fn user_faults(files: &dyn ConfigFiles, name: &str, user: &User) -> Vec<String> {
    let mut faults = Vec::new();
    let mut methods = Vec::new();
    if !user.token.is_empty() {
        methods.push("token");
    }
    if !user.username.is_empty() || !user.password.is_empty() {
        methods.push("basicAuth");
    }
    let (certificate, certificate_data) = (&user.client_certificate, &user.client_certificate_data);
    if !certificate.is_empty() || !certificate_data.is_empty() {
        if !certificate.is_empty() && !certificate_data.is_empty() {
            faults.push(format!(
                "client-cert-data and client-cert are both specified for {name}. \
                 client-cert-data will override."
            ));
        }
        if !user.client_key.is_empty() && !user.client_key_data.is_empty() {
            faults.push(format!(
                "client-key-data and client-key are both specified for {name}; client-key-data \
                 will override"
            ));
        }
        if user.client_key.is_empty() && user.client_key_data.is_empty() {
            faults.push(format!(
                "client-key-data or client-key must be specified for {name} to use the \
                 clientCert authentication method."
            ));
        }
        for (path, what) in [(certificate, "client-cert"), (&user.client_key, "client-key")] {
            if !path.is_empty() {
                faults.extend(readable(files, path, what, name));
            }
        }
    }
    if let Some(exec) = &user.exec {
        faults.extend(exec_faults(name, exec, user.auth_provider.is_some()));
    }
    if methods.len() > 1 {
        faults.push(format!(
            "more than one authentication method found for {name}; found [{}], only one is allowed",
            methods.join(" ")
        ));
    }
    let more = !user.act_as_uid.is_empty()
        || !user.act_as_groups.is_empty()
        || !user.act_as_extra.is_empty();
    if more && user.act_as.is_empty() {
        faults.push(format!(
            "requesting uid, groups or user-extra for {name} without impersonating a user"
        ));
    }
    faults
}

fn exec_faults(name: &str, exec: &Exec, provider: bool) -> Vec<String> {
    let mut faults = Vec::new();
    let needs = |what: &str| {
        format!("{what} must be specified for {name} to use exec authentication plugin")
    };
    if provider {
        faults.push(format!(
            "authProvider cannot be provided in combination with an exec plugin for {name}"
        ));
    }
    if exec.command.is_empty() {
        faults.push(needs("command"));
    }
    if exec.api_version.is_empty() {
        faults.push(needs("apiVersion"));
    }
    for _ in exec.env.iter().filter(|variable| variable.name.is_empty()) {
        faults.push(needs("env variable name"));
    }
    let older = ["client.authentication.k8s.io/v1beta1", "client.authentication.k8s.io/v1alpha1"];
    match exec.interactive_mode.as_str() {
        "" if older.contains(&exec.api_version.as_str()) => {}
        "" => faults.push(needs("interactiveMode")),
        "Never" | "IfAvailable" | "Always" => {}
        other => faults.push(format!("invalid interactiveMode for {name}: {}", quote(other))),
    }
    faults
}

fn cluster_faults(files: &dyn ConfigFiles, name: &str, cluster: &Cluster) -> Vec<String> {
    let mut faults = Vec::new();
    if cluster.server.is_empty() {
        faults.push(match name {
            "" => "default cluster has no server defined".to_owned(),
            name => format!("no server found for cluster {}", quote(name)),
        });
    }
    if let Some(fault) = proxy_fault(&cluster.proxy_url) {
        faults.push(format!(
            "invalid 'proxy-url' {} for cluster {}: {fault}",
            quote(&cluster.proxy_url),
            quote(name)
        ));
    }
    let (file, data) = (&cluster.certificate_authority, &cluster.certificate_authority_data);
    if !file.is_empty() && !data.is_empty() {
        faults.push(format!(
            "certificate-authority-data and certificate-authority are both specified for {name}. \
             certificate-authority-data will override."
        ));
    }
    if !file.is_empty() {
        faults.extend(readable(files, file, "certificate-authority", name));
    }
    faults
}

fn proxy_fault(url: &str) -> Option<String> {
    if url.is_empty() {
        return None;
    }
    let Ok(parsed) = gourl::parse(url) else {
        return Some(format!("could not parse: {url}"));
    };
    let scheme = parsed.scheme.as_str();
    let known = ["http", "https", "socks5"].contains(&scheme);
    (!known)
        .then(|| format!("unsupported scheme {}, must be http, https, or socks5", quote(scheme)))
}

/// Whether the server is spoken to over TLS by its address alone. Nothing else of the file is looked
/// at if not.
fn secure(server: &str) -> bool {
    gourl::of_server(server).is_ok_and(|url| url.scheme == "https")
}

/// Why nobody can be asked who we are.
fn transport_fault(user: &User) -> Option<String> {
    const PROTOCOLS: [&str; 2] =
        ["client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1"];
    let exec = user.exec.as_ref().map(|exec| exec.api_version.as_str());
    if let Some(version) = exec.filter(|version| !PROTOCOLS.contains(version)) {
        return Some(format!("exec plugin: invalid apiVersion {}", quote(version)));
    }
    let provider = user.auth_provider.as_ref()?;
    Some(format!("no Auth Provider found for name {}", quote(&provider.name)))
}

fn client_fault(files: &dyn ConfigFiles, file: &InForce) -> Option<String> {
    let InForce { cluster, user } = file;
    if secure(&cluster.server) {
        let fault = transport_fault(user)
            .or_else(|| tls_fault(files, cluster, user))
            .or_else(|| wrapper_fault(files, user));
        if fault.is_some() {
            return fault;
        }
    }
    gourl::of_server(&cluster.server).err()
}

#[cfg(test)]
mod tests;
