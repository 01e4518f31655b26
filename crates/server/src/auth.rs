//! Authentication and authorization of requests.
//!
//! Owns: the chain of authenticators (client certificate, bearer token, anonymous) and the
//! authorizer, with their caches. Promises: an authenticator that *erred* never lets the request
//! fall through to anonymous; nothing is cached longer than configured; caches are bounded in entries and
//! bytes, and bad tokens never push out what is known of good ones.

mod cache;
mod chain;
mod metrics;
mod x509;

pub(crate) use chain::{is_modern, proves_its_key};
pub use metrics::AuthMetrics;
pub use x509::ClientAuthorities;

use crate::route;
use base64::alphabet;
use base64::engine::general_purpose::{GeneralPurpose, NO_PAD};
use cache::{TimedCache, Weight};
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use ports::{AccessQuestion, Reviews, UserInfo};
use rustls_pki_types::CertificateDer;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// The user name of unauthenticated requests.
pub(crate) const ANONYMOUS: &str = "system:anonymous";
const CACHE_ENTRIES: usize = 4096;
/// Upper bound for the bytes in each cache.
const CACHE_BYTES: usize = 4 << 20;
/// Longer tokens are rejected without a review and without being cached.
const LONGEST_TOKEN: usize = 64 << 10;
/// Decodes as Go does: non-zero trailing bits are ignored.
const LENIENT: GeneralPurpose =
    GeneralPurpose::new(&alphabet::URL_SAFE, NO_PAD.with_decode_allow_trailing_bits(true));
const SUBPROTOCOL: &str = "base64url.bearer.authorization.k8s.io.";

/// How requests are authenticated and authorized.
#[derive(Debug, Clone)]
pub struct AuthConfig {
    /// This node's name.
    pub node_name: String,
    /// Requests without any credentials are treated as `system:anonymous`.
    pub anonymous: bool,
    /// Bearer tokens are reviewed, and the results cached for this long. `None` ignores tokens.
    pub token_cache: Option<Duration>,
    /// Access is reviewed; allowed and denied results are cached for these durations. `None` allows
    /// everything.
    pub access_cache: Option<(Duration, Duration)>,
    /// exec, attach, port-forward and run need the verb `create` even when requested by GET.
    pub strict_streaming: bool,
}

/// The request was rejected.
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
    /// Users of valid tokens.
    tokens: TimedCache<UserInfo>,
    /// Tokens that the API server rejected.
    rejected: TimedCache<()>,
    access: TimedCache<bool>,
    metrics: AuthMetrics,
}

impl Guard {
    /// A guard; `reviews` is required if the configuration enables token or access reviews.
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
            tokens: TimedCache::new(CACHE_ENTRIES, CACHE_BYTES),
            rejected: TimedCache::new(CACHE_ENTRIES, CACHE_BYTES),
            access: TimedCache::new(CACHE_ENTRIES, CACHE_BYTES),
            metrics,
        }
    }

    /// Authenticates and authorizes a request. A valid token is removed from the headers, so that
    /// later handlers do not see it.
    pub async fn check(
        &self,
        method: &Method,
        path: &str,
        headers: &mut HeaderMap,
        (peer, certificates): (IpAddr, &[CertificateDer<'static>]),
    ) -> Result<UserInfo, Refusal> {
        let user = self.authenticate(headers, (peer, certificates)).await?;
        self.authorize(&user, method, path).await?;
        Ok(user)
    }

    async fn authenticate(
        &self,
        headers: &mut HeaderMap,
        (peer, certificates): (IpAddr, &[CertificateDer<'static>]),
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
                match self.review_token(&token, peer, keep).await {
                    Some(user) => {
                        headers.remove(header::AUTHORIZATION);
                        return Ok(authenticated(user));
                    }
                    None => erred = true,
                }
            }
            match protocol_token(headers) {
                Ok(None) => {}
                Ok(Some((token, others))) => match self.review_token(&token, peer, keep).await {
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
                name: ANONYMOUS.to_owned(),
                groups: vec!["system:unauthenticated".to_owned()],
                ..UserInfo::default()
            });
        }
        Err(Refusal { status: StatusCode::UNAUTHORIZED, body: "Unauthorized".to_owned() })
    }

    /// The user of a token; `None` if it is invalid or could not be reviewed.
    async fn review_token(&self, token: &str, peer: IpAddr, keep: Duration) -> Option<UserInfo> {
        if token.len() > LONGEST_TOKEN {
            tracing::debug!(bytes = token.len(), "Bearer token rejected: too long");
            return None;
        }
        let asked = Instant::now();
        let known = self.tokens.get(&token);
        if known.is_some() || self.rejected.get(&token).is_some() {
            self.metrics.token(asked.elapsed(), None);
            return known;
        }
        let reviews = self.reviews.as_ref()?;
        let reviewed = reviews.token(token, Some(peer)).await;
        let well = reviewed.result.is_ok();
        self.metrics.token(asked.elapsed(), Some((well, &reviewed.tries)));
        match reviewed.result {
            Ok(Some(user)) => {
                self.tokens.put(&token, user.clone(), keep);
                Some(user)
            }
            Ok(None) => {
                self.rejected.put(&token, (), keep);
                None
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
                    self.access.put(&question, answer, keep);
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

impl Weight for UserInfo {
    fn weight(&self) -> usize {
        let texts = self.extra.iter().flat_map(|(key, values)| std::iter::once(key).chain(values));
        let texts = texts.chain(&self.groups).chain([&self.name, &self.uid]);
        texts.map(|text| text.len() + size_of::<String>()).sum()
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
    // Lossy on purpose: a token that is not UTF-8 is an invalid token, not an absent one.
    let value = String::from_utf8_lossy(headers.get(header::AUTHORIZATION)?.as_bytes());
    let mut parts = value.trim().split(' ');
    let scheme = parts.next()?;
    let token = parts.next().filter(|token| !token.is_empty())?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.to_owned())
}

/// The token among the sub-protocols of a WebSocket request, and the remaining sub-protocols
/// (apiserver: `ProtocolAuthenticator`).
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

/// Whether a certificate chain leads to one of these authorities, at a fixed time.
#[cfg(any(test, fuzzing))]
pub(crate) fn is_vouched_for(
    chain: &[CertificateDer<'static>],
    authorities: &[CertificateDer<'static>],
) -> bool {
    const TIME: i64 = 1_800_000_000;
    let algorithms = rustls::crypto::ring::default_provider().signature_verification_algorithms;
    chain::verify(chain, authorities, &algorithms, TIME).is_ok()
}

/// Whether a request asks for a WebSocket (Go: `wsstream.IsWebSocketRequest`).
pub(crate) fn is_websocket(headers: &HeaderMap) -> bool {
    let upgrade = headers.get(header::UPGRADE).map(HeaderValue::as_bytes).unwrap_or_default();
    upgrade.eq_ignore_ascii_case(b"websocket") && wants_upgrade(headers)
}

/// Whether the `Connection` header contains `upgrade` anywhere (Go: `httpstream.IsUpgradeRequest`).
pub(crate) fn wants_upgrade(headers: &HeaderMap) -> bool {
    let mut connection = headers.get_all(header::CONNECTION).iter().map(HeaderValue::as_bytes);
    connection.any(|value| String::from_utf8_lossy(value).to_lowercase().contains("upgrade"))
}

#[cfg(test)]
mod tests;
