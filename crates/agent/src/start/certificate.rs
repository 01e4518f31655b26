//! Ninth stage: the certificate of the node's API, from files, signed by itself, or given by the cluster.

use super::StartContext;
use crate::cluster::Cluster;
use crate::host::Host;
use crate::{AgentError, settings};
use ::server::tls::{ServingCertificate, self_signed};
use ::server::{ServerError, ServerSettings};
use kubeapi::certs::{ServingConfig, serving as serving_rotation, serving_alone};
use ports::OnExit;
use std::path::PathBuf;
use std::sync::Arc;

/// How the node's API is served.
pub(super) struct Serving {
    pub(super) settings: ServerSettings,
    pub(super) certificate: Arc<ServingCertificate>,
}

pub(super) fn start(
    cx: &StartContext<'_>,
    host: &Host,
    cluster: &Cluster,
) -> Result<Serving, AgentError> {
    let certificate = Arc::new(ServingCertificate::default());
    let mut settings = settings::server(cx.config, host);
    let named = settings.certificate_files.take();
    if cx.config.server.server_tls_bootstrap {
        // The cluster gives it; what is in the files is good until then.
        given_by_cluster(cx, host, cluster, &certificate, named);
    } else {
        settings.certificate_files = from_files(cx, host, &certificate, named)?;
    }
    Ok(Serving { settings, certificate })
}

/// Reads the files that are named, or makes a pair; gives the files to follow.
fn from_files(
    cx: &StartContext<'_>,
    host: &Host,
    certificate: &ServingCertificate,
    named: Option<(PathBuf, PathBuf)>,
) -> Result<Option<(PathBuf, PathBuf)>, AgentError> {
    let folder = &cx.config.dirs.certs;
    match named {
        Some((crt, key)) if crt != folder.join("kubelet.crt") => {
            certificate.read(&crt, &key).map_err(ServerError::from)?;
            Ok(Some((crt, key)))
        }
        // One file of the pair is not named: then there never is one.
        None => Ok(None),
        Some(_) => {
            let now = cx.clock.now().as_second();
            let pair = self_signed(certificate, folder, &host.hostname, now);
            Ok(Some(pair.map_err(ServerError::from)?))
        }
    }
}

/// Has the certificate requested and renewed; without an API server only what was given before is served.
fn given_by_cluster(
    cx: &StartContext<'_>,
    host: &Host,
    cluster: &Cluster,
    certificate: &ServingCertificate,
    first: Option<(PathBuf, PathBuf)>,
) {
    let serving = ServingConfig {
        node_name: host.hostname.clone(),
        cert_dir: cx.config.dirs.certs.clone(),
        first,
        allow_dns_only: settings::allow_dns_only_certificates(cx.config),
    };
    let Some(connection) = &cluster.connection else {
        certificate.follow(serving_alone(&serving, Arc::clone(&cx.clock), &cx.registry));
        return;
    };
    let view = cx.listeners.node_view.clone();
    let (identity, rotation) = serving_rotation(connection, serving, view, Arc::clone(&cx.clock));
    certificate.follow(identity);
    let rotation = rotation.with_metrics(&cx.registry).run(cx.tasks.token());
    cx.tasks.spawn("serving-certificate", OnExit::Fine, rotation);
}
