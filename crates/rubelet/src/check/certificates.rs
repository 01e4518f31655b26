//! Certificates: readable, and not about to end.

use super::Finding;
use config::Config;
use ports::Clock;
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
    if findings.is_empty() && !found {
        findings.push(Finding::ok(SUBJECT, "none yet; they are made at start"));
    }
    findings
}

fn named(path: &Path, what: &str, clock: &dyn Clock) -> Finding {
    let shown = path.display();
    let renew = "renew it; with rotateCertificates or serverTLSBootstrap it renews itself";
    match first_end(path) {
        Err(error) => {
            Finding::error(SUBJECT, format!("{what} {shown}: {error}"), "give a PEM file")
        }
        Ok(end) => {
            let days = (end - clock.now().as_second()) / 86_400;
            let seen = format!("{what} {shown} ends in {days} days");
            if end <= clock.now().as_second() {
                Finding::error(SUBJECT, format!("{what} {shown} has ended"), renew)
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
    let bytes = sys::fs::read(path).map_err(|error| error.source.to_string())?;
    let mut first: Option<i64> = None;
    for pem in Pem::iter_from_buffer(&bytes).flatten().filter(|pem| pem.label == "CERTIFICATE") {
        let certificate = pem.parse_x509().map_err(|error| error.to_string())?;
        let end = certificate.validity().not_after.timestamp();
        first = Some(first.map_or(end, |earlier| earlier.min(end)));
    }
    first.ok_or_else(|| "there is no certificate in it".to_owned())
}
