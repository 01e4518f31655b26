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

/// A token file is read again after this time.
const TOKEN_FILE_PERIOD: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(crate) enum Bearer {
    None,
    Fixed(HeaderValue),
    File { path: PathBuf, cached: Mutex<Option<(Instant, HeaderValue)>> },
    Exec(Box<ExecPlugin>),
}

impl Bearer {
    /// Nothing is read or run before the first request.
    pub(crate) fn new(kubeconfig: &Kubeconfig, identity: Arc<ClientIdentity>) -> Self {
        if let Some(exec) = &kubeconfig.exec {
            let plugin = ExecPlugin::new(exec.clone(), kubeconfig, identity);
            return Self::Exec(Box::new(plugin));
        }
        if let Some(path) = &kubeconfig.token_file {
            return Self::File { path: path.clone(), cached: Mutex::new(None) };
        }
        if let Some(token) = &kubeconfig.token {
            return bearer_value(token.expose()).map_or(Self::None, Self::Fixed);
        }
        if let Some((user, password)) = &kubeconfig.basic {
            let pair = format!("{user}:{}", password.expose());
            let text = format!("Basic {}", base64::prelude::BASE64_STANDARD.encode(pair));
            return sensitive(&text).map_or(Self::None, Self::Fixed);
        }
        Self::None
    }

    pub(crate) async fn header(&self) -> Result<Option<HeaderValue>, BoxError> {
        match self {
            Self::None => Ok(None),
            Self::Fixed(value) => Ok(Some(value.clone())),
            Self::Exec(plugin) => plugin.header().await,
            Self::File { path, cached } => {
                let fresh = |entry: &(Instant, HeaderValue)| entry.0.elapsed() < TOKEN_FILE_PERIOD;
                let known = cached.lock().ok().and_then(|c| c.clone());
                if let Some((_, value)) = known.filter(fresh) {
                    return Ok(Some(value));
                }
                let path = path.clone();
                let text = sys::blocking::run(move || sys::fs::read_to_string(path)).await??;
                let value = bearer_value(text.trim());
                if let (Some(value), Ok(mut cached)) = (&value, cached.lock()) {
                    *cached = Some((Instant::now(), value.clone()));
                }
                Ok(value)
            }
        }
    }

    /// The server did not accept the credentials: ask for new ones at the next request.
    pub(crate) fn rejected(&self) {
        match self {
            Self::None | Self::Fixed(_) => {}
            Self::Exec(plugin) => plugin.expire(),
            Self::File { cached, .. } => {
                if let Ok(mut cached) = cached.lock() {
                    *cached = None;
                }
            }
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
