//! Sets up the authenticated connection from the files on disk: kubeconfig, bootstrap, rotation.

use super::key::{self, Names, Subject};
use super::request::{self, Request, RequestError};
use super::rotation::{Asking, CertificateState, Rotation};
use super::store::{CertStore, StoreError};
use crate::connection::{
    ClientIdentity, Connection, ConnectionConfig, ConnectionError, IdentityPair, Kubeconfig,
    KubeconfigError, Lane, validity,
};
use async_trait::async_trait;
use ports::Clock;
use rcgen::KeyPair;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// How long a one-time bootstrap waits for a healthy API server.
const SERVER_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a one-time bootstrap waits for its certificate.
const CERTIFICATE_TIMEOUT: Duration = Duration::from_secs(3600);

/// Settings of the client certificate.
#[derive(Debug, Clone)]
pub struct ClientCertConfig {
    /// This node's name.
    pub node_name: String,
    /// `--kubeconfig`.
    pub kubeconfig: PathBuf,
    /// `--bootstrap-kubeconfig`.
    pub bootstrap_kubeconfig: Option<PathBuf>,
    /// `--cert-dir`.
    pub cert_dir: PathBuf,
    /// `rotateCertificates`.
    pub rotate: bool,
}

/// Why the connection cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum EstablishError {
    /// The kubeconfig cannot be used.
    #[error("unable to load kubeconfig")]
    Kubeconfig(#[source] KubeconfigError),
    /// The bootstrap kubeconfig cannot be used.
    #[error("unable to load bootstrap kubeconfig")]
    Bootstrap(#[source] KubeconfigError),
    /// The connection cannot be made.
    #[error("connection to the API server")]
    Connection(#[from] ConnectionError),
    /// The stored certificate cannot be used.
    #[error("certificate store")]
    Store(#[from] StoreError),
    /// The certificate was not issued.
    #[error("client certificate")]
    Request(#[from] RequestError),
}

/// A connection, and the task that rotates its certificate.
#[derive(Debug)]
pub struct Established {
    /// The connection.
    pub connection: Connection,
    /// The kubeconfig in use, for [`Connection::follow_files`].
    pub kubeconfig: Kubeconfig,
    /// To be run when certificates are rotated.
    pub rotation: Option<Rotation>,
}

/// Sets up the connection that the settings describe. With rotation it does not wait for a
/// certificate: the first one may arrive later.
pub async fn establish(
    config: &ClientCertConfig,
    connection: &ConnectionConfig,
    clock: Arc<dyn Clock>,
) -> Result<Established, EstablishError> {
    if !config.rotate {
        if let Some(bootstrap) = &config.bootstrap_kubeconfig
            && !is_valid(&config.kubeconfig, &*clock)
        {
            bootstrap_once(config, bootstrap, connection, &*clock).await?;
        }
        let kubeconfig = load(&config.kubeconfig).map_err(EstablishError::Kubeconfig)?;
        let connection = Connection::new(&kubeconfig, connection).await?;
        return Ok(Established { connection, kubeconfig, rotation: None });
    }
    let store = CertStore::new(&config.cert_dir, "kubelet-client");
    let (asking, kubeconfig) = match &config.bootstrap_kubeconfig {
        Some(bootstrap) if !is_valid(&config.kubeconfig, &*clock) => {
            let asking = load(bootstrap).map_err(EstablishError::Bootstrap)?;
            let writer = asking.writer(&store.current_path());
            writer.write(&config.kubeconfig).map_err(EstablishError::Kubeconfig)?;
            tracing::info!("bootstrap credentials will be used to request a client certificate");
            (asking.clone(), asking.without_credentials())
        }
        _ => {
            let kubeconfig = load(&config.kubeconfig).map_err(EstablishError::Kubeconfig)?;
            (kubeconfig.clone(), kubeconfig)
        }
    };
    let identity = Arc::new(ClientIdentity::default());
    let force = seed(&identity, &store, &kubeconfig, &*clock)?;
    let anonymous = kubeconfig.without_credentials();
    let made = Connection::with_identity(&anonymous, connection, Arc::clone(&identity)).await?;
    let credentials = Credentials {
        connection: made.clone(),
        first: asking,
        bootstrap: config.bootstrap_kubeconfig.clone(),
        config: connection.clone(),
    };
    let rotation = Rotation {
        asking: Box::new(credentials),
        signer: request::CLIENT_SIGNER,
        usages: &request::CLIENT_USAGES,
        subject: Subject::node(&config.node_name),
        names: watch::channel(Some(Names::default())).1,
        store,
        identity,
        connection: Some(made.clone()),
        clock,
        state: watch::Sender::new(CertificateState::default()),
        force,
        responsive: Arc::default(),
        metrics: None,
        node: None,
    };
    Ok(Established { connection: made, kubeconfig: anonymous, rotation: Some(rotation) })
}

fn load(path: &Path) -> Result<Kubeconfig, KubeconfigError> {
    Kubeconfig::read(path)
}

/// Whether the kubeconfig has client certificates none of which has expired. The key is checked
/// only where it is inline: files may change until they are needed (upstream:
/// `isClientConfigStillValid`).
fn is_valid(path: &Path, clock: &dyn Clock) -> bool {
    let read = load(path).and_then(|file| Ok((file.client_pair()?, file.has_pair_of_files())));
    let (pair, files) = match read {
        Ok((Some(pair), files)) => (pair, files),
        Ok((None, _)) => return false,
        Err(err) => {
            let err = crate::error::chain(&err);
            tracing::info!(err, "kubeconfig cannot be used, bootstrapping");
            return false;
        }
    };
    let whole = || IdentityPair::from_pem(&pair.certificate, &pair.key).map(drop);
    let ends = units::pem::certificates(&pair.certificate)
        .into_iter()
        .map(|certificate| validity(&certificate.into()).map(|(_, end)| end))
        .collect::<Result<Vec<_>, _>>();
    let ends = if files { ends } else { whole().and(ends) };
    match ends {
        Ok(ends) => {
            let over = ends.iter().find(|end| clock.now() > **end);
            if let Some(end) = over {
                let end = end.strftime("%Y-%m-%d %H:%M:%S +0000 UTC");
                let path = path.display();
                let err = format!(
                    "part of the existing bootstrap client certificate in {path} is expired: {end}"
                );
                tracing::error!(err, logger = "UnhandledError", "Unhandled Error");
            }
            over.is_none() && !ends.is_empty()
        }
        Err(err) => {
            tracing::warn!(err = %err, "client certificate of the kubeconfig cannot be used");
            false
        }
    }
}

/// Installs the stored certificate, else the kubeconfig's; returns whether to rotate at once.
fn seed(
    identity: &ClientIdentity,
    store: &CertStore,
    kubeconfig: &Kubeconfig,
    clock: &dyn Clock,
) -> Result<bool, EstablishError> {
    if let Some(pair) = store.current()?.filter(|p| p.not_after() > clock.now()) {
        identity.install(pair);
        return Ok(false);
    }
    let given = kubeconfig.client_pair().map_err(EstablishError::Kubeconfig)?;
    let Some(given) = given else { return Ok(true) };
    let pair = IdentityPair::from_pem(&given.certificate, &given.key)
        .map_err(|e| EstablishError::Connection(e.into()))?;
    identity.install(pair);
    if kubeconfig.has_inline_certificate() {
        if let Err(err) = store.update(&given.certificate, &given.key, clock.now()) {
            let err = crate::error::chain(&err);
            tracing::error!(err, "Unable to set the cert/key pair to the bootstrap certificate");
        }
        return Ok(true);
    }
    Ok(false)
}

/// With a certificate, its connection is used; without one, the original credentials, read again
/// from the bootstrap kubeconfig if there is one.
#[derive(Debug)]
struct Credentials {
    connection: Connection,
    first: Kubeconfig,
    bootstrap: Option<PathBuf>,
    config: ConnectionConfig,
}

#[async_trait]
impl Asking for Credentials {
    async fn lane(&self, has_certificate: bool) -> Result<Lane, RequestError> {
        if has_certificate {
            return Ok(self.connection.writes().clone());
        }
        let fresh = self.bootstrap.as_deref().and_then(|path| load(path).ok());
        let kubeconfig = fresh.as_ref().unwrap_or(&self.first);
        let connection = Connection::new(kubeconfig, &self.config).await?;
        Ok(connection.writes().clone())
    }
}

/// Obtains one certificate with the bootstrap credentials, then uses the kubeconfig (upstream:
/// `bootstrap.LoadClientCert`). The key is stored on disk, so that after a restart the same request
/// continues.
async fn bootstrap_once(
    config: &ClientCertConfig,
    bootstrap: &Path,
    connection: &ConnectionConfig,
    clock: &dyn Clock,
) -> Result<(), EstablishError> {
    let asking = load(bootstrap).map_err(EstablishError::Bootstrap)?;
    let made = Connection::new(&asking, connection).await?;
    let key_path = config.cert_dir.join("kubelet-client.key.tmp");
    let key = load_or_make_key(&key_path)?;
    let healthy = async {
        while !made.is_healthy().await {
            tokio::time::sleep(Duration::from_secs(2)).await;
        }
    };
    if tokio::time::timeout(SERVER_TIMEOUT, healthy).await.is_err() {
        tracing::warn!("API server is not healthy yet, requesting a certificate anyway");
    }
    let subject = Subject::node(&config.node_name);
    let pem = key::signing_request(&key, &subject, &Names::default())
        .map_err(|e| RequestError::Make(e.to_string()))?;
    let request = Request {
        name: Some(key::digest_name(&key, &subject, &request::CLIENT_USAGES)),
        signer: request::CLIENT_SIGNER,
        usages: &request::CLIENT_USAGES,
        pem,
        patience: CERTIFICATE_TIMEOUT,
    };
    let certificate = request::obtain(made.writes(), request).await?;
    let store = CertStore::new(&config.cert_dir, "kubelet-client");
    store.update(&certificate, key.serialize_pem().as_bytes(), clock.now())?;
    sys::fs::remove_file(&key_path).map_err(StoreError::from)?;
    let writer = asking.writer(&store.current_path());
    writer.write(&config.kubeconfig).map_err(EstablishError::Kubeconfig)
}

fn load_or_make_key(path: &Path) -> Result<KeyPair, EstablishError> {
    let known = sys::fs::read_to_string(path).ok().and_then(|pem| KeyPair::from_pem(&pem).ok());
    if let Some(key) = known {
        return Ok(key);
    }
    let key = key::generate().map_err(|e| RequestError::Make(e.to_string()))?;
    if let Some(folder) = path.parent() {
        sys::fs::create_dir_all(folder, 0o755).map_err(StoreError::from)?;
    }
    sys::fs::write_atomic(path, key.serialize_pem(), 0o600).map_err(StoreError::from)?;
    Ok(key)
}
