//! Certificates: readable, and not about to end.

use super::Finding;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use config::Config;
use ports::Clock;
use serde_json::Value;
use std::path::Path;
use x509_parser::pem::Pem;

const SUBJECT: &str = "certificates";
/// Less than this left is worth a warning.
const SOON_DAYS: i64 = 14;

/// Looks at the certificates the settings name, and those in the certificate folder.
pub(super) fn check(config: &Config, clock: &dyn Clock) -> Vec<Finding> {
    let mut findings = Vec::new();
    let server = &config.server;
    if let Some(path) = &server.client_ca_file {
        findings.push(named(path, "the authority of clients", clock));
    }
    if let Some(path) = &server.tls_cert_file
        && !server.tls_self_signed
    {
        findings.push(named(path, "the serving certificate", clock));
    }
    let kept = ["kubelet-client-current.pem", "kubelet-server-current.pem", "kubelet.crt"];
    let mut found = false;
    for path in kept.map(|name| config.dirs.certs.join(name)) {
        if sys::fs::try_exists(&path).unwrap_or(false) {
            found = true;
            findings.push(named(&path, "our certificate", clock));
        }
    }
    if let Some(api) = &config.api
        && sys::fs::try_exists(&api.kubeconfig).unwrap_or(false)
    {
        findings.extend(kubeconfig(&api.kubeconfig, clock));
    }
    if findings.is_empty() && !found {
        findings.push(Finding::ok(SUBJECT, "none yet; they are made at start"));
    }
    findings
}

/// Certificates that a kubeconfig names or holds; those in the certificate folder were seen before.
fn kubeconfig(path: &Path, clock: &dyn Clock) -> Vec<Finding> {
    let document = match sys::fs::read_to_string(path)
        .map_err(|e| e.source.to_string())
        .and_then(|text| units::yaml::read(text.as_bytes()).map_err(|e| e.to_string()))
    {
        Ok(document) => document.value,
        Err(error) => {
            let seen = format!("{}: {error}", path.display());
            return vec![Finding::error(SUBJECT, seen, "write the kubeconfig again")];
        }
    };
    let parts =
        [("users", "user", "client-certificate"), ("clusters", "cluster", "certificate-authority")];
    let mut findings = Vec::new();
    for (list, inner, field) in parts {
        let entries = document.get(list).and_then(Value::as_array);
        for entry in entries.into_iter().flatten().filter_map(|entry| entry.get(inner)) {
            let what = format!("the {field} of {}", path.display());
            let held = entry.get(format!("{field}-data")).and_then(Value::as_str);
            let named_file = entry.get(field).and_then(Value::as_str);
            if let Some(data) = held {
                let end = STANDARD
                    .decode(data)
                    .map_err(|error| error.to_string())
                    .and_then(|bytes| earliest_end(&bytes));
                findings.push(told(&what, end, clock));
            } else if let Some(file) = named_file {
                let folder = path.parent().unwrap_or(path);
                findings.push(told(&what, first_end(&folder.join(file)), clock));
            }
        }
    }
    findings
}

fn named(path: &Path, what: &str, clock: &dyn Clock) -> Finding {
    told(&format!("{what} {}", path.display()), first_end(path), clock)
}

fn told(what: &str, end: Result<i64, String>, clock: &dyn Clock) -> Finding {
    let renew = "renew it; with rotateCertificates or serverTLSBootstrap it renews itself";
    match end {
        Err(error) => Finding::error(SUBJECT, format!("{what}: {error}"), "give a PEM file"),
        Ok(end) => {
            let days = (end - clock.now().as_second()) / 86_400;
            let seen = format!("{what} ends in {days} days");
            if end <= clock.now().as_second() {
                Finding::error(SUBJECT, format!("{what} has ended"), renew)
            } else if days < SOON_DAYS {
                Finding::warning(SUBJECT, seen, renew)
            } else {
                Finding::ok(SUBJECT, seen)
            }
        }
    }
}

/// The earliest end of the certificates in a PEM file, in seconds since the epoch.
fn first_end(path: &Path) -> Result<i64, String> {
    earliest_end(&sys::fs::read(path).map_err(|error| error.source.to_string())?)
}

fn earliest_end(bytes: &[u8]) -> Result<i64, String> {
    let mut first: Option<i64> = None;
    for pem in Pem::iter_from_buffer(bytes).flatten().filter(|pem| pem.label == "CERTIFICATE") {
        let certificate = pem.parse_x509().map_err(|error| error.to_string())?;
        let end = certificate.validity().not_after.timestamp();
        first = Some(first.map_or(end, |earlier| earlier.min(end)));
    }
    first.ok_or_else(|| "there is no certificate in it".to_owned())
}
