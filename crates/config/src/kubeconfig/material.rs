//! Certificates and keys that a kubeconfig gives, inline or by file, and those kept for later starts.

use super::file::{Bytes, Cluster, User};
use crate::ConfigFiles;
use crate::resolved::is_certificate;
use crate::text::clean_path;
use crate::value::GoValue;
use units::strconv::quote;

/// What is given inline, or what is in the file.
pub(super) fn content(
    files: &dyn ConfigFiles,
    data: &Bytes,
    path: &str,
) -> Result<Vec<u8>, String> {
    match (data.is_empty(), path.is_empty()) {
        (true, false) => files.read(path),
        _ => Ok(data.0.clone()),
    }
}

/// Why there is no TLS with this server for this user (client-go: `TLSConfigFor`).
pub(super) fn tls_fault(files: &dyn ConfigFiles, cluster: &Cluster, user: &User) -> Option<String> {
    let (file, data) = (&cluster.certificate_authority, &cluster.certificate_authority_data);
    if cluster.insecure_skip_tls_verify && !(file.is_empty() && data.is_empty()) {
        return Some(
            "specifying a root certificates file with the insecure flag is not allowed".to_owned(),
        );
    }
    let certified = !user.client_certificate.is_empty() || !user.client_certificate_data.is_empty();
    let pair = certified.then(|| {
        let key = || content(files, &user.client_key_data, &user.client_key);
        content(files, &user.client_certificate_data, &user.client_certificate)
            .and_then(|certificate| Ok((certificate, key()?)))
    });
    let read = content(files, data, file).and_then(|ca| Ok((ca, pair.transpose()?)));
    let (authority, pair) = match read {
        Ok(read) => read,
        Err(error) => return Some(error),
    };
    if let Some(fault) = authority_fault(&authority) {
        return Some(format!("unable to load root certificates: {fault}"));
    }
    // What is in files may change until it is needed.
    let inline = !user.client_certificate_data.is_empty() || !user.client_key_data.is_empty();
    let (certificate, key) = pair.filter(|_| inline)?;
    files.pair_fault(&certificate, &key)
}

/// Why nobody can be trusted by this; one good certificate is enough.
fn authority_fault(pem: &[u8]) -> Option<String> {
    let good = |block: &units::pem::Block| {
        is_certificate(block) && units::x509::outline_fault(&block.bytes).is_none()
    };
    if pem.is_empty() || units::pem::blocks(pem).iter().any(good) {
        return None;
    }
    let mut rest = pem;
    while !rest.is_empty() {
        let Some((block, after)) = units::pem::next(rest) else {
            return Some("unable to parse bytes as PEM block".to_owned());
        };
        rest = after;
        let fault = is_certificate(&block).then(|| units::x509::outline_fault(&block.bytes));
        if let Some(fault) = fault.flatten() {
            return Some(format!("failed to parse certificate: {fault}"));
        }
    }
    Some("no valid certificate authority data seen".to_owned())
}

/// Whether a certificate is asked for as soon as there is somebody to ask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rotation {
    /// There is none yet, or one that is only to begin with.
    AtOnce,
    /// There is one, which is good for a while.
    Later,
}

/// What is begun with: what was kept in `folder`, else what the user has, or why nothing can be
/// (client-go: `getCurrentCertificateOrBootstrap`).
pub(super) fn first_certificate(
    files: &dyn ConfigFiles,
    user: &User,
    folder: &str,
) -> Result<Rotation, String> {
    let kept = |end: &str| match folder {
        "" => format!("kubelet-client{end}"),
        folder => clean_path(&format!("{folder}/kubelet-client{end}")),
    };
    let is_there = |path: &str| {
        let missing = |error: String| error.ends_with("no such file or directory");
        !path.is_empty() && !files.read(path).is_err_and(missing)
    };
    let good = |certificate: &[u8], key: &[u8]| match files.pair_fault(certificate, key) {
        Some(fault) => Err(fault),
        None => Ok(()),
    };
    let pair = |certificate: &str, key: &str| -> Result<Rotation, String> {
        good(&files.read(certificate)?, &files.read(key)?)?;
        Ok(Rotation::Later)
    };
    let current = kept("-current.pem");
    if is_there(&current) {
        let into = format!("could not convert data from {} into cert/key pair", quote(&current));
        return pair(&current, &current).map_err(|fault| format!("{into}: {fault}"));
    }
    let own = (user.client_certificate.clone(), user.client_key.clone());
    for (certificate, key) in [own, (kept(".crt"), kept(".key"))] {
        if is_there(&certificate) && is_there(&key) {
            return pair(&certificate, &key);
        }
    }
    let (certificate, key) = (&user.client_certificate_data, &user.client_key_data);
    if !certificate.is_empty() && !key.is_empty() {
        good(&certificate.0, &key.0)?;
    }
    Ok(Rotation::AtOnce)
}

/// Why nobody can say who the user is (client-go: `HTTPWrappersForConfig`).
pub(super) fn wrapper_fault(files: &dyn ConfigFiles, user: &User) -> Option<String> {
    let token = !user.token.is_empty() || !user.token_file.is_empty();
    if token && !user.username.is_empty() {
        return Some("username/password or bearer token may be set, but not both".to_owned());
    }
    let empty = user.token.is_empty()
        && !user.token_file.is_empty()
        && files.read(&user.token_file).is_ok_and(|token| token.is_empty());
    empty.then(|| format!("read empty token from file {}", quote(&user.token_file)))
}
