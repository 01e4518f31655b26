//! The `Authorization` header: fixed token, token file, basic, or from an exec plugin.

use super::exec::ExecPlugin;
use super::identity::ClientIdentity;
use super::kubeconfig::Kubeconfig;
use base64::Engine;
use http::HeaderValue;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::Instant;
use tower::BoxError;

/// A token file is read again after this time (client-go: a minute, less ten seconds of leeway).
const TOKEN_FILE_PERIOD: Duration = Duration::from_secs(50);

#[derive(Debug)]
pub(crate) enum Bearer {
    None,
    Fixed(HeaderValue),
    File(TokenFile),
    Exec(Box<ExecPlugin>),
}

/// A token in a file, which is read again periodically.
#[derive(Debug)]
pub(crate) struct TokenFile {
    path: PathBuf,
    /// The kubeconfig's own token, used while the file cannot be read.
    given: Option<HeaderValue>,
    known: Mutex<Option<Known>>,
}

/// The last content of the file.
#[derive(Debug, Clone)]
struct Known {
    /// `None` if the server rejected the token.
    read: Option<Instant>,
    value: HeaderValue,
}

impl Bearer {
    /// Nothing is read or run before the first request. With other credentials present, the exec
    /// plugin is not used (client-go: `exec.UpdateTransportConfig`).
    pub(crate) fn new(kubeconfig: &Kubeconfig, identity: Arc<ClientIdentity>) -> Self {
        let given = kubeconfig.token.as_ref().and_then(|token| bearer_value(token.expose()));
        if let Some(path) = &kubeconfig.token_file {
            return Self::File(TokenFile { path: path.clone(), given, known: Mutex::new(None) });
        }
        if kubeconfig.token.is_some() {
            return given.map_or(Self::None, Self::Fixed);
        }
        if let Some((user, password)) = &kubeconfig.basic {
            let pair = format!("{user}:{}", password.expose());
            let text = format!("Basic {}", base64::prelude::BASE64_STANDARD.encode(pair));
            return sensitive(&text).map_or(Self::None, Self::Fixed);
        }
        match &kubeconfig.exec {
            Some(exec) if !kubeconfig.has_certificate() => {
                Self::Exec(Box::new(ExecPlugin::new(exec.clone(), kubeconfig, identity)))
            }
            _ => Self::None,
        }
    }

    pub(crate) async fn header(&self) -> Result<Option<HeaderValue>, BoxError> {
        match self {
            Self::None => Ok(None),
            Self::Fixed(value) => Ok(Some(value.clone())),
            Self::Exec(plugin) => plugin.header().await,
            Self::File(file) => file.header().await.map(Some),
        }
    }

    /// The server rejected the credentials: the next request obtains new ones.
    pub(crate) fn rejected(&self) {
        match self {
            Self::None | Self::Fixed(_) => {}
            Self::Exec(plugin) => plugin.expire(),
            Self::File(file) => file.doubt(),
        }
    }
}

impl TokenFile {
    /// The file's token; while it cannot be read, the last one read, else the kubeconfig's own.
    async fn header(&self) -> Result<HeaderValue, BoxError> {
        let known = self.known.lock().ok().and_then(|known| known.clone());
        let fresh = |known: &&Known| known.read.is_some_and(|at| at.elapsed() < TOKEN_FILE_PERIOD);
        if let Some(known) = known.as_ref().filter(fresh) {
            return Ok(known.value.clone());
        }
        match self.read().await {
            Ok(value) => {
                if let Ok(mut known) = self.known.lock() {
                    *known = Some(Known { read: Some(Instant::now()), value: value.clone() });
                }
                Ok(value)
            }
            Err(err) => match (known, &self.given) {
                (Some(known), _) => {
                    tracing::error!(err = %err, "Unable to rotate token");
                    Ok(known.value)
                }
                (None, Some(given)) => Ok(given.clone()),
                (None, None) => Err(err),
            },
        }
    }

    async fn read(&self) -> Result<HeaderValue, BoxError> {
        let path = self.path.clone();
        let read = sys::blocking::run(move || sys::fs::read_to_string(path)).await?;
        let shown = units::strconv::quote(&self.path.to_string_lossy());
        let text = read.map_err(|error| {
            let why = units::errno::go_text(&error.source);
            format!("failed to read token file {shown}: open {}: {why}", self.path.display())
        })?;
        match text.trim() {
            "" => Err(format!("read empty token from file {shown}").into()),
            token => bearer_value(token).ok_or_else(|| {
                format!("the token of file {shown} cannot be sent: it has a control character")
                    .into()
            }),
        }
    }

    fn doubt(&self) {
        if let Ok(mut known) = self.known.lock()
            && let Some(known) = known.as_mut()
        {
            known.read = None;
        }
    }
}

pub(crate) fn bearer_value(token: &str) -> Option<HeaderValue> {
    (!token.is_empty()).then(|| sensitive(&format!("Bearer {token}"))).flatten()
}

fn sensitive(text: &str) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_str(text).ok()?;
    value.set_sensitive(true);
    Some(value)
}
