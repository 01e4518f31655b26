//! Binding the listeners.

use crate::auth::{AuthConfig, AuthMetrics, ClientAuthorities, Guard};
use crate::certificate_files::{CertificateFiles, Queues};
use crate::listen;
use crate::request_metrics::RequestMetrics;
use crate::route::Switches;
use crate::serve::{Counts, ServerDeps, Service};
use crate::tls::{AskClient, ServingCertificate, TlsError, TlsSettings, server_tls};
use ports::{OnExit, Reviews, Tasks};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::net::TcpListener;

/// Settings of the server.
#[derive(Debug, Clone)]
pub struct ServerSettings {
    /// The HTTPS address, if served.
    pub https: Option<SocketAddr>,
    /// The read-only address, if served.
    pub read_only: Option<SocketAddr>,
    /// The enabled handlers.
    pub switches: Switches,
    /// TLS.
    pub tls: TlsSettings,
    /// Certificate and key files that are reloaded when they change.
    pub certificate_files: Option<(PathBuf, PathBuf)>,
    /// The client CA bundle.
    pub client_ca: Option<PathBuf>,
    /// Authentication and authorization.
    pub auth: AuthConfig,
}

/// Why the server cannot start.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// A review is configured, but there is no API server for it.
    #[error("no client provided, cannot use webhook {0}")]
    NoReviewer(&'static str),
    /// The client CA cannot be used.
    #[error("{0}")]
    ClientCa(String),
    /// TLS.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// An address cannot be bound.
    #[error("listen {address}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why.
        #[source]
        source: std::io::Error,
    },
}

/// Starts the listeners; a listener that cannot be bound is an error.
pub async fn start(
    settings: ServerSettings,
    certificate: Arc<ServingCertificate>,
    deps: ServerDeps,
    reviews: Option<Arc<dyn Reviews>>,
    tasks: &Tasks,
) -> Result<(), ServerError> {
    if reviews.is_none() && settings.auth.token_cache.is_some() {
        return Err(ServerError::NoReviewer("authentication"));
    }
    if reviews.is_none() && settings.auth.access_cache.is_some() {
        return Err(ServerError::NoReviewer("authorization"));
    }
    let authorities = match &settings.client_ca {
        Some(file) => Some(Arc::new(ClientAuthorities::read(file).map_err(ServerError::ClientCa)?)),
        None => None,
    };
    let counts = Arc::new(Counts {
        health: Arc::clone(&deps.health),
        requests: RequestMetrics::new(&deps.metrics),
    });
    let ask = settings.tls.ask_client;
    let queues = Queues::new(&deps.metrics, ask, settings.certificate_files.is_some());
    let mut named = None;
    let deps = Arc::new(deps);
    if let Some(address) = settings.https {
        let names = authorities.as_ref().map(|authorities| authorities.names());
        let tls = server_tls(&settings.tls, &certificate, names.unwrap_or_default())?;
        let tls = Arc::new(tls);
        named = (ask == AskClient::Followed).then(|| Arc::clone(&tls));
        let guard = {
            let metrics = AuthMetrics::new(&deps.metrics);
            Guard::new(settings.auth.clone(), authorities.clone(), reviews, metrics)
        };
        let service = Arc::new(Service {
            switches: settings.switches,
            guard: Some(Arc::new(guard)),
            deps: Arc::clone(&deps),
            counts: Arc::clone(&counts),
        });
        let listener = bind(address).await?;
        let serve = listen::run(listener, Some(tls), service, tasks.clone());
        tasks.spawn("https", OnExit::Exit, serve);
    }
    if let Some(address) = settings.read_only {
        let switches = Switches { debugging: false, ..settings.switches };
        let service = Arc::new(Service { switches, guard: None, deps, counts });
        let listener = bind(address).await?;
        tasks.spawn("read-only", OnExit::Exit, listen::run(listener, None, service, tasks.clone()));
    }
    let pair = settings.certificate_files;
    let files = CertificateFiles { authorities, named, certificate, pair, queues };
    tasks.spawn("certificate-files", OnExit::Fine, files.follow(tasks.token()));
    Ok(())
}

async fn bind(address: SocketAddr) -> Result<TcpListener, ServerError> {
    listen::bind(address).await.map_err(|source| ServerError::Listen { address, source })
}
