//! Who asks, and may they.
//!
//! Owns: the chain of authenticators (client certificate, bearer token, anonymous) and the
//! authorizer, with their caches. Promises: an authenticator that *erred* never lets the request
//! fall through to anonymous; nothing is cached longer than configured; caches are bounded.

mod cache;
mod metrics;
mod plain;
mod x509;

pub use metrics::AuthMetrics;
pub(crate) use plain::{is_modern, proves_its_key};
pub use x509::ClientAuthorities;

use crate::route;
use base64::alphabet;
use base64::engine::general_purpose::{GeneralPurpose, NO_PAD};
use cache::TimedCache;
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use ports::{AccessQuestion, Reviews, UserInfo};
use rustls_pki_types::CertificateDer;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

const CACHE_ENTRIES: usize = 4096;
/// As Go decodes: bits that are left over mean nothing.
const LENIENT: GeneralPurpose =
    GeneralPurpose::new(&alphabet::URL_SAFE, NO_PAD.with_decode_allow_trailing_bits(true));
const SUBPROTOCOL: &str = "base64url.bearer.authorization.k8s.io.";

/// How callers are known.
#[derive(Debug, Clone)]
pub struct AuthConfig {
    /// This node's name.
    pub node_name: String,
    /// Requests without any identity are taken as `system:anonymous`.
    pub anonymous: bool,
    /// Bearer tokens are reviewed; answers are kept this long.
    pub token_cache: Option<Duration>,
    /// Access is reviewed; allowances and denials are kept this long. `None` allows everything.
    pub access_cache: Option<(Duration, Duration)>,
    /// exec, attach, port-forward and run need `create` even when asked by GET.
    pub strict_streaming: bool,
}

/// The caller was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// 401, 403 or 500.
    pub status: StatusCode,
    /// The body.
    pub body: String,
}

/// Authenticates and authorizes.
#[derive(Debug)]
pub struct Guard {
    config: AuthConfig,
    authorities: Option<Arc<ClientAuthorities>>,
    reviews: Option<Arc<dyn Reviews>>,
    tokens: TimedCache<String, Option<UserInfo>>,
    access: TimedCache<AccessQuestion, bool>,
    metrics: AuthMetrics,
}

impl Guard {
    /// A guard; `reviews` must be there if the configuration asks for any.
    pub fn new(
        config: AuthConfig,
        authorities: Option<Arc<ClientAuthorities>>,
        reviews: Option<Arc<dyn Reviews>>,
        metrics: AuthMetrics,
    ) -> Self {
        Self {
            config,
            authorities,
            reviews,
            tokens: TimedCache::new(CACHE_ENTRIES),
            access: TimedCache::new(CACHE_ENTRIES),
            metrics,
        }
    }

    /// Lets a request pass or says why not. A token that was good is taken out of the headers, so
    /// that nobody behind sees it.
    pub async fn check(
        &self,
        method: &Method,
        path: &str,
        headers: &mut HeaderMap,
        certificates: &[CertificateDer<'static>],
    ) -> Result<UserInfo, Refusal> {
        let user = self.authenticate(headers, certificates).await?;
        self.authorize(&user, method, path).await?;
        Ok(user)
    }

    async fn authenticate(
        &self,
        headers: &mut HeaderMap,
        certificates: &[CertificateDer<'static>],
    ) -> Result<UserInfo, Refusal> {
        let mut erred = false;
        if let (Some(authorities), false) = (&self.authorities, certificates.is_empty()) {
            match authorities.user(certificates) {
                Ok(Some((user, left))) => {
                    self.metrics.expiration.observe(&[], left);
                    return Ok(authenticated(user));
                }
                Ok(None) => {}
                Err(error) => {
                    tracing::debug!(err = error, "client certificate refused");
                    erred = true;
                }
            }
        }
        if let Some(keep) = self.config.token_cache {
            if let Some(token) = bearer(headers) {
                match self.review_token(&token, keep).await {
                    Some(user) => {
                        headers.remove(header::AUTHORIZATION);
                        return Ok(authenticated(user));
                    }
                    None => erred = true,
                }
            }
            match protocol_token(headers) {
                Ok(None) => {}
                Ok(Some((token, others))) => match self.review_token(&token, keep).await {
                    Some(user) => {
                        if let Ok(others) = HeaderValue::from_str(&others) {
                            headers.insert(header::SEC_WEBSOCKET_PROTOCOL, others);
                        }
                        return Ok(authenticated(user));
                    }
                    None => erred = true,
                },
                Err(error) => {
                    tracing::error!(err = error, "Unable to authenticate the request");
                    erred = true;
                }
            }
        }
        if !erred && self.config.anonymous {
            return Ok(UserInfo {
                name: "system:anonymous".to_owned(),
                groups: vec!["system:unauthenticated".to_owned()],
                ..UserInfo::default()
            });
        }
        Err(Refusal { status: StatusCode::UNAUTHORIZED, body: "Unauthorized".to_owned() })
    }

    /// The user of a token; `None` if it is not good or could not be reviewed.
    async fn review_token(&self, token: &str, keep: Duration) -> Option<UserInfo> {
        let asked = Instant::now();
        if let Some(known) = self.tokens.get(&token.to_owned()) {
            self.metrics.token(asked.elapsed(), None);
            return known;
        }
        let reviews = self.reviews.as_ref()?;
        let reviewed = reviews.token(token).await;
        let well = reviewed.result.is_ok();
        self.metrics.token(asked.elapsed(), Some((well, &reviewed.tries)));
        match reviewed.result {
            Ok(user) => {
                self.tokens.put(token.to_owned(), user.clone(), keep);
                user
            }
            Err(error) => {
                tracing::error!(err = error, "Unable to authenticate the request");
                None
            }
        }
    }

    async fn authorize(&self, user: &UserInfo, method: &Method, path: &str) -> Result<(), Refusal> {
        let Some((allow_for, deny_for)) = self.config.access_cache else { return Ok(()) };
        let sub_resources = route::sub_resources(path);
        let mut verb = route::verb(method);
        if self.config.strict_streaming && sub_resources == ["proxy"] && is_streaming(path) {
            verb = "create";
        }
        for sub_resource in sub_resources {
            let question = AccessQuestion {
                user: user.clone(),
                verb,
                sub_resource,
                node_name: self.config.node_name.clone(),
            };
            let allowed = match self.access.get(&question) {
                Some(known) => known,
                None => {
                    let answer = self.review_access(&question).await.map_err(|error| {
                        tracing::error!(err = error, user = user.name, "Authorization error");
                        Refusal {
                            status: StatusCode::INTERNAL_SERVER_ERROR,
                            body: format!(
                                "Authorization error (user={}, verb={verb}, resource=nodes, subresource={sub_resource})",
                                user.name
                            ),
                        }
                    })?;
                    let keep = if answer { allow_for } else { deny_for };
                    self.access.put(question, answer, keep);
                    answer
                }
            };
            if allowed {
                if verb != "create" && is_streaming(path) {
                    tracing::info!(
                        user = user.name,
                        verb,
                        path,
                        "Stream allowed without the verb create; RUBELET_STRICT_STREAMING=true refuses it"
                    );
                }
                return Ok(());
            }
        }
        Err(Refusal {
            status: StatusCode::FORBIDDEN,
            body: format!(
                "Forbidden (user={}, verb={verb}, resource=nodes, subresource(s)=[{}])\n",
                user.name,
                sub_resources.join(" ")
            ),
        })
    }

    async fn review_access(&self, question: &AccessQuestion) -> Result<bool, String> {
        let reviews = self.reviews.as_ref().ok_or("no API server to review access")?;
        let reviewed = reviews.access(question).await;
        self.metrics.access(&reviewed.tries);
        reviewed.result
    }
}

fn is_streaming(path: &str) -> bool {
    ["/exec/", "/attach/", "/portForward/", "/run/"].iter().any(|tree| path.starts_with(tree))
}

fn authenticated(mut user: UserInfo) -> UserInfo {
    let everybody = "system:authenticated";
    if !user.groups.iter().any(|group| group == everybody) {
        user.groups.push(everybody.to_owned());
    }
    user
}

/// The bearer token of a request's header (apiserver: `bearertoken`).
fn bearer(headers: &HeaderMap) -> Option<String> {
    // Whatever the bytes are: a token that cannot be read is a bad one, not none.
    let value = String::from_utf8_lossy(headers.get(header::AUTHORIZATION)?.as_bytes());
    let mut parts = value.trim().split(' ');
    let scheme = parts.next()?;
    let token = parts.next().filter(|token| !token.is_empty())?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.to_owned())
}

/// The token among the sub-protocols of a WebSocket request, and the others (apiserver:
/// `ProtocolAuthenticator`).
fn protocol_token(headers: &HeaderMap) -> Result<Option<(String, String)>, &'static str> {
    use base64::Engine as _;
    if !is_websocket(headers) {
        return Ok(None);
    }
    let offered = headers.get_all(header::SEC_WEBSOCKET_PROTOCOL);
    let offered: Vec<_> = offered.iter().map(|v| String::from_utf8_lossy(v.as_bytes())).collect();
    let (mut token, mut others) = (None, Vec::new());
    for protocol in offered.iter().flat_map(|v| v.split(',')).map(str::trim) {
        let Some(encoded) = protocol.strip_prefix(SUBPROTOCOL) else {
            others.push(protocol);
            continue;
        };
        if token.is_some() {
            return Err("multiple base64.bearer.authorization tokens specified");
        }
        let bytes = LENIENT.decode(encoded);
        let bytes = bytes.map_err(|_| "invalid base64.bearer.authorization token encoding")?;
        let text = String::from_utf8(bytes);
        token = Some(text.map_err(|_| "invalid base64.bearer.authorization token")?);
    }
    match token.filter(|token| !token.is_empty()) {
        None => Ok(None),
        Some(_) if others.is_empty() => Err("missing additional subprotocol"),
        Some(token) => Ok(Some((token, others.join(",")))),
    }
}

/// Whether a request wants a WebSocket (Go: `wsstream.IsWebSocketRequest`).
pub(crate) fn is_websocket(headers: &HeaderMap) -> bool {
    let upgrade = headers.get(header::UPGRADE).map(HeaderValue::as_bytes).unwrap_or_default();
    upgrade.eq_ignore_ascii_case(b"websocket") && wants_upgrade(headers)
}

/// Whether a connection is to be upgraded, by the word anywhere in its header (Go:
/// `httpstream.IsUpgradeRequest`).
pub(crate) fn wants_upgrade(headers: &HeaderMap) -> bool {
    let mut connection = headers.get_all(header::CONNECTION).iter().map(HeaderValue::as_bytes);
    connection.any(|value| String::from_utf8_lossy(value).to_lowercase().contains("upgrade"))
}

#[cfg(test)]
mod tests;
